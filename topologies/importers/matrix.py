"""PCIe trees from a matrix of nearness: the devices that share a switch, a host bridge or a NUMA node.

The levels are those of nvidia-smi's `topo -m`, the nearest first. Devices that meet at a level, directly or through
other devices, hang below one vertex of that level.
"""

from __future__ import annotations

from collections.abc import Mapping

from topologies.importers import rates
from topologies.importers.node import Node, Vertex

LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_NAMES = ("switch", "switches", "bridge", "socket", "machine")


def assumed_pcie(node: Node) -> str:
    """Return which figures of a node's PCIe links are assumed, as text; that of sockets only if it joins some."""
    rates_of = [f"{rates.USUAL_PCIE_GBS:.3g} GB/s a device"]
    if any(name.startswith(_NAMES[-1]) for pair in node.pcie for name in pair if isinstance(name, str)):
        rates_of.append(f"{rates.USUAL_SMP_GBS:g} GB/s a socket")
    return f"{' and '.join(rates_of)} {'are' if len(rates_of) > 1 else 'is'} assumed"


def place_pcie(node: Node, nearness: Mapping[tuple[Vertex, Vertex], int], gbs: float) -> None:
    """Add the switches, host bridges and sockets above the devices to a node's PCIe links.

    A switch's upward link has the rate of one device. Within a socket there is room for all devices. Sockets share the
    link that joins them.

    Args:
        node: The node, whose `pcie` gets the links; links of NICs, which are named in `nearness`, are left out.
        nearness: Index in LEVELS of the level at which two devices (by rank) or NICs (by name) meet; one order of a
            pair is enough.
        gbs: Bandwidth of a device's link in GB/s, per direction.
    """
    members: dict[Vertex, Vertex] = {rank: rank for rank in range(node.devices)}
    for pair in nearness:
        for end in pair:
            members.setdefault(end, end)
    top: dict[Vertex, Vertex] = dict(members)  # The highest vertex so far above each member.
    capacity: dict[Vertex, float] = dict.fromkeys(members, gbs)
    for level, word in enumerate(_NAMES):
        group: dict[Vertex, Vertex] = {vertex: vertex for vertex in top.values()}

        def find(vertex: Vertex, group: dict[Vertex, Vertex] = group) -> Vertex:
            """Return the root of a vertex's group."""
            while group[vertex] != vertex:
                vertex = group[vertex]
            return vertex

        for (a, b), at in nearness.items():
            if at <= level:
                first_root, second_root = find(top[a]), find(top[b])
                group[second_root] = first_root
        sets: dict[Vertex, list[Vertex]] = {}
        for vertex in group:
            sets.setdefault(find(vertex), []).append(vertex)
        number = 0
        for below in sets.values():
            if len(below) < 2:
                continue
            name = f"{word}{number}"
            number += 1
            capacity[name] = gbs if word.startswith("switch") else sum(capacity[vertex] for vertex in below)
            for vertex in below:
                rate = min(capacity[vertex], rates.USUAL_SMP_GBS) if word == "machine" else capacity[vertex]
                node.pcie[vertex, name] = rate
            for member, above in top.items():
                if above in below:
                    top[member] = name
    for member in members:
        if isinstance(member, str):  # A NIC holds no data, so it is no vertex.
            node.pcie = {pair: rate for pair, rate in node.pcie.items() if member not in pair}
