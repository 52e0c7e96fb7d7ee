"""A network between nodes as a tool prints it: its switches, the links between them, and what hosts hang on.

By itself it is a topology of its hosts' ports; with a machine, each host is one; with what was dumped on each node,
each NIC of these is on its port.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from topologies.arrays import Ints
from topologies.clusters import Machine, NicPort, Nics
from topologies.costs import KINDS
from topologies.errors import InputError
from topologies.importers.rates import NIC_ALPHA_US
from topologies.topology import MAX_LINKS, MAX_RANKS, Limit, SwitchOps, Topology, is_switch_name

_LONGEST_NAME = 255  # letters of a host's or switch's name
_LONGEST_PART = 1 << 20  # of a list: one name with its brackets
_EXPANDED = 200_000  # names that one list in brackets may stand for
_SERIES = re.compile(r"([^\[\],]*)\[([0-9,\-]+)\]([^\[\],]*)")
_LEAST_GUID = 1 << 24  # less stands for none (virtual NICs have 0 or 1)
HOP_ALPHA_US = 0.1  # of a link between switches


@dataclass(frozen=True)
class Port:
    """Of a host: its name, the switch that it is on, GB/s each way, and the GUIDs that it or its HCA goes by."""

    name: str
    switch: str
    gbs: float
    guids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Dumped:
    """What was read of one node: the file, as errors name it, the host that it is of, if that is known, and it."""

    label: str
    host: str
    machine: Machine


@dataclass(frozen=True)
class _Attached:
    """A NIC on the fabric: its switch, the ranks that send and that receive by it, GB/s each way, µs to the switch."""

    switch: str
    sends: Ints
    receives: Ints
    gbs: float
    alpha_us: float


@dataclass(frozen=True)
class _Placed:
    """A node on the fabric: its chassis, its topology and its NICs."""

    chassis: int
    topology: Topology
    nics: Sequence[_Attached]


@dataclass
class Fabric:
    """Switches by name; `links`: GB/s from one to the other, each way; `hosts`: the ports of each, in order.

    assumed_gbs: that hosts' links are assumed to have, and those above as much as all hosts below; 0: rates are read.
    Where a host has one assumed port, that stands for all of its NICs.
    """

    links: dict[tuple[str, str], float] = field(default_factory=dict)
    hosts: dict[str, list[Port]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    assumed_gbs: float = 0.0

    def add_link(self, one: str, other: str, gbs: float) -> None:
        """One more between two switches, each way."""
        pair = (min(one, other), max(one, other))
        self.links[pair] = self.links.get(pair, 0.0) + gbs

    def machine(self, name: str, source: str) -> Machine:
        """A rank for each port of each host, which is a chassis. Raises InputError where there are none."""
        nothing, no_figures = np.zeros(0, dtype=np.int64), np.zeros(0)
        one = Topology("host", 1, (), nothing, nothing, no_figures, no_figures, summary="a port each")
        first = np.zeros(1, dtype=np.int64)
        placed = [
            _Placed(i, one, [_Attached(port.switch, first, first, port.gbs, NIC_ALPHA_US / 2)])
            for i, ports in enumerate(self.hosts.values())
            for port in ports
        ]
        return self._of_nodes(name, source, placed)

    def cluster(self, machine: Machine, name: str, source: str) -> Machine:
        """Each host as the machine, whose NICs are the host's ports, by name or in order.

        Hosts that have no ports of these names, nor as many, are left out. Raises InputError: no NICs, or no host fits.
        """
        nics = _nics_of(machine, source)
        if self.assumed_gbs:
            self._widen([nics])
        placed: list[_Placed] = []
        for ports in self.hosts.values():
            found = [ports] * len(nics.sends) if self._is_one(ports) else _by_name(ports, nics)
            if found is not None:
                placed.append(_Placed(len(placed), machine.topology, _on_ports(nics, found, bool(self.assumed_gbs))))
        if not placed:
            usual = Counter(map(len, self.hosts.values())).most_common(1)
            raise InputError(
                f"{source}: no host has the {len(nics.sends)} NICs of {machine.topology.name}; most have"
                f" {usual[0][0] if usual else 'none'}; they must have as many, or of the same names"
            )
        if len(placed) < len(self.hosts):
            left = len(self.hosts) - len(placed)
            self.remarks.append(f"{left} hosts are left out: they have not the {len(nics.sends)} ports")
        self.remarks += machine.remarks
        return self._of_nodes(name, source, placed)

    def join(self, nodes: Sequence[Dumped], name: str, source: str) -> Machine:
        """What was dumped on each node, in order: each NIC on the port that has its GUID.

        Where that is not known, on the port of its name at the host that the dump is of. What is in no dump is left
        out. Raises InputError: a node has no NICs or none of them is here, or two have the same.
        """
        if self.assumed_gbs:
            self._widen([_nics_of(node.machine, node.label) for node in nodes])
        by_guid: dict[int, list[Port]] = {}
        for port in (port for ports in self.hosts.values() for port in ports):
            for guid in dict.fromkeys(port.guids):
                by_guid.setdefault(guid, []).append(port)
        holder: dict[int, Dumped] = {}
        placed: list[_Placed] = []
        for node in nodes:
            nics = _nics_of(node.machine, node.label)
            beside = self.hosts.get(node.host, [])
            if self._is_one(beside):
                found = [beside] * len(nics.sends)
            else:
                found = [_claim(drawn, by_guid, beside, node, holder) for drawn in ports_of(nics)]
            if not any(found):
                raise InputError(
                    f"{node.label}: no NIC of it is in {source}, by GUID or as of a host {node.host[:40]}; it must be,"
                    " or the file must be called as its host is there"
                )
            lost = [drawn[0].name for drawn, ports in zip(ports_of(nics), found, strict=True) if not ports]
            if lost:
                self.remarks.append(f"{node.host}: NICs left out, which the fabric does not have: {', '.join(lost)}")
            placed.append(_Placed(len(placed), node.machine.topology, _on_ports(nics, found, bool(self.assumed_gbs))))
        self.remarks += dict.fromkeys(remark for node in nodes for remark in node.machine.remarks)
        return self._of_nodes(name, source, placed)

    def _is_one(self, ports: Sequence[Port]) -> bool:
        return self.assumed_gbs > 0 and len(ports) == 1

    def _widen(self, several: Sequence[Nics]) -> None:
        """Assumed rates of links between switches become those of hosts with the fastest of these NICs."""
        ports = max(map(len, self.hosts.values()), default=1)
        gbs = max(len(nics.sends) * nics.gbs for nics in several) / ports
        self.links = {pair: rate * gbs / self.assumed_gbs for pair, rate in self.links.items()}

    def _of_nodes(self, name: str, source: str, placed: Sequence[_Placed]) -> Machine:
        """All nodes side by side, their NICs on the switches."""
        ranks = sum(node.topology.nranks for node in placed)
        if not 1 <= ranks <= MAX_RANKS:
            raise InputError(f"{source}: {ranks} ranks; it must be 1 to {MAX_RANKS}")
        if sum(node.topology.nlinks for node in placed) > MAX_LINKS:
            raise InputError(f"{source}: too large; it must have at most {MAX_LINKS} links")
        names = self._switch_names(source, placed)
        inner = [f"{s}.{i}" for i, node in enumerate(placed) for s in node.topology.switches]
        number = {switch: ranks + len(inner) + i for i, switch in enumerate(names)}
        rows: list[tuple[int, int, float, float, int]] = []
        network = KINDS.index("network")
        limits: list[Limit] = []
        first, first_switch = 0, ranks
        for i, here in enumerate(placed):
            node = here.topology
            vertex = np.arange(node.nvertices)
            vertex = np.where(vertex < node.nranks, vertex + first, vertex - node.nranks + first_switch)
            start = len(rows)
            columns = (vertex[node.link_src], vertex[node.link_dst], node.bandwidth_gbs, node.alpha_us, node.link_kind)
            rows += zip(*(column.tolist() for column in columns), strict=True)
            limits += [Limit(f"{x.name}.{i}", x.links + start, x.bandwidth_gbs) for x in node.limits]
            for j, nic in enumerate(here.nics):
                for way, group in (("out", nic.sends), ("in", nic.receives)):
                    at = len(rows)
                    for rank in (group + first).tolist():
                        ends = (rank, number[nic.switch]) if way == "out" else (number[nic.switch], rank)
                        rows.append((*ends, nic.gbs, nic.alpha_us, network))
                    if len(group) > 1:
                        limits.append(Limit(f"nic{j}.{i} {way}", np.arange(at, len(rows)), nic.gbs))
            first += node.nranks
            first_switch += len(node.switches)
        for (one, other), gbs in self.links.items():
            for a, b in ((one, other), (other, one)):
                rows.append((number[a], number[b], gbs, HOP_ALPHA_US, network))
        table = np.array(rows, dtype=np.float64).reshape(-1, 5)
        kinds = list(dict.fromkeys(node.topology.summary for node in placed))
        sms = {node.topology.sms for node in placed}
        model = placed[0].topology
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
            nodes=np.repeat([node.chassis for node in placed], [node.topology.nranks for node in placed]),
            sms=min(sms),  # what all have; 0, not known, where it is not of one
            compute_capability=min(node.topology.compute_capability for node in placed),  # NCCL goes by the least
            gcn=model.gcn if all(node.topology.gcn == model.gcn for node in placed) else "",
            platform=model.platform if all(node.topology.platform == model.platform for node in placed) else "",
            summary=f"{placed[-1].chassis + 1} hosts ({'; '.join(kinds[:3])}) on {len(names)}"
            f" switch{'es' if len(names) > 1 else ''}",
            source=source,
            link_kind=table[:, 4].astype(np.int64),
            costs=model.costs if all(node.topology.costs == model.costs for node in placed) else None,
            switch_ops=tuple(
                SwitchOps(f"{x.switch}.{i}", x.multicast, x.reduce)
                for i, node in enumerate(placed)
                for x in node.topology.switch_ops
            ),
        )
        return Machine(topology, None, tuple(dict.fromkeys((*self.remarks, "every α is assumed"))))

    def _switch_names(self, source: str, placed: Sequence[_Placed]) -> list[str]:
        switches = sorted(
            {end for pair in self.links for end in pair} | {nic.switch for node in placed for nic in node.nics}
        )
        for switch in switches:
            if not is_switch_name(switch):
                raise InputError(
                    f"{source}: switch {switch[:40]!r}: must have a name of a letter, then letters and digits"
                )
        return switches


def ports_of(nics: Nics) -> Sequence[Sequence[NicPort]]:
    """For each NIC those that are drawn as it; where no tool said, one by its number."""
    return nics.ports or [(NicPort(f"nic{i}"),) for i in range(len(nics.sends))]


def _nics_of(machine: Machine, source: str) -> Nics:
    if machine.nics is None:
        raise InputError(
            f"{source}: {machine.topology.name} states no NICs ([nic]), by which it would hang on a fabric; it must"
        )
    return machine.nics


def _by_name(ports: Sequence[Port], nics: Nics) -> list[list[Port]] | None:
    """For each NIC its ports of a host: by their names where it has all of these, else in order where as many."""
    here = {port.name: port for port in ports}
    if nics.ports and all(port.name in here for drawn in nics.ports for port in drawn):
        return [[here[port.name] for port in drawn] for drawn in nics.ports]
    counts = [len(drawn) for drawn in ports_of(nics)]
    if len(ports) != sum(counts):
        return None
    rest = iter(ports)
    return [[next(rest) for _ in range(count)] for count in counts]


def _claim(
    drawn: Sequence[NicPort],
    by_guid: Mapping[int, Sequence[Port]],
    beside: Sequence[Port],
    node: Dumped,
    holder: dict[int, Dumped],
) -> list[Port]:
    """The ports of what is drawn as one NIC, which `node` holds from now on. Raises InputError: another does."""
    ports: list[Port] = []
    for nic in drawn:
        able = [port for guid in _orders(nic.guid) for port in by_guid.get(guid, ())]
        able = able or [port for port in beside if port.name == nic.name]
        free = [port for port in able if id(port) not in holder]
        if free:
            holder[id(free[0])] = node
            ports.append(free[0])
        elif able and holder[id(able[0])] is not node:
            other = holder[id(able[0])].label
            raise InputError(f"{node.label}: NIC {nic.name} is in {other} too; it must be on one node")
    return ports


def _on_ports(nics: Nics, found: Sequence[Sequence[Port]], assumed: bool) -> list[_Attached]:
    """Each NIC on each of its ports, at the rate of the slower one (assumed: the NIC's)."""
    return [
        _Attached(
            port.switch, out, into, min(nics.gbs / len(ports), math.inf if assumed else port.gbs), nics.alpha_us / 2
        )
        for out, into, ports in zip(nics.sends, nics.receives, found, strict=True)
        for port in ports
    ]


def _orders(guid: int) -> tuple[int, ...]:
    """A GUID as tools print it: NCCL has its bytes as they lie in memory, the last one first. None for what is none."""
    if guid < _LEAST_GUID:
        return ()
    return guid, int.from_bytes(guid.to_bytes(8, "big"), "little")


def expand(text: str, place: str) -> list[str]:
    """`n[1-3,7],m` as its names, as Slurm writes them. Raises InputError, which begins with `place`."""
    names: list[str] = []
    for part in _list_parts(text):
        if len(names) >= _EXPANDED:
            raise InputError(f"{place}: more names than {_EXPANDED}; it must be at most so many")
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
    """Yield the parts of a list between commas that stand in no brackets, in one pass over the text."""
    start, end = 0, len(text)
    while start < end:
        comma = text.find(",", start)
        comma = end if comma < 0 else comma
        bracket = text.find("[", start, comma)
        if bracket >= 0:  # up to the first comma behind the bracket that closes it
            closing = text.find("]", bracket)
            comma = end if closing < 0 else text.find(",", closing)
            comma = end if comma < 0 else comma
        if comma > start:
            yield text[start:comma]
        start = comma + 1


def natural(names: Iterable[str]) -> list[str]:
    """In order, numbers by what they are: mlx5_2 before mlx5_10."""
    return sorted(
        names,
        key=lambda name: [
            (part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"([0-9]{1,12})", name)
        ],
    )
