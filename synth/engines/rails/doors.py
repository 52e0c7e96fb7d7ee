"""The nodes of a network, the rails between them, and the shares of a node's traffic that its rails get.

A rail has at most one rank of each node, its *door* there, and links between all of its doors. Nodes may have different
numbers of ranks, and doors different rates: those of a cluster with lost GPUs and slow or lost ports.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.model.collective import Bools, Floats, Ints
from synth.model.problem import Problem
from topologies.arrays import components, positions
from topologies.errors import InputError

_UNEVEN = 1.01  # Most loaded rail of a node / mean load, up to which the rails are left as they are.
_ROUND_OFF = 1e-9


@dataclass(frozen=True, eq=False)
class RailDoors:
    """The nodes and rails of a problem's ranks.

    Attributes:
        node: Node of each rank, int64, shape (ranks,).
        place: Place of each rank in its node, int64, shape (ranks,).
        members: Ranks of each node, -1 after the last, int64, shape (nodes, most ranks of a node).
        door: Rank of each node on each rail, -1 where it has none, int64, shape (nodes, rails).
        rank_on: The same with ranks that have no door, on the rails that they take.
        rail: Rail of each rank; ranks without links to other nodes take rails in turn; int64, shape (ranks,).
        rate_in: Bandwidth in GB/s with which each door receives from other nodes, 0 where there is none, float64, shape
            (nodes, rails).
        rate_out: The same for sending.
        link: Widest link from each rank to each rank, -1 where there is none, int64, shape (ranks, ranks).
    """

    node: Ints
    place: Ints
    members: Ints
    door: Ints
    rank_on: Ints
    rail: Ints
    rate_in: Floats
    rate_out: Floats
    link: Ints

    @property
    def nnodes(self) -> int:
        """Return the number of nodes."""
        return len(self.members)

    @property
    def are_alike(self) -> bool:
        """Return whether all nodes have as many ranks, and all doors the same rates."""
        rates = np.stack([self.rate_in, self.rate_out])
        return bool((self.members >= 0).all() and (rates == rates[:, :1, :1]).all() and (self.door >= 0).all())

    @property
    def node_gbs(self) -> Floats:
        """Return the bandwidth in GB/s with which each node both sends to and receives from others, shape (nodes,)."""
        return np.asarray(np.minimum(self.rate_in.sum(axis=1), self.rate_out.sum(axis=1)))

    @property
    def slowness(self) -> float:
        """Return how many times longer the slowest node sends and receives as much as the fastest."""
        return float(self.node_gbs.max() / self.node_gbs.min())

    def choose_rails(self, source: Ints, goal: Ints, rail: Ints) -> Ints:
        """Return a rail for each message between nodes, such that each node's doors are loaded by their rates.

        A message keeps the rail that it has where that is as good.

        Args:
            source: Node from which each message goes, shape (messages,).
            goal: Node to which each message goes, shape (messages,).
            rail: Rail that each message has, which its nodes may lack, shape (messages,).
        """
        chosen = rail.copy()
        # What a node with unlike doors gets stays as it is for the balance of those who send it.
        is_settled = (np.ptp(self.rate_in, axis=1) > 0)[goal]
        everything = np.arange(len(rail))
        for messages_of_ends, ends, rates in (
            (everything, goal, self.rate_in),
            (everything[~is_settled], source, self.rate_out),
        ):
            node_of_message = ends[messages_of_ends]
            order = messages_of_ends[np.argsort(node_of_message, kind="stable")]
            bounds = np.searchsorted(ends[order], np.arange(self.nnodes + 1))
            for node in range(self.nnodes):
                messages = order[bounds[node] : bounds[node + 1]]
                if len(messages):
                    chosen[messages] = balanced(chosen[messages], rates[node])
        lacks = (self.door[source, chosen] < 0) | (self.door[goal, chosen] < 0)
        able = (self.door[source[lacks]] >= 0) & (self.door[goal[lacks]] >= 0)
        # Messages that are left over take the rails that their nodes have in common in turn.
        turn = positions_of_equal(source[lacks] * self.nnodes + goal[lacks]) % np.maximum(1, able.sum(axis=1))
        chosen[lacks] = (able.cumsum(axis=1) == turn[:, None] + 1).argmax(axis=1)
        return np.asarray(chosen)


def balanced(rail: Ints, rates: Floats) -> Ints:
    """Return a rail for each message of a node, in proportion to the rates of its doors.

    Messages move from rails with too many to rails with too few, evenly over their order.

    Args:
        rail: Rail that each message has, shape (messages,).
        rates: Rate of the node's door on each rail, shape (rails,).
    """
    count = np.bincount(rail, minlength=len(rates))
    quota = len(rail) * rates / rates.sum()
    if (count <= quota * _UNEVEN + _ROUND_OFF).all():
        return rail
    kept_share = np.minimum(1.0, quota / np.maximum(1, count))[rail]
    place = positions_of_equal(rail)
    is_moved = np.floor((place + 1) * kept_share + _ROUND_OFF) <= np.floor(place * kept_share + _ROUND_OFF)
    room = np.maximum(0.0, quota - np.bincount(rail[~is_moved], minlength=len(rates)))
    nmoved = int(is_moved.sum())
    nmoved_to = apportioned(nmoved, room)
    rails = np.repeat(np.arange(len(rates)), nmoved_to)
    moved_rail = rail.copy()
    moved_rail[is_moved] = rails[np.argsort((positions(nmoved_to) + 0.5) / nmoved_to[rails], kind="stable")]
    return moved_rail


def apportioned(count: int, weights: Floats) -> Ints:
    """Return whole numbers with a sum of `count` in proportion to the weights, by the largest remainders (Hamilton)."""
    exact = count * weights / weights.sum()
    whole = np.floor(exact + _ROUND_OFF).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: count - int(whole.sum())]] += 1
    return np.asarray(whole)


def positions_of_equal(values: Ints) -> Ints:
    """Return for each value how many equal values stand before it."""
    order = np.argsort(values, kind="stable")
    place = np.empty(len(values), dtype=np.int64)
    place[order] = positions(np.unique(values, return_counts=True)[1])
    return place


def find_doors(problem: Problem) -> RailDoors:
    """Return the nodes and rails of a problem's ranks.

    Raises:
        InputError: If there are no two nodes, two ranks of a node or two doors of a rail are not linked, or two nodes
            have no rail in common.
    """
    net, n = problem.network, problem.nranks
    _, node = np.unique(problem.topology.nodes[list(problem.ranks)], return_inverse=True)
    node = node.reshape(-1).astype(np.int64)
    nnodes, place = int(node.max()) + 1, positions_of_equal(node)
    if nnodes < 2:
        raise InputError("rails needs two nodes or more")
    members = np.full((nnodes, int(place.max()) + 1), -1, dtype=np.int64)
    members[node, place] = np.arange(n)
    link = net.widest_link
    is_inside = node[:, None] == node
    if (link < 0)[is_inside & ~np.eye(n, dtype=bool)].any():
        raise InputError("rails needs a link between every two ranks of a node")
    crossing = np.flatnonzero(node[net.src] != node[net.dst])
    rate_in, rate_out = np.zeros(n), np.zeros(n)
    np.maximum.at(rate_in, net.dst[crossing], net.bandwidth_gbs[crossing])
    np.maximum.at(rate_out, net.src[crossing], net.bandwidth_gbs[crossing])
    is_door = (rate_in > 0) & (rate_out > 0)
    if not is_door.any():
        raise InputError("rails needs links between nodes")
    group = components(n, net.src[crossing], net.dst[crossing])
    key = group
    if len(np.unique((group * nnodes + node)[is_door])) < is_door.sum():
        # Doors that are all linked to each other are on the rails of their places among all ranks of their node.
        key = positions_of_equal(problem.topology.nodes)[list(problem.ranks)]
    names = np.unique(key[is_door])
    rail = np.where(is_door, np.searchsorted(names, key), place % len(names))
    door = np.full((nnodes, len(names)), -1, dtype=np.int64)
    door[node[is_door], rail[is_door]] = np.flatnonzero(is_door)
    rank_on = np.full(door.shape, -1, dtype=np.int64)
    rank_on[node, rail] = np.arange(n)
    rates = np.zeros((2, nnodes, len(names)))
    rates[0][node[is_door], rail[is_door]], rates[1][node[is_door], rail[is_door]] = rate_in[is_door], rate_out[is_door]
    if not rates.any(axis=2).all() or not _are_linked(link, door):
        raise InputError("rails needs doors in every node that are linked to those of its rail")
    if not ((door >= 0)[:, None] & (door >= 0)).any(axis=2).all():
        raise InputError("rails needs a rail in common of every two nodes")
    return RailDoors(node, place, members, door, rank_on, rail, rates[0], rates[1], link)


def _are_linked(link: Ints, door: Ints) -> Bools | bool:
    """Return whether every two doors of a rail are linked."""
    for doors in door.T:
        ranks = doors[doors >= 0]
        if (link[np.ix_(ranks, ranks)] < 0)[~np.eye(len(ranks), dtype=bool)].any():
            return False
    return True
