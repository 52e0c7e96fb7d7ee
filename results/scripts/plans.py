"""Run MSCCL++ plans launch after launch, for all collectives, machines, groups and forms, on an independent executor.

    python -m results.scripts.plans [--minutes M] [--budget S] [--runs N] [--only TOPOLOGY …]

makes plans.md. The executor is that of `tests/oracles/plan_runs.py`. It runs four launches in random order, each with
the scratch, semaphores and channels as the launch before leaves them. Separate code also computes whether offsets stay
within 32 bits. In each plan the script plants faults that only a later launch, a large message or a second plan shows.
Plans on switch channels are of overlapping groups, for messages of any size and of a size that powers of two do not
divide.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import synth
from emit.compiler.lower import goal_columns, lower
from emit.formats import write_program
from emit.library.lowered import Lowered
from emit.library.programs import Programs
from emit.mscclpp.format import check_plan, write_plan
from emit.mscclpp.in_switch import is_in_switch
from emit.targets import LL_MOST_BYTES
from results.measuring.measure import grid, page, write
from synth.model.problem import LARGEST
from synth.model.registry import find_kind
from synth.search.settings import TargetSettings
from synth.verify.algorithm import Algorithm
from tests.emit.mscclpp.plan_faults import beyond_int, beyond_offsets, uneven_scratch, unordered
from tests.emit.small_programs import alltoall
from tests.oracles.plan_offsets import overflowing
from tests.oracles.plan_results import ends_right
from tests.oracles.plan_runs import LAUNCHES
from topologies.errors import InputError
from topologies.load import load

MACHINES = (
    "dgx1", "dgx-a100", "dgx-h100", "dgx-h100:2", "mi250", "mi300x", "ring:8", "torus:2x4", "mesh:2x4",
)  # fmt: skip
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "alltonext")
GROUPS = range(2, 9)
SWITCHED = ("dgx-h100", "gb200-nvl72")
SWITCHED_COLLECTIVES = ("allreduce", "allgather", "broadcast")
ALLOCATION = 1 << 40  # Bytes of the allocation that contains a message: the worst case for the size of scratch.
RELAYED = (("dgx1", "allgather", (0, 7)), ("dgx1", "allreduce", (1, 6)), ("ring:8", "broadcast", (0, 2, 5)))
IN_SWITCHES = "in switches"  # A value for `relay`.
Json = dict[str, Any]


@dataclass
class Row:
    """The results of one topology and collective.

    Attributes:
        topology: Name of the topology.
        collective: Name of the collective, with its relays.
        counts: Numbers of plans, of plans under LL, of plans that are right in all runs, of plans whose offsets stay
            within 32 bits, and of faults planted and found.
        reasons: Reasons for which plans are not written, with their numbers.
        wrong: One line for each wrong plan.
    """

    topology: str
    collective: str
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def cells(self) -> tuple[object, ...]:
        """Return the cells of the table."""
        counts = self.counts
        planted = f"{counts['found']} of {counts['planted']}"
        return (
            self.topology, self.collective, counts["plans"], counts["LL"], counts["right"], counts["offsets"], planted,
            "; ".join(f"{n} × {reason}" for reason, n in sorted(self.reasons.items())),
        )  # fmt: skip


def groups(spec: str) -> Iterator[tuple[int, ...]]:
    """Yield groups of 2 to 8 ranks: the first ranks of the topology, or of each node if there are several."""
    nodes = load(spec).nodes.tolist()
    by_place = sorted(range(len(nodes)), key=lambda rank: (rank - nodes.index(nodes[rank]), rank))
    for size in GROUPS:
        if size <= len(nodes):
            yield tuple(sorted(by_place[:size]))


def algorithms(spec: str, collective: str, group: Sequence[int], budget_s: float, relay: str) -> list[Algorithm]:
    """Return the algorithms with which a search serves small and large messages.

    Args:
        spec: Name of the topology.
        collective: Name of the collective.
        group: Ranks of the process group.
        budget_s: Budget of the search in seconds.
        relay: The group's relays; IN_SWITCHES for no relays, and only algorithms in which switches reduce or multicast.

    Raises:
        InputError: If there is no answer.
    """
    options: dict[str, Any] = {"budget": budget_s, "root": group[-1] if find_kind(collective).rooted else None}
    options |= {"engine": "switch", "target": "none"} if relay == IN_SWITCHES else {"relay": relay, "switch_ops": False}
    ranges = synth.synthesize(collective, spec, group, **options).result.ranges
    distinct = list(dict.fromkeys([ranges[0].algorithm, ranges[-1].algorithm])) if ranges else []
    return [algorithm for algorithm in distinct if relay != IN_SWITCHES or is_in_switch(algorithm)]


def overlapping_groups(spec: str) -> Iterator[tuple[int, ...]]:
    """Yield groups of 3 to 8 ranks: the first ranks, and alternately the last of the first eight."""
    count = min(load(spec).nranks, max(GROUPS))
    for size in range(3, count + 1):
        yield tuple(range(size))
        yield tuple(range(count - 1, count - 1 - size, -1))


def in_switches(algorithm: Algorithm) -> Iterator[tuple[str, str, Json | None]]:
    """Yield the same as `plans` for algorithms of switches.

    There is a plan for messages of any size, and one for a size whose blocks have 3 parts.
    """
    for size in (None, 3 * algorithm.problem.nranks << 16):
        for inplace in (True, False):
            try:
                programs = Programs(algorithm.problem, TargetSettings("mscclpp"), size=size, inplace=inplace)
                lowered = programs.lower(algorithm)
                programs.complete(lowered)
                text = lowered.text if isinstance(lowered, Lowered) else ""
            except InputError as error:
                text = str(error)
            yield f"Simple {'in' if inplace else 'out of'} place{'' if size is None else f' of {size} B'}", text, None


def plans(algorithm: Algorithm) -> Iterator[tuple[str, str, Json | None]]:
    """Yield the name, text and goal of each plan, for both protocols and forms.

    The text is a reason if there is no plan.
    """
    programs = Programs(algorithm.problem, TargetSettings("mscclpp"))
    for protocol in ("Simple", "LL"):
        sizes = {"min_bytes": 0, "max_bytes": LL_MOST_BYTES if protocol == "LL" else LARGEST}
        try:
            program, goal = lower(algorithm, "plan", protocol, limits=programs.target.limits, **sizes)
        except InputError as error:
            yield protocol, str(error), None
            continue
        goal_of_plan = None if goal is None else goal_columns(algorithm.problem.collective)
        for inplace in (True, False) if goal is None else (program.inplace,):
            name = f"{protocol} {'in' if inplace else 'out of'} place"
            layout = {"nodes": programs.nodes, "linked": programs.linked}
            try:
                yield name, write_program(program, goal, programs.target, inplace=inplace, **layout), goal_of_plan
            except InputError as error:
                yield name, str(error), goal_of_plan


def planted(plan: Json) -> Iterator[Json]:
    """Yield the plan with unequal scratch, with sizes beyond 32 bits, and with a start beyond an int."""
    yield from islice(uneven_scratch(plan), 2)
    yield from islice(beyond_offsets(plan), 1)
    yield from beyond_int(plan)


def _shown(collective: str, relay: str) -> str:
    """Return the collective with its relays, as the table names it."""
    words = {"none": "", "all": " with relays"}
    return collective + words.get(relay, f" {relay}")


def _reason(why: object) -> str:
    """Return the part of a reason that all refusals of a kind share."""
    return re.sub(r"\d+", "N", str(why).partition(";")[0].rpartition(": ")[2])


def examine(row: Row, algorithm: Algorithm, group: Sequence[int], runs: int, text_of_name: dict[str, str]) -> None:
    """Run all plans of an algorithm, plant faults in them, and add the results to a row.

    Args:
        row: The row of the topology and collective.
        algorithm: The algorithm.
        group: Ranks of the process group.
        runs: Number of random runs of each plan.
        text_of_name: Text of each plan by name, over all calls, to find names that occur twice; plans in switches are
            left out.
    """
    problem = algorithm.problem
    root, n = problem.collective.root, problem.nranks
    nodes = problem.topology.nodes[list(problem.ranks)].tolist()
    between = json.loads(write_plan(alltoall(n, protocol="LL"), nodes=nodes))
    switched = is_in_switch(algorithm)
    for name, text, goal in (in_switches if switched else plans)(algorithm):
        if not text.startswith("{"):
            row.reasons[_reason(text)] += 1
            continue
        plan = json.loads(text)
        last = row.counts["plans"] % n
        right = all(
            ends_right(plan, seed, root=root, goal=goal)
            and ends_right(plan, seed, root=root, goal=goal, beside=[(between, 0)], last=last)
            for seed in range(runs)
        )
        offsets_fit = not overflowing(plan, plan["max_message_size"], ALLOCATION)
        row.counts.update(plans=1, LL=plan["protocol"] == "LL", right=right, offsets=offsets_fit)
        twice = not switched and text_of_name.setdefault(plan["name"], text) != text
        if not right or not offsets_fit or twice:
            row.wrong.append(f"{row.collective} {row.topology} {tuple(group)}: {name}")
        for spoilt in planted(plan):
            row.counts["planted"] += 1
            row.counts["found"] += len(check_plan(json.dumps(spoilt), root=root).findings) == 1
        for spoilt in islice(unordered(plan), 2 if switched else 0):
            row.counts["planted"] += 1
            row.counts["found"] += bool(check_plan(json.dumps(spoilt), root=root).findings)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all plans, and write the table; exit with 1 if a plan is wrong or a fault is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--budget", type=float, default=0.5, help="seconds of a search")
    parser.add_argument("--minutes", type=float, default=30.0, help="time limit; questions are asked in random order")
    parser.add_argument("--runs", type=int, default=1, help="random runs of each plan")
    parser.add_argument("--only", nargs="+", metavar="TOPOLOGY")
    options = parser.parse_args(arguments)
    questions = [(spec, c, g, "none") for spec in MACHINES for c in COLLECTIVES for g in groups(spec)]
    switched_cases = itertools.product(SWITCHED, SWITCHED_COLLECTIVES)
    questions += [(spec, c, g, IN_SWITCHES) for spec, c in switched_cases for g in overlapping_groups(spec)]
    questions = [
        asked_question
        for asked_question in [*questions, *((*question, "all") for question in RELAYED)]
        if asked_question[0] in (options.only or asked_question)
    ]
    rows = {key: Row(*key) for key in dict.fromkeys((spec, _shown(c, relay)) for spec, c, _, relay in questions)}
    text_of_name: dict[str, str] = {}
    start_s, largest_group, nanswered = time.monotonic(), 0, 0
    for spec, collective, group, relay in random.Random(0).sample(questions, len(questions)):
        if time.monotonic() - start_s > 60 * options.minutes:
            break
        nanswered += 1
        row = rows[spec, _shown(collective, relay)]
        try:
            found_algorithms = algorithms(spec, collective, group, options.budget, relay)
        except InputError as error:
            found_algorithms = []
            row.reasons[_reason(error)] += 1
        for algorithm in found_algorithms:
            examine(row, algorithm, group, options.runs, text_of_name)
        print(f"{time.monotonic() - start_s:6.0f} s", *row.cells(), group, *row.wrong, flush=True)
        largest_group = max(largest_group, len(group))
    total = sum((row.counts for row in rows.values()), Counter[str]())
    wrong = [line for row in rows.values() for line in row.wrong]
    about = (
        f"{nanswered} of {len(questions)} questions, in random order. The plans are of the algorithms with which a"
        f" search of {options.budget:g} s serves the smallest and the largest messages, for groups of 2 to"
        f" {largest_group} ranks, both protocols, in and out of place (only out of place for patterns and with"
        f" relays). *Right*: random runs ({options.runs} for each plan) of {LAUNCHES} launches end with the result of"
        " the collective, also if they alternate with an all-to-all of packets and one rank is as slow as possible."
        " *Offsets*: with the plan's largest message in the largest allocation, all offsets fit into 32 bits. *Faults"
        " found*: planted faults (scratch of another size on one rank; a largest message of 4 GiB; a smallest message"
        " beyond an int) that `verify` finds, with one finding; in switches also a rank that does not wait for other"
        " ranks before or after the data."
    )
    summary = (
        f"**{total['plans']} plans, {total['right']} right over {LAUNCHES} launches, {total['offsets']} within 32"
        f" bits; {total['planted']} faults planted, {total['found']} found; {len(text_of_name)} distinct names.**"
    )
    titles = (
        "topology",
        "collective",
        "plans",
        "under LL",
        "right",
        "offsets fit",
        "faults found",
        "why plans are not written",
    )
    parts = [about, summary, grid(titles, [row.cells() for row in rows.values()]), *wrong]
    write(__file__, page(__file__, "MSCCL++ plans, launch after launch", parts))
    if wrong or total["found"] < total["planted"]:
        raise SystemExit("plans: a plan is wrong, or a planted fault was not found; see the table")


if __name__ == "__main__":
    main()
