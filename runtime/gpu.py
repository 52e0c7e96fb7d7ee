"""The GPU executor: `interpreter.cu` through CuPy, one GPU standing for all ranks.

Each rank has its own buffers in the GPU's memory; a block of the launch is a threadblock of the program.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from emit.goal import Goal
from emit.program import Program
from runtime.encoding import (
    ADDRESSES,
    REDUCTIONS,
    REPORT,
    TYPE_NAMES,
    gpu_source,
    scratch_offsets,
)
from runtime.kernel import KernelExecutor
from runtime.layout import Layout
from runtime.numbers import Array
from topologies.errors import InputError

THREADS = (512, 256, 128, 64)  # of a block, the first with which all blocks fit


def cupy() -> Any:
    """The module. Raises InputError that says how to install it, or that there is no GPU."""
    try:
        module = importlib.import_module("cupy")
    except ImportError:
        raise InputError(
            "the GPU back end needs CuPy: pip install cupy-cuda13x nvidia-cuda-nvrtc (cupy-cuda12x for CUDA 12)"
        ) from None
    try:
        count = module.cuda.runtime.getDeviceCount()
    except module.cuda.runtime.CUDARuntimeError as error:
        raise InputError(f"no GPU can be used: {error}") from None
    if not count:
        raise InputError("no GPU can be used: the driver shows none")
    return module


def options(kind: str, op: str, threads: int) -> tuple[str, ...]:
    """What NVRTC is told beside the architecture, for one data type, reduction and number of threads a block."""
    return (
        "-std=c++17",
        f"-DTYPE={TYPE_NAMES[kind]}",
        f"-DREDUCTION={REDUCTIONS[op]}",
        f"-DTHREADS={threads}",
    )


def threads_that_fit(blocks: int, processors: int, per_processor: dict[int, int]) -> int:
    """Threads a block with which all blocks are on the GPU at once: blocks wait for each other, so they must be.

    per_processor: how many blocks of so many threads one multiprocessor holds. Raises InputError where none does.
    """
    for threads in sorted(per_processor, reverse=True):
        if blocks <= processors * per_processor[threads]:
            return threads
    most = processors * max(per_processor.values())
    raise InputError(
        f"{blocks} threadblocks on all ranks together, of which {most} fit on this GPU at once:"
        f" would be at most {most}; fewer channels or instances make fewer"
    )


class Launch:
    """A program tied to buffers in GPU memory. `go` only launches, so that a CUDA graph can capture it."""

    def __init__(self, of: GpuExecutor, layout: Layout, memory: Array, kind: str, op: str) -> None:
        cp, e = of.cupy, of.encoded
        self.of = of
        self.interpret, self.average, self.threads = of.kernels(kind, op)
        averages = of._averages(op)
        offsets, size = scratch_offsets(e, layout, kind)
        scratch = cp.empty(max(size, 16), dtype=np.uint8)
        table = np.zeros((len(memory), 3), dtype=np.int64)
        table[:, :2] = memory
        table[:, 2] = np.array(offsets) + scratch.data.ptr
        held = cp.zeros(max(1, int(e.cells[-1])), dtype=np.uint8)
        parts = {
            **of.tables,
            **of.state.parts,
            "spans": cp.asarray(e.spans(layout)),
            "memory": cp.asarray(table),
            "held": held,
            "averages": cp.asarray(averages),
        }
        addresses = np.array([parts[name].data.ptr for name in ADDRESSES], dtype=np.int64)
        sizes = e.sizes(layout, kind, of.limit_ns, len(averages))
        self.job = cp.asarray(np.concatenate([addresses, sizes.numbers()]))
        self.kept: tuple[object, ...] = (scratch, parts)  # the job holds addresses only
        self.averages = len(averages)

    def go(self) -> None:
        """Queue one execution on CuPy's current stream. Raises nothing for what happens there; see `check`."""
        self.interpret((len(self.of.encoded.blocks),), (self.threads,), (self.job,))
        if self.averages:
            self.average((self.averages,), (self.threads,), (self.job,))

    def check(self) -> None:
        """Wait for the GPU. Raises InputError where a block gave up: who waited for what."""
        report = self.of.state.parts["report"].get().tolist()
        told = self.of.encoded.told(report)
        if told is not None:
            self.of.state = _State(self.of)  # messages were left in the slots
            self.of.launches.clear()
            raise told


class _State:
    """What lives on the GPU from launch to launch: slots, and how many messages have passed."""

    def __init__(self, of: GpuExecutor) -> None:
        cp, e = of.cupy, of.encoded
        connections, blocks = len(e.columns.connections), len(e.blocks)
        self.parts = {
            "slots": cp.zeros(max(16, connections * e.depth * e.slot_bytes), dtype=np.uint8),
            "flags": cp.zeros(max(1, connections * e.depth), dtype=np.uint32),
            "tails": cp.zeros(max(1, connections), dtype=np.uint32),
            "progress": cp.zeros(max(1, blocks), dtype=np.uint64),
            "state": cp.zeros(max(1, 3 * blocks), dtype=np.uint32),
            "report": cp.zeros(REPORT, dtype=np.uint32),
        }


