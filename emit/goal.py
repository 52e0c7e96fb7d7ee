"""What a program starts from and what it must leave behind, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from emit.program import BUFFERS, Program
from synth.model.registry import EVERY, OWN, PAIR, ROOT, SHARE, Kind, find_kind
from topologies.errors import InputError

Column = NDArray[np.int64]
Rows = tuple[ArrayLike, Sequence[str], ArrayLike, ArrayLike, ArrayLike]  # columns rank, buffer, index, source, chunk
MAX_CELLS = 1 << 20  # cells in all buffers of all ranks: keeps a check of hostile input under 1 GiB


@dataclass(frozen=True, eq=False)
class Sets:
    """Sets of contributions: set x is rows start[x]..start[x+1]−1 of the columns source, chunk."""

    start: Column
    source: Column
    chunk: Column

    def and_singles(self, source: Column, chunk: Column) -> Sets:
        """These sets, then one set for each row of (source, chunk)."""
        start = np.concatenate([self.start, int(self.start[-1]) + 1 + np.arange(len(source), dtype=np.int64)])
        return Sets(start, np.concatenate([self.source, source]), np.concatenate([self.chunk, chunk]))

    def refined(self, finer: int) -> Sets:
        """These sets where every chunk is so many: set x becomes sets x · finer + k, for the k-th of each chunk."""
        length = np.repeat(np.diff(self.start), finer)
        start = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(length)])
        rows = np.arange(start[-1]) + np.repeat(np.repeat(self.start[:-1], finer) - start[:-1], length)
        part = np.repeat(np.arange(len(length)) % finer, length)
        return Sets(start, self.source[rows], self.chunk[rows] * finer + part)


@dataclass(frozen=True, eq=False)
class Goal:
    """Initial contents and required contents; a contribution is a pair (source rank, chunk).

    initial: columns rank, buffer (0 i, 1 o, 2 s), index, source, chunk: the cell holds that one contribution.
    required: columns rank, buffer, index, set: at the end the cell holds `sets[set]`, each contribution once.
    sets: the sets named there, as columns.
    o_in_i: for each rank where o[0] lies in i, in chunks (may be negative), or None where they are apart.
    """

    nranks: int
    initial: tuple[Column, Column, Column, Column, Column]
    required: tuple[Column, Column, Column, Column]
    sets: Sets
    o_in_i: tuple[int | None, ...]

    @classmethod
    def from_arrays(cls, nranks: int, initial: Rows, required: Rows) -> Goal:
        """A goal from rows (rank, buffer "i" "o" "s", index, source, chunk), columns of equal length.

        A required cell has as many rows as contributions; no cell is named twice in `initial`.
        Raises InputError for columns of unequal length, unknown buffers, negative numbers, ranks out of
        0..nranks−1, a cell filled twice, or a contribution required twice in one cell.
        """
        first = _columns("initial", nranks, initial)
        last = _columns("required", nranks, required)
        cells = np.stack(first[:3], axis=1)
        if len(np.unique(cells, axis=0)) != len(cells):
            raise InputError("goal initial: a cell is filled twice; it must be one contribution a cell")
        rows = np.unique(np.stack(last, axis=1), axis=0)
        if len(rows) != len(last[0]):
            raise InputError("goal required: a contribution is asked for twice in one cell; it must be once")
        new = np.ones(len(rows), dtype=bool)
        new[1:] = np.any(rows[1:, :3] != rows[:-1, :3], axis=1)
        start = np.append(np.flatnonzero(new), len(rows))
        heads = rows[new]
        sets = Sets(start, rows[:, 3], rows[:, 4])
        wanted = (heads[:, 0], heads[:, 1], heads[:, 2], np.arange(len(heads), dtype=np.int64))
        return cls(nranks, first, wanted, sets, (None,) * nranks)

    def refined(self, finer: int) -> Goal:
        """The same where every chunk is so many, side by side: chunk c becomes chunks c · finer + k."""
        rank, buffer, index, source, chunk = (np.repeat(column, finer) for column in self.initial)
        part = np.tile(np.arange(finer), len(self.initial[0]))
        initial = (rank, buffer, index * finer + part, source, chunk * finer + part)
        rank, buffer, index, which = (np.repeat(column, finer) for column in self.required)
        part = np.tile(np.arange(finer), len(self.required[0]))
        required = (rank, buffer, index * finer + part, which * finer + part)
        shifts = tuple(shift if shift is None else shift * finer for shift in self.o_in_i)
        return Goal(self.nranks, initial, required, self.sets.refined(finer), shifts)

    def keeping_input(self) -> Goal:
        """The same, and every rank's input ends as it began where o is apart from it: a send buffer is const."""
        apart = np.array([shift is None for shift in self.o_in_i], dtype=bool)
        ranks, buffers, index, source, chunk = self.initial
        asked = set(zip(*(column.tolist() for column in self.required[:3]), strict=True))
        free = [(r, 0, x) not in asked for r, x in zip(ranks.tolist(), index.tolist(), strict=True)]
        rows = np.flatnonzero((buffers == 0) & apart[ranks] & np.array(free, dtype=bool))
        number = len(self.sets.start) - 1 + np.arange(len(rows), dtype=np.int64)
        rank, buffer, place, which = np.concatenate(
            [np.stack(self.required), np.stack([ranks[rows], buffers[rows], index[rows], number])], axis=1
        )
        required = (rank, buffer, place, which)
        return replace(self, required=required, sets=self.sets.and_singles(source[rows], chunk[rows]))


