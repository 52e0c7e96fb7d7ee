"""How the time to synthesize grows: all-to-all on cubes of 64 to 1000 devices, whole commands.

    python -m results.scripts.growth

makes growth.md and growth.svg.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from results.measuring.measure import TABLES, grid, page, save, seconds_words, write
from results.measuring.scale_runs import (
    Answer,
    Processes,
    faults,
    gap_words,
    many_words,
    ratio_words,
    seconds_of,
)

SIDES = range(4, 11)
FITTED_FROM = 64  # devices
AT_ONCE = "10ms"  # a budget that is over when the engine has its first answer
GOAL = 2.3
START = ("alltoall", "--topo", "mesh:2x2x2", "--chunks", 1, "--size", "1G", "--engine", "flow")
# PCCL, all-to-all, as published (June 2026): devices and time
PCCL = {512: "11.68 min", 1000: "2.01 h"}
LESS = "whole command, less the start"
LINK = f"[growth.svg]({Path(__file__).stem}.svg)"


@dataclass(frozen=True)
class Point:
    """One cube: devices, its answer, and the answer of one go of the engine (a budget that ends at once)."""

    devices: int
    answer: Answer
    one_go: Answer

    @property
    def search_s(self) -> float:
        """Seconds that the command itself names for its search."""
        return float((self.answer.said or {}).get("seconds", math.nan))

    @property
    def executors(self) -> bool:
        """Whether the command also wrote a file for executors."""
        return "file" in self.answer.row


@dataclass(frozen=True)
class Line:
    """seconds = factor × devices^exponent."""

    exponent: float
    factor: float

    def at(self, devices: float) -> float:
        return self.factor * math.pow(devices, self.exponent)


def fitted(devices: Sequence[int], seconds: Sequence[float]) -> Line:
    """Least squares in the logarithms of both."""
    slope, intercept = statistics.linear_regression([math.log(n) for n in devices], [math.log(s) for s in seconds])
    return Line(slope, math.exp(intercept))


def measured(sides: Sequence[int], processes: Processes) -> tuple[Answer, list[Point]]:
    """The start of a process (the same command for 8 devices), and every cube."""
    for side in (2, 6):  # brings in the compiled code, so that no cube is asked twice
        processes.asked("alltoall", "--topo", f"mesh:{side}x{side}x{side}", *START[3:], times=1)
    start = processes.asked(*START)
    points = []
    for side in sides:
        question = ("alltoall", "--topo", f"mesh:{side}x{side}x{side}", "--chunks", 1, "--size", "1G")
        both = (processes.asked(*question), processes.asked(*question, "--budget", AT_ONCE))
        points.append(Point(side**3, *both))
    return start, points


def lines_of(start_s: float, points: Sequence[Point]) -> dict[str, Line]:
    """The fits, over the cubes that have right answers; none over fewer than two cubes."""
    used = [p for p in points if not (p.answer.wrong or p.one_go.wrong)]
    if len(used) < 2:
        return {}
    devices = [p.devices for p in used]
    least = 1e-3  # a difference of two measured times may be nothing
    return {
        "whole command": fitted(devices, [p.answer.seconds for p in used]),
        LESS: fitted(devices, [max(p.answer.seconds - start_s, least) for p in used]),
        "search alone": fitted(devices, [max(p.search_s, least) for p in used]),
        "one go, less the start": fitted(devices, [max(p.one_go.seconds - start_s, least) for p in used]),
    }


def large(points: Sequence[Point]) -> list[Point]:
    """The cubes of the fit."""
    return [p for p in points if p.devices >= FITTED_FROM]


def text(start: Answer, points: Sequence[Point]) -> str:
    """The page."""
    fits = lines_of(start.seconds, large(points))
    bare = [p for p in large(points) if not p.executors]
    without = lines_of(start.seconds, bare)
    rows = []
    for p in points:
        a = p.answer
        theirs = PCCL.get(p.devices)
        rows.append(
            [
                f"`{a.question}`",
                p.devices,
                many_words(a.row["sends"]) if a.row else "–",
                seconds_words(a.seconds),
                seconds_words(max(a.seconds - start.seconds, 0.0)),
                "–" if math.isnan(p.search_s) else seconds_words(p.search_s),
                f"{a.peak_mb:.0f}",
                gap_words(a.gap),
                "yes" if p.executors else "–",
                f"{seconds_words(p.one_go.seconds)}, {gap_words(p.one_go.gap)}",
                a.checked or "–",
                theirs or "–",
                f"{ratio_words(seconds_of(theirs) / a.seconds)} ×" if theirs else "–",
            ]
        )
    fit = fits.get(LESS)
    said = "no fit" if fit is None else f"exponent **{fit.exponent:.2f}** (goal {GOAL:g} at most)"
    wrong = faults([start, *(a for p in points for a in (p.answer, p.one_go))])
    parts = [
        "All-to-all, one chunk a pair, 1 GiB a rank, on cubes (meshes of 50 GB/s and α 0.7 µs a link): whole commands"
        " in fresh processes with all files written, compiled code found on disk, median of 3, one run where it takes"
        f" over 5 s. The start of a process is the same command for 8 devices: {seconds_words(start.seconds)} s. Small"
        " answers also write a file for executors (XML), which takes its time and is part of the command.",
        f"Least squares in log-log over {FITTED_FROM} to 1000 devices, less the start of a process: {said}. The number"
        " of sends itself grows with the exponent 2.33 (pairs times the mean distance). A search goes on until its time"
        " is near the bound, so that a cube that is near at once takes less than a smaller one that is not; with"
        f" `--budget {AT_ONCE}` every cube has one go of the engine, which takes fewer passes over more sends.",
        *(["Failed:\n\n" + "\n".join(wrong)] if wrong else []),
        grid(
            ["seconds of", f"exponent from {FITTED_FROM} devices on", "exponent over the cubes without XML"],
            [
                [name, f"{line.exponent:.2f}", f"{without[name].exponent:.2f}" if without else "–"]
                for name, line in fits.items()
            ],
        ),
        f"Drawn in {LINK}.",
        grid(
            [
                "question", "devices", "sends", "s", "s less start", "s of search", "peak MB", "time / bound",
                "XML", "one go: s, time / bound", "`synth prove`", "PCCL, published", "PCCL / ours",
            ],
            rows,
        ),
    ]  # fmt: skip
    return page(__file__, "Growth with the number of devices", parts)


LEFT, TOP, WIDE, HIGH = 64, 44, 520, 340


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten within a range."""
    return [
        10.0**k for k in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) if low <= 10.0**k <= high
    ]


