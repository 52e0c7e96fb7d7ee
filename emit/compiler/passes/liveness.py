"""Liveness: what nobody reads is not written (prune), and scratch whose content is over is used again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import and_

import numpy as np

from emit.compiler.ir import BUFFER, NONE, SCRATCH, Instructions, accesses, memory_span, predecessors
from emit.compiler.tuning import TUNING
from emit.goal import Goal
from emit.program import WRITES_DST


def prune(ir: Instructions) -> Instructions:
    """Without instructions whose result nobody needs; a forwarded sum that is not kept is an rrs."""
    return ir if all_used(ir) else without_unused(ir)


def without_unused(ir: Instructions) -> Instructions:
    """The same, whether or not there are any."""
    needed: list[bool] = [False] * len(ir)
    kept_here: list[bool] = [True] * len(ir)  # whether a fused instruction's own write is needed
    calls = [(_required(ir, *call), call[1]) for call in ir.calls()]
    for n in range(len(ir) - 1, -1, -1):
        first = ir.writes(n)
        useful = first == NONE or any(place in live for live, alias in calls for place in _places(ir, n, first, alias))
        target = ir.target[n]
        sends = target != NONE and needed[target]
        needed[n] = sends or (useful and first != NONE)
        kept_here[n] = useful
        if not needed[n]:
            continue
        for live, alias in calls:
            if first != NONE and useful:
                live.difference_update(_places(ir, n, first, alias))
            for read in ir.reads(n):
                live.update(_places(ir, n, read, alias))
    if all(needed) and not any(op == "rrcs" and not keep for op, keep in zip(ir.op, kept_here, strict=True)):
        return ir
    made = ir.copy()
    for n in range(len(made)):
        if needed[n] and made.op[n] == "rrcs" and not kept_here[n] and made.target[n] != NONE:
            made.op[n], made.dst[n] = "rrs", made.src[n]
        if needed[n] and made.op[n] in ("rcs", "rrcs") and not needed[made.target[n]]:
            made.op[n] = {"rcs": "r", "rrcs": "rrc"}[made.op[n]]
    return made.select([n for n in range(len(made)) if needed[n]])


def all_used(ir: Instructions) -> bool:
    """Whether all that is written is read before it is written anew, or stays and is required: then all are needed.

    By induction from the last instruction on, for each that reads is needed itself.
    """
    calls = ir.calls()
    needed = np.zeros(len(ir), dtype=bool)
    writes = np.array([op in WRITES_DST for op in ir.op], dtype=bool)
    for (goal, o_in_i), (rank, place, n, is_write) in zip(calls, map(partial(accesses, ir), calls), strict=True):
        same = (place[1:] == place[:-1]) & (rank[1:] == rank[:-1])
        last = np.flatnonzero(is_write & ~np.append(same, False))
        required = _required(ir, goal, o_in_i)
        kept = [cell in required for cell in zip(rank[last].tolist(), place[last].tolist(), strict=True)]
        needed[n[last[np.array(kept, dtype=bool)]]] = True
        needed[n[:-1][is_write[:-1] & same & ~is_write[1:]]] = True
    return bool((needed | (~writes & (np.array(ir.target, dtype=np.int64) != NONE))).all())


def _places(ir: Instructions, n: int, first: int, alias: tuple[int | None, ...]) -> list[tuple[int, int]]:
    rank = ir.rank[n]
    return [(rank, at) for at in memory_span(first, ir.count[n], alias[rank])]


def _required(ir: Instructions, goal: Goal | None, o_in_i: tuple[int | None, ...]) -> set[tuple[int, int]]:
    """Cells whose content matters in the end."""
    seen: Iterable[tuple[int, int, int]]
    if goal is None:  # nobody knows: all that the caller can see
        seen = (
            (rank, code, at)
            for rank, gpu in enumerate(ir.header.gpus)
            for code, size in ((0, gpu.i_chunks), (1, gpu.o_chunks))
            for at in range(size)
        )
    else:
        seen = zip(*(column.tolist() for column in goal.required[:3]), strict=True)
    return {(rank, memory_span(code * BUFFER + at, 1, o_in_i[rank]).start) for rank, code, at in seen}


@dataclass
class _Tenant:
    """Scratch cells of one rank that some instruction uses together; `users`: all that touch them."""

    first: int
    size: int = 0
    users: list[int] = field(default_factory=list)


def reuse_scratch(ir: Instructions) -> Instructions:
    """Put contents at the lowest place where all that used it before is certainly over."""
    tenants = _tenants(ir)
    if (
        not any(tenants.values())
        or len(ir) > TUNING.scratch_instructions
        or max(map(len, tenants.values())) > TUNING.scratch_contents
    ):
        return ir
    over = _over(ir)
    made = ir.copy()
    for mine in tenants.values():
        taken: list[tuple[int, int, int]] = []  # first offset, one past the last, users as bits
        for tenant in sorted(mine, key=lambda t: (t.users[0], t.first)):
            at = _place(taken, tenant.size, reduce(and_, (over[user] for user in tenant.users)))
            taken.append((at, at + tenant.size, sum(1 << user for user in tenant.users)))
            move = SCRATCH + at - tenant.first
            span = range(tenant.first, tenant.first + tenant.size)
            for user in tenant.users:
                if ir.src[user] in span:
                    made.src[user] = ir.src[user] + move
                if ir.dst[user] in span:
                    made.dst[user] = ir.dst[user] + move
    return made


def _place(taken: list[tuple[int, int, int]], size: int, surely: int) -> int:
    """The lowest offset where every earlier tenant's users are among those surely over."""
    at = 0
    for low, high in sorted((low, high) for low, high, bits in taken if bits & ~surely):
        if at + size <= low:
            break
        at = max(at, high)
    return at


def _tenants(ir: Instructions) -> dict[int, list[_Tenant]]:
    """Per rank, runs of scratch cells that spans tie together."""
    spans: dict[int, dict[tuple[int, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for n, rank in enumerate(ir.rank):
        for first in {*ir.reads(n), ir.writes(n)}:
            if first >= SCRATCH:
                spans[rank][first, first + ir.count[n]].append(n)
    found: dict[int, list[_Tenant]] = {}
    for rank, mine in spans.items():
        runs: list[_Tenant] = []
        for (low, high), users in sorted(mine.items()):
            if not runs or low >= runs[-1].first + runs[-1].size:
                runs.append(_Tenant(low))
            runs[-1].size = max(runs[-1].size, high - runs[-1].first)
            runs[-1].users += users
        for run in runs:
            run.users = sorted(set(run.users))
        found[rank] = runs
    return found


def _over(ir: Instructions) -> list[int]:
    """For every instruction, as bits, those that are over whenever it begins."""
    begun, ended = [0] * len(ir), [0] * len(ir)
    for n, others in enumerate(predecessors(ir)):
        source = ir.source[n]
        for other in others:
            begun[n] |= ended[other]
        if source != NONE:  # a message of many chunks begins to arrive while it is still being sent
            begun[n] |= ended[source] if ir.count[n] == 1 else begun[source]
        ended[n] = begun[n] | (ended[source] if source != NONE else 0) | 1 << n
    return begun
