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

_EARLY = 0.5  # Relays into a NIC should start at this part of the time at which the NIC needs them.
_BUSIEST = 0.95  # Relays are taken to leave at least the rest of a port's time to other sends.
_LIGHT = 0.3  # Traffic inside a node is light if it takes at most this part of that time.
_FINEST = 96  # Chunks that relays delay at the begin or the end take at least such a part of that time.
_LEAST_US = 4.0  # They also take at least so many µs, as each has a latency.
_LONG = 16  # Relayed chunks take at most such a part of it,
_SHORT = 48  # or such a part where their source or goal has much to send or to receive,
_BUSY = 0.6  # which keeps it busy for more than this part of the time.
_COARSEST = 24  # Chunks inside nodes take at most such a part of it, so that they do not delay relays.


def set_loads(size: Any, k: int, n: int, node_of: Any, pair: Any, rank: Any) -> int:
    """Set the bytes from node to node and at each rank; return the number of bytes between ranks, or BAD.

    Args:
        size: Bytes from each position to each position, shape (k · k,).
        k: Number of positions.
        n: Number of nodes.
        node_of: Node of each position.
        pair: Bytes from node a to node b at a · n + b, to be set, shape (n · n,); blocks of a rank to itself are not in.
        rank: Bytes out of each position, then into each position, to be set, shape (2 · k,).
    """
    for i in range(n * n):
        pair[i] = 0
    for i in range(2 * k):
        rank[i] = 0
    total = 0
    for i in range(k):
        row, at = 0, node_of[i] * n
        for j in range(k):
            nbytes = size[i * k + j]
            if nbytes < 0 or nbytes > MOST_BYTES:
                return BAD
            if nbytes > 0 and i != j:
                row += nbytes
                rank[k + j] += nbytes
                pair[at + node_of[j]] += nbytes
        rank[i] = row
        total += row
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
    size: Any, k: int, n: int, node_ptr: Any, node_rank: Any, nic_of: Any, nic_ptr: Any, nic_rank: Any, lane_ptr: Any,
    lane_from: Any, lane_to: Any, lane_end: Any, lane_ticks: Any, lane_flow: Any, pair: Any, cell: Any, left: Any,
    row_left: Any, first: Any, lane_left: Any, piece_block: Any, piece_lane: Any, piece_bytes: Any,
) -> int:  # fmt: skip
    """Split what each node sends to each other node over the lanes between them; return the number of pieces, or FULL.

    Every lane gets its share of the bytes: first those of the ranks at its first NIC, then what other ranks have too
    much of. So only the excess of ranks that send more than others is relayed before it leaves the node, as in FAST
    (arXiv 2505.09764, section 4.1). Of a rank's blocks those for the ranks at the lane's last NIC come last, since
    nothing is relayed behind them.

    Args:
        size: Bytes from each position to each position.
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
        pair: Bytes from node to node.
        cell: Ticks of each flow, to be set to those of its largest lane; 0 before.
        left: Bytes of each block that no lane has yet, to be changed; `size` before.
        row_left: Workspace of k numbers, as `first`.
        first: Workspace.
        lane_left: Workspace of a number a lane.
        piece_block: Block i · k + j of each piece, to be set.
        piece_lane: Lane of each piece, to be set.
        piece_bytes: Bytes of each piece, to be set.
    """
    count, room = 0, len(piece_block)
    for a in range(n):
        for b in range(n):
            total = pair[a * n + b]
            if a == b or total == 0:
                continue
            goals, ngoals = node_ptr[b], node_ptr[b + 1] - node_ptr[b]
            for x in range(node_ptr[a], node_ptr[a + 1]):
                i, row = node_rank[x], 0
                for y in range(goals, goals + ngoals):
                    row += size[i * k + node_rank[y]]
                row_left[i] = row
                first[i] = 0
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
                        while other > 0:
                            j = node_rank[goals + (i + 1 + turn) % ngoals]
                            turn += 1
                            here = left[i * k + j]
                            if here > 0 and nic_of[j] != into:
                                take = min(here, other)
                                piece_block[count], piece_lane[count], piece_bytes[count] = i * k + j, lane, take
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
                                piece_block[count], piece_lane[count], piece_bytes[count] = i * k + j, lane, take
                                count += 1
                                left[i * k + j] -= take
                                direct -= take
    return count


