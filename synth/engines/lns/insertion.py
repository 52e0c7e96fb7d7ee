"""Trees put into calendars: where and when a chunk gets to its goals beside the sends that are there; loops.

A tree grows goal by goal, each over the path by which it is reached first (an earliest arrival in a network over time:
Dijkstra's search, with calendars in place of lengths). A sum is a tree from its contributors, grown backwards in time
from the moment at which all of it is at its root, and a tree from there on to the goals. Or it has several roots, all
linked to each other: each gets a part, they exchange these, and from each a tree goes on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from synth.engines.lns.calendars import Calendars, book, earliest, latest

BEYOND = 1e300


class Graph(NamedTuple):
    """Links and ranks as loops take them.

    Attributes:
        src, dst, alpha, gap: of every link. out_ptr, out, into_ptr, into: CSR by rank: links that leave and enter it.
        between: int, shape (ranks, ranks): the fastest link from one rank to another; -1 where there is none.
    """

    src: Any
    dst: Any
    alpha: Any
    gap: Any
    out_ptr: Any
    out: Any
    into_ptr: Any
    into: Any
    between: Any


class Chunks(NamedTuple):
    """What must get where.

    Attributes:
        kilobytes: of every chunk. sums: whether it is added up.
        holders_ptr, holders, goals_ptr, goals: CSR by chunk.
        away: float, shape (ranks, ranks): µs that the largest chunk takes at least from one rank to another.
    """

    kilobytes: Any
    sums: Any
    holders_ptr: Any
    holders: Any
    goals_ptr: Any
    goals: Any
    away: Any


class Plan(NamedTuple):
    """All sends; those of chunk c stand in row c, what is gathered first, then what roots exchange.

    Attributes:
        count, gathers, adds: int, shape (chunks,): sends of each chunk, how many of these gather, and how many add.
        nroots: int, shape (chunks,): at how many ranks a sum comes together.
        roots: int, shape (chunks, most roots): these.
        link, start: shape (chunks, most): link, and start in µs.
    """

    count: Any
    gathers: Any
    adds: Any
    nroots: Any
    roots: Any
    link: Any
    start: Any


class Scratch(NamedTuple):
    """Of every rank, while a tree grows.

    at: µs at which what it holds can be sent on (backwards: by which it must be there). inside: it is in the tree.
    wanted: a goal that is not. key, when, via, done: of Dijkstra's search. path: links. drawn: the state of what is
    drawn by chance, and the links looked at so far.
    """

    at: Any
    inside: Any
    wanted: Any
    key: Any
    when: Any
    start: Any
    via: Any
    done: Any
    path: Any
    drawn: Any


def draw(scratch: Scratch) -> float:
    """A number from 0 to 1."""
    scratch.drawn[0] = (scratch.drawn[0] * 1103515245 + 12345) & 0x7FFFFFFF
    return float(scratch.drawn[0] >> 7) / 16777216.0


def insert(
    graph: Graph, calendars: Calendars, chunks: Chunks, plan: Plan, scratch: Scratch, chunk: int, end_us: float,
    weight: float, noise: float, far: bool,
) -> None:  # fmt: skip
    """Put a chunk's sends into the calendars and the plan.

    What a sum needs may begin before time 0; `place_all` then moves it, and what it meets, to later.

    Args:
        end_us: by when the others have arrived. weight: what a µs of a link costs, in µs. noise: how unlike prices are.
        far: the last goal first.
    """
    plan.count[chunk] = plan.gathers[chunk] = plan.adds[chunk] = 0
    ranks = len(scratch.at)
    if not chunks.sums[chunk]:
        _begin(scratch, ranks)
        for j in range(chunks.holders_ptr[chunk], chunks.holders_ptr[chunk + 1]):
            scratch.at[chunks.holders[j]] = 0.0
            scratch.inside[chunks.holders[j]] = True
        left = _want(chunks.goals_ptr, chunks.goals, scratch, chunk)
        _grow(graph, calendars, chunks, plan, scratch, chunk, left, False, weight, noise, far)
        return
    least = 0.0
    for j in range(chunks.holders_ptr[chunk], chunks.holders_ptr[chunk + 1]):
        nearest = BEYOND
        for k in range(plan.nroots[chunk]):
            nearest = min(nearest, chunks.away[chunks.holders[j], plan.roots[chunk, k]])
        least = max(least, nearest)
    whole = least + draw(scratch) * max(0.0, end_us - 2.0 * least)
    _begin_at_roots(plan, scratch, chunk, whole)
    left = _want(chunks.holders_ptr, chunks.holders, scratch, chunk)
    _grow(graph, calendars, chunks, plan, scratch, chunk, left, True, weight, noise, far)
    if plan.count[chunk] < 0:
        return
    plan.gathers[chunk] = plan.count[chunk]
    if plan.nroots[chunk] > 1:
        _leave_out_idle(graph, chunks, plan, scratch, chunk)
    _begin_at_roots(plan, scratch, chunk, whole)
    _exchange(graph, calendars, chunks, plan, scratch, chunk, whole)
    plan.adds[chunk] = plan.count[chunk]
    left = _want(chunks.goals_ptr, chunks.goals, scratch, chunk)
    _grow(graph, calendars, chunks, plan, scratch, chunk, left, False, weight, noise, far)


def draw_roots(graph: Graph, chunks: Chunks, plan: Plan, scratch: Scratch, chunk: int, most: int) -> None:
    """Choose where a sum comes together: any rank that can, and up to `most` in all that are linked both ways."""
    begin, after = chunks.holders_ptr[chunk], chunks.holders_ptr[chunk + 1]
    first = int(draw(scratch) * len(scratch.at))
    if draw(scratch) < 0.6 or not _can_be_root(chunks, chunk, first):
        first = chunks.holders[begin + int(draw(scratch) * (after - begin))]
    plan.roots[chunk, 0] = first
    count = 1
    links = graph.out_ptr[first + 1] - graph.out_ptr[first]
    for _ in range(3 * links):
        if count >= min(most, plan.roots.shape[1]):
            break
        other = graph.dst[graph.out[graph.out_ptr[first] + int(draw(scratch) * links)]]
        fits = _can_be_root(chunks, chunk, other)
        for k in range(count):
            one = plan.roots[chunk, k]
            fits = fits and one != other and graph.between[one, other] >= 0 and graph.between[other, one] >= 0
        if fits:
            plan.roots[chunk, count] = other
            count += 1
    plan.nroots[chunk] = count


def _can_be_root(chunks: Chunks, chunk: int, rank: int) -> bool:
    """Whether all contributions can get to a rank, and from there to all goals."""
    for j in range(chunks.holders_ptr[chunk], chunks.holders_ptr[chunk + 1]):
        if not chunks.away[chunks.holders[j], rank] < BEYOND:
            return False
    for j in range(chunks.goals_ptr[chunk], chunks.goals_ptr[chunk + 1]):
        if not chunks.away[rank, chunks.goals[j]] < BEYOND:
            return False
    return True


def _leave_out_idle(graph: Graph, chunks: Chunks, plan: Plan, scratch: Scratch, chunk: int) -> None:
    """Drop roots that neither contribute nor get anything, and so have nothing to exchange."""
    for k in range(plan.nroots[chunk]):
        scratch.done[plan.roots[chunk, k]] = False
    for j in range(chunks.holders_ptr[chunk], chunks.holders_ptr[chunk + 1]):
        scratch.done[chunks.holders[j]] = True
    for row in range(plan.gathers[chunk]):
        scratch.done[graph.dst[plan.link[chunk, row]]] = True
    kept = 0
    for k in range(plan.nroots[chunk]):
        root = plan.roots[chunk, k]
        if scratch.done[root]:
            plan.roots[chunk, kept] = root
            kept += 1
    plan.nroots[chunk] = kept


def _exchange(
    graph: Graph, calendars: Calendars, chunks: Chunks, plan: Plan, scratch: Scratch, chunk: int, whole: float
) -> None:
    """Every root sends its part to all others, from `whole` on; `at` becomes when each has all."""
    count = plan.nroots[chunk]
    for turn in range(1, count):
        for k in range(count):
            u, v = plan.roots[chunk, k], plan.roots[chunk, (k + turn) % count]
            link = graph.between[u, v]
            hold = chunks.kilobytes[chunk] / calendars.rate[link]
            start = earliest(calendars, link, whole, hold + graph.gap[link])
            book(calendars, link, start, hold + graph.gap[link])
            row = plan.count[chunk]
            plan.link[chunk, row] = link
            plan.start[chunk, row] = start
            plan.count[chunk] = row + 1
            scratch.at[v] = max(scratch.at[v], start + hold + graph.alpha[link])


def _begin_at_roots(plan: Plan, scratch: Scratch, chunk: int, whole: float) -> None:
    _begin(scratch, len(scratch.at))
    for k in range(plan.nroots[chunk]):
        scratch.at[plan.roots[chunk, k]] = whole
        scratch.inside[plan.roots[chunk, k]] = True


def _begin(scratch: Scratch, ranks: int) -> None:
    for rank in range(ranks):
        scratch.inside[rank] = False
        scratch.wanted[rank] = False


def _want(ptr: Any, ranks: Any, scratch: Scratch, chunk: int) -> int:
    """Mark who must still be in the tree; how many."""
    left = 0
    for j in range(ptr[chunk], ptr[chunk + 1]):
        if not scratch.inside[ranks[j]] and not scratch.wanted[ranks[j]]:
            scratch.wanted[ranks[j]] = True
            left += 1
    return left


def _grow(
    graph: Graph, calendars: Calendars, chunks: Chunks, plan: Plan, scratch: Scratch, chunk: int, left: int,
    back: bool, weight: float, noise: float, far: bool,
) -> None:  # fmt: skip
    """Have a tree reach the `left` ranks that are wanted; `back`: from them, backwards in time."""
    while left > 0:
        goal = _reach(graph, calendars, chunks, scratch, chunk, left, back, weight, noise, far)
        if goal < 0:
            plan.count[chunk] = -1  # it cannot be reached
            return
        count = 0
        at = goal
        while not scratch.inside[at]:
            link = scratch.via[at]
            scratch.path[count] = link
            count += 1
            at = graph.dst[link] if back else graph.src[link]
        for i in range(count - 1, -1, -1):
            link = scratch.path[i]
            at = graph.src[link] if back else graph.dst[link]
            hold = chunks.kilobytes[chunk] / calendars.rate[link]
            book(calendars, link, scratch.start[at], hold + graph.gap[link])
            row = plan.count[chunk]
            plan.link[chunk, row] = link
            plan.start[chunk, row] = scratch.start[at]
            plan.count[chunk] = row + 1
            scratch.inside[at] = True
            scratch.at[at] = scratch.when[at]
            if scratch.wanted[at]:
                scratch.wanted[at] = False
                left -= 1


def _reach(
    graph: Graph, calendars: Calendars, chunks: Chunks, scratch: Scratch, chunk: int, left: int, back: bool,
    weight: float, noise: float, far: bool,
) -> int:  # fmt: skip
    """The wanted rank that is nearest to the tree in time (`far`: farthest), its path in `via`; -1 where there is none.

    Backwards, `at` and `when` are the latest times by which a contribution must be there.
    """
    ranks, found = len(scratch.at), -1
    for v in range(ranks):
        scratch.done[v] = False
        scratch.key[v] = BEYOND
        if scratch.inside[v]:
            scratch.key[v] = -scratch.at[v] if back else scratch.at[v]
            scratch.when[v] = scratch.at[v]
    ptr = graph.into_ptr if back else graph.out_ptr
    links = graph.into if back else graph.out
    while left > 0:
        v = -1
        for w in range(ranks):
            if not scratch.done[w] and scratch.key[w] < BEYOND and (v < 0 or scratch.key[w] < scratch.key[v]):
                v = w
        if v < 0:
            return -1
        scratch.done[v] = True
        if scratch.wanted[v]:
            found = v
            left -= 1
            if not far:
                break
        for j in range(ptr[v], ptr[v + 1]):
            link = links[j]
            w = graph.src[link] if back else graph.dst[link]
            if scratch.done[w] or scratch.inside[w]:
                continue
            hold = chunks.kilobytes[chunk] / calendars.rate[link]
            busy = hold + graph.gap[link]
            if back:
                start = latest(calendars, link, scratch.when[v] - graph.alpha[link] - hold, busy)
                then = start
                took = scratch.when[v] - start
            else:
                start = earliest(calendars, link, scratch.when[v], busy)
                then = start + hold + graph.alpha[link]
                took = then - scratch.when[v]
            scratch.drawn[1] += 1
            key = scratch.key[v] + took + weight * hold
            if noise > 0.0:
                key += noise * draw(scratch) * took
            if key < scratch.key[w]:
                scratch.key[w] = key
                scratch.when[w] = then
                scratch.start[w] = start
                scratch.via[w] = link
    return found
