"""What the core asks of the back end that moves its bytes: messages between two ranks, and small gathers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol


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


def error_text(error: BaseException) -> str:
    """The message of the wrapped back end's error, without the place in its source and its advice."""
    text = str(error).strip() or type(error).__name__
    return re.sub(r"^\[[^]]*:\d+\] ", "", text.splitlines()[0]).split(". This is typically")[0]
