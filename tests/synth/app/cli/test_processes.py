"""Ctrl-C and sudden death: the best answer so far is kept, and no solver process stays behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from emit.library.saving import write
from synth.app.cli import interrupts
from tests.hang import HANG_S
from tests.synth.app.cli.calling import Call, without_progress

# These searches are ended by their budget, not by a proof.
LONG = {
    "broadcast": ("broadcast", "--topo", "dgx-a100", "--costs", "none", "--budget", "600s"),
    "mesh": ("allreduce", "--topo", "mesh:2x4", "--budget", "600s"),
}

_AGAIN_S = 30.0  # time after which a user presses Ctrl-C again


def _workers_of(parent: int) -> list[int]:
    """Return the `synth.solvers.worker` processes that `parent` started."""
    workers = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            owner = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if b"synth.solvers.worker" in command and owner == parent:
            workers.append(int(entry.name))
    return workers


def _alive(pid: int) -> bool:
    """Return True if a process exists and is no zombie."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z" and b"synth.solvers.worker" in command


def _all_end(pids: list[int]) -> bool:
    """Return True if all processes end by themselves; this takes some seconds on a busy machine."""
    until = time.monotonic() + HANG_S
    while any(map(_alive, pids)):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _busy_workers_of(parent: int) -> list[int]:
    """Return the workers of `parent` once one has used a quarter second of processor time, so that a solver runs."""
    ticks = os.sysconf("SC_CLK_TCK")
    until = time.monotonic() + HANG_S
    while time.monotonic() < until:
        workers = _workers_of(parent)
        if any(4 * _ticks(pid) > ticks for pid in workers):
            return workers
        time.sleep(0.05)
    return []


def _ticks(pid: int) -> int:
    """Return the processor time that a process has used, in clock ticks; 0 if it has ended."""
    try:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    except OSError:
        return 0


@contextmanager
def _searching(
    working_folder: Path, arguments: tuple[str, ...], after_s: float, command: tuple[str, ...] = ("-m", "synth")
) -> Iterator[subprocess.Popen[str]]:
    """Run a search in a process of its own, and yield it after `after_s` seconds."""
    running = subprocess.Popen(
        [sys.executable, *command, *arguments],
        cwd=working_folder,
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


# The command `synth`, which also makes the file `answered` as soon as its search has an answer with a program.
TELLING = """
from pathlib import Path
from synth.app.cli import main
from synth.search.run.state import SearchState
take = SearchState.take
def take_and_tell(state, *answer):
    gain = take(state, *answer)
    if any(offer.execution is not None for offer in state.pool.all_offers()):
        Path("answered").touch()
    return gain
SearchState.take = take_and_tell
main()
"""


@contextmanager
def _answered(working_folder: Path, which: str) -> Iterator[subprocess.Popen[str]]:
    """Run a search of LONG in a process of its own, and yield it once it has an answer and solvers."""
    with _searching(working_folder, LONG[which], 0.0, ("-c", TELLING)) as running:
        until = time.monotonic() + HANG_S
        while not ((working_folder / "answered").exists() and _workers_of(running.pid)):
            assert running.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        yield running


@pytest.mark.parametrize("which", LONG)
def test_interrupt_keeps_the_best_so_far(synth: Call, working_folder: Path, which: str) -> None:
    with _answered(working_folder, which) as running:
        children = _workers_of(running.pid)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=HANG_S)
    assert (running.returncode, without_progress(err)) == (130, "")
    assert "message size" in out
    assert "interrupted" in out
    files = re.findall(r"out/mscclp*/\S+\.(?:xml|json)", out)
    assert files
    for file in files:
        assert synth("verify", working_folder / file).code == 0
    assert _all_end(children)


@pytest.mark.parametrize(("which", "after_s"), [("broadcast", 0.08), ("mesh", 0.3), ("broadcast", 0.6), ("mesh", 1.0)])
def test_interrupt_at_any_moment(
    working_folder: Path, which: str, after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that an interrupt during an import, a compilation or the first route ends the command soon."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(working_folder / "compiled"))
    with _searching(working_folder, LONG[which], after_s) as running:
        running.send_signal(signal.SIGINT)
        try:
            out, err = running.communicate(timeout=_AGAIN_S)
        except subprocess.TimeoutExpired:  # Python drops one that comes in a callback of its lock for imports.
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=HANG_S)
    # On a slow machine Python itself has not started yet, which it calls a fatal error of its own.
    assert running.returncode in (130, -signal.SIGINT) or "Fatal Python error: init_" in err
    if running.returncode == 130:
        assert "Traceback" not in err
        assert "interrupted" in out + err


def test_an_interrupt_that_a_finalizer_drops_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check Ctrl-C within `__del__`, where Python reports it as ignored and goes on."""

    class Finalized:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)}
    monkeypatch.setattr(interrupts._InterruptState, "came", 0)
    try:
        interrupts.install()
        Finalized()  # It ends at once.
        with pytest.raises(KeyboardInterrupt):
            time.sleep(HANG_S)
    finally:
        interrupts.end_command()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_two_interrupts(working_folder: Path) -> None:
    """Check that a second interrupt causes no traceback, no half-written file and no remaining solver."""
    with _answered(working_folder, "broadcast") as running:
        children = _workers_of(running.pid)
        running.send_signal(signal.SIGINT)
        time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=HANG_S)
    assert running.returncode == 130
    assert "before there was an answer" not in err
    assert "Traceback" not in err
    assert _all_end(children)
    out = working_folder / "out"
    assert not out.exists() or not [p for p in out.iterdir() if p.name.startswith(".")]


@contextmanager
def _stopped_holder(folder: Path) -> Iterator[None]:
    """Start a process that holds a library's lock, and stop it as Ctrl-Z does."""
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


