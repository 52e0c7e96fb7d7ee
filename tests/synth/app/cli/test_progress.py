"""The progress of commands that work through many files."""

from __future__ import annotations

import io
import sys

import pytest

from synth import synthesize
from synth.app.cli import progress
from synth.app.cli.asking.answer import progress_line
from tests.synth.app.cli import calling
from tests.synth.app.cli.calling import Call


def test_a_check_counts_schedules_and_files(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = synthesize("allgather", "ring:4", engine="route").save("lib", proof=True)
    monkeypatch.setattr(progress, "_LOGGED_S", 0.0)
    monkeypatch.setattr(calling, "_PROGRESS", "nothing is left out of what the command says")
    answer = synth("library", "check", "lib")
    assert answer.code == 0
    lines = [line for line in answer.err.splitlines() if line.startswith("checking: ")]
    schedules = sum(path.suffix == ".synth" for path in paths)
    files = sum(path.parent.name == "msccl" for path in paths)
    assert lines == [f"checking: {done} of {schedules + files}" for done in range(schedules + files + 1)]


def test_a_terminal_has_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress.counting("drawing") as count:
        count(3, 12)
    assert "drawing" in terminal.getvalue()
    assert "3/12" in terminal.getvalue()


def test_a_line_of_progress_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    progress_line(0.0)("word " * 40, None)
    lines = terminal.getvalue().split("\r\x1b[2K")
    assert "reading the topology" in lines[1]
    assert max(map(len, lines)) < 80 <= len("word " * 40)
