"""Closed forms are what their sources say: steps, sends, distances; and each is right wherever it is there at all."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from synth.baselines import CLOSED_FORMS, baseline_named
from synth.baselines.algorithms.exchange import exchange_baselines
from synth.baselines.algorithms.grid import grid_extents
from synth.baselines.algorithms.swing import swing_line, swing_partners
from synth.baselines.algorithms.trivance import trivance_line
from synth.bounds.prove import prove
from synth.engines.registry import ENGINES
from synth.model.problem import Problem, make_problem
from synth.timing.simulate import timed
from synth.verify.replay import replay
from topologies.errors import ScheduleRefused, TooManySends
from topologies.load import load

ALL = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce")
MIB = 1 << 20


def asked(spec: str, name: str, group: list[int] | None = None, relays: tuple[int, ...] = ()) -> Problem:
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
    problem = asked(spec, name, group, relays)
    bound = prove(problem)
    made = {form: baseline_named(problem, form) for form in CLOSED_FORMS}
    assert made["dissemination"]  # these four are for any number of ranks
    assert made["multiplying"]
    assert made["pat"]
    assert made["trivance"]
    for form, algorithms in made.items():
        for one in algorithms:
            assert one.engine == form
            for size in (1, 1 << 10, MIB):
                replay(one.problem, timed(one.problem, one.schedule, size))
                assert one.time_us(size) >= bound.at(size)[0] * (1 - 1e-9)


@pytest.mark.parametrize(
    ("spec", "extents"),
    [("torus:4x6", (4, 6)), ("mesh:2x3x4", (2, 3, 4)), ("hypercube:3", (2, 2, 2)), ("ring:9", (9,)), ("full:6", (6,)),
     ("line:2", (2,)), ("dgx1", (2, 4))],
)  # fmt: skip
def test_grids_are_read_off_the_links(spec: str, extents: tuple[int, ...]) -> None:
    assert grid_extents(asked(spec, "allreduce")) == extents


def test_a_group_inside_a_grid_is_a_grid_of_its_own() -> None:
    assert grid_extents(asked("torus:4x4", "allreduce", [0, 1, 2, 3, 4, 5, 6, 7])) == (2, 4)
    assert grid_extents(asked("torus:4x4", "allreduce", [0, 5, 10, 15], tuple({*range(16)} - {0, 5, 10, 15}))) == (4,)


@pytest.mark.parametrize("places", range(2, 90))
def test_lines_reach_all_in_as_many_phases_as_the_sources_say(places: int) -> None:
    assert len(trivance_line(places)) == math.ceil(math.log(places, 3) - 1e-9)
    if places % 2 == 0:
        line = swing_line(places)
        assert len(line) == math.ceil(math.log2(places))
        for (goals,) in line:
            assert (goals[goals] == np.arange(places)).all()  # partners of each other
        # section 3.1: no farther than recursive doubling, and from the third step on nearer
        for step in range(len(line)):
            apart = abs(int(swing_partners(places, step)[0]))
            assert min(apart, places - apart) <= 2**step


@pytest.mark.parametrize(("places", "steps"), [(3, 1), (4, 2), (5, 2), (9, 2), (10, 3)])
def test_steps_where_partners_are_neighbours(places: int, steps: int) -> None:
    for name in ("allgather", "reducescatter"):
        made = baseline_named(asked(f"full:{places}", name), "trivance")
        assert {one.steps for one in made} == {steps}
        made = baseline_named(asked(f"full:{places}", name), "pat")
        assert {one.steps for one in made} == {math.ceil(math.log2(places))}


def test_whole_sums_where_no_contribution_would_come_twice() -> None:
    sends = {len(one.schedule) for one in baseline_named(asked("full:9", "allreduce"), "trivance")}
    assert sends == {9 * 2 * 2, 2 * 9 * 8}  # two steps of two sends a rank; both phases of shares
    assert {len(one.schedule) for one in baseline_named(asked("full:8", "allreduce"), "trivance")} == {2 * 8 * 7}


@pytest.mark.parametrize("spec", ["full:5", "hypercube:3", "dgx1"])
def test_whole_sums_are_as_fast_as_the_diameter_allows(spec: str) -> None:
    """Where members of a line are neighbours; phases of shares take twice as many hops."""
    problem = asked(spec, "allreduce")
    least_us = min(one.time_us(1) for one in baseline_named(problem, "multiplying"))
    assert least_us == pytest.approx(prove(problem).at(1)[0], rel=1e-3)


def test_an_exchange_that_leaves_somebody_out_is_not_there() -> None:
    problem = asked("full:4", "allgather")
    one = np.array([1, 0, 3, 2])
    assert exchange_baselines(problem, "planted", [[[one]]], 1000) == []
    assert exchange_baselines(problem, "planted", [[[one], [(np.arange(4) + 2) % 4]]], 1000)
    with pytest.raises(TooManySends, match="planted among 4 ranks"):
        exchange_baselines(problem, "planted", [[[one]]], 10)


def test_a_sum_that_is_added_twice_is_refused() -> None:
    """Whole sums of windows that overlap: what `_adds_once` keeps from being made, the replay would find."""
    made = baseline_named(asked("full:3", "allreduce"), "trivance")
    whole = next(one for one in made if one.steps == 1)
    rows = np.append(np.arange(len(whole.schedule)), 0)
    with pytest.raises(ScheduleRefused):
        replay(whole.problem, timed(whole.problem, whole.schedule.take(rows), MIB))


def test_which_there_are_none_of() -> None:
    assert not baseline_named(asked("torus:3x4", "allreduce"), "swing")
    assert not baseline_named(asked("ring:5", "allreduce"), "bine")
    assert not baseline_named(asked("full:5", "allreduce"), "bucket")  # lines with other links
    for form in CLOSED_FORMS:
        assert not baseline_named(asked("ring:4", "alltoall"), form)


def test_mirror_images_use_both_directions() -> None:
    """On a torus Swing's exchanges load all links alike in the step between neighbours (section 4)."""
    (one, *_) = baseline_named(asked("torus:4x4", "allgather"), "swing")
    load_of = np.bincount(one.schedule.link, minlength=one.problem.network.nlinks)
    assert load_of.min() == load_of.max()


def test_each_form_is_an_engine() -> None:
    assert set(CLOSED_FORMS) <= set(ENGINES)


def test_sums_meet_in_relays() -> None:
    """Three members around a relay, which adds what two of them send: the third gets one sum, over one link."""
    problem = asked("mesh:3x3", "reduce", [1, 3, 5], (4,))
    (direct, *_) = baseline_named(problem, "direct")
    net, schedule = problem.network, direct.schedule
    into = np.bincount(net.dst[schedule.link], minlength=problem.nranks)
    assert into.tolist() == [1, 0, 0, 2]
    assert schedule.reduces.all()
    assert direct.time_us(1 << 30) >= prove(problem).at(1 << 30)[0]
    wrong = np.where(net.dst[schedule.link] == 3, False, schedule.reduces)  # the relay keeps the last one only
    with pytest.raises(ScheduleRefused):
        replay(problem, timed(problem, replace(schedule, reduces=wrong), MIB))
