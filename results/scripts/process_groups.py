"""Schedule process groups on a mesh, one or several concurrently, and compare with Direct, serial groups and the bound.

    python -m results.scripts.process_groups [--budget 10]

makes process_groups.md. One process answers all questions, so its seconds leave out start-up and compiling. --budget is
the seconds of each question.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from emit.library.group_programs import GroupPrograms
from emit.library.saving.save_groups import save_groups
from results.measuring.measure import geometric_mean, grid, page, seconds_words, write
from synth.app.cli.files.prove import prove
from synth.concurrent.result import ConcurrentResult
from synth.concurrent.search import plan
from synth.concurrent.union import Member
from synth.engines.registry import AUTO, processes
from synth.model.collective import named
from synth.search.settings import NONE, TargetSettings
from synth.solvers.workers import Workers
from topologies.load import load

TOPO = "mesh:8x8"
COLLECTIVES = ("alltoall", "allgather")
SHAPES = ("contiguous", "strided", "random")
SIZES = (4, 8, 16, 32)
COUNTS = (1, 2, 4, 8)
LARGE, SMALL = 1 << 30, 1 << 20
SEED = 1
GOAL_GAP, GOAL_DIRECT = 1.05, 3.0
EXACT = 1e-9
Group = tuple[int, ...]


@dataclass(frozen=True)
class Question:
    """Equal groups of one shape with the same collective and message size.

    Attributes:
        collective: Name of the collective.
        shape: contiguous, strided or random.
        ranks: Number of ranks of a group.
        groups: Number of groups.
        size: Message size in bytes.
        topo: Name of the topology.
    """

    collective: str
    shape: str
    ranks: int
    groups: int
    size: int
    topo: str = TOPO

    @property
    def words(self) -> str:
        """Describe the question in words."""
        many = "1 group" if self.groups == 1 else f"{self.groups} groups"
        return f"{self.collective}, {many} of {self.ranks}, {self.shape}"


@dataclass(frozen=True)
class Planned:
    """The answer to a question; times are in µs, and infinite without an answer.

    Attributes:
        question: The question.
        time_us: Time of the schedule of all groups.
        bound_us: Bound on this time.
        direct_us: Time of Direct.
        sum_us: Sum of the times of the groups, one after another.
        seconds: Wall time of the search in seconds.
        ended: Why the search stopped early, or "".
        wrong: Why there is no answer, or what `synth prove` refuses; empty if all is well.
    """

    question: Question
    time_us: float = math.inf
    bound_us: float = math.inf
    direct_us: float = math.inf
    sum_us: float = math.inf
    seconds: float = 0.0
    ended: str = ""
    wrong: str = ""

    @property
    def gap(self) -> float:
        """Return time / bound."""
        return self.time_us / self.bound_us

    @property
    def direct(self) -> float:
        """Return the time of Direct / our time."""
        return self.direct_us / self.time_us

    @property
    def most(self) -> float:
        """Return the time of Direct / the bound, which no schedule's Direct / time exceeds."""
        return self.direct_us / self.bound_us

    @property
    def turns(self) -> float:
        """Return the time of one group after another / the time of all concurrently."""
        return self.sum_us / self.time_us


def groups_of(shape: str, ranks: int, groups: int, nranks: int) -> list[Group]:
    """Return disjoint groups of a network with `nranks` ranks in rows.

    Args:
        shape: "contiguous" for consecutive ranks, "strided" for every (nranks / ranks)-th rank, or "random" for a
            random order of all ranks that is drawn with `SEED`.
        ranks: Number of ranks of a group.
        groups: Number of groups.
        nranks: Number of ranks of the network.

    Raises:
        ValueError: If the network has fewer such groups.
    """
    step, remainder = divmod(nranks, ranks)
    if remainder or groups > step:
        raise ValueError(f"{nranks} ranks cannot form {groups} disjoint groups of {ranks}")
    if shape == "contiguous":
        all_groups = [tuple(range(g * ranks, (g + 1) * ranks)) for g in range(step)]
    elif shape == "strided":
        all_groups = [tuple(range(g, nranks, step)) for g in range(step)]
    else:
        order = list(range(nranks))
        random.Random(SEED).shuffle(order)
        all_groups = [tuple(order[g * ranks : (g + 1) * ranks]) for g in range(step)]
    return all_groups[:groups]


def questions() -> list[Question]:
    """Return all questions: all numbers of groups at the large size, and one and the most groups at the small size."""
    nranks = load(TOPO).nranks
    all_questions = []
    for size in (LARGE, SMALL):
        for collective in COLLECTIVES:
            for shape in SHAPES:
                for ranks in SIZES:
                    counts = [count for count in COUNTS if count * ranks <= nranks]
                    chosen = counts if size == LARGE else (counts[0], counts[-1])
                    all_questions += [Question(collective, shape, ranks, count, size) for count in chosen]
    return all_questions


