"""Tests of `make demo` and `make release`: they fail where a step fails."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests import ROOT
from tests.hang import HANG_S

FAKE = """#!/bin/sh
echo "$@" >> "{log}"
case "$*" in {fails}) exit 1;; esac
"""


def demo(folder: Path, fails: str) -> tuple[int, list[str], str]:
    """Run `make demo` with a command in place of `synth`, which fails where its arguments are like `fails`."""
    if shutil.which("make") is None:
        pytest.skip("no make")
    tool, log = folder / "synth", folder / "log"
    tool.write_text(FAKE.format(log=log, fails=fails))
    tool.chmod(0o755)
    (folder / "out" / "msccl").mkdir(parents=True)
    (folder / "out" / "msccl" / "allreduce-dgx-a100-0.2.4.6-a.xml").touch()
    command = ["make", "-f", ROOT / "Makefile", "-o", ".venv/.installed", f"BIN={folder}", "demo"]
    completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_S)
    return completed.returncode, log.read_text().splitlines(), completed.stderr


@pytest.mark.parametrize("step", ["allreduce*0,2,4,6", "verify*", "bench*"])
def test_a_failing_demo_step_fails_the_make_target(tmp_path: Path, step: str) -> None:
    code, commands, _ = demo(tmp_path, step)
    assert code != 0
    assert "warm-up" not in commands


FAKE_BUILD = """case "$*" in "-m build"*) mkdir dist && touch dist/synth_collectives-9.8-py3-none-any.whl;; esac
"""


def release(folder: Path, fails: str) -> tuple[int, list[str]]:
    """Return the exit code of `make release` and its commands, with tools in place of the real ones.

    fails: A pattern; a command whose arguments match it fails.
    """
    if shutil.which("make") is None:
        pytest.skip("no make")
    log = folder / "log"
    for name in ("python", "uv", "cyclonedx-py"):
        tool = folder / name
        tool.write_text(FAKE.format(log=log, fails=fails) + FAKE_BUILD)
        tool.chmod(0o755)
    command = ["make", "-f", ROOT / "Makefile", "-o", ".venv/bin/python", f"BIN={folder}", f"TOOLS={folder}", "release"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_S)
    return ended.returncode, log.read_text().splitlines()


def test_the_bill_of_materials_is_named_after_the_wheel(tmp_path: Path) -> None:
    code, commands = release(tmp_path, "nothing")
    assert code == 0
    assert commands[-1].startswith("environment --pyproject pyproject.toml")
    assert "--output-file dist/synth_collectives-9.8.cdx.json .venv/release/bin/python" in commands[-1]


@pytest.mark.parametrize(
    ("fails", "last_command"),
    [
        ("*build?--outdir*", "-m build --outdir dist"),
        ("*-m?venv*", "-m venv --without-pip .venv/release"),
        ("pip*dist/*", "pip install --quiet --no-config"),
        ("environment*", "environment --pyproject"),
    ],
)
def test_a_failing_release_step_fails_the_make_target(tmp_path: Path, fails: str, last_command: str) -> None:
    code, commands = release(tmp_path, fails)
    assert code != 0
    assert commands[-1].startswith(last_command)
