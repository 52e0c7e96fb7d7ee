"""Orders of sends that wait for each other: list schedules by the least slack, swung to and fro."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from synth.engines.flow.csr_network import CsrNetwork
from synth.engines.flow.list_scheduling import list_schedule, urgencies
from synth.engines.flow.tuning import TUNING, Tuning
from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import Runner
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.model.schedule import Schedule, untimed


@dataclass(frozen=True, eq=False)
class Sends:
    """Sends, and what each waits for; `ordered` finds good orders for them.

    Attributes:
        problem: whose they are. net: its network. run: how loops are run. loop_net: the network as they take it.
        kilobytes: of every chunk, shape (chunks,).
        chunk, link, step: int, shape (sends,): what goes where; step: later than those of all that it waits for.
        reduces: bool, shape (sends,).
        before, after: int, shape (waits,): send after[i] carries what send before[i] brings.
        busiest_us: how long the busiest resource is busy.
    """

    problem: Problem
    net: CsrNetwork
    loop_net: CsrNetwork
    run: Runner
    kilobytes: Floats
    chunk: Ints
    link: Ints
    step: Ints
    reduces: Bools
    before: Ints
    after: Ints
    busiest_us: float
    tuning: Tuning = TUNING

    @cached_property
    def bundle(self) -> Ints:
        """Of every send, shape (sends,)."""
        return np.asarray(self.net.bundle[self.link])

    @cached_property
    def hold_us(self) -> Floats:
        """How long every send holds its bundle, shape (sends,)."""
        return np.asarray(self.kilobytes[self.chunk] / self.net.bandwidth_gbs[self.bundle])

    @cached_property
    def lasts_us(self) -> Floats:
        """From the start of every send to its arrival, shape (sends,)."""
        return np.asarray(self.hold_us + self.net.alpha_us[self.bundle])

    def ordered(
        self, enough_us: float, most: int = 10**9, deadline: float = np.inf, planned_us: Floats | None = None
    ) -> tuple[float, Schedule]:
        """(µs, the sends in the order of the best list schedule found); `most` schedules are made at most.

        planned_us: when each send is to begin, shape (sends,), by a plan that list schedules follow. None: no plan.
        """
        orders = self._by_parts() if planned_us is None else iter([-planned_us])
        best, rows, _ = self.listed(orders, enough_us, most, deadline)
        return best, untimed(self.chunk[rows], self.link[rows], self.step[rows], self.reduces[rows])

    def chains_us(self) -> Floats:
        """The longest chain of sends that starts with each send, shape (sends,)."""
        return urgencies(self.run, self.lasts_us, self.before, self.after, self.step)

    def listed(
        self, urgent: Iterable[Floats], enough_us: float, most: int = 10**9, deadline: float = np.inf
    ) -> tuple[float, Ints, Floats]:
        """(µs, sends in order of start, when each of them starts in µs), of the best list schedule found.

        Args:
            urgent: what goes first, shape (sends,), in each of the orders that are tried. Each is swung: backwards
                with the last first, forwards again (Li and Willis, 1992).
        """
        best, found, begins = np.inf, np.zeros(0, dtype=np.int64), np.zeros(0)
        made, over = 0, False
        for urgency in urgent:
            for swing in range(self.tuning.swings + 1):
                rows, start = self._list_schedule(urgency, self.before, self.after)
                took = float((start + self.lasts_us[rows]).max(initial=0.0))
                made += 1 + (swing > 0)
                better = took < best * (1 - 1e-12)
                if better:
                    best, found, begins = took, rows, start
                over = best <= enough_us or made >= most or now() >= deadline
                if over or swing == self.tuning.swings or (swing > 1 and not better):
                    break
                end = np.empty(len(rows))
                end[rows] = start + self.hold_us[rows]
                rows, start = self._list_schedule(end, self.after, self.before)
                urgency = np.empty(len(rows))
                urgency[rows] = start + self.hold_us[rows]
            if over:
                break
        return best, found, begins

    def _by_parts(self) -> Iterator[Floats]:
        """The least slack: what has the longest chain of sends behind it, and is of the part asked for first."""
        chain, part = self.chains_us(), self._part()
        # parts asked for one after another: links stay in use by all pairs, sums are spread while others are gathered
        for spread in self.tuning.spreads if part.any() else (0.0,):
            yield chain - spread * self.busiest_us * part

    def _list_schedule(self, urgency: Floats, before: Ints, after: Ints) -> tuple[Ints, Floats]:
        return list_schedule(self.run, self.loop_net, self.bundle, self.hold_us, urgency, before, after, self.tuning)

    def _part(self) -> Floats:
        """Which part of its block, or of its owner's share, a row's chunk is: 0 for the first, towards 1."""
        collective = self.problem.collective
        block = collective.chunks
        if collective.kind.in_shares and block > collective.nranks:
            block //= collective.nranks
        return (self.chunk % block) / block
