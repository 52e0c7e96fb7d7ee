"""Ranks that compare notes: what their choices depend on, and before calls, where that was asked for, the calls."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch

from topologies.errors import InputError

_ROOM = 200  # bytes of a call's description


def _gathered(inner: Any, mine: Any, size: int) -> list[Any]:
    """Everybody's copy of a small tensor, over the wrapped back end."""
    every = [torch.empty_like(mine) for _ in range(size)]
    inner.allgather([every], [mine]).wait()
    return every


def same_choices(inner: Any, said: str, fault: str | None, ranks: Sequence[int]) -> None:
    """Make sure that all ranks will choose alike.

    said: all that this rank's choices depend on. fault: why it cannot choose at all. Raises InputError on every rank
    where they differ or one of them has a fault.
    """
    mine = torch.tensor([zlib.crc32(said.encode()), int(fault is not None)], dtype=torch.int64)
    every = [tuple(row.tolist()) for row in _gathered(inner, mine, len(ranks))]
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


def agree(inner: Any, told: str, ranks: Sequence[int]) -> None:
    """Compare what is called. Raises RuntimeError, the same on every rank, where it differs."""
    text = told.encode()[:_ROOM].ljust(_ROOM)
    every = _gathered(inner, torch.frombuffer(bytearray(text), dtype=torch.uint8), len(ranks))
    calls = [bytes(row.tolist()).rstrip().decode("utf-8", "replace") for row in every]
    _compare(dict(zip(ranks, calls, strict=True)))


def _compare(calls: dict[int, str]) -> None:
    first = next(iter(calls))
    for rank, call in calls.items():
        if call != calls[first]:
            raise RuntimeError(
                f"rank {rank} calls {call}, rank {first} calls {calls[first]}; it must be the same on all ranks"
            )
