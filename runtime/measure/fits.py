"""What a machine costs, from the times of probes: every figure is a difference of times, so what they share goes out.

With one message of next to nothing there and one back, a call takes its start and two latencies; each further round two
latencies more. Many such messages on one link take a gap each more. Large messages take what their bytes take by so
many threadblocks: by one what a threadblock moves, by ever more of them what the link carries. (LogGP: Alexandrov,
Ionescu, Schauser, Scheiman, SPAA 1995; its parameters from differences: Culler, Liu, Martin, Yoshikawa, 1996.)

A gap longer than two latencies cannot be told from them here: messages of one round come two latencies after those of
the round before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runtime.measure.probes import Probe
from topologies.errors import InputError

Timer = Callable[[Probe, int], float]  # µs of a probe with messages of so many bytes, in one run

SMALL_BYTES = 8
MOST_BYTES = 64 << 20  # of a message
SHORT_US = 10_000.0  # the shorter of two large messages takes at least so long; latencies and slices do not count then
ROUNDS = 5  # of the longer of two probes of latency
MESSAGES = 32  # large ones in a row: the one back, which may go beside others, is one in so many
FIRST_BYTES = 4 << 10  # of large messages, before it is known how large they must be
BURST_BLOCKS, BURST_MESSAGES = 32, 2  # as many as every protocol's slots hold, so that none waits for room
MOST_BLOCKS = 32  # of a rank
SEEN = 0.05  # of a message's latency: a shorter gap cannot be told from what else messages wait for
GROWS = 1.15  # times the rate that a threadblock more must bring
AGREE = 3  # of a time's measurements must be about the least
ENOUGH = 0.1  # of it: how far they may lie apart without more measurements
NOISE = 0.5  # of it: figures that lie further apart say nothing
MOST = 40  # measurements of one time


@dataclass(frozen=True)
class Measured:
    """A figure, and how far it is known: by which part of it the times that it follows from may move it."""

    value: float
    spread: float = 0.0


@dataclass(frozen=True)
class Rates:
    """GB/s that messages of a pair move at, by number of threadblocks; the last is what the link carries."""

    by_blocks: dict[int, Measured]

    @property
    def blocks(self) -> int:
        """As many as it takes to fill the link."""
        return next(reversed(self.by_blocks))

    @property
    def link(self) -> Measured:
        """Of the link."""
        return self.by_blocks[self.blocks]

    @property
    def threadblock(self) -> Measured:
        """Of one threadblock."""
        return self.by_blocks[1]


def repeated_least(measure: Callable[[], float]) -> Measured:
    """The least of a time's measurements, repeated until AGREE of them are about the least, or MOST times.

    What else runs here makes times longer, never shorter. Its spread: by which part of the least the last of those
    AGREE is longer.
    """
    times: list[float] = []
    while len(times) < MOST:
        times.append(measure())
        least = sorted(times)[:AGREE]
        if len(least) == AGREE and least[-1] <= (1 + ENOUGH) * least[0]:
            break
    return Measured(least[0], least[-1] / least[0] - 1)


def check_repeated(what: str, figure: Measured) -> None:
    """Raises InputError for a figure that does not repeat: it is of what else ran, not of the machine."""
    if not figure.spread <= NOISE:
        raise InputError(
            f"{what}: does not repeat, the least {AGREE} of {MOST} measurements leave it open by {figure.spread:.0%};"
            f" it must be {NOISE:.0%} or less, on a machine that is less busy"
        )


class Meter:
    """Times of probes between `nranks` ranks, by one executor; each is measured once."""

    def __init__(self, timer: Timer, nranks: int) -> None:
        self._timer, self._nranks = timer, nranks
        self._known: dict[tuple[Probe, int], Measured] = {}
        self._sizes: dict[Probe, int] = {}  # of the shorter of two large messages

    def latency_and_start(self, pair: tuple[int, int], protocol: str, gbs: float) -> tuple[Measured, Measured]:
        """µs of a step between two ranks besides its bytes, which one threadblock moves at `gbs`; of a call before."""
        once, often = (self._least(SMALL_BYTES, (pair,), protocol, rounds=rounds) for rounds in (1, ROUNDS))
        steps = 2 * (ROUNDS - 1)
        step = _over(often, once, steps)
        start = max(0.0, once.value - 2 * step.value)
        open_us = once.value * once.spread + 2 * step.value * step.spread
        latency = Measured(max(0.0, step.value - SMALL_BYTES / gbs / 1e3), step.spread)
        return latency, Measured(start, open_us / start if start else 0.0)

    def gap(self, pair: tuple[int, int], protocol: str, rates: Rates, latency_us: float) -> Measured:
        """µs for which a message keeps what it takes of its link busy besides its bytes; 0 where none is seen.

        What it takes is what a threadblock can move, so that as many as fill the link go beside each other.
        """
        one = self._least(SMALL_BYTES, (pair,), protocol)
        many = self._least(SMALL_BYTES, (pair,), protocol, blocks=BURST_BLOCKS, messages=BURST_MESSAGES)
        beside = max(1, min(round(rates.link.value / rates.threadblock.value), BURST_BLOCKS // 2))
        found = _over(many, one, -(-BURST_BLOCKS * BURST_MESSAGES // beside) - 1)
        gap = found.value - SMALL_BYTES / rates.threadblock.value / 1e3
        return Measured(gap, found.spread) if gap >= SEEN * latency_us else Measured(0.0)

    def rates(self, pair: tuple[int, int], protocol: str) -> Rates:
        """By ever more threadblocks, while they bring more."""
        found = {1: self.rate((pair,), protocol, 1)}
        while (blocks := 2 * next(reversed(found))) <= MOST_BLOCKS:
            more = self.rate((pair,), protocol, blocks)
            if more.value < GROWS * found[blocks // 2].value:
                break
            found[blocks] = more
        return Rates(found)

    def rate(self, pairs: Sequence[tuple[int, int]], protocol: str, blocks: int) -> Measured:
        """GB/s that all pairs carry in all when they send at once, each by so many threadblocks.

        The messages back count as if they were as fast.
        """
        probe = Probe(self._nranks, tuple(pairs), protocol, blocks, MESSAGES)
        size = self._sizes.get(probe, FIRST_BYTES)
        while probe not in self._sizes and (took := self._timer(probe, size)) < SHORT_US and 4 * size < MOST_BYTES:
            # not too far, for small messages take longer than their bytes do
            size = min(MOST_BYTES // 4, size * 4 ** max(1, int(math.log(SHORT_US / took, 4))))
        self._sizes[probe] = size
        short = self._least(size, pairs, protocol, blocks=blocks, messages=MESSAGES)
        long = self._least(4 * size, pairs, protocol, blocks=blocks, messages=MESSAGES)
        apart = _over(long, short, 1)
        moved = 3 * size * blocks * (MESSAGES + 1) * len(pairs)
        return Measured(moved / max(apart.value, 1e-3) / 1e3, apart.spread)

    def _least(
        self,
        size: int,
        pairs: Sequence[tuple[int, int]],
        protocol: str,
        blocks: int = 1,
        messages: int = 1,
        rounds: int = 1,
    ) -> Measured:
        probe = Probe(self._nranks, tuple(pairs), protocol, blocks, messages, rounds)
        if (probe, size) not in self._known:
            self._known[probe, size] = repeated_least(lambda: self._timer(probe, size))
        return self._known[probe, size]


def _over(long: Measured, short: Measured, parts: int) -> Measured:
    """One of the parts by which two times differ; 0, and known in no way, where they do not."""
    apart = long.value - short.value
    if apart <= 0:
        return Measured(0.0, math.inf)
    return Measured(apart / parts, (long.value * long.spread + short.value * short.spread) / apart)


def both_ways(there: float, back: float) -> tuple[float, float]:
    """GB/s of a link and of the one back, where `Meter.rate` found these: it counts MESSAGES there, one back.

    What noise makes of them stays positive.
    """
    slow = [(MESSAGES + 1) / rate for rate in (there, back)]
    own = [max((MESSAGES * a - b) / (MESSAGES**2 - 1), a / (MESSAGES + 1) / 2) for a, b in (slow, slow[::-1])]
    return 1 / own[0], 1 / own[1]
