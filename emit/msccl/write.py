"""A checked Program as MSCCL XML, and the verdict on a file."""

from __future__ import annotations

import re

from emit.check.program import check
from emit.goal import Goal
from emit.msccl.verdict import Verdict, verify_file
from emit.program import Program
from topologies.errors import InputError

__all__ = ["Verdict", "verify_file", "write_msccl"]

NAMES = {
    "executor-nccl": {
        name: name
        for name in (
            "reduce",
            "broadcast",
            "allreduce",
            "reducescatter",
            "allgather",
            "send",
            "recv",
            "gather",
            "scatter",
            "alltoall",
            "alltoallv",
        )
    },
    "msccl": {
        "allreduce": "allreduce",
        "allgather": "allgather",
        "reduce": "reduce",
        "broadcast": "broadcast",
        "alltoall": "alltoall",
        "reducescatter": "reduce_scatter",
        "custom": "custom",
    },
}
NAMES["rccl"] = NAMES["executor-nccl"]

_NAME = re.compile(r"[ !#-%'-;=?-~]+")  # printable ASCII but for " & < >

# What MSCCL readers have no convention for, and what would be right.
_ONE_FORM = {"reducescatter": ("outofplace", "in place"), "alltoall": ("inplace", "out of place")}

# The original msccl reads maxBytes as exclusive and 0 as never; no buffer is a pebibyte.
_MS_NO_LIMIT = 1 << 50


def write_msccl(program: Program, goal: Goal | None = None, target: str = "executor-nccl") -> str:
    """The program as text that the reader of `target` (executor-nccl, rccl, msccl) takes, ended by a newline.

    goal: what it must achieve; None means that of its collective.
    Nothing unverified is written: the program is checked at its protocol's FIFO depth and target's limits.

    Raises InputError where the check finds anything, where no goal is known, or where the target has no name
    for the collective, its in-place or out-of-place form, the reduction or the program's own name.
    """
    if target not in NAMES:
        raise InputError(f"target {target!r}: would be one of {', '.join(sorted(NAMES))}")
    coll = NAMES[target].get(program.collective)
    if coll is None:
        able = [t for t in sorted(NAMES) if program.collective in NAMES[t]]
        raise InputError(
            f"{target} has no name for collective {program.collective!r}: would be target {' or '.join(able)}"
        )
    if program.collective in _ONE_FORM and getattr(program, _ONE_FORM[program.collective][0]):
        right = _ONE_FORM[program.collective][1]
        raise InputError(f"{target} has no such form of {program.collective}: would be {right} only")
    longest = 63 if target == "msccl" else 255
    if len(program.name) > longest or not _NAME.fullmatch(program.name):
        raise InputError(
            f"program name {program.name!a}: would be 1 to {longest} printable ASCII characters "
            "without quotes, <, > and &"
        )
    report = check(program, goal, target=target)
    report.raise_if_wrong()
    if not report.judged:
        raise InputError(
            f"collective {program.collective!r} has no goal of its own: would be given one to check against"
        )
    most = program.max_bytes
    if target == "msccl":
        most = most + 1 if most else _MS_NO_LIMIT
        if program.redop not in ("sum", "prod", "max", "min"):
            raise InputError(f"program redop {program.redop!r}: would be one of sum, prod, max, min")
    return "\n".join(_lines(program, coll, most, target)) + "\n"


def _lines(program: Program, coll: str, most: int, target: str) -> list[str]:
    p = program
    redop = f' redop="{p.redop}"' if target == "msccl" else ""
    lines = [
        f'<algo name="{p.name}" proto="{p.protocol}" nchannels="{p.nchannels}" '
        f'nchunksperloop="{p.nchunks_per_loop}" ngpus="{p.nranks}" coll="{coll}" inplace="{int(p.inplace)}" '
        f'outofplace="{int(p.outofplace)}" minBytes="{p.min_bytes}" maxBytes="{most}"{redop}>'
    ]
    for rank, gpu in enumerate(p.gpus):
        lines.append(
            f'  <gpu id="{rank}" i_chunks="{gpu.i_chunks}" o_chunks="{gpu.o_chunks}" '
            f's_chunks="{gpu.s_chunks}">'
        )
        for tb, block in enumerate(gpu.threadblocks):
            lines.append(f'    <tb id="{tb}" send="{block.send}" recv="{block.recv}" chan="{block.channel}">')
            for position, s in enumerate(block.steps):
                lines.append(
                    f'      <step s="{position}" type="{s.op}" srcbuf="{s.src_buf}" srcoff="{s.src_off}" '
                    f'dstbuf="{s.dst_buf}" dstoff="{s.dst_off}" cnt="{s.count}" depid="{s.dep_tb}" '
                    f'deps="{s.dep_step}" hasdep="{int(s.has_dep)}"/>'
                )
            lines.append("    </tb>")
        lines.append("  </gpu>")
    lines.append("</algo>")
    return lines
