"""The question that a search answers."""

from __future__ import annotations

from dataclasses import dataclass

from synth.engines.request import Options
from synth.model.problem import Problem
from synth.search.settings import TargetSettings


@dataclass(frozen=True, eq=False)
class Question:
    """A problem with what is pinned, the budget, and the target of its programs.

    Attributes:
        problem: The problem with one chunk a block, on the topology with its dead and slow parts and its costs.
        options: What is pinned, the budget and the seed.
        settings: The target and its limits.
        healthy: The problem without dead and slow parts, of all ranks unless a group was named; None if there are no
            such parts.
        why_switches_forward: Why the problem's switches only forward although the topology's can do more; "" if they do
            all they can.
    """

    problem: Problem
    options: Options
    settings: TargetSettings
    healthy: Problem | None = None
    why_switches_forward: str = ""
