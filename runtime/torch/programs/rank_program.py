"""Build one rank's part of a program as a plain list of steps, for ranks that are processes and exchange messages.

All ranks put the steps of the whole program into the same order, in which each step stands after everything that it
needs: the earlier steps of its threadblock, the step that it depends on, and the send of what it receives. Each rank
executes its own steps in this order; it waits for what it receives, and never for a send. Then no deadlock can occur:
the first unfinished step of all lacks nothing. Messages are sent without waiting for room, so the FIFO depth of a
program does not matter here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from emit.columns import Columns
from emit.goal import goal_for
from emit.program import OPS, READS_DST, READS_SRC, WRITES_DST, Program
from runtime.buffers import Layout, executable_columns
from topologies.errors import InputError

AHEAD = 64  # Receives that are posted early, since a sender can begin only then.
_MOST_STEPS = 20_000  # Above this `_past` would need too much memory: each step's mask has as many bits.


@dataclass(frozen=True)
class RankStep:
    """A step of this rank.

    Attributes:
        op: Operation, one of `emit.program.OPS`.
        src: Buffer (0 input, 1 output, 2 scratch) and first of the `count` cells that the step reads; None if it reads
            none.
        dst: Buffer and first of the `count` cells that the step writes or reduces into; None if there are none.
        count: Number of cells.
        target: Peer and channel of what it sends, or None.
        source: Peer and channel of what it receives, or None.
        lengths: For each cell that the step receives, or reads if it receives nothing, the chunk of a block whose
            length it has.
        must_copy: Whether what it sends may be overwritten before it arrives, so that a copy must be sent.
        may_post_early: Whether what it receives may be written to its destination early.
        place: Threadblock and position of the step.
        predecessor: Threadblock and position of the step that must be over before, or None.
    """

    op: str
    src: tuple[int, int] | None
    dst: tuple[int, int] | None
    count: int
    target: tuple[int, int] | None
    source: tuple[int, int] | None
    lengths: tuple[int, ...]
    must_copy: bool
    may_post_early: bool
    place: tuple[int, int]
    predecessor: tuple[int, int] | None


@dataclass(frozen=True, eq=False)  # Parts are looked up by their identity: hashing all steps would take long.
class RankProgram:
    """The steps of one rank of a program, in their order.

    Attributes:
        program: The program.
        rank: Rank of the program.
        inplace: Whether the part runs in place.
        shift: In place, the goal's `o_in_i` of the rank; otherwise None.
        steps: The steps of this rank.
        keeps_lengths: Whether each chunk is only ever stored in the place of an equally long chunk.
        order: Place in the group of each of the program's ranks, as `target` and `source` of the steps name it; None
            for the same numbering.
        is_one_step: Whether the program is an all-reduce in which each rank sends its data to all others, and there are
            three ranks or more.
    """

    program: Program
    rank: int
    inplace: bool
    shift: int | None
    steps: tuple[RankStep, ...]
    keeps_lengths: bool
    order: tuple[int, ...] | None = None
    is_one_step: bool = False

    @cached_property
    def most_chunks(self) -> int:
        """Return the largest number of chunks that a step receives, or reads if it receives nothing; 0 if none."""
        return max((len(step.lengths) for step in self.steps), default=0)

    def fits(self, elements: int) -> bool:
        """Return True if the part can run on blocks of this many elements.

        It can if the chunks of such a block are equally long, or if the part keeps lengths.
        """
        return self.keeps_lengths or elements % Layout.of(self.program, 1).chunks == 0

    def check_fits(self, elements: int) -> None:
        """Raise InputError if the part cannot run on blocks of this many elements."""
        if not self.fits(elements):
            raise InputError(
                f"{self.program.name}: a block of {elements} elements has chunks of unequal length, which this program"
                f" puts into each other's places; it must be a multiple of {Layout.of(self.program, 1).chunks} elements"
            )


def rank_program(program: Program, place: int, order: tuple[int, ...] | None = None) -> RankProgram:
    """Return the part of a program that a place in the group runs.

    It runs in place if the program serves only calls in place, or if it serves both kinds and is an allreduce,
    broadcast or reduce.

    Args:
        program: The program.
        place: Place of this rank in the group.
        order: Place in the group of each of the program's ranks; None for the same numbering.

    Raises:
        InputError: The steps of the program do not fit each other, or it stops before its end.
    """
    rank, places = (place, range(program.nranks)) if order is None else (order.index(place), order)
    columns = executable_columns(program)
    sequence, partner, predecessors = order_steps(program, columns)
    lengths, keeps_lengths = _lengths(program, columns, sequence, partner)
    inplace = program.inplace and (not program.outofplace or program.collective in ("allreduce", "broadcast", "reduce"))
    own_steps = [step for step in sequence if int(columns.rank[columns.block[step]]) == rank]
    goal = goal_for(program.collective, program.nranks, program.nchunks_per_loop, True, program.root)
    shift = goal.o_in_i[rank] if inplace and goal is not None else None
    must_copy, may_post_early = _hazards(columns, own_steps, shift, partner, _past(sequence, predecessors))
    steps = []
    for position, step in enumerate(own_steps):
        op = OPS[int(columns.op[step])]
        target, source = int(columns.sends[step]), int(columns.receives[step])
        steps.append(
            RankStep(
                op,
                (int(columns.src[step]), int(columns.src_at[step])) if op in READS_SRC else None,
                (int(columns.dst[step]), int(columns.dst_at[step])) if op in WRITES_DST | READS_DST else None,
                int(columns.count[step]),
                (places[columns.connections[target][1]], columns.connections[target][2]) if target >= 0 else None,
                (places[columns.connections[source][0]], columns.connections[source][2]) if source >= 0 else None,
                lengths.get(step, ()),
                must_copy[position],
                may_post_early[position],
                columns.place(step)[1:],
                columns.place(int(columns.dep[step]))[1:] if columns.dep[step] >= 0 else None,
            )
        )
    is_one_step = _exchanges_inputs(program, columns, sequence, partner, lengths)
    return RankProgram(program, rank, inplace, shift, tuple(steps), keeps_lengths, order, is_one_step)


def order_steps(program: Program, columns: Columns) -> tuple[list[int], dict[int, int], list[list[int]]]:
    """Return all steps in an executable order, the send of each receive, and the predecessors of each step.

    Steps of all ranks are numbered as in the columns. The order is by the length of the longest chain of steps before
    each step, then by number. The second result is by step that receives. The third has a list for each step, by
    number: the steps that it needs at once, which are the step before it in its threadblock, the one that it depends
    on, and the send of what it receives.

    Raises:
        InputError: The program stops before its end.
    """
    sends, receives = columns.messages()
    partner = dict(zip(receives.tolist(), sends.tolist(), strict=True))
    block, dep = columns.block.tolist(), columns.dep.tolist()
    predecessors: list[list[int]] = []
    for step in range(len(block)):
        own = [step - 1] if step and block[step - 1] == block[step] else []
        predecessors.append(
            [*own, *([dep[step]] if dep[step] >= 0 else ()), *([partner[step]] if step in partner else ())]
        )
    level = [0] * len(predecessors)
    try:
        for step in TopologicalSorter(dict(enumerate(predecessors))).static_order():
            level[step] = max((level[predecessor] + 1 for predecessor in predecessors[step]), default=0)
    except CycleError as error:
        stuck = min(error.args[1])
        raise InputError(
            f"{program.name}: stops before its end: rank {{}} tb {{}} step {{}} waits for ever".format(
                *columns.place(stuck)
            )
        ) from None
    return sorted(range(len(level)), key=lambda step: (level[step], step)), partner, predecessors


def _past(order: list[int], predecessors: list[list[int]]) -> list[int] | None:
    """Return by step a bit mask of all steps that are over when it starts; None for more than _MOST_STEPS steps.

    Args:
        order: All steps in an executable order.
        predecessors: By step, the steps that it needs at once.
    """
    if len(order) > _MOST_STEPS:
        return None
    past = [0] * len(order)
    for step in order:
        for predecessor in predecessors[step]:
            past[step] |= past[predecessor] | 1 << predecessor
    return past


def _lengths(
    program: Program, columns: Columns, order: list[int], partner: dict[int, int]
) -> tuple[dict[int, tuple[int, ...]], bool]:
    """Return by step the chunks whose lengths its cells have, and whether all cells hold chunks of their own length.

    The cells of a step are those that it receives, or those that it reads if it receives nothing; steps that do nothing
    are left out. The second result is False if a chunk is reduced with, or stored in an input or output in the place
    of, another chunk.

    Args:
        program: The program.
        columns: Its steps.
        order: All steps in an executable order.
        partner: By step that receives, the step that sends to it.
    """
    chunks = Layout.of(program, 1).chunks
    scratch: dict[tuple[int, int], int] = {}
    chunks_of_step: dict[int, tuple[int, ...]] = {}
    keeps_lengths = True
    for step in order:
        op, rank, count = OPS[int(columns.op[step])], int(columns.rank[columns.block[step]]), int(columns.count[step])
        if op == "nop":
            continue
        read = _cells(scratch, rank, int(columns.src[step]), int(columns.src_at[step]), count, chunks)
        moved = chunks_of_step[partner[step]] if step in partner else read
        if op in READS_SRC and moved != read:
            keeps_lengths = False
        chunks_of_step[step] = moved
        if op in WRITES_DST:
            buffer, first = int(columns.dst[step]), int(columns.dst_at[step])
            if buffer == 2:
                scratch.update({(rank, first + k): chunk for k, chunk in enumerate(moved)})
            elif moved != _cells(scratch, rank, buffer, first, count, chunks):
                keeps_lengths = False
    return chunks_of_step, keeps_lengths


def _cells(
    scratch: dict[tuple[int, int], int], rank: int, buffer: int, first: int, count: int, chunks: int
) -> tuple[int, ...]:
    """Return for `count` cells of a buffer from `first` on the number of the chunk of a block whose length each has.

    In scratch (buffer 2) it is what `scratch` has for (rank, cell), 0 for an empty cell. Elsewhere it is the cell's
    number modulo `chunks`, the number of chunks of a block.
    """
    if buffer == 2:
        return tuple(scratch.get((rank, cell), 0) for cell in range(first, first + count))
    return tuple(cell % chunks for cell in range(first, first + count))


def _exchanges_inputs(
    program: Program,
    columns: Columns,
    order: Sequence[int],
    partner: Mapping[int, int],
    chunks_of_step: Mapping[int, Sequence[int]],
) -> bool:
    """Return True if a program is an all-reduce in which each rank sends each chunk of its own to each other rank.

    All messages must hold consecutive chunks of inputs as they were, and nothing must be sent twice. The result is
    False for two ranks, since a sum of two numbers does not depend on their order.

    Args:
        program: The program.
        columns: Its steps.
        order: All steps in an executable order.
        partner: By step that receives, the step that sends to it.
        chunks_of_step: By step, the chunks that it moves.
    """
    if program.collective != "allreduce" or program.nranks < 3:
        return False
    input_buffers = (0, 1) if program.inplace else (0,)
    written: set[tuple[int, int]] = set()  # Cells of inputs, by rank, that do not have their first values any more.
    arrivals: Counter[tuple[int, int, int]] = Counter()  # By giving rank, taking rank and chunk.
    for step in order:
        op, rank, count = OPS[int(columns.op[step])], int(columns.rank[columns.block[step]]), int(columns.count[step])
        first = int(columns.src_at[step])
        cells = range(first, first + count)
        if columns.sends[step] >= 0 and (
            op != "s" or int(columns.src[step]) not in input_buffers or any((rank, cell) in written for cell in cells)
        ):
            return False
        if step in partner:
            giver, chunks = int(columns.rank[columns.block[partner[step]]]), chunks_of_step[step]
            if list(chunks) != list(range(chunks[0], chunks[0] + count)):
                return False
            arrivals.update((giver, rank, chunk) for chunk in chunks)
        if op in WRITES_DST and int(columns.dst[step]) in input_buffers:
            first = int(columns.dst_at[step])
            written.update((rank, cell) for cell in range(first, first + count))
    return len(arrivals) == program.nranks * (program.nranks - 1) * program.nchunks_per_loop and all(
        count == 1 for count in arrivals.values()
    )


def _hazards(
    columns: Columns, own_steps: list[int], shift: int | None, partner: dict[int, int], past: list[int] | None
) -> tuple[list[bool], list[bool]]:
    """Return for each of this rank's steps whether its message must be a copy, and whether it may receive early.

    A send need no copy if everything that overwrites its cells starts, or was sent, after its receiver had it. A step
    that only stores what it receives (r, rcs) may receive early if the earlier steps that touch its cells are over when
    its message is sent.

    Args:
        columns: The program's steps.
        own_steps: Steps of this rank, in their order.
        shift: If input and output share memory, the cell of the input at which the output begins, negative if the input
            is inside the output; otherwise None.
        partner: By step that receives, the step that sends to it.
        past: By step, a bit mask of all steps that are over when it starts; None if unknown, so that none counts as
            over.
    """

    def cells(buffer: int, first: int, count: int) -> set[tuple[int, int]]:
        """Return the cells of a span, with the output as a part of the input if they share memory."""
        if buffer == 1 and shift is not None:  # The output is part of the input, or vice versa.
            buffer, first = 0, first + shift
        return {(buffer, cell) for cell in range(first, first + count)}

    touches: list[set[tuple[int, int]]] = []
    writes: list[set[tuple[int, int]]] = []
    sent_cells: list[set[tuple[int, int]]] = []
    for step in own_steps:
        op, count = OPS[int(columns.op[step])], int(columns.count[step])
        src = cells(int(columns.src[step]), int(columns.src_at[step]), count) if op in READS_SRC else set()
        dst = cells(int(columns.dst[step]), int(columns.dst_at[step]), count) if op in WRITES_DST else set()
        touches.append(src | dst)
        writes.append(dst)
        sent_cells.append((src if op == "s" else dst) if columns.sends[step] >= 0 else set())
    writers: dict[tuple[int, int], list[int]] = {}
    for position, cells_written in enumerate(writes):
        for cell in cells_written:
            writers.setdefault(cell, []).append(position)
    receiver = {send: receive for receive, send in partner.items()}
    must_copy = []
    for position, step in enumerate(own_steps):
        later = {writer for cell in sent_cells[position] for writer in writers.get(cell, ()) if writer > position}
        begins = [
            partner[own_steps[writer]] if OPS[int(columns.op[own_steps[writer]])] in ("r", "rcs") else own_steps[writer]
            for writer in sorted(later)
        ]
        must_copy.append(
            bool(begins) and (past is None or any(not past[begin] >> receiver[step] & 1 for begin in begins))
        )
    may_post_early = []
    touched: dict[tuple[int, int], list[int]] = {}  # Steps so far that read or write each cell.
    for position, step in enumerate(own_steps):
        finished = (
            0 if past is None or step not in partner else past[partner[step]]
        )  # Steps that end before the message is sent.
        earlier = (earlier_step for cell in writes[position] for earlier_step in touched.get(cell, ()))
        may_post_early.append(
            OPS[int(columns.op[step])] in ("r", "rcs") and all(finished >> earlier_step & 1 for earlier_step in earlier)
        )
        for cell in touches[position]:
            touched.setdefault(cell, []).append(step)
    return must_copy, may_post_early
