"""The registry of back ends: a row is enough for `synth bench --backend`; every executor keeps the protocol."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emit.msccl.format import write_msccl
from runtime.backends import BACKENDS, Backend, choose_backend
from runtime.bench import Algorithm, Executor, Measure, Request, Row, measure
from runtime.host.executor import HostExecutor
from synth.cli.bench import bench
from tests.runtime.example_runs import PROGRAMS
from topologies.errors import InputError


def measuring(request: Request) -> AbstractContextManager[tuple[Measure, bool]]:
    """The toy back end: it runs everything on the host, and says that it took 7 µs."""

    def run(a: Algorithm, size_bytes: int) -> Row:
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
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="it must be with --backend torch"):
        choose_backend("host", [])


def test_what_is_not_there_is_no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise InputError("not here")

    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setitem(BACKENDS, "gpu", replace(BACKENDS["gpu"], require=missing))
    assert choose_backend(None, []).name == "host"
    with pytest.raises(InputError, match="not here"):
        choose_backend(None, ["--emulate"])


def test_the_host_keeps_the_protocol() -> None:
    executor: Executor = HostExecutor(*PROGRAMS[0])
    assert executor.kernel_us is None
    assert executor.emulated is None
    assert executor.recorded is None
    with executor.at(0):
        assert len(executor.arrays.zeros(3)) == 3
