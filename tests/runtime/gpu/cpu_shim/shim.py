"""The GPU's kernel on CPU threads: the same source after `shim.h`, for tests and under sanitizers. Not for speed."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
from functools import lru_cache
from pathlib import Path

import numpy as np

from emit.goal import Goal
from emit.program import Program
from runtime.buffers import Layout
from runtime.dtypes import Array
from runtime.gpu.encoding import (
    REDUCTIONS,
    REPORT,
    SOURCE,
    TYPE_NAMES,
    scratch_offsets,
)
from runtime.gpu.kernel import KernelExecutor
from runtime.gpu.pace import Pace
from topologies.errors import InputError

_FLAGS = (
    "-std=c++17",
    "-O1",
    "-g",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-pthread",
)
HERE = Path(__file__).parent
_OWN = ("shim.cpp", "shim.h")
_KERNEL = ("elements.h", "pace.h", "interpreter.cu")


class SanitizerReport(InputError):
    """The sanitizer saw a fault while the kernel ran; the message is the beginning of what it wrote."""


def compiler() -> str | None:
    """A C++ compiler on this machine: $CXX, c++, g++ or clang++."""
    asked = os.environ.get("CXX")
    return next(
        (path for name in (asked, "c++", "g++", "clang++") if name and (path := shutil.which(name))), None
    )


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
    if made.exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
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
    return made


class ShimExecutor(KernelExecutor):
    """A program ready to be run by the kernel on CPU threads. Used as HostExecutor is.

    binary: from `built`, `paced` where there is a pace. threads: of a block. launches: one after the other, each on
    the inputs as given. devices: as many launches at once, as of several GPUs. depth, slot_bytes, limit_s, pace: see
    KernelExecutor. SanitizerReport is raised for what a sanitizer sees.

    Attributes:
        sheet: with a pace, all its numbers as the last launch left them.
    """

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
        super().__init__(program, goal, depth, slot_bytes, limit_s, pace)
        self.devices = devices
        self.sheet: Array | None = None
        self.binary, self.launches, self.threads = binary, launches, threads

    def _executed(
        self, layout: Layout, offsets: list[tuple[int, int]], arena: Array, kind: str, op: str
    ) -> tuple[Array, list[int]]:
        """The buffers and the report afterwards."""
        e = self.encoded
        averages = self._averages(op)
        scratch, scratch_bytes = scratch_offsets(e, layout, kind)
        memory = np.array([[*pair, at] for pair, at in zip(offsets, scratch, strict=True)], dtype=np.int64)
        names = list(dict.fromkeys(REDUCTIONS.values()))
        asked = [
            list(TYPE_NAMES).index(kind),
            names.index(REDUCTIONS[op]),
            self.threads,
            self.launches,
            len(e.columns.connections),
            scratch_bytes,
        ]
        sizes = e.sizes(layout, kind, self.limit_ns, len(averages))
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
            said = np.frombuffer(ended.stdout[arena.nbytes + report.nbytes :], dtype=np.int64)
            self.sheet = said
            self.paced = e.pace.took(said)
            self.kernel_us = self.paced.measured_us
        return after, report.tolist()


@lru_cache
def _before() -> tuple[str, ...]:
    """Thread sanitizers want addresses that are not random; where that may be asked for, it is."""
    fixed = shutil.which("setarch")
    if fixed and subprocess.run([fixed, "-R", "true"], capture_output=True, check=False).returncode == 0:
        return fixed, "-R"
    return ()
