"""Lowering of a problem's algorithms to the programs of a target, with their times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate

import numpy as np

from emit.compiler.cuts import best_cut, cut_time_us, wide_cut
from emit.compiler.fill import ONCE, Repetition, least_bytes, rank_instances, repeated, some_of
from emit.compiler.lower import (
    Lowering,
    forms,
    program_collective,
)
from emit.compiler.tuning import TUNING
from emit.formats import FORMATS, draft_program, write_draft, write_program
from emit.goal import Goal
from emit.images import whole_program
from emit.library.by_size import by_size
from emit.library.cells import Cells, images_under
from emit.library.lowered import Lowered, LoweredBySize, exact_scale
from emit.library.units import cut_in_proportion, merged_routes
from emit.program import FIFO_DEPTH, Program
from emit.targets import (
    LL_MOST_BYTES,
    check_overlap,
    choose_protocol,
    most_bytes,
    on_devices,
    target_for,
    usual_target,
)
from emit.timing.predict import Predictor
from emit.timing.timed import TimedProgram
from synth.model.common_chunk import CommonChunk, common_chunk
from synth.model.deadline import now
from synth.model.pairs import ordinary
from synth.model.problem import LARGEST, SMALLEST, Problem, question
from synth.search.offer import Execution, Offer
from synth.search.settings import ANY_TARGET, AUTO, NONE, TargetSettings
from synth.verify.algorithm import Algorithm
from topologies.costed import protocols_of
from topologies.errors import InputError

MOST_SENDS = 200_000  # of a schedule that may be lowered; executors take far fewer
_MOST_WHOLE_SENDS = 4_000_000  # of all ranks, where a few are lowered and the file has the images of their programs
# Bytes of a message that a program's cells divide, unless its protocol is that for the smallest messages.
_LEAST_OF_OTHERS = 1 << 16
_LARGEST = 8  # ratio of the largest to the smallest message of the program for the largest messages
_PROGRAM_SEND_S, _PLAN_SEND_S = 4e-5, 4e-4  # Seconds to lower a send in haste.
_PROGRAM_WRITING, _PLAN_WRITING = 2.0, 2.0  # The time with the file over the time without it.
_MEMBERS_OF_SEND = 32  # Members of operations of switches that are timed and checked in the time to lower one send.
_UNIT_SENDS = 64  # Sends that are lowered in the time to lower one that moves its data unit by unit.
_LEAST_STEPS = 512  # Steps of all instances of a program that are tried even in haste.
_SEND_STEPS = 2  # A send is a step at both of its ends.
# Sends of an image that are written in the time to lower one: as operations of a plan, and as steps of a program.
_WRITTEN_SENDS, _WRITTEN_STEPS = 100, 2
_NEAR_SCHEDULE = 1.02  # Times of programs and of schedules within this factor count as equal.
_AS_FAST_AS_OTHER = 1.05  # Times of the two forms of calls within this factor count as equal.
_MOST_PLANS = 6  # Plans of an algorithm, with different instances, that are drafted to take the fastest.
_IN_SWITCH_CELLS = 16  # of a chunk that threadblocks share
_MOST_SHARED_CELLS = 512  # of all such chunks: a plan of many is checked for long


class Programs:
    """A lowering of one problem's algorithms for one target.

    Attributes:
        problem: The problem.
        target: Executor, limited to the devices.
        size: The only message size of interest in bytes; None for all sizes.
        inplace: True for calls whose input and output are one memory.
        in_place_of: The target that is usual on the devices but cannot express the problem; else None.
        first_s: Seconds that the last lowering took until it had a program, if not yet the best.
        send_s: Seconds that the lowering of one send in haste takes, as far as is known; files are written and
            checked later.
        writing: Time to lower a program in haste and to write its file, over the time to lower it in haste.
        patience_s: As the settings state it; finite in library builds only.
        nodes: Node of each rank.
        of_other_form: Programs of some algorithms for the other form of calls. Those made here have as many instances.
    """

    def __init__(
        self,
        problem: Problem,
        settings: TargetSettings = ANY_TARGET,
        *,
        size: int | None = None,
        inplace: bool | None = None,
    ) -> None:
        """Choose the target and its limits.

        Args:
            problem: The problem.
            settings: The target and its limits.
            size: The only message size of interest in bytes; None for all sizes.
            inplace: True for calls whose input and output are one memory; None for the usual form.

        Raises:
            InputError: If the target cannot express the problem, or the settings give more SMs than a device has.
        """
        self.problem, self.size = problem, size
        self.inplace = forms(problem)[0] if inplace is None else inplace
        self._lowering: Lowering | None = None  # the last lowering, which the next program may share
        self._sends: dict[Algorithm, int] = {}
        self._merged_algorithms: dict[Algorithm, Algorithm | None] = {}
        self._by_route: dict[tuple[object, ...], Lowered] = {}  # Programs that move data unit by unit.
        self.first_s = 0.0
        self._instances = 1  # Of the last program.
        self.of_other_form: dict[Algorithm, Lowered] = {}
        # Least time in µs by protocol that a program took beyond its schedule at the smallest size: what starts a call.
        self._start_us: dict[str, float] = {}
        self._improving_s = 0.0  # Seconds that the last lowering took after its first program for better ones.
        self.target = on_devices(target_for(problem, settings.name), problem.topology.sms, settings)
        usual = usual_target(problem.topology) if settings.name == AUTO else None
        self.in_place_of = None if usual is None or usual.name == self.target.name else usual
        self._holds_program = FORMATS[self.target.format].holds_program
        self._cells = Cells(self.target, size)
        self.send_s = _PROGRAM_SEND_S if self._holds_program else _PLAN_SEND_S
        self.writing = _PROGRAM_WRITING if self._holds_program else _PLAN_WRITING
        self.patience_s = settings.patience_s
        self.nodes = problem.topology.nodes[list(problem.ranks)].tolist()

    @cached_property
    def linked(self) -> list[tuple[int, int]]:
        """Return (source, target) of every two ranks that a link joins, sorted, each once.

        Ranks are numbered as in the problem's network, from 0. The list is made once.
        """
        net = self.problem.network
        pairs = np.unique(net.src * net.nranks + net.dst)
        return list(zip((pairs // net.nranks).tolist(), (pairs % net.nranks).tolist(), strict=True))

    @property
    def is_usual(self) -> bool:
        """Return True if the programs are for calls of the form, in or out of place, that tables show.

        It is the first of `emit.compiler.lower.forms`.
        """
        return self.inplace == forms(self.problem)[0]

    @property
    def question(self) -> tuple[object, ...]:
        """Return the question that the programs answer, as `IndexEntry.question` does.

        It is (collective, topology, group, relays, root, sizes, target): names, tuples of the topology's ranks, its
        rank or None, and a tuple of the proportions of blocks.
        """
        fields = question(self.problem)
        ranks = (tuple(fields[key]) for key in ("group", "relays"))
        sizes = self.problem.collective.sizes
        return fields["collective"], fields["topology"], *ranks, fields["root"], sizes, self.target.name

    @property
    def rank_sends(self) -> int:
        """Return how many sends a rank may take part in, on average.

        It is the target's limit, or up to twice as many for small schedules, as their sends are fused.
        """
        equal_share = self.target.limits.rank_sends(self.problem.nranks)
        return max(equal_share, min(2 * equal_share, TUNING.unfused_from // (2 * self.problem.nranks)))

    def sends(self, algorithm: Algorithm) -> int:
        """Return the number of sends whose lowering and writing takes as long as that of an algorithm.

        It is remembered. It is below the number of the schedule's sends where most ranks are images of others.
        """
        if algorithm not in self._sends:
            # Deadlines depend on this number, and they are looked at while it is computed.
            self._sends[algorithm] = len(algorithm.schedule)
            self._sends[algorithm] = self._sends_of(algorithm)
        return self._sends[algorithm]

    def _sends_of(self, algorithm: Algorithm) -> int:
        """Return the number of sends whose lowering and writing takes as long as that of an algorithm.

        It is that of all sends of the schedule if the file is checked with all ranks. Else it is that of the
        representatives of the algorithm's translations, and a share of all sends for writing the images, which is small
        where the check needs only the representatives. Of sends that a switch sums or multicasts, every few members
        count as one.
        """
        sends, net, link = len(algorithm.schedule), algorithm.problem.network, algorithm.schedule.link
        if not ordinary(net, link):
            operations = max(algorithm.problem.collective.nchunks, _IN_SWITCH_CELLS * net.nranks)
            return max(sends, operations * net.nranks // _MEMBERS_OF_SEND)
        if algorithm.problem.quotient is not None:
            return sends
        if (merged := self._merged(algorithm)) is not None:
            return min(sends, _UNIT_SENDS * len(merged.schedule))
        order = self._cells.images(algorithm)
        written = _WRITTEN_STEPS if FORMATS[self.target.format].holds_program else _WRITTEN_SENDS
        return sends if order == 1 else sends // order + sends // written

    def least_bytes(self, problem: Problem) -> int:
        """Return the smallest chunk in bytes with which the protocol's FIFO slots keep all connections of a rank busy.

        The network and the protocol are those of `problem`, the limits those of the target. It is 0 for plans, which
        have no FIFO.
        """
        if not self._holds_program:
            return 0
        return least_bytes(problem.network, self.target.limits, FIFO_DEPTH[problem.topology.protocol])

    def protocol(self, largest_bytes: int | None) -> str:
        """Return the protocol, such as "LL", for messages of up to `largest_bytes`; None stands for any size."""
        return choose_protocol(largest_bytes, self.target, program_collective(self.problem), self.nodes)

    def able(self, protocols: Sequence[str]) -> list[str]:
        """Return those of `protocols` that the target's programs can have, in the same order; maybe none.

        If the target cannot use Simple, as for some collectives between nodes, it is left out.
        """
        has_simple = self.protocol(None) == "Simple"
        return [name for name in self.target.own_protocols(protocols) if has_simple or name != "Simple"]

    def refusal(self, algorithm: Algorithm) -> str:
        """Return why lowering an algorithm is not even tried; empty if it is.

        Reasons are too many sends, or sends through switches that the target's files cannot express.
        """
        if not ordinary(algorithm.problem.network, algorithm.schedule.link):
            return FORMATS[self.target.format].refusal_in_switch(algorithm)
        quotient = algorithm.problem.quotient
        sends = len(algorithm.schedule) * (1 if quotient is None else quotient.order)
        most = MOST_SENDS if quotient is None else _MOST_WHOLE_SENDS
        return f"an executor's file of {sends} sends would be too large" if sends > most else ""

    def lower(
        self, algorithm: Algorithm, until: float = math.inf, sizes: Sequence[int] = ()
    ) -> LoweredBySize | Lowered:
        """Lower an algorithm to programs by size, or to one program for all sizes.

        It is one program if costs are on, which state the protocol, if one size is of interest, or if switches
        multicast or reduce. `first_s` is set.

        Args:
            algorithm: Algorithm to lower.
            until: Time of `synth.model.deadline.now` after which the best program so far is taken, or the first.
            sizes: Message sizes in bytes for which one program is to be fast if costs are on; empty for any.

        Raises:
            InputError: If the target can hold no program of the algorithm.
        """
        start_s = now()
        if reason := self.refusal(algorithm):
            raise InputError(reason)
        if not ordinary(algorithm.problem.network, algorithm.schedule.link):
            lowered = self._in_switch(algorithm)
            self.first_s = now() - start_s
            return lowered
        protocol = algorithm.problem.topology.protocol
        if protocol or self.size is not None:
            lowered = self._of_one_protocol(algorithm, protocol, until, sizes)
            start_us = lowered.time_us(SMALLEST) - algorithm.time_us(SMALLEST)
            self._start_us[protocol] = max(0.0, min(start_us, self._start_us.get(protocol, start_us)))
            lowering_s = now() - start_s
            self.first_s = lowering_s - self._improving_s if self._holds_program else lowering_s / self._instances
            return lowered
        large = self.lower_once(algorithm, self.protocol(None), 2 * LL_MOST_BYTES, LARGEST, until)
        self.first_s = self._first_s(start_s)
        try:
            small = self.lower_once(algorithm, self.protocol(LL_MOST_BYTES), SMALLEST, LL_MOST_BYTES, until)
        except InputError:
            small = large
        largest = self._largest(algorithm, large, until)
        self._lowering = None
        return LoweredBySize(small, large, largest)

    def _of_one_protocol(self, algorithm: Algorithm, protocol: str, until: float, sizes: Sequence[int]) -> Lowered:
        """Lower an algorithm to one program.

        If costs are off and the target can hold no program of the protocol that the size chooses, it has the protocol
        for any size.

        Args:
            algorithm: Algorithm to lower.
            protocol: Protocol of the costs; "" if costs are off, so that the size chooses it.
            until: As in `lower`.
            sizes: As in `lower`.

        Raises:
            InputError: If the target's files cannot have the protocol, or it can hold no program of the algorithm.
        """
        low, high, usual = SMALLEST, LARGEST, self.protocol(None)
        if protocol:
            protocols = self.able(protocols_of(algorithm.problem.topology))
            if protocol not in protocols:
                names = " or ".join(protocols) or "none of its costs"
                raise InputError(
                    f"protocol {protocol}: {self.target.name}'s files cannot have it; it must be {names}; a search for"
                    f" the target ({self.target.name}) takes no other"
                )
            low = SMALLEST if protocol == protocols[0] else _LEAST_OF_OTHERS
        if self.size is not None:
            low = high = self.size
        try:
            return self.lower_once(algorithm, protocol or self.protocol(self.size), low, high, until, sizes)
        except InputError:
            if protocol or self.protocol(self.size) == usual:
                raise
            return self.lower_once(algorithm, usual, low, high, until, sizes)

    def _in_switch(self, algorithm: Algorithm) -> Lowered:
        """Lower an algorithm whose sends go through summing or multicasting switches.

        If there are few chunks, a program whose threadblocks share each chunk is made too. The faster of the two at the
        only size of interest, or at the largest, is returned.

        Raises:
            InputError: If the target's files cannot express it.
        """
        cells = self._cells.possible(algorithm, SMALLEST, LARGEST)
        cuts = [best_cut(algorithm, cells, only_even=True)]  # Uneven cells have no images on other ranks.
        is_little = len(cuts[0].count) * _IN_SWITCH_CELLS <= _MOST_SHARED_CELLS
        if cells and is_little and cuts[0].count.max() < _IN_SWITCH_CELLS:
            cuts.append(wide_cut(algorithm, cells, _IN_SWITCH_CELLS))
        lowered = [self._in_switch_in_cells(algorithm, common) for common in cuts]
        return min(lowered, key=lambda candidate: candidate.time_us(self.size or LARGEST))

    def _in_switch_in_cells(self, algorithm: Algorithm, common: CommonChunk) -> Lowered:
        """Lower an algorithm whose sends go through switches, in given cells; errors as those of `_in_switch`."""
        form = FORMATS[self.target.format]
        draft, program = form.draft_in_switch(algorithm, common, self.inplace, self.target.limits.sms)
        predictor = draft.predictor(self.problem.topology, self.problem.ranks)
        return Lowered(self.target, program, None, predictor, common, largest=draft.largest_message, draft=draft)

    def _largest(self, algorithm: Algorithm, large: Lowered, until: float) -> Lowered | None:
        """Return a program for the largest messages only; None if it is not needed, not faster there, or not possible.

        It is not needed if `large` is about as fast as the schedule there, or the time `until` is over.
        """
        if large.time_us(LARGEST) <= TUNING.as_fast * cut_time_us(algorithm, large.common, LARGEST) or now() >= until:
            return None
        try:
            candidate = self.lower_once(algorithm, large.program.protocol, LARGEST // _LARGEST, LARGEST, until)
        except InputError:
            return None
        return candidate if candidate.time_us(LARGEST) * TUNING.as_fast < large.time_us(LARGEST) else None

    def _first_s(self, start_s: float) -> float:
        """Return the seconds from `start_s` until the first program of the last lowering was ready.

        `start_s` is a reading of `now`. Without a lowering it is the seconds until now; they are never below 0.
        """
        first_at = math.inf if self._lowering is None else self._lowering.first
        return max(0.0, min(now(), first_at) - start_s)

    def lower_once(
        self,
        algorithm: Algorithm,
        protocol: str,
        low: int,
        high: int,
        until: float = math.inf,
        sizes: Sequence[int] = (),
    ) -> Lowered:
        """Lower an algorithm to a program of one protocol for messages of `low` to `high` bytes.

        If the plan's chunks may be unlike in the file, each chunk is one cell. Else its cells divide what is sent; if
        that is refused, each chunk is one cell.

        Args:
            algorithm: Algorithm to lower.
            protocol: "Simple", "LL" or "LL128".
            low: Smallest message in bytes.
            high: Largest message in bytes.
            until: As in `lower`.
            sizes: As in `lower`; the cells are chosen for the largest, or for `high` if there are none.

        Raises:
            InputError: If the target can hold no program of the algorithm.
        """
        in_units = self._lower_in_units(algorithm, protocol, low, high, until, sizes)
        if in_units is not None and self._is_near(in_units, algorithm, sizes or (high,)):
            return in_units
        try:
            at_once = self._lower_at_once(algorithm, protocol, low, high, until, sizes)
        except InputError:
            if in_units is None:
                raise
            return in_units
        return at_once if in_units is None or _is_faster(at_once, in_units, some_of(sizes or (high,))) else in_units

    def _lower_at_once(
        self, algorithm: Algorithm, protocol: str, low: int, high: int, until: float, sizes: Sequence[int]
    ) -> Lowered:
        """Lower an algorithm to a program whose steps move all their data at once; as `lower_once`."""
        plain = common_chunk(algorithm.problem.collective)
        cells = self._cells.possible(algorithm, low, high)
        if self._cells.may_be_unlike(algorithm, cells):
            with suppress(InputError):
                lowering = self._lowering_of(algorithm, plain)
                return self._lowered_by(lowering, protocol, low, high, until, sizes)
        images = images_under(algorithm, in_equal_groups=False)
        common = best_cut(algorithm, cells, max(sizes, default=high), images)
        try:
            return self._lower_in_cells(algorithm, protocol, low, high, common, until, sizes)
        except InputError:
            if common.cells.nchunks == plain.cells.nchunks:
                raise
            return self._lower_in_cells(algorithm, protocol, low, high, plain, until, sizes)

    def _lower_in_units(
        self, algorithm: Algorithm, protocol: str, low: int, high: int, until: float, sizes: Sequence[int]
    ) -> Lowered | None:
        """Lower an algorithm to a program whose steps move their data unit by unit; as `lower_once`.

        Return None where that is not possible, or chunks that go the same way are few.
        """
        merged = self._merged(algorithm)
        if merged is None:
            return None
        key = merged.schedule.link.tobytes(), merged.schedule.chunk.tobytes(), self.inplace, low, high, tuple(sizes)
        if key not in self._by_route:
            is_hasty = now() >= until
            with suppress(InputError):
                common = cut_in_proportion(merged, self._cells.possible(algorithm, low, high))
                name = merged.problem.collective.name
                lowering = Lowering(merged, name, self.target.limits, inplace=self.inplace, common=common)
                lowered = self._lowered_by(lowering, protocol, low, high, until, sizes)
                if is_hasty:
                    return lowered
                self._by_route[key] = lowered
        return self._by_route.get(key)

    def _merged(self, algorithm: Algorithm) -> Algorithm | None:
        """Return an algorithm whose chunks that go the same way are one, for programs that move it unit by unit.

        Return None if the files do not say such programs, if costs are off or packets are used, if links have gaps, or
        if few chunks go the same way. Results are kept.
        """
        problem = algorithm.problem
        if self._holds_program or problem.topology.protocol != "Simple" or problem.network.gap_us.any():
            return None
        if algorithm not in self._merged_algorithms:
            self._merged_algorithms[algorithm] = merged_routes(algorithm)
        return self._merged_algorithms[algorithm]

    def _is_near(self, lowered: Lowered, algorithm: Algorithm, sizes: Sequence[int]) -> bool:
        """Return whether a program is nearly as fast as its algorithm's schedule, on average over some sizes."""
        compared = some_of(sizes if self.size is None else (self.size,))
        ratios = [lowered.time_us(size) / algorithm.time_us(size) for size in compared]
        return sum(ratios) <= _NEAR_SCHEDULE * len(ratios)

    def _lower_in_cells(
        self,
        algorithm: Algorithm,
        protocol: str,
        low: int,
        high: int,
        common: CommonChunk,
        until: float,
        sizes: Sequence[int],
    ) -> Lowered:
        """Lower an algorithm to a program of one protocol in given cells, for messages of `low` to `high` bytes.

        If the program of a few ranks whose images are the others is refused, all ranks are lowered. `until` and `sizes`
        are those of `lower`.

        Raises:
            InputError: If the target can hold no program of the algorithm in these cells.
        """
        try:
            return self._lowered_by(self._lowering_of(algorithm, common), protocol, low, high, until, sizes)
        except InputError:
            is_quotient = algorithm.problem.quotient is not None
            if is_quotient or self._lowering is None or not self._lowering.translations:
                raise
        self._lowering = Lowering(
            algorithm, algorithm.problem.collective.name, self.target.limits, inplace=self.inplace, common=common
        )
        return self._lowered_by(self._lowering, protocol, low, high, until, sizes)

    def _lowering_of(self, algorithm: Algorithm, common: CommonChunk) -> Lowering:
        """Return the lowering of an algorithm in given cells: the last one if it is of these, else a new one.

        A new one is kept as the last.
        """
        if self._lowering is None or not self._lowering.is_of(algorithm, common):
            self._lowering = None
            name = algorithm.problem.collective.name
            self._lowering = Lowering(
                algorithm, name, self.target.limits, inplace=self.inplace, common=common, by_images=True
            )
        return self._lowering

    def _lowered_by(
        self, lowering: Lowering, protocol: str, low: int, high: int, until: float, sizes: Sequence[int]
    ) -> Lowered:
        """Return the program of one protocol that a lowering makes, the fastest of up to six numbers of instances.

        Their times at `sizes` count, or at `high` if there are none. If files hold the program itself, the first number
        that `rank_instances` gives is taken.

        Args:
            lowering: The lowering.
            protocol: "Simple", "LL" or "LL128".
            low: Smallest message in bytes.
            high: Largest message in bytes.
            until: Time of `now` after which the best program so far is taken.
            sizes: Message sizes in bytes, of which some are timed; the only size of interest, if there is one, takes
                their place.

        Raises:
            InputError: If the lowering fails, or the format refuses all candidates; then it is the first refusal.
        """
        begun = now()
        program = lowering.program(protocol, min_bytes=low, max_bytes=high, until=until)
        sizes = sizes if self.size is None else (self.size,)
        most_steps = self._most_steps(begun, until)
        candidates = self._candidates(lowering, program, low, high, sizes, until, most_steps)
        best, fault = None, None
        # The times of plans differ from those of their programs, so several are drafted.
        for repetition, candidate in candidates[: 1 if self._holds_program else _MOST_PLANS]:
            if best is not None and now() >= until:
                break
            try:
                lowered = self._as_lowered(lowering, candidate, repetition, sizes or (high,))
            except InputError as error:  # The format may still refuse the program.
                fault = fault or error
                continue
            if best is None or _is_faster(lowered, best, some_of(sizes or (high,))):
                best, self._instances = lowered, repetition.instances
        self._improving_s = now() - max(begun, lowering.first)
        if best is None:
            raise fault or InputError(f"{lowering.algorithm.engine}: no program")
        return best

    def _candidates(
        self,
        lowering: Lowering,
        program: Program,
        low: int,
        high: int,
        sizes: Sequence[int],
        until: float,
        most_steps: float,
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
                again = repeated(lowering, program, known.repetition, limits, low, high)
                return [(known.repetition, again)]
        return rank_instances(lowering, program, limits, low, high, sizes, until, most_steps)

    def _as_lowered(
        self, lowering: Lowering, program: Program, repetition: Repetition, sizes: Sequence[int]
    ) -> Lowered:
        """Return a repeated program with its predictor, and with what its file says if that is not the program itself.

        If files hold the program itself, the images of its ranks are written out, unless the problem is a quotient. If
        its steps move their data unit by unit, the units are chosen for some message sizes in bytes.

        Raises:
            InputError: If the format refuses the program, or its file does not take the only size of interest.
        """
        algorithm, common, goal = lowering.algorithm, lowering.common, lowering.goal
        instances = repetition.instances
        is_merged = lowering.algorithm in self._merged_algorithms.values()
        if not self._holds_program:
            program = replace(program, widths=self._cells.widths(program), unit_bytes=int(is_merged))
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
            largest, predictor = draft.largest_message, draft.predictor(self.problem.topology, ranks)
        if program.unit_bytes and draft is not None:
            draft, predictor, unit = draft.in_best_units(
                predictor, max(sizes), partial(_mean_us_over, algorithm, some_of(sizes)), repetition.unit
            )
            largest, repetition = draft.largest_message, repetition._replace(unit=unit)
        chunk_bytes = predictor.chunk_bytes(1.0) * program.file_chunks / program.nchunks_per_loop
        scale = float(lowering.common.cells.fraction[0]) / instances / chunk_bytes
        lowered = Lowered(
            self.target,
            program,
            goal,
            predictor,
            common,
            exact_scale(scale),
            largest,
            draft=draft,
            repetition=repetition,
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
        if self._holds_program:
            return math.inf
        if until == math.inf:  # No clock counts, so neither does what a send has taken so far.
            return self.patience_s / (_PLAN_SEND_S / _SEND_STEPS) / _MOST_PLANS  # The patience is for all plans.
        return max(_LEAST_STEPS, (until - begun) / (self.send_s / _SEND_STEPS))

    def expected_us(self, algorithm: Algorithm, size_bytes: float) -> float:
        """Return the time of the program of `of_other_form`, or the schedule's with the least start of a call so far.

        The time is in µs, for messages of `size_bytes`.
        """
        other = self.of_other_form.get(algorithm)
        if other is not None:
            return other.time_us(size_bytes)
        return algorithm.time_us(size_bytes) + self._start_us.get(algorithm.problem.topology.protocol, 0.0)

    def can_improve(self, algorithm: Algorithm, size_bytes: float, time_us: float) -> bool:
        """Return whether a second lowering of an algorithm may give a faster program than the first.

        That is not so if the first is at most 5 % slower than the program of `of_other_form`.

        Args:
            algorithm: The algorithm.
            size_bytes: Message size in bytes at which the programs are compared.
            time_us: Time of the first program there, in µs.
        """
        other = self.of_other_form.get(algorithm)
        return other is None or time_us > _AS_FAST_AS_OTHER * other.time_us(size_bytes)

    def other_form(self) -> Programs | None:
        """Return a new lowering for calls of the other form, in or out of place; None if there is no other."""
        if len(forms(self.problem)) < 2 or program_collective(self.problem) in self.target.only_outofplace:
            return None
        other_programs = copy(self)
        other_programs.inplace, other_programs._lowering = not self.inplace, None
        return other_programs

    def text(self, program: Program, goal: Goal | None) -> str:
        """Return the text of a program's file for this target, checked.

        `goal` is what the program must achieve; None for the goal of its collective.

        Raises:
            InputError: If a check has a finding, or the target cannot hold the program.
        """
        return write_program(program, goal, self.target, nodes=self.nodes, linked=self.linked)

    def complete(self, execution: Execution) -> None:
        """Write and check the text of a program, if that is not done, and keep it as `execution.text`.

        An execution that is no `Lowered`, or has a text, is left as it is.

        Raises:
            InputError: If the target cannot hold it.
        """
        if not isinstance(execution, Lowered) or execution.text:
            return
        if execution.draft is None:
            execution.text = self.text(replace(execution.program, min_bytes=0, max_bytes=0), execution.goal)
        else:
            execution.text = write_draft(execution.draft, execution.program)
            execution.draft = None

    def files(self, offers: Sequence[Offer]) -> list[Offer]:
        """Return the offers split so that each has one program and sizes that its file can serve (see `by_size`)."""
        return by_size(offers)


def _mean_us_over(algorithm: Algorithm, sizes: Sequence[int], predictor: TimedProgram) -> float:
    """Return the mean of a program's times over those of an algorithm's schedule, at message sizes in bytes."""
    return sum(predictor.time_us(size) / algorithm.time_us(size) for size in sizes) / len(sizes)


def _is_faster(lowered: Lowered, other: Lowered, sizes: Sequence[int]) -> bool:
    """Return whether the mean of a program's times over another one's, at message sizes in bytes, is below 1."""
    ratios = accumulate(lowered.time_us(size) / other.time_us(size) for size in sizes)
    return all(total < len(sizes) for total in ratios)  # No further size is timed once the total is too large.


def executor_for(problem: Problem, settings: TargetSettings, size: int | None = None) -> Programs | None:
    """Return the lowering of a problem's algorithms; None for NONE, and for AUTO if no target can express it.

    Args:
        problem: The problem.
        settings: The target and its limits.
        size: The only message size of interest in bytes; None for all sizes.

    Raises:
        InputError: If the target cannot express the problem, or cannot have the settings; NONE takes no number of SMs
            and no scratch limit.
    """
    if settings.groups_overlap:
        check_overlap(settings.name)
    if settings.name == NONE:
        if settings.sms is not None or settings.scratch_limit is not None:
            raise InputError("target none: there are no files, which --sms and --scratch-limit limit; leave them out")
        return None
    try:
        target_for(problem, settings.name)
    except InputError:
        if settings.name == AUTO:
            return None
        raise
    return Programs(problem, settings, size=size)
