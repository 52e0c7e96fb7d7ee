"""Measurements on the ranks of a torch.distributed job: collectives by the wrapped back end and by ours.

Every rank of a group of `runtime.torch.process_group` calls each function here with the same arguments.
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
from runtime.bench import count_blocks
from runtime.measure.tune import GAIN, Measurement, lost_pairs
from runtime.torch.added import WRAPPED
from runtime.torch.choice import Method
from runtime.torch.counters import counters
from runtime.torch.messages import error_text
from runtime.torch.programs.run import REDUCERS
from runtime.torch.table import TableCall
from synth.model.registry import BUFFER, OWN, PAIR, ROOT, CollectiveKind, find_kind
from topologies.errors import InputError

Tensor: TypeAlias = Any

_LONG_S = 0.02  # Shorter runs are repeated for this time, because of the clock's resolution and wake-ups.
MOST_RUNS = 64  # Most repetitions.
_NEAR = 1.5  # Methods within this factor of the fastest are measured again.
_LOOKS = 3  # Measurements of each method before the comparison in pairs.
_TIMEOUT_S = 300.0  # The time-out of each call of a job's group.
_COMPARISON_S = 20.0  # The time that the runs of a comparison may take.
_AS_GOOD = 1.1  # The best method of the last size stays if it is within this factor of the fastest of ours.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@contextmanager
def joined() -> Iterator[tuple[int, int]]:
    """Join the job that the environment names, as torchrun sets it; yield this process's rank and the number of ranks.

    The job's group is destroyed at the end. A RuntimeError within the context, as of a lost rank, is printed as one
    line and ends the process at once with exit code 1; other errors leave the group as it is.

    Raises:
        InputError: The environment does not name a rank of a job, or the ranks do not find each other.
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
        dist.init_process_group("cpu:synth,cuda:synth", timeout=timedelta(seconds=_TIMEOUT_S))
    except RuntimeError as error:
        raise InputError(f"this job's ranks do not find each other: {error_text(error)}") from None
    try:
        yield rank, world
    except RuntimeError as error:
        # A rank was lost while others are in a collective; Python's exit would wait for them.
        print(f"synth: {error_text(error)}", file=sys.stderr, flush=True)
        os._exit(1)
    dist.destroy_process_group()


def _number(name: str, most: int = 1 << 30) -> int:
    """Read a whole number from the environment.

    Raises:
        InputError: The variable is not set, or is not a whole number up to `most`.
    """
    text = os.environ.get(name, "")
    if not text:
        raise InputError(f"{name} is not set; it must be started by torchrun, or with --ranks")
    if not (text.isascii() and text.isdigit() and int(text) <= most):
        raise InputError(f"{name}={text!r}; it must be a whole number up to {most}")
    return int(text)


