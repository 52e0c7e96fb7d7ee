"""The check of a program: for every interleaving it ends, and ends with the right result."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from emit.check.cells import Cells, cells_of
from emit.check.contents import GARBAGE, NOTHING, Contents
from emit.check.executor import Place
from emit.check.limits import check_limits
from emit.check.order import report_stopped, run
from emit.check.races import find_races
from emit.columns import Columns, columns_of
from emit.findings import Findings, Judgement
from emit.goal import Goal, goals_of, sizes_of
from emit.program import FIFO_DEPTH, OPS, READS_DST, READS_SRC, ROOTED, WRITES_DST, Program
from emit.targets import Limits, target_named
from synth.model.registry import ROOT, find_kind
from topologies.errors import InputError


@dataclass(frozen=True, slots=True)
class Report(Judgement):
    """What the check of a program found.

    `fifo_depth`: slots a connection had. `splits`: whether it also ends when every chunk takes its own slot.
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
) -> Report:
    """Check that every interleaving of `program` ends, without a race, in what `goal` asks for.

    goal: None means that of the program's collective, in place, out of place or both as the program says.
    To a given goal of an out-of-place program it is added that the input must stay as it was.
    fifo_depth: slots of a (source, destination, channel), in transmissions; None means the protocol's.
    target: whose limits to check (executor-nccl, rccl, msccl; None: nobody's), or these limits.
    split: a step of count chunks takes count slots, as it does for large messages; False: one slot, and
    whether it also ends with count slots is in the report (`splits`).

    Raises InputError for an unknown target, a depth below 1, a goal of another size, or a program too large.
    """
    depth = FIFO_DEPTH[program.protocol] if fifo_depth is None else fifo_depth
    if depth < 1:
        raise InputError(f"fifo_depth {depth}; it must be 1 or more")
    found = Findings()
    notes: list[str] = []
    if goal is None:
        goals = _goals(program, found)
    else:  # what is called out of place must also leave its input alone
        goals = [("", goal.keeping_input() if program.outofplace and not program.inplace else goal, False)]
    if target is not None:
        check_limits(program, target_named(target).limits if isinstance(target, str) else target, found)
    structure = Findings()
    columns = columns_of(program, structure)
    splits = True
    judged = False
    if not structure.reported:
        order, splits = _ordered(columns, depth, split, structure)
        if order is not None:
            for prefix, wanted, aliased in goals:
                cells = cells_of(program, columns, wanted, aliased)
                find_races(columns, order, cells, structure, prefix)
                if wanted is not None:
                    _replay(columns, order, cells, wanted, structure, prefix)
                    judged = True
    if not judged and all(g is None for _, g, _ in goals):
        notes.append(f"no goal known for collective {program.collective!r}: the result was not judged")
    findings = (*structure.reported, *found.reported)
    notes += [*structure.counted(), *found.counted()]
    return Report(findings, tuple(notes), judged, depth, splits)


def _ordered(c: Columns, depth: int, split: bool, found: Findings) -> tuple[list[int] | None, bool]:
    """A topological order of all transmissions (None: none), and whether `depth` slots suffice split."""
    # a run that ends with few slots ends with more, and with chunks apart also with them together: mostly one is enough
    worst = run(c, depth)
    if worst.complete:
        return worst.order, True
    free = run(c, None)
    if not free.complete:
        report_stopped(c, free, None, found)
        return None, False
    stopped = worst if split else run(c, depth, split=False)
    if not stopped.complete:
        report_stopped(c, stopped, depth, found)
    return free.order, False


