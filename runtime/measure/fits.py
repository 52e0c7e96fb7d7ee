"""Run probes until their times repeat, and compute a machine's costs: latency, start, gap and rates.

Every figure is a difference of times, so that common parts cancel out.

With one tiny message in each direction, a call takes its start and two latencies. Each further round takes two
latencies more; there are so many rounds that they are most of the time, however long a call takes to start. Many tiny
messages on one link take a gap more each. Large messages take the time of their bytes with the given threadblocks: with
one the rate of a threadblock, with more and more of them the rate of the link. (LogGP: Alexandrov, Ionescu, Schauser,
Scheiman, SPAA 1995; its parameters from differences: Culler, Liu, Martin, Yoshikawa, 1996.)

A gap longer than two latencies cannot be told from them here: messages of one round come two latencies after those of
the round before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from runtime.measure.probes import Probe
from topologies.errors import InputError

Timer = Callable[[Probe, int], float]  # Returns the µs of one run of a probe, given the bytes of its messages.

SMALL_BYTES = 8
MOST_BYTES = 64 << 20  # Of a message.
SHORT_US = 10_000.0  # Least time of the shorter of two large messages; then latencies and slices do not matter.
ROUNDS = (5, 25, 125)  # Rounds of the longer latency probe; the first number that takes LONGER times one round is used.
LONGER = 3  # With less, the noise of two times could exceed their difference.
LARGER_TAKE = 2  # Least factor in time for four times the bytes, for the same reason; else there are more bytes.
MESSAGES = 32  # Large messages in a row; the message back, which may overlap with others, counts little.
FIRST_BYTES = 4 << 10  # Of large messages, before their size is decided.
BURST_BLOCKS, BURST_MESSAGES = 32, 2  # Every protocol's slots hold these messages, so none waits for room.
MOST_BLOCKS = 32  # Of a rank.
SEEN = 0.05  # Share of the latency; a shorter gap cannot be told from other waits of messages.
GROWS = 1.15  # Factor in the rate that twice the threadblocks must bring.
AGREE = 3  # Measurements of a time that must be near the least.
ENOUGH = 0.1  # Relative distance that they may have without more measurements.
CLOSER = (ENOUGH, 0.03, 0.01)  # Such distances, tried in turn while a figure is uncertain.
NOISE = 0.5  # Relative uncertainty above which a figure is measured more closely.
MOST = 40  # New measurements of one time, for each distance.
ACCEPT_NOISE = "--accept-noise"  # The option of `synth calibrate` that accepts noise.


@dataclass(frozen=True)
class Measured:
    """A figure with its uncertainty.

    Attributes:
        value: The figure; 0 if the times show nothing of it.
        spread: Relative uncertainty that follows from its times; inf if the times show nothing.
        unrest: Relative spread of the least repeatable of these times.
    """

    value: float
    spread: float = 0.0
    unrest: float = 0.0

    @classmethod
    def open_by(cls, value: float, open_by: float, unrest: float) -> Measured:
        """Return a figure with the uncertainty `open_by` in its own unit; the spread is `open_by` / `value`.

        If the value is not positive, the figure is 0 with the spread inf. `unrest` is as in the class.
        """
        return cls(value, open_by / value, unrest) if value > 0 else cls(0.0, math.inf, unrest)

    @property
    def within(self) -> str:
        """Return the relative uncertainty in words: "5%", "not seen" for a figure of 0, or "not known" for inf."""
        if self.value == 0:
            return "not seen"
        return f"{self.spread:.0%}" if math.isfinite(self.spread) else "not known"


def worst_within(figures: Iterable[Measured]) -> str:
    """Return the largest uncertainty of some figures in words, as `Measured.within`.

    " where seen" follows if some of the figures are 0. It is "not seen" if none of them is above 0.
    """
    all_figures = list(figures)
    positive = [figure for figure in all_figures if figure.value]
    if not positive:
        return "not seen"
    return max(positive, key=lambda figure: figure.spread).within + (
        " where seen" if len(positive) < len(all_figures) else ""
    )


@dataclass(frozen=True)
class Rates:
    """The rates of messages between a pair.

    Attributes:
        by_blocks: GB/s by number of threadblocks; the last one is the rate of the link.
    """

    by_blocks: dict[int, Measured]

    @property
    def blocks(self) -> int:
        """Return the number of threadblocks that fill the link: the largest in `by_blocks`."""
        return next(reversed(self.by_blocks))

    @property
    def link(self) -> Measured:
        """Return the rate of the link in GB/s."""
        return self.by_blocks[self.blocks]

    @property
    def threadblock(self) -> Measured:
        """Return the rate of one threadblock in GB/s."""
        return self.by_blocks[1]


def repeated_least(measure: Callable[[], float], times: list[float], enough: float = ENOUGH) -> Measured:
    """Return the least of a time's measurements, repeated until AGREE of them are within `enough` of it.

    After MOST new measurements it stops. Other work on the machine makes times longer, never shorter. Spread and unrest
    are the relative distance of the last of those AGREE from the least.

    Args:
        measure: Function that measures the time in µs.
        times: Measurements in µs so far, which may be none; new ones are appended in place.
        enough: Relative distance that is small enough.
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
        accept: True to use such times; False to refuse the first of them.
        remarks: A line for each figure that was accepted in spite of its times, in the order of measurement.
    """

    accept: bool = False
    remarks: list[str] = field(default_factory=list)

    def object_to(self, subject: str, finding: str, required: str) -> None:
        """Add a remark on a figure whose times say too little, unless it is there already.

        Args:
            subject: The figure.
            finding: What its times show.
            required: What they would have to be.

        Raises:
            InputError: Noise is not accepted.
        """
        if not self.accept:
            raise InputError(
                f"{subject}: {finding}; it must be {required}; measure on a machine that is less busy and on links that"
                f" nothing else limits, or give {ACCEPT_NOISE} to write the figure anyway"
            )
        remark = f"{subject}: {finding}"
        if remark not in self.remarks:
            self.remarks.append(remark)

    def check_repeated(self, subject: str, figure: Measured) -> None:
        """Check that a figure's times repeat, and object otherwise: they would describe other work, not the machine.

        A figure that is uncertain although its times repeat is too small for its times to say more, and passes.

        Args:
            subject: Name of the figure, for the remark or the error.
            figure: The figure.

        Raises:
            InputError: The times do not repeat, and noise is not accepted.
        """
        if figure.spread > NOISE and figure.unrest > ENOUGH:
            finding = f"does not repeat, the least {AGREE} times that were measured lie {figure.unrest:.0%} apart"
            self.object_to(subject, finding, f"{ENOUGH:.0%} or less")


class Meter:
    """Times of probes between `nranks` ranks on one executor; each is measured until it repeats.

    Attributes:
        noise: The policy for times that say too little, with remarks on the accepted ones.
    """

    def __init__(self, timer: Timer, nranks: int, accept_noise: bool = False) -> None:
        self._timer, self._probe = timer, partial(Probe, nranks)
        self.noise = NoisePolicy(accept_noise)
        self._times: dict[tuple[Probe, int], list[float]] = {}  # All measurements in µs.
        self._sizes: dict[Probe, int] = {}  # Bytes of the shorter of two large messages.

    def latency_and_start(self, pair: tuple[int, int], protocol: str, gbs: float) -> tuple[Measured, Measured]:
        """Measure (latency of a step between two ranks, start of a call before its first step), in µs.

        A figure that the times do not show, or that would be negative, is 0 with the spread inf.

        Args:
            pair: The ranks.
            protocol: The protocol.
            gbs: Rate of one threadblock in GB/s; the time of the bytes is subtracted from the latency.
        """
        single = self._probe((pair,), protocol), SMALL_BYTES
        for rounds in ROUNDS:
            repeated = self._probe((pair,), protocol, rounds=rounds), SMALL_BYTES
            single_time, repeated_time = self._least(*single), self._least(*repeated)
            if repeated_time.value >= LONGER * single_time.value:
                break
        single_time, repeated_time = self._apart(single, repeated)
        unrest = max(single_time.unrest, repeated_time.unrest)
        steps = 2 * (rounds - 1)
        single_open_us, repeated_open_us = (
            single_time.value * single_time.spread,
            repeated_time.value * repeated_time.spread,
        )
        step = (repeated_time.value - single_time.value) / steps
        latency = Measured.open_by(step - SMALL_BYTES / gbs / 1e3, (single_open_us + repeated_open_us) / steps, unrest)
        start = single_time.value - 2 * max(0.0, step)
        return latency, Measured.open_by(
            start, single_open_us + 2 * (single_open_us + repeated_open_us) / steps, unrest
        )

    def gap(self, pair: tuple[int, int], protocol: str, rates: Rates, latency_us: float) -> Measured:
        """Measure the time in µs for which a message occupies its part of the link besides its bytes; 0 if none shows.

        The part is what a threadblock can move, so that as many messages as fill the link go at the same time.

        Args:
            pair: The ranks.
            protocol: The protocol.
            rates: Rates of the pair under this protocol.
            latency_us: Latency of the pair in µs; a gap below SEEN of it counts as none.
        """
        single = self._probe((pair,), protocol), SMALL_BYTES
        burst = self._probe((pair,), protocol, BURST_BLOCKS, BURST_MESSAGES), SMALL_BYTES
        parallel = max(1, min(round(rates.link.value / rates.threadblock.value), BURST_BLOCKS // 2))
        per_message = _over(*self._apart(single, burst), -(-BURST_BLOCKS * BURST_MESSAGES // parallel) - 1)
        gap = per_message.value - SMALL_BYTES / rates.threadblock.value / 1e3
        is_visible = per_message.spread < 1 and gap >= SEEN * latency_us
        return Measured.open_by(gap if is_visible else 0.0, per_message.value * per_message.spread, per_message.unrest)

    def rates(self, pair: tuple[int, int], protocol: str) -> Rates:
        """Measure the rates of a pair with more and more threadblocks, while these increase the rate.

        The numbers of threadblocks are 1, 2, 4, … up to MOST_BLOCKS.

        Raises:
            InputError: The noise policy refuses the times.
        """
        rate_of_blocks = {1: self.rate((pair,), protocol, 1)}
        while (blocks := 2 * next(reversed(rate_of_blocks))) <= MOST_BLOCKS:
            more = self.rate((pair,), protocol, blocks)
            if more.value < GROWS * rate_of_blocks[blocks // 2].value:
                break
            rate_of_blocks[blocks] = more
        return Rates(rate_of_blocks)

    def rate(self, pairs: Sequence[tuple[int, int]], protocol: str, blocks: int) -> Measured:
        """Measure the GB/s that all pairs carry in total when they send at once, each with `blocks` threadblocks.

        The value is above 0; without a difference its spread is inf. The messages back count as if they were as fast.
        If many bytes take no longer than few, their difference says nothing. The meter's noise policy then refuses the
        times, or accepts what the larger messages move in their whole time, which is less than the link carries.

        Raises:
            InputError: The noise policy refuses the times.
        """
        probe = self._probe(tuple(pairs), protocol, blocks, MESSAGES)
        size = self._sizes.get(probe, FIRST_BYTES)
        while probe not in self._sizes and (took_us := self._timer(probe, size)) < SHORT_US and 4 * size < MOST_BYTES:
            # The step is limited, because small messages take longer than their bytes.
            size = min(MOST_BYTES // 4, size * 4 ** max(1, int(math.log(SHORT_US / took_us, 4))))
        # If a call takes long to start, SHORT_US may be only the start.
        while 16 * size <= MOST_BYTES:
            if self._least(probe, 4 * size).value >= LARGER_TAKE * self._least(probe, size).value:
                break
            size *= 4
        self._sizes[probe] = size
        shorter, longer = self._apart((probe, size), (probe, 4 * size))
        difference = _over(shorter, longer, 1)
        chunks = blocks * (MESSAGES + 1) * len(pairs)
        if not difference.value:
            finding = (
                f"messages of {4 * size} bytes take no longer than of {size} bytes"
                f" ({longer.value:.4g} µs and {shorter.value:.4g} µs)"
            )
            (a, b), *more_pairs = pairs
            links = f"link {a}→{b}" + (f" and {len(more_pairs)} more" if more_pairs else "")
            threadblocks = "1 threadblock" if blocks == 1 else f"{blocks} threadblocks"
            self.noise.object_to(f"{links}: bandwidth under {protocol}, {threadblocks}", finding, "longer")
            return Measured(4 * size * chunks / longer.value / 1e3, math.inf, difference.unrest)
        return Measured(3 * size * chunks / difference.value / 1e3, difference.spread, difference.unrest)

    def _least(self, probe: Probe, size: int, enough: float = ENOUGH) -> Measured:
        """Return the least time in µs of a probe, with new measurements where they are needed, as in `repeated_least`.

        Args:
            probe: The probe.
            size: Bytes of its messages.
            enough: Relative distance of times that is small enough.
        """
        times = self._times.setdefault((probe, size), [])
        return repeated_least(lambda: self._timer(probe, size), times, enough)

    def _apart(self, short: tuple[Probe, int], long: tuple[Probe, int]) -> tuple[Measured, Measured]:
        """Return the times in µs of two probes, measured more closely while their difference is too uncertain.

        Args:
            short: Probe and bytes of its messages, whose time should be the shorter one.
            long: The other probe and bytes.
        """
        for enough in CLOSER:
            less, more = self._least(*short, enough), self._least(*long, enough)
            if _over(less, more, 1).spread <= NOISE:
                break
        return less, more


def _over(short: Measured, long: Measured, parts: int) -> Measured:
    """Return one of `parts` equal parts of the difference `long` - `short` of two times.

    It is 0 with the spread inf where the difference is not positive. Its uncertainty is the sum of that of both times.
    """
    open_us = long.value * long.spread + short.value * short.spread
    return Measured.open_by((long.value - short.value) / parts, open_us / parts, max(long.unrest, short.unrest))


def each_direction(forward_gbs: float, back_gbs: float) -> tuple[float, float]:
    """Return the GB/s of a link and of the link back, from the rates that `Meter.rate` measured for them.

    `Meter.rate` sends MESSAGES chunks in one direction and one back, and counts all of them. The results are positive,
    whatever the noise.

    Args:
        forward_gbs: Rate of the link in GB/s, above 0.
        back_gbs: Rate of the link back in GB/s, above 0.
    """
    inverse_rates = [(MESSAGES + 1) / rate for rate in (forward_gbs, back_gbs)]
    seconds_per_unit = [
        max((MESSAGES * a - b) / (MESSAGES**2 - 1), a / (MESSAGES + 1) / 2)
        for a, b in (inverse_rates, inverse_rates[::-1])
    ]
    return 1 / seconds_per_unit[0], 1 / seconds_per_unit[1]
