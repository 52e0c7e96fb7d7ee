"""The results of launches of plans, compared with what their collectives require."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.oracles.plan_runs import LAUNCHES, PARTS, Json, PlanRun, Wrong


def ends_right(
    plan: Json,
    seed: int,
    launches: int = LAUNCHES,
    root: int = 0,
    goal: Json | None = None,
    *,
    beside: Sequence[tuple[Json, int]] = (),
    last: int | None = None,
    late_stores: bool = True,
) -> bool:
    """Return whether each launch of a random run ends with what its plan's collective requires.

    Args:
        plan: The plan.
        seed: Seed of the random run.
        launches: Number of launches.
        root: Root of broadcast and reduce.
        goal: Goal of other collectives, as a library's index states it: columns `initial` and `required` of rank,
            buffer, place, source rank and chunk.
        beside: Further plans, with their roots, that take turns with the plan.
        last: A rank that goes on only where no other can.
        late_stores: Whether plain stores become visible to other threadblocks late.
    """
    plans, roots = (
        [plan, *(further_plan for further_plan, _ in beside)],
        [root, *(further_root for _, further_root in beside)],
    )
    plan_of_launch = [launch % len(plans) for launch in range(launches)]
    run = PlanRun(plans, random.Random(seed), plan_of_launch, goal, last, late_stores=late_stores)
    try:
        run.run()
    except Wrong:
        return False
    initial_semaphores = {
        (r, k): s["init_value"] for r, gpu in enumerate(run.gpus) for k, s in enumerate(gpu.get("semaphores", ()))
    }
    if any(run.inbound.values()) or run.semaphores != initial_semaphores:
        return False
    for launch, (plan_number, results) in enumerate(zip(plan_of_launch, run.results, strict=True), 1):
        launched_plan, first = plans[plan_number], plan_number * run.nranks
        inputs = (
            (rank, "i", c, [run.content(first + rank, c)])
            for rank, gpu in enumerate(launched_plan["gpus"])
            for c in range(0 if launched_plan["inplace"] else gpu["input_chunks"])
        )
        for rank, kind, chunk, contributions in (
            *required(launched_plan, roots[plan_number], goal if plan_number == 0 else None),
            *inputs,
        ):
            expected = tuple(sorted((launch, source, c) for source, c in contributions))
            for e in range(chunk * PARTS, (chunk + 1) * PARTS):
                if results[rank].get(run.alias(first + rank, kind, e)) != expected:
                    return False
    return True


def required(plan: Json, root: int, goal: Json | None) -> Iterator[tuple[int, str, int, list[tuple[int, int]]]]:
    """Yield (rank, buffer, chunk, contributions as (rank, chunk)) that a launch must bring about."""
    n, collective = len(plan["gpus"]), plan["collective"]
    stated: dict[tuple[int, str, int], list[tuple[int, int]]] = defaultdict(list)
    for rank, kind, chunk, source, c in zip(*goal["required"], strict=True) if goal is not None else ():
        stated[rank, kind, chunk].append((source, c))
    for (rank, kind, chunk), contributions in stated.items():
        yield rank, kind, chunk, contributions
    for rank, gpu in enumerate(plan["gpus"]):
        inputs, outputs = gpu["input_chunks"], gpu["output_chunks"]
        for c in range(0 if goal is not None or (collective == "reduce" and rank != root) else outputs):
            if collective in ("allreduce", "reduce"):
                contributions = [(r, c) for r in range(n)]
            elif collective == "allgather":
                contributions = [(c // inputs, c % inputs)]
            elif collective == "reducescatter":
                contributions = [(r, rank * outputs + c) for r in range(n)]
            elif collective == "broadcast":
                contributions = [(root, c)]
            else:
                contributions = [(c // (inputs // n), rank * (inputs // n) + c % (inputs // n))]
            yield rank, "o", c, contributions
