"""The frontier by message size, and the bound below which nothing can be, as a drawing (SVG) for a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from synth.present.text import format_size, format_time

WIDTH, HEIGHT = 560, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 44
COLOURS = 6  # that the page's style has for curves; then they come round again


@dataclass(frozen=True)
class Curve:
    """Times of one algorithm: `points` are (bytes, µs), ascending. number: of the algorithm on the page.

    marks: points that are stated in its file, drawn as dots with their words.
    """

    number: int
    label: str
    points: tuple[tuple[float, float], ...]
    marks: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class _Axes:
    low_x: float
    high_x: float
    low_y: float
    high_y: float

    def x(self, size: float) -> float:
        part = (math.log2(size) - self.low_x) / (self.high_x - self.low_x)
        return round(_LEFT + part * (WIDTH - _LEFT - _RIGHT), 2)

    def y(self, time: float) -> float:
        part = (math.log10(time) - self.low_y) / (self.high_y - self.low_y)
        return round(HEIGHT - _BOTTOM - part * (HEIGHT - _TOP - _BOTTOM), 2)


def frontier_plot(
    curves: Sequence[Curve], bound: Sequence[tuple[float, float]], stated: Sequence[tuple[float, float]], title: str
) -> str:
    """Both axes logarithmic. Empty where there is nothing to draw.

    Args:
        bound: (bytes, µs) of the bound, ascending.
        stated: points of a bound that is known at some sizes only; between these nothing is drawn.
    """
    every = [p for curve in curves for p in (*curve.points, *curve.marks)] + [*bound, *stated]
    every = [(size, time) for size, time in every if size > 0 and time > 0]
    if not every:
        return ""
    axes = _axes(every)
    bottom = axes.y(10**axes.low_y)
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">',
        f"<title>{escape(title)}</title>",
        *_grid(axes),
    ]
    below = [(axes.x(s), axes.y(t)) for s, t in bound if s > 0 and t > 0]
    if len(below) > 1:
        area = f"M{below[0][0]} {bottom}" + "".join(f"L{x} {y}" for x, y in below) + f"L{below[-1][0]} {bottom}Z"
        parts.append(f'<path class="never" d="{area}"/>')
        parts.append(f'<path class="bound" d="{_path(below)}"><title>bound: nothing is faster</title></path>')
    for size, time in stated:
        if size > 0 and time > 0:
            words = f"bound: {format_time(time)} at {format_size(math.ceil(size))}"
            x, y = axes.x(size), axes.y(time)
            parts.append(f'<path class="bound" d="M{x - 9:.2f} {y}H{x + 9:.2f}"><title>{words}</title></path>')
    for curve in curves:
        colour = f"c{curve.number % COLOURS}"
        line = [(axes.x(s), axes.y(t)) for s, t in curve.points if s > 0 and t > 0]
        name = escape(curve.label)
        parts.append(f'<g class="curve {colour}" data-algorithm="{curve.number}">')
        if len(line) > 1:
            parts.append(f'<path d="{_path(line)}"><title>{name}</title></path>')
        for size, time in curve.marks:
            if size > 0 and time > 0:
                words = f"{name}: {format_time(time)} at {format_size(math.ceil(size))}"
                parts.append(f'<circle cx="{axes.x(size)}" cy="{axes.y(time)}" r="4.5"><title>{words}</title></circle>')
        parts.append("</g>")
    parts.append("</svg>")
    return "".join(parts)


def _axes(points: Sequence[tuple[float, float]]) -> _Axes:
    sizes = [math.log2(size) for size, _ in points]
    times = [math.log10(time) for _, time in points]
    low_x, high_x = math.floor(min(sizes) - 0.3), math.ceil(max(sizes) + 0.3)
    low_y, high_y = math.floor(min(times) - 0.05), math.ceil(max(times) + 0.05)
    return _Axes(low_x, max(high_x, low_x + 2), low_y, max(high_y, low_y + 1))


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def _grid(axes: _Axes) -> list[str]:
    parts = []
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    step = max(1, math.ceil((axes.high_x - axes.low_x) / 6))
    for power in range(math.ceil(axes.low_x / step) * step, math.floor(axes.high_x) + 1, step):
        x = axes.x(2.0**power)
        label = format_size(1 << power) if power >= 0 else f"{2.0**power:g} B"
        parts.append(f'<path class="grid" d="M{x} {_TOP}V{bottom}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{bottom + 17}" text-anchor="middle">{label}</text>')
    step = max(1, math.ceil((axes.high_y - axes.low_y) / 7))
    for power in range(math.ceil(axes.low_y), math.floor(axes.high_y) + 1, step):
        y = axes.y(10.0**power)
        label = format_time(10.0**power) if power >= -1 else f"1e{power} µs"
        parts.append(f'<path class="grid" d="M{_LEFT} {y}H{right}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{label}</text>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text class="axis" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">message size</text>')
    return parts
