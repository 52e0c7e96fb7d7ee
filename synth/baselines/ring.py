"""Rings: shares go round (allgather and its kin), or a pipeline of pieces (broadcast, reduce)."""

from __future__ import annotations

import numpy as np

from synth.baselines.cycles import Cycle, find_cycles, routed_cycle
from synth.baselines.spreading import GATHERING, Copies, added, copied, gathered
from synth.baselines.tuning import TUNING
from synth.baselines.unordered import Unordered, stepped
from synth.model.collective import MAX_ENTRIES
from synth.model.problem import Problem
from topologies.arrays import positions
from topologies.errors import TooManySends
from topologies.network import Network

RINGED = (*GATHERING, "broadcast", "reduce")


def ring_baselines(problem: Problem, most: int = TUNING.most_sends) -> list[Unordered]:
    """Rings through all members, as many as the links can carry; empty for other collectives.

    Where no cycle over links between members is found, there is one ring in the order of the group, each member
    joined to the next by the fixed shortest route. There are fewer rings where they would have more than `most` sends.
    """
    name, k = problem.collective.name, problem.collective.nranks
    most_rings = MAX_ENTRIES // k**2  # so many chunks a problem can state
    if name not in RINGED or not most_rings:
        return []
    members = np.arange(k)
    found = find_cycles(problem.network, members)[:most_rings] or [routed_cycle(problem.network, members)]
    if name in GATHERING:
        sends = np.cumsum([len(cycle.links) * k * (2 if name == "allreduce" else 1) for cycle in found])
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
    back = [cycle.backward() for cycle in found]

    def cycles(net: Network) -> list[Cycle]:
        return found if net.src is problem.network.src else back

    if name in GATHERING:
        return [gathered(problem, lambda net: _round(cycles(net)), engine, parts, apart)]
    made = []
    for pieces in TUNING.pieces:
        cut = problem.with_chunks(pieces * parts)
        root = cut.collective.root
        if name == "broadcast":
            schedule = copied(_pipeline(found, root, pieces))
        else:
            schedule = added(cut, _pipeline(back, root, pieces), np.full(cut.collective.nchunks, root))
        made.append(stepped(cut, schedule, engine, apart))
    return made


def _apart(net: Network, cycles: list[Cycle]) -> bool:
    """Whether no resource is crossed twice: then chunks come one after the other, as they were sent."""
    different = {tuple(cycle.links.tolist()) for cycle in cycles}
    links = np.array([link for cycle in sorted(different) for link in cycle])
    uses = np.isin(net.link_of_use, links)
    once = len(np.unique(links)) == len(links)
    return once and bool(np.bincount(net.uses_idx[uses]).max() == 1)


def _round(cycles: list[Cycle]) -> Copies:
    """Every member's share goes on to the member before it; the i-th part of a share takes the i-th cycle."""
    columns = []
    for i, cycle in enumerate(cycles):
        width = len(cycle.links)
        length = (np.roll(cycle.stops, 1) - cycle.stops) % width
        which = np.repeat(np.arange(len(cycle.stops)), length)
        step = positions(length)
        link = cycle.links[(cycle.stops[which] + step) % width]
        columns.append((cycle.members[which] * len(cycles) + i, link, step))
    chunk, link, step = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.lexsort((chunk, step))
    return Copies(chunk[order], link[order], step[order])


def _pipeline(cycles: list[Cycle], root: int, pieces: int) -> Copies:
    """Pieces follow each other from the root to the member before it; chunk p · cycles + i takes the i-th cycle."""
    columns = []
    for i, cycle in enumerate(cycles):
        width = len(cycle.links)
        first = int(np.flatnonzero(cycle.members == root)[0])
        length = int(cycle.stops[first - 1] - cycle.stops[first]) % width
        piece, hop = (grid.ravel() for grid in np.indices((pieces, length)))
        columns.append((piece * len(cycles) + i, cycle.links[(cycle.stops[first] + hop) % width], piece + hop))
    chunk, link, step = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.lexsort((chunk, step))
    return Copies(chunk[order], link[order], step[order])
