"""Use liveness of cells: drop writes that nobody reads (prune), and reuse scratch whose content is no longer needed."""

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
from synth.model.deadline import checking_deadline

# Parts of all instructions that lie between two users of a scratch cell where scratch is limited, as tried in turn.
_SHARES_WAITED = (0.25, 0.12, 0.06, 0.03, 0.0)


def prune(ir: Instructions) -> Instructions:
    """Remove instructions whose result nobody needs, and those parts of fused instructions that nobody needs.

    A forwarded sum that the rank does not keep becomes an rrs; a fused instruction whose message nobody needs becomes
    an r or rrc. The result is new instructions, or `ir` itself if all results are needed.
    """
    return ir if all_used(ir) else without_unused(ir)


def without_unused(ir: Instructions) -> Instructions:
    """Do what `prune` does, but without its quick test whether there is anything to remove.

    The result is new instructions, or `ir` itself if there is nothing to remove or to replace.
    """
    needed: list[bool] = [False] * len(ir)
    write_is_needed: list[bool] = [True] * len(ir)  # whether a fused instruction's local write is needed
    calls = [(_required(ir, *call), call[1]) for call in ir.calls()]
    for n in checking_deadline(range(len(ir) - 1, -1, -1), every=1024):
        first = ir.writes(n)
        useful = first == NONE or any(place in live for live, alias in calls for place in _places(ir, n, first, alias))
        target = ir.target[n]
        sends = target != NONE and needed[target]
        needed[n] = sends or (useful and first != NONE)
        write_is_needed[n] = useful
        if not needed[n]:
            continue
        for live, alias in calls:
            if first != NONE and useful:
                live.difference_update(_places(ir, n, first, alias))
            for read in ir.reads(n):
                live.update(_places(ir, n, read, alias))
    if all(needed) and not any(
        op == "rrcs" and not is_write_needed for op, is_write_needed in zip(ir.op, write_is_needed, strict=True)
    ):
        return ir
    pruned = ir.copy()
    for n in range(len(pruned)):
        if needed[n] and pruned.op[n] == "rrcs" and not write_is_needed[n] and pruned.target[n] != NONE:
            pruned.op[n], pruned.dst[n] = "rrs", pruned.src[n]
        if needed[n] and pruned.op[n] in ("rcs", "rrcs") and not needed[pruned.target[n]]:
            pruned.op[n] = {"rcs": "r", "rrcs": "rrc"}[pruned.op[n]]
    return pruned.select([n for n in range(len(pruned)) if needed[n]])


def all_used(ir: Instructions) -> bool:
    """Return True if every write is read before the next write of its cell, or is required at the end.

    Then all instructions are needed: by induction from the last instruction, each reader is needed itself.
    """
    calls = ir.calls()
    needed = np.zeros(len(ir), dtype=bool)
    writes = np.array([op in WRITES_DST for op in ir.op], dtype=bool)
    for (goal, o_in_i), (rank, place, n, is_write) in zip(calls, map(partial(accesses, ir), calls), strict=True):
        same = (place[1:] == place[:-1]) & (rank[1:] == rank[:-1])
        last = np.flatnonzero(is_write & ~np.append(same, False))
        required = _required(ir, goal, o_in_i)
        is_required = [cell in required for cell in zip(rank[last].tolist(), place[last].tolist(), strict=True)]
        needed[n[last[np.array(is_required, dtype=bool)]]] = True
        needed[n[:-1][is_write[:-1] & same & ~is_write[1:]]] = True
    return bool((needed | (~writes & (np.array(ir.target, dtype=np.int64) != NONE))).all())


def _places(ir: Instructions, n: int, first: int, alias: tuple[int | None, ...]) -> list[tuple[int, int]]:
    """Return the cells (rank, cell) of a span of instruction `n`, those of o as cells of i if they share memory.

    Args:
        ir: Instructions.
        n: The instruction, which gives the rank and the number of cells.
        first: First cell of the span.
        alias: Position of o[0] in each rank's i in chunks; None for separate buffers.
    """
    rank = ir.rank[n]
    return [(rank, at) for at in memory_span(first, ir.count[n], alias[rank])]


def _required(ir: Instructions, goal: Goal | None, o_in_i: tuple[int | None, ...]) -> set[tuple[int, int]]:
    """Return the cells (rank, cell) whose content matters at the end: all of i and o if there is no goal.

    A cell of o is named as a cell of i where they share memory.

    Args:
        ir: Instructions.
        goal: The goal; None if the collective's name does not define it.
        o_in_i: Position of o[0] in each rank's i in chunks; None for separate buffers.
    """
    visible: Iterable[tuple[int, int, int]]
    if goal is None:  # The goal is unknown, so every cell that the caller can see matters.
        visible = (
            (rank, code, at)
            for rank, gpu in enumerate(ir.header.gpus)
            for code, size in ((0, gpu.i_chunks), (1, gpu.o_chunks))
            for at in range(size)
        )
    else:
        visible = zip(*(column.tolist() for column in goal.required[:3]), strict=True)
    return {(rank, memory_span(code * BUFFER + at, 1, o_in_i[rank]).start) for rank, code, at in visible}


