"""What a placement of experts sends: tokens from rank to rank, the time of dispatch and combine, and load.

The model. A *copy* is a token on its way to one of its experts; the histogram counts copies. Each goes to one rank that
holds its expert:

- to its own rank if that holds the expert;
- else to its own node, if a rank there holds it, evenly over all ranks of the node that do;
- else evenly over all ranks that hold it.

Each copy is sent by itself, also where other experts of the same token are in the same node. Dispatch sends a copy's
bytes to that rank, combine sends its result back. The time of each is that of the most loaded rank or node, by the
limits that the planner of uneven all-to-alls has (`synth.engines.skewed`, `Planner.bound`): what leaves or enters a
rank, and what leaves or enters a node, over the capacity of the links there; its plans come within a few per cent of
this time. The time of the experts' own work is not part of it; a placement states the load of its ranks instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.engines.skewed.shape import Shape
from synth.model.collective import Floats, Ints


@dataclass(frozen=True, eq=False)
class Routing:
    """What is to be routed, and on what.

    Attributes:
        shape: The shape of the group: its nodes, and the time of a byte at each rank and node.
        copies: Copies from each rank to each expert: float64, shape (layers, ranks, experts).
        dispatch_bytes: Bytes of a copy on its way to an expert.
        combine_bytes: Bytes of its result on the way back.
    """

    shape: Shape
    copies: Floats
    dispatch_bytes: float
    combine_bytes: float

    def copies_of_nodes(self, layer: int) -> Floats:
        """Return the copies from each node to each expert in a layer: float64, shape (nodes, experts)."""
        return by_node(self.shape, self.copies[layer], axis=0)


@dataclass(frozen=True, eq=False)
class Traffic:
    """What a placement sends in one layer.

    Attributes:
        dispatch_us: Time of dispatch in µs.
        combine_us: Time of combine in µs.
        between_nodes: Copies that leave their node.
        load: Copies that each rank computes, shape (ranks,).
    """

    dispatch_us: float
    combine_us: float
    between_nodes: float
    load: Floats

    @property
    def time_us(self) -> float:
        """Return the time of dispatch and combine in µs."""
        return self.dispatch_us + self.combine_us

    @property
    def imbalance(self) -> float:
        """Return the load of the most loaded rank / the mean load; 1 without any copies."""
        mean = float(self.load.mean())
        return float(self.load.max()) / mean if mean > 0 else 1.0


def by_node(shape: Shape, values: Floats, axis: int) -> Floats:
    """Return sums by node of values by rank, along an axis."""
    ordered = np.take(values, shape.node_rank, axis=axis)
    sums: Floats = np.add.reduceat(ordered, shape.node_ptr[:-1], axis=axis)
    return sums


def copies_between(shape: Shape, copies: Floats, placement: Ints) -> Floats:
    """Return the copies from each rank to each rank in one layer: float64, shape (ranks, ranks).

    Args:
        shape: The shape of the group.
        copies: Copies from each rank to each expert, shape (ranks, experts).
        placement: Expert in each slot, shape (ranks, slots); an expert that is in a rank's slots twice counts once.
    """
    held = np.zeros(copies.shape)
    np.put_along_axis(held, placement, 1.0, axis=1)
    in_node = by_node(shape, held, axis=0)[shape.node_of]
    near = np.divide(copies * (1 - held), in_node, out=np.zeros_like(copies), where=in_node > 0)
    far = np.where(in_node > 0, 0.0, copies / held.sum(axis=0))
    is_again = np.tril(placement[:, :, None] == placement[:, None, :], -1).any(axis=2)
    same_node = shape.node_of[:, None, None] == shape.node_of[None, :, None]
    per_slot = np.where(same_node, near[:, placement], far[:, placement])
    between: Floats = np.where(is_again, 0.0, per_slot).sum(axis=2)
    np.fill_diagonal(between, (copies * held).sum(axis=1))
    return between


def exchange_us(shape: Shape, sizes: Floats) -> float:
    """Return the time in µs that no schedule of an all-to-all can beat, as `Planner.bound` states it.

    Args:
        shape: The shape of the group.
        sizes: Bytes from each rank to each rank, shape (ranks, ranks); the diagonal is not sent.
    """
    sizes = sizes * (1 - np.eye(len(sizes)))
    if not sizes.any():
        return 0.0
    ranks = np.concatenate([sizes.sum(axis=1), sizes.sum(axis=0)])
    times = [np.where(ranks > 0, ranks * shape.rank_us + shape.rank_alpha_us, 0.0)]
    if shape.nnodes > 1:
        pair = by_node(shape, by_node(shape, sizes, axis=0), axis=1)
        np.fill_diagonal(pair, 0.0)
        nodes = np.concatenate([pair.sum(axis=1), pair.sum(axis=0)])
        times.append(np.where(nodes > 0, nodes * shape.node_us + shape.node_alpha_us, 0.0))
    times.append(np.where(sizes.reshape(-1) > 0, shape.least_us, 0.0))
    return shape.net.start_us + float(max(part.max() for part in times))


def traffic_of_layer(routing: Routing, layer: int, placement: Ints) -> Traffic:
    """Return what a placement sends in a layer.

    Args:
        routing: What is to be routed.
        layer: The layer.
        placement: Expert in each slot: int64, shape (ranks, slots); each expert is in some slot.
    """
    shape = routing.shape
    copies = copies_between(shape, routing.copies[layer], placement)
    pair = by_node(shape, by_node(shape, copies, axis=0), axis=1)
    return Traffic(
        exchange_us(shape, copies * routing.dispatch_bytes),
        exchange_us(shape, copies.T * routing.combine_bytes),
        float(pair.sum() - np.trace(pair)),
        copies.sum(axis=0),
    )
