"""The GPU executor: `interpreter.cu` through CuPy, one GPU standing for all ranks, or several GPUs of this process.

Each rank has its own buffers in its GPU's memory; a block of the launch is a threadblock of the program. Several GPUs
write into each other's memory (peer access); each launches the blocks of its ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from emit.goal import Goal
from emit.program import Program
from emit.timing.trace import Recorded
from runtime.bench import Algorithm, EmulatedTime, Request, Session, in_process
from runtime.buffers import Layout, prepare_buffers
from runtime.dtypes import Array
from runtime.gpu.cuda import THREADS, compiler_options, connect, cupy, threads_that_fit
from runtime.gpu.encoding import ADDRESSES, REDUCTION_NAMES, REPORT, Encoded, gpu_source, scratch_offsets
from runtime.gpu.pace import Pace
from synth.model.problem import parse_ranks
from topologies.errors import InputError


@dataclass(frozen=True)
class Share:
    """What one GPU does: the ranks first..end-1, whose blocks are `blocks` from `first_block` on."""

    device: int
    first: int
    end: int
    first_block: int
    blocks: int


class Launch:
    """A program tied to buffers in GPU memory. `go` only launches, so that a CUDA graph can capture it."""

    def __init__(self, of: GpuExecutor, layout: Layout, memory: Array, kind: str, op: str) -> None:
        """memory: addresses of each rank's input and output. Raises InputError where the GPU has no room."""
        cp, e = of.cupy, of.encoded
        self.of = of
        self.interpret, self.average, self.threads = of.kernels(kind, op)
        averages = e.averages(op)
        sizes = e.sizes(layout, kind, len(averages))
        try:
            self.state = of.state if e.pace is None else _State(of, sizes.depth, sizes.slot_bytes)
        except MemoryError:
            slots = len(e.columns.connections) * sizes.depth
            raise InputError(
                f"the GPU has no room for {slots} slots of {sizes.slot_bytes} bytes, as many as the network can have"
                " under way; the message must be smaller"
            ) from None
        fresh = e.sheet(layout, kind)
        offsets = scratch_offsets(e, layout, kind)
        self.jobs: list[tuple[Share, Any, int]] = []
        self.kept: tuple[object, ...] = ()  # the jobs hold addresses only
        for share, own, tables in zip(of.shares, self.state.parts, of.tables, strict=True):
            with of.on(share):
                scratch = cp.empty(max(offsets[share.end] - offsets[share.first], 16), dtype=np.uint8)
                table = np.column_stack([memory, scratch.data.ptr + np.array(offsets[:-1]) - offsets[share.first]])
                mine = averages[(averages[:, 0] >= share.first) & (averages[:, 0] < share.end)]
                parts = {
                    **tables,
                    **own,
                    "spans": cp.asarray(e.spans(layout)),
                    "memory": cp.asarray(table),
                    "held": cp.zeros(max(1, int(e.cells[-1])), dtype=np.uint8),
                    "averages": cp.asarray(mine),
                    "pace": cp.asarray(fresh),
                    "fresh": cp.asarray(fresh),
                }
                addresses = np.array([parts[name].data.ptr for name in ADDRESSES], dtype=np.int64)
                numbers = replace(sizes, first_block=share.first_block, nothers=len(of.shares) - 1).numbers()
                job = cp.asarray(np.concatenate([addresses, numbers]))
            self.jobs.append((share, job, len(mine)))
            self.kept = (*self.kept, scratch, parts)
            self.sheet, self.fresh = parts["pace"], parts["fresh"]

    def go(self) -> None:
        """Queue one execution on CuPy's current streams. Raises nothing for what happens there; see `check`."""
        if self.of.encoded.pace is not None:
            self.of.cupy.copyto(self.sheet, self.fresh)
        for share, job, _ in self.jobs:
            if share.blocks:
                with self.of.on(share):
                    self.interpret((share.blocks,), (self.threads,), (job,))
        for share, job, averages in self.jobs:
            if averages:
                with self.of.on(share):
                    self.average((averages,), (self.threads,), (job,))

    def check(self) -> None:
        """Wait for the GPUs. Raises InputError where a block gave up: who waited for what."""
        reports = []
        for share, own in zip(self.of.shares, self.state.parts, strict=True):
            with self.of.on(share):
                reports.append(own["report"].get().tolist())
        error = self.of.encoded.explain(next((report for report in reports if report[1]), reports[0]))
        if error is not None:
            self.of.state = _State(self.of)  # messages were left in the slots
            self.of.launches.clear()
            raise error
        if self.of.encoded.pace is not None:
            self.of.emulated = self.of.encoded.pace.read_times(self.sheet.get())