def cut(
    k: int, nic_of: Any, lane_from: Any, lane_to: Any, lane_source: Any, lane_goal: Any, lane_ticks: Any,
    lane_flow: Any, between: Any, alpha: Any, span: int, tick_us: float, seg_ptr: Any, seg_begin: Any, seg_end: Any,
    lane_seg: Any, lane_at: Any, pieces: int, piece_block: Any, piece_lane: Any, piece_bytes: Any, sent: Any,
    link_us: Any, rank: Any, rank_us: Any, longest: Any, port_us: Any, chunk_block: Any, chunk_offset: Any, chunk_bytes: Any, row_chunk: Any, row_link: Any,
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
        piece_block: Block of each piece.
        piece_lane: Lane of each piece.
        piece_bytes: Bytes of each piece.
        sent: Bytes of each block that are in chunks, to be changed.
        link_us: Time of a byte on each link in µs.
        rank: Bytes out of and into each position.
        rank_us: Column of `Shape`.
        longest: Workspace of 2 k numbers.
        port_us: Time in µs for which relays keep each position's port busy that leads to others of its node, then each
            position's port that they lead to, to be set, shape (2 · k,).
        chunk_block: Block of each chunk, to be appended to.
        chunk_offset: First byte in the block of each chunk, to be appended to.
        chunk_bytes: Bytes of each chunk, to be appended to.
        row_chunk: Chunk of each row, to be appended to.
        row_link: Link of each row, to be appended to.
        row_key: Time in µs for which each row is planned, to be appended to.
        state: Numbers of chunks and rows so far, to be changed.
    """
    chunks, rows = state[CHUNKS], state[ROWS]
    most_chunks, most_rows = len(chunk_block), len(row_chunk) - 3
    finest = max(span // _FINEST, int(_LEAST_US / tick_us), 1)
    for port in range(2 * k):
        port_us[port] = 0.0
        is_busy = rank[port] * rank_us[port] > _BUSY * span * tick_us
        longest[port] = max(finest, span // (_SHORT if is_busy else _LONG))
    for lane in range(len(lane_from)):
        lane_seg[lane] = seg_ptr[lane_flow[lane]]
        lane_at[lane] = seg_begin[lane_seg[lane]] if lane_seg[lane] < seg_ptr[lane_flow[lane] + 1] else 0
    for piece in range(pieces):
        block, lane, remaining = piece_block[piece], piece_lane[piece], piece_bytes[piece]
        i, j = block // k, block % k
        source = i if nic_of[i] == lane_from[lane] else lane_source[lane]
        goal = j if nic_of[j] == lane_to[lane] else lane_goal[lane]
        link, last, ticks = between[source * k + goal], seg_ptr[lane_flow[lane] + 1] - 1, lane_ticks[lane]
        at, seg = lane_at[lane], lane_seg[lane]
        while remaining > 0:
            nbytes = remaining
            if seg < last:
                room = int((seg_end[seg] - at) / ticks)
                if room == 0:
                    seg += 1
                    at = seg_begin[seg]
                    continue
                nbytes = min(nbytes, room)
            if source != i:
                nbytes = min(nbytes, int(min(longest[i], max(finest, at // 2)) / ticks) + 1)
            if goal != j:
                nbytes = min(nbytes, int(min(longest[k + j], max(finest, (span - at) // 2)) / ticks) + 1)
            if chunks == most_chunks or rows >= most_rows:
                return FULL
            chunk_block[chunks], chunk_offset[chunks], chunk_bytes[chunks] = block, sent[block], nbytes
            sent[block] += nbytes
            remaining -= nbytes
            starts = at * tick_us
            at += int(nbytes * ticks)
            if source != i:
                row_chunk[rows], row_link[rows] = chunks, between[i * k + source]
                row_key[rows] = starts * _EARLY
                port_us[i] += nbytes * link_us[row_link[rows]]
                port_us[k + source] += nbytes * link_us[row_link[rows]]
                rows += 1
            row_chunk[rows], row_link[rows], row_key[rows] = chunks, link, starts
            rows += 1
            if goal != j:
                row_chunk[rows], row_link[rows] = chunks, between[goal * k + j]
                row_key[rows] = at * tick_us + alpha[link]
                port_us[goal] += nbytes * link_us[row_link[rows]]
                port_us[k + j] += nbytes * link_us[row_link[rows]]
                rows += 1
            chunks += 1
        lane_at[lane], lane_seg[lane] = at, seg
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
    real: Any, match: Any, owner: Any, since: Any, queue: Any, came: Any, sent: Any, chunk_block: Any,
    chunk_offset: Any, chunk_bytes: Any, row_chunk: Any, row_link: Any, row_key: Any, state: Any,
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
        chunk_block: Columns of chunks and rows, as for `cut`.
        chunk_offset: Column.
        chunk_bytes: Column.
        row_chunk: Column.
        row_link: Column.
        row_key: Column.
        state: Numbers of chunks and rows so far, to be changed.
    """
    chunks, rows = state[CHUNKS], state[ROWS]
    most = min(len(chunk_block) - chunks, len(row_chunk) - 3 - rows)
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
        i, j = node_rank[base + seg_flow[s] // members], node_rank[base + seg_flow[s] % members]
        nbytes, block = seg_end[s] - seg_begin[s], i * k + j
        link, parts = between[block], 1
        if outer_us > 0.0:
            parts = min(1 + int(nbytes * link_us[link] * _COARSEST / outer_us), 2 * _COARSEST, nbytes)
        if parts > most:
            return FULL
        most -= parts
        begin = 0
        for part in range(1, parts + 1):
            end = nbytes * part // parts
            chunk_block[chunks], chunk_offset[chunks], chunk_bytes[chunks] = block, sent[block], end - begin
            sent[block] += end - begin
            key = (seg_begin[s] + begin) * byte_us
            if has_ports:
                key = max(key, filled[i], filled[k + j])
                filled[i] = key + (end - begin) * link_us[link] * port_us[i]
                filled[k + j] = key + (end - begin) * link_us[link] * port_us[k + j]
            row_chunk[rows], row_link[rows], row_key[rows] = chunks, link, key
            begin = end
            chunks += 1
            rows += 1
    state[CHUNKS], state[ROWS] = chunks, rows
    return 0


def add_straight(
    size: Any, k: int, n: int, node_of: Any, between: Any, leaves: Any, enters: Any, alpha: Any, link_us: Any,
    rank_at: Any, chunk_block: Any, chunk_offset: Any, chunk_bytes: Any, row_chunk: Any, row_link: Any, row_key: Any,
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
        chunk_block: Columns of chunks and rows, as for `cut`.
        chunk_offset: Column.
        chunk_bytes: Column.
        row_chunk: Column.
        row_link: Column.
        row_key: Column.
        state: Numbers of chunks and rows so far, to be changed.
    """
    chunks, rows = state[CHUNKS], state[ROWS]
    most_chunks, most_rows = len(chunk_block), len(row_chunk) - 3
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
            chunk_block[chunks], chunk_offset[chunks], chunk_bytes[chunks] = i * k + j, 0, nbytes
            out, into = i, j
            if between[i * k + j] < 0:
                out, into = leaves[i * n + node_of[j]], enters[i * n + node_of[j]]
                if between[out * k + j] >= 0:
                    into = j
            at = 0.0
            for hop in range(3):
                source, goal = (i, out) if hop == 0 else (out, into) if hop == 1 else (into, j)
                if source != goal:
                    link = between[source * k + goal]
                    # Ports inside nodes and NICs are busy at the same time.
                    port = source if node_of[source] == node_of[goal] else k + source
                    starts = max(at, rank_at[port])
                    row_chunk[rows], row_link[rows], row_key[rows] = chunks, link, starts
                    rank_at[port] = starts + nbytes * link_us[link]
                    at = rank_at[port] + alpha[link]
                    rows += 1
            chunks += 1
    state[CHUNKS], state[ROWS] = chunks, rows
    return 0


def straight_limit_us(
    size: Any, k: int, n: int, node_of: Any, between: Any, leaves: Any, enters: Any, link_us: Any, uses_ptr: Any,
    uses: Any, free: Any, begins: float,
) -> float:  # fmt: skip
    """Return a time in µs that straight paths cannot beat: how long they keep the busiest resource busy.

    Args:
        size: Bytes from each position to each position.
        k: Number of positions.
        n: Number of nodes.
        node_of: Columns of `Shape`, as the following ones up to `enters` (`exit` and `entry`).
        between: Column.
        leaves: Column.
        enters: Column.
        link_us: Time of a byte on each link in µs.
        uses_ptr: First entry of each link in `uses`.
        uses: Resources of the links.
        free: Workspace of a number a resource, float64.
        begins: Time in µs before which nothing is sent.
    """
    for r in range(len(free)):
        free[r] = 0.0
    for i in range(k):
        for j in range(k):
            nbytes = size[i * k + j]
            if nbytes == 0 or i == j:
                continue
            out, into = i, j
            if between[i * k + j] < 0:
                out, into = leaves[i * n + node_of[j]], enters[i * n + node_of[j]]
                if between[out * k + j] >= 0:
                    into = j
            for hop in range(3):
                source, goal = (i, out) if hop == 0 else (out, into) if hop == 1 else (into, j)
                if source != goal:
                    link = between[source * k + goal]
                    for u in range(uses_ptr[link], uses_ptr[link + 1]):
                        free[uses[u]] += nbytes * link_us[link]
    most = 0.0
    for r in range(len(free)):
        most = max(most, free[r])
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
    gap: Any, uses_ptr: Any, uses: Any, begins: float, ready: Any, hops: Any, free: Any, send_chunk: Any,
    send_link: Any, send_step: Any, send_start: Any,
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
        gap: Time in µs for which each link's resources stay busy after a send.
        uses_ptr: First entry of each link in `uses`.
        uses: Resources of the links.
        begins: Time in µs before which nothing is sent.
        ready: Workspace of a number a chunk, float64.
        hops: Workspace of a number a chunk.
        free: Workspace of a number a resource, float64.
        send_chunk: Chunk of each send, to be set, as the following ones.
        send_link: Link.
        send_step: Number of sends of its chunk before it.
        send_start: Time in µs at which it takes its link.
    """
    last = 0.0
    for c in range(chunks):
        ready[c] = begins
        hops[c] = 0
    for r in range(len(free)):
        free[r] = 0.0
    for x in range(rows):
        row = order[x]
        c, link = row_chunk[row], row_link[row]
        start = ready[c]
        for u in range(uses_ptr[link], uses_ptr[link + 1]):
            start = max(start, free[uses[u]])
        end = start + chunk_bytes[c] * link_us[link]
        busy = end + gap[link]
        for u in range(uses_ptr[link], uses_ptr[link + 1]):
            free[uses[u]] = busy
        ready[c] = end + alpha[link]
        last = max(last, ready[c])
        send_chunk[x], send_link[x], send_step[x], send_start[x] = c, link, hops[c], start
        hops[c] += 1
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
        node_alpha, least_us,
    ) = shape  # fmt: skip
    alpha, link_us, gap, uses_ptr, uses = links
    (
        pair, rank, cell, left, sent, row_left, first, lane_left, lane_seg, lane_at, piece_block, piece_lane,
        piece_bytes, seg_flow, seg_begin, seg_end, seg_ptr, flow_begin, flow_end, padded, real, match, owner, since,
        queue, came, row_chunk, row_link, row_key, row_bucket, order, bucket_ptr, ready, hops, free, rank_at, filled, longest,
        sorted_key,
    ) = work  # fmt: skip
    chunk_block, chunk_offset, chunk_bytes, send_chunk, send_link, send_step, send_start = planned
    state[CHUNKS] = state[ROWS] = straight_state[CHUNKS] = straight_state[ROWS] = 0
    results[TIME] = results[BOUND] = 0.0
    total = set_loads(size, k, n, node_of, pair, rank)
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
            size, k, n, node_ptr, node_rank, nic_of, nic_ptr, nic_rank, lane_ptr, lane_from, lane_to, lane_end,
            lane_ticks, lane_flow, pair, cell, left, row_left, first, lane_left, piece_block, piece_lane, piece_bytes,
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
            seg_ptr, flow_begin, flow_end, lane_seg, lane_at, pieces, piece_block, piece_lane, piece_bytes, sent,
            link_us, rank, rank_us, longest, rank_at, chunk_block, chunk_offset, chunk_bytes, row_chunk, row_link, row_key, state,
        ) == FULL:  # fmt: skip
            return FULL
    for node in range(n):
        if add_inner(
            size, k, node_ptr[node + 1] - node_ptr[node], node_ptr[node], node_rank, between, link_us, has_ports,
            span * tick_us, rank_at, filled, cell, seg_flow, seg_begin, seg_end, padded, real, match, owner, since,
            queue, came, sent, chunk_block, chunk_offset, chunk_bytes, row_chunk, row_link, row_key, state,
        ) == FULL:  # fmt: skip
            return FULL
    sort_rows(state[ROWS], row_key, len(bucket_ptr), bucket_ptr, row_bucket, sorted_key, order)
    results[TIME] = set_times(
        state[ROWS], state[CHUNKS], order, row_chunk, row_link, chunk_bytes, alpha, link_us, gap, uses_ptr, uses,
        begins, ready, hops, free, send_chunk, send_link, send_step, send_start,
    )  # fmt: skip
    limit = straight_limit_us(size, k, n, node_of, between, leaves, enters, link_us, uses_ptr, uses, free, begins)
    if results[TIME] <= limit:
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
        node_of, _, _, _, _, _, between, _, _, _, _, _, _, _, _, _, _, leaves, enters, _, _, _, _, _,
    ) = shape  # fmt: skip
    alpha, link_us, gap, uses_ptr, uses = links
    (
        _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, row_chunk, row_link, row_key,
        row_bucket, order, bucket_ptr, ready, hops, free, rank_at, _, _, sorted_key,
    ) = work  # fmt: skip
    chunk_block, chunk_offset, chunk_bytes, send_chunk, send_link, send_step, send_start = straight
    state[CHUNKS] = state[ROWS] = 0
    if add_straight(
        size, k, n, node_of, between, leaves, enters, alpha, link_us, rank_at, chunk_block, chunk_offset, chunk_bytes,
        row_chunk, row_link, row_key, state,
    ) == FULL:  # fmt: skip
        return float(FULL)
    sort_rows(state[ROWS], row_key, len(bucket_ptr), bucket_ptr, row_bucket, sorted_key, order)
    return set_times(
        state[ROWS], state[CHUNKS], order, row_chunk, row_link, chunk_bytes, alpha, link_us, gap, uses_ptr, uses,
        begins, ready, hops, free, send_chunk, send_link, send_step, send_start,
    )  # fmt: skip
