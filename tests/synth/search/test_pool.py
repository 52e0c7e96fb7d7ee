"""Algorithms compete with the times of programs; only candidates that could win are lowered."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from synth.baselines import baseline
from synth.bounds.prove import prove
from synth.engines.flow.tuning import SearchTuning
from synth.engines.request import Candidate, Options
from synth.model.deadline import check_deadline, now
from synth.model.numbers import parse_seconds
from synth.model.problem import LARGEST, SMALLEST, Problem, make_problem
from synth.search.budget import Budget
from synth.search.frontier import _ENDS, _losses, winners
from synth.search.offer import Execution, Offer
from synth.search.plans import SINGLE
from synth.search.pool import Pool
from synth.search.run.state import SearchState
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError
from topologies.load import load


@dataclass(frozen=True)
class Slower:
    """An execution that takes a fixed multiple of its schedule's time."""

    algorithm: Algorithm
    factor: float

    def time_us(self, size_bytes: float) -> float:
        return self.factor * self.algorithm.time_us(size_bytes)

    def serves(self, _size_bytes: float) -> bool:
        return True

    def unit_bytes(self, _size_bytes: float) -> int:
        return 1


@dataclass
class Executor:
    """An executor whose programs have a limited number of sends, and take a factor longer than their schedules.

    The factor depends on the engine.
    """

    most_sends: float = math.inf
    factors: dict[str, float] = field(default_factory=dict)
    rank_sends: int = 0
    first_s: float = 0.0
    send_s: float = 3e-5
    writing: float = 2.0
    lowered: list[str] = field(default_factory=list)
    never: tuple[str, ...] = ()

    def sends(self, algorithm: Algorithm) -> int:
        """Return the number of sends of an algorithm, which are all lowered."""
        return len(algorithm.schedule)

    def expected_us(self, algorithm: Algorithm, size_bytes: float) -> float:
        return algorithm.time_us(size_bytes)

    def can_improve(self, _algorithm: Algorithm, _size_bytes: float, _time_us: float) -> bool:
        return True

    def least_bytes(self, _problem: Problem) -> int:
        return 0

    def refusal(self, algorithm: Algorithm) -> str:
        return f"known to be no {algorithm.engine}" if algorithm.engine in self.never else ""

    def lower(self, algorithm: Algorithm, _until: float, _sizes: Sequence[int]) -> Slower:
        self.lowered.append(algorithm.engine)
        if len(algorithm.schedule) > self.most_sends:
            raise InputError("too many sends")
        return Slower(algorithm, self.factors.get(algorithm.engine, 1.0))

    def files(self, ranges: Sequence[Offer]) -> list[Offer]:
        return list(ranges)

    def complete(self, execution: Execution) -> None:
        pass


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
    executor.send_s = executor.send_s if send_s is None else send_s
    pool = Pool(executor, Budget(seconds))
    pool.searching = searching
    for algorithm in algorithms:
        pool.add(algorithm, LARGEST)
    return pool


def test_every_size_is_served_by_the_fastest_program(algorithms: list[Algorithm]) -> None:
    assert len(algorithms) > 1
    best = algorithms[0].engine
    for factor in (1.0, 1.5, 40.0):
        executor = Executor(factors={best: factor})
        pool = make_pool(executor, algorithms)
        ranges = pool.frontier()
        assert all(isinstance(served.execution, Slower) for served in ranges)
        for served in ranges:
            times = [executor.factors.get(a.engine, 1.0) * a.time_us(served.shown) for a in algorithms]
            assert served.time_us(served.shown) <= 1.021 * min(times)
        assert pool.best_us(LARGEST) == min(
            executor.factors.get(a.engine, 1.0) * a.time_us(LARGEST) for a in algorithms
        )
        assert len(executor.lowered) == len(set(executor.lowered))


def test_a_candidate_that_cannot_win_is_not_lowered(algorithms: list[Algorithm]) -> None:
    executor = Executor()
    pool = make_pool(executor, algorithms)
    assert pool.best(LARGEST) is not None
    assert executor.lowered == [algorithms[0].engine]


def test_an_algorithm_whose_program_is_expected_to_lose_is_not_lowered(algorithms: list[Algorithm]) -> None:
    slow = algorithms[0].engine

    class Expecting(Executor):
        def expected_us(self, algorithm: Algorithm, size_bytes: float) -> float:
            return algorithm.time_us(size_bytes) * (40.0 if algorithm.engine == slow else 1.0)

    for executor in (Executor(), Expecting()):
        pool = Pool(executor)
        pool.offers = [Offer(algorithm) for algorithm in algorithms]
        assert pool.frontier()
        assert (slow in executor.lowered) is (type(executor) is Executor)


