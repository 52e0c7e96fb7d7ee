"""Search reduction programs on P²'s machines (MLSys 2022, arXiv 2110.10548) for all matrices and requests.

    python -m results.scripts.reduction_programs [--budget S] [--every N] [--only NAME …]

makes reduction_programs.md. Requests have one to three axes. One process answers all of them; --budget is the seconds
of each request.
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
WORTH = 1.01  # A program wins by more than this factor. It cannot win if the bound is at least time / this factor.
ANY = 1 + 1e-4  # P² counts every gain above rounding.
WON, TIED, CANNOT, LOST = "wins", "as fast", "proved: cannot win", "loses"
LIKELY = 40  # Number of sequences, the best by the formula, whose times with barriers are computed.
RELAYED_TIMES = 6  # Multiple of the budget if all ranks of the machine may relay for every group.
SHARE, MEAN, BEST = 0.69, 1.27, 2.04  # P²'s abstract
LARGE, LARGE_AXES, LARGE_S = "dgx-h100:64", "dp=8,pp=8,tp=8", 60.0
Request = tuple[tuple[Axis, ...], Matrix, tuple[int, ...]]
Contest = tuple[str, str, str]  # A library's algorithm ("": the better one), its rival, and the bound of the rival.

PROGRAM, RELAYED, SEARCHED, SEARCHED_RELAYED = "program", "program, relays", "searched", "searched, relays"
WITHIN, FREE = "bound", "bound, relays"  # No rank, or every rank, relays for groups of which it is no member.
CONTESTS: tuple[tuple[str, tuple[Contest, ...]], ...] = (
    ("P²'s counting: barriers, every step with NCCL_ALGO=Ring, against ring", (("ring", "P² ring", WITHIN),)),
    ("P²'s counting: the same with NCCL_ALGO=Tree, against tree", (("tree", "P² tree", WITHIN),)),
    ("P²'s counting: both runs as separate cases", (("ring", "P² ring", WITHIN), ("tree", "P² tree", WITHIN))),
    ("program within its groups, against ring", (("ring", PROGRAM, WITHIN),)),
    ("program within its groups, against tree", (("tree", PROGRAM, WITHIN),)),
    ("program within its groups, against the better of ring and tree", (("", PROGRAM, WITHIN),)),
    ("program, others may relay, against ring", (("ring", RELAYED, FREE),)),
    ("program, others may relay, against tree", (("tree", RELAYED, FREE),)),
    ("program, others may relay, against the better of ring and tree", (("", RELAYED, FREE),)),
    ("searched schedule within the groups, against the better of ring and tree", (("", SEARCHED, WITHIN),)),
    ("searched schedule, others may relay, against the better of ring and tree", (("", SEARCHED_RELAYED, FREE),)),
)


@dataclass
class Case:
    """A request up to the symmetry of the network.

    Attributes:
        name: Machine and first group.
        times: Number of (matrix, request) pairs that are equivalent to this case.
        asked: Parts of the reduced hierarchy.
        took: Times in µs of libraries, programs and searched schedules, and the bounds, by name.
        said: Steps of the programs, and methods of the searches, by name.
    """

    name: str
    times: int = 1
    asked: str = ""
    took: dict[str, float] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)

    def single_us(self, against: str) -> float:
        """Return the time in µs of a library's all-reduce, or of the fastest one for ""; inf if there is none."""
        return min(self.took.get(name, math.inf) for name in ([against] if against else LIBRARY))

    def gain(self, contest: Contest) -> float:
        """Return the time of the single all-reduce / that of the program."""
        return self.single_us(contest[0]) / self.took.get(contest[1], math.inf)

    def verdict(self, contest: Contest) -> str:
        """Return the verdict on a contest: won, as fast, proved that nothing wins, or lost."""
        gain = self.gain(contest)
        if gain > WORTH:
            return WON
        cannot = self.single_us(contest[0]) <= self.took[contest[2]] * WORTH
        return CANNOT if cannot else TIED if gain >= 1 / WORTH else LOST


def axes_of(devices: int) -> Iterator[tuple[Axis, ...]]:
    """Yield all lists of one to three axes of at least two devices, regardless of their order."""
    for count in (1, 2, 3):
        for sizes in itertools.combinations_with_replacement(range(2, devices + 1), count):
            if math.prod(sizes) == devices:
                yield tuple(Axis(f"x{i}", size) for i, size in enumerate(sizes))


