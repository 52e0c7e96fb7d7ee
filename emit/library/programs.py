"""Algorithms as the programs that a target executes: lowered, timed, and cut into files by message size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from emit.compiler.lower import Lowering
from emit.compiler.tuning import TUNING
from emit.formats import FORMATS, write_program
from emit.goal import Goal
from emit.program import Program
from emit.targets import (
    AUTO,
    LL_MOST_BYTES,
    Target,
    check_overlap,
    choose_protocol,
    most_bytes,
    on_devices,
    target_for,
    without_packets,
)
from emit.timing.predict import Timed
from synth.model.common_chunk import common_chunk
from synth.model.problem import LARGEST, SMALLEST, Problem
from synth.present.text import format_size
from synth.search.contest import Contest
from synth.search.frontier import Contender, Range
from synth.search.result import SearchResult
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

NONE = "none"  # in place of a target: schedules, and no program of them
MOST_SENDS = 200_000  # of a schedule that is lowered; an executor takes far fewer
_ROUNDING = 1e-9
_UNABLE = 1e6  # times its time, a program takes where it cannot serve: whatever can is better
_WORTH = (
    1.02  # time of a Simple program over that of LL for small messages, from which on these get a file of their own
)


@dataclass(eq=False)
class Lowered:
    """A program of one protocol for one target, with its goal where its collective does not say it.

    scale: the size that an executor takes for that of its messages / the problem's message size.
    padding: of the fullest buffer the part that holds nothing; 0 but where chunks of different sizes are padded.
    largest: the most bytes of a message, as an executor sees it, that its file takes; None: there is no end.
    """

    target: Target
    program: Program
    goal: Goal | None
    predictor: Timed
    scale: float = 1.0
    padding: float = 0.0
    largest: int | None = None
    _times_us: dict[float, float] = field(default_factory=dict)

    def time_us(self, size_bytes: float) -> float:
        """In µs, for messages of `size_bytes`, as `simulate` has it."""
        if size_bytes not in self._times_us:
            self._times_us[size_bytes] = self.predictor.time_us(size_bytes * self.scale)
        return self._times_us[size_bytes]

    def serves(self, size_bytes: float) -> bool:
        """Whether its file takes messages of `size_bytes`."""
        return self.largest is None or size_bytes * self.scale <= self.largest

    def served(self, low: int, high: int | None) -> tuple[int, int | None]:
        """The sizes in bytes that an executor sees where the problem's are from `low` to `high` inclusive."""
        return int((low - 1) * self.scale) + 1 if low else 0, None if high is None else int(high * self.scale)


@dataclass(eq=False)
class LoweredBoth:
    """An algorithm's programs: `small` for messages of up to LL_MOST_BYTES, `large` for any (see `choose_protocol`)."""

    small: Lowered
    large: Lowered

    def time_us(self, size_bytes: float) -> float:
        """In µs, of the program for messages of `size_bytes`; far more than any other's for what it cannot serve."""
        by = self.small if size_bytes <= LL_MOST_BYTES else self.large
        return by.time_us(size_bytes) * (1 if by.serves(size_bytes) else _UNABLE)


