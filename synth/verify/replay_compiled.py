"""The replay of `synth.verify.replay` for millions of sends. It shares no code with the clock or the engines.

Every function here returns what it found wrong first as (code, …), or code OK; `synth.verify.replay` puts it
into words.
Sums are in `synth.verify.sums_compiled`.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import kernel
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from topologies.arrays import pointers

Sends = NDArray[np.void]
Kind = TypeVar("Kind", bound=np.generic)
# a send as a chunk's replay reads it, in one piece of 32 bytes: sends of a chunk lie far apart in the columns
SEND = np.dtype(
    [
        ("row", np.int32),
        ("src", np.int32),
        ("dst", np.int32),
        ("step", np.int32),
        ("start", np.float64),
        ("arrives", np.float64),
    ]
)
_LAST_STEP = np.iinfo(np.int64).max

OK, ABSENT, EARLY, CLASH, BEFORE, OVERTAKEN, MISSING, ON_LINK, OVER, _UNSORTED = range(10)


class Columns:
    """A schedule and its problem as every kernel takes them: contiguous and writable, so that each is compiled once."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        net, collective = problem.network, problem.collective
        self.problem = problem
        self.chunk, self.link = _column(schedule.chunk, np.int64), _column(schedule.link, np.int64)
        self.step, self.reduces = _column(schedule.step, np.int64), _column(schedule.reduces, np.bool_)
        self.start, self.end = _column(schedule.start_us, np.float64), _column(schedule.end_us, np.float64)
        self.size_bytes = float(schedule.size_bytes)
        self.src, self.dst = _column(net.src, np.int64), _column(net.dst, np.int64)
        self.alpha, self.rate = _column(net.alpha_us, np.float64), _column(net.bandwidth_gbs, np.float64)
        self.sums = _column(collective.reduces, np.bool_)
        self.fraction = _column(collective.fraction, np.float64)
        self.holders_ptr, self.holders = (_column(part, np.int64) for part in collective.holders)
        self.goals_ptr, self.goals = (_column(part, np.int64) for part in collective.goals)


def _column(array: NDArray[Any], dtype: type[Kind]) -> NDArray[Kind]:
    plain: NDArray[Kind] = np.ascontiguousarray(array, dtype=dtype)
    return plain if plain.flags.writeable else plain.copy()


def sensible(columns: Columns, slack: float) -> bool:
    """Whether every row names what exists and holds its link for as long as its bandwidth takes."""
    c = columns
    return bool(
        _sensible(
            c.chunk,
            c.link,
            c.step,
            c.reduces,
            c.start,
            c.end,
            c.sums,
            c.fraction,
            c.size_bytes,
            c.rate,
            slack,
        )
    )


@kernel
def _sensible(
    chunk: Ints, link: Ints, step: Ints, reduces: Bools, start: Floats, end: Floats, sums: Bools, fraction: Floats,
    size_bytes: float, rate: Floats, slack: float,
) -> bool:  # fmt: skip
    for row in range(len(chunk)):
        c, way = chunk[row], link[row]
        if c < 0 or c >= len(sums) or way < 0 or way >= len(rate):
            return False
        if step[row] < 0 or step[row] == _LAST_STEP:
            return False
        if reduces[row] and not sums[c]:
            return False
        off = abs(end[row] - start[row] - fraction[c] * size_bytes / rate[way] / 1e3)
        # a comparison with what is no number is false
        if not (start[row] >= 0 and end[row] < np.inf and off <= slack * max(1.0, end[row])):
            return False
    return True


def side_by_side(columns: Columns, tolerance: float) -> tuple[int, int, int, float]:
    """Whether no link carries two sends at once and no resource more than it can.

    Returns:
        (ON_LINK, row, row, 0), (OVER, resource, row, GB/s), or OK.
    """
    c, net = columns, columns.problem.network
    uses, link_of = net.uses_idx, net.link_of_use
    together = np.bincount(uses, weights=net.bandwidth_gbs[link_of], minlength=net.nresources)
    # all links of a resource together may be no more than it carries: then it is never over capacity
    tight = (together > net.capacity_gbs * (1 + 5e-7))[uses]
    ptr = pointers(np.bincount(link_of[tight], minlength=net.nlinks))
    room = pointers(2 * np.bincount(uses[tight], minlength=net.nresources))
    most = net.capacity_gbs * (1 + 1e-6)
    order = np.zeros(0, dtype=np.int64)
    while True:
        code, first, second, level = _side_by_side(
            order, c.link, c.start, c.end, c.rate, ptr, uses[tight], room, most, tolerance
        )
        if code != _UNSORTED:
            return int(code), int(first), int(second), float(level)
        order = np.argsort(c.start, kind="stable")


