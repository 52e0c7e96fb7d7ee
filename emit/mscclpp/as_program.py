"""An execution plan as the Program that moves the same data in the same order.

Executors here, the report's page and the compiler take Programs. Every put becomes a message, received where it was
put; what a switch sums or multicasts becomes messages between the rank that does so and all others; packets become
scratch of their own; signals, semaphores and barriers are gone: what they order follows from the data, as in every
program of instructions. Its threadblocks and its time are not the plan's; for that see `timing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from emit.check.program import check
from emit.compiler.assembly import Layout, assemble
from emit.compiler.ir import NONE, Instructions, cell
from emit.compiler.prepared import Prepared
from emit.findings import Verdict
from emit.goal import Goal
from emit.mscclpp.acts import Move, Run, acts_of
from emit.mscclpp.execution import execution_order
from emit.mscclpp.format import check_plan, verdict_of
from emit.mscclpp.memory import Memory, collective_of, goal_of, memory_of
from emit.mscclpp.plan import NO_LIMIT, Plan
from emit.mscclpp.read import read_plan
from emit.mscclpp.structure import ensure_executable
from emit.mscclpp.timing import PlanPredictor
from emit.program import Gpu, Program
from emit.targets import Limits
from synth.model.registry import find_kind
from topologies.errors import InputError
from topologies.text.files import origin_of
from topologies.topology import Topology

_MANY = 1 << 40
_NO_LIMITS = Limits("a program of a plan", _MANY, _MANY, _MANY, tbs_per_channel=_MANY, dep_tb=_MANY)


def verify_program(path: Path, goal: Goal | None) -> Verdict:
    """The verdict of `emit.mscclpp.format.verify`, with the program, checked too where the plan is right.

    "not readable" where a right plan is no program, with the reason.
    """
    try:
        plan = read_plan(path)
        report = check_plan(plan, goal)
    except InputError as error:
        return Verdict("not readable", (str(error),))
    verdict = verdict_of(plan, report)
    try:
        program = program_of(plan, goal, report.root)
        if report.ok and report.judged:
            check(program, goal, target=None, split=False).raise_if_wrong(f"program of {plan.name}")
    except InputError as error:  # of a plan that is wrong, its own faults are said
        return verdict if verdict.findings else Verdict("not readable", (f"{origin_of(path)}: {error}",))
    return replace(verdict, program=program)


def predictor(file: str | Path, topology: Topology, group: Sequence[int] | None) -> PlanPredictor:
    """What times a plan, given its text or its path."""
    return PlanPredictor(read_plan(file), topology, group)


def program_of(plan: Plan, goal: Goal | None = None, root: int = 0) -> Program:
    """The program; goal: as for `check_plan`, root: of a rooted collective.

    A plan whose groups or pipelines cut chunks becomes one of smaller chunks. Raises InputError for a plan that names
    what is not there, stops before its end, or is too large to be checked.
    """
    ensure_executable(plan, goal, "plan is no program")
    memory = memory_of(plan, goal or goal_of(plan, root))
    made = acts_of(memory)
    ir = Instructions(header(plan, root, memory.units), goal)
    cells = _Cells(memory)
    try:
        order = execution_order(made)
    except InputError as error:
        raise InputError(f"plan is no program: it {error}") from None
    for block, act in order:
        for move in act.moves:
            _add(ir, made.rank[block], move, cells)
    return assemble(Prepared(ir), _NO_LIMITS, Layout()).program()


def header(plan: Plan, root: int = 0, units: int = 1) -> Program:
    """What a plan says of itself, as a Program without threadblocks; units: cells of one of its chunks."""
    collective = collective_of(plan)
    one = _only_buffer(plan)
    gpus = [
        Gpu(gpu.input_chunks * units if one != "o" else 0, gpu.output_chunks * units if one != "i" else 0, 0, ())
        for gpu in plan.gpus
    ]
    sizes = [max(gpu.i_chunks, gpu.o_chunks) for gpu in gpus]
    return Program(
        name=plan.name[:63] or "plan",
        collective=collective,
        protocol="LL" if plan.packets else "Simple",
        nranks=len(gpus),
        nchunks_per_loop=max(sizes),
        inplace=plan.inplace,
        outofplace=not plan.inplace,
        gpus=gpus,
        min_bytes=plan.min_bytes,
        max_bytes=0 if plan.max_bytes >= NO_LIMIT else plan.max_bytes,
        root=root if find_kind(collective).rooted else 0,
    )


def _only_buffer(plan: Plan) -> str:
    """The buffer that a program of the collective has in place, of which the other is a part; "" where it has both."""
    return find_kind(collective_of(plan)).inplace if plan.inplace else ""


class _Cells:
    """Cells of a plan's memory as those of a program; packets, two cells an element there, lie behind all scratch."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._one = _only_buffer(memory.plan)
        self._plain = [2 * gpu.scratch_chunks * memory.units for gpu in memory.plan.gpus]

    def first(self, run: Run) -> int:
        """The first cell of a run."""
        base, gpu = self._memory.base[run.rank], self._memory.plan.gpus[run.rank]
        if run.cell >= base["s"]:
            at = run.cell - base["s"]
            return cell("s", self._plain[run.rank] + at // 2 if run.packet else at)
        in_output = base["o"] <= run.cell < base["o"] + gpu.output_chunks * self._memory.units
        buffer = self._one or ("o" if in_output else "i")
        return cell(buffer, run.cell - base[buffer])


def _add(ir: Instructions, rank: int, move: Move, cells: _Cells) -> None:
    """A move as instructions: the sum of its sources in one local place, and from there to all others."""
    n = move.length
    if not n:
        return
    local = [run for run in move.targets if run.rank == rank]
    into = cells.first(local[0]) if local else NONE
    own = [cells.first(run) for run in move.sources if run.rank == rank]
    far = [run for run in move.sources if run.rank != rank]
    if into == NONE:  # a put
        if len(own) != 1 or far:
            raise InputError("plan is no program: a sum that no local buffer gets")
        into = own[0]
    else:
        _sum(ir, rank, n, into, own, [(run.rank, cells.first(run)) for run in far])
    for run in local[1:]:
        ir.add(rank, "cpy", into, cells.first(run), n)
    for run in move.targets:
        if run.rank != rank:
            sent = ir.add(rank, "s", into, NONE, n)
            ir.add(run.rank, "r", NONE, cells.first(run), n, sent)


def _sum(ir: Instructions, rank: int, n: int, into: int, own: Sequence[int], far: Sequence[tuple[int, int]]) -> None:
    """The sum of cells of the rank's own and of others', in `into`, which may be one of its own."""
    begun = into in own
    if not begun and own:
        ir.add(rank, "cpy", own[0], into, n)
        own, begun = own[1:], True
    for source in own:
        if source != into:
            ir.add(rank, "re", source, into, n)
    for other, source in far:
        sent = ir.add(other, "s", source, NONE, n)
        if begun:
            ir.add(rank, "rrc", into, into, n, sent)
        else:
            ir.add(rank, "r", NONE, into, n, sent)
        begun = True
