"""Give a call's tensors to a program that reads and writes them, and send blocks one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from runtime.buffers import overlaps_itself
from runtime.torch.programs.pieces import Sizes
from runtime.torch.programs.rank_program import RankProgram
from runtime.torch.programs.run import REDUCERS, run, run_uneven
from runtime.torch.programs.transport import Transport, exchange
from topologies.errors import InputError

Tensor: TypeAlias = Any
# Sends contiguous blocks, one for each rank or None, and receives blocks into others, as `exchange` does.
Move: TypeAlias = Callable[[Transport, Sequence[Any], Sequence[Any]], None]


def holds_values(tensor: Tensor) -> bool:
    """Return True if a tensor's memory holds its values, one after the other.

    A view may have gaps, and it may negate or conjugate what its memory holds, as the imaginary part of a conjugate
    does.
    """
    return bool(tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj())


def as_values(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy of its values where its memory does not hold them."""
    return tensor if holds_values(tensor) else tensor.resolve_neg().resolve_conj().contiguous()


def flat(tensor: Tensor) -> Tensor:
    """Return `as_values` of a tensor in one dimension: a view of its memory, or a copy (see `write_back`)."""
    return as_values(tensor).view(-1)


def write_back(tensor: Tensor, values: Tensor) -> None:
    """Write the values of `flat` back into the tensor if they are a copy."""
    if not holds_values(tensor):
        tensor.copy_(values.view(tensor.shape))


@dataclass(slots=True)  # Not frozen: each call builds one, which takes a third of the time.
class Buffers:
    """The tensors that a call reads and writes on this rank.

    Attributes:
        inputs: Tensors that form a program's input, one after the other; empty if this rank has none.
        outputs: Tensors that form its output, likewise.
        block: Elements of a block, as in `Layout`.
        blocks: Number of blocks that the size of the message counts.
        in_place: Whether input and output are the same tensor.
    """

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    block: int
    blocks: int = 1
    in_place: bool = False

    @property
    def size_bytes(self) -> int:
        """Return the size of the message in bytes: `blocks` blocks of `block` elements of the first tensor's type."""
        return int(self.block * self.blocks * (self.outputs or self.inputs)[0].element_size())

    @property
    def tensors(self) -> list[Tensor]:
        """Return all outputs, then all inputs; a tensor that is both is listed twice."""
        return [*self.outputs, *self.inputs]

    @property
    def are_plain(self) -> bool:
        """Return True if all tensors are dense, of one type and on one device."""
        first, *further_tensors = self.tensors
        return first.layout == torch.strided and all(
            t.layout == torch.strided and t.device == first.device and t.dtype == first.dtype for t in further_tensors
        )

    def check_outputs(self, collective: str) -> None:
        """Raise InputError, which begins with `collective`, if elements of a dense output share memory."""
        for tensor in self.outputs:
            if tensor.layout != torch.strided or tensor.is_contiguous():  # The second is fast, and usual.
                continue
            if overlaps_itself(tensor.shape, tensor.stride()):
                raise InputError(
                    f"{collective}: elements of an output of shape {list(tensor.shape)} share one place in memory;"
                    " it must be a tensor with its own memory, such as .contiguous() returns"
                )

    def execute(self, part: RankProgram, op: str, transport: Transport) -> None:
        """Run this rank's part of a program on these tensors until its messages are sent and received.

        The outputs are written, whatever their shape.

        Args:
            part: The rank's part.
            op: A key of REDUCERS; avg leaves sums.
            transport: Messages of the call.

        Raises:
            InputError: The part cannot run on blocks of `block` elements.
            RuntimeError: A message did not come.
        """
        input_tensor = output_tensor = None
        if self.inputs:
            input_tensor = flat(self.inputs[0]) if len(self.inputs) == 1 else torch.cat([flat(t) for t in self.inputs])
        if self.in_place:
            output_tensor = input_tensor if self.outputs else None
        elif len(self.outputs) == 1:
            output_tensor = flat(self.outputs[0])
        elif self.outputs:
            output_tensor = self.outputs[0].new_empty(sum(tensor.numel() for tensor in self.outputs))
        if part.order is None:
            run(part, input_tensor, output_tensor, self.block, op, transport)
        else:
            self._run_in_order(part, part.order, input_tensor, output_tensor, op, transport)
        if len(self.outputs) == 1:
            write_back(self.outputs[0], output_tensor)
        elif output_tensor is not None:
            self._copy_outputs(output_tensor)

    def execute_uneven(self, part: RankProgram, blocks: Blocks, sizes: Sizes, transport: Transport) -> None:
        """Run this rank's part of a program on blocks of unequal sizes, and write the outputs, whatever their shape.

        Args:
            part: The rank's part, which has a piece map.
            blocks: This rank's blocks.
            sizes: Elements of all blocks, as [giving place][taking place].
            transport: Messages of the call.

        Raises:
            RuntimeError: A message did not come.
        """
        order = part.order or tuple(range(len(sizes)))
        tensors = [flat(tensor) for tensor in self.inputs] or [self.tensors[0].new_empty(0)]
        input_tensor = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        if part.order is not None:
            block_of_place = input_tensor.split(list(blocks.sent_sizes))
            input_tensor = torch.cat([block_of_place[place] for place in order])
        sizes_in_order = [[sizes[source][target] for target in order] for source in order]
        is_direct = len(self.outputs) == 1 and part.order is None
        output_tensor = flat(self.outputs[0]) if is_direct else input_tensor.new_empty(sum(blocks.received_sizes))
        run_uneven(part, input_tensor, output_tensor, sizes_in_order, transport)
        if is_direct:
            write_back(self.outputs[0], output_tensor)
        elif self.outputs:
            output_blocks = output_tensor.split([blocks.received_sizes[place] for place in order])
            self._copy_outputs(torch.cat([output_blocks[order.index(place)] for place in range(len(order))]))

    def _copy_outputs(self, values: Tensor) -> None:
        """Copy a one-dimensional tensor, which has all outputs' elements, into the outputs, one after the other."""
        for tensor, part in zip(self.outputs, values.split([t.numel() for t in self.outputs]), strict=True):
            tensor.copy_(part.view(tensor.shape))

    def _run_in_order(
        self,
        part: RankProgram,
        order: tuple[int, ...],
        input_tensor: Tensor | None,
        output_tensor: Tensor | None,
        op: str,
        transport: Transport,
    ) -> None:
        """Run a program whose ranks have another order than the group's; it raises the errors of `run`.

        A buffer with one block per rank is reordered for the program, and its output back into the group's order.

        Args:
            part: The rank's part.
            order: Place in the group of each of the program's ranks.
            input_tensor: Contiguous input in one dimension; None if the rank has none.
            output_tensor: Output likewise, which is written.
            op: A key of REDUCERS; avg leaves sums.
            transport: Messages of the call.
        """
        places, elements_of_all = torch.tensor(order), len(order) * self.block
        if input_tensor is not None and input_tensor.numel() == elements_of_all:
            input_tensor = input_tensor.view(len(order), -1)[places].view(-1)
        if output_tensor is None or output_tensor.numel() != elements_of_all:
            run(part, input_tensor, output_tensor, self.block, op, transport)
            return
        output_in_order = torch.empty_like(output_tensor)
        run(part, input_tensor, output_in_order, self.block, op, transport)
        output_tensor.view(len(order), -1)[places] = output_in_order.view(len(order), -1)


