"""A rank that runs custom collectives.

python -m tests.runtime.torch.custom RANK SIZE ADDRESS RESULT
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import synth.torch as ours
from emit.goal import Goal
from emit.program import CUSTOM, Gpu, Program, Step, ThreadBlock
from runtime.bench import Settings
from runtime.measure.bench_over_torch import measure_custom
from runtime.torch.programs.rank_program import rank_program
from tests.runtime.torch.values import same
from topologies.errors import InputError


def check(rank: int, size: int) -> None:
    """Check that every rank's tensor goes to the next rank, and that a call without a program is refused."""
    for elements in (8, 4096):
        for asynchronous in (False, True):
            sent, received = torch.arange(elements) + 1000 * rank, torch.full((elements,), -1)
            work = ours.custom("alltonext", received, sent, async_op=asynchronous)
            if asynchronous:
                work.wait()
            same(sent, torch.arange(elements) + 1000 * rank)
            expected = torch.arange(elements) + 1000 * (rank - 1)
            same(received, expected if rank else torch.full((elements,), -1))
    for name, sent, received in (
        ("nothing", torch.zeros(8), torch.zeros(8)),
        ("alltonext", torch.zeros(8), torch.zeros(4)),
        ("alltonext", torch.zeros(1 << 20), torch.zeros(1 << 20)),
    ):
        with pytest.raises(InputError, match=f"no program of this name for {size} ranks"):
            ours.custom(name, received, sent)


def check_measured(rank: int) -> None:
    """Check a sum in place of rank 0's input: it is right after any number of runs, and a copy is noticed."""
    goal = Goal.from_arrays(2, ((0, 1), "ii", (0, 0), (0, 1), (0, 0)), ((0, 0), "ii", (0, 0), (0, 1), (0, 0)))
    for op, wrong in (("rrc", 0), ("r", 256)):
        into = Step(op, src_off=0, dst_buf="i", dst_off=0, count=1)
        gpus = [
            Gpu(1, 0, 0, [ThreadBlock(-1, 1, 0, [into])]),
            Gpu(1, 0, 0, [ThreadBlock(0, -1, 0, [Step("s", src_off=0, count=1)])]),
        ]
        program = Program("sum", CUSTOM, "Simple", 2, 1, inplace=False, outofplace=True, gpus=gpus)
        row = measure_custom(rank_program(program, rank), goal, 1024, Settings(iterations=3))
        assert row.out_of_place is not None
        assert (row.size_bytes, row.out_of_place.wrong) == (1024, wrong), op
        assert row.out_of_place.time_us > 0


if __name__ == "__main__":
    me, ranks = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("cpu:synth,cuda:synth", init_method=sys.argv[3], rank=me, world_size=ranks)
    check(me, ranks)
    check_measured(me)
    dist.destroy_process_group()
    Path(sys.argv[4]).write_text("done")
