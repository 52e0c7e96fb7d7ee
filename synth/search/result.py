"""What a search is asked and what it came to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from synth.bounds.prove import Bound
from synth.engines.ksync.pareto import Claim
from synth.engines.time_slots.search import SlotClaim
from synth.model.problem import Problem
from synth.search.frontier import Range
from synth.verify.algorithm import Algorithm

ENGINES = ("auto", "flow", "route", "cpsat", "smt", "milp")

Progress = Callable[[str, "Algorithm | None"], None]  # what is tried, and the best so far


@dataclass(frozen=True)
class Options:
    """What the user pins. Sizes in bytes, budget in seconds."""

    size: int | None = None
    chunks: int | None = None
    steps: int | None = None
    rounds: int | None = None
    engine: str = "auto"
    budget_s: float = 30.0
    seed: int = 0

    @property
    def pinned(self) -> bool:
        """Whether a shape is asked for."""
        return self.chunks is not None or self.steps is not None or self.rounds is not None


@dataclass
class Found:
    """What a search came to.

    Attributes:
        ranges: the frontier, or one range at the pinned size.
        bound: on the time of any algorithm.
        baselines: what a vendor library would run.
        claims: per copying half and number of steps, what is proved in the k-synchronous model.
        slots: what the dual bounds of time-slot programs prove.
        impossible: why no schedule of the pinned shape exists, where that was proved.
        healthy: the same for the healthy network, where this one has dead or slow parts.
        ended: "" or why the search stopped early ("budget", "interrupted").
    """

    problem: Problem
    ranges: list[Range] = field(default_factory=list)
    bound: Bound = field(default_factory=lambda: Bound(()))
    baselines: list[Algorithm] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    slots: list[SlotClaim] = field(default_factory=list)
    impossible: str = ""
    healthy: Found | None = None
    ended: str = ""
    seconds: float = 0.0
