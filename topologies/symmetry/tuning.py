"""Limits on the work of the searches for symmetries.

Work, not a clock, ends the searches, so that a slow machine gives the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SymmetryTuning:
    """Limits on the work of the searches for symmetries.

    Attributes:
        work_per_s: Elements (a link, or a use of a resource) that a core of the 2020s touches in about a second.
        check_cost: Elements that a check touches per element of the network.
        refine_cost: Elements that a round of refinement touches per element of the network.
        subgroup_starts: Elements from which a free subgroup is grown; most machines need one, and none more than 8.
        subgroup_work: Permutation entries composed for a free subgroup, about a second's work.
        crowded_groups: Groups of translations that may crowd a resource before the search gives up.
        sampled_groups: The same, for groups that a look at a few links refuses; each takes some ms.
        sampled_links: Links of this look that are taken in even distances; half as many are at the fullest resources.
    """

    work_per_s: float = 20_000_000
    check_cost: int = 3
    refine_cost: int = 1
    subgroup_starts: int = 8
    subgroup_work: int = 30_000_000
    crowded_groups: int = 30
    sampled_groups: int = 2000
    sampled_links: int = 8


TUNING = SymmetryTuning()
