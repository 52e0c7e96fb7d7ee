"""All algorithms that a search found, each with its time, and their lowering to programs of an executor.

The time of an algorithm is its schedule's, or that of its program once it is lowered. Lowering takes seconds, and a
program is seldom faster than its schedule and the start of a call. So only an algorithm that wins by the time that the
executor expects of its program is lowered, until all winners are lowered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from synth.model.deadline import TimeUp, limited, now
from synth.model.defects import contained
from synth.model.text import format_count
from synth.search.budget import Budget
from synth.search.executor import Executor
from synth.search.frontier import frontier, winners
from synth.search.lowering_order import FASTER, MUCH_FASTER, LoweringOrder
from synth.search.offer import Execution, Offer
from synth.search.pace import LoweringPace
from synth.search.plans import ProgramScope
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

LATE = "the budget ended before it was ready; try --budget {}"
_AS_FAST = 1.001  # The time of a program over that of its schedule up to which it is not improved.
_QUICK = 0.02  # The share of the budget up to which lowering is quick; other programs are improved from _MET on.
_IMPROVING = 4.0  # The time to improve the first program of an algorithm over the time that this took.
_LEAST_IMPROVING = 0.1  # The share of the budget that this may take however short the first lowering was.
_MET = 1.02  # The time of a program over that of its schedule above which it is lowered again if that takes long.
_AGAIN = 1.6  # The time left over the estimated time above which a program is lowered again.
_STOPPING_S = 0.5  # Seconds for writing and checking files after Ctrl-C.
WORTH_SAYING = 0.98  # A schedule that no program can hold is named below this part of the best program's time.


class Pool:
    """The algorithms found for one problem.

    Attributes:
        executor: Executor whose programs are compared; None to compare schedules.
        offers: Offers of the algorithms that can be shown.
        refused: Offers of those that have no program, because the executor holds none or time was short.
        searching: Whether engines still have stages; programs that take long wait for their end.
        programs: Which programs are made; algorithms of which none is made compete by the times of their schedules.
        lowering: Whether a program is being lowered now.
        pace: How long lowering takes.
    """

    def __init__(
        self,
        executor: Executor | None = None,
        budget: Budget | None = None,
        report: Callable[[str], None] = lambda _: None,
        offers: Sequence[Offer] = (),
        least_bytes: int = 0,
    ) -> None:
        """Start a pool.

        Args:
            executor: See the class.
            budget: Time for lowering and writing; unlimited if None.
            report: Receives a line before a step that takes long.
            offers: Offers to begin with.
            least_bytes: Smallest chunk that is useful to the executor; see `synth.engines.request.Options`.
        """
        self.executor, self.budget, self.report = executor, budget or Budget(), report
        self.offers, self.refused = list(offers), list[Offer]()
        self.searching, self.lowering, self.programs = False, False, ProgramScope.ALL
        self._least_bytes = least_bytes
        self.pace = LoweringPace(executor)
        self._was_patient = self.budget.patience > 0
        self._improving_s = 0.0  # The longest time that it took to look for a better program than a first one.
        self._postponed = set[Algorithm]()
        self._late = list[Offer]()  # Refused because time seemed too short.
        self._improved = set[Algorithm]()  # Lowered again in the time left, or with all that lowering tries.
        self._completed = set[Execution]()  # Programs whose files are written and checked.
        self._cut_off = set[Algorithm]()  # Their lowering took too long while engines were asked.
        self._spent_s = 0.0  # Seconds of lowering while engines were asked.
        self._aim: Offer | None = None  # The fastest algorithm whose program the caller has time to make.
        self._sharing = 1  # The number of algorithms that share the time left for lowering.

    @property
    def order(self) -> LoweringOrder:
        """Return the choice of what is lowered next, as the pool stands now."""
        return LoweringOrder(self.offers, self.pace, self.budget)

    @property
    def is_hurried(self) -> bool:
        """Return whether the patience of the budget is over, so that the clock may have decided something."""
        return self._was_patient and not self.budget.is_patient

    def search_deadline(self) -> float:
        """Return when engines and bounds must end, so that there is time to lower and write; a reading of `now`.

        It is the end of the budget while a program is lowered, and without an executor.
        """
        if self.lowering or self.executor is None:
            return self.budget.deadline
        postponed = [offer for offer in self.offers if offer.algorithm in self._postponed]
        if self.programs is not ProgramScope.ALL:
            postponed = [] if self._aim is None else [self._aim]
        return self.budget.deadline - self.reserved_s(postponed)

    def reserved_s(self, offers: Iterable[Offer]) -> float:
        """Return the seconds that are kept at the end of the budget to lower and write algorithms.

        They are for the longest lowering so far or the one of `offers` that needs most, not for all of them; see
        `Budget.reserved_s`.
        """
        return self.budget.reserved_s(self.pace.longest_s, (self.pace.needs_s(offer.algorithm) for offer in offers))

    def add(self, algorithm: Algorithm, size_bytes: float) -> Offer:
        """Add an algorithm, lower what is fastest at a size as `best` does, and return the algorithm's offer.

        The offer has no `execution` if another algorithm is faster or lowering waits; `refused` is set if the executor
        can hold no program of it.

        Args:
            algorithm: The algorithm, which is not in the pool yet.
            size_bytes: Message size in bytes.
        """
        self.offers.append(offer_of(algorithm, self._least_bytes, now() - self.budget.begun))
        self.best(size_bytes)
        if self.programs is not ProgramScope.ALL:
            able = (offer for offer in self.offers if self.budget.can_reserve(self.pace.needs_s(offer.algorithm)))
            self._aim = min(able, key=lambda offer: offer.rank_at(size_bytes), default=None)
        return self.offer_of(algorithm)

    def offer_of(self, algorithm: Algorithm) -> Offer:
        """Return the present offer of an algorithm that was added and not removed, with or without a program.

        Raises:
            StopIteration: The algorithm is not in the pool.
        """
        return next(offer for offer in self.all_offers() if offer.algorithm is algorithm)

    def remove(self, algorithm: Algorithm) -> None:
        """Remove an algorithm from `offers`; do nothing if it is not among them. What was refused stays."""
        self.offers = [offer for offer in self.offers if offer.algorithm is not algorithm]

    def is_slow_to_lower(self, sends: int) -> bool:
        """Return whether a program of so many sends takes too long to be the first one while engines have stages.

        It is False if no programs are made.
        """
        if self.executor is None or self.programs is ProgramScope.NONE:
            return False
        return not self.budget.is_short(self.pace.least_s(sends), True)

    def all_offers(self) -> list[Offer]:
        """Return the offer of every algorithm, with or without a program: `offers`, then `refused`."""
        return self.offers + self.refused

    def best(self, size_bytes: float) -> Offer | None:
        """Return the fastest algorithm at a size, or the fastest schedule if none can be lowered.

        Algorithms that do not serve the size (`Offer.serves`) come after all others. Algorithms are lowered until the
        fastest has a program or waits for the end of the stages, when it may turn out to be slower; those of which
        there is no program move to `refused`. None means that there is no algorithm.
        """
        while self.offers:
            best = min(self.offers, key=lambda offer: (not offer.serves(size_bytes), *offer.rank_at(size_bytes)))
            if self._settle(best, (int(size_bytes),)):
                return best
        return min(self.refused, key=lambda offer: offer.rank_at(size_bytes), default=None)

    def best_us(self, size_bytes: float) -> float:
        """Return the time of the fastest algorithm at a size, in µs, lowering as `best` does; inf if there is none."""
        best = self.best(size_bytes)
        return math.inf if best is None else best.time_us(size_bytes)

    def scheduled_us(self, size_bytes: float) -> float:
        """Return the time of the best schedule or program so far at a size, in µs, without lowering any.

        It is inf without algorithms. Those that the executor refused count too.
        """
        return min((offer.time_us(size_bytes) for offer in self.all_offers()), default=math.inf)

    def frontier(self, size_bytes: int | None = None) -> list[Offer]:
        """Return which algorithm serves which sizes; all of them lowered if any can be.

        Programs are lowered, the smallest first, until all algorithms of the result have one or stand without (`best`).
        If no algorithm can be lowered, the result is of the schedules of `refused`.

        Args:
            size_bytes: The only size that counts; None for all sizes, as `synth.search.frontier.frontier` covers them.

        Returns:
            Offers in ascending order of sizes; empty without algorithms.
        """
        if size_bytes is not None:
            best = self.best(size_bytes)
            return [] if best is None else [best.at_size(size_bytes)]
        while self.offers:
            won_sizes: dict[Offer, list[int]] = {}
            for offer, sizes in winners(self.offers, self._expected_us):
                won_sizes.setdefault(offer, []).extend(sizes)
            self._sharing = sum(offer.execution is None for offer in won_sizes)
            # The smallest is lowered first, because time may not be enough for all.
            smallest_first = sorted(won_sizes, key=lambda offer: self.pace.sends(offer.algorithm))
            if all(self._settle(offer, won_sizes[offer]) for offer in smallest_first):
                break
        return frontier(self.offers, self._expected_us) if self.offers else frontier(self.refused)

    def _expected_us(self, offer: Offer, size_bytes: int) -> float:
        """Return the time in µs of an offer's program at a size, which the executor estimates before it is lowered."""
        if offer.execution is not None or self.executor is None:
            return offer.time_us(size_bytes)
        return self.executor.expected_us(offer.algorithm, size_bytes)

    def files(self, size_bytes: int | None = None) -> list[Offer]:
        """Return the frontier (see `frontier`), split so that each offer is one file, if there are programs.

        With a finite budget, the files of the programs are also written and checked, the smallest first. A program
        whose file fails moves to `refused`. Programs that are slower than their schedules are lowered again in the time
        left.

        Args:
            size_bytes: The only size that counts, in bytes; None for all sizes.
        """
        while True:
            offers = self.frontier(size_bytes)
            if self.executor is None or not self.offers:
                return offers
            offers = self.executor.files(offers)
            if self.budget.seconds == math.inf:
                return offers
            # The smallest is written first: if the time ends while a large file is written, the others are there.
            smallest_first = sorted(offers, key=lambda offer: self.pace.sends(offer.algorithm))
            if not all(map(self._complete, smallest_first)):
                continue
            if self.budget.is_patient:
                return offers
            is_new = [self._improve(offer) for offer in (*offers, *self.order.promising(offers))]
            if not any(is_new):
                return offers

    def _complete(self, offer: Offer) -> bool:
        """Write and check the file of an offer; if that fails or takes too long, refuse it and return False.

        A file that was written before is not written again. The file of the only program is written however late it is.
        Without an executor or a program nothing is done.
        """
        if self.executor is None or offer.execution is None or offer.execution in self._completed:
            return True
        complete = partial(self.executor.complete, offer.execution)
        try:
            # The file of the only program is written even if it is late.
            limited(self.budget.writing_deadline if self.order.rivals(offer) else math.inf, complete)
        except TimeUp:
            reason = self._reason_late(offer)
        except InputError as error:
            reason = str(error)
        else:
            self._completed.add(offer.execution)
            return True
        own = [rival for rival in self.offers if rival.algorithm is offer.algorithm]
        for rival in own:
            self._refuse(replace(rival, execution=None), reason)
        return not own

    def _improve(self, offer: Offer) -> bool:
        """Lower the algorithm of an offer again in the time left, if that is long; return whether its program is new.

        It is done once for an algorithm, and only if its program is more than 2 % slower than its schedule. The new
        program stays if it is at least 2 % faster. The time of the first lowering is limited, because other algorithms
        wait, and programs may need more.
        """
        algorithm, size = offer.algorithm, offer.shown
        is_slow = offer.time_us(size) > _MET * algorithm.time_us(size)
        has_time = _AGAIN * self.pace.needs_s(offer.algorithm) < self.budget.left_s
        own = next((rival for rival in self.offers if rival.algorithm is algorithm), None)
        if self.executor is None or own is None or not is_slow or not has_time or algorithm in self._improved:
            return False
        self._improved.add(algorithm)
        self.report(f"lowering {format_count(self.pace.sends(algorithm), 'send')} again")
        enough, cutoff = self.budget.lowering_deadlines(False, 1, False, 0.0, self.executor.writing)
        faster = self._faster_program(offer, enough, cutoff, (size,))
        if faster is None or faster.time_us(size) > FASTER * offer.time_us(size):
            return False
        self.offers[self.offers.index(own)] = replace(own, execution=faster)
        return True

    def _faster_program(
        self, offer: Offer, enough: float, cutoff: Callable[[], float] | float, sizes: Sequence[int]
    ) -> Execution | None:
        """Return the best program of an algorithm that is made in time; None if it is no faster or there is none.

        It is faster if the mean over the sizes of its time / the offer's time is below 1.

        Args:
            offer: The algorithm with its program so far.
            enough: When the program is no longer improved, a reading of `now`.
            cutoff: When the lowering is cut off, as `limited` takes it.
            sizes: Message sizes in bytes that count.
        """
        time_us = offer.time_us(sizes[-1])
        if self.executor is None or not self.executor.can_improve(offer.algorithm, sizes[-1], time_us):
            return None
        try:
            execution = limited(cutoff, partial(self._program_of, offer.algorithm, enough, sizes))
        except (TimeUp, InputError):
            return None
        over = [execution.time_us(size) / offer.time_us(size) for size in sizes]
        return execution if sum(over) < len(sizes) else None

    def _program_of(self, algorithm: Algorithm, enough: float, sizes: Sequence[int]) -> Execution:
        """Return a program of an algorithm; arguments and errors as those of `Executor.lower`, also after a defect."""
        assert self.executor is not None
        part = f"lowering of {algorithm.engine}"
        execution = contained(part, partial(self.executor.lower, algorithm, enough, sizes), None)
        if execution is None:
            raise InputError(f"{part} failed")
        return execution

    def stop(self) -> None:
        """Lower nothing more; if there is any program, remove the algorithms without one, else compare schedules.

        To compare schedules, `executor` becomes None. Files are written and checked for half a second more; that of the
        only program, however long it takes.
        """
        self.budget = Budget.until(min(self.budget.deadline, now() + _STOPPING_S))
        self._improved.update(offer.algorithm for offer in self.offers)
        lowered = self.order.lowered
        self.offers = lowered or self.offers
        self.executor = self.executor if lowered else None

    def _settle(self, offer: Offer, sizes: Sequence[int]) -> bool:
        """Return True if the time of an algorithm stands for now; else lower or refuse an algorithm and return False.

        The time stands if the algorithm has a program, if no program of it is to be made, or if its lowering waits for
        the end of the stages.

        Args:
            offer: The fastest algorithm.
            sizes: Message sizes in bytes at which it is the fastest.
        """
        if self.executor is None or offer.execution is not None:
            return True
        if reason := self.executor.refusal(offer.algorithm):
            self._refuse(offer, reason)
            return False
        has_program = bool(self.order.lowered)
        if self.programs is ProgramScope.NONE:
            return True
        is_urgent = has_program and not self.budget.is_patient and self._is_urgent(offer, sizes[-1])
        if has_program and self.programs is ProgramScope.FIRST and not is_urgent:
            return True
        if self.searching and has_program and offer.algorithm in self._cut_off:
            return True
        if self.pace.needs_s(offer.algorithm) > self.budget.patient_left_s:
            self.budget = replace(self.budget, patience=0.0)
        if not has_program:
            return self._settle_first(offer, sizes)
        if self.budget.is_patient and not self.order.is_worth_lowering(offer, sizes):
            self._refuse(offer, "a program of another algorithm is nearly as fast as this schedule")
            return False
        needs_s = self.pace.needs_s(offer.algorithm)
        waits = (
            self.budget.is_too_long_for_first(self._spent_s + needs_s)
            if is_urgent
            else self.budget.waits(needs_s, self._spent_s)
        )
        if self.searching and waits:
            self._postponed.add(offer.algorithm)
            return True
        self._postponed.discard(offer.algorithm)
        if now() + max(needs_s, self._least_s(offer, sizes[-1])) > self.budget.writing_deadline:
            # Once the time is over, no other algorithm is looked at either.
            is_over = self.budget.left_s <= 0
            for rival in self.order.waiting if is_over else [offer]:
                self._late.append(rival)
                self._refuse(rival, self._reason_late(rival))
            return False
        if self.searching:
            self._lower(offer, sizes, in_haste=self.programs is ProgramScope.FIRST)
        elif not self._improve_better(offer, sizes[-1]):
            self._lower(self.order.next(offer, sizes), sizes)
        return False

    def _is_urgent(self, offer: Offer, size_bytes: int) -> bool:
        """Return whether a schedule is so much faster than all programs that its own does not wait for the end.

        Beside other load, all programs at the end may take longer than the time that is kept for them.

        Args:
            offer: The fastest algorithm, which has no program while another one has.
            size_bytes: Message size in bytes.
        """
        return offer.time_us(size_bytes) < MUCH_FASTER * self.order.rival_us(offer, size_bytes)

    def _least_s(self, offer: Offer, size_bytes: int) -> float:
        """Return the seconds to lower an offer such that the file of the fastest program so far can still be written.

        They are 0 while engines have stages, and where that file is written already.
        """
        best = min(self.order.lowered, key=lambda rival: rival.taken_us(size_bytes), default=None)
        if self.searching or self.executor is None or best is None or best.execution in self._completed:
            return 0.0
        lowering_s = self.executor.send_s * self.pace.sends(offer.algorithm)
        return lowering_s + self.pace.surely_written_s(best.algorithm)

    def _improve_better(self, offer: Offer, size_bytes: int) -> bool:
        """Lower an algorithm with a program again if its schedule is faster than that of an offer without one.

        Of several such algorithms it takes the one with the fastest schedule. Return True if a faster program of it was
        made (`_improve`); return False also if there is none, or if the budget is patient.

        Args:
            offer: The fastest algorithm, which has no program.
            size_bytes: Message size in bytes at which it is the fastest.
        """
        better = [
            rival.at_size(size_bytes)
            for rival in self.order.lowered
            if rival.algorithm not in self._improved
            and rival.algorithm.time_us(size_bytes) < offer.algorithm.time_us(size_bytes)
        ]
        if self.budget.is_patient or not better:
            return False
        return self._improve(min(better, key=lambda rival: rival.algorithm.time_us(size_bytes)))

    def _settle_first(self, offer: Offer, sizes: Sequence[int]) -> bool:
        """Lower a first algorithm, so that there is a file whatever comes; return True if that waits.

        If the fastest algorithm takes long, one that takes less comes first: the fastest of those with few sends. If
        that one takes too long as well, or all were cut off, the fastest algorithm is postponed, and the result is
        True.

        Args:
            offer: The fastest algorithm, which has no program, as all others.
            sizes: Message sizes in bytes at which it is the fastest.
        """
        assert self.executor is not None
        is_short = self.budget.is_short(self.pace.needs_s(offer.algorithm), self.searching)
        if is_short and offer.algorithm not in self._cut_off:
            self._lower(offer, sizes)
            return False
        tried = self._cut_off if self.searching else ()
        candidates = [
            rival
            for rival in self.offers
            if rival.algorithm not in tried and not self.executor.refusal(rival.algorithm)
        ]
        if not candidates:
            self._postponed.add(offer.algorithm)
            return True
        first = self.order.first(sizes[-1], candidates)
        if self.searching and self.budget.is_too_long_for_first(self.pace.needs_s(first.algorithm)):
            self._postponed.add(offer.algorithm)
            return True
        self._lower(first, sizes, in_haste=True)
        return False

    def _lower(self, offer: Offer, sizes: Sequence[int], in_haste: bool = False) -> None:
        """Lower an algorithm within its deadlines; refuse or postpone it if there is no program in time.

        A program takes its place in `offers`, with its times from then on. While engines have stages, the file of a
        first program is written and checked too.

        Args:
            offer: The algorithm.
            sizes: Message sizes in bytes at which it is the fastest.
            in_haste: Whether the first program is not improved.
        """
        assert self.executor is not None
        sends = self.pace.sends(offer.algorithm)
        self.report(f"lowering {format_count(sends, 'send')}")
        is_first = not self.order.lowered or (self.searching and self._is_urgent(offer, sizes[-1]))
        begun, was_patient = now(), self.budget.is_patient
        enough, cutoff = self.budget.lowering_deadlines(
            self.searching, self._sharing, is_first, self.pace.needs_s(offer.algorithm), self.executor.writing
        )
        self.lowering = True
        try:
            # The first program stays if the time ends while a better one is looked for.
            has_end = not was_patient
            program = partial(self._program_of, offer.algorithm, begun if has_end else math.inf, sizes)
            lowered = replace(offer, execution=limited(cutoff, program))
            if is_first and self.searching:
                for served in self.executor.files([lowered]):
                    if served.execution is not None:
                        with suppress(TimeUp):  # The program stays; its file is completed at the end.
                            limited(cutoff, partial(self.executor.complete, served.execution))
        except TimeUp:
            if was_patient:  # It is lowered again, as the clock then allows.
                self.budget = replace(self.budget, patience=0.0)
                return
            self.pace.learn_cut_off(sends, now() - begun)
            if self.searching:
                self._postponed.add(offer.algorithm)
                self._cut_off.add(offer.algorithm)
            else:
                self._refuse(offer, self._reason_late(offer))
        except InputError as error:
            self._refuse(offer, str(error))
        else:
            rate_s = self.executor.send_s
            self.pace.learn(sends, self.executor.first_s)
            if self.executor.send_s < rate_s:
                self._readmit()
            at = self.offers.index(offer)
            self.offers[at] = lowered
            fast_enough = _AS_FAST if now() - begun < _QUICK * self.budget.seconds else _MET
            # What took long for others must be worth it.
            near = _MET if self._improving_s > _QUICK * self.budget.seconds else _AS_FAST
            is_slow = any(
                lowered.time_us(size) > fast_enough * offer.time_us(size)
                and self.order.rival_us(offer, size) > near * self._expected_us(offer, size)
                for size in sizes
            )
            if has_end and is_slow and not (in_haste or self.order.has_better_waiting(lowered, sizes)):
                # What takes little time ends by itself, so that the same question gets the same program.
                longest_s = max(_IMPROVING * (now() - begun), _LEAST_IMPROVING * self.budget.seconds)
                enough = min(enough, now() + longest_s)
                improved_from = now()
                faster = self._faster_program(lowered, enough, min(cutoff(), 2 * enough - now()), sizes)
                self._improving_s = max(self._improving_s, now() - improved_from)
                if now() < min(enough, cutoff()):  # Nothing was left out: again it would be the same program.
                    self._improved.add(offer.algorithm)
                self.offers[at] = lowered if faster is None else replace(lowered, execution=faster)
            self.pace.took(now() - begun)
        finally:
            self.lowering = False
            self._spent_s += now() - begun if self.searching else 0.0

    def _readmit(self) -> None:
        """Move the algorithms for which time seemed too short back to `offers`: lowering takes less than estimated."""
        late = {offer.algorithm for offer in self._late}
        self.refused = [offer for offer in self.refused if offer.algorithm not in late]
        self.offers += self._late
        self._late = []

    def _reason_late(self, offer: Offer) -> str:
        """Return the reason for a missing program; it ends with a budget that would be enough, as far as is known."""
        return LATE.format(self.budget.enough_for(self.pace.needs_s(offer.algorithm)))

    def _refuse(self, offer: Offer, reason: str) -> None:
        """Move an algorithm from `offers` to `refused`, with the reason."""
        self.remove(offer.algorithm)
        self.refused.append(replace(offer, refused=reason))


def offer_of(algorithm: Algorithm, least_bytes: int, elapsed_s: float | None = None) -> Offer:
    """Return an algorithm as an offer for messages whose largest chunks have at least so many bytes.

    An algorithm that cuts no block, or an all-reduce into no more than a share a rank, is for messages of any size.

    Args:
        algorithm: The algorithm.
        least_bytes: Smallest useful size of its largest chunk, in bytes.
        elapsed_s: Seconds from the beginning of the search until it was there; None if unknown.
    """
    collective = algorithm.problem.collective
    is_whole = collective.chunks <= (collective.nranks if collective.kind.in_shares else 1)
    least_size = 0.0 if is_whole else least_bytes / float(collective.fraction.max())
    return Offer(algorithm, least_size=least_size, elapsed_s=elapsed_s)
