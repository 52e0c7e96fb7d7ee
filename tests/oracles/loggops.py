"""Operations in the LogGOPS model, as in LogGOPSim with o = g = O = 0 and all messages eager.

By its source (LogGOPSim.cpp): a rank has one CPU and one NIC. A send starts when both are free, holds the NIC for its
bytes and has ended at once; L later the first byte is at the other rank, whose CPU and NIC then take the message in
when they are free, and are busy for its bytes. Each of these rules can be replaced by the rule of `synth.timing`. The
model shares no code with the package.
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
    """The rules by which the model differs from ours.

    Attributes:
        one_nic: Whether a rank has one NIC for all its links; else each link has its own.
        cpu: Whether the CPU is busy while a message comes in.
        ends_at_once: Whether a send ends at once; else it ends when its message has left.
        nearest: Whether sends that are ready at one time start in order of step, then of distance to the peer.
    """

    one_nic: bool = True
    cpu: bool = True
    ends_at_once: bool = True
    nearest: bool = False


def time_units(ranks: Sequence[Sequence[Any]], latency: int, gap: int, rules: Rules = Rules()) -> int:
    """Return the time at which the last operation ends.

    Args:
        ranks: The operations of each rank, with kind ("send", "receive" or else), after, peer, tag and bytes.
        latency: L, in any unit of time.
        gap: G, in that unit a byte.
        rules: The rules of the model.

    Raises:
        ValueError: Some operations never end.
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

    def push(self, when: int, event: str, rank: int, number: int, order: int = 0) -> None:
        """Add an event.

        Args:
            when: Time of the event.
            event: Name of the method that handles the event.
            rank: Rank of the operation.
            number: Number of the operation in its rank.
            order: Order that a postponed event keeps among the events of one time; 0: the next one.
        """
        self.count += 1
        heapq.heappush(self.events, (when, order or self.count, event, rank, number))

    def go(self) -> int:
        for rank, operations in enumerate(self.ranks):
            self.ready(rank, [number for number in range(len(operations)) if not self.left[rank][number]], 0)
        while self.events:
            now, order, event, rank, number = heapq.heappop(self.events)
            {"start": self.start, "message": self.message, "end": self.end}[event](now, rank, number, order)
        if self.open:
            raise ValueError(f"{self.open} operations never end")
        return self.last

    def ready(self, rank: int, numbers: Sequence[int], now: int) -> None:
        """Start operations that may start: sends before receives before calculations."""

        def place(number: int) -> tuple[int, ...]:
            operation = self.ranks[rank][number]
            kind = {"send": 0, "receive": 1}.get(operation.kind, 2)
            return (kind, operation.step, (operation.peer - rank) % len(self.ranks)) if self.rules.nearest else (kind,)

        for number in sorted(numbers, key=place):
            self.push(now, "start", rank, number)

    def start(self, now: int, rank: int, number: int, order: int) -> None:
        operation = self.ranks[rank][number]
        key = (operation.peer, rank, operation.tag)
        if operation.kind == "receive":
            if self.came[key]:
                self.end(max(now, self.came[key].popleft()), rank, number)
            else:
                self.posted[key].append(number)
            return
        nic = (rank, 0 if self.rules.one_nic else operation.peer)
        free = max(self.cpu[rank], self.sending[nic] if operation.kind == "send" else 0)
        if free > now:
            self.push(free, "start", rank, number, order)
            return
        if operation.kind != "send":
            self.end(now, rank, number)
            return
        self.sending[nic] = now + (operation.bytes - 1) * self.gap
        self.push(now + self.latency, "message", rank, number)
        if self.rules.ends_at_once:
            self.end(now, rank, number)
        else:
            self.push(self.sending[nic], "end", rank, number)

    def message(self, now: int, source: int, number: int, order: int) -> None:
        """Handle the arrival of the first byte of a message of `source`."""
        operation = self.ranks[source][number]
        nic = (operation.peer, 0 if self.rules.one_nic else source)
        free = max(self.receiving[nic], self.cpu[operation.peer] if self.rules.cpu else 0)
        if free > now:
            self.push(free, "message", source, number, order)
            return
        complete = self.receiving[nic] = now + (operation.bytes - 1) * self.gap
        self.last = max(self.last, complete)
        if self.rules.cpu:
            self.cpu[operation.peer] = complete
        key = (source, operation.peer, operation.tag)
        if self.posted[key]:
            self.end(complete, operation.peer, self.posted[key].popleft())
        else:
            self.came[key].append(complete)

    def end(self, now: int, rank: int, number: int, _: int = 0) -> None:
        """Record the end of an operation, which may be in the future, and start the operations that waited for it."""
        self.open -= 1
        self.last = max(self.last, now)
        free = []
        for child in self.frees[rank][number]:
            self.left[rank][child] -= 1
            if not self.left[rank][child]:
                free.append(child)
        self.ready(rank, free, max(now, self.cpu[rank]))
