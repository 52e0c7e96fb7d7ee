"""Baselines whose sends have no order yet, and queues at links: in which order sends go when nobody has planned it."""

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
    """What is sent, for a problem with the chunks that this needs.

    Attributes:
        engine: what the algorithms are called.
        queued: the schedule in the order to which its queues come, for a size of the smallest chunk in bytes.
        by_step: None, or the schedule in the order of its steps.
        settled: that order is the queues' for all sizes.
    """

    problem: Problem
    engine: str
    queued: Callable[[float], Schedule]
    by_step: Schedule | None = None
    settled: bool = False

    def algorithms(self, size_bytes: float | None) -> list[Algorithm]:
        """Algorithms for the order at a message size; for the different orders at several, and by step, when None."""
        made: list[Algorithm] = []
        for schedule in self._orders(size_bytes):
            if is_new(schedule, made):
                made.append(Algorithm(self.problem, schedule, self.engine))
            if len(schedule) > TUNING.ordered_once:
                break
        return made

    def _orders(self, size_bytes: float | None) -> Iterator[Schedule]:
        smallest = float(self.problem.collective.fraction.min())
        if not self.settled:
            yield from map(self.queued, TUNING.orders_bytes if size_bytes is None else (size_bytes * smallest,))
        if self.by_step is not None and (self.settled or size_bytes is None):
            yield self.by_step


def stepped(problem: Problem, schedule: Schedule, engine: str, settled: bool = False) -> Unordered:
    """A plan of sends that go by step, or as ports serve them."""
    return Unordered(problem, engine, partial(served, problem, schedule), schedule, settled)


def is_new(schedule: Schedule, made: list[Algorithm]) -> bool:
    """Whether no algorithm has the same sends in the same order."""
    columns = [(name, getattr(schedule, name)) for name in ("chunk", "link", "step", "reduces")]
    return not any(all(np.array_equal(getattr(a.schedule, name), here) for name, here in columns) for a in made)


def served(problem: Problem, schedule: Schedule, chunk_bytes: float) -> Schedule:
    """The same sends in the order in which ports serve them as they come; see `fifo_order`.

    Sends that come at the same time queue in the order of the rows.
    """
    return schedule.take(fifo_order(problem, schedule.chunk, schedule.link, waits(problem, schedule), chunk_bytes))


