"""How much work the searches for symmetries may do. Work, not a clock, ends them: a slow day gives the same answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    work_per_s: float = 20_000_000  # elements touched (a link, a use of a resource) in about a second on a 2020s core
    check_cost: int = 3  # elements touched per element of the network by a check
    refine_cost: int = 1  # the same by a round of refinement
    ambiguous_tries: int = 200  # choices among equal links of one pair; more were never needed on a real machine
    subgroup_starts: int = 48  # elements that a free subgroup is grown from; most networks need one
    subgroup_work: int = 30_000_000  # permutation entries composed for one; about a second
    crowded_groups: int = 30  # groups of translations that may crowd a resource before the search gives up


TUNING = Tuning()
