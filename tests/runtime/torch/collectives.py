"""Every collective, in every mode of calling it, on every rank."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import runtime.torch.process_group as ours
from runtime.algorithms.built_in import names
from runtime.torch.c10d.persistent import persistent
from tests.runtime.torch.values import OPS, TYPES, expect, folded, same, values
from topologies.errors import InputError


def all_reduces() -> None:
    me, n = dist.get_rank(), dist.get_world_size()
    for kind in TYPES:
        for op, torchs in OPS.items():
            for count in (1, 7, 1000):
                tensor = values(me, count, kind)
                dist.all_reduce(tensor, torchs)
                same(tensor, folded([values(r, count, kind) for r in range(n)], op))
    tensor = values(me, 50_000).view(200, 250).t()  # Not contiguous, and large enough for the ring.
    dist.all_reduce(tensor)
    same(tensor, folded([values(r, 50_000) for r in range(n)], "sum").view(200, 250).t())


def rooted() -> None:
    me, n = dist.get_rank(), dist.get_world_size()
    for root in range(n):
        for count in (3, 1001):
            tensor = values(me, count)
            dist.broadcast(tensor, root)
            same(tensor, values(root, count))
            tensor = values(me, count)
            dist.reduce(tensor, root, ReduceOp.MAX)
            if me == root:
                same(tensor, folded([values(r, count) for r in range(n)], "max"))
            into = [torch.zeros(count) for _ in range(n)] if me == root else None
            dist.gather(values(me, count), into, root)
            for r, got in enumerate(into or ()):
                same(got, values(r, count))
            parts = [values(root, count, salt=r) for r in range(n)] if me == root else None
            out = torch.zeros(count)
            dist.scatter(out, parts, root)
            same(out, values(root, count, salt=me))


def gathers() -> None:
    me, n = dist.get_rank(), dist.get_world_size()
    for kind in TYPES:
        for count in (1, 5, 20_000):
            into = [torch.zeros(count, dtype=kind) for _ in range(n)]
            dist.all_gather(into, values(me, count, kind))
            whole = torch.zeros(n * count, dtype=kind)
            dist.all_gather_into_tensor(whole, values(me, count, kind))
            for r in range(n):
                same(into[r], values(r, count, kind))
            same(whole, torch.cat([values(r, count, kind) for r in range(n)]))
    into = [torch.zeros(2 * r + 1) for r in range(n)]
    dist.all_gather(into, values(me, 2 * me + 1))
    for r in range(n):
        same(into[r], values(r, 2 * r + 1))


def reduce_scatters() -> None:
    me, n = dist.get_rank(), dist.get_world_size()
    for op, torchs in OPS.items():
        for count in (1, 5, 9000):
            inputs = values(me, n * count)
            want = folded([values(r, n * count) for r in range(n)], op)[me * count : (me + 1) * count]
            out = torch.zeros(count)
            dist.reduce_scatter_tensor(out, inputs, torchs)
            same(out, want)
            same(inputs, values(me, n * count))
            out = torch.zeros(count)
            dist.reduce_scatter(out, list(inputs.split(count)), torchs)
            same(out, want)
    sizes = [2 * r + 1 for r in range(n)]
    out = torch.zeros(sizes[me])
    dist.reduce_scatter(out, [values(me, size, salt=r) for r, size in enumerate(sizes)], ReduceOp.AVG)
    same(out, folded([values(r, sizes[me], salt=me) for r in range(n)], "avg"))


def all_to_alls() -> None:
    me, n = dist.get_rank(), dist.get_world_size()
    for count in (1, 5, 9000):
        out = torch.zeros(n * count)
        dist.all_to_all_single(out, torch.cat([values(me, count, salt=r) for r in range(n)]))
        same(out, torch.cat([values(r, count, salt=me) for r in range(n)]))
    # From rank a to rank b go a + 2 b rows.
    inputs = torch.cat([values(me, (me + 2 * r) * 3, salt=r) for r in range(n)]).view(-1, 3)
    out = torch.zeros(sum(r + 2 * me for r in range(n)), 3)
    dist.all_to_all_single(out, inputs, [r + 2 * me for r in range(n)], [me + 2 * r for r in range(n)])
    same(out, torch.cat([values(r, (r + 2 * me) * 3, salt=me) for r in range(n)]).view(-1, 3))
    into = [torch.zeros(r + 2 * me) for r in range(n)]
    dist.all_to_all(into, [values(me, me + 2 * r, salt=r) for r in range(n)])
    for r in range(n):
        same(into[r], values(r, r + 2 * me, salt=me))


def asynchronous() -> None:
    me, n = dist.get_rank(), dist.get_world_size()
    tensors = [values(me, 100 + k, salt=k) for k in range(12)]
    works = [
        dist.all_reduce(tensor, ReduceOp.AVG if k % 2 else ReduceOp.SUM, async_op=True)
        for k, tensor in enumerate(tensors)
    ]
    blocking = values(me, 5)
    dist.all_reduce(blocking)  # It overtakes nothing.
    same(blocking, folded([values(r, 5) for r in range(n)], "sum"))
    for k in reversed(range(12)):
        works[k].wait()
        assert works[k].is_completed()
        same(tensors[k], folded([values(r, 100 + k, salt=k) for r in range(n)], "avg" if k % 2 else "sum"))
    tensor = values(me, 30)
    work = dist.all_reduce(tensor, async_op=True)
    doubled = work.get_future().then(lambda future: future.value()[0] * 2).wait()
    same(doubled, 2 * folded([values(r, 30) for r in range(n)], "sum"))


def messages() -> None:
    me, n = dist.get_rank(), dist.get_world_size()
    into = torch.zeros(9)
    works = [dist.isend(values(me, 9), (me + 1) % n, tag=4), dist.irecv(into, (me - 1) % n, tag=4)]
    for work in works:
        work.wait()
    same(into, values((me - 1) % n, 9))
    into = torch.zeros(6)
    ops = [dist.P2POp(dist.irecv, into, (me - 1) % n), dist.P2POp(dist.isend, values(me, 6), (me + 1) % n)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(into, values((me - 1) % n, 6))
    if me == 0:
        senders = []
        for _ in range(n - 1):
            got = torch.zeros(1)
            senders.append(dist.recv(got))
            assert got.item() == senders[-1]
        assert sorted(senders) == list(range(1, n))
    else:
        dist.send(torch.tensor([float(me)]), 0)
    dist.barrier()
    got: list[Any] = [None] * n
    dist.all_gather_object(got, {"rank": me})
    assert got == [{"rank": r} for r in range(n)]


def subgroups() -> None:
    me, n = dist.get_rank(), dist.get_world_size()
    for ranks in ([0, n - 1], list(range(1, n)), [n - 1, 1], [2]):
        group = dist.new_group(ranks)
        if me not in ranks:
            continue
        ranks = dist.get_process_group_ranks(group)
        tensor = values(me, 100)
        dist.all_reduce(tensor, group=group)
        same(tensor, folded([values(r, 100) for r in ranks], "sum"))
        whole = torch.zeros(3 * len(ranks))
        dist.all_gather_into_tensor(whole, values(me, 3), group=group)
        same(whole, torch.cat([values(r, 3) for r in ranks]))
        tensor = values(me, 10)
        dist.broadcast(tensor, ranks[-1], group=group)
        same(tensor, values(ranks[-1], 10))


def negated() -> None:
    """Check contiguous views whose memory holds the opposite of their values."""
    me, n = dist.get_rank(), dist.get_world_size()
    every = [-values(rank, 2 * n) for rank in range(n)]

    def negated_view() -> torch.Tensor:
        return torch._neg_view(values(me, 2 * n))

    for tensor, call, want in (
        (negated_view(), dist.all_reduce, folded(every, "sum")),
        (negated_view(), partial(dist.broadcast, src=0), every[0]),
    ):
        call(tensor)
        same(tensor, want)
    blocks = [torch.zeros(2 * n) for _ in range(n)]
    dist.all_gather(blocks, negated_view())
    same(torch.cat(blocks), torch.cat(every))
    whole = torch.zeros(2 * n * n)
    dist.all_gather_into_tensor(whole, negated_view())
    same(whole, torch.cat(every))
    own = torch.zeros(2 * n)
    dist.all_to_all_single(own, negated_view())
    same(own, torch.cat([tensor[2 * me : 2 * me + 2] for tensor in every]))


def coalesced_as_one_by_one() -> None:
    """Check coalesced calls of many sizes, types and reductions, which one rank has in another layout."""
    me, n = dist.get_rank(), dist.get_world_size()
    sizes = [1, 7, 30, 128, 1000]
    for kind in (torch.float32, torch.bfloat16, torch.int64):
        for op in ("sum", "max", "avg") if kind.is_floating_point else ("sum", "min"):
            every = [[values(r, n * size, kind, salt=size) for size in sizes] for r in range(n)]
            for with_gaps in (False, me == 1):
                own = [tensor.clone() for tensor in every[me]]
                if with_gaps:
                    own[2] = torch.stack([own[2], own[2]], 1)[:, 0]
                reduced, gathered = list(own), [torch.zeros(n * n * size, dtype=kind) for size in sizes]
                scattered = [torch.zeros(size, dtype=kind) for size in sizes]
                with dist._coalescing_manager():
                    for out, tensor in zip(gathered, own, strict=True):
                        dist.all_gather_into_tensor(out, tensor)
                with dist._coalescing_manager(async_ops=op == "max") as manager:
                    for out, tensor in zip(scattered, own, strict=True):
                        dist.reduce_scatter_tensor(out, tensor, OPS[op])
                manager.wait()
                with dist._coalescing_manager(async_ops=op == "max") as manager:
                    for tensor in reduced:
                        dist.all_reduce(tensor, OPS[op])
                manager.wait()
                for k, _ in enumerate(sizes):
                    total = folded([every[r][k] for r in range(n)], op)
                    same(gathered[k], torch.cat([every[r][k] for r in range(n)]))
                    same(scattered[k], total.chunk(n)[me])
                    same(reduced[k], total)


def barriers_of_all_kinds() -> None:
    """Check that ranks may make a barrier with other options, and amid own tasks, which it waits for on all ranks."""
    me = dist.get_rank()
    for k in range(12):
        tensor = torch.ones(50_000)
        if k % 3 == 0:
            with ours.using("synth"):
                work = dist.all_reduce(tensor, async_op=True)
        barrier = dist.barrier(async_op=True) if (k + me) % 2 else dist.barrier()
        if barrier is not None:
            while k % 4 == 0 and not barrier.is_completed():
                time.sleep(1e-3)
            barrier.wait()
        if k % 3 == 0:
            assert work.is_completed()
            work.wait()


def coalesced() -> None:
    me, n = dist.get_rank(), dist.get_world_size()
    tensors = [values(me, 10 + k) for k in range(3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for k, tensor in enumerate(tensors):
        same(tensor, folded([values(r, 10 + k) for r in range(n)], "sum"))
    kinds = (torch.float32, torch.int64, torch.float32, torch.float32, torch.float64)
    tensors = [values(me, 12, kind, salt=k).view(3, 4) for k, kind in enumerate(kinds)]
    tensors[2 + me % 2] = tensors[2 + me % 2].t().contiguous().t()  # Each rank has its own layout.
    before = ours.counters.ran("allreduce", ours.counters.last("allreduce"))
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor, ReduceOp.AVG)
    # There is a call for each type.
    assert ours.counters.ran("allreduce", ours.counters.last("allreduce")) == before + 3
    for k, kind in enumerate(kinds):
        same(tensors[k], folded([values(r, 12, kind, salt=k) for r in range(n)], "avg").view(3, 4))
    opts = dist.ReduceScatterOptions()
    opts.reduceOp = ReduceOp.MAX
    inputs = [values(me, n * (4 + k), salt=k) for k in range(3)]
    scattered = [torch.zeros(4 + k) for k in range(3)]
    scattered[1] = torch.zeros(10)[::2]
    work = dist.group.WORLD.reduce_scatter_tensor_coalesced(scattered, inputs, opts)
    assert [out.data_ptr() for out in work.get_future().wait()] == [out.data_ptr() for out in scattered]
    for k, out in enumerate(scattered):
        same(out, folded([values(r, n * (4 + k), salt=k) for r in range(n)], "max").chunk(n)[me])
    lists = [[torch.zeros(2 + k) for k in range(3)] for _ in range(n)]
    dist.all_gather_coalesced(lists, [values(me, 2 + k, salt=k) for k in range(3)])
    for r in range(n):
        for k in range(3):
            same(lists[r][k], values(r, 2 + k, salt=k))
    outs = [torch.zeros(n * (4 + k)) for k in range(2)]
    with dist._coalescing_manager():
        for k, out in enumerate(outs):
            dist.all_gather_into_tensor(out, values(me, 4 + k))
    for k, out in enumerate(outs):
        same(out, torch.cat([values(r, 4 + k) for r in range(n)]))


def _call(collective: str, me: int, n: int, count: int) -> torch.Tensor:
    """Return a rank's result of a collective; rooted collectives have root 0."""
    own, out, inputs = values(me, count), torch.zeros(n * count), values(me, n * count)
    match collective:
        case "allreduce":
            dist.all_reduce(own)
        case "allgather":
            dist.all_gather_into_tensor(out, own)
        case "reducescatter":
            dist.reduce_scatter_tensor(own, inputs)
        case "alltoall":
            dist.all_to_all_single(out, inputs)
        case "broadcast":
            dist.broadcast(own, 0)
        case "reduce":
            dist.reduce(own, 0)
        case "gather":
            dist.gather(own, list(out.chunk(n)) if me == 0 else None, 0)
        case "scatter":
            dist.scatter(own, list(inputs.chunk(n)) if me == 0 else None, 0)
    return out if collective in ("allgather", "alltoall", "gather") else own


