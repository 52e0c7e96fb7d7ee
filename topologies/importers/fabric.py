"""A network between nodes as a tool prints it: switches, the links between them, and the hosts on them.

A fabric by itself is a topology of its hosts' ports. With a machine, each host is one such machine. With dumps of the
nodes, each of their NICs is on its own port.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from topologies.arrays import Floats, Ints
from topologies.clusters import Machine, NicPort, Nics
from topologies.costs import LINK_KINDS
from topologies.errors import InputError
from topologies.importers.rates import NIC_ALPHA_US
from topologies.merging import merge_switches
from topologies.text.counts import format_count
from topologies.topology import MAX_LINKS, MAX_RANKS, Limit, Topology, is_switch_name

_LONGEST_NAME = 255  # Most letters of a host's or switch's name.
_LONGEST_PART = 1 << 20  # Most letters of one name with its brackets in a list.
_EXPANDED = 200_000  # Most names that one list in brackets may stand for.
_SERIES = re.compile(r"([^\[\],]*)\[([0-9,\-]+)\]([^\[\],]*)")
_LEAST_GUID = 1 << 24  # A smaller number is no GUID (virtual NICs have 0 or 1).
HOP_ALPHA_US = 0.1  # Latency of a link between switches.


@dataclass(frozen=True)
class Port:
    """A port of a host.

    Attributes:
        name: Name of the port.
        switch: Switch that the port is on.
        gbs: Bandwidth in GB/s, per direction.
        guids: GUIDs of the port or its HCA.
    """

    name: str
    switch: str
    gbs: float
    guids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Dumped:
    """A dump of a node.

    Attributes:
        label: Name of the file in errors.
        host: Host that the dump is of, if that is known.
        machine: The node.
    """

    label: str
    host: str
    machine: Machine


@dataclass(frozen=True)
class _Attached:
    """A NIC on the fabric.

    Attributes:
        switch: Switch that the NIC is on.
        sends: Ranks that send by it.
        receives: Ranks that receive by it.
        gbs: Bandwidth in GB/s, per direction.
        alpha_us: Latency in µs between a rank and the switch.
    """

    switch: str
    sends: Ints
    receives: Ints
    gbs: float
    alpha_us: float


@dataclass(frozen=True)
class _Placed:
    """A node on the fabric.

    Attributes:
        chassis: Number of its chassis.
        topology: Its topology.
        nics: Its NICs.
    """

    chassis: int
    topology: Topology
    nics: Sequence[_Attached]


@dataclass
class Fabric:
    """A network between nodes: switches, links between them, and hosts.

    Where a host has one port with an assumed rate, the port stands for all NICs of the host.

    Attributes:
        links: GB/s between two switches by name, per direction.
        hosts: Ports of each host, in their order.
        remarks: Sources of the figures, a line each.
        assumed_gbs: Rate in GB/s that hosts' links are assumed to have; links between switches then carry as much as
            all hosts below them. 0: the rates are read.
    """

    links: dict[tuple[str, str], float] = field(default_factory=dict)
    hosts: dict[str, list[Port]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    assumed_gbs: float = 0.0

    def add_link(self, first: str, second: str, gbs: float) -> None:
        """Add the bandwidth of one more link between two switches, per direction; their order does not matter."""
        pair = (min(first, second), max(first, second))
        self.links[pair] = self.links.get(pair, 0.0) + gbs

    def machine(self, name: str, source: str) -> Machine:
        """Return the machine, without NICs, with a rank for each port of each host, which is a chassis.

        Args:
            name: Name of the machine.
            source: Name of the fabric's file, as the topology's source and in errors.

        Raises:
            InputError: There are no ports, or too many, or a switch's name is not allowed.
        """
        no_vertices, no_figures = np.zeros(0, dtype=np.int64), np.zeros(0)
        port_topology = Topology("host", 1, (), no_vertices, no_vertices, no_figures, no_figures, summary="a port each")
        first = np.zeros(1, dtype=np.int64)
        placed_nodes = [
            _Placed(i, port_topology, [_Attached(port.switch, first, first, port.gbs, NIC_ALPHA_US / 2)])
            for i, ports in enumerate(self.hosts.values())
            for port in ports
        ]
        return self._of_nodes(name, source, placed_nodes)

    def cluster(self, machine: Machine, name: str, source: str) -> Machine:
        """Return the cluster in which each host is a given machine.

        The machine's NICs are the host's ports, by name or in order. Hosts without ports of these names, and without as
        many ports, are left out. The result has no NICs. The fabric's remarks and assumed rates change, so only one
        machine is made of a fabric.

        Args:
            machine: The machine that each host is.
            name: Name of the cluster.
            source: Name of the fabric's file.

        Raises:
            InputError: The machine has no NICs, or no host fits it.
        """
        nics = _nics_of(machine, source)
        if self.assumed_gbs:
            self._widen([nics])
        placed_nodes: list[_Placed] = []
        for ports in self.hosts.values():
            ports_of_nic = [ports] * len(nics.sends) if self._is_one(ports) else _by_name(ports, nics)
            if ports_of_nic is not None:
                placed_nodes.append(
                    _Placed(len(placed_nodes), machine.topology, _on_ports(nics, ports_of_nic, bool(self.assumed_gbs)))
                )
        if not placed_nodes:
            port_counts = Counter(map(len, self.hosts.values())).most_common(1)
            raise InputError(
                f"{source}: no host has the {len(nics.sends)} NICs of {machine.topology.name}; most have"
                f" {port_counts[0][0] if port_counts else 'none'}; it must have as many, or ports of the same names"
            )
        if len(placed_nodes) < len(self.hosts):
            omitted = len(self.hosts) - len(placed_nodes)
            self.remarks.append(f"{omitted} hosts are left out: they do not have {len(nics.sends)} ports")
        self.remarks += machine.remarks
        return self._of_nodes(name, source, placed_nodes)

    def join(self, nodes: Sequence[Dumped], name: str, source: str) -> Machine:
        """Return the cluster of dumped nodes, in order, with each NIC on the port that has its GUID.

        Where the GUID is unknown, the NIC is on the port of its name at the dump's host. Nodes without a dump are left
        out, and NICs that the fabric does not have. The result has no NICs. The fabric's remarks and assumed rates
        change, so only one machine is made of a fabric.

        Args:
            nodes: The dumps.
            name: Name of the cluster.
            source: Name of the fabric's file.

        Raises:
            InputError: A node has no NICs, none of its NICs is on the fabric, or two nodes have the same NIC.
        """
        if self.assumed_gbs:
            self._widen([_nics_of(node.machine, node.label) for node in nodes])
        by_guid: dict[int, list[Port]] = {}
        for port in (port for ports in self.hosts.values() for port in ports):
            for guid in dict.fromkeys(port.guids):
                by_guid.setdefault(guid, []).append(port)
        holder: dict[int, Dumped] = {}
        placed_nodes: list[_Placed] = []
        for node in nodes:
            nics = _nics_of(node.machine, node.label)
            host_ports = self.hosts.get(node.host, [])
            if self._is_one(host_ports):
                ports_of_nic = [host_ports] * len(nics.sends)
            else:
                ports_of_nic = [
                    _claim(physical_nics, by_guid, host_ports, node, holder) for physical_nics in ports_of(nics)
                ]
            if not any(ports_of_nic):
                raise InputError(
                    f"{node.label}: no NIC of it is in {source}, neither by GUID nor at a host {node.host[:40]}; the"
                    " file must be named after its host in the fabric, or state the GUIDs of the fabric's ports"
                )
            missing_names = [
                physical_nics[0].name
                for physical_nics, ports in zip(ports_of(nics), ports_of_nic, strict=True)
                if not ports
            ]
            if missing_names:
                self.remarks.append(
                    f"{node.host}: NICs that the fabric does not have are left out: {', '.join(missing_names)}"
                )
            placed_nodes.append(
                _Placed(len(placed_nodes), node.machine.topology, _on_ports(nics, ports_of_nic, bool(self.assumed_gbs)))
            )
        self.remarks += dict.fromkeys(remark for node in nodes for remark in node.machine.remarks)
        return self._of_nodes(name, source, placed_nodes)

    def _is_one(self, ports: Sequence[Port]) -> bool:
        """Return whether a single assumed port stands for all NICs of a host."""
        return self.assumed_gbs > 0 and len(ports) == 1

    def _widen(self, all_nics: Sequence[Nics]) -> None:
        """Scale the assumed rates of links between switches, in place, for hosts that have the fastest of these NICs.

        `assumed_gbs` stays, so a second call would scale them again. Where hosts have more than one port, a port
        carries its share of the host's NICs.
        """
        ports = max(map(len, self.hosts.values()), default=1)
        gbs = max(len(nics.sends) * nics.gbs for nics in all_nics) / ports
        self.links = {pair: rate * gbs / self.assumed_gbs for pair, rate in self.links.items()}

    def _of_nodes(self, name: str, source: str, placed_nodes: Sequence[_Placed]) -> Machine:
        """Return the machine of all nodes, at least one, whose NICs are on the fabric's switches.

        Raises:
            InputError: There are no ranks or too many, too many links, or a switch's name is not allowed.
        """
        topologies = [node.topology for node in placed_nodes]
        ranks = sum(node.nranks for node in topologies)
        if not 1 <= ranks <= MAX_RANKS:
            raise InputError(f"{source}: {ranks} ranks; it must be 1 to {MAX_RANKS}")
        if sum(node.nlinks for node in topologies) > MAX_LINKS:
            raise InputError(f"{source}: too large; it must have at most {MAX_LINKS} links")
        names = self._switch_names(source, placed_nodes)
        inner = [f"{s}.{i}" for i, node in enumerate(topologies) for s in node.switches]
        table, limits = self._links_and_limits(
            placed_nodes, ranks, {switch: ranks + len(inner) + i for i, switch in enumerate(names)}
        )
        kinds = list(dict.fromkeys(node.summary for node in topologies))
        model = topologies[0]
        topology = Topology(
            name=name,
            nranks=ranks,
            switches=(*inner, *names),
            link_src=table[:, 0].astype(np.int64),
            link_dst=table[:, 1].astype(np.int64),
            alpha_us=table[:, 3],
            bandwidth_gbs=table[:, 2],
            limits=tuple(limits),
            alpha_assumed=True,
            nodes=np.repeat([node.chassis for node in placed_nodes], [node.nranks for node in topologies]),
            sms=min(node.sms for node in topologies),  # All devices have as many; 0: one device's number is unknown.
            compute_capability=min(node.compute_capability for node in topologies),  # NCCL uses the least.
            gcn=model.gcn if all(node.gcn == model.gcn for node in topologies) else "",
            platform=model.platform if all(node.platform == model.platform for node in topologies) else "",
            summary=f"{placed_nodes[-1].chassis + 1} hosts ({'; '.join(kinds[:3])}) on"
            f" {format_count(len(names), 'switch', 'switches')}",
            source=source,
            link_kind=table[:, 4].astype(np.int64),
            costs=model.costs if all(node.costs == model.costs for node in topologies) else None,
            switch_ops=tuple(
                replace(ops, switch=f"{ops.switch}.{i}") for i, node in enumerate(topologies) for ops in node.switch_ops
            ),
        )
        merged = merge_switches(topology, np.arange(len(topology.switches)) >= len(inner))
        remarks = [*self.remarks, "every α is assumed"]
        if len(merged.switches) < len(topology.switches):
            merged = replace(merged, summary=f"{topology.summary}, drawn as {len(merged.switches) - len(inner)}")
            remarks.append("switches on equal paths are drawn as one switch of wider links")
        return Machine(merged, None, tuple(dict.fromkeys(remarks)))

    def _links_and_limits(
        self, placed_nodes: Sequence[_Placed], first_switch: int, number: Mapping[str, int]
    ) -> tuple[Floats, list[Limit]]:
        """Return the links, a row (source, destination, GB/s, α in µs, kind) each, and the limits.

        Args:
            placed_nodes: The nodes.
            first_switch: Vertex of the first switch of a node.
            number: Vertex of each switch of the fabric.
        """
        rows: list[tuple[int, int, float, float, int]] = []
        limits: list[Limit] = []
        network, first = LINK_KINDS.index("network"), 0
        for i, placed_node in enumerate(placed_nodes):
            node = placed_node.topology
            vertex = np.arange(node.nvertices)
            vertex = np.where(vertex < node.nranks, vertex + first, vertex - node.nranks + first_switch)
            start = len(rows)
            columns = (vertex[node.link_src], vertex[node.link_dst], node.bandwidth_gbs, node.alpha_us, node.link_kind)
            rows += zip(*(column.tolist() for column in columns), strict=True)
            limits += [Limit(f"{x.name}.{i}", x.links + start, x.bandwidth_gbs) for x in node.limits]
            for j, nic in enumerate(placed_node.nics):
                for direction, group in (("out", nic.sends), ("in", nic.receives)):
                    at = len(rows)
                    for rank in (group + first).tolist():
                        ends = (rank, number[nic.switch]) if direction == "out" else (number[nic.switch], rank)
                        rows.append((*ends, nic.gbs, nic.alpha_us, network))
                    if len(group) > 1:
                        limits.append(Limit(f"nic{j}.{i} {direction}", np.arange(at, len(rows)), nic.gbs))
            first += node.nranks
            first_switch += len(node.switches)
        for pair, gbs in self.links.items():
            a, b = (number[switch] for switch in pair)
            rows += [(a, b, gbs, HOP_ALPHA_US, network), (b, a, gbs, HOP_ALPHA_US, network)]
        return np.array(rows, dtype=np.float64).reshape(-1, 5), limits

    def _switch_names(self, source: str, placed_nodes: Sequence[_Placed]) -> list[str]:
        """Return the names of all switches, sorted, or raise InputError for a name that no switch can have."""
        switches = sorted(
            {end for pair in self.links for end in pair} | {nic.switch for node in placed_nodes for nic in node.nics}
        )
        for switch in switches:
            if not is_switch_name(switch):
                raise InputError(
                    f"{source}: switch {switch[:40]!r}: must have a name of a letter, then letters and digits"
                )
        return switches


def ports_of(nics: Nics) -> Sequence[Sequence[NicPort]]:
    """Return the physical NICs that each NIC stands for, in the order of the NICs.

    Where no tool stated them, NIC 0 is one physical NIC "nic0" without a GUID, and so on.
    """
    return nics.ports or [(NicPort(f"nic{i}"),) for i in range(len(nics.sends))]


def _nics_of(machine: Machine, source: str) -> Nics:
    """Return a machine's NICs, or raise InputError where it has none."""
    if machine.nics is None:
        raise InputError(
            f"{source}: {machine.topology.name} states no NICs ([nic]) that could join it to a fabric; it must state"
            " them"
        )
    return machine.nics


