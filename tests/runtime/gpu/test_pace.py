"""A network's time on CPU threads: results are right, and take as long as on the network."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emit.goal import Goal
from emit.program import Gpu, Program, Step, ThreadBlock
from emit.timing.predict import Predictor
from runtime.bench import BenchRow, Settings, measure
from runtime.buffers import Layout
from runtime.gpu.encoding import SOURCE
from runtime.gpu.executor import GpuExecutor
from runtime.gpu.pace import HOLD, PACE, SHEET, TIMES, Pace
from synth.bounds.prove import prove
from synth.model.problem import make_problem
from tests.runtime.example_runs import PROGRAMS
from tests.runtime.gpu.cpu_shim.fake_cupy import install_fake_cupy
from tests.runtime.gpu.cpu_shim.shim import SanitizerReport, ShimExecutor, built, compiler
from topologies.errors import InputError
from topologies.load import load
from topologies.text.reader import read_machine
from topologies.topology import Topology

LAST_US = 20_000.0  # An execution is stretched to this time, so that CPU threads keep up.
NAMED = [p for p in PROGRAMS if p[0].collective != "custom"]


@pytest.fixture(scope="session")
def binary(kernels: Path) -> Path:
    """Return the paced kernel, under the thread sanitizer where that runs."""
    if compiler() is None:
        pytest.skip("no C++ compiler here")
    try:
        kernel = built(kernels, "thread", paced=True)
        executed(kernel, PROGRAMS[0], load("full:4"), 64)
    except InputError as error:
        if "data race" in str(error):
            raise
        return built(kernels, paced=True)
    return kernel


def executed(
    binary: Path, which: tuple[Program, Goal | None], topology: Topology, size: int, last_us: float = LAST_US
) -> tuple[ShimExecutor, BenchRow, float]:
    """Return the executor, the row with the number of wrong elements, and the predicted time in µs."""
    program, goal = which
    predicted = Predictor(program, topology).time_us(size)
    executor = ShimExecutor(program, goal, binary, pace=Pace(program, topology, slower=last_us / max(predicted, 1e-3)))
    row = measure(program, goal, size, executor, Settings(iterations=1, warmup=0))
    return executor, row, Predictor(program, topology).time_us(row.size_bytes)


def limited(ranks: int, gbs: float, limit: float) -> Topology:
    """Build a network that links all ranks to all; the links out of a rank share a limit."""
    off = [[int(a != b) for b in range(ranks)] for a in range(ranks)]
    text = f'name = "limited"\nranks = {ranks}\n[[links]]\nmatrix = {off}\ngbs = {gbs}\nalpha_us = 0.7\n'
    for rank in range(ranks):
        pairs = " ".join(f"{rank}>{peer}" for peer in range(ranks) if peer != rank)
        text += f'[[limits]]\nname = "out {rank}"\ngbs = {limit}\npairs = "{pairs}"\n'
    return read_machine(text, "limited.toml").topology


@pytest.mark.parametrize("which", range(len(PROGRAMS)), ids=lambda n: f"{PROGRAMS[n][0].name}-{n}")
def test_times_are_as_predicted_where_nothing_is_shared(binary: Path, which: int) -> None:
    """Check times to a ps a step, as there is no choice; the device is never ahead of the network."""
    program, _ = PROGRAMS[which]
    for alpha, size in ((0.7, 512), (0.0, 40_000)):
        topology = load(f"full:{program.nranks},bw=25,alpha={alpha}")
        executor, row, predicted = executed(binary, PROGRAMS[which], topology, size)
        pace, paced = executor.encoded.pace, executor.emulated
        assert row.wrong == 0
        assert pace is not None
        assert paced is not None
        assert paced.measured_us >= paced.due_us
        if not pace.shared:
            rounding = len(executor.encoded.columns.op) * 2e-6 / pace.slower
            assert paced.due_us == pytest.approx(predicted, abs=rounding, rel=1e-9)
    assert (
        row.out_of_place is None
        or row.out_of_place.time_us == pytest.approx(paced.measured_us)
        or row.in_place is not None
    )


def test_programs_that_share_nothing_exist() -> None:
    shares = [Pace(p, load(f"full:{p.nranks}")).shared for p, _ in PROGRAMS]
    assert shares.count(0) >= 5
    assert max(shares) > 0


@given(
    st.sampled_from(range(len(NAMED))),
    st.sampled_from([1.0, 12.5, 25.0]),
    st.sampled_from([0.4, 1.0, 1.7, 2.0, 9.0]),
    st.integers(100, 50_000),
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_resource_carries_more_than_it_can(binary: Path, which: int, gbs: float, times: float, size: int) -> None:
    """Check each moment, so that no program beats the bound of its collective on the network."""
    program, _ = NAMED[which]
    topology = limited(program.nranks, gbs, gbs * times)
    executor, row, _ = executed(binary, NAMED[which], topology, size)
    assert row.wrong == 0
    assert_room(executor, topology)
    problem = make_problem(topology, program.collective, range(program.nranks))
    assert executor.emulated is not None
    assert (
        executor.emulated.measured_us >= executor.emulated.due_us >= prove(problem).at(row.size_bytes)[0] * (1 - 1e-6)
    )


def sends(executor: ShimExecutor) -> list[tuple[int, float, float]]:
    """Return link, start and end (ps) of every send, from the times that the kernel left."""
    pace, sheet = executor.encoded.pace, executor.sheet
    assert pace is not None
    assert sheet is not None
    moved = pace.predictor.transfers(1.0)
    first, paces = int(sheet[SHEET.index("times")]), int(sheet[SHEET.index("paces")])
    timed_sends = []
    for step, link in zip(moved.step.tolist(), moved.link.tolist(), strict=True):
        alpha = round(float(pace.predictor.network.alpha_us[link]) * 1e6 * pace.slower)
        end = int(sheet[first + TIMES * step]) - alpha
        timed_sends.append((link, end - int(sheet[paces + PACE * step + HOLD]), end))
    return timed_sends


def assert_room(executor: ShimExecutor, topology: Topology) -> None:
    """Check that the sends through a resource never exceed its capacity."""
    assert executor.encoded.pace is not None
    net = executor.encoded.pace.predictor.network
    crowd: dict[object, list[tuple[float, float]]] = {}
    room: dict[object, float] = {}
    for link, start, end in sends(executor):
        rate = float(net.bandwidth_gbs[link])
        for place in [*net.uses(link).tolist(), ("link", link)]:
            room[place] = rate if isinstance(place, tuple) else float(net.capacity_gbs[place])
            crowd.setdefault(place, []).extend([(start, rate), (end, -rate)] if end > start else [])
    for place, changes in crowd.items():
        load = 0.0
        for _, rate in sorted(changes):  # Ends come before starts.
            load += rate
            assert load <= room[place] * (1 + 1e-5), (topology.name, place)


def test_the_check_of_capacity_notices_an_excess(binary: Path) -> None:
    """Check that with holds that a sender may ignore, the check above reports an excess."""
    program, goal = next((p, g) for p, g in NAMED if p.name.startswith("allpairs"))
    topology = limited(program.nranks, 25.0, 25.0)
    pace = Pace(program, topology, slower=2000.0)
    assert pace.shared
    pace._used = [[] for _ in pace._used]
    executor = ShimExecutor(program, goal, binary, pace=pace)
    measure(program, goal, 40_000, executor, Settings(iterations=1, warmup=0))
    with pytest.raises(AssertionError):
        assert_room(executor, topology)


def test_a_faster_network_is_noticed(binary: Path) -> None:
    """Check that due times follow the sheet: with half the holds, it ends before the prediction."""
    program, goal = PROGRAMS[0]
    topology = load("ring:4,bw=25,alpha=0.1")
    pace = Pace(program, topology, slower=2000.0)
    pace._byte_us = pace._byte_us / 2
    executor = ShimExecutor(program, goal, binary, pace=pace)
    measure(program, goal, 40_000, executor, Settings(iterations=1, warmup=0))
    assert executor.emulated is not None
    assert executor.emulated.due_us < 0.9 * Predictor(program, topology).time_us(40_000)


def sanitized(binary: Path, kernels: Path) -> bool:
    try:
        return binary == built(kernels, "thread", paced=True)
    except InputError:
        return False


@pytest.fixture(scope="session")
def hasty(binary: Path, kernels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a kernel that neither waits nor locks, under the thread sanitizer, or skip the test."""
    if not sanitized(binary, kernels):
        pytest.skip("the thread sanitizer does not run here")
    folder = tmp_path_factory.mktemp("hasty")
    for name in ("interpreter.cu", "elements.h", "pace.h"):
        text = SOURCE.with_name(name).read_text(encoding="utf-8")
        if name == "pace.h":
            for old, new in (("if (left <= 0) return true;", "return true;"), ("        lock(gate);", "")):
                assert old in text
                text = text.replace(old, new)
        (folder / name).write_text(text, encoding="utf-8")
    return built(folder, "thread", paced=True, kernel=folder)


