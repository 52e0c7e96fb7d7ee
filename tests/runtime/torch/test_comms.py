"""The back end of torchcomms: every method on four ranks, by a stand-in for torchcomms."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import ROOT
from tests.hang import HANG_S

RANKS = 4


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed: make torch runs this")
def test_every_method(tmp_path: Path) -> None:
    """Check every method, waiting and not, uneven sizes, a part of the ranks, and a time-out."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = [tmp_path / f"{rank}" for rank in range(RANKS)]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    for name in ("RANK", "WORLD_SIZE", "TORCHCOMM_RANK", "TORCHCOMM_SIZE"):
        environment.pop(name, None)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.runtime.torch.comms", str(rank), str(RANKS), str(port), str(result)],
            env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank, result in enumerate(results)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=HANG_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert all(result.exists() for result in results), "\n".join(outputs)
