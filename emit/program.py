"""The program that each rank executes: threadblocks of steps over the buffers i (input), o (output) and s (scratch)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from synth.model.registry import find_kind
from topologies.errors import InputError

OPS = ("s", "r", "cpy", "re", "rcs", "rrc", "rrs", "rrcs", "nop")
BUFFERS = ("i", "o", "s")

SENDS = frozenset({"s", "rcs", "rrs", "rrcs"})
RECEIVES = frozenset({"r", "rcs", "rrc", "rrs", "rrcs"})
READS_SRC = frozenset({"s", "cpy", "re", "rrc", "rrs", "rrcs"})
WRITES_DST = frozenset({"r", "rcs", "cpy", "re", "rrc", "rrcs"})
READS_DST = frozenset({"re"})

CUSTOM = "custom"  # a collective that no name describes
COLLECTIVES = (
    "allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather", "scatter", CUSTOM, "send",
    "recv", "alltoallv",
)  # fmt: skip
ROOTED = frozenset(name for name in COLLECTIVES if find_kind(name).rooted)

# Transmissions in flight on one (source, destination, channel) before the sender must wait, by protocol.
FIFO_DEPTH = {"Simple": 2, "LL": 8, "LL128": 8}
FREE_SLOTS = 1 << 20  # The same for plans, which have no FIFO: more than can be used.


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction of a threadblock; fields that `op` does not use are ignored.

    Attributes:
        op: One of OPS.
        src_buf: Source buffer, one of BUFFERS.
        src_off: Offset in the source buffer, in chunks.
        dst_buf: Destination buffer, one of BUFFERS.
        dst_off: Offset in the destination buffer, in chunks.
        count: Number of chunks.
        dep_tb: Threadblock of the same rank whose step `dep_step` must have completed before this step starts; -1 for
            none.
        dep_step: Position of that step in its threadblock, nops counted; -1 for none.
        has_dep: True if this step reports when it has completed.
    """

    op: str
    src_buf: str = "i"
    src_off: int = -1
    dst_buf: str = "o"
    dst_off: int = -1
    count: int = 0
    dep_tb: int = -1
    dep_step: int = -1
    has_dep: bool = False


@dataclass(frozen=True, slots=True)
class ThreadBlock:
    """A threadblock: steps that are executed in order.

    Attributes:
        send: Rank that it sends to; -1 for none.
        recv: Rank that it receives from; -1 for none.
        channel: Channel of both connections.
        steps: Its steps.
    """

    send: int
    recv: int
    channel: int
    steps: Sequence[Step]

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))


@dataclass(frozen=True, slots=True)
class Gpu:
    """The part of a program that one rank executes.

    Attributes:
        i_chunks: Size of the input buffer in chunks.
        o_chunks: Size of the output buffer in chunks.
        s_chunks: Size of the scratch buffer in chunks.
        threadblocks: Its threadblocks; the position is the id.
    """

    i_chunks: int
    o_chunks: int
    s_chunks: int
    threadblocks: Sequence[ThreadBlock]

    def __post_init__(self) -> None:
        object.__setattr__(self, "threadblocks", tuple(self.threadblocks))


def chunks_in_file(chunks: int, widths: Sequence[int]) -> int:
    """Return how many chunks of the file a whole buffer of so many chunks is.

    Args:
        chunks: Chunks of the buffer, of which each block has as many.
        widths: Chunks of the file for one chunk of each block; () for one everywhere.
    """
    return chunks * sum(widths) // len(widths) if widths else chunks


