"""The back end `torch` of `synth bench` and `synth calibrate`: programs that the ranks of a job run and check.

Every rank calls each function here with the same arguments, as those of `runtime.measure.over_torch`.
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
    BenchAlgorithm,
    BenchRequest,
    BenchRow,
    Measure,
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
from runtime.torch.choice import Method
from runtime.torch.programs.blocks import Buffers
from runtime.torch.programs.rank_program import RankProgram, rank_program
from synth.model.registry import BUFFER
from topologies.errors import InputError

_CUSTOM_S = 0.005  # Shorter runs of custom programs are repeated for this time; it is short because there are many.
_KINDS = {"float": "float32", "half": "float16", "double": "float64"}  # torch's names of nccl-tests' types.


@contextmanager
def measuring(request: BenchRequest) -> Iterator[tuple[Measure, bool]]:
    """Open a session that measures on the ranks of this job; see `runtime.backends.Backend`.

    It yields the measuring function, and True on rank 0 only. It sets SYNTH_LIBRARY in the environment to the request's
    library, and it joins the job as `joined` does.

    Raises:
        InputError: The job has another number of ranks, or as for `joined`.
    """
    path = request.path
    if path is not None:
        os.environ["SYNTH_LIBRARY"] = str(path.parent if path.name == "index.json" else path)

    last: dict[str, RankProgram] = {}

    def measure_algorithm(a: BenchAlgorithm, size_bytes: int) -> BenchRow:
        """Measure an algorithm at a size in bytes: as a library's program by torch's call, or as a custom collective.

        The rank's part of the last custom program is kept for the next size.
        """
        if a.program.collective == CUSTOM and a.goal is not None:
            if a.name not in last:
                last.clear()
                last[a.name] = rank_program(a.program, dist.get_rank())
            return measure_custom(last[a.name], a.goal, size_bytes, request.settings)
        return measure_program(a.program, a.name, size_bytes, request.settings)

    with joined() as (me, world):
        if world != request.nranks:
            subject = path or "the request"
            raise InputError(f"{subject}: is for {request.nranks} ranks; this job has {world}; start it with as many")
        yield measure_algorithm, me == 0


def measure_program(program: Program, name: str, size_bytes: int, settings: Settings) -> BenchRow:
    """Measure a program of the library at one size, as nccl-tests does.

    Args:
        program: The program.
        name: Its name in the library.
        size_bytes: Size of the message in bytes.
        settings: Settings of the measurement; the seed is not used.

    Returns:
        The row, the same on all ranks, with one measurement: in place if torch's call works in place, else out of
        place.

    Raises:
        InputError: torch has no call for the program, or it cannot run at this size.
    """
    if program.collective not in COLLECTIVES:
        raise InputError(f"{name}: torch has no call for {program.collective!r}")
    kind = parse_type(settings.kind)
    ranks = tuple(range(program.nranks))
    case = Case(program.collective, size_bytes, _KINDS.get(kind, kind), settings.op, ranks, program.root)
    method = Method("synth", name)
    bench = Bench(case, [method])
    if not bench.measured:
        raise InputError(f"{name}: cannot be run on {case.call.size_bytes} bytes of {kind} over torch")
    for runs in (settings.warmup, settings.iterations):
        bench.runs[method] = runs
        if runs:
            bench.measure_once()
    method_times = bench.measured[0]
    timing = Timing(1e6 * method_times.seconds[-1], method_times.wrong)
    in_place = case.row.unit == BUFFER
    return make_row(program, name, case.block, settings, None if in_place else timing, timing if in_place else None)


def measure_custom(part: RankProgram, goal: Goal, size_bytes: int, settings: Settings) -> BenchRow:
    """Measure a custom collective's program at one size; this rank runs its part and checks its own results.

    The times are those of the slowest rank, over runs in a row. The row, which is the same on all ranks, has one
    measurement, out of place, with the wrong elements of all ranks. The warmup of the settings is not used.

    Raises:
        InputError: As for `RankProgram.check_fits`.
    """
    program, me, kind = part.program, part.rank, parse_type(settings.kind)
    layout = Layout.of(program, elements_of(program, size_bytes, kind))
    part.check_fits(layout.elements)
    input_values = [make_input(layout, rank, kind, settings.op, settings.seed) for rank in range(program.nranks)]
    nothing = np.zeros(0, dtype=TYPES[kind])
    inputs, outputs = [nothing] * program.nranks, [nothing] * program.nranks
    inputs[me], outputs[me] = input_values[me].copy(), np.zeros(layout.sizes(me)[1], dtype=TYPES[kind])
    tensors = [torch.from_numpy(side[me]).view(getattr(torch, _KINDS.get(kind, kind))) for side in (inputs, outputs)]
    buffers = Buffers(tensors[:1], tensors[1:], layout.elements)
    group = dist.distributed_c10d._get_default_group()

    def timed(runs: int) -> float:
        """Fill this rank's buffers anew, run the program `runs` times in a row, and return the mean time in s.

        The time is that of the slowest rank.
        """
        inputs[me][:], outputs[me][:] = input_values[me], 0  # A program may write to its input.
        with ours.using("gloo"):
            dist.barrier()
        begin_s = time.perf_counter()
        for _ in range(runs):
            group.run_program(part, buffers, settings.op).wait()
        return over_all(time.perf_counter() - begin_s, None) / runs

    runs = max(1, min(MOST_RUNS, math.ceil(_CUSTOM_S / max(timed(1), 1e-6))))
    seconds = statistics.mean(timed(runs) for _ in range(settings.iterations))
    if runs > 1:
        timed(1)  # The check needs the result of one run on fresh data.
    is_own = goal.required[0] == me
    own_goal = replace(goal, required=tuple(column[is_own] for column in goal.required))
    wrong = over_all(
        count_wrong(own_goal, layout, input_values, inputs, outputs, kind, settings.op), None, dist.ReduceOp.SUM
    )
    return make_row(program, program.name, layout.elements, settings, Timing(1e6 * seconds, int(wrong)), None)
