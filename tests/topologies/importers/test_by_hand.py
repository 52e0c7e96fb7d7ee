"""Tests of imports worked out by hand: small dumps in the tools' forms, and the topology of each.

In GB/s each way: 16 lanes of PCIe are 15.75 (8 GT/s), 31.51 (16 GT/s), 63.02 (32 GT/s): GT/s × lanes / 8 × 128/130. An
NVLink is 25 (Volta to Hopper), 50 (Blackwell) or 14.0625 (two bridged cards); an xGMI link 50 (MI200) or 64 (MI300).
Between two sockets NCCL takes 22 for Intel's model 143 and 16 for AMD; matrices say nothing: 31.51 a device and 16 a
socket are assumed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from tests.topologies.importers.dumps import cpu, gpu, mesh, nic, rocm, smi, switch, system
from tests.topologies.importers.test_amd_smi import OF_TWO, square, text
from tests.topologies.importers.test_fabrics import BLOCKS, TREE, ib
from tests.topologies.importers.test_importers import pairs, read, shared
from tests.topologies.importers.test_topograph import instances, netq

Pair = tuple[int, int]
SWITCHED = '<nvlink target="0000:03:00.0" count="{}" tclass="0x068000"/>'


@dataclass(frozen=True)
class Case:
    """A dump and the topology that it describes.

    Attributes:
        name: Name of the case.
        dump: The dump.
        ranks: Number of ranks.
        links: Number of links.
        gbs: Bandwidth in GB/s between ranks.
        together: Pairs of rank pairs whose paths share a resource.
        apart: Pairs of rank pairs whose paths share nothing.
        nics: Ranks of each NIC.
        nic_gbs: Bandwidth of a NIC in GB/s.
        nodes: Node of each rank.
    """

    name: str
    dump: str
    ranks: int
    links: int
    gbs: Mapping[Pair, float]
    together: Sequence[tuple[Pair, Pair]] = ()
    apart: Sequence[tuple[Pair, Pair]] = ()
    nics: Sequence[Sequence[int]] | None = None
    nic_gbs: float = 0.0
    nodes: Sequence[int] = field(default=())


def cells(count: int, far: str, near: Mapping[Pair, str]) -> list[list[str]]:
    """Return a square of `far` with the cells of `near` in both directions."""
    square = mesh(count, far)
    for (a, b), cell in near.items():
        square[a][b] = square[b][a] = cell
    return square


def islands(count: int, size: int, cell: str) -> dict[Pair, str]:
    return {(a, b): cell for a in range(count) for b in range(a + 1, count) if a // size == b // size}


def to(target: str, count: int, kind: str = "nvlink") -> str:
    return f'<{kind} target="{target}" count="{count}" tclass="0x030200"/>'


def amd(busid: str, dev: int, links: str) -> str:
    return gpu(busid, dev, links, 304).replace(' rank="', ' gcn="gfx942" rank="')


# 8 GPUs and 10 NICs, two of each kind below a switch; the last two NICs, for storage, are near to none
DGX = cells(18, "SYS", islands(8, 8, "NV12") | {(g, 8 + g // 2 * 2 + k): "PXB" for g in range(8) for k in range(2)})
DGX_NAMES = [f"GPU{i}" for i in range(8)] + [f"mlx5_{i}" for i in range(10)]
CUBE = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2, (2, 6): 1, (3, 7): 1,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
HALF = cells(4, "SYS", {(0, 1): "NV4", (2, 3): "NODE"})
DEAD = cells(8, "NV18", {(3, b): "NV17" for b in range(8) if b != 3})
SLOW = '<pci busid="{}" class="0x030200" link_speed="8.0 GT/s PCIe" link_width="8"><gpu dev="{}" sm="89"/></pci>'
GRACE = '<c2c bw="28000" count="16"/>'  # 448
GH = [to(f"0{b}", 6) for b in range(4)]

CASES = [
    # 12 links of 25 into switches are 300, the same to every peer: a device has one link each way. Eight NICs serve
    # eight devices; of two near ones each device has its own.
    Case("DGX with storage NICs", smi(DGX, DGX_NAMES), 8, 16, {(0, 1): 300, (2, 7): 300},
         [((0, 1), (0, 2))], [((0, 1), (2, 3))], [[i] for i in range(8)], 25),
    # Links of 25 by their counts; 16 pairs are 32 links. 0 and 5 have none, and devices joined by NVLink need no PCIe.
    Case("hybrid cube mesh", smi(cells(8, "SYS", {pair: f"NV{n}" for pair, n in CUBE.items()})), 8, 32,
         {(0, 3): 50, (0, 1): 25, (5, 6): 50}, [], [((0, 3), (0, 4))]),
    # Four links of 14.0625.
    Case("two bridged cards", smi(mesh(2, "NV4")), 2, 2, {(0, 1): 56.25, (1, 0): 56.25}),
    # 0–1 bridged: 56.25; 2–3 over their socket; the sockets' link of 16 is all that leaves either. Links: the bridge's
    # 2, device to socket 4 × 2, and the two sockets' 2, since a path between two sockets is one link.
    Case("half NVLink", smi(HALF, numa=[0, 0, 1, 1]), 4, 12, {(0, 1): 56.25, (2, 3): 31.508, (0, 2): 16},
         [((0, 2), (1, 3))], [((0, 1), (2, 3))]),
    # Two cards below each of four switches, two switches a socket: 31.51 below and above a switch, 16 between sockets.
    Case("eight PCIe cards on two sockets", smi(cells(8, "SYS", islands(8, 4, "NODE") | islands(8, 2, "PIX"))), 8, 26,
         {(0, 1): 31.508, (0, 2): 31.508, (0, 4): 16}, [((0, 4), (3, 7)), ((0, 2), (1, 3))],
         [((0, 1), (2, 3)), ((0, 2), (4, 6))]),
    # One of device 3's 18 links is down: 17 × 25 = 425 from it and to it; the other devices have 450.
    Case("a dead NVLink", smi(DEAD), 8, 16, {(0, 1): 450, (0, 3): 425, (3, 0): 425}, [((0, 3), (1, 3))]),
    # One of two NICs is in the switch of both devices; the other is beyond the host bridge.
    Case("one near NIC", smi(cells(4, "PHB", islands(3, 3, "PIX")), ["GPU0", "GPU1", "a", "b"]),
         2, 2, {(0, 1): 31.508}, nics=[[0, 1]], nic_gbs=25),
    # 18 links of 25 in two elements; NICs of 400 Gb/s are 50, each in the switch of its device.
    Case("NVSwitches in XML", system(
        cpu(0, switch("a", gpu("01", 0, SWITCHED.format(9) * 2), nic("02", "n0", 400000))),
        cpu(1, switch("b", gpu("03", 1, SWITCHED.format(9) * 2), nic("04", "n1", 400000)))),
        2, 4, {(0, 1): 450}, nics=[[0], [1]], nic_gbs=50),
    # 8 lanes of 8 GT/s: 7.88; the sockets' 22 is wider. Each device is one link to its socket, whose 2 are one: 4 + 2.
    Case("narrow slots", system(cpu(0, SLOW.format("01", 0), SLOW.format("02", 1)), cpu(1, SLOW.format("03", 2))),
         3, 6, {(0, 1): 7.877, (0, 2): 7.877}, [((0, 2), (1, 2))]),
    # Two devices on 63.02 share a switch of 31.51: within it 63.02, out of it 31.51, to the other socket 22. Links:
    # those of three devices and of the switch, and one to the only device of the other socket: 5 × 2.
    Case("a switch that is slower above", system(
        cpu(0, switch("a", gpu("01", 0), gpu("02", 1), speed="16.0 GT/s PCIe"), gpu("03", 2)), cpu(1, gpu("04", 3))),
        4, 10, {(0, 1): 63.015, (0, 2): 31.508, (2, 3): 22}, [((0, 2), (1, 3))], [((0, 1), (2, 3))]),
    # Two parts of a device share its single link: 63.02 between them and to other devices.
    Case("a device in two parts", system(cpu(0, gpu("01", 0).replace("</gpu>", '</gpu><gpu dev="1" sm="90"/>'),
                                             gpu("02", 2))),
         3, 6, {(0, 1): 63.015, (0, 2): 63.015}, [((0, 2), (1, 2))]),
    # Two ports of 180 Gb/s, 22.5 each, in the switch of one device are 45.
    Case("NICs with two ports", system(
        cpu(0, switch("a", gpu("01", 0, SWITCHED.format(18)), nic("02", "n0", 180000), nic("03", "n1", 180000))),
        cpu(1, switch("b", gpu("04", 1, SWITCHED.format(18)), nic("05", "n2", 180000), nic("06", "n3", 180000)))),
        2, 4, {(0, 1): 450}, nics=[[0], [1]], nic_gbs=45),
    # Six links of 25 to each of three other devices; the link from a device to its CPU is then not needed.
    Case("four Grace Hoppers", system(*(
        cpu(i, gpu(f"0{i}", i, "".join(link for j, link in enumerate(GH) if j != i) + GRACE)) for i in range(4))),
        4, 12, {(0, 1): 150, (2, 3): 150}, [], [((0, 1), (0, 2))]),
    # A dump of two chassis: each device has 18 × 50 into the rack's switches.
    Case("two hosts of a rack", system(
        cpu(0, gpu("01", 0, SWITCHED.format(18), 100), host="0x1"),
        cpu(0, gpu("01", 0, SWITCHED.format(18), 100), host="0x2")),
        2, 4, {(0, 1): 900}, nodes=[0, 1]),
    # One link of 64 between each two devices.
    Case("MI300X in XML", system(cpu(0, *(
        amd(f"0{i}", i, "".join(to(f"0{j}", 1, "xgmi") for j in range(3) if j != i)) for i in range(3)))),
        3, 6, {(0, 1): 64}, [], [((0, 1), (0, 2))]),
    # 50 within a hive of two; 16 between sockets. Links: 4 of xGMI, 8 to the sockets, 2 between the sockets.
    Case("two hives", rocm(square(4, "XGMI", "PCIE", "0", 2), [[15] * 4] * 4, {0: 0, 1: 0, 2: 1, 3: 1}),
         4, 14, {(0, 1): 50, (0, 2): 16}, [((0, 2), (1, 3))], [((0, 1), (2, 3))]),
    # 50 to 200: the four links between two halves of a package
    Case("amd-smi with rates", text(OF_TWO[0], OF_TWO[1], square(2, "50000-200000", "", "N/A")),
         2, 2, {(0, 1): 200}),
    # Two ports a host, each on the host's leaf: 4 × 2 × 2; from each of two leaves to the spine two cables of 50: 4.
    Case("InfiniBand", ib(), 8, 20, {(0, 1): 50, (0, 2): 50}, [((0, 2), (0, 3))], nodes=[0, 0, 1, 1, 2, 2, 3, 3]),
    # 25 GB/s a node is assumed, and 50 GB/s above each leaf's two nodes.
    Case("Slurm's tree", TREE, 4, 12, {(0, 1): 25, (0, 3): 25}, [((0, 2), (0, 3))], [((0, 1), (2, 3))]),
    Case("Slurm's blocks", BLOCKS, 4, 12, {(0, 3): 25}, [((0, 2), (1, 3))], [((0, 1), (2, 3))]),
    # Two nodes below a and one below b, both below c: 3 × 2 + 2 × 2.
    Case("topograph's graph", json.dumps(instances({"x": ["a", "c"], "y": ["a", "c"], "z": ["b", "c"]})), 3, 10,
         {(0, 1): 25, (0, 2): 25}, [((0, 2), (1, 2))]),
    # A cable from each of two hosts to each of two leaves, two cables from each leaf to the spine.
    Case("NetQ's cables", json.dumps([netq(1)]), 4, 12, {(0, 2): 25, (0, 1): 25}, [], [((0, 2), (1, 3))],
         nodes=[0, 0, 1, 1]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_imports_equal_topologies_worked_out_by_hand(case: Case) -> None:
    machine = read(case.dump)
    topology = machine.topology
    assert (topology.nranks, topology.nlinks) == (case.ranks, case.links)
    gbs_of = pairs(topology)
    assert {pair: gbs_of[pair] for pair in case.gbs} == pytest.approx(case.gbs, rel=1e-4)
    for first_pair, second_pair in case.together:
        assert shared(topology, first_pair, second_pair), (first_pair, second_pair)
    for first_pair, second_pair in case.apart:
        assert not shared(topology, first_pair, second_pair), (first_pair, second_pair)
    if case.nics is not None:
        assert machine.nics is not None
        assert [ranks.tolist() for ranks in machine.nics.sends] == case.nics
        assert machine.nics.gbs == case.nic_gbs
    if case.nodes:
        assert topology.nodes.tolist() == case.nodes
