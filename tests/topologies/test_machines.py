"""Tests that machine files state the published figures."""

from __future__ import annotations

import numpy as np
import pytest

from topologies.load import load, machines


@pytest.mark.parametrize(
    ("machine", "ranks", "gbs"),
    [
        ("dgx1", 8, 150), ("ndv2", 8, 150), ("dgx2", 16, 125), ("dgx-a100", 8, 300), ("dgx-h100", 8, 450),
        ("dgx-h200", 8, 450), ("gb200-nvl72", 72, 900), ("mi300x", 8, 448), ("gaudi3", 8, 525),
        ("z52", 8, 64),
    ],
)  # fmt: skip
def test_bandwidth_per_gpu(machine: str, ranks: int, gbs: float) -> None:
    t = load(machine)
    assert t.nranks == ranks
    out = np.bincount(t.link_src, t.bandwidth_gbs, t.nvertices)
    into = np.bincount(t.link_dst, t.bandwidth_gbs, t.nvertices)
    np.testing.assert_allclose(out[:ranks], gbs)
    np.testing.assert_allclose(into[:ranks], gbs)
    assert not t.nodes.any()


def test_mi250_links() -> None:
    t = load("mi250")
    out = np.bincount(t.link_src, t.bandwidth_gbs) / 50
    # ForestColl's table, links per die.
    assert out.tolist() == [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]
    assert t.nlinks == 56
    assert np.array_equal(out, np.bincount(t.link_dst, t.bandwidth_gbs) / 50)


def test_dgx1_is_the_published_matrix() -> None:
    t = load("dgx1")
    links = np.zeros((8, 8), dtype=int)
    links[t.link_src, t.link_dst] = t.bandwidth_gbs / 25
    assert links[0].tolist() == [0, 2, 1, 1, 2, 0, 0, 0]
    assert links[5].tolist() == [0, 1, 0, 0, 2, 0, 1, 2]
    assert np.array_equal(links, links.T)
    assert (t.alpha_us == 0.7).all()
    assert not t.alpha_assumed


@pytest.mark.parametrize(
    ("spec", "sms"),
    [
        ("dgx1", 80), ("ndv2:3", 80), ("dgx2", 80), ("dgx-a100", 108), ("dgx-a100:2", 108), ("dgx-h100", 132),
        ("dgx-h200", 132), ("mi250", 104), ("mi300x", 304), ("gb200-nvl72", 152), ("gaudi3", 0), ("ring:4", 0),
    ],
)  # fmt: skip
def test_sms_of_a_device(spec: str, sms: int) -> None:
    assert load(spec).sms == sms


def test_every_machine_states_its_source() -> None:
    for name in machines():
        t = load(name)
        assert t.summary, name
        assert t.source, name
    for name in ("dgx-a100", "dgx-h100", "gb200-nvl72", "mi300x", "gaudi3", "mi250", "z52"):
        assert load(name).alpha_assumed, name
