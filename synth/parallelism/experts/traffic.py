"""What a placement of experts sends: tokens from rank to rank, the time of dispatch and combine, and load.

The model. A *copy* is a token on its way to one of its experts; the histogram counts copies. Each goes to one rank that
holds its expert:

- to its own rank if that holds the expert;
- else to its own node, if a rank there holds it, evenly over all ranks of the node that do;
- else evenly over all ranks that hold it.

Without the experts of whole tokens, each copy is sent by itself, also where other experts of its token are in the same
node. With a sample of whole tokens, a token is sent once to each node that has experts for it, which passes copies on
(node-limited dispatch); results are added up in the node and sent back once. A token whose experts several nodes hold
takes one of these for each expert, independently of its other experts; the expected number of messages counts.

Dispatch sends a copy's bytes to that rank, combine sends its result back. The time of each is that of the most loaded
rank or node, by the limits that the planner of uneven all-to-alls has (`synth.engines.skewed`, `Planner.bound`): what
leaves or enters a rank, and what leaves or enters a node, over the capacity of the links there. The time of the
experts' own work is not part of it; a placement states the load of its ranks instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from synth.engines.skewed.shape import GroupShape
from synth.model.collective import Floats, Ints
from topologies.errors import InputError

MAX_COPIES = 1e15  # From a rank to an expert; whole numbers up to it are exact.
_BLOCK = 8192  # Tokens that are counted at a time.


@dataclass(frozen=True, eq=False)
class ExpertRouting:
    """The copies of tokens that a group sends to experts, and the shape of the group.

    Attributes:
        shape: The shape of the group: its nodes, and the time of a byte at each rank and node.
        copies: Copies from each rank to each expert: float64, shape (layers, ranks, experts).
        dispatch_bytes: Bytes of a copy on its way to an expert.
        combine_bytes: Bytes of its result on the way back.
        tokens: Experts of sampled tokens, int64, shape (layers, tokens, experts of a token), of which `copies` is the
            histogram (see `routing_of_tokens`); None where only the histogram is known.
    """

    shape: GroupShape
    copies: Floats
    dispatch_bytes: float
    combine_bytes: float
    tokens: Ints | None = None

    def copies_of_nodes(self, layer: int) -> Floats:
        """Return the copies from each node to each expert in a layer: float64, shape (nodes, experts)."""
        return by_node(self.shape, self.copies[layer], axis=0)


@dataclass(frozen=True, eq=False)
class LayerTraffic:
    """The traffic of one layer under a placement.

    Attributes:
        dispatch_us: Time of dispatch in µs.
        combine_us: Time of combine in µs.
        between_nodes: Messages that leave their node: copies, or tokens where whole tokens are known.
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


def routing_of_tokens(
    shape: GroupShape, tokens: Ints, nexperts: int, dispatch_bytes: float, combine_bytes: float
) -> ExpertRouting:
    """Return the routing of tokens that come evenly from all ranks.

    Args:
        shape: The shape of the group.
        tokens: Experts of each token, all different: int64, shape (layers, tokens, experts of a token).
        nexperts: Number of experts.
        dispatch_bytes: Bytes of a copy on its way to an expert.
        combine_bytes: Bytes of its result.
    """
    counts = np.stack([np.bincount(layer.reshape(-1), minlength=nexperts) for layer in tokens])
    copies = np.broadcast_to((counts / shape.nranks)[:, None], (len(tokens), shape.nranks, nexperts))
    return ExpertRouting(shape, copies, dispatch_bytes, combine_bytes, tokens)


def by_node(shape: GroupShape, values: Floats, axis: int) -> Floats:
    """Return sums by node of values by rank, along an axis."""
    ordered = np.take(values, shape.node_rank, axis=axis)
    sums: Floats = np.add.reduceat(ordered, shape.node_ptr[:-1], axis=axis)
    return sums


def copies_between(shape: GroupShape, copies: Floats, placement: Ints) -> Floats:
    """Return the copies from each rank to each rank in one layer: float64, shape (ranks, ranks).

    Args:
        shape: The shape of the group.
        copies: Copies from each rank to each expert, shape (ranks, experts).
        placement: Expert in each slot, shape (ranks, slots); an expert that is in a rank's slots twice counts once.
    """
    holds = np.zeros(copies.shape)
    np.put_along_axis(holds, placement, 1.0, axis=1)
    in_node = by_node(shape, holds, axis=0)[shape.node_of]
    near = np.divide(copies * (1 - holds), in_node, out=np.zeros_like(copies), where=in_node > 0)
    far = np.where(in_node > 0, 0.0, copies / holds.sum(axis=0))
    is_again = np.tril(placement[:, :, None] == placement[:, None, :], -1).any(axis=2)
    same_node = shape.node_of[:, None, None] == shape.node_of[None, :, None]
    per_slot = np.where(same_node, near[:, placement], far[:, placement])
    between: Floats = np.where(is_again, 0.0, per_slot).sum(axis=2)
    np.fill_diagonal(between, (copies * holds).sum(axis=1))
    return between


