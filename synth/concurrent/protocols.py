"""Plan concurrent groups with an executor's costs: each protocol has a network of its own, and all groups use one.

Protocols whose bound is near the least bound are planned one after another. The fastest plan is the answer; its bound
is the least of all protocols' bounds.
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
from topologies.costed import protocols_of, with_protocol
from topologies.costs import ANY
from topologies.errors import InputError
from topologies.faults.apply import apply_faults
from topologies.faults.notation import dead_ranks
from topologies.topology import Topology, without_switch_ops

_PLANNING = 0.8  # The share of the budget for plans; files are written in the rest.
_NEAR = 1.3  # A protocol is planned if its bound is at most this multiple of the least bound.


def plan_protocols(
    topology: Topology,
    members: Sequence[Member],
    *,
    budget: float = 30.0,
    begun: float | None = None,
    executor: GroupExecutor | None = None,
    **options: Any,
) -> ConcurrentResult:
    """Plan groups on a topology with costs, under the protocol that is best; other arguments as those of `plan`.

    Protocols that the executor does not have are not planned, but count for the bound.

    Args:
        topology: The topology, with costs.
        members: The groups.
        budget: Seconds.
        begun: Reading of `now` since which the budget counts; None for now.
        executor: The lowering of plans; None for schedules.
        **options: Further arguments of `plan`.

    Raises:
        InputError: As `plan`, or the executor has none of the protocols.
    """
    begun = now() if begun is None else begun
    without, degrade = options.get("without", ()), options.get("degrade", ())
    network = apply_faults(without_switch_ops(topology), without, degrade)
    dead, relays = dead_ranks(topology, without), options.get("relays", "none")
    unions = {
        name: union_problem(with_protocol(network, name), members, relays, dead) for name in protocols_of(network)
    }
    size = next(iter(unions.values())).size_bytes
    bounds = {name: prove(union, max_flow=False) for name, union in unions.items()}
    least = {name: bound.at(size)[0] for name, bound in bounds.items()}
    able = [name for name in unions if executor is None or _has(executor, unions[name], name)]
    if not able:
        raise InputError(f"costs: of {' '.join(unions)}; it must be a --target that has one of them")
    near = [
        name
        for name in sorted(able, key=least.__getitem__)
        if least[name] <= _NEAR * min(least[able_name] for able_name in able)
    ]
    results: dict[str, ConcurrentResult] = {}
    for place, name in enumerate(near):
        left_s = (begun + _PLANNING * budget - now()) / (len(near) - place)
        if results and (left_s <= 0 or any(result.ended == "interrupted" for result in results.values())):
            break
        own_options = {**options, "budget": max(left_s, 0.05), "executor": executor}
        results[name] = plan(with_protocol(topology, name), members, begun=now(), **own_options)
    best = min(results, key=lambda name: _time_us(results[name], executor))
    ended = next(
        (why for why in ("interrupted", "budget") if any(result.ended == why for result in results.values())), ""
    )
    rivals = (name for name in unions if name != best)
    proved = tuple((results[name].bound if name in results else bounds[name]).of_protocol(name) for name in rivals)
    defects = tuple(dict.fromkeys(defect for result in results.values() for defect in result.defects))
    return replace(results[best], rivals=proved, ended=ended, seconds=now() - begun, defects=defects)


def over_protocols(problem: Problem, bound: Bound, rivals: Sequence[Bound] = ()) -> tuple[Problem, Sequence[Witness]]:
    """Return a problem and what proves its bound, as proofs state them: with costs, over all protocols.

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


def _has(executor: GroupExecutor, union: UnionProblem, name: str) -> bool:
    """Return whether the executor has a protocol."""
    able = executor.isolated(union)
    return able is None or bool(able.able([name]))


def _time_us(result: ConcurrentResult, executor: GroupExecutor | None) -> float:
    """Return the time of a result's programs in µs, or far more than any time if the executor can hold none.

    Without an executor it is the time of the schedule.
    """
    if executor is None:
        return result.makespan_us
    try:
        return executor.time_us(result.problem, result.algorithm)
    except InputError:
        return float(np.finfo(float).max) / 2 + result.makespan_us
