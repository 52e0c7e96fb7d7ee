"""The GPU executor on a GPU, where there is one, and without one its own part, with CPU threads instead of CuPy."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emit.program import FIFO_DEPTH
from runtime.bench import Settings, measure
from runtime.buffers import Layout
from runtime.dtypes import REDUCTIONS, TYPES
from runtime.gpu.cuda import cupy, threads_that_fit
from runtime.gpu.executor import GpuExecutor
from runtime.gpu.pace import Pace
from tests.runtime.example_runs import PROGRAMS, wrong_after_run
from tests.runtime.gpu.cpu_shim.fake_cupy import device_array, install_fake_cupy
from tests.runtime.gpu.cpu_shim.shim import built, compiler
from topologies.errors import InputError
from topologies.load import load

KINDS_AND_OPS = list(itertools.product(TYPES, REDUCTIONS))


@pytest.fixture
def stood_in(monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    """Replace CuPy in this process by NumPy and the shim."""
    install_fake_cupy(monkeypatch, {False: shared})


@pytest.fixture(scope="session")
def shared(kernels: Path) -> Path:
    if compiler() is None:
        pytest.skip("no C++ compiler here")
    return built(kernels, "shared")


@pytest.mark.usefixtures("stood_in")
@pytest.mark.parametrize("which", range(len(PROGRAMS)), ids=lambda n: PROGRAMS[n][0].name)
@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_every_program(which: int, protocol: str) -> None:
    """Check buffers of NumPy, copied to the GPU and back; there is a launch for each type, with the same slots."""
    program, goal = PROGRAMS[which]
    program = replace(program, protocol=protocol)
    executor = GpuExecutor(program, goal, depth=FIFO_DEPTH[PROGRAMS[which][0].protocol], slot_bytes=256)
    for number, kind in enumerate(TYPES):
        op = REDUCTIONS[(which + number) % len(REDUCTIONS)]
        assert wrong_after_run(executor, program, goal, 101, kind, op, apart=bool(number % 2)) == 0


@pytest.mark.usefixtures("stood_in")
def test_buffers_on_the_device_are_used_in_place() -> None:
    """Check that a launch is prepared once and used often, and that other buffers are another launch."""
    program, goal = PROGRAMS[0]
    executor = GpuExecutor(program, goal)
    for _ in range(2):
        buffers = [device_array(np.full(50, rank + 1, np.float32)) for rank in range(4)]
        launch = executor.prepare(buffers, buffers)
        assert launch is not None
        assert executor.prepare(buffers, buffers) is launch
        for run_number in range(3):
            launch.go()
            launch.check()
            assert all((buffer == 10 * 4**run_number).all() for buffer in buffers)
    average = [device_array(np.full(50, rank, np.int32)) for rank in range(4)]
    executor.run(average, average, kind="int32", op="avg")
    assert all((buffer == 1).all() for buffer in average)
    assert executor.kernel_us == 1000.0


@pytest.mark.usefixtures("stood_in")
def test_it_runs_again_after_a_deadlock() -> None:
    """Check that the error names the waiting ranks, and that old data in the slots does not disturb the next launch."""
    program, goal = next((p, g) for p, g in PROGRAMS if p.protocol == "LL128")
    executor = GpuExecutor(program, goal, limit_s=0.2)
    sizes = Layout.of(program, 40).sizes
    good = [np.ones(sizes(rank)[0], np.float32) for rank in range(program.nranks)]
    executor.run(good, good)
    does = int(executor.tables[0]["steps"][0, 0])
    executor.tables[0]["steps"][0, 0] = 0  # The first step no longer does what the others wait for.
    with pytest.raises(InputError, match=r"rank \d tb \d step \d .* waits for data of rank 0"):
        executor.run(good, good)
    executor.tables[0]["steps"][0, 0] = does
    again = [np.ones(sizes(rank)[0], np.float32) for rank in range(program.nranks)]
    executor.run(again, again)
    assert all((buffer == program.nranks).all() for buffer in again)


@pytest.mark.usefixtures("stood_in")
def test_too_many_blocks_are_refused_with_the_number_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that fewer threads in a block make room, as long as this is possible."""
    program, goal = PROGRAMS[0]
    executor = GpuExecutor(program, goal)
    assert executor.kernels("float", "sum")[2] == 256
    monkeypatch.setattr("tests.runtime.gpu.cpu_shim.fake_cupy.PROCESSORS", 1)
    assert GpuExecutor(program, goal).kernels("float", "sum")[2] == 64
    many, goal = next((p, g) for p, g in PROGRAMS if sum(len(gpu.threadblocks) for gpu in p.gpus) > 4)
    buffers = [np.ones(Layout.of(many, 60).sizes(r)[0], np.float32) for r in range(many.nranks)]
    with pytest.raises(InputError, match=r"\d+ threadblocks .*, of which 4 fit on this GPU at once"):
        GpuExecutor(many, goal).run(buffers, buffers)


