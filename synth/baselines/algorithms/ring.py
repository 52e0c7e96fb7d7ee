"""Rings: shares go round (allgather and its kin), or a pipeline of pieces (broadcast, reduce).

They use the cycles through all members that a library would find in a network.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.baselines.algorithms.spreading import GATHERING, added, gathered
from synth.baselines.fifo import Unordered, stepped
from synth.baselines.routes import Routes
from synth.baselines.tuning import TUNING
from synth.model.collective import MAX_ENTRIES, Floats, Ints
from synth.model.deadline import check_deadline, checking_deadline
from synth.model.problem import Problem
from synth.model.schedule import Schedule, untimed
from topologies.arrays import components, positions, row_entries
from topologies.errors import TooManySends
from topologies.network import Network

RINGED = (*GATHERING, "broadcast", "reduce")


@dataclass(frozen=True, eq=False)
class Cycle:
    """A closed walk through all members.

    Attributes:
        links: int, shape (w,); each link starts where the one before ends.
        stops: int, shape (k,), ascending from 0: links[stops[i]] leaves members[i].
        members: The members in order, int, shape (k,).
    """

    links: Ints
    stops: Ints
    members: Ints

    def backward(self) -> Cycle:
        """Return the cycle in the other direction, from the same member, for a network whose links are reversed."""
        stops = np.sort((len(self.links) - self.stops) % len(self.links))
        return Cycle(self.links[::-1], stops, np.append(self.members[:1], self.members[:0:-1]))


def find_cycles(net: Network, members: Ints) -> list[Cycle]:
    """Return cycles over links between members, widest first, until the network is full; wide ones are repeated.

    Each visits every member once. A cycle stands in the list as often as its bandwidth exceeds that of the narrowest,
    rounded, at most 8 times. There are at most 16 distinct ones, with two members one, and none below a sixteenth of
    the first one's bandwidth. There may be none, also because the search has a limit.

    Args:
        net: The network.
        members: Local ranks. A search begins at the first, and prefers links with much residual capacity, then the next
            member in this list.

    Raises:
        TimeUp: The time of the work around is over.
    """
    free_gbs = net.capacity_gbs.astype(np.float64).copy()
    walks: list[Ints] = []
    rates: list[float] = []
    effort = TUNING.all_cycles_steps
    while len(walks) < TUNING.most_cycles:
        check_deadline()
        residual = np.minimum(net.bandwidth_gbs, np.minimum.reduceat(free_gbs[net.uses_idx], net.uses_ptr[:-1]))
        walk, spent = _widest_cycle(net, members, residual, effort)
        effort -= spent
        if walk is None:
            walk = _reversed_cycle(net, walks, residual)
        if walk is None:
            break
        # The cycle crosses a resource as often as its links do.
        crossings = np.bincount(net.uses_idx[row_entries(net.uses_ptr, walk)], minlength=net.nresources)
        crossed = crossings > 0
        rate = min(float(residual[walk].min()), float((free_gbs[crossed] / crossings[crossed]).min()))
        if rates and rate < rates[0] / 16:
            break
        walks.append(walk)
        rates.append(rate)
        free_gbs -= crossings * rate
        if len(members) == 2:
            break
    if not walks:
        return []
    shares = np.clip(np.round(np.array(rates) / min(rates)).astype(int), 1, TUNING.most_shares).tolist()
    stops, walk_shares = np.arange(len(members)), zip(walks, shares, strict=True)
    return [Cycle(walk, stops, net.src[walk]) for walk, share in walk_shares for _ in range(share)]


def routed_cycle(net: Network, members: Ints) -> Cycle:
    """Return the cycle of the members in the order given, each joined to the next by the fixed shortest route.

    Raises:
        NoRoute: A member cannot reach the next.
        TooManySends: The cycle has more links than `Routes` expands.
    """
    following = np.roll(members, -1)
    message, links, hop = Routes(net, members).expand(members, following)
    return Cycle(links, np.flatnonzero(hop == 0), members[message[hop == 0]])


def _widest_cycle(net: Network, members: Ints, residual: Floats, effort: int) -> tuple[Ints | None, int]:
    """Return a Hamiltonian cycle over the members, of the widest links that have one, and the steps of the search.

    Args:
        net: The network.
        members: Local ranks.
        residual: Free GB/s of each link.
        effort: Steps after which no further width is tried.

    Returns:
        The links from the first member on, in order, or None if no width has a cycle; the number of steps.

    Raises:
        TimeUp: The time of the work around is over.
    """
    k = len(members)
    place = np.full(net.nranks, -1, dtype=np.int64)
    place[members] = np.arange(k)
    u, v = place[net.src], place[net.dst]
    inside = (u >= 0) & (v >= 0) & (residual > 1e-9)
    spent = 0
    for width in checking_deadline(np.unique(residual[inside])[::-1].tolist()):
        if spent >= effort:
            break
        links = np.flatnonzero(inside & (residual >= width))
        # Links with more residual capacity come first, so that a ring stays inside a node as long as it can.
        links = links[np.lexsort((links, (v - u)[links] % k, -residual[links], u[links]))]
        _, first = np.unique(u[links] * k + v[links], return_index=True)  # one of parallel links
        links = links[np.sort(first)]
        cycle, steps = _cycle(k, u[links], v[links])
        spent += steps
        if cycle is None and steps == TUNING.cycle_steps:
            cycle = _patched(k, u[links], v[links])
        if cycle is not None:
            between = {
                (a, b): link for a, b, link in zip(u[links].tolist(), v[links].tolist(), links.tolist(), strict=True)
            }
            return np.array([between[a, b] for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True)]), spent
    return None, spent


def _cycle(k: int, u: Ints, v: Ints) -> tuple[list[int] | None, int]:
    """Return a Hamiltonian cycle by backtracking, as places from 0 on, and the number of steps.

    It is None where there is none, or where the search ends after the tuning's `cycle_steps` without one.

    Args:
        k: Number of places.
        u: Start of each pair of places, ascending.
        v: End of each pair; of a start's ends the first is tried first.

    Raises:
        TimeUp: The time of the work around is over.
    """
    if len(np.unique(u)) < k or len(np.unique(v)) < k:
        return None, 0
    ptr = np.searchsorted(u, np.arange(k + 1)).tolist()
    heads = v.tolist()
    after = [heads[ptr[i] : ptr[i + 1]] for i in range(k)]
    closing = set(u[v == 0].tolist())
    walk, used = [0], [False] * k
    used[0] = True
    choices = [iter(after[0])]
    for step in checking_deadline(range(TUNING.cycle_steps), every=1024):
        if len(walk) == k and walk[-1] in closing:
            return walk, step
        following = next((w for w in choices[-1] if not used[w]), None) if len(walk) < k else None
        if following is not None:
            walk.append(following)
            used[following] = True
            choices.append(iter(after[following]))
            continue
        used[walk.pop()] = False
        choices.pop()
        if not choices:
            return None, step
    return None, TUNING.cycle_steps


def _patched(k: int, u: Ints, v: Ints) -> list[int] | None:
    """Return a Hamiltonian cycle from a cover by short cycles, joined two at a time (Karp 1979), or None.

    Cycles with a→b and c→d become one by a→d and c→b. Where all links exist in both directions, a cycle may be reversed
    for that. The cycle is the places from 0 on. Pairs are as for `_cycle`. The result is None where no cover is there,
    or its cycles cannot all be joined.

    Raises:
        TimeUp: The time of the work around is over.
    """
    from scipy.sparse import csr_array  # Imported here: SciPy starts slowly, and only rings need it.
    from scipy.sparse.csgraph import maximum_bipartite_matching

    ptr = np.searchsorted(u, np.arange(k + 1))
    following = maximum_bipartite_matching(csr_array((np.ones(len(v)), v, ptr), shape=(k, k)), perm_type="column")
    if (following < 0).any():
        return None
    after, before = following.tolist(), np.argsort(following).tolist()
    pairs = list(zip(u.tolist(), v.tolist(), strict=True))
    pair_set = set(pairs)
    two_way = all((b, a) in pair_set for a, b in pairs)
    cycle = components(k, np.arange(k), following)  # number of each place's cycle
    cycles_left, joined = int(cycle.max()) + 1, True
    while cycles_left > 1 and joined:
        joined = False
        for a, d in checking_deadline(pairs, every=256):
            b, c = after[a], before[d]
            if cycle[a] == cycle[d]:
                continue
            if (c, b) not in pair_set:
                # If the second cycle is reversed, another place comes before d.
                c = after[d]
                if not two_way or (c, b) not in pair_set:
                    continue
                at = d
                while True:
                    after[at], before[at], at = before[at], after[at], after[at]
                    if at == d:
                        break
            after[a], after[c], before[d], before[b] = d, b, a, c
            cycle[cycle == cycle[d]] = cycle[a]
            cycles_left -= 1
            joined = True
    walk = [0]
    while len(walk) < k:
        walk.append(after[walk[-1]])
    return walk if cycles_left == 1 else None


def _reversed_cycle(net: Network, walks: list[Ints], residual: Floats) -> Ints | None:
    """Return the links of the reverse of the first cycle whose reverse has residual capacity, or None.

    They are in the order in which the reverse goes. Of parallel links the one with most residual capacity is taken.

    Args:
        net: The network.
        walks: Links of each cycle.
        residual: Free GB/s of each link.
    """
    for walk in walks:
        order = np.lexsort((-residual, net.dst, net.src))
        pair = (net.src * net.nranks + net.dst)[order]
        back = order[np.minimum(np.searchsorted(pair, net.dst[walk] * net.nranks + net.src[walk]), len(pair) - 1)]
        is_reverse = (net.src[back] == net.dst[walk]) & (net.dst[back] == net.src[walk])
        if is_reverse.all() and residual[back].min() > 1e-9:
            return np.asarray(back[::-1])
    return None


def ring_baselines(problem: Problem, most: int = TUNING.most_sends) -> list[Unordered]:
    """Build rings through all members, as many as the links can carry.

    If no cycle over links between members is there, there is one ring in the order of the group, each member joined to
    the next by the fixed shortest route. For allgather, reducescatter and allreduce there is one algorithm that uses
    all rings, fewer if they would have more than `most` sends. For broadcast and reduce there is one pipelined
    algorithm for each number of pieces of the tuning. The algorithms are named "ring", or "3 rings" by their number.

    Args:
        problem: The problem with one chunk a block.
        most: Most sends, twice as many where rings share nothing; it does not count for broadcast and reduce.

    Returns:
        The algorithms; an empty list for collectives that do not run on rings, and for groups that are too large.

    Raises:
        NoRoute: No cycle is there, and a member cannot reach the next.
        TooManySends: One ring has more sends than that.
    """
    name, k = problem.collective.name, problem.collective.nranks
    most_rings = MAX_ENTRIES // k**2  # A problem can have at most MAX_ENTRIES entries.
    if name not in RINGED or not most_rings:
        return []
    members = np.arange(k)
    forth = find_cycles(problem.network, members)[:most_rings] or [routed_cycle(problem.network, members)]
    if name in GATHERING:
        sends = np.cumsum([len(cycle.links) * k * (2 if name == "allreduce" else 1) for cycle in forth])
        # Rings that share nothing need no queues, so twice as many sends take no longer.
        fits = 2 * most if _apart(problem.network, forth) else most
        if sends[0] > fits:
            raise TooManySends(
                f"baseline: a ring through {k} ranks has {sends[0]} sends, {fits} at most; use fewer ranks"
            )
        forth = forth[: int(np.searchsorted(sends, fits, side="right"))]
    parts = len(forth)
    engine = f"{parts} rings" if parts > 1 else "ring"
    apart = _apart(problem.network, forth)
    back = [cycle.backward() for cycle in forth]

    def cycles(net: Network) -> list[Cycle]:
        """Return the cycles of the problem's network, or the reversed ones for the network with its links reversed."""
        return forth if net.src is problem.network.src else back

    if name in GATHERING:
        return [gathered(problem, lambda net: _round(cycles(net)), engine, parts, apart)]
    plans = []
    for pieces in TUNING.pieces:
        cut = problem.with_chunks(pieces * parts)
        root = cut.collective.root
        if name == "broadcast":
            schedule = _pipeline(forth, root, pieces)
        else:
            schedule = added(cut, _pipeline(back, root, pieces), np.full(cut.collective.nchunks, root))
        plans.append(stepped(cut, schedule, engine, apart))
    return plans


