"""The sends of blocks whose source and destination are in one node."""

from __future__ import annotations

from typing import Any

from synth.engines.skewed.columns import CHUNKS, FULL, ROWS
from synth.engines.skewed.rounds import add_rounds, largest_line

_BUSIEST = 0.95  # Relays are taken to leave at least the rest of a port's time to other sends.
_LIGHT = 0.3  # Traffic inside a node is light if it takes at most this part of the time of the traffic between nodes.
_PARTS = 24  # A chunk inside a node takes at most 1/24 of that time, so that it does not delay relays.


def add_inner(  # A loop that Numba compiles takes columns, however many.
    size: Any, k: int, members: int, base: int, node_rank: Any, between: Any, link_us: Any, has_ports: bool,
    outer_us: float, port_us: Any, filled: Any, cell: Any, seg_flow: Any, seg_begin: Any, seg_end: Any, padded: Any,
    real: Any, match: Any, owner: Any, since: Any, queue: Any, came: Any, sent: Any, chunk_source: Any, chunk_goal: Any,
    chunk_offset: Any, chunk_bytes: Any, row_chunk: Any, row_link: Any, row_step: Any, row_key: Any, state: Any,
) -> int:  # fmt: skip
    """Add the sends inside one node; return 0, or FULL where a column has too little room.

    The sends go in rounds if ranks share ports and the busiest port needs more than `_LIGHT` of the time of the traffic
    between nodes. Else each rank sends to the ranks behind it in their order. A send is planned as early as relays
    leave time at its two ports.

    Args:
        size: Bytes from each position to each position.
        k: Number of positions.
        members: Number of positions in the node.
        base: Its first entry in `node_rank`.
        node_rank: Column of `GroupShape`, as `between`.
        between: Column.
        link_us: Time of a byte on each link in µs.
        has_ports: Whether links inside nodes share ports.
        outer_us: Time in µs of the traffic between nodes.
        port_us: Time in µs for which relays keep ports busy, as `cut` sets it. Those of this node are overwritten, each
            by the factor by which relays slow the port's other sends.
        filled: Workspace of 2 k numbers, float64.
        cell: Workspace of members² numbers.
        seg_flow: Workspace for segments, as the following ones; see `add_rounds`.
        seg_begin: Workspace.
        seg_end: Workspace.
        padded: Workspace.
        real: Workspace.
        match: Workspace.
        owner: Workspace.
        since: Workspace.
        queue: Workspace.
        came: Workspace.
        sent: Bytes of each block that are in chunks, to be changed; 0 for blocks inside nodes.
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
    most = min(len(chunk_source) - chunks, len(row_chunk) - 3 - rows)
    byte_us, total = 0.0, 0
    for x in range(members):
        i = node_rank[base + x]
        for side in range(2):
            port = side * k + i
            # A port that relays use for part u of the time has 1 - u for other sends, which take 1 / (1 - u) as long;
            # `filled` is the time up to which its sends are planned.
            filled[port] = 0.0
            busy = port_us[port] / outer_us if outer_us > 0.0 and has_ports else 0.0
            port_us[port] = 1.0 / (1.0 - min(busy, _BUSIEST))
        for y in range(members):
            j = node_rank[base + y]
            nbytes = size[i * k + j] if x != y else 0
            cell[x * members + y] = nbytes
            if nbytes > 0:
                total += nbytes
                byte_us = max(byte_us, link_us[between[i * k + j]])
    if total == 0:
        return 0
    count = 0
    if has_ports and largest_line(cell, 0, members) * byte_us > _LIGHT * outer_us:
        count = add_rounds(
            cell, 0, members, 0, 0, seg_flow, seg_begin, seg_end, padded, real, match, owner, since, queue, came
        )
        if count == FULL:
            return FULL
    else:
        for turn in range(1, members):
            for x in range(members):
                flow = x * members + (x + turn) % members
                if cell[flow] > 0:
                    seg_flow[count], seg_begin[count], seg_end[count] = flow, 0, cell[flow]
                    count += 1
    for s in range(count):
        x = seg_flow[s] // members
        i, j = node_rank[base + x], node_rank[base + seg_flow[s] - x * members]
        nbytes, block = seg_end[s] - seg_begin[s], i * k + j
        link, parts = between[block], 1
        if outer_us > 0.0:
            parts = min(1 + int(nbytes * link_us[link] * _PARTS / outer_us), 2 * _PARTS, nbytes)
        if parts > most:
            return FULL
        most -= parts
        begin, share = 0, nbytes if parts == 1 else nbytes // parts + 1
        while begin < nbytes:
            end = min(nbytes, begin + share)
            chunk_source[chunks], chunk_goal[chunks] = i, j
            chunk_offset[chunks], chunk_bytes[chunks] = sent[block], end - begin
            sent[block] += end - begin
            key = (seg_begin[s] + begin) * byte_us
            if has_ports:
                key = max(key, filled[i], filled[k + j])
                filled[i] = key + (end - begin) * link_us[link] * port_us[i]
                filled[k + j] = key + (end - begin) * link_us[link] * port_us[k + j]
            row_chunk[rows], row_link[rows], row_step[rows], row_key[rows] = chunks, link, 0, key
            begin = end
            chunks += 1
            rows += 1
    state[CHUNKS], state[ROWS] = chunks, rows
    return 0
