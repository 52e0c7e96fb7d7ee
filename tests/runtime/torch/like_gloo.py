"""Our back end gives the same results as Gloo: every call is made with each, and the results are compared."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from tests.runtime.torch.values import expect

KINDS = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
SHAPES = ((5,), (0,), (), (3, 2), (12,))
OPS = ("SUM", "PRODUCT", "MAX", "MIN", "AVG", "BAND", "BOR", "BXOR")
Call = Callable[[Any], Any]  # The argument is a group.


def values(shape: tuple[int, ...], kind: torch.dtype = torch.float32, salt: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * salt + dist.get_rank())
    whole = torch.randint(0, 4, shape, generator=generator)
    return torch.complex(whole.float(), whole.float() + 1).to(kind) if kind.is_complex else whole.to(kind)


def strewn(salt: int = 0) -> torch.Tensor:
    return values((6, 4), salt=salt).t()


def _blocks(make: Callable[[int], torch.Tensor], is_present: bool = True) -> list[torch.Tensor] | None:
    return [make(r) for r in range(dist.get_world_size())] if is_present else None


def _reductions(make: Callable[[int], torch.Tensor], op: Any, group: Any) -> Any:
    n, me = dist.get_world_size(), dist.get_rank()
    total, at_root, out = make(0), make(1), make(2)
    dist.all_reduce(total, op, group=group)
    dist.reduce(at_root, n - 1, op, group=group)
    dist.reduce_scatter(out, _blocks(make), op, group=group)
    results = [total, out] + [at_root] * (me == n - 1)
    if total.dim() and total.is_contiguous():
        out = torch.zeros_like(total)
        dist.reduce_scatter_tensor(out, torch.cat(_blocks(make)), op, group=group)
        results.append(out)
    return results


def _spreads(make: Callable[[int], torch.Tensor], group: Any) -> Any:
    me = dist.get_rank()
    same, out = make(0), make(1)
    dist.broadcast(same, 1, group=group)
    every = _blocks(make)
    dist.all_gather(every, make(3), group=group)
    dist.scatter(out, _blocks(make, me == 1), 1, group=group)
    return [same, every, out]


def _gathers(make: Callable[[int], torch.Tensor], group: Any) -> Any:
    into = _blocks(make, dist.get_rank() == 0)
    dist.gather(make(4), into, 0, group=group)
    return into


def _all_to_all(make: Callable[[int], torch.Tensor], group: Any) -> Any:
    into = _blocks(make)
    dist.all_to_all(into, _blocks(partial(_salted, make)), group=group)
    return into


def _salted(make: Callable[[int], torch.Tensor], salt: int) -> torch.Tensor:
    return make(salt + 7)


def _into_one(make: Callable[[int], torch.Tensor], group: Any) -> Any:
    whole = torch.cat(_blocks(make))
    dist.all_gather_into_tensor(whole, make(5), group=group)
    swapped = torch.zeros_like(whole)
    dist.all_to_all_single(swapped, torch.cat(_blocks(partial(_salted, make))), group=group)
    return [whole, swapped]


def _rows(group: Any) -> Any:
    """Return the result of an all-to-all of blocks of unequal sizes, some of them empty."""
    me, n = dist.get_rank(), dist.get_world_size()
    sent_rows, comes = [(me + r) % 3 for r in range(n)], [(me + r) % 3 for r in range(n)]
    out = torch.zeros(sum(comes), 2)
    dist.all_to_all_single(out, values((sum(sent_rows), 2)), comes, sent_rows, group=group)
    return out


def _objects(group: Any) -> Any:
    me, n = dist.get_rank(), dist.get_world_size()
    every: list[Any] = [None] * n
    dist.all_gather_object(every, {"rank": me, "text": "a" * 100 * me}, group=group)
    objects = [me, {"from": me}, None]
    dist.broadcast_object_list(objects, 1, group=group)
    at_root: list[Any] | None = [None] * n if me == 0 else None
    dist.gather_object(("rank", me), at_root, 0, group=group)
    own_object: list[Any] = [None]
    dist.scatter_object_list(own_object, [f"{r}" * r for r in range(n)] if me == 0 else None, 0, group=group)
    if me < 2:
        passed = ["a", me]
        (dist.send_object_list if me == 0 else dist.recv_object_list)(passed, 1 - me, group=group)
        objects.append(passed)
    return [every, objects, at_root, own_object]


def _messages(group: Any) -> Any:
    me, n = dist.get_rank(), dist.get_world_size()
    into, empty = torch.zeros(3), torch.zeros(0)
    ops = [
        dist.P2POp(dist.isend, values((3,)), (me + 1) % n, group),
        dist.P2POp(dist.irecv, into, (me - 1) % n, group),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    works = [
        dist.isend(empty, (me + 1) % n, group=group),
        dist.irecv(torch.zeros(0), (me - 1) % n, group=group),
    ]
    for work in works:
        work.wait()
    return into


def _coalesced(group: Any) -> Any:
    tensors = [values((4,), salt=k) for k in range(3)]
    lists = [[torch.zeros(3), torch.zeros(5)] for _ in range(dist.get_world_size())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Torch warns that these are deprecated.
        dist.all_reduce_coalesced(tensors, group=group)
        dist.all_gather_coalesced(lists, [values((3,)), values((5,))], group=group)
    return [tensors, lists]


def _functional(group: Any) -> Any:
    import torch.distributed._functional_collectives as functional

    n = dist.get_world_size()
    contribution = values((2 * n, 3))
    results = [
        functional.all_reduce(contribution, "avg", group),
        functional.all_gather_tensor(contribution, 1, group),
        functional.reduce_scatter_tensor(contribution, "sum", 0, group),
        functional.broadcast(contribution, 1, group),
        functional.all_to_all_single(contribution, [2] * n, [2] * n, group),
        *functional.all_reduce_coalesced([contribution, contribution + 1], "sum", group),
        *functional.all_gather_into_tensor_coalesced([contribution, contribution + 1], group),
        *functional.reduce_scatter_tensor_coalesced([contribution, contribution + 1], "sum", [0, 0], group),
    ]
    return [tensor + 0 for tensor in results]


def _differentiable(group: Any) -> Any:
    import torch.distributed.nn.functional as differentiable

    weights = values((3,)).requires_grad_()
    reduced = differentiable.all_reduce(weights, group=group)
    reduced.square().sum().backward()
    return [reduced.detach(), weights.grad]


def _works(group: Any) -> Any:
    tensors = [values((50,), salt=k) for k in range(20)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    works[7].wait(timedelta(seconds=60))
    doubled = works[3].get_future().then(lambda future: [tensor * 2 for tensor in future.value()])
    for work in reversed(works):
        work.wait()
    return [tensors, doubled.wait(), [work.is_completed() for work in works]]


def _sparse(group: Any) -> Any:
    n, me = dist.get_world_size(), dist.get_rank()
    tensor = torch.sparse_coo_tensor(torch.tensor([[0, me + 1]]), torch.tensor([1.0, 2.0]), (n + 2,))
    dist.all_reduce(tensor, group=group)
    return tensor.to_dense()


def _premultiplied(group: Any) -> Any:
    tensor = values((3,))
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(2.0), group=group)
    return tensor


def _cases() -> Iterator[tuple[str, Call]]:
    for kind in KINDS:
        for shape in SHAPES if kind in (torch.float32, torch.int64) else SHAPES[:1]:
            make = partial(values, shape, kind)
            name = f"{kind} {list(shape)}"
            for op in OPS if kind in (torch.float32, torch.int64, torch.bool) and shape == (5,) else OPS[:1]:
                yield f"reductions {op} {name}", partial(_reductions, make, getattr(ReduceOp, op))
            for case in (_spreads, _gathers, _all_to_all, *([_into_one] if shape else [])):
                yield f"{case.__name__} {name}", partial(case, make)
    yield "reductions strewn", partial(_reductions, strewn, ReduceOp.SUM)
    for case in (_spreads, _gathers, _all_to_all):
        yield f"{case.__name__} strewn", partial(case, strewn)
    for case in (
        _rows,
        _objects,
        _messages,
        _coalesced,
        _functional,
        _differentiable,
        _works,
        _sparse,
        _premultiplied,
    ):
        yield case.__name__, case


def _tried(call: Call, group: Any) -> tuple[Any, str]:
    try:
        return call(group), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def compare(got: Any, want: Any) -> None:
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, rtol=1e-2, atol=0)
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), (got, want)
        for got_part, wanted_part in zip(got, want, strict=True):
            compare(got_part, wanted_part)
    else:
        assert got == want, (got, want)


def like_gloo() -> None:
    """Check each case against Gloo; all ranks agree whether Gloo supports it before the next case starts."""
    gloo = dist.new_group(backend="gloo")
    compared, differ = 0, []
    for name, call in _cases():
        want, fault = _tried(call, gloo)
        got, ours = _tried(call, dist.group.WORLD)
        failed = torch.tensor([bool(fault)])
        dist.all_reduce(failed, ReduceOp.MAX, group=gloo)
        if failed.item():
            continue
        compared += 1
        try:
            assert not ours, ours
            compare(got, want)
        except AssertionError as error:
            differ.append(f"{name}: {error}")
    assert not differ, "\n".join(differ)
    assert compared > 60, f"Gloo itself could do only {compared} of them"


def gaps() -> None:
    """Check tensors with gaps between their elements, which Gloo itself takes for tensors without."""
    me, n = dist.get_rank(), dist.get_world_size()
    whole = torch.arange(20.0) + me
    dist.all_reduce(whole[::3])
    want = torch.arange(20.0) + me
    want[::3] = torch.arange(20.0)[::3] * n + sum(range(n))
    torch.testing.assert_close(whole, want)
    for tensor in (torch.ones(1).expand(8), torch.ones(3, 1).expand(3, 4)):
        expect(["one place in memory", "it must be"], partial(dist.all_reduce, tensor), ValueError)
    dist.broadcast(whole, 0)  # Nothing remains.
