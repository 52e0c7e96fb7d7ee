"""Trees in calendars: where and when a chunk reaches its goals between the sends that are booked; loops.

A tree grows goal by goal, each over the path that reaches it first (an earliest arrival in a network over time:
Dijkstra's search, with calendars in place of lengths). A sum is a tree from its contributors, grown backwards in time
from the moment at which the whole sum is at its root, and a tree from the root to the goals. Or a sum has several
roots, all linked to each other: each gets a part, they exchange the parts, and a tree grows from each root.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from synth.engines.lns.calendars import Calendars, book, earliest, latest

BEYOND = 1e300


class LnsGraph(NamedTuple):
    """The links and ranks of a network, as arrays for the loops.

    Attributes:
        src: Source rank of every link.
        dst: Destination rank of every link.
        alpha: Latency of every link in µs.
        gap: Time in µs that a link stays busy after a message.
        out_ptr: CSR pointer from a rank to the links that leave it.
        out: Links that leave each rank, in CSR order.
        into_ptr: CSR pointer from a rank to the links that enter it.
        into: Links that enter each rank, in CSR order.
        between: The fastest link from one rank to another, -1 where there is none, int, shape (ranks, ranks).
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


class LnsChunks(NamedTuple):
    """The chunks and the ranks that they start from and go to.

    Attributes:
        kilobytes: Size of every chunk.
        sums: Whether each chunk is a sum.
        holders_ptr: CSR pointer from a chunk to its holders.
        holders: Holders of each chunk, in CSR order.
        goals_ptr: CSR pointer from a chunk to its goals.
        goals: Goals of each chunk, in CSR order.
        away: Least time in µs of the largest chunk from one rank to another, float, shape (ranks, ranks).
    """

    kilobytes: Any
    sums: Any
    holders_ptr: Any
    holders: Any
    goals_ptr: Any
    goals: Any
    away: Any


class LnsPlan(NamedTuple):
    """The sends of all chunks. Row c has the sends of chunk c: the gather first, then the exchange between the roots.

    Attributes:
        count: Sends of each chunk, int, shape (chunks,).
        gathers: Sends of each chunk that gather, int, shape (chunks,).
        adds: Sends of each chunk that add to a sum, int, shape (chunks,).
        nroots: Number of ranks at which each sum comes together, int, shape (chunks,).
        roots: These ranks, int, shape (chunks, most roots).
        link: Link of each send, int, shape (chunks, most sends).
        start: Start of each send in µs, float, shape (chunks, most sends).
    """

    count: Any
    gathers: Any
    adds: Any
    nroots: Any
    roots: Any
    link: Any
    start: Any


class LnsScratch(NamedTuple):
    """State of every rank while a tree grows.

    Attributes:
        at: Time in µs from which a rank can send its data on (backwards: by which the data must be there).
        inside: Whether a rank is in the tree.
        is_goal: Whether a rank is a goal outside of the tree.
        key: Price of the path to a rank in Dijkstra's search.
        when: Arrival at a rank in Dijkstra's search, in µs.
        start: Start of the send to a rank in µs.
        via: Link over which a rank is reached.
        is_settled: Whether Dijkstra's search has settled a rank.
        path: The links of a path.
        drawn: The state of the random numbers, and the number of links looked at so far.
    """

    at: Any
    inside: Any
    is_goal: Any
    key: Any
    when: Any
    start: Any
    via: Any
    is_settled: Any
    path: Any
    drawn: Any


class LnsTables(NamedTuple):
    """A problem in the form that the loops need, with the room in which they work.

    Attributes:
        graph: The network's links and ranks.
        calendars: Calendars of the resources, which change.
        chunks: The chunks, their holders and goals.
        scratch: Room for the growth of trees.
        arrival_us: Each chunk's last arrival at a rank, of gathered parts and of all parts, float, shape (2, chunks,
            ranks).
    """

    graph: LnsGraph
    calendars: Calendars
    chunks: LnsChunks
    scratch: LnsScratch
    arrival_us: Any


