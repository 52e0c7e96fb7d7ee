"""The loops that route an all-to-all over any network: paths that share the load, and which link serves what when.

Blocks are cut into chunks. Each chunk takes a path that is short where links are priced by how loaded they are; chunks
choose again while others stay, so that loads become even. By the prices follows a bound (see `volume_bound_us`). Then
links serve the chunks that wait for them, those first that have the most loaded links ahead, and are never idle while
one could start. `emit/library/selection/static/synth_skewed_routed.h` has the same steps in C.
"""

from __future__ import annotations

from typing import Any

from synth.engines.skewed.columns import BAD, BOUND, CHUNKS, FULL, PLANNED, ROWS, STRAIGHT, TIME
from synth.engines.skewed.loads import bound_us, set_loads

FAR = 1e300  # More than any sum of prices.
_FLOOR = 1e-3  # Cost of a resource without load; that of the most loaded one is 1 more.
_POWER = 4  # Costs rise as the 16th power of loads.
_ROUNDS = 8  # A part of each block is placed in each of so many rounds.
_SWEEPS = 16  # Times that all chunks choose again, at most.
_NEAR = 1.002  # A load within this factor of the bound is good enough.
_BETTER = 0.999  # A sweep is worth it if the most load falls to this part of the least one so far, or below.
_STALE = 3  # After so many sweeps in sequence that were not worth it, chunks no longer choose.
_PARTS = 48  # A chunk takes the fastest link for at most 1/48 of the bound, with the two exceptions that follow.
_LEAST_US = 1.0  # A chunk may always take as long as this.
_MOST_CHUNKS = 512  # A block has no more chunks than this.
_EQUAL = 1 + 1e-9  # Times that differ by this factor, by rounding only, count as equal.
_SAME = 1 + 1e-12  # Sums of parts of a resource that differ by this factor, by rounding only, count as equal.


def set_distances(k: int, links: int, src: Any, dst: Any, price: Any, dist: Any) -> None:
    """Set the least sum of prices on a path from each position to each position, by Floyd and Warshall.

    Args:
        k: Number of positions.
        links: Number of links.
        src: Source of each link.
        dst: Its destination.
        price: Price of each link, above 0.
        dist: Sums, to be set, shape (k · k,); `FAR` or more where no path leads.
    """
    for cell in range(k * k):
        dist[cell] = FAR
    for i in range(k):
        dist[i * k + i] = 0.0
    for link in range(links):
        cell = src[link] * k + dst[link]
        dist[cell] = min(dist[cell], price[link])
    for via in range(k):
        for i in range(k):
            begin, row, through = dist[i * k + via], i * k, via * k
            if begin < FAR:
                for j in range(k):
                    length = begin + dist[through + j]
                    if length < dist[row + j]:
                        dist[row + j] = length


def set_costs(load: Any, top: float, cost: Any) -> float:
    """Set what it costs to keep each resource busy for a µs, by the loads; return the sum of these costs.

    Args:
        load: Time in µs for which each resource is busy.
        top: The most load; 0 where nothing is loaded.
        cost: Costs, to be set.
    """
    total = 0.0
    for resource in range(len(load)):
        cost[resource] = cost_of(load[resource], top)
        total += cost[resource]
    return total


def cost_of(load: float, top: float) -> float:
    """Return the cost of a resource: (load / most load)^(2^_POWER), and a little more so that it is above 0."""
    part = load / top if top > 0.0 else 1.0
    for _ in range(_POWER):
        part *= part
    return _FLOOR + part


def set_prices(links: int, uses_ptr: Any, uses: Any, busy_us: Any, cost: Any, price: Any) -> None:
    """Set the price of a byte on each link by the costs of its resources.

    Args:
        links: Number of links.
        uses_ptr: First entry of each link in `uses`.
        uses: Resources of the links.
        busy_us: Time in µs for which a byte over the link keeps the resource busy, for each entry of `uses`.
        cost: Cost of each resource.
        price: Prices, to be set.
    """
    for link in range(links):
        price[link] = 0.0
        for at in range(uses_ptr[link], uses_ptr[link + 1]):
            price[link] += busy_us[at] * cost[uses[at]]


def volume_bound_us(size: Any, k: int, dist: Any, total: float) -> float:
    """Return the time in µs that all blocks need together, by the costs of resources.

    A byte from i to j pays at least the distance of i and j. What is paid in all is the sum of the costs of resources
    times how long each of them is busy, and none is busy for longer than the schedule takes.

    Args:
        size: Bytes from each position to each position, shape (k · k,).
        k: Number of positions.
        dist: Distances, as `set_distances` sets them.
        total: Sum of the costs of all resources.
    """
    paid = 0.0
    for i in range(k):
        for j in range(k):
            if i != j and size[i * k + j] > 0:
                paid += size[i * k + j] * dist[i * k + j]
    return paid / total


