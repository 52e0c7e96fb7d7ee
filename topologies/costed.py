"""Topologies with an executor's costs on, under one protocol or under the best one (`topologies.costs`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from topologies.costs import ANY, LINK_KINDS, Costs, Figures, Protocol
from topologies.errors import InputError
from topologies.topology import Topology


def with_costs(topology: Topology, costs: Costs | None = None) -> Topology:
    """Return the topology with costs on under the protocol ANY, whether they were on before or not.

    Args:
        topology: The topology.
        costs: The costs, which replace those that the topology states; None for the latter.

    Raises:
        InputError: There are no costs, or none of their protocols is right on all links of the topology.
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
    """Return the topology with α and bandwidth only: without costs and with all links of kind "other".

    It is the same object where it is so already.
    """
    if topology.costs is None and not topology.link_kind.any():
        return topology
    return replace(topology, costs=None, protocol="", link_kind=np.zeros(topology.nlinks, dtype=np.int64))


def with_protocol(topology: Topology, protocol: str) -> Topology:
    """Return the topology under one protocol, whichever it was under, where costs are on, else the topology as it is.

    Args:
        topology: The topology.
        protocol: Name of a protocol of its costs; ANY only where it is under ANY already.

    Raises:
        InputError: The costs do not state the protocol, or it is not right on the topology's links.
    """
    if not topology.protocol or topology.protocol == protocol:
        return topology
    usable_protocols = protocols_of(topology)
    if protocol not in usable_protocols:
        names = " or ".join(usable_protocols)
        raise InputError(f"topology {topology.name!r}: its costs allow no {protocol} on its links; it must be {names}")
    return replace(topology, protocol=protocol)


def with_protocols(topology: Topology, names: Collection[str]) -> Topology:
    """Return the topology with the costs of some protocols only; as it is where costs are off or all are named.

    Args:
        topology: The topology; where costs are on, under ANY, which stays.
        names: Names of protocols. At least one must be right on the topology's links, but this is not checked. Names
            that the costs do not state are ignored.

    Raises:
        InputError: The costs state none of the protocols.
    """
    if topology.costs is None or not topology.protocol:
        return topology
    protocols = {name: protocol for name, protocol in topology.costs.protocols.items() if name in names}
    if len(protocols) == len(topology.costs.protocols):
        return topology
    return replace(topology, costs=replace(topology.costs, protocols=protocols))


def protocols_of(topology: Topology) -> list[str]:
    """Return the names of all protocols that are right on the topology's links, whichever it is under.

    The list is empty where costs are off.
    """
    if topology.costs is None or not topology.protocol:
        return []
    return topology.costs.usable(kinds_of(topology))


def protocol_costs(topology: Topology) -> Protocol | None:
    """Return the costs of the topology's protocol, of which start and threadblock bandwidth count; None: costs are off.

    Under ANY these two are the earliest start and the highest bandwidth of all protocols that are right on the links,
    and all other fields have their defaults (for the figures of links see `figures_of`).
    """
    if topology.costs is None or not topology.protocol:
        return None
    if topology.protocol != ANY:
        return topology.costs.protocols[topology.protocol]
    protocols = [topology.costs.protocols[name] for name in protocols_of(topology)]
    return Protocol(
        min(protocol.start_us for protocol in protocols), max(protocol.threadblock_gbs for protocol in protocols)
    )


def figures_of(topology: Topology) -> Figures | None:
    """Return the costs of links under the topology's protocol, or None where costs are off.

    Under ANY each figure is the best of all protocols that are right on the links.
    """
    if topology.costs is None or not topology.protocol:
        return None
    return topology.costs.figures(protocols_of(topology) if topology.protocol == ANY else [topology.protocol])


def costs_omit_switch_ops(topology: Topology) -> bool:
    """Return True if costs are on that do not cover the multicasts and reductions of the topology's switches."""
    figures = figures_of(topology)
    return bool(topology.switch_ops) and figures is not None and figures.switch_ops is None


def kinds_of(topology: Topology) -> list[str]:
    """Return the names of the kinds of links that the topology has, in the order of LINK_KINDS."""
    return [LINK_KINDS[kind] for kind in np.unique(topology.link_kind).tolist()]