class LnsPrices(NamedTuple):
    """The prices of paths while a tree grows.

    Attributes:
        weight: Cost of a µs of a link, in µs.
        noise: Relative noise of the prices.
        far: True to connect the farthest goal first.
    """

    weight: float
    noise: float
    far: bool


def draw(scratch: LnsScratch) -> float:
    """Return a random number from 0 to less than 1, and move the state of the random numbers on."""
    scratch.drawn[0] = (scratch.drawn[0] * 1103515245 + 12345) & 0x7FFFFFFF
    return float(scratch.drawn[0] >> 7) / 16777216.0


def insert(tables: LnsTables, plan: LnsPlan, chunk: int, end_us: float, prices: LnsPrices) -> None:
    """Add a chunk's sends to the calendars and the plan.

    The sends of a sum may begin before time 0; `place_all` then moves them, and the sends in their way, to later times.
    Where a rank cannot be reached, the chunk's `count` becomes -1, and the plan and the calendars are of no more use.

    Args:
        tables: The problem, whose calendars change.
        plan: The plan, whose row of the chunk is rewritten.
        chunk: The chunk.
        end_us: Time at which the other chunks have arrived.
        prices: Prices of paths.
    """
    chunks, scratch = tables.chunks, tables.scratch
    plan.count[chunk] = plan.gathers[chunk] = plan.adds[chunk] = 0
    ranks = len(scratch.at)
    if not chunks.sums[chunk]:
        _begin(scratch, ranks)
        for j in range(chunks.holders_ptr[chunk], chunks.holders_ptr[chunk + 1]):
            scratch.at[chunks.holders[j]] = 0.0
            scratch.inside[chunks.holders[j]] = True
        missing = _want(chunks.goals_ptr, chunks.goals, scratch, chunk)
        _grow(tables, plan, chunk, missing, False, prices)
        return
    shortest_us = 0.0
    for j in range(chunks.holders_ptr[chunk], chunks.holders_ptr[chunk + 1]):
        nearest_us = BEYOND
        for k in range(plan.nroots[chunk]):
            nearest_us = min(nearest_us, chunks.away[chunks.holders[j], plan.roots[chunk, k]])
        shortest_us = max(shortest_us, nearest_us)
    summed_us = shortest_us + draw(scratch) * max(0.0, end_us - 2.0 * shortest_us)
    _begin_at_roots(plan, scratch, chunk, summed_us)
    missing = _want(chunks.holders_ptr, chunks.holders, scratch, chunk)
    _grow(tables, plan, chunk, missing, True, prices)
    if plan.count[chunk] < 0:
        return
    plan.gathers[chunk] = plan.count[chunk]
    if plan.nroots[chunk] > 1:
        _leave_out_idle(tables, plan, chunk)
    _begin_at_roots(plan, scratch, chunk, summed_us)
    _exchange(tables, plan, chunk, summed_us)
    plan.adds[chunk] = plan.count[chunk]
    missing = _want(chunks.goals_ptr, chunks.goals, scratch, chunk)
    _grow(tables, plan, chunk, missing, False, prices)


def draw_roots(tables: LnsTables, plan: LnsPlan, chunk: int, most: int) -> None:
    """Choose 1 to `most` roots of a sum at random, all linked both ways, and write them to the plan.

    The plan's room for roots is a limit, too. The first root is one of the contributors, or less often any rank that
    can be a root. The state of the random numbers moves on.
    """
    graph, chunks, scratch = tables.graph, tables.chunks, tables.scratch
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
        candidate = graph.dst[graph.out[graph.out_ptr[first] + int(draw(scratch) * links)]]
        fits = _can_be_root(chunks, chunk, candidate)
        for k in range(count):
            root = plan.roots[chunk, k]
            fits = (
                fits
                and root != candidate
                and graph.between[root, candidate] >= 0
                and graph.between[candidate, root] >= 0
            )
        if fits:
            plan.roots[chunk, count] = candidate
            count += 1
    plan.nroots[chunk] = count


