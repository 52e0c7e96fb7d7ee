"""The order of messages: a list schedule whose items are whole messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from synth.baselines.fifo import waits
from synth.engines.flow.csr_network import CsrNetwork
from synth.engines.flow.ordering import OrderedSends
from synth.engines.flow.tree_sends import Sends
from synth.model.collective import Floats
from synth.model.compiled import choose_runner
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from topologies.arrays import pointers, row_entries

_S_A_SEND = 1e-5  # seconds that the interpreter takes to list a send


@dataclass(frozen=True, eq=False)
class _Messages(OrderedSends):
    """Messages with dependencies; `sends` has the first send of each.

    Attributes:
        kilobytes: Size of each message in kilobytes, shape (messages,).
    """

    kilobytes: Floats = field(default_factory=lambda: np.zeros(0))

    @cached_property
    def hold_us(self) -> Floats:
        """Return the time in µs that every message holds its bundle, shape (messages,)."""
        return np.asarray(self.kilobytes / self.net.bandwidth_gbs[self.bundle])


def ordered(
    problem: Problem, schedule: Schedule, size_bytes: float, turn: Floats, net: CsrNetwork, orders: int, deadline: float
) -> Schedule:
    """Return a schedule in the order of the best of about `orders` list schedules of its messages, untimed.

    Args:
        problem: The problem.
        schedule: Its sends, those of a message behind each other.
        size_bytes: Message size in bytes.
        turn: When each chunk should go, from 0 for the first towards 1, shape (chunks,).
        net: The network in compressed rows.
        orders: List schedules after which the best one is the answer.
        deadline: Time on the clock `synth.model.deadline.now` at which the best so far is the answer.
    """
    message = schedule.message
    first = pointers(np.bincount(message))
    count, rows = len(first) - 1, first[:-1]
    before, after = (message[ends] for ends in waits(problem, schedule))
    before, after = np.divmod(np.unique(before * count + after), count)
    items = schedule.take(rows)
    sends = Sends(items.chunk, items.link, items.step, items.reduces, before, after)
    kilobytes = np.add.reduceat(problem.collective.chunk_bytes(size_bytes)[schedule.chunk] * 1e-3, rows)
    run = choose_runner(_S_A_SEND * count * orders)
    messages = _Messages(problem, size_bytes, sends, run, net, 0.0, kilobytes=kilobytes)
    busy_us = np.bincount(messages.bundle, messages.hold_us + net.gap_us[messages.bundle])
    late_us = float(busy_us.max()) * turn[messages.sends.chunk]

    def urgencies() -> Iterator[Floats]:
        """Yield urgencies: the longest chain first, more or less for one turn after another."""
        for spread in messages.tuning.spreads if late_us.any() else (0.0,):
            yield messages.chains_us() - spread * late_us

    _, order, _ = messages.listed(urgencies(), 0.0, orders, deadline)
    return schedule.take(row_entries(first, order))
