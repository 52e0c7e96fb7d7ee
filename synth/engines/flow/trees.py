"""Trees under congestion prices: the links over which each chunk gets from its holders to all its goals.

A chunk's tree grows goal by goal: the nearest goal, over the cheapest path from the present tree (Takahashi and
Matsuyama's Steiner heuristic, 1980). With `depth` below 1 a rank inside the tree counts as nearer than its whole path
from the holder (the mix of Prim and Dijkstra by Alpert, Hu, Huang, Kahng and Karger, 1995): shallow trees for small
messages, balanced trees for large ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from synth.engines.flow.congestion_prices import Congestion, add_load, cost_of, pop_key, push_key
from synth.engines.flow.csr_network import CsrNetwork
from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner
from synth.model.problem import AllowedHolders
from topologies.arrays import pointers, ranges

Csr = tuple[Ints, Ints]  # (ptr, idx); the entries of row c are idx[ptr[c]:ptr[c+1]]


class _TreeScratch(NamedTuple):
    """State of every rank while a tree grows, and a heap of ranks by their cost.

    Attributes:
        away: Cost to each rank of the tree, of which the path inside the tree counts `depth` only.
        key: Least known cost to each rank.
        via: Link of that cost.
        inside: Whether a rank is in the tree.
        is_goal: Whether a rank is a goal outside of the tree.
        path: Room for a path.
        keys: Keys of the heap.
        codes: Ranks of the heap.
    """

    away: Any
    key: Any
    via: Any
    inside: Any
    is_goal: Any
    path: Any
    keys: Any
    codes: Any


class TreeChunks(NamedTuple):
    """Chunks that are routed over trees.

    Attributes:
        order: The chunks in the order in which they are routed.
        holder_ptr: CSR pointer from a chunk to its holders.
        holders: Holders of each chunk, in CSR order.
        goal_ptr: CSR pointer from a chunk to its goals.
        goals: Goals of each chunk, in CSR order.
        work: Size of every chunk in kilobytes.
        allowed: Whether the chunks of a family may be on a rank, family by family.
        family: Family of every chunk.
    """

    order: Any
    holder_ptr: Any
    holders: Any
    goal_ptr: Any
    goals: Any
    work: Any
    allowed: Any
    family: Any


def tree_chunks(order: Ints, holders: Csr, goals: Csr, work: Floats, allowed: AllowedHolders) -> TreeChunks:
    """Return chunks to route, with their holders and goals by chunk, and the ranks that may hold each."""
    return TreeChunks(order, *holders, *goals, work, allowed.ranks.ravel(), allowed.family)


def route_trees(
    run: Runner, net: CsrNetwork, congestion: Congestion, chunks: TreeChunks, depth: float, trees: Csr
) -> tuple[Csr, int]:
    """Route chunks again in O(chunks · links · log ranks), a little more where paths are replaced.

    Args:
        run: Runner of the compiled loops.
        net: The network as the loops need it.
        congestion: Loads and prices, which change.
        chunks: The chunks to route.
        depth: How much of the path from the holder counts for a rank inside the tree.
        trees: Trees in the present loads (empty at first); chunks that are not in the order keep theirs.

    Returns:
        Trees by chunk, links in the order in which they grew, and the number of chunks that miss a goal; the trees of
        these lead to the goals that can be reached.
    """
    nranks = net.nranks
    size = 4 * len(net.src) + nranks + 16
    zeros, floats = np.zeros(nranks, dtype=np.int64), np.zeros(nranks)
    scratch = _TreeScratch(
        *run.columns(floats, floats.copy(), zeros, zeros > 0, zeros > 0, zeros.copy(), np.zeros(size)),
        *run.columns(np.zeros(size, dtype=np.int64)),
    )
    begin, end, old = run.columns(trees[0][:-1].copy(), trees[0][1:].copy(), trees[1])
    pool, missed = run(_route_trees, net, congestion, run.table(chunks), depth, begin, end, old, scratch)
    pool, begin, end = (np.asarray(column) for column in (pool, begin, end))
    ptr = pointers(end - begin)
    return (ptr, pool[ranges(begin, end - begin)]), int(missed)


def _route_trees(  # One search of over 60 lines, as its state is too large to pass on.
    net: CsrNetwork, congestion: Congestion, chunks: TreeChunks, depth: float, begin: Any, end: Any, old: Any,
    scratch: _TreeScratch,
) -> tuple[Any, int]:  # fmt: skip
    """Return the links of all trees, those of chunk c from begin[c] to end[c], and how many chunks miss a goal.

    Only chunks in the order are routed again; the links that they had before stay in the result, unused. The loads and
    prices of `congestion` change.

    Args:
        net: The network.
        congestion: Loads and prices; changes.
        chunks: The chunks to route.
        depth: How much of the path from the holder counts for a rank inside the tree.
        begin: Place of each chunk's first link in `old`; changes to that in the result.
        end: Place after each chunk's last link; changes as `begin`.
        old: Links of the trees in the present loads.
        scratch: State of every rank; changes.
    """
    order, holder_ptr, holders, goal_ptr, goals, work, allowed, family = chunks
    away, key, via, inside, is_goal, path, keys, codes = scratch
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
            is_goal[rank] = False
        size, missing = 0, 0
        for j in range(goal_ptr[chunk], goal_ptr[chunk + 1]):
            is_goal[goals[j]] = True
            missing += 1
        for j in range(holder_ptr[chunk], holder_ptr[chunk + 1]):
            rank = holders[j]
            if is_goal[rank]:
                is_goal[rank] = False
                missing -= 1
            inside[rank] = True
            away[rank] = 0.0
            key[rank] = 0.0
            push_key(keys, codes, size, 0.0, rank)
            size += 1
        if filled + nranks > len(pool):
            larger = np.empty(max(filled + nranks, 2 * len(pool)), np.int64)
            for j in range(filled):
                larger[j] = pool[j]
            pool = larger
        begin[chunk] = filled
        first_allowed = family[chunk] * nranks
        while missing > 0 and size > 0:
            near, v = keys[0], codes[0]
            pop_key(keys, codes, size)
            size -= 1
            if near > key[v]:
                continue
            if size + nranks + net.out_ptr[v + 1] - net.out_ptr[v] > len(keys):
                larger_keys, larger_codes = np.empty(2 * len(keys)), np.empty(2 * len(keys), np.int64)
                for j in range(size):
                    larger_keys[j], larger_codes[j] = keys[j], codes[j]
                keys, codes = larger_keys, larger_codes
            if is_goal[v]:
                # The path to the goal becomes part of the tree.
                count = 0
                rank_on_path = v
                while not inside[rank_on_path]:
                    path[count] = via[rank_on_path]
                    count += 1
                    rank_on_path = net.src[via[rank_on_path]]
                for j in range(count - 1, -1, -1):
                    link = path[j]
                    u, w = net.src[link], net.dst[link]
                    length = cost_of(net, congestion, net.bundle[link])
                    add_load(net, congestion, net.bundle[link], amount)
                    pool[filled] = link
                    filled += 1
                    inside[w] = True
                    away[w] = depth * (away[u] + length)
                    if is_goal[w]:
                        is_goal[w] = False
                        missing -= 1
                    if w != v and away[w] < key[w]:
                        key[w] = away[w]
                        push_key(keys, codes, size, key[w], w)
                        size += 1
                key[v] = away[v]
            reach = away[v] if inside[v] else key[v]
            for j in range(net.out_ptr[v], net.out_ptr[v + 1]):
                link = net.out_link[j]
                w = net.dst[link]
                if inside[w] or not allowed[first_allowed + w]:
                    continue
                through = reach + cost_of(net, congestion, net.bundle[link])
                if through < key[w]:
                    key[w] = through
                    via[w] = link
                    push_key(keys, codes, size, through, w)
                    size += 1
        end[chunk] = filled
        missed += missing > 0
    return pool[:filled], missed


def find_parents(run: Runner, net: CsrNetwork, trees: Csr) -> tuple[Ints, Ints]:
    """Return for every row of trees the row that brings its chunk (-1: held from the start), and its depth from 0.

    The rows of a chunk must be in an order in which each comes after its parent.
    """
    parent = np.full(len(trees[1]), -1, dtype=np.int64)
    columns = run.columns(*trees, np.full(net.nranks, -1), parent, np.zeros(len(parent), dtype=np.int64))
    run(_find_parents, net, *columns)
    return np.asarray(columns[-2], dtype=np.int64), np.asarray(columns[-1], dtype=np.int64)


def _find_parents(net: CsrNetwork, ptr: Any, links: Any, row_of_rank: Any, parent: Any, depth: Any) -> None:
    """Set the parent and the depth of every row that has a parent; they start as -1 and 0."""
    for chunk in range(len(ptr) - 1):
        for row in range(ptr[chunk], ptr[chunk + 1]):
            parent_row = row_of_rank[net.src[links[row]]]
            if parent_row >= ptr[chunk]:
                parent[row] = parent_row
                depth[row] = depth[parent_row] + 1
            row_of_rank[net.dst[links[row]]] = row
