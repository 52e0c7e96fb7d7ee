"""Reduction programs on P²'s machines (MLSys 2022, arXiv 2110.10548): all matrices, all requests of one to three axes.

    python -m results.scripts.reduction_programs [--budget S] [--every N] [--only NAME …]

makes reduction_programs.md. One process for all; a budget a request.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from results.measuring.measure import geometric_mean, grid, page, write
from synth.parallelism.axes import Axis, Matrix, matrices, parse_axes
from synth.parallelism.concrete import concrete, described
from synth.parallelism.reduce_programs import ProgramSearch, reduce_programs, reduction, statement
from synth.parallelism.requests import REDUCTION, reduction_groups, synthesis_hierarchy
from synth.parallelism.sequences import sequences
from synth.parallelism.step_costs import StepCosts, ranked
from synth.solvers.workers import Workers
from topologies.errors import InputError
from topologies.levels.hierarchy import Hierarchy, find_levels
from topologies.load import load
from topologies.topology import Topology

NIC = """[nic]
count = 1
gbs = 12.5
alpha_us = 10
assumed = true
fabric = "one"
"""
A100 = f"""name = "16 A100"
ranks = 16
switches = ["nvswitch"]
[[links]]
from = "0-15"
to = "nvswitch"
both = true
gbs = 300
alpha_us = 0.35
assumed = true
{NIC}"""
RING = " ".join(f"{i}>{(i + 1) % 8}" for i in range(8))
V100 = f"""name = "8 V100"
ranks = 8
switches = ["pcie"]
[[links]]
pairs = "{RING}"
both = true
gbs = 75
alpha_us = 0.7
[[links]]
from = "0-7"
to = "pcie"
both = true
gbs = 13
alpha_us = 2.5
assumed = true
{NIC}"""
MACHINES = {"16 A100": A100, "8 V100": V100}
NODES = (2, 4)
BYTES_A_NODE = float(4 << 29)  # 2²⁹ float32
WORTH = 1.01  # a program beats another by more than this, and cannot where no algorithm takes less than time / this
WON, TIED, CANNOT, LOST = "it wins", "as fast", "cannot: proved", "it loses"
LIKELY = 8  # sequences, the best by the formula, of which the times with barriers are worked out
LARGE, LARGE_AXES, LARGE_S = "dgx-h100:64", "dp=8,pp=8,tp=8", 60.0


@dataclass
class Case:
    """A request up to the symmetry of the network: `times` (matrix, request) pairs come to it."""

    name: str
    times: int = 1
    asked: str = ""
    single_us: dict[str, float] = field(default_factory=dict)
    in_turn_us: float = math.inf
    program_us: float = math.inf
    program: str = ""
    searched_us: float = math.inf
    searched_by: str = ""
    bound_us: float = 0.0

    @property
    def best_single_us(self) -> float:
        return min(self.single_us.values())

    def verdict(self, against: str, by: str = "program_us") -> str:
        """One of `VERDICTS` on what a field says against a single all-reduce; "": the better one."""
        won = gain(self, against, by)
        if won > WORTH:
            return WON
        return CANNOT if self.cannot(against) else TIED if won >= 1 / WORTH else LOST

    def cannot(self, against: str) -> bool:
        """Whether it is proved that no algorithm beats a single all-reduce by more than `WORTH`; "": the better one."""
        single_us = self.single_us.get(against, math.inf) if against else self.best_single_us
        return single_us <= self.bound_us * WORTH


def axes_of(devices: int) -> Iterator[tuple[Axis, ...]]:
    """All lists of one to three axes of at least two devices, but for their order."""
    for count in (1, 2, 3):
        for sizes in itertools.combinations_with_replacement(range(2, devices + 1), count):
            if math.prod(sizes) == devices:
                yield tuple(Axis(f"x{i}", size) for i, size in enumerate(sizes))


def requests(levels: Hierarchy) -> Iterator[tuple[tuple[Axis, ...], Matrix, tuple[int, ...]]]:
    """All matrices of all lists of axes, each with all sets of axes to reduce over."""
    for axes in axes_of(len(levels.ranks)):
        for matrix in matrices(axes, levels):
            for count in range(1, len(axes) + 1):
                for over in itertools.combinations(range(len(axes)), count):
                    yield axes, matrix, over


def alike(topology: Topology, groups: list[list[int]]) -> tuple[object, ...]:
    """The same for requests that a permutation of nodes, or of GPUs behind one switch, takes into each other."""
    node, local = topology.nodes, topology.nranks // (int(topology.nodes.max()) + 1)
    first = [rank for rank in groups[0] if node[rank] == node[groups[0][0]]]
    spread = len(groups[0]) // len(first)
    if "nvswitch.0" in topology.switches:
        return spread, len(first)
    return spread, frozenset(
        frozenset(r % local for r in g if node[r] == 0) for g in groups if any(node[r] == 0 for r in g)
    )


def solve(topology: Topology, levels: Hierarchy, request: tuple[tuple[Axis, ...], Matrix, tuple[int, ...]],
          budget_s: float, workers: Workers, case: Case) -> None:  # fmt: skip
    """Fill in a case."""
    axes, matrix, over = request
    made = synthesis_hierarchy(REDUCTION, levels, axes, matrix, over)
    nodes = int(topology.nodes.max()) + 1
    asked = reduction(topology, reduction_groups(levels, matrix, over).tolist(), BYTES_A_NODE * nodes)
    found = sequences(made)
    search = ProgramSearch(asked, made, found)
    for name in ("ring", "tree"):
        single = search.single((name,))
        if single is not None:
            case.single_us[name] = single.time_us
    for steps in [steps for steps in search.ranked if len(steps) > 1][:LIKELY]:
        each = [search.library(step, ("ring",)) for step in concrete(steps, made)]
        if all(each):
            case.in_turn_us = min(case.in_turn_us, sum(own[0].time_us for own in each))
    said = statement(result := reduce_programs(asked, made, found, budget=budget_s, workers=workers))
    case.asked = " ".join(f"{name}:{factor}" for name, factor in said["hierarchy"].items())
    case.searched_us, case.searched_by = said["searched"]["time_us"], said["searched"]["by"]
    case.bound_us = said["bound_us"]
    for best in [own for own in result.programs if len(own.steps) > 1][:1]:
        case.program_us = best.time_us
        case.program = " – ".join(
            f"{one['collective']} {one['slice']} {one['form']}" for one in (described(s, made) for s in best.steps)
        )


def measured(name: str, text: str, nodes: int, every: int, budget_s: float, workers: Workers) -> list[Case]:
    """All cases of one machine, or every so-manieth."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "node.toml"
        path.write_text(text)
        topology = load(f"{path}:{nodes}")
    levels = find_levels(topology)
    cases: dict[tuple[object, ...], tuple[Case, tuple[tuple[Axis, ...], Matrix, tuple[int, ...]]]] = {}
    for request in requests(levels):
        axes, matrix, over = request
        try:
            synthesis_hierarchy(REDUCTION, levels, axes, matrix, over)
        except InputError:
            continue
        groups = reduction_groups(levels, matrix, over).tolist()
        key = alike(topology, groups)
        if key in cases:
            cases[key][0].times += 1
        else:
            cases[key] = (
                Case(f"{nodes} × {name}: {','.join(map(str, groups[0][:8]))}{'…' if len(groups[0]) > 8 else ''}"),
                request,
            )
    chosen = list(cases.values())[::every]
    for case, request in chosen:
        begun = time.monotonic()
        solve(topology, levels, request, budget_s, workers, case)
        print(f"{case.name}: {time.monotonic() - begun:.0f} s", flush=True)
    return [case for case, _ in chosen]