def scaled(routing: ExpertRouting, copies: float) -> ExpertRouting:
    """Return a routing with so many copies from a rank in the mean, in each layer that has any.

    Raises:
        InputError: A figure is then over the limit.
    """
    sums = routing.copies.sum(axis=(1, 2), keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):
        factor = np.divide(copies * routing.shape.nranks, sums, out=np.zeros_like(sums), where=sums > 0)
        figures = routing.copies * factor
    if not (figures <= MAX_COPIES).all():
        raise InputError(
            f"--copies: {copies:g} from a rank give an expert over {MAX_COPIES:g} copies; it must be fewer"
        )
    return replace(routing, copies=figures)


def messages_per_copy(shape: GroupShape, placement: Ints, tokens: Ints, nexperts: int) -> Floats:
    """Return the messages for each copy from node to node, where a token is sent once to a node: (nodes, nodes).

    Args:
        shape: The shape of the group.
        placement: Expert in each slot, shape (ranks, slots).
        tokens: Experts of each token, shape (tokens, experts of a token).
        nexperts: Number of experts.
    """
    holds = np.zeros((shape.nranks, nexperts))
    np.put_along_axis(holds, placement, 1.0, axis=1)
    in_node = by_node(shape, holds, axis=0)
    share = in_node / in_node.sum(axis=0)
    messages, copies = np.zeros((2, shape.nnodes, shape.nnodes))
    for first in range(0, len(tokens), _BLOCK):
        for node in range(shape.nnodes):
            # By the other node, the token and its expert: the probability that the copy goes to the other node.
            goes = np.where(in_node[node] > 0, 0.0, share)[:, tokens[first : first + _BLOCK]]
            messages[node] += (1 - (1 - goes).prod(axis=2)).sum(axis=1)
            copies[node] += goes.sum(axis=(1, 2))
    ratio: Floats = np.divide(messages, copies, out=np.ones_like(copies), where=copies > 0)
    return ratio


def exchange_us(
    shape: GroupShape, leaving: Floats, entering: Floats | None = None, between: Floats | None = None
) -> float:
    """Return the time in µs that no schedule of an all-to-all can beat, as `Planner.bound` states it.

    Args:
        shape: The shape of the group.
        leaving: Bytes out of each rank for each rank, shape (ranks, ranks); the diagonal is not sent.
        entering: Bytes into each rank from each rank; None for those of `leaving`.
        between: Bytes that count between nodes; None for those of `leaving`.
    """
    off = 1 - np.eye(shape.nranks)
    out = leaving * off
    into, crossing = (out if sizes is None else sizes * off for sizes in (entering, between))
    if not out.any():
        return 0.0
    ranks = np.concatenate([out.sum(axis=1), into.sum(axis=0)])
    times = [np.where(ranks > 0, ranks * shape.rank_us + shape.rank_alpha_us, 0.0)]
    if shape.nnodes > 1:
        pair = by_node(shape, by_node(shape, crossing, axis=0), axis=1)
        np.fill_diagonal(pair, 0.0)
        nodes = np.concatenate([pair.sum(axis=1), pair.sum(axis=0)])
        times.append(np.where(nodes > 0, nodes * shape.node_us + shape.node_alpha_us, 0.0))
    times.append(np.where(out.reshape(-1) > 0, shape.least_us, 0.0))
    return shape.net.start_us + float(max(part.max() for part in times))


def traffic_of_layer(routing: ExpertRouting, layer: int, placement: Ints) -> LayerTraffic:
    """Return what a placement sends in a layer.

    Args:
        routing: What is to be routed.
        layer: The layer.
        placement: Expert in each slot: int64, shape (ranks, slots); each expert is in some slot.
    """
    shape = routing.shape
    copies = copies_between(shape, routing.copies[layer], placement)
    messages = copies
    if routing.tokens is not None:
        ratio = messages_per_copy(shape, placement, routing.tokens[layer], routing.copies.shape[2])
        messages = copies * ratio[np.ix_(shape.node_of, shape.node_of)]
    pair = by_node(shape, by_node(shape, messages, axis=0), axis=1)
    # A token leaves its rank once for each other node, and enters each rank of its experts; results go the other way.
    out, into = messages * routing.dispatch_bytes, copies * routing.dispatch_bytes
    back_out, back_into = copies.T * routing.combine_bytes, messages.T * routing.combine_bytes
    return LayerTraffic(
        exchange_us(shape, out, into, out),
        exchange_us(shape, back_out, back_into, back_into),
        float(pair.sum() - np.trace(pair)),
        copies.sum(axis=0),
    )
