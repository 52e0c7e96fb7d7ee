"""The loops that plan an all-to-all of given sizes, in the form that `synth.model.compiled` takes.

They are plain Python over flat sequences, so that tests can interpret them. `emit/library/selection/static` has the
same steps in C.

A *piece* is what a lane carries of one block. A *chunk* is what is sent at once: a piece, or a part of it. A *row* is
a send of a chunk: into the rank of its lane's first NIC, over the lane, or from its last NIC to its goal. Rows are
sorted by a key, the time at which they should start, and then timed one after another as `synth.timing.simulate` times
a schedule.
"""

from __future__ import annotations

from typing import Any

from synth.engines.skewed.rounds import FULL, add_rounds, largest_line

BAD = -2  # What `set_loads` returns for a matrix that is no plan's matrix.
MOST_BYTES = 1 << 50  # of a block, so that sums stay exact
# Numbers of chunks and rows so far, in the state that loops hand on.
CHUNKS, ROWS = range(2)
TIME, BOUND = range(2)  # Places of the results in µs.
PLANNED, STRAIGHT = range(2)  # What `plan_into` returns, if not FULL or BAD: which of its outputs is faster.

_EQUAL = 1 + 1e-9  # Times that differ by this factor, by rounding only, count as equal.
_EARLY = 0.5  # Relays into a NIC should start at this part of the time at which the NIC needs them.
_BUSIEST = 0.95  # Relays are taken to leave at least the rest of a port's time to other sends.
_LIGHT = 0.3  # Traffic inside a node is light if it takes at most this part of that time.
_FINEST = 96  # Chunks that relays delay at the begin or the end take at least such a part of that time.
_LEAST_US = 4.0  # They also take at least so many µs, as each has a latency.
_LONG = 16  # Relayed chunks take at most such a part of it,
_SHORT = 48  # or such a part where their source or goal has much to send or to receive,
_BUSY = 0.6  # which keeps it busy for more than this part of the time.
_COARSEST = 24  # Chunks inside nodes take at most such a part of it, so that they do not delay relays.


def set_loads(size: Any, k: int, n: int, node_of: Any, to_node: Any, pair: Any, rank: Any) -> int:
    """Set the bytes from node to node and at each rank; return the number of bytes between ranks, or BAD.

    Args:
        size: Bytes from each position to each position, shape (k · k,).
        k: Number of positions.
        n: Number of nodes.
        node_of: Node of each position.
        to_node: Bytes from position i to node b at i · n + b, to be set, shape (k · n,); blocks of a rank to itself are
            not in it.
        pair: Bytes from node a to node b at a · n + b, to be set, shape (n · n,).
        rank: Bytes out of each position, then into each position, to be set, shape (2 · k,).
    """
    for i in range(n * n):
        pair[i] = 0
    for i in range(k * n):
        to_node[i] = 0
    for i in range(k):
        rank[k + i] = 0
    total = 0
    for i in range(k):
        row = i * n
        for j in range(k):
            nbytes = size[i * k + j]
            if nbytes < 0 or nbytes > MOST_BYTES:
                return BAD
            if i != j:
                rank[k + j] += nbytes
                to_node[row + node_of[j]] += nbytes
        here, at = 0, node_of[i] * n
        for b in range(n):
            here += to_node[row + b]
            pair[at + b] += to_node[row + b]
        rank[i] = here
        total += here
    return total


def bound_us(
    size: Any, k: int, n: int, pair: Any, rank: Any, rank_us: Any, rank_alpha: Any, node_us: Any, node_alpha: Any,
    least_us: Any, begins: float,
) -> float:  # fmt: skip
    """Return the time in µs that no schedule of these sizes can beat; see `Planner.bound`.

    Args:
        size: Bytes from each position to each position.
        k: Number of positions.
        n: Number of nodes.
        pair: Bytes from node to node, as `set_loads` sets them, as `rank`.
        rank: Bytes out of and into each position.
        rank_us: Columns of `Shape`, as the following ones.
        rank_alpha: Column.
        node_us: Column.
        node_alpha: Column.
        least_us: Column.
        begins: Time in µs before which nothing is sent.
    """
    best = 0.0
    for i in range(2 * k):
        if rank[i] > 0:
            best = max(best, rank[i] * rank_us[i] + rank_alpha[i])
    if n > 1:
        for a in range(n):
            out, into = 0, 0
            for b in range(n):
                if a != b:
                    out += pair[a * n + b]
                    into += pair[b * n + a]
            if out > 0:
                best = max(best, out * node_us[a] + node_alpha[a])
            if into > 0:
                best = max(best, into * node_us[n + a] + node_alpha[n + a])
    for i in range(k):
        for j in range(k):
            if i != j and size[i * k + j] > 0 and least_us[i * k + j] > best:
                best = least_us[i * k + j]
    return begins + best


