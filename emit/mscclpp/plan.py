"""An MSCCL++ execution plan as it stands in its JSON: channels, remote buffers and operations of every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

# What the executor's structures hold; of these the reader itself checks only the operations of a threadblock.
MAX_OPS = 64
MAX_CHANNELS = 16  # of one type in a threadblock, and as many remote buffers
MAX_OP_CHANNELS = 8
MAX_OP_BUFFERS = 10
MAX_BARRIERS = 16
MAX_OP_SEMAPHORES = 16
NO_LIMIT = (1 << 64) - 1  # max_message_size

# Places of data on each side of an operation: L a local buffer, R a remote one, W a switch channel; + is one or more.
SHAPES: dict[str, tuple[str, str]] = {
    "nop": ("", ""),
    "barrier": ("", ""),
    "signal": ("", ""),
    "wait": ("", ""),
    "rlxsignal": ("", ""),
    "rlxwait": ("", ""),
    "flush": ("", ""),
    "sem_acquire": ("", ""),
    "sem_release": ("", ""),
    "pipeline": ("", ""),
    "copy": ("L", "L"),
    "cpkt": ("L", "L"),
    "upkt": ("L", "L"),
    "put": ("L+", "R+"),
    "ppkt": ("L+", "R+"),
    "rppkt": ("L", "R+"),
    "pws": ("L+", "R+"),
    "pwsf": ("L+", "R+"),
    "get": ("R+", "L+"),
    "re": ("L+", "L"),
    "repkt": ("L+", "L"),
    "recpkt": ("L+", "LL"),
    "res": ("L+", "LR+"),
    "respkt": ("L+", "LR+"),
    "recspkt": ("L+", "LLR+"),
    "rre": ("LR+", "L"),
    "rres": ("LR+", "LR+"),
    "glres": ("W", "W"),
    "gstore": ("L", "W"),
}
ON_CHANNELS = frozenset({"signal", "wait", "rlxsignal", "rlxwait", "flush", "pws", "pwsf"})
SUMS = frozenset({"re", "repkt", "recpkt", "res", "respkt", "recspkt", "rre", "rres", "glres"})
PACKETS = frozenset({"cpkt", "upkt", "ppkt", "rppkt", "repkt", "recpkt", "respkt", "recspkt"})
CHANNEL_TYPES = ("memory", "port", "switch")


class Part(NamedTuple):
    """`size` chunks from `first` of a buffer.

    at: "i", "o" or "s" for the rank's own, else the number in the threadblock's list of remote buffers (side R)
    or of switch channels (side W).
    """

    side: str
    at: str | int
    first: int
    size: int


class Op(NamedTuple):
    """One operation. `group` (number, size): this threadblock does that part of a group's share.

    ops, unit_bytes, unit_chunks: of a pipeline: what it repeats, the bytes of an iteration, and the chunks that all
    iterations together move.
    """

    name: str
    src: Sequence[Part] = ()
    dst: Sequence[Part] = ()
    channel_type: str = ""
    channels: Sequence[int] = ()
    semaphores: Sequence[int] = ()
    barrier: int = -1
    blocks: int = 0
    group: tuple[int, int] = (0, 1)
    redop: str = ""
    ops: Sequence[Op] = ()
    unit_bytes: int = 0
    unit_chunks: int = 0


@dataclass(slots=True)
class PlanBlock:
    """A threadblock: its operations, and by channel type the numbers in its GPU's lists that its own stand for."""

    ops: list[Op] = field(default_factory=list)
    channels: dict[str, list[int]] = field(default_factory=dict)
    buffers: dict[str, list[int]] = field(default_factory=dict)


class RemoteBuffer(NamedTuple):
    """Buffer `kind` (i, o, s) of `rank`, reachable through channels of these types."""

    rank: int
    kind: str
    types: Sequence[str]


@dataclass(slots=True)
class PlanGpu:
    """One rank. `peers`: by channel type (memory, port) the rank at the other end of each channel.

    switches: (buffer, ranks) of each switch channel. semaphores: what each holds at the start.
    """

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    blocks: list[PlanBlock] = field(default_factory=list)
    peers: dict[str, list[int]] = field(default_factory=dict)
    switches: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    buffers: list[RemoteBuffer] = field(default_factory=list)
    semaphores: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Plan:
    """What all ranks execute. `packets`: protocol LL, whose scratch holds twice the bytes, data and flags.

    double: two halves of scratch that calls use in turn. reuse: one scratch for all plans of a process.
    min_bytes, max_bytes: of the input (of the output for allgather), both inclusive.
    """

    name: str
    collective: str
    protocol: str
    inplace: bool
    gpus: list[PlanGpu]
    double: bool = False
    reuse: bool = False
    alignment: int = 16
    threads: int = 1024
    min_bytes: int = 0
    max_bytes: int = NO_LIMIT

    @property
    def packets(self) -> bool:
        """Whether scratch is sized for packets."""
        return self.protocol == "LL"

    @property
    def nops(self) -> int:
        """Operations of all ranks, those inside pipelines counted."""
        return sum(ops_of(block) for gpu in self.gpus for block in gpu.blocks)


def ops_of(block: PlanBlock) -> int:
    """Operations as the executor counts them: a pipeline and each of those inside it."""
    return sum(1 + len(op.ops) for op in block.ops)
