"""`synth sweep`: a row for each question, as table, JSON and picture; wrong input in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.synth.app.cli.calling import Call


def words_of(collectives: str, sizes: str) -> list[str]:
    """Return the words of a sweep over two rings, by one process."""
    return [
        "sweep",
        collectives,
        "--topo",
        "ring:{n}",
        "--vary",
        "n=3,4",
        "--size",
        sizes,
        "--budget",
        "1s",
        "--jobs",
        "1",
    ]


def test_the_command_prints_a_row_for_each_question(
    synth: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNTH_CACHE", str(tmp_path / "cache"))
    words = words_of("allgather,broadcast", "64K")
    answer = synth(*words, "--cost", "n*10", "--json")
    assert (answer.code, answer.err) == (0, "")
    rows = json.loads(answer.out)["rows"]
    assert [(row["values"]["n"], row["collective"], row["cost"]) for row in rows] == [
        (n, name, 10.0 * int(n)) for n in ("3", "4") for name in ("allgather", "broadcast")
    ]
    assert all(row["gap"] >= 1 for row in rows)
    assert len(synth(*words).out.splitlines()) == 1 + len(rows)


def test_the_picture_has_a_panel_for_each_collective_and_size(
    synth: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = words_of("allgather", "64K,1M")
    assert synth(*words, "--plot", "x.png", "--cache", "none").code == 0
    assert Path("x.png").read_bytes()[:4] == b"\x89PNG"
    assert "must end in" in synth(*words, "--plot", "x.nothing").refusal
