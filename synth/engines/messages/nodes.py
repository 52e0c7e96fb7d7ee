"""The nodes of a network with costs, the links between them, and paths and trees inside them.

Ranks that links without a gap join are a node: inside it a message costs no more than its bytes. Every message between
nodes costs a gap, so that few of them should carry the data of all ranks of a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from synth.model.collective import Ints
from topologies.arrays import components
from topologies.network import Network


class Hop(NamedTuple):
    """A send inside a node.

    Attributes:
        link: The link.
        depth: Number of sends before it on the way from the first rank.
        turn: Place of the send among those that its source sends, so that sources do not all send to one rank at once.
    """

    link: int
    depth: int
    turn: int


class LinksBetween(NamedTuple):
    """The links from one node to another.

    Attributes:
        link: The links, ascending in their ranks, int64, shape (links,).
        source: Rank from which each goes, shape (links,).
        goal: Rank to which each goes, plus the number of ranks, shape (links,).
        uses: Resources of each, shape (links, most resources of a link); the number of resources where it has fewer.
    """

    link: Ints
    source: Ints
    goal: Ints
    uses: Ints


@dataclass(frozen=True)
class Nodes:
    """The nodes of a network.

    Attributes:
        net: The network.
        node_of: Node of each rank, int64, shape (ranks,).
        members: Ranks of each node, ascending.
    """

    net: Network
    node_of: Ints
    members: list[list[int]]

    def __len__(self) -> int:
        return len(self.members)

    @cached_property
    def between(self) -> dict[tuple[int, int], list[int]]:
        """Return by (node, other node) the links from the one to the other, in order of their ranks.

        Of the links between two ranks only the widest counts. Two nodes without a link have no entry.
        """
        net, links = self.net, dict[tuple[int, int], list[int]]()
        for link in _widest(net):
            ends = int(self.node_of[net.src[link]]), int(self.node_of[net.dst[link]])
            if ends[0] != ends[1]:
                links.setdefault(ends, []).append(link)
        return links

    @cached_property
    def doors(self) -> list[dict[tuple[int, int], int]]:
        """Return for each door of the nodes its links by (node, other node), from the door to the other node's door.

        Doors are ranks at the same places of all nodes that links join, such that no resource serves two doors.
        """
        place = {rank: number for members in self.members for number, rank in enumerate(members)}
        link_of: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
        for ends, links in self.between.items():
            for link in links:
                places = place[int(self.net.src[link])], place[int(self.net.dst[link])]
                link_of.setdefault(places, {})[ends] = link
        doors, used = list[dict[tuple[int, int], int]](), set[int]()
        for links_of_places in link_of.values():
            own = {resource for link in links_of_places.values() for resource in self.net.uses(link).tolist()}
            if len(links_of_places) == len(self.between) and own.isdisjoint(used):
                doors.append(links_of_places)
                used |= own
        return doors

    @cached_property
    def links_between(self) -> dict[tuple[int, int], LinksBetween]:
        """Return the links of `between` as columns, by (node, other node)."""
        net = self.net
        most = int(np.diff(net.uses_ptr).max())
        columns = {}
        for ends, links in self.between.items():
            uses = [[*net.uses(link).tolist(), *[net.nresources] * most][:most] for link in links]
            link = np.array(links, dtype=np.int64)
            columns[ends] = LinksBetween(link, net.src[link], net.nranks + net.dst[link], np.array(uses))
        return columns

    @cached_property
    def paths(self) -> list[dict[int, list[int]]]:
        """Return for each rank the links of a path of fewest links to every rank of its node, none to itself.

        Only links without a gap count; wide links come first among equally short paths.
        """
        net = self.net
        inner: list[list[tuple[float, int, int]]] = [[] for _ in range(net.nranks)]
        for link in _widest(net):
            if self.node_of[net.src[link]] == self.node_of[net.dst[link]] and not net.gap_us[link]:
                inner[net.src[link]].append((-float(net.bandwidth_gbs[link]), int(net.dst[link]), link))
        return [_shortest(rank, inner) for rank in range(net.nranks)]

    def path(self, source: int, goal: int) -> list[int]:
        """Return the links of the path from a rank to another rank of its node; none where they are equal."""
        return self.paths[source][goal]

    @cached_property
    def depth(self) -> int:
        """Return the most links on a path inside a node, 0 where each node is one rank."""
        return max(len(path) for paths in self.paths for path in paths.values())

    def tree(self, source: int, middle: int | None = None) -> list[Hop]:
        """Return a tree from a rank to all ranks of its node, in order of depth.

        Args:
            source: The rank.
            middle: A rank of the node that gets the chunk first and passes it on; None for paths from the source.
        """
        net, members = self.net, self.members[self.node_of[source]]
        first = [] if middle is None else self.path(source, middle)
        root, reached = source if middle is None else middle, {source, *net.dst[first].tolist()}
        hops = [Hop(link, depth, 0) for depth, link in enumerate(first)]
        place = members.index(root)
        for turn in range(1, len(members)):
            for depth, link in enumerate(self.path(root, members[(place + turn) % len(members)])):
                if (goal := int(net.dst[link])) not in reached:
                    reached.add(goal)
                    hops.append(Hop(link, len(first) + depth, turn))
        return sorted(hops, key=lambda hop: (hop.depth, hop.turn))


class LinkChoice:
    """The choice of links for messages between nodes, so that NICs have as many messages each."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        # The last load stays 0: it pads the resources of links that use fewer than others.
        self._load, self._at_rank = np.zeros(nodes.net.nresources + 1), np.zeros(2 * nodes.net.nranks)

    def choose(self, messages: Sequence[tuple[int, int]], count: int) -> list[list[int]]:
        """Return up to `count` links for each message from node to node, with link numbers ascending.

        It takes the least loaded links, and the messages add to the loads for later calls.
        """
        load, at_rank = self._load, self._at_rank
        chosen = []
        for ends in messages:
            link, source, goal, uses = self._nodes.links_between[ends]
            most = min(count, len(link))
            picked = np.zeros(len(link), dtype=bool)
            for _ in range(most):
                load_of_link = np.where(picked, np.inf, load[uses].max(axis=1))
                least = np.flatnonzero(load_of_link == load_of_link.min())
                place = least[np.argmin(at_rank[source[least]] + at_rank[goal[least]])]
                picked[place] = True
                at_rank[source[place]] += 1.0 / most
                at_rank[goal[place]] += 1.0 / most
                load[uses[place]] += 1.0 / most
                load[-1] = 0.0
            chosen.append(sorted(link[picked].tolist()))
        return chosen


