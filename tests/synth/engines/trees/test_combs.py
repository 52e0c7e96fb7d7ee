"""Trees of meshes by formula: they span, load all links equally, and are as shallow as the mesh is wide."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from synth.bounds.prove import prove
from synth.engines.trees.combs import Combs, is_mesh
from synth.engines.trees.packing import depths
from synth.engines.trees.pipeline import listed
from synth.engines.trees.tuning import TUNING
from synth.model.problem import make_problem
from synth.verify.algorithm import Algorithm
from topologies.load import load


def combs(spec: str) -> Combs:
    problem = make_problem(load(spec), "allreduce")
    assert is_mesh(problem)
    return Combs(problem, prove(problem).per_byte_us)


@pytest.mark.parametrize(("spec", "extents"), [("mesh:4x4", (4, 4)), ("mesh:3x5", (3, 5)), ("mesh:2x3x4", (2, 3, 4))])
def test_trees_span_and_are_no_deeper_than_the_mesh_is_wide(spec: str, extents: tuple[int, ...]) -> None:
    comb_trees = combs(spec)
    for trees in comb_trees.sets:
        for tree in trees:
            depth = depths(tree, comb_trees.net.src, comb_trees.net.dst)
            assert len(depth) == len(tree.arcs) + 1 == math.prod(extents)
            assert max(depth.values()) <= sum(extents) - len(extents)


@pytest.mark.parametrize(("a", "b"), [(4, 4), (3, 5), (4, 7), (2, 6)])
def test_a_mesh_of_two_dimensions_is_loaded_equally(a: int, b: int) -> None:
    comb_trees = combs(f"mesh:{a}x{b}")
    k = comb_trees.counts(TUNING)[0]
    share = Fraction(a * b - 1, 2 * a * b - a - b)  # Share of the message over each link.
    assert comb_trees.least_time(k) == share / (1000 * 50)
    assert float(comb_trees.least) == pytest.approx(float(share / (1000 * 50)))


def test_a_schedule_of_combs_comes_near_the_bound() -> None:
    problem, size = make_problem(load("mesh:4x4"), "allreduce"), 1 << 30
    comb_trees = combs("mesh:4x4")
    k = comb_trees.counts(TUNING)[0]
    packing = comb_trees.packed(k, comb_trees.least_time(k), np.inf)
    took_us, schedule = listed(problem, packing, k, 64, size, 0.0, 1, np.inf)
    algorithm = Algorithm(problem.with_chunks(64 * k), schedule, "trees", size_bytes=size)
    assert took_us == pytest.approx(algorithm.time_us(size))
    assert took_us <= 1.03 * prove(problem).at(size)[0]


def test_unequal_dimensions_are_weighted() -> None:
    """Check a mesh whose links in one dimension have half the bandwidth: more trees run along the other dimension."""
    mesh = load("mesh:4x4")
    along = np.abs(mesh.link_src - mesh.link_dst) == 1
    slow = make_problem(replace(mesh, bandwidth_gbs=np.where(along, 25.0, 50.0)), "allreduce")
    comb_trees = Combs(slow, prove(slow).per_byte_us)
    k = comb_trees.counts(TUNING)[0]
    assert len(set(comb_trees.times[k])) == 2
    assert float(comb_trees.least_time(k)) <= 1.05 * prove(slow).per_byte_us


@pytest.mark.parametrize("spec", ["torus:4x4", "dgx1", "ring:6", "full:4", "line:5", "dgx-a100:2"])
def test_other_networks_are_no_mesh(spec: str) -> None:
    assert not is_mesh(make_problem(load(spec), "allreduce"))


def test_a_mesh_without_one_of_its_links_is_none() -> None:
    mesh = load("mesh:3x4")
    is_kept = ~np.isin(mesh.link_src * 12 + mesh.link_dst, [1, 12])
    figures = {name: getattr(mesh, name)[is_kept] for name in ("link_src", "link_dst", "alpha_us", "bandwidth_gbs")}
    assert not is_mesh(make_problem(replace(mesh, **figures), "allreduce"))
