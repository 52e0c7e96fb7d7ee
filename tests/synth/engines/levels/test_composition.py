"""Trees over levels: each rank is reached once, over outer levels once for each part; partial sums meet once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from synth.engines.levels.composition import (
    CHAIN,
    DOUBLING,
    RING,
    SCATTER,
    STAR,
    TREES,
    Arcs,
    Hops,
    exchange,
    following,
    hops,
    spread,
)

SHAPES = [(2, 2), (3, 4), (4, 1, 3), (2, 3, 2), (5, 2)]


def _reached(arcs: Arcs, holds: set[int]) -> list[int]:
    """Return the ranks that are reached, in the order of the steps, after a check that senders were reached before."""
    heads: list[int] = []
    for step in range(arcs.nsteps):
        now = arcs.step == step
        assert set(arcs.tail[now].tolist()) <= holds
        heads += arcs.head[now].tolist()
        holds |= set(arcs.head[now].tolist())
    return heads


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", [STAR, SCATTER, CHAIN, TREES, RING, DOUBLING])
def test_a_value_comes_to_each_rank_and_into_each_outer_part_once(shape: tuple[int, ...], form: str) -> None:
    members = np.random.default_rng(1).permutation(int(np.prod(shape))).reshape(shape)

    def along(level: int, place: int, offset: int) -> Hops:
        return hops(form if level == 0 else STAR, shape[level], place, offset)

    part = np.empty(members.size, dtype=np.int64)
    part[members] = np.arange(shape[0]).reshape(-1, *(1,) * (len(shape) - 1))
    for offset in range(3):
        place = tuple(offset % extent for extent in shape)
        arcs = spread(members, along, place, offset)
        root = int(members[place])
        assert sorted(_reached(arcs, {root})) == sorted(set(range(members.size)) - {root})
        entered = [int(part[b]) for a, b in zip(arcs.tail, arcs.head, strict=True) if part[a] != part[b]]
        assert sorted(entered) == [p for p in range(shape[0]) if p != part[root]]
        assert not arcs.adds.any()


def test_offsets_scatter_to_all_other_places() -> None:
    assert {int(hops(SCATTER, 5, 2, offset).head[0]) for offset in range(4)} == {0, 1, 3, 4}


@pytest.mark.parametrize("places", range(2, 40))
def test_over_two_trees_no_place_sends_more_than_it_gets(places: int) -> None:
    """Check also that the trees are low."""
    root = places // 3
    trees = [hops(TREES, places, root, rotation) for rotation in (0, 1)]
    sends = sum(np.bincount(tree.tail, minlength=places) for tree in trees)
    assert sends[root] == 2
    assert sends.max() == 2
    assert all(tree.depth.max() <= np.log2(places) for tree in trees)


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_meet_once_for_all_exchanged_levels(shape: tuple[int, ...]) -> None:
    members = np.arange(int(np.prod(shape))).reshape(shape)
    place = tuple(extent - 1 for extent in shape)
    for levels in range(len(shape) + 1):
        tree = spread(members, lambda level, at, offset: hops(STAR, shape[level], at, offset), place, 0, levels)
        arcs = following(tree.backwards(), exchange(members, place, levels), tree)
        has = [Counter({rank: 1}) for rank in range(members.size)]
        for step in range(arcs.nsteps):
            before = [count.copy() for count in has]
            for i in np.flatnonzero(arcs.step == step).tolist():
                tail, head = int(arcs.tail[i]), int(arcs.head[i])
                has[head] = has[head] + before[tail] if arcs.adds[i] else before[tail]
        assert all(count == Counter(dict.fromkeys(range(members.size), 1)) for count in has)
