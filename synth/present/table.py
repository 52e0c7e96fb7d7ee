"""The tables that people read: the statement of a search, or of concurrent groups, which is plain data, as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from synth.bounds.prove import OPTIMAL
from synth.present.text import format_count, format_ranks, format_served, format_size, format_table, format_time

_LINES = 32  # groups that the table shows one by one
_NEXT = 2  # engines that are named


def heading(document: dict[str, Any], nranks: int) -> str:
    """`allreduce · dgx-a100 · group 0 2 4 6 (4 of 8 …)`; nranks: of the topology."""
    group = document["group"]
    whole = group == list(range(nranks))
    who = f"all {nranks} ranks" if whole else f"group {format_ranks(group)}"
    part = "" if whole else f"{len(group)} of "
    extras = [f"{part}{document['summary'] or str(nranks) + ' ranks'}", document["alpha"]]
    if document["root"] is not None:
        extras.append(f"root {document['root']}")
    if document["relays"]:
        extras.append(f"relays {format_ranks(document['relays'])}")
    return f"{document['collective']} · {document['topology']} · {who} ({', '.join(extras)})"


def table(document: dict[str, Any], nranks: int) -> str:
    """A statement of a search on a topology of `nranks`: heading, one line an algorithm, what is proved of shapes."""
    rows = document["algorithms"]
    healthy = any(row["vs_healthy"] is not None for row in rows)
    libraries = [name for name in document["libraries"] if any(name in row["libraries"] for row in rows)]
    lines = [
        ("message size", "steps", "rounds", "chunks", "predicted", "bound", "gap", "worst in range", "vs baseline")
        + tuple(f"vs {name}" for name in libraries)
        + (("vs healthy",) if healthy else ())
        + ("engine", "proof")
    ]
    for row in rows:
        lines.append(
            (
                format_served(row["min_bytes"], row["max_bytes"]),
                *("–" if row[shape] is None else str(row[shape]) for shape in ("steps", "rounds", "chunks")),
                f"{format_time(row['time_us'])} @ {_shown(row)}",
                format_time(row["bound_us"]),
                f"{row['gap']:.3f}",
                _worst(row),
                _ratio(row["vs_baseline"]),
                *(_ratio(row["libraries"].get(name, {}).get("vs")) for name in libraries),
                *([_ratio(row["vs_healthy"])] if healthy else []),
                row["engine"] or "–",
                row["proof"]
                + (f" · no file: {row['refused']}" if row["refused"] else "")
                + (" · kept" if row.get("kept") else ""),
            )
        )
    proved = [*_elsewhere(document), *_in_switches(document), *_libraries(document), *_proved(document)]
    text = [heading(document, nranks), "", *format_table(lines, (0, -2, -1)), *([""] if proved else []), *proved]
    return "\n".join(text)


def format_next_minute(told: dict[str, Any]) -> str:
    """The last line: what a minute more would be spent on, of a statement's `next_minute`."""
    tasks = [f"engine {' then '.join(told['engines'][:_NEXT])}"] if told["engines"] else []
    if told["window_bytes"] is not None:
        tasks.append(f"bounds by windows of time for {_short(told['window_bytes'])}")
    where = ""
    if told["gap"] is not None and told["gap"] > OPTIMAL:
        found = f", {told['moved']} moved last" if told["moved"] else ""
        where = f" · largest gap {told['gap']:.3f} at {_short(told['bytes'])}{found}"
    nothing = "nothing, all is proved optimal"
    if where:
        nothing = "nothing, every engine has ended"
        if not told["one_size"]:  # engines are asked about a few sizes of all
            nothing += f" (more: --size {_short(told['bytes'])})"
    return f"next minute: {' and '.join(tasks) or nothing}{where}"


def _worst(row: dict[str, Any]) -> str:
    """`1.433 @ 64K: 3.32 µs, bound 2.32 µs`; – where it is the size that is shown."""
    worst = row["worst"]
    if worst["bytes"] == row["shown_bytes"]:
        return "–"
    figures = f"{format_time(worst['time_us'])}, bound {format_time(worst['bound_us'])}"
    return f"{worst['gap']:.3f} @ {_short(worst['bytes'])}: {figures}"


def _shown(row: dict[str, Any]) -> str:
    return _short(row["shown_bytes"])


def _short(size_bytes: int) -> str:
    return format_size(size_bytes).replace(" ", "").replace("iB", "")


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} ×"


def _libraries(document: dict[str, Any]) -> list[str]:
    """For each library a line that says what it would take, and by whose word."""
    lines = []
    for name, told in document["libraries"].items():
        taken: dict[str, list[str]] = {}
        for row in document["algorithms"]:
            if name in row["libraries"]:
                choice = row["libraries"][name]
                taken.setdefault(f"{choice['algorithm']} {choice['protocol']}", []).append(_shown(row))
        if not taken:
            continue
        what = ", ".join(f"{word} @ {', '.join(dict.fromkeys(sizes))}" for word, sizes in taken.items())
        costs = "" if told["costs"] else ", which counts protocols and starts as the times above do not"
        whose = f"by its own model{costs}" if told["own_clock"] else "by its own choice, timed as the times above"
        lines.append(f"vs {name}: {name} {told['version']} {whose}: {what}")
    return lines


