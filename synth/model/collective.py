"""Collectives: which rank holds which chunk before, and which must hold it after.

A collective is stated over the positions 0..k-1 of a group. A chunk that *reduces* has one contribution from
every rank that holds it before, and each rank that wants it after must hold each contribution exactly once.
A chunk that does not reduce is one value; several holders before mean several copies of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from synth.model.registry import AHEAD, BUFFER, EVERY, KINDS, OWN, PAIR, ROOT, Kind, find_kind, parse_name
from topologies.arrays import grouped, positions
from topologies.errors import InputError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MAX_ENTRIES = 40_000_000  # rows of pre or post
MAX_CELLS = 1_500_000_000  # of the dense tables `holds` and `wants`, a byte each


@dataclass(frozen=True, eq=False)
class Collective:
    """Pre- and postcondition over (rank, chunk), and where each chunk lies in the ranks' buffers.

    Attributes:
        name: the collective's name, as `parse_name` returns it, or a custom pattern's own.
        nranks: k, the ranks of the group.
        chunks: chunks in one block (C of an (S, R, C) triple). A block is the smallest piece that the
            collective addresses: the whole buffer for allreduce, broadcast, reduce, sendrecv and alltonext;
            one rank's share for allgather, reducescatter, gather and scatter; one pair's for alltoall.
        nchunks: chunks in all.
        reduces: bool, shape (nchunks,).
        fraction: float, shape (nchunks,): bytes of a chunk / message size (nccl-tests' size).
        pre, post: int, shapes (p, 2) and (q, 2): rows (rank, chunk), sorted and without repetition.
        in_index, out_index: int, shapes (p,) and (q,): the chunk's place in that rank's input and output
            buffer, in chunks.
        root: the root's position in the group, or 0.
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

    @cached_property
    def holds(self) -> Bools:
        """Shape (nchunks, nranks): who holds which chunk before. For small problems; see `holders`."""
        return self._dense(self.pre)

    @cached_property
    def wants(self) -> Bools:
        """Shape (nchunks, nranks): who must hold which chunk after. For small problems; see `goals`."""
        return self._dense(self.post)

    @cached_property
    def holders(self) -> tuple[Ints, Ints]:
        """(ptr, ranks): chunk c is before at ranks[ptr[c]:ptr[c+1]], ascending."""
        return self._by_chunk(self.pre)

    @cached_property
    def goals(self) -> tuple[Ints, Ints]:
        """(ptr, ranks): chunk c is wanted by ranks[ptr[c]:ptr[c+1]], ascending, holders among them or not."""
        return self._by_chunk(self.post)

    def _dense(self, rows: Ints) -> Bools:
        if self.nchunks * self.nranks > MAX_CELLS:
            asked = f"{self.name}: {self.nchunks} chunks × {self.nranks} ranks"
            fewer = "it must be fewer chunks or ranks, or --engine flow"
            raise InputError(f"{asked} is too large for this search; {fewer}")
        table = np.zeros((self.nchunks, self.nranks), dtype=bool)
        table[rows[:, 1], rows[:, 0]] = True
        return table

    def _by_chunk(self, rows: Ints) -> tuple[Ints, Ints]:
        ptr, order = grouped(rows[:, 1], self.nchunks)  # rows are sorted by rank
        return ptr, np.ascontiguousarray(rows[order, 0])

    @property
    def kind(self) -> Kind:
        """The row that its name has in `registry`; one that claims nothing for a pattern."""
        return find_kind(self.name)

    @property
    def is_one_shot(self) -> bool:
        """Whether it is an all-reduce with a sum of its own for every rank; see `one_shot`."""
        return self.kind.in_shares and self.nchunks > self.chunks

    @property
    def reducing(self) -> bool:
        return bool(self.reduces.any())

    def equals(self, other: Collective, places: bool = True) -> bool:
        """Whether both state the same; `places`: in the same places of the ranks' buffers."""
        names = [f.name for f in fields(self) if places or f.name not in ("in_index", "out_index")]
        return self is other or all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    def chunk_bytes(self, size_bytes: float) -> Floats:
        """Bytes of every chunk, shape (nchunks,), when the message has `size_bytes`."""
        return self.fraction * size_bytes


def make_collective(
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
) -> Collective:
    """A collective with one chunk a block, from its conditions in any order.

    Args:
        fraction: bytes of a chunk / message size, one for all or shape (nchunks,). reduces: likewise.
        pre, post, in_index, out_index: as in `Collective`, each pair in one order.
    """
    order = np.lexsort(pre.T[::-1])
    pre, in_index = pre[order], in_index[order]
    order = np.lexsort(post.T[::-1])
    post, out_index = post[order], out_index[order]
    reduces = np.broadcast_to(np.asarray(reduces), (nchunks,)).copy()
    fraction = np.broadcast_to(np.asarray(fraction, dtype=np.float64), (nchunks,)).copy()
    return Collective(name, nranks, 1, nchunks, reduces, fraction, pre, post, in_index, out_index, root)


def subdivided(whole: Collective, chunks: int) -> Collective:
    """The same collective with every chunk cut into `chunks` equal parts, which lie side by side.

    Raises InputError where that would be too much for the memory.
    """
    if chunks == 1:
        return whole
    if max(len(whole.pre), len(whole.post)) * chunks > MAX_ENTRIES:
        raise InputError(
            f"chunks: {whole.name} over {whole.nranks} ranks in {chunks} chunks a block is more than is held in"
            " memory; it must be fewer chunks"
        )
    part = np.arange(chunks)

    def cut(table: Ints) -> Ints:
        return np.column_stack([np.repeat(table[:, 0], chunks), (table[:, 1, None] * chunks + part).ravel()])

    return replace(
        whole,
        chunks=whole.chunks * chunks,
        nchunks=whole.nchunks * chunks,
        reduces=np.repeat(whole.reduces, chunks),
        fraction=np.repeat(whole.fraction / chunks, chunks),
        pre=cut(whole.pre),
        post=cut(whole.post),
        in_index=(whole.in_index[:, None] * chunks + part).ravel(),
        out_index=(whole.out_index[:, None] * chunks + part).ravel(),
    )


def one_shot(whole: Collective) -> Collective:
    """The same all-reduce with a sum of its own for every rank that wants one, all of the same data.

    Chunk g · chunks + c is chunk c as rank g sums it, so that `subdivided` and the blocks' cells stay what they are.
    """
    k, each = whole.nranks, np.arange(whole.nranks)[:, None] * whole.nchunks
    held = np.broadcast_to(each[:, None], (k, len(whole.pre), 1)) + whole.pre[:, 1, None]
    pre = np.column_stack([np.tile(whole.pre[:, 0], k), held.ravel()])
    post = np.column_stack([whole.post[:, 0], whole.post[:, 0] * whole.nchunks + whole.post[:, 1]])
    order = np.lexsort(pre.T[::-1])
    return replace(
        whole,
        nchunks=k * whole.nchunks,
        reduces=np.tile(whole.reduces, k),
        fraction=np.tile(whole.fraction, k),
        pre=pre[order],
        post=post,
        in_index=np.tile(whole.in_index, k)[order],
    )


def alltoallv(sizes_bytes: Sequence[Sequence[float]] | Floats) -> Collective:
    """All-to-all with a block of its own size for every pair.

    Args:
        sizes_bytes: shape (k, k): what rank i sends to rank j. The message size is the largest row's sum (the
            fullest send buffer); at another size all blocks scale with it.

    Raises InputError: not square, k < 2, a negative or non-finite entry, or nothing to send at all.
    """
    try:
        table = np.asarray(sizes_bytes, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("alltoallv: the size matrix must be k rows of k numbers (bytes)") from None
    if table.ndim != 2 or table.shape[0] != table.shape[1] or len(table) < 2:
        raise InputError(f"alltoallv: the size matrix has shape {table.shape}; it must be k × k with k ≥ 2")
    bad = np.argwhere(~np.isfinite(table) | (table < 0))
    if len(bad):
        i, j = (int(x) for x in bad[0])
        raise InputError(f"alltoallv: size[{i}][{j}] is {table[i, j]}; it must be a number of bytes, 0 or more")
    with np.errstate(over="ignore"):
        size = table.sum(axis=1).max()
    if not np.isfinite(size):
        raise InputError("alltoallv: a row's sizes add up to more than a number can hold; it must be bytes")
    if not (table - np.diag(np.diag(table))).any():
        raise InputError("alltoallv: every size between two ranks is 0; it must be more for at least one pair")
    source, dest = np.nonzero(table)
    ident = np.arange(len(source))
    pre, post = np.column_stack([source, ident]), np.column_stack([dest, ident])
    # a rank's blocks lie one after the other in its buffers, empty ones take no place
    places, share = (_place_within(end, len(table)) for end in (source, dest)), table[source, dest] / size
    return make_collective("alltoallv", len(table), share, pre, post, *places, nchunks=len(ident))


def _place_within(owner: Ints, k: int) -> Ints:
    """For every entry, how many earlier ones have the same owner 0..k-1."""
    ptr, order = grouped(owner, k)
    place = np.empty(len(owner), dtype=np.int64)
    place[order] = positions(np.diff(ptr))
    return place


def named(name: str, nranks: int, chunks: int, root: int = 0) -> Collective:
    """A named collective over `nranks` ranks with `chunks` chunks a block and its root at position `root`.

    Raises InputError: unknown name, fewer than two ranks, no chunks, a root outside the group, or too large.
    """
    kind = KINDS[parse_name(name)]
    if kind.by_size:
        raise InputError(f"{kind.name}: its name does not say its sizes; it must be given a size matrix (--sizes FILE)")
    if nranks < 2:
        raise InputError(f"group: has {nranks} rank; it must be at least 2")
    if chunks < 1:
        raise InputError(f"chunks: {chunks} is not possible; it must be 1 or more")
    if not 0 <= root < nranks:
        raise InputError(f"root: position {root} is not in the group; it must be 0 to {nranks - 1}")
    if kind.entries(nranks) * chunks > MAX_ENTRIES:
        raise InputError(
            f"{kind.name}: {nranks} ranks × {chunks} chunks is more than is held in memory; it must be fewer"
            " chunks or ranks"
        )
    whole = replace(kind.build(nranks, root), name=kind.name) if kind.build else _stated(kind, nranks, root)
    return subdivided(whole, chunks)


def _stated(kind: Kind, k: int, root: int) -> Collective:
    """What the words of a kind say, with one chunk a block (a pair's are numbered source · k + destination)."""
    if kind.unit == PAIR:
        source, dest = (a.ravel() for a in np.indices((k, k)))
        ident = np.arange(k * k)
        pre, post = np.column_stack([source, ident]), np.column_stack([dest, ident])
        return make_collective(kind.name, k, 1 / k, pre, post, dest, source, nchunks=k * k)
    nchunks = 1 if kind.unit == BUFFER and kind.before != OWN else k - (kind.after == AHEAD)
    (pre, in_index), (post, out_index) = (_cells(where, k, nchunks, root) for where in (kind.before, kind.after))
    share, at = 1.0 if kind.unit == BUFFER else 1 / k, root if kind.rooted else 0
    return make_collective(
        kind.name, k, share, pre, post, in_index, out_index, nchunks=nchunks, reduces=kind.reduces, root=at
    )


def _cells(where: str, k: int, nchunks: int, root: int) -> tuple[Ints, Ints]:
    """Rows (rank, chunk) where a word of `registry` has the chunks, and their places there."""
    chunk = np.arange(nchunks)
    if where == EVERY:
        rank, chunk = np.repeat(np.arange(k), nchunks), np.tile(chunk, k)
    elif where == ROOT:
        rank = np.full(nchunks, root)
    else:
        rank = chunk if where == OWN else (chunk + 1) % k
    return np.column_stack([rank, chunk]), chunk if where in (EVERY, ROOT) else 0 * chunk
