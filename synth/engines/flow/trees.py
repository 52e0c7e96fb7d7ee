"""Trees under congestion prices: how each chunk gets from its holders to all its goals.

A chunk's tree grows goal by goal: the nearest goal, over the cheapest path from what the tree holds already
(Takahashi and Matsuyama's Steiner heuristic, 1980). With `depth` below 1 a rank inside the tree is nearer than its
whole path from the holder says (the mix of Prim and Dijkstra by Alpert, Hu, Huang, Kahng and Karger, 1995): shallow
trees for small messages, even ones for large.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from synth.engines.flow.congestion_prices import Congestion, add_load, cost_of, pop_key, push_key
from synth.engines.flow.csr_network import CsrNetwork
from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner
from synth.model.problem import Allowed
from topologies.arrays import pointers, ranges

Csr = tuple[Ints, Ints]  # rows of table c: idx[ptr[c]:ptr[c+1]]


class _Scratch(NamedTuple):
    """Of every rank, while a tree grows; and a heap of ranks by their cost."""

    away: Any  # what it costs to get to it, of the path inside the tree `depth` only
    key: Any  # the least that is known
    via: Any  # the link by which
    inside: Any  # it is in the tree
    wanted: Any  # it is a goal that is not
    path: Any
    keys: Any
    codes: Any


def route_trees(
    run: Runner, net: CsrNetwork, congestion: Congestion, order: Ints, holders: Csr, goals: Csr, work: Floats,
    allowed: Allowed, depth: float, trees: Csr,
) -> tuple[Csr, int]:  # fmt: skip
    """Route the chunks of `order` again; time O(chunks · links · log ranks), a little more where paths are replaced.

    Args:
        net, congestion: as loops take them; the loads change.
        holders, goals: by chunk. work: kilobytes of every chunk.
        depth: how much of the path from the holder counts for a rank inside the tree.
        trees: those that are in the loads now (empty at first); chunks outside `order` keep theirs.

    Returns:
        Trees by chunk, links in the order in which they grew, and how many chunks do not reach all of their goals.
    """
    nranks = net.nranks
    size = 4 * len(net.src) + nranks + 16
    zeros, some = np.zeros(nranks, dtype=np.int64), np.zeros(nranks)
    scratch = _Scratch(
        *run.columns(some, some.copy(), zeros, zeros > 0, zeros > 0, zeros.copy(), np.zeros(size)),
        *run.columns(np.zeros(size, dtype=np.int64)),
    )
    begin, end, old = run.columns(trees[0][:-1].copy(), trees[0][1:].copy(), trees[1])
    columns = run.columns(order, *holders, *goals, work, allowed.ranks.ravel(), allowed.family)
    pool, missed = run(_route_trees, net, congestion, *columns, depth, begin, end, old, scratch)
    pool, begin, end = (np.asarray(column) for column in (pool, begin, end))
    ptr = pointers(end - begin)
    return (ptr, pool[ranges(begin, end - begin)]), int(missed)


def _route_trees(  # over 60 lines: one search, whose state is too much to hand on
    net: CsrNetwork, congestion: Congestion, order: Any, holder_ptr: Any, holders: Any, goal_ptr: Any, goals: Any,
    work: Any, allowed: Any, family: Any, depth: float, begin: Any, end: Any, old: Any, scratch: _Scratch,
) -> tuple[Any, int]:  # fmt: skip
    """Returns the links of all trees, those of chunk c from begin[c] to end[c], and how many miss a goal."""
    away, key, via, inside, wanted, path, keys, codes = scratch
    nranks = net.nranks
    pool = np.empty(max(1024, len(old)), np.int64)
    for j in range(len(old)):
        pool[j] = old[j]
    filled, missed = len(old), 0
    for i in range(len(order)):
        chunk = order[i]
        amount = work[chunk]
        for j in range(begin[chunk], end[chunk]):
            add_load(net, congestion, net.bundle[pool[j]], -amount)
        for rank in range(nranks):
            key[rank] = np.inf
            inside[rank] = False
            wanted[rank] = False
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
        if filled + nranks > len(pool):
            larger = np.empty(max(filled + nranks, 2 * len(pool)), np.int64)
            larger[:filled] = pool[:filled]
            pool = larger
        begin[chunk] = filled
        may = family[chunk] * nranks
        while left > 0 and size > 0:
            near, v = keys[0], codes[0]
            pop_key(keys, codes, size)
            size -= 1
            if near > key[v]:
                continue
            if size + nranks + net.out_ptr[v + 1] - net.out_ptr[v] > len(keys):
                more_keys, more_codes = np.empty(2 * len(keys)), np.empty(2 * len(keys), np.int64)
                for j in range(size):
                    more_keys[j], more_codes[j] = keys[j], codes[j]
                keys, codes = more_keys, more_codes
            if wanted[v]:
                # the path to it joins the tree
                count = 0
                at = v
                while not inside[at]:
                    path[count] = via[at]
                    count += 1
                    at = net.src[via[at]]
                for j in range(count - 1, -1, -1):
                    link = path[j]
                    u, w = net.src[link], net.dst[link]
                    length = cost_of(net, congestion, net.bundle[link])
                    add_load(net, congestion, net.bundle[link], amount)
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
                if inside[w] or not allowed[may + w]:
                    continue
                through = reach + cost_of(net, congestion, net.bundle[link])
                if through < key[w]:
                    key[w] = through
                    via[w] = link
                    push_key(keys, codes, size, through, w)
                    size += 1
        end[chunk] = filled
        missed += left > 0
    return pool[:filled], missed


def find_parents(run: Runner, net: CsrNetwork, trees: Csr) -> tuple[Ints, Ints]:
    """For every row of trees by chunk: the row that brings what it carries (-1: held from the start), and its depth.

    Rows of a chunk stand in an order in which each comes after its parent.
    """
    parent = np.full(len(trees[1]), -1, dtype=np.int64)
    columns = run.columns(*trees, np.full(net.nranks, -1), parent, np.zeros(len(parent), dtype=np.int64))
    run(_find_parents, net, *columns)
    return np.asarray(columns[-2], dtype=np.int64), np.asarray(columns[-1], dtype=np.int64)


def _find_parents(net: CsrNetwork, ptr: Any, links: Any, came: Any, parent: Any, depth: Any) -> None:
    for chunk in range(len(ptr) - 1):
        for row in range(ptr[chunk], ptr[chunk + 1]):
            at = came[net.src[links[row]]]
            if at >= ptr[chunk]:
                parent[row] = at
                depth[row] = depth[at] + 1
            came[net.dst[links[row]]] = row
