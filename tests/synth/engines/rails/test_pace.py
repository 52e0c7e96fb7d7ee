"""The pace of sends over rails: right in any number of pieces, faster in more of them, and limited by the time left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synth.bounds.prove import prove
from synth.engines.rails.doors import find_doors
from synth.engines.rails.pace import _EARLY, SlotPace, _slot_times, paced
from synth.engines.rails.plan import spread
from synth.engines.rails.search import NAME, _counts, _owner_choices
from synth.engines.rails.tuning import TUNING
from synth.engines.request import Options, Request
from synth.model.deadline import now
from synth.model.problem import Problem, make_problem
from synth.search.plans import Stage
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from tests.synth.engines.knowledge import BestTimes
from tests.topologies.importers.simulators import rails
from tests.topologies.importers.test_importers import read
from topologies.errors import ScheduleRefused
from topologies.faults.apply import apply_faults
from topologies.load import load

SIZE = 1 << 26
SERVERS, GPUS = 12, 4


def _problem(fault: str, collective: str = "allreduce") -> Problem:
    """Return a collective on a fabric whose GPU 5 has a slow or a dead port, or is lost."""
    fabric = read(rails(SERVERS, GPUS, segment=SERVERS, spines=8)).topology
    part = f"link:5-switch{SERVERS * GPUS + SERVERS + 1}.x2"
    fabric = apply_faults(fabric, [part] if fault == "dead" else [], [f"{part}=50%"] if fault == "slow" else [])
    group = [rank for rank in range(SERVERS * GPUS) if rank != 5] if fault == "lost" else None
    return make_problem(fabric, collective, group=group)


def _in_pieces(problem: Problem, pieces: int) -> Algorithm:
    """Return the all-reduce in so many pieces, replayed, whose sums come together in the nodes with most bandwidth."""
    doors = find_doors(problem)
    owners = _owner_choices(doors)[0]
    whole = problem.with_chunks(pieces * len(owners))
    return Algorithm(whole, paced(whole, doors, spread(doors, owners), pieces, SIZE), NAME)


@pytest.mark.parametrize("fault", ["slow", "dead", "lost"])
def test_phases_of_pieces_overlap(fault: str) -> None:
    """Check that more pieces gain: in one piece all nodes wait for the slow one in both phases."""
    problem = _problem(fault)
    one_us, few_us, many_us = (_in_pieces(problem, pieces).time_us(SIZE) for pieces in (1, 3, 8))
    assert many_us < few_us < one_us
    slowness = find_doors(problem).slowness
    assert many_us < one_us / (1 + 0.4 * (slowness - 1))


def test_in_one_piece_all_wait_for_the_slowest_node_and_in_turn_they_do_not() -> None:
    pace = SlotPace(slot_us=1.0, slowness=1.5, latency_us=2.0)
    sums_us, copies_us = _slot_times(4, 3, pace)
    assert (np.diff(sums_us)[: 4 + _EARLY] == 1.5).all()
    assert (np.diff(copies_us)[-3:] == 1.5).all()
    # Between them the two kinds of slots are in turn, and each slot lasts as long as for the fastest node.
    in_turn_us = copies_us[1:9] - sums_us[4 + _EARLY + 1 : 4 + _EARLY + 9]
    assert in_turn_us.tolist() == [3.0, 1.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0]
    assert np.diff(copies_us)[1:4].tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("group", [[0, 1, 2, 8, 9, 17], [*range(7), *range(8, 24)], [0, 1, 8, 9, 10, 16, 17, 18]])
def test_any_shares_of_the_nodes_are_right(group: list[int]) -> None:
    problem = make_problem(load("dgx-h100:3"), "allreduce", group=group)
    for pieces in (1, 2, 5):
        assert _in_pieces(problem, pieces).time_us(SIZE) < np.inf


def test_sums_in_the_order_of_copies_are_refused() -> None:
    """Plant a wrong order: the check of schedules finds sums that leave before they are complete."""
    algorithm = _in_pieces(_problem("dead"), 2)
    backwards = algorithm.schedule.take(np.arange(len(algorithm.schedule))[::-1])
    with pytest.raises(ScheduleRefused):
        Algorithm(algorithm.problem, backwards, NAME)


def test_many_sends_are_planned_in_as_many_pieces_as_time_allows(workers: Workers) -> None:
    problem = _problem("dead")
    doors = find_doors(problem)
    owners = _owner_choices(doors)[0]
    request = Request(Options(size=SIZE), (SIZE,), np.inf, workers, BestTimes(), prove(problem, max_flow=False))
    assert tuple(_counts(problem, doors, owners, request, TUNING)) == TUNING.parts
    many = replace(TUNING, most_listed=1000)
    first, pieces = _counts(problem, doors, owners, request, many)
    assert first == 1
    assert (doors.slowness - 1) / pieces <= 2 * TUNING.worth
    nsends = 2 * len(owners) * (problem.nranks - 1)
    assert tuple(_counts(problem, doors, owners, request, replace(many, most_sends=3 * nsends))) == (1, 3)
    assert tuple(_counts(problem, doors, owners, replace(request, deadline=now()), many)) == (1,)


def test_stages_without_time_for_an_answer_are_passed_over_in_large_whole_networks_only() -> None:
    small = _problem("dead", "allgather")
    assert Stage("flow", share=0.05).can_answer_in(1e-6, small)
    large = make_problem(load("dgx-h100:64"), "allgather", group=range(512))
    seconds = 1e-6 * large.network.nlinks * large.nranks
    assert Stage("flow", share=1.0).can_answer_in(seconds, large)
    assert not Stage("flow", share=0.01).can_answer_in(seconds, large)
