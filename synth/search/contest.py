"""The algorithms that a search found, each with its time: its schedule's, or that of the program an executor runs.

Programs take seconds to make, and a program seldom beats its schedule: of those that could be shown, only what wins
by its schedule's time is lowered, until all winners are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from synth.model.deadline import TimeUp, limited, now
from synth.model.defects import contained
from synth.model.numbers import format_seconds
from synth.model.problem import Problem
from synth.search.frontier import Contender, Execution, Range, frontier, winners
from synth.search.least_budget import GRACE_S
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

LATE = "no time was left to lower it; give --budget {} or more"
_WRITING = 2.0  # time of lowering a program in haste and of writing its file, over that of lowering it in haste
_SEARCHED = 0.4  # of the time until the deadline, for which the best programs of algorithms are looked for
_MOST_RESERVED = 0.5  # of the time until the deadline, for lowering and writing
_AT_ONCE = 0.1  # of the budget: for which that is looked for while engines are still to be asked
_PATIENCE = 2.0  # so many times that, until there is one at all
_LEAST_S = 3e-5  # of a send, that lowering in haste takes
_FEW = 3_000  # sends up to which lowering is mostly what it takes at any number
WORTH_SAYING = 0.98  # of the time of what an executor can hold: what a schedule takes that it cannot


class Executor(Protocol):
    """What lowers algorithms for an executor. rank_sends: see `synth.engines.request.Options`.

    first_s: seconds that the last lowering took until it had a program, if not yet the best.
    """

    first_s: float

    @property
    def rank_sends(self) -> int: ...

    def least_bytes(self, problem: Problem) -> int:
        """Of a chunk of a problem under one protocol; see `synth.engines.request.Options`."""

    def able(self, protocols: Sequence[str]) -> list[str]:
        """Those of these protocols that its files can have."""

    def refusal(self, algorithm: Algorithm) -> str:
        """Why it can hold none, as far as that is known before anything is lowered; empty where it may."""

    def lower(self, algorithm: Algorithm, until: float, sizes: Sequence[int]) -> Execution:
        """The algorithm as a program. Raises InputError where the executor can hold none.

        until: of `now`, after which the best of what was made is taken, or the first. sizes: of messages in bytes, for
        which its schedule is the fastest.
        """

    def files(self, ranges: Sequence[Range]) -> list[Range]:
        """The same ranges, each served by one file."""


@dataclass
class Contest:
    """All algorithms found for one problem.

    Attributes:
        executor: for whom they are lowered; None: schedules are compared.
        report: told of what takes long.
        deadline: of `now`; what is not lowered, with time left to write its file, before it is not.
        contenders: what can be shown. refused: of which the executor can hold no program, or for which time was short.
        s_a_send: seconds that lowering in haste takes, as far as that is known, from one of `most_sends`.
        longest_s: that it took to find a best program. lowering: whether it is under way.
        racing: whether engines are still asked: what takes long to lower waits until they are not.
        postponed: what waits, with its schedule's time until then.
        least_bytes: of a chunk; see `synth.engines.request.Options`.
        waiting: how many have the time that is left for their best programs between them.
    """

    executor: Executor | None = None
    report: Callable[[str], None] = lambda _: None
    deadline: float = math.inf
    contenders: list[Contender] = field(default_factory=list)
    refused: list[Contender] = field(default_factory=list)
    s_a_send: float = _LEAST_S
    most_sends: int = 0
    longest_s: float = 0.0
    lowering: bool = False
    racing: bool = False
    postponed: list[Contender] = field(default_factory=list)
    least_bytes: int = 0
    waiting: int = 1
    begun: float = field(default_factory=now)

    def until(self) -> float:
        """To when engines and bounds may work; what they find is then to be lowered and written, or is being lowered.

        Of the clock `now`.
        """
        if self.lowering or self.executor is None:
            return self.deadline
        most_s = _MOST_RESERVED * (self.deadline - self.begun)
        needed = (self._needs_s(one) for one in self.postponed if one in self.contenders)
        # what takes longer than all that can be reserved would have no file: the time is the engines'
        waiting = (seconds / _SEARCHED for seconds in needed if seconds <= most_s)
        return self.deadline - min(max(_WRITING * self.longest_s, max(waiting, default=0.0)), most_s)

    def add(self, algorithm: Algorithm, size_bytes: float) -> Contender:
        """One more; lowered at once if it is the fastest at a size."""
        one = contender(algorithm, self.least_bytes)
        one.found_s = now() - self.begun
        self.contenders.append(one)
        self.best(size_bytes)
        return one

    def remove(self, one: Contender) -> None:
        """Forget one that can be shown."""
        self.contenders = [c for c in self.contenders if c is not one]

    def waits(self, one: Contender) -> bool:
        """Whether it is to be lowered once all engines were asked, and may turn out to be slower then."""
        return self.racing and one in self.postponed

    def time_us(self, one: Contender, size_bytes: float) -> float:
        """Its time at a size in µs; inf where it is of no use, since the executor cannot hold it."""
        return math.inf if one.refused else one.time_us(size_bytes)

    def best(self, size_bytes: float) -> Contender | None:
        """The fastest at a size; where none can be lowered, the fastest schedule; None where there is nothing."""
        while self.contenders:
            best = min(self.contenders, key=lambda c: (not c.serves(size_bytes), c.time_us(size_bytes), *c.order))
            if self._is_lowered(best, (int(size_bytes),)):
                return best
        return min(self.refused, key=lambda c: (c.time_us(size_bytes), *c.order), default=None)

    def best_us(self, size_bytes: float) -> float:
        """Its time in µs; inf where there is nothing."""
        best = self.best(size_bytes)
        return math.inf if best is None else best.time_us(size_bytes)

    def frontier(self, size_bytes: int | None = None) -> list[Range]:
        """The ranges of sizes with what serves them, or of one size; all lowered where any can be."""
        if size_bytes is not None:
            best = self.best(size_bytes)
            return [] if best is None else [Range(best, size_bytes, size_bytes, size_bytes)]
        while self.contenders:
            sizes: dict[Contender, list[int]] = {}
            for one, won in winners(self.contenders):
                sizes.setdefault(one, []).extend(won)
            self.waiting = sum(one.execution is None for one in sizes)
            # what takes least first, as there may not be time for all
            if all(self._is_lowered(one, sizes[one]) for one in sorted(sizes, key=lambda c: len(c.algorithm.schedule))):
                break
        return frontier(self.contenders or self.refused)

    def files(self, size_bytes: int | None = None) -> list[Range]:
        """The frontier, each range served by one file where the executor has one."""
        ranges = self.frontier(size_bytes)
        return self.executor.files(ranges) if self.executor and self.contenders else ranges

    def stop(self) -> None:
        """Lower nothing more: what is not, is only shown if nothing is."""
        lowered = [c for c in self.contenders if c.execution is not None]
        self.contenders = lowered or self.contenders
        self.executor = self.executor if lowered else None

    def _is_lowered(self, one: Contender, sizes: Sequence[int]) -> bool:
        """Whether this was so before, or is to wait; lowers it for these sizes, if not."""
        if self.executor is None or one.execution is not None or self.waits(one):
            return True
        if why := self.executor.refusal(one.algorithm):  # no time is kept for it
            self._refuse(one, why)
            return False
        if self._is_late(one):
            if any(c.execution is not None for c in self.contenders):
                # once it is over, no other is looked at either
                late = [c for c in self.contenders if c.execution is None] if now() >= self.deadline else [one]
                for each in late:
                    self._refuse(each, self._why_late(each))
                return False
            if self.racing:
                self.postponed.append(one)
                return True
            one = min(self.contenders, key=lambda c: (len(c.algorithm.schedule), *c.order))  # there must be something
        if self.racing and self._needs_s(one) > _AT_ONCE * (self.deadline - self.begun) < math.inf:
            self.postponed.append(one)
            return True
        sends = len(one.algorithm.schedule)
        self.report(f"lowering {sends} sends")
        begun = now()
        left_s = self.deadline - begun
        enough, until = begun + left_s * _SEARCHED / max(1, self.waiting), begun + left_s / _WRITING
        if self.racing:
            enough = min(enough, begun + _AT_ONCE * (self.deadline - self.begun))
            until = min(until, begun + _PATIENCE * _AT_ONCE * (self.deadline - self.begun))
        elif not any(c.execution for c in self.contenders):  # the first one
            until = max(until, self.deadline + GRACE_S / 2)
        self.lowering = True
        try:
            lower = partial(self.executor.lower, one.algorithm, enough, sizes)
            part = f"lowering of {one.algorithm.engine}"
            one.execution = limited(until, partial(contained, part, lower, None))
            if one.execution is None:
                raise InputError(f"{part} failed")
        except TimeUp:
            self._took(sends, now() - begun)
            if self.racing:
                self.postponed.append(one)
            else:
                self._refuse(one, self._why_late(one))
        except InputError as error:
            self._refuse(one, str(error))
        else:
            self._took(sends, self.executor.first_s)
            self.longest_s = max(self.longest_s, now() - begun)
        finally:
            self.lowering = False
        return False

    def _took(self, sends: int, seconds: float) -> None:
        """Learn from one lowered in haste: those of most sends say most of what others will take."""
        if sends >= self.most_sends:
            self.s_a_send, self.most_sends = max(seconds / max(sends, _FEW), _LEAST_S), sends

    def _is_late(self, one: Contender) -> bool:
        """Whether lowering it, and writing its file, would end after the deadline."""
        return now() + self._needs_s(one) > self.deadline

    def _needs_s(self, one: Contender) -> float:
        """Seconds to lower it and to write its file."""
        return _WRITING * self.s_a_send * len(one.algorithm.schedule)

    def _why_late(self, one: Contender) -> str:
        """That there was no time, and the least budget in which there would be, as far as is known."""
        budget_s = self.deadline - self.begun
        return LATE.format(format_seconds(max(1.2 * budget_s, budget_s / 2 + _WRITING * self._needs_s(one))))

    def _refuse(self, one: Contender, why: str) -> None:
        one.refused = why
        self.remove(one)
        self.refused.append(one)


def contender(algorithm: Algorithm, least_bytes: int) -> Contender:
    """An algorithm with its time, for messages in which its largest chunks are of so many bytes or more."""
    return Contender(algorithm, least_size=least_bytes / float(algorithm.problem.collective.fraction.max()))