def _can_be_root(chunks: LnsChunks, chunk: int, rank: int) -> bool:
    """Return True if all contributions can reach a rank, and all goals can be reached from it."""
    for j in range(chunks.holders_ptr[chunk], chunks.holders_ptr[chunk + 1]):
        if not chunks.away[chunks.holders[j], rank] < BEYOND:
            return False
    for j in range(chunks.goals_ptr[chunk], chunks.goals_ptr[chunk + 1]):
        if not chunks.away[rank, chunks.goals[j]] < BEYOND:
            return False
    return True


def _leave_out_idle(tables: LnsTables, plan: LnsPlan, chunk: int) -> None:
    """Remove roots that neither contribute nor get a contribution from the plan, as they have nothing to exchange."""
    graph, chunks, scratch = tables.graph, tables.chunks, tables.scratch
    for k in range(plan.nroots[chunk]):
        scratch.is_settled[plan.roots[chunk, k]] = False
    for j in range(chunks.holders_ptr[chunk], chunks.holders_ptr[chunk + 1]):
        scratch.is_settled[chunks.holders[j]] = True
    for row in range(plan.gathers[chunk]):
        scratch.is_settled[graph.dst[plan.link[chunk, row]]] = True
    nroots = 0
    for k in range(plan.nroots[chunk]):
        root = plan.roots[chunk, k]
        if scratch.is_settled[root]:
            plan.roots[chunk, nroots] = root
            nroots += 1
    plan.nroots[chunk] = nroots


def _exchange(tables: LnsTables, plan: LnsPlan, chunk: int, summed_us: float) -> None:
    """Add the sends of every root's part to all other roots, and set `at` to the time at which each has the sum.

    The sends start at `summed_us` or later, where their links are free, and are added to the plan and the calendars.
    """
    graph, calendars, chunks, scratch = tables.graph, tables.calendars, tables.chunks, tables.scratch
    count = plan.nroots[chunk]
    for offset in range(1, count):
        for k in range(count):
            u, v = plan.roots[chunk, k], plan.roots[chunk, (k + offset) % count]
            link = graph.between[u, v]
            hold = chunks.kilobytes[chunk] / calendars.rate[link]
            start = earliest(calendars, link, summed_us, hold + graph.gap[link])
            book(calendars, link, start, hold + graph.gap[link])
            row = plan.count[chunk]
            plan.link[chunk, row] = link
            plan.start[chunk, row] = start
            plan.count[chunk] = row + 1
            scratch.at[v] = max(scratch.at[v], start + hold + graph.alpha[link])


def _begin_at_roots(plan: LnsPlan, scratch: LnsScratch, chunk: int, summed_us: float) -> None:
    """Make the roots of a sum the whole tree, without goals; each can send from `summed_us` on."""
    _begin(scratch, len(scratch.at))
    for k in range(plan.nroots[chunk]):
        scratch.at[plan.roots[chunk, k]] = summed_us
        scratch.inside[plan.roots[chunk, k]] = True


def _begin(scratch: LnsScratch, ranks: int) -> None:
    """Remove all ranks from the tree and from its goals."""
    for rank in range(ranks):
        scratch.inside[rank] = False
        scratch.is_goal[rank] = False


def _want(ptr: Any, ranks: Any, scratch: LnsScratch, chunk: int) -> int:
    """Mark the ranks of a chunk in a CSR table that are outside the tree as goals; return the number of new ones."""
    count = 0
    for j in range(ptr[chunk], ptr[chunk + 1]):
        if not scratch.inside[ranks[j]] and not scratch.is_goal[ranks[j]]:
            scratch.is_goal[ranks[j]] = True
            count += 1
    return count


