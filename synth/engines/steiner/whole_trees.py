"""Fractions of trees as whole chunks, and the sends of these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.engines.flow.csr_network import csr_network
from synth.engines.flow.ordering import Sends
from synth.engines.steiner.packing import Packing, Trees
from synth.model.collective import Floats, Ints
from synth.model.problem import Problem
from topologies.network import Network

_STEEP = 256  # the power of loads whose sum is made small: the busiest count, and how many there are
_GAIN = 1 - 1e-9


def shared_out(packing: Packing, parts: int, swaps: int) -> list[Ints]:
    """Of every demand, which tree each of its chunks takes, cut into so many parts, so that loads are even.

    Whole parts of the fractions first, then the rest where it adds least; then one tree for another, as long as that
    makes the busiest resource less busy.
    """
    used = np.flatnonzero(packing.part > 1e-9)
    owner = np.array([packing.trees[i].demand for i in used.tolist()])
    units = np.array([len(d.chunks) * parts for d in packing.demands])
    weight = np.array([d.amount for d in packing.demands]) / units  # of a chunk of each demand
    loads = packing.rates(used) * weight[owner][:, None]
    count = np.floor(packing.part[used] / weight[owner] + 1e-9).astype(np.int64)
    count = np.minimum(count, units[owner])  # solvers may lose what parts are together
    for demand in range(len(units)):
        mine = np.flatnonzero(owner == demand)
        while count[mine].sum() > units[demand]:
            count[mine[count[mine].argmax()]] -= 1
        total = count @ loads
        for _ in range(int(units[demand] - count[mine].sum())):
            one = mine[_steepness(totals := total + loads[mine], totals.max()).argmin()]
            count[one] += 1
            total = total + loads[one]
    _swap(count, owner, loads, swaps)
    return [_interleaved(used[owner == demand], count[owner == demand]) for demand in range(len(units))]


def _steepness(totals: Floats, high: float) -> Floats:
    """How uneven loads are, relative to a high one: shape of `totals` without its last axis."""
    with np.errstate(over="ignore"):  # far busier ones are without end
        return np.asarray(((np.maximum(totals, 0.0) / high) ** _STEEP).sum(axis=-1))


def _swap(count: Ints, owner: Ints, loads: Floats, most: int) -> None:
    """Take chunks off trees over the busiest resource, for others of the same demand, while loads become more even."""
    total = count @ loads
    for _ in range(most):
        busiest = int(total.argmax())
        off = np.flatnonzero((count > 0) & (loads[:, busiest] > 0))
        pairs = [
            (i, j)
            for i in off.tolist()
            for j in np.flatnonzero((owner == owner[i]) & (loads[:, busiest] < loads[i, busiest])).tolist()
        ]
        if not pairs:
            return
        one, other = np.array(pairs).T
        totals = total - loads[one] + loads[other]
        cost = _steepness(totals, total.max())
        best = int(cost.argmin())
        if not cost[best] < _steepness(total, total.max()) * _GAIN:
            return
        count[one[best]] -= 1
        count[other[best]] += 1
        total = totals[best]


def _interleaved(trees: Ints, count: Ints) -> Ints:
    """Each tree as often as counted, evenly spread."""
    row = np.repeat(np.arange(len(trees)), count)
    first = np.cumsum(count) - count
    place = (np.arange(len(row)) - first[row] + 0.5) / count[row]
    return np.asarray(trees[row[np.argsort(place, kind="stable")]])


@dataclass(frozen=True, eq=False)
class _Pattern:
    """The sends of one chunk over its trees, and who waits for whom."""

    link: Ints
    step: Ints
    reduces: Ints
    before: Ints
    after: Ints


def _pattern(net: Network, trees: Trees) -> _Pattern:
    rows: list[tuple[int, bool]] = []
    waits: list[tuple[int, int]] = []
    came: dict[int, list[int]] = {}
    step_at: dict[int, int] = {}
    for i, link in enumerate(trees.up):
        u, v = int(net.src[link]), int(net.dst[link])
        waits += [(j, i) for j in came.get(u, ())]
        rows.append((step_at.get(u, 0), True))
        step_at[v] = max(step_at.get(v, 0), step_at.get(u, 0) + 1)
        came.setdefault(v, []).append(i)
    whole = max((step_at.get(root, 0) for root in trees.roots), default=0)
    came = {root: came.get(root, []) for root in trees.roots}
    # of one step, so that neither sends back what it gets
    waits += [(j, i) for i, link in enumerate(trees.exchange, len(rows)) for j in came[int(net.src[link])]]
    for link in trees.exchange:
        came[int(net.dst[link])] = [*came[int(net.dst[link])], len(rows)]
        rows.append((whole, True))
    step_at = dict.fromkeys(trees.roots, whole + bool(trees.exchange))
    for i, link in enumerate(trees.down, len(rows)):
        u, v = int(net.src[link]), int(net.dst[link])
        waits += [(j, i) for j in came[u]]
        rows.append((step_at[u], False))
        step_at[v], came[v] = step_at[u] + 1, [i]
    before, after = np.array(waits, dtype=np.int64).reshape(-1, 2).T
    step, reduces = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return _Pattern(np.array(trees.links, dtype=np.int64), step, reduces, before, after)


def sends_of(
    packing: Packing, problem: Problem, parts: int, size_bytes: float, chosen: list[Ints],
    begun: list[list[Floats]] | None = None,
) -> tuple[Sends, Floats]:  # fmt: skip
    """The sends of a problem whose chunks are cut into parts, over the trees chosen for them; when each is to begin.

    begun: of each demand's chunks when each link of its trees begins, in µs; None: all at 0.
    """
    net, run = problem.network, packing.run
    csr = csr_network(net)
    patterns: dict[int, _Pattern] = {}
    columns: list[list[Ints]] = [[] for _ in range(6)]
    begins: list[Floats] = []
    at, total = 0, np.zeros(len(packing.capacity))
    for place, (demand, tree_of) in enumerate(zip(packing.demands, chosen, strict=True)):
        # part i of every chunk of the demand, so that each chunk is spread over the trees
        chunks = (demand.chunks[None, :] * parts + np.arange(parts)[:, None]).ravel()
        for number in np.unique(tree_of).tolist():
            if number not in patterns:
                patterns[number] = _pattern(net, packing.trees[number])
            one, mine = patterns[number], chunks[tree_of == number]
            first = at + np.arange(len(mine))[:, None] * len(one.link)
            total += packing.loads[number] * len(mine) * demand.amount / len(chunks)
            for column, values in zip(
                columns,
                (
                    np.repeat(mine, len(one.link)), np.tile(one.link, len(mine)), np.tile(one.step, len(mine)),
                    np.tile(one.reduces, len(mine)), (first + one.before).ravel(), (first + one.after).ravel(),
                ),
                strict=True,
            ):  # fmt: skip
                column.append(values)
            planned = [] if begun is None else [begun[place][i] for i in np.flatnonzero(tree_of == number).tolist()]
            begins.append(np.concatenate(planned) if planned else np.zeros(len(mine) * len(one.link)))
            at += len(mine) * len(one.link)
    chunk, link, step, reduces, before, after = (np.concatenate(column) for column in columns)
    kilobytes = problem.collective.chunk_bytes(size_bytes) * 1e-3
    busiest_us = float(total.max()) * size_bytes
    sends = Sends(
        problem, csr, run.table(csr), run, kilobytes, chunk, link, step, reduces.astype(bool), before, after, busiest_us
    )
    return sends, np.concatenate(begins)
