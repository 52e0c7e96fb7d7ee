"""The search for witnesses by messages: the nodes of a network with gaps, and ranks that deal with many nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from synth.bounds.search import BoundSearch
from synth.bounds.witnesses.messages import MessageGaps
from topologies.arrays import components


def find_messages(search: BoundSearch) -> Iterator[MessageGaps]:
    """Yield a witness for the first rank of the group, for its last, and for the root, each once.

    The nodes are the sets of ranks that links without a gap join. Nothing is yielded for a quotient problem, without
    gaps, or where there is only one node.
    """
    problem, net = search.problem, search.problem.network
    if problem.quotient is not None or not len(net.gap_us):
        return
    gapless = net.gap_us == 0
    node_of = components(net.nranks, net.src[gapless], net.dst[gapless])
    nodes = np.unique(node_of)
    if len(nodes) < 2:
        return
    parts = tuple(tuple(np.flatnonzero(node_of == node).tolist()) for node in nodes)
    gap_us = float(net.gap_us[~gapless].min())
    for rank in sorted({0, problem.collective.root, problem.collective.nranks - 1}):
        text = f"messages of {len(parts)} nodes, {gap_us:g} µs apart, at {search.name_ranks([rank])}"
        yield MessageGaps(ranks=(rank,), parts=parts, text=text)


def find_messages_with_data(search: BoundSearch) -> Iterator[MessageGaps]:
    """Yield the witnesses of `find_messages` at `search.size_bytes`, where a message's data keep its door busy too."""
    for witness in find_messages(search):
        yield replace(witness, at_bytes=search.size_bytes, text=f"{witness.text}, with data")
