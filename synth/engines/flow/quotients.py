"""When a question is answered by its quotient: always where the whole is too large, first where there is one of use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from synth.engines.estimates import estimated_sends
from synth.engines.flow.tuning import SEARCH
from synth.model.problem import Problem
from synth.model.registry import find_kind
from synth.symmetry.quotient import quotient_problem
from topologies.topology import Topology, without_switch_ops


def quotient_question(
    topology: Topology, name: str, group: Sequence[int], relays: Sequence[int], chunks: int | None
) -> Problem | None:
    """A named collective's quotient, where it is so large that its schedule is not expanded; else None."""
    k = len(group)
    if relays or not find_kind(name).translatable or k * k <= SEARCH.expanded // 4:
        return None
    found = quotient_problem(  # whose switches only forward: translations are known of links
        without_switch_ops(topology), name, 1, None if k == topology.nranks and list(group) == list(range(k)) else group
    )
    if found is not None and chunks is not None and chunks % found.collective.chunks:
        return None  # the quotient of an allreduce has whole shares
    if found is None or found.quotient is None or estimated_sends(found) * found.quotient.order <= SEARCH.expanded:
        return None
    return found


def quotient_of(problem: Problem) -> Problem | None:
    """The same question's quotient by the network's symmetry; None where there is none of use."""
    if (
        problem.quotient is not None
        or problem.allowed is not None
        or problem.relays
        or not problem.collective.kind.translatable
    ):
        return None
    found = quotient_problem(problem.topology, problem.collective.name, 1, problem.group)
    if found is None or found.quotient is None or found.quotient.order < 4:
        return None
    # its schedules are of use only where links have the same numbers
    whole, net = found.quotient.whole, problem.network
    same = np.array_equal(whole.src, net.src) and np.array_equal(whole.dst, net.dst)
    return found if same else None
