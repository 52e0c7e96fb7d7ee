"""Find the faults of a plan that are visible without running it: invalid ids, limits, sizes and shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from emit.findings import Findings
from emit.goal import Goal
from emit.mscclpp.memory import (
    buffer_of,
    collective_of,
    counted_chunks,
    has_empty_buffers,
    images_of_buffers,
    most_bytes,
    sizes_of,
)
from emit.mscclpp.plan import (
    EVEN_SCRATCH,
    MAX_BARRIERS,
    MAX_CHANNELS,
    MAX_MIN_BYTES,
    MAX_OP_BUFFERS,
    MAX_OP_CHANNELS,
    MAX_OP_SEMAPHORES,
    MAX_OPS,
    NO_LIMIT,
    ON_CHANNELS,
    PACKETS,
    SHAPES,
    ExecutionPlan,
    Op,
    PlanBlock,
    PlanGpu,
    PlanPart,
    op_count,
)
from synth.model.deadline import checking_deadline
from synth.model.registry import find_kind
from topologies.errors import InputError

# Types of channels that an operation may use, if it may not use both memory and port channels.
_TYPES_OF = {
    **dict.fromkeys(("get", "rre", "rres", "res", "respkt", "recspkt"), ("memory",)),
    **dict.fromkeys(("pws", "pwsf", "flush"), ("port",)),
}
_MOST_OF_LISTS = (MAX_OP_CHANNELS, MAX_OP_BUFFERS, MAX_OP_BUFFERS, MAX_OP_SEMAPHORES)
_SIDES = {"L": "its own buffers", "R": "remote buffers", "W": "switch channels"}


Fault = tuple[str, str]  # kind, message
Cell = tuple[str, int]  # buffer, chunk


def check_structure(plan: ExecutionPlan, goal: Goal | None, findings: Findings) -> bool:
    """Add a finding for each structural fault; return True if the plan can be executed, despite exceeded limits.

    `goal` only matters for whether it is None: then the sizes of buffers must be those of the plan's collective, if its
    name implies any. `findings` must be empty before.
    """
    for rank, gpu in enumerate(plan.gpus):
        for kind, message in _rank_faults(plan, rank):
            findings.add(kind, message, rank)
        for tb, block in checking_deadline(enumerate(gpu.blocks)):
            for kind, message in _block_faults(gpu, rank, block):
                findings.add(kind, message, rank, tb)
            for at, op in enumerate(block.ops):
                for inner in (op, *op.ops):
                    if inner.name != "nop":
                        for kind, message in _op_faults(gpu, rank, block, inner):
                            findings.add(kind, f"{inner.name} {message}", rank, tb, at)
    if goal is None:
        _check_sizes(plan, findings)
    _check_double_scratch(plan, findings)
    _check_message_sizes(plan, findings)
    if all(f.kind == "limit" for f in findings.reported):  # All objects that the plan names exist.
        _check_parts(plan, findings)
    return all(f.kind == "limit" for f in findings.reported)


def ensure_executable(plan: ExecutionPlan, goal: Goal | None, cannot: str) -> None:
    """Raise InputError, beginning with `cannot`, for a plan that names objects that do not exist.

    Sizes or shapes that are wrong raise it too; exceeded limits alone raise nothing. `goal` is as for
    `check_structure`.
    """
    findings = Findings()
    if not check_structure(plan, goal, findings):
        finding = next(f for f in findings.reported if f.kind != "limit")
        raise InputError(f"{cannot}: {finding.kind}: {finding.message}")


def _check_parts(plan: ExecutionPlan, findings: Findings) -> None:
    """Add a finding for each operation that exceeds a buffer, or that the executor runs differently."""
    for rank, tb, at, op, inner in plan.ops():
        if inner.src:
            for kind, message, cell in _reach_faults(plan, rank, tb, inner):
                findings.add(kind, f"{inner.name} {message}", rank, tb, at, cell)
        if op.name == "pipeline":
            for kind, message in _pipeline_faults(op, inner):
                findings.add(kind, f"{inner.name} {message}", rank, tb, at)


def _pipeline_faults(pipeline: Op, op: Op) -> Iterator[Fault]:
    """Yield the faults, as (kind, message), of an operation `op` as part of a pipeline."""
    if op.src and op.src[0].size < pipeline.unit_chunks:
        yield "overrun", f"of {op.src[0].size} chunks in a pipeline of {pipeline.unit_chunks}"
    if op.name in PACKETS:
        yield "inconsistent", "in a pipeline moves everything each time"


def _check_sizes(plan: ExecutionPlan, findings: Findings) -> None:
    """Add a finding for each rank whose chunks of input and output are not what the collective implies.

    A rank with an empty buffer is left out, and so is a collective that implies no sizes. If the chunks cannot be
    divided among the ranks, that is the only finding.
    """
    if not find_kind(collective_of(plan)).unit:
        return
    for rank, gpu in enumerate(plan.gpus):
        try:
            sizes = sizes_of(plan, rank)
        except InputError as error:
            findings.add("inconsistent", str(error))
            return
        declared = (gpu.input_chunks, gpu.output_chunks)
        if declared != sizes and 0 not in declared:
            requirement = f"{plan.collective} on {len(plan.gpus)} ranks has {sizes[0]} and {sizes[1]}"
            findings.add(
                "inconsistent", f"input_chunks {declared[0]}, output_chunks {declared[1]}; {requirement}", rank
            )


def _check_double_scratch(plan: ExecutionPlan, findings: Findings) -> None:
    """Add a finding for the first rank whose double scratch differs from the largest; none without double scratch.

    Its scratch_chunks and its input_chunks must be equal to those of the rank with the largest scratch.

    A rank adds half of its own scratch to addresses in other ranks' scratch. The executor makes scratch as large as
    scratch_chunks · (bytes of the input / input_chunks).
    """
    sizes = [(gpu.scratch_chunks, gpu.input_chunks) for gpu in plan.gpus]
    largest = max(sizes)
    differing_rank = next((rank for rank, size in enumerate(sizes) if size != largest), None)
    if plan.double and differing_rank is not None:
        describe = "scratch_chunks {} of input_chunks {}".format
        requirement = f"must be {describe(*largest)}, as on rank {sizes.index(largest)}"
        reason = "every second launch adds half of a rank's own to addresses in that of others"
        findings.add(
            "inconsistent",
            f"has {describe(*sizes[differing_rank])} in a double scratch buffer; it {requirement}: {reason}",
            differing_rank,
        )


def _check_message_sizes(plan: ExecutionPlan, findings: Findings) -> None:
    """Add a finding if the executor cannot take the message sizes that a plan states.

    That is a smallest size that is no int or more than the largest, or a largest size whose offsets exceed 32 bits, or
    whose pipelines have more iterations than 16 bits. A plan that states no largest size gets a note from `caution`
    instead.
    """
    if plan.min_bytes > MAX_MIN_BYTES:
        requirement = f"it must be at most {MAX_MIN_BYTES}"
        findings.add("limit", f"min_message_size {plan.min_bytes} is read as an int: {requirement}")
    elif plan.min_bytes > plan.max_bytes:
        message = f"min_message_size {plan.min_bytes} is more than max_message_size {plan.max_bytes}: no call fits"
        findings.add("inconsistent", message)
    if not has_empty_buffers(plan):
        max_bytes, least_bytes = most_bytes(plan), plan.alignment * counted_chunks(plan)
        if max_bytes < least_bytes:
            fit = f"offsets and iterations fit messages of at most {max_bytes} bytes"
            findings.add("limit", f"{fit}; it must be at least {least_bytes}, the plan's smallest message")
        elif max_bytes < plan.max_bytes < NO_LIMIT:
            requirement = f"it must be at most {max_bytes}"
            findings.add(
                "limit",
                f"max_message_size {plan.max_bytes}, where offsets have 32 bits, and iterations 16 bits: {requirement}",
            )


def _rank_faults(plan: ExecutionPlan, rank: int) -> Iterator[Fault]:
    """Yield the faults, as (kind, message), of a rank's buffers, channels and remote buffers."""
    gpu, nranks = plan.gpus[rank], len(plan.gpus)
    for name, chunks in (("input", gpu.input_chunks), ("output", gpu.output_chunks)):
        if chunks < 1:
            yield "inconsistent", f"{name}_chunks {chunks}, which crashes the reader; it must be 1 or more"
    for kind, peers in gpu.peers.items():
        for number, peer in enumerate(peers):
            if peer == rank or peer >= nranks:
                requirement = f"another rank in 0..{nranks - 1}"
                yield "dangling id", f"{kind} channel {number} to rank {peer}; it must be {requirement}"
    for number, (_, ranks) in enumerate(gpu.switches):
        if rank not in ranks or max(ranks, default=0) >= nranks or len(set(ranks)) < len(ranks):
            requirement = f"{rank} and others of 0..{nranks - 1}, each once"
            yield "dangling id", f"switch channel {number} of ranks {list(ranks)}; it must hold {requirement}"
    for number, buffer in enumerate(gpu.buffers):
        if buffer.rank == rank or buffer.rank >= nranks or not buffer.types:
            subject = f"remote buffer {number} of rank {buffer.rank} by {list(buffer.types)}"
            yield "dangling id", f"{subject}; it must be another rank's, by memory or port channels"


