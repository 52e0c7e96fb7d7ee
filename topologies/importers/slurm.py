"""Reads Slurm's topology.conf, as administrators and topograph write it: a tree of switches, or blocks of nodes.

It says what hangs on what, and no rates: these are assumed.
"""

from __future__ import annotations

import re
from pathlib import Path

from topologies.clusters import Machine
from topologies.errors import InputError
from topologies.importers.fabric import Fabric, Port, expand
from topologies.importers.rates import USUAL_NIC_GBS

_LINE = re.compile(r"\s*(SwitchName|BlockName)\s*=", re.IGNORECASE)
_RIGHT = "topology.conf: SwitchName=s Switches=… or Nodes=…, BlockName=b Nodes=…"
_CORE = "core"


def is_slurm(text: str) -> bool:
    """Whether a text's first line that is no remark begins as topology.conf's do."""
    first = next((line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")), "")
    return _LINE.match(first) is not None


def read_slurm(text: str, origin: str) -> Machine:
    """The tree with a rank for each node."""
    return fabric_of(text, origin).machine(Path(origin).stem or "fabric", origin)


def fabric_of(text: str, origin: str) -> Fabric:
    """The tree. Raises InputError (one line, with the line of the file)."""
    fabric = Fabric(assumed_gbs=USUAL_NIC_GBS)
    above: dict[str, str] = {}
    nodes: dict[str, str] = {}
    switches: dict[str, int] = {}
    blocks: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        line, place = line.split("#")[0].strip(), f"{origin}:{number}"
        if not line or line.lower().startswith("blocksizes"):
            continue
        fields = dict(part.partition("=")[::2] for part in line.split())
        fields = {key.lower(): value for key, value in fields.items()}
        name = fields.get("switchname") or fields.get("blockname")
        if not name or ("switches" in fields) == ("nodes" in fields):
            raise InputError(f"{place}: {line[:60]!r}; it must be {_RIGHT}")
        if name in switches:
            raise InputError(f"{place}: {name[:40]} stands twice; it must be once")
        switches[name] = number
        if "blockname" in fields:
            blocks.append(name)
        for below in expand(fields.get("switches") or fields.get("nodes", ""), place):
            of = above if "switches" in fields else nodes
            if below in of:
                raise InputError(f"{place}: {below[:40]} hangs on {of[below][:40]} too; it must be on one")
            of[below] = name
    for below, name in above.items():
        if below not in switches:
            raise InputError(f"{origin}:{switches[name]}: {below[:40]} has no line; it must be {_RIGHT}")
    if not nodes:
        raise InputError(f"{origin}: names no nodes; it must be {_RIGHT}")
    for host, switch in nodes.items():
        fabric.hosts[host] = [Port(host, switch, USUAL_NIC_GBS)]
    for block in blocks if len(blocks) > 1 else ():
        above[block] = _CORE
    full: dict[str, int] = dict.fromkeys([*switches, _CORE], 0)  # hosts below
    for switch in nodes.values():
        steps = 0
        while True:
            full[switch] += 1
            if switch not in above:
                break
            switch, steps = above[switch], steps + 1
            if steps > len(switches):
                raise InputError(f"{origin}: switches hang on each other in a ring; it must be a tree")
    for below, name in above.items():
        fabric.add_link(below, name, max(1, full[below]) * USUAL_NIC_GBS)
    fabric.remarks.append(
        f"what hangs on what is read; {USUAL_NIC_GBS:g} GB/s a host, or what its NICs have, and room for all of a"
        " switch's hosts upwards are assumed"
    )
    return fabric
