"""What an executor is. Those of the host, the GPU and of tests (the kernel on CPU threads) share no class."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from runtime.dtypes import Array


@dataclass(frozen=True)
class EmulatedTime:
    """What a run on an emulated network took, in µs of the network."""

    measured_us: float  # on the device's clock, until the last block ended
    due_us: float  # the network's own time then; much less where the device was too slow to emulate this network


class Executor(Protocol):
    """A program that is ready to be run, any number of times.

    Attributes:
        arrays: the module that makes the buffers that it takes as they are: NumPy or CuPy.
        kernel_us: time of the last run by the executor's own clock; None where it has none.
        emulated: times of the last run where a network is emulated; None otherwise.
    """

    @property
    def arrays(self) -> Any: ...
    @property
    def kernel_us(self) -> float | None: ...
    @property
    def emulated(self) -> EmulatedTime | None: ...

    def at(self, rank: int) -> AbstractContextManager[Any]:
        """A context in which the rank's buffers are made."""
        ...

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], *, kind: str = "float", op: str = "sum") -> None:
        """Execute once.

        inputs, outputs: per rank, one-dimensional and of the type `kind`; in place the same arrays, or one a part of
        the other. A program that works in place only gets the inputs copied where they are apart. kind, op: as
        nccl-tests names them. Raises InputError for buffers that do not fit, or a program that stops before its end.
        """
        ...
