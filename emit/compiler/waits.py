"""Find which instructions of other threadblocks each instruction must wait for, without waits that others imply.

The method is vector clocks: entry b of an instruction's row is the number of instructions of threadblock b that are
over when the instruction is over.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from emit.compiler.ir import NONE, Instructions
from emit.compiler.tuning import TUNING
from synth.model.deadline import checking_deadline

Clock = NDArray[np.int32]


def waits_of(
    ir: Instructions, blocks: list[int], block_of: list[int], after: list[list[int]], few_nops: bool
) -> list[list[int]]:
    """Return for every instruction the instructions of other threadblocks that it must name, without implied ones.

    Args:
        ir: Instructions.
        blocks: Number of threadblocks of each rank.
        block_of: Threadblock of every instruction, as a number from 0 in its rank.
        after: Earlier instructions that each must follow, as in `predecessors`.
        few_nops: As in `BlockLayout`.

    Returns:
        Numbers of instructions of the same rank, ascending, for every instruction; `after` is not changed.
    """
    # What a message implies about its sender's threadblocks holds for an image of them only.
    everywhere = len(ir) * sum(blocks) <= TUNING.clock_entries and not ir.header.translations
    if everywhere or few_nops:
        if len(ir) * (sum(blocks) if everywhere else max(blocks, default=0)) > TUNING.most_clock_entries:
            return _last_of_each_block(block_of, after)
        return _by_all_clocks(ir, blocks, block_of, after, few_nops, everywhere)
    return _by_clocks_of_ranks(ir, blocks, block_of, after)


def _by_clocks_of_ranks(
    ir: Instructions, blocks: list[int], block_of: list[int], after: list[list[int]]
) -> list[list[int]]:
    """Return the waits, without using what messages imply; arguments and result as those of `waits_of`.

    Rows exist only for instructions that another one waits for, and for the latest instruction of each threadblock. If
    they would take too much memory, the result is that of `_last_of_each_block`.
    """
    earlier_in_other_blocks = [
        [predecessor for predecessor in earlier if block_of[predecessor] != block] if earlier else earlier
        for earlier, block in zip(after, block_of, strict=True)
    ]
    row_after: list[Clock | None] = [None] * len(ir)
    is_awaited = bytearray(len(ir))
    for earlier in earlier_in_other_blocks:
        for predecessor in earlier:
            is_awaited[predecessor] = 1
    if sum(is_awaited) * max(blocks, default=0) > TUNING.most_clock_entries:
        return _last_of_each_block(block_of, after)
    latest: list[list[Clock | None]] = [[None] * nblocks for nblocks in blocks]
    passed = [[0] * nblocks for nblocks in blocks]
    index, passed_in_all = [0] * len(ir), [0] * len(ir)
    waits: list[list[int]] = [[] for _ in range(len(ir))]
    instructions = enumerate(zip(ir.rank, block_of, earlier_in_other_blocks, strict=True))
    for n, (rank, block, earlier) in checking_deadline(instructions, every=256):
        passed[rank][block] += 1
        index[n] = passed[rank][block]
        if not earlier and not is_awaited[n]:
            continue
        row = latest[rank][block]
        if row is None:
            row = latest[rank][block] = np.zeros(blocks[rank], dtype=np.int32)
        if len(earlier) > 1:
            for predecessor in earlier:
                if not passed_in_all[predecessor]:
                    passed_in_all[predecessor] = int(_known(row_after, predecessor).sum())
            earlier.sort(key=lambda o: (-passed_in_all[o], o))
        for predecessor in earlier:
            if row[block_of[predecessor]] < index[predecessor]:
                waits[n].append(predecessor)
                np.maximum(row, _known(row_after, predecessor), out=row)
        waits[n].sort()
        if is_awaited[n]:
            row[block] = index[n]
            row_after[n] = row.copy()
    return waits


def _known(row_after: list[Clock | None], n: int) -> Clock:
    """Return the clock row of an awaited instruction."""
    row = row_after[n]
    assert row is not None  # It is awaited, so it has a row before an instruction waits for it.
    return row


def _by_all_clocks(
    ir: Instructions,
    blocks: list[int],
    block_of: list[int],
    after: list[list[int]],
    few_nops: bool,
    everywhere: bool,
) -> list[list[int]]:
    """Return for every instruction the instructions that it must wait for, with a clock row for each instruction.

    They are those of `after` in other threadblocks that nothing else implies. With `few_nops` an instruction may also
    wait for one that is not in `after`, if that implies the end of two or more that are. The caller checks that the
    rows fit into memory.

    Args:
        ir: Instructions.
        blocks: Number of threadblocks of each rank.
        block_of: Threadblock of every instruction, as a number from 0 in its rank.
        after: Earlier instructions of the same rank that each must follow; not changed.
        few_nops: As in `BlockLayout`.
        everywhere: Whether rows cover the threadblocks of all ranks, and so use what messages imply; else those of the
            instruction's own rank.

    Returns:
        Numbers of instructions of the same rank, ascending, for every instruction.
    """
    first = np.concatenate([[0], np.cumsum(blocks)]).tolist()
    width = first[-1] if everywhere else max(blocks, default=0)
    clock: Clock = np.zeros((len(ir), width), dtype=np.int32)
    # A message of many chunks begins to arrive while it is still being sent: `begun` has what was over at its begin.
    overlap = everywhere and any(count > 1 and s != NONE for count, s in zip(ir.count, ir.source, strict=True))
    begun: Clock = np.zeros((len(ir), width) if overlap else (0, 0), dtype=np.int32)
    latest: dict[tuple[int, int], int] = {}
    index, passed_in_all = [0] * len(ir), [0] * len(ir)
    waits: list[list[int]] = [[] for _ in range(len(ir))]
    waited_by: list[list[int]] = [[] for _ in range(len(ir))]
    for n, rank in checking_deadline(enumerate(ir.rank), every=256):
        block = block_of[n]
        row = clock[n]
        base = first[rank] if everywhere else 0
        before = latest.get((rank, block), NONE)
        if before != NONE:
            np.copyto(row, clock[before])
        source = ir.source[n] if everywhere else NONE
        if source != NONE:
            np.maximum(row, (clock if ir.count[n] == 1 else begun)[source], out=row)
        earlier = [o for o in after[n] if block_of[o] != block] if after[n] else []
        if len(earlier) > 1:
            for predecessor in earlier:
                if not passed_in_all[predecessor]:
                    passed_in_all[predecessor] = int(clock[predecessor].sum())
            earlier.sort(key=lambda o: (-passed_in_all[o], o))
        if few_nops and len(earlier) > 1:
            entry = {o: (base + block_of[o], index[o]) for o in earlier}
            waiting = [x for o in earlier for x in waited_by[o] if block_of[x] != block]
            earlier = _joint_waits(entry, waiting, clock, row) + earlier
        for predecessor in earlier:
            if row[base + block_of[predecessor]] < index[predecessor]:
                waits[n].append(predecessor)
                waited_by[predecessor].append(n)
                np.maximum(row, clock[predecessor], out=row)
        if overlap:
            begun[n] = row
        if source != NONE and ir.count[n] > 1:
            np.maximum(row, clock[source], out=row)
        index[n] = 1 if before == NONE else index[before] + 1
        row[base + block] = index[n]
        latest[rank, block] = n
        waits[n].sort()
    return waits


def _joint_waits(entry: dict[int, tuple[int, int]], waiting: list[int], clock: Clock, row: Clock) -> list[int]:
    """Choose greedily waiting instructions that each imply the end of two or more of the awaited instructions.

    They are returned in the order of choice, those that imply most first, of equals the smallest number; maybe none.

    Args:
        entry: For each awaited instruction (column of its threadblock in `clock`, entry there once it is over).
        waiting: Instructions that wait for some of the awaited instructions.
        clock: Clock row of each instruction.
        row: Clock row of the instruction whose waits are chosen; it is not changed.
    """
    joint: list[int] = []
    row = row.copy()
    while True:
        missing = [(at, index) for at, index in entry.values() if row[at] < index]
        implied = {x: sum(bool(clock[x][at] >= index) for at, index in missing) for x in waiting}
        best = max(implied, key=lambda x: (implied[x], -x), default=NONE)
        if implied.get(best, 0) < 2:
            return joint
        joint.append(best)
        np.maximum(row, clock[best], out=row)


def _last_of_each_block(block_of: list[int], after: list[list[int]]) -> list[list[int]]:
    """Return for every instruction the last instruction of each other threadblock that it must follow, ascending."""
    waits = []
    for own_block, earlier in zip(block_of, after, strict=True):
        last = {block_of[instruction]: instruction for instruction in sorted(earlier)}
        waits.append(sorted(instruction for block, instruction in last.items() if block != own_block))
    return waits
