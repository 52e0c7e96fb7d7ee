"""Process groups: every size on a DGX-A100, and every group of a DGX-1 up to its symmetry.

    python -m results.scripts.groups [--budget 5]

makes groups.md. One process and one pool of solvers for all (start-up is not in the seconds); a budget a question.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from results.measuring.measure import grid, page, seconds_words, write
from synth import synthesize
from synth.engines.registry import AUTO, processes
from synth.model.problem import make_problem
from synth.solvers.workers import Workers
from topologies.errors import InputError
from topologies.load import load
from topologies.network import network
from topologies.symmetry.automorphism import automorphisms

GOAL_S = 10.0
ALL = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather", "scatter")
SOME = ("allreduce", "allgather", "alltoall", "broadcast")
Group = tuple[int, ...]


@dataclass(frozen=True)
class Answered:
    """One question's answer: seconds, rows shown, how many of them optimal, the worst gap and that of the last row.

    `refusal` is what was said before relays were let in;
    `failed` is the error where there is no answer, which is a defect of synth: the table is written all the same.
    """

    topo: str
    group: Group
    collective: str
    seconds: float
    rows: int
    optimal: int
    worst: float
    last: float
    ended: str
    refusal: str = ""
    failed: str = ""


def groups_up_to_symmetry(topo: str, least: int = 2) -> list[Group]:
    """One group of every kind, smallest ranks first: no symmetry of the machine brings one to another."""
    topology = load(topo)
    ranks = tuple(range(topology.nranks))
    images = [p.tolist() for p in automorphisms(network(topology, ranks), [ranks])]
    found: list[Group] = []
    for size in range(least, topology.nranks + 1):
        seen: set[Group] = set()
        for group in combinations(ranks, size):
            if group not in seen:
                seen.update(tuple(sorted(p[r] for r in group)) for p in images)
                found.append(group)
    return found


def answered(topo: str, group: Group, collective: str, budget: float, workers: Workers) -> Answered:
    """Ask, and ask with relays where the group alone is refused."""
    topology = load(topo)
    begun = time.monotonic()
    relay, refusal = "none", ""
    try:
        make_problem(topology, collective, group)
    except InputError as error:
        relay, refusal = "all", str(error)
    try:
        answer = synthesize(collective, topology, group, relay=relay, budget=budget, workers=workers)
    except Exception as error:
        failed = f"{type(error).__name__}: {error}"
        return Answered(topo, group, collective, time.monotonic() - begun, 0, 0, 0.0, 0.0, "", refusal, failed)
    seconds = time.monotonic() - begun
    rows = answer.algorithms
    optimal = sum(row["optimal"] for row in rows)
    gaps = (answer.gap, rows[-1]["gap"])
    return Answered(topo, group, collective, seconds, len(rows), optimal, *gaps, answer.found.ended, refusal)


def summary(answers: Sequence[Answered]) -> str:
    """Slowest, gaps and optima of many answers, and those over the goal."""
    asked, answers = len(answers), [a for a in answers if not a.failed]
    if not answers:
        return f"{asked} questions, none answered"
    slowest = max(answers, key=lambda a: a.seconds)
    late = [a for a in answers if a.seconds > GOAL_S]
    gaps, large = sorted(a.worst for a in answers), sorted(a.last for a in answers)
    full = sum(a.optimal == a.rows for a in answers)
    return (
        f"{asked} questions, {len(answers)} answered, each algorithm replayed; slowest"
        f" **{seconds_words(slowest.seconds)} s** ({slowest.collective} {_ranks(slowest.group)}),"
        f" {len(late)} over the goal of {GOAL_S:g} s, {sum(a.ended != '' for a in answers)} ended by their budget."
        f" {sum(a.optimal for a in answers)} of {sum(a.rows for a in answers)} algorithms are optimal at the size they"
        f" are shown for; {full} answers are optimal throughout. Worst gap of an answer: median"
        f" {gaps[len(gaps) // 2]:.3f}, largest {gaps[-1]:.3f}; of the algorithm for the largest messages: median"
        f" {large[len(large) // 2]:.3f}, largest {large[-1]:.3f}."
    )


def _ranks(group: Group) -> str:
    return ",".join(map(str, group))


def table(answers: Sequence[Answered]) -> str:
    """Groups down, collectives across: seconds, worst gap, optimal of shown."""
    names = list(dict.fromkeys(a.collective for a in answers))
    by_group: dict[Group, dict[str, Answered]] = {}
    for answer in answers:
        by_group.setdefault(answer.group, {})[answer.collective] = answer
    lines = [[_ranks(group), *(_cell(of.get(name)) for name in names)] for group, of in by_group.items()]
    return grid(["group", *names], lines)


def _cell(answer: Answered | None) -> str:
    if answer is None:
        return "–"
    if answer.failed:
        return "failed"
    late = "!" if answer.seconds > GOAL_S else ""
    relayed = " relays" if answer.refusal else ""
    return f"{seconds_words(answer.seconds)} s{late}, {answer.worst:.3f}, {answer.optimal}/{answer.rows}{relayed}"


def refusals(answers: Iterable[Answered]) -> str:
    """The groups that are not connected, with what they are told the first time."""
    said: dict[Group, str] = {}
    for answer in answers:
        if answer.refusal:
            said.setdefault(answer.group, answer.refusal)
    return "\n".join(f"- {_ranks(group)}: `{text}`" for group, text in said.items())


def failures(answers: Iterable[Answered]) -> str:
    """The questions that have no answer, with the error."""
    return "\n".join(f"- {a.topo} {a.collective} {_ranks(a.group)}: `{a.failed}`" for a in answers if a.failed)


def main() -> None:
    parser = argparse.ArgumentParser(description="Process groups on two machines")
    parser.add_argument("--budget", type=float, default=5.0, help="seconds a question")
    budget: float = parser.parse_args().budget
    plan = [("dgx-a100", tuple(range(k)), name) for k in range(2, 9) for name in ALL]
    plan += [("dgx1", group, name) for group in groups_up_to_symmetry("dgx1") for name in SOME]
    answers = []
    with Workers(processes(AUTO)) as workers:
        for question in plan:
            answers.append(answered(*question, budget, workers))
            print(answers[-1], file=sys.stderr, flush=True)
    switch = [a for a in answers if a.topo == "dgx-a100"]
    mesh = [a for a in answers if a.topo == "dgx1"]
    relayed, failed = refusals(mesh), failures(answers)
    parts = [
        f"A cell: seconds, worst gap (time / bound) over the algorithms shown, how many of them are optimal. Budget"
        f" {budget:g} s a question, all questions in one process. Roots are the group's first rank.",
        "## dgx-a100, groups 0..k-1 (all groups of a size are alike)",
        summary(switch),
        table(switch),
        f"## dgx1, all {len({a.group for a in mesh})} groups up to the machine's symmetry",
        summary(mesh),
        table(mesh),
        *(["Refused as they stand, and answered with `--relay all`:\n\n" + relayed] if relayed else []),
        *(["Failed:\n\n" + failed] if failed else []),
    ]
    write(__file__, page(__file__, "Process groups", parts))
    if failed:
        raise SystemExit("groups: some questions have no answer, see the table")


if __name__ == "__main__":
    main()