def test_a_program_is_improved_if_that_is_quick_or_no_other_is_nearly_as_fast(algorithms: list[Algorithm]) -> None:
    fast = algorithms[0]
    rival = Algorithm(fast.problem, fast.schedule, "rival")
    for factor, improving_s, lowerings in ((1.01, 0.0, 2), (1.01, 100.0, 1), (1.03, 100.0, 2)):
        executor = Executor(factors={"rival": factor, fast.engine: 1.5})
        pool = Pool(executor, Budget(1000.0))
        pool._improving_s = improving_s
        for algorithm in (rival, fast):
            pool.add(algorithm, LARGEST)
        assert executor.lowered.count(fast.engine) == lowerings


def test_the_better_schedule_is_lowered_again_before_a_worse_one_is_lowered(algorithms: list[Algorithm]) -> None:
    better, worse = algorithms[0], algorithms[-1]
    assert better.time_us(LARGEST) < 0.95 * worse.time_us(LARGEST)
    executor = Executor(factors={better.engine: 4.0})
    pool = Pool(executor, Budget(1000.0))
    pool.searching = True
    pool.add(better, LARGEST)
    executor.lowered.clear()
    pool._improved.clear()
    executor.send_s = 1.0  # Now other programs wait for the end of the stages.
    pool.add(worse, LARGEST)
    assert executor.lowered == []
    pool.searching, executor.send_s = False, 3e-5
    pool.files(LARGEST)
    assert executor.lowered[:2] == [better.engine, worse.engine]


def test_chunks_too_small_for_an_executor_are_not_lowered_for_that_size(algorithms: list[Algorithm]) -> None:
    fine, size = algorithms[0], LARGEST // 2
    chunk = float(fine.problem.collective.fraction.max())
    coarse = next(algorithm for algorithm in algorithms if float(algorithm.problem.collective.fraction.max()) > chunk)
    assert fine.time_us(size) < coarse.time_us(size)
    for least_bytes, best in ((int(chunk * size), fine), (int(chunk * size) + 1, coarse)):
        executor = Executor()
        pool = Pool(executor, least_bytes=least_bytes)
        for algorithm in (coarse, fine):
            pool.add(algorithm, size)
        served = pool.best(size)
        assert served is not None
        assert served.algorithm is best
        assert executor.lowered[-1] == best.engine
        assert pool.best_us(2 * size) == fine.time_us(2 * size)  # At that size its chunks are large enough.


def test_an_algorithm_that_cuts_no_block_is_lowered_for_any_size(algorithms: list[Algorithm]) -> None:
    slow = next(algorithm for algorithm in reversed(algorithms) if algorithm.chunks > 1)
    fast = next(algorithm for algorithm in algorithms if algorithm.chunks == 1)
    size = next(1 << e for e in range(30, 0, -1) if fast.time_us(1 << e) < slow.time_us(1 << e))
    executor = Executor()
    pool = Pool(executor, least_bytes=LARGEST)
    pool.add(slow, size)  # It has a program when the other one comes.
    pool.add(fast, size)
    assert pool.best_us(size) == fast.time_us(size)
    assert executor.lowered == [slow.engine, fast.engine]


def test_refused_candidates_are_shown_only_where_all_are_refused(algorithms: list[Algorithm]) -> None:
    fewest = min(len(a.schedule) for a in algorithms)
    pool = make_pool(Executor(most_sends=fewest), algorithms)
    assert all(len(served.algorithm.schedule) == fewest for served in pool.frontier())
    assert all(offer.refused == "too many sends" for offer in pool.refused)
    nothing = make_pool(Executor(most_sends=0), algorithms)
    ranges = nothing.frontier()
    assert ranges
    assert all(served.refused for served in ranges)


def test_nothing_is_lowered_after_the_deadline(algorithms: list[Algorithm]) -> None:
    executor = Executor()
    pool = make_pool(executor, algorithms, seconds=-9)  # Longer ago than what a busy machine gets on top.
    ranges = pool.frontier()
    assert executor.lowered == []
    assert ranges
    assert all(served.refused.startswith("the budget ended") for served in ranges)


