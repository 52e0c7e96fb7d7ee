"""There is a program as soon as there is an algorithm, whatever the clock and the executor do afterwards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from synth.baselines import baseline
from synth.engines.request import Candidate, Options
from synth.model.deadline import TimeUp, now
from synth.model.problem import LARGEST, make_problem
from synth.search.budget import Budget, Overtime
from synth.search.lowering_order import MUCH_FASTER
from synth.search.offer import Offer
from synth.search.plans import SINGLE, ProgramScope, Stage
from synth.search.pool import Pool
from synth.search.run.protocols import search_protocols
from synth.search.run.state import SearchState
from synth.search.search import _unlike, search
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from tests.synth.search.test_pool import Executor, Slower
from topologies.errors import InputError
from topologies.load import apply_costs, load

SECONDS = 100.0


class Clocked(Executor):
    """An executor whose lowering takes a fixed time for each send by a clock that nothing else moves."""

    clock: list[float]

    def lower(self, algorithm: Algorithm, until: float, sizes: Sequence[int]) -> Slower:
        self.clock[0] += self.first_s
        self.first_s = self.send_s * len(algorithm.schedule)
        self.clock[0] += self.first_s
        return super().lower(algorithm, until, sizes)

    def able(self, protocols: Sequence[str]) -> list[str]:
        return list(protocols)


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Clocked:
    """Return an executor that lowers ten sends in a second, with an imagined clock."""
    made = Clocked(send_s=0.1, writing=1.0)
    made.clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: made.clock[0])
    return made


def by_sends() -> list[Algorithm]:
    """Return rings of a broadcast on a mesh, by their number of sends; those with more sends are faster."""
    rings = [a for a in baseline(make_problem(load("mesh:4x4"), "broadcast")) if "rings" in a.engine]
    named = [Algorithm(a.problem, a.schedule, f"{a.chunks} chunks") for a in rings]
    algorithms = sorted(named, key=lambda algorithm: len(algorithm.schedule))
    times_us = [algorithm.time_us(LARGEST) for algorithm in algorithms]
    assert len(times_us) == 4
    assert times_us == sorted(times_us, reverse=True)
    return algorithms


def best_after(pool: Pool) -> Offer:
    """Return the best offer once the time is over."""
    pool.searching, pool.budget = False, Budget(-1.0)
    offer = pool.best(LARGEST)
    assert offer is not None
    return offer


def test_the_first_algorithm_has_a_program_though_a_better_one_waits(executor: Clocked) -> None:
    """Check that a fast algorithm of many sends does not leave the search without a file."""
    small, *_, large = by_sends()
    executor.send_s = 0.02 * SECONDS / len(small.schedule)
    pool = Pool(executor, Budget(SECONDS))
    pool.searching = True
    for algorithm in (small, large):
        pool.add(algorithm, LARGEST)
    assert executor.lowered == [small.engine]
    assert best_after(pool).algorithm is small


def test_the_smallest_is_lowered_first_once_a_large_one_waits(executor: Clocked) -> None:
    """Check the other order: what takes long waits, and the next algorithm gets the program."""
    small, *_, large = by_sends()
    executor.send_s = 0.02 * SECONDS / len(small.schedule)
    pool = Pool(executor, Budget(SECONDS))
    pool.searching = True
    pool.add(large, LARGEST)
    assert executor.lowered == []
    pool.add(small, LARGEST)
    assert executor.lowered == [small.engine]
    assert pool.best_us(LARGEST) == large.time_us(LARGEST)  # The engines are compared with the best schedule.


def test_a_first_program_that_takes_long_waits_for_a_part_of_the_budget(executor: Clocked) -> None:
    """Check that engines are asked first, and that then it is that of an algorithm of few sends."""
    _, _, small, large = by_sends()
    executor.send_s = 0.1 * SECONDS / len(small.schedule)
    pool = Pool(executor, Budget(SECONDS))
    pool.searching = True
    pool.add(small, LARGEST)
    assert executor.lowered == []
    executor.clock[0] += 0.2 * SECONDS
    pool.add(large, LARGEST)
    assert executor.lowered == [small.engine]


def test_the_caller_may_make_all_programs(executor: Clocked) -> None:
    executor.send_s = 1e-6
    pool = Pool(executor, Budget(SECONDS))
    pool.searching, pool.programs = True, ProgramScope.NONE
    for algorithm in by_sends():
        pool.add(algorithm, LARGEST)
    assert executor.lowered == []
    assert pool.best_us(LARGEST) == min(algorithm.time_us(LARGEST) for algorithm in by_sends())


@pytest.mark.parametrize("programs", [ProgramScope.FIRST, ProgramScope.ALL])
@pytest.mark.parametrize(("over_urgent", "is_lowered"), [(1.01, True), (0.99, False)])
def test_only_an_urgent_program_is_made_where_another_one_would_wait(
    executor: Clocked, programs: ProgramScope, over_urgent: float, is_lowered: bool
) -> None:
    """Check that a search does not depend on its end where all programs so far are much slower than a schedule."""
    small, *_, large = by_sends()
    executor.send_s = 0.2 * SECONDS / len(large.schedule)  # Others get a tenth of the budget.
    pool = Pool(executor, Budget(SECONDS))
    pool.searching, pool.programs = True, programs
    factor = over_urgent * large.time_us(LARGEST) / MUCH_FASTER / small.time_us(LARGEST)
    pool.offers = [Offer(small, Slower(small, factor))]
    executor.clock[0] += 0.5 * SECONDS
    pool.add(large, LARGEST)
    assert executor.lowered == ([large.engine] if is_lowered else [])
    assert pool.best_us(LARGEST) == large.time_us(LARGEST)


def test_no_clock_decides_about_an_urgent_program_in_a_patient_budget(executor: Clocked) -> None:
    small, *_, large = by_sends()
    executor.send_s = 0.4 * SECONDS / len(large.schedule)  # A hurried search would wait for its end.
    pool = Pool(executor, Budget(SECONDS, patience=0.9))
    pool.searching = True
    pool.offers = [Offer(small, Slower(small, 1.0))]
    pool.add(large, LARGEST)
    assert executor.lowered == [large.engine]


def test_lowering_takes_no_more_than_its_share_of_the_time_so_far(executor: Clocked) -> None:
    """Check that many small programs do not use up the time of the engines."""
    small = by_sends()[0]
    executor.send_s = 0.02 * SECONDS / len(small.schedule)
    pool = Pool(executor, Budget(SECONDS))
    pool.searching = True
    begun = now()
    for number in range(20):
        pool.add(Algorithm(small.problem, small.schedule, f"number {number}"), LARGEST)
        pool.offers[-1] = replace(pool.offers[-1], execution=None)  # As if it were a new one.
        pool.best(LARGEST)
    assert 0 < now() - begun <= 0.12 * SECONDS


def test_a_refused_best_algorithm_leaves_the_file_of_another(executor: Clocked) -> None:
    small, *_, large = by_sends()
    executor.send_s = 1e-6
    for limits in ({"most_sends": len(small.schedule)}, {"never": (large.engine,)}):
        limited = Executor(**limits)  # type: ignore[arg-type]
        pool = Pool(limited, Budget(SECONDS))
        pool.searching = True
        for algorithm in (large, small):
            pool.add(algorithm, LARGEST)
        pool.searching = False
        (served,) = pool.files(LARGEST)
        assert served.algorithm is small
        assert isinstance(served.execution, Slower)
        assert [offer.algorithm for offer in pool.refused] == [large]
        assert pool.refused[0].refused


def test_a_coarser_algorithm_stays_while_the_finer_one_has_no_program() -> None:
    """Check that an engine's finer chunks, which are refused or come too late, do not drop its coarser ones."""
    few, many = by_sends()[1:3]
    executor = Executor(send_s=1.0)  # All waits.
    state = SearchState(few.problem, Options(budget_s=SECONDS), SINGLE, Workers(), lambda _, __: None, executor)
    state.pool.searching = True
    for algorithm in (few, many):
        state.take(Candidate(algorithm.problem, algorithm.schedule, "toy", LARGEST, supersedes=True), "toy")
    assert executor.lowered == []
    assert {len(offer.algorithm.schedule) for offer in state.pool.offers} == {len(few.schedule), len(many.schedule)}
    executor.send_s, executor.most_sends, state.pool.searching = 0.0, len(few.schedule), False
    (served,) = state.pool.files(LARGEST)
    assert len(served.algorithm.schedule) == len(few.schedule)
    assert isinstance(served.execution, Slower)


