"""The replay refuses every wrong schedule as the oracle does, interpreted and compiled."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.model.collective import Ints
from synth.model.problem import Problem, make_problem
from synth.model.schedule import Schedule, untimed
from synth.timing import rounds, simulate
from synth.timing.simulate import time_us, timed
from synth.verify import replay as verify
from synth.verify.algorithm import Algorithm
from synth.verify.replay import replay
from tests.random_problems import answered, random_problem
from tests.synth.verify.against_oracles import links, moved, same_times, same_verdict, shuffled
from topologies.errors import ScheduleError, ScheduleRefused
from topologies.load import load

SEEDS = st.integers(0, 2**32)
FAULTS = (
    "dropped", "doubled", "doubled and timed", "other link", "earlier", "other step", "other chunk",
    "copied for added", "copied for added and timed", "later", "too fast", "twice over",
)  # fmt: skip


@settings(max_examples=60, derandomize=True)
@given(SEEDS, st.sampled_from(FAULTS))
def test_verdicts_are_the_same(tmp_path_factory: pytest.TempPathFactory, seed: int, fault: str) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, tmp_path_factory.getbasetemp())
    net, collective = problem.network, problem.collective
    right = timed(problem, answered(problem, 1e6), 1e6)
    assert same_verdict(problem, right) == ""
    assert same_verdict(problem, shuffled(right, rng)) == ""  # Times and steps determine everything.
    count = len(right)
    row = rng.randrange(count)
    twice = right.take(np.sort(np.append(np.arange(count), row)))
    copied = moved(right, row, reduces=not right.reduces[row])
    if fault == "dropped":
        same_verdict(problem, right.take(np.arange(count) != row))
    elif fault == "doubled":
        same_verdict(problem, twice, r"at once|carries")
    elif fault == "doubled and timed":
        same_verdict(problem, timed(problem, twice, 1e6))
    elif fault == "other link":
        link = rng.randrange(net.nlinks)
        lasts = 1e6 * collective.fraction[right.chunk[row]] / net.bandwidth_gbs[link] / 1e3
        same_verdict(problem, moved(right, row, link=link, end_us=right.start_us[row] + lasts))
    elif fault in ("earlier", "later"):
        by = right.start_us[row] * rng.choice((0.01, 0.5, 1.0)) * (1 if fault == "earlier" else -1)
        same_verdict(problem, moved(right, row, start_us=right.start_us[row] - by, end_us=right.end_us[row] - by))
    elif fault == "other step":
        same_verdict(problem, moved(right, row, step=rng.randrange(right.nsteps + 1)))
    elif fault == "other chunk":
        same_verdict(problem, moved(right, row, chunk=rng.randrange(collective.nchunks)))
    elif fault == "copied for added":
        pattern = None if collective.reduces[right.chunk[row]] else "which is a plain value"
        same_verdict(problem, copied, pattern)
    elif fault == "copied for added and timed":
        same_verdict(problem, timed(problem, copied, 1e6))
    elif fault == "too fast":
        end = right.end_us[row] - 1e-3 * (right.end_us[row] - right.start_us[row])
        same_verdict(problem, moved(right, row, end_us=end), "at its bandwidth it takes")
    elif fault == "twice over":
        after = right.end_us.max() + 1e4
        columns = [
            np.concatenate([getattr(right, name), getattr(right, name) + plus])
            for name, plus in (("chunk", 0), ("link", 0), ("step", right.nsteps))
        ]
        again = [np.concatenate([column, column + after]) for column in (right.start_us, right.end_us)]
        same_verdict(problem, Schedule(*columns, np.tile(right.reduces, 2), *again, 1e6))


def test_two_sends_at_once_and_a_port_over_capacity() -> None:
    star = make_problem(load("star:4"), "scatter", chunks=2)
    chunk = np.arange(2, 8)
    send_links = links(star, np.zeros(6, dtype=np.int64), chunk // 2)
    right = timed(star, untimed(chunk, send_links, np.zeros(6), np.zeros(6, dtype=bool)), 8e6)
    assert same_verdict(star, right) == ""
    lasts = right.end_us[0]
    for row, by, message in ((1, 0.5, "sends 0 and 1 are on link 0→1 at once"), (2, 0.5, "carries 100 GB/s")):
        start = right.start_us[row] - by * lasts
        wrong = moved(right, row, start_us=start, end_us=start + lasts)
        same_verdict(star, wrong, message)
        same_verdict(star, wrong.take(np.arange(6)[::-1]), message.replace("0 and 1", "5 and 4"))
    slack = 0.5 * verify.TUNING.slack * right.end_us[-1]  # Rounding errors are no fault.
    start = right.start_us[1] - slack
    assert same_verdict(star, moved(right, 1, start_us=start, end_us=start + lasts)) == ""


def test_columns_that_make_no_sense() -> None:
    problem = make_problem(load("ring:4"), "allgather")
    good = timed(problem, answered(problem, 1e6), 1e6)
    replay(problem, good)
    for changes, message in (
        ({"chunk": 4}, "chunk 4 does not exist"),
        ({"chunk": -1}, "chunk -1 does not exist"),
        ({"link": 8}, "link 8 does not exist"),
        ({"step": -1}, "step -1 does not exist"),
        ({"reduces": True}, "plain value"),
        ({"start_us": -1.0}, "holds its link from -1"),
        ({"start_us": np.nan}, "nan"),
        ({"end_us": np.inf}, "inf"),
    ):
        with pytest.raises(ScheduleRefused, match=message):
            replay(problem, moved(good, 2, **changes))
    for changes in ({"size_bytes": np.nan}, {"size_bytes": -1.0}):
        with pytest.raises(ScheduleRefused, match="not a number of bytes"):
            replay(problem, replace(good, **changes))
    with pytest.raises(ScheduleRefused, match="different lengths"):
        replay(problem, replace(good, chunk=good.chunk[1:]))
    with pytest.raises(ScheduleRefused, match="never arrives"):
        replay(problem, good.take(np.zeros(0, dtype=np.int64)))


def across(problem: Problem, dims: tuple[int, ...]) -> Schedule:
    """Build an all-to-all on a mesh, one dimension after the other."""
    ranks = problem.nranks
    at, to = (part.ravel() for part in np.indices((ranks, ranks)))
    parts: list[list[Ints]] = []
    while True:
        then, is_done = at.copy(), np.zeros(len(at), dtype=bool)
        stride = 1
        for extent in reversed(dims):
            away = to // stride % extent - at // stride % extent
            goes = ~is_done & (away != 0)
            then[goes] += np.sign(away[goes]) * stride
            is_done |= goes
            stride *= extent
        chunk = np.flatnonzero(is_done)
        if not len(chunk):
            break
        parts.append([chunk, links(problem, at[chunk], then[chunk]), np.full(len(chunk), len(parts))])
        at = then
    chunk, link, step = (np.concatenate(column) for column in zip(*parts, strict=True))
    return untimed(chunk, link, step, np.zeros(len(chunk), dtype=bool))


def test_a_large_schedule() -> None:
    problem = make_problem(load("mesh:5x5x4"), "alltoall")
    plan = across(problem, (5, 5, 4))
    assert len(plan) > simulate.TUNING.compiled_from
    algorithm = Algorithm(problem, plan, "test")
    at = same_times(problem, plan, 1e6)
    assert at is not None
    assert algorithm.time_us(1e6) == time_us(problem, at) == algorithm.time_us(1e6)
    assert algorithm.time_us(1e7) > algorithm.time_us(1e6)
    assert algorithm.rounds == rounds.rounds(problem, plan)
    row = len(plan) // 2
    for wrong in (plan.take(np.arange(len(plan)) != row), moved(plan, row, link=0)):
        with pytest.raises(ScheduleError, match="is not at rank"):
            Algorithm(problem, wrong, "test")
    with pytest.raises(ScheduleRefused, match="never arrives"):
        Algorithm(problem, plan.take(np.arange(len(plan) - 1)), "test")
    with pytest.raises(ScheduleRefused, match=r"leaves rank .* but is complete there only at|at once"):
        replay(problem, moved(at, -1, start_us=0.0, end_us=at.end_us[0]))