def _columns(what: str, nranks: int, rows: Rows) -> tuple[Column, Column, Column, Column, Column]:
    try:
        codes = [BUFFERS.index(name) for name in rows[1]]
    except ValueError:
        raise InputError(f"goal {what}: unknown buffer; it must be one of i, o, s") from None
    out = tuple(np.asarray(c, dtype=np.int64).reshape(-1) for c in (rows[0], codes, *rows[2:]))
    if len({len(c) for c in out}) != 1:
        raise InputError(f"goal {what}: columns of unequal length; it must be equal")
    if any(len(c) and int(c.min()) < 0 for c in out):
        raise InputError(f"goal {what}: a negative rank, index or chunk; it must be 0 or more")
    if len(out[0]) and max(int(out[0].max()), int(out[3].max())) >= nranks:
        raise InputError(f"goal {what}: a rank beyond {nranks - 1}; it must be in 0..{nranks - 1}")
    return out[0], out[1], out[2], out[3], out[4]


def sizes_of(program: Program, rank: int) -> tuple[int, int]:
    """(i, o) in chunks that the program's collective gives `rank` out of place. Raises as `buffer_sizes`."""
    return buffer_sizes(program.collective, program.nranks, program.nchunks_per_loop, rank, program.root)


def goals_of(program: Program) -> list[tuple[bool, Goal | None]]:
    """(in place or not, goal) of each kind of call that the program serves; None where its name says too little."""
    p = program
    calls = [True] * p.inplace + [False] * p.outofplace
    return [(call, goal_for(p.collective, p.nranks, p.nchunks_per_loop, call, p.root)) for call in calls]


def buffer_sizes(collective: str, nranks: int, nchunks: int, rank: int, root: int) -> tuple[int, int]:
    """(i, o) in chunks that `rank` has out of place. Raises InputError where nchunks does not divide."""
    kind = find_kind(collective)
    if kind.blocks_a_rank and nchunks % nranks:
        raise InputError(
            f"{collective} with nchunksperloop {nchunks} on {nranks} ranks: it must be a multiple of {nranks}"
        )
    block = nchunks // nranks if kind.blocks_a_rank else nchunks
    blocks = (_blocks(kind, where, nranks, rank == root) for where in (kind.before, kind.after))
    inputs, outputs = (block * count for count in blocks)
    return inputs, outputs


