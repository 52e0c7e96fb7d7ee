"""A rank on a shaped network: runs the programs of MSCCL XML files with the torch back end's executor over Gloo.

python -m results.measuring.shaped_ranks FOLDER BYTES TURNS
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from emit.msccl.read import read_msccl
from runtime.torch.programs.rank_program import rank_program
from runtime.torch.programs.run import run
from runtime.torch.programs.transport import FIRST_TAG, Transport

PINGS = 40


class Within:
    """The messages of a process group, sent over the process group of the whole job."""

    def __init__(self, messages: Any, ranks: Sequence[int]) -> None:
        self.messages, self.ranks = messages, ranks

    def send(self, tensors: list[Any], peer: int, tag: int) -> Any:
        """Start to send tensors to a rank of the group."""
        return self.messages.send(tensors, self.ranks[peer], tag)

    def recv(self, tensors: list[Any], peer: int, tag: int) -> Any:
        """Start to receive tensors from a rank of the group."""
        return self.messages.recv(tensors, self.ranks[peer], tag)

    def allgather(self, outputs: Sequence[list[Any]], inputs: list[Any]) -> Any:
        """Raise NotImplementedError, since no program gathers."""
        raise NotImplementedError


def worker(folder: Path, size_bytes: int, turns: int) -> None:
    """Measure the latency of a message, wait for the plan, and run every program of every case `turns` times.

    The folder holds alpha.json (µs of a message, written first), plan.json (waited for: cases, each with programs, each
    with files: ranks and name), and at the end measured.json: the same with the seconds of every run.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    me, world = dist.get_rank(), dist.get_world_size()
    messages: Any = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]

    def run_on_all(do: Callable[[], None]) -> float:
        """Return the seconds from a common start of all ranks until the last one has ended; one host has one clock."""
        dist.barrier()
        begin = torch.tensor([time.monotonic() + 0.05], dtype=torch.float64)
        dist.broadcast(begin, 0)
        time.sleep(max(0.0, float(begin) - time.monotonic()))
        do()
        took = torch.tensor([time.monotonic() - float(begin)], dtype=torch.float64)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        return float(took)

    def around() -> None:
        """Send small messages to the next rank, again and again, while all ranks do so."""
        for _ in range(PINGS):
            out, into = torch.zeros(1), torch.zeros(1)
            coming, going = messages.recv([into], (me - 1) % world, 1), messages.send([out], (me + 1) % world, 1)
            coming.wait()
            going.wait()

    alpha_us = min(run_on_all(around) for _ in range(3)) / PINGS * 1e6
    if me == 0:
        (folder / "alpha.part").write_text(json.dumps(alpha_us))
        (folder / "alpha.part").rename(folder / "alpha.json")
    while not (folder / "plan.json").exists():
        time.sleep(0.2)
    cases = json.loads((folder / "plan.json").read_text())
    for case in cases:
        parts = []
        for program in case["programs"]:
            ranks, name = next(files for files in program["files"] if me in files[0])
            parts.append((rank_program(read_msccl(folder / name), ranks.index(me)), ranks))
        for _ in range(turns):
            for place, (part, ranks) in enumerate(parts):
                values = torch.full((size_bytes // 4,), float(me % 7))
                # A tag of its own for each program keeps the messages of its call apart from those of other calls.
                transport = Transport(
                    Within(messages, ranks), ranks, ranks.index(me), FIRST_TAG | (place << 15), "case"
                )
                seconds = run_on_all(partial(run, part, values, values, size_bytes // 4, "sum", transport))
                case["programs"][place]["seconds"].append(seconds)
                if not bool((values == sum(rank % 7 for rank in ranks)).all()):
                    raise SystemExit(f"Rank {me} has wrong elements after the program {case['programs'][place]}")
    if me == 0:
        (folder / "measured.json").write_text(json.dumps(cases))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    worker(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
