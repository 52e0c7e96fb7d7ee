"""What the lanes between nodes carry, and when."""

from __future__ import annotations

from typing import Any

from synth.engines.skewed.columns import CHUNKS, FULL, ROWS

_EARLY = 0.5  # Relays into a NIC should start at this part of the time at which the NIC needs them.
# The lengths of relayed chunks, where the span is the time until all lanes have ended.
_FINEST = 96  # A chunk at the begin or the end of the span takes at least 1/96 of it,
_LEAST_US = 4.0  # and at least 4 µs, as each has a latency.
_LONG = 16  # A chunk takes at most 1/16 of the span if its source and goal are idle for much of it.
_SHORT = 48  # A chunk of a busy source or goal takes at most 1/48 of the span.
_BUSY = 0.6  # A rank is busy if it sends or receives for more than this part of the span.


def split(  # A loop that Numba compiles takes columns, however many.
    k: int, n: int, node_ptr: Any, node_rank: Any, nic_of: Any, nic_ptr: Any, nic_rank: Any, lane_ptr: Any,
    lane_from: Any, lane_to: Any, lane_end: Any, lane_ticks: Any, lane_flow: Any, to_node: Any, pair_bytes: Any,
    cell: Any, left: Any, row_left: Any, first: Any, lane_left: Any, piece_source: Any, piece_goal: Any,
    piece_lane: Any, piece_bytes: Any,
) -> int:  # fmt: skip
    """Split what each node sends to each other node over the lanes between them; return the number of pieces, or FULL.

    Every lane gets its share of the bytes: first those of the ranks at its first NIC, then those of other ranks that
    have more than their own lanes carry. So only the excess of ranks that send more than others is relayed before it
    leaves the node, as in FAST (arXiv 2505.09764, section 4.1). Of a rank's blocks those for the ranks at the lane's
    last NIC come last, since nothing is relayed behind them.

    Args:
        k: Number of positions.
        n: Number of nodes.
        node_ptr: Columns of `GroupShape`, as the following ones up to `lane_flow`.
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
        pair_bytes: Bytes from node to node.
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
            total = pair_bytes[a * n + b]
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
                        indirect = amount - direct
                        # Ranks begin with different goals, so that not all data are relayed to the same rank at once.
                        turn, leading = first[i], True
                        y = (i + 1 + turn) % ngoals
                        while indirect > 0:
                            j = node_rank[goals + y]
                            turn += 1
                            y = y + 1 if y + 1 < ngoals else 0
                            bytes_left = left[i * k + j]
                            if bytes_left > 0 and nic_of[j] != into:
                                take = min(bytes_left, indirect)
                                piece_source[count], piece_goal[count] = i, j
                                piece_lane[count], piece_bytes[count] = lane, take
                                count += 1
                                left[i * k + j] = bytes_left - take
                                indirect -= take
                                bytes_left -= take
                            leading = leading and bytes_left == 0
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


def set_segments(
    flows: int, segments: int, seg_flow: Any, begin: Any, end: Any, ptr: Any, begin_by_flow: Any, end_by_flow: Any
) -> None:
    """Sort segments by flow; those of one flow keep their order.

    Args:
        flows: Number of flows.
        segments: Number of segments.
        seg_flow: Flow of each segment.
        begin: Tick at which each begins.
        end: Tick at which each ends.
        ptr: First segment of each flow, to be set, shape (flows + 1,) or more.
        begin_by_flow: `begin` in the new order, to be set.
        end_by_flow: `end` in the new order, to be set.
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
        begin_by_flow[ptr[seg_flow[s]]], end_by_flow[ptr[seg_flow[s]]] = begin[s], end[s]


def cut(  # A loop that Numba compiles takes columns, however many.
    k: int, wide: Any, nic_of: Any, lane_from: Any, lane_to: Any, lane_source: Any, lane_goal: Any, lane_ticks: Any,
    lane_flow: Any, between: Any, alpha: Any, span: int, tick_us: float, seg_ptr: Any, seg_begin: Any, seg_end: Any,
    lane_seg: Any, lane_at: Any, pieces: int, piece_source: Any, piece_goal: Any, piece_lane: Any, piece_bytes: Any,
    sent: Any, link_us: Any, rank_bytes: Any, rank_us: Any, longest: Any, port_us: Any, chunk_source: Any,
    chunk_goal: Any, chunk_offset: Any, chunk_bytes: Any, row_chunk: Any, row_link: Any, row_step: Any, row_key: Any,
    state: Any,
) -> int:  # fmt: skip
    """Cut the pieces of all lanes at the ends of their segments, and add the sends of every chunk; return 0, or FULL.

    Chunks that are relayed before a lane are short near the begin, and those that are relayed behind it near the end,
    so that little time passes before all NICs send and after they end.

    Args:
        k: Number of positions.
        wide: The same number, unsigned.
        nic_of: Columns of `GroupShape`, as the following ones up to `between`.
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
        rank_bytes: Bytes out of and into each position.
        rank_us: Column of `GroupShape`.
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
        is_busy = rank_bytes[port] * rank_us[port] > _BUSY * span * tick_us
        longest[port] = max(finest, span // (_SHORT if is_busy else _LONG))
    for lane in range(len(lane_from)):
        lane_seg[lane] = seg_ptr[lane_flow[lane]]
        lane_at[lane] = seg_begin[lane_seg[lane]] if lane_seg[lane] < seg_ptr[lane_flow[lane] + 1] else 0
    for piece in range(pieces):
        i, j, lane, remaining = piece_source[piece], piece_goal[piece], piece_lane[piece], piece_bytes[piece]
        source = i if nic_of[i] == lane_from[lane] else lane_source[lane]
        goal = j if nic_of[j] == lane_to[lane] else lane_goal[lane]
        link, last, ticks = between[source * wide + goal], seg_ptr[lane_flow[lane] + 1] - 1, lane_ticks[lane]
        at, seg, offset, per_tick = lane_at[lane], lane_seg[lane], sent[i * wide + j], 1.0 / ticks
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
                nbytes = min(nbytes, int(min(longest[wide + j], max(finest, (span - at) >> 1)) * per_tick) + 1)
            if chunks == most_chunks or rows >= most_rows:
                return FULL
            chunk_source[chunks], chunk_goal[chunks] = i, j
            chunk_offset[chunks], chunk_bytes[chunks] = offset, nbytes
            offset += nbytes
            remaining -= nbytes
            starts, step = at * tick_us, 0
            at += int(nbytes * ticks)
            if source != i:
                relay = between[i * wide + source]
                row_chunk[rows], row_link[rows], row_step[rows], row_key[rows] = chunks, relay, 0, starts * _EARLY
                port_us[i] += nbytes * link_us[relay]
                port_us[wide + source] += nbytes * link_us[relay]
                rows += 1
                step = 1
            row_chunk[rows], row_link[rows], row_step[rows], row_key[rows] = chunks, link, step, starts
            rows += 1
            if goal != j:
                relay, starts = between[goal * wide + j], at * tick_us + alpha[link]
                row_chunk[rows], row_link[rows], row_step[rows], row_key[rows] = chunks, relay, step + 1, starts
                port_us[goal] += nbytes * link_us[relay]
                port_us[wide + j] += nbytes * link_us[relay]
                rows += 1
            chunks += 1
        lane_at[lane], lane_seg[lane], sent[i * wide + j] = at, seg, offset
    state[CHUNKS], state[ROWS] = chunks, rows
    return 0
