"""Decide what serves each call of one rank of a group, as all ranks have agreed: a back end, a program or a plan.

`runtime.torch.choice` decides from the settings alone. Here its decisions meet the call's tensors, and become this
rank's part of a program. This module does not know c10d.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property

from emit.program import Program
from runtime.buffers import Layout
from runtime.torch.added import ADDED
from runtime.torch.choice import CallChoice, Chooser, Method
from runtime.torch.failures.compare import check_same_choices
from runtime.torch.messages import Messages
from runtime.torch.programs.blocks import Buffers
from runtime.torch.programs.pieces import Sizes, busiest, map_pieces
from runtime.torch.programs.planned import RankPlanner
from runtime.torch.programs.rank_program import RankProgram, rank_program
from runtime.torch.programs.run import REDUCERS
from runtime.torch.programs.transport import MAX_CHANNELS
from runtime.torch.table import PLANNED, REDUCED_TYPES, TableCall, warn
from topologies.errors import InputError

_MOST_PARTS = 256  # Programs of which this rank's parts are cached: a broadcast has a program for each root.
# The largest allowed block, as a multiple of the mean block of the busiest rank. A program divides its links evenly for
# equal blocks. With this limit no link carries more than this multiple of its share.
_MOST_UNEVEN = 4.0
# The method that `using` names for calls; each thread and each task of asyncio has its own.
requested_method: ContextVar[Method | None] = ContextVar("requested_method", default=None)


class RankChoices:
    """What serves the calls of one rank of a group.

    Attributes:
        ranks: The members, as the whole job numbers them.
        rank: Place of this rank among them.
        chooser: Decides from the settings alone; replaced where all ranks agree on failures.
        checks: Whether ranks compare each call: SYNTH_CHECK was set, not to 0.
        listeners: Functions that are called when choices have changed, so that nothing that depends on them is kept.
        version: How often choices have changed.
    """

    def __init__(
        self, messages: Messages, ranks: tuple[int, ...], rank: int, is_whole_job: bool, failed: tuple[str, ...]
    ) -> None:
        """Read the environment's settings, and check that all ranks have the same.

        All ranks of a group must call it, since they exchange messages; a group of one rank exchanges none.

        Args:
            messages: Moves bytes between ranks.
            ranks: The members, as the whole job numbers them.
            rank: Place of this rank among them.
            is_whole_job: Whether the group holds all ranks of the job.
            failed: Parts of the network that all ranks have agreed to avoid.

        Raises:
            InputError: The ranks' settings differ, or a rank cannot use what its settings name; every rank raises it.
            RuntimeError: A rank is lost; the message names it.
        """
        self._messages, self.ranks, self.rank, self._is_whole_job = messages, ranks, rank, is_whole_job
        self.checks = os.environ.get("SYNTH_CHECK", "0") not in ("", "0")
        # Most recent parts, by the program's id and the order of its ranks.
        self._parts: OrderedDict[tuple[int, tuple[int, ...] | None], tuple[Program, RankProgram]] = OrderedDict()
        self.listeners: list[Callable[[], None]] = []
        self.version = 0
        self.chooser = self.agreed_chooser([self], failed)

    def agreed_chooser(self, groups: Iterable[RankChoices], failed: tuple[str, ...]) -> Chooser:
        """Return the chooser of the environment's settings without failed parts, if all ranks of this group have it.

        All programs that may run in `groups` are read and verified.

        Raises:
            InputError: The ranks' settings differ, or a rank cannot use what its settings name; every rank raises it.
            RuntimeError: A rank is lost.
        """
        fault, basis = None, ""
        try:
            chooser = Chooser.of_environment(without=failed)
            for group in groups:
                chooser.check(len(group.ranks), group._is_whole_job)
            added = [(name, sorted(row.devices)) for name, row in ADDED.items()]
            basis = f"{chooser.basis} {self.checks} {added}"
        except InputError as error:
            fault = str(error)
        if len(self.ranks) > 1:
            check_same_choices(self._messages, basis, fault, self.ranks)
        elif fault is not None:
            raise InputError(fault)
        return chooser

    def use(self, chooser: Chooser) -> None:
        """Make the choices of all further calls by another chooser."""
        self.chooser, self.version = chooser, self.version + 1
        self.__dict__.pop("_planner", None)
        for listener in self.listeners:
            listener()

    def paths(self, call: TableCall) -> frozenset[str]:
        """Return how calls that differ from this one only in size may be served, with the method `using` names now.

        The set holds any of "wrapped" (the wrapped back end), "direct" (the built-in algorithm that sends each block
        straight to its destination), "program" (any other of our algorithms) and PLANNED (a plan for the call's sizes).

        Raises:
            InputError: The method names an algorithm that does not exist for this collective and number of ranks.
        """
        paths = self.chooser.paths(call, requested_method.get())
        return paths | {PLANNED} if self.planner_for(call) is not None else paths

    def decides_by_size(self, call: TableCall) -> bool:
        """Return True if the size decides about all-to-alls such as this one without splits, and not about others.

        That is so where the table has several answers. All ranks must then state splits in a call, or none.
        """
        is_alltoall = call.collective == "alltoall" and not call.has_splits
        return is_alltoall and self.paths(call) != self.paths(call._replace(has_splits=True))

    def planner_for(self, call: TableCall) -> RankPlanner | None:
        """Return what plans calls such as this one with the method `using` names now; None if nothing does."""
        return self._planner if self.chooser.plans(call, requested_method.get()) else None

    @cached_property
    def _planner(self) -> RankPlanner | None:
        """Return the planner of the group on the network of SYNTH_TOPOLOGY; None, with a warning, if there can be none.

        The network's nodes and NICs may not be what a planner takes; then that is so on all ranks.
        """
        assert self.chooser.network is not None
        try:
            return RankPlanner(self.chooser.network, self.ranks, self.rank)
        except InputError as error:
            if self.rank == 0:
                warn(f"all-to-alls of ranks {', '.join(map(str, self.ranks))} are not planned: {error}")
            return None

    def wrapped_ranges(self, call: TableCall) -> list[tuple[int, str | None]]:
        """Return the ranges of sizes in which the wrapped back end surely serves calls such as this one, of any size.

        The answer is for the method that `using` names now. Each range has its first size in bytes and the reason why
        the wrapped back end serves it, or None if `choose` must be asked for each call. Ranges rise from 0; each ends
        where the next one begins, and the last has no end.

        Raises:
            InputError: The method names an algorithm that does not exist for this collective and number of ranks.
        """
        if self.planner_for(call) is not None:
            return [(0, None)]
        return self.chooser.wrapped_ranges(call, requested_method.get())

    def choose(
        self, call: TableCall, buffers: Buffers, op: str | None, method: Method | None = None
    ) -> tuple[CallChoice, RankProgram | None]:
        """Return the choice for a call and this rank's part of its program, None for the wrapped back end.

        The choice then has no program, and its reason says why; it may name an added back end. This is also so if our
        algorithms cannot run: the tensors are not on the CPU, not dense, or of more than one type or device; the
        reduction or its type is not supported; there are no bytes to move; the program has too many channels, or its
        chunks would differ in length.

        Args:
            call: Facts on which the choice depends.
            buffers: Tensors of the call.
            op: A key of REDUCERS, another reduction that only the wrapped back end supports, or None without a
                reduction.
            method: Overrules the method that `using` names now; None for that one.

        Raises:
            InputError: The method names an algorithm that does not exist, or the program's steps do not fit each other.
        """
        first_tensor, reason = buffers.tensors[0], ""
        if first_tensor.device.type != "cpu":
            reason = f"tensors on {first_tensor.device.type}: our algorithms run on CPU tensors only"
        elif not buffers.are_plain:
            reason = "sparse tensors, or tensors of several types or devices"
        elif op is not None and op not in REDUCERS:
            reason = f"reduction {op}"
        elif op is not None and call.kind not in REDUCED_TYPES:
            reason = f"type {call.kind}"
        elif not call.size_bytes:
            reason = "no data to move"
        if reason and not ADDED:
            return CallChoice(None, reason), None
        choice = self.chooser.choose(call, method or requested_method.get())
        if choice.added:
            if first_tensor.device.type in ADDED[choice.added].devices:
                return choice, None
            reason = f"tensors on {first_tensor.device.type}: {choice.added} does not take them"
        if reason or choice.program is None:
            return CallChoice(None, reason or choice.reason), None
        name, part = choice.program.name, self.part(choice.program, choice.order)
        if choice.program.nchannels > MAX_CHANNELS:
            return CallChoice(None, f"{name}: more than {MAX_CHANNELS} channels"), None
        if not part.fits(buffers.block):
            return CallChoice(None, f"{name}: its chunks would differ in length for this size"), None
        return choice, part

    def choose_uneven(
        self, call: TableCall, buffers: Buffers, sizes: Sizes, method: Method | None
    ) -> tuple[RankProgram | None, str]:
        """Return the program that runs on blocks of unequal sizes, or None and the reason to send the blocks directly.

        The answer is the same on every rank. The program does not run if it is for equal blocks only, or if the
        largest block is more than _MOST_UNEVEN times the mean block of the busiest rank. The reason is "" with a
        program, and also if none serves such calls.

        Args:
            call: Facts on which the choice depends, of the size that `elements_of_rank` states.
            buffers: Tensors of the call.
            sizes: Elements of all blocks, as [giving place][taking place].
            method: Method that `using` named when the call was made.
        """
        choice, part = self.choose(call, replace(buffers, block=0), None, method)
        if part is None or self.chooser.path(choice) != "program":
            return None, ""
        if map_pieces(part) is None:
            return None, f"{part.program.name} is for blocks of equal sizes: sent directly"
        if max(map(max, sizes)) * len(sizes) > _MOST_UNEVEN * busiest(sizes):
            return None, f"blocks too unequal for {part.program.name}: sent directly"
        return part, ""

    def elements_of_rank(self, call: TableCall, sizes: Sizes) -> int:
        """Return the elements of a rank that decide what serves a call of blocks of these sizes.

        With rows of the table for such calls it is what ranks send in the mean, by which these were measured; otherwise
        what the busiest rank gives or takes, as a program takes as long as for equal blocks of its size.
        """
        if call.has_splits and self.chooser.measures_splits(call):
            return sum(map(sum, sizes)) // len(sizes)
        return busiest(sizes)

    def part_for_sizes(self, call: TableCall, sizes: Sequence[int]) -> RankProgram | None:
        """Return this rank's part of the library's program for blocks of these sizes, or None; the same on all ranks.

        Args:
            call: The call, an all-gather or a reduce-scatter; its size is that of all blocks.
            sizes: Elements of the block of each rank, by its place.

        Raises:
            InputError: The program's steps do not fit each other.
        """
        program = self.chooser.for_sizes(call, sizes, requested_method.get())
        part = None if program is None else self.part(program)
        # Chunks of one length: a block may begin at any chunk of one buffer, and at the first chunk of the other.
        return part if part is not None and sum(sizes) % part.program.nchunks_per_loop == 0 else None

    def choose_custom(self, name: str, buffers: Buffers) -> tuple[RankProgram, int]:
        """Return this rank's part of the first program of a custom collective that serves these tensors, and its block.

        Args:
            name: Name of the collective.
            buffers: Its tensors, dense and on the CPU; the size of a block is ignored.

        Returns:
            This rank's part of the program, and the elements of a block.

        Raises:
            InputError: The library has no such program.
        """
        elements = [tensors[0].numel() if tensors else 0 for tensors in (buffers.inputs, buffers.outputs)]
        for entry, program in self.chooser.custom(name, self.ranks):
            part = self.part(program)
            block = _custom_block(program, self.rank, elements)
            if block and part.fits(block) and entry.serves(block * buffers.tensors[0].element_size()):
                return part, block
        raise InputError(
            f"{name}: the library has no program of this name for {len(self.ranks)} ranks that serves {elements[0]}"
            f" input elements and {elements[1]} output elements on rank {self.ranks[self.rank]}"
        )

    def part(self, program: Program, order: tuple[int, ...] | None = None) -> RankProgram:
        """Return this rank's part of a program; the 256 parts that were used last are kept and not built again.

        The key is the program's identity, since hashing a program reads all of it.

        Args:
            program: The program.
            order: Place in the group of each of the program's ranks; None for the same numbering.

        Raises:
            InputError: The program's steps do not fit each other.
        """
        key = id(program), order
        cached = self._parts.get(key)
        if cached is None:
            cached = self._parts[key] = program, rank_program(program, self.rank, order)
            while len(self._parts) > _MOST_PARTS:
                self._parts.popitem(last=False)
        self._parts.move_to_end(key)
        return cached[1]


def _custom_block(program: Program, rank: int, elements: Sequence[int]) -> int:
    """Return the elements of a custom program's block for a rank; 0 if no block gives its buffers these sizes.

    `elements` holds the number of elements of the rank's input and of its output.
    """
    chunks = Layout.of(program, 0).chunks
    cells = Layout.of(program, 0).cells(rank)
    block_sizes = {n * chunks // k for n, k in zip(elements, cells, strict=True) if k}
    block = block_sizes.pop() if len(block_sizes) == 1 else 0
    return block if list(Layout.of(program, block).sizes(rank)) == list(elements) else 0