def test_a_kernel_that_does_not_wait_is_noticed(hasty: Path) -> None:
    """Check that it ends before the network would."""
    executor, _, _ = executed(hasty, PROGRAMS[0], load("ring:4,bw=25,alpha=0.7"), 512, last_us=2e5)
    assert executor.emulated is not None
    assert executor.emulated.measured_us < executor.emulated.due_us


def test_the_sanitizer_sees_a_missing_lock(hasty: Path) -> None:
    which = next(p for p in NAMED if p[0].name.startswith("allpairs"))
    topology = limited(which[0].nranks, 25.0, 25.0)

    def often() -> None:  # In a single run, other waits may order everything by chance.
        for _ in range(5):
            executed(hasty, which, topology, 4000)

    with pytest.raises(SanitizerReport, match="data race"):
        often()


def test_slots_decide_how_far_a_sender_goes_ahead(binary: Path) -> None:
    """Check that with more slots a sender goes further ahead, and that a step of many chunks is one transmission."""
    program, goal = next((p, g) for p, g in PROGRAMS if any(step.count > 1 for *_, step in p.steps()))
    topology = load(f"full:{program.nranks},bw=1,alpha=3")
    for protocol in ("Simple", "LL", "LL128"):
        changed = replace(program, protocol=protocol)
        executor, row, predicted = executed(binary, (changed, goal), topology, 3000)
        assert row.wrong == 0
        assert executor.encoded.ll == 0
        assert executor.emulated is not None
        if executor.encoded.pace is not None and not executor.encoded.pace.shared:
            assert executor.emulated.due_us == pytest.approx(predicted, rel=1e-6)


