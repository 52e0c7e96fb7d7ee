"""The worst of all cuts over sets of ranks, switches and limits, in whole numbers (ForestColl, arXiv 2402.06787, §4).

What a rank wants from the others must flow to it. The least time for that is the ratio of what must cross a cut to what
can cross it in a µs. Dinkelbach's iteration (1967) finds the worst cut in a few maximum flows: at the ratio of the
worst cut so far, either everything arrives, which refutes all worse cuts, or the least cut is worse. Bandwidths and
shares are taken as the decimal fractions that they are written as, and scaled to whole numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from synth.bounds.cuts.cut_candidates import physical_links
from synth.bounds.cuts.max_flow import max_flow, residual
from synth.bounds.resource_cover import gbs_by_end
from synth.bounds.witness import whole_network
from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import choose_runner
from synth.model.problem import Problem
from synth.model.registry import OWN, PAIR
from synth.model.requirements import find_requirements, sum_by
from topologies.arrays import flags_of, index_among
from topologies.symmetry.translations import element_of_rank

_WHOLE = 1 << 30  # largest sum of all capacities, and of all shares, so that products fit in 62 bits
_STEP_S = 2e-6  # s that the interpreter takes for an arc


@dataclass(frozen=True, eq=False)
class WorstCut:
    """A cut and the time per byte that it proves.

    Attributes:
        inside: The sending side, bool, shape (local ranks,).
        resources: Resources of the network (of the whole network for a quotient problem) of which all links out of the
            sending side use one.
        us_per_byte: Least time in µs per byte of the message.
    """

    inside: Bools
    resources: Ints
    us_per_byte: Fraction


@dataclass(frozen=True, eq=False)
class WorstCuts:
    """Cuts, each worse than the one before.

    Attributes:
        cuts: The cuts.
        exact: True if the numbers are exact and no cut of any set of ranks, switches and limits is worse than the last
            one. False: the search ended early, shares or bandwidths were rounded, or ranks want different things (then
            a cut may keep more from several of them).
    """

    cuts: tuple[WorstCut, ...]
    exact: bool


def decimal_fraction(value: float) -> Fraction:
    """Return the fraction that a number's shortest decimal says, or the ratio of small whole numbers behind it.

    It is 1/3 for 0.3333333333333333, 468/10 for 46.8. The ratio is taken if its denominator is at most 2¹⁶ and it is
    the number to the last bit.
    """
    near = Fraction(value).limit_denominator(1 << 16)
    return near if float(near) == value else Fraction(repr(value))


def _scaled(values: Floats, up: bool) -> tuple[Ints, Fraction, bool]:
    """Return whole numbers for numbers ≥ 0, the value of one unit, and whether they are exact.

    Each number counts as its `decimal_fraction`. Numbers whose exact whole numbers would add up to more than 2³⁰ are
    rounded, so that their sum is at most that.

    Args:
        values: The numbers.
        up: Whether to round up; else down.

    Returns:
        The whole numbers, int, in the order of the values; the unit; and True if nothing is rounded.
    """
    distinct, place = np.unique(values, return_inverse=True)
    exact = [decimal_fraction(value) for value in distinct.tolist()]
    unit = Fraction(math.gcd(*(x.numerator for x in exact)) or 1, math.lcm(*(x.denominator for x in exact)))
    whole = [x / unit for x in exact]
    if sum(int(whole[i]) * int(n) for i, n in enumerate(np.bincount(place.ravel()))) <= _WHOLE and all(
        x.denominator == 1 for x in whole
    ):
        return np.array([int(x) for x in whole], dtype=np.int64)[place.ravel()], unit, True
    unit = Fraction(float(values.sum())) / (_WHOLE - len(values))
    rounded = np.ceil(values / float(unit)) if up else np.floor(values / float(unit))
    return rounded.astype(np.int64), unit, False


class FlowGraph:
    """The physical links among the problem's ranks, the switches, and two vertices a limit with an arc of its capacity.

    A link that has limits leads through each of them, and what limits carry may change places within them. So flows are
    at least what links can carry. One more vertex supplies the ranks. Links that no route uses are left out.

    Attributes:
        nvertices: Number of local ranks, switches and vertices of limits.
        src: Start vertex of every arc, int, shape (arcs,).
        dst: End vertex of every arc, int, shape (arcs,).
        amount: Capacity in units of `unit` GB/s, int, shape (arcs,).
        unit: GB/s of one unit of capacity.
        exact: True if the capacities are not rounded and no link has several limits, whose order would matter.
        resource: Resource of the network (of the whole network for a quotient problem) of each arc, int, shape (arcs,);
            -1: none.
    """

    def __init__(self, problem: Problem) -> None:
        topology, net = problem.topology, whole_network(problem)
        link, src, dst = physical_links(problem)
        index = {name: i for i, name in reversed(list(enumerate(net.resource_names)))}
        ends = zip(topology.link_src[link].tolist(), topology.link_dst[link].tolist(), strict=True)
        of_link = [index.get(f"{topology.vertex_name(u)}→{topology.vertex_name(v)}", -1) for u, v in ends]
        used = np.array(of_link, dtype=np.int64) >= 0
        link, heads, arcs = link[used], dst[used].copy(), []
        resource = np.array(of_link, dtype=np.int64)[used]
        at = index_among(topology.nlinks, link)
        self.nvertices = problem.nranks + len(topology.switches)
        last = {name: i for i, name in enumerate(net.resource_names)}
        nlimits = np.zeros(len(link), dtype=np.int64)
        for limit in topology.limits:
            limited = at[limit.links]
            limited = limited[limited >= 0]
            if limit.name not in last or not len(limited):
                continue
            nlimits[limited] += 1
            enter, leave = self.nvertices, self.nvertices + 1
            self.nvertices += 2
            arcs.append((enter, leave, last[limit.name]))
            # Each link now leads to the limit; data goes on from there to the link's end.
            for tail in np.unique(heads[limited]).tolist():
                arcs.append((leave, tail, -1))
            heads[limited] = enter
        more = np.array(arcs, dtype=np.int64).reshape(-1, 3)
        self.src = np.concatenate([src[used], more[:, 0]])
        self.dst = np.concatenate([heads, more[:, 1]])
        self.resource = np.concatenate([resource, more[:, 2]])
        own, self.unit, self.exact = _scaled(net.capacity_gbs[self.resource[self.resource >= 0]], up=True)
        self.exact &= bool(nlimits.max(initial=0) <= 1)
        self.amount = np.full(len(self.src), int(own.sum()) + 1, dtype=np.int64)  # It is as good as unlimited.
        self.amount[self.resource >= 0] = own


class CutDemand:
    """Shares of the message that must get from all ranks to one (inward), or from one to the only rank that wants each.

    Attributes:
        k: Number of ranks of the group.
        targets: Ranks that want anything; those that need most per GB/s come first.
        far_rank: The other rank of each entry, sorted by target.
        ptr: Start of each target's entries.
        supply: Share of each entry, int, in units of `unit` of the message.
        unit: Share of the message of one unit of supply.
        exact: True if the supplies are not rounded.
        complete: True if no cut needs more than what one of the targets wants, since all want the same.
    """

    def __init__(self, problem: Problem, inward: bool) -> None:
        collective, need = problem.collective, find_requirements(problem.collective)
        self.k = collective.nranks
        holders, goals = collective.holders, collective.goals
        if inward:
            moves, (ptr, rank), ends, chunk = need.arrive, holders, goals[1], need.goal_chunk
            only = ~collective.reduces & (need.nhold == 1)
        else:
            moves, (ptr, rank), ends, chunk = need.depart, goals, holders[1], need.hold_chunk
            only = need.ngoal == 1
        entries = np.flatnonzero(moves & only[chunk])
        entries = entries[np.argsort(ends[entries], kind="stable")]
        chunk = chunk[entries]
        self.far_rank, share = rank[ptr[chunk]], collective.fraction[chunk]
        self.ptr = np.searchsorted(ends[entries], np.arange(self.k + 1))
        total = sum_by(ends[entries], share, self.k)
        net = problem.network
        gbs = gbs_by_end(net, net.dst if inward else net.src, net.nranks)[: self.k]
        wanting = np.flatnonzero(total > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = total[wanting] / gbs[wanting]
        self.targets = wanting[np.argsort(-ratio, kind="stable")]
        shares, self.unit, self.exact = _scaled(collective.fraction, up=False)
        self.supply = shares[chunk]
        moved = np.unique(need.goal_chunk[need.arrive])
        apart = np.bincount(chunk, minlength=collective.nchunks)[moved]  # number of targets of each chunk
        inside = flags_of(self.k, wanting)[rank[ptr[moved]]]  # 1 where the chunk's far rank is a target too
        self.complete = bool(only[moved].all() and (apart == len(wanting) - inside).all())

    def supply_for(self, target: int) -> Ints:
        """Return what must get between `target` and every rank of the group, in units of `unit`, int, shape (k,).

        Inward it flows from every rank to the target, else from the target to every rank.
        """
        entries = slice(self.ptr[target], self.ptr[target + 1])
        amount = np.zeros(self.k, dtype=np.int64)
        np.add.at(amount, self.far_rank[entries], self.supply[entries])
        return amount


class WholeDemand(CutDemand):
    """The demand of the whole collective of a quotient problem, from its kind and without its chunks.

    It has no `far_rank`, `ptr` and `supply`. It has no targets where what the collective moves is no demand of this
    direction.
    """

    def __init__(self, problem: Problem, inward: bool) -> None:
        collective = problem.collective
        self.k, kind = collective.nranks, collective.kind
        wants = kind.before == OWN if inward else kind.after == OWN and kind.unit != PAIR
        targets = np.arange(self.k if wants else 0)
        place = element_of_rank(problem.quotient.translations, targets) if problem.quotient is not None else targets
        self.targets = targets[np.argsort(place, kind="stable")]  # representatives of the translations come first
        self.unit = Fraction(1, self.k**2 if kind.unit == PAIR else self.k)
        self.exact, self.complete = True, kind.unit != PAIR and bool(wants)

    def supply_for(self, target: int) -> Ints:
        """Return what must get between `target` and every rank of the group, in units of `unit`, int, shape (k,).

        It is 1 for every rank but the target itself, which has 0.
        """
        amount = np.ones(self.k, dtype=np.int64)
        amount[target] = 0
        return amount


def worst_cuts(problem: Problem, most_work: int) -> WorstCuts:
    """Return cuts, each of which proves more time per byte than the one before.

    The last is the worst of all sets of ranks if the result says that it is `exact`.

    For a sum that one rank wants, the same holds of the reversed network: what a rank contributes must flow away from
    it. Sums that more than one rank wants, and values that more than one holds, are left out.

    Args:
        problem: The problem, or a quotient problem.
        most_work: Most arcs and ranks that all flows look at; the search ends there.
    """
    graph = FlowGraph(problem)
    cuts: list[WorstCut] = []
    exact, work_left = False, most_work
    for inward in (True, False):
        demand = CutDemand(problem, inward) if problem.quotient is None else WholeDemand(problem, inward)
        work_left = _CutSearch(problem, graph, demand, inward).run(cuts, work_left)
        exact |= graph.exact and demand.exact and demand.complete and work_left >= 0
    return WorstCuts(tuple(cuts), exact)


class _CutSearch:
    """Dinkelbach's iteration for what must come to every rank (`inward`), or leave it (then all arcs are reversed)."""

    def __init__(self, problem: Problem, graph: FlowGraph, demand: CutDemand, inward: bool) -> None:
        self.graph, self.demand, self.inward, self.n = graph, demand, inward, problem.nranks
        self.src, self.dst = (graph.src, graph.dst) if inward else (graph.dst, graph.src)
        self.unit = demand.unit / graph.unit / 1000  # µs/byte of a ratio of 1
        giver = np.arange(demand.k)
        ends = np.concatenate([np.full(demand.k, graph.nvertices), self.src]), np.concatenate([giver, self.dst])
        self.run_loop = choose_runner(_STEP_S * 4 * len(ends[0]) * len(demand.targets))
        self.flow = residual(self.run_loop, graph.nvertices + 1, *ends)

    def run(self, cuts: list[WorstCut], work_left: int) -> int:
        """Append cuts to `cuts`, each worse than the one before; return the remaining work, negative if it ran out.

        It ends early where nothing at all can get to a target.
        """
        worst = cuts[-1].us_per_byte / self.unit if cuts else Fraction(1, _WHOLE)  # No cut has a lower ratio.
        served = np.zeros(self.demand.k, dtype=bool)
        least = np.full(
            self.demand.k, _WHOLE, dtype=np.int64
        )  # what every served target wants from each rank, at least
        for target in self.demand.targets.tolist():
            supply = self.demand.supply_for(target)
            # Served targets want at least as much from every rank. No cut at this ratio keeps more from them than it
            # may, so a cut that keeps more from this target has them on the sending side.
            also_near = served & bool((supply <= least).all())
            while True:
                work_left -= len(self.src) + self.n
                if work_left < 0:
                    return work_left
                near_side = self._cut_off(supply, also_near, target, worst)
                if near_side is None:
                    break
                crossing = near_side[self.src] & ~near_side[self.dst]
                out, sent = int(self.graph.amount[crossing].sum()), int(supply[near_side[: len(supply)]].sum())
                if not out:
                    return work_left  # Nothing can get to the target.
                worst = Fraction(sent, out)
                resources = np.unique(self.graph.resource[crossing])
                ranks = near_side[: self.n] if self.inward else ~near_side[: self.n]
                cuts.append(WorstCut(ranks, resources, worst * self.unit))
            served[target] = True
            not_target = np.arange(len(supply)) != target
            least[not_target] = np.minimum(least[not_target], supply[not_target])
        return work_left

    def _cut_off(self, supply: Ints, also_near: Bools, target: int, worst: Fraction) -> Bools | None:
        """Return the near side of a least cut that keeps some supply from the target at this ratio.

        It has flags of the graph's vertices, shape (vertices,). The result is None where all supply gets to the target.

        Args:
            supply: What the target wants from every rank, shape (k,).
            also_near: Flags of the ranks that must be on the near side, shape (k,).
            target: The target.
            worst: Ratio of the worst cut so far, of what must cross to what can, in units.
        """
        enough = int(supply.sum()) * worst.denominator
        supplied = np.where(also_near, enough, supply * worst.denominator)
        capacity = np.concatenate([supplied, self.graph.amount * worst.numerator])
        flow, near = max_flow(self.run_loop, self.flow, capacity, self.graph.nvertices, target, enough)
        return near[:-1] if flow < enough else None
