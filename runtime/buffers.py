"""Where a program's chunks lie in the caller's buffers, and what every executor checks before it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from emit.columns import Column, Columns, columns_of
from emit.findings import Findings
from emit.goal import Goal, goal_for, sizes_of
from emit.program import OPS, Program
from runtime.dtypes import TYPES, Array, parse_type, reducer
from synth.model.registry import find_kind
from topologies.errors import InputError

# findings that do not keep a program from being executed here: another executor's limits, an unexpected result
_HARMLESS = frozenset({"limit", "wrong result"})


@dataclass(frozen=True, eq=False)
class Layout:
    """A program's buffers when a block has so many elements.

    A block is the whole buffer of an allreduce, broadcast or reduce and of a custom program, and one rank's share in
    all others. It is cut into chunks as evenly as whole elements allow; the first element of chunk j of a block of n
    elements in k chunks is ⌊j n / k⌋.
    """

    program: Program
    elements: int  # of a block
    chunks: int  # of a block
    longest: int  # elements of the longest chunk

    @classmethod
    def of(cls, program: Program, elements: int) -> Layout:
        """Raises InputError for fewer than no elements."""
        if elements < 0:
            raise InputError(f"{elements} elements; it must be 0 or more")
        p = program
        chunks = p.nchunks_per_loop // p.nranks if find_kind(p.collective).blocks_a_rank else p.nchunks_per_loop
        return cls(program, elements, chunks, -(-elements // chunks))

    def spans(self, cells: int) -> Column:
        """First element of each cell of a buffer of so many cells, and its end: (cells + 1,), counted from 0."""
        at = np.arange(cells + 1, dtype=np.int64)
        return at // self.chunks * self.elements + at % self.chunks * self.elements // self.chunks

    def span(self, cell: int) -> slice:
        """Where a cell's elements lie in its buffer."""
        return slice(*self.spans(cell + 1)[cell:].tolist())

    def cells(self, rank: int) -> tuple[int, int]:
        """Chunks of the rank's input and output buffer, out of place."""
        if self.program.collective == "custom":
            gpu = self.program.gpus[rank]
            return gpu.i_chunks, gpu.o_chunks
        return sizes_of(self.program, rank)

    def sizes(self, rank: int) -> tuple[int, int]:
        """Elements of them."""
        given, made = self.cells(rank)
        return int(self.spans(given)[-1]), int(self.spans(made)[-1])


def executable_columns(program: Program) -> Columns:
    """The program's steps as columns. Raises InputError where steps do not fit together."""
    found = Findings()
    columns = columns_of(program, found)
    for finding in found.reported:
        if finding.kind not in _HARMLESS:
            raise InputError(f"{program.name}: cannot be run: {finding.kind}: {finding.message}")
    return columns


def goal_of(program: Program, goal: Goal | None, inplace: bool) -> Goal:
    """What the program must achieve: `goal`, or what its collective's name says. Raises InputError without either."""
    p = program
    found = goal or goal_for(p.collective, p.nranks, p.nchunks_per_loop, inplace, p.root)
    if found is None:
        raise InputError(f"collective {p.collective!r} does not say what the result must be; it must come with a goal")
    return found


def describe_wait(c: Columns, step: int, reason: str) -> str:
    """Which threadblock waits at which step, and what for; reason: dependency, data, room or start."""
    rank, tb, position = c.place(step)
    what = "for the others to begin"
    if reason == "dependency":
        what = "for tb {} step {}".format(*c.place(int(c.dep[step]))[1:])
    elif reason == "data":
        source, _, channel = c.connections[c.receives[step]]
        what = f"for data of rank {source} on channel {channel}"
    elif reason == "room":
        _, target, channel = c.connections[c.sends[step]]
        what = f"for room to rank {target} on channel {channel}"
    return f"rank {rank} tb {tb} step {position} ({OPS[c.op[step]]}) waits {what}"


def only_in_place(program: Program) -> bool:
    """Whether input and output must be one memory."""
    return program.inplace and not program.outofplace


def summed_cells(program: Program, goal: Goal | None) -> tuple[Column, Column, Column]:
    """Rank, buffer and cell of all that holds sums at the end. Raises InputError as `goal_of` does."""
    wanted = goal_of(program, goal, only_in_place(program))
    rank, buffer, index, number = wanted.required
    sums = np.diff(wanted.sets.start)[number] > 1
    return rank[sums], buffer[sums], index[sums]


def part_in_place(layout: Layout, shift: int, given: int, made: int) -> tuple[bool, slice]:
    """In place, whether the input (`given` elements) is part of the output (`made`), and where one holds the other.

    shift: the goal's `o_in_i` of the rank, in chunks.
    """
    first = abs(shift) // layout.chunks * layout.elements
    inside = shift <= 0 and made >= given
    return inside, slice(first, first + (given if inside else made))


def prepare_buffers(
    program: Program,
    goal: Goal | None,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    kind: str,
    op: str,
    shares_memory: Callable[[Array, Array], bool] = np.shares_memory,
) -> tuple[Layout, Sequence[Array], str]:
    """The layout, the inputs where the program looks for them, and the type's own name.

    A program that works in place only gets its inputs copied into the outputs where they are apart. Raises InputError
    for an unknown type or reduction, buffers that do not fit the program, no room to work in place.
    """
    kind = parse_type(kind)
    reducer(op, kind)  # refuses what is unknown
    p = program
    if len(inputs) != p.nranks or len(outputs) != p.nranks:
        raise InputError(f"{len(inputs)} inputs and {len(outputs)} outputs; it must be {p.nranks} each, one a rank")
    one = Layout.of(p, 1)
    pairs = list(zip(inputs, outputs, strict=True))
    elements = next(
        (len(a) // n for r, pair in enumerate(pairs) for a, n in zip(pair, one.sizes(r), strict=True) if n), 0
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
    found = []
    for (given, made), shift in zip(pairs, goal_of(p, goal, True).o_in_i, strict=True):
        if shift is not None and not shares_memory(given, made):
            inside, where = part_in_place(layout, shift, len(given), len(made))
            if not inside:
                raise InputError(
                    f"{p.name}: works in place only, and {p.collective} needs room for all of the input; the output"
                    " must be part of it"
                )
            made[where] = given
            given = made[where]
        found.append(given)
    return layout, found, kind
