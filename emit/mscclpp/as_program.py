"""Convert an execution plan to a Program that moves the same data in the same order.

The executors of this package, the report's page and the compiler take Programs. Every put becomes a message, received
where it was put. Sums and multicasts of a switch become messages between the rank that requests them and all others.
Packets become scratch of their own. Signals, semaphores and barriers disappear, because the order that they make
follows from the data, as in every program of instructions. The program's threadblocks and its time are not the plan's;
for the time see `timing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from emit.check.acts import ActRun, Move, execution_order
from emit.check.program import check
from emit.compiler.assembly import BlockLayout, assemble
from emit.compiler.ir import NONE, Instructions, cell
from emit.compiler.prepared import Prepared
from emit.findings import Verdict
from emit.goal import Goal
from emit.mscclpp.acts import acts_of
from emit.mscclpp.format import read_and_check
from emit.mscclpp.images import whole_plan
from emit.mscclpp.memory import Memory, collective_of, goal_of, has_pairs, memory_of
from emit.mscclpp.plan import NO_LIMIT, ExecutionPlan
from emit.mscclpp.read import shared_plan
from emit.mscclpp.structure import ensure_executable
from emit.mscclpp.timing import PlanPredictor
from emit.program import Gpu, Program
from emit.targets import Limits
from synth.model.deadline import checking_deadline
from synth.model.registry import find_kind
from topologies.errors import InputError
from topologies.text.files import origin_of
from topologies.topology import Topology

_MANY = 1 << 40
_NO_LIMITS = Limits("a program of a plan", _MANY, _MANY, _MANY, tbs_per_channel=_MANY, dep_tb=_MANY)


def verify_program(path: Path, goal: Goal | None) -> Verdict:
    """Return the verdict of `emit.mscclpp.format.verify`, with the program, which is checked too if the plan is right.

    The verdict is "not readable", with the reason, if a right plan cannot be converted to a program. A wrong plan that
    cannot be converted has a verdict without a program. `goal` is as for `check_plan`. This never raises for bad input.
    """
    verdict, plan, report = read_and_check(path, goal)
    if plan is None or report is None:
        return verdict
    own_goal = goal_of(plan, report.root) if goal is None and has_pairs(plan) else None
    try:
        program = program_of(plan, goal, report.root)
        if own_goal is not None:
            own_goal = own_goal.refined(program.nchunks_per_loop // plan.gpus[0].input_chunks)
        if report.ok and report.judged:
            checked = check(program, goal or own_goal, target=None, split=False)
            checked.raise_if_wrong(f"program of {plan.name}")
    except InputError as error:  # The verdict of a wrong plan reports the plan's own faults instead.
        return verdict if verdict.findings else Verdict("not readable", (f"{origin_of(path)}: {error}",))
    return replace(verdict, program=program, goal=own_goal)


def verify_header(path: Path, goal: Goal | None) -> Verdict:
    """Return the verdict of `emit.mscclpp.format.verify`; for a right or unjudged plan, with its header.

    The header is the plan as a program without threadblocks. `goal` is as for `check_plan`. This never raises for bad
    input.
    """
    verdict, plan, report = read_and_check(path, goal)
    if plan is None or report is None or not report.ok:
        return verdict
    return replace(verdict, program=header(plan, report.root, memory_of(plan, None).units))


def predictor(file: str | Path, topology: Topology, group: Sequence[int] | None) -> PlanPredictor:
    """Return the predictor of a plan's times, given its text or its path.

    Args:
        file: Text or path of the plan.
        topology: Topology to run on.
        group: The topology's rank of each rank of the plan; None for 0, 1, ….

    Raises:
        InputError: The plan cannot be read, does not fit the topology, or cannot be timed.
    """
    return PlanPredictor(shared_plan(file), topology, group)


def program_of(plan: ExecutionPlan, goal: Goal | None = None, root: int = 0) -> Program:
    """Convert a plan to a program, which is not checked here.

    If groups or pipelines of the plan divide chunks, the program has smaller chunks.

    Args:
        plan: The plan.
        goal: Its goal in chunks of the plan; None for the goal of its collective.
        root: Root of a rooted collective; others do not use it.

    Raises:
        InputError: The plan names objects that do not exist, stops before its end, stores a sum in no local buffer, or
            is too large to be checked.
    """
    plan = whole_plan(plan)
    ensure_executable(plan, goal, "plan cannot become a program")
    memory = memory_of(plan, goal or goal_of(plan, root))
    plan_acts = acts_of(memory)
    ir = Instructions(header(plan, root, memory.units), goal)
    cells = _PlanCells(memory)
    try:
        order = execution_order(plan_acts)
    except InputError as error:
        raise InputError(f"plan cannot become a program: it {error}") from None
    for block, act in checking_deadline(order, every=256):
        for move in act.moves:
            _add(ir, plan_acts.rank[block], move, cells)
    return assemble(Prepared(ir), _NO_LIMITS, BlockLayout()).program()


def header(plan: ExecutionPlan, root: int = 0, units: int = 1) -> Program:
    """Return the header of a plan as a Program without threadblocks; `units` is the number of cells of one chunk.

    Sizes are in cells, with no scratch. Names of more than 63 characters are cut. In place, only the buffer that
    the collective's in-place form names has a size, if it names one. All protocols but LL become Simple.
    """
    collective = collective_of(plan)
    only_buffer = _only_buffer(plan)
    gpus = [
        Gpu(
            plan.in_file(gpu.input_chunks) * units if only_buffer != "o" else 0,
            plan.in_file(gpu.output_chunks) * units if only_buffer != "i" else 0,
            0,
            (),
        )
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
        cells_a_chunk=units,
    )


def _only_buffer(plan: ExecutionPlan) -> str:
    """Return the single buffer ("i" or "o") of in-place programs of the plan's collective; "" if programs have two.

    Out of place, programs always have two.
    """
    return find_kind(collective_of(plan)).inplace if plan.inplace else ""


class _PlanCells:
    """A conversion of a plan's cells to a program's cells; packets, of two cells each, follow all plain scratch."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._buffer = _only_buffer(memory.plan)
        self._plain = [2 * gpu.scratch_chunks * memory.units for gpu in memory.plan.gpus]

    def first(self, run: ActRun) -> int:
        """Return the program's first cell, as `emit.compiler.ir.cell` numbers cells, of a run of the plan's cells."""
        base, gpu = self._memory.base[run.rank], self._memory.plan.gpus[run.rank]
        if run.cell >= base["s"]:
            at = run.cell - base["s"]
            return cell("s", self._plain[run.rank] + at // 2 if run.packet else at)
        in_output = base["o"] <= run.cell < base["o"] + gpu.output_chunks * self._memory.units
        buffer = self._buffer or ("o" if in_output else "i")
        return cell(buffer, run.cell - base[buffer])


def _add(ir: Instructions, rank: int, move: Move, cells: _PlanCells) -> None:
    """Append the instructions of a move, which sum its sources in one local place and send the sum to all others.

    Without a local target, the move is a put of its only source, which is local. A move of no elements adds nothing.

    Args:
        ir: The instructions so far.
        rank: Rank that executes the move.
        move: The move.
        cells: Conversion of the plan's cells.

    Raises:
        InputError: The move sums, or reads another rank, without a local target.
    """
    n = move.length
    if not n:
        return
    local = [run for run in move.targets if run.rank == rank]
    into = cells.first(local[0]) if local else NONE
    own = [cells.first(run) for run in move.sources if run.rank == rank]
    remote = [run for run in move.sources if run.rank != rank]
    if into == NONE:  # The move is a put.
        if len(own) != 1 or remote:
            raise InputError("plan cannot become a program: a sum is stored in no local buffer")
        into = own[0]
    else:
        _sum(ir, rank, n, into, own, [(run.rank, cells.first(run)) for run in remote])
    for run in local[1:]:
        ir.add(rank, "cpy", into, cells.first(run), n)
    for run in move.targets:
        if run.rank != rank:
            sent = ir.add(rank, "s", into, NONE, n)
            ir.add(run.rank, "r", NONE, cells.first(run), n, sent)


def _sum(ir: Instructions, rank: int, n: int, into: int, own: Sequence[int], remote: Sequence[tuple[int, int]]) -> None:
    """Append the instructions of a rank that sum local and remote cells in `into`, which may be one of the local cells.

    Args:
        ir: The instructions so far.
        rank: The rank.
        n: Number of cells of each operand.
        into: First cell of the sum.
        own: First cell of each local operand.
        remote: (rank, first cell) of each remote operand, which its rank sends.
    """
    has_value = into in own
    if not has_value and own:
        ir.add(rank, "cpy", own[0], into, n)
        own, has_value = own[1:], True
    for source in own:
        if source != into:
            ir.add(rank, "re", source, into, n)
    for peer, source in remote:
        sent = ir.add(peer, "s", source, NONE, n)
        if has_value:
            ir.add(rank, "rrc", into, into, n, sent)
        else:
            ir.add(rank, "r", NONE, into, n, sent)
        has_value = True
