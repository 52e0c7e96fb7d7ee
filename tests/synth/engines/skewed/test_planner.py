"""Plans of skewed all-to-alls replay in the time that they claim, between the bound and straight paths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

from synth.engines.route import quick_schedule
from synth.engines.skewed.plan import Plan
from synth.engines.skewed.planner import Planner
from synth.engines.skewed.prepare import prepare
from synth.engines.skewed.routes.routed import RoutedPlanner, fixed_columns, routed_shape
from synth.engines.skewed.schedule import algorithm_of, message_bytes
from synth.engines.skewed.shape import NotInNodes, shape_of
from synth.model.collective import uneven
from synth.model.problem import make_problem
from synth.timing.simulate import predict_us
from tests.synth.engines.skewed.questions import (
    GROUPS,
    ROUTED,
    Question,
    any_planner_of,
    planner_of,
    questions,
    skewed,
    topology_of,
)
from topologies.errors import InputError, ScheduleRefused
from topologies.load import load


def assert_right(spec: str, group: tuple[int, ...] | None, sizes: NDArray[np.int64], plan: Plan) -> None:
    algorithm = algorithm_of(topology_of(spec), group, plan, sizes)  # Its constructor replays the plan.
    assert algorithm.time_us(message_bytes(sizes)) == pytest.approx(plan.time_us, rel=1e-9)
    assert plan.bound_us <= plan.time_us * (1 + 1e-9)


@settings(max_examples=25)
@given(questions((*GROUPS, *ROUTED)))
def test_a_plan_replays_in_its_time_between_the_bound_and_straight_paths(
    question: Question,
) -> None:
    spec, group, sizes = question
    planner = any_planner_of(spec, group)
    plan, straight = planner.plan(sizes), planner.plan_straight(sizes)
    assert plan.bound_us == planner.bound(sizes)
    assert all(np.array_equal(a, b) for a, b in zip(plan, planner.plan(sizes), strict=True))
    if not (sizes - np.diag(np.diag(sizes))).any():
        assert plan.time_us == plan.bound_us == len(plan.chunk) == 0
        return
    assert_right(spec, group, sizes, plan)
    assert straight.is_straight
    assert_right(spec, group, sizes, straight)
    assert plan.time_us <= straight.time_us * (1 + 1e-9)


@settings(max_examples=25)
@given(questions((*GROUPS, *ROUTED)))
def test_no_other_schedule_beats_the_bound(
    question: Question,
) -> None:
    spec, group, sizes = question
    if (sizes - np.diag(np.diag(sizes))).any():
        problem = make_problem(topology_of(spec), uneven("alltoallv", sizes.astype(float)), group)
        size = message_bytes(sizes)
        for depth in (0.0, 1.0):
            time_us = predict_us(problem, quick_schedule(problem, size, depth), size)
            assert any_planner_of(spec, group).bound(sizes) <= time_us * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["even", "popular", "hot", "empty rows", "one block"])
def test_large_messages_are_near_the_bound_on_the_usual_machine(kind: str) -> None:
    sizes = skewed(kind, 16, 1 << 21)
    plan = planner_of("dgx-h100:2", None).plan(sizes)
    assert_right("dgx-h100:2", None, sizes, plan)
    assert plan.time_us <= 1.03 * plan.bound_us
    assert kind != "even" or plan.time_us == pytest.approx(plan.bound_us, rel=1e-9)


def test_a_plan_that_is_changed_is_refused() -> None:
    spec, sizes = "dgx-h100:2", skewed("hot", 6, 1 << 16)
    group = (0, 1, 2, 8, 9, 10)
    plan = planner_of(spec, group).plan(sizes)
    relayed = int(np.flatnonzero(plan.step)[0])
    without_one = {name: np.delete(getattr(plan, name), relayed) for name in ("chunk", "link", "step", "start_us")}
    with pytest.raises(ScheduleRefused, match="never arrives"):
        algorithm_of(load(spec), group, plan._replace(**without_one), sizes)


def test_a_group_that_does_not_fit_is_refused_in_one_line() -> None:
    for spec, group, words in (
        ("torus:4x4", (0, 5), "rank 0 does not reach rank 5 inside the group"),
        ("dgx-h100:2", (0, 1, 10, 11), "rank 0 does not reach rank 10 inside the group"),
        ("torus:16x16", None, "it must be 2 to 128"),
        ("dgx-h100", (3,), "at least 2"),
    ):
        with pytest.raises(InputError, match=words):
            prepare(load(spec), group)


def test_a_planner_of_nodes_says_which_groups_it_takes() -> None:
    for spec, group, words in (
        ("ring:4", None, "ranks 0 and 2 of a node have no link"),
        ("dgx1", None, "ranks 0 and 5 of a node have no link"),
        ("dgx-h100:2", (0, 1, 10, 11), "no NIC joins the nodes of ranks 0 and 10"),
        ("mi250:2", None, "by their NICs only"),
        ("l40s-2root:2", None, "two sends at once"),
    ):
        with pytest.raises(NotInNodes, match=words):
            shape_of(load(spec), group)


@pytest.mark.parametrize(("spec", "most"), [("dgx1", 1.3), ("torus:4x4", 1.35)])
def test_chunks_share_the_links_of_other_networks(spec: str, most: float) -> None:
    topology = load(spec)
    planner, k = RoutedPlanner(routed_shape(topology)), topology.nranks
    for kind in ("even", "popular", "hot", "empty rows"):
        sizes = skewed(kind, k, 1 << 21)
        plan = planner.plan(sizes)
        assert_right(spec, None, sizes, plan)
        assert plan.time_us <= most * plan.bound_us
        assert planner.plan_straight(sizes).time_us >= plan.time_us


def test_links_that_share_a_limit_evenly_have_room_together(tmp_path: Path) -> None:
    """Check 46 links, because 46 times a 46th is above 1 if it is rounded to the nearest part."""
    links, ranks = 46, 92
    pairs = " ".join(f"{rank}>{rank + links}" for rank in range(links))
    ring = " ".join(f"{rank}>{(rank + 1) % ranks}" for rank in range(ranks))
    link = '[[links]]\npairs = "{}"\ngbs = 1\nalpha_us = 0.5\n'
    path = tmp_path / "spine.toml"
    limit = f'[[limits]]\nname = "spine"\npairs = "{pairs}"\ngbs = {links}\n'
    path.write_text(f'name = "spine"\nranks = {ranks}\n' + link.format(pairs) + link.format(ring) + limit)
    shape = routed_shape(load(str(path)))
    spine = shape.net.resource_names.index("spine")
    parts = fixed_columns(shape)["part"][shape.net.uses_idx == spine]
    assert len(parts) == links
    assert 1 - 1e-9 <= parts.sum() <= 1


@pytest.mark.parametrize(("spec", "group"), [("mi300x", None), ("dgx1", (0, 1, 2, 3))])
def test_a_large_block_is_relayed_in_a_node_whose_ranks_have_a_link_each(
    spec: str, group: tuple[int, ...] | None
) -> None:
    topology = load(spec)
    planner = prepare(topology, group)
    k = planner.net.nranks
    sizes = np.full((k, k), 1 << 16)
    sizes[0, k - 1] = 1 << 26
    plan = planner.plan(sizes)
    algorithm_of(topology, group, plan, sizes)
    assert plan.time_us <= 1.1 * plan.bound_us
    assert plan.time_us <= 0.5 * Planner(shape_of(topology, group)).plan(sizes).time_us
    assert isinstance(prepare(load("dgx-h100")), Planner)  # At a switch no relay is faster.


def test_prices_that_are_wrong_would_be_no_bound() -> None:
    """Check that the bound of all blocks together is at most the optimum, where this is known, and reaches it."""
    planner = RoutedPlanner(routed_shape(load("ring:4,bw=1,alpha=0")), interpreted=True)
    sizes = np.zeros((4, 4), dtype=np.int64)
    sizes[[0, 2], [2, 0]] = 4_000_000  # Each of the eight links carries half a block.
    plan = planner.plan(sizes)
    assert plan.bound_us == pytest.approx(2000.0, rel=1e-3)
    assert plan.bound_us <= 2000.0 * (1 + 1e-9)
    assert plan.time_us <= 1.05 * plan.bound_us


def test_sizes_that_are_no_sizes_are_refused_in_one_line() -> None:
    planner = planner_of("full:2", None)
    for sizes, words in (
        (np.zeros((3, 3), dtype=np.int64), "shape"),
        (np.zeros((2, 2)), "whole numbers"),
        ([[0], [1, 2]], "different lengths"),
        (np.array([[0, -1], [0, 0]]), "-1 bytes from 0 to 1"),
        (np.array([[0, 0], [1 << 60, 0]]), "from 1 to 0"),
    ):
        with pytest.raises(InputError, match=words):
            planner.plan(sizes)
        with pytest.raises(InputError, match=words):
            planner.bound(sizes)


def test_a_plan_with_many_chunks_gets_more_room() -> None:
    planner = Planner(shape_of(load("dgx-h100:2")), interpreted=True)
    sizes = skewed("popular", 16, 1 << 21)
    plan = planner.plan(sizes)
    planner._make_room(20)
    assert all(np.array_equal(a, b) for a, b in zip(plan, planner.plan(sizes), strict=True))


def test_compiled_loops_route_as_the_interpreter() -> None:
    shape = routed_shape(load("dgx1"))
    planners = RoutedPlanner(shape), RoutedPlanner(shape, interpreted=True)
    for kind in ("even", "popular", "empty rows"):
        sizes = skewed(kind, 8, 1 << 20)
        plan, interpreted = (planner.plan(sizes) for planner in planners)
        assert all(np.array_equal(a, b) for a, b in zip(plan, interpreted, strict=True))
        assert planners[0].bound(sizes) == plan.bound_us
    planners[0]._make_room(20)
    assert planners[0].plan(sizes).time_us == plan.time_us


def test_compiled_loops_make_the_plans_of_the_interpreter() -> None:
    """Check that no index or number of a loop changes with its type; large groups only run compiled loops."""
    shape = planner_of("dgx-h100:2", None).shape
    compiled = Planner(shape)
    for kind in ("even", "popular", "hot", "empty rows", "one block"):
        sizes = skewed(kind, 16, 1 << 21)
        plan = planner_of("dgx-h100:2", None).plan(sizes)
        assert all(np.array_equal(a, b) for a, b in zip(plan, compiled.plan(sizes), strict=True))
        assert compiled.bound(sizes) == plan.bound_us
        assert compiled.plan_straight(sizes).time_us == planner_of("dgx-h100:2", None).plan_straight(sizes).time_us


def test_nodes_on_different_rails_share_the_rails_that_others_need() -> None:
    group = (0, 1, 2, 8, 9, 16, 17, 18, 19)  # Nodes of three, two and four rails.
    plan = planner_of("dgx-h100:3", group).plan(np.full((9, 9), 1 << 23))
    assert_right("dgx-h100:3", group, np.full((9, 9), 1 << 23), plan)
    assert plan.time_us <= 1.03 * plan.bound_us
