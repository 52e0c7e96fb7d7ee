"""A command run as several processes of this machine, each a rank of one torch.distributed job."""

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

_PATIENCE_S = 5.0  # for the others, once one has failed


def is_rank_of_job() -> bool:
    """Whether this process is a rank already, started by torchrun or by `launch_ranks`."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def ranks_of_job() -> int | None:
    """Of how many ranks this process is one; None where it is none. Raises InputError as `world_size`."""
    return world_size() if is_rank_of_job() else None


def world_size() -> int | None:
    """How many ranks the environment says there are; None where it says nothing. Raises InputError for no number."""
    text = os.environ.get("WORLD_SIZE", "")
    if not text:
        return None
    if not re.fullmatch("[0-9]{1,9}", text) or not int(text):
        raise InputError(f"WORLD_SIZE={text!r}; it must be a whole number, 1 or more")
    return int(text)


def launch_ranks(ranks: int, words: Sequence[str]) -> int:
    """Run `synth WORDS` as so many ranks; the exit code of the first that failed, or 0.

    Only rank 0 prints, unless another fails first: then that one's last line is printed. Ctrl-C is passed on to rank 0,
    which has a few seconds to save what it has.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": str(port), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}  # fmt: skip
    errors = [tempfile.TemporaryFile() for _ in range(1, ranks)]  # noqa: SIM115 - closed below
    processes = [
        subprocess.Popen(
            [sys.executable, *_where_to_look(), "-m", "synth", *words],
            env=os.environ | environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=None if rank == 0 else subprocess.DEVNULL,
            stderr=None if rank == 0 else errors[rank - 1],
            start_new_session=True,  # Ctrl-C is for this process, which passes it on to rank 0
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
        if failed and (processes[0].returncode or 0) <= 0:  # rank 0 printed no reason
            errors[failed - 1].seek(0)
            last = errors[failed - 1].read().decode("utf-8", "replace").strip().splitlines()
            plain = f"synth: rank {failed} ended with exit code {code}"
            print(last[-1] if last and code > 0 else plain, file=sys.stderr)
        return code if code > 0 else 1
    except KeyboardInterrupt:
        processes[0].send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            processes[0].wait(_PATIENCE_S)
        return 130
    finally:
        for number, before in handlers.items():
            signal.signal(number, before)
        for process in processes:
            process.kill()
            process.wait()
        for file in errors:
            file.close()


def _where_to_look() -> list[str]:
    """Return the interpreter's options by which a rank looks for modules where this process does.

    With -m alone it would look into the current folder first, where a file may have the name of one of our packages.
    """
    here = {"", os.getcwd()}
    return [] if here.intersection(sys.path) else ["-P"]


def _exit(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)  # the ranks do not outlive this process


def _first_failed(processes: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """The rank that first ended with an error; None when all have ended well."""
    while True:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code:
                return rank
        if all(code == 0 for code in codes):
            return None
        time.sleep(0.05)


def _wait_for_others(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Give those that still run a while to print their error, too."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until and any(process.poll() is None for process in processes):
        time.sleep(0.05)
