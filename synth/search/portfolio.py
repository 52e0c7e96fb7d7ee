"""The portfolio: which engines run, in which order and for how long; they race by what they have gained.

An engine is a generator of answers. Each gets its turn, in the order that a tuning object states, until it ends or its
share of the budget is over, or half as much again where it still gains; what is left of the budget goes, answer by
answer, to the engine that gained most when it ran last. Nothing here knows what is searched: a ledger takes the answers
and says what they are worth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from synth.engines.request import Outcome
from synth.model.deadline import interrupt_behind, now
from synth.model.defects import contained
from topologies.errors import InputError

_FADING = 0.5  # of what an engine gained before, each time that it answers again
_WORTH = 0.01  # gained by an answer, after which a turn goes on
_MORE, _LONGEST = 0.4, 1.5  # of a turn: how long it then goes on, and how long it may be in all


@dataclass(frozen=True)
class Turn:
    """An engine's place in the order.

    Attributes:
        engine: its name.
        share: the part of the budget that its first turn may take, half as long again where it gains.
        once: whether it has no second turn.
        refined: the sends to which it may refine chunks; 0: as many as it likes.
        from_ranks, most_ranks: problems that it is asked about unless it is named, by local ranks.
        most_sends: the same by the estimated sends of an answer.
        gap: it is asked only for sizes that are still this far from the bound (time / bound); 0: for all.
        as_first: whether it answers before a named exact engine, so that there is an answer at once.
        always: whether it answers whatever engine is named.
        in_shares: True: for all-reduce and its like only; False: for all others.
        bulk: it is asked only where one size is, at which bytes count more than latencies by far.
        unlike: it is asked only where one size is, on links that are not all alike.
    """

    engine: str
    share: float = 1.0
    once: bool = False
    refined: int = 0
    from_ranks: int = 0
    most_ranks: int | None = None
    most_sends: int | None = None
    gap: float = 0.0
    as_first: bool = False
    always: bool = False
    in_shares: bool | None = None
    bulk: bool = False
    unlike: bool = False


class Ledger(Protocol):
    """Where answers go."""

    @property
    def answered(self) -> bool:
        """Whether there is an answer already."""

    @property
    def proved(self) -> bool:
        """Whether nothing can be gained any more."""

    def take(self, answer: Outcome, source: str) -> float:
        """Replay and keep an answer; what it gained (0: nothing)."""


@dataclass
class Run:
    """An engine at work on a problem; its first turn may take `turn_s`, longer where it gains.

    `once`: it has no second. `always`: it has its turn though all is proved. `gained`: what it gained lately, less and
    less of what was long ago; `latest`: by its last answer.
    """

    engine: str
    answers: Iterator[Outcome]
    turn_s: float
    once: bool = False
    always: bool = False
    gained: float = 0.0
    latest: float = 0.0

    def step(self, ledger: Ledger) -> bool:
        """Take one more answer; return False where there is none, or where the engine or its answer has a defect."""
        self.latest = 0.0
        return contained(f"engine {self.engine}", partial(self._step, ledger), otherwise=False)

    def _step(self, ledger: Ledger) -> bool:
        try:
            answer = next(self.answers)
        except StopIteration:
            return False
        except InputError:
            # what one engine cannot do, others may have done
            if not ledger.answered:
                raise
            return False
        self.latest = ledger.take(answer, self.engine)
        self.gained = _FADING * self.gained + self.latest
        return True


@contextmanager
def compiled_interrupts() -> Iterator[None]:
    """Ctrl-C that a compiled function noticed, which says so by a SystemError, is a KeyboardInterrupt here."""
    try:
        yield
    except SystemError as error:
        interrupt = interrupt_behind(error)
        if interrupt is not None:
            raise type(interrupt) from error
        raise


@compiled_interrupts()
def race(runs: Iterable[Run], ledger: Ledger, deadline: float, waiting: list[Run] | None = None) -> None:
    """Let every run have its turn; then the others go on, the one that gained most first, until the deadline.

    Once all is proved nobody goes on. waiting: kept up to date with the runs that have not ended, also where this is
    interrupted.
    """
    waiting = [] if waiting is None else waiting
    for run in runs:
        begun = now()
        until = min(deadline, begun + run.turn_s)
        waiting.append(run)
        while goes_on := run.step(ledger):
            if run.latest >= _WORTH:
                longer = min(now() + _MORE * run.turn_s, begun + _LONGEST * run.turn_s)
                until = max(until, min(deadline, longer))
            if now() >= until or (ledger.proved and not run.always):
                break
        if run.once or not goes_on:
            waiting.remove(run)
    while waiting and now() < deadline and not ledger.proved:
        best = in_order(waiting)[0]
        if not best.step(ledger):
            waiting.remove(best)


def in_order(waiting: Iterable[Run]) -> list[Run]:
    """The runs as they are to go on."""
    return sorted(waiting, key=lambda run: -run.gained)
