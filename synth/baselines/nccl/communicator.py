"""A group of ranks as NCCL sees it: nodes, what joins the GPUs of each, and their NICs, all as NCCL counts links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from synth.baselines.nccl.figures import LEAST_CAPABILITY, PCIE, generation
from topologies.arrays import Ints, components
from topologies.costs import KINDS
from topologies.errors import NotModelled
from topologies.topology import Topology

_OTHER, _NVLINK, _PCIE, _NETWORK = (KINDS.index(kind) for kind in ("other", "nvlink", "pcie", "network"))

_MOST_UNSWITCHED = 128  # GPUs of a node without NVLink switches among which rings are looked for


@dataclass(frozen=True)
class Nic:
    """One NIC of a node: GB/s each way, and the GPUs (by their place in the node) that it is attached to."""

    gbs: float
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """The GPUs of a communicator that are joined without the network; bandwidths in GB/s, counted as NCCL counts.

    Attributes:
        gpus: how many.
        switched_gbs: NVLinks of a GPU into switches, the least of all GPUs; 0: some GPU has none.
        pairs: (a, b, GB/s) for NVLinks straight from GPU a to GPU b.
        pcie: (a, b, shared, …): what a message from a to b over PCIe crosses, numbers of `pcie_gbs`.
        pcie_gbs: of every PCIe link or limit.
        nics: in order.
    """

    gpus: int
    switched_gbs: float = 0.0
    pairs: tuple[tuple[int, int, float], ...] = ()
    pcie: tuple[tuple[int, ...], ...] = ()
    pcie_gbs: tuple[float, ...] = ()
    nics: tuple[Nic, ...] = ()

    @property
    def nvlink_gbs(self) -> float:
        """The most that leaves a GPU over NVLink."""
        leaving = np.zeros(self.gpus)
        for a, _, gbs in self.pairs:
            leaving[a] += gbs
        return float(max(self.switched_gbs, leaving.max(initial=0.0)))


@dataclass(frozen=True)
class Communicator:
    """What NCCL's cost model knows of a group.

    Attributes:
        capability: compute capability of the GPUs (90: Hopper).
        kinds: the different nodes.
        sizes: GPUs of every node.
        cpu: "amd" or "" (Intel, or not known, which NCCL takes alike).
        platform: what a cloud calls the machine, by which its plug-ins of NCCL go; "": there are none.
    """

    capability: int
    kinds: tuple[Node, ...]
    sizes: tuple[int, ...]
    cpu: str = ""
    platform: str = ""

    @property
    def nranks(self) -> int:
        return sum(self.sizes)

    @property
    def nnodes(self) -> int:
        return len(self.sizes)


def communicator(topology: Topology, group: Sequence[int]) -> Communicator:
    """What NCCL would see of `group` (ranks of the topology).

    A node is what links other than the network's join, so that a rack under NVSwitches is one, as NCCL has it.
    Simplified: NVLink switches are one switch; a NIC is a network link of a rank, or a limit that several share; PCIe
    counts where the topology states it (links between sockets like others), else NICs alone limit what leaves a node.

    Raises NotModelled: what NCCL's model needs is not stated.
    """
    if topology.compute_capability < LEAST_CAPABILITY:
        raise NotModelled(f"{topology.name} states no compute capability, by which NCCL's model goes")
    if len(group) < 2:
        raise NotModelled("NCCL moves nothing for one rank")
    part, nodes = nodes_of(topology, group)
    seen = _Links(topology, part, generation(topology.compute_capability).nvlink)
    kinds = dict.fromkeys(seen.node(members, len(nodes) > 1) for members in nodes)
    sizes = tuple(len(members) for members in nodes)
    return Communicator(topology.compute_capability, tuple(kinds), sizes, platform=topology.platform)


def nodes_of(topology: Topology, group: Sequence[int]) -> tuple[Ints, list[Ints]]:
    """Of every vertex the node, as what links other than the network's join, and the group's ranks of each."""
    inner = topology.link_kind != _NETWORK
    part = components(topology.nvertices, topology.link_src[inner], topology.link_dst[inner])
    ranks = np.asarray(group, dtype=np.int64)
    return part, [ranks[part[ranks] == label] for label in dict.fromkeys(part[ranks].tolist())]


def nics_of(topology: Topology, part: Ints, members: Ints) -> tuple[Nic, ...]:
    """The NICs of a node of `nodes_of` that the group's ranks on it are attached to."""
    return _Links(topology, part, 1.0).nics(members)


