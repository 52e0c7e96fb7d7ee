"""Find where a program exceeds the limits of a target, in its threadblocks and in its steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from emit.findings import Findings
from emit.program import OPS, READS_DST, READS_SRC, WRITES_DST, Program
from emit.targets import Limits, check_resident
from synth.model.deadline import checking_deadline

_USES_DST = READS_DST | WRITES_DST


def check_limits(program: Program, limits: Limits, findings: Findings) -> None:
    """Add a finding of kind "limit" for everything in the program, or in its steps, that exceeds the limits."""
    blocks = [[(tb.channel, tb.send, tb.recv, len(tb.steps)) for tb in gpu.threadblocks] for gpu in program.gpus]
    check_threadblocks(program.nranks, blocks, limits, findings)
    check_steps(program, limits, findings)


def check_threadblocks(
    nranks: int, blocks: Sequence[Sequence[tuple[int, int, int, int]]], limits: Limits, findings: Findings
) -> None:
    """Add a finding of kind "limit" for each limit on ranks and threadblocks that is exceeded.

    Args:
        nranks: Number of ranks.
        blocks: For each rank and threadblock (channel, rank it sends to, rank it receives from, number of steps); a
            rank is -1 for none.
        limits: Limits of the target.
        findings: Where the findings are added.
    """
    _check_number(limits, findings, "gpus", nranks, limits.children)
    check_resident([len(rank_blocks) for rank_blocks in blocks], limits.sms, findings)
    for rank, rank_blocks in enumerate(blocks):
        if not 0 < limits.sms < len(rank_blocks):  # check_resident has reported this rank
            _check_number(
                limits, findings, "threadblocks", len(rank_blocks), min(limits.tbs_per_gpu, limits.children), rank
            )
        nodes = 1 + nranks + len(rank_blocks) + sum(steps for *_, steps in rank_blocks)
        _check_number(limits, findings, limits.node, nodes, limits.nodes, rank)
        for peer_field, side in ((1, "send"), (2, "recv")):
            counts = Counter(block[0] for block in rank_blocks if block[peer_field] >= 0)
            for channel, number in sorted(counts.items()):
                _check_number(
                    limits, findings, f"{side} threadblocks on channel {channel}:", number, limits.tbs_per_channel, rank
                )
        for tb, (channel, _, _, steps) in enumerate(rank_blocks):
            _check_number(limits, findings, "steps", steps, limits.steps_per_tb, rank, tb)
            if channel >= limits.channels:
                message = f"channel {channel}; {limits.name} has channels 0..{limits.channels - 1}"
                findings.add("limit", message, rank, tb)


def _check_number(limits: Limits, findings: Findings, quantity: str, number: int, most: int, *place: int) -> None:
    """Add a finding of kind "limit" if a number exceeds its limit; `quantity` says what is counted.

    `place` is (), (rank,), (rank, tb) or (rank, tb, step).
    """
    if number > most:
        rank, tb, step = (*place, None, None, None)[:3]
        findings.add("limit", f"{quantity} {number}; {limits.name} takes at most {most}", rank, tb, step)


def check_dependency(named: int, limits: Limits, findings: Findings, *place: int) -> None:
    """Add a finding of kind "limit" if a step depends on a threadblock whose number exceeds the limit.

    Args:
        named: Number of the threadblock that the step depends on.
        limits: Limits of the target.
        findings: Where the finding is added.
        *place: Rank, threadblock and position of the step.
    """
    _check_number(limits, findings, "depid", named, limits.dep_tb, *place)


def check_steps(program: Program, limits: Limits, findings: Findings) -> None:
    """Add a finding of kind "limit" for each step that exceeds the limits, by itself or after the steps before it.

    By itself, a step can exceed those on its instruction, offsets, count and dependency; after others, that on
    consecutive reductions (re) with one source and destination buffer, unless `limits.reduce_chain` is 0.
    """
    # Operands of the last step if the kernel would merge a further re of the same operands into its loop.
    chain_operands: tuple[str, int, str] | None = None
    chain, total = 0, 0  # number of re in the kernel's current loop, and in the threadblock
    for rank, tb, position, step in checking_deadline(program.steps(), every=1024):
        last_offset = max(step.src_off if step.op in READS_SRC else -1, step.dst_off if step.op in _USES_DST else -1)
        if step.op not in limits.ops:
            known_ops = ", ".join(x for x in OPS if x in limits.ops)
            findings.add("limit", f"{step.op}; {limits.name} runs only {known_ops}", rank, tb, position)
        if last_offset > limits.offset:
            _check_number(limits, findings, "offset", last_offset, limits.offset, rank, tb, position)
        if step.count > limits.count:
            _check_number(limits, findings, "cnt", step.count, limits.count, rank, tb, position)
        if step.dep_tb > limits.dep_tb:
            check_dependency(step.dep_tb, limits, findings, rank, tb, position)
        if position == 0:
            chain_operands, total = None, 0
        if step.op != "re":
            chain_operands = chain_operands if step.op == "nop" else None
            continue
        operands = (step.dst_buf, step.dst_off, step.src_buf)
        chain = chain + 1 if operands == chain_operands and step.dep_tb < 0 else 1
        total += 1
        if limits.reduce_chain and chain == limits.reduce_chain + 1:
            message = f"more than {limits.reduce_chain} consecutive re with one dst and src buffer"
            findings.add("limit", f"{message}; another step must break them up", rank, tb, position)
        # Readers begin a new loop after a step that another step waits for, and once in a threadblock.
        chain_operands = None if step.has_dep or total == limits.reduce_chain else operands
