"""The loop that plans an all-to-all: it runs all steps over the columns of a planner."""

from __future__ import annotations

from typing import Any

from synth.engines.skewed.columns import BAD, BOUND, CHUNKS, FULL, PLANNED, ROWS, STRAIGHT, TIME
from synth.engines.skewed.inner import add_inner
from synth.engines.skewed.lanes import cut, set_segments, split
from synth.engines.skewed.loads import bound_us, set_loads, straight_limit_us
from synth.engines.skewed.rounds import add_rounds, largest_line
from synth.engines.skewed.routes.straight import add_straight
from synth.engines.skewed.times import set_times, sort_rows

_EQUAL = 1 + 1e-9  # Times that differ by this factor, by rounding only, count as equal.


def plan_into(  # A loop that Numba compiles takes columns, however many.
    size: Any, k: int, wide: Any, n: int, begins: float, tick_us: float, has_ports: bool, only_straight: bool,
    ints: Any, int_at: Any, words: Any, word_at: Any, reals: Any, real_at: Any, state: Any, straight_state: Any,
    results: Any,
) -> int:  # fmt: skip
    """Plan an all-to-all; return PLANNED, STRAIGHT, FULL where a column has too little room, or BAD for bad sizes.

    Its steps, with the terms of `columns`:

    1. `set_loads` adds up the bytes of ranks and nodes, and `bound_us` computes the bound.
    2. `split` divides what nodes send to each other over the lanes, as pieces.
    3. `add_rounds` decides when each NIC sends to which other NIC, as segments.
    4. `cut` cuts the pieces into chunks at the ends of segments, and `add_inner` adds chunks inside nodes.
    5. `sort_rows` and `set_times` give all sends their times.
    6. Unless the plan meets the bound, or the least time that straight paths need (`straight_limit_us`), `add_straight`
       plans whole blocks on straight paths. The faster plan is the answer.

    Args:
        size: Bytes from each position to each position, int64, shape (k · k,).
        k: Number of positions.
        wide: The same number, unsigned where the loop is compiled.
        n: Number of nodes.
        begins: Time in µs before which nothing is sent.
        tick_us: Length of a tick in µs.
        has_ports: Whether links inside nodes share ports.
        only_straight: Whether every block is sent whole and straight, even if that is slower.
        ints: The columns `INTS` in one array; see `PackedColumns`.
        int_at: Where each of them begins.
        words: The columns `WORDS`.
        word_at: Where each of them begins.
        reals: The columns `REALS`.
        real_at: Where each of them begins.
        state: Numbers of chunks and rows of the plan, to be set.
        straight_state: The same of straight paths.
        results: Time of the faster one and bound, in µs, to be set.
    """
    # The names stand in the order of `INTS`, `WORDS` and `REALS`.
    (
        node_ptr, nic_ptr, lane_ptr, part_ports, part_base, to_node, pair_bytes, rank_bytes, cell, left, sent, row_left,
        first, lane_left, lane_seg, lane_at, piece_bytes, seg_flow, seg_begin, seg_end, seg_ptr, flow_begin,
        flow_end, padded, real, match, owner, since, queue, came, longest, chunk_offset, chunk_bytes,
        straight_offset, straight_bytes,
    ) = (
        column_at(ints, int_at, 0), column_at(ints, int_at, 1), column_at(ints, int_at, 2), column_at(ints, int_at, 3),
        column_at(ints, int_at, 4), column_at(ints, int_at, 5), column_at(ints, int_at, 6), column_at(ints, int_at, 7),
        column_at(ints, int_at, 8), column_at(ints, int_at, 9), column_at(ints, int_at, 10),
        column_at(ints, int_at, 11), column_at(ints, int_at, 12), column_at(ints, int_at, 13),
        column_at(ints, int_at, 14), column_at(ints, int_at, 15), column_at(ints, int_at, 16),
        column_at(ints, int_at, 17), column_at(ints, int_at, 18), column_at(ints, int_at, 19),
        column_at(ints, int_at, 20), column_at(ints, int_at, 21), column_at(ints, int_at, 22),
        column_at(ints, int_at, 23), column_at(ints, int_at, 24), column_at(ints, int_at, 25),
        column_at(ints, int_at, 26), column_at(ints, int_at, 27), column_at(ints, int_at, 28),
        column_at(ints, int_at, 29), column_at(ints, int_at, 30), column_at(ints, int_at, 31),
        column_at(ints, int_at, 32), column_at(ints, int_at, 33), column_at(ints, int_at, 34),
    )  # fmt: skip
    (
        node_of, node_rank, nic_of, nic_rank, between, lane_from, lane_to, lane_source, lane_goal, lane_flow,
        leaves, enters, first_port, last_port, piece_source, piece_goal, piece_lane, row_chunk, row_link,
        row_step, row_bucket, order, bucket_ptr, chunk_source, chunk_goal, send_chunk, send_link, send_step,
        straight_source, straight_goal, straight_chunk, straight_link, straight_step,
    ) = (
        column_at(words, word_at, 0), column_at(words, word_at, 1), column_at(words, word_at, 2),
        column_at(words, word_at, 3), column_at(words, word_at, 4), column_at(words, word_at, 5),
        column_at(words, word_at, 6), column_at(words, word_at, 7), column_at(words, word_at, 8),
        column_at(words, word_at, 9), column_at(words, word_at, 10), column_at(words, word_at, 11),
        column_at(words, word_at, 12), column_at(words, word_at, 13), column_at(words, word_at, 14),
        column_at(words, word_at, 15), column_at(words, word_at, 16), column_at(words, word_at, 17),
        column_at(words, word_at, 18), column_at(words, word_at, 19), column_at(words, word_at, 20),
        column_at(words, word_at, 21), column_at(words, word_at, 22), column_at(words, word_at, 23),
        column_at(words, word_at, 24), column_at(words, word_at, 25), column_at(words, word_at, 26),
        column_at(words, word_at, 27), column_at(words, word_at, 28), column_at(words, word_at, 29),
        column_at(words, word_at, 30), column_at(words, word_at, 31), column_at(words, word_at, 32),
    )  # fmt: skip
    (
        lane_end, lane_ticks, rank_us, rank_alpha, node_us, node_alpha, least_us, straight_us, alpha, link_us,
        gap, row_key, sorted_key, ready, free, port_us, filled, send_start, straight_start,
    ) = (
        column_at(reals, real_at, 0), column_at(reals, real_at, 1), column_at(reals, real_at, 2),
        column_at(reals, real_at, 3), column_at(reals, real_at, 4), column_at(reals, real_at, 5),
        column_at(reals, real_at, 6), column_at(reals, real_at, 7), column_at(reals, real_at, 8),
        column_at(reals, real_at, 9), column_at(reals, real_at, 10), column_at(reals, real_at, 11),
        column_at(reals, real_at, 12), column_at(reals, real_at, 13), column_at(reals, real_at, 14),
        column_at(reals, real_at, 15), column_at(reals, real_at, 16), column_at(reals, real_at, 17),
        column_at(reals, real_at, 18),
    )  # fmt: skip
    state[CHUNKS] = state[ROWS] = straight_state[CHUNKS] = straight_state[ROWS] = 0
    results[TIME] = results[BOUND] = 0.0
    total = set_loads(size, k, n, node_of, to_node, pair_bytes, rank_bytes)
    if total <= 0:
        return PLANNED if total == 0 else BAD
    results[BOUND] = bound_us(
        size, k, n, pair_bytes, rank_bytes, rank_us, rank_alpha, node_us, node_alpha, least_us, begins
    )
    span = 0
    for block in range(k * k):
        left[block], sent[block] = size[block], 0
    if n > 1:
        flows = part_base[len(part_ports)]
        for flow in range(flows):
            cell[flow] = 0
        pieces = split(
            k, n, node_ptr, node_rank, nic_of, nic_ptr, nic_rank, lane_ptr, lane_from, lane_to, lane_end, lane_ticks,
            lane_flow, to_node, pair_bytes, cell, left, row_left, first, lane_left, piece_source, piece_goal,
            piece_lane, piece_bytes,
        )  # fmt: skip
        if pieces == FULL:
            return FULL
        segments = 0
        for group in range(len(part_ports)):
            base, ports = part_base[group], part_ports[group]
            span = max(span, largest_line(cell, base, ports))
            segments = add_rounds(
                cell, base, ports, base, segments, seg_flow, seg_begin, seg_end, padded, real, match, owner, since,
                queue, came,
            )  # fmt: skip
            if segments == FULL:
                return FULL
        set_segments(flows, segments, seg_flow, seg_begin, seg_end, seg_ptr, flow_begin, flow_end)
        outcome = cut(
            k, wide, nic_of, lane_from, lane_to, lane_source, lane_goal, lane_ticks, lane_flow, between, alpha, span,
            tick_us, seg_ptr, flow_begin, flow_end, lane_seg, lane_at, pieces, piece_source, piece_goal, piece_lane,
            piece_bytes, sent, link_us, rank_bytes, rank_us, longest, port_us, chunk_source, chunk_goal, chunk_offset,
            chunk_bytes, row_chunk, row_link, row_step, row_key, state,
        )  # fmt: skip
        if outcome == FULL:
            return FULL
    for node in range(n):
        outcome = add_inner(
            size, k, node_ptr[node + 1] - node_ptr[node], node_ptr[node], node_rank, between, link_us, has_ports,
            span * tick_us, port_us, filled, cell, seg_flow, seg_begin, seg_end, padded, real, match, owner, since,
            queue, came, sent, chunk_source, chunk_goal, chunk_offset, chunk_bytes, row_chunk, row_link, row_step,
            row_key, state,
        )  # fmt: skip
        if outcome == FULL:
            return FULL
    sort_rows(state[ROWS], row_key, len(bucket_ptr), bucket_ptr, row_bucket, sorted_key, order)
    results[TIME] = set_times(
        state[ROWS], state[CHUNKS], order, row_chunk, row_link, chunk_bytes, alpha, link_us, row_step, gap, first_port,
        last_port, begins, ready, free, send_chunk, send_link, send_step, send_start,
    )  # fmt: skip
    limit = straight_limit_us(k, n, leaves, enters, straight_us, to_node, port_us, begins)
    if not only_straight and results[TIME] <= max(limit, results[BOUND] * _EQUAL):
        return PLANNED
    outcome = add_straight(
        size, k, n, node_of, between, leaves, enters, alpha, link_us, port_us, straight_source, straight_goal,
        straight_offset, straight_bytes, row_chunk, row_link, row_step, row_key, straight_state,
    )  # fmt: skip
    if outcome == FULL:
        return FULL
    sort_rows(straight_state[ROWS], row_key, len(bucket_ptr), bucket_ptr, row_bucket, sorted_key, order)
    time = set_times(
        straight_state[ROWS], straight_state[CHUNKS], order, row_chunk, row_link, straight_bytes, alpha, link_us,
        row_step, gap, first_port, last_port, begins, ready, free, straight_chunk, straight_link, straight_step,
        straight_start,
    )  # fmt: skip
    if not only_straight and time > results[TIME]:
        return PLANNED
    results[TIME] = time
    return STRAIGHT


def column_at(array: Any, at: Any, place: int) -> Any:
    """Return the column at a place of an array of columns, where `at` has the first entry of each column."""
    return array[at[place] : at[place + 1]]