def _by_name(ports: Sequence[Port], nics: Nics) -> list[list[Port]] | None:
    """Return a host's ports for each NIC, or None where they do not fit.

    They are matched by name where the host has all names, else in order where the numbers agree.
    """
    port_of_name = {port.name: port for port in ports}
    if nics.ports and all(port.name in port_of_name for physical_nics in nics.ports for port in physical_nics):
        return [[port_of_name[port.name] for port in physical_nics] for physical_nics in nics.ports]
    counts = [len(physical_nics) for physical_nics in ports_of(nics)]
    if len(ports) != sum(counts):
        return None
    remaining_ports = iter(ports)
    return [[next(remaining_ports) for _ in range(count)] for count in counts]


def _claim(
    physical_nics: Sequence[NicPort],
    by_guid: Mapping[int, Sequence[Port]],
    host_ports: Sequence[Port],
    node: Dumped,
    holder: dict[int, Dumped],
) -> list[Port]:
    """Return the ports of a NIC, and record in `holder` that `node` holds them; a physical NIC without a port has none.

    Args:
        physical_nics: Physical NICs that the NIC stands for.
        by_guid: Ports by GUID.
        host_ports: Ports of the dump's host, which are searched by name where no GUID fits.
        node: The dump of the NIC's node.
        holder: Dump that holds each port, by the port's id.

    Raises:
        InputError: Another node holds the NIC.
    """
    ports: list[Port] = []
    for nic in physical_nics:
        matching = [port for guid in _orders(nic.guid) for port in by_guid.get(guid, ())]
        matching = matching or [port for port in host_ports if port.name == nic.name]
        free = [port for port in matching if id(port) not in holder]
        if free:
            holder[id(free[0])] = node
            ports.append(free[0])
        elif matching and holder[id(matching[0])] is not node:
            holder_name = holder[id(matching[0])].label
            raise InputError(f"{node.label}: NIC {nic.name} is in {holder_name} too; it must be on one node")
    return ports


