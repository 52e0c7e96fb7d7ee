"""MSCCL XML as a row of `emit.formats` has it: the check of a file, whoever wrote it, and writing one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from emit.check.program import Report, check, root_of
from emit.findings import Finding, Findings, Verdict
from emit.goal import Goal
from emit.msccl.read import read_msccl
from emit.msccl.write import describe_xml, write_msccl
from emit.program import Program
from emit.targets import TARGETS, Target, check_limits
from synth.model.registry import ROOT, find_kind
from topologies.errors import InputError

_ROOT_WORK = 1 << 20  # steps and chunks looked at while the root of a file is sought


def verify_msccl(path: str | os.PathLike[str], goal: Goal | None = None, fifo_depth: int | None = None) -> Verdict:
    """Read and check a file, or a text; never raises for bad input.

    A step counts as one transmission here: the verdict is on the schedule. A caution says where it would stop
    with messages so large that each chunk takes a slot of its own, as write_msccl must assume.
    A rooted collective is right if it is right for one root, which is then named. A file whose collective has
    no known goal (custom, send, recv, alltoallv) is "not readable" without `goal`, unless it is found wrong.
    """
    try:
        program = read_msccl(path)
        report, program = _best_root(program, goal, fifo_depth)
    except InputError as error:
        return Verdict("not readable", (str(error),))
    fits, reasons = _fitting_targets(program)
    findings = report.findings if fits else (*report.findings, *reasons)
    status = report.status if fits else "wrong"
    if status == "right" and not report.judged:
        return Verdict(
            "not readable",
            (f"coll {program.collective!r} does not say what the result must be; it must be given a goal",),
            program=program,
        )
    slots = f"{report.fifo_depth} FIFO slot{'s' if report.fifo_depth > 1 else ''}"
    head = f"{status}: {program.collective} on {program.nranks} ranks, {program.nsteps} steps, {slots}"
    if len(root_of(program)) > 1:
        head += f", root {program.root}"
    lines = [f"{f.kind}: {f.message}" for f in findings]
    if status == "right" and not report.splits:
        lines.append(f"caution: deadlock with {slots} for messages so large that every chunk takes a slot of its own")
    if fits and reasons:
        lines.append(f"within the limits of {', '.join(fits)} only")
    return Verdict(status, (head, *lines, *report.notes), findings, program)


def _best_root(program: Program, goal: Goal | None, fifo_depth: int | None) -> tuple[Report, Program]:
    """The report for the first root that is right, else for root 0; files do not name their root."""
    first = check(program, goal, fifo_depth, target=None, split=False)
    if goal is not None or all(
        f.kind not in ("wrong result", "read before write", "inconsistent") for f in first.findings
    ):
        return first, program
    work = program.nsteps + program.nranks * program.nchunks_per_loop
    for root in _likely_roots(program)[: max(1, _ROOT_WORK // work)]:
        other = replace(program, root=root)
        report = check(other, goal, fifo_depth, target=None, split=False)
        if report.status != "wrong":
            return report, other
    return first, program


def _likely_roots(program: Program) -> list[int]:
    """All roots but 0; first those that need nothing from others, or have nothing for them, as a root does."""
    side = "recv" if find_kind(program.collective).before == ROOT else "send"
    busy = [any(getattr(tb, side) >= 0 for tb in gpu.threadblocks) for gpu in program.gpus]
    return sorted(root_of(program)[1:], key=lambda root: busy[root])


def _fitting_targets(program: Program) -> tuple[list[str], tuple[Finding, ...]]:
    """The targets that read XML and whose limits hold, and what the first of the others would not take."""
    fits: list[str] = []
    reasons: tuple[Finding, ...] = ()
    for target in TARGETS.values():
        if target.format != "msccl":
            continue
        found = Findings()
        check_limits(program, target.name, found)
        if not found.reported:
            fits.append(target.name)
        reasons = reasons or tuple(found.reported)
    return fits, reasons


verify, describe = verify_msccl, describe_xml


def write(program: Program, goal: Goal | None, target: Target, _: Sequence[int] | None, __: bool | None) -> str:
    """The text of a program for a target; neither nodes nor the calls to serve change it."""
    return write_msccl(program, goal, target.name)
