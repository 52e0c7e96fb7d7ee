"""Faults and their reports: ranks that make different calls, that end, that hang."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.nn.parallel import DistributedDataParallel

import runtime.torch.process_group as ours
from tests.runtime.torch.values import Check, expect
from topologies.errors import InputError


def differs() -> None:
    """Check that a rank that would choose another back end is named."""
    os.environ["SYNTH_BACKEND"] = "gloo" if dist.get_rank() == 1 else "synth"
    expect(["rank 1 has another SYNTH_BACKEND", "same on all ranks"], dist.new_group, InputError)
    os.environ["SYNTH_BACKEND"] = "synt" if dist.get_rank() == 1 else "synth"
    word = "SYNTH_BACKEND=synt; it must be" if dist.get_rank() == 1 else "rank 1 cannot use"
    expect([word], dist.new_group, InputError)
    del os.environ["SYNTH_BACKEND"]


def compared() -> None:
    """Check that ranks that make different calls raise before anything is sent."""
    me = dist.get_rank()
    os.environ["SYNTH_CHECK"] = "1"
    group = dist.new_group(timeout=timedelta(seconds=60))
    del os.environ["SYNTH_CHECK"]

    def reduces(count: int = 10, op: Any = ReduceOp.SUM, kind: torch.dtype = torch.float32) -> Check:
        return partial(dist.all_reduce, torch.ones(count, dtype=kind), op, group=group)

    for backend in ("synth", "gloo"):  # The group is still usable after each fault.
        with ours.using(backend):
            wrong = reduces(100 if me == 1 else 10)
            expect(["rank 1 calls allreduce sum, 400 bytes", "rank 0 calls allreduce sum, 40 bytes"], wrong)
            expect(["rank 1 calls allreduce max"], reduces(op=ReduceOp.MAX if me == 1 else ReduceOp.SUM))
            kind = torch.int32 if me == 2 else torch.float32
            expect(["rank 2 calls allreduce sum, 40 bytes of int32"], reduces(kind=kind))
            root = partial(dist.broadcast, torch.ones(10), 1 if me == 1 else 0, group=group)
            expect(["rank 1 calls broadcast of root 1", "rank 0 calls broadcast of root 0"], root)
            allgather = partial(
                dist.all_gather_into_tensor,
                torch.ones(10 * dist.get_world_size()),
                torch.ones(10),
                group=group,
            )
            expect(["calls allgather", "calls allreduce"], allgather if me == 1 else reduces())
            tensor = torch.ones(10)
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [float(dist.get_world_size())] * 10


def unknown() -> None:
    """Check that a call that no back end supports is refused on every rank, and breaks nothing."""
    for backend in ("synth", "gloo"):
        with ours.using(backend):
            expect([" "], partial(dist.all_reduce, torch.ones(3, dtype=torch.int16), ReduceOp.BAND))
            expect([" "], partial(dist.all_reduce, torch.ones(3), ReduceOp.BXOR))
            tensor = torch.ones(3)
            dist.all_reduce(tensor)
            assert tensor.tolist() == [float(dist.get_world_size())] * 3


def unequal() -> None:
    """Check different calls without the comparison: they are reported at the time-out."""
    me = dist.get_rank()
    group = dist.new_group([0, 1], timeout=timedelta(seconds=2))
    if me < 2:
        call = partial(dist.all_reduce, torch.ones(100 if me else 10), group=group)
        with ours.using("synth"):  # Gloo itself would write over memory that it does not own.
            expect(["allreduce sum, 40 bytes", "allreduce sum, 400 bytes", "in vain"], call)


def limited() -> None:
    """Check that a later time-out of a group holds for our algorithms too."""
    store, me = dist.distributed_c10d._get_default_store(), dist.get_rank()
    group = dist.new_group([0, 1], timeout=timedelta(seconds=50))
    if me == 0:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.3), group)
        with ours.using("synth"):
            expect(
                ["rank 1 has made 0 calls", "waiting for no other rank"],
                partial(dist.all_reduce, torch.ones(3), group=group),
            )
        store.set("limited", "over")
    store.wait(["limited"])


def left_amid_calls() -> None:
    """Check that rank 0 can leave during calls that rank 1 does not make: both get an error, and no thread remains."""
    store, me = dist.distributed_c10d._get_default_store(), dist.get_rank()
    for backend in ("synth", "gloo"):
        group: Any = dist.new_group([0, 1])
        if me == 0:
            watch = group._dispatch.core.watch
            watch.tuning = replace(watch.tuning, leaving=0.2)
            with ours.using(backend):
                works = [dist.all_reduce(torch.ones(size), group=group, async_op=True) for size in (10, 200_000)]
                future = works[0].get_future()
            dist.destroy_process_group(group)
            for wait in (*(work.wait for work in works), future.wait):
                expect(["rank 0 has left group", "amid this call, which rank 1 has not made"], wait)
            assert "group of ranks 0, 1" not in {thread.name for thread in threading.enumerate()}
            store.set(f"left amid {backend}", "over")
        store.wait([f"left amid {backend}"])
        if me == 1:
            with ours.using(backend):
                expect(["rank 0 has left group"], partial(dist.all_reduce, torch.ones(10), group=group))
            dist.destroy_process_group(group)


def left_before_waiting() -> None:
    """Check that started calls are finished, even if ranks leave the group before they wait for them."""
    n = dist.get_world_size()
    for backend in ("synth", "gloo"):
        group: Any = dist.new_group()
        tensors = [torch.ones(size) for size in (10, 300_000)]
        with ours.using(backend):
            works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        dist.destroy_process_group(group)
        for work, tensor in zip(works, tensors, strict=True):
            assert work.is_completed()
            work.wait()
            assert tensor.unique().tolist() == [float(n)]


def _calls(group: Any, size: int, async_op: bool) -> dict[str, Check]:
    """Return each operation of a group of ranks 0 and 1, on rank 0, which waits for rank 1, as torch's Work."""
    block, blocks = torch.ones(size), list(torch.ones(2 * size).chunk(2))
    whole = torch.ones(2 * size)
    how: dict[str, Any] = {"group": group, "async_op": async_op}

    def twice(call: Check) -> Any:
        with dist._coalescing_manager(group=group, async_ops=async_op) as manager:
            call()
            call()
        return manager

    scatter = dist.reduce_scatter_tensor
    return {
        "all_reduce": lambda: dist.all_reduce(block, **how),
        "all_gather": lambda: dist.all_gather(blocks, block, **how),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, block, **how),
        "reduce_scatter": lambda: dist.reduce_scatter(block, blocks, **how),
        "reduce_scatter of other sizes": lambda: dist.reduce_scatter(block, [block.clone(), whole], **how),
        "reduce_scatter_tensor": lambda: scatter(block, whole, **how),
        "reduce_scatter_tensor, average": lambda: scatter(block, whole, ReduceOp.AVG, **how),
        "reduce_scatter_tensor with gaps": lambda: scatter(torch.ones(2 * size)[::2], whole, **how),
        "all_to_all": lambda: dist.all_to_all([block.clone(), block.clone()], blocks, **how),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.ones(2 * size), whole, **how),
        "broadcast": lambda: dist.broadcast(block, 1, **how),
        "reduce": lambda: dist.reduce(block, 0, **how),
        "gather": lambda: dist.gather(block, blocks, 0, **how),
        "scatter": lambda: dist.scatter(block, None, 1, **how),
        "recv": lambda: (dist.irecv if async_op else dist.recv)(block, 1, group=group),  # type: ignore[operator]
        "barrier": lambda: dist.barrier(**how),
        "all_reduce, coalesced": lambda: twice(lambda: dist.all_reduce(block, group=group)),
        "all_gather, coalesced": lambda: twice(lambda: dist.all_gather_into_tensor(whole, block, group=group)),
        "reduce_scatter, coalesced": lambda: twice(lambda: scatter(block, whole, group=group)),
    }


