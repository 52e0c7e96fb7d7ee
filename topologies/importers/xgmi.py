"""What AMD's tools print of each two devices, rocm-smi and amd-smi alike: the kind of their link, its weight, its rate.

A weight is 15 for each xGMI link on the way and 20 for each of PCIe, and what the kernel says of a socket's link to
another (ROCm's documentation of amd-smi); hops are not counted alike by all versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from topologies.errors import InputError
from topologies.importers import rates
from topologies.importers.matrix import LEVELS, place_pcie
from topologies.importers.node import Node, Vertex

_MOST_DEVICES = 256  # of one node, which has some 16
_ONE_LINK = 15
_ONE_SOCKET = 40  # over PCIe from a device to a host and from there to the other
_RATE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_NONE = ("", "N/A")


@dataclass
class Pairs:
    """Of each ordered pair of devices what is printed; `origin` and `wanted` stand in errors."""

    origin: str
    wanted: str
    kind: dict[tuple[int, int], str] = field(default_factory=dict)  # "XGMI", or else: over the host
    weight: dict[tuple[int, int], int] = field(default_factory=dict)
    gbs: dict[tuple[int, int], float] = field(default_factory=dict)  # of all links between the two, where it is stated
    numa: dict[int, int] = field(default_factory=dict)

    def put(self, table: str, pair: tuple[int, int], cell: str, place: str) -> None:
        """A cell of the table "kind", "weight" or "gbs". Raises InputError: it is no such figure."""
        if max(pair) >= _MOST_DEVICES:
            raise InputError(f"{place}: device {max(pair)}; it must be less than {_MOST_DEVICES}")
        if pair[0] == pair[1]:
            return
        if table == "kind":
            if cell.upper() not in ("XGMI", "PCIE", "UNKNOWN", *_NONE):
                raise InputError(f"{place}: link type {cell[:20]!r}; it must be XGMI or PCIE")
            self.kind[pair] = cell.upper()
        elif table == "weight" and cell not in _NONE:
            if not re.fullmatch(r"[0-9]{1,6}", cell):
                raise InputError(f"{place}: weight {cell[:20]!r}; it must be a whole number")
            self.weight[pair] = int(cell)
        elif (
            table == "gbs" and (rate := _RATE.fullmatch(cell)) is not None and int(rate[2])
        ):  # what one link and all do
            self.gbs[pair] = int(rate[2]) / 1000  # MB/s

    def node(self) -> Node:
        """What it comes to. Raises InputError: a pair of which nothing is said, or not the same both ways."""
        devices = 1 + max((rank for pair in self.kind for rank in pair), default=0)
        node = Node(devices, kind="xGMI")
        direct = []
        nearness: dict[tuple[Vertex, Vertex], int] = {}
        for pair in [(a, b) for a in range(devices) for b in range(devices) if a != b]:
            kind, back = self.kind.get(pair), self.kind.get(pair[::-1])
            if kind is None or back is None:
                raise InputError(
                    f"{self.origin}: nothing between GPU{pair[0]} and GPU{pair[1]}; it must be {self.wanted}"
                )
            if kind != back:
                raise InputError(
                    f"{self.origin}: GPU{pair[0]} to GPU{pair[1]} is {kind}, and the other way {back}; it must be even"
                )
            weight = self.weight.get(pair, 0)  # a virtual machine may say 0
            if kind == "XGMI" and (weight == _ONE_LINK or (not weight and (pair in self.gbs or not self.gbs))):
                direct.append(pair)
            nearness[pair] = LEVELS.index("NODE" if self._one_socket(pair) else "SYS")
        self._place_links(node, direct)
        place_pcie(node, nearness, rates.USUAL_PCIE_GBS)
        if node.pcie:
            how = "sockets are read" if self.numa else "sockets are derived from weights"
            node.pcie_remarks.append(
                f"PCIe: {how}; {rates.USUAL_PCIE_GBS:.3g} GB/s a device and {rates.USUAL_SMP_GBS:g} GB/s a"
                " socket are assumed"
            )
        return node

    def _one_socket(self, pair: tuple[int, int]) -> bool:
        if pair[0] in self.numa and pair[1] in self.numa:
            return self.numa[pair[0]] == self.numa[pair[1]]
        return self.kind[pair] == "XGMI" or 0 < self.weight.get(pair, 0) <= _ONE_SOCKET

    def _place_links(self, node: Node, direct: list[tuple[int, int]]) -> None:
        mesh = node.devices == 8 and len(direct) == node.devices * (node.devices - 1)
        usual = rates.MESH_XGMI_GBS if mesh else rates.USUAL_XGMI_GBS
        node.fast.update({pair: self.gbs.get(pair, usual) for pair in direct})
        if any(pair in self.gbs for pair in direct):
            node.remarks.append("GB/s of xGMI between two devices: read (the driver states 50 a link, whatever it has)")
        if any(pair not in self.gbs for pair in direct):
            why = "as of eight MI300X, all joined pairwise" if mesh else "as of MI200; the tool does not say"
            node.remarks.append(f"{usual:g} GB/s an xGMI link, one a pair: assumed, {why}")
