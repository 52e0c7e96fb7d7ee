"""Reduction programs on P²'s machines (MLSys 2022, arXiv 2110.10548): all matrices, all requests of one to three axes.

    python -m results.scripts.reduction_programs [--budget S] [--every N] [--only NAME …]

makes reduction_programs.md. One process for all; a budget a request.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from results.measuring.measure import geometric_mean, grid, page, write
from results.measuring.p2_machines import MACHINES, NIC_GBS, NIC_US, PCIE_GBS, RING_GBS, SWITCH_GBS
from synth.bounds.prove import prove
from synth.parallelism.axes import Axis, Matrix, matrices, parse_axes
from synth.parallelism.reduction.concrete import concrete, described
from synth.parallelism.reduction.reduce_programs import LIBRARY, ProgramSearch, reduce_programs, reduction
from synth.parallelism.reduction.requests import REDUCTION, reduction_groups, synthesis_hierarchy
from synth.parallelism.reduction.sequences import sequences
from synth.parallelism.reduction.states import ALLREDUCE
from synth.parallelism.reduction.step_costs import StepCosts, ranked
from synth.solvers.workers import Workers
from topologies.errors import InputError
from topologies.levels.hierarchy import Hierarchy, find_levels
from topologies.load import load
from topologies.topology import Topology

NODES = (2, 4)
BYTES_A_NODE = float(4 << 29)  # 2²⁹ float32
WORTH = 1.01  # a program beats another by more than this, and cannot where no algorithm takes less than time / this
ANY = 1 + 1e-4  # what P² counts: faster at all
WON, TIED, CANNOT, LOST = "it wins", "as fast", "cannot: proved", "it loses"
LIKELY = 40  # sequences, the best by the formula, of which the times with barriers are worked out
RELAYED_TIMES = 6  # the budget, where all ranks of the machine may forward for every group
SHARE, MEAN, BEST = 0.69, 1.27, 2.04  # P²'s abstract
LARGE, LARGE_AXES, LARGE_S = "dgx-h100:64", "dp=8,pp=8,tp=8", 60.0
Asked = tuple[tuple[Axis, ...], Matrix, tuple[int, ...]]
Contest = tuple[str, str, str]  # against what (a library's algorithm; "": the better one), by what, whose bound

PROGRAM, RELAYED, SEARCHED, SEARCHED_RELAYED = "program", "program, relays", "searched", "searched, relays"
WITHIN, FREE = "bound", "bound, relays"  # nobody or everybody forwards for groups that they are not of
CONTESTS: tuple[tuple[str, tuple[Contest, ...]], ...] = (
    ("P²'s counting: barriers, every step as NCCL_ALGO=Ring runs it, against ring", (("ring", "P² ring", WITHIN),)),
    ("P²'s counting: the same with NCCL_ALGO=Tree, against tree", (("tree", "P² tree", WITHIN),)),
    ("P²'s counting: both runs, each a case", (("ring", "P² ring", WITHIN), ("tree", "P² tree", WITHIN))),
    ("program within its groups, against ring", (("ring", PROGRAM, WITHIN),)),
    ("program within its groups, against tree", (("tree", PROGRAM, WITHIN),)),
    ("program within its groups, against the better of both", (("", PROGRAM, WITHIN),)),
    ("program, others may relay, against ring", (("ring", RELAYED, FREE),)),
    ("program, others may relay, against tree", (("tree", RELAYED, FREE),)),
    ("program, others may relay, against the better of both", (("", RELAYED, FREE),)),
    ("searched schedule within the groups, against the better of both", (("", SEARCHED, WITHIN),)),
    ("searched schedule, others may relay, against the better of both", (("", SEARCHED_RELAYED, FREE),)),
)


@dataclass
class Case:
    """A request up to the symmetry of the network: `times` (matrix, request) pairs come to it.

    took: in µs, what libraries, programs, searched schedules take, and the bounds. said: steps, and who searched.
    """

    name: str
    times: int = 1
    asked: str = ""
    took: dict[str, float] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)

    def single_us(self, against: str) -> float:
        """A library's all-reduce, or the better one (""); inf where it has none."""
        return min(self.took.get(name, math.inf) for name in ([against] if against else LIBRARY))

    def gain(self, contest: Contest) -> float:
        """How many times as long the single all-reduce takes."""
        return self.single_us(contest[0]) / self.took.get(contest[1], math.inf)

    def verdict(self, contest: Contest) -> str:
        """Of a contest: won, as fast, proved that nothing wins, or lost."""
        gain = self.gain(contest)
        if gain > WORTH:
            return WON
        cannot = self.single_us(contest[0]) <= self.took[contest[2]] * WORTH
        return CANNOT if cannot else TIED if gain >= 1 / WORTH else LOST


