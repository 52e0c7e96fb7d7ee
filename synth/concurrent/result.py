"""What a search for concurrent groups came to, and that as one documented object of plain values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from synth.bounds.prove import OPTIMAL, Bound
from synth.bounds.witness import Witness
from synth.concurrent.isolated import Isolated
from synth.concurrent.plans import DIRECT, ConcurrentPlan
from synth.model.collective import Floats
from synth.model.defects import Defect
from synth.model.problem import describe_alpha


@dataclass(frozen=True, eq=False)
class ConcurrentResult(ConcurrentPlan):
    """The answer for several groups at once: the plan that was chosen, and what it is compared with.

    Attributes:
        objective: makespan or fair.
        relay: the rule: none, all, or ranks.
        isolated: each group's best answer by itself, by the same rule for relays.
        bound: on the time of the union, sizes are the largest group's.
        rivals: bounds of other protocols, where an executor's costs are on; `bound` and `isolated` are of the plan's.
        others: (makespan in µs, largest slowdown) of the best plan of every method, by that method.
        ended: "" or why the search stopped early ("budget", "interrupted").
        seconds: that it took.
        defects: Parts of our own that failed; their plans are missing.
    """

    objective: str
    relay: str
    isolated: tuple[Isolated, ...]
    bound: Bound
    others: dict[str, tuple[float, float]]
    ended: str = ""
    seconds: float = 0.0
    rivals: tuple[Bound, ...] = ()
    defects: tuple[Defect, ...] = ()

    @property
    def size_bytes(self) -> float:
        """The union's message size: the largest group's."""
        return self.problem.size_bytes

    @cached_property
    def isolated_us(self) -> Floats:
        """What each group takes by itself, shape (groups,)."""
        return np.array([one.time_us for one in self.isolated])

    @cached_property
    def isolated_bound_us(self) -> Floats:
        """A lower limit on what each group takes by itself, shape (groups,)."""
        return np.array([one.bound_us for one in self.isolated])

    @property
    def slowdowns(self) -> Floats:
        """Time in the plan / time in isolation, shape (groups,)."""
        return self.times_us / self.isolated_us

    @cached_property
    def decisive(self) -> tuple[float, Witness, int | None]:
        """The bound on the makespan in µs, what proves it, and the group whose own it is (None: the union's)."""
        bound_us, witness = self.bound.at(self.size_bytes)
        group = int(np.argmax(self.isolated_bound_us))
        own = self.isolated[group]
        found: tuple[float, Witness, int | None] = bound_us, witness, None
        if own.bound_us > bound_us * (1 + 1e-9):
            found = own.bound_us, own.bound.at(own.size_bytes)[1], group
        rivals = [(*bound.at(self.size_bytes), None) for bound in self.rivals]
        return min([found, *rivals], key=lambda one: one[0])

    @property
    def bound_us(self) -> float:
        """A lower limit on the makespan: the union's, or a group's own."""
        return self.decisive[0]

    @property
    def gap(self) -> float:
        """Makespan / bound."""
        return self.makespan_us / self.bound_us

    @property
    def sum_us(self) -> float:
        """What the groups take one after another, each in isolation."""
        return float(self.isolated_us.sum())

    @property
    def direct_us(self) -> float | None:
        """What Direct takes for all groups at once; None where there is no Direct for these collectives."""
        known = self.others.get(DIRECT)
        return None if known is None else known[0]


def statement(found: ConcurrentResult) -> dict[str, Any]:
    """Everything that was found, in plain values. Times in µs.

    Keys: collective, topology, summary, alpha, relay, objective;
    groups: for each ranks, collective, size_bytes, time_us (together), alone_us, slowdown, alone_bound_us,
    alone_gap, engine (that found the plan alone);
    time_us (when the last group is done), bound_us, gap, optimal, proof (what proves the bound in words),
    proved_by (the group whose own bound it is, from 0; None: the union's); slowdown (the largest);
    sum_us, vs_sum (one after another / time_us); direct_us, vs_direct (None without a Direct);
    by (the method of planning that won), plans (every method: time_us, slowdown); engine,
    chunks (a block), steps, sends; bounds (the union's witnesses, as in a single group's statement); ended, seconds.
    """
    problem, algorithm, direct = found.problem, found.algorithm, found.direct_us
    bound_us, witness, group = found.decisive
    return {
        "collective": problem.collective.name,
        "topology": problem.topology.name,
        "summary": problem.topology.summary,
        "alpha": describe_alpha(problem),
        "relay": found.relay,
        "objective": found.objective,
        "groups": [
            {
                "ranks": list(member.ranks),
                "collective": member.collective.name,
                "size_bytes": member.size_bytes,
                "time_us": float(found.times_us[i]),
                "alone_us": one.time_us,
                "slowdown": float(found.slowdowns[i]),
                "alone_bound_us": one.bound_us,
                "alone_gap": one.time_us / one.bound_us,
                "engine": one.engine,
            }
            for i, (member, one) in enumerate(zip(found.problem.members, found.isolated, strict=True))
        ],
        "time_us": found.makespan_us,
        "bound_us": bound_us,
        "gap": max(1.0, found.gap),
        "optimal": found.gap <= OPTIMAL,
        "proof": witness.text,
        "proved_by": group,
        "slowdown": float(found.slowdowns.max()),
        "sum_us": found.sum_us,
        "vs_sum": found.sum_us / found.makespan_us,
        "direct_us": direct,
        "vs_direct": None if direct is None else direct / found.makespan_us,
        "by": found.method,
        "plans": {method: {"time_us": t, "slowdown": slow} for method, (t, slow) in found.others.items()},
        "engine": algorithm.engine,
        "chunks": algorithm.chunks,
        "steps": algorithm.steps,
        "sends": len(algorithm.schedule),
        "bounds": found.bound.documents(),
        "ended": found.ended,
        "seconds": round(found.seconds, 3),
    }
