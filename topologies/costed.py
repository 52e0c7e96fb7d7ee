"""A topology with an executor's costs on, under one protocol or under whichever is best (`topologies.costs`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from topologies.costs import ANY, KINDS, Costs, Figures, Protocol
from topologies.errors import InputError
from topologies.topology import Topology


def with_costs(topology: Topology, costs: Costs | None = None) -> Topology:
    """The topology with costs on, these or those that it states, under ANY protocol.

    Raises InputError where there are none, or no protocol of them is right on all its links.
    """
    costs = costs or topology.costs
    if costs is None:
        raise InputError(f"topology {topology.name!r}: states no [costs]; it must be a machine that does, or a file")
    kinds = kinds_of(topology)
    if not costs.usable(kinds):
        links = " and ".join(kinds)
        raise InputError(f"topology {topology.name!r}: no protocol of its costs is right on links of kind {links}")
    return replace(topology, costs=costs, protocol=ANY)


def without_costs(topology: Topology) -> Topology:
    """The topology as α and bandwidth alone: it states no costs and no kinds of links."""
    if topology.costs is None and not topology.link_kind.any():
        return topology
    return replace(topology, costs=None, protocol="", link_kind=np.zeros(topology.nlinks, dtype=np.int64))


def under(topology: Topology, protocol: str) -> Topology:
    """The topology under one protocol where costs are on, else as it is.

    Raises InputError for a protocol that they do not state, or that is not right on its links.
    """
    if not topology.protocol or topology.protocol == protocol:
        return topology
    able = protocols_of(topology)
    if protocol not in able:
        names = " or ".join(able)
        raise InputError(f"topology {topology.name!r}: its costs allow no {protocol} on its links; it must be {names}")
    return replace(topology, protocol=protocol)


def protocols_of(topology: Topology) -> list[str]:
    """The protocols that are right on the topology's links; none where costs are off."""
    if topology.costs is None or not topology.protocol:
        return []
    return topology.costs.usable(kinds_of(topology))


def protocol_costs(topology: Topology) -> Protocol | None:
    """Start and threadblock of the topology's protocol (of ANY the best); None where costs are off."""
    if topology.costs is None or not topology.protocol:
        return None
    if topology.protocol != ANY:
        return topology.costs.protocols[topology.protocol]
    those = [topology.costs.protocols[name] for name in protocols_of(topology)]
    return Protocol(min(one.start_us for one in those), max(one.threadblock_gbs for one in those))


def figures_of(topology: Topology) -> Figures | None:
    """What the topology's links cost under its protocol (of ANY the best); None where costs are off."""
    if topology.costs is None or not topology.protocol:
        return None
    return topology.costs.figures(protocols_of(topology) if topology.protocol == ANY else [topology.protocol])


def kinds_of(topology: Topology) -> list[str]:
    """The kinds of its links."""
    return [KINDS[kind] for kind in np.unique(topology.link_kind).tolist()]
