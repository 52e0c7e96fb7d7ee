"""A part of synth that fails costs only its own answers, and is named."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

from emit.library.programs import Programs, executor_for
from synth import synthesize
from synth.app.cli import main
from synth.bounds.witnesses.cut import Cut
from synth.engines.registry import ENGINES, EngineRow
from synth.engines.request import Options
from synth.model.defects import DefectError
from synth.model.problem import make_problem
from synth.search.search import search
from synth.search.settings import TargetSettings
from synth.solvers.workers import Workers
from topologies.load import load

pytestmark = pytest.mark.usefixtures("planted_defects")


def accepts(*_: object) -> str:
    """Accept every problem."""
    return ""


def solve(*_: object) -> NoReturn:
    raise OverflowError("planted")


def _this_module() -> ModuleType:
    return sys.modules[__name__]


class _FailsAtOnce(EngineRow):
    def accepts(self, *_: object) -> str:
        raise ZeroDivisionError("planted")


class _FailsLater(EngineRow):
    def solve(self, *_: object) -> Iterator[NoReturn]:
        raise IndexError("planted")
        yield


@pytest.mark.parametrize("failing", [EngineRow, _FailsAtOnce, _FailsLater])
def test_an_engine_that_fails_costs_its_answers_only(
    failing: type[EngineRow], workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENGINES, "route", failing("route", "planted", _this_module))
    problem = make_problem(load("ring:5"), "alltoall")
    result = search(problem, Options(1 << 16, budget_s=0.4), workers)
    assert result.ranges
    assert result.bound.witnesses
    assert any(defect.line.startswith("engine route failed (") for defect in result.defects)
    assert all("planted" in defect.trace for defect in result.defects)


def test_where_every_engine_fails_the_defect_is_the_error(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, engine in ENGINES.items():
        monkeypatch.setitem(ENGINES, name, _FailsLater(name, "planted", engine.load))
    with pytest.raises(DefectError, match=r"engine .* failed .IndexError in test_defects.py:"):
        search(make_problem(load("ring:3"), "alltoall"), Options(budget_s=3), workers)


def test_a_bound_that_fails_costs_its_witnesses_only(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    def limit(*_: object) -> NoReturn:
        raise ArithmeticError("planted")

    monkeypatch.setattr(Cut, "limit", limit)
    result = search(make_problem(load("line:3"), "alltoall"), Options(1 << 10, engine="route", budget_s=3), workers)
    assert result.ranges
    assert result.bound.witnesses
    assert any(defect.line.startswith("bound cut failed (ArithmeticError") for defect in result.defects)


def test_a_lowering_that_fails_leaves_the_schedule(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    def lower(*_: object, **__: object) -> NoReturn:
        raise KeyError("planted")

    problem = make_problem(load("ring:3"), "allgather")
    executor = executor_for(problem, TargetSettings("executor-nccl"))
    monkeypatch.setattr(Programs, "lower", lower)
    result = search(problem, Options(1 << 16, engine="route", budget_s=3), workers, executor=executor)
    assert result.ranges
    assert result.ranges[0].refused == "lowering of route failed"


def test_the_command_line_names_the_defect_and_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ENGINES, "route", EngineRow("route", "planted", _this_module))
    arguments = [
        "synth",
        "alltoall",
        "--topo",
        "ring:3",
        "--size",
        "64K",
        "--budget",
        "2s",
        "--out",
        str(tmp_path),
        "--cache",
    ]
    monkeypatch.setattr(sys, "argv", [*arguments, "none"])
    main()
    captured = capsys.readouterr()
    assert "replayed and right" in captured.out
    assert "synth: defect: engine route failed (OverflowError in test_defects.py:" in captured.err
    assert (
        f"Please send this command: synth alltoall --topo ring:3 --size 64K --budget 2s --out {tmp_path}"
        in captured.err
    )
    assert "Traceback" not in captured.err
    monkeypatch.setattr(sys, "argv", [*arguments, "none", "--debug"])
    main()
    assert "Traceback" in capsys.readouterr().err


def test_a_command_that_fails_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def load_nothing(*_: object) -> NoReturn:
        raise LookupError("planted")

    monkeypatch.setattr("synth.app.cli.topologies.load_machine", load_nothing)
    monkeypatch.setattr("synth.app.cli.defects._shows_traces", False)
    monkeypatch.setattr(sys, "argv", ["synth", "topo", "show", "ring:3"])
    with pytest.raises(SystemExit, match="4"):
        main()
    assert capsys.readouterr().err.startswith("synth: defect: the command failed (LookupError in test_defects.py:")


def test_the_python_face_has_the_defects(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "route", EngineRow("route", "planted", _this_module))
    answer = synthesize("alltoall", "ring:5", size="64K", budget=0.5, workers=workers)
    assert any("engine route" in defect.line for defect in answer.result.defects)
