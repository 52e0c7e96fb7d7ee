"""All algorithms that a search found, each with its time, and their lowering to programs of an executor.

The time of an algorithm is its schedule's, or that of its program once it is lowered. Lowering takes seconds, and a
program is seldom faster than its schedule. So only an algorithm that wins by the time of its schedule is lowered, until
all winners are lowered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from synth.model.deadline import TimeUp, limited, now
from synth.model.defects import contained
from synth.model.problem import Problem
from synth.search.budget import Budget
from synth.search.frontier import Contender, Execution, Range, frontier, winners
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

LATE = "no time was left to lower it; give --budget {} or more"
_LEAST_SEND_S = 3e-5  # Seconds that lowering one send in haste takes at least.
_FEW = 3_000  # Up to so many sends, lowering takes about as long as for fewer.
WORTH_SAYING = 0.98  # A schedule that no program can hold is named below this part of the best program's time.


class Executor(Protocol):
    """The lowering of algorithms for one executor.

    Attributes:
        first_s: Seconds of the last lowering until it had any program.
    """

    first_s: float

    @property
    def rank_sends(self) -> int:
        """Return how many sends a rank may take part in; see `synth.engines.request.Options`."""

    def least_bytes(self, problem: Problem) -> int:
        """Return the smallest useful chunk of a problem under one protocol, in bytes; see `Options`."""

    def able(self, protocols: Sequence[str]) -> list[str]:
        """Return the protocols that files of the executor can have."""

    def refusal(self, algorithm: Algorithm) -> str:
        """Return why no program can hold an algorithm, as far as that is known before lowering; else ""."""

    def lower(self, algorithm: Algorithm, until: float, sizes: Sequence[int]) -> Execution:
        """Lower an algorithm to a program.

        Args:
            algorithm: What to lower.
            until: Reading of `now` after which the best program so far, or else the first, is taken.
            sizes: Message sizes in bytes for which the schedule is the fastest.

        Raises:
            InputError: The executor can hold no program of it.
        """

    def files(self, ranges: Sequence[Range]) -> list[Range]:
        """Return the same ranges, each served by one file."""


class Pool:
    """The algorithms found for one problem.

    Attributes:
        executor: Executor whose programs are compared; None to compare schedules.
        contenders: Algorithms that can be shown.
        refused: Algorithms that have no program, because the executor holds none or time was short.
        searching: Whether engines still have stages; programs that take long wait for their end.
        lowering: Whether a program is being lowered now.
        send_s: Seconds that lowering one send in haste takes, as far as is known.
    """

    def __init__(
        self,
        executor: Executor | None = None,
        budget: Budget | None = None,
        report: Callable[[str], None] = lambda _: None,
        contenders: Sequence[Contender] = (),
        least_bytes: int = 0,
    ) -> None:
        """Start a pool.

        Args:
            executor: See the class.
            budget: Time for lowering and writing; unlimited if None.
            report: Receives a line before a step that takes long.
            contenders: Algorithms to begin with.
            least_bytes: Smallest chunk that is useful to the executor; see `synth.engines.request.Options`.
        """
        self.executor, self.budget, self.report = executor, budget or Budget(), report
        self.contenders, self.refused = list(contenders), list[Contender]()
        self.searching, self.lowering = False, False
        self.send_s = _LEAST_SEND_S
        self._least_bytes = least_bytes
        self._learned_sends = 0  # The sends of the program that `send_s` was learned from.
        self._longest_s = 0.0  # The longest time until a best program was found.
        self._postponed = list[Contender]()
        self._sharing = 1  # The number of algorithms that share the time left for lowering.

    def search_deadline(self) -> float:
        """Return when engines and bounds must end, so that there is time to lower and write; a reading of `now`."""
        if self.lowering or self.executor is None:
            return self.budget.deadline
        postponed = (contender for contender in self._postponed if contender in self.contenders)
        return self.budget.search_deadline(self._longest_s, map(self._needs_s, postponed))

    def add(self, algorithm: Algorithm, size_bytes: float) -> Contender:
        """Add an algorithm, and lower it now if it is the fastest at a size."""
        contender = contender_of(algorithm, self._least_bytes)
        contender.found_s = now() - self.budget.begun
        self.contenders.append(contender)
        self.best(size_bytes)
        return contender

    def remove(self, contender: Contender) -> None:
        """Remove an algorithm from those that can be shown."""
        self.contenders = [stored for stored in self.contenders if stored is not contender]

    def is_postponed(self, contender: Contender) -> bool:
        """Return whether an algorithm is lowered only after all stages, and may turn out to be slower then."""
        return self.searching and contender in self._postponed

    def all_found(self) -> list[Contender]:
        """Return every algorithm, with or without a program."""
        return self.contenders + self.refused

    def best(self, size_bytes: float) -> Contender | None:
        """Return the fastest algorithm at a size, or the fastest schedule if none can be lowered.

        None means that there is no algorithm.
        """
        while self.contenders:
            best = min(self.contenders, key=lambda c: (not c.serves(size_bytes), c.time_us(size_bytes), *c.order))
            if self._settle(best, (int(size_bytes),)):
                return best
        return min(self.refused, key=lambda c: (c.time_us(size_bytes), *c.order), default=None)

    def best_us(self, size_bytes: float) -> float:
        """Return the time of the fastest algorithm at a size, in µs; inf if there is none."""
        best = self.best(size_bytes)
        return math.inf if best is None else best.time_us(size_bytes)

    def scheduled_us(self, size_bytes: float) -> float:
        """Return the time of the best schedule or program so far at a size, in µs, without lowering any."""
        return min((contender.time_us(size_bytes) for contender in self.all_found()), default=math.inf)

    def frontier(self, size_bytes: int | None = None) -> list[Range]:
        """Return which algorithm serves which sizes, or one size; all of them lowered if any can be."""
        if size_bytes is not None:
            best = self.best(size_bytes)
            return [] if best is None else [Range(best, size_bytes, size_bytes, size_bytes)]
        while self.contenders:
            won_sizes: dict[Contender, list[int]] = {}
            for contender, sizes in winners(self.contenders):
                won_sizes.setdefault(contender, []).extend(sizes)
            self._sharing = sum(contender.execution is None for contender in won_sizes)
            # The smallest is lowered first, because time may not be enough for all.
            smallest_first = sorted(won_sizes, key=lambda c: len(c.algorithm.schedule))
            if all(self._settle(contender, won_sizes[contender]) for contender in smallest_first):
                break
        return frontier(self.contenders or self.refused)

    def files(self, size_bytes: int | None = None) -> list[Range]:
        """Return the frontier, each range served by one file if there is an executor."""
        ranges = self.frontier(size_bytes)
        return self.executor.files(ranges) if self.executor and self.contenders else ranges

    def stop(self) -> None:
        """Lower nothing more; algorithms without a program are shown only if there is no program at all."""
        lowered = [contender for contender in self.contenders if contender.execution is not None]
        self.contenders = lowered or self.contenders
        self.executor = self.executor if lowered else None

    def _settle(self, contender: Contender, sizes: Sequence[int]) -> bool:
        """Return True if the time of an algorithm stands for now; else lower or refuse it and return False."""
        if self.executor is None or contender.execution is not None or self.is_postponed(contender):
            return True
        if reason := self.executor.refusal(contender.algorithm):
            self._refuse(contender, reason)
            return False
        if now() + self._needs_s(contender) > self.budget.deadline:
            if any(rival.execution is not None for rival in self.contenders):
                # Once the time is over, no other algorithm is looked at either.
                is_over = self.budget.left_s <= 0
                late = [rival for rival in self.contenders if rival.execution is None] if is_over else [contender]
                for rival in late:
                    self._refuse(rival, self._reason_late(rival))
                return False
            if self.searching:
                self._postponed.append(contender)
                return True
            # There must be a program, so the smallest algorithm is lowered even if it is late.
            contender = min(self.contenders, key=lambda c: (len(c.algorithm.schedule), *c.order))
        if self.searching and self.budget.is_too_long_while_searching(self._needs_s(contender)):
            self._postponed.append(contender)
            return True
        self._lower(contender, sizes)
        return False

    def _lower(self, contender: Contender, sizes: Sequence[int]) -> None:
        """Lower an algorithm within its deadlines; refuse or postpone it if there is no program in time."""
        assert self.executor is not None
        sends = len(contender.algorithm.schedule)
        self.report(f"lowering {sends} sends")
        is_first = not any(rival.execution for rival in self.contenders)
        begun = now()
        enough, cutoff = self.budget.lowering_deadlines(self.searching, self._sharing, is_first)
        self.lowering = True
        try:
            lower = partial(self.executor.lower, contender.algorithm, enough, sizes)
            part = f"lowering of {contender.algorithm.engine}"
            contender.execution = limited(cutoff, partial(contained, part, lower, None))
            if contender.execution is None:
                raise InputError(f"{part} failed")
        except TimeUp:
            self._learn(sends, now() - begun)
            if self.searching:
                self._postponed.append(contender)
            else:
                self._refuse(contender, self._reason_late(contender))
        except InputError as error:
            self._refuse(contender, str(error))
        else:
            self._learn(sends, self.executor.first_s)
            self._longest_s = max(self._longest_s, now() - begun)
        finally:
            self.lowering = False

    def _learn(self, sends: int, seconds: float) -> None:
        """Record how long one lowering in haste took, for the estimates of others; the largest program says most."""
        if sends >= self._learned_sends:
            self.send_s, self._learned_sends = max(seconds / max(sends, _FEW), _LEAST_SEND_S), sends

    def _needs_s(self, contender: Contender) -> float:
        """Estimate the seconds to lower an algorithm in haste and to write its file."""
        return self.budget.writing_s(self.send_s * len(contender.algorithm.schedule))

    def _reason_late(self, contender: Contender) -> str:
        """Return the reason for a missing program, with a budget that would be enough, as far as is known."""
        return LATE.format(self.budget.enough_for(self._needs_s(contender)))

    def _refuse(self, contender: Contender, reason: str) -> None:
        contender.refused = reason
        self.remove(contender)
        self.refused.append(contender)


def contender_of(algorithm: Algorithm, least_bytes: int) -> Contender:
    """Return an algorithm as a contender, for messages whose largest chunks have at least so many bytes."""
    return Contender(algorithm, least_size=least_bytes / float(algorithm.problem.collective.fraction.max()))
