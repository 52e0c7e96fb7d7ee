"""The plan of a composition: the place of every chunk, its rotation among the other places, and its links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from synth.engines.flow.csr_network import CsrNetwork, csr_network
from synth.engines.flow.routes import FlowRouter
from synth.engines.levels.composition import (
    CHAIN,
    RING,
    SCATTER,
    STAR,
    TREES,
    Arcs,
    Hops,
    exchange,
    following,
    from_root,
    hops,
    send,
    spread,
)
from synth.engines.levels.shares import TreeLoad, least_loaded
from synth.engines.levels.tuning import LevelsTuning
from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import choose_runner
from synth.model.problem import LARGEST, Problem, make_problem
from synth.model.schedule import Schedule, untimed
from topologies.arrays import pointers, row_entries, strongly_connected
from topologies.costed import protocol_costs
from topologies.errors import InputError
from topologies.network import Network
from topologies.symmetry.translations import representatives

_STRAIGHT = -1  # Rotation of chunks that go in a star among others that go round.


@dataclass(frozen=True)
class LevelsShape:
    """The shape of a composition of levels.

    Attributes:
        outer: Form along the outermost level, see `composition.hops`.
        exchanged: Number of outermost levels along which partial sums are exchanged; 0 if a sum comes together at one
            rank.
    """

    outer: str
    exchanged: int = 0

    def __str__(self) -> str:
        """Return the text for progress."""
        return f"{self.outer}, {self.exchanged} levels exchanged" if self.exchanged else self.outer


class Levels:
    """A problem with its members by level.

    Attributes:
        problem: The problem, with one chunk a block.
        members: Local ranks by level, int64, shape (c₀, c₁, …): those given, with inner levels merged where not all
            ranks along them are linked, and with two levels, in an order of each part that suits the links.
        place: Place of every member along each level, int64, shape (ranks, levels).

    Raises:
        InputError: If ranks along a level do not reach each other, or no level has all its ranks linked.
    """

    def __init__(self, problem: Problem, members: Ints, tuning: LevelsTuning) -> None:
        self.problem, self.members, self.tuning = problem, members, tuning
        net = problem.network
        # The links of a pair of ranks are adjacent, the widest first.
        pair = net.src.astype(np.int64) * net.nranks + net.dst
        self._order = np.lexsort((net.alpha_us, -net.bandwidth_gbs, pair))
        self._pairs, self._first, number = np.unique(pair[self._order], return_index=True, return_inverse=True)
        best = self._order[self._first][number]  # for each link in order, the best link of its pair
        equals_best = [figure[self._order] == figure[best] for figure in (net.bandwidth_gbs, net.alpha_us)]
        self._count = np.bincount(number, equals_best[0] & equals_best[1]).astype(np.int64)
        self._join_levels()
        if self.members.ndim == 2:
            self._align_places()
        members = self.members
        self.place = np.empty((members.size, members.ndim), dtype=np.int64)
        self.place[members.ravel()] = np.indices(members.shape).reshape(members.ndim, -1).T
        complete = [self._is_complete(level) for level in range(members.ndim)]
        if not any(complete):
            raise InputError("levels: along at least one level every two ranks must be linked; in this network none is")
        self._trees = [[] if is_complete else self._route_level(level) for level, is_complete in enumerate(complete)]

    def _join_levels(self) -> None:
        """Merge two of the inner levels into one while not every two ranks along one of them are linked."""
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
        """Return the network as list schedules need it."""
        return csr_network(self.problem.network)

    def _align_places(self) -> None:
        """Order each part anew, so that ranks at the same place are linked both ways across parts where possible."""
        first, places = self.members[0], self.members.shape[1]
        rows = [first]
        for part in self.members[1:]:
            first_ranks, part_ranks = (axis.ravel() for axis in np.meshgrid(first, part, indexing="ij"))
            linked = self._are_linked(first_ranks, part_ranks, 0) & self._are_linked(part_ranks, first_ranks, 0)
            rows.append(part[matched(linked.reshape(places, places))])
        self.members = np.stack(rows)

    def turns(self, link: Ints) -> Floats:
        """Return when sends over links should go among equally urgent ones, from 0 towards 1, shape (links,).

        It is how many places ahead a send's destination is on its level, as part of the level's places. If all ranks
        send to those after them first, then to those two places ahead, and so on, each also receives from one rank at
        a time.
        """
        net, shape = self.problem.network, np.array(self.members.shape)
        ahead = (self.place[net.dst[link]] - self.place[net.src[link]]) % shape
        return np.asarray((ahead / shape).max(axis=1))

    def counts(self, doublings: int) -> list[int]:
        """Return numbers of chunks a block to try: `doublings` powers of two from 1 on.

        Blocks of any sizes of which one part has too many begin with 2. An all-reduce that is no quotient has 1 chunk,
        one a place of a part, and these powers times its ranks.
        """
        collective = self.problem.collective
        powers = [1 << e for e in range(doublings)]
        if collective.block is not None and self._starred < 1:
            return powers[1:] or powers  # Whole blocks would leave most NICs idle.
        if not collective.kind.in_shares or self.problem.quotient is not None:
            return powers
        ranks = self.members.size
        return [1, ranks // len(self.members), *(ranks * power for power in powers)]

    def shapes(self) -> list[LevelsShape]:
        """Return the shapes to compose, the most likely first.

        These are a star with every number of exchanged levels for an all-reduce, four forms for a root (two, where
        there are two outermost parts), and else one star.
        """
        collective, depth = self.problem.collective, self.members.ndim
        if collective.name == "allreduce":
            return [LevelsShape(STAR, exchanged) for exchanged in range(depth + 1)]
        if collective.block is not None:
            return [LevelsShape(form) for form in ((RING, SCATTER) if self.members.shape[0] > 2 else (STAR,))]
        if collective.kind.rooted:
            forms = (TREES, SCATTER, CHAIN, STAR) if self.members.shape[0] > 2 else (SCATTER, STAR)
            return [LevelsShape(form) for form in forms]
        return [LevelsShape(STAR)]

    @cached_property
    def _starred(self) -> float:
        """Return the part of the blocks of any sizes that go from their outermost part straight to each other one.

        The rest goes round from part to part, which a part with most of the data sends only once. So no part sends more
        than one must receive at least, and few chunks are passed on, which takes longest.
        """
        nothers = len(self.members) - 1
        blocks = np.bincount(self.place[self._roots(self.problem), 0], self.problem.collective.fraction, nothers + 1)
        around, straight = blocks.sum() - np.roll(blocks, -1), nothers * blocks
        most = blocks.sum() - blocks.min()
        room = np.divide(most - around, straight - around, out=np.ones(nothers + 1), where=straight > around)
        return float(np.clip(room.min(), 0.0, 1.0))

    def plan(self, shape: LevelsShape, count: int) -> tuple[Problem, Schedule] | None:
        """Return the problem with `count` times as many chunks, and the sends of a shape for it, in no order.

        None where a send has no link.
        """
        problem = self.problem.with_chunks(count)
        columns = []
        for (root, exit_rank, rotation), chunks in self._by_tree(problem, shape).items():
            arcs = self._tree(shape, root, exit_rank, rotation)
            first, nlinks = self._links(arcs)
            if (nlinks == 0).any():
                return None
            shape_of_sends = (len(chunks), len(first))
            columns.append((
                np.repeat(chunks, len(first)),
                self._order[first + np.arange(len(chunks))[:, None] % nlinks].ravel(),
                np.broadcast_to(arcs.step, shape_of_sends).ravel(),
                np.broadcast_to(arcs.adds, shape_of_sends).ravel(),
            ))  # fmt: skip
        chunk, link, step, adds = (np.concatenate(column) for column in zip(*columns, strict=True))
        return problem, untimed(chunk, link, step, adds)

    def _by_tree(self, problem: Problem, shape: LevelsShape) -> dict[tuple[int, int, int], Ints]:
        """Return the chunks by their tree: the root, the rank whose place they take, and their rotation."""
        roots = self._roots(problem)
        parts = problem.collective.nchunks // self.problem.collective.nchunks
        rotations = 1 if shape.outer == STAR else np.lcm.reduce([max(1, places - 1) for places in self.members.shape])
        if any(self._trees):
            rotations = np.lcm(rotations, self.tuning.variants)
        chunks_of: dict[tuple[int, int, int], list[int]] = {}
        if problem.collective.block is not None:
            return self._with_equal_loads(problem.collective.fraction, roots, shape)
        for chunk, root in enumerate(roots.tolist()):
            exits = self._exits(root) if problem.collective.kind.rooted else [root]
            rotation, exit_index = divmod(chunk % parts, len(exits))
            chunks_of.setdefault((root, exits[exit_index], rotation % int(rotations)), []).append(chunk)
        return {key: np.array(chunks) for key, chunks in chunks_of.items()}

    def _roots(self, problem: Problem) -> Ints:
        """Return the rank at which each chunk begins, or its sum comes together, shape (chunks,)."""
        collective, quotient = problem.collective, problem.quotient
        if collective.kind.in_shares:
            owners = (
                representatives(quotient.translations, problem.nranks) if quotient else np.arange(collective.nranks)
            )
            if collective.nchunks < len(owners):
                return np.asarray(self.members.ravel()[: collective.nchunks])
            return np.asarray(owners[np.arange(collective.nchunks) * len(owners) // collective.nchunks])
        return np.asarray((collective.goals if collective.reducing else collective.holders)[1])

    def _with_equal_loads(self, sizes: Floats, roots: Ints, shape: LevelsShape) -> dict[tuple[int, int, int], Ints]:
        """Return the chunks of blocks of any sizes by their tree, as `_by_tree` does, so that links are equally loaded.

        Args:
            sizes: Size of each chunk, shape (chunks,).
            roots: Rank at which each chunk begins, or at which its sum ends, shape (chunks,).
            shape: Shape of the composition.
        """
        rotations = {RING: 1, TREES: 2}.get(shape.outer, len(self.members) - 1)
        if any(self._trees):
            rotations = int(np.lcm(rotations, self.tuning.variants))
        number = np.zeros(len(roots), dtype=np.int64)  # of each chunk among those of its root
        for root in np.unique(roots).tolist():
            number[roots == root] = np.arange(np.count_nonzero(roots == root))
        rotation = (number + self.place[roots, -1]) % rotations
        if shape.outer == RING:
            rotation[np.floor((number + 1) * self._starred) > np.floor(number * self._starred)] = _STRAIGHT
        kinds = list(zip(roots.tolist(), rotation.tolist(), strict=True))

        def trees_of(kind: tuple[int, int]) -> list[tuple[int, int, int]]:
            """Return the trees that chunks of a root and a rotation may take: one over each exit."""
            return [(kind[0], exit_rank, kind[1]) for exit_rank in self._exits(kind[0])]

        chosen = least_loaded(
            sizes,
            kinds,
            lambda kind: [self._load(self._tree(shape, *tree)) for tree in trees_of(kind)],
            len(self._rates_gbs),
        )
        chunks_of: dict[tuple[int, int, int], list[int]] = {}
        for chunk, (kind, tree) in enumerate(zip(kinds, chosen, strict=True)):
            chunks_of.setdefault(trees_of(kind)[tree], []).append(chunk)
        return {tree: np.array(chunks) for tree, chunks in chunks_of.items()}

    def _load(self, arcs: Arcs) -> TreeLoad:
        """Return how long a chunk keeps each resource, and each link, busy if its sends are these, over its size."""
        net = self.problem.network
        links = self._order[self._links(arcs)[0]]
        uses = net.uses_idx[row_entries(net.uses_ptr, links)]
        resources, count = np.unique(np.append(uses, net.nresources + links), return_counts=True)
        return TreeLoad(resources, count / self._rates_gbs[resources])

    @cached_property
    def _rates_gbs(self) -> Floats:
        """Return the GB/s of each resource, and then those at which a program's few threadblocks use each link."""
        net, costs = self.problem.network, protocol_costs(self.problem.topology)
        most_gbs = np.inf if costs is None else self.tuning.instances * costs.threadblock_gbs
        return np.append(net.capacity_gbs, np.minimum(net.bandwidth_gbs, most_gbs))

    def _exits(self, root: int) -> list[int]:
        """Return the ranks of the root's outermost part that it has links to (for sums, from), itself first."""
        part = self.members[self.place[root, 0]].ravel()
        part = np.roll(part, -int(np.flatnonzero(part == root)[0]))
        ends = np.full(len(part), root), part
        tail, head = ends[::-1] if self.problem.collective.reducing else ends
        linked = self._are_linked(tail, head, 1) | (part == root)
        return [int(rank) for rank in part[linked]]

    def _tree(self, shape: LevelsShape, root: int, exit_rank: int, rotation: int) -> Arcs:
        """Return a chunk's sends over its tree.

        Args:
            shape: Shape of the composition.
            root: Rank at which the chunk begins, or at which its sum ends.
            exit_rank: Rank of the root's outermost part whose place the chunk takes.
            rotation: Which of the other places comes first, or which routed tree the chunk takes; _STRAIGHT where it
                goes straight to all parts.
        """

        def along(level: int, place: int, rotation: int) -> Hops:
            """Return the tree along a level from a place: routed, or with a link to each other rank."""
            if self._trees[level]:
                return self._trees[level][place][rotation % self.tuning.variants]
            form = (STAR if rotation == _STRAIGHT else shape.outer) if level == 0 else inner
            return hops(form, self.members.shape[level], place, rotation)

        collective, place = self.problem.collective, tuple(self.place[exit_rank].tolist())
        # A root that sends every chunk only once sends those at its own place to one rank of its part too.
        inner = SCATTER if collective.kind.rooted and exit_rank == root and shape.outer != STAR else STAR
        tree = spread(self.members, along, place, rotation, shape.exchanged)
        if collective.kind.in_shares:
            return following(tree.backwards(), exchange(self.members, place, shape.exchanged), tree)
        tree = from_root(root, send(root, exit_rank), tree)
        return tree.backwards() if collective.reducing else tree

    def _links(self, arcs: Arcs) -> tuple[Ints, Ints]:
        """Return for each send the place in `_order` of the best link of its ranks, and the number of equal links.

        The equal links follow in `_order`. The number is 0 where the ranks are not linked.
        """
        pair = arcs.tail * self.problem.nranks + arcs.head
        row = np.minimum(np.searchsorted(self._pairs, pair), len(self._pairs) - 1)
        return self._first[row], np.where(self._pairs[row] == pair, self._count[row], 0)

    def _are_linked(self, tail: Ints, head: Ints, level: int) -> Bools:
        """Return whether ranks are linked by a better link than those between parts of the levels before this one."""
        zeros = np.zeros(len(tail), dtype=np.int64)
        first, nlinks = self._links(Arcs(tail, head, zeros, zeros > 0))
        return (nlinks > 0) & self._is_inside(self.problem.network, level)[self._order[first]]

    def _is_inside(self, net: Network, level: int) -> Bools:
        """Return which links are better than the links along any level before this one: wider, or of less latency."""
        inside = np.ones(net.nlinks, dtype=bool)
        for outer in range(level):
            ends = self._along_first(outer)
            zeros = np.zeros(len(ends) - 1, dtype=np.int64)
            first, nlinks = self._links(Arcs(np.full(len(zeros), ends[0]), ends[1:], zeros, zeros > 0))
            for link in self._order[first[nlinks > 0][:1]].tolist():
                own_net = self.problem.network
                inside &= (net.bandwidth_gbs > own_net.bandwidth_gbs[link]) | (net.alpha_us < own_net.alpha_us[link])
        return inside

    def _along_first(self, level: int) -> Ints:
        """Return the ranks along a level in the first part of every other level."""
        return np.asarray(np.moveaxis(self.members, level, 0).reshape(self.members.shape[level], -1)[:, 0])

    def _is_complete(self, level: int) -> bool:
        """Return True if every two ranks along the level are linked, in the first part of every other level."""
        return self.is_linked(self._along_first(level), level)

    def is_linked(self, ranks: Ints, level: int = 0) -> bool:
        """Return True if every two of the ranks are linked, by better links than those along the levels before."""
        tail, head = (ranks[axis.ravel()] for axis in np.indices((len(ranks), len(ranks))))
        return bool((self._are_linked(tail, head, level) | (tail == head)).all())

    def _route_level(self, level: int) -> list[list[Hops]]:
        """Return trees along a level by root and variant, routed so that they load its links evenly.

        Raises:
            InputError: If the ranks along the level do not reach each other over its own links.
        """
        group = [self.problem.ranks[rank] for rank in self._along_first(level).tolist()]
        sub = make_problem(self.problem.topology, "allgather", group=group).with_chunks(self.tuning.variants)
        net = _sub_network(sub.network, self._is_inside(sub.network, level))
        if not strongly_connected(net.nranks, net.src, net.dst):
            raise InputError(f"levels: the ranks along level {level} do not reach each other over its own links")
        sub, passes = replace(sub, network=net), self.tuning.passes
        router = FlowRouter(sub, LARGEST, choose_runner(2e-6 * passes * sub.collective.nchunks * net.nlinks))
        for _ in range(passes):
            routing = router.improve()
        ptr, links = routing.spread
        trees = [_as_hops(net.src[links[a:b]], net.dst[links[a:b]]) for a, b in pairwise(ptr.tolist())]
        return [trees[i : i + self.tuning.variants] for i in range(0, len(trees), self.tuning.variants)]


