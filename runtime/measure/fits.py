"""What a machine costs, from the times of probes: every figure is a difference of times, so what they share goes out.

With one message of next to nothing there and one back, a call takes its start and two latencies; each further round two
latencies more: so many of them that they are most of the time, however long a call takes to start. Many such messages
on one link take a gap each more. Large messages take what their bytes take by so many threadblocks: by one what a
threadblock moves, by ever more of them what the link carries. (LogGP: Alexandrov, Ionescu, Schauser, Scheiman, SPAA
1995; its parameters from differences: Culler, Liu, Martin, Yoshikawa, 1996.)

A gap longer than two latencies cannot be told from them here: messages of one round come two latencies after those of
the round before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from runtime.measure.probes import Probe
from topologies.errors import InputError

Timer = Callable[[Probe, int], float]  # µs of a probe with messages of so many bytes, in one run

SMALL_BYTES = 8
MOST_BYTES = 64 << 20  # of a message
SHORT_US = 10_000.0  # the shorter of two large messages takes at least so long; latencies and slices do not count then
ROUNDS = (5, 25, 125)  # of the longer of two probes of latency: the first that take LONGER times what one round takes
LONGER = 3  # lest most of two times be what they share, and their noise more than what they differ by
LARGER_TAKE = 2  # times as long must four times the bytes take at least, for the same reason; or there must be more
MESSAGES = 32  # large ones in a row: the one back, which may go beside others, is one in so many
FIRST_BYTES = 4 << 10  # of large messages, before it is known how large they must be
BURST_BLOCKS, BURST_MESSAGES = 32, 2  # as many as every protocol's slots hold, so that none waits for room
MOST_BLOCKS = 32  # of a rank
SEEN = 0.05  # of a message's latency: a shorter gap cannot be told from what else messages wait for
GROWS = 1.15  # times the rate that a threadblock more must bring
AGREE = 3  # of a time's measurements must be about the least
ENOUGH = 0.1  # of it: how far they may lie apart without more measurements
CLOSER = (ENOUGH, 0.03, 0.01)  # the same, tried in turn while a figure is not known
NOISE = 0.5  # of a figure: one that is known no better is measured more closely
MOST = 40  # measurements of one time, in each turn
ACCEPT_NOISE = "--accept-noise"  # the option of `synth calibrate` that accepts times which say too little


@dataclass(frozen=True)
class Measured:
    """A figure, and how far it is known.

    Attributes:
        value: 0 where nothing of it is seen.
        spread: by which part of it the times that it follows from may move it; inf where nothing is seen.
        unrest: by which part of it the worst repeated of these times is open.
    """

    value: float
    spread: float = 0.0
    unrest: float = 0.0

    @classmethod
    def open_by(cls, value: float, open_by: float, unrest: float) -> Measured:
        """A figure that may be more or less by `open_by`, in its own unit; what is not positive is not seen."""
        return cls(value, open_by / value, unrest) if value > 0 else cls(0.0, math.inf, unrest)

    @property
    def within(self) -> str:
        """How far it is known, in words."""
        if self.value == 0:
            return "not seen"
        return f"{self.spread:.0%}" if math.isfinite(self.spread) else "not known"


def worst_within(figures: Iterable[Measured]) -> str:
    """How far the one of some figures is known that is known least, in words."""
    every = list(figures)
    seen = [figure for figure in every if figure.value]
    if not seen:
        return "not seen"
    return max(seen, key=lambda figure: figure.spread).within + (" where seen" if len(seen) < len(every) else "")


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


def repeated_least(measure: Callable[[], float], times: list[float], enough: float = ENOUGH) -> Measured:
    """The least of a time's measurements, repeated until AGREE of them are within `enough` of it, or MOST times more.

    times: those that there are, in µs; new ones are appended. What else runs here makes times longer, never shorter.
    Spread and unrest: by which part of the least the last of those AGREE is longer.
    """
    until = len(times) + MOST
    while True:
        least = sorted(times)[:AGREE]
        if len(least) == AGREE and (least[-1] <= (1 + enough) * least[0] or len(times) >= until):
            return Measured(least[0], least[-1] / least[0] - 1, least[-1] / least[0] - 1)
        times.append(measure())


@dataclass
class NoisePolicy:
    """The choice between refusing and accepting times that say too little of the machine.

    Such times come from machines that do other work too, and from links that something else limits (shaped links).

    Attributes:
        accept: True if such times are used all the same; False if the first of them is refused.
        remarks: What was seen of each figure that was accepted so, a line each, in the order of measurement.
    """

    accept: bool = False
    remarks: list[str] = field(default_factory=list)

    def object_to(self, what: str, seen: str, required: str) -> None:
        """Add a remark on a figure whose times say too little. Raises InputError unless noise is accepted."""
        if not self.accept:
            raise InputError(
                f"{what}: {seen}; it must be {required}, on a machine that is less busy and on links that nothing else"
                f" limits, or {ACCEPT_NOISE} must be given to write the figure all the same"
            )
        remark = f"{what}: {seen}"
        if remark not in self.remarks:
            self.remarks.append(remark)

    def check_repeated(self, what: str, figure: Measured) -> None:
        """Object to a figure of times that do not repeat: it describes what else ran, not the machine.

        A figure that is not known although its times repeat is so small that its times say no more.
        """
        if figure.spread > NOISE and figure.unrest > ENOUGH:
            seen = f"does not repeat, the least {AGREE} times that were measured lie {figure.unrest:.0%} apart"
            self.object_to(what, seen, f"{ENOUGH:.0%} or less")


class Meter:
    """Times of probes between `nranks` ranks, by one executor; each is measured until it repeats.

    Attributes:
        noise: Decides about times that say too little, and keeps what was seen of those that were accepted.
    """

    def __init__(self, timer: Timer, nranks: int, accept_noise: bool = False) -> None:
        self._timer, self._nranks = timer, nranks
        self.noise = NoisePolicy(accept_noise)
        self._times: dict[tuple[Probe, int], list[float]] = {}  # µs, all that were measured
        self._sizes: dict[Probe, int] = {}  # of the shorter of two large messages

    def latency_and_start(self, pair: tuple[int, int], protocol: str, gbs: float) -> tuple[Measured, Measured]:
        """µs of a step between two ranks besides its bytes, which one threadblock moves at `gbs`; of a call before."""
        one = self._probe((pair,), protocol), SMALL_BYTES
        for rounds in ROUNDS:
            many = self._probe((pair,), protocol, rounds=rounds), SMALL_BYTES
            once, often = self._least(*one), self._least(*many)
            if often.value >= LONGER * once.value:
                break
        once, often = self._apart(one, many)
        unrest = max(once.unrest, often.unrest)
        steps = 2 * (rounds - 1)
        once_us, often_us = once.value * once.spread, often.value * often.spread  # that they are open by
        step = (often.value - once.value) / steps
        latency = Measured.open_by(step - SMALL_BYTES / gbs / 1e3, (once_us + often_us) / steps, unrest)
        start = once.value - 2 * max(0.0, step)
        return latency, Measured.open_by(start, once_us + 2 * (once_us + often_us) / steps, unrest)

    def gap(self, pair: tuple[int, int], protocol: str, rates: Rates, latency_us: float) -> Measured:
        """µs for which a message keeps what it takes of its link busy besides its bytes; 0 where none is seen.

        What it takes is what a threadblock can move, so that as many as fill the link go beside each other.
        """
        one = self._probe((pair,), protocol), SMALL_BYTES
        burst = self._probe((pair,), protocol, BURST_BLOCKS, BURST_MESSAGES), SMALL_BYTES
        beside = max(1, min(round(rates.link.value / rates.threadblock.value), BURST_BLOCKS // 2))
        found = _over(*self._apart(one, burst), -(-BURST_BLOCKS * BURST_MESSAGES // beside) - 1)
        gap = found.value - SMALL_BYTES / rates.threadblock.value / 1e3
        seen = found.spread < 1 and gap >= SEEN * latency_us
        return Measured.open_by(gap if seen else 0.0, found.value * found.spread, found.unrest)

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

        The messages back count as if they were as fast. Where many bytes take no longer than few, their difference says
        nothing. The meter's noise policy then refuses them (InputError), or accepts what the larger messages move in
        their whole time, which is less than the link carries.
        """
        probe = self._probe(pairs, protocol, blocks, MESSAGES)
        size = self._sizes.get(probe, FIRST_BYTES)
        while probe not in self._sizes and (took := self._timer(probe, size)) < SHORT_US and 4 * size < MOST_BYTES:
            # not too far, for small messages take longer than their bytes do
            size = min(MOST_BYTES // 4, size * 4 ** max(1, int(math.log(SHORT_US / took, 4))))
        # where a call takes long to start, SHORT_US may be no more than that
        while 16 * size <= MOST_BYTES:
            if self._least(probe, 4 * size).value >= LARGER_TAKE * self._least(probe, size).value:
                break
            size *= 4
        self._sizes[probe] = size
        shorter, longer = self._apart((probe, size), (probe, 4 * size))
        apart = _over(shorter, longer, 1)
        chunks = blocks * (MESSAGES + 1) * len(pairs)
        if not apart.value:
            seen = (
                f"messages of {4 * size} bytes take no longer than of {size} bytes"
                f" ({longer.value:.4g} µs and {shorter.value:.4g} µs)"
            )
            (a, b), *more_pairs = pairs
            links = f"link {a}→{b}" + (f" and {len(more_pairs)} beside it" if more_pairs else "")
            threadblocks = "1 threadblock" if blocks == 1 else f"{blocks} threadblocks"
            self.noise.object_to(f"{links}: bandwidth under {protocol}, {threadblocks}", seen, "longer")
            return Measured(4 * size * chunks / longer.value / 1e3, math.inf, apart.unrest)
        return Measured(3 * size * chunks / apart.value / 1e3, apart.spread, apart.unrest)

    def _probe(
        self,
        pairs: Sequence[tuple[int, int]],
        protocol: str,
        blocks: int = 1,
        messages: int = 1,
        rounds: int = 1,
    ) -> Probe:
        return Probe(self._nranks, tuple(pairs), protocol, blocks, messages, rounds)

    def _least(self, probe: Probe, size: int, enough: float = ENOUGH) -> Measured:
        times = self._times.setdefault((probe, size), [])
        return repeated_least(lambda: self._timer(probe, size), times, enough)

    def _apart(self, short: tuple[Probe, int], long: tuple[Probe, int]) -> tuple[Measured, Measured]:
        """Two times, measured more closely while what they differ by is not known."""
        for enough in CLOSER:
            less, more = self._least(*short, enough), self._least(*long, enough)
            if _over(less, more, 1).spread <= NOISE:
                break
        return less, more


def _over(short: Measured, long: Measured, parts: int) -> Measured:
    """One of the parts by which two times differ."""
    open_us = long.value * long.spread + short.value * short.spread
    return Measured.open_by((long.value - short.value) / parts, open_us / parts, max(long.unrest, short.unrest))


def each_direction(there: float, back: float) -> tuple[float, float]:
    """GB/s of a link and of the one back, where `Meter.rate` found these: it counts MESSAGES there, one back.

    What noise makes of them stays positive.
    """
    slow = [(MESSAGES + 1) / rate for rate in (there, back)]
    own = [max((MESSAGES * a - b) / (MESSAGES**2 - 1), a / (MESSAGES + 1) / 2) for a, b in (slow, slow[::-1])]
    return 1 / own[0], 1 / own[1]
