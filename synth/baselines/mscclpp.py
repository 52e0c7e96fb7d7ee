"""MSCCL++'s choice of an algorithm, and its cost by this package's own figures.

MSCCL++ has no cost model: it takes an algorithm by the size of the message, for all-reduce and all-gather of one node
whose devices reach each other directly; everything else it leaves to NCCL or RCCL. Its time here is α and bytes over
the busiest link, with an executor's costs where they are on. Source: MSCCL++ 0.9.0 (1f5f065, August 2026),
src/ext/nccl/algorithm_selector.cc, with its defaults: memory not symmetric, no graph captured, no library to fall back
to. Left out: copies into and out of its own buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from synth.baselines.nccl.communicator import nodes_of
from synth.baselines.nccl.figures import CAPABILITY_HOPPER, LL, SIMPLE
from synth.baselines.nccl.model import LibraryChoice
from topologies.costed import protocols_of, with_protocol
from topologies.costs import LINK_KINDS
from topologies.errors import NotModelled
from topologies.network import Network, network
from topologies.topology import Topology

VERSION = "0.9.0"
MOST_RANKS = 8  # ranks of a node; src/ext/collectives/include/common.hpp (MAX_NRANKS_PER_NODE)
KIB, MIB = 1 << 10, 1 << 20
ONE_SHOT, TWO_SHOT, ALL_GATHER = "all-pairs", "reduce-scatter and all-gather", "full mesh"
NVLS_PACKETS, NVLS = "NVLS one-shot", "NVLS"
_BLACKWELL = range(100, 110)
_PACKETS = "packets"  # Packets hold data and flags, as in LL.

# Rules in order: (most bytes, algorithm, True for packets); None: any size.
Rule = tuple[int | None, str, bool]
_BLACKWELL_RULES: tuple[Rule, ...] = (
    (32 * KIB, NVLS_PACKETS, True),
    (2 * MIB, TWO_SHOT, True),
    (None, TWO_SHOT, False),
)
_NVLS_RULES: tuple[Rule, ...] = (
    (16 * KIB, ONE_SHOT, True),
    (32 * KIB, NVLS_PACKETS, True),
    (1 * MIB, TWO_SHOT, True),
    (None, NVLS, False),
)
_RULES: tuple[Rule, ...] = ((16 * KIB, ONE_SHOT, True), (1 * MIB, TWO_SHOT, True), (None, TWO_SHOT, False))


@dataclass(frozen=True)
class MscclppModel:
    """MSCCL++'s selection for one group of a node.

    Attributes:
        topology: The topology, with or without costs on.
        group: Ranks of the group.
    """

    topology: Topology
    group: tuple[int, ...]

    def choose(self, collective: str, size_bytes: float) -> LibraryChoice:
        """Return MSCCL++'s choice, by the size of the message and the devices, with its time.

        Args:
            collective: allreduce or allgather.
            size_bytes: Bytes of the whole message; for allgather the bytes that a rank ends with.

        Raises:
            NotModelled: MSCCL++ has no algorithm for the collective.
        """
        if collective == "allgather":
            return self.priced(ALL_GATHER, False, size_bytes)
        if collective != "allreduce":
            raise NotModelled(f"MSCCL++ has no algorithm of its own for {collective}")
        rules = _RULES
        if self.topology.compute_capability in _BLACKWELL:
            rules = _BLACKWELL_RULES
        elif self._switch is not None:
            rules = _NVLS_RULES
        _, algorithm, packets = next(rule for rule in rules if rule[0] is None or size_bytes <= rule[0])
        return self.priced(algorithm, packets, size_bytes)

    def _network(self, packets: bool) -> Network:
        """Return the network of the group, under LL for packets and under Simple otherwise.

        It is the topology's own network where costs are off or do not allow that protocol.
        """
        name = LL if packets else SIMPLE
        topology = with_protocol(self.topology, name) if name in protocols_of(self.topology) else self.topology
        return network(topology, self.group)

    @cached_property
    def _networks(self) -> dict[bool, Network]:
        """Return the networks by whether packets are sent; they are built once."""
        return {packets: self._network(packets) for packets in (False, True)}

    @cached_property
    def _switch(self) -> tuple[float, float] | None:
        """Return (α in µs, GB/s of a port) of a switch that multicasts and reduces among all ranks; None without one.

        α is the longest and the GB/s are the least of its multicasts and reductions at full rate.
        """
        links = self._networks[False].hyperlinks
        serves_one_group = links is not None and len(np.unique(links.group)) == 1 and links.multicast.any()
        if (
            links is None
            or not serves_one_group
            or links.multicast.all()
            or (links.ptr[1:] - links.ptr[:-1]).max() + 1 < self._n
        ):
            return None
        full = ~links.paced
        return float(links.alpha_us[full].max()), float(links.bandwidth_gbs[full].min())

    @property
    def _n(self) -> int:
        """Return the number of ranks."""
        return len(self.group)

    def priced(self, algorithm: str, packets: bool, size_bytes: float) -> LibraryChoice:
        """Return the choice with its time: steps at the longest α, and the bytes over the busiest resource.

        An algorithm has one step, or two if it reduces and then gathers. The time includes the start of a call. The
        number of channels is 0, not known.

        Args:
            algorithm: A name of the module.
            packets: True if packets are sent, else plain data.
            size_bytes: Bytes of the whole message; for allgather the bytes that a rank ends with.
        """
        net, n = self._networks[packets], self._n
        capacity = net.capacity_gbs * 1000  # bytes/µs
        pair = net.src * net.nranks + net.dst
        share = 1.0 / np.bincount(pair)[pair]  # Parallel links share the bytes.
        busy = np.bincount(net.uses_idx, weights=share[net.link_of_use], minlength=net.nresources) / capacity
        pair_us = float(busy.max())  # µs for a byte from each rank to every other
        alpha, steps, per_byte = float(net.alpha_us.max()), 1, pair_us
        if algorithm == TWO_SHOT:
            steps, per_byte = 2, 2 * pair_us / n
        elif algorithm == ALL_GATHER:
            per_byte = pair_us / n
        elif algorithm == NVLS_PACKETS:
            per_byte = pair_us * n / (n - 1)  # A multicast also comes back to its sender.
        elif algorithm == NVLS and self._switch is not None:
            alpha, port_gbs = self._switch
            steps, per_byte = 2, (1 + 1 / n) / (1000 * port_gbs)  # Bytes go up to be reduced, and down to all ranks.
        latency = net.start_us + steps * alpha
        protocol = _PACKETS if packets else SIMPLE
        return LibraryChoice(algorithm, protocol, 0, latency + size_bytes * per_byte, latency, 1 / (1000 * per_byte))


def mscclpp_model(topology: Topology, group: Sequence[int]) -> MscclppModel:
    """Return MSCCL++'s selection for a group of ranks of a topology.

    Raises:
        NotModelled: The devices are not known to be GPUs, are on more than one node, are fewer than 2 or more than
            `MOST_RANKS` (8), do not reach each other directly, or have switches that could reduce and here only
            forward.
    """
    if not (topology.gcn or topology.compute_capability):
        raise NotModelled(
            f"{topology.name} states neither compute_capability nor gcn; MSCCL++'s selection depends on them"
        )
    if len(group) < 2:
        raise NotModelled("MSCCL++ moves nothing for one rank")
    if len(nodes_of(topology, group)[1]) > 1:
        raise NotModelled("MSCCL++ leaves groups of several nodes to NCCL or RCCL")
    if len(group) > MOST_RANKS:
        raise NotModelled(f"MSCCL++ has kernels for {MOST_RANKS} ranks of a node at most")
    model = MscclppModel(topology, tuple(group))
    net = model._networks[False]
    if len(np.unique(net.src * net.nranks + net.dst)) < len(group) * (len(group) - 1):
        raise NotModelled("MSCCL++ sends directly to every other device, and not all devices are linked")
    if topology.compute_capability >= CAPABILITY_HOPPER and model._switch is None and _on_nvswitches(topology):
        raise NotModelled(
            "MSCCL++ has NVSwitches multicast and reduce from Hopper on, which they do not in this answer's network"
        )
    return model


def _on_nvswitches(topology: Topology) -> bool:
    """Return True if some NVLink leads to a switch."""
    nvlink = topology.link_kind == LINK_KINDS.index("nvlink")
    return bool((topology.link_dst[nvlink] >= topology.nranks).any())
