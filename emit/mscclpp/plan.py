"""Define an MSCCL++ execution plan as its JSON holds it, and write that JSON: one operation a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from emit.images import images_of
from emit.program import chunks_in_file
from synth.model.deadline import checking_deadline

# Capacities of the executor's structures; its reader checks only the number of operations of a threadblock.
MAX_OPS = 64
MAX_CHANNELS = 16  # of one type in a threadblock; also the number of remote buffers
MAX_OP_CHANNELS = 8
MAX_OP_BUFFERS = 10
MAX_BARRIERS = 16
MAX_OP_SEMAPHORES = 16
NO_LIMIT = (1 << 64) - 1  # max_message_size
OFFSET_END = 1 << 32  # Bytes: offsets in a buffer, and ends of spans, have 32 bits.
MAX_ITERATIONS = (1 << 16) - 1  # of a pipeline: the kernel counts them in 16 bits
MAX_MIN_BYTES = (1 << 31) - 1  # The executor reads min_message_size as an int.
# The number of chunks of double scratch is a multiple of this: then its upper half begins at a multiple of a packet's
# 16 bytes, whatever the size of the allocation by which the executor sizes a chunk of scratch.
EVEN_SCRATCH = 8

# Spans that each operation reads and writes: L a local buffer, R a remote one, W a switch channel; + is one or more.
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
    **dict.fromkeys(("gstore", "gstorepkt"), ("L", "W")),
}
ON_CHANNELS = frozenset({"signal", "wait", "rlxsignal", "rlxwait", "flush", "pws", "pwsf"})
SUMS = frozenset({"re", "repkt", "recpkt", "res", "respkt", "recspkt", "rre", "rres", "glres"})
PACKETS = frozenset({"cpkt", "upkt", "ppkt", "rppkt", "repkt", "recpkt", "respkt", "recspkt", "gstorepkt"})
IN_SWITCH = frozenset({"glres", "gstore", "gstorepkt"})
CHANNEL_TYPES = ("memory", "port", "switch")


class PlanPart(NamedTuple):
    """A span of `size` chunks, from chunk `first` of a buffer.

    Attributes:
        side: L for a local buffer, R for a remote buffer, W for a switch channel.
        at: "i", "o" or "s" for the rank's own buffer; else the number in the threadblock's list of remote buffers (side
            R) or of switch channels (side W).
        first: First chunk.
        size: Number of chunks.
    """

    side: str
    at: str | int
    first: int
    size: int


class Op(NamedTuple):
    """An operation of a threadblock.

    Attributes:
        name: Name of the operation.
        src: Spans that it reads.
        dst: Spans that it writes.
        channel_type: Type of its channels.
        channels: Its channels, as numbers in the threadblock's list.
        semaphores: Its semaphores.
        barrier: Its barrier, −1 for none.
        blocks: Number of threadblocks that meet at the barrier.
        group: (number, size): this threadblock does part `number` of the work of a group of `size` threadblocks.
        redop: Reduction.
        ops: Operations that a pipeline repeats.
        unit_bytes: Bytes of an iteration of a pipeline.
        unit_chunks: Chunks that all iterations of a pipeline move.
    """

    name: str
    src: Sequence[PlanPart] = ()
    dst: Sequence[PlanPart] = ()
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


NOP = Op("nop")


def op_count(ops: Sequence[Op]) -> int:
    """Return the number of operations as the executor counts them: a pipeline, and each operation inside it."""
    return sum(1 + len(op.ops) for op in ops)


@dataclass(slots=True)
class PlanBlock:
    """A threadblock of a plan.

    Attributes:
        ops: Its operations.
        channels: Its channels by type, as numbers in its GPU's lists.
        buffers: Its remote buffers by channel type, as numbers in its GPU's list.
    """

    ops: list[Op] = field(default_factory=list)
    channels: dict[str, list[int]] = field(default_factory=dict)
    buffers: dict[str, list[int]] = field(default_factory=dict)


class RemoteBuffer(NamedTuple):
    """A buffer of another rank.

    Attributes:
        rank: The rank.
        kind: Its buffer (i, o, s).
        types: Types of the channels that reach it.
    """

    rank: int
    kind: str
    types: Sequence[str]


@dataclass(slots=True)
class PlanGpu:
    """A rank of a plan.

    Attributes:
        input_chunks: Chunks of the input.
        output_chunks: Chunks of the output.
        scratch_chunks: Chunks of scratch.
        blocks: Threadblocks.
        peers: By channel type (memory, port), the rank at the other end of each channel.
        switches: (buffer, ranks) of each switch channel.
        buffers: Remote buffers.
        semaphores: Initial value of each semaphore.
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
class ExecutionPlan:
    """An execution plan: the operations of all ranks.

    Attributes:
        name: Name.
        collective: Collective.
        protocol: Protocol.
        inplace: Whether input and output are one memory.
        gpus: The ranks.
        double: Whether scratch has two halves that launches use alternately.
        reuse: Whether all plans of a process share one scratch.
        alignment: Bytes to which a chunk is aligned.
        threads: Threads of a threadblock.
        min_bytes: Smallest size of the input (for allgather of the output), in bytes.
        max_bytes: Largest size of the input (for allgather of the output), in bytes.
        translations: Translations by which the ranks without threadblocks are images of those with threadblocks (see
            `emit.images`); () if the plan holds the threadblocks of all ranks. No file states them.
        widths: For each block of chunks that translations move together, how many chunks of the file one chunk of the
            plan is (see `emit.mscclpp.widths`); () if it is one everywhere.
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
    translations: tuple[tuple[int, int], ...] = ()
    widths: tuple[int, ...] = ()

    def in_file(self, chunks: int) -> int:
        """Return how many chunks of the file a whole input or output of so many chunks is."""
        return chunks_in_file(chunks, self.widths)

    @property
    def widest(self) -> int:
        """Return the largest number of chunks of the file that one chunk of the plan is."""
        return max(self.widths, default=1)

    @property
    def packets(self) -> bool:
        """Return True for protocol LL, whose scratch holds twice the bytes: data and flags of packets."""
        return self.protocol == "LL"

    @property
    def nops(self) -> int:
        """Return the number of operations of all ranks, images included.

        A pipeline counts once, and so does each operation inside it.
        """
        return sum(1 for _ in self.ops()) * images_of(self.translations, len(self.gpus)).order

    def connects(self, rank: int, target: int) -> bool:
        """Return True if channels lead from `rank` to `target`, perhaps through further ranks, or if both are equal."""
        reached, todo = {rank}, [rank]
        images = images_of(self.translations, len(self.gpus))
        while todo:
            member = todo.pop()
            gpu, moved = self.gpus[int(images.representative[member])], images.moved(int(images.element[member]))
            groups = [*gpu.peers.values(), *(ranks for _, ranks in gpu.switches)]
            todo += (new := {int(moved[peer]) for peers in groups for peer in peers} - reached)
            reached |= new
        return target in reached

    def ops(self) -> Iterator[tuple[int, int, int, Op, Op]]:
        """Yield (rank, threadblock, position, operation there, and that operation or one that it repeats).

        Each operation of a pipeline follows the pipeline, once, with its position. Ranks that are images have no
        operations here.
        """
        for rank, gpu in enumerate(self.gpus):
            for tb, block in enumerate(gpu.blocks):
                for at, op in checking_deadline(enumerate(block.ops), every=256):
                    yield rank, tb, at, op, op
                    for inner in op.ops:
                        yield rank, tb, at, op, inner


# Attributes of Plan, and their keys at the top of a file, before gpus.
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


def plan_text(plan: ExecutionPlan, gpu_texts: Iterable[str] | None = None) -> str:
    """Return the plan as the text that the executor reads, ended by a newline, without any check.

    Args:
        plan: The plan. If its ranks are images of a few representatives (`translations`), `gpu_texts` must be given.
        gpu_texts: Text of every rank, as `gpu_text` returns it; None to write those of the plan.
    """
    head = {key: getattr(plan, name) for name, key in PLAN_KEYS.items()}
    if gpu_texts is None:
        gpu_texts = (gpu_text(rank, gpu) for rank, gpu in enumerate(plan.gpus))
    return _object(0, head, "gpus", list(gpu_texts)) + "\n"


def with_other_head(text: str, plan: ExecutionPlan, other_plan: ExecutionPlan) -> str:
    """Return the text of a plan with the head of another one, which differs in nothing but its head.

    It is "" if the text does not begin as `plan_text` writes it.
    """
    heads = [plan_text(replace(own_plan, gpus=[])).partition('"gpus": [')[0] for own_plan in (plan, other_plan)]
    return heads[1] + text.removeprefix(heads[0]) if text.startswith(heads[0]) else ""


def _object(indent: int, head: dict[str, Any], name: str, items: list[str]) -> str:
    """Return a JSON object, indented, with one key of `head` a line, then the list `name` with one item a line.

    Args:
        indent: Number of blanks before its first and its last line.
        head: Keys and values before the list; the values are written as JSON.
        name: Key of the list.
        items: Items of the list as they are written, with their own indent.
    """
    pad = " " * indent
    lines = "".join(f"{pad} {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    inside = "\n" + ",\n".join(items) + f"\n{pad} " if items else ""
    return f'{pad}{{\n{lines}{pad} "{name}": [{inside}]\n{pad}}}'


def gpu_text(rank: Any, gpu: PlanGpu) -> str:
    """Return the text of a rank as an item of the plan's list.

    `rank` and the numbers in `gpu` may be anything that JSON can hold.
    """
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
        "semaphores": [{"init_value": initial_value} for initial_value in gpu.semaphores],
    }
    return _object(
        2, head, "threadblocks", [_block(number, block) for number, block in checking_deadline(enumerate(gpu.blocks))]
    )


def _block(number: int, block: PlanBlock) -> str:
    """Return the text of a threadblock as an item of its rank's list; empty lists of ids are left out."""
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
    """Return an operation as the JSON object that the executor reads; fields that it does not need are left out."""
    fields: dict[str, Any] = {"name": op.name}
    for key, value in (
        ("src_buff", _parts(op.src)),
        ("dst_buff", _parts(op.dst)),
        ("channel_ids", list(op.channels)),
        ("channel_type", op.channel_type),
        ("semaphore_ids", list(op.semaphores)),
    ):
        if value:
            fields[key] = value
    if op.name == "barrier":
        fields["barrier_id"] = op.barrier
        fields["num_threadblocks"] = op.blocks
    if op.name in SUMS:
        fields["reduce_op"] = op.redop or "sum"
    if op.group != (0, 1):
        fields["tbg_info"] = {"tb_id": op.group[0], "tbg_size": op.group[1]}
    if op.name == "pipeline":
        fields["iter_context"] = {"unit_size": op.unit_bytes, "num_chunks": op.unit_chunks}
        fields["ops"] = [_op(inner) for inner in op.ops]
    return fields


def _parts(parts: Sequence[PlanPart]) -> list[dict[str, Any]]:
    """Return spans as the JSON objects that the executor reads."""
    return [{_KEY[part.side]: part.at, "index": part.first, "size": part.size} for part in parts]


def in_units(plan: ExecutionPlan, unit_bytes: int) -> ExecutionPlan:
    """Return a plan whose pipelines move `unit_bytes` in each iteration."""
    gpus = [
        replace(
            gpu,
            blocks=[
                replace(
                    block, ops=[op._replace(unit_bytes=unit_bytes) if op.name == "pipeline" else op for op in block.ops]
                )
                for block in gpu.blocks
            ],
        )
        for gpu in plan.gpus
    ]
    return replace(plan, gpus=gpus)
