"""Scratch reuse: a place whose content nobody will read again holds the next one, where that costs no waiting."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import reduce
from operator import and_

from emit.compiler.ir import NONE, SCRATCH, Instructions, predecessors
from emit.compiler.tuning import TUNING


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
