"""Vector clocks: what each actor knows to be over.

Entry b of an actor's row counts the events of actor b that are over for certain whenever the actor goes on from here.
Two accesses are ordered if the later one's actor knows of the earlier one when it takes place; what is not ordered so
happens in the other order in some interleaving.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from emit.check.capacity import CAPACITY
from topologies.errors import InputError

Row = NDArray[np.int32]


class VectorClocks:
    """A row of `width` entries for each actor, zeros until it learns something."""

    __slots__ = ("rows", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.rows: dict[int, Row] = {}

    def row(self, actor: int) -> Row:
        """The actor's row itself, not a copy."""
        if actor not in self.rows:
            self.rows[actor] = np.zeros(self.width, dtype=np.int32)
        return self.rows[actor]

    def learn(self, actor: int, known: Row) -> None:
        """The actor hears from somebody who knew `known`."""
        row = self.row(actor)
        np.maximum(row, known, out=row)


class Message:
    """What a signal, a release or a packet tells: rows of `seen` and `shown`; `held` counts the entries of all."""

    __slots__ = ("_held", "_size", "seen", "shown")

    def __init__(self, seen: Row, shown: Row | None, held: list[int]) -> None:
        self.seen, self.shown, self._held = seen, shown, held
        self._size = len(seen) * (1 if shown is None else 2)
        held[0] += self._size

    def __del__(self) -> None:
        self._held[0] -= self._size


class ThreadClocks:
    """Clocks of actors of many threads: threadblocks of an execution plan, and what moves on its port channels.

    An actor's threads are in step only at a `nop`. So its life is cut into ticks, by its nops and by the packets that
    it writes: what it knows of another actor is the number of ticks that are over, plus one once that actor's rank has
    started. `seen` is knowledge of execution, `shown` of memory: a relaxed signal and a packet's flag order the first
    and not the second.

    Attributes:
        rank: of each actor. tick: the one each is in. nops: how many each has behind it.
        seen, shown: one and the same where `one` says that they never differ in this plan.
    """

    def __init__(self, rank: list[int], one: bool) -> None:
        size = len(rank)
        most = isqrt(2 * CAPACITY.clock_entries // (1 if one else 2))
        if size > most:
            raise InputError(f"plan of {size} threadblocks and port channels; it must be at most {most} to be checked")
        self.rank = rank
        self.one = one
        self._held = [0]  # entries of all messages that somebody may still hear
        self.tick = [0] * size
        self.nops = [0] * size
        self.seen, self.shown = VectorClocks(size), VectorClocks(size)
        ranks = np.array(rank, dtype=np.int64)
        self.seen.rows = dict(enumerate((ranks[:, None] == ranks[None, :]).astype(np.int32)))
        self.shown.rows = {actor: row.copy() for actor, row in self.seen.rows.items()}
        if one:
            self.shown = self.seen
        self.heard: list[list[Message]] = [[] for _ in rank]
        self.first = {r: actor for actor, r in reversed(list(enumerate(rank)))}

    def nop(self, actor: int) -> None:
        """All threads have caught up: what one of them heard, all know."""
        for message in self.heard[actor]:
            self.seen.learn(actor, message.seen)
            if message.shown is not None and not self.one:
                self.shown.learn(actor, message.shown)
        self.heard[actor].clear()
        self.nops[actor] += 1
        self.tick[actor] += 1
        self.seen.row(actor)[actor] = self.shown.row(actor)[actor] = self.tick[actor] + 1

    def message(self, actor: int, relaxed: bool = False) -> Message:
        """What a signal of one of its threads tells: what was over at the last nop."""
        whole = not (relaxed or self.one)
        return self._counted(self.seen.row(actor).copy(), self.shown.row(actor).copy() if whole else None)

    def packet(self, actor: int) -> Message:
        """What the thread that reads a packet learns: its writer has come that far, this operation included."""
        row = self.seen.row(actor).copy()
        row[actor] = self.tick[actor] + 2
        return self._counted(row, None)

    def _counted(self, seen: Row, shown: Row | None) -> Message:
        if self._held[0] > 8 * CAPACITY.clock_entries:
            raise InputError("plan with too many signals on their way between too many threadblocks to be checked")
        return Message(seen, shown, self._held)

    def hear(self, actor: int, message: Message) -> None:
        """One of its threads knows; the others from the next nop on."""
        self.heard[actor].append(message)

    def started(self, actor: int, rank: int, begun: int) -> bool:
        """Whether it knows that the rank's kernel has started: its input is there, its buffers are free.

        begun: the tick in which the rank's first actor began.
        """
        first = self.first.get(rank)
        return self.rank[actor] == rank or (first is not None and bool(self.seen.row(actor)[first] > begun))

    def join(self, actors: Sequence[int]) -> None:
        """All these actors have come to one place: what any of them knows is known to all."""
        for actor in actors:
            self.nop(actor)
        for clocks in (self.seen,) if self.one else (self.seen, self.shown):
            known = np.maximum.reduce([clocks.row(actor) for actor in actors])
            for actor in actors:
                clocks.row(actor)[:] = known
        for actor in actors:
            self.nop(actor)

    def ended(self, actors: Iterable[int]) -> Row:
        """What is known to be over when all these actors (one at least) have ended."""
        known = []
        for actor in actors:
            self.nop(actor)
            known.append(self.seen.row(actor))
        row: Row = np.maximum.reduce(known)
        return row
