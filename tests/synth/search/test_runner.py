"""The race of engines: everyone has a turn, then the one that gained most goes on; one that cannot leaves the race."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import numpy as np
import pytest

from synth.bounds.prove import prove
from synth.engines.registry import ENGINES, EngineRow
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.engines.route import quick_schedule
from synth.model.deadline import now
from synth.model.problem import LARGEST, Problem, make_problem
from synth.search.plans import SINGLE, SearchPlan, Stage
from synth.search.run.runner import EngineRun, by_gain, race
from synth.search.run.staged import StagedSearch
from synth.search.run.state import SearchState
from synth.search.search import search
from synth.solvers.workers import Workers
from topologies.errors import InputError
from topologies.load import load

LATER = float("inf")


class Ledger:
    """A record of the order of answers; an answer gains the number in its text."""

    def __init__(self, answered: bool = True) -> None:
        self.answered = answered
        self.order: list[str] = []
        self.refused: list[str] = []
        self.proved = False

    def take(self, answer: Outcome, source: str) -> float:
        assert isinstance(answer, Progress)
        self.order.append(source)
        return float(answer.text)

    def refuse(self, source: str, error: InputError) -> None:
        assert "one way" in str(error)
        self.refused.append(source)


def staged(problem: Problem, options: Options, workers: Workers) -> StagedSearch:
    """Return a search that has not begun."""
    return StagedSearch(SearchState(problem, options, SINGLE, workers, lambda _, __: None, None))


def gains(*numbers: float) -> Iterator[Outcome]:
    for number in numbers:
        yield Progress(str(number))


def test_an_engine_ends_before_the_next_begins_where_there_is_time() -> None:
    ledger = Ledger()
    race([EngineRun("a", gains(0, 0), 60), EngineRun("b", gains(0), 60)], ledger, LATER)
    assert ledger.order == ["a", "a", "b"]


def test_a_turn_goes_on_for_half_as_long_again_while_it_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    def order(gained: float) -> list[str]:
        ledger = Ledger()
        monkeypatch.setattr(
            "synth.search.run.runner.now", lambda: float(len(ledger.order))
        )  # An answer takes a second.
        race([EngineRun("a", gains(*[gained] * 30), 10, once=True), EngineRun("b", gains(0), 10)], ledger, 50.0)
        return ledger.order

    assert order(0.0) == ["a"] * 10 + ["b"]
    assert order(0.5) == ["a"] * 15 + ["b"]


def test_after_the_first_turns_the_engine_that_gained_most_goes_on() -> None:
    ledger = Ledger()
    runs = [
        EngineRun("poor", gains(0.1, 0, 0), 0),
        EngineRun("rich", gains(0.5, 0.4, 0), 0),
        EngineRun("once", gains(1, 1), 0, once=True),
    ]
    race(runs, ledger, LATER)
    assert ledger.order[:3] == ["poor", "rich", "once"]
    assert ledger.order[3:] == ["rich", "rich", "poor", "poor"]


def test_old_gains_count_less_and_less() -> None:
    ledger = Ledger()
    runs = [EngineRun("past", gains(0.4, 0, 0, 0, 0), 0), EngineRun("slow", gains(0.15, 0.15, 0.15), 0)]
    race(runs, ledger, LATER)
    assert ledger.order == ["past", "slow", "past", "past", "slow", "slow", "past", "past"]


def test_late_engines_still_answer_once() -> None:
    ledger = Ledger()
    race([EngineRun("a", gains(0, 0), 60), EngineRun("b", gains(0, 0), 60)], ledger, now() - 1)
    assert ledger.order == ["a", "b"]


def test_after_a_proof_only_engines_that_always_answer_go_on() -> None:
    ledger = Ledger()
    ledger.proved = True
    waiting: list[EngineRun] = []
    race([EngineRun("a", gains(0, 0), 60), EngineRun("b", gains(0, 0), 60, always=True)], ledger, LATER, waiting)
    assert ledger.order == ["a", "b", "b"]
    assert [run.engine for run in waiting] == ["a"]


def test_unfinished_engines_are_known_when_the_race_is_interrupted() -> None:
    ledger, waiting = Ledger(), list[EngineRun]()
    answers = {"past": (gains(0.4, 0, 0), 0), "ended": (gains(1), 60), "rich": (gains(0.5, 0.5), 0)}
    runs = [EngineRun(name, *stage) for name, stage in answers.items()]
    with pytest.raises(KeyboardInterrupt):
        race([*runs, EngineRun("loop", interrupted_in_compiled_code(), 60)], ledger, LATER, waiting)
    assert [run.engine for run in by_gain(waiting)] == ["rich", "past", "loop"]


def unable() -> Iterator[Outcome]:
    yield Progress("0")
    raise InputError("links go one way only")


def test_another_engine_may_do_what_one_cannot() -> None:
    for ledger in (Ledger(), Ledger(answered=False)):
        race([EngineRun("unable", unable(), 60), EngineRun("able", gains(0), 60)], ledger, LATER)
        assert ledger.order == ["unable", "able"]
        assert ledger.refused == ["unable"]
    with pytest.raises(InputError, match="one way"):
        race([EngineRun("unable", unable(), 60)], Ledger(answered=False), LATER)


class _Unable(EngineRow):
    def solve(self, *_: object) -> NoReturn:
        raise InputError("links go one way only")


def test_an_engine_that_accepts_what_it_cannot_do_is_left_out_once(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the others answer, and that the error is the answer where no other engine is asked."""
    for name in ("switch", "route"):
        monkeypatch.setitem(ENGINES, name, _Unable(name, "planted", ENGINES[name].load))
    problem, lines = make_problem(load("ring:4"), "broadcast"), list[str]()
    stages = (Stage("switch"), Stage("route"), Stage("switch"), Stage("baseline"))
    plan = SearchPlan(stages, rest=False, windows=0)
    monkeypatch.setattr(_Unable, "accepts", lambda *_: "")
    result = search(problem, Options(1 << 16, budget_s=1), workers, lambda text, _: lines.append(text), plan)
    assert result.ranges
    assert not result.defects
    assert [line for line in lines if "left out" in line] == [
        f"engine {name} is left out: links go one way only" for name in ("switch", "route")
    ]
    with pytest.raises(InputError, match="one way"):
        search(problem, Options(1 << 16, engine="route", budget_s=1), workers, plan=SearchPlan((Stage("route"),)))


