"""MSCCL++ execution plans as a row of `emit.formats` has them: a checked Program as one, and the check of any.

A plan is right if for every interleaving it ends, without a race, in what its collective asks for. In one that is
written nobody waits who did not in the program, but for the word that others have started: a message that finds its
place still in use goes into scratch of its own. Inside a node ranks use memory channels, between nodes port
channels. Protocol LL becomes packets; Simple and LL128, which MSCCL++ does not have, become puts and signals.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from emit.check.capacity import CAPACITY
from emit.check.cells import cells_of
from emit.check.contents import Contents
from emit.check.order import run
from emit.check.program import check
from emit.columns import Column, columns_of
from emit.findings import Findings, Judgement, Verdict
from emit.goal import Goal, goals_of, sizes_of
from emit.mscclpp.acts import Acts, acts_of, check_counts
from emit.mscclpp.ends import check_ends, check_hearing
from emit.mscclpp.meeting import add_meeting
from emit.mscclpp.memory import (
    ALIGNMENT,
    Memory,
    both_chunks,
    collective_of,
    counted_chunks,
    goal_of,
    limit_sizes,
    memory_of,
)
from emit.mscclpp.numbering import Numbering
from emit.mscclpp.placement import Placer
from emit.mscclpp.plan import MAX_OPS, Plan, plan_text
from emit.mscclpp.read import read_plan
from emit.mscclpp.replay import Replay
from emit.mscclpp.structure import caution, check_parts, check_structure
from emit.mscclpp.threadblocks import make_threadblocks
from emit.program import BUFFERS, ROOTED, WRITES_DST, Gpu, Program, Step, ThreadBlock
from emit.targets import Target, check_resident
from topologies.errors import InputError

# Operations for the steps of a threadblock, tried until it fits with what others need of it.
_ROOMS = (56, 48, 40, 32, 24)
_FREE = 1 << 20  # FIFO slots: a plan has none to run out of
_LAUNCHES = 3  # that are replayed: the third is the first to use what another has used of double scratch
_FORMS = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "custom")


@dataclass(frozen=True, slots=True)
class PlanReport(Judgement):
    """What the check of a plan found; a finding's `step` is the operation of a threadblock.

    `root`: the rank for which a rooted collective was judged; plans do not name it.
    """

    root: int = 0


def check_plan(text_or_plan: str | Plan, goal: Goal | None = None, root: int | None = None) -> PlanReport:
    """Check a plan, or the text of one, with the executor's semantics.

    goal: what it must achieve (out of place also that inputs stay as they were); None means that of its collective, in
    place or not as it says. root: of a rooted collective; None: any root for which it is right.

    Raises InputError for a text that cannot be read as a plan, or one too large to be checked.
    """
    plan = read_plan(text_or_plan) if isinstance(text_or_plan, str) else text_or_plan
    rooted = goal is None and collective_of(plan) in ROOTED and root is None
    first = _checked(plan, goal, root or 0)
    roots = range(1, min(len(plan.gpus), 1 + CAPACITY.root_steps // (1 + plan.nops)))
    if not rooted or all(f.kind not in ("wrong result", "read before write") for f in first.findings):
        return first
    others = (_checked(plan, None, other) for other in roots)
    return next((report for report in others if report.ok), first)


def verify(path: str | os.PathLike[str], goal: Goal | None = None, _: int | None = None) -> Verdict:
    """Read and check a plan file, which has no FIFO; never raises for bad input.

    A plan whose collective has no known goal is "not readable" without `goal`, unless it is found wrong.
    """
    try:
        plan = read_plan(Path(path))
        report = check_plan(plan, goal)
    except InputError as error:
        return Verdict("not readable", (str(error),))
    return verdict_of(plan, report)


def verdict_of(plan: Plan, report: PlanReport) -> Verdict:
    """A report in words."""
    if report.ok and not report.judged:
        lack = f"collective {plan.collective[:60]!r} does not say what the result must be; it must be given a goal"
        return Verdict("not readable", (lack,))
    form = "in place" if plan.inplace else "out of place"
    head = f"{report.status}: {plan.collective} on {len(plan.gpus)} ranks {form}, {plan.nops} operations, "
    head += f"execution plan of protocol {plan.protocol}"
    if collective_of(plan) in ROOTED:
        head += f", root {report.root}"
    lines = [f"{f.kind}: {f.message}" for f in report.findings]
    return Verdict(report.status, (head, *lines, *report.notes), report.findings)


def _checked(plan: Plan, goal: Goal | None, root: int) -> PlanReport:
    if goal is not None and goal.nranks != len(plan.gpus):
        raise InputError(f"goal for {goal.nranks} ranks, plan of {len(plan.gpus)}; it must be equal")
    wanted = goal if goal is None or plan.inplace else goal.keeping_input()
    found, notes = Findings(), caution(plan)
    check_structure(plan, goal, found)
    if not found.reported and wanted is None:
        wanted = goal_of(plan, root)
    if not _fatal(found):
        check_parts(plan, found)
    runs = not _fatal(found)
    if runs:
        memory = memory_of(plan, wanted)  # bounds the cells that a goal is made of
        made = acts_of(memory)
        check_counts(made, plan, found)
        _replay(made, memory, wanted, found, notes)
        if wanted is None:
            notes.append(f"no goal known for collective {plan.collective[:60]!r}: the result was not judged")
    return PlanReport(tuple(found.reported), (*notes, *found.counted()), wanted is not None and runs, root)


def _fatal(found: Findings) -> bool:
    """Whether the plan may name what does not exist: it cannot be executed."""
    return any(f.kind != "limit" for f in found.reported)


def _nothing_asked(plan: Plan) -> Goal:
    """Every input chunk is its own contribution, and nothing is required.

    Where the output of an unknown collective in place meets the input is not known: it may hold something too.
    """
    rows = []
    for rank, gpu in enumerate(plan.gpus):
        rows += [(rank, "i", x, rank, x) for x in range(gpu.input_chunks)]
        if plan.inplace:
            rows += [(rank, "o", x, rank, gpu.input_chunks + x) for x in range(gpu.output_chunks)]
    return Goal.from_arrays(len(plan.gpus), tuple(zip(*rows, strict=True)), ([], [], [], [], []))  # type: ignore[arg-type]


def _replay(made: Acts, memory: Memory, wanted: Goal | None, found: Findings, notes: list[str]) -> None:
    goal = wanted or _nothing_asked(memory.plan)
    contents = Contents(goal)

    def first_cells(columns: tuple[Column, ...]) -> list[int]:
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [memory.cell(rank, BUFFERS[code], at, False) for rank, code, at in rows]

    cells: dict[int, int] = {}
    for first, content in zip(first_cells(goal.initial[:3]), contents.initial(), strict=True):
        cells.update(dict.fromkeys(range(first, first + memory.units), content))
    run = Replay(made, memory, contents, cells, found)
    required = first_cells(goal.required[:3]) if wanted is not None else []
    for launch in range(1, _LAUNCHES + 1):
        stopped = run.run()
        if stopped and not any(f.kind == "unpaired" for f in found.reported):
            run.report_stopped(stopped)
        if not stopped:
            if launch == 1:  # the next ones end as it does
                check_ends(run, found, notes)
            if wanted is not None:
                contents.report_wrong(
                    run.cells,
                    required,
                    memory.units,
                    lambda wrong: {cell: made.place(*run.written[cell][2:4]) for cell in wrong if cell in run.written},
                    found,
                )
        if stopped or found.reported:
            if launch > 1:  # nothing was found before
                found.reported[:] = [replace(f, message=f"launch {launch}: {f.message}") for f in found.reported]
            return
    check_hearing(run, found, notes)


def write(
    program: Program,
    goal: Goal | None,
    target: Target,
    nodes: Sequence[int] | None,
    inplace: bool | None,
    linked: Sequence[tuple[int, int]],
) -> str:
    """The text of a program as a plan, for ranks on these nodes that are linked so, and calls in place or not."""
    return write_plan(program, goal, nodes=nodes, inplace=inplace, linked=linked, sms=target.limits.sms)


def threadblocks(_: Program | None, text: str | Path) -> list[int]:
    """Of each rank, in a plan or its file; it can have more than its program."""
    return [len(gpu.blocks) for gpu in read_plan(text).gpus]


def largest_message(text: str) -> int:
    """The most bytes, of the larger buffer, of a message that a plan takes."""
    plan = read_plan(text)
    return plan.max_bytes * both_chunks(plan) // counted_chunks(plan)


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


def write_plan(
    program: Program,
    goal: Goal | None = None,
    *,
    nodes: Sequence[int] | None = None,
    inplace: bool | None = None,
    linked: Sequence[tuple[int, int]] = (),
    sms: int = 0,
) -> str:
    """The program as the text of an execution plan, the same program always the same bytes.

    goal: what it must achieve; None means that of its collective. nodes: the node of each rank (None: all in one).
    inplace: the form of the plan, also where it is not the program's own; None: the program's, in place if it has both.
    linked: pairs of ranks that can hear of each other, besides those that the program connects.
    sms: threadblocks that a rank may have (0: any number).
    Nothing unverified is written: the program is checked, and the plan's text is read and replayed.

    Raises InputError where a check finds anything, or where plans cannot say it: a collective that gives some rank an
    empty buffer, a reduction other than the sum, or more than the executor's limits hold.
    """
    _sayable(program)
    form = program.inplace if inplace is None else inplace
    own = form if (program.inplace if form else program.outofplace) else not form
    if goal is not None and form != own:
        raise InputError(f"program {'in' if own else 'out of'} place with a goal of its own; it must be the same form")
    report = check(program, goal, fifo_depth=_FREE, target=None, split=False)
    report.raise_if_wrong()
    if not report.judged:
        what = f"collective {program.collective!r} has no goal of its own"
        raise InputError(f"{what}; it must be given one to check against")
    if form and not own:
        program, own = replace(program, gpus=[_gpu_in_place(gpu) for gpu in program.gpus]), True
    plan = _plan(replace(program, inplace=own, outofplace=not own), goal, nodes, form, linked)
    found = Findings()
    check_resident([len(gpu.blocks) for gpu in plan.gpus], sms, found)
    if found.reported:
        raise InputError(f"execution plan of {program.name}: {found.reported[0].message}; use fewer chunks (--chunks)")
    text = plan_text(plan)
    check_plan(text, goal, program.root).raise_if_wrong(f"execution plan of {program.name}")
    return text


def _sayable(program: Program) -> None:
    if program.collective not in _FORMS:
        raise InputError(
            f"an execution plan cannot do {program.collective}; it must be one of {', '.join(_FORMS)}, whose ranks all "
            "have input and output"
        )
    if program.redop != "sum" and any(step.op in ("re", "rrc", "rrs", "rrcs") for *_, step in program.steps()):
        raise InputError(f"an execution plan always sums: program redop {program.redop!r}; it must be sum")


def _plan(
    program: Program,
    goal: Goal | None,
    nodes: Sequence[int] | None,
    form: bool,
    linked: Sequence[tuple[int, int]],
) -> Plan:
    """`program` has one form; `form` is the plan's, in place or not."""
    n = program.nranks
    if nodes is not None and len(nodes) != n:
        raise InputError(f"nodes of {len(nodes)} ranks; it must be of {n}")
    where = [0] * n if nodes is None else [int(node) for node in nodes]
    packets = program.protocol == "LL"
    c = columns_of(program, Findings())
    wanted = goals_of(program)[0][1] if goal is None else goal
    cells = cells_of(program, c, wanted, program.inplace)
    order = run(c, None, split=False).order
    separate = wanted if program.inplace and not form else None
    placement = Placer(program, c, order, cells, where, packets=packets, separate=separate).placement()
    sizes = [sizes_of(program, rank) for rank in range(n)]
    if goal is not None:  # all ranks call with buffers of one size, also those that need less of them, or nothing
        inputs, outputs = (
            max(1, *sides) for sides in zip(*((g.i_chunks, g.o_chunks) for g in program.gpus), strict=True)
        )
        sizes = [(inputs, outputs)] * n
    for room in _ROOMS:
        blocks = make_threadblocks(c, placement, where, packets, room)
        gpus = Numbering(blocks, placement, where, sizes, packets).gpus()
        if placement.apart:
            add_meeting(gpus, [(u, v) for u, v, _ in c.connections], where, linked)
        if all(len(block.ops) <= MAX_OPS for gpu in gpus for block in gpu.blocks):
            break
    plan = Plan(
        name=program.name,
        collective=program.collective,
        protocol="LL" if packets else "Simple",
        inplace=form,
        gpus=gpus,
        double=packets,
        alignment=ALIGNMENT,
    )
    limit_sizes(plan, program.min_bytes, program.max_bytes)
    return plan


