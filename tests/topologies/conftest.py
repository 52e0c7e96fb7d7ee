"""Parametrization of the fixture `any_spec` over all machines and over small families and clusters."""

from __future__ import annotations

import pytest

from topologies.machines import machines

SMALL_FAMILIES = [
    "ring:2",
    "ring:5",
    "ring:8",
    "line:2",
    "line:5",
    "full:4",
    "mesh:3x4",
    "torus:2x2",
    "torus:2x3x4",
    "torus:4x4",
    "hypercube:3",
    "star:2",
    "star:6",
    "fattree:2",
    "fattree:4",
    "fattree:3x2x2",
    "dragonfly:3x2x2",
    "dragonfly:5x2x1",
]
CLUSTERS = ["ndv2:2", "ndv2:3", "dgx2:2", "dgx-a100:2", "dgx-h100:3", "mi250:2", "gaudi3:2"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "any_spec" in metafunc.fixturenames:
        metafunc.parametrize("any_spec", [*machines(), *CLUSTERS, *SMALL_FAMILIES])
