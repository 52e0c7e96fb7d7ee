"""Effects that calls must not have, and where they may be made: autograd, inference mode, callbacks, threads."""

from __future__ import annotations

import _thread
import sys
import threading
import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import runtime.torch.process_group as ours
from runtime.torch.choice import Method
from runtime.torch.rank_choices import requested_method
from runtime.torch.tasks import GroupTask
from tests.runtime.torch.values import Check, same


def gradients() -> None:
    """Check that, as with Gloo, a collective is no part of the graph and does not spoil it."""
    n = dist.get_world_size()
    x = torch.ones(6, requires_grad=True)
    outs = [torch.zeros(6) for _ in range(n)]
    dist.all_gather(outs, x * 1.0)
    (x.sum() + torch.cat(outs).sum()).backward()
    same(x.grad, torch.ones(6))
    for asynchronous in (False, True):
        weight = torch.ones(4, requires_grad=True)
        loss = (weight * 3).exp()  # Its backward reads the memory that the reduction overwrites.
        work = dist.all_reduce(loss, async_op=asynchronous)
        if asynchronous:
            work.wait()
        loss.sum().backward()
        same(weight.grad, 3 * n * torch.full((4,), 3.0).exp())
        leaf = torch.ones(3, requires_grad=True)
        work = dist.broadcast(leaf, 0, async_op=asynchronous)
        if asynchronous:
            work.wait()
        assert leaf.requires_grad
        assert leaf.grad_fn is None


def inference() -> None:
    """Check that tensors of inference mode and of no_grad are written from within and from without."""
    n = dist.get_world_size()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            inner = torch.ones(5)
            work = dist.all_reduce(inner, async_op=True)
            strewn = torch.ones(4, 3).t()
            dist.all_reduce(strewn)
            work.wait()
        dist.all_reduce(inner)
        same(inner, torch.full((5,), float(n * n)))
        same(strewn, torch.full((3, 4), float(n)))


def callbacks() -> None:
    """Check that a callback can call the next collective and wait for it, as PyTorch's own communication hooks do."""
    n = dist.get_world_size()

    def then(tensor: torch.Tensor) -> Any:
        def hook(future: Any) -> torch.Tensor:
            second = future.value()[0] + 1
            dist.all_reduce(second, async_op=True).get_future().wait()
            dist.all_reduce(second)
            return second

        return dist.all_reduce(tensor, async_op=True).get_future().then(hook)

    # They run one after the other: calls from callbacks of different calls have no order between ranks, with Gloo
    # neither.
    for k in range(6):
        same(then(torch.full((k + 1,), float(k))).wait(), torch.full((k + 1,), float((k * n + 1) * n * n)))


def contexts() -> None:
    """Check that a callback has the method of its call, with any back end and wherever the callback runs."""
    for mode in ("gloo", "synth"):
        if dist.get_rank():
            time.sleep(0.05)  # Rank 0 still waits when it leaves `using`.
        with ours.using(mode):
            work = dist.all_reduce(torch.ones(5), async_op=True)
            method = work.get_future().then(lambda _: requested_method.get())
        assert method.wait() == Method(mode), (mode, method.value())


def barriers() -> None:
    """Check that a barrier that is not waited for delays no later call."""
    me, n = dist.get_rank(), dist.get_world_size()
    token = torch.zeros(1)
    if me == 0:
        first = dist.all_reduce(torch.ones(9), async_op=True)
        barrier = dist.barrier(async_op=True)
        for peer in range(1, n):
            dist.send(torch.ones(1), peer)
    else:
        dist.recv(token, 0)
        first = dist.all_reduce(torch.ones(9), async_op=True)
        barrier = dist.barrier(async_op=True)
    first.wait()
    barrier.wait()
    for k in range(20):  # Ranks do not confuse it with calls that Gloo starts in the meantime.
        with ours.using("synth"):
            first = dist.all_reduce(torch.ones(20_000), async_op=True)
        barrier = dist.barrier(async_op=True)
        time.sleep((k + me) % 3 * 1e-3)
        with ours.using("gloo"):
            dist.all_reduce(token.fill_(1))
        barrier.wait()
        first.wait()
        assert token.item() == n


def barriers_while_a_rank_is_busy() -> None:
    """Check that an asynchronous barrier comes before each rank's later calls, whether a rank was idle or not."""
    me, n = dist.get_rank(), dist.get_world_size()
    group: Any = dist.group.WORLD
    for waits in (True, False):
        dist.barrier()
        if me == 1:
            group._dispatch.core.lane.put(GroupTask(partial(time.sleep, 0.1), [], lambda _: None), False)
        barrier = dist.barrier(async_op=True)
        tensor = torch.ones(8)
        with ours.using("synth"):
            later = dist.all_reduce(tensor, async_op=True)
        if waits:
            barrier.wait()
        later.wait()
        same(tensor, torch.full((8,), float(n)))


def bare_thread() -> None:
    """Check that a thread may make a call from no Python code at all."""
    options, tensor = dist.AllreduceOptions(), torch.ones(4)
    options.asyncOp = True
    group: Any = dist.group.WORLD
    faults: list[Any] = []
    former, sys.unraisablehook = sys.unraisablehook, faults.append
    try:
        _thread.start_new_thread(group.allreduce, ([tensor], options))
        while not faults and not (tensor == dist.get_world_size()).all():
            time.sleep(1e-3)
        dist.barrier()
        assert not faults, faults
    finally:
        sys.unraisablehook = former


def threads() -> None:
    """Check that each thread sets the back end of its own calls."""
    groups = [dist.new_group() for _ in range(2)]
    faults: list[BaseException] = []

    def calls(group: Any, mode: str) -> None:
        try:
            for k in range(8):
                with ours.using(mode):
                    tensor = torch.ones(64 + k)
                    dist.all_reduce(tensor, group=group)
                    same(tensor, torch.full((64 + k,), float(dist.get_world_size())))
        except BaseException as error:
            faults.append(error)

    running = [threading.Thread(target=calls, args=pair) for pair in zip(groups, ("synth", "gloo"), strict=True)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not faults, faults
    for group in groups:
        dist.destroy_process_group(group)


SURROUNDINGS: dict[str, Check] = {
    "gradients": gradients,
    "inference": inference,
    "callbacks": callbacks,
    "contexts": contexts,
    "barriers": barriers,
    "barriers while a rank is busy": barriers_while_a_rank_is_busy,
    "bare thread": bare_thread,
    "threads": threads,
}
