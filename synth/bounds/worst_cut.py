"""The worst of all cuts, over sets of ranks, switches and limits, in whole numbers (ForestColl, arXiv 2402.06787, §4).

What a rank wants of the others must flow to it. The least time in which it can is a ratio of what must cross a cut to
what crosses it in a µs; Dinkelbach's iteration (1967) finds the cut in a few maximum flows: at the ratio of the worst
cut so far either everything arrives, which refutes all worse ones, or the least cut is worse. Bandwidths and shares are
taken as the decimal fractions that they are written as, and scaled to whole numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from synth.bounds.cut_candidates import physical_links
from synth.bounds.max_flow import max_flow, residual
from synth.bounds.resource_cover import gbs_by_end
from synth.bounds.witness import whole_network
from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import choose_runner
from synth.model.problem import Problem
from synth.model.registry import OWN, PAIR
from synth.model.requirements import find_requirements, sum_by
from topologies.arrays import index_among, marked
from topologies.symmetry.translations import elements

_WHOLE = 1 << 30  # what all capacities, and all shares, are together at most, so that products fit in 62 bits
_STEP_S = 2e-6  # that the interpreter takes for an arc


@dataclass(frozen=True, eq=False)
class WorstCut:
    """A cut, and what it says.

    Attributes:
        inside: bool, shape (local ranks,): the sending side.
        resources: of the network (of a quotient problem the whole's) that all links out of it use one of.
        us_per_byte: that a byte of the message takes at least.
    """

    inside: Bools
    resources: Ints
    us_per_byte: Fraction


@dataclass(frozen=True, eq=False)
class WorstCuts:
    """Each cut worse than the one before.

    Attributes:
        exact: in whole numbers, and no cut of any set of ranks, switches and limits is worse than the last of them.
            False: the search ended before, shares or bandwidths were rounded, or ranks want different things (then
            a cut may keep more from several of them together).
    """

    found: tuple[WorstCut, ...]
    exact: bool


def written(value: float) -> Fraction:
    """A number as the fraction that its shortest decimal says, or the ratio of small numbers that it was rounded from.

    1/3 for 0.3333333333333333, 468/10 for 46.8.
    """
    near = Fraction(value).limit_denominator(1 << 16)
    return near if float(near) == value else Fraction(repr(value))


def _scaled(values: Floats, up: bool) -> tuple[Ints, Fraction, bool]:
    """(whole numbers, what 1 of them stands for, exactly) of numbers ≥ 0; else rounded, to at most _WHOLE together."""
    distinct, place = np.unique(values, return_inverse=True)
    exact = [written(value) for value in distinct.tolist()]
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
    """Physical links among the ranks at hand, the switches, and two vertices a limit with an arc of its capacity.

    A link that limits hold leads through each of them, so that what they hold may change places within them: flows are
    at least what links can carry. One more vertex supplies the ranks. Links that no route uses are left out.

    Attributes:
        src, dst: int, shape (arcs,), vertices: local ranks, switches, limits.
        amount: int, shape (arcs,): capacity in units of `unit` GB/s, exactly if `exact`.
        resource: int, shape (arcs,): of the network (of a quotient problem the whole's), which every arc is; -1: none.
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
        for limit in topology.limits:
            held = at[limit.links]
            held = held[held >= 0]
            if limit.name not in last or not len(held):
                continue
            enter, leave = self.nvertices, self.nvertices + 1
            self.nvertices += 2
            arcs.append((enter, leave, last[limit.name]))
            # each link is now one to the limit; what has got through it goes on as far as the link led
            for tail in np.unique(heads[held]).tolist():
                arcs.append((leave, tail, -1))
            heads[held] = enter
        more = np.array(arcs, dtype=np.int64).reshape(-1, 3)
        self.src = np.concatenate([src[used], more[:, 0]])
        self.dst = np.concatenate([heads, more[:, 1]])
        self.resource = np.concatenate([resource, more[:, 2]])
        own, self.unit, self.exact = _scaled(net.capacity_gbs[self.resource[self.resource >= 0]], up=True)
        self.amount = np.full(len(self.src), int(own.sum()) + 1, dtype=np.int64)  # without end
        self.amount[self.resource >= 0] = own


class Demand:
    """Shares of the message that must get from all ranks to one (inward), or from one to the only rank that wants each.

    Attributes:
        targets: ranks that want any, those first that need most a GB/s.
        supply: int, by entry; units of `unit` of the message, exactly if `exact`.
        complete: whether across no cut more must go than one of the targets wants: all want the same.
    """

    def __init__(self, problem: Problem, inward: bool) -> None:
        collective, need = problem.collective, find_requirements(problem.collective)
        self.k = collective.nranks
        holders, goals = collective.holders, collective.goals
        if inward:
            here, (ptr, rank), ends, chunk = need.arrive, holders, goals[1], need.goal_chunk
            only = ~collective.reduces & (need.nhold == 1)
        else:
            here, (ptr, rank), ends, chunk = need.depart, goals, holders[1], need.hold_chunk
            only = need.ngoal == 1
        entries = np.flatnonzero(here & only[chunk])
        entries = entries[np.argsort(ends[entries], kind="stable")]
        chunk = chunk[entries]
        self.other, share = rank[ptr[chunk]], collective.fraction[chunk]
        self.ptr = np.searchsorted(ends[entries], np.arange(self.k + 1))
        total = sum_by(ends[entries], share, self.k)
        net = problem.network
        gbs = gbs_by_end(net, net.dst if inward else net.src, net.nranks)[: self.k]
        wanted = np.flatnonzero(total > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = total[wanted] / gbs[wanted]
        self.targets = wanted[np.argsort(-ratio, kind="stable")]
        shares, self.unit, self.exact = _scaled(collective.fraction, up=False)
        self.supply = shares[chunk]
        moved = np.unique(need.goal_chunk[need.arrive])
        apart = np.bincount(chunk, minlength=collective.nchunks)[moved]  # targets of each chunk
        inside = marked(self.k, wanted)[rank[ptr[moved]]]  # its other end is a target too
        self.complete = bool(only[moved].all() and (apart == len(wanted) - inside).all())

    def of(self, target: int) -> Ints:
        """What `target` wants of every rank, shape (k,)."""
        these = slice(self.ptr[target], self.ptr[target + 1])
        amount = np.zeros(self.k, dtype=np.int64)
        np.add.at(amount, self.other[these], self.supply[these])
        return amount


class WholeDemand(Demand):
    """The same of the collective that a quotient problem's is a part of, told without its chunks."""

    def __init__(self, problem: Problem, inward: bool) -> None:
        collective = problem.collective
        self.k, kind = collective.nranks, collective.kind
        wants = kind.before == OWN if inward else kind.after == OWN and kind.unit != PAIR
        every = np.arange(self.k if wants else 0)
        place = elements(problem.quotient.translations, every) if problem.quotient is not None else every
        self.targets = every[np.argsort(place, kind="stable")]  # representatives first
        self.unit = Fraction(1, self.k**2 if kind.unit == PAIR else self.k)
        self.exact, self.complete = True, kind.unit != PAIR and bool(wants)

    def of(self, target: int) -> Ints:
        """What `target` wants of every rank, shape (k,)."""
        amount = np.ones(self.k, dtype=np.int64)
        amount[target] = 0
        return amount


def worst_cuts(problem: Problem, most_work: int) -> WorstCuts:
    """Cuts that need more and more, the worst of all sets last.

    For a sum that one rank wants the same holds of the reversed network: what a rank contributes must flow away from
    it. Sums that several want, and values that several hold, are left out.

    Args:
        most_work: arcs and ranks looked at over all flows; the search ends there.
    """
    graph = FlowGraph(problem)
    found: list[WorstCut] = []
    exact, left = False, most_work
    for inward in (True, False):
        demand = Demand(problem, inward) if problem.quotient is None else WholeDemand(problem, inward)
        left = _Search(problem, graph, demand, inward).run(found, left)
        exact |= graph.exact and demand.exact and demand.complete and left >= 0
    return WorstCuts(tuple(found), exact)


class _Search:
    """Dinkelbach's iteration for what must come to every rank, or leave it."""

    def __init__(self, problem: Problem, graph: FlowGraph, demand: Demand, inward: bool) -> None:
        self.graph, self.demand, self.inward, self.n = graph, demand, inward, problem.nranks
        self.src, self.dst = (graph.src, graph.dst) if inward else (graph.dst, graph.src)
        self.unit = demand.unit / graph.unit / 1000  # of ratios, in µs a byte
        giver = np.arange(demand.k)
        ends = np.concatenate([np.full(demand.k, graph.nvertices), self.src]), np.concatenate([giver, self.dst])
        self.run_loop = choose_runner(_STEP_S * 4 * len(ends[0]) * len(demand.targets))
        self.flow = residual(self.run_loop, graph.nvertices + 1, *ends)

    def run(self, found: list[WorstCut], left: int) -> int:
        """Add to what is found; what is left of the work, below 0 where it was not enough."""
        worst = found[-1].us_per_byte / self.unit if found else Fraction(1, _WHOLE)  # no cut has less
        served = np.zeros(self.demand.k, dtype=bool)
        least = np.full(self.demand.k, _WHOLE, dtype=np.int64)  # of what the served want of each other rank
        for target in self.demand.targets.tolist():
            supply = self.demand.of(target)
            # a cut that keeps from this rank more than it may has those on the sending side that are served already,
            # if of what it keeps from this one it keeps as much from them
            beside = served & bool((supply <= least).all())
            while True:
                left -= len(self.src) + self.n
                if left < 0:
                    return left
                near = self._cut_off(supply, beside, target, worst)
                if near is None:
                    break
                crossing = near[self.src] & ~near[self.dst]
                out, sent = int(self.graph.amount[crossing].sum()), int(supply[near[: len(supply)]].sum())
                if not out:
                    return left  # nothing can get there
                worst = Fraction(sent, out)
                resources = np.unique(self.graph.resource[crossing])
                ranks = near[: self.n] if self.inward else ~near[: self.n]
                found.append(WorstCut(ranks, resources, worst * self.unit))
            served[target] = True
            others = np.arange(len(supply)) != target
            least[others] = np.minimum(least[others], supply[others])
        return left

    def _cut_off(self, supply: Ints, beside: Bools, target: int, worst: Fraction) -> Bools | None:
        """The near side of a least cut that keeps some supply from the target in this time; None if none does."""
        enough = int(supply.sum()) * worst.denominator
        given = np.where(beside, enough, supply * worst.denominator)
        capacity = np.concatenate([given, self.graph.amount * worst.numerator])
        flow, near = max_flow(self.run_loop, self.flow, capacity, self.graph.nvertices, target, enough)
        return near[:-1] if flow < enough else None
