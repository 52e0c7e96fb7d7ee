"""Ruin and recreate: remove chunks from a schedule and insert them where they fit (Schrimpf et al., 2000); loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from synth.engines.lns.calendars import book, clear, earliest
from synth.engines.lns.insertion import LnsPlan, LnsPrices, LnsTables, draw, draw_roots, insert

_LATENESS = 0.05  # weight of the mean arrival of the chunks in the cost, besides the last arrival


def place_all(tables: LnsTables, plan: LnsPlan, end_us: Any) -> float:
    """Set every send of the plan to its earliest start, in the order of their starts, and return the plan's cost.

    The cost in µs is the last arrival of all, and a small part of the mean of the chunks' last arrivals.

    Args:
        tables: The problem, whose calendars are cleared and booked again.
        plan: The plan, whose starts change.
        end_us: Set to each chunk's last arrival, float, shape (chunks,).
    """
    graph, calendars, chunks, arrival_us = tables.graph, tables.calendars, tables.chunks, tables.arrival_us
    nchunks = len(plan.count)
    total = 0
    for chunk in range(nchunks):
        total += plan.count[chunk]
    starts = np.empty(total)
    place = np.empty(total, np.int64)
    next_send = 0
    most = plan.link.shape[1]
    for chunk in range(nchunks):
        end_us[chunk] = 0.0
        for rank in range(arrival_us.shape[2]):
            arrival_us[0, chunk, rank] = arrival_us[1, chunk, rank] = 0.0
        for row in range(plan.count[chunk]):
            starts[next_send] = plan.start[chunk, row]
            place[next_send] = chunk * most + row
            next_send += 1
    order = np.argsort(starts, kind="mergesort")
    clear(calendars)
    end = 0.0
    for i in range(total):
        chunk, row = place[order[i]] // most, place[order[i]] % most
        link = plan.link[chunk, row]
        hold = chunks.kilobytes[chunk] / calendars.rate[link]
        busy = hold + graph.gap[link]
        # The exchange between roots does not wait for the parts that they get from each other.
        ready = arrival_us[0 if row < plan.adds[chunk] else 1, chunk, graph.src[link]]
        start = earliest(calendars, link, ready, busy)
        book(calendars, link, start, busy)
        plan.start[chunk, row] = start
        arrival = start + hold + graph.alpha[link]
        goal = graph.dst[link]
        arrival_us[1, chunk, goal] = max(arrival_us[1, chunk, goal], arrival)
        if row < plan.gathers[chunk]:
            arrival_us[0, chunk, goal] = max(arrival_us[0, chunk, goal], arrival)
        end_us[chunk] = max(end_us[chunk], arrival)
        end = max(end, arrival)
    mean = 0.0
    for chunk in range(nchunks):
        mean += end_us[chunk]
    return end + _LATENESS * mean / nchunks


def copy_plan(source: LnsPlan, target: LnsPlan) -> None:
    """Write one plan into another, with only the roots and sends in use; what is beyond them stays as it is."""
    for chunk in range(len(source.count)):
        target.count[chunk] = source.count[chunk]
        target.gathers[chunk] = source.gathers[chunk]
        target.adds[chunk] = source.adds[chunk]
        target.nroots[chunk] = source.nroots[chunk]
        for k in range(source.nroots[chunk]):
            target.roots[chunk, k] = source.roots[chunk, k]
        for row in range(source.count[chunk]):
            target.link[chunk, row] = source.link[chunk, row]
            target.start[chunk, row] = source.start[chunk, row]


def improve(  # One loop of over 60 lines, as its state is too large to pass on.
    tables: LnsTables, now: LnsPlan, trial: LnsPlan, best: LnsPlan, end_us: Any, trial_end_us: Any, costs: Any,
    work: int, limits: tuple[float, float],
) -> int:  # fmt: skip
    """Improve plans until `work` links were looked at or the best cost is enough; return the number of iterations.

    Args:
        tables: The problem, whose calendars change.
        now: The present plan, which changes.
        trial: Room for another plan.
        best: The best plan so far, which changes.
        end_us: Last arrival of each chunk of `now`, float, shape (chunks,), which changes.
        trial_end_us: Room for the same of `trial`.
        costs: Costs of `now` and `best`, float, shape (2,), which change.
        work: Number of links to look at.
        limits: A cost that need not be improved; how much worse, as a fraction, a plan may be and still become the
            present plan.
    """
    graph, calendars, chunks, scratch = tables.graph, tables.calendars, tables.chunks, tables.scratch
    enough_us, heat = limits
    nchunks = len(now.count)
    rounds = 0
    until = scratch.drawn[1] + work
    removed = np.zeros(nchunks, np.int64)
    is_removed = np.zeros(nchunks, np.bool_)
    while scratch.drawn[1] < until and costs[1] > enough_us:
        rounds += 1
        copy_plan(now, trial)
        end = 0.0
        for chunk in range(nchunks):
            is_removed[chunk] = False
            end = max(end, end_us[chunk])
        # A chunk that ends late, most often, and a few chunks at random.
        count = 1 + int(draw(scratch) * draw(scratch) * min(nchunks, 12))
        nremoved = 0
        for k in range(count):
            chunk = int(draw(scratch) * nchunks)
            if k == 0 and draw(scratch) < 0.7:
                for _ in range(4):
                    later_chunk = int(draw(scratch) * nchunks)
                    if end_us[later_chunk] > end_us[chunk]:
                        chunk = later_chunk
            if not is_removed[chunk]:
                is_removed[chunk] = True
                removed[nremoved] = chunk
                nremoved += 1
        clear(calendars)
        for chunk in range(nchunks):
            if not is_removed[chunk]:
                for row in range(trial.count[chunk]):
                    link = trial.link[chunk, row]
                    busy = chunks.kilobytes[chunk] / calendars.rate[link] + graph.gap[link]
                    book(calendars, link, trial.start[chunk, row], busy)
        weight = 0.0 if draw(scratch) < 0.4 else draw(scratch) * 4.0
        noise = 0.0 if draw(scratch) < 0.3 else draw(scratch)
        failed = False
        for k in range(nremoved):
            chunk = removed[k]
            if chunks.sums[chunk] and draw(scratch) < 0.4:
                most = trial.nroots[chunk]
                if draw(scratch) < 0.5:
                    most = 1 + int(draw(scratch) * draw(scratch) * trial.roots.shape[1])
                draw_roots(tables, trial, chunk, most)
            insert(tables, trial, chunk, end, LnsPrices(weight, noise, draw(scratch) < 0.5))
            failed = failed or trial.count[chunk] < 0
        for chunk in range(nchunks):
            scratch.drawn[1] += trial.count[chunk]
        if failed:
            continue
        cost = place_all(tables, trial, trial_end_us)
        if cost < costs[0] * (1.0 + heat * draw(scratch)):
            copy_plan(trial, now)
            costs[0] = cost
            for chunk in range(nchunks):
                end_us[chunk] = trial_end_us[chunk]
            if cost < costs[1] * (1.0 - 1e-12):
                copy_plan(trial, best)
                costs[1] = cost
    return rounds


def construct(
    tables: LnsTables, plan: LnsPlan, end_us: Any, order: Any, likely_us: float, prices: LnsPrices, roots: int
) -> float:
    """Build a plan chunk by chunk and return its cost (see `place_all`), negative where a chunk cannot reach a goal.

    Args:
        tables: The problem, whose calendars are cleared and booked again.
        plan: The plan to build.
        end_us: Set to each chunk's last arrival, float, shape (chunks,).
        order: The chunks in the order in which they are inserted.
        likely_us: Likely end of the schedule in µs.
        prices: Prices of paths.
        roots: Most roots of a sum; 0 for the roots that the plan has.
    """
    clear(tables.calendars)
    for i in range(len(order)):
        if roots and tables.chunks.sums[order[i]]:
            draw_roots(tables, plan, order[i], roots)
        insert(tables, plan, order[i], likely_us, prices)
        if plan.count[order[i]] < 0:
            return -1.0
    return place_all(tables, plan, end_us)
