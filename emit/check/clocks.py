"""Track with vector clocks which events each actor knows to be over.

Entry b of an actor's row counts the events of actor b that are certainly over whenever the actor proceeds from its
present place. Two accesses are ordered if the later access's actor knows of the earlier access at that time; accesses
that are not ordered happen in the opposite order in some interleaving.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from emit.check.capacity import CAPACITY
from synth.model.deadline import check_deadline
from topologies.errors import InputError

Row = NDArray[np.int32]


class VectorClocks:
    """The rows of knowledge of all actors: `width` entries each, zeros until the actor learns something."""

    __slots__ = ("rows", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.rows: dict[int, Row] = {}

    def row(self, actor: int) -> Row:
        """Return the actor's row itself, not a copy."""
        if actor not in self.rows:
            self.rows[actor] = np.zeros(self.width, dtype=np.int32)
        return self.rows[actor]

    def learn(self, actor: int, known_row: Row) -> None:
        """Add the row `known_row` of another actor to the actor's row: each entry becomes the greater one, in place."""
        row = self.row(actor)
        np.maximum(row, known_row, out=row)


class Message:
    """The knowledge that a signal, a release or a packet carries: rows of `seen` and `shown` (see `ThreadClocks`).

    A message adds its size to the number of entries of all messages, `total_entries`, while it exists.
    """

    __slots__ = ("_size", "_total_entries", "seen", "shown")

    def __init__(self, seen_row: Row, shown_row: Row | None, total_entries: list[int]) -> None:
        self.seen, self.shown, self._total_entries = seen_row, shown_row, total_entries
        self._size = len(seen_row) * (1 if shown_row is None else 2)
        total_entries[0] += self._size

    def __del__(self) -> None:
        self._total_entries[0] -= self._size


class ThreadClocks:
    """The clocks of actors with many threads: threadblocks of an execution plan, and transfers of its port channels.

    An actor's threads are in step only at a `nop`. Therefore its life is divided into ticks, by its nops and by the
    packets that it writes. Its knowledge of another actor is the number of ticks that are over, plus one once that
    actor's rank has started. `seen` is knowledge of execution, `shown` is knowledge of memory: a relaxed signal and a
    packet's flag order the execution, but not memory.

    Attributes:
        rank: Rank of each actor.
        merged: Whether `seen` and `shown` are one object, because they never differ in this plan.
        tick: Number of the tick that each actor is in.
        nops: Number of nops that each actor has executed.
        seen: Knowledge of execution.
        shown: Knowledge of memory.
        heard: Messages that each actor has heard since its last nop.
        first: First actor of each rank.

    Raises:
        InputError: If there are too many actors.
    """

    def __init__(self, rank: list[int], merged: bool) -> None:
        check_deadline()
        size = len(rank)
        max_actors = isqrt(2 * CAPACITY.clock_entries // (1 if merged else 2))
        if size > max_actors:
            raise InputError(
                f"plan of {size} threadblocks and port channels; it must be at most {max_actors} to be checked"
            )
        self.rank = rank
        self.merged = merged
        self._total_entries = [0]  # entries of all messages that exist, in a list that the messages share
        self.tick = [0] * size
        self.nops = [0] * size
        self.seen, self.shown = VectorClocks(size), VectorClocks(size)
        ranks = np.array(rank, dtype=np.int64)
        self.seen.rows = dict(enumerate((ranks[:, None] == ranks[None, :]).astype(np.int32)))
        self.shown.rows = {actor: row.copy() for actor, row in self.seen.rows.items()}
        if merged:
            self.shown = self.seen
        self.heard: list[list[Message]] = [[] for _ in rank]
        self.first = {r: actor for actor, r in reversed(list(enumerate(rank)))}

    def nop(self, actor: int) -> None:
        """Update an actor whose threads synchronize: all of them learn the messages that one of them heard."""
        for message in self.heard[actor]:
            self.seen.learn(actor, message.seen)
            if message.shown is not None and not self.merged:
                self.shown.learn(actor, message.shown)
        self.heard[actor].clear()
        self.nops[actor] += 1
        self.tick[actor] += 1
        self.seen.row(actor)[actor] = self.shown.row(actor)[actor] = self.tick[actor] + 1

    def message(self, actor: int, relaxed: bool = False) -> Message:
        """Return the message of a signal that one thread of the actor sends: the knowledge at the actor's last nop.

        Raises:
            InputError: If too many messages are in flight.
        """
        orders_memory = not (relaxed or self.merged)
        return self._counted(self.seen.row(actor).copy(), self.shown.row(actor).copy() if orders_memory else None)

    def packet(self, actor: int) -> Message:
        """Return the message of a packet that the actor writes: the writer's progress, this operation included.

        Raises:
            InputError: If too many messages are in flight.
        """
        row = self.seen.row(actor).copy()
        row[actor] = self.tick[actor] + 2
        return self._counted(row, None)

    def _counted(self, seen_row: Row, shown_row: Row | None) -> Message:
        """Build a message; raise InputError if too many messages are in flight."""
        if self._total_entries[0] > 8 * CAPACITY.clock_entries:
            raise InputError("plan with too many signals in flight between too many threadblocks to be checked")
        return Message(seen_row, shown_row, self._total_entries)

    def hear(self, actor: int, message: Message) -> None:
        """Record that one thread of the actor received a message; its other threads know it from the next nop on."""
        self.heard[actor].append(message)

    def started(self, actor: int, rank: int, begun: int) -> bool:
        """Return True if the actor knows that a rank's kernel has started: its input is set, its buffers are free.

        Args:
            actor: The actor that must know it.
            rank: The rank whose kernel must have started.
            begun: Tick in which the rank's first actor began.
        """
        first = self.first.get(rank)
        return self.rank[actor] == rank or (first is not None and bool(self.seen.row(actor)[first] > begun))

    def join(self, actors: Sequence[int]) -> None:
        """Update actors that meet at a barrier: each of them learns what any of them knows."""
        for actor in actors:
            self.nop(actor)
        for clocks in (self.seen,) if self.merged else (self.seen, self.shown):
            joint_row = np.maximum.reduce([clocks.row(actor) for actor in actors])
            for actor in actors:
                clocks.row(actor)[:] = joint_row
        for actor in actors:
            self.nop(actor)

    def ended(self, actors: Iterable[int]) -> Row:
        """Return the knowledge of all these actors (one at least) when they have ended."""
        rows = []
        for actor in actors:
            self.nop(actor)
            rows.append(self.seen.row(actor))
        row: Row = np.maximum.reduce(rows)
        return row