@kernel
def _side_by_side(
    order: Ints, link: Ints, start: Floats, end: Floats, rate: Floats, ptr: Ints, uses: Ints, room: Ints,
    most: Floats, tolerance: float,
) -> tuple[int, int, int, float]:  # fmt: skip
    """One pass over the rows in `order` (empty: as they are), in which no link's and no resource's starts go down.

    What is in flight through resource r lies in closes[first[r] : first[r] + count[r]], ascending. There is never
    more than one send a link, and room for two.
    """
    last, since, taken = np.full(len(rate), -1, dtype=np.int64), np.zeros(len(rate)), np.zeros(len(rate))
    first, count = room[:-1].copy(), np.zeros(len(most), dtype=np.int64)
    closes, frees = np.empty(room[-1]), np.empty(room[-1])
    level, newest = np.zeros(len(most)), np.zeros(len(most))
    over, over_row, over_level = -1, -1, 0.0
    for i in range(len(link)):
        row = order[i] if len(order) else i
        way, begin = link[row], start[row]
        if begin < since[way]:
            return _UNSORTED, 0, 0, 0.0
        if begin < taken[way] - tolerance:
            return ON_LINK, last[way], row, 0.0
        last[way], since[way], taken[way] = row, begin, end[row]
        # a send that ends within the tolerance of another's start has made room for it
        until = max(end[row] - tolerance, begin)
        for u in range(ptr[way], ptr[way + 1]):
            r = uses[u]
            if begin < newest[r]:
                return _UNSORTED, 0, 0, 0.0
            newest[r] = begin
            while count[r] and closes[first[r]] <= begin:
                level[r] -= frees[first[r]]
                first[r] += 1
                count[r] -= 1
            if until == begin:
                continue
            if count[r] == 0:
                first[r], level[r] = room[r], 0.0
            level[r] += rate[way]
            if level[r] > most[r] and over < 0:
                over, over_row, over_level = r, row, level[r]
            if first[r] + count[r] == room[r + 1]:
                for k in range(count[r]):
                    closes[room[r] + k], frees[room[r] + k] = closes[first[r] + k], frees[first[r] + k]
                first[r] = room[r]
            k = first[r] + count[r]
            while k > first[r] and closes[k - 1] > until:
                closes[k], frees[k] = closes[k - 1], frees[k - 1]
                k -= 1
            closes[k], frees[k] = until, rate[way]
            count[r] += 1
    if over >= 0:
        return OVER, over, over_row, over_level
    return OK, 0, 0, 0.0


def by_chunk(columns: Columns) -> tuple[Ints, Sends]:
    """Sends of chunk c by step, then row: sends[ptr[c]:ptr[c+1]], each as SEND."""
    c = columns
    step = c.step
    if step.max(initial=0) > np.iinfo(np.int32).max:
        step = np.unique(step, return_inverse=True)[1]  # only their order counts
    sends = np.empty(len(c.chunk), dtype=SEND)
    parts = (c.chunk, c.link, step, c.start, c.end, c.src, c.dst, c.alpha, len(c.sums), sends)
    ptr, rising = _by_chunk(np.zeros(0, dtype=np.int64), *parts)
    if not rising:
        # 16 bits are sorted by radix
        small = step.max() <= np.iinfo(np.uint16).max
        ptr, _ = _by_chunk(np.argsort(step.astype(np.uint16) if small else step, kind="stable"), *parts)
    return ptr, sends


@kernel
def _by_chunk(
    base: Ints, chunk: Ints, link: Ints, step: Ints, start: Floats, end: Floats, src: Ints, dst: Ints, alpha: Floats,
    nchunks: int, sends: Sends,
) -> tuple[Ints, bool]:  # fmt: skip
    """`by_chunk` of rows in the order `base`; empty: as they are, if steps never go down in a chunk then."""
    ptr = np.zeros(nchunks + 2, dtype=np.int64)
    newest = np.zeros(nchunks, dtype=np.int64)
    rising = True
    for row in range(len(chunk)):
        c = chunk[row]
        ptr[c + 2] += 1
        rising = rising and step[row] >= newest[c]
        newest[c] = step[row]
    for c in range(nchunks):
        ptr[c + 2] += ptr[c + 1]
    if not rising and len(base) == 0:
        return ptr[:-1], False
    for i in range(len(chunk)):
        row = base[i] if len(base) else i
        send = sends[ptr[chunk[row] + 1]]
        ptr[chunk[row] + 1] += 1
        send.row, send.step, send.start = row, step[row], start[row]
        send.src, send.dst = src[link[row]], dst[link[row]]
        send.arrives = end[row] + alpha[link[row]]
    return ptr[:-1], True


def plain_values(columns: Columns, ptr: Ints, sends: Sends, tolerance: float) -> tuple[int, int, int, float]:
    """Whether every plain value is where it leaves from when it does, and in the end where it is wanted.

    Returns:
        (ABSENT, row, 0, 0), (EARLY, row, 0, µs at which it came), (MISSING, chunk, rank, 0), or OK.
    """
    c = columns
    nranks = c.problem.network.nranks
    code, first, second, when = _plain_values(
        ptr, sends, c.sums, c.holders_ptr, c.holders, c.goals_ptr, c.goals, nranks, tolerance
    )
    return int(code), int(first), int(second), float(when)


@kernel
def _plain_values(
    ptr: Ints, sends: Sends, sums: Bools, holders_ptr: Ints, holders: Ints, goals_ptr: Ints, goals: Ints, nranks: int,
    tolerance: float,
) -> tuple[int, int, int, float]:  # fmt: skip
    has = np.full(nranks, -1, dtype=np.int64)  # the last chunk that the rank had,
    since = np.zeros(nranks)  # and from when
    for c in range(len(sums)):
        if sums[c]:
            continue
        for i in range(holders_ptr[c], holders_ptr[c + 1]):
            has[holders[i]] = c
            since[holders[i]] = 0.0
        i = ptr[c]
        while i < ptr[c + 1]:
            # what arrives in a step can be sent on in a later one only
            j = i
            while j < ptr[c + 1] and sends[j].step == sends[i].step:
                send = sends[j]
                if has[send.src] != c:
                    return ABSENT, send.row, 0, 0.0
                if send.start < since[send.src] - tolerance:
                    return EARLY, send.row, 0, since[send.src]
                j += 1
            for k in range(i, j):
                to, when = sends[k].dst, sends[k].arrives
                since[to] = min(since[to], when) if has[to] == c else when
                has[to] = c
            i = j
        for i in range(goals_ptr[c], goals_ptr[c + 1]):
            if has[goals[i]] != c:
                return MISSING, c, goals[i], 0.0
    return OK, 0, 0, 0.0
