"""A tree of switches, or blocks of nodes, from files that state no rates; the rates are assumed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from topologies.errors import InputError
from topologies.importers.fabric import Fabric, Port
from topologies.importers.rates import USUAL_NIC_GBS
from topologies.topology import is_switch_name

_MOST_NAMES = 200_000
_CORE = "core"  # Name of the assumed switch that joins the highest switches.


@dataclass
class FabricTree:
    """A tree of switches and nodes.

    Attributes:
        origin: Name of the file in errors.
        switches: Place in the file of each switch by name.
        above: Switch that each switch hangs on.
        nodes: Switch that each node hangs on.
        joined: Whether one assumed switch joins the switches that hang on nothing (blocks, which no switch joins).
        remarks: Sources of the figures, a line each.
    """

    origin: str
    switches: dict[str, str] = field(default_factory=dict)
    above: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    joined: bool = False
    remarks: list[str] = field(default_factory=list)

    def add(self, name: str, place: str) -> None:
        """Add a switch, which stands at `place` in the file, as errors say.

        Raises:
            InputError: The switch has been added before.
        """
        if name in self.switches:
            raise InputError(f"{place}: {name[:40]} stands twice; it must be once")
        self.switches[name] = place

    def hang(self, below: Iterable[str], on: str, place: str, nodes: bool) -> None:
        """Add nodes or switches below a switch.

        Args:
            below: Names of the nodes or switches.
            on: Name of the switch.
            place: Place in the file, for errors.
            nodes: Whether the names are nodes, else switches, which need not have been added yet.

        Raises:
            InputError: One of them hangs on another switch already, has no name, or there are too many.
        """
        switch_of = self.nodes if nodes else self.above
        for name in below:
            if not re.search(r"\w", name):
                raise InputError(f"{place}: {name[:40]!r} names nothing; it must be a name")
            if len(switch_of) >= _MOST_NAMES:
                raise InputError(f"{place}: {name[:40]} is one name too many; it must be at most {_MOST_NAMES}")
            if switch_of.setdefault(name, on) != on:
                raise InputError(f"{place}: {name[:40]} hangs on {switch_of[name][:40]} too; it must be on one")

    def fabric(self, expected: str) -> Fabric:
        """Return a new fabric with assumed rates; errors describe a right file as `expected`.

        Switches without nodes below them are left out.

        Raises:
            InputError: There are no nodes, a switch has no line of its own, or the switches form a ring.
        """
        for below, name in self.above.items():
            if below not in self.switches:
                raise InputError(f"{self.switches[name]}: {below[:40]} has no line; it must be {expected}")
        if not self.nodes:
            raise InputError(f"{self.origin}: names no nodes; it must be {expected}")
        above = dict(self.above)
        roots = [name for name in self.switches if name not in above]
        if self.joined and len(roots) > 1:
            above.update(dict.fromkeys(roots, _CORE))
        hosts_below = self._hosts_below(above)
        name_of = {name: _printable(name) for name in hosts_below}
        if len(set(name_of.values())) < len(name_of):
            name_of = {name: f"s{i}" for i, name in enumerate(hosts_below)}
        net = Fabric(assumed_gbs=USUAL_NIC_GBS, remarks=list(self.remarks))
        for host, switch in self.nodes.items():
            net.hosts[host] = [Port(host, name_of[switch], USUAL_NIC_GBS)]
        for below, name in above.items():
            if hosts_below[below]:
                net.add_link(name_of[below], name_of[name], hosts_below[below] * USUAL_NIC_GBS)
        net.remarks.append(
            f"connections are read; assumed are {USUAL_NIC_GBS:g} GB/s per host, or the rate of its NICs, and links"
            " between switches that carry all hosts below them"
        )
        return net

    def _hosts_below(self, above: dict[str, str]) -> dict[str, int]:
        """Return the number of hosts below each switch, directly or through other switches.

        `above` has, by the name of each switch, the switch above it; the topmost ones are missing.

        Raises:
            InputError: The switches form a ring.
        """
        counts = dict.fromkeys([*self.switches, *above.values()], 0)
        waiting = dict.fromkeys(counts, 0)
        for name in above.values():
            waiting[name] += 1
        for switch in self.nodes.values():
            counts[switch] += 1
        ready = [name for name, count in waiting.items() if not count]
        for name in ready:  # The list grows: a switch is added when all below it are counted.
            if name in above:
                counts[above[name]] += counts[name]
                waiting[above[name]] -= 1
                if not waiting[above[name]]:
                    ready.append(above[name])
        if len(ready) < len(counts):
            raise InputError(f"{self.origin}: switches hang on each other in a ring; it must be a tree")
        return counts


def _printable(name: str) -> str:
    """Return a name as a switch can have it: as it is, or "s" and the name with "_" for each wrong character."""
    return name if is_switch_name(name) else "s" + re.sub(r"[^A-Za-z0-9_.:/-]", "_", name)
