"""The least µs a byte of very large messages, from a linear program over all trees, where links share nothing.

Each chunk goes in parts over trees; no link is busy longer than the whole. Such parts can be sent one period after the
other, so that the time is reached as messages grow. It shares no code with bounds or engines.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from ortools.linear_solver import pywraplp

from synth.model.problem import Problem

_MOST = 4000  # trees of a chunk


def packed_us_per_byte(problem: Problem) -> float | None:
    """What trees reach; None where links share something, or there are too many trees."""
    net, collective = problem.network, problem.collective
    if net.hyperlinks is not None or (len(net.uses_idx) and np.bincount(net.uses_idx).max() > 1):
        return None
    capacity = net.capacity_gbs[net.uses_idx]
    rate = np.minimum(net.bandwidth_gbs, np.minimum.reduceat(capacity, net.uses_ptr[:-1])) if len(capacity) else None
    if rate is None:
        return None
    solver = pywraplp.Solver.CreateSolver("GLOP")
    longest = solver.NumVar(0, solver.infinity(), "")
    links = [solver.Constraint(-solver.infinity(), 0) for _ in range(net.nlinks)]
    for row in links:
        row.SetCoefficient(longest, -1)

    def add(trees: list[tuple[int, ...]], into: pywraplp.Constraint) -> None:
        for tree in trees:
            part = solver.NumVar(0, solver.infinity(), "")
            into.SetCoefficient(part, 1)
            for link in tree:
                links[link].SetCoefficient(part, 1e-3 / float(rate[link]))

    (from_ptr, from_), (to_ptr, to) = collective.holders, collective.goals
    kinds: dict[tuple[bool, tuple[int, ...], tuple[int, ...]], float] = {}
    for chunk in range(collective.nchunks):
        holders = tuple(from_[from_ptr[chunk] : from_ptr[chunk + 1]].tolist())
        goals = tuple(to[to_ptr[chunk] : to_ptr[chunk + 1]].tolist())
        key = bool(collective.reduces[chunk]), holders, goals
        kinds[key] = kinds.get(key, 0.0) + float(collective.fraction[chunk])
    for (sums, holders, goals), fraction in kinds.items():
        if not goals:
            continue
        share = solver.Constraint(fraction, fraction)
        if not sums:
            if not (trees := _trees(problem, holders, goals, out=True)):
                return None
            add(trees, share)
            continue
        for root in goals if len(goals) == 1 else range(net.nranks):
            gathering = _trees(problem, (root,), holders, out=False)
            spreading = _trees(problem, (root,), goals, out=True)
            if gathering is None or spreading is None:
                return None
            here = solver.NumVar(0, solver.infinity(), "")
            share.SetCoefficient(here, 1)
            for trees in (gathering, spreading):
                all_of_it = solver.Constraint(0, 0)
                all_of_it.SetCoefficient(here, -1)
                add(trees, all_of_it)
    solver.Minimize(longest)
    return solver.Objective().Value() if solver.Solve() == pywraplp.Solver.OPTIMAL else None


def _trees(
    problem: Problem, roots: tuple[int, ...], leaves: tuple[int, ...], *, out: bool
) -> list[tuple[int, ...]] | None:
    """All trees of links from any of the roots to all leaves (out: False: from the leaves to the root)."""
    net = problem.network
    near, far = (net.src, net.dst) if out else (net.dst, net.src)
    others = [r for r in range(net.nranks) if r not in roots]
    into = [[*np.flatnonzero(far == r).tolist(), *([] if r in leaves else [-1])] for r in others]
    if np.prod([len(one) for one in into]) > _MOST:
        return None
    return list(dict.fromkeys(_connected(roots, leaves, others, into, near.tolist())))


def _connected(
    roots: tuple[int, ...], leaves: tuple[int, ...], others: list[int], into: list[list[int]], near: list[int]
) -> Iterator[tuple[int, ...]]:
    for choice in itertools.product(*into):
        way = dict(zip(others, choice, strict=True))
        kept: set[int] = set()
        for leaf in leaves:
            at, seen = leaf, set()
            while at not in roots and at not in seen and way[at] >= 0:
                seen.add(at)
                kept.add(way[at])
                at = near[way[at]]
            if at not in roots:
                break
        else:
            yield tuple(sorted(kept))
