"""Operations on links with queues, as ASTRA-sim's congestion-aware analytical backend has them; shares no code.

By its sources (astra-network-analytical, Link.cpp, Chunk.cpp; CustomAlgorithm.cc): a link carries one message at a
time, first come first served, and is free again bytes / bandwidth later; the message is at the next device α after
that, and goes on from there (store and forward); a send has ended when its message has arrived; a calculation takes
1 ns; every time is cut to whole ns. Each of the first two rules can be replaced by that of `synth.timing`.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.oracles.operation_order import order_of

Hop = tuple[tuple[int, ...], float, float]  # links, ns, bytes a ns


@dataclass(frozen=True)
class Rules:
    """ends_at_arrival: a send has ended when its message is there; else when it has left.

    stores: a message goes on from a switch when all of it is there; else a path is one link, held as a whole.
    """

    ends_at_arrival: bool = True
    stores: bool = True


def time_ns(
    ranks: Sequence[Sequence[Any]],
    path: Callable[[int, int], Sequence[int]],
    alpha_ns: Mapping[int, float],
    rate: Mapping[int, float],
    rules: Rules = Rules(),
) -> float:
    """When the last operation ends.

    ranks: of each its operations (kind "send", "receive" or else; after, peer, tag, bytes). path: the links from one
    rank to another. alpha_ns, rate (bytes a ns): of a link. Raises ValueError where not all operations end.
    """
    return _Run(ranks, path, alpha_ns, rate, rules).go()


class _Run:
    def __init__(self, ranks: Any, path: Any, alpha_ns: Any, rate: Any, rules: Rules) -> None:
        self.ranks, self.path, self.alpha, self.rate, self.rules = ranks, path, alpha_ns, rate, rules
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.count = 0
        self.busy: set[int] = set()
        self.waiting: list[Any] = []
        self.left, self.frees = order_of(ranks)
        self.arrived: dict[tuple[int, int, int], deque[float]] = defaultdict(deque)
        self.posted: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
        self.open = sum(map(len, ranks))
        self.last = 0.0

    def at(self, when: float, act: Callable[[float], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (float(int(when)), self.count, act))

    def go(self) -> float:
        for rank, own in enumerate(self.ranks):
            for number in range(len(own)):
                if not self.left[rank][number]:
                    self.issue(rank, number, 0.0)
        while self.events:
            when, _, act = heapq.heappop(self.events)
            act(when)
        if self.open:
            raise ValueError(f"{self.open} operations never end")
        return self.last

    def issue(self, rank: int, number: int, now: float) -> None:
        one = self.ranks[rank][number]
        if one.kind == "send":
            self.send(rank, number, now)
        elif one.kind == "receive":
            key = (one.peer, rank, one.tag)
            if self.arrived[key]:
                self.arrived[key].popleft()
                self.at(now, lambda t: self.end(rank, number, t))
            else:
                self.posted[key].append(number)
        else:
            self.at(now + 1, lambda t: self.end(rank, number, t))

    def send(self, rank: int, number: int, now: float) -> None:
        one = self.ranks[rank][number]
        links = list(self.path(rank, one.peer))
        if self.rules.stores:
            hops: list[Hop] = [((link,), self.alpha[link], self.rate[link]) for link in links]
        else:
            hops = [(tuple(links), sum(self.alpha[link] for link in links), min(self.rate[link] for link in links))]
        key = (rank, one.peer, one.tag)

        def hop(which: int, now: float) -> None:
            def left(when: float) -> None:
                if which == len(hops) - 1 and not self.rules.ends_at_arrival:
                    self.end(rank, number, when)

            def there(when: float) -> None:
                if which + 1 < len(hops):
                    hop(which + 1, when)
                    return
                if self.rules.ends_at_arrival:
                    self.end(rank, number, when)
                if self.posted[key]:
                    self.end(one.peer, self.posted[key].popleft(), when)
                else:
                    self.arrived[key].append(when)

            self.waiting.append(
                (hops[which], one.bytes, left, there, (now, one.step, (one.peer - rank) % len(self.ranks)))
            )
            if not self.rules.stores:  # of one age the first in its threadblock, then the nearest
                self.waiting.sort(key=lambda entry: entry[4])
            self.start(now)

        hop(0, now)

    def start(self, now: float) -> None:
        """Start all that finds its links free, in the order it came."""
        still = []
        for entry in self.waiting:
            (links, alpha, rate), size, left, there, _ = entry
            if self.busy.intersection(links):
                still.append(entry)
                continue
            self.busy.update(links)

            def free(when: float, links: tuple[int, ...] = links, left: Callable[[float], None] = left) -> None:
                self.busy.difference_update(links)
                left(when)
                self.start(when)

            self.at(now + alpha + size / rate, there)
            self.at(now + size / rate, free)
        self.waiting = still

    def end(self, rank: int, number: int, now: float) -> None:
        self.open -= 1
        self.last = max(self.last, now)
        for child in self.frees[rank][number]:
            self.left[rank][child] -= 1
            if not self.left[rank][child]:
                self.issue(rank, child, now)
