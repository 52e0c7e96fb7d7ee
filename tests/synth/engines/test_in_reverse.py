"""Engines that solve the reverse of sums of unlike blocks: right, and faster than forwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from synth.bounds.prove import prove
from synth.engines import in_reverse
from synth.engines.levels import search as levels_search
from synth.engines.registry import ENGINES
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.model.deadline import now
from synth.model.problem import Problem, make_problem
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from tests.synth.engines.knowledge import BestTimes
from topologies.costed import with_costs
from topologies.load import load

BLOCKS = (9 << 20, 0, 3 << 20, 1 << 20, 0, 5 << 20, 2 << 20, 4 << 20)
SIZE = sum(BLOCKS)
GROUP = (0, 1, 2, 3, 8, 9, 10, 11)


def _problem(name: str = "reducescatterv") -> Problem:
    return make_problem(with_costs(load("dgx-h100:2")), name, GROUP, sizes=BLOCKS).under("Simple")


def _request(problem: Problem, workers: Workers, knowledge: BestTimes) -> Request:
    bound = prove(problem, max_flow=False)
    return Request(Options(size=SIZE), (SIZE,), now() + 600, workers, knowledge, bound, work_s=0.2, most_sends=1_000)


def _times_us(answers: Iterator[Outcome]) -> list[float]:
    """Return the times of all candidates, which are replayed."""
    candidates = [answer for answer in answers if isinstance(answer, Candidate)]
    return [Algorithm(answer.problem, answer.schedule, answer.engine).time_us(SIZE) for answer in candidates]


def test_sums_are_right_and_take_the_time_of_the_copies(workers: Workers) -> None:
    sums, copies = _problem(), _problem("allgatherv")
    times_us = _times_us(ENGINES["levels"].solve(sums, _request(sums, workers, BestTimes())))
    forwards_us = _times_us(levels_search.solve(sums, _request(sums, workers, BestTimes())))
    copies_us = _times_us(ENGINES["levels"].solve(copies, _request(copies, workers, BestTimes())))
    assert min(times_us) == pytest.approx(min(copies_us), rel=0.05)  # Links have other numbers, which decide ties.
    assert min(times_us) <= min(forwards_us)


def test_an_engine_hears_of_its_own_candidates(workers: Workers) -> None:
    """Check that the time of a candidate is asked for as the problem has it, and that progress is passed on."""
    problem, asked = _problem(), list[Candidate]()

    class Listening(BestTimes):
        def time_us(self, candidate: Candidate) -> float:
            asked.append(candidate)
            return 7.0

    heard = []

    def engine(problem: Problem, request: Request) -> Iterator[Outcome]:
        """Yield the answers of `levels`, and ask for the time of each and of another one."""
        before: Outcome | None = None
        for answer in levels_search.solve(problem, request):
            yield answer
            if isinstance(answer, Candidate):
                heard.append(request.knowledge.time_us(answer))
                if isinstance(before, Candidate):
                    assert request.knowledge.time_us(before) == float("inf")
                before = answer

    answers = list(in_reverse.solved(engine, problem, _request(problem, workers, Listening())))
    assert asked == [answer for answer in answers if isinstance(answer, Candidate)]
    assert set(heard) == {7.0}
    assert any(isinstance(answer, Progress) for answer in answers)
    assert all((answer.schedule.reduces).all() for answer in asked)


@pytest.mark.parametrize("name", ["allgatherv", "reducescatter"])
def test_other_problems_are_solved_forwards(name: str, workers: Workers) -> None:
    sizes = BLOCKS if name == "allgatherv" else None
    problem = make_problem(with_costs(load("dgx-h100:2")), name, GROUP, sizes=sizes).under("Simple")
    request, given = _request(problem, workers, BestTimes()), list[tuple[Problem, Request]]()

    def engine(problem: Problem, request: Request) -> Iterator[Outcome]:
        given.append((problem, request))
        yield Progress("nothing")

    assert list(in_reverse.solved(engine, problem, request)) == [Progress("nothing")]
    assert given == [(problem, request)]
