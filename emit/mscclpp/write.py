"""A checked Program as an MSCCL++ execution plan.

In the plan nobody waits who did not in the program, but for the first word from a rank that is written to: a message
that finds its place still in use goes into scratch of its own. Inside a node ranks use memory channels, between nodes
port channels. Protocol LL becomes packets; Simple and LL128, which MSCCL++ does not have, become puts and signals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from emit.check.cells import cells_of
from emit.check.order import run
from emit.check.program import check
from emit.columns import columns_of
from emit.findings import Findings
from emit.goal import Goal, goals_of, sizes_of
from emit.mscclpp.check import check_plan
from emit.mscclpp.numbering import Numbering
from emit.mscclpp.placement import Placer
from emit.mscclpp.plan import MAX_OPS, NO_LIMIT, Plan, plan_text
from emit.mscclpp.threadblocks import make_threadblocks
from emit.program import WRITES_DST, Gpu, Program, Step, ThreadBlock
from synth.model.registry import find_kind
from topologies.errors import InputError

# Operations for the steps of a threadblock, tried until it fits with what others need of it.
_ROOMS = (56, 48, 40, 32, 24)
_ALIGNMENT = 16  # bytes: what a thread moves; the executor refuses chunks of other sizes
_FREE = 1 << 20  # FIFO slots: a plan has none to run out of
_FORMS = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "custom")


def write_plan(
    program: Program, goal: Goal | None = None, *, nodes: Sequence[int] | None = None, inplace: bool | None = None
) -> str:
    """The program as the text of an execution plan, the same program always the same bytes.

    goal: what it must achieve; None means that of its collective. nodes: the node of each rank (None: all in one).
    inplace: the form of the plan, also where it is not the program's own; None: the program's, in place if it has both.
    Nothing unverified is written: the program is checked, and the plan's text is read and replayed.

    Raises InputError where a check finds anything, or where plans cannot say it: a collective that gives some rank an
    empty buffer, a reduction other than the sum, or more than the executor's limits hold.
    """
    _sayable(program, goal)
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
    plan = _plan(replace(program, inplace=own, outofplace=not own), goal, nodes, form)
    text = plan_text(plan)
    check_plan(text, goal, program.root).raise_if_wrong(f"execution plan of {program.name}")
    return text


def _sayable(program: Program, goal: Goal | None) -> None:
    if program.collective not in _FORMS:
        raise InputError(
            f"an execution plan cannot do {program.collective}; it must be one of {', '.join(_FORMS)}, whose ranks all "
            "have input and output"
        )
    if program.redop != "sum" and any(step.op in ("re", "rrc", "rrs", "rrcs") for *_, step in program.steps()):
        raise InputError(f"an execution plan always sums: program redop {program.redop!r}; it must be sum")
    if goal is not None:
        for rank, gpu in enumerate(program.gpus):
            if gpu.i_chunks < 1 or gpu.o_chunks < 1:
                raise InputError(
                    f"an execution plan needs input and output on every rank; rank {rank} has {gpu.i_chunks} and "
                    f"{gpu.o_chunks} chunks"
                )


def _plan(program: Program, goal: Goal | None, nodes: Sequence[int] | None, form: bool) -> Plan:
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
    sizes = [(gpu.i_chunks, gpu.o_chunks) for gpu in program.gpus]
    if goal is None:
        sizes = [sizes_of(program, rank) for rank in range(n)]
    for room in _ROOMS:
        blocks = make_threadblocks(c, placement, where, packets, room)
        gpus = Numbering(blocks, placement, where, sizes, packets).gpus()
        if all(len(block.ops) <= MAX_OPS for gpu in gpus for block in gpu.blocks):
            break
    side = 1 if find_kind(program.collective).inplace == "o" else 0
    chunks = max(size[side] for size in sizes)
    least = max(program.min_bytes, _ALIGNMENT * chunks)
    if 0 < program.max_bytes < least:
        raise InputError(
            f"{program.name} serves at most {program.max_bytes} bytes, but an execution plan of {chunks} chunks takes "
            f"{_ALIGNMENT * chunks} or more"
        )
    return Plan(
        name=program.name,
        collective=program.collective,
        protocol="LL" if packets else "Simple",
        inplace=form,
        gpus=gpus,
        double=packets,
        min_bytes=least,
        alignment=_ALIGNMENT,
        max_bytes=program.max_bytes or NO_LIMIT,
    )


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
    if copies:
        if waits:
            copies[0] = replace(copies[0], dep_tb=waits[-1].dep_tb, dep_step=waits[-1].dep_step)
        blocks.append(ThreadBlock(-1, -1, 0, [*waits[:-1], *copies]))
    return replace(gpu, s_chunks=gpu.s_chunks + gpu.o_chunks, threadblocks=blocks)


def _output_runs(gpu: Gpu) -> list[tuple[int, int]]:
    """(first chunk, chunks) of the parts of the output that are written."""
    steps = [step for block in gpu.threadblocks for step in block.steps]
    chunks = sorted({s.dst_off + n for s in steps if s.op in WRITES_DST and s.dst_buf == "o" for n in range(s.count)})
    runs: list[tuple[int, int]] = []
    for chunk in chunks:
        if runs and sum(runs[-1]) == chunk:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((chunk, 1))
    return runs


def _output_in_scratch(step: Step, first: int) -> Step:
    """The step with `first`.. of scratch for the output."""
    if step.src_buf == "o":
        step = replace(step, src_buf="s", src_off=step.src_off + first)
    if step.dst_buf == "o":
        step = replace(step, dst_buf="s", dst_off=step.dst_off + first)
    return step
