"""The clock: steps that hold links for a time and wait for each other, run event by event."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner, is_loaded

SAME = 1 + 1e-12  # times and sums of rates that differ by rounding only are one
TURN_US, MOST_TURNS = 1.0, 16  # of a shared link: the least length, and their number for one transmission
# Transmissions executed by this process from which on the compiled loop pays: by the interpreter one takes 2.4 µs, and
# to import Numba and load the loop takes as long as so many of them (to compile it, once, three times that).
COMPILED_FROM = 400_000
_LOADED_FROM = 40_000  # the same where Numba is there already, as an engine's loops were compiled
_executed = 0  # so far
_LEAVES, _ARRIVES, _FREES, _KINDS = 0, 1, 2, 3  # events


class Clock:
    """Steps and their links, ready to be run at any size."""

    def __init__(
        self,
        *,
        start: Ints,
        dep: Ints,
        sends: Ints,
        receives: Ints,
        block: Ints,
        by_tie: Ints,
        link: Ints,
        moves: Ints,
        alpha_us: Floats,
        rate_gbs: Floats,
        limits: Sequence[Any],
        slots: int,
        gap_us: Floats | None = None,
        start_us: float = 0.0,
        most_turns: int = 1,
        compiled_from: int = COMPILED_FROM,
    ) -> None:
        """
        Args:
            start: the first step of every block, one more entry than blocks.
            dep, sends, receives: of every step, the step it waits for and its connections, -1 where none.
            block: of every step.  by_tie: the steps in the order in which requests of one age are served.
            link: of every connection.
            moves: step s is the transmissions moves[s]..moves[s+1]-1, one after the other (one if it moves nothing).
            alpha_us, rate_gbs: of every link.  limits: as `Network.uses_and_links` has them.
            slots: transmissions in flight on a connection before the sender waits.
            gap_us: of every link, how long a transmission keeps the limits busy after it has left; None: not at all.
            start_us: when all begins.
            most_turns: up to MOST_TURNS, in which transmissions take links: where a threadblock moves less than a link
                carries, as many as want it share it about evenly, whatever their number.
            compiled_from: transmissions executed by this process, from which on the loop runs compiled.
        """
        of_steps = [start, dep, sends, receives, block, by_tie, np.argsort(by_tie), link, moves]
        gap = np.zeros(len(alpha_us)) if gap_us is None or not len(gap_us) else gap_us
        self._fixed: list[Any] = [*of_steps, alpha_us, rate_gbs, gap, *limits]
        self._start_us, self._most_turns = start_us, most_turns
        self._lists: list[Any] = []  # the same for Python's loop, once it is asked for
        self._nmoves, self._nsteps, self._slots = int(moves[-1]), len(dep), slots
        self._compiled_from = compiled_from

    def run(self, lasts_us: Floats, ahead: int = 0) -> tuple[float, bool, Floats, Floats]:
        """Run once.

        Args:
            lasts_us: of every step, how long each of its transmissions holds its link.
            ahead: how many transmissions are about to be executed for other sizes too.

        Returns when the last step ended, in µs; whether all did (else they wait for each other); and of each
        transmission when it took its link and when it was received (0 where not so).
        """
        global _executed
        turns = int(min(max(lasts_us.max(initial=0.0) / TURN_US, 1), self._most_turns))
        _executed += self._nmoves * turns
        least = min(self._compiled_from, _LOADED_FROM) if is_loaded() else self._compiled_from
        runner = Runner(interpreted=_executed + ahead < least)
        fixed = self._fixed
        if runner.interpreted:
            fixed = self._lists = self._lists or runner.columns(*fixed)
        lasts, start, took = runner.columns(lasts_us, np.zeros(self._nmoves), np.zeros(self._nmoves))
        time, ended = runner(_execute, *fixed, self._slots, lasts, start, took, self._start_us, turns)
        return float(time), ended == self._nsteps, np.asarray(start), np.asarray(took)


def _execute(  # over 60 lines: one loop over events, one function as Numba compiles it
    first: Any, dep: Any, sends: Any, receives: Any, block_of: Any, by_tie: Any, tie: Any, link: Any, moves: Any,
    alpha: Any, rate: Any, gap: Any, uses_ptr: Any, uses: Any, capacity: Any, slots: int, lasts: Any, start: Any,
    took: Any, begins: float, turns: int,
) -> tuple[float, int]:  # fmt: skip
    """Run a program; returns when its last step ended, in µs, and how many steps ended (fewer: deadlock).

    Args:
        first: the first step of every block, one more entry than blocks.
        dep, sends, receives: of every step, the step it waits for and its connections, -1 where none.
        block_of, tie: of every step; of requests of one age the smaller tie goes first. by_tie: the step of each.
        link: of every connection.
        moves: step s is the transmissions moves[s]..moves[s+1]-1, one after the other (one, where it moves nothing).
        alpha, rate, gap: of every link. uses_ptr, uses: what it takes part in; capacity: of that, GB/s.
        slots: transmissions in flight on a connection before the sender waits.
        lasts: µs that each transmission of a step that sends holds its link.
        start, took: set for every transmission of a step that sends (when it takes its link) and of one that
            receives (when it has what came, and the slot is free again).
        begins: when all does. turns: in which each transmission takes its link.
    """
    nblocks, nsteps = len(first) - 1, len(dep)
    at = [int(first[b]) for b in range(nblocks)]
    left = [int(moves[at[b] + 1] - moves[at[b]]) if at[b] < nsteps else 0 for b in range(nblocks)]
    done = [False] * nsteps
    waiter, beside = [-1] * nsteps, [-1] * nblocks  # blocks that wait for a step, as a chain
    sent, came, taken = [0] * len(link), [0] * len(link), [0] * len(link)
    wants_data, wants_slot = [-1] * len(link), [-1] * len(link)
    used, holders = [0.0] * len(capacity), [0] * len(capacity)
    queued, behind = [-1] * len(capacity), [-1] * nblocks  # steps that wait for a place, as a chain
    asked = [0.0] * nblocks
    turn = [0] * nblocks  # those that the block's transmission had
    events = [(0.0, 0)]
    events.pop()
    requests = [(0.0, 0)]
    requests.pop()
    todo = [nblocks - 1 - b for b in range(nblocks)]
    now, over, ended = begins, begins, 0
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
            b = block_of[s]
            if turn[b] == 0:
                start[moves[s + 1] - left[b]] = now
            turn[b] += 1
            end = now + lasts[s] / turns
            heappush(events, (end, _KINDS * s + _LEAVES))
            if turn[b] < turns:
                continue
            heappush(events, (end + alpha[l], _KINDS * s + _ARRIVES))
            if gap[l] > 0:
                heappush(events, (end + gap[l], _KINDS * s + _FREES))
        if not len(events):
            return over, ended
        together = events[0][0] * SAME
        while len(events) and events[0][0] <= together:
            now, code = heappop(events)
            s = code // _KINDS
            out = sends[s]
            if code % _KINDS != _FREES:
                over = now
            if code % _KINDS == _ARRIVES:
                came[out] += 1
                if wants_data[out] >= 0:
                    todo.append(wants_data[out])
                    wants_data[out] = -1
                continue
            b = block_of[s]
            if code % _KINDS == _LEAVES and turn[b] < turns:
                asked[b] = now
                heappush(requests, (now, tie[s]))
            elif code % _KINDS == _LEAVES:
                turn[b] = 0
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
                if gap[link[out]] > 0:
                    continue
            for i in range(uses_ptr[link[out]], uses_ptr[link[out] + 1]):
                r = uses[i]
                holders[r] -= 1
                used[r] = used[r] - rate[link[out]] if holders[r] else 0.0
                while queued[r] >= 0:
                    freed = queued[r]
                    queued[r] = behind[block_of[freed]]
                    heappush(requests, (asked[block_of[freed]], tie[freed]))
