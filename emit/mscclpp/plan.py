"""An MSCCL++ execution plan as it stands in its JSON, and that JSON: one operation a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# What the executor's structures hold; of these the reader itself checks only the operations of a threadblock.
MAX_OPS = 64
MAX_CHANNELS = 16  # of one type in a threadblock, and as many remote buffers
MAX_OP_CHANNELS = 8
MAX_OP_BUFFERS = 10
MAX_BARRIERS = 16
MAX_OP_SEMAPHORES = 16
NO_LIMIT = (1 << 64) - 1  # max_message_size
OFFSET_END = 1 << 32  # bytes: offsets in a buffer, and where a span ends, are kept in 32 bits
MAX_MIN_BYTES = (1 << 31) - 1  # min_message_size is read as an int
# Chunks of double scratch come in so many: then its upper half begins at a multiple of a packet's 16 bytes, whatever
# the size of an allocation, by which the executor sizes a chunk of it.
EVEN_SCRATCH = 8

# Places of data on each side of an operation: L a local buffer, R a remote one, W a switch channel; + is one or more.
SHAPES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("nop", "barrier", "signal", "wait", "rlxsignal", "rlxwait", "flush"), ("", "")),
    **dict.fromkeys(("sem_acquire", "sem_release", "pipeline"), ("", "")),
    **dict.fromkeys(("copy", "cpkt", "upkt"), ("L", "L")),
    **dict.fromkeys(("put", "ppkt"), ("L+", "R+")),
    "rppkt": ("L", "R+"),
    **dict.fromkeys(("pws", "pwsf"), ("L+", "R+")),
    "get": ("R+", "L+"),
    **dict.fromkeys(("re", "repkt"), ("L+", "L")),
    "recpkt": ("L+", "LL"),
    **dict.fromkeys(("res", "respkt"), ("L+", "LR+")),
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
        return sum(1 for _ in self.ops())

    def ops(self) -> Iterator[tuple[int, int, int, Op, Op]]:
        """(rank, threadblock, place, operation there, and itself or one of those that it repeats)."""
        for rank, gpu in enumerate(self.gpus):
            for tb, block in enumerate(gpu.blocks):
                for at, op in enumerate(block.ops):
                    for inner in (op, *op.ops):
                        yield rank, tb, at, op, inner


# Of what stands at the top of a file, before gpus: the attribute of Plan, and its key.
PLAN_KEYS = {
    **{name: name for name in ("name", "collective", "protocol", "inplace")},
    "reuse": "reuse_resources",
    "double": "use_double_scratch_buffer",
    "alignment": "buffer_alignment",
    "threads": "num_threads_per_block",
    "min_bytes": "min_message_size",
    "max_bytes": "max_message_size",
}
_NOP_TEXT = '{"name": "nop"}'
_KEY = {"L": "type", "R": "buffer_id", "W": "switch_channel_id"}


def plan_text(plan: Plan) -> str:
    """The plan as the executor reads it, ended by a newline. Nothing is checked here."""
    head = {key: getattr(plan, name) for name, key in PLAN_KEYS.items()}
    return _object(0, head, "gpus", [_gpu(rank, gpu) for rank, gpu in enumerate(plan.gpus)]) + "\n"


def _object(indent: int, head: dict[str, Any], name: str, items: list[str]) -> str:
    """A JSON object, a key of `head` a line; then the list `name`, an item a line."""
    pad = " " * indent
    lines = "".join(f"{pad} {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    inside = "\n" + ",\n".join(items) + f"\n{pad} " if items else ""
    return f'{pad}{{\n{lines}{pad} "{name}": [{inside}]\n{pad}}}'


def _gpu(rank: int, gpu: PlanGpu) -> str:
    channels: list[dict[str, Any]] = [
        {"channel_type": kind, "connected_to": peers} for kind, peers in gpu.peers.items() if peers
    ]
    channels += [
        {"channel_type": "switch", "buffer_type": buffer, "rank_groups": [{"size": len(ranks), "ranks": ranks}]}
        for buffer, ranks in gpu.switches
    ]
    buffers = [{"rank": b.rank, "type": b.kind, "access_channel_types": list(b.types)} for b in gpu.buffers]
    head = {
        "id": rank,
        "input_chunks": gpu.input_chunks,
        "output_chunks": gpu.output_chunks,
        "scratch_chunks": gpu.scratch_chunks,
        "channels": channels,
        "remote_buffers": buffers,
        "semaphores": [{"init_value": held} for held in gpu.semaphores],
    }
    return _object(2, head, "threadblocks", [_block(number, block) for number, block in enumerate(gpu.blocks)])


def _block(number: int, block: PlanBlock) -> str:
    head = {
        "id": number,
        "channels": [{"channel_type": k, "channel_ids": ids} for k, ids in block.channels.items() if ids],
        "remote_buffer_refs": [
            {"access_channel_type": k, "remote_buffer_ids": ids} for k, ids in block.buffers.items() if ids
        ],
    }
    ops = ["      " + (_NOP_TEXT if op.name == "nop" else json.dumps(_op(op))) for op in block.ops]
    return _object(4, head, "ops", ops)


def _op(op: Op) -> dict[str, Any]:
    made: dict[str, Any] = {"name": op.name}
    for key, value in (
        ("src_buff", _parts(op.src)),
        ("dst_buff", _parts(op.dst)),
        ("channel_ids", list(op.channels)),
        ("channel_type", op.channel_type),
        ("semaphore_ids", list(op.semaphores)),
    ):
        if value:
            made[key] = value
    if op.name == "barrier":
        made["barrier_id"] = op.barrier
        made["num_threadblocks"] = op.blocks
    if op.name in SUMS:
        made["reduce_op"] = op.redop or "sum"
    if op.group != (0, 1):
        made["tbg_info"] = {"tb_id": op.group[0], "tbg_size": op.group[1]}
    if op.name == "pipeline":
        made["iter_context"] = {"unit_size": op.unit_bytes, "num_chunks": op.unit_chunks}
        made["ops"] = [_op(inner) for inner in op.ops]
    return made


def _parts(parts: Sequence[Part]) -> list[dict[str, Any]]:
    return [{_KEY[part.side]: part.at, "index": part.first, "size": part.size} for part in parts]