class Unit(NamedTuple):
    """What a step of a program moves at a time.

    Attributes:
        chunks: Its chunks, or a part of one.
        bytes: Its bytes (`Program.unit_bytes`).
    """

    chunks: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Program:
    """The steps that all ranks execute for one collective.

    Attributes:
        name: Name in files.
        collective: One of COLLECTIVES.
        protocol: Simple, LL or LL128.
        nranks: Number of ranks.
        nchunks_per_loop: Number of chunks of every rank's buffer in allreduce, broadcast and reduce; of the buffer of
            nranks blocks in allgather, reducescatter and alltoall (so a multiple of nranks); of one rank's block in
            gather and scatter.
        inplace: True if it serves calls in place.
        outofplace: True if it serves calls out of place. If both are set, it is checked for both.
        gpus: Part of each rank.
        min_bytes: Smallest message that it serves, in bytes.
        max_bytes: Largest message that it serves, in bytes; 0 for no limit.
        root: Root of a rooted collective.
        redop: Name of the reduction.
        translations: (stride, extent) of the translations by which the ranks without threadblocks are images of those
            with threadblocks (see `emit.images`); () if `gpus` holds the threadblocks of all ranks.
        widths: For each block of chunks that translations move together, how many chunks of the file one chunk of the
            program is (`unlike_widths`); () if it is one everywhere. Only files that hold no Program can have others.
        unit_bytes: Bytes of its message that a step moves at a time, one after the other, each as soon as it can; 0 if
            a step moves all at once. Only files that hold no Program can say so.
        cells_a_chunk: Number of chunks of a program that was read from a plan for each chunk of its file, where groups
            or pipelines of the plan divide chunks.

    Raises:
        InputError: If the protocol or the collective is unknown, or sizes contradict each other.
    """

    name: str
    collective: str
    protocol: str
    nranks: int
    nchunks_per_loop: int
    inplace: bool
    outofplace: bool
    gpus: Sequence[Gpu]
    min_bytes: int = 0
    max_bytes: int = 0
    root: int = 0
    redop: str = "sum"
    translations: tuple[tuple[int, int], ...] = ()
    widths: tuple[int, ...] = ()
    unit_bytes: int = 0
    cells_a_chunk: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpus", tuple(self.gpus))
        if self.protocol not in FIFO_DEPTH:
            raise InputError(f"program protocol {self.protocol!r}; it must be one of {', '.join(FIFO_DEPTH)}")
        if self.collective not in COLLECTIVES:
            raise InputError(f"program collective {self.collective!r}; it must be one of {', '.join(COLLECTIVES)}")
        if self.nranks < 1 or len(self.gpus) != self.nranks:
            raise InputError(
                f"program with nranks {self.nranks} holds {len(self.gpus)} gpus; the numbers must be equal"
            )
        if self.nchunks_per_loop < 1:
            raise InputError(f"program nchunks_per_loop {self.nchunks_per_loop}; it must be 1 or more")
        if not 0 <= self.root < self.nranks:
            raise InputError(f"program root {self.root}; it must be in 0..{self.nranks - 1}")
        if not (self.inplace or self.outofplace):
            raise InputError("program is neither inplace nor outofplace; it must be at least one of them")
        if self.min_bytes < 0 or self.max_bytes < 0 or 0 < self.max_bytes < self.min_bytes:
            raise InputError(
                f"program serves {self.min_bytes}..{self.max_bytes} bytes; it must be 0 <= min <= max, or max 0"
            )

    @property
    def file_chunks(self) -> int:
        """Return the number of the file's chunks that `nchunks_per_loop` chunks are."""
        return chunks_in_file(self.nchunks_per_loop, self.widths) // self.cells_a_chunk

    @property
    def nchannels(self) -> int:
        """Return the largest channel number + 1 (1 if there is no threadblock)."""
        return max((tb.channel for gpu in self.gpus for tb in gpu.threadblocks), default=0) + 1

    @property
    def nsteps(self) -> int:
        """Return the number of steps on all ranks, nops counted."""
        return sum(len(tb.steps) for gpu in self.gpus for tb in gpu.threadblocks)

    def steps(self) -> Iterator[tuple[int, int, int, Step]]:
        """Yield (rank, threadblock, position, step) in document order."""
        for rank, gpu in enumerate(self.gpus):
            for tb, block in enumerate(gpu.threadblocks):
                for position, step in enumerate(block.steps):
                    yield rank, tb, position, step