def requests(levels: Hierarchy) -> Iterator[Request]:
    """Yield all matrices of all lists of axes, each with all sets of axes to reduce over."""
    for axes in axes_of(len(levels.ranks)):
        for matrix in matrices(axes, levels):
            for count in range(1, len(axes) + 1):
                for over in itertools.combinations(range(len(axes)), count):
                    yield axes, matrix, over


def symmetry_key(topology: Topology, groups: list[list[int]]) -> tuple[object, ...]:
    """Return a key that is equal for equivalent requests.

    Requests are equivalent if a permutation of nodes, or of GPUs behind one switch, maps one to the other.
    """
    node, local = topology.nodes, topology.nranks // (int(topology.nodes.max()) + 1)
    first = [rank for rank in groups[0] if node[rank] == node[groups[0][0]]]
    spread = len(groups[0]) // len(first)
    if "nvswitch.0" in topology.switches:
        return spread, len(first)
    return spread, frozenset(
        frozenset(r % local for r in g if node[r] == 0) for g in groups if any(node[r] == 0 for r in g)
    )


def in_turn_us(search: ProgramSearch, algorithm: str) -> float:
    """Return the best time in µs of several NCCL steps with barriers under one NCCL_ALGO.

    Only an all-reduce has trees; other collectives run as rings.
    """
    best_us = math.inf
    for steps in [steps for steps in search.ranked if len(steps) > 1][:LIKELY]:
        library_steps = [
            search.library(step, (algorithm if step.collective == ALLREDUCE else "ring",))
            for step in concrete(steps, search.hierarchy)
        ]
        if all(library_steps):
            best_us = min(best_us, sum(library_step[0].time_us for library_step in library_steps))
    return best_us


def solve(
    topology: Topology, levels: Hierarchy, request: Request, budget_s: float, workers: Workers, case: Case
) -> None:
    """Solve a request, and write the times and bounds into its case."""
    axes, matrix, over = request
    hierarchy = synthesis_hierarchy(REDUCTION, levels, axes, matrix, over)
    nodes = int(topology.nodes.max()) + 1
    group_reduction = reduction(topology, reduction_groups(levels, matrix, over).tolist(), BYTES_A_NODE * nodes)
    step_sequences = sequences(hierarchy)
    search = ProgramSearch(group_reduction, hierarchy, step_sequences)
    for name in LIBRARY:
        single = search.single((name,))
        if single is not None:
            case.took[name] = single.time_us
            case.took[f"P² {name}"] = in_turn_us(search, name)
    case.asked = " ".join(f"{name}:{factor}" for name, factor in zip(hierarchy.names, hierarchy.factors, strict=True))
    relayed_reduction = replace(group_reduction, relays="all")
    union = relayed_reduction.problem()
    case.took[FREE] = prove(union).at(union.size_bytes)[0]
    for relayed, program, searched, bound in (
        (group_reduction, PROGRAM, SEARCHED, WITHIN),
        (relayed_reduction, RELAYED, SEARCHED_RELAYED, FREE),
    ):
        if relayed is relayed_reduction and case.took[PROGRAM] <= WORTH * case.took[FREE]:
            break  # Relays cannot gain anything.
        times = RELAYED_TIMES if relayed is relayed_reduction else 1
        result = reduce_programs(relayed, hierarchy, step_sequences, budget=times * budget_s, workers=workers)
        case.took[searched], case.said[searched] = result.searched_us, result.searched.method
        case.took[bound] = result.bound_us
        for best in [program_of_result for program_of_result in result.programs if len(program_of_result.steps) > 1][
            :1
        ]:
            case.took[program] = best.time_us
            case.said[program] = " – ".join(
                f"{description['collective']} {description['slice']} {description['form']}"
                for description in (described(s, hierarchy) for s in best.steps)
            )
    for relayed_name, within in ((RELAYED, PROGRAM), (SEARCHED_RELAYED, SEARCHED)):
        if case.took.get(relayed_name, math.inf) >= case.took[within]:  # Ranks may relay, but need not.
            case.took[relayed_name], case.said[relayed_name] = case.took[within], ""