class _State:
    """What lives on the GPUs from launch to launch: slots, and how many messages have passed."""

    def __init__(self, of: GpuExecutor, depth: int | None = None, slot_bytes: int | None = None) -> None:
        cp, e = of.cupy, of.encoded
        depth, slot_bytes = depth or e.depth, slot_bytes or e.slot_bytes
        sender, receiver = (np.array(ends, dtype=np.int64) for ends in (e.columns.sender, e.columns.receiver))
        ends = np.zeros((len(sender), 3), dtype=np.int64)
        self.parts: list[dict[str, Any]] = []
        self.kept: list[object] = []
        for share in of.shares:
            here = (share.first_block, share.first_block + share.blocks)
            comes = np.flatnonzero((receiver >= here[0]) & (receiver < here[1]))
            goes = np.flatnonzero((sender >= here[0]) & (sender < here[1]))
            with of.on(share):
                slots = cp.zeros(max(16, len(comes) * depth * slot_bytes), dtype=np.uint8)
                flags = cp.zeros(max(1, len(comes) * depth), dtype=np.uint32)
                tails = cp.zeros(max(1, len(goes)), dtype=np.uint32)
                blocks = max(1, len(e.blocks))
                own = {
                    "progress": cp.zeros(blocks, dtype=np.uint64),
                    "state": cp.zeros(3 * blocks, dtype=np.uint32),
                    "report": cp.zeros(REPORT, dtype=np.uint32),
                }
            ends[comes, 0] = slots.data.ptr + np.arange(len(comes)) * depth * slot_bytes
            ends[comes, 1] = flags.data.ptr + np.arange(len(comes)) * depth * 4
            ends[goes, 2] = tails.data.ptr + np.arange(len(goes)) * 4
            self.parts.append(own)
            self.kept.append((slots, flags, tails))
        reports = [own["report"].data.ptr for own in self.parts]
        for number, (share, own) in enumerate(zip(of.shares, self.parts, strict=True)):
            with of.on(share):
                own["ends"] = cp.asarray(ends)
                own["others"] = cp.asarray(np.array(reports[:number] + reports[number + 1 :], dtype=np.int64))
                if len(of.shares) > 1:
                    cp.cuda.Device().synchronize()  # another GPU's kernel may write here before the zeros are there


