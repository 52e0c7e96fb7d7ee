"""Cut a collective into phases, one for each state of a sequence: which ranks hold which block after each phase.

A block is sent along a tree: from its holders to the ranks that want it, or, for a sum, from the ranks that contribute
to the rank that wants it. Each edge of the tree belongs to one state of the sequence. Trees are shortest paths through
the sequence, so a hypercube's dimensions give recursive doubling and halving, and a sequence of rings of different
strides gives each block the strides that bring it home.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, shortest_path

from synth.model.collective import Collective, Floats, Ints, in_chunks, make_collective, named
from synth.model.registry import BUFFER, find_kind
from synth.reconfiguration.states import ChangingNetwork
from topologies.topology import Topology

_REPRICED = 4  # Parts of the trees; the loads of links are looked at before each part is routed.
_CROWDED = (0.0, 0.5, 3.0)  # Tried: the link with the highest load costs so many times its own price more.
_UNLIKE = 0.001  # Prices differ by so much, so that equally short paths do not all take the first one.
HOP = 0.02  # A link costs so much of the least price more: of equally short paths, those of fewer links are even.


@dataclass(frozen=True, eq=False)
class StatePhase:
    """What is done in one state.

    Attributes:
        state: Number of the state.
        collective: What must be sent, over all ranks. Its chunks are blocks of the whole collective, or partial sums.
        blocks: The blocks that each chunk holds, by their numbers in the whole collective.
    """

    state: int
    collective: Collective
    blocks: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class RoutedSequence:
    """A collective in phases.

    Attributes:
        phases: The phases in their order; states of neighbours may be the same.
        estimate_us: About how long the phases take in µs, without the changes.
    """

    phases: tuple[StatePhase, ...]
    estimate_us: float


def in_blocks(name: str, nranks: int, root: int = 0) -> Collective:
    """Return a named collective in the blocks that phases route; a whole buffer for all is cut into one for each rank.

    Raises:
        InputError: There is no such collective, its blocks have sizes of their own, or the root is no rank.
    """
    collective = named(name, nranks, 1, root)
    is_buffer = find_kind(collective.name).unit == BUFFER and collective.nchunks == 1
    return in_chunks(collective, nranks) if is_buffer else collective


@dataclass(frozen=True)
class _Tree:
    """What a block's tree must join.

    Attributes:
        block: Number of the block.
        roots: Ranks that hold it, or for a sum the rank that gathers it.
        leaves: The ranks that want it, or that contribute.
        gathers: Whether the tree gathers a sum, towards its root.
    """

    block: int
    roots: tuple[int, ...]
    leaves: tuple[int, ...]
    gathers: bool


@lru_cache(maxsize=4)
def trees_of(collective: Collective) -> tuple[_Tree, ...]:
    """Return the trees of all blocks; a sum that several ranks want is gathered at one of them, and spread from it.

    The last four results are cached.
    """
    trees = []
    for block in range(collective.nchunks):
        holders = tuple(np.flatnonzero(collective.holds[block]).tolist())
        goals = tuple(np.flatnonzero(collective.wants[block]).tolist())
        if not goals:
            continue
        if collective.reduces[block]:
            root = (goals[block % len(goals)],)
            trees.append(_Tree(block, root, holders, gathers=True))
            holders = root
        if set(goals) - set(holders):
            trees.append(_Tree(block, holders, goals, gathers=False))
    return tuple(trees)


def pair_needs(collective: Collective, from_roots: bool = False) -> Floats:
    """Return the share of the message that must go [from, to], shape (ranks, ranks), without multicasts and sums.

    Args:
        collective: The collective in blocks.
        from_roots: Whether the first index is always that of the tree's root, also where a sum goes to it.
    """
    needs = np.zeros((collective.nranks, collective.nranks))
    for tree in trees_of(collective):
        for leaf in tree.leaves:
            ends = (leaf, tree.roots[0]) if tree.gathers and not from_roots else (tree.roots[0], leaf)
            needs[ends] += collective.fraction[tree.block]
    return needs


def link_prices(state: Topology, total_share: float, size_bytes: float) -> Floats:
    """Return a price in µs for a message that goes over each link of a state, shape (links,).

    It is the message's part of the time in which all links of the state carry all data, and of a mean latency.

    Args:
        state: The state.
        total_share: Sum of all that must be sent, in messages.
        size_bytes: Message size in bytes.
    """
    if not state.nlinks:
        return np.zeros(0)
    mean_gbs = float(state.bandwidth_gbs.mean())
    message_us = size_bytes / (mean_gbs * state.nlinks) / 1e3
    prices: Floats = state.alpha_us / total_share + message_us * (mean_gbs / state.bandwidth_gbs)
    return prices


def reversed_links(state: Topology) -> Topology:
    """Return a state whose links lead the other way, without limits: what is gathered here is spread there."""
    return replace(
        state, link_src=state.link_dst, link_dst=state.link_src, limits=(), link_kind=np.zeros(0, dtype=np.int64)
    )


def distances(state: Topology, prices: Floats) -> tuple[Floats, Ints]:
    """Return the length of the shortest path [from, to], and on it the rank before `to` (negative: none)."""
    graph = csr_array((prices, (state.link_src, state.link_dst)), shape=(state.nranks, state.nranks))
    lengths, before = shortest_path(graph, method="D", return_predecessors=True)
    return lengths, before.astype(np.int64)


def link_loads(state: Topology, needs: Floats, lengths: Floats, before: Ints) -> Floats:
    """Return what each link carries if all goes on shortest paths, in the unit of `needs`, shape (links,).

    Args:
        state: The topology.
        needs: What goes [from, to].
        lengths: Lengths of the shortest paths, and
        before: the rank before `to` on them, as `distances` returns both.
    """
    count, sources = state.nranks, np.arange(state.nranks)
    carried, through = np.zeros((count, count)), np.where(np.isfinite(lengths), needs, 0.0)
    for ends in np.argsort(-np.where(np.isfinite(lengths), lengths, -1.0), axis=1).T:  # The farthest ranks first.
        near = before[sources, ends]
        moved = near >= 0
        amounts = through[sources[moved], ends[moved]]
        np.add.at(carried, (near[moved], ends[moved]), amounts)
        through[sources[moved], near[moved]] += amounts
    return carried[state.link_src, state.link_dst]


def estimated_us(
    states: Sequence[Topology], paths: Sequence[tuple[Floats, Ints]], needs: Floats, size_bytes: float, copies: bool
) -> float:
    """Return about how long all moves over a sequence of states take in µs, by the loads of the links on its paths.

    Args:
        states: The states in their order.
        paths: What `distances` returns for each of them.
        needs: Share of the message that goes from each root to each leaf, see `pair_needs`.
        size_bytes: Message size in bytes.
        copies: Whether the leaves of a root want the same blocks, which one move brings to all that lie behind it.
    """
    count = len(needs)
    cost, parents = np.where(np.eye(count, dtype=bool), 0.0, np.inf), list[Ints]()
    for lengths, _ in paths:
        through = cost[:, :, None] + lengths[None]
        parents.append(through.argmin(axis=1))
        cost = through.min(axis=1)
    root, place = np.nonzero(needs)
    share, total_us = needs[root, place], 0.0
    for state, (lengths, before), parent in reversed(list(zip(states, paths, parents, strict=True))):
        near, moved = parent[root, place], np.zeros((count, count))
        keys = (root * count + near) * count + place
        first = np.unique(keys, return_index=True)[1] if copies else np.arange(len(keys))
        first = first[near[first] != place[first]]
        if len(first):
            np.add.at(moved, (near[first], place[first]), share[first])
            loads = link_loads(state, moved, lengths, before) / state.bandwidth_gbs
            total_us += float(loads.max()) * size_bytes / 1e3 + float(state.alpha_us.min())
        place = near
    return total_us


@lru_cache(maxsize=64)
def _parts_of(state: Topology) -> Ints:
    """Return for each rank the number of its part: the ranks of a part have paths to each other; 64 are cached."""
    graph = csr_array((np.ones(state.nlinks), (state.link_src, state.link_dst)), shape=(state.nranks, state.nranks))
    parts: Ints = connected_components(graph, directed=True, connection="strong")[1].astype(np.int64)
    return parts


def exchange(
    network: ChangingNetwork, collective: Collective, sequence: Sequence[int], size_bytes: float, own_sums: bool
) -> RoutedSequence | None:
    """Return an all-reduce in phases that sum all that the ranks of one part of a state hold; None if that ends early.

    In each phase the ranks that have paths to each other in its state get the sum of what they hold: on pairs this is
    recursive doubling. It moves more bytes than `route`, with about half of the changes. Ranks that hold the same sum
    count once; two that hold some contributions in common, but not all, are not possible.

    Args:
        network: The network.
        collective: The all-reduce in blocks.
        sequence: Numbers of states.
        size_bytes: Message size in bytes.
        own_sums: Whether every rank adds for itself all that it gets, which is faster for short messages.
    """
    count, contributions = network.nranks, [1 << rank for rank in range(network.nranks)]  # As bits of ranks.
    phases: list[StatePhase] = []
    estimate_us = 0.0
    for number in sequence:
        state, part_of_rank = network.states[number], _parts_of(network.states[number])
        ends: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        blocks: list[tuple[int, ...]] = []
        phase_us = 0.0
        for part in range(int(part_of_rank.max()) + 1):
            members = np.flatnonzero(part_of_rank == part).tolist()
            first_with = {contributions[rank]: rank for rank in reversed(members)}
            total = sum(first_with)
            if sum(value.bit_count() for value in first_with) != total.bit_count():
                return None
            if len(first_with) < 2:
                continue
            if own_sums:
                for rank in members:
                    ends.append((tuple(sorted({**first_with, contributions[rank]: rank}.values())), (rank,)))
                    blocks.append(tuple(range(collective.nchunks)))
            else:
                shares = np.array_split(np.arange(collective.nchunks), len(members))
                ends += [(tuple(sorted(first_with.values())), tuple(members))] * len(shares)
                blocks += [tuple(share.tolist()) for share in shares]
            for rank in members:
                contributions[rank] = total
            sent = len(first_with) - 1 if own_sums else 2 * (len(members) - 1) / len(members)
            message_us = size_bytes / float(state.bandwidth_gbs.min()) / 1e3
            phase_us = max(phase_us, (1 if own_sums else 2) * float(state.alpha_us.max()) + sent * message_us)
        if ends:
            estimate_us += phase_us
            phases.append(StatePhase(number, _collective_of(ends, blocks, collective, reduces=True), tuple(blocks)))
    is_whole = all(value == (1 << count) - 1 for value in contributions)
    return RoutedSequence(tuple(phases), estimate_us) if is_whole else None


def route(
    network: ChangingNetwork, collective: Collective, sequence: Sequence[int], size_bytes: float
) -> RoutedSequence | None:
    """Return a collective in phases over a sequence of states; None if the sequence does not join what it must.

    The sequence is that in which blocks spread from their holders. Sums are gathered in the reverse order, before
    blocks spread.

    Args:
        network: The network.
        collective: The collective in blocks, see `in_blocks`.
        sequence: Numbers of states.
        size_bytes: Message size in bytes.
    """
    answers = []
    for crowded in _CROWDED:
        answer = _routed(network, collective, sequence, size_bytes, crowded)
        if answer is None:
            return None
        answers.append(answer)
    return min(answers, key=lambda answer: answer.estimate_us)


def _routed(
    network: ChangingNetwork, collective: Collective, sequence: Sequence[int], size_bytes: float, crowded: float
) -> RoutedSequence | None:
    """Return the phases of `route` where the busiest link of a state costs `crowded` times its own price more."""
    trees, total_share = trees_of(collective), float(pair_needs(collective).sum())
    phases: list[StatePhase] = []
    estimate_us = 0.0
    for gathers in (True, False):
        own = [tree for tree in trees if tree.gathers is gathers]
        if not own:
            continue
        states = [network.states[number] for number in sequence]
        hop_us = min(float(link_prices(state, total_share, size_bytes).min(initial=np.inf)) for state in states)
        layers = [_Layer(state, gathers, collective, size_bytes, total_share, hop_us) for state in states]
        for part in range(_REPRICED):
            for layer in layers:
                layer.reprice(crowded)
            paths: dict[tuple[int, ...], tuple[list[Ints], Floats]] = {}
            for tree in own[part::_REPRICED]:
                if tree.roots not in paths:
                    paths[tree.roots] = _shortest(tree.roots, layers)
                parents, cost = paths[tree.roots]
                if not np.isfinite(cost[list(tree.leaves)]).all():
                    return None
                _grow(tree, parents, layers)
        order = range(len(sequence))[:: -1 if gathers else 1]
        for place in order:
            if layers[place].moves:
                phases.append(_phase_of(sequence[place], layers[place], collective))
                estimate_us += layers[place].estimate_us()
    return RoutedSequence(tuple(phases), estimate_us) if phases else None


@dataclass(eq=False)
class _Layer:
    """The moves of one phase while trees are routed.

    Attributes:
        state: The state.
        gathers: Whether its moves go against its links' direction: from the rank that gathers to those that contribute.
        collective: The whole collective in blocks.
        size_bytes: Message size in bytes.
        total_share: Sum of all that must be sent, in messages.
        hop_us: Least price of a link of all states.
        moves: For each block (holders before, edges from the rank nearer to the root).
        load_us: Time that each link is busy, shape (links,).
        depth_us: Longest sum of α of a move.
    """

    state: Topology
    gathers: bool
    collective: Collective
    size_bytes: float
    total_share: float
    hop_us: float
    moves: dict[int, tuple[set[int], list[tuple[int, int]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        state = self.state
        self.block_bytes = self.collective.fraction * self.size_bytes
        self.number = {
            ends: i for i, ends in enumerate(zip(state.link_src.tolist(), state.link_dst.tolist(), strict=True))
        }
        self.load_us, self.depth_us = np.zeros(state.nlinks), 0.0
        self.unlike = 1 + _UNLIKE * np.random.default_rng(0).random(state.nlinks)

    def reprice(self, crowded: float) -> None:
        """Compute the shortest paths by the loads so far; the busiest link costs `crowded` times its price more."""
        factor = 1 + crowded * self.load_us / max(float(self.load_us.max(initial=0.0)), 1e-12)
        prices = link_prices(self.state, self.total_share, self.size_bytes)
        prices = prices * factor * self.unlike + HOP * self.hop_us
        self.lengths, self.before = distances(self.state, prices)
        self.steps = self.lengths.T if self.gathers else self.lengths

    def take(self, block: int, holders: set[int], near: int, far: int) -> None:
        """Move a block from `near`, the rank nearer to the root, to `far`; or a sum in the other direction."""
        _, edges = self.moves.setdefault(block, (set(holders), []))
        edges.append((near, far))
        source, rank = (far, near) if self.gathers else (near, far)
        alpha_us = 0.0
        while rank != source:
            link = self.number[int(self.before[source, rank]), rank]
            self.load_us[link] += self.block_bytes[block] / self.state.bandwidth_gbs[link] / 1e3
            alpha_us += float(self.state.alpha_us[link])
            rank = int(self.before[source, rank])
        self.depth_us = max(self.depth_us, alpha_us)

    def estimate_us(self) -> float:
        """Return about how long the phase takes in µs."""
        return float(self.load_us.max(initial=0.0)) + self.depth_us


def _shortest(roots: tuple[int, ...], layers: Sequence[_Layer]) -> tuple[list[Ints], Floats]:
    """Return for each layer from where the shortest path through the layers comes to each rank, and its length."""
    cost = np.full(layers[0].state.nranks, np.inf)
    cost[list(roots)] = 0.0
    parents: list[Ints] = []
    for layer in layers:
        through = cost[:, None] + layer.steps
        parents.append(through.argmin(axis=0))
        cost = through.min(axis=0)
    return parents, cost


def _grow(tree: _Tree, parents: Sequence[Ints], layers: Sequence[_Layer]) -> None:
    """Add the moves of a block's tree to the layers, along the paths of `_shortest`."""
    edges: list[set[tuple[int, int]]] = [set() for _ in layers]
    needed = set(tree.leaves)
    for place in reversed(range(len(layers))):
        edges[place] = {(int(parents[place][rank]), rank) for rank in needed}
        needed = {near for near, _ in edges[place]}
    holders = set(tree.roots)
    for layer, of_layer in zip(layers, edges, strict=True):
        before = set(holders)
        for near, far in sorted(of_layer):
            if far not in holders:  # A rank that has the block already gets it only once.
                layer.take(tree.block, before, near, far)
                holders.add(far)