def _block_faults(gpu: PlanGpu, rank: int, block: PlanBlock) -> Iterator[Fault]:
    """Yield the faults, as (kind, message), of a threadblock of `rank`: too many operations, or wrong lists of ids."""
    nops = op_count(block.ops)  # The executor counts a pipeline and its operations.
    if nops > MAX_OPS:
        yield _over(f"{nops} operations", MAX_OPS)
    for kind, ids in block.channels.items():
        available = len(gpu.switches) if kind == "switch" else len(gpu.peers.get(kind, ()))
        if len(ids) > MAX_CHANNELS:
            yield _over(f"{len(ids)} {kind} channels", MAX_CHANNELS)
        for number in ids:
            if number >= available:
                yield "dangling id", f"{kind} channel {number}; rank {rank} has {available}"
    for kind, ids in block.buffers.items():
        if len(ids) > MAX_CHANNELS:
            yield _over(f"{len(ids)} remote buffers by {kind}", MAX_CHANNELS)
        for number in ids:
            if number >= len(gpu.buffers):
                yield "dangling id", f"remote buffer {number}; rank {rank} has {len(gpu.buffers)}"
            elif kind not in (types := gpu.buffers[number].types):
                yield "dangling id", f"remote buffer {number} by {kind}; it is reached by {', '.join(types)}"