def add_load(  # A loop that Numba compiles takes columns, however many.
    route: int, width: int, path_hops: Any, path_link: Any, nbytes: float, uses_ptr: Any, uses: Any, busy_us: Any,
    top: float, load: Any, cost: Any,
) -> None:  # fmt: skip
    """Add bytes, which may be negative, to the loads of the resources on a path, and set their costs anew.

    Args:
        route: The path.
        width: Room for links on a path.
        path_hops: Number of links of each path.
        path_link: Links of each path.
        nbytes: The bytes.
        uses_ptr: As for `set_prices`, as the following ones.
        uses: Resources.
        busy_us: Times of a byte.
        top: The most load for the costs.
        load: Loads, to be changed.
        cost: Costs, to be changed.
    """
    for hop in range(path_hops[route]):
        link = path_link[route * width + hop]
        for at in range(uses_ptr[link], uses_ptr[link + 1]):
            load[uses[at]] += nbytes * busy_us[at]
            cost[uses[at]] = cost_of(load[uses[at]], top)


def cheapest(  # A loop that Numba compiles takes columns, however many.
    route: int, first: int, after: int, width: int, path_hops: Any, path_link: Any, uses_ptr: Any, uses: Any,
    busy_us: Any, cost: Any,
) -> int:  # fmt: skip
    """Return the cheapest path of a pair of positions, by the present costs; it is `route` where none is cheaper.

    Args:
        route: The path that a chunk has; the first one where it has none.
        first: First path of the pair of positions.
        after: First path of the next pair.
        width: Room for links on a path.
        path_hops: Number of links of each path.
        path_link: Links of each path.
        uses_ptr: As for `set_prices`, as the following ones.
        uses: Resources.
        busy_us: Times of a byte.
        cost: Present cost of each resource.
    """
    best, chosen = FAR, route
    # The number before the first one stands for `route`, which is tried first, so that it stays among equal ones.
    for number in range(first - 1, after):
        candidate, price = route if number < first else number, 0.0
        for hop in range(path_hops[candidate]):
            link = path_link[candidate * width + hop]
            for at in range(uses_ptr[link], uses_ptr[link + 1]):
                price += busy_us[at] * cost[uses[at]]
            if price >= best:
                break
        if price < best:
            best, chosen = price, candidate
    return chosen


def push(key: Any, item: Any, base: int, count: int, new_key: float, new_item: int) -> None:
    """Add an item to the heap of `count` items from `base` on; the item of the least key, then number, is its first."""
    at = count
    while at > 0:
        parent = (at - 1) // 2
        parent_at = base + parent
        if key[parent_at] < new_key or (key[parent_at] == new_key and item[parent_at] < new_item):
            break
        key[base + at], item[base + at] = key[parent_at], item[parent_at]
        at = parent
    key[base + at], item[base + at] = new_key, new_item


def pop(key: Any, item: Any, base: int, count: int) -> None:
    """Take the first item out of the heap of `count` items from `base` on; read it before."""
    last = base + count - 1
    moved_key, moved_item = key[last], item[last]
    at, below = 0, count - 1
    while True:
        child = 2 * at + 1
        if child >= below:
            break
        slot = base + child
        if child + 1 < below and (
            key[slot + 1] < key[slot] or (key[slot + 1] == key[slot] and item[slot + 1] < item[slot])
        ):
            child += 1
            slot += 1
        if moved_key < key[slot] or (moved_key == key[slot] and moved_item < item[slot]):
            break
        key[base + at], item[base + at] = key[slot], item[slot]
        at = child
    key[base + at], item[base + at] = moved_key, moved_item


