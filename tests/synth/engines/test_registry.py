"""A new engine is one file and one row, and every row keeps the promises of the engines' interface."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from synth import synthesize
from synth.app.cli import main
from synth.baselines import CLOSED_FORMS
from synth.engines.registry import ENGINES, EngineRow, engines_named, names, register
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.model.collective import Collective, uneven
from synth.model.problem import Problem, make_problem
from synth.model.schedule import untimed
from synth.search.search import search
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from topologies.costed import with_costs
from topologies.errors import InputError
from topologies.faults.apply import apply_faults
from topologies.load import load


def accepts(problem: Problem, _options: Options) -> str:
    """Accept an all-gather of three ranks."""
    return "" if problem.nranks == 3 and problem.collective.name == "allgather" else "toys are for three ranks"


def solve(problem: Problem, request: Request) -> Iterator[Outcome]:
    """Yield the direct exchange: every rank sends its block to both other ranks."""
    yield Progress("playing")
    net = problem.network
    rows = [(chunk, link) for chunk in range(3) for link in range(net.nlinks) if net.src[link] == chunk]
    chunk, link = (np.array(column) for column in zip(*rows, strict=True))
    candidate = Candidate(problem, untimed(chunk, link, chunk * 0, chunk < 0), "toy", request.sizes[0])
    yield candidate
    assert np.isfinite(request.knowledge.time_us(candidate))
    assert request.knowledge.fewest_steps() == 1


def _this_module() -> ModuleType:
    return sys.modules[__name__]


@pytest.fixture
def toy() -> Iterator[EngineRow]:
    yield register(EngineRow("toy", "for tests", _this_module))
    del ENGINES["toy"]


@pytest.mark.usefixtures("toy")
def test_a_new_engine_is_asked_and_answers(workers: Workers) -> None:
    assert "toy" in names()
    answer = synthesize("allgather", "full:3", chunks=1, engine="toy", workers=workers)
    assert {row["engine"] for row in answer.algorithms} == {"toy"}
    assert answer.gap == 1.0
    # It is also used among all engines, where the bound is not reached before.
    problem = make_problem(apply_faults(load("full:3"), (), ("link:0-1=30%",)), "allgather")
    progress_lines: list[str] = []
    result = search(problem, Options(budget_s=1), workers, lambda text, _: progress_lines.append(text))
    assert "playing" in progress_lines
    assert result.ranges
    with pytest.raises(InputError, match="engine toy: toys are for three ranks"):
        synthesize("allgather", "full:4", engine="toy", workers=workers)


@pytest.mark.usefixtures("toy")
def test_the_command_line_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "synth",
        "allgather",
        "--topo",
        "full:3",
        "--chunks",
        "1",
        "--json",
        "--out",
        str(tmp_path),
        "--engine",
    ]
    monkeypatch.setattr(sys, "argv", [*arguments, "toy"])
    main()
    assert json.loads(capsys.readouterr().out)["algorithms"][0]["engine"] == "toy"
    monkeypatch.setattr(sys, "argv", [*arguments, "tow"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "did you mean toy" in capsys.readouterr().err


@pytest.mark.usefixtures("toy", "planted_defects")
def test_a_wrong_answer_is_not_used(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = solve

    def lie(problem: Problem, request: Request) -> Iterator[Outcome]:
        for outcome in honest(problem, request):
            if isinstance(outcome, Candidate):
                few = outcome.schedule.take(np.arange(3))
                yield Candidate(problem, few, "toy")

    monkeypatch.setattr(sys.modules[__name__], "solve", lie)
    answer = synthesize("allgather", "full:3", engine="toy", workers=workers)
    assert "toy" not in {row["engine"] for row in answer.algorithms}
    [defect] = answer.result.defects
    assert defect.line.startswith("engine toy failed (ScheduleRefused in replay.py:")


def test_an_unknown_engine_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match=r"engine: 'flw' is not known; did you mean flow\? synth engines lists all"):
        engines_named("flw")


# One engine needs a switch that does more than forward.
APART: dict[str, tuple[str, str | Collective]] = {
    "switch": ("dgx-h100", "broadcast"),
    "two-hops": ("full:4", "reduce"),
    "balanced": ("full:4", uneven("allgatherv", np.array([4.0, 1.0, 0.0, 2.0]))),
    "one-shot": ("line:3", "allreduce"),
    "levels": ("fattree:2x2x2", "reduce"),
    "skewed": ("dgx-h100:2", uneven("alltoallv", np.add.outer(np.arange(16), np.arange(16) ** 2) * 1.0)),
    "messages": ("full:4,gap_us=1", "allgather"),
    "rails": ("dgx-h100:2", "allgather"),
}


@pytest.mark.parametrize(
    ("name", "where", "collective"),
    [(name, *question) for name, question in APART.items()]
    + [
        (name, where, "allgather")
        for name in sorted(set(ENGINES) - set(CLOSED_FORMS) - set(APART))
        for where in ("ring:4", "mesh:2x3")
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_every_engine_claims_the_time_that_its_schedule_takes(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, name: str, where: str, collective: str | Collective
) -> None:
    """Check that `knowledge.time_us` of a candidate is the time of the replayed algorithm."""
    problem, engine = make_problem(load(where), collective), ENGINES[name]
    if name == "messages":  # It needs messages with a gap.
        problem = make_problem(with_costs(load(where)), collective).under("Simple")
    if name == "rails":  # It needs nodes that are not alike.
        problem = make_problem(load(where), collective, group=(0, 1, 2, 8, 9))
    options = Options(size=1 << 20, engine=name, budget_s=1)
    claims: list[tuple[Candidate, float]] = []

    def watched(engine_problem: Problem, request: Request) -> Iterator[Outcome]:
        for outcome in engine.solve(engine_problem, request):
            yield outcome
            if isinstance(outcome, Candidate):
                claims.append((outcome, request.knowledge.time_us(outcome)))

    monkeypatch.setitem(ENGINES, name, replace(engine, load=_this_module))
    monkeypatch.setattr(sys.modules[__name__], "accepts", engine.accepts)
    monkeypatch.setattr(sys.modules[__name__], "solve", watched)
    assert search(problem, options, workers).ranges
    for candidate, time_us in claims:
        algorithm = Algorithm(candidate.problem, candidate.schedule, name)
        assert algorithm.time_us(1 << 20) == pytest.approx(time_us, rel=1e-9)
