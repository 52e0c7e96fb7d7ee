"""Packing of undirected spanning trees: as many as every partition has room for, and no more."""

from __future__ import annotations

import random
from collections.abc import Iterator

import networkx as nx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.engines.trees.packing import depths
from synth.engines.trees.spanning import pack_spanning, rooted
from synth.model.compiled import Runner

Case = tuple[int, tuple[np.ndarray, np.ndarray], np.ndarray]


def random_graph(seed: int) -> Case:
    """Return a random connected graph of up to six vertices with capacities."""
    rng = random.Random(seed)
    n = rng.randint(2, 6)
    pairs = {(rng.randrange(v), v) for v in range(1, n)}
    for _ in range(rng.randint(0, 2 * n)):
        u, v = sorted(rng.sample(range(n), 2))
        pairs.add((u, v))
    u, v = np.array(sorted(pairs)).T
    return n, (u, v), np.array([rng.randint(1, 4) for _ in u])


def partitions(n: int) -> Iterator[list[int]]:
    """Yield the part of every vertex, for all partitions into two or more parts."""

    def grow(part: list[int]) -> Iterator[list[int]]:
        if len(part) == n:
            yield part
            return
        for label in range(max(part) + 2):
            yield from grow([*part, label])

    return (part for part in grow([0]) if max(part) > 0)


def most_trees(case: Case) -> int:
    """Return the maximal number of trees by Nash-Williams and Tutte, over all partitions."""
    n, (u, v), capacity = case
    rooms = []
    for labels in partitions(n):
        part = np.array(labels)
        rooms.append(int(capacity[part[u] != part[v]].sum()) // int(part.max()))
    return min(rooms)


@settings(max_examples=80, derandomize=True)
@given(st.integers(0, 10**6))
def test_as_many_as_the_narrowest_partition_has_room_for(seed: int) -> None:
    n, ends, capacity = case = random_graph(seed)
    most = most_trees(case)
    packed = pack_spanning(Runner(interpreted=True), n, ends, capacity, most, seed % n)
    assert packed is not None
    load = np.zeros(len(capacity), dtype=int)
    for edges in packed:
        tree = nx.Graph(list(zip(ends[0][edges].tolist(), ends[1][edges].tolist(), strict=True)))
        assert nx.is_tree(tree)
        assert len(tree) == n
        load[edges] += 1
        # Links: first in one direction, then in the other.
        links = np.arange(len(capacity)), np.arange(len(capacity)) + len(capacity)
        rooted_tree = rooted(n, ends, edges, links)
        deep = depths(rooted_tree, np.concatenate(ends), np.concatenate(ends[::-1]))
        assert sorted(deep) == list(range(n))
        assert max(deep.values()) == nx.radius(tree)
    assert len(packed) == most
    assert (load <= capacity).all()
    assert pack_spanning(Runner(interpreted=True), n, ends, capacity, most + 1, 0) is None
