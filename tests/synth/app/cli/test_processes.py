"""Ctrl-C and sudden death: the best so far is kept, and no solver stays behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.synth.app.cli.calling import Call, without_progress

# searches that their budget ends, not a proof
LONG = {
    "broadcast": ("broadcast", "--topo", "dgx-a100", "--budget", "60s"),
    "mesh": ("allreduce", "--topo", "mesh:2x4", "--budget", "60s"),
}


def _workers_of(parent: int) -> list[int]:
    """Processes `synth.solvers.worker` that `parent` started."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            owner = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if b"synth.solvers.worker" in words and owner == parent:
            found.append(int(entry.name))
    return found


def _alive(pid: int) -> bool:
    """Whether a process is there and no zombie that nobody has fetched yet."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z" and b"synth.solvers.worker" in words


def _gone(pids: list[int]) -> bool:
    """Whether all end by themselves: at once on an idle machine, in some seconds on a busy one, or never."""
    until = time.monotonic() + 15
    while any(map(_alive, pids)):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _busy_workers_of(parent: int) -> list[int]:
    """The same as `_workers_of` once one of them has worked for a second of processor time: a solver runs."""
    ticks = os.sysconf("SC_CLK_TCK")
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = _workers_of(parent)
        if any(_ticks(pid) > ticks for pid in found):
            return found
        time.sleep(0.05)
    return []


def _ticks(pid: int) -> int:
    """Processor time that a process has used; 0 where it is gone."""
    try:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    except OSError:
        return 0


@contextmanager
def _searching(here: Path, asked: tuple[str, ...], after_s: float) -> Iterator[subprocess.Popen[str]]:
    """A search in a process of its own that has been at it for a while."""
    running = subprocess.Popen(
        [sys.executable, "-m", "synth", *asked],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        time.sleep(after_s)
        assert running.poll() is None, "the search ended by itself; ask for a longer one"
        yield running
    finally:
        running.kill()
        running.communicate()


@pytest.fixture(scope="module")
def answered_s(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], float]:
    """When this machine surely has an answer to one of LONG; compiled loops are on disk thereafter."""

    @cache
    def measured(which: str) -> float:
        begun = time.monotonic()
        command = [sys.executable, "-m", "synth", *LONG[which][:-1], "10ms"]
        done = subprocess.run(command, cwd=tmp_path_factory.mktemp(which), capture_output=True, timeout=120)
        longer = 6.0 if done.returncode else 1.5  # refused as too short, an answer takes longer than this took
        return 1.0 + longer * (time.monotonic() - begun)

    return measured


@pytest.mark.parametrize("which", LONG)
def test_interrupt_keeps_the_best_so_far(
    synth: Call, here: Path, which: str, answered_s: Callable[[str], float]
) -> None:
    with _searching(here, LONG[which], answered_s(which)) as running:
        children = _workers_of(running.pid)
        assert children
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, without_progress(err)) == (130, "")
    assert "message size" in out
    assert "interrupted" in out
    files = re.findall(r"out/\S+\.xml", out)
    assert files
    for file in files:
        assert synth("verify", here / file).code == 0
    assert _gone(children)


@pytest.mark.parametrize("which", LONG)
@pytest.mark.parametrize("after_s", [0.08, 0.3, 0.6, 1.0])
def test_interrupt_at_any_moment(here: Path, which: str, after_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """During an import, a compilation, the first route: it ends soon, and says so."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(here / "compiled"))
    with _searching(here, LONG[which], after_s) as running:
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=15)
    assert running.returncode in (130, -signal.SIGINT)
    if running.returncode == 130:
        assert "Traceback" not in err
        assert "interrupted" in out + err


