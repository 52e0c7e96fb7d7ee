"""A node as a tool prints it, and its topology: ranks, switches and links, and the NICs that join it to other nodes.

NVLink and xGMI are drawn as they are. Where they join all devices, PCIe is left out, as executors do. Otherwise PCIe is
included with its switches, host bridges and sockets, which devices share.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from topologies.arrays import components
from topologies.clusters import Machine, NicPort, Nics
from topologies.costs import LINK_KINDS
from topologies.errors import InputError
from topologies.importers.rates import FAST_ALPHA_US, INNER_ALPHA_US, NIC_ALPHA_US, PCIE_ALPHA_US
from topologies.text.counts import format_count
from topologies.topology import MAX_SMS, SwitchOps, Topology

MOST_DEVICES = 1024  # Most devices of one dump; a rack has some seventy.
_SHARP = 90  # Least compute capability with NVLink SHARP.
Vertex = int | str  # A device by its rank, or a switch by its name.


@dataclass(frozen=True)
class Nic:
    """A NIC of a node.

    Attributes:
        name: Name of the NIC.
        gbs: Bandwidth in GB/s, per direction; 0: unknown.
        distance: Distance of each device to the NIC, in any measure.
        guid: GUID of the NIC; 0: unknown.
    """

    name: str
    gbs: float
    distance: tuple[int, ...]
    guid: int = 0


@dataclass
class Node:
    """A node, or a rack whose own links join its devices, as a tool prints it.

    Attributes:
        devices: Number of devices, which are the ranks.
        fast: GB/s from one vertex to another over NVLink or xGMI; switches are vertices by name.
        pcie: GB/s between two vertices over PCIe and between sockets, per direction; each link stands once, in either
            order.
        nics: The NICs.
        hosts: Chassis of each device, from 0; empty for one chassis.
        kind: Kind of the fast links, for the summary.
        sms: SMs of a device; 0: unknown.
        compute_capability: Compute capability of a device; 0: unknown.
        gcn: Architecture of a device; "": unknown.
        remarks: Sources of the figures, a line each.
        pcie_remarks: Sources of the figures of PCIe, a line each.
    """

    devices: int
    fast: dict[tuple[Vertex, Vertex], float] = field(default_factory=dict)
    pcie: dict[tuple[Vertex, Vertex], float] = field(default_factory=dict)
    nics: list[Nic] = field(default_factory=list)
    hosts: list[int] = field(default_factory=list)
    kind: str = "NVLink"
    sms: int = 0
    compute_capability: int = 0
    gcn: str = ""
    remarks: list[str] = field(default_factory=list)
    pcie_remarks: list[str] = field(default_factory=list)

    def machine(self, name: str, source: str) -> Machine:
        """Return the node as a machine, whose every α is assumed.

        It adds to the node's remarks, so it is called once. The machine has no NICs where none has a known rate, or
        where the node has several chassis.

        Args:
            name: Name of the topology.
            source: Source of its figures, which also begins the error.

        Raises:
            InputError: No path joins the devices.
        """
        links: dict[tuple[Vertex, Vertex], tuple[float, float, int]] = {}
        fast, slow = LINK_KINDS.index("nvlink" if self.kind == "NVLink" else "other"), LINK_KINDS.index("pcie")
        for (a, b), gbs in self.fast.items():
            links[a, b] = gbs, FAST_ALPHA_US if isinstance(a, int) and isinstance(b, int) else FAST_ALPHA_US / 2, fast
        joined = _joins_all(self.devices, self.fast)
        if not joined:
            for (a, b), gbs in _pruned(self.pcie).items():
                alpha = INNER_ALPHA_US if isinstance(a, str) and isinstance(b, str) else PCIE_ALPHA_US
                for pair in ((a, b), (b, a)):
                    if pair not in links:
                        links[pair] = gbs, alpha, slow
            self.remarks += self.pcie_remarks
        elif self.pcie and self.devices > 1:
            self.remarks.append(f"{self.kind} joins all devices: PCIe is left out")
        if not _joins_all(self.devices, links):
            raise InputError(f"{source}: no path joins all {self.devices} devices; it must say how they are joined")
        switches = sorted({end for pair in links for end in pair if isinstance(end, str)})
        number = {switch: self.devices + i for i, switch in enumerate(switches)}
        ends = [[end if isinstance(end, int) else number[end] for end in pair] for pair in links]
        columns = np.array(ends, dtype=np.int64).reshape(-1, 2)
        figures = np.array(list(links.values()), dtype=np.float64).reshape(-1, 3)
        topology = Topology(
            name=name,
            nranks=self.devices,
            switches=tuple(switches),
            link_src=columns[:, 0],
            link_dst=columns[:, 1],
            alpha_us=figures[:, 1],
            bandwidth_gbs=figures[:, 0],
            alpha_assumed=True,
            nodes=np.array(self.hosts, dtype=np.int64),
            sms=self.sms if self.sms <= MAX_SMS else 0,
            compute_capability=self.compute_capability,
            gcn=self.gcn,
            summary=self._summary(switches, joined),
            source=source,
            link_kind=figures[:, 2].astype(np.int64),
            switch_ops=self._switch_ops(),
        )
        self.remarks.append("every α is assumed")
        return Machine(topology, self._joining_nics(), tuple(self.remarks))

    def _switch_ops(self) -> tuple[SwitchOps, ...]:
        """Return the operations of NVSwitches (NVLink SHARP), which multicast and reduce for devices since Hopper.

        It is () for older or unknown devices and without switches of the fast links; otherwise a remark is added.
        """
        switches = sorted({end for pair in self.fast for end in pair if isinstance(end, str)})
        if self.compute_capability < _SHARP or not switches:
            return ()
        self.remarks.append(
            f"NVSwitches multicast and reduce: derived from compute capability {_SHARP / 10:.1f} or more"
        )
        return tuple(SwitchOps(switch) for switch in switches)

    def _summary(self, switches: Sequence[str], joined: bool) -> str:
        """Return a short description of the node: devices, kinds of links, and GB/s out of a device over fast links.

        Args:
            switches: Names of all switches.
            joined: Whether fast links join all devices; if not, no rate is stated.
        """
        count = format_count(self.devices, "device")
        if not joined:
            return f"{count}, {self.kind} and PCIe" if self.fast else f"{count}, PCIe"
        through = f"{self.kind} switches" if switches else self.kind
        out = [0.0] * self.devices
        for (a, _), gbs in self.fast.items():
            if isinstance(a, int):
                out[a] += gbs
        span = f"{min(out):g}" if min(out) == max(out) else f"{min(out):g}–{max(out):g}"
        return f"{count}, {through}, {span} GB/s each way a device" if self.fast else count

    def _joining_nics(self) -> Nics | None:
        """Return the NICs with each device on the nearest one; None if no rate is known, or with two or more chassis.

        Only the fastest NICs are used. Those that are nearest to no device are left out. Where each device has its own
        NICs, they become one NIC with the sum of their rates, but at most that of the narrowest device's PCIe link.
        Remarks are added.
        """
        rated = [nic for nic in self.nics if nic.gbs > 0]
        gbs = max((nic.gbs for nic in rated), default=0.0)
        usable = [nic for nic in rated if nic.gbs == gbs]
        if not usable or len(set(self.hosts)) > 1:
            return None
        share, drawn, serves = self._shared_out(usable)
        sets = {name: ranks for name, ranks in serves.items() if ranks}
        rate_text = f"{share} of {gbs:g} GB/s a device, drawn as one" if share > 1 else f"{gbs:g} GB/s each way"
        self.remarks.append(f"NICs {', '.join(sets)}: {rate_text}; that one switch joins them is assumed")
        used_names = {name for first in sets for name in drawn[first]}
        unused = [nic.name for nic in self.nics if nic.name not in used_names]
        if unused:
            self.remarks.append(f"NICs are left out because others are nearer or faster: {', '.join(unused)}")
        room = min((self._pcie_gbs(ranks[0]) for ranks in sets.values() if len(ranks) == 1), default=np.inf)
        if gbs * share > room and len(sets) == self.devices:
            self.remarks.append(f"a device's NICs are limited by its PCIe link to {room:.4g} GB/s")
            gbs = room / share
        ranks_of = tuple(np.array(ranks, dtype=np.int64) for ranks in sets.values())
        guids = {nic.name: nic.guid for nic in self.nics}
        ports = tuple(tuple(NicPort(name, guids[name]) for name in drawn[first]) for first in sets)
        return Nics(ranks_of, ranks_of, gbs * share, NIC_ALPHA_US, True, 1, ports)

    def _shared_out(self, usable: Sequence[Nic]) -> tuple[int, dict[str, list[str]], dict[str, list[int]]]:
        """Share out NICs among the devices, to each device one that is nearest to it.

        Returns:
            The number of NICs that each device has for itself, or 1 where devices share NICs; the NICs that are drawn
            as one, by the name of their first; and the devices of each of these names, in order.
        """
        least = [min(nic.distance[rank] for nic in usable) for rank in range(self.devices)]
        near = [[rank for rank in range(self.devices) if nic.distance[rank] == least[rank]] for nic in usable]
        nearest = [(nic.name, ranks) for nic, ranks in zip(usable, near, strict=True) if ranks]
        if len(nearest) >= self.devices:
            names_of_device: list[list[str]] = [[] for _ in range(self.devices)]
            for name, ranks in sorted(nearest, key=lambda name_and_ranks: len(name_and_ranks[1])):
                names_of_device[min(ranks, key=lambda rank: len(names_of_device[rank]))].append(name)
            share = min(map(len, names_of_device))
            if share:
                drawn = {names[0]: names[:share] for names in names_of_device}
                return share, drawn, {names[0]: [rank] for rank, names in enumerate(names_of_device)}
        serves: dict[str, list[int]] = {name: [] for name, _ in nearest}
        for rank in range(self.devices):
            near_names = [name for name, ranks in nearest if rank in ranks]
            serves[min(near_names, key=lambda name: len(serves[name]))].append(rank)
        return 1, {name: [name] for name in serves}, serves

    def _pcie_gbs(self, rank: int) -> float:
        """Return the GB/s of a device's own PCIe link, of more than one the fastest; infinite where unknown."""
        return max((gbs for pair, gbs in self.pcie.items() if rank in pair), default=np.inf)


