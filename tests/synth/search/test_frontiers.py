"""Whole searches: their answers replay, keep their promises, and lower to files that are right."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emit.formats import verify_file
from emit.library.saving.save import save
from emit.library.selection.lookup import goal_beside
from emit.targets import TARGETS
from synth import synthesize
from synth.app.synthesis import Synthesis
from synth.baselines import CLOSED_FORMS
from synth.bounds.check import check
from synth.engines.registry import names
from synth.model.collective import uneven
from synth.model.problem import LARGEST, SMALLEST
from synth.search.offer import _rounded, rounded
from synth.search.settings import TargetSettings
from synth.solvers.workers import Workers
from synth.timing.simulate import timed
from synth.verify.replay import replay
from tests.random_problems import NAMED

TOPOLOGIES = ("ring:5", "line:4", "mesh:2x3", "star:4", "full:4", "hypercube:3", "dgx1", "z52", "dgx-a100")
BETWEEN_TWO = ("sendrecv", "alltonext")


@settings(
    max_examples=6,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    topo=st.sampled_from(TOPOLOGIES),
    collective=st.sampled_from(sorted(NAMED)),
    size=st.integers(2, 6),
    picks=st.randoms(use_true_random=False),
)
def test_any_group_gets_right_algorithms_within_their_bounds(
    workers: Workers, topo: str, collective: str, size: int, picks: Random
) -> None:
    from topologies.load import load

    topology = load(topo)
    group = picks.sample(range(topology.nranks), min(size, topology.nranks))
    answer = synthesize(collective, topology, group, relay="all", budget=0.3, workers=workers)
    result = answer.result
    assert result.ranges
    assert result.ranges[0].low == 0
    assert result.ranges[-1].high is None
    for before, after in zip(result.ranges, result.ranges[1:], strict=False):
        assert before.high is not None
        assert after.low == before.high + 1
    for witness in result.bound.witnesses:
        check(result.problem, witness)
    for served in result.ranges:
        algorithm = served.algorithm
        for message in (SMALLEST, 123_457, LARGEST):
            replay(algorithm.problem, timed(algorithm.problem, algorithm.schedule, message))
            assert algorithm.time_us(message) >= result.bound.at(message)[0] * (1 - 1e-9)
    for row in answer.algorithms:
        assert row["gap"] >= 1.0
        assert row["optimal"] == (row["time_us"] <= row["bound_us"] * (1 + 1e-9))
        # The library's rings are among the candidates, and two answers may differ by at most half a percent.
        assert row["vs_baseline"] is None or row["vs_baseline"] >= 0.99


@pytest.fixture(scope="module")
def answers(workers: Workers) -> Callable[[str], Synthesis]:
    """Return a function that searches a collective once for all targets, for the target that supports least."""

    def answer(collective: str) -> Synthesis:
        least = "none" if collective in BETWEEN_TWO else "rccl"
        size = None if collective in ("allgather", "allreduce") else 1 << 20  # Of the others one range is enough.
        return synthesize(collective, "dgx1", [0, 1, 5], size=size, budget=0.6, target=least, workers=workers)

    return cache(answer)


@pytest.mark.parametrize("target", ["executor-nccl", "rccl", "msccl"])
@pytest.mark.parametrize("collective", sorted(NAMED))
def test_every_target_that_supports_the_answer_gets_a_right_file(
    answers: Callable[[str], Synthesis], tmp_path: Path, target: str, collective: str
) -> None:
    answer = answers(collective)
    if collective in BETWEEN_TWO and target != "msccl":
        assert "msccl" in save(answer.result, tmp_path, TargetSettings(target)).refused
        return
    if collective in ("gather", "scatter") and target == "msccl":
        assert "executor-nccl" in save(answer.result, tmp_path, TargetSettings(target)).refused
        return
    saved = save(answer.result, tmp_path, TargetSettings(target))
    assert not saved.refused or "--scratch-limit" in saved.refused
    for path in saved.paths:
        if path.suffix == ".xml":
            verdict = verify_file(path, goal_beside(path))
            assert verdict.status == "right", verdict.lines


def test_relays_shorten_what_the_group_needs_without_them(workers: Workers) -> None:
    without_relays = synthesize("allreduce", "dgx-a100", [0, 2, 4, 6], budget=0.5, workers=workers)
    helped = synthesize("allreduce", "dgx-a100", [0, 2, 4, 6], relay="all", budget=0.5, workers=workers)
    assert helped.result.bound.at(LARGEST)[0] < without_relays.result.bound.at(LARGEST)[0]


@pytest.mark.parametrize("group", [[0, 5], [0, 3, 5, 6]])
def test_relays_that_hold_nothing_send_nothing(workers: Workers, tmp_path: Path, group: list[int]) -> None:
    answer = synthesize("allreduce", "dgx1", group, relay="all", size="64K", budget=0.5, workers=workers)
    assert answer.result.ranges
    assert not save(answer.result, tmp_path, TargetSettings("msccl")).refused


def test_claims_state_no_more_than_was_refuted(workers: Workers) -> None:
    """Check that claims name their chunks: on a line of three, 3 steps and 3 chunks need 5 rounds, 2 chunks only 3."""
    answer = synthesize("allreduce", "line:3", budget=10, workers=workers)
    for claim in answer.result.claims:
        if claim.best is None or not claim.complete:
            continue
        for chunks in range(1, (claim.chunks or 3) + 1):
            if claim.exactly and chunks != claim.chunks:
                continue
            rounds = int(np.ceil(float(claim.best.shape.ratio) * chunks - 1e-9)) - 1
            if claim.part and not claim.exactly:
                continue  # The claim is about one phase, which has other steps.
            if rounds >= claim.steps:
                pinned = synthesize(
                    "allreduce", "line:3", steps=claim.steps, rounds=rounds, chunks=chunks, workers=workers
                )
                assert not pinned.result.ranges, (claim.steps, rounds, chunks)


def test_dgx1_allgather_is_sccls_pareto_set_and_proved(workers: Workers) -> None:
    # The search ends by itself.
    answer = synthesize("allgather", "dgx1", engine="ksync", budget=600, costs="none", workers=workers)
    algorithms = [served.algorithm for served in answer.result.ranges] + [
        algorithm.algorithm for algorithm in answer.result.unused
    ]
    points = [
        algorithm
        for algorithm in algorithms
        if (algorithm.chunks, algorithm.steps, algorithm.rounds) in {(2, 2, 3), (6, 3, 7)}
    ]
    assert len({point.chunks for point in points}) == 2
    assert all(claim.complete and claim.chunks is None for claim in answer.result.claims)
    for size in (1 << 10, 1 << 16, 1 << 20, 1 << 30):
        assert answer.result.fastest(size).time_us(size) <= min(point.time_us(size) for point in points) * 1.001


def test_blocks_of_different_sizes(workers: Workers, tmp_path: Path) -> None:
    sizes = [[0, 10, 1, 0], [2, 0, 23, 1], [0, 0, 0, 30], [2, 2, 2, 0]]  # A program has as many chunks as their sum.
    answer = synthesize(
        uneven("alltoallv", sizes), "dgx1", range(4), budget=1, target="none", costs="none", workers=workers
    )
    assert answer.gap < 2  # It is less where the budget is enough for flow, which may fail on a busy machine.
    assert not save(answer.result, tmp_path, TargetSettings("msccl")).refused


def test_the_same_question_gets_the_same_bytes(workers: Workers, tmp_path: Path) -> None:
    """Check that neither the budget nor the speed of the machine matters where a search ends by itself."""
    written = []
    for folder, budget in ((tmp_path / "one", 100), (tmp_path / "other", 1000)):
        answer = synthesize("broadcast", "dgx1", [0, 1, 2], size=1 << 16, budget=budget, costs="none", workers=workers)
        result = answer.result
        assert not result.stop_reason
        paths = [files["file"] for files in save(result, folder, TargetSettings("executor-nccl")).files]
        written.append({path.name: path.read_bytes() for path in paths})
    assert written[0] == written[1]


# Not all targets have a name for what the engines skewed and balanced answer; their own tests check their programs.
@pytest.mark.parametrize("engine", [name for name in names() if name not in (*CLOSED_FORMS, "skewed", "balanced")])
def test_every_engine_through_every_target(workers: Workers, tmp_path: Path, engine: str) -> None:
    # For other problems the library's own answers stand in for an engine's.
    where = {"switch": "dgx-h100", "levels": "fattree:2x2x2", "messages": "dgx-a100:2", "rails": "dgx-a100:2"}
    topology, costs = where.get(engine, "dgx1"), "machine" if engine == "messages" else "none"
    group = {"messages": [0, 1, 8, 9], "rails": [0, 1, 2, 8]}.get(engine, [0, 1, 2, 3])
    collective = {"two-hops": "broadcast", "one-shot": "allreduce"}.get(engine, "allgather")
    chunks = 8 if engine == "two-hops" else None
    question = {"engine": engine, "chunks": chunks, "size": 1 << 16, "budget": 1.0, "costs": costs}
    answer = synthesize(collective, topology, group, **question, workers=workers)
    assert answer.result.ranges
    for target in TARGETS:
        saved = save(answer.result, tmp_path, TargetSettings(target))
        assert not saved.refused, saved.refused
        for files in saved.files:
            verdict = verify_file(files["file"])
            assert verdict.status == "right", verdict.lines


@given(st.floats(1e-3, 1e9), st.sampled_from([-1, 1]))
def test_rounding_errors_do_not_decide(time_us: float, direction: int) -> None:
    """Check that times which differ in the last digits are equal, and that times which differ by 1e-7 are not."""
    near = time_us * (1 + direction * 3e-16)
    assert abs(rounded(near) / time_us - 1) < 1e-8
    assert rounded(time_us * (1 + 1e-7)) > rounded(time_us)
    assert _rounded(time_us) == rounded(time_us)
