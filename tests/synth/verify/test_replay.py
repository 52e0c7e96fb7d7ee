"""Right schedules pass the replay, and a schedule with one planted fault never does."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.baselines import baseline
from synth.model.collective import Collective
from synth.model.problem import Problem, make_problem
from synth.model.schedule import Schedule, untimed
from synth.phases.prune import prune_copies, prune_sums
from synth.timing.simulate import predict_us, time_us, timed
from synth.verify.algorithm import Algorithm
from synth.verify.replay import replay
from tests.random_problems import answered, random_problem
from topologies.errors import ScheduleError, ScheduleRefused
from topologies.load import load
from topologies.topology import Topology

SEEDS = st.integers(0, 2**32)
SIZES = (1.0, 4096.0, 1e6, 1e9)


def link(problem: Problem, name: str) -> int:
    return [problem.link_name(i) for i in range(problem.network.nlinks)].index(name)


def sends(problem: Problem, *rows: tuple[int, str, int, bool]) -> Schedule:
    """Build a schedule of rows (chunk, link, step, reduces)."""
    chunk, link_names, step, adds = zip(*rows, strict=True)
    return untimed(np.array(chunk), np.array([link(problem, w) for w in link_names]), np.array(step), np.array(adds))


def refused(problem: Problem, schedule: Schedule, message: str | None = None) -> None:
    with pytest.raises(ScheduleRefused, match=message) as error:
        replay(problem, schedule)
    assert len(str(error.value).splitlines()) == 1


@settings(max_examples=30, derandomize=True)
@given(SEEDS)
def test_schedules_of_engines_and_passes_are_right(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    problem = random_problem(random.Random(seed), tmp_path_factory.getbasetemp())
    schedule = answered(problem, 1e6)
    last = 0.0
    for size in SIZES:
        at = timed(problem, schedule, size)
        replay(problem, at)
        assert (at.start_us >= 0).all()
        assert time_us(problem, at) == predict_us(problem, schedule, size)
        assert time_us(problem, at) >= last * (1 - 1e-9)  # A larger message in the same order is no faster.
        last = time_us(problem, at)
    assert Algorithm(problem, schedule, "test").time_us(1e6) == predict_us(problem, schedule, 1e6)


@settings(max_examples=20, derandomize=True)
@given(SEEDS)
def test_baselines_are_right(seed: int) -> None:
    problem = random_problem(random.Random(seed))
    assume(problem.collective.chunks == 1)
    for algorithm in baseline(problem):
        for size in SIZES:
            replay(algorithm.problem, timed(algorithm.problem, algorithm.schedule, size))


def pruned_answer(seed: int, *, reduces: bool) -> tuple[Problem, Schedule, random.Random]:
    """Return a timed schedule of which no send can be left out."""
    rng = random.Random(seed)
    names = ("reduce", "reducescatter", "allreduce") if reduces else (
        "allgather", "broadcast", "alltoall", "scatter", "gather", "sendrecv", "alltonext"
    )  # fmt: skip
    problem = random_problem(rng, name=rng.choice(names))
    schedule = answered(problem, 1e6)
    schedule = prune_sums(problem, schedule) if reduces else prune_copies(problem, schedule)
    schedule = timed(problem, schedule, 1e6)
    replay(problem, schedule)
    assume(len(schedule))
    return problem, schedule, rng


@settings(max_examples=60, derandomize=True)
@given(SEEDS, st.booleans())
def test_a_missing_send_is_refused(seed: int, reduces: bool) -> None:
    problem, schedule, rng = pruned_answer(seed, reduces=reduces)
    row = rng.randrange(len(schedule))
    refused(problem, schedule.take(np.arange(len(schedule)) != row))


@settings(max_examples=40, derandomize=True)
@given(SEEDS)
def test_a_contribution_added_twice_is_refused(seed: int) -> None:
    problem, schedule, rng = pruned_answer(seed, reduces=True)
    row = rng.choice(np.flatnonzero(schedule.reduces).tolist())
    twice = schedule.take(np.sort(np.append(np.arange(len(schedule)), row)))
    refused(problem, timed(problem, twice, 1e6), "each once")


@settings(max_examples=25, derandomize=True)
@given(SEEDS, st.booleans())
def test_a_send_before_its_data_is_refused(seed: int, reduces: bool) -> None:
    problem, schedule, rng = pruned_answer(seed, reduces=reduces)
    net = problem.network
    arrival = schedule.end_us + net.alpha_us[schedule.link]
    waits = []
    for row in range(len(schedule)):
        source = net.src[schedule.link[row]]
        came = (schedule.chunk == schedule.chunk[row]) & (net.dst[schedule.link] == source)
        came &= schedule.step < schedule.step[row]
        ready = arrival[came].max() if came.any() else 0.0
        if ready > 1e-6 * arrival.max():
            waits.append((row, ready))
    assume(waits)
    row, ready = rng.choice(waits)
    shift = schedule.start_us[row] - rng.choice((0.0, 0.5, 0.999)) * ready
    start, end = schedule.start_us.copy(), schedule.end_us.copy()
    start[row] -= shift
    end[row] -= shift
    refused(problem, replace(schedule, start_us=start, end_us=end), "leaves rank|at once|carries")
    step = schedule.step.copy()
    step[row] = 0
    if not reduces:
        refused(problem, replace(schedule, step=step), "is not at rank")


@settings(max_examples=25, derandomize=True)
@given(SEEDS)
def test_another_link_or_chunk_is_refused(seed: int) -> None:
    problem, schedule, rng = pruned_answer(seed, reduces=False)
    net, collective = problem.network, problem.collective
    row = rng.randrange(len(schedule))
    other_links = np.flatnonzero(net.dst != net.dst[schedule.link[row]]).tolist()
    if other_links:
        link_of_send, end = schedule.link.copy(), schedule.end_us.copy()
        link_of_send[row] = rng.choice(other_links)
        end[row] = schedule.start_us[row] + 1e6 * collective.fraction[schedule.chunk[row]] / (
            net.bandwidth_gbs[link_of_send[row]] * 1e3
        )
        refused(problem, replace(schedule, link=link_of_send, end_us=end))
    same = np.flatnonzero(collective.fraction == collective.fraction[schedule.chunk[row]])
    if len(same) > 1:
        chunk = schedule.chunk.copy()
        chunk[row] = rng.choice([c for c in same.tolist() if c != chunk[row]])
        refused(problem, replace(schedule, chunk=chunk))


@settings(max_examples=25, derandomize=True)
@given(SEEDS, st.booleans())
def test_faster_than_the_link(seed: int, reduces: bool) -> None:
    problem, schedule, rng = pruned_answer(seed, reduces=reduces)
    row = rng.randrange(len(schedule))
    end = schedule.end_us.copy()
    end[row] -= (end[row] - schedule.start_us[row]) * rng.choice((1e-3, 0.5, 1.0))
    refused(problem, replace(schedule, end_us=end), "at its bandwidth it takes")
    refused(problem, replace(schedule, size_bytes=schedule.size_bytes * 1.01), "at its bandwidth it takes")


@settings(max_examples=25, derandomize=True)
@given(SEEDS)
def test_two_sends_on_a_link_at_once(seed: int) -> None:
    problem, schedule, rng = pruned_answer(seed, reduces=False)
    order = np.lexsort((schedule.start_us, schedule.link))
    pairs = np.flatnonzero(schedule.link[order][1:] == schedule.link[order][:-1])
    assume(len(pairs))
    at = int(rng.choice(pairs.tolist()))
    first, second = order[at], order[at + 1]
    start, end = schedule.start_us.copy(), schedule.end_us.copy()
    shift = start[second] - end[first] + 0.1 * (end[first] - start[first])
    start[second] -= shift
    end[second] -= shift
    assume(start[second] >= 0)
    refused(problem, replace(schedule, start_us=start, end_us=end), "at once")


def test_a_port_and_a_limit_over_capacity() -> None:
    star = make_problem(load("star:4"), "scatter")
    at = timed(star, sends(star, (1, "0→1", 0, False), (2, "0→2", 0, False), (3, "0→3", 0, False)), 4e6)
    replay(star, at)
    assert at.start_us.tolist() == [0.0, 20.0, 40.0]  # They leave rank 0's port one after the other.
    packed = replace(at, start_us=np.zeros(3), end_us=np.full(3, 20.0))
    refused(star, packed, "carries 100 GB/s at 0 µs; it can carry 50")
    overlapping = replace(at, start_us=at.start_us * 0.99, end_us=at.start_us * 0.99 + 20)
    refused(star, overlapping, "carries 100 GB/s")


def test_a_shared_switch_port_carries_its_bandwidth() -> None:
    """Check that two links of 25 GB/s through a limit of 60 run at the same time, and that the third waits."""
    from topologies.topology import Limit

    links = [(0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (3, 0)]
    src, dst = np.array(links).T
    nic = Limit("nic", np.array([0, 1, 2]), 60.0)
    problem = make_problem(Topology("nic", 4, (), src, dst, np.full(6, 1.0), np.full(6, 25.0), (nic,)), "scatter")
    at = timed(problem, sends(problem, *((i, f"0→{i}", 0, False) for i in (1, 2, 3))), 1e6)
    replay(problem, at)
    assert at.start_us.tolist() == [0.0, 0.0, 10.0]
    refused(problem, replace(at, start_us=at.start_us * 0, end_us=at.start_us * 0 + 10), "nic carries 75")


def test_meaningless_columns_are_refused() -> None:
    problem = make_problem(load("ring:4"), "allgather")
    good = timed(problem, answered(problem, 1e6), 1e6)
    replay(problem, good)
    first = np.arange(len(good)) == 0
    for change, message in [
        ({"chunk": np.where(first, 4, good.chunk)}, "chunk 4 does not exist"),
        ({"chunk": np.where(first, -1, good.chunk)}, "chunk -1 does not exist"),
        ({"link": np.where(first, problem.network.nlinks, good.link)}, "link 8 does not exist"),
        ({"step": np.where(first, -1, good.step)}, "step -1 does not exist"),
        ({"reduces": first}, "plain value"),
        ({"start_us": good.start_us - 1, "end_us": good.end_us - 1}, "holds its link from -"),
        ({"start_us": np.where(first, np.nan, good.start_us)}, "nan"),
        ({"end_us": np.where(first, np.inf, good.end_us)}, "inf"),
        ({"chunk": good.chunk[1:]}, "different lengths"),
        ({"size_bytes": -1e6}, "number of bytes"),
    ]:
        refused(problem, replace(good, **change), message)
    refused(problem, good.take(np.zeros(0, dtype=np.int64)), "never arrives")


def test_a_sum_is_counted_not_collected() -> None:
    problem = make_problem(load("full:3"), "reduce")
    right = timed(problem, sends(problem, (0, "1→0", 0, True), (0, "2→0", 0, True)), 1e6)
    replay(problem, right)
    copied = sends(problem, (0, "1→0", 0, True), (0, "2→0", 1, False))
    refused(problem, timed(problem, copied, 1e6), "holds the contributions of ranks 2; should hold 0, 1, 2")
    # 1's contribution arrives directly and through 2.
    thrice = sends(problem, (0, "1→2", 0, True), (0, "1→0", 0, True), (0, "2→0", 1, True))
    refused(problem, timed(problem, thrice, 1e6), "1×2")
    clash = sends(problem, (0, "1→0", 0, False), (0, "2→0", 0, True))
    refused(problem, timed(problem, clash, 1e6), "in which another send changes it too")


def test_the_simulator_refuses_sends_that_cannot_start() -> None:
    problem = make_problem(load("line:3"), "broadcast")
    with pytest.raises(ScheduleError, match="chunk 0 is not at rank 1 before step 1"):
        timed(problem, sends(problem, (0, "1→2", 1, False), (0, "0→1", 0, False)), 1e6)
    with pytest.raises(ScheduleError, match="before step 0"):
        timed(problem, sends(problem, (0, "0→1", 0, False), (0, "1→2", 0, False)), 1e6)


def test_a_relay_adds_no_data_of_its_own() -> None:
    problem = make_problem(load("line:3"), "reduce", [0, 2], [1])
    schedule = sends(problem, (0, "2→1", 0, True), (0, "1→0", 1, True))
    replay(problem, timed(problem, schedule, 1e6))
    refused(problem, timed(problem, schedule.take(np.array([0])), 1e6), "should hold 0, 2")


# Faults that the replay might miss.


def test_counts_do_not_wrap() -> None:
    problem = make_problem(load("full:3"), "reduce", [0, 1], [2])
    rows = [(0, "0→1", 0, True), (0, "1→0", 0, True), (0, "0→2", 1, False)]
    for step in range(1, 33):
        rows += [(0, "0→1", step, True), (0, "1→0", step, True)]
    rows.append((0, "2→0", 33, True))
    refused(problem, timed(problem, sends(problem, *rows), 1e6))


def test_a_size_that_is_no_number_is_refused() -> None:
    problem = make_problem(load("ring:4"), "allgather")
    good = timed(problem, answered(problem, 1e6), 1e6)
    refused(problem, replace(good, size_bytes=float("nan"), end_us=good.start_us))


def test_an_add_before_the_copy_that_it_follows() -> None:
    pattern = Collective(
        "mine", 3, 1, 1, np.array([True]), np.ones(1), np.array([[0, 0], [2, 0]]), np.array([[1, 0]]),
        np.zeros(2, dtype=np.int64), np.zeros(1, dtype=np.int64),
    )  # fmt: skip
    problem = make_problem(load("full:3"), pattern)
    rows = sends(problem, (0, "0→1", 1, False), (0, "2→1", 2, True))
    # By the clock rank 1 adds at 20.7 µs and is overwritten at 120.7 µs, so it ends with rank 0's value only.
    late = replace(rows, start_us=np.array([100.0, 0.0]), end_us=np.array([120.0, 20.0]), size_bytes=1e6)
    refused(problem, late)


def test_a_baseline_uses_the_copy_that_has_a_path() -> None:
    """Check 0→1→2 and 0⇄3: ranks 0 and 2 hold copies, rank 1 wants one, and rank 2 has no path to it."""
    src, dst = np.array([[0, 1, 0, 3], [1, 2, 3, 0]])
    one_way = Topology("oneway", 4, (), src, dst, np.full(4, 0.7), np.full(4, 50.0))
    pattern = Collective(
        "mine", 4, 1, 1, np.array([False]), np.ones(1), np.array([[0, 0], [2, 0]]), np.array([[1, 0]]),
        np.zeros(2, dtype=np.int64), np.zeros(1, dtype=np.int64),
    )  # fmt: skip
    problem = make_problem(one_way, pattern)
    replay(problem, timed(problem, answered(problem, 1e6), 1e6))
    assert [a.engine for a in baseline(problem)] == ["direct"]
