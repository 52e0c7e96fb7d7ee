"""The registry of back ends: a row is enough for `synth bench --backend`; every executor keeps the protocol."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emit.goal import Goal
from emit.msccl.format import write_msccl
from emit.program import Program
from runtime.backends import BACKENDS, Backend, choose_backend
from runtime.bench import (
    _MOST_EXECUTORS,
    BenchAlgorithm,
    BenchExecutor,
    BenchRequest,
    BenchRow,
    Measure,
    Settings,
    in_process,
    measure,
)
from runtime.host.executor import HostExecutor
from synth.app.cli.measuring.bench import bench
from tests.runtime.example_runs import PROGRAMS
from topologies.errors import InputError
from topologies.topology import Topology


@dataclass(frozen=True)
class Measurable:
    """The part of an `Algorithm` that a back end needs."""

    name: str
    program: Program
    goal: Goal | None

    def communicator(self, topology: Topology) -> tuple[int, ...] | None:  # noqa: ARG002 - as an Algorithm has it
        return None


def measuring(request: BenchRequest) -> AbstractContextManager[tuple[Measure, bool]]:
    """Build the toy back end: it runs everything on the host, and reports 7 µs."""

    def run(a: BenchAlgorithm, size_bytes: int) -> BenchRow:
        row = measure(a.program, a.goal, size_bytes, HostExecutor(a.program, a.goal), request.settings)
        assert row.in_place is not None
        return replace(row, in_place=replace(row.in_place, time_us=7.0))

    return nullcontext((run, True))


def test_a_row_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(BACKENDS, "toy", Backend("toy", "a toy", __name__))
    path = tmp_path / "ring.xml"
    path.write_text(write_msccl(PROGRAMS[0][0]))
    answer = CliRunner().invoke(bench, [str(path), "--backend", "toy", "-b", "1K", "-n", "1"])
    assert answer.exit_code == 0, answer.output
    assert " 7.0 " in answer.output
    assert "# toy: every element right" in answer.output


def test_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(InputError, match="'tpu' is not known; it must be one of gpu, host, torch"):
        choose_backend("tpu", [])
    with pytest.raises(InputError, match="--devices: not with --backend torch; it must be with --backend gpu"):
        choose_backend("torch", ["--devices"])
    for world_size, why in (
        ("2", "it must be with --backend torch"),
        ("four", "WORLD_SIZE='four'"),
        ("0", "1 or more"),
    ):
        monkeypatch.setenv("WORLD_SIZE", world_size)
        with pytest.raises(InputError, match=why):
            choose_backend("host", [])
    for world_size in ("", "1"):
        monkeypatch.setenv("WORLD_SIZE", world_size)
        assert choose_backend("host", []).name == "host"


def test_a_missing_back_end_is_no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise InputError("not here")

    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setitem(BACKENDS, "gpu", replace(BACKENDS["gpu"], require=missing))
    assert choose_backend(None, []).name == "host"
    with pytest.raises(InputError, match="not here"):
        choose_backend(None, ["--emulate"])


def test_options_that_no_back_end_takes_together_are_refused() -> None:
    with pytest.raises(InputError, match="--devices and --trace: no back end takes them together"):
        choose_backend(None, ["--devices", "--trace"])


def test_the_latest_executors_are_kept() -> None:
    program, goal = PROGRAMS[0]
    built_names: list[str] = []

    def make(algorithm: BenchAlgorithm) -> HostExecutor:
        built_names.append(algorithm.name)
        return HostExecutor(algorithm.program, algorithm.goal)

    def run(number: int) -> None:
        named = Measurable(str(number), replace(program, name=str(number)), goal)
        assert measure_algorithm(named, 64).wrong == 0

    with in_process(BenchRequest(None, program.nranks, Settings(iterations=1, warmup=0)), make) as (
        measure_algorithm,
        _,
    ):
        for number in range(_MOST_EXECUTORS + 1):  # The last one replaces the first one.
            run(number)
        run(_MOST_EXECUTORS)
        run(1)
        assert built_names == [str(number) for number in range(_MOST_EXECUTORS + 1)]
        run(0)
        assert built_names[-1] == "0"
        run(2)  # The new one has replaced 1.
        assert built_names[-1] == "0"


def test_the_host_keeps_the_protocol() -> None:
    executor: BenchExecutor = HostExecutor(*PROGRAMS[0])
    assert executor.kernel_us is None
    assert executor.emulated is None
    assert executor.recorded is None
    with executor.at(0):
        assert len(executor.arrays.zeros(3)) == 3
