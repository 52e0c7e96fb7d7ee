"""Ranks that agree on failures of links between their calls; run by test_failure_plans.py.

python -m tests.runtime.torch.switched checks RANK RANKS ADDRESS RESULT
python -m tests.runtime.torch.switched training FOLDER
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import synth.torch as ours
from runtime.torch.counters import counters
from topologies.errors import InputError

SMALL, LARGE = 100, 20_000  # Elements: the table names an algorithm for large calls only.
HEALTHY, HURT = "healthy", "hurt"  # Parts of the names of programs.


def summed(count: int, group: Any = None) -> str:
    """Check an all-reduce, and return what served it, with HEALTHY or HURT for a program."""
    tensor = torch.full((count,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor, group=group)
    members = dist.get_process_group_ranks(group or dist.group.WORLD)
    assert torch.equal(tensor, torch.full((count,), float(sum(members) + len(members))))
    return served()


def served() -> str:
    """Return what served the last all-reduce, with HEALTHY or HURT for a program."""
    name = counters.last("allreduce") or ""
    return next((word for word in ("gloo", HEALTHY, HURT) if word in name), name)


def started(prepared: Any, tensor: Any) -> str:
    """Check a start of a persistent all-reduce of a tensor, and return what served it."""
    tensor.fill_(1.0)
    prepared.start().wait()
    assert torch.equal(tensor, torch.full_like(tensor, dist.get_world_size()))
    return served()


def refused(*seen: str) -> str:
    """Return the error of an agreement."""
    try:
        ours.agree_on_failures(*seen)
    except InputError as error:
        return str(error)
    raise AssertionError(f"{seen} must be refused")


def checks() -> dict[str, Any]:
    """Return what served calls before, under and after a failure, and what errors said."""
    me = dist.get_rank()
    pair = dist.new_group([0, 2])
    other = dist.new_group(list(range(dist.get_world_size())))
    seen: dict[str, Any] = {"healthy": [summed(count, group) for group in (None, other) for count in (SMALL, LARGE)]}
    prepared = ours.persistent("all_reduce", tensor := torch.empty(LARGE))
    seen["persistent"] = [started(prepared, tensor)]
    tensors = [torch.ones(LARGE) for _ in range(6)]
    works = [dist.all_reduce(x, group=g, async_op=True) for x, g in zip(tensors, [None, other] * 3, strict=True)]
    seen["agreed"] = ours.agree_on_failures(*(["link:0-1"] if me == 2 else []))
    for work, of_call in zip(works, tensors, strict=True):
        work.wait()
        assert torch.equal(of_call, torch.full((LARGE,), 4.0))
    later = dist.new_group(list(range(dist.get_world_size())))
    seen["hurt"] = [summed(count, group) for group in (None, other, later) for count in (SMALL, LARGE)]
    seen["persistent"].append(started(prepared, tensor))
    if me in (0, 2):
        summed(LARGE, pair)
    seen["two"] = refused(*{0: ["link:0-1"], 1: ["link:0-2"]}.get(me, []))
    seen["long"] = refused(*(["link:0-1", *(f"link:{at}-{at + 1}" for at in range(99))] if me == 3 else []))
    seen["still hurt"] = [summed(count) for count in (SMALL, LARGE)]
    seen["repaired"] = ours.agree_on_failures()
    seen["again"] = [summed(count, group) for group in (None, other, later) for count in (SMALL, LARGE)]
    return seen


def training(folder: Path) -> None:
    """Train until a link has been cut and ten steps more; write for each step the loss, and what served its call."""
    dist.init_process_group("cpu:synth", timeout=timedelta(seconds=60))
    me = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Linear(100, 200)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + me)
    steps: list[dict[str, Any]] = []
    failed: tuple[str, ...] = ()
    after = 0
    while after < 10:
        given = torch.rand(16, 100)
        loss = (model(given) - given.sum(1, keepdim=True) / 50).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
        optimizer.step()
        dist.all_reduce(mean := loss.detach().clone(), dist.ReduceOp.AVG)
        # Only rank 1, an end of the link, looks whether it is there.
        failed = ours.agree_on_failures(*(["link:0-1"] if me == 1 and (folder / "cut").exists() else []))
        served = {row["backend"] for row in ours.statistics()["calls"] if row["collective"] == "allreduce"}
        steps.append({"loss": float(mean), "failed": failed, "served": sorted(served), "at": time.monotonic()})
        after += bool(failed)
        if me == 0 and len(steps) == 5:
            (folder / "ready").touch()
    weights = torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])
    gathered = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, weights)
    assert all(torch.allclose(weights, other) for other in gathered)  # Ranks may add in other orders.
    (folder / f"{me}.json").write_text(json.dumps(steps))
    dist.destroy_process_group()


def main(rank: int, ranks: int, address: str, result: Path) -> None:
    limit = timedelta(seconds=60)
    dist.init_process_group("cpu:synth", init_method=address, rank=rank, world_size=ranks, timeout=limit)
    result.write_text(json.dumps(checks()))
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "training":
        training(Path(sys.argv[2]))
    else:
        main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
