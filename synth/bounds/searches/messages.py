"""The searches for witnesses by messages: the nodes of a network with gaps, and ranks that deal with many nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np

from synth.bounds.resource_cover import cover
from synth.bounds.search import BoundSearch, with_gbs
from synth.bounds.witnesses.doorway import Doorway, Entering, Leaving, Passage, doorway_of
from synth.bounds.witnesses.knowledge import Knowledge
from synth.bounds.witnesses.messages import MessageGaps
from synth.model.collective import Floats
from synth.model.problem import Problem
from topologies.arrays import components, flags_of

_P = TypeVar("_P", bound=Passage)

_SHARES = np.array([0.01, 0.02, 0.04, 0.07, 0.1, 0.14, 0.19, 0.25, 0.32, 0.4, 0.5, 0.62, 0.76, 0.92])
"""Times before the end, as shares of the time in which the links inside a node carry all that its ranks want."""
_MOVED = (0.5, 0.25, 0.12, 0.06, 0.03, 0.015)  # shares of all weights that move at once
_GAIN = 1e-4  # relative gain that such a move must bring
_LIKE = 1 + 1e-9  # Nodes that lack as much, but for rounding, are alike.


def find_messages(search: BoundSearch) -> Iterator[MessageGaps]:
    """Yield a witness for the first rank of the group, for its last, and for the root, each once.

    Nothing is yielded for a quotient problem, without gaps, or where there is only one node.
    """
    problem = search.problem
    parts, gap_us = _nodes(problem)
    if len(parts) < 2:
        return
    for rank in sorted({0, problem.collective.root, problem.collective.nranks - 1}):
        text = f"messages of {len(parts)} nodes, {gap_us:g} µs apart, at {search.name_ranks([rank])}"
        yield MessageGaps(ranks=(rank,), parts=parts, text=text)


def find_messages_with_data(search: BoundSearch) -> Iterator[MessageGaps]:
    """Yield the witnesses of `find_messages` at `search.size_bytes`, where a message's data keep its door busy too."""
    for witness in find_messages(search):
        yield replace(witness, at_bytes=search.size_bytes, text=f"{witness.text}, with data")


def find_knowledge(search: BoundSearch) -> Iterator[Knowledge]:
    """Yield a witness at `search.size_bytes` for all nodes.

    Nothing is yielded for a quotient problem, without gaps, or where there is only one node.
    """
    parts, gap_us = _nodes(search.problem)
    if len(parts) > 1:
        text = f"what {len(parts)} nodes know, messages {gap_us:g} µs apart"
        yield Knowledge(parts=parts, at_bytes=search.size_bytes, text=text)


def find_entering(search: BoundSearch) -> Iterator[Entering]:
    """Yield a witness at `search.size_bytes` for the node that lacks most data of other nodes.

    Nothing is yielded for a quotient problem, without gaps, where there is only one node, or where nothing counts.
    """
    return _find_passage(search, Entering)


def find_leaving(search: BoundSearch) -> Iterator[Leaving]:
    """Yield a witness as `find_entering` does, for the node that contributes most to sums for other nodes."""
    return _find_passage(search, Leaving)


def _find_passage(search: BoundSearch, witness_class: type[_P]) -> Iterator[_P]:
    """Yield the witness of one class, without numbers, with the weights that prove most of those that were tried."""
    problem, net = search.problem, search.problem.network
    parts, gap_us = _nodes(problem)
    best: tuple[float, tuple[int, ...], Doorway] | None = None
    for ranks in parts if len(parts) > 1 else ():
        near = flags_of(net.nranks, np.array(ranks))
        doorway = doorway_of(problem, near, search.size_bytes, witness_class.enters)
        if doorway is not None and (best is None or doorway.wanted_kb > best[0] * _LIKE):
            best = doorway.wanted_kb, ranks, doorway
    if best is None:
        return
    wanted_kb, ranks, doorway = best
    links = np.flatnonzero(doorway.counted[: net.nlinks])
    ends = (net.dst if witness_class.enters else net.src)[links]
    # The ports of the ranks also cover what a switch multicasts to them, or sums of them.
    ports = [cover(net, links[ends == rank]) for rank in np.unique(ends).tolist()]
    covers = [witness_class(resources=tuple(np.unique(r).tolist())) for r in (cover(net, links), np.concatenate(ports))]
    capacities_gbs = [witness.capacity(problem, net, doorway.counted) for witness in covers]
    inner_gbs, resources = min(zip(capacities_gbs, (witness.resources for witness in covers), strict=True))
    before_us = doorway.inner_us + wanted_kb / inner_gbs * _SHARES
    weights = _best_weights(lambda rows: doorway.least_us(inner_gbs, before_us, rows), len(before_us))
    verb = "entering" if witness_class.enters else "leaving"
    text = f"data {verb} {search.name_ranks(list(ranks))}, messages {gap_us:g} µs apart, copies inside"
    yield witness_class(
        ranks=ranks,
        resources=resources,
        times=tuple(before_us.tolist()),
        prices=tuple((place, float(weight)) for place, weight in enumerate(weights.tolist()) if weight > 0),
        at_bytes=search.size_bytes,
        text=with_gbs(text, net, np.array(resources)),
    )


def _best_weights(least_us: Callable[[Floats], Floats], count: int) -> Floats:
    """Return weights, 1 in sum, of which `least_us` is high: shares move between two of them as long as that gains.

    Args:
        least_us: Returns the value of each row of weights, shape (rows,).
        count: Number of weights.
    """
    single = np.eye(count)
    weights: Floats = single[int(least_us(single).argmax())]
    moves = (single[:, None, :] - single[None, :, :]).reshape(-1, count)
    for share in _MOVED:
        while True:
            trials = weights + share * moves
            trials = trials[(trials >= 0).all(axis=1)]
            values = least_us(trials)
            if values.max(initial=0.0) <= least_us(weights[None, :])[0] * (1 + _GAIN):
                break
            weights = trials[int(values.argmax())]
    return weights


def _nodes(problem: Problem) -> tuple[tuple[tuple[int, ...], ...], float]:
    """Return the local ranks of each node and the least gap in µs; no nodes for a quotient problem or without gaps.

    The nodes are the sets of ranks that links without a gap join.
    """
    net = problem.network
    if problem.quotient is not None or not len(net.gap_us):
        return (), 0.0
    gapless = net.gap_us == 0
    if gapless.all():
        return (), 0.0
    node_of = components(net.nranks, net.src[gapless], net.dst[gapless])
    parts = tuple(tuple(np.flatnonzero(node_of == node).tolist()) for node in np.unique(node_of))
    return parts, float(net.gap_us[~gapless].min())