@dataclass
class _Tenant:
    """A run of scratch cells of one rank that the spans of some instructions connect.

    Attributes:
        first: First cell.
        size: Number of cells.
        users: All instructions that access the cells.
    """

    first: int
    size: int = 0
    users: list[int] = field(default_factory=list)


def reuse_scratch(ir: Instructions) -> Instructions:
    """Assign scratch contents to the lowest cells whose earlier users are certainly over.

    The result is new instructions, or `ir` itself if no scratch is used, or if there is too much to compare.
    """
    tenants = _tenants(ir)
    if (
        not any(tenants.values())
        or len(ir) > TUNING.scratch_instructions
        or max(map(len, tenants.values())) > TUNING.scratch_contents
    ):
        return ir
    over = _over(ir)
    moved = ir.copy()
    for rank_tenants in tenants.values():
        occupied: list[tuple[int, int, int]] = []  # first offset, one past the last, users as bits
        for tenant in checking_deadline(sorted(rank_tenants, key=_first_use)):
            surely = reduce(and_, (over[user] for user in tenant.users))
            at = _lowest_gap(((low, high) for low, high, bits in occupied if bits & ~surely), tenant.size)
            occupied.append((at, at + tenant.size, sum(1 << user for user in tenant.users)))
            _move(ir, moved, tenant, at)
    return moved


def limit_scratch(ir: Instructions, most: int) -> Instructions:
    """Assign scratch contents to cells so that no rank has more than `most` cells, if any of some assignments does.

    Unlike those of `reuse_scratch`, instructions may have to wait for earlier users of their cells. So these are as
    long over as possible: a content takes only cells whose last user is so many instructions before its own first user.
    """
    tenants = {rank: sorted(rank_tenants, key=_first_use) for rank, rank_tenants in _tenants(ir).items()}
    moved = ir
    for share in _SHARES_WAITED:
        moved, largest = ir.copy(), 0
        for rank_tenants in checking_deadline(tenants.values()):
            occupied: list[tuple[int, int, int]] = []  # first offset, one past the last, last user
            for tenant in rank_tenants:
                over_before = tenant.users[0] - share * len(ir)
                occupied = [entry for entry in occupied if entry[2] >= over_before]
                at = _lowest_gap((entry[:2] for entry in occupied), tenant.size)
                occupied.append((at, at + tenant.size, tenant.users[-1]))
                largest = max(largest, at + tenant.size)
                _move(ir, moved, tenant, at)
        if largest <= most:
            break
    return moved


def _first_use(tenant: _Tenant) -> tuple[int, int]:
    """Return the key by which tenants are placed: the first user, then the first cell."""
    return tenant.users[0], tenant.first


def _lowest_gap(occupied: Iterable[tuple[int, int]], size: int) -> int:
    """Return the lowest offset at which `size` cells overlap none of some (first offset, offset after the last)."""
    at = 0
    for low, high in sorted(occupied):
        if at + size <= low:
            break
        at = max(at, high)
    return at


def _move(ir: Instructions, moved: Instructions, tenant: _Tenant, at: int) -> None:
    """Let the users of a tenant of `ir` access it from scratch cell `at` on, in the copy `moved`."""
    shift = SCRATCH + at - tenant.first
    span = range(tenant.first, tenant.first + tenant.size)
    for user in tenant.users:
        if ir.src[user] in span:
            moved.src[user] = ir.src[user] + shift
        if ir.dst[user] in span:
            moved.dst[user] = ir.dst[user] + shift


def _tenants(ir: Instructions) -> dict[int, list[_Tenant]]:
    """Return the tenants of each rank's scratch, by rank, in the order of their cells; users ascend.

    Ranks without scratch are missing.
    """
    spans: dict[int, dict[tuple[int, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for n, rank in enumerate(ir.rank):
        for first in {*ir.reads(n), ir.writes(n)}:
            if first >= SCRATCH:
                spans[rank][first, first + ir.count[n]].append(n)
    tenants_of_rank: dict[int, list[_Tenant]] = {}
    for rank, rank_spans in spans.items():
        runs: list[_Tenant] = []
        for (low, high), users in sorted(rank_spans.items()):
            if not runs or low >= runs[-1].first + runs[-1].size:
                runs.append(_Tenant(low))
            runs[-1].size = max(runs[-1].size, high - runs[-1].first)
            runs[-1].users += users
        for run in runs:
            run.users = sorted(set(run.users))
        tenants_of_rank[rank] = runs
    return tenants_of_rank


def _over(ir: Instructions) -> list[int]:
    """Return for every instruction the instructions that are over whenever it begins: bit n for instruction n."""
    begun, ended = [0] * len(ir), [0] * len(ir)
    for n, earlier in checking_deadline(enumerate(predecessors(ir)), every=256):
        source = ir.source[n]
        for instruction in earlier:
            begun[n] |= ended[instruction]
        if ir.header.translations:
            source = NONE  # What the sender knows holds for an image of these instructions.
        if source != NONE:  # A message of many chunks begins to arrive while it is still being sent.
            begun[n] |= ended[source] if ir.count[n] == 1 else begun[source]
        ended[n] = begun[n] | (ended[source] if source != NONE else 0) | 1 << n
    return begun
