"""Whole chunks on trees, from fractions, and the sends of these chunks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.engines.flow.csr_network import csr_network
from synth.engines.flow.ordering import OrderedSends
from synth.engines.steiner.packing import Packing, SteinerTrees
from synth.model.collective import Floats, Ints
from synth.model.problem import Problem
from topologies.network import Network

_STEEP = 256  # power of loads whose sum is minimised: the busiest resources count, and their number
_GAIN = 1 - 1e-9


def shared_out(packing: Packing, parts: int, swaps: int) -> list[Ints]:
    """Return for each demand the tree of each of its chunks, so that loads are even.

    The whole parts of the fractions come first. Then each remaining chunk takes the tree that adds least. Then chunks
    swap trees as long as that makes the busiest resource less busy.

    Args:
        packing: The packing, with the fraction of each tree.
        parts: Parts into which each chunk is cut.
        swaps: Most swaps.
    """
    used = np.flatnonzero(packing.part > 1e-9)
    owner = np.array([packing.trees[i].demand for i in used.tolist()])
    units = np.array([len(d.chunks) * parts for d in packing.demands])
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
    """Return how uneven loads are, relative to a high load; shape of `totals` without its last axis."""
    with np.errstate(over="ignore"):  # Much larger loads may overflow to infinity.
        return np.asarray(((np.maximum(totals, 0.0) / high) ** _STEEP).sum(axis=-1))


def _swap(count: Ints, owner: Ints, loads: Floats, most: int) -> None:
    """Assign chunks of trees over the busiest resource to other trees of their demand, while loads become more even."""
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


@dataclass(frozen=True, eq=False)
class _Pattern:
    """The sends of one chunk over its trees, and their dependencies.

    Attributes:
        link: Link of each send, int, shape (sends,).
        step: Step of each send, int, shape (sends,).
        reduces: 1 for each send that reduces, int, shape (sends,).
        before: The earlier send of each dependency, int, shape (waits,).
        after: The later send of each dependency, int, shape (waits,).
    """

    link: Ints
    step: Ints
    reduces: Ints
    before: Ints
    after: Ints


def _pattern(net: Network, trees: SteinerTrees) -> _Pattern:
    """Return the sends of one chunk over trees, first up, then between the roots, then down."""
    rows: list[tuple[int, bool]] = []
    waits: list[tuple[int, int]] = []
    inputs_of: dict[int, list[int]] = {}
    step_at: dict[int, int] = {}
    for i, link in enumerate(trees.up):
        u, v = int(net.src[link]), int(net.dst[link])
        waits += [(j, i) for j in inputs_of.get(u, ())]
        rows.append((step_at.get(u, 0), True))
        step_at[v] = max(step_at.get(v, 0), step_at.get(u, 0) + 1)
        inputs_of.setdefault(v, []).append(i)
    exchange_step = max((step_at.get(root, 0) for root in trees.roots), default=0)
    inputs_of = {root: inputs_of.get(root, []) for root in trees.roots}
    # Both sends have one step, so that no root sends back what it gets.
    waits += [(j, i) for i, link in enumerate(trees.exchange, len(rows)) for j in inputs_of[int(net.src[link])]]
    for link in trees.exchange:
        inputs_of[int(net.dst[link])] = [*inputs_of[int(net.dst[link])], len(rows)]
        rows.append((exchange_step, True))
    step_at = dict.fromkeys(trees.roots, exchange_step + bool(trees.exchange))
    for i, link in enumerate(trees.down, len(rows)):
        u, v = int(net.src[link]), int(net.dst[link])
        waits += [(j, i) for j in inputs_of[u]]
        rows.append((step_at[u], False))
        step_at[v], inputs_of[v] = step_at[u] + 1, [i]
    before, after = np.array(waits, dtype=np.int64).reshape(-1, 2).T
    step, reduces = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return _Pattern(np.array(trees.links, dtype=np.int64), step, reduces, before, after)


def sends_of(
    packing: Packing, problem: Problem, parts: int, size_bytes: float, chosen: list[Ints],
    begun: list[list[Floats]] | None = None,
) -> tuple[OrderedSends, Floats]:  # fmt: skip
    """Return the sends of a problem over the trees chosen for its chunks, and the time at which each send is to begin.

    Args:
        packing: The packing, whose demands are the problem's.
        problem: The problem, with its chunks cut into parts.
        parts: Parts of each chunk.
        size_bytes: Message size in bytes.
        chosen: For each demand the tree of each of its chunks.
        begun: For each demand, chunk and link of its trees the time in µs at which the link begins; None for 0.
    """
    net, run = problem.network, packing.run
    csr = csr_network(net)
    patterns: dict[int, _Pattern] = {}
    columns: list[list[Ints]] = [[] for _ in range(6)]
    begins: list[Floats] = []
    nsends, total = 0, np.zeros(len(packing.capacity))
    for place, (demand, tree_of) in enumerate(zip(packing.demands, chosen, strict=True)):
        # Part i of every chunk of the demand comes before part i + 1, so that each chunk is spread over the trees.
        chunks = (demand.chunks[None, :] * parts + np.arange(parts)[:, None]).ravel()
        for number in np.unique(tree_of).tolist():
            if number not in patterns:
                patterns[number] = _pattern(net, packing.trees[number])
            pattern, tree_chunks = patterns[number], chunks[tree_of == number]
            first = nsends + np.arange(len(tree_chunks))[:, None] * len(pattern.link)
            total += packing.loads[number] * len(tree_chunks) * demand.amount / len(chunks)
            for column, values in zip(
                columns,
                (
                    np.repeat(tree_chunks, len(pattern.link)),
                    np.tile(pattern.link, len(tree_chunks)), np.tile(pattern.step, len(tree_chunks)),
                    np.tile(pattern.reduces, len(tree_chunks)),
                    (first + pattern.before).ravel(), (first + pattern.after).ravel(),
                ),
                strict=True,
            ):  # fmt: skip
                column.append(values)
            starts_us = [] if begun is None else [begun[place][i] for i in np.flatnonzero(tree_of == number).tolist()]
            begins.append(np.concatenate(starts_us) if starts_us else np.zeros(len(tree_chunks) * len(pattern.link)))
            nsends += len(tree_chunks) * len(pattern.link)
    chunk, link, step, reduces, before, after = (np.concatenate(column) for column in columns)
    kilobytes = problem.collective.chunk_bytes(size_bytes) * 1e-3
    busiest_us = float(total.max()) * size_bytes
    sends = OrderedSends(
        problem, csr, run.table(csr), run, kilobytes, chunk, link, step, reduces.astype(bool), before, after, busiest_us
    )
    return sends, np.concatenate(begins)
