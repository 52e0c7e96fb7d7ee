"""Lowering of a problem's algorithms to the programs of a target, with their times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import replace

from emit.compiler.cuts import best_cuts, cut_time_us, wide_cut
from emit.compiler.fill import ProgramRequest, least_bytes
from emit.compiler.lower import forms, program_collective
from emit.compiler.tuning import TUNING
from emit.formats import write_draft
from emit.library.by_size import by_size
from emit.library.lowered import Lowered, LoweredBySize
from emit.library.program_maker import ProgramMaker
from emit.program import FIFO_DEPTH
from emit.targets import (
    LL_MOST_BYTES,
    check_overlap,
    choose_protocol,
    on_devices,
    target_for,
    target_named,
    usual_target,
)
from synth.model.common_chunk import CommonChunk
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
_WRITING = 2.0  # The time with the file over the time without it.
_UNIT_SENDS = 64  # Sends that are lowered in the time to lower one that moves its data unit by unit.
_MEMBERS_OF_SEND = 32  # Members of operations of switches that are timed and checked in the time to lower one send.
# Sends of an image that are written in the time to lower one: as operations of a plan, and as steps of a program.
_WRITTEN_SENDS, _WRITTEN_STEPS = 100, 2
_AS_FAST_AS_OTHER = 1.05  # Times of the two forms of calls within this factor count as equal.
_IN_SWITCH_CELLS = 16  # of a chunk that threadblocks share
_MOST_SHARED_CELLS = 512  # of all such chunks: a plan of many is checked for long


class Programs(ProgramMaker):
    """The lowering of one problem's algorithms for one target, by the protocols and message sizes of a search.

    Attributes:
        in_place_of: The target that is usual on the devices but cannot express the problem; else None.
        first_s: Seconds that the last lowering took until it had a program, if not yet the best.
        writing: Time to lower a program in haste and to write its file, over the time to lower it in haste.
    """

    writing = _WRITING

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
        target = on_devices(target_for(problem, settings.name), problem.topology.sms, settings)
        inplace = forms(problem)[0] if inplace is None else inplace
        super().__init__(problem, target, size, inplace, settings.patience_s)
        self._sends: dict[Algorithm, int] = {}
        self.first_s = 0.0
        # Least time in µs by protocol that a program took beyond its schedule at the smallest size: what starts a call.
        self._start_us: dict[str, float] = {}
        usual = usual_target(problem.topology) if settings.name == AUTO else None
        self.in_place_of = None if usual is None or usual.name == self.target.name else usual

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
        count as one. A program that moves its data unit by unit has few sends, which are timed for many units.
        """
        sends, net, link = len(algorithm.schedule), algorithm.problem.network, algorithm.schedule.link
        if not ordinary(net, link):
            operations = max(algorithm.problem.collective.nchunks, _IN_SWITCH_CELLS * net.nranks)
            return max(sends, operations * net.nranks // _MEMBERS_OF_SEND)
        if algorithm.problem.quotient is not None:
            return sends
        if (merged := self.merged(algorithm)) is not None:
            return min(sends, _UNIT_SENDS * len(merged.schedule))
        order = self.cells.images(algorithm)
        written = _WRITTEN_STEPS if self.form.holds_program else _WRITTEN_SENDS
        return sends if order == 1 else sends // order + sends // written

    def least_bytes(self, problem: Problem) -> int:
        """Return the smallest chunk in bytes with which the protocol's FIFO slots keep all connections of a rank busy.

        The network and the protocol are those of `problem`, the limits those of the target. It is 0 for plans, which
        have no FIFO.
        """
        if not self.form.holds_program:
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
            return self.form.refusal_in_switch(algorithm)
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
            self.first_s = lowering_s - self.improving_s if self.form.holds_program else lowering_s / self.instances
            return lowered
        request = ProgramRequest(self.protocol(None), 2 * LL_MOST_BYTES, LARGEST, until=until)
        large = self.lower_once(algorithm, request)
        self.first_s = self._first_s(start_s)
        try:
            request = ProgramRequest(self.protocol(LL_MOST_BYTES), SMALLEST, LL_MOST_BYTES, until=until)
            small = self.lower_once(algorithm, request)
        except InputError:
            small = large
        largest = self._largest(algorithm, large, until)
        self.lowering = None
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
        request = ProgramRequest(protocol or self.protocol(self.size), low, high, tuple(sizes), until)
        try:
            return self.lower_once(algorithm, request)
        except InputError:
            if protocol or request.protocol == usual:
                raise
            return self.lower_once(algorithm, request._replace(protocol=usual))

    def _in_switch(self, algorithm: Algorithm) -> Lowered:
        """Lower an algorithm whose sends go through summing or multicasting switches.

        If there are few chunks, a program whose threadblocks share each chunk is made too. The faster of the two at the
        only size of interest, or at the largest, is returned.

        Raises:
            InputError: If the target's files cannot express it.
        """
        cells = self.cells.possible(algorithm, SMALLEST, LARGEST)
        cuts = best_cuts(algorithm, cells, only_even=True)[:1]  # Uneven cells have no images on other ranks.
        is_little = len(cuts[0].count) * _IN_SWITCH_CELLS <= _MOST_SHARED_CELLS
        if cells and is_little and cuts[0].count.max() < _IN_SWITCH_CELLS:
            cuts.append(wide_cut(algorithm, cells, _IN_SWITCH_CELLS))
        lowered = [self._in_switch_in_cells(algorithm, common) for common in cuts]
        return min(lowered, key=lambda candidate: candidate.time_us(self.size or LARGEST))

    def _in_switch_in_cells(self, algorithm: Algorithm, common: CommonChunk) -> Lowered:
        """Lower an algorithm whose sends go through switches, in given cells; errors as those of `_in_switch`."""
        draft, program = self.form.draft_in_switch(algorithm, common, self.inplace, self.target.limits.sms)
        predictor = draft.predictor(self.problem.topology, self.problem.ranks)
        return Lowered(self.target, program, None, predictor, common, largest=draft.largest_message, draft=draft)

    def _largest(self, algorithm: Algorithm, large: Lowered, until: float) -> Lowered | None:
        """Return a program for the largest messages only; None if it is not needed, not faster there, or not possible.

        It is not needed if `large` is about as fast as the schedule there, or the time `until` is over.
        """
        if large.time_us(LARGEST) <= TUNING.as_fast * cut_time_us(algorithm, large.common, LARGEST) or now() >= until:
            return None
        try:
            request = ProgramRequest(large.program.protocol, LARGEST // _LARGEST, LARGEST, until=until)
            candidate = self.lower_once(algorithm, request)
        except InputError:
            return None
        return candidate if candidate.time_us(LARGEST) * TUNING.as_fast < large.time_us(LARGEST) else None

    def _first_s(self, start_s: float) -> float:
        """Return the seconds from `start_s` until the first program of the last lowering was ready.

        `start_s` is a reading of `now`. Without a lowering it is the seconds until now; they are never below 0.
        """
        first_at = math.inf if self.lowering is None else self.lowering.first
        return max(0.0, min(now(), first_at) - start_s)

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
        other_programs.inplace, other_programs.lowering = not self.inplace, None
        return other_programs

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
    if settings.name != AUTO:
        target_named(settings.name, (AUTO, NONE))
    try:
        target_for(problem, settings.name)
    except InputError:
        if settings.name == AUTO:
            return None
        raise
    return Programs(problem, settings, size=size)
