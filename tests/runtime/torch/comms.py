"""A rank that calls each method of the back end of torchcomms, by a stand-in for torchcomms.

python -m tests.runtime.torch.comms RANK SIZE PORT RESULT
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from topologies.errors import InputError

Tensor = Any
REGISTERED: dict[str, Any] = {}


class RedOpType(Enum):
    SUM = 0
    MAX = 3
    PREMUL_SUM = 8


class TorchCommBackend:
    """The base class of back ends, with the methods that a back end must have."""


def stand_in() -> None:
    """Put modules in place of torchcomms, which has no wheel: what a back end imports of it."""
    package, inner = ModuleType("torchcomms"), ModuleType("torchcomms._comms")
    package.__dict__["register_backend"] = REGISTERED.__setitem__
    inner.__dict__["TorchCommBackend"] = TorchCommBackend
    sys.modules["torchcomms"], sys.modules["torchcomms._comms"] = package, inner


def op(kind: RedOpType) -> Any:
    return SimpleNamespace(type=kind)


def over(work: Any, asynchronous: bool) -> None:
    """Wait as torchcomms does: a call that returns None is over."""
    assert (work is not None) == asynchronous
    if work is not None:
        work.wait()


def check(comm: Any, asynchronous: bool) -> None:
    """Check the results of every method on this rank."""
    me, n = comm.get_rank(), comm.get_size()

    def mine(count: int, rank: int = me) -> Tensor:
        return torch.arange(count, dtype=torch.float32) + 100 * rank

    total = sum((mine(6, rank) for rank in range(n)), torch.zeros(6))
    tensor = mine(6)
    over(comm.all_reduce(tensor, op(RedOpType.SUM), asynchronous), asynchronous)
    assert torch.equal(tensor, total)
    tensor = mine(6)
    over(comm.all_reduce(tensor, op(RedOpType.MAX), asynchronous), asynchronous)
    assert torch.equal(tensor, mine(6, n - 1))
    tensor = mine(6)
    over(comm.broadcast(tensor, 1, asynchronous), asynchronous)
    assert torch.equal(tensor, mine(6, 1))
    tensor = mine(6)
    over(comm.reduce(tensor, 1, op(RedOpType.SUM), asynchronous), asynchronous)
    assert me != 1 or torch.equal(tensor, total)

    outputs = [torch.zeros(4) for _ in range(n)]
    over(comm.all_gather(outputs, mine(4), asynchronous), asynchronous)
    assert all(torch.equal(output, mine(4, rank)) for rank, output in enumerate(outputs))
    outputs = [torch.zeros(1 + rank) for rank in range(n)]
    over(comm.all_gather_v(outputs, mine(1 + me), asynchronous), asynchronous)
    assert all(torch.equal(output, mine(1 + rank, rank)) for rank, output in enumerate(outputs))
    output = torch.zeros(4 * n)
    over(comm.all_gather_single(output, mine(4), asynchronous), asynchronous)
    assert torch.equal(output, torch.cat([mine(4, rank) for rank in range(n)]))

    for uneven in (False, True):
        counts = [3 + (rank if uneven else 0) for rank in range(n)]
        parts = [mine(counts[rank]) + rank for rank in range(n)]
        output = torch.zeros(counts[me])
        call = comm.reduce_scatter_v if uneven else comm.reduce_scatter
        over(call(output, parts, op(RedOpType.SUM), asynchronous), asynchronous)
        assert torch.equal(output, sum((mine(counts[me], rank) + me for rank in range(n)), torch.zeros(counts[me])))
    output = torch.zeros(3)
    over(comm.reduce_scatter_single(output, mine(3 * n), op(RedOpType.SUM), asynchronous), asynchronous)
    assert torch.equal(output, sum((mine(3 * n, rank)[3 * me : 3 * me + 3] for rank in range(n)), torch.zeros(3)))

    outputs = [torch.zeros(2 + me) for _ in range(n)]
    over(comm.all_to_all(outputs, [mine(2 + rank) + rank for rank in range(n)], asynchronous), asynchronous)
    assert all(torch.equal(output, mine(2 + me, rank) + me) for rank, output in enumerate(outputs))
    output = torch.zeros(2 * n)
    over(comm.all_to_all_single(output, mine(2 * n), asynchronous), asynchronous)
    assert torch.equal(output, torch.cat([mine(2 * n, rank)[2 * me : 2 * me + 2] for rank in range(n)]))
    sizes = [1 + rank for rank in range(n)]
    firsts = [sum(sizes[:rank]) for rank in range(n)]
    output = torch.zeros(n * sizes[me])
    over(comm.all_to_all_v_single(output, mine(sum(sizes)), [sizes[me]] * n, sizes, asynchronous), asynchronous)
    rows = [mine(sum(sizes), rank)[firsts[me] : firsts[me] + sizes[me]] for rank in range(n)]
    assert torch.equal(output, torch.cat(rows))

    outputs = [torch.zeros(2) for _ in range(n)] if me == 2 else []
    over(comm.gather(outputs, mine(2), 2, asynchronous), asynchronous)
    assert all(torch.equal(output, mine(2, rank)) for rank, output in enumerate(outputs))
    output = torch.zeros(2)
    over(comm.scatter(output, [mine(2) + rank for rank in range(n)] if me == 2 else [], 2, asynchronous), asynchronous)
    assert torch.equal(output, mine(2, 2) + me)

    received = torch.zeros(5)
    if me % 2:
        over(comm.recv(received, me - 1, asynchronous), asynchronous)
        over(comm.send(mine(5), me - 1, asynchronous), asynchronous)
    else:
        over(comm.send(mine(5), me + 1, asynchronous), asynchronous)
        over(comm.recv(received, me + 1, asynchronous), asynchronous)
    assert torch.equal(received, mine(5, me + 1 - 2 * (me % 2)))
    over(comm.barrier(asynchronous), asynchronous)


def main(rank: int, size: int, port: int) -> None:
    stand_in()
    import synth.torch  # noqa: F401 - it registers the back end

    comm = REGISTERED["synth"]()
    with pytest.raises(InputError, match="is not connected"):
        comm.get_size()
    options = SimpleNamespace(timeout=timedelta(seconds=60), store=dist.TCPStore("127.0.0.1", port, size, not rank))
    with pytest.raises(InputError, match="TORCHCOMM_RANK and TORCHCOMM_SIZE: are not set"):
        comm.init(torch.device("cpu"), "world", options)
    os.environ |= {"TORCHCOMM_RANK": str(rank), "TORCHCOMM_SIZE": str(size)}
    comm.init(torch.device("cpu"), "world", options)
    assert (comm.get_rank(), comm.get_size(), comm.get_backend_name(), comm.get_comm_name()) == (
        rank, size, "synth", "world",
    )  # fmt: skip
    for asynchronous in (False, True):
        check(comm, asynchronous)
    with pytest.raises(InputError, match="reduction PREMUL_SUM: must be one of SUM"):
        comm.all_reduce(torch.zeros(2), op(RedOpType.PREMUL_SUM), False)
    part = comm.split([size - 1, 0, 1], "part", SimpleNamespace(timeout=None))
    assert (part is None) == (rank == 2)
    if part is not None:
        assert (part.get_rank(), part.get_size(), part.get_comm_name()) == ([size - 1, 0, 1].index(rank), 3, "part")
        tensor = torch.ones(3)
        part.all_reduce(tensor, op(RedOpType.SUM), False)
        assert torch.equal(tensor, torch.full((3,), 3.0))
        part.finalize()
    comm.set_timeout(timedelta(milliseconds=300))
    if rank:
        with pytest.raises(RuntimeError):
            comm.barrier(False)
    comm.finalize()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
    Path(sys.argv[4]).touch()
