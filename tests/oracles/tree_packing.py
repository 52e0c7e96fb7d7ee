"""The least µs a byte of very large messages, from a linear program over all trees, where links share nothing.

Each chunk goes in parts over trees, and no link is busy longer than the period. Such parts can be sent one period after
another, so that the time is reached as messages grow. The model shares no code with bounds or engines.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from ortools.linear_solver import pywraplp

from synth.model.problem import Problem

_MOST = 4000  # Trees of a chunk.


def packed_us_per_byte(problem: Problem) -> float | None:
    """Return the least µs a byte that trees reach.

    None: Links share a resource, there are too many trees, or the solver did not prove an optimum.
    """
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
        """Add a part of each tree to a constraint and to its links' loads."""
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
            root_share = solver.NumVar(0, solver.infinity(), "")
            share.SetCoefficient(root_share, 1)
            for trees in (gathering, spreading):
                equal_share = solver.Constraint(0, 0)
                equal_share.SetCoefficient(root_share, -1)
                add(trees, equal_share)
    solver.Minimize(longest)
    return solver.Objective().Value() if solver.Solve() == pywraplp.Solver.OPTIMAL else None


def _trees(
    problem: Problem, roots: tuple[int, ...], leaves: tuple[int, ...], *, out: bool
) -> list[tuple[int, ...]] | None:
    """Return all trees of links from any of the roots to all leaves; with out=False from the leaves to the root."""
    net = problem.network
    near, far = (net.src, net.dst) if out else (net.dst, net.src)
    inner_ranks = [r for r in range(net.nranks) if r not in roots]
    into = [[*np.flatnonzero(far == r).tolist(), *([] if r in leaves else [-1])] for r in inner_ranks]
    if np.prod([len(links) for links in into]) > _MOST:
        return None
    return list(dict.fromkeys(_connected(roots, leaves, inner_ranks, into, near.tolist())))


def _connected(
    roots: tuple[int, ...], leaves: tuple[int, ...], inner_ranks: list[int], into: list[list[int]], near: list[int]
) -> Iterator[tuple[int, ...]]:
    """Yield each choice of one link into every other rank that connects all leaves to a root."""
    for choice in itertools.product(*into):
        link_into = dict(zip(inner_ranks, choice, strict=True))
        used_links: set[int] = set()
        for leaf in leaves:
            rank, visited = leaf, set()
            while rank not in roots and rank not in visited and link_into[rank] >= 0:
                visited.add(rank)
                used_links.add(link_into[rank])
                rank = near[link_into[rank]]
            if rank not in roots:
                break
        else:
            yield tuple(sorted(used_links))
