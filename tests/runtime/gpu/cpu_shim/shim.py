"""The GPU's kernel on CPU threads: the same source after `shim.h`, for tests and under sanitizers. Not for speed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from pathlib import Path

import numpy as np

from emit.goal import Goal
from emit.program import Program
from emit.timing.trace import Recorded
from runtime.bench import EmulatedTime
from runtime.buffers import Layout, prepare_buffers
from runtime.dtypes import Array
from runtime.gpu.encoding import (
    REDUCTION_NAMES,
    REPORT,
    SOURCE,
    TYPE_NAMES,
    Encoded,
    scratch_offsets,
)
from runtime.gpu.pace import Pace
from topologies.errors import InputError

_FLAGS = ("-std=c++17", "-O1", "-fwrapv", "-fno-strict-aliasing", "-pthread")
HERE = Path(__file__).parent
_OWN = ("shim.cpp", "shim.h")
_KERNEL = ("elements.h", "pace.h", "interpreter.cu")


class SanitizerReport(InputError):
    """The sanitizer reported a fault while the kernel ran; the message is the beginning of its report."""


def compiler() -> str | None:
    """Find a C++ compiler on this machine: $CXX, c++, g++ or clang++."""
    named_compiler = os.environ.get("CXX")
    return next(
        (path for name in (named_compiler, "c++", "g++", "clang++") if name and (path := shutil.which(name))), None
    )


def built(
    folder: Path, sanitizer: str = "", paced: bool = False, kernel: Path = SOURCE.parent, few: bool = False
) -> Path:
    """Compile the kernel for this machine's CPU, once for each folder, source and sanitizer.

    Args:
        folder: Where the result is stored.
        sanitizer: "", "thread", "address,undefined", …: a program for ShimExecutor; "shared": a library instead.
        paced: The kernel can take a network's time, and always does. It is compiled as for `few`.
        kernel: Folder of interpreter.cu and its headers.
        few: Only float, half and bfloat16, and of the reductions sum and max, are compiled.

    Raises:
        InputError: There is no compiler, or it fails.
    """
    compiler_path = compiler()
    if compiler_path is None:
        raise InputError("no C++ compiler; it must be one named by CXX, or c++, g++ or clang++ in PATH")
    text = b"".join(path.read_bytes() for path in (*(HERE / p for p in _OWN), *(kernel / p for p in _KERNEL)))
    flags = (*_FLAGS, *(["-DPACED"] if paced else []), *(["-DFEW"] if paced or few else []))
    mark = hashlib.sha256(" ".join((compiler_path, *flags, sanitizer)).encode() + text).hexdigest()[:16]
    output = folder / f"interpreter-{mark}"
    folder.mkdir(parents=True, exist_ok=True)
    # Of two processes, one waits until the other has compiled the kernel.
    with open(output.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not output.exists():
            _compile(compiler_path, flags, sanitizer, kernel, output)
    return output


def _compile(compiler_path: str, flags: Sequence[str], sanitizer: str, kernel: Path, output: Path) -> None:
    partial = output.with_suffix(f".{os.getpid()}")
    extra = [f"-fsanitize={sanitizer}"] if sanitizer else []
    if sanitizer == "shared":
        extra = ["-shared", "-fPIC"]
    if sanitizer:
        extra.append("-O0")  # Compiling is faster without optimization, and takes most of a test's time.
    command = [compiler_path, *flags, *extra, f"-I{kernel}", str(HERE / _OWN[0]), "-o", str(partial)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        first = next((line for line in ended.stderr.splitlines() if "error" in line), ended.stderr[:200])
        raise InputError(f"{compiler_path} does not compile {_OWN[0]}: {first}")
    partial.replace(output)


class ShimExecutor:
    """An `Executor` that runs the kernel on CPU threads.

    The constructor takes `binary` from `built`, compiled with `paced` if there is a pace; `threads` of a block;
    `launches`, one after the other, each on the given inputs; `devices`, the number of launches at once, as of as many
    GPUs. For `depth`, `slot_bytes`, `limit_s` and `pace` see `Encoded`. SanitizerReport is raised for a fault that a
    sanitizer reports.

    Attributes:
        kernel_us, emulated: See `Executor`; None without a pace.
        sheet: With a pace, all its numbers as the last launch left them.
    """

    arrays = np

    def __init__(
        self,
        program: Program,
        goal: Goal | None,
        binary: Path,
        *,
        threads: int = 1,
        launches: int = 1,
        depth: int | None = None,
        slot_bytes: int | None = None,
        limit_s: float = 20.0,
        pace: Pace | None = None,
        devices: int = 1,
    ) -> None:
        self.program, self.goal = program, goal
        self.encoded = Encoded(program, goal, depth, slot_bytes, limit_s, pace)
        self.kernel_us: float | None = None
        self.emulated: EmulatedTime | None = None
        self.recorded: Recorded | None = None
        self.devices = devices
        self.sheet: Array | None = None
        self.binary, self.launches, self.threads = binary, launches, threads

    def at(self, rank: int) -> AbstractContextManager[None]:  # noqa: ARG002 - all ranks have the same memory
        return nullcontext()

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], *, kind: str = "float", op: str = "sum") -> None:
        """Run the program once; see `Executor.run`."""
        layout, inputs, kind = prepare_buffers(self.program, self.goal, inputs, outputs, kind, op)
        if layout.elements:
            run_in_arena(
                self.encoded,
                inputs,
                outputs,
                lambda offsets, arena: self._launch(layout, offsets, arena, kind, op),
            )

    def _launch(
        self, layout: Layout, offsets: list[tuple[int, int]], arena: Array, kind: str, op: str
    ) -> tuple[Array, list[int]]:
        """Return the buffers and the report after a run."""
        e = self.encoded
        averages = e.averages(op)
        *scratch, scratch_bytes = scratch_offsets(e, layout, kind)
        memory = np.array([[*pair, at] for pair, at in zip(offsets, scratch, strict=True)], dtype=np.int64)
        names = list(dict.fromkeys(REDUCTION_NAMES.values()))
        parameters = [
            list(TYPE_NAMES).index(kind),
            names.index(REDUCTION_NAMES[op]),
            self.threads,
            self.launches,
            len(e.columns.connections),
            scratch_bytes,
        ]
        sizes = e.sizes(layout, kind, len(averages))
        parts: list[Array] = [
            np.array(parameters, dtype=np.int64),
            sizes.numbers(),
            e.blocks,
            e.steps,
            e.cells,
            averages,
            e.spans(layout),
            memory,
            np.array(e.first_blocks(self.devices)[:-1], dtype=np.int64),
            (sheet := e.sheet(layout, kind)),
            arena,
        ]
        wire = b"".join(struct.pack("=q", part.nbytes) + part.tobytes() for part in parts)
        ended = subprocess.run(
            [*_before(), str(self.binary)],
            input=wire,
            capture_output=True,
            check=False,
            env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1 exitcode=66"},
        )
        expected_bytes = arena.nbytes + 4 * REPORT + sheet.nbytes
        if ended.returncode or len(ended.stdout) != expected_bytes:
            text = ended.stderr.decode(errors="replace").strip("= \n")
            raise SanitizerReport(f"the kernel on CPU threads ended with {ended.returncode}: {text[:600]}")
        after = np.frombuffer(ended.stdout, dtype=np.uint8, count=arena.nbytes)
        report = np.frombuffer(ended.stdout, dtype=np.uint32, count=REPORT, offset=arena.nbytes)
        if e.pace is not None:
            self.sheet = np.frombuffer(ended.stdout[arena.nbytes + report.nbytes :], dtype=np.int64)
            self.emulated = e.pace.read_times(self.sheet)
            self.kernel_us = self.emulated.measured_us
        return after, report.tolist()


def _placed(inputs: Sequence[Array], outputs: Sequence[Array]) -> tuple[list[tuple[int, int]], int]:
    """Place each rank's input and output in one block of memory, overlapping if they do; return its length too."""
    offsets, end = [], 0
    for rank, (input_array, output_array) in enumerate(zip(inputs, outputs, strict=True)):
        if not (input_array.flags.c_contiguous and output_array.flags.c_contiguous):
            raise InputError(f"rank {rank}: a buffer with gaps; it must be contiguous")
        pair = [(array.ctypes.data, array.nbytes) for array in (input_array, output_array)]
        if np.shares_memory(input_array, output_array):
            first = min(at for at, _ in pair)
            offsets.append((end + pair[0][0] - first, end + pair[1][0] - first))
            end += max(at + size for at, size in pair) - first
        else:
            offsets.append((end, end + _round_up(pair[0][1])))
            end += _round_up(pair[0][1]) + pair[1][1]
        end = _round_up(end)
    return offsets, end


