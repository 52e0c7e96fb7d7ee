"""A rank with a GPU of its own, which makes collectives of CUDA tensors; run by test_cuda.py.

python -m tests.runtime.torch.cuda_ranks RANK RANKS ADDRESS RESULT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import synth.torch as ours


def main(rank: int, ranks: int, address: str, result: Path) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:synth,cuda:synth", init_method=address, rank=rank, world_size=ranks)
    values = torch.arange(1000.0, device="cuda") + rank
    total = sum(torch.arange(1000.0, device="cuda") + other for other in range(ranks))
    with ours.using("synth"):
        summed = values.clone()
        dist.all_reduce(summed)
        assert torch.equal(summed, total)
        work = dist.all_reduce(summed.copy_(values), async_op=True)
        work.wait()
        assert torch.equal(summed, total)
        gathered = torch.empty(ranks * 1000, device="cuda")
        dist.all_gather_into_tensor(gathered, values)
        assert torch.equal(gathered[rank * 1000 : (rank + 1) * 1000], values)
        scattered = torch.empty(1000, device="cuda")
        dist.reduce_scatter_tensor(scattered, values.repeat(ranks))
        assert torch.equal(scattered, total)
    torch.cuda.synchronize()
    result.write_text(json.dumps(ours.statistics()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
