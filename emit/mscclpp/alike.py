"""Cells that a plan treats like the cell before them, so that a check of the first of them is a check of all.

A chunk that a plan always moves as a whole has as many cells as the plan cuts it into, each with the same accesses in
the same order. Two adjacent cells are alike if every move has both or neither, next to each other; if what they hold at
first, and must hold at the end, differs only by the next chunk; and if the cells that moves bring them to or from are
alike too. In a plan with translations, their chunks must also stay next to each other in all images.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from emit.check.acts import Act, ActRun, Move
from emit.goal import Goal, Sets
from emit.mscclpp.memory import Memory, input_block
from synth.model.collective import Bools, Ints
from synth.model.deadline import checking_deadline

_BUFFERS = ("i", "o", "s")
_MOST_PASSES = 64  # over all moves; a plan that needs more is made to need very many


def first_of_alike(memory: Memory, goal: Goal, launches: Sequence[Sequence[Sequence[Act]]]) -> Bools | None:
    """Return which cells are the first of cells that are treated equally; None if each cell is to be looked at.

    The mask is bool, of shape (cells + 1,), because its last entry stands for the end. The result is None if a chunk
    has more than one cell, packets are also moved as other data, or too many passes over the moves would be needed.

    Args:
        memory: Memory of the plan.
        goal: What cells hold at first and must hold at the end.
        launches: For each kind of launch whose cells differ, the acts of each threadblock.
    """
    if memory.units > 1:
        return None
    moves = [move for launch in launches for acts in launch for act in acts for move in act.moves]
    ncells = memory.first[-1]
    if _has_packets_as_data(moves, ncells):
        return None
    begins = np.zeros(ncells + 1, dtype=bool)
    for rank in memory.owners:
        begins[[*memory.base[rank].values(), memory.base[rank]["s"] + memory.half(rank)]] = True
    begins[memory.first] = True
    _begin_by_goal(begins, memory, goal)
    runs_of_move = [(move.length, (*move.sources, *move.targets)) for move in moves if move.length]
    begins[[run.cell for _, runs in runs_of_move for run in runs]] = True
    begins[[run.cell + _width(run) * length for length, runs in runs_of_move for run in runs]] = True
    before = -1
    for _ in range(_MOST_PASSES):
        if before == (before := int(begins.sum())):
            return begins
        for length, runs in checking_deadline(runs_of_move, every=256):
            if length > 1:
                places = [first_cells_of(run, length) for run in runs]
                is_begin = np.logical_or.reduce([begins[cells] for cells in places])
                for cells in places:
                    begins[cells] = is_begin
    return None


def first_cells_of(run: ActRun, length: int) -> slice:
    """Return the first cell of each of the `length` elements of a run, as a slice of all cells."""
    return slice(run.cell, run.cell + _width(run) * length, _width(run))


def _width(run: ActRun) -> int:
    """Return the number of cells of an element of a run: 2 for packets, else 1."""
    return 2 if run.packet else 1


def _has_packets_as_data(moves: Sequence[Move], ncells: int) -> bool:
    """Return True if cells of packets are also moved as plain data, or as parts of packets that begin elsewhere."""
    if not any(run.packet for move in moves for run in (*move.sources, *move.targets)):
        return False
    kinds = np.zeros((3, ncells), dtype=bool)  # first cells of packets, second ones, and plain data
    for move in moves:
        for run in (*move.sources, *move.targets):
            cells = first_cells_of(run, move.length)
            kinds[0 if run.packet else 2, cells] = True
            if run.packet:
                kinds[1, run.cell + 1 : run.cell + 2 * move.length : 2] = True
    return bool((kinds.sum(axis=0) > 1).any())


def _begin_by_goal(begins: Bools, memory: Memory, goal: Goal) -> None:
    """Set `begins` for the cells whose contents at first or at the end are not the next chunk after the cell before."""
    base = np.array([[memory.base[rank][buffer] for buffer in _BUFFERS] for rank in range(goal.nranks)])
    block = input_block(memory.plan) or np.iinfo(np.int64).max  # Images move the chunks of a block together.
    rank, buffer, index, source, chunk = goal.initial
    holds = np.full((2, len(begins)), -1, dtype=np.int64)  # source and chunk
    holds[:, base[rank, buffer] + index] = source, chunk
    is_next_chunk = (holds[1, 1:] == holds[1, :-1] + 1) & (holds[1, 1:] % block != 0)
    is_next = (holds[0, 1:] == holds[0, :-1]) & ((holds[0, 1:] < 0) | is_next_chunk)
    begins[1:] |= ~is_next
    rank, buffer, index, set_of_cell = goal.required
    set_of = np.full(len(begins), -1, dtype=np.int64)
    set_of[base[rank, buffer] + index] = set_of_cell
    follows = np.append(_next_follows(goal.sets, block), False)
    is_next = np.where(set_of[1:] < 0, set_of[:-1] < 0, follows[set_of[:-1]] & (set_of[1:] == set_of[:-1] + 1))
    begins[1:] |= ~is_next


def _next_follows(sets: Sets, block: int) -> Bools:
    """Return for each set but the last whether the next one has the next chunk of each of its sources, in order.

    The two chunks must be in one block of `block` chunks. The result is bool, shape (sets − 1,).
    """
    sizes = np.diff(sets.start)
    same_size = sizes[1:] == sizes[:-1]
    rows = np.arange(sets.start[1], sets.start[-1]) if len(sizes) > 1 else np.zeros(0, dtype=np.int64)
    set_of_row = np.repeat(np.arange(1, len(sizes)), sizes[1:])
    earlier: Ints = np.maximum(rows - sizes[set_of_row - 1], 0)
    next_chunk = sets.chunk[earlier] + 1
    differs = (sets.source[rows] != sets.source[earlier]) | (sets.chunk[rows] != next_chunk) | (next_chunk % block == 0)
    follows: Bools = same_size & ~np.isin(np.arange(1, len(sizes)), set_of_row[differs])
    return follows
