"""Ruin and recreate: chunks are taken out of a schedule and put back where they fit (Schrimpf et al., 2000); loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from synth.engines.lns.calendars import Calendars, book, clear, earliest
from synth.engines.lns.insertion import Chunks, Graph, Plan, Scratch, draw, draw_roots, insert

_LATENESS = 0.05  # what the mean chunk's arrival counts beside the last one's


def place_all(graph: Graph, calendars: Calendars, chunks: Chunks, plan: Plan, came: Any, last: Any) -> float:
    """Have every send of the plan start as early as it can, in the order of their starts; the cost of the plan.

    came: float, shape (2, chunks, ranks): set to when each chunk's last arrival at a rank is, of what is gathered and
    of all. last: float, shape (chunks,): set to each chunk's last arrival.
    """
    nchunks = len(plan.count)
    total = 0
    for chunk in range(nchunks):
        total += plan.count[chunk]
    starts = np.empty(total)
    place = np.empty(total, np.int64)
    at = 0
    most = plan.link.shape[1]
    for chunk in range(nchunks):
        last[chunk] = 0.0
        for rank in range(came.shape[2]):
            came[0, chunk, rank] = came[1, chunk, rank] = 0.0
        for row in range(plan.count[chunk]):
            starts[at] = plan.start[chunk, row]
            place[at] = chunk * most + row
            at += 1
    order = np.argsort(starts, kind="mergesort")
    clear(calendars)
    end = 0.0
    for i in range(total):
        chunk, row = place[order[i]] // most, place[order[i]] % most
        link = plan.link[chunk, row]
        hold = chunks.kilobytes[chunk] / calendars.rate[link]
        busy = hold + graph.gap[link]
        # what roots exchange does not wait for what they get of each other
        ready = came[0 if row < plan.adds[chunk] else 1, chunk, graph.src[link]]
        start = earliest(calendars, link, ready, busy)
        book(calendars, link, start, busy)
        plan.start[chunk, row] = start
        then = start + hold + graph.alpha[link]
        to = graph.dst[link]
        came[1, chunk, to] = max(came[1, chunk, to], then)
        if row < plan.gathers[chunk]:
            came[0, chunk, to] = max(came[0, chunk, to], then)
        last[chunk] = max(last[chunk], then)
        end = max(end, then)
    mean = 0.0
    for chunk in range(nchunks):
        mean += last[chunk]
    return end + _LATENESS * mean / nchunks


def copy_plan(of: Plan, to: Plan) -> None:
    """Have one plan say what another says."""
    for chunk in range(len(of.count)):
        to.count[chunk] = of.count[chunk]
        to.gathers[chunk] = of.gathers[chunk]
        to.adds[chunk] = of.adds[chunk]
        to.nroots[chunk] = of.nroots[chunk]
        for k in range(of.nroots[chunk]):
            to.roots[chunk, k] = of.roots[chunk, k]
        for row in range(of.count[chunk]):
            to.link[chunk, row] = of.link[chunk, row]
            to.start[chunk, row] = of.start[chunk, row]


def improve(  # over 60 lines: one loop, whose state is too much to hand on
    graph: Graph, calendars: Calendars, chunks: Chunks, now: Plan, trial: Plan, best: Plan, scratch: Scratch,
    came: Any, last: Any, ends: Any, costs: Any, work: int, enough_us: float, heat: float,
) -> int:  # fmt: skip
    """Improve plans until so many links were looked at; the iterations made.

    Args:
        now: a plan, which changes. trial: room for another. best: the best so far, which changes.
        last, ends: float, shape (chunks,): when each chunk of `now` has arrived; room for those of `trial`.
        costs: float, shape (2,): of `now` and of `best`. enough_us: a cost that need not be improved.
        heat: how much worse, as a part, a plan may be to be gone on with.
    """
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
            end = max(end, last[chunk])
        # one that ends late, or that is wherever such a one is; a few by chance
        count = 1 + int(draw(scratch) * draw(scratch) * min(nchunks, 12))
        taken = 0
        for k in range(count):
            chunk = int(draw(scratch) * nchunks)
            if k == 0 and draw(scratch) < 0.7:
                for _ in range(4):
                    other = int(draw(scratch) * nchunks)
                    if last[other] > last[chunk]:
                        chunk = other
            if not is_removed[chunk]:
                is_removed[chunk] = True
                removed[taken] = chunk
                taken += 1
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
        for k in range(taken):
            chunk = removed[k]
            if chunks.sums[chunk] and draw(scratch) < 0.4:
                most = trial.nroots[chunk]
                if draw(scratch) < 0.5:
                    most = 1 + int(draw(scratch) * draw(scratch) * trial.roots.shape[1])
                draw_roots(graph, chunks, trial, scratch, chunk, most)
            insert(graph, calendars, chunks, trial, scratch, chunk, end, weight, noise, draw(scratch) < 0.5)
            failed = failed or trial.count[chunk] < 0
        for chunk in range(nchunks):
            scratch.drawn[1] += trial.count[chunk]
        if failed:
            continue
        cost = place_all(graph, calendars, chunks, trial, came, ends)
        if cost < costs[0] * (1.0 + heat * draw(scratch)):
            copy_plan(trial, now)
            costs[0] = cost
            for chunk in range(nchunks):
                last[chunk] = ends[chunk]
            if cost < costs[1] * (1.0 - 1e-12):
                copy_plan(trial, best)
                costs[1] = cost
    return rounds


def construct(
    graph: Graph, calendars: Calendars, chunks: Chunks, plan: Plan, scratch: Scratch, came: Any, last: Any,
    order: Any, likely_us: float, weight: float, noise: float, far: bool, roots: int,
) -> float:  # fmt: skip
    """A plan from nothing, chunk by chunk; its cost, negative where a chunk cannot get to where it is wanted.

    roots: how many a sum may come together at; 0: at those that the plan has.
    """
    clear(calendars)
    for i in range(len(order)):
        if roots and chunks.sums[order[i]]:
            draw_roots(graph, chunks, plan, scratch, order[i], roots)
        insert(graph, calendars, chunks, plan, scratch, order[i], likely_us, weight, noise, far)
        if plan.count[order[i]] < 0:
            return -1.0
    return place_all(graph, calendars, chunks, plan, came, last)
