"""Pack several calls of a collective into one call whose blocks hold a part of each: as fast as a single small call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

Tensor: TypeAlias = Any


class Coalesced(NamedTuple):
    """A call that may be packed with others: its arguments, and the tensors that it reads and writes.

    Attributes:
        arguments: Arguments of the method that makes the call.
        inputs: Input tensors: one, or one per rank.
        outputs: Output tensors: one, or one per rank.
        whole: Whether the call can be part of a packed call.
    """

    arguments: Sequence[Any]
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    whole: bool = True


def group_calls(calls: Sequence[Coalesced]) -> list[list[Coalesced]]:
    """Return the calls in groups that can each be one call, one per element type, in the order of their first calls.

    A call that must stay separate is a group of its own. It uses only facts that are the same on all ranks.
    """
    groups: dict[Any, list[Coalesced]] = {}
    for number, call in enumerate(calls):
        groups.setdefault(_kind(call) or number, []).append(call)
    return list(groups.values())


def _kind(call: Coalesced) -> Any:
    """Return the element type that calls must share to be packed; None if this call must stay separate.

    It must if it is not `whole`, has no elements, or has tensors that are sparse, not on the CPU, or of different
    types.
    """
    first, tensors = call.inputs[0], [*call.inputs, *call.outputs]
    are_plain = all(t.layout == torch.strided and t.dtype == first.dtype and t.device.type == "cpu" for t in tensors)
    return first.dtype if call.whole and are_plain and first.numel() else None


def pack(
    calls: Sequence[Coalesced], input_blocks: int, output_blocks: int
) -> tuple[Tensor, Tensor, Callable[[], None]]:
    """Build the input and output of one packed call, and the function that copies its output to all calls.

    Args:
        calls: Calls to pack, a group of `group_calls`.
        input_blocks: Number of blocks of an input.
        output_blocks: Number of blocks of an output.

    Returns:
        The packed input, a copy of the calls' inputs; the packed output, which is the same tensor if both have one
        block; and the function, to be called when the packed call is over. Both tensors have one dimension: for each
        block the values of all calls.
    """
    rows = [torch.cat([t.reshape(-1) for t in call.inputs]).view(input_blocks, -1) for call in calls]
    tensor = torch.cat(rows, 1).view(-1)
    sizes = [sum(t.numel() for t in call.outputs) // output_blocks for call in calls]
    output = tensor if input_blocks == output_blocks == 1 else tensor.new_empty(output_blocks * sum(sizes))

    def unpack() -> None:
        """Write the values of the packed output into the outputs of all calls."""
        for call, values in zip(calls, output.view(output_blocks, -1).split(sizes, 1), strict=True):
            for target, value in zip(call.outputs, values if len(call.outputs) > 1 else [values], strict=True):
                target.copy_(value.reshape(target.shape))

    return tensor, output, unpack
