"""A check of timed schedules straight from the definitions: multisets of contributions, and rates summed at each start.

It shares no code with `synth.verify`, and is slow.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import groupby, pairwise

from synth.model.problem import Problem
from synth.model.schedule import Schedule

Cell = tuple[int, int]  # (chunk, rank)
Row = tuple[int, int, int, bool, float, float]  # (chunk, link, step, reduces, start, end)

SLACK = 1e-9  # Relative to the time of the schedule.


def is_right(problem: Problem, schedule: Schedule) -> bool:
    """Return whether the replay must accept a schedule."""
    columns = ("chunk", "link", "step", "reduces", "start_us", "end_us")
    rows: list[Row] = list(zip(*(getattr(schedule, name).tolist() for name in columns), strict=True))
    if not all(_makes_sense(problem, schedule.size_bytes, row) for row in rows):
        return False
    tolerance = SLACK * max(1.0, *(row[5] for row in rows), 1.0)
    return _fits(problem, rows, tolerance) and _arrives(problem, rows, tolerance)


def _makes_sense(problem: Problem, size_bytes: float, row: Row) -> bool:
    """Return whether a send's numbers are in range and its duration fits its link."""
    net, collective = problem.network, problem.collective
    chunk, link, step, reduces, start, end = row
    if not (0 <= chunk < collective.nchunks and 0 <= link < net.nlinks and 0 <= step < 2**63 - 1):
        return False
    if (reduces and not collective.reduces[chunk]) or not (math.isfinite(start) and math.isfinite(end)):
        return False
    lasts = collective.fraction[chunk] * size_bytes / net.bandwidth_gbs[link] / 1e3
    return bool(start >= 0 and abs(end - start - lasts) <= SLACK * max(1.0, end))


def _fits(problem: Problem, rows: list[Row], tolerance: float) -> bool:
    """Return whether no two sends are on a link at once, and no resource is over capacity when a send starts."""
    net = problem.network
    on_link, through = defaultdict(list), defaultdict(list)
    for _, link, _, _, start, end in rows:
        on_link[link].append((start, end))
        for r in net.uses(link).tolist():
            through[r].append((start, max(end - tolerance, start), float(net.bandwidth_gbs[link])))
    for sends in on_link.values():
        sends.sort(key=lambda send: send[0])
        if any(later[0] < earlier[1] - tolerance for earlier, later in pairwise(sends)):
            return False
    return all(
        sum(rate for start, end, rate in sends if start <= now < end) <= net.capacity_gbs[r] * (1 + 1e-6)
        for r, sends in through.items()
        for now, _, _ in sends
    )


def _arrives(problem: Problem, rows: list[Row], tolerance: float) -> bool:
    """Return whether every send's content is there when it starts, and each output holds what it should."""
    net, collective = problem.network, problem.collective
    content: dict[Cell, Counter[int]] = defaultdict(Counter)  # How often a cell holds each contributor's part.
    expected: dict[int, Counter[int]] = defaultdict(Counter)
    for rank, chunk in collective.pre.tolist():
        content[chunk, rank] = Counter([rank if collective.reduces[chunk] else -1])
        expected[chunk] |= content[chunk, rank]
    arrivals: dict[Cell, list[tuple[float, bool]]] = defaultdict(list)  # (time, whether it replaced the content)
    initial = set(content)
    rows = sorted(rows, key=lambda row: row[2])
    for _, step in groupby(rows, key=lambda row: row[2]):
        sends = list(step)
        carried = []
        for chunk, link, _, _, start, _ in sends:
            cell = (chunk, int(net.src[link]))
            if not content[cell]:
                return False
            times = [time for time, _ in arrivals[cell]]
            plain = 0.0 if cell in initial else min(times, default=0.0)
            ready = max(times, default=0.0) if collective.reduces[chunk] else plain
            if start < ready - tolerance:
                return False
            carried.append(Counter(content[cell]))
        goals = Counter((chunk, int(net.dst[link])) for chunk, link, *_ in sends)
        for chunk, link, _, reduces, _, end in sends:
            cell, arrival = (chunk, int(net.dst[link])), end + net.alpha_us[link]
            replaces = collective.reduces[chunk] and not reduces
            if replaces and (goals[cell] > 1 or any(arrival < time - tolerance for time, _ in arrivals[cell])):
                return False
            if reduces and any(arrival < time - tolerance for time, copy in arrivals[cell] if copy):
                return False
        for (chunk, link, _, reduces, _, _), sent_content in zip(sends, carried, strict=True):
            cell = (chunk, int(net.dst[link]))
            content[cell] = content[cell] + sent_content if reduces else sent_content
        for chunk, link, _, reduces, _, end in sends:
            arrivals[chunk, int(net.dst[link])].append((end + net.alpha_us[link], not reduces))
    return all(
        content[chunk, rank] == expected[chunk] if collective.reduces[chunk] else bool(content[chunk, rank])
        for rank, chunk in collective.post.tolist()
    )
