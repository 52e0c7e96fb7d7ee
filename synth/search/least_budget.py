"""The least budget that a question needs, told from its size before any work: who has less is told at once.

Counted are a first answer by the quickest engine, its replay, a bound and writing the schedule; no program.
"""

from __future__ import annotations

from dataclasses import dataclass

from synth.model.numbers import format_seconds
from topologies.errors import InputError
from topologies.topology import Topology

_SPARE = 1.25  # of what is said over what is estimated, so that it is enough where it is followed
GRACE_S = 1.0  # after the end of the budget: a first answer is waited for, half as long a first program and its check


@dataclass(frozen=True)
class Costs:
    """Seconds of the first answer, its replay, quick bounds and the written schedule, on one core of a server."""

    base: float = 0.2
    a_rank: float = 6e-6
    a_link: float = 8e-6
    a_send: float = 3e-6


COSTS = Costs()


def least_seconds(topology: Topology, sends: int = 0, costs: Costs = COSTS) -> float:
    """About what the first answer takes, from before the search to the written file.

    sends: of the answer, as far as they are known.
    """
    return costs.base + costs.a_rank * topology.nranks + costs.a_link * topology.nlinks + costs.a_send * sends


def too_short(topology: Topology, sends: int, budget_s: float) -> str:
    """Why there is no answer within a budget, in a line."""
    least_s = _SPARE * max(least_seconds(topology, sends), budget_s)
    size = f"{topology.nranks} ranks and {topology.nlinks} links"
    return f"budget {format_seconds(budget_s)}: is too short for {size}; it must be {format_seconds(least_s)} or more"


def check_budget(topology: Topology, sends: int, budget_s: float) -> None:
    """Raise InputError where a budget is surely too short, before more time is spent."""
    if least_seconds(topology, sends) > budget_s + GRACE_S:
        raise InputError(too_short(topology, sends, budget_s))
