"""Fixtures that call `synth` in this process (fast) or in a process of its own (real)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hang import HANG_S
from tests.synth.app.cli.calling import Answer, Call, caller, without_progress


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder the working folder."""
    folder = tmp_path / "working_folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def synth(
    working_folder: Path,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Call:
    """Call the entry point in this process, in an empty folder."""
    return caller(monkeypatch, capsys)


@pytest.fixture
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the terminal so wide that no line is broken."""
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture
def process(working_folder: Path) -> Call:
    """Call the command in a process of its own, in the same empty folder."""

    def call(*arguments: object) -> Answer:
        completed = subprocess.run(
            [sys.executable, "-m", "synth", *map(str, arguments)],
            cwd=working_folder,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        return Answer(completed.returncode, completed.stdout, without_progress(completed.stderr))

    return call
