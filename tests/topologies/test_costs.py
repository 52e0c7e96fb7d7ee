"""Tests of an executor's costs: their statement in machine files and their effect on a network."""

from __future__ import annotations

import math

import numpy as np
import pytest

from topologies.costed import protocols_of, with_costs, with_protocol, without_costs
from topologies.costs import ANY, LINK_KINDS, PROTOCOLS, Costs, Protocol, SwitchCosts
from topologies.errors import InputError
from topologies.load import load
from topologies.machines import machines
from topologies.network import network, subnetwork
from topologies.text.costs import read_costs_file
from topologies.text.reader import from_toml, read_machine
from topologies.text.writer import to_toml

_NODE = """
name = "pair"
ranks = 2
links = [{pairs = "0>1", both = true, gbs = 10, alpha_us = 1, kind = "nvlink"}]
[costs.LL]
start_us = 2
latency_us = {nvlink = 0.25}
efficiency = {nvlink = 0.5}
[costs.LL128]
links = ["nvlink"]
[costs.Simple]
threadblock_gbs = 4
gap_us = {nvlink = 3}
"""


def test_costs_are_off_by_default() -> None:
    plain, stated = load("dgx-a100:2"), without_costs(load("dgx-a100:2"))
    assert plain.costs is not None
    assert not plain.protocol
    plain_network, network_without_costs = (network(t, range(16)) for t in (plain, stated))
    assert np.array_equal(plain_network.alpha_us, network_without_costs.alpha_us)
    assert np.array_equal(plain_network.capacity_gbs, network_without_costs.capacity_gbs)
    assert not len(plain_network.gap_us)
    assert not protocols_of(plain)
    assert with_protocol(plain, "LL") is plain


def test_the_latency_of_a_protocol_replaces_alpha() -> None:
    t = with_costs(load("dgx-a100:2"))
    for name in PROTOCOLS:
        net = network(with_protocol(t, name), range(16))
        inside = t.nodes[net.src] == t.nodes[net.dst]
        protocol = t.costs.protocols[name]  # type: ignore[union-attr]
        # A path through the NVSwitch is two links but one step.
        assert set(net.alpha_us[inside & (net.bandwidth_gbs > 100 * protocol.efficiency["nvlink"])]) == {
            protocol.latency_us["nvlink"]
        }
        assert set(net.alpha_us[~inside]) == {protocol.latency_us["network"]}
        assert set(net.gap_us[~inside]) == {protocol.gap_us["network"]}
        np.testing.assert_allclose(net.bandwidth_gbs.max(), 300 * protocol.efficiency["nvlink"])
        np.testing.assert_allclose(net.bandwidth_gbs.min(), 25 * protocol.efficiency["network"])


def test_any_protocol_is_no_worse_than_each() -> None:
    t = with_costs(load("ndv2:2"))
    best = network(t, range(16))
    assert t.protocol == ANY
    for name in protocols_of(t):
        net = network(with_protocol(t, name), range(16))
        assert (best.alpha_us <= net.alpha_us).all()
        assert (best.capacity_gbs >= net.capacity_gbs).all()
        assert np.array_equal(best.uses_idx, net.uses_idx)


def test_missing_figures_are_those_of_the_topology() -> None:
    t = with_costs(from_toml(_NODE, "pair.toml"))
    simple, ll = (network(with_protocol(t, name), range(2)) for name in ("Simple", "LL"))
    assert simple.alpha_us.tolist() == [1, 1]
    assert simple.gap_us.tolist() == [3, 3]
    assert subnetwork(simple, np.array([1, 0]))[0].gap_us.tolist() == [3, 3]
    assert ll.alpha_us.tolist() == [0.25, 0.25]
    assert ll.bandwidth_gbs.tolist() == [5, 5]
    assert not len(ll.gap_us)


def test_shared_limits_have_the_efficiency_of_the_protocol() -> None:
    t = with_costs(load("dgx2:2"))  # Two GPUs share a NIC.
    net = network(with_protocol(t, "LL"), range(32))
    shared = [net.capacity_gbs[i] for i, name in enumerate(net.resource_names) if name.startswith("nic")]
    assert t.costs is not None
    np.testing.assert_allclose(shared, 12.5 * t.costs.protocols["LL"].efficiency["network"])


def test_ll128_needs_a_suitable_kind_of_link() -> None:
    on_pcie = _NODE.replace('"nvlink"}]', '"pcie"}]')
    assert protocols_of(with_costs(from_toml(_NODE, "a.toml"))) == list(PROTOCOLS)
    t = with_costs(from_toml(on_pcie, "a.toml"))
    assert protocols_of(t) == ["LL", "Simple"]
    with pytest.raises(InputError, match="'pair': its costs allow no LL128 on its links; it must be LL or Simple"):
        with_protocol(t, "LL128")


