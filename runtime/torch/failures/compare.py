"""Checks between ranks: that their choices depend on the same and, where asked for, that they call the same."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch

from runtime.torch.messages import Messages
from topologies.errors import InputError

_CALL_BYTES = 200  # bytes of a call's description


def _gather(messages: Messages, mine: Any, size: int) -> list[Any]:
    """Everybody's copy of a small tensor, over the group's messages."""
    every = [torch.empty_like(mine) for _ in range(size)]
    messages.allgather([every], [mine]).wait()
    return every


def check_same_choices(messages: Messages, basis: str, fault: str | None, ranks: Sequence[int]) -> None:
    """Make sure that all ranks will choose the same.

    basis: all that this rank's choices depend on. fault: why it cannot choose at all. Raises InputError on every rank
    where they differ or one of them has a fault.
    """
    mine = torch.tensor([zlib.crc32(basis.encode()), int(fault is not None)], dtype=torch.int64)
    every = [tuple(row.tolist()) for row in _gather(messages, mine, len(ranks))]
    if fault is not None:
        raise InputError(fault)
    for rank, (code, faulty) in zip(ranks, every, strict=True):
        if faulty:
            raise InputError(f"rank {rank} cannot read what SYNTH_BACKEND, SYNTH_LIBRARY or SYNTH_TABLE name")
        if code != every[0][0]:
            raise InputError(
                f"rank {rank} has another SYNTH_BACKEND, SYNTH_LIBRARY, SYNTH_TABLE or SYNTH_CHECK than rank"
                f" {ranks[0]}, or other files under these names; it must be the same on all ranks"
            )


def check_same_call(messages: Messages, call: str, ranks: Sequence[int]) -> None:
    """Compare what is called. Raises RuntimeError, the same on every rank, where it differs."""
    text = call.encode()[:_CALL_BYTES].ljust(_CALL_BYTES)
    every = _gather(messages, torch.frombuffer(bytearray(text), dtype=torch.uint8), len(ranks))
    calls = [bytes(row.tolist()).rstrip().decode("utf-8", "replace") for row in every]
    for rank, other in zip(ranks, calls, strict=True):
        if other != calls[0]:
            raise RuntimeError(different_calls(rank, other, ranks[0], calls[0]))


def different_calls(rank: int, call: str, other: int, others: str) -> str:
    """The message where two ranks do not call the same."""
    return f"rank {rank} calls {call}, rank {other} calls {others}; it must be the same on all ranks"