def axes_of(devices: int) -> Iterator[tuple[Axis, ...]]:
    """All lists of one to three axes of at least two devices, but for their order."""
    for count in (1, 2, 3):
        for sizes in itertools.combinations_with_replacement(range(2, devices + 1), count):
            if math.prod(sizes) == devices:
                yield tuple(Axis(f"x{i}", size) for i, size in enumerate(sizes))


def requests(levels: Hierarchy) -> Iterator[Asked]:
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


def in_turn_us(search: ProgramSearch, algorithm: str) -> float:
    """The best of several steps with barriers, run as NCCL does with NCCL_ALGO so: only an all-reduce has trees."""
    best_us = math.inf
    for steps in [steps for steps in search.ranked if len(steps) > 1][:LIKELY]:
        each = [
            search.library(step, (algorithm if step.collective == ALLREDUCE else "ring",))
            for step in concrete(steps, search.hierarchy)
        ]
        if all(each):
            best_us = min(best_us, sum(own[0].time_us for own in each))
    return best_us


def solve(topology: Topology, levels: Hierarchy, request: Asked, budget_s: float, workers: Workers, case: Case) -> None:
    """Fill in a case."""
    axes, matrix, over = request
    made = synthesis_hierarchy(REDUCTION, levels, axes, matrix, over)
    nodes = int(topology.nodes.max()) + 1
    asked = reduction(topology, reduction_groups(levels, matrix, over).tolist(), BYTES_A_NODE * nodes)
    found = sequences(made)
    search = ProgramSearch(asked, made, found)
    for name in LIBRARY:
        single = search.single((name,))
        if single is not None:
            case.took[name] = single.time_us
            case.took[f"P² {name}"] = in_turn_us(search, name)
    case.asked = " ".join(f"{name}:{factor}" for name, factor in zip(made.names, made.factors, strict=True))
    free = replace(asked, relays="all")
    union = free.problem()
    case.took[FREE] = prove(union).at(union.size_bytes)[0]
    for relayed, program, searched, bound in (
        (asked, PROGRAM, SEARCHED, WITHIN),
        (free, RELAYED, SEARCHED_RELAYED, FREE),
    ):
        if relayed is free and case.took[PROGRAM] <= WORTH * case.took[FREE]:
            break  # nothing to gain
        times = RELAYED_TIMES if relayed is free else 1
        result = reduce_programs(relayed, made, found, budget=times * budget_s, workers=workers)
        case.took[searched], case.said[searched] = result.searched_us, result.searched.method
        case.took[bound] = result.bound_us
        for best in [own for own in result.programs if len(own.steps) > 1][:1]:
            case.took[program] = best.time_us
            case.said[program] = " – ".join(
                f"{one['collective']} {one['slice']} {one['form']}" for one in (described(s, made) for s in best.steps)
            )
    for relayed_name, within in ((RELAYED, PROGRAM), (SEARCHED_RELAYED, SEARCHED)):
        if case.took.get(relayed_name, math.inf) >= case.took[within]:  # relays may, they need not
            case.took[relayed_name], case.said[relayed_name] = case.took[within], ""


def measured(name: str, nodes: int, every: int, budget_s: float, workers: Workers) -> list[Case]:
    """All cases of one machine, or every so-manieth."""
    topology = MACHINES[name](nodes)
    levels = find_levels(topology)
    cases: dict[tuple[object, ...], tuple[Case, Asked]] = {}
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


def summary(cases: Sequence[Case]) -> str:
    """Shares of (matrix, request) pairs, and gains, in a table; what P² measured is the last line."""
    rows = []
    for what, contests in CONTESTS:
        each = [(case, contest) for contest in contests for case in cases if math.isfinite(case.gain(contest))]
        gains = [case.gain(contest) for case, contest in each for _ in range(case.times)]
        won = [g for g in gains if g > WORTH]
        pairs = {
            word: sum(case.times for case, contest in each if case.verdict(contest) == word)
            for word in (WON, TIED, CANNOT, LOST)
        }
        able = len(gains) - pairs[CANNOT]
        share, mean, best = len(won) / len(gains), geometric_mean(won) if won else math.nan, max(gains)
        missed = [word for word, is_missed in (
            ("share", share < SHARE), ("mean", mean < MEAN), ("best", best < BEST)) if is_missed]  # fmt: skip
        ceiling = able / len(gains)
        rows.append((
            what, len(gains), f"{share:.1%}", f"{sum(g > ANY for g in gains) / len(gains):.1%}", f"{ceiling:.1%}",
            *pairs.values(), f"{len(won) / able:.0%}" if able else "–", f"{mean:.2f} ×",
            f"{geometric_mean(max(g, 1.0) for g in gains):.2f} ×", f"{best:.2f} ×",
            "all reached" if not missed else f"missed: {', '.join(missed)}",
        ))  # fmt: skip
    heads = (
        "", "pairs", f"won by over {WORTH - 1:.0%}", "won by any gain", "could win: all but those proved impossible",
        WON, f"{TIED} (within {WORTH - 1:.0%})", CANNOT, LOST, "won of those that could", "mean where it wins",
        "mean of all, the better one taken", "best", f"≥ {SHARE:.0%}, ≥ {MEAN} ×, ≥ {BEST} ×",
    )  # fmt: skip
    paper = ("P², measured (abstract)", "", "", f"{SHARE:.0%}", *[""] * 6, f"{MEAN} ×", "", f"{BEST} ×", "")
    return grid(heads, [*rows, paper])


