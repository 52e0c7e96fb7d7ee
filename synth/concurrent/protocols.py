"""Several groups where an executor's costs are on: each protocol is a network of its own, and all groups take one.

Protocols whose bound is near the least of all are planned one after another; the fastest plan is the answer, and its
bound the least of all protocols'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from synth.bounds.prove import Bound, prove
from synth.bounds.witness import Witness
from synth.concurrent.executable import GroupExecutor
from synth.concurrent.result import ConcurrentResult
from synth.concurrent.search import plan
from synth.concurrent.union import Member, UnionProblem, union_problem
from synth.model.deadline import now
from synth.model.problem import Problem
from topologies.costed import protocols_of, under
from topologies.costs import ANY
from topologies.errors import InputError
from topologies.faults.apply import degraded
from topologies.faults.notation import dead_ranks
from topologies.topology import Topology, without_switch_ops

_PLANNING = 0.8  # of the budget; in the rest files are written
_NEAR = 1.3  # a protocol's bound over the least, up to which it is planned


def plan_protocols(
    topology: Topology,
    members: Sequence[Member],
    *,
    budget: float = 30.0,
    begun: float | None = None,
    executor: GroupExecutor | None = None,
    **options: Any,
) -> ConcurrentResult:
    """`plan` of a topology on which costs are on under whichever protocol is best; arguments and errors as there.

    Protocols that the executor has not are not planned, but count for the bound. Raises InputError, too, where it has
    none of them.
    """
    begun = now() if begun is None else begun
    without, degrade = options.get("without", ()), options.get("degrade", ())
    network = degraded(without_switch_ops(topology), without, degrade)
    dead, relays = dead_ranks(topology, without), options.get("relays", "none")
    unions = {name: union_problem(under(network, name), members, relays, dead) for name in protocols_of(network)}
    size = next(iter(unions.values())).size_bytes
    bounds = {name: prove(union, max_flow=False) for name, union in unions.items()}
    least = {name: bound.at(size)[0] for name, bound in bounds.items()}
    able = [name for name in unions if executor is None or _has(executor, unions[name], name)]
    if not able:
        raise InputError(f"costs: of {' '.join(unions)}; it must be a --target that has one of them")
    near = [
        name for name in sorted(able, key=least.__getitem__) if least[name] <= _NEAR * min(least[one] for one in able)
    ]
    found: dict[str, ConcurrentResult] = {}
    for place, name in enumerate(near):
        left_s = (begun + _PLANNING * budget - now()) / (len(near) - place)
        if found and (left_s <= 0 or any(one.ended == "interrupted" for one in found.values())):
            break
        asked = {**options, "budget": max(left_s, 0.05), "executor": executor}
        found[name] = plan(under(topology, name), members, begun=now(), **asked)
    best = min(found, key=lambda name: _time_us(found[name], executor))
    ended = next((why for why in ("interrupted", "budget") if any(one.ended == why for one in found.values())), "")
    rivals = (name for name in unions if name != best)
    proved = tuple((found[name].bound if name in found else bounds[name]).of_protocol(name) for name in rivals)
    defects = tuple(dict.fromkeys(defect for one in found.values() for defect in one.defects))
    return replace(found[best], rivals=proved, ended=ended, seconds=now() - begun, defects=defects)


def over_protocols(problem: Problem, bound: Bound, rivals: Sequence[Bound] = ()) -> tuple[Problem, Sequence[Witness]]:
    """A problem and what proves its bound, as proofs state them: where costs are on, over all protocols.

    bound: under the problem's protocol. rivals: of the others; none: they are proved now.
    """
    own = problem.topology.protocol
    if not own:
        return problem, bound.witnesses
    others = [name for name in protocols_of(problem.topology) if name != own]
    rivals = rivals or [prove(problem.under(name), max_flow=False).of_protocol(name) for name in others]
    return problem.under(ANY), [w for one in (bound.of_protocol(own), *rivals) for w in one.witnesses]


def _has(executor: GroupExecutor, union: UnionProblem, name: str) -> bool:
    able = executor.isolated(union)
    return able is None or bool(able.able([name]))


def _time_us(found: ConcurrentResult, executor: GroupExecutor | None) -> float:
    """What its programs take together, or far more than any; its schedule where there is no executor."""
    if executor is None:
        return found.makespan_us
    try:
        return executor.time_us(found.problem, found.algorithm)
    except InputError:
        return float(np.finfo(float).max) / 2 + found.makespan_us
