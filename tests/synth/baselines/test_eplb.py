"""EPLB's two policies, by small cases that its description decides."""

from __future__ import annotations

import numpy as np
import pytest

from synth.baselines.eplb import place_as_eplb, place_by_nodes, place_globally


def test_replicas_go_to_the_heaviest_expert_and_to_the_least_loaded_rank() -> None:
    # Replicas: expert 0 twice (30 each), then 1 (50) twice (25 each): 30 30 25 25 20 10 onto three ranks.
    placement = place_globally(np.array([[60.0, 50.0, 20.0, 10.0]]), 3, 2)
    assert placement.shape == (1, 3, 2)
    assert sorted(placement.ravel().tolist()) == [0, 0, 1, 1, 2, 3]
    assert placement[0].tolist() == [[0, 2], [0, 3], [1, 1]]


def test_groups_stay_in_one_node() -> None:
    draw = np.random.default_rng(0)
    load = draw.exponential(size=(3, 32))
    placement = place_by_nodes(load, 8, 5, 2, 8)
    for layer in placement:
        nodes = [set(layer[:4].ravel().tolist()), set(layer[4:].ravel().tolist())]
        assert nodes[0] | nodes[1] == set(range(32))
        assert not nodes[0] & nodes[1]
        assert all(len({expert // 4 for expert in node}) == 4 for node in nodes)


@pytest.mark.parametrize(("groups", "by_nodes"), [(1, False), (3, False), (4, True), (6, True)])
def test_the_policy_depends_on_the_groups(groups: int, by_nodes: bool) -> None:
    load = np.random.default_rng(groups).exponential(size=(2, 24))
    expected = place_by_nodes(load, 8, 4, 2, groups) if by_nodes else place_globally(load, 8, 4)
    assert np.array_equal(place_as_eplb(load, 8, 4, 2, groups), expected)


def test_loads_are_even_by_its_own_rule() -> None:
    load = 1 / np.arange(1, 257.0)[None] ** 0.6
    placement = place_globally(load, 32, 9)[0]
    share = load[0] / np.bincount(placement.ravel())
    loads = share[placement].sum(axis=1)
    assert loads.max() < 1.02 * loads.mean()
