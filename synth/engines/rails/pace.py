"""The order of sends over rails that all nodes send at one pace, slot by slot, in pieces whose phases overlap.

In a slot each door sends and receives about as often as any other. While a slot only sums or only copies, it lasts as
long as the slowest node needs for it. An all-reduce is cut into pieces: while the sums of one come together, those of
the piece before are copied, in turn slot by slot. Then a slow node has the time of two slots for what it sends in one
and for what it gets in the other, so that the others do not wait for it.

A slot of sums is followed by the slot of copies in which the same two nodes meet. Where a node without sums of its own
sends a door more in the first than the others do, that door gets nothing in the second, and so is not late.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from synth.baselines.fifo import waits
from synth.engines.flow.csr_network import csr_network
from synth.engines.flow.list_scheduling import list_schedule
from synth.engines.rails.doors import RailDoors
from synth.engines.rails.plan import Rows, joined
from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import choose_runner
from synth.model.problem import Problem
from synth.model.schedule import Schedule, untimed
from topologies.arrays import pointers, row_entries
from topologies.network import Network

_EARLY = 1  # Slots for which a node's sums are ready before they cross, so that no door waits for them.
_ROUND_OFF = 1e-9


class SlotPace(NamedTuple):
    """The pace of slots.

    Attributes:
        slot_us: Time in µs that the fastest node needs for a slot.
        slowness: How many times longer the slowest node needs for it.
        latency_us: Time in µs from the end of the last slot of sums to the first of their copies.
    """

    slot_us: float
    slowness: float
    latency_us: float


def paced(problem: Problem, doors: RailDoors, copies: Rows, pieces: int, size_bytes: float) -> Schedule:
    """Return the sends of a problem in the order of their slots, without times.

    Args:
        problem: Copies of chunks to all ranks, or an all-reduce in pieces with equally many chunks.
        doors: The nodes and rails.
        copies: The copies of all chunks of the problem, or of the first piece, in the order of their slots.
        pieces: Number of pieces of an all-reduce; 1 for copies.
        size_bytes: Message size in bytes.
    """
    pace = _pace(problem, doors, copies, size_bytes)
    if problem.collective.reduces.any():
        rows, adds, when_us = _pieces(problem.collective.nchunks // pieces, pieces, doors, copies, pace)
    else:
        rows, adds = copies, np.zeros(len(copies.chunk), dtype=bool)
        slot, part = _slots(copies)
        when_us = (slot * pace.slowness + part) * pace.slot_us
    for node in np.flatnonzero(_are_unlike(doors)).tolist():
        _order_node(problem, doors, node, rows, adds, when_us, size_bytes)
    _keep_order(problem, rows, when_us, pace.slot_us * _ROUND_OFF)
    order = np.argsort(when_us, kind="stable")
    link = doors.link[rows.tail[order], rows.head[order]]
    return untimed(rows.chunk[order], link, rows.step[order], adds[order])


def _slots(rows: Rows) -> tuple[Ints, Floats]:
    """Return the slot of each send, and the part of the slot after which it starts."""
    slot = np.floor(rows.slot + _ROUND_OFF).astype(np.int64)
    return slot, rows.slot - slot


def _are_unlike(doors: RailDoors) -> Bools:
    """Return whether each node lacks a rank or has a door that is slower than the fastest of all, shape (nodes,)."""
    rates = np.stack([doors.rate_in, doors.rate_out])
    return np.asarray((rates < rates.max()).any(axis=(0, 2)) | (doors.members < 0).any(axis=1))


def _pace(problem: Problem, doors: RailDoors, copies: Rows, size_bytes: float) -> SlotPace:
    """Return the pace at which all nodes can send and receive a slot's chunks over their doors."""
    net = problem.network
    kilobytes = float(problem.collective.chunk_bytes(size_bytes).max()) * 1e-3
    crosses = doors.node[copies.tail] != doors.node[copies.head]
    place = doors.node[copies.tail[crosses]] * doors.nnodes + doors.node[copies.head[crosses]]
    slot_us = np.bincount(place).max() * kilobytes / float(doors.node_gbs.max())
    inner = doors.link[copies.tail[~crosses], copies.head[~crosses]]
    inside_us = (kilobytes / net.bandwidth_gbs[inner] + net.alpha_us[inner]).max(initial=0.0)
    outer = doors.link[copies.tail[crosses], copies.head[crosses]]
    latency_us = 2 * inside_us * (doors.members.shape[1] - 1) + float(net.alpha_us[outer].max()) + slot_us
    return SlotPace(float(slot_us), doors.slowness, latency_us)


def _pieces(nchunks: int, pieces: int, doors: RailDoors, copies: Rows, pace: SlotPace) -> tuple[Rows, Bools, Floats]:
    """Return the sends of an all-reduce in pieces, whether each adds, and the times in µs at which they are planned.

    Args:
        nchunks: Number of chunks of a piece.
        pieces: Number of pieces.
        doors: The nodes and rails.
        copies: The copies of the first piece. Backwards they are its sums.
        pace: The pace of slots.
    """
    nslots, nsteps = doors.nnodes - 1, int(copies.step.max()) + 1
    sums_us, copies_us = _slot_times(nslots, pieces, pace)
    slot, part = _slots(copies)
    prepares = (doors.node[copies.tail] == doors.node[copies.head]) & (slot > 0)
    part_us = part * pace.slot_us
    before_us = np.where(slot > 0, 0.0, pace.slot_us)  # Owners copy to their own nodes before the first slot.
    columns, adds, when_us = [], [], []
    for piece in range(pieces):
        chunk, first = copies.chunk + piece * nchunks, piece * nslots
        sums = Rows(chunk, copies.head, copies.tail, nsteps - 1 - copies.step, copies.slot)
        columns.append(sums.take(np.arange(len(chunk))[::-1]))
        when_us.append((sums_us[first + nslots + 1 - slot + _EARLY * ~prepares] - part_us)[::-1])
        columns.append(copies._replace(chunk=chunk, step=nsteps + copies.step))
        when_us.append(copies_us[first + np.maximum(slot, 1)] + part_us - before_us)
        adds += [True, False]
    return joined(columns), np.repeat(adds, len(slot)), np.concatenate(when_us)