def test_a_lowering_that_takes_too_long_is_given_up(algorithms: list[Algorithm]) -> None:
    """Check that the other programs are tried while there is time, and that the reason names a sufficient budget."""

    class Endless(Executor):
        def lower(self, algorithm: Algorithm, _until: float, _sizes: Sequence[int]) -> Slower:
            while algorithm:
                check_deadline()
            raise AssertionError

    pool = make_pool(Endless(), algorithms[:2], seconds=0.2)
    assert not pool.lowering
    assert pool.offers == []
    budgets = [offer.refused.rpartition("try --budget ")[2] for offer in pool.refused]
    assert len(budgets) == 2
    assert all(parse_seconds(budget, "budget") > 0.2 for budget in budgets)


def test_a_long_lowering_waits_until_all_engines_were_asked(algorithms: list[Algorithm]) -> None:
    """Check that the first answer's program does not use up the time of the engines, and is lowered at the end."""

    @dataclass
    class Patient(Executor):
        racing: bool = True

        def lower(self, algorithm: Algorithm, _until: float, _sizes: Sequence[int]) -> Slower:
            while self.racing:
                check_deadline()
            return super().lower(algorithm, _until, _sizes)

    executor = Patient()
    pool = make_pool(executor, algorithms[:1], 1.5, searching=True)
    assert executor.lowered == []
    assert pool.best_us(LARGEST) == algorithms[0].time_us(LARGEST)
    assert pool.search_deadline() < pool.budget.deadline
    executor.racing = pool.searching = False
    executor.send_s = 0.0  # This holds on any slow machine.
    assert all(isinstance(served.execution, Slower) for served in pool.frontier())


def test_no_time_is_reserved_for_a_lowering_that_cannot_succeed(algorithms: list[Algorithm]) -> None:
    """Check that half of the budget is not taken from the engines for a file that will not exist."""
    algorithm = algorithms[0]
    sends = len(algorithm.schedule)
    for never, needs_s, is_reserved in (((algorithm.engine,), 2.0, False), ((), 2.0, True), ((), 6.0, False)):
        pool = make_pool(Executor(never=never), [algorithm], 10.0, searching=True, send_s=needs_s / 2 / sends)
        assert pool.executor is not None
        assert (pool.search_deadline() < pool.budget.deadline) is is_reserved
        assert [offer.refused for offer in pool.refused] == [f"known to be no {name}" for name in never]


def test_a_lowering_that_searches_is_given_its_time(algorithms: list[Algorithm]) -> None:
    """Check that a lowering that improves a program until its deadline runs, both while engines are asked and after."""

    class Thorough(Executor):
        def lower(self, algorithm: Algorithm, _until: float, _sizes: Sequence[int]) -> Slower:
            while now() < _until:
                sum(range(1000))
            return super().lower(algorithm, _until, _sizes)

    for searching in (True, False):
        executor = Thorough()
        pool = make_pool(executor, algorithms[:1], 1.0, searching, send_s=0.0)
        assert executor.lowered == [algorithms[0].engine]
        assert isinstance(pool.offers[0].execution, Slower)
        assert pool.budget.left_s > 0


def test_nothing_is_lowered_too_late_while_engines_are_asked(algorithms: list[Algorithm]) -> None:
    executor = Executor()
    pool = make_pool(executor, algorithms, -1, searching=True)
    assert executor.lowered == []
    assert pool.best_us(LARGEST) == algorithms[0].time_us(LARGEST)


def test_one_size_has_one_range(algorithms: list[Algorithm]) -> None:
    (served,) = make_pool(Executor(), algorithms).frontier(SMALLEST)
    assert (served.low, served.high, served.shown) == (SMALLEST, SMALLEST, SMALLEST)
    assert Pool().frontier() == []