def test_where_every_engine_refuses_the_first_refusal_is_the_error(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, engine in ENGINES.items():
        monkeypatch.setitem(ENGINES, name, _Unable(name, "planted", engine.load))
    with pytest.raises(InputError, match="one way"):
        search(make_problem(load("ring:3"), "broadcast"), Options(budget_s=2), workers)


def interrupted_in_compiled_code() -> Iterator[Outcome]:
    yield Progress("0")
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        raise SystemError("returned a result with an exception set") from error


def test_an_interrupt_in_compiled_code_is_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt):
        race([EngineRun("loop", interrupted_in_compiled_code(), 60)], Ledger(), np.inf)


@pytest.mark.parametrize(("size", "runs"), [(1 << 30, True), (64, False), (None, False)])
def test_bulk_engines_are_asked_where_bandwidth_counts(workers: Workers, size: int | None, runs: bool) -> None:
    staged_search = staged(make_problem(load("line:3"), "broadcast"), Options(size=size), workers)
    staged_search.state.result.bound = prove(staged_search.state.problem)
    assert staged_search._runs_now(Stage("flow", bulk=True)) == runs
    assert staged_search._runs_now(Stage("flow"))


@pytest.mark.parametrize(
    ("spec", "size", "runs"), [("dgx1", 1 << 16, True), ("ring:4", 1 << 16, False), ("dgx1", None, False)]
)
def test_engines_for_unequal_links_are_asked_on_such_networks(
    workers: Workers, spec: str, size: int | None, runs: bool
) -> None:
    staged_search = staged(make_problem(load(spec), "broadcast"), Options(size=size), workers)
    assert staged_search._runs_now(Stage("lns", unlike=True)) == runs


def test_a_second_equal_answer_gains_nothing(workers: Workers) -> None:
    problem = make_problem(load("ring:4"), "broadcast")
    staged_search = staged(problem, Options(size=1 << 20), workers)
    staged_search.state.result.bound = prove(problem)
    for depth, size, gained in ((1.0, 1 << 20, 1.0), (1.0, 0, 0.0), (1.0, 1 << 20, 0.0)):
        answer = Candidate(problem, quick_schedule(problem, LARGEST, depth), f"route {size}", size)
        assert staged_search.take(answer, "route") == gained


def test_an_engine_that_is_asked_again_begins_elsewhere(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[tuple[str, int]] = []

    def solve(engine: EngineRow, problem: Problem, request: Request) -> Iterator[Outcome]:
        seeds.append((engine.name, request.options.seed))
        yield Candidate(problem, quick_schedule(problem, LARGEST, 1.0), engine.name)

    monkeypatch.setattr(EngineRow, "solve", solve)
    tuning = SearchPlan((Stage("route"), Stage("lns"), Stage("flow"), Stage("lns")), rest=False, windows=0)
    search(make_problem(load("ring:4"), "broadcast"), Options(seed=7), workers, plan=tuning)
    assert seeds == [("route", 7), ("lns", 7), ("flow", 7), ("lns", 8)]
