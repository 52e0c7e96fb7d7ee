"""Search plans: which engines and bounds run in which order, and which share of the budget each may take.

A plan is data, and `synth.search.run.runner` runs it. Every kind of search has its plan here: `SINGLE` for one process
group, `ISOLATED` for a group whose rivals are idle, `GROUPS` for concurrent groups, `library_plan` for a library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

import numpy as np

from synth.bounds.prove import Bound, TighteningEffort
from synth.engines.estimates import estimated_sends
from synth.engines.flow.tuning import SEARCH as FLOW
from synth.engines.registry import AUTO
from synth.engines.request import Options
from synth.model.problem import LARGEST, SMALLEST, Problem

LIBRARY_PATIENCE = 0.7  # The share of a problem's time in which a library build makes the same programs each time.
LIBRARY_BASELINE_SENDS = 15_000  # In a library build, timing baselines with more takes longer than the search.
# What makes plans for concurrent groups: the names of stages, and the methods in the answer.
JOINT, DIRECT = "planned jointly", "direct"
AT_ONCE, IN_TURN, WITHIN = "isolated, at once", "isolated, in turn", "isolated, without relays"
Size = TypeVar("Size", int, float)
_LINEAR_RANKS = 32  # Ranks up to which the linear program of bounds is small.
_MANY_RANKS = 512  # Ranks from which on the packing of trees takes seconds before its first answer.
_LINK_S = 2e-7  # Seconds that a link takes for each rank of a whole network in an engine's first answer.
_MOST_MESSAGING = 128  # Ranks up to which a library's search tries messages between nodes.

_THOROUGH = TighteningEffort(quick_ranks=np.inf, least_linear_s=2.0, most_linear_s=np.inf)
_BULK = 20.0  # Bytes count far more than latencies from this multiple of the bound of an empty message on.


class ProgramScope(Enum):
    """The programs that a search makes of its algorithms."""

    ALL, FIRST, NONE = "all", "first", "none"


@dataclass(frozen=True)
class Stage:
    """An engine's place in a search plan.

    Attributes:
        engine: Name of the engine, a row of the registry; in a `GroupsPlan`, of a method such as "isolated, at once".
        share: Share of the budget that the stage may take; except in a `GroupsPlan`, half as long again while the
            engine gains.
        until: Share of the budget, counted from the start of the search, after which the stage ends; only a
            `GroupsPlan` has such ends.
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
    until: float = 1.0
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
        """Return whether the stage is for a problem, by its ranks, sends, links and collective and the message size.

        The limits are `from_ranks`, `most_ranks`, `most_sends`, `in_shares`, `bulk` and `unlike`; all others do not
        count here.

        Args:
            problem: The problem to search.
            size_bytes: The only message size of the question; None if there is more than one.
            bound: What is proved of the problem so far.
        """
        return (
            self.from_ranks <= problem.nranks <= (self.most_ranks or problem.nranks)
            and self.in_shares in (None, problem.collective.kind.in_shares)
            and (not self.bulk or (size_bytes is not None and bound.at(size_bytes)[0] > _BULK * bound.at(0)[0]))
            and (not self.unlike or (size_bytes is not None and _has_unlike_links(problem)))
            and (self.most_sends is None or estimated_sends(problem) <= self.most_sends)
        )

    def can_answer_in(self, seconds: float, problem: Problem) -> bool:
        """Return whether the engine is likely to answer in its share of a budget in seconds.

        Only in whole networks of many ranks, which no symmetry makes smaller, engines work for seconds before that.
        """
        is_large = problem.quotient is None and problem.nranks >= _MANY_RANKS
        return not is_large or _LINK_S * problem.network.nlinks * problem.nranks <= self.share * seconds


def _has_unlike_links(problem: Problem) -> bool:
    """Return whether the links differ in latency or bandwidth."""
    network = problem.network
    return bool(np.ptp(network.alpha_us) or np.ptp(network.bandwidth_gbs))


