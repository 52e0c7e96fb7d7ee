"""A ranking of placements as one dictionary of plain values, and as the table that people read."""

from __future__ import annotations

from typing import Any

import numpy as np

from synth.app.present.layout import LEAST_WIDTH, Column, fitted, wrapped
from synth.model.text import format_count, format_listed, format_size, format_time
from synth.parallelism.axes import mesh, process_groups
from synth.parallelism.placement import Placement, Ranking

FORMAT = "synth-placement-1"
_ROWS = 12  # placements that the table shows


def placement_statement(ranking: Ranking) -> dict[str, Any]:
    """Return a ranking of placements as a dictionary of plain values.

    Returns:
        A dictionary with these keys:

        - format: `FORMAT`.
        - topology: Name of the topology.
        - ranks: The rank at each position of the hierarchy.
        - levels, axes: Size by name, with the outermost level and the first axis first.
        - calls: The workload's calls of collectives.
        - bound_us: Time in µs; no placement is faster.
        - default: Index of the default order in `placements`, from 0.
        - ended: "interrupted", or "".
        - placements: Best first, each with:

          - matrix: The number of parts in each level by axis; None for an order without a parallelism matrix.
          - in_axes_order: Whether the axes' digits are in the axes' order in every level.
          - groups: The ranks of each group, by the axes that the group lies along.
          - order: The rank of each position of the mesh, the last axis fastest.
          - time_us: Time of a step in µs.
          - call_us: Time of one run of each call in µs.
          - bottleneck, busy_us: The busiest resource, and how long it is busy in µs.
          - level_us: How long each level's busiest resource is busy, in µs.
          - vs_default: Time of the default order / time of this placement.
          - searched: Whether schedules were searched; False means that time_us is an estimate.
    """
    return {
        "format": FORMAT,
        "topology": ranking.topology.name,
        "ranks": ranking.hierarchy.ranks.tolist(),
        "levels": {level.name: level.size for level in ranking.hierarchy.levels},
        "axes": {axis.name: axis.size for axis in ranking.axes},
        "calls": [
            {
                "name": call.name,
                "collective": call.collective,
                "over": [ranking.axes[axis].name for axis in call.over],
                "bytes": call.size_bytes,
                "times": call.times,
                "overlaps": list(call.overlaps),
            }
            for call in ranking.workload.calls
        ],
        "bound_us": ranking.bound_us,
        "default": ranking.default,
        "ended": ranking.stop_reason,
        "placements": [_placement(ranking, placement) for placement in ranking.placements],
    }


def _placement(ranking: Ranking, placement: Placement) -> dict[str, Any]:
    """Return one placement of a ranking as a dictionary of plain values; `placement_statement` documents its keys."""
    names = [axis.name for axis in ranking.axes]
    axes_of_groups = dict.fromkeys(
        [*((axis,) for axis in range(len(names))), *(call.over for call in ranking.workload.calls)]
    )
    matrix, step = placement.matrix, placement.step
    return {
        "matrix": None if matrix is None else {name: list(row) for name, row in zip(names, matrix, strict=True)},
        "groups": {
            ",".join(names[axis] for axis in over): process_groups(placement.mesh, over).tolist()
            for over in axes_of_groups
        },
        "in_axes_order": matrix is not None and np.array_equal(mesh(ranking.hierarchy, matrix), placement.mesh),
        "order": placement.order,
        "time_us": step.time_us,
        "call_us": list(step.call_us),
        "bottleneck": step.bottleneck,
        "busy_us": step.busy_us,
        "level_us": list(step.level_us),
        "vs_default": ranking.placements[ranking.default].step.time_us / step.time_us,
        "searched": step.searched,
    }