def restate(text: str, name: str, least: int, most: int | None, _: Target) -> str:
    """A plan's text under another name and for other sizes. Raises InputError where no message has such a size."""
    plan = read_plan(text)
    plan.name = name
    limit_sizes(plan, least, most or 0)
    return plan_text(plan)


def _gpu_in_place(gpu: Gpu) -> Gpu:
    """A rank of a right program for calls out of place, made to serve calls in place.

    Results wait in scratch until inputs are read: what it puts into the output is put into scratch, and copied out
    after all else.
    """
    blocks = []
    waits: list[Step] = []
    for tb, block in enumerate(gpu.threadblocks):
        steps = [_output_in_scratch(step, gpu.s_chunks) for step in block.steps]
        if steps:
            steps[-1] = replace(steps[-1], has_dep=True)
            waits.append(Step("nop", "i", -1, "o", -1, 0, tb, len(steps) - 1))
        blocks.append(replace(block, steps=steps))
    copies = [Step("cpy", "s", gpu.s_chunks + at, "o", at, count) for at, count in _output_runs(gpu)]
    if copies:  # the steps that write what they copy are waited for
        copies[0] = replace(copies[0], dep_tb=waits[-1].dep_tb, dep_step=waits[-1].dep_step)
        blocks.append(ThreadBlock(-1, -1, 0, [*waits[:-1], *copies]))
    return replace(gpu, s_chunks=gpu.s_chunks + gpu.o_chunks, threadblocks=blocks)


def _output_runs(gpu: Gpu) -> list[tuple[int, int]]:
    """(first chunk, chunks) of the parts of the output that are written."""
    written = np.zeros(gpu.o_chunks + 2, dtype=bool)  # with a chunk before and one after
    for block in gpu.threadblocks:
        for step in block.steps:
            if step.op in WRITES_DST and step.dst_buf == "o":
                written[step.dst_off + 1 : step.dst_off + step.count + 1] = True
    return [(first, end - first) for first, end in np.flatnonzero(np.diff(written)).reshape(-1, 2).tolist()]


def _output_in_scratch(step: Step, first: int) -> Step:
    """The step with `first`.. of scratch for the output."""
    if step.src_buf == "o":
        step = replace(step, src_buf="s", src_off=step.src_off + first)
    if step.dst_buf == "o":
        step = replace(step, dst_buf="s", dst_off=step.dst_off + first)
    return step