def test_launches_are_independent_for_any_number_of_threads(binary: Path) -> None:
    """Check that a launch leaves nothing to the next one, with blocks of more than one thread."""
    program, goal = PROGRAMS[3]
    pace = Pace(program, load("full:5,bw=25,alpha=0.7"), slower=3000.0)
    times = []
    for launches, threads in ((1, 1), (3, 2)):
        executor = ShimExecutor(program, goal, binary, pace=pace, launches=launches, threads=threads)
        row = measure(program, goal, 6000, executor, Settings("half", "max", iterations=1, warmup=0))
        assert row.wrong == 0
        assert executor.emulated is not None
        times.append(executor.emulated.due_us)
    if not pace.shared:
        assert times[0] == times[1]


def test_a_program_without_sends_ends_at_once(binary: Path) -> None:
    """Check a program without connections, which ends at once."""
    copies = [Gpu(1, 1, 0, [ThreadBlock(-1, -1, 0, [Step("cpy", "i", 0, "o", 0, 1)])]) for _ in range(2)]
    program = Program("copies", "custom", "Simple", 2, 1, False, True, copies)
    executor = ShimExecutor(program, None, binary, pace=Pace(program, load("full:2")))
    inputs, outputs = ([np.full(9, value, np.float32) for _ in range(2)] for value in (3, 0))
    executor.run(inputs, outputs)
    assert all((array == 3).all() for array in outputs)
    assert executor.emulated is not None
    assert executor.emulated.due_us == 0


