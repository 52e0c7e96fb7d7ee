"""What is composed: which place every chunk takes, in what turn, over which links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from synth.engines.flow.csr_network import CsrNetwork, csr_network
from synth.engines.flow.routes import Router
from synth.engines.levels.composition import STAR, Arcs, Hops, exchange, following, from_root, hops, send, spread
from synth.engines.levels.tuning import Tuning
from synth.model.collective import Bools, Ints
from synth.model.compiled import choose_runner
from synth.model.problem import LARGEST, Problem, make_problem
from topologies.arrays import pointers, row_entries, strongly_connected
from topologies.errors import InputError
from topologies.network import Network
from topologies.symmetry.translations import representatives


@dataclass(frozen=True)
class Shape:
    """How levels are composed.

    Attributes:
        outer: along the outermost level, a form of `composition.hops`.
        exchanged: outermost levels along which partial sums are exchanged; 0: a sum comes together at one rank.
    """

    outer: str
    exchanged: int = 0

    def __str__(self) -> str:
        """For progress."""
        return f"{self.outer}, {self.exchanged} levels exchanged" if self.exchanged else self.outer


@dataclass(frozen=True, eq=False)
class Plan:
    """Columns of a schedule without an order, for a problem with its chunks."""

    problem: Problem
    chunk: Ints
    link: Ints
    step: Ints
    reduces: Bools


class Levels:
    """A problem (one chunk a block) with its members by level, int64 (c₀, c₁, …): local ranks.

    Raises InputError where ranks along a level do not reach each other, or along no level all are linked.
    """

    def __init__(self, problem: Problem, members: Ints, tuning: Tuning) -> None:
        self.problem, self.members, self.tuning = problem, members, tuning
        net = problem.network
        # links of a pair lie together, the widest first
        pair = net.src.astype(np.int64) * net.nranks + net.dst
        self._order = np.lexsort((net.alpha_us, -net.bandwidth_gbs, pair))
        self._pairs, self._first, number = np.unique(pair[self._order], return_index=True, return_inverse=True)
        best = self._order[self._first][number]  # of each in order, the best link of its pair
        like = [figure[self._order] == figure[best] for figure in (net.bandwidth_gbs, net.alpha_us)]
        self._count = np.bincount(number, like[0] & like[1]).astype(np.int64)
        self._join_levels()
        if self.members.ndim == 2:
            self._align_places()
        members = self.members
        self.place = np.empty((members.size, members.ndim), dtype=np.int64)
        self.place[members.ravel()] = np.indices(members.shape).reshape(members.ndim, -1).T
        complete = [self._is_complete(level) for level in range(members.ndim)]
        if not any(complete):
            raise InputError("levels: every two ranks must be linked along one of them at least; these are grids")
        self._trees = [[] if is_complete else self._routed(level) for level, is_complete in enumerate(complete)]

    def _join_levels(self) -> None:
        """Of inner levels, two become one where not every two ranks along one of them are linked."""
        level = self.members.ndim - 1
        while level > 0 and self.members.ndim > 2:
            if self._is_complete(level):
                level -= 1
                continue
            outer = max(1, min(level, self.members.ndim - 2))
            shape = self.members.shape
            self.members = self.members.reshape(*shape[:outer], shape[outer] * shape[outer + 1], *shape[outer + 2 :])
            level = self.members.ndim - 1

    @cached_property
    def net(self) -> CsrNetwork:
        """As list schedules take it."""
        return csr_network(self.problem.network)

    def _align_places(self) -> None:
        """In every part another order, so that ranks at the same place are linked across, both ways, where they can."""
        first, places = self.members[0], self.members.shape[1]
        rows = [first]
        for part in self.members[1:]:
            here, there = (axis.ravel() for axis in np.meshgrid(first, part, indexing="ij"))
            linked = self._linked(here, there, 0) & self._linked(there, here, 0)
            rows.append(part[matched(linked.reshape(places, places))])
        self.members = np.stack(rows)

    def counts(self, doublings: int) -> list[int]:
        """Numbers of chunks a block to try, ascending: shares of an all-reduce are one a place, or one a rank."""
        collective = self.problem.collective
        powers = [1 << e for e in range(doublings)]
        if not collective.kind.in_shares or self.problem.quotient is not None:
            return powers
        ranks = self.members.size
        return [1, ranks // len(self.members), *(ranks * power for power in powers)]

    def plan(self, shape: Shape, count: int) -> Plan | None:
        """With `count` times as many chunks; None where a send has no link."""
        problem = self.problem.with_chunks(count)
        columns = []
        for (root, at, turn), chunks in self._by_tree(problem, shape).items():
            arcs = self._tree(shape, root, at, turn)
            first, many = self._links(arcs)
            if (many == 0).any():
                return None
            wide = (len(chunks), len(first))
            columns.append((
                np.repeat(chunks, len(first)),
                self._order[first + np.arange(len(chunks))[:, None] % many].ravel(),
                np.broadcast_to(arcs.step, wide).ravel(),
                np.broadcast_to(arcs.adds, wide).ravel(),
            ))  # fmt: skip
        return Plan(problem, *(np.concatenate(column) for column in zip(*columns, strict=True)))

    def _by_tree(self, problem: Problem, shape: Shape) -> dict[tuple[int, int, int], Ints]:
        """Chunks by the root of their tree, the rank whose place they take, and their turn."""
        roots = self._roots(problem)
        parts = problem.collective.nchunks // self.problem.collective.nchunks
        turns = 1 if shape.outer == STAR else len(self.members) - 1
        if any(self._trees):
            turns = np.lcm(turns, self.tuning.variants)
        found: dict[tuple[int, int, int], list[int]] = {}
        for chunk, root in enumerate(roots.tolist()):
            exits = self._exits(root) if problem.collective.kind.rooted else [root]
            turn, at = divmod(chunk % parts, len(exits))
            found.setdefault((root, exits[at], turn % int(turns)), []).append(chunk)
        return {key: np.array(chunks) for key, chunks in found.items()}

    def _roots(self, problem: Problem) -> Ints:
        """Where each chunk begins, or its sum comes together, shape (chunks,)."""
        collective, quotient = problem.collective, problem.quotient
        if collective.kind.in_shares:
            owners = (
                representatives(quotient.translations, problem.nranks) if quotient else np.arange(collective.nranks)
            )
            if collective.nchunks < len(owners):
                return np.asarray(self.members.ravel()[: collective.nchunks])
            return np.asarray(owners[np.arange(collective.nchunks) * len(owners) // collective.nchunks])
        return np.asarray((collective.goals if collective.reducing else collective.holders)[1])

    def _exits(self, root: int) -> list[int]:
        """Ranks of the root's part of the outermost level, itself first, that it has links to (or, for sums, from)."""
        part = self.members[self.place[root, 0]].ravel()
        part = np.roll(part, -int(np.flatnonzero(part == root)[0]))
        ends = np.full(len(part), root), part
        tail, head = ends[::-1] if self.problem.collective.reducing else ends
        linked = self._linked(tail, head, 1) | (part == root)
        return [int(rank) for rank in part[linked]]

    def _tree(self, shape: Shape, root: int, at: int, turn: int) -> Arcs:
        def along(level: int, place: int, turn: int) -> Hops:
            if self._trees[level]:
                return self._trees[level][place][turn % self.tuning.variants]
            return hops(shape.outer if level == 0 else STAR, self.members.shape[level], place, turn)

        collective, place = self.problem.collective, tuple(self.place[at].tolist())
        tree = spread(self.members, along, place, turn, shape.exchanged)
        if collective.kind.in_shares:
            return following(tree.backwards(), exchange(self.members, place, shape.exchanged), tree)
        tree = from_root(root, send(root, at), tree)
        return tree.backwards() if collective.reducing else tree

    def _links(self, arcs: Arcs) -> tuple[Ints, Ints]:
        """Of each send the first of its links in `_order`, and how many there are."""
        pair = arcs.tail * self.problem.nranks + arcs.head
        at = np.minimum(np.searchsorted(self._pairs, pair), len(self._pairs) - 1)
        return self._first[at], np.where(self._pairs[at] == pair, self._count[at], 0)

    def _linked(self, tail: Ints, head: Ints, level: int) -> Bools:
        """Whether ranks are linked by something better than what joins the parts of the levels before this one."""
        none = np.zeros(len(tail), dtype=np.int64)
        first, many = self._links(Arcs(tail, head, none, none > 0))
        return (many > 0) & self._is_inside(self.problem.network, level)[self._order[first]]

    def _is_inside(self, net: Network, level: int) -> Bools:
        """Which links are better than those along any level before this one: wider, or faster to cross."""
        inside = np.ones(net.nlinks, dtype=bool)
        for outer in range(level):
            ends = self._along_first(outer)
            none = np.zeros(len(ends) - 1, dtype=np.int64)
            first, many = self._links(Arcs(np.full(len(none), ends[0]), ends[1:], none, none > 0))
            for link in self._order[first[many > 0][:1]].tolist():
                mine = self.problem.network
                inside &= (net.bandwidth_gbs > mine.bandwidth_gbs[link]) | (net.alpha_us < mine.alpha_us[link])
        return inside

    def _along_first(self, level: int) -> Ints:
        """The ranks along the level in the first part of each other one."""
        return np.asarray(np.moveaxis(self.members, level, 0).reshape(self.members.shape[level], -1)[:, 0])

    def _is_complete(self, level: int) -> bool:
        """Whether every two ranks along the level are linked."""
        ranks = self._along_first(level)
        tail, head = (ranks[axis.ravel()] for axis in np.indices((len(ranks), len(ranks))))
        return bool((self._linked(tail, head, level) | (tail == head)).all())

    def _routed(self, level: int) -> list[list[Hops]]:
        """Trees along a level by root and variant, routed so that all together load its links evenly."""
        group = [self.problem.ranks[rank] for rank in self._along_first(level).tolist()]
        sub = make_problem(self.problem.topology, "allgather", group=group).with_chunks(self.tuning.variants)
        net = _only(sub.network, self._is_inside(sub.network, level))
        if not strongly_connected(net.nranks, net.src, net.dst):
            raise InputError(f"levels: the ranks along level {level} do not reach each other over its own links")
        sub, passes = replace(sub, network=net), self.tuning.passes
        router = Router(sub, LARGEST, choose_runner(2e-6 * passes * sub.collective.nchunks * net.nlinks))
        for _ in range(passes):
            routing = router.improve()
        ptr, links = routing.spread
        trees = [_as_hops(net.src[links[a:b]], net.dst[links[a:b]]) for a, b in pairwise(ptr.tolist())]
        return [trees[i : i + self.tuning.variants] for i in range(0, len(trees), self.tuning.variants)]


