"""The formats of files, a row each: what a file is, and how it is checked and written.

`synth verify`, `simulate`, `report`, `bench`, `optimize` and `convert` take what a row says they can; a target's row
(`emit.targets`) names the format that its files are written in.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from emit.findings import Verdict
from emit.goal import Goal
from emit.msccl.check import verify_msccl
from emit.msccl.write import describe_xml, write_msccl
from emit.mscclpp.check import verify_plan
from emit.mscclpp.read import read_plan
from emit.mscclpp.write import write_plan
from emit.program import Program
from emit.targets import Target
from topologies.errors import InputError
from topologies.text.files import opened, origin_of

__all__ = ["FORMATS", "Format", "format_of", "verify_file", "verify_program", "write_program"]


# Makes the text of a checked program: (program, goal, target, node of each rank, in place or not).
Writer = Callable[[Program, Goal | None, Target, Sequence[int] | None, bool | None], str]


@dataclass(frozen=True)
class Format:
    """One format of files.

    what: in words, with its article.  suffix: of its files.  start: how a file of another suffix begins.
    verify: reads and checks a file; never raises for bad input. Arguments: path, goal, FIFO slots (None: the usual).
    holds_program: what is read is a Program, which executors here, predictions and the compiler take.
    has_fifo: `verify` takes FIFO slots.  placed: its text depends on which ranks share a node, and on the calls served.
    write, describe: None where no program is written so; describe(program, target, text) says what was written.
    """

    name: str
    what: str
    suffix: str
    start: bytes
    verify: Callable[[Path, Goal | None, int | None], Verdict]
    holds_program: bool = False
    has_fifo: bool = False
    placed: bool = False
    write: Writer | None = None
    describe: Callable[[Program, Target, str], str] | None = None


def _write_xml(
    program: Program, goal: Goal | None, target: Target, _: Sequence[int] | None, __: bool | None
) -> str:
    return write_msccl(program, goal, target.name)


def _write_plan(
    program: Program, goal: Goal | None, _: Target, nodes: Sequence[int] | None, inplace: bool | None
) -> str:
    return write_plan(program, goal, nodes=nodes, inplace=inplace)


def _describe_plan(program: Program, _: Target, text: str) -> str:
    plan = read_plan(text)
    blocks = max(len(gpu.blocks) for gpu in plan.gpus)
    scratch = max(gpu.scratch_chunks for gpu in plan.gpus)
    between = any(gpu.peers["port"] for gpu in plan.gpus)
    return (
        f"{program.collective} on {program.nranks} ranks {'in place' if plan.inplace else 'out of place'}, execution "
        f"plan of protocol {plan.protocol}, checked: {plan.nops} operations, at most {blocks} threadblocks and "
        f"{scratch} chunks of scratch a rank, {'memory and port' if between else 'memory'} channels"
    )


def _verify_schedule(path: Path, _: Goal | None, __: int | None) -> Verdict:
    return Verdict("not readable", (f"{origin_of(path)}: is a schedule; synth prove checks it",))


FORMATS: dict[str, Format] = {
    one.name: one
    for one in (
        Format(
            "msccl", "an MSCCL XML file", ".xml", b"<", verify_msccl, holds_program=True, has_fifo=True,
            write=_write_xml, describe=describe_xml,
        ),
        Format(
            "mscclpp", "an execution plan (JSON)", ".json", b"{", lambda path, goal, _: verify_plan(path, goal),
            placed=True, write=_write_plan, describe=_describe_plan,
        ),
        Format("schedule", "a schedule (.synth)", ".synth", b"PK", _verify_schedule),
    )
}  # fmt: skip


def format_of(path: str | Path) -> Format:
    """The format of a file: by its suffix, else by how it begins; MSCCL XML where neither says."""
    suffix = Path(path).suffix.lower()
    for one in FORMATS.values():
        if one.suffix == suffix:
            return one
    start = b""
    with suppress(InputError, OSError), opened(path, "a file") as file:
        start = file.read(64).lstrip()
    return next((one for one in FORMATS.values() if start.startswith(one.start)), FORMATS["msccl"])


def verify_file(
    path: str | os.PathLike[str], goal: Goal | None = None, fifo_depth: int | None = None
) -> Verdict:
    """Read and check a file of any format; never raises for bad input.

    goal: what it must achieve; None: what its own words say.  fifo_depth: slots; None: its protocol's.
    """
    return format_of(Path(path)).verify(Path(path), goal, fifo_depth)


def verify_program(
    path: str | os.PathLike[str], goal: Goal | None = None, fifo_depth: int | None = None
) -> Verdict:
    """The same where a Program is wanted: "not readable" for formats that hold none."""
    found = format_of(Path(path))
    if not found.holds_program:
        wanted = " or ".join(one.what for one in FORMATS.values() if one.holds_program)
        return Verdict("not readable", (f"{origin_of(Path(path))}: is {found.what}; it must be {wanted}",))
    return found.verify(Path(path), goal, fifo_depth)


def write_program(
    program: Program,
    goal: Goal | None,
    target: Target,
    *,
    nodes: Sequence[int] | None = None,
    inplace: bool | None = None,
) -> str:
    """The text of a program for a target, checked before and after.

    Args:
        goal: what it must achieve; None: that of its collective.
        nodes: the node of each rank; None: all in one. Only formats that are `placed` look at it and at the next.
        inplace: the calls to serve; None: those that the program serves.

    Raises:
        InputError: a check finds anything, or the target cannot say it.
    """
    write = FORMATS[target.format].write
    if write is None:
        raise InputError(f"{target.name}: no program is written as {FORMATS[target.format].what}")
    return write(program, goal, target, nodes, inplace)
