"""`synth` called in this process (fast) or in one of its own (real)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.synth.app.cli.calling import Answer, Call, caller, without_progress


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the working folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def synth(
    here: Path,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Call:
    """Call the entry point in this process, in an empty folder."""
    return caller(monkeypatch, capsys)


@pytest.fixture
def process(here: Path) -> Call:
    """Call the command in a process of its own, in the same empty folder."""

    def call(*arguments: object, timeout_s: float = 60) -> Answer:
        done = subprocess.run(
            [sys.executable, "-m", "synth", *map(str, arguments)],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Answer(done.returncode, done.stdout, without_progress(done.stderr))

    return call
