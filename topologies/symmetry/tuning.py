"""How much work the searches for symmetries may do. Work, not a clock, ends them: a slow day gives the same answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Limits of the searches.

    Attributes:
        work_per_s: elements touched (a link, a use of a resource) that take about a second on a 2020s core.
        check_cost, refine_cost: elements touched per element of the network: by a check, by a round of refinement.
        ambiguous_tries: choices among equal links of one pair; more were never needed on a real machine.
        subgroup_starts: elements that a free subgroup is grown from; most networks need one.
        subgroup_work: permutation entries composed for one; about a second.
        crowded_groups: groups of translations that may crowd a resource before the search gives up.
    """

    work_per_s: float = 20_000_000
    check_cost: int = 3
    refine_cost: int = 1
    ambiguous_tries: int = 200
    subgroup_starts: int = 48
    subgroup_work: int = 30_000_000
    crowded_groups: int = 30


TUNING = Tuning()