@dataclass(frozen=True)
class Blocks:
    """The blocks of one rank in a call, in which other ranks may have blocks of other sizes.

    Attributes:
        sent_sizes: Elements that this rank sends to each rank.
        received_sizes: Elements that it receives from each rank.
        block: Elements of each block; None if they differ in length.
        exchange: Brings each block to its destination, given the messages of the call and a function that takes what
            `runtime.torch.programs.transport.exchange` takes, which sends each straight.
    """

    sent_sizes: Sequence[int]
    received_sizes: Sequence[int]
    block: int | None
    exchange: Callable[[Transport, Move], None]

    @staticmethod
    def of(parts: Sequence[Tensor | None], into: Sequence[Tensor | None]) -> Blocks:
        """Build the blocks of a call from its tensors, which may have any shape.

        Args:
            parts: For each rank the tensor that goes to it; None for no block.
            into: For each rank the tensor that comes from it, to be written by `exchange`; None for no block.
        """
        sizes = {tensor.numel() for tensor in (*parts, *into) if tensor is not None}
        sent_sizes, received_sizes = (
            [0 if tensor is None else tensor.numel() for tensor in side] for side in (parts, into)
        )
        block = sizes.pop() if len(sizes) == 1 else None
        return Blocks(
            sent_sizes, received_sizes, block, lambda transport, move: exchange_blocks(transport, parts, into, move)
        )


