"""The GPU's kernel: right on CPU threads under a sanitizer, compiled for every GPU; planted faults are noticed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emit.check.program import check
from emit.compiler.compile import compile_instructions
from emit.goal import Goal
from emit.language import load_scripts
from emit.program import FIFO_DEPTH, Gpu, Program, Step, ThreadBlock
from runtime.bench import Settings, measure
from runtime.buffers import Layout
from runtime.dtypes import REDUCTIONS, TYPES, Array, narrow, widen
from runtime.gpu.encoding import ADDRESSES, SOURCE, Sizes
from runtime.host.executor import HostExecutor
from tests import EXAMPLES
from tests.runtime.example_runs import PROGRAMS, with_first_step, wrong_after_run
from tests.runtime.gpu.cpu_shim.shim import SanitizerReport, ShimExecutor, built, compiler
from topologies.errors import InputError

KINDS_AND_OPS = list(itertools.product(TYPES, REDUCTIONS))


@pytest.fixture(scope="session")
def binary(sanitized: Path | str, kernels: Path) -> Path:
    """Return the kernel on CPU threads, with the sanitizer where that runs."""
    if isinstance(sanitized, Path):
        return sanitized
    if compiler() is None:
        pytest.skip(sanitized)
    return built(kernels)


@pytest.fixture
def watched(sanitized: Path | str) -> Path:
    """Return the kernel under the sanitizer, or skip the test."""
    if isinstance(sanitized, str):
        pytest.skip(sanitized)
    return sanitized


def run(
    binary: Path,
    which: tuple[Program, Goal | None],
    elements: int,
    kind: str,
    op: str,
    protocol: str,
    threads: int = 1,
    apart: bool = True,
    **more: int,
) -> int:
    """Return the number of wrong elements when the kernel runs a program on CPU threads, with its compiled slots."""
    program, goal = which
    depth = FIFO_DEPTH[program.protocol]
    program = replace(program, protocol=protocol)
    executor = ShimExecutor(program, goal, binary, threads=threads, depth=depth, **more)
    return wrong_after_run(executor, program, goal, elements, kind, op, apart)


@pytest.mark.parametrize("number", range(len(KINDS_AND_OPS)), ids=lambda n: "-".join(KINDS_AND_OPS[n]))
def test_every_type_reduction_and_protocol(binary: Path, number: int) -> None:
    """Check every program in turn: windows of a few elements, tails, two launches on the same slots."""
    kind, op = KINDS_AND_OPS[number]
    protocol, which = [("Simple", number), ("LL", number + 3)][number // 2 % 2]
    program = PROGRAMS[which % len(PROGRAMS)]
    assert run(binary, program, 61, kind, op, protocol, 1 + number % 2, slot_bytes=64, launches=2) == 0


@given(
    st.sampled_from(PROGRAMS),
    st.integers(0, 2000),
    st.sampled_from(sorted(TYPES)),
    st.sampled_from(["Simple", "LL"]),
    st.sampled_from([32, 208, 4096]),
    st.integers(1, 3),
    st.booleans(),
)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_count_window_and_threads(
    binary: Path,
    which: tuple[Program, Goal | None],
    elements: int,
    kind: str,
    protocol: str,
    slot_bytes: int,
    threads: int,
    apart: bool,
) -> None:
    if slot_bytes == 32:
        elements %= 200  # Many windows are slow under the sanitizer.
    assert run(binary, which, elements, kind, "sum", protocol, threads, apart, slot_bytes=slot_bytes) == 0


@pytest.mark.parametrize("kind", ["float", "half", "bfloat16", "double"])
@pytest.mark.parametrize("op", ["sum", "prod", "avg"])
def test_it_rounds_as_the_host_does(binary: Path, kind: str, op: str) -> None:
    """Check results bit for bit, from the smallest numbers to the largest, with infinities and NaN."""
    program, goal = PROGRAMS[0]
    rng = np.random.default_rng(1)
    results = []
    numbers = rng.standard_normal((4, 400)) * np.exp2(rng.integers(-30, 18, (4, 400)))
    numbers[rng.random((4, 400)) < 0.02] = np.inf
    numbers[rng.random((4, 400)) < 0.02] = np.nan
    with np.errstate(all="ignore"):
        input_rows = [narrow(row.astype(np.float32), kind) for row in numbers]
        for executor in (HostExecutor(program, goal, 1), ShimExecutor(program, goal, binary)):
            buffers = [row.copy() for row in input_rows]
            outputs: list[Array] = [np.zeros_like(row) for row in input_rows]
            if program.inplace and not program.outofplace:
                outputs = buffers
            executor.run(buffers, outputs, kind=kind, op=op)
            results.append(np.concatenate([widen(row, kind) for row in outputs]))
    assert np.array_equal(*results, equal_nan=True)
    assert np.isnan(results[0]).any()
    assert np.isfinite(results[0]).any()


def without_a_wait(program: Program) -> Program | None:
    """Return the program without the first dependency whose loss lets threadblocks of a rank race."""
    for rank, tb, position, step in program.steps():
        if step.dep_tb < 0:
            continue
        spoilt = changed(program, rank, tb, position, replace(step, dep_tb=-1, dep_step=-1))
        if {finding.kind for finding in check(spoilt, target=None).findings} >= {"race"}:
            return spoilt
    return None


def changed(program: Program, rank: int, tb: int, position: int, step: Step) -> Program:
    """Return the program with another step at a place."""
    gpus = list(program.gpus)
    blocks = list(gpus[rank].threadblocks)
    steps = list(blocks[tb].steps)
    steps[position] = step
    blocks[tb] = replace(blocks[tb], steps=steps)
    gpus[rank] = replace(gpus[rank], threadblocks=blocks)
    return replace(program, gpus=gpus)


def reported(execute: Callable[[], object]) -> bool:
    """Return True if the sanitizer reports a race in one of five runs.

    In a single run, other waits may order everything by chance.
    """
    for _ in range(5):
        try:
            execute()
        except SanitizerReport as error:
            return "data race" in str(error)
    return False


RACING = [(spoilt, goal) for program, goal in PROGRAMS if (spoilt := without_a_wait(program)) is not None]


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
@pytest.mark.parametrize("which", range(len(RACING)), ids=lambda n: RACING[n][0].name)
def test_the_sanitizer_sees_a_missing_wait(watched: Path, which: int, protocol: str) -> None:
    assert reported(lambda: run(watched, RACING[which], 100, "float", "sum", protocol))


def test_there_are_missing_waits_to_test() -> None:
    assert len(RACING) >= 5


def test_messages_that_carry_order(watched: Path) -> None:
    """Check threadblocks of a rank that only messages through another rank order: LL must then order memory too."""
    ir = load_scripts(EXAMPLES / "halving_doubling.py", ["ranks=4"])[0].instructions()
    compiled = compile_instructions(ir, without=["pairing"]).program
    program = replace(compiled, protocol="LL")
    executor = ShimExecutor(program, ir.goal, watched, depth=FIFO_DEPTH[compiled.protocol])
    assert executor.encoded.ll == 2
    assert measure(program, ir.goal, 400, executor, Settings("int32", "sum")).wrong == 0
    executor.encoded.ll = 1
    assert reported(lambda: measure(program, ir.goal, 400, executor, Settings("int32", "sum")))
    program, goal = PROGRAMS[2]
    assert ShimExecutor(replace(program, protocol="LL"), goal, watched).encoded.ll == 1


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_a_copy_onto_itself_disturbs_no_threadblock(watched: Path, protocol: str) -> None:
    """Check a broadcast in both forms: in place, the root's copy writes where the other threadblock reads."""
    root = [
        ThreadBlock(1, -1, 0, [Step("s", "i", 0, count=1)]),
        ThreadBlock(-1, -1, 0, [Step("cpy", "i", 0, "o", 0, 1)]),
    ]
    receiver = [ThreadBlock(-1, 0, 0, [Step("r", "i", 0, "o", 0, 1)])]
    program = Program("b", "broadcast", protocol, 2, 1, True, True, [Gpu(1, 1, 0, root), Gpu(1, 1, 0, receiver)])
    row = measure(program, None, 4000, ShimExecutor(program, None, watched), Settings("half", "sum"))
    assert row.out_of_place is not None
    assert row.in_place is not None
    assert row.wrong == 0


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_too_few_slots_are_reported(binary: Path, protocol: str) -> None:
    """Check a program for 8 slots with 2: the checker predicts a deadlock, and the kernel ends and names who waits."""
    program, goal = next(
        (p, g) for p, g in PROGRAMS if check(p, g, 2, target=None).status == "deadlock" and check(p, g, target=None).ok
    )
    executor = ShimExecutor(replace(program, protocol=protocol), goal, binary, depth=2, limit_s=0.3)
    buffers = [np.ones(Layout.of(program, 60).sizes(r)[0], np.float32) for r in range(program.nranks)]
    with pytest.raises(InputError, match=r"stops before its end: rank \d tb \d step \d \(\w+\) waits for ") as error:
        executor.run(buffers, buffers)
    assert_it_waits(program, str(error.value))


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_deadlock_is_reported(binary: Path, protocol: str, threads: int) -> None:
    """Check ranks that each wait for the other's data first."""
    program, goal = PROGRAMS[0]
    turned = program
    for rank, gpu in enumerate(program.gpus):
        for tb, block in enumerate(gpu.threadblocks):
            turned = changed(turned, rank, tb, 0, block.steps[-1])
            turned = changed(turned, rank, tb, len(block.steps) - 1, block.steps[0])
    turned = replace(turned, protocol=protocol)
    executor = ShimExecutor(turned, goal, binary, threads=threads, limit_s=0.3)
    buffers = [np.ones(64, np.float32) for _ in range(4)]
    with pytest.raises(InputError, match=r"rank \d tb \d step 0 .* waits for data of rank \d") as error:
        executor.run(buffers, buffers)
    assert_it_waits(turned, str(error.value))
    assert all((buffer == 1).all() for buffer in buffers)


