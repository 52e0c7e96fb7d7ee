"""What a search reports: the engine of each row, why there is no row, and what an interrupt cost."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emit.library.saving import write
from emit.library.saving.save import Saved
from synth.app.cli import progress
from synth.app.cli.asking import answer as of_one
from synth.app.cli.asking import concurrent as of_groups
from synth.app.synthesis import synthesize
from synth.baselines import baseline
from synth.concurrent.search import ConcurrentSearch
from synth.concurrent.state import GroupsState
from synth.search.pool import Pool
from tests.synth.app.cli.calling import Call, without_progress
from topologies.faults.apply import apply_faults
from topologies.load import load

# This budget is never used up, so that two commands give the same answer.
TO_THE_END = ("--target", "none", "--budget", "60s")


@pytest.mark.parametrize("engine", ["cpsat", "milp", "route", "baseline", "auto"])
def test_every_row_names_its_engine(synth: Call, engine: str) -> None:
    arguments = ("allgather", "--topo", "ring:4", "--engine", engine, *TO_THE_END)
    report = json.loads(synth(*arguments, "--json").out)
    own = {"cpsat": {"cp-sat"}, "milp": {"milp"}, "route": {"route"}, "baseline": set(report["baselines"])}
    rows = [row["engine"] for row in report["algorithms"]]
    assert report["engine"] == engine
    assert set(report["other_engines"]) == (set(rows) - own[engine] if engine in own else set())
    printed = synth(*arguments).out
    head, *lines = [line for line in printed.splitlines()[2:] if "@" in line or line.startswith("message size")]
    at = head.index("engine")
    assert [line[at:].split("  ")[0] for line in lines] == rows
    notes = [line for line in printed.splitlines() if line.startswith(f"--engine {engine} found nothing ")]
    assert len(notes) == bool(report["other_engines"])
    assert all(name in notes[0] for name in report["other_engines"])


def test_there_are_rows_of_other_engines(synth: Call) -> None:
    """Check that a solver without time shows the rows of the engines that answer at once."""
    output = synth("allgather", "--topo", "dgx1", "--engine", "milp", "--target", "none", "--budget", "1ms").out
    assert "--engine milp found nothing faster; engines of the algorithms shown: " in output


def test_groups_name_the_engine_of_their_plan(synth: Call) -> None:
    arguments = ("allgather", "--topo", "ring:6", "--groups", "0-2;3-5", "--size", "1M", *TO_THE_END)
    answer, report = synth(*arguments), json.loads(synth(*arguments, "--json").out)
    assert f"{report['by']} ({report['engine']}); bound" in answer.out


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


@pytest.mark.parametrize(("arguments", "message"), NOTHING)
def test_the_reason_for_no_answer(synth: Call, working_folder: Path, arguments: tuple[str, ...], message: str) -> None:
    answer = synth("allgather", "--topo", "ring:5", "--budget", "60s", *arguments)
    assert (answer.code, answer.err) == (1, "")
    assert message in answer.flat
    assert "within the budget" not in answer.flat
    assert "best so far" not in answer.flat
    assert not list(working_folder.iterdir())


def test_a_budget_that_is_over_is_named(synth: Call) -> None:
    answer = synth(
        "allreduce", "--topo", "mesh:4x4", "--steps", "7", "--rounds", "13", "--chunks", "2", "--budget", "1ms"
    )
    assert answer.code == 1
    assert "no algorithm was found within the budget of 0.001 s; a larger --budget may help" in answer.flat


def test_a_shape_that_is_found_is_not_called_impossible() -> None:
    """Check shapes that exist: 7 rounds in 3 steps, where 2 steps are impossible, and a reduce with few rounds."""
    result = synthesize("allgather", "dgx1", rounds=7, chunks=6, budget=20, costs="none").result
    assert [(offer.algorithm.rounds, offer.algorithm.chunks) for offer in result.ranges] == [(7, 6)]
    assert result.impossible == ""
    none = synthesize("reduce", "mesh:3x3", rounds=2, budget=20).result
    assert (none.ranges, none.impossible) == (
        [],
        "no schedule has 2 rounds: it takes 4 steps at least, each of a round or more",
    )


# On Ctrl-C, a finished answer is never lost, and never called lost.


@pytest.mark.parametrize("where", [of_one, of_groups], ids=["one", "groups"])
def test_an_interrupt_while_it_is_written(
    synth: Call, working_folder: Path, monkeypatch: pytest.MonkeyPatch, where: Any
) -> None:
    name = "save" if where is of_one else "save_groups"
    save = getattr(where, name)

    def saving(*arguments: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return save(*arguments, **named)

    monkeypatch.setattr(where, name, saving)
    groups = () if where is of_one else ("--groups", "0-1;2-3", "--size", "1M")
    answer = synth("allgather", "--topo", "full:4", "--engine", "flow", "--budget", "0.4s", *groups)
    assert (answer.code, answer.err) == (130, "")
    assert "replayed and right" in answer.out
    assert not write._stops_waiting  # Later work in this process waits for other writers again.
    assert (working_folder / "out" / "index.json").is_file()


@pytest.mark.parametrize("moment", ["files", "_settle"])
def test_an_interrupt_at_the_end_of_a_search(synth: Call, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    came: list[bool] = []
    method = getattr(Pool, moment)

    def interrupted(self: Pool, *arguments: Any) -> Any:
        if not came:
            came.append(True)
            raise KeyboardInterrupt
        return method(self, *arguments)

    monkeypatch.setattr(Pool, moment, interrupted)
    answer = synth("allgather", "--topo", "ring:4", "--engine", "route", "--budget", "2s")
    assert came
    assert (answer.code, answer.err) == (130, "")
    assert "interrupted: the best so far" in answer.out


@pytest.mark.parametrize(
    ("search", "moment"), [(ConcurrentSearch, "_take_isolated"), (ConcurrentSearch, "_settled"), (GroupsState, "best")]
)
def test_an_interrupt_at_the_end_of_groups(
    synth: Call, monkeypatch: pytest.MonkeyPatch, search: type[ConcurrentSearch | GroupsState], moment: str
) -> None:
    came: list[bool] = []
    method = getattr(search, moment)

    def interrupted(self: Any, *arguments: Any) -> Any:
        if not came:
            came.append(True)
            raise KeyboardInterrupt
        return method(self, *arguments)

    monkeypatch.setattr(search, moment, interrupted)
    answer = synth("allgather", "--topo", "ring:6", "--groups", "0-2;3-5", "--size", "1M", "--budget", "0.4s")
    assert (answer.code, answer.err) == (130 if came else 0, "")
    assert came or moment == "_take_isolated"
    assert "replayed and right" in answer.out


def test_an_interrupt_of_the_comparison_with_the_healthy_network(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the answer stays where only the search on the healthy network was interrupted."""
    from synth.app import synthesis

    search, hurt = synthesis.search, apply_faults(load("ring:5"), ("link:0-1",), ()).name

    def searched(problem: Any, *arguments: Any, **named: Any) -> Any:
        if problem.topology.name != hurt:
            raise KeyboardInterrupt
        return search(problem, *arguments, **named)

    monkeypatch.setattr(synthesis, "search", searched)
    answer = synth("allgather", "--topo", "ring:5", "--without", "link:0-1", "--engine", "route", *TO_THE_END)
    assert (answer.code, answer.err) == (130, "")
    assert "interrupted: the best so far" in answer.out
    assert "slowdown" not in answer.out