def split(
    k: int, n: int, node_ptr: Any, node_rank: Any, nic_of: Any, nic_ptr: Any, nic_rank: Any, lane_ptr: Any,
    lane_from: Any, lane_to: Any, lane_end: Any, lane_ticks: Any, lane_flow: Any, to_node: Any, pair: Any, cell: Any,
    left: Any, row_left: Any, first: Any, lane_left: Any, piece_source: Any, piece_goal: Any, piece_lane: Any,
    piece_bytes: Any,
) -> int:  # fmt: skip
    """Split what each node sends to each other node over the lanes between them; return the number of pieces, or FULL.

    Every lane gets its share of the bytes: first those of the ranks at its first NIC, then what other ranks have too
    much of. So only the excess of ranks that send more than others is relayed before it leaves the node, as in FAST
    (arXiv 2505.09764, section 4.1). Of a rank's blocks those for the ranks at the lane's last NIC come last, since
    nothing is relayed behind them.

    Args:
        k: Number of positions.
        n: Number of nodes.
        node_ptr: Columns of `Shape`, as the following ones up to `lane_flow`.
        node_rank: Column.
        nic_of: Column.
        nic_ptr: Column.
        nic_rank: Column.
        lane_ptr: Column.
        lane_from: Column.
        lane_to: Column.
        lane_end: Column.
        lane_ticks: Column.
        lane_flow: Column.
        to_node: Bytes from position to node.
        pair: Bytes from node to node.
        cell: Ticks of each flow, to be set to those of its largest lane; 0 before.
        left: Bytes of each block i · k + j that no lane has yet, to be changed; the sizes before.
        row_left: Workspace of k numbers, as `first`.
        first: Workspace.
        lane_left: Workspace of a number a lane.
        piece_source: Source of the block of each piece, to be set.
        piece_goal: Its goal, to be set.
        piece_lane: Lane of each piece, to be set.
        piece_bytes: Bytes of each piece, to be set.
    """
    count, room = 0, len(piece_source)
    for a in range(n):
        for b in range(n):
            total = pair[a * n + b]
            if a == b or total == 0:
                continue
            goals, ngoals = node_ptr[b], node_ptr[b + 1] - node_ptr[b]
            for x in range(node_ptr[a], node_ptr[a + 1]):
                i = node_rank[x]
                row_left[i], first[i] = to_node[i * n + b], 0
            begin = 0
            for lane in range(lane_ptr[a * n + b], lane_ptr[a * n + b + 1]):
                end = total if lane_end[lane] >= 1.0 else min(total, int(lane_end[lane] * total))
                lane_left[lane] = end - begin
                ticks = int((end - begin) * lane_ticks[lane])
                if ticks < (end - begin) * lane_ticks[lane]:
                    ticks += 1
                cell[lane_flow[lane]] = max(cell[lane_flow[lane]], ticks)
                begin = end
            for relayed in range(2):
                for lane in range(lane_ptr[a * n + b], lane_ptr[a * n + b + 1]):
                    if lane_left[lane] == 0:
                        continue
                    into, low, high = lane_to[lane], nic_ptr[lane_from[lane]], nic_ptr[lane_from[lane] + 1]
                    if relayed:
                        low, high = node_ptr[a], node_ptr[a + 1]
                    for x in range(low, high):
                        i = node_rank[x] if relayed else nic_rank[x]
                        amount = min(row_left[i], lane_left[lane])
                        if amount == 0:
                            continue
                        if count + ngoals >= room:
                            return FULL
                        row_left[i] -= amount
                        lane_left[lane] -= amount
                        direct = 0
                        for y in range(nic_ptr[into], nic_ptr[into + 1]):
                            direct += left[i * k + nic_rank[y]]
                        direct = min(direct, amount)
                        other = amount - direct
                        # Ranks begin with different goals, so that not all data are relayed to the same rank at once.
                        turn, leading = first[i], True
                        y = (i + 1 + turn) % ngoals
                        while other > 0:
                            j = node_rank[goals + y]
                            turn += 1
                            y = y + 1 if y + 1 < ngoals else 0
                            here = left[i * k + j]
                            if here > 0 and nic_of[j] != into:
                                take = min(here, other)
                                piece_source[count], piece_goal[count] = i, j
                                piece_lane[count], piece_bytes[count] = lane, take
                                count += 1
                                left[i * k + j] = here - take
                                other -= take
                                here -= take
                            leading = leading and here == 0
                            if leading:
                                first[i] = turn
                        for y in range(nic_ptr[into], nic_ptr[into + 1]):
                            j = nic_rank[y]
                            take = min(left[i * k + j], direct)
                            if take > 0:
                                piece_source[count], piece_goal[count] = i, j
                                piece_lane[count], piece_bytes[count] = lane, take
                                count += 1
                                left[i * k + j] -= take
                                direct -= take
    return count


