"""The back ends of `synth bench`, a row each. A new back end is a row here and a folder with its executor."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from runtime.bench import BenchRequest, Session
from runtime.gpu.cuda import cupy, gpu_names
from runtime.torch.launch import is_rank_of_job, launch_ranks, world_size
from topologies.errors import InputError


def _processor() -> str:
    """Return the number of CPUs and the name of this machine's processor, as text such as "16 × NAME"."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            word, _, name = line.partition(":")
            if word.strip() == "model name" and name.strip():
                return f"{os.cpu_count()} × {name.strip()}"
    return f"{os.cpu_count()} × {platform.processor() or platform.machine()}"


@dataclass(frozen=True)
class Backend:
    """A back end of `synth bench`.

    Attributes:
        name: Its name.
        summary: Text for --help.
        module: Module with measuring(BenchRequest) → Session, which is imported only for a measurement.
        require: Function that raises InputError with what is missing on this machine.
        by_default: True if it may be used where no back end is named; the first available one is.
        options: Options of `synth bench` that it takes and not every back end does.
        in_job: True if each of its ranks is a process.
        tells_protocols: True if programs run differently under another protocol.
        machine: Function that returns a description of the device.
    """

    name: str
    summary: str
    module: str
    require: Callable[[], object] = lambda: None
    by_default: bool = False
    options: frozenset[str] = frozenset()
    in_job: bool = False
    tells_protocols: bool = True
    machine: Callable[[], str] = _processor

    def is_available(self) -> bool:
        """Return True if this machine has what the back end needs."""
        try:
            self.require()
        except InputError:
            return False
        return True

    def open(self, request: BenchRequest) -> Session:
        """Open a session that measures while its context lasts.

        Where each rank is a process and this process is none of a job, it runs its own command line again as
        `request.nranks` ranks, and ends with their exit code when they end.

        Raises:
            SystemExit: This process has started the ranks; they have ended.
            InputError: The request does not fit this machine or job; it may be raised only when the context begins.
        """
        if self.in_job and not is_rank_of_job():
            raise SystemExit(launch_ranks(request.nranks, sys.argv[1:]))
        session: Session = import_module(self.module).measuring(request)
        return session


def _require_torch() -> None:
    """Raise InputError if PyTorch is not installed."""
    if find_spec("torch") is None:
        raise InputError("the torch back end needs PyTorch: pip install '.[torch]' in a copy of synth's sources")


_GPU_OPTIONS = frozenset({"--devices", "--emulate", "--slower"})
_HOST_OPTIONS = frozenset({"--trace"})
BACKENDS = {
    row.name: row
    for row in (
        Backend(
            "gpu", "a GPU stands for all ranks", "runtime.gpu.executor", cupy, True, _GPU_OPTIONS, machine=gpu_names
        ),
        Backend("host", "threads of this CPU", "runtime.host.executor", by_default=True, options=_HOST_OPTIONS),
        Backend(
            "torch",
            "a process a rank",
            "runtime.measure.bench_over_torch",
            _require_torch,
            in_job=True,
            tells_protocols=False,
        ),
    )
}


def choose_backend(name: str | None, options: Collection[str]) -> Backend:
    """Return the back end of this name, or a default one that takes these options of `synth bench`.

    Args:
        name: Name of the back end; None for a default one: without options the first that is available here, with
            options the first that takes them all, whether it is available or not.
        options: Options that are given and that not every back end takes, as in `Backend.options`.

    Raises:
        InputError: The back end is unknown or not available here, or does not take an option; or this process is one of
            several ranks that would disturb each other.
    """
    suitable_rows = [row for row in BACKENDS.values() if row.options.issuperset(options)]
    if name is None:
        default_rows = [row for row in suitable_rows if row.by_default]
        if not default_rows:
            raise InputError(f"{' and '.join(options)}: no back end takes them together; give one of them")
        row = default_rows[0] if options else next(row for row in default_rows if row.is_available())
    else:
        if name not in BACKENDS:
            raise InputError(f"--backend: {name!r} is not known; it must be one of {', '.join(BACKENDS)}")
        row = BACKENDS[name]
        for option in options:
            if option not in row.options:
                takers = " or ".join(row.name for row in BACKENDS.values() if option in row.options)
                raise InputError(f"{option}: not with --backend {name}; it must be with --backend {takers}")
    if not row.in_job and (world_size() or 1) > 1:
        raise InputError(
            "this process is one of several ranks, as torchrun starts them; it must be with --backend torch"
        )
    row.require()
    return row
