"""The sends of whole blocks on straight paths: over the link to the destination, or over one link between nodes."""

from __future__ import annotations

from typing import Any

from synth.engines.skewed.columns import CHUNKS, FULL, NO_LINK, ROWS


def add_straight(  # A loop that Numba compiles takes columns, however many.
    size: Any, k: int, n: int, node_of: Any, between: Any, leaves: Any, enters: Any, alpha: Any, link_us: Any,
    rank_at: Any, chunk_source: Any, chunk_goal: Any, chunk_offset: Any, chunk_bytes: Any, row_chunk: Any,
    row_link: Any, row_step: Any, row_key: Any, state: Any,
) -> int:  # fmt: skip
    """Add the sends of whole blocks on straight paths, each rank's in the order of the ranks behind it; 0, or FULL.

    A block goes over the link from its source to its goal. If there is none, it goes over a link from its source to
    another rank of the goal's node, and is passed on inside that node. If its source has no such link either, it is
    first sent to the first rank of the source's node that has one.

    Args:
        size: Bytes from each position to each position.
        k: Number of positions.
        n: Number of nodes.
        node_of: Columns of `GroupShape`, as the following ones up to `enters`.
        between: Column.
        leaves: Column.
        enters: Column.
        alpha: α of each link in µs.
        link_us: Time of a byte on each link in µs.
        rank_at: Workspace of 2 k numbers, float64.
        chunk_source: Columns of chunks and rows, as for `cut`.
        chunk_goal: Column.
        chunk_offset: Column.
        chunk_bytes: Column.
        row_chunk: Column.
        row_link: Column.
        row_step: Column.
        row_key: Column.
        state: Numbers of chunks and rows so far, to be changed.
    """
    chunks, rows = state[CHUNKS], state[ROWS]
    most_chunks, most_rows = len(chunk_source), len(row_chunk) - 3
    for i in range(2 * k):
        rank_at[i] = 0.0
    for turn in range(1, k):
        for i in range(k):
            j = (i + turn) % k
            nbytes = size[i * k + j]
            if nbytes == 0:
                continue
            if chunks == most_chunks or rows >= most_rows:
                return FULL
            chunk_source[chunks], chunk_goal[chunks] = i, j
            chunk_offset[chunks], chunk_bytes[chunks] = 0, nbytes
            out, into = i, j
            if between[i * k + j] == NO_LINK:
                out, into = leaves[i * n + node_of[j]], enters[i * n + node_of[j]]
                if between[out * k + j] != NO_LINK:
                    into = j
            at, step = 0.0, 0
            for hop in range(3):
                source, goal = (i, out) if hop == 0 else (out, into) if hop == 1 else (into, j)
                if source != goal:
                    link = between[source * k + goal]
                    # Ports inside nodes and NICs are busy at the same time.
                    port = source if node_of[source] == node_of[goal] else k + source
                    starts = max(at, rank_at[port])
                    row_chunk[rows], row_link[rows], row_step[rows], row_key[rows] = chunks, link, step, starts
                    step += 1
                    rank_at[port] = starts + nbytes * link_us[link]
                    at = rank_at[port] + alpha[link]
                    rows += 1
            chunks += 1
    state[CHUNKS], state[ROWS] = chunks, rows
    return 0
