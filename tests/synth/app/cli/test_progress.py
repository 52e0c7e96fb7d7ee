"""The progress of commands that work through many files."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from synth import synthesize
from synth.app.cli import progress, streams
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


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_line_of_progress_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: is_terminal  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(progress, "_LOGGED_S", 0.0)
    monkeypatch.setattr(progress, "_FIRST_S", 0.0)
    show = progress_line(0.0)
    show("word " * 40, None)
    show(f"{'word ' * 10}· {'too long ' * 10}· short", None)
    with progress.showing("building", lambda: (1, 3, f"about 5 s left, {'long ' * 20}, now x")):
        for _ in range(0 if is_terminal else 1000):
            if "now x" in stream.getvalue():
                break
            time.sleep(0.01)
    lines = re.split("[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()))
    assert "reading the topology" in lines[0] + lines[1]
    assert any(line.endswith(" · short") and "long" not in line for line in lines)
    assert max(map(len, lines)) <= 80 <= len("word " * 40)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_commands_print_what_is_logged_once_and_broken_to_fit_a_terminal(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

    monkeypatch.setattr(sys, "stderr", stream := Stream())
    monkeypatch.setenv("COLUMNS", "80")
    for _ in range(2):  # As two commands in one process.
        streams.show_logs("synth.loops", "synth.library")
    logging.getLogger("synth.loops").info("%s", "long words " * 10)
    lines = stream.getvalue().removeprefix("\r\x1b[2K").splitlines()
    assert " ".join(" ".join(lines).split()) == " ".join(["long words"] * 10)
    assert max(map(len, lines)) <= 80 or not is_terminal
    assert len(lines) == 1 or is_terminal