def most_chunks(collective: str, nranks: int) -> int:
    """How many chunks a loop of a program has at most for its goal to hold them."""
    if not find_kind(collective).unit:
        return MAX_CELLS
    # all are proportional to each other: of nranks chunks whatever divides is whole
    each = sum(sum(buffer_sizes(collective, nranks, nranks, rank, 0)) for rank in range(nranks))
    return MAX_CELLS * nranks // each


def _blocks(kind: Kind, where: str, nranks: int, is_root: bool) -> int:
    """Blocks in a rank's buffer. Where a block is the whole buffer, readers give both buffers to every rank."""
    if kind.unit == PAIR or (kind.unit == SHARE and where == EVERY):
        return nranks
    if kind.unit == SHARE and where == ROOT:
        return nranks if is_root else 0
    return 1


def _o_in_i(kind: Kind, nchunks: int, nranks: int, rank: int, root: int) -> int | None:
    """Where o[0] lies in i in place: the smaller of the two is the rank's block (the root's) of the larger."""
    inputs, outputs = buffer_sizes(kind.name, nranks, nchunks, rank, root)
    if not inputs or not outputs:
        return None
    first = (root if kind.rooted else rank) * min(inputs, outputs)
    return 0 if inputs == outputs else first if inputs > outputs else -first


def goal_for(collective: str, nranks: int, nchunks_per_loop: int, inplace: bool, root: int = 0) -> Goal | None:
    """The goal of a named collective; None for custom, send, recv, alltoallv, whose name says too little.

    A chunk is named by its index in the source's input buffer. Out of place, the input must also stay as it
    was: the caller's send buffer is const.
    Raises InputError where nchunks_per_loop cannot be cut into nranks blocks, or the goal is too large.
    """
    kind, n, k = find_kind(collective), nranks, nchunks_per_loop
    if not kind.unit:
        return None
    sizes = [buffer_sizes(collective, n, k, rank, root) for rank in range(n)]
    if sum(i + o for i, o in sizes) > MAX_CELLS:
        raise InputError(f"{collective} of {k} chunks on {n} ranks: it must be at most {MAX_CELLS} cells in all")
    holders = [root] if kind.before == ROOT else range(n)
    ranks = np.concatenate([np.full(sizes[rank][0], rank, dtype=np.int64) for rank in holders])
    chunks = np.concatenate([np.arange(sizes[rank][0], dtype=np.int64) for rank in holders])
    zeros = np.zeros(len(ranks), dtype=np.int64)
    if kind.reduces:
        sets = Sets(np.arange(k + 1) * n, np.tile(np.arange(n), k), np.repeat(np.arange(k), n))
    else:
        sets = Sets(np.arange(len(ranks) + 1), ranks, chunks)
    goals = [root] if kind.after == ROOT else range(n)
    rows = [_required(kind, n, rank, sizes[rank][1], inplace) for rank in goals]
    if not inplace:
        kept = len(sets.start) - 1
        sets = sets.and_singles(ranks, chunks)
        rows.append(np.stack([ranks, zeros, chunks, kept + np.arange(len(ranks))]))
    table = np.concatenate(rows, axis=1)
    return Goal(
        n,
        (ranks, zeros, chunks, ranks, chunks),
        (table[0], table[1], table[2], table[3]),
        sets,
        tuple(_o_in_i(kind, k, n, rank, root) if inplace else None for rank in range(n)),
    )


def _required(kind: Kind, n: int, rank: int, count: int, inplace: bool) -> Column:
    """Rows (rank, buffer, index, set), as one 4 × cells array, of the `count` cells that `rank` must receive.

    Sets are numbered by chunk where ranks are summed, else by the source's place in `initial`.
    """
    index = np.arange(count)
    wanted = index + rank * count if kind.after == OWN else index
    if kind.unit == PAIR:  # block `rank` of every source, whose chunks stand together in `initial`
        block = count // n
        wanted = index // block * count + rank * block + index % block
    # a sum that is made in place stands where its first summand did
    in_input = inplace and kind.reduces
    head = np.array([[rank], [0 if in_input else 1]], dtype=np.int64) * np.ones(count, dtype=np.int64)
    return np.concatenate([head, np.stack([wanted if in_input else index, wanted])])
