"""Tests that machine files state the published figures."""

from __future__ import annotations

import numpy as np
import pytest

from topologies.load import load, load_machine
from topologies.machines import machines


@pytest.mark.parametrize(
    ("machine", "ranks", "gbs"),
    [
        ("dgx1", 8, 150), ("ndv2", 8, 150), ("dgx2", 16, 125), ("dgx-a100", 8, 300), ("dgx-h100", 8, 450),
        ("dgx-h200", 8, 450), ("gb200-nvl72", 72, 900), ("mi300x", 8, 448), ("gaudi3", 8, 525),
        ("z52", 8, 64), ("gb300-nvl72", 72, 900), ("dgx-b200", 8, 900), ("dgx-b300", 8, 900), ("mi325x", 8, 448),
        ("mi355x", 8, 537.6), ("azure-nd-a100-v4", 8, 300), ("azure-nd-h100-v5", 8, 450),
        ("azure-nd-mi300x-v5", 8, 448), ("p4d.24xlarge", 8, 300), ("p5.48xlarge", 8, 450), ("p5en.48xlarge", 8, 450),
        ("p6-b200.48xlarge", 8, 900), ("p6-b300.48xlarge", 8, 900), ("a2-highgpu-8g", 8, 300),
        ("a3-highgpu-8g", 8, 450), ("a3-megagpu-8g", 8, 450), ("a3-ultragpu-8g", 8, 450), ("a4-highgpu-8g", 8, 900),
        ("l40s-1root", 4, 26), ("l40s-2root", 8, 26), ("trn1", 16, 192), ("trn2", 16, 512), ("tpu-v4:4x4x4", 64, 300),
        ("tpu-v5p:4x4x8", 128, 600),
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


@pytest.mark.parametrize(
    ("machine", "gbs"),
    [
        ("mi300x", 400), ("gb200-nvl72", 3600), ("gb300-nvl72", 7200), ("dgx-b200", 400), ("dgx-b300", 800),
        ("p4d.24xlarge", 50), ("p5.48xlarge", 400), ("p5en.48xlarge", 400), ("p6-b200.48xlarge", 400),
        ("p6-b300.48xlarge", 800), ("azure-nd-a100-v4", 200), ("azure-nd-h100-v5", 400), ("azure-nd-mi300x-v5", 400),
        ("a2-highgpu-8g", 12.5), ("a3-highgpu-8g", 100), ("a3-megagpu-8g", 200), ("a3-ultragpu-8g", 400),
        ("a4-highgpu-8g", 400), ("trn1", 100), ("trn2", 400), ("trn2-ultra", 1600),
    ],
)  # fmt: skip
def test_bandwidth_of_the_nics_of_a_node(machine: str, gbs: float) -> None:
    nics = load_machine(machine).nics
    assert nics is not None
    assert nics.gbs * len(nics.sends) == pytest.approx(gbs)
    assert load(f"{machine}:2").nranks == 2 * load(machine).nranks


def test_a_small_slice_of_a_tpu_pod_is_a_mesh() -> None:
    assert load("tpu-v4:2x2x1").nlinks == 8
    assert load("tpu-v4:4x4x4").nlinks == 6 * 64


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
