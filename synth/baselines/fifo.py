"""Baselines whose sends have no order yet, and the queues at links that order sends which nobody has planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush, heapreplace
from typing import Any, NamedTuple

import numpy as np

from synth.baselines.tuning import TUNING
from synth.model.collective import Ints
from synth.model.compiled import Runner, choose_runner
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from synth.verify.algorithm import Algorithm
from topologies.arrays import pointers, ranges


class Unordered(NamedTuple):
    """The sends of an algorithm without an order, for a problem with the chunks that it needs.

    Attributes:
        problem: The problem.
        engine: Name of the algorithms.
        queued: Returns the schedule in the order of its queues, for a size of the smallest chunk in bytes.
        by_step: The schedule in the order of its steps, or None.
        settled: True if the order of the steps is the queues' order at all sizes.
    """

    problem: Problem
    engine: str
    queued: Callable[[float], Schedule]
    by_step: Schedule | None = None
    settled: bool = False

    def algorithms(self, size_bytes: float | None) -> list[Algorithm]:
        """Return algorithms for the order at a message size, or for the distinct orders at two sizes and by step.

        Equal orders are one algorithm. A settled order is always that of the steps.

        Args:
            size_bytes: Message size in bytes; None: smallest chunks of 1 MiB and of 1 KiB, and by step where that is
                known. With more than 200 000 sends only the first order is built.

        Raises:
            NoRoute: `queued` builds messages of which one has no route.
            TooManySends: `queued` builds more sends than it may.
        """
        algorithms: list[Algorithm] = []
        for schedule in self._orders(size_bytes):
            if is_new(schedule, algorithms):
                algorithms.append(Algorithm(self.problem, schedule, self.engine))
            if len(schedule) > TUNING.ordered_once:
                break
        return algorithms

    def _orders(self, size_bytes: float | None) -> Iterator[Schedule]:
        """Yield the schedules in the orders to try: those of the queues unless the order is settled, then that by step.

        The order by step is left out where it is not known, and for a message size unless the order is settled.

        Args:
            size_bytes: Message size in bytes; None: the sizes of the tuning, and by step.
        """
        smallest = float(self.problem.collective.fraction.min())
        if not self.settled:
            yield from map(self.queued, TUNING.orders_bytes if size_bytes is None else (size_bytes * smallest,))
        if self.by_step is not None and (self.settled or size_bytes is None):
            yield self.by_step


def stepped(problem: Problem, schedule: Schedule, engine: str, settled: bool = False) -> Unordered:
    """Return a plan of the sends of a schedule, in the order of its rows, or as ports serve them.

    Args:
        problem: The problem.
        schedule: The sends in the order of their steps.
        engine: Name of the algorithms.
        settled: True if ports serve them in this order at all sizes, so that no queues are run.
    """
    return Unordered(problem, engine, partial(served, problem, schedule), schedule, settled)


def is_new(schedule: Schedule, algorithms: list[Algorithm]) -> bool:
    """Return True if none of the algorithms has the same sends in the same order; times do not count."""
    columns = [(name, getattr(schedule, name)) for name in ("chunk", "link", "step", "reduces")]
    return not any(
        all(np.array_equal(getattr(a.schedule, name), column) for name, column in columns) for a in algorithms
    )


def served(problem: Problem, schedule: Schedule, chunk_bytes: float) -> Schedule:
    """Return the sends in the order in which ports serve them as they come; see `fifo_order`.

    Sends that come at the same time queue in the order of the rows.

    Args:
        problem: The problem.
        schedule: The sends; their times do not count.
        chunk_bytes: Size of the smallest chunk in bytes.
    """
    return schedule.take(fifo_order(problem, schedule.chunk, schedule.link, waits(problem, schedule), chunk_bytes))


def waits(problem: Problem, schedule: Schedule) -> tuple[Ints, Ints]:
    """Return (a, b), int64 (waits,): send a brings what send b carries; a ascending.

    A sum waits for all that comes in earlier steps, a plain value for its first copy, or for nothing at a rank that
    holds it before.

    Args:
        problem: The problem.
        schedule: Its sends, with their steps.
    """
    net, collective = problem.network, problem.collective
    n, steps = problem.nranks, schedule.nsteps
    leaves = schedule.chunk * n + net.src[schedule.link]
    reaches = (schedule.chunk * n + net.dst[schedule.link]) * steps + schedule.step
    order = np.argsort(reaches, kind="stable")
    first = np.searchsorted(reaches[order], leaves * steps)
    count = np.searchsorted(reaches[order], leaves * steps + schedule.step) - first
    plain = ~collective.reduces[schedule.chunk]
    count[plain] = np.minimum(count[plain], 1)
    count[plain & np.isin(leaves, collective.pre[:, 1] * n + collective.pre[:, 0])] = 0
    after = np.repeat(np.arange(len(schedule)), count)
    before = order[ranges(first, count)]
    by_first = np.argsort(before, kind="stable")
    return before[by_first], after[by_first]


def fifo_order(
    problem: Problem, chunk: Ints, link: Ints, edges: tuple[Ints, Ints], chunk_bytes: float, run: Runner | None = None
) -> Ints:
    """Return the order in which sends start if every port serves them as they come.

    A rank's port, or a link that shares nothing, holds a queue of the sends whose chunks have come, and only the first
    of the queue may go. It goes when its link and all resources that the link shares are free; of queues whose first
    send could go, the send that came first goes. The clock is that of `synth.timing.simulate`, except for links
    narrower than a resource: they take their part of it, as if they had all of it for that part of the time.

    Args:
        problem: The problem.
        chunk: Chunk of each send, int, shape (n,). Sends that come at the same time queue in this order.
        link: Link of each send, int, shape (n,).
        edges: (a, b): send a brings what send b carries (b waits for all of its); a ascending.
        chunk_bytes: Bytes of the smallest chunk, which determine how long sends last.
        run: Runner of the loop; None: the interpreter, while that is faster than loading the compiled loop. Both give
            the same order.

    Returns:
        Rows, int, shape (n,).
    """
    net, collective = problem.network, problem.collective
    count = len(chunk)
    before, after = edges
    # A row has what the loop reads for a send: link, chunk, number of sends to wait for, start of its followers.
    sends = np.zeros((count + 1, 4), dtype=np.int32)
    sends[:-1, 0], sends[:-1, 1] = link, chunk
    sends[:-1, 2] = np.bincount(after, minlength=count)
    followers = np.bincount(before, minlength=count)
    np.cumsum(followers, out=sends[1:, 3])
    arrivals = pointers(np.bincount(link[followers > 0], minlength=net.nlinks))
    users = np.bincount(net.uses_idx, minlength=net.nresources)
    exclusive = np.maximum.reduceat(users[net.uses_idx], net.uses_ptr[:-1]) == 1
    # A link's first resource is the port by which it leaves its rank.
    port = np.where(exclusive, -1, net.uses_idx[net.uses_ptr[:-1]])
    queued = 0 if exclusive.all() else count
    hold = collective.chunk_bytes(chunk_bytes / float(collective.fraction.min())) * US_PER_BYTE_AT_1_GBS
    share = net.bandwidth_gbs[net.link_of_use] / net.capacity_gbs[net.uses_idx]
    first = np.flatnonzero(sends[:-1, 2] == 0).astype(np.int32)
    run = run or choose_runner(4e-6 * count)  # The interpreter takes some 4 µs a send.
    columns = run.columns(
        first, sends.ravel(), after.astype(np.int32), hold, net.bandwidth_gbs, net.alpha_us, net.uses_ptr,
        net.uses_idx, share, port, np.zeros(net.nresources), np.zeros(net.nlinks),
        *(np.zeros(queued, dtype=np.int32) for _ in range(2)), *(np.full(net.nresources, -1) for _ in range(2)),
        *(arrivals[:-1].copy() for _ in range(2)), np.zeros(arrivals[-1], dtype=np.int64), np.zeros(arrivals[-1]),
        np.zeros(count, dtype=np.int32),
    )  # fmt: skip
    run(_serve, *columns)
    return np.asarray(columns[-1], dtype=np.int64)


def _serve(  # One long loop over events, whose state is too large to pass on; the interpreter reads locals fastest.
    first: Any, sends: Any, after: Any, hold: Any, rate: Any, alpha: Any, uses_ptr: Any, uses: Any, share: Any,
    port: Any, free: Any, link_free: Any, behind: Any, ticket: Any, front: Any, back: Any, head: Any, tail: Any,
    under_way: Any, arrival: Any, order: Any,
) -> None:  # fmt: skip
    """Write the order in which sends start to `order`; the other arrays are state, and are changed.

    A link's sends arrive in the order in which they start: under_way and arrival[head[link]:tail[link]]. Sends wait at
    a port from front[port] on, each followed by `behind`, in the order of their `ticket`. A heap holds clocks by the
    time when they are due: a link's clock when its next send arrives (before all ports at that time, by row), a port's
    clock when its first send might go (by ticket). Numbers of links follow those of ports.
    """
    nports, count = len(front), len(order)
    started, issued, tickets = 0, 0, 0
    clocks = [(0.0, 0, 0)]
    clocks.pop()
    while issued < len(first) or len(clocks):
        ready, arrived, departing = 0.0, -1, -1
        if issued < len(first):
            low, high = issued, issued + 1
            issued += 1
        else:
            ready, arrived, clock = clocks[0]
            if clock >= nports:
                low, high = sends[4 * arrived + 3], sends[4 * arrived + 7]
                l = clock - nports  # noqa: E741
                head[l] += 1
                if head[l] < tail[l]:
                    heapreplace(clocks, (arrival[head[l]], under_way[head[l]], clock))
                else:
                    heappop(clocks)
            else:
                low, high = 0, 1
                departing = front[clock]
                link = sends[4 * departing]
                begin = max(ready, link_free[link])
                for j in range(uses_ptr[link], uses_ptr[link + 1]):
                    begin = max(begin, free[uses[j]])
                if begin > ready:
                    heapreplace(clocks, (begin, arrived, clock))
                    continue
                front[clock] = behind[departing]
                if behind[departing] >= 0:
                    heapreplace(clocks, (ready, count + ticket[behind[departing]], clock))
                else:
                    heappop(clocks)
        for i in range(low, high):
            send = departing
            if arrived < 0:
                send = first[i]
            elif departing < 0:
                send = after[i]
                sends[4 * send + 2] -= 1
                if sends[4 * send + 2] > 0:
                    continue
            link = sends[4 * send]
            gate = port[link]
            if gate >= 0 and departing < 0:
                ticket[send] = tickets
                tickets += 1
                behind[send] = -1
                if front[gate] >= 0:
                    behind[back[gate]] = send
                    back[gate] = send
                    continue
                front[gate] = send
                back[gate] = send
                heappush(clocks, (ready, count + ticket[send], gate))
                continue
            order[started] = send
            started += 1
            begin = max(ready, link_free[link])
            lasts = hold[sends[4 * send + 1]] / rate[link]
            link_free[link] = begin + lasts
            for j in range(uses_ptr[link], uses_ptr[link + 1]):
                free[uses[j]] = max(free[uses[j]], begin) + lasts * share[j]
            if sends[4 * send + 3] == sends[4 * send + 7]:
                continue
            under_way[tail[link]], arrival[tail[link]] = send, begin + lasts + alpha[link]
            tail[link] += 1
            if tail[link] - head[link] == 1:
                heappush(clocks, (arrival[head[link]], send, nports + link))