def _phase_of(number: int, layer: _Layer, whole: Collective) -> StatePhase:
    """Return what a layer must send, in the state of a number; blocks with the same ends are one chunk."""
    blocks_of: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for block, (holders, edges) in sorted(layer.moves.items()):
        for ends in _ends(holders, edges, layer.gathers):
            blocks_of.setdefault(ends, []).append(block)
    blocks = tuple(map(tuple, blocks_of.values()))
    return StatePhase(number, _collective_of(list(blocks_of), blocks, whole, layer.gathers), blocks)


def _collective_of(
    ends: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    blocks: Sequence[tuple[int, ...]],
    whole: Collective,
    reduces: bool,
) -> Collective:
    """Return a collective of chunks, from the ranks that hold each before and after, and the blocks in each."""
    fraction = np.array([whole.fraction[list(of_chunk)].sum() for of_chunk in blocks])
    pre, post = (
        np.array([(rank, chunk) for chunk, sides in enumerate(ends) for rank in sides[side]], dtype=np.int64)
        for side in (0, 1)
    )
    places = map(_places, (pre, post))
    return make_collective("phase", whole.nranks, fraction, pre, post, *places, nchunks=len(ends), reduces=reduces)


def _ends(
    holders: set[int], edges: Sequence[tuple[int, int]], gathers: bool
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the ranks before and after of the chunks of one block in a layer: one chunk, or one for each sum."""
    if not gathers:
        yield tuple(sorted(holders)), tuple(sorted({far for _, far in edges}))
        return
    for near in sorted({near for near, _ in edges}):
        yield tuple(sorted({near, *(far for parent, far in edges if parent == near)})), (near,)


def _places(rows: Ints) -> Ints:
    """Return a place of its own in its rank's buffer for each row (rank, chunk)."""
    used: dict[int, int] = {}
    places = []
    for rank, _ in rows.tolist():
        places.append(used.get(rank, 0))
        used[rank] = places[-1] + 1
    return np.array(places, dtype=np.int64)
