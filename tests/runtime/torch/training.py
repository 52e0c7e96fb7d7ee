"""Models of PyTorch's own ways of training, beside the same with all that they send left to Gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Trained = tuple[Any, Any]  # model, optimizer


class Either(nn.Module):
    """Uses one half in even steps and the other in odd ones."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = nn.ModuleList([nn.Linear(20, 5), nn.Linear(20, 5)])
        self.turn = 0

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.turn += 1
        return self.halves[self.turn % 2](given)


def _plain(seed: int = 7) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 5))


def copied(group: Any, **options: Any) -> Trained:
    whole = DistributedDataParallel(
        _plain(7 + dist.get_rank()), process_group=group, bucket_cap_mb=0.01, **options
    )  # which must spread rank 0's weights
    return whole, torch.optim.Adam(whole.parameters(), lr=0.01)


def compiled(group: Any) -> Trained:
    """With buffers, which are broadcast before each step; torch.compile must not look into these calls."""
    inner = _plain()
    inner.register_buffer("seen", torch.zeros(3))
    whole = torch.compile(DistributedDataParallel(inner, process_group=group), backend="aot_eager")
    return whole, torch.optim.Adam(whole.parameters(), lr=0.01)


def hooks() -> None:
    """DDP's built-in hooks, which are written in C++; of numbers that half as many bits hold, too."""
    me, n = dist.get_rank(), dist.get_world_size()
    for hook in (dist.BuiltinCommHookType.ALLREDUCE, dist.BuiltinCommHookType.FP16_COMPRESS):
        model = DistributedDataParallel(nn.Linear(20, 5))
        model._register_builtin_comm_hook(hook)
        for _ in range(2):
            model.zero_grad()
            model(torch.full((4, 20), float(me))).sum().backward()
            assert model.module.weight.grad.unique().tolist() == [4 * (n - 1) / 2]


def parts_unused(group: Any) -> Trained:
    torch.manual_seed(7 + dist.get_rank())
    whole = DistributedDataParallel(Either(), process_group=group, find_unused_parameters=True)
    return whole, torch.optim.Adam(whole.parameters(), lr=0.01)


# imported within: torch warns as it imports these, and the tests that only list the checks take warnings for errors


def optimizer_sharded(group: Any) -> Trained:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    whole = DistributedDataParallel(_plain(), process_group=group)
    return whole, ZeroRedundancyOptimizer(whole.parameters(), torch.optim.Adam, lr=0.01, process_group=group)


def model_sharded(group: Any) -> Trained:
    """FSDP2."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = _plain(), DeviceMesh.from_group(group, "cpu")
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def model_sharded_flat(group: Any) -> Trained:
    """FSDP1."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(_plain(), process_group=group, device_id=torch.device("cpu"), use_orig_params=True)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def _steps(made: Trained, accumulate: bool) -> Iterator[list[torch.Tensor]]:
    """The parameters after each step; `accumulate`: gradients of two batches, sent once."""
    model, optimizer = made
    for step in range(4 if accumulate else 3):
        torch.manual_seed(100 * step + dist.get_rank())
        given, wanted = torch.randn(8, 20), torch.randn(8, 5)
        alone = accumulate and step % 2 == 0
        with model.no_sync() if alone else nullcontext():
            nn.functional.mse_loss(model(given), wanted).backward()
        if alone:
            continue
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield [(p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone() for p in model.parameters()]


def _trains(make: Callable[[Any], Trained], accumulate: bool = False) -> None:
    """Step by step as with Gloo, within rounding; the weights move, and whole ones are the same on all ranks."""
    gloo = dist.new_group(backend="gloo")
    first: list[torch.Tensor] = []
    with_ours = _steps(make(dist.group.WORLD), accumulate)
    for mine, theirs in zip_longest(with_ours, _steps(make(gloo), accumulate)):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
        first = first or mine
    assert any(not torch.equal(a, b) for a, b in zip(first, mine, strict=True)), "nothing was learnt"
    if make is not model_sharded_flat:
        for tensor in mine:
            every = [torch.zeros_like(tensor) for _ in range(dist.get_world_size())]
            dist.all_gather(every, tensor)
            assert all(torch.equal(every[0], other) for other in every)
    dist.destroy_process_group(gloo)


TRAINING = {
    "ddp": partial(_trains, copied),
    "ddp gradient accumulation": partial(_trains, copied, accumulate=True),
    "ddp static graph": partial(_trains, partial(copied, static_graph=True, gradient_as_bucket_view=True)),
    "ddp unused parameters": partial(_trains, parts_unused),
    "ddp compiled": partial(_trains, compiled),
    "ddp built-in hooks": hooks,
    "zero": partial(_trains, optimizer_sharded),
    "fsdp2": partial(_trains, model_sharded),
    "fsdp1": partial(_trains, model_sharded_flat),
}