def _tick_words(seconds: float) -> str:
    return f"{seconds:g} s"


def drawing(start_s: float, points: Sequence[Point]) -> str:
    """A log-log plot as SVG: the commands, less their start, the fit, and PCCL's two figures."""
    right = [p for p in points if not p.answer.wrong]
    whole = [(p.devices, p.answer.seconds) for p in right]
    less = [(p.devices, s - start_s) for (_, s), p in zip(whole, right, strict=True) if s - start_s > 1e-2]
    pccl = [(n, seconds_of(words)) for n, words in PCCL.items()]
    values = [s for _, s in [*whole, *less, *pccl]]
    x_low, x_high = 50.0, 1250.0
    y_low, y_high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))

    def x(devices: float) -> float:
        return LEFT + WIDE * math.log(devices / x_low) / math.log(x_high / x_low)

    def y(seconds: float) -> float:
        return TOP + HIGH * (1 - math.log(seconds / y_low) / math.log(y_high / y_low))

    def path(places: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{x(n):.1f},{y(s):.1f}" for n, s in places)

    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDE + 24} {TOP + HIGH + 60}"'
        ' font-family="sans-serif" font-size="12" fill="#333">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{LEFT}" y="20" font-size="14">All-to-all on cubes: seconds of the whole command</text>',
    ]
    for seconds in _ticks(y_low, y_high):
        at = f"{y(seconds):.1f}"
        made.append(f'<path d="M{LEFT} {at}H{LEFT + WIDE}" stroke="#ddd"/>')
        made.append(f'<text x="{LEFT - 8}" y="{y(seconds) + 4:.1f}" text-anchor="end">{_tick_words(seconds)}</text>')
    for devices in (64, 125, 216, 343, 512, 729, 1000):
        at = f"{x(devices):.1f}"
        made.append(f'<path d="M{at} {TOP}V{TOP + HIGH}" stroke="#eee"/>')
        made.append(f'<text x="{at}" y="{TOP + HIGH + 18}" text-anchor="middle">{devices}</text>')
    made.append(f'<text x="{LEFT + WIDE / 2:g}" y="{TOP + HIGH + 42}" text-anchor="middle">devices</text>')
    made.append(f'<rect x="{LEFT}" y="{TOP}" width="{WIDE}" height="{HIGH}" fill="none" stroke="#999"/>')
    fit = lines_of(start_s, large(points)).get(LESS)
    legend = [
        ("#1f77b4", "whole command"),
        ("#d62728", LESS),
        ("#7f7f7f", "PCCL, published"),
    ]
    if fit is not None:
        ends = [(float(n), fit.at(n)) for n in (FITTED_FROM, 1000)]
        made.append(f'<polyline points="{path(ends)}" fill="none" stroke="#d62728" stroke-dasharray="5 4"/>')
        legend.insert(2, ("#d62728", f"fit from {FITTED_FROM} on: devices^{fit.exponent:.2f}"))
    for colour, places, joined in (
        ("#1f77b4", whole, True),
        ("#d62728", less, False),
        ("#7f7f7f", pccl, False),
    ):
        if joined and len(places) > 1:
            made.append(f'<polyline points="{path(places)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        made += [f'<circle cx="{x(n):.1f}" cy="{y(s):.1f}" r="4" fill="{colour}"/>' for n, s in places]
    for row, (colour, words) in enumerate(legend):
        down = TOP + 20 + 18 * row
        if words.startswith("fit"):
            dash = f'd="M{LEFT + 8} {down - 4}h16" stroke="{colour}" stroke-dasharray="5 4"'
            made.append(f"<path {dash}/>")
        else:
            made.append(f'<circle cx="{LEFT + 16}" cy="{down - 4}" r="4" fill="{colour}"/>')
        made.append(f'<text x="{LEFT + 30}" y="{down}">{words}</text>')
    return "\n".join([*made, "</svg>"]) + "\n"


def main() -> None:
    with Processes() as processes:
        start, points = measured(SIDES, processes)
    save(TABLES / f"{Path(__file__).stem}.svg", drawing(start.seconds, points))
    write(__file__, text(start, points))
    if faults([start, *(a for p in points for a in (p.answer, p.one_go))]):
        raise SystemExit("growth: some questions have no right answer, see the table")


if __name__ == "__main__":
    main()
