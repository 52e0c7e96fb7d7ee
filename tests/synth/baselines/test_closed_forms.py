"""Closed forms have the steps, sends and distances of their sources, and each is right wherever it exists."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from synth.baselines import CLOSED_FORMS, baseline_named
from synth.baselines.algorithms.exchange import exchange_baselines
from synth.baselines.algorithms.grid import grid_extents
from synth.baselines.algorithms.patterns import swing_line, swing_partners, trivance_line
from synth.bounds.prove import prove
from synth.engines.registry import ENGINES
from synth.model.problem import Problem, make_problem
from synth.timing.simulate import timed
from synth.verify.replay import replay
from topologies.errors import ScheduleRefused, TooManySends
from topologies.load import load

ALL = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce")
MIB = 1 << 20


def problem_of(spec: str, name: str, group: list[int] | None = None, relays: tuple[int, ...] = ()) -> Problem:
    return make_problem(load(spec), name, group, relays)


@pytest.mark.parametrize(
    ("spec", "group", "relays"),
    [("ring:7", None, ()), ("torus:2x3", None, ()), ("dgx1", [6, 1, 3, 4], (0, 7)), ("mesh:3x3", None, ()),
     ("torus:4x2", None, ()), ("full:5", None, ()), ("line:3", [2, 0], (1,))],
)  # fmt: skip
@pytest.mark.parametrize("name", ALL)
def test_all_replay_and_none_beats_the_bound(
    spec: str, group: list[int] | None, relays: tuple[int, ...], name: str
) -> None:
    problem = problem_of(spec, name, group, relays)
    bound = prove(problem)
    algorithms_of_form = {form: baseline_named(problem, form) for form in CLOSED_FORMS}
    assert algorithms_of_form["dissemination"]  # These four are for any number of ranks.
    assert algorithms_of_form["multiplying"]
    assert algorithms_of_form["pat"]
    assert algorithms_of_form["trivance"]
    for form, algorithms in algorithms_of_form.items():
        for algorithm in algorithms:
            assert algorithm.engine == form
            for size in (1, 1 << 10, MIB):
                replay(algorithm.problem, timed(algorithm.problem, algorithm.schedule, size))
                assert algorithm.time_us(size) >= bound.at(size)[0] * (1 - 1e-9)


@pytest.mark.parametrize(
    ("spec", "extents"),
    [("torus:4x6", (4, 6)), ("mesh:2x3x4", (2, 3, 4)), ("hypercube:3", (2, 2, 2)), ("ring:9", (9,)), ("full:6", (6,)),
     ("line:2", (2,)), ("dgx1", (2, 4))],
)  # fmt: skip
def test_grids_are_recognised_by_their_links(spec: str, extents: tuple[int, ...]) -> None:
    assert grid_extents(problem_of(spec, "allreduce")) == extents


def test_a_group_inside_a_grid_has_its_own_grid() -> None:
    assert grid_extents(problem_of("torus:4x4", "allreduce", [0, 1, 2, 3, 4, 5, 6, 7])) == (2, 4)
    assert grid_extents(problem_of("torus:4x4", "allreduce", [0, 5, 10, 15], tuple({*range(16)} - {0, 5, 10, 15}))) == (
        4,
    )


@pytest.mark.parametrize("places", range(2, 90))
def test_lines_reach_all_in_as_many_phases_as_the_sources_state(places: int) -> None:
    assert len(trivance_line(places)) == math.ceil(math.log(places, 3) - 1e-9)
    if places % 2 == 0:
        line = swing_line(places)
        assert len(line) == math.ceil(math.log2(places))
        for (goals,) in line:
            assert (goals[goals] == np.arange(places)).all()  # They are partners of each other.
        # Section 3.1: no farther than recursive doubling, and from the third step on nearer.
        for step in range(len(line)):
            apart = abs(int(swing_partners(places, step)[0]))
            assert min(apart, places - apart) <= 2**step


@pytest.mark.parametrize(("places", "steps"), [(3, 1), (4, 2), (5, 2), (9, 2), (10, 3)])
def test_steps_where_partners_are_neighbours(places: int, steps: int) -> None:
    for name in ("allgather", "reducescatter"):
        algorithms = baseline_named(problem_of(f"full:{places}", name), "trivance")
        assert {algorithm.steps for algorithm in algorithms} == {steps}
        algorithms = baseline_named(problem_of(f"full:{places}", name), "pat")
        assert {algorithm.steps for algorithm in algorithms} == {math.ceil(math.log2(places))}


def test_whole_sums_where_no_contribution_would_arrive_twice() -> None:
    sends = {len(algorithm.schedule) for algorithm in baseline_named(problem_of("full:9", "allreduce"), "trivance")}
    assert sends == {9 * 2 * 2, 2 * 9 * 8}  # Two steps of two sends for each rank, or both phases of shares.
    assert {len(algorithm.schedule) for algorithm in baseline_named(problem_of("full:8", "allreduce"), "trivance")} == {
        2 * 8 * 7
    }


@pytest.mark.parametrize("spec", ["full:5", "hypercube:3", "dgx1"])
def test_whole_sums_are_as_fast_as_the_diameter_allows(spec: str) -> None:
    """Check lines whose members are neighbours; phases of shares take twice as many hops."""
    problem = problem_of(spec, "allreduce")
    least_us = min(algorithm.time_us(1) for algorithm in baseline_named(problem, "multiplying"))
    assert least_us == pytest.approx(prove(problem).at(1)[0], rel=1e-3)


def test_an_exchange_that_leaves_out_a_rank_is_no_baseline() -> None:
    problem = problem_of("full:4", "allgather")
    partners = np.array([1, 0, 3, 2])
    assert exchange_baselines(problem, "planted", [[[partners]]], 1000) == []
    assert exchange_baselines(problem, "planted", [[[partners], [(np.arange(4) + 2) % 4]]], 1000)
    with pytest.raises(TooManySends, match="planted among 4 ranks"):
        exchange_baselines(problem, "planted", [[[partners]]], 10)


def test_a_sum_that_is_added_twice_is_refused() -> None:
    """Check that the replay refuses overlapping whole sums, which `_adds_once` keeps from being built."""
    algorithms = baseline_named(problem_of("full:3", "allreduce"), "trivance")
    whole = next(algorithm for algorithm in algorithms if algorithm.steps == 1)
    rows = np.append(np.arange(len(whole.schedule)), 0)
    with pytest.raises(ScheduleRefused):
        replay(whole.problem, timed(whole.problem, whole.schedule.take(rows), MIB))


def test_closed_forms_that_do_not_exist() -> None:
    assert not baseline_named(problem_of("torus:3x4", "allreduce"), "swing")
    assert not baseline_named(problem_of("ring:5", "allreduce"), "bine")
    assert not baseline_named(problem_of("full:5", "allreduce"), "bucket")  # Lines with additional links.
    for form in CLOSED_FORMS:
        assert not baseline_named(problem_of("ring:4", "alltoall"), form)


def test_mirror_images_use_both_directions() -> None:
    """Check that on a torus Swing's exchanges load all links equally in the step between neighbours (section 4)."""
    (swing, *_) = baseline_named(problem_of("torus:4x4", "allgather"), "swing")
    load_of = np.bincount(swing.schedule.link, minlength=swing.problem.network.nlinks)
    assert load_of.min() == load_of.max()


def test_each_form_is_an_engine() -> None:
    assert set(CLOSED_FORMS) <= set(ENGINES)


def test_sums_meet_in_relays() -> None:
    """Check three members around a relay that adds the sends of two: the third gets one sum, over one link."""
    problem = problem_of("mesh:3x3", "reduce", [1, 3, 5], (4,))
    (direct, *_) = baseline_named(problem, "direct")
    net, schedule = problem.network, direct.schedule
    into = np.bincount(net.dst[schedule.link], minlength=problem.nranks)
    assert into.tolist() == [1, 0, 0, 2]
    assert schedule.reduces.all()
    assert direct.time_us(1 << 30) >= prove(problem).at(1 << 30)[0]
    wrong = np.where(net.dst[schedule.link] == 3, False, schedule.reduces)  # The relay keeps only the last value.
    with pytest.raises(ScheduleRefused):
        replay(problem, timed(problem, replace(schedule, reduces=wrong), MIB))
