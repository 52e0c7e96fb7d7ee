"""Whole chunks on trees, from fractions, and the sends of these chunks."""

from __future__ import annotations

import numpy as np

from synth.engines.flow.csr_network import csr_network
from synth.engines.flow.ordering import OrderedSends
from synth.engines.flow.tree_sends import tree_sends
from synth.engines.flow.trees import Csr
from synth.engines.steiner.packing import Packing, SteinerTrees
from synth.model.collective import Floats, Ints, chunks_of_chunks
from synth.model.problem import Problem
from topologies.arrays import pointers

_STEEP = 256  # power of loads whose sum is minimised: the busiest resources count, and their number
_GAIN = 1 - 1e-9


def chunks_of_demands(packing: Packing, problem: Problem) -> list[Ints]:
    """Return the chunks of each demand of a packing in its problem after a cut, the first part of each chunk first.

    So each chunk is spread over the trees of its demand.
    """
    return [
        chunks_of_chunks(packing.problem.collective, problem.collective, demand.chunks) for demand in packing.demands
    ]


def shared_out(packing: Packing, chunks: list[Ints], swaps: int) -> list[Ints]:
    """Return for each demand the tree of each of its chunks, so that loads are even.

    The whole parts of the fractions come first. Then each remaining chunk takes the tree that adds least. Then chunks
    swap trees as long as that makes the busiest resource less busy.

    Args:
        packing: The packing, with the fraction of each tree.
        chunks: Chunks of each demand (see `chunks_of_demands`).
        swaps: Most swaps.

    Returns:
        For each demand the numbers of trees in the packing, int, shape (chunks of the demand,); equal ones are spread
        evenly.
    """
    used = np.flatnonzero(packing.part > 1e-9)
    owner = np.array([packing.trees[i].demand for i in used.tolist()])
    units = np.array([len(chunks_of_demand) for chunks_of_demand in chunks])
    weight = np.array([d.amount for d in packing.demands]) / units  # of a chunk of each demand
    loads = packing.rates(used) * weight[owner][:, None]
    count = np.floor(packing.part[used] / weight[owner] + 1e-9).astype(np.int64)
    count = np.minimum(count, units[owner])  # Solvers may return fractions that do not add up.
    for demand in range(len(units)):
        trees_of_demand = np.flatnonzero(owner == demand)
        while count[trees_of_demand].sum() > units[demand]:
            count[trees_of_demand[count[trees_of_demand].argmax()]] -= 1
        total = count @ loads
        for _ in range(int(units[demand] - count[trees_of_demand].sum())):
            least_tree = trees_of_demand[_steepness(totals := total + loads[trees_of_demand], totals.max()).argmin()]
            count[least_tree] += 1
            total = total + loads[least_tree]
    _swap(count, owner, loads, swaps)
    return [_interleave(used[owner == demand], count[owner == demand]) for demand in range(len(units))]


def _steepness(totals: Floats, high: float) -> Floats:
    """Return the sum of (load / high) ** 256 over the last axis of `totals`, inf where it overflows.

    It is large where the busiest resources are busy; loads below 0 count as 0.
    """
    with np.errstate(over="ignore"):  # Much larger loads may overflow to infinity.
        return np.asarray(((np.maximum(totals, 0.0) / high) ** _STEEP).sum(axis=-1))


def _swap(count: Ints, owner: Ints, loads: Floats, most: int) -> None:
    """Assign chunks of trees over the busiest resource to other trees of their demand, while loads become more even.

    Args:
        count: Chunks of each tree, which changes.
        owner: Demand of each tree.
        loads: Load of a chunk of each tree on each resource, shape (trees, resources).
        most: Most swaps.
    """
    total = count @ loads
    for _ in range(most):
        busiest = int(total.argmax())
        candidates = np.flatnonzero((count > 0) & (loads[:, busiest] > 0))
        pairs = [
            (i, j)
            for i in candidates.tolist()
            for j in np.flatnonzero((owner == owner[i]) & (loads[:, busiest] < loads[i, busiest])).tolist()
        ]
        if not pairs:
            return
        source, target = np.array(pairs).T
        totals = total - loads[source] + loads[target]
        cost = _steepness(totals, total.max())
        best = int(cost.argmin())
        if not cost[best] < _steepness(total, total.max()) * _GAIN:
            return
        count[source[best]] -= 1
        count[target[best]] += 1
        total = totals[best]


def _interleave(trees: Ints, count: Ints) -> Ints:
    """Return each tree as often as counted, evenly spread."""
    row = np.repeat(np.arange(len(trees)), count)
    first = np.cumsum(count) - count
    place = (np.arange(len(row)) - first[row] + 0.5) / count[row]
    return np.asarray(trees[row[np.argsort(place, kind="stable")]])


def sends_of(
    packing: Packing, problem: Problem, chunks: list[Ints], size_bytes: float, chosen: list[Ints],
    begun: list[list[Floats]] | None = None,
) -> tuple[OrderedSends, Floats]:  # fmt: skip
    """Return the sends of a problem over the trees chosen for its chunks, and the time at which each send is to begin.

    Args:
        packing: The packing, whose demands are the problem's.
        problem: The problem, with its chunks cut into parts.
        chunks: Chunks of each demand (see `chunks_of_demands`).
        size_bytes: Message size in bytes.
        chosen: For each demand the number of the tree of each of its chunks.
        begun: For each demand, chunk and link of its trees the time in µs at which the link begins; None for 0.

    Returns:
        The sends, and the times in µs in the same order, float, shape (sends,).
    """
    trees_of: list[SteinerTrees | None] = [None] * problem.collective.nchunks
    begins_of: list[Floats | None] = [None] * len(trees_of)
    total = np.zeros(len(packing.capacity))
    for place, (demand, own_chunks, tree_of) in enumerate(zip(packing.demands, chunks, chosen, strict=True)):
        total += packing.loads[tree_of].sum(axis=0) * demand.amount / len(own_chunks)
        for i, (chunk, number) in enumerate(zip(own_chunks.tolist(), tree_of.tolist(), strict=True)):
            trees_of[chunk] = packing.trees[number]
            begins_of[chunk] = None if begun is None else begun[place][i]
    # A tree up grows from its root against the links, thus from its last link on.
    up = _by_chunk([trees.up[::-1] if trees else () for trees in trees_of])
    between = _by_chunk([trees.exchange if trees else () for trees in trees_of])
    down = _by_chunk([trees.down if trees else () for trees in trees_of])
    csr = csr_network(problem.network)
    sends = tree_sends(packing.run, csr, up, down, between)
    busiest_us = float(total.max()) * size_bytes
    ordered = OrderedSends(problem, size_bytes, sends, packing.run, csr, busiest_us)
    if begun is None:
        return ordered, np.zeros(len(sends.link))
    begins = [
        np.split(at_us, [len(trees.up), len(trees.up) + len(trees.exchange)])
        for trees, at_us in zip(trees_of, begins_of, strict=True)
        if trees is not None and at_us is not None
    ]
    ups, betweens, downs = zip(*begins, strict=True)
    return ordered, np.concatenate([*(at_us[::-1] for at_us in ups), *betweens, *downs])


def _by_chunk(links_of_chunk: list[tuple[int, ...]]) -> Csr:
    """Return a table of the links of every chunk."""
    links = [link for links in links_of_chunk for link in links]
    return pointers(np.array([len(links) for links in links_of_chunk])), np.array(links, dtype=np.int64)