def _over(quantity: str, most: int) -> Fault:
    """Return the fault (kind "limit", message) of an exceeded limit of the executor."""
    return "limit", f"{quantity}; the executor takes at most {most}"


def _op_faults(gpu: PlanGpu, rank: int, block: PlanBlock, op: Op) -> Iterator[Fault]:
    """Yield the faults, as (kind, message), of an operation of a threadblock of `rank`.

    They are exceeded limits, ids that do not exist, and wrong channels, shapes or reductions. After a wrong type of
    channels, nothing more is looked for.
    """
    lists = (op.channels, op.src, op.dst, op.semaphores)
    if max(map(len, lists)) > min(_MOST_OF_LISTS):
        words = ("channels", "sources", "destinations", "semaphores")
        for ids, most, word in zip(lists, _MOST_OF_LISTS, words, strict=True):
            if len(ids) > most:
                yield _over(f"with {len(ids)} {word}", most)
    if op.barrier >= MAX_BARRIERS:
        yield "limit", f"{op.barrier}; the executor has barriers 0..{MAX_BARRIERS - 1}"
    for number in op.semaphores:
        if number >= len(gpu.semaphores):
            yield "dangling id", f"of semaphore {number}; rank {rank} has {len(gpu.semaphores)}"
    if op.name in ("sem_acquire", "sem_release") and not op.semaphores:
        yield "inconsistent", "of no semaphore; it must have semaphore_ids"
    kinds, kind = _TYPES_OF.get(op.name, ("memory", "port")), op.channel_type
    parts = (*op.src, *op.dst)
    is_remote = "R" in [part.side for part in parts]
    on_channels = op.name in ON_CHANNELS or (is_remote and kind == "port" and any(p.side == "R" for p in op.dst))
    if (on_channels or is_remote) and kind not in kinds:
        yield "inconsistent", f"on channels of type {kind!a}; it must be {' or '.join(kinds)}"
        return
    channels, buffers = len(block.channels.get(kind, ())), len(block.buffers.get(kind, ()))
    if on_channels:
        if not op.channels:
            yield "inconsistent", "on no channel; it must have channel_ids"
        for number in op.channels:
            if number >= channels:
                yield "dangling id", f"on {kind} channel {number} of its tb; the tb has {channels}"
    yield from _shape_faults(op)
    for part in parts:
        if part.side == "R" and int(part.at) >= buffers:
            yield "dangling id", f"on remote buffer {part.at} of its tb; the tb has {buffers} by {kind}"
        if part.side == "W" and int(part.at) >= len(block.channels.get("switch", ())):
            yield "dangling id", f"on switch channel {part.at} of its tb; the tb has no such channel"
    if op.redop not in ("", "sum"):
        yield "inconsistent", f"with reduce_op {op.redop[:20]!a}, which the executor does not read: it sums"


