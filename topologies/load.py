"""Topologies by name: a machine, several nodes of it, a formula, or a file."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from topologies.clusters import Machine, join
from topologies.costed import with_costs
from topologies.costs import Costs
from topologies.errors import InputError, did_you_mean
from topologies.families import FAMILIES, family
from topologies.importers import MAX_FILE_BYTES, TOPOLOGY_FORMATS, format_of
from topologies.machines import machine_file, machines
from topologies.text.costs import read_costs_file
from topologies.text.fields import shown
from topologies.text.files import origin_of, read_text
from topologies.topology import Topology

# Names that stand in place of a file of costs.
NO_COSTS, OWN_COSTS, STATED_COSTS = "none", "machine", "auto"


def load(spec: str | Path) -> Topology:
    """Return the topology that `spec` names.

    "dgx1" is a machine, "dgx-a100:4" four nodes of it joined by their NICs, "torus:4x4,bw=50,alpha=0.7" a formula (GB/s
    and µs), "my.toml" a file in the text form or any other known format, "my.toml:4" four nodes of that file. A Path is
    always a file. A fabric's file gives a topology with a rank for each port of each host.

    Raises:
        InputError: There is no such topology, or its file cannot be read; the message is one line.
    """
    return load_machine(spec).topology


def is_name(name: str) -> bool:
    """Return whether a name is one of the package, of a machine, several nodes of one, or a formula, and no file's.

    The name of a network with dead or slow parts is none, since `load` does not take it; it has spaces.
    """
    return " " not in name and not name.endswith(_suffixes()) and re.split("[:,]", name)[0] in (*machines(), *FAMILIES)


def apply_costs(topology: Topology, costs: str | Path | Costs) -> Topology:
    """Return the topology with an executor's costs on, under the protocol ANY, or off.

    Args:
        topology: The topology.
        costs: OWN_COSTS ("machine") for the topology's own costs, STATED_COSTS ("auto") for these if it states any,
            else off, NO_COSTS ("none") to put them off, a file with [costs], or the costs themselves.

    Raises:
        InputError: There are no costs, they are not right on the topology's links, or the file cannot be read.
    """
    if isinstance(costs, Costs):
        return with_costs(topology, costs)
    stated = read_costs(costs)
    if stated == STATED_COSTS:
        stated = NO_COSTS if topology.costs is None else OWN_COSTS
    if stated == NO_COSTS:  # The kinds of links stay, because NCCL's own model needs them.
        return replace(topology, protocol="") if topology.protocol else topology
    return with_costs(topology, stated if isinstance(stated, Costs) else None)


def read_costs(costs: str | Path) -> str | Costs:
    """Return NO_COSTS, OWN_COSTS or STATED_COSTS ("none", "machine" or "auto") as it is, or the [costs] of a file.

    Raises:
        InputError: `costs` is empty or neither text nor path, or the file cannot be read or has no [costs].
    """
    if not isinstance(costs, str | Path) or not str(costs):
        names = f"{STATED_COSTS}, {NO_COSTS}, {OWN_COSTS}"
        raise InputError(f"costs {shown(costs)}: must be {names} or a file with [costs]")
    if costs in (NO_COSTS, OWN_COSTS, STATED_COSTS):
        return str(costs)
    if not Path(costs).suffix and not os.path.lexists(costs):
        names = f"{STATED_COSTS}, {OWN_COSTS}, {NO_COSTS}"
        raise InputError(f"costs: {shown(str(costs))} is not known; it must be {names} or a .toml file with [costs]")
    return read_costs_file(costs)


def load_machine(spec: str | Path) -> Machine:
    """Return the machine that `spec` names (see `load`), with the NICs that join its nodes where it states any.

    Several nodes ("dgx-a100:4") and formulas have no NICs.

    Raises:
        InputError: There is no such topology, or its file cannot be read; the message is one line.
    """
    if isinstance(spec, Path):
        return _read_file(spec)
    if not isinstance(spec, str) or not spec:
        raise InputError(f"topology {shown(spec)}: must be a text such as dgx1, dgx-a100:4, ring:8 or my.toml")
    name, _, count = spec.rpartition(":")
    if name in machines() or name.endswith(_suffixes()):
        return Machine(_read_cluster(spec, name, count))
    if spec in machines():
        return _read_node(spec)
    kind = re.split("[:,]", spec)[0]
    if kind in FAMILIES:
        return Machine(family(spec))
    if spec.endswith(_suffixes()) or "/" in spec or "\\" in spec:
        return _read_file(Path(spec))
    if kind in machines():
        return Machine(_read_cluster(spec, kind, spec[len(kind) :].removeprefix(":")))  # It refuses the count.
    if os.path.isfile(spec):  # Unlike a Path, it is False for names that no file can have.
        if Path(spec).suffix:
            return _read_file(Path(spec))
        raise InputError(f"topology {spec[:80]!r}: is a file; it must be given with its folder, as ./{spec[:80]}")
    if os.path.isdir(spec):
        raise InputError(f"topology {spec[:80]!r}: is a folder; it must be a file or a name of synth topo list")
    if Path(spec).suffix:
        raise InputError(f"topology {spec[:40]!r}: no such file, and no network; synth topo list shows all networks")
    suffixes = "a file's name must have an ending, as my.toml;"
    nodes = f":{count}" if kind == name and count.isdecimal() else ""  # "h100:4" is meant as "dgx-h100:4".
    hint = did_you_mean(kind.lower(), [*machines(), *FAMILIES])
    hint = hint.replace(" or ", f"{nodes} or ").replace("?", f"{nodes}?") or suffixes
    raise InputError(f"topology {spec[:24]!r}: not known; {hint} synth topo list shows all networks")


def _suffixes() -> tuple[str, ...]:
    """Return the suffixes of files that state a topology, with their dots, such as ".toml"."""
    return tuple(row.suffix for row in TOPOLOGY_FORMATS if row.suffix)


def _read_node(name: str) -> Machine:
    """Return the machine that a name of a machine of the package, or else the path of a file, states.

    Raises:
        InputError: The file cannot be read or states no machine.
    """
    return _read_file(machine_file(name) if name in machines() else Path(name))


def _read_cluster(spec: str, name: str, count: str) -> Topology:
    """Return the cluster of `count` nodes of a machine; for one node the machine's own topology under its own name.

    Args:
        spec: The whole text, which names the cluster; with a "/" in `name`, only the part after the last one does.
        name: Name of a machine of the package, or path of a file.
        count: Number of nodes, as text.

    Raises:
        InputError: The count is no number from 1 (to 9,999,999), the machine cannot be read, or nodes of it cannot be
            joined.
    """
    machine = _read_node(name)
    if not re.fullmatch(r"[1-9][0-9]{0,6}", count):
        raise InputError(
            f"topology {spec[:80]!r}: {count[:40]!r} is no number of nodes; it must be one as in {name[:40]}:2"
        )
    return join(machine, int(count), f"{Path(name).name}:{count}" if "/" in name else spec)


def _read_file(path: Path) -> Machine:
    """Return the machine of a file, in whichever of the known formats its text has.

    Raises:
        InputError: The file cannot be read or states no machine.
    """
    text = read_text(path, "a topology's file, as .toml, or what a tool printed (synth topo import)", MAX_FILE_BYTES)
    return format_of(text).machine(text, origin_of(path))
