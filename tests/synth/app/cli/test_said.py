"""What a search says of itself is so: whose the rows are, why there is none, and what an interrupt cost."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from synth.app.cli import answer as of_one
from synth.app.cli import concurrent as of_groups
from synth.app.synthesis import synthesize
from synth.concurrent.search import ConcurrentSearch
from synth.search.pool import Pool
from tests.synth.app.cli.calling import Call, without_progress
from topologies.faults.apply import degraded
from topologies.load import load

TO_THE_END = ("--target", "none", "--budget", "60s")  # never used up: two commands find the same


@pytest.mark.parametrize("engine", ["cpsat", "milp", "route", "baseline", "auto"])
def test_every_row_names_what_found_it(synth: Call, engine: str) -> None:
    asked = ("allgather", "--topo", "ring:4", "--engine", engine, *TO_THE_END)
    said = json.loads(synth(*asked, "--json").out)
    own = {"cpsat": {"cp-sat"}, "milp": {"milp"}, "route": {"route"}, "baseline": set(said["baselines"])}
    rows = [row["engine"] for row in said["algorithms"]]
    assert said["engine"] == engine
    assert set(said["other_engines"]) == (set(rows) - own[engine] if engine in own else set())
    printed = synth(*asked).out
    head, *lines = [line for line in printed.splitlines()[2:] if "@" in line or line.startswith("message size")]
    at = head.index("engine")
    assert [line[at:].split("  ")[0] for line in lines] == rows
    others = [line for line in printed.splitlines() if line.startswith(f"--engine {engine} found nothing ")]
    assert len(others) == bool(said["other_engines"])
    assert all(name in others[0] for name in said["other_engines"])


def test_there_are_rows_of_other_engines(synth: Call) -> None:
    """A solver that is given no time has only what others found at once."""
    said = synth("allgather", "--topo", "dgx1", "--engine", "milp", "--target", "none", "--budget", "1ms").out
    assert "--engine milp found nothing faster; engines of the algorithms shown: " in said


def test_groups_name_the_engine_of_their_plan(synth: Call) -> None:
    asked = ("allgather", "--topo", "ring:6", "--groups", "0-2;3-5", "--size", "1M", *TO_THE_END)
    said, found = synth(*asked), json.loads(synth(*asked, "--json").out)
    assert f"{found['by']} ({found['engine']}); bound" in said.out


NOTHING = [
    (("--steps", "1"), "no schedule has 1 step: it takes 2 steps at least, each of a round or more"),
    (("--rounds", "1"), "no schedule has 1 round: it takes 2 steps at least, each of a round or more"),
    (
        ("--chunks", "3", "--engine", "baseline"),
        "no algorithm was found by --engine baseline with 3 chunks: the engines ended before the budget,",
    ),
    (
        ("--steps", "1000000000"),
        "no algorithm was found with 1000000000 steps: the engines ended before the budget, and nothing is proved",
    ),
]


@pytest.mark.parametrize(("asked", "words"), NOTHING)
def test_why_there_is_nothing(synth: Call, here: Path, asked: tuple[str, ...], words: str) -> None:
    said = synth("allgather", "--topo", "ring:5", "--budget", "60s", *asked)
    assert (said.code, said.err) == (1, "")
    assert words in said.out
    assert "within the budget" not in said.out
    assert "best so far" not in said.out
    assert not list(here.iterdir())


def test_a_budget_that_is_over_is_named(synth: Call) -> None:
    said = synth(
        "allreduce", "--topo", "mesh:4x4", "--steps", "7", "--rounds", "13", "--chunks", "2", "--budget", "1ms"
    )
    assert said.code == 1
    assert "no algorithm was found within the budget of 0.001 s; a larger --budget may help" in said.out


def test_a_shape_that_is_found_is_not_called_impossible() -> None:
    """Two steps cannot have these rounds, three can; on the sum of a reduce neither can have fewer than its steps."""
    found = synthesize("allgather", "dgx1", rounds=7, chunks=6, budget=20).found
    assert [(one.algorithm.rounds, one.algorithm.chunks) for one in found.ranges] == [(7, 6)]
    assert found.impossible == ""
    none = synthesize("reduce", "mesh:3x3", rounds=2, budget=20).found
    assert (none.ranges, none.impossible) == (
        [],
        "no schedule has 2 rounds: it takes 4 steps at least, each of a round or more",
    )


# Ctrl-C: what was found is never lost, and never said to be


@pytest.mark.parametrize("where", [of_one, of_groups], ids=["one", "groups"])
def test_an_interrupt_while_it_is_written(synth: Call, here: Path, monkeypatch: pytest.MonkeyPatch, where: Any) -> None:
    name = "save" if where is of_one else "save_groups"
    save = getattr(where, name)

    def saving(*given: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return save(*given, **named)

    monkeypatch.setattr(where, name, saving)
    groups = () if where is of_one else ("--groups", "0-1;2-3", "--size", "1M")
    said = synth("allgather", "--topo", "full:4", "--engine", "flow", "--budget", "1s", *groups)
    assert (said.code, said.err) == (130, "")
    assert "replayed and right" in said.out
    assert (here / "out" / "index.json").is_file()


@pytest.mark.parametrize("moment", ["files", "_settle"])
def test_an_interrupt_at_the_end_of_a_search(synth: Call, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    came: list[bool] = []
    made = getattr(Pool, moment)

    def interrupted(self: Pool, *given: Any) -> Any:
        if not came:
            came.append(True)
            raise KeyboardInterrupt
        return made(self, *given)

    monkeypatch.setattr(Pool, moment, interrupted)
    said = synth("allgather", "--topo", "ring:4", "--engine", "route", "--budget", "2s")
    assert came
    assert (said.code, said.err) == (130, "")
    assert "interrupted: the best so far" in said.out


@pytest.mark.parametrize("moment", ["_take_isolated", "_settled", "_best"])
def test_an_interrupt_at_the_end_of_groups(synth: Call, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    came: list[bool] = []
    made = getattr(ConcurrentSearch, moment)

    def interrupted(self: ConcurrentSearch, *given: Any) -> Any:
        if not came:
            came.append(True)
            raise KeyboardInterrupt
        return made(self, *given)

    monkeypatch.setattr(ConcurrentSearch, moment, interrupted)
    said = synth("allgather", "--topo", "ring:6", "--groups", "0-2;3-5", "--size", "1M", "--budget", "1s")
    assert (said.code, said.err) == (130 if came else 0, "")
    assert came or moment == "_take_isolated"
    assert "replayed and right" in said.out


def test_an_interrupt_of_what_a_dead_link_costs(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is there; only the healthy network's is not."""
    from synth.app import synthesis

    search, hurt = synthesis.search, degraded(load("ring:5"), ("link:0-1",), ()).name

    def searched(problem: Any, *given: Any, **named: Any) -> Any:
        if problem.topology.name != hurt:
            raise KeyboardInterrupt
        return search(problem, *given, **named)

    monkeypatch.setattr(synthesis, "search", searched)
    said = synth("allgather", "--topo", "ring:5", "--without", "link:0-1", "--engine", "route", *TO_THE_END)
    assert (said.code, said.err) == (130, "")
    assert "interrupted: the best so far" in said.out
    assert "vs healthy" not in said.out


def test_an_interrupt_before_there_is_anything(synth: Call, monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    from synth.app import synthesis

    def nothing(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(synthesis, "search", nothing)
    said = synth("allgather", "--topo", "ring:5")
    assert (said.code, said.out, said.err) == (130, "", "synth: interrupted before there was an answer\n")
    assert not list(here.iterdir())


def test_a_log_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Which tests leave out of what a command says, and nothing else."""
    monkeypatch.setattr(of_one, "_LOGGED_S", 0.0)
    of_one.progress_line(time.monotonic())("flow", None)
    lines = capsys.readouterr().err
    assert lines.splitlines()[-1].split(maxsplit=2)[1:] == ["s", "flow"]
    others = "warning: --target msccl: no file\nsynth: 3 of 4\n"
    assert without_progress(lines + others) == others
