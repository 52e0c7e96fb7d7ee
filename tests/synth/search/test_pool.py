"""Algorithms compete with the times of programs; only what could win is lowered."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from synth.baselines import baseline
from synth.engines.request import Candidate, Options
from synth.model.deadline import now
from synth.model.problem import LARGEST, SMALLEST, Problem, make_problem
from synth.search.budget import Budget
from synth.search.frontier import _ENDS, Contender, Range, _losses, winners
from synth.search.plans import SINGLE
from synth.search.pool import Pool
from synth.search.state import SearchState
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError
from topologies.load import load


@dataclass(frozen=True)
class Slower:
    """An execution that takes so many times its schedule."""

    algorithm: Algorithm
    factor: float

    def time_us(self, size_bytes: float) -> float:
        return self.factor * self.algorithm.time_us(size_bytes)

    def serves(self, _size_bytes: float) -> bool:
        return True


@dataclass
class Executor:
    """Holds programs of so many sends; each takes longer than its schedule by its factor, by engine."""

    most_sends: float = math.inf
    factors: dict[str, float] = field(default_factory=dict)
    rank_sends: int = 0
    first_s: float = 0.0
    lowered: list[str] = field(default_factory=list)
    never: tuple[str, ...] = ()

    def least_bytes(self, _problem: Problem) -> int:
        return 0

    def refusal(self, algorithm: Algorithm) -> str:
        return f"known to be no {algorithm.engine}" if algorithm.engine in self.never else ""

    def lower(self, algorithm: Algorithm, _until: float, _sizes: Sequence[int]) -> Slower:
        self.lowered.append(algorithm.engine)
        if len(algorithm.schedule) > self.most_sends:
            raise InputError("too many sends")
        return Slower(algorithm, self.factors.get(algorithm.engine, 1.0))

    def files(self, ranges: Sequence[Range]) -> list[Range]:
        return list(ranges)


@pytest.fixture(scope="module")
def algorithms() -> list[Algorithm]:
    problem = make_problem(load("ring:6"), "allgather")
    return sorted(baseline(problem), key=lambda algorithm: algorithm.time_us(LARGEST))


def make_pool(
    executor: Executor,
    algorithms: Sequence[Algorithm],
    seconds: float = math.inf,
    searching: bool = False,
    send_s: float | None = None,
) -> Pool:
    """Return a pool to which algorithms are added one by one."""
    pool = Pool(executor, Budget(seconds))
    pool.searching, pool.send_s = searching, pool.send_s if send_s is None else send_s
    for algorithm in algorithms:
        pool.add(algorithm, LARGEST)
    return pool


def test_every_size_is_served_by_the_fastest_program(algorithms: list[Algorithm]) -> None:
    assert len(algorithms) > 1
    best = algorithms[0].engine
    for factor in (1.0, 1.5, 40.0):
        executor = Executor(factors={best: factor})
        made = make_pool(executor, algorithms)
        ranges = made.frontier()
        assert all(isinstance(served.contender.execution, Slower) for served in ranges)
        for served in ranges:
            times = [executor.factors.get(a.engine, 1.0) * a.time_us(served.shown) for a in algorithms]
            assert served.time_us(served.shown) <= 1.021 * min(times)
        assert made.best_us(LARGEST) == min(
            executor.factors.get(a.engine, 1.0) * a.time_us(LARGEST) for a in algorithms
        )
        assert len(executor.lowered) == len(set(executor.lowered))


def test_what_cannot_win_is_not_lowered(algorithms: list[Algorithm]) -> None:
    executor = Executor()
    made = make_pool(executor, algorithms)
    assert made.best(LARGEST) is not None
    assert executor.lowered == [algorithms[0].engine]


def test_chunks_too_small_for_an_executor_are_not_lowered_for_that_size(algorithms: list[Algorithm]) -> None:
    fine, size = algorithms[0], LARGEST // 2
    chunk = float(fine.problem.collective.fraction.max())
    coarse = next(one for one in algorithms if float(one.problem.collective.fraction.max()) > chunk)
    assert fine.time_us(size) < coarse.time_us(size)
    for least_bytes, best in ((int(chunk * size), fine), (int(chunk * size) + 1, coarse)):
        executor = Executor()
        made = Pool(executor, least_bytes=least_bytes)
        for one in (coarse, fine):
            made.add(one, size)
        served = made.best(size)
        assert served is not None
        assert served.algorithm is best
        assert executor.lowered[-1] == best.engine
        assert made.best_us(2 * size) == fine.time_us(2 * size)  # there its chunks are large enough


def test_what_is_refused_is_shown_only_where_everything_is(algorithms: list[Algorithm]) -> None:
    fewest = min(len(a.schedule) for a in algorithms)
    made = make_pool(Executor(most_sends=fewest), algorithms)
    assert all(len(served.algorithm.schedule) == fewest for served in made.frontier())
    assert all(one.refused == "too many sends" for one in made.refused)
    nothing = make_pool(Executor(most_sends=0), algorithms)
    ranges = nothing.frontier()
    assert ranges
    assert all(served.contender.refused for served in ranges)


def test_nothing_is_lowered_after_the_deadline(algorithms: list[Algorithm]) -> None:
    executor = Executor()
    made = make_pool(executor, algorithms, seconds=-1)
    ranges = made.frontier()
    assert executor.lowered == []
    assert ranges
    assert all(served.contender.refused.startswith("no time was left") for served in ranges)


def test_what_is_lowered_too_long_is_given_up(algorithms: list[Algorithm]) -> None:
    """The other programs are tried as long as there is time; the reason names a budget that is enough."""

    class Endless(Executor):
        def lower(self, algorithm: Algorithm, _until: float, _sizes: Sequence[int]) -> Slower:
            while algorithm:
                sum(range(1000))
            raise AssertionError

    made = make_pool(Endless(), algorithms[:2], seconds=0.2)
    assert not made.lowering
    assert made.contenders == []
    budgets = [re.search(r"give --budget (\d+)s or more", one.refused) for one in made.refused]
    assert len(budgets) == 2
    assert all(found and int(found[1]) >= 1 for found in budgets)


def test_what_takes_long_waits_until_all_engines_were_asked(algorithms: list[Algorithm]) -> None:
    """The first answer's program must not use up the time of the engines; it is lowered in the end."""

    @dataclass
    class Patient(Executor):
        racing: bool = True

        def lower(self, algorithm: Algorithm, _until: float, _sizes: Sequence[int]) -> Slower:
            while self.racing:
                sum(range(1000))
            return super().lower(algorithm, _until, _sizes)

    executor = Patient()
    made = make_pool(executor, algorithms[:1], 1.5, searching=True)
    assert executor.lowered == []
    assert made.best_us(LARGEST) == algorithms[0].time_us(LARGEST)
    assert made.search_deadline() < made.budget.deadline
    executor.racing = made.searching = False
    made.send_s = 0.0  # however slow this machine is
    assert all(isinstance(served.contender.execution, Slower) for served in made.frontier())