def assert_it_waits(program: Program, message: str) -> None:
    """Check that the message names an existing step, and a peer or a step for which it waits."""
    match = re.search(r"rank (\d+) tb (\d+) step (\d+) \((\w+)\) waits for (\w+)(?: \w+ rank | )(\d+)", message)
    assert match is not None, message
    rank, tb, position = (int(match[k]) for k in (1, 2, 3))
    block = program.gpus[rank].threadblocks[tb]
    step = block.steps[position]
    assert step.op == match[4]
    assert int(match[6]) == {"data": block.recv, "room": block.send, "tb": step.dep_tb}[match[5]]


@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_chunks_of_unequal_length(binary: Path, protocol: str) -> None:
    program, goal = PROGRAMS[0]
    wrong = with_first_step(program, 1, "s", Step("s", "i", 0, "i", 0, 1))
    with pytest.raises(InputError, match=r"rank \d tb 0 step \d .*: chunks of unequal length trade places"):
        run(binary, (wrong, goal), 63, "float", "sum", protocol)


def test_a_step_that_leaves_the_buffer_is_refused() -> None:
    """Check that the caller's buffer limits the cells, whatever the program states about its size."""
    program, goal = PROGRAMS[0]
    gpus = [replace(gpu, i_chunks=99, o_chunks=99) for gpu in program.gpus]
    wide = with_first_step(replace(program, gpus=gpus), 1, "s", Step("s", "i", 90, "i", 0, 1))
    with pytest.raises(InputError, match=r"rank 1 tb 0 step 0 \(s\): i\[90..90\] leaves the buffer; it must be below"):
        ShimExecutor(wide, goal, Path())


def test_a_missing_compiler_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(InputError, match=r"no C\+\+ compiler; it must be"):
        built(tmp_path)


def test_the_job_is_what_the_kernel_reads() -> None:
    struct = re.search(r"struct Job \{(.*?)\n\};", SOURCE.read_text(encoding="utf-8"), re.DOTALL)
    assert struct is not None
    names = tuple(re.findall(r"^ .*?(\w+);", struct[1], re.MULTILINE))
    assert names == (*ADDRESSES, *(field.name for field in fields(Sizes)))
