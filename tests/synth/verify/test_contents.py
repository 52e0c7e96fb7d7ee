"""Sums in large schedules: counts where these are enough, bits where not, and the same verdicts as by the table."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from synth.model.problem import Problem, make_problem
from synth.model.schedule import Schedule, untimed
from synth.timing import simulate
from synth.timing.simulate import timed
from synth.verify.replay import ReplayTuning, replay
from tests.synth.verify.against_oracles import links, moved, same_times, same_verdict
from topologies.errors import ScheduleRefused
from topologies.load import load


def test_sums_are_counted_equally() -> None:
    """Check random sends of one sum among few ranks: the smallest case in which every wrong count occurs."""
    rng = np.random.default_rng(1)
    problems = [
        make_problem(load("full:3"), "reduce"),
        make_problem(load("full:3"), "allreduce"),
        make_problem(load("full:3"), "reducescatter"),
        make_problem(load("full:4"), "reduce"),
        make_problem(load("full:4"), "reduce", [0, 1, 2], [3]),
        make_problem(load("full:4"), "allreduce", [0, 2], [1, 3]),
    ]
    right = 0
    for _ in range(2000):
        problem = problems[int(rng.integers(len(problems)))]
        net, count = problem.network, int(rng.integers(1, 7))
        chunk = rng.integers(0, problem.collective.nchunks, count)
        link = rng.integers(0, net.nlinks, count)
        step = np.sort(rng.integers(0, rng.choice((3, 20)), count))
        start = step * 1e7 + rng.random(count) * 30 * (rng.random() < 0.2)
        lasts = problem.collective.fraction[chunk] * 1e6 / net.bandwidth_gbs[link] / 1e3
        adds = rng.random(count) < 0.8
        right += not same_verdict(problem, Schedule(chunk, link, step, adds, start, start + lasts, 1e6))
    assert right > 20


def exchanged(problem: Problem) -> Schedule:
    """Return recursive doubling: every rank adds its sum to its partner's and gets the partner's at the same time."""
    rank = np.arange(problem.nranks)
    exchange_links = [links(problem, rank, rank ^ (1 << i)) for i in range(problem.nranks.bit_length() - 1)]
    count = len(exchange_links) * len(rank)
    return untimed(
        np.zeros(count), np.concatenate(exchange_links), np.arange(count) // len(rank), np.ones(count, dtype=bool)
    )


@pytest.mark.parametrize("ranks", [8, 128])
def test_an_exchange_is_no_tree_and_is_right(ranks: int) -> None:
    problem = make_problem(load(f"star:{ranks}"), "allreduce")
    right = timed(problem, exchanged(problem), 1e6)
    assert same_verdict(problem, right) == ""
    # The last exchange is repeated: rank 1's partner has everything twice.
    again = right.take(np.append(np.arange(len(right)), len(right) - ranks))
    wrong = timed(problem, replace(again, step=np.append(right.step, right.nsteps)), 1e6)
    same_verdict(problem, wrong, "×2.* each once")
    odd = ranks - 1
    lost = timed(problem, right.take(np.arange(len(right)) != odd), 1e6)
    pattern = f"{odd}×0" if ranks > 64 else "should hold 0, 1, 2, 3, 4, 5, 6, 7, each once"
    same_verdict(problem, lost, pattern)


@pytest.mark.parametrize(
    ("rows", "pattern"),
    [
        ([(1, 0, 0, True), (2, 0, 0, True)], "^$"),
        ([(1, 2, 0, True), (2, 0, 1, True)], "^$"),
        ([(1, 0, 0, True), (2, 0, 1, False)], "holds the contributions of ranks 2; should hold 0, 1, 2"),
        ([(1, 2, 0, True), (1, 0, 0, True), (2, 0, 1, True)], "1×2"),
        ([(1, 0, 0, True), (1, 0, 1, True), (2, 0, 0, True)], "1×2"),
        ([(1, 0, 0, True), (1, 0, 1, True), (2, 0, 2, True)], "1×2"),
        ([(1, 0, 0, False), (2, 0, 0, True)], "in which another send changes it too"),
        ([(1, 0, 0, True), (0, 2, 1, True), (2, 0, 2, False)], "^$"),  # Rank 0 sends, and gets the whole back.
        ([(2, 1, 0, True), (1, 0, 1, True), (0, 1, 2, False), (1, 0, 3, False)], "^$"),
        ([(2, 1, 0, True), (1, 0, 1, True), (0, 1, 2, False), (1, 0, 3, True)], "0×2, 1×2, 2×2"),
        # 1's contribution arrives at 0 twice at once, and then the complete sum from elsewhere replaces it.
        (
            [
                (0, 2, 0, True),
                (1, 2, 0, True),
                (3, 2, 0, True),
                (1, 3, 0, True),
                (1, 0, 1, True),
                (3, 0, 1, True),
                (2, 0, 2, False),
            ],
            "^$",
        ),
        # As many contributions as there are, but not each once: added twice at once, later, and received after sending.
        ([(1, 2, 0, True), (1, 0, 0, True), (2, 0, 1, True), (0, 3, 2, True), (3, 0, 3, False)], "1×2"),
        ([(1, 0, 0, True), (1, 2, 1, True), (2, 0, 2, True)], "0, 1×2, 2; should"),
        ([(1, 0, 0, True), (2, 1, 1, True), (1, 0, 2, True), (3, 1, 2, True)], "0, 1×2, 2; should"),
    ],
)
def test_the_message_about_a_sum(rows: list[tuple[int, int, int, bool]], pattern: str) -> None:
    problem = make_problem(load("full:4"), "reduce", range(4 if any(3 in row[:2] for row in rows) else 3))
    src, dst, step, adds = (np.array(column) for column in zip(*rows, strict=True))
    sends = untimed(np.zeros(len(rows)), links(problem, src, dst), step, adds)
    at = same_times(problem, sends, 1e6)
    assert at is not None
    same_verdict(problem, at, pattern)


def test_too_early_replaced_too_early_and_overtaken() -> None:
    problem = make_problem(load("full:3"), "reduce")
    send_links = links(problem, np.array([1, 2]), np.array([2, 0]))
    at = timed(problem, untimed(np.zeros(2), send_links, np.arange(2), np.ones(2, dtype=bool)), 1e6)
    assert same_verdict(problem, at) == ""
    early = moved(at, 1, start_us=at.start_us[1] - 0.1, end_us=at.end_us[1] - 0.1)
    same_verdict(problem, early, "leaves rank 2 at 20.6 µs but is complete there only at 20.7")
    send_links = links(problem, np.array([1, 2]), np.array([0, 0]))
    late = np.array([100.0, 0.0])
    for adds, message in (
        ([True, False], "before an earlier step's arrival"),
        ([False, True], "earlier step has arrived"),
    ):
        sends = untimed(np.zeros(2), send_links, np.arange(2), np.array(adds))
        same_verdict(problem, replace(sends, start_us=late, end_us=late + 20, size_bytes=1e6), message)


def test_many_ranks_and_one_sum_take_little_memory() -> None:
    """Check that pieces of a long chain are not counted rank by rank."""
    compiled = ReplayTuning(compiled_from=0)
    ranks = 4000
    problem = make_problem(load(f"line:{ranks}"), "reduce")
    rank = np.arange(ranks - 1, 0, -1)
    # A table of links would be larger than all that is measured.
    back = np.flatnonzero(problem.network.dst < problem.network.src)[::-1]
    assert problem.network.src[back].tolist() == rank.tolist()
    chain = untimed(np.zeros(len(rank)), back, np.arange(len(rank)), np.ones(len(rank), dtype=bool))
    for check in (False, True):  # The first run compiles, and fills the caches.
        if check:
            tracemalloc.start()
        replay(problem, timed(problem, chain, 1e6, simulate.ClockTuning(0)), compiled)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # This includes a dozen columns of the network; a bit for each pair of ranks would be 500 more.
    assert peak < 400 * ranks
    with pytest.raises(ScheduleRefused, match=r"ranks 3000×0, 3001×0, .*…; should hold those of 4000 ranks, each once"):
        replay(problem, timed(problem, chain.take(rank != 3000), 1e6), compiled)