def nodes_of(net: Network) -> Nodes | None:
    """Return the nodes of a network: ranks that links without a gap join.

    It is None without gaps, with one node only, where ranks of a node do not reach each other over links without a gap,
    or where some node has no link to some other node.
    """
    if not len(net.gap_us) or not net.gap_us.any():
        return None
    gapless = net.gap_us == 0
    part = components(net.nranks, net.src[gapless], net.dst[gapless])
    strong = components(net.nranks, net.src[gapless], net.dst[gapless], strong=True)
    number = np.unique(part, return_inverse=True)[1].ravel()
    count = int(number.max()) + 1
    if count < 2 or len(np.unique(strong)) != count:
        return None
    nodes = Nodes(net, number, [np.flatnonzero(number == node).tolist() for node in range(count)])
    return nodes if len(nodes.between) == count * (count - 1) else None


def _widest(net: Network) -> list[int]:
    """Return of every two ranks the widest link, of equally wide ones that of least α, in order of (source, goal)."""
    order = np.lexsort((net.alpha_us, -net.bandwidth_gbs, net.dst, net.src))
    pair = net.src[order].astype(np.int64) * net.nranks + net.dst[order]
    return [int(link) for link in order[np.unique(pair, return_index=True)[1]]]


def _shortest(source: int, inner: list[list[tuple[float, int, int]]]) -> dict[int, list[int]]:
    """Return paths of fewest links from a rank to all that it reaches, each over the widest links first.

    Args:
        source: The rank.
        inner: (−bandwidth, goal, link) of the links that leave each rank.
    """
    paths, layer = {source: list[int]()}, [source]
    while layer:
        steps = sorted((width, goal, link, rank) for rank in layer for width, goal, link in inner[rank])
        layer = []
        for _, goal, link, rank in steps:
            if goal not in paths:
                paths[goal] = [*paths[rank], link]
                layer.append(goal)
    return paths