@pytest.mark.parametrize("slowness", [1.0, 1.5])
def test_a_quicker_program_comes_before_one_that_may_be_too_late(executor: Clocked, slowness: float) -> None:
    """Check that the last lowering, which fails, leaves a file that is better than the first.

    A slow program is not improved before that: its time is kept for the faster schedule.
    """
    first, middle, _, best = (Offer(algorithm) for algorithm in by_sends())
    executor.send_s = 0.0
    executor.factors = {middle.algorithm.engine: slowness}
    pool = Pool(executor, Budget(SECONDS))
    pool.offers = [Offer(first.algorithm, Slower(first.algorithm, 1.0)), middle, best]
    needs_s = {best.algorithm: 0.9 * SECONDS, middle.algorithm: 0.2 * SECONDS}
    pool.pace.needs_s = lambda algorithm: needs_s[algorithm]  # type: ignore[method-assign]
    assert pool.best_us(LARGEST) == best.time_us(LARGEST)
    assert executor.lowered == [middle.algorithm.engine, best.algorithm.engine]


@pytest.mark.parametrize(("spare_s", "is_lowered"), [(-0.5, False), (1.0, True)])
def test_time_to_write_the_fastest_program_is_kept(executor: Clocked, spare_s: float, is_lowered: bool) -> None:
    """Check that an algorithm is not lowered if the large file of the fastest program would then come too late."""
    small, *_, large = by_sends()
    executor.writing = 2.0
    pool = Pool(executor, Budget(SECONDS))
    factor = 1.05 * small.time_us(LARGEST) / large.time_us(LARGEST)
    pool.offers = [Offer(large, Slower(large, factor)), Offer(small)]
    kept_s = pool.pace.surely_written_s(large) + executor.send_s * len(small.schedule)
    assert kept_s > pool.pace.needs_s(small) + 1.0
    executor.clock[0] += pool.budget.writing_deadline - kept_s - spare_s - now()
    assert executor.lowered == []
    best = pool.best(LARGEST)
    assert best is not None
    assert best.algorithm is (small if is_lowered else large)
    assert executor.lowered == ([small.engine] if is_lowered else [])


