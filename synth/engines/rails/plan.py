"""The sends of copies, sums and exchanges over the rails of a cluster's nodes, slot by slot.

A message between two nodes is one chunk that crosses over one rail. In slot t every node sends to the node t places
after it, so that in every slot each door sends and receives as often as any other. Nodes whose doors differ get and
send their messages over them in proportion to their rates (see `RailDoors.choose_rails`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from synth.engines.rails.doors import RailDoors, positions_of_equal
from synth.model.collective import Floats, Ints
from synth.model.schedule import Schedule, untimed


class Rows(NamedTuple):
    """Sends in an order, as arrays of shape (sends,).

    Attributes:
        chunk: Chunk of each send.
        tail: Rank from which it goes.
        head: Rank to which it goes.
        step: Step of the send.
        slot: Time in slots by which sends are ordered.
    """

    chunk: Ints
    tail: Ints
    head: Ints
    step: Ints
    slot: Floats

    def take(self, places: Ints) -> Rows:
        """Return the sends at some places, in their order."""
        return Rows(*(column[places] for column in self))  # type: ignore[arg-type]


def spread(doors: RailDoors, owner: Ints) -> Rows:
    """Return copies of every chunk from its owner to all ranks, in the order of their slots.

    A chunk crosses once into every other node, and each rank at which it comes into a node copies it to the others.

    Args:
        doors: The nodes and rails.
        owner: Rank that has each chunk, shape (chunks,).
    """
    nnodes = doors.nnodes
    turn = _turns(owner)
    slot, chunk = (axis.ravel() for axis in np.indices((nnodes - 1, len(owner))))
    order = np.lexsort((turn[chunk], slot))  # The chunks of a rank follow each other within a slot.
    slot, chunk = slot[order] + 1, chunk[order]
    source = doors.node[owner[chunk]]
    goal = (source + slot) % nnodes
    wished = doors.rail[owner[chunk]]
    rail = doors.choose_rails(source, goal, wished)
    tail, head = doors.door[source, rail], doors.door[goal, rail]
    step = (tail != owner[chunk]).astype(np.int64)
    when = slot + turn[chunk]
    # Where the rank of a chunk's rail has no door there, that rank gets the chunk from another door and copies it to
    # the others, so that no rank of the node sends more than any other.
    hub = np.where(doors.door[goal, wished] < 0, doors.rank_on[goal, wished], -1)
    hub = np.where(hub < 0, head, hub)
    detour = np.flatnonzero(hub != head)
    zeros = np.zeros(len(owner), dtype=np.int64)
    return _in_order([
        _inside(doors, np.arange(len(owner)), owner, owner, zeros, turn),
        Rows(chunk, tail, head, step, when),
        Rows(chunk[detour], head[detour], hub[detour], step[detour] + 1, when[detour] + 0.5),
        _inside(doors, chunk, hub, head, step + 1 + (hub != head), when + 1),
    ])  # fmt: skip


def exchange(doors: RailDoors, source_rank: Ints, goal_rank: Ints) -> Schedule:
    """Return the sends of every chunk from one rank to another, in the order of their slots, without times.

    A chunk goes to the rank of its node on the rail of its goal, crosses, and goes on to its goal, in as many of these
    sends as it needs.

    Args:
        doors: The nodes and rails.
        source_rank: Rank that has each chunk, shape (chunks,).
        goal_rank: Rank that wants each chunk, shape (chunks,).
    """
    nrails, nnodes = doors.door.shape[1], doors.nnodes
    source, goal = doors.node[source_rank], doors.node[goal_rank]
    slot = (goal - source) % nnodes
    turn = (doors.rail[goal_rank] - doors.rail[source_rank]) % nrails / nrails
    chunk = np.lexsort((turn, slot))
    chunk = chunk[source_rank[chunk] != goal_rank[chunk]]
    first, last = source_rank[chunk], goal_rank[chunk]
    when = (slot + turn)[chunk]
    is_inside = slot[chunk] == 0
    crossing = chunk[~is_inside]
    rail = doors.choose_rails(source[crossing], goal[crossing], doors.rail[goal_rank[crossing]])
    tail, head = doors.door[source[crossing], rail], doors.door[goal[crossing], rail]
    first, last, when_across = first[~is_inside], last[~is_inside], when[~is_inside]
    before, after = tail != first, head != last
    step = before.astype(np.int64)
    inner = chunk[is_inside]
    zeros = np.zeros(len(chunk), dtype=np.int64)
    return in_slots(doors, _in_order([
        Rows(inner, source_rank[inner], goal_rank[inner], zeros[: len(inner)], when[is_inside]),
        Rows(crossing[before], first[before], tail[before], zeros[: int(before.sum())], when_across[before] - 1),
        Rows(crossing, tail, head, step, when_across),
        Rows(crossing[after], head[after], last[after], step[after] + 1, when_across[after] + 1),
    ]))  # fmt: skip


def _turns(owner: Ints) -> Floats:
    """Return the part of a slot after which each chunk of a rank leaves, from 0 to 1, shape (chunks,)."""
    place = positions_of_equal(owner)
    return np.asarray(place / (place.max(initial=0) + 1))


def _inside(doors: RailDoors, chunk: Ints, rank: Ints, has: Ints, step: Ints, slot: Floats) -> Rows:
    """Return copies of chunks from a rank to the others of its node, the next ones first, as rows in no order.

    Args:
        doors: The nodes and rails.
        chunk: The chunks, shape (n,).
        rank: Rank that copies each chunk, shape (n,).
        has: A rank that needs no copy of each chunk, shape (n,).
        step: Step of the copies of each chunk, shape (n,).
        slot: Slot of the copies of each chunk, shape (n,).
    """
    members, node = doors.members, doors.node[rank]
    size = (members >= 0).sum(axis=1)[node]
    ahead = np.arange(1, members.shape[1])
    head = members[node[:, None], (doors.place[rank][:, None] + ahead) % size[:, None]]
    is_wanted = (ahead < size[:, None]) & (head != has[:, None])
    # All ranks send to the next, then all to the one after it, so that they do not meet at one.
    turn = np.broadcast_to(ahead * 1e-6, is_wanted.shape)[is_wanted]
    repeats = is_wanted.sum(axis=1)
    chunk, tail, step = (np.repeat(column, repeats) for column in (chunk, rank, step))
    return Rows(chunk, tail, head[is_wanted], step, np.repeat(slot, repeats) + turn)


def _in_order(parts: list[Rows]) -> Rows:
    """Return the sends of all parts in the order of their slots."""
    rows = joined(parts)
    return rows.take(np.argsort(rows.slot, kind="stable"))


def joined(parts: list[Rows]) -> Rows:
    """Return the sends of all parts, part by part."""
    return Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def in_slots(doors: RailDoors, rows: Rows) -> Schedule:
    """Return the copies in their order, without times."""
    return untimed(rows.chunk, doors.link[rows.tail, rows.head], rows.step, np.zeros(len(rows.chunk), dtype=bool))
