"""Run reduction programs of all placements on shaped networks, and compare predicted with measured times.

    sudo python -m results.scripts.shaped_placements [--every N] [--only NAME …] [--programs 12] [--turns 2]

makes shaped_placements.md; all of it takes an hour. Each rank is a process in its own network namespace, switches are
namespaces too, and tc tbf holds every link to its rate. Programs are written as MSCCL XML, read again, and run by the
torch back end's executor over Gloo's messages, in all groups of a request concurrently. Rates are low, so that the
network takes the time, not the processes. Needs root, ip and tc, and PyTorch; without one of them the script says so
and writes nothing.
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
from synth.search.settings import TargetSettings
from topologies.errors import InputError
from topologies.levels.hierarchy import Hierarchy, parse_levels
from topologies.text.reader import from_toml
from topologies.topology import Topology

RANKS = 16
AXES = ((4, 4), (2, 2, 4))  # Sizes of the two sets of axes.
# Levels, and for each level the Mbit/s of the link from a part to the switch of the part above it.
NETWORKS: dict[str, tuple[tuple[tuple[str, int], ...], tuple[float, ...]]] = {
    "racks, steep": ((("rack", 2), ("node", 2), ("gpu", 4)), (16, 24, 32)),
    "racks, NICs slowest": ((("rack", 2), ("node", 2), ("gpu", 4)), (32, 16, 24)),
    "nodes of 4": ((("node", 4), ("gpu", 4)), (24, 32)),
    "nodes of 4, NICs slow": ((("node", 4), ("gpu", 4)), (16, 48)),
    "nodes of 8": ((("node", 2), ("gpu", 8)), (32, 32)),
}
SIZE = 1 << 20  # Bytes of each group.
LEAST_BYTES = 1 << 15  # Least mean size of a message. For smaller ones the processes take the time, not the network.
LIKELY = 6  # Number of sequences that are the best by the formula; the others are evenly spaced among all.
ALONE = 3  # So many of these also run with the same algorithm in all steps.
SLOWEST = 4.0  # Programs that are predicted to take more than so many times the best are not run.
FIRST = (1, 5, 10)
TO_REACH = {1: 0.60, 10: 0.95}  # Goals: share of cases whose fastest program is among the first k predicted ones.
CORRELATION = 0.9  # Goal for the rank correlation.
APART = 1.01  # Predictions that differ by less are not ranked.
BURST_KB = 10  # Hardly more than a packet.


@dataclass
class Case:
    """A request on a tree of switches.

    Attributes:
        groups: Ranks of each group.
        parts: Levels of a group, with the number of parts of each.
        times: Number of (axes, matrix, reduced axes) that lead to these groups.
        placements: Matrix of each request that leads to these groups, by request.
        programs: Programs, each with its steps, predicted time in µs, files, and measured seconds.
    """

    groups: list[list[int]]
    parts: str
    times: int
    placements: dict[str, str] = field(default_factory=dict)
    programs: list[dict[str, Any]] = field(default_factory=list)


def links(levels: Sequence[tuple[str, int]], rates: Sequence[float]) -> Links:
    """Return the links of a tree: each part of a level has a link to the switch of the part above it."""
    sizes = [size for _, size in levels]
    counts = [math.prod(sizes[: depth + 1]) for depth in range(len(sizes))]
    # The root's number follows the ranks'; then come the parts of each level. The innermost parts are the ranks.
    first = [RANKS, *(RANKS + 1 + sum(counts[:depth]) for depth in range(len(sizes) - 1))]
    rate_of_link: Links = {}
    for depth, (size, rate) in enumerate(zip(sizes, rates, strict=True)):
        below = first[depth + 1] if depth + 1 < len(sizes) else 0
        for part in range(counts[depth]):
            rate_of_link[below + part, first[depth] + part // size] = rate
    return rate_of_link


def requests(levels: Hierarchy) -> list[tuple[Case, tuple[Axis, ...], Matrix, tuple[int, ...]]]:
    """Return all requests of the two sets of axes; requests that are equivalent on the tree occur once."""
    entry_of_key: dict[tuple[int, ...], tuple[Case, tuple[Axis, ...], Matrix, tuple[int, ...]]] = {}
    for sizes in AXES:
        axes = tuple(Axis(f"x{i}", size) for i, size in enumerate(sizes))
        for matrix in matrices(axes, levels):
            for count in range(1, len(axes) + 1):
                for over in itertools.combinations(range(len(axes)), count):
                    # All ports of a switch are equal, so only the number of parts of each level matters.
                    key = tuple(math.prod(matrix[a][level] for a in over) for level in range(len(levels.levels)))
                    if key not in entry_of_key:
                        parts = " ".join(f"{lv.name}:{n}" for lv, n in zip(levels.levels, key, strict=True) if n > 1)
                        groups = reduction_groups(levels, matrix, over).tolist()
                        entry_of_key[key] = Case(groups, parts, 0), axes, matrix, over
                    case = entry_of_key[key][0]
                    case.times += 1
                    request = f"{','.join(map(str, sizes))} over {','.join(f'x{a}' for a in over)}"
                    case.placements[request] = " ".join("×".join(map(str, row)) for row in matrix)
    return list(entry_of_key.values())


def candidates(search: ProgramSearch, costs: StepCosts, most: int) -> Iterator[tuple[Steps, tuple[str, ...]]]:
    """Yield sequences and the algorithms of their steps: the best by the formula, then others, evenly spaced."""
    ranked = search.ranked
    for steps in ranked[:LIKELY]:
        yield steps, ALL
    for steps in ranked[:ALONE]:
        for name in ALL:
            yield steps, (name,)
    best = costs.in_turn_us(ranked[0])
    remaining = [steps for steps in ranked[LIKELY:] if costs.in_turn_us(steps) <= SLOWEST * best]
    for index in np.unique(np.linspace(0, len(remaining) - 1, min(len(remaining), most), dtype=int)):
        yield remaining[index], ALL


def make(topo: Topology, levels: Hierarchy, request: tuple[Case, tuple[Axis, ...], Matrix, tuple[int, ...]],
         folder: Path, number: int, most: int) -> Case:  # fmt: skip
    """Add the programs of a case, each with its predicted time and a file for every group."""
    case, axes, matrix, over = request
    hierarchy = synthesis_hierarchy(REDUCTION, levels, axes, matrix, over)
    group_reduction = reduction(topo, case.groups, float(SIZE))
    step_sequences = sequences(hierarchy)
    search, lower = (
        ProgramSearch(group_reduction, hierarchy, step_sequences),
        GroupPrograms(TargetSettings("executor-nccl")),
    )
    search.most_sends = 2 * RANKS * SIZE // LEAST_BYTES  # A rank must send the message at least twice.
    program_of_rows: dict[tuple[bytes, ...], tuple[ReductionProgram, tuple[str, ...]]] = {}
    for steps, names in candidates(search, StepCosts(group_reduction, hierarchy), most):
        program = search.by_library(steps, names)
        if program is not None:
            rows = program.algorithm.schedule
            program_of_rows.setdefault(
                (rows.chunk.tobytes(), rows.link.tobytes(), rows.step.tobytes()), (program, names)
            )
    ordered = sorted(program_of_rows.values(), key=lambda entry: entry[0].time_us)
    for program, names in ordered:
        if len(case.programs) == most or program.time_us > SLOWEST * ordered[0][0].time_us:
            break
        try:
            parts = lower.lower(as_plan(program).problem, program.algorithm).parts
        except InputError:
            continue  # The program has more steps than a file can hold.
        texts: dict[str, str] = {}
        files = []
        for part in parts:
            text = write_msccl(part.by.program)
            name = texts.setdefault(text, f"{number}-{len(case.programs)}-{len(texts)}.xml")
            (folder / name).write_text(text)
            files.append([list(part.algorithm.problem.ranks), name])
        words = " – ".join("{collective} {slice} {form}".format(**described(step, hierarchy)) for step in program.steps)
        suffix = "" if len(names) > 1 else f" ({names[0]})"
        case.programs.append({"steps": words + suffix, "predicted_us": program.time_us, "files": files, "seconds": []})
    return case


def measured(name: str, every: int, most: int, turns: int) -> tuple[list[Case], float]:
    """Measure all cases of a network, or each N-th; return them with the measured time of a message in µs."""
    shape, rates = NETWORKS[name]
    rate_of_link = links(shape, rates)
    with tempfile.TemporaryDirectory() as folder_name, built(RANKS, rate_of_link, BURST_KB, SMALL_WINDOWS) as spaces:
        folder = Path(folder_name)
        words = [sys.executable, "-m", "results.measuring.shaped_ranks", folder, SIZE, turns]
        ranks = started(spaces, words, {})
        try:
            while not (folder / "alpha.json").exists():
                if any(process.poll() for process in ranks):
                    break
                time.sleep(0.2)
            else:
                alpha_us = json.loads((folder / "alpha.json").read_text())
                topo = from_toml(topology(RANKS, rate_of_link, alpha_us), name)
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
    """Return the seconds of the fastest run; other work on the host only adds time."""
    return min(program["seconds"])


def predicted_us(program: dict[str, Any]) -> float:
    """Return the predicted time in µs."""
    return float(program["predicted_us"])


def spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the rank correlation; equal values have the mean of their ranks.

    It is nan if all values of a side are equal.
    """

    def ranks(values: Sequence[float]) -> Floats:
        """Return the rank of each value."""
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        last = np.cumsum(counts)
        return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)

    first_ranks, second_ranks = (ranks([float(f"{value:.6g}") for value in side]) for side in zip(*pairs, strict=True))
    return (
        float(np.corrcoef(first_ranks, second_ranks)[0, 1])
        if np.ptp(first_ranks) and np.ptp(second_ranks)
        else math.nan
    )


