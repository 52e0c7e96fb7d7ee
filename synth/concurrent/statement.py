"""What was found for concurrent groups, as one documented object of plain values (`--json`, the table)."""

from __future__ import annotations

from typing import Any

from synth.bounds.prove import OPTIMAL
from synth.concurrent.plan import ConcurrentResult
from synth.model.problem import describe_alpha


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
    problem, algorithm = found.problem, found.algorithm
    bound_us, witness, group = found.decisive
    gap = found.gap
    direct = found.direct_us
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
        "gap": max(1.0, gap) if gap <= OPTIMAL else gap,
        "optimal": gap <= OPTIMAL,
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