def _apart(net: Network, cycles: list[Cycle]) -> bool:
    """Return True if no resource and no link is crossed twice; then chunks come one after the other, as they were sent.

    Cycles with the same links count once.
    """
    different = {tuple(cycle.links.tolist()) for cycle in cycles}
    links = np.array([link for cycle in sorted(different) for link in cycle])
    uses = np.isin(net.link_of_use, links)
    once = len(np.unique(links)) == len(links)
    return once and bool(np.bincount(net.uses_idx[uses]).max() == 1)


def _round(cycles: list[Cycle]) -> Schedule:
    """Build the sends of every member's share along the cycle up to the member before it.

    Chunk m · cycles + i is the i-th part of member m's share; it takes the i-th cycle. The schedule is untimed, by
    step.
    """
    columns = []
    for i, cycle in enumerate(cycles):
        width = len(cycle.links)
        length = (np.roll(cycle.stops, 1) - cycle.stops) % width
        which = np.repeat(np.arange(len(cycle.stops)), length)
        step = positions(length)
        link = cycle.links[(cycle.stops[which] + step) % width]
        columns.append((cycle.members[which] * len(cycles) + i, link, step))
    return _by_step(columns)


def _pipeline(cycles: list[Cycle], root: int, pieces: int) -> Schedule:
    """Build pieces that follow each other from the root along the cycle to the member before it.

    Chunk p · cycles + i takes the i-th cycle, a step behind piece p - 1. The schedule is untimed, by step.

    Args:
        cycles: The cycles.
        root: The member from which the pieces go.
        pieces: Number of pieces of each cycle.
    """
    columns = []
    for i, cycle in enumerate(cycles):
        width = len(cycle.links)
        first = int(np.flatnonzero(cycle.members == root)[0])
        length = int(cycle.stops[first - 1] - cycle.stops[first]) % width
        piece, hop = (grid.ravel() for grid in np.indices((pieces, length)))
        columns.append((piece * len(cycles) + i, cycle.links[(cycle.stops[first] + hop) % width], piece + hop))
    return _by_step(columns)


def _by_step(columns: list[tuple[Ints, Ints, Ints]]) -> Schedule:
    """Build the untimed schedule of columns (chunk, link, step), ordered by step, then chunk."""
    chunk, link, step = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.lexsort((chunk, step))
    return untimed(chunk[order], link[order], step[order])