def place(programs: Sequence[dict[str, Any]], apart: float) -> int:
    """Return the place of the fastest measured program by predicted time.

    Predictions that differ by less than the factor `apart` share a place.
    """
    fastest_us = min(programs, key=took_s)["predicted_us"]
    return 1 + sum(program["predicted_us"] * apart < fastest_us for program in programs)


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of predictions over questions that each have several programs.

    Attributes:
        questions: Number of questions.
        programs: Mean number of programs of a question.
        first: Share of questions whose fastest program is among the first k predicted ones, for each k of `FIRST`.
        lost: Mean of the extra time of the first predicted program over the fastest, as a share.
        within: Rank correlation within a question; the median over the questions.
        correlation: Rank correlation of all programs.
    """

    questions: int
    programs: float
    first: dict[int, float]
    lost: float
    within: float
    correlation: float

    @staticmethod
    def of(questions: Sequence[Sequence[dict[str, Any]]]) -> Accuracy:
        """Compute the accuracy over questions."""
        correlations = [
            spearman([(program["predicted_us"], took_s(program)) for program in programs]) for programs in questions
        ]
        all_of = {
            id(program): (program["predicted_us"], took_s(program)) for programs in questions for program in programs
        }
        return Accuracy(
            len(questions),
            statistics.fmean(map(len, questions)),
            {k: statistics.fmean(place(programs, APART) <= k for programs in questions) for k in FIRST},
            statistics.fmean(
                took_s(min(programs_of_question, key=predicted_us)) / min(map(took_s, programs_of_question)) - 1
                for programs_of_question in questions
            ),
            statistics.median([value for value in correlations if math.isfinite(value)]),
            spearman(list(all_of.values())),
        )

    def row(self, title: str) -> list[object]:
        """Return the row of the table."""
        shares = (f"{100 * share:.0f} %" for share in self.first.values())
        correlations = (f"{value:.3f}" for value in (self.within, self.correlation))
        return [title, self.questions, f"{self.programs:.0f}", *shares, f"{self.lost:.1%}", *correlations]

    @property
    def verdict(self) -> str:
        """Describe which goals are reached."""
        goals = [
            (f"the fastest program is among the first {k} in {w:.0%} of them", self.first[k], w)
            for k, w in TO_REACH.items()
        ]
        goals.append((f"rank correlation {CORRELATION:g}", self.correlation, CORRELATION))
        return "; ".join(f"{goal}: {'reached' if value >= least else 'not reached'}" for goal, value, least in goals)


def apart(measured_networks: dict[str, tuple[list[Case], float]]) -> float:
    """Return the median over all programs of the slowest run / the fastest, less 1."""
    runs = [
        program["seconds"] for cases, _ in measured_networks.values() for case in cases for program in case.programs
    ]
    return statistics.median(max(seconds) / min(seconds) - 1 for seconds in runs)


def choices(cases: Sequence[Case]) -> dict[str, list[tuple[str, Case]]]:
    """Return the placements of each request that has several, by request."""
    placements: dict[str, list[tuple[str, Case]]] = {}
    for case in cases:
        for request, matrix in case.placements.items():
            placements.setdefault(request, []).append((matrix, case))
    return {request: members for request, members in placements.items() if len(members) > 1}


def parts_of(measured_networks: dict[str, tuple[list[Case], float]]) -> list[str]:
    """Return the parts of the page below its head."""
    executed_cases = [case for cases, _ in measured_networks.values() for case in cases]
    by_case = [case.programs for case in executed_cases if len(case.programs) > 1]
    programs_by_request = [
        [program for _, case in members for program in case.programs]
        for cases, _ in measured_networks.values()
        for members in choices(cases).values()
    ]
    executed = [program for case in executed_cases for program in case.programs]
    errors = [took_s(program) / (program["predicted_us"] / 1e6) - 1 for program in executed]
    heads = ("network", "cases", "programs of each", *(f"fastest among first {k}" for k in FIRST),
             "extra time of the first over the fastest",
             "Spearman within a case, median", "Spearman of all")  # fmt: skip
    rows = [
        *(Accuracy.of([case.programs for case in cases if len(case.programs) > 1]).row(name)
          for name, (cases, _) in measured_networks.items()),
        (all_cases := Accuracy.of(by_case)).row("all, each placement and request"),
        *([Accuracy.of(programs_by_request).row("all, all placements of a request")] if programs_by_request else []),
    ]  # fmt: skip
    program_rows = [
        (name, case.parts, case.times, f"{took_s(program) * 1e3:.0f}", f"{program['predicted_us'] / 1e3:.0f}",
         f"{took_s(program) * 1e6 / program['predicted_us'] - 1:+.1%}", program["steps"])
        for name, (cases, _) in measured_networks.items()
        for case in cases
        for program in case.programs
    ]  # fmt: skip
    alphas = ", ".join(f"{name} {alpha_us / 1e3:.2f} ms" for name, (_, alpha_us) in measured_networks.items())
    verdicts = [f"Goals for each placement and request: {all_cases.verdict}."]
    if programs_by_request:
        verdicts.append(f"Goals for all placements of a request: {Accuracy.of(programs_by_request).verdict}.")
    return [
        grid(heads, rows),
        " ".join(verdicts)
        + " A case with ten programs or fewer always meets the goal for the first ten. In the last row the programs of"
        " all placements of the same axes compete, which is harder.",
        f"{len(executed)} programs were run for {sum(case.times for case in executed_cases)} pairs of a matrix and"
        f" reduced axes, {len(executed_cases)} of them different on these trees. Every element was right. Measured /"
        f" predicted - 1 has the median {statistics.median(errors):+.1%}; nine in ten are between"
        f" {np.quantile(errors, 0.05):+.1%} and {np.quantile(errors, 0.95):+.1%}. A message took, while all ranks"
        f" sent: {alphas}. This is the α of the prediction; its rates are those of tc.",
        "## Programs",
        grid(("network", "parts of a group", "pairs", "measured ms", "predicted ms", "error", "steps"), program_rows),
    ]


def main() -> None:
    """Run the programs, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="each N-th request only")
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--programs", type=int, default=12, help="largest number of programs of a request")
    parser.add_argument("--turns", type=int, default=2, help="runs of each program")
    parser.add_argument(
        "--kept", type=Path, metavar="DIR", help="folder that keeps measurements, so that they are not repeated"
    )
    options = parser.parse_args()
    lacks = missing() + ([] if find_spec("torch") else ["PyTorch"])
    if lacks:
        print(f"shaped_placements needs {', '.join(lacks)}; nothing was measured")
        return
    measured_networks: dict[str, tuple[list[Case], float]] = {}
    total_s = 0.0
    for name in options.only:
        file = options.kept and options.kept / f"{name}.json"
        if file and file.exists():
            record = json.loads(file.read_text())
        else:
            start_s = time.monotonic()
            cases, alpha_us = measured(name, options.every, options.programs, options.turns)
            record = {"cases": list(map(asdict, cases)), "alpha_us": alpha_us, "seconds": time.monotonic() - start_s}
            if file:
                file.write_text(json.dumps(record))
        measured_networks[name] = [Case(**case) for case in record["cases"]], record["alpha_us"]
        total_s += record["seconds"]
        print(name, *parts_of({name: measured_networks[name]})[:2], sep="\n", flush=True)
    sample = "All requests" if options.every == 1 else f"Every {options.every}th request"
    rates = "; ".join(
        f"{name}: {', '.join(f'{level}:{size} {rate} Mbit/s' for (level, size), rate in zip(*net, strict=True))}"
        for name, net in NETWORKS.items()
        if name in measured_networks
    )
    about = (
        f"{sample} of all matrices of the axes {' and '.join('×'.join(map(str, sizes)) for sizes in AXES)} run on"
        f" trees of switches with {RANKS} ranks and {SIZE >> 10} KiB a group, all groups concurrently. Links have"
        f" these rates each way: {rates}. A request has up to {options.programs} programs: the best by the formula,"
        f" the best with all steps by one of {', '.join(ALL)}, and evenly spaced ones among all others, with messages"
        f" of {LEAST_BYTES >> 10} KiB or more on average. *Predicted*: by the simulator that ranks programs."
        f" *Measured*: the fastest of {options.turns} runs, each from a common start of all ranks to the end of the"
        f" last. Predictions within {APART - 1:.0%} share a place. Runs of one program differ by"
        f" {apart(measured_networks):.1%} in the median of all programs. The measurement took {seconds_words(total_s)}"
        " s on a shared machine."
    )
    write(__file__, page(__file__, "Placements and programs on shaped networks", [about, *parts_of(measured_networks)]))


if __name__ == "__main__":
    main()
