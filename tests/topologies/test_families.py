"""Tests that families' formulas give the graphs of their names."""

from __future__ import annotations

import numpy as np
import pytest

from topologies.families import FAMILIES
from topologies.load import load


@pytest.mark.parametrize(
    ("spec", "ranks", "degrees"),
    [
        ("ring:8", 8, {2}), ("ring:2", 2, {1}), ("line:5", 5, {1, 2}), ("full:6", 6, {5}),
        ("mesh:3x4", 12, {2, 3, 4}),
        ("mesh:1x4", 4, {1, 2}), ("torus:4x4", 16, {4}), ("torus:2x4", 8, {3}), ("torus:2x2", 4, {2}),
        ("torus:3x3x3", 27, {6}), ("hypercube:4", 16, {4}), ("star:7", 7, {1}), ("fattree:4", 16, {1}),
        ("fattree:3x2x2", 6, {1}), ("dragonfly:3x2x2", 12, {1}),
    ],
)  # fmt: skip
def test_degrees(spec: str, ranks: int, degrees: set[int]) -> None:
    t = load(spec)
    assert t.nranks == ranks
    out = np.bincount(t.link_src, minlength=t.nvertices)
    into = np.bincount(t.link_dst, minlength=t.nvertices)
    assert np.array_equal(out, into)
    assert set(out[:ranks].tolist()) == degrees


@pytest.mark.parametrize(
    ("spec", "summary"), [("torus:4", "torus of 4"), ("mesh:6", "mesh of 6"), ("torus:4x4", "4x4 torus")]
)
def test_a_grid_of_one_dimension_has_a_summary_that_is_no_number_of_grids(spec: str, summary: str) -> None:
    assert summary in load(spec).summary


def test_fat_tree_switches_have_k_ports() -> None:
    t = load("fattree:6")
    assert t.nranks == 54
    assert set(np.bincount(t.link_src)[54:].tolist()) == {6}
    assert len(t.switches) == 18 + 18 + 9


@pytest.mark.parametrize("spec", ["dragonfly:5x4x2", "dragonfly:9x4x1", "dragonfly:2x3x1", "dragonfly:1x4x2"])
def test_dragonfly_has_one_link_a_pair_of_groups(spec: str) -> None:
    t = load(spec)
    groups = int(spec.split(":")[1].split("x")[0])
    group = np.array([int(s[1:].split("r")[0]) for s in t.switches])
    inner = (t.link_src >= t.nranks) & (t.link_dst >= t.nranks)
    a, b = group[t.link_src[inner] - t.nranks], group[t.link_dst[inner] - t.nranks]
    pairs = sorted(zip(a[a != b].tolist(), b[a != b].tolist(), strict=True))
    assert pairs == [(x, y) for x in range(groups) for y in range(groups) if x != y]


def test_options() -> None:
    t = load("ring:4,bw=12.5,alpha=0.2")
    assert set(t.bandwidth_gbs.tolist()) == {12.5}
    assert set(t.alpha_us.tolist()) == {0.2}
    assert not t.alpha_assumed
    assert load("ring:4").alpha_assumed
    assert load("ring:4").bandwidth_gbs[0] == 50


def test_every_family_has_a_working_example() -> None:
    for family in FAMILIES.values():
        assert load(family.example).nlinks > 0