def placement_table(document: dict[str, Any], width: int | None = LEAST_WIDTH) -> str:
    """Return a `placement_statement` as text: heading, ranking, the calls of the best placement, and its rank order.

    Of the ranking the first 12 placements, the default order and the last placement are shown.

    Args:
        document: The statement.
        width: Most characters of a line, as far as columns can be left out; None for all columns.
    """
    rows, default = document["placements"], document["default"]
    levels = ",".join(f"{name}:{size}" for name, size in document["levels"].items())
    axes = ",".join(f"{name}={size}" for name, size in document["axes"].items())
    shown = sorted({*range(min(len(rows), _ROWS)), default, len(rows) - 1})
    heads = "place", "step", "vs default", *document["axes"], "bottleneck"
    cells = zip(*(_line(rows[i], i, default, list(document["axes"])) for i in shown), strict=True)
    importance = 0, 0, 0, *(1 for _ in document["axes"]), 2
    places, no_room = fitted(
        [Column(*column, left=column[0] == heads[-1]) for column in zip(heads, cells, importance, strict=True)], width
    )
    calls, no_room_for_calls = _calls(document, rows[0], width)
    best = rows[0]
    estimated = any(not rows[i]["searched"] for i in shown)
    text = [
        f"{document['topology']} · {levels} · {axes} · {format_count(len(rows), 'placement')}"
        f" ({' × '.join(document['levels'])} parts of every axis)",
        "",
        *places,
        "",
    ]
    if estimated:
        text.append("~ estimated; all others are times of replayed schedules")
    if any(rows[i]["matrix"] is None for i in shown):
        text.append("– an order without a parallelism matrix, or with another order of the axes within a level")
    speedup = rows[default]["time_us"] / best["time_us"]
    gain = f"the best is {speedup:.2f} × as fast" if speedup > 1.0005 else "none is faster"
    text.append(f"default order: place {default + 1} of {len(rows)}; {gain}")
    if document["bound_us"] > 0:
        ratio = best["time_us"] / document["bound_us"]
        text.append(
            f"no placement's step is faster than {format_time(document['bound_us'])} (best / bound {ratio:.2f})"
        )
    text += ["", "the best placement's calls, all groups at once:", *calls, ""]
    if best["in_axes_order"]:
        parts = ",".join(f"{axis}={'x'.join(map(str, row))}" for axis, row in best["matrix"].items())
        text.append(f"parallelism matrix: --matrix {parts} (for synth reduce-program)")
    is_own_order = best["order"] == list(range(len(best["order"])))
    text.append("rank order: ascending" if is_own_order else f"rank order: {format_listed(best['order'])}")
    if document["ended"]:
        text.append(f"{document['ended']}: the best so far")
    if left_out := [*no_room, *no_room_for_calls]:
        text.append(f"--wide also shows {', '.join(left_out)}")
    return "\n".join(wrapped(text, width))


def _line(row: dict[str, Any], place: int, default: int, axes: list[str]) -> tuple[str, ...]:
    """Return the cells of a placement in the table: place, step, vs default, one for each axis, and bottleneck.

    Args:
        row: The placement in the statement; `~` marks an estimated time.
        place: Its index in the ranking, from 0; the cell counts from 1.
        default: Index of the default order, whose line is marked.
        axes: Names of the axes.
    """
    parts = ["–" if row["matrix"] is None else "×".join(map(str, row["matrix"][axis])) for axis in axes]
    share = "" if row["bottleneck"] == "latency" else f" {100 * row['busy_us'] / row['time_us']:.0f} %"
    note = "   (default)" if place == default else ""
    time = ("" if row["searched"] else "~") + format_time(row["time_us"])
    return (str(place + 1), time, f"{row['vs_default']:.2f} ×", *parts, f"{row['bottleneck']}{share}{note}")


def _calls(document: dict[str, Any], row: dict[str, Any], width: int | None) -> tuple[list[str], list[str]]:
    """Return the lines of a table of the workload's calls with the times of one placement, the titles first.

    The second result is the titles of the columns for which there is no room.

    Args:
        document: The statement.
        row: The placement.
        width: Most characters of a line; None for any number.
    """
    calls, times_us = document["calls"], row["call_us"]
    groups = [row["groups"][",".join(call["over"])] for call in calls]
    columns = [
        Column("call", [call["name"] for call in calls], left=True),
        Column("collective", [call["collective"] for call in calls], 4, left=True),
        Column("over", [",".join(call["over"]) for call in calls], 5, left=True),
        Column("groups", [f"{len(ranks)} of {len(ranks[0])}" for ranks in groups], 6),
        Column("message", [format_size(call["bytes"]) for call in calls], 2),
        Column("times", [f"{call['times']:g}" for call in calls], 3),
        Column("one", [format_time(time_us) for time_us in times_us], 1),
        Column("a step", [format_time(t * call["times"]) for call, t in zip(calls, times_us, strict=True)]),
    ]
    return fitted(columns, width)