def gain(case: Case, against: str, by: str = "program_us") -> float:
    """How many times as long the single all-reduce takes: by one algorithm, or by the better one ("")."""
    single_us = case.single_us.get(against, math.nan) if against else case.best_single_us
    return single_us / float(getattr(case, by))


def summary(cases: Sequence[Case]) -> str:
    """Shares of (matrix, request) pairs, and gains, in a table."""
    rows = []
    for what, against, by in (
        ("P²'s way: ring in every step, barriers, against ring", "ring", "in_turn_us"),
        ("program against ring", "ring", "program_us"),
        ("program against tree", "tree", "program_us"),
        ("program against the better of both", "", "program_us"),
        ("searched schedule against the better of both", "", "searched_us"),
    ):
        each = [(gain(case, against, by), case) for case in cases if math.isfinite(gain(case, against, by))]
        gains = [g for g, case in each for _ in range(case.times)]
        won = [g for g in gains if g > WORTH]
        pairs = {
            word: sum(case.times for _, case in each if case.verdict(against, by) == word)
            for word in (WON, TIED, CANNOT, LOST)
        }
        able = len(gains) - pairs[CANNOT]
        mean = f"{geometric_mean(won):.2f} ×" if won else "–"
        whole = f"{geometric_mean(max(g, 1.0) for g in gains):.2f} ×"
        share, of_able = 100 * len(won) / len(gains), 100 * len(won) / able if able else math.nan
        best = f"{max(gains):.2f} ×"
        rows.append((what, len(gains), f"{share:.0f} %", *pairs.values(), f"{of_able:.0f} %", mean, whole, best))
    heads = (
        "", "pairs", "share won", WON, f"{TIED} (within {WORTH - 1:.0%})", CANNOT, LOST,
        "share won of those not proved impossible", "mean where it wins", "mean of all, the better one taken", "best",
    )  # fmt: skip
    paper = ("P², measured (abstract)", "", "69 %", "", "", "", "", "", "1.27 ×", "", "2.04 ×")
    return grid(heads, [*rows, paper])