@pytest.mark.usefixtures("stood_in")
def test_a_buffer_with_gaps() -> None:
    program, goal = PROGRAMS[0]
    for make_buffer in (np.ones, lambda size, kind: device_array(np.ones(size, kind))):
        buffers = [make_buffer(16, np.float32)[::2] for _ in range(4)]
        with pytest.raises(InputError, match="rank 0: a buffer with gaps"):
            GpuExecutor(program, goal).run(buffers, buffers)


def test_blocks_that_do_not_fit_are_refused() -> None:
    assert threads_that_fit(132, 132, {512: 1, 256: 2}) == 512
    assert threads_that_fit(133, 132, {512: 1, 256: 2}) == 256
    with pytest.raises(InputError, match=r"265 threadblocks .*, of which 264 fit"):
        threads_that_fit(265, 132, {512: 1, 256: 2})


def test_without_cupy_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(InputError, match=r"pip install '\.\[cuda13\]'"):
        GpuExecutor(*PROGRAMS[0])


@pytest.mark.parametrize("number", range(len(KINDS_AND_OPS)), ids=lambda n: "-".join(KINDS_AND_OPS[n]))
def test_on_the_gpu(number: int) -> None:
    """Check the programs on a real GPU; skip the test without one."""
    try:
        cupy()
    except InputError as error:
        pytest.skip(str(error))
    kind, op = KINDS_AND_OPS[number]
    for protocol, which, elements in (("Simple", number, 100_003), ("LL", number + 3, 61)):
        program, goal = PROGRAMS[which % len(PROGRAMS)]
        depth = FIFO_DEPTH[program.protocol]
        changed = replace(program, protocol=protocol)
        executor = GpuExecutor(changed, goal, depth=depth)
        assert wrong_after_run(executor, changed, goal, elements, kind, op) == 0


def test_on_the_gpu_at_the_pace_of_a_network() -> None:
    """Check that the device's clock is never ahead of the network, and that results are right."""
    try:
        cupy()
    except InputError as error:
        pytest.skip(str(error))
    for program, goal in PROGRAMS:
        topology = load(f"full:{program.nranks},bw=25,alpha=0.7")
        executor = GpuExecutor(program, goal, pace=Pace(program, topology, slower=200.0))
        row = measure(program, goal, 100_000, executor, Settings(iterations=2))
        assert row.wrong == 0
        assert executor.emulated is not None
        assert executor.emulated.measured_us >= executor.emulated.due_us > 0


def test_on_the_gpus_that_share_the_ranks() -> None:
    """Check ranks on different GPUs that reach each other's memory, with windows and tails."""
    try:
        count = int(cupy().cuda.runtime.getDeviceCount())
    except InputError as error:
        pytest.skip(str(error))
    if count < 2:
        pytest.skip("one GPU here; several are needed")
    for program, goal in PROGRAMS:
        devices = range(min(count, program.nranks))
        for protocol in ("Simple", "LL"):
            changed = replace(program, protocol=protocol)
            executor = GpuExecutor(changed, goal, devices=devices, depth=FIFO_DEPTH[program.protocol], slot_bytes=4096)
            assert measure(changed, goal, 100_003, executor, Settings("half", "sum")).wrong == 0
