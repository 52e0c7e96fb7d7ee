"""Threadblocks that end when all ranks of a plan have started, by signals between ranks that have channels.

A rank that in every launch, of this plan and of any other, has heard that all others have started is never two launches
ahead of one: what it writes into half of a double scratch buffer, and what its port channels read of it, was used up
before. The executor takes the half by one counter over all plans of a process. So a plan whose ranks do not hear of all
by themselves (a broadcast, whose root only sends) needs this also where it has no packets. Data does not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import or_
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from emit.mscclpp.plan import MAX_CHANNELS, MAX_OP_CHANNELS, MAX_OPS, Op, PlanBlock, PlanGpu
from synth.model.collective import Floats

_PORT_HOPS = 4  # a hop between nodes counts for so many inside one
_BARRIER = 0  # the only one of a plan: its other threadblocks wait for each other by semaphores

_Pair = tuple[int, int]


class _Event(NamedTuple):
    """What a rank does, in the order of `time`: it waits for the other's signal, and then signals what it knows."""

    time: int
    signals: bool
    other: int


def add_meeting(
    made: Sequence[PlanGpu], pairs: Sequence[_Pair], nodes: Sequence[int], linked: Sequence[_Pair] = ()
) -> None:
    """Add to the ranks of a plan threadblocks that end when all have started, with channels of their own.

    pairs: of ranks that the program connects. nodes: of each rank. linked: pairs that the network links: few ranks, as
    many as a threadblock has channels for, use all, more only those that join what the program does not. Ranks that no
    pair connects do not hear of each other.
    """
    pairs = [*pairs, *(linked if len(made) <= MAX_CHANNELS + 1 else _joining(pairs, linked, len(made)))]
    hops = {(u, v): 1 if nodes[u] == nodes[v] else _PORT_HOPS for pair in pairs for u, v in (pair, pair[::-1])}
    blocks = _blocks(_events(hops, len(made)), nodes)
    if any(len(block.ops) > MAX_OPS for found in blocks for block in found):
        blocks = _blocks(_events(_tree(hops, len(made)), len(made)), nodes)
    for gpu, found in zip(made, blocks, strict=True):
        gpu.blocks += found
        for block in found:
            for kind, ends in block.channels.items():
                block.channels[kind] = [len(gpu.peers[kind]) + n for n in range(len(ends))]
                gpu.peers[kind] += ends


def _joining(pairs: Sequence[_Pair], linked: Sequence[_Pair], nranks: int) -> list[_Pair]:
    """Those of `linked` that join ranks which pairs, and those before, do not."""
    part = list(range(nranks))
    joining: list[_Pair] = []
    for n, (u, v) in enumerate([*pairs, *linked]):
        if part[u] != part[v]:
            part = [part[u] if one == part[v] else one for one in part]
            joining += [(u, v)] if n >= len(pairs) else []
    return joining


def _distances(hops: dict[_Pair, int], nranks: int) -> Floats:
    rows, columns = np.array(sorted(hops), dtype=np.int64).reshape(-1, 2).T
    lengths = [hops[pair] for pair in sorted(hops)]
    found: Floats = dijkstra(csr_matrix((lengths, (rows, columns)), shape=(nranks, nranks)))
    return found


def _tree(hops: dict[_Pair, int], nranks: int) -> dict[_Pair, int]:
    """The pairs of shortest paths to one rank, of those that others connect: on each a signal each way is enough."""
    distances = _distances(hops, nranks)
    left: set[int] = set(range(nranks))
    kept: dict[_Pair, int] = {}
    while left:
        members = np.flatnonzero(np.isfinite(distances[min(left)])).tolist()
        left.difference_update(members)
        root = min(members, key=lambda rank: (distances[rank, members].max(), rank))
        for rank in members:
            far = distances[root] + [hops.get((u, rank), np.inf) for u in range(nranks)]
            if rank != root:
                above = int(far.argmin())
                kept[above, rank] = kept[rank, above] = hops[above, rank]
    return kept


def _events(hops: dict[_Pair, int], nranks: int) -> list[list[_Event]]:
    """What each rank does until all have heard of all as soon as can be, with signals as late and as few as can be.

    Backwards in time: what a rank must know by then, and only then can, its neighbours tell; the rest may come before.
    """
    distances = _distances(hops, nranks)
    finite = np.isfinite(distances)
    # of each rank by neighbour those, as bits, of whom it hears the soonest from there
    told: list[dict[int, int]] = [{} for _ in range(nranks)]
    for u, v in sorted(hops):
        nearer = np.flatnonzero(finite[v] & (distances[u] + hops[u, v] == distances[v]))
        told[v][u] = sum(1 << x for x in nearer.tolist())
    end = int(distances[finite].max(initial=0))
    # of each rank those, as bits, of whom it can have heard by a time; then those of whom it must have
    within: list[list[int]] = []
    for v in range(nranks):
        first = [0] * (end + 1)
        for x in np.flatnonzero(finite[v]).tolist():
            first[int(distances[v, x])] |= 1 << x
        within.append(list(accumulate(first, or_)))
    needed = [[0] * (end + 1) for _ in range(nranks)]
    for v in range(nranks):
        needed[v][int(distances[finite[v]][:, finite[v]].max())] = within[v][end]
    events: list[list[_Event]] = [[] for _ in range(nranks)]
    for time in range(end, 0, -1):
        for v in range(nranks):
            missing = needed[v][time]
            if not missing & ~within[v][time - 1]:
                needed[v][time - 1] |= missing
                continue
            while last := missing & ~within[v][time - 1]:
                u = max(told[v], key=lambda u: (told[v][u] & last).bit_count())
                sent = time - hops[u, v]
                needed[u][sent] |= missing & told[v][u]
                missing &= ~told[v][u]
                events[u].append(_Event(sent, True, v))
                events[v].append(_Event(time, False, u))
            needed[v][time - 1] |= missing
    return [sorted(found) for found in events]


def _blocks(events: list[list[_Event]], nodes: Sequence[int]) -> list[list[PlanBlock]]:
    """The threadblocks of each rank; their channels are still named by the rank at the other end."""
    blocks: list[list[PlanBlock]] = []
    for rank, mine in enumerate(events):
        ends = sorted({event.other for event in mine})
        parts = [ends[low : low + MAX_CHANNELS] for low in range(0, len(ends), MAX_CHANNELS)]
        blocks.append([_block(part, mine, len(parts), [node == nodes[rank] for node in nodes]) for part in parts])
    return blocks


def _block(ends: list[int], events: list[_Event], nblocks: int, near: list[bool]) -> PlanBlock:
    """One of a rank's `nblocks`, with channels to the ranks `ends`. near: of each rank, whether by memory."""
    block = PlanBlock()
    for end in ends:
        block.channels.setdefault("memory" if near[end] else "port", []).append(end)
    for (_, signals), group in groupby(events, key=lambda event: event[:2]):
        others = [event.other for event in group]
        if signals and nblocks > 1:
            block.ops.append(Op("barrier", barrier=_BARRIER, blocks=nblocks))
        elif block.ops:
            block.ops.append(Op("nop"))
        for kind, found in block.channels.items():
            numbers = [found.index(other) for other in others if other in found]
            for low in range(0, len(numbers), MAX_OP_CHANNELS):
                op = Op(
                    "signal" if signals else "wait", channel_type=kind, channels=numbers[low : low + MAX_OP_CHANNELS]
                )
                block.ops.append(op)
    return block
