"""What others would run, in the same model of time: rings, and every chunk straight to its goal."""

from __future__ import annotations

import numpy as np

from synth.algorithm import Algorithm
from synth.collective import Floats, Ints
from synth.passes import join, reverse, reversible, split, unreverse
from synth.problem import Problem, hops
from synth.schedule import Schedule, untimed
from synth.slots import slotted

_SEARCH_LIMIT = 100_000


def baseline(problem: Problem) -> list[Algorithm]:
    """The algorithms that a vendor library would choose from; empty where it has none for this group.

    Rings for allreduce, allgather, reducescatter, broadcast and reduce (as many as the links have room for),
    the shortest way for the others. `problem` has one chunk a block.
    """
    if problem.collective.name in ("allreduce", "allgather", "reducescatter", "broadcast", "reduce"):
        loops = rings(problem)
        return _ring_algorithms(problem, loops) if loops else []
    if problem.collective.reducing:
        return []
    return [Algorithm(problem, slotted(problem, direct(problem)), "direct")]


def rings(problem: Problem) -> list[list[int]]:
    """Links of closed ways through all members, widest first, until the network is full."""
    net, k = problem.network, problem.collective.nranks
    left = net.capacity_gbs.astype(np.float64).copy()
    found: list[list[int]] = []
    rates: list[float] = []
    while len(found) < 16:
        loop = _widest_loop(problem, left)
        if loop is None:
            break
        rate = min(_room(problem, left, link) for link in loop)
        # the ring crosses a resource as often as its links do
        crossings = np.zeros(net.nresources)
        for link in loop:
            crossings[net.uses(link)] += 1
        rate = min(rate, float((left[crossings > 0] / crossings[crossings > 0]).min()))
        if rates and rate < rates[0] / 16:
            break
        found.append(loop)
        rates.append(rate)
        left -= crossings * rate
        if k == 2:
            break
    if not found:
        return []
    shares = np.maximum(1, np.round(np.array(rates) / min(rates)).astype(int))
    return [loop for loop, share in zip(found, shares.tolist(), strict=True) for _ in range(min(share, 8))]


def _room(problem: Problem, left: Floats, link: int) -> float:
    net = problem.network
    uses = net.uses(link)
    return min(float(net.bandwidth_gbs[link]), float(left[uses].min()))


def _widest_loop(problem: Problem, left: Floats) -> list[int] | None:
    """A Hamiltonian cycle over the members, of the widest links that have one."""
    net, k = problem.network, problem.collective.nranks
    room = np.array([_room(problem, left, link) for link in range(net.nlinks)])
    members = (net.src < k) & (net.dst < k)
    for width in np.unique(room[members & (room > 1e-9)])[::-1].tolist():
        best: dict[tuple[int, int], int] = {}
        for link in np.flatnonzero(members & (room >= width)).tolist():
            pair = (int(net.src[link]), int(net.dst[link]))
            if pair not in best or room[link] > room[best[pair]]:
                best[pair] = link
        loop = _cycle(k, set(best))
        if loop:
            return [best[u, v] for u, v in zip(loop, loop[1:] + loop[:1], strict=True)]
    return None


def _cycle(k: int, pairs: set[tuple[int, int]]) -> list[int] | None:
    """A Hamiltonian cycle by backtracking, neighbours in ascending order from the current rank."""
    after: list[list[int]] = [[] for _ in range(k)]
    for u, v in sorted(pairs, key=lambda pair: (pair[0], (pair[1] - pair[0]) % k)):
        after[u].append(v)
    way, used = [0], {0}
    choices = [iter(after[0])]
    for _ in range(_SEARCH_LIMIT):
        if len(way) == k and (way[-1], 0) in pairs:
            return way
        following = next((v for v in choices[-1] if v not in used), None) if len(way) < k else None
        if following is not None:
            way.append(following)
            used.add(following)
            choices.append(iter(after[following]))
            continue
        used.discard(way.pop())
        choices.pop()
        if not choices:
            return None
    return None


