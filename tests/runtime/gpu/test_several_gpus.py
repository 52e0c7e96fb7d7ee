"""One program on more than one GPU of a process: split launches on CPU threads, and the executor's own part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emit.program import FIFO_DEPTH
from runtime.bench import Settings, measure
from runtime.buffers import Layout
from runtime.gpu.executor import GpuExecutor
from tests.runtime.example_runs import PROGRAMS, wrong_after_run
from tests.runtime.gpu.cpu_shim.fake_cupy import Device, Module, device_array, install_fake_cupy
from tests.runtime.gpu.cpu_shim.shim import ShimExecutor, built, compiler
from topologies.errors import InputError


@pytest.fixture(scope="session")
def folder(kernels: Path) -> Path:
    if compiler() is None:
        pytest.skip("no C++ compiler here")
    return kernels


@pytest.fixture(scope="session")
def watched(folder: Path) -> Path:
    """Return the kernel on CPU threads, under the thread sanitizer where that runs."""
    try:
        kernel = built(folder, "thread")
        ShimExecutor(*PROGRAMS[0], kernel).run(*([np.ones(4, np.float32) for _ in range(4)] for _ in range(2)))
    except InputError as error:
        if "data race" in str(error):
            raise
        return built(folder)
    return kernel


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, folder: Path) -> object:
    """Install four GPUs that CPU threads imitate."""
    return install_fake_cupy(monkeypatch, {False: built(folder, "shared")}, 4)


@pytest.mark.parametrize("which", range(len(PROGRAMS)), ids=lambda n: PROGRAMS[n][0].name)
def test_split_launches(watched: Path, which: int) -> None:
    """Check launches with their own tables: uneven numbers of ranks, windows, tails, two launches on the same slots."""
    program, goal = PROGRAMS[which]
    protocol, op = ("Simple", "LL")[which % 2], ("sum", "avg")[which % 2]
    executor = ShimExecutor(
        replace(program, protocol=protocol),
        goal,
        watched,
        depth=FIFO_DEPTH[program.protocol],
        slot_bytes=256,
        launches=2,
        devices=2 + which % 2,
    )
    assert measure(program, goal, 1999, executor, Settings("half", op, iterations=1, warmup=0)).wrong == 0


def test_a_launch_that_gives_up_ends_all(watched: Path) -> None:
    """Check ranks of both launches that wait for each other's data first: all launches end, and one gives a reason."""
    program, goal = PROGRAMS[0]
    gpus = [
        replace(
            gpu,
            threadblocks=[replace(tb, steps=[tb.steps[-1], *tb.steps[1:-1], tb.steps[0]]) for tb in gpu.threadblocks],
        )
        for gpu in program.gpus
    ]
    executor = ShimExecutor(replace(program, gpus=gpus), goal, watched, devices=4, limit_s=0.3)
    buffers = [np.ones(64, np.float32) for _ in range(4)]
    with pytest.raises(InputError, match=r"rank \d tb \d step 0 .* waits for data of rank \d"):
        executor.run(buffers, buffers)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("devices", [(0, 1), (3, 1, 0)])
def test_every_program(devices: tuple[int, ...]) -> None:
    """Check NumPy buffers: a GPU polls only its own memory, and waits are ordered for the whole system."""
    for which, (program, goal) in enumerate(PROGRAMS):
        executor = GpuExecutor(program, goal, slot_bytes=256, devices=devices)
        op = "avg" if which % 2 else "sum"
        assert wrong_after_run(executor, program, goal, 101, "float", op, apart=bool(which % 2)) == 0
        assert [share.device for share in executor.shares] == list(devices)
        assert {rank for share in executor.shares for rank in range(share.first, share.end)} == set(
            range(program.nranks)
        )
    assert all("-DSEVERAL" in options for options in Module.made)


@pytest.mark.usefixtures("gpus")
def test_buffers_are_on_the_gpu_of_their_ranks() -> None:
    program, goal = PROGRAMS[0]
    executor = GpuExecutor(program, goal, devices=(1, 2))
    buffers = []
    for rank in range(4):
        with executor.at(rank):
            buffers.append(device_array(np.full(10, rank + 1, np.float32)))
    assert [buffer.device.id for buffer in buffers] == [1, 1, 2, 2]
    executor.run(buffers, buffers)
    assert all((buffer.get() == 10).all() for buffer in buffers)
    assert executor.kernel_us == 1000.0
    with pytest.raises(InputError, match="rank 0: a buffer on GPU 2; it must be on GPU 1"):
        executor.run(buffers[::-1], buffers[::-1])


def test_peer_access_is_enabled_in_both_directions(gpus: object) -> None:
    program, goal = PROGRAMS[0]
    GpuExecutor(program, goal, devices=(0, 2))
    GpuExecutor(program, goal, devices=(0, 2, 3))  # Some of the peer access is enabled already.
    assert gpus.connected == {(a, b) for a in (0, 2, 3) for b in (0, 2, 3) if a != b}  # type: ignore[attr-defined]


REFUSED = [
    ((0, 0), "GPU 0: not there or named twice; it must be different numbers from 0 to 3"),
    ((0, 4), "GPU 4: not there or named twice; it must be different numbers from 0 to 3"),
    ((), "0 devices for 4 ranks; it must be 1 to 4"),
]


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(("devices", "message"), REFUSED, ids=str)
def test_refusals(devices: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        GpuExecutor(*PROGRAMS[0], devices=devices)


@pytest.mark.usefixtures("gpus")
def test_gpus_that_cannot_reach_each_other() -> None:
    Device.peers = False
    with pytest.raises(InputError, match="GPU 0 cannot reach the memory of GPU 3; they must have peer access"):
        GpuExecutor(*PROGRAMS[0], devices=(0, 3))


@pytest.mark.usefixtures("gpus")
def test_blocks_must_fit_on_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that four blocks are too many for one GPU of two, and that two GPUs hold them."""
    program, goal = PROGRAMS[0]
    monkeypatch.setattr("tests.runtime.gpu.cpu_shim.fake_cupy.PROCESSORS", 2)
    monkeypatch.setattr("runtime.gpu.executor.THREADS", (256,))
    buffers = [np.ones(Layout.of(program, 8).sizes(rank)[0], np.float32) for rank in range(4)]
    with pytest.raises(InputError, match=r"4 threadblocks .*, of which 2 fit"):
        GpuExecutor(program, goal).run(buffers, buffers)
    GpuExecutor(program, goal, devices=(0, 1)).run(buffers, buffers)
    assert all((buffer == 4).all() for buffer in buffers)
