"""Positions of a program's chunks in the caller's buffers, and the checks that every executor makes before a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np

from emit.columns import Column, Columns, columns_of
from emit.findings import Findings
from emit.goal import Goal, goal_for, sizes_of
from emit.program import OPS, Program
from runtime.dtypes import TYPES, Array, parse_type, reducer
from synth.model.registry import find_kind
from topologies.errors import InputError

Cells = TypeVar("Cells", int, Column)  # A number of a cell, or a column of them.
# Findings with which a program can still run here: limits of another executor, an unexpected result.
_HARMLESS = frozenset({"limit", "wrong result"})


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return True if two elements of a tensor share one place in memory.

    Args:
        shape: Elements along each dimension.
        strides: Elements from one place to the next along each dimension, 0 or more.
    """
    dimensions = sorted((step, size) for size, step in zip(shape, strides, strict=True) if size > 1)
    last_places = [0, *accumulate(step * (size - 1) for step, size in dimensions)]
    if 0 in shape or all(step > last for (step, _), last in zip(dimensions, last_places, strict=False)):
        return False
    if math.prod(shape) > last_places[-1] + 1:
        return True
    places = np.zeros(1, dtype=np.int64)  # Strides that are not nested may still reach every place once.
    for step, size in dimensions:
        places = np.add.outer(places, step * np.arange(size)).ravel()
    return len(np.unique(places)) < len(places)