def cut(
    k: int, nic_of: Any, lane_from: Any, lane_to: Any, lane_source: Any, lane_goal: Any, lane_ticks: Any,
    lane_flow: Any, between: Any, alpha: Any, span: int, tick_us: float, seg_ptr: Any, seg_begin: Any, seg_end: Any,
    lane_seg: Any, lane_at: Any, pieces: int, piece_source: Any, piece_goal: Any, piece_lane: Any, piece_bytes: Any,
    sent: Any,
    link_us: Any, rank: Any, rank_us: Any, longest: Any, port_us: Any, chunk_source: Any, chunk_goal: Any, chunk_offset: Any, chunk_bytes: Any, row_chunk: Any, row_link: Any, row_step: Any,
    row_key: Any, state: Any,
) -> int:  # fmt: skip
    """Cut the pieces of all lanes at the ends of their segments, and add the sends of every chunk; 0, or FULL.

    Chunks that are relayed before a lane are short near the begin, and those that are relayed behind it near the end,
    so that little time passes before all NICs send and after they end.

    Args:
        k: Number of positions.
        nic_of: Columns of `Shape`, as the following ones up to `between`.
        lane_from: Column.
        lane_to: Column.
        lane_source: Column.
        lane_goal: Column.
        lane_ticks: Column.
        lane_flow: Column.
        between: Column.
        alpha: α of each link in µs.
        span: Ticks until all lanes have ended.
        tick_us: Length of a tick in µs.
        seg_ptr: First segment of each flow.
        seg_begin: Tick at which each segment begins, rising in each flow.
        seg_end: Tick at which it ends.
        lane_seg: Workspace of a number a lane.
        lane_at: Workspace of a number a lane.
        pieces: Number of pieces.
        piece_source: Source of the block of each piece.
        piece_goal: Its goal.
        piece_lane: Lane of each piece.
        piece_bytes: Bytes of each piece.
        sent: Bytes of each block that are in chunks, to be changed.
        link_us: Time of a byte on each link in µs.
        rank: Bytes out of and into each position.
        rank_us: Column of `Shape`.
        longest: Workspace of 2 k numbers.
        port_us: Time in µs for which relays keep each position's port busy that leads to others of its node, then each
            position's port that they lead to, to be set, shape (2 · k,).
        chunk_source: Source of the block of each chunk, to be appended to.
        chunk_goal: Its goal, to be appended to.
        chunk_offset: First byte in the block of each chunk, to be appended to.
        chunk_bytes: Bytes of each chunk, to be appended to.
        row_chunk: Chunk of each row, to be appended to.
        row_link: Link of each row, to be appended to.
        row_step: Number of rows of its chunk before it, to be appended to.
        row_key: Time in µs for which each row is planned, to be appended to.
        state: Numbers of chunks and rows so far, to be changed.
    """
    chunks, rows = state[CHUNKS], state[ROWS]
    most_chunks, most_rows = len(chunk_source), len(row_chunk) - 3
    finest = max(span // _FINEST, int(_LEAST_US / tick_us), 1)
    for port in range(2 * k):
        port_us[port] = 0.0
        is_busy = rank[port] * rank_us[port] > _BUSY * span * tick_us
        longest[port] = max(finest, span // (_SHORT if is_busy else _LONG))
    for lane in range(len(lane_from)):
        lane_seg[lane] = seg_ptr[lane_flow[lane]]
        lane_at[lane] = seg_begin[lane_seg[lane]] if lane_seg[lane] < seg_ptr[lane_flow[lane] + 1] else 0
    for piece in range(pieces):
        i, j, lane, remaining = piece_source[piece], piece_goal[piece], piece_lane[piece], piece_bytes[piece]
        source = i if nic_of[i] == lane_from[lane] else lane_source[lane]
        goal = j if nic_of[j] == lane_to[lane] else lane_goal[lane]
        link, last, ticks = between[source * k + goal], seg_ptr[lane_flow[lane] + 1] - 1, lane_ticks[lane]
        at, seg, offset, per_tick = lane_at[lane], lane_seg[lane], sent[i * k + j], 1.0 / ticks
        while remaining > 0:
            nbytes = remaining
            if seg < last:
                room = int((seg_end[seg] - at) * per_tick)
                if room == 0:
                    seg += 1
                    at = seg_begin[seg]
                    continue
                nbytes = min(nbytes, room)
            if source != i:
                nbytes = min(nbytes, int(min(longest[i], max(finest, at >> 1)) * per_tick) + 1)
            if goal != j:
                nbytes = min(nbytes, int(min(longest[k + j], max(finest, (span - at) >> 1)) * per_tick) + 1)
            if chunks == most_chunks or rows >= most_rows:
                return FULL
            chunk_source[chunks], chunk_goal[chunks] = i, j
            chunk_offset[chunks], chunk_bytes[chunks] = offset, nbytes
            offset += nbytes
            remaining -= nbytes
            starts, step = at * tick_us, 0
            at += int(nbytes * ticks)
            if source != i:
                relay = between[i * k + source]
                row_chunk[rows], row_link[rows], row_step[rows], row_key[rows] = chunks, relay, 0, starts * _EARLY
                port_us[i] += nbytes * link_us[relay]
                port_us[k + source] += nbytes * link_us[relay]
                rows += 1
                step = 1
            row_chunk[rows], row_link[rows], row_step[rows], row_key[rows] = chunks, link, step, starts
            rows += 1
            if goal != j:
                relay, starts = between[goal * k + j], at * tick_us + alpha[link]
                row_chunk[rows], row_link[rows], row_step[rows], row_key[rows] = chunks, relay, step + 1, starts
                port_us[goal] += nbytes * link_us[relay]
                port_us[k + j] += nbytes * link_us[relay]
                rows += 1
            chunks += 1
        lane_at[lane], lane_seg[lane], sent[i * k + j] = at, seg, offset
    state[CHUNKS], state[ROWS] = chunks, rows
    return 0


def set_segments(flows: int, segments: int, seg_flow: Any, begin: Any, end: Any, ptr: Any, to: Any, until: Any) -> None:
    """Sort segments by flow, those of a flow by time as they were.

    Args:
        flows: Number of flows.
        segments: Number of segments.
        seg_flow: Flow of each segment.
        begin: Tick at which each begins.
        end: Tick at which each ends.
        ptr: First segment of each flow, to be set, shape (flows + 1,) or more.
        to: `begin` in the new order, to be set.
        until: `end` in the new order, to be set.
    """
    for f in range(flows + 1):
        ptr[f] = 0
    for s in range(segments):
        ptr[seg_flow[s]] += 1
    total = 0
    for f in range(flows):
        total += ptr[f]
        ptr[f] = total
    ptr[flows] = total
    for x in range(segments):
        s = segments - 1 - x
        ptr[seg_flow[s]] -= 1
        to[ptr[seg_flow[s]]], until[ptr[seg_flow[s]]] = begin[s], end[s]


def add_inner(
    size: Any, k: int, members: int, base: int, node_rank: Any, between: Any, link_us: Any, has_ports: bool,
    outer_us: float, port_us: Any, filled: Any, cell: Any, seg_flow: Any, seg_begin: Any, seg_end: Any, padded: Any,
    real: Any, match: Any, owner: Any, since: Any, queue: Any, came: Any, sent: Any, chunk_source: Any, chunk_goal: Any,
    chunk_offset: Any, chunk_bytes: Any, row_chunk: Any, row_link: Any, row_step: Any, row_key: Any, state: Any,
) -> int:  # fmt: skip
    """Add the sends inside one node; 0, or FULL.

    Where they take long beside the traffic between nodes and ranks share ports, they go in rounds. Else rank i sends to
    the ranks behind it in their order. They are planned as early as relays leave time at their ports.

    Args:
        size: Bytes from each position to each position.
        k: Number of positions.
        members: Number of positions in the node.
        base: Its first entry in `node_rank`.
        node_rank: Column of `Shape`, as `between`.
        between: Column.
        link_us: Time of a byte on each link in µs.
        has_ports: Whether links inside nodes share ports.
        outer_us: Time in µs of the traffic between nodes.
        port_us: Time in µs for which relays keep ports busy, as `cut` sets it.
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
        for port in (i, k + i):
            # A port that relays use for part u of the time has the rest for other sends; filled is how far it is used.
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
            parts = min(1 + int(nbytes * link_us[link] * _COARSEST / outer_us), 2 * _COARSEST, nbytes)
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


def add_straight(
    size: Any, k: int, n: int, node_of: Any, between: Any, leaves: Any, enters: Any, alpha: Any, link_us: Any,
    rank_at: Any, chunk_source: Any, chunk_goal: Any, chunk_offset: Any, chunk_bytes: Any, row_chunk: Any, row_link: Any, row_step: Any, row_key: Any,
    state: Any,
) -> int:  # fmt: skip
    """Add the sends of whole blocks on straight paths, each rank's in the order of the ranks behind it; 0, or FULL.

    A block goes over the link from its source to its goal. Without one it leaves at its source's own rail and is passed
    on inside the node of its goal, or else it takes the first rail that the two nodes share.

    Args:
        size: Bytes from each position to each position.
        k: Number of positions.
        n: Number of nodes.
        node_of: Columns of `Shape`, as the following ones up to `enters` (`exit` and `entry`).
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
            if between[i * k + j] < 0:
                out, into = leaves[i * n + node_of[j]], enters[i * n + node_of[j]]
                if between[out * k + j] >= 0:
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


def straight_limit_us(
    k: int, n: int, leaves: Any, enters: Any, straight_us: Any, to_node: Any, rank_at: Any, begins: float
) -> float:
    """Return a time in µs that straight paths cannot beat: how long they keep the busiest NIC busy.

    Args:
        k: Number of positions.
        n: Number of nodes.
        leaves: Column `exit` of `Shape`.
        enters: Column `entry` of `Shape`.
        straight_us: Column of `Shape`.
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


def sort_rows(rows: int, row_key: Any, buckets: int, bucket_ptr: Any, row_bucket: Any, sorted_key: Any, order: Any) -> None:
    """Set the order of the rows by their keys; rows of equal keys stay as they are.

    Rows are sorted into buckets of equal width, and then by insertion, which moves few of them.

    Args:
        rows: Number of rows.
        row_key: Key of each row, 0 or more.
        buckets: Number of buckets.
        bucket_ptr: Workspace of `buckets` numbers.
        row_bucket: Workspace of a number a row.
        sorted_key: Workspace of a number a row, float64.
        order: Rows in their order, to be set.
    """
    most = 0.0
    for row in range(rows):
        most = max(most, row_key[row])
    scale = (buckets - 1) / most if most > 0.0 else 0.0
    for b in range(buckets):
        bucket_ptr[b] = 0
    for row in range(rows):
        b = int(row_key[row] * scale)
        row_bucket[row] = b
        bucket_ptr[b] += 1
    total = 0
    for b in range(buckets):
        count = bucket_ptr[b]
        bucket_ptr[b] = total
        total += count
    for row in range(rows):
        x = bucket_ptr[row_bucket[row]]
        order[x], sorted_key[x] = row, row_key[row]
        bucket_ptr[row_bucket[row]] += 1
    for x in range(1, rows):
        key, row = sorted_key[x], order[x]
        y = x
        while y > 0 and sorted_key[y - 1] > key:
            sorted_key[y], order[y] = sorted_key[y - 1], order[y - 1]
            y -= 1
        sorted_key[y], order[y] = key, row


def set_times(
    rows: int, chunks: int, order: Any, row_chunk: Any, row_link: Any, chunk_bytes: Any, alpha: Any, link_us: Any,
    row_step: Any, gap: Any, port: Any, begins: float, ready: Any, free: Any, send_chunk: Any, send_link: Any,
    send_step: Any, send_start: Any,
) -> float:  # fmt: skip
    """Time the rows in their order, and set the columns of the sends; return the time in µs of the last arrival.

    A row starts when its chunk has arrived at its source and all resources of its link are free of the rows before it.

    Args:
        rows: Number of rows.
        chunks: Number of chunks.
        order: Rows in their order; those of a chunk in the order of its path.
        row_chunk: Chunk of each row.
        row_link: Link of each row.
        chunk_bytes: Bytes of each chunk.
        alpha: α of each link in µs.
        link_us: Time of a byte on each link in µs.
        row_step: Number of rows of its chunk before each row.
        gap: Time in µs for which each link's resources stay busy after a send.
        port: The two resources of each link, shape (2 · links,).
        begins: Time in µs before which nothing is sent.
        ready: Workspace of a number a chunk, float64.
        free: Workspace of a number a resource, float64.
        send_chunk: Chunk of each send, to be set, as the following ones.
        send_link: Link.
        send_step: Number of sends of its chunk before it.
        send_start: Time in µs at which it takes its link.
    """
    last = 0.0
    for c in range(chunks):
        ready[c] = begins
    for r in range(len(free)):
        free[r] = 0.0
    for x in range(rows):
        row = order[x]
        c, link = row_chunk[row], row_link[row]
        first, second = port[2 * link], port[2 * link + 1]
        start = max(ready[c], free[first], free[second])
        end = start + chunk_bytes[c] * link_us[link]
        free[first] = free[second] = end + gap[link]
        ready[c] = end + alpha[link]
        last = max(last, ready[c])
        send_chunk[x], send_link[x], send_step[x], send_start[x] = c, link, row_step[row], start
    return last


def plan_into(
    size: Any, k: int, n: int, begins: float, tick_us: float, has_ports: bool, shape: Any, links: Any, work: Any,
    planned: Any, straight: Any, state: Any, straight_state: Any, results: Any,
) -> int:  # fmt: skip
    """Plan an all-to-all; return PLANNED, STRAIGHT, FULL where an output has too little room, or BAD for bad sizes.

    Args:
        size: Bytes from each position to each position, shape (k · k,).
        k: Number of positions.
        n: Number of nodes.
        begins: Time in µs before which nothing is sent.
        tick_us: Length of a tick in µs.
        has_ports: Whether links inside nodes share ports.
        shape: Columns of `Shape`, as `Planner` makes them.
        links: Columns of the links, as `Planner` makes them.
        work: Workspace, as `Planner` makes it.
        planned: Outputs for the plan.
        straight: Outputs for straight paths.
        state: Numbers of chunks and rows of the plan, to be set.
        straight_state: The same of straight paths.
        results: Time of the faster one and bound, in µs, to be set.
    """
    (
        node_of, node_ptr, node_rank, nic_of, nic_ptr, nic_rank, between, lane_ptr, lane_from, lane_to, lane_source,
        lane_goal, lane_end, lane_ticks, lane_flow, part_ports, part_base, leaves, enters, rank_us, rank_alpha, node_us,
        node_alpha, least_us, straight_us,
    ) = shape  # fmt: skip
    alpha, link_us, gap, port = links
    (
        to_node, pair, rank, cell, left, sent, row_left, first, lane_left, lane_seg, lane_at, piece_source, piece_goal,
        piece_lane, piece_bytes, seg_flow, seg_begin, seg_end, seg_ptr, flow_begin, flow_end, padded, real, match, owner, since,
        queue, came, row_chunk, row_link, row_step, row_key, row_bucket, order, bucket_ptr, ready, free, rank_at, filled, longest,
        sorted_key,
    ) = work  # fmt: skip
    chunk_source, chunk_goal, chunk_offset, chunk_bytes, send_chunk, send_link, send_step, send_start = planned
    state[CHUNKS] = state[ROWS] = straight_state[CHUNKS] = straight_state[ROWS] = 0
    results[TIME] = results[BOUND] = 0.0
    total = set_loads(size, k, n, node_of, to_node, pair, rank)
    if total <= 0:
        return PLANNED if total == 0 else BAD
    results[BOUND] = bound_us(size, k, n, pair, rank, rank_us, rank_alpha, node_us, node_alpha, least_us, begins)
    span = 0
    for block in range(k * k):
        left[block], sent[block] = size[block], 0
    if n > 1:
        flows = part_base[len(part_ports)]
        for f in range(flows):
            cell[f] = 0
        pieces = split(
            k, n, node_ptr, node_rank, nic_of, nic_ptr, nic_rank, lane_ptr, lane_from, lane_to, lane_end,
            lane_ticks, lane_flow, to_node, pair, cell, left, row_left, first, lane_left, piece_source, piece_goal,
            piece_lane, piece_bytes,
        )  # fmt: skip
        if pieces == FULL:
            return FULL
        segments = 0
        for part in range(len(part_ports)):
            base, ports = part_base[part], part_ports[part]
            span = max(span, largest_line(cell, base, ports))
            segments = add_rounds(
                cell, base, ports, base, segments, seg_flow, seg_begin, seg_end, padded, real, match, owner, since,
                queue, came,
            )  # fmt: skip
            if segments == FULL:
                return FULL
        set_segments(flows, segments, seg_flow, seg_begin, seg_end, seg_ptr, flow_begin, flow_end)
        if cut(
            k, nic_of, lane_from, lane_to, lane_source, lane_goal, lane_ticks, lane_flow, between, alpha, span, tick_us,
            seg_ptr, flow_begin, flow_end, lane_seg, lane_at, pieces, piece_source, piece_goal, piece_lane, piece_bytes, sent,
            link_us, rank, rank_us, longest, rank_at, chunk_source, chunk_goal, chunk_offset, chunk_bytes, row_chunk, row_link, row_step, row_key, state,
        ) == FULL:  # fmt: skip
            return FULL
    for node in range(n):
        if add_inner(
            size, k, node_ptr[node + 1] - node_ptr[node], node_ptr[node], node_rank, between, link_us, has_ports,
            span * tick_us, rank_at, filled, cell, seg_flow, seg_begin, seg_end, padded, real, match, owner, since,
            queue, came, sent, chunk_source, chunk_goal, chunk_offset, chunk_bytes, row_chunk, row_link, row_step, row_key, state,
        ) == FULL:  # fmt: skip
            return FULL
    sort_rows(state[ROWS], row_key, len(bucket_ptr), bucket_ptr, row_bucket, sorted_key, order)
    results[TIME] = set_times(
        state[ROWS], state[CHUNKS], order, row_chunk, row_link, chunk_bytes, alpha, link_us, row_step, gap, port,
        begins, ready, free, send_chunk, send_link, send_step, send_start,
    )  # fmt: skip
    limit = straight_limit_us(k, n, leaves, enters, straight_us, to_node, rank_at, begins)
    if results[TIME] <= max(limit, results[BOUND] * _EQUAL):
        return PLANNED
    time = plan_straight(size, k, n, begins, shape, links, work, straight, straight_state)
    if time == FULL:
        return FULL
    if time > results[TIME]:
        return PLANNED
    results[TIME] = time
    return STRAIGHT


def plan_straight(
    size: Any, k: int, n: int, begins: float, shape: Any, links: Any, work: Any, straight: Any, state: Any
) -> float:
    """Plan straight paths only; return their time in µs, or FULL where an output has too little room.

    Args:
        size: Bytes from each position to each position, checked.
        k: Number of positions.
        n: Number of nodes.
        begins: Time in µs before which nothing is sent.
        shape: As for `plan_into`, and so are the following ones.
        links: Columns of the links.
        work: Workspace.
        straight: Outputs.
        state: Numbers of chunks and rows, to be set.
    """
    (
        node_of, _, _, _, _, _, between, _, _, _, _, _, _, _, _, _, _, leaves, enters, _, _, _, _, _, _,
    ) = shape  # fmt: skip
    alpha, link_us, gap, port = links
    (
        _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, row_chunk, row_link,
        row_step, row_key, row_bucket, order, bucket_ptr, ready, free, rank_at, _, _, sorted_key,
    ) = work  # fmt: skip
    chunk_source, chunk_goal, chunk_offset, chunk_bytes, send_chunk, send_link, send_step, send_start = straight
    state[CHUNKS] = state[ROWS] = 0
    if add_straight(
        size, k, n, node_of, between, leaves, enters, alpha, link_us, rank_at, chunk_source, chunk_goal, chunk_offset,
        chunk_bytes, row_chunk, row_link, row_step, row_key, state,
    ) == FULL:  # fmt: skip
        return float(FULL)
    sort_rows(state[ROWS], row_key, len(bucket_ptr), bucket_ptr, row_bucket, sorted_key, order)
    return set_times(
        state[ROWS], state[CHUNKS], order, row_chunk, row_link, chunk_bytes, alpha, link_us, row_step, gap, port,
        begins, ready, free, send_chunk, send_link, send_step, send_start,
    )  # fmt: skip
