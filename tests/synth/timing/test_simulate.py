"""The clock: the oracle's times to the last bit, interpreted and compiled; a send that cannot start is refused."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.baselines import baseline
from synth.model.compiled import Runner
from synth.model.problem import make_problem
from synth.model.schedule import Schedule, untimed
from synth.timing import simulate
from synth.timing.simulate import Clock, ClockTuning, timed
from synth.verify.replay import replay
from tests.random_problems import answered, random_problem
from tests.synth.verify.against_oracles import links, same_times, same_verdict, shuffled
from topologies.errors import ScheduleError
from topologies.load import load
from topologies.topology import Limit, Topology

SEEDS = st.integers(0, 2**32)


@settings(max_examples=25, derandomize=True)
@given(SEEDS, st.sampled_from([0.0, 1.0, 4096.0, 1e6]))
def test_times_are_the_same(tmp_path_factory: pytest.TempPathFactory, seed: int, size: float) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, tmp_path_factory.getbasetemp())
    right = answered(problem, 1e6)
    assert same_times(problem, right, size) is not None
    assert same_times(problem, right.take(np.argsort(right.step, kind="stable")), size) is not None
    same_times(problem, shuffled(right, rng), size)  # Mostly, the data arrives only in a later row.
    # A cell gets more than one arrival, of steps in any order, and sums are replaced and added to again.
    rows = np.sort([rng.randrange(len(right)) for _ in range(2 * len(right))]).astype(np.int64)
    many = right.take(rows)
    later = np.array([rng.choice((0, 0, 1, 3)) for _ in rows], dtype=np.int64)
    copies = np.array([rng.random() < 0.2 for _ in rows], dtype=bool)
    same_times(problem, replace(many, step=many.step + later, reduces=many.reduces & ~copies), size)


def test_the_same_times_through_a_shared_port() -> None:
    """Check links of 25 GB/s through a limit of 60: two run at the same time, a third waits for the first that ends."""
    src, dst = np.array([(i, j) for i in range(4) for j in range(4) if i != j]).T
    rate = np.where(np.arange(12) % 3 == 0, 20.0, 25.0)
    nic = Limit("nic", np.arange(12), 60.0)
    problem = make_problem(Topology("nic", 4, (), src, dst, np.full(12, 1.0), rate, (nic,)), "alltoall", chunks=3)
    at = same_times(problem, answered(problem, 1e6), 1e6)
    assert at is not None
    assert same_verdict(problem, at) == ""
    assert len(np.unique(at.start_us)) < len(at)
    assert same_verdict(problem, replace(at, start_us=at.start_us * 0.9, end_us=at.end_us - at.start_us * 0.1))
    pair = Limit("nic", np.arange(2), 60.0)  # Two links of 40 do not have twice the bandwidth of the limit.
    narrow = make_problem(Topology("nic", 4, (), src, dst, np.full(12, 1.0), np.full(12, 40.0), (pair,)), "alltoall")
    send_links = links(narrow, np.zeros(2, dtype=np.int64), np.array([1, 2]))
    plan = untimed(np.array([1, 2]), send_links, np.zeros(2), np.zeros(2, dtype=bool))
    at = timed(narrow, plan, 4e6)
    assert at.start_us.tolist() == [0.0, at.end_us[0]]
    same_verdict(narrow, replace(at, start_us=np.zeros(2), end_us=at.end_us[[0, 0]]), "nic carries 80 GB/s")


def test_an_addition_waits_for_the_copy_that_it_follows() -> None:
    """Check rank 1, which gets a copy over a slow link and an addition over a fast one, and the other way round."""
    for slow in (0, 1):
        src, dst = np.array([[0, 2, 1, 1], [1, 1, 0, 2]])
        rate = np.array([50.0, 50.0, 50.0, 50.0])
        rate[slow] = 10.0
        problem = make_problem(Topology("mine", 3, (), src, dst, np.full(4, 0.7), rate), "reduce", root=1)
        send_links = links(problem, np.array([0, 2, 0]), np.array([1, 1, 1]))
        for adds in ([False, True, True], [True, False, True], [True, False, False]):
            plan = untimed(np.zeros(3), send_links, np.arange(3), np.array(adds))
            at = same_times(problem, plan, 1e6)
            assert at is not None
            arrival = at.end_us + 0.7
            assert (arrival[2] if not adds[2] else arrival[1]) >= arrival[0] * (1 - 1e-12)
            same_verdict(problem, at, "holds the contributions")


@pytest.mark.parametrize("compiled_from", [0, 100])
def test_a_send_that_cannot_start_is_refused(compiled_from: int) -> None:
    tuning = ClockTuning(compiled_from)
    problem = make_problem(load("line:3"), "broadcast")
    to_1 = int(np.flatnonzero((problem.network.src == 0) & (problem.network.dst == 1))[0])
    to_2 = int(np.flatnonzero((problem.network.src == 1) & (problem.network.dst == 2))[0])

    def two(links: list[int], steps: list[int]) -> Schedule:
        return untimed(np.zeros(2), np.array(links), np.array(steps), np.zeros(2, dtype=bool))

    with pytest.raises(ScheduleError, match="send 0: chunk 0 is not at rank 1 before step 1"):
        timed(problem, two([to_2, to_1], [1, 0]), 1e6, tuning)
    with pytest.raises(ScheduleError, match="send 1: chunk 0 is not at rank 1 before step 0"):
        timed(problem, two([to_1, to_2], [0, 0]), 1e6, tuning)
    right = two([to_1, to_2], [0, 2**40])  # Steps of any size.
    right.link.setflags(write=False)
    replay(problem, timed(problem, right, 1e6, tuning))
    with pytest.raises(ValueError, match="send 1: link 99 does not exist"):
        timed(problem, two([to_1, 99], [0, 1]), 1e6, tuning)
    with pytest.raises(ValueError, match="send 0: chunk 3 does not exist"):
        timed(problem, replace(right, chunk=np.array([3, 0])), 1e6, tuning)


def test_a_clock_that_is_used_often_switches_to_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that times do not depend on earlier runs: many small schedules are as much work as a large one."""
    problem = make_problem(load("dgx1"), "allreduce")
    algorithm = next(algorithm for algorithm in baseline(problem) if algorithm.chunks > 1)
    interpreted, switching = (Clock(algorithm.problem, algorithm.schedule) for _ in range(2))
    for size in (1e3, 1e6):
        monkeypatch.setattr(simulate, "choose_runner", lambda _: Runner(interpreted=True))
        expected = interpreted.timed(size)
        assert interpreted._fixed[0].interpreted
        monkeypatch.setattr(simulate, "choose_runner", lambda _: Runner(interpreted=False))
        switched = switching.timed(size)
        assert np.array_equal(expected.start_us, switched.start_us)
        assert np.array_equal(expected.end_us, switched.end_us)
    assert not switching._fixed[0].interpreted
