"""The back end `torch` of `synth bench` and `synth calibrate`: programs, run and checked by the ranks of a job.

All functions here are called with the same arguments on every rank, as those of `runtime.measure.over_torch`.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist

import runtime.torch.process_group as ours
from emit.goal import Goal
from emit.program import CUSTOM, Program
from runtime.algorithms.built_in import COLLECTIVES
from runtime.bench import (
    Algorithm,
    Measure,
    Request,
    Row,
    Settings,
    Timing,
    count_wrong,
    elements_of,
    make_input,
    make_row,
)
from runtime.buffers import Layout
from runtime.dtypes import TYPES, parse_type
from runtime.measure.over_torch import MOST_RUNS, Bench, Case, joined, over_all
from runtime.torch.blocks import Buffers
from runtime.torch.choice import Method
from runtime.torch.rank_program import RankProgram, rank_program
from synth.model.registry import BUFFER
from topologies.errors import InputError

_CUSTOM_S = 0.005  # shorter runs of custom programs, of which many are measured, are repeated for as long
_KINDS = {"float": "float32", "half": "float16", "double": "float64"}  # torch's names of nccl-tests' types


@contextmanager
def measuring(request: Request) -> Iterator[tuple[Measure, bool]]:
    """Measures on the ranks of this job; see `runtime.backends.Backend`."""
    path = request.path
    if path is not None:
        os.environ["SYNTH_LIBRARY"] = str(path.parent if path.name == "index.json" else path)

    last: dict[str, RankProgram] = {}

    def measure_algorithm(a: Algorithm, size_bytes: int) -> Row:
        if a.program.collective == CUSTOM and a.goal is not None:
            if a.name not in last:
                last.clear()
                last[a.name] = rank_program(a.program, dist.get_rank())
            return measure_custom(last[a.name], a.goal, size_bytes, request.settings)
        return measure_program(a.program, a.name, size_bytes, request.settings)

    with joined() as (me, world):
        if world != request.nranks:
            what = path or "what is asked"
            raise InputError(f"{what}: is for {request.nranks} ranks; this job has {world}, it must have as many")
        yield measure_algorithm, me == 0


def measure_program(program: Program, name: str, size_bytes: int, settings: Settings) -> Row:
    """A program of the library at one size, as nccl-tests measures it; name: as the library has it.

    Raises InputError for a program that torch has no call for, or that cannot be run at this size.
    """
    if program.collective not in COLLECTIVES:
        raise InputError(f"{name}: torch has no call for {program.collective!r}")
    plain = parse_type(settings.kind)
    ranks = tuple(range(program.nranks))
    case = Case(program.collective, size_bytes, _KINDS.get(plain, plain), settings.op, ranks, program.root)
    method = Method("synth", name)
    bench = Bench(case, [method])
    if not bench.took:
        raise InputError(f"{name}: cannot be run on {case.call.size_bytes} bytes of {plain} over torch")
    for runs in (settings.warmup, settings.iterations):
        bench.runs[method] = runs
        if runs:
            bench.measure_once()
    took = bench.took[0]
    timing = Timing(1e6 * took.seconds[-1], took.wrong)
    in_place = case.what.unit == BUFFER
    return make_row(program, name, case.block, settings, None if in_place else timing, timing if in_place else None)


def measure_custom(part: RankProgram, goal: Goal, size_bytes: int, settings: Settings) -> Row:
    """This rank's part of a custom collective's program at one size; times are the slowest rank's, of runs in a row.

    What each rank must get is compared on that rank. Raises InputError as `RankProgram.check_fits`.
    """
    program, me, kind = part.program, part.rank, parse_type(settings.kind)
    layout = Layout.of(program, elements_of(program, size_bytes, kind))
    part.check_fits(layout.elements)
    given = [make_input(layout, rank, kind, settings.op, settings.seed) for rank in range(program.nranks)]
    nothing = np.zeros(0, dtype=TYPES[kind])
    inputs, outputs = [nothing] * program.nranks, [nothing] * program.nranks
    inputs[me], outputs[me] = given[me].copy(), np.zeros(layout.sizes(me)[1], dtype=TYPES[kind])
    tensors = [torch.from_numpy(side[me]).view(getattr(torch, _KINDS.get(kind, kind))) for side in (inputs, outputs)]
    buffers = Buffers(tensors[:1], tensors[1:], layout.elements)
    group = dist.distributed_c10d._get_default_group()

    def timed(runs: int) -> float:
        inputs[me][:], outputs[me][:] = given[me], 0  # a program may write to its input
        with ours.using("gloo"):
            dist.barrier()
        begun = time.perf_counter()
        for _ in range(runs):
            group.run_program(part, buffers, settings.op).wait()
        return over_all(time.perf_counter() - begun, None) / runs

    runs = max(1, min(MOST_RUNS, math.ceil(_CUSTOM_S / max(timed(1), 1e-6))))
    seconds = statistics.mean(timed(runs) for _ in range(settings.iterations))
    if runs > 1:
        timed(1)  # what is checked is one run on fresh data
    own = goal.required[0] == me
    mine = replace(goal, required=tuple(column[own] for column in goal.required))
    wrong = over_all(count_wrong(mine, layout, given, inputs, outputs, kind, settings.op), None, dist.ReduceOp.SUM)
    return make_row(program, program.name, layout.elements, settings, Timing(1e6 * seconds, int(wrong)), None)
