"""What is timed on the ranks of a torch.distributed job: collectives, by the wrapped back end and by ours.

All functions here are called with the same arguments on every rank of a group of `runtime.torch.process_group`.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

import runtime.torch.process_group as ours
from runtime.bench import (
    count_blocks,
)
from runtime.measure.tune import GAIN, LEAST_PAIRS, Measurement, lost_pairs
from runtime.torch.choice import Method
from runtime.torch.counters import counters
from runtime.torch.messages import error_text
from runtime.torch.run import REDUCERS
from runtime.torch.table import Call
from synth.model.registry import BUFFER, OWN, PAIR, ROOT, Kind, find_kind
from topologies.errors import InputError

Tensor: TypeAlias = Any

_LONG_S = 0.02  # shorter runs are repeated for as long between two looks at the clock: its resolution and wake-ups
MOST_RUNS = 64  # so repeated
_NEAR = 1.5  # times the fastest: what is measured again
_LOOKS = 3  # at each method, before the best of ours is compared with the wrapped back end
_AS_GOOD = 1.1  # times the fastest of ours: what was best at the last size stays then
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@contextmanager
def joined(timeout_s: float = 300.0) -> Iterator[tuple[int, int]]:
    """This process as a rank of the job that the environment names, as torchrun sets it; which of how many.

    Raises InputError where the environment does not say which rank of how many this is.
    """
    rank, world = _number("RANK"), _number("WORLD_SIZE")
    if world < 2:
        raise InputError(f"WORLD_SIZE={world}: a job of one rank; it must be of two or more")
    if rank >= world:
        raise InputError(f"RANK={rank}; it must be 0 to {world - 1}, for WORLD_SIZE={world}")
    _number("MASTER_PORT", 65535)
    if not os.environ.get("MASTER_ADDR"):
        raise InputError("MASTER_ADDR is not set; it must be started by torchrun, or with --ranks")
    torch.set_num_threads(1)
    try:
        dist.init_process_group("cpu:synth,cuda:synth", timeout=timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise InputError(f"this job's ranks do not find each other: {error_text(error)}") from None
    try:
        yield rank, world
    except RuntimeError as error:
        # a rank was lost: the others stand in the middle of a collective, and Python's end would wait for it
        print(f"synth: {error_text(error)}", file=sys.stderr, flush=True)
        os._exit(1)
    dist.destroy_process_group()


def _number(name: str, most: int = 1 << 30) -> int:
    text = os.environ.get(name, "")
    if not text:
        raise InputError(f"{name} is not set; it must be started by torchrun, or with --ranks")
    if not (text.isascii() and text.isdigit() and int(text) <= most):
        raise InputError(f"{name}={text!r}; it must be a whole number up to {most}")
    return int(text)


def make_groups(wanted: Sequence[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Each group with torch's object for it; the next one comes when all ranks are done with it."""
    for members in wanted:
        whole = members == tuple(range(dist.get_world_size()))
        yield members, dist.group.WORLD if whole else dist.new_group(list(members))
        dist.barrier()


def gather_all(found: Sequence[Measurement]) -> list[Measurement]:
    """What any rank has measured, once each."""
    gathered: list[Any] = [None] * dist.get_world_size()
    with ours.using("gloo"):
        dist.all_gather_object(gathered, list(found))
    every = [m for part in gathered for m in part]
    return list({(m.collective, m.group, m.kind, m.size_bytes, m.method): m for m in every}.values())