def large() -> None:
    """Check every built-in algorithm, on chunks for which each threadblock has its own thread."""
    me, n, count = dist.get_rank(), dist.get_world_size(), 100_000
    whole = torch.cat([values(r, count) for r in range(n)])
    total = folded([values(r, count) for r in range(n)], "sum")
    want = {
        "allreduce": total,
        "allgather": whole,
        "reducescatter": folded([values(r, n * count) for r in range(n)], "sum").chunk(n)[me],
        "alltoall": torch.cat([values(r, n * count).chunk(n)[me] for r in range(n)]),
        "broadcast": values(0, count),
        "reduce": total,
        "gather": whole,
        "scatter": values(0, n * count).chunk(n)[me],
    }
    for collective, expected in want.items():
        for name in names(collective, n):
            with ours.using("synth", name):
                got = _call(collective, me, n, count)
            assert ours.counters.last(collective) == f"synth {name}", ours.counters.last(collective)
            if me == 0 or collective not in ("reduce", "gather"):
                same(got, expected)


def refusals() -> None:
    n = dist.get_world_size()
    for call in (
        lambda: dist.all_gather([torch.zeros(3)] * (n - 1), torch.zeros(3)),
        lambda: dist.all_gather_into_tensor(torch.zeros(3 * n + 1), torch.zeros(3)),
        lambda: dist.all_to_all_single(torch.zeros(n), torch.zeros(n), [1] * n, [1] * (n - 1) + [2]),
        lambda: dist.all_to_all_single(torch.zeros(n + 1), torch.zeros(n + 1)),
        lambda: dist.send(torch.zeros(1), (dist.get_rank() + 1) % n, tag=1 << 30),
        lambda: dist.new_group(list(range(n)), pg_options=object()),
    ):
        expect(["it must be"], call, ValueError)


