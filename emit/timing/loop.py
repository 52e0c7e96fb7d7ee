"""The event loop of `emit.timing.predict`, run by `synth.model.compiled.Runner`; one function, as Numba compiles it.

Every threadblock executes its steps in order. What sends asks for its link once its data, its dependency and a FIFO
slot are there. Requests are served by age; one that has to wait holds nothing up but what needs the same place.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

SAME = 1 + 1e-12  # times and sums of rates that differ by rounding only are one

LEAVES, ARRIVES = 0, 1


def execute(  # over 60 lines: one loop over events, compiled as it stands
    first: Any, dep: Any, sends: Any, receives: Any, block_of: Any, tie: Any, link: Any, moves: Any, lasts: Any,
    alpha: Any, rate: Any, uses_ptr: Any, uses: Any, capacity: Any, slots: int, connections: int, start: Any, took: Any,
) -> tuple[float, int]:  # fmt: skip
    """Run a program; returns when its last step ended, in µs, and how many steps ended (fewer: deadlock).

    Args:
        first: the first step of every block, one more entry than blocks.
        dep, sends, receives: of every step, the step it waits for and its connections, -1 where none.
        block_of, tie: of every step; of requests of one age the smaller tie (each different) goes first.
        link: of every connection.
        moves: step s is the transmissions moves[s]..moves[s+1]-1, one after the other (one, where it moves nothing).
        lasts: µs that each transmission of a step that sends holds its link.
        alpha, rate: of every link. uses_ptr, uses: what it takes part in; capacity: of that, GB/s.
        slots: transmissions in flight on a connection before the sender waits.
        connections: how many there are.
        start, took: set for every transmission of a step that sends (when it takes its link) and of one that
            receives (when it has what came, and the slot is free again).
    """
    nblocks, nsteps = len(first) - 1, len(dep)
    at = [int(first[b]) for b in range(nblocks)]
    left = [int(moves[at[b] + 1] - moves[at[b]]) if at[b] < nsteps else 0 for b in range(nblocks)]
    done = [False] * nsteps
    waiter, beside = [-1] * nsteps, [-1] * nblocks  # blocks that wait for a step, as a chain
    sent, came, taken = [0] * connections, [0] * connections, [0] * connections
    wants_data, wants_slot = [-1] * connections, [-1] * connections
    used, holders = [0.0] * len(capacity), [0] * len(capacity)
    queued, behind = [-1] * len(capacity), [-1] * nblocks  # steps that wait for a place, as a chain
    asked = [0.0] * nblocks
    by_tie = [0] * nsteps
    for s in range(nsteps):
        by_tie[tie[s]] = s
    events = [(0.0, 0)]
    events.pop()
    requests = [(0.0, 0)]
    requests.pop()
    todo = [nblocks - 1 - b for b in range(nblocks)]
    now, ended = 0.0, 0
    while True:
        while len(todo):
            b = todo.pop()
            s = at[b]
            while s < first[b + 1]:
                need, into, out = dep[s], receives[s], sends[s]
                if need >= 0 and not done[need]:
                    beside[b] = waiter[need]
                    waiter[need] = b
                    break
                if into >= 0 and came[into] <= taken[into]:
                    wants_data[into] = b
                    break
                if out >= 0 and sent[out] - taken[out] >= slots:
                    wants_slot[out] = b
                    break
                if into >= 0:
                    taken[into] += 1
                    took[moves[s + 1] - left[b]] = now
                    if wants_slot[into] >= 0:
                        todo.append(wants_slot[into])
                        wants_slot[into] = -1
                if out >= 0:
                    sent[out] += 1
                    asked[b] = now
                    heappush(requests, (now, tie[s]))
                    break
                left[b] -= 1
                if left[b]:
                    continue
                done[s] = True
                ended += 1
                while waiter[s] >= 0:
                    todo.append(waiter[s])
                    waiter[s] = beside[waiter[s]]
                s += 1
                if s < nsteps:
                    left[b] = moves[s + 1] - moves[s]
            at[b] = s
        while len(requests):
            _, which = heappop(requests)
            s = by_tie[which]
            l = link[sends[s]]  # noqa: E741
            full = -1
            for i in range(uses_ptr[l], uses_ptr[l + 1]):
                r = uses[i]
                if holders[r] and used[r] + rate[l] > capacity[r] * SAME:
                    full = r
                    break
            if full >= 0:
                behind[block_of[s]] = queued[full]
                queued[full] = s
                continue
            for i in range(uses_ptr[l], uses_ptr[l + 1]):
                holders[uses[i]] += 1
                used[uses[i]] += rate[l]
            start[moves[s + 1] - left[block_of[s]]] = now
            end = now + lasts[s]
            heappush(events, (end, 2 * s + LEAVES))
            heappush(events, (end + alpha[l], 2 * s + ARRIVES))
        if not len(events):
            return now, ended
        together = events[0][0] * SAME
        while len(events) and events[0][0] <= together:
            now, code = heappop(events)
            s = code // 2
            out = sends[s]
            if code % 2 == ARRIVES:
                came[out] += 1
                if wants_data[out] >= 0:
                    todo.append(wants_data[out])
                    wants_data[out] = -1
                continue
            b = block_of[s]
            todo.append(b)
            left[b] -= 1
            if not left[b]:
                done[s] = True
                ended += 1
                while waiter[s] >= 0:
                    todo.append(waiter[s])
                    waiter[s] = beside[waiter[s]]
                at[b] = s + 1
                if s + 1 < nsteps:
                    left[b] = moves[s + 2] - moves[s + 1]
            for i in range(uses_ptr[link[out]], uses_ptr[link[out] + 1]):
                r = uses[i]
                holders[r] -= 1
                used[r] = used[r] - rate[link[out]] if holders[r] else 0.0
                while queued[r] >= 0:
                    freed = queued[r]
                    queued[r] = behind[block_of[freed]]
                    heappush(requests, (asked[block_of[freed]], tie[freed]))
