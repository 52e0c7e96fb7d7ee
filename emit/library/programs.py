"""Algorithms as the programs that a target executes: lowered and timed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import replace

from emit.check.capacity import CAPACITY
from emit.compiler.cuts import best_cut, cut_time_us
from emit.compiler.fill import filled, least_bytes
from emit.compiler.lower import Lowering, forms, program_collective
from emit.compiler.tuning import TUNING
from emit.formats import FORMATS, write_program
from emit.goal import Goal, most_chunks
from emit.library.by_size import by_size
from emit.library.lowered import ELEMENT_BYTES, Lowered, LoweredBySize, blocks_of
from emit.program import FIFO_DEPTH, Program
from emit.targets import (
    AUTO,
    LL_MOST_BYTES,
    check_overlap,
    choose_protocol,
    most_bytes,
    on_devices,
    target_for,
    without_packets,
)
from synth.model.common_chunk import CommonChunk, common_chunk
from synth.model.deadline import now
from synth.model.pairs import ordinary
from synth.model.problem import LARGEST, SMALLEST, Problem, question
from synth.search.budget import Budget
from synth.search.frontier import Contender, Range
from synth.search.pool import Pool
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
_LARGEST = 8  # times as large as the smallest of those messages that a program is made for alone, the largest are
_WIDEST = 64  # cells of a chunk: an instruction holds 71


class Programs:
    """What lowers the algorithms of one problem for one target.

    sms: threadblocks that a rank may have; None: all SMs of its device but RESERVED_SMS, where these are known.
    groups_overlap: no packets, as ranks are in several groups at a time. scratch_limit: as `on_devices` takes it. size:
    in bytes, where only messages of one are of interest. inplace: for calls whose input and output are one memory;
    None: as `lower_to_instructions` takes it. first_s: seconds that the last lowering took until it had a program, if
    not yet the best. Raises InputError where the target cannot express the question at all, or
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
        self.first_s = 0.0
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

    def least_bytes(self, problem: Problem) -> int:
        """Of a chunk of a problem under one protocol; see `synth.engines.request.Options`."""
        return least_bytes(problem.network, self.target.limits, FIFO_DEPTH[problem.topology.protocol])

    def protocol(self, largest_bytes: int | None) -> str:
        """For messages of up to so many bytes, None: of any size."""
        return choose_protocol(largest_bytes, self.target, program_collective(self.problem), self.nodes)

    def able(self, protocols: Sequence[str]) -> list[str]:
        """Those of these protocols that the target's programs can have."""
        if self.protocol(None) != "Simple":  # at any size
            return [name for name in protocols if name == self.protocol(None)]
        return [name for name in protocols if self.target.protocols.get(name) == name]

    def refusal(self, algorithm: Algorithm) -> str:
        """Why it is not even tried to lower an algorithm; empty where it is."""
        if algorithm.problem.quotient is not None:
            return "an executor's file of so many ranks would be too large"
        sends = len(algorithm.schedule)
        return f"an executor's file of {sends} sends would be too large" if sends > MOST_SENDS else ""

    def lower(
        self, algorithm: Algorithm, until: float = math.inf, sizes: Sequence[int] = ()
    ) -> LoweredBySize | Lowered:
        """The programs of an algorithm by size; that of its protocol, where costs are on.

        until: of `synth.model.deadline.now`, after which the best of what was made is taken, or the first. sizes: in
        bytes, for which that is to be fast, where costs are on; none: any.
        Raises InputError where the target can hold none.
        """
        begun = now()
        if why := self.refusal(algorithm):
            raise InputError(why)
        if not ordinary(algorithm.problem.network, algorithm.schedule.link):
            made = self._in_switch(algorithm)
            self.first_s = now() - begun
            return made
        own = algorithm.problem.topology.protocol
        if own:
            able = self.able(protocols_of(algorithm.problem.topology))
            if own not in able:
                names = " or ".join(able) or "none of its costs"
                raise InputError(f"protocol {own}: {self.target.name}'s files cannot have it; it must be {names}")
            first = own == able[0]
            made = self.lower_once(algorithm, own, SMALLEST if first else _LEAST_OF_OTHERS, LARGEST, until, sizes)
            self.first_s = self._first_s(begun)
            return made
        large = self.lower_once(algorithm, self.protocol(None), 2 * LL_MOST_BYTES, LARGEST, until)
        self.first_s = self._first_s(begun)
        try:
            small = self.lower_once(algorithm, self.protocol(LL_MOST_BYTES), SMALLEST, LL_MOST_BYTES, until)
        except InputError:
            small = large
        largest = self._largest(algorithm, large, until)
        self._lowering = None
        return LoweredBySize(small, large, largest)

    def _in_switch(self, algorithm: Algorithm) -> Lowered:
        """The file of an algorithm whose sends go through switches that sum or multicast; errors: see `lower`."""
        problem, form = algorithm.problem, FORMATS[self.target.format]
        common = best_cut(algorithm, self._cells(algorithm, SMALLEST, LARGEST))
        text, program = form.write_in_switch(algorithm, common, self.inplace, self.target.limits.sms)
        predictor = form.predictor(text, program, self.problem.topology, problem.ranks)
        return Lowered(self.target, program, None, predictor, common, largest=form.largest_message(text), text=text)

    def _largest(self, algorithm: Algorithm, large: Lowered, until: float) -> Lowered | None:
        """A program for the largest messages alone, where another takes more than the algorithm, and time is left."""
        if large.time_us(LARGEST) <= TUNING.as_fast * cut_time_us(algorithm, large.common, LARGEST) or now() >= until:
            return None
        try:
            made = self.lower_once(algorithm, large.program.protocol, LARGEST // _LARGEST, LARGEST, until)
        except InputError:
            return None
        return made if made.time_us(LARGEST) * TUNING.as_fast < large.time_us(LARGEST) else None

    def _first_s(self, begun: float) -> float:
        """Seconds since `begun` (of `now`) until the first program was there."""
        first = math.inf if self._lowering is None else self._lowering.first
        return max(0.0, min(now(), first) - begun)

    def lower_once(
        self,
        algorithm: Algorithm,
        protocol: str,
        low: int,
        high: int,
        until: float = math.inf,
        sizes: Sequence[int] = (),
    ) -> Lowered:
        """The program of one protocol for messages of `low` to `high` bytes; until, sizes, InputError: as `lower`.

        In cells that divide what is sent; where that is refused, in a cell a chunk.
        """
        plain = common_chunk(algorithm.problem.collective)
        common = best_cut(algorithm, self._cells(algorithm, low, high))
        try:
            return self._made(algorithm, protocol, low, high, common, until, sizes)
        except InputError:
            if common.cells.nchunks == plain.cells.nchunks:
                raise
            return self._made(algorithm, protocol, low, high, plain, until, sizes)

    def _cells(self, algorithm: Algorithm, low: int, high: int) -> list[int]:
        """Numbers of cells of a block, none less than its chunks: all that divide the one size that is of interest.

        Else powers of two that divide messages of `low` bytes and all larger ones.
        """
        unit, blocks = self.target.cell_bytes, blocks_of(algorithm.problem)
        chunks = algorithm.problem.collective.chunks
        # with more, the program would move more than is checked: each cell of a send leaves and arrives
        checked = CAPACITY.moves // (2 * max(1, len(algorithm.schedule))) - 1
        stated = most_chunks(program_collective(self.problem), self.problem.nranks) // blocks
        widest = max(chunks, min(min(_WIDEST, checked) * chunks, stated))
        size = low if low == high else self.size
        if size is None:
            least = 1 << (chunks - 1).bit_length()
            most = min(low // (blocks * (unit or ELEMENT_BYTES[0])), widest)
            doubled = [least << doublings for doublings in range(max(1, (most // least).bit_length()))]
            return [cells for cells in doubled if cells <= stated]
        for of_type in (unit,) if unit else ELEMENT_BYTES:
            elements, rest = divmod(size, blocks * of_type)
            if rest == 0:
                return [n for n in range(chunks, min(elements, widest) + 1) if elements % n == 0]
        return []

    def _made(
        self,
        algorithm: Algorithm,
        protocol: str,
        low: int,
        high: int,
        common: CommonChunk,
        until: float,
        sizes: Sequence[int],
    ) -> Lowered:
        lowering = self._lowering
        if lowering is None or not lowering.is_of(algorithm, common):
            name = algorithm.problem.collective.name
            lowering = Lowering(algorithm, name, limits=self.target.limits, inplace=self.inplace, common=common)
        self._lowering = lowering
        program, goal = lowering.program(protocol, min_bytes=low, max_bytes=high, until=until), lowering.goal
        parts = 1
        if algorithm.problem.topology.protocol:
            parts, program = filled(
                lowering, program, self.target.limits, low, high, sizes if self.size is None else (self.size,), until
            )
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
        return by_size(ranges)


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
    pool = Pool(programs, Budget.until(until), contenders=[Contender(a) for a in dict.fromkeys(algorithms)])
    pinned = [served.low for served in found.ranges if served.low == served.high]
    ranges = pool.files(pinned[0] if pinned else None)
    return replace(found, ranges=ranges, refused=[*found.refused, *pool.refused])
