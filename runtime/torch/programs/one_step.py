"""Run all-reduces in which each rank sends its data to all others, so that all ranks get the same bits.

The program adds on each rank in another order: its own data first, then what comes. Sums of floating-point numbers
depend on the order, so replicas of a model would drift apart in their last bits. Here each rank keeps the contributions
apart and reduces them in the order of ranks. The built-in all-reduces need no such care: they reduce each chunk on one
rank, and copy the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from runtime.torch.programs.rank_program import RankProgram
from runtime.torch.programs.transport import Started, Transport

Tensor: TypeAlias = Any


def run_one_step(
    part: RankProgram,
    input_tensor: Tensor,
    output_tensor: Tensor,
    spans: Sequence[int],
    reduce: Any,
    transport: Transport,
) -> None:
    """Run a rank's part of a program with `is_one_step`, and reduce the contributions in the order of its ranks.

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
