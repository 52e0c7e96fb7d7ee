"""The one place that turns a schedule into microseconds (the model of time in the design document).

A send of b bytes holds its link for b / bandwidth; the sends in flight through a shared resource never have more
rate together than its capacity; the chunk can be used at the far end α after the send has ended. Where an executor's
costs are on (`topologies.costs`), nothing is sent before the call's start, and after a send its link and what this
shares stay busy for the gap.

Over a hyperlink (a switch's multicast or reduction) a row is as many sends as it has pairs of ranks, all at the same
moment: it starts when all of them can, and takes its resources once.

First, chunk by chunk, every send learns which rows bring what it carries (`_link_rows`); this does not depend on
times. Then one pass over the rows in their order sets the times (`_set_times`), once a message size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner
from synth.model.pairs import ordinary, pairs_of_rows
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from topologies.arrays import pointers, row_entries, row_of_entry
from topologies.errors import ScheduleError
from topologies.network import Network

US_PER_BYTE_AT_1_GBS = 1e-3
SAME = 1 + 1e-12  # sums of rates that differ by rounding only are one

# What a row waits for is one number: _NONE; r >= 0, the arrivals of row r and of all rows before it in the same cell
# (chunk, rank); -2 - r, of these only the ones of an earlier step.
_NONE = -1
# of a clock's columns: chunk, link, step, reduces, adds, waits, joined
_DTYPES = (np.int64, np.int64, np.int64, np.bool_, np.bool_, np.int32, np.bool_)
# of a row: what must have come to its source; the last row before it into the same cell; what must be at the far end
_FEED, _BEFORE, _MENDS = range(3)
# a send as `_link_rows` reads it, in one piece: the sends of a chunk lie far apart in the columns
_ROW, _SRC, _DST, _STEP, _SEND = range(5)


@dataclass(frozen=True)
class Tuning:
    """When schedules are timed, and their rounds counted, by compiled loops.

    Attributes:
        compiled_from: sends. The interpreter takes some 4 µs a send, to load Numba and the loops 0.5 s; but who has
            so many sends times them at several sizes, and mostly has loaded other loops before.
        loaded_from: sends that this process has timed by the interpreter, from which on all are timed by compiled
            loops: a search of many small schedules is as much work as one large schedule.
        joined_from: pairs of ranks between which the sends go, where some go over hyperlinks, which use many resources.
    """

    compiled_from: int = 20_000
    loaded_from: int = 200_000
    joined_from: int = 2_000


TUNING = Tuning()
_interpreted = 0  # sends that this process has timed by the interpreter


def timed(problem: Problem, schedule: Schedule, size_bytes: float, tuning: Tuning = TUNING) -> Schedule:
    """The schedule with every send as early as its place in the order allows, for this message size.

    Rows are served in their order: a send starts when what it carries has arrived and its link and shared
    resources are free of the rows before it.

    Raises ScheduleError: a send whose chunk is not at its source, or comes only in a later row; or one of a chunk or
    over a link that the problem does not have.
    """
    return Clock(problem, schedule, tuning).timed(size_bytes)


class Clock:
    """`timed` for one schedule at several sizes.

    Takes O(sends) time and at most 28 bytes a send beside the schedule and its times. Raises ScheduleError as `timed`
    does, when it is made.
    """

    def __init__(self, problem: Problem, schedule: Schedule, tuning: Tuning = TUNING) -> None:
        net, collective = problem.network, problem.collective
        count, none = len(schedule), np.zeros(0)
        self.problem, self._untimed = problem, replace(schedule, start_us=none, end_us=none)
        run, self._loaded_from = Runner(interpreted=count < tuning.compiled_from), tuning.loaded_from
        step = _checked_step(problem, schedule)
        chunk, link = (np.asarray(column, dtype=np.int64) for column in (schedule.chunk, schedule.link))
        reduces, pair, src, dst = np.asarray(schedule.reduces), link, net.src, net.dst
        self._first, joined = None, np.zeros(0, dtype=bool)
        if not ordinary(net, link):
            row, src, dst = pairs_of_rows(net, link)
            chunk, link, step, reduces, pair = chunk[row], link[row], step[row], reduces[row], np.arange(len(row))
            joined = np.append(False, row[1:] == row[:-1])
            self._first = np.flatnonzero(~joined)
            run = Runner(interpreted=len(row) < tuning.joined_from)
        count = len(chunk)
        waits = np.empty(count * (3 if collective.reduces.any() else 2), dtype=np.int32)
        linked = run.columns(chunk, pair, step, reduces, collective.reduces, waits)
        self._fixed = run, [linked[0], *run.columns(link), *linked[2:], *run.columns(joined)]
        ptr = pointers(np.bincount(chunk, minlength=collective.nchunks))
        columns = src, dst, ptr, *collective.holders, np.empty(count * _SEND, dtype=np.int32)
        bad = int(run(_link_rows, *linked, net.nranks, *run.columns(*columns)))
        if bad >= 0:
            rank = problem.ranks[int(src[pair[bad]])]
            bad = bad if self._first is None else int(np.searchsorted(self._first, bad, side="right")) - 1
            raise ScheduleError(
                f"send {bad}: chunk {schedule.chunk[bad]} is not at rank {rank} before step {schedule.step[bad]}"
            )

    def timed(self, size_bytes: float) -> Schedule:
        """The schedule at this size."""
        global _interpreted
        run, fixed = self._fixed
        count = len(fixed[0])
        if run.interpreted:
            _interpreted += count
            if _interpreted > self._loaded_from:
                run = Runner(interpreted=False)
                fixed = run.columns(*map(np.asarray, fixed, _DTYPES))
                self._fixed = run, fixed
        hold_us = self.problem.collective.chunk_bytes(size_bytes) * US_PER_BYTE_AT_1_GBS
        columns = run.columns(hold_us, np.zeros(count), np.zeros(count))
        net = self.problem.network
        run(_set_times, *fixed, *_network_columns(net, run), *columns, net.start_us)
        start_us, end_us = (np.asarray(column) for column in columns[1:])
        if self._first is not None:
            start_us, end_us = start_us[self._first], end_us[self._first]
        return replace(self._untimed, start_us=start_us, end_us=end_us, size_bytes=float(size_bytes))


def _checked_step(problem: Problem, schedule: Schedule) -> Ints:
    """Steps as the loops take them; ScheduleError for a chunk or link that does not exist."""
    count, int32 = len(schedule), np.iinfo(np.int32)
    if count > int32.max - 2:
        raise ScheduleError(f"there are {count} sends; the clock numbers 2³¹ at most")
    for name, column, end in (
        ("chunk", schedule.chunk, problem.collective.nchunks),
        ("link", schedule.link, problem.network.ncarriers),
    ):
        if count and not (column.min() >= 0 and column.max() < end):
            row = int(np.argmax((column < 0) | (column >= end)))
            raise ScheduleError(f"send {row}: {name} {column[row]} does not exist (0..{end - 1})")
    if count and (schedule.step.min() < 0 or schedule.step.max() > int32.max):
        return np.unique(schedule.step, return_inverse=True)[1]  # only their order counts
    return np.asarray(schedule.step, dtype=np.int64)


def time_us(problem: Problem, schedule: Schedule) -> float:
    """When the last chunk has arrived, in µs, of a timed schedule."""
    if not len(schedule):
        return 0.0
    return float((schedule.end_us + problem.network.carriers.alpha_us[schedule.link]).max())


def predict_us(problem: Problem, schedule: Schedule, size_bytes: float) -> float:
    """Time of the algorithm at a message size, in µs."""
    return time_us(problem, timed(problem, schedule, size_bytes))


def resource_loads_us(problem: Problem, schedule: Schedule) -> Floats:
    """How long a timed schedule keeps each resource busy, in µs, shape (nresources,)."""
    net = problem.network
    _, rate, uses_ptr, uses_idx, _, takes = net.carriers
    count = np.diff(uses_ptr)[schedule.link]
    used = uses_idx[row_entries(uses_ptr, schedule.link)]
    work = problem.collective.chunk_bytes(schedule.size_bytes)[schedule.chunk] * US_PER_BYTE_AT_1_GBS
    work = work * (takes / rate)[schedule.link]
    return np.bincount(used, np.repeat(work, count), net.nresources) / net.capacity_gbs


@lru_cache(maxsize=16)
def _network_columns(net: Network, run: Runner) -> list[Any]:
    """A network as `_set_times` takes it.

    α, bandwidth, gap and what it takes of every link and hyperlink; as CSR the exclusive resources of each, then its
    shared ones (some link through them is narrower); where the sends in flight through every resource are kept, never
    more than one a link, in slots for twice as many; capacities.
    """
    alpha, rate, uses_ptr, uses, gap, takes = net.carriers
    carrier_of, count = row_of_entry(uses_ptr), len(alpha)
    narrow = takes[carrier_of] < net.capacity_gbs[uses] * (1 - 1e-12)
    is_shared = np.zeros(net.nresources, dtype=bool)
    is_shared[uses[narrow]] = True
    kept = is_shared[uses]
    return run.columns(
        alpha,
        rate,
        gap if len(gap) else np.zeros(count),
        takes,
        pointers(np.bincount(carrier_of[~kept], minlength=count)),
        uses[~kept],
        pointers(np.bincount(carrier_of[kept], minlength=count)),
        uses[kept],
        pointers(2 * np.bincount(uses[kept], minlength=net.nresources)),
        net.capacity_gbs,
    )


def _link_rows(
    chunk: Any, link: Any, step: Any, reduces: Any, adds: Any, waits: Any, nranks: int, src: Any, dst: Any, ptr: Any,
    holders_ptr: Any, holders: Any, sends: Any,
) -> int:  # fmt: skip
    """Set `waits`, two or three numbers a row (three where chunks add). Returns the first row that carries nothing.

    -1 where there is none. `sends`: to hold them by chunk, sends[_SEND * ptr[c] : _SEND * ptr[c + 1]].
    """
    if len(chunk) == 0:
        return -1
    width, nchunks = len(waits) // len(chunk), len(ptr) - 1
    place = [ptr[c] for c in range(nchunks)]
    for row in range(len(chunk)):
        i = _SEND * place[chunk[row]]
        place[chunk[row]] += 1
        sends[i + _ROW], sends[i + _STEP] = row, step[row]
        sends[i + _SRC], sends[i + _DST] = src[link[row]], dst[link[row]]
    held = [-1] * nranks  # the last chunk that the rank held from the beginning
    came = [-1] * nranks  # the last chunk that was sent to the rank; of this chunk:
    head = [_NONE] * nranks  # the last row so far,
    newest = [0] * nranks  # its step,
    top = [0] * nranks  # the largest step,
    rising = [True] * nranks  # whether steps never went down,
    copy = [_NONE] * nranks  # and the last row that replaced what was there
    bad = -1
    for c in range(nchunks):
        if ptr[c] == ptr[c + 1]:
            continue
        for j in range(holders_ptr[c], holders_ptr[c + 1]):
            held[holders[j]] = c
        for i in range(_SEND * ptr[c], _SEND * ptr[c + 1], _SEND):
            row, s, d, at = int(sends[i + _ROW]), sends[i + _SRC], sends[i + _DST], int(sends[i + _STEP])
            feed = _NONE
            if came[s] == c and (adds[c] or held[s] != c):
                feed = head[s] if top[s] < at else _earlier(head[s], rising[s], at, step, waits, width)
            if feed == _NONE and held[s] != c and (bad < 0 or row < bad):
                bad = row
            waits[width * row + _FEED] = feed
            if came[d] != c:
                came[d] = c
                head[d] = copy[d] = _NONE
                newest[d] = top[d] = at
                rising[d] = True
            waits[width * row + _BEFORE] = head[d]
            if adds[c]:
                if reduces[row]:
                    mends = copy[d]
                else:
                    mends = head[d] if top[d] < at else _earlier(head[d], rising[d], at, step, waits, width)
                    copy[d] = row
                waits[width * row + _MENDS] = mends
            rising[d] = rising[d] and at >= newest[d]
            top[d] = max(top[d], at)
            newest[d] = at
            head[d] = row
    return bad


def _earlier(head: int, rising: bool, at: int, step: Any, waits: Any, width: int) -> int:
    """What to wait for: the arrivals of steps before `at` in the list of a cell that begins with row `head`."""
    row = head  # _NONE where the list is empty
    while row >= 0 and step[row] >= at:
        row = int(waits[width * row + _BEFORE])
    if row < 0:
        return _NONE
    return row if rising else -2 - row


def _arrival(
    what: int, latest: bool, at: int, step: Any, link: Any, alpha: Any, end: Any, waits: Any, width: int
) -> float:
    """When the first (or the last) has arrived of what -2 - r stands for."""
    row = -2 - what
    when = float(end[row] + alpha[link[row]])
    row = int(waits[width * row + _BEFORE])
    while row >= 0:
        if step[row] < at:
            then = end[row] + alpha[link[row]]
            when = max(when, then) if latest else min(when, then)
        row = int(waits[width * row + _BEFORE])
    return when


def _set_times(  # over 60 lines: one pass, whose state is too much to hand to a function a row
    chunk: Any, link: Any, step: Any, reduces: Any, adds: Any, waits: Any, joined: Any, alpha: Any, rate: Any, gap: Any,
    takes: Any, own_ptr: Any, own: Any, shared_ptr: Any, shared: Any, slots: Any, capacity: Any, hold: Any, start: Any,
    end: Any, begins: float,
) -> None:  # fmt: skip
    """Set `start` and `end` of every row. `hold`: µs that each chunk holds a link of 1 GB/s; `begins`: of the call.

    joined: of each row, whether it is one send with the row before (no entries: none is).
    """
    if len(chunk) == 0:
        return
    width, nlinks, nresources = len(waits) // len(chunk), len(rate), len(capacity)
    so_far = [0.0] * len(chunk)  # first (of sums: last) arrival in this row's cell up to this row
    link_free, free = [0.0] * nlinks, [0.0] * nresources
    # in flight through a shared resource, from first[r] on: (end, what it takes) ascending
    first, count = [slots[r] for r in range(nresources)], [0] * nresources
    ends, rates = [0.0] * slots[nresources], [0.0] * slots[nresources]
    used, latest = [0.0] * nresources, [0.0] * nresources
    after = 0
    while after < len(chunk):
        first_row = after
        after += 1
        while after < len(joined) and joined[after]:
            after += 1
        c, l = chunk[first_row], link[first_row]  # noqa: E741
        sums, lasts, ready = adds[c], hold[c] / rate[l], begins
        for row in range(first_row, after):
            feed = int(waits[width * row + _FEED])
            if feed >= 0:
                ready = max(ready, so_far[feed])
            elif feed != _NONE:
                ready = max(ready, _arrival(feed, sums, step[row], step, link, alpha, end, waits, width))
            if sums and waits[width * row + _MENDS] != _NONE:
                m = int(waits[width * row + _MENDS])
                if reduces[row]:
                    then = end[m] + alpha[link[m]]
                elif m >= 0:
                    then = so_far[m]
                else:
                    then = _arrival(m, sums, step[row], step, link, alpha, end, waits, width)
                ready = max(ready, then - lasts - alpha[l])
        begin = max(ready, link_free[l])
        for i in range(own_ptr[l], own_ptr[l + 1]):
            begin = max(begin, free[own[i]])
        moved = shared_ptr[l] < shared_ptr[l + 1]
        while moved:
            then = begin
            for i in range(shared_ptr[l], shared_ptr[l + 1]):
                r = shared[i]
                then = max(then, latest[r])
                busy, most = used[r], capacity[r] * SAME
                for k in range(first[r], first[r] + count[r]):
                    if ends[k] > then and busy + takes[l] <= most:
                        break
                    then = max(then, ends[k])
                    busy -= rates[k]
            moved = then != begin
            begin = then
        until = begin + lasts
        busy_until = until + gap[l]
        for i in range(shared_ptr[l], shared_ptr[l + 1]):
            r = shared[i]
            while count[r] and ends[first[r]] <= begin:
                used[r] -= rates[first[r]]
                first[r] += 1
                count[r] -= 1
            if count[r] == 0:
                first[r], used[r] = slots[r], 0.0
            used[r] += takes[l]
            latest[r] = begin
            if first[r] + count[r] == slots[r + 1]:
                for k in range(count[r]):
                    ends[slots[r] + k], rates[slots[r] + k] = ends[first[r] + k], rates[first[r] + k]
                first[r] = slots[r]
            k = first[r] + count[r]
            while k > first[r] and (
                ends[k - 1] > busy_until or (ends[k - 1] == busy_until and rates[k - 1] > takes[l])
            ):
                ends[k], rates[k] = ends[k - 1], rates[k - 1]
                k -= 1
            ends[k], rates[k] = busy_until, takes[l]
            count[r] += 1
        link_free[l] = busy_until
        for i in range(own_ptr[l], own_ptr[l + 1]):
            free[own[i]] = busy_until
        for row in range(first_row, after):
            start[row], end[row] = begin, until
            arrives = until + alpha[l]
            before = waits[width * row + _BEFORE]
            if before != _NONE:
                then = so_far[before]
                arrives = max(arrives, then) if sums else min(arrives, then)
            so_far[row] = arrives
