"""The check of an execution plan: for every interleaving it ends, without a race, in what its collective asks for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emit.check.replay import NOTHING, Values
from emit.findings import Findings, Judgement
from emit.goal import Goal
from emit.msccl.verdict import Verdict
from emit.mscclpp.acts import Act, Acts, acts_of, check_counts
from emit.mscclpp.memory import Memory, collective_of, goal_of, memory_of
from emit.mscclpp.plan import Plan
from emit.mscclpp.read import read_plan
from emit.mscclpp.replay import Access, Replay
from emit.mscclpp.structure import caution, check_parts, check_structure
from emit.program import BUFFERS, ROOTED
from topologies.errors import InputError

_ROOT_WORK = 1 << 19  # operations replayed at most while the root of a plan is sought
_SHOWN = 8  # threadblocks of a deadlock that the message spells out, and cautions


@dataclass(frozen=True, slots=True)
class PlanReport(Judgement):
    """What the check of a plan found; a finding's `step` is the operation of a threadblock.

    `root`: the rank for which a rooted collective was judged; plans do not name it.
    """

    root: int = 0


def check_plan(text_or_plan: str | Plan, goal: Goal | None = None, root: int | None = None) -> PlanReport:
    """Check a plan, or the text of one, with the executor's semantics.

    goal: what it must achieve (out of place also that inputs stay as they were); None means that of its collective, in
    place or not as it says. root: of a rooted
    collective; None: any root for which it is right.

    Raises InputError for a text that cannot be read as a plan, or one too large to be checked.
    """
    plan = read_plan(text_or_plan) if isinstance(text_or_plan, str) else text_or_plan
    rooted = goal is None and collective_of(plan) in ROOTED and root is None
    first = _checked(plan, goal, root or 0)
    roots = range(1, min(len(plan.gpus), 1 + _ROOT_WORK // (1 + plan.nops)))
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
        return Verdict(
            "not readable",
            (
                f"collective {plan.collective[:60]!r} does not say what the result must be: would be given a goal",
            ),
        )
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
        raise InputError(f"goal for {goal.nranks} ranks, plan of {len(plan.gpus)}: would be equal")
    notes = caution(plan)
    if not found.told and wanted is None:
        wanted = goal_of(plan, root)
    fatal = any(f.kind != "limit" for f in found.told)
    if not fatal:
        check_parts(plan, found)
        fatal = any(f.kind != "limit" for f in found.told)
    if not fatal:
        memory = memory_of(plan, wanted)  # bounds the cells that a goal is made of
        made = acts_of(plan, memory)
        check_counts(made, plan, found)
        _replayed(made, memory, wanted, found, notes)
    judged = wanted is not None and not fatal
    if wanted is None and not fatal:
        notes.append(f"no goal known for collective {plan.collective[:60]!r}: the result was not judged")
    return PlanReport(tuple(found.told), (*notes, *found.untold()), judged, root)


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


def _replayed(made: Acts, memory: Memory, wanted: Goal | None, found: Findings, notes: list[str]) -> None:
    goal = wanted if wanted is not None else _nothing_asked(memory.plan)
    values = Values(goal)
    cells: dict[int, int] = {}
    ranks, buffers, index, source, chunk = (column.tolist() for column in goal.initial)
    for rank, code, at, owner, which in zip(ranks, buffers, index, source, chunk, strict=True):
        number = values.of((owner * values.nchunks + which,))
        first = memory.cell(rank, BUFFERS[code], at, False)
        cells.update(dict.fromkeys(range(first, first + memory.units), number))
    run = Replay(made, memory, values, cells, found)
    stopped = run.run()
    if stopped:
        if not any(f.kind == "unpaired" for f in found.told):
            _deadlock(made, run, stopped, found)
        return
    _ends(run, found, notes)
    if wanted is not None:
        _compare(run, wanted, found)


def _ends(run: Replay, found: Findings, notes: list[str]) -> None:
    """What is still under way when a rank's kernel ends meets what its caller does next with its buffers."""
    made, memory, clocks = run.made, run.memory, run.clocks
    nblocks = len(made.acts)
    of_rank: list[list[int]] = [[] for _ in memory.plan.gpus]
    for block, rank in enumerate(made.rank):
        of_rank[rank].append(block)
    rows = [clocks.ended(blocks) if blocks else np.zeros(0, dtype=np.int32) for blocks in of_rank]
    told: set[tuple[int, int, int]] = set()
    cautions: list[str] = []

    def late(cell: int, access: Access, word: str) -> None:
        actor, tick, block, op = access[:4]
        owner = memory.rank(cell)
        if actor < nblocks and clocks.rank[actor] == owner:
            return
        if len(rows[owner]) and rows[owner][actor] >= tick + 2:
            return
        if (block, op, owner) in told:
            return
        told.add((block, op, owner))
        name, at = memory.name(cell)
        act = next(a for a in made.acts[block] if a.op == op)
        if clocks.rank[actor] == owner:
            if name == "s" and memory.plan.double:  # the next call uses the other half
                return
            cautions.append(
                f"caution: rank {owner} can end while a port channel still reads {name}[{at}] for the {act.name} of "
                f"tb {made.tb[block]} step {op}; pwsf and flush do not wait for it in the executor"
            )
            return
        found.add(
            "race",
            f"{act.name} {word} {name}[{at}] of rank {owner}, which can end before that; would wait for a signal",
            *made.place(block, op),
            cell=(name, at),
        )

    for cell, access in sorted(run.written.items()):
        late(cell, access, "writes")
    for cell, readers in sorted(run.read.items()):
        for _, access in sorted(readers.items()):
            late(cell, access, "reads")
    notes += cautions[:_SHOWN]
    if len(cautions) > _SHOWN:
        notes.append(f"caution: {len(cautions) - _SHOWN} more of that kind")
    for (rank, other), (block, op) in sorted(run.unheard.items()):
        first = clocks.first.get(other)
        if first is None or not rows[rank][first]:
            found.add(
                "race",
                f"{next(a.name for a in made.acts[block] if a.op == op)} writes scratch of rank {other}, of which rank "
                f"{rank} hears nothing in a call: it may be two calls ahead, and both use one half of the scratch",
                *made.place(block, op),
            )


