"""The bytes of an all-to-all by rank and node, and the times that they imply."""

from __future__ import annotations

from typing import Any

from synth.engines.skewed.columns import BAD, MOST_BYTES


def set_loads(size: Any, k: int, n: int, node_of: Any, to_node: Any, pair_bytes: Any, rank_bytes: Any) -> int:
    """Set the bytes from node to node and at each rank; return the number of bytes between ranks.

    It is BAD if a size is below 0 or over MOST_BYTES.

    Args:
        size: Bytes from each position to each position, shape (k · k,).
        k: Number of positions.
        n: Number of nodes.
        node_of: Node of each position.
        to_node: Bytes from position i to node b at i · n + b, to be set, shape (k · n,); blocks of a rank to itself are
            not in it.
        pair_bytes: Bytes from node a to node b at a · n + b, to be set, shape (n · n,).
        rank_bytes: Bytes out of each position, then into each position, to be set, shape (2 · k,).
    """
    for i in range(n * n):
        pair_bytes[i] = 0
    for i in range(k * n):
        to_node[i] = 0
    for i in range(k):
        rank_bytes[k + i] = 0
    total = 0
    for i in range(k):
        row = i * n
        for j in range(k):
            nbytes = size[i * k + j]
            if nbytes < 0 or nbytes > MOST_BYTES:
                return BAD
            if i != j:
                rank_bytes[k + j] += nbytes
                to_node[row + node_of[j]] += nbytes
        row_bytes, at = 0, node_of[i] * n
        for b in range(n):
            row_bytes += to_node[row + b]
            pair_bytes[at + b] += to_node[row + b]
        rank_bytes[i] = row_bytes
        total += row_bytes
    return total


def bound_us(  # A loop that Numba compiles takes columns, however many.
    size: Any, k: int, n: int, pair_bytes: Any, rank_bytes: Any, rank_us: Any, rank_alpha: Any, node_us: Any,
    node_alpha: Any, least_us: Any, begins: float,
) -> float:  # fmt: skip
    """Return the time in µs that no schedule of these sizes can beat; see `Planner.bound`.

    Args:
        size: Bytes from each position to each position.
        k: Number of positions.
        n: Number of nodes.
        pair_bytes: Bytes from node to node, as `set_loads` sets them, as `rank_bytes`.
        rank_bytes: Bytes out of and into each position.
        rank_us: Columns of `GroupShape`, as the following ones.
        rank_alpha: Column.
        node_us: Column.
        node_alpha: Column.
        least_us: Column.
        begins: Time in µs before which nothing is sent.
    """
    best = 0.0
    for i in range(2 * k):
        if rank_bytes[i] > 0:
            best = max(best, rank_bytes[i] * rank_us[i] + rank_alpha[i])
    if n > 1:
        for a in range(n):
            out, into = 0, 0
            for b in range(n):
                if a != b:
                    out += pair_bytes[a * n + b]
                    into += pair_bytes[b * n + a]
            if out > 0:
                best = max(best, out * node_us[a] + node_alpha[a])
            if into > 0:
                best = max(best, into * node_us[n + a] + node_alpha[n + a])
    for i in range(k):
        for j in range(k):
            if i != j and size[i * k + j] > 0 and least_us[i * k + j] > best:
                best = least_us[i * k + j]
    return begins + best


def straight_limit_us(
    k: int, n: int, leaves: Any, enters: Any, straight_us: Any, to_node: Any, rank_at: Any, begins: float
) -> float:
    """Return a time in µs that straight paths cannot beat: how long they keep the busiest NIC busy.

    Args:
        k: Number of positions.
        n: Number of nodes.
        leaves: Column `exit` of `GroupShape`.
        enters: Column `entry` of `GroupShape`.
        straight_us: Column of `GroupShape`.
        to_node: Bytes from position to node.
        rank_at: Workspace of 2 k numbers, float64.
        begins: Time in µs before which nothing is sent.
    """
    for port in range(2 * k):
        rank_at[port] = 0.0
    most = 0.0
    for i in range(k):
        for b in range(n):
            at = i * n + b
            if to_node[at] > 0:
                rank_at[leaves[at]] += to_node[at] * straight_us[at]
                rank_at[k + enters[at]] += to_node[at] * straight_us[k * n + at]
    for port in range(2 * k):
        most = max(most, rank_at[port])
    return begins + most
