"""Whether a turn of an engine is for a problem: by its ranks, its sends, its links and the message size."""

from __future__ import annotations

import numpy as np

from synth.bounds.prove import Bound
from synth.engines.estimates import estimated_sends
from synth.model.problem import Problem
from synth.search.portfolio import Turn

_BULK = 20.0  # times the bound of the smallest message, from which on latencies count little


def is_for(turn: Turn, problem: Problem, size_bytes: int | None, bound: Bound) -> bool:
    """Whether the turn's conditions hold for a problem; size_bytes: that is asked for alone, None: several are."""
    few_enough = turn.most_sends is None or estimated_sends(problem) <= turn.most_sends
    fits = turn.from_ranks <= problem.nranks <= (turn.most_ranks or problem.nranks)
    fits &= turn.in_shares in (None, problem.collective.kind.in_shares)
    fits &= not turn.bulk or (size_bytes is not None and _is_bulk(size_bytes, bound))
    fits &= not turn.unlike or (size_bytes is not None and _is_unlike(problem))
    return few_enough and fits


def _is_bulk(size_bytes: int, bound: Bound) -> bool:
    """Whether bytes take far longer than the latencies, as far as bounds say."""
    return bound.at(size_bytes)[0] > _BULK * bound.at(0)[0]


def _is_unlike(problem: Problem) -> bool:
    """Whether links are of several latencies or bandwidths."""
    net = problem.network
    return bool(np.ptp(net.alpha_us) or np.ptp(net.bandwidth_gbs))
