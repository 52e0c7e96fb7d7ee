"""Compiled loops are cached by their sources, by one process at a time, and loops also run without a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType

import pytest

from synth.model import loop_cache

LOOP = "def {name}(n):\n    return {body}\n"
RUN = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s")
sys.path.insert(0, {folder!r})
from outer import outer
from synth.model import compiled
from synth.model.compiled import Runner, _compiled, _compilations
compiled._LONG_S = 0.0
print(Runner(interpreted=False)(outer, 5), _compilations(_compiled(outer)))
"""


def written(folder: Path, inner: str) -> None:
    (folder / "inner.py").write_text(LOOP.format(name="inner", body=inner))
    (folder / "outer.py").write_text("from inner import inner\n\n\n" + LOOP.format(name="outer", body="inner(n) + 1"))


def run(folder: Path, **environment: str) -> tuple[str, str]:
    completed = subprocess.run(
        [sys.executable, "-c", RUN.format(folder=str(folder))],
        env=os.environ | environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return completed.stdout.strip(), completed.stderr


@pytest.mark.slow
def test_a_loop_is_cached_for_all_clones_and_recompiled_where_a_function_of_another_file_changed(
    tmp_path: Path,
) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    written(tmp_path, "n * 2")
    first, log = run(tmp_path, **environment)
    assert first == "11 1"
    assert log.count("compiling loops") == 1
    assert run(tmp_path, **environment) == ("11 0", "")
    copied = tmp_path / "copied"
    copied.mkdir()
    written(copied, "n * 2")
    os.utime(copied / "outer.py", (1, 1))
    assert run(copied, **environment) == ("11 0", "")  # As another installation of the same sources.
    written(tmp_path, "n * 3")
    assert run(tmp_path, **environment)[0] == "16 1"


@pytest.mark.slow
def test_without_a_folder_that_can_be_written_loops_run_all_the_same(tmp_path: Path) -> None:
    written(tmp_path, "n * 2")
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"), "/dev/null/x")
    answer, log = run(tmp_path, **nowhere)
    assert answer == "11 1"
    assert "not kept" in log


@pytest.mark.slow
def test_loops_run_where_another_process_holds_the_folder(tmp_path: Path) -> None:
    """Check that loops run without the cache where another process, perhaps a stopped one, holds its folder."""
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    written(tmp_path, "n * 2")
    assert run(tmp_path, **environment)[0] == "11 1"
    with (tmp_path / "cache" / "synth-collectives" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer, log = run(tmp_path, **environment)
    assert answer == "11 1"
    assert log.count("another process holds it, and may be stopped; loops are compiled and not stored") == 1
    assert run(tmp_path, **environment) == ("11 0", "")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.nbi", "*.nbc"])
def test_a_truncated_file_is_compiled_and_stored_again(tmp_path: Path, kind: str) -> None:
    """Check that a loop is compiled again if a loss of power has left a file that no pickle reads."""
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    written(tmp_path, "n * 2")
    run(tmp_path, **environment)
    paths = list((tmp_path / "cache").rglob(kind))
    assert paths
    for path in paths:
        os.truncate(path, path.stat().st_size // 2)
    assert run(tmp_path, **environment)[0] == "11 1"
    assert run(tmp_path, **environment) == ("11 0", "")


class Full:
    """Numba's store on a full disk: it has written the index, but not the code that the index names."""

    def __init__(self, folder: Path) -> None:
        self.cache_path = str(folder)

    def save_overload(self, *_kept: object) -> None:
        (Path(self.cache_path) / "loop.nbi").write_bytes(b"1 is the code of another signature")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_no_partial_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "loops"))
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "loop.1.nbc").write_bytes(b"older code")
    loop_cache.GuardedStore(Full(tmp_path / "store")).save_overload("signature", "code")
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.slow
def test_nobody_holds_the_folder_while_it_compiles(tmp_path: Path) -> None:
    written(tmp_path, "n * 2")
    code = """
import fcntl, sys
sys.path.insert(0, {folder!r})
from numba.core.dispatcher import _FunctionCompiler
from outer import outer
from synth.model.compiled import Runner
compile_ = _FunctionCompiler._compile_cached

def look(*arguments):
    with open({lock!r}) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("free")
    return compile_(*arguments)

_FunctionCompiler._compile_cached = look
print(Runner(interpreted=False)(outer, 5))
""".format(folder=str(tmp_path), lock=str(tmp_path / "cache" / "synth-collectives" / "lock"))
    completed = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert completed.stdout.split() == ["free", "free", "11"]


def loops(value: int) -> tuple[FunctionType, Mapping[str, FunctionType]]:
    names: dict[str, object] = {"FACTOR": value}
    exec(compile("def loop(n):\n    return n * FACTOR\n", __file__, "exec"), names)
    loop = names["loop"]
    assert isinstance(loop, FunctionType)
    return loop, {}


def test_a_constant_that_changes_is_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "loops"))
    folder, same, other_folder = (loop_cache.folder_of(*loops(value)) for value in (2, 2, 3))
    assert folder == same != other_folder


def test_a_folder_that_other_users_can_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "loops"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    assert loop_cache.loops_folder() is None
    folder.chmod(0o700)
    loop_cache._folder.cache_clear()
    assert loop_cache.loops_folder() == folder
