"""The result of a search for concurrent groups, and the same as one documented object of plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from synth.bounds.prove import OPTIMAL, Bound, prove
from synth.bounds.witness import Witness
from synth.concurrent.isolated import Isolated
from synth.concurrent.plans import ConcurrentPlan
from synth.model.collective import Floats
from synth.model.defects import Defect
from synth.model.problem import Problem, describe_alpha
from synth.search.plans import DIRECT
from topologies.costed import protocols_of
from topologies.costs import ANY


@dataclass(frozen=True, eq=False)
class ConcurrentResult(ConcurrentPlan):
    """The answer for several groups: the plan that was chosen, and what it is compared with.

    Attributes:
        objective: "makespan" or "fair".
        relay: Rule for relays as text: "none", "all", or ranks, such as "8,9".
        isolated: Each group's best answer by itself, by the same rule for relays.
        bound: Lower limit on the time of the union, by the largest group's message size.
        best_by_method: Makespan in µs and largest slowdown of the best plan of every method, by that method.
        stop_reason: Why the search stopped early ("budget", "interrupted"), or "".
        seconds: Seconds that the search took.
        rivals: Bounds of other protocols, if costs are on; empty otherwise. `bound` and `isolated` are of the plan's
            protocol.
        defects: Parts of synth that failed, so that their plans are missing.
    """

    objective: str
    relay: str
    isolated: tuple[Isolated, ...]
    bound: Bound
    best_by_method: dict[str, tuple[float, float]]
    stop_reason: str = ""
    seconds: float = 0.0
    rivals: tuple[Bound, ...] = ()
    defects: tuple[Defect, ...] = ()

    @property
    def size_bytes(self) -> float:
        """Return the union's message size in bytes, which is the largest group's."""
        return self.problem.size_bytes

    @cached_property
    def isolated_us(self) -> Floats:
        """Return the time of each group by itself, in µs, shape (groups,)."""
        return np.array([answer.time_us for answer in self.isolated])

    @cached_property
    def isolated_bound_us(self) -> Floats:
        """Return a lower limit on the time of each group by itself, in µs, shape (groups,)."""
        return np.array([answer.bound_us for answer in self.isolated])

    @property
    def slowdowns(self) -> Floats:
        """Return time in the plan / time in isolation, shape (groups,)."""
        return self.times_us / self.isolated_us

    @cached_property
    def decisive(self) -> tuple[float, Witness, int | None]:
        """Return the bound on the makespan in µs, its witness, and the position of the group whose own it is.

        It is the higher of the union's bound and the groups' own ones; with other protocols, the least over all
        protocols. The group is None for a bound of the union, also under another protocol.
        """
        bound_us, witness = self.bound.at(self.size_bytes)
        # Of isomorphic groups with equal bounds this is the first, whose witnesses are about its own problem.
        group = int(np.argmax(self.isolated_bound_us))
        own = self.isolated[group]
        decisive: tuple[float, Witness, int | None] = bound_us, witness, None
        if own.bound_us > bound_us * (1 + 1e-9):
            decisive = own.bound_us, own.bound.at(own.size_bytes)[1], group
        rivals = [(*bound.at(self.size_bytes), None) for bound in self.rivals]
        return min([decisive, *rivals], key=lambda limit: limit[0])

    @property
    def bound_us(self) -> float:
        """Return a lower limit on the makespan in µs: the union's bound, or a group's own."""
        return self.decisive[0]

    @property
    def gap(self) -> float:
        """Return makespan / bound."""
        return self.makespan_us / self.bound_us

    @property
    def sum_us(self) -> float:
        """Return the time of the groups one after another, each in isolation, in µs."""
        return float(self.isolated_us.sum())

    @property
    def direct_us(self) -> float | None:
        """Return the makespan of the direct plan in µs; None if there is none for these collectives."""
        direct = self.best_by_method.get(DIRECT)
        return None if direct is None else direct[0]


def statement(result: ConcurrentResult) -> dict[str, Any]:
    """Return everything about a result in plain values. Times are in µs.

    Keys: collective, topology (its name), summary, alpha, relay, objective; groups (for each: ranks, collective,
    size_bytes, time_us in the plan, alone_us, slowdown, alone_bound_us, alone_gap, engine that found the isolated run);
    time_us (when the last group is done), bound_us, gap, optimal, proof (what proves the bound, in words), proved_by
    (the group whose own bound it is, from 0; None for the union); slowdown (the largest); sum_us and vs_sum (groups one
    after another, and that / time_us); direct_us and vs_direct (None without a direct plan); by (the method of the
    chosen plan), plans (by method: time_us and slowdown of its best plan); engine, chunks (a block), steps, sends;
    bounds (the union's witnesses, as in a single group's statement); ended ("", "budget" or "interrupted"), seconds.
    """
    problem, algorithm, direct = result.problem, result.algorithm, result.direct_us
    bound_us, witness, group = result.decisive
    return {
        "collective": problem.collective.name,
        "topology": problem.topology.name,
        "summary": problem.topology.summary,
        "alpha": describe_alpha(problem),
        "relay": result.relay,
        "objective": result.objective,
        "groups": [
            {
                "ranks": list(member.ranks),
                "collective": member.collective.name,
                "size_bytes": member.size_bytes,
                "time_us": float(result.times_us[i]),
                "alone_us": answer.time_us,
                "slowdown": float(result.slowdowns[i]),
                "alone_bound_us": answer.bound_us,
                "alone_gap": answer.time_us / answer.bound_us,
                "engine": answer.engine,
            }
            for i, (member, answer) in enumerate(zip(result.problem.members, result.isolated, strict=True))
        ],
        "time_us": result.makespan_us,
        "bound_us": bound_us,
        "gap": max(1.0, result.gap),
        "optimal": result.gap <= OPTIMAL,
        "proof": witness.text,
        "proved_by": group,
        "slowdown": float(result.slowdowns.max()),
        "sum_us": result.sum_us,
        "vs_sum": result.sum_us / result.makespan_us,
        "direct_us": direct,
        "vs_direct": None if direct is None else direct / result.makespan_us,
        "by": result.method,
        "plans": {method: {"time_us": t, "slowdown": slow} for method, (t, slow) in result.best_by_method.items()},
        "engine": algorithm.engine,
        "chunks": algorithm.chunks,
        "steps": algorithm.steps,
        "sends": len(algorithm.schedule),
        "bounds": result.bound.documents(),
        "ended": result.stop_reason,
        "seconds": round(result.seconds, 3),
    }


def over_protocols(problem: Problem, bound: Bound, rivals: Sequence[Bound] = ()) -> tuple[Problem, Sequence[Witness]]:
    """Return a problem and what proves its bound, as proofs state them: with costs, over all protocols.

    Without costs these are the problem itself and the witnesses of `bound`.

    Args:
        problem: The problem, under one protocol or without costs.
        bound: Bound under the problem's protocol.
        rivals: Bounds of the other protocols; if empty they are proved now.
    """
    own = problem.topology.protocol
    if not own:
        return problem, bound.witnesses
    other_names = [name for name in protocols_of(problem.topology) if name != own]
    rivals = rivals or [prove(problem.under(name), max_flow=False).of_protocol(name) for name in other_names]
    return problem.under(ANY), [w for proved in (bound.of_protocol(own), *rivals) for w in proved.witnesses]
