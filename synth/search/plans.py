"""Search plans: which engines and bounds run in which order, and which share of the budget each may take.

A plan is data. `synth.search.search` runs it; other searches (isolated runs of concurrent groups, libraries of
clusters) have plans of their own and the same runner.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.bounds.prove import Bound, TighteningEffort
from synth.engines.estimates import estimated_sends
from synth.model.problem import LARGEST, SMALLEST, Problem

_THOROUGH = TighteningEffort(quick_ranks=np.inf, least_linear_s=2.0, most_linear_s=np.inf)
_BULK = 20.0  # Bytes count far more than latencies from this multiple of the bound of an empty message on.


@dataclass(frozen=True)
class Stage:
    """An engine's place in a search plan.

    Attributes:
        engine: Name of the engine, a row of the registry.
        share: Share of the budget that the stage may take; half as long again while the engine gains.
        once: Whether the engine does not go on after its stage.
        refined: Number of sends up to which the engine may refine chunks; 0 for any number.
        from_ranks: Fewest local ranks of a problem for which the stage runs.
        most_ranks: Most local ranks of a problem for which the stage runs; None for any number.
        most_sends: Most sends, as estimated, of an answer for which the stage runs; None for any number.
        gap: The stage looks only at sizes whose time / bound is above this; 0 for all sizes.
        as_first: Whether the engine answers before an exact engine that the user named, so that there is an answer.
        always: Whether the engine answers whatever engine the user named.
        in_shares: True for all-reduce and its like only, False for all other collectives, None for both.
        bulk: Whether the stage runs only for one given size at which bytes count far more than latencies.
        unlike: Whether the stage runs only for one given size, on links of several latencies or bandwidths.
    """

    engine: str
    share: float = 1.0
    once: bool = False
    refined: int = 0
    from_ranks: int = 0
    most_ranks: int | None = None
    most_sends: int | None = None
    gap: float = 0.0
    as_first: bool = False
    always: bool = False
    in_shares: bool | None = None
    bulk: bool = False
    unlike: bool = False

    def suits(self, problem: Problem, size_bytes: int | None, bound: Bound) -> bool:
        """Return whether the stage is for a problem, by its ranks, sends and links and the message size.

        Args:
            problem: The problem to search.
            size_bytes: The only message size of the question; None if there are several.
            bound: What is proved of the problem so far.
        """
        return (
            self.from_ranks <= problem.nranks <= (self.most_ranks or problem.nranks)
            and self.in_shares in (None, problem.collective.kind.in_shares)
            and (not self.bulk or (size_bytes is not None and bound.at(size_bytes)[0] > _BULK * bound.at(0)[0]))
            and (not self.unlike or (size_bytes is not None and _has_unlike_links(problem)))
            and (self.most_sends is None or estimated_sends(problem) <= self.most_sends)
        )


def _has_unlike_links(problem: Problem) -> bool:
    """Return whether the links have several latencies or bandwidths."""
    network = problem.network
    return bool(np.ptp(network.alpha_us) or np.ptp(network.bandwidth_gbs))


@dataclass(frozen=True)
class SearchPlan:
    """The stages of a search, and what limits the work of its engines and bounds.

    Attributes:
        stages: Engines in the order in which they run.
        rest: Whether engines without a stage run last, in what is left of the budget.
        work_s: Seconds of counted work for engines that do not read the clock; None for `work_share` of the budget.
        work_share: That share.
        sizes: Message sizes in bytes that schedules are searched for if none is given, the most important first.
        only_sizes: Whether engines and bounds look at no other size.
        met: Time / bound up to which a bound is left as it is.
        effort: Effort of the bounds after the engines.
        max_flow_ranks: Most local ranks for which the worst cuts are searched before there is an answer.
        quick_bounds: Whether the loads of the best answer are tried as prices before anything else.
        windows: Share of the budget for bounds by windows of time; 0 for none.
        windows_gap: Time / bound above which a size gets such bounds.
        windows_finer: Share of the budget for such bounds with more slots, if one size is given.
        retries: If no size is given, these stages run again for one size at a time, the one with the largest gap; all
            sizes by the first tuple of stages before any size by the next. If one size is given, only the last tuple.
        retry_gap: Time / bound above which a size is searched again.
        retry_sends: Most sends, as estimated, of an answer that is searched again.
        retry_share: Share of the time left that the stages of one retry divide among them.
        patient: Whether the search waits for its first answer and its programs, however long they take.
    """

    stages: tuple[Stage, ...]
    rest: bool = True
    work_s: float | None = None
    work_share: float = 0.1
    sizes: tuple[int, ...] = (LARGEST, 1 << 20, SMALLEST)
    only_sizes: bool = False
    met: float = 1.001
    effort: TighteningEffort = _THOROUGH
    max_flow_ranks: int = 128
    quick_bounds: bool = False
    windows: float = 0.12
    windows_gap: float = 1.005
    windows_finer: float = 0.2
    retries: tuple[tuple[Stage, ...], ...] = ()
    retry_gap: float = 1.02
    retry_sends: int = 15_000
    retry_share: float = 0.5
    patient: bool = False


SINGLE = SearchPlan(
    stages=(
        Stage("route", most_ranks=16, as_first=True),
        # Before the engines whose answers would each be lowered only to lose against this one.
        Stage("switch"),
        # Before the baselines, each of which would be lowered; elsewhere other engines come close to the bound.
        Stage("closed", share=0.25, gap=1.02, in_shares=True),
        # Ordering the sends of larger answers takes longer than the search.
        Stage("baseline", most_sends=15_000, always=True),
        Stage("two-hops", most_sends=15_000),
        Stage("one-shot", share=0.15, gap=1.02),
        Stage("levels", share=0.2, gap=1.005),
        Stage("trees", share=0.35, gap=1.005),
        Stage("steiner", share=0.3, gap=1.01),
        # With fewer ranks exact search ends, and loading compiled loops takes longer than that.
        Stage("flow", share=0.3, from_ranks=9),
        Stage("closed", share=0.1, gap=1.02, in_shares=False),
        # Routes and times depend on each other, also where exact search is out of reach.
        Stage("lns", share=0.4, from_ranks=9, gap=1.02),
        # A few rounds of few chunks use links less evenly than many chunks on routes that mind the load.
        Stage("flow", share=0.2, most_ranks=8, gap=1.02, bulk=True),
        # In steps and rounds of one length unlike links wait for each other, and sums meet at one rank.
        Stage("lns", share=0.25, most_ranks=8, gap=1.05, unlike=True),
        Stage("ksync", share=0.5),
        Stage("milp", share=0.2),
        Stage("lns", share=0.4, most_ranks=8, gap=1.05),
        # For gaps that exact search leaves. A file with more sends takes longer to compile than the answer to find.
        Stage("flow", share=0.2, once=True, refined=1_500, most_ranks=8, gap=1.05),
    ),
    retries=(
        (
            Stage("closed", share=0.1, gap=1.02),
            Stage("two-hops", share=0.1, gap=1.02),
            Stage("one-shot", share=0.15, gap=1.02),
            Stage("levels", share=0.2, gap=1.02),
            Stage("trees", share=0.35, gap=1.02),
            Stage("steiner", share=0.3, gap=1.02),
            Stage("flow", share=0.3, gap=1.02),
        ),
        # This engine takes longer than all others together.
        (Stage("lns", share=1.0, gap=1.02),),
    ),
)
