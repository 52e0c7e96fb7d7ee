"""What says what hangs on what, and no rates: a tree of switches, or blocks of nodes. The rates are assumed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from topologies.errors import InputError
from topologies.importers.fabric import Fabric, Port
from topologies.importers.rates import USUAL_NIC_GBS
from topologies.topology import is_switch_name

_MOST_NAMES = 200_000
_CORE = "core"  # that joins what no file says how


@dataclass
class Tree:
    """Switches by name, each with its place in the file; `above`: what a switch hangs on; `nodes`: what a node does.

    joined: that one switch more, which is assumed, joins those that hang on nothing (blocks, which no switches do).
    """

    origin: str
    switches: dict[str, str] = field(default_factory=dict)
    above: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    joined: bool = False
    remarks: list[str] = field(default_factory=list)

    def add(self, name: str, place: str) -> None:
        """A switch. Raises InputError: it stands twice."""
        if name in self.switches:
            raise InputError(f"{place}: {name[:40]} stands twice; it must be once")
        self.switches[name] = place

    def hang(self, below: Iterable[str], on: str, place: str, nodes: bool) -> None:
        """Nodes or switches on a switch. Raises InputError: one of them hangs on another."""
        held = self.nodes if nodes else self.above
        for name in below:
            if not re.search(r"\w", name):
                raise InputError(f"{place}: {name[:40]!r} names nothing; it must be a name")
            if len(held) >= _MOST_NAMES:
                raise InputError(f"{place}: {name[:40]} is one name too many; it must be at most {_MOST_NAMES}")
            if held.setdefault(name, on) != on:
                raise InputError(f"{place}: {name[:40]} hangs on {held[name][:40]} too; it must be on one")

    def fabric(self, wanted: str) -> Fabric:
        """With assumed rates. Raises InputError, with what is wanted: no nodes, a switch without a line, a ring."""
        for below, name in self.above.items():
            if below not in self.switches:
                raise InputError(f"{self.switches[name]}: {below[:40]} has no line; it must be {wanted}")
        if not self.nodes:
            raise InputError(f"{self.origin}: names no nodes; it must be {wanted}")
        above = dict(self.above)
        roots = [name for name in self.switches if name not in above]
        if self.joined and len(roots) > 1:
            above.update(dict.fromkeys(roots, _CORE))
        full = self._hosts_below(above)
        called = {name: _printable(name) for name in full}
        if len(set(called.values())) < len(called):
            called = {name: f"s{i}" for i, name in enumerate(full)}
        net = Fabric(assumed_gbs=USUAL_NIC_GBS, remarks=list(self.remarks))
        for host, switch in self.nodes.items():
            net.hosts[host] = [Port(host, called[switch], USUAL_NIC_GBS)]
        for below, name in above.items():
            if full[below]:
                net.add_link(called[below], called[name], full[below] * USUAL_NIC_GBS)
        net.remarks.append(
            f"what hangs on what is read; {USUAL_NIC_GBS:g} GB/s a host, or what its NICs have, and room for all of a"
            " switch's hosts upwards are assumed"
        )
        return net

    def _hosts_below(self, above: dict[str, str]) -> dict[str, int]:
        """Of each switch how many, those of the switches below it too. Raises InputError: a ring."""
        full = dict.fromkeys([*self.switches, *above.values()], 0)
        waiting = dict.fromkeys(full, 0)
        for name in above.values():
            waiting[name] += 1
        for switch in self.nodes.values():
            full[switch] += 1
        ready = [name for name, count in waiting.items() if not count]
        for name in ready:  # grows while it is walked: a switch when all below it are counted
            if name in above:
                full[above[name]] += full[name]
                waiting[above[name]] -= 1
                if not waiting[above[name]]:
                    ready.append(above[name])
        if len(ready) < len(full):
            raise InputError(f"{self.origin}: switches hang on each other in a ring; it must be a tree")
        return full


def _printable(name: str) -> str:
    """A name as a switch can have it."""
    return name if is_switch_name(name) else "s" + re.sub(r"[^A-Za-z0-9_.:/-]", "_", name)
