"""Track with vector clocks which events each actor knows to be over.

Entry b of an actor's row counts the events of actor b that are certainly over whenever the actor proceeds from its
present place. Two accesses are ordered if the later access's actor knows of the earlier access at that time; accesses
that are not ordered happen in the opposite order in some interleaving.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from emit.check.capacity import CAPACITY
from emit.images import Images
from synth.model.collective import Ints
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
        """Return the actor's row itself, not a copy, int32, shape (width,); a new actor gets a row of zeros."""
        row = self.rows.get(actor)
        if row is None:
            row = self.rows[actor] = np.zeros(self.width, dtype=np.int32)
        return row

    def learn(self, actor: int, known_row: Row) -> None:
        """Add the row `known_row` to the actor's row: each entry becomes the greater one, in place."""
        row = self.row(actor)
        np.maximum(row, known_row, out=row)


def image_of_row(row: Row, seen: Ints | None) -> Row:
    """Return a copy of a row as another rank sees it.

    Args:
        row: A row with an entry for each group element of each actor: entry actor · order + element.
        seen: For each element as the row's rank counts it, the number of the same image as an element of the other
            rank; None to change nothing.
    """
    if seen is None:
        return row.copy()
    image = np.empty_like(row)
    image.reshape(-1, len(seen))[:, seen] = row.reshape(-1, len(seen))
    return image


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


class ActorGroup:
    """The group of translations whose images the ranks are; only the identity, whose number is 0, without images.

    Attributes:
        images: Images of the ranks; None without images.
        order: Number of elements.
    """

    def __init__(self, images: Images | None) -> None:
        self.images, self.order = images, 1 if images is None else images.order
        self._elements = [] if images is None else images.element.tolist()
        self._inverses = [0] if images is None else [images.inverse(element) for element in range(self.order)]
        self._composed: dict[int, Ints] = {}

    def element(self, rank: int) -> int:
        """Return the number of the element that maps a rank's representative to it; 0 without images."""
        return self._elements[rank] if self._elements else 0

    def inverse(self, element: int) -> int:
        """Return the number of the inverse of an element."""
        return self._inverses[element]

    def representative(self, rank: int) -> int:
        """Return a rank's representative; the rank itself without images."""
        return rank if self.images is None else int(self.images.representative[rank])

    def composed(self, element: int) -> Ints | None:
        """Return the product of an element with every element, int, shape (order,); None for the identity."""
        if self.images is None or not element:
            return None
        if element not in self._composed:
            self._composed[element] = self.images.composed(element)
        return self._composed[element]


