"""Reduction programs of all placements executed on shaped networks: predicted against measured times.

    sudo python -m results.scripts.shaped_placements [--every N] [--only NAME …] [--programs 12] [--turns 2]

makes shaped_placements.md; an hour for all. Each rank is a process in a network namespace of its own, switches are
namespaces too, and tc tbf holds every link to its rate. Programs are written as MSCCL XML, read again, and run by the
torch back end's executor over Gloo's messages, in all groups of a request at once. Rates are low, so that the network
is what takes time, not the processes. Needs root, ip and tc, and PyTorch; where one is missing it says so and writes
nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from emit.library.group_programs import GroupPrograms
from emit.msccl.format import write_msccl
from results.measuring.measure import grid, page, seconds_words, write
from results.measuring.shaped import SMALL_WINDOWS, Links, built, missing, started, topology, wait_for
from synth.model.collective import Floats
from synth.parallelism.axes import Axis, Matrix, matrices
from synth.parallelism.reduction.concrete import described
from synth.parallelism.reduction.reduce_programs import ALL, ProgramSearch, ReductionProgram, as_plan, reduction
from synth.parallelism.reduction.requests import REDUCTION, reduction_groups, synthesis_hierarchy
from synth.parallelism.reduction.sequences import Sequence as Steps
from synth.parallelism.reduction.sequences import sequences
from synth.parallelism.reduction.step_costs import StepCosts
from topologies.errors import InputError
from topologies.levels.hierarchy import Hierarchy, parse_levels
from topologies.text.reader import from_toml
from topologies.topology import Topology

RANKS = 16
AXES = ((4, 4), (2, 2, 4))  # sizes of the two sets of axes
# Levels, and Mbit/s of a link of each part of them, to the switch of the part above
NETWORKS: dict[str, tuple[tuple[tuple[str, int], ...], tuple[float, ...]]] = {
    "racks, steep": ((("rack", 2), ("node", 2), ("gpu", 4)), (16, 24, 32)),
    "racks, NICs slowest": ((("rack", 2), ("node", 2), ("gpu", 4)), (32, 16, 24)),
    "nodes of 4": ((("node", 4), ("gpu", 4)), (24, 32)),
    "nodes of 4, NICs slow": ((("node", 4), ("gpu", 4)), (16, 48)),
    "nodes of 8": ((("node", 2), ("gpu", 8)), (32, 32)),
}
SIZE = 1 << 20  # bytes a group
LEAST_BYTES = 1 << 15  # of a message on average: of smaller ones the processes make the time, not the network
LIKELY = 6  # sequences, the best by the formula, that are among the programs; the rest are taken from all evenly
ALONE = 3  # of these, how many also with all steps of one kind
SLOWEST = 4.0  # times the best: programs predicted slower are not run
FIRST = (1, 5, 10)
TO_REACH = {1: 0.60, 10: 0.95}  # of the cases: the fastest is among so many first
CORRELATION = 0.9  # to be reached, of ranks
APART = 1.01  # predictions that differ by less are no ranking
BURST_KB = 10  # hardly more than a packet


@dataclass
class Case:
    """A request: its groups, which (axes, matrix, axes reduced over) come to it, and its programs."""

    groups: list[list[int]]
    parts: str
    times: int
    placements: dict[str, str] = field(default_factory=dict)  # what is asked → the matrix
    programs: list[dict[str, Any]] = field(default_factory=list)


def links(levels: Sequence[tuple[str, int]], rates: Sequence[float]) -> Links:
    """A tree: each part of a level has a link to the switch of the part above it."""
    sizes = [size for _, size in levels]
    counts = [math.prod(sizes[: depth + 1]) for depth in range(len(sizes))]
    # the root's number is the first after the ranks', then those of the parts of each level, the innermost being ranks
    first = [RANKS, *(RANKS + 1 + sum(counts[:depth]) for depth in range(len(sizes) - 1))]
    made: Links = {}
    for depth, (size, rate) in enumerate(zip(sizes, rates, strict=True)):
        below = first[depth + 1] if depth + 1 < len(sizes) else 0
        for part in range(counts[depth]):
            made[below + part, first[depth] + part // size] = rate
    return made


def requests(levels: Hierarchy) -> list[tuple[Case, tuple[Axis, ...], Matrix, tuple[int, ...]]]:
    """All of the two sets of axes, those alike on the tree once."""
    found: dict[tuple[int, ...], tuple[Case, tuple[Axis, ...], Matrix, tuple[int, ...]]] = {}
    for sizes in AXES:
        axes = tuple(Axis(f"x{i}", size) for i, size in enumerate(sizes))
        for matrix in matrices(axes, levels):
            for count in range(1, len(axes) + 1):
                for over in itertools.combinations(range(len(axes)), count):
                    # a switch's ports are all alike, so that only the number of parts of each level matters
                    key = tuple(math.prod(matrix[a][level] for a in over) for level in range(len(levels.levels)))
                    if key not in found:
                        parts = " ".join(f"{lv.name}:{n}" for lv, n in zip(levels.levels, key, strict=True) if n > 1)
                        groups = reduction_groups(levels, matrix, over).tolist()
                        found[key] = Case(groups, parts, 0), axes, matrix, over
                    case = found[key][0]
                    case.times += 1
                    asked = f"{','.join(map(str, sizes))} over {','.join(f'x{a}' for a in over)}"
                    case.placements[asked] = " ".join("×".join(map(str, row)) for row in matrix)
    return list(found.values())


def candidates(search: ProgramSearch, costs: StepCosts, most: int) -> Iterator[tuple[Steps, tuple[str, ...]]]:
    """Sequences and what their steps are run as: the likely ones, then such as stand evenly among all."""
    ranked = search.ranked
    for steps in ranked[:LIKELY]:
        yield steps, ALL
    for steps in ranked[:ALONE]:
        for name in ALL:
            yield steps, (name,)
    best = costs.in_turn_us(ranked[0])
    rest = [steps for steps in ranked[LIKELY:] if costs.in_turn_us(steps) <= SLOWEST * best]
    for at in np.unique(np.linspace(0, len(rest) - 1, min(len(rest), most), dtype=int)):
        yield rest[at], ALL


def make(topo: Topology, levels: Hierarchy, request: tuple[Case, tuple[Axis, ...], Matrix, tuple[int, ...]],
         folder: Path, number: int, most: int) -> Case:  # fmt: skip
    """Fill in the programs of the case of that number, each with its predicted time and a file for every group."""
    case, axes, matrix, over = request
    own = synthesis_hierarchy(REDUCTION, levels, axes, matrix, over)
    asked = reduction(topo, case.groups, float(SIZE))
    found = sequences(own)
    search, lower = ProgramSearch(asked, own, found), GroupPrograms("executor-nccl")
    search.most_sends = (
        2 * RANKS * SIZE // LEAST_BYTES
    )  # a rank sends the message twice, if it sends no more than it must
    made: dict[tuple[bytes, ...], tuple[ReductionProgram, tuple[str, ...]]] = {}
    for steps, names in candidates(search, StepCosts(asked, own), most):
        program = search.by_library(steps, names)
        if program is not None:
            rows = program.algorithm.schedule
            made.setdefault((rows.chunk.tobytes(), rows.link.tobytes(), rows.step.tobytes()), (program, names))
    ordered = sorted(made.values(), key=lambda one: one[0].time_us)
    for program, names in ordered:
        if len(case.programs) == most or program.time_us > SLOWEST * ordered[0][0].time_us:
            break
        try:
            parts = lower.lower(as_plan(program).problem, program.algorithm).parts
        except InputError:
            continue  # more steps than a file takes
        texts: dict[str, str] = {}
        files = []
        for part in parts:
            text = write_msccl(part.by.program)
            name = texts.setdefault(text, f"{number}-{len(case.programs)}-{len(texts)}.xml")
            (folder / name).write_text(text)
            files.append([list(part.algorithm.problem.ranks), name])
        words = " – ".join("{collective} {slice} {form}".format(**described(step, own)) for step in program.steps)
        by = "" if len(names) > 1 else f" ({names[0]})"
        case.programs.append({"steps": words + by, "predicted_us": program.time_us, "files": files, "seconds": []})
    return case


def measured(name: str, every: int, most: int, turns: int) -> tuple[list[Case], float]:
    """All cases of a network, or every so-manieth, and the µs that a message was found to take."""
    shape, rates = NETWORKS[name]
    wires = links(shape, rates)
    with tempfile.TemporaryDirectory() as made, built(RANKS, wires, BURST_KB, SMALL_WINDOWS) as spaces:
        folder = Path(made)
        words = [sys.executable, "-m", "results.measuring.shaped_ranks", folder, SIZE, turns]
        ranks = started(spaces, words, {})
        try:
            while not (folder / "alpha.json").exists():
                if any(process.poll() for process in ranks):
                    break
                time.sleep(0.2)
            else:
                alpha_us = json.loads((folder / "alpha.json").read_text())
                topo = from_toml(topology(RANKS, wires, alpha_us), name)
                levels = parse_levels(",".join(f"{level}:{size}" for level, size in shape), topo)
                cases = [make(topo, levels, request, folder, number, most)
                         for number, request in enumerate(requests(levels)[::every])]  # fmt: skip
                (folder / "plan.part").write_text(json.dumps([asdict(case) for case in cases]))
                (folder / "plan.part").rename(folder / "plan.json")
        except BaseException:
            for process in ranks:
                process.kill()
            raise
        wait_for(ranks)
        return [Case(**case) for case in json.loads((folder / "measured.json").read_text())], alpha_us


def took_s(program: dict[str, Any]) -> float:
    """Of several runs the fastest: what else the host does only ever adds."""
    return min(program["seconds"])


def predicted_us(program: dict[str, Any]) -> float:
    return float(program["predicted_us"])


def spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """Rank correlation; equal values have the mean of their ranks. Nan where all of a side are equal."""

    def ranks(values: Sequence[float]) -> Floats:
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        last = np.cumsum(counts)
        return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)

    one, other = (ranks([float(f"{value:.6g}") for value in side]) for side in zip(*pairs, strict=True))
    return float(np.corrcoef(one, other)[0, 1]) if np.ptp(one) and np.ptp(other) else math.nan


def place(programs: Sequence[dict[str, Any]], apart: float) -> int:
    """The place of the fastest measured by predicted time; predictions that differ by less than `apart` share one."""
    own = min(programs, key=took_s)["predicted_us"]
    return 1 + sum(other["predicted_us"] * apart < own for other in programs)


@dataclass(frozen=True)
class Accuracy:
    """Of questions that each have several programs.

    Attributes:
        first: share of those whose fastest is among the first k predicted, for the k of `FIRST`.
        lost: mean of what the first predicted takes longer than the fastest, as a share.
        within, correlation: of ranks, the median of the questions', and that of all programs.
    """

    questions: int
    programs: float
    first: dict[int, float]
    lost: float
    within: float
    correlation: float

    @staticmethod
    def of(questions: Sequence[Sequence[dict[str, Any]]]) -> Accuracy:
        each = [spearman([(one["predicted_us"], took_s(one)) for one in programs]) for programs in questions]
        all_of = {id(one): (one["predicted_us"], took_s(one)) for programs in questions for one in programs}
        return Accuracy(
            len(questions),
            statistics.fmean(map(len, questions)),
            {k: statistics.fmean(place(programs, APART) <= k for programs in questions) for k in FIRST},
            statistics.fmean(took_s(min(some, key=predicted_us)) / min(map(took_s, some)) - 1 for some in questions),
            statistics.median([value for value in each if math.isfinite(value)]),
            spearman(list(all_of.values())),
        )

    def row(self, title: str) -> list[object]:
        shares = (f"{100 * share:.0f} %" for share in self.first.values())
        correlations = (f"{value:.3f}" for value in (self.within, self.correlation))
        return [title, self.questions, f"{self.programs:.0f}", *shares, f"{self.lost:.1%}", *correlations]

    @property
    def verdict(self) -> str:
        """What was to be reached beside what was."""
        told = [(f"the fastest among the first {k} in {w:.0%} of them", self.first[k], w) for k, w in TO_REACH.items()]
        told.append((f"rank correlation {CORRELATION:g}", self.correlation, CORRELATION))
        return "; ".join(f"{what}: {'reached' if got >= want else 'not reached'}" for what, got, want in told)


def apart(found: dict[str, tuple[list[Case], float]]) -> float:
    """The slowest run / the fastest, less 1, in the median of all programs."""
    runs = [one["seconds"] for cases, _ in found.values() for case in cases for one in case.programs]
    return statistics.median(max(seconds) / min(seconds) - 1 for seconds in runs)


def choices(cases: Sequence[Case]) -> dict[str, list[tuple[str, Case]]]:
    """What is asked → its placements."""
    found: dict[str, list[tuple[str, Case]]] = {}
    for case in cases:
        for asked, matrix in case.placements.items():
            found.setdefault(asked, []).append((matrix, case))
    return {asked: some for asked, some in found.items() if len(some) > 1}


def parts_of(found: dict[str, tuple[list[Case], float]]) -> list[str]:
    """The page, below its head."""
    every = [case for cases, _ in found.values() for case in cases]
    by_case = [case.programs for case in every if len(case.programs) > 1]
    asked = [
        [one for _, case in some for one in case.programs]
        for cases, _ in found.values()
        for some in choices(cases).values()
    ]
    executed = [one for case in every for one in case.programs]
    errors = [took_s(one) / (one["predicted_us"] / 1e6) - 1 for one in executed]
    heads = ("", "cases", "programs of each", *(f"fastest in the first {k}" for k in FIRST),
             "the first takes longer than the fastest by",
             "Spearman within a case, median", "Spearman of all")  # fmt: skip
    rows = [
        *(Accuracy.of([case.programs for case in cases if len(case.programs) > 1]).row(name)
          for name, (cases, _) in found.items()),
        (all_cases := Accuracy.of(by_case)).row("all, by placement and request"),
        *([Accuracy.of(asked).row("all, placements of a request together")] if asked else []),
    ]  # fmt: skip
    listed = [
        (name, case.parts, case.times, f"{took_s(one) * 1e3:.0f}", f"{one['predicted_us'] / 1e3:.0f}",
         f"{took_s(one) * 1e6 / one['predicted_us'] - 1:+.1%}", one["steps"])
        for name, (cases, _) in found.items()
        for case in cases
        for one in case.programs
    ]  # fmt: skip
    alphas = ", ".join(f"{name} {alpha_us / 1e3:.2f} ms" for name, (_, alpha_us) in found.items())
    verdicts = [f"To be reached by placement and request: {all_cases.verdict}."]
    if asked:
        verdicts.append(f"Placements together: {Accuracy.of(asked).verdict}.")
    return [
        grid(heads, rows),
        " ".join(verdicts) + " Where a case has ten programs or fewer, the first ten of them say nothing: the last row"
        " does, in which the programs of all placements of the same axes compete.",
        f"{len(executed)} programs of {sum(case.times for case in every)} pairs of a matrix and axes that are reduced"
        f" over, {len(every)} of them different on these trees; every element right. Measured / predicted - 1: median"
        f" {statistics.median(errors):+.1%}, of nine in ten between {np.quantile(errors, 0.05):+.1%} and"
        f" {np.quantile(errors, 0.95):+.1%}. A message took, with all ranks at it: {alphas}; that is the α of the"
        " prediction, the rest of it are the rates that tc holds.",
        "## Programs",
        grid(("network", "groups", "pairs", "measured ms", "predicted ms", "error", "steps"), listed),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="every so-manieth request only")
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--programs", type=int, default=12, help="most of a request")
    parser.add_argument("--turns", type=int, default=2, help="runs of each program")
    parser.add_argument("--kept", type=Path, metavar="DIR", help="measurements are kept there, and not made again")
    asked = parser.parse_args()
    lacks = missing() + ([] if find_spec("torch") else ["PyTorch"])
    if lacks:
        print(f"shaped_placements: needs {', '.join(lacks)}; nothing was measured")
        return
    found: dict[str, tuple[list[Case], float]] = {}
    took = 0.0
    for name in asked.only:
        kept = asked.kept and asked.kept / f"{name}.json"
        if kept and kept.exists():
            own = json.loads(kept.read_text())
        else:
            begun = time.monotonic()
            cases, alpha_us = measured(name, asked.every, asked.programs, asked.turns)
            own = {"cases": list(map(asdict, cases)), "alpha_us": alpha_us, "seconds": time.monotonic() - begun}
            if kept:
                kept.write_text(json.dumps(own))
        found[name] = [Case(**case) for case in own["cases"]], own["alpha_us"]
        took += own["seconds"]
        print(name, *parts_of({name: found[name]})[:2], sep="\n", flush=True)
    sample = "All requests" if asked.every == 1 else f"Every {asked.every}th request"
    rates = "; ".join(
        f"{name}: {', '.join(f'{level}:{size} {rate} Mbit/s' for (level, size), rate in zip(*net, strict=True))}"
        for name, net in NETWORKS.items()
        if name in found
    )
    told = (
        f"{sample} of all matrices of the axes {' and '.join('×'.join(map(str, sizes)) for sizes in AXES)} on trees of"
        f" switches, {RANKS} ranks, {SIZE >> 10} KiB a group, all groups at once. Links, up and down each: {rates}."
        f" Of every request up to {asked.programs} programs: the best by the formula, the best with all their steps as"
        f" one of {', '.join(ALL)}, and such as stand evenly among all others; of messages of"
        f" {LEAST_BYTES >> 10} KiB or more on average. Predicted: by the simulator that"
        f" ranks programs. Measured: the fastest of {asked.turns} runs, each from a moment at which all ranks begin to"
        " the end of the last."
        f" Predictions within {APART - 1:.0%} share a place; runs of one program are {apart(found):.1%} apart, in the"
        f" median of all. The whole took {seconds_words(took)} s, on cores that others used."
    )
    write(__file__, page(__file__, "Placements and programs on shaped networks", [told, *parts_of(found)]))


if __name__ == "__main__":
    main()
