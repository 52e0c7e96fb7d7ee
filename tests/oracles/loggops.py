"""Operations in the LogGOPS model, as LogGOPSim has it with o = g = O = 0 and all messages eager; shares no code.

By its source (LogGOPSim.cpp): a rank has one CPU and one NIC. A send starts when both are free, holds the NIC for its
bytes and has ended at once; L later the first byte is at the other rank, whose CPU and NIC then take the message in
when they are free, and are busy for its bytes. Each of these can be replaced by the rule of `synth.timing`.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.oracles.operation_order import order_of


@dataclass(frozen=True)
class Rules:
    """one_nic: of a rank, for all its links; else each link is one. cpu: busy while a message comes in."""

    one_nic: bool = True
    cpu: bool = True
    ends_at_once: bool = True  # a send; else when it has left
    nearest: bool = (
        False  # of sends that are ready at once those of the earliest steps, then to the nearest rank, first
    )


def time_units(ranks: Sequence[Sequence[Any]], latency: int, gap: int, rules: Rules = Rules()) -> int:
    """When the last operation ends; latency L, gap G a byte, in one unit of time.

    ranks: of each its operations (kind "send", "receive" or else; after, peer, tag, bytes). Raises ValueError where not
    all operations end.
    """
    return _Run(ranks, latency, gap, rules).go()


class _Run:
    def __init__(self, ranks: Any, latency: int, gap: int, rules: Rules) -> None:
        self.ranks, self.latency, self.gap, self.rules = ranks, latency, gap, rules
        self.events: list[tuple[int, int, str, int, int]] = []
        self.count = 0
        self.cpu = [0] * len(ranks)
        self.sending: dict[tuple[int, int], int] = defaultdict(int)
        self.receiving: dict[tuple[int, int], int] = defaultdict(int)
        self.posted: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
        self.came: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
        self.left, self.frees = order_of(ranks)
        self.open = sum(map(len, ranks))
        self.last = 0

    def push(self, when: int, what: str, rank: int, number: int, order: int = 0) -> None:
        """order: of an event that could not happen yet; it stays where it was among those of one time."""
        self.count += 1
        heapq.heappush(self.events, (when, order or self.count, what, rank, number))

    def go(self) -> int:
        for rank, own in enumerate(self.ranks):
            self.ready(rank, [number for number in range(len(own)) if not self.left[rank][number]], 0)
        while self.events:
            now, order, what, rank, number = heapq.heappop(self.events)
            {"start": self.start, "message": self.message, "end": self.end}[what](now, rank, number, order)
        if self.open:
            raise ValueError(f"{self.open} operations never end")
        return self.last

    def ready(self, rank: int, numbers: Sequence[int], now: int) -> None:
        """Operations that may start: sends before receives before calculations."""

        def place(number: int) -> tuple[int, ...]:
            one = self.ranks[rank][number]
            kind = {"send": 0, "receive": 1}.get(one.kind, 2)
            return (kind, one.step, (one.peer - rank) % len(self.ranks)) if self.rules.nearest else (kind,)

        for number in sorted(numbers, key=place):
            self.push(now, "start", rank, number)

    def start(self, now: int, rank: int, number: int, order: int) -> None:
        one = self.ranks[rank][number]
        key = (one.peer, rank, one.tag)
        if one.kind == "receive":
            if self.came[key]:
                self.end(max(now, self.came[key].popleft()), rank, number)
            else:
                self.posted[key].append(number)
            return
        nic = (rank, 0 if self.rules.one_nic else one.peer)
        free = max(self.cpu[rank], self.sending[nic] if one.kind == "send" else 0)
        if free > now:
            self.push(free, "start", rank, number, order)
            return
        if one.kind != "send":
            self.end(now, rank, number)
            return
        self.sending[nic] = now + (one.bytes - 1) * self.gap
        self.push(now + self.latency, "message", rank, number)
        if self.rules.ends_at_once:
            self.end(now, rank, number)
        else:
            self.push(self.sending[nic], "end", rank, number)

    def message(self, now: int, source: int, number: int, order: int) -> None:
        """The first byte of what an operation of `source` sends is there."""
        one = self.ranks[source][number]
        nic = (one.peer, 0 if self.rules.one_nic else source)
        free = max(self.receiving[nic], self.cpu[one.peer] if self.rules.cpu else 0)
        if free > now:
            self.push(free, "message", source, number, order)
            return
        whole = self.receiving[nic] = now + (one.bytes - 1) * self.gap
        self.last = max(self.last, whole)
        if self.rules.cpu:
            self.cpu[one.peer] = whole
        key = (source, one.peer, one.tag)
        if self.posted[key]:
            self.end(whole, one.peer, self.posted[key].popleft())
        else:
            self.came[key].append(whole)

    def end(self, now: int, rank: int, number: int, _: int = 0) -> None:
        """An operation ends at `now`, which may be still to come."""
        self.open -= 1
        self.last = max(self.last, now)
        free = []
        for child in self.frees[rank][number]:
            self.left[rank][child] -= 1
            if not self.left[rank][child]:
                free.append(child)
        self.ready(rank, free, max(now, self.cpu[rank]))
