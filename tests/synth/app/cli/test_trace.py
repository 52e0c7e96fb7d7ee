"""`synth alltoallv --trace`: the files hold every call, the figures are honest, and wrong options are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emit.library.checking.check import check_library
from emit.library.index import load_index
from emit.library.selection.call import LibraryCall
from emit.library.selection.selector import Selector
from synth.app.arguments import QuestionArguments
from synth.app.cli.asking.trace import _question
from synth.app.present.trace import trace_table
from synth.model.collective import Ints
from tests.synth.app.cli.calling import Call

GROUP = (0, 1, 8, 9)
ASKED = ("alltoallv", "--topo", "dgx-h100:2", "--group", "0,1,8,9", "--costs", "none", "--engine", "skewed")
ASKED += ("--budget", "4s", "--cache", "none", "--trace", "calls.npy", "--files", "2")


@pytest.fixture
def trace(working_folder: Path) -> Ints:
    """Return the written trace of two kinds of calls, whose blocks are known up to an eighth, and an idle call."""
    draw = np.random.default_rng(0)
    kinds = draw.integers(1, 20, (2, 4, 4)) ** 3 * 4096
    calls = np.stack([kinds[call % 2] * draw.uniform(7 / 8, 1, (4, 4)) for call in range(21)]).astype(np.int64)
    calls[:, np.arange(4), np.arange(4)] = 0
    calls[7] = 0
    np.save(working_folder / "calls.npy", calls)
    return calls


def held_by(library: Path, call: Ints) -> bool:
    """Return whether a file of a library holds a call's blocks, by its goal and its range."""
    choice = Selector(load_index(library)).choose_padded(
        LibraryCall("alltoallv", 4, GROUP, False, element_bytes=1, sizes=call.ravel().tolist())
    )
    return choice is not None and bool((choice.blocks >= call).all())


def checked(figures: dict[str, Any]) -> dict[str, Any]:
    """Check that figures agree with each other and stay above their bounds, and return them."""
    assert figures["gap"] == pytest.approx(figures["time_us"] / figures["bound_us"])
    assert figures["worst_gap"] >= figures["gap"] * (1 - 1e-9) >= 1 - 2e-9
    assert figures["gap"] >= figures["padding"] * (1 - 1e-9) >= 1 - 2e-9
    assert figures["worst_us"] >= figures["time_us"] * (1 - 1e-9)
    return figures


def test_files_hold_every_call_and_lose_less_than_even_padding(synth: Call, trace: Ints, working_folder: Path) -> None:
    document = json.loads(synth(*ASKED, "--json", "--out", "lib").out)
    assert (document["calls"], document["held_out"], document["idle"], document["held"]) == (20, 0, 1, None)
    chosen = {name: checked(figures) for name, figures in document["chosen"].items()}
    assert {figures["served"] for figures in chosen.values()} == {20}
    assert chosen["planned"]["gap"] < chosen["files"]["gap"] < 0.6 * chosen["even"]["gap"]
    assert sum(file["served"] for file in document["files"]) == 20
    for call in trace:
        fits = [(np.array(file["sizes"]) >= call).all() for file in document["files"]]
        assert any(fits)
        assert held_by(working_folder / "lib", call)
    entries = load_index(working_folder / "lib")
    report = check_library(working_folder / "lib", entries)
    assert not report.wrong
    for entry in entries:
        buffer_bytes = [
            file["buffer_bytes"] for file in document["files"] if str(Path("lib") / entry.file) in file["paths"]
        ]
        assert entry.max_bytes == pytest.approx(1.25 * buffer_bytes[0], rel=1e-3)
        assert entry.padding == 0