def test_no_time_is_kept_for_what_cannot_be_lowered_or_not_in_time(algorithms: list[Algorithm]) -> None:
    """Else half of the budget is taken from the engines for a file that there will not be."""
    one = algorithms[0]
    sends = len(one.schedule)
    for never, needs_s, kept in (((one.engine,), 2.0, False), ((), 2.0, True), ((), 6.0, False)):
        made = make_pool(Executor(never=never), [one], 10.0, searching=True, send_s=needs_s / 2 / sends)
        assert made.executor is not None
        assert (made.search_deadline() < made.budget.deadline) is kept
        assert [each.refused for each in made.refused] == [f"known to be no {name}" for name in never]


def test_who_searches_for_long_is_given_its_time(algorithms: list[Algorithm]) -> None:
    """What would look for a better program until it is told to stop is lowered, while engines are asked and after."""

    class Thorough(Executor):
        def lower(self, algorithm: Algorithm, _until: float, _sizes: Sequence[int]) -> Slower:
            while now() < _until:
                sum(range(1000))
            return super().lower(algorithm, _until, _sizes)

    for searching in (True, False):
        executor = Thorough()
        made = make_pool(executor, algorithms[:1], 1.0, searching, send_s=0.0)
        assert executor.lowered == [algorithms[0].engine]
        assert isinstance(made.contenders[0].execution, Slower)
        assert made.budget.left_s > 0


def test_nothing_is_lowered_too_late_while_engines_are_asked(algorithms: list[Algorithm]) -> None:
    executor = Executor()
    made = make_pool(executor, algorithms, -1, searching=True)
    assert executor.lowered == []
    assert made.best_us(LARGEST) == algorithms[0].time_us(LARGEST)


