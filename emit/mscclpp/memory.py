"""All ranks' memory under a plan as numbered cells, and the goal that its collective implies."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from emit.check.capacity import CAPACITY
from emit.goal import Goal, buffer_sizes, goal_for
from emit.mscclpp.plan import MAX_MIN_BYTES, NO_LIMIT, OFFSET_END, Op, Part, Plan
from emit.program import COLLECTIVES
from synth.model.registry import find_kind
from topologies.errors import InputError

ALIGNMENT = 16  # bytes: what a thread moves; the executor refuses chunks of other sizes


def collective_of(plan: Plan) -> str:
    """The collective's name as Program has it; "custom" for what no name here says."""
    name = plan.collective.lower().replace("_", "")
    return name if name in COLLECTIVES else "custom"


def chunks_of(plan: Plan) -> int:
    """`nchunks_per_loop` of the program that would do the same: chunks of the whole buffer."""
    gpu = plan.gpus[0]
    return gpu.output_chunks if find_kind(collective_of(plan)).inplace == "o" else gpu.input_chunks


def counted_chunks(plan: Plan) -> int:
    """The chunks of the buffer whose bytes min_message_size and max_message_size are about."""
    gpu = plan.gpus[0]
    return gpu.output_chunks if plan.collective == "allgather" else gpu.input_chunks


def both_chunks(plan: Plan) -> int:
    """The chunks of the larger buffer."""
    return max(plan.gpus[0].input_chunks, plan.gpus[0].output_chunks)