class GpuExecutor(KernelExecutor):
    """A program ready to be run on the current GPU, which stands for all ranks. Used as HostExecutor is.

    Buffers are NumPy's, which are copied there and back, or CuPy's, which are used where they lie.

    Attributes:
        kernel_us: what the kernel of the last `run` took, on the GPU's clock.
    """

    def __init__(
        self,
        program: Program,
        goal: Goal | None = None,
        *,
        depth: int | None = None,
        slot_bytes: int | None = None,
        limit_s: float = 20.0,
    ) -> None:
        """Raises InputError without CuPy or a GPU, or for a program that cannot be run."""
        super().__init__(program, goal, depth, slot_bytes, limit_s)
        self.cupy = cupy()
        self.kernel_us = 0.0
        self.compiled: dict[tuple[str, str], tuple[Any, Any, int]] = {}
        self.launches: dict[tuple[object, ...], Launch] = {}
        e = self.encoded
        tables = {"blocks": e.blocks, "steps": e.steps, "cells": e.cells}
        self.tables = {name: self.cupy.asarray(table) for name, table in tables.items()}
        self.state = _State(self)

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], *, kind: str = "float", op: str = "sum"
    ) -> None:
        """Execute once; see HostExecutor.run.

        Raises:
            InputError: buffers that do not fit the program, more blocks than the GPU holds at once, or a program
                that stops before its end.
        """
        if not len(inputs) or not isinstance(inputs[0], self.cupy.ndarray):
            super().run(inputs, outputs, kind=kind, op=op)
            return
        launch = self.prepared(inputs, outputs, kind=kind, op=op)
        if launch is not None:
            self._timed(launch)

    def prepared(
        self, inputs: Sequence[Any], outputs: Sequence[Any], *, kind: str = "float", op: str = "sum"
    ) -> Launch | None:
        """The launch for these CuPy arrays, None where there is nothing to do. Raises InputError as `run` does.

        A program that works in place only has its inputs moved there now, and not again by `Launch.go`.
        """
        layout, inputs, kind = self._ready(inputs, outputs, kind, op)
        if not layout.elements or not len(self.encoded.blocks):
            return None
        pairs: list[tuple[Any, Any]] = list(zip(inputs, outputs, strict=True))
        for rank, (given, made) in enumerate(pairs):
            if not (given.flags.c_contiguous and made.flags.c_contiguous):
                raise InputError(f"rank {rank}: a buffer with gaps; would be contiguous")
        memory = np.array([[given.data.ptr, made.data.ptr] for given, made in pairs], dtype=np.int64)
        key = (layout.elements, kind, op, memory.tobytes())
        if key not in self.launches:
            self.launches.clear()  # each holds scratch
            self.launches[key] = Launch(self, layout, memory, kind, op)
        return self.launches[key]

    def kernels(self, kind: str, op: str) -> tuple[Any, Any, int]:
        """The interpreter and the averaging kernel, and their threads a block."""
        key = (kind, REDUCTIONS[op])
        if key not in self.compiled:
            modules, per = {}, {}
            driver = self.cupy.cuda.driver
            for threads in THREADS:
                modules[threads] = module = self.cupy.RawModule(
                    code=gpu_source(),
                    options=options(kind, op, threads),
                )
                kernel = module.get_function("synth_interpret").kernel
                per[threads] = driver.occupancyMaxActiveBlocksPerMultiprocessor(kernel.ptr, threads, 0)
                processors = self.cupy.cuda.Device().attributes["MultiProcessorCount"]
                if len(self.encoded.blocks) <= processors * per[threads]:
                    break
            found = threads_that_fit(len(self.encoded.blocks), processors, per)
            functions = (modules[found].get_function(name) for name in ("synth_interpret", "synth_average"))
            self.compiled[key] = (*functions, found)
        return self.compiled[key]

    def _timed(self, launch: Launch) -> None:
        begun, ended = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        begun.record()
        launch.go()
        ended.record()
        launch.check()
        ended.synchronize()
        self.kernel_us = 1e3 * self.cupy.cuda.get_elapsed_time(begun, ended)

    def _executed(
        self, layout: Layout, offsets: list[tuple[int, int]], arena: Array, kind: str, op: str
    ) -> tuple[Array, Sequence[int]]:
        """The buffers and the report afterwards."""
        there = self.cupy.asarray(arena)
        if len(self.encoded.blocks):
            memory = np.array(offsets, dtype=np.int64) + there.data.ptr
            self._timed(Launch(self, layout, memory, kind, op))
        return there.get(), [0] * REPORT
