"""Build threadblocks that end when all ranks of a plan have started, by signals between ranks that have channels.

If a rank hears in every launch, of this plan and of any other, that all others have started, then it is never two
launches ahead of one of them: the data that it overwrites in half of a double scratch buffer, and the data that its
port channels read there, were used up before. The executor chooses the half by one counter over all plans of a process.
So a plan whose ranks do not hear of all others by themselves (a broadcast, whose root only sends) needs this even
without packets. Data does not wait for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import or_
from typing import NamedTuple

import numpy as np

from emit.mscclpp.plan import MAX_CHANNELS, MAX_OP_CHANNELS, MAX_OPS, Op, PlanBlock, PlanGpu
from synth.model.collective import Floats
from synth.model.deadline import checking_deadline

_PORT_HOPS = 4  # A hop between nodes counts for so many hops inside a node.
_FEW_RANKS = 128  # Up to so many, finding all distances takes less time than importing SciPy.
_BARRIER = 0  # the only barrier of a plan, because its other threadblocks wait for each other by semaphores

_Pair = tuple[int, int]


class _Event(NamedTuple):
    """An event of a rank: it waits for another rank's signal, or signals to it.

    Events are sorted by `time`; at equal times waits come before signals, which carry the new knowledge.

    Attributes:
        time: Time, in hops.
        signals: Whether the rank signals; if not, it waits.
        peer: The other rank.
    """

    time: int
    signals: bool
    peer: int


def add_meeting(
    gpus: Sequence[PlanGpu], pairs: Sequence[_Pair], nodes: Sequence[int], linked: Sequence[_Pair] = ()
) -> None:
    """Add to the ranks of a plan threadblocks with their own channels that end when all ranks have started.

    Args:
        gpus: Ranks of the plan, which are changed: the new channels follow those in `peers`.
        pairs: Pairs of ranks that the program connects, in either direction. Ranks that no pairs connect, not even
            through further ranks, do not hear of each other.
        nodes: Node of each rank; channels between nodes are port channels, others memory channels.
        linked: Pairs that the network links. All of them are used if there are at most MAX_CHANNELS + 1 ranks; if there
            are more, only pairs that connect ranks which the program does not, and pairs by which nodes hear of each
            other directly where that saves a hop between nodes.
    """
    if len(gpus) <= MAX_CHANNELS + 1:
        hops = _hops([*pairs, *linked], nodes)
    else:
        pairs = [*pairs, *_joining(pairs, linked, len(gpus))]
        hops, direct = _hops(pairs, nodes), _hops([*pairs, *_between_all_nodes(linked, nodes)], nodes)
        if _longest(direct, len(gpus)) <= _longest(hops, len(gpus)) - _PORT_HOPS:
            hops = direct
    blocks = _blocks(_events(hops, len(gpus)), nodes)
    if any(len(block.ops) > MAX_OPS for rank_blocks in blocks for block in rank_blocks):
        blocks = _blocks(_events(_tree(hops, len(gpus)), len(gpus)), nodes)
    for gpu, rank_blocks in zip(gpus, blocks, strict=True):
        gpu.blocks += rank_blocks
        for block in rank_blocks:
            for kind, ends in block.channels.items():
                block.channels[kind] = [len(gpu.peers[kind]) + n for n in range(len(ends))]
                gpu.peers[kind] += ends


def _hops(pairs: Sequence[_Pair], nodes: Sequence[int]) -> dict[_Pair, int]:
    """Return the hops of each pair of ranks in both directions."""
    return {(u, v): 1 if nodes[u] == nodes[v] else _PORT_HOPS for pair in pairs for u, v in (pair, pair[::-1])}


def _between_all_nodes(linked: Sequence[_Pair], nodes: Sequence[int]) -> list[_Pair]:
    """Return the linked pairs inside nodes, and one linked pair for every two nodes, spread over their ranks.

    No rank gets more than MAX_CHANNELS channels inside its node; if one would, the result is empty.
    """
    inside = {(min(pair), max(pair)) for pair in linked if nodes[pair[0]] == nodes[pair[1]]}
    if max(Counter(rank for pair in inside for rank in pair).values(), default=0) > MAX_CHANNELS:
        return []
    pairs_of_nodes: dict[_Pair, list[_Pair]] = defaultdict(list)
    for u, v in sorted({(min(pair), max(pair)) for pair in linked} - inside):
        pairs_of_nodes[min(nodes[u], nodes[v]), max(nodes[u], nodes[v])].append((u, v))
    used, chosen = Counter[int](), sorted(inside)
    for _, candidates in sorted(pairs_of_nodes.items()):
        u, v = min(candidates, key=lambda pair: (max(used[pair[0]], used[pair[1]]), used[pair[0]] + used[pair[1]]))
        used.update((u, v))
        chosen.append((u, v))
    return chosen


def _longest(hops: dict[_Pair, int], nranks: int) -> float:
    """Return the longest distance in hops of two ranks that are connected."""
    distances = _distances(hops, nranks)
    return float(distances[np.isfinite(distances)].max(initial=0.0))


def _joining(pairs: Sequence[_Pair], linked: Sequence[_Pair], nranks: int) -> list[_Pair]:
    """Return the pairs of `linked` that join ranks which `pairs`, and the pairs before, do not."""
    part = list(range(nranks))
    joining: list[_Pair] = []
    for n, (u, v) in enumerate([*pairs, *linked]):
        if part[u] != part[v]:
            part = [part[u] if number == part[v] else number for number in part]
            joining += [(u, v)] if n >= len(pairs) else []
    return joining


def _distances(hops: dict[_Pair, int], nranks: int) -> Floats:
    """Return the distance of every two ranks in hops, shape (nranks, nranks); infinity if they are not connected."""
    rows, columns = np.array(sorted(hops), dtype=np.int64).reshape(-1, 2).T
    lengths = [hops[pair] for pair in sorted(hops)]
    if nranks <= _FEW_RANKS:
        distances = np.full((nranks, nranks), np.inf)
        distances[rows, columns] = lengths
        np.fill_diagonal(distances, 0.0)
        for rank in range(nranks):  # The paths through the ranks so far (Floyd and Warshall).
            np.minimum(distances, distances[:, rank, None] + distances[rank], out=distances)
        return distances
    from scipy.sparse import csr_matrix  # Imported here: SciPy starts slowly, and few ranks do without it.
    from scipy.sparse.csgraph import dijkstra

    return np.asarray(dijkstra(csr_matrix((lengths, (rows, columns)), shape=(nranks, nranks))), dtype=np.float64)


def _tree(hops: dict[_Pair, int], nranks: int) -> dict[_Pair, int]:
    """Return the pairs of a tree of shortest paths to one rank, for each connected set of ranks.

    The result has both directions of each pair, with its hops. On each pair, a signal in each direction suffices.
    """
    distances = _distances(hops, nranks)
    unvisited: set[int] = set(range(nranks))
    tree_hops: dict[_Pair, int] = {}
    while unvisited:
        members = np.flatnonzero(np.isfinite(distances[min(unvisited)])).tolist()
        unvisited.difference_update(members)
        root = min(members, key=lambda rank: (distances[rank, members].max(), rank))
        for rank in checking_deadline(members, every=16):
            distance_through = distances[root] + [hops.get((u, rank), np.inf) for u in range(nranks)]
            if rank != root:
                parent = int(distance_through.argmin())
                tree_hops[parent, rank] = tree_hops[rank, parent] = hops[parent, rank]
    return tree_hops


def _events(hops: dict[_Pair, int], nranks: int) -> list[list[_Event]]:
    """Return the events of each rank until all have heard of all as early as possible, with few signals, sent late.

    The events of a rank are sorted. The method goes backwards in time: its neighbours tell a rank what it must know at
    a time and can know only then; other knowledge may come before. `hops` holds each pair in both directions.
    """
    distances = _distances(hops, nranks)
    finite = np.isfinite(distances)
    # For each rank and neighbour: the ranks, as bits, of which that neighbour tells the earliest.
    heard_from: list[dict[int, int]] = [{} for _ in range(nranks)]
    for u, v in sorted(hops):
        nearer = np.flatnonzero(finite[v] & (distances[u] + hops[u, v] == distances[v]))
        heard_from[v][u] = sum(1 << x for x in nearer.tolist())
    end = int(distances[finite].max(initial=0))
    # For each rank and time: the ranks, as bits, of which it can have heard; then those of which it must have heard.
    can_know: list[list[int]] = []
    for v in range(nranks):
        heard_at = [0] * (end + 1)
        for x in np.flatnonzero(finite[v]).tolist():
            heard_at[int(distances[v, x])] |= 1 << x
        can_know.append(list(accumulate(heard_at, or_)))
    must_know = [[0] * (end + 1) for _ in range(nranks)]
    for v in range(nranks):
        must_know[v][int(distances[finite[v]][:, finite[v]].max())] = can_know[v][end]
    events: list[list[_Event]] = [[] for _ in range(nranks)]
    for time in range(end, 0, -1):
        for v in checking_deadline(range(nranks), every=16):
            missing = must_know[v][time]
            if not missing & ~can_know[v][time - 1]:
                must_know[v][time - 1] |= missing
                continue
            while urgent := missing & ~can_know[v][time - 1]:
                u = max(heard_from[v], key=lambda u: (heard_from[v][u] & urgent).bit_count())
                send_time = time - hops[u, v]
                must_know[u][send_time] |= missing & heard_from[v][u]
                missing &= ~heard_from[v][u]
                events[u].append(_Event(send_time, True, v))
                events[v].append(_Event(time, False, u))
            must_know[v][time - 1] |= missing
    return [sorted(rank_events) for rank_events in events]


def _blocks(events: list[list[_Event]], nodes: Sequence[int]) -> list[list[PlanBlock]]:
    """Return the threadblocks of each rank; their channels are still named by the rank at the other end."""
    blocks: list[list[PlanBlock]] = []
    for rank, rank_events in enumerate(events):
        ends = sorted({event.peer for event in rank_events})
        parts = [ends[low : low + MAX_CHANNELS] for low in range(0, len(ends), MAX_CHANNELS)]
        blocks.append(
            [_block(part, rank_events, len(parts), [node == nodes[rank] for node in nodes]) for part in parts]
        )
    return blocks


def _block(ends: list[int], events: list[_Event], nblocks: int, near: list[bool]) -> PlanBlock:
    """Return one of a rank's `nblocks` threadblocks, whose `channels` still name the ranks at the other ends.

    Args:
        ends: Ranks at the other ends of its channels.
        events: Events of its rank; those with other peers only synchronize the threadblock.
        nblocks: Number of the rank's threadblocks.
        near: For each rank, whether memory channels reach it.
    """
    block = PlanBlock()
    for end in ends:
        block.channels.setdefault("memory" if near[end] else "port", []).append(end)
    for (_, signals), group in groupby(events, key=lambda event: event[:2]):
        peers = [event.peer for event in group]
        if signals and nblocks > 1:
            block.ops.append(Op("barrier", barrier=_BARRIER, blocks=nblocks))
        elif block.ops:
            block.ops.append(Op("nop"))
        for kind, channel_ends in block.channels.items():
            numbers = [channel_ends.index(peer) for peer in peers if peer in channel_ends]
            for low in range(0, len(numbers), MAX_OP_CHANNELS):
                op = Op(
                    "signal" if signals else "wait", channel_type=kind, channels=numbers[low : low + MAX_OP_CHANNELS]
                )
                block.ops.append(op)
    return block