def _slot_times(nslots: int, pieces: int, pace: SlotPace) -> tuple[Floats, Floats]:
    """Return the starts in µs of the slots of sums and of copies.

    Slot s of piece p is at p · nslots + s. The last slot of a piece is the first of the next one.

    Args:
        nslots: Number of slots of a piece in which chunks cross; slots before and after these are for other sends.
        pieces: Number of pieces.
        pace: The pace of slots.
    """
    count = pieces * nslots + 2
    sums_us, copies_us = np.zeros(count + _EARLY), np.zeros(count)
    alone_us, in_turn_us = pace.slot_us * pace.slowness, pace.slot_us * max(1.0, pace.slowness / 2)
    now_us = 0.0
    for slot in range(count + _EARLY):
        copied = slot - _EARLY - nslots
        sums_us[slot] = now_us
        now_us += in_turn_us if copied > 0 else alone_us
        if copied > 0:
            now_us += pace.latency_us if (copied - 1) % nslots == 0 else 0.0
            copies_us[copied] = now_us
            now_us += in_turn_us
    first = count - nslots
    copies_us[first:] = now_us + alone_us * np.arange(nslots)
    return sums_us, copies_us


def _order_node(
    problem: Problem, doors: RailDoors, node: int, rows: Rows, adds: Bools, when_us: Floats, size_bytes: float
) -> None:
    """Set `when_us` of the sends inside and out of a node to those of a list schedule in which chunks come as planned.

    Args:
        problem: The problem.
        doors: The nodes and rails.
        node: The node.
        rows: All sends.
        adds: Whether each adds to a sum.
        when_us: Time in µs at which each is planned; changes.
        size_bytes: Message size in bytes.
    """
    is_from, is_to = doors.node[rows.tail] == node, doors.node[rows.head] == node
    chosen = np.flatnonzero(is_from | is_to)
    chosen = chosen[np.argsort(when_us[chosen], kind="stable")]
    enters, leaves = ~is_from[chosen], ~is_to[chosen]
    chunk, tail, head, step = (column[chosen] for column in (rows.chunk, rows.tail, rows.head, rows.step))
    planned_us = when_us[chosen]
    link = doors.link[tail, head]
    hold_us = problem.collective.chunk_bytes(size_bytes)[chunk] * 1e-3 / problem.network.bandwidth_gbs[link]
    for door in np.unique(head[enters]):
        # What comes over a door holds it from the arrival before on, so that it comes when it is planned.
        through = np.flatnonzero(enters & (head == door))
        busy_us = np.cumsum(hold_us[through])
        end_us = busy_us + np.maximum.accumulate(planned_us[through] - (busy_us - hold_us[through]))
        hold_us[through] = np.diff(end_us, prepend=0.0)
    # One link stands for all by which chunks come to a door, and one for all by which they leave it.
    port = np.where(enters, -1 - head, np.where(leaves, problem.network.nlinks + tail, link))
    _, first, bundle = np.unique(port, return_index=True, return_inverse=True)
    before, after = waits(problem, untimed(chunk, link, step, adds[chosen]))
    is_inside = ~enters[after]
    run = choose_runner(1e-5 * len(link))
    net = run.table(csr_network(_with_links(problem.network, link[first])))
    order, start_us = list_schedule(
        run, net, bundle.reshape(-1), hold_us, -planned_us, before[is_inside], after[is_inside]
    )
    listed_us = np.empty(len(link))
    listed_us[order] = start_us
    # What leaves goes no sooner than the other nodes expect it.
    listed_us[leaves] = np.maximum(listed_us, planned_us)[leaves]
    when_us[chosen] = np.where(enters, planned_us, listed_us)


def _with_links(net: Network, links: Ints) -> Network:
    """Return a network with some of its links, under new numbers, and all resources."""
    return replace(
        net,
        src=net.src[links],
        dst=net.dst[links],
        alpha_us=net.alpha_us[links],
        bandwidth_gbs=net.bandwidth_gbs[links],
        uses_ptr=pointers(np.diff(net.uses_ptr)[links]),
        uses_idx=net.uses_idx[row_entries(net.uses_ptr, links)],
        gap_us=net.gap_us[links] if len(net.gap_us) else net.gap_us,
        hyperlinks=None,
        switch_graph=None,
    )


def _keep_order(problem: Problem, rows: Rows, when_us: Floats, least_us: float) -> None:
    """Raise `when_us` where a send would stand before one that brings what it carries, by at least `least_us`."""
    latest_us = np.full(problem.collective.nchunks * problem.nranks, -np.inf)
    leaves, reaches = rows.chunk * problem.nranks + rows.tail, rows.chunk * problem.nranks + rows.head
    order = np.argsort(rows.step, kind="stable")
    for sends in np.split(order, np.cumsum(np.bincount(rows.step))[:-1]):
        when_us[sends] = np.maximum(when_us[sends], latest_us[leaves[sends]] + least_us)
        np.maximum.at(latest_us, reaches[sends], when_us[sends])