@pytest.mark.parametrize("name", machines())
def test_machines_state_the_source_of_costs(name: str) -> None:
    t = load(name)
    assert t.costs is None or (t.costs.source and protocols_of(with_costs(t)))
    for protocol, costs in t.costs.protocols.items() if t.costs is not None else ():
        assert protocol in PROTOCOLS
        assert costs.efficiency.keys() == costs.latency_us.keys()


def test_costs_of_operations_in_switches() -> None:
    t, costs = load("dgx-h100"), Protocol(switch_ops=SwitchCosts(5, 0.5))
    net = network(with_protocol(with_costs(t, Costs({"LL": Protocol(), "Simple": costs})), "Simple"), range(8))
    h = net.hyperlinks
    assert h is not None
    assert set(h.alpha_us) == {5}
    assert set(h.bandwidth_gbs[~h.paced]) == {225}
    assert set(net.bandwidth_gbs) == {450}
    # A reduction in the switch takes the full capacity of the ports that it crosses.
    assert set(h.takes_gbs[~h.paced]) == {450}
    assert set(net.capacity_gbs) == {450}
    with_switch_costs, without_switch_costs = (
        network(with_protocol(with_costs(t, Costs(c)), "LL"), range(8)) for c in ({"LL": costs}, {"LL": Protocol()})
    )
    assert (with_switch_costs.hyperlinks is None, without_switch_costs.hyperlinks is None) == (False, True)


def test_costs_round_trip() -> None:
    for spec in ("dgx-a100:2", "dgx-h100", "star:4,threadblock_gbs=20,gap_us=0.25"):
        t = load(spec)
        reread = read_machine(to_toml(t), "x").topology
        assert reread.costs == t.costs
        assert np.array_equal(reread.link_kind, t.link_kind)
    costs = Costs({"Simple": Protocol(1.5, math.inf, {"other": 0.1}, {"pcie": 0.7}, {}, ("other", "pcie"))}, 'a "b"')
    assert from_toml(to_toml(with_costs(load("ring:3"), costs)), "x").costs == costs


def test_a_file_of_costs(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("costs") / "own.toml"
    path.write_text('[costs]\nsource = "measured"\n[costs.Simple]\nstart_us = 5\n')
    assert read_costs_file(path) == Costs({"Simple": Protocol(5)}, "measured")
    path.write_text('name = "x"\n')
    with pytest.raises(InputError, match=r"own.toml: costs: missing; it must be a table \[costs\]"):
        read_costs_file(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("start_us = 2", "start_us = -1", r"pair.toml:6: \[costs.LL\]: start_us: -1 is out of range"),
        ("start_us = 2", "start = 2", r"pair.toml:6: \[costs.LL\]: 'start': unknown key; did you mean start_us"),
        ("{nvlink = 0.25}", "{nvlnk = 0.25}", r"\[costs.LL.latency_us\]: 'nvlnk': unknown key"),
        ("{nvlink = 0.5}", "{nvlink = 1.5}", r"\[costs.LL.efficiency\]: nvlink: 1.5 is out of range"),
        ("{nvlink = 0.5}", "0.5", r"pair.toml:8: \[costs.LL\]: efficiency: 0.5 is no table"),
        ("start_us = 2", "switch_ops = {latency_us = 1}", r"\[costs.LL.switch_ops\]: efficiency: missing"),
        ("start_us = 2", "switch_ops = {latency_us = 1, efficiency = 2}", "efficiency: 2 is out of range"),
        ("start_us = 2", "switch_ops = {latency = 1}", r"\[costs.LL.switch_ops\]: 'latency': unknown key"),
        ("threadblock_gbs = 4", "threadblock_gbs = nan", "threadblock_gbs: nan is out of range"),
        ('["nvlink"]', '["nv"]', r"\[costs.LL128\]: links: holds 'nv', which is no kind of link"),
        ("costs.LL128]", "costs.LL256]", r"\[costs\]: 'LL256': unknown key"),
        ('kind = "nvlink"}', 'kind = "wire"}', "kind: 'wire' is no kind of link; it must be one of other, nvlink"),
    ],
)
def test_one_wrong_line_of_costs(old: str, new: str, message: str) -> None:
    assert old in _NODE
    with pytest.raises(InputError, match=message):
        from_toml(_NODE.replace(old, new), "pair.toml")


def test_costs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"'ring:4': states no \[costs\]"):
        with_costs(load("ring:4"))
    with pytest.raises(InputError, match="no protocol of its costs is right on links of kind other"):
        with_costs(load("ring:4"), Costs({"LL128": Protocol(links=("nvlink",))}))
    with pytest.raises(InputError, match="no protocol; it must be at least one of LL, LL128, Simple"):
        Costs({})
    with pytest.raises(InputError, match="threadblock_gbs=0"):
        load("ring:4,threadblock_gbs=0")
    assert load("ring:4,start_us=3").costs == Costs({p: Protocol(3) for p in ("LL", "Simple")}, "given")
    assert LINK_KINDS[0] == "other"
