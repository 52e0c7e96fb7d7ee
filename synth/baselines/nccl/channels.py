"""The number of channels that NCCL would find in a node, and the bandwidth of each: rings, trees, and NVLS.

NCCL tries a fixed row of bandwidths from the fastest down, at each as many channels as the links carry, keeps the
channels that move most, and then tries to raise the bandwidth at that number (src/graph/search.cc). Simplified: the
search for rings in a node without switches has a bounded number of steps, in an order of our own; the path of a GPU to
its NIC over PCIe is assumed to be as near as on NVIDIA's own boards (see `_Search.exit_over_nvlink`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from synth.baselines.nccl.communicator import NcclNic, NcclNode
from synth.baselines.nccl.figures import (
    CAPABILITY_HOPPER,
    MOST_HEADS,
    MOST_SEARCHED,
    NVLS,
    PCIE_GBS,
    RING,
    TREE,
    generation,
)

_STEPS = 4_000  # most GPUs that a search for channels of one bandwidth looks at
_SLACK = 1e-6  # GB/s, for rounding
_WORSE = 0.49  # of a bandwidth, down to which fewer, faster channels are compared with more, slower ones
_DUPLICATE_GBS, _FASTER_GBS, _MANY = 25.0, 50.0, 4  # GB/s and channels that decide if a channel becomes two


@dataclass(frozen=True)
class ChannelGraph:
    """The channels that a search found.

    Attributes:
        channels: Number of channels; 0: none.
        intra_gbs: GB/s of each channel in the node.
        inter_gbs: GB/s of each channel over the network.
        nvlink: True if the channels stay on NVLink in the node.
        same: True if all channels use the same links.
        one_exit: True for a tree whose traffic with other nodes goes through one GPU of each channel.
    """

    channels: int = 0
    intra_gbs: float = 0.0
    inter_gbs: float = 0.0
    nvlink: bool = True
    same: bool = True
    one_exit: bool = False


def find_channels(node: NcclNode, pattern: str, capability: int, multi_node: bool, channels: int = 0) -> ChannelGraph:
    """Return the channels of one pattern (ring, tree, NVLS) in a node; a graph of 0 channels where there are none.

    They are the ones that move most GB/s in sum, at one of the bandwidths that NCCL tries.

    Args:
        node: The node.
        pattern: RING, TREE or NVLS.
        capability: Compute capability of the GPUs (90: Hopper).
        multi_node: True if the communicator has more than one node.
        channels: Number of channels of the ring, which a tree must have too; 0: any number. For NVLS it is ignored.
    """
    return _ChannelSearch(node, pattern, capability, multi_node, channels).run()


def joint(graphs: list[ChannelGraph]) -> ChannelGraph:
    """Return what all nodes can do: the least of each number, and NVLink and equal links only if all nodes have them.

    A tree has one exit if it has one in some node.

    Args:
        graphs: The channels of each node, at least one.
    """
    return ChannelGraph(
        min(g.channels for g in graphs),
        min(g.intra_gbs for g in graphs),
        min(g.inter_gbs for g in graphs),
        all(g.nvlink for g in graphs),
        all(g.same for g in graphs),
        any(g.one_exit for g in graphs),
    )


class _ChannelSearch:
    """The search for the channels of one pattern in a node.

    Attributes:
        node: The node.
        pattern: RING, TREE or NVLS.
        multi_node: True if the communicator has several nodes.
        capability: Compute capability of the GPUs.
        most: Most channels.
        least: Fewest channels.
        speeds: GB/s that are tried for a channel, descending.
    """

    def __init__(self, node: NcclNode, pattern: str, capability: int, multi_node: bool, channels: int) -> None:
        self.node, self.pattern, self.multi_node = node, pattern, multi_node
        self.capability = capability
        self.most = channels or MOST_SEARCHED
        self.least = channels or 1
        if pattern == NVLS:
            self.most = min(MOST_HEADS, node.gpus)
            self.least = 1 if multi_node else self.most
        gen = generation(capability)
        self.speeds = gen.inter_gbs if multi_node else gen.intra_gbs

    @cached_property
    def total_gbs(self) -> float:
        """Return the most GB/s that leave a GPU over NVLink, or those of the slowest PCIe link if that is more.

        It is inf where neither is stated.
        """
        return max(self.node.nvlink_gbs, min(self.node.pcie_gbs, default=0.0)) or float("inf")

    def run(self) -> ChannelGraph:
        """Return the channels; see `find_channels`."""
        node = self.node
        if self.pattern == NVLS and (not node.switched_gbs or self.capability < CAPABILITY_HOPPER or node.gpus < 2):
            return ChannelGraph()
        best = self._widest()
        if not best.channels:
            return best
        if self.pattern != NVLS:
            best = self._duplicated(best)
        return self._raised(best)

    def _first(self) -> int:
        """Return the index in `speeds` at which the search begins; that of the least bandwidth if none fits.

        It is the first bandwidth that is not above the fastest NIC (between nodes) or link (in a node), and of which
        the fewest channels need no more than leaves a GPU. For trees and NVLS on n GPUs n / (n - 1) of that may be
        needed.
        """
        if self.multi_node:
            top = max((nic.gbs for nic in self.node.nics), default=0.0)
        else:
            top = max([self.node.switched_gbs, *(gbs for _, _, gbs in self.node.pairs), *self.node.pcie_gbs])
        total = self.total_gbs
        if self.node.gpus > 1 and self.pattern != RING:
            total *= self.node.gpus / (self.node.gpus - 1)
        fits = (i for i, gbs in enumerate(self.speeds) if gbs <= top and gbs * self.least <= total)
        return next(fits, len(self.speeds) - 1)

    def _widest(self) -> ChannelGraph:
        """Return the channels that move most in sum; a graph of 0 channels if none fit.

        Bandwidths are tried downward from `_first`, until they are below about half of the best so far, or the best has
        the most channels or uses all that leaves a GPU. PCIe is tried only where NVLink has no channel, and channels
        that may use different links only after those that must use the same.
        """
        best, begin = ChannelGraph(), self._first()
        for gbs in self.speeds[begin:]:
            if best.channels and gbs <= _WORSE * best.inter_gbs:
                break
            for nvlink in (True, False):
                for same in self._same_options:
                    count = self._count(gbs, gbs, nvlink, same)
                    if count >= self.least and self._better(count, gbs, best):
                        best = ChannelGraph(count, gbs, gbs, nvlink, same, self.one_exit)
                    if best.channels and (
                        best.channels == self.most or best.channels * best.inter_gbs >= self.total_gbs
                    ):
                        return best
                if best.channels and best.nvlink:
                    break  # PCIe is used only where NVLink has no channel.
        return best

    @property
    def _same_options(self) -> tuple[bool, ...]:
        """Return the values of "channels must use the same links" to try, in order.

        These are True, then False; only False for NVLS, or where the node has more than one NIC.
        """
        return (False,) if self.pattern == NVLS or len(self.node.nics) > 1 else (True, False)

    def _better(self, count: int, gbs: float, best: ChannelGraph) -> bool:
        """Return True if `count` channels of `gbs` move more in sum than the best so far.

        Channels of NVLS are also better if they are more, up to one for each GPU.
        """
        if self.pattern == NVLS and best.channels < count <= self.node.gpus:
            return True
        return count * gbs > best.channels * best.inter_gbs

    def _duplicated(self, graph: ChannelGraph) -> ChannelGraph:
        """Return the graph with twice the channels of half the bandwidth, where one threadblock could not fill one.

        At most `most` channels result, which also have half the bandwidth; a graph with so many already stays. So does
        one below 25 GB/s a channel, and on GPUs above capability 80 one below 50 GB/s with more than 4 channels.
        """
        gbs, count = graph.intra_gbs, graph.channels
        if gbs < _DUPLICATE_GBS or (self.capability > 80 and gbs < _FASTER_GBS and count > _MANY):
            return graph
        twice = min(2 * count, self.most)
        parts = -(-twice // count)
        return replace(graph, channels=twice, intra_gbs=gbs / parts, inter_gbs=graph.inter_gbs / parts)

    def _raised(self, graph: ChannelGraph) -> ChannelGraph:
        """Return at least as many channels at the highest bandwidth above the present one at which they fit.

        It is raised for a ring in all, where that moves more in sum; for a tree only in the node, and for NVLS only
        over the network, up to about twice the other. Only a ring may get more channels.
        """
        faster = [s for s in reversed(self.speeds) if s > graph.inter_gbs]
        for gbs in faster:
            if self.pattern == RING:
                count = self._count(gbs, gbs, graph.nvlink, graph.same)
                if count >= graph.channels and count * gbs > graph.channels * graph.intra_gbs:
                    graph = replace(graph, channels=count, intra_gbs=gbs, inter_gbs=gbs)
                continue
            raised = (graph.inter_gbs, graph.intra_gbs) if self.pattern == NVLS else (graph.intra_gbs, graph.inter_gbs)
            intra, inter = (graph.intra_gbs, gbs) if self.pattern == NVLS else (gbs, graph.inter_gbs)
            if raised[0] >= 2 * raised[1] or self._count(intra, inter, graph.nvlink, graph.same) < graph.channels:
                break
            graph = replace(graph, intra_gbs=intra, inter_gbs=inter)
        return graph

    @property
    def one_exit(self) -> bool:
        """Return True if a tree leaves the node through one GPU of each channel.

        That is so between nodes with one GPU each, or from Hopper on where no NIC is attached to more than one GPU.
        """
        own_nics = all(len(nic.gpus) <= 1 for nic in self.node.nics)
        return (
            self.multi_node
            and self.pattern == TREE
            and (self.node.gpus == 1 or (self.capability >= CAPABILITY_HOPPER and own_nics))
        )

    @property
    def exit_over_nvlink(self) -> bool:
        """Return True if a ring's last GPU reaches the NIC over another GPU.

        That is assumed from Hopper on where no NIC is attached to more than one GPU: each GPU then shares its PCIe
        switch with one NIC; before, two GPUs shared one with two.
        """
        return self.capability >= CAPABILITY_HOPPER and all(len(nic.gpus) <= 1 for nic in self.node.nics)

    def _count(self, intra: float, inter: float, nvlink: bool, same: bool) -> int:
        """Return the number of channels of these bandwidths that fit, at most `self.most`; 0 if none.

        Args:
            intra: GB/s of each channel in the node.
            inter: GB/s of each channel over the network; it counts only between nodes.
            nvlink: True if only NVLink may be used.
            same: True if all channels must use the same links.
        """
        network_channels = min(self.most, self._over_network(inter)) if self.multi_node else self.most
        n, switched = self.node.gpus, self.node.switched_gbs
        if n == 1:
            return network_channels
        if self.pattern == NVLS:
            heads = {nic.gpus[0] for nic in self.node.nics if nic.gpus} if self.multi_node else range(n)
            return min(network_channels, len(heads), int(switched / intra + _SLACK) - 1)
        if nvlink and switched:
            passing = n - 1 if self._open and not same else n  # GPUs of a channel that send on
            return min(network_channels, int(switched * n / passing / intra + _SLACK))
        if nvlink and not self.node.pairs:
            return 0
        return _NodePaths(self.node, nvlink, self._open).most(intra, network_channels, same, self.node.nics)

    @property
    def _open(self) -> bool:
        """Return True if the last GPU of a channel sends nothing to the first.

        That is so for trees and NVLS, and for rings between nodes unless their exit is over NVLink.
        """
        return self.pattern != RING or (self.multi_node and not self.exit_over_nvlink)

    def _over_network(self, gbs: float) -> int:
        """Return the number of channels of `gbs` that the NICs carry, each NIC a whole number."""
        return sum(int(nic.gbs / gbs + _SLACK) for nic in self.node.nics)


class _NodePaths:
    """Paths through all GPUs of a node without switches, each of which takes its bandwidth from the links.

    Attributes:
        node: The node.
        open: True if the last GPU of a path sends nothing to the first.
        gbs: GB/s of every link or limit.
        uses: Indices of the links and limits between two GPUs.
        steps: Remaining steps of the search.
    """

    def __init__(self, node: NcclNode, nvlink: bool, open_: bool) -> None:
        self.node, self.open = node, open_
        self.gbs: list[float] = []
        self.uses: dict[tuple[int, int], tuple[int, ...]] = {}
        if not nvlink:
            self.gbs += node.pcie_gbs
            self.uses |= {(a, b): tuple(uses) for a, b, *uses in node.pcie}
        for a, b, gbs in node.pairs:
            self.uses[a, b] = (len(self.gbs),)
            self.gbs.append(gbs)
        self.steps = _STEPS

    def most(self, gbs: float, most: int, same: bool, nics: tuple[NcclNic, ...]) -> int:
        """Return the number of channels of `gbs` that fit, at most `most`.

        Channels take one path as often as it fits. Then the next path that fits is searched for, or with `same` the
        count ends. Paths begin at GPUs that `nics` are attached to, or anywhere if there are none. The search ends
        after a bounded number of steps, so a channel may be missed.

        Args:
            gbs: GB/s of each channel.
            most: Most channels.
            same: True if all channels must take the same path.
            nics: NICs of the node.
        """
        free_gbs = list(self.gbs)
        starts = sorted({gpu for nic in nics for gpu in nic.gpus}) or list(range(self.node.gpus))
        count, self.steps = 0, _STEPS
        path: list[int] | None = None
        while count < most:
            if path is None or not self._take(path, free_gbs, gbs):
                if same and path is not None:
                    break
                path = next(
                    (
                        candidate
                        for candidate in self._free(starts, free_gbs, gbs)
                        if self._take(candidate, free_gbs, gbs)
                    ),
                    None,
                )
                if path is None:
                    break
            count += 1
        return count

    def _take(self, path: list[int], free_gbs: list[float], gbs: float) -> bool:
        """Take `gbs` for one more channel from the links along a path; return whether enough was free.

        If too little is free, nothing is taken. Unless `open`, the link from the path's last to its first GPU counts
        too.

        Args:
            path: The GPUs in order.
            free_gbs: Free GB/s of every link or limit; it is changed.
            gbs: GB/s of the channel.
        """
        ends = [*path[1:]] if self.open else [*path[1:], path[0]]
        links = [use for a, b in zip(path, ends, strict=False) for use in self.uses[a, b]]
        if any(free_gbs[use] + _SLACK < gbs * links.count(use) for use in set(links)):
            return False
        for use in links:
            free_gbs[use] -= gbs
        return True

    def _free(self, starts: list[int], free_gbs: list[float], gbs: float) -> Iterator[list[int]]:
        """Yield paths through all GPUs whose links have `gbs` free, the widest links first.

        A path is the GPUs in order; unless `open`, the link from its last to its first GPU must be free too. Each
        extension of a path takes one of the `steps`; no path follows when they are spent.

        Args:
            starts: GPUs at which paths may begin, in the order to try.
            free_gbs: Free GB/s of every link or limit.
            gbs: GB/s that must be free.
        """

        def wide(a: int, b: int) -> float:
            """Return the free GB/s from GPU a to GPU b, the least of what lies between them; 0 without a path."""
            uses = self.uses.get((a, b))
            return min((free_gbs[use] for use in uses), default=0.0) if uses else 0.0

        def onward(path: list[int]) -> Iterator[list[int]]:
            """Yield the completions of a path, over the widest links first; each call takes one of the steps."""
            self.steps -= 1
            if self.steps < 0:
                return
            if len(path) == self.node.gpus:
                if self.open or wide(path[-1], path[0]) + _SLACK >= gbs:
                    yield path
                return
            after = [(-wide(path[-1], b), b) for b in range(self.node.gpus) if b not in path]
            for width, b in sorted(after):
                if -width + _SLACK >= gbs:
                    yield from onward([*path, b])

        for start in starts:
            yield from onward([start])


def ring_threads(graph: ChannelGraph, threads: int) -> int:
    """Return the threads of a block of a ring under Simple: `threads`, or half of them for slow channels.

    Channels are slow if their GB/s in the node add up to 12 at most, those of PCIe.
    """
    return threads // 2 if graph.channels * graph.intra_gbs <= PCIE_GBS else threads