def run_in_arena(
    encoded: Encoded,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    launch: Callable[[list[tuple[int, int]], Array], tuple[Array, Sequence[int]]],
) -> None:
    """Run the kernel on NumPy buffers: they are copied into one block of memory, the arena, and back.

    Args:
        encoded: The program.
        inputs: Input of each rank.
        outputs: Output of each rank.
        launch: Function of the offsets of each rank's input and output in the arena, in bytes, and of the arena. It
            returns the arena after the run and the kernel's report.

    Raises:
        InputError: The report names a fault, or an array has gaps.
    """
    offsets, size = _placed(inputs, outputs)
    arena = np.zeros(-(-size // 8) * 8, dtype=np.uint8)
    views = [
        (arena[at : at + array.nbytes], array)
        for pair, arrays in zip(offsets, zip(inputs, outputs, strict=True), strict=True)
        for at, array in zip(pair, arrays, strict=True)
    ]
    for view, array in views:
        view[:] = array.view(np.uint8)
    after, report = launch(offsets, arena)
    error = encoded.explain(report)
    if error is not None:
        raise error
    arena[:] = after
    for view, array in views:
        array.view(np.uint8)[:] = view


def _round_up(size: int) -> int:
    return -(-size // 16) * 16


@lru_cache
def _before() -> tuple[str, ...]:
    """Return the command that disables random addresses, which thread sanitizers need; empty where there is none."""
    fixed = shutil.which("setarch")
    if fixed and subprocess.run([fixed, "-R", "true"], capture_output=True, check=False).returncode == 0:
        return fixed, "-R"
    return ()
