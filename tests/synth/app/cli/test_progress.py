"""The progress of commands that work through many files."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from synth import synthesize
from synth.app.cli import progress
from synth.app.cli.asking.answer import progress_line
from synth.app.cli.library import files
from tests.synth.app.cli.calling import Call, without_progress


def test_a_check_counts_schedules_and_files(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = synthesize("allgather", "ring:4", engine="route").save("lib", proof=True)
    counts = list[tuple[int, int]]()

    @contextmanager
    def noted(_what: str) -> Iterator[progress.Count]:
        yield lambda done, total: counts.append((done, total))

    monkeypatch.setattr(files, "counting", noted)
    assert synth("library", "check", "lib").code == 0
    schedules = sum(path.suffix == ".synth" for path in paths)
    programs = sum(path.parent.name == "msccl" for path in paths)
    total = schedules + programs
    assert counts == [(done, total) for done in range(total + 1)]


def test_a_log_shows_the_state_while_one_thing_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that lines come though the block reports nothing, unless they are not wanted."""
    monkeypatch.setattr(progress, "_FIRST_S", 0.0)
    monkeypatch.setattr(progress, "_LOGGED_S", 0.0)
    asked = threading.Event()

    def state() -> tuple[int, int, str]:
        asked.set()
        return 1, 3, "about 5 s left"

    with progress.showing("building", state):
        asked.wait()
    lines = capsys.readouterr().err.splitlines()
    assert set(lines) == {"building: 1 of 3, about 5 s left"}
    with progress.showing("building", state, quiet=True):
        pass
    assert capsys.readouterr().err == ""
    assert without_progress("\n".join([*lines, "checking", "building: 0 of 2, about 3 min left, now x", ""])) == ""


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