def _ring_algorithms(problem: Problem, loops: list[list[int]]) -> list[Algorithm]:
    name, k = problem.collective.name, problem.collective.nranks
    label = f"{len(loops)} rings" if len(loops) > 1 else "ring"
    if name == "allgather":
        cut = problem.with_chunks(len(loops))
        return [Algorithm(cut, _gathering(cut, loops), label)]
    if name == "reducescatter":
        cut = problem.with_chunks(len(loops))
        return [Algorithm(cut, unreverse(cut, _gathering(reverse(cut), loops, backward=True)), label)]
    if name == "allreduce":
        cut = problem.with_chunks(k * len(loops))
        first, second = split(cut)
        bringing = unreverse(first, _gathering(reverse(first), loops, backward=True))
        return [Algorithm(cut, join(bringing, _gathering(second, loops)), label)]
    made = []
    for pieces in (1, 4, 16, 64):  # a pipeline: the best number of pieces depends on the size
        cut = problem.with_chunks(pieces * len(loops))
        if reversible(cut.collective):
            made.append(Algorithm(cut, unreverse(cut, _pipeline(reverse(cut), loops, backward=True)), label))
        else:
            made.append(Algorithm(cut, _pipeline(cut, loops), label))
    return made


def _turned(problem: Problem, loop: list[int], backward: bool) -> list[int]:
    """The loop's links in the order in which data travels; on a reversed network that is the other way."""
    links = loop[::-1] if backward else loop
    first = next(i for i, link in enumerate(links) if problem.network.src[link] == 0)
    return links[first:] + links[:first]


def _gathering(problem: Problem, loops: list[list[int]], backward: bool = False) -> Schedule:
    """Every rank's share goes round the ring; the i-th part of a share takes the i-th ring."""
    k, net = problem.collective.nranks, problem.network
    rows: list[tuple[int, int, int]] = []
    for i, loop in enumerate(loops):
        links = _turned(problem, loop, backward)
        for at, link in enumerate(links):
            for step in range(k - 1):
                owner = int(net.src[links[(at - step) % k]])
                rows.append((step, owner * len(loops) + i, link))
    return _rows(rows)


def _pipeline(problem: Problem, loops: list[list[int]], backward: bool = False) -> Schedule:
    k, root, net = problem.collective.nranks, problem.collective.root, problem.network
    rows: list[tuple[int, int, int]] = []
    for i, loop in enumerate(loops):
        links = _turned(problem, loop, backward)
        first = next(j for j, link in enumerate(links) if net.src[link] == root)
        for piece, chunk in enumerate(range(i, problem.collective.nchunks, len(loops))):
            for hop in range(k - 1):
                rows.append((piece + hop, chunk, links[(first + hop) % k]))
    return _rows(rows)


def _rows(rows: list[tuple[int, int, int]]) -> Schedule:
    table: Ints = np.array(sorted(rows), dtype=np.int64)
    return untimed(table[:, 1], table[:, 2], table[:, 0], np.zeros(len(table), dtype=bool))


def direct(problem: Problem) -> Schedule:
    """Every chunk to each goal over one fixed shortest way (fewest hops, then least α), all at once."""
    net, collective = problem.network, problem.collective
    n = net.nranks
    toward: dict[int, list[int]] = {}
    into: list[list[int]] = [[] for _ in range(n)]
    for link, v in enumerate(net.dst.tolist()):
        into[v].append(link)
    for goal in np.unique(collective.post[:, 0]).tolist():
        following = [-1] * n
        reached, edge = {goal}, [goal]
        while edge:
            further: dict[int, int] = {}
            for v in edge:
                for link in into[v]:
                    u = int(net.src[link])
                    if u not in reached and (
                        u not in further or net.alpha_us[link] < net.alpha_us[further[u]]
                    ):
                        further[u] = link
            for u, link in further.items():
                following[u] = link
            reached |= further.keys()
            edge = sorted(further)
        toward[goal] = following
    distance = hops(n, net.src, net.dst)
    rows = set()
    for goal, chunk in collective.post.tolist():
        holders = np.flatnonzero(collective.holds[chunk])
        at, step = int(holders[distance[holders, goal].argmin()]), 0
        while at != goal:
            link = toward[goal][at]
            rows.add((step, chunk, link))
            at, step = int(net.dst[link]), step + 1
    return _rows(sorted(rows))
