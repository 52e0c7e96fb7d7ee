"""Choice of a quotient: always where the whole problem is too large, and first where the symmetry is useful."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from synth.engines.estimates import estimated_sends
from synth.engines.flow.tuning import SEARCH
from synth.model.problem import Problem
from synth.model.registry import find_kind
from synth.symmetry.quotient import quotient_problem
from synth.symmetry.quotient_check import check_quotient
from topologies.errors import InputError
from topologies.topology import Topology, without_switch_ops


def quotient_question(
    topology: Topology, name: str, group: Sequence[int], relays: Sequence[int], chunks: int | None
) -> Problem | None:
    """Return a named collective's quotient, where the whole is too large to expand its schedule; else None.

    There is none for a collective that is not translatable, for a small group (k² ≤ `SEARCH.expanded` / 4), or if the
    quotient's check fails for a protocol. Switches only forward in the quotient.

    Args:
        topology: The whole machine or cluster.
        name: The collective's own name; any other name has no quotient.
        group: Topology ranks in order.
        relays: Relays; with relays there is no quotient.
        chunks: Pinned chunks a block, which must be a multiple of the quotient's chunks; None for any number.

    Raises:
        InputError: If the ranks of a group that is not small do not exist or repeat.
        TimeUp: If the time of the work around is over.
    """
    k = len(group)
    if relays or not find_kind(name).translatable or k * k <= SEARCH.expanded // 4:
        return None
    quotient = quotient_problem(  # Translations map links only, so the switches must only forward.
        without_switch_ops(topology), name, 1, None if k == topology.nranks and list(group) == list(range(k)) else group
    )
    if quotient is not None and chunks is not None and chunks % quotient.collective.chunks:
        return None  # The quotient of an all-reduce has whole shares.
    if (
        quotient is None
        or quotient.quotient is None
        or estimated_sends(quotient) * quotient.quotient.order <= SEARCH.expanded
    ):
        return None
    try:
        for protocol in quotient.protocols:  # Kinds of links that are alike under the best figures may differ.
            check_quotient(quotient.under(protocol))
    except InputError:
        return None
    return quotient


def quotient_of(problem: Problem) -> Problem | None:
    """Return a problem's quotient by the network's symmetry, with one chunk a block or share; None if it is of no use.

    A quotient is useful if it is smaller by a factor of 4 or more, and its whole network has the problem's links in the
    same order. There is none for a quotient problem, for restricted holders, with relays, or for a collective that is
    not translatable.

    Raises:
        TimeUp: If the time of the work around is over.
    """
    if (
        problem.quotient is not None
        or problem.allowed_holders is not None
        or problem.relays
        or not problem.collective.kind.translatable
    ):
        return None
    quotient = quotient_problem(problem.topology, problem.collective.name, 1, problem.group)
    if quotient is None or quotient.quotient is None or quotient.quotient.order < 4:
        return None
    # Its schedules are useful only where links have the same numbers.
    whole, net = quotient.quotient.whole, problem.network
    same = np.array_equal(whole.src, net.src) and np.array_equal(whole.dst, net.dst)
    return quotient if same else None