def most_bytes(plan: Plan) -> int:
    """The most bytes of a message for which all that the executor keeps in 32 bits fits: where a span ends, and where
    packets lie in double scratch, which it sizes by the whole allocation of the input, up to max_message_size.
    """
    unit, most = plan.alignment * counted_chunks(plan), NO_LIMIT
    for gpu in plan.gpus:
        chunk_bytes = (OFFSET_END - 1) // max(gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks)
        most = min(most, chunk_bytes // plan.alignment * unit)
        if plan.packets and gpu.scratch_chunks:
            scratch = gpu.scratch_chunks * 2 * (2 if plan.double else 1)
            most = min(most, OFFSET_END // scratch * gpu.input_chunks // unit * unit)
    return most


def limit_sizes(plan: Plan, least_bytes: int, largest: int) -> None:
    """Set the sizes that a plan takes: these (0: no largest), as far as its offsets hold them; InputError: none are."""
    counted, both = counted_chunks(plan), both_chunks(plan)
    # a program's size is of the larger buffer, a plan's of the one that its reader looks at
    low, high = -(-least_bytes * counted // both), largest * counted // both
    most = most_bytes(plan)
    least = max(low, ALIGNMENT * counted)
    if largest > 0 and high < least:
        raise InputError(
            f"{plan.name} serves at most {largest} bytes, but an execution plan of {both} chunks takes "
            f"{ALIGNMENT * both} or more"
        )
    if least > most:
        raise InputError(
            f"{plan.name} serves {least_bytes} bytes or more, but an execution plan of its chunks has "
            f"offsets for at most {most * both // counted} in 32 bits"
        )
    plan.min_bytes, plan.max_bytes = min(least, MAX_MIN_BYTES), min(high or most, most)


def goal_of(plan: Plan, root: int = 0) -> Goal | None:
    """What the plan's collective asks for, in place or not as it says; None where its name says too little.

    Raises InputError where the chunks cannot be cut into as many blocks as ranks.
    """
    return goal_for(collective_of(plan), len(plan.gpus), chunks_of(plan), plan.inplace, root)


def sizes_of(plan: Plan, rank: int) -> tuple[int, int]:
    """(input, output) chunks that the collective gives a rank."""
    return buffer_sizes(collective_of(plan), len(plan.gpus), chunks_of(plan), rank, 0)


@dataclass(slots=True)
class Memory:
    """Cells of all ranks: every chunk is `units` cells, and in a plan with packets scratch has twice as many.

    Double scratch has two halves, of as many cells each; what `cell` gives is in the lower one.

    base: of each rank the cell where i, o, s begin. first: where each rank's cells begin, and the end of all.
    """

    plan: Plan
    units: int
    base: list[dict[str, int]]
    first: list[int]

    def cell(self, rank: int, kind: str, index: int, packet: bool) -> int:
        """The first cell of a chunk; a packet has two cells for each of its data's."""
        return self.base[rank][kind] + index * self.units * (2 if packet else 1)

    def half(self, rank: int) -> int:
        """Cells of the scratch that a rank uses in one launch."""
        return self.plan.gpus[rank].scratch_chunks * self.units * (2 if self.plan.packets else 1)

    def rank(self, cell: int) -> int:
        """Whose memory it is."""
        return bisect_right(self.first, cell) - 1

    def in_scratch(self, cell: int) -> bool:
        """Whether it is a cell of some rank's scratch."""
        return cell >= self.base[self.rank(cell)]["s"]

    def name(self, cell: int, packet: bool = False) -> tuple[str, int]:
        """(buffer, index in chunks), in the larger one where i and o share the cell."""
        rank = self.rank(cell)
        gpu, base = self.plan.gpus[rank], self.base[rank]
        for kind, chunks in sorted((("i", gpu.input_chunks), ("o", gpu.output_chunks)), key=lambda x: -x[1]):
            if base[kind] <= cell < base[kind] + chunks * self.units:
                return kind, (cell - base[kind]) // self.units
        return "s", (cell - base["s"]) % max(1, self.half(rank)) // (self.units * (2 if packet else 1))


def memory_of(plan: Plan, goal: Goal | None) -> Memory:
    """Lay the buffers out, apart where no goal says how in-place ones meet. Raises InputError for too many cells."""
    units = _units(plan)
    base, first, at = [], [], 0
    for rank, gpu in enumerate(plan.gpus):
        shift = goal.o_in_i[rank] if goal is not None else None
        first.append(at)
        if shift is None:
            i_at, o_at = at, at + gpu.input_chunks * units
        else:
            i_at = at + max(0, -shift) * units
            o_at = i_at + shift * units
        s_at = max(i_at + gpu.input_chunks * units, o_at + gpu.output_chunks * units)
        base.append({"i": i_at, "o": o_at, "s": s_at})
        at = s_at + gpu.scratch_chunks * units * (2 if plan.packets else 1) * (2 if plan.double else 1)
        if at > CAPACITY.plan_cells:
            raise InputError(f"plan of more than {CAPACITY.plan_cells} cells; it must be at most that to be checked")
    first.append(at)
    return Memory(plan, units, base, first)


def width(plan: Plan, op: Op) -> int:
    """Cells of one iteration of a pipeline."""
    return op.unit_bytes // math.gcd(*_unit_bytes(plan)) * _groups(plan)


def _unit_bytes(plan: Plan) -> list[int]:
    """Of every pipeline."""
    return [op.unit_bytes for *_, op in plan.ops() if op.name == "pipeline"]


def _groups(plan: Plan) -> int:
    return math.lcm(*{op.group[1] for *_, op in plan.ops()})


def _units(plan: Plan) -> int:
    """Cells of a chunk: so many that threadblock groups share evenly, and every pipeline runs twice or more."""
    units = _groups(plan)
    sizes = _unit_bytes(plan)
    if sizes:
        units *= 2 * max(sizes) // math.gcd(*sizes)
    if units > CAPACITY.plan_cells:
        raise InputError(
            f"plan whose groups and pipelines cut a chunk into {units}; it must be at most {CAPACITY.plan_cells}"
        )
    return units


def buffer_of(plan: Plan, rank: int, tb: int, part: Part, channel_type: str) -> list[tuple[int, str]]:
    """(rank, buffer) of what a part of an operation stands for: several where it is a switch channel."""
    if part.side == "L":
        return [(rank, str(part.at))]
    gpu = plan.gpus[rank]
    block = gpu.blocks[tb]
    if part.side == "R":
        remote = gpu.buffers[block.buffers[channel_type][int(part.at)]]
        return [(remote.rank, remote.kind)]
    kind, ranks = gpu.switches[block.channels["switch"][int(part.at)]]
    return [(other, kind) for other in ranks]
