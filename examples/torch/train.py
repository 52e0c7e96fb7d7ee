"""Train a small model on all ranks with synth's back end, which averages the gradients, and print what ran where.

    SYNTH_BACKEND=synth torchrun --nproc-per-node 4 examples/torch/train.py

Without SYNTH_BACKEND, the wrapped back end (Gloo) runs every call for which no table names an algorithm of synth.
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import synth.torch


def main() -> None:
    dist.init_process_group("cpu:synth,cuda:synth")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(16, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    torch.manual_seed(1 + rank)  # Every rank has different examples.
    for step in range(int(os.environ.get("STEPS", "200"))):
        given = torch.rand(64, 16)
        loss = (model(given) - given.square().sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if rank == 0 and (step == 0 or step % 50 == 49):
            print(f"step {step + 1:3}: loss {mean.item():7.4f}, mean of {ranks} ranks", flush=True)
    if rank == 0:
        synth.torch.summary()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
