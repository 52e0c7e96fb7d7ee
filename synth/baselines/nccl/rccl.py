"""RCCL's choice for a collective by its own cost model, and the time of that choice.

RCCL is NCCL's code with AMD's figures. Its rings are not searched for but written down for each machine that it knows,
so that they use all links of a device. Source: `rccl_figures`. Left out: machines and groups that it does not know (it
searches rings for them as NCCL does), MSCCL++, which it runs only where RCCL_MSCCLPP_ENABLE is set, and what `model`
leaves out of NCCL.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from synth.baselines.nccl import figures as f
from synth.baselines.nccl import rccl_figures as r
from synth.baselines.nccl.communicator import nics_of, nodes_of
from synth.baselines.nccl.model import LibraryChoice, LibraryCostModel, steps_of
from topologies.arrays import Floats, Ints
from topologies.costs import LINK_KINDS
from topologies.errors import NotModelled
from topologies.topology import Topology

COLLECTIVES = {
    "allreduce": (f.RING, f.TREE),
    "allgather": (f.RING,),
    "reducescatter": (f.RING,),
    "broadcast": (f.RING,),
    "reduce": (f.RING,),
}
_ROW = {f.TREE: 0, f.RING: 1}  # index in the pairs of figures
_LL_ROOTED = 1.65  # factor of LL's bandwidth in broadcast and reduce on one node of MI300
_TOLERANCE = 0.10  # relative difference of equal links at most, since bandwidths may be measured
_POST_US = 2.0  # µs that a step over the network costs AMD's CPUs; three times that under Simple


@dataclass(frozen=True)
class RcclModel(LibraryCostModel):
    """RCCL's cost model for one communicator: whole nodes that it knows.

    Attributes:
        gcn: Architecture of the devices.
        nranks: Number of ranks.
        nnodes: Number of nodes.
        machine: RCCL's figures for such nodes.
        bus_gbs: GB/s that leave a device over all rings.
    """

    gcn: str
    nranks: int
    nnodes: int
    machine: r.RcclMachine
    bus_gbs: float
    library, collectives = "RCCL", COLLECTIVES

    def choose(self, collective: str, size_bytes: float) -> LibraryChoice:
        """Return RCCL's choice: the fastest, the first of equals; or its all-pairs for small allreduces on 8 MI300.

        Small is up to 16 MiB.

        Args:
            collective: A name of COLLECTIVES.
            size_bytes: Bytes of the whole message; for allgather the bytes that a rank ends with.

        Raises:
            NotModelled: The cost model has no such collective.
        """
        by_files = self.mi300 and self.nranks == 8 and collective == "allreduce"
        if by_files and size_bytes < r.ALL_PAIRS_END:
            return self._all_pairs(size_bytes)
        return min(self.candidates(collective, size_bytes), key=lambda choice: choice.time_us)

    @cached_property
    def mi300(self) -> bool:
        """Return True for one node of MI300 (architectures gfx94…), for which exceptions hold."""
        return self.nnodes == 1 and self.gcn.startswith("gfx94")

    def _choice(self, collective: str, algorithm: str, protocol: str, size_bytes: float) -> Iterator[LibraryChoice]:
        """Yield the choice of one algorithm and protocol with its time; nothing if RCCL cannot use the pair.

        RCCL cannot use LL128 on machines without it, trees under Simple on one node of MI300, and what has no
        bandwidth. The number of channels is 0, not known.
        """
        if protocol == f.LL128 and not self.machine.ll128:
            return
        if self.mi300 and (algorithm, protocol) == (f.TREE, f.SIMPLE):
            return
        tuning, p = r.TUNINGS[self.machine.tuning], f.PROTOCOLS.index(protocol)
        ratios = tuning.few if self.nnodes <= 2 else tuning.many
        bus = self.bus_gbs * ratios[_ROW[algorithm]][p]
        if self.mi300 and protocol == f.LL and collective in ("broadcast", "reduce"):
            bus *= _LL_ROOTED
        parts = tuning.tree[p] if algorithm == f.TREE else tuning.ring[p]
        if algorithm == f.TREE or self.nnodes > 1:
            column = min(max(int(math.log2(max(1.0, size_bytes))) - 6, 0), len(parts) - 1)
            bus *= int(parts[column], 11) / 10
        if bus <= 0:
            return
        algbw = bus * (0.5 if algorithm == f.TREE else self.nranks / steps_of(collective, self.nranks))
        latency = self._latency_us(collective, algorithm, p)
        yield LibraryChoice(algorithm, protocol, 0, latency + size_bytes / (1000 * algbw), latency, algbw)

    def _latency_us(self, collective: str, algorithm: str, p: int) -> float:
        """Return the time in µs of a message without bytes; `p` is the index of the protocol in PROTOCOLS."""
        n, nodes, tuning = self.nranks, self.nnodes, r.TUNINGS[self.machine.tuning]
        base, row = r.BASE_US[p], _ROW[algorithm]
        intra, inter = tuning.xgmi_us[row][p], tuning.network_us[row][p]
        if algorithm == f.TREE:
            return base + 2 * ((n // nodes - 1) * intra + int(math.log2(nodes)) * inter)
        if collective in ("broadcast", "reduce"):
            return base + (intra if nodes == 1 else inter)  # RCCL counts its written rings as equal.
        crossing = 0 if nodes == 1 else 2 * nodes if collective == "allreduce" else nodes - 1
        post = 0.0 if nodes == 1 else _POST_US * (3 if f.PROTOCOLS[p] == f.SIMPLE else 1)
        return base + (steps_of(collective, n) - crossing) * max(intra, post) + crossing * inter

    def _all_pairs(self, size_bytes: float) -> LibraryChoice:
        """Return the all-pairs choice for an allreduce, in which all send to all and back: two steps over all links.

        It is under LL below 512 KiB, where half of the bytes are flags, else under Simple.
        """
        protocol = f.LL if size_bytes < r.ALL_PAIRS_SIMPLE else f.SIMPLE
        p, share = f.PROTOCOLS.index(protocol), 0.5 if protocol == f.LL else 1.0
        latency = r.BASE_US[p] + 2 * r.TUNINGS[self.machine.tuning].xgmi_us[_ROW[f.RING]][p]
        algbw = self.bus_gbs * share * self.nranks / steps_of("allreduce", self.nranks)
        return LibraryChoice(r.ALL_PAIRS, protocol, 0, latency + size_bytes / (1000 * algbw), latency, algbw)


def rccl_model(topology: Topology, group: Sequence[int]) -> RcclModel:
    """Return RCCL's cost model for a group of ranks of a topology.

    A node is recognized by the number of links of each width of every device, not by the devices that these join. The
    GB/s of all rings are those that RCCL states for the machine, or what leaves the fastest device over its links.

    Raises:
        NotModelled: The devices are not AMD's, or the group is one rank or not a number of whole nodes that RCCL knows.
    """
    if not topology.gcn:
        raise NotModelled(f"{topology.name} states no AMD architecture (gcn), which RCCL's model needs")
    if len(group) < 2:
        raise NotModelled("RCCL moves nothing for one rank")
    part, nodes = nodes_of(topology, group)
    whole = np.bincount(part[: topology.nranks], minlength=int(part.max()) + 1)
    devices = {len(members) for members in nodes}
    if len(devices) > 1 or any(len(members) < whole[part[members[0]]] for members in nodes):
        raise NotModelled("RCCL searches rings for groups of parts of a node; the model covers only whole nodes")
    nics = len(nics_of(topology, part, nodes[0])) if len(nodes) > 1 else 0
    family = "gfx94" if topology.gcn.startswith("gfx94") else topology.gcn
    machine = r.MACHINES.get((family, devices.pop(), nics))
    if machine is None or topology.gcn not in r.XGMI:
        raise NotModelled(
            f"RCCL searches rings for nodes of {len(nodes[0])} {topology.gcn} and {nics} NICs; the model covers only"
            " nodes with rings written into RCCL"
        )
    gbs = _xgmi_gbs(topology, nodes)
    if not all(_is_wired(node, machine.wiring) for node in np.unique(gbs, axis=0)):
        raise NotModelled(
            "RCCL searches rings for a node with this wiring; the model covers only nodes with rings written into RCCL"
        )
    bus_gbs = machine.base_gbs or float(gbs.sum(axis=2).max()) * r.XGMI[topology.gcn]
    return RcclModel(topology.gcn, len(group), len(nodes), machine, bus_gbs)


def _xgmi_gbs(topology: Topology, nodes: Sequence[Ints]) -> Floats:
    """Return the summed GB/s of the direct links between the devices of each node, shape (nodes, devices, devices).

    Links of the network and over PCIe do not count.

    Args:
        topology: The topology.
        nodes: Ranks of each node, as many in each.
    """
    n = len(nodes[0])
    place = np.full(topology.nvertices, -1)
    place[np.concatenate(nodes)] = np.arange(len(nodes) * n)
    xgmi = (topology.link_kind != LINK_KINDS.index("network")) & (topology.link_kind != LINK_KINDS.index("pcie"))
    xgmi &= (place[topology.link_src] >= 0) & (place[topology.link_dst] >= 0)  # RCCL knows no switch among devices.
    src, dst = place[topology.link_src[xgmi]], place[topology.link_dst[xgmi]]
    gbs = np.zeros((len(nodes), n, n))
    np.add.at(gbs, (src // n, src % n, dst % n), topology.bandwidth_gbs[xgmi])
    return gbs


def _is_wired(gbs: Floats, wiring: r.Wiring) -> bool:
    """Return True if the GB/s from device to device have this wiring in both directions, with nearly equal links.

    Each pair's GB/s must be within a tenth of a whole number of equal links. Devices may be in any order: only how many
    links each device has to each neighbour counts.

    Args:
        gbs: GB/s [from, to], shape (devices, devices).
        wiring: The numbers of links of every device.
    """
    one_gbs = gbs.sum() / sum(map(sum, wiring))
    links = np.rint(gbs / one_gbs) if one_gbs else gbs
    if (abs(gbs - links * one_gbs) > _TOLERANCE * gbs).any():
        return False
    return all(sorted(_by_width(row) for row in direction) == sorted(wiring) for direction in (links, links.T))


def _by_width(links: Floats) -> tuple[int, ...]:
    """Return how many links a device has to each device that it is linked to, the most first."""
    return tuple(sorted((int(count) for count in links if count), reverse=True))