def matched(able: Bools) -> Ints:
    """Return a column for every row of a square, all different, with as many true entries as possible (Kuhn, 1955).

    A row keeps its own column if it can. Rows for which no true entry is left get any column that is left.
    """
    row_of = np.full(len(able), -1)

    def place(row: int, tried: set[int]) -> bool:
        """Find a free column for a row, or one whose row can move; return False if there is none."""
        for column in sorted(np.flatnonzero(able[row]).tolist(), key=lambda column: column != row):
            if column not in tried:
                tried.add(column)
                if row_of[column] < 0 or place(int(row_of[column]), tried):
                    row_of[column] = row
                    return True
        return False

    for row in range(len(able)):
        place(row, set())
    free_columns = np.setdiff1d(np.arange(len(able)), row_of)
    row_of[row_of < 0] = free_columns
    return np.argsort(row_of)


def _sub_network(net: Network, is_kept: Bools) -> Network:
    """Return the network with the marked links only, without gaps and hyperlinks; links are numbered anew."""
    ptr = pointers(np.diff(net.uses_ptr)[is_kept])
    idx = net.uses_idx[row_entries(net.uses_ptr, np.flatnonzero(is_kept))]
    figures = {name: getattr(net, name)[is_kept] for name in ("src", "dst", "alpha_us", "bandwidth_gbs")}
    return replace(net, **figures, uses_ptr=ptr, uses_idx=idx, gap_us=np.zeros(0), hyperlinks=None)


def _as_hops(tail: Ints, head: Ints) -> Hops:
    """Return a tree, given by its links in the order in which it grows from its root, with the depth of each link."""
    depth: dict[int, int] = {}
    for a, b in zip(tail.tolist(), head.tolist(), strict=True):
        depth[b] = depth.get(a, -1) + 1
    return Hops(tail, head, np.array(list(depth.values()), dtype=np.int64))
