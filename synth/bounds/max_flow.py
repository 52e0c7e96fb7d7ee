"""The worst cut by max-flow (ForestColl, section 4.2), as sets of local ranks."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from synth.bounds.cut_candidates import physical_links
from synth.bounds.resource_cover import gbs_by_end
from synth.model.collective import Bools, Floats, Ints
from synth.model.problem import Problem
from synth.model.requirements import find_requirements, sum_by

_WHOLE = 1 << 29  # what all supplies together are in SciPy's whole numbers (32 bits)


def worst_cuts(problem: Problem, start_us_per_byte: float, most_work: int) -> list[tuple[Bools, Ints]]:
    """Cuts that need more µs per byte than `start_us_per_byte`, worst last: sending side, and what crosses it.

    For each rank v: the bytes that v wants of each other rank are to flow to v in time t; if they cannot, the
    minimum cut is a worse one and gives the next t (Dinkelbach's iteration), until every rank is served or so many
    flows have been tried. Ranks of little capacity come first. What only one rank wants is the same on the reversed
    network: what a rank holds of it, or contributes to it, must flow away from it.

    Returns:
        Flags of local ranks, and the network's resources that the links out of them are.
    """
    found: list[tuple[Bools, Ints]] = []
    us_per_byte = max(start_us_per_byte, 1e-12)
    work = 0
    for inward in (True, False):
        demand = _Demand(problem, inward)
        if not len(demand.targets):
            continue
        graph = _FlowGraph(problem, inward)
        for target in demand.targets.tolist():
            supply = demand.of(target)
            while work < most_work:
                work += len(graph.gbs) + problem.nranks
                near = graph.cut_off(supply, target, us_per_byte)
                if near is None:
                    break
                crossing = graph.crossing(near)
                out = float(graph.gbs[crossing].sum())
                sent = float(supply[near[: len(supply)]].sum())
                if out <= 0 or sent / out / 1e3 <= us_per_byte * (1 + 1e-12):
                    break
                us_per_byte = sent / out / 1e3
                ranks = near[: problem.nranks]
                used = graph.resource[crossing]
                found.append((ranks if inward else ~ranks, np.unique(used[used >= 0])))
    return found


class _Demand:
    """Shares of the message that must get from all ranks to one (inward), or from one to the only rank that wants each.

    Attributes:
        targets: ranks that want any, those first that need most a GB/s.
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
        self.other, self.share = rank[ptr[chunk]], collective.fraction[chunk]
        self.ptr = np.searchsorted(ends[entries], np.arange(self.k + 1))
        total = sum_by(ends[entries], self.share, self.k)
        net = problem.network
        gbs = gbs_by_end(net, net.dst if inward else net.src, net.nranks)[: self.k]
        wanted = np.flatnonzero(total > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = total[wanted] / gbs[wanted]
        self.targets = wanted[np.argsort(-ratio, kind="stable")]

    def of(self, target: int) -> Floats:
        """What `target` wants of every rank, shape (k,)."""
        these = slice(self.ptr[target], self.ptr[target + 1])
        return sum_by(self.other[these], self.share[these], self.k)


class _FlowGraph:
    """Physical links among the ranks at hand and the switches; one more vertex supplies the ranks.

    Attributes:
        gbs: GB/s of every link.
        resource: the network's resource that every link is, -1 where no route uses it.
    """

    def __init__(self, problem: Problem, inward: bool) -> None:
        topology, net = problem.topology, problem.network
        link, src, dst = physical_links(problem)
        self.src, self.dst = (src, dst) if inward else (dst, src)
        self.gbs, self.nvertices = topology.bandwidth_gbs[link], problem.nranks + len(topology.switches)
        names = [str(r) for r in range(topology.nranks)] + list(topology.switches)
        index = {name: i for i, name in reversed(list(enumerate(net.resource_names)))}
        ends = zip(topology.link_src[link].tolist(), topology.link_dst[link].tolist(), strict=True)
        self.resource = np.array([index.get(f"{names[u]}→{names[v]}", -1) for u, v in ends], dtype=np.int64)

    def crossing(self, near: Bools) -> Bools:
        """Links that leave a set of vertices."""
        return near[self.src] & ~near[self.dst]

    def cut_off(self, supply: Floats, target: int, us_per_byte: float) -> Bools | None:
        """The near side of a minimum cut that keeps some supply from the target in this time; None if none does.

        In whole numbers, supplies rounded down and capacities up: a cut that is worse by rounding only is missed.
        """
        scale = _WHOLE / supply.sum()
        givers = np.flatnonzero(supply)
        given = np.floor(supply[givers] * scale)
        through = np.minimum(np.ceil(self.gbs * (us_per_byte * 1e3 * scale)), _WHOLE)
        source = self.nvertices
        src = np.concatenate([np.full(len(givers), source), self.src])
        dst = np.concatenate([givers, self.dst])
        size = (source + 1, source + 1)
        graph = csr_array((np.concatenate([given, through]).astype(np.int32), (src, dst)), shape=size)
        answer = maximum_flow(graph, source, target)
        if answer.flow_value >= given.sum():
            return None
        left = graph - answer.flow
        left.eliminate_zeros()
        near = np.zeros(source + 1, dtype=bool)
        near[breadth_first_order(left, source, return_predecessors=False)] = True
        return near[:source]
