"""Tests of the levels of a topology: found, given and refused."""

from __future__ import annotations

import numpy as np
import pytest

from topologies.errors import InputError
from topologies.levels.hierarchy import find_levels, parse_levels
from topologies.load import load
from topologies.machines import machines
from topologies.topology import Topology

FAMILIES = "ring:8 line:6 full:8 mesh:6x6 torus:4x4x4 hypercube:4 star:8 fattree:4 fattree:4x8x2 dragonfly:4x4x2"


def islands(sizes: tuple[int, ...], order: np.ndarray | None = None, noise: float = 0.0) -> Topology:
    """Return complete islands of 100 GB/s, whose ranks have 10 GB/s to the ranks of equal position in other islands."""
    label = np.repeat(np.arange(len(sizes)), sizes)
    place = np.concatenate([np.arange(size) for size in sizes])
    pairs = [(a, b) for a in range(len(label)) for b in range(len(label)) if a != b]
    pairs = [(a, b) for a, b in pairs if label[a] == label[b] or place[a] == place[b]]
    src, dst = np.array(pairs).T
    gbs = np.where(label[src] == label[dst], 100.0, 10.0)
    gbs *= 1 + noise * np.random.default_rng(0).random(len(gbs))
    order = np.arange(len(label)) if order is None else order
    return Topology("islands", len(label), (), order[src], order[dst], np.full(len(src), 1.0), gbs)


@pytest.mark.parametrize("spec", [*machines(), *FAMILIES.split(), "mi250:4", "dgx-h100:4", "ndv2:2"])
def test_levels_are_nested_parts_of_equal_size_that_hold_every_rank(spec: str) -> None:
    topology = load(spec)
    levels = find_levels(topology)
    assert sorted(levels.ranks.tolist()) == list(range(topology.nranks))
    assert int(np.prod(levels.sizes)) == topology.nranks
    assert str(parse_levels(str(levels), topology)) == str(levels)
    if len(set(topology.nodes.tolist())) > 1:
        node = [level.name for level in levels.levels].index("node")
        assert all(len(set(topology.nodes[part].tolist())) == 1 for part in levels.parts(node))


@pytest.mark.parametrize(
    ("spec", "levels"),
    [
        ("dgx-h100:4", "node:4,gpu:8"),
        ("dgx1", "island:2,gpu:4"),
        ("mi250:4", "node:4,island1:2,island2:2,package:2,gpu:2"),
        ("fattree:8", "rack:8,node:4,gpu:4"),
        ("dragonfly:9x4x2", "rack:9,node:4,gpu:2"),
        ("torus:3x4x5", "d0:3,d1:4,d2:5"),
        ("star:8", "gpu:8"),
    ],
)
def test_expected_levels(spec: str, levels: str) -> None:
    assert str(find_levels(load(spec))) == levels


def test_levels_of_shuffled_and_measured_ranks() -> None:
    order = np.random.default_rng(3).permutation(12)
    levels = find_levels(islands((4, 4, 4), order, noise=0.1))
    assert str(levels) == "island:3,gpu:4"
    expected = {frozenset(order[4 * i : 4 * i + 4].tolist()) for i in range(3)}
    assert {frozenset(part.tolist()) for part in levels.parts(0)} == expected


def test_an_irregular_hierarchy_is_refused_with_an_alternative() -> None:
    uneven = islands((4, 3))
    with pytest.raises(InputError, match=r"parts joined at 100 GB/s hold 4, 3 ranks.*--levels gpu:7"):
        find_levels(uneven)
    assert str(parse_levels("gpu:7", uneven)) == "gpu:7"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("node:4,gpu:4", r"4·4 = 16 devices, but dgx-h100:4 has 32 ranks"),
        ("node:4,node:8", "'node' is named twice"),
        ("node4", "'node4' is no level"),
        ("node:0,gpu:8", "'node:0' is no level"),
        ("", "'' is no level"),
    ],
)
def test_wrong_levels_are_refused(text: str, line: str) -> None:
    with pytest.raises(InputError, match=line):
        parse_levels(text, load("dgx-h100:4"))
