"""Several calls of a collective as one, whose blocks hold a part for each: as fast as one, however small they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

Tensor: TypeAlias = Any


class Coalesced(NamedTuple):
    """One of several calls that are made as one: its arguments, and the tensors that it reads and writes.

    A side is one tensor, or one for each rank. whole: whether it can be part of another call.
    """

    arguments: Sequence[Any]
    given: Sequence[Tensor]
    written: Sequence[Tensor]
    whole: bool = True


def group_calls(calls: Sequence[Coalesced]) -> list[list[Coalesced]]:
    """Tell which calls can be one, in the order of their first ones: by what is the same on all ranks alone."""
    groups: dict[Any, list[Coalesced]] = {}
    for number, call in enumerate(calls):
        groups.setdefault(_kind(call) or number, []).append(call)
    return list(groups.values())


def _kind(call: Coalesced) -> Any:
    """Give the type that calls must share to be one; None where this one must be alone."""
    first, every = call.given[0], [*call.given, *call.written]
    alike = all(t.layout == torch.strided and t.dtype == first.dtype and t.device.type == "cpu" for t in every)
    return first.dtype if call.whole and alike and first.numel() else None


def pack(calls: Sequence[Coalesced], given: int, written: int) -> tuple[Tensor, Tensor, Callable[[], None]]:
    """Make the input and the output of one call for all, and what puts that output into theirs.

    given, written: how many blocks a side has. The output is the input where both have one.
    """
    rows = [torch.cat([t.reshape(-1) for t in call.given]).view(given, -1) for call in calls]
    tensor = torch.cat(rows, 1).view(-1)
    sizes = [sum(t.numel() for t in call.written) // written for call in calls]
    output = tensor if given == written == 1 else tensor.new_empty(written * sum(sizes))

    def unpack() -> None:
        for call, values in zip(calls, output.view(written, -1).split(sizes, 1), strict=True):
            for made, value in zip(call.written, values if len(call.written) > 1 else [values], strict=True):
                made.copy_(value.reshape(made.shape))

    return tensor, output, unpack
