"""Clusters: several nodes of one machine, joined by their NICs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from topologies.arrays import Ints
from topologies.costs import kind_numbers
from topologies.errors import InputError
from topologies.topology import MAX_LINKS, MAX_RANKS, Limit, Topology


@dataclass(frozen=True)
class NicPort:
    """The name and GUID by which a fabric's file identifies a NIC.

    Attributes:
        name: The NIC's name on its node.
        guid: The GUID as printed on the node; 0: unknown.
    """

    name: str
    guid: int = 0


@dataclass(frozen=True, eq=False)
class Nics:
    """The NICs that join a node to other nodes of its kind.

    Attributes:
        sends: Ranks of the node that send through each NIC: int64 arrays.
        receives: Ranks of the node that receive through each NIC: int64 arrays.
        gbs: Bandwidth of each NIC in GB/s, per direction.
        alpha_us: Latency in µs from a rank to a rank of another node, over both NICs and the fabric.
        assumed: Whether nobody has published this latency.
        fabrics: Number of fabric switches; NIC b is on fabric b mod fabrics. 0: there is no switch, and each NIC sends
            to each of the other nodes.
        ports: Physical NICs that each NIC stands for; () where no tool states them.
        kind: Kind of the NICs' links, of `costs.LINK_KINDS`.
    """

    sends: tuple[Ints, ...]
    receives: tuple[Ints, ...]
    gbs: float
    alpha_us: float
    assumed: bool
    fabrics: int
    ports: tuple[tuple[NicPort, ...], ...] = ()
    kind: str = "network"


@dataclass(frozen=True, eq=False)
class Machine:
    """A topology, and the NICs by which several like it can be joined.

    Attributes:
        topology: The topology of a node, or of a whole cluster.
        nics: The node's NICs; None where it has none, or where the topology is a cluster.
        remarks: Sources of the figures, a line each.
    """

    topology: Topology
    nics: Nics | None = None
    remarks: tuple[str, ...] = ()


def join(machine: Machine, count: int, name: str) -> Topology:
    """Build a cluster of `count` nodes of a machine.

    Ranks are numbered node by node; switches are "nvswitch.0" (of node 0), fabric switches last. Where NICs meet in a
    fabric switch, each rank that a NIC serves has a link to and from the switch with half of the NIC's α. A NIC that
    several ranks share is a limit "nic0.1 out" (NIC 0 of node 1). A "direct" fabric has links from NIC to NIC of other
    nodes instead, with the same limits. Costs of the node stay, but are off.

    Args:
        machine: The node and its NICs.
        count: Number of nodes, at least 1. For 1 the result is the node's topology as it is, under its own name.
        name: Name of the cluster.

    Raises:
        InputError: The machine has no NICs and the count is above 1, or the cluster would be too large.
    """
    node_topology = machine.topology
    if count == 1:
        return node_topology
    nics = _checked_nics(machine, count, name)
    n, ranks = node_topology.nranks, node_topology.nranks * count
    switches_per_node = len(node_topology.switches)
    node = np.repeat(np.arange(count, dtype=np.int64), node_topology.nlinks)

    def vertex(vertices: Ints) -> Ints:
        """Return the cluster's copies of a column of the node's vertices: the whole column for each node in turn."""
        vertices = np.tile(vertices, count)
        return np.where(vertices < n, vertices + node * n, vertices - n + ranks + node * switches_per_node)

    limits = [
        Limit(f"{x.name}.{i}", x.links + i * node_topology.nlinks, x.bandwidth_gbs)
        for i in range(count)
        for x in node_topology.limits
    ]
    src, dst, sender, receiver = _fabric(nics, n, count, ranks + count * switches_per_node)
    alpha_us = nics.alpha_us / 2 if nics.fabrics else nics.alpha_us
    limits += _nic_limits(nics, sender, receiver, count * node_topology.nlinks)
    nic_count = "one NIC" if len(nics.sends) == 1 else f"{len(nics.sends)} NICs"
    return replace(
        node_topology,
        name=name,
        nranks=ranks,
        switches=tuple(f"{s}.{i}" for i in range(count) for s in node_topology.switches) + _fabric_names(nics),
        link_src=np.append(vertex(node_topology.link_src), src),
        link_dst=np.append(vertex(node_topology.link_dst), dst),
        alpha_us=np.append(np.tile(node_topology.alpha_us, count), np.full(len(src), alpha_us)),
        bandwidth_gbs=np.append(np.tile(node_topology.bandwidth_gbs, count), np.full(len(src), nics.gbs)),
        limits=tuple(limits),
        alpha_assumed=node_topology.alpha_assumed or nics.assumed,
        nodes=np.repeat(np.arange(count, dtype=np.int64), n),
        summary=f"{count} nodes of {node_topology.summary}; {nic_count} a node, {nics.gbs:g} GB/s each way",
        link_kind=np.append(np.tile(node_topology.link_kind, count), kind_numbers(nics.kind, len(src))),
        protocol="",
        switch_ops=tuple(replace(x, switch=f"{x.switch}.{i}") for i in range(count) for x in node_topology.switch_ops),
    )


def _checked_nics(machine: Machine, count: int, name: str) -> Nics:
    """Return the machine's NICs, or raise InputError if it has none or a cluster of `count` nodes is too large."""
    node_topology, nics = machine.topology, machine.nics
    if nics is None:
        raise InputError(
            f"topology {name[:80]!r}: {node_topology.name} has no [nic], so nodes of it cannot be joined; "
            "it must be a machine file with one"
        )
    ends = sum(map(len, nics.sends)) + sum(map(len, nics.receives))
    fabric_links = ends * count if nics.fabrics else (ends * count) ** 2
    if count * node_topology.nvertices > MAX_RANKS or count * node_topology.nlinks + fabric_links > MAX_LINKS:
        raise InputError(
            f"topology {name[:80]!r}: too large; it must have at most {MAX_RANKS} ranks and {MAX_LINKS} links in all"
        )
    return nics


