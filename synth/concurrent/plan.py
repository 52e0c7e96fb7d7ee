"""Groups planned together on the links they share, and what that costs each of them.

All times are those of `synth.timing.simulate`; every plan is replayed as one schedule of the union, and where
chunks may not leave their group that is checked too.

`--objective fair` takes the plan with the smallest of the largest slowdowns (time in the plan / time in isolation),
among the same plans and others with their sends in another order (`synth.concurrent.plans.fairer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from synth.bounds.prove import OPTIMAL, Bound
from synth.bounds.witness import Witness
from synth.concurrent.isolated import Isolated
from synth.concurrent.plans import ConcurrentPlan
from synth.concurrent.search import DIRECT, Asked, ConcurrentSearch
from synth.concurrent.union import Member, UnionProblem, union_problem
from synth.model.collective import Floats
from synth.model.problem import describe_alpha
from synth.search.result import Report
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError
from topologies.faults.apply import degraded
from topologies.faults.notation import dead_ranks, live_ranks
from topologies.load import load
from topologies.topology import Topology

OBJECTIVES = ("makespan", "fair")
ENGINES = ("auto", "flow")
_SEEDS = 2**31


@dataclass(frozen=True, eq=False)
class ConcurrentResult:
    """The answer for several groups at once.

    Attributes:
        chosen: the plan.
        objective: makespan or fair.
        relay: the rule: none, all, or ranks.
        isolated: each group's best answer by itself, by the same rule for relays.
        bound: on the time of the union, sizes are the largest group's.
        others: (makespan in µs, largest slowdown) of the best plan of every method, by that method.
        ended: "" or why the search stopped early ("budget", "interrupted").
        seconds: that it took.
    """

    chosen: ConcurrentPlan
    objective: str
    relay: str
    isolated: tuple[Isolated, ...]
    bound: Bound
    others: dict[str, tuple[float, float]]
    ended: str = ""
    seconds: float = 0.0

    @property
    def problem(self) -> UnionProblem:
        """The groups as one problem."""
        return self.chosen.problem

    @property
    def algorithm(self) -> Algorithm:
        """The union's, replayed."""
        return self.chosen.algorithm

    @property
    def size_bytes(self) -> float:
        """The union's message size: the largest group's."""
        return self.problem.size_bytes

    @property
    def times_us(self) -> Floats:
        """When each group is done when all begin together, shape (groups,)."""
        return self.chosen.times_us

    @property
    def makespan_us(self) -> float:
        """When the last group is done."""
        return self.chosen.makespan_us

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
        if own.bound_us > bound_us * (1 + 1e-9):
            return own.bound_us, own.bound.at(own.size_bytes)[1], group
        return bound_us, witness, None

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
        "by": found.chosen.method,
        "plans": {method: {"time_us": t, "slowdown": slow} for method, (t, slow) in found.others.items()},
        "engine": algorithm.engine,
        "chunks": algorithm.chunks,
        "steps": algorithm.steps,
        "sends": len(algorithm.schedule),
        "bounds": found.bound.documents(),
        "ended": found.ended,
        "seconds": round(found.seconds, 3),
    }


def plan(
    topo: str | Path | Topology,
    members: Sequence[Member],
    *,
    relays: Sequence[int] | str = "none",
    without: Sequence[str] = (),
    degrade: Sequence[str] = (),
    objective: str = "makespan",
    chunks: int | None = None,
    engine: str = "auto",
    budget: float = 30.0,
    seed: int = 0,
    workers: Workers | None = None,
    progress: Report | None = None,
) -> ConcurrentResult:
    """Plan several groups together.

    Args:
        topo: a machine, a family, a file, or a Topology.
        members: the groups, each with a collective (one chunk a block) and a size of its own.
        relays: who may forward chunks of a group beside its members: "none"; "all": every rank that lives; or
            ranks, then these and the members of all groups.
        without, degrade: dead and slow parts, as texts (see `topologies.faults.apply`).
        objective: makespan: the end of the last group; fair: the largest slowdown of a group, then the makespan.
        chunks: of every block; any when None.
        engine: flow; or auto, which also tries what a vendor library would run.
        budget: seconds.
        seed: taken for likeness with other questions: these engines draw nothing at random.
        workers: solver processes to use again.
        progress: called with what is tried and the best so far.

    Raises:
        InputError: anything that cannot be, in one line.
    """
    for name, value, known in (("objective", objective, OBJECTIVES), ("engine", engine, ENGINES)):
        if value not in known:
            raise InputError(f"{name}: {value!r} is not known for several groups; it is {' or '.join(known)}")
    if not 0 < budget < 1e7:
        raise InputError(f"budget: {budget:g} s is not possible; it must be more than 0 seconds")
    if not 0 <= seed < _SEEDS:
        raise InputError(f"seed: {seed} is not possible; it must be in 0..{_SEEDS - 1}")
    if chunks is not None and chunks < 1:
        raise InputError(f"chunks: {chunks} is not possible; it must be 1 or more")
    healthy = topo if isinstance(topo, Topology) else load(topo)
    dead = dead_ranks(healthy, without)
    for member in members:
        live_ranks(healthy, dead, member.ranks, f"group {member.label}" if member.ranks else "group")
    if not isinstance(relays, str):
        relays = live_ranks(healthy, dead, relays, "relay")
    topology = degraded(healthy, without, degrade)
    problem = union_problem(topology, members, relays, dead)
    asked = Asked(relays, dead, objective, chunks, engine, budget)
    with ExitStack() as stack:
        search = ConcurrentSearch(problem, asked, workers or stack.enter_context(Workers()), progress)
        chosen = search.run()
    relay = relays if isinstance(relays, str) else ",".join(map(str, relays)) or "none"
    isolated, others = tuple(search.isolated), search.by_method()
    return ConcurrentResult(chosen, objective, relay, isolated, search.bound, others, search.ended, search.seconds)