@dataclass(frozen=True, eq=False)
class Layout:
    """The buffers of a program for a number of elements in a block.

    A block is the whole buffer of an allreduce, broadcast or reduce and of a custom program, and one rank's share in
    all others. It is cut into chunks as evenly as whole elements allow; the first element of chunk j of a block of n
    elements in k chunks is ⌊j n / k⌋.

    Attributes:
        program: The program.
        elements: Elements of a block.
        chunks: Chunks of a block.
        longest: Elements of the longest chunk.
    """

    program: Program
    elements: int
    chunks: int
    longest: int

    @classmethod
    def of(cls, program: Program, elements: int) -> Layout:
        """Build the layout of a program with `elements` elements in a block.

        Raises:
            InputError: The number of elements is negative.
        """
        if elements < 0:
            raise InputError(f"{elements} elements; it must be 0 or more")
        p = program
        chunks = p.nchunks_per_loop // p.nranks if find_kind(p.collective).blocks_a_rank else p.nchunks_per_loop
        return cls(program, elements, chunks, -(-elements // chunks))

    def spans(self, cells: int) -> Column:
        """Return the first element of each of `cells` cells of a buffer, and the end of the last: (cells + 1,)."""
        at = np.arange(cells + 1, dtype=np.int64)
        return at // self.chunks * self.elements + chunk_start(at % self.chunks, self.chunks, self.elements)

    def span(self, cell: int) -> slice:
        """Return the slice of a cell's elements in its buffer."""
        return slice(*self.spans(cell + 1)[cell:].tolist())

    def cells(self, rank: int) -> tuple[int, int]:
        """Return the number of chunks of the rank's input and output buffer, out of place."""
        if self.program.collective == "custom":
            gpu = self.program.gpus[rank]
            return gpu.i_chunks, gpu.o_chunks
        return sizes_of(self.program, rank)

    def sizes(self, rank: int) -> tuple[int, int]:
        """Return the number of elements of the rank's input and output buffer, out of place."""
        input_cells, output_cells = self.cells(rank)
        return int(self.spans(input_cells)[-1]), int(self.spans(output_cells)[-1])


def chunk_start(chunk: Cells, chunks: int, elements: int) -> Cells:
    """Return the first element of a chunk, or of each chunk of a column: ⌊chunk · elements / chunks⌋.

    Args:
        chunk: Number of the chunk; `chunks` gives the end of the last.
        chunks: Number of chunks of the block.
        elements: Number of elements of the block.
    """
    return chunk * elements // chunks


def executable_columns(program: Program) -> Columns:
    """Return the program's steps as columns.

    That a program exceeds the limits of another executor, or has a wrong result, is no error.

    Raises:
        InputError: Steps do not fit together.
    """
    findings = Findings()
    columns = columns_of(program, findings)
    for finding in findings.reported:
        if finding.kind not in _HARMLESS:
            raise InputError(f"{program.name}: cannot be run: {finding.kind}: {finding.message}")
    return columns


def goal_of(program: Program, goal: Goal | None, inplace: bool) -> Goal:
    """Return the goal of a program: `goal`, or the one that its collective's name implies.

    Args:
        program: The program.
        goal: Goal of a custom collective, which is returned as it is; None to look at the name.
        inplace: Whether the program runs in place, if the goal follows from the name.

    Raises:
        InputError: There is neither.
    """
    p = program
    own_goal = goal or goal_for(p.collective, p.nranks, p.nchunks_per_loop, inplace, p.root)
    if own_goal is None:
        raise InputError(f"collective {p.collective!r} does not say what the result must be; it must come with a goal")
    return own_goal


def describe_wait(c: Columns, step: int, reason: str) -> str:
    """Describe which threadblock waits at which step for what.

    Args:
        c: The program's columns.
        step: Number of the step in the columns.
        reason: "dependency", "data", "room" (in a FIFO), or anything else, such as "start", for the others' begin.
    """
    rank, tb, position = c.place(step)
    awaited = "for the others to begin"
    if reason == "dependency":
        awaited = "for tb {} step {}".format(*c.place(int(c.dep[step]))[1:])
    elif reason == "data":
        source, _, channel = c.connections[c.receives[step]]
        awaited = f"for data of rank {source} on channel {channel}"
    elif reason == "room":
        _, target, channel = c.connections[c.sends[step]]
        awaited = f"for room to rank {target} on channel {channel}"
    return f"rank {rank} tb {tb} step {position} ({OPS[c.op[step]]}) waits {awaited}"


def only_in_place(program: Program) -> bool:
    """Return True if input and output must share their memory, because the program does not run out of place."""
    return program.inplace and not program.outofplace


def summed_cells(program: Program, goal: Goal | None) -> tuple[Column, Column, Column]:
    """Return the columns (rank, buffer, cell) of all chunks that must hold sums at the end; buffer 0 input, 1 output.

    Raises:
        InputError: As for `goal_of`.
    """
    end_goal = goal_of(program, goal, only_in_place(program))
    rank, buffer, index, number = end_goal.required
    sums = np.diff(end_goal.sets.start)[number] > 1
    return rank[sums], buffer[sums], index[sums]


def part_in_place(layout: Layout, shift: int, input_size: int, output_size: int) -> tuple[bool, slice]:
    """Return whether the input is part of the output in place, and the slice of the one in the other.

    Args:
        layout: The layout.
        shift: The rank's `o_in_i` of the goal: first chunk of the output, counted from that of the input; negative or 0
            where the input lies in the output.
        input_size: Elements of the input.
        output_size: Elements of the output.

    Returns:
        True and the input's slice of the output, or False and the output's slice of the input, in elements.
    """
    first = abs(shift) // layout.chunks * layout.elements
    input_is_part = shift <= 0 and output_size >= input_size
    return input_is_part, slice(first, first + (input_size if input_is_part else output_size))


def prepare_buffers(
    program: Program,
    goal: Goal | None,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    kind: str,
    op: str,
    shares_memory: Callable[[Array, Array], bool] = np.shares_memory,
) -> tuple[Layout, Sequence[Array], str]:
    """Check the buffers of a run; return the layout, the inputs as the program expects them, and the type's name.

    The inputs of a program that works only in place are copied into the outputs if they are apart; the returned inputs
    are then views of the outputs. Otherwise they are the inputs themselves.

    Args:
        program: The program.
        goal: Goal of a custom collective, or None.
        inputs: Input of each rank, one-dimensional; its length gives the elements of a block (0 if all are empty).
        outputs: Output of each rank.
        kind: Data type in any spelling that `parse_type` takes.
        op: Reduction.
        shares_memory: Function that tells whether two arrays share memory.

    Raises:
        InputError: The type or reduction is unknown, buffers do not fit the program, or there is no room to work in
            place.
    """
    kind = parse_type(kind)
    reducer(op, kind)  # It raises InputError for an unknown reduction.
    p = program
    if len(inputs) != p.nranks or len(outputs) != p.nranks:
        raise InputError(f"{len(inputs)} inputs and {len(outputs)} outputs; it must be {p.nranks} each, one a rank")
    unit_layout = Layout.of(p, 1)
    pairs = list(zip(inputs, outputs, strict=True))
    elements = next(
        (len(a) // n for r, pair in enumerate(pairs) for a, n in zip(pair, unit_layout.sizes(r), strict=True) if n), 0
    )
    layout = Layout.of(p, elements)
    for rank, pair in enumerate(pairs):
        for name, array, size in zip(("input", "output"), pair, layout.sizes(rank), strict=True):
            if size and (array.shape != (size,) or array.dtype != TYPES[kind]):
                raise InputError(
                    f"rank {rank}: {name} of {array.shape} {array.dtype}; it must be ({size},) {TYPES[kind]}"
                )
    if not only_in_place(p):
        return layout, inputs, kind
    prepared_inputs = []
    for (input_array, output_array), shift in zip(pairs, goal_of(p, goal, True).o_in_i, strict=True):
        if shift is not None and not shares_memory(input_array, output_array):
            input_is_part, span = part_in_place(layout, shift, len(input_array), len(output_array))
            if not input_is_part:
                raise InputError(
                    f"{p.name}: works in place only, and {p.collective} needs room for all of the input; the output"
                    " must be part of it"
                )
            output_array[span] = input_array
            input_array = output_array[span]
        prepared_inputs.append(input_array)
    return layout, prepared_inputs, kind
