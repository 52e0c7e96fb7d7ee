"""Tests that the long run reports readers that die, fill the memory or refuse a valid file."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from results.scripts import fuzz
from tests.fuzz.trying import FORMATS, MEMORY
from topologies.errors import InputError


def dies(_: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fills_the_memory(_: Path) -> None:
    bytearray(MEMORY + (1 << 28))


def refuses_all(path: Path) -> None:
    raise InputError(f"{path.name}: no")


def raises_at_some(path: Path) -> None:
    if path.read_bytes().startswith(b"7"):
        raise KeyError("seven")


def come_of(
    read: Callable[[Path], None], tasks: list[str], kept_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> fuzz.Row:
    monkeypatch.setattr(fuzz, "KEPT", kept_folder)
    form = replace(FORMATS["size matrix"], seeds=lambda: [b"7 1", b"8 2"], read=read)
    row = fuzz.Row(form)
    fuzz.run_some(row, tasks)
    return row


def test_a_dying_reader_is_reported_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = come_of(dies, ["valid 0", "valid 1"], tmp_path / "kept", monkeypatch)
    assert row.counts == {"failed": 2}
    assert sorted(p.name for p in (tmp_path / "kept").iterdir() if not p.suffix) == [
        "size-matrix-valid-0", "size-matrix-valid-1",
    ]  # fmt: skip


def test_memory_beyond_the_limit_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = come_of(fills_the_memory, ["valid 0"], tmp_path / "kept", monkeypatch)
    assert row.counts == {"failed": 1}
    assert "MemoryError" in row.failures[0]


def test_an_exception_is_a_failure_and_keeps_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = come_of(raises_at_some, ["valid 0", "valid 1"], tmp_path / "kept", monkeypatch)
    assert row.counts == {"failed": 1, "accepted": 1}
    assert "KeyError" in (tmp_path / "kept" / "size-matrix-valid-0.txt").read_text()
    assert (tmp_path / "kept" / "size-matrix-valid-0").read_bytes() == b"7 1"


def test_a_valid_file_must_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = come_of(refuses_all, ["valid 0", "a directory", "3"], tmp_path / "kept", monkeypatch)
    assert row.counts == {"failed": 1, "refused": 2}
