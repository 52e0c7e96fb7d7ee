"""Searches with an executor's costs: each protocol has a network of its own, and a call uses one protocol.

The protocols whose bound is near the least bound are searched one after another, for one process group and for
concurrent groups alike. The bound of the question is the least of the protocols' bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from synth.model.deadline import now
from synth.search.budget import Budget
from synth.search.plans import ProtocolPlan
from topologies.errors import InputError

_LEAST_S = 0.05  # A search gets its share of so many seconds even if none is left.


class EndedSearch(Protocol):
    """The result of a search, which states why the search ended early."""

    @property
    def stop_reason(self) -> str:
        """Return "budget", "interrupted" or ""."""


Result = TypeVar("Result", bound=EndedSearch)


def search_protocols(
    names: Sequence[str],
    results: dict[str, Result],
    search_protocol: Callable[[str, float], Result],
    budget: Budget,
    plan: ProtocolPlan,
    *,
    reserved_s: Callable[[], float] = float,
) -> None:
    """Search one protocol after another until the share of the budget for schedules is used.

    The first one is searched even if that share is used. Later ones end, or do not begin, when only the time for the
    programs of what is found so far is left. Each gets its share of the time left (`ProtocolPlan.share_of`). Later
    protocols without an answer are left out of `results`.

    Args:
        names: The protocols, the most promising first.
        results: Receives the result of each protocol; those that are there stay also after an error or Ctrl-C.
        search_protocol: Searches one protocol in so many seconds, or raises InputError if it has no answer.
        budget: The time of all protocols.
        plan: Shares of the budget.
        reserved_s: Returns the seconds that an executor's programs need at the end of the budget.

    Raises:
        InputError: The first protocol has no answer, and so no result is there.
        KeyboardInterrupt: Ctrl-C came, or the result of a protocol says so.
    """
    until = budget.after(plan.searching)
    for place, name in enumerate(names):
        if results:
            until = min(until, budget.deadline - reserved_s())
            if now() >= until:
                return
        share_s = max(until - now(), _LEAST_S) * plan.share_of(place, len(names))
        try:
            results[name] = search_protocol(name, share_s)
        except InputError:
            if not results:
                raise
            continue
        if results[name].stop_reason == "interrupted":
            raise KeyboardInterrupt
