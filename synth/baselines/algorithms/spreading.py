"""Derive reduce-scatter and allreduce from an allgather.

Reduce-scatter is allgather backwards, allreduce is both.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from synth.baselines.fifo import Unordered, stepped
from synth.baselines.routes import Routes
from synth.model.collective import Ints
from synth.model.problem import Problem
from synth.model.schedule import Schedule, untimed
from synth.phases.reversal import backwards
from synth.phases.split import join
from topologies.network import Network

GATHERING = ("allgather", "reducescatter", "allreduce")


Spread = Callable[[Network], Schedule]
"""Builds an allgather over a network where chunk c starts at rank c // parts; copies only."""


def gathered(problem: Problem, spread: Spread, engine: str, parts: int = 1, settled: bool = False) -> Unordered:
    """Build an allgather, a reduce-scatter or an allreduce that copies as `spread` does.

    In an allgather every message takes its own route, even where a rank on it already has the chunk. A sum is named by
    the rank it is at: contributions are added at the ranks of the tree of first copies, with the links reversed. In an
    allreduce complete sums then come to a rank once, over that tree.

    Args:
        problem: The problem of one of these collectives, with one chunk a block.
        spread: Builds the allgather.
        engine: Name of the algorithms.
        parts: Chunks of every rank in the allgather.
        settled: True if the sends come to their links in the order of their steps, whatever the size.

    Returns:
        A plan of the problem with its blocks cut into `parts`, for an allreduce also into one share a rank. Errors of
        `spread` are passed on.
    """
    k, name = problem.collective.nranks, problem.collective.name
    cut = problem.with_chunks(parts * (k if name == "allreduce" else 1))
    root = np.repeat(np.arange(k), parts)
    if name == "allgather":
        schedule = spread(cut.network)
    elif name == "reducescatter":
        schedule = added(cut, spread(cut.network.reversed()), root)
    else:
        complete = first_copies(cut, cut.network, spread(cut.network), root)
        schedule = join(added(cut, spread(cut.network.reversed()), root), complete)
    return stepped(cut, schedule, engine, settled)


def added(problem: Problem, copies: Schedule, root: Ints) -> Schedule:
    """Return the sends that sum at root[chunk]: the reversal of `copies` that leave from there over reversed links.

    `copies` may bring a chunk to a rank more than once; only the first time counts.

    Args:
        problem: The problem whose sums these are.
        copies: Copies over the network with every link reversed, in the order in which they come.
        root: Rank at which each chunk is summed, shape (chunks,).

    Returns:
        An untimed schedule over the problem's network.
    """
    return backwards(problem, first_copies(problem, problem.network.reversed(), copies, root))


def first_copies(problem: Problem, net: Network, copies: Schedule, root: Ints) -> Schedule:
    """Return the first of the copies of a chunk that come to a rank; none to the root, nor to relays that forward none.

    Args:
        problem: The problem.
        net: The network of the copies' links.
        copies: The copies, in the order in which they come.
        root: Rank at which each chunk starts, shape (chunks,).

    Returns:
        The remaining rows of `copies`, in their order.
    """
    k, n = problem.collective.nranks, net.nranks
    leaves, into = copies.chunk * n + net.src[copies.link], copies.chunk * n + net.dst[copies.link]
    first = np.empty(len(root) * n, dtype=np.int64)
    rows = np.arange(len(into))
    first[into[::-1]] = rows[::-1]  # The last write counts, so rows are written in reverse.
    needed_rows = (first[into] == rows) & (into % n != root[copies.chunk])
    while n > k:
        forwards = np.zeros(len(first), dtype=bool)
        forwards[leaves[needed_rows]] = True
        idle = needed_rows & (into % n >= k) & ~forwards[into]
        if not idle.any():
            break
        needed_rows &= ~idle
    return copies.take(needed_rows)


class SpreadMessages:
    """Messages over fixed routes, phase after phase.

    Attributes:
        routes: The routes.
        steps: Number of steps so far.
        columns: (chunk, link, step, place) of the sends.
    """

    def __init__(self, routes: Routes) -> None:
        self.routes = routes
        self.steps = 0
        self.columns: list[tuple[Ints, Ints, Ints, Ints]] = []

    def phase(self, chunk: Ints, at: Ints, goal: Ints, place: Ints) -> None:
        """Add messages that start when all earlier phases are over; those of a step are served by `place`.

        A message's first link is in the first step after all earlier ones, its next link a step later.

        Args:
            chunk: Chunk of each message.
            at: Rank from which each message goes.
            goal: Rank to which each message goes, one of the routes' goals.
            place: Number by which the sends of a step are ordered, the least first.

        Raises:
            NoRoute: A message has no route.
            TooManySends: The phase has more sends than the routes allow.
        """
        message, link, hop = self.routes.expand(at, goal)
        self.add(chunk[message], link, self.steps + hop, place[message])

    def add(self, chunk: Ints, link: Ints, step: Ints, place: Ints) -> None:
        """Add sends with their steps, counted from the first phase, and raise the number of steps to the last of these.

        Args:
            chunk: Chunk of each send, shape (n,).
            link: Link of each send, shape (n,).
            step: Step of each send, from 0, shape (n,).
            place: Number by which the sends of a step are ordered, the least first, shape (n,).
        """
        self.columns.append((chunk, link, step, place))
        self.steps = max(self.steps, int(step.max(initial=-1)) + 1)

    def copies(self) -> Schedule:
        """Return all sends as an untimed schedule of copies, by step, then place, then link.

        There must have been a phase or `add`.
        """
        chunk, link, step, place = (np.concatenate(column) for column in zip(*self.columns, strict=True))
        order = np.lexsort((link, place, step))
        return untimed(chunk[order], link[order], step[order])
