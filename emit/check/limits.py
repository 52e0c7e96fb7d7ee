"""What of a program is beyond the limits of a target: its threadblocks, and its steps one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from emit.findings import Findings
from emit.program import OPS, READS_DST, READS_SRC, WRITES_DST, Program
from emit.targets import Limits, check_resident

_USES_DST = READS_DST | WRITES_DST


def check_limits(program: Program, limits: Limits, found: Findings) -> None:
    """Add a finding for all that is beyond the limits."""
    blocks = [[(tb.channel, tb.send, tb.recv, len(tb.steps)) for tb in gpu.threadblocks] for gpu in program.gpus]
    check_threadblocks(program.nranks, blocks, limits, found)
    check_steps(program, limits, found)


def check_threadblocks(
    nranks: int, blocks: Sequence[Sequence[tuple[int, int, int, int]]], limits: Limits, found: Findings
) -> None:
    """Add a finding for what of threadblocks is beyond the limits.

    blocks: of every rank (channel, rank it sends to, rank it receives from, steps) of each.
    """
    _over(limits, found, "gpus", nranks, limits.children)
    check_resident([len(mine) for mine in blocks], limits.sms, found)
    for rank, mine in enumerate(blocks):
        if not 0 < limits.sms < len(mine):  # which was said
            _over(limits, found, "threadblocks", len(mine), min(limits.tbs_per_gpu, limits.children), rank)
        nodes = 1 + nranks + len(mine) + sum(steps for *_, steps in mine)
        _over(limits, found, limits.node, nodes, limits.nodes, rank)
        for at, side in ((1, "send"), (2, "recv")):
            used = Counter(block[0] for block in mine if block[at] >= 0)
            for channel, number in sorted(used.items()):
                _over(limits, found, f"{side} threadblocks on channel {channel}:", number, limits.tbs_per_channel, rank)
        for tb, (channel, _, _, steps) in enumerate(mine):
            _over(limits, found, "steps", steps, limits.steps_per_tb, rank, tb)
            if channel >= limits.channels:
                message = f"channel {channel}; {limits.name} has channels 0..{limits.channels - 1}"
                found.add("limit", message, rank, tb)


def _over(limits: Limits, found: Findings, what: str, number: int, most: int, *place: int) -> None:
    if number > most:
        rank, tb, step = (*place, None, None, None)[:3]
        found.add("limit", f"{what} {number}; {limits.name} takes at most {most}", rank, tb, step)


def check_dependency(named: int, limits: Limits, found: Findings, *place: int) -> None:
    """Add a finding where the threadblock that a step names is beyond the limit; place: rank, threadblock, step."""
    _over(limits, found, "depid", named, limits.dep_tb, *place)


def check_steps(program: Program, limits: Limits, found: Findings) -> None:
    """Add a finding for each step that is beyond the limits by itself, or with those before it."""
    key: tuple[str, int, str] | None = None  # of the last step, where the kernel would go on with a re of the same
    chain, total = 0, 0  # re in one loop of the kernel, and in the threadblock
    for rank, tb, position, step in program.steps():
        most = max(step.src_off if step.op in READS_SRC else -1, step.dst_off if step.op in _USES_DST else -1)
        if step.op not in limits.ops:
            runs = ", ".join(x for x in OPS if x in limits.ops)
            found.add("limit", f"{step.op}; {limits.name} runs only {runs}", rank, tb, position)
        if most > limits.offset:
            _over(limits, found, "offset", most, limits.offset, rank, tb, position)
        if step.count > limits.count:
            _over(limits, found, "cnt", step.count, limits.count, rank, tb, position)
        if step.dep_tb > limits.dep_tb:
            check_dependency(step.dep_tb, limits, found, rank, tb, position)
        if position == 0:
            key, total = None, 0
        if step.op != "re":
            key = key if step.op == "nop" else None
            continue
        here = (step.dst_buf, step.dst_off, step.src_buf)
        chain = chain + 1 if here == key and step.dep_tb < 0 else 1
        total += 1
        if limits.reduce_chain and chain == limits.reduce_chain + 1:
            message = f"more than {limits.reduce_chain} consecutive re with one dst and src buffer"
            found.add("limit", f"{message}; another step must break them up", rank, tb, position)
        # readers begin anew behind a step that others wait for, and once in a threadblock
        key = None if step.has_dep or total == limits.reduce_chain else here
