"""Closed ways through all members: the rings that a library would find in a network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.baselines.routes import Routes
from synth.model.collective import Floats, Ints
from topologies.network import Network

_SEARCH_LIMIT = 100_000  # steps of backtracking for one cycle
_TOTAL_LIMIT = 1_000_000  # and for all of them
_MOST_LOOPS = 16
_MOST_SHARES = 8  # of one loop


@dataclass(frozen=True, eq=False)
class Loop:
    """A closed way.

    Attributes:
        links: int, shape (w,), each starts where the one before ends.
        stops: int, shape (k,), ascending from 0: links[stops[i]] leaves members[i].
        members: int, shape (k,): the members in turn.
    """

    links: Ints
    stops: Ints
    members: Ints

    def backward(self) -> Loop:
        """The same way in a network whose links are turned round."""
        stops = np.sort((len(self.links) - self.stops) % len(self.links))
        return Loop(self.links[::-1], stops, np.append(self.members[:1], self.members[:0:-1]))


def loops(net: Network, members: Ints) -> list[Loop]:
    """Cycles over links between members, widest first, until the network is full; wide ones stand several times.

    Args:
        members: local ranks; a search begins at the first and prefers links with much room, then the next in this list.
    """
    left = net.capacity_gbs.astype(np.float64).copy()
    found: list[Ints] = []
    rates: list[float] = []
    effort = _TOTAL_LIMIT
    while len(found) < _MOST_LOOPS:
        room = np.minimum(net.bandwidth_gbs, np.minimum.reduceat(left[net.uses_idx], net.uses_ptr[:-1]))
        way, spent = _widest_loop(net, members, room, effort)
        effort -= spent
        if way is None:
            way = _turned_round(net, found, room)
        if way is None:
            break
        # the loop crosses a resource as often as its links do
        crossings = np.zeros(net.nresources)
        for link in way.tolist():
            crossings[net.uses(link)] += 1
        crossed = crossings > 0
        rate = min(float(room[way].min()), float((left[crossed] / crossings[crossed]).min()))
        if rates and rate < rates[0] / 16:
            break
        found.append(way)
        rates.append(rate)
        left -= crossings * rate
        if len(members) == 2:
            break
    if not found:
        return []
    shares = np.maximum(1, np.round(np.array(rates) / min(rates)).astype(int))
    stops = np.arange(len(members))
    made = [Loop(way, stops, net.src[way]) for way in found]
    return [
        loop
        for loop, share in zip(made, shares.tolist(), strict=True)
        for _ in range(min(share, _MOST_SHARES))
    ]


def routed_loop(net: Network, members: Ints) -> Loop:
    """The members in the order given, each joined to the next by the fixed shortest way."""
    following = np.roll(members, -1)
    message, links, hop = Routes(net, members).expand(members, following)
    return Loop(links, np.flatnonzero(hop == 0), members[message[hop == 0]])


def _widest_loop(net: Network, members: Ints, room: Floats, effort: int) -> tuple[Ints | None, int]:
    """A Hamiltonian cycle over the members, of the widest links that have one; and the steps it took."""
    k = len(members)
    place = np.full(net.nranks, -1, dtype=np.int64)
    place[members] = np.arange(k)
    u, v = place[net.src], place[net.dst]
    inside = (u >= 0) & (v >= 0) & (room > 1e-9)
    spent = 0
    for width in np.unique(room[inside])[::-1].tolist():
        if spent >= effort:
            break
        links = np.flatnonzero(inside & (room >= width))
        # links with more room first, so that a ring stays inside a node as long as it can; then the next member
        links = links[np.lexsort((links, (v - u)[links] % k, -room[links], u[links]))]
        _, first = np.unique(u[links] * k + v[links], return_index=True)  # of parallel links
        links = links[np.sort(first)]
        cycle, steps = _cycle(k, u[links], v[links])
        spent += steps
        if cycle is None and steps == _SEARCH_LIMIT:
            cycle = _patched(k, u[links], v[links])
        if cycle is not None:
            between = {
                (a, b): link
                for a, b, link in zip(u[links].tolist(), v[links].tolist(), links.tolist(), strict=True)
            }
            return np.array([between[a, b] for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True)]), spent
    return None, spent


def _cycle(k: int, u: Ints, v: Ints) -> tuple[list[int] | None, int]:
    """A Hamiltonian cycle by backtracking, and the steps it took.

    Args:
        u, v: pairs of places, sorted by u, then in the order in which they are tried.
    """
    if len(np.unique(u)) < k or len(np.unique(v)) < k:
        return None, 0
    ptr = np.searchsorted(u, np.arange(k + 1)).tolist()
    heads = v.tolist()
    after = [heads[ptr[i] : ptr[i + 1]] for i in range(k)]
    closing = set(u[v == 0].tolist())
    way, used = [0], [False] * k
    used[0] = True
    choices = [iter(after[0])]
    for step in range(_SEARCH_LIMIT):
        if len(way) == k and way[-1] in closing:
            return way, step
        following = next((w for w in choices[-1] if not used[w]), None) if len(way) < k else None
        if following is not None:
            way.append(following)
            used[following] = True
            choices.append(iter(after[following]))
            continue
        used[way.pop()] = False
        choices.pop()
        if not choices:
            return None, step
    return None, _SEARCH_LIMIT


def _patched(k: int, u: Ints, v: Ints) -> list[int] | None:
    """A Hamiltonian cycle from a cover by short cycles, two of them joined at a time (Karp 1979), if that works.

    Cycles with a→b and c→d become one by a→d and c→b; where all links go both ways a cycle may be turned round
    for that. Pairs as for `_cycle`.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    ptr = np.searchsorted(u, np.arange(k + 1))
    following = maximum_bipartite_matching(
        csr_array((np.ones(len(v)), v, ptr), shape=(k, k)), perm_type="column"
    )
    if (following < 0).any():
        return None
    after: list[int] = following.tolist()
    before = [0] * k
    for a, b in enumerate(after):
        before[b] = a
    pairs = list(zip(u.tolist(), v.tolist(), strict=True))
    known = set(pairs)
    two_way = all((b, a) in known for a, b in pairs)
    cycle = list(range(k))  # a name for the cycle that a place is on

    def name(a: int) -> int:
        while cycle[a] != a:
            cycle[a] = cycle[cycle[a]]
            a = cycle[a]
        return a

    for a, b in enumerate(after):
        cycle[name(a)] = name(b)
    left, joined = len({name(a) for a in range(k)}), True
    while left > 1 and joined:
        joined = False
        for a, d in pairs:
            b, c = after[a], before[d]
            if name(a) == name(d):
                continue
            if (c, b) not in known:
                # the other way round the second cycle, d has another place before it
                c = after[d]
                if not two_way or (c, b) not in known:
                    continue
                turn = d
                while True:
                    after[turn], before[turn], turn = before[turn], after[turn], after[turn]
                    if turn == d:
                        break
            after[a], after[c], before[d], before[b] = d, b, a, c
            cycle[name(a)] = name(c)
            left -= 1
            joined = True
    way = [0]
    while len(way) < k:
        way.append(after[way[-1]])
    return way if left == 1 else None


def _turned_round(net: Network, found: list[Ints], room: Floats) -> Ints | None:
    """The way back along one of the loops, of those that have room the first."""
    for way in found:
        order = np.lexsort((-room, net.dst, net.src))
        pair = (net.src * net.nranks + net.dst)[order]
        back = order[
            np.minimum(np.searchsorted(pair, net.dst[way] * net.nranks + net.src[way]), len(pair) - 1)
        ]
        there = (net.src[back] == net.dst[way]) & (net.dst[back] == net.src[way])
        if there.all() and room[back].min() > 1e-9:
            return np.asarray(back[::-1])
    return None
