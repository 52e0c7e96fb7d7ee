"""The searches for witnesses by messages: the nodes of a network with gaps, and ranks that deal with many nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from synth.bounds.search import BoundSearch
from synth.bounds.witnesses.knowledge import Knowledge
from synth.bounds.witnesses.messages import MessageGaps
from synth.model.problem import Problem
from topologies.arrays import components


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
