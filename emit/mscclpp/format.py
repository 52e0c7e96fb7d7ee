"""Write a checked Program as an MSCCL++ execution plan, and check any plan, for a row of `emit.formats`.

A plan is right if for every interleaving it ends, without a race, in the contents that its collective requires. A
written plan has no waits that the program did not have, except for signals that other ranks have started, where their
memory may still be in use. A message whose destination is still in use goes into scratch of its own. Within a node,
ranks use memory channels, between nodes port channels. Protocol LL becomes packets; Simple and LL128, which MSCCL++
does not have, become puts and signals.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from emit.check.acts import Acts, check_counts
from emit.check.capacity import CAPACITY
from emit.check.cells import cells_of
from emit.check.contents import ProgramContents
from emit.check.order import run
from emit.check.program import check
from emit.columns import columns_of
from emit.findings import Finding, Findings, Judgement, Verdict, not_judged
from emit.goal import Goal, goals_of, sizes_of
from emit.images import BufferImages, Images, block_of_buffer, buffer_images, images_of
from emit.mscclpp.acts import acts_of
from emit.mscclpp.building.meeting import add_meeting
from emit.mscclpp.building.numbering import Numbering
from emit.mscclpp.building.placement import Placer
from emit.mscclpp.building.threadblocks import make_threadblocks
from emit.mscclpp.images import text_of_images, whole_plan
from emit.mscclpp.memory import (
    ALIGNMENT,
    Memory,
    both_chunks,
    collective_of,
    counted_chunks,
    goal_of,
    has_pairs,
    input_block,
    limit_sizes,
    memory_of,
)
from emit.mscclpp.plan import MAX_OPS, ExecutionPlan, op_count, with_other_head
from emit.mscclpp.read import remember, shared_plan
from emit.mscclpp.replay import CallAssumption, Replay
from emit.mscclpp.structure import caution, check_structure
from emit.mscclpp.timing import PlanPredictor
from emit.mscclpp.widths import places_of
from emit.program import FREE_SLOTS, ROOTED, WRITES_DST, Gpu, Program, Step, ThreadBlock, Unit
from emit.targets import Target, check_resident
from emit.timing.timed import TimedProgram
from topologies.errors import InputError
from topologies.topology import Topology

# Operations that steps may take in a threadblock, tried until the operations that other ends need fit too.
_ROOMS = (56, 48, 40, 32, 24)
# Launches that are replayed: the first that reuses scratch, or a half of double scratch, is the last. Each launch does
# the same on the same cells as the one before (or before that), and its ranks know at least as much of each other.
_LAUNCHES, _LAUNCHES_OF_DOUBLE = 2, 3
_FORMS = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "custom")


@dataclass(frozen=True, slots=True)
class PlanReport(Judgement):
    """The result of a plan's check; a finding's `step` is the position of an operation in its threadblock.

    Attributes:
        root: Rank that the check took for the root of a rooted collective; plans do not name it. In a plan of pairs
            (`has_pairs`), rank r sends to rank r + root + 1.
    """

    root: int = 0


def check_plan(text_or_plan: str | ExecutionPlan, goal: Goal | None = None, root: int | None = None) -> PlanReport:
    """Check a plan with the executor's semantics, for every interleaving, and return the report.

    The report has no finding if the plan is right. It is not judged (`judged` is False) if the plan cannot be executed,
    or if no goal is given and the collective has no known goal.

    Args:
        text_or_plan: The plan; or, as for `read_plan`, a text that begins with `{`, or the path of a file.
        goal: The goal (out of place, inputs must also stay as they were); None for the goal of the plan's collective,
            in place or out of place as the plan says.
        root: Root of a rooted collective; None for the first root for which the plan is right, or 0 if there is none
            among as many as can be tried. With `goal`, no root is tried. In a plan of pairs (`has_pairs`), rank r sends
            to rank r + root + 1.

    Raises:
        InputError: The text cannot be read as a plan, the goal is for another number of ranks, or the plan is too large
            to be checked.
    """
    plan = shared_plan(text_or_plan) if isinstance(text_or_plan, str) else text_or_plan
    if goal is not None:
        plan = whole_plan(plan)
    rooted = goal is None and (collective_of(plan) in ROOTED or has_pairs(plan)) and root is None
    first = _checked(plan, goal, root or 0)
    if not rooted or all(f.kind not in ("wrong result", "read before write") for f in first.findings):
        return first
    most = len(plan.gpus) - has_pairs(plan)  # A rank sends its input to one of the others.
    roots = range(1, min(most, 1 + CAPACITY.root_steps // (1 + plan.nops)))
    further_reports = (_checked(plan, None, further_root) for further_root in roots)
    return next((report for report in further_reports if report.ok), first)


def verify(path: str | os.PathLike[str], goal: Goal | None = None, *_: object) -> Verdict:
    """Read and check a plan file; this never raises for bad input.

    Without `goal`, a plan of a collective without a known goal is "not judged", unless it is proved wrong. The
    arguments after `goal` are ignored, because plans have no FIFO. The verdict holds no program.
    """
    return read_and_check(Path(path), goal)[0]


def read_and_check(path: Path, goal: Goal | None) -> tuple[Verdict, ExecutionPlan | None, PlanReport | None]:
    """Return the verdict on a plan file in words, the plan, and its report; both are None for an unreadable file.

    A plan that is too large to be checked counts as unreadable. The verdict holds no program. If a plan with
    translations is not right, the plan of all its ranks is checked and returned instead. `goal` is as for `check_plan`.
    """
    try:
        plan = shared_plan(path)
        report = check_plan(plan, goal)
        if not report.ok and plan.translations:  # The findings of all ranks are reported.
            plan = whole_plan(plan)
            report = check_plan(plan, goal)
    except InputError as error:
        return Verdict("not readable", (str(error),)), None, None
    if report.ok and not report.judged:
        return not_judged(f"collective {plan.collective[:60]!r}", report.notes), plan, report
    form = "in place" if plan.inplace else "out of place"
    head = f"{report.status}: {plan.collective} on {len(plan.gpus)} ranks {form}, {plan.nops} operations, "
    head += f"execution plan of protocol {plan.protocol}"
    if collective_of(plan) in ROOTED:
        head += f", root {report.root}"
    elif goal is None and report.judged and has_pairs(plan):
        head += f", from rank r to r + {report.root + 1}"
    lines = [f"{f.kind}: {f.message}" for f in report.findings]
    return Verdict(report.status, (head, *lines, *report.notes), report.findings), plan, report


def _checked(plan: ExecutionPlan, goal: Goal | None, root: int) -> PlanReport:
    """Check a plan for one root, and return the report.

    A plan with a structural fault other than an exceeded limit is not replayed.

    Args:
        plan: The plan.
        goal: The goal; out of place, inputs must also stay as they were. None for the goal of the plan's collective,
            which is used only if the structure has no finding.
        root: Root of a rooted collective, or, in a plan of pairs, as in `PlanReport`.

    Raises:
        InputError: The goal is for another number of ranks, or the plan is too large to be checked.
    """
    if goal is not None and goal.nranks != len(plan.gpus):
        raise InputError(f"goal for {goal.nranks} ranks, plan of {len(plan.gpus)}; it must be equal")
    full_goal = goal if goal is None or plan.inplace else goal.keeping_input()
    findings, notes = Findings(), caution(plan)
    runs = check_structure(plan, goal, findings)
    if not findings.reported and full_goal is None:
        full_goal = goal_of(plan, root)
    if runs:
        memory = memory_of(plan, full_goal)  # This limits the number of cells of a goal.
        plan_acts = acts_of(memory)
        check_counts(plan_acts, findings)
        _replay(plan_acts, memory, full_goal, findings, notes)
        if findings.reported and not plan.translations and all(_is_of_calls(f) for f in findings.reported):
            _say_what_calls_need(plan_acts, memory, full_goal, findings)
        if full_goal is None and not findings.reported:
            notes.append(f"no goal known for collective {plan.collective[:60]!r}: the result was not judged")
    return PlanReport(tuple(findings.reported), (*notes, *findings.counted()), full_goal is not None and runs, root)


def _is_of_calls(finding: Finding) -> bool:
    """Return True if a finding is a race for scratch, or one without a cell: it may depend on the calls."""
    return finding.kind == "race" and (finding.cell is None or finding.cell[0] == "s")


def _say_what_calls_need(plan_acts: Acts, memory: Memory, goal: Goal | None, findings: Findings) -> None:
    """Replace all findings by one of kind "calls", if the plan is right when its caller keeps to some rule.

    The plan is replayed first for calls of one size, then for calls that no rank begins before all ranks have ended the
    last one. The first rule under which no finding remains counts. If there is none, `findings` stays as it is.
    """
    for calls in (CallAssumption.OF_ONE_SIZE, CallAssumption.APART):
        further = Findings()
        _replay(plan_acts, memory, goal, further, [], calls)
        if not further.reported:
            first = findings.reported[0]
            message = f"right only if {calls.value}; else a race: {first.message}"
            findings.reported[:], findings.counts = [replace(first, kind="calls", message=message)], {}
            return


def _goal_of_nothing(plan: ExecutionPlan) -> Goal:
    """Return a goal where every input chunk is a contribution of its own, and nothing is required.

    For an unknown collective in place, it is unknown where output and input share memory; so each output chunk holds an
    initial contribution of its own too, as a chunk of its rank that is counted after the input's chunks.
    """
    rows = []
    for rank, gpu in enumerate(plan.gpus):
        rows += [(rank, "i", x, rank, x) for x in range(gpu.input_chunks)]
        if plan.inplace:
            rows += [(rank, "o", x, rank, gpu.input_chunks + x) for x in range(gpu.output_chunks)]
    return Goal.from_arrays(len(plan.gpus), tuple(zip(*rows, strict=True)), ([], [], [], [], []))  # type: ignore[arg-type]


def _replay(
    plan_acts: Acts,
    memory: Memory,
    required_goal: Goal | None,
    findings: Findings,
    notes: list[str],
    calls: CallAssumption = CallAssumption.ANY,
) -> None:
    """Replay up to three launches of a plan on contents, and add findings and notes.

    The replay ends after the first launch that stops before its end, or after which `findings` is not empty. From the
    second launch on, the message of a finding begins with the launch.

    Args:
        plan_acts: Acts of the plan.
        memory: Memory of the plan.
        required_goal: What the cells must hold at the end of each launch; None to judge no result.
        findings: Where findings are added.
        notes: Where cautions are added.
        calls: What the caller of the plan promises about its calls.
    """
    goal = required_goal or _goal_of_nothing(memory.plan)
    images = memory.images
    contents = (
        ProgramContents(goal) if images is None else ProgramContents(goal, images.images, input_block(memory.plan))
    )

    run = Replay(plan_acts, memory, contents, findings, calls)
    required = memory.first_cells(goal.required[:3])
    for launch in range(1, 1 + (_LAUNCHES_OF_DOUBLE if memory.plan.double else _LAUNCHES)):
        stopped = run.run()
        if stopped and not any(f.kind == "unpaired" for f in findings.reported):
            run.report_stopped(stopped)
        if not stopped:
            if launch == 1:  # Later launches end in the same state.
                run.check_ends(notes)
            if required_goal is not None:
                contents.report_wrong(
                    run.cells,
                    required,
                    memory.units,
                    lambda cell: plan_acts.place(*run.written[cell][2:4]) if cell in run.written else None,
                    findings,
                    looked_at=None if run.begins is None else run.begins[required],
                )
        if stopped or findings.reported:
            if launch > 1:  # Earlier launches had no findings.
                findings.reported[:] = [replace(f, message=f"launch {launch}: {f.message}") for f in findings.reported]
            return
    run.check_hearing(notes)


def write(
    program: Program,
    goal: Goal | None,
    target: Target,
    nodes: Sequence[int] | None,
    inplace: bool | None,
    linked: Sequence[tuple[int, int]],
) -> str:
    """Return the text of a program as a plan, checked.

    Args:
        program: The program.
        goal: Its goal, if the collective's name does not define it; else None.
        target: The target, of which only the number of threadblocks that a rank may have (`limits.sms`) matters.
        nodes: Node of each rank; None if all ranks are in one node.
        inplace: Whether the plan is for in-place calls; None for the program's own form, in place if it has both.
        linked: Pairs of ranks that the network links.

    Raises:
        InputError: As `write_plan` raises it.
    """
    return write_plan(program, goal, nodes=nodes, inplace=inplace, linked=linked, sms=target.limits.sms)


@dataclass(frozen=True)
class PlanDraft:
    """A plan of a program that was compiled here; it is checked when its text is made.

    Attributes:
        plan: The plan.
        goal: Its goal; None for the goal of its collective.
        root: Root of a rooted collective; others do not use it.
    """

    plan: ExecutionPlan
    goal: Goal | None
    root: int

    @property
    def largest_message(self) -> int:
        """Return the largest message that the plan takes, in bytes of the larger of input and output."""
        return _largest(self.plan)

    def predictor(self, topology: Topology, group: Sequence[int]) -> PlanPredictor:
        """Return the predictor of the plan's times on a topology, without checking the plan's structure.

        `group` is the topology's rank of each rank of the plan.

        Raises:
            InputError: The group does not fit the topology, two ranks that communicate have no link, or the plan is too
                large to be timed.
        """
        return PlanPredictor(self.plan, topology, group, made_here=True)

    def in_best_units(
        self, predictor: TimedProgram, size_bytes: float, score: Callable[[TimedProgram], float], unit: float
    ) -> tuple[PlanDraft, PlanPredictor, Unit]:
        """Return the draft, its predictor and its unit as `Draft.in_best_units` does."""
        assert isinstance(predictor, PlanPredictor)
        best, best_unit = predictor.in_best_units(size_bytes, score, unit)
        limit_sizes(best.plan, 0, 0)
        return replace(self, plan=best.plan), best, Unit(best_unit, best.unit_bytes)

    def text(self) -> str:
        """Return the plan's text, with all ranks if the plan has translations, after checking it.

        A plan with translations is kept for `shared_plan` as what its text says.

        Raises:
            InputError: The check finds a fault, or the text would be too large.
        """
        plan, text = self.plan, text_of_images(self.plan)
        checked = plan if plan.translations else text
        check_plan(checked, self.goal, self.root).raise_if_wrong(f"execution plan of {plan.name}")
        if plan.translations:
            remember(text, plan)
        return text


def draft(
    program: Program,
    goal: Goal | None,
    target: Target,
    nodes: Sequence[int] | None,
    linked: Sequence[tuple[int, int]],
) -> PlanDraft:
    """Build the plan of a right program, in place if the program serves that, else out of place; its text is unchecked.

    The result can be timed at once; its `text` checks the plan.

    Args:
        program: The program, which must have passed its check.
        goal: Its goal, if the collective's name does not define it; else None.
        target: The target, of which only the number of threadblocks that a rank may have (`limits.sms`) matters.
        nodes: Node of each rank; None if all ranks are in one node.
        linked: Pairs of ranks that the network links.

    Raises:
        InputError: Plans cannot express the program, or it exceeds the executor's limits.
    """
    _check_expressible(program)
    return _draft(program, goal, nodes, program.inplace, linked, target.limits.sms)


def threadblocks(_: Program | None, text: str | Path) -> list[int]:
    """Return the number of threadblocks of each rank in a plan or its file, which may exceed that of its program.

    `text` is the text or the path; the program is ignored.

    Raises:
        InputError: As `read_plan` raises it.
    """
    plan = shared_plan(text)
    ranks = range(len(plan.gpus))
    owners = images_of(plan.translations, len(ranks)).representative.tolist() if plan.translations else ranks
    return [len(plan.gpus[owner].blocks) for owner in owners]


def largest_message(text: str) -> int:
    """Return the largest message that the plan in a text takes, in bytes of the larger of input and output.

    A plan that states no largest size counts as one with 2⁶⁴ − 1 bytes of the buffer that its reader measures.

    Raises:
        InputError: As `read_plan` raises it.
    """
    return _largest(shared_plan(text))


def _largest(plan: ExecutionPlan) -> int:
    """Return the largest message that a plan takes, in bytes of the larger of input and output, rounded down."""
    return plan.max_bytes * both_chunks(plan) // counted_chunks(plan)


def describe(program: Program, _: Target, text: str) -> str:
    """Return one line that describes a written plan, given its program and its text.

    It states collective, ranks, form, protocol, operations of all ranks, the largest number of threadblocks and of
    scratch chunks of a rank, and the types of channels.
    """
    plan = shared_plan(text)
    blocks = max(len(gpu.blocks) for gpu in plan.gpus)
    scratch = max(gpu.scratch_chunks for gpu in plan.gpus) * plan.widest
    queue_pairs = max(len(gpu.peers["port"]) for gpu in plan.gpus)  # The executor makes one for each port channel.
    channels = f"memory and port channels ({queue_pairs} queue pairs a rank)" if queue_pairs else "memory channels"
    return (
        f"{program.collective} on {program.nranks} ranks {'in place' if plan.inplace else 'out of place'}, execution "
        f"plan of protocol {plan.protocol}, checked: {plan.nops} operations, at most {blocks} threadblocks and "
        f"{scratch} chunks of scratch a rank, {channels}"
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
    """Return the program as the text of an execution plan; the same program always gives the same bytes.

    Nothing unverified is written: the plan's text is read, and every interleaving of it is checked. If the program has
    translations, the representatives' part of the plan is replayed, and the text has its images.

    Args:
        program: The program.
        goal: Its goal; None for the goal of its collective.
        nodes: Node of each rank; None if all ranks are in one node.
        inplace: Whether the plan is in place, which may differ from the program unless it has a goal of its own; None
            for the program's form, in place if it has both.
        linked: Pairs of ranks that can hear of each other, besides the pairs that the program connects.
        sms: Number of threadblocks that a rank may have; 0 for any number.

    Raises:
        InputError: A check finds a fault, no goal is given or known, the form differs from that of a program with a
            given goal, or plans cannot express the program: a collective that gives a rank an empty buffer, a reduction
            other than the sum, or more than the executor's limits allow.
    """
    _check_expressible(program)
    form = program.inplace if inplace is None else inplace
    own_form = form if (program.inplace if form else program.outofplace) else not form
    if goal is not None and form != own_form:
        raise InputError(
            f"program {'in' if own_form else 'out of'} place with a goal of its own; it must be the same form"
        )
    # A race of the program is one of the plan too, and is found there.
    report = check(program, goal, fifo_depth=FREE_SLOTS, target=None, split=False, races=False)
    report.raise_if_wrong()
    if not report.judged:
        subject = f"collective {program.collective!r} has no goal of its own"
        raise InputError(f"{subject}; it must be given one to check against")
    if form and not own_form:
        group = block_of_buffer(program, program.gpus[0].o_chunks)
        program, own_form = replace(program, gpus=[_gpu_in_place(gpu, group) for gpu in program.gpus]), True
    own_program = replace(program, inplace=own_form, outofplace=not own_form)
    return _draft(own_program, goal, nodes, form, linked, sms).text()


def _draft(
    program: Program,
    goal: Goal | None,
    nodes: Sequence[int] | None,
    form: bool,
    linked: Sequence[tuple[int, int]],
    sms: int,
) -> PlanDraft:
    """Build the plan of a program that has one form, unchecked, with the goal and the root for its check.

    Args:
        program: The program.
        goal: Its goal; None for the goal of its collective.
        nodes: Node of each rank; None if all ranks are in one node.
        form: Whether the plan is in place.
        linked: Pairs of ranks that can hear of each other, besides the pairs that the program connects.
        sms: Number of threadblocks that a rank may have; 0 for any number.

    Raises:
        InputError: As `_plan` raises it, or a rank has more threadblocks than `sms`.
    """
    plan = _plan(program, goal, nodes, form, linked)
    findings = Findings()
    check_resident([len(gpu.blocks) for gpu in plan.gpus], sms, findings)
    if findings.reported:
        raise InputError(
            f"execution plan of {program.name}: {findings.reported[0].message}; use fewer chunks (--chunks)"
        )
    return PlanDraft(plan, goal, program.root)


def _check_expressible(program: Program) -> None:
    """Raise InputError if execution plans cannot express a program's collective, or its reduction.

    They express the sum only; the reduction of a program without reducing steps does not matter.
    """
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
) -> ExecutionPlan:
    """Return the plan of a program that has one form; `form` is the plan's form, in place or not.

    The plan is not checked. Its steps are divided among threadblocks so that none exceeds MAX_OPS operations, if any of
    the divisions that are tried achieves that. The other arguments are those of `write_plan`.

    Raises:
        InputError: If `nodes` are of another number of ranks, the program is too large to be followed, its translations
            do not fit the nodes or need signals of all ranks, or the plan takes none of its message sizes.
    """
    n = program.nranks
    if nodes is not None and len(nodes) != n:
        raise InputError(f"nodes of {len(nodes)} ranks; it must be of {n}")
    node_of_rank = [0] * n if nodes is None else [int(node) for node in nodes]
    packets = program.protocol == "LL"
    c = columns_of(program, Findings())
    images = _images_between(program, node_of_rank)
    full_goal = goals_of(program)[0][1] if goal is None else goal
    cells = cells_of(program, c, full_goal, program.inplace)
    order = run(c, None, split=False).order
    separate = full_goal if program.inplace and not form else None
    placement = Placer(program, c, order, cells, node_of_rank, packets=packets, separate=separate).placement()
    sizes = [sizes_of(program, rank) for rank in range(n)]
    if goal is not None:  # All ranks call with buffers of one size, even ranks that need less of them or nothing.
        inputs, outputs = (
            max(1, *sides) for sides in zip(*((g.i_chunks, g.o_chunks) for g in program.gpus), strict=True)
        )
        sizes = [(inputs, outputs)] * n
    for room in _ROOMS:
        buffers, has_units = _buffers_of(program, sizes), program.unit_bytes > 0
        blocks = make_threadblocks(c, placement, node_of_rank, packets, room, buffers, has_units)
        connections = {send: c.connections[c.sends[send]][:2] for send in placement.match}
        gpus = Numbering(
            blocks, placement, node_of_rank, sizes, packets, connections, images, program.unit_bytes
        ).gpus()
        if placement.needs_meeting and images is not None:
            raise InputError(f"{program.name}: ranks that do not hear of each other must meet; it must have all ranks")
        if placement.needs_meeting:
            add_meeting(gpus, [(u, v) for u, v, _ in c.connections], node_of_rank, linked)
        most_ops = max(op_count(block.ops) for gpu in gpus for block in gpu.blocks)
        if most_ops <= MAX_OPS:
            break
        if has_units:
            raise InputError(f"{program.name}: {most_ops} operations of a threadblock; pipelines leave {MAX_OPS}")
    plan = ExecutionPlan(
        name=program.name,
        collective=program.collective,
        protocol="LL" if packets else "Simple",
        inplace=form,
        gpus=gpus,
        double=packets,
        alignment=ALIGNMENT,
        translations=program.translations,
        widths=program.widths,
    )
    limit_sizes(plan, program.min_bytes, program.max_bytes)
    if plan.widths:
        places_of(plan)  # Chunks that have no place in a file are refused before the plan is chosen.
    return plan


def _images_between(program: Program, node_of_rank: Sequence[int]) -> Images | None:
    """Return the images of a program's ranks; None if it has no translations.

    Raises:
        InputError: A translation moves two ranks of one node to different nodes.
    """
    if not program.translations:
        return None
    images, nodes = images_of(program.translations, program.nranks), np.array(node_of_rank)
    for rank in images.representatives.tolist():
        with_rank = nodes == nodes[rank]
        for image in np.flatnonzero(images.representative == rank).tolist():
            moved = images.moved(int(images.element[image]))
            if ((nodes[moved] == nodes[image]) != with_rank).any():
                raise InputError(f"{program.name}: its translations tear nodes apart; it must have all ranks")
    return images


def _buffers_of(program: Program, sizes: Sequence[tuple[int, int]]) -> BufferImages | None:
    """Return the images of the buffers of a program's plan; None if it has no translations.

    `sizes` is (input chunks, output chunks) of each rank; those of rank 0 count for all.
    """
    if not program.translations:
        return None
    return buffer_images(program.translations, program.nranks, program.nchunks_per_loop, sizes[0])


def restate(text: str, name: str, least: int, most: int | None, _: Target) -> str:
    """Return a plan's text with another name and other message sizes, unchecked; the target is ignored.

    A plan with translations is kept for `shared_plan` as what the new text says.

    Args:
        text: The text of the plan.
        name: The new name.
        least: Smallest message, in bytes of the larger of input and output.
        most: Largest message, in bytes of the same buffer; None for no limit but that of the plan's offsets.

    Raises:
        InputError: The plan takes no message of such a size, or the text cannot be read.
    """
    before = shared_plan(text)
    plan = replace(before, name=name)
    limit_sizes(plan, least, most or 0)
    restated = with_other_head(text, before, plan) or text_of_images(plan)
    if plan.translations:
        remember(restated, plan)
    return restated


def _gpu_in_place(gpu: Gpu, group: int) -> Gpu:
    """Return a rank of a right out-of-place program, changed to serve in-place calls.

    Its results go to scratch, which grows by the size of the output, instead of the output. A new last threadblock
    copies them to the output after everything else. No copy crosses a multiple of `group` chunks, unless that is 0.
    """
    blocks = []
    waits: list[Step] = []
    for tb, block in enumerate(gpu.threadblocks):
        steps = [_output_in_scratch(step, gpu.s_chunks) for step in block.steps]
        if steps:
            steps[-1] = replace(steps[-1], has_dep=True)
            waits.append(Step("nop", "i", -1, "o", -1, 0, tb, len(steps) - 1))
        blocks.append(replace(block, steps=steps))
    copies = [Step("cpy", "s", gpu.s_chunks + at, "o", at, count) for at, count in _output_runs(gpu, group)]
    if copies:  # The copies wait for the steps that write their sources.
        copies[0] = replace(copies[0], dep_tb=waits[-1].dep_tb, dep_step=waits[-1].dep_step)
        blocks.append(ThreadBlock(-1, -1, 0, [*waits[:-1], *copies]))
    return replace(gpu, s_chunks=gpu.s_chunks + gpu.o_chunks, threadblocks=blocks)


def _output_runs(gpu: Gpu, group: int) -> list[tuple[int, int]]:
    """Return (first chunk, number of chunks) of each contiguous part of the output that is written, in ascending order.

    Parts are cut at multiples of `group` chunks, unless that is 0.
    """
    written = np.zeros(gpu.o_chunks + 2, dtype=bool)  # with an extra chunk at both ends
    for block in gpu.threadblocks:
        for step in block.steps:
            if step.op in WRITES_DST and step.dst_buf == "o":
                written[step.dst_off + 1 : step.dst_off + step.count + 1] = True
    runs: list[tuple[int, int]] = []
    for first, end in np.flatnonzero(np.diff(written)).reshape(-1, 2).tolist():
        cuts = range((first // group + 1) * group, end, group) if group else range(0)
        runs += [(low, high - low) for low, high in pairwise((first, *cuts, end))]
    return runs


def _output_in_scratch(step: Step, first: int) -> Step:
    """Return the step with chunk `first` + x of scratch in place of each chunk x of the output."""
    if step.src_buf == "o":
        step = replace(step, src_buf="s", src_off=step.src_off + first)
    if step.dst_buf == "o":
        step = replace(step, dst_buf="s", dst_off=step.dst_off + first)
    return step