@lru_cache(maxsize=256)
def _takes(shape: str, sides: str) -> bool:
    """Return True if an operation with a shape as in SHAPES takes spans of these sides, a letter for each."""
    return re.fullmatch(shape, sides) is not None


def _shape_faults(op: Op) -> Iterator[Fault]:
    """Yield the faults, as (kind, message), of an operation whose spans the executor does not take.

    They are of other kinds than SHAPES names, which ends the search, or of unequal sizes or numbers.
    """
    for word, parts, shape in zip(("reads", "writes"), (op.src, op.dst), SHAPES[op.name], strict=True):
        sides_used = "".join([part.side for part in parts])
        if not _takes(shape, sides_used):
            sides = ", ".join(_SIDES[side] for side in dict.fromkeys(shape.replace("+", "")))
            yield "inconsistent", f"{word} {sides_used or 'nothing'}; it must be {shape or 'nothing'} ({sides})"
            return
    if op.name not in PAIRS and len({part.size for part in (*op.src, *op.dst)}) > 1:
        yield "inconsistent", f"of sizes {sorted({p.size for p in (*op.src, *op.dst)})}; it must be one size"
    differs = op.channel_type == "port" and len(op.channels) != len(op.dst)
    if op.name in PAIRS:
        if len(op.src) != len(op.dst):
            yield "inconsistent", f"of {len(op.src)} sources to {len(op.dst)} destinations; it must be as many"
        elif any(a.size != b.size for a, b in zip(op.src, op.dst, strict=True)):
            yield "inconsistent", "whose sources and destinations differ in size; it must be equal"
        if differs:
            yield _unlike_channels(op)
    if op.channel_type == "memory" and op.name in ("put", "ppkt") and len({p.at for p in op.src}) > 1:
        yield "inconsistent", "from several buffers; the executor takes all sources from the first one's"
    if op.name == "rppkt" and differs:
        yield _unlike_channels(op)


def _unlike_channels(op: Op) -> Fault:
    """Return the fault (kind, message) of an operation whose destinations are not as many as its channels."""
    return "inconsistent", f"of {len(op.dst)} destinations on {len(op.channels)} channels; it must be as many"


PAIRS = frozenset({"put", "ppkt", "pws", "pwsf", "get"})  # Operations whose n-th source goes to their n-th destination.


def packet_parts(op: Op) -> tuple[list[bool], list[bool]]:
    """Return for each source, and then for each destination, of an operation whether it holds packets."""
    if op.name not in PACKETS:
        return [False] * len(op.src), [False] * len(op.dst)
    reads_all = op.name in ("upkt", "rppkt", "gstorepkt") or (op.name == "ppkt" and op.channel_type == "port")
    reads_rest = op.name in ("repkt", "recpkt", "respkt", "recspkt")
    writes_all = op.name in ("cpkt", "rppkt", "ppkt", "gstorepkt")
    writes_rest = op.name in ("recpkt", "respkt", "recspkt")
    sources = [reads_all or (reads_rest and n > 0) for n in range(len(op.src))]
    return sources, [writes_all or (writes_rest and n > 0) for n in range(len(op.dst))]


def executed_parts(op: Op) -> tuple[Sequence[PlanPart], Sequence[PlanPart]]:
    """Return sources and destinations of an operation as the executor takes them, in order.

    Those of a get have the first chunks of the two sides exchanged; those of all others are as the operation states
    them.
    """
    if op.name != "get":
        return op.src, op.dst
    pairs = list(zip(op.src, op.dst, strict=True))
    return [a._replace(first=b.first) for a, b in pairs], [b._replace(first=a.first) for a, b in pairs]


