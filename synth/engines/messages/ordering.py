"""The order of messages and of switches' operations: a list schedule whose items are whole messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from synth.baselines.fifo import waits
from synth.engines.flow.csr_network import CsrNetwork
from synth.engines.flow.ordering import OrderedSends
from synth.engines.flow.tree_sends import Sends
from synth.model.collective import Floats, Ints
from synth.model.compiled import choose_runner
from synth.model.pairs import pairs_of_rows
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from topologies.arrays import pointers, ranges, row_entries

_S_A_SEND = 1e-5  # seconds that the interpreter takes to list a send


@dataclass(frozen=True, eq=False)
class _Messages(OrderedSends):
    """Messages with dependencies; `sends` has the first send of each.

    Attributes:
        held_us: Time in µs that each message holds its carrier, shape (messages,).
    """

    held_us: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def hold_us(self) -> Floats:
        """Return the time in µs that every message holds its bundle, shape (messages,)."""
        return self.held_us


def ordered(
    problem: Problem, schedule: Schedule, size_bytes: float, turn: Floats, net: CsrNetwork, orders: int, deadline: float
) -> Schedule:
    """Return a schedule in the order of the best of about `orders` list schedules of its messages, untimed.

    Args:
        problem: The problem.
        schedule: Its sends, those of a message behind each other.
        size_bytes: Message size in bytes.
        turn: When each chunk should go, from 0 for the first towards 1, shape (chunks,).
        net: The links and hyperlinks in compressed rows, as `carrier_network` returns them.
        orders: List schedules after which the best one is the answer.
        deadline: Time on the clock `synth.model.deadline.now` at which the best so far is the answer.
    """
    message, rates = schedule.message, problem.network.carriers.bandwidth_gbs
    first = pointers(np.bincount(message))
    count, items = len(first) - 1, schedule.take(first[:-1])
    pairs = zip(_waits(problem, schedule), _replaced(problem, schedule), strict=True)
    before, after = (message[np.concatenate(rows)] for rows in pairs)
    before, after = np.divmod(np.unique(before * count + after), count)
    sends = Sends(items.chunk, items.link, items.step, items.reduces, before, after)
    kilobytes = np.add.reduceat(problem.collective.chunk_bytes(size_bytes)[schedule.chunk] * 1e-3, first[:-1])
    run = choose_runner(_S_A_SEND * count * orders)
    messages = _Messages(problem, size_bytes, sends, run, net, 0.0, held_us=kilobytes / rates[items.link])
    busy_us = np.bincount(messages.bundle, messages.hold_us + net.gap_us[messages.bundle])
    late_us = float(busy_us.max()) * turn[sends.chunk]

    def urgencies() -> Iterator[Floats]:
        """Yield urgencies: the longest chain first, more or less for one turn after another."""
        for spread in messages.tuning.spreads if late_us.any() else (0.0,):
            yield messages.chains_us() - spread * late_us

    _, order, _ = messages.listed(urgencies(), 0.0, orders, deadline)
    return schedule.take(row_entries(first, order))


def _waits(problem: Problem, schedule: Schedule) -> tuple[Ints, Ints]:
    """Return (a, b): row a brings what row b carries, also over hyperlinks; see `waits`."""
    net = problem.network
    if net.hyperlinks is None or schedule.link.max(initial=0) < net.nlinks:
        return waits(problem, schedule)
    # Rows over hyperlinks carry sums that all come in earlier steps, or copies of them.
    row, src, dst = pairs_of_rows(net, schedule.link)
    steps = schedule.nsteps
    reaches = (schedule.chunk[row] * net.nranks + dst) * steps + schedule.step[row]
    leaves = (schedule.chunk[row] * net.nranks + src) * steps
    order = np.argsort(reaches, kind="stable")
    low = np.searchsorted(reaches[order], leaves)
    counts = np.searchsorted(reaches[order], leaves + schedule.step[row]) - low
    return row[order[ranges(low, counts)]], np.repeat(row, counts)


def _replaced(problem: Problem, schedule: Schedule) -> tuple[Ints, Ints]:
    """Return (a, b): row b adds to what row a puts in place of the rank's own sum, and must come later."""
    net, steps = problem.network, schedule.nsteps
    plain = schedule.link < net.nlinks
    at = schedule.chunk * net.nranks + net.dst[np.where(plain, schedule.link, 0)]
    copies = np.flatnonzero(plain & ~schedule.reduces & problem.collective.reduces[schedule.chunk])
    copies = copies[np.lexsort((schedule.step[copies], at[copies]))]
    adds = np.flatnonzero(plain & schedule.reduces)
    last = np.searchsorted(at[copies] * steps + schedule.step[copies], at[adds] * steps + schedule.step[adds]) - 1
    follows = (last >= 0) & (at[copies[last]] == at[adds]) if len(copies) else np.zeros(len(adds), dtype=bool)
    return copies[last[follows]], adds[follows]
