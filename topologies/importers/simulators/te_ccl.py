"""Reader of TE-CCL's input files, which name a topology that TE-CCL brings and its size.

The file states the name, the number of chassis and, for some topologies, α in seconds; TE-CCL's code has the links.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from topologies.clusters import Machine, join
from topologies.errors import InputError, right_name
from topologies.machines import machine_file
from topologies.text.fields import Fields, shown
from topologies.text.files import parse_json
from topologies.text.reader import read_machine
from topologies.topology import MAX_ALPHA_US, Topology

_KEY = re.compile(r'"TopologyParams"\s*:')
_MESH_GBS = 100.0
_MOST_CHASSIS = 10_000
_LONGEST_SIDE = 1000
_DGX2_NICS = 8
_RIGHT = "an input of TE-CCL, whose TopologyParams have name, chassis and alpha"
# Machines of the package with the links of TE-CCL's topologies; Mesh is a formula.
_MACHINES = {"DGX1": "dgx1", "NDv2": "ndv2", "DGX2": "dgx2", "AMD": "mi250"}


def is_te_ccl(text: str) -> bool:
    """Return whether a text is a JSON object with the parameters of a topology of TE-CCL."""
    return text.lstrip().startswith("{") and _KEY.search(text) is not None


def read_te_ccl(text: str, origin: str) -> Machine:
    """Return the machine that a text names, with TE-CCL's links and α, and without costs.

    DGX1, AMD (one chassis) and Mesh have the α that the file states, 0 without one. DGX2 is always two chassis, whose
    odd GPUs send to the even ones of the other. Three or more NDv2 meet in a switch; two are joined directly.

    Args:
        text: The text.
        origin: Name of the text in errors.

    Raises:
        InputError: The text names no topology of TE-CCL, or a figure is wrong; the message is one line.
    """
    document = parse_json(text, origin, _RIGHT)
    table = document.get("TopologyParams") if isinstance(document, Mapping) else None
    if not isinstance(table, Mapping):
        raise InputError(f"{origin}: TopologyParams: is no object; it must be {_RIGHT}")
    parameters = Fields(table, "", origin, "TopologyParams")
    name = table.get("name", "DGX1")
    names = [*_MACHINES, "Mesh"]
    if name not in names:
        hint = right_name(name, names) if isinstance(name, str) else f"it must be one of {', '.join(names)}"
        parameters.fail("name", f"{shown(name)} is no topology of TE-CCL; {hint}")
    chassis = parameters.integer("chassis", 1, _MOST_CHASSIS, 1)
    alpha_us = _alpha_us(parameters)
    if name == "Mesh":
        topology = _mesh(parameters.integer("side_length", 1, _LONGEST_SIDE, 4), alpha_us)
    else:
        topology = _of_machine(name, chassis, alpha_us, origin)
    topology = replace(
        topology, name=Path(origin).stem or name, costs=None, source=f"TE-CCL's {name}", alpha_assumed=False
    )
    return Machine(topology, None, (f"links are those of TE-CCL's topology {name}",))


def _of_machine(name: str, chassis: int, alpha_us: float, origin: str) -> Topology:
    """Return the chassis of a machine of the package, joined as TE-CCL joins them.

    Args:
        name: TE-CCL's name.
        chassis: Number of chassis; DGX2 always has two.
        alpha_us: α in µs of the links within DGX1 and AMD.
        origin: Name of the file in errors.

    Raises:
        InputError: TE-CCL has no such topology of more than one chassis.
    """
    file = machine_file(_MACHINES[name])
    machine = read_machine(file.read_text(encoding="utf-8"), file.name)
    topology = machine.topology
    if name in ("DGX1", "AMD"):
        if chassis > 1 and name == "AMD":
            raise InputError(f"{origin}: TopologyParams: {chassis} chassis of AMD are not read; it must be 1")
        return replace(topology, alpha_us=np.full(topology.nlinks, alpha_us))
    nics = machine.nics
    assert nics is not None
    if name == "DGX2":
        ranks = np.arange(topology.nranks).reshape(_DGX2_NICS, -1)
        chassis = 2
        nics = replace(nics, sends=tuple(ranks[:, 1:]), receives=tuple(ranks[:, :1]), fabrics=_DGX2_NICS)
    elif chassis > 2:
        nics = replace(nics, alpha_us=2 * nics.alpha_us, fabrics=1)
    return join(replace(machine, nics=nics), chassis, name)


def _mesh(side: int, alpha_us: float) -> Topology:
    """Return TE-CCL's mesh, in which the last rank of a row is also linked to the first of the next."""
    count = side * side
    ends = [(np.arange(count - step), np.arange(step, count)) for step in dict.fromkeys((1, side))]
    src = np.concatenate([end for low, high in ends for end in (low, high)])
    dst = np.concatenate([end for low, high in ends for end in (high, low)])
    figures = (np.full(len(src), alpha_us), np.full(len(src), _MESH_GBS))
    return Topology("Mesh", count, (), src, dst, *figures, summary=f"{side}x{side} mesh")


def _alpha_us(parameters: Fields) -> float:
    """Return the α of links in µs, the first of the file's two, which are in seconds; 0 where it states none.

    Raises:
        InputError: `alpha` is no list that begins with a number.
    """
    values = parameters.values.get("alpha", [0, 0])
    value = values[0] if isinstance(values, list) and values else None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MAX_ALPHA_US / 1e6:
        right = f"a list of two latencies in seconds, from 0 to {MAX_ALPHA_US / 1e6:g}"
        parameters.fail("alpha", f"{shown(values)}; it must be {right}")
    return float(f"{value * 1e6:.12g}")
