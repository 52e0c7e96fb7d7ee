"""Tools that watch calls see ours as they see Gloo's: debug modes, profilers, hooks, tensors without data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor.debug import CommDebugMode

import runtime.torch.process_group as ours
from runtime.torch.c10d.registered import REGISTRABLE
from tests.runtime.torch.values import Check, expect, folded, same, values
from topologies.errors import InputError

Call = Callable[[Any, Any], Any]  # The arguments are a group, and a tensor on the device to be used.


def calls() -> dict[str, Call]:
    """Return every collective, on one block for each rank."""
    n = dist.get_world_size()

    def copies(t: Any) -> list[Any]:
        return [torch.empty_like(t) for _ in range(n)]

    return {
        "all_reduce": lambda g, t: dist.all_reduce(t, group=g),
        "broadcast": lambda g, t: dist.broadcast(t, 0, group=g),
        "reduce": lambda g, t: dist.reduce(t, 0, group=g),
        "all_gather": lambda g, t: dist.all_gather(copies(t), t, group=g),
        "all_gather_into_tensor": lambda g, t: dist.all_gather_into_tensor(torch.cat(copies(t)), t, group=g),
        "gather": lambda g, t: dist.gather(t, copies(t) if dist.get_rank() == 0 else None, group=g),
        "scatter": lambda g, t: dist.scatter(t, copies(t) if dist.get_rank() == 0 else None, group=g),
        "reduce_scatter": lambda g, t: dist.reduce_scatter(t, copies(t), group=g),
        "reduce_scatter_tensor": lambda g, t: dist.reduce_scatter_tensor(t, torch.cat(copies(t)), group=g),
        "all_to_all_single": lambda g, t: dist.all_to_all_single(torch.cat(copies(t)), torch.cat(copies(t)), group=g),
        "all_to_all": lambda g, t: dist.all_to_all(copies(t), copies(t), group=g),
    }


def counted() -> None:
    """Check that CommDebugMode counts the same calls as with Gloo, and changes nothing."""
    me, n = dist.get_rank(), dist.get_world_size()
    gloo = dist.new_group(backend="gloo")
    for name, call in calls().items():
        with CommDebugMode() as expected_mode:
            call(gloo, torch.ones(4))
        with CommDebugMode() as got:
            call(None, torch.ones(4))
        assert got.get_comm_counts() == expected_mode.get_comm_counts(), (name, got.get_comm_counts())
        assert got.get_total_counts() == 1, name
    tensor = values(me, 100_000)
    with CommDebugMode(), ours.using("synth"):
        before = ours.counters.ran("allreduce", "synth ring")
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
    assert work.is_completed()  # A Work of torch's own would never report it.
    assert ours.counters.ran("allreduce", "synth ring") == before + 1
    same(tensor, folded([values(r, 100_000) for r in range(n)], "sum"))
    into = torch.zeros(1)
    with CommDebugMode():
        if me == 0:
            senders = {dist.recv(into) for _ in range(n - 1)}
            assert senders == set(range(1, n))
        else:
            dist.send(into, 0)
        dist.barrier()
    dist.destroy_process_group(gloo)


def profiled() -> None:
    with torch.profiler.profile() as profile:
        dist.all_reduce(torch.ones(3))
        dist.all_gather([torch.ones(3) for _ in range(dist.get_world_size())], torch.ones(3))
        with dist._coalescing_manager():
            for _ in range(2):
                dist.all_reduce(torch.ones(3))
    counts = {event.key: event.count for event in profile.key_averages() if event.key.startswith("c10d")}
    assert counts == {"c10d::allreduce_": 1, "c10d::allgather_": 1, "c10d::allreduce_coalesced_": 1}, counts


def without_data() -> None:
    """Check tensors without data: as with Gloo, nothing is moved or counted, and a wait ends at once."""
    for name, call in calls().items():
        before = ours.counters.text()
        call(None, torch.ones(4, device="meta"))
        with FakeTensorMode():
            call(None, torch.ones(4))
        assert ours.counters.text() == before, name
    for tensor in (torch.ones(4, device="meta"), FakeTensorMode().from_tensor(torch.ones(4))):
        dist.all_reduce(tensor, async_op=True).wait()


def shorter() -> None:
    """Check a group's own methods with a tensor for a list and a reduction for options: refused before torch 2.15."""
    n, world = dist.get_world_size(), dist.group.WORLD
    tensor = torch.arange(3.0)
    if not REGISTRABLE:
        expect(["allreduce", "2.15", "lists of tensors"], lambda: world.allreduce(tensor), InputError)
        return
    world.allreduce(tensor).wait()
    same(tensor, n * torch.arange(3.0))
    world.allreduce([tensor], dist.ReduceOp.MAX).wait()
    same(tensor, n * torch.arange(3.0))
    world.broadcast(tensor, root=0).wait()
    same(tensor, n * torch.arange(3.0))


def twice() -> None:
    """Check that a tensor that occurs twice in a coalesced call is reduced once, and that lists work as with Gloo."""
    n, tensor = dist.get_world_size(), torch.arange(5.0)
    dist.group.WORLD.allreduce_coalesced([tensor, tensor]).wait()
    same(tensor, n * torch.arange(5.0))
    two = [torch.ones(3), torch.full((3,), 2.0)]
    dist.group.WORLD.allreduce(two).wait()
    for tensor_of_list in two:
        same(tensor_of_list, torch.full((3,), 3.0 * n))
    expect(["non-empty"], lambda: dist.group.WORLD.allreduce([]), (RuntimeError, ValueError))


def splits() -> None:
    """Check split_group: groups of ours where torch supports it without a device; torch's own error elsewhere."""
    me, n = dist.get_rank(), dist.get_world_size()
    halves = [list(range(n // 2)), list(range(n // 2, n))]
    if not REGISTRABLE:
        expect(["No device associated"], lambda: dist.split_group(split_ranks=halves), RuntimeError)
        return
    own_half = next(half for half in halves if me in half)
    group = dist.split_group(split_ranks=halves)
    assert isinstance(group, ours.Group)
    assert dist.get_process_group_ranks(group) == own_half
    tensor = values(me, 50)
    dist.all_reduce(tensor, group=group)
    same(tensor, folded([values(r, 50) for r in own_half], "sum"))
    inner = dist.split_group(group, [[0]])
    assert (inner is None or inner == dist.GroupMember.NON_GROUP_MEMBER) == (me != own_half[0])
    if me == own_half[0]:
        assert dist.get_process_group_ranks(inner) == [me]
        dist.destroy_process_group(inner)
    dist.destroy_process_group(group)


def hooks() -> None:
    """Check hooks of torch 2.15 and later: called with the tensors themselves, once for each call."""
    if not REGISTRABLE:
        return
    group, hooked_calls = dist.new_group(), []
    group.register_pre_hook(1, lambda call: hooked_calls.append(call.name))
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    same(tensor, torch.full((3,), float(dist.get_world_size())))
    assert len(hooked_calls) == 1, hooked_calls
    group.unregister_pre_hook(1)
    dist.all_reduce(tensor, group=group)
    assert len(hooked_calls) == 1, hooked_calls
    dist.destroy_process_group(group)


WATCHERS: dict[str, Check] = {
    "counted": counted,
    "profiled": profiled,
    "without data": without_data,
    "shorter": shorter,
    "twice": twice,
    "splits": splits,
    "hooks": hooks,
}
