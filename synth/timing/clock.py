"""The clock of `synth.timing.simulate` for millions of sends: the same times to the last bit, by compiled loops.

First, chunk by chunk, every send learns which rows bring what it carries (`_feed`); this does not depend on times.
Then one pass over the rows in their order sets the times (`_run`). No more than 28 bytes a send beside the result.

What a row waits for is one number: NONE; r >= 0, the arrivals of row r and of all rows before it in the same cell
(chunk, rank); -2 - r, of these only the ones of an earlier step.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import kernel
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from topologies.arrays import pointers
from topologies.network import Network

Rows = NDArray[np.int32]
Sends = NDArray[np.void]
Kind = TypeVar("Kind", bound=np.generic)

NONE = -1
# of a row: what must have come to its source; the last row before it into the same cell; what must be at the far end
FEED, BEFORE, MENDS = range(3)
# a send as `_feed` reads it, in one piece: sends of a chunk lie far apart in the columns
SEND = np.dtype([("row", np.int32), ("src", np.int32), ("dst", np.int32), ("step", np.int32)])


class Prepared:
    """A schedule with all that its times depend on but the message size.

    Attributes:
        bad: -1, or the first row whose chunk has not come to its source before its step.

    Raises:
        ValueError: a chunk or link that the problem does not have, or more rows than 2³¹.
    """

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        net, collective = problem.network, problem.collective
        self._net = net
        self._chunk, self._link = _column(schedule.chunk, np.int64), _column(schedule.link, np.int64)
        self._step, self._reduces = _column(schedule.step, np.int64), _column(schedule.reduces, np.bool_)
        self._adds = _column(collective.reduces, np.bool_)
        count = len(schedule)
        if count > np.iinfo(np.int32).max - 2:
            raise ValueError(f"{count} sends are more than the clock numbers (2³¹)")
        columns = (("chunk", self._chunk, collective.nchunks), ("link", self._link, net.nlinks))
        for name, column, end in columns:
            if count and not (column.min() >= 0 and column.max() < end):
                row = int(np.argmax((column < 0) | (column >= end)))
                raise ValueError(f"send {row}: {name} {column[row]} does not exist (0..{end - 1})")
        if count and (self._step.min() < 0 or self._step.max() > np.iinfo(np.int32).max):
            self._step = np.unique(self._step, return_inverse=True)[1]  # only their order counts
        plan = _plan(net)
        sends = np.empty(count, dtype=SEND)
        ptr = _by_chunk(self._chunk, self._link, self._step, plan.src, plan.dst, collective.nchunks, sends)
        holders_ptr, holders = (_column(part, np.int64) for part in collective.holders)
        self._waits = np.empty((count, 3 if self._adds.any() else 2), dtype=np.int32)
        parts = (self._step, self._reduces, self._adds, holders_ptr, holders, net.nranks, self._waits)
        self.bad = int(_feed(ptr, sends, *parts))

    def starts_and_ends(self, hold: Floats) -> tuple[Floats, Floats]:
        """When every send takes and leaves its link, in µs, as `simulate.timed` defines it; nothing must be `bad`.

        Args:
            hold: float, shape (nchunks,): µs that a chunk holds a link of 1 GB/s.
        """
        start_us, end_us = np.empty(len(self._chunk)), np.empty(len(self._chunk))
        _run(
            self._chunk, self._link, self._step, self._reduces, self._waits, _column(hold, np.float64), self._adds,
            *_plan(self._net)[2:], start_us, end_us,
        )  # fmt: skip
        return start_us, end_us


def _column(array: NDArray[Any], dtype: type[Kind]) -> NDArray[Kind]:
    """The array as every kernel takes it: contiguous and writable, so that each is compiled once."""
    plain: NDArray[Kind] = np.ascontiguousarray(array, dtype=dtype)
    return plain if plain.flags.writeable else plain.copy()


class _Plan(NamedTuple):
    """A network's columns, and as CSR: every link's exclusive resources, its shared ones (some link through them is
    narrower), and for every shared resource where its sends in flight are kept: never more than one a link, and
    room for two."""

    src: Ints
    dst: Ints
    alpha: Floats
    rate: Floats
    own_ptr: Ints
    own: Ints
    shared_ptr: Ints
    shared: Ints
    room: Ints
    capacity: Floats


@lru_cache(maxsize=8)
def _plan(net: Network) -> _Plan:
    link_of, uses = net.link_of_use, net.uses_idx
    narrow = net.bandwidth_gbs[link_of] < net.capacity_gbs[uses] * (1 - 1e-12)
    is_shared = np.zeros(net.nresources, dtype=bool)
    is_shared[uses[narrow]] = True
    kept = is_shared[uses]
    return _Plan(
        _column(net.src, np.int64),
        _column(net.dst, np.int64),
        _column(net.alpha_us, np.float64),
        _column(net.bandwidth_gbs, np.float64),
        pointers(np.bincount(link_of[~kept], minlength=net.nlinks)),
        uses[~kept],
        pointers(np.bincount(link_of[kept], minlength=net.nlinks)),
        uses[kept],
        pointers(2 * np.bincount(uses[kept], minlength=net.nresources)),
        _column(net.capacity_gbs, np.float64),
    )


@kernel
def _by_chunk(chunk: Ints, link: Ints, step: Ints, src: Ints, dst: Ints, nchunks: int, sends: Sends) -> Ints:
    """Sends of chunk c in the order of their rows: sends[ptr[c]:ptr[c+1]]."""
    ptr = np.zeros(nchunks + 2, dtype=np.int64)
    for row in range(len(chunk)):
        ptr[chunk[row] + 2] += 1
    for c in range(nchunks):
        ptr[c + 2] += ptr[c + 1]
    for row in range(len(chunk)):
        send = sends[ptr[chunk[row] + 1]]
        ptr[chunk[row] + 1] += 1
        send.row, send.step = row, step[row]
        send.src, send.dst = src[link[row]], dst[link[row]]
    return ptr[:-1]


@kernel
def _feed(
    ptr: Ints, sends: Sends, step: Ints, reduces: Bools, adds: Bools, holders_ptr: Ints, holders: Ints, nranks: int,
    waits: Rows,
) -> int:  # fmt: skip
    """Sets `waits`. Returns the first row that carries nothing, or -1."""
    held = np.full(nranks, -1, dtype=np.int64)  # the last chunk that the rank held from the beginning
    came = np.full(nranks, -1, dtype=np.int64)  # the last chunk that was sent to the rank; of this chunk:
    head = np.empty(nranks, dtype=np.int32)  # the last row so far,
    newest = np.empty(nranks, dtype=np.int64)  # its step,
    top = np.empty(nranks, dtype=np.int64)  # the largest step,
    rising = np.empty(nranks, dtype=np.bool_)  # whether steps never went down,
    copy = np.empty(nranks, dtype=np.int32)  # and the last row that replaced what was there
    bad = -1
    for c in range(len(ptr) - 1):
        if ptr[c] == ptr[c + 1]:
            continue
        for i in range(holders_ptr[c], holders_ptr[c + 1]):
            held[holders[i]] = c
        for send in sends[ptr[c] : ptr[c + 1]]:
            row, at, s, d = send.row, send.step, send.src, send.dst
            feed = NONE
            if came[s] == c and (adds[c] or held[s] != c):
                feed = head[s] if top[s] < at else _earlier(head[s], rising[s], at, step, waits)
            if feed == NONE and held[s] != c and (bad < 0 or row < bad):
                bad = row
            waits[row, FEED] = feed
            if came[d] != c:
                came[d] = c
                head[d] = copy[d] = NONE
                newest[d] = top[d] = at
                rising[d] = True
            waits[row, BEFORE] = head[d]
            if adds[c]:
                if reduces[row]:
                    waits[row, MENDS] = copy[d]
                else:
                    waits[row, MENDS] = (
                        head[d] if top[d] < at else _earlier(head[d], rising[d], at, step, waits)
                    )
                    copy[d] = row
            rising[d] = rising[d] and at >= newest[d]
            top[d] = max(top[d], at)
            newest[d] = at
            head[d] = row
    return bad


@kernel
def _earlier(head: int, rising: bool, at: int, step: Ints, waits: Rows) -> int:
    """What to wait for: the arrivals of steps before `at` in the list of a cell that begins with row `head`."""
    row = head  # NONE where the list is empty
    while row >= 0 and step[row] >= at:
        row = waits[row, BEFORE]
    if row < 0:
        return NONE
    return row if rising else -2 - row


@kernel
def _arrived(
    what: int, latest: bool, at: int, step: Ints, link: Ints, alpha: Floats, end: Floats, waits: Rows
) -> float:
    """When the first (or the last) has arrived of what -2 - r stands for."""
    row = -2 - what
    when = float(end[row] + alpha[link[row]])
    row = waits[row, BEFORE]
    while row >= 0:
        if step[row] < at:
            then = end[row] + alpha[link[row]]
            when = max(when, then) if latest else min(when, then)
        row = waits[row, BEFORE]
    return when


@kernel
def _run(
    chunk: Ints, link: Ints, step: Ints, reduces: Bools, waits: Rows, hold: Floats, adds: Bools, alpha: Floats,
    rate: Floats, own_ptr: Ints, own: Ints, shared_ptr: Ints, shared: Ints, room: Ints, capacity: Floats,
    start: Floats, end: Floats,
) -> None:  # fmt: skip
    """The pass over the rows; operation by operation that of `simulate`."""
    nlinks, nresources = len(rate), len(capacity)
    so_far = np.empty(len(chunk))  # first (of sums: last) arrival in this row's cell up to this row
    link_free, free = np.zeros(nlinks), np.zeros(nresources)
    # in flight through a shared resource, from first[r] on: (end, rate) ascending
    first, count = room[:-1].copy(), np.zeros(nresources, dtype=np.int64)
    ends, rates = np.empty(room[-1]), np.empty(room[-1])
    used, latest = np.zeros(nresources), np.zeros(nresources)
    for row in range(len(chunk)):
        c, l = chunk[row], link[row]  # noqa: E741
        sums = adds[c]
        feed, ready = waits[row, FEED], 0.0
        if feed >= 0:
            ready = so_far[feed]
        elif feed != NONE:
            ready = _arrived(feed, sums, step[row], step, link, alpha, end, waits)
        lasts = hold[c] / rate[l]
        if sums and waits[row, MENDS] != NONE:
            m = waits[row, MENDS]
            if reduces[row]:
                then = end[m] + alpha[link[m]]
            elif m >= 0:
                then = so_far[m]
            else:
                then = _arrived(m, sums, step[row], step, link, alpha, end, waits)
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
                busy, most = used[r], capacity[r] * (1 + 1e-12)
                for k in range(first[r], first[r] + count[r]):
                    if ends[k] > then and busy + rate[l] <= most:
                        break
                    then = max(then, ends[k])
                    busy -= rates[k]
            moved = then != begin
            begin = then
        until = begin + lasts
        for i in range(shared_ptr[l], shared_ptr[l + 1]):
            r = shared[i]
            while count[r] and ends[first[r]] <= begin:
                used[r] -= rates[first[r]]
                first[r] += 1
                count[r] -= 1
            if count[r] == 0:
                first[r], used[r] = room[r], 0.0
            used[r] += rate[l]
            latest[r] = begin
            if first[r] + count[r] == room[r + 1]:
                for k in range(count[r]):
                    ends[room[r] + k], rates[room[r] + k] = ends[first[r] + k], rates[first[r] + k]
                first[r] = room[r]
            k = first[r] + count[r]
            while k > first[r] and (ends[k - 1] > until or (ends[k - 1] == until and rates[k - 1] > rate[l])):
                ends[k], rates[k] = ends[k - 1], rates[k - 1]
                k -= 1
            ends[k], rates[k] = until, rate[l]
            count[r] += 1
        link_free[l] = until
        for i in range(own_ptr[l], own_ptr[l + 1]):
            free[own[i]] = until
        start[row], end[row] = begin, until
        arrives = until + alpha[l]
        if waits[row, BEFORE] != NONE:
            then = so_far[waits[row, BEFORE]]
            arrives = max(arrives, then) if sums else min(arrives, then)
        so_far[row] = arrives
