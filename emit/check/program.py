"""Check a program: every interleaving ends, without a race, within the target's limits, with the right result."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from emit.check.cells import Cells, cells_of
from emit.check.contents import GARBAGE, NOTHING, ProgramContents
from emit.check.limits import check_limits
from emit.check.order import report_stopped, run
from emit.check.races import find_races
from emit.columns import Columns, columns_of
from emit.findings import Findings, Judgement
from emit.goal import Goal, goals_of, sizes_of
from emit.images import block_of_input, check_images, images_of
from emit.program import FIFO_DEPTH, OPS, READS_DST, READS_SRC, ROOTED, WRITES_DST, Program
from emit.targets import Limits, target_named
from synth.model.deadline import checking_deadline
from synth.model.registry import ROOT, find_kind
from topologies.errors import InputError


@dataclass(frozen=True, slots=True)
class ProgramReport(Judgement):
    """The result of a program's check.

    Attributes:
        fifo_depth: Number of FIFO slots of a connection.
        splits: Whether the program also ends if every chunk takes a slot of its own.
    """

    fifo_depth: int
    splits: bool = True


def check(
    program: Program,
    goal: Goal | None = None,
    fifo_depth: int | None = None,
    *,
    target: str | Limits | None = "executor-nccl",
    split: bool = True,
    races: bool = True,
) -> ProgramReport:
    """Check that every interleaving of `program` ends, without a race, in the contents that `goal` requires.

    Args:
        program: The program.
        goal: The goal; None means the goal of the program's collective, in place, out of place or both, as the program
            says. A given goal of an out-of-place program is extended: the input must also stay as it was. A program
            with translations must have None; its images are right if its own steps and cells are, which are checked.
        fifo_depth: Slots of a connection (source, destination, channel), in transmissions; None means the protocol's.
        target: Target whose limits are checked (executor-nccl, rccl, msccl), or these limits; None means no limits.
        split: If True, a step of `count` chunks takes `count` slots, as it does for large messages. If False, it takes
            one slot, and the report's `splits` says whether the program also ends with `count` slots.
        races: Whether races are looked for; if not, only one interleaving is judged.

    Returns:
        The report, with at most MAX_OF_A_KIND findings of a kind. A program with a structural fault is not executed, so
        that races and wrong results are not looked for then.

    Raises:
        InputError: An unknown target, a depth below 1, a goal for another number of ranks, or a program too large.
    """
    depth = FIFO_DEPTH[program.protocol] if fifo_depth is None else fifo_depth
    if depth < 1:
        raise InputError(f"fifo_depth {depth}; it must be 1 or more")
    if program.translations and (goal is not None or not find_kind(program.collective).translatable):
        raise InputError(f"{program.collective} with translations; its name must state a goal that translations keep")
    declaration_findings = Findings()
    notes: list[str] = []
    if goal is None:
        goals = _goals(program, declaration_findings)
    else:  # An out-of-place call must also leave its input as it was.
        goals = [("", goal.keeping_input() if program.outofplace and not program.inplace else goal, False)]
    if target is not None:
        check_limits(program, target_named(target).limits if isinstance(target, str) else target, declaration_findings)
    structure = Findings()
    columns = columns_of(program, structure)
    images = images_of(program.translations, program.nranks) if program.translations else None
    if images is not None:
        check_images(program)
    splits = True
    judged = False
    if not structure.reported:
        order, splits = _ordered(columns, depth, split, structure)
        if order is not None:
            for prefix, goal_of_call, aliased in goals:
                cells = cells_of(program, columns, goal_of_call, aliased)
                if races:
                    find_races(columns, order, cells, structure, prefix, images)
                if goal_of_call is not None:
                    block = block_of_input(
                        program.collective, program.translations, program.nranks, program.nchunks_per_loop
                    )
                    contents = ProgramContents(goal_of_call, images, block)
                    _replay(columns, order, cells, contents, structure, prefix)
                    judged = True
    if not judged and all(g is None for _, g, _ in goals):
        notes.append(f"no goal known for collective {program.collective!r}: the result was not judged")
    findings = (*structure.reported, *declaration_findings.reported)
    notes += [*structure.counted(), *declaration_findings.counted()]
    return ProgramReport(findings, tuple(notes), judged, depth, splits)


def _ordered(c: Columns, depth: int, split: bool, findings: Findings) -> tuple[list[int] | None, bool]:
    """Return a topological order of all transmissions, and whether `depth` slots suffice with a slot for every chunk.

    The order holds the step of each transmission, chunk by chunk. It is None if the program deadlocks at every depth. A
    deadlock, also one at `depth` slots only, is added to the findings; with `split`, each chunk takes a slot for that,
    else each step takes one.
    """
    # A run that ends with few slots also ends with more, and one that ends with single chunks also ends with whole
    # steps. Hence one run is mostly enough.
    split_run = run(c, depth)
    if split_run.complete:
        return split_run.order, True
    unlimited_run = run(c, None)
    if not unlimited_run.complete:
        report_stopped(c, unlimited_run, None, findings)
        return None, False
    stopped = split_run if split else run(c, depth, split=False)
    if not stopped.complete:
        report_stopped(c, stopped, depth, findings)
    return unlimited_run.order, False


def _replay(
    c: Columns, order: list[int], cells: Cells, contents: ProgramContents, findings: Findings, prefix: str
) -> None:
    """Check the contents of all cells against the goal, by a replay of the transmissions, and add findings.

    Findings are reads of uninitialised cells and wrong results at the end; their messages begin with `prefix`. `order`
    must be complete and topological.
    """
    goal, images = contents.goal, contents.images
    # A message is an image of one that its receiver's representative receives.
    shift = [0 if images is None else images.inverse(int(images.element[target])) for _, target, _ in c.connections]
    memory = dict(zip(cells.of(*goal.initial[:3]), contents.initial(), strict=True))
    uses = list(zip(*(c.is_op(names).tolist() for names in (READS_SRC, WRITES_DST, READS_DST)), strict=True))
    sends, receives, count = c.sends.tolist(), c.receives.tolist(), c.count.tolist()
    in_flight: list[deque[int]] = [deque() for _ in c.connections]
    chunk_of = [0] * len(count)
    writer: dict[int, int] = {}  # step that wrote each cell last
    src, dst, add = cells.src, cells.dst, contents.add

    def uninitialised(step: int, chunk: int, is_dst: bool) -> int:
        """Report a read of uninitialised memory; return GARBAGE, whose later uses are not reported.

        Args:
            step: Step that reads.
            chunk: Chunk of the step.
            is_dst: Whether it reads its destination.
        """
        if findings.full("read before write"):
            findings.add("read before write", "")
            return GARBAGE
        name, where = c.cell(step, chunk, is_dst)
        message = f"{prefix}{OPS[c.op[step]]} reads {name}[{where}], which nothing has written"
        findings.add("read before write", message, *c.place(step), cell=(name, where))
        return GARBAGE

    for step in checking_deadline(order, every=1024):
        out, into = sends[step], receives[step]
        reads_src, writes_dst, reads_dst = uses[step]
        if out < 0 and into < 0:
            for chunk in range(count[step]):
                value = memory.get(src[step] + chunk) or uninitialised(step, chunk, False)
                if reads_dst:
                    value = add(memory.get(dst[step] + chunk) or uninitialised(step, chunk, True), value)
                elif src[step] == dst[step]:  # A copy onto itself writes nothing.
                    continue
                memory[dst[step] + chunk] = value
                writer[dst[step] + chunk] = step
            continue
        chunk = chunk_of[step]
        chunk_of[step] = chunk + 1
        value = NOTHING
        if reads_src:
            value = memory.get(src[step] + chunk) or uninitialised(step, chunk, False)
        if into >= 0:
            received = in_flight[into].popleft()
            value = add(received, value) if reads_src else received
        if out >= 0:
            in_flight[out].append(contents.image(value, shift[out]) if shift[out] else value)
        if writes_dst:
            memory[dst[step] + chunk] = value
            writer[dst[step] + chunk] = step
    required = np.array(cells.of(*goal.required[:3]), dtype=np.int64)
    contents.report_wrong(
        memory, required, 1, lambda cell: c.place(writer[cell]) if cell in writer else None, findings, prefix
    )


def _goals(program: Program, findings: Findings) -> list[tuple[str, Goal | None, bool]]:
    """Return (prefix of messages, goal, in place) for each form of call that the program serves, in place first.

    A goal is None if the collective's name implies none. The prefix is empty if there is one form. If the collective
    cannot have the program's number of chunks, the list is empty and a finding is added; findings are added too for
    buffers of wrong sizes.
    """
    try:
        sizes_of(program, program.root)
    except InputError as error:
        findings.add("inconsistent", str(error))
        return []
    goals = goals_of(program)
    for inplace, goal in goals:
        if goal is not None:
            _check_sizes(program, inplace, findings)
    prefixes = {True: "in place: ", False: "out of place: "} if len(goals) > 1 else {}
    return [(prefixes.get(inplace, ""), goal, inplace) for inplace, goal in goals]


def _check_sizes(program: Program, inplace: bool, findings: Findings) -> None:
    """Add a finding for each buffer i or o of a rank whose chunks are not what the collective implies.

    A size of 0 is right too for the buffer that an in-place program leaves out, and, on ranks other
    than the root, for one that only the root needs; the latter may also be as large as the root's.
    """
    p, kind = program, find_kind(program.collective)
    # By buffer (0 for i, 1 for o): whether a rank other than the root may declare a buffer that nobody relies on, and
    # whether an in-place program may leave the buffer out because the other buffer is the same memory.
    may_be_idle = (kind.before == ROOT, kind.after == ROOT)
    may_be_left_out = (kind.inplace == "o", kind.inplace == "i")
    root_sizes = sizes_of(p, p.root)
    for rank, gpu in enumerate(p.gpus):
        sizes = sizes_of(p, rank)
        declared = (gpu.i_chunks, gpu.o_chunks)
        for side in (0, 1):
            allowed = {sizes[side]}
            if rank != p.root and may_be_idle[side]:
                allowed |= {0, root_sizes[side]}
            if inplace and not p.outofplace and may_be_left_out[side]:
                allowed = {0, sizes[side]}
            elif inplace and not p.outofplace and declared[1 - side] and kind.rooted:
                allowed.add(0)
            if declared[side] not in allowed:
                requirement = " or ".join(str(x) for x in sorted(allowed))
                form = f"with nchunksperloop {p.nchunks_per_loop} {'in place' if inplace else 'out of place'}"
                findings.add(
                    "inconsistent",
                    f"{'io'[side]}_chunks {declared[side]}; {p.collective} {form} has {requirement}",
                    rank,
                )


def root_of(program: Program) -> range:
    """Return the roots that a program's file may mean, as it names none: all ranks, or only 0 if none is needed."""
    return range(program.nranks) if program.collective in ROOTED else range(1)
