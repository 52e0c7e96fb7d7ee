"""Run the stages of a search plan: every engine has its stage, then that whose latest answers gained most goes on.

An engine is a generator of answers. Its stage lasts until the engine ends or its share of the budget is used, or half
as long again while it gains. What is left of the budget goes, answer by answer, to the engine that gained most. The
runner does not know what is searched: a ledger takes the answers and says what each is worth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from synth.engines.request import Outcome
from synth.model.deadline import TimeUp, interrupt_behind, limited, now
from synth.model.defects import contained
from synth.search.budget import Budget
from topologies.errors import InputError

Conclusion = TypeVar("Conclusion")

_FADING = 0.5  # The factor on what an engine gained before, each time that it answers again.
_WORTH = 0.01  # The gain of an answer after which a stage goes on.
_MORE, _LONGEST = 0.4, 1.5  # Shares of a stage: how long it then goes on, and how long it may last in all.


class Ledger(Protocol):
    """The receiver of all answers of a race."""

    @property
    def answered(self) -> bool:
        """Return whether there is an answer already."""

    @property
    def proved(self) -> bool:
        """Return whether nothing can be gained any more."""

    def take(self, answer: Outcome, source: str) -> float:
        """Keep an answer of the engine `source` after replaying it.

        Returns:
            What it gained: the part (0 to 1) by which it is faster than all answers before; 0 for nothing.
        """

    def refuse(self, source: str, error: InputError) -> None:
        """Report that the engine `source` cannot do the problem, so that the others go on without it.

        Raises:
            InputError: No other engine may answer, so that the error is the answer.
        """


@dataclass
class EngineRun:
    """An engine at work on a problem.

    Attributes:
        engine: Name of the engine.
        answers: What it yields.
        stage_s: Seconds that its stage may take; more while it gains.
        once: Whether it does not go on after its stage.
        always: Whether its stage runs though everything is proved.
        gained: What its answers gained, older answers counting less and less.
        latest: What its last answer gained.
        refusal: Why it cannot do the problem, as it said when it was asked; None if it did not say so.
    """

    engine: str
    answers: Iterator[Outcome]
    stage_s: float
    once: bool = False
    always: bool = False
    gained: float = 0.0
    latest: float = 0.0
    refusal: InputError | None = None

    def step(self, ledger: Ledger) -> bool:
        """Ask for one more answer and give it to the ledger; `gained` and `latest` then say what it gained.

        Returns:
            False if there is none: the engine has ended, cannot do the problem, or it or its answer has a defect.

        Raises:
            InputError: The engine cannot do the problem, and the ledger lets no other engine answer.
        """
        self.latest = 0.0
        return contained(f"engine {self.engine}", partial(self._step, ledger), otherwise=False)

    def _step(self, ledger: Ledger) -> bool:
        """Do what `step` does, except that defects of the engine or of its answer are raised."""
        try:
            answer = next(self.answers)
        except StopIteration:
            return False
        except InputError as error:
            self.refusal = error
            ledger.refuse(self.engine, error)
            return False
        self.latest = ledger.take(answer, self.engine)
        self.gained = _FADING * self.gained + self.latest
        return True


@contextmanager
def compiled_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt where compiled code reports Ctrl-C as a SystemError, or NumPy as a TypeError."""
    try:
        yield
    except (SystemError, TypeError) as error:
        interrupt = interrupt_behind(error)
        if interrupt is not None:
            raise type(interrupt) from error
        raise


@compiled_interrupts()
def race(runs: Iterable[EngineRun], ledger: Ledger, deadline: float, waiting: list[EngineRun] | None = None) -> None:
    """Run the stage of every engine; then let the engine that gained most go on, until the deadline.

    A stage lasts `stage_s`, and up to half as long again while its answers gain 1 % or more. Once everything is proved
    no engine goes on, except in a stage that runs `always`. Every engine is asked for one answer, even after the
    deadline: clock and proof are looked at between answers.

    Args:
        runs: Engines in the order of their stages; the next one is taken when a stage has ended.
        ledger: Receiver of the answers.
        deadline: Reading of `now`.
        waiting: List that is kept up to date with the engines that have not ended, also if the race is interrupted;
            engines that are in it before go on too after the stages.

    Raises:
        InputError: No engine can do the problem; the error is that of the first one.
        KeyboardInterrupt: Ctrl-C came.
    """
    waiting = [] if waiting is None else waiting
    refusals = list[InputError | None]()
    for run in runs:
        begun = now()
        until = min(deadline, begun + run.stage_s)
        waiting.append(run)
        while goes_on := run.step(ledger):
            if run.latest >= _WORTH:
                longer = min(now() + _MORE * run.stage_s, begun + _LONGEST * run.stage_s)
                until = max(until, min(deadline, longer))
            if now() >= until or (ledger.proved and not run.always):
                break
        if run.once or not goes_on:
            waiting.remove(run)
        refusals.append(run.refusal)
    if not ledger.answered and refusals and all(refusals):
        raise next(filter(None, refusals))
    while waiting and now() < deadline and not ledger.proved:
        best = by_gain(waiting)[0]
        if not best.step(ledger):
            waiting.remove(best)


def by_gain(runs: Iterable[EngineRun]) -> list[EngineRun]:
    """Return engines in the order in which they would go on: the one that gained most lately first.

    Engines that gained as much keep their order.
    """
    return sorted(runs, key=lambda run: -run.gained)


def run_to_end(
    budget: Budget,
    work: Callable[[], None],
    conclude: Callable[[str, bool], Conclusion],
    interrupt_at: Callable[[], float] = lambda: math.inf,
) -> tuple[Conclusion, str]:
    """Run a search until its work ends, its time is over or Ctrl-C comes; then return its conclusion.

    Args:
        budget: The time of the search.
        work: The work, which looks at its deadline, and which Ctrl-C may interrupt anywhere.
        conclude: Returns the best answer so far. It receives why the work ended early ("budget", "interrupted" or ""),
            and whether Ctrl-C cut a first conclusion short, so that this one must not take long.
        interrupt_at: Returns when the work's time is over, a reading of `now`; it is called again and again.

    Returns:
        The conclusion, and why the search ended early ("budget" or "interrupted"), or "". It is "budget" too if the
        work ended by itself after the budget.

    Raises:
        KeyboardInterrupt: Ctrl-C came again during the second conclusion. Other errors of `work` and `conclude` pass.
    """
    stop_reason = ""
    try:
        limited(interrupt_at, work)
    except TimeUp:
        stop_reason = "budget"
    except KeyboardInterrupt:
        stop_reason = "interrupted"
    if not stop_reason and budget.left_s <= 0:
        stop_reason = "budget"
    try:
        with compiled_interrupts():
            return conclude(stop_reason, False), stop_reason
    except KeyboardInterrupt:
        return conclude("interrupted", True), "interrupted"
