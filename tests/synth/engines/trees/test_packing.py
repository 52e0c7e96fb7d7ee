"""Packing: as many trees as the narrowest cut allows, and no more."""

from __future__ import annotations

import random

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.engines.trees.packing import TooLate, Tree, pack
from synth.model.compiled import Runner

Case = tuple[int, np.ndarray, np.ndarray, np.ndarray]


def random_network(seed: int) -> Case:
    """Return a random strongly connected graph with capacities."""
    rng = random.Random(seed)
    n = rng.randint(2, 7)
    order = rng.sample(range(n), n)
    pairs = set(zip(order, order[1:] + order[:1], strict=True))
    for _ in range(rng.randint(0, 3 * n)):
        u, v = rng.sample(range(n), 2)
        pairs.add((u, v))
    src, dst = np.array(sorted(pairs)).T
    return n, src, dst, np.array([rng.randint(1, 6) for _ in src])


def most_trees(case: Case, root: int) -> int:
    """Return the maximal number of trees by Edmonds: the least flow from the root to any other vertex, by NetworkX."""
    n, src, dst, capacity = case
    graph = nx.DiGraph()
    for u, v, c in zip(src.tolist(), dst.tolist(), capacity.tolist(), strict=True):
        graph.add_edge(u, v, capacity=c)
    return min(int(nx.maximum_flow_value(graph, root, v)) for v in range(n) if v != root)


def packed(case: Case, roots: dict[int, int]) -> list[Tree]:
    n, src, dst, capacity = case
    return pack(Runner(interpreted=True), n, src, dst, capacity, roots, np.inf)


def check(case: Case, roots: dict[int, int], trees: list[Tree]) -> None:
    """Check that every tree reaches every vertex once from a reached vertex, and that no arc exceeds its capacity."""
    n, src, dst, capacity = case
    load = np.zeros(len(src), dtype=int)
    for tree in trees:
        reached = {tree.root}
        for arc in tree.arcs:
            assert src[arc] in reached
            assert dst[arc] not in reached
            reached.add(int(dst[arc]))
            load[arc] += tree.weight
        assert len(reached) == n
    assert (load <= capacity).all()
    assert {root: sum(t.weight for t in trees if t.root == root) for root in roots} == roots


@settings(max_examples=60, derandomize=True)
@given(st.integers(0, 10**6))
def test_as_many_trees_from_one_root_as_the_narrowest_cut_is_wide(seed: int) -> None:
    case = random_network(seed)
    most = most_trees(case, 0)
    check(case, {0: most}, packed(case, {0: most}))
    with pytest.raises(ValueError, match="too narrow"):
        packed(case, {0: most + 1})


@settings(max_examples=20, derandomize=True)
@given(st.integers(0, 10**6))
def test_trees_from_all_ranks_reach_the_optimum(seed: int) -> None:
    """Check the number of trees from each rank against one more vertex with an arc of that capacity to each rank."""
    n, src, dst, capacity = case = random_network(seed)
    capacity = capacity * n

    def suffices(trees_per_rank: int) -> bool:
        ends = np.append(src, np.full(n, n)), np.append(dst, np.arange(n))
        return most_trees((n, *ends, np.append(capacity, np.full(n, trees_per_rank))), n) >= n * trees_per_rank

    most = (
        max(trees_per_rank for trees_per_rank in range(int(capacity.sum()) + 1) if suffices(trees_per_rank))
        if n < 5
        else 1
    )
    if not suffices(most):
        return
    case = n, src, dst, capacity
    roots = dict.fromkeys(range(n), most)
    check(case, roots, packed(case, roots))


def test_it_ends_at_the_deadline() -> None:
    n, src, dst, capacity = random_network(3)
    with pytest.raises(TooLate):
        pack(Runner(interpreted=True), n, src, dst, capacity, {0: 1}, 0.0)
