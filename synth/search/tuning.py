"""What the search of one group is set to: the order of the engines, and what bounds their work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.bounds.prove import TighteningEffort
from synth.model.problem import LARGEST, SMALLEST
from synth.search.portfolio import Turn

_THOROUGH = TighteningEffort(quick_ranks=np.inf, least_linear_s=2.0, most_linear_s=np.inf)


@dataclass(frozen=True)
class Tuning:
    """The order of the engines and what bounds their work.

    Attributes:
        turns: who is asked, in this order; an engine without a turn comes last and may use what is left.
        work_s: seconds of counted work for engines that do not read the clock; a part of the budget where None.
        work_share: that part.
        met: time / bound up to which a bound is left as it is.
        sizes: message sizes in bytes to find schedules for where none is pinned, the most important first.
        only_sizes: whether engines and bounds look at no others.
        effort: of the bounds.
        max_flow_ranks: up to which the worst cuts are looked for before there is an answer.
        quick_bounds: whether the loads of the best answer, whatever it came from, are tried as prices first.
        others: whether engines without a turn come last.
        windows: the part of the budget for bounds by windows of time, at the sizes whose gaps stay over `windows_gap`;
            0: none. windows_finer: with finer ones, where one size is asked for.
        again: who is asked once more where no size is pinned, of one size at a time: that whose gap is largest, as long
            as one is over `again_gap` (time / bound); all these sizes first by the first turns, then by the next. For
            answers of up to `again_sends`, as estimated. Shares are of the part `again_share` of what is left of the
            budget.
        patient: whether the first answer is waited for, however long the budget.
    """

    turns: tuple[Turn, ...] = (
        Turn("route", most_ranks=16, as_first=True),
        # before all of which each answer would be lowered, to be beaten by these
        Turn("switch"),
        # before baselines, of which each would be lowered; elsewhere others come close to the bound
        Turn("closed", share=0.25, gap=1.02, in_shares=True),
        # queues of more sends take longer to run than the search beside them
        Turn("baseline", most_sends=15_000, always=True),
        Turn("two-hops", most_sends=15_000),
        Turn("one-shot", share=0.15, gap=1.02),
        Turn("levels", share=0.2, gap=1.005),
        Turn("trees", share=0.35, gap=1.005),
        Turn("steiner", share=0.3, gap=1.01),
        # below so many ranks exact search ends, and compiled loops take longer to load than it takes
        Turn("flow", share=0.3, from_ranks=9),
        Turn("closed", share=0.1, gap=1.02, in_shares=False),
        # routes and times depend on each other, also where exact search is out of reach
        Turn("lns", share=0.4, from_ranks=9, gap=1.02),
        # a few rounds of few chunks use links less evenly than many chunks on routes that mind the load
        Turn("flow", share=0.2, most_ranks=8, gap=1.02, bulk=True),
        # in steps and rounds of one length links that are unlike wait for each other, and sums meet at one rank
        Turn("lns", share=0.25, most_ranks=8, gap=1.05, unlike=True),
        Turn("ksync", share=0.5),
        Turn("milp", share=0.2),
        Turn("lns", share=0.4, most_ranks=8, gap=1.05),
        # what exact search leaves open; with more sends a file takes longer to compile than the answer took to find
        Turn("flow", share=0.2, once=True, refined=1_500, most_ranks=8, gap=1.05),
    )
    work_s: float | None = None
    work_share: float = 0.1
    met: float = 1.001
    sizes: tuple[int, ...] = (LARGEST, 1 << 20, SMALLEST)
    only_sizes: bool = False
    effort: TighteningEffort = _THOROUGH
    max_flow_ranks: int = 128
    quick_bounds: bool = False
    others: bool = True
    windows: float = 0.12
    windows_finer: float = 0.2
    windows_gap: float = 1.005
    again: tuple[tuple[Turn, ...], ...] = ()
    again_gap: float = 1.02
    again_sends: int = 15_000
    again_share: float = 0.5
    patient: bool = False


TUNING = Tuning(
    again=(
        (
            Turn("closed", share=0.1, gap=1.02),
            Turn("two-hops", share=0.1, gap=1.02),
            Turn("one-shot", share=0.15, gap=1.02),
            Turn("levels", share=0.2, gap=1.02),
            Turn("trees", share=0.35, gap=1.02),
            Turn("steiner", share=0.3, gap=1.02),
            Turn("flow", share=0.3, gap=1.02),
        ),
        (Turn("lns", share=1.0, gap=1.02),),  # takes longer than all others together
    )
)
