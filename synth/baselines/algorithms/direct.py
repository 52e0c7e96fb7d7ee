"""Direct algorithms: every chunk over a fixed shortest route to each goal, all issued at once, unscheduled."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from synth.baselines.fifo import Unordered, fifo_order
from synth.baselines.routes import Routes
from synth.baselines.tuning import TUNING
from synth.model.collective import Ints
from synth.model.problem import Problem
from synth.model.requirements import find_requirements
from synth.model.schedule import Schedule, untimed
from synth.phases.split import join
from topologies.arrays import positions, ranges, row_of_entry
from topologies.errors import NoRoute, TooManySends


def direct_baselines(problem: Problem, most: int = TUNING.most_sends, turns: bool = False) -> list[Unordered]:
    """Build the direct algorithm of `direct_schedule`, as a list of one plan; empty for problems that it does not take.

    It takes collectives that only copy, allreduce, and sums of at most one goal each. An allreduce is cut into one
    share a rank. The schedule is built later, by `queued`, with the errors of `direct_schedule`.

    Args:
        problem: The problem.
        most: Most sends.
        turns: As for `direct_schedule`; the algorithm is then named "direct in turns", else "direct".
    """
    collective = problem.collective
    one_goal = (np.diff(collective.goals[0]) <= 1).all()
    if collective.kind.in_shares:
        problem = problem.with_chunks(collective.nranks)
    elif collective.reducing and not (collective.reduces.all() and one_goal):
        return []
    engine = "direct in turns" if turns else "direct"
    return [Unordered(problem, engine, lambda size: direct_schedule(problem, size, turns, most))]


def direct_schedule(
    problem: Problem, chunk_bytes: float, turns: bool = False, most: int = TUNING.most_sends
) -> Schedule:
    """Send every chunk to every goal separately, first come, first served at every link (see `fifo_order`).

    Each goal's copy is a separate message from the nearest holder (of equals the first), even where messages of one
    chunk share links. This is kinder than a router in one respect: a rank that forwards copies of a chunk may send them
    on as soon as the first of them is there.

    A sum is named by the rank it is at, so a contribution cannot pass a rank that adds its own and stay separate:
    contributions are added at the ranks of the tree of the fixed routes to the goal. An allreduce is a reduce-scatter
    in such trees, and then an allgather in the trees of the fixed routes back.

    Args:
        problem: A problem of plain values only; or of sums only, with at most one goal each; or an allreduce with as
            many chunks for every member. This is not checked.
        chunk_bytes: Size in bytes of the smallest chunk for which the order is that of the queues.
        turns: True: every rank issues to the rank after it first, then to the one after that (as the send and receive
            calls of NCCL's all-to-all do). False: all ranks issue to 0, 1, 2, …
        most: Most sends; of sums, most contributions.

    Returns:
        Rows in the order of the queues, untimed; of an allreduce those of the reduce-scatter come first.

    Raises:
        NoRoute: A message, or a contribution to a sum, has no route.
        TooManySends: There are more than `most` of them.
    """
    collective = problem.collective
    if not collective.reducing:
        chunk, source, goal = flows(problem)
        issue = (goal - source) % problem.nranks if turns else goal
        return messages(problem, chunk, [source, goal], issue, chunk_bytes, most)
    if not collective.kind.in_shares:
        ptr, goals = collective.goals
        root = np.full(collective.nchunks, -1, dtype=np.int64)
        root[np.diff(ptr) == 1] = goals
        return _trees(problem, root, chunk_bytes, turns, most)
    owner = np.repeat(np.arange(collective.nranks), collective.nchunks // collective.nranks)
    return join(
        _trees(problem, owner, chunk_bytes, turns, most),
        _trees(problem, owner, chunk_bytes, turns, most, spreading=True),
    )


def flows(problem: Problem) -> tuple[Ints, Ints, Ints]:
    """Return (chunk, source, goal) for every goal that lacks its chunk, by chunk, then goal; plain values only.

    The source is the holder with the fewest hops to the goal, of equals the smallest rank. A holder without a route
    counts as farthest, and is named if there is no other. Each array has shape (flows,).
    """
    collective, need = problem.collective, find_requirements(problem.collective)
    chunk, goal = need.goal_chunk[~need.goal_is_holder], collective.goals[1][~need.goal_is_holder]
    held_ptr, holder = collective.holders
    many = need.nhold[chunk]
    if (many == 1).all():
        return chunk, holder[held_ptr[chunk]], goal
    begin = np.cumsum(many) - many
    pair = np.repeat(np.arange(len(chunk)), many)
    place = ranges(held_ptr[chunk], many)
    hops = Routes(problem.network, goal).hops(holder[place], goal[pair])
    far = np.where(hops < 0, problem.nranks, hops)
    # Pairs of a goal stay contiguous; the nearest holder comes first, of equals the smallest rank.
    nearest = np.lexsort((holder[place], far, pair))[begin]
    return chunk, holder[place[nearest]], goal


def messages(
    problem: Problem, chunk: Ints, points: list[Ints], issue: Ints, chunk_bytes: float, most: int = TUNING.most_sends
) -> Schedule:
    """Build messages of plain chunks, each from points[0] via the points between to points[-1], over fixed routes.

    Every rank issues its messages at once in the order of `issue`, then of chunk.

    Args:
        problem: The problem.
        chunk: Chunk of each message, shape (n,).
        points: For each point the rank of each message, shape (n,); a message may stay at a rank.
        issue: Number by which a rank orders its messages, shape (n,).
        chunk_bytes: Size in bytes of the smallest chunk for which the order is that of the queues.
        most: Most sends of all messages between two points.

    Returns:
        Rows in the order of the queues, untimed. A message's steps count from 0 at its first link.

    Raises:
        NoRoute: A message has no route.
        TooManySends: There are more than `most` sends between two points.
    """
    order = _issue_order(points[0], issue, chunk)
    chunk, points = chunk[order], [point[order] for point in points]
    routes = Routes(problem.network, np.concatenate(points[1:]), most)
    legs = [routes.expand(a, b) for a, b in pairwise(points)]
    lengths = [np.bincount(message, minlength=len(chunk)) for message, _, _ in legs]
    length = np.sum(lengths, axis=0)
    first = np.cumsum(length) - length
    link, next_entry = np.empty(length.sum(), dtype=np.int64), first.copy()
    for (message, leg_link, hop), count in zip(legs, lengths, strict=True):
        link[next_entry[message] + hop] = leg_link
        next_entry += count
    message, step = np.repeat(np.arange(len(chunk)), length), positions(length)
    before = np.flatnonzero(step + 1 < length[message])
    carried = chunk[message]
    rows = fifo_order(problem, carried, link, (before, before + 1), chunk_bytes)
    return untimed(carried[rows], link[rows], step[rows])


def _issue_order(source: Ints, issue: Ints, chunk: Ints) -> Ints:
    """Return the order of all ranks' loops at once: every rank's first message, then every rank's second, and so on.

    A rank's messages are in the order of `issue`, then of chunk; equal places are in the order of ranks.

    Args:
        source: Rank from which each message goes, shape (n,).
        issue: Number by which a rank orders its messages, shape (n,).
        chunk: Chunk of each message, shape (n,).

    Returns:
        Indices of the messages, shape (n,).
    """
    order = np.lexsort((chunk, issue, source))
    ordered = source[order]
    place = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return np.asarray(order[np.lexsort((ordered, place))])


def _trees(
    problem: Problem, root: Ints, chunk_bytes: float, turns: bool, most: int, spreading: bool = False
) -> Schedule:
    """Build the trees of fixed routes with contributions to root[chunk], or with sums from there.

    Args:
        problem: The problem.
        root: Rank of each chunk's root, shape (nchunks,); -1: no tree.
        chunk_bytes: Size of the smallest chunk in bytes for which the order is that of the queues.
        turns: As for `direct_schedule`.
        most: Most contributions or goals.
        spreading: True: sums are copied from the root to all goals. False: contributions are added on the route to it.

    Returns:
        Rows in the order of the queues, untimed.

    Raises:
        NoRoute: A contribution has no route to the root, or a sum none from there.
        TooManySends: There are more than `most` contributions or goals.
    """
    collective, n = problem.collective, problem.nranks
    net = problem.network.reversed() if spreading else problem.network
    routes = Routes(net, root[root >= 0])
    ptr, rank = collective.goals if spreading else collective.holders
    owned = row_of_entry(ptr)
    has_root = root[owned] >= 0
    owned, rank = owned[has_root], rank[has_root]
    if len(owned) > most:
        raise TooManySends(f"baseline: {len(owned)} contributions are more than {most}; use fewer ranks")
    hops = routes.hops(rank, root[owned])
    if (hops < 0).any():
        raise NoRoute(f"baseline: {collective.name} has a sum whose contributions have no route to one rank")
    # A tree's ranks, the most distant first: ranks with contributions or goals, and ranks on their routes.
    cells: list[Ints] = []
    onward = np.zeros(0, dtype=np.int64)
    for distance in range(int(hops.max(initial=0)), 0, -1):
        layer = np.unique(np.concatenate([onward, (owned * n + rank)[hops == distance]]))
        cells.append(layer)
        onward = layer // n * n + net.dst[routes.link(layer % n, root[layer // n])]
    cell = np.concatenate([*cells, onward[:0]])
    distance_to_root = np.repeat(np.arange(len(cells), 0, -1), [len(c) for c in cells])
    chunk, rank = np.divmod(cell, n)
    link = routes.link(rank, root[chunk])
    source = problem.network.src[link]
    goal = rank if spreading else root[chunk]
    order = _issue_order(source, (goal - source) % n if turns else goal, chunk)
    cell, chunk, link, distance_to_root = cell[order], chunk[order], link[order], distance_to_root[order]
    inner = np.flatnonzero(distance_to_root > 1)  # all other sends lead into the root, or out of it
    ordered = np.argsort(cell)
    parent = chunk[inner] * n + net.dst[link[inner]]
    parent = ordered[np.searchsorted(cell[ordered], parent)]
    edges = (parent, inner) if spreading else (inner, parent)
    by_first = np.argsort(edges[0], kind="stable")
    rows = fifo_order(problem, chunk, link, (edges[0][by_first], edges[1][by_first]), chunk_bytes)
    step = distance_to_root - 1 if spreading else len(cells) - distance_to_root
    return untimed(chunk[rows], link[rows], step[rows], np.full(len(rows), not spreading))