def waits(problem: Problem, schedule: Schedule) -> tuple[Ints, Ints]:
    """(a, b), int64 (waits,): send a brings what send b carries; a ascending.

    A sum waits for all that comes in earlier steps, a plain value for its first copy.
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
    """The order in which sends start when every port serves them as they come.

    A rank's port, or a link that shares nothing, holds a queue of the sends whose chunks have come, and only the
    first of it may go. It goes when its link and all that this shares with others are free; of several such sends the
    one that came first. The clock is that of `synth.timing.simulate`, but for links that are narrower than a
    resource: they
    take their part of it, as if they had all of it for that part of the time.

    Args:
        chunk, link: int, shape (n,), a send each. Sends that come at the same time queue in this order.
        edges: (a, b): send a brings what send b carries (b waits for all of its); a ascending.
        chunk_bytes: bytes of the smallest chunk, which say how long sends last.
        run: how the loop is run; None: interpreted while that takes less time than to load it. The same order.

    Returns:
        Rows, int, shape (n,).
    """
    net, collective = problem.network, problem.collective
    count = len(chunk)
    before, after = edges
    # what is read together lies together: link, chunk, sends still to come, where the sends that follow begin
    sends = np.zeros((count + 1, 4), dtype=np.int32)
    sends[:-1, 0], sends[:-1, 1] = link, chunk
    sends[:-1, 2] = np.bincount(after, minlength=count)
    followers = np.bincount(before, minlength=count)
    np.cumsum(followers, out=sends[1:, 3])
    arrivals = pointers(np.bincount(link[followers > 0], minlength=net.nlinks))
    users = np.bincount(net.uses_idx, minlength=net.nresources)
    exclusive = np.maximum.reduceat(users[net.uses_idx], net.uses_ptr[:-1]) == 1
    # the first resource of a link is the one that it leaves its rank by
    port = np.where(exclusive, -1, net.uses_idx[net.uses_ptr[:-1]])
    queued = 0 if exclusive.all() else count
    hold = collective.chunk_bytes(chunk_bytes / float(collective.fraction.min())) * US_PER_BYTE_AT_1_GBS
    share = net.bandwidth_gbs[net.link_of_use] / net.capacity_gbs[net.uses_idx]
    first = np.flatnonzero(sends[:-1, 2] == 0).astype(np.int32)
    run = run or choose_runner(4e-6 * count)  # by the interpreter a send takes some 4 µs
    columns = run.columns(
        first, sends.ravel(), after.astype(np.int32), hold, net.bandwidth_gbs, net.alpha_us, net.uses_ptr,
        net.uses_idx, share, port, np.zeros(net.nresources), np.zeros(net.nlinks),
        *(np.zeros(queued, dtype=np.int32) for _ in range(2)), *(np.full(net.nresources, -1) for _ in range(2)),
        *(arrivals[:-1].copy() for _ in range(2)), np.zeros(arrivals[-1], dtype=np.int64), np.zeros(arrivals[-1]),
        np.zeros(count, dtype=np.int32),
    )  # fmt: skip
    run(_serve, *columns)
    return np.asarray(columns[-1], dtype=np.int64)


def _serve(  # over 60 lines: one loop over events, whose state is too much to hand on
    first: Any, sends: Any, after: Any, hold: Any, rate: Any, alpha: Any, uses_ptr: Any, uses: Any, share: Any,
    port: Any, free: Any, link_free: Any, behind: Any, ticket: Any, front: Any, back: Any, head: Any, tail: Any,
    under_way: Any, arrival: Any, order: Any,
) -> None:  # fmt: skip
    """Write `order`.

    What a link has sent arrives in the order sent: under_way and arrival[head[link]:tail[link]]. Sends wait at a port
    from front[port] on, each followed by `behind`, in the order of their `ticket`. A heap holds clocks
    by the time when they are due: a link's when its next send arrives (before all ports at that time, by row), a
    port's when its first send might go (by ticket). Links follow the ports in number.
    """
    nports, count = len(front), len(order)
    done, at, tickets = 0, 0, 0
    clocks = [(0.0, 0, 0)]
    clocks.pop()
    while at < len(first) or len(clocks):
        ready, come, going = 0.0, -1, -1
        if at < len(first):
            low, high = at, at + 1
            at += 1
        else:
            ready, come, clock = clocks[0]
            if clock >= nports:
                low, high = sends[4 * come + 3], sends[4 * come + 7]
                l = clock - nports  # noqa: E741
                head[l] += 1
                if head[l] < tail[l]:
                    heapreplace(clocks, (arrival[head[l]], under_way[head[l]], clock))
                else:
                    heappop(clocks)
            else:
                low, high = 0, 1
                going = front[clock]
                link = sends[4 * going]
                begin = max(ready, link_free[link])
                for j in range(uses_ptr[link], uses_ptr[link + 1]):
                    begin = max(begin, free[uses[j]])
                if begin > ready:
                    heapreplace(clocks, (begin, come, clock))
                    continue
                front[clock] = behind[going]
                if behind[going] >= 0:
                    heapreplace(clocks, (ready, count + ticket[behind[going]], clock))
                else:
                    heappop(clocks)
        for i in range(low, high):
            send = going
            if come < 0:
                send = first[i]
            elif going < 0:
                send = after[i]
                sends[4 * send + 2] -= 1
                if sends[4 * send + 2] > 0:
                    continue
            link = sends[4 * send]
            gate = port[link]
            if gate >= 0 and going < 0:
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
            order[done] = send
            done += 1
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
