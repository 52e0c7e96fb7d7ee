"""The processes of a test that uses torch, one for each rank."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import ROOT
from tests.hang import HANG_S

ALONE = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}  # Environment variables that keep a test on this host.


def free_port() -> int:
    """Return a free TCP port of this host."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def run_ranks(
    command: Sequence[str], address: str, results: Sequence[Path], environment: dict[str, str]
) -> list[tuple[int, str]]:
    """Run a module in one process per rank until all have ended.

    Args:
        command: Name of the module, and its first arguments; rank, number of ranks, address and result follow them.
        address: Where the ranks meet.
        results: File that each rank writes.
        environment: Environment variables, besides those of `ALONE`.

    Returns:
        Exit code and output of each rank.
    """
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", *command, str(rank), str(len(results)), address, str(result)],
            env=environment | ALONE, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank, result in enumerate(results)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=HANG_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]
