"""MSCCL XML as a row of `emit.formats` has it."""

from __future__ import annotations

from collections.abc import Sequence

from emit.goal import Goal
from emit.msccl.check import verify_msccl
from emit.msccl.write import describe_xml, write_msccl
from emit.program import Program
from emit.targets import Target

__all__ = ["describe", "verify", "write"]

verify, describe = verify_msccl, describe_xml


def write(program: Program, goal: Goal | None, target: Target, _: Sequence[int] | None, __: bool | None) -> str:
    """The text of a program for a target; neither nodes nor the calls to serve change it."""
    return write_msccl(program, goal, target.name)