def _elsewhere(document: dict[str, Any]) -> list[str]:
    """A line where others than the engine that was named found what is shown."""
    others = document["other_engines"]
    if not others:
        return []
    found = any(row["engine"] not in others for row in document["algorithms"])
    why = "found nothing clearly faster there" if found else "found nothing faster"
    return [f"not by --engine {document['engine']}, which {why}: {', '.join(others)}"]


def _in_switches(document: dict[str, Any]) -> list[str]:
    """What switches may do besides forwarding, and where they do."""
    if document["unsaid"]:
        return [f"{document['unsaid']}: answers and bounds are without"]
    switches = document["switch_ops"]
    if not switches:
        return []
    names = ", ".join(switches[:4]) + (" …" if len(switches) > 4 else "")
    used = sum(row["switch_ops"] for row in document["algorithms"])
    does = f"in {used} of {format_count(len(document['algorithms']), 'algorithm')}" if used else "in no algorithm here"
    return [f"{names} may multicast and reduce, as bounds allow for; done {does} (--no-switch-ops: without)"]


def _proved(document: dict[str, Any]) -> list[str]:
    """One line for every number of steps of which something is proved."""
    lines = []
    for claim in document["k_synchronous"]:
        if not claim["proved"] or claim["rounds"] is None:
            continue
        part = f" ({claim['part']})" if claim["part"] else ""
        rounds, chunks = format_count(claim["rounds"], "round"), format_count(claim["chunks"], "chunk")
        steps = format_count(claim["steps"], "step")
        lines.append(f"k-synchronous{part}: {rounds} / {chunks} is the least in {steps} {claim['proof']}")
    for found in document["out_of_reach"]:
        chunks, size = format_count(found["chunks"], "chunk"), format_size(found["bytes"])
        lines.append(
            f"a schedule of {chunks} takes {format_time(found['time_us'])} for {size} (gap {found['gap']:.3f}), but has"
            f" no file: {found['refused']}"
        )
    for claim in document["time_slots"]:
        chunks, size = format_count(claim["chunks"], "chunk"), format_size(claim["bytes"])
        lines.append(
            f"time slots: with {chunks} a block no schedule of {size} takes less than"
            f" {format_time(claim['bound_us'])}, by {claim['solver']}'s dual bound"
        )
    return lines


def concurrent_table(document: dict[str, Any], labels: Sequence[str], nranks: int) -> str:
    """Heading, one line a group, and what planning together is worth, of `synth.concurrent.result.statement`."""
    lines = [("group", "collective", "size", "together", "alone", "slowdown", "bound alone")]
    groups = document["groups"]
    for i, (label, group) in enumerate(zip(labels, groups, strict=True)):
        if len(groups) > _LINES and _LINES - 2 <= i < len(groups) - 1:
            continue
        lines.append(
            (
                label,
                group["collective"],
                format_size(math.ceil(group["size_bytes"])),
                format_time(group["time_us"]),
                format_time(group["alone_us"]),
                f"{group['slowdown']:.2f} ×",
                format_time(group["alone_bound_us"]),
            )
        )
    text = [_concurrent_heading(document, nranks), "", *format_table(lines, (0, 1))]
    if len(groups) > _LINES:
        text.insert(-1, f"… {len(groups) - _LINES + 1} more …")
    return "\n".join([*text, "", *_concurrent_closing(document, labels)])


def _concurrent_heading(document: dict[str, Any], nranks: int) -> str:
    """`8 groups · mesh:8x8 · 64 of 64 ranks (8x8 mesh, α 0.7 µs assumed) · relay all`."""
    groups = document["groups"]
    ranks = len({rank for group in groups for rank in group["ranks"]})
    about = ", ".join(part for part in (document["summary"], document["alpha"]) if part)
    return (
        f"{format_count(len(groups), 'group')} · {document['topology']} · {ranks} of {nranks} ranks ({about})"
        f" · relay {document['relay']}"
    )


def _concurrent_closing(document: dict[str, Any], labels: Sequence[str]) -> list[str]:
    """The chosen plan beside the others, and the largest slowdown."""
    makespan, group, fair = document["time_us"], document["proved_by"], document["objective"] == "fair"
    proof = document["proof"] if group is None else f"group {labels[group]} alone: {document['proof']}"
    best = ", optimal" if document["optimal"] else ""
    bound = f"{document['by']} ({document['engine']}); bound {format_time(document['bound_us'])} ({proof})"
    rows = [
        ("all groups", makespan, f"{bound}, gap {max(1.0, document['gap']):.3f}{best}"),
        ("one after another", document["sum_us"], f"{document['vs_sum']:.2f} × as long"),
    ]
    others = {name: (plan["time_us"], plan["slowdown"]) for name, plan in document["plans"].items()}
    for name, (took, slowdown) in sorted(others.items(), key=lambda item: item[1]):
        if name != document["by"]:
            slow = f", slowdown {slowdown:.2f} ×" if fair else ""
            rows.append((name, took, f"{took / makespan:.2f} × as long{slow}"))
    width = max(len(name) for name, _, _ in rows)
    lines = [f"{name.ljust(width)}  {format_time(took).rjust(8)}  {about}" for name, took, about in rows]
    slowdowns = [one["slowdown"] for one in document["groups"]]
    slowest = slowdowns.index(max(slowdowns))
    chosen = ", which is as small as any plan found has" if fair else ""
    lines.append(f"largest slowdown {slowdowns[slowest]:.2f} ×, group {labels[slowest]}{chosen}")
    return lines
