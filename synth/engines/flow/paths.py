"""Paths under prices, compiled: which way each chunk with one holder and one goal takes.

Chunks are routed one at a time over the way that is cheapest at prices that grow exponentially with the load of
each resource, as in on-line routing of virtual circuits (Aspnes, Azar, Fiat, Plotkin and Waarts, 1997), and are taken
out and routed again in later passes at steeper prices.
"""

from __future__ import annotations

import numpy as np

from synth.engines.flow.congestion_prices import Market, add_load, cost_of
from synth.engines.flow.csr_network import Wires
from synth.model.collective import Floats, Ints
from synth.model.compiled import kernel


@kernel
def narrow_pass(
    net: Wires,
    market: Market,
    order: Ints,
    source: Ints,
    goal: Ints,
    work: Floats,
    row: Ints,
    table: Ints,
    path_ptr: Ints,
    path: Ints,
    fresh: bool,
) -> None:
    """Route the chunks of `order` over ways of fewest hops; `path` (CSR by chunk, first link first) is written.

    Only the box between source and goal is looked at, so that a pass over a million chunks takes a second.

    Args:
        row: the row of `table` (see `hop_table`) for each chunk's source. fresh: no chunk has a path yet.
    """
    cost = np.zeros(net.nranks)
    via = np.zeros(net.nranks, np.int64)
    stamp = np.full(net.nranks, -1, np.int64)
    queue = np.empty(net.nranks, np.int64)
    # what is looked at for every link that enters a rank, side by side
    enters = np.empty((len(net.in_link), 2), np.int64)
    for j in range(len(net.in_link)):
        enters[j, 0] = net.src[net.in_link[j]]
        enters[j, 1] = net.lane[net.in_link[j]]
    for i in range(len(order)):
        chunk = order[i]
        base, end = path_ptr[chunk], path_ptr[chunk + 1]
        if base == end:
            continue
        if not fresh:
            for j in range(base, end):
                add_load(net, market, net.lane[path[j]], -work[chunk])
        # backwards from the goal: what it costs from each rank on the way
        s, t = source[chunk], goal[chunk]
        far = table[row[chunk]]
        cost[t] = 0.0
        stamp[t] = i
        queue[0] = t
        first, last = 0, 1
        while first < last:
            v = queue[first]
            first += 1
            if v == s:
                break
            so_far, nearer = cost[v], far[v] - 1
            for j in range(net.in_ptr[v], net.in_ptr[v + 1]):
                u = enters[j, 0]
                if far[u] != nearer:
                    continue
                through = so_far + cost_of(net, market, enters[j, 1])
                if stamp[u] != i:
                    stamp[u] = i
                    queue[last] = u
                    last += 1
                elif through >= cost[u]:
                    continue
                cost[u] = through
                via[u] = net.in_link[j]
        at = s
        for j in range(base, end):
            link = via[at]
            path[j] = link
            add_load(net, market, net.lane[link], work[chunk])
            at = net.dst[link]
