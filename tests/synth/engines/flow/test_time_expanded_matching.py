"""Chunks matched over time: every goal gets each chunk once, in little more time than the chunks take to enter."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.engines.flow.csr_network import csr_network
from synth.engines.flow.time_expanded_matching import match_in_time, match_schedule
from synth.model.collective import Collective, Floats, Ints
from synth.model.compiled import Runner
from synth.model.problem import Problem, hops, make_problem
from synth.model.schedule import Schedule
from synth.timing.simulate import predict_us, timed
from synth.verify.replay import replay
from tests.random_problems import random_topology
from topologies.load import load

INTERPRETED = Runner(interpreted=True)
SEEDS = st.integers(0, 2**32)
Sends = tuple[Ints, Ints, Floats]


def spreading(rng: random.Random, nranks: int) -> Collective:
    """Return chunks of different sizes, each held by one rank or a few and wanted by many."""
    nchunks = rng.randint(1, 8)
    holders = [rng.sample(range(nranks), rng.choice((1, 1, min(2, nranks)))) for _ in range(nchunks)]
    goals = [rng.sample(range(nranks), rng.randint((nranks + 1) // 2, nranks)) for _ in range(nchunks)]
    pre = np.array(sorted((r, c) for c, ranks in enumerate(holders) for r in ranks))
    post = np.array(sorted((r, c) for c, ranks in enumerate(goals) for r in ranks))
    return Collective(
        name="mine",
        nranks=nranks,
        chunks=1,
        nchunks=nchunks,
        reduces=np.zeros(nchunks, dtype=bool),
        fraction=np.array([rng.choice((0.125, 0.125, 0.5, 1.0)) for _ in range(nchunks)]),
        pre=pre,
        post=post,
        in_index=pre[:, 1],
        out_index=post[:, 1],
    )


def raw(problem: Problem, size_bytes: float) -> Sends:
    """Return the result of `match_in_time` itself."""
    collective = problem.collective
    missing = collective.wants & ~collective.holds
    missing = np.concatenate([missing, np.zeros((len(missing), problem.nranks - missing.shape[1]), dtype=bool)], axis=1)
    work = collective.chunk_bytes(size_bytes) * 1e-3
    net = INTERPRETED.table(csr_network(problem.network))
    return match_in_time(INTERPRETED, net, missing, collective.holders, work, 1e-12)


def reachable(problem: Problem) -> int:
    """Return the number of goals that can be reached over ranks that hold or want the chunk themselves."""
    net, collective = problem.network, problem.collective
    count = 0
    for chunk in range(collective.nchunks):
        inside, wants = (
            set(np.flatnonzero(collective.holds[chunk])),
            set(np.flatnonzero(collective.wants[chunk])),
        )
        holders = set(inside)
        while True:
            more = {v for u, v in zip(net.src.tolist(), net.dst.tolist(), strict=True) if u in inside and v in wants}
            if more <= inside:
                break
            inside |= more
        count += len(inside - holders)
    return count


@settings(max_examples=40, derandomize=True)
@given(SEEDS)
def test_every_goal_gets_every_chunk_once(seed: int) -> None:
    rng = random.Random(seed)
    topology = random_topology(rng, 8)
    problem = make_problem(topology, spreading(rng, topology.nranks))
    net, collective = problem.network, problem.collective
    size = rng.choice((1.0, 1e5, 1e9))
    missing = collective.wants & ~collective.holds
    chunk, link, start = raw(problem, size)
    cells = list(zip(chunk.tolist(), net.dst[link].tolist(), strict=True))
    assert len(set(cells)) == len(cells) == reachable(problem)
    assert all(missing[cell] for cell in cells)
    assert (np.diff(start) >= 0).all()
    again = raw(problem, size)
    assert all(
        column.tobytes() == other_column.tobytes()
        for column, other_column in zip(again, (chunk, link, start), strict=True)
    )
    answer = match_schedule(problem, size, INTERPRETED)
    if len(chunk) < missing.sum():
        assert answer is None
        return
    assert answer is not None
    schedule = timed(problem, answer.schedule, size)
    replay(problem, schedule)
    assert predict_us(problem, schedule, size) == pytest.approx(answer.took_us, rel=1e-9)
    assert np.allclose(schedule.start_us, np.sort(schedule.start_us))
    check_busy(problem, schedule)


def check_busy(problem: Problem, schedule: Schedule) -> None:
    """Check that no link with its own resources is idle while its source has a chunk that its destination needs."""
    net = problem.network
    is_shared = np.bincount(net.uses_idx, minlength=net.nresources) > 1
    came = np.full((problem.collective.nchunks, problem.nranks), np.inf)
    came[problem.collective.pre[:, 1], problem.collective.pre[:, 0]] = 0.0
    # A chunk is needed until the send that brings it starts; before that, another link could send it.
    needed_until = came.copy()
    needed_until[schedule.chunk, net.dst[schedule.link]] = schedule.start_us
    came[schedule.chunk, net.dst[schedule.link]] = schedule.end_us + net.alpha_us[schedule.link]
    wants = problem.collective.wants
    for link in range(net.nlinks):
        if is_shared[net.uses(link)].any():
            continue
        rows = schedule.link == link
        busy = sorted(zip(schedule.start_us[rows].tolist(), schedule.end_us[rows].tolist(), strict=True))
        gaps = [(a, b) for (_, a), (b, _) in zip([(0.0, 0.0), *busy], [*busy, (np.inf, np.inf)], strict=True)]
        u, v = net.src[link], net.dst[link]
        for chunk in np.flatnonzero(wants[:, v]):
            for begin, end in gaps:
                begin, end = max(begin, came[chunk, u]), min(end, needed_until[chunk, v])
                assert end - begin <= 1e-9 * max(1.0, begin), "idle"


def test_the_check_of_idle_links_finds_one() -> None:
    problem = make_problem(load("ring:4"), "allgather")
    answer = match_schedule(problem, 1e6, INTERPRETED)
    assert answer is not None
    schedule = timed(problem, answer.schedule, 1e6)
    check_busy(problem, schedule)
    late = schedule.start_us > 0
    later = replace(schedule, start_us=schedule.start_us + late, end_us=schedule.end_us + late)
    replay(problem, later)
    with pytest.raises(AssertionError, match="idle"):
        check_busy(problem, later)


@pytest.mark.parametrize("chunks", [1, 2, 8])
@pytest.mark.parametrize(
    "spec",
    [
        "torus:4x4",
        "torus:5x5",
        "torus:3x3x3",
        "torus:2x4",
        "mesh:4x4",
        "mesh:3x5",
        "mesh:2x9",
        "mesh:3x3x3",
        "hypercube:4",
        "line:5",
        "full:6",
    ],
)
def test_allgather_takes_as_long_as_the_chunks_take_to_enter(spec: str, chunks: int) -> None:
    """Check times within 1 % and two rounds of the least time of the rank with the fewest links or the longest path."""
    problem = make_problem(load(f"{spec},alpha=0"), "allgather", chunks=chunks)
    net = problem.network
    answer = match_schedule(problem, 1e6, INTERPRETED)
    assert answer is not None
    rounds = answer.took_us / (1e6 * problem.collective.fraction[0] * 1e-3 / net.bandwidth_gbs[0])
    incoming = (problem.nranks - 1) * chunks / np.bincount(net.dst).min()
    assert incoming - 1e-6 <= rounds
    assert rounds <= 1.01 * max(incoming, hops(net.nranks, net.src, net.dst).max()) + 2


def test_chunks_that_need_relays_are_not_matched() -> None:
    assert match_schedule(make_problem(load("line:3"), "broadcast", [0, 2], [1]), 1e6, INTERPRETED) is None
    assert match_schedule(make_problem(load("line:3"), "broadcast", [0, 1], [2]), 1e6, INTERPRETED) is not None
