"""Exchange between ranks what no rank knows on its own: that all have arrived, and the sizes of all blocks.

It uses messages only. Collectives of the wrapped back end must start in the same order on all ranks, but a group's
tasks run concurrently with their caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from runtime.torch.failures.compare import different_blocks
from runtime.torch.programs.blocks import Blocks
from runtime.torch.programs.transport import MAX_CHANNELS, Transport
from topologies.errors import InputError

Tensor: TypeAlias = Any
_UNEVEN = -1  # In place of a block's length: this rank's own blocks differ in length.


def _gather_numbers(transport: Transport, own_numbers: Sequence[int]) -> Tensor:
    """Return the numbers of all ranks as an int64 tensor of shape (ranks, numbers), in the order of places.

    Each rank gives equally many numbers, and waits until it has those of all ranks. Each rank sends ⌈log₂ n⌉ messages
    (Bruck's algorithm).

    Raises:
        MessageLost: A message did not come.
    """
    size, me = len(transport.ranks), transport.rank
    rows = torch.empty(size, len(own_numbers), dtype=torch.int64)
    rows[0] = torch.tensor(own_numbers)
    gathered = 1
    while gathered < size:
        count, channel = min(gathered, size - gathered), MAX_CHANNELS - gathered.bit_length()
        incoming = transport.receive(rows[gathered : gathered + count], (me + gathered) % size, channel)
        outgoing = transport.send(rows[:count], (me - gathered) % size, channel)
        transport.finish(incoming)
        transport.finish(outgoing, "sends to")
        gathered += count
    return torch.roll(rows, me, 0)


def wait_for_all(transport: Transport) -> None:
    """Wait until all ranks have called this function.

    Raises:
        MessageLost: A message did not come.
    """
    _gather_numbers(transport, [0])


def agree_on_block(transport: Transport, blocks: Blocks) -> int | None:
    """Return the number of elements of every block on every rank, or None on every rank if blocks differ in length.

    `blocks` are this rank's own.

    Raises:
        MessageLost: A message did not come.
    """
    sizes = _gather_numbers(transport, [_UNEVEN if blocks.block is None else blocks.block]).unique().tolist()
    return sizes[0] if len(sizes) == 1 and sizes[0] != _UNEVEN else None


def exchange_sizes(transport: Transport, blocks: Blocks) -> list[list[int]]:
    """Return the elements of all blocks as [giving place][taking place], the same on every rank.

    `blocks` are this rank's own.

    Raises:
        InputError: A rank gives another a longer or shorter block than that rank takes; the same error on every rank.
        MessageLost: A message did not come.
    """
    size = len(transport.ranks)
    sizes_sent, sizes_received = _gather_numbers(transport, [*blocks.sent_sizes, *blocks.received_sizes]).split(size, 1)
    wrong = (sizes_sent != sizes_received.T).nonzero().tolist()
    if wrong:
        giver, taker = wrong[0]
        sent, expected = int(sizes_sent[giver, taker]), int(sizes_received[taker, giver])
        text = different_blocks(transport.ranks[giver], sent, transport.ranks[taker], expected)
        raise InputError(f"{transport.call}: {text}")
    sizes: list[list[int]] = sizes_sent.tolist()
    return sizes
