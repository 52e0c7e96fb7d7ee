"""Tests of files that simulators and other synthesizers read, worked out by hand."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tests.topologies.importers.simulators import (
    ASTRA,
    FILES,
    NETGRAPH,
    OLDER_ASTRA,
    OLDER_NETGRAPH,
    STAR,
    TACCL,
    TACCL_MATRICES,
    TACCL_NDV2,
    TE_CCL,
    racks,
    rails,
    taccl_pairs,
)
from tests.topologies.importers.test_fabrics import between
from tests.topologies.importers.test_importers import pairs, read
from topologies.clusters import join
from topologies.costs import LINK_KINDS
from topologies.errors import InputError
from topologies.importers import format_of
from topologies.importers.combine import import_files
from topologies.load import load, load_machine
from topologies.network import network
from topologies.text.writer import to_toml
from topologies.topology import Topology

NAMES = ["topology of SimAI or ns-3"] * 3 + ["network of ASTRA-sim"] * 2 + ["topology of TACCL"] * 3
NAMES += ["input of TE-CCL"] + ["scenario of NetGraph"] * 2
GB = 2**30 / 1e9


def alphas(topology: Topology) -> dict[tuple[int, int], float]:
    """Return the least α in µs between each pair of ranks."""
    net = network(topology, range(topology.nranks))
    us_of: dict[tuple[int, int], float] = {}
    for a, b, us in zip(net.src.tolist(), net.dst.tolist(), net.alpha_us.tolist(), strict=True):
        us_of[a, b] = min(us, us_of.get((a, b), np.inf))
    return us_of


def test_formats_are_recognized_by_content() -> None:
    assert [format_of(text).name for text in FILES] == NAMES


@pytest.mark.parametrize("text", FILES, ids=range(len(FILES)))
def test_files_are_topologies_of_the_command(text: str, tmp_path: Path) -> None:
    (path := tmp_path / "a file").write_text(text)
    assert load(path).nlinks == import_files([path], "named").topology.nlinks == load(str(path)).nlinks


@pytest.mark.parametrize("text", [STAR, ASTRA, TE_CCL, NETGRAPH])
def test_networks_are_imported_by_themselves(text: str, tmp_path: Path) -> None:
    (first := tmp_path / "first").write_text(text)
    (second := tmp_path / "second").write_text(STAR)
    for paths, node, given in (
        ([first, second], None, "another file"),
        ([first], load_machine("dgx-h100"), "--node"),
    ):
        with pytest.raises(
            InputError, match=f"first: is a simulator's file, which states a whole network, with {given}"
        ):
            import_files(paths, node=node)


# Rail-optimised fabrics of SimAI


def test_planes_and_spines_are_capacity() -> None:
    """Check 4 servers of 2 GPUs: two planes of 200 Gbit/s a GPU, on each plane 2 rails with 3 uplinks of 400 each."""
    machine = read(rails(4, 2, 2, 2, 3))
    topology = machine.topology
    assert (topology.nranks, topology.nodes.tolist()) == (8, [0, 0, 1, 1, 2, 2, 3, 3])
    # 4 NVSwitches, 2 segments × 2 rails, one spine in place of 6.
    assert len(topology.switches) == 4 + 4 + 1
    (spine,) = (switch for switch in topology.switches if switch.endswith(".x6"))
    assert {between(topology, leaf, spine) for leaf in topology.switches if leaf.endswith(".x2")} == {2 * 3 * 50.0}
    kinds = {LINK_KINDS[kind]: set(topology.bandwidth_gbs[topology.link_kind == kind]) for kind in topology.link_kind}
    assert kinds == {"nvlink": {360.0}, "network": {50.0, 300.0}}
    latency = alphas(topology)
    assert latency[0, 1] == pytest.approx(0.05)  # By NVSwitch.
    assert latency[0, 2] == pytest.approx(1.0)  # The same rail.
    assert latency[0, 3] == latency[0, 7] == pytest.approx(2.0)  # Another rail, another segment.
    assert (topology.compute_capability, topology.sms, topology.alpha_assumed) == (90, 132, False)
    assert "18 switches are drawn as 9" in machine.remarks[1]
    assert topology.summary.endswith("on 18 switches, drawn as 9")


def test_leaves_of_all_rails() -> None:
    topology = read(racks(4, 2, 2, 3)).topology
    (spine,) = (switch for switch in topology.switches if switch.endswith(".x3"))
    assert sorted(topology.switches) == [
        "nvswitch10",
        "nvswitch11",
        "nvswitch8",
        "nvswitch9",
        "switch12",
        "switch13",
        spine,
    ]
    assert between(topology, "switch12", spine) == 150
    assert (alphas(topology)[0, 3], alphas(topology)[0, 4]) == pytest.approx((1.0, 2.0))
    assert pairs(topology)[0, 4] == 12.5


def test_a_missing_uplink_keeps_switches_apart() -> None:
    machine = read(rails(2, 4, 2, 2, 2, omit=[0]))
    assert len(machine.topology.switches) > 2 + 4 + 1
    assert any("each pair of ranks keeps one of its best" in remark for remark in machine.remarks)
    whole = read(rails(2, 4, 2, 2, 2))
    assert not any("keeps one" in remark for remark in whole.remarks)


def test_large_fabrics_take_little_memory() -> None:
    """Check that 4,096 GPUs have a few links each, and not one for each pair."""
    text = rails(512)
    tracemalloc.start()
    topology = read(text).topology
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (topology.nranks, len(topology.switches)) == (4096, 512 + 32 + 1)
    assert topology.nlinks == 2 * (2 * 4096 + 32)
    assert peak < 40 * len(text)


def test_hosts_of_ns3() -> None:
    machine = read(STAR + "\nFirst line: nodes, switches, links\nsrc0 dst0 rate delay error_rate\n")
    topology = machine.topology
    assert (topology.nranks, topology.switches, topology.nodes.tolist()) == (4, ("switch4",), [0, 1, 2, 3])
    assert set(topology.bandwidth_gbs) == {12.5}
    ring = read("3 0 3\n\n0 1 1Gbps 1us 0\n1 2 1Gbps 1us 0\n2 0 1Gbps 1us 1e-3\n")
    assert (ring.topology.nlinks, ring.topology.switches) == (6, ())
    assert "error rates of links are ignored" in ring.remarks
    assert topology.summary == "4 hosts on 1 switch"
    middle = read("3 1 2\n0\n0 1 1Gbps 1us 0\n0 2 1Gbps 1us 0\n").topology  # Switches need not come last.
    assert (middle.nranks, middle.switches) == (2, ("switch0",))


def test_nvswitches_of_several_servers_are_remarked() -> None:
    def remarks_of(text: str) -> str:
        return "\n".join(read(text).remarks)

    assert "8 NVSwitches with GPUs of several servers" in remarks_of(rails(8).replace(" 8 8 ", " 4 8 ", 1))
    assert "several servers" not in remarks_of(rails(8))


@pytest.mark.parametrize(
    ("rate", "gbs"),
    [("400Gbps", 50), ("400Gb/s", 50), ("50GBps", 50), ("50GB/s", 50), ("8Gib/s", 2**30 / 1e9), ("1000Mbps", 0.125),
     ("800000000", 0.1), ("2.5Gbps", 0.3125)],
)  # fmt: skip
def test_rates_have_the_units_of_ns3(rate: str, gbs: float) -> None:
    topology = read(STAR.replace("100Gbps", rate)).topology
    assert topology.bandwidth_gbs[0] == pytest.approx(gbs)


@pytest.mark.parametrize(
    ("delay", "us"),
    [("0.0005ms", 0.5), ("500ns", 0.5), ("0.5us", 0.5), ("1e-6s", None), ("0.000001s", 1), ("25ps", 2.5e-5)],
)
def test_delays_have_the_units_of_ns3(delay: str, us: float | None) -> None:
    text = STAR.replace("0 4 100Gbps 1us", f"0 4 100Gbps {delay}")
    if us is None:
        with pytest.raises(InputError, match="must be a delay"):
            read(text)
    else:
        assert read(text).topology.alpha_us[0] == us


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (STAR.replace("5 1 4", "1000000000 1 4"), "states no counts"),
        (STAR.replace("5 1 4", "999999999 1 4"), "at most 1000000 nodes"),
        (STAR.replace("5 1 4", "5 1 99999999"), "99999999 links; it must be"),
        (STAR.replace("5 1 4", "5 5 4"), "5 nodes and 5 switches among them"),
        (
            STAR.replace("5 1 4", "5 1"),
            "'5 1' has 2 counts; it must have 3 (ns-3), or 5 and the type of the GPUs (SimAI)",
        ),
        (STAR.replace("5 1 4", "5 1 4 4"), "'5 1 4 4' has 4 counts; it must have 3"),
        (STAR.replace("5 1 4", "5 1 x"), "'5 1 x' states no counts"),
        (STAR.replace("5 1 4", "5 0 1 0 4 H100"), "0 GPUs per server"),
        (STAR.replace("5 1 4", "5 1 5"), "has 4 links, and the first line counts 5"),
        (STAR.replace("5 1 4", "5 1 3"), ":6: is link 4, and the first line counts 3"),
        (STAR.replace("5 1 4", "5 2 4"), "1 switch, and the first line counts 2"),
        (STAR.replace("5 1 4\n4", "5 2 4\n4 4"), "switch 4 stands twice"),
        (STAR.replace("\n4\n", "\n5\n"), ":2: '5' is no node; it must be 0 to 4"),
        (STAR.replace("\n3 4", "\n3 7"), ":6: '7' is no node"),
        (STAR.replace("\n3 4", "\n-3 4"), ":6: '-3' is no node"),
        (STAR.replace("\n3 4", "\n4 4"), ":6: links 4 to itself"),
        (STAR.replace("\n3 4", "\n4 0"), ":6: 4 and 0 are linked in line 3 too"),
        (STAR.replace("\n3 4", "\n3 0").replace("\n0 4", "\n0 3"), "linked in line 3 too"),
        (STAR.replace("3 4 100Gbps", "3 4 NaN"), ":6: 'NaN': must be a rate"),
        (STAR.replace("3 4 100Gbps", "3 4 0Gbps"), "must be a rate"),
        (STAR.replace("3 4 100Gbps", "3 4 100Xbps"), "must be a rate"),
        (STAR.replace("3 4 100Gbps 1us", "3 4 100Gbps nan"), "must be a delay"),
        (STAR.replace("3 4 100Gbps 1us 0", "3 4 100Gbps 1us nan"), "must be an error rate"),
        (STAR.replace("3 4 100Gbps 1us 0", "3 4 100Gbps 1us 2"), "must be an error rate"),
        (STAR.replace("3 4 100Gbps 1us 0", "3 4 100Gbps 1us"), "is no link"),
        (STAR.replace("5 1 4", "6 1 4"), "node 5 is not connected to node 0"),
        ("6 1 4\n5\n", "has 0 links, and the first line counts 4"),
        ("6 1 4", "ends after the first line, which counts 1 switch"),
        ("6 1 4 2\n5\n", "'6 1 4 2' has 4 counts"),
        (rails(8).replace(" 8 8 ", " 7 8 ", 1), ":1: 64 GPUs ("),
        ("4 0 2\n1 3 1Gbps 1us 0\n2 3 1Gbps 1us 0\n", "node 0 is not connected to node 1"),
    ],
)
def test_broken_files_of_ns3_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read(text)
    assert message in str(error.value)
    assert str(error.value).isprintable()


# ASTRA-sim


def test_dimensions_of_astra_sim() -> None:
    """Check 3 × 2 × 2 NPUs: rank = x + 3 (y + 2 z); a GB is 2³⁰ bytes, and a switch is two links on a path."""
    topology = read(ASTRA).topology
    assert (topology.nranks, len(topology.switches)) == (12, 6)
    assert topology.nlinks == 12 * 2 + 12 * 1 + 12 * 2
    gbs, us = pairs(topology), alphas(topology)
    assert {pair: (gbs[pair], us[pair]) for pair in ((0, 1), (0, 2), (0, 3), (0, 6))} == {
        (0, 1): pytest.approx((200 * GB, 0.05)),
        (0, 2): pytest.approx((200 * GB, 0.05)),
        (0, 3): pytest.approx((100 * GB, 0.5)),
        (0, 6): pytest.approx((50 * GB, 4.0)),
    }
    assert not {(0, 4), (0, 7), (2, 3)} & gbs.keys()


def test_rates_of_astra_sim_are_written_with_few_digits() -> None:
    text = to_toml(read("topology: Ring\nnpus_count: [8]\nbandwidth: [200]\nlatency: [0]\n").topology)
    assert "gbs = 214.7483648\n" in text


def test_one_dimension_of_astra_sim() -> None:
    for kind, links in (("Ring", 16), ("FullyConnected", 56), ("Switch", 16)):
        topology = read(f"topology: {kind}\nnpus_count: [8]\nbandwidth: [400]\nlatency: [0]\n").topology
        assert (topology.nlinks, topology.nranks) == (links, 8)
    assert read("topology: [Ring]\nnpus_count: [2]\nbandwidth: [1]\nlatency: [0]\n").topology.nlinks == 2


def test_older_networks_of_astra_sim() -> None:
    """Check that a dimension's links are shared by an NPU's neighbours, and that NICs and routers have latencies."""
    topology = read(OLDER_ASTRA).topology
    gbs, us = pairs(topology), alphas(topology)
    assert (gbs[0, 1], us[0, 1]) == pytest.approx((4 / 2 * 10 * GB, 0.5))
    assert (gbs[0, 4], us[0, 4]) == pytest.approx((2 / 2 * 20 * GB, 0.1 + 2 * 0.005))
    assert (gbs[0, 12], us[0, 12]) == pytest.approx((3 * 30 * GB, 2 * 0.2 + 2 * 0.05 + 0.02))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ASTRA.replace("[ 3, 2, 2 ]", "[ 3, 2 ]"), "npus_count: must be a list of 3"),
        (ASTRA.replace("[ 3, 2, 2 ]", "[ 3, 2, 1 ]"), "npus_count: '1': must be a number from 2"),
        (ASTRA.replace("[ 3, 2, 2 ]", "[ 3, 2, 2.5 ]"), "npus_count: '2.5'"),
        (ASTRA.replace("[ 3, 2, 2 ]", "[ 1000000, 1000000, 1000000 ]"), "NPUs with"),
        (ASTRA.replace("[ 3, 2, 2 ]", "[ 2, 900000, 2 ]"), "it must be at most"),
        (ASTRA.replace("200.0", ".nan"), "bandwidth: '.nan'"),
        (ASTRA.replace("200.0", "-1"), "bandwidth: '-1'"),
        (ASTRA.replace("Ring", "Rings"), "did you mean Ring"),
        (ASTRA.replace("latency", "delay"), "latency: must be a list of 3"),
        ('{"logical-dims": ["8", "2"]}', "states sizes of logical dimensions, but no links"),
        (OLDER_ASTRA.replace('"links-count": [4, 2', '"links-count": [3, 2'), "it must be a multiple"),
        (OLDER_ASTRA.replace("[10, 20, 30]", "[10, 20, true]"), "link-bandwidth: true"),
        (OLDER_ASTRA.replace("[10, 20, 30]", "[10, 20, NaN]"), "not JSON"),
        ("npus_count: &a [*a]\ntopology: [Ring]\n", "a reference (*)"),
    ],
)
def test_broken_networks_of_astra_sim_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read(text)
    assert message in str(error.value)
    assert str(error.value).isprintable()


# TACCL and TE-CCL


def test_nodes_of_taccl() -> None:
    """Check that β in µs a MB is 1000 / β GB/s, that matrices are [to][from], and that NICs join nodes."""
    machine = read(TACCL)
    assert (pairs(machine.topology)[0, 3], alphas(machine.topology)[0, 3]) == (125, 0.5)
    two = join(machine, 2, "two")
    assert (pairs(two)[0, 4], alphas(two)[0, 4]) == (10, 2.5)
    assert [limit.name for limit in two.limits][:2] == ["nic0.0 out", "nic1.0 out"]
    chain = read(TACCL_MATRICES).topology
    assert pairs(chain) == {(0, 1): 50, (1, 2): 20}
    ndv2, eight = load("ndv2"), read(TACCL_NDV2).topology
    assert np.array_equal(eight.bandwidth_gbs, ndv2.bandwidth_gbs)
    assert np.array_equal(eight.link_dst, ndv2.link_dst)


def test_nics_connect_what_no_link_of_taccl_does() -> None:
    nics = '"nics_per_node": 2, "remote_alpha": 1, "remote_beta": 100, '
    assert read(taccl_pairs().replace('"alpha"', nics + '"alpha"')).nics is not None


def test_topologies_of_te_ccl() -> None:
    two, same = read(TE_CCL).topology, load("ndv2:2")
    assert np.array_equal(two.link_dst, same.link_dst)
    assert np.array_equal(two.alpha_us, same.alpha_us)
    assert two.costs is None
    four = read(TE_CCL.replace('"chassis": 2', '"chassis": 4')).topology
    assert alphas(four)[0, 9] == pytest.approx(2 * 1.3)  # By a switch, on GPU 0 of each chassis to GPU 1 of the others.
    assert (0, 8) not in alphas(four)
    dgx2 = read(TE_CCL.replace("NDv2", "DGX2")).topology
    assert (dgx2.nranks, pairs(dgx2)[1, 16], alphas(dgx2)[1, 16]) == (32, 12.5, 2.6)
    assert not {(0, 16), (1, 18)} & pairs(dgx2).keys()
    mesh = '{"TopologyParams": {"name": "Mesh", "side_length": 3, "alpha": [5e-7, 0]}}'
    assert {pair for pair in pairs(read(mesh).topology) if pair[0] == 2} == {(2, 1), (2, 3), (2, 5)}
    assert set(read(mesh).topology.alpha_us) == {0.5}
    amd = read('{"TopologyParams": {"name": "AMD"}}').topology
    assert np.array_equal(amd.bandwidth_gbs, load("mi250").bandwidth_gbs)
    assert read('{"TopologyParams": {}}').topology.nlinks == load("dgx1").nlinks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TACCL.replace("1MB", "32KB"), "costs for 32KB"),
        (TACCL.replace("box_1MB", ""), "name: ''"),
        (TACCL.replace(": 4,", ": 4000,"), "gpus_per_node: 4000 is out of range; it must be 1 to 1024"),
        (TACCL.replace(": 4,", ": true,"), "is no whole number"),
        (TACCL.replace(": 2,", ": 3,"), "nics_per_node: 3 for 4 GPUs"),
        (TACCL.replace("[8]", "[0]"), "β: 0 is out of range; it must be"),
        (TACCL.replace("[8]", "[8, 9]"), "for NDv2's 8 GPUs"),
        (TACCL.replace("[8]", "[1e999]"), "β: inf"),
        (TACCL.replace("[8]", "[NaN]"), "not JSON"),
        (TACCL.replace('"remote_beta": 100', '"remote": 0'), "remote_beta: missing"),
        (TACCL_MATRICES.replace("[2, 0, 0]", "[2, 0]"), "links: row 1 must be a list of 3 numbers"),
        (TACCL_MATRICES.replace("[2, 0, 0]", "[2.5, 0, 0]"), "links: row 1 holds 2.5"),
        (TACCL_MATRICES.replace("[2, 0, 0]", "[2, 1, 0]"), "links: row 1 links 1 to itself"),
        (TACCL_MATRICES.replace("[40, 0, 0]", "[0, 0, 0]"), "betas: row 1, column 0: 0 µs a MB"),
        (TACCL_MATRICES.replace('"betas"', '"beta"'), "betas: must be a list of 3 rows"),
        (TACCL_MATRICES.replace("[2, 0, 0]", "[0, 0, 0]"), "node 0 is not connected to node 1"),
        (taccl_pairs(), "node 2 is not connected to node 0; all must be"),
        (TE_CCL.replace("NDv2", "NDv3"), "did you mean NDv2"),
        (TE_CCL.replace('"NDv2"', "[]"), "is no topology of TE-CCL"),
        (TE_CCL.replace('"chassis": 2', '"chassis": 1000000000'), "chassis: 1000000000 is out of range"),
        (TE_CCL.replace("NDv2", "AMD"), "2 chassis of AMD are not read"),
        ('{"TopologyParams": {"alpha": [-1, 0]}}', "alpha"),
        ('{"TopologyParams": 7}', "TopologyParams: is no object"),
    ],
)
def test_broken_files_of_taccl_and_te_ccl_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read(text)
    assert message in str(error.value)
    assert str(error.value).isprintable()


# NetGraph


def test_scenarios_of_netgraph() -> None:
    """Check two racks of three servers at 100 Gbit/s, whose switches have 2 × 200 Gbit/s to each of two spines."""
    machine = read(NETGRAPH)
    topology = machine.topology
    assert (topology.nranks, topology.switches) == (6, ("rack1/tor", "rack2/tor", "spine/spine-1.x2"))
    assert between(topology, "rack1/tor", "spine/spine-1.x2") == 2 * 2 * 25
    assert pairs(topology)[0, 5] == 12.5
    assert topology.alpha_assumed
    older = read(OLDER_NETGRAPH)
    assert pairs(older.topology) == {
        (a, b): gbs
        for pair, gbs in {(0, 2): 10, (0, 4): 10, (1, 3): 10, (1, 5): 10, (0, 1): 1}.items()
        for a, b in (pair, pair[::-1])
    }
    assert "each node is a rank" in older.remarks[1]


def test_links_to_disabled_nodes_are_left_out() -> None:
    text = NETGRAPH.replace("{count: 2}", "{count: 2, disabled: true}").replace("rack[1-2]/tor", "rack1/tor")
    text += "    - {source: rack1/tor, target: rack2/tor, capacity: 80}\n"
    topology = read(text).topology
    assert (topology.nranks, topology.switches) == (6, ("rack1/tor", "rack2/tor"))
    assert between(topology, "rack1/tor", "rack2/tor") == 10


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        (NETGRAPH, "nodes, links and capacities: read, in Gbit/s per direction"),
        (NETGRAPH.replace("capacity: 200, ", ""), "stated capacities: read, in Gbit/s per direction; 1 of 3 link"),
        (
            NETGRAPH.replace("capacity: 200, ", "").replace(", capacity: 100", ""),
            "nodes and links: read; no link states a capacity: each has NetGraph's default of 1",
        ),
    ],
)
def test_capacities_that_no_link_states_are_no_read_ones(text: str, remark: str) -> None:
    assert remark in read(text).remarks[0]


def test_switches_of_netgraph_are_named() -> None:
    assert "nodes without the role of a host are switches: rack1/tor, rack2/tor, spine/spine-1, spine/spine-2" in (
        read(NETGRAPH).remarks
    )
    many = read(NETGRAPH.replace("spine: {count: 2}", "spine: {count: 9}\n    lonely: {}"))
    assert any(remark.endswith("spine/spine-3, and 6 more") for remark in many.remarks)
    assert "nodes left out because they have no links: 1" in many.remarks
    assert not any("without the role" in remark for remark in read(OLDER_NETGRAPH).remarks)


def test_references_of_netgraph_are_followed() -> None:
    text = "vars: &c 80\nnetwork:\n  nodes: {a: {}, b: {}}\n  links: [{source: a, target: b, capacity: *c}]\n"
    assert pairs(read(text.replace("vars", "x")).topology)[0, 1] == 10
    with pytest.raises(InputError, match="recursive node"):
        read("network:\n  nodes: &n {a: {nodes: *n}}\n  links: []\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NETGRAPH + "  link_rules: []\n", "'link_rules' is not read"),
        (NETGRAPH.replace("^spine/", "(spine|core)"), "'(spine|core)' is not read"),
        (NETGRAPH.replace("path: ^spine/", "path: a, match: {}"), "'match' is not read"),
        (NETGRAPH.replace("cost: 1}", "expand: {}}"), "'expand' is not read"),
        (NETGRAPH.replace("capacity: 200", "capacity: .nan"), "network: link 1: capacity '.nan'"),
        (NETGRAPH.replace("capacity: 200", "capacity: -1"), "must be a positive number"),
        (NETGRAPH.replace("{count: 2}", "{count: 1000000000}"), "count: '1000000000': must be a whole number"),
        (NETGRAPH.replace("rack[1-2]:", "rack[1-999999]:"), "must count up"),
        (NETGRAPH.replace("rack[1-2]:", "rack[1-900][1-900]:"), "too many names"),
        (NETGRAPH.replace("{blueprint: rack,", "{blueprint: shelf,"), "no blueprint 'shelf'"),
        (NETGRAPH.replace("server.count: 3", "server.disabled: 3"), "parameter 'server.disabled' is not read"),
        (NETGRAPH.replace("pattern: mesh", "pattern: ring"), "it must be mesh or one_to_one"),
        (NETGRAPH.replace("srv-{n}", "srv-{n:9999999}"), "must be a name with {n}"),
        (NETGRAPH.replace("srv-{n}", "srv"), "stands twice"),
        (NETGRAPH.replace('"rack[1-2]/tor"', 'rack1/tor'), "is not connected to node"),
        (OLDER_NETGRAPH.replace("node_count: 4", "node_count: 3"), "one number must divide the other"),
        (NETGRAPH.replace("^spine/", "core/"), "network: link 1: target: 'core/' matches no node"),
        (NETGRAPH.replace("target: /tor", "target: /top"), "blueprint rack: link 1: target: '/top' matches no node"),
        ("network:\n  nodes: {a: {}}\n", "has no nodes or no links"),
        ("network:\n  nodes: [a]\n", "is no mapping"),
    ],
)  # fmt: skip
def test_broken_scenarios_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read(text)
    assert message in str(error.value)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("text", [ASTRA, NETGRAPH])
def test_yaml_without_its_library_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(InputError, match=r"pip install '\.\[yaml\]'"):
        read(text)


def test_a_file_without_a_folder_is_pointed_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("HPN_16g").write_text(rails(2))
    with pytest.raises(InputError, match=r"it must be given with its folder, as \./HPN_16g"):
        load("HPN_16g")
    assert load_machine("./HPN_16g").topology.name == "HPN_16g"