@dataclass
class MethodTimes:
    """What a method of doing a call took."""

    method: Method
    ran: str  # the name of what ran
    wrong: int  # elements, of all ranks, in a run on known data
    seconds: list[float] = field(default_factory=list)  # of the slowest rank, the mean of runs in a row, by measurement

    @property
    def median_s(self) -> float:
        """Of all measurements."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Case:
    """A collective on a group, as it is measured."""

    collective: str
    size_bytes: int  # as nccl-tests counts it, rounded down to whole elements of every block
    kind: str = "float32"  # torch's name of the type
    op: str = "sum"
    ranks: tuple[int, ...] = ()  # of the group, as the whole job numbers them
    root: int = 0  # within it

    @property
    def what(self) -> Kind:
        """The collective's row."""
        return find_kind(self.collective)

    @property
    def dtype(self) -> Any:
        return getattr(torch, self.kind)

    @property
    def blocks(self) -> int:
        """Blocks that the size is made of."""
        return count_blocks(self.collective, len(self.ranks))

    @property
    def block(self) -> int:
        """Elements of one."""
        return int(self.size_bytes // self.dtype.itemsize // self.blocks)

    @property
    def call(self) -> Call:
        """What the choice of a method depends on."""
        size = self.block * self.blocks * self.dtype.itemsize
        return Call(self.collective, size, self.kind, self.ranks, self.root if self.what.rooted else 0)

    def given(self, rank: int) -> Tensor:
        """The input of the group's rank: small numbers whose reductions are exact in every type."""
        count = self.block * (self.blocks if self.what.unit == PAIR or self.what.before != OWN else 1)
        most = 2 if self.op == "prod" else 4
        return ((torch.arange(count) + 3 * rank) % most + 1).to(self.dtype)

    def wanted(self, me: int) -> Tensor | None:
        """What the group's rank must get, None for nothing."""
        if self.what.after == ROOT and me != self.root:
            return None
        n = len(self.ranks)
        own = slice(me * self.block, (me + 1) * self.block) if self.what.after == OWN else slice(None)
        parts = [self.given(rank)[own] for rank in ([self.root] if self.what.before == ROOT else range(n))]
        if not self.what.reduces:
            return torch.cat(parts)
        total = parts[0].clone()
        for part in parts[1:]:
            REDUCERS[self.op](total, part, out=total)
        if self.op == "avg":
            total = torch.div(total, n, rounding_mode=None if total.is_floating_point() else "trunc")
        return total.to(self.dtype)

    def prepare(self, me: int, group: Any) -> tuple[Callable[[], Any], Tensor, Tensor]:
        """The call of torch's group, what it reads and what it writes (one tensor where it is in place)."""
        n, root = len(self.ranks), self.ranks[self.root]
        op = getattr(dist.ReduceOp, {"prod": "PRODUCT"}.get(self.op, self.op.upper()))
        given = made = self.given(me)
        if self.what.unit != BUFFER:
            blocks = self.blocks if self.what.unit == PAIR or self.what.after != OWN else 1
            made = torch.zeros(self.block * blocks, dtype=self.dtype)
        parts = None
        if me == self.root:
            parts = list((made if self.what.after == ROOT else given).chunk(n)) if self.block else []
        calls: dict[str, Callable[[], Any]] = {
            "allreduce": lambda: dist.all_reduce(given, op, group=group),
            "allgather": lambda: _all_gather(made, given, group=group),
            "reducescatter": lambda: _reduce_scatter(made, given, op, group=group),
            "alltoall": lambda: dist.all_to_all_single(made, given, group=group),
            "broadcast": lambda: dist.broadcast(given, root, group=group),
            "reduce": lambda: dist.reduce(given, root, op, group=group),
            "gather": lambda: dist.gather(given, parts, root, group=group),
            "scatter": lambda: dist.scatter(made, parts, root, group=group),
        }
        return calls[self.collective], given, made


def over_all(value: float, group: Any, op: Any = dist.ReduceOp.MAX) -> float:
    """The largest value of the group's ranks, or their sum; group: torch's, None: all of the job."""
    held = torch.tensor([value], dtype=torch.float64)
    with ours.using("gloo"):
        dist.all_reduce(held, op, group=group)
    return float(held.item())


class Bench:
    """A case and the methods to do it, measured alternately. Every rank of the case's group makes one."""

    def __init__(self, case: Case, methods: Sequence[Method], group: Any = None) -> None:
        """Runs each method once on known data; one that does not run as named at this size is left out."""
        self.case, self.group = case, group
        me = dist.get_rank(group)
        self.call, given, made = case.prepare(me, group)
        want = case.wanted(me)
        kept = given.clone()
        self.took: list[MethodTimes] = []
        self.runs: dict[Method, int] = {}
        for method in methods:
            longest = math.inf
            for _ in range(2):  # what is set up at the first call does not count
                given.copy_(kept)
                if made is not given:
                    made.zero_()
                begun = time.perf_counter()
                with ours.using(*method):
                    self.call()
                took = time.perf_counter() - begun
                ran = counters.last(case.collective)  # before the next call of all
                longest = min(longest, over_all(took, group))
                if longest > _LONG_S:
                    break
            if method.backend == "synth" and not ran.startswith("synth "):
                continue
            differs = 0 if want is None else int((made != want).sum())
            self.took.append(MethodTimes(method, ran, int(over_all(differs, group, dist.ReduceOp.SUM))))
            self.runs[method] = max(1, min(MOST_RUNS, math.ceil(_LONG_S / max(longest, 1e-6))))
        given.zero_()

    def measure_once(self, methods: Sequence[Method] | None = None) -> None:
        """Measure each method, or each of these, once more, one after the other."""
        for took in self.took:
            if methods is not None and took.method not in methods:
                continue
            runs = self.runs[took.method]
            with ours.using("gloo"):
                dist.barrier(group=self.group)
            begun = time.perf_counter()
            with ours.using(*took.method):
                for _ in range(runs):
                    self.call()
            took.seconds.append(over_all(time.perf_counter() - begun, self.group) / runs)


def measure_methods(
    case: Case,
    methods: Sequence[Method],
    group: Any = None,
    pairs: int = 15,
    preferred: Method | None = None,
    budget_s: float = 20.0,
) -> list[Measurement]:
    """A few looks at every method, then the best of ours beside the wrapped back end in pairs of runs.

    Fewer pairs where it can no longer gain surely, or the time is up, which LEAST_PAIRS always have. preferred: the one
    of ours to compare, if it is about as good as the best. All ranks decide alike, by the times of the slowest.
    """
    bench = Bench(case, methods, group)
    for _ in range(_LOOKS):
        least = min((took.median_s for took in bench.took if took.seconds), default=math.inf)
        near = (took.method for took in bench.took if not took.seconds or took.median_s <= _NEAR * least)
        bench.measure_once(list(near))
    ours_right = [took for took in bench.took if took.method.backend == "synth" and not took.wrong]
    wrapped = next(took for took in bench.took if took.method.backend != "synth")
    gains: dict[Method, tuple[float, ...]] = {}
    if ours_right:
        best = min(ours_right, key=lambda took: took.median_s)
        close = (took for took in ours_right if took.method == preferred and took.median_s <= _AS_GOOD * best.median_s)
        best = next(close, best)
        if best.median_s <= _NEAR * wrapped.median_s:
            gains[best.method] = tuple(_compare(bench, wrapped, best, pairs, budget_s))
    size = case.call.size_bytes
    return [
        Measurement(
            case.collective, case.ranks, case.kind, size, t.method, t.ran, 1e6 * t.median_s, t.wrong,
            gains.get(t.method, ()),
        )
        for t in bench.took
    ]  # fmt: skip


def _compare(bench: Bench, wrapped: MethodTimes, best: MethodTimes, pairs: int, budget_s: float) -> Iterator[float]:
    """The gain of `best` over `wrapped` in pair after pair of runs, each of them first in every other pair."""
    short, may, spent = 0, lost_pairs(pairs), 0.0
    for pair in range(pairs):
        for took in (wrapped, best) if pair % 2 else (best, wrapped):
            bench.measure_once([took.method])
            spent += took.seconds[-1] * bench.runs[took.method]
        gain = wrapped.seconds[-1] / best.seconds[-1]
        yield gain
        short += gain < GAIN
        if short > may or (spent > budget_s and pair + 1 >= LEAST_PAIRS):
            return