@pytest.mark.parametrize("fault", [InputError("refused"), TimeUp()])
def test_the_first_program_stays_if_no_better_one_is_found(fault: Exception) -> None:
    """Check that what fails while a program is improved does not cost the program."""
    asked_until = []

    class Failing(Executor):
        def lower(self, algorithm: Algorithm, until: float, sizes: Sequence[int]) -> Slower:
            asked_until.append(until)
            if until > now():
                raise fault
            return super().lower(algorithm, until, sizes)

    algorithm = by_sends()[0]
    pool = Pool(Failing(factors={algorithm.engine: 2.0}), Budget(SECONDS))
    pool.add(algorithm, LARGEST)
    (served,) = pool.files(LARGEST)
    assert isinstance(served.execution, Slower)
    assert len(asked_until) > 1
    assert asked_until[1] > asked_until[0]


def test_a_schedule_that_several_engines_found_is_offered_once_to_be_lowered() -> None:
    algorithm, other = by_sends()[:2]
    same = Algorithm(algorithm.problem, algorithm.schedule, "another engine")
    lowered = Offer(same, Slower(same, 1.0))
    kept = _unlike([Offer(algorithm), Offer(other), Offer(same)], None)
    assert [offer.algorithm for offer in kept] == [algorithm, other]
    kept = _unlike([Offer(algorithm), Offer(other), lowered], LARGEST)
    assert [offer.algorithm for offer in kept] == [same, other]


def test_a_search_with_costs_makes_a_first_program_before_the_last_protocol_is_searched() -> None:
    """Check that the file does not wait for the end of all searches, and that its program is kept in the answer."""
    problem = make_problem(apply_costs(load("dgx-h100"), "machine"), "allreduce")
    order: list[str] = []

    class Noting(Clocked):
        def lower(self, algorithm: Algorithm, until: float, sizes: Sequence[int]) -> Slower:
            order.append("lowered")
            return Executor.lower(self, algorithm, until, sizes)

    def report(text: str, _: object) -> None:
        order.append(text)

    executor = Noting(send_s=1e-6)
    plan = SINGLE.__class__(stages=(Stage("baseline", always=True),), rest=False, windows=0.0)
    result = search(problem, Options(budget_s=20.0), Workers(()), report, plan, executor)
    assert len([text for text in order if text == "bounds"]) > 1
    last_protocol = len(order) - order[::-1].index("bounds")
    assert "lowered" in order[:last_protocol]
    assert all(isinstance(served.execution, Slower) for served in result.ranges)


def test_no_protocol_is_begun_in_the_time_for_programs(executor: Clocked) -> None:
    plan = SINGLE.protocols

    class Ended:
        stop_reason = ""

    def searched(_: str, __: float) -> Ended:
        executor.clock[0] += SECONDS / 2
        return Ended()

    for reserved_s, names in ((0.0, ["a", "b"]), (0.4 * SECONDS, ["a", "b"]), (0.6 * SECONDS, ["a"])):
        results: dict[str, Ended] = {}
        search_protocols(["a", "b"], results, searched, Budget(SECONDS), plan, reserved_s=partial(float, reserved_s))
        assert list(results) == names


def test_an_answer_without_any_program_says_why(executor: Clocked) -> None:
    """Check that a question whose algorithms are all refused names the reason."""
    pool = Pool(Executor(most_sends=0), Budget(SECONDS))
    for algorithm in by_sends():
        pool.add(algorithm, LARGEST)
    (served,) = pool.files(LARGEST)
    assert served.refused == "too many sends"
    with pytest.raises(InputError):
        Executor(most_sends=0).lower(by_sends()[0], executor.clock[0], ())


def test_other_load_takes_no_time_from_a_first_program() -> None:
    """Check that work after the budget is counted in processor time, and that it ends all the same."""
    work_s = 0.02
    overtime, deadline = Overtime(work_s), now() - 1e-3
    assert overtime.end(deadline) > now()
    time.sleep(2 * work_s)  # As if another process had the processor.
    assert overtime.end(deadline) > now()
    begun = time.thread_time()
    while time.thread_time() < begun + 1.5 * work_s:
        pass
    assert overtime.end(deadline) < now()
    assert Overtime(work_s).end(now() - 1e3) < now()