@dataclass(frozen=True)
class ProtocolPlan:
    """The choice of the protocols and sizes that are searched with an executor's costs, and their shares of the budget.

    Attributes:
        sizes: Message sizes in bytes, the largest first, from which those of each protocol are chosen.
        near: A protocol is searched at a size if its bound is at most this multiple of the least bound there.
        most: Most sizes of a protocol.
        searching: Share of the budget for the protocols; all of it if no programs are made of the schedules.
        first: Share of the schedules' time that the first of several protocols gets; None for an equal share.
        first_ranks: Most ranks of a problem for which the first protocol gets `first`. With more, exact search is out
            of reach, and each protocol gets an equal share.
        exact: Share of the first protocol's time for exact search.
        engines: Engines that run for the protocols after the first.
        taken_over: Most sends of a schedule that the other protocols take over from the first.
        ahead: Stage before exact search, which counts steps and rounds and ignores latencies and gaps.
        exact_engine: Engine of the exact search.
        last_engine: Engine that runs after all others.
    """

    sizes: tuple[int, ...] = (LARGEST, 16 << 20, 4 << 20, 1 << 20, 256 << 10, 64 << 10, 16 << 10, SMALLEST)
    near: float = 1.3
    most: int = 4
    searching: float = 0.7
    first: float | None = 0.75
    first_ranks: int = 16
    exact: float = 0.8
    engines: tuple[str, ...] = (
        "route",
        "baseline",
        "switch",
        "closed",
        "balanced",
        "two-hops",
        "skewed",
        "levels",
        "messages",
        "flow",
        "lns",
    )
    taken_over: int = 3_000
    ahead: Stage = Stage("flow", share=0.15, once=True, refined=1_500, most_ranks=8, gap=1.05)
    exact_engine: str = "ksync"
    last_engine: str = "lns"

    def sizes_of(
        self, bounds: Mapping[str, Bound], able: Sequence[str], sizes: Sequence[Size]
    ) -> dict[str, tuple[Size, ...]]:
        """Return the sizes in bytes at which each protocol is searched, the protocol with the largest size first.

        Among protocols with the same largest size, the one with the least bound there is first. Protocols that are near
        the least bound at no size are left out; the others have at most `most` sizes each, the first of `sizes` first.

        Args:
            bounds: What is proved of each protocol.
            able: Protocols to choose from, which are keys of `bounds`.
            sizes: Message sizes in bytes to choose from, the largest first.
        """
        least_us = {size: min(bounds[name].at(size)[0] for name in able) for size in sizes}
        near = {
            name: [size for size in sizes if bounds[name].at(size)[0] <= self.near * least_us[size]][: self.most]
            for name in able
        }
        order = sorted((name for name in able if near[name]), key=lambda name: bounds[name].at(near[name][0])[0])
        return {name: tuple(near[name]) for name in sorted(order, key=lambda name: -near[name][0])}

    def share_of(self, place: int, protocols: int) -> float:
        """Return the share (0 to 1) of the time left for the search of one protocol.

        The first of two or more gets `first`, if that is not None; otherwise those that are left get equal shares.

        Args:
            place: Its place in the order of searches, from 0.
            protocols: Number of protocols that are searched.
        """
        if place == 0 and protocols > 1 and self.first is not None:
            return self.first
        return 1.0 / (protocols - place)

    def plan_for(self, plan: SearchPlan, options: Options, is_first: bool) -> SearchPlan:
        """Return the plan for one protocol: all engines for the first one, those that mind latencies for the others.

        For the first one, the stage `ahead` comes before exact search, which gets the share `exact`, and `last_engine`
        comes last. For the others, only stages of `engines` remain, without the rest.

        Args:
            plan: The plan without protocols; it is returned as it is if the user pins an engine or a shape.
            options: What the user pins.
            is_first: Whether this protocol is searched first.
        """
        if options.engine != AUTO or options.pinned:
            return plan
        if not is_first:
            stages = tuple(stage for stage in plan.stages if stage.engine in self.engines)
            return replace(plan, stages=stages, rest=False)
        # What all protocols can use is worth more than what fits the latencies of one.
        order = [replace(s, share=self.exact) if s.engine == self.exact_engine else s for s in plan.stages]
        order.sort(key=lambda stage: stage.engine == self.last_engine)
        at = next((place for place, stage in enumerate(order) if stage.engine == self.exact_engine), len(order))
        return replace(plan, stages=(*order[:at], self.ahead, *order[at:]))


