"""Number the memory of all ranks under a plan by cells, and derive the goal of its collective."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from emit.check.capacity import CAPACITY
from emit.goal import Column, Goal, buffer_sizes, goal_for
from emit.images import BufferImages, block_of_input, buffer_images, images_of
from emit.mscclpp.plan import MAX_ITERATIONS, MAX_MIN_BYTES, NO_LIMIT, OFFSET_END, ExecutionPlan, PlanPart
from emit.program import BUFFERS, COLLECTIVES
from synth.model.collective import Ints
from synth.model.registry import find_kind
from topologies.errors import InputError

ALIGNMENT = 16  # Bytes that a thread moves; the executor refuses chunks that are no multiple of it.


def collective_of(plan: ExecutionPlan) -> str:
    """Return the collective's name in programs, without capitals and underscores; "custom" if they have none."""
    name = plan.collective.lower().replace("_", "")
    return name if name in COLLECTIVES else "custom"


def chunks_of(plan: ExecutionPlan) -> int:
    """Return the `nchunks_per_loop` of an equivalent program: the chunks of the whole buffer.

    That is the output if the collective's in-place buffer is the output (as in allgather), else the input.
    """
    gpu = plan.gpus[0]
    return gpu.output_chunks if find_kind(collective_of(plan)).inplace == "o" else gpu.input_chunks


def counted_chunks(plan: ExecutionPlan) -> int:
    """Return the file's chunks of the buffer that min_message_size and max_message_size refer to, on rank 0.

    It is the output for allgather, else the input.
    """
    gpu = plan.gpus[0]
    return plan.in_file(gpu.output_chunks if plan.collective == "allgather" else gpu.input_chunks)


def both_chunks(plan: ExecutionPlan) -> int:
    """Return the file's chunks of the larger of input and output, on rank 0."""
    return plan.in_file(max(plan.gpus[0].input_chunks, plan.gpus[0].output_chunks))


def has_empty_buffers(plan: ExecutionPlan) -> bool:
    """Return True if some rank has an input or an output without chunks, which no executor can run."""
    return any(gpu.input_chunks < 1 or gpu.output_chunks < 1 for gpu in plan.gpus)


