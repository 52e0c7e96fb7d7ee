"""The GPU executor: `interpreter.cu` through CuPy, on one GPU that stands for all ranks, or on several of this process.

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
from runtime.bench import BenchAlgorithm, BenchRequest, EmulatedTime, Session, in_process
from runtime.buffers import Layout, prepare_buffers
from runtime.dtypes import Array
from runtime.gpu.cuda import THREADS, compiler_options, connect, cupy, threads_that_fit
from runtime.gpu.encoding import ADDRESSES, REDUCTION_NAMES, REPORT, Encoded, gpu_source, scratch_offsets
from runtime.gpu.pace import Pace
from synth.model.problem import parse_ranks
from topologies.errors import InputError


@dataclass(frozen=True)
class DeviceShare:
    """The ranks and blocks of one GPU.

    Attributes:
        device: Number of the GPU.
        first: First rank.
        end: End of the ranks (the last one + 1).
        first_block: First block.
        blocks: Number of blocks.
    """

    device: int
    first: int
    end: int
    first_block: int
    blocks: int


class Launch:
    """A program that is bound to buffers in GPU memory. `go` only launches, so that a CUDA graph can capture it."""

    def __init__(self, executor: GpuExecutor, layout: Layout, memory: Array, kind: str, op: str) -> None:
        """Build the jobs of all GPUs.

        Args:
            executor: The executor.
            layout: Position of the chunks in the buffers.
            memory: Addresses of each rank's input and output: int64 (ranks, 2).
            kind: Data type.
            op: Reduction.

        Raises:
            InputError: The GPU has no room, or does not hold all blocks at once; or averages are wanted without a goal.
        """
        cp, e = executor.cupy, executor.encoded
        self.executor = executor
        self.interpret, self.average, self.threads = executor.kernels(kind, op)
        averages = e.averages(op)
        sizes = e.sizes(layout, kind, len(averages))
        try:
            self.state = executor.state if e.pace is None else _LaunchState(executor, sizes.depth, sizes.slot_bytes)
        except MemoryError:
            slots = len(e.columns.connections) * sizes.depth
            raise InputError(
                f"the GPU has no room for {slots} slots of {sizes.slot_bytes} bytes, as many as the network can have"
                " under way; the message must be smaller"
            ) from None
        fresh = e.sheet(layout, kind)
        offsets = scratch_offsets(e, layout, kind)
        self.jobs: list[tuple[DeviceShare, Any, int]] = []
        self.references: tuple[object, ...] = ()  # The jobs hold only addresses.
        for share, state_part, tables in zip(executor.shares, self.state.parts, executor.tables, strict=True):
            with executor.on(share):
                scratch = cp.empty(max(offsets[share.end] - offsets[share.first], 16), dtype=np.uint8)
                table = np.column_stack([memory, scratch.data.ptr + np.array(offsets[:-1]) - offsets[share.first]])
                own_averages = averages[(averages[:, 0] >= share.first) & (averages[:, 0] < share.end)]
                parts = {
                    **tables,
                    **state_part,
                    "spans": cp.asarray(e.spans(layout)),
                    "memory": cp.asarray(table),
                    "held": cp.zeros(max(1, int(e.cells[-1])), dtype=np.uint8),
                    "averages": cp.asarray(own_averages),
                    "pace": cp.asarray(fresh),
                    "fresh": cp.asarray(fresh),
                }
                addresses = np.array([parts[name].data.ptr for name in ADDRESSES], dtype=np.int64)
                numbers = replace(sizes, first_block=share.first_block, nothers=len(executor.shares) - 1).numbers()
                job = cp.asarray(np.concatenate([addresses, numbers]))
            self.jobs.append((share, job, len(own_averages)))
            self.references = (*self.references, scratch, parts)
            self.sheet, self.fresh = parts["pace"], parts["fresh"]

    def go(self) -> None:
        """Start one execution on CuPy's current streams; `check` waits for it and raises its errors.

        It can be called again, but all executions of an executor must run one after the other.
        """
        if self.executor.encoded.pace is not None:
            self.executor.cupy.copyto(self.sheet, self.fresh)
        for share, job, _ in self.jobs:
            if share.blocks:
                with self.executor.on(share):
                    self.interpret((share.blocks,), (self.threads,), (job,))
        for share, job, averages in self.jobs:
            if averages:
                with self.executor.on(share):
                    self.average((averages,), (self.threads,), (job,))

    def check(self) -> None:
        """Wait for the GPUs and read their reports; with an emulated network, set the executor's `emulated`.

        Raises:
            InputError: A block gave up; the message says which threadblock waited for what. Launches that were prepared
                before cannot be used any more; the executor can.
        """
        reports = []
        for share, state_part in zip(self.executor.shares, self.state.parts, strict=True):
            with self.executor.on(share):
                reports.append(state_part["report"].get().tolist())
        error = self.executor.encoded.explain(next((report for report in reports if report[1]), reports[0]))
        if error is not None:
            self.executor.state = _LaunchState(self.executor)  # The slots still hold messages.
            self.executor.launches.clear()
            raise error
        if self.executor.encoded.pace is not None:
            self.executor.emulated = self.executor.encoded.pace.read_times(self.sheet.get())


class _LaunchState:
    """The data that stays on the GPUs between launches: slots, and the numbers of messages that have passed."""

    def __init__(self, executor: GpuExecutor, depth: int | None = None, slot_bytes: int | None = None) -> None:
        cp, e = executor.cupy, executor.encoded
        depth, slot_bytes = depth or e.depth, slot_bytes or e.slot_bytes
        sender, receiver = (np.array(ends, dtype=np.int64) for ends in (e.columns.sender, e.columns.receiver))
        ends = np.zeros((len(sender), 3), dtype=np.int64)
        self.parts: list[dict[str, Any]] = []
        self.references: list[object] = []
        for share in executor.shares:
            block_range = (share.first_block, share.first_block + share.blocks)
            received = np.flatnonzero((receiver >= block_range[0]) & (receiver < block_range[1]))
            sent = np.flatnonzero((sender >= block_range[0]) & (sender < block_range[1]))
            with executor.on(share):
                slots = cp.zeros(max(16, len(received) * depth * slot_bytes), dtype=np.uint8)
                flags = cp.zeros(max(1, len(received) * depth), dtype=np.uint32)
                tails = cp.zeros(max(1, len(sent)), dtype=np.uint32)
                blocks = max(1, len(e.blocks))
                part = {
                    "progress": cp.zeros(blocks, dtype=np.uint64),
                    "state": cp.zeros(3 * blocks, dtype=np.uint32),
                    "report": cp.zeros(REPORT, dtype=np.uint32),
                }
            ends[received, 0] = slots.data.ptr + np.arange(len(received)) * depth * slot_bytes
            ends[received, 1] = flags.data.ptr + np.arange(len(received)) * depth * 4
            ends[sent, 2] = tails.data.ptr + np.arange(len(sent)) * 4
            self.parts.append(part)
            self.references.append((slots, flags, tails))
        reports = [part["report"].data.ptr for part in self.parts]
        for number, (share, part) in enumerate(zip(executor.shares, self.parts, strict=True)):
            with executor.on(share):
                part["ends"] = cp.asarray(ends)
                part["others"] = cp.asarray(np.array(reports[:number] + reports[number + 1 :], dtype=np.int64))
                if len(executor.shares) > 1:
                    cp.cuda.Device().synchronize()  # Another GPU's kernel may write here at once.


class GpuExecutor:
    """A `BenchExecutor` on a GPU that stands for all ranks, or on several GPUs.

    Buffers are NumPy's, which are copied to the GPU and back, or CuPy's, which are used where they lie.

    Attributes:
        shares: The ranks of each GPU.
        encoded: The program as the kernel reads it.
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
        """Load a program onto the GPUs.

        Args:
            program: The program.
            goal: As for `Encoded`.
            depth: As for `Encoded`.
            slot_bytes: As for `Encoded`.
            limit_s: As for `Encoded`.
            pace: The emulated network; None: none.
            devices: Numbers of the GPUs, each of which has neighbouring ranks; None: the current one.

        Raises:
            InputError: As for `Encoded`; CuPy is not installed; the GPUs do not reach each other; or a network is
                emulated on more than one GPU.
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
            DeviceShare(device, ranks[k], ranks[k + 1], blocks[k], blocks[k + 1] - blocks[k])
            for k, device in enumerate(self.devices)
        ]
        self.compiled: dict[tuple[str, str], tuple[Any, Any, int]] = {}
        self.launches: dict[tuple[object, ...], Launch] = {}
        self.tables: list[dict[str, Any]] = []
        for share in self.shares:
            with self.on(share):
                tables = {"blocks": e.blocks, "steps": e.steps, "cells": e.cells}
                self.tables.append({name: cp.asarray(table) for name, table in tables.items()})
        self.state = _LaunchState(self)

    def on(self, share: DeviceShare) -> AbstractContextManager[Any]:
        """Return a context in which CuPy's current GPU is that of the share."""
        return cast(AbstractContextManager[Any], self.cupy.cuda.Device(share.device))

    def at(self, rank: int) -> AbstractContextManager[Any]:
        """Return a context in which CuPy's current GPU is the one where the rank's buffers must lie."""
        return self.on(next(share for share in self.shares if share.first <= rank < share.end))

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], *, kind: str = "float", op: str = "sum") -> None:
        """Run the program once and wait for its end; see `BenchExecutor.run`. It sets `kernel_us`.

        The buffers of all ranks are NumPy's, or all are CuPy's, each on its rank's GPU (see `at`).

        Raises:
            InputError: As for `BenchExecutor.run`; a buffer is not contiguous or on another GPU; or the GPU does not
                hold all blocks at once or has no room.
        """
        host_buffers: list[tuple[Array, Array]] = []
        gpu_buffers: list[list[Any]] = []
        if not (len(inputs) and isinstance(inputs[0], self.cupy.ndarray)):
            _, inputs, _ = prepare_buffers(self.program, self.goal, inputs, outputs, kind, op)
            host_buffers = list(zip(inputs, outputs, strict=True))
            gpu_buffers = [self._copied(rank, *pair) for rank, pair in enumerate(host_buffers)]
            inputs, outputs = zip(*gpu_buffers, strict=True)
        launch = self.prepare(inputs, outputs, kind=kind, op=op)
        self.kernel_us, self.emulated = 0.0, None
        if launch is not None:
            self._run_timed(launch)
        for pair, copies in zip(host_buffers, gpu_buffers, strict=True):
            for array, copy in zip(pair, copies, strict=True):
                array[:] = copy.get()

    def prepare(
        self, inputs: Sequence[Any], outputs: Sequence[Any], *, kind: str = "float", op: str = "sum"
    ) -> Launch | None:
        """Return the launch for CuPy arrays, or None if there is nothing to do: no elements, or no steps.

        The inputs of a program that works only in place are moved once, now. Until `go` nothing runs. The arrays must
        live as long as the launch. The same buffers give the same launch again, unless others were prepared meanwhile.

        Raises:
            InputError: As for `run`, except for what only an execution shows.
        """
        # Buffers have no gaps, so their bounds decide; CuPy's exact test reads every element.
        shares_memory = self.cupy.may_share_memory
        layout, inputs, kind = prepare_buffers(self.program, self.goal, inputs, outputs, kind, op, shares_memory)
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
        memory = np.array(
            [[input_array.data.ptr, output_array.data.ptr] for input_array, output_array in pairs], dtype=np.int64
        )
        key = (layout.elements, kind, op, memory.tobytes())
        if key not in self.launches:
            self.launches.clear()  # Each one holds scratch memory.
            self.launches[key] = Launch(self, layout, memory, kind, op)
        return self.launches[key]

    def kernels(self, kind: str, op: str) -> tuple[Any, Any, int]:
        """Return the interpreter, the averaging kernel, and their threads a block, compiled once for each type and op.

        Args:
            kind: Data type, a key of TYPES.
            op: Reduction; avg and sum share their kernels.

        Raises:
            InputError: The GPU does not hold all blocks at once.
        """
        key = (kind, REDUCTION_NAMES[op])
        if key not in self.compiled:
            self.compiled[key] = self._compile(kind, op)
        return self.compiled[key]

    def _compile(self, kind: str, op: str) -> tuple[Any, Any, int]:
        """Build both kernels, load them on every GPU before any launch, and return them with their threads a block.

        A kernel that is loaded while running kernels wait for it may never start. The number of threads is the largest
        of THREADS with which every GPU holds all its blocks at once.

        Raises:
            InputError: A GPU does not hold all its blocks with any number of threads.
        """
        modules: dict[int, Any] = {}
        limit = THREADS[0]
        for share in self.shares:
            per_processor: dict[int, int] = {}
            with self.on(share):
                processors = self.cupy.cuda.Device().attributes["MultiProcessorCount"]
                for threads in (t for t in THREADS if t <= limit):
                    if threads not in modules:
                        paced, is_multi_gpu = self.encoded.pace is not None, len(self.shares) > 1
                        options = compiler_options(kind, op, threads, paced=paced, several=is_multi_gpu)
                        modules[threads] = self.cupy.RawModule(code=gpu_source(), options=options)
                    kernel = modules[threads].get_function("synth_interpret").kernel
                    occupancy = self.cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
                    per_processor[threads] = occupancy(kernel.ptr, threads, 0)
                    if share.blocks <= processors * per_processor[threads]:
                        break
                limit = threads_that_fit(share.blocks, processors, per_processor)
        interpret, average = (modules[limit].get_function(n) for n in ("synth_interpret", "synth_average"))
        for share in self.shares:
            with self.on(share):
                for function in (interpret, average):
                    _ = function.kernel
        return interpret, average, limit

    def _run_timed(self, launch: Launch) -> None:
        """Run a launch to its end and set `kernel_us`: the longest time of a GPU in µs, or that of an emulated network.

        Raises:
            InputError: As for `Launch.check`.
        """
        event = self.cupy.cuda.Event
        events = []
        for share in self.shares:
            with self.on(share):
                events.append((event(), event()))
                events[-1][0].record()
        launch.go()
        for share, (_, end) in zip(self.shares, events, strict=True):
            with self.on(share):
                end.record()
        launch.check()
        times_us = []
        for begin, end in events:
            end.synchronize()
            times_us.append(1e3 * self.cupy.cuda.get_elapsed_time(begin, end))
        self.kernel_us = max(times_us) if self.emulated is None else self.emulated.measured_us

    def _copied(self, rank: int, input_array: Array, output_array: Array) -> list[Any]:
        """Return copies of a rank's input and output on its GPU; they share memory as the originals do.

        Raises:
            InputError: One of them has gaps.
        """
        pair = (input_array, output_array)
        if not all(array.flags.c_contiguous for array in pair):
            raise InputError(f"rank {rank}: a buffer with gaps; it must be contiguous")
        whole = max(pair, key=len)
        with self.at(rank):
            if not np.shares_memory(input_array, output_array):
                return [self.cupy.asarray(array) for array in pair]
            gpu_array = self.cupy.asarray(whole)
        first = [(array.ctypes.data - whole.ctypes.data) // whole.itemsize for array in pair]
        return [gpu_array[at : at + len(array)] for at, array in zip(first, pair, strict=True)]


def measuring(request: BenchRequest) -> Session:
    """Open a session that measures on this machine's GPUs; see `runtime.backends.Backend`.

    Raises:
        InputError: `request.devices` is no list of this machine's GPUs, or CuPy is not installed.
    """
    devices = None
    if request.devices is not None:
        devices = parse_ranks(request.devices, "--devices", int(cupy().cuda.runtime.getDeviceCount()))

    def make(a: BenchAlgorithm) -> GpuExecutor:
        """Build the executor of an algorithm, with the emulated network of the request, if it has one."""
        network = request.network
        pace = None if network is None else Pace(a.program, network, a.communicator(network), request.slower)
        return GpuExecutor(a.program, a.goal, pace=pace, devices=devices)

    return in_process(request, make)
