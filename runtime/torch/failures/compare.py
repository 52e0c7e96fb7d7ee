"""Check between ranks that their choices depend on the same settings and, if wanted, that they make the same calls."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from runtime.torch.messages import Messages
from topologies.errors import InputError

_SETTINGS = "SYNTH_BACKEND, SYNTH_LIBRARY, SYNTH_TABLE, SYNTH_TOPOLOGY"
_CALL_BYTES = 200  # Bytes of a rank's text, such as a call's description, that other ranks get.


def _gather(messages: Messages, tensor: Any, size: int) -> list[Any]:
    """Return a list of all ranks' copies of a small tensor, by place; `size` is the number of ranks."""
    tensors = [torch.empty_like(tensor) for _ in range(size)]
    messages.allgather([tensors], [tensor]).wait()
    return tensors


def check_same_choices(messages: Messages, basis: str, fault: str | None, ranks: Sequence[int]) -> None:
    """Check that all ranks will make the same choices.

    Args:
        messages: Messages of the group.
        basis: Text of everything that this rank's choices depend on.
        fault: Why this rank cannot choose at all, or None.
        ranks: Ranks of the group, as the job numbers them.

    Raises:
        InputError: The bases differ, or a rank has a fault; every rank raises it, a rank with a fault its own.
    """
    digest = hashlib.sha256(basis.encode()).digest()
    summary = torch.tensor([int(fault is not None), *digest], dtype=torch.uint8)
    summaries = [row.tolist() for row in _gather(messages, summary, len(ranks))]
    if fault is not None:
        raise InputError(fault)
    for rank, (faulty, *digest_of_rank) in zip(ranks, summaries, strict=True):
        if faulty:
            raise InputError(f"rank {rank} cannot use {_SETTINGS} (its own error says why)")
        if digest_of_rank != summaries[0][1:]:
            raise InputError(
                f"rank {rank} has another {_SETTINGS} or SYNTH_CHECK than rank {ranks[0]}, or other files under these"
                " names; it must be the same on all ranks"
            )


def gather_texts(messages: Messages, text: str, ranks: Sequence[int]) -> list[str]:
    """Return the texts of all ranks, by place; of each only the first 200 bytes are sent."""
    data = text.encode()[:_CALL_BYTES].ljust(_CALL_BYTES)
    rows = _gather(messages, torch.frombuffer(bytearray(data), dtype=torch.uint8), len(ranks))
    return [bytes(row.tolist()).rstrip().decode("utf-8", "replace") for row in rows]


def check_same_call(messages: Messages, call: str, ranks: Sequence[int]) -> None:
    """Check that all ranks make the same call; of its text `call` only the first 200 bytes are compared.

    `ranks` has the ranks of the group, as the job numbers them.

    Raises:
        RuntimeError: The calls differ; every rank raises the same error.
    """
    calls = gather_texts(messages, call, ranks)
    for rank, call_of_rank in zip(ranks, calls, strict=True):
        if call_of_rank != calls[0]:
            raise RuntimeError(different_calls(rank, call_of_rank, ranks[0], calls[0]))


def different_blocks(giver: int, sent: int, taker: int, expected: int) -> str:
    """Return the message about a rank that sends another one so many elements, where that rank expects others."""
    return f"rank {giver} sends rank {taker} {sent} elements; it must be {expected}, as many as that rank expects"


def different_calls(rank: int, call: str, other_rank: int, other_call: str) -> str:
    """Return the message about two ranks that make different calls."""
    return f"rank {rank} calls {call}, rank {other_rank} calls {other_call}; it must be the same on all ranks"
