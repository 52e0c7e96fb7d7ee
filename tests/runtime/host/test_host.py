"""The host executor: right for every type, reduction, count and number of threads, and never at a standstill."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import runtime.host.executor
from emit.compiler.compile import compiled
from emit.compiler.script_file import load_script
from emit.goal import Goal
from emit.program import Program, Step
from runtime.buffers import Layout, goal_of
from runtime.dtypes import OPS, TYPES, Array, narrowed, widened
from runtime.expected import filled, wrong_elements
from runtime.host.executor import HostExecutor
from tests import EXAMPLES
from topologies.errors import InputError

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
    found = []
    for name, asked in CASES:
        draft = load_script(EXAMPLES / f"{name}.py", [f"{k}={v}" for k, v in asked.items()]).draft()
        target = "msccl" if draft.like.collective == "custom" else "executor-nccl"
        found.append((compiled(draft, target).program, draft.goal))
    return found


PROGRAMS = programs()


def execute(
    program: Program,
    goal: Goal | None,
    elements: int,
    kind: str,
    op: str,
    threads: int = 2,
    apart: bool = True,
) -> int:
    """Wrong elements after a run on buffers that are apart, or in place."""
    layout = Layout.of(program, elements)
    inputs = [filled(layout, rank, kind, op) for rank in range(program.nranks)]
    before = [array.copy() for array in inputs]
    outputs: list[Array] = [np.zeros(layout.sizes(r)[1], dtype=TYPES[kind]) for r in range(program.nranks)]
    inplace = program.inplace and not program.outofplace
    wanted = goal_of(program, goal, inplace)
    if inplace and (not apart or program.collective == "reducescatter"):
        for rank, shift in enumerate(wanted.o_in_i):
            first = abs(shift or 0) // layout.chunks * elements
            if shift is not None and shift <= 0:
                outputs[rank][first : first + len(inputs[rank])] = inputs[rank]
                inputs[rank] = outputs[rank][first : first + len(inputs[rank])]
            else:
                outputs[rank] = inputs[rank][first : first + len(outputs[rank])]
    HostExecutor(program, goal, threads).run(inputs, outputs, kind=kind, op=op)
    if inplace:  # the goal names one buffer; both are that memory
        inputs = [_whole(i, o) for i, o in zip(inputs, outputs, strict=True)]
        outputs = inputs
    return wrong_elements(wanted, layout, before, inputs, outputs, kind, op)


def _whole(given: Array, made: Array) -> Array:
    return made if made.size >= given.size else given


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("which", range(len(PROGRAMS)), ids=lambda i: f"{CASES[i][0]}-{i}")
def test_every_type_and_reduction(which: int, kind: str, op: str) -> None:
    assert execute(*PROGRAMS[which], 37, kind, op) == 0


@given(
    st.sampled_from(PROGRAMS),
    st.integers(0, 3000),
    st.sampled_from(sorted(TYPES)),
    st.sampled_from([64, 256, 4096]),
    st.integers(1, 4),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_count_window_and_threads(
    which: tuple[Program, Goal | None], elements: int, kind: str, window: int, threads: int, apart: bool
) -> None:
    """Tails, chunks that are longer than a window, blocks of nothing; one thread or more than there are cores."""
    before = runtime.host.executor.WINDOW_BYTES
    runtime.host.executor.WINDOW_BYTES = window
    try:
        assert execute(*which, elements, kind, "sum", threads, apart) == 0
    finally:
        runtime.host.executor.WINDOW_BYTES = before


def _spoilt(program: Program, rank: int, old: str, new: Step) -> Program:
    """The program with the first step of a kind on a rank replaced."""
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


def test_a_wrong_program_gives_wrong_elements() -> None:
    program, goal = PROGRAMS[0]
    wrong = _spoilt(program, 1, "s", Step("s", "i", 0, "i", 0, 1))
    assert execute(wrong, goal, 64, "float", "sum") > 0


def test_a_standstill_is_named_at_once() -> None:
    """Two ranks that each wait for the other's data first."""
    program, goal = PROGRAMS[0]
    gpus = [
        replace(
            gpu,
            threadblocks=[
                replace(tb, steps=[tb.steps[-1], *tb.steps[1:-1], tb.steps[0]]) for tb in gpu.threadblocks
            ],
        )
        for gpu in program.gpus
    ]
    with pytest.raises(
        InputError, match=r"stops before its end: rank 0 tb 0 step 0 .* waits for data of rank 3"
    ):
        execute(replace(program, gpus=gpus), goal, 64, "float", "sum")


def test_an_error_in_one_thread_ends_all() -> None:
    """Chunks of unequal length that trade places: every thread leaves, the caller is told."""
    program, goal = PROGRAMS[0]
    wrong = _spoilt(program, 1, "s", Step("s", "i", 0, "i", 0, 1))
    with pytest.raises(InputError, match="chunks of unequal length trade places"):
        execute(wrong, goal, 63, "float", "sum")


def test_buffers_that_do_not_fit() -> None:
    program, goal = PROGRAMS[0]
    good = [np.ones(8, np.float32) for _ in range(4)]
    executor = HostExecutor(program, goal)
    with pytest.raises(InputError, match="would be 4 each"):
        executor.run(good[:3], good[:3])
    with pytest.raises(InputError, match=r"rank 2: input of \(7,\) float32: would be \(8,\) float32"):
        executor.run([*good[:2], good[2][:7], good[3]], good)
    with pytest.raises(InputError, match="rank 0: input of"):
        executor.run(good, good, kind="half")
    with pytest.raises(InputError, match="reduction 'xor'"):
        executor.run(good, good, op="xor")


@given(st.lists(st.floats(width=32, allow_nan=True), min_size=1, max_size=20))
def test_bfloat16_rounds_to_the_nearest(values: list[float]) -> None:
    exact = np.array(values, dtype=np.float32)
    got = widened(narrowed(exact, "bfloat16"), "bfloat16")
    for one, near in zip(exact, got, strict=True):
        if np.isnan(one):
            assert np.isnan(near)
            continue
        bits = int(np.float32(one).view(np.uint32)) >> 16
        around = np.array([bits, min(bits + 1, 0xFFFF)], dtype=np.uint32) << 16
        low, high = around.view(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            assert near in (low, high)
            if np.isfinite(low) and np.isfinite(high) and np.isfinite(one):
                assert abs(float(near) - float(one)) <= abs(float(high) - float(low)) / 2
