"""List scheduling: no bundle of links stays idle while a send that could use it is ready (Graham, 1966).

Of the sends that are ready for a bundle the most urgent goes first. Resources that several bundles share go to the most
urgent send that fits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synth.engines.flow.congestion_prices import pop_key, push_key
from synth.engines.flow.csr_network import CsrNetwork
from synth.engines.flow.tuning import TUNING, FlowTuning
from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner
from topologies.arrays import grouped
from topologies.errors import ScheduleError

Items = NDArray[np.int32]
# These are the columns of an item. Data that is read at once is adjacent, because with millions of items each access
# elsewhere waits for memory.
_NEXT = 0  # the next item in each of three lists: of items that leave, that arrive, and that are ready
_ON = 3  # the bundle of the item's send
_AT = 4  # the present row of a path, or the number of sends that a row still waits for
_FROM, _TO = 5, 6  # the rows of a path, or a row's part of the list of waiting rows
_ITEM = 8
_WORD = 62  # levels a word of 64 bits, without the sign bit
_FREE, _MADE, _LATEST = range(3)  # buckets: the list of free ones, their number, the latest of each kind
_LEAVES, _ARRIVES = 0, 1  # kinds of events


class _Ready(NamedTuple):
    """Ready items of every bundle by level of urgency, those of one level in the order in which they get ready.

    Attributes:
        heads: First item of level i of bundle b, at b · levels + i.
        tails: Last item of the same list.
        words: Bit i % _WORD of word b · nwords + i // _WORD says whether bundle b has items of level i.
        waiting: Number of items of each bundle.
        next: The items, which hold the lists.
        levels: Number of levels of urgency.
        nwords: Words of each bundle.
    """

    heads: Any
    tails: Any
    words: Any
    waiting: Any
    next: Any
    levels: int
    nwords: int


class _Events(NamedTuple):
    """Events to come: a heap of buckets, each with the items of one time and kind.

    Attributes:
        times: Time of each entry of the heap.
        codes: Twice the bucket, plus the kind, of each entry of the heap.
        first: First item of every bucket.
        last: Last item of every bucket.
        when: Time of every bucket.
        state: The free buckets, the number of buckets, and the latest bucket of each kind.
    """

    times: Any
    codes: Any
    first: Any
    last: Any
    when: Any
    state: Any


class _Bundles(NamedTuple):
    """State of the bundles.

    Attributes:
        busy: Whether each bundle is busy.
        marked: Whether each bundle is among the candidates.
        candidates: Bundles to look at, in no order.
        ranked: Candidates by urgency, as a heap.
        keys: Keys of that heap.
    """

    busy: Any
    marked: Any
    candidates: Any
    ranked: Any
    keys: Any


class _ListedSends(NamedTuple):
    """The sends of a list schedule, one row each.

    Attributes:
        place: Bundle of every row, plus its level << bits.
        hold: Time that every row holds its bundle, or one number for all.
        waiters: Rows that wait for each row.
        used: GB/s in use of every resource.
        order: Set to the rows in order of start.
        when_us: Set to their starts in µs.
        bits: Number of bits of a bundle in `place`.
    """

    place: Any
    hold: Any
    waiters: Any
    used: Any
    order: Any
    when_us: Any
    bits: int


def list_schedule(
    run: Runner, net: CsrNetwork, bundle: Ints, hold_us: Floats, urgency: Floats, before: Ints, after: Ints,
    tuning: FlowTuning = TUNING,
) -> tuple[Ints, Floats]:  # fmt: skip
    """Return the rows of the sends in order of start, and their starts in µs in the same order; both of shape (n,).

    It takes O(sends) time, except for shared resources and many different times.

    Args:
        run: Runner of the compiled loops.
        net: The network as the loops need it.
        bundle: Bundle of each send, shape (n,).
        hold_us: Time that each send holds its bundle in µs, shape (n,).
        urgency: Urgency of each send, shape (n,), the largest first; it is rounded to 64 to 4096 levels, and sends of
            one level go in the order in which they are ready.
        before: Earlier send of each dependency, shape (d,): send after[i] carries data that send before[i] brings.
        after: Later send of each dependency, shape (d,).
        tuning: Settings of the engine.

    Raises:
        ScheduleError: If sends wait for each other.
    """
    count, nbundles = len(bundle), net.nbundles
    bits = int(nbundles).bit_length()
    most = 64 * min(64, max(1, tuning.levels // (64 * max(1, nbundles))))
    level, levels = _levels(urgency, min(most, 1 << (31 - bits)))
    nwords = -(-levels // _WORD)
    hold = hold_us[:1] if count and hold_us.min() == hold_us.max() else hold_us
    eps = float(hold_us.min(initial=1.0)) * 1e-9
    chained = _are_paths(before, after)
    items, waiters = _path_items(before, count) if chained else _row_items(before, after, count)
    zeros = np.zeros(nbundles, dtype=np.int64)
    table = np.empty(nbundles * levels, dtype=np.int32)
    words = np.zeros(nbundles * nwords, dtype=np.int64)
    lists = run.columns(table, table.copy(), words, zeros, items.ravel())
    ready = _Ready._make([*lists, levels, nwords])
    most_events = 2 * len(items) + 2
    codes, first, last = (np.empty(most_events, dtype=np.int64) for _ in range(3))
    state = np.array([-1, 0, -1, -1])
    events = _Events(*run.columns(np.empty(most_events), codes, first, last, np.empty(most_events), state))
    bundles = _Bundles(*run.columns(zeros > 0, zeros > 0, zeros.copy(), zeros.copy(), np.zeros(nbundles)))
    place = (bundle | (level << bits)).astype(np.int32)
    used = np.zeros(len(net.capacity_gbs))
    columns = run.columns(place, hold, waiters, used, np.empty(count, np.int32), np.empty(count))
    sends = _ListedSends._make([*columns, bits])
    nstarted = run(_start_sends, net, sends, chained, eps, ready, events, bundles)
    if nstarted < count:
        raise ScheduleError(f"list schedule: {count - nstarted} sends of {count} wait for each other")
    return np.asarray(sends.order, dtype=np.int64), np.asarray(sends.when_us)


def urgencies(run: Runner, lasts_us: Floats, before: Ints, after: Ints, step: Ints) -> Floats:
    """Return the length in µs of the longest chain of sends that starts with each send, itself included; shape (n,).

    Args:
        run: Runner of the compiled loops.
        lasts_us: Time from the start of each send to its arrival, shape (n,).
        before: Earlier send of each dependency.
        after: Later send of each dependency.
        step: Step of each send, later than the steps of the sends that it waits for.
    """
    chain = np.zeros(len(lasts_us))
    if len(before) and _are_paths(before, after):
        order, ptr, rows = (np.arange(len(lasts_us))[::-1], np.zeros(len(lasts_us) + 1, dtype=np.int64), np.sort(after))
        ptr[before + 1] = 1
        ptr = np.cumsum(ptr)
    else:
        ptr, rows = grouped(before, len(lasts_us))
        order, rows = np.argsort(step, kind="stable")[::-1], after[rows]
    columns = run.columns(order, lasts_us, ptr, rows, chain)
    run(_add_chains, *columns)
    return np.asarray(columns[-1])


def _are_paths(before: Ints, after: Ints) -> bool:
    """Return True if every send waits for the row before it, or for no row."""
    return len(before) == len(after) and bool((after == before + 1).all())


def _path_items(before: Ints, count: int) -> tuple[Items, Items]:
    """Return one item for each path, int32, shape (paths, 8), and an empty list of waiting rows.

    The rows of a path follow each other, and an item holds its first row and the row after its last; so the data of a
    path is small and stays in the cache.

    Args:
        before: Rows that another row waits for: row b + 1 waits for row b.
        count: Number of rows.
    """
    ends = np.ones(count, dtype=bool)
    ends[before] = False
    path_ends = np.flatnonzero(ends) + 1
    items = np.zeros((len(path_ends), _ITEM), dtype=np.int32)
    items[1:, _FROM], items[:, _TO] = path_ends[:-1], path_ends
    return items, np.zeros(0, dtype=np.int32)


def _row_items(before: Ints, after: Ints, count: int) -> tuple[Items, Items]:
    """Return one item for each row, int32, shape (count, 8), and the rows that wait for each, row by row, int32.

    An item holds its part of the list of waiting rows, and the number of rows that it waits for.
    """
    ptr, rows = grouped(before, count)
    items = np.zeros((count, _ITEM), dtype=np.int32)
    items[:, _FROM], items[:, _TO] = ptr[:-1], ptr[1:]
    items[:, _AT] = np.bincount(after, minlength=count)
    return items, after[rows].astype(np.int32)


def _levels(urgency: Floats, most: int) -> tuple[Ints, int]:
    """Return the urgencies as levels from 0, most urgent highest, and the number of levels, at most `most`.

    The range from the least urgency (at most 0) to the largest (at least 0) is cut evenly; levels that no urgency has
    are left out. Without a range all have level 0.
    """
    low, high = float(urgency.min(initial=0.0)), float(urgency.max(initial=0.0))
    if high <= low:
        return np.zeros(len(urgency), dtype=np.int64), 1
    level = ((urgency - low) / (high - low) * (most - 1) + 0.5).astype(np.int64)
    is_level_used = np.bincount(level, minlength=most) > 0
    return (np.cumsum(is_level_used) - 1)[level], int(is_level_used.sum())


def _add_chains(order: Any, lasts: Any, ptr: Any, waiters: Any, chain: Any) -> None:
    """Set `chain` of every row to its `lasts` plus the largest `chain` of the rows that wait for it.

    Args:
        order: All rows, each after all rows that wait for it.
        lasts: Time of each row in µs.
        ptr: Pointer from a row to its part of `waiters`.
        waiters: Rows that wait for each row, row by row.
        chain: Result in µs, one number a row, written in place.
    """
    for i in range(len(order)):
        row = order[i]
        most = 0.0
        for j in range(ptr[row], ptr[row + 1]):
            if chain[waiters[j]] > most:
                most = chain[waiters[j]]
        chain[row] = lasts[row] + most


def _push_item(ready: _Ready, bundle: int, level: int, item: int) -> None:
    """Add a ready item behind the items of its bundle and level."""
    ready.next[_ITEM * item + _NEXT + 2] = -1
    word, bit, list_place = bundle * ready.nwords + level // _WORD, 1 << level % _WORD, bundle * ready.levels + level
    if ready.words[word] & bit:
        ready.next[_ITEM * ready.tails[list_place] + _NEXT + 2] = item
    else:
        ready.words[word] |= bit
        ready.heads[list_place] = item
    ready.tails[list_place] = item
    ready.waiting[bundle] += 1


def _top(ready: _Ready, bundle: int) -> int:
    """Return the most urgent level of a bundle with a waiting item."""
    word = ready.nwords - 1
    while ready.words[bundle * ready.nwords + word] == 0:
        word -= 1
    bits, place = ready.words[bundle * ready.nwords + word], 0
    for shift in (32, 16, 8, 4, 2, 1):
        if bits >> shift:
            bits >>= shift
            place += shift
    return _WORD * word + place


def _pop_item(ready: _Ready, bundle: int, level: int) -> int:
    """Remove and return the first item of a bundle and level."""
    list_place = bundle * ready.levels + level
    item: int = ready.heads[list_place]
    after = ready.next[_ITEM * item + _NEXT + 2]
    if after < 0:
        ready.words[bundle * ready.nwords + level // _WORD] &= ~(1 << level % _WORD)
    else:
        ready.heads[list_place] = after
    ready.waiting[bundle] -= 1
    return item


def _file_event(events: _Events, size: int, time: float, kind: int, item: int, items: Any) -> int:
    """Add an item's event to the latest bucket of its kind, or to a new bucket on the heap if that has another time.

    Args:
        events: Events to come; changes.
        size: Entries of the heap before.
        time: Time of the event in µs.
        kind: _LEAVES or _ARRIVES.
        item: The item.
        items: All items as one flat column, which also hold the buckets' lists; changes.

    Returns:
        Entries of the heap after.
    """
    state = events.state
    latest = state[_LATEST + kind]
    items[_ITEM * item + _NEXT + kind] = -1
    if latest >= 0 and events.when[latest] == time:
        items[_ITEM * events.last[latest] + _NEXT + kind] = item
        events.last[latest] = item
        return size
    bucket = state[_FREE]
    if bucket >= 0:
        state[_FREE] = events.first[bucket]
    else:
        bucket = state[_MADE]
        state[_MADE] += 1
    events.first[bucket] = item
    events.last[bucket] = item
    events.when[bucket] = time
    state[_LATEST + kind] = bucket
    push_key(events.times, events.codes, size, time, 2 * bucket + kind)
    return size + 1


def _mark(bundles: _Bundles, bundle: int, count: int) -> int:
    """Add a bundle to the candidates, unless it is busy or a candidate, and return the number of candidates."""
    if not bundles.busy[bundle] and not bundles.marked[bundle]:
        bundles.marked[bundle] = True
        bundles.candidates[count] = bundle
        return count + 1
    return count


def _start_sends(  # One loop over events of over 60 lines, as its state is too large to pass on.
    net: CsrNetwork, sends: _ListedSends, chained: bool, eps: float, ready: _Ready, events: _Events, bundles: _Bundles
) -> int:
    """Write the rows in order of start, and their starts, and return their number, less than all if sends wait forever.

    Items are rows, or whole paths if `chained`. Events count as one that differ by up to `eps` µs.
    """
    place, hold, waiters, used, order, when_us, bits = sends
    alpha, rate, capacity = net.alpha_us, net.bandwidth_gbs, net.capacity_gbs
    uses_ptr, uses_idx, users_ptr, users_idx = net.uses_ptr, net.uses_idx, net.users_ptr, net.users_idx
    items, waiting, busy, candidates = ready.next, ready.waiting, bundles.busy, bundles.candidates
    low = (1 << bits) - 1
    nstarted, ncand, size = 0, 0, 0
    for item in range(len(items) // _ITEM):
        if chained or items[_ITEM * item + _AT] == 0:
            row = item
            if chained:
                row = items[_ITEM * item + _FROM]
                items[_ITEM * item + _AT] = row
            bundle = place[row] & low
            _push_item(ready, bundle, place[row] >> bits, item)
            ncand = _mark(bundles, bundle, ncand)
    now = 0.0
    while True:
        # Bundles that share nothing start at once. Among the other bundles the most urgent head goes first.
        nshared, nexclusive = 0, 0
        for i in range(ncand):
            bundle = candidates[i]
            bundles.marked[bundle] = False
            if waiting[bundle] == 0:
                continue
            if net.exclusive[bundle]:
                candidates[nexclusive] = bundle
                nexclusive += 1
            else:
                push_key(bundles.keys, bundles.ranked, nshared, -_top(ready, bundle), bundle)
                nshared += 1
        ncand = 0
        while nshared > 0 or nexclusive > 0:
            if nexclusive > 0:
                nexclusive -= 1
                bundle = candidates[nexclusive]
            else:
                bundle = bundles.ranked[0]
                pop_key(bundles.keys, bundles.ranked, nshared)
                nshared -= 1
            fits = not busy[bundle]
            for j in range(uses_ptr[bundle], uses_ptr[bundle + 1]):
                r = uses_idx[j]
                if used[r] + rate[bundle] > capacity[r] * (1 + 1e-12):
                    fits = False
            if not fits:
                continue
            item = _pop_item(ready, bundle, _top(ready, bundle))
            busy[bundle] = True
            items[_ITEM * item + _ON] = bundle
            for j in range(uses_ptr[bundle], uses_ptr[bundle + 1]):
                used[uses_idx[j]] += rate[bundle]
            row = items[_ITEM * item + _AT] if chained else item
            order[nstarted] = row
            when_us[nstarted] = now
            nstarted += 1
            end = now + (hold[row] if len(hold) > 1 else hold[0])
            # An item leaves before it arrives, because only then it can be in the next list.
            busy_us = min(net.gap_us[bundle], alpha[bundle])
            size = _file_event(events, size, end + busy_us, _LEAVES, item, items)
            size = _file_event(events, size, end + alpha[bundle], _ARRIVES, item, items)
        if size == 0:
            break
        begin = events.times[0]
        while size > 0 and events.times[0] <= begin + eps:
            now = events.times[0]
            bucket, kind = events.codes[0] >> 1, events.codes[0] & 1
            pop_key(events.times, events.codes, size)
            size -= 1
            item = events.first[bucket]
            if events.state[_LATEST + kind] == bucket:
                events.state[_LATEST + kind] = -1
            events.first[bucket] = events.state[_FREE]
            events.state[_FREE] = bucket
            while item >= 0:
                after = items[_ITEM * item + _NEXT + kind]
                if kind == _ARRIVES and chained:
                    row = items[_ITEM * item + _AT] + 1
                    if row < items[_ITEM * item + _TO]:
                        items[_ITEM * item + _AT] = row
                        bundle = place[row] & low
                        _push_item(ready, bundle, place[row] >> bits, item)
                        ncand = _mark(bundles, bundle, ncand)
                elif kind == _ARRIVES:
                    for j in range(items[_ITEM * item + _FROM], items[_ITEM * item + _TO]):
                        row = waiters[j]
                        items[_ITEM * row + _AT] -= 1
                        if items[_ITEM * row + _AT] == 0:
                            bundle = place[row] & low
                            _push_item(ready, bundle, place[row] >> bits, row)
                            ncand = _mark(bundles, bundle, ncand)
                else:
                    bundle = items[_ITEM * item + _ON]
                    busy[bundle] = False
                    if waiting[bundle]:
                        ncand = _mark(bundles, bundle, ncand)
                    for j in range(uses_ptr[bundle], uses_ptr[bundle + 1]):
                        r = uses_idx[j]
                        used[r] -= rate[bundle]
                        if used[r] < 1e-6 * rate[bundle]:
                            used[r] = 0.0
                        for k in range(users_ptr[r], users_ptr[r + 1]):
                            if waiting[users_idx[k]]:
                                ncand = _mark(bundles, users_idx[k], ncand)
                item = after
    return nstarted
