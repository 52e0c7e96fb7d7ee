"""Faults of a plan that can be seen without running it: ids that lead nowhere, limits, sizes, counts of signals."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from emit.findings import Findings
from emit.goal import Goal
from emit.mscclpp.memory import buffer_of, collective_of, sizes_of
from emit.mscclpp.plan import (
    MAX_BARRIERS,
    MAX_CHANNELS,
    MAX_OP_BUFFERS,
    MAX_OP_CHANNELS,
    MAX_OP_SEMAPHORES,
    MAX_OPS,
    ON_CHANNELS,
    PACKETS,
    SHAPES,
    Op,
    Part,
    Plan,
    ops_of,
)
from topologies.errors import InputError

_MEMORY_ONLY = frozenset({"get", "rre", "rres", "res", "respkt", "recspkt"})
_SIDES = {"L": "its own buffers", "R": "remote buffers", "W": "switch channels"}


def check_structure(plan: Plan, goal: Goal | None, found: Findings) -> None:
    """Add a finding for each. If any is found, the plan may name what does not exist."""
    for rank, gpu in enumerate(plan.gpus):
        for name, chunks in (("input", gpu.input_chunks), ("output", gpu.output_chunks)):
            if chunks < 1:
                found.add(
                    "inconsistent",
                    f"{name}_chunks {chunks}, which crashes the reader; would be 1 or more",
                    rank,
                )
        for kind, peers in gpu.peers.items():
            for number, peer in enumerate(peers):
                if peer == rank or peer >= len(plan.gpus):
                    found.add(
                        "dangling id",
                        f"{kind} channel {number} to rank {peer}; would be another rank in 0..{len(plan.gpus) - 1}",
                        rank,
                    )
        for number, (_, ranks) in enumerate(gpu.switches):
            if rank not in ranks or max(ranks, default=0) >= len(plan.gpus) or len(set(ranks)) < len(ranks):
                found.add(
                    "dangling id", f"switch channel {number} of ranks {list(ranks)}; would hold {rank}", rank
                )
        for number, buffer in enumerate(gpu.buffers):
            if buffer.rank == rank or buffer.rank >= len(plan.gpus) or not buffer.types:
                found.add(
                    "dangling id",
                    f"remote buffer {number} of rank {buffer.rank} by {list(buffer.types)}; would be another rank's, "
                    "by memory or port channels",
                    rank,
                )
        for tb in range(len(gpu.blocks)):
            _block(plan, rank, tb, found)
    if goal is None:
        _sizes(plan, found)


def check_parts(plan: Plan, found: Findings) -> None:
    """Add a finding for each operation that reaches beyond a buffer, or where the executor does something else."""
    for rank, gpu in enumerate(plan.gpus):
        for tb, block in enumerate(gpu.blocks):
            for at, op in enumerate(block.ops):
                for inner in (op, *op.ops):
                    if inner.src:
                        _reach(plan, rank, tb, at, inner, found)
                    if inner.src and op.name == "pipeline" and inner.src[0].size < op.unit_chunks:
                        found.add(
                            "overrun",
                            f"{inner.name} of {inner.src[0].size} chunks in a pipeline of {op.unit_chunks}",
                            rank,
                            tb,
                            at,
                        )
                    if inner.name in PACKETS and op.name == "pipeline":
                        found.add(
                            "inconsistent",
                            f"{inner.name} in a pipeline moves everything each time",
                            rank,
                            tb,
                            at,
                        )


def _sizes(plan: Plan, found: Findings) -> None:
    """The chunks of input and output must be what the collective implies: they are of one size."""
    if collective_of(plan) in ("custom", "send", "recv", "alltoallv"):
        return
    for rank, gpu in enumerate(plan.gpus):
        try:
            want = sizes_of(plan, rank)
        except InputError as error:
            found.add("inconsistent", str(error))
            return
        has = (gpu.input_chunks, gpu.output_chunks)
        if has != want and 0 not in has:
            found.add(
                "inconsistent",
                f"input_chunks {has[0]}, output_chunks {has[1]}; {plan.collective} on {len(plan.gpus)} ranks "
                f"has {want[0]} and {want[1]}",
                rank,
            )


def _block(plan: Plan, rank: int, tb: int, found: Findings) -> None:
    gpu = plan.gpus[rank]
    block = gpu.blocks[tb]
    if ops_of(block) > MAX_OPS:
        found.add("limit", f"{ops_of(block)} operations; the executor takes at most {MAX_OPS}", rank, tb)
    for kind, ids in block.channels.items():
        have = len(gpu.switches) if kind == "switch" else len(gpu.peers.get(kind, ()))
        if len(ids) > MAX_CHANNELS:
            found.add(
                "limit", f"{len(ids)} {kind} channels; the executor takes at most {MAX_CHANNELS}", rank, tb
            )
        for number in ids:
            if number >= have:
                found.add("dangling id", f"{kind} channel {number}; rank {rank} has {have}", rank, tb)
    for kind, ids in block.buffers.items():
        if len(ids) > MAX_CHANNELS:
            found.add(
                "limit",
                f"{len(ids)} remote buffers by {kind}; the executor takes at most {MAX_CHANNELS}",
                rank,
                tb,
            )
        for number in ids:
            if number >= len(gpu.buffers):
                found.add(
                    "dangling id", f"remote buffer {number}; rank {rank} has {len(gpu.buffers)}", rank, tb
                )
            elif kind not in gpu.buffers[number].types:
                found.add(
                    "dangling id",
                    f"remote buffer {number} by {kind}; it is reached by {', '.join(gpu.buffers[number].types)}",
                    rank,
                    tb,
                )
    for at, op in enumerate(block.ops):
        for inner in (op, *op.ops):
            if inner.name != "nop":
                _op(plan, rank, tb, at, inner, found)


def _op(plan: Plan, rank: int, tb: int, at: int, op: Op, found: Findings) -> None:
    gpu = plan.gpus[rank]
    block = gpu.blocks[tb]

    def add(kind: str, message: str) -> None:
        found.add(kind, f"{op.name} {message}", rank, tb, at)

    for length, most, word in (
        (len(op.channels), MAX_OP_CHANNELS, "channels"),
        (len(op.src), MAX_OP_BUFFERS, "sources"),
        (len(op.dst), MAX_OP_BUFFERS, "destinations"),
        (len(op.semaphores), MAX_OP_SEMAPHORES, "semaphores"),
    ):
        if length > most:
            add("limit", f"with {length} {word}; the executor takes at most {most}")
    if op.barrier >= MAX_BARRIERS:
        add("limit", f"{op.barrier}; the executor has barriers 0..{MAX_BARRIERS - 1}")
    for number in op.semaphores:
        if number >= len(gpu.semaphores):
            add("dangling id", f"of semaphore {number}; rank {rank} has {len(gpu.semaphores)}")
    if op.name in ("sem_acquire", "sem_release") and not op.semaphores:
        add("inconsistent", "of no semaphore; would have semaphore_ids")
    kinds = {"pws": ("port",), "pwsf": ("port",), "flush": ("port",)}.get(op.name, ("memory", "port"))
    if op.name in _MEMORY_ONLY:
        kinds = ("memory",)
    on_channels = op.name in ON_CHANNELS or (op.channel_type == "port" and any(p.side == "R" for p in op.dst))
    if (on_channels or any(p.side == "R" for p in (*op.src, *op.dst))) and op.channel_type not in kinds:
        add("inconsistent", f"on channels of type {op.channel_type!a}; would be {' or '.join(kinds)}")
        return
    if on_channels:
        have = block.channels.get(op.channel_type, [])
        if not op.channels:
            add("inconsistent", "on no channel; would have channel_ids")
        for number in op.channels:
            if number >= len(have):
                add("dangling id", f"on {op.channel_type} channel {number} of its tb; the tb has {len(have)}")
    _shape(op, add)
    for part in (*op.src, *op.dst):
        if part.side == "R" and int(part.at) >= len(block.buffers.get(op.channel_type, ())):
            have = block.buffers.get(op.channel_type, [])
            add(
                "dangling id",
                f"on remote buffer {part.at} of its tb; the tb has {len(have)} by {op.channel_type}",
            )
        if part.side == "W" and int(part.at) >= len(block.channels.get("switch", ())):
            add("dangling id", f"on switch channel {part.at} of its tb; it has no such")
    if op.redop not in ("", "sum"):
        add("inconsistent", f"with reduce_op {op.redop[:20]!a}, which the executor does not read: it sums")


def _shape(op: Op, add: Callable[[str, str], None]) -> None:
    """What an operation reads and writes must be of the kinds and sizes that the executor takes."""
    for word, parts, shape in zip(("reads", "writes"), (op.src, op.dst), SHAPES[op.name], strict=True):
        has = "".join(part.side for part in parts)
        if not re.fullmatch(shape, has):
            told = [_SIDES[side] for side in dict.fromkeys(shape.replace("+", ""))]
            add(
                "inconsistent",
                f"{word} {has or 'nothing'}; would be {shape or 'nothing'} ({', '.join(told)})",
            )
            return
    if len({part.size for part in (*op.src, *op.dst)}) > 1 and op.name not in _PAIRS:
        add("inconsistent", f"of sizes {sorted({p.size for p in (*op.src, *op.dst)})}; would be one size")
    if op.name in _PAIRS:
        if len(op.src) != len(op.dst):
            add("inconsistent", f"of {len(op.src)} sources to {len(op.dst)} destinations; would be as many")
        elif any(a.size != b.size for a, b in zip(op.src, op.dst, strict=True)):
            add("inconsistent", "whose sources and destinations differ in size; would be equal")
        if op.channel_type == "port" and len(op.channels) != len(op.dst):
            add(
                "inconsistent",
                f"of {len(op.dst)} destinations on {len(op.channels)} channels; would be as many",
            )
    if op.channel_type == "memory" and op.name in ("put", "ppkt") and len({p.at for p in op.src}) > 1:
        add("inconsistent", "from several buffers; the executor takes all sources from the first one's")
    if op.name == "rppkt" and op.channel_type == "port" and len(op.channels) != len(op.dst):
        add("inconsistent", f"of {len(op.dst)} destinations on {len(op.channels)} channels; would be as many")


_PAIRS = frozenset({"put", "ppkt", "pws", "pwsf", "get"})


def packet_parts(op: Op) -> tuple[list[bool], list[bool]]:
    """For each source and destination whether it holds packets."""
    sources, targets = [False] * len(op.src), [False] * len(op.dst)
    if op.name in ("upkt", "rppkt"):
        sources = [True] * len(op.src)
    elif op.name in ("repkt", "recpkt", "respkt", "recspkt"):
        sources = [n > 0 for n in range(len(op.src))]
    elif op.name == "ppkt" and op.channel_type == "port":
        sources = [True] * len(op.src)
    if op.name in ("cpkt", "rppkt", "ppkt"):
        targets = [True] * len(op.dst)
    elif op.name in ("recpkt", "respkt", "recspkt"):
        targets = [n > 0 for n in range(len(op.dst))]
    return sources, targets


def executed_parts(op: Op) -> tuple[Sequence[Part], Sequence[Part]]:
    """Sources and destinations as the executor takes them: get has the offset of each side from the other."""
    if op.name != "get":
        return op.src, op.dst
    pairs = list(zip(op.src, op.dst, strict=True))
    return [a._replace(first=b.first) for a, b in pairs], [b._replace(first=a.first) for a, b in pairs]


def _reach(plan: Plan, rank: int, tb: int, at: int, op: Op, found: Findings) -> None:
    flags = packet_parts(op)
    sources, targets = executed_parts(op)
    for parts, packets, word in ((sources, flags[0], "source"), (targets, flags[1], "destination")):
        for part, packet in zip(parts, packets, strict=True):
            for owner, kind in buffer_of(plan, rank, tb, part, op.channel_type):
                _part(plan, (rank, tb, at), op, part, packet, word, owner, kind, found)
    if op.channel_type == "port":
        _ports(plan, rank, tb, at, op, found)


def _part(
    plan: Plan,
    place: tuple[int, int, int],
    op: Op,
    part: Part,
    packet: bool,
    word: str,
    owner: int,
    kind: str,
    found: Findings,
) -> None:
    gpu = plan.gpus[owner]
    chunks = {"i": gpu.input_chunks, "o": gpu.output_chunks, "s": gpu.scratch_chunks}[kind]
    whose = "" if owner == place[0] else f" of rank {owner}"
    if packet and kind != "s":
        found.add("inconsistent", f"{op.name} with packets in {kind}{whose}; would be in scratch", *place)
        return
    if packet and not plan.packets:
        found.add(
            "inconsistent", f"{op.name} in a plan of protocol {plan.protocol[:20]!a}; packets need LL", *place
        )
        return
    if not packet and kind == "s" and plan.packets:
        chunks *= 2
    last = part.first + part.size - 1
    if last >= chunks:
        found.add(
            "overrun",
            f"{op.name} {word} {kind}[{part.first}..{last}]{whose}; {kind} has {chunks} chunks",
            *place,
            cell=(kind, last),
        )
    if kind == "s" and plan.double and not packet and (owner != place[0] or op.channel_type == "port"):
        found.add(
            "inconsistent",
            f"{op.name} {word} s[{part.first}]{whose} ignores which half of the double scratch is in use",
            *place,
            cell=("s", part.first),
        )


def _ports(plan: Plan, rank: int, tb: int, at: int, op: Op, found: Findings) -> None:
    """A port channel reaches the memory of the rank at its other end only."""
    gpu = plan.gpus[rank]
    block = gpu.blocks[tb]
    for part, number in zip(op.dst, op.channels, strict=True):
        if part.side == "R":
            peer = gpu.peers["port"][block.channels["port"][number]]
            owner = gpu.buffers[block.buffers["port"][int(part.at)]].rank
            if owner != peer:
                found.add(
                    "inconsistent",
                    f"{op.name} to a buffer of rank {owner} on a channel to rank {peer}; would be one rank",
                    rank,
                    tb,
                    at,
                )


def caution(plan: Plan) -> list[str]:
    """Lines on what is no fault of the plan, but its caller's to see to."""
    notes = []
    most = Counter({rank: len(gpu.blocks) for rank, gpu in enumerate(plan.gpus)}).most_common(1)
    if most and most[0][1] > 100:
        notes.append(
            f"caution: rank {most[0][0]} has {most[0][1]} threadblocks, which must all be resident at once"
        )
    if any(op.name == "flush" for gpu in plan.gpus for block in gpu.blocks for op in block.ops):
        notes.append("caution: flush does nothing in the executor")
    if plan.reuse:
        notes.append(
            "caution: reuse_resources: judged as for messages whose scratch is not yet used in turns"
        )
    return notes
