"""A checked Program as MSCCL XML."""

from __future__ import annotations

import re
from collections.abc import Iterator

from emit.check.program import check
from emit.goal import Goal
from emit.program import Program
from emit.targets import Target, choose_target, target_named
from topologies.errors import InputError

_NAME = re.compile(r"[ !#-%'-;=?-~]+")  # printable ASCII but for " & < >
_REDOPS = ("sum", "prod", "max", "min")
_NO_LIMIT = 1 << 50  # bytes; for readers that take maxBytes 0 as never: no buffer is a pebibyte


def write_msccl(program: Program, goal: Goal | None = None, target: str = "executor-nccl") -> str:
    """The program as text that the reader of `target` takes; nothing unverified is written.

    It is checked against `goal`, or its collective's own, at its protocol's FIFO depth and the target's limits. Raises
    InputError where the check finds anything, where no goal is known, or where the target has no name for the
    collective, its in-place or out-of-place form, the reduction or the program's own name.
    """
    row = target_named(target)
    choose_target(program.collective, target)
    for form, others, right in (
        (program.outofplace, row.only_inplace, "in place"),
        (program.inplace, row.only_outofplace, "out of place"),
    ):
        if form and program.collective in others:
            raise InputError(f"{target} has no such form of {program.collective}; it must be {right} only")
    if len(program.name) > row.longest_name or not _NAME.fullmatch(program.name):
        raise InputError(
            f"program name {program.name!a}: it must be 1 to {row.longest_name} printable ASCII characters "
            "without quotes, <, > and &"
        )
    report = check(program, goal, target=target)
    report.raise_if_wrong()
    if not report.judged:
        raise InputError(
            f"collective {program.collective!r} has no goal of its own; it must be given one to check against"
        )
    if row.states_redop and program.redop not in _REDOPS:
        raise InputError(f"program redop {program.redop!r}: it must be one of {', '.join(_REDOPS)}")
    return xml_text(program, row)


def xml_text(program: Program, target: Target) -> str:
    """The program in the target's dialect, unchecked."""
    return "\n".join(_lines(program, target)) + "\n"


def describe_xml(program: Program, target: Target, _: str) -> str:
    """A file that was written, in words for whoever asked for it."""
    return (
        f"{program.collective} on {program.nranks} ranks for {target.name}, checked: {program.nsteps} steps of "
        f"protocol {program.protocol}"
    )


def _lines(program: Program, target: Target) -> Iterator[str]:
    p = program
    coll = target.collectives[p.collective]
    redop = f' redop="{p.redop}"' if target.states_redop else ""
    most = p.max_bytes
    if target.max_bytes_exclusive:
        most = most + 1 if most else _NO_LIMIT
    yield (
        f'<algo name="{p.name}" proto="{p.protocol}" nchannels="{p.nchannels}" '
        f'nchunksperloop="{p.nchunks_per_loop}" ngpus="{p.nranks}" coll="{coll}" inplace="{int(p.inplace)}" '
        f'outofplace="{int(p.outofplace)}" minBytes="{p.min_bytes}" maxBytes="{most}"{redop}>'
    )
    for rank, gpu in enumerate(p.gpus):
        yield (f'  <gpu id="{rank}" i_chunks="{gpu.i_chunks}" o_chunks="{gpu.o_chunks}" s_chunks="{gpu.s_chunks}">')
        for tb, block in enumerate(gpu.threadblocks):
            yield f'    <tb id="{tb}" send="{block.send}" recv="{block.recv}" chan="{block.channel}">'
            for position, s in enumerate(block.steps):
                yield (
                    f'      <step s="{position}" type="{s.op}" srcbuf="{s.src_buf}" srcoff="{s.src_off}" '
                    f'dstbuf="{s.dst_buf}" dstoff="{s.dst_off}" cnt="{s.count}" depid="{s.dep_tb}" '
                    f'deps="{s.dep_step}" hasdep="{int(s.has_dep)}"/>'
                )
            yield "    </tb>"
        yield "  </gpu>"
    yield "</algo>"
