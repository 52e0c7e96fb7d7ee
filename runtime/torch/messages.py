"""What the core asks of the back end that moves its bytes: messages between two ranks, and small gathers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import torch

OWN_TAG = (1 << 30) - 1  # above callers', below schedules': nobody waits for what is sent with it
CLOSED_BY_US = "Application timeout caused pair closure"  # what Gloo says of waits that `close_all` has ended


class Messages(Protocol):
    """A group's messages. A back end of c10d is one as it is.

    What is returned has `wait()` and `wait(timedelta)`, which raise RuntimeError when a message cannot come, or when
    the time is up. Peers are places in the group.
    """

    def send(self, tensors: list[Any], peer: int, tag: int) -> Any:
        """Begin to send one contiguous tensor."""

    def recv(self, tensors: list[Any], peer: int, tag: int) -> Any:
        """Begin to receive into one contiguous tensor. Messages of one peer and tag come in the order of sending."""

    def allgather(self, outputs: Sequence[list[Any]], inputs: list[Any]) -> Any:
        """Begin to gather one small tensor of every rank's into outputs[0], a tensor for each."""


def any_closed(messages: Messages, peers: Iterable[int]) -> bool:
    """Whether the connection to any of them is closed."""
    try:
        for peer in peers:
            messages.send([torch.zeros(1)], peer, OWN_TAG)
    except RuntimeError:
        return True
    return False


def close_all(messages: Messages, peers: Iterable[int]) -> None:
    """End waits for all of them, but for messages that have arrived in part: `runtime.torch.failures.apart`."""
    for peer in peers:
        with suppress(RuntimeError):  # Gloo closes all of a group's connections when a wait takes too long
            messages.recv([torch.zeros(1)], peer, OWN_TAG).wait(timedelta(milliseconds=1))


def error_text(error: BaseException) -> str:
    """The message of the wrapped back end's error, without the place in its source and its advice."""
    text = str(error).strip() or type(error).__name__
    return re.sub(r"^\[[^]]*:\d+\] ", "", text.splitlines()[0]).split(". This is typically")[0]