def _on_ports(nics: Nics, ports_of_nic: Sequence[Sequence[Port]], assumed: bool) -> list[_Attached]:
    """Return each NIC attached to each of its ports; a NIC without ports is left out.

    The rate is that of the NIC divided by the number of its ports, or that of the port where this is lower. It is
    always the former where the ports' rates are assumed.
    """
    return [
        _Attached(
            port.switch,
            senders,
            receivers,
            min(nics.gbs / len(ports), math.inf if assumed else port.gbs),
            nics.alpha_us / 2,
        )
        for senders, receivers, ports in zip(nics.sends, nics.receives, ports_of_nic, strict=True)
        for port in ports
    ]


def _orders(guid: int) -> tuple[int, ...]:
    """Return the numbers as which tools print a GUID, one per byte order; () where the number is no GUID.

    NCCL prints its bytes in their order in memory, the last one first.
    """
    if guid < _LEAST_GUID:
        return ()
    return guid, int.from_bytes(guid.to_bytes(8, "big"), "little")


def expand(text: str, place: str) -> list[str]:
    """Return the names of a list such as `n[1-3,7],m`, as Slurm writes it, in its order; errors begin with `place`.

    Both ends of a range are included, leading zeros stay, and empty parts are dropped, so that "" gives no names.

    Raises:
        InputError: The text is no such list, or stands for too many names.
    """
    names: list[str] = []
    for part in _list_parts(text):
        if len(names) >= _EXPANDED:
            raise InputError(f"{place}: more than {_EXPANDED} names; it must be fewer")
        if len(part) > _LONGEST_PART:
            raise InputError(
                f"{place}: {part[:40]!r} is part of a list longer than {_LONGEST_PART} letters; it must be shorter"
            )
        match = _SERIES.fullmatch(part)
        if match is None or len(match[1]) + len(match[3]) > _LONGEST_NAME:
            if "[" in part or "]" in part or len(part) > _LONGEST_NAME:
                raise InputError(f"{place}: {part[:40]!r} is no list of names; it must be as in n[1-3,7]")
            names.append(part.strip())
            continue
        for numbers in match[2].split(","):
            low, dash, high = numbers.partition("-")
            if not low.isdecimal() or (dash and not high.isdecimal()) or len(low) > 9 or len(high) > 9:
                raise InputError(f"{place}: {part[:40]!r} is no list of names; it must be as in n[1-3,7]")
            last = int(high) if dash else int(low)
            if not 0 <= last - int(low) < _EXPANDED - len(names):
                raise InputError(
                    f"{place}: {part[:40]!r} stands for none or too many names; it must count up, to {_EXPANDED}"
                )
            names += [f"{match[1]}{str(i).zfill(len(low))}{match[3]}" for i in range(int(low), last + 1)]
    return names


def _list_parts(text: str) -> Iterator[str]:
    """Yield the parts of a list between commas that stand in no brackets, in one pass over the text.

    Empty parts are left out.
    """
    start, end = 0, len(text)
    while start < end:
        comma = text.find(",", start)
        comma = end if comma < 0 else comma
        bracket = text.find("[", start, comma)
        if bracket >= 0:  # The part ends at the first comma after the closing bracket.
            closing = text.find("]", bracket)
            comma = end if closing < 0 else text.find(",", closing)
            comma = end if comma < 0 else comma
        if comma > start:
            yield text[start:comma]
        start = comma + 1


def natural_key(name: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts names with numbers by value: mlx5_2 before mlx5_10."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"([0-9]{1,12})", name)]
