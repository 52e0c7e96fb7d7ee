"""Calendars: the use of every resource over time, and where a send of some length fits; loops for `compiled`.

A calendar is a step function of time: breakpoints, and the GB/s in use from each to the next. It begins long before
time 0 with nothing in use, and ends with nothing in use.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from topologies.network import Network

BEFORE = -1e18  # µs, the first breakpoint
_SAME = 1e-9  # tolerance for rounding, relative to a send's length and to a capacity


class Calendars(NamedTuple):
    """The calendars of all resources, and the links that use them.

    Attributes:
        at: Breakpoints in µs, ascending, float, shape (resources, most).
        used: GB/s in use from each breakpoint on, float, shape (resources, most).
        count: Breakpoints of each resource, int, shape (resources,).
        capacity: Capacity of each resource in GB/s, float, shape (resources,).
        uses_ptr: CSR pointer from a link to the resources that it uses.
        uses: Resources of all links, in CSR order.
        rate: Bandwidth of each link in GB/s, float, shape (links,).
    """

    at: Any
    used: Any
    count: Any
    capacity: Any
    uses_ptr: Any
    uses: Any
    rate: Any


def entries_of_calendars(net: Network, sends: int) -> int:
    """Return the number of entries, of 8 bytes, of a network's calendars with room for a number of sends."""
    return 2 * (net.nresources + net.nlinks) * (2 * sends + 4)


def calendars(net: Network, sends: int) -> Calendars:
    """Return empty calendars of a network, each with room for a number of sends."""
    uses_ptr, uses, capacity = net.uses_and_links()
    shape = len(capacity), 2 * sends + 4
    empty = Calendars(
        np.empty(shape),
        np.empty(shape),
        np.zeros(len(capacity), dtype=np.int64),
        np.array(capacity, dtype=np.float64),
        np.array(uses_ptr, dtype=np.int64),
        np.array(uses, dtype=np.int64),
        np.array(net.bandwidth_gbs, dtype=np.float64),
    )
    clear(empty)
    return empty


def clear(calendars: Calendars) -> None:
    """Set all calendars to no use."""
    for r in range(len(calendars.count)):
        calendars.count[r] = 1
        calendars.at[r, 0] = BEFORE
        calendars.used[r, 0] = 0.0


def book(calendars: Calendars, link: int, start: float, busy: float) -> None:
    """Add a send to the calendars of its link and the link's resources, from `start` for `busy` µs.

    It does not check that the send fits, nor that there is room for two more breakpoints.
    """
    for j in range(calendars.uses_ptr[link], calendars.uses_ptr[link + 1]):
        r = calendars.uses[j]
        first = _breakpoint(calendars, r, start)
        last = _breakpoint(calendars, r, start + busy)
        for k in range(first, last):
            calendars.used[r, k] += calendars.rate[link]


def earliest(calendars: Calendars, link: int, ready: float, busy: float) -> float:
    """Return the first time in µs, from `ready` on, at which a send of `busy` µs can start over a link."""
    return _free(calendars, link, ready, busy, False)


def latest(calendars: Calendars, link: int, start: float, busy: float) -> float:
    """Return the last time up to `start` at which a send of `busy` µs can start over a link; it may be before 0."""
    return _free(calendars, link, start, busy, True)


def _free(calendars: Calendars, link: int, begin: float, busy: float, back: bool) -> float:
    """Return the first time in µs from `begin` on at which a send of `busy` µs can start over a link.

    With `back` it is the last time up to `begin`.
    """
    moved = True
    while moved:
        moved = False
        for j in range(calendars.uses_ptr[link], calendars.uses_ptr[link + 1]):
            r = calendars.uses[j]
            if back:
                room = _last_room(calendars, r, begin, busy, calendars.rate[link])
            else:
                room = _first_room(calendars, r, begin, busy, calendars.rate[link])
            if room != begin:
                begin = room
                moved = True
    return begin


def _place(calendars: Calendars, r: int, when: float) -> int:
    """Return the index of resource r's last breakpoint at or before a time in µs; 0 if there is none."""
    low, high = 0, calendars.count[r]
    while high - low > 1:
        middle = (low + high) >> 1
        if calendars.at[r, middle] <= when:
            low = middle
        else:
            high = middle
    return low


def _breakpoint(calendars: Calendars, r: int, when: float) -> int:
    """Return the index of resource r's breakpoint at a time in µs, and add the breakpoint where it is missing."""
    k = _place(calendars, r, when)
    if calendars.at[r, k] == when:
        return k
    count = calendars.count[r]
    for i in range(count, k + 1, -1):
        calendars.at[r, i] = calendars.at[r, i - 1]
        calendars.used[r, i] = calendars.used[r, i - 1]
    calendars.at[r, k + 1] = when
    calendars.used[r, k + 1] = calendars.used[r, k]
    calendars.count[r] = count + 1
    return k + 1


def _first_room(calendars: Calendars, r: int, begin: float, busy: float, rate: float) -> float:
    """Return the first time in µs, from `begin` on, from which `rate` GB/s of resource r are free for `busy` µs."""
    most = calendars.capacity[r] * (1.0 + _SAME) - rate
    count = calendars.count[r]
    for k in range(_place(calendars, r, begin), count):
        if calendars.used[r, k] > most:
            begin = calendars.at[r, k + 1]  # There is a next breakpoint, as nothing is in use after the last.
        elif k + 1 == count or calendars.at[r, k + 1] >= begin + busy * (1.0 - _SAME):
            break
    return begin


def _last_room(calendars: Calendars, r: int, begin: float, busy: float, rate: float) -> float:
    """Return the last time in µs, up to `begin`, from which `rate` GB/s of resource r are free for `busy` µs."""
    most = calendars.capacity[r] * (1.0 + _SAME) - rate
    end = begin + busy
    for k in range(_place(calendars, r, end - busy * _SAME), -1, -1):
        if calendars.used[r, k] > most:
            begin = calendars.at[r, k] - busy
        elif calendars.at[r, k] <= begin + busy * _SAME:
            break
    return begin
