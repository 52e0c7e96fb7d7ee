"""Orders of sends with dependencies: list schedules by the least slack, improved by backward and forward passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from synth.engines.flow.csr_network import CsrNetwork
from synth.engines.flow.list_scheduling import list_schedule, urgencies
from synth.engines.flow.tree_sends import Sends
from synth.engines.flow.tuning import TUNING, FlowTuning
from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.model.schedule import Schedule, untimed


def busiest_us(problem: Problem, sends: Schedule, size_bytes: float) -> float:
    """Return for how many µs the sends of a schedule keep the busiest resource busy, at a message size in bytes."""
    net, kilobytes = problem.network, problem.collective.chunk_bytes(size_bytes) * 1e-3
    load_us = np.bincount(sends.link, kilobytes[sends.chunk], minlength=net.nlinks)[net.link_of_use]
    busy_us = np.bincount(net.uses_idx, load_us, minlength=net.nresources) / net.capacity_gbs
    return float(busy_us.max(initial=0.0))


@dataclass(frozen=True, eq=False)
class OrderedSends:
    """Sends with dependencies; `ordered` finds good orders for them.

    Attributes:
        problem: The problem of the sends.
        size_bytes: Message size in bytes.
        sends: The sends and what they wait for.
        run: Runner of the compiled loops.
        net: The network in compressed rows.
        busiest_us: Time in µs that the busiest resource is busy.
        tuning: Settings of list scheduling.
        turn: When each send should go among sends that are about equally urgent, from 0 for the first to 1, shape
            (sends,); None: in any order.
    """

    problem: Problem
    size_bytes: float
    sends: Sends
    run: Runner
    net: CsrNetwork
    busiest_us: float
    tuning: FlowTuning = TUNING
    turn: Floats | None = None

    @cached_property
    def _loop_net(self) -> CsrNetwork:
        """Return the network as the loops need it."""
        return self.run.table(self.net)

    @cached_property
    def bundle(self) -> Ints:
        """Return the bundle of every send, shape (sends,)."""
        return np.asarray(self.net.bundle[self.sends.link])

    @cached_property
    def hold_us(self) -> Floats:
        """Return the time in µs that every send holds its bundle, shape (sends,)."""
        kilobytes = self.problem.collective.chunk_bytes(self.size_bytes) * 1e-3
        return np.asarray(kilobytes[self.sends.chunk] / self.net.bandwidth_gbs[self.bundle])

    @cached_property
    def lasts_us(self) -> Floats:
        """Return the time in µs from the start of every send to its arrival, shape (sends,)."""
        return np.asarray(self.hold_us + self.net.alpha_us[self.bundle])

    def ordered(
        self, enough_us: float, most: int = 10**9, deadline: float = np.inf, planned_us: Floats | None = None
    ) -> tuple[float, Schedule]:
        """Return the time in µs from the first send on, and the untimed sends in the order of the best list schedule.

        Args:
            enough_us: A time that need not be improved.
            most: List schedules after which the best one is the answer.
            deadline: Time on the clock `synth.model.deadline.now` at which the best so far is the answer; one list
                schedule is made even after it.
            planned_us: Time in µs at which each send is to begin, shape (sends,), which the list schedules follow; None
                without a plan.

        Raises:
            ScheduleError: If sends wait for each other.
        """
        orders = self._by_parts() if planned_us is None else iter([-planned_us])
        best, rows, _ = self.listed(orders, enough_us, most, deadline)
        return best, self.schedule(rows)

    def schedule(self, rows: Ints) -> Schedule:
        """Return the untimed schedule of the sends in an order, given as row numbers of `sends`."""
        sends = self.sends
        return untimed(sends.chunk[rows], sends.link[rows], sends.step[rows], sends.reduces[rows])

    def chains_us(self) -> Floats:
        """Return the length of the longest chain of sends that starts with each send in µs, shape (sends,)."""
        return urgencies(self.run, self.lasts_us, self.sends.before, self.sends.after, self.sends.step)

    def listed(
        self, urgent: Iterable[Floats], enough_us: float, most: int = 10**9, deadline: float = np.inf
    ) -> tuple[float, Ints, Floats]:
        """Return the time in µs, the rows of the sends in order of start, and their starts in µs, of the best schedule.

        Without any order to try, the time is inf and there are no rows.

        Args:
            urgent: Urgency of each send, shape (sends,), for each order to try. Each order is improved by swings:
                backwards with the last send first, then forwards again (Li and Willis, 1992).
            enough_us: A time that need not be improved.
            most: List schedules after which the best one is the answer; a swing counts as two.
            deadline: Time on the clock `synth.model.deadline.now` at which the best so far is the answer; one list
                schedule is made even after it.

        Raises:
            ScheduleError: If sends wait for each other.
        """
        best_us, best_rows, best_start = np.inf, np.zeros(0, dtype=np.int64), np.zeros(0)
        nschedules, is_over = 0, False
        for urgency in urgent:
            for swing in range(self.tuning.swings + 1):
                rows, start = self._list_schedule(urgency, self.sends.before, self.sends.after)
                time_us = float((start + self.lasts_us[rows]).max(initial=0.0))
                nschedules += 1 + (swing > 0)
                better = time_us < best_us * (1 - 1e-12)
                if better:
                    best_us, best_rows, best_start = time_us, rows, start
                is_over = best_us <= enough_us or nschedules >= most or now() >= deadline
                if is_over or swing == self.tuning.swings or (swing > 1 and not better):
                    break
                end = np.empty(len(rows))
                end[rows] = start + self.hold_us[rows]
                rows, start = self._list_schedule(end, self.sends.after, self.sends.before)
                urgency = np.empty(len(rows))
                urgency[rows] = start + self.hold_us[rows]
            if is_over:
                break
        return best_us, best_rows, best_start

    def _by_parts(self) -> Iterator[Floats]:
        """Yield urgencies in µs by the least slack, shape (sends,): the length of the longest chain from each send on.

        Each of `tuning.spreads` gives one order, in which later parts of the message are less urgent; where all chunks
        are of the first part, the plain order is the only one. With turns, each of `tuning.turns` gives such orders.
        """
        chain, part = self.chains_us(), self._part()
        # With the parts one after another, links stay in use by all pairs, and sums are spread while other sums are
        # gathered.
        spreads = self.tuning.spreads if part.any() else (0.0,)
        if self.turn is None:
            yield from (chain - spread * self.busiest_us * part for spread in spreads)
            return
        for spread in spreads:
            for share in self.tuning.turns:
                yield chain - self.busiest_us * (spread * part + share * self.turn)

    def _list_schedule(self, urgency: Floats, before: Ints, after: Ints) -> tuple[Ints, Floats]:
        """Return a list schedule with these dependencies: its rows in order of start, and their starts in µs."""
        return list_schedule(self.run, self._loop_net, self.bundle, self.hold_us, urgency, before, after, self.tuning)

    def _part(self) -> Floats:
        """Return the place of each send's chunk in its block, or in its owner's share, shape (sends,).

        It is 0 for the first chunk and rises towards 1.
        """
        collective = self.problem.collective
        block = collective.chunks
        if collective.kind.in_shares and block > collective.nranks:
            block //= collective.nranks
            return (self.sends.chunk % block) / block
        return collective.place_in_block[self.sends.chunk]
