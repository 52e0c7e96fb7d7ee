"""Paths: the longest of all shortest paths, by α, that some chunk must take."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from synth.bounds.kind import Search
from synth.bounds.metric import chunks_by_ends, latencies, pair_distances, pairs
from synth.bounds.witness import Witness
from synth.model.collective import Ints
from synth.model.requirements import find_requirements


def find_path(search: Search) -> Iterator[Witness]:
    """The pair of ranks with the highest latency among those between which some chunk must go."""
    best = max(_longest(search), default=None)
    if best is not None:
        first, last = -best[1], -best[2]
        ranks = search.problem.ranks
        base = float(latencies(search.problem.network).rows(np.array([first]))[0, last])
        text = f"path {ranks[first]}→{ranks[last]}, {base:.4g} µs"
        yield Witness("path", (first, last), text=text)


def _longest(search: Search) -> Iterator[tuple[float, int, int]]:
    """(µs, -from, -to) of the longest paths of chunks that have one holder, or whose contributions must all go."""
    collective, distances = search.problem.collective, latencies(search.problem.network)
    need, listed = find_requirements(collective), pairs(collective)
    forced = collective.reduces | (need.nhold == 1)
    here = listed.of_pairs(forced[listed.chunk])
    holder, goal = listed.holder[here], listed.goal[here]
    if len(holder):
        forth = len(np.unique(holder)) <= len(np.unique(goal))
        one = holder if forth else goal
        some = _spread(search, np.unique(one))
        if some is not None:
            kept = np.isin(one, some)
            holder, goal = holder[kept], goal[kept]
        distance = pair_distances(distances, holder, goal)
        longest = np.flatnonzero(distance >= distance.max() * (1 - 1e-12))
        first = longest[np.lexsort((goal[longest], holder[longest]))[0]]
        yield float(distance[first]), -int(holder[first]), -int(goal[first])
    for _, holders, goals in chunks_by_ends(collective, listed.others[forced[listed.others]]):
        some = _spread(search, holders)
        ends = holders if some is None else some
        table = distances.rows(ends)[:, goals]
        first = int(np.flatnonzero(table >= table.max() * (1 - 1e-12))[0])
        yield float(table.max()), -int(ends[first // len(goals)]), -int(goals[first % len(goals)])


def _spread(search: Search, ranks: Ints) -> Ints | None:
    """A few of so many ranks that not all can be searched from: spread out, and far corners. None: all can."""
    net = search.problem.network
    most = max(8, search.tuning.path_work // (net.nlinks + 8 * net.nranks))
    if len(ranks) <= most:
        return None
    distances, ends = latencies(net), [int(ranks[0])]
    for _ in range(4):
        row = distances.rows(np.array(ends[-1:]))[0][ranks]
        ends.append(int(ranks[int(np.where(np.isfinite(row), row, -1.0).argmax())]))
    spread = ranks[np.linspace(0, len(ranks) - 1, most - 5).astype(np.int64)]
    return np.unique(np.concatenate([spread, np.array(ends)]))
