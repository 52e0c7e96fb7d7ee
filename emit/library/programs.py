"""Algorithms as the programs that a target executes: lowered, timed, and cut into files by message size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from emit.compiler.cuts import best_cut
from emit.compiler.fill import filled
from emit.compiler.lower import Lowering, forms, program_collective
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
    divisor,
    most_bytes,
    on_devices,
    target_for,
    without_packets,
)
from emit.timing.predict import Timed
from synth.model.common_chunk import CommonChunk, common_chunk
from synth.model.problem import LARGEST, SMALLEST, Problem, question
from synth.present.text import format_size
from synth.search.contest import Contest
from synth.search.frontier import Contender, Range
from synth.search.result import SearchResult
from synth.verify.algorithm import Algorithm
from topologies.costed import protocols_of
from topologies.errors import InputError

INTERRUPTED = "interrupted before it was lowered"
_AT_ONCE = 300  # sends of an algorithm that is lowered after Ctrl-C: a few tenths of a second
NONE = "none"  # in place of a target: schedules, and no program of them
MOST_SENDS = 200_000  # of a schedule that is lowered; an executor takes far fewer
_ROUNDING = 1e-9
# bytes, by which the cells of a program divide that is not of the protocol for the smallest messages
_LEAST_OF_OTHERS = 1 << 16
_UNABLE = 1e6  # times its time, a program takes where it cannot serve: whatever can is better
_ELEMENT_BYTES = (4, 2, 1)  # of the types that sizes are looked at for, the usual one first
_WIDEST = 64  # cells of a chunk: an instruction holds 71
_WORTH = 1.02  # time of a Simple program over LL's for small messages, from which on these get a file of their own


@dataclass(eq=False)
class Lowered:
    """A program of one protocol for one target, with its goal where its collective does not say it.

    scale: the size that an executor takes for that of its messages / the problem's message size.
    common: the cells of its chunks; `padding`: of the fullest buffer the part that holds nothing.
    largest: the most bytes of a message, as an executor sees it, that its file takes; None: there is no end.
    """

    target: Target
    program: Program
    goal: Goal | None
    predictor: Timed
    common: CommonChunk
    scale: float = 1.0
    largest: int | None = None
    _times_us: dict[float, float] = field(default_factory=dict)

    def time_us(self, size_bytes: float) -> float:
        """In µs, for messages of `size_bytes`, as `simulate` has it."""
        if size_bytes not in self._times_us:
            self._times_us[size_bytes] = self.predictor.time_us(size_bytes * self.scale)
        return self._times_us[size_bytes]

    def takes(self, size_bytes: float) -> bool:
        """Whether messages of `size_bytes` are no larger than its file's largest."""
        return self.largest is None or size_bytes * self.scale <= self.largest

    @property
    def divides(self) -> int:
        """In bytes: a call is served only if this divides its message size."""
        return divisor(self.program, self.target)

    def serves(self, size_bytes: float) -> bool:
        """Whether it is for messages of about so many bytes.

        Of just so many where that is no power of two; else of blocks of powers of two of elements of the usual type.
        """
        if not self.takes(size_bytes):
            return False
        if self.common.padding or self.scale != 1.0:  # blocks of many sizes, of which these are the usual ones
            return True
        return divides_usual(self.divides, self.common.cells.chunks, self.target, int(size_bytes))

    def served(self, low: int, high: int | None) -> tuple[int, int | None]:
        """The sizes in bytes that an executor sees where the problem's are from `low` to `high` inclusive."""
        return int((low - 1) * self.scale) + 1 if low else 0, None if high is None else int(high * self.scale)


def divides_usual(divides: int, cells: int, target: Target, size: int) -> bool:
    """Whether a file of so many cells a block takes messages of about a size; see `Lowered.serves`."""
    if size & (size - 1):
        return size % divides == 0
    return divides * (1 if target.cell_bytes else _ELEMENT_BYTES[0]) <= size and not cells & (cells - 1)


def blocks_of(problem: Problem) -> int:
    """Blocks of a message, into each of which the cells of a file go."""
    return round(1 / (float(problem.collective.fraction[0]) * problem.collective.chunks))


@dataclass(eq=False)
class LoweredBoth:
    """An algorithm's programs: `small` for messages of up to LL_MOST_BYTES, `large` for any (see `choose_protocol`)."""

    small: Lowered
    large: Lowered

    def time_us(self, size_bytes: float) -> float:
        """In µs, of the program for messages of `size_bytes`; far more than any other's for what it does not take."""
        by = self._for(size_bytes)
        return by.time_us(size_bytes) * (1 if by.takes(size_bytes) else _UNABLE)

    def serves(self, size_bytes: float) -> bool:
        """Whether that program is for messages of about so many bytes."""
        return self._for(size_bytes).serves(size_bytes)

    def _for(self, size_bytes: float) -> Lowered:
        return self.small if size_bytes <= LL_MOST_BYTES else self.large


