"""What the readers and kernels of each target take."""

from __future__ import annotations

from dataclasses import dataclass

from emit.findings import Findings
from emit.program import OPS, Program
from topologies.errors import InputError


@dataclass(frozen=True, slots=True)
class Limits:
    """One target's numbers; `ops` are those it runs."""

    name: str
    steps_per_tb: int
    tbs_per_gpu: int
    channels: int
    ops: frozenset[str] = frozenset(OPS)
    tbs_per_channel: int = 32  # that send, and as many that receive
    dep_tb: int = 127
    offset: int = 32767
    count: int = 71
    nodes: int = 4096  # algo, all gpus, and one gpu's tbs and steps
    children: int = 1024
    reduce_chain: int = 16


TARGETS = {
    "executor-nccl": Limits("executor-nccl", 64, 1024, 32),
    "rccl": Limits("rccl", 64, 64, 128, frozenset({"s", "r", "cpy", "re", "nop"})),
    "msccl": Limits("msccl", 256, 216, 32),
}


def limits_of(target: str) -> Limits:
    """Raises InputError for an unknown target."""
    if target not in TARGETS:
        raise InputError(f"target {target!r}: would be one of {', '.join(TARGETS)}")
    return TARGETS[target]


def check_limits(program: Program, target: str, found: Findings) -> None:
    """Add a finding for all that `target` does not take. Raises InputError for an unknown target."""
    limits = limits_of(target)

    def over(what: str, number: int, most: int, rank: int | None = None, tb: int | None = None) -> None:
        if number > most:
            found.add("limit", f"{what} {number}; {limits.name} takes at most {most}", rank, tb)

    over("gpus", program.nranks, limits.children)
    for rank, gpu in enumerate(program.gpus):
        over("threadblocks", len(gpu.threadblocks), min(limits.tbs_per_gpu, limits.children), rank)
        nodes = 1 + program.nranks + len(gpu.threadblocks) + sum(len(t.steps) for t in gpu.threadblocks)
        over("XML nodes", nodes, limits.nodes, rank)
        for side in ("send", "recv"):
            used: dict[int, int] = {}
            for block in gpu.threadblocks:
                if getattr(block, side) >= 0:
                    used[block.channel] = used.get(block.channel, 0) + 1
            for channel, number in sorted(used.items()):
                over(f"{side} threadblocks on channel {channel}:", number, limits.tbs_per_channel, rank)
        for tb, block in enumerate(gpu.threadblocks):
            over("steps", len(block.steps), limits.steps_per_tb, rank, tb)
            if block.channel >= limits.channels:
                found.add(
                    "limit",
                    f"channel {block.channel}; {limits.name} has channels 0..{limits.channels - 1}",
                    rank,
                    tb,
                )
    _check_steps(program, limits, found)


def _check_steps(program: Program, limits: Limits, found: Findings) -> None:
    key: tuple[str, int, str] | None = None
    chain, nop_between = 0, False
    for rank, tb, position, step in program.steps():
        most = max(step.src_off, step.dst_off)
        if step.op not in limits.ops:
            told = ", ".join(x for x in OPS if x in limits.ops)
            found.add("limit", f"{step.op}; {limits.name} runs only {told}", rank, tb, position)
        if most > limits.offset:
            found.add(
                "limit", f"offset {most}; {limits.name} takes at most {limits.offset}", rank, tb, position
            )
        if step.count > limits.count:
            found.add(
                "limit", f"cnt {step.count}; {limits.name} takes at most {limits.count}", rank, tb, position
            )
        if step.dep_tb > limits.dep_tb:
            found.add(
                "limit",
                f"depid {step.dep_tb}; {limits.name} takes at most {limits.dep_tb}",
                rank,
                tb,
                position,
            )
        if position == 0:
            key, chain, nop_between = None, 0, False
        if step.op == "nop":
            nop_between = True
            continue
        here = (step.dst_buf, step.dst_off, step.src_buf) if step.op == "re" else None
        if here is not None and here == key:
            chain += 1
            if nop_between:
                found.add("limit", "nop between re steps with one dst and src buffer", rank, tb, position)
            if chain == limits.reduce_chain + 1:
                found.add(
                    "limit",
                    f"more than {limits.reduce_chain} consecutive re with one dst and src buffer; "
                    "would be broken up by another step",
                    rank,
                    tb,
                    position,
                )
        else:
            chain = 1
        key, nop_between = here, False
