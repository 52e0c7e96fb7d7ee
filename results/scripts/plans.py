"""MSCCL++ plans, launch after launch: of all collectives, machines, groups and forms, by an independent executor.

    python -m results.scripts.plans [--minutes M] [--budget S] [--runs N] [--only TOPOLOGY …]

makes plans.md. The executor is that of `tests/oracles/plan_runs.py`: four launches in random order, with what each
leaves in scratch, in semaphores and on channels; where offsets leave 32 bits is worked out apart from the package too.
In each plan faults of the kinds that only a later launch, a large message or another plan shows are planted. Plans on
switch channels are of groups that overlap, and of messages of any size and of one that powers of two do not divide.
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
ALLOCATION = 1 << 40  # bytes in which a message lies, at most: the worst for the size of scratch
RELAYED = (("dgx1", "allgather", (0, 7)), ("dgx1", "allreduce", (1, 6)), ("ring:8", "broadcast", (0, 2, 5)))
IN_SWITCHES = "in switches"  # in place of which relays there are
Json = dict[str, Any]


@dataclass
class Row:
    """Of one topology and collective: plans, those right in all runs, those that are not written, and faults."""

    topology: str
    collective: str
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def cells(self) -> tuple[object, ...]:
        """Of the table."""
        counts = self.counts
        planted = f"{counts['found']} of {counts['planted']}"
        return (
            self.topology, self.collective, counts["plans"], counts["LL"], counts["right"], counts["offsets"], planted,
            "; ".join(f"{n} × {reason}" for reason, n in sorted(self.reasons.items())),
        )  # fmt: skip


def groups(spec: str) -> Iterator[tuple[int, ...]]:
    """Groups of 2..8: the first ranks, of several nodes the first of each."""
    nodes = load(spec).nodes.tolist()
    by_place = sorted(range(len(nodes)), key=lambda rank: (rank - nodes.index(nodes[rank]), rank))
    for size in GROUPS:
        if size <= len(nodes):
            yield tuple(sorted(by_place[:size]))


def algorithms(spec: str, collective: str, group: Sequence[int], budget_s: float, relay: str) -> list[Algorithm]:
    """What a search serves small messages with, and what large ones. InputError where there is no answer.

    relay: of the group; IN_SWITCHES: none, and what the switches sum or multicast alone.
    """
    asked: dict[str, Any] = {"budget": budget_s, "root": group[-1] if find_kind(collective).rooted else None}
    asked |= {"engine": "switch", "target": "none"} if relay == IN_SWITCHES else {"relay": relay, "switch_ops": False}
    ranges = synth.synthesize(collective, spec, group, **asked).found.ranges
    found = list(dict.fromkeys([ranges[0].algorithm, ranges[-1].algorithm])) if ranges else []
    return [one for one in found if relay != IN_SWITCHES or is_in_switch(one)]


def overlapping_groups(spec: str) -> Iterator[tuple[int, ...]]:
    """Groups of 3..8: the first ranks, and the last of the first eight in turn."""
    count = min(load(spec).nranks, max(GROUPS))
    for size in range(3, count + 1):
        yield tuple(range(size))
        yield tuple(range(count - 1, count - 1 - size, -1))


def in_switches(algorithm: Algorithm) -> Iterator[tuple[str, str, Json | None]]:
    """As `plans`, of what switches sum or multicast: for messages of any size, and of one whose blocks have 3 parts."""
    for size in (None, 3 * algorithm.problem.nranks << 16):
        for inplace in (True, False):
            try:
                made = Programs(algorithm.problem, "mscclpp", size=size, inplace=inplace).lower(algorithm)
                text = made.text if isinstance(made, Lowered) else ""
            except InputError as error:
                text = str(error)
            yield f"Simple {'in' if inplace else 'out of'} place{'' if size is None else f' of {size} B'}", text, None


def plans(algorithm: Algorithm) -> Iterator[tuple[str, str, Json | None]]:
    """(its name, the text of a plan, its goal) of both protocols and forms; instead of a text why there is none."""
    programs = Programs(algorithm.problem, "mscclpp")
    for protocol in ("Simple", "LL"):
        sizes = {"min_bytes": 0, "max_bytes": LL_MOST_BYTES if protocol == "LL" else LARGEST}
        try:
            program, goal = lower(algorithm, "plan", protocol, limits=programs.target.limits, **sizes)
        except InputError as error:
            yield protocol, str(error), None
            continue
        stated = None if goal is None else goal_columns(algorithm.problem.collective)
        for inplace in (True, False) if goal is None else (program.inplace,):
            name = f"{protocol} {'in' if inplace else 'out of'} place"
            where = {"nodes": programs.nodes, "linked": programs.linked}
            try:
                yield name, write_program(program, goal, programs.target, inplace=inplace, **where), stated
            except InputError as error:
                yield name, str(error), stated


def planted(plan: Json) -> Iterator[Json]:
    """The plan with scratch that is not equal, sizes that 32 bits do not hold, and a start that no int holds."""
    yield from islice(uneven_scratch(plan), 2)
    yield from islice(beyond_offsets(plan), 1)
    yield from beyond_int(plan)


def _shown(collective: str, relay: str) -> str:
    words = {"none": "", "all": " with relays"}
    return collective + words.get(relay, f" {relay}")


def _reason(why: object) -> str:
    """What all of a kind have in common."""
    return re.sub(r"\d+", "N", str(why).partition(";")[0].rpartition(": ")[2])


def examine(row: Row, algorithm: Algorithm, group: Sequence[int], runs: int, seen: dict[str, str]) -> None:
    """Run all plans of an algorithm. seen: names of all plans, and the text of each (not of those in switches)."""
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
        held = not overflowing(plan, plan["max_message_size"], ALLOCATION)
        row.counts.update(plans=1, LL=plan["protocol"] == "LL", right=right, offsets=held)
        twice = not switched and seen.setdefault(plan["name"], text) != text
        if not right or not held or twice:
            row.wrong.append(f"{row.collective} {row.topology} {tuple(group)}: {name}")
        for spoilt in planted(plan):
            row.counts["planted"] += 1
            row.counts["found"] += len(check_plan(json.dumps(spoilt), root=root).findings) == 1
        for spoilt in islice(unordered(plan), 2 if switched else 0):
            row.counts["planted"] += 1
            row.counts["found"] += bool(check_plan(json.dumps(spoilt), root=root).findings)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all, and write the table; exit code 1 where a plan is wrong or a fault unseen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--budget", type=float, default=0.5, help="seconds a search")
    parser.add_argument("--minutes", type=float, default=30.0, help="in which questions are asked, in random order")
    parser.add_argument("--runs", type=int, default=1, help="random runs of a plan")
    parser.add_argument("--only", nargs="+", metavar="TOPOLOGY")
    given = parser.parse_args(arguments)
    asked = [(spec, c, g, "none") for spec in MACHINES for c in COLLECTIVES for g in groups(spec)]
    both = itertools.product(SWITCHED, SWITCHED_COLLECTIVES)
    asked += [(spec, c, g, IN_SWITCHES) for spec, c in both for g in overlapping_groups(spec)]
    asked = [one for one in [*asked, *((*question, "all") for question in RELAYED)] if one[0] in (given.only or one)]
    rows = {key: Row(*key) for key in dict.fromkeys((spec, _shown(c, relay)) for spec, c, _, relay in asked)}
    seen: dict[str, str] = {}
    begun, most, answered = time.monotonic(), 0, 0
    for spec, collective, group, relay in random.Random(0).sample(asked, len(asked)):
        if time.monotonic() - begun > 60 * given.minutes:
            break
        answered += 1
        row = rows[spec, _shown(collective, relay)]
        try:
            found = algorithms(spec, collective, group, given.budget, relay)
        except InputError as error:
            found = []
            row.reasons[_reason(error)] += 1
        for algorithm in found:
            examine(row, algorithm, group, given.runs, seen)
        print(f"{time.monotonic() - begun:6.0f} s", *row.cells(), group, *row.wrong, flush=True)
        most = max(most, len(group))
    total = sum((row.counts for row in rows.values()), Counter[str]())
    wrong = [line for row in rows.values() for line in row.wrong]
    about = (
        f"{answered} of {len(asked)} questions, in random order: plans of the algorithms that a search of "
        f"{given.budget:g} s serves the smallest and the largest messages with, groups of 2 to {most}, both protocols, "
        "in and out of place (patterns, and what has relays: out of place alone). "
        f"*Right*: random runs ({given.runs} a plan) of {LAUNCHES} launches end with what the collective asks for, "
        "alone and in turns with an all-to-all of packets, one rank as slow as can be. "
        "*Offsets*: at the plan's largest message, in the largest allocation, nothing leaves 32 bits. *Found*: planted "
        "faults (scratch of another size on one rank; a largest message of 4 GiB; a smallest beyond an int) that "
        "`verify` finds, with one finding; in switches also a rank that meets no others before or after the data."
    )
    summary = (
        f"**{total['plans']} plans, {total['right']} right over {LAUNCHES} launches, {total['offsets']} in 32 bits; "
        f"{total['planted']} faults planted, {total['found']} found; {len(seen)} names.**"
    )
    titles = ("topology", "collective", "plans", "of LL", "right", "offsets", "faults found", "not written")
    parts = [about, summary, grid(titles, [row.cells() for row in rows.values()]), *wrong]
    write(__file__, page(__file__, "MSCCL++ plans, launch after launch", parts))
    if wrong or total["found"] < total["planted"]:
        raise SystemExit("a plan is wrong, or a planted fault was not found")


if __name__ == "__main__":
    main()
