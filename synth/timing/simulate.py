"""Compute the times of a schedule in microseconds, by the model of time in `docs/pages/guides/reading.md`.

A send of b bytes holds its link for b / bandwidth; the rates of the sends in flight through a shared resource never add
up to more than its capacity; the chunk can be used at the far end α after the send has ended. Where an executor's
costs are on (`topologies.costs`), nothing is sent before the call's start, and after a send its link and the resources
of the link stay busy for the gap.

Joined sends (`Schedule.joined`) are one message: it leaves when all its chunks are ready, holds its link for the sum of
their bytes, and has one gap.

Over a hyperlink (a switch's multicast or reduction) a row is as many sends as it has pairs of ranks, all at the same
time: it starts when all of them can, and takes its resources once.

First, `_link_rows` finds for every send, chunk by chunk, the rows that bring what it carries; this does not depend on
times. Then `_set_times` passes over the rows in their order and sets the times, once for each message size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner, choose_runner, is_little
from synth.model.pairs import ordinary, pairs_of_rows
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from topologies.arrays import pointers, row_entries, row_of_entry
from topologies.errors import ScheduleError
from topologies.network import Network

US_PER_BYTE_AT_1_GBS = 1e-3
SAME = 1 + 1e-12  # Sums of rates that differ by this factor, by rounding only, count as equal.

# One number encodes the arrivals that a row waits for: _NONE for none; r >= 0 for those of row r and of all rows
# before it in the same cell (chunk, rank); -2 - r for those of an earlier step among them.
_NONE = -1
# The types of a clock's columns: chunk, link, step, reduces, adds, waits, joined.
_DTYPES = (np.int64, np.int64, np.int64, np.bool_, np.bool_, np.int32, np.int8)
# How a row belongs to the row before it: the next pair of ranks of the same send, or the next send of one message.
_PAIR, _JOINED = 1, 2
# The columns of `waits`: arrivals that must have come to the row's source; the last row before it into the same cell;
# arrivals that must be at the far end first.
_FEED, _BEFORE, _MENDS = range(3)
# A send as `_link_rows` reads it, in one piece, since the sends of a chunk lie far apart in the columns.
_ROW, _SRC, _DST, _STEP, _SEND = range(5)


@dataclass(frozen=True)
class ClockTuning:
    """Thresholds from which compiled loops time schedules and count their rounds.

    Attributes:
        compiled_from: Sends in a schedule. The interpreter takes about 4 µs a send, and loading Numba and the loops
            takes 0.5 s. The threshold is lower than that suggests because large schedules are timed at several sizes,
            and mostly other loops are already loaded.
        joined_from: Pairs of ranks between which the sends go, where some sends use hyperlinks, which use many
            resources.
    """

    compiled_from: int = 20_000
    joined_from: int = 2_000


TUNING = ClockTuning()
_SEND_S = 4e-6  # Seconds that the interpreter takes to time one send.


def timed(problem: Problem, schedule: Schedule, size_bytes: float, tuning: ClockTuning = TUNING) -> Schedule:
    """Return the schedule with every send as early as its place in the order allows, at a message size in bytes.

    Rows are served in their order: a send starts when what it carries has arrived and its link and shared resources are
    free of the rows before it. The schedule's own times are ignored, rows keep their places, and the argument is not
    changed.

    Raises:
        ScheduleError: The chunk of a send is not at its source, or comes only in a later row; the problem lacks the
            chunk or the link; or there are more than about 2³¹ sends.
    """
    return Clock(problem, schedule, tuning).timed(size_bytes)


class Clock:
    """A clock for one schedule: it sets the schedule's times at any message size.

    It takes O(sends) time, and at most 28 bytes a send besides the schedule and its times. Its constructor raises
    ScheduleError as `timed` does, and ignores the schedule's own times.

    Attributes:
        problem: The problem that the schedule is for.
    """

    def __init__(self, problem: Problem, schedule: Schedule, tuning: ClockTuning = TUNING) -> None:
        net, collective = problem.network, problem.collective
        count, none = len(schedule), np.zeros(0)
        self.problem, self._untimed = problem, replace(schedule, start_us=none, end_us=none)
        run = Runner(interpreted=is_little(count, tuning.compiled_from))
        step = _checked_step(problem, schedule)
        chunk, link = (np.asarray(column, dtype=np.int64) for column in (schedule.chunk, schedule.link))
        reduces, pair, src, dst = np.asarray(schedule.reduces), link, net.src, net.dst
        self._first, joined = None, (schedule.joined * _JOINED).astype(np.int8)
        if not ordinary(net, link):
            row, src, dst = pairs_of_rows(net, link)
            chunk, link, step, reduces, pair = chunk[row], link[row], step[row], reduces[row], np.arange(len(row))
            is_next_pair = np.append(False, row[1:] == row[:-1])
            joined = np.where(is_next_pair, _PAIR, joined[row] if len(joined) else 0).astype(np.int8)
            self._first = np.flatnonzero(~is_next_pair)
            run = Runner(interpreted=is_little(len(row), tuning.joined_from))
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

    def timed(self, size_bytes: float, fraction: Floats | None = None) -> Schedule:
        """Return the schedule with its times at a message size in bytes; it is a new one, with that `size_bytes`.

        `fraction`, of shape (nchunks,), stands for the chunks' parts of the message; None for those of the problem.
        """
        run, fixed = self._fixed
        count = len(fixed[0])
        # A search of many small schedules is as much work as one large schedule.
        if run.interpreted and not choose_runner(_SEND_S * count).interpreted:
            run = Runner(interpreted=False)
            fixed = run.columns(*map(np.asarray, fixed, _DTYPES))
            self._fixed = run, fixed
        chunk_bytes = self.problem.collective.chunk_bytes(size_bytes) if fraction is None else fraction * size_bytes
        hold_us = chunk_bytes * US_PER_BYTE_AT_1_GBS
        columns = run.columns(hold_us, np.zeros(count), np.zeros(count))
        net = self.problem.network
        run(_set_times, *fixed, *_network_columns(net, run), *columns, net.start_us)
        start_us, end_us = (np.asarray(column) for column in columns[1:])
        if self._first is not None:
            start_us, end_us = start_us[self._first], end_us[self._first]
        return replace(self._untimed, start_us=start_us, end_us=end_us, size_bytes=float(size_bytes))


def _checked_step(problem: Problem, schedule: Schedule) -> Ints:
    """Return the steps as the loops take them, int64, shape (sends,).

    They are numbered anew, from 0 in the same order, if one is negative or too large for int32.

    Raises:
        ScheduleError: A chunk or link does not exist, or there are too many sends.
    """
    count, int32 = len(schedule), np.iinfo(np.int32)
    if count > int32.max - 2:
        raise ScheduleError(f"there are {count} sends; the clock can number 2³¹ at most")
    for name, column, end in (
        ("chunk", schedule.chunk, problem.collective.nchunks),
        ("link", schedule.link, problem.network.ncarriers),
    ):
        if count and not (column.min() >= 0 and column.max() < end):
            row = int(np.argmax((column < 0) | (column >= end)))
            raise ScheduleError(f"send {row}: {name} {column[row]} does not exist (0..{end - 1})")
    if count and (schedule.step.min() < 0 or schedule.step.max() > int32.max):
        return np.unique(schedule.step, return_inverse=True)[1]  # Only the order of steps counts.
    return np.asarray(schedule.step, dtype=np.int64)


def time_us(problem: Problem, schedule: Schedule) -> float:
    """Return the time in µs when the last chunk of a timed schedule has arrived; 0 without sends.

    It counts from time 0 of the schedule, so it includes the call's start.
    """
    if not len(schedule):
        return 0.0
    return float((schedule.end_us + problem.network.carriers.alpha_us[schedule.link]).max())


def predict_us(problem: Problem, schedule: Schedule, size_bytes: float) -> float:
    """Return the time of a schedule at a message size in bytes, in µs; the schedule's own times are ignored.

    Raises:
        ScheduleError: The schedule cannot be timed; see `timed`.
    """
    return time_us(problem, timed(problem, schedule, size_bytes))


def resource_loads_us(problem: Problem, schedule: Schedule) -> Floats:
    """Return how long a schedule's bytes would take each resource at its full capacity, in µs, shape (nresources,).

    They are the bytes at the size that the schedule is timed for. Gaps after sends do not count.
    """
    net = problem.network
    _, rate, uses_ptr, uses_idx, _, takes = net.carriers
    count = np.diff(uses_ptr)[schedule.link]
    used = uses_idx[row_entries(uses_ptr, schedule.link)]
    work = problem.collective.chunk_bytes(schedule.size_bytes)[schedule.chunk] * US_PER_BYTE_AT_1_GBS
    work = work * (takes / rate)[schedule.link]
    return np.bincount(used, np.repeat(work, count), net.nresources) / net.capacity_gbs


@lru_cache(maxsize=16)
def _network_columns(net: Network, run: Runner) -> list[Any]:
    """Return the columns of a network as `_set_times` takes them.

    They are: α, bandwidth, gap and used capacity of every link and hyperlink; in CSR form the exclusive resources of
    each, then its shared resources (those that some link uses in part only); the first slot of every resource for its
    sends in flight, with twice as many slots as links use it, since each link has at most one send in flight; and the
    capacities.
    """
    alpha, rate, uses_ptr, uses, gap, takes = net.carriers
    carrier_of, count = row_of_entry(uses_ptr), len(alpha)
    narrow = takes[carrier_of] < net.capacity_gbs[uses] * (1 - 1e-12)
    is_shared = np.zeros(net.nresources, dtype=bool)
    is_shared[uses[narrow]] = True
    in_shared = is_shared[uses]
    return run.columns(
        alpha,
        rate,
        gap if len(gap) else np.zeros(count),
        takes,
        pointers(np.bincount(carrier_of[~in_shared], minlength=count)),
        uses[~in_shared],
        pointers(np.bincount(carrier_of[in_shared], minlength=count)),
        uses[in_shared],
        pointers(2 * np.bincount(uses[in_shared], minlength=net.nresources)),
        net.capacity_gbs,
    )


def _link_rows(  # A loop that Numba compiles takes columns, however many.
    chunk: Any, link: Any, step: Any, reduces: Any, adds: Any, waits: Any, nranks: int, src: Any, dst: Any, ptr: Any,
    holders_ptr: Any, holders: Any, sends: Any,
) -> int:  # fmt: skip
    """Set `waits`, two or three numbers a row (three where chunks add), and return the first row that carries nothing.

    It returns -1 where every row carries something. The sends of chunk c are collected in sends[_SEND * ptr[c] : _SEND
    * ptr[c + 1]].
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
    initial = [-1] * nranks  # the last chunk that the rank held from the beginning
    arrived = [-1] * nranks  # the last chunk that was sent to the rank; the rows below are about its sends
    head = [_NONE] * nranks  # the last row so far
    newest = [0] * nranks  # the step of this last row
    top = [0] * nranks  # the largest step
    rising = [True] * nranks  # whether steps never went down
    copy = [_NONE] * nranks  # the last row that replaced the rank's data
    bad = -1
    for c in range(nchunks):
        if ptr[c] == ptr[c + 1]:
            continue
        for j in range(holders_ptr[c], holders_ptr[c + 1]):
            initial[holders[j]] = c
        for i in range(_SEND * ptr[c], _SEND * ptr[c + 1], _SEND):
            row, s, d, send_step = int(sends[i + _ROW]), sends[i + _SRC], sends[i + _DST], int(sends[i + _STEP])
            feed = _NONE
            if arrived[s] == c and (adds[c] or initial[s] != c):
                feed = head[s] if top[s] < send_step else _earlier(head[s], rising[s], send_step, step, waits, width)
            if feed == _NONE and initial[s] != c and (bad < 0 or row < bad):
                bad = row
            waits[width * row + _FEED] = feed
            if arrived[d] != c:
                arrived[d] = c
                head[d] = copy[d] = _NONE
                newest[d] = top[d] = send_step
                rising[d] = True
            waits[width * row + _BEFORE] = head[d]
            if adds[c]:
                if reduces[row]:
                    mends = copy[d]
                else:
                    mends = (
                        head[d] if top[d] < send_step else _earlier(head[d], rising[d], send_step, step, waits, width)
                    )
                    copy[d] = row
                waits[width * row + _MENDS] = mends
            rising[d] = rising[d] and send_step >= newest[d]
            top[d] = max(top[d], send_step)
            newest[d] = send_step
            head[d] = row
    return bad


