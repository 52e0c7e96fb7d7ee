"""Define what the core needs from the back end that moves its bytes: messages between two ranks, and small gathers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import torch

OWN_TAG = (1 << 30) - 1  # Above callers' tags and below those of schedules: nobody waits for a message with this tag.
CLOSED_BY_US = "Application timeout caused pair closure"  # Gloo's error of a wait that `close_all` has ended.


class Messages(Protocol):
    """The message operations of a group; a back end of c10d has them as it is.

    Each method returns an object with `wait()` and `wait(timedelta)`, which raise RuntimeError when a message cannot
    come or when the time is up. Peers are places in the group.
    """

    def send(self, tensors: list[Any], peer: int, tag: int) -> Any:
        """Start to send the one contiguous tensor in `tensors` to the place `peer`; return an object to wait for."""

    def recv(self, tensors: list[Any], peer: int, tag: int) -> Any:
        """Start to receive into the one contiguous tensor in `tensors` from the place `peer`; return what to wait for.

        Messages of one peer and tag arrive in the order of sending.
        """

    def allgather(self, outputs: Sequence[list[Any]], inputs: list[Any]) -> Any:
        """Start to gather the one small tensor in `inputs` of each rank; return an object to wait for.

        outputs[0] has one tensor per rank, in the order of places, which is written.
        """


def any_closed(messages: Messages, peers: Iterable[int]) -> bool:
    """Return True if the connection to any of these peers is closed; it sends each a message that nobody takes."""
    try:
        for peer in peers:
            messages.send([torch.zeros(1)], peer, OWN_TAG)
    except RuntimeError:
        return True
    return False


def close_all(messages: Messages, peers: Iterable[int]) -> None:
    """Stop all waits for these peers, except for messages that have arrived in part, by closing all connections.

    The group's messages cannot be used any more. `peers` are places in the group; each takes up to 1 ms.
    """
    for peer in peers:
        with suppress(RuntimeError):  # Gloo closes all connections of a group when a wait takes too long.
            messages.recv([torch.zeros(1)], peer, OWN_TAG).wait(timedelta(milliseconds=1))


def error_text(error: BaseException) -> str:
    """Return the first line of an error of the wrapped back end, without the place in its source and its advice.

    An error without a message gives the name of its class.
    """
    text = str(error).strip() or type(error).__name__
    return re.sub(r"^\[[^]]*:\d+\] ", "", text.splitlines()[0]).split(". This is typically")[0]