def absent() -> None:
    """Check that rank 0 reports an absent rank 1 soon after the time-out, in every operation."""
    me, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    modes_of_calls = [
        (name, size, async_op, mode)
        for name in _calls(None, 1, False)
        for size in (1000, 16_000)
        for async_op in (False, True)
        for mode in ("auto", "synth")
    ]
    groups = [dist.new_group([0, 1], timeout=timedelta(seconds=4)) for _ in modes_of_calls]
    faults = dict.fromkeys(modes_of_calls, "is not over")

    def call(mode_of_call: tuple[str, int, bool, str], group: Any) -> None:
        name, size, async_op, mode = mode_of_call
        faults[mode_of_call] = "did not fail"
        try:
            with ours.using(mode):
                work: Any = _calls(group, size, async_op)[name]()
                if async_op:
                    work.wait()
        except RuntimeError as error:
            faults[mode_of_call] = "" if "rank 1" in str(error) else str(error)

    if me == 0:
        threads = [
            threading.Thread(target=call, args=arguments, daemon=True)
            for arguments in zip(modes_of_calls, groups, strict=True)
        ]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 40
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        store.set("absent", "over")
        assert not any(faults.values()), {mode_of_call: fault for mode_of_call, fault in faults.items() if fault}
    store.wait(["absent"])


