"""Tests that dumps become the machines that they describe: links by count, shared PCIe, NICs by nearness."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.topologies.importers.dumps import cpu, gpu, mesh, nic, rocm, smi, switch, system
from topologies.clusters import Machine
from topologies.compare import compare
from topologies.costs import LINK_KINDS
from topologies.errors import InputError
from topologies.importers import TOPOLOGY_FORMATS, format_of
from topologies.importers.combine import import_files
from topologies.importers.matrix import LEVELS, assumed_pcie, place_pcie
from topologies.importers.node import Node
from topologies.importers.rates import USUAL_PCIE_GBS, pcie_gbs
from topologies.load import load, load_machine
from topologies.network import network
from topologies.text.reader import read_machine
from topologies.text.writer import to_toml
from topologies.topology import SwitchOps, Topology

PCIE5 = pcie_gbs("32.0 GT/s PCIe", "16")
TO_SWITCH = '<nvlink target="0000:03:00.0" count="9" tclass="0x068000"/>' * 2


def read(text: str) -> Machine:
    return format_of(text).machine(text, "dump")


def pairs(topology: Topology) -> dict[tuple[int, int], float]:
    """Return the GB/s of the widest path between each pair of ranks."""
    net = network(topology, range(topology.nranks))
    gbs_of: dict[tuple[int, int], float] = {}
    for a, b, gbs in zip(net.src.tolist(), net.dst.tolist(), net.bandwidth_gbs.tolist(), strict=True):
        gbs_of[a, b] = max(gbs, gbs_of.get((a, b), 0.0))
    return gbs_of


def shared(topology: Topology, a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Return whether all paths of two pairs of ranks use a common resource."""
    net = network(topology, range(topology.nranks))
    uses = [
        [set(net.uses(i).tolist()) for i in range(net.nlinks) if (net.src[i], net.dst[i]) == pair] for pair in (a, b)
    ]
    return all(first_uses & second_uses for first_uses in uses[0] for second_uses in uses[1])


def test_formats_are_recognized_by_content() -> None:
    for text, name in (
        (smi(mesh(2, "NV4")), "nvidia-smi topo -m"),
        ("\x1b[4m" + smi(mesh(2, "PHB")), "nvidia-smi topo -m"),
        (system(cpu(0, gpu("0000:01:00.0", 0))), "NCCL's or RCCL's XML"),
        ("<!-- of a node -->\n" + system(), "NCCL's or RCCL's XML"),
        (rocm([["0"]], [[0]], {}), "rocm-smi --showtopo"),
        ('name = "x"\nranks = 2', "TOML"),
        ("", "TOML"),
    ):
        assert format_of(text).name == name
    assert len({row.name for row in TOPOLOGY_FORMATS}) == len(TOPOLOGY_FORMATS)


@pytest.mark.parametrize(("count", "links", "gbs"), [(8, 12, 300.0), (8, 18, 450.0), (16, 6, 150.0), (3, 18, 450.0)])
def test_many_nvlinks_lead_to_switches(count: int, links: int, gbs: float) -> None:
    topology = read(smi(mesh(count, f"NV{links}"))).topology
    assert len(topology.switches) == 1
    out = np.bincount(topology.link_src, weights=topology.bandwidth_gbs)[:count]
    assert out.tolist() == [gbs] * count


def test_devices_that_only_some_of_their_switchs_devices_reach_are_refused() -> None:
    cells = mesh(4, "NV12")
    cells[0][3] = cells[3][0] = "SYS"
    with pytest.raises(InputError, match="GPU0 and GPU3 have NVLinks to GPU1, but none to each other"):
        read(smi(cells))


def test_nvlinks_between_pairs_are_links() -> None:
    cells = mesh(4, "SYS")
    for a, b, links in ((0, 1, 2), (1, 2, 1), (2, 3, 2), (3, 0, 1)):
        cells[a][b] = cells[b][a] = f"NV{links}"
    topology = read(smi(cells)).topology
    assert not topology.switches
    assert pairs(topology)[0, 1] == 50
    assert pairs(topology)[1, 2] == 25
    assert (0, 2) not in pairs(topology)


def test_islands_meet_over_pcie() -> None:
    """Check that all pairs of two islands share the path between their sockets."""
    cells = mesh(8, "SYS")
    for island in (range(4), range(4, 8)):
        for a in island:
            for b in island:
                if a != b:
                    cells[a][b] = "NV6"
    topology = read(smi(cells, numa=[0] * 4 + [1] * 4)).topology
    gbs_of = pairs(topology)
    assert gbs_of[0, 1] == 150
    assert gbs_of[0, 4] < USUAL_PCIE_GBS
    assert shared(topology, (0, 4), (3, 7))


