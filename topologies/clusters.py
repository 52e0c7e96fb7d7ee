"""Several nodes of one machine joined by their NICs into a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from topologies.arrays import Ints
from topologies.costs import kind_numbers
from topologies.errors import InputError
from topologies.topology import MAX_LINKS, MAX_RANKS, Limit, Topology


@dataclass(frozen=True)
class NicPort:
    """By what a fabric's file knows a NIC: its name on its node, and its GUID as printed there (0: not known)."""

    name: str
    guid: int = 0


@dataclass(frozen=True, eq=False)
class Nics:
    """How one node's NICs join it to others of its kind."""

    sends: tuple[Ints, ...]  # for each NIC the ranks of the node that send through it
    receives: tuple[Ints, ...]
    gbs: float  # of each NIC, each way
    alpha_us: float  # from rank to rank of another node, both NICs and fabric
    assumed: bool  # nobody published this α
    fabrics: int  # NIC b is on fabric b mod fabrics; 0 for no switch: each NIC sends to each of the other nodes
    ports: tuple[tuple[NicPort, ...], ...] = ()  # for each NIC those that are drawn as it; () where no tool said
    kind: str = "network"  # of its links, of `costs.KINDS`


@dataclass(frozen=True, eq=False)
class Machine:
    """One node, its NICs where it has any, and where its figures come from, a line each."""

    topology: Topology
    nics: Nics | None = None
    remarks: tuple[str, ...] = ()


def join(machine: Machine, count: int, name: str) -> Topology:
    """`count` nodes of the machine: ranks node by node, switches "nvswitch.0" (of node 0), fabric switches last.

    Where NICs meet in a fabric switch each rank that a NIC serves has a link to and from it with half of the NIC's α on
    either side; a NIC that several ranks share is a limit "nic0.1 out" (NIC 0 of node 1). A "direct" fabric has links
    from NIC to NIC of other nodes instead, with the same limits. Raises InputError where the machine has no NICs or the
    cluster would be too large.
    """
    one, nics = machine.topology, machine.nics
    if count == 1:
        return one
    if nics is None:
        raise InputError(
            f"topology {name[:80]!r}: {one.name} has no [nic], so nodes of it cannot be joined; "
            "it must be a machine file with one"
        )
    ends = sum(map(len, nics.sends)) + sum(map(len, nics.receives))
    fabric_links = ends * count if nics.fabrics else (ends * count) ** 2
    if count * one.nvertices > MAX_RANKS or count * one.nlinks + fabric_links > MAX_LINKS:
        raise InputError(
            f"topology {name[:80]!r}: too large; it must have at most {MAX_RANKS} ranks and {MAX_LINKS} links in all"
        )
    n, ranks = one.nranks, one.nranks * count
    each = len(one.switches)
    node = np.repeat(np.arange(count, dtype=np.int64), one.nlinks)

    def vertex(v: Ints) -> Ints:
        v = np.tile(v, count)
        return np.where(v < n, v + node * n, v - n + ranks + node * each)

    src, dst = [vertex(one.link_src)], [vertex(one.link_dst)]
    alpha, gbs = [np.tile(one.alpha_us, count)], [np.tile(one.bandwidth_gbs, count)]
    limits = [
        Limit(f"{x.name}.{i}", x.links + i * one.nlinks, x.bandwidth_gbs) for i in range(count) for x in one.limits
    ]
    a, b, sender, receiver = _fabric(nics, n, count, ranks + count * each)
    src.append(a)
    dst.append(b)
    gbs.append(np.full(len(a), nics.gbs))
    alpha.append(np.full(len(a), nics.alpha_us / 2 if nics.fabrics else nics.alpha_us))
    limits += _nic_limits(nics, sender, receiver, count * one.nlinks)
    many = "one NIC" if len(nics.sends) == 1 else f"{len(nics.sends)} NICs"
    return Topology(
        name=name,
        nranks=ranks,
        switches=tuple(f"{s}.{i}" for i in range(count) for s in one.switches) + _fabric_names(nics),
        link_src=np.concatenate(src),
        link_dst=np.concatenate(dst),
        alpha_us=np.concatenate(alpha),
        bandwidth_gbs=np.concatenate(gbs),
        limits=tuple(limits),
        alpha_assumed=one.alpha_assumed or nics.assumed,
        nodes=np.repeat(np.arange(count, dtype=np.int64), n),
        sms=one.sms,
        compute_capability=one.compute_capability,
        gcn=one.gcn,
        platform=one.platform,
        summary=f"{count} nodes of {one.summary}; {many} a node, {nics.gbs:g} GB/s each way",
        source=one.source,
        link_kind=np.concatenate([np.tile(one.link_kind, count), kind_numbers(nics.kind, len(a))]),
        costs=one.costs,
        switch_ops=tuple(replace(x, switch=f"{x.switch}.{i}") for i in range(count) for x in one.switch_ops),
    )


def _fabric_names(nics: Nics) -> tuple[str, ...]:
    if nics.fabrics <= 1:
        return ("fabric",) * nics.fabrics
    word = "rail" if nics.fabrics == len(nics.sends) else "fabric"
    return tuple(f"{word}{i}" for i in range(nics.fabrics))


def _ends(sets: tuple[Ints, ...], n: int, count: int) -> tuple[Ints, Ints, Ints]:
    """(rank, NIC, node) of every rank of the cluster that stands in `sets`, node by node."""
    rank = np.concatenate(sets)
    nic = np.repeat(np.arange(len(sets), dtype=np.int64), [len(s) for s in sets])
    node = np.repeat(np.arange(count, dtype=np.int64), len(rank))
    return np.tile(rank, count) + node * n, np.tile(nic, count), node


def _fabric(nics: Nics, n: int, count: int, first: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Links of the fabric: source, destination, sending and receiving NIC (numbered through; -1: none)."""
    total = len(nics.sends)
    out_rank, out_nic, out_node = _ends(nics.sends, n, count)
    in_rank, in_nic, in_node = _ends(nics.receives, n, count)
    if nics.fabrics:
        src = np.concatenate([out_rank, first + in_nic % nics.fabrics])
        dst = np.concatenate([first + out_nic % nics.fabrics, in_rank])
        nobody_in, nobody_out = np.full(len(out_rank), -1), np.full(len(in_rank), -1)
        sender = np.concatenate([out_node * total + out_nic, nobody_out])
        return src, dst, sender, np.concatenate([nobody_in, in_node * total + in_nic])
    x, y = np.nonzero(out_node[:, None] != in_node[None, :])
    return out_rank[x], in_rank[y], out_node[x] * total + out_nic[x], in_node[y] * total + in_nic[y]


def _nic_limits(nics: Nics, sender: Ints, receiver: Ints, first: int) -> list[Limit]:
    """A limit for every NIC and direction that more than one link goes through; `first`: index of link 0."""
    limits: list[Limit] = []
    for word, owner in (("out", sender), ("in", receiver)):
        order = np.argsort(owner, kind="stable")
        order = order[owner[order] >= 0]
        for links in np.split(order, np.flatnonzero(np.diff(owner[order])) + 1):
            if len(links) > 1:
                node, nic = divmod(int(owner[links[0]]), len(nics.sends))
                limits.append(Limit(f"nic{nic}.{node} {word}", links + first, nics.gbs))
    return limits