def _reach_faults(plan: ExecutionPlan, rank: int, tb: int, op: Op) -> Iterator[tuple[str, str, Cell | None]]:
    """Yield the faults, as (kind, message, cell or None), of spans that exceed a buffer or are misplaced.

    A span is misplaced if the executor looks for it elsewhere: packets outside of scratch, plain data in double scratch
    of another rank or through a port channel, a port channel to another rank than its buffer's. A cell is (buffer,
    chunk).
    """
    images = images_of_buffers(plan)
    for parts, packets, word in zip(executed_parts(op), packet_parts(op), ("source", "destination"), strict=True):
        for part, packet in zip(parts, packets, strict=True):
            for owner, kind in buffer_of(plan, rank, tb, part, op.channel_type):
                gpu = plan.gpus[owner]
                chunks = {"i": gpu.input_chunks, "o": gpu.output_chunks, "s": gpu.scratch_chunks}[kind]
                owner_text = "" if owner == rank else f" of rank {owner}"
                if packet and kind != "s":
                    yield "inconsistent", f"with packets in {kind}{owner_text}; it must be in scratch", None
                    continue
                if packet and not plan.packets:
                    yield "inconsistent", f"in a plan of protocol {plan.protocol[:20]!a}; packets need LL", None
                    continue
                if not packet and kind == "s" and plan.packets:
                    chunks *= 2
                if images is not None and not images.moves_together(kind, part.first, part.size):
                    yield "inconsistent", f"{word} {kind}[{part.first}..] is torn apart on other ranks", None
                last = part.first + part.size - 1
                if last >= chunks:
                    span = f"{kind}[{part.first}..{last}]{owner_text}"
                    yield "overrun", f"{word} {span}; {kind} has {chunks} chunks", (kind, last)
                if kind == "s" and plan.double and not packet and (owner != rank or op.channel_type == "port"):
                    reason = "ignores which half of the double scratch is in use"
                    yield "inconsistent", f"{word} s[{part.first}]{owner_text} {reason}", ("s", part.first)
    if op.channel_type == "port":  # A port channel reaches only the memory of the rank at its other end.
        gpu, block = plan.gpus[rank], plan.gpus[rank].blocks[tb]
        for part, number in zip(op.dst, op.channels, strict=True):
            if part.side == "R":
                peer = gpu.peers["port"][block.channels["port"][number]]
                owner = gpu.buffers[block.buffers["port"][int(part.at)]].rank
                if owner != peer:
                    destination = f"a channel to rank {peer}; it must be one rank"
                    yield "inconsistent", f"to a buffer of rank {owner} on {destination}", None


def caution(plan: ExecutionPlan) -> list[str]:
    """Return one line for each fact that is no fault of the plan, but that its caller must watch; [] for none."""
    notes = []
    max_blocks, rank = max((len(gpu.blocks), -rank) for rank, gpu in enumerate(plan.gpus))
    if max_blocks > 100:
        notes.append(f"caution: rank {-rank} has {max_blocks} threadblocks, which must all be resident simultaneously")
    if any(op.name == "flush" for gpu in plan.gpus for block in gpu.blocks for op in block.ops):
        notes.append("caution: flush does nothing in the executor")
    if not plan.reuse and any(op.name == "ppkt" and op.channel_type == "port" for *_, op in plan.ops()):
        advice = "use rppkt, or reuse_resources"
        notes.append(f"caution: ppkt on port channels sends the scratch of the executor's first call; {advice}")
    if plan.protocol not in ("LL", "Simple"):
        notes.append(f"caution: protocol {plan.protocol[:20]!a} is taken for Simple; the executor knows LL only")
    if plan.max_bytes == NO_LIMIT and not has_empty_buffers(plan):
        notes.append(f"caution: no max_message_size: beyond {most_bytes(plan)} bytes offsets or iterations do not fit")
    if plan.double and any(
        g.scratch_chunks % EVEN_SCRATCH and g.input_chunks & (g.input_chunks - 1) for g in plan.gpus
    ):
        remedy = f"use scratch_chunks that are a multiple of {EVEN_SCRATCH}"
        notes.append(f"caution: half of the double scratch may be no multiple of 16 bytes; {remedy}")
    if plan.reuse:
        notes.append("caution: reuse_resources: judged as for messages whose scratch is not yet used in turns")
    return notes
