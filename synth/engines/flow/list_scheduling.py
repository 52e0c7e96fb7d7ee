"""List scheduling: no bundle of links stays idle while a send that could use it is ready (Graham, 1966).

Of the sends that are ready for a bundle the most urgent goes first. Resources that several bundles share are given to
the most urgent send that fits. (`synth.engines.greedy` orders sends by another rule, for few ranks: there a narrow
link holds a part of a resource's time, and who can begin first goes first, however urgent others are.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from synth.engines.flow.congestion_prices import pop_key, push_key
from synth.engines.flow.csr_network import CsrNetwork
from synth.engines.flow.tuning import TUNING, Tuning
from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner
from topologies.arrays import grouped
from topologies.errors import ScheduleError

Items = NDArray[np.int32]
# columns of an item; what is read together lies together, for with millions each look elsewhere waits for memory
_NEXT = 0  # and two more: the next of those that fall free, that arrive, and that are ready with it
_ON = 3  # the bundle that it is on
_AT = 4  # of a path: the row that it has come to; of a row: how many it still waits for
_FROM, _TO = 5, 6  # of a path: its rows; of a row: its part of the list of those that wait for it
_ITEM = 8
_WORD = 62  # levels a word of 64 bits, of which none is a sign
_FREE, _MADE, _LATEST = range(3)  # of the buckets: a list of free ones, how many were made, and the latest of each kind
_LEAVES, _ARRIVES = 0, 1  # kinds of events


class _Ready(NamedTuple):
    """Ready items of every bundle by level of urgency, of one level the first to be ready first."""

    heads: Any  # of the list of bundle b's items of level i, at b · levels + i,
    tails: Any  # and its end
    words: Any  # bit i % _WORD of word b · words + i // _WORD: there are such items
    waiting: Any  # how many a bundle has in all
    next: Any  # the items, which hold the lists


class _Events(NamedTuple):
    """What happens when: a heap of buckets, each with the items of one time and kind."""

    times: Any
    codes: Any  # twice the bucket, and the kind
    first: Any  # items of every bucket
    last: Any
    when: Any  # its time
    state: Any


class _Bundles(NamedTuple):
    """Bundles that are busy; that are to be looked at, in no order, and marked so; and those of them by urgency."""

    busy: Any
    marked: Any
    candidates: Any
    ranked: Any
    keys: Any


def list_schedule(
    run: Runner, net: CsrNetwork, bundle: Ints, hold_us: Floats, urgency: Floats, before: Ints, after: Ints,
    tuning: Tuning = TUNING,
) -> tuple[Ints, Floats]:  # fmt: skip
    """(sends in order of start, when each of them starts in µs).

    Time O(sends), but for shared resources and many different times.

    Args:
        net: as loops take it.
        bundle, hold_us, urgency: shape (n,), of each send; what is as urgent goes in the order in which it is ready.
        before, after: shape (d,): send after[i] carries what send before[i] brings.

    Raises:
        ScheduleError: sends that wait for each other.
    """
    count, nbundles = len(bundle), net.nbundles
    bits = int(nbundles).bit_length()
    most = 64 * min(64, max(1, tuning.levels // (64 * max(1, nbundles))))
    level, levels = _levels(urgency, min(most, 1 << (31 - bits)))
    words = -(-levels // _WORD)
    hold = hold_us[:1] if count and hold_us.min() == hold_us.max() else hold_us
    eps = float(hold_us.min(initial=1.0)) * 1e-9
    chained = _are_paths(before, after)
    items, behind = _path_items(before, count) if chained else _row_items(before, after, count)
    some = np.zeros(nbundles, dtype=np.int64)
    table = np.empty(nbundles * levels, dtype=np.int32)
    ready = _Ready(*run.columns(table, table.copy(), np.zeros(nbundles * words, dtype=np.int64), some, items.ravel()))
    most_events = 2 * len(items) + 2
    codes, first, last = (np.empty(most_events, dtype=np.int64) for _ in range(3))
    state = np.array([-1, 0, -1, -1])
    events = _Events(*run.columns(np.empty(most_events), codes, first, last, np.empty(most_events), state))
    bundles = _Bundles(*run.columns(some > 0, some > 0, some.copy(), some.copy(), np.zeros(nbundles)))
    place = (bundle | (level << bits)).astype(np.int32)
    columns = run.columns(
        place, hold, behind, np.zeros(len(net.capacity_gbs)), np.empty(count, np.int32), np.empty(count)
    )
    made = run(_start_sends, net, *columns, bits, chained, levels, words, eps, ready, events, bundles)
    if made < count:
        raise ScheduleError(f"list schedule: {count - made} sends of {count} wait for each other")
    return np.asarray(columns[-2], dtype=np.int64), np.asarray(columns[-1])


def urgencies(run: Runner, lasts_us: Floats, before: Ints, after: Ints, step: Ints) -> Floats:
    """The longest chain of sends that starts with each send, in µs.

    Args:
        lasts_us: shape (n,): from the start of a send to its arrival. step: later than of what it waits for.
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
    return len(before) == len(after) and bool((after == before + 1).all())


