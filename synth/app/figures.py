"""Drawings of answers with matplotlib: times by message size, a schedule's timeline, and the load of a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.model.text import format_short_size, format_time
from topologies.arrays import Floats, Ints
from topologies.errors import InputError
from topologies.optional import optional_module
from topologies.text.fields import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_NAMED = 40  # lines of a timeline, or vertices of a network, that are named
_MOST_BENT = 1024  # vertices of a network whose links are bent around others
_POINTS = 13  # of the line of a link
_MOST_ARROWS = 400  # links whose direction is shown
_FILL = 0.8  # height of a send in a timeline, as a share of its line


def matplotlib_module(name: str) -> Any:
    """Import a module of matplotlib, such as "pyplot", and return it; raise InputError if it is not installed."""
    return optional_module(f"matplotlib.{name}", "plots", "drawings need matplotlib")


def check_figure(path: str) -> None:
    """Check that a figure can be drawn, and that a file's suffix says a format and its folder exists.

    Nothing is written.

    Raises:
        InputError: matplotlib is not installed, the suffix is of no format, or there is no such folder.
    """
    formats = matplotlib_module("figure").Figure().canvas.get_supported_filetypes()
    if Path(path).suffix[1:] not in formats:
        raise InputError(f"--plot {shown(path)}: must end in .svg, .png or .pdf")
    if not Path(path).parent.is_dir():
        raise InputError(f"--plot {shown(path)}: there is no folder {shown(str(Path(path).parent))}; make it first")


def save_figure(figure: Any, path: str) -> None:
    """Write a figure of matplotlib to a file whose suffix says its format; raise InputError if that fails."""
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        why = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise InputError(f"--plot {path}: cannot be written ({why}); name a file such as out.svg") from None


def draw_times(times_us: Mapping[str, Mapping[int, float]], bound_us: Mapping[int, float], ax: Axes | None) -> Axes:
    """Draw times and the bound by message size on logarithmic axes, and return the axes.

    The area below the bound is grey. Each curve is a line; one of a single size is a dot.

    Args:
        times_us: Times in µs by message size in bytes, ascending, for each curve by its name.
        bound_us: Proved bounds in µs by message size in bytes, ascending.
        ax: Axes of matplotlib to draw on; None for new ones.

    Raises:
        InputError: matplotlib is not installed.
    """
    axes: Axes = _axes(ax)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    sizes, limits = list(bound_us), list(bound_us.values())
    # The bound is a wide line below the others, so that it is seen where a curve meets it.
    axes.plot(sizes, limits, color="0.6", linewidth=4, label="bound: nothing is faster")
    for (name, curve), style in zip(times_us.items(), ("-", "--", "-.", ":") * len(times_us), strict=False):
        marker = "o" if len(curve) == 1 else None  # A line through one point is not seen.
        axes.plot(list(curve), list(curve.values()), style, marker=marker, label=name)
    lowest = axes.get_ylim()[0]
    axes.fill_between(sizes, limits, lowest, color="0.9")
    axes.set_ylim(bottom=lowest)
    ticks = [size for size in sizes if size.bit_count() == 1][::4]
    axes.set_xticks(ticks, [format_short_size(size) for size in ticks])
    axes.yaxis.set_major_formatter(lambda time_us, _: format_time(time_us))
    axes.minorticks_off()
    axes.margins(x=0)
    axes.set_xlabel("message size")
    axes.set_ylabel("time")
    axes.legend()
    return axes


def draw_timeline(
    source: Ints, destination: Ints, step: Ints, start_us: Floats, end_us: Floats, time_us: float, ax: Axes | None
) -> Axes:
    """Draw when each pair of ranks is in use, one line a pair and one colour a step, and return the axes.

    Lines are sorted by source and destination; of many, only about 40 are named.

    Args:
        source: Rank that sends, shape (n,).
        destination: Rank that receives, shape (n,).
        step: Step of each send, shape (n,).
        start_us: Time in µs at which each send takes its link, shape (n,).
        end_us: Time in µs at which each send leaves its link, shape (n,).
        time_us: Time in µs at which the last chunk has arrived, where a line is drawn.
        ax: Axes of matplotlib to draw on; None for new ones.

    Raises:
        InputError: matplotlib is not installed.
    """
    axes: Axes = _axes(ax)
    pairs, line = np.unique(np.column_stack([source, destination]), axis=0, return_inverse=True)
    line = line.reshape(-1)
    low, high = line - _FILL / 2, line + _FILL / 2
    corners = ((start_us, low), (end_us, low), (end_us, high), (start_us, high))
    boxes = np.stack([np.column_stack(corner) for corner in corners], axis=1)
    bars = matplotlib_module("collections").PolyCollection(boxes, array=step, cmap="viridis")
    axes.add_collection(bars)
    axes.autoscale_view()
    axes.invert_yaxis()
    shown = range(0, len(pairs), max(1, -(-len(pairs) // _MOST_NAMED)))
    axes.set_yticks(list(shown), [f"{pairs[i, 0]}→{pairs[i, 1]}" for i in shown])
    axes.set_xlabel("time in µs")
    axes.axvline(time_us, color="0.5", linestyle="--", label=f"all has arrived: {format_time(time_us)}")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    axes.set_xlim(0, time_us * 1.02)
    axes.figure.colorbar(bars, ax=axes, label="step", ticks=_whole_ticks(int(step.max(initial=0))))
    return axes


def draw_network(problem: Problem, schedule: Schedule, ax: Axes | None) -> Axes:
    """Draw a network with the load of each link in a schedule, from 0 to 1, and return the axes.

    A load is the bytes over a link / what it can carry until the last chunk has arrived. Ranks are circles, named if
    there are at most 40 vertices; switches are squares. An arrow on each line shows the link's direction, if there are
    at most 400 links.

    Args:
        problem: The problem.
        schedule: Its schedule, timed for one message size.
        ax: Axes of matplotlib to draw on; None for new ones.

    Raises:
        InputError: matplotlib is not installed, switches multicast or reduce in the schedule, or the network has too
            many vertices or links.
    """
    # These modules load parts of SciPy, which searches do without.
    from synth.app.report.layout import MOST_EDGES, MOST_VERTICES
    from synth.app.report.schedule import network_load

    axes: Axes = _axes(ax)
    network = network_load(problem, schedule)
    if not network["x"]:
        raise InputError(f"a network with over {MOST_VERTICES} vertices cannot be drawn; it must have at most so many")
    if len(network["u"]) < network["edges"]:
        raise InputError(f"a network of {network['edges']} links cannot be drawn; it must have at most {MOST_EDGES}")
    x, y = np.array(network["x"]), np.array(network["y"])
    ends = np.column_stack([network["u"], network["v"]]).astype(np.int64)
    lines = _edge_lines(np.column_stack([x, y]), ends, network["spacing"])
    load = np.array(network["load"])
    edges = matplotlib_module("collections").LineCollection(lines, array=load, cmap="plasma_r")
    edges.set_clim(0, 1)
    axes.add_collection(edges)
    if len(lines) <= _MOST_ARROWS:
        heads = matplotlib_module("collections").PolyCollection(
            _arrow_heads(lines, 0.13 * network["spacing"]), array=load, cmap="plasma_r", zorder=2
        )
        heads.set_clim(0, 1)
        axes.add_collection(heads)
    nranks = network["n"]
    axes.scatter(x[nranks:], y[nranks:], marker="s", color="0.6", zorder=2)
    axes.scatter(x[:nranks], y[:nranks], s=200, color="white", edgecolors="black", zorder=2)
    if len(x) <= _MOST_NAMED:
        for name, at_x, at_y in zip(network["names"][:nranks], x, y, strict=False):
            axes.annotate(name, (at_x, at_y), ha="center", va="center", zorder=3)
    axes.autoscale_view()
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.figure.colorbar(edges, ax=axes, label="share of the time in use")
    return axes


def _edge_lines(places: Floats, ends: Ints, spacing: float) -> Floats:
    """Return the points of each edge's line: aside of that of the other direction, and bent around vertices in between.

    Lines are bent only if there are at most 1024 vertices.

    Args:
        places: Places of the vertices, shape (vertices, 2).
        ends: Vertices of each edge, shape (edges, 2).
        spacing: Distance of neighbours.

    Returns:
        Points, shape (edges, points of a line, 2).
    """
    begin, along = places[ends[:, 0]], places[ends[:, 1]] - places[ends[:, 0]]
    length = np.maximum(np.hypot(along[:, 0], along[:, 1]), 1e-9)
    aside = np.column_stack([-along[:, 1], along[:, 0]]) / length[:, None]
    bend = np.zeros(len(ends))
    if len(places) <= _MOST_BENT:
        for vertex, place in enumerate(places):
            from_begin = place - begin
            part = (from_begin * along).sum(axis=1) / length**2
            is_near = np.abs((from_begin * aside).sum(axis=1)) < 0.1 * spacing
            is_between = (part > 0) & (part < 1) & (ends != vertex).all(axis=1)
            bend[is_near & is_between] = 0.15
    share = np.linspace(0.0, 1.0, _POINTS)
    away = 0.02 * spacing + (bend * length)[:, None] * np.sin(np.pi * share)
    lines: Floats = begin[:, None] + along[:, None] * share[:, None] + aside[:, None] * away[:, :, None]
    return lines


def _arrow_heads(lines: Floats, length: float) -> Floats:
    """Return a triangle on each line, past its middle, that points along it, shape (edges, 3, 2).

    Args:
        lines: Points of the lines, shape (edges, points of a line, 2).
        length: Length of a triangle.
    """
    at = lines.shape[1] * 5 // 8
    along = lines[:, at] - lines[:, at - 1]
    along = along / np.maximum(np.hypot(along[:, 0], along[:, 1]), 1e-9)[:, None] * length
    aside = np.column_stack([-along[:, 1], along[:, 0]]) / 3
    base = lines[:, at] - along
    heads: Floats = np.stack([lines[:, at], base + aside, base - aside], axis=1)
    return heads


def _axes(ax: Axes | None) -> Any:
    """Return the given axes, or those of a new figure; raise InputError if matplotlib is not installed."""
    return ax if ax is not None else matplotlib_module("pyplot").subplots(layout="constrained")[1]


def _whole_ticks(highest: int) -> Sequence[int]:
    """Return at most eight evenly spaced whole numbers that begin with 0 and do not exceed `highest`."""
    return range(0, highest + 1, max(1, -(-(highest + 1) // 8)))
