"""What a collective must carry across sets of ranks, many sets at a time: estimates to find good cuts by.

Witnesses do not stand on this; they are worked out from the problem (`synth.bounds.witness`).
"""

from __future__ import annotations

import numpy as np

from synth.bounds.resource_cover import single_uses
from synth.model.collective import Bools, Floats, Ints
from synth.model.problem import Problem
from synth.model.requirements import find_requirements, sum_by
from topologies.arrays import marked, row_entries, segment_sums
from topologies.network import Network

_MOST_CELLS = 1 << 23  # of the table of amounts: 64 MB
_SETS = 64  # whose tables are held at a time


class Traffic:
    """Amounts (shares of the message) by distinct sets of holders and distinct sets of goals.

    Attributes:
        known: whether there are few enough of these sets; nothing but `comes` and `leaves` may be asked otherwise.
        comes, leaves: shape (k,): what must come into and leave every rank of the group.
    """

    def __init__(self, problem: Problem) -> None:
        collective = problem.collective
        self.k = collective.nranks
        need, share = find_requirements(collective), collective.fraction
        hold, goal = collective.holders[1], collective.goals[1]
        come, go = need.arrive, need.depart
        self.comes = sum_by(goal[come], share[need.goal_chunk[come]], self.k)
        self.leaves = sum_by(hold[go], share[need.hold_chunk[go]], self.k)
        chunks = np.flatnonzero(marked(collective.nchunks, need.goal_chunk[come]) & (need.nhold > 0))
        held_by, some = _labels(collective.holders, need.nhold, chunks, self.k)
        goal_of, others = _labels(collective.goals, need.ngoal, chunks, self.k)
        kinds = len(some) * len(others)
        self.known = 0 < kinds <= _MOST_CELLS and max(len(some), len(others)) * self.k <= _MOST_CELLS
        if not self.known:
            return
        self.holders = _table(collective.holders, chunks[some], self.k)
        self.goals = _table(collective.goals, chunks[others], self.k)
        cell = held_by * len(others) + goal_of
        sums = collective.reduces[chunks]
        self.amounts = [
            sum_by(cell[these], share[chunks[these]], kinds).reshape(len(some), len(others)) if these.any() else None
            for these in (~sums, sums)
        ]

    def leaving(self, inside: Bools) -> Floats:
        """What must leave every set, shape (sets,), of sets given as flags of ranks, shape (sets, nranks)."""
        found = []
        for low in range(0, len(inside), _SETS):
            member = inside[low : low + _SETS, : self.k].astype(np.float64)
            within = member @ self.holders.T
            out = (1.0 - member) @ self.goals.T > 0.5
            total = np.zeros(len(member))
            whole = within > self.holders.sum(axis=1) - 0.5
            for amount, crosses in zip(self.amounts, (whole, within > 0.5), strict=True):
                if amount is not None:
                    total += ((crosses @ amount) * out).sum(axis=1)
            found.append(total)
        return np.concatenate(found) if found else np.zeros(0)

    def sweep(self, place: Ints) -> Floats:
        """What must leave the first 1, 2, … ranks by their `place` (shape (nranks,), a permutation)."""
        at = place[: self.k]
        last_holder = np.where(self.holders > 0, at, -1).max(axis=1)
        first_holder = np.where(self.holders > 0, at, len(place)).min(axis=1)
        last_goal = np.where(self.goals > 0, at, -1).max(axis=1)
        change = np.zeros(len(place))
        for amount, begin in zip(self.amounts, (last_holder, first_holder), strict=True):
            if amount is None:
                continue
            open_for = amount * (begin[:, None] < last_goal)
            change += sum_by(begin, open_for.sum(axis=1), len(place))
            change -= sum_by(last_goal, open_for.sum(axis=0), len(place))
        return np.asarray(np.cumsum(change))


def _labels(entries: tuple[Ints, Ints], counts: Ints, chunks: Ints, k: int) -> tuple[Ints, Ints]:
    """For each of `chunks` the number of its set of ranks, and for each set the first place where it stands."""
    ptr, ranks = entries
    if (counts[chunks] == 1).all():
        label = ranks[ptr[chunks]]
    else:
        # sums of random numbers: two sets that look the same by chance spoil an estimate, nothing else
        noise = np.random.default_rng(1).integers(1, 1 << 62, k, dtype=np.int64)
        label = segment_sums(noise[ranks], ptr)[chunks]
    _, first, number = np.unique(label, return_index=True, return_inverse=True)
    return number.reshape(-1), first


def _table(entries: tuple[Ints, Ints], chunks: Ints, k: int) -> Floats:
    """Sets of ranks as rows of zeros and ones."""
    ptr, ranks = entries
    table = np.zeros((len(chunks), k))
    table[np.repeat(np.arange(len(chunks)), np.diff(ptr)[chunks]), ranks[row_entries(ptr, chunks)]] = 1.0
    return table


def capacities_out(net: Network, inside: Bools) -> Floats:
    """GB/s out of every set (flags, shape (sets, nranks)), each link held against one of its resources."""
    best = np.full(len(inside), np.inf)
    for one in single_uses(net):
        order = np.argsort(one, kind="stable")
        start = np.flatnonzero(np.diff(one[order], prepend=-1))
        capacity = net.capacity_gbs[one[order][start]]
        src, dst = net.src[order], net.dst[order]
        for low in range(0, len(inside), _SETS):
            sets = inside[low : low + _SETS]
            crossed = np.logical_or.reduceat(sets[:, src] & ~sets[:, dst], start, axis=1)
            best[low : low + _SETS] = np.minimum(best[low : low + _SETS], crossed @ capacity)
    return best


def sweep_capacities(net: Network, place: Ints) -> Floats:
    """GB/s out of the first 1, 2, … ranks by their `place`, each link held against one of its resources."""
    n = net.nranks
    out = np.flatnonzero(place[net.src] < place[net.dst])
    best = np.full(n, np.inf)
    for one in single_uses(net):
        begin, end, use = place[net.src[out]], place[net.dst[out]], one[out]
        order = np.argsort(use * n + begin, kind="stable")
        begin, end, use = begin[order], end[order], use[order]
        # a resource is crossed where any of its links is: what of each span the spans before it leave over
        reached = np.maximum.accumulate(end + use * (n + 1)) if len(use) else end
        before = np.concatenate([[0], reached[:-1]])[: len(use)] - use * (n + 1)
        begin = np.maximum(begin, before)
        some = begin < end
        gbs = net.capacity_gbs[use[some]]
        change = sum_by(begin[some], gbs, n + 1) - sum_by(end[some], gbs, n + 1)
        best = np.minimum(best, np.cumsum(change)[:n])
    return best
