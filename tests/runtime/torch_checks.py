"""What a group of processes must get right; each rank runs all of it and writes down what failed.

Started by test_process_group.py: python torch_checks.py SESSION RANK SIZE STORE RESULT
"""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

import runtime.process_group as ours
from topologies.errors import InputError

OPS = {
    "sum": ReduceOp.SUM,
    "prod": ReduceOp.PRODUCT,
    "max": ReduceOp.MAX,
    "min": ReduceOp.MIN,
    "avg": ReduceOp.AVG,
}
TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64)
MODES = ("synth", "auto")
Check = Callable[[], None]


def values(rank: int, count: int, kind: torch.dtype = torch.float32, salt: int = 0) -> torch.Tensor:
    """A rank's numbers, small enough that sums and products are exact in every type."""
    made = torch.Generator().manual_seed(1000 * salt + rank)
    return torch.randint(1, 4, (count,), generator=made).to(kind)


def folded(tensors: list[torch.Tensor], op: str) -> torch.Tensor:
    """What a reduction must give."""
    every = torch.stack(tensors).to(torch.float64)
    made = {
        "sum": every.sum(0),
        "prod": every.prod(0),
        "max": every.amax(0),
        "min": every.amin(0),
        "avg": every.mean(0),
    }[op]
    kind = tensors[0].dtype
    return (made.trunc() if not kind.is_floating_point else made).to(kind)


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal, averages within a rounding."""
    assert got.shape == want.shape, (got.shape, want.shape)
    close = torch.allclose(got.to(torch.float64), want.to(torch.float64), rtol=1e-2, atol=0)
    assert close, f"got {got.flatten()[:8].tolist()}, wants {want.flatten()[:8].tolist()}"


def expect(words: list[str], call: Check, kind: type[Exception] = Exception) -> None:
    """A call that must fail and say so."""
    told = ""
    try:
        call()
    except kind as error:
        told = str(error)
    assert told, "did not fail"
    for word in words:
        assert word in told, f"{word!r} is not in {told}"


def all_reduces() -> None:
    me, n = dist.get_rank(), dist.get_world_size()
    for kind in TYPES:
        for op, torchs in OPS.items():
            for count in (1, 7, 1000):
                tensor = values(me, count, kind)
                dist.all_reduce(tensor, torchs)
                same(tensor, folded([values(r, count, kind) for r in range(n)], op))
    tensor = values(me, 50_000).view(200, 250).t()  # not contiguous, and large enough for the ring
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
            given = values(me, n * count)
            want = folded([values(r, n * count) for r in range(n)], op)[me * count : (me + 1) * count]
            out = torch.zeros(count)
            dist.reduce_scatter_tensor(out, given, torchs)
            same(out, want)
            same(given, values(me, n * count))
            out = torch.zeros(count)
            dist.reduce_scatter(out, list(given.split(count)), torchs)
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
    # from rank a to rank b go a + 2 b rows
    given = torch.cat([values(me, (me + 2 * r) * 3, salt=r) for r in range(n)]).view(-1, 3)
    out = torch.zeros(sum(r + 2 * me for r in range(n)), 3)
    dist.all_to_all_single(out, given, [r + 2 * me for r in range(n)], [me + 2 * r for r in range(n)])
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
    dist.all_reduce(blocking)  # overtakes nothing
    same(blocking, folded([values(r, 5) for r in range(n)], "sum"))
    for k in reversed(range(12)):
        works[k].wait()
        assert works[k].is_completed()
        same(tensors[k], folded([values(r, 100 + k, salt=k) for r in range(n)], "avg" if k % 2 else "sum"))
    tensor = values(me, 30)
    work = dist.all_reduce(tensor, async_op=True)
    made = work.get_future().then(lambda future: future.value()[0] * 2).wait()
    same(made, 2 * folded([values(r, 30) for r in range(n)], "sum"))


def messages() -> None:
    me, n = dist.get_rank(), dist.get_world_size()
    into = torch.zeros(9)
    works = [dist.isend(values(me, 9), (me + 1) % n, tag=4), dist.irecv(into, (me - 1) % n, tag=4)]
    for work in works:
        work.wait()
    same(into, values((me - 1) % n, 9))
    into = torch.zeros(6)
    ops = [
        dist.P2POp(dist.irecv, into, (me - 1) % n),
        dist.P2POp(dist.isend, values(me, 6), (me + 1) % n),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(into, values((me - 1) % n, 6))
    if me == 0:
        seen = []
        for _ in range(n - 1):
            got = torch.zeros(1)
            seen.append(dist.recv(got))
            assert got.item() == seen[-1]
        assert sorted(seen) == list(range(1, n))
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


def coalesced() -> None:
    me, n = dist.get_rank(), dist.get_world_size()
    tensors = [values(me, 10 + k) for k in range(3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for k, tensor in enumerate(tensors):
        same(tensor, folded([values(r, 10 + k) for r in range(n)], "sum"))
    outs = [torch.zeros(n * (4 + k)) for k in range(2)]
    with dist._coalescing_manager():
        for k, out in enumerate(outs):
            dist.all_gather_into_tensor(out, values(me, 4 + k))
    for k, out in enumerate(outs):
        same(out, torch.cat([values(r, 4 + k) for r in range(n)]))


def trains_like_gloo() -> None:
    """Two copies of one model, the gradients of one averaged by Gloo itself."""
    me, n = dist.get_rank(), dist.get_world_size()
    models = []
    for group in (None, dist.new_group(list(range(n)), backend="gloo")):
        torch.manual_seed(7 + me)  # DDP must spread rank 0's weights
        model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 5))
        whole = torch.nn.parallel.DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.01)
        models.append((whole, torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)))
    torch.manual_seed(100 + me)
    for _ in range(4):
        given, wanted = torch.randn(8, 20), torch.randn(8, 5)
        for model, optimizer in models:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(given), wanted).backward()
            optimizer.step()
        for mine, theirs in zip(models[0][0].parameters(), models[1][0].parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    for parameter in models[0][0].parameters():
        spread = [torch.zeros_like(parameter) for _ in range(n)]
        dist.all_gather(spread, parameter.detach())
        assert all(torch.equal(spread[0], other) for other in spread)


def shards_like_copies() -> None:
    """FSDP's sharded model beside a whole one whose optimizer is sharded (ZeRO)."""
    # imported here: torch warns as it imports them, and the tests that only list the checks take warnings for errors
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(0)
    parts = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    whole = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(parts))
    zero = ZeroRedundancyOptimizer(whole.parameters(), torch.optim.SGD, lr=0.1)
    fully_shard(parts, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    plain = torch.optim.SGD(parts.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(3):
        given = torch.randn(4, 8)
        for model, optimizer in ((parts, plain), (whole, zero)):
            optimizer.zero_grad()
            model(given).square().mean().backward()
            optimizer.step()
        for mine, theirs in zip(parts.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(mine.full_tensor(), theirs, rtol=1e-4, atol=1e-6)


def refusals() -> None:
    n = dist.get_world_size()
    for call in (
        lambda: dist.all_gather([torch.zeros(3)] * (n - 1), torch.zeros(3)),
        lambda: dist.all_gather_into_tensor(torch.zeros(3 * n + 1), torch.zeros(3)),
        lambda: dist.all_to_all_single(torch.zeros(n), torch.zeros(n), [1] * n, [1] * (n - 1) + [2]),
        lambda: dist.all_to_all_single(torch.zeros(n + 1), torch.zeros(n + 1)),
        lambda: dist.send(torch.zeros(1), (dist.get_rank() + 1) % n, tag=1 << 30),
    ):
        expect(["would be"], call, ValueError)


SHARED: dict[str, Check] = {
    check.__name__: check
    for check in (
        all_reduces, rooted, gathers, reduce_scatters, all_to_alls, asynchronous, messages, subgroups, coalesced,
        trains_like_gloo, shards_like_copies, refusals,
    )
}  # fmt: skip


def falls_back() -> None:
    """What no algorithm can do is done by Gloo, and said."""
    me, n = dist.get_rank(), dist.get_world_size()
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("synth.torch").addHandler(handler)
    logging.getLogger("synth.torch").setLevel(logging.INFO)
    with ours.using("synth"):
        tensor = torch.tensor([1 << me | 1 << n])
        dist.all_reduce(tensor, ReduceOp.BAND)
        assert tensor.item() == 1 << n
        tensor = torch.tensor([me == 0, True])
        dist.all_reduce(tensor, ReduceOp.MAX)
        assert tensor.tolist() == [True, True]
    assert any("reduction BAND" in line for line in told), told
    assert any("type bool" in line for line in told), told
    text = ours.summary()
    assert "not ours: allreduce, 1 calls: reduction BAND" in text, text


def ran_where_it_should() -> None:
    me, n = dist.get_rank(), dist.get_world_size()
    for mode, by in (("synth", "synth ring"), ("gloo", "gloo"), ("auto", "gloo")):
        before = ours.tally.ran("allreduce", by)
        with ours.using(mode):
            tensor = values(me, 100_000)
            dist.all_reduce(tensor)
        same(tensor, folded([values(r, 100_000) for r in range(n)], "sum"))
        assert ours.tally.ran("allreduce", by) == before + 1, ours.summary()
    text = ours.summary()
    assert "waited for: rank" in text


def main_session() -> Iterator[tuple[str, Check]]:
    for mode in MODES:
        for name, check in SHARED.items():

            def within(check: Check = check, mode: str = mode) -> None:
                with ours.using(mode):
                    check()

            yield f"{name} {mode}", within
    yield "falls_back", falls_back
    yield "ran_where_it_should", ran_where_it_should


def differs() -> None:
    """Rank 1 would choose otherwise."""
    os.environ["SYNTH_BACKEND"] = "gloo" if dist.get_rank() == 1 else "synth"
    expect(["rank 1 has another SYNTH_BACKEND", "same on all ranks"], dist.new_group, InputError)
    os.environ["SYNTH_BACKEND"] = "synt" if dist.get_rank() == 1 else "synth"
    word = "SYNTH_BACKEND=synt: would be" if dist.get_rank() == 1 else "rank 1 cannot read"
    expect([word], dist.new_group, InputError)
    os.environ["SYNTH_BACKEND"] = "synth"


def compared() -> None:
    """Ranks that call differently are told before anything is sent."""
    me = dist.get_rank()
    os.environ["SYNTH_CHECK"] = "1"
    group = dist.new_group(timeout=timedelta(seconds=60))
    del os.environ["SYNTH_CHECK"]
    for _ in range(2):  # the group is still good afterwards
        tensor = torch.ones(100 if me == 1 else 10)
        call = partial(dist.all_reduce, tensor, group=group)
        expect(["rank 1 calls allreduce sum, 400 bytes", "rank 0 calls allreduce sum, 40 bytes"], call)
        op = ReduceOp.MAX if me == 1 else ReduceOp.SUM
        expect(["rank 1 calls allreduce max"], partial(dist.all_reduce, torch.ones(10), op, group=group))
    tensor = torch.ones(10)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [3.0] * 10


def unequal() -> None:
    """Without that, at the time-out."""
    me = dist.get_rank()
    group = dist.new_group([0, 1], timeout=timedelta(seconds=2))
    if me < 2:
        call = partial(dist.all_reduce, torch.ones(100 if me else 10), group=group)
        expect(["allreduce sum, 40 bytes", "allreduce sum, 400 bytes", "in vain"], call)


def lost() -> None:
    """The last rank has gone: the others say so, naming it."""
    last = dist.get_world_size() - 1
    group = dist.new_group(timeout=timedelta(seconds=3))
    if dist.get_rank() < last:
        expect([f"rank {last}", "in vain"], lambda: dist.all_reduce(torch.ones(10), group=group))


ERRORS: dict[str, Check] = {check.__name__: check for check in (differs, compared, unequal, lost)}
SESSIONS: dict[str, list[str]] = {
    "main": [f"{name} {mode}" for mode in MODES for name in SHARED] + ["falls_back", "ran_where_it_should"],
    "errors": list(ERRORS),
}


def main(session: str, rank: int, size: int, store: str, result: Path) -> None:
    """Run a session's checks on this rank; `result` says of each what failed."""
    torch.set_num_threads(1)
    found: dict[str, str | None] = {}
    dist.init_process_group(
        "cpu:synth,cuda:synth",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    for name, check in main_session() if session == "main" else ERRORS.items():
        try:
            check()
            found[name] = None
        except Exception:
            found[name] = traceback.format_exc()
        result.write_text(json.dumps(found))
    if session == "main":
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
    if sys.argv[1] != "main":  # broken connections are not worth waiting for
        os._exit(0)
