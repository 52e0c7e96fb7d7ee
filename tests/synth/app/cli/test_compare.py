"""The option --compare: one row for each engine, by its own search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.synth.app.cli.calling import Call


def test_each_engine_has_a_row_with_its_own_time(synth: Call) -> None:
    answer = synth(
        "allgather", "--topo", "ring:6", "--size", "1M", "--compare", "route,steiner", "--budget", "8s", "--json"
    )
    document = json.loads(answer.out)
    assert [row["engine"] for row in document["engines"]] == ["route", "steiner"]
    for row in document["engines"]:
        (found,) = row["found"]
        assert found["time_us"] >= document["bounds"][0]["bound_us"] * (1 - 1e-9)
        assert found["gap"] == pytest.approx(max(1.0, found["time_us"] / document["bounds"][0]["bound_us"]))
    assert document["engines"][0]["found"][0]["engine"] == "route"
    assert not list(Path().iterdir())


def test_a_library_has_the_row_of_its_own_choice(synth: Call) -> None:
    """Check that a library's times are those of the usual table, with any engine or none, and that others say why."""
    asked = ("allreduce", "--topo", "dgx-a100", "--group", "0-3", "--size", "1M", "--budget", "0.5s")
    usual = json.loads(synth(*asked, "--json", "--out", "lib").out)["algorithms"][0]["libraries"]["NCCL"]
    for libraries, choice_us in (("fitted", usual["time_us"]), ("source", usual["source_us"])):
        options = ("--libraries", libraries)
        document = json.loads(synth(*asked, *options, "--compare", "nccl,RCCL,mscclpp", "--json").out)
        assert [row["engine"] for row in document["engines"]] == ["auto", "NCCL", "MSCCL++"]
        assert document["engines"][1]["found"][0]["time_us"] == pytest.approx(choice_us)
        assert list(document["refused"]) == ["RCCL"]
    table = synth(*asked, "--compare", "nccl,route")
    assert f"by its own choice ({usual['algorithm']} {usual['protocol']})" in table.flat
    assert [line.split()[0] for line in table.out.splitlines() if " µs" in line][-3:] == ["NCCL", "route", "bound"]
    free = synth("allreduce", "--topo", "ring:4", "--compare", "NCCL", "--budget", "0.5s", "--costs", "none")
    assert free.code == 0
    assert "NCCL: " in free.flat


def test_an_exact_engine_that_gains_nothing_says_so(synth: Call) -> None:
    answer = synth("allgather", "--topo", "ring:4", "--size", "1M", "--compare", "cpsat,route", "--budget", "8s")
    assert "cpsat: found nothing faster than what route had found before" in answer.flat
    assert "route: found" not in answer.flat


def test_all_sizes_fit_the_terminal(synth: Call) -> None:
    answer = synth("broadcast", "--topo", "ring:4", "--compare", "route, baseline", "--budget", "4s")
    lines = answer.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[-4:]] == ["engine", "route", "baseline", "bound"]
    assert lines[-4].count("@") == 5


def test_an_engine_that_does_not_take_the_question_says_why(synth: Call) -> None:
    answer = synth("allgather", "--topo", "ring:40", "--size", "1M", "--compare", "milp,route", "--budget", "6s")
    assert answer.code == 0
    assert "milp: --engine milp: milp is for one group of 32 ranks at most" in answer.flat
    alone = synth("allgather", "--topo", "ring:40", "--size", "1M", "--compare", "milp", "--budget", "6s")
    assert "milp" in alone.refusal


def test_an_impossible_shape_says_why(synth: Call) -> None:
    shape = ("--steps", "1", "--rounds", "1", "--chunks", "1")
    answer = synth("allgather", "--topo", "ring:6", "--size", "1M", *shape, "--compare", "ksync", "--budget", "4s")
    assert answer.code == 1
    assert "ksync: " in answer.flat


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--compare", "route,flo"), "did you mean flow?"),
        (("--compare", "route,route"), "names an engine or a library twice"),
        (("--compare", "route,flow", "--engine", "lns"), "--engine: cannot be used with --compare"),
        (("--compare", "route,milp", "--groups", "0-1;2-3", "--size", "1M"), "--compare: does not go with --groups"),
        (("--compare", ","), "--compare: ''"),
        (("--compare", "nccl,NCCL"), "names an engine or a library twice"),
        (("--compare", "time-slots"), "libraries: NCCL, RCCL, MSCCL++"),
        (("--compare", "route,flow", "--objective", "fair"), "--objective: is for several groups"),
    ],
)
def test_wrong_comparisons(synth: Call, arguments: tuple[str, ...], says: str) -> None:
    answer = synth("allgather", "--topo", "ring:4", *arguments)
    assert says in answer.refusal