def _replay(c: Columns, order: list[int], cells: Cells, goal: Goal, found: Findings, prefix: str) -> None:
    """Execute in `order` (complete and topological) on contents, and compare what every cell holds with the goal."""
    contents = Contents(goal)
    memory = dict(zip(cells.of(*goal.initial[:3]), contents.initial(), strict=True))
    kind = list(zip(*(c.is_op(names).tolist() for names in (READS_SRC, WRITES_DST, READS_DST)), strict=True))
    sends, receives, count = c.sends.tolist(), c.receives.tolist(), c.count.tolist()
    in_flight: list[deque[int]] = [deque() for _ in c.connections]
    chunk_of = [0] * len(count)
    src, dst, add = cells.src, cells.dst, contents.add

    def uninitialised(step: int, chunk: int, is_dst: bool) -> int:
        """Reported here only, not where the garbage that comes of it is passed on."""
        if found.full("read before write"):
            found.add("read before write", "")
            return GARBAGE
        name, where = c.cell(step, chunk, is_dst)
        message = f"{prefix}{OPS[c.op[step]]} reads {name}[{where}], which nothing has written"
        found.add("read before write", message, *c.place(step), cell=(name, where))
        return GARBAGE

    for step in order:
        out, into = sends[step], receives[step]
        reads_src, writes_dst, reads_dst = kind[step]
        if out < 0 and into < 0:
            for chunk in range(count[step]):
                value = memory.get(src[step] + chunk) or uninitialised(step, chunk, False)
                if reads_dst:
                    value = add(memory.get(dst[step] + chunk) or uninitialised(step, chunk, True), value)
                memory[dst[step] + chunk] = value
            continue
        chunk = chunk_of[step]
        chunk_of[step] = chunk + 1
        value = NOTHING
        if reads_src:
            value = memory.get(src[step] + chunk) or uninitialised(step, chunk, False)
        if into >= 0:
            came = in_flight[into].popleft()
            value = add(came, value) if reads_src else came
        if out >= 0:
            in_flight[out].append(value)
        if writes_dst:
            memory[dst[step] + chunk] = value
    required = cells.of(*goal.required[:3])
    contents.report_wrong(memory, required, 1, lambda wanted: _last_writers(c, order, cells, wanted), found, prefix)


def _last_writers(c: Columns, order: list[int], cells: Cells, wanted: set[int]) -> dict[int, Place]:
    """The step that wrote each of these cells last; none for those that nothing wrote."""
    count = c.count.tolist()
    moves = ((c.sends >= 0) | (c.receives >= 0)).tolist()
    still = (c.op == OPS.index("cpy")) & (np.array(cells.src) == np.array(cells.dst))
    writes = (c.is_op(WRITES_DST) & ~still).tolist()
    chunk_of = [0] * len(count)
    last: dict[int, int] = {}
    for step in order:
        low, high = (chunk_of[step], chunk_of[step] + 1) if moves[step] else (0, count[step])
        chunk_of[step] = high
        if writes[step]:
            last |= dict.fromkeys(wanted.intersection(range(cells.dst[step] + low, cells.dst[step] + high)), step)
    return {cell: c.place(step) for cell, step in last.items()}


def _goals(program: Program, found: Findings) -> list[tuple[str, Goal | None, bool]]:
    """(prefix for messages, goal, in place) of each kind of call that the program says it serves."""
    try:
        sizes_of(program, program.root)
    except InputError as error:
        found.add("inconsistent", str(error))
        return []
    goals = goals_of(program)
    for inplace, goal in goals:
        if goal is not None:
            _check_sizes(program, inplace, found)
    prefixes = {True: "in place: ", False: "out of place: "} if len(goals) > 1 else {}
    return [(prefixes.get(inplace, ""), goal, inplace) for inplace, goal in goals]


def _check_sizes(program: Program, inplace: bool, found: Findings) -> None:
    """i_chunks and o_chunks must be what the collective implies."""
    p, kind = program, find_kind(program.collective)
    # by buffer, 0 for i and 1 for o: what a rank that is not the root may declare but nobody can rely on, and
    # what an in-place program leaves out because the other buffer is the same memory
    idle = (kind.before == ROOT, kind.after == ROOT)
    left_out = (kind.inplace == "o", kind.inplace == "i")
    full = sizes_of(p, p.root)
    for rank, gpu in enumerate(p.gpus):
        want = sizes_of(p, rank)
        has = (gpu.i_chunks, gpu.o_chunks)
        for side in (0, 1):
            allowed = {want[side]}
            if rank != p.root and idle[side]:
                allowed |= {0, full[side]}
            if inplace and not p.outofplace and left_out[side]:
                allowed = {0, want[side]}  # it is the other buffer's memory
            elif inplace and not p.outofplace and has[1 - side] and kind.rooted:
                allowed.add(0)
            if has[side] not in allowed:
                right = " or ".join(str(x) for x in sorted(allowed))
                form = f"with nchunksperloop {p.nchunks_per_loop} {'in place' if inplace else 'out of place'}"
                found.add("inconsistent", f"{'io'[side]}_chunks {has[side]}; {p.collective} {form} has {right}", rank)


def root_of(program: Program) -> range:
    """The roots that a file of this collective may mean: it does not say which."""
    return range(program.nranks) if program.collective in ROOTED else range(1)