class GpuExecutor:
    """An `Executor` on a GPU, which stands for all ranks, or on several.

    Buffers are NumPy's, which are copied there and back, or CuPy's, which are used where they lie.

    Attributes:
        shares: which GPU stands for which ranks. encoded: the program as the kernel reads it.
    """

    def __init__(
        self,
        program: Program,
        goal: Goal | None = None,
        *,
        depth: int | None = None,
        slot_bytes: int | None = None,
        limit_s: float = 20.0,
        pace: Pace | None = None,
        devices: Sequence[int] | None = None,
    ) -> None:
        """devices: numbers of the GPUs, None: the current one; each has neighbouring ranks. Else as in `Encoded`.

        Raises InputError also without CuPy or GPUs that reach each other, or for a pace on several GPUs.
        """
        self.program, self.goal = program, goal
        self.kernel_us: float | None = None
        self.emulated: EmulatedTime | None = None
        self.recorded: Recorded | None = None
        self.encoded = e = Encoded(program, goal, depth, slot_bytes, limit_s, pace)
        self.cupy = self.arrays = cp = cupy()
        self.devices = tuple(devices) if devices is not None else (int(cp.cuda.Device().id),)
        if pace is not None and len(self.devices) > 1:
            raise InputError(f"devices {self.devices}: a network is emulated on one GPU; it must be one")
        connect(cp, self.devices)
        ranks, blocks = e.groups(len(self.devices)), e.first_blocks(len(self.devices))
        self.shares = [
            Share(device, ranks[k], ranks[k + 1], blocks[k], blocks[k + 1] - blocks[k])
            for k, device in enumerate(self.devices)
        ]
        self.compiled: dict[tuple[str, str], tuple[Any, Any, int]] = {}
        self.launches: dict[tuple[object, ...], Launch] = {}
        self.tables: list[dict[str, Any]] = []
        for share in self.shares:
            with self.on(share):
                tables = {"blocks": e.blocks, "steps": e.steps, "cells": e.cells}
                self.tables.append({name: cp.asarray(table) for name, table in tables.items()})
        self.state = _State(self)

    def on(self, share: Share) -> AbstractContextManager[Any]:
        """A context in which CuPy's current GPU is this one."""
        return cast(AbstractContextManager[Any], self.cupy.cuda.Device(share.device))

    def at(self, rank: int) -> AbstractContextManager[Any]:
        """The GPU on which a rank's buffers must lie."""
        return self.on(next(share for share in self.shares if share.first <= rank < share.end))

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], *, kind: str = "float", op: str = "sum") -> None:
        """Execute once; see `Executor.run`. Raises InputError also for more blocks than the GPU holds at once."""
        here: list[tuple[Array, Array]] = []
        there: list[list[Any]] = []
        if not (len(inputs) and isinstance(inputs[0], self.cupy.ndarray)):
            _, inputs, _ = prepare_buffers(self.program, self.goal, inputs, outputs, kind, op)
            here = list(zip(inputs, outputs, strict=True))
            there = [self._copied(rank, *pair) for rank, pair in enumerate(here)]
            inputs, outputs = zip(*there, strict=True)
        launch = self.prepare(inputs, outputs, kind=kind, op=op)
        self.kernel_us = 0.0
        if launch is not None:
            self._run_timed(launch)
        for pair, copies in zip(here, there, strict=True):
            for array, copy in zip(pair, copies, strict=True):
                array[:] = copy.get()

    def prepare(
        self, inputs: Sequence[Any], outputs: Sequence[Any], *, kind: str = "float", op: str = "sum"
    ) -> Launch | None:
        """The launch for these CuPy arrays, None for nothing to do; moves inputs once where all is in place only."""
        # by their bounds, for they have no gaps: CuPy's exact answer looks at every element
        shares = self.cupy.may_share_memory
        layout, inputs, kind = prepare_buffers(self.program, self.goal, inputs, outputs, kind, op, shares)
        if not layout.elements or not len(self.encoded.blocks):
            return None
        pairs: list[tuple[Any, Any]] = list(zip(inputs, outputs, strict=True))
        for share in self.shares:
            for rank in range(share.first, share.end):
                for array in pairs[rank]:
                    if not array.flags.c_contiguous:
                        raise InputError(f"rank {rank}: a buffer with gaps; it must be contiguous")
                    if array.device.id != share.device:
                        raise InputError(
                            f"rank {rank}: a buffer on GPU {array.device.id}; it must be on GPU {share.device}"
                        )
        memory = np.array([[given.data.ptr, made.data.ptr] for given, made in pairs], dtype=np.int64)
        key = (layout.elements, kind, op, memory.tobytes())
        if key not in self.launches:
            self.launches.clear()  # each holds scratch
            self.launches[key] = Launch(self, layout, memory, kind, op)
        return self.launches[key]

    def kernels(self, kind: str, op: str) -> tuple[Any, Any, int]:
        """The interpreter and the averaging kernel, and their threads a block."""
        key = (kind, REDUCTION_NAMES[op])
        if key not in self.compiled:
            self.compiled[key] = self._compile(kind, op)
        return self.compiled[key]

    def _compile(self, kind: str, op: str) -> tuple[Any, Any, int]:
        """Both kernels, loaded on every GPU: to load one while others wait for it could last for ever."""
        modules: dict[int, Any] = {}
        limit = THREADS[0]
        for share in self.shares:
            per: dict[int, int] = {}
            with self.on(share):
                processors = self.cupy.cuda.Device().attributes["MultiProcessorCount"]
                for threads in (t for t in THREADS if t <= limit):
                    if threads not in modules:
                        paced, several = self.encoded.pace is not None, len(self.shares) > 1
                        options = compiler_options(kind, op, threads, paced=paced, several=several)
                        modules[threads] = self.cupy.RawModule(code=gpu_source(), options=options)
                    kernel = modules[threads].get_function("synth_interpret").kernel
                    occupancy = self.cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
                    per[threads] = occupancy(kernel.ptr, threads, 0)
                    if share.blocks <= processors * per[threads]:
                        break
                limit = threads_that_fit(share.blocks, processors, per)
        interpret, average = (modules[limit].get_function(n) for n in ("synth_interpret", "synth_average"))
        for share in self.shares:
            with self.on(share):
                for function in (interpret, average):
                    _ = function.kernel
        return interpret, average, limit

    def _run_timed(self, launch: Launch) -> None:
        event = self.cupy.cuda.Event
        marks = []
        for share in self.shares:
            with self.on(share):
                marks.append((event(), event()))
                marks[-1][0].record()
        launch.go()
        for share, (_, ended) in zip(self.shares, marks, strict=True):
            with self.on(share):
                ended.record()
        launch.check()
        took = []
        for begun, ended in marks:
            ended.synchronize()
            took.append(1e3 * self.cupy.cuda.get_elapsed_time(begun, ended))
        self.kernel_us = max(took) if self.emulated is None else self.emulated.measured_us

    def _copied(self, rank: int, given: Array, made: Array) -> list[Any]:
        """A rank's input and output on its GPU, one a part of the other where it is so here."""
        pair = (given, made)
        if not all(array.flags.c_contiguous for array in pair):
            raise InputError(f"rank {rank}: a buffer with gaps; it must be contiguous")
        whole = max(pair, key=len)
        with self.at(rank):
            if not np.shares_memory(given, made):
                return [self.cupy.asarray(array) for array in pair]
            there = self.cupy.asarray(whole)
        first = [(array.ctypes.data - whole.ctypes.data) // whole.itemsize for array in pair]
        return [there[at : at + len(array)] for at, array in zip(first, pair, strict=True)]


def measuring(request: Request) -> Session:
    """Measures on this machine's GPUs; see `runtime.backends.Backend`."""
    devices = None
    if request.devices is not None:
        devices = parse_ranks(request.devices, "--devices", int(cupy().cuda.runtime.getDeviceCount()))

    def make(a: Algorithm) -> GpuExecutor:
        network = request.network
        pace = None if network is None else Pace(a.program, network, a.communicator(network), request.slower)
        return GpuExecutor(a.program, a.goal, pace=pace, devices=devices)

    return in_process(request, make)
