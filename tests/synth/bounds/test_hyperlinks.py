"""Bounds where switches multicast and reduce: none exceeds a reached time, by exhaustion of small cases and by hand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from synth.bounds.check import check
from synth.bounds.prove import Bound, prove
from synth.bounds.registry import BOUND_KINDS
from synth.model.problem import Problem, make_problem
from synth.model.schedule import Schedule, untimed
from synth.solvers.workers import Workers
from synth.timing.simulate import predict_us, resource_loads_us, time_us, timed
from synth.verify.replay import replay
from tests.synth.bounds.test_windows import refuted
from tests.synth.timing.test_hyperlinks import by_switch, hyperlink, node
from topologies.costed import with_costs
from topologies.costs import Costs, Protocol, SwitchCosts
from topologies.errors import BadWitness, ScheduleError, ScheduleRefused
from topologies.topology import SwitchOps, Topology

ROUND_OFF = 1 + 1e-9
SIZES = (1.0, 3e4, 1e8)


def star(rng: random.Random, ranks: int = 3) -> Topology:
    """Return ranks on a switch, with ports of different bandwidths and α, and some pairs with a direct link."""
    pairs = [(r, ranks) for r in range(ranks)] + [(ranks, r) for r in range(ranks)]
    pairs += [(a, b) for a in range(ranks) for b in range(ranks) if a != b and rng.random() < 0.3]
    figures = [(rng.choice([10.0, 20.0, 40.0]), rng.choice([0.0, 0.5, 2.0])) for _ in pairs]
    parts = rng.choice([0.5, 1.0, 1.0]), rng.choice([0.5, 1.0, 1.0])
    columns = np.array(pairs), np.array(figures)
    return Topology(
        "star", ranks, ("w",), columns[0][:, 0], columns[0][:, 1], columns[1][:, 1], columns[1][:, 0],
        switch_ops=(SwitchOps("w", *parts),),
    )  # fmt: skip


def wasteful(topology: Topology, efficiency: float) -> Topology:
    """Return the topology under a protocol whose switch operations hold ports longer than their bytes take."""
    costs = Costs({"Simple": Protocol(switch_ops=SwitchCosts(0.5, efficiency))})
    return replace(with_costs(topology, costs), protocol="Simple")


def every_schedule(problem: Problem, most: int) -> Iterator[Schedule]:
    """Yield all sequences of up to `most` sends of one chunk, over any link or hyperlink, that solve the problem.

    What ranks hold is counted here, by contribution: every send has its own step, so that its place determines what it
    carries.
    """
    net, collective = problem.network, problem.collective
    ptr, src, dst = (column.tolist() for column in net.pairs)
    forth = [True] * net.nlinks + ([] if net.hyperlinks is None else net.hyperlinks.multicast.tolist())
    sums = bool(collective.reduces[0])
    holders = set(collective.holders[1].tolist())
    goals = collective.goals[1].tolist()
    whole = tuple(int(r in holders) for r in range(net.nranks)) if sums else (1,)
    nothing = (0,) * len(whole)
    first = tuple(
        (tuple(int(r == q) for q in range(net.nranks)) if sums else (1,)) if r in holders else nothing
        for r in range(net.nranks)
    )

    def after(
        contributions: tuple[tuple[int, ...], ...], carrier: int, adds: bool
    ) -> tuple[tuple[int, ...], ...] | None:
        now = list(contributions)
        for j in range(ptr[carrier], ptr[carrier + 1]):
            if not any(contributions[src[j]]):
                return None
            base = now[dst[j]] if adds else nothing
            now[dst[j]] = tuple(a + b for a, b in zip(base, contributions[src[j]], strict=True))
        return None if tuple(now) == contributions or max(map(max, now)) > 1 else tuple(now)

    def grow(contributions: tuple[tuple[int, ...], ...], rows: list[tuple[int, bool]]) -> Iterator[Schedule]:
        if all(contributions[g] == whole for g in goals):
            links, adds = (np.array(column) for column in zip(*rows, strict=True))
            yield untimed(np.zeros(len(rows), dtype=np.int64), links, np.arange(len(rows)), adds)
            return
        if len(rows) == most:
            return
        for carrier in range(net.ncarriers):
            for adds in [True, False] if sums and carrier < net.nlinks else [not forth[carrier]]:
                if adds and not sums:
                    continue
                then = after(contributions, carrier, adds)
                if then is not None:
                    yield from grow(then, [*rows, (carrier, adds)])

    yield from grow(first, [])


def times(problem: Problem, bound: Bound, most: int) -> tuple[float, int]:
    """Return the least time / bound over all schedules and sizes, and the number of schedules."""
    least, count = np.inf, 0
    for schedule in every_schedule(problem, most):
        count += 1
        for size in SIZES:
            limit = bound.at(size)[0]
            if limit > 0:
                least = min(least, predict_us(problem, schedule, size) / limit)
    return least, count


@pytest.mark.parametrize("name", ["broadcast", "reduce", "allreduce"])
@pytest.mark.parametrize(("seed", "efficiency"), [(0, 1.0), (1, 1.0), (2, 1.0), (2, 0.6)])
def test_no_schedule_of_a_small_star_beats_the_bound(name: str, seed: int, efficiency: float) -> None:
    topology = star(random.Random(seed))
    problem = make_problem(topology if efficiency == 1 else wasteful(topology, efficiency), name)
    least, count = times(problem, prove(problem), 2)
    assert count > 0
    assert least >= 1 / ROUND_OFF


@pytest.mark.parametrize("name", ["broadcast", "reduce", "allreduce"])
@pytest.mark.parametrize("seed", [2])
def test_windows_of_time_refute_no_schedule_of_a_small_star(seed: int, name: str, workers: Workers) -> None:
    problem, size = make_problem(star(random.Random(seed)), name), 3e4
    best_us = min(predict_us(problem, schedule, size) for schedule in every_schedule(problem, 2))
    assert refuted(problem, size, best_us, workers).at(size)[0] <= best_us * ROUND_OFF


def test_windows_of_time_count_the_reductions_of_a_switch(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a search that ignores reductions in the switch is refused, since it would exceed a reached time."""
    monkeypatch.delitem(BOUND_KINDS, "contributions")
    problem = make_problem(node(), "reduce", range(4))
    forwarding = replace(problem, network=replace(problem.network, hyperlinks=None))
    best_us = min(predict_us(problem, schedule, 4e5) for schedule in every_schedule(problem, 1))
    assert refuted(problem, 4e5, best_us, workers).at(4e5)[0] <= best_us * ROUND_OFF
    limit_us, plain = refuted(forwarding, 4e5, 3.0, workers).at(4e5)
    assert plain.kind == "window"
    assert limit_us > best_us
    with pytest.raises(BadWitness, match="claims"):
        check(problem, plain)