def falls_back() -> None:
    """Check that Gloo does what no algorithm can, and that this is logged."""
    me, n = dist.get_rank(), dist.get_world_size()
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("synth.torch").addHandler(handler)
    logging.getLogger("synth.torch").setLevel(logging.INFO)
    with ours.using("synth"):
        tensor = torch.tensor([1 << me | 1 << n])
        dist.all_reduce(tensor, ReduceOp.BAND)
        assert tensor.item() == 1 << n
        tensor = torch.tensor([me == 0, True])
        dist.all_reduce(tensor, ReduceOp.MAX)
        assert tensor.tolist() == [True, True]
    assert any("reduction BAND" in line for line in logged), logged
    assert any("type bool" in line for line in logged), logged
    text = ours.summary()
    assert "not ours: allreduce, 1 calls: reduction BAND" in text, text


def ran_where_it_should() -> None:
    me, n = dist.get_rank(), dist.get_world_size()
    for mode, by in (("synth", "synth ring"), ("gloo", "gloo"), ("auto", "gloo")):
        before = ours.counters.ran("allreduce", by)
        with ours.using(mode):
            tensor = values(me, 100_000)
            dist.all_reduce(tensor)
        same(tensor, folded([values(r, 100_000) for r in range(n)], "sum"))
        assert ours.counters.ran("allreduce", by) == before + 1, ours.summary()
        weight, reduced = torch.ones(3, requires_grad=True), torch.ones(3)
        product = (weight * reduced).sum()
        with ours.using(mode):
            dist.all_reduce(reduced)  # As with Gloo, autograd does not know of it.
        product.backward()
    with ours.using("synth", "allpairs"):
        dist.all_reduce(tensor)
    assert ours.counters.last("allreduce") == "synth allpairs"
    with ours.using("synth", "rnig"):
        expect(["'rnig' for allreduce", "ring"], partial(dist.all_reduce, tensor), InputError)
    text = ours.summary()
    assert "waited for: rank" in text


