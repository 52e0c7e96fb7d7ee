"""What ranks tell one another: that they have come, and of blocks of which each knows its own only.

Collectives of the wrapped back end must be begun in one order on all ranks, and a group's tasks run beside its caller:
here are messages only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from runtime.torch.blocks import Blocks
from runtime.torch.run import MAX_CHANNELS, Transport
from topologies.errors import InputError

Tensor: TypeAlias = Any
_UNEVEN = -1


def _gather_numbers(transport: Transport, mine: Sequence[int]) -> Tensor:
    """Everybody's numbers, equally many on each rank, a row a rank: as many messages as log₂ of the ranks (Bruck)."""
    size, me = len(transport.ranks), transport.rank
    every = torch.empty(size, len(mine), dtype=torch.int64)
    every[0] = torch.tensor(mine)
    known = 1
    while known < size:
        count, channel = min(known, size - known), MAX_CHANNELS - known.bit_length()
        comes = transport.receive(every[known : known + count], (me + known) % size, channel)
        goes = transport.send(every[:count], (me - known) % size, channel)
        transport.finish(comes)
        transport.finish(goes, "sends to")
        known += count
    return torch.roll(every, me, 0)


def wait_for_all(transport: Transport) -> None:
    """Until all ranks have come here."""
    _gather_numbers(transport, [0])


def agree_on_block(transport: Transport, blocks: Blocks) -> int | None:
    """The elements of every block on every rank; None, on every rank, where they are not all as long."""
    sizes = _gather_numbers(transport, [_UNEVEN if blocks.block is None else blocks.block]).unique().tolist()
    return sizes[0] if len(sizes) == 1 and sizes[0] != _UNEVEN else None


def exchange_sizes(transport: Transport, blocks: Blocks) -> list[list[int]]:
    """Return the elements of all blocks, by the place of who gives and of who takes them, the same on every rank.

    Raises InputError, the same on every rank, where one gives another a longer or shorter block than that takes.
    """
    size = len(transport.ranks)
    given, taken = _gather_numbers(transport, [*blocks.given, *blocks.taken]).split(size, 1)
    wrong = (given != taken.T).nonzero().tolist()
    if wrong:
        giver, taker = wrong[0]
        raise InputError(
            f"{transport.call}: rank {transport.ranks[giver]} gives rank {transport.ranks[taker]}"
            f" {int(given[giver, taker])} elements; it must be {int(taken[taker, giver])}, as that takes"
        )
    sizes: list[list[int]] = given.tolist()
    return sizes
