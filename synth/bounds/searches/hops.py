"""Bounds by hops: the longest shortest path by α that a chunk must take, the loads of one-hop paths, and two steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from synth.bounds.metric import latencies, pair_distances, pairs, resource_loads
from synth.bounds.search import BoundSearch, with_gbs
from synth.bounds.witnesses.hops import Direct, Path
from synth.bounds.witnesses.two_steps import TwoSteps, is_all_reduce
from synth.model.collective import Ints, chunks_by_ends
from synth.model.requirements import find_requirements, sum_by


def find_path(search: BoundSearch) -> Iterator[Path]:
    """Yield one witness: the pair of ranks with the highest latency among the pairs between which some chunk must go.

    In large networks only a sample of the ranks is searched from. Of equal pairs the one with the lowest ranks counts.
    Nothing is yielded where no chunk must go between two given ranks.
    """
    best = max(_longest(search), default=None)
    if best is not None:
        us, first, last = best[0], -best[1], -best[2]
        ranks = search.problem.ranks
        yield Path(ranks=(first, last), text=f"path {ranks[first]}→{ranks[last]}, {us:.4g} µs")


def _longest(search: BoundSearch) -> Iterator[tuple[float, int, int]]:
    """Yield (µs, -from, -to) of the longest paths of chunks with one holder, or of contributions to sums.

    The greatest of these tuples has the longest path, and of equal ones that with the lowest ranks.
    """
    collective, distances = search.problem.collective, latencies(search.problem.network)
    need, listed = find_requirements(collective), pairs(collective)
    forced = collective.reduces | (need.nhold == 1)
    pair_forced = listed.of_pairs(forced[listed.chunk])
    holder, goal = listed.holder[pair_forced], listed.goal[pair_forced]
    if len(holder):
        forth = len(np.unique(holder)) <= len(np.unique(goal))
        root = holder if forth else goal
        sample = _spread(search, np.unique(root))
        if sample is not None:
            sampled = np.isin(root, sample)
            holder, goal = holder[sampled], goal[sampled]
        distance = pair_distances(distances, holder, goal)
        longest = np.flatnonzero(distance >= distance.max() * (1 - 1e-12))
        first = longest[np.lexsort((goal[longest], holder[longest]))[0]]
        yield float(distance[first]), -int(holder[first]), -int(goal[first])
    for _, holders, goals in chunks_by_ends(collective, listed.unlisted[forced[listed.unlisted]]):
        sample = _spread(search, holders)
        ends = holders if sample is None else sample
        table = distances.rows(ends)[:, goals]
        first = int(np.flatnonzero(table >= table.max() * (1 - 1e-12))[0])
        yield float(table.max()), -int(ends[first // len(goals)]), -int(goals[first % len(goals)])


def _spread(search: BoundSearch, ranks: Ints) -> Ints | None:
    """Return a sample of the ranks, ascending, evenly spread and with far corners; None if all can be searched from.

    The sample has at most as many ranks as the tuning's `path_work` allows, but no fewer than 8 are allowed.

    Args:
        search: The search.
        ranks: Local ranks, ascending.
    """
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


def find_direct(search: BoundSearch) -> Iterator[Direct]:
    """Yield the busiest resource if everything comes in one hop; the limit holds until two hops could pay.

    Pairs of ranks with parallel links are not counted in a resource's load. Nothing is yielded where nothing has to
    move, where no link joins two ranks between which something must go, or where the table of all pairs would be too
    large.
    """
    net, collective = search.problem.network, search.problem.collective
    k, need, listed = collective.nranks, find_requirements(collective), pairs(collective)
    if k * k > search.tuning.table_cells or not need.any:
        return
    forced = collective.reduces | (need.nhold == 1)
    share = listed.of_pairs(np.where(forced, collective.fraction, 0.0)[listed.chunk])
    load = sum_by(listed.holder * k + listed.goal, share, k * k).reshape(k, k)
    for chunks, holders, goals in chunks_by_ends(collective, listed.unlisted[forced[listed.unlisted]]):
        load[np.ix_(holders, goals)] += float(collective.fraction[chunks].sum())
    np.fill_diagonal(load, 0.0)
    inner = (net.src < k) & (net.dst < k)
    links = np.bincount(net.src[inner] * k + net.dst[inner], minlength=k * k).reshape(k, k)
    if ((load > 0) & (links == 0)).any():
        return
    at = net.src[inner], net.dst[inner]
    carried = np.zeros(net.nlinks)
    carried[inner] = np.where(links[at] == 1, load[at], 0.0)
    worst = int(resource_loads(net, carried).argmax())
    text = f"one hop or two: {net.resource_names[worst]}"
    yield Direct(resources=(worst,), text=with_gbs(text, net, np.array([worst])))


def find_two_steps(search: BoundSearch) -> Iterator[TwoSteps]:
    """Yield the witness at `search.size_bytes` that sums for all ranks need two steps; only for an all-reduce."""
    if is_all_reduce(search.problem.collective):
        yield TwoSteps(at_bytes=search.size_bytes, text="sums in two steps through the ports of all ranks")
