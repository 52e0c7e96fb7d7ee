"""Placements: estimates, the bound on any placement, the ranking and its replay."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement, permutations
from typing import Any

import numpy as np
import pytest

from synth.bounds.resource_cover import cover
from synth.concurrent.result import ConcurrentResult
from synth.parallelism import estimate as estimate_module
from synth.parallelism import placement_search
from synth.parallelism.axes import Axis, mesh, parse_axes, process_groups
from synth.parallelism.estimate import Estimator
from synth.parallelism.placement import (
    Ranking,
    all_orders,
    find_interchangeable_levels,
    find_rigid_levels,
    placement_key,
    rank_placements,
)
from synth.parallelism.placement_bound import least_crossing, step_bound
from synth.parallelism.placement_search import plan_groups
from synth.parallelism.workload import Call, Workload
from synth.timing.simulate import predict_us
from synth.verify.replay import replay
from topologies.errors import InputError
from topologies.levels.hierarchy import find_levels
from topologies.load import load
from topologies.network import network
from topologies.symmetry.automorphism import automorphisms
from topologies.topology import Topology

STEP = Workload(
    (
        Call("tp", "allreduce", (1,), 64 << 20, 4.0),
        Call("dp", "reducescatter", (0,), 256 << 20, 1.0, ("tp",)),
        Call("all", "alltoall", (0, 1), 1 << 20),
    )
)

THREE = Workload((Call("tp", "allreduce", (2,), 64 << 20), Call("dp", "allreduce", (1,), 64 << 20)))


def ranked(spec: str, axes: str, top: int = 0, exhaustive: bool = False, workload: Workload = STEP) -> Ranking:
    topology = load(spec)
    levels = find_levels(topology)
    return rank_placements(
        topology, levels, parse_axes(axes, levels), workload, budget=0.2, top=top, exhaustive=exhaustive
    )


def estimator(spec: str) -> Estimator:
    topology = load(spec)
    return Estimator(topology, find_levels(topology))


def test_the_estimate_of_a_star_is_the_formula() -> None:
    estimate = estimator("star:8,bw=50,alpha=0.5").estimate("allreduce", np.arange(8)[None], 1 << 20)
    assert estimate.time_us == pytest.approx(2 * 7 / 8 * (1 << 20) / 50e3 + 2 * 1.0)


def test_a_ring_waits_for_its_long_hop_once() -> None:
    """Check a line, where the path from the last rank back to the first is long: a share takes it only once."""
    estimate = estimator("line:32,bw=50,alpha=1").estimate("allgather", np.arange(32)[None], 32)
    assert 31 <= estimate.time_us <= 63


def test_groups_that_share_a_link_take_longer() -> None:
    line_estimator, groups = estimator("ring:8"), np.array([[0, 4], [1, 5], [2, 6], [3, 7]])
    lone_us = line_estimator.estimate("allgather", groups[:1], 1 << 20).time_us
    assert line_estimator.estimate("allgather", groups, 1 << 20).time_us > 2 * lone_us


@pytest.mark.parametrize("spec", ["dgx-h100:2", "torus:4x4", "mi250", "dragonfly:3x3x2"])
@pytest.mark.parametrize("collective", ["allreduce", "alltoall", "sendrecv"])
def test_symmetric_placements_take_equally_long(spec: str, collective: str) -> None:
    """Check that symmetric placements take equally long, apart from routes.

    Fixed routes break ties by rank, so times may differ a little on a torus.
    """
    spec_estimator = estimator(spec)
    ranks = np.random.default_rng(5).permutation(spec_estimator.net.nranks).reshape(-1, 2)
    first = spec_estimator.estimate(collective, ranks, 1 << 20)
    slack = 0.6 if spec.startswith("torus") else 0.35 if spec == "mi250" else 1e-9
    for image in automorphisms(spec_estimator.net, [], limit=6):
        assert spec_estimator.estimate(collective, image[ranks], 1 << 20).time_us == pytest.approx(
            first.time_us, rel=slack
        )


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "reducescatter", "alltoall"])
@pytest.mark.parametrize(("k", "part"), [(2, 4), (4, 2), (3, 4), (4, 6), (6, 4)])
def test_no_placement_carries_less_across_a_part(collective: str, k: int, part: int) -> None:
    call = Call("x", collective, (0,), 1000)

    def crossing(m: int) -> np.ndarray:
        outside = k - m
        amounts = {
            "allreduce": (1, 1),
            "allgather": (outside / k, m / k),
            "reducescatter": (m / k, outside / k),
            "alltoall": (m * outside / k, m * outside / k),
        }
        return np.array(amounts[collective]) * 1000.0 * (0 < m < k)

    every = [
        sum((crossing(m) for m in members), np.zeros(2))
        for count in range(1, part + 1)
        for members in combinations_with_replacement(range(k + 1), count)
        if sum(members) == part
    ]
    assert np.min(every, axis=0) == pytest.approx(np.array(least_crossing(call, k, part)))


def test_the_shared_load_of_links_is_at_most_their_cover() -> None:
    inside = np.arange(16) < 8
    for spec, gbs in (("ndv2:2", 12.5), ("dgx-h100:2", 8 * 50)):
        net = network(load(spec), range(16))
        links = np.flatnonzero(inside[net.src] & ~inside[net.dst])
        assert net.capacity_gbs[cover(net, links)].sum() == pytest.approx(gbs)


@pytest.mark.parametrize("spec", ["ring:6", "star:6", "line:6"])
def test_no_order_of_a_small_machine_is_faster_than_the_bound(spec: str) -> None:
    calls = tuple(Call(name, name, (0,), 1 << 20) for name in ("allreduce", "allgather", "alltoall"))
    for call in calls:
        ranking = ranked(spec, "dp=3,tp=2", exhaustive=True, workload=Workload((call,)))
        assert 0 < ranking.bound_us <= ranking.best.step.time_us


def test_the_bound_is_proved_by_searched_schedules_too() -> None:
    ranking = ranked("star:4,bw=50,alpha=0", "dp=4", top=1, workload=Workload((Call("x", "alltoall", (0,), 1 << 20),)))
    assert ranking.best.step.time_us == pytest.approx(ranking.bound_us)


@pytest.mark.parametrize(("spec", "axes"), [("dgx-h100:2", "dp=4,tp=4"), ("fattree:2x4x1", "dp=2,tp=4")])
def test_the_times_of_the_ranking_replay(spec: str, axes: str) -> None:
    ranking = ranked(spec, axes, top=2)
    searched = [p for p in ranking.placements if p.step.searched]
    assert len(searched) >= 2
    times = [p.step.time_us for p in ranking.placements]
    assert times == sorted(times)
    for placement in searched:
        for i, call in enumerate(ranking.workload.calls):
            replayed = ranking.plans[i, placement.mesh.tobytes()]
            groups = [list(member.ranks) for member in replayed.problem.members]
            assert groups == process_groups(placement.mesh, call.over).tolist()
            replay(replayed.problem, replayed.at_size)
            time_us = predict_us(replayed.problem, replayed.algorithm.schedule, call.size_bytes)
            assert placement.step.call_us[i] == pytest.approx(time_us)
        tp, dp, every = placement.step.call_us
        assert max(4 * tp, dp) + every <= placement.step.time_us * (1 + 1e-9)
        assert placement.step.time_us <= 4 * tp + dp + every + 1e-6


def test_an_interrupt_ends_the_searches_and_leaves_a_ranking(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Call] = []

    def interrupted(topology: Topology, call: Call, *arguments: Any) -> ConcurrentResult:
        calls.append(call)
        return replace(plan_groups(topology, call, *arguments), stop_reason="interrupted")

    monkeypatch.setattr(placement_search, "plan_groups", interrupted)
    workload = Workload((STEP.calls[2],))
    ranking = ranked("fattree:2x4x1", "dp=2,tp=4", top=4, workload=workload)
    assert ranking.stop_reason == "interrupted"
    assert len(calls) == 1
    assert len(ranking.placements) == 2
    assert [call.name for call in calls] == ["all"]


def test_the_ranking_is_sorted_and_has_the_default() -> None:
    ranking = ranked("dgx-h100:2", "dp=4,tp=4")
    times = [p.step.time_us for p in ranking.placements]
    assert times == sorted(times)
    assert ranking.placements[ranking.default].order == list(range(16))
    assert len({p.matrix for p in ranking.placements}) == len(ranking.placements) == 2
    assert ranking.placements[0].step.bottleneck


def test_estimates_are_comparable_with_searched_times() -> None:
    rough, ranking = (ranked("fattree:4x4x1", "pp=2,dp=2,tp=4", top=top, workload=THREE) for top in (0, 1))
    times = [p.step.time_us for p in ranking.placements]
    assert times == pytest.approx(sorted(times))
    before = {p.matrix: p.step.time_us for p in rough.placements}
    ratios = {p.matrix: p.step.time_us / before[p.matrix] for p in ranking.placements}
    searched = [ratios[p.matrix] for p in ranking.placements if p.step.searched]
    guessed = [ratios[p.matrix] for p in ranking.placements if not p.step.searched]
    assert guessed
    assert guessed == pytest.approx([float(np.median(searched))] * len(guessed))


def test_a_default_order_without_a_matrix_is_timed_as_well() -> None:
    ranking = ranked("fattree:2x6x1", "dp=3,tp=4")
    assert ranking.placements[ranking.default].matrix is None
    assert ranking.placements[ranking.default].order == list(range(12))


def test_a_call_over_the_inner_axis_is_placed_inside_a_node() -> None:
    ranking = ranked("ndv2:2", "dp=2,tp=8", workload=Workload((Call("tp", "allreduce", (1,), 1 << 30),)))
    assert ranking.best.matrix == ((2, 1, 1), (1, 2, 4))
    worst = ranking.placements[-1]
    assert worst.step.time_us > 3 * ranking.best.step.time_us


@pytest.mark.parametrize(
    ("spec", "interchangeable"),
    [("torus:4x4x4", [[0, 1, 2]]), ("hypercube:3", [[0, 1, 2]]), ("dgx-h100:8", []), ("mesh:4x4", [[0, 1]])],
)
def test_levels_that_a_symmetry_exchanges_are_interchangeable(spec: str, interchangeable: list[list[int]]) -> None:
    spec_estimator = estimator(spec)
    assert find_interchangeable_levels(spec_estimator.net, spec_estimator.hierarchy) == interchangeable


@pytest.mark.parametrize(("spec", "rigid"), [("ring:8", [0]), ("full:8", []), ("dgx-h100:2", []), ("mesh:4x2", [0])])
def test_levels_with_their_own_order_are_rigid(spec: str, rigid: list[int]) -> None:
    spec_estimator = estimator(spec)
    assert find_rigid_levels(spec_estimator.net, spec_estimator.hierarchy) == rigid


def test_rings_are_split_by_the_axis_that_moves_more() -> None:
    calls = {axis: Workload((Call("x", "allgather", (axis,), 1 << 20),)) for axis in (0, 1)}
    inner = {axis: ranked("ring:16", "a=4,b=4", workload=calls[axis]).best.mesh for axis in calls}
    for axis, ranks in inner.items():
        for group in process_groups(ranks, (axis,)):
            assert sorted(group.tolist()) == list(range(group.min(), group.min() + 4))


@pytest.mark.parametrize(("spec", "shape"), [("ring:6", (3, 2)), ("line:4", (2, 2)), ("full:4", (2, 2))])
def test_all_orders_have_one_of_each_class(spec: str, shape: tuple[int, ...]) -> None:
    net = network(load(spec), range(int(np.prod(shape))))
    images = automorphisms(net, [])
    keys = [placement_key(ranks) for ranks in all_orders(net, shape, [])]
    every = {placement_key(np.array(order).reshape(shape)) for order in permutations(range(net.nranks))}
    classes = {frozenset(placement_key(image[np.frombuffer(key, dtype=np.int64).reshape(shape)]) for image in images)
               for key in every}  # fmt: skip
    assert len(keys) == len(set(keys)) == len(classes)
    assert all(sum(key in kind for key in keys) == 1 for kind in classes)


def test_exhaustive_search_finds_nothing_better_where_all_are_equal() -> None:
    ranking = ranked("full:6", "dp=2,tp=3", exhaustive=True)
    assert len(ranking.placements) == 1
    with pytest.raises(InputError, match="16 ranks have too many orders; it must be at most 9"):
        ranked("torus:4x4", "dp=4,tp=4", exhaustive=True)


def test_the_step_under_a_mesh_with_other_orders_holds_the_same_axes() -> None:
    levels = estimator("ring:8").hierarchy
    ranks = mesh(levels, ((2,), (4,)), [[1, 0]])
    assert process_groups(ranks, (1,)).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert step_bound(estimator("ring:8").net, levels, (Axis("a", 2), Axis("b", 4)), STEP) > 0


def test_long_routes_are_processed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = np.random.default_rng(2).permutation(36).reshape(4, 9)
    whole = estimator("mesh:6x6").estimate("alltoall", groups, 1 << 20)
    monkeypatch.setattr(estimate_module, "_HOPS", 50)
    parts = estimator("mesh:6x6").estimate("alltoall", groups, 1 << 20)
    assert parts.busy_us == pytest.approx(whole.busy_us)
    assert parts.time_us == pytest.approx(whole.time_us)