def exchange_blocks(
    transport: Transport, parts: Sequence[Tensor | None], into: Sequence[Tensor | None], move: Move = exchange
) -> None:
    """Send parts[r] to each rank r and receive into[r] from it, of any sizes; None stands for no block.

    Unlike for `exchange`, tensors may have any shape and gaps, and this rank's own block is copied.

    Args:
        transport: Messages of the call.
        parts: Tensor for each rank, or None.
        into: Tensor that is written for each rank, or None.
        move: Sends and receives the blocks of other ranks.

    Raises:
        RuntimeError: A message did not come.
    """
    me = transport.rank
    sent_blocks, received_blocks = (
        [None if block is None else flat(block) for block in side] for side in (parts, into)
    )
    own, room = sent_blocks[me], received_blocks[me]
    if own is not None and room is not None:
        room.copy_(own)
    move(transport, sent_blocks, received_blocks)
    for tensor, values in zip(into, received_blocks, strict=True):
        if tensor is not None and values is not None:
            write_back(tensor, values)


def gather_blocks(
    transport: Transport, tensor: Tensor, into: Sequence[Tensor], part: RankProgram | None = None
) -> None:
    """Send a tensor to all ranks, and receive into[r] from each rank r.

    Args:
        transport: Messages of the call.
        tensor: This rank's block.
        into: Tensor that is written for each rank, of any sizes.
        part: This rank's part of a program for these sizes; None to send each block straight.

    Raises:
        RuntimeError: A message did not come.
    """
    if part is None:
        exchange_blocks(transport, [tensor] * len(into), into)
        return
    sizes = [block.numel() for block in into]
    padded, gathered = (tensor.new_empty(sum(sizes)) for _ in range(2))  # A program's buffers are equally long.
    padded[: tensor.numel()] = flat(tensor)
    run(part, padded, gathered, len(padded), "sum", transport)
    for block, values in zip(into, gathered.split(sizes), strict=True):
        block.copy_(values.view(block.shape))


def reduce_blocks(
    transport: Transport, out: Tensor, parts: Sequence[Tensor], op: str, part: RankProgram | None = None
) -> None:
    """Reduce all ranks' parts for this rank into `out`; avg leaves sums.

    Args:
        transport: Messages of the call.
        out: Tensor that is written, with as many elements as this rank's own part.
        parts: This rank's part for each rank, of any sizes; they stay unchanged.
        op: A key of REDUCERS.
        part: This rank's part of a program for these sizes; None to send each part straight, and to reduce in the order
            of ranks.

    Raises:
        RuntimeError: A message did not come.
    """
    sent_parts = [flat(tensor) for tensor in parts]
    if part is not None:
        whole = torch.cat(sent_parts)
        reduced = torch.empty_like(whole)  # A program's buffers are equally long.
        run(part, whole, reduced, len(whole), op, transport)
        out.copy_(reduced[: out.numel()].view(out.shape))
        return
    received_parts = [torch.empty_like(sent_parts[transport.rank]) for _ in sent_parts]
    received_parts[transport.rank].copy_(sent_parts[transport.rank])
    exchange(transport, sent_parts, received_parts)
    total = received_parts[0]
    for values in received_parts[1:]:
        REDUCERS[op](total, values, out=total)
    out.copy_(total.view(out.shape))


def rows_fit(rows: int, sizes: Sequence[int] | None, ranks: int) -> bool:
    """Return True if rows are cut into one block for each rank by sizes, or evenly without any.

    Args:
        rows: Number of rows.
        sizes: Number of rows of each block; None or empty for equal blocks.
        ranks: Number of blocks.
    """
    return len(sizes) == ranks and sum(sizes) == rows if sizes else rows % ranks == 0


def split_rows(tensor: Tensor, sizes: Sequence[int] | None, ranks: int) -> list[Tensor]:
    """Return a tensor's rows in one block per rank, as views, of equal sizes if no sizes are given.

    Args:
        tensor: The tensor, whose rows lie along its first dimension.
        sizes: Number of rows of each block; None or empty for equal blocks.
        ranks: Number of blocks.

    Raises:
        InputError: The sizes do not add up to the number of rows, or there is not one per rank.
    """
    tensor = tensor if tensor.dim() else tensor.view(1)
    rows = tensor.shape[0]
    rows_of_rank = list(sizes) if sizes else [rows // ranks] * ranks
    if not rows_fit(rows, sizes, ranks):
        raise InputError(
            f"all_to_all_single: blocks of {rows_of_rank} rows; it must be {ranks} blocks that add up to {rows}"
        )
    return list(tensor.split(rows_of_rank))