def listed(cases: Sequence[Case]) -> str:
    """All cases with their times."""
    times = (*LIBRARY, "P² ring", "P² tree", PROGRAM, SEARCHED, WITHIN, RELAYED, SEARCHED_RELAYED, FREE)

    def against(case: Case, contest: Contest) -> str:
        verdict = case.verdict(contest)
        return f"{case.gain(contest):.2f} ×" if verdict == WON else verdict

    rows = [
        (
            case.name, case.asked, case.times,
            *(f"{case.took[time] / 1e3:.1f}" if math.isfinite(case.took.get(time, math.inf)) else "–"
              for time in times),
            f"{case.took[SEARCHED] / case.took[PROGRAM]:.3f}",
            f"{min(case.took[PROGRAM], case.took[SEARCHED]) / case.took[WITHIN]:.3f}",
            against(case, ("", PROGRAM, WITHIN)), against(case, ("ring", RELAYED, FREE)),
            case.said[PROGRAM], case.said[SEARCHED],
        )
        for case in cases
    ]  # fmt: skip
    heads = (
        "machine: first group", "parts", "pairs", *times, "searched / program", "best / bound",
        "program against the better single", "program, relays, against ring", "program's steps", "searched by",
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
            for case in measured(name, nodes, asked.every, asked.budget, workers)
        ]
    worse = [
        case
        for case in cases
        if case.took[SEARCHED] > 1.02 * case.took[PROGRAM] or case.took[SEARCHED_RELAYED] > 1.02 * case.took[RELAYED]
    ]
    gaps = [min(c.took[PROGRAM], c.took[SEARCHED]) / c.took[WITHIN] for c in cases]
    sampled = "all requests" if asked.every == 1 else f"every {asked.every}th request"
    parts = [
        f"{sampled}, up to permutations of nodes and of GPUs behind one switch; {asked.budget:g} s each,"
        f" {RELAYED_TIMES * asked.budget:g} s more with relays. A pair is a parallelism matrix of one to three axes"
        " with a set of axes to reduce over; 2²⁹ float32 a node of the request. Assumed, since the paper's figures are"
        f" not at hand: {SWITCH_GBS:g} GB/s a GPU at the NVSwitch, {RING_GBS:g} GB/s to either neighbour on the ring"
        f" of V100 and {PCIE_GBS:g} GB/s over PCIe elsewhere, one NIC of {NIC_GBS:g} GB/s a node, α {NIC_US:g} µs"
        " between nodes. All times are of one simulator; single all-reduces are rings (as many as the links carry) and"
        " double binary trees, in all groups at once, which forward within their groups only.",
        summary(cases),
        "P²'s abstract counts pairs of a placement and a requested reduction in which a synthesised program is faster"
        " than the default all-reduce, measured on two systems, by any gain; which pairs it ran is not said there. Its"
        " steps are NCCL's collectives with a barrier after each: the first three lines. The lines below join the steps"
        " without barriers and may search their schedules; a program has two steps at least (the all-reduce in one"
        f" step, with a schedule of ours, is the searched one). A program wins where the single all-reduce takes more"
        f" than {WORTH} times as long, and it is proved that none does ('cannot') where that one is within {WORTH} of"
        " the bound on every algorithm under the same rule for relays.",
        "On two nodes a ring of k ranks sends 2 (k - 1) / k of the data through each NIC, and any algorithm sends all"
        " of it at least once: where the NICs are the bottleneck no program gains a factor of 2 over the ring."
        " Requests whose groups lie behind an NVSwitch or are the node's ring itself, or have one rank a node, are"
        " those that cannot gain. GPUs that are no neighbours on the ring of V100 gain where others relay (`--relay"
        " all`): their own path is PCIe.",
        f"Searched schedules that take over 2 % longer than the best program, with or without relays: {len(worse)} of"
        f" {len(cases)} cases (the search begins with the programs). Best time / bound: median"
        f" {statistics.median(gaps):.3f}, worst {max(gaps):.3f}.",
        "## Synthesis on many devices",
        large(),
        "## Cases",
        "Times in ms. P² ring, P² tree: the best sequence of NCCL's collectives with barriers, by our simulator.",
        listed(cases),
    ]
    write(__file__, page(__file__, "Reduction programs", parts))


if __name__ == "__main__":
    main()