def measured(name: str, nodes: int, every: int, budget_s: float, workers: Workers) -> list[Case]:
    """Measure all cases of one machine, or each N-th of them."""
    topology = MACHINES[name](nodes)
    levels = find_levels(topology)
    cases: dict[tuple[object, ...], tuple[Case, Request]] = {}
    for request in requests(levels):
        axes, matrix, over = request
        try:
            synthesis_hierarchy(REDUCTION, levels, axes, matrix, over)
        except InputError:
            continue
        groups = reduction_groups(levels, matrix, over).tolist()
        key = symmetry_key(topology, groups)
        if key in cases:
            cases[key][0].times += 1
        else:
            cases[key] = (
                Case(f"{nodes} × {name}: {','.join(map(str, groups[0][:8]))}{'…' if len(groups[0]) > 8 else ''}"),
                request,
            )
    chosen = list(cases.values())[::every]
    for case, request in chosen:
        start_s = time.monotonic()
        solve(topology, levels, request, budget_s, workers, case)
        print(f"{case.name}: {time.monotonic() - start_s:.0f} s", flush=True)
    return [case for case, _ in chosen]


def summary(cases: Sequence[Case]) -> str:
    """Return the table of shares of (matrix, request) pairs and of gains; the last row is what P² measured."""
    rows = []
    for title, contests in CONTESTS:
        finite_contests = [
            (case, contest) for contest in contests for case in cases if math.isfinite(case.gain(contest))
        ]
        gains = [case.gain(contest) for case, contest in finite_contests for _ in range(case.times)]
        won = [g for g in gains if g > WORTH]
        pairs = {
            word: sum(case.times for case, contest in finite_contests if case.verdict(contest) == word)
            for word in (WON, TIED, CANNOT, LOST)
        }
        winnable = len(gains) - pairs[CANNOT]
        share, mean, best = len(won) / len(gains), geometric_mean(won) if won else math.nan, max(gains)
        missed = [word for word, is_missed in (
            ("share", share < SHARE), ("mean", mean < MEAN), ("best", best < BEST)) if is_missed]  # fmt: skip
        ceiling = winnable / len(gains)
        rows.append((
            title, len(gains), f"{share:.1%}", f"{sum(g > ANY for g in gains) / len(gains):.1%}", f"{ceiling:.1%}",
            *pairs.values(), f"{len(won) / winnable:.0%}" if winnable else "–", f"{mean:.2f} ×",
            f"{geometric_mean(max(g, 1.0) for g in gains):.2f} ×", f"{best:.2f} ×",
            "all reached" if not missed else f"missed: {', '.join(missed)}",
        ))  # fmt: skip
    heads = (
        "contest", "pairs", f"won by over {WORTH - 1:.0%}", "won by any gain", "can win (not proved impossible)",
        WON, f"{TIED} (within {WORTH - 1:.0%})", CANNOT, LOST, "won of those that can", "mean gain of wins",
        "mean gain of all, at least 1", "best gain", f"goal: ≥ {SHARE:.0%}, ≥ {MEAN} ×, ≥ {BEST} ×",
    )  # fmt: skip
    paper = ("P², measured (abstract)", "", "", f"{SHARE:.0%}", *[""] * 6, f"{MEAN} ×", "", f"{BEST} ×", "")
    return grid(heads, [*rows, paper])


def listed(cases: Sequence[Case]) -> str:
    """Return the table of all cases with their times."""
    times = (*LIBRARY, "P² ring", "P² tree", PROGRAM, SEARCHED, WITHIN, RELAYED, SEARCHED_RELAYED, FREE)

    def against(case: Case, contest: Contest) -> str:
        """Return the gain of a contest that is won, otherwise the verdict."""
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
        "machine: first group", "levels", "pairs", *times, "searched / program", "best / bound",
        "program against the better single all-reduce",
        "program, relays, against ring", "program's steps", "search method",
    )  # fmt: skip
    return grid(heads, rows)


