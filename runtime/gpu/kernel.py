"""What the executors of `interpreter.cu` have in common: the caller's buffers are one block of the kernel's memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from emit.goal import Goal
from emit.program import Program
from runtime.buffers import Layout
from runtime.dtypes import Array, reducer, type_named
from runtime.gpu.encoding import Encoded, placed
from runtime.gpu.pace import Pace, Paced
from runtime.host.executor import HostExecutor


class KernelExecutor(HostExecutor, ABC):
    """A program ready to be run by the kernel. Used as HostExecutor is.

    depth, slot_bytes: of a connection's slots, where not the protocol's own. limit_s: a wait that takes longer ends
    the launch, and the error names who waited for what. pace: the network's time that it is to take.

    Attributes:
        kernel_us: what the kernel of the last `run` took by its own clock, None where it has none. With a pace, the
            network's time. paced: with a pace, what the last `run` took.
    """

    def __init__(
        self,
        program: Program,
        goal: Goal | None = None,
        depth: int | None = None,
        slot_bytes: int | None = None,
        limit_s: float = 20.0,
        pace: Pace | None = None,
    ) -> None:
        super().__init__(program, goal)
        self.limit_ns = int(limit_s * 1e9)
        self.paced: Paced | None = None
        self.kernel_us: float | None = None
        self.encoded = Encoded(program, goal, self.columns, depth, slot_bytes, pace)

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], *, kind: str = "float", op: str = "sum"
    ) -> None:
        """Execute once; see HostExecutor.run.

        Raises:
            InputError: buffers that do not fit the program, or a program that stops before its end.
        """
        layout, inputs, kind = self._ready(inputs, outputs, kind, op)
        if not layout.elements:
            self.kernel_us = None if self.kernel_us is None else 0.0
            return
        offsets, size = placed(inputs, outputs)
        arena = np.zeros(-(-size // 8) * 8, dtype=np.uint8)
        views = [
            (arena[at : at + array.nbytes], array)
            for pair, both in zip(offsets, zip(inputs, outputs, strict=True), strict=True)
            for at, array in zip(pair, both, strict=True)
        ]
        for view, array in views:
            view[:] = array.view(np.uint8)
        after, report = self._executed(layout, offsets, arena, kind, op)
        told = self.encoded.told(report)
        if told is not None:
            raise told
        arena[:] = after
        for view, array in views:
            array.view(np.uint8)[:] = view

    @property
    def _only_inplace(self) -> bool:
        return self.program.inplace and not self.program.outofplace

    def _ready(
        self, inputs: Sequence[Array], outputs: Sequence[Array], kind: str, op: str
    ) -> tuple[Layout, Sequence[Array], str]:
        """The layout, the inputs where the program looks for them, and the type's own name."""
        kind = type_named(kind)
        reducer(op, kind)  # says what is wrong with either
        layout = Layout.of(self.program, self._elements(inputs, outputs))
        for rank, (given, made) in enumerate(zip(inputs, outputs, strict=True)):
            self._fits(rank, given, made, layout, kind)
        if self._only_inplace:
            inputs = self._moved_in(layout, inputs, outputs)
        return layout, inputs, kind

    def _averages(self, op: str) -> Array:
        return self.encoded.averages(self._only_inplace) if op == "avg" else np.zeros((0, 3), dtype=np.int32)

    @abstractmethod
    def _executed(
        self, layout: Layout, offsets: list[tuple[int, int]], arena: Array, kind: str, op: str
    ) -> tuple[Array, Sequence[int]]:
        """Run the kernel on buffers that lie at these offsets; the buffers and the report afterwards."""
