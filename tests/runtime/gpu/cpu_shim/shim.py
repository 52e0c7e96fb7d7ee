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

_FLAGS = ("-std=c++17", "-O1", "-g", "-fwrapv", "-fno-strict-aliasing", "-pthread")
HERE = Path(__file__).parent
_OWN = ("shim.cpp", "shim.h")
_KERNEL = ("elements.h", "pace.h", "interpreter.cu")


class SanitizerReport(InputError):
    """The sanitizer saw a fault while the kernel ran; the message is the beginning of what it wrote."""


def compiler() -> str | None:
    """A C++ compiler on this machine: $CXX, c++, g++ or clang++."""
    asked = os.environ.get("CXX")
    return next((path for name in (asked, "c++", "g++", "clang++") if name and (path := shutil.which(name))), None)


def built(folder: Path, sanitizer: str = "", paced: bool = False, kernel: Path = SOURCE.parent) -> Path:
    """The kernel compiled for this machine's CPU; made once a folder, source and sanitizer.

    sanitizer: "", "thread", "address,undefined", …: a program for ShimExecutor; "shared": a library instead.
    paced: that can take a network's time, and always does. kernel: the folder of interpreter.cu and its headers.
    Raises InputError where there is no compiler or it fails.
    """
    found = compiler()
    if found is None:
        raise InputError("no C++ compiler; it must be one named by CXX, or c++, g++ or clang++ in PATH")
    text = b"".join(path.read_bytes() for path in (*(HERE / p for p in _OWN), *(kernel / p for p in _KERNEL)))
    flags = (*_FLAGS, "-DPACED") if paced else _FLAGS
    mark = hashlib.sha256(" ".join((found, *flags, sanitizer)).encode() + text).hexdigest()[:16]
    made = folder / f"interpreter-{mark}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(made.with_suffix(".lock"), "w") as lock:  # of two processes one waits for what the other makes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _compile(found, flags, sanitizer, kernel, made)
    return made


def _compile(found: str, flags: Sequence[str], sanitizer: str, kernel: Path, made: Path) -> None:
    partial = made.with_suffix(f".{os.getpid()}")
    extra = [f"-fsanitize={sanitizer}"] if sanitizer else []
    if sanitizer == "shared":
        extra = ["-shared", "-fPIC"]
    if sanitizer:
        extra.append("-O0")  # built sooner, which is most of the time that a test takes
    command = [found, *flags, *extra, f"-I{kernel}", str(HERE / _OWN[0]), "-o", str(partial)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        first = next((line for line in ended.stderr.splitlines() if "error" in line), ended.stderr[:200])
        raise InputError(f"{found} does not compile {_OWN[0]}: {first}")
    partial.replace(made)


class ShimExecutor:
    """An `Executor` that runs the kernel on CPU threads.

    binary: from `built`, `paced` where there is a pace. threads: of a block. launches: one after the other, each on
    the inputs as given. devices: as many launches at once, as of several GPUs. depth, slot_bytes, limit_s, pace: see
    `Encoded`. SanitizerReport is raised for what a sanitizer sees.

    Attributes:
        kernel_us, emulated: see `Executor`; both None without a pace.
        sheet: with a pace, all its numbers as the last launch left them.
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
        """Execute once; see `Executor.run`."""
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
        """The buffers and the report afterwards."""
        e = self.encoded
        averages = e.averages(op)
        *scratch, scratch_bytes = scratch_offsets(e, layout, kind)
        memory = np.array([[*pair, at] for pair, at in zip(offsets, scratch, strict=True)], dtype=np.int64)
        names = list(dict.fromkeys(REDUCTION_NAMES.values()))
        asked = [
            list(TYPE_NAMES).index(kind),
            names.index(REDUCTION_NAMES[op]),
            self.threads,
            self.launches,
            len(e.columns.connections),
            scratch_bytes,
        ]
        sizes = e.sizes(layout, kind, len(averages))
        parts: list[Array] = [
            np.array(asked, dtype=np.int64),
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
        wanted = arena.nbytes + 4 * REPORT + sheet.nbytes
        if ended.returncode or len(ended.stdout) != wanted:
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
    """Where each rank's input and output lie in one block of memory, together if they share theirs; its length."""
    offsets, end = [], 0
    for rank, (given, made) in enumerate(zip(inputs, outputs, strict=True)):
        if not (given.flags.c_contiguous and made.flags.c_contiguous):
            raise InputError(f"rank {rank}: a buffer with gaps; it must be contiguous")
        pair = [(array.ctypes.data, array.nbytes) for array in (given, made)]
        if np.shares_memory(given, made):
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

    launch: given where each rank's input and output begin in the arena, in bytes, and the arena; it gives the arena
    afterwards and the kernel's report. Raises InputError for what the report says, or arrays with gaps.
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
    """Thread sanitizers want addresses that are not random; where that may be asked for, it is."""
    fixed = shutil.which("setarch")
    if fixed and subprocess.run([fixed, "-R", "true"], capture_output=True, check=False).returncode == 0:
        return fixed, "-R"
    return ()
