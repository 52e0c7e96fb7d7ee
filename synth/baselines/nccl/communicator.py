"""A group of ranks as NCCL sees it: nodes, the links among the GPUs of each, and their NICs, counted as NCCL counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from synth.baselines.nccl.figures import LEAST_CAPABILITY, PCIE, generation
from topologies.arrays import Ints, components
from topologies.costs import LINK_KINDS
from topologies.errors import NotModelled
from topologies.topology import Topology

_OTHER, _NVLINK, _PCIE, _NETWORK = (LINK_KINDS.index(kind) for kind in ("other", "nvlink", "pcie", "network"))

UNSAID = "does not say whether"  # what a NotModelled says of a topology that lacks kinds of links
_MOST_UNSWITCHED = 128  # most GPUs of a node without NVLink switches for a search of rings


@dataclass(frozen=True)
class NcclNic:
    """A NIC of a node.

    Attributes:
        gbs: GB/s in each direction.
        gpus: GPUs (by their place in the node) that it is attached to.
    """

    gbs: float
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class NcclNode:
    """The GPUs of a communicator that are joined without the network; bandwidths in GB/s, counted as NCCL counts.

    Attributes:
        gpus: Number of GPUs.
        switched_gbs: GB/s of NVLinks of a GPU into switches, the least of all GPUs; 0: some GPU has none.
        pairs: (a, b, GB/s) for NVLinks directly from GPU a to GPU b.
        pcie: (a, b, shared, …): indices in `pcie_gbs` of the links and limits that a message from a to b crosses over
            PCIe.
        pcie_gbs: GB/s of every PCIe link or limit.
        nics: NICs in order.
    """

    gpus: int
    switched_gbs: float = 0.0
    pairs: tuple[tuple[int, int, float], ...] = ()
    pcie: tuple[tuple[int, ...], ...] = ()
    pcie_gbs: tuple[float, ...] = ()
    nics: tuple[NcclNic, ...] = ()

    @property
    def nvlink_gbs(self) -> float:
        """Return the most GB/s that leave a GPU over NVLink, into switches or over direct links in sum; 0 without."""
        leaving = np.zeros(self.gpus)
        for a, _, gbs in self.pairs:
            leaving[a] += gbs
        return float(max(self.switched_gbs, leaving.max(initial=0.0)))


@dataclass(frozen=True)
class Communicator:
    """A group of ranks with what NCCL's cost model uses of it.

    Attributes:
        capability: Compute capability of the GPUs (90: Hopper).
        kinds: The different nodes.
        sizes: Number of GPUs of every node.
        cpu: "amd" or "" (Intel, or not known, which NCCL treats the same).
        platform: A cloud's name of the machine, which selects its plug-ins for NCCL; "": there are none.
    """

    capability: int
    kinds: tuple[NcclNode, ...]
    sizes: tuple[int, ...]
    cpu: str = ""
    platform: str = ""

    @property
    def nranks(self) -> int:
        """Return the number of ranks."""
        return sum(self.sizes)

    @property
    def nnodes(self) -> int:
        """Return the number of nodes."""
        return len(self.sizes)


def communicator(topology: Topology, group: Sequence[int]) -> Communicator:
    """Return `group` (ranks of the topology) as NCCL would see it.

    A node is a set of GPUs that links other than the network's join, so a rack under NVSwitches is one node, as in
    NCCL. Equal nodes are one kind. Simplified: NVLink switches are one switch; a NIC is a network link of a rank, or a
    limit that more than one share; PCIe counts where the topology states it (links between sockets like others), else
    only NICs limit what leaves a node. The CPU is not known.

    Raises:
        NotModelled: The topology does not state what NCCL's model needs (compute capability, kinds of links, links of
            the network between nodes), the group is one rank, or a node has too many GPUs without NVLink switches.
    """
    if topology.compute_capability < LEAST_CAPABILITY:
        raise NotModelled(f"{topology.name} states no compute capability, which NCCL's model needs")
    if len(group) < 2:
        raise NotModelled("NCCL moves nothing for one rank")
    part, nodes = nodes_of(topology, group)
    links = _Links(topology, part, generation(topology.compute_capability).nvlink)
    kinds = dict.fromkeys(links.node(members, len(nodes) > 1) for members in nodes)
    sizes = tuple(len(members) for members in nodes)
    return Communicator(topology.compute_capability, tuple(kinds), sizes, platform=topology.platform)


def nodes_of(topology: Topology, group: Sequence[int]) -> tuple[Ints, list[Ints]]:
    """Return the node of every vertex, by links other than the network's, and the group's ranks of each node.

    The nodes come in the order of their first rank in the group, and their ranks in the group's order. The first result
    is a number for each vertex, shape (vertices,); the second has no nodes without a rank of the group.
    """
    inner = topology.link_kind != _NETWORK
    part = components(topology.nvertices, topology.link_src[inner], topology.link_dst[inner])
    ranks = np.asarray(group, dtype=np.int64)
    return part, [ranks[part[ranks] == label] for label in dict.fromkeys(part[ranks].tolist())]


def nics_of(topology: Topology, part: Ints, members: Ints) -> tuple[NcclNic, ...]:
    """Return the NICs of a node that the group's ranks on it are attached to, or all its NICs if there are none.

    Args:
        topology: The topology.
        part: Node of every vertex, as `nodes_of` returns it.
        members: The group's ranks on the node.

    Raises:
        NotModelled: The node has no link of the network.
    """
    return _Links(topology, part, 1.0).nics(members)


class _Links:
    """The links of a topology, as NCCL counts them.

    Attributes:
        topology: The topology.
        part: Node of every vertex.
        nvlink: Share of an NVLink's bandwidth that counts.
        src: Source vertex of every link.
        dst: Destination vertex of every link.
        kind: Kind of every link.
        limit: Limit of every network link's NIC, or -1.
    """

    def __init__(self, topology: Topology, part: Ints, nvlink: float) -> None:
        self.topology, self.part, self.nvlink = topology, part, nvlink
        self.src, self.dst, self.kind = topology.link_src, topology.link_dst, topology.link_kind
        # Links of the network from one node that share a limit belong to one NIC; a limit of what a NIC receives may
        # hold links from several.
        self.limit = np.full(topology.nlinks, -1, dtype=np.int64)
        for number, limit in enumerate(topology.limits):
            leaving = limit.links[self.src[limit.links] < topology.nranks]
            if (self.kind[limit.links] == _NETWORK).all() and len(np.unique(part[self.src[leaving]])) <= 1:
                self.limit[limit.links] = number

    def node(self, members: Ints, multi_node: bool) -> NcclNode:
        """Return the node of these ranks, with bandwidths as NCCL counts them.

        Args:
            members: The group's ranks on the node.
            multi_node: True: the node has its NICs. False: it has none.

        Raises:
            NotModelled: A link in the node is of unknown kind, the node has more than 128 GPUs of which some have no
                link to an NVLink switch, or, with `multi_node`, no link of the network.
        """
        n, place = self.topology.nranks, {rank: i for i, rank in enumerate(members.tolist())}
        inner = np.flatnonzero((self.part[self.src] == self.part[members[0]]) & (self.kind != _NETWORK))
        if (self.kind[inner] == _OTHER).any():
            bad = inner[self.kind[inner] == _OTHER][0]
            ends = f"{self.topology.vertex_name(self.src[bad])}→{self.topology.vertex_name(self.dst[bad])}"
            raise NotModelled(f"{self.topology.name} {UNSAID} link {ends} is NVLink or PCIe (kind of its [[links]])")
        fast = inner[self.kind[inner] == _NVLINK]
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
                f"{len(members)} GPUs of a node without NVLink switches are too many for the search of rings, which"
                f" takes {_MOST_UNSWITCHED} at most"
            )
        pcie, pcie_gbs = ((), ()) if switched else self._pcie(members, inner[self.kind[inner] == _PCIE])
        nics = self.nics(members) if multi_node else ()
        return NcclNode(len(members), switched, pairs, pcie, pcie_gbs, nics)

    def _pcie(self, members: Ints, links: Ints) -> tuple[tuple[tuple[int, ...], ...], tuple[float, ...]]:
        """Return the paths over PCIe between the GPUs of a node, and the GB/s of what they cross, as NCCL counts them.

        A path has the fewest links between two GPUs, none through a third. Two GPUs without a path have no entry.

        Args:
            members: Ranks of the node.
            links: PCIe links of the node.

        Returns:
            (a, b, …) for each path from GPU a to GPU b, with the indices of the links and limits that it crosses; and
            the GB/s of every link, then of every limit of such links.
        """
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
        paths = []
        for a, start in enumerate(members.tolist()):
            reached: dict[int, tuple[int, ...]] = {start: ()}
            edge = [start]
            while edge:
                new = []
                for vertex in edge:
                    for neighbour, number in onward.get(vertex, []):
                        if neighbour in reached:
                            continue
                        reached[neighbour] = (*reached[vertex], number, *shared[number])
                        if neighbour >= self.topology.nranks:
                            new.append(neighbour)
                        elif neighbour in place:
                            paths.append((a, place[neighbour], *reached[neighbour]))
                edge = new
        return tuple(paths), tuple(rates)

    def nics(self, members: Ints) -> tuple[NcclNic, ...]:
        """Return the NICs that a GPU of the group is attached to, or all NICs of the node if there are none.

        A NIC is the network links of ranks that share a limit, or one such link without a limit. It has the GB/s of the
        limit, or of its fastest link if that is less. NICs are in the order of their first links.

        Args:
            members: The group's ranks on the node; GPUs are named by their place in it.

        Raises:
            NotModelled: The node has no link of the network.
        """
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
        for (kind, number), owned in owners.items():
            limit_gbs = self.topology.limits[number].bandwidth_gbs if kind == "limit" else np.inf
            rate = min(limit_gbs, float(self.topology.bandwidth_gbs[owned].max()))
            near = sorted({place[rank] for rank in self.src[owned].tolist() if rank in place})
            nics.append(NcclNic(rate, tuple(near)))
        return tuple(nic for nic in nics if nic.gpus) or tuple(nics)
