"""The links between two devices as AMD's tools rocm-smi and amd-smi print them: kind, weight and rate.

A weight is 15 for each xGMI link on the path and 20 for each PCIe link, plus the kernel's figure for a link between
sockets (ROCm's documentation of amd-smi). Versions count hops differently.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from topologies.errors import InputError
from topologies.importers import rates
from topologies.importers.matrix import LEVELS, assumed_pcie, place_pcie
from topologies.importers.node import Node, Vertex

_MOST_DEVICES = 256  # A node has some 16.
_ONE_LINK = 15
_ONE_SOCKET = 40  # PCIe from a device to the host, and from the host to the other device.
_RATE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_NONE = ("", "N/A")


@dataclass
class XgmiPairs:
    """The printed figures of each ordered pair of devices.

    Attributes:
        origin: Name of the text in errors.
        expected: Description of a right text, for errors.
        kind: Kind of link: "XGMI", or any other for a path over the host.
        weight: Weight of the path.
        gbs: GB/s of all links between the two, where it is stated.
        numa: NUMA node of each device.
    """

    origin: str
    expected: str
    kind: dict[tuple[int, int], str] = field(default_factory=dict)
    weight: dict[tuple[int, int], int] = field(default_factory=dict)
    gbs: dict[tuple[int, int], float] = field(default_factory=dict)
    numa: dict[int, int] = field(default_factory=dict)

    def put(self, table: str, pair: tuple[int, int], cell: str, place: str) -> None:
        """Record a cell for a pair of devices: its link kind, its weight, or its GB/s.

        A bandwidth cell is MIN-MAX in MB/s, of which the maximum counts. A device paired with itself, an empty weight
        and an unreadable or zero bandwidth are ignored. A pair's earlier cell of the table is replaced.

        Args:
            table: Table of the cell: "kind", "weight" or "gbs"; any other table is ignored.
            pair: Numbers of the two devices.
            cell: Text of the cell.
            place: Place in the file, for messages.

        Raises:
            InputError: The kind is unknown, the weight is no whole number, or a device number is too large.
        """
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
        elif table == "gbs" and (rate := _RATE.fullmatch(cell)) is not None and int(rate[2]):
            self.gbs[pair] = int(rate[2]) / 1000  # The cell is MIN-MAX in MB/s; the maximum is that of all links.

    def node(self) -> Node:
        """Return the node of these pairs, with as many devices as the largest number in `kind` says, and no NICs.

        A pair has a fast link if its kind is XGMI and its weight is that of one link; without a weight, if its GB/s are
        stated or no pair's are. All devices are joined over PCIe at assumed rates, too.

        Raises:
            InputError: A pair is missing, or its two directions differ.
        """
        devices = 1 + max((rank for pair in self.kind for rank in pair), default=0)
        node = Node(devices, kind="xGMI")
        direct = []
        nearness: dict[tuple[Vertex, Vertex], int] = {}
        for pair in [(a, b) for a in range(devices) for b in range(devices) if a != b]:
            kind, back = self.kind.get(pair), self.kind.get(pair[::-1])
            if kind is None or back is None:
                raise InputError(
                    f"{self.origin}: nothing between GPU{pair[0]} and GPU{pair[1]}; it must be {self.expected}"
                )
            if kind != back:
                raise InputError(
                    f"{self.origin}: GPU{pair[0]} to GPU{pair[1]} is {kind}, but the reverse is {back}; both must agree"
                )
            weight = self.weight.get(pair, 0)  # A virtual machine may state 0.
            if kind == "XGMI" and (weight == _ONE_LINK or (not weight and (pair in self.gbs or not self.gbs))):
                direct.append(pair)
            nearness[pair] = LEVELS.index("NODE" if self._one_socket(pair) else "SYS")
        self._place_links(node, direct)
        place_pcie(node, nearness, rates.USUAL_PCIE_GBS)
        if node.pcie:
            how = "sockets are read" if self.numa else "sockets are derived from weights"
            node.pcie_remarks.append(f"PCIe: {how}; {assumed_pcie(node)}")
        return node

    def _one_socket(self, pair: tuple[int, int]) -> bool:
        """Return whether two devices are on one socket: by their NUMA nodes, or by their link where these are unknown.

        By their link they are where it is xGMI, or its weight is 1 to 40.
        """
        if pair[0] in self.numa and pair[1] in self.numa:
            return self.numa[pair[0]] == self.numa[pair[1]]
        return self.kind[pair] == "XGMI" or 0 < self.weight.get(pair, 0) <= _ONE_SOCKET

    def _place_links(self, node: Node, direct: list[tuple[int, int]]) -> None:
        """Add the xGMI links of directly joined pairs to the node, and remarks on them.

        A link has the stated GB/s, or else an assumed rate.

        Args:
            node: The node, which is changed.
            direct: The ordered pairs of devices that one link joins.
        """
        mesh = node.devices == 8 and len(direct) == node.devices * (node.devices - 1)
        usual = rates.MESH_XGMI_GBS if mesh else rates.USUAL_XGMI_GBS
        node.fast.update({pair: self.gbs.get(pair, usual) for pair in direct})
        if any(pair in self.gbs for pair in direct):
            node.remarks.append("GB/s of xGMI between two devices: read (the driver states 50 a link, whatever it has)")
        if any(pair not in self.gbs for pair in direct):
            why = "as of eight MI300X, all joined pairwise" if mesh else "as of MI200; the tool does not say"
            node.remarks.append(f"{usual:g} GB/s an xGMI link, one a pair: assumed, {why}")