def _grow(tables: LnsTables, plan: LnsPlan, chunk: int, missing: int, back: bool, prices: LnsPrices) -> None:
    """Build a tree to the `missing` marked goals; with `back`, from the goals to the tree, backwards in time.

    It adds the sends to the plan and the calendars. Where a goal cannot be reached, the chunk's `count` becomes -1.
    """
    graph, calendars, chunks, scratch = tables.graph, tables.calendars, tables.chunks, tables.scratch
    while missing > 0:
        goal = _reach(tables, chunk, missing, back, prices)
        if goal < 0:
            plan.count[chunk] = -1  # A goal cannot be reached.
            return
        count = 0
        rank = goal
        while not scratch.inside[rank]:
            link = scratch.via[rank]
            scratch.path[count] = link
            count += 1
            rank = graph.dst[link] if back else graph.src[link]
        for i in range(count - 1, -1, -1):
            link = scratch.path[i]
            rank = graph.src[link] if back else graph.dst[link]
            hold = chunks.kilobytes[chunk] / calendars.rate[link]
            book(calendars, link, scratch.start[rank], hold + graph.gap[link])
            row = plan.count[chunk]
            plan.link[chunk, row] = link
            plan.start[chunk, row] = scratch.start[rank]
            plan.count[chunk] = row + 1
            scratch.inside[rank] = True
            scratch.at[rank] = scratch.when[rank]
            if scratch.is_goal[rank]:
                scratch.is_goal[rank] = False
                missing -= 1


def _reach(tables: LnsTables, chunk: int, missing: int, back: bool, prices: LnsPrices) -> int:
    """Return the goal nearest to the tree in time, with its path in `via`, `when` and `start`; -1 if there is none.

    With `prices.far` it is the farthest of the `missing` goals, and -1 if any of them cannot be reached. Nothing is
    booked; the looks at links are counted, and noise draws random numbers.

    Args:
        tables: The problem, whose scratch changes.
        chunk: The chunk.
        missing: Number of marked goals.
        back: True to search against the links, backwards in time.
        prices: Prices of paths.
    """
    graph, calendars, chunks, scratch = tables.graph, tables.calendars, tables.chunks, tables.scratch
    ranks, goal = len(scratch.at), -1
    for v in range(ranks):
        scratch.is_settled[v] = False
        scratch.key[v] = BEYOND
        if scratch.inside[v]:
            scratch.key[v] = -scratch.at[v] if back else scratch.at[v]
            scratch.when[v] = scratch.at[v]
    ptr = graph.into_ptr if back else graph.out_ptr
    links = graph.into if back else graph.out
    while missing > 0:
        v = -1
        for w in range(ranks):
            if not scratch.is_settled[w] and scratch.key[w] < BEYOND and (v < 0 or scratch.key[w] < scratch.key[v]):
                v = w
        if v < 0:
            return -1
        scratch.is_settled[v] = True
        if scratch.is_goal[v]:
            goal = v
            missing -= 1
            if not prices.far:
                break
        for j in range(ptr[v], ptr[v + 1]):
            link = links[j]
            w = graph.src[link] if back else graph.dst[link]
            if scratch.is_settled[w] or scratch.inside[w]:
                continue
            hold = chunks.kilobytes[chunk] / calendars.rate[link]
            busy = hold + graph.gap[link]
            if back:
                start = latest(calendars, link, scratch.when[v] - graph.alpha[link] - hold, busy)
                arrival = start
                send_us = scratch.when[v] - start
            else:
                start = earliest(calendars, link, scratch.when[v], busy)
                arrival = start + hold + graph.alpha[link]
                send_us = arrival - scratch.when[v]
            scratch.drawn[1] += 1
            key = scratch.key[v] + send_us + prices.weight * hold
            if prices.noise > 0.0:
                key += prices.noise * draw(scratch) * send_us
            if key < scratch.key[w]:
                scratch.key[w] = key
                scratch.when[w] = arrival
                scratch.start[w] = start
                scratch.via[w] = link
    return goal
