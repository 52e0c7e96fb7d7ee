"""State the parts of a group, nodes or ranks, and what surely leaves them: the question that prices answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from synth.parallelism.experts.traffic import ExpertRouting
from synth.parallelism.experts.witness import GroupParts

NODES, RANKS = "nodes", "ranks"


def parts_of(routing: ExpertRouting, layer: int, slots: int, of: str) -> list[GroupParts]:
    """Return the nodes or the ranks of a group, with the copies that they have in a layer.

    Args:
        routing: What is to be routed.
        layer: The layer.
        slots: Slots of each rank.
        of: NODES or RANKS.

    Returns:
        The parts, once for each statement of what surely leaves them: one, or two where whole tokens are known.
    """
    shape = routing.shape
    if of == RANKS:
        count, byte_us, alpha_us = shape.nranks, shape.rank_us, shape.rank_alpha_us
        copies, ranks = routing.copies[layer], np.ones(count, dtype=np.int64)
    else:
        count, byte_us, alpha_us = shape.nnodes, shape.node_us, shape.node_alpha_us
        copies, ranks = routing.copies_of_nodes(layer), np.diff(shape.node_ptr)
    parts = GroupParts(
        copies=copies,
        leaving=copies,
        ranks=ranks,
        slots=slots,
        out_us=byte_us[:count],
        in_us=byte_us[count:],
        alpha_us=np.minimum(alpha_us[:count], alpha_us[count:]),
        start_us=shape.net.start_us,
        dispatch_bytes=routing.dispatch_bytes,
        combine_bytes=routing.combine_bytes,
    )
    return _with_tokens(parts, routing, layer)


def _with_tokens(parts: GroupParts, routing: ExpertRouting, layer: int) -> list[GroupParts]:
    """Return parts with each statement of what surely leaves them.

    A token counts for one of its experts: for the one with the fewest copies, which is where the token is least often,
    or for each of them in equal shares.
    """
    if routing.tokens is None:
        return [parts]
    tokens, nexperts = routing.tokens[layer], parts.copies.shape[1]
    counts = np.bincount(tokens.reshape(-1), minlength=nexperts)
    rarest = np.take_along_axis(tokens, counts[tokens].argmin(axis=1)[:, None], axis=1)
    messages = np.bincount(rarest[:, 0], minlength=nexperts)
    return [
        replace(parts, leaving=parts.copies * (messages / np.maximum(counts, 1))),
        replace(parts, leaving=parts.copies / tokens.shape[1]),
    ]