def test_exhaustion_finds_a_bound_that_forgets_the_switch() -> None:
    problem = make_problem(node(), "broadcast", range(4))
    plain = prove(replace(problem, network=replace(problem.network, hyperlinks=None)))
    assert times(problem, plain, 1)[0] < 1


def test_exhaustion_counts_as_the_replay_does() -> None:
    problem = make_problem(star(random.Random(2)), "allreduce")
    for schedule in every_schedule(problem, 2):
        try:
            replay(problem, timed(problem, schedule, 1e4))
        except (ScheduleError, ScheduleRefused) as error:
            pytest.fail(str(error))


@pytest.mark.parametrize(("ranks", "part"), [(8, 1.0), (5, 1.0), (8, 0.5)])
def test_an_all_reduce_over_one_switch_needs_a_share_more_than_a_buffer(ranks: int, part: float) -> None:
    problem = make_problem(node(part, part), "allreduce", range(ranks))
    bound = prove(problem)
    least = min(2 * (ranks - 1) / ranks, (1 + 1 / ranks) if part == 1 else 4 / 3) / 450e3
    assert bound.per_byte_us == pytest.approx(least, rel=1e-9)
    cut = problem.with_chunks(ranks)
    assert bound.at(1 << 30)[0] * ROUND_OFF <= predict_us(cut, by_switch(cut), 1 << 30)


@pytest.mark.parametrize("efficiency", [0.85, 0.5])
def test_port_time_wasted_by_switch_operations_is_unavailable(efficiency: float) -> None:
    problem = make_problem(wasteful(node(), efficiency), "allreduce")
    least = min(2 * 7 / 8, 9 / 8 / efficiency) / 450e3
    assert prove(problem).per_byte_us == pytest.approx(least, rel=1e-9)
    cut, size = problem.with_chunks(8), 1 << 30
    schedule = timed(cut, by_switch(cut), size)
    replay(cut, schedule)
    assert resource_loads_us(cut, schedule) == pytest.approx(9 / 8 / efficiency / 450e3 * size, rel=1e-9)
    assert prove(problem).at(size)[0] <= time_us(cut, schedule)
    # Beside a reduction at the full rate, which crosses all ports up, a link has to wait for its port.
    hyperlink_and_link = np.array([hyperlink(cut.network, 0, multicast=False), 0])
    rows = untimed(np.zeros(2, dtype=np.int64), hyperlink_and_link, np.zeros(2, dtype=np.int64), np.array([True, True]))
    late = timed(cut, rows, size)
    assert late.start_us[1] >= late.end_us[0]
    at_once = replace(late, start_us=late.start_us * 0, end_us=late.end_us - late.start_us)
    with pytest.raises(ScheduleRefused, match="can carry 450"):
        replay(cut, at_once)


@pytest.mark.parametrize("name", ["allgather", "reducescatter", "broadcast", "reduce", "alltoall"])
def test_every_rank_still_sends_and_receives(name: str) -> None:
    bounds = [prove(make_problem(node(*parts), name)).per_byte_us for parts in ((1.0, 1.0), (0.0, 0.0))]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-9)


def test_a_proof_that_forgets_the_switch_is_refused() -> None:
    problem = make_problem(node(), "allreduce")
    plain = prove(replace(problem, network=replace(problem.network, hyperlinks=None)))
    best = max(plain.witnesses, key=lambda w: w.per_byte_us)
    with pytest.raises(BadWitness, match="claims"):
        check(problem, best)
