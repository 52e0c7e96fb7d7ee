"""Run all-reduces in which each rank sends its data to all others, so that all ranks get the same bits.

The program adds on each rank in another order: its own data first, then what comes. Sums of floating-point numbers
depend on the order, so replicas of a model would drift apart in their last bits. Here each rank keeps the contributions
apart and reduces them in the order of ranks. Other all-reduces reduce each chunk on one rank and copy the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from emit.columns import Columns
from emit.program import OPS, WRITES_DST, Program
from runtime.torch.programs.transport import Started, Transport

if TYPE_CHECKING:
    from runtime.torch.programs.rank_program import RankProgram

Tensor: TypeAlias = Any


def exchanges_inputs(
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


def run_one_step(
    part: RankProgram,
    input_tensor: Tensor,
    output_tensor: Tensor,
    spans: Sequence[int],
    reduce: Any,
    transport: Transport,
) -> None:
    """Run a rank's part of a program that `exchanges_inputs`, and reduce the contributions in the order of its ranks.

    Args:
        part: The rank's part.
        input_tensor: Contiguous input in one dimension.
        output_tensor: Output likewise, which is written; it may be the input.
        spans: First element of each chunk, and the end of the last.
        reduce: Reduces two tensors.
        transport: Messages of the call.

    Raises:
        RuntimeError: A message did not come.
    """
    ranks = range(part.program.nranks)
    rank_of_place = {place: rank for rank, place in enumerate(part.order or ranks)}
    own_values = input_tensor.clone() if part.inplace else input_tensor  # The output is written before they have gone.
    contributions = [own_values if rank == part.rank else input_tensor.new_empty(spans[-1]) for rank in ranks]
    coming: list[list[Started]] = [[] for _ in ranks]
    sent = []
    for step in part.steps:
        if step.source is not None:
            rank = rank_of_place[step.source[0]]
            room = contributions[rank][spans[step.lengths[0]] : spans[step.lengths[-1] + 1]]
            coming[rank].append(transport.receive(room, *step.source))
    for step in part.steps:
        if step.target is not None:
            values = own_values[spans[step.lengths[0]] : spans[step.lengths[-1] + 1]]
            sent.append(transport.send(values, *step.target))
    for rank in ranks:
        for message in coming[rank]:
            transport.finish(message)
        if rank:
            reduce(output_tensor, contributions[rank], out=output_tensor)
        else:
            output_tensor.copy_(contributions[0])
    for message in sent:
        transport.finish(message, "sends to")
