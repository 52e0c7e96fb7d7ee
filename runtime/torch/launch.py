"""Run a command as several processes of this machine, each a rank of one torch.distributed job."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from topologies.errors import InputError

_PATIENCE_S = 5.0  # For the other ranks, once a rank has failed.


def is_rank_of_job() -> bool:
    """Return True if torchrun or `launch_ranks` started this process as a rank: RANK and WORLD_SIZE are set."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def ranks_of_job() -> int | None:
    """Return the number of ranks of this process's job; None if RANK or WORLD_SIZE is unset, or WORLD_SIZE is empty.

    Raises:
        InputError: WORLD_SIZE is not a positive whole number of at most 9 digits.
    """
    return world_size() if is_rank_of_job() else None


def world_size() -> int | None:
    """Return the number of ranks that WORLD_SIZE states; None if it is unset or empty.

    Raises:
        InputError: WORLD_SIZE is not a positive whole number of at most 9 digits.
    """
    text = os.environ.get("WORLD_SIZE", "")
    if not text:
        return None
    if not re.fullmatch("[0-9]{1,9}", text) or not int(text):
        raise InputError(f"WORLD_SIZE={text!r}; it must be a whole number, 1 or more")
    return int(text)


def launch_ranks(ranks: int, arguments: Sequence[str]) -> int:
    """Run `synth ARGUMENTS` in one process per rank on this machine until all end or one fails; return the exit code.

    The code is 0 if all ended well, that of the first rank that failed (1 if a signal ended it), or 130 after Ctrl-C.
    Once a rank has failed, the others are killed after 5 s.

    Only rank 0 prints, unless another rank fails first: then the last line of that rank's errors is printed, or its
    exit code if it wrote none. Ctrl-C is passed on to rank 0, which has 5 s to save what it has. It must be called on
    the main thread, whose handlers of SIGTERM and SIGHUP it replaces until it returns.

    Args:
        ranks: Number of ranks.
        arguments: Arguments of `synth`, without its name.

    Raises:
        SystemExit: A signal (SIGTERM, SIGHUP) ends this process, with 128 plus its number; the ranks are killed before.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": str(port), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}  # fmt: skip
    errors = [tempfile.TemporaryFile() for _ in range(1, ranks)]  # noqa: SIM115 - closed below
    processes = [
        subprocess.Popen(
            [sys.executable, *python_options(), "-m", "synth", *arguments],
            env=os.environ | environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=None if rank == 0 else subprocess.DEVNULL,
            stderr=None if rank == 0 else errors[rank - 1],
            start_new_session=True,  # This process receives Ctrl-C, and passes it on to rank 0.
        )
        for rank in range(ranks)
    ]
    handlers = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        failed = _first_failed(processes)
        if failed is None:
            return 0
        _wait_for_others(processes)
        code = int(processes[failed].returncode)
        if failed and (processes[0].returncode or 0) <= 0:  # Rank 0 printed no reason.
            errors[failed - 1].seek(0)
            last = errors[failed - 1].read().decode("utf-8", "replace").strip().splitlines()
            generic = f"synth: rank {failed} ended with exit code {code}"
            print(last[-1] if last and code > 0 else generic, file=sys.stderr)
        return code if code > 0 else 1
    except KeyboardInterrupt:
        processes[0].send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            processes[0].wait(_PATIENCE_S)
        return 130
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for process in processes:
            process.kill()
            process.wait()
        for file in errors:
            file.close()


def python_options() -> list[str]:
    """Return ["-P"] if this process does not search the current folder for modules, otherwise an empty list.

    These options of the interpreter give a rank the same search path as this process. With -m Python would search the
    current folder first, where a file may have the name of one of our packages.
    """
    names_of_current_folder = {"", os.getcwd()}
    return [] if names_of_current_folder.intersection(sys.path) else ["-P"]


def _exit(number: int, _: FrameType | None) -> None:
    """Raise SystemExit with 128 plus a signal's number, so that the ranks do not outlive this process."""
    raise SystemExit(128 + number)


def _first_failed(processes: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait until a process ends with an error, and return its rank; None when all have ended well.

    It looks every 0.05 s, and returns the lowest rank if more than one has failed by then.
    """
    while True:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code:
                return rank
        if all(code == 0 for code in codes):
            return None
        time.sleep(0.05)


def _wait_for_others(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait up to 5 s for the processes that still run, so that they can print their error, too."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until and any(process.poll() is None for process in processes):
        time.sleep(0.05)
