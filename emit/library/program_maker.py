"""One program of an algorithm for messages of some sizes: its cells, its instances, and what its file says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate

import numpy as np

from emit.compiler.cuts import best_cuts
from emit.compiler.fill import ONCE, ProgramRequest, Repetition, rank_instances, repeated
from emit.compiler.lower import Lowering
from emit.formats import PROGRAM_FORMATS, draft_program, write_program
from emit.goal import Goal
from emit.images import whole_program
from emit.library.cells import CellNumbers, images_under
from emit.library.lowered import Lowered, exact_scale
from emit.library.units import cut_in_proportion, merged_routes
from emit.program import Program
from emit.targets import Target, most_bytes
from emit.timing.predict import Predictor
from emit.timing.timed import TimedProgram
from synth.model.common_chunk import CommonChunk, common_chunk
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

PROGRAM_SEND_S, PLAN_SEND_S = 4e-5, 4e-4  # Seconds to lower a send in haste.
_SEND_STEPS = 2  # A send is a step at both of its ends.
_LEAST_STEPS = 5_000  # Steps of all instances of a program that are tried even in haste: a plan takes a second.
_NEAR_SCHEDULE = 1.02  # Time of a program over that of its schedule from which on no other program is tried.
_ANY_UNIT = 1 << 20  # Bytes of a program's units until they are chosen.
_MOST_CUTS = 4  # Divisions into cells that are tried while a program is much slower than its schedule.
_MOST_PLANS = 6  # Plans of an algorithm, with different instances, that are drafted to take the fastest.


class ProgramMaker:
    """A maker of programs of one problem's algorithms for one target and form of calls.

    Attributes:
        problem: The problem.
        target: Executor, limited to the devices.
        size: The only message size of interest in bytes; None for all sizes.
        inplace: True for calls whose input and output are one memory.
        patience_s: Seconds that the lowering of an algorithm may take where no clock ends it.
        nodes: Node of each rank.
        form: Format of the target's files.
        cells: Cells of programs for the target.
        send_s: Seconds that the lowering of one send in haste takes, as far as is known; files are written and
            checked later.
        of_other_form: Programs of some algorithms for the other form of calls. Those made here have as many instances.
        lowering: The last lowering, which the next program may share; None if there is none.
        instances: Instances of the last program.
        improving_s: Seconds that the last lowering took after its first program for better ones.
    """

    def __init__(self, problem: Problem, target: Target, size: int | None, inplace: bool, patience_s: float) -> None:
        self.problem, self.target, self.size, self.inplace = problem, target, size, inplace
        self.patience_s = patience_s
        self.nodes: list[int] = problem.topology.nodes[list(problem.ranks)].tolist()
        self.form = PROGRAM_FORMATS[target.format]
        self.cells = CellNumbers(target, size)
        self.send_s = PROGRAM_SEND_S if self.form.holds_program else PLAN_SEND_S
        self.of_other_form: dict[Algorithm, Lowered] = {}
        self.lowering: Lowering | None = None
        self.instances, self.improving_s = 1, 0.0
        self._merged: dict[Algorithm, Algorithm | None] = {}
        self._in_units: dict[tuple[object, ...], Lowered] = {}

    @cached_property
    def linked(self) -> list[tuple[int, int]]:
        """Return (source, target) of every two ranks that a link joins, sorted, each once.

        Ranks are numbered as in the problem's network, from 0. The list is made once.
        """
        net = self.problem.network
        pairs = np.unique(net.src * net.nranks + net.dst)
        return list(zip((pairs // net.nranks).tolist(), (pairs % net.nranks).tolist(), strict=True))

    def text(self, program: Program, goal: Goal | None) -> str:
        """Return the text of a program's file for this target, checked.

        `goal` is what the program must achieve; None for the goal of its collective.

        Raises:
            InputError: If a check has a finding, or the target cannot hold the program.
        """
        return write_program(program, goal, self.target, nodes=self.nodes, linked=self.linked)

    def lower_once(self, algorithm: Algorithm, request: ProgramRequest) -> Lowered:
        """Lower an algorithm to a program of one protocol.

        If the plan's chunks may be unlike in the file, each chunk is one cell. Else its cells divide what is sent; if
        that is refused, each chunk is one cell. The cells are chosen for the largest of the request's sizes, or for its
        largest message if there are none.

        Args:
            algorithm: Algorithm to lower.
            request: Messages that the program is for.

        Raises:
            InputError: If the target can hold no program of the algorithm.
        """
        in_units, compared = self._lower_in_units(algorithm, request), request.compared
        if in_units is not None and (
            now() >= request.until or _mean_over_schedule(algorithm, compared, in_units) <= _NEAR_SCHEDULE
        ):
            return in_units
        try:
            at_once = self._lower_at_once(algorithm, request)
        except InputError:
            if in_units is None:
                raise
            return in_units
        return at_once if in_units is None or _is_faster(at_once, in_units, compared) else in_units

    def _lower_at_once(self, algorithm: Algorithm, request: ProgramRequest) -> Lowered:
        """Lower an algorithm to a program whose steps move all their data at once, as `lower_once` does."""
        plain = common_chunk(algorithm.problem.collective)
        cells = self.cells.possible(algorithm, request.low, request.high)
        if self.cells.may_be_unlike(algorithm, cells):
            with suppress(InputError):
                return self._lowered_by(self._lowering_of(algorithm, plain), request)
        images = images_under(algorithm, in_equal_groups=False)
        common, *others = best_cuts(algorithm, cells, max(request.sizes, default=request.high), images)[:_MOST_CUTS]
        try:
            lowered = self._lower_in_cells(algorithm, common, request)
        except InputError:
            if common.cells.nchunks == plain.cells.nchunks:
                raise
            return self._lower_in_cells(algorithm, plain, request)
        compared, improving_s = request.compared, self.improving_s
        # Chunks of unlike sizes take ports from each other in an order that changes with every cut.
        for other in others:
            if now() >= request.until or _mean_over_schedule(algorithm, compared, lowered) <= _NEAR_SCHEDULE:
                break
            begun = now()
            with suppress(InputError):
                candidate = self._lower_in_cells(algorithm, other, request)
                lowered = candidate if _is_faster(candidate, lowered, compared) else lowered
            improving_s += now() - begun
        self.instances, self.improving_s = lowered.repetition.instances, improving_s
        return lowered

    def _lower_in_units(self, algorithm: Algorithm, request: ProgramRequest) -> Lowered | None:
        """Lower an algorithm to a program whose steps move their data unit by unit.

        Return None where that is not possible, or where few chunks go the same way (`merged`). Algorithms whose chunks
        go the same ways have the same program.
        """
        merged = self.merged(algorithm)
        if merged is None:
            return None
        ways = merged.schedule.link.tobytes(), merged.schedule.chunk.tobytes()
        key = *ways, self.inplace, request._replace(until=0.0)
        if key in self._in_units:
            return self._in_units[key]
        is_hasty, known = now() >= request.until, self.of_other_form.get(algorithm)
        if known is not None and known.repetition.unit:
            self.of_other_form[merged] = known
        with suppress(InputError):
            common = cut_in_proportion(merged, self.cells.possible(merged, request.low, request.high))
            lowering = self._new_lowering(merged, common, by_images=False)
            lowered = self._lowered_by(lowering, request._replace(in_units=True))
            if not is_hasty:
                self._in_units[key] = lowered
            return lowered
        return None

    def merged(self, algorithm: Algorithm) -> Algorithm | None:
        """Return an algorithm whose chunks that go the same way are one, for programs that move it unit by unit.

        Return None if the files do not say such programs, if costs are off or packets are used, if links have gaps, or
        if few chunks go the same way. Results are kept.
        """
        problem = algorithm.problem
        if self.form.holds_program or problem.topology.protocol != "Simple" or problem.network.gap_us.any():
            return None
        if algorithm not in self._merged:
            self._merged[algorithm] = merged_routes(algorithm)
        return self._merged[algorithm]

    def _lower_in_cells(self, algorithm: Algorithm, common: CommonChunk, request: ProgramRequest) -> Lowered:
        """Lower an algorithm to a program in given cells.

        If the program of a few ranks whose images are the others is refused, all ranks are lowered.

        Raises:
            InputError: If the target can hold no program of the algorithm in these cells.
        """
        try:
            return self._lowered_by(self._lowering_of(algorithm, common), request)
        except InputError:
            is_quotient = algorithm.problem.quotient is not None
            if is_quotient or self.lowering is None or not self.lowering.translations:
                raise
        self.lowering = self._new_lowering(algorithm, common, by_images=False)
        return self._lowered_by(self.lowering, request)

    def _lowering_of(self, algorithm: Algorithm, common: CommonChunk) -> Lowering:
        """Return the lowering of an algorithm in given cells: the last one if it is of these, else a new one.

        A new one is kept as the last.
        """
        if self.lowering is None or not self.lowering.is_of(algorithm, common):
            self.lowering = None
            self.lowering = self._new_lowering(algorithm, common, by_images=True)
        return self.lowering

    def _new_lowering(
        self, algorithm: Algorithm, common: CommonChunk, by_images: bool, most_scratch: int | None = None
    ) -> Lowering:
        """Return a new lowering in given cells; with `by_images` it may be of a few ranks whose images are the others.

        Its programs are limited to `most_scratch` scratch chunks where possible, unless that is None.

        Raises:
            InputError: If the target can hold no program of the algorithm in these cells.
        """
        name, limits = algorithm.problem.collective.name, self.target.limits
        return Lowering(
            algorithm, name, limits, inplace=self.inplace, common=common, by_images=by_images, most_scratch=most_scratch
        )

    def _most_scratch(self, lowering: Lowering, program: Program) -> int | None:
        """Return the scratch chunks of a rank that the target allows if a lowering's program has more, else None.

        It is None too if more than one size is of interest.
        """
        limit = self.target.limits.scratch_bytes
        if self.size is None or not limit:
            return None
        most = int(limit / (float(lowering.common.cells.fraction[0]) * self.size))
        return most if max(gpu.s_chunks for gpu in program.gpus) > most else None

    def _lowered_by(self, lowering: Lowering, request: ProgramRequest) -> Lowered:
        """Return the program that a lowering makes, the fastest of up to six numbers of instances.

        Their times at some of the request's sizes count, or at the largest message if there are none. The only size of
        interest, if there is one, takes their place. If files hold the program itself, the first number that
        `rank_instances` gives is taken. It sets `instances` and `improving_s`, and a new `lowering` if the program
        would need too much scratch.

        Raises:
            InputError: If the lowering fails, or the format refuses all candidates; then it is the first refusal.
        """
        begun = now()
        program = lowering.program(request.protocol, min_bytes=request.low, max_bytes=request.high, until=request.until)
        if (most_scratch := self._most_scratch(lowering, program)) is not None:
            lowering = self.lowering = self._new_lowering(lowering.algorithm, lowering.common, False, most_scratch)
            program = lowering.program(
                request.protocol, min_bytes=request.low, max_bytes=request.high, until=request.until
            )
        request = request if self.size is None else request._replace(sizes=(self.size,))
        candidates = self._candidates(lowering, program, request, self._most_steps(begun, request.until))
        best, fault = None, None
        # The times of plans differ from those of their programs, so several are drafted.
        for repetition, candidate in candidates[: 1 if self.form.holds_program else _MOST_PLANS]:
            if best is not None and now() >= request.until:
                break
            try:
                lowered = self._as_lowered(lowering, candidate, repetition, request)
            except InputError as error:  # The format may still refuse the program.
                fault = fault or error
                continue
            if best is None or _is_faster(lowered, best, request.compared):
                best, self.instances = lowered, repetition.instances
        self.improving_s = now() - max(begun, lowering.first)
        if best is None:
            raise fault or InputError(f"{lowering.algorithm.engine}: no program")
        return best

    def _candidates(
        self, lowering: Lowering, program: Program, request: ProgramRequest, most_steps: float
    ) -> list[tuple[Repetition, Program]]:
        """Return (repetition, repeated program) for those repetitions of a program that may be the fastest, best first.

        Without costs it is the program itself, once. If `of_other_form` has the algorithm, the repetition of its
        program is the only one, unless the limits do not allow it. The arguments are those of `rank_instances`.
        """
        limits = self.target.limits
        if not lowering.algorithm.problem.topology.protocol:
            return [(ONCE, program)]
        if known := self.of_other_form.get(lowering.algorithm):
            with suppress(InputError):
                return [(known.repetition, repeated(lowering, program, known.repetition, limits, request))]
        return rank_instances(lowering, program, limits, request, most_steps)

    def _as_lowered(
        self, lowering: Lowering, program: Program, repetition: Repetition, request: ProgramRequest
    ) -> Lowered:
        """Return a repeated program with its predictor, and with what its file says if that is not the program itself.

        If files hold the program itself, the images of its ranks are written out, unless the problem is a quotient. If
        its steps move their data unit by unit, the units are chosen for the sizes of the request.

        Raises:
            InputError: If the format refuses the program, or its file does not take the only size of interest.
        """
        algorithm, common, goal = lowering.algorithm, lowering.common, lowering.goal
        instances = repetition.instances
        if not self.form.holds_program:
            unit_bytes = _ANY_UNIT if request.in_units else 0
            program = replace(program, widths=self.cells.widths(program), unit_bytes=unit_bytes)
        if goal is not None:
            goal, common = goal.refined(instances), common.finer(instances)
        ranks, for_all_sizes = self.problem.ranks, replace(program, min_bytes=0, max_bytes=0)
        draft = draft_program(for_all_sizes, goal, self.target, self.nodes, self.linked)
        if draft is None:
            if algorithm.problem.quotient is None:  # The file is checked with all ranks.
                program = whole_program(program)
            largest = most_bytes(program, self.target.limits)
            predictor: TimedProgram = Predictor(program, self.problem.topology, ranks)
        else:
            predictor = draft.predictor(self.problem.topology, ranks)
            if program.unit_bytes:
                score = partial(_mean_over_schedule, algorithm, request.compared)
                draft, predictor, unit = draft.in_best_units(predictor, request.compared[-1], score, repetition.unit)
                repetition, program = repetition._replace(unit=unit.chunks), replace(program, unit_bytes=unit.bytes)
            largest = draft.largest_message
        chunk_bytes = predictor.chunk_bytes(1.0) * program.file_chunks / program.nchunks_per_loop
        scale = exact_scale(float(lowering.common.cells.fraction[0]) / instances / chunk_bytes)
        lowered = Lowered(
            self.target, program, goal, predictor, common, scale, largest, draft=draft, repetition=repetition
        )
        if self.size is not None and not lowered.takes(self.size):
            raise InputError(lowered.why_no_larger)
        return lowered

    def _most_steps(self, begun: float, until: float) -> float:
        """Return the most steps of a program that takes no longer to be lowered and written than to be improved.

        It is infinite if the file holds the program itself.

        Args:
            begun: When the lowering began, a reading of `now`.
            until: When its improvement ends, a reading of `now`; infinity if no clock ends it.
        """
        if self.form.holds_program:
            return math.inf
        if until == math.inf:  # No clock counts, so neither does what a send has taken so far.
            return self.patience_s / (PLAN_SEND_S / _SEND_STEPS) / _MOST_PLANS  # The patience is for all plans.
        return max(_LEAST_STEPS, (until - begun) / (self.send_s / _SEND_STEPS))


def _mean_over_schedule(algorithm: Algorithm, sizes: Sequence[int], timed: Lowered | TimedProgram) -> float:
    """Return the mean of a program's times over those of an algorithm's schedule, at message sizes in bytes."""
    return sum(timed.time_us(size) / algorithm.time_us(size) for size in sizes) / len(sizes)


def _is_faster(lowered: Lowered, other: Lowered, sizes: Sequence[int]) -> bool:
    """Return whether the mean of a program's times over another one's, at message sizes in bytes, is below 1."""
    ratios = accumulate(lowered.time_us(size) / other.time_us(size) for size in sizes)
    return all(total < len(sizes) for total in ratios)  # No further size is timed once the total is too large.
