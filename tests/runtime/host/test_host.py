"""The host executor: right for every type, reduction, count and number of threads, and never deadlocked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emit.goal import Goal
from emit.program import Program, Step
from runtime.dtypes import REDUCTIONS, TYPES, narrow, widen
from runtime.host.executor import WINDOW_BYTES, HostExecutor
from tests.runtime.example_runs import CASES, PROGRAMS, with_first_step, wrong_after_run
from topologies.errors import InputError


def execute(
    program: Program,
    goal: Goal | None,
    elements: int,
    kind: str,
    op: str,
    threads: int = 2,
    apart: bool = True,
    window_bytes: int = WINDOW_BYTES,
) -> int:
    """Return the number of wrong elements after a run."""
    executor = HostExecutor(program, goal, threads, window_bytes)
    return wrong_after_run(executor, program, goal, elements, kind, op, apart)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("op", REDUCTIONS)
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
@settings(max_examples=60)
def test_any_count_window_and_threads(
    which: tuple[Program, Goal | None], elements: int, kind: str, window: int, threads: int, apart: bool
) -> None:
    """Check tails, chunks longer than a window, empty blocks; one thread, or more threads than cores."""
    assert execute(*which, elements, kind, "sum", threads, apart, window) == 0


def test_a_wrong_program_gives_wrong_elements() -> None:
    program, goal = PROGRAMS[0]
    wrong = with_first_step(program, 1, "s", Step("s", "i", 0, "i", 0, 1))
    assert execute(wrong, goal, 64, "float", "sum") > 0


def test_a_deadlock_is_reported_at_once() -> None:
    """Check two ranks that each wait for the other's data first."""
    program, goal = PROGRAMS[0]
    gpus = [
        replace(
            gpu,
            threadblocks=[replace(tb, steps=[tb.steps[-1], *tb.steps[1:-1], tb.steps[0]]) for tb in gpu.threadblocks],
        )
        for gpu in program.gpus
    ]
    with pytest.raises(InputError, match=r"stops before its end: rank 0 tb 0 step 0 .* waits for data of rank 3"):
        execute(replace(program, gpus=gpus), goal, 64, "float", "sum")


def test_an_error_in_one_thread_ends_all_threads() -> None:
    """Check messages between chunks of unequal length: every thread ends, and the caller gets the error."""
    program, goal = PROGRAMS[0]
    wrong = with_first_step(program, 1, "s", Step("s", "i", 0, "i", 0, 1))
    with pytest.raises(InputError, match="chunks of unequal length trade places"):
        execute(wrong, goal, 63, "float", "sum")


def test_buffers_that_do_not_fit() -> None:
    program, goal = PROGRAMS[0]
    good = [np.ones(8, np.float32) for _ in range(4)]
    executor = HostExecutor(program, goal)
    with pytest.raises(InputError, match="it must be 4 each"):
        executor.run(good[:3], good[:3])
    with pytest.raises(InputError, match=r"rank 2: input of \(7,\) float32; it must be \(8,\) float32"):
        executor.run([*good[:2], good[2][:7], good[3]], good)
    with pytest.raises(InputError, match="rank 0: input of"):
        executor.run(good, good, kind="half")
    with pytest.raises(InputError, match="reduction 'xor'"):
        executor.run(good, good, op="xor")


@given(st.lists(st.floats(width=32, allow_nan=True), min_size=1, max_size=20))
def test_bfloat16_rounds_to_the_nearest(values: list[float]) -> None:
    exact = np.array(values, dtype=np.float32)
    got = widen(narrow(exact, "bfloat16"), "bfloat16")
    for exact_value, near in zip(exact, got, strict=True):
        if np.isnan(exact_value):
            assert np.isnan(near)
            continue
        bits = int(np.float32(exact_value).view(np.uint32)) >> 16
        around = np.array([bits, min(bits + 1, 0xFFFF)], dtype=np.uint32) << 16
        low, high = around.view(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            assert near in (low, high)
            if np.isfinite(low) and np.isfinite(high) and np.isfinite(exact_value):
                assert abs(float(near) - float(exact_value)) <= abs(float(high) - float(low)) / 2


@pytest.mark.parametrize("which", range(len(PROGRAMS)), ids=lambda i: f"{CASES[i][0]}-{i}")
@pytest.mark.parametrize("window_bytes", [WINDOW_BYTES, 64])
def test_a_recorded_run_has_every_step_once_in_a_window_and_in_order(which: int, window_bytes: int) -> None:
    program, goal = PROGRAMS[which]
    executor = HostExecutor(program, goal, 2, window_bytes, record=True)
    assert wrong_after_run(executor, program, goal, 1000, "float", "sum", True) == 0
    run, c = executor.recorded, executor.columns
    assert run is not None
    places = list(zip(run.window.tolist(), run.step.tolist(), strict=True))
    at = dict(zip(places, zip(run.start_us.tolist(), run.end_us.tolist(), strict=True), strict=True))
    windows = max(window for window, _ in places) + 1
    assert (windows > 1) == (window_bytes < WINDOW_BYTES)
    assert sorted(places) == [(window, step) for window in range(windows) for step in range(program.nsteps)]
    first, sender = (
        set(c.start.tolist()),
        dict(zip(*(column.tolist() for column in reversed(c.messages())), strict=True)),
    )
    for (window, step), (start, end) in at.items():
        assert 0 <= start <= end
        if step not in first:  # It comes after the previous step of its threadblock.
            assert at[window, step - 1][1] <= start
        if (need := int(c.dep[step])) >= 0:
            assert at[window, need][1] <= start
        if step in sender:
            assert at[window, sender[step]][0] <= start