def distances(pcie: Iterable[tuple[Vertex, Vertex]], devices: int) -> Callable[[Vertex], tuple[int, ...]]:
    """Return a function that computes the number of links from a vertex to each device on the shortest path.

    The number is larger than any path's where no path exists.

    Args:
        pcie: Ends of the links, which count in both directions.
        devices: Number of devices, which are the vertices 0..devices-1.
    """
    neighbours: dict[Vertex, list[Vertex]] = defaultdict(list)
    for a, b in pcie:
        neighbours[a].append(b)
        neighbours[b].append(a)

    @cache
    def far_from(start: Vertex) -> tuple[int, ...]:
        """Return the number of links from a vertex to each device."""
        hops = {start: 0}
        waiting = deque([start])
        while waiting:
            vertex = waiting.popleft()
            for neighbour in neighbours.get(vertex, ()):
                if neighbour not in hops:
                    hops[neighbour] = hops[vertex] + 1
                    waiting.append(neighbour)
        return tuple(hops.get(rank, len(neighbours) + 1) for rank in range(devices))

    return far_from


def _joins_all(devices: int, links: Iterable[tuple[Vertex, Vertex]]) -> bool:
    """Return whether links in either direction connect all devices."""
    pairs = list(links)
    vertices = dict.fromkeys([*range(devices), *(end for pair in pairs for end in pair)])
    number = {vertex: i for i, vertex in enumerate(vertices)}
    ends = np.array([[number[a], number[b]] for a, b in pairs], dtype=np.int64).reshape(-1, 2)
    return len(set(components(len(number), ends[:, 0], ends[:, 1])[:devices].tolist())) == 1


def _pruned(pcie: dict[tuple[Vertex, Vertex], float]) -> dict[tuple[Vertex, Vertex], float]:
    """Return the PCIe links without switches that lead nowhere.

    A switch with two neighbours becomes one link with the lower of the two rates.
    """
    rates_of: dict[Vertex, dict[Vertex, float]] = defaultdict(dict)
    for (a, b), gbs in pcie.items():
        rates_of[a][b] = rates_of[b][a] = gbs
    waiting = deque(vertex for vertex in rates_of if isinstance(vertex, str))
    while waiting:
        switch = waiting.popleft()
        around = list(rates_of.get(switch, ()))
        if switch not in rates_of or len(around) > 2 or (len(around) == 2 and around[1] in rates_of[around[0]]):
            continue
        rates = rates_of.pop(switch)
        for neighbour in around:
            del rates_of[neighbour][switch]
            if isinstance(neighbour, str):
                waiting.append(neighbour)
        if len(around) == 2:
            a, b = around
            rates_of[a][b] = rates_of[b][a] = min(rates.values())
    return {(a, b): gbs for a, rates_to in rates_of.items() for b, gbs in rates_to.items() if str(a) < str(b)}
