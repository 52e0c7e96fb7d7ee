"""Estimates of what a collective must carry across many sets of ranks at once, to find good cuts.

Witnesses do not depend on these estimates; they are computed from the problem (`synth.bounds.witness`).
"""

from __future__ import annotations

import numpy as np

from synth.bounds.resource_cover import single_uses
from synth.model.collective import Bools, Floats, Ints
from synth.model.problem import Problem
from synth.model.requirements import find_requirements, sum_by
from topologies.arrays import flags_of, row_entries, segment_sums
from topologies.network import Network

_MOST_CELLS = 1 << 23  # cells of the table of amounts: 64 MB
_SETS = 64  # sets whose tables are in memory at a time


class Traffic:
    """Amounts of data by distinct sets of holders and distinct sets of goals, as shares of the message.

    Attributes:
        k: Number of ranks of the group.
        has_table: True if these sets are few enough for a table. Otherwise only `comes` and `leaves` may be used.
        comes: Share that must come into every rank of the group, shape (k,).
        leaves: Share that must leave every rank of the group, shape (k,).
        holders: Flags of the ranks of each set of holders, shape (sets of holders, k).
        goals: Flags of the ranks of each set of goals, shape (sets of goals, k).
        amounts: Share of the plain chunks and of the sums, shape (sets of holders, sets of goals) each; None: no
            chunks.
    """

    def __init__(self, problem: Problem) -> None:
        collective = problem.collective
        self.k = collective.nranks
        need, share = find_requirements(collective), collective.fraction
        hold, goal = collective.holders[1], collective.goals[1]
        arrives, departs = need.arrive, need.depart
        self.comes = sum_by(goal[arrives], share[need.goal_chunk[arrives]], self.k)
        self.leaves = sum_by(hold[departs], share[need.hold_chunk[departs]], self.k)
        chunks = np.flatnonzero(flags_of(collective.nchunks, need.goal_chunk[arrives]) & (need.nhold > 0))
        held_by, hold_firsts = _labels(collective.holders, need.nhold, chunks, self.k)
        goal_of, goal_firsts = _labels(collective.goals, need.ngoal, chunks, self.k)
        kinds = len(hold_firsts) * len(goal_firsts)
        self.has_table = 0 < kinds <= _MOST_CELLS and max(len(hold_firsts), len(goal_firsts)) * self.k <= _MOST_CELLS
        if not self.has_table:
            return
        self.holders = _table(collective.holders, chunks[hold_firsts], self.k)
        self.goals = _table(collective.goals, chunks[goal_firsts], self.k)
        cell = held_by * len(goal_firsts) + goal_of
        sums = collective.reduces[chunks]
        self.amounts = [
            sum_by(cell[chosen], share[chunks[chosen]], kinds).reshape(len(hold_firsts), len(goal_firsts))
            if chosen.any()
            else None
            for chosen in (~sums, sums)
        ]

    def leaving(self, inside: Bools) -> Floats:
        """Return about the share of the message that must leave each set of ranks, shape (sets,).

        It needs the table (`has_table`).

        Args:
            inside: Flags of the ranks of each set, shape (sets, nranks); relays have no effect.
        """
        totals = []
        for low in range(0, len(inside), _SETS):
            member = inside[low : low + _SETS, : self.k].astype(np.float64)
            within = member @ self.holders.T
            out = (1.0 - member) @ self.goals.T > 0.5
            total = np.zeros(len(member))
            whole = within > self.holders.sum(axis=1) - 0.5
            for amount, crosses in zip(self.amounts, (whole, within > 0.5), strict=True):
                if amount is not None:
                    total += ((crosses @ amount) * out).sum(axis=1)
            totals.append(total)
        return np.concatenate(totals) if totals else np.zeros(0)

    def sweep(self, place: Ints) -> Floats:
        """Return about the share of the message that must leave the first 1, 2, … ranks of an order, shape (nranks,).

        It needs the table (`has_table`).

        Args:
            place: Place of each local rank in the order, from 0, shape (nranks,).
        """
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
    """Return the number of each chunk's set of ranks, and for each set the first place in `chunks` that has it.

    Args:
        entries: (ptr, ranks) of all chunks, as `Collective.holders`.
        counts: Number of ranks of all chunks.
        chunks: The chunks to number.
        k: Number of ranks of the group.
    """
    ptr, ranks = entries
    if (counts[chunks] == 1).all():
        label = ranks[ptr[chunks]]
    else:
        # Each set's sum of random numbers is its label: two equal sums by chance spoil only an estimate.
        noise = np.random.default_rng(1).integers(1, 1 << 62, k, dtype=np.int64)
        label = segment_sums(noise[ranks], ptr)[chunks]
    _, first, number = np.unique(label, return_index=True, return_inverse=True)
    return number.reshape(-1), first


def _table(entries: tuple[Ints, Ints], chunks: Ints, k: int) -> Floats:
    """Return the sets of ranks of some chunks as rows of zeros and ones, shape (len(chunks), k).

    Args:
        entries: (ptr, ranks) of all chunks, as `Collective.holders`.
        chunks: The chunks.
        k: Number of ranks of the group.
    """
    ptr, ranks = entries
    table = np.zeros((len(chunks), k))
    table[np.repeat(np.arange(len(chunks)), np.diff(ptr)[chunks]), ranks[row_entries(ptr, chunks)]] = 1.0
    return table


def capacities_out(net: Network, inside: Bools) -> Floats:
    """Return the GB/s out of each set of ranks, shape (sets,), with each link counted at one of its resources.

    A resource counts once for a set. Of the rules for a link's resource (`single_uses`), the one that gives least
    counts.

    Args:
        net: The network.
        inside: Flags of the ranks of each set, shape (sets, nranks).
    """
    best = np.full(len(inside), np.inf)
    for resource_of_link in single_uses(net):
        order = np.argsort(resource_of_link, kind="stable")
        start = np.flatnonzero(np.diff(resource_of_link[order], prepend=-1))
        capacity = net.capacity_gbs[resource_of_link[order][start]]
        src, dst = net.src[order], net.dst[order]
        for low in range(0, len(inside), _SETS):
            sets = inside[low : low + _SETS]
            crossed = np.logical_or.reduceat(sets[:, src] & ~sets[:, dst], start, axis=1)
            best[low : low + _SETS] = np.minimum(best[low : low + _SETS], crossed @ capacity)
    return best


def sweep_capacities(net: Network, place: Ints) -> Floats:
    """Return the GB/s out of the first 1, 2, … ranks of an order, shape (nranks,), as `capacities_out` counts them.

    Args:
        net: The network.
        place: Place of each local rank in the order, from 0, shape (nranks,).
    """
    n = net.nranks
    out = np.flatnonzero(place[net.src] < place[net.dst])
    best = np.full(n, np.inf)
    for resource_of_link in single_uses(net):
        begin, end, use = place[net.src[out]], place[net.dst[out]], resource_of_link[out]
        order = np.argsort(use * n + begin, kind="stable")
        begin, end, use = begin[order], end[order], use[order]
        # A resource is crossed where any of its links is, so each span counts only beyond the spans before it.
        reached = np.maximum.accumulate(end + use * (n + 1)) if len(use) else end
        before = np.concatenate([[0], reached[:-1]])[: len(use)] - use * (n + 1)
        begin = np.maximum(begin, before)
        nonempty = begin < end
        gbs = net.capacity_gbs[use[nonempty]]
        change = sum_by(begin[nonempty], gbs, n + 1) - sum_by(end[nonempty], gbs, n + 1)
        best = np.minimum(best, np.cumsum(change)[:n])
    return best
