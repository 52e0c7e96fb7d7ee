"""Rings: shares go round (allgather and its kin), or a pipeline of pieces (broadcast, reduce)."""

from __future__ import annotations

import numpy as np

from synth.baselines.cycles import Loop, loops, routed_loop
from synth.baselines.plans import Plan, stepped
from synth.baselines.routes import MOST_SENDS
from synth.baselines.spreading import GATHERING, Copies, added, copied, gathered
from synth.model.collective import MAX_ENTRIES
from synth.model.problem import Problem
from topologies.arrays import positions
from topologies.errors import TooManySends
from topologies.network import Network

RINGED = (*GATHERING, "broadcast", "reduce")
_PIECES = (1, 4, 16, 64)  # of a pipeline: the best number depends on the size


def ring_plans(problem: Problem, most: int = MOST_SENDS) -> list[Plan]:
    """Rings through all members, as many as the links have room for; empty for other collectives.

    Where no closed way over links between members is found, there is one ring in the order of the group, each member
    joined to the next by the fixed shortest way. There are fewer rings where they would have more than `most` sends.
    """
    name, k = problem.collective.name, problem.collective.nranks
    # rings for which there is a place for every chunk and rank
    room = MAX_ENTRIES // k**2
    if name not in RINGED or not room:
        return []
    members = np.arange(k)
    found = loops(problem.network, members)[:room] or [routed_loop(problem.network, members)]
    if name in GATHERING:
        sends = np.cumsum([len(loop.links) * k * (2 if name == "allreduce" else 1) for loop in found])
        # rings that share nothing need no queues, and twice as many sends take no longer
        fits = 2 * most if _apart(problem.network, found) else most
        if sends[0] > fits:
            raise TooManySends(
                f"baseline: a ring through {k} ranks has {sends[0]} sends, {fits} at most; use fewer ranks"
            )
        found = found[: int(np.searchsorted(sends, fits, side="right"))]
    parts = len(found)
    engine = f"{parts} rings" if parts > 1 else "ring"
    apart = _apart(problem.network, found)
    back = [loop.backward() for loop in found]

    def ways(net: Network) -> list[Loop]:
        return found if net.src is problem.network.src else back

    if name in GATHERING:
        return [gathered(problem, lambda net: _round(ways(net)), engine, parts, apart)]
    made = []
    for pieces in _PIECES:
        cut = problem.with_chunks(pieces * parts)
        root = cut.collective.root
        if name == "broadcast":
            schedule = copied(_pipeline(found, root, pieces))
        else:
            schedule = added(cut, _pipeline(back, root, pieces), np.full(cut.collective.nchunks, root))
        made.append(stepped(cut, schedule, engine, apart))
    return made


def _apart(net: Network, ways: list[Loop]) -> bool:
    """Whether no resource is crossed twice: then chunks come one after the other, as they were sent."""
    different = {tuple(loop.links.tolist()) for loop in ways}
    links = np.array([link for way in sorted(different) for link in way])
    uses = np.isin(net.link_of_use, links)
    once = len(np.unique(links)) == len(links)
    return once and bool(np.bincount(net.uses_idx[uses]).max() == 1)


def _round(ways: list[Loop]) -> Copies:
    """Every member's share goes on to the member before it; the i-th part of a share takes the i-th loop."""
    columns = []
    for i, loop in enumerate(ways):
        width = len(loop.links)
        length = (np.roll(loop.stops, 1) - loop.stops) % width
        which = np.repeat(np.arange(len(loop.stops)), length)
        step = positions(length)
        link = loop.links[(loop.stops[which] + step) % width]
        columns.append((loop.members[which] * len(ways) + i, link, step))
    chunk, link, step = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.lexsort((chunk, step))
    return Copies(chunk[order], link[order], step[order])


def _pipeline(ways: list[Loop], root: int, pieces: int) -> Copies:
    """Pieces follow each other from the root to the member before it; chunk p · loops + i takes the i-th loop."""
    columns = []
    for i, loop in enumerate(ways):
        width = len(loop.links)
        first = int(np.flatnonzero(loop.members == root)[0])
        length = int(loop.stops[first - 1] - loop.stops[first]) % width
        piece, hop = (grid.ravel() for grid in np.indices((pieces, length)))
        columns.append((piece * len(ways) + i, loop.links[(loop.stops[first] + hop) % width], piece + hop))
    chunk, link, step = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.lexsort((chunk, step))
    return Copies(chunk[order], link[order], step[order])
