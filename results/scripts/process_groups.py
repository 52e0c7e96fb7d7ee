"""Process groups on a mesh: one group and several at once, beside Direct, beside one after another, beside the bound.

    python -m results.scripts.process_groups [--budget 10]

makes process_groups.md. One process for all (start-up and compiling are not in the seconds); a budget a question.
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
from emit.library.programs import NONE
from emit.library.saving.save_groups import save_groups
from results.measuring.measure import geometric_mean, grid, page, seconds_words, write
from synth.app.cli.files.prove import prove
from synth.concurrent.result import ConcurrentResult
from synth.concurrent.search import plan
from synth.concurrent.union import Member
from synth.engines.registry import AUTO, processes
from synth.model.collective import named
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
    """So many groups of one size and shape, all with the same collective and message size in bytes."""

    collective: str
    shape: str
    ranks: int
    groups: int
    size: int
    topo: str = TOPO

    @property
    def words(self) -> str:
        many = "1 group" if self.groups == 1 else f"{self.groups} groups"
        return f"{self.collective}, {many} of {self.ranks}, {self.shape}"


@dataclass(frozen=True)
class Planned:
    """An answer; times in µs, infinite without one. wrong: why there is none, or what `synth prove` refuses."""

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
        return self.time_us / self.bound_us

    @property
    def direct(self) -> float:
        """Direct / time."""
        return self.direct_us / self.time_us

    @property
    def most(self) -> float:
        """Direct / bound: no schedule has a larger Direct / time."""
        return self.direct_us / self.bound_us

    @property
    def turns(self) -> float:
        """One group after another / all together."""
        return self.sum_us / self.time_us


def groups_of(shape: str, ranks: int, groups: int, nranks: int) -> list[Group]:
    """Disjoint groups of a network with `nranks` ranks in rows.

    contiguous: consecutive ranks, one group after the other. strided: every (nranks / ranks)-th rank. random: of one
    order of all ranks, drawn with `SEED`. Raises ValueError where there are fewer of them.
    """
    step, left = divmod(nranks, ranks)
    if left or groups > step:
        raise ValueError(f"{nranks} ranks have no {groups} groups of {ranks}")
    if shape == "contiguous":
        found = [tuple(range(g * ranks, (g + 1) * ranks)) for g in range(step)]
    elif shape == "strided":
        found = [tuple(range(g, nranks, step)) for g in range(step)]
    else:
        drawn = list(range(nranks))
        random.Random(SEED).shuffle(drawn)
        found = [tuple(drawn[g * ranks : (g + 1) * ranks]) for g in range(step)]
    return found[:groups]


def questions() -> list[Question]:
    """All of the large size; of the small one a group alone and as many at once as there are."""
    nranks = load(TOPO).nranks
    found = []
    for size in (LARGE, SMALL):
        for collective in COLLECTIVES:
            for shape in SHAPES:
                for ranks in SIZES:
                    counts = [count for count in COUNTS if count * ranks <= nranks]
                    chosen = counts if size == LARGE else (counts[0], counts[-1])
                    found += [Question(collective, shape, ranks, count, size) for count in chosen]
    return found


def planned(question: Question, budget: float, workers: Workers) -> Planned:
    """Plan the groups with everybody relaying, and have the files checked again."""
    begun = time.monotonic()
    try:
        topology = load(question.topo)
        groups = groups_of(question.shape, question.ranks, question.groups, topology.nranks)
        collective = named(question.collective, question.ranks, 1)
        members = [Member(group, collective, question.size) for group in groups]
        found = plan(topology, members, relays="all", budget=budget, workers=workers)
    except Exception as error:
        return Planned(question, wrong=f"{type(error).__name__}: {error}")
    seconds = time.monotonic() - begun
    return Planned(
        question,
        found.makespan_us,
        found.bound_us,
        math.inf if found.direct_us is None else found.direct_us,
        found.sum_us,
        seconds,
        found.ended,
        refused(found),
    )


def refused(found: ConcurrentResult) -> str:
    """What `synth prove` has against the files of an answer; empty where they are right and prove its gap."""
    with tempfile.TemporaryDirectory() as folder:
        stored = [
            path
            for path in save_groups(found, folder, GroupPrograms(NONE), proof=True).schedules
            if path.name.endswith(".synth")
        ]
        said = [checked(path) for path in stored]
    wrong = [str(one["why"] or one["status"]) for one in said if one["status"] != "right"]
    if wrong:
        return f"synth prove: {wrong[0]}"
    # the union's bound, or that of one of the groups: both are beside the union's time
    bounds = [float(one["bound_us"]) for one in said if one["bound_us"] is not None]
    taken = float(said[0]["time_us"])
    least = max(bounds, default=0.0)
    same = math.isclose(taken, found.makespan_us, rel_tol=EXACT) and math.isclose(least, found.bound_us, rel_tol=EXACT)
    return (
        ""
        if same
        else f"synth prove comes to {taken} µs over {least} µs, not to {found.makespan_us} over {found.bound_us}"
    )


def checked(path: Path) -> dict[str, Any]:
    """What the command `prove` says of a file."""
    done = CliRunner().invoke(prove, [str(path), "--json"])
    try:
        said: dict[str, Any] = json.loads(done.output)
    except ValueError:
        return {"status": "not readable", "why": repr(done.exception or done.output[-200:])}
    return said


def means(values: Sequence[float]) -> str:
    """`3.21 × (geometric 3.05, least 2.10)`."""
    if not values:
        return "–"
    return f"{statistics.fmean(values):.2f} × (geometric {geometric_mean(values):.2f}, least {min(values):.2f})"


def summary(answers: Iterable[Planned]) -> str:
    """Means by number of groups at once, and over all."""
    right = [a for a in answers if not a.wrong]
    counts = sorted({a.question.groups for a in right})
    kinds: list[tuple[str, list[Planned]]] = [
        ("one group" if n == 1 else f"{n} groups at once", [a for a in right if a.question.groups == n]) for n in counts
    ]
    for name in dict.fromkeys(a.question.collective for a in right):
        kinds.append((f"all, {name}", [a for a in right if a.question.collective == name]))
    kinds.append(("all", right))
    lines = []
    for name, some in kinds:
        if not some:
            continue
        gaps = sorted(a.gap for a in some)
        several = [a.turns for a in some if a.question.groups > 1]
        direct = [a for a in some if math.isfinite(a.direct_us)]
        lines.append(
            [
                name,
                len(some),
                f"{statistics.median(gaps):.3f}, {gaps[-1]:.3f}",
                sum(gap <= GOAL_GAP for gap in gaps),
                means([a.direct for a in direct]),
                f"{statistics.fmean(a.most for a in direct):.2f} ×" if direct else "–",
                means(several),
            ]
        )
    titles = [
        "", "questions", "time / bound: median, largest", f"within {GOAL_GAP:g}", "Direct / time", "Direct / bound",
        "one after another / together",
    ]  # fmt: skip
    return grid(titles, lines)


def goals(answers: Sequence[Planned]) -> list[str]:
    """One line a goal for large messages that is not reached."""
    right = [a for a in answers if not a.wrong]
    found = []
    for kind, some in (
        ("one group", [a for a in right if a.question.groups == 1]),
        ("several groups at once", [a for a in right if a.question.groups > 1]),
    ):
        ratios = [a.direct for a in some if math.isfinite(a.direct_us)]
        most = [a.most for a in some if math.isfinite(a.direct_us)]
        if ratios and statistics.fmean(ratios) < GOAL_DIRECT:
            found.append(
                f"- {kind}: Direct / time {statistics.fmean(ratios):.2f} × in the mean, goal {GOAL_DIRECT:g} ×; by the"
                f" bounds no schedules have more than {statistics.fmean(most):.2f} ×"
            )
    found += [f"- {a.question.words}: time / bound {a.gap:.4f}, goal {GOAL_GAP:g}" for a in right if a.gap > GOAL_GAP]
    found += [
        f"- {a.question.words}: slower than Direct, Direct / time {a.direct:.4f}" for a in right if a.direct < 1 - EXACT
    ]
    found += [
        f"- {a.question.words}: slower than one after another, {a.turns:.4f}" for a in right if a.turns < 1 - EXACT
    ]
    return found


def table(answers: Sequence[Planned]) -> str:
    """Kinds of groups down, numbers at once across."""
    counts = sorted({a.question.groups for a in answers})
    by_kind: dict[tuple[str, str, int], dict[int, Planned]] = {}
    for a in answers:
        kind = (a.question.collective, a.question.shape, a.question.ranks)
        by_kind.setdefault(kind, {})[a.question.groups] = a
    titles = ["collective", "groups", "of", *("one group" if n == 1 else f"{n} at once" for n in counts)]
    return grid(titles, [[*kind, *(_cell(of.get(n)) for n in counts)] for kind, of in by_kind.items()])


def _cell(answer: Planned | None) -> str:
    if answer is None:
        return "–"
    if answer.wrong:
        return "failed"
    late = "!" if answer.ended else ""
    direct = "no Direct" if math.isinf(answer.direct_us) else f"{answer.direct:.2f}"
    turns = "" if answer.question.groups == 1 else f", {answer.turns:.2f}"
    return f"{answer.gap:.3f}, {direct}{turns}; {seconds_words(answer.seconds)} s{late}"


def text(answers: Sequence[Planned], budget: float) -> str:
    """The page."""
    large = [a for a in answers if a.question.size == LARGE]
    small = [a for a in answers if a.question.size == SMALL]
    late, failed = goals(large), [f"- {a.question.words}: {a.wrong}" for a in answers if a.wrong]
    parts = [
        f"{TOPO}, links of 50 GB/s and α 0.7 µs, every rank may relay; groups of one size and shape, one alone or"
        f" several at once (`synth COLLECTIVE --topo {TOPO} --groups LIST --relay all`). contiguous: consecutive ranks;"
        f" strided: every (64 / size)-th rank; random: of one order of all ranks (seed {SEED})."
        f" A budget of {budget:g} s a question, all in one process with its code compiled. Every plan is one replayed"
        " schedule of all groups, and `synth prove` worked out its time and its bound again from the files.",
        "Direct: every chunk over a fixed shortest way to each goal, all issued at once, first come, first served, all"
        " groups together, in the same model of time. One after another: each group as it is best alone, one at a time."
        " Direct / bound is what no schedule can be better than Direct by.",
        "PCCL, as published (June 2026), process groups on a mesh over Direct: 2.33–3.03 ×, mean 2.68 ×; two groups"
        " 2.8 ×; a partial group 1.88 ×; no bound is reported with them.",
        "Goals not reached, 1 GiB:\n\n" + "\n".join(late) if late else "All goals are reached at 1 GiB.",
        *(["Failed:\n\n" + "\n".join(failed)] if failed else []),
        "## 1 GiB",
        summary(large),
        "A cell: time / bound, Direct / time, one after another / together; seconds (! the budget ended it).",
        table(large),
    ]
    if small:
        parts += ["## 1 MiB, for information", summary(small), table(small)]
    return page(__file__, f"Process groups on {TOPO}", parts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Process groups on a mesh")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds a question")
    budget: float = parser.parse_args().budget
    done = []
    with Workers(processes(AUTO)) as workers:
        for collective in COLLECTIVES:  # brings in the compiled code
            planned(Question(collective, "random", 8, 2, LARGE, "mesh:4x4"), budget, workers)
        for question in questions():
            done.append(planned(question, budget, workers))
            print(
                f"{question.words}, {question.size} bytes: {_cell(done[-1])} {done[-1].wrong}",
                file=sys.stderr,
                flush=True,
            )
    write(__file__, text(done, budget))
    if any(a.wrong for a in done):
        raise SystemExit("process_groups: some questions have no right answer, see the table")


if __name__ == "__main__":
    main()