def serve(  # It exceeds 60 lines: the state of its one pass is too large to hand to a function for each event.
    chunks: int, links: int, width: int, routes: Any, path_hops: Any, path_link: Any, nbytes: Any, uses_ptr: Any,
    uses: Any, part: Any, users_ptr: Any, users: Any, alpha: Any, link_us: Any, gap: Any, load: Any, begins: float,
    used: Any, done: Any, queue_ptr: Any, queue_key: Any, queue_chunk: Any, queue_count: Any, is_busy: Any,
    touched: Any, is_touched: Any, event_us: Any, event: Any, send_chunk: Any, send_link: Any, send_step: Any,
    send_start: Any,
) -> float:  # fmt: skip
    """Let links serve the chunks that wait for them, and set the columns of the sends; return the last arrival in µs.

    A link whose resources have room starts at once with the waiting chunk that has the most loaded links ahead.

    Args:
        chunks: Number of chunks.
        links: Number of links.
        width: Room for links on a path.
        routes: Path of each chunk.
        path_hops: Number of links of each path.
        path_link: Links of each path.
        nbytes: Bytes of each chunk.
        uses_ptr: First entry of each link in `uses`.
        uses: Resources of the links.
        part: Part of the resource that a send takes, for each entry of `uses`.
        users_ptr: First entry of each resource in `users`.
        users: Links of the resources.
        alpha: α of each link in µs.
        link_us: Time of a byte on each link in µs.
        gap: Time in µs for which resources stay busy after a send over each link.
        load: Time in µs for which each resource is busy in all.
        begins: Time in µs before which nothing is sent.
        used: Workspace of a number a resource, float64.
        done: Workspace of a number a chunk.
        queue_ptr: Workspace of links + 1 numbers.
        queue_key: Workspace of a number a send, float64.
        queue_chunk: Workspace of a number a send.
        queue_count: Workspace of a number a link.
        is_busy: Workspace of a number a link.
        touched: Workspace of a number a link.
        is_touched: Workspace of a number a link, 0 before and after.
        event_us: Workspace of a number a chunk and link, float64.
        event: Workspace of a number a chunk and link; an event is a chunk, or the number of chunks + a link.
        send_chunk: Chunk of each send, to be set, as the following ones.
        send_link: Its link.
        send_step: Number of sends of its chunk before it.
        send_start: Time in µs at which it takes its link.
    """
    for link in range(links + 1):
        queue_ptr[link] = 0
    for resource in range(len(used)):
        used[resource] = 0.0
    for c in range(chunks):
        for hop in range(path_hops[routes[c]]):
            queue_ptr[path_link[routes[c] * width + hop] + 1] += 1
    for link in range(links):
        queue_ptr[link + 1] += queue_ptr[link]
        queue_count[link] = is_busy[link] = 0
    events, sends, last = 0, 0, begins
    for c in range(chunks):
        done[c] = 0
        push(event_us, event, 0, events, begins, c)
        events += 1
    while events > 0:
        now, count = event_us[0], 0
        while events > 0 and event_us[0] == now:
            which = event[0]  # A chunk that has come to a rank, or chunks + a link whose resources are free again.
            pop(event_us, event, 0, events)
            events -= 1
            if which < chunks:
                route = routes[which]
                link = path_link[route * width + done[which]]
                ahead = 0.0
                for hop in range(done[which] + 1, path_hops[route]):
                    later = path_link[route * width + hop]
                    for at in range(uses_ptr[later], uses_ptr[later + 1]):
                        ahead += load[uses[at]]
                push(queue_key, queue_chunk, queue_ptr[link], queue_count[link], -ahead, which)
                queue_count[link] += 1
                if is_touched[link] == 0:
                    touched[count], is_touched[link] = link, 1
                    count += 1
                continue
            is_busy[which - chunks] = 0
            for at in range(uses_ptr[which - chunks], uses_ptr[which - chunks + 1]):
                resource = uses[at]
                used[resource] -= part[at]
                for user in range(users_ptr[resource], users_ptr[resource + 1]):
                    link = users[user]
                    if queue_count[link] > 0 and is_touched[link] == 0:
                        touched[count], is_touched[link] = link, 1
                        count += 1
        for place in range(count):
            link = touched[place]
            is_touched[link] = 0
            fits = queue_count[link] > 0 and is_busy[link] == 0
            for at in range(uses_ptr[link], uses_ptr[link + 1]):
                fits = fits and used[uses[at]] + part[at] <= _SAME
            if not fits:
                continue
            c = queue_chunk[queue_ptr[link]]
            pop(queue_key, queue_chunk, queue_ptr[link], queue_count[link])
            queue_count[link] -= 1
            is_busy[link] = 1
            for at in range(uses_ptr[link], uses_ptr[link + 1]):
                used[uses[at]] += part[at]
            send_chunk[sends], send_link[sends], send_step[sends], send_start[sends] = c, link, done[c], now
            sends += 1
            end = now + nbytes[c] * link_us[link]
            push(event_us, event, 0, events, end + gap[link], chunks + link)
            events += 1
            done[c] += 1
            arrives = end + alpha[link]
            if done[c] < path_hops[routes[c]]:
                push(event_us, event, 0, events, arrives, c)
                events += 1
            else:
                last = max(last, arrives)
    return last


