"""A rank that runs a collective of its own: python -m tests.runtime.torch.custom RANK SIZE ADDRESS RESULT"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import runtime.process_group as ours
from tests.runtime.torch.values import same
from topologies.errors import InputError


def check(rank: int, size: int) -> None:
    """Every rank's tensor goes to the next; what the library does not serve is refused."""
    for elements in (8, 4096):
        for asynchronous in (False, True):
            given, made = torch.arange(elements) + 1000 * rank, torch.full((elements,), -1)
            work = ours.custom("alltonext", made, given, async_op=asynchronous)
            if asynchronous:
                work.wait()
            same(given, torch.arange(elements) + 1000 * rank)
            wanted = torch.arange(elements) + 1000 * (rank - 1)
            same(made, wanted if rank else torch.full((elements,), -1))
    for name, given, made in (
        ("nothing", torch.zeros(8), torch.zeros(8)),
        ("alltonext", torch.zeros(8), torch.zeros(4)),
        ("alltonext", torch.zeros(1 << 20), torch.zeros(1 << 20)),
    ):
        with pytest.raises(InputError, match=f"no program of it for {size} ranks"):
            ours.custom(name, made, given)


if __name__ == "__main__":
    me, ranks = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("cpu:synth,cuda:synth", init_method=sys.argv[3], rank=me, world_size=ranks)
    check(me, ranks)
    dist.destroy_process_group()
    Path(sys.argv[4]).write_text("done")
