"""The contents that a program starts from and must leave behind, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from emit.images import images_of
from emit.program import BUFFERS, Program
from synth.model.registry import EVERY, OWN, PAIR, ROOT, SHARE, CollectiveKind, find_kind
from topologies.errors import InputError

Column = NDArray[np.int64]
Rows = tuple[ArrayLike, Sequence[str], ArrayLike, ArrayLike, ArrayLike]  # columns rank, buffer, index, source, chunk
_KEPT_CELLS = 1 << 14  # cells of a goal that is kept: every pass of a compilation and every check asks for it
MAX_CELLS = 1 << 20  # cells in all buffers of all ranks, which keeps a check of hostile input under 1 GiB


@dataclass(frozen=True, eq=False)
class Sets:
    """Sets of contributions: set x is rows start[x]..start[x+1]-1 of the columns source and chunk.

    Attributes:
        start: First row of each set; one more entry at the end holds the number of rows.
        source: Per row, the source rank of the contribution.
        chunk: Per row, its chunk.
    """

    start: Column
    source: Column
    chunk: Column

    def and_singles(self, source: Column, chunk: Column) -> Sets:
        """Return these sets, followed by a set of one contribution for each row of (source, chunk)."""
        start = np.concatenate([self.start, int(self.start[-1]) + 1 + np.arange(len(source), dtype=np.int64)])
        return Sets(start, np.concatenate([self.source, source]), np.concatenate([self.chunk, chunk]))

    def refined(self, finer: int) -> Sets:
        """Return the sets after each chunk is cut into `finer` parts.

        Set x becomes sets x · finer + k; that one holds the k-th parts of the chunks of set x.
        """
        length = np.repeat(np.diff(self.start), finer)
        start = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(length)])
        rows = np.arange(start[-1]) + np.repeat(np.repeat(self.start[:-1], finer) - start[:-1], length)
        part = np.repeat(np.arange(len(length)) % finer, length)
        return Sets(start, self.source[rows], self.chunk[rows] * finer + part)


@dataclass(frozen=True, eq=False)
class Goal:
    """The initial and the required contents of all cells; a contribution is a pair (source rank, chunk).

    Attributes:
        nranks: Number of ranks.
        initial: Columns rank, buffer code (0 i, 1 o, 2 s), index, source, chunk: the cell holds that one contribution.
        required: Columns rank, buffer code, index, set: at the end the cell holds `sets[set]`, each contribution once.
        sets: The sets that `required` numbers.
        o_in_i: Per rank, the position of o[0] in i in chunks (may be negative), or None where the buffers are apart.
    """

    nranks: int
    initial: tuple[Column, Column, Column, Column, Column]
    required: tuple[Column, Column, Column, Column]
    sets: Sets
    o_in_i: tuple[int | None, ...]

    def __repr__(self) -> str:
        """Return the numbers of ranks and of cells before and after in one line."""
        return f"<Goal of {self.nranks} ranks: {len(self.initial[0])} cells before, {len(self.required[0])} after>"

    @classmethod
    def from_arrays(cls, nranks: int, initial: Rows, required: Rows) -> Goal:
        """Build a goal from rows (rank, buffer "i" "o" "s", index, source, chunk), given as columns of equal length.

        A required cell has one row for each of its contributions; no cell is named twice in `initial`. The buffers of
        all ranks are apart (`o_in_i` is None).

        Raises:
            InputError: If columns differ in length, a buffer is unknown, a number is negative, a rank or a source is
                not in 0..nranks-1, a cell is filled twice, or a contribution is required twice in one cell.
        """
        first = _columns("initial", nranks, initial)
        last = _columns("required", nranks, required)
        cells = np.stack(first[:3], axis=1)
        if len(np.unique(cells, axis=0)) != len(cells):
            raise InputError("goal initial: a cell is filled twice; each cell must hold one contribution")
        rows = np.unique(np.stack(last, axis=1), axis=0)
        if len(rows) != len(last[0]):
            raise InputError("goal required: a contribution is required twice in one cell; it must be required once")
        is_first_of_cell = np.ones(len(rows), dtype=bool)
        is_first_of_cell[1:] = np.any(rows[1:, :3] != rows[:-1, :3], axis=1)
        start = np.append(np.flatnonzero(is_first_of_cell), len(rows))
        heads = rows[is_first_of_cell]
        sets = Sets(start, rows[:, 3], rows[:, 4])
        required_sets = (heads[:, 0], heads[:, 1], heads[:, 2], np.arange(len(heads), dtype=np.int64))
        return cls(nranks, first, required_sets, sets, (None,) * nranks)

    def refined(self, finer: int) -> Goal:
        """Return the goal after each chunk, and so each cell, is cut into `finer` neighbouring parts.

        Chunk c becomes chunks c · finer + k, and index x of a buffer becomes indices x · finer + k.
        """
        rank, buffer, index, source, chunk = (np.repeat(column, finer) for column in self.initial)
        part = np.tile(np.arange(finer), len(self.initial[0]))
        initial = (rank, buffer, index * finer + part, source, chunk * finer + part)
        rank, buffer, index, set_of_cell = (np.repeat(column, finer) for column in self.required)
        part = np.tile(np.arange(finer), len(self.required[0]))
        required = (rank, buffer, index * finer + part, set_of_cell * finer + part)
        shifts = tuple(shift if shift is None else shift * finer for shift in self.o_in_i)
        return Goal(self.nranks, initial, required, self.sets.refined(finer), shifts)

    def keeping_input(self) -> Goal:
        """Return the goal with the further requirement that inputs apart from the output stay as they are.

        A caller's send buffer is const. Input cells that the goal already requires something of get no further
        requirement.
        """
        apart = np.array([shift is None for shift in self.o_in_i], dtype=bool)
        ranks, buffers, index, source, chunk = self.initial
        required_cells = set(zip(*(column.tolist() for column in self.required[:3]), strict=True))
        is_free = [(r, 0, x) not in required_cells for r, x in zip(ranks.tolist(), index.tolist(), strict=True)]
        rows = np.flatnonzero((buffers == 0) & apart[ranks] & np.array(is_free, dtype=bool))
        number = len(self.sets.start) - 1 + np.arange(len(rows), dtype=np.int64)
        rank, buffer, place, set_of_cell = np.concatenate(
            [np.stack(self.required), np.stack([ranks[rows], buffers[rows], index[rows], number])], axis=1
        )
        required = (rank, buffer, place, set_of_cell)
        return replace(self, required=required, sets=self.sets.and_singles(source[rows], chunk[rows]))


def _columns(part: str, nranks: int, rows: Rows) -> tuple[Column, Column, Column, Column, Column]:
    """Return rows as five int64 columns: rank, buffer code (an index into BUFFERS), index, source, chunk.

    Args:
        part: Name of the rows in errors: "initial" or "required".
        nranks: Number of ranks.
        rows: The rows' columns, with buffers by name.

    Raises:
        InputError: If a buffer is unknown, columns differ in length, a number is negative, or a rank or a source is not
            in 0..nranks-1.
    """
    try:
        codes = [BUFFERS.index(name) for name in rows[1]]
    except ValueError:
        raise InputError(f"goal {part}: unknown buffer; it must be one of i, o, s") from None
    columns = tuple(np.asarray(c, dtype=np.int64).reshape(-1) for c in (rows[0], codes, *rows[2:]))
    if len({len(c) for c in columns}) != 1:
        raise InputError(f"goal {part}: columns of unequal length; the lengths must be equal")
    if any(len(c) and int(c.min()) < 0 for c in columns):
        raise InputError(f"goal {part}: a negative rank, index or chunk; it must be 0 or more")
    if len(columns[0]) and max(int(columns[0].max()), int(columns[3].max())) >= nranks:
        raise InputError(f"goal {part}: a rank beyond {nranks - 1}; it must be in 0..{nranks - 1}")
    return columns[0], columns[1], columns[2], columns[3], columns[4]


def sizes_of(program: Program, rank: int) -> tuple[int, int]:
    """Return the sizes (i, o) in chunks that the program's collective gives `rank` out of place.

    Raises:
        InputError: If the chunks per loop are not a multiple of the ranks and the collective needs that.
    """
    return buffer_sizes(program.collective, program.nranks, program.nchunks_per_loop, rank, program.root)


def goals_of(program: Program) -> list[tuple[bool, Goal | None]]:
    """Return (in place or not, goal) for each kind of call that the program serves, in place first.

    A goal is None if the collective's name implies none. If the program has translations, its goals have only the cells
    of the representatives.

    Raises:
        InputError: If the chunks per loop cannot be cut into a block for each rank where the collective needs that, or
            a goal has more than MAX_CELLS cells.
    """
    p = program
    calls = [True] * p.inplace + [False] * p.outofplace
    ranks = images_of(p.translations, p.nranks).representatives.tolist() if p.translations else None
    return [(call, goal_for(p.collective, p.nranks, p.nchunks_per_loop, call, p.root, ranks)) for call in calls]


def buffer_sizes(collective: str, nranks: int, nchunks: int, rank: int, root: int) -> tuple[int, int]:
    """Return the sizes (i, o) in chunks that `rank` has out of place.

    A rank other than the root has 0 chunks where only the root of a gather or scatter has a buffer.

    Args:
        collective: Name of the collective.
        nranks: Number of ranks.
        nchunks: Chunks in a loop, counted as `Program.nchunks_per_loop`.
        rank: Rank whose buffers are meant.
        root: Root of a rooted collective.

    Raises:
        InputError: If `nchunks` is not a multiple of `nranks` and the collective has blocks for each rank.
    """
    kind = find_kind(collective)
    if kind.blocks_a_rank and nchunks % nranks:
        raise InputError(
            f"{collective} with nchunksperloop {nchunks} on {nranks} ranks: it must be a multiple of {nranks}"
        )
    block = nchunks // nranks if kind.blocks_a_rank else nchunks
    blocks = (_blocks(kind, holder, nranks, rank == root) for holder in (kind.before, kind.after))
    inputs, outputs = (block * count for count in blocks)
    return inputs, outputs


def most_chunks(collective: str, nranks: int) -> int:
    """Return the most chunks per loop with which all ranks' buffers have at most MAX_CELLS cells in sum.

    The number need not be a multiple of `nranks`. It is MAX_CELLS for a collective whose name implies no goal.
    """
    if not find_kind(collective).unit:
        return MAX_CELLS
    # All sizes are proportional to nchunks, and nranks chunks can always be divided.
    cells = sum(sum(buffer_sizes(collective, nranks, nranks, rank, 0)) for rank in range(nranks))
    return MAX_CELLS * nranks // cells


def _blocks(kind: CollectiveKind, holder: str, nranks: int, is_root: bool) -> int:
    """Return the number of blocks in a rank's input or output buffer; 0 if only the root has that buffer.

    Where a block is the whole buffer, readers give both buffers to every rank, so that the number is 1.

    Args:
        kind: The collective.
        holder: Who has data in that buffer: EVERY, ROOT or OWN.
        nranks: Number of ranks.
        is_root: True if the rank is the root.
    """
    if kind.unit == PAIR or (kind.unit == SHARE and holder == EVERY):
        return nranks
    if kind.unit == SHARE and holder == ROOT:
        return nranks if is_root else 0
    return 1


def _o_in_i(kind: CollectiveKind, nchunks: int, nranks: int, rank: int, root: int) -> int | None:
    """Return the position of o[0] in i when in place, in chunks, or None if one of the buffers is empty.

    The smaller buffer is the rank's block (in a rooted collective, the root's block) of the larger buffer.
    """
    inputs, outputs = buffer_sizes(kind.name, nranks, nchunks, rank, root)
    if not inputs or not outputs:
        return None
    first = (root if kind.rooted else rank) * min(inputs, outputs)
    return 0 if inputs == outputs else first if inputs > outputs else -first


def goal_for(
    collective: str,
    nranks: int,
    nchunks_per_loop: int,
    inplace: bool,
    root: int = 0,
    ranks_with_cells: Sequence[int] | None = None,
) -> Goal | None:
    """Return the goal of a named collective; None for custom, send, recv and alltoallv, whose name implies none.

    A chunk is named by its index in the source's input buffer. Results are required in cells of o, or, where a reducing
    collective is in place, of i. Out of place, the input must also stay as it was, since the caller's send buffer is
    const.

    Args:
        collective: Name of the collective; one that is not known implies no goal either.
        nranks: Number of ranks.
        nchunks_per_loop: Chunks in a loop, counted as `Program.nchunks_per_loop`.
        inplace: True for calls in place.
        root: Root of a rooted collective.
        ranks_with_cells: Ranks whose cells are in the goal; None for all ranks.

    Raises:
        InputError: If nchunks_per_loop cannot be cut into nranks blocks, or the goal has more than MAX_CELLS cells.
    """
    own = None if ranks_with_cells is None else tuple(ranks_with_cells)
    build = _kept_goal if nranks * nchunks_per_loop <= _KEPT_CELLS else _build_goal
    return build(find_kind(collective), nranks, nchunks_per_loop, inplace, root, own)


def _build_goal(
    kind: CollectiveKind, n: int, k: int, inplace: bool, root: int, ranks_with_cells: tuple[int, ...] | None
) -> Goal | None:
    """Return the goal that `goal_for` describes, with its errors, for `k` chunks of a collective on `n` ranks."""
    if not kind.unit:
        return None
    collective = kind.name
    own = range(n) if ranks_with_cells is None else ranks_with_cells
    sizes = {rank: buffer_sizes(collective, n, k, rank, root) for rank in own}
    if sum(i + o for i, o in sizes.values()) > MAX_CELLS:
        raise InputError(f"{collective} of {k} chunks on {n} ranks: it must be at most {MAX_CELLS} cells in all")
    holders = [root] if kind.before == ROOT else own
    ranks = np.concatenate([np.full(sizes[rank][0], rank, dtype=np.int64) for rank in holders])
    chunks = np.concatenate([np.arange(sizes[rank][0], dtype=np.int64) for rank in holders])
    zeros = np.zeros(len(ranks), dtype=np.int64)
    if kind.reduces:
        sets = Sets(np.arange(k + 1) * n, np.tile(np.arange(n), k), np.repeat(np.arange(k), n))
    elif len(own) == n:
        sets = Sets(np.arange(len(ranks) + 1), ranks, chunks)
    else:  # Every rank's chunks are required somewhere.
        width = buffer_sizes(collective, n, k, own[0], root)[0]
        sets = Sets(np.arange(n * width + 1), np.repeat(np.arange(n), width), np.tile(np.arange(width), n))
    goals = [root] if kind.after == ROOT else own
    rows = [_required(kind, n, rank, sizes[rank][1], inplace) for rank in goals]
    if not inplace:
        first_single = len(sets.start) - 1
        sets = sets.and_singles(ranks, chunks)
        rows.append(np.stack([ranks, zeros, chunks, first_single + np.arange(len(ranks))]))
    table = np.concatenate(rows, axis=1)
    return Goal(
        n,
        (ranks, zeros, chunks, ranks, chunks),
        (table[0], table[1], table[2], table[3]),
        sets,
        tuple(_o_in_i(kind, k, n, rank, root) if inplace else None for rank in range(n)),
    )


_kept_goal = lru_cache(maxsize=16)(_build_goal)


def _required(kind: CollectiveKind, n: int, rank: int, count: int, inplace: bool) -> Column:
    """Return rows (rank, buffer, index, set), as one 4 × cells array, of the `count` cells that `rank` must receive.

    Sets are numbered by chunk where ranks are summed, else by the position of the source in `initial`.
    """
    index = np.arange(count)
    required_set = index + rank * count if kind.after == OWN else index
    if kind.unit == PAIR:  # Block `rank` of every source; a source's chunks are neighbours in `initial`.
        block = count // n
        required_set = index // block * count + rank * block + index % block
    # A sum in place stands where its first summand stood.
    in_input = inplace and kind.reduces
    head = np.array([[rank], [0 if in_input else 1]], dtype=np.int64) * np.ones(count, dtype=np.int64)
    return np.concatenate([head, np.stack([required_set if in_input else index, required_set])])
