"""Sends that leave in one message: their times, their check, and what keeps them in one message."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from synth.model.problem import Problem, make_problem
from synth.model.schedule import Schedule, untimed
from synth.phases.reversal import backwards, reverse
from synth.phases.split import join
from synth.storage.schedule_file import load_schedule, save_schedule, write_schedule
from synth.symmetry.quotient import expand, quotient_problem
from synth.timing.simulate import ClockTuning, predict_us, time_us, timed
from synth.verify.algorithm import Algorithm
from synth.verify.replay import replay
from topologies.costed import with_costs, with_protocol
from topologies.costs import Costs, Protocol
from topologies.errors import InputError, ScheduleRefused
from topologies.families import family

_COSTS = Costs({"Simple": Protocol(5.0, 4.0, latency_us={"other": 3.0}, gap_us={"other": 1.5})})
_COMPILED = ClockTuning(compiled_from=0, joined_from=0)


def _problem(spec: str, collective: str, chunks: int = 1) -> Problem:
    topology = with_protocol(with_costs(family(spec), _COSTS), "Simple")
    return make_problem(topology, collective, chunks=chunks)


def _halves(chunks: int = 4) -> tuple[Problem, Schedule]:
    """Return rank 0's chunks for rank 1 in two messages."""
    problem = _problem("line:2,bw=8,alpha=1", "broadcast", chunks)
    link = int(np.flatnonzero(problem.network.src == 0)[0])
    row = np.arange(chunks)
    joined = row % (chunks // 2) > 0
    return problem, untimed(row, np.full(chunks, link), row // (chunks // 2), joined=joined)


@pytest.mark.parametrize("tuning", [ClockTuning(), _COMPILED])
def test_a_message_has_one_gap_and_arrives_at_once(tuning: ClockTuning) -> None:
    problem, schedule = _halves()
    schedule = timed(problem, schedule, 32_000, tuning)
    assert schedule.start_us.tolist() == [5, 5, 8.5, 8.5]
    assert schedule.end_us.tolist() == [7, 7, 10.5, 10.5]
    assert time_us(problem, schedule) == 13.5
    replay(problem, schedule)
    assert time_us(problem, schedule) == predict_us(*_halves(2), 32_000)  # the same messages, of one chunk each


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"joined": np.array([True, True, False, True])}, "send 0: is joined to a send before it"),
        ({"step": np.array([0, 1, 1, 1])}, "send 1: is in one message with send 0 and has another step"),
        ({"joined": np.array([False, False, False, True])}, "send 0: holds its link"),
        ({"joined": np.zeros(0, dtype=bool)}, "send 0: holds its link"),
        ({"joined": np.array([False, True, True, True])}, "send 2: is in one message with send 1"),
        ({"joined": np.array([False, True])}, "different lengths"),
    ],
)
def test_the_replay_finds_faults_of_messages(change: dict[str, np.ndarray], message: str) -> None:
    problem, schedule = _halves()
    schedule = replace(timed(problem, schedule, 32_000), **change)
    with pytest.raises(ScheduleRefused, match=message):
        replay(problem, schedule)


def test_the_replay_finds_two_messages_without_a_gap_between_them() -> None:
    problem, schedule = _halves()
    schedule = timed(problem, schedule, 32_000)
    late = schedule.step == 1
    early = replace(schedule, start_us=schedule.start_us - 1.5 * late, end_us=schedule.end_us - 1.5 * late)
    with pytest.raises(ScheduleRefused, match="on link 0→1 at once"):
        replay(problem, early)


def test_a_reversed_and_a_joined_schedule_keep_their_messages() -> None:
    problem = _problem("line:2,bw=8,alpha=1", "reduce", 4)
    copies = _halves()[1]
    copies = replace(copies, link=np.full(4, int(np.flatnonzero(reverse(problem).network.src == 0)[0])))
    sums = backwards(problem, copies)
    assert sums.joined.tolist() == [False, True, False, True]
    assert Algorithm(problem, sums, "test").time_us(32_000) == 13.5
    assert join(sums, copies).joined.tolist() == [False, True] * 4
    separate = replace(copies, joined=np.zeros(0, dtype=bool))
    assert join(sums, separate).joined.tolist() == [False, True, False, True] + [False] * 4
    assert not len(join(separate, separate).joined)


def test_the_expansion_of_a_quotient_keeps_messages() -> None:
    """Check an all-gather of two chunks a rank on a ring: each rank passes both on in one message."""
    topology = with_protocol(with_costs(family("ring:4,bw=8,alpha=1"), _COSTS), "Simple")
    problem = quotient_problem(topology, "allgather", 2)
    assert problem is not None
    net = problem.network
    right = [int(np.flatnonzero((net.src == i) & (net.dst == (i + 1) % 4))[0]) for i in range(3)]
    chunk, step = np.tile([0, 1], 3), np.repeat(np.arange(3), 2)
    schedule = untimed(chunk, np.array(right)[step], step, joined=chunk == 1)
    own = Algorithm(problem, schedule, "test")
    whole = Algorithm(*expand(problem, own.timed(64_000)), "test")
    assert whole.time_us(64_000) == own.time_us(64_000) == predict_us(problem, schedule, 64_000)
    assert whole.schedule.joined.sum() == 12


def test_a_file_keeps_messages(tmp_path: Path) -> None:
    problem, schedule = _halves()
    algorithm = Algorithm(problem, schedule, "test")
    stored = load_schedule(save_schedule(tmp_path / "a.synth", algorithm, 32_000.0))
    assert stored.schedule.joined.tolist() == [False, True, False, True]
    assert stored.algorithm_of(problem).time_us(32_000) == algorithm.time_us(32_000)
    replay(stored.problem, stored.schedule)
    wrong = replace(algorithm.schedule, joined=np.array([True, True, False, True]))
    with pytest.raises(InputError, match="no send before it"):
        load_schedule(write_schedule(tmp_path / "b.synth", problem, wrong, "test"))