def matched(able: Bools) -> Ints:
    """A column for every row of a square, as many as can be where it is true, its own if that is (Kuhn, 1955)."""
    row_of = np.full(len(able), -1)

    def place(row: int, seen: set[int]) -> bool:
        for column in sorted(np.flatnonzero(able[row]).tolist(), key=lambda column: column != row):
            if column not in seen:
                seen.add(column)
                if row_of[column] < 0 or place(int(row_of[column]), seen):
                    row_of[column] = row
                    return True
        return False

    for row in range(len(able)):
        place(row, set())
    left = np.setdiff1d(np.arange(len(able)), row_of)
    row_of[row_of < 0] = left
    return np.argsort(row_of)


def _only(net: Network, kept: Bools) -> Network:
    """The network with some of its links."""
    ptr = pointers(np.diff(net.uses_ptr)[kept])
    idx = net.uses_idx[row_entries(net.uses_ptr, np.flatnonzero(kept))]
    figures = {name: getattr(net, name)[kept] for name in ("src", "dst", "alpha_us", "bandwidth_gbs")}
    return replace(net, **figures, uses_ptr=ptr, uses_idx=idx, gap_us=np.zeros(0), hyperlinks=None)


def _as_hops(tail: Ints, head: Ints) -> Hops:
    """A tree's links in the order in which it grows from its root."""
    depth: dict[int, int] = {}
    for a, b in zip(tail.tolist(), head.tolist(), strict=True):
        depth[b] = depth.get(a, -1) + 1
    return Hops(tail, head, np.array(list(depth.values()), dtype=np.int64))
