"""Unlike blocks where all ranks are linked: right, with evenly busy ports, and faster than direct sends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from emit.library.checking.check import check_library
from emit.library.index import load_index
from synth import synthesize
from synth.baselines import baseline
from synth.bounds.prove import prove
from synth.engines.balanced import NAME, _relayed, accepts, solve
from synth.engines.request import Candidate, Options, Request
from synth.engines.two_hops import links_between
from synth.model.deadline import now
from synth.model.problem import Problem, make_problem
from synth.phases.reversal import reverse
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from tests.synth.engines.knowledge import BestTimes
from topologies.costed import with_costs
from topologies.load import load

UNLIKE = (12 << 20, 3 << 20, 0, 1 << 20, 5 << 20)


def _algorithms(problem: Problem, workers: Workers) -> list[Algorithm]:
    """Return all answers of the engine, which their constructor replays."""
    size = sum(UNLIKE)
    request = Request(Options(size=size), (size,), now() + 600, workers, BestTimes(), prove(problem, max_flow=False))
    answers = [answer for answer in solve(problem, request) if isinstance(answer, Candidate)]
    return [Algorithm(answer.problem, answer.schedule, NAME) for answer in answers]


@pytest.mark.parametrize("name", ["allgatherv", "reducescatterv"])
@pytest.mark.parametrize("spec", ["full:5", "dgx-h100", "star:5"])
def test_it_is_right_and_faster_than_direct_sends(name: str, spec: str, workers: Workers) -> None:
    topology = load(spec)
    problem = make_problem(with_costs(topology) if topology.costs else topology, name, range(5), sizes=UNLIKE)
    problem = problem.under("Simple") if problem.protocols else problem
    assert not accepts(problem, Options())
    size = sum(UNLIKE)
    algorithms = _algorithms(problem, workers)
    assert len({algorithm.problem.collective.chunks for algorithm in algorithms}) == 3
    if spec != "full:5":  # Links of its own to each rank leave a port no choice.
        direct_us = min(algorithm.time_us(size) for algorithm in baseline(problem))
        assert min(algorithm.time_us(size) for algorithm in algorithms) < 0.9 * direct_us


@pytest.mark.parametrize("name", ["allgatherv", "reducescatterv"])
def test_ports_are_about_equally_busy(name: str) -> None:
    problem = make_problem(load("star:5"), name, sizes=UNLIKE)
    problem = problem if name == "allgatherv" else reverse(problem)
    whole = problem.with_chunks(24)
    relayed = _relayed(whole, links_between(whole))
    chunks = np.bincount(whole.collective.holders[1], minlength=5)
    chunk_bytes = np.array(UNLIKE) / np.maximum(chunks, 1)
    direct = chunks - relayed.sum(axis=1)
    sent = chunk_bytes * (4 * direct + relayed.sum(axis=1)) + 3 * (chunk_bytes @ relayed)
    assert (relayed >= 0).all()
    assert (direct >= 0).all()
    assert (relayed.diagonal() == 0).all()
    assert sent.max() < 1.2 * sent.mean() < 4 * max(UNLIKE) / 2


def test_it_refuses_what_it_cannot_do() -> None:
    def why(spec: str, name: str, sizes: tuple[int, ...] | None, chunks: int | None = None) -> str:
        return accepts(make_problem(load(spec), name, sizes=sizes), Options(chunks=chunks))

    assert "allgatherv and reducescatterv" in why("full:5", "allgather", None)
    assert "a link of one kind" in why("ring:5", "allgatherv", UNLIKE)
    assert "3 to 64 ranks" in why("full:2", "allgatherv", (1, 2))
    assert "pins no chunks" in why("full:5", "allgatherv", UNLIKE, 2)
    clustered = make_problem(with_costs(load("dgx-h100:2")), "allgatherv", (0, 1, 8, 9), sizes=UNLIKE[:4])
    assert "a link of one kind" in accepts(clustered.under("Simple"), Options())


@pytest.mark.parametrize("name", ["allgatherv", "reducescatterv"])
def test_its_files_are_right(name: str, tmp_path: Path) -> None:
    answer = synthesize(name, "dgx-h100", range(5), sizes=UNLIKE, size=sum(UNLIKE), engine=NAME, budget=6)
    assert {row["engine"] for row in answer.algorithms} == {NAME}
    answer.save(tmp_path)
    report = check_library(tmp_path, load_index(tmp_path))
    assert (report.wrong, report.files) == ([], 1)