def test_the_sheet_is_what_the_kernel_reads() -> None:
    text = SOURCE.with_name("pace.h").read_text(encoding="utf-8")
    match = re.search(r"enum Sheet \{(.*?)SHEET,?\n\}", text, re.DOTALL)
    assert match is not None
    names = re.findall(r"[A-Z]+", re.sub(r"//.*", "", match[1]))
    assert tuple(name.lower() for name in names) == SHEET


def slow(program: Program, slower: float) -> ShimExecutor:
    return ShimExecutor(program, None, Path(), pace=Pace(program, load("ring:4,bw=1"), slower=slower))


def test_refusals() -> None:
    program, _ = PROGRAMS[0]
    for slower in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match=r"slower .*; it must be a number above 0"):
            Pace(program, load("ring:4"), slower=slower)
    with pytest.raises(InputError, match=r"a network 1e\+08 times slower takes \d+ s; it must take at most a day"):
        measure(program, None, 1 << 20, slow(program, 1e8))
    with pytest.raises(InputError, match="to which line:4 has no link"):
        Pace(program, load("line:4"))
    with pytest.raises(InputError, match="program has 4 ranks"):
        Pace(program, load("ring:3"))


# The GPU executor's own part.


@pytest.fixture
def stood_in(monkeypatch: pytest.MonkeyPatch, kernels: Path) -> Any:
    if compiler() is None:
        pytest.skip("no C++ compiler here")
    libraries = {paced: built(kernels, "shared", paced=paced) for paced in (False, True)}
    return install_fake_cupy(monkeypatch, libraries, 2)


@pytest.mark.usefixtures("stood_in")
def test_the_gpu_executor_reports_the_time_of_the_network() -> None:
    program, goal = PROGRAMS[0]
    topology = load("ring:4,bw=25,alpha=0.7")
    executor = GpuExecutor(program, goal, pace=Pace(program, topology, slower=2000.0))
    row = measure(program, goal, 6000, executor, Settings(iterations=2, warmup=0))
    assert row.wrong == 0
    assert executor.emulated is not None
    predicted = Predictor(program, topology).time_us(row.size_bytes)
    assert executor.emulated.due_us == pytest.approx(predicted, rel=1e-6)
    assert executor.kernel_us == executor.emulated.measured_us >= executor.emulated.due_us
    halves = [half for half in (row.out_of_place, row.in_place) if half is not None]
    assert min(half.time_us for half in halves) >= predicted * (1 - 1e-6)


@pytest.mark.usefixtures("stood_in")
def test_only_one_clock_is_allowed() -> None:
    program, goal = PROGRAMS[0]
    with pytest.raises(InputError, match="a network is emulated on one GPU"):
        GpuExecutor(program, goal, pace=Pace(program, load("ring:4")), devices=(0, 1))


def test_no_room_is_one_line(stood_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    program, goal = PROGRAMS[0]
    executor = GpuExecutor(program, goal, pace=Pace(program, load("ring:4")))
    zeros = stood_in.zeros

    def few(shape: Any, dtype: Any) -> Any:
        if np.prod(shape) > 10_000:
            raise MemoryError("out of it")
        return zeros(shape, dtype)

    monkeypatch.setattr(stood_in, "zeros", few)
    buffers = [np.ones(Layout.of(program, 40_000).sizes(r)[0], np.float32) for r in range(4)]
    with pytest.raises(InputError, match=r"the GPU has no room for \d+ slots of \d+ bytes"):
        executor.run(buffers, buffers)