def test_the_time_of_a_small_program_does_not_estimate_large_ones(
    algorithms: list[Algorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a second for a handful of sends is not taken as the rate at which thousands are lowered."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    class Slow(Executor):
        def lower(self, algorithm: Algorithm, _until: float, _sizes: Sequence[int]) -> Slower:
            clock[0] += 1.0
            return super().lower(algorithm, _until, _sizes)

    executor = Slow(first_s=1.0)
    make_pool(executor, algorithms[:1], seconds=100.0)
    assert len(algorithms[0].schedule) < 100
    assert executor.send_s <= 1e-3


def test_where_time_is_short_every_size_has_a_program_before_one_has_its_best(
    algorithms: list[Algorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the first lowering leaves time for the others; when the time is over, it is over for all."""
    clock, until_s = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    class Thorough(Executor):
        def lower(self, algorithm: Algorithm, until: float, sizes: Sequence[int]) -> Slower:
            until_s.append(until - now())
            clock[0] += max(until - now(), 0.0)
            return super().lower(algorithm, until, sizes)

    pool = Pool(Thorough(), Budget(10.0))
    pool.offers = [Offer(algorithm) for algorithm in algorithms]
    waiting = len({id(offer) for offer, _ in winners(pool.offers)})
    assert waiting > 1
    assert len(pool.frontier()) == waiting
    assert until_s[0] <= 10.0 / waiting
    assert len(until_s) == waiting
    late = Pool(Executor(), Budget(1.0))
    late.offers = [Offer(algorithm) for algorithm in algorithms]
    late.best(LARGEST)
    clock[0] += 2.0
    assert len(late.frontier()) == 1
    assert len(late.refused) == len(algorithms) - 1


@dataclass(frozen=True)
class InBand(Slower):
    """An execution that is fast only for one of three bands of message sizes: up to 1 MiB, 1 GiB, and larger ones."""

    band: int

    def time_us(self, size_bytes: float) -> float:
        return 1.0 if min(2, int(math.log2(size_bytes)) // 10 - 1) == self.band else 1e9


def test_a_file_that_takes_too_long_costs_no_other_file(
    algorithms: list[Algorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that small files are written first, and stay where the time ends while the largest is written."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    largest_first = sorted(algorithms, key=lambda algorithm: -len(algorithm.schedule))[:3]

    class Writing(Executor):
        def lower(self, algorithm: Algorithm, _until: float, _sizes: Sequence[int]) -> Slower:
            return InBand(algorithm, 1.0, largest_first.index(algorithm))

        def complete(self, execution: Execution) -> None:
            assert isinstance(execution, Slower)
            if execution.algorithm is largest_first[0]:
                clock[0] += 20.0
                check_deadline()

    pool = Pool(Writing(), Budget(10.0))
    pool.offers = [Offer(algorithm) for algorithm in largest_first]
    assert {offer.algorithm for offer in pool.files()} == set(largest_first[1:])
    assert [offer.algorithm for offer in pool.refused] == largest_first[:1]


def test_a_first_program_stays_where_its_file_is_not_complete_in_time(
    algorithms: list[Algorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the end of the time for a file costs no program, and that the file is completed later."""
    clock, seconds_of_files = [0.0], [9.0, 0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    class Writing(Executor):
        def complete(self, _execution: Execution) -> None:
            clock[0] += seconds_of_files.pop(0)
            check_deadline()

    pool = Pool(Writing(), Budget(40.0))
    pool.searching = True
    offer = pool.add(algorithms[0], LARGEST)
    assert offer.execution is not None
    assert seconds_of_files == [0.0]
    pool.searching = False
    assert [served.algorithm for served in pool.files()] == [algorithms[0]]
    assert not seconds_of_files


def test_a_program_is_made_for_the_sizes_that_its_schedule_wins(algorithms: list[Algorithm]) -> None:
    sizes_of: dict[Algorithm, list[int]] = {}

    class Asking(Executor):
        def lower(self, algorithm: Algorithm, until: float, sizes: Sequence[int]) -> Slower:
            sizes_of[algorithm] = list(sizes)
            return super().lower(algorithm, until, sizes)

    pool = Pool(Asking())
    pool.offers = [Offer(algorithm) for algorithm in algorithms]
    won = [(offer.algorithm, sizes) for offer, sizes in winners(pool.offers)]
    pool.frontier()
    assert won[0][1][0] == SMALLEST
    assert won[-1][1][-1] == LARGEST
    for algorithm, sizes in won:
        assert set(sizes) <= set(sizes_of[algorithm])
        for size in sizes:
            assert algorithm.time_us(size) <= 1.021 * min(algorithm.time_us(size) for algorithm in algorithms)


def test_the_algorithm_that_is_missed_least_is_left_out_first() -> None:
    """Check against the definition: how much slower sizes get without an algorithm."""
    random = np.random.default_rng(3)
    for _ in range(50):
        times = random.integers(1, 6, (int(random.integers(2, 6)), 5)) / 2.0
        times[random.random(times.shape) < 0.2] = np.inf
        expected = []
        for row in range(len(times)):
            rest_us = np.delete(times, row, axis=0).min(axis=0)
            lost = [r / own - 1 if own < r else 0.0 for own, r in zip(times[row], rest_us, strict=True)]
            expected.append(max(*lost, _ENDS * lost[0], _ENDS * lost[-1]))
        assert np.array_equal(_losses(times), expected)


def test_a_search_reports_the_best_algorithm_and_not_the_latest(algorithms: list[Algorithm]) -> None:
    problem, (better, worse) = algorithms[0].problem, (algorithms[0], algorithms[-1])
    reported: list[Algorithm | None] = []
    state = SearchState(problem, Options(), SINGLE, Workers(), lambda _, best: reported.append(best), None)
    state.say("nothing")
    for algorithm in (better, worse):
        state.take(algorithm, "toy")
        state.say("more")
    assert reported == [None, better, better]


def test_a_bound_is_raised_by_the_sends_of_the_best_algorithm(
    algorithms: list[Algorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    def close_enough(_: SearchTuning, sends: int) -> float:
        counted.append(sends)
        return math.inf

    counted: list[int] = []
    monkeypatch.setattr(SearchTuning, "close_enough", close_enough)
    problem, (better, worse) = algorithms[0].problem, (algorithms[0], algorithms[-1])
    state = SearchState(problem, Options(), SINGLE, Workers(), lambda *_: None, None)
    state.raise_bound(prove(problem))
    for algorithm in (better, worse):
        state.take(algorithm, "toy")
    state.tighten_bound()
    assert counted == [len(better.schedule)] != [len(worse.schedule)]


def test_a_program_stays_until_a_better_one_is_lowered(algorithms: list[Algorithm]) -> None:
    """Check that a lowered program stays, since a better schedule that is postponed may find no time later."""
    problem, (better, worse) = algorithms[0].problem, (algorithms[0], algorithms[-1])
    executor = Executor()
    state = SearchState(problem, Options(budget_s=10.0), SINGLE, Workers(), lambda _, __: None, executor)
    state.pool.searching = True
    for algorithm in (worse, better):
        state.take(Candidate(algorithm.problem, algorithm.schedule, "toy", LARGEST, supersedes=True), "toy")
        executor.send_s = 2.0 / len(better.schedule)  # This makes the other one wait.
    assert state.pool.best_us(LARGEST) == better.time_us(LARGEST)
    state.pool.searching, state.pool.budget = False, Budget(-1.0)
    (served,) = state.pool.frontier()
    assert isinstance(served.execution, Slower)
    assert served.time_us(LARGEST) == worse.time_us(LARGEST)


@pytest.mark.parametrize("left_s", [-20.0, -1.0, 5.0])
def test_a_budget_that_is_over_proposes_a_longer_one(left_s: float) -> None:
    """Check budgets of which 12 s are spent: what is proposed is more than these, and enough for what is needed."""
    budget = Budget.until(now() + left_s, spent_s=12.0)
    for needs_s in (0.1, 4.0, 60.0):
        enough_s = float(budget.enough_for(needs_s).removesuffix("s"))
        assert enough_s >= max(14.0, 2 * needs_s)


def test_a_patient_budget_hurries_at_the_end_of_its_patience(
    algorithms: list[Algorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a lowering without hurry is cut off at the end of the patience, and made again in haste."""
    clock, lowering_s = [0.0], [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    class Thorough(Executor):
        def lower(self, algorithm: Algorithm, until: float, sizes: Sequence[int]) -> Slower:
            if until == math.inf:
                clock[0] += lowering_s[0]
                check_deadline()
            return super().lower(algorithm, until, sizes)

    for lowering_s[0], is_hurried in ((0.1, False), (6.0, True)):
        clock[0] = 0.0
        pool = Pool(executor := Thorough(), Budget(10.0, patience=0.5))
        pool.offers = [Offer(algorithm) for algorithm in algorithms[:1]]
        assert [offer.execution is not None for offer in pool.files()] == [True]
        assert executor.lowered
        assert pool.is_hurried == is_hurried


def test_after_a_stop_no_program_is_made_or_improved(algorithms: list[Algorithm]) -> None:
    """Check that programs which more time would improve stay as they are, however much of the budget is left."""
    for stops in (False, True):
        executor = Executor(factors={algorithm.engine: 2.0 for algorithm in algorithms})
        pool = make_pool(executor, algorithms, seconds=1e6)
        pool._improved.clear()
        lowered = list(executor.lowered)
        if stops:
            pool.stop()
        assert all(offer.execution is not None for offer in pool.files())
        assert (executor.lowered == lowered) == stops