def _fabric_names(nics: Nics) -> tuple[str, ...]:
    """Return the names of the fabric switches: "fabric" for one, () for none.

    Two or more are "rail0", "rail1", … where there are as many as NICs of a node, else "fabric0", "fabric1", ….
    """
    if nics.fabrics <= 1:
        return ("fabric",) * nics.fabrics
    word = "rail" if nics.fabrics == len(nics.sends) else "fabric"
    return tuple(f"{word}{i}" for i in range(nics.fabrics))


def _ends(sets: tuple[Ints, ...], n: int, count: int) -> tuple[Ints, Ints, Ints]:
    """Return (rank, NIC, node) of every rank on a NIC of every node, node by node: three int64 columns.

    The rank is numbered in the cluster, the NIC in its node.

    Args:
        sets: Ranks of the node on each NIC.
        n: Number of ranks of a node.
        count: Number of nodes.
    """
    rank = np.concatenate(sets)
    nic = np.repeat(np.arange(len(sets), dtype=np.int64), [len(s) for s in sets])
    node = np.repeat(np.arange(count, dtype=np.int64), len(rank))
    return np.tile(rank, count) + node * n, np.tile(nic, count), node


def _fabric(nics: Nics, n: int, count: int, first: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the fabric's links: source, destination, sending and receiving NIC (numbered over all nodes; -1: none).

    Args:
        nics: The NICs of a node.
        n: Number of ranks of a node.
        count: Number of nodes.
        first: Vertex of the first fabric switch.
    """
    total = len(nics.sends)
    out_rank, out_nic, out_node = _ends(nics.sends, n, count)
    in_rank, in_nic, in_node = _ends(nics.receives, n, count)
    if nics.fabrics:
        src = np.concatenate([out_rank, first + in_nic % nics.fabrics])
        dst = np.concatenate([first + out_nic % nics.fabrics, in_rank])
        no_receiver, no_sender = np.full(len(out_rank), -1), np.full(len(in_rank), -1)
        sender = np.concatenate([out_node * total + out_nic, no_sender])
        return src, dst, sender, np.concatenate([no_receiver, in_node * total + in_nic])
    x, y = np.nonzero(out_node[:, None] != in_node[None, :])
    return out_rank[x], in_rank[y], out_node[x] * total + out_nic[x], in_node[y] * total + in_nic[y]


def _nic_limits(nics: Nics, sender: Ints, receiver: Ints, first: int) -> list[Limit]:
    """Return a limit for every NIC and direction that more than one link crosses.

    Args:
        nics: The NICs of a node.
        sender: Sending NIC of each of the fabric's links, numbered over all nodes; -1: none.
        receiver: Receiving NIC of each, likewise.
        first: Index in the cluster of the fabric's first link.
    """
    limits: list[Limit] = []
    for word, owner in (("out", sender), ("in", receiver)):
        order = np.argsort(owner, kind="stable")
        order = order[owner[order] >= 0]
        for links in np.split(order, np.flatnonzero(np.diff(owner[order])) + 1):
            if len(links) > 1:
                node, nic = divmod(int(owner[links[0]]), len(nics.sends))
                limits.append(Limit(f"nic{nic}.{node} {word}", links + first, nics.gbs))
    return limits
