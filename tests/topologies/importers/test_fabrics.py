"""Tests of networks between nodes, as tools print them, alone and with dumps of the hosts."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from synth import synthesize
from tests.topologies.importers.dumps import cpu, gpu, nic, system
from topologies.costs import LINK_KINDS
from topologies.errors import InputError
from topologies.importers import format_of
from topologies.importers.combine import import_files
from topologies.importers.fabric import expand, natural_key
from topologies.load import load, load_machine
from topologies.topology import Topology

TREE = "# made up\nSwitchName=top Switches=leaf[0-1]\nSwitchName=leaf0 Nodes=n[01-02]\nSwitchName=leaf1 Nodes=n03,n04\n"
BLOCKS = "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2\n"


def ib(hosts: int = 4, ports: int = 2, rate: str = "4xNDR", spines: int = 1) -> str:
    """Return a fabric of two leaves with hosts, two links from each leaf to a spine, and an aggregation node."""
    switches: dict[str, list[str]] = {"S-a0": [], "S-a1": [], **{f"S-b{spine}": [] for spine in range(spines)}}
    adapters = []
    for host in range(hosts):
        for port in range(ports):
            leaf, name = f"S-a{host % 2}", f"H-{host:x}{port:x}"
            at = len(switches[leaf]) + 1
            switches[leaf].append(f'[{at}]\t"{name}"[1]({name[2:]}) \t\t# "node{host} mlx5_{port}" lid 1 {rate}')
            adapters.append(
                f'caguid=0x1\nCa\t1 "{name}"\t\t# "node{host} mlx5_{port}"\n'
                f'[1]({name[2:]}) \t"{leaf}"[{at}]\t\t# lid 1 lmc 0 "leaf" lid 2 {rate}\n'
            )
    for leaf in ("S-a0", "S-a1"):
        for spine, port in product(range(spines), (40, 41)):
            switches[leaf].append(f'[{port}]\t"S-b{spine}"[{port}{leaf[-1]}]\t\t# "spine" lid 3 {rate}')
            switches[f"S-b{spine}"].append(f'[{port}{leaf[-1]}]\t"{leaf}"[{port}]\t\t# "leaf" lid 4 {rate}')
    switches["S-a0"].append(f'[65]\t"H-ff"[1](ff) \t\t# "Mellanox Technologies Aggregation Node" lid 9 {rate}')
    adapters.append(
        'Ca\t1 "H-ff"\t\t# "Mellanox Technologies Aggregation Node"\n'
        f'[1](ff) \t"S-a0"[65]\t\t# lid 9 lmc 0 "x" lid 1 {rate}\n'
    )
    heads = [
        f'switchguid=0x1\nSwitch\t65 "{s}"\t\t# "{s}" enhanced port 0\n' + "\n".join(ls) + "\n"
        for s, ls in switches.items()
    ]
    return "#\n# Topology file: generated on Wed\n#\n\n" + "\n".join([*heads, *adapters])


def between(topology: Topology, first_switch: str, second_switch: str) -> float:
    number = {name: topology.nranks + i for i, name in enumerate(topology.switches)}
    links = zip(topology.link_src.tolist(), topology.link_dst.tolist(), topology.bandwidth_gbs.tolist(), strict=True)
    return next((gbs for a, b, gbs in links if (a, b) == (number[first_switch], number[second_switch])), 0.0)


def test_formats_of_fabrics_are_recognized() -> None:
    assert format_of(ib()).name == "ibnetdiscover"
    for text in (TREE, BLOCKS):
        assert format_of(text).name == "Slurm's topology.conf"


def test_infiniband() -> None:
    """Check that each HCA of a host is a rank, hosts are nodes, and parallel links are joined."""
    topology = format_of(ib()).machine(ib(), "ib").topology
    assert topology.nranks == 8
    assert topology.nodes.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert between(topology, "S-a0", "S-b0") == 100
    assert set(topology.bandwidth_gbs.tolist()) == {50, 100}
    slow = format_of(ib(rate="4xEDR")).machine(ib(rate="4xEDR"), "ib").topology
    assert between(slow, "S-b0", "S-a1") == 25


def test_equal_paths_of_an_infiniband_fabric_are_capacities() -> None:
    machine = format_of(ib(spines=2)).machine(ib(spines=2), "ib")
    assert set(machine.topology.switches) == {"S-a0", "S-a1", "S-b0.x2"}
    assert between(machine.topology, "S-a0", "S-b0.x2") == 200
    assert "switches on equal paths are drawn as one switch of wider links" in machine.remarks
    assert machine.topology.summary.endswith("on 4 switches, drawn as 3")


def test_hosts_of_a_fabric_are_nodes(tmp_path: Path) -> None:
    nvlinks = '<nvlink target="03" count="9" tclass="0x068000"/>' * 2
    node = system(
        cpu(0, gpu("01", 0, nvlinks), gpu("02", 1, nvlinks), nic("04", "mlx5_0", 400000), nic("05", "mlx5_1", 400000))
    )
    (tmp_path / "node.xml").write_text(node)
    (tmp_path / "ib.txt").write_text(ib())
    imported = import_files([tmp_path / "ib.txt", tmp_path / "node.xml"], "cluster")
    topology = imported.topology
    assert topology.nranks == 8
    assert topology.nodes.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {"nvswitch.0", "nvswitch.3", "S-a0", "S-b0"} <= set(topology.switches)
    reimported = import_files([tmp_path / "ib.txt"], "cluster", load_machine(tmp_path / "node.xml"))
    assert reimported.topology.bandwidth_gbs.tolist() == topology.bandwidth_gbs.tolist()
    # Traffic that leaves two hosts on one leaf goes over one spine: 100 GB/s for four ranks.
    answer = synthesize("alltoall", topology, engine="flow", size="1G", target="none")
    assert answer.gap < 1.2


GUIDS = {"node0": (0xB8CEF60300AA0010, 0xB8CEF60300AA0011), "node3": (0xB8CEF60300AA0030, 0xB8CEF60300AA0031)}


def stated(text: str) -> str:
    """Return the fabric with these GUIDs in its HCAs."""
    for host, guids in GUIDS.items():
        for port, guid in enumerate(guids):
            head = f'caguid=0x1\nCa\t1 "H-{host[-1]}{port}"'
            text = text.replace(head, head.replace("0x1", f"{guid:#x}", 1))
    return text


def dumped(host: str, count: int, reverse: bool = True) -> str:
    """Return a node's dump with NICs in reverse order; `reverse`: their GUIDs have NCCL's order of bytes."""
    nvlink = f'<nvlink target="03" count="{count}" tclass="0x068000"/>'
    nics = [nic(f"0{4 + port}", f"ib{port}", 400000) for port in (1, 0)]
    for port, guid in enumerate(GUIDS[host]):
        text = int.from_bytes(guid.to_bytes(8, "big"), "little" if reverse else "big")
        nics = [nic_text.replace(f'name="ib{port}"', f'name="ib{port}" guid="{text:#x}"') for nic_text in nics]
    return system(cpu(0, gpu("01", 0, nvlink), nics[0]), cpu(1, gpu("02", 1, nvlink), nics[1]))


@pytest.mark.parametrize("reverse", [True, False])
def test_nics_are_on_the_ports_of_their_guids(tmp_path: Path, reverse: bool) -> None:
    """Check that devices of unlike nodes are on the leaf of their GUID, and that only dumped nodes are imported."""
    text = stated(ib())
    (tmp_path / "ib.txt").write_text(text)
    for name, host, count in (("first.xml", "node3", 18), ("second.xml", "node0", 9)):
        (tmp_path / name).write_text(dumped(host, count, reverse))
    machine = import_files([tmp_path / name for name in ("first.xml", "ib.txt", "second.xml")], "two")
    topology = machine.topology
    assert (topology.nranks, topology.nodes.tolist()) == (4, [0, 0, 1, 1])
    leaf = {name: topology.nranks + i for i, name in enumerate(topology.switches)}
    links = set(zip(topology.link_src.tolist(), topology.link_dst.tolist(), topology.bandwidth_gbs, strict=True))
    assert {(rank, leaf["S-a1"], 50.0) for rank in (0, 1)} <= links  # Node 3 is on the odd leaf.
    assert {(rank, leaf["S-a0"], 50.0) for rank in (2, 3)} <= links
    assert not {(rank, leaf["S-a0"]) for rank in (0, 1)} & {(a, b) for a, b, _ in links}
    assert {(0, leaf["nvswitch.0"], 450.0), (2, leaf["nvswitch.1"], 225.0)} <= links
    (tmp_path / "again.xml").write_text(dumped("node0", 9, reverse))
    with pytest.raises(InputError, match=r"again.xml: NIC ib\d is in .*second.xml too"):
        import_files([tmp_path / name for name in ("ib.txt", "second.xml", "again.xml")])


def test_nodes_without_guids_are_identified_by_their_files(tmp_path: Path) -> None:
    """Check that nodes are found by file name, and that a storage NIC, which is near no device, is not used."""
    nvlink = '<nvlink target="09" count="18" tclass="0x068000"/>'
    text = system(
        cpu(0, gpu("01", 0, nvlink), nic("02", "mlx5_2", 400000)),
        cpu(1, gpu("03", 1, nvlink), nic("04", "mlx5_0", 400000)),
        cpu(2, nic("05", "mlx5_1", 400000)),
    )
    for name in ("node1.xml", "node2.xml"):
        (tmp_path / name).write_text(text)
    (tmp_path / "ib.txt").write_text(ib(ports=3))
    topology = import_files([tmp_path / name for name in ("ib.txt", "node1.xml", "node2.xml")]).topology
    assert topology.nranks == 4
    assert between(topology, "S-a0", "S-b0") == 100
    expanded = import_files([tmp_path / "ib.txt", tmp_path / "node1.xml"]).topology
    assert expanded.nranks == 8
    (tmp_path / "tree.conf").write_text(TREE.replace("n[01-02]", "node[1-2]"))
    tree = import_files([tmp_path / name for name in ("tree.conf", "node1.xml", "node2.xml")]).topology
    assert tree.nranks == 4
    assert between(tree, "leaf0", "top") == 2 * 2 * 50
    (tmp_path / "elsewhere.xml").write_text(text)
    with pytest.raises(InputError, match=r"elsewhere.xml: no NIC of it is in .*ib.txt.*named after its host"):
        import_files([tmp_path / name for name in ("ib.txt", "node1.xml", "elsewhere.xml")])


def test_slurm_trees_and_blocks(tmp_path: Path) -> None:
    (path := tmp_path / "topology.conf").write_text(TREE)
    topology = load(path)
    assert (topology.nranks, set(topology.switches)) == (4, {"top", "leaf0", "leaf1"})
    assert between(topology, "leaf0", "top") == 50
    cluster = import_files([path], None, load_machine("dgx-h100")).topology
    assert cluster.nranks == 32
    assert between(cluster, "leaf0", "top") == 2 * 8 * 50
    assert {LINK_KINDS[kind] for kind in cluster.link_kind} == {"nvlink", "network"}
    assert cluster.costs == load("dgx-h100").costs
    blocks = format_of(BLOCKS).machine(BLOCKS + "BlockName=b3\n", "b").topology  # An empty block fills a level up.
    assert set(blocks.switches) == {"b1", "b2", "core"}
    odd = TREE.replace("leaf0", "0 leaf".replace(" ", "é")).replace("leaf[0-1]", "0éleaf,leaf1")
    assert "s0_leaf" in format_of(odd).machine(odd, "o").topology.switches


def test_lists_of_names_are_expanded_and_sorted() -> None:
    assert expand("n[01-03,7]-x,m", "p") == ["n01-x", "n02-x", "n03-x", "n7-x", "m"]
    assert sorted(["mlx5_10", "mlx5_2", "a1"], key=natural_key) == ["a1", "mlx5_2", "mlx5_10"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ib().replace("4xNDR", "4xWDR", 1), "is no link"),
        (ib().replace('"S-b0"[400]', '"S-b0"[400](x)', 1).replace("[40]\t", "(40)\t", 1), "and back"),
        (ib().split("Ca\t")[0], "no HCA"),
        (TREE.replace("leaf[0-1]", "leaf[0-2]"), "leaf2 has no line"),
        (TREE.replace("n03", "n01"), "hangs on leaf0 too"),
        (TREE.replace("[01-02]", "[02-01]"), "must count up"),
        (TREE.replace("[01-02]", "[0-999999999]"), "too many names"),
        (TREE.replace("[01-02]", "[a-b]"), "no list of names"),
        (TREE.replace("leaf1 Nodes", "leaf0 Nodes"), "stands twice"),
        ("SwitchName=b Switches=a,c\nSwitchName=c Switches=b\nSwitchName=a Nodes=n1\n", "in a ring"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "names no nodes"),
        ("SwitchName=a\n", "it must be"),
    ],
)
def test_broken_fabrics_are_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    (path := tmp_path / "fabric.conf").write_text(text)
    with pytest.raises(InputError) as caught:
        load(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for name, text in (("a.conf", TREE), ("b.conf", BLOCKS), ("ib.txt", ib(ports=3))):
        (tmp_path / name).write_text(text)
    node = load_machine("dgx-h100")
    for files, node_machine, message in (
        (["a.conf", "b.conf"], None, "one fabric and its nodes"),
        (["ib.txt"], node, "no host has the 8 NICs"),
        (["ib.txt"], load_machine("dgx-h100:2"), "states no NICs"),
    ):
        with pytest.raises(InputError, match=message):
            import_files([tmp_path / name for name in files], None, node_machine)
    (tmp_path / "n.xml").write_text(system(cpu(0, gpu("01", 0))))
    with pytest.raises(InputError, match="is no fabric"):
        import_files([tmp_path / "n.xml"], None, node)