def test_held_out_calls_are_the_last_and_fit_with_headroom(synth: Call, trace: Ints, working_folder: Path) -> None:
    calls = np.concatenate([trace, trace[-4:] * 3 // 2, trace[-1:]])
    calls[-1, 0, 1] *= 40
    np.save(working_folder / "calls.npy", calls)
    asked = (*ASKED, "--holdout", "0.2", "--target", "none", "--json")
    document = json.loads(synth(*asked).out)
    assert (document["calls"], document["held_out"]) == (25, 5)
    assert document["chosen"]["files"]["served"] == 20
    assert document["held"]["files"]["served"] == 0  # They need 1.5 times the capacity, which is more than 1.25 times.
    assert document["held"]["files"]["gap"] is None
    roomy = json.loads(synth(*asked, "--headroom", "2").out)
    assert roomy["held"]["files"]["served"] == 4
    assert checked(roomy["held"]["files"])["gap"] < roomy["held"]["even"]["gap"]
    assert roomy["chosen"] == document["chosen"]
    assert roomy["files"] == document["files"]


def test_the_table(synth: Call, trace: Ints) -> None:
    answer = synth(*ASKED, "--holdout", "0.1", "--out", "lib")
    assert answer.code == 0
    assert "18 calls to choose files for, 2 calls held out, 1 call without data" in answer.flat
    for words in ("all files", "even padding", "planned for each call", "held out: all files", "lib/index.json"):
        assert words in answer.flat
    assert len(trace) == 21
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "left out" not in answer.flat
    document = json.loads(synth(*ASKED, "--target", "none", "--json").out)
    again = json.loads(synth(*ASKED, "--target", "none", "--json").out)
    assert document | {"seconds": 0} == again | {"seconds": 0}
    table = trace_table(document | {"ended": "interrupted", "unsaved": "why"}, 16, None)
    assert "interrupted: some capacities have no answer" in table
    assert "not every capacity has all its files: why" in table


def test_files_that_no_call_takes_are_left_out(synth: Call, working_folder: Path) -> None:
    draw = np.random.default_rng(1)  # Blocks are so alike that one file is the fastest for nearly all calls.
    calls = (draw.uniform(0.9, 1, (12, 4, 4)) * 2**24 * (1 - np.eye(4))).astype(np.int64)
    np.save(working_folder / "calls.npy", calls)
    document = json.loads(synth(*ASKED[:-1], "4", "--json", "--out", "lib").out)
    assert all(file["served"] for file in document["files"])
    assert len(load_index(working_folder / "lib")) == len(document["files"])
    written = {path.name for path in (working_folder / "lib" / "mscclpp").iterdir()}
    assert written == {Path(entry.file).name for entry in load_index(working_folder / "lib")}
    assert any("sending straight is faster" in remark for remark in document["remarks"]) == (
        document["chosen"]["straight"]["time_us"] < document["chosen"]["files"]["time_us"]
    )


def test_what_has_no_row_is_said(synth: Call, working_folder: Path) -> None:
    calls = [[[0, 4, 1], [1, 0, 4], [4, 1, 0]], [[0, 1, 9], [9, 0, 1], [1, 9, 0]]]
    np.save(working_folder / "calls.npy", np.array(calls) << 20)
    asked = ("alltoallv", "--topo", "dgx1", "--group", "0,1,5", "--trace", "calls.npy", "--files", "2")
    answer = synth(*asked, "--budget", "4s", "--out", "lib")
    assert all(row in answer.flat for row in ("planned for each call 100%", "sent straight 100%"))
    with_relays = synth(*asked, "--relay", "2", "--budget", "4s", "--target", "none")
    assert "are not known here: plans are for groups without relays" in with_relays.flat
    assert "planned for each call 100%" not in with_relays.flat
    assert "cannot tell these files apart" in answer.flat


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--sizes", "m.csv"), "--sizes, --trace: both are there"),
        (("--size", "1M"), "--size: does not go with --trace"),
        (("--compare", "flow"), "--compare: does not go with --trace"),
        (("--groups", "0-1"), "--groups: does not go with --trace"),
        (("--rounds", "3"), "--rounds: does not go with --trace"),
        (("--holdout", "0.95"), "--holdout: 0.95 is out of range"),
        (("--headroom", "0.5"), "--headroom: 0.5 is out of range"),
    ],
)
def test_wrong_options(synth: Call, trace: Ints, words: tuple[str, ...], fault: str) -> None:
    assert fault in synth(*ASKED, *words).refusal
    assert len(trace) == 21


def test_options_of_a_trace_need_one(synth: Call, working_folder: Path) -> None:
    (working_folder / "m.csv").write_text("0,1\n1,0\n")
    asked = ("alltoallv", "--topo", "ring:2")
    assert "neither is there" in synth(*asked).refusal
    assert "--files: is for calls whose sizes change" in synth(*asked, "--sizes", "m.csv", "--files", "3").refusal
    for name in ("allgatherv", "allgather"):
        refusal = synth(name, "--topo", "ring:2", "--trace", "m.csv").refusal
        assert f"--trace: {name} has none; leave it out (with a trace: alltoallv)" in refusal
    assert "leaves no call" in synth(*asked, "--trace", "m.csv", "--holdout", "0.9").refusal


def test_a_matrix_is_searched_at_the_size_of_its_fullest_buffer() -> None:
    """Check that the chunks of the question have the bytes of the matrix, where a rank receives more than any sends."""
    sizes = np.array([[0, 1, 1], [4, 0, 1], [4, 1, 0]]) * 1000
    question = _question(QuestionArguments("alltoallv", "full:3"), sizes)
    assert question.options.size == 8000
    np.testing.assert_allclose(question.problem.collective.chunk_bytes(8000), sizes[sizes > 0])
