"""What a search came to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TypeVar

from synth.baselines.libraries import LIBRARIES, Model
from synth.baselines.nccl.model import Choice
from synth.bounds.prove import Bound
from synth.bounds.witness import Witness
from synth.engines.registry import AUTO
from synth.engines.request import SlotClaim, StepClaim
from synth.model.defects import Defect, contained
from synth.model.problem import Problem
from synth.search.frontier import Contender, Range
from synth.verify.algorithm import Algorithm
from topologies.errors import NotModelled

Answer = TypeVar("Answer")
Report = Callable[[str, "Algorithm | None"], None]  # what is tried, and the best so far


@dataclass
class SearchResult:
    """What a search came to.

    Attributes:
        ranges: the frontier, or one range at the pinned size.
        others: what else was found and could be shown.
        bound: on the time of any algorithm.
        baselines: what a vendor library would run.
        claims: per copying phase and number of steps, what is proved in the k-synchronous model.
        slots: what the dual bounds of time-slot programs prove.
        impossible: why no schedule of the pinned shape exists, where that was proved.
        refused: what was found and is in no range, since the executor that was asked for can hold no program of it; in
            the ranges too where it can hold none at all.
        healthy: the same for the healthy network, where this one has dead or slow parts.
        engine: that was named (`auto`: none); other_engines: what else found algorithms of the ranges, if one was.
        unsaid: why the problem's switches only forward though the topology's can do more.
        bound_s: when each witness was found, in seconds since the search began.
        queue: engines that have not ended, the one first that would go on first.
        asked_sizes: those in bytes about which engines were asked one by one, since their gaps were large.
        refutable: a size in bytes for which bounds by windows of time would be looked for; None: for none.
        ended: "" or why the search stopped early ("budget", "interrupted").
        defects: Parts of our own that failed; their answers are missing.
        seconds: that it took.
    """

    problem: Problem
    ranges: list[Range] = field(default_factory=list)
    others: list[Contender] = field(default_factory=list)
    bound: Bound = field(default_factory=lambda: Bound(()))
    baselines: list[Algorithm] = field(default_factory=list)
    claims: list[StepClaim] = field(default_factory=list)
    slots: list[SlotClaim] = field(default_factory=list)
    impossible: str = ""
    refused: list[Contender] = field(default_factory=list)
    healthy: SearchResult | None = None
    engine: str = AUTO
    other_engines: tuple[str, ...] = ()
    unsaid: str = ""
    bound_s: dict[Witness, float] = field(default_factory=dict)
    queue: tuple[str, ...] = ()
    asked_sizes: set[int] = field(default_factory=set)
    refutable: int | None = None
    ended: str = ""
    defects: tuple[Defect, ...] = ()
    seconds: float = 0.0

    def raise_bound(self, bound: Bound, at_s: float) -> None:
        """Take a bound with further witnesses, found so many seconds after the search began."""
        for witness in bound.witnesses:
            self.bound_s.setdefault(witness, at_s)
        self.bound = bound

    @cached_property
    def _models(self) -> dict[str, Model | NotModelled]:
        found: dict[str, Model | NotModelled] = {}
        for library in LIBRARIES.values():
            ask = partial(library.model, self.problem.topology, self.problem.group)
            found[library.name] = _modelled(library.name, ask)
        return found

    def library(self, name: str, size_bytes: int) -> Choice | NotModelled:
        """What a library of LIBRARIES would take itself, or why that is not known."""
        model = self._models[name]
        if isinstance(model, NotModelled):
            return model
        return _modelled(name, partial(model.choose, self.problem.collective.name, size_bytes))

    def fastest(self, size_bytes: int) -> Range:
        """What serves a message size."""
        served = (one for one in self.ranges if one.high is None or size_bytes <= one.high)
        return next(served, self.ranges[-1])


def _modelled(library: str, ask: Callable[[], Answer]) -> Answer | NotModelled:
    """Return what a library's own model answers, or why it has no answer."""

    def answer() -> Answer | NotModelled:
        try:
            return ask()
        except NotModelled as reason:
            return reason

    without: Answer | NotModelled = NotModelled("its model has a defect")
    return contained(f"model of {library}", answer, without)