@pytest.mark.parametrize("budget", ["1s", "30s"])
def test_an_interrupt_before_the_first_answer(
    budget: str, synth: Call, monkeypatch: pytest.MonkeyPatch, working_folder: Path
) -> None:
    """Check that nothing is left, or the first file of a search whose budget is long enough for one."""
    from synth.app import synthesis

    def nothing(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(synthesis, "search", nothing)
    answer = synth("allgather", "--topo", "ring:5", "--budget", budget)
    assert (answer.code, answer.out, answer.err) == (130, "", "synth: interrupted before there was an answer\n")
    assert [path.name for path in working_folder.iterdir()] == (["out"] if budget == "30s" else [])
    assert budget == "1s" or synth("library", "check", "out").code == 0


def test_a_log_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that `without_progress` removes exactly the progress lines."""
    monkeypatch.setattr(progress, "_LOGGED_S", 0.0)
    of_one.progress_line(time.monotonic())("flow", None)
    lines = capsys.readouterr().err
    assert lines.splitlines()[-1].split(maxsplit=2)[1:] == ["s", "flow"]
    other_lines = "warning: --target msccl: no file\nsynth: 3 of 4\n"
    assert without_progress(lines + other_lines) == other_lines


def test_an_algorithm_that_the_other_form_lacks_is_named() -> None:
    """Check that a slower table for the other form of calls has its reason, and an equal one has none."""
    result = synthesize("allreduce", "ring:4", size="1M", engine="route").result
    fast = result.ranges[-1]
    slow = replace(fast, algorithm=baseline(result.problem)[0])
    late = replace(fast, execution=None, refused="the budget ended before it was ready; try --budget 1s")
    for ranges, refused, count in (([slow], [late], 1), ([fast], [], 0), ([slow], [], 0)):
        other = Saved(None, replace(result, ranges=ranges, refused=refused))
        lines = of_one._late_in_other_form(Saved(None, result, other_form=other))
        assert len(lines) == count
        assert all("out of place" in line and line.endswith("; try a longer --budget") for line in lines)
    left = replace(result, ranges=[replace(fast, library="NCCL")])
    other = Saved(None, replace(result, ranges=[slow], refused=[late]))
    assert of_one._late_in_other_form(Saved(None, left, other_form=other)) == []


def test_a_part_of_the_ranks_is_told_from_nodes_and_their_ranks(synth: Call) -> None:
    """Check that "4 of 8" stands before what there are 8 of, and no other number."""
    for topo, stated in (
        ("dgx1", "(4 of 8 V100,"),
        ("ring:6", "(4 of 6 ranks: ring of 6,"),
        ("dgx-a100:2", "(4 of 16 ranks: 2 nodes of 8 A100,"),
    ):
        answer = synth(
            "allgather", "--topo", topo, "--group", "0-3", "--size", "1M", "--engine", "route", "--budget", "4s"
        )
        assert stated in answer.flat


def test_a_file_of_another_kind_is_named(synth: Call, working_folder: Path) -> None:
    """Check that the file of a cluster is no network, and that a network's is no cluster, with what would be right."""
    (working_folder / "cluster.toml").write_text('topology = "dgx1"\ngroups = ["all"]\n')
    (working_folder / "network.toml").write_text(synth("topo", "show", "ring:3").out)
    refusal = synth("allgather", "--topo", "cluster.toml").refusal
    assert "cluster.toml:1: topology: is a key of a cluster's file" in refusal
    assert refusal.endswith("name the network itself: dgx1")
    assert 'topology = "FILE.toml"' in synth("library", "build", "network.toml").refusal
