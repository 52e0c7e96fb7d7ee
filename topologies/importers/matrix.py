"""What a matrix of nearness says of PCIe: who shares a switch, a host bridge or a NUMA node.

Levels of nvidia-smi's `topo -m`, the nearest first. A device that meets another at a level, and through it all that
these meet, hangs below one vertex there.
"""

from __future__ import annotations

from collections.abc import Mapping

from topologies.importers import rates
from topologies.importers.node import Node, Vertex

LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")
_NAMES = ("switch", "switches", "bridge", "socket", "machine")


def place_pcie(node: Node, nearness: Mapping[tuple[Vertex, Vertex], int], gbs: float) -> None:
    """Hang the devices below switches, host bridges and sockets.

    nearness: of pairs of devices and NICs the place of their level in LEVELS. gbs: of a device's link, each way. What
    leaves a switch upwards has as much; within a socket there is room for all; sockets share what joins them.
    """
    members: dict[Vertex, Vertex] = {rank: rank for rank in range(node.devices)}
    for pair in nearness:
        for end in pair:
            members.setdefault(end, end)
    top: dict[Vertex, Vertex] = dict(members)  # the vertex of the last level below which it hangs
    capacity: dict[Vertex, float] = dict.fromkeys(members, gbs)
    for level, word in enumerate(_NAMES):
        group: dict[Vertex, Vertex] = {vertex: vertex for vertex in top.values()}

        def find(vertex: Vertex, group: dict[Vertex, Vertex] = group) -> Vertex:
            while group[vertex] != vertex:
                vertex = group[vertex]
            return vertex

        for (a, b), at in nearness.items():
            if at <= level:
                one, other = find(top[a]), find(top[b])
                group[other] = one
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
        if isinstance(member, str):  # a NIC holds nothing
            node.pcie = {pair: rate for pair, rate in node.pcie.items() if member not in pair}