def test_an_answer_beside_a_library_that_a_stopped_process_holds(working_folder: Path) -> None:
    """Check that a search ends although a stopped process holds the lock of the library for ever."""
    arguments = ("allgather", "--topo", "ring:4", "--size", "1M", "--budget", "3s")
    with _stopped_holder(working_folder / "out"):
        completed = subprocess.run(
            [sys.executable, "-m", "synth", *arguments],
            cwd=working_folder,
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
    assert completed.returncode == 0
    assert "out: is held by another process; the answer is written to out-2" in completed.stderr
    assert re.findall(r"out-2/msccl/\S+\.xml", completed.stdout)
    assert [path.name for path in (working_folder / "out").iterdir()] == []
    assert list((working_folder / "out-2" / "msccl").iterdir())


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_in_a_wait_for_a_library_loses_no_answer(working_folder: Path, times: int) -> None:
    command = [sys.executable, "-m", "synth", "allgather", "--topo", "ring:4", "--size", "1M", "--budget", "60s"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with (
        _stopped_holder(working_folder / "out"),
        subprocess.Popen(command, cwd=working_folder, text=True, **pipes) as running,
    ):
        assert running.stderr is not None
        while "waiting up to" not in (line := running.stderr.readline()):
            assert line or running.poll() is None
        for _ in range(times):
            running.send_signal(signal.SIGINT)
            time.sleep(0.002)
        out, err = running.communicate(timeout=HANG_S)
    assert running.returncode == 130
    assert "Traceback" not in err
    assert list((working_folder / "out-2" / "msccl").glob("*.xml"))
    assert (working_folder / "out-2" / "index.json").is_file()
    assert "out-2/msccl/" in out


@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGTERM], ids=lambda s: s.name)
def test_solvers_do_not_outlive_the_command(working_folder: Path, which: signal.Signals) -> None:
    with _searching(working_folder, (*LONG["mesh"], "--engine", "cpsat"), 0.1) as running:
        children = _busy_workers_of(running.pid)
        assert children
        os.kill(running.pid, which)
        running.wait(timeout=HANG_S)
        assert _all_end(children)


def test_ctrl_c_waits_while_files_move_to_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that an interrupt between the move of a file and that of the index comes again later."""
    timers: list[float] = []
    monkeypatch.setattr(signal, "setitimer", lambda _, seconds: timers.append(seconds))
    monkeypatch.setattr(interrupts._InterruptState, "came", 0)
    monkeypatch.setattr(interrupts._InterruptState, "answered", False)
    with write.writing(tmp_path) as library:
        library.moving = True
        interrupts._interrupt(signal.SIGINT, None)
        assert timers.pop() > 0
        library.moving = False
        with pytest.raises(KeyboardInterrupt):
            interrupts._interrupt(signal.SIGALRM, None)
    assert timers == [0]


# The search is killed as soon as it would begin.
_KILLED = """
import os, signal
from synth.app.cli import main
from synth.app.cli.asking import answer
answer.find_answer = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main()
"""


def test_a_killed_search_leaves_its_first_file(working_folder: Path, synth: Call) -> None:
    arguments = ("allreduce", "--topo", "dgx-a100", "--group", "0,2,4,6", "--cache", "none")
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, *arguments],
        cwd=working_folder,
        capture_output=True,
        timeout=HANG_S,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    (file,) = (working_folder / "out" / "mscclpp").iterdir()
    assert synth("verify", file).code == 0
    checked = synth("library", "check", "out")
    assert checked.code == 0
    assert "1 file, 0 schedules, 0 proofs: all right" in checked.flat


def test_no_solver_is_left_after_a_plain_end(working_folder: Path) -> None:
    arguments = ("allreduce", "--topo", "dgx-a100", "--group", "0,2", "--size", "1M", "--budget", "3s")
    with _searching(working_folder, arguments, 0.1) as running:
        children = _workers_of(running.pid)
        running.communicate(timeout=HANG_S)
    assert running.returncode == 0
    assert _all_end(children)


def test_a_reader_that_leaves_early(working_folder: Path) -> None:
    """Check that `synth … | head -1` ends without a traceback."""
    line = f"{sys.executable} -m synth topo show torus:30x30 | head -1"
    completed = subprocess.run(
        ["bash", "-c", line], cwd=working_folder, capture_output=True, text=True, timeout=HANG_S, check=True
    )
    assert completed.stderr == ""


@pytest.mark.parametrize(
    "arguments", [("topo", "list"), ("--help",), ("allgather", "--topo", "ring:4", "--size", "1M")]
)
def test_output_that_cannot_be_written_is_one_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        completed = subprocess.run(
            [sys.executable, "-m", "synth", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
    assert completed.returncode == 2
    (line,) = without_progress(completed.stderr).splitlines()
    assert line.startswith("synth: standard output: cannot be used (No space left on device)")


@pytest.mark.parametrize("command", ["allgather --topo ring:4 --budget 2s --out {}", "bench {}", "report {}"])
def test_names_that_are_too_long_are_one_line(command: str, synth: Call) -> None:
    assert "File name too long" in synth(*command.format("a" * 300).split()).refusal
