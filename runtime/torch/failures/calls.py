"""The calls that a rank makes of a group, and its waits in them: how many, what the last were, which are not over."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from runtime.torch.failures.causes import Waiting

KEPT = 64  # of the last calls, what was called
_LATELY = 4  # of the last that were handed on: what is kept of more is no longer in the processor's caches


@dataclass
class Wait:
    """A wait under way.

    since: by `time.monotonic`; thread: that waits; limited: whether that goes on elsewhere after a time; told: whether
    the others know of it.
    """

    waiting: Waiting
    since: float
    thread: int | None = None
    limited: bool = False
    told: bool = False


class Passed(NamedTuple):
    """A call that was handed on, and its wait: what text it has is found out only when somebody asks.

    since, thread: as in `Wait`. describe: gives the text, of what follows.
    """

    number: int
    since: float
    thread: int
    describe: Callable[[int, Any, Any], str]
    size_bytes: int
    kind: Any  # torch's type of the elements
    opts: Any  # torch's of the call

    @property
    def text(self) -> str:
        return self.describe(self.size_bytes, self.kind, self.opts)

    @property
    def waiting(self) -> Waiting:
        """As other calls have it."""
        return Waiting(self.text, self.number)


class Calls:
    """Of one rank.

    Attributes:
        numbers: the next is that of the next call; made: that of the last.
        passed: by number, those handed on whose wait is not over; lately: the last of all those. Both hold
            plain tuples in the form of `Passed`, since they are written with every call.
    """

    def __init__(self) -> None:
        self.numbers, self.made = count(1), 0
        self.passed: dict[int, Any] = {}
        self.lately: deque[Any] = deque(maxlen=_LATELY)
        self._last: dict[int, Waiting] = {}  # by number modulo KEPT
        self._open: dict[int, Waiting] = {}
        self._seen: dict[int, Wait] = {}
        self._waits: weakref.WeakKeyDictionary[Any, Wait] = weakref.WeakKeyDictionary()

    def issue(self, text: str) -> Waiting:
        """Number the next call, of which all ranks make the same."""
        self.made = number = next(self.numbers)
        waiting = Waiting(text, number)
        self._last[number % KEPT] = self._open[number] = waiting
        return waiting

    def close(self, waiting: Waiting) -> None:
        """It is over, where it is one that all ranks make."""
        if waiting.number is not None and self._open.get(waiting.number) is waiting:
            del self._open[waiting.number]

    def text(self, number: int) -> str | None:
        """Of one of the last calls; None where it is not known any more, or yet."""
        passed = (Passed(*held) for held in [*list(self.passed.values()), *list(self.lately)])
        held = [self._last.get(number % KEPT), *passed]
        return next((each.text for each in held if each is not None and each.number == number), None)

    def is_open(self, number: int | None) -> bool:
        """Whether the call of this number is not over."""
        return number in self._open or number in self.passed

    def first_open(self) -> int:
        """The number of the first call that is not over; the next one's where all are."""
        return min((*list(self._open), *list(self.passed)), default=self.made + 1)

    def begin_wait(self, key: Any, wait: Wait) -> None:
        """A wait begins; it is forgotten with its key."""
        self._waits[key] = wait

    def end_wait(self, key: Any, closes: bool) -> None:
        """It is over, and with it the call where it `closes` it."""
        wait = self._waits.pop(key, None)
        if wait is not None and closes:
            self.close(wait.waiting)

    def leave(self) -> None:
        """End the futures of those that are not over, as their `leave` does."""
        for key in list(self._waits):
            getattr(key, "leave", bool)()

    def waits(self) -> list[Wait]:
        """Those that are not over; what has completed by itself is forgotten."""
        for key in [key for key in self._waits if getattr(key, "is_completed", bool)()]:
            self.end_wait(key, closes=True)
        return [*self._waits.values(), *self._passed_waits()]

    def held(self) -> tuple[dict[int | None, str], set[int], float]:
        """The texts of calls that are not over, by number; the threads that wait however long; since when."""
        waits = self.waits()
        texts = {each.number: each.text for each in (*self._open.values(), *(wait.waiting for wait in waits))}
        threads = {wait.thread for wait in waits if wait.thread is not None and not wait.limited}
        return texts, threads, min((wait.since for wait in waits), default=math.inf)

    def _passed_waits(self) -> list[Wait]:
        """Of calls that were handed on; the same object while one lasts."""
        now = [Passed(*held) for held in list(self.passed.values())]
        seen = self._seen
        self._seen = {p.number: seen.get(p.number) or Wait(p.waiting, p.since, p.thread) for p in now}
        return list(self._seen.values())
