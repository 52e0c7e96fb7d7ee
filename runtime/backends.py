"""The back ends of `synth bench`: a row each. A new one is a row here and its executor's folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from emit.goal import Goal
from emit.program import Program
from runtime.bench import Row, Settings, measure
from runtime.executor import Executor
from runtime.gpu.cuda import cupy
from runtime.gpu.executor import GpuExecutor
from runtime.gpu.pace import Pace
from runtime.host.executor import HostExecutor
from runtime.torch.launch import is_rank_of_job, launch_ranks
from synth.model.problem import parse_ranks
from topologies.errors import InputError
from topologies.topology import Topology


class Algorithm(Protocol):
    """A program to measure. communicator: the topology's rank of each of the program's, None: the first ones."""

    name: str
    program: Program
    goal: Goal | None

    def communicator(self, topology: Topology) -> tuple[int, ...] | None: ...


@dataclass(frozen=True)
class Request:
    """What is measured, and on what."""

    path: Path  # the file or library of the algorithms
    nranks: int
    settings: Settings
    devices: str | None = None  # numbers of GPUs, as `parse_ranks` takes them
    network: Topology | None = None  # to be emulated, `slower` times slower than it is
    slower: float = 1.0


Measure = Callable[[Algorithm, int], Row]  # an algorithm at a size in bytes
Session = AbstractContextManager[tuple[Measure, bool]]  # what measures; whether this process is to print


@dataclass(frozen=True)
class Backend:
    """One row."""

    name: str
    summary: str  # for --help
    require: Callable[[], object]  # raises InputError that says what is missing on this machine
    open: Callable[[Request], Session]  # what measures, while the context lasts
    by_default: bool = False  # taken where no back end is named; the first row that is available
    options: frozenset[str] = frozenset()  # those of `synth bench` that only some back ends take
    in_job: bool = False  # each of its ranks is a process

    def is_available(self) -> bool:
        try:
            self.require()
        except InputError:
            return False
        return True


@contextmanager
def _in_process(request: Request, make: Callable[[Algorithm], Executor]) -> Iterator[tuple[Measure, bool]]:
    """Executors of this process, each made once."""
    executors: dict[str, Executor] = {}

    def measure_algorithm(algorithm: Algorithm, size_bytes: int) -> Row:
        if algorithm.name not in executors:
            executors[algorithm.name] = make(algorithm)
        executor = executors[algorithm.name]
        return measure(algorithm.program, algorithm.goal, size_bytes, executor, request.settings)

    yield measure_algorithm, True


def _on_gpus(request: Request) -> Session:
    devices = None
    if request.devices is not None:
        devices = parse_ranks(request.devices, "--devices", int(cupy().cuda.runtime.getDeviceCount()))

    def make(a: Algorithm) -> Executor:
        pace = None
        if request.network is not None:
            pace = Pace(a.program, request.network, a.communicator(request.network), request.slower)
        return GpuExecutor(a.program, a.goal, pace=pace, devices=devices)

    return _in_process(request, make)


def require_torch() -> None:
    """Raises InputError without PyTorch."""
    if find_spec("torch") is None:
        raise InputError("the torch back end needs PyTorch: pip install 'synth-collectives[torch]'")


@contextmanager
def _over_torch(request: Request) -> Iterator[tuple[Measure, bool]]:
    """A process a rank: outside a job it starts the ranks here, and leaves with their exit code."""
    if not is_rank_of_job():
        raise SystemExit(launch_ranks(request.nranks, sys.argv[1:]))
    path = request.path
    os.environ["SYNTH_LIBRARY"] = str(path.parent if path.name == "index.json" else path)
    from runtime.measure.over_torch import joined, measure_program  # needs PyTorch

    with joined() as (me, world):
        if world != request.nranks:
            raise InputError(f"{path}: is for {request.nranks} ranks; this job has {world}")
        yield lambda a, size: measure_program(a.program, a.name, size, request.settings), me == 0


BACKENDS = {
    row.name: row
    for row in (
        Backend(
            "gpu",
            "a GPU stands for all ranks",
            cupy,
            _on_gpus,
            by_default=True,
            options=frozenset({"--devices", "--emulate", "--slower"}),
        ),
        Backend(
            "host",
            "threads of this CPU",
            lambda: None,
            lambda r: _in_process(r, lambda a: HostExecutor(a.program, a.goal)),
            by_default=True,
        ),
        Backend("torch", "a process a rank", require_torch, _over_torch, in_job=True),
    )
}


def choose_backend(name: str | None, options: Collection[str]) -> Backend:
    """The back end of this name; without one, the first available that takes these options of `synth bench`.

    Raises InputError for one that is not known or not available here, or for an option that it does not take.
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
    if not row.in_job and int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise InputError("one rank of several, as torchrun starts them; it must be with --backend torch")
    row.require()
    return row
