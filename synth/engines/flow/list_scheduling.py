"""List scheduling, compiled: no lane stays idle while a send that could use it is ready (Graham, 1966).

Of the sends that are ready for a lane the most urgent goes first. Resources that several lanes share are given to the
most urgent send that fits.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from synth.engines.flow.congestion_prices import pop_key, push_key
from synth.engines.flow.csr_network import Wires
from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import kernel
from topologies.arrays import grouped

Column = TypeVar("Column", Ints, Floats)
Narrow = NDArray[np.int32]
Words = NDArray[np.uint64]
# columns of an item; what is read together lies together, for with millions each look elsewhere waits for memory
_NEXT = 0  # and two more: the next of those that fall free, that arrive, and that are ready with it
_ON = 3  # the lane that it is on
_AT = 4  # of a path: the row that it has come to; of a row: how many it still waits for
_FROM, _TO = 5, 6  # of a path: its rows; of a row: its part of the list of those that wait for it
_LISTS = 1 << 21  # lists of ready rows over all lanes, 64 to 4096 levels of urgency each


def list_schedule(
    wires: Wires, lane: Ints, hold_us: Floats, urgency: Floats, before: Ints, after: Ints
) -> Floats:
    """When each send starts, in µs; arguments and errors as those of `listed`."""
    rows, when_us = listed(wires, lane, hold_us, urgency, before, after)
    start = np.empty(len(lane))
    start[rows] = when_us
    return start


def listed(
    wires: Wires, lane: Ints, hold_us: Floats, urgency: Floats, before: Ints, after: Ints
) -> tuple[Ints, Floats]:
    """(sends in order of start, when each of them starts in µs).

    Args:
        lane, hold_us, urgency: shape (n,), of each send; what is as urgent goes in the order in which it is ready.
        before, after: shape (d,): send after[i] carries what send before[i] brings.

    Raises:
        ValueError: sends that wait for each other.
    """
    count = len(lane)
    bits = int(wires.nlanes).bit_length()
    words = min(64, max(1, _LISTS // (64 * max(1, wires.nlanes))))
    level, words = _levels(urgency, min(64 * words, 1 << (31 - bits)))
    place = (lane | (level << bits)).astype(np.int32)
    eps = float(hold_us.min(initial=1.0)) * 1e-9
    hold = np.ascontiguousarray(hold_us, dtype=np.float64)
    if count and hold.min() == hold.max():
        hold = hold[:1].copy()
    chained = len(before) == len(after) and bool((after == before + 1).all())
    if chained:
        # paths, each in rows that follow each other: what is known of a path is little and stays at hand
        tail = np.ones(count, dtype=bool)
        tail[before] = False
        ends = np.flatnonzero(tail) + 1
        items = np.zeros((len(ends), 8), dtype=np.int32)
        items[1:, _FROM], items[:, _TO] = ends[:-1], ends
        behind = np.zeros(0, dtype=np.int32)
    else:
        ptr, rows = grouped(before, count)
        items = np.zeros((count, 8), dtype=np.int32)
        items[:, _FROM], items[:, _TO] = ptr[:-1], ptr[1:]
        items[:, _AT] = np.bincount(after, minlength=count)
        behind = after[rows].astype(np.int32)
    order, when_us = np.empty(count, dtype=np.int32), np.empty(count)
    made = _run(wires, place, bits, hold, chained, items, behind, words, eps, order, when_us)
    if made < count:
        raise ValueError(f"{count - made} sends of {count} wait for each other")
    return order.astype(np.int64), when_us


def urgencies(lasts_us: Floats, before: Ints, after: Ints, step: Ints) -> Floats:
    """The longest chain of sends that starts with each send, in µs.

    Args:
        lasts_us: shape (n,): from the start of a send to its arrival. step: later than of what it waits for.
    """
    if len(before) and bool((after == before + 1).all()):
        ends = np.ones(len(lasts_us), dtype=bool)
        ends[before] = False
        return _along(lasts_us, ends)
    ptr, rows = grouped(before, len(lasts_us))
    order = np.argsort(step, kind="stable")[::-1].astype(np.int64)
    return _chains(order, lasts_us, ptr, after[rows].astype(np.int64))


def _levels(urgency: Floats, most: int) -> tuple[Ints, int]:
    """Urgencies as levels from 0, most urgent highest, `most` of them at most; and how many words of 64 that makes."""
    low, high = float(urgency.min(initial=0.0)), float(urgency.max(initial=0.0))
    if high <= low:
        return np.zeros(len(urgency), dtype=np.int64), 1
    level = ((urgency - low) / (high - low) * (most - 1) + 0.5).astype(np.int64)
    found = np.bincount(level, minlength=most) > 0
    return (np.cumsum(found) - 1)[level], -(-int(found.sum()) // 64)


@kernel
def _along(lasts: Floats, ends: Bools) -> Floats:
    """Of paths whose rows follow each other."""
    chain = np.empty(len(lasts))
    so_far = 0.0
    for row in range(len(lasts) - 1, -1, -1):
        so_far = lasts[row] if ends[row] else so_far + lasts[row]
        chain[row] = so_far
    return chain


@kernel
def _chains(order: Ints, lasts: Floats, ptr: Ints, behind: Ints) -> Floats:
    chain = np.zeros(len(lasts))
    for i in range(len(order)):
        row = order[i]
        most = 0.0
        for j in range(ptr[row], ptr[row + 1]):
            if chain[behind[j]] > most:
                most = chain[behind[j]]
        chain[row] = lasts[row] + most
    return chain


@kernel
def _push_item(
    heads: Narrow, tails: Narrow, words: Words, where: int, level: int, item: int, items: Narrow
) -> None:
    """Put a ready item behind those of its lane and level."""
    items[item, _NEXT + 2] = -1
    word = 1 + level // 64
    bit = np.uint64(1) << np.uint64(level % 64)
    if words[where, word] & bit:
        items[tails[where, level], _NEXT + 2] = item
    else:
        words[where, word] |= bit
        words[where, 0] |= np.uint64(1) << np.uint64(word - 1)
        heads[where, level] = item
    tails[where, level] = item


@kernel
def _highest(word: np.uint64) -> int:
    """The place of the highest bit of a word that is not 0."""
    place = 0
    for shift in (32, 16, 8, 4, 2, 1):
        if word >> np.uint64(shift):
            word >>= np.uint64(shift)
            place += shift
    return place


@kernel
def _top(words: Words, where: int) -> int:
    """The most urgent level of a lane at which something waits."""
    word = _highest(words[where, 0])
    return 64 * word + _highest(words[where, word + 1])


@kernel
def _pop_item(heads: Narrow, words: Words, where: int, level: int, items: Narrow) -> int:
    item: int = heads[where, level]
    after = items[item, _NEXT + 2]
    if after < 0:
        word = 1 + level // 64
        words[where, word] &= ~(np.uint64(1) << np.uint64(level % 64))
        if words[where, word] == 0:
            words[where, 0] &= ~(np.uint64(1) << np.uint64(word - 1))
    else:
        heads[where, level] = after
    return item


@kernel
def _file_event(
    times: Floats, buckets: Ints, count: int, time: float, kind: int, item: int, first: Ints, last: Ints, when: Floats,
    items: Narrow, state: Ints,
) -> int:  # fmt: skip
    """File an item's event under its time; those of one time and kind lie in one bucket. Returns the heap's size.

    state: [free list's head, buckets made, latest bucket of each kind].
    """
    latest = state[2 + kind]
    items[item, _NEXT + kind] = -1
    if latest >= 0 and when[latest] == time:
        items[last[latest], _NEXT + kind] = item
        last[latest] = item
        return count
    bucket = state[0]
    if bucket >= 0:
        state[0] = first[bucket]
    else:
        bucket = state[1]
        state[1] += 1
    first[bucket] = item
    last[bucket] = item
    when[bucket] = time
    state[2 + kind] = bucket
    push_key(times, buckets, count, time, 2 * bucket + kind)
    return count + 1


@kernel
def _mark(where: int, busy: Bools, marked: Bools, candidates: Ints, count: int) -> int:
    """Have a lane looked at, unless it is busy or will be already. Returns how many will be."""
    if not busy[where] and not marked[where]:
        marked[where] = True
        candidates[count] = where
        return count + 1
    return count


@kernel
def _run(
    net: Wires,
    place: Narrow,
    bits: int,
    hold: Floats,
    chained: bool,
    items: Narrow,
    behind: Narrow,
    width: int,
    eps: float,
    order: Narrow,
    when_us: Floats,
) -> int:
    """Write rows in order of start, and their starts; returns how many. Items are rows, or, `chained`, whole paths.

    place: of every row: its lane, and 2**bits times its level of urgency. hold: of every row, or one for all.
    """
    # columns are taken out of the tuple once: each access to one in a loop counts references
    low = (1 << bits) - 1
    made = 0
    alpha, rate, capacity, alone = net.alpha_us, net.bandwidth_gbs, net.capacity_gbs, net.alone
    uses_ptr, uses_idx, users_ptr, users_idx = net.uses_ptr, net.uses_idx, net.users_ptr, net.users_idx
    heads = np.empty((net.nlanes, 64 * width), np.int32)
    tails = np.empty((net.nlanes, 64 * width), np.int32)
    words = np.zeros(
        (net.nlanes, 1 + width), np.uint64
    )  # which lists hold something; place 0: which words do
    used = np.zeros(len(capacity))
    busy, marked = np.zeros(net.nlanes, np.bool_), np.zeros(net.nlanes, np.bool_)
    candidates, ranked, keys = (
        np.empty(net.nlanes, np.int64),
        np.empty(net.nlanes, np.int64),
        np.empty(net.nlanes),
    )
    ncand = 0
    room = 1024
    times, buckets = np.empty(room), np.empty(room, np.int64)
    first, last, when = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room)
    state = np.array([-1, 0, -1, -1])
    events = 0
    for item in range(len(items)):
        if chained or items[item, _AT] == 0:
            row = item
            if chained:
                row = items[item, _FROM]
                items[item, _AT] = row
            where = place[row] & low
            _push_item(heads, tails, words, where, place[row] >> bits, item, items)
            ncand = _mark(where, busy, marked, candidates, ncand)
    now = 0.0
    while True:
        # lanes that share nothing start at once; of the others the most urgent head first
        size, more = 0, 0
        for i in range(ncand):
            where = candidates[i]
            marked[where] = False
            if words[where, 0] == 0:
                continue
            if alone[where]:
                candidates[more] = where
                more += 1
            else:
                push_key(keys, ranked, size, -_top(words, where), where)
                size += 1
        ncand = 0
        while size > 0 or more > 0:
            if more > 0:
                more -= 1
                where = candidates[more]
            else:
                where = ranked[0]
                pop_key(keys, ranked, size)
                size -= 1
            fits = not busy[where]
            for j in range(uses_ptr[where], uses_ptr[where + 1]):
                r = uses_idx[j]
                if used[r] + rate[where] > capacity[r] * (1 + 1e-12):
                    fits = False
            if not fits:
                continue
            item = _pop_item(heads, words, where, _top(words, where), items)
            busy[where] = True
            items[item, _ON] = where
            for j in range(uses_ptr[where], uses_ptr[where + 1]):
                used[uses_idx[j]] += rate[where]
            row = items[item, _AT] if chained else item
            order[made] = row
            when_us[made] = now
            made += 1
            if state[1] + 2 > room:
                room *= 2
                times, when = _longer(times, room), _longer(when, room)
                buckets, first, last = _longer(buckets, room), _longer(first, room), _longer(last, room)
            end = now + (hold[row] if len(hold) > 1 else hold[0])
            events = _file_event(times, buckets, events, end, 0, item, first, last, when, items, state)
            end += alpha[where]
            events = _file_event(times, buckets, events, end, 1, item, first, last, when, items, state)
        if events == 0:
            break
        begin = times[0]
        while events > 0 and times[0] <= begin + eps:
            now = times[0]
            bucket, kind = buckets[0] >> 1, buckets[0] & 1
            pop_key(times, buckets, events)
            events -= 1
            item = first[bucket]
            if state[2 + kind] == bucket:
                state[2 + kind] = -1
            first[bucket] = state[0]
            state[0] = bucket
            while item >= 0:
                after = items[item, _NEXT + kind]
                if kind == 1 and chained:
                    row = items[item, _AT] + 1
                    if row < items[item, _TO]:
                        items[item, _AT] = row
                        where = place[row] & low
                        _push_item(heads, tails, words, where, place[row] >> bits, item, items)
                        ncand = _mark(where, busy, marked, candidates, ncand)
                elif kind == 1:
                    for j in range(items[item, _FROM], items[item, _TO]):
                        row = behind[j]
                        items[row, _AT] -= 1
                        if items[row, _AT] == 0:
                            where = place[row] & low
                            _push_item(heads, tails, words, where, place[row] >> bits, row, items)
                            ncand = _mark(where, busy, marked, candidates, ncand)
                else:
                    where = items[item, _ON]
                    busy[where] = False
                    if words[where, 0] != 0:
                        ncand = _mark(where, busy, marked, candidates, ncand)
                    for j in range(uses_ptr[where], uses_ptr[where + 1]):
                        r = uses_idx[j]
                        used[r] -= rate[where]
                        if used[r] < 1e-6 * rate[where]:
                            used[r] = 0.0
                        for k in range(users_ptr[r], users_ptr[r + 1]):
                            if words[users_idx[k], 0] != 0:
                                ncand = _mark(users_idx[k], busy, marked, candidates, ncand)
                item = after
    return made


@kernel
def _longer(column: Column, room: int) -> Column:
    more = np.empty(room, column.dtype)
    more[: len(column)] = column
    return more
