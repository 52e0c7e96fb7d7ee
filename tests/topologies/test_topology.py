"""Tests that a topology is checked when it is constructed, and that its links are sorted."""

from __future__ import annotations

import numpy as np
import pytest

from topologies.errors import InputError
from topologies.topology import Limit, Topology


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"link_src": [0, 0.5]}, "whole numbers"), ({"link_src": [0, 2]}, "0 to 1"),
        ({"link_src": [0, 0]}, "different"),
        ({"link_src": [-1, 1]}, "0 to 1"), ({"link_dst": [1]}, "equally long"),
        ({"link_src": [0], "link_dst": [1]}, "equ"),
        ({"alpha_us": [0, np.nan]}, "alpha_us"), ({"alpha_us": [0, -1]}, "alpha_us"),
        ({"bandwidth_gbs": [1, 0]}, "GB/s"),
        ({"bandwidth_gbs": [1, np.inf]}, "GB/s"), ({"bandwidth_gbs": ["a", "b"]}, "numbers"),
        ({"nranks": 0}, "1 to"),
        ({"nranks": 2.0}, "whole"), ({"sms": -1}, "sms -1"), ({"sms": 5000}, "1 to 4096"),
        ({"compute_capability": 9}, "30 to 999"),
        ({"gcn": "MI300X"}, "as in gfx942"),
        ({"platform": "P5 48"}, "as in p5.48xlarge"),
        ({"gcn": "gfx942", "compute_capability": 90}, "'gfx942' and compute_capability 90; it must be one of them"),
        ({"name": ""}, "name"), ({"switches": ("a", "a")}, "two switches"),
        ({"switches": ("3",)}, "letter"), ({"link_src": [0, 0], "link_dst": [1, 1]}, "both go 0→1"),
        ({"nodes": [0]}, "nodes"),
        ({"nodes": [0, 5]}, "nodes"), ({"limits": (Limit("l", np.array([2]), 1.0),)}, "no link 2"),
        ({"limits": (Limit("l", np.array([0]), 0.0),)}, "GB/s"),
        ({"limits": (Limit("l", np.array([]), 1.0),)}, "no link"),
        ({"limits": (Limit("l", np.array([0]), 1.0), Limit("l", np.array([1]), 1.0))}, "two limits"),
        ({"limits": (Limit("0→1", np.array([0]), 1.0),)}, "without →"),
    ],
)  # fmt: skip
def test_the_constructor_refuses_wrong_parts(change: dict[str, object], message: str) -> None:
    parts: dict[str, object] = {
        "name": "x", "nranks": 2, "switches": (), "link_src": [0, 1], "link_dst": [1, 0], "alpha_us": [0, 0],
        "bandwidth_gbs": [1, 1],
    }  # fmt: skip
    with pytest.raises(InputError, match=message) as error:
        Topology(**{**parts, **change})  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_links_are_sorted_and_limits_follow() -> None:
    t = Topology(
        "x", 3, (), np.array([2, 0]), np.array([0, 1]), np.array([1.0, 2]), np.array([3.0, 4]),
        (Limit("l", np.array([0]), 1.0),),
    )  # fmt: skip
    assert t.link_src.tolist() == [0, 2]
    assert t.alpha_us.tolist() == [2, 1]
    assert t.limits[0].links.tolist() == [1]
    with pytest.raises(ValueError, match="read-only"):
        t.link_src[0] = 1
    assert t.vertex_name(2) == "2"
    with pytest.raises(InputError, match="no vertex 3"):
        t.vertex_name(3)
