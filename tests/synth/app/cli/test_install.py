"""`synth library install`: what it says of plans for MSCCL++'s shim, and its exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

import synth as face
from tests.emit.library.test_shim_plans import NAMES, library
from tests.synth.app.cli.calling import Call


def test_install_and_undo(synth: Call, working_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSCCLPP_CACHE_DIR", str(working_folder / "cache"))
    library(working_folder / "lib")
    answer = synth("library", "install", "lib", "--only-sums")
    assert answer.code == 0, answer.err
    assert f"{NAMES[0]}: allreduce, up to 64 KiB in place" in answer.flat
    assert "1 plan not installed: only plans for calls in place" in answer.err
    installed = {path.name for path in Path(face.mscclpp_plan_dir()).iterdir()}
    assert installed == {*NAMES[:2], "synth-installed.json"}
    undone = synth("library", "install", "--undo")
    assert (undone.code, undone.out.count("removed")) == (0, 2)
    assert list((working_folder / "cache" / "default").iterdir()) == []


def test_another_folder_says_how_it_is_found(synth: Call, working_folder: Path) -> None:
    library(working_folder / "lib")
    assert "export MSCCLPP_CACHE_DIR=" in synth("library", "install", "lib", "--into", "a/default").out
    assert "only a folder named default" in synth("library", "install", "lib", "--into", "b").err


def test_a_library_without_a_fitting_plan(synth: Call, working_folder: Path) -> None:
    library(working_folder / "lib", relays=[])
    answer = synth("library", "install", "lib", "--topo", "full:16", "--into", "default")
    assert (answer.code, answer.out) == (3, "")
    assert "the shim reads plans for 16 (8 a node), 32 (8 a node), 64 (4 a node) ranks only" in answer.err
    assert not (working_folder / "default").exists()
    assert "has no plan for it" in synth("library", "install", "lib", "--group", "0-7").refusal
    assert "takes no library" in synth("library", "install", "lib", "--undo").refusal
    assert "LIB is missing" in synth("library", "install").refusal