def planned(question: Question, budget: float, workers: Workers) -> Planned:
    """Schedule the groups with all ranks relaying, and check the files again."""
    start_s = time.monotonic()
    try:
        topology = load(question.topo)
        groups = groups_of(question.shape, question.ranks, question.groups, topology.nranks)
        collective = named(question.collective, question.ranks, 1)
        members = [Member(group, collective, question.size) for group in groups]
        result = plan(topology, members, relays="all", budget=budget, workers=workers)
    except Exception as error:
        return Planned(question, wrong=f"{type(error).__name__}: {error}")
    seconds = time.monotonic() - start_s
    return Planned(
        question,
        result.makespan_us,
        result.bound_us,
        math.inf if result.direct_us is None else result.direct_us,
        result.sum_us,
        seconds,
        result.stop_reason,
        refused(result),
    )


def refused(result: ConcurrentResult) -> str:
    """Return what `synth prove` refuses in an answer's files; empty if they are right and prove its gap."""
    with tempfile.TemporaryDirectory() as folder:
        stored = [
            path
            for path in save_groups(result, folder, GroupPrograms(TargetSettings(NONE)), proof=True).schedules
            if path.name.endswith(".synth")
        ]
        statements = [checked(path) for path in stored]
    faults = [
        str(statement["why"] or statement["status"]) for statement in statements if statement["status"] != "right"
    ]
    if faults:
        return f"synth prove: {faults[0]}"
    # The bound is the union's or that of one of the groups; both hold for the union's time.
    bounds = [float(statement["bound_us"]) for statement in statements if statement["bound_us"] is not None]
    time_us = float(statements[0]["time_us"])
    bound_us = max(bounds, default=0.0)
    same = math.isclose(time_us, result.makespan_us, rel_tol=EXACT) and math.isclose(
        bound_us, result.bound_us, rel_tol=EXACT
    )
    return (
        ""
        if same
        else f"synth prove computes {time_us} µs over {bound_us} µs, the search computed {result.makespan_us} µs over"
        f" {result.bound_us} µs"
    )


def checked(path: Path) -> dict[str, Any]:
    """Return the output of `synth prove` for a file."""
    ended = CliRunner().invoke(prove, [str(path), "--json"])
    try:
        statement: dict[str, Any] = json.loads(ended.output)
    except ValueError:
        return {"status": "not readable", "why": repr(ended.exception or ended.output[-200:])}
    return statement


def means(values: Sequence[float]) -> str:
    """Format means: `3.21 × (geometric 3.05, least 2.10)`."""
    if not values:
        return "–"
    return f"{statistics.fmean(values):.2f} × (geometric {geometric_mean(values):.2f}, least {min(values):.2f})"


def summary(answers: Iterable[Planned]) -> str:
    """Return the table of means by number of concurrent groups, by collective and over all."""
    right = [a for a in answers if not a.wrong]
    counts = sorted({a.question.groups for a in right})
    kinds: list[tuple[str, list[Planned]]] = [
        ("one group" if n == 1 else f"{n} concurrent groups", [a for a in right if a.question.groups == n])
        for n in counts
    ]
    for name in dict.fromkeys(a.question.collective for a in right):
        kinds.append((f"all, {name}", [a for a in right if a.question.collective == name]))
    kinds.append(("all", right))
    lines = []
    for name, members in kinds:
        if not members:
            continue
        gaps = sorted(a.gap for a in members)
        turns = [a.turns for a in members if a.question.groups > 1]
        direct = [a for a in members if math.isfinite(a.direct_us)]
        lines.append(
            [
                name,
                len(members),
                f"{statistics.median(gaps):.3f}, {gaps[-1]:.3f}",
                sum(gap <= GOAL_GAP for gap in gaps),
                means([a.direct for a in direct]),
                f"{statistics.fmean(a.most for a in direct):.2f} ×" if direct else "–",
                means(turns),
            ]
        )
    titles = [
        "groups", "questions", "time / bound: median, largest", f"within {GOAL_GAP:g}", "Direct / time",
        "Direct / bound", "serial / concurrent",
    ]  # fmt: skip
    return grid(titles, lines)


