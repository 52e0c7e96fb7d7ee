"""What launches of plans bring about, held against what their collectives ask for."""

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
) -> bool:
    """Whether a random run of some launches ends, each with what the plan's collective asks for.

    root: of broadcast and reduce. goal: of other collectives, as a library's index states it: columns `initial` and
    `required` of rank, buffer, place, source rank and chunk. beside: plans, with their roots, that take turns with it.
    last: a rank that goes on only where no other can.
    """
    plans, roots = [plan, *(other for other, _ in beside)], [root, *(other for _, other in beside)]
    turns = [launch % len(plans) for launch in range(launches)]
    run = PlanRun(plans, random.Random(seed), turns, goal, last)
    try:
        run.run()
    except Wrong:
        return False
    held = {(r, k): s["init_value"] for r, gpu in enumerate(run.gpus) for k, s in enumerate(gpu.get("semaphores", ()))}
    if any(run.inbound.values()) or run.semaphores != held:
        return False
    for launch, (turn, results) in enumerate(zip(turns, run.results, strict=True), 1):
        of_turn, first = plans[turn], turn * run.nranks
        inputs = (
            (rank, "i", c, [run.content(first + rank, c)])
            for rank, gpu in enumerate(of_turn["gpus"])
            for c in range(0 if of_turn["inplace"] else gpu["input_chunks"])
        )
        for rank, kind, chunk, wanted in (*required(of_turn, roots[turn], goal if turn == 0 else None), *inputs):
            want = tuple(sorted((launch, source, c) for source, c in wanted))
            for e in range(chunk * PARTS, (chunk + 1) * PARTS):
                if results[rank].get(run.alias(first + rank, kind, e)) != want:
                    return False
    return True


def required(plan: Json, root: int, goal: Json | None) -> Iterator[tuple[int, str, int, list[tuple[int, int]]]]:
    """(rank, buffer, chunk, contributions as (rank, chunk)) of what a launch must bring about."""
    n, collective = len(plan["gpus"]), plan["collective"]
    stated: dict[tuple[int, str, int], list[tuple[int, int]]] = defaultdict(list)
    for rank, kind, chunk, source, c in zip(*goal["required"], strict=True) if goal is not None else ():
        stated[rank, kind, chunk].append((source, c))
    for (rank, kind, chunk), wanted in stated.items():
        yield rank, kind, chunk, wanted
    for rank, gpu in enumerate(plan["gpus"]):
        inputs, outputs = gpu["input_chunks"], gpu["output_chunks"]
        for c in range(0 if goal is not None or (collective == "reduce" and rank != root) else outputs):
            if collective in ("allreduce", "reduce"):
                wanted = [(r, c) for r in range(n)]
            elif collective == "allgather":
                wanted = [(c // inputs, c % inputs)]
            elif collective == "reducescatter":
                wanted = [(r, rank * outputs + c) for r in range(n)]
            elif collective == "broadcast":
                wanted = [(root, c)]
            else:
                wanted = [(c // (inputs // n), rank * (inputs // n) + c % (inputs // n))]
            yield rank, "o", c, wanted