class _Links:
    """The links of a topology, by what NCCL makes of them; nvlink: what is counted of an NVLink's bandwidth."""

    def __init__(self, topology: Topology, part: Ints, nvlink: float) -> None:
        self.topology, self.part, self.nvlink = topology, part, nvlink
        self.src, self.dst, self.kind = topology.link_src, topology.link_dst, topology.link_kind
        # links of the network that share a limit are one NIC's
        self.limit = np.full(topology.nlinks, -1, dtype=np.int64)
        for number, limit in enumerate(topology.limits):
            if (self.kind[limit.links] == _NETWORK).all():
                self.limit[limit.links] = number

    def node(self, members: Ints, several: bool) -> Node:
        n, place = self.topology.nranks, {rank: i for i, rank in enumerate(members.tolist())}
        here = np.flatnonzero((self.part[self.src] == self.part[members[0]]) & (self.kind != _NETWORK))
        if (self.kind[here] == _OTHER).any():
            bad = here[self.kind[here] == _OTHER][0]
            ends = f"{self.topology.vertex_name(self.src[bad])}→{self.topology.vertex_name(self.dst[bad])}"
            raise NotModelled(f"{self.topology.name} does not say whether link {ends} is NVLink or PCIe")
        fast = here[self.kind[here] == _NVLINK]
        gbs = self.topology.bandwidth_gbs[fast] * self.nvlink
        up = np.bincount(self.src[fast], weights=gbs * (self.dst[fast] >= n), minlength=n)[members]
        pairs = tuple(
            (place[a], place[b], rate)
            for a, b, rate in zip(self.src[fast].tolist(), self.dst[fast].tolist(), gbs.tolist(), strict=True)
            if a in place and b in place
        )
        switched = float(up.min())
        if not switched and len(members) > _MOST_UNSWITCHED:
            raise NotModelled(
                f"{len(members)} GPUs of a node without NVLink switches are more than the {_MOST_UNSWITCHED} whose"
                " rings are looked for"
            )
        pcie, pcie_gbs = ((), ()) if switched else self._pcie(members, here[self.kind[here] == _PCIE])
        nics = self.nics(members) if several else ()
        return Node(len(members), switched, pairs, pcie, pcie_gbs, nics)

    def _pcie(self, members: Ints, links: Ints) -> tuple[tuple[tuple[int, ...], ...], tuple[float, ...]]:
        """Node.pcie and Node.pcie_gbs: the path of fewest links between each two GPUs, none through a third."""
        if not len(links):
            return (), ()
        onward: dict[int, list[tuple[int, int]]] = {}
        for number, link in enumerate(links.tolist()):
            onward.setdefault(int(self.src[link]), []).append((int(self.dst[link]), number))
        rates = (self.topology.bandwidth_gbs[links] * PCIE).tolist()
        shared: list[list[int]] = [[] for _ in rates]
        for limit in self.topology.limits:
            inside = np.flatnonzero(np.isin(links, limit.links))
            for number in inside.tolist():
                shared[number].append(len(rates))
            rates += [limit.bandwidth_gbs * PCIE] if len(inside) else []
        place = {rank: i for i, rank in enumerate(members.tolist())}
        found = []
        for a, start in enumerate(members.tolist()):
            reached: dict[int, tuple[int, ...]] = {start: ()}
            edge = [start]
            while edge:
                new = []
                for vertex in edge:
                    for to, number in onward.get(vertex, []):
                        if to in reached:
                            continue
                        reached[to] = (*reached[vertex], number, *shared[number])
                        if to >= self.topology.nranks:
                            new.append(to)
                        elif to in place:
                            found.append((a, place[to], *reached[to]))
                edge = new
        return tuple(found), tuple(rates)

    def nics(self, members: Ints) -> tuple[Nic, ...]:
        """Those that a GPU of the group is attached to; all of the node where none is."""
        place = {rank: i for i, rank in enumerate(members.tolist())}
        leaving = (self.kind == _NETWORK) & (self.src < self.topology.nranks)
        links = np.flatnonzero(leaving & (self.part[self.src] == self.part[members[0]]))
        owners: dict[tuple[str, int], list[int]] = {}
        for link in links.tolist():
            limit = int(self.limit[link])
            owners.setdefault(("limit", limit) if limit >= 0 else ("link", link), []).append(link)
        if not owners:
            raise NotModelled(f"{self.topology.name}: rank {members[0]} is on a node without a network link")
        nics = []
        for (what, number), its in owners.items():
            limit_gbs = self.topology.limits[number].bandwidth_gbs if what == "limit" else np.inf
            rate = min(limit_gbs, float(self.topology.bandwidth_gbs[its].max()))
            near = sorted({place[rank] for rank in self.src[its].tolist() if rank in place})
            nics.append(Nic(rate, tuple(near)))
        return tuple(nic for nic in nics if nic.gpus) or tuple(nics)
