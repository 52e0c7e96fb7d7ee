"""The back ends of `synth bench`: a row each. A new one is a row here and its executor's folder."""

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

from runtime.bench import Request, Session
from runtime.gpu.cuda import cupy, gpu_names
from runtime.torch.launch import is_rank_of_job, launch_ranks, world_size
from topologies.errors import InputError


def _processor() -> str:
    """This machine's, as it names itself."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            word, _, name = line.partition(":")
            if word.strip() == "model name" and name.strip():
                return f"{os.cpu_count()} × {name.strip()}"
    return f"{os.cpu_count()} × {platform.processor() or platform.machine()}"


@dataclass(frozen=True)
class Backend:
    """One row."""

    name: str
    summary: str  # for --help
    module: str  # loaded when it is to measure, with measuring(Request) → Session
    require: Callable[[], object] = lambda: None  # raises InputError that says what is missing on this machine
    by_default: bool = False  # taken where no back end is named; the first row that is available
    options: frozenset[str] = frozenset()  # those of `synth bench` that only some back ends take
    in_job: bool = False  # each of its ranks is a process
    tells_protocols: bool = True  # whether programs run otherwise under another protocol
    machine: Callable[[], str] = _processor  # what it runs on, in words

    def is_available(self) -> bool:
        try:
            self.require()
        except InputError:
            return False
        return True

    def open(self, request: Request) -> Session:
        """What measures, while the context lasts. Outside a job that it needs: starts its ranks, leaves as they end."""
        if self.in_job and not is_rank_of_job():
            raise SystemExit(launch_ranks(request.nranks, sys.argv[1:]))
        session: Session = import_module(self.module).measuring(request)
        return session


def _require_torch() -> None:
    if find_spec("torch") is None:
        raise InputError("the torch back end needs PyTorch: pip install 'synth-collectives[torch]'")


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
    """The back end of this name; without one, the first available that takes these options of `synth bench`.

    Raises InputError for one that is not known or not available here, for an option that it does not take, or where
    this process is one of several that would disturb each other.
    """
    able = [row for row in BACKENDS.values() if row.options.issuperset(options)]
    if name is None:
        usual = [row for row in able if row.by_default]
        row = usual[0] if options else next(row for row in usual if row.is_available())
    else:
        if name not in BACKENDS:
            raise InputError(f"--backend: {name!r} is not known; it must be one of {', '.join(BACKENDS)}")
        row = BACKENDS[name]
        for option in options:
            if option not in row.options:
                takers = " or ".join(row.name for row in BACKENDS.values() if option in row.options)
                raise InputError(f"{option}: not with --backend {name}; it must be with --backend {takers}")
    if not row.in_job and (world_size() or 1) > 1:
        raise InputError("one rank of several, as torchrun starts them; it must be with --backend torch")
    row.require()
    return row
