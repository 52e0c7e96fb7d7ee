"""What each rank executes: threadblocks of instructions over buffers i (input), o (output), s (scratch)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from synth.model.registry import find_kind
from topologies.errors import InputError

OPS = ("s", "r", "cpy", "re", "rcs", "rrc", "rrs", "rrcs", "nop")
BUFFERS = ("i", "o", "s")

SENDS = frozenset({"s", "rcs", "rrs", "rrcs"})
RECEIVES = frozenset({"r", "rcs", "rrc", "rrs", "rrcs"})
READS_SRC = frozenset({"s", "cpy", "re", "rrc", "rrs", "rrcs"})
WRITES_DST = frozenset({"r", "rcs", "cpy", "re", "rrc", "rrcs"})
READS_DST = frozenset({"re"})

CUSTOM = "custom"  # what no name says
COLLECTIVES = (
    "allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather", "scatter", CUSTOM, "send",
    "recv", "alltoallv",
)  # fmt: skip
ROOTED = frozenset(name for name in COLLECTIVES if find_kind(name).rooted)

# Transmissions in flight on one (source, destination, channel) before the sender must wait.
FIFO_DEPTH = {"Simple": 2, "LL": 8, "LL128": 8}


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction. Offsets and `count` are in chunks; what `op` does not use is not looked at.

    `dep_tb`, `dep_step` (both −1: none) name the step of the same rank that must have completed before this
    one starts, by position in its threadblock, nops counted. `has_dep`: this step says when it has completed.
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
    """Steps executed in order. `send` and `recv` are peer ranks or −1; `channel` serves both."""

    send: int
    recv: int
    channel: int
    steps: Sequence[Step]

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))


@dataclass(frozen=True, slots=True)
class Gpu:
    """One rank: its buffer sizes in chunks, and its threadblocks (the position is the id)."""

    i_chunks: int
    o_chunks: int
    s_chunks: int
    threadblocks: Sequence[ThreadBlock]

    def __post_init__(self) -> None:
        object.__setattr__(self, "threadblocks", tuple(self.threadblocks))


@dataclass(frozen=True, slots=True)
class Program:
    """What all ranks execute for one collective. `gpus[r]` belongs to rank r.

    `nchunks_per_loop`: the chunks of every rank's buffer for allreduce, broadcast, reduce; of the buffer of
    nranks blocks for allgather, reducescatter, alltoall (so a multiple of nranks); of one rank's block for
    gather and scatter.
    `inplace`, `outofplace`: the calls it serves; both may be set, then it is checked for both.
    `min_bytes`, `max_bytes`: the sizes it serves, both inclusive; `max_bytes` 0 means no limit.

    Raises InputError for an unknown protocol or collective, or sizes that contradict each other.
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "gpus", tuple(self.gpus))
        if self.protocol not in FIFO_DEPTH:
            raise InputError(f"program protocol {self.protocol!r}; it must be one of {', '.join(FIFO_DEPTH)}")
        if self.collective not in COLLECTIVES:
            raise InputError(f"program collective {self.collective!r}; it must be one of {', '.join(COLLECTIVES)}")
        if self.nranks < 1 or len(self.gpus) != self.nranks:
            raise InputError(f"program with nranks {self.nranks} holds {len(self.gpus)} gpus; it must be as many")
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
    def nchannels(self) -> int:
        """Largest channel number + 1 (1 where there is no threadblock)."""
        return max((tb.channel for gpu in self.gpus for tb in gpu.threadblocks), default=0) + 1

    @property
    def nsteps(self) -> int:
        """Instructions on all ranks, nops counted."""
        return sum(len(tb.steps) for gpu in self.gpus for tb in gpu.threadblocks)

    def steps(self) -> Iterator[tuple[int, int, int, Step]]:
        """(rank, threadblock, position, step) in document order."""
        for rank, gpu in enumerate(self.gpus):
            for tb, block in enumerate(gpu.threadblocks):
                for position, step in enumerate(block.steps):
                    yield rank, tb, position, step
