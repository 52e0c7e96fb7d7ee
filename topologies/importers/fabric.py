"""A network between nodes as a tool prints it: its switches, the links between them, and what hosts hang on.

By itself it is a topology of its hosts' ports; with a machine, each host is one, whose NICs are its ports in order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from topologies.arrays import Ints
from topologies.clusters import Machine
from topologies.errors import InputError
from topologies.importers.rates import NIC_ALPHA_US
from topologies.topology import MAX_LINKS, MAX_RANKS, Limit, Topology, is_switch_name

_EXPANDED = 200_000  # names that one list in brackets may stand for
_SERIES = re.compile(r"([^\[\],]*)\[([0-9,\-]+)\]([^\[\],]*)")
HOP_ALPHA_US = 0.1  # of a link between switches


@dataclass(frozen=True)
class Port:
    """Of a host: its name, the switch that it is on, and GB/s each way."""

    name: str
    switch: str
    gbs: float


@dataclass
class Fabric:
    """Switches by name; `links`: GB/s from one to the other, each way; `hosts`: the ports of each, in order.

    assumed_gbs: that hosts' links are assumed to have, and those above as much as all hosts below; 0: rates are read.
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
        one = Topology("host", 1, (), nothing, nothing, no_figures, no_figures)
        return self._of_nodes(name, source, {host: (one,) * len(ports) for host, ports in self.hosts.items()}, None)

    def cluster(self, machine: Machine, name: str, source: str) -> Machine:
        """Each host as the machine, whose NIC i is the host's port i; where rates are assumed, all on one switch.

        Hosts with other numbers of ports are left out. Raises InputError: no NICs, or no host fits.
        """
        nics = machine.nics
        if nics is None:
            raise InputError(
                f"{source}: {machine.topology.name} states no NICs ([nic]), by which it would hang on a fabric; it must"
            )
        count = len(nics.sends)
        if self.assumed_gbs:
            scale = count * nics.gbs / self.assumed_gbs
            self.links = {pair: gbs * scale for pair, gbs in self.links.items()}
            self.hosts = {h: [replace(ports[0], gbs=nics.gbs)] * count for h, ports in self.hosts.items()}
        fitting = {host: ports for host, ports in self.hosts.items() if len(ports) == count}
        if not fitting:
            usual = Counter(map(len, self.hosts.values())).most_common(1)
            raise InputError(
                f"{source}: no host has the {count} NICs of {machine.topology.name}; most have"
                f" {usual[0][0] if usual else 'none'}; they must have as many"
            )
        left = len(self.hosts) - len(fitting)
        if left:
            self.remarks.append(f"{left} hosts are left out: they have not {count} ports")
        self.remarks += machine.remarks
        return self._of_nodes(name, source, dict.fromkeys(fitting, (machine.topology,)), machine)

    def _of_nodes(
        self, name: str, source: str, inside: dict[str, tuple[Topology, ...]], machine: Machine | None
    ) -> Machine:
        """All hosts' topologies side by side, their NICs on the switches."""
        nodes = [(host, node) for host, parts in inside.items() for node in parts]
        ranks = sum(node.nranks for _, node in nodes)
        if not 1 <= ranks <= MAX_RANKS:
            raise InputError(f"{source}: {ranks} ranks; it must be 1 to {MAX_RANKS}")
        names = self._switch_names(source)
        inner = [f"{s}.{i}" for i, (_, node) in enumerate(nodes) for s in node.switches]
        number = {switch: ranks + len(inner) + i for i, switch in enumerate(names)}
        rows: list[tuple[int, int, float, float]] = []
        limits: list[Limit] = []
        chassis = {host: i for i, host in enumerate(inside)}
        first, first_switch, port_of = 0, ranks, Counter[str]()
        if sum(node.nlinks for _, node in nodes) > MAX_LINKS:
            raise InputError(f"{source}: too large; it must have at most {MAX_LINKS} links")
        for i, (host, node) in enumerate(nodes):
            vertex = np.arange(node.nvertices)
            vertex = np.where(vertex < node.nranks, vertex + first, vertex - node.nranks + first_switch)
            start = len(rows)
            columns = (vertex[node.link_src], vertex[node.link_dst], node.bandwidth_gbs, node.alpha_us)
            rows += zip(*(column.tolist() for column in columns), strict=True)
            limits += [Limit(f"{x.name}.{i}", x.links + start, x.bandwidth_gbs) for x in node.limits]
            ports = self.hosts[host]
            served: Sequence[Ints] = [np.zeros(1, dtype=np.int64)]
            here = [ports[port_of[host]]] if machine is None else ports
            if machine is not None and machine.nics is not None:
                served = machine.nics.sends
            port_of[host] += 1
            for j, (port, group) in enumerate(zip(here, served, strict=True)):
                gbs = min(port.gbs, machine.nics.gbs) if machine is not None and machine.nics else port.gbs
                for way in ("out", "in"):
                    at = len(rows)
                    for rank in (group + first).tolist():
                        ends = (rank, number[port.switch]) if way == "out" else (number[port.switch], rank)
                        rows.append((*ends, gbs, NIC_ALPHA_US / 2))
                    if len(group) > 1:
                        limits.append(Limit(f"nic{j}.{i} {way}", np.arange(at, len(rows)), gbs))
            first += node.nranks
            first_switch += len(node.switches)
        for (one, other), gbs in self.links.items():
            for a, b in ((one, other), (other, one)):
                rows.append((number[a], number[b], gbs, HOP_ALPHA_US))
        table = np.array(rows, dtype=np.float64).reshape(-1, 4)
        each = nodes[0][1]
        about = each.summary if machine is not None else "a port each"
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
            nodes=np.repeat([chassis[host] for host, _ in nodes], [node.nranks for _, node in nodes]),
            sms=each.sms,
            summary=f"{len(inside)} hosts ({about}) on {len(names)} switches",
            source=source,
        )
        return Machine(topology, None, (*self.remarks, "every α is assumed"))

    def _switch_names(self, source: str) -> list[str]:
        switches = sorted(
            {end for pair in self.links for end in pair} | {p.switch for ps in self.hosts.values() for p in ps}
        )
        for switch in switches:
            if not is_switch_name(switch):
                raise InputError(
                    f"{source}: switch {switch[:40]!r}: must have a name of a letter, then letters and digits"
                )
        return switches


def expand(text: str, place: str) -> list[str]:
    """`n[1-3,7],m` as its names, as Slurm writes them. Raises InputError, which begins with `place`."""
    names: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?[^,]*", text):
        match = _SERIES.fullmatch(part)
        if match is None:
            if "[" in part or "]" in part:
                raise InputError(f"{place}: {part[:40]!r} is no list of names; it must be as in n[1-3,7]")
            names.append(part.strip())
            continue
        for numbers in match[2].split(","):
            low, dash, high = numbers.partition("-")
            if not low.isdecimal() or (dash and not high.isdecimal()) or len(low) > 9 or len(high) > 9:
                raise InputError(f"{place}: {part[:40]!r} is no list of names; it must be as in n[1-3,7]")
            last = int(high) if dash else int(low)
            if not 0 <= last - int(low) < _EXPANDED - len(names):
                raise InputError(f"{place}: {part[:40]!r} counts down, or stands for more than {_EXPANDED} names")
            names += [f"{match[1]}{str(i).zfill(len(low))}{match[3]}" for i in range(int(low), last + 1)]
    return names


def natural(names: Iterable[str]) -> list[str]:
    """In order, numbers by what they are: mlx5_2 before mlx5_10."""
    return sorted(
        names,
        key=lambda name: [
            (part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"([0-9]{1,12})", name)
        ],
    )
