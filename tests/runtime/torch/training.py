"""Models trained in PyTorch's own ways, compared with the same training over Gloo only."""

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

from runtime.torch.c10d.fusion import FusionState, fuse_hook

Trained = tuple[Any, Any]  # Model and optimizer.


class Either(nn.Module):
    """A model that uses one half in even steps and the other half in odd ones."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = nn.ModuleList([nn.Linear(20, 5), nn.Linear(20, 5)])
        self.turn = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.turn += 1
        return self.halves[self.turn % 2](batch)


def _plain(seed: int = 7) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 5))


def copied(group: Any, **options: Any) -> Trained:
    whole = DistributedDataParallel(
        _plain(7 + dist.get_rank()), process_group=group, bucket_cap_mb=0.01, **options
    )  # DDP must spread rank 0's weights.
    return whole, torch.optim.Adam(whole.parameters(), lr=0.01)


def compiled(group: Any) -> Trained:
    """Build a model with buffers, which are broadcast before each step; torch.compile must not trace these calls."""
    inner = _plain()
    inner.register_buffer("seen", torch.zeros(3))
    whole = torch.compile(DistributedDataParallel(inner, process_group=group), backend="aot_eager")
    return whole, torch.optim.Adam(whole.parameters(), lr=0.01)


def fused() -> None:
    """Check the hook that sends several buckets in one call, against the gradients of plain DDP."""
    me = dist.get_rank()
    gradients = []
    for most_bytes in (None, 1, 10_000, 1 << 30):
        model = DistributedDataParallel(_plain(), bucket_cap_mb=0.005)
        if most_bytes is not None:
            model.register_comm_hook(FusionState(most_bytes=most_bytes), fuse_hook)
        for _ in range(2):  # DDP makes other buckets after the first step.
            model.zero_grad()
            model(torch.linspace(0, 1 + me, 80).view(4, 20)).square().sum().backward()
        gradients.append(torch.cat([parameter.grad.view(-1) for parameter in model.parameters()]))
    assert all(torch.allclose(gradient, gradients[0], rtol=1e-4) for gradient in gradients[1:])
    assert gradients[0].abs().max() > 0


def hooks() -> None:
    """Check DDP's built-in hooks, which are written in C++, also for numbers with half as many bits."""
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


# These imports are local, since torch warns as it imports them, and tests that only list the checks treat warnings as
# errors.


def optimizer_sharded(group: Any) -> Trained:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    whole = DistributedDataParallel(_plain(), process_group=group)
    return whole, ZeroRedundancyOptimizer(whole.parameters(), torch.optim.Adam, lr=0.01, process_group=group)


def model_sharded(group: Any) -> Trained:
    """Build a model that FSDP2 shards."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = _plain(), DeviceMesh.from_group(group, "cpu")
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def model_sharded_flat(group: Any) -> Trained:
    """Build a model that FSDP1 shards."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(_plain(), process_group=group, device_id=torch.device("cpu"), use_orig_params=True)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def _steps(trained: Trained, accumulate: bool) -> Iterator[list[torch.Tensor]]:
    """Yield the parameters after each step; if `accumulate`, gradients of two batches are sent once."""
    model, optimizer = trained
    for step in range(4 if accumulate else 3):
        torch.manual_seed(100 * step + dist.get_rank())
        batch, target = torch.randn(8, 20), torch.randn(8, 5)
        is_local = accumulate and step % 2 == 0
        with model.no_sync() if is_local else nullcontext():
            nn.functional.mse_loss(model(batch), target).backward()
        if is_local:
            continue
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield [(p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone() for p in model.parameters()]


def _trains(make: Callable[[Any], Trained], accumulate: bool = False) -> None:
    """Check training step by step against Gloo, within rounding.

    The weights change, and unsharded weights are equal on all ranks.
    """
    gloo = dist.new_group(backend="gloo")
    first: list[torch.Tensor] = []
    with_ours = _steps(make(dist.group.WORLD), accumulate)
    for parameters, theirs in zip_longest(with_ours, _steps(make(gloo), accumulate)):
        torch.testing.assert_close(parameters, theirs, rtol=1e-4, atol=1e-6)
        first = first or parameters
    assert any(not torch.equal(a, b) for a, b in zip(first, parameters, strict=True)), "nothing was learnt"
    if make is not model_sharded_flat:
        for tensor in parameters:
            every = [torch.zeros_like(tensor) for _ in range(dist.get_world_size())]
            dist.all_gather(every, tensor)
            assert all(torch.equal(every[0], rank_parameters) for rank_parameters in every)
    dist.destroy_process_group(gloo)


TRAINING = {
    "ddp": partial(_trains, copied),
    "ddp gradient accumulation": partial(_trains, copied, accumulate=True),
    "ddp static graph": partial(_trains, partial(copied, static_graph=True, gradient_as_bucket_view=True)),
    "ddp unused parameters": partial(_trains, parts_unused),
    "ddp compiled": partial(_trains, compiled),
    "ddp built-in hooks": hooks,
    "ddp fused": fused,
    "zero": partial(_trains, optimizer_sharded),
    "fsdp2": partial(_trains, model_sharded),
    "fsdp1": partial(_trains, model_sharded_flat),
}
