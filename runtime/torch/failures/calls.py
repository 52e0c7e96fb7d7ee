"""Record the calls that a rank makes of a group, and its waits: how many, the most recent ones, and those under way."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from runtime.torch.failures.causes import Waiting

MOST_TEXTS = 64  # Most recent calls whose texts are kept.
_MOST_RECENT = 4  # Most recent calls that were handed on: data of more calls would not stay in the processor's caches.


@dataclass
class Wait:
    """A wait under way.

    Attributes:
        waiting: The call that is waited in.
        since: Start by `time.monotonic`, in seconds.
        thread: Thread that waits, or None.
        is_limited: Whether the thread goes on elsewhere after a time limit.
        is_reported: Whether the other ranks know of the wait.
    """

    waiting: Waiting
    since: float
    thread: int | None = None
    is_limited: bool = False
    is_reported: bool = False


class HandedOnCall(NamedTuple):
    """A call that was handed straight to the wrapped back end, and its wait; its text is built only on request.

    Attributes:
        number: Number of the call; None for one that is not counted.
        since: As in `Wait`.
        thread: As in `Wait`.
        describe: Builds the text from the three attributes below.
        size_bytes: Size of the message in bytes.
        kind: torch's type of the elements.
        opts: torch's options of the call, or what else the text depends on.
        peers: As in `Waiting`.
        work: The wrapped back end's Work of a call for which nobody waits yet; None if a thread waits for it.
    """

    number: int | None
    since: float
    thread: int | None
    describe: Callable[[int, Any, Any], str]
    size_bytes: int
    kind: Any
    opts: Any
    peers: Collection[int] | None = None
    work: Any = None

    @property
    def text(self) -> str:
        """Return the text of the call."""
        return self.describe(self.size_bytes, self.kind, self.opts)

    @property
    def waiting(self) -> Waiting:
        """Return the call in the form that other calls have."""
        return Waiting(self.text, self.number, self.peers)

    @property
    def wait(self) -> Wait:
        """Return the wait in the form that other waits have."""
        return Wait(self.waiting, self.since, self.thread)


class Calls:
    """The calls of one rank.

    Attributes:
        numbers: Iterator over the numbers of future calls.
        last_number: Number of the last call.
        handed_on: By number, calls that were handed on and are not over.
        messages: By thread, single messages that were handed on and for which the thread waits.
        recent: The last calls that were handed on. These three attributes hold plain tuples or lists in the form of
            `HandedOnCall`, since every call writes them.
    """

    def __init__(self) -> None:
        self.numbers, self.last_number = count(1), 0
        self.handed_on: dict[int, Any] = {}
        self.messages: dict[int, Any] = {}
        self.recent: deque[Any] = deque(maxlen=_MOST_RECENT)
        self._last: dict[int, Waiting] = {}  # By number modulo MOST_TEXTS.
        self._open: dict[int, Waiting] = {}
        self._waits_of_handed_on: dict[int, Wait] = {}
        self._waits: weakref.WeakKeyDictionary[Any, Wait] = weakref.WeakKeyDictionary()

    def issue(self, text: str, blocks: tuple[Sequence[int], Sequence[int]] | None = None) -> Waiting:
        """Return the next call, which all ranks make, with its number; it is under way until `close`.

        `blocks` are those of `Waiting`.
        """
        self.last_number = number = next(self.numbers)
        waiting = Waiting(text, number, blocks=blocks)
        self._last[number % MOST_TEXTS] = self._open[number] = waiting
        return waiting

    def close(self, waiting: Waiting) -> None:
        """Record that a call is over, if it is one that all ranks make."""
        if waiting.number is not None and self._open.get(waiting.number) is waiting:
            del self._open[waiting.number]

    def text(self, number: int) -> str | None:
        """Return the text of the call of a number; None for a call that is too old or not made yet.

        At least the open calls that were handed on, the last 4 of these and 64 others are known.
        """
        handed_on = [HandedOnCall(*entry) for entry in [*list(self.handed_on.values()), *list(self.recent)]]
        candidates = [self._last.get(number % MOST_TEXTS), *handed_on]
        return next((call.text for call in candidates if call is not None and call.number == number), None)

    def blocks(self, number: int, place: int) -> tuple[int, int] | None:
        """Return the elements that a call's rank sends to a place and expects from it; None if they are not known.

        `number` is that of the call. Those of the last 64 calls are known, without calls that were handed on.
        """
        call = self._last.get(number % MOST_TEXTS)
        if call is None or call.number != number or call.blocks is None:
            return None
        sent, expected = call.blocks
        return sent[place], expected[place]

    def is_open(self, number: int | None) -> bool:
        """Return True if the call of this number is not over."""
        return number in self._open or number in self.handed_on

    def first_open(self) -> int:
        """Return the number of the first call that is not over, or of the next call if all are over."""
        return min((*list(self._open), *list(self.handed_on)), default=self.last_number + 1)

    def begin_wait(self, key: Any, wait: Wait) -> None:
        """Record that a wait begins; it is forgotten with its key."""
        self._waits[key] = wait

    def end_wait(self, key: Any, closes: bool) -> None:
        """Record that a wait is over, and with `closes` its call, too; an unknown key is ignored."""
        wait = self._waits.pop(key, None)
        if wait is not None and closes:
            self.close(wait.waiting)

    def abandon_waits(self) -> None:
        """Call `abandon` of the key of each wait that has one, as futures do, to stop those that are not over."""
        for key in list(self._waits):
            getattr(key, "abandon", bool)()

    def waits(self) -> list[Wait]:
        """Return the waits that are not over, and forget those that have completed by themselves."""
        for key in [key for key in self._waits if getattr(key, "is_completed", bool)()]:
            self.end_wait(key, closes=True)
        messages = [HandedOnCall(*entry).wait for entry in list(self.messages.values())]
        return [*self._waits.values(), *messages, *self._handed_on_waits()]

    def held(self) -> tuple[dict[int | None, str], set[int], float]:
        """Return the texts of open calls by number, the threads that wait without a limit, and the first wait's start.

        The number None stands for waits in calls that are not counted. The start is by `time.monotonic`, inf without
        any wait.
        """
        waits = self.waits()
        texts = {waiting.number: waiting.text for waiting in (*self._open.values(), *(wait.waiting for wait in waits))}
        threads = {wait.thread for wait in waits if wait.thread is not None and not wait.is_limited}
        return texts, threads, min((wait.since for wait in waits), default=math.inf)

    def _handed_on_waits(self) -> list[Wait]:
        """Return the waits of calls that were handed on, as the same object for as long as a wait lasts.

        Calls that are over, and for which nobody has waited, are forgotten.
        """
        waits = {}
        for number, entry in list(self.handed_on.items()):
            call = HandedOnCall(*entry)
            if call.work is not None and call.work.is_completed():
                if self.handed_on.get(number) is entry:  # Otherwise a thread has begun to wait for it meanwhile.
                    self.handed_on.pop(number, None)
                continue
            waits[number] = self._waits_of_handed_on.get(number) or call.wait
            waits[number].thread = call.thread
        self._waits_of_handed_on = waits
        return list(waits.values())
