"""The engine for any size: answers are right, take the stated time, never beat the bound, and are repeatable."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.app.cli.files.prove import prove as prove_command
from synth.bounds.check import check
from synth.bounds.lengths import from_loads
from synth.bounds.prove import prove
from synth.engines.flow import search as flow
from synth.engines.flow.routes import ExpectedTime, RouteShape
from synth.engines.flow.tuning import SEARCH as TUNING_OF_FLOW
from synth.engines.request import Options, Request
from synth.model.collective import Floats, uneven
from synth.model.deadline import now
from synth.model.problem import LARGEST, Problem, make_problem
from synth.model.schedule import Schedule
from synth.search.search import search
from synth.search.statement import statement
from synth.solvers.workers import Workers
from synth.storage.proof import digest, proof_path, save_proof
from synth.storage.schedule_file import load_schedule, write_schedule
from synth.symmetry.quotient import expand, quotient_problem
from synth.timing.simulate import time_us, timed
from synth.verify.replay import TUNING, replay
from tests import ROOT
from tests.hang import HANG_S
from tests.random_problems import TRANSLATABLE, random_large, random_symmetric
from tests.synth.engines.knowledge import BestTimes
from topologies.errors import ScheduleRefused
from topologies.load import load

SEEDS = st.integers(0, 2**32)
SIZES = (1.0, 17.0, 1e3, 1e6, float(1 << 30))


@cache
def folder() -> Path:
    from tempfile import mkdtemp

    return Path(mkdtemp(prefix="patterns"))


def random_question(rng: random.Random) -> Problem:
    """Return a random problem or quotient problem."""
    if rng.random() < 0.2:
        quotient = quotient_problem(random_symmetric(rng), rng.choice(TRANSLATABLE), rng.randint(1, 3))
        if quotient is not None:
            return quotient
    return random_large(rng, folder())


def answer(rng: random.Random, problem: Problem, size: float) -> flow.FlowSchedule:
    """Solve a problem with random options."""
    likely, latency = (rng.choice((0.0, 1.0, 1e3)) for _ in range(2))
    return flow.best_of(
        problem,
        size,
        shape=RouteShape(rng.choice((0.0, 0.1, 0.5, 1.0))),
        passes=rng.randint(1, 8),
        orders=rng.choice((1, 3, 8)),
        expected=ExpectedTime(likely, latency, rng.choice((0.0, 0.0, 1e3))),
    )


def random_answer(seed: int) -> tuple[random.Random, Problem, flow.FlowSchedule, Schedule]:
    """Return the timed answer to a random problem."""
    rng = random.Random(seed)
    problem, size = random_question(rng), rng.choice(SIZES)
    got = answer(rng, problem, size)
    return rng, problem, got, timed(problem, got.schedule, size)


def loads(problem: Problem, schedule: Schedule) -> Floats:
    """Return how long every resource is busy in µs, computed send by send."""
    net = problem.network
    busy = np.zeros(net.nresources)
    lasts = schedule.end_us - schedule.start_us
    for link, us in zip(schedule.link.tolist(), lasts.tolist(), strict=True):
        busy[net.uses(link)] += us * net.bandwidth_gbs[link]
    return busy / net.capacity_gbs


@settings(max_examples=30, derandomize=True)
@given(SEEDS)
def test_answers_are_right_and_take_the_stated_time(seed: int) -> None:
    _, problem, got, schedule = random_answer(seed)
    replay(problem, schedule)
    took = time_us(problem, schedule)
    assert took == pytest.approx(got.took_us, rel=1e-9)
    assert took <= got.took_us * (1 + 1e-9)
    assert got.load_us == pytest.approx(loads(problem, schedule), rel=1e-6, abs=1e-9 * took)
    if problem.quotient is not None:
        full, sends = expand(problem, schedule)
        replay(full, sends)
        assert time_us(full, sends) == took


@settings(max_examples=25, derandomize=True)
@given(SEEDS)
def test_no_answer_beats_the_bound(seed: int) -> None:
    rng, problem, got, schedule = random_answer(seed)
    witnesses = [*prove(problem, max_flow=rng.random() < 0.3).witnesses]
    witnesses.append(from_loads(problem, got.load_us, rng.choice((0, 0, 3))))
    for witness in witnesses:
        check(problem, witness)
        assert witness.at(schedule.size_bytes) <= time_us(problem, schedule) * (1 + 1e-9)


# Every change is refused.


def refused(problem: Problem, schedule: Schedule) -> bool:
    try:
        replay(problem, schedule)
    except ScheduleRefused:
        return True
    return False


def with_repeated_send(schedule: Schedule, row: int, after_us: float) -> Schedule:
    """Return the schedule with a send repeated: at the same time, or later and in its own step."""
    more = schedule.take(np.append(np.arange(len(schedule)), row))
    if after_us:
        for column, value in (("start_us", after_us), ("end_us", after_us), ("step", schedule.nsteps)):
            changed = getattr(more, column).copy()
            changed[-1] += value if column != "step" else value - changed[-1]
            more = replace(more, **{column: changed})
    return more


def with_moved_send(problem: Problem, schedule: Schedule, row: int, link: int) -> Schedule:
    """Return the schedule with a send moved to another link, with the same start."""
    links, end = schedule.link.copy(), schedule.end_us.copy()
    lasts = schedule.end_us[row] - schedule.start_us[row]
    end[row] = schedule.start_us[row] + lasts * (
        problem.network.bandwidth_gbs[links[row]] / problem.network.bandwidth_gbs[link]
    )
    links[row] = link
    return replace(schedule, link=links, end_us=end)


@settings(max_examples=40, derandomize=True)
@given(SEEDS)
def test_no_send_can_be_left_out_moved_or_made_twice(seed: int) -> None:
    """Check that every send is needed: routes end only at goals, and no rank is reached twice.

    - Left out: some goal lacks data.
    - A copy over a link to another rank: its old destination lacks data. (A part of a sum may well take another path.)
    - Made twice at once: the link is busy, if the send takes longer than rounding may lose.
    - Made once more at the end: a repeated copy has no effect. A part that is added twice makes the sum wrong where
      its destination wants it; otherwise it is added to a value that is not used any more.

    (A sum that arrives at a rank that adds nothing was complete before, so the path back is not needed where that is
    another goal.)
    """
    rng, problem, _, schedule = random_answer(seed)
    assume(len(schedule))
    net, collective = problem.network, problem.collective
    held_cells, wanted_cells = (set(map(tuple, rows.tolist())) for rows in (collective.pre, collective.post))
    end = time_us(problem, schedule)
    for row in rng.sample(range(len(schedule)), min(3, len(schedule))):
        chunk, to = int(schedule.chunk[row]), int(net.dst[schedule.link[row]])
        if not collective.reduces[chunk] or {cell for cell in wanted_cells if cell[1] == chunk} <= held_cells:
            assert refused(problem, schedule.take(np.arange(len(schedule)) != row))
            for link in rng.sample(range(net.nlinks), min(4, net.nlinks)):
                if net.dst[link] != to and not schedule.reduces[row]:
                    assert refused(problem, with_moved_send(problem, schedule, row, link))
        if schedule.end_us[row] - schedule.start_us[row] > 2 * TUNING.slack * max(1.0, end):
            assert refused(problem, with_repeated_send(schedule, row, 0.0))
        spoils = bool(schedule.reduces[row]) and (to, chunk) in wanted_cells
        assert refused(problem, with_repeated_send(schedule, row, end + 1.0)) == spoils


def stored(where: Path, problem: Problem, size: float) -> Path:
    """Write a file of the engine's schedule with its proof."""
    got = flow.best_of(problem, size, passes=3)
    schedule = timed(problem, got.schedule, size)
    path = write_schedule(where / "a.synth", problem, schedule, "flow")
    proved_problem = load_schedule(path).bounded_problem if problem.quotient is None else problem
    hint = from_loads(proved_problem, got.load_us)
    save_proof(path, proved_problem, [*prove(proved_problem).witnesses, hint], size, time_us(problem, schedule))
    return path