def listed(cases: Sequence[Case]) -> str:
    """All cases with their times."""

    def shown(us: float) -> str:
        return f"{us / 1e3:.1f}" if math.isfinite(us) else "–"

    rows = []
    for case in cases:
        verdict = case.verdict("")
        verdict = f"{gain(case, ''):.2f} ×" if verdict == WON else verdict
        rows.append((
            case.name, case.asked, case.times, *(shown(case.single_us.get(n, math.inf)) for n in ("ring", "tree")),
            shown(case.in_turn_us), shown(case.program_us), shown(case.searched_us), shown(case.bound_us),
            f"{case.searched_us / case.program_us:.3f}",
            f"{min(case.program_us, case.searched_us) / case.bound_us:.3f}",
            verdict, case.program, case.searched_by,
        ))  # fmt: skip
    heads = (
        "machine: first group", "parts", "pairs", "ring", "tree", "P²'s way", "program", "searched", "bound",
        "searched / program", "best / bound", "program against the better single", "program's steps", "searched by",
    )  # fmt: skip
    return grid(heads, rows)


def large() -> str:
    """How long all programs of all matrices and requests take on many devices."""
    cpu, wall = time.process_time(), time.monotonic()
    topology = load(LARGE)
    levels = find_levels(topology)
    axes = parse_axes(LARGE_AXES, levels)
    every = list(matrices(axes, levels))
    asked = programs = 0
    for matrix in every:
        for count in range(1, len(axes) + 1):
            for over in itertools.combinations(range(len(axes)), count):
                made = synthesis_hierarchy(REDUCTION, levels, axes, matrix, over)
                request = reduction(topology, reduction_groups(levels, matrix, over).tolist(), float(1 << 30))
                found = sequences(made)
                ranked(found, StepCosts(request, made))
                asked, programs = asked + 1, programs + len(found)
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    reached = "reached" if wall <= LARGE_S else "not reached"
    return (
        f"{LARGE} ({topology.nranks} devices), {LARGE_AXES}: {len(every)} matrices, {asked} requests, {programs}"
        f" programs of up to five steps, ranked by the load on the network's resources: {cpu:.1f} s of CPU,"
        f" {wall:.1f} s by the clock; {LARGE_S:.0f} s were to be reached: {reached}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=6.0, help="seconds a request")
    parser.add_argument("--every", type=int, default=1, help="every so-manieth request only")
    parser.add_argument("--only", nargs="*", default=list(MACHINES), choices=list(MACHINES))
    asked = parser.parse_args()
    with Workers() as workers:
        cases = [
            case
            for name, nodes in itertools.product(asked.only, NODES)
            for case in measured(name, MACHINES[name], nodes, asked.every, asked.budget, workers)
        ]
    worse = [c for c in cases if c.searched_us > 1.02 * c.program_us]
    gaps = [min(c.program_us, c.searched_us) / c.bound_us for c in cases]
    sampled = "all requests" if asked.every == 1 else f"every {asked.every}th request"
    pairs = sum(c.times for c in cases)
    proved = sum(c.times for c in cases if c.cannot(""))
    parts = [
        f"{sampled}, up to permutations of nodes and of GPUs behind one switch; {asked.budget:g} s each. A pair is a"
        " parallelism matrix of one to three axes with a set of axes to reduce over; 2²⁹ float32 a node of the request."
        " Assumed: 300 GB/s a GPU at the NVSwitch, 75 GB/s to either neighbour on the ring of V100 and 13 GB/s over"
        " PCIe elsewhere, one NIC of 12.5 GB/s a node, α 10 µs between nodes. All times are of one simulator; single"
        " all-reduces are rings (as many as the links carry) and double binary trees, in all groups at once.",
        summary(cases),
        "Programs have two steps at least: the all-reduce in one step, with a schedule of ours, is the searched one."
        f" A program wins where the single all-reduce takes more than {WORTH} times as long. In {proved} pairs"
        f" of {pairs} it is proved that no algorithm does so against the better of ring and tree ('cannot': that one is"
        f" within {WORTH} of the bound).",
        "On two nodes a ring of k ranks sends 2 (k − 1) / k of the data through each NIC, and any algorithm sends "
        "all of it at least once: where the NICs are the bottleneck no program gains a factor of 2 over the ring, "
        "and P²'s best gain, which was measured, is out of this model's reach. Requests whose groups lie within a "
        "node, or have one rank a node, are most of those that cannot gain.",
        f"Searched schedules that take over 2 % longer than the best program: {len(worse)} of {len(cases)} cases (the"
        f" search begins with the programs). Best time / bound: median {statistics.median(gaps):.3f}, worst"
        f" {max(gaps):.3f}.",
        "## Synthesis on many devices",
        large(),
        "## Cases",
        "Times in ms. P²'s way: the best sequence of rings with barriers between its steps, by our simulator.",
        listed(cases),
    ]
    write(__file__, page(__file__, "Reduction programs", parts))


if __name__ == "__main__":
    main()