def _path_items(before: Ints, count: int) -> tuple[Items, Items]:
    """Paths, each in rows that follow each other: what is known of a path is little and stays at hand."""
    ends = np.ones(count, dtype=bool)
    ends[before] = False
    to = np.flatnonzero(ends) + 1
    items = np.zeros((len(to), _ITEM), dtype=np.int32)
    items[1:, _FROM], items[:, _TO] = to[:-1], to
    return items, np.zeros(0, dtype=np.int32)


def _row_items(before: Ints, after: Ints, count: int) -> tuple[Items, Items]:
    ptr, rows = grouped(before, count)
    items = np.zeros((count, _ITEM), dtype=np.int32)
    items[:, _FROM], items[:, _TO] = ptr[:-1], ptr[1:]
    items[:, _AT] = np.bincount(after, minlength=count)
    return items, after[rows].astype(np.int32)


def _levels(urgency: Floats, most: int) -> tuple[Ints, int]:
    """Urgencies as levels from 0, most urgent highest, and how many there are, `most` at most."""
    low, high = float(urgency.min(initial=0.0)), float(urgency.max(initial=0.0))
    if high <= low:
        return np.zeros(len(urgency), dtype=np.int64), 1
    level = ((urgency - low) / (high - low) * (most - 1) + 0.5).astype(np.int64)
    found = np.bincount(level, minlength=most) > 0
    return (np.cumsum(found) - 1)[level], int(found.sum())


def _add_chains(order: Any, lasts: Any, ptr: Any, behind: Any, chain: Any) -> None:
    """Set `chain`; `order`: rows, each after all that wait for it."""
    for i in range(len(order)):
        row = order[i]
        most = 0.0
        for j in range(ptr[row], ptr[row + 1]):
            if chain[behind[j]] > most:
                most = chain[behind[j]]
        chain[row] = lasts[row] + most


def _push_item(ready: _Ready, where: int, level: int, levels: int, words: int, item: int) -> None:
    """Put a ready item behind those of its bundle and level."""
    ready.next[_ITEM * item + _NEXT + 2] = -1
    word, bit, at = where * words + level // _WORD, 1 << level % _WORD, where * levels + level
    if ready.words[word] & bit:
        ready.next[_ITEM * ready.tails[at] + _NEXT + 2] = item
    else:
        ready.words[word] |= bit
        ready.heads[at] = item
    ready.tails[at] = item
    ready.waiting[where] += 1


def _top(ready: _Ready, where: int, words: int) -> int:
    """The most urgent level of a bundle at which something waits."""
    word = words - 1
    while ready.words[where * words + word] == 0:
        word -= 1
    rest, place = ready.words[where * words + word], 0
    for shift in (32, 16, 8, 4, 2, 1):
        if rest >> shift:
            rest >>= shift
            place += shift
    return _WORD * word + place


