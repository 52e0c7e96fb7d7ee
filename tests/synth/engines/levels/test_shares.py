"""Tests of equal loads: chunks of blocks of any sizes take trees so that no resource has much more to do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.engines.levels.search import _as_by_threadblocks
from synth.engines.levels.shares import TreeLoad, least_loaded
from synth.model.problem import make_problem
from topologies.costed import with_protocol
from topologies.load import apply_costs, load


def _alone(resource: int, busy: float = 1.0) -> TreeLoad:
    """Return the load of a tree that uses one resource."""
    return TreeLoad(np.array([resource]), np.array([busy]))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 8))
def test_equal_trees_get_equal_shares(sizes: list[int], ntrees: int) -> None:
    """Check that the fullest of equal trees has no more than the mean and the largest chunk."""
    loads = [_alone(tree) for tree in range(ntrees)]
    chosen = least_loaded(np.array(sizes, dtype=np.float64), [0] * len(sizes), lambda _: loads, ntrees)
    busy = np.bincount(chosen, sizes, ntrees)
    assert busy.sum() == sum(sizes)
    assert busy.max() <= sum(sizes) / ntrees + max(sizes)


def test_a_slow_tree_gets_less_and_a_full_one_nothing_more() -> None:
    sizes = np.ones(30)
    chosen = least_loaded(sizes, [0] * 30, lambda _: [_alone(0, 2.0), _alone(1)], 2)
    assert (np.bincount(chosen, minlength=2) * [2.0, 1.0]).max() <= 22  # At best both are busy for 20.
    # All chunks of the first kind need resource 0, so those of the second kind take the other.
    loads = {0: [_alone(0)], 1: [_alone(0), _alone(1)]}
    assert least_loaded(np.ones(4), [0, 0, 1, 1], loads.__getitem__, 2)[2:] == [1, 1]


@pytest.mark.parametrize(("protocol", "is_slower"), [("Simple", True), ("LL", False)])
def test_chunks_arrive_later_where_a_threadblock_fills_no_link(protocol: str, is_slower: bool) -> None:
    topology = with_protocol(apply_costs(load("dgx-h100:2"), "auto"), protocol)
    problem = make_problem(topology, "allgatherv", sizes=np.array([3.0, *[1.0] * 15]))
    net = _as_by_threadblocks(problem, 1 << 28, 1)
    assert (net is not None) is is_slower
    if net is not None:
        plain = problem.network.alpha_us
        assert len(net.alpha_us) == len(plain)
        assert (np.sort(net.alpha_us) > np.sort(plain)).all()
