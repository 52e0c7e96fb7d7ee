"""What readers of files that state every switch and link have in common: the check of connections, and the drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from topologies.arrays import components
from topologies.clusters import Machine
from topologies.errors import InputError
from topologies.merging import has_choice_of_paths, merge_switches
from topologies.topology import Topology


def check_connected(stated: Topology, names: Sequence[object], origin: str) -> None:
    """Raise InputError where links, each taken as one both ways, do not connect all ranks.

    Args:
        stated: The topology.
        names: Name of each rank in the file.
        origin: Name of the file in errors.
    """
    part = components(stated.nvertices, stated.link_src, stated.link_dst)[: stated.nranks]
    apart = np.flatnonzero(part != part[0])
    if len(apart):
        # Of a rank without links and the others, the lonely one is named first.
        first, second = (0, apart[0]) if (part == part[0]).sum() == 1 else (apart[0], 0)
        raise InputError(f"{origin}: node {names[first]} is not connected to node {names[second]}; all must be")


def machine_of_switches(stated: Topology, names: Sequence[object], remarks: Sequence[str], origin: str) -> Machine:
    """Return the machine of a fabric whose links go both ways, with switches that stand for each other merged.

    Args:
        stated: The fabric as the file states it, whose summary ends with the number of switches; switches need not
            have links.
        names: Name of each rank in the file.
        remarks: Sources of the figures, a line each, to which what merging changes is added.
        origin: Name of the file in errors.

    Raises:
        InputError: Two ranks are not connected.
    """
    check_connected(stated, names, origin)
    topology = merge_switches(stated)
    remarks = list(remarks)
    if len(topology.switches) < len(stated.switches):
        topology = replace(topology, summary=f"{stated.summary}, drawn as {len(topology.switches)}")
        remarks.append(
            f"{len(stated.switches)} switches are drawn as {len(topology.switches)}: equal paths are one path of wider"
            " links"
        )
    if has_choice_of_paths(topology):
        remarks.append("switches are joined by paths that differ; each pair of ranks keeps one of its best")
    return Machine(topology, None, tuple(remarks))
