"""Map every cell of a program to the part of the block that it holds, so that the program runs on unequal blocks.

An all-to-all, a gather and a scatter only move blocks, each from one rank to one other rank. So a program for equal
blocks determines for every message and every cell which block it is a part of. It needs no padding: each message is as
long as the parts that it carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from emit.columns import Columns
from emit.program import OPS, READS_SRC, WRITES_DST, Program
from runtime.buffers import Layout, chunk_start, executable_columns
from runtime.torch.programs.rank_program import RankProgram, order_steps

COLLECTIVES = ("alltoall", "gather", "scatter")  # Collectives that only move blocks, each between two ranks.
_MOST_MAPS = 256  # Most recent parts whose maps are cached.
Sizes = Sequence[Sequence[int]]  # [source][target]: Elements of the block that goes from one rank to the other.


def busiest(sizes: Sizes) -> int:
    """Return what the busiest rank gives or takes, in the unit of the sizes."""
    return max(*map(sum, sizes), *map(sum, zip(*sizes, strict=True)))


class Piece(NamedTuple):
    """A chunk of the block that goes from one of the program's ranks to another."""

    source: int
    target: int
    chunk: int


@dataclass(frozen=True)
class PieceMap:
    """The pieces that the cells of a rank's part of a program hold.

    Attributes:
        chunks: Number of chunks of a block.
        step_pieces: By `RankStep.place`, the pieces that a step receives, or reads where it receives nothing.
        input_pieces: By cell of the input, its piece.
        output_pieces: By cell of the output, its piece at the end.
        scratch: By cell of the scratch buffer, all pieces that it holds in turn.
    """

    chunks: int
    step_pieces: dict[tuple[int, int], tuple[Piece, ...]]
    input_pieces: tuple[Piece, ...]
    output_pieces: tuple[Piece, ...]
    scratch: tuple[frozenset[Piece], ...]

    def length(self, piece: Piece, sizes: Sizes) -> int:
        """Return the number of elements of a piece, for blocks of these sizes that are cut into `chunks` chunks.

        `sizes` has the elements of all blocks, as [source][target] by the program's ranks.
        """
        elements = sizes[piece.source][piece.target]
        start, end = (chunk_start(chunk, self.chunks, elements) for chunk in (piece.chunk, piece.chunk + 1))
        return end - start

    def spans(self, sizes: Sizes) -> tuple[list[int], list[int], list[int]]:
        """Return for input, output and scratch the first element of each cell, and the end of the last cell.

        A cell of scratch is as long as the longest of its pieces. `sizes` has the elements of all blocks, as
        [source][target] by the program's ranks.
        """
        lengths_of_buffers = [
            [self.length(piece, sizes) for piece in self.input_pieces],
            [self.length(piece, sizes) for piece in self.output_pieces],
            [max((self.length(piece, sizes) for piece in pieces), default=0) for pieces in self.scratch],
        ]
        input_starts, output_starts, scratch_starts = (
            list(accumulate(lengths, initial=0)) for lengths in lengths_of_buffers
        )
        return input_starts, output_starts, scratch_starts


@lru_cache(_MOST_MAPS)
def map_pieces(part: RankProgram) -> PieceMap | None:
    """Return the piece map of a rank's part, or None if the program can run on equal blocks only.

    The answer is a map on all ranks or None on all ranks. It is None if the program works in place, does more than move
    blocks, or stores a part of one block in the place of a part of another block, which may be shorter.
    """
    program = part.program
    if program.collective not in COLLECTIVES or part.inplace:
        return None
    columns = executable_columns(program)
    layout = Layout.of(program, 0)
    traced = _trace(program, columns, layout.chunks)
    if traced is None:
        return None
    pieces_of_step, scratch_of_rank = traced
    moved = {
        columns.place(step)[1:]: pieces
        for step, pieces in pieces_of_step.items()
        if int(columns.rank[columns.block[step]]) == part.rank
    }
    input_pieces, output_pieces = (
        tuple(_own_piece(program, part.rank, buffer, cell, layout.chunks) for cell in range(cells))
        for buffer, cells in enumerate(layout.cells(part.rank))
    )
    cells = range(program.gpus[part.rank].s_chunks)
    scratch = tuple(frozenset(scratch_of_rank.get((part.rank, cell), ())) for cell in cells)
    return PieceMap(layout.chunks, moved, input_pieces, output_pieces, scratch)


def _own_piece(program: Program, rank: int, buffer: int, cell: int, chunks: int) -> Piece:
    """Return the piece that belongs into a cell of a rank's input (buffer 0) or output (buffer 1).

    `chunks` is the number of chunks of a block.
    """
    block, chunk = divmod(cell, chunks)
    source, target = (rank, block) if buffer == 0 else (block, rank)
    if program.collective == "gather" and buffer == 0:
        target = program.root
    if program.collective == "scatter" and buffer == 1:
        source = program.root
    return Piece(source, target, chunk)


def _trace(
    program: Program, columns: Columns, chunks: int
) -> tuple[dict[int, tuple[Piece, ...]], dict[tuple[int, int], set[Piece]]] | None:
    """Return the pieces that each step receives, or reads if it receives nothing, and all that scratch ever holds.

    The first dict is by step of all ranks, numbered as in `columns`, without those that do nothing. The second has for
    each (rank, cell) of scratch the set of its pieces. It returns None if a cell of an input or output ever holds a
    piece of another place, if a step reads scratch that holds nothing, or if anything is reduced.

    `chunks` is the number of chunks of a block.
    """
    sequence, partner, _ = order_steps(program, columns)
    moved: dict[int, tuple[Piece, ...]] = {}
    now: dict[tuple[int, int], Piece] = {}  # Current contents of scratch, by (rank, cell).
    scratch: dict[tuple[int, int], set[Piece]] = {}

    cells_of_rank = [Layout.of(program, 0).cells(rank) for rank in range(program.nranks)]

    def pieces_in(rank: int, buffer: int, first: int, count: int) -> tuple[Piece | None, ...]:
        """Return the pieces that cells of a buffer hold now; None for an empty cell of scratch, or beyond a buffer."""
        cells = range(first, first + count)
        if buffer == 2:
            return tuple(now.get((rank, cell)) for cell in cells)
        within = cells_of_rank[rank][buffer]
        return tuple(_own_piece(program, rank, buffer, cell, chunks) if cell < within else None for cell in cells)

    for step in sequence:
        op, rank, count = OPS[int(columns.op[step])], int(columns.rank[columns.block[step]]), int(columns.count[step])
        if op == "nop":
            continue
        receives = step in partner
        if receives and op in READS_SRC:  # The step reduces.
            return None
        source, first = int(columns.src[step]), int(columns.src_at[step])
        contents = moved[partner[step]] if receives else pieces_in(rank, source, first, count)
        pieces = tuple(piece for piece in contents if piece is not None)
        if len(pieces) < count or op == "re":
            return None
        moved[step] = pieces
        if op not in WRITES_DST:
            continue
        buffer, first = int(columns.dst[step]), int(columns.dst_at[step])
        if buffer == 2:
            for cell, piece in enumerate(pieces, first):
                now[rank, cell] = piece
                scratch.setdefault((rank, cell), set()).add(piece)
        elif pieces != pieces_in(rank, buffer, first, count):
            return None
    return moved, scratch
