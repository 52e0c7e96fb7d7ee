"""Programs that every executor must run, and one run of an executor on known data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from emit.compiler.compile import compile_instructions
from emit.goal import Goal
from emit.language import load_scripts
from emit.program import Program, Step
from emit.targets import target_named
from runtime.bench import BenchExecutor, count_wrong, make_input
from runtime.buffers import Layout, goal_of
from runtime.dtypes import TYPES, Array
from tests import EXAMPLES

CASES: list[tuple[str, dict[str, Any]]] = [
    ("ring", {"ranks": 4}),
    ("ring", {"ranks": 3, "instances": 2}),
    ("allpairs", {"ranks": 4, "passes": 1}),
    ("allpairs", {"ranks": 5, "passes": 2}),
    ("allgather", {"ranks": 4, "way": "doubling"}),
    ("halving_doubling", {"ranks": 4}),
    ("hierarchical", {"nodes": 2, "gpus": 2}),
    ("alltoall", {"nodes": 2, "gpus": 2, "steps": 2}),
    ("alltoall", {"nodes": 2, "gpus": 2, "steps": 3}),
    ("alltonext", {"nodes": 2, "gpus": 2}),
]


def programs() -> list[tuple[Program, Goal | None]]:
    programs_and_goals = []
    for name, settings in CASES:
        ir = load_scripts(EXAMPLES / f"{name}.py", [f"{k}={v}" for k, v in settings.items()])[0].instructions()
        target = "msccl" if ir.header.collective == "custom" else "executor-nccl"
        programs_and_goals.append((compile_instructions(ir, target_named(target).limits).program, ir.goal))
    return programs_and_goals


PROGRAMS = programs()


def wrong_after_run(
    executor: BenchExecutor,
    program: Program,
    goal: Goal | None,
    elements: int,
    kind: str,
    op: str,
    apart: bool = True,
) -> int:
    """Return the number of wrong elements after a run on separate buffers (`apart`), or in place."""
    layout = Layout.of(program, elements)
    inputs = [make_input(layout, rank, kind, op) for rank in range(program.nranks)]
    before = [array.copy() for array in inputs]
    outputs: list[Array] = [np.zeros(layout.sizes(r)[1], dtype=TYPES[kind]) for r in range(program.nranks)]
    inplace = program.inplace and not program.outofplace
    expected_goal = goal_of(program, goal, inplace)
    if inplace and (not apart or program.collective == "reducescatter"):
        for rank, shift in enumerate(expected_goal.o_in_i):
            first = abs(shift or 0) // layout.chunks * elements
            if shift is not None and shift <= 0:
                outputs[rank][first : first + len(inputs[rank])] = inputs[rank]
                inputs[rank] = outputs[rank][first : first + len(inputs[rank])]
            else:
                outputs[rank] = inputs[rank][first : first + len(outputs[rank])]
    executor.run(inputs, outputs, kind=kind, op=op)
    if inplace:  # The goal names one buffer; input and output are that memory.
        inputs = [_whole(i, o) for i, o in zip(inputs, outputs, strict=True)]
        outputs = inputs
    return count_wrong(expected_goal, layout, before, inputs, outputs, kind, op)


def _whole(input_array: Array, output_array: Array) -> Array:
    return output_array if output_array.size >= input_array.size else input_array


def with_first_step(program: Program, rank: int, old: str, new: Step) -> Program:
    """Return the program with the first step of a kind on a rank replaced."""
    gpus = list(program.gpus)
    blocks = list(gpus[rank].threadblocks)
    for b, block in enumerate(blocks):
        for at, step in enumerate(block.steps):
            if step.op == old:
                steps = [*block.steps[:at], new, *block.steps[at + 1 :]]
                blocks[b] = replace(block, steps=steps)
                gpus[rank] = replace(gpus[rank], threadblocks=blocks)
                return replace(program, gpus=gpus)
    raise AssertionError(old)
