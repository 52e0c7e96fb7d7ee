"""Operations on links with queues, as in ASTRA-sim's congestion-aware analytical backend.

By its sources (astra-network-analytical, Link.cpp, Chunk.cpp; CustomAlgorithm.cc): a link carries one message at a
time, first come first served, and is free again bytes / bandwidth later; the message is at the next device α after
that, and goes on from there (store and forward); a send has ended when its message has arrived; a calculation takes
1 ns; every time is cut to whole ns. Each of the first two rules can be replaced by that of `synth.timing`. The model
shares no code with the package.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.oracles.operation_order import order_of

Hop = tuple[tuple[int, ...], float, float]  # (links, latency in ns, bytes a ns)


@dataclass(frozen=True)
class Rules:
    """The rules by which the model differs from ours.

    Attributes:
        ends_at_arrival: Whether a send ends when its message has arrived; else it ends when the message has left.
        stores: Whether a switch forwards a message when all of it has arrived; else a path is one link, held as a
            whole.
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
    """Return the time in ns at which the last operation ends.

    Args:
        ranks: The operations of each rank, with kind ("send", "receive" or else), after, peer, tag and bytes.
        path: Returns the links from one rank to another.
        alpha_ns: Latency of each link in ns.
        rate: Bandwidth of each link in bytes a ns.
        rules: The rules of the model.

    Raises:
        ValueError: Some operations never end.
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

    def at(self, time: float, act: Callable[[float], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (float(int(time)), self.count, act))

    def go(self) -> float:
        for rank, operations in enumerate(self.ranks):
            for number in range(len(operations)):
                if not self.left[rank][number]:
                    self.issue(rank, number, 0.0)
        while self.events:
            time, _, act = heapq.heappop(self.events)
            act(time)
        if self.open:
            raise ValueError(f"{self.open} operations never end")
        return self.last

    def issue(self, rank: int, number: int, now: float) -> None:
        operation = self.ranks[rank][number]
        if operation.kind == "send":
            self.send(rank, number, now)
        elif operation.kind == "receive":
            key = (operation.peer, rank, operation.tag)
            if self.arrived[key]:
                self.arrived[key].popleft()
                self.at(now, lambda t: self.end(rank, number, t))
            else:
                self.posted[key].append(number)
        else:
            self.at(now + 1, lambda t: self.end(rank, number, t))

    def send(self, rank: int, number: int, now: float) -> None:
        operation = self.ranks[rank][number]
        links = list(self.path(rank, operation.peer))
        if self.rules.stores:
            hops: list[Hop] = [((link,), self.alpha[link], self.rate[link]) for link in links]
        else:
            hops = [(tuple(links), sum(self.alpha[link] for link in links), min(self.rate[link] for link in links))]
        key = (rank, operation.peer, operation.tag)

        def hop(hop_number: int, now: float) -> None:
            def on_left(time: float) -> None:
                if hop_number == len(hops) - 1 and not self.rules.ends_at_arrival:
                    self.end(rank, number, time)

            def on_arrival(time: float) -> None:
                if hop_number + 1 < len(hops):
                    hop(hop_number + 1, time)
                    return
                if self.rules.ends_at_arrival:
                    self.end(rank, number, time)
                if self.posted[key]:
                    self.end(operation.peer, self.posted[key].popleft(), time)
                else:
                    self.arrived[key].append(time)

            self.waiting.append(
                (
                    hops[hop_number],
                    operation.bytes,
                    on_left,
                    on_arrival,
                    (now, operation.step, (operation.peer - rank) % len(self.ranks)),
                )
            )
            if not self.rules.stores:  # Of equal age, the earliest step goes first, then the nearest peer.
                self.waiting.sort(key=lambda entry: entry[4])
            self.start(now)

        hop(0, now)

    def start(self, now: float) -> None:
        """Start every waiting message whose links are free, in order of arrival."""
        waiting = []
        for entry in self.waiting:
            (links, alpha, rate), size, on_left, on_arrival, _ = entry
            if self.busy.intersection(links):
                waiting.append(entry)
                continue
            self.busy.update(links)

            def free(time: float, links: tuple[int, ...] = links, on_left: Callable[[float], None] = on_left) -> None:
                self.busy.difference_update(links)
                on_left(time)
                self.start(time)

            self.at(now + alpha + size / rate, on_arrival)
            self.at(now + size / rate, free)
        self.waiting = waiting

    def end(self, rank: int, number: int, now: float) -> None:
        self.open -= 1
        self.last = max(self.last, now)
        for child in self.frees[rank][number]:
            self.left[rank][child] -= 1
            if not self.left[rank][child]:
                self.issue(rank, child, now)
