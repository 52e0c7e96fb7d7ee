"""The time of a search: deadlines of bounds, lowering and writing, and the least budget that a question needs.

All deadlines are readings of `synth.model.deadline.now`, in seconds. The shares of engines stand in `plans.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from synth.engines.request import Options
from synth.model.compiled import is_first_run
from synth.model.deadline import now
from synth.model.numbers import format_seconds
from synth.search.plans import Stage
from topologies.costed import protocols_of
from topologies.errors import InputError
from topologies.paths import MOST_PATHS
from topologies.topology import Topology

# After the end of the budget a search waits so long for its first answer, and half as long for a first program.
GRACE_S = 1.0
_MOST_STRETCH = 8.0  # The most that a busy machine lengthens the wait for a first program by.
WRITING = 0.1  # The last share of a command's budget, for files and for programs of the other form of calls.
_SPARE = 1.25  # The budget that a message proposes, over the estimated one, so that following the message is enough.
_SPARE_LOWERING = 2.0  # The time that a message proposes for lowering and writing, over the estimated time.
_IMPROVING = 0.4  # The share of the time left in which the best program of an algorithm is looked for.
_RESERVED = 1.7  # The time that is kept for the best program over the estimated time.
_MOST_RESERVED = 0.6  # The largest share of the budget that is reserved for lowering and writing.
_WHILE_SEARCHING = 0.1  # The share of the budget that one program may take while engines still have stages.
_OF_ELAPSED = 0.3  # The share of the time so far that lowering may take while engines still have stages.
_AT_ONCE = 0.03  # The share of the budget that a first program may take as soon as there is an algorithm.
_WAITING = 1.5  # The time of the search over that of the first program before which that waits.
_FOR_FIRST = 0.25  # The share that a first program may take while engines still have stages.
_SAFE = 2.0  # The time left over the estimated time of a first program that is surely made.
_PATIENCE = 2.0  # The factor on that share until there is any program of the algorithm.
_BASE_S, _RANK_S, _LINK_S, _SEND_S = 0.2, 6e-6, 8e-6, 3e-6  # A first answer, its replay, bound and file, on one core.
_PAIR_S = 3e-6  # The links between a pair of ranks through switches, for one protocol.


class Overtime:
    """The work that may go on after the end of a budget, counted in processor time of the thread that asks.

    Beside other load a thread does as much work in it as on a quiet machine. On the clock it lasts up to
    `_MOST_STRETCH` times as long, also where the thread itself waits for something.

    Attributes:
        work_s: Seconds of processor time after the end of the budget.
    """

    def __init__(self, work_s: float) -> None:
        self.work_s = work_s
        self._used_before_s: float | None = None  # Processor time of the thread at the first question after the end.

    def end(self, deadline: float) -> float:
        """Return when the work after a budget that ends at `deadline` is over if the thread works from now on.

        Both are readings of `now`. The work's time is counted from the first call after the deadline. The result grows
        while the thread does no work, up to `deadline` + 8 · `work_s`.
        """
        if now() < deadline:
            return deadline + self.work_s
        if self._used_before_s is None:
            self._used_before_s = time.thread_time()
        left_s = self.work_s - (time.thread_time() - self._used_before_s)
        return min(now() + left_s, deadline + _MOST_STRETCH * self.work_s)


@dataclass(frozen=True)
class Budget:
    """The time of one search, which hands out deadlines for lowering, writing and bounds.

    Attributes:
        seconds: Seconds in all; infinite for a search whose answer must not depend on the clock.
        begun: When the budget began to count.
        stated_s: Seconds of the whole command's budget, of which messages speak; 0 if that is `seconds`.
        overtime: The processor time that a first program may use after the budget, and what it has used.
        patience: Share of the budget in which the clock decides nothing, so that what ends in it is reproducible.
    """

    seconds: float = math.inf
    begun: float = field(default_factory=now)
    stated_s: float = 0.0
    overtime: Overtime = field(default_factory=lambda: Overtime(GRACE_S / 2), compare=False)
    patience: float = 0.0

    @classmethod
    def of(cls, options: Options) -> Budget:
        """Return the budget that options state; it begins now unless they say when."""
        begun = now() if options.begun is None else options.begun
        return cls(options.budget_s, begun, options.stated_s or options.budget_s)

    @classmethod
    def until(cls, deadline: float, spent_s: float = 0.0, patience: float = 0.0) -> Budget:
        """Return a budget that ends at a deadline, a reading of `now`, and of which `spent_s` seconds are spent.

        Its `seconds` are those from `spent_s` ago to the deadline; `patience` is the share of them without hurry.
        """
        begun = now() - spent_s
        return cls(deadline - begun, begun, patience=patience)

    def patient(self, patience: float) -> Budget:
        """Return this budget with a share in which the clock decides nothing; with an infinite share it has no end."""
        return replace(self, seconds=math.inf) if patience == math.inf else replace(self, patience=patience)

    @property
    def patient_left_s(self) -> float:
        """Return the seconds in which the clock still decides nothing; 0 or less once it does."""
        return math.inf if self.seconds == math.inf else self.after(self.patience) - now()

    @property
    def is_patient(self) -> bool:
        """Return whether the clock decides nothing at present, as in a budget without end."""
        return self.patient_left_s > 0

    @property
    def deadline(self) -> float:
        """Return when the budget ends, a reading of `now`."""
        return self.begun + self.seconds

    @property
    def writing_deadline(self) -> float:
        """Return when the files of programs that are ready must be written: a tenth of the budget after its end."""
        return self.deadline + WRITING * self.seconds

    @property
    def left_s(self) -> float:
        """Return the seconds that are left; negative once the budget has ended."""
        return self.deadline - now()

    def after(self, share: float) -> float:
        """Return when the first `share` (0 to 1) of the budget is used."""
        return self.begun + share * self.seconds

    def stage_deadline(self, stage: Stage) -> float:
        """Return when a stage that begins now ends: after its `share` of the budget, and not later than its `until`."""
        return min(now() + stage.share * self.seconds, self.after(stage.until))

    def without_last(self, share: float) -> float:
        """Return the deadline of work that leaves the last share (0 to 1) of the budget to others.

        It is a reading of `now`.
        """
        return self.deadline - share * self.seconds

    def windows_deadline(self, share: float) -> float:
        """Return when bounds by windows of time that begin now end.

        They get `share` (0 to 1) of the budget or half of the time left, whichever is longer, but no time after the
        budget.
        """
        left_s = self.left_s
        return now() + min(left_s, max(share * self.seconds, left_s / 2))

    def reserved_s(self, longest_s: float, postponed_s: Iterable[float]) -> float:
        """Return the seconds before the end after which engines and bounds must not run, but programs are made.

        They are `longest_s`, or 1.7 times what the longest postponed program needs if that is more, but at most 0.6 of
        the budget. A postponed program that needs more than 0.6 of it by itself does not count.

        Args:
            longest_s: Seconds that it took to find one best program, with those to write it.
            postponed_s: Seconds that each postponed program needs for lowering and writing.
        """
        most_s = _MOST_RESERVED * self.seconds
        # A program that needs more than can be reserved would have no file, so the engines keep its time.
        improving_s = (_RESERVED * seconds for seconds in postponed_s if self.can_reserve(seconds))
        return min(max(longest_s, max(improving_s, default=0.0)), most_s)

    def can_reserve(self, needs_s: float) -> bool:
        """Return whether so many seconds for a program and its file can be kept at the end of the budget.

        They can if they are at most 0.6 of the budget.
        """
        return needs_s <= _MOST_RESERVED * self.seconds

    def lowering_deadlines(
        self, searching: bool, sharing: int, first: bool, needs_s: float, writing: float
    ) -> tuple[float, Callable[[], float]]:
        """Return when lowering that begins now stops improving a program, and when it is cut off even without one.

        The first is a reading of `now`, and the second a function that returns one, as `synth.model.deadline.limited`
        takes it. Improving gets 0.4 of the time left, divided by `sharing`. The cut-off leaves time to write the file.
        While engines still have stages, improving also ends after a tenth of the budget, and the cut-off comes after
        two tenths, or for a first program after 2 · needs_s if that is later. A patient budget improves without end,
        and the cut-off is the end of its patience.

        Args:
            searching: Whether engines still have stages, so that lowering gets only a small share of the budget.
            sharing: Number of algorithms that share the time left for lowering.
            first: Whether there is no program of any algorithm yet; then lowering may go on after the budget unless
                `searching`.
            needs_s: Estimated seconds to lower the algorithm in haste and to write its file.
            writing: Time to lower a program in haste and to write its file, over the time to lower it in haste.
        """
        begun = now()
        if self.is_patient:
            patient_until = begun + self.patient_left_s
            return math.inf, lambda: patient_until
        enough, cutoff = begun + self.left_s * _IMPROVING / max(1, sharing), begun + self.left_s / writing
        if searching:
            share_s = _WHILE_SEARCHING * self.seconds
            longest_s = max(_PATIENCE * share_s, _PATIENCE * needs_s if first else 0.0)
            cutoff = min(cutoff, begun + longest_s)
            return min(enough, begun + share_s), lambda: cutoff
        return enough, lambda: max(cutoff, self.overtime.end(self.deadline)) if first else cutoff

    def waits(self, needs_s: float, spent_s: float) -> bool:
        """Return whether a program takes too long to be lowered before all engines had their stages.

        It never does in a patient budget.

        Args:
            needs_s: Seconds to lower it in haste and to write its file.
            spent_s: Seconds of lowering so far.
        """
        if self.is_patient:
            return False
        share_s = _WHILE_SEARCHING * self.seconds
        return needs_s > share_s or spent_s + needs_s > max(share_s, _OF_ELAPSED * (now() - self.begun))

    def is_short(self, needs_s: float, searching: bool) -> bool:
        """Return True if the first program may be that of any algorithm, not only of a small one.

        Its time must be at most 3 % of the whole budget while engines still have stages, else at most half of the time
        left. In a patient budget it may be any.

        Args:
            needs_s: Seconds to lower it in haste and to write its file.
            searching: Whether engines still have stages.
        """
        return self.is_patient or needs_s <= (_AT_ONCE * self.seconds if searching else self.left_s / _SAFE)

    def is_too_long_for_first(self, needs_s: float) -> bool:
        """Return whether the first program waits while engines are asked, because it takes long.

        It never waits if it needs at most 3 % of the budget. Else it waits until the search has lasted 1.5 times as
        long as the program needs, and to the end of the stages if it needs more than a quarter of the budget. What
        engines find until then may be faster and as small.

        Args:
            needs_s: Seconds to lower it in haste and to write its file.
        """
        if needs_s <= _AT_ONCE * self.seconds:
            return False
        return now() < self.begun + _WAITING * needs_s or needs_s > _FOR_FIRST * self.seconds

    def enough_for(self, needs_s: float) -> str:
        """Return the least budget as text, such as `90s`, in which a program would be written.

        It is at least 1.2 times the present budget, or the time so far if that is more, and is stated for the whole
        command's budget.

        Args:
            needs_s: Seconds to lower the program in haste and to write its file.
        """
        seconds = max(self.seconds, now() - self.begun)  # A deadline that is over leaves no seconds.
        enough_s = max(1.2 * seconds, seconds / 2 + _SPARE_LOWERING * needs_s)
        return format_seconds(enough_s * (max(1.0, self.stated_s / seconds) if seconds else 1.0))


def least_seconds(topology: Topology, sends: int = 0, members: int = 0) -> float:
    """Estimate the seconds from the start of a search to the first written schedule, without any program.

    Args:
        topology: The network of the question.
        sends: Number of sends of the first answer; 0 if it is not known.
        members: Number of ranks that take part or forward; 0 if their networks are built already. Switches link each
            pair of them, and each protocol of the costs has a network of its own.
    """
    protocols = 1 if topology.costs is None else len(protocols_of(topology))
    # Of more paths, up to MOST_PATHS are links; to find these and their symmetry takes about as long as three of each.
    most = 3 * MOST_PATHS if topology.nodes.any() else members**2
    pairs = min(members**2, most) if topology.nvertices > topology.nranks else 0
    known_s = _BASE_S + _RANK_S * topology.nranks + _LINK_S * topology.nlinks + _SEND_S * sends
    return known_s + _PAIR_S * protocols * pairs


class BudgetTooShort(InputError):
    """An error about a budget in which there is no answer; the message proposes one that is enough.

    Attributes:
        sends: Number of sends of the first answer; 0 if it is not known.
    """

    def __init__(
        self,
        topology: Topology,
        sends: int,
        budget_s: float,
        members: int = 0,
        stated_s: float | None = None,
        ranks: int | None = None,
    ) -> None:
        """Compute the budget that is enough from the size of the network, the first answer and the budget.

        It is at least twice the budget, as a search that needs more than it was estimated to need may need much more.

        Args:
            topology: The network.
            sends: Number of sends of the first answer; 0 if it is not known.
            budget_s: Seconds of the search.
            members: As in `least_seconds`.
            stated_s: Seconds of the whole command's budget; None for `budget_s`.
            ranks: Ranks that take part or forward; None for all of the topology.
        """
        self.sends, stated_s = sends, stated_s or budget_s
        estimated_s = least_seconds(topology, sends, members)
        needed_s = max(_SPARE * estimated_s, 2 * budget_s)
        enough = format_seconds(needed_s * max(1.0, stated_s / budget_s))
        part = f"{ranks} of " if ranks is not None and ranks < topology.nranks else ""
        size = f"{part}{topology.nranks} ranks and {topology.nlinks} links"
        advice = f"try --budget {enough}"
        cause = " on this machine, which is busy or slow" if estimated_s <= budget_s else ""
        if cause and is_first_run():
            cause, advice = " in a first run, whose loops are not compiled yet", f"run synth warm-up once, or {advice}"
        super().__init__(f"budget {format_seconds(stated_s)} is too short for {size}{cause}; {advice}")


def check_budget(topology: Topology, sends: int, budget_s: float, members: int = 0) -> None:
    """Refuse a budget that is surely too short, before any time is spent; `members` is as in `least_seconds`.

    Raises:
        BudgetTooShort: The first answer would take longer than the budget and `GRACE_S`.
    """
    if least_seconds(topology, sends, members) > budget_s + GRACE_S:
        raise BudgetTooShort(topology, sends, budget_s, members, ranks=members or None)
