"""Ranks that are started again with the store of their first attempt."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

import torch.distributed as dist

from runtime.torch.failures.meeting import meet
from tests import ROOT
from tests.hang import HANG_S

RANKS = (5, 3, 8)
AGAIN = """
import os
import torch
import torch.distributed as dist
from tests.hang import HANG_S
import synth.torch

dist.init_process_group("cpu:synth,cuda:synth")
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
for turn in range(3):
    values = torch.ones(9)
    dist.all_reduce(values)
    assert values.tolist() == [2.0] * 9
    if rank == 1 and turn == attempt and attempt < 2:
        os._exit(3)
dist.destroy_process_group()
open(os.environ["DONE"] + str(rank), "w").write(str(attempt))
"""


class Process:
    """A process that meets others: its address, and the addresses to which it has connected."""

    def __init__(self, name: str) -> None:
        self.address, self.of_rank = f"{name} secret host 1", dict[int, str]()
        self.met: list[str] = []

    def connect(self, address: str) -> str:
        self.met.append(address.split()[0])
        return self.met[-1]


def join(store: Any, attempt: int, late: int) -> list[Any]:
    """Return the result of `meet` on each of three ranks; rank `late` starts after the others have waited a while."""
    results: list[Any] = [None] * len(RANKS)
    processes = [Process(f"{attempt}-{rank}") for rank in RANKS]

    def enter(place: int) -> None:
        results[place] = meet(processes[place], store, place, RANKS, timedelta(seconds=20), lambda _: None)

    threads = [threading.Thread(target=enter, args=(place,)) for place in range(len(RANKS))]
    for place in range(len(RANKS)):
        if place != late:
            threads[place].start()
    for place in range(len(RANKS)):
        if place != late:
            threads[place].join(0.1)
            assert threads[place].is_alive(), "did not wait for the last"
    threads[late].start()
    for thread in threads:
        thread.join()
    met = [set(process.met) for process in processes]
    everybody = {f"{attempt}-{rank}" for rank in RANKS}
    assert met == [everybody - {f"{attempt}-{rank}"} for rank in RANKS]
    return results


@pytest.mark.parametrize("late", [0, 1, 2])
def test_every_attempt_meets_itself(late: int) -> None:
    store = dist.HashStore()
    groups = set()
    for attempt in range(3):
        results = join(store, attempt, late if attempt else 1)
        assert [names for names, _ in results] == [[f"{attempt}-{rank}" for rank in RANKS]] * 3
        groups |= {group for _, group in results}
    assert len(groups) == 3


@pytest.mark.parametrize(("place", "lost"), [(1, "5"), (0, "3, 8")])
def test_an_absent_rank_is_named(place: int, lost: str) -> None:
    store = dist.HashStore()
    join(store, 0, 0)
    with pytest.raises(RuntimeError, match=f"rank {lost} did not come within 0.1 s"):
        meet(Process("again"), store, place, RANKS, timedelta(seconds=0.1), lambda _: None)


@pytest.mark.slow
def test_torchrun_restarts_ranks(tmp_path: Path) -> None:
    (tmp_path / "again.py").write_text(AGAIN)
    variables = {
        "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "DONE": str(tmp_path / "done"), "PYTHONPATH": str(ROOT)
    }  # fmt: skip
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2"]
    ran = subprocess.run(
        [*command, "--monitor-interval", "0.1", str(tmp_path / "again.py")],
        env=os.environ | variables, cwd=ROOT, capture_output=True, text=True, timeout=HANG_S,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert [(tmp_path / f"done{rank}").read_text() for rank in range(2)] == ["2", "2"]
