"""Cuts: what must leave a set of ranks over the capacity of its links, the worst of them by max-flow; and parts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from synth.bounds.cut_candidates import candidates, node_sets, physical_links
from synth.bounds.resource_cover import cover, gbs_by_end
from synth.bounds.search import Search
from synth.bounds.witness import Witness
from synth.model.collective import Bools, Floats, Ints
from synth.model.problem import Problem
from synth.model.requirements import find_requirements, sum_by
from topologies.arrays import marked, segment_sums

_WHOLE = 1 << 29  # what all supplies together are in SciPy's whole numbers (32 bits)


def find_cuts(search: Search) -> Iterator[Witness]:
    """Single ranks and nodes, and the best of many other sets by an estimate."""
    for inside in candidates(search.problem, search.traffic, search.tuning):
        yield from _cut(search, inside)


def find_worst_cuts(search: Search) -> Iterator[Witness]:
    """The worst of all sets by max-flow (ForestColl, section 4), each worse than the one before."""
    start = max((w.per_byte_us for w in search.found if w.kind == "cut"), default=0.0)
    for inside, crossed in worst_cuts(search.problem, start, search.tuning.max_flow_work):
        yield from _cut(search, inside, crossed)


def _cut(search: Search, inside: Bools, crossed: Ints | None = None) -> Iterator[Witness]:
    """The cut around a set of ranks. `crossed`: resources of which all links out of it may be known to use one."""
    net = search.problem.network
    links = np.flatnonzero(inside[net.src] & ~inside[net.dst])
    if not len(links):
        return
    resources = cover(net, links)
    if crossed is not None and segment_sums(marked(net.nresources, crossed)[net.uses_idx], net.uses_ptr)[links].all():
        resources = min(resources, crossed, key=lambda r: float(net.capacity_gbs[r].sum()))
    inward = 2 * int(inside.sum()) > net.nranks
    smaller = search.name_ranks(np.flatnonzero(~inside if inward else inside))
    text = f"cut {smaller}{' inward' if inward else ''}"
    yield search.claim("cut", text, resources, np.flatnonzero(inside))


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
        index = {name: i for i, name in reversed(list(enumerate(net.resource_names)))}
        ends = zip(topology.link_src[link].tolist(), topology.link_dst[link].tolist(), strict=True)
        names = [f"{topology.vertex_name(u)}→{topology.vertex_name(v)}" for u, v in ends]
        self.resource = np.array([index.get(name, -1) for name in names], dtype=np.int64)

    def crossing(self, near: Bools) -> Bools:
        """Links that leave a set of vertices."""
        return near[self.src] & ~near[self.dst]

    def cut_off(self, supply: Floats, target: int, us_per_byte: float) -> Bools | None:
        """The near side of a minimum cut that keeps some supply from the target in this time; None if none does.

        In whole numbers, supplies rounded down and capacities up: a cut that is worse by rounding only is missed.
        """
        from scipy.sparse import csgraph, csr_array  # starts slowly

        scale = _WHOLE / supply.sum()
        givers = np.flatnonzero(supply)
        given = np.floor(supply[givers] * scale)
        through = np.minimum(np.ceil(self.gbs * (us_per_byte * 1e3 * scale)), _WHOLE)
        source = self.nvertices
        ends = np.concatenate([np.full(len(givers), source), self.src]), np.concatenate([givers, self.dst])
        amount = np.concatenate([given, through]).astype(np.int32)
        graph = csr_array((amount, ends), shape=(source + 1, source + 1))
        answer = csgraph.maximum_flow(graph, source, target)
        if answer.flow_value >= given.sum():
            return None
        left = graph - answer.flow
        left.eliminate_zeros()
        return marked(source + 1, csgraph.breadth_first_order(left, source, return_predecessors=False))[:source]


def find_parts(search: Search) -> Iterator[Witness]:
    """Of an allreduce, or several, which needs 2(k-1) sends of a chunk between the k parts that it is in.

    Parts are nodes, what wide links join, ranks.
    """
    problem, collective = search.problem, search.problem.collective
    same = collective.reduces.all() and np.array_equal(collective.pre, collective.post)
    if not (same and collective.nranks > 1):
        return
    nodes = [np.flatnonzero(flags).tolist() for flags in node_sets(problem)]
    singles = [[rank] for rank in range(collective.nranks)]
    for parts in (nodes, *_joined_by_width(search), singles):
        yield from _parts(search, parts)


def _joined_by_width(search: Search) -> Iterator[list[list[int]]]:
    """Ranks that wide links join, for every bandwidth that links have: what is between the parts is narrow."""
    net = search.problem.network
    widths = np.unique(net.bandwidth_gbs)[::-1]
    if len(widths) > search.tuning.widths:
        widths = widths[np.linspace(0, len(widths) - 1, search.tuning.widths).astype(np.int64)]
    for width in widths:
        part = np.arange(net.nranks)
        wide = net.bandwidth_gbs >= width
        while True:
            low = part.copy()
            np.minimum.at(low, net.dst[wide], part[net.src[wide]])
            np.minimum.at(low, net.src[wide], part[net.dst[wide]])
            if np.array_equal(low, part):
                break
            part = low
        order = np.argsort(part, kind="stable")
        yield [p.tolist() for p in np.split(order, np.flatnonzero(np.diff(part[order])) + 1)]


def _parts(search: Search, parts: list[list[int]]) -> Iterator[Witness]:
    """The claim of some parts; relays join the part of a member of their node, or the first."""
    problem, net = search.problem, search.problem.network
    parts = [list(part) for part in parts if min(part) < problem.collective.nranks]
    if len(parts) < 2:
        return
    node = problem.topology.nodes[np.array(problem.ranks)]
    for rank in sorted(set(range(net.nranks)) - {r for part in parts for r in part}):
        home = next((p for p in parts if node[p[0]] == node[rank]), parts[0])
        home.append(rank)
    side = np.empty(net.nranks, dtype=np.int64)
    for i, part in enumerate(parts):
        side[part] = i
    pre = problem.collective.pre
    places = np.unique(pre[:, 1] * len(parts) + side[pre[:, 0]]) // len(parts)
    sends = 2 * (np.bincount(places) - 1)
    if not sends.any():
        return  # each chunk stays in a part
    resources = cover(net, np.flatnonzero(side[net.src] != side[net.dst]))
    few, many = int(sends.min()), int(sends.max())
    text = f"{len(parts)} parts, {many if few == many else f'{few} to {many}'} sends a byte"
    yield search.claim("parts", text, resources, parts=tuple(tuple(sorted(part)) for part in parts))
