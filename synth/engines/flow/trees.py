"""Trees under prices, compiled: how each chunk gets from its holders to all its goals.

A chunk's tree grows goal by goal: the nearest goal, over the cheapest way from what the tree holds already
(Takahashi and Matsuyama's Steiner heuristic, 1980). With `depth` below 1 a rank inside the tree is nearer than its
whole way from the holder says (the mix of Prim and Dijkstra by Alpert, Hu, Huang, Kahng and Karger, 1995): shallow
trees for small messages, even ones for large.
"""

from __future__ import annotations

import numpy as np

from synth.engines.flow.congestion_prices import Market, add_load, cost_of, grow_pool, pop_key, push_key
from synth.engines.flow.csr_network import Wires
from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import kernel


@kernel
def tree_pass(
    net: Wires,
    market: Market,
    order: Ints,
    holder_ptr: Ints,
    holders: Ints,
    goal_ptr: Ints,
    goals: Ints,
    work: Floats,
    allowed: Bools,
    family: Ints,
    depth: float,
    old_ptr: Ints,
    old: Ints,
) -> tuple[Ints, Ints, int]:
    """Route the chunks of `order` again.

    Returns (ptr, links, missed): trees by chunk, each in the order in which it grew, and how many do not reach all
    of their goals.

    Args:
        allowed: shape (families, ranks): who may hold a family's chunks. family: of every chunk.
        depth: how much of the way from the holder counts for a rank inside the tree.
        old_ptr, old: the trees that are in the loads now (empty at first); chunks outside `order` keep theirs.
    """
    nchunks = len(work)
    begin, end = old_ptr[:-1].copy(), old_ptr[1:].copy()
    pool = np.empty(max(1024, len(old)), np.int64)
    pool[: len(old)] = old
    filled = len(old)
    missed = 0
    away, key = np.empty(net.nranks), np.empty(net.nranks)
    via = np.empty(net.nranks, np.int64)
    inside = np.zeros(net.nranks, np.bool_)
    wanted = np.zeros(net.nranks, np.bool_)
    room = 4 * len(net.src) + net.nranks + 16
    keys, codes = np.empty(room), np.empty(room, np.int64)
    way = np.empty(net.nranks, np.int64)
    for i in range(len(order)):
        chunk = order[i]
        amount = work[chunk]
        for j in range(begin[chunk], end[chunk]):
            add_load(net, market, net.lane[pool[j]], -amount)
        key[:] = np.inf
        inside[:] = False
        wanted[:] = False
        size, left = 0, 0
        for j in range(goal_ptr[chunk], goal_ptr[chunk + 1]):
            wanted[goals[j]] = True
            left += 1
        for j in range(holder_ptr[chunk], holder_ptr[chunk + 1]):
            rank = holders[j]
            if wanted[rank]:
                wanted[rank] = False
                left -= 1
            inside[rank] = True
            away[rank] = 0.0
            key[rank] = 0.0
            push_key(keys, codes, size, 0.0, rank)
            size += 1
        pool = grow_pool(pool, filled + net.nranks)
        begin[chunk] = filled
        may = allowed[family[chunk]]
        while left > 0 and size > 0:
            near, v = keys[0], codes[0]
            pop_key(keys, codes, size)
            size -= 1
            if near > key[v]:
                continue
            if wanted[v]:
                # the way to it joins the tree
                count = 0
                at = v
                while not inside[at]:
                    way[count] = via[at]
                    count += 1
                    at = net.src[via[at]]
                for j in range(count - 1, -1, -1):
                    link = way[j]
                    u, w = net.src[link], net.dst[link]
                    length = cost_of(net, market, net.lane[link])
                    add_load(net, market, net.lane[link], amount)
                    pool[filled] = link
                    filled += 1
                    inside[w] = True
                    away[w] = depth * (away[u] + length)
                    if wanted[w]:
                        wanted[w] = False
                        left -= 1
                    if w != v and away[w] < key[w]:
                        key[w] = away[w]
                        push_key(keys, codes, size, key[w], w)
                        size += 1
                key[v] = away[v]
            reach = away[v] if inside[v] else key[v]
            for j in range(net.out_ptr[v], net.out_ptr[v + 1]):
                link = net.out_link[j]
                w = net.dst[link]
                if inside[w] or not may[w]:
                    continue
                through = reach + cost_of(net, market, net.lane[link])
                if through < key[w]:
                    key[w] = through
                    via[w] = link
                    if size + 1 >= room:
                        room *= 2
                        keys, codes = _wider(keys, room), grow_pool(codes, room)
                    push_key(keys, codes, size, through, w)
                    size += 1
        end[chunk] = filled
        missed += left > 0
    # what is kept, by chunk
    ptr = np.zeros(nchunks + 1, np.int64)
    for chunk in range(nchunks):
        ptr[chunk + 1] = ptr[chunk] + end[chunk] - begin[chunk]
    links = np.empty(ptr[nchunks], np.int64)
    for chunk in range(nchunks):
        links[ptr[chunk] : ptr[chunk + 1]] = pool[begin[chunk] : end[chunk]]
    return ptr, links, missed


@kernel
def _wider(column: Floats, room: int) -> Floats:
    larger = np.empty(room)
    larger[: len(column)] = column
    return larger


@kernel
def row_parents(net: Wires, ptr: Ints, links: Ints) -> tuple[Ints, Ints]:
    """For every row of trees by chunk: the row that brings what it carries (-1: held from the start), and its depth.

    Rows of a chunk stand in an order in which each comes after its parent.
    """
    parent = np.full(len(links), -1, np.int64)
    depth = np.zeros(len(links), np.int64)
    came = np.full(net.nranks, -1, np.int64)
    for chunk in range(len(ptr) - 1):
        for row in range(ptr[chunk], ptr[chunk + 1]):
            at = came[net.src[links[row]]]
            if at >= ptr[chunk]:
                parent[row] = at
                depth[row] = depth[at] + 1
            came[net.dst[links[row]]] = row
    return parent, depth