@dataclass(frozen=True)
class SearchPlan:
    """The stages of a search, and what limits the work of its engines and bounds.

    Attributes:
        stages: Engines in the order in which they run.
        rest: Whether engines without a stage run last, in what is left of the budget.
        work_s: Seconds of counted work for engines that do not read the clock; None for `work_share` of the budget.
        work_share: Share of the budget that is used as `work_s` where that is None.
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
        patience: Share of the budget after which a patient search hurries with its programs; inf for never.
        programs: Which programs of an executor are made: those of ALL winners, only a FIRST one, so that there is a
            file whatever comes, or NONE; the caller makes the others.
        protocols: How protocols are searched where an executor's costs are on.
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
    patience: float = np.inf
    programs: ProgramScope = ProgramScope.ALL
    protocols: ProtocolPlan = ProtocolPlan()


@dataclass(frozen=True)
class GroupsPlan(SearchPlan):
    """The plan of a search for concurrent groups, whose stages are methods that make plans for all groups.

    Attributes:
        isolated: Share of the budget for isolated runs, before the stages.
        lowering: Share of the budget, at its end, in which plans become programs and files.
        writing: Share of the budget for schedules if no programs are made.
        most_sends: Most sends to which chunks are refined.
        worth: Part of the makespan that finer chunks must gain.
        reordered: Number of plans whose order is made fairer.
        settling: Times that a plan may replace isolated runs.
        lowered: Most plans that become programs, the fastest first, after the first that can.
    """

    isolated: float = 0.25
    lowering: float = 0.3
    writing: float = 0.05
    most_sends: int = 400_000
    worth: float = 0.003
    reordered: int = 4
    settling: int = 4
    lowered: int = 4

    def limited(self, rank_sends: int | None, nranks: int) -> GroupsPlan:
        """Return the plan for schedules in which a rank takes part in at most so many sends; None for any number.

        Its `most_sends` is at most rank_sends · nranks; None leaves the plan as it is.
        """
        return self if rank_sends is None else replace(self, most_sends=min(self.most_sends, rank_sends * nranks))


SINGLE = SearchPlan(
    stages=(
        # Before the engines whose answers would each be lowered only to lose against this one.
        Stage("switch"),
        # Where nodes are not alike, the next two waste the ports of the others.
        Stage("rails", share=0.4, gap=1.005),
        # Of several nodes, these two find good answers before others have loaded their compiled loops.
        Stage("levels", share=0.2, gap=1.005),
        Stage("messages", share=0.25, gap=1.005),
        # It refuses all questions but those with a matrix of sizes, and answers these at once.
        Stage("skewed", share=0.2, gap=1.005),
        Stage("route", share=0.5, most_ranks=16, as_first=True),
        # Before the baselines, each of which would be lowered; elsewhere other engines come close to the bound.
        Stage("closed", share=0.25, gap=1.02, in_shares=True),
        # Ordering the sends of larger answers takes longer than the search.
        Stage("baseline", share=0.2, most_sends=15_000, always=True),
        Stage("balanced", share=0.1, gap=1.005),
        Stage("two-hops", most_sends=15_000),
        Stage("one-shot", share=0.15, gap=1.02),
        # Before the packing of trees.
        Stage("flow", share=0.05, from_ranks=_MANY_RANKS, gap=1.02),
        Stage("trees", share=0.35, gap=1.005),
        Stage("steiner", share=0.3, gap=1.01),
        # With fewer ranks exact search ends, and loading compiled loops takes longer than that.
        Stage("flow", share=0.3, from_ranks=9, most_ranks=_MANY_RANKS - 1),
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
            Stage("skewed", share=0.1, gap=1.02),
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

# There are many isolated runs, each with a part of a second, so only constructive engines run.
ISOLATED = SearchPlan(
    stages=(
        Stage("baseline", most_sends=300_000, always=True),
        Stage("route", most_ranks=16),
        Stage("flow", share=0.75, gap=FLOW.near),  # The rest is for the bound.
    ),
    rest=False,
    work_s=0.5,
    patient=True,
    met=FLOW.near,
    max_flow_ranks=64,
    quick_bounds=True,
)

GROUPS = GroupsPlan(
    stages=(
        Stage(WITHIN, share=0.1),
        Stage(AT_ONCE),
        Stage(IN_TURN),
        Stage(DIRECT),
        Stage(JOINT, until=0.65),  # The rest is for the bound.
    ),
    met=FLOW.near,
    max_flow_ranks=256,
    protocols=ProtocolPlan(searching=0.8, first=None),
)


def library_plan(low: int, high: int, work_s: float, nranks: int) -> SearchPlan:
    """Return the plan of a library's search, whose engines count their work and whose bounds no clock ends.

    Its programs are the same each time if they are made in `LIBRARY_PATIENCE` of the budget; then the clock hurries.

    It searches for `high`, a size about their geometric mean, and `low`, in this order and each once.

    Args:
        low: Smallest message size in bytes.
        high: Largest message size in bytes.
        work_s: Seconds of work that the engines count.
        nranks: Number of ranks of the problem.
    """
    middle = 1 << ((low.bit_length() + high.bit_length()) // 2)
    most_linear_s = np.inf if nranks <= _LINEAR_RANKS else 0.0
    return SearchPlan(
        stages=(
            Stage("switch"),
            Stage("levels", gap=1.005),
            Stage("messages", gap=1.005, most_ranks=_MOST_MESSAGING),
            Stage("baseline", most_sends=LIBRARY_BASELINE_SENDS, always=True),
            Stage("route", most_ranks=16),
            Stage("flow", gap=1.001),
        ),
        rest=False,
        work_s=work_s,
        patient=True,
        patience=LIBRARY_PATIENCE,
        sizes=tuple(dict.fromkeys((high, max(low, min(high, middle)), low))),
        effort=TighteningEffort(quick_ranks=np.inf, least_linear_s=0.0, most_linear_s=most_linear_s),
        max_flow_ranks=64,
        quick_bounds=True,
        windows=0.0,
    )