FAULTS: dict[str, Check] = {
    check.__name__: check
    for check in (differs, compared, unknown, unequal, limited, left_amid_calls, left_before_waiting)
}


class Losses:
    """Checks that lose one rank after the other, the last rank first; the remaining ranks must name it, and no other.

    Attributes:
        DIES: The rank that each check loses.
    """

    DIES = {"ends before a call": 4, "is killed amid a call": 3, "hangs": 2, "killed with the store": 0}  # noqa: RUF012

    def __init__(self, says: Any) -> None:
        """Make the groups; `says(name)` is called when a rank is about to be lost."""
        self._says = says
        second = timedelta(seconds=1)
        self._whole = dist.new_group(timeout=60 * second)
        self._chain = dist.new_group(timeout=60 * second)
        self._four = dist.new_group([3, 2, 1, 0], timeout=60 * second)
        self._three = dist.new_group([0, 1, 2], timeout=2 * second)
        self._two = dist.new_group([0, 1], timeout=60 * second)

    def _names(self, lost: int, call: Check, message: str = "lost: rank {} (") -> None:
        started = time.monotonic()
        expect([message.format(lost)], call)
        assert time.monotonic() < started + 45, "not before the time-out"

    def ends_before_a_call(self) -> None:
        """Check ranks that wait all for all, ranks that wait in a chain, and calls that were started with no wait."""
        me = dist.get_rank()
        for group in (self._whole, self._chain):
            dist.all_reduce(torch.ones(3), group=group)
        if me == 4:
            self._says("ends before a call")
            os._exit(0)
        with ours.using("synth"):
            works = [dist.all_reduce(torch.ones(3000 + k), group=self._whole, async_op=True) for k in range(4)]
            futures = [work.get_future() for work in works]
        for work in reversed(works):
            self._names(4, work.wait)
        for future in futures:
            self._names(4, future.wait)
        self._names(4, partial(dist.barrier, group=self._whole))
        self._names(4, partial(dist.recv, torch.zeros(1), (me - 1) % 5, group=self._chain))

    def is_killed_amid_a_call(self) -> None:
        """Check a rank that is killed during Gloo's own algorithm, which does not know the lost rank."""
        me = dist.get_rank()
        dist.all_reduce(torch.ones(3), group=self._four)
        if me == 3:
            self._says("is killed amid a call")
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
            time.sleep(0.5)
        with ours.using("gloo"):
            if me == 3:  # The others wait for its second call.
                dist.all_reduce(torch.ones(300), group=self._four)
                time.sleep(60)
            dist.all_reduce(torch.ones(300), group=self._four)
            self._names(3, partial(dist.all_reduce, torch.ones(300), group=self._four))

    def hangs(self) -> None:
        """Check that a hanging rank is reported at the time-out, and not called lost, since it lives."""
        dist.all_reduce(torch.ones(3), group=self._three)
        if dist.get_rank() == 2:
            self._says("hangs")
            time.sleep(9)
            os._exit(0)
        with ours.using("synth"):
            call = partial(dist.all_reduce, torch.ones(3), group=self._three)
            self._names(2, call, "; rank {} has made 1 call of group")

    def killed_with_the_store(self) -> None:
        """Check the loss of rank 0, which has the store, while DDP waits in torch's own code for its calls."""
        model = DistributedDataParallel(torch.nn.Linear(30, 30), process_group=self._two)
        with ours.using("synth"):
            model(torch.ones(2, 30)).sum().backward()
            if dist.get_rank() == 0:
                self._says("killed with the store")
                os.kill(os.getpid(), signal.SIGKILL)
            self._names(0, lambda: model(torch.ones(2, 30)).sum().backward())

    def checks(self) -> dict[str, Check]:
        return {name: getattr(self, name.replace(" ", "_")) for name in self.DIES}
