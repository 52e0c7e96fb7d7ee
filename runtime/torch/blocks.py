"""The tensors of a call: what a program reads and writes of them, and collectives of blocks sent one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from runtime.torch.pieces import PieceMap, Sizes
from runtime.torch.rank_program import RankProgram
from runtime.torch.run import REDUCERS, Transport, exchange, run, run_uneven
from topologies.errors import InputError

Tensor: TypeAlias = Any


def holds_values(tensor: Tensor) -> bool:
    """Return whether a tensor's memory is its values, one after the other.

    A view may have gaps, and it may negate or conjugate what its memory holds (the imaginary part of a conjugate does).
    """
    return bool(tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj())


def as_values(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy of its values where its memory does not hold them."""
    return tensor if holds_values(tensor) else tensor.resolve_neg().resolve_conj().contiguous()


def flat(tensor: Tensor) -> Tensor:
    """Return `as_values` of a tensor in one dimension."""
    return as_values(tensor).view(-1)


def write_back(tensor: Tensor, values: Tensor) -> None:
    """Put `flat`'s values into the tensor where they are a copy."""
    if not holds_values(tensor):
        tensor.copy_(values.view(tensor.shape))


def _overlaps_itself(tensor: Tensor) -> bool:
    """Whether two elements are one place in memory."""
    return any(size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


@dataclass(slots=True)  # not frozen: made with every call, in a third of the time
class Buffers:
    """What a call reads and writes on this rank."""

    given: Sequence[Tensor]  # one after the other a program's input; empty where this rank has none
    written: Sequence[Tensor]  # its output likewise
    block: int  # elements, as in `Layout`
    blocks: int = 1  # that the message's size counts
    in_place: bool = False  # input and output are the same tensor

    @property
    def size_bytes(self) -> int:
        """Of the message."""
        return int(self.block * self.blocks * (self.written or self.given)[0].element_size())

    @property
    def tensors(self) -> list[Tensor]:
        """All of them, an output first where there is one."""
        return [*self.written, *self.given]

    @property
    def are_plain(self) -> bool:
        """Whether they are dense tensors of one type on one device."""
        first, *others = self.tensors
        return first.layout == torch.strided and all(
            t.layout == torch.strided and t.device == first.device and t.dtype == first.dtype for t in others
        )

    def check_outputs(self, collective: str) -> None:
        """Raises InputError for an output whose elements share memory."""
        for tensor in self.written:
            if tensor.layout == torch.strided and _overlaps_itself(tensor):
                raise InputError(
                    f"{collective}: several elements of an output of shape {list(tensor.shape)} are one place"
                    " in memory; it must be a tensor of its own, as by .contiguous()"
                )

    def execute(self, part: RankProgram, op: str, transport: Transport) -> None:
        """Run this rank's part of a program on them. op: as in `run`, whose errors it raises."""
        given = made = None
        if self.given:
            given = flat(self.given[0]) if len(self.given) == 1 else torch.cat([flat(t) for t in self.given])
        if self.in_place:
            made = given if self.written else None
        elif len(self.written) == 1:
            made = flat(self.written[0])
        elif self.written:
            made = self.written[0].new_empty(sum(tensor.numel() for tensor in self.written))
        if part.order is None:
            run(part, given, made, self.block, op, transport)
        else:
            self._run_in_order(part, part.order, given, made, op, transport)
        if len(self.written) == 1:
            write_back(self.written[0], made)
        elif made is not None:
            for tensor, values in zip(self.written, made.split([t.numel() for t in self.written]), strict=True):
                tensor.copy_(values.view(tensor.shape))

    def execute_uneven(
        self, part: RankProgram, pieces: PieceMap, blocks: Blocks, sizes: Sizes, transport: Transport
    ) -> None:
        """Run this rank's part of a program on blocks of unequal sizes. sizes: those of all blocks, by place."""
        order = part.order or tuple(range(len(sizes)))
        tensors = [flat(tensor) for tensor in self.given] or [self.tensors[0].new_empty(0)]
        given = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        if part.order is not None:
            block_of_place = given.split(list(blocks.given))
            given = torch.cat([block_of_place[place] for place in order])
        sizes_in_order = [[sizes[source][target] for target in order] for source in order]
        is_direct = len(self.written) == 1 and part.order is None
        made = flat(self.written[0]) if is_direct else given.new_empty(sum(blocks.taken))
        run_uneven(part, pieces, given, made, sizes_in_order, transport)
        if is_direct:
            write_back(self.written[0], made)
        elif self.written:
            taken_in_order = made.split([blocks.taken[place] for place in order])
            whole = torch.cat([taken_in_order[order.index(place)] for place in range(len(order))])
            for tensor, values in zip(self.written, whole.split([t.numel() for t in self.written]), strict=True):
                tensor.copy_(values.view(tensor.shape))

    def _run_in_order(
        self,
        part: RankProgram,
        order: tuple[int, ...],
        given: Tensor | None,
        made: Tensor | None,
        op: str,
        transport: Transport,
    ) -> None:
        """As `run`, of a program whose ranks stand in another order, and with them a buffer's blocks for each."""

        places, whole = torch.tensor(order), len(order) * self.block
        if given is not None and given.numel() == whole:
            given = given.view(len(order), -1)[places].view(-1)
        if made is None or made.numel() != whole:
            run(part, given, made, self.block, op, transport)
            return
        theirs = torch.empty_like(made)
        run(part, given, theirs, self.block, op, transport)
        made.view(len(order), -1)[places] = theirs.view(len(order), -1)


@dataclass(frozen=True)
class Blocks:
    """One rank's blocks of a call of which other ranks may know blocks of other sizes."""

    given: Sequence[int]  # elements for each rank
    taken: Sequence[int]  # elements from each rank
    block: int | None  # elements of each of them, None where they are not all as long
    exchange: Callable[[Transport], None]  # each straight to where it belongs

    @staticmethod
    def of(parts: Sequence[Tensor | None], into: Sequence[Tensor | None]) -> Blocks:
        """parts[r] goes to rank r; into[r] comes from it. None: no block."""
        sizes = {each.numel() for each in (*parts, *into) if each is not None}
        given, taken = ([0 if each is None else each.numel() for each in every] for every in (parts, into))
        block = sizes.pop() if len(sizes) == 1 else None
        return Blocks(given, taken, block, lambda transport: exchange_blocks(transport, parts, into))


def exchange_blocks(transport: Transport, parts: Sequence[Tensor | None], into: Sequence[Tensor | None]) -> None:
    """parts[r] goes to rank r; into[r] comes from it. Of any sizes; None: no block."""
    me = transport.rank
    given, made = ([None if each is None else flat(each) for each in every] for every in (parts, into))
    own, room = given[me], made[me]
    if own is not None and room is not None:
        room.copy_(own)
    exchange(transport, given, made)
    for tensor, values in zip(into, made, strict=True):
        if tensor is not None and values is not None:
            write_back(tensor, values)


def reduce_blocks(transport: Transport, out: Tensor, parts: Sequence[Tensor], op: str) -> None:
    """Everybody's part for this rank, reduced into `out` in the order of ranks; sums for avg."""
    given = [flat(tensor) for tensor in parts]
    made = [torch.empty_like(given[transport.rank]) for _ in given]
    made[transport.rank].copy_(given[transport.rank])
    exchange(transport, given, made)
    total = made[0]
    for values in made[1:]:
        REDUCERS[op](total, values, out=total)
    out.copy_(total.view(out.shape))


def split_rows(tensor: Tensor, sizes: Sequence[int] | None, ranks: int) -> list[Tensor]:
    """Blocks of so many rows; equal ones where no sizes are given. Raises InputError where they do not add up."""
    rows = tensor.shape[0] if tensor.dim() else tensor.numel()
    wanted = list(sizes) if sizes else [rows // ranks] * ranks
    if len(wanted) != ranks or sum(wanted) != rows:
        raise InputError(f"all_to_all_single: blocks of {wanted} rows; it must be {ranks} that add up to {rows}")
    return list(tensor.split(wanted))
