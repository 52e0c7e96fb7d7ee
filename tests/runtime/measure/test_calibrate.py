"""A topology with measured costs: it states what was measured, and links of equal costs stay equal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.measure.calibrate import (
    APART,
    Calibration,
    MeasuredLink,
    calibrate,
    linked_pairs,
    pairs_by_limit,
)
from topologies.errors import InputError
from topologies.load import load
from topologies.network import network
from topologies.text.reader import from_toml
from topologies.text.writer import to_toml
from topologies.topology import Topology


def made_up(topology: Topology, alpha_us: float, gbs: float) -> dict[tuple[int, int], MeasuredLink]:
    return {pair: MeasuredLink(alpha_us, gbs) for pair in linked_pairs(topology)}


def test_links_without_switches_get_the_measured_costs() -> None:
    ring = load("ring:6")
    measured = made_up(ring, 40.0, 2.0) | {(0, 1): MeasuredLink(70.0, 0.5)}
    calibrated = calibrate(ring, Calibration(measured, {}, {}), "here")
    net = network(calibrated, range(6))
    for a, b, alpha, gbs in zip(net.src, net.dst, net.alpha_us, net.bandwidth_gbs, strict=True):
        assert (alpha, gbs) == ((70.0, 0.5) if (a, b) == (0, 1) else (40.0, 2.0))
    assert calibrated.source == "here"
    assert not calibrated.alpha_assumed
    again = from_toml(to_toml(calibrated), "again")
    assert np.array_equal(again.bandwidth_gbs, calibrated.bandwidth_gbs)


@pytest.mark.parametrize("spec", ["dgx-a100", "dgx1", "fattree:2x4x2", "ndv2:2", "mesh:3x3"])
def test_a_machine_that_is_k_times_slower(spec: str) -> None:
    old = load(spec)
    net = network(old, range(old.nranks))
    best: dict[tuple[int, int], MeasuredLink] = {}
    for a, b, alpha, gbs in zip(net.src.tolist(), net.dst.tolist(), net.alpha_us, net.bandwidth_gbs, strict=True):
        if (a, b) not in best or best[a, b].gbs < gbs / 8:
            best[a, b] = MeasuredLink(4 * float(alpha), float(gbs) / 8)
    limits = {limit.name: limit.bandwidth_gbs / 8 for limit in old.limits}
    new = network(calibrate(old, Calibration(best, limits, {}), "slower"), range(old.nranks))
    assert np.allclose(new.bandwidth_gbs, net.bandwidth_gbs / 8, rtol=5e-3)
    assert np.allclose(new.alpha_us, 4 * net.alpha_us, rtol=5e-3)


@given(st.lists(st.floats(1.0, 1.2), min_size=12, max_size=12))
def test_noise_makes_no_new_kinds_of_links(noise: list[float]) -> None:
    ring = load("ring:6")
    links = {p: MeasuredLink(10 * x, 5 * x) for p, x in zip(linked_pairs(ring), noise, strict=True)}
    calibrated = calibrate(ring, Calibration(links, {}, {}), "noisy")
    assert len(set(calibrated.bandwidth_gbs.tolist())) == 1
    assert len(set(calibrated.alpha_us.tolist())) == 1
    assert 5 * min(noise) * 0.99 <= calibrated.bandwidth_gbs[0] <= 5 * max(noise) * 1.01


def test_a_much_slower_link_is_a_separate_kind() -> None:
    ring = load("ring:6")
    measured = made_up(ring, 1.0, 4.0)
    measured[2, 3] = MeasuredLink(1.0, 4.0 / APART / 1.01)
    calibrated = calibrate(ring, Calibration(measured, {}, {}), "one bad")
    slow = (calibrated.link_src == 2) & (calibrated.link_dst == 3)
    assert calibrated.bandwidth_gbs[slow][0] < 4.0
    assert set(calibrated.bandwidth_gbs[~slow].tolist()) == {4.0}


def test_limits_are_measured_by_the_pairs_that_use_them() -> None:
    two = load("ndv2:2")
    pairs_of_limit = pairs_by_limit(two)
    assert set(pairs_of_limit) == {limit.name for limit in two.limits}
    net = network(two, range(two.nranks))
    for name, listed in pairs_of_limit.items():
        number = net.resource_names.index(name)
        users = {(int(net.src[link]), int(net.dst[link])) for link in range(net.nlinks) if number in net.uses(link)}
        assert set(listed) == users


def test_impossible_measurements_are_refused() -> None:
    ring = load("ring:4")
    for bad in (MeasuredLink(1.0, 0.0), MeasuredLink(1.0, float("nan")), MeasuredLink(float("inf"), 1.0)):
        with pytest.raises(InputError, match="0→1"):
            calibrate(ring, Calibration(made_up(ring, 1.0, 1.0) | {(0, 1): bad}, {}, {}), "bad")
