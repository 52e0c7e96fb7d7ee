"""NCCL's choice for a collective by its own cost model, and the time of that choice.

Source: NCCL's src/graph/tuning.cc, src/enqueue.cc and src/graph/connect.cc; the figures are in `figures`. Left out:
CollNet and NVLS with SHARP between nodes, which are off unless a plug-in and NCCL_COLLNET_ENABLE turn them on;
environment variables; tuner plug-ins but those of `platforms`; registered buffers; calls that are aggregated.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from synth.baselines.nccl import figures as f
from synth.baselines.nccl.channels import ChannelGraph, find_channels, joint, ring_threads
from synth.baselines.nccl.communicator import Communicator, communicator
from synth.baselines.nccl.platforms import net_latency_us, tuned
from topologies.errors import NotModelled
from topologies.topology import Topology

COLLECTIVES = {
    "allreduce": (f.RING, f.TREE, f.NVLS, f.NVLS_TREE),
    "allgather": (f.RING, f.NVLS, f.PAT),
    "reducescatter": (f.RING, f.NVLS, f.PAT),
    "broadcast": (f.RING,),
    "reduce": (f.RING,),
}
NO_RING = "the stated NVLinks and PCIe links have no ring through the GPUs of each node"
_LOG2_LEAST = 6  # log2 of the bytes of the first column of TREE_CORRECTION
_PLATEAU_BYTES = 64  # bytes a channel and rank from which a ring between nodes takes longer to fill


@dataclass(frozen=True)
class LibraryChoice:
    """An algorithm and protocol of a library for one message.

    Attributes:
        algorithm: Name of the library's algorithm.
        protocol: LL, LL128 or Simple; `packets` in MSCCL++.
        channels: Number of channels of a call of this size; 0: not known.
        time_us: Time in µs: latency_us + bytes / (1000 · algbw_gbs).
        latency_us: Time in µs of a message without bytes.
        algbw_gbs: Bytes of the message by time beyond the latency, in GB/s.
        low_us: End in µs of the interval that holds four of five measured times; 0 where it is not known.
        high_us: The other end; 0 where it is not known.
        source_us: Time in µs by the library's own cost model, where `time_us` is fitted to measurements; else 0.
    """

    algorithm: str
    protocol: str
    channels: int
    time_us: float
    latency_us: float
    algbw_gbs: float
    low_us: float = 0.0
    high_us: float = 0.0
    source_us: float = 0.0

    def __str__(self) -> str:
        channels = f", {self.channels} channel{'' if self.channels == 1 else 's'}" if self.channels else ""
        return f"{self.algorithm} {self.protocol}{channels}"


class LibraryCostModel(ABC):
    """A library's own cost model, which compares every algorithm and protocol.

    Attributes:
        library: Name of the library.
        collectives: Algorithms of each collective.
    """

    library: ClassVar[str]
    collectives: ClassVar[dict[str, tuple[str, ...]]]

    def candidates(self, collective: str, size_bytes: float) -> list[LibraryChoice]:
        """Return all choices that the library would compare, by algorithm, then protocol; there may be none.

        Args:
            collective: A name of `collectives`.
            size_bytes: Bytes of the whole message; for allgather the bytes that a rank ends with.

        Raises:
            NotModelled: The cost model has no such collective.
        """
        if collective not in self.collectives:
            why = "all-to-all is grouped send and receive calls, " if collective.startswith("alltoall") else ""
            raise NotModelled(f"{self.library} has no cost model for {collective}: {why}it is never a choice")
        return [
            choice
            for algorithm in self.collectives[collective]
            for protocol in f.PROTOCOLS
            for choice in self._choice(collective, algorithm, protocol, size_bytes)
        ]

    @abstractmethod
    def _choice(self, collective: str, algorithm: str, protocol: str, size_bytes: float) -> Iterator[LibraryChoice]:
        """Yield the choice of one algorithm and protocol with its time, or nothing if the library cannot use it.

        Args:
            collective: A name of `collectives`.
            algorithm: An algorithm of it.
            protocol: LL, LL128 or Simple.
            size_bytes: Bytes of the whole message; for allgather the bytes that a rank ends with.
        """


@dataclass(frozen=True)
class NcclModel(LibraryCostModel):
    """NCCL's cost model for one communicator.

    Attributes:
        communicator: The group of ranks as NCCL sees it.
    """

    communicator: Communicator
    library, collectives = "NCCL", COLLECTIVES

    def choose(self, collective: str, size_bytes: float, switch_sums: bool = True) -> LibraryChoice:
        """Return NCCL's choice: that of a cloud's tuner if there is one, else the fastest, the first of equals.

        A tuner's choice that NCCL cannot use is passed over.

        Args:
            collective: A name of COLLECTIVES.
            size_bytes: Bytes of the whole message; for allgather the bytes that a rank ends with.
            switch_sums: Whether switches can add the type of the elements; they cannot add integers of 8 bits. If not,
                NVLS and NVLSTree are no choice for sums.

        Raises:
            NotModelled: The cost model has no such collective, or finds nothing for it.
        """
        candidates = self.candidates(collective, size_bytes)
        if collective in ("allreduce", "reducescatter") and not switch_sums:
            candidates = [choice for choice in candidates if choice.algorithm not in (f.NVLS, f.NVLS_TREE)]
        if not candidates:
            raise NotModelled(NO_RING)
        comm = self.communicator
        choice_of = {(choice.algorithm, choice.protocol): choice for choice in candidates}
        by_tuner = tuned(comm.platform, comm.nranks, comm.nnodes, collective, size_bytes)
        return next(
            (choice_of[choice] for choice in by_tuner if choice in choice_of),
            min(candidates, key=lambda choice: choice.time_us),
        )

    @cached_property
    def graphs(self) -> dict[str, ChannelGraph]:
        """Return the channels by algorithm, as all nodes have them; empty where the nodes have no ring.

        NVLSTree has those of NVLS, and PAT those of trees. An algorithm without channels has a graph of 0.
        """
        comm = self.communicator
        multi_node = comm.nnodes > 1
        ring = joint([find_channels(node, f.RING, comm.capability, multi_node) for node in comm.kinds])
        if not ring.channels:
            return {}
        tree = joint([find_channels(node, f.TREE, comm.capability, multi_node, ring.channels) for node in comm.kinds])
        nvls = joint([find_channels(node, f.NVLS, comm.capability, multi_node) for node in comm.kinds])
        return {f.RING: ring, f.TREE: tree, f.NVLS: nvls, f.NVLS_TREE: nvls, f.PAT: tree}

    @cached_property
    def channels(self) -> int:
        """Return the number of channels of rings and trees as they run; there must be a ring.

        It is twice what the search has for both, 64 at most. From Hopper on it is twice that again between nodes, if it
        is below 16 and a ring's channel has more than 45 GB/s in the node.
        """
        comm, ring = self.communicator, self.graphs[f.RING]
        twice = min(f.MOST_CHANNELS, 2 * self._searched_channels)
        fast = comm.capability >= f.CAPABILITY_HOPPER and comm.nnodes > 1 and ring.intra_gbs > 45.0
        return 2 * twice if fast and twice < 16 else twice

    @cached_property
    def _searched_channels(self) -> int:
        """Return the number of channels that rings and trees both have by the search; that of rings without trees."""
        ring, tree = self.graphs[f.RING].channels, self.graphs[f.TREE].channels
        return min(ring, tree or ring)

    @cached_property
    def nvls_channels(self) -> int:
        """Return the number of channels of NVLS: 16 before Blackwell, then 32 between nodes and 24 in one."""
        if self.communicator.capability < f.CAPABILITY_BLACKWELL:
            return f.NVLS_CHANNELS_HOPPER
        return f.NVLS_CHANNELS_BLACKWELL if self.communicator.nnodes > 1 else f.NVLS_CHANNELS_BLACKWELL_NODE

    def _choice(self, collective: str, algorithm: str, protocol: str, size_bytes: float) -> Iterator[LibraryChoice]:
        """Yield the choice of one algorithm and protocol; nothing if NCCL does not run it here or it has no bandwidth.

        The bandwidth of trees, and from Blackwell on of NVLSTree, is corrected by the size. The latency of an allreduce
        over rings between nodes under Simple is 1.4 times as long (1.9 before capability 80) from 64 bytes a channel
        and rank on.
        """
        if not self._allowed(collective, algorithm, protocol):
            return
        algbw = self._algbw_gbs(collective, algorithm, protocol)
        latency = self.latency_us(collective, algorithm, protocol)
        if algbw <= 0:
            return
        comm, column = self.communicator, int(math.log2(max(1.0, size_bytes))) - _LOG2_LEAST
        corrected = f.TREE_CORRECTION[protocol]
        if algorithm == f.TREE and 0 <= column < len(corrected) - 1:
            algbw *= corrected[column]
        if algorithm == f.NVLS_TREE and comm.capability >= f.CAPABILITY_BLACKWELL and 0 <= column < len(corrected):
            algbw *= corrected[column]
        ring = algorithm == f.RING and protocol == f.SIMPLE and collective == "allreduce" and comm.nnodes > 1
        if ring and size_bytes // (self.channels * comm.nranks) >= _PLATEAU_BYTES:
            latency *= 1.9 if comm.capability < 80 else 1.4
        channels = self._running(algorithm, protocol, size_bytes)
        yield LibraryChoice(algorithm, protocol, channels, latency + size_bytes / (1000 * algbw), latency, algbw)

    def _allowed(self, collective: str, algorithm: str, protocol: str) -> bool:
        """Return True if NCCL runs the algorithm with this protocol here.

        It must have channels. NVLS runs in one node, NVLSTree and PAT between nodes (PAT with one GPU a node), all
        three under Simple. NVLS and NVLSTree need two channels, and NVLS at most 32 GPUs but for allreduce. Rings and
        trees run under LL128 only where stores arrive whole (`_whole_stores`).
        """
        comm, graph = self.communicator, self.graphs.get(algorithm, ChannelGraph())
        if not graph.channels:
            return False
        if algorithm == f.NVLS_TREE:
            return protocol == f.SIMPLE and comm.nnodes > 1 and graph.channels > 1
        if algorithm == f.NVLS:
            few = collective == "allreduce" or max(comm.sizes) <= f.MOST_HEADS
            return protocol == f.SIMPLE and comm.nnodes == 1 and graph.channels > 1 and few
        if algorithm == f.PAT:
            return protocol == f.SIMPLE and comm.nnodes == comm.nranks
        return protocol != f.LL128 or self._whole_stores(graph)

    def _whole_stores(self, graph: ChannelGraph) -> bool:
        """Return True if stores of 128 bytes arrive whole, as LL128 needs.

        That is so from capability 70 on over NVLink, or with one GPU a node. Between nodes, before Hopper, there must
        be a NIC for at most two GPUs.

        Args:
            graph: The channels of the algorithm.
        """
        comm = self.communicator
        if comm.capability < 70 or not (graph.nvlink or max(comm.sizes) == 1):
            return False
        if comm.nnodes == 1 or comm.capability >= f.CAPABILITY_HOPPER:
            return True
        return all(2 * len(node.nics) >= node.gpus for node in comm.kinds)

    def _algbw_gbs(self, collective: str, algorithm: str, protocol: str) -> float:
        """Return the bytes of the message by time, in GB/s, once the pipeline is full; 0 or less if it cannot run.

        The channels' GB/s in sum are multiplied by the protocol's efficiency and limited by its figures, and then
        divided by the bytes that a rank sends for each byte of the message.
        """
        comm, graph = self.communicator, self.graphs[algorithm]
        n, column = comm.nranks, min(comm.nnodes, 3) - 1
        gen = f.generation(comm.capability)
        nchannels = graph.channels if algorithm in (f.NVLS, f.NVLS_TREE) else self._searched_channels
        if algorithm in (f.NVLS, f.NVLS_TREE):
            bus = nchannels * self._nvls_gbs(collective, algorithm, graph, gen)
        else:
            bus = nchannels * (graph.intra_gbs if comm.nnodes <= 2 else graph.inter_gbs)
        ll_gbs = gen.ll_gbs[0] if comm.nnodes == 1 else f.LL_BETWEEN_NODES_GBS[comm.cpu][column]
        if algorithm == f.RING and protocol == f.LL:
            bus = min(ll_gbs, bus * 0.5)
        elif algorithm == f.RING and protocol == f.LL128:
            bus = min(bus * 0.92, nchannels * gen.ring_ll128_gbs)
        elif algorithm == f.TREE:
            bus = min(bus * 0.92, nchannels * gen.tree_gbs[column])
            if protocol == f.LL:
                bus = min(bus / 3.8, ll_gbs)
            elif protocol == f.LL128:
                bus = min(bus * (7 / 9 if comm.nnodes == 1 else 120 / 128), nchannels * gen.tree_ll128_gbs[column])
            bus *= 0.85 if graph.one_exit else 1.0
        elif algorithm == f.PAT:
            bus *= 0.75
        if collective in ("allgather", "reducescatter") and algorithm != f.RING:
            return bus
        if algorithm in (f.RING, f.NVLS, f.NVLS_TREE):
            return bus * n / steps_of(collective, n)
        return bus * 0.5

    def _nvls_gbs(self, collective: str, algorithm: str, graph: ChannelGraph, gen: f.Generation) -> float:
        """Return the GB/s of one channel of NVLS or NVLSTree.

        It is the least of what the switch and the network carry, and for NVLSTree of its measured rate.

        Args:
            collective: A name of COLLECTIVES.
            algorithm: NVLS or NVLSTree.
            graph: Its channels, at least one.
            gen: The figures of the GPUs.
        """
        comm = self.communicator
        ppn = comm.nranks / comm.nnodes
        intra = graph.intra_gbs * gen.nvls * (graph.channels - 1) / graph.channels
        intra *= 2 if collective == "allreduce" else (ppn - 1) / ppn
        if algorithm == f.NVLS:
            return min(intra, graph.inter_gbs)
        inter = graph.inter_gbs * (2 if comm.nnodes <= 2 else 1)
        return min(intra, inter, gen.nvls_tree_gbs[min(comm.nnodes, 3) - 1])

    def latency_us(self, collective: str, algorithm: str, protocol: str, times: f.Latencies = f.SOURCE) -> float:
        """Return the time in µs of a message without bytes, by the latencies of the source or by others.

        Args:
            collective: A name of COLLECTIVES.
            algorithm: An algorithm of it, which must have channels.
            protocol: LL, LL128 or Simple.
            times: Times of a call and of a step by algorithm and protocol.
        """
        comm, graph, p = self.communicator, self.graphs[algorithm], f.PROTOCOLS.index(protocol)
        n, nodes, steps = comm.nranks, comm.nnodes, steps_of(collective, comm.nranks)
        ppn = n / nodes
        inside = "nvlink" if graph.nvlink and max(comm.sizes) > 1 else "pcie"
        base, intra = times.base_us[algorithm][p], times.step_us[inside][algorithm][p]
        flush = 2 if protocol == f.SIMPLE else 1  # One more message flushes what a NIC wrote.
        net_us = times.step_us["network"]
        inter = net_us[f.TREE if ppn == 1 else algorithm][p] + flush * times.stated * net_latency_us(comm.platform)
        if algorithm == f.RING:
            where = inside if nodes == 1 else "network"
            if collective in ("broadcast", "reduce"):
                if graph.same:
                    return base + times.step_us[where][f.RING][p]
                return base + steps * times.step_us[where][f.TREE if protocol == f.SIMPLE else f.RING][p]
            post = 0.0 if nodes == 1 else f.NET_POST_US[comm.cpu] * (3 if protocol == f.SIMPLE else 1)
            crossing = (nodes - 1) * (2 if collective == "allreduce" else 1) if nodes > 1 else 0
            return base + (steps - crossing) * max(intra, post) + crossing * inter
        if algorithm == f.TREE:
            return base + 2 * ((n // nodes - 1) * intra + int(math.log2(nodes)) * inter)
        if algorithm == f.NVLS:
            return intra
        if algorithm == f.NVLS_TREE:
            return base + intra + 2 * int(math.log2(nodes)) * inter
        return base + int(math.log2(nodes)) * inter / 3.5 + n * 2.8

    def _running(self, algorithm: str, protocol: str, size_bytes: float) -> int:
        """Return the number of channels of a call; fewer, down to 1, if a thread would have too little to do.

        NVLS and NVLSTree always run all of theirs.
        """
        if algorithm in (f.NVLS, f.NVLS_TREE):
            return self.nvls_channels
        threads = f.THREADS[protocol]
        if algorithm == f.RING and protocol == f.SIMPLE:
            threads = ring_threads(self.graphs[f.RING], threads)
        channel_bytes = threads * f.THREAD_BYTES[protocol]
        if algorithm == f.RING and protocol == f.LL:
            channel_bytes *= self.communicator.nranks
        return max(1, min(self.channels, int(size_bytes // channel_bytes)))


def steps_of(collective: str, nranks: int) -> int:
    """Return the number of steps of a collective over a ring of `nranks`.

    It is 2 (nranks - 1) for allreduce, nranks - 1 for allgather and reducescatter, and nranks for all others.
    """
    return {"allreduce": 2 * (nranks - 1), "allgather": nranks - 1, "reducescatter": nranks - 1}.get(collective, nranks)


def nccl_model(topology: Topology, group: Sequence[int]) -> NcclModel:
    """Return NCCL's cost model for a group of ranks of a topology.

    Args:
        topology: The topology.
        group: Ranks of the topology.

    Raises:
        NotModelled: The topology does not state what the model needs, NCCL does not run on these devices, or the group
            is one that `communicator` refuses. That the nodes have no ring is only raised by `choose`.
    """
    return NcclModel(communicator(topology, group))
