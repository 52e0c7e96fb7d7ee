"""The result of a search, with what vendor libraries would run by their own models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TypeVar

from synth.baselines.nccl.model import LibraryChoice
from synth.baselines.vendors import LIBRARIES, Model
from synth.bounds.prove import Bound
from synth.bounds.witness import Witness
from synth.engines.registry import AUTO
from synth.engines.request import SlotClaim, StepClaim
from synth.model.defects import Defect, contained
from synth.model.problem import Problem
from synth.model.text import format_count
from synth.search.offer import Offer
from synth.verify.algorithm import Algorithm
from topologies.errors import NotModelled

Answer = TypeVar("Answer")
Report = Callable[[str, "Algorithm | None"], None]  # It receives what is tried, and the best algorithm so far.

LEFT_OUT = "include an executor's costs, which these times leave out"  # what is said of a library's times


@dataclass
class SearchResult:
    """The answer of a search: algorithms by message size, their bound, and what else is known.

    Attributes:
        problem: The problem, with one chunk a block.
        ranges: The frontier, or one offer at the pinned size; empty if a pinned shape has no schedule.
        unused: Algorithms that could be shown but serve no size.
        bound: Lower limit on the time of any algorithm.
        baselines: Algorithms that a vendor library would run.
        claims: What is proved in the k-synchronous model, for each copying phase and number of steps.
        slots: What the dual bounds of time-slot programs prove.
        impossible: Why no schedule of the pinned shape exists, where that was proved.
        refused: Algorithms of which the executor can hold no program. They are in the ranges too if it can hold none at
            all.
        healthy: The result for the healthy network, if this network has dead or slow parts.
        healthy_times: Functions from a message size in bytes to the time in µs of further known answers for the healthy
            network; infinity for a size that they do not serve.
        engine: Engine that the user named, or `auto`.
        other_engines: Other engines that found algorithms of the ranges, if the user named one.
        why_switches_forward: Why the switches of the problem only forward although those of the topology can do more.
        bound_s: When each witness was found, in seconds since the search began.
        remaining_engines: Engines that have not ended, in the order in which they would go on.
        retried_sizes: Message sizes in bytes that engines searched again one by one, because their gaps were large.
        next_window_size: Message size in bytes that bounds by windows of time would look at next; None for no size.
        stop_reason: Why the search stopped early ("budget", "interrupted"), or "".
        defects: Parts of synth that failed, so that their answers are missing.
        seconds: Seconds that the search took.
    """

    problem: Problem
    ranges: list[Offer] = field(default_factory=list)
    unused: list[Offer] = field(default_factory=list)
    bound: Bound = field(default_factory=lambda: Bound(()))
    baselines: list[Algorithm] = field(default_factory=list)
    claims: list[StepClaim] = field(default_factory=list)
    slots: list[SlotClaim] = field(default_factory=list)
    impossible: str = ""
    refused: list[Offer] = field(default_factory=list)
    healthy: SearchResult | None = None
    healthy_times: tuple[Callable[[float], float], ...] = ()
    engine: str = AUTO
    other_engines: tuple[str, ...] = ()
    why_switches_forward: str = ""
    bound_s: dict[Witness, float] = field(default_factory=dict)
    remaining_engines: tuple[str, ...] = ()
    retried_sizes: set[int] = field(default_factory=set)
    next_window_size: int | None = None
    stop_reason: str = ""
    defects: tuple[Defect, ...] = ()
    seconds: float = 0.0

    def __repr__(self) -> str:
        """Return the question, the number of algorithms and why the search ended early in one line."""
        ended = f", ended by {self.stop_reason}" if self.stop_reason else ""
        return f"<SearchResult of {self.problem!r:.120}: {format_count(len(self.ranges), 'algorithm')}{ended}>"

    def raise_bound(self, bound: Bound, at_s: float) -> None:
        """Replace the bound by one that has its witnesses and maybe more.

        Args:
            bound: The new bound.
            at_s: When the witnesses that are new were proved, in seconds since the search began; `bound_s` records it,
                and keeps the times of the others.
        """
        for witness in bound.witnesses:
            self.bound_s.setdefault(witness, at_s)
        self.bound = bound

    @cached_property
    def _models(self) -> dict[str, Model | NotModelled]:
        """Return the model of every library for the topology and the group, or why there is none, by library."""
        models: dict[str, Model | NotModelled] = {}
        for library in LIBRARIES.values():
            ask = partial(library.model, self.problem.topology, self.problem.group)
            models[library.name] = _modelled(library.name, ask)
        return models

    def library(self, name: str, size_bytes: int) -> LibraryChoice | NotModelled:
        """Return what a library would choose for a message size in bytes.

        Args:
            name: Name of the library, a key of `synth.baselines.vendors.LIBRARIES`.
            size_bytes: Message size in bytes.

        Returns:
            The choice; or, returned and not raised, a NotModelled that says why it is not known, or not comparable.
        """
        model = self._models[name]
        if isinstance(model, NotModelled):
            return model
        choice = _modelled(name, partial(model.choose, self.problem.collective.name, size_bytes))
        if isinstance(choice, NotModelled) or self.problem.topology.protocol:
            return choice
        return NotModelled(f"{name}'s times {LEFT_OUT} (--costs none, or the topology states none)")

    def fastest(self, size_bytes: int) -> Offer:
        """Return the offer that serves a message size in bytes: the first range that does not end below it.

        For a size above all ranges it is the last one.

        Raises:
            IndexError: There are no ranges.
        """
        serving = (offer for offer in self.ranges if offer.high is None or size_bytes <= offer.high)
        return next(serving, self.ranges[-1])


def _modelled(library: str, ask: Callable[[], Answer]) -> Answer | NotModelled:
    """Return what a library's own model answers, or why it has no answer.

    The reason is a NotModelled that `ask` raised, or that stands for a defect of the model.
    """

    def answer() -> Answer | NotModelled:
        """Return the answer of `ask`, or the NotModelled that it raises."""
        try:
            return ask()
        except NotModelled as reason:
            return reason

    without: Answer | NotModelled = NotModelled("its model has a defect")
    return contained(f"model of {library}", answer, without)
