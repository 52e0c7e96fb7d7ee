"""Whether a timed schedule is right, straight from the definitions: bags of contributions, and every instant summed.

It shares nothing with `synth.verify`, and is slow.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import groupby, pairwise

from synth.model.problem import Problem
from synth.model.schedule import Schedule

Cell = tuple[int, int]  # chunk, rank
Row = tuple[int, int, int, bool, float, float]  # chunk, link, step, reduces, start, end

SLACK = 1e-9  # of the whole time


def is_right(problem: Problem, schedule: Schedule) -> bool:
    """Whether the replay must accept it."""
    columns = ("chunk", "link", "step", "reduces", "start_us", "end_us")
    rows: list[Row] = list(zip(*(getattr(schedule, name).tolist() for name in columns), strict=True))
    if not all(_makes_sense(problem, schedule.size_bytes, row) for row in rows):
        return False
    tolerance = SLACK * max(1.0, *(row[5] for row in rows), 1.0)
    return _fits(problem, rows, tolerance) and _arrives(problem, rows, tolerance)


def _makes_sense(problem: Problem, size_bytes: float, row: Row) -> bool:
    net, collective = problem.network, problem.collective
    chunk, link, step, reduces, start, end = row
    if not (0 <= chunk < collective.nchunks and 0 <= link < net.nlinks and 0 <= step < 2**63 - 1):
        return False
    if (reduces and not collective.reduces[chunk]) or not (math.isfinite(start) and math.isfinite(end)):
        return False
    lasts = collective.fraction[chunk] * size_bytes / net.bandwidth_gbs[link] / 1e3
    return bool(start >= 0 and abs(end - start - lasts) <= SLACK * max(1.0, end))


def _fits(problem: Problem, rows: list[Row], tolerance: float) -> bool:
    """No two sends on a link at once, no resource over capacity at the start of any send."""
    net = problem.network
    on_link, through = defaultdict(list), defaultdict(list)
    for _, link, _, _, start, end in rows:
        on_link[link].append((start, end))
        for r in net.uses(link).tolist():
            through[r].append((start, max(end - tolerance, start), float(net.bandwidth_gbs[link])))
    for sends in on_link.values():
        sends.sort(key=lambda send: send[0])
        if any(two[0] < one[1] - tolerance for one, two in pairwise(sends)):
            return False
    return all(
        sum(rate for start, end, rate in sends if start <= now < end) <= net.capacity_gbs[r] * (1 + 1e-6)
        for r, sends in through.items()
        for now, _, _ in sends
    )


def _arrives(problem: Problem, rows: list[Row], tolerance: float) -> bool:
    """Every send's content is there before it starts, and each wanted output holds what it should."""
    net, collective = problem.network, problem.collective
    held: dict[Cell, Counter[int]] = defaultdict(Counter)  # how often each contributor's part is there
    should: dict[int, Counter[int]] = defaultdict(Counter)
    for rank, chunk in collective.pre.tolist():
        held[chunk, rank] = Counter([rank if collective.reduces[chunk] else -1])
        should[chunk] |= held[chunk, rank]
    came: dict[Cell, list[tuple[float, bool]]] = defaultdict(list)  # when, and whether it replaced what was there
    there = set(held)
    rows = sorted(rows, key=lambda row: row[2])
    for _, step in groupby(rows, key=lambda row: row[2]):
        sends = list(step)
        carried = []
        for chunk, link, _, _, start, _ in sends:
            cell = (chunk, int(net.src[link]))
            if not held[cell]:
                return False
            times = [when for when, _ in came[cell]]
            plain = 0.0 if cell in there else min(times, default=0.0)
            ready = max(times, default=0.0) if collective.reduces[chunk] else plain
            if start < ready - tolerance:
                return False
            carried.append(Counter(held[cell]))
        goals = Counter((chunk, int(net.dst[link])) for chunk, link, *_ in sends)
        for chunk, link, _, reduces, _, end in sends:
            cell, arrival = (chunk, int(net.dst[link])), end + net.alpha_us[link]
            replaces = collective.reduces[chunk] and not reduces
            if replaces and (goals[cell] > 1 or any(arrival < when - tolerance for when, _ in came[cell])):
                return False
            if reduces and any(arrival < when - tolerance for when, copy in came[cell] if copy):
                return False
        for (chunk, link, _, reduces, _, _), content in zip(sends, carried, strict=True):
            cell = (chunk, int(net.dst[link]))
            held[cell] = held[cell] + content if reduces else content
        for chunk, link, _, reduces, _, end in sends:
            came[chunk, int(net.dst[link])].append((end + net.alpha_us[link], not reduces))
    return all(
        held[chunk, rank] == should[chunk] if collective.reduces[chunk] else bool(held[chunk, rank])
        for rank, chunk in collective.post.tolist()
    )
