"""Folders in which commands are run while others hold them, may not use them, or their disk is full."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from click.testing import CliRunner

from synth.app.cli import cli

_HOLDER = """import fcntl, os, sys
for path in sys.argv[1:]:
    handle = os.open(path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
_WITHOUT_LOCKS = """import errno, fcntl, os

def refuse(*_):
    number = getattr(errno, os.environ["ERROR_OF_LOCKS"])
    raise OSError(number, os.strerror(number))

fcntl.flock = fcntl.lockf = refuse
if __name__ == "__main__":
    from synth.app.cli import main
    main()
"""
# Root may read and write everything. Without these two rights it obeys permissions as others do.
_PLAIN_ROOT = "setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"
_DISK = "size=64k,mode=755"
_BLOCK = 4096


class SkippedError(Exception):
    """A situation that cannot be made on this machine."""


class Holder:
    """A process that holds folders or files until it is let go or killed, or until this process ends."""

    def __init__(self, *paths: Path) -> None:
        words = [sys.executable, "-S", "-c", _HOLDER, *map(str, paths)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def release(self) -> None:
        """Let the process end by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def stop(self) -> None:
        """Stop the process, which holds what it has."""
        self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.wait()


@dataclass
class Place:
    """The folder in which a command runs, and what surrounds the command.

    Attributes:
        folder: The current folder of the command; `lib` in it is the library.
        stack: What is undone at the end.
        environment: Variables that are set beside the usual ones.
        prefix: What stands before the command's words.
        program: The arguments that make Python run the command.
        acts: What is done while the command runs, each so many seconds after the last one, or once the command has said
            a text.
    """

    folder: Path
    stack: ExitStack
    environment: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    program: tuple[str, ...] = ("-m", "synth")
    acts: list[tuple[float | str, Callable[[subprocess.Popen[bytes]], object]]] = field(default_factory=list)

    @property
    def lib(self) -> Path:
        """The library's folder."""
        return self.folder / "lib"

    def hold(self, *paths: Path) -> Holder:
        """Hold files or folders, made where nothing is there, until the command has ended."""
        for path in paths:
            if not path.exists():
                path.mkdir(parents=True)
        holder = Holder(*paths)
        self.stack.callback(holder.kill)
        return holder

    def forbid(self, path: Path, mode: int) -> None:
        """Give a file or folder other permissions, which root obeys too, until the command has ended."""
        usual = path.stat().st_mode
        path.chmod(mode)
        self.stack.callback(path.chmod, usual)
        if os.geteuid() == 0:
            if shutil.which(_PLAIN_ROOT[0]) is None:
                raise SkippedError("root obeys no permissions, and there is no setpriv")
            self.prefix = _PLAIN_ROOT

    def fill(self, path: Path) -> None:
        """Make a folder on a disk of its own that is full."""
        path.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", _DISK, "tmpfs", str(path)]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            raise SkippedError("no file system can be mounted")
        self.stack.callback(subprocess.run, ["umount", "--lazy", str(path)], check=True)
        with (path / "large").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(_BLOCK))

    def forget_locks(self, error: str) -> None:
        """Let each lock that the command asks for end in an error, as some file systems do."""
        path = self.folder / "without_locks.py"
        path.write_text(_WITHOUT_LOCKS)
        self.program = (str(path),)
        self.environment["ERROR_OF_LOCKS"] = error

    def put(self, kind: str, name: str) -> None:
        """Put something in the place of a file or a folder: a file, folder, pipe, link or wrong link."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "file":
            path.write_text("mine")
        elif kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            (self.folder / "real").mkdir()
            path.symlink_to(self.folder / "real")
        elif kind == "link to nothing":
            path.symlink_to(self.folder / "not-there")
        else:
            path.symlink_to(path.name)


def library_state(folder: Path, printed: bytes) -> str:
    """Return whether a library holds the answer that a command printed as JSON.

    Returns:
        "right" if it holds everything that was printed, and each file takes the stated time; "nothing" if there is
        neither an answer nor a file; else what is wrong.
    """
    if list(folder.glob(".synth-*")):
        return "unfinished files are left there"
    index = folder / "index.json"
    entries = json.loads(index.read_text())["algorithms"] if index.exists() else []
    for entry in entries:
        if CliRunner().invoke(cli, ["verify", str(folder / entry["file"])]).exit_code:
            return f"{entry['file']} is wrong"
    on_disk = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    if not entries and {name for name in on_disk if not name.endswith(".synth")}:
        return "files that are in no index"
    if not printed:
        return "right" if on_disk else "nothing"
    try:
        rows = json.loads(printed)["algorithms"]
    except ValueError:
        return "half of an answer was printed"
    for row in rows:
        path = Path(row.get("file") or row.get("schedule") or "")
        if not path.is_file():
            return f"{path} is not there"
        if row.get("file") and abs(_simulated_us(path, row) / row["time_us"] - 1) > 1e-9:
            return f"{path} takes another time than was printed"
    return "right" if rows else "nothing"


def _simulated_us(path: Path, row: dict[str, object]) -> float:
    """Return the time in µs that `synth simulate` predicts for a file at the size that a row shows."""
    entry = json.loads((path.parent.parent / "index.json").read_text())["algorithms"][0]
    words = ["simulate", str(path), "--topo", entry["topology"], "--sizes", str(row["shown_bytes"]), "--json"]
    words += ["--costs", "machine" if entry.get("costs") else "none"]
    return float(json.loads(CliRunner().invoke(cli, words).stdout)["sizes"][0]["time_us"])
