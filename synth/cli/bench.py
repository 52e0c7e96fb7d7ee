"""The command `bench`: runs executors' files on this machine and prints nccl-tests' table."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from runtime.bench import Executor, Row, measured, sizes
from runtime.dtypes import reducer, type_named
from runtime.gpu.cuda import cupy
from runtime.gpu.executor import GpuExecutor
from runtime.gpu.pace import Pace, Paced
from runtime.host.executor import HostExecutor
from synth.cli.bench_choice import Chosen, Known, chooser
from synth.cli.bench_table import HEAD, line, said
from synth.cli.bench_torch import over_torch
from synth.cli.options import json_option, print_json
from synth.model.pattern import parse_size
from synth.model.problem import parse_ranks
from topologies.errors import InputError
from topologies.load import load
from topologies.topology import Topology

_BEHIND = 1.02  # of the network's own time: from here on it is said


@click.command("bench")
@click.argument("path")
@click.option(
    "--backend",
    type=click.Choice(["host", "gpu", "torch"]),
    help="gpu: a GPU stands for all ranks; host: threads of this CPU; torch: a process a rank. Default: gpu where there"
    " is one, else host.",
)
@click.option("-b", "--minbytes", default="1M", metavar="SIZE", help="Smallest message. Default: 1M.")
@click.option("-e", "--maxbytes", metavar="SIZE", help="Largest message. Default: the smallest.")
@click.option("-f", "--stepfactor", type=float, default=2.0, metavar="X", help="Each size X times the last.")
@click.option("-i", "--stepbytes", metavar="SIZE", help="Each size so much more than the last.")
@click.option(
    "-d", "--datatype", default="float", metavar="TYPE", help="float, half, bfloat16, double, int32, int64."
)
@click.option("-o", "--op", default="sum", metavar="OP", help="sum, prod, max, min or avg.")
@click.option(
    "-n", "--iters", type=click.IntRange(1), default=5, metavar="N", help="Runs that count. Default: 5."
)
@click.option(
    "-w", "--warmup-iters", type=click.IntRange(0), default=1, metavar="N", help="Runs before. Default: 1."
)
@click.option(
    "--devices", metavar="LIST", help="Several GPUs, as 0,1: each stands for its share of the ranks."
)
@click.option(
    "--emulate",
    metavar="T",
    help="One GPU takes the time of this network: machine, machine:N, family (torus:4x4) or FILE.toml.",
)
@click.option(
    "--slower",
    type=float,
    default=1.0,
    metavar="X",
    help="With --emulate: on a network X times slower, which the GPU can follow; times are given as if X were 1.",
)
@click.option(
    "--topo", metavar="T", help="For the predicted time and the bound. Default: what the file was made for."
)
@click.option("--collective", metavar="NAME", help="Of a library: which collective. Default: the only one.")
@click.option("--group", metavar="RANKS", help="Of a library: which group. Default: the only one.")
@json_option
def bench(
    path: str,
    backend: str | None,
    minbytes: str,
    maxbytes: str | None,
    stepfactor: float,
    stepbytes: str | None,
    datatype: str,
    op: str,
    iters: int,
    warmup_iters: int,
    devices: str | None,
    emulate: str | None,
    slower: float,
    topo: str | None,
    collective: str | None,
    group: str | None,
    as_json: bool,
) -> None:
    """Run an MSCCL XML, or a library's file for each size, and measure it as nccl-tests does.

    Exit code 0: every element right; 1: some wrong; 2: it cannot be run.

    \b
    synth bench out/msccl/FILE.xml -b 8 -e 64M -f 4
    """

    low = parse_size(minbytes, "--minbytes")
    high = parse_size(maxbytes, "--maxbytes") if maxbytes else low
    step = parse_size(stepbytes, "--stepbytes") if stepbytes else 0
    if high < low:
        raise InputError(f"-e {maxbytes}: would be {minbytes} (-b) or more")
    asked = list(sizes(low, high, stepfactor, step))
    type_named(datatype), reducer(op, "float")  # refused before the head of the table
    backend, made = _executors(backend, devices, emulate, slower)
    network = _network(emulate)
    about = network or _network(topo)
    choose = chooser(Path(path), collective, group)
    chosen = [(size, found) for size in asked if (found := choose(size)) is not None]
    if not chosen:
        raise InputError(f"{path}: no algorithm serves any of the sizes")
    run = _Run(backend, network, about, slower, as_json)
    if made is None:
        with over_torch(Path(path), chosen[0][1].program.nranks, datatype, op, iters, warmup_iters) as (
            measure,
            tells,
        ):
            run.tells = tells
            run.rows_of(chosen, measure)
    else:
        run.rows_of(chosen, run.executed(made, datatype, op, iters, warmup_iters))
    if run.tells:
        for size in sorted(set(asked) - {size for size, _ in chosen}):
            click.echo(f"# no algorithm of {path} serves {size} bytes", err=True)
        run.end()
    if run.wrong:
        raise SystemExit(1)


class _Run:
    """The rows of one command, told as they come."""

    def __init__(
        self, backend: str, network: Topology | None, about: Topology | None, slower: float, as_json: bool
    ) -> None:
        """network: that is emulated. about: that times are predicted on; None: what each file was made for."""
        self._backend, self._network, self._slower, self._json = backend, network, slower, as_json
        self._about = about
        self.tells = True
        self.wrong = 0
        self._behind = 1.0
        self._rows: list[dict[str, Any]] = []
        self._paced: Paced | None = None  # of the last run

    def rows_of(self, chosen: Sequence[tuple[int, Chosen]], measure: Callable[[Chosen, int], Row]) -> None:
        """Measure each file at its size."""

        known: dict[str, Known] = {}
        for size, of in chosen:
            row = measure(of, size)
            self.wrong += row.wrong
            if not self.tells:
                continue
            if of.name not in known:
                known[of.name] = Known(of, self._about or of.made_for(), self._about is not None)
            figures = known[of.name].predicted_us(row.size_bytes), known[of.name].bound_us(row.size_bytes)
            self._rows.append(said(row, of.name, self._backend, *figures))
            if self._paced is not None and self._network is not None:
                paced = {"network": self._network.name, "slower": self._slower, "due_us": self._paced.due_us}
                self._rows[-1] |= paced
                self._behind = max(self._behind, self._paced.measured_us / max(self._paced.due_us, 1e-9))
            if not self._json:
                click.echo((HEAD + "\n" if len(self._rows) == 1 else "") + line(row, of.name, *figures))

    def executed(
        self, made: Maker, kind: str, op: str, iterations: int, warmup: int
    ) -> Callable[[Chosen, int], Row]:
        """What measures a file at a size with an executor of this process."""

        executors: dict[str, Executor] = {}

        def measure(of: Chosen, size: int) -> Row:
            if of.name not in executors:
                executors[of.name] = made(of, self._network)
            executor = executors[of.name]
            row = measured(
                of.program, of.goal, size, kind, op, executor=executor, iterations=iterations, warmup=warmup
            )
            self._paced = getattr(executor, "paced", None)
            return row

        return measure

    def end(self) -> None:
        """The last lines."""
        right = "every element right" if not self.wrong else f"{self.wrong} elements wrong"
        if self._json:
            print_json({"rows": self._rows, "wrong": self.wrong})
        else:
            on = "" if self._network is None else f", {self._network.name}'s time"
            click.echo(f"# {self._backend}{on}: {right}")
        if self._behind > _BEHIND and self._network is not None:
            click.echo(
                f"# the GPU came up to {self._behind - 1:.0%} behind {self._network.name}'s own time: give a larger"
                " --slower",
                err=True,
            )


Maker = Callable[["Chosen", "Topology | None"], "Executor"]


def _network(spec: str | None) -> Topology | None:

    return None if spec is None else load(spec)


def _executors(
    backend: str | None, devices: str | None, emulate: str | None, slower: float
) -> tuple[str, Maker | None]:
    """The back end's name, and what makes its executor for a file, None for torch. InputError where there is none."""
    for name, given in (("--devices", devices), ("--emulate", emulate), ("--slower", slower != 1 or None)):
        if given is not None and backend in ("host", "torch"):
            raise InputError(f"{name}: is for GPUs; would be with --backend gpu")
    if slower != 1 and emulate is None:
        raise InputError("--slower: is for a network that is emulated; would be with --emulate")
    if backend == "torch":
        return backend, None
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise InputError("one rank of several, as torchrun starts them: would be with --backend torch")
    wants_gpu = backend == "gpu" or devices is not None or emulate is not None
    if not wants_gpu and (backend == "host" or not _has_gpu()):
        return "host", _on_host

    module = cupy()
    count = int(module.cuda.runtime.getDeviceCount())
    numbers = None if devices is None else parse_ranks(devices, "--devices", count)

    def on_gpu(chosen: Chosen, network: Topology | None) -> Executor:
        return _on_gpu(chosen, network, numbers, slower)

    return "gpu", on_gpu


def _has_gpu() -> bool:

    try:
        cupy()
    except InputError:
        return False
    return True


def _on_host(chosen: Chosen, _: Topology | None) -> Executor:

    return HostExecutor(chosen.program, chosen.goal)


def _on_gpu(
    chosen: Chosen, network: Topology | None, devices: Sequence[int] | None, slower: float
) -> Executor:

    pace = None
    if network is not None:
        pace = Pace(chosen.program, network, chosen.communicator(network), slower)
    return GpuExecutor(chosen.program, chosen.goal, pace=pace, devices=devices)