def _earlier(head: int, rising: bool, at: int, step: Any, waits: Any, width: int) -> int:
    """Return the number for `waits` of the arrivals before step `at` in a cell's list that begins with row `head`."""
    row = head  # It is _NONE where the list is empty.
    while row >= 0 and step[row] >= at:
        row = int(waits[width * row + _BEFORE])
    if row < 0:
        return _NONE
    return row if rising else -2 - row


def _arrival(
    code: int, latest: bool, at: int, step: Any, link: Any, alpha: Any, end: Any, waits: Any, width: int
) -> float:
    """Return the time in µs of the first (or the latest) arrival that a number -2 - r in `waits` stands for.

    They are the arrivals of steps before `at` among row r and the rows before it in the same cell.
    """
    row = -2 - code
    arrival = float(end[row] + alpha[link[row]])
    row = int(waits[width * row + _BEFORE])
    while row >= 0:
        if step[row] < at:
            row_arrival = end[row] + alpha[link[row]]
            arrival = max(arrival, row_arrival) if latest else min(arrival, row_arrival)
        row = int(waits[width * row + _BEFORE])
    return arrival


def _set_times(  # It exceeds 60 lines: the state of its one pass is too large to hand to a function for each row.
    chunk: Any, link: Any, step: Any, reduces: Any, adds: Any, waits: Any, joined: Any, alpha: Any, rate: Any, gap: Any,
    takes: Any, own_ptr: Any, own: Any, shared_ptr: Any, shared: Any, slots: Any, capacity: Any, hold: Any, start: Any,
    end: Any, begins: float,
) -> None:  # fmt: skip
    """Set `start` and `end` of every row in µs.

    Args:
        chunk: Chunk of each row.
        link: Link of each row.
        step: Step of each row.
        reduces: Whether each row is added at its destination.
        adds: Whether each chunk is a sum.
        waits: Numbers of `_link_rows`.
        joined: _PAIR or _JOINED for each row that starts with the row before it, else 0; empty if none does.
        alpha: α of each link, in µs.
        rate: Bandwidth of each link, in GB/s.
        gap: Time that each link stays busy after a send, in µs.
        takes: Capacity that a send over each link takes from its shared resources, in GB/s.
        own_ptr: First entry in `own` of each link.
        own: Exclusive resources of the links.
        shared_ptr: First entry in `shared` of each link.
        shared: Shared resources of the links.
        slots: First slot of each resource for its sends in flight.
        capacity: Capacity of each resource, in GB/s.
        hold: Time that each chunk would hold a link of 1 GB/s, in µs.
        start: Times at which rows start, to be set.
        end: Times at which rows end, to be set.
        begins: Time at which the call starts to send, in µs.
    """
    if len(chunk) == 0:
        return
    width, nlinks, nresources = len(waits) // len(chunk), len(rate), len(capacity)
    cell_arrival = [0.0] * len(chunk)  # first (for sums: last) arrival in this row's cell up to this row
    link_free, free = [0.0] * nlinks, [0.0] * nresources
    # The sends in flight through shared resource r, from slot first[r] on: (end, capacity taken), ascending.
    first, count = [slots[r] for r in range(nresources)], [0] * nresources
    ends, rates = [0.0] * slots[nresources], [0.0] * slots[nresources]
    used, latest = [0.0] * nresources, [0.0] * nresources
    after = 0
    while after < len(chunk):
        first_row = after
        after += 1
        while after < len(joined) and joined[after]:
            after += 1
        carrier, ready = link[first_row], begins
        duration = hold[chunk[first_row]] / rate[carrier]
        for row in range(first_row + 1, after):
            if joined[row] == _JOINED:
                duration += hold[chunk[row]] / rate[carrier]
        for row in range(first_row, after):
            sums = adds[chunk[row]]
            feed = int(waits[width * row + _FEED])
            if feed >= 0:
                ready = max(ready, cell_arrival[feed])
            elif feed != _NONE:
                ready = max(ready, _arrival(feed, sums, step[row], step, link, alpha, end, waits, width))
            if sums and waits[width * row + _MENDS] != _NONE:
                mended_row = int(waits[width * row + _MENDS])
                if reduces[row]:
                    then = end[mended_row] + alpha[link[mended_row]]
                elif mended_row >= 0:
                    then = cell_arrival[mended_row]
                else:
                    then = _arrival(mended_row, sums, step[row], step, link, alpha, end, waits, width)
                ready = max(ready, then - duration - alpha[carrier])
        begin = max(ready, link_free[carrier])
        for i in range(own_ptr[carrier], own_ptr[carrier + 1]):
            begin = max(begin, free[own[i]])
        delayed = shared_ptr[carrier] < shared_ptr[carrier + 1]
        while delayed:
            then = begin
            for i in range(shared_ptr[carrier], shared_ptr[carrier + 1]):
                r = shared[i]
                then = max(then, latest[r])
                busy, most = used[r], capacity[r] * SAME
                for k in range(first[r], first[r] + count[r]):
                    if ends[k] > then and busy + takes[carrier] <= most:
                        break
                    then = max(then, ends[k])
                    busy -= rates[k]
            delayed = then != begin
            begin = then
        until = begin + duration
        busy_until = until + gap[carrier]
        for i in range(shared_ptr[carrier], shared_ptr[carrier + 1]):
            r = shared[i]
            while count[r] and ends[first[r]] <= begin:
                used[r] -= rates[first[r]]
                first[r] += 1
                count[r] -= 1
            if count[r] == 0:
                first[r], used[r] = slots[r], 0.0
            used[r] += takes[carrier]
            latest[r] = begin
            if first[r] + count[r] == slots[r + 1]:
                for k in range(count[r]):
                    ends[slots[r] + k], rates[slots[r] + k] = ends[first[r] + k], rates[first[r] + k]
                first[r] = slots[r]
            k = first[r] + count[r]
            while k > first[r] and (
                ends[k - 1] > busy_until or (ends[k - 1] == busy_until and rates[k - 1] > takes[carrier])
            ):
                ends[k], rates[k] = ends[k - 1], rates[k - 1]
                k -= 1
            ends[k], rates[k] = busy_until, takes[carrier]
            count[r] += 1
        link_free[carrier] = busy_until
        for i in range(own_ptr[carrier], own_ptr[carrier + 1]):
            free[own[i]] = busy_until
        for row in range(first_row, after):
            start[row], end[row] = begin, until
            arrives = until + alpha[carrier]
            before = waits[width * row + _BEFORE]
            if before != _NONE:
                then = cell_arrival[before]
                arrives = max(arrives, then) if adds[chunk[row]] else min(arrives, then)
            cell_arrival[row] = arrives