def called(path: Path) -> tuple[int, str]:
    outcome = CliRunner().invoke(prove_command, [str(path)])
    return outcome.exit_code, outcome.output


def many_sums() -> Problem:
    rng = random.Random(5)
    while True:
        problem = random_large(rng, folder())
        if problem.collective.name == "mine" and len(np.unique(problem.collective.reduces)) == 2:
            return problem


def skewed() -> Problem:
    sizes = [[0, 1, 5, 1000], [7, 0, 300, 0], [0, 0, 0, 64], [900, 3, 0, 0]]
    return make_problem(load("ndv2"), uneven("alltoallv", sizes), [0, 3, 5, 6], [1, 2, 4, 7], 1).with_chunks(2)


def in_a_fold() -> Problem:
    quotient = quotient_problem(load("torus:3x4"), "allreduce")
    assert quotient is not None
    return quotient


@pytest.mark.parametrize(
    "question",
    [many_sums, skewed, in_a_fold, lambda: make_problem(load("dgx1"), "reducescatter", [0, 1, 4, 6], [2], 3)],
)
def test_files_are_proved_and_changed_ones_refused(tmp_path: Path, question: Callable[[], Problem]) -> None:
    path = stored(tmp_path, question(), 1e6)
    code, output = called(path)
    assert (code, "gap = " in output) == (0, True)
    proof = json.loads(proof_path(path).read_text())
    places: list[tuple[dict[str, Any], str]] = [(proof, name) for name in ("bound_us", "gap", "time_us")]
    for witness in proof["witnesses"]:
        places += [(witness, name) for name in ("base_us", "per_byte_us", "cap_us") if witness[name] is not None]
    for holder, name in places:
        before = holder[name]
        holder[name] = before * (1 + 1e-6) + 1e-9
        proof_path(path).write_text(json.dumps(proof))
        code, output = called(path)
        assert (code, name in output) == (1, True), name
        holder[name] = before
    proof_path(path).write_text(json.dumps(proof))
    assert called(path)[0] == 0
    # Another schedule, which the proof is then claimed for.
    whole = load_schedule(path)
    fewer = whole.schedule.take(np.arange(1, len(whole.schedule)))
    write_schedule(path, whole.problem, fewer, "flow")
    proof["schedule"] = digest(path)
    proof_path(path).write_text(json.dumps(proof))
    code, output = called(path)
    assert (code, "the schedule is refused" in output) == (1, True)