def goals(answers: Sequence[Planned]) -> list[str]:
    """Return one line for each goal for large messages that is not reached."""
    right = [a for a in answers if not a.wrong]
    lines = []
    for kind, members in (
        ("one group", [a for a in right if a.question.groups == 1]),
        ("concurrent groups", [a for a in right if a.question.groups > 1]),
    ):
        ratios = [a.direct for a in members if math.isfinite(a.direct_us)]
        most = [a.most for a in members if math.isfinite(a.direct_us)]
        if ratios and statistics.fmean(ratios) < GOAL_DIRECT:
            lines.append(
                f"- {kind}: Direct / time is {statistics.fmean(ratios):.2f} × in the mean, goal {GOAL_DIRECT:g} ×; the"
                f" bounds allow at most {statistics.fmean(most):.2f} ×"
            )
    lines += [f"- {a.question.words}: time / bound {a.gap:.4f}, goal {GOAL_GAP:g}" for a in right if a.gap > GOAL_GAP]
    lines += [
        f"- {a.question.words}: slower than Direct, Direct / time {a.direct:.4f}" for a in right if a.direct < 1 - EXACT
    ]
    lines += [
        f"- {a.question.words}: slower than serial groups, serial / concurrent {a.turns:.4f}"
        for a in right
        if a.turns < 1 - EXACT
    ]
    return lines


def table(answers: Sequence[Planned]) -> str:
    """Return the table with kinds of groups down and numbers of concurrent groups across."""
    counts = sorted({a.question.groups for a in answers})
    by_kind: dict[tuple[str, str, int], dict[int, Planned]] = {}
    for a in answers:
        kind = (a.question.collective, a.question.shape, a.question.ranks)
        by_kind.setdefault(kind, {})[a.question.groups] = a
    titles = ["collective", "shape", "ranks of a group", *("one group" if n == 1 else f"{n} groups" for n in counts)]
    return grid(
        titles, [[*kind, *(_cell(answer_of_count.get(n)) for n in counts)] for kind, answer_of_count in by_kind.items()]
    )


def _cell(answer: Planned | None) -> str:
    """Format the cell of an answer."""
    if answer is None:
        return "–"
    if answer.wrong:
        return "failed"
    late = "!" if answer.ended else ""
    direct = "no Direct" if math.isinf(answer.direct_us) else f"{answer.direct:.2f}"
    turns = "" if answer.question.groups == 1 else f", {answer.turns:.2f}"
    return f"{answer.gap:.3f}, {direct}{turns}; {seconds_words(answer.seconds)} s{late}"


def text(answers: Sequence[Planned], budget: float) -> str:
    """Return the page."""
    large = [a for a in answers if a.question.size == LARGE]
    small = [a for a in answers if a.question.size == SMALL]
    late, failed = goals(large), [f"- {a.question.words}: {a.wrong}" for a in answers if a.wrong]
    parts = [
        f"{TOPO} has links of 50 GB/s and α 0.7 µs, and every rank may relay. Groups have one size and shape; one"
        f" runs alone or several run concurrently (`synth COLLECTIVE --topo {TOPO} --groups LIST --relay all`)."
        " contiguous: consecutive ranks; strided: every (64 / size)-th rank; random: from a random order of all ranks"
        f" (seed {SEED}). Each question has {budget:g} s, all in one process with its code compiled. Every answer is"
        " one replayed schedule of all groups, and `synth prove` computed its time and its bound again from the files.",
        "Direct: every chunk goes over a fixed shortest path to each goal; all are issued at the same time, and first"
        " come, first served, for all groups in the same model of time. Serial: one group after another, each with"
        " its best schedule. Direct / bound is the largest factor by which any schedule can beat Direct.",
        "PCCL published (June 2026) for process groups on a mesh, over Direct: 2.33–3.03 ×, mean 2.68 ×; two groups"
        " 2.8 ×; a partial group 1.88 ×. It reports no bounds.",
        "Goals not reached at 1 GiB:\n\n" + "\n".join(late) if late else "All goals are reached at 1 GiB.",
        *(["Failed:\n\n" + "\n".join(failed)] if failed else []),
        "## 1 GiB",
        summary(large),
        "Cells: time / bound, Direct / time, serial / concurrent; seconds (! if the budget ended the search).",
        table(large),
    ]
    if small:
        parts += ["## 1 MiB, for information", summary(small), table(small)]
    return page(__file__, f"Process groups on {TOPO}", parts)


def main() -> None:
    """Measure all questions, and write the table; exit with an error if an answer is wrong."""
    parser = argparse.ArgumentParser(description="Process groups on a mesh")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds for each question")
    budget: float = parser.parse_args().budget
    answers = []
    with Workers(processes(AUTO)) as workers:
        for collective in COLLECTIVES:  # The first questions load the compiled code.
            planned(Question(collective, "random", 8, 2, LARGE, "mesh:4x4"), budget, workers)
        for question in questions():
            answers.append(planned(question, budget, workers))
            print(
                f"{question.words}, {question.size} bytes: {_cell(answers[-1])} {answers[-1].wrong}",
                file=sys.stderr,
                flush=True,
            )
    write(__file__, text(answers, budget))
    if any(a.wrong for a in answers):
        raise SystemExit("process_groups: some questions have no right answer, see the table")


if __name__ == "__main__":
    main()
