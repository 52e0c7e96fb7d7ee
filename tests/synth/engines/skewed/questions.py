"""Process groups of many shapes, and random sizes of all-to-alls for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from synth.engines.skewed.plan import SizesPlanner
from synth.engines.skewed.planner import Planner
from synth.engines.skewed.prepare import planner_for, shape_for
from synth.engines.skewed.shape import shape_of
from topologies.costed import with_costs, with_protocol
from topologies.load import load
from topologies.topology import Topology

Question = tuple[str, tuple[int, ...] | None, NDArray[np.int64]]
GROUPS = (
    ("full:2", None),
    ("full:5", None),
    ("mi300x", (1, 2, 6)),
    ("dgx-h100:2", (0, 1, 2, 8, 9, 10)),
    ("dgx-h100:3", (0, 1, 2, 8, 9, 16, 17, 19)),  # Nodes of different sizes, and a rail of one rank.
    ("dgx-h100:2", (9, 0, 1, 8)),  # Positions of a node are not side by side.
    ("dgx-a100:3", (0, 1, 8, 9, 10, 16, 17)),
    ("dgx2:2", (0, 1, 2, 16, 17, 18, 19)),  # Two ranks share a NIC.
    ("mi300x:2", (0, 1, 8, 9)),
    ("gaudi3:2", (0, 1, 8)),
    ("costs of Simple", (0, 1, 8, 9)),
)
# Groups that are no nodes of linked ranks; paths have up to eight links.
ROUTED = (
    ("ring:5", None),
    ("dgx1", None),
    ("mesh:2x3", None),
    ("torus:3x3,bw=25", (0, 1, 2, 3, 4, 5)),
    ("mi250:2", (0, 1, 2, 16, 17)),
    ("l40s-2root", None),  # Two sends at once go through a root.
    ("fattree:4", (0, 1, 4, 9)),  # A link uses six resources.
    ("costs of Simple and dgx1", None),
)
SIZES = st.one_of(st.just(0), st.integers(1, 100), st.integers(0, 1 << 22), st.integers(0, 1 << 34))


def topology_of(spec: str) -> Topology:
    if not spec.startswith("costs"):
        return load(spec)
    return with_protocol(with_costs(load("dgx1" if spec.endswith("dgx1") else "dgx-h100:2")), "Simple")


@cache
def planner_of(spec: str, group: tuple[int, ...] | None) -> Planner:
    return Planner(shape_of(topology_of(spec), group), interpreted=True)


@cache
def any_planner_of(spec: str, group: tuple[int, ...] | None) -> SizesPlanner:
    return planner_for(shape_for(topology_of(spec), group), interpreted=True)


@st.composite
def questions(draw: st.DrawFn, groups: Sequence[tuple[str, tuple[int, ...] | None]] = GROUPS) -> Question:
    spec, group = draw(st.sampled_from(groups))
    k = any_planner_of(spec, group).net.nranks
    sizes = np.array(draw(st.lists(SIZES, min_size=k * k, max_size=k * k)), dtype=np.int64).reshape(k, k)
    if draw(st.booleans()):
        sizes[draw(st.integers(0, k - 1))] = 0
    return spec, group, sizes


def skewed(kind: str, k: int, mean: int) -> NDArray[np.int64]:
    draw = np.random.default_rng(7)
    sizes = np.full((k, k), mean)
    if kind == "popular":
        share = draw.permutation(1 / np.arange(1, k + 1))
        sizes = (share / share.sum() * k * mean * draw.uniform(0.8, 1.2, (k, k))).astype(np.int64)
    if kind == "hot":
        sizes[:, 3] *= 10
    if kind == "empty rows":
        sizes[draw.random(k) < 0.5] = 0
    if kind == "one block":
        sizes[3, k - 2] *= 100
    return sizes
