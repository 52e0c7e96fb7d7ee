"""Let barriers of Gloo wait for the tasks of all ranks, although it knows none of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


class BusyFlag:
    """Whether any rank had unfinished tasks when it called a barrier, once an exchange is over.

    A barrier is over when all ranks have called it after their earlier tasks. Usually there are none, but only the rank
    itself knows. So a barrier is an all-reduce of Gloo that finds the largest flag, which takes no longer than Gloo's
    barrier. If any rank was busy, all ranks then wait for each other again, each after its tasks.

    Attributes:
        value: The flag, a byte: not 0 if any rank was busy.
    """

    __slots__ = ("_tensors", "value")

    def __init__(self) -> None:
        self.value = bytearray(1)
        self._tensors = [torch.frombuffer(self.value, dtype=torch.uint8)]

    def exchange(self, gloo: Any, is_busy: bool, timeout: Any = None) -> Any:
        """Start the exchange, and return Gloo's Work.

        Args:
            gloo: Gloo's back end.
            is_busy: Whether this rank has unfinished tasks.
            timeout: Time-out of the exchange, a timedelta; None for that of the back end.

        Raises:
            RuntimeError: Gloo cannot start it.
        """
        self.value[0] = is_busy
        if timeout is None:
            return gloo.allreduce(self._tensors, _LARGEST)
        options = _largest()
        options.timeout = timeout
        return gloo.allreduce(self._tensors, options)


def _largest() -> Any:
    """Return the options of an all-reduce that finds the largest value."""
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    return options


_LARGEST = _largest()