class Programs:
    """What lowers the algorithms of one problem for one target.

    sms: threadblocks that a rank may have; None: all SMs of its device but RESERVED_SMS, where these are known.
    groups_overlap: no packets, as ranks are in several groups at a time. scratch_limit: as `on_devices` takes it. size:
    in bytes, where only messages of one are of interest. inplace: for calls whose input and output are one memory;
    None: as `lower_to_instructions` takes it. Raises InputError where the target cannot express the question at all, or
    a device has not so many SMs.
    """

    def __init__(
        self,
        problem: Problem,
        target: str = "auto",
        sms: int | None = None,
        groups_overlap: bool = False,
        scratch_limit: int | None = None,
        *,
        size: int | None = None,
        inplace: bool | None = None,
    ) -> None:
        self.problem, self.size = problem, size
        self.inplace = forms(problem)[0] if inplace is None else inplace
        self._lowering: Lowering | None = None  # the last one, which the next program may share
        chosen = target_for(problem, target)
        self.target = on_devices(
            without_packets(chosen) if groups_overlap else chosen, problem.topology.sms, sms, scratch_limit
        )
        self.nodes = problem.topology.nodes[list(problem.ranks)].tolist()
        net = problem.network
        self.linked = sorted(set(zip(net.src.tolist(), net.dst.tolist(), strict=True)))

    @property
    def is_usual(self) -> bool:
        """Whether they are of the form that tables show."""
        return self.inplace == forms(self.problem)[0]

    @property
    def question(self) -> tuple[object, ...]:
        """What they answer, as `Entry.question` has it."""
        asked = question(self.problem)
        ranks = (tuple(asked[key]) for key in ("group", "relays"))
        return asked["collective"], asked["topology"], *ranks, asked["root"], self.target.name

    @property
    def rank_sends(self) -> int:
        """How many sends a rank may take part in, on average; of small schedules twice as many, as these are fused."""
        alike = self.target.limits.rank_sends(self.problem.nranks)
        return max(alike, min(2 * alike, TUNING.unfused_from // (2 * self.problem.nranks)))

    def protocol(self, largest_bytes: int | None) -> str:
        """For messages of up to so many bytes, None: of any size."""
        return choose_protocol(largest_bytes, self.target, program_collective(self.problem), self.nodes)

    def able(self, protocols: Sequence[str]) -> list[str]:
        """Those of these protocols that the target's programs can have."""
        if self.protocol(None) != "Simple":  # at any size
            return [name for name in protocols if name == self.protocol(None)]
        return [name for name in protocols if self.target.protocols.get(name) == name]

    def lower(self, algorithm: Algorithm) -> LoweredBoth | Lowered:
        """Both programs of an algorithm; that of its protocol, where costs are on.

        Raises InputError where the target can hold none.
        """
        sends = len(algorithm.schedule)
        if algorithm.problem.quotient is not None:
            raise InputError("an executor's file of so many ranks would be too large")
        if sends > MOST_SENDS:
            raise InputError(f"an executor's file of {sends} sends would be too large")
        own = algorithm.problem.topology.protocol
        if own:
            first = own == self.able(protocols_of(algorithm.problem.topology))[0]
            return self.lower_once(algorithm, own, SMALLEST if first else _LEAST_OF_OTHERS, LARGEST)
        large = self.lower_once(algorithm, self.protocol(None), 2 * LL_MOST_BYTES, LARGEST)
        try:
            small = self.lower_once(algorithm, self.protocol(LL_MOST_BYTES), SMALLEST, LL_MOST_BYTES)
        except InputError:
            small = large
        self._lowering = None
        return LoweredBoth(small, large)

    def lower_once(self, algorithm: Algorithm, protocol: str, low: int, high: int) -> Lowered:
        """The program of one protocol for messages of `low` to `high` bytes. Raises InputError as `lower`.

        In cells that divide what is sent; where that is refused, in a cell a chunk.
        """
        plain = common_chunk(algorithm.problem.collective)
        common = best_cut(algorithm, self._cells(algorithm, low, high))
        try:
            return self._made(algorithm, protocol, low, high, common)
        except InputError:
            if common.cells.nchunks == plain.cells.nchunks:
                raise
            return self._made(algorithm, protocol, low, high, plain)

    def _cells(self, algorithm: Algorithm, low: int, high: int) -> list[int]:
        """Numbers of cells of a block, none less than its chunks: all that divide the one size that is of interest.

        Else powers of two that divide messages of `low` bytes and all larger ones.
        """
        unit, blocks = self.target.cell_bytes, blocks_of(algorithm.problem)
        chunks = algorithm.problem.collective.chunks
        size = low if low == high else self.size
        if size is None:
            least = 1 << (chunks - 1).bit_length()
            most = min(low // (blocks * (unit or _ELEMENT_BYTES[0])), _WIDEST * chunks)
            return [least << doublings for doublings in range(max(1, (most // least).bit_length()))]
        for of_type in (unit,) if unit else _ELEMENT_BYTES:
            elements, rest = divmod(size, blocks * of_type)
            if rest == 0:
                return [n for n in range(chunks, min(elements, _WIDEST * chunks) + 1) if elements % n == 0]
        return []

    def _made(
        self,
        algorithm: Algorithm,
        protocol: str,
        low: int,
        high: int,
        common: CommonChunk,
    ) -> Lowered:
        lowering = self._lowering
        if lowering is None or not lowering.is_of(algorithm, common):
            name = algorithm.problem.collective.name
            lowering = Lowering(algorithm, name, limits=self.target.limits, inplace=self.inplace, common=common)
        self._lowering = lowering
        program, goal = lowering.program(protocol, min_bytes=low, max_bytes=high), lowering.goal
        parts = 1
        if algorithm.problem.topology.protocol:
            parts, program = filled(lowering, program, self.target.limits, low, high)
        form, text, largest = FORMATS[self.target.format], "", most_bytes(program, self.target.limits)
        if not form.holds_program:  # which it may refuse yet
            text = self.text(replace(program, min_bytes=0, max_bytes=0), goal)
            largest = form.largest_message(text)
        predictor = form.predictor(text, program, self.problem.topology, self.problem.ranks)
        scale = float(common.cells.fraction[0]) / parts / predictor.chunk_bytes(1.0)
        exact = 1.0 if abs(scale - 1) < _ROUNDING else scale
        return Lowered(self.target, program, goal, predictor, common, exact, largest)

    def other_form(self) -> Programs | None:
        """What lowers for calls out of place in place of those that are not, or the other way round.

        None where the target has one form only.
        """
        if len(forms(self.problem)) < 2 or program_collective(self.problem) in self.target.only_outofplace:
            return None
        other = copy(self)
        other.inplace, other._lowering = not self.inplace, None
        return other

    def text(self, program: Program, goal: Goal | None) -> str:
        """Of a program's file. Raises InputError where the target cannot hold it."""
        return write_program(program, goal, self.target, nodes=self.nodes, linked=self.linked)

    def files(self, ranges: Sequence[Range]) -> list[Range]:
        """The same ranges, each served by one program."""
        files = [file for served in ranges for file in _files(served)]
        return _joined([part for file in files for held in _held(file) for part in _divided(held)])


def executor_for(
    problem: Problem,
    target: str,
    sms: int | None = None,
    groups_overlap: bool = False,
    scratch_limit: int | None = None,
    *,
    size: int | None = None,
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
    return Programs(problem, target, sms, groups_overlap, scratch_limit, size=size)


def run_by(found: SearchResult, programs: Programs, until: float = math.inf) -> SearchResult:
    """The same answers with the times, ranges and gaps of a target's programs, where they are not that already.

    until: of `synth.model.deadline.now`: what could not be lowered and written by then is not lowered.
    """
    made = [by for served in found.ranges if isinstance(by := served.contender.execution, Lowered)]
    untried = [s for s in found.ranges if s.contender.execution is None and not s.contender.refused]
    same = (by.target == programs.target and by.program.inplace == programs.inplace for by in made)
    late = found.ended == "budget" and until < math.inf  # nothing is tried again that there was no time for
    if (made or late) and not untried and all(same):
        return found
    algorithms = [served.algorithm for served in found.ranges]
    if not found.ended:
        algorithms += [one.algorithm for one in found.others]
    if found.ended == "interrupted":
        algorithms = [algorithm for algorithm in algorithms if len(algorithm.schedule) <= _AT_ONCE]
        if not algorithms:
            stopped = [replace(one, contender=Contender(one.algorithm, refused=INTERRUPTED)) for one in found.ranges]
            return replace(found, ranges=stopped)
        until = 0.0  # one is enough
    contest = Contest(programs, deadline=until)
    contest.contenders = [Contender(a) for a in dict.fromkeys(algorithms)]
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
    if all(_does_as_well(made.large, made.small, size) for size in small):
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


def _divided(served: Range) -> list[Range]:
    """The range; refused where no size in it divides as the file needs."""
    by = served.contender.execution
    if not isinstance(by, Lowered) or served.high is None:
        return [served]
    first, last = by.served(max(served.low, 1), served.high)
    if last is None or -(-first // by.divides) * by.divides <= last:
        return [served]
    sizes = f"{served.low} to {served.high} bytes" if served.low < served.high else f"{served.low} bytes"
    why = f"no message of {sizes} is a multiple of {by.divides} bytes: {by.target.otherwise} serves it"
    return [replace(served, contender=Contender(served.algorithm, refused=why))]


def _does_as_well(large: Lowered, small: Lowered, size: int) -> bool:
    """Whether the program for large messages takes those of a size too, in little more time."""
    serves = large.serves(size) or not small.serves(size)
    return serves and large.time_us(size) <= _WORTH * small.time_us(size)


def _serve(served: Range, by: Lowered) -> Range:
    return replace(served, contender=Contender(served.contender.algorithm, by))