def most_bytes(plan: ExecutionPlan) -> int:
    """Return the largest message for which all numbers of the executor fit their 32 bits, or 16 bits.

    No buffer may be empty.

    The message is in bytes of the buffer that max_message_size refers to (see `counted_chunks`). The numbers are the
    ends of spans, and the places of packets in double scratch, which the executor sizes by the whole allocation of the
    input, up to max_message_size. Iterations of a pipeline are counted in 16 bits.
    """
    unit, max_bytes = plan.alignment * counted_chunks(plan), NO_LIMIT
    for gpu in plan.gpus:
        inputs, outputs = plan.in_file(gpu.input_chunks), plan.in_file(gpu.output_chunks)
        scratch = gpu.scratch_chunks * plan.widest
        chunk_bytes = (OFFSET_END - 1) // max(inputs, outputs, scratch)
        max_bytes = min(max_bytes, chunk_bytes // plan.alignment * unit)
        if plan.packets and scratch:
            allocated = scratch * 2 * (2 if plan.double else 1)
            max_bytes = min(max_bytes, OFFSET_END // allocated * inputs // unit * unit)
    for *_, op in plan.ops():
        if op.name == "pipeline":
            chunk_bytes = MAX_ITERATIONS * op.unit_bytes // op.unit_chunks
            max_bytes = min(max_bytes, chunk_bytes // plan.alignment * unit)
    return max_bytes


def limit_sizes(plan: ExecutionPlan, least_bytes: int, largest: int) -> None:
    """Set the plan's `min_bytes` and `max_bytes`: the given sizes, as far as its offsets and alignment allow.

    Args:
        plan: The plan, which is changed.
        least_bytes: Smallest message, in bytes of the larger of input and output.
        largest: Largest message, in bytes of the same buffer; 0 for no limit.

    Raises:
        InputError: The plan takes none of these sizes.
    """
    counted, larger_chunks = counted_chunks(plan), both_chunks(plan)
    # A program's size is that of the larger buffer; a plan's size is that of the buffer that its reader measures.
    low, high = -(-least_bytes * counted // larger_chunks), largest * counted // larger_chunks
    max_bytes = most_bytes(plan)
    min_bytes = max(low, ALIGNMENT * counted)
    if largest > 0 and high < min_bytes:
        raise InputError(
            f"{plan.name} serves at most {largest} bytes, but an execution plan of {larger_chunks} chunks takes "
            f"{ALIGNMENT * larger_chunks} or more"
        )
    if min_bytes > max_bytes:
        raise InputError(
            f"{plan.name} serves {least_bytes} bytes or more, but the offsets of an execution plan of its chunks fit "
            f"their 32 bits up to {max_bytes * larger_chunks // counted}"
        )
    plan.min_bytes, plan.max_bytes = min(min_bytes, MAX_MIN_BYTES), min(high or max_bytes, max_bytes)


def goal_of(plan: ExecutionPlan, root: int = 0) -> Goal | None:
    """Return the goal of the plan's collective, in place or out of place as the plan says; None if its name is unknown.

    In a plan of pairs (see `has_pairs`), rank r sends to rank r + root + 1. In a plan with translations, the goal has
    the cells of the representatives only.

    Raises:
        InputError: The chunks cannot be divided into as many blocks as ranks, or the goal has too many cells.
    """
    nranks = len(plan.gpus)
    if has_pairs(plan):
        return _sent_on(plan, root + 1)
    owners = images_of(plan.translations, nranks).representatives.tolist() if plan.translations else None
    return goal_for(collective_of(plan), nranks, chunks_of(plan), plan.inplace, root, owners)


def has_pairs(plan: ExecutionPlan) -> bool:
    """Return True for a plan that sends each rank's input to one other rank; the plan does not say to which.

    It is a plan of sendrecv, out of place, whose inputs and outputs all have one size.
    """
    sizes = {(gpu.input_chunks, gpu.output_chunks) for gpu in plan.gpus}
    return plan.collective == "sendrecv" and not plan.inplace and len(sizes) == 1 and len(set(*sizes)) == 1


def _sent_on(plan: ExecutionPlan, distance: int) -> Goal:
    """Return the goal that each rank receives, in its output, the input of the rank `distance` before it, cyclically.

    Raises:
        InputError: The goal has too many cells.
    """
    n, chunks = len(plan.gpus), plan.gpus[0].input_chunks
    if n * chunks > CAPACITY.plan_cells:
        raise InputError(f"plan of more than {CAPACITY.plan_cells} cells; it must be at most that to be checked")
    rank, chunk = np.repeat(np.arange(n), chunks).tolist(), list(range(chunks)) * n
    initial = (rank, ["i"] * len(rank), chunk, rank, chunk)
    source = [(receiver - distance) % n for receiver in rank]
    return Goal.from_arrays(n, initial, (rank, ["o"] * len(rank), chunk, source, chunk))


def sizes_of(plan: ExecutionPlan, rank: int) -> tuple[int, int]:
    """Return the (input, output) chunks that the collective gives a rank out of place, with root 0.

    Raises:
        InputError: The chunks cannot be divided into as many blocks as ranks.
    """
    return buffer_sizes(collective_of(plan), len(plan.gpus), chunks_of(plan), rank, 0)


@dataclass(slots=True)
class Memory:
    """The cells of all ranks under a plan.

    Every chunk is `units` cells; in a plan with packets, scratch has twice as many. Double scratch has two halves of
    equal size; `cell` returns cells of the lower half.

    Attributes:
        plan: The plan.
        units: Cells of a chunk.
        base: First cell of the buffers i, o and s of each rank; with images those of its representative.
        first: First cell of each rank that has cells of its own, and the end of all cells.
        owners: The ranks that have cells of their own: all, or the representatives.
        images: Images of the buffers, if the plan has translations; else None.
        iteration: Cells that an iteration of a pipeline moves, by (bytes of an iteration, chunks of all iterations).
        is_checked: Whether contents of cells are looked at, so that the cells that are moved may not be too many.
    """

    plan: ExecutionPlan
    units: int
    base: list[dict[str, int]]
    first: list[int]
    owners: list[int]
    images: BufferImages | None = None
    iteration: Mapping[tuple[int, int], int] = field(default_factory=dict)
    is_checked: bool = True

    def cell(self, rank: int, kind: str, index: int, packet: bool) -> int:
        """Return the first cell of chunk `index` of a rank's buffer `kind` (i, o or s), or of packet `index` there.

        A packet has two cells for each cell of its data. With images, it is the cell of the rank's representative.
        """
        if self.images is not None:
            index = self.images.place_of_representative(rank, kind, index)
        return self.base[rank][kind] + index * self.units * (2 if packet else 1)

    def first_cells(self, chunks: tuple[Column, Column, Column]) -> Ints:
        """Return the first cell of each of some chunks, which are not packets, shape (n,).

        Args:
            chunks: Rank, buffer (its position in BUFFERS) and index of each chunk, each of shape (n,).
        """
        ranks, buffers, index = chunks
        if self.images is not None:
            rows = zip(ranks.tolist(), buffers.tolist(), index.tolist(), strict=True)
            return np.array([self.cell(rank, BUFFERS[code], at, False) for rank, code, at in rows], dtype=np.int64)
        base = np.array([[of_rank[buffer] for buffer in BUFFERS] for of_rank in self.base], dtype=np.int64)
        first: Ints = base[ranks, buffers] + index * self.units
        return first

    def half(self, rank: int) -> int:
        """Return the number of scratch cells that a rank uses in one launch: with double scratch, one part of two."""
        return self.plan.gpus[rank].scratch_chunks * self.units * (2 if self.plan.packets else 1)

    def rank(self, cell: int) -> int:
        """Return the rank to which a cell belongs; with images, that is a representative."""
        return self.owners[bisect_right(self.first, cell) - 1]

    def in_scratch(self, cell: int) -> bool:
        """Return True if a cell is in some rank's scratch."""
        return cell >= self.base[self.rank(cell)]["s"]

    def name(self, cell: int, packet: bool = False) -> tuple[str, int]:
        """Return (buffer, index in chunks) of a cell; the larger buffer if i and o share the cell.

        With `packet`, a cell of scratch is taken for part of a packet, and the index counts packets. Both halves of
        double scratch have the same names.
        """
        rank = self.rank(cell)
        gpu, base = self.plan.gpus[rank], self.base[rank]
        for kind, chunks in sorted((("i", gpu.input_chunks), ("o", gpu.output_chunks)), key=lambda x: -x[1]):
            if base[kind] <= cell < base[kind] + chunks * self.units:
                return kind, (cell - base[kind]) // self.units
        return "s", (cell - base["s"]) % max(1, self.half(rank)) // (self.units * (2 if packet else 1))


def memory_of(plan: ExecutionPlan, goal: Goal | None, cut: tuple[int, int] = (0, 0)) -> Memory:
    """Build the memory of a plan; input and output are separate unless the goal says how they share memory.

    With translations, only representatives have cells of their own.

    Args:
        plan: The plan.
        goal: Its goal, or None.
        cut: (parts of a chunk, parts that an iteration moves) of the pipelines whose iterations move most bytes, as for
            messages of some size; (0, 0) for as many iterations as show all that can happen at any size.

    Raises:
        InputError: The plan has too many cells.
    """
    units, iteration = _cuts(plan, cut)
    base, first, at = dict[int, dict[str, int]](), [], 0
    images = images_of_buffers(plan)
    owners = list(range(len(plan.gpus))) if images is None else images.images.representatives.tolist()
    for rank in owners:
        gpu = plan.gpus[rank]
        shift = goal.o_in_i[rank] if goal is not None else None
        first.append(at)
        if shift is None:
            i_at, o_at = at, at + gpu.input_chunks * units
        else:
            i_at = at + max(0, -shift) * units
            o_at = i_at + shift * units
        s_at = max(i_at + gpu.input_chunks * units, o_at + gpu.output_chunks * units)
        base[rank] = {"i": i_at, "o": o_at, "s": s_at}
        at = s_at + gpu.scratch_chunks * units * (2 if plan.packets else 1) * (2 if plan.double else 1)
        if at > CAPACITY.plan_cells:
            raise InputError(f"plan of more than {CAPACITY.plan_cells} cells; it must be at most that to be checked")
    first.append(at)
    representative = owners if images is None else images.images.representative.tolist()
    return Memory(
        plan,
        units,
        [base[rank] for rank in representative],
        first,
        owners,
        images,
        iteration,
        not cut[0] or plan.packets,
    )


def images_of_buffers(plan: ExecutionPlan) -> BufferImages | None:
    """Return the images of a plan's buffers, whose sizes are those of rank 0; None if it has no translations."""
    if not plan.translations:
        return None
    sizes = plan.gpus[0].input_chunks, plan.gpus[0].output_chunks
    return buffer_images(plan.translations, len(plan.gpus), chunks_of(plan), sizes)


def input_block(plan: ExecutionPlan) -> int:
    """Return the chunks of a block of the input that a call out of place has; 0 if translations keep its order."""
    return block_of_input(collective_of(plan), plan.translations, len(plan.gpus), chunks_of(plan))


def _cuts(plan: ExecutionPlan, cut: tuple[int, int]) -> tuple[int, dict[tuple[int, int], int]]:
    """Return the cells of a chunk, and `Memory.iteration`; threadblock groups divide chunks evenly.

    The arguments are those of `memory_of`. If `cut` is (0, 0), every pipeline runs twice or more. Pipelines with equal
    bytes an iteration then have equal numbers of iterations only if they move as many chunks: others have different
    numbers at some message sizes.

    Raises:
        InputError: The cells of a chunk are more than CAPACITY.plan_cells.
    """
    pipelines, groups = set[tuple[int, int]](), {1}
    for *_, op in plan.ops():
        groups.add(op.group[1])
        if op.name == "pipeline":
            pipelines.add((op.unit_bytes, op.unit_chunks))
    units, sizes = math.lcm(*groups), {unit_bytes for unit_bytes, _ in pipelines}
    if not pipelines:
        return units, {}
    if cut[0]:
        cells = {p: max(1, units * cut[1] * p[0] // max(sizes)) for p in pipelines}
        return units * cut[0], cells
    if len(sizes) > 1:
        cells = {p: p[0] // math.gcd(*sizes) * units for p in pipelines}
        units *= 2 * max(sizes) // math.gcd(*sizes)
    else:
        while (widths := _unlike_iterations([chunks * units for _, chunks in sorted(pipelines)])) is None:
            units *= 2
        cells = dict(zip(sorted(pipelines), widths, strict=True))
    if units > CAPACITY.plan_cells:
        raise InputError(
            f"plan whose groups and pipelines cut a chunk into {units}; it must be at most {CAPACITY.plan_cells}"
        )
    return units, cells


def _unlike_iterations(cells: Sequence[int]) -> list[int] | None:
    """Return how many cells an iteration of each pipeline moves, so that all run twice or more, and never as often.

    Return None if that is not possible. `cells` is how many each moves in all, ascending.
    """
    widths, used = list[int](), {1}
    for count in cells:
        width = next((w for w in range(-(-count // 2), 0, -1) if -(-count // w) not in used), 0)
        if not width:
            return None
        widths.append(width)
        used.add(-(-count // width))
    return widths


def buffer_of(plan: ExecutionPlan, rank: int, tb: int, part: PlanPart, channel_type: str) -> list[tuple[int, str]]:
    """Return the (rank, buffer) pairs of a part of an operation; a switch channel has one for each of its ranks.

    Args:
        plan: The plan.
        rank: Rank of the operation.
        tb: Its threadblock.
        part: The part.
        channel_type: Type of the operation's channels, which tells the list of remote buffers that `part` counts in.
    """
    if part.side == "L":
        return [(rank, str(part.at))]
    gpu = plan.gpus[rank]
    block = gpu.blocks[tb]
    if part.side == "R":
        remote = gpu.buffers[block.buffers[channel_type][int(part.at)]]
        return [(remote.rank, remote.kind)]
    kind, ranks = gpu.switches[block.channels["switch"][int(part.at)]]
    return [(member, kind) for member in ranks]
