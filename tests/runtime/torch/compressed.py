"""One rank that sums compressed tensors and trains with compressed gradients: run by a test.

python -m tests.runtime.torch.compressed RANK RANKS ADDRESS RESULT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import synth.torch as ours
from runtime.torch.c10d.compression import BLOCK, ROUNDING
from topologies.errors import InputError


def worst_over_limit(kind: str, count: int, me: int, n: int) -> float:
    """Return the largest error of a sum of random values of very different sizes / its limit."""
    torch.manual_seed(count)
    values = [torch.randn(count) * 10 ** torch.empty(count).uniform_(-3, 3) for _ in range(n)]
    exact, sizes = sum(value.double() for value in values), sum(value.abs().double() for value in values)
    summed = values[me].clone()
    ours.all_reduce_compressed(summed, kind)
    copies = [torch.empty_like(summed) for _ in range(n)]
    dist.all_gather(copies, summed)
    assert all(torch.equal(copy, summed) for copy in copies), "ranks have different bits"
    if kind == "int8":  # Any block that holds the element counts, as shards may begin anywhere.
        wide = torch.nn.functional.max_pool1d
        near = [wide(value.abs()[None, None], 2 * BLOCK - 1, 1, BLOCK - 1)[0, 0].double() for value in values]
        sizes, total = sum(near), wide(exact.abs()[None, None].float(), 2 * BLOCK - 1, 1, BLOCK - 1)[0, 0].double()
        limit = ROUNDING[kind] * (sizes + (total + ROUNDING[kind] * sizes))
    else:
        limit = ROUNDING[kind] * (sizes + exact.abs()) * (1 + ROUNDING[kind]) + 1e-6
    return float(((summed.double() - exact).abs() / limit).max())


def trained(kind: str | None, feedback: bool, me: int) -> float:
    """Return the largest difference of a linear model's weights from the best ones, after training by gradients."""
    torch.manual_seed(5)
    best, inputs = torch.randn(300), torch.randn(64, 300)
    model = DistributedDataParallel(torch.nn.Linear(300, 1, bias=False))
    if kind is not None:
        model.register_comm_hook(ours.CompressionState(kind, error_feedback=feedback), ours.compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    own = inputs[me::2]
    start = model.module.weight.detach().clone()
    for _ in range(150):
        optimizer.zero_grad()
        ((model(own).squeeze(1) - own @ best) ** 2).mean().backward()
        optimizer.step()
    loss = ((model(inputs).squeeze(1) - inputs @ best) ** 2).mean()
    begun = ((inputs @ start[0] - inputs @ best) ** 2).mean()
    return float(loss.detach() / begun)


def main(rank: str, ranks: str, address: str, result: str) -> None:
    me, n = int(rank), int(ranks)
    dist.init_process_group("cpu:synth", init_method=address, rank=me, world_size=n)
    ratios = {kind: max(worst_over_limit(kind, count, me, n) for count in (1, 7, 256, 5000)) for kind in ROUNDING}
    answer = {"over limit": ratios, "losses": {}}
    for name, kind, feedback in (("exact", None, True), ("int8", "int8", True), ("bfloat16", "bfloat16", True)):
        answer["losses"][name] = trained(kind, feedback, me)
    for wrong in (lambda: ours.all_reduce_compressed(torch.ones(3), "int4"),
                  lambda: ours.all_reduce_compressed(torch.ones(3, dtype=torch.int64), "int8")):  # fmt: skip
        try:
            wrong()
        except InputError:
            answer["refused"] = int(answer.get("refused", 0)) + 1
    Path(result).write_text(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
