"""A part that would never end is ended by the budget, and the answer is what the other parts found."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

import numpy as np
import pytest

from synth.bounds.registry import BOUND_KINDS
from synth.bounds.registry import register as register_bound
from synth.bounds.search import BoundCost, BoundSearch
from synth.bounds.witness import Limit, Witness
from synth.engines.registry import ENGINES, EngineRow, register
from synth.engines.request import Options, Outcome, Progress, Request
from synth.model.deadline import TimeUp, check_deadline, checking_deadline, limited, now
from synth.model.problem import Problem, make_problem
from synth.search.plans import SearchPlan, Stage
from synth.search.search import search
from synth.solvers.workers import Workers
from synth.timing.simulate import timed
from synth.verify.algorithm import Algorithm
from tests.synth.search.test_pool import Executor, Slower
from topologies.errors import InputError
from topologies.load import load

BUDGET_S = 0.5


def accepts(_problem: Problem, _options: Options) -> str:
    """Accept every problem."""
    return ""


def solve(_problem: Problem, _request: Request) -> Iterator[Outcome]:
    """Work without an end, and without an answer."""
    yield Progress("endless")
    while True:
        check_deadline()


@dataclass(frozen=True, kw_only=True)
class Vacuous(Witness):
    kind: ClassVar[str] = "vacuous"

    def limit(self, _problem: Problem) -> Limit:
        """Return a limit that proves nothing."""
        return 0.0, 0.0, np.inf


@dataclass
class EndlessKind:
    """A kind of bound whose search of one cost never ends, and never finds anything."""

    cost: BoundCost
    witness_class: ClassVar[type[Witness]] = Vacuous

    def find(self, _search: BoundSearch, cost: BoundCost, /) -> Iterator[Vacuous | None]:
        while cost == self.cost:
            yield None


def _this_module() -> ModuleType:
    return sys.modules[__name__]


@pytest.fixture
def endless_engine() -> Iterator[EngineRow]:
    yield register(EngineRow("endless", "for tests", _this_module))
    del ENGINES["endless"]


@pytest.fixture
def endless_bound(request: pytest.FixtureRequest) -> Iterator[None]:
    before = dict(BOUND_KINDS)
    register_bound(EndlessKind(request.param))
    yield
    BOUND_KINDS.clear()
    BOUND_KINDS.update(before)


PLAN = SearchPlan((Stage("route"), Stage("endless")), rest=False, windows=0.0)
PROBLEM = make_problem(load("mesh:3x3"), "allreduce")


@pytest.mark.usefixtures("endless_engine")
def test_an_endless_engine(workers: Workers) -> None:
    result = search(PROBLEM, Options(budget_s=BUDGET_S), workers, plan=PLAN)
    assert result.stop_reason == "budget"
    assert result.ranges


@pytest.mark.parametrize("endless_bound", [BoundCost.MAX_FLOW, BoundCost.LINEAR_PROGRAM], indirect=True)
@pytest.mark.usefixtures("endless_bound")
def test_an_endless_bound(workers: Workers) -> None:
    plan = SearchPlan((Stage("route"),), rest=False, windows=0.0, max_flow_ranks=0)
    result = search(PROBLEM, Options(budget_s=BUDGET_S), workers, plan=plan)
    assert result.stop_reason == "budget"
    assert result.ranges


@pytest.mark.parametrize("endless_bound", [BoundCost.QUICK], indirect=True)
@pytest.mark.usefixtures("endless_bound")
def test_an_endless_first_bound(workers: Workers) -> None:
    problem = make_problem(load("mesh:3x3"), "allgather")  # Its quick bounds are in no cache.
    with pytest.raises(InputError, match="is too short"):
        search(problem, Options(budget_s=BUDGET_S), workers)


def test_an_endless_lowering(workers: Workers) -> None:
    class Endless(Executor):
        def lower(self, algorithm: Algorithm, _until: float, _sizes: Sequence[int]) -> Slower:
            for _ in checking_deadline(iter(int, 1), every=100):  # The items have no end.
                assert algorithm
            raise AssertionError

    plan = SearchPlan((Stage("route"),), rest=False, windows=0.0)
    result = search(PROBLEM, Options(budget_s=BUDGET_S), workers, plan=plan, executor=Endless())
    assert result.ranges
    assert all(offer.refused.startswith("the budget ended before it was ready") for offer in result.ranges)


def test_loops_without_an_end(workers: Workers) -> None:
    algorithm = search(PROBLEM, Options(engine="route", budget_s=5), workers).ranges[0].algorithm

    def time_again_and_again() -> None:
        while True:
            timed(algorithm.problem, algorithm.schedule, 1.0)

    with pytest.raises(TimeUp):
        limited(now() + 0.1, time_again_and_again)
