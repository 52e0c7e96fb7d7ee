"""What was found for several groups at once, as one documented object (`--json`) and as the table people read."""

from __future__ import annotations

import math
from typing import Any

from synth.concurrent.plan import ConcurrentResult
from synth.present.statement import OPTIMAL, format_alpha, witnesses
from synth.present.text import format_size, format_table, format_time

__all__ = ["statement", "table"]

_LINES = 32  # groups that the table shows one by one


def statement(several: ConcurrentResult) -> dict[str, Any]:
    """Everything that was found, in plain values. Times in µs.

    Keys: collective, topology, summary, alpha, relay, objective;
    groups: for each ranks, collective, size_bytes, time_us (together), alone_us, slowdown, alone_bound_us,
    alone_gap, engine (that found the plan alone);
    time_us (when the last group is done), bound_us, gap, optimal, proof (what proves the bound in words),
    proved_by (the group whose own bound it is, from 0; None: the union's); slowdown (the largest);
    sum_us, vs_sum (one after another / time_us); direct_us, vs_direct (None without a Direct);
    by (the way of planning that won), plans (every way: time_us, slowdown); engine, chunks (a block), steps, sends;
    bounds (the union's witnesses, as in a single group's statement); ended, seconds.
    """
    problem, algorithm = several.problem, several.algorithm
    bound_us, witness, group = several.decisive
    gap = several.gap
    direct = several.direct_us
    return {
        "collective": problem.collective.name,
        "topology": problem.topology.name,
        "summary": problem.topology.summary,
        "alpha": format_alpha(problem),
        "relay": several.relay,
        "objective": several.objective,
        "groups": [
            {
                "ranks": list(member.ranks),
                "collective": member.collective.name,
                "size_bytes": member.size_bytes,
                "time_us": float(several.times_us[i]),
                "alone_us": one.time_us,
                "slowdown": float(several.slowdowns[i]),
                "alone_bound_us": one.bound_us,
                "alone_gap": one.time_us / one.bound_us,
                "engine": one.engine,
            }
            for i, (member, one) in enumerate(zip(several.problem.members, several.isolated, strict=True))
        ],
        "time_us": several.makespan_us,
        "bound_us": bound_us,
        "gap": max(1.0, gap) if gap <= OPTIMAL else gap,
        "optimal": gap <= OPTIMAL,
        "proof": witness.text,
        "proved_by": group,
        "slowdown": float(several.slowdowns.max()),
        "sum_us": several.sum_us,
        "vs_sum": several.sum_us / several.makespan_us,
        "direct_us": direct,
        "vs_direct": None if direct is None else direct / several.makespan_us,
        "by": several.chosen.method,
        "plans": {way: {"time_us": t, "slowdown": slow} for way, (t, slow) in several.others.items()},
        "engine": algorithm.engine,
        "chunks": algorithm.chunks,
        "steps": algorithm.steps,
        "sends": len(algorithm.schedule),
        "bounds": witnesses(several.bound),
        "ended": several.ended,
        "seconds": round(several.seconds, 3),
    }


def heading(several: ConcurrentResult) -> str:
    """`8 groups · mesh:8x8 · 64 of 64 ranks (8x8 mesh, α 0.7 µs assumed) · relay all`."""
    problem = several.problem
    topology = problem.topology
    many = len(several.problem.members)
    words = [topology.summary, format_alpha(problem)] if topology.summary else [format_alpha(problem)]
    return (
        f"{many} group{'s' if many > 1 else ''} · {topology.name} · {len(problem.group)} of {topology.nranks} ranks"
        f" ({', '.join(words)}) · relay {several.relay}"
    )


def table(several: ConcurrentResult) -> str:
    """Heading, one line a group, and what planning them together is worth."""
    titles = ("group", "collective", "size", "together", "alone", "slowdown", "bound alone")
    lines = [titles]
    members = several.problem.members
    for i, (member, one) in enumerate(zip(members, several.isolated, strict=True)):
        if len(members) > _LINES and _LINES - 2 <= i < len(members) - 1:
            continue
        lines.append(
            (
                member.label,
                member.collective.name,
                format_size(math.ceil(member.size_bytes)),
                format_time(float(several.times_us[i])),
                format_time(one.time_us),
                f"{several.slowdowns[i]:.2f} ×",
                format_time(one.bound_us),
            )
        )
    text = [heading(several), "", *format_table(lines, (0, 1))]
    if len(members) > _LINES:
        text.insert(-1, f"… {len(members) - _LINES + 1} more …")
    return "\n".join([*text, "", *_closing(several)])


def _closing(several: ConcurrentResult) -> list[str]:
    bound_us, witness, group = several.decisive
    proof = (
        witness.text
        if group is None
        else f"group {several.problem.members[group].label} alone: {witness.text}"
    )
    makespan = several.makespan_us
    slowest = int(several.slowdowns.argmax())
    best = ", optimal" if several.gap <= OPTIMAL else ""
    rows = [
        (
            "all groups",
            makespan,
            f"{several.chosen.method}; bound {format_time(bound_us)} ({proof}),"
            f" gap {max(1.0, several.gap):.3f}{best}",
        ),
        ("one after another", several.sum_us, f"{several.sum_us / makespan:.2f} × as long"),
    ]
    for way, (took, slow) in sorted(several.others.items(), key=lambda item: item[1]):
        if way != several.chosen.method:
            words = f"{took / makespan:.2f} × as long"
            rows.append(
                (way, took, words + (f", slowdown {slow:.2f} ×" if several.objective == "fair" else ""))
            )
    width = max(len(name) for name, _, _ in rows)
    lines = [f"{name.ljust(width)}  {format_time(took).rjust(8)}  {words}" for name, took, words in rows]
    chosen = ", which is as small as any plan found has" if several.objective == "fair" else ""
    lines.append(
        f"largest slowdown {several.slowdowns[slowest]:.2f} ×, group {several.problem.members[slowest].label}{chosen}"
    )
    return lines
