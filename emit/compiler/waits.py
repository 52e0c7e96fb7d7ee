"""What every instruction of a layout must wait for in other threadblocks, and what of that the rest implies.

Vector clocks: entry b of an instruction's row is how many instructions of block b are over when it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from emit.compiler.ir import NONE, Instructions
from emit.compiler.tuning import TUNING

Clock = NDArray[np.int32]


def waits_of(
    ir: Instructions, blocks: list[int], block_of: list[int], after: list[list[int]], few_nops: bool
) -> list[list[int]]:
    """For every instruction those others that it must name: in another block, and not implied by the rest.

    Args:
        blocks: how many each rank has. block_of: of every instruction, the number of its block there.
        after: what `predecessors` says. few_nops: see `Layout`.
    """
    everywhere = len(ir) * sum(blocks) <= TUNING.clock_entries
    if everywhere or few_nops:
        if len(ir) * (sum(blocks) if everywhere else max(blocks, default=0)) > TUNING.most_clock_entries:
            return _last_of_each_block(block_of, after)
        return _by_all_clocks(ir, blocks, block_of, after, few_nops, everywhere)
    return _by_clocks_of_ranks(ir, blocks, block_of, after)


def _by_clocks_of_ranks(
    ir: Instructions, blocks: list[int], block_of: list[int], after: list[list[int]]
) -> list[list[int]]:
    """Without what messages imply: a row is kept of what others wait for, and the latest of each block."""
    others_of = [
        [other for other in others if block_of[other] != block] if others else others
        for others, block in zip(after, block_of, strict=True)
    ]
    kept: list[Clock | None] = [None] * len(ir)
    awaited = bytearray(len(ir))
    for others in others_of:
        for other in others:
            awaited[other] = 1
    if sum(awaited) * max(blocks, default=0) > TUNING.most_clock_entries:
        return _last_of_each_block(block_of, after)
    latest: list[list[Clock | None]] = [[None] * many for many in blocks]
    passed = [[0] * many for many in blocks]
    index, passed_in_all = [0] * len(ir), [0] * len(ir)
    waits: list[list[int]] = [[] for _ in range(len(ir))]
    for n, (rank, block, others) in enumerate(zip(ir.rank, block_of, others_of, strict=True)):
        passed[rank][block] += 1
        index[n] = passed[rank][block]
        if not others and not awaited[n]:
            continue
        row = latest[rank][block]
        if row is None:
            row = latest[rank][block] = np.zeros(blocks[rank], dtype=np.int32)
        if len(others) > 1:
            for other in others:
                if not passed_in_all[other]:
                    passed_in_all[other] = int(_known(kept, other).sum())
            others.sort(key=lambda o: (-passed_in_all[o], o))
        for other in others:
            if row[block_of[other]] < index[other]:
                waits[n].append(other)
                np.maximum(row, _known(kept, other), out=row)
        waits[n].sort()
        if awaited[n]:
            row[block] = index[n]
            kept[n] = row.copy()
    return waits


def _known(kept: list[Clock | None], n: int) -> Clock:
    row = kept[n]
    assert row is not None  # it is awaited, and stands before whoever waits for it
    return row


def _by_all_clocks(
    ir: Instructions,
    blocks: list[int],
    block_of: list[int],
    after: list[list[int]],
    few_nops: bool,
    everywhere: bool,
) -> list[list[int]]:
    """With a row for each instruction; everywhere: of the blocks of all ranks, so with what messages imply."""
    first = np.concatenate([[0], np.cumsum(blocks)]).tolist()
    width = first[-1] if everywhere else max(blocks, default=0)
    known: Clock = np.zeros((len(ir), width), dtype=np.int32)
    # a message of many chunks begins to arrive while it is still being sent: what was over when that began
    overlap = everywhere and any(count > 1 and s != NONE for count, s in zip(ir.count, ir.source, strict=True))
    begun: Clock = np.zeros((len(ir), width) if overlap else (0, 0), dtype=np.int32)
    latest: dict[tuple[int, int], int] = {}
    index = [0] * len(ir)
    waits: list[list[int]] = [[] for _ in range(len(ir))]
    waited_by: list[list[int]] = [[] for _ in range(len(ir))]
    for n, rank in enumerate(ir.rank):
        block = block_of[n]
        row = known[n]
        base = first[rank] if everywhere else 0
        before = latest.get((rank, block), NONE)
        if before != NONE:
            np.copyto(row, known[before])
        source = ir.source[n] if everywhere else NONE
        if source != NONE:
            np.maximum(row, (known if ir.count[n] == 1 else begun)[source], out=row)
        others = [o for o in after[n] if block_of[o] != block]
        if len(others) > 1:
            others.sort(key=lambda o: (-int(known[o].sum()), o))
        if few_nops and len(others) > 1:
            entry = {o: (base + block_of[o], index[o]) for o in others}
            waiting = [x for o in others for x in waited_by[o] if block_of[x] != block]
            others = _joint_waits(entry, waiting, known, row) + others
        for other in others:
            if row[base + block_of[other]] < index[other]:
                waits[n].append(other)
                waited_by[other].append(n)
                np.maximum(row, known[other], out=row)
        if overlap:
            begun[n] = row
        if source != NONE and ir.count[n] > 1:
            np.maximum(row, known[source], out=row)
        index[n] = 1 if before == NONE else index[before] + 1
        row[base + block] = index[n]
        latest[rank, block] = n
        waits[n].sort()
    return waits


def _joint_waits(entry: dict[int, tuple[int, int]], waiting: list[int], known: Clock, row: Clock) -> list[int]:
    """Of those `waiting` for some of the instructions in `entry`, the fewest that know of two or more each.

    entry: of each instruction where a row of `known` has its block, and what stands there once it is over.
    """
    found: list[int] = []
    row = row.copy()
    while True:
        needed = [(at, index) for at, index in entry.values() if row[at] < index]
        knows = {x: sum(bool(known[x][at] >= index) for at, index in needed) for x in waiting}
        best = max(knows, key=lambda x: (knows[x], -x), default=NONE)
        if knows.get(best, 0) < 2:
            return found
        found.append(best)
        np.maximum(row, known[best], out=row)


def _last_of_each_block(block_of: list[int], after: list[list[int]]) -> list[list[int]]:
    """For every instruction the last of each other block of its rank that it must come after."""
    waits = []
    for mine, others in zip(block_of, after, strict=True):
        last = {block_of[other]: other for other in sorted(others)}
        waits.append(sorted(other for block, other in last.items() if block != mine))
    return waits
