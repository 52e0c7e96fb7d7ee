"""What each actor of a plan knows to be over: vector clocks over threadblocks and over what moves on port channels.

An actor's threads are in step only at a `nop`. So an actor's life is cut into ticks, by its nops and by the packets
that it writes: what it knows of another actor is the number of ticks that are over, plus one once that actor's rank
has started. `seen` is knowledge of execution, `shown` of memory: a relaxed signal and a packet's flag order the first
and not the second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topologies.errors import InputError

Row = NDArray[np.int32]
MAX_ENTRIES = 1 << 26  # int32 entries of all rows together


class Message(NamedTuple):
    """What a signal, a release or a packet says: rows of `seen` and `shown`."""

    seen: Row
    shown: Row | None


class Clocks:
    """`rank`: of each actor. tick: the one each is in. nops: how many each has behind it.

    one: seen and shown never differ in this plan.
    """

    def __init__(self, rank: list[int], one: bool) -> None:
        size = len(rank)
        if size * size * (1 if one else 2) > MAX_ENTRIES:
            raise InputError(f"plan of {size} threadblocks and port channels: too large to be checked")
        self.rank = rank
        self.one = one
        self.entries = 0
        self.tick = [0] * size
        self.nops = [0] * size
        ranks = np.array(rank, dtype=np.int64)
        self.seen = list((ranks[:, None] == ranks[None, :]).astype(np.int32))
        self.shown = self.seen if one else [row.copy() for row in self.seen]
        self.heard: list[list[Message]] = [[] for _ in rank]
        self.first = {r: actor for actor, r in reversed(list(enumerate(rank)))}

    def nop(self, actor: int) -> None:
        """All threads have caught up: what one of them heard, all know."""
        for message in self.heard[actor]:
            self._join(actor, message)
        self.heard[actor].clear()
        self.nops[actor] += 1
        self.tick[actor] += 1
        self.seen[actor][actor] = self.shown[actor][actor] = self.tick[actor] + 1

    def _join(self, actor: int, message: Message) -> None:
        np.maximum(self.seen[actor], message.seen, out=self.seen[actor])
        if message.shown is not None and not self.one:
            np.maximum(self.shown[actor], message.shown, out=self.shown[actor])

    def say(self, actor: int, relaxed: bool = False) -> Message:
        """What a signal of one of its threads tells: what was over at the last nop."""
        self._count()
        if relaxed:
            return Message(self.seen[actor].copy(), None)
        return Message(self.seen[actor].copy(), None if self.one else self.shown[actor].copy())

    def _count(self) -> None:
        self.entries += len(self.rank) * (1 if self.one else 2)
        if self.entries > 4 * MAX_ENTRIES:
            raise InputError("plan with too many signals between too many threadblocks to be checked")

    def hear(self, actor: int, message: Message) -> None:
        """One of its threads knows; the others from the next nop on."""
        self.heard[actor].append(message)

    def say_packet(self, actor: int) -> Message:
        """What the thread that reads a packet learns: its writer has come that far, this operation included."""
        self._count()
        row = self.seen[actor].copy()
        row[actor] = self.tick[actor] + 2
        return Message(row, None)

    def sent_packet(self, actor: int) -> None:
        """What the actor does from now on, the packet says nothing of."""
        self.tick[actor] += 1

    def hear_packet(self, actor: int, message: Message) -> None:
        """Each thread reads the packets of the elements that it goes on with, so it need not wait for the others."""
        np.maximum(self.seen[actor], message.seen, out=self.seen[actor])

    def started(self, actor: int, rank: int) -> bool:
        """Whether it knows that the rank's kernel has started: its input is there, its buffers are free."""
        first = self.first.get(rank)
        return self.rank[actor] == rank or (first is not None and bool(self.seen[actor][first]))

    def ended(self, actors: list[int]) -> Row:
        """What is known to be over when all these actors have ended."""
        for actor in actors:
            self.nop(actor)
        row: Row = np.maximum.reduce([self.seen[actor] for actor in actors])
        return row
