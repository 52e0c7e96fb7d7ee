"""Schedules without the sends that change nothing."""

from __future__ import annotations

import numpy as np

from synth.model.problem import Problem
from synth.model.schedule import Schedule


def prune_copies(problem: Problem, schedule: Schedule) -> Schedule:
    """A copying schedule without sends that nobody needs: one arrival a rank and chunk, and each leads on.

    Of several arrivals the one of the earliest step (then row) stays, so what remains is a tree for every chunk.
    """
    net, collective = problem.network, problem.collective
    have = {(c, r) for r, c in collective.pre.tolist()}
    parent: dict[tuple[int, int], int] = {}
    order = np.argsort(schedule.step, kind="stable")
    chunk, src, dst = (schedule.chunk.tolist(), net.src[schedule.link].tolist(), net.dst[schedule.link].tolist())
    for row in order.tolist():
        cell = (chunk[row], dst[row])
        if cell not in have and cell not in parent:
            parent[cell] = row
    kept = np.zeros(len(schedule), dtype=bool)
    for rank, c in collective.post.tolist():
        cell = (c, rank)
        while cell in parent and not kept[parent[cell]]:
            row = parent[cell]
            kept[row] = True
            cell = (c, src[row])
    return schedule.take(kept)


def prune_sums(problem: Problem, schedule: Schedule) -> Schedule:
    """A reducing schedule without sends of nothing, and without those whose effect nobody sees."""
    net = problem.network
    filled = {(c, r) for r, c in problem.collective.pre.tolist()}
    full = np.zeros(len(schedule), dtype=bool)
    for at in range(schedule.nsteps):
        these = np.flatnonzero(schedule.step == at)
        cells = zip(schedule.chunk[these].tolist(), net.src[schedule.link[these]].tolist(), strict=True)
        full[these] = [cell in filled for cell in cells]
        sent = these[full[these]]
        filled |= set(zip(schedule.chunk[sent].tolist(), net.dst[schedule.link[sent]].tolist(), strict=True))
    schedule = schedule.take(full)
    live = {(c, r) for r, c in problem.collective.post.tolist()}
    kept = np.zeros(len(schedule), dtype=bool)
    chunk, step = schedule.chunk.tolist(), schedule.step
    src, dst = net.src[schedule.link].tolist(), net.dst[schedule.link].tolist()
    for at in range(schedule.nsteps - 1, -1, -1):
        rows = [row for row in np.flatnonzero(step == at).tolist() if (chunk[row], dst[row]) in live]
        kept[rows] = True
        live -= {(chunk[row], dst[row]) for row in rows if not schedule.reduces[row]}
        live |= {(chunk[row], src[row]) for row in rows}
    return schedule.take(kept)
