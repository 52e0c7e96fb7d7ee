"""Run steps that occupy links for a time and wait for each other, event by event."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np

from emit.timing.links import MessageLinks
from emit.timing.slices import Passes
from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner, is_at_hand, is_little

SAME = 1 + 1e-12  # Times and sums of rates within this factor are equal, because they differ only by rounding.
TURN_US, MOST_TURNS = 1.0, 16  # shortest turn on a shared link, and largest number of turns of one transmission
# Number of transmissions executed by this process from which on the compiled loop pays: the interpreter takes 2.4 µs
# for one, and importing Numba and loading the loop takes twice as long as this many.
COMPILED_FROM = 100_000
_LOADED_FROM = 40_000  # the same number if compiled loops are at hand, because an engine uses them
_executed = 0  # transmissions executed by this process
_LEAVES, _ARRIVES, _FREES, _KINDS = 0, 1, 2, 3  # kinds of events, and their number


class ProgramClock:
    """The steps of a program and their links, ready to be run at any message size."""

    def __init__(
        self,
        steps: Passes,
        by_tie: Ints,
        link: Ints,
        links: MessageLinks,
        rate_gbs: Floats,
        slots: int,
        *,
        start_us: float = 0.0,
        most_turns: int = 1,
        compiled_from: int = COMPILED_FROM,
    ) -> None:
        """Build the clock.

        Args:
            steps: The steps.
            by_tie: Steps in the order in which requests of the same age are served.
            link: Link of every connection.
            links: The links.
            rate_gbs: Rate in GB/s at which a transmission occupies each link.
            slots: Transmissions in flight on a connection before the sender waits.
            start_us: Time in µs at which the run begins.
            most_turns: Largest number of turns (up to MOST_TURNS) in which a transmission takes its link. If a
                threadblock moves less than a link carries, the transmissions that want the link share it about evenly,
                whatever their number.
            compiled_from: Number of transmissions executed by this process from which on the loop runs compiled.
        """
        gap = links.gap_us
        if gap is None or not len(gap):
            gap = np.zeros(len(links.alpha_us))
        s = steps
        of_steps = [s.start, s.dep, s.sends, s.receives, s.block, by_tie, np.argsort(by_tie), link]
        self._fixed: list[Any] = [*of_steps, links.alpha_us, rate_gbs * links.holds, gap, *links.limits]
        self._start_us, self._most_turns = start_us, most_turns
        # The fixed arguments as each runner takes them, once it has needed them. Compiled code would be compiled again
        # for arrays that are read-only.
        self._taken: dict[Runner, list[Any]] = {}
        self._nsteps, self._slots = len(s.dep), slots
        self._compiled_from = compiled_from

    def run(self, lasts_us: Floats, ahead: int = 0) -> tuple[float, bool, Floats, Floats]:
        """Run all steps once, from the clock's initial state, and count the executed transmissions of this process.

        Args:
            lasts_us: How long the transmission of each step occupies its link, in µs, shape (steps,); 0 for steps that
                do not send.
            ahead: Number of transmissions that are about to be executed for further sizes; many of them make compiling
                the loop pay.

        Returns:
            The time when the last step ended and its data arrived, in µs; whether all steps ended (if not, they wait
            for each other); the time in µs when each step took its link, and the time when it had received, both of
            shape (steps,) and 0 for a step that does not send or receive.
        """
        global _executed
        turns = int(min(max(lasts_us.max(initial=0.0) / TURN_US, 1), self._most_turns))
        _executed += self._nsteps * turns
        threshold = min(self._compiled_from, _LOADED_FROM) if is_at_hand() else self._compiled_from
        runner = Runner(interpreted=is_little(_executed + ahead, threshold))
        if runner not in self._taken:
            self._taken[runner] = runner.columns(*self._fixed)
        fixed = self._taken[runner]
        durations, start, took = runner.columns(lasts_us, np.zeros(self._nsteps), np.zeros(self._nsteps))
        time, ended = runner(_execute, *fixed, self._slots, durations, start, took, self._start_us, turns)
        return float(time), ended == self._nsteps, np.asarray(start), np.asarray(took)


# One loop over events that Numba compiles as one function, and whose arguments are the columns that Numba takes.
def _execute(
    first: Any, dep: Any, sends: Any, receives: Any, block_of: Any, by_tie: Any, tie: Any, link: Any, alpha: Any,
    rate: Any, gap: Any, uses_ptr: Any, uses: Any, capacity: Any, slots: int, lasts: Any, start: Any,
    took: Any, begins: float, turns: int,
) -> tuple[float, int]:  # fmt: skip
    """Run a program; return when its last step ended, in µs, and how many steps ended (fewer than all: deadlock).

    Args:
        first: First step of every threadblock, with one more entry at the end.
        dep: Step that every step waits for, -1 for none.
        sends: Connection that every step sends on, -1 for none.
        receives: Connection that every step receives from, -1 for none.
        block_of: Threadblock of every step.
        by_tie: Steps in the order of `tie`.
        tie: Place of every step among requests of the same age; the smallest goes first.
        link: Link of every connection.
        alpha: Latency of every link, in µs.
        rate: Rate that a transmission on every link takes of that link's limits, in GB/s.
        gap: How long a transmission keeps the limits of every link busy after it has left the link, in µs.
        uses_ptr: Link l takes part in the limits uses[uses_ptr[l]:uses_ptr[l+1]].
        uses: Limits of all links.
        capacity: Capacity of every limit, in GB/s.
        slots: Transmissions in flight on a connection before the sender waits.
        lasts: How long the transmission of every sending step occupies its link, in µs.
        start: Output, which must hold 0s: the time when the transmission of every sending step takes its link, in µs.
        took: Output, which must hold 0s: the time when every receiving step has its data, and the slot is free again,
            in µs.
        begins: Time when the run begins, in µs.
        turns: Number of equal parts in which each transmission takes its link, requested one after the other.
    """
    nblocks, nsteps = len(first) - 1, len(dep)
    at = [int(first[b]) for b in range(nblocks)]
    is_complete = [False] * nsteps
    waiter, next_waiter = [-1] * nsteps, [-1] * nblocks  # threadblocks that wait for a step, as a linked list
    sent, arrived, received = [0] * len(link), [0] * len(link), [0] * len(link)
    wants_data, wants_slot = [-1] * len(link), [-1] * len(link)
    used, holders = [0.0] * len(capacity), [0] * len(capacity)
    queued, next_queued = [-1] * len(capacity), [-1] * nblocks  # steps that wait for a limit, as a linked list
    requested_at = [0.0] * nblocks
    turns_taken = [0] * nblocks  # by the current transmission of each threadblock
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
                awaited, into, out = dep[s], receives[s], sends[s]
                if awaited >= 0 and not is_complete[awaited]:
                    next_waiter[b] = waiter[awaited]
                    waiter[awaited] = b
                    break
                if into >= 0 and arrived[into] <= received[into]:
                    wants_data[into] = b
                    break
                if out >= 0 and sent[out] - received[out] >= slots:
                    wants_slot[out] = b
                    break
                if into >= 0:
                    received[into] += 1
                    took[s] = now
                    if wants_slot[into] >= 0:
                        todo.append(wants_slot[into])
                        wants_slot[into] = -1
                if out >= 0:
                    sent[out] += 1
                    requested_at[b] = now
                    heappush(requests, (now, tie[s]))
                    break
                is_complete[s] = True
                ended += 1
                while waiter[s] >= 0:
                    todo.append(waiter[s])
                    waiter[s] = next_waiter[waiter[s]]
                s += 1
            at[b] = s
        while len(requests):
            _, tie_of_request = heappop(requests)
            s = by_tie[tie_of_request]
            l = link[sends[s]]  # noqa: E741
            full_limit = -1
            for i in range(uses_ptr[l], uses_ptr[l + 1]):
                r = uses[i]
                if holders[r] and used[r] + rate[l] > capacity[r] * SAME:
                    full_limit = r
                    break
            if full_limit >= 0:
                next_queued[block_of[s]] = queued[full_limit]
                queued[full_limit] = s
                continue
            for i in range(uses_ptr[l], uses_ptr[l + 1]):
                holders[uses[i]] += 1
                used[uses[i]] += rate[l]
            b = block_of[s]
            if turns_taken[b] == 0:
                start[s] = now
            turns_taken[b] += 1
            end = now + lasts[s] / turns
            heappush(events, (end, _KINDS * s + _LEAVES))
            if turns_taken[b] < turns:
                continue
            heappush(events, (end + alpha[l], _KINDS * s + _ARRIVES))
            if gap[l] > 0:
                heappush(events, (end + gap[l], _KINDS * s + _FREES))
        if not len(events):
            return over, ended
        same_time = events[0][0] * SAME
        while len(events) and events[0][0] <= same_time:
            now, code = heappop(events)
            s = code // _KINDS
            out = sends[s]
            if code % _KINDS != _FREES:
                over = now
            if code % _KINDS == _ARRIVES:
                arrived[out] += 1
                if wants_data[out] >= 0:
                    todo.append(wants_data[out])
                    wants_data[out] = -1
                continue
            b = block_of[s]
            if code % _KINDS == _LEAVES and turns_taken[b] < turns:
                requested_at[b] = now
                heappush(requests, (now, tie[s]))
            elif code % _KINDS == _LEAVES:
                turns_taken[b] = 0
                todo.append(b)
                is_complete[s] = True
                ended += 1
                while waiter[s] >= 0:
                    todo.append(waiter[s])
                    waiter[s] = next_waiter[waiter[s]]
                at[b] = s + 1
                if gap[link[out]] > 0:
                    continue
            for i in range(uses_ptr[link[out]], uses_ptr[link[out] + 1]):
                r = uses[i]
                holders[r] -= 1
                used[r] = used[r] - rate[link[out]] if holders[r] else 0.0
                while queued[r] >= 0:
                    queued_step = queued[r]
                    queued[r] = next_queued[block_of[queued_step]]
                    heappush(requests, (requested_at[block_of[queued_step]], tie[queued_step]))