def test_one_size_has_one_range(algorithms: list[Algorithm]) -> None:
    (served,) = make_pool(Executor(), algorithms).frontier(SMALLEST)
    assert (served.low, served.high, served.shown) == (SMALLEST, SMALLEST, SMALLEST)
    assert Pool().frontier() == []


def test_what_a_small_program_takes_says_little_of_large_ones(
    algorithms: list[Algorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second for a handful of sends is not the rate at which thousands are lowered."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    class Slow(Executor):
        def lower(self, algorithm: Algorithm, _until: float, _sizes: Sequence[int]) -> Slower:
            clock[0] += 1.0
            return super().lower(algorithm, _until, _sizes)

    made = make_pool(Slow(first_s=1.0), algorithms[:1], seconds=100.0)
    assert len(algorithms[0].schedule) < 100
    assert made.send_s <= 1e-3


def test_where_time_is_short_every_size_has_a_program_before_one_has_its_best(
    algorithms: list[Algorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is lowered first must leave time for the others; what is over, is over for all at once."""
    clock, until_s = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    class Thorough(Executor):
        def lower(self, algorithm: Algorithm, until: float, sizes: Sequence[int]) -> Slower:
            until_s.append(until - now())
            clock[0] += max(until - now(), 0.0)
            return super().lower(algorithm, until, sizes)

    made = Pool(Thorough(), Budget(10.0))
    made.contenders = [Contender(algorithm) for algorithm in algorithms]
    waiting = len({id(one) for one, _ in winners(made.contenders)})
    assert waiting > 1
    assert len(made.frontier()) == waiting
    assert until_s[0] <= 10.0 / waiting
    assert len(until_s) == waiting
    late = Pool(Executor(), Budget(1.0))
    late.contenders = [Contender(algorithm) for algorithm in algorithms]
    late.best(LARGEST)
    clock[0] += 2.0
    assert len(late.frontier()) == 1
    assert len(late.refused) == len(algorithms) - 1


def test_a_program_is_made_for_the_sizes_that_its_schedule_won(algorithms: list[Algorithm]) -> None:
    asked: dict[Algorithm, list[int]] = {}

    class Asking(Executor):
        def lower(self, algorithm: Algorithm, until: float, sizes: Sequence[int]) -> Slower:
            asked[algorithm] = list(sizes)
            return super().lower(algorithm, until, sizes)

    made = Pool(Asking())
    made.contenders = [Contender(algorithm) for algorithm in algorithms]
    won = [(one.algorithm, sizes) for one, sizes in winners(made.contenders)]
    made.frontier()
    assert won[0][1][0] == SMALLEST
    assert won[-1][1][-1] == LARGEST
    for algorithm, sizes in won:
        assert set(sizes) <= set(asked[algorithm])
        for size in sizes:
            assert algorithm.time_us(size) <= 1.021 * min(one.time_us(size) for one in algorithms)


def test_whoever_is_missed_least_is_left_out_first() -> None:
    """Against the definition: by how much sizes get slower without an algorithm."""
    random = np.random.default_rng(3)
    for _ in range(50):
        times = random.integers(1, 6, (int(random.integers(2, 6)), 5)) / 2.0
        times[random.random(times.shape) < 0.2] = np.inf
        expected = []
        for row in range(len(times)):
            rest = np.delete(times, row, axis=0).min(axis=0)
            lost = [r / own - 1 if own < r else 0.0 for own, r in zip(times[row], rest, strict=True)]
            expected.append(max(*lost, _ENDS * lost[0], _ENDS * lost[-1]))
        assert np.array_equal(_losses(times), expected)


def test_what_is_lowered_stays_until_what_is_better_is(algorithms: list[Algorithm]) -> None:
    """An engine's better schedule that is left for later may find no time then."""
    problem, (better, worse) = algorithms[0].problem, (algorithms[0], algorithms[-1])
    state = SearchState(problem, Options(budget_s=10.0), SINGLE, Workers(), lambda _, __: None, Executor())
    state.pool.searching = True
    for algorithm in (worse, better):
        state.take(Candidate(algorithm.problem, algorithm.schedule, "toy", LARGEST, supersedes=True), "toy")
        state.pool.send_s = 2.0 / len(better.schedule)  # so that the other is to wait
    assert state.pool.best_us(LARGEST) == better.time_us(LARGEST)
    state.pool.searching, state.pool.budget = False, Budget(-1.0)
    (served,) = state.pool.frontier()
    assert isinstance(served.contender.execution, Slower)
    assert served.time_us(LARGEST) == worse.time_us(LARGEST)