def test_two_interrupts(here: Path, answered_s: Callable[[str], float]) -> None:
    """An impatient user: no traceback, no half-written files, no solver left."""
    with _searching(here, LONG["broadcast"], answered_s("broadcast")) as running:
        children = _workers_of(running.pid)
        running.send_signal(signal.SIGINT)
        time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=10)  # a fifth of a second where nothing else runs
    assert running.returncode == 130
    assert "before there was an answer" not in err
    assert "Traceback" not in err
    assert _gone(children)
    out = here / "out"
    assert not out.exists() or not [p for p in out.iterdir() if p.name.startswith(".")]


@contextmanager
def _stopped_holder(folder: Path) -> Iterator[None]:
    """A process that holds a library's lock, and was stopped as Ctrl-Z stops it."""
    folder.mkdir()
    code = "import fcntl,os,sys,time; fcntl.flock(os.open(sys.argv[1], 0), 2); print(1, flush=True); time.sleep(99)"
    holder = subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline()
        holder.send_signal(signal.SIGSTOP)
        yield
    finally:
        holder.kill()
        holder.communicate()


def test_an_answer_beside_a_library_that_a_stopped_process_holds(here: Path) -> None:
    """Issue 29, 10: it waited for ever, beside any budget."""
    asked = ("allgather", "--topo", "ring:4", "--budget", "2s")
    with _stopped_holder(here / "out"):
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "synth", *asked], cwd=here, capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0
    assert time.monotonic() - begun < 2 + 1 + 4  # to start and to end, beside load
    assert "out: is held by another process; the answer is written to out-2" in done.stderr
    assert re.findall(r"out-2/msccl/\S+\.xml", done.stdout)
    assert [path.name for path in (here / "out").iterdir()] == []
    assert list((here / "out-2" / "msccl").iterdir())


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_in_a_wait_for_a_library_loses_no_answer(here: Path, times: int) -> None:
    asked = [sys.executable, "-m", "synth", "allgather", "--topo", "ring:4", "--budget", "60s"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with _stopped_holder(here / "out"), subprocess.Popen(asked, cwd=here, text=True, **pipes) as running:
        assert running.stderr is not None
        while "waiting up to" not in (line := running.stderr.readline()):
            assert line or running.poll() is None
        for _ in range(times):
            running.send_signal(signal.SIGINT)
            time.sleep(0.002)
        out, err = running.communicate(timeout=15)
    assert running.returncode == 130
    assert "Traceback" not in err
    assert list((here / "out-2" / "msccl").glob("*.xml"))
    assert (here / "out-2" / "index.json").is_file()
    assert "out-2/msccl/" in out


@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGTERM], ids=lambda s: s.name)
def test_solvers_do_not_outlive_the_command(here: Path, which: signal.Signals) -> None:
    with _searching(here, (*LONG["mesh"], "--engine", "cpsat"), 0.1) as running:
        children = _busy_workers_of(running.pid)
        assert children
        os.kill(running.pid, which)
        running.wait(timeout=5)
        assert _gone(children)


def test_no_solver_is_left_after_a_plain_end(here: Path) -> None:
    asked = ("allreduce", "--topo", "dgx-a100", "--group", "0,2")
    with _searching(here, asked, 0.1) as running:
        children = _workers_of(running.pid)
        running.communicate(timeout=30)
    assert running.returncode == 0
    assert _gone(children)


def test_a_reader_that_leaves_early(here: Path) -> None:
    """`synth … | head -1` ends without a traceback."""
    line = f"{sys.executable} -m synth topo show torus:30x30 | head -1"
    done = subprocess.run(["bash", "-c", line], cwd=here, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [("topo", "list"), ("--help",), ("allgather", "--topo", "ring:4")])
def test_output_that_cannot_be_written_is_one_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "synth", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
    assert done.returncode == 2
    (line,) = without_progress(done.stderr).splitlines()
    assert line.startswith("synth: standard output: cannot be used (No space left on device)")


@pytest.mark.parametrize("command", ["allgather --topo ring:4 --budget 2s --out {}", "bench {}", "report {}"])
def test_names_that_are_too_long_are_one_line(command: str, synth: Call) -> None:
    assert "File name too long" in synth(*command.format("a" * 300).split()).refusal
