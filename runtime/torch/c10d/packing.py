"""Pack several calls of a collective into one call whose blocks hold a part of each: as fast as a single small call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

Tensor: TypeAlias = Any
# Most bytes of a rank's inputs in a packed call. A message of this size takes far longer than what a call costs.
MOST_BYTES = 32 << 20


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


def group_calls(calls: Sequence[Coalesced], most_bytes: int = MOST_BYTES) -> list[list[Coalesced]]:
    """Return the calls in groups that can each be one call, of one element type, in the order of their first calls.

    A call that must stay separate is a group of its own, and so is one that is larger than the limit. Only facts are
    used that are the same on all ranks.

    Args:
        calls: The calls.
        most_bytes: Most bytes of the inputs of a group of more than one call on this rank.
    """
    groups: list[list[Coalesced]] = []
    open_groups: dict[Any, tuple[list[Coalesced], int]] = {}  # By kind, the last group of it, and its bytes.
    for call in calls:
        kind, size_bytes = _kind(call), sum(tensor.nbytes for tensor in call.inputs if tensor.layout == torch.strided)
        group, group_bytes = open_groups.get(kind, ([], 0))
        if kind is None or not group or group_bytes + size_bytes > most_bytes:
            group, group_bytes = [], 0
            groups.append(group)
        group.append(call)
        if kind is not None:
            open_groups[kind] = group, group_bytes + size_bytes
    return groups


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
    rows = [
        (call.inputs[0] if len(call.inputs) == 1 else torch.cat([t.reshape(-1) for t in call.inputs])).reshape(
            input_blocks, -1
        )
        for call in calls
    ]
    tensor = torch.cat(rows, 1).view(-1)
    sizes = [sum(t.numel() for t in call.outputs) // output_blocks for call in calls]
    output = tensor if input_blocks == output_blocks == 1 else tensor.new_empty(output_blocks * sum(sizes))

    def unpack() -> None:
        """Write the values of the packed output into the outputs of all calls."""
        targets, sources = [], []
        for call, values in zip(calls, output.view(output_blocks, -1).split(sizes, 1), strict=True):
            blocks = values if len(call.outputs) > 1 else [values]
            for target, value in zip(call.outputs, blocks, strict=True):
                targets.append(target)
                sources.append(value.reshape(target.shape))
        torch._foreach_copy_(targets, sources)

    return tensor, output, unpack


def fuse(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], output_blocks: int, input_blocks: int
) -> tuple[Tensor, Tensor, Callable[[], None]] | None:
    """Return what `pack` returns, for calls of one contiguous output and one contiguous input each, in less time.

    It is None if the calls must be looked at: their tensors are of several types, empty, not plain tensors on the CPU,
    of sizes that do not fit each other, larger than MOST_BYTES, or outputs share memory.

    Args:
        outputs: The output of each call.
        inputs: The input of each call.
        output_blocks: Number of blocks of an output.
        input_blocks: Number of blocks of an input.
    """
    if len(inputs) != len(outputs):
        return None
    kind = inputs[0].dtype
    for tensor in (*outputs, *inputs):
        if not (
            type(tensor) is torch.Tensor
            and tensor.is_cpu
            and tensor.dtype is kind
            and tensor.layout is torch.strided
            and tensor.is_contiguous()
            and not tensor.is_neg()
            and not tensor.is_conj()
        ):
            return None
    sizes = [tensor.numel() // input_blocks for tensor in inputs]
    if (
        not all(sizes)
        or any(size * input_blocks != tensor.numel() for size, tensor in zip(sizes, inputs, strict=True))
        or any(size * output_blocks != tensor.numel() for size, tensor in zip(sizes, outputs, strict=True))
        or sum(sizes) * input_blocks * inputs[0].element_size() > MOST_BYTES
        or len({tensor.data_ptr() for tensor in outputs}) != len(outputs)
    ):
        return None
    with torch.no_grad():
        tensor = torch.cat([tensor.view(input_blocks, -1) for tensor in inputs], 1).view(-1)
    output = tensor.new_empty(output_blocks * sum(sizes))

    def unpack() -> None:
        """Write the values of the packed output into the outputs of all calls."""
        targets = [target.data.view(output_blocks, -1) for target in outputs]  # Autograd does not see these writes.
        torch._foreach_copy_(targets, output.view(output_blocks, -1).split(sizes, 1))

    return tensor, output, unpack
