"""Define collectives: which rank holds which chunk before, and which rank must hold it after.

A collective is stated over the positions 0..k-1 of a process group. A chunk that *reduces* has one contribution from
every rank that holds it before, and each rank that wants it after must hold each contribution exactly once.
A chunk that does not reduce is one value; several holders before mean several copies of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from synth.model.numbers import without_common_divisor
from synth.model.registry import (
    AHEAD,
    BUFFER,
    COLLECTIVE_KINDS,
    EVERY,
    OWN,
    PAIR,
    ROOT,
    CollectiveKind,
    find_kind,
    parse_name,
)
from synth.model.text import format_count
from topologies.arrays import grouped, positions
from topologies.errors import InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MAX_ENTRIES = 40_000_000  # rows of `pre` or `post`
# The most cells of one size in a rank's fullest buffer. An instruction moves at most 71 cells, so a block takes a few.
MOST_CELLS = 1024
LEAST_CELLS = 64  # With fewer cells one block in twenty would be padding.
_FEW_BLOCKS = 20_000  # Number of blocks up to which several sizes of cells are tried.
MAX_CELLS = 1_500_000_000  # cells of the dense tables `holds` and `wants`, one byte each


@dataclass(frozen=True, eq=False)
class Collective:
    """A collective: its pre- and postcondition over (rank, chunk), and where each chunk lies in the ranks' buffers.

    Attributes:
        name: The collective's name, as `parse_name` returns it, or the name of a custom pattern.
        nranks: k, the number of ranks in the process group.
        chunks: Number of chunks in a block (C of an (S, R, C) triple), on average where blocks differ. A block is the
            smallest piece that the collective addresses: the whole buffer for allreduce, broadcast, reduce, sendrecv
            and alltonext; one rank's share for allgather, reducescatter, gather and scatter; the data from one rank to
            another for alltoall.
        nchunks: Number of chunks in all.
        reduces: Whether each chunk is a sum; bool, shape (nchunks,).
        fraction: Bytes of a chunk / message size; float, shape (nchunks,). The message size is the larger of the
            fullest send buffer and the fullest receive buffer of any rank, as nccl-tests defines it.
        pre: Rows (rank, chunk) that are held before, sorted and without repetition; int, shape (p, 2).
        post: Rows (rank, chunk) that are wanted after, sorted and without repetition; int, shape (q, 2).
        in_index: Place of each row of `pre` in that rank's input buffer, in chunks; int, shape (p,).
        out_index: Place of each row of `post` in that rank's output buffer, in chunks; int, shape (q,).
        root: The root's position in the group; 0 where there is no root.
        sizes: Sizes of the blocks, where they have sizes of their own, as whole numbers without a common divisor: one
            for each rank, or for alltoallv k² of them, row by row. Empty where blocks have one size, or where the
            sizes are not known.
        block: Number of each chunk's block, where blocks have sizes of their own (see `uneven`); int, shape (nchunks,).
            None where all blocks have as many chunks.
    """

    name: str
    nranks: int
    chunks: int
    nchunks: int
    reduces: Bools
    fraction: Floats
    pre: Ints
    post: Ints
    in_index: Ints
    out_index: Ints
    root: int = 0
    sizes: tuple[int, ...] = ()
    block: Ints | None = None

    def __repr__(self) -> str:
        """Return the name and the numbers of ranks and chunks in one line."""
        return f"<{self.name} of {self.nranks} ranks, {format_count(self.nchunks, 'chunk')}>"

    @cached_property
    def holds(self) -> Bools:
        """Return whether each rank holds each chunk before; bool, shape (nchunks, nranks).

        It suits small problems only; for large ones see `holders`.

        Raises:
            InputError: The table would have more than 1.5·10⁹ cells.
        """
        return self._dense(self.pre)

    @cached_property
    def wants(self) -> Bools:
        """Return whether each rank must hold each chunk after; bool, shape (nchunks, nranks).

        It suits small problems only; for large ones see `goals`.

        Raises:
            InputError: The table would have more than 1.5·10⁹ cells.
        """
        return self._dense(self.post)

    @cached_property
    def holders(self) -> tuple[Ints, Ints]:
        """Return (ptr, ranks): ranks[ptr[c]:ptr[c+1]] hold chunk c before, in ascending order."""
        return self._by_chunk(self.pre)

    @cached_property
    def goals(self) -> tuple[Ints, Ints]:
        """Return (ptr, ranks): ranks[ptr[c]:ptr[c+1]] want chunk c after, in ascending order.

        A rank that wants a chunk is listed whether or not it holds the chunk before.
        """
        return self._by_chunk(self.post)

    def _dense(self, rows: Ints) -> Bools:
        """Return rows (rank, chunk) as a table of flags, shape (nchunks, nranks).

        Raises:
            InputError: The table would have more than 1.5·10⁹ cells.
        """
        if self.nchunks * self.nranks > MAX_CELLS:
            size = f"{self.name}: {self.nchunks} chunks × {self.nranks} ranks"
            advice = "use fewer chunks or ranks, or --engine flow"
            raise InputError(f"{size} is too large for this search; {advice}")
        table = np.zeros((self.nchunks, self.nranks), dtype=bool)
        table[rows[:, 1], rows[:, 0]] = True
        return table

    def _by_chunk(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return rows (rank, chunk), sorted by rank, as (ptr, ranks): chunk c has ranks[ptr[c]:ptr[c+1]], ascending."""
        ptr, order = grouped(rows[:, 1], self.nchunks)  # The rows are sorted by rank.
        return ptr, np.ascontiguousarray(rows[order, 0])

    @cached_property
    def place_in_block(self) -> Floats:
        """Return how far into its block each chunk begins, from 0 to below 1, shape (nchunks,)."""
        if self.block is None:
            return (np.arange(self.nchunks) % self.chunks) / self.chunks
        count = np.bincount(self.block)
        return _place_within(self.block, len(count)) / count[self.block]

    @cached_property
    def cells_of_blocks(self) -> Ints:
        """Return the number of cells of each block, at least 1, where blocks have sizes of their own; shape (blocks,).

        Of 64 to 1024 cells of one size in a message, the number is chosen that leaves least of the cells empty, to a
        thousandth; the largest such number. Where no cell is empty, the unit that all blocks are multiples of has a
        power of two of cells, because a message must divide into all cells.
        """
        assert self.block is not None  # Blocks of one size are cut without cells.
        share: Floats = np.bincount(self.block, self.fraction).astype(np.float64)
        numbers = range(LEAST_CELLS, MOST_CELLS + 1) if len(share) <= _FEW_BLOCKS else range(MOST_CELLS, MOST_CELLS + 1)
        units = round(max(self.sizes) / float(share.max()))
        divisible = (number for number in numbers if number % units or (number // units).bit_count() == 1)
        cuts: dict[int, Floats] = {number: np.ceil(share * number * (1 - 1e-9)) for number in divisible}
        whole = float(share.sum())
        best = min(cuts, key=lambda number: (round(float(cuts[number].sum()) / number / whole, 3), -number))
        return np.maximum(1, cuts[best]).astype(np.int64)

    @property
    def kind(self) -> CollectiveKind:
        """Return the collective's row of `registry`; an empty row for a pattern."""
        return find_kind(self.name)

    @property
    def is_one_shot(self) -> bool:
        """Return whether this is an all-reduce in which every rank has its own sum: it has more chunks than a block.

        `one_shot` builds such a collective.
        """
        return self.kind.in_shares and self.nchunks > self.chunks

    @property
    def reducing(self) -> bool:
        """Return whether any chunk reduces."""
        return bool(self.reduces.any())

    def equals(self, collective: Collective, places: bool = True) -> bool:
        """Return whether two collectives are the same, field by field, numbers exactly.

        These are the name, the root, the numbers of ranks and chunks, which chunks reduce, the fractions, and the
        conditions as rows (rank, chunk). So the same conditions with the chunks numbered differently are not equal.

        Args:
            collective: The collective to compare with.
            places: Whether the chunks' places in the ranks' buffers must be equal too.
        """
        left_out = ("sizes", "block") if places else ("sizes", "block", "in_index", "out_index")
        names = [f.name for f in fields(self) if f.name not in left_out]
        return self is collective or all(
            np.array_equal(getattr(self, name), getattr(collective, name)) for name in names
        )

    def chunk_bytes(self, size_bytes: float) -> Floats:
        """Return the bytes of every chunk in a message of `size_bytes`, shape (nchunks,)."""
        return self.fraction * size_bytes


def make_collective(  # It has a parameter for each field of a collective that callers state.
    name: str,
    nranks: int,
    fraction: Floats | float,
    pre: Ints,
    post: Ints,
    in_index: Ints,
    out_index: Ints,
    *,
    nchunks: int,
    reduces: bool | Bools = False,
    root: int = 0,
    sizes: tuple[int, ...] = (),
    block: Ints | None = None,
) -> Collective:
    """Build a collective with one chunk a block from its conditions in any order; nothing is checked.

    The rows of both conditions are sorted by rank, then chunk, and their places go with them.

    Args:
        name: The collective's name.
        nranks: Number of ranks in the process group.
        fraction: Bytes of a chunk / message size: one number for all chunks, or shape (nchunks,).
        pre: Rows (rank, chunk) that are held before, without repetition, shape (p, 2).
        post: Rows (rank, chunk) that are wanted after, without repetition, shape (q, 2).
        in_index: Place of each row of `pre` in the input buffer, in chunks, in the same order.
        out_index: Place of each row of `post` in the output buffer, in chunks, in the same order.
        nchunks: Number of chunks in all.
        reduces: Whether chunks reduce: one value for all chunks, or shape (nchunks,).
        root: The root's position in the group.
        sizes: As the attribute of the collective.
        block: As the attribute of the collective.
    """
    order = np.lexsort(pre.T[::-1])
    pre, in_index = pre[order], in_index[order]
    order = np.lexsort(post.T[::-1])
    post, out_index = post[order], out_index[order]
    reduces = np.broadcast_to(np.asarray(reduces), (nchunks,)).copy()
    fraction = np.broadcast_to(np.asarray(fraction, dtype=np.float64), (nchunks,)).copy()
    return Collective(name, nranks, 1, nchunks, reduces, fraction, pre, post, in_index, out_index, root, sizes, block)


def chunks_by_ends(collective: Collective, chunks: Ints) -> list[tuple[Ints, Ints, Ints]]:
    """Return chunks in groups that all reduce or all do not, and have equal holders and goals.

    Args:
        collective: The collective.
        chunks: Numbers of the chunks to group, each once.

    Returns:
        (chunks, holders, goals) of each group, in the order in which groups first occur. A group's chunks keep their
        order; holders and goals are ascending positions, read-only, and may be empty.
    """
    (hold_ptr, hold), (goal_ptr, goal) = collective.holders, collective.goals
    chunks_of: dict[tuple[bool, bytes, bytes], list[int]] = {}
    for c in chunks.tolist():
        holders, goals = hold[hold_ptr[c] : hold_ptr[c + 1]], goal[goal_ptr[c] : goal_ptr[c + 1]]
        chunks_of.setdefault((bool(collective.reduces[c]), holders.tobytes(), goals.tobytes()), []).append(c)
    return [
        (np.array(same), np.frombuffer(holders, dtype=np.int64), np.frombuffer(goals, dtype=np.int64))
        for (_, holders, goals), same in chunks_of.items()
    ]


def subdivided(collective: Collective, chunks: int) -> Collective:
    """Return a collective with every chunk cut into `chunks` equal parts, which lie side by side.

    Part p of chunk c is chunk c · chunks + p, and place i becomes the places i · chunks + p. Each part has the fraction
    of its chunk / `chunks`. The result has `chunks` times as many chunks a block and in all; it has no blocks with
    sizes of their own. With `chunks` 1 it is the collective itself.

    Raises:
        InputError: A condition would have more than 40 million rows.
    """
    if chunks == 1:
        return collective
    if max(len(collective.pre), len(collective.post)) * chunks > MAX_ENTRIES:
        raise InputError(
            f"chunks: {collective.name} over {collective.nranks} ranks in {chunks} chunks a block does not fit in"
            " memory; use fewer chunks"
        )
    part = np.arange(chunks)

    def cut(table: Ints) -> Ints:
        """Return rows (rank, chunk) with `chunks` rows for each row: those of the chunk's parts, in order."""
        return np.column_stack([np.repeat(table[:, 0], chunks), (table[:, 1, None] * chunks + part).ravel()])

    return replace(
        collective,
        chunks=collective.chunks * chunks,
        nchunks=collective.nchunks * chunks,
        reduces=np.repeat(collective.reduces, chunks),
        fraction=np.repeat(collective.fraction / chunks, chunks),
        pre=cut(collective.pre),
        post=cut(collective.post),
        in_index=(collective.in_index[:, None] * chunks + part).ravel(),
        out_index=(collective.out_index[:, None] * chunks + part).ravel(),
        block=None,
    )


def with_whole_blocks(collective: Collective) -> Collective:
    """Return the collective with one chunk a block of which `subdivided` makes this one.

    Fractions are those before the cut up to their last bits. A collective that was cut in another way is returned as
    it is.
    """
    count = collective.chunks
    if count == 1 or collective.nchunks % count:
        return collective
    (pre, in_index), (post, out_index) = (
        (rows[is_first] // [1, count], places[is_first] // count)
        for rows, places in ((collective.pre, collective.in_index), (collective.post, collective.out_index))
        for is_first in (rows[:, 1] % count == 0,)
    )
    whole = replace(
        collective,
        chunks=1,
        nchunks=collective.nchunks // count,
        reduces=collective.reduces[::count],
        fraction=collective.fraction[::count] * count,
        pre=pre,
        post=post,
        in_index=in_index,
        out_index=out_index,
        block=None,
    )
    again = subdivided(whole, count)
    names = "reduces", "pre", "post", "in_index", "out_index"
    is_same = all(np.array_equal(getattr(again, name), getattr(collective, name)) for name in names)
    return whole if is_same and np.allclose(again.fraction, collective.fraction, rtol=1e-9, atol=0) else collective


def in_chunks(collective: Collective, chunks: int) -> Collective:
    """Return a collective with `chunks` times as many chunks a block.

    Blocks of one size are cut as `subdivided` does. Where blocks have sizes of their own, all of them are cut anew, a
    large block into more chunks than a small one, so that all chunks are about as large. Chunks are whole cells, of
    which the message has at most 1024, so that files, whose chunks have one size, need little padding. A block has at
    least one chunk, and no more than it has cells.

    Raises:
        InputError: A condition would have more than 40 million rows.
    """
    if collective.block is None or chunks == 1:
        return subdivided(collective, chunks)
    share: Floats = np.bincount(collective.block, collective.fraction).astype(np.float64)
    ncells = collective.cells_of_blocks
    unclipped = np.ceil(share / share.mean() * collective.chunks * chunks - 1e-6)
    nparts = np.clip(unclipped, 1, ncells).astype(np.int64)
    block, part = np.repeat(np.arange(len(share)), nparts), positions(nparts)
    width = ncells[block] // nparts[block] + (part < (ncells % nparts)[block])
    is_first = np.diff(collective.block, prepend=-1) > 0  # The first chunk of each block.

    def parts_of_rows(rows: Ints, index: Ints) -> tuple[Ints, Ints]:
        """Return the rows (rank, new chunk) of a condition, and each row's place in its rank's buffer."""
        first_rows = is_first[rows[:, 1]]
        order = np.lexsort((index[first_rows], rows[first_rows, 0]))
        rank, block_of_row = rows[first_rows, 0][order], collective.block[rows[first_rows, 1]][order]  # type: ignore[index]
        count = nparts[block_of_row]
        if int(count.sum()) > MAX_ENTRIES:
            raise InputError(f"chunks: {collective.name} in {chunks} chunks a block does not fit in memory; use fewer")
        ranks = np.repeat(rank, count)
        chunk = np.repeat((np.cumsum(nparts) - nparts)[block_of_row], count) + positions(count)
        return np.column_stack([ranks, chunk]), _place_within(ranks, collective.nranks)

    (pre, in_index), (post, out_index) = (
        parts_of_rows(collective.pre, collective.in_index),
        parts_of_rows(collective.post, collective.out_index),
    )
    cut = make_collective(
        collective.name,
        collective.nranks,
        share[block] * width / ncells[block],
        pre,
        post,
        in_index,
        out_index,
        nchunks=len(block),
        reduces=collective.reduces[is_first][block],
        root=collective.root,
        sizes=collective.sizes,
        block=block,
    )
    return replace(cut, chunks=collective.chunks * chunks)


def every_cut(collective: Collective, chunks: int) -> Iterator[Collective]:
    """Yield a collective with `chunks` times as many chunks a block, cut in each way in which engines cut blocks.

    These are `in_chunks`, `subdivided`, and the first followed by the second. For blocks of one size all are the same.
    """
    divisors = [number for number in range(chunks, 0, -1) if chunks % number == 0]
    for number in divisors if collective.block is not None else divisors[:1]:
        yield subdivided(in_chunks(collective, number), chunks // number)


def is_cut_of(cut: Collective, whole: Collective) -> bool:
    """Return whether a collective is another one with its blocks cut into chunks, however many and however large.

    Of each block the sizes of the chunks add up, to 10⁻⁶ of it. In every buffer the blocks lie in their order, and the
    chunks of a block in one order everywhere.

    Args:
        cut: The collective that may be a cut.
        whole: A collective with one chunk a block, of which no two have the same holders and goals.
    """
    if (cut.name, cut.nranks, cut.root) != (whole.name, whole.nranks, whole.root):
        return False
    block_of_ends = {
        (holders.tobytes(), goals.tobytes()): int(blocks[0])
        for blocks, holders, goals in chunks_by_ends(whole, np.arange(whole.nchunks))
    }
    block = np.full(cut.nchunks, -1)
    for chunks, holders, goals in chunks_by_ends(cut, np.arange(cut.nchunks)):
        block[chunks] = block_of_ends.get((holders.tobytes(), goals.tobytes()), -1)
    share = np.bincount(block[block >= 0], cut.fraction[block >= 0], minlength=whole.nchunks)
    if (block < 0).any() or not np.array_equal(cut.reduces, whole.reduces[block]):
        return False
    if not np.allclose(share, whole.fraction, rtol=1e-6, atol=0):
        return False
    part = np.full(cut.nchunks, -1)  # Place of each chunk among those of its block.
    for rows, places in ((cut.pre, cut.in_index), (cut.post, cut.out_index)):
        order = np.lexsort((places, rows[:, 0]))
        rank, chunk, place = rows[order, 0], rows[order, 1], places[order]
        if not np.array_equal(place, _place_within(rank, cut.nranks)):
            return False
        if ((np.diff(rank) == 0) & (np.diff(block[chunk]) < 0)).any():
            return False
        number = _place_within(np.unique(rank * whole.nchunks + block[chunk], return_inverse=True)[1], len(rank))
        first_seen = part[chunk] < 0
        part[chunk[first_seen]] = number[first_seen]
        if not np.array_equal(part[chunk], number):
            return False
    return True


def chunks_of_chunks(whole: Collective, cut: Collective, chunks: Ints) -> Ints:
    """Return which chunks of `cut` are parts of some chunks of a collective, the first part of each chunk first.

    Args:
        whole: The collective, with one chunk a block.
        cut: The same collective after `in_chunks` or `subdivided`.
        chunks: Chunks of `whole`.
    """
    if cut.block is None:
        parts = cut.nchunks // whole.nchunks
        return (chunks[None, :] * parts + np.arange(parts)[:, None]).ravel()
    candidates = np.flatnonzero(np.isin(cut.block, chunks))
    return candidates[np.argsort(cut.place_in_block[candidates], kind="stable")]


def one_shot(collective: Collective) -> Collective:
    """Return an all-reduce in which every rank that wants the result has its own sum of the same data.

    The result has nranks · nchunks chunks: chunk g · nchunks + c is chunk c as rank g sums it, held by all ranks that
    held c and wanted by g only. Fractions, the number of chunks a block and the places in the buffers stay, so the
    nranks chunks of one c read the same places. This order keeps `subdivided` and the cells of the blocks as they are.

    Args:
        collective: An all-reduce in which each chunk is one sum for all ranks; this is not checked.
    """
    k, first_chunk = collective.nranks, np.arange(collective.nranks)[:, None] * collective.nchunks
    pre_chunk = np.broadcast_to(first_chunk[:, None], (k, len(collective.pre), 1)) + collective.pre[:, 1, None]
    pre = np.column_stack([np.tile(collective.pre[:, 0], k), pre_chunk.ravel()])
    post = np.column_stack([collective.post[:, 0], collective.post[:, 0] * collective.nchunks + collective.post[:, 1]])
    order = np.lexsort(pre.T[::-1])
    return replace(
        collective,
        nchunks=k * collective.nchunks,
        reduces=np.tile(collective.reduces, k),
        fraction=np.tile(collective.fraction, k),
        pre=pre[order],
        post=post,
        in_index=np.tile(collective.in_index, k)[order],
    )


def fullest(sizes: Ints | Floats) -> float:
    """Return what the fullest buffer of any rank holds; a whole number if all sizes are.

    Args:
        sizes: Size of the block of each rank, shape (k,); or of what rank i sends to rank j, shape (k, k), of which the
            largest sum of a row or a column counts.
    """
    most: float = max(sizes.sum(axis=axis).max().item() for axis in range(sizes.ndim))
    return most


def uneven(name: str, sizes_bytes: Sequence[float] | Sequence[Sequence[float]] | Floats, root: int = 0) -> Collective:
    """Return a collective whose blocks may each have a different size, such as alltoallv, allgatherv or gatherv.

    Each size above 0 is a chunk, in the order of the blocks of the collective with equal blocks; those of a rank to
    itself are included. A chunk's fraction is its size / the message size. In a rank's buffers the places count chunks
    in the order of the blocks; blocks of size 0 take no place.

    Args:
        name: Any spelling of a collective whose blocks have sizes of their own.
        sizes_bytes: Bytes of the block of each rank, shape (k,); for alltoallv the bytes that rank i sends to rank j,
            shape (k, k). The message size is the sum of the blocks, and for alltoallv the largest sum of a row or a
            column: the fullest buffer. At another message size all blocks scale with it.
        root: The root's position in the group, for a collective with a root.

    Raises:
        InputError: The sizes have another shape, k < 2, a size is negative or not finite, a sum is too large for a
            float, or no rank sends anything to another rank.
    """
    kind = COLLECTIVE_KINDS[parse_name(name)]
    form = "k rows of k numbers (bytes)" if kind.by_pair else "one number (bytes) for each rank"
    try:
        table = np.asarray(sizes_bytes, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{kind.name}: the sizes are no table of numbers; they must be {form}") from None
    if table.ndim != 1 + kind.by_pair or len(set(table.shape)) > 1 or len(table) < 2:
        raise InputError(f"{kind.name}: the sizes have shape {table.shape}; they must be {form}, k ≥ 2")
    bad = np.argwhere(~np.isfinite(table) | (table < 0))
    if len(bad):
        index = "".join(f"[{i}]" for i in bad[0])
        raise InputError(f"{kind.name}: size{index} is {table[tuple(bad[0])]}; it must be a number of bytes, 0 or more")
    with np.errstate(over="ignore"):
        message_bytes = fullest(table)
    if not np.isfinite(message_bytes):
        raise InputError(f"{kind.name}: the sizes add up to more than a number can hold; they must be bytes")
    even, is_kept = named(kind.even, len(table), 1, root), table.ravel() > 0
    chunk_of_block = np.cumsum(is_kept) - 1

    def kept_rows(blocks: Ints) -> tuple[Ints, Ints]:
        """Return the rows (rank, chunk) of the rows (rank, block) whose block is not empty, and each row's place.

        The place counts chunks in the rank's buffer.
        """
        rank, block = blocks[is_kept[blocks[:, 1]]].T
        return np.column_stack([rank, chunk_of_block[block]]), _place_within(rank, len(table))

    (pre, in_index), (post, out_index) = kept_rows(even.pre), kept_rows(even.post)
    if np.array_equal(pre, post):  # No chunk is wanted where it is not held.
        if kind.by_pair:
            raise InputError(f"{kind.name}: every size between two ranks is 0; it must be more for at least one pair")
        lacking = "no rank but the root has data" if table.any() else "every size is 0"
        raise InputError(f"{kind.name}: {lacking}; at least one {'other ' if table.any() else ''}rank must have data")
    return make_collective(
        kind.name,
        len(table),
        table.ravel()[is_kept] / message_bytes,
        pre,
        post,
        in_index,
        out_index,
        nchunks=int(is_kept.sum()),
        reduces=COLLECTIVE_KINDS[kind.even].reduces,
        root=even.root,
        sizes=_whole_proportions(table),
        block=np.arange(int(is_kept.sum())),
    )


def in_shape(sizes: Sequence[int], nranks: int) -> Floats | None:
    """Return sizes of blocks as `named` takes them, shape (k,) or (k, k); None where there are none.

    The shape is (k, k) if there is a size for each pair of the `nranks` ranks.
    """
    if not len(sizes):
        return None
    table = np.array(sizes, dtype=np.float64)
    return table.reshape(nranks, nranks) if len(sizes) == nranks * nranks else table


def _whole_proportions(sizes_bytes: Floats) -> tuple[int, ...]:
    """Return sizes as the least whole numbers with the same proportions, row by row, each below 2⁶².

    They are exact where such numbers exist, else rounded to 2⁻⁵² of the largest.

    Raises:
        InputError: A size is less than that, but not 0.
    """
    exact = [Fraction(size) for size in sizes_bytes.ravel().tolist()]
    unit = lcm(*(size.denominator for size in exact))
    counts = [int(size * unit) for size in exact]
    if max(counts) // gcd(*counts) >= 1 << 62:
        counts = [round(size / max(exact) * (1 << 52)) for size in exact]
        if any(size > 0 and not count for size, count in zip(exact, counts, strict=True)):
            raise InputError("sizes: differ by a factor of more than 10¹⁵; they must be bytes")
    return without_common_divisor(counts)


def _place_within(owner: Ints, k: int) -> Ints:
    """Return for every entry how many earlier entries have the same owner; owners are 0..k-1."""
    ptr, order = grouped(owner, k)
    place = np.empty(len(owner), dtype=np.int64)
    place[order] = positions(np.diff(ptr))
    return place


def named(name: str, nranks: int, chunks: int, root: int = 0, sizes: Floats | None = None) -> Collective:
    """Return a named collective over `nranks` ranks with `chunks` chunks a block and its root at position `root`.

    Args:
        name: Any spelling that `parse_name` accepts; the result has the collective's own name.
        nranks: Number of ranks in the group, at least 2.
        chunks: Number of chunks a block, at least 1.
        root: The root's position in the group. It is checked for every collective; one without a root has root 0.
        sizes: Bytes of the blocks, for a collective whose blocks have sizes of their own (see `uneven`).

    Raises:
        InputError: The name is unknown or needs sizes (alltoallv), or has none; the sizes are wrong or for another
            number of ranks; there are fewer than two ranks or no chunks, the root is outside the group, or a condition
            has more than 40 million rows.
    """
    kind = COLLECTIVE_KINDS[parse_name(name)]
    if kind.even and sizes is None:
        raise InputError(f"{kind.name}: its name does not state the sizes of its blocks; give them (--sizes)")
    if sizes is not None and not kind.even:
        forms = ", ".join(f"{row.name} instead of {row.even}" for row in COLLECTIVE_KINDS.values() if row.even)
        raise InputError(f"sizes: {kind.name} has blocks of one size; leave them out (with sizes: {forms})")
    if nranks < 2:
        raise InputError(f"group: has {nranks} rank; it must be at least 2")
    if chunks < 1:
        raise InputError(f"chunks: {chunks} is not possible; it must be 1 or more")
    if not 0 <= root < nranks:
        raise InputError(f"root: position {root} is not in the group; it must be 0 to {nranks - 1}")
    if find_kind(kind.even or kind.name).entries(nranks) * chunks > MAX_ENTRIES:
        raise InputError(
            f"{kind.name}: {nranks} ranks × {chunks} chunks do not fit in memory; use fewer chunks or ranks"
        )
    if sizes is not None:
        collective = uneven(kind.name, sizes, root)
    elif kind.build:
        collective = replace(kind.build(nranks, root), name=kind.name)
    else:
        collective = _collective_from_words(kind, nranks, root)
    if collective.nranks != nranks:
        raise InputError(
            f"{kind.name}: has sizes for {collective.nranks} ranks; they must be for the group's {nranks} ranks"
        )
    return in_chunks(collective, chunks)


def _collective_from_words(kind: CollectiveKind, k: int, root: int) -> Collective:
    """Build the collective that a row's words describe, with one chunk a block.

    All-to-all has k² chunks, from a source to a destination the chunk source · k + destination. Where all ranks or the
    root hold or want one whole buffer, there is one chunk. Else chunk i belongs to position i; alltonext has none for
    the last position.
    """
    if kind.unit == PAIR:
        source, dest = (a.ravel() for a in np.indices((k, k)))
        chunk = np.arange(k * k)
        pre, post = np.column_stack([source, chunk]), np.column_stack([dest, chunk])
        return make_collective(kind.name, k, 1 / k, pre, post, dest, source, nchunks=k * k)
    nchunks = 1 if kind.unit == BUFFER and kind.before != OWN else k - (kind.after == AHEAD)
    (pre, in_index), (post, out_index) = (
        _cells(holder_word, k, nchunks, root) for holder_word in (kind.before, kind.after)
    )
    share, root_position = 1.0 if kind.unit == BUFFER else 1 / k, root if kind.rooted else 0
    return make_collective(
        kind.name, k, share, pre, post, in_index, out_index, nchunks=nchunks, reduces=kind.reduces, root=root_position
    )


def _cells(holder_word: str, k: int, nchunks: int, root: int) -> tuple[Ints, Ints]:
    """Return rows (rank, chunk) where a word of `registry` places the chunks, and each row's place in its buffer.

    Args:
        holder_word: EVERY, OWN, ROOT, NEXT or AHEAD.
        k: Number of ranks.
        nchunks: Number of chunks, 0..nchunks-1.
        root: The root's position; it counts for ROOT only.
    """
    chunk = np.arange(nchunks)
    if holder_word == EVERY:
        rank, chunk = np.repeat(np.arange(k), nchunks), np.tile(chunk, k)
    elif holder_word == ROOT:
        rank = np.full(nchunks, root)
    else:
        rank = chunk if holder_word == OWN else (chunk + 1) % k
    return np.column_stack([rank, chunk]), chunk if holder_word in (EVERY, ROOT) else 0 * chunk