def large() -> str:
    """Describe how long the ranking of all programs of all matrices and requests takes on many devices."""
    cpu, wall = time.process_time(), time.monotonic()
    topology = load(LARGE)
    levels = find_levels(topology)
    axes = parse_axes(LARGE_AXES, levels)
    all_matrices = list(matrices(axes, levels))
    nrequests = programs = 0
    for matrix in all_matrices:
        for count in range(1, len(axes) + 1):
            for over in itertools.combinations(range(len(axes)), count):
                hierarchy = synthesis_hierarchy(REDUCTION, levels, axes, matrix, over)
                request = reduction(topology, reduction_groups(levels, matrix, over).tolist(), float(1 << 30))
                step_sequences = sequences(hierarchy)
                ranked(step_sequences, StepCosts(request, hierarchy))
                nrequests, programs = nrequests + 1, programs + len(step_sequences)
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    reached = "reached" if wall <= LARGE_S else "not reached"
    return (
        f"{LARGE} ({topology.nranks} devices), {LARGE_AXES}: {len(all_matrices)} matrices, {nrequests} requests,"
        f" {programs} programs of up to five steps, ranked by the load on the network's resources: {cpu:.1f} s of CPU,"
        f" {wall:.1f} s of wall time. The goal of {LARGE_S:.0f} s is {reached}."
    )


def main() -> None:
    """Measure all cases, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=6.0, help="seconds for each request")
    parser.add_argument("--every", type=int, default=1, help="every N-th request only")
    parser.add_argument("--only", nargs="*", default=list(MACHINES), choices=list(MACHINES))
    options = parser.parse_args()
    with Workers() as workers:
        cases = [
            case
            for name, nodes in itertools.product(options.only, NODES)
            for case in measured(name, nodes, options.every, options.budget, workers)
        ]
    worse = [
        case
        for case in cases
        if case.took[SEARCHED] > 1.02 * case.took[PROGRAM] or case.took[SEARCHED_RELAYED] > 1.02 * case.took[RELAYED]
    ]
    gaps = [min(c.took[PROGRAM], c.took[SEARCHED]) / c.took[WITHIN] for c in cases]
    sampled = "All requests" if options.every == 1 else f"Every {options.every}th request"
    parts = [
        f"{sampled}, up to permutations of nodes and of GPUs behind one switch: {options.budget:g} s each, and"
        f" {RELAYED_TIMES * options.budget:g} s more with relays. A pair is a parallelism matrix of one to three axes"
        " with a set of axes to reduce over. A request has 2²⁹ float32 for each node. These rates are assumed, since"
        f" the paper's figures are not at hand: {SWITCH_GBS:g} GB/s a GPU at the NVSwitch, {RING_GBS:g} GB/s to"
        f" either neighbour on the ring of V100 and {PCIE_GBS:g} GB/s over PCIe elsewhere, one NIC of {NIC_GBS:g}"
        f" GB/s a node, α {NIC_US:g} µs between nodes. One simulator gives all times. Single all-reduces are rings"
        " (as many as the links carry) and double binary trees in all groups concurrently; they forward within their"
        " groups only.",
        summary(cases),
        "P²'s abstract counts pairs of a placement and a requested reduction in which a synthesised program is faster"
        " than the default all-reduce, measured on two systems, by any gain. It does not state which pairs it ran."
        " Its steps are NCCL's collectives with a barrier after each, as in the first three rows. The other rows join"
        " the steps without barriers and may search their schedules. A program has at least two steps (the all-reduce"
        " in one step, with a schedule of ours, is the searched schedule). A program wins if the single all-reduce"
        f" takes more than {WORTH} times as long. It is proved that none wins if the single all-reduce is within"
        f" {WORTH} of the bound on every algorithm under the same rule for relays.",
        "On two nodes a ring of k ranks sends 2 (k - 1) / k of the data through each NIC, and any algorithm sends all"
        " of it at least once. If the NICs are the bottleneck, no program gains a factor of 2 over the ring."
        " Requests cannot gain if their groups are behind an NVSwitch, are the node's ring itself, or have"
        " one rank a node. GPUs that are not neighbours on the ring of V100 gain if other ranks relay (`--relay"
        " all`), because their own path is PCIe.",
        f"Searched schedules take over 2 % longer than the best program, with or without relays, in {len(worse)} of"
        f" {len(cases)} cases (the search begins with the programs). Best time / bound: median"
        f" {statistics.median(gaps):.3f}, largest {max(gaps):.3f}.",
        "## Synthesis on many devices",
        large(),
        "## Cases",
        "Times are in ms. P² ring and P² tree: the best sequence of NCCL's collectives with barriers, by our"
        " simulator.",
        listed(cases),
    ]
    write(__file__, page(__file__, "Reduction programs", parts))


if __name__ == "__main__":
    main()