class ThreadClocks:
    """The clocks of actors with many threads: threadblocks of an execution plan, and transfers of its port channels.

    An actor's threads are in step only at a `nop`. Therefore its life is divided into ticks, by its nops and by the
    packets that it writes. Its knowledge of another actor is the number of ticks that are over, plus one once that
    actor's rank has started. `seen` is knowledge of execution, `shown` is knowledge of memory: a relaxed signal and a
    packet's flag order the execution, but not memory.

    With images of the ranks, the actors are those of representatives, and a row has an entry for each image of each
    actor, as the row's rank sees them: entry `actor · order + element`.

    Attributes:
        rank: Rank of each actor.
        merged: Whether `seen` and `shown` are one object, because they never differ in this plan.
        group: The group of the images.
        tick: Number of the tick that each actor is in.
        nops: Number of nops that each actor has executed.
        seen: Knowledge of execution.
        shown: Knowledge of memory.
        heard: Messages that each actor has heard since its last nop.
        first: First actor of each rank.

    Raises:
        InputError: If there are too many actors.
    """

    def __init__(self, rank: list[int], merged: bool, group: ActorGroup) -> None:
        check_deadline()
        size, self.group = len(rank), group
        max_actors = isqrt(2 * CAPACITY.clock_entries // (group.order if merged else 2 * group.order))
        if size > max_actors:
            raise InputError(
                f"plan of {size} threadblocks and port channels; it must be at most {max_actors} to be checked"
            )
        self.rank = rank
        self.merged = merged
        self._total_entries = [0]  # entries of all messages that exist, in a list that the messages share
        self.tick = [0] * size
        self.nops = [0] * size
        self.seen, self.shown = VectorClocks(size * group.order), VectorClocks(size * group.order)
        ranks = np.array(rank, dtype=np.int64)
        rows = np.zeros((size, size, group.order), dtype=np.int32)
        rows[:, :, 0] = ranks[:, None] == ranks[None, :]
        self.seen.rows = dict(enumerate(rows.reshape(size, size * group.order)))
        self.shown.rows = {actor: row.copy() for actor, row in self.seen.rows.items()}
        if merged:
            self.shown = self.seen
        self.heard: list[list[Message]] = [[] for _ in rank]
        self.first = {r: actor for actor, r in reversed(list(enumerate(rank)))}

    def nop(self, actor: int) -> None:
        """Update an actor whose threads synchronize: all of them learn the messages that one of them heard.

        The messages are removed from `heard`. The actor's counts of nops and ticks grow by one, and its earlier ticks
        count as over.
        """
        for message in self.heard[actor]:
            self.seen.learn(actor, message.seen)
            if message.shown is not None and not self.merged:
                self.shown.learn(actor, message.shown)
        self.heard[actor].clear()
        self.nops[actor] += 1
        self.tick[actor] += 1
        at = actor * self.group.order
        self.seen.row(actor)[at] = self.tick[actor] + 1
        if not self.merged:
            self.shown.row(actor)[at] = self.tick[actor] + 1

    def message(self, actor: int, relaxed: bool = False) -> Message:
        """Return the message of a signal that one thread of the actor sends: the knowledge at the actor's last nop.

        A relaxed message carries knowledge of execution only.

        Raises:
            InputError: If too many messages are in flight.
        """
        orders_memory = not (relaxed or self.merged)
        return self._counted(self.seen.row(actor).copy(), self.shown.row(actor).copy() if orders_memory else None)

    def packet(self, actor: int) -> Message:
        """Return the message of a packet that the actor writes: the writer's progress, this operation included.

        It carries knowledge of execution only. The caller must begin a new tick.

        Raises:
            InputError: If too many messages are in flight.
        """
        row = self.seen.row(actor).copy()
        row[actor * self.group.order] = self.tick[actor] + 2
        return self._counted(row, None)

    def entry(self, actor: int, element: int) -> int:
        """Return the entry of a row for the image of an actor under an element."""
        return actor * self.group.order + element

    def known(self, actor: int, other_actor: int) -> int:
        """Return what an actor knows of the execution of another actor of its rank: ticks that are over, plus one.

        It is 0 if the actor does not know that the other one's rank has started.
        """
        return int(self.seen.row(actor)[other_actor * self.group.order])

    def known_of(self, clocks: VectorClocks, entry: int, other: int) -> int:
        """Return what the image of an actor knows of the image of another, as ticks that are over, plus one.

        Args:
            clocks: The clocks to look into, `seen` or `shown`.
            entry: Entry of the first image in the rows of some rank.
            other: Entry of the other image in the rows of the same rank.
        """
        order = self.group.order
        if order == 1:
            return int(clocks.row(entry)[other])
        actor, element = divmod(entry, order)
        other_actor, other_element = divmod(other, order)
        back = self.group.composed(self.group.inverse(element))
        own_element = other_element if back is None else int(back[other_element])
        return int(clocks.row(actor)[other_actor * order + own_element])

    def seen_from(self, message: Message, rank: int) -> Message:
        """Return a message as its receiver's representative sees it; `rank` is the receiver as the sender sees it."""
        return self._as_seen(message, self.group.inverse(self.group.element(rank)))

    def seen_by(self, message: Message, rank: int, source: int) -> Message:
        """Return a message that is kept in the memory of `source` as `rank`, a representative, sees it."""
        return message if rank == source else self._as_seen(message, self.group.element(source))

    def _as_seen(self, message: Message, element: int) -> Message:
        """Return a message with each image of an actor replaced by its image under an element; itself for the identity.

        Raises:
            InputError: If too many messages are in flight.
        """
        products = self.group.composed(element)
        if products is None:
            return message
        shown = None if message.shown is None else image_of_row(message.shown, products)
        return self._counted(image_of_row(message.seen, products), shown)

    def _counted(self, seen_row: Row, shown_row: Row | None) -> Message:
        """Build a message, whose entries count as in flight while it exists.

        Raises:
            InputError: If too many messages are in flight.
        """
        if self._total_entries[0] > 8 * CAPACITY.clock_entries:
            raise InputError("plan with too many signals in flight between too many threadblocks to be checked")
        return Message(seen_row, shown_row, self._total_entries)

    def hear(self, actor: int, message: Message) -> None:
        """Record that one thread of the actor received a message; its other threads know it from the next nop on."""
        self.heard[actor].append(message)

    def started(self, actor: int, rank: int, begun: Sequence[int]) -> bool:
        """Return True if the actor knows that a rank's kernel has started: its input is set, its buffers are free.

        Args:
            actor: The actor that must know it.
            rank: The rank whose kernel must have started.
            begun: Tick in which each rank's first actor began.
        """
        return self.rank[actor] == rank or self.has_begun(self.seen.row(actor), rank, begun)

    def has_begun(self, row: Row, rank: int, begun: Sequence[int]) -> bool:
        """Return True if a rank's kernel has started according to a row.

        It is False for an empty row, or a rank without actors.

        Args:
            row: A row of a representative's knowledge.
            rank: The rank, as that representative sees it.
            begun: Tick in which each rank's first actor began.
        """
        owner = self.group.representative(rank)
        first = self.first.get(owner)
        if first is None or not len(row):
            return False
        return bool(row[self.entry(first, self.group.element(rank))] > begun[owner])

    def join(self, actors: Sequence[int]) -> None:
        """Update actors that meet at a barrier: each of them learns what any of them knows.

        Each of them executes a nop before and another one after.
        """
        for actor in actors:
            self.nop(actor)
        for clocks in (self.seen,) if self.merged else (self.seen, self.shown):
            joint_row = np.maximum.reduce([clocks.row(actor) for actor in actors])
            for actor in actors:
                clocks.row(actor)[:] = joint_row
        for actor in actors:
            self.nop(actor)

    def ended(self, actors: Sequence[int]) -> tuple[Row, Row]:
        """Return the rows of what these actors, one at least, have seen and what memory they were shown at their end.

        Each of them executes a nop before.
        """
        for actor in actors:
            self.nop(actor)
        latest = np.maximum.reduce
        return latest([self.seen.row(actor) for actor in actors]), latest([self.shown.row(actor) for actor in actors])
