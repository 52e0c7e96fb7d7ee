"""The check of an execution plan: for every interleaving it ends, without a race, in what its collective asks for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emit.check.capacity import CAPACITY
from emit.check.contents import Contents
from emit.columns import Column
from emit.findings import Findings, Judgement, Verdict
from emit.goal import Goal
from emit.mscclpp.acts import Acts, acts_of, check_counts
from emit.mscclpp.memory import Memory, collective_of, goal_of, memory_of
from emit.mscclpp.plan import Plan
from emit.mscclpp.read import read_plan
from emit.mscclpp.replay import Access, Replay
from emit.mscclpp.structure import caution, check_parts, check_structure
from emit.program import BUFFERS, ROOTED
from topologies.errors import InputError

_SPELT_OUT = 8  # cautions; the others are counted


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


def verify_plan(path: str | os.PathLike[str], goal: Goal | None = None) -> Verdict:
    """Read and check a plan file; never raises for bad input.

    A plan whose collective has no known goal is "not readable" without `goal`, unless it is found wrong.
    """
    try:
        plan = read_plan(Path(path))
        report = check_plan(plan, goal)
    except InputError as error:
        return Verdict("not readable", (str(error),))
    if report.ok and not report.judged:
        lack = f"collective {plan.collective[:60]!r} does not say what the result must be; it must be given a goal"
        return Verdict("not readable", (lack,))
    head = (
        f"{report.status}: {plan.collective} on {len(plan.gpus)} ranks "
        f"{'in place' if plan.inplace else 'out of place'}, {plan.nops} operations, execution plan of protocol "
        f"{plan.protocol}"
    )
    if collective_of(plan) in ROOTED:
        head += f", root {report.root}"
    lines = [f"{f.kind}: {f.message}" for f in report.findings]
    return Verdict(report.status, (head, *lines, *report.notes), report.findings)


def _checked(plan: Plan, goal: Goal | None, root: int) -> PlanReport:
    found = Findings()
    check_structure(plan, goal, found)
    wanted = goal if goal is None or plan.inplace else goal.keeping_input()
    if goal is not None and goal.nranks != len(plan.gpus):
        raise InputError(f"goal for {goal.nranks} ranks, plan of {len(plan.gpus)}; it must be equal")
    notes = caution(plan)
    if not found.reported and wanted is None:
        wanted = goal_of(plan, root)
    fatal = any(f.kind != "limit" for f in found.reported)
    if not fatal:
        check_parts(plan, found)
        fatal = any(f.kind != "limit" for f in found.reported)
    if not fatal:
        memory = memory_of(plan, wanted)  # bounds the cells that a goal is made of
        made = acts_of(plan, memory)
        check_counts(made, plan, found)
        _replay(made, memory, wanted, found, notes)
    judged = wanted is not None and not fatal
    if wanted is None and not fatal:
        notes.append(f"no goal known for collective {plan.collective[:60]!r}: the result was not judged")
    return PlanReport(tuple(found.reported), (*notes, *found.counted()), judged, root)


def _nothing_asked(plan: Plan) -> Goal:
    """Every input chunk is its own contribution, and nothing is required.

    Where the output of an unknown collective in place meets the input is not known: it may hold something too.
    """
    rows = []
    for rank, gpu in enumerate(plan.gpus):
        rows += [(rank, "i", x, rank, x) for x in range(gpu.input_chunks)]
        if plan.inplace:
            rows += [(rank, "o", x, rank, gpu.input_chunks + x) for x in range(gpu.output_chunks)]
    initial = tuple(list(column) for column in zip(*rows, strict=True))
    return Goal.from_arrays(len(plan.gpus), initial, ([], [], [], [], []))  # type: ignore[arg-type]


def _replay(made: Acts, memory: Memory, wanted: Goal | None, found: Findings, notes: list[str]) -> None:
    goal = wanted if wanted is not None else _nothing_asked(memory.plan)
    contents = Contents(goal)

    def first_cells(columns: tuple[Column, ...]) -> list[int]:
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [memory.cell(rank, BUFFERS[code], at, False) for rank, code, at in rows]

    cells: dict[int, int] = {}
    for first, content in zip(first_cells(goal.initial[:3]), contents.initial(), strict=True):
        cells.update(dict.fromkeys(range(first, first + memory.units), content))
    run = Replay(made, memory, contents, cells, found)
    stopped = run.run()
    if stopped:
        if not any(f.kind == "unpaired" for f in found.reported):
            run.report_stopped(stopped)
        return
    _check_ends(run, found, notes)
    if wanted is not None:
        contents.report_wrong(
            run.cells,
            first_cells(goal.required[:3]),
            memory.units,
            lambda wrong: {cell: made.place(*run.written[cell][2:4]) for cell in wrong if cell in run.written},
            found,
        )


def _check_ends(run: Replay, found: Findings, notes: list[str]) -> None:
    """What is still under way when a rank's kernel ends meets what its caller does next with its buffers."""
    made, clocks = run.made, run.clocks
    of_rank: list[list[int]] = [[] for _ in run.memory.plan.gpus]
    for block, rank in enumerate(made.rank):
        of_rank[rank].append(block)
    over = [clocks.ended(blocks) if blocks else np.zeros(0, dtype=np.int32) for blocks in of_rank]
    seen: set[tuple[int, int, int]] = set()
    cautions: list[str] = []

    def late(cell: int, access: Access, word: str) -> None:
        actor, tick, block, op = access[:4]
        owner = run.memory.rank(cell)
        own = clocks.rank[actor] == owner
        if actor < len(made.acts) and own:
            return
        if (len(over[owner]) and over[owner][actor] >= tick + 2) or (block, op, owner) in seen:
            return
        seen.add((block, op, owner))
        name, at = run.memory.name(cell)
        if not own:
            what = f"{made.name(block, op)} {word} {name}[{at}] of rank {owner}, which can end before that"
            found.add("race", f"{what}; it must wait for a signal", *made.place(block, op), cell=(name, at))
        elif name != "s" or not run.memory.plan.double:  # else the next call uses the other half
            cautions.append(
                f"caution: rank {owner} can end while a port channel still reads {name}[{at}] for the "
                f"{made.name(block, op)} of tb {made.tb[block]} step {op}; pwsf and flush do not wait for it in the "
                "executor"
            )

    for cell, access in sorted(run.written.items()):
        late(cell, access, "writes")
    for cell, readers in sorted(run.read.items()):
        for _, access in sorted(readers.items()):
            late(cell, access, "reads")
    notes += cautions[:_SPELT_OUT]
    if len(cautions) > _SPELT_OUT:
        notes.append(f"caution: {len(cautions) - _SPELT_OUT} more of that kind")
    for (rank, other), (block, op) in sorted(run.unheard.items()):
        first = clocks.first.get(other)
        if first is None or not over[rank][first]:
            what = (
                f"{made.name(block, op)} writes scratch of rank {other}, of which rank {rank} hears nothing in a call"
            )
            why = "it may be two calls ahead, and both use one half of the scratch"
            found.add("race", f"{what}: {why}", *made.place(block, op))