def make_groups(groups: Sequence[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield each group with torch's object for it; the next one comes when all ranks are done with the last.

    All ranks of the job go through all groups; on ranks outside a group the object is `GroupMember.NON_GROUP_MEMBER`.
    `groups` has the members by their numbers in the job, ascending.
    """
    for members in groups:
        is_whole_job = members == tuple(range(dist.get_world_size()))
        yield members, dist.group.WORLD if is_whole_job else dist.new_group(list(members))
        dist.barrier()


def gather_all(own_measurements: Sequence[Measurement]) -> list[Measurement]:
    """Return the measurements of all ranks, the same list on every rank.

    Of measurements of one call and method, as all members of a group make, only the last rank's stays.
    """
    gathered: list[Any] = [None] * dist.get_world_size()
    with ours.using("gloo"):
        dist.all_gather_object(gathered, list(own_measurements))
    measurements = [m for part in gathered for m in part]
    return list({(m.collective, m.group, m.kind, m.size_bytes, m.method): m for m in measurements}.values())


@dataclass
class MethodTimes:
    """The times of a method for a call.

    Attributes:
        method: The method.
        algorithm: Name of the algorithm that ran.
        wrong: Wrong elements of all ranks in a run on known data.
        seconds: Time in s of each measurement: the mean of runs in a row, on the slowest rank.
    """

    method: Method
    algorithm: str
    wrong: int
    seconds: list[float] = field(default_factory=list)

    @property
    def median_s(self) -> float:
        """Return the median of all measurements in s."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Case:
    """A collective on a group, as it is measured.

    Attributes:
        collective: The collective.
        size_bytes: Size as nccl-tests counts it, before it is rounded down to whole elements of every block.
        kind: Data type, by torch's name.
        op: Reduction.
        ranks: Ranks of the group, by their numbers in the whole job.
        root: Root, by its number in the group.
    """

    collective: str
    size_bytes: int
    kind: str = "float32"
    op: str = "sum"
    ranks: tuple[int, ...] = ()
    root: int = 0

    @property
    def name(self) -> str:
        """Return the collective's name in tables."""
        return self.collective

    @property
    def row(self) -> CollectiveKind:
        """Return the collective's row of the registry."""
        return find_kind(self.collective)

    @property
    def dtype(self) -> Any:
        """Return torch's data type."""
        return getattr(torch, self.kind)

    @property
    def blocks(self) -> int:
        """Return the number of blocks in the size: the number of ranks if a block is of or for one rank, else 1."""
        return count_blocks(self.collective, len(self.ranks))

    @property
    def block(self) -> int:
        """Return the number of elements of a block, rounded down."""
        return int(self.size_bytes // self.dtype.itemsize // self.blocks)

    @property
    def call(self) -> TableCall:
        """Return the properties on which the choice of a method depends."""
        size = self.block * self.blocks * self.dtype.itemsize
        return TableCall(self.collective, size, self.kind, self.ranks, self.root if self.row.rooted else 0)

    def input_of(self, rank: int) -> Tensor:
        """Build the input of the rank at a place of the group, a tensor on the CPU.

        It has small whole numbers whose reductions are exact in every type: 1 to 4, or 1 and 2 for prod.
        """
        count = self.block * (self.blocks if self.row.unit == PAIR or self.row.before != OWN else 1)
        most = 2 if self.op == "prod" else 4
        return ((torch.arange(count) + 3 * rank) % most + 1).to(self.dtype)

    def expected_output(self, me: int) -> Tensor | None:
        """Compute the correct result of the rank at place `me` of the group; None if it gets none, as no root."""
        if self.row.after == ROOT and me != self.root:
            return None
        n = len(self.ranks)
        own_slice = slice(me * self.block, (me + 1) * self.block) if self.row.after == OWN else slice(None)
        parts = [self.input_of(rank)[own_slice] for rank in ([self.root] if self.row.before == ROOT else range(n))]
        if not self.row.reduces:
            return torch.cat(parts)
        total = parts[0].clone()
        for part in parts[1:]:
            REDUCERS[self.op](total, part, out=total)
        if self.op == "avg":
            total = torch.div(total, n, rounding_mode=None if total.is_floating_point() else "trunc")
        return total.to(self.dtype)

    def prepare(self, me: int, group: Any) -> tuple[Callable[[], Any], Tensor, Tensor]:
        """Build the call of torch's group, its input and its output (one tensor where it works in place).

        Args:
            me: Place of this rank in the group.
            group: torch's group.
        """
        n, root = len(self.ranks), self.ranks[self.root]
        op = getattr(dist.ReduceOp, {"prod": "PRODUCT"}.get(self.op, self.op.upper()))
        input_tensor = output_tensor = self.input_of(me)
        if self.row.unit != BUFFER:
            blocks = self.blocks if self.row.unit == PAIR or self.row.after != OWN else 1
            output_tensor = torch.zeros(self.block * blocks, dtype=self.dtype)
        parts = None
        if me == self.root:
            parts = list((output_tensor if self.row.after == ROOT else input_tensor).chunk(n)) if self.block else []
        calls: dict[str, Callable[[], Any]] = {
            "allreduce": lambda: dist.all_reduce(input_tensor, op, group=group),
            "allgather": lambda: _all_gather(output_tensor, input_tensor, group=group),
            "reducescatter": lambda: _reduce_scatter(output_tensor, input_tensor, op, group=group),
            "alltoall": lambda: dist.all_to_all_single(output_tensor, input_tensor, group=group),
            "broadcast": lambda: dist.broadcast(input_tensor, root, group=group),
            "reduce": lambda: dist.reduce(input_tensor, root, op, group=group),
            "gather": lambda: dist.gather(input_tensor, parts, root, group=group),
            "scatter": lambda: dist.scatter(output_tensor, parts, root, group=group),
        }
        return calls[self.collective], input_tensor, output_tensor


def over_all(value: float, group: Any, op: Any = dist.ReduceOp.MAX) -> float:
    """Return the largest value of the group's ranks, or their sum.

    Args:
        value: This rank's value.
        group: torch's group; None: the whole job.
        op: torch's reduction.
    """
    tensor = torch.tensor([value], dtype=torch.float64)
    with ours.using("gloo"):
        dist.all_reduce(tensor, op, group=group)
    return float(tensor.item())


class Bench:
    """A case and its methods, measured in turns. Every rank of the case's group creates one."""

    def __init__(self, case: Case, methods: Sequence[Method], group: Any = None) -> None:
        """Run each method on known data; a method that does not run under its name at this size is left out.

        `measured` then has the other methods in their order, with their wrong elements and no times, and `runs` the
        number of runs in a row of each measurement by method.

        Args:
            case: The case.
            methods: The methods.
            group: torch's group; None: the whole job.
        """
        self.case, self.group = case, group
        me = dist.get_rank(group)
        self.call, input_tensor, output_tensor = case.prepare(me, group)
        expected = case.expected_output(me)
        input_copy = input_tensor.clone()
        self.measured: list[MethodTimes] = []
        self.runs: dict[Method, int] = {}
        for method in methods:
            longest = math.inf
            for _ in range(2):  # The first call also sets things up, so it does not count.
                input_tensor.copy_(input_copy)
                if output_tensor is not input_tensor:
                    output_tensor.zero_()
                begin_s = time.perf_counter()
                with ours.using(*method):
                    self.call()
                took_s = time.perf_counter() - begin_s
                ran = counters.last(case.collective)  # The next call would overwrite it.
                longest = min(longest, over_all(took_s, group))
                if longest > _LONG_S:
                    break
            if method.backend == "synth" and not ran.startswith("synth "):
                continue
            differs = 0 if expected is None else int((output_tensor != expected).sum())
            self.measured.append(MethodTimes(method, ran, int(over_all(differs, group, dist.ReduceOp.SUM))))
            self.runs[method] = max(1, min(MOST_RUNS, math.ceil(_LONG_S / max(longest, 1e-6))))
        input_tensor.zero_()

    def measure_once(self, methods: Sequence[Method] | None = None) -> None:
        """Measure each method, or each of `methods`, once more, one after the other, and add its time to its `seconds`.

        The time is the mean in s of the method's `runs` in a row, on the slowest rank.
        """
        for method_times in self.measured:
            if methods is not None and method_times.method not in methods:
                continue
            runs = self.runs[method_times.method]
            with ours.using("gloo"):
                dist.barrier(group=self.group)
            begin_s = time.perf_counter()
            with ours.using(*method_times.method):
                for _ in range(runs):
                    self.call()
            method_times.seconds.append(over_all(time.perf_counter() - begin_s, self.group) / runs)


def measure_methods(
    case: Case,
    methods: Sequence[Method],
    group: Any = None,
    pairs: int = 15,
    preferred: Method | None = None,
) -> list[Measurement]:
    """Measure every method a few times, then compare the best of ours with the wrapped back end in pairs of runs.

    There are fewer pairs if the method can no longer surely gain, or if the time is over and it surely gains by the
    pairs so far: a single pair that another program disturbed needs more of them.
    All ranks decide equally, by the times of the slowest.

    Args:
        case: The case.
        methods: The methods, that of the wrapped back end among them.
        group: torch's group; None: the whole job.
        pairs: Most pairs of runs.
        preferred: Our method to compare if it is about as good as the best; None for none.

    Returns:
        A measurement for each method that ran, the wrong ones too; only the compared one has gains. Methods that cannot
        run at this size are missing.
    """
    bench = Bench(case, methods, group)
    for _ in range(_LOOKS):
        least = min((times.median_s for times in bench.measured if times.seconds), default=math.inf)
        near = (times.method for times in bench.measured if not times.seconds or times.median_s <= _NEAR * least)
        bench.measure_once(list(near))
    ours_right = [times for times in bench.measured if times.method.backend != WRAPPED and not times.wrong]
    wrapped = next(times for times in bench.measured if times.method.backend == WRAPPED)
    gains: dict[Method, tuple[float, ...]] = {}
    if ours_right:
        best = min(ours_right, key=lambda times: times.median_s)
        close = (
            times for times in ours_right if times.method == preferred and times.median_s <= _AS_GOOD * best.median_s
        )
        best = next(close, best)
        if best.median_s <= _NEAR * wrapped.median_s:
            gains[best.method] = tuple(_compare(bench, wrapped, best, pairs))
    size = case.call.size_bytes
    return [
        Measurement(
            case.name, case.ranks, case.kind, size, t.method, t.algorithm, 1e6 * t.median_s, t.wrong,
            gains.get(t.method, ()),
        )
        for t in bench.measured
    ]  # fmt: skip


def _compare(bench: Bench, wrapped: MethodTimes, best: MethodTimes, pairs: int) -> Iterator[float]:
    """Yield the gain of `best` over `wrapped` for each pair of runs; each of them runs first in every other pair.

    A gain is the time of `wrapped` / that of `best`. `pairs` is the largest number of pairs; it ends earlier as
    `measure_methods` says.
    """
    short, allowed_short, spent = 0, lost_pairs(pairs), 0.0
    for pair in range(pairs):
        for times in (wrapped, best) if pair % 2 else (best, wrapped):
            bench.measure_once([times.method])
            spent += times.seconds[-1] * bench.runs[times.method]
        gain = wrapped.seconds[-1] / best.seconds[-1]
        yield gain
        short += gain < GAIN
        if short > allowed_short or (spent > _COMPARISON_S and short <= lost_pairs(pair + 1)):
            return