# The same question gets the same answer.

QUESTIONS = (11, 12, 13, 14, 15, 16, 17, 18)


def fingerprint() -> str:
    """Return a digest of the files of the answers to a few questions."""
    from hashlib import sha256

    checksum = sha256()
    for seed in QUESTIONS:
        _, problem, got, schedule = random_answer(seed)
        path = write_schedule(folder() / "a.synth", problem, schedule, "flow")
        checksum.update(path.read_bytes() + got.load_us.tobytes())
    return checksum.hexdigest()


def test_the_same_question_gets_the_same_bytes_in_every_process() -> None:
    other_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    process = subprocess.Popen(
        [sys.executable, "-c", f"import {__name__} as here; print(here.fingerprint())"],
        env={**os.environ, "PYTHONHASHSEED": other_seed, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        stdout=subprocess.PIPE,
        text=True,
    )
    fingerprints = {fingerprint(), fingerprint()}
    assert {process.communicate(timeout=HANG_S)[0].strip()} == fingerprints


# Searches.


@pytest.mark.parametrize(
    ("spec", "name", "chunks", "gap"),
    [
        ("torus:4x5", "allgather", 4, 1.06),
        ("hypercube:5", "alltoall", 4, 1.06),
        ("mesh:3x6", "reducescatter", 4, 1.15),
        ("ring:20", "allreduce", 80, 1.1),
        ("dgx-a100:3", "broadcast", 1024, 1.3),
        ("star:24", "gather", 1, 1.001),
        ("mesh:4x5", "sendrecv", 64, 1.2),
    ],
)
def test_large_messages_take_little_more_than_the_bound(spec: str, name: str, chunks: int, gap: float) -> None:
    problem = make_problem(load(spec), name, chunks=chunks)
    got = flow.best_of(problem, LARGEST, passes=6)
    bound = max(prove(problem).at(LARGEST)[0], from_loads(problem, got.load_us).at(LARGEST))
    assert 1 - 1e-9 <= got.took_us / bound <= gap


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("torus:4x5", "allgather"),
        ("fattree:4x5x4", "alltoall"),
        ("mesh:3x6", "reducescatter"),
        ("hypercube:6", "scatter"),
        ("ring:33", "allreduce"),
    ],
)
def test_searches_end_with_a_schedule_and_its_gap(workers: Workers, spec: str, name: str) -> None:
    options = Options(size=LARGEST, engine="flow", budget_s=1.0)
    answer = search(make_problem(load(spec), name), options, workers)
    (served,) = answer.ranges
    (row,) = statement(answer)["algorithms"]
    assert row["gap"] == pytest.approx(served.algorithm.time_us(LARGEST) / answer.bound.at(LARGEST)[0])
    assert row["gap"] >= 1 - 1e-9


def test_all_sizes_and_pinned_chunks(workers: Workers) -> None:
    answer = search(make_problem(load("star:17"), "gather"), Options(engine="flow", budget_s=1.0), workers)
    assert len(answer.ranges)
    assert all(row["gap"] >= 1 - 1e-9 for row in statement(answer)["algorithms"])
    pinned = Options(engine="flow", budget_s=1.0, chunks=3)
    answer = search(make_problem(load("line:17"), "allgather"), pinned, workers)
    assert {served.algorithm.chunks for served in answer.ranges} == {3}


def test_trials_with_pinned_chunks_have_these_also_if_none_was_useful(workers: Workers) -> None:
    problem = make_problem(load("ring:4"), "allgather")
    request = Request(Options(chunks=3), (LARGEST,), np.inf, workers, BestTimes(), prove(problem))
    trials = list(flow._FlowSearch(problem, request, TUNING_OF_FLOW)._trials(LARGEST))
    assert {trial.chunks for trial in trials} == {3}
    assert {trial.passes for trial in trials} >= {TUNING_OF_FLOW.passes_at_last}


def test_a_matching_that_would_outlast_the_deadline_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check it because the compiled loop of a matching does not look at the clock."""
    problem, tried = make_problem(load("torus:3x3"), "allgather"), list[Problem]()
    monkeypatch.setattr(flow, "match_schedule", lambda problem, *_: tried.append(problem))
    monkeypatch.setattr(flow, "matching_s", lambda _: 100.0)
    flow.best_of(problem, 1e6, deadline=now() + 50)
    assert not tried
    flow.best_of(problem, 1e6, deadline=now() + 150)
    assert tried == [problem]