def persistent_calls() -> None:
    """Check that each start of a persistent call works on the tensors' present values, between other calls."""
    me, n = dist.get_rank(), dist.get_world_size()
    for count in (3, 1000, 50_000):
        one, wide = torch.zeros(count), torch.zeros(n * count)
        shifted, out, gathered, exchanged = (torch.zeros(size) for size in (count, count, n * count, n * count))
        calls = [
            persistent("all_reduce", one, op=ReduceOp.AVG),
            persistent("broadcast", shifted, root=n - 1),
            persistent("all_gather_into_tensor", gathered, one),
            persistent("reduce_scatter_tensor", out, wide, op=ReduceOp.MAX),
            persistent("all_to_all_single", exchanged, wide),
        ]
        for salt in range(3):
            one.copy_(values(me, count, salt=salt))
            shifted.copy_(values(me, count, salt=salt + 9))
            wide.copy_(values(me, n * count, salt=salt))
            works = [calls[0].start(), calls[1].start()]
            dist.all_reduce(torch.ones(count))
            for work in works:
                work.wait()
            same(one, folded([values(r, count, salt=salt) for r in range(n)], "avg"))
            same(shifted, values(n - 1, count, salt=salt + 9))
            for call in calls[2:]:
                call.start().wait()
            same(gathered, one.repeat(n))
            of_ranks = [values(r, n * count, salt=salt) for r in range(n)]
            same(out, folded(of_ranks, "max")[me * count : (me + 1) * count])
            same(exchanged, torch.cat([whole[me * count : (me + 1) * count] for whole in of_ranks]))
    for name, tensors, root, wrong in (
        ("gather", [one], 0, "must be one of all_reduce"),
        ("all_reduce", [one, one], 0, "must be one tensor"),
        ("all_gather_into_tensor", [one, one], 0, "equal blocks"),
        ("broadcast", [one], n, "must be a rank of the group"),
    ):
        with pytest.raises(InputError, match=wrong):
            persistent(name, *tensors, root=root)


COLLECTIVES = {
    "all-reduce": all_reduces,
    "rooted": rooted,
    "all-gather": gathers,
    "reduce-scatter": reduce_scatters,
    "all-to-all": all_to_alls,
    "asynchronous": asynchronous,
    "messages": messages,
    "subgroups": subgroups,
    "negated": negated,
    "coalesced": coalesced,
    "coalesced as one by one": coalesced_as_one_by_one,
    "barriers of all kinds": barriers_of_all_kinds,
    "refusals": refusals,
    "persistent": persistent_calls,
}
