"""MSCCL XML as a format of `emit.formats`: the check of any such file, and the writing of a checked Program."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from emit.check.limits import check_limits
from emit.check.program import ProgramReport, check, root_of
from emit.findings import Finding, Findings, Judgement, Verdict, first_of, not_judged
from emit.goal import Goal
from emit.images import image_gpus
from emit.msccl.read import COLLECTIVES, NO_LIMIT, REDOPS, Reading, read
from emit.program import Program
from emit.targets import (
    BLOCK_SIZES,
    TARGETS,
    Target,
    check_between_nodes,
    choose_target,
    target_named,
    within_scratch,
)
from synth.model.deadline import checking_deadline
from synth.model.registry import ROOT, find_kind
from topologies.errors import InputError

_ROOT_WORK = 1 << 20  # steps and chunks that may be checked to find the root of a file
_NAME = re.compile(r"[ !#-%'-;=?-~]+")  # printable ASCII without " & < >
_HEAD = re.compile(  # the beginning of a text that was written here
    r'<algo name="[^"]*" (proto="\w+" nchannels="\d+" nchunksperloop="\d+" ngpus="(\d+)" coll="(\w+)" )'
    r'(inplace="\d" outofplace="\d") minBytes="\d+" maxBytes="\d+"'
)


def verify(
    path: str | os.PathLike[str], goal: Goal | None = None, fifo_depth: int | None = None, target: str | None = None
) -> Verdict:
    """Read and check a file or a text; never raise for bad input.

    A step counts as one transmission here: the verdict is on the schedule. A caution says if the program would deadlock
    with messages so large that each chunk takes a slot of its own, which write_msccl must assume. A rooted collective
    is right if it is right for one root, which is then named. A file whose collective has no known goal (custom, send,
    recv, alltoallv) is "not judged" without `goal`, unless it is proved wrong.

    Args:
        path: File, or text that holds a `<`.
        goal: What the program must achieve; None for the goal of its collective.
        fifo_depth: Slots of a FIFO; None for those of its protocol.
        target: Executor whose reader must take the file; None if it is enough that one does.
    """
    try:
        reading = read(path)
        report, program = best_root(reading.program, goal, fifo_depth)
    except InputError as error:
        return Verdict("not readable", (str(error),))
    findings_of_target = refusals(reading, program)
    accepting = [name for name, target_findings in findings_of_target.items() if not target_findings]
    judged_targets = (
        [target]
        if target is not None
        else accepting[:1] or [min(findings_of_target, key=lambda name: len(findings_of_target[name]))]
    )
    findings = (*report.findings, *findings_of_target[judged_targets[0]])
    status = "wrong" if findings_of_target[judged_targets[0]] else report.status
    if status == "right" and not report.judged:
        return not_judged(f"coll {program.collective!r}", program=program)
    slots = f"{report.fifo_depth} FIFO slot{'s' if report.fifo_depth > 1 else ''}"
    head = f"{status}: {program.collective} on {program.nranks} ranks, {program.nsteps} instructions, {slots}"
    if len(root_of(program)) > 1:
        head += f", root {program.root}"
    lines = [f"{f.kind}: {f.message}" for f in findings]
    if status == "right" and not report.splits:
        lines.append(f"caution: deadlock with {slots} for messages so large that every chunk takes a slot of its own")
    lines += [f"caution: {judged_targets[0]} {note}" for note in reading.cautions[judged_targets[0]]]
    lines += [f"remark: {note}" for note in reading.remarks]
    if 0 < len(accepting) < len(findings_of_target):
        lines.append(f"taken by {', '.join(accepting)}")
    lines += [
        f"not by {n}: {first_of(target_findings)}"
        for n, target_findings in findings_of_target.items()
        if target_findings and n not in judged_targets
    ]
    return Verdict(status, (head, *lines, *report.notes), findings, program)


def best_root(program: Program, goal: Goal | None, fifo_depth: int | None) -> tuple[ProgramReport, Program]:
    """Return the report and the program for the first root for which it is not wrong, else for the program's own root.

    Files do not name a root. Other roots are tried only without `goal`, only if another root could make a difference,
    and only so many as are checked in reasonable time. No target's limits are checked. A step counts as one
    transmission.

    Args:
        program: The program.
        goal: What it must achieve; None for the goal of its collective.
        fifo_depth: Slots of a FIFO; None for those of its protocol.

    Returns:
        The report, and the program with the root of the report.

    Raises:
        InputError: As `emit.check.program.check` raises it.
    """
    first = check(program, goal, fifo_depth, target=None, split=False)
    if goal is not None or all(
        f.kind not in ("wrong result", "read before write", "inconsistent") for f in first.findings
    ):
        return first, program
    work = program.nsteps + program.nranks * program.nchunks_per_loop
    for root in _likely_roots(program)[: max(1, _ROOT_WORK // work)]:
        rerooted = replace(program, root=root)
        report = check(rerooted, goal, fifo_depth, target=None, split=False)
        if report.status != "wrong":
            return report, rerooted
    return first, program


def _likely_roots(program: Program) -> list[int]:
    """Return all roots but 0, likely ones first, else in ascending order; none if the collective has no root.

    A likely root receives from nobody if the data starts at the root; else it sends to nobody.
    """
    side = "recv" if find_kind(program.collective).before == ROOT else "send"
    is_unlikely = [any(getattr(tb, side) >= 0 for tb in gpu.threadblocks) for gpu in program.gpus]
    return sorted(root_of(program)[1:], key=lambda root: is_unlikely[root])


def refusals(reading: Reading, program: Program) -> dict[str, tuple[Finding, ...]]:
    """Return by the name of each target what its reader does not take of a file, or crashes on.

    The tuple of findings is empty for a target that takes the file.
    """
    findings_of_target = {}
    for name, reading_findings in reading.refused.items():
        limits = Findings()
        check_limits(program, TARGETS[name].limits, limits)
        check_custom(program, TARGETS[name], limits)
        findings_of_target[name] = (*reading_findings, *limits.reported)
    return findings_of_target


def check_custom(program: Program, target: Target, findings: Findings) -> None:
    """Add a finding for each buffer whose size a target's reader does not take for a custom collective.

    Such a target takes inputs and outputs of 0 or nchunks_per_loop chunks. Nothing is added for other collectives or
    targets.
    """
    if program.collective != "custom" or not target.whole_custom:
        return
    loop_chunks = program.nchunks_per_loop
    for rank, gpu in enumerate(program.gpus):
        for buffer, size in (("i", gpu.i_chunks), ("o", gpu.o_chunks)):
            if size not in (0, loop_chunks):
                message = f"{buffer}_chunks {size}; {target.name} takes only nchunksperloop, {loop_chunks}, for custom"
                findings.add("limit", message, rank)


def write(program: Program, goal: Goal | None, target: Target, nodes: Sequence[int] | None, *_: object) -> str:
    """Return the text of a program for a target; it does not depend on the ranks' nodes or the calls to serve.

    Args:
        program: The program.
        goal: What it must achieve; None for the goal of its collective.
        target: The target.
        nodes: Node of each rank, by which it is checked whether the program would hang; None to skip that.
        *_: Ignored.

    Raises:
        InputError: As `write_msccl` raises it, or if the program would hang between the nodes.
    """
    if nodes is not None:
        findings = Findings()
        check_between_nodes(program, nodes, target, findings)
        Judgement(tuple(findings.reported), (), judged=False).raise_if_wrong()
    return write_msccl(program, goal, target)


def write_msccl(program: Program, goal: Goal | None = None, target: str | Target = "executor-nccl") -> str:
    """Return the program as text that the target's reader takes; nothing unverified is written.

    It is checked against `goal`, or the goal of its collective, at its protocol's FIFO depth and the target's limits.
    If the reader allocates scratch in advance, the text serves only sizes whose scratch it may allocate. Where the
    reader requires that of a custom collective, buffers are padded to nchunks_per_loop chunks.

    Args:
        program: The program.
        goal: What it must achieve; None for the goal of its collective.
        target: The target or its name.

    Raises:
        InputError: If the check has a finding, no goal is known, or the target has no name for the collective, its
            in-place or out-of-place form, the reduction or the program's own name; or if the reader allocates too much
            scratch even for its smallest message.
    """
    row = target_named(target) if isinstance(target, str) else target
    choose_target(program.collective, row.name)
    if program.inplace and program.collective in row.only_outofplace:
        raise InputError(
            f"{row.name} has no in-place form of {program.collective}; the program must be out of place only"
        )
    if len(program.name) > row.longest_name or not _NAME.fullmatch(program.name):
        raise InputError(
            f"program name {program.name!a}: it must be 1 to {row.longest_name} printable ASCII characters "
            "without quotes, <, > and &"
        )
    program = within_scratch(program, row.limits)
    if row.whole_custom and program.collective == "custom":
        program = padded(program)
    report = check(program, goal, target=row.limits)
    report.raise_if_wrong()
    if not report.judged:
        raise InputError(
            f"collective {program.collective!r} has no goal of its own; it must be given one to check against"
        )
    if row.states_redop and program.redop not in REDOPS:
        raise InputError(f"program redop {program.redop!r}: it must be one of {', '.join(REDOPS)}")
    return xml_text(program, row)


def padded(program: Program) -> Program:
    """Return the program with every rank's input and output as long as a loop, nchunks_per_loop chunks.

    Nobody uses the added chunks, which follow the others.

    Raises:
        InputError: If a buffer is longer than a loop.
    """
    loop_chunks = program.nchunks_per_loop
    for rank, gpu in enumerate(program.gpus):
        for buffer, size in (("i", gpu.i_chunks), ("o", gpu.o_chunks)):
            if size > loop_chunks:
                raise InputError(
                    f"rank {rank} {buffer}_chunks {size}; it must be at most nchunksperloop, {loop_chunks}"
                )
    return replace(program, gpus=[replace(gpu, i_chunks=loop_chunks, o_chunks=loop_chunks) for gpu in program.gpus])


def restate(text: str, name: str, least: int, most: int | None, target: Target) -> str:
    """Return a program's text with another name, for messages of `least` to `most` bytes (None: no limit), unchecked.

    Sizes are those of nccl-tests. A text that was not written here is read, and written in the target's dialect.

    Raises:
        InputError: If no message has such a size, or the text cannot be read.
    """
    head = _HEAD.match(text)
    if head is None:
        return xml_text(replace(read(text).program, name=name, min_bytes=least, max_bytes=most or 0), target)
    shape, nranks, coll, forms = head.groups()
    limits = _limits(name, COLLECTIVES.get(coll, coll), int(nranks), least, most or 0, target)
    return f'<algo name="{name}" {shape}{forms} {limits}{text[head.end() :]}'


def xml_text(program: Program, target: Target) -> str:
    """Return the program in the target's dialect, ended by a newline, unchecked; a program's images are written out.

    The target must have a name for its collective.

    Raises:
        InputError: If no gather or scatter of equal blocks has the sizes that the program serves, or an instruction has
            no image on other ranks.
    """
    return "\n".join(_lines(program, target)) + "\n"


def threadblocks(program: Program | None, _: str | Path) -> list[int]:
    """Return the number of threadblocks of each rank; an empty list for a file that gave no program (None)."""
    return [] if program is None else [len(gpu.threadblocks) for gpu in program.gpus]


def largest_message(_: str) -> None:
    """Return None: the messages that a program serves have no limit."""


def describe(program: Program, target: Target, _: str) -> str:
    """Return a line that describes a written file: collective, ranks, target, steps of all ranks and protocol."""
    return (
        f"{program.collective} on {program.nranks} ranks for {target.name}, checked: {program.nsteps} steps of "
        f"protocol {program.protocol}"
    )


def _limits(name: str, collective: str, nranks: int, least: int, most: int, target: Target) -> str:
    """Return the attributes minBytes and maxBytes for messages of `least` to `most` bytes; `most` is 0 for no limit.

    Sizes are those of nccl-tests. Readers count the bytes of one block in collectives that have blocks of equal size.
    maxBytes is one more where the target takes it as exclusive.

    Raises:
        InputError: No call of a collective with blocks has such a size; the message begins with `name`.
    """
    if collective in BLOCK_SIZES:
        least, most_of_block = -(-least // nranks), most // nranks
        if most and most_of_block < max(1, least):
            raise InputError(f"{name}: no {collective} of {nranks} equal blocks has its size; use another --size")
        most = most_of_block
    if target.max_bytes_exclusive:
        most = most + 1 if most else NO_LIMIT
    return f'minBytes="{least}" maxBytes="{most}"'


def _lines(program: Program, target: Target) -> Iterator[str]:
    """Yield the lines of a program in the target's dialect, without newlines, with the threadblocks of all ranks.

    Raises:
        InputError: No call has the program's sizes, or an instruction has no image on other ranks.
    """
    p = program
    coll = target.collectives[p.collective]
    redop = f' redop="{p.redop}"' if target.states_redop else ""
    limits = _limits(p.name, p.collective, p.nranks, p.min_bytes, p.max_bytes, target)
    yield (
        f'<algo name="{p.name}" proto="{p.protocol}" nchannels="{p.nchannels}" '
        f'nchunksperloop="{p.nchunks_per_loop}" ngpus="{p.nranks}" coll="{coll}" inplace="{int(p.inplace)}" '
        f'outofplace="{int(p.outofplace)}" {limits}{redop}>'
    )
    for rank, gpu in enumerate(image_gpus(p)):
        yield (f'  <gpu id="{rank}" i_chunks="{gpu.i_chunks}" o_chunks="{gpu.o_chunks}" s_chunks="{gpu.s_chunks}">')
        for tb, block in checking_deadline(enumerate(gpu.threadblocks)):
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
