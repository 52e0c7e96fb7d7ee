"""MSCCL++ execution plans as a row of `emit.formats` has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from emit.findings import Verdict
from emit.goal import Goal
from emit.mscclpp.check import verify_plan
from emit.mscclpp.read import read_plan
from emit.mscclpp.write import write_plan
from emit.program import Program
from emit.targets import Target


def verify(path: Path, goal: Goal | None, _: int | None) -> Verdict:
    """Read and check a plan; it has no FIFO."""
    return verify_plan(path, goal)


def write(program: Program, goal: Goal | None, _: Target, nodes: Sequence[int] | None, inplace: bool | None) -> str:
    """The text of a program as a plan, for ranks on these nodes, and calls in place or not."""
    return write_plan(program, goal, nodes=nodes, inplace=inplace)


def describe(program: Program, _: Target, text: str) -> str:
    """What was written, in a line."""
    plan = read_plan(text)
    blocks = max(len(gpu.blocks) for gpu in plan.gpus)
    scratch = max(gpu.scratch_chunks for gpu in plan.gpus)
    between = any(gpu.peers["port"] for gpu in plan.gpus)
    return (
        f"{program.collective} on {program.nranks} ranks {'in place' if plan.inplace else 'out of place'}, execution "
        f"plan of protocol {plan.protocol}, checked: {plan.nops} operations, at most {blocks} threadblocks and "
        f"{scratch} chunks of scratch a rank, {'memory and port' if between else 'memory'} channels"
    )