def _pop_item(ready: _Ready, where: int, level: int, levels: int, words: int) -> int:
    at = where * levels + level
    item: int = ready.heads[at]
    after = ready.next[_ITEM * item + _NEXT + 2]
    if after < 0:
        ready.words[where * words + level // _WORD] &= ~(1 << level % _WORD)
    else:
        ready.heads[at] = after
    ready.waiting[where] -= 1
    return item


def _file_event(events: _Events, size: int, time: float, kind: int, item: int, items: Any) -> int:
    """File an item's event under its time; those of one time and kind lie in one bucket. Returns the heap's size."""
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


def _mark(bundles: _Bundles, where: int, count: int) -> int:
    """Have a bundle looked at, unless it is busy or will be already. Returns how many will be."""
    if not bundles.busy[where] and not bundles.marked[where]:
        bundles.marked[where] = True
        bundles.candidates[count] = where
        return count + 1
    return count


def _start_sends(  # over 60 lines: one loop over events, whose state is too much to hand on
    net: CsrNetwork, place: Any, hold: Any, behind: Any, used: Any, order: Any, when_us: Any, bits: int, chained: bool,
    levels: int, words: int, eps: float, ready: _Ready, events: _Events, bundles: _Bundles,
) -> int:  # fmt: skip
    """Write rows in order of start, and their starts; returns how many. Items are rows, or, `chained`, whole paths.

    place: of every row its bundle, and its level << bits. hold: of every row, or one number for all.
    """
    alpha, rate, capacity = net.alpha_us, net.bandwidth_gbs, net.capacity_gbs
    uses_ptr, uses_idx, users_ptr, users_idx = net.uses_ptr, net.uses_idx, net.users_ptr, net.users_idx
    items, waiting, busy, candidates = ready.next, ready.waiting, bundles.busy, bundles.candidates
    low = (1 << bits) - 1
    made, ncand, size = 0, 0, 0
    for item in range(len(items) // _ITEM):
        if chained or items[_ITEM * item + _AT] == 0:
            row = item
            if chained:
                row = items[_ITEM * item + _FROM]
                items[_ITEM * item + _AT] = row
            where = place[row] & low
            _push_item(ready, where, place[row] >> bits, levels, words, item)
            ncand = _mark(bundles, where, ncand)
    now = 0.0
    while True:
        # bundles that share nothing start at once; of the others the most urgent head first
        several, more = 0, 0
        for i in range(ncand):
            where = candidates[i]
            bundles.marked[where] = False
            if waiting[where] == 0:
                continue
            if net.exclusive[where]:
                candidates[more] = where
                more += 1
            else:
                push_key(bundles.keys, bundles.ranked, several, -_top(ready, where, words), where)
                several += 1
        ncand = 0
        while several > 0 or more > 0:
            if more > 0:
                more -= 1
                where = candidates[more]
            else:
                where = bundles.ranked[0]
                pop_key(bundles.keys, bundles.ranked, several)
                several -= 1
            fits = not busy[where]
            for j in range(uses_ptr[where], uses_ptr[where + 1]):
                r = uses_idx[j]
                if used[r] + rate[where] > capacity[r] * (1 + 1e-12):
                    fits = False
            if not fits:
                continue
            item = _pop_item(ready, where, _top(ready, where, words), levels, words)
            busy[where] = True
            items[_ITEM * item + _ON] = where
            for j in range(uses_ptr[where], uses_ptr[where + 1]):
                used[uses_idx[j]] += rate[where]
            row = items[_ITEM * item + _AT] if chained else item
            order[made] = row
            when_us[made] = now
            made += 1
            end = now + (hold[row] if len(hold) > 1 else hold[0])
            size = _file_event(events, size, end, _LEAVES, item, items)
            size = _file_event(events, size, end + alpha[where], _ARRIVES, item, items)
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
                        where = place[row] & low
                        _push_item(ready, where, place[row] >> bits, levels, words, item)
                        ncand = _mark(bundles, where, ncand)
                elif kind == _ARRIVES:
                    for j in range(items[_ITEM * item + _FROM], items[_ITEM * item + _TO]):
                        row = behind[j]
                        items[_ITEM * row + _AT] -= 1
                        if items[_ITEM * row + _AT] == 0:
                            where = place[row] & low
                            _push_item(ready, where, place[row] >> bits, levels, words, row)
                            ncand = _mark(bundles, where, ncand)
                else:
                    where = items[_ITEM * item + _ON]
                    busy[where] = False
                    if waiting[where]:
                        ncand = _mark(bundles, where, ncand)
                    for j in range(uses_ptr[where], uses_ptr[where + 1]):
                        r = uses_idx[j]
                        used[r] -= rate[where]
                        if used[r] < 1e-6 * rate[where]:
                            used[r] = 0.0
                        for k in range(users_ptr[r], users_ptr[r + 1]):
                            if waiting[users_idx[k]]:
                                ncand = _mark(bundles, users_idx[k], ncand)
                item = after
    return made