def _compare(run: Replay, goal: Goal, found: Findings) -> None:
    memory, values = run.memory, run.values
    sets = goal.sets
    ids = (sets.source * values.nchunks + sets.chunk).tolist()
    bounds = sets.start.tolist()
    number: dict[int, int] = {}
    for rank, code, at, which in zip(*(column.tolist() for column in goal.required), strict=True):
        right = number.get(which)
        if right is None:
            right = number[which] = values.of(tuple(sorted(ids[bounds[which] : bounds[which + 1]])))
        first = memory.cell(rank, BUFFERS[code], at, False)
        for cell in range(first, first + memory.units):
            holds = run.cells.get(cell, NOTHING)
            if holds == right:
                continue
            name = BUFFERS[code]
            should = values.words(right) + (" once each" if len(values.content[right]) > 1 else "")
            if code == 0 and goal.o_in_i[rank] is None:
                should += " (out-of-place, the input must stay as it was)"
            last = run.written.get(cell)
            by, tb, op = run.made.place(last[2], last[3]) if last is not None else (rank, None, None)
            whose = "" if by == rank else f" of rank {rank}"
            found.add(
                "wrong result",
                f"{name}[{at}]{whose} {'holds' if last is None else 'is left with'} {values.words(holds, right)}; "
                f"should hold {should}",
                by,
                tb,
                op,
                (name, at),
            )
            break


def _provides(act: Act, made: Acts, need: tuple[str, int]) -> bool:
    kind, number = need
    if kind == "signal":
        other = made.across[number]
        return (
            other in act.ids if act.kind == "signal" else act.name in ("pws", "pwsf") and other in act.ports
        )
    if kind == "release":
        return act.kind == "release" and number in act.ids
    if kind == "barrier":
        return act.kind == "barrier" and act.ids[0] == number
    return any(
        run.packet and run.cell <= number < run.cell + 2 * lane.length
        for lane in act.lanes
        for run in lane.targets
    )


def _deadlock(made: Acts, run: Replay, stopped: list[tuple[int, int, str]], found: Findings) -> None:
    """Add the cycle of waits in which the run ended, or the wait for what nothing sends."""
    at = {block: n for block, n, _ in stopped}
    why = {block: words for block, _, words in stopped}

    def provider(block: int) -> int | None:
        act = made.acts[block][at[block]]
        need = ("barrier", act.ids[0]) if act.kind == "barrier" else run.needs(act)
        assert need is not None  # it stopped there
        here = run.arrived[need[1]] if need[0] == "barrier" else []
        able = (
            other
            for other in at
            if other not in here and any(_provides(a, made, need) for a in made.acts[other][at[other] :])
        )
        return next(able, None)

    def words(blocks: list[int]) -> Iterator[str]:
        for block in blocks[:_SHOWN]:
            act = made.acts[block][at[block]]
            rank, tb, step = made.place(block, act.op)
            yield f"rank {rank} tb {tb} step {step} ({act.name}) waits for {why[block]}"
        if len(blocks) > _SHOWN:
            yield f"{len(blocks) - _SHOWN} more"

    path: list[int] = []
    block: int | None = stopped[0][0]
    while block is not None and block not in path:
        path.append(block)
        block = provider(block)
    if block is None:
        last = path[-1]
        act = made.acts[last][at[last]]
        found.add(
            "deadlock", f"{act.name} waits for {why[last]}, which nothing gives", *made.place(last, act.op)
        )
        return
    cycle = path[path.index(block) :]
    turn = cycle.index(min(cycle))
    cycle = cycle[turn:] + cycle[:turn]
    places = tuple(made.place(b, made.acts[b][at[b]].op) for b in cycle)
    told = "; ".join(words(cycle))
    found.add("deadlock", f"deadlock: {told}; and so round", *places[0], cycle=places)