def test_rates_of_links_beside_the_matrix(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text(smi(mesh(2, "NV4")))
    status = "".join(
        f"GPU {i}: RTX (UUID: x)\n" + "".join(f"\t Link {k}: 14.062 GB/s\n" for k in range(4)) for i in range(2)
    )
    (tmp_path / "s.txt").write_text(status + "\t Link 4: <inactive>\n")
    imported = import_files([tmp_path / "m.txt", tmp_path / "s.txt"], "two")
    assert pairs(imported.topology)[0, 1] == pytest.approx(4 * 14.062)
    assert any("read" in remark and "RTX" in remark for remark in imported.remarks)
    with pytest.raises(InputError, match="does not state what joins devices"):
        load(tmp_path / "s.txt")


def test_pcie_is_shared_as_it_is() -> None:
    """Check two switches in two sockets: traffic that leaves a switch is shared, traffic within it is not."""
    cells = [
        ["X", "PIX", "SYS", "SYS"], ["PIX", "X", "SYS", "SYS"], ["SYS", "SYS", "X", "PXB"], ["SYS", "SYS", "PXB", "X"],
    ]  # fmt: skip
    topology = read(smi(cells)).topology
    assert shared(topology, (0, 2), (1, 3))
    assert not shared(topology, (0, 1), (2, 3))
    assert pairs(topology)[0, 1] == pytest.approx(USUAL_PCIE_GBS)


def test_spaces_missing_tabs_and_old_words() -> None:
    text = smi(mesh(2, "SOC")).replace("\tGPU0\tGPU1", "GPU0\tGPU1 CPU Affinity")
    assert read(text).topology.nranks == 2
    spaced = smi(mesh(3, "PHB")).replace("\t", "      ")
    assert read(spaced).topology.nlinks == read(smi(mesh(3, "PHB"))).topology.nlinks


def test_nics_serve_near_devices() -> None:
    names = ["GPU0", "GPU1", "GPU2", "GPU3", "mlx5_0", "mlx5_1", "NIC2"]
    cells = mesh(7, "SYS")
    for a in range(4):
        for b in range(4):
            if a != b:
                cells[a][b] = "NV4"
    for a, b in ((0, 4), (1, 4), (2, 5), (3, 5)):
        cells[a][b] = cells[b][a] = "PXB"
    nics = read(smi(cells, names)).nics
    assert nics is not None
    assert [ranks.tolist() for ranks in nics.sends] == [[0, 1], [2, 3]]


def test_nccl_xml_with_switches() -> None:
    text = system(
        cpu(0, switch("0000:a0:00.0", gpu("0000:a1:00.0", 1, TO_SWITCH), nic("0000:a2:00.0", "mlx5_0", 400000))),
        cpu(1, switch("0000:b0:00.0", gpu("0000:b1:00.0", 0, TO_SWITCH), nic("0000:b2:00.0", "mlx5_1", 400000))),
    )
    machine = read(text)
    assert machine.topology.switches == ("nvswitch",)
    assert machine.topology.bandwidth_gbs.tolist() == [450.0] * 4
    assert machine.topology.sms == 132
    assert {LINK_KINDS[kind] for kind in machine.topology.link_kind} == {"nvlink"}
    assert machine.topology.switch_ops == (SwitchOps("nvswitch"),)  # Hopper's NVSwitch multicasts and reduces.
    assert not read(text.replace('sm="90"', 'sm="80"')).topology.switch_ops
    assert machine.topology.compute_capability == 90
    assert machine.nics is not None
    assert [ranks.tolist() for ranks in machine.nics.sends] == [[0], [1]]
    assert any(remark.startswith("NICs mlx5_1, mlx5_0:") for remark in machine.remarks)  # Ranks follow dev.
    assert machine.nics.gbs == 50


def test_nccl_xml_without_nvlink() -> None:
    """Check that devices share their switch's link, that sockets have NCCL's rate, and that narrow links are slow."""
    text = system(
        cpu(0, switch("a", gpu("01", 0), gpu("02", 1), speed="16.0 GT/s PCIe"), gpu("03", 2)), cpu(1, gpu("04", 3))
    )
    topology = read(text).topology
    gbs_of = pairs(topology)
    assert gbs_of[0, 1] == pytest.approx(PCIE5)
    assert gbs_of[0, 2] == pytest.approx(pcie_gbs("16.0 GT/s PCIe", "16"))
    assert gbs_of[2, 3] == pytest.approx(22)
    assert shared(topology, (0, 2), (1, 3))
    assert {LINK_KINDS[kind] for kind in topology.link_kind} == {"pcie"}


def test_links_by_kind_of_device() -> None:
    link = '<nvlink target="{}" count="2" tclass="0x030200"/>'
    for sm, gbs in ((70, 50.0), (90, 50.0), (100, 100.0)):
        text = system(cpu(0, gpu("01", 0, link.format("02"), sm), gpu("02", 1, link.format("01"), sm)))
        assert pairs(read(text).topology)[0, 1] == gbs
    link = '<xgmi target="{}" count="1" tclass="0x038000"/>'
    for gcn, gbs, name in (("910", 50.0, "gfx90a"), ("gfx942:sramecc+", 64.0, "gfx942"), ("gfx906", 46.0, "gfx906")):
        text = system(cpu(0, gpu("01", 0, link.format("02"), 304), gpu("02", 1, link.format("01"), 304)))
        machine = read(text.replace(' rank="', f' gcn="{gcn}" rank="'))
        assert pairs(machine.topology)[0, 1] == gbs
        assert (machine.topology.sms, machine.topology.gcn) == (304, name)
        assert not machine.topology.compute_capability


def test_differing_devices_and_parts_of_a_device() -> None:
    """Check that SMs are stated only if all devices have the same number."""
    machine = read(system(cpu(0, gpu("01", 0, sm=90), gpu("02", 1, sm=100))))
    assert (machine.topology.sms, machine.topology.compute_capability) == (0, 0)
    assert "devices differ (sm 90, 100): SMs are not stated" in machine.remarks
    parts = read(system(cpu(0, gpu("01", 0).replace("</gpu>", '</gpu><gpu dev="1" sm="90"/>'))))
    assert parts.topology.sms == 0
    assert any(remark.startswith("ranks 0, 1 are parts of devices") for remark in parts.remarks)


def test_nvlinks_to_the_device_itself_and_grace() -> None:
    """Check that a VM's links to the device itself are left out with a remark, and that C2C joins device and CPU."""
    own_links = '<nvlink target="01" count="12" tclass="0x030200"/>'
    machine = read(system(cpu(0, gpu("01", 0, own_links), gpu("02", 1))))
    assert any("0 to 01" in remark for remark in machine.remarks)
    grace = '<c2c bw="28000" count="8"/>'
    topology = read(system(cpu(0, gpu("01", 0, grace), gpu("02", 1, grace)))).topology
    assert pairs(topology)[0, 1] == 224


def test_hosts_of_one_dump_are_nodes() -> None:
    text = system(cpu(0, gpu("01", 0, TO_SWITCH), host="0x1"), cpu(0, gpu("01", 0, TO_SWITCH), host="0x2"))
    topology = read(text).topology
    assert topology.nodes.tolist() == [0, 1]
    assert pairs(topology)[0, 1] == 450


def test_several_nics_a_device_are_joined() -> None:
    text = system(
        cpu(0, switch("a", gpu("01", 0, TO_SWITCH), nic("02", "n0", 100000), nic("03", "n1", 100000))),
        cpu(1, switch("b", gpu("04", 1, TO_SWITCH), nic("05", "n2", 100000), nic("06", "n3", 100000))),
    )
    nics = read(text).nics
    assert nics is not None
    assert nics.gbs == 25
    assert len(nics.sends) == 2


def test_rocm_smi_both_forms() -> None:
    """Check two hives that are joined by their sockets, as text and as JSON."""
    kind = [["0" if a == b else "XGMI" if a // 2 == b // 2 else "PCIE" for b in range(4)] for a in range(4)]
    weight = [[0 if a == b else 15 if a // 2 == b // 2 else 72 for b in range(4)] for a in range(4)]
    topology = read(rocm(kind, weight, {0: 0, 1: 0, 2: 1, 3: 1})).topology
    assert pairs(topology)[0, 1] == 50
    assert shared(topology, (0, 2), (1, 3))
    system_of = {
        f"(Topology) {kind_of_table} between DRM devices {a} and {b}": str(table[a][b])
        for kind_of_table, table in (("Weight", weight), ("Link type", kind))
        for a in range(4)
        for b in range(a + 1, 4)
    }
    assert pairs(read(json.dumps({"system": system_of})).topology)[0, 1] == 50


def columns(topology: Topology) -> tuple[list[int], list[int], list[float]]:
    """Return source, target and GB/s of the links."""
    return topology.link_src.tolist(), topology.link_dst.tolist(), topology.bandwidth_gbs.tolist()


def test_nodes_make_a_cluster(tmp_path: Path) -> None:
    text = system(cpu(0, gpu("01", 0, TO_SWITCH), gpu("02", 1, TO_SWITCH), nic("03", "n0", 400000)))
    for i in range(3):
        (tmp_path / f"node{i}.xml").write_text(text)
    files = [tmp_path / f"node{i}.xml" for i in range(3)]
    cluster = import_files(files).topology
    assert cluster.nranks == 6
    assert cluster.nlinks == load(f"{files[0]}:3").nlinks
    machine = load_machine(files[0])
    (tmp_path / "named.toml").write_text(to_toml(replace(machine.topology, platform="p5.48xlarge"), machine.nics))
    assert not [text for text in import_files([files[0], tmp_path / "named.toml"]).remarks if "is not like" in text]
    (tmp_path / "node2.xml").write_text(text.replace('count="9"', 'count="8"'))
    unlike = import_files(files)
    assert unlike.topology.switches[-1] == "fabric"
    assert any("node2.xml is not like" in remark and "400 GB/s" in remark for remark in unlike.remarks)
    out = {(a, b): gbs for a, b, gbs in zip(*columns(unlike.topology), strict=True)}
    assert [out[rank, unlike.topology.nranks + rank // 2] for rank in range(6)] == [450, 450, 450, 450, 400, 400]
    (tmp_path / "node2.xml").write_text(system(cpu(0, gpu("01", 0, TO_SWITCH), gpu("02", 1, TO_SWITCH))))
    with pytest.raises(InputError, match=r"node2.xml: states no NICs"):
        import_files(files)


def test_text_form_keeps_all(tmp_path: Path) -> None:
    """Check that the text form keeps everything with its sources, and that differences of machines are reported."""
    (tmp_path / "node.txt").write_text(smi(mesh(8, "NV12")))
    machine = load_machine(tmp_path / "node.txt")
    reread = read_machine(to_toml(machine.topology, machine.nics, machine.remarks), "again")
    assert not compare(machine, reread)
    assert reread.remarks == machine.remarks
    assert to_toml(machine.topology, None, machine.remarks).startswith("# 25 GB/s an NVLink: assumed")
    named = replace(machine, topology=replace(machine.topology, platform="p4d.24xlarge"))
    assert [line.split(" in ")[0] for line in compare(named, machine)] == ["platform: p4d.24xlarge"]
    differences = compare(machine, load_machine("dgx-h100"))
    assert any("300 GB/s" in line and "450 GB/s" in line for line in differences)
    assert not [
        line for line in compare(machine, load_machine("dgx-a100")) if line.startswith(("links", "out", "ranks"))
    ]


SMI = smi(mesh(3, "NV4"))
XML = system(cpu(0, gpu("01", 0, TO_SWITCH), gpu("02", 1, TO_SWITCH)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n".join(SMI.split("\n")[:3]), "rows for 2 of 3 columns"),
        (SMI.replace("NV4", "NV5", 1), "the reverse"),
        (SMI.replace("NV4", "NVx", 1), "'NVx' is not known"),
        (SMI.replace(" X ", "NV4", 1), "'NV4' is not known there"),
        (SMI.replace("\tGPU0\tGPU1", "\tGPU0\tGPU0"), "twice"),
        (SMI.replace("GPU1\tNV4", "GPU0\tNV4"), "a second row"),
        (
            smi([["X", "NV9", "NV9"], ["NV9", "X", "NV4"], ["NV9", "NV4", "X"]]).replace("NV9", "NV17"),
            "4 of 17 to GPU2",
        ),
        (smi(mesh(513, "SYS")), "it must be"),
        (XML.replace("</system>", ""), "not XML"),
        (XML.replace('count="9"', 'count="x"', 1), "<nvlink> count: 'x'"),
        (XML.replace('count="9"', 'count="0"', 1), "1 to 1024"),
        (XML.replace('sm="90"', 'sm="-9"', 1), "<gpu> sm"),
        ('<!DOCTYPE a [<!ENTITY b "c">]>' + XML, "document type"),
        ("<graphs/>", "NCCL graph"),
        (system(), "no <gpu>"),
        ("<a>" * 100 + "</a>" * 100, "too deep"),
        (system(gpu("01", 0), gpu("02", 1)), "no path joins"),
        (rocm([["0", "XGMI"], ["XGMI"]], [[0, 15], [15, 0]], {}), "1 cells for 2 columns"),
        (rocm([["0", "NVL"], ["NVL", "0"]], [[0, 15], [15, 0]], {}), "'NVL'"),
        ('{"system": {"between DRM devices": "1"}}', "no link types"),
        ('{"between DRM devices": ', "not JSON"),
    ],
    ids=lambda words: words[:20],
)
def test_broken_dumps_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(text)
    assert "\n" not in str(caught.value)
    assert message in str(caught.value)
    assert "must" in str(caught.value)


@pytest.mark.parametrize(("level", "is_joined"), [("NODE", False), ("SYS", True)])
def test_a_rate_of_sockets_is_stated_only_where_sockets_are_joined(level: str, is_joined: bool) -> None:
    node = Node(2)
    place_pcie(node, {(0, 1): LEVELS.index(level)}, 31.5)
    assert (16.0 in node.pcie.values()) == is_joined
    assert ("16 GB/s a socket are assumed" in assumed_pcie(node)) == is_joined