def plan_routed(  # It exceeds 60 lines: its steps share nearly all columns.
    size: Any, k: int, n: int, links: int, width: int, begins: float, least_alpha: float, fastest_us: float,
    only_straight: bool, node_of: Any, rank_us: Any, rank_alpha: Any, node_us: Any, node_alpha: Any, least_us: Any,
    src: Any, dst: Any, alpha: Any, link_us: Any, gap: Any, uses_ptr: Any, uses: Any, part: Any, busy_us: Any,
    users_ptr: Any, users: Any, path_ptr: Any, path_hops: Any, path_link: Any, to_node: Any, pair_bytes: Any,
    rank_bytes: Any, load: Any, cost: Any, price: Any, dist: Any, used: Any, done: Any, routes: Any, queue_ptr: Any,
    queue_key: Any, queue_chunk: Any, queue_count: Any, is_busy: Any, touched: Any, is_touched: Any, event_us: Any,
    event: Any, chunk_source: Any, chunk_goal: Any, chunk_offset: Any, chunk_bytes: Any, send_chunk: Any,
    send_link: Any, send_step: Any, send_start: Any, straight_source: Any, straight_goal: Any, straight_offset: Any,
    straight_bytes: Any, straight_chunk: Any, straight_link: Any, straight_step: Any, straight_start: Any, state: Any,
    straight_state: Any, results: Any,
) -> int:  # fmt: skip
    """Plan an all-to-all; return PLANNED, STRAIGHT, FULL where a column has too little room, or BAD for bad sizes.

    Args:
        size: Bytes from each position to each position, int64, shape (k · k,).
        k: Number of positions.
        n: Number of nodes.
        links: Number of links.
        width: Room for links on a path.
        begins: Time in µs before which nothing is sent.
        least_alpha: Least α of all links.
        fastest_us: Time of a byte on the fastest link.
        only_straight: Whether every block is sent whole on a shortest path, even if that is slower.
        node_of: Columns of the shape, as the following ones up to `path_link`; `routed.fixed_columns` describes them.
        rank_us: Column.
        rank_alpha: Column.
        node_us: Column.
        node_alpha: Column.
        least_us: Column.
        src: Column.
        dst: Column.
        alpha: Column.
        link_us: Column.
        gap: Column.
        uses_ptr: Column.
        uses: Column.
        part: Column.
        busy_us: Column.
        users_ptr: Column.
        users: Column.
        path_ptr: Column.
        path_hops: Column.
        path_link: Column.
        to_node: Workspace, as the following ones up to `event`; see `set_loads`, `serve`.
        pair_bytes: Workspace.
        rank_bytes: Workspace.
        load: Workspace.
        cost: Workspace.
        price: Workspace.
        dist: Workspace.
        used: Workspace.
        done: Workspace.
        routes: Workspace.
        queue_ptr: Workspace.
        queue_key: Workspace.
        queue_chunk: Workspace.
        queue_count: Workspace.
        is_busy: Workspace.
        touched: Workspace.
        is_touched: Workspace.
        event_us: Workspace.
        event: Workspace.
        chunk_source: Columns of the plan, as in `Plan`, to be set; the room for chunks is their length.
        chunk_goal: Column.
        chunk_offset: Column.
        chunk_bytes: Column.
        send_chunk: Column.
        send_link: Column.
        send_step: Column.
        send_start: Column.
        straight_source: The same of straight paths, with room for k² chunks.
        straight_goal: Column.
        straight_offset: Column.
        straight_bytes: Column.
        straight_chunk: Column.
        straight_link: Column.
        straight_step: Column.
        straight_start: Column.
        state: Numbers of chunks and rows of the plan, to be set.
        straight_state: The same of straight paths.
        results: Time of the faster one and bound, in µs, to be set.
    """
    state[CHUNKS] = state[ROWS] = straight_state[CHUNKS] = straight_state[ROWS] = 0
    results[TIME] = results[BOUND] = 0.0
    total = set_loads(size, k, n, node_of, to_node, pair_bytes, rank_bytes)
    if total <= 0:
        return PLANNED if total == 0 else BAD
    best = bound_us(size, k, n, pair_bytes, rank_bytes, rank_us, rank_alpha, node_us, node_alpha, least_us, begins)
    for resource in range(len(load)):
        load[resource] = 0.0
    costs = set_costs(load, 0.0, cost)
    set_prices(links, uses_ptr, uses, busy_us, cost, price)
    set_distances(k, links, src, dst, price, dist)
    best = max(best, begins + volume_bound_us(size, k, dist, costs) + least_alpha)
    span, room, chunks, top = best - begins, len(chunk_bytes), 0, 0.0
    for turn in range(_ROUNDS):
        top = max(top, span * (turn + 1) / _ROUNDS)
        set_costs(load, top, cost)
        for behind in range(1, k):
            for i in range(k):
                j = (i + behind) % k
                nbytes = size[i * k + j]
                if nbytes == 0:
                    continue
                longest = max(span / _PARTS, _LEAST_US) / fastest_us
                count = min(1 + int(nbytes / longest), _MOST_CHUNKS, nbytes)
                for number in range((turn * count + _ROUNDS - 1) // _ROUNDS, ((turn + 1) * count - 1) // _ROUNDS + 1):
                    if chunks == room:
                        return FULL
                    begin = nbytes // count * number + min(number, nbytes % count)
                    chunk_source[chunks], chunk_goal[chunks], chunk_offset[chunks] = i, j, begin
                    chunk_bytes[chunks] = nbytes // count + (1 if number < nbytes % count else 0)
                    first = path_ptr[i * k + j]
                    routes[chunks] = cheapest(
                        first, first, path_ptr[i * k + j + 1], width, path_hops, path_link, uses_ptr, uses, busy_us,
                        cost,
                    )  # fmt: skip
                    add_load(
                        routes[chunks], width, path_hops, path_link, 1.0 * chunk_bytes[chunks], uses_ptr, uses, busy_us,
                        top, load, cost,
                    )  # fmt: skip
                    chunks += 1
    least_top, stale = FAR, 0
    for _ in range(_SWEEPS):
        top = 0.0
        for resource in range(len(load)):
            top = max(top, load[resource])
        costs = set_costs(load, top, cost)
        set_prices(links, uses_ptr, uses, busy_us, cost, price)
        set_distances(k, links, src, dst, price, dist)
        best = max(best, begins + volume_bound_us(size, k, dist, costs) + least_alpha)
        stale = 0 if top < least_top * _BETTER else stale + 1
        least_top = min(least_top, top)
        if top <= (best - begins) * _NEAR or stale == _STALE:
            break
        moved = 0
        for c in range(chunks):
            block, before, nbytes = chunk_source[c] * k + chunk_goal[c], routes[c], 1.0 * chunk_bytes[c]
            add_load(before, width, path_hops, path_link, -nbytes, uses_ptr, uses, busy_us, top, load, cost)
            routes[c] = cheapest(
                before, path_ptr[block], path_ptr[block + 1], width, path_hops, path_link, uses_ptr, uses, busy_us, cost
            )  # fmt: skip
            add_load(routes[c], width, path_hops, path_link, nbytes, uses_ptr, uses, busy_us, top, load, cost)
            moved += 1 if routes[c] != before else 0
        if moved == 0:
            break
    results[BOUND] = best
    rows = 0
    for c in range(chunks):
        rows += path_hops[routes[c]]
    if rows > len(send_chunk):
        return FULL
    state[CHUNKS], state[ROWS] = chunks, rows
    results[TIME] = serve(
        chunks, links, width, routes, path_hops, path_link, chunk_bytes, uses_ptr, uses, part, users_ptr, users, alpha,
        link_us, gap, load, begins, used, done, queue_ptr, queue_key, queue_chunk, queue_count, is_busy, touched,
        is_touched, event_us, event, send_chunk, send_link, send_step, send_start,
    )  # fmt: skip
    if not only_straight and results[TIME] <= best * _EQUAL:
        return PLANNED
    chunks, rows = 0, 0
    for resource in range(len(load)):
        load[resource] = 0.0
    for behind in range(1, k):
        for i in range(k):
            j = (i + behind) % k
            nbytes = size[i * k + j]
            if nbytes > 0:
                straight_source[chunks], straight_goal[chunks], straight_offset[chunks] = i, j, 0
                straight_bytes[chunks] = nbytes
                routes[chunks] = path_ptr[i * k + j]
                add_load(
                    routes[chunks], width, path_hops, path_link, 1.0 * nbytes, uses_ptr, uses, busy_us, top, load, cost
                )  # fmt: skip
                rows += path_hops[routes[chunks]]
                chunks += 1
    straight_state[CHUNKS], straight_state[ROWS] = chunks, rows
    time = serve(
        chunks, links, width, routes, path_hops, path_link, straight_bytes, uses_ptr, uses, part, users_ptr, users,
        alpha, link_us, gap, load, begins, used, done, queue_ptr, queue_key, queue_chunk, queue_count, is_busy, touched,
        is_touched, event_us, event, straight_chunk, straight_link, straight_step, straight_start,
    )  # fmt: skip
    if not only_straight and time > results[TIME]:
        return PLANNED
    results[TIME] = time
    return STRAIGHT