class Programs:
    """What lowers the algorithms of one problem for one target.

    sms: threadblocks that a rank may have; None: all SMs of its device but RESERVED_SMS, where these are known.
    groups_overlap: no packets, as ranks are in several groups at a time. scratch_limit: as `on_devices` takes it.
    Raises InputError where the target cannot express the question at all, or a device has not so many SMs.
    """

    def __init__(
        self,
        problem: Problem,
        target: str = "auto",
        sms: int | None = None,
        groups_overlap: bool = False,
        scratch_limit: int | None = None,
    ) -> None:
        self.problem = problem
        chosen = target_for(problem, target)
        self.target = on_devices(
            without_packets(chosen) if groups_overlap else chosen, problem.topology.sms, sms, scratch_limit
        )
        self.nodes = problem.topology.nodes[list(problem.ranks)].tolist()

    @property
    def rank_sends(self) -> int:
        """How many sends a rank may take part in, on average; of small schedules twice as many, as these are fused."""
        alike = self.target.limits.rank_sends(self.problem.nranks)
        return max(alike, min(2 * alike, TUNING.unfused_from // (2 * self.problem.nranks)))

    def protocol(self, largest_bytes: int | None) -> str:
        """For messages of up to so many bytes, None: of any size."""
        named = "custom" if self.problem.relays else self.problem.collective.name
        return choose_protocol(largest_bytes, self.target, named, self.nodes)

    def lower(self, algorithm: Algorithm) -> LoweredBoth:
        """Both programs of an algorithm. Raises InputError where the target can hold none."""
        sends = len(algorithm.schedule)
        if algorithm.problem.quotient is not None:
            raise InputError("an executor's file of so many ranks would be too large")
        if sends > MOST_SENDS:
            raise InputError(f"an executor's file of {sends} sends would be too large")
        lowering = self._lowering(algorithm)
        large = self._lowered(lowering, self.protocol(None), 2 * LL_MOST_BYTES, LARGEST)
        try:
            small = self._lowered(lowering, self.protocol(LL_MOST_BYTES), SMALLEST, LL_MOST_BYTES)
        except InputError:
            small = large
        return LoweredBoth(small, large)

    def lower_once(self, algorithm: Algorithm, protocol: str, low: int, high: int) -> Lowered:
        """The program of one protocol for messages of `low` to `high` bytes. Raises InputError as `lower`."""
        return self._lowered(self._lowering(algorithm), protocol, low, high)

    def _lowering(self, algorithm: Algorithm) -> Lowering:
        return Lowering(algorithm, algorithm.problem.collective.name, limits=self.target.limits)

    def _lowered(self, lowering: Lowering, protocol: str, low: int, high: int) -> Lowered:
        program, goal = lowering.program(protocol, min_bytes=low, max_bytes=high), lowering.goal
        form, text, largest = FORMATS[self.target.format], "", most_bytes(program, self.target.limits)
        if not form.holds_program:  # which it may refuse yet
            text = self.text(replace(program, min_bytes=0, max_bytes=0), goal)
            largest = form.largest_message(text)
        common = common_chunk(lowering.algorithm.problem.collective)
        predictor = form.predictor(text, program, self.problem.topology, self.problem.ranks)
        scale = float(common.cells.fraction[0]) / predictor.chunk_bytes(1.0)
        exact = 1.0 if abs(scale - 1) < _ROUNDING else scale
        return Lowered(self.target, program, goal, predictor, exact, common.padding, largest)

    def text(self, program: Program, goal: Goal | None) -> str:
        """Of a program's file. Raises InputError where the target cannot hold it."""
        return write_program(program, goal, self.target, nodes=self.nodes)

    def files(self, ranges: Sequence[Range]) -> list[Range]:
        """The same ranges, each served by one program."""
        return _joined([part for served in ranges for file in _files(served) for part in _held(file)])


def executor_for(
    problem: Problem,
    target: str,
    sms: int | None = None,
    groups_overlap: bool = False,
    scratch_limit: int | None = None,
) -> Programs | None:
    """What lowers a problem's algorithms; None for NONE, and where no target ("auto") can express it."""
    if groups_overlap:
        check_overlap(target)
    if target == NONE:
        return None
    try:
        target_for(problem, target)
    except InputError:
        if target == AUTO:
            return None
        raise
    return Programs(problem, target, sms, groups_overlap, scratch_limit)


def run_by(found: SearchResult, programs: Programs) -> SearchResult:
    """The same answers with the times, ranges and gaps of a target's programs, where they are not that already."""
    made = [by for served in found.ranges if isinstance(by := served.contender.execution, Lowered)]
    untried = [s for s in found.ranges if s.contender.execution is None and not s.contender.refused]
    if made and not untried and all(by.target == programs.target for by in made):
        return found
    contest = Contest(programs, deadline=0.0 if found.ended else math.inf)  # then one is enough
    contest.contenders = [Contender(a) for a in dict.fromkeys(served.algorithm for served in found.ranges)]
    pinned = [served.low for served in found.ranges if served.low == served.high]
    ranges = contest.files(pinned[0] if pinned else None)
    return replace(found, ranges=ranges, refused=[*found.refused, *contest.refused])


def _files(served: Range) -> list[Range]:
    """A range of sizes as one file, or as two where small messages gain by one of their own."""
    made = served.contender.execution
    if not isinstance(made, LoweredBoth):
        return [served]
    if served.high is not None and served.high <= LL_MOST_BYTES:
        return [_serve(served, made.small)]
    sizes = [1 << e for e in range(SMALLEST.bit_length() - 1, LL_MOST_BYTES.bit_length())]
    small = [size for size in sizes if size >= served.low]
    if all(made.large.time_us(size) <= _WORTH * made.small.time_us(size) for size in small):
        return [_serve(served, made.large)]
    shown = small[0] if served.low == 0 else small[len(small) // 2]
    below = replace(served, high=LL_MOST_BYTES, shown=min(served.shown, shown))
    middle = min(2 * LL_MOST_BYTES, served.high or LARGEST)
    above = replace(served, low=LL_MOST_BYTES + 1, shown=max(served.shown, middle))
    return [_serve(below, made.small), _serve(above, made.large)]


def _held(served: Range) -> list[Range]:
    """A file's range as far as it can serve, and what is beyond up to LARGEST, which no file serves."""
    by = served.contender.execution
    most = None if not isinstance(by, Lowered) or by.largest is None else int(by.largest / by.scale)
    if most is None or not isinstance(by, Lowered) or (served.high is not None and served.high <= most):
        return [served]
    last = served.high or LARGEST
    limits = by.target.limits
    reason = f"offsets beyond {most} bytes of a message do not fit 32 bits"
    if limits.scratch_bytes:
        reason = f"{limits.name} allocates its scratch at the communicator's start, for larger messages more than "
        reason += f"--scratch-limit {format_size(limits.scratch_bytes)}"
    beyond = Contender(served.algorithm, refused=reason)
    rest = replace(served, contender=beyond, low=max(served.low, most + 1), shown=max(served.shown, most + 1))
    held = replace(served, high=most, shown=min(served.shown, most))
    return [*([held] if served.low <= most else []), *([rest] if most < last else [])]


def _joined(parts: Sequence[Range]) -> list[Range]:
    """The same with what one program cannot serve left to the next, where there is one."""
    made: list[Range] = []
    low = None
    for number, part in enumerate(parts):
        if part.contender.execution is None and part.contender.refused and number < len(parts) - 1:
            low = part.low if low is None else low
            continue
        made.append(part if low is None else replace(part, low=low))
        low = None
    return made


def _serve(served: Range, by: Lowered) -> Range:
    return replace(served, contender=Contender(served.contender.algorithm, by))
