"""Find calls that wait for each other for ever, for example if ranks use two groups in opposite order.

A process is held if each of its threads waits without a time limit in calls that all ranks make. While another call is
under way it is not held, since the callbacks of that call could do anything. Of a group's open calls it reports only
the first: a process that has not made the first has made none of the others. A held process is stuck if each of its
calls lacks a process that is stuck, too, and has not made that call.

Processes report their states at different times. So a deadlock is reported only if all processes report the same state
again: then there was a time at which all states were true, and since nothing that is stuck can go on, they stay true.
All other waits go on until their time-out.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from runtime.torch.failures.causes import Cause
from runtime.torch.failures.wire import Message
from runtime.torch.threads import waiting_threads

_MOST = 64  # Processes that are asked.
_NAMED = 8  # Ranks named in a line.


class HeldCall(NamedTuple):
    """A call in which a process waits.

    Attributes:
        group: Group of the call.
        number: Number of the call in the group.
        text: Text of the call.
        absent: Processes that have not said that they are in the call.
    """

    group: str
    number: int
    text: str
    absent: tuple[str, ...]


@dataclass(frozen=True)
class Held:
    """The state that a held process reports.

    Attributes:
        rank: Its rank in the job.
        calls_made: Number of calls that it has made, by group.
        calls: Calls that hold it.
    """

    rank: int
    calls_made: Mapping[str, int]
    calls: tuple[HeldCall, ...]

    @property
    def message(self) -> Message:
        """Return the state as a dict with the keys "rank", "made" and "calls", as it is sent; `of` reads it."""
        return {"rank": self.rank, "made": dict(self.calls_made), "calls": self.calls}

    @classmethod
    def of(cls, message: Message) -> Held:
        """Read a state that was sent.

        Raises:
            KeyError: A field is missing.
            TypeError: A field has another type.
            ValueError: A field has another shape.
        """
        calls = tuple(HeldCall(group, number, text, tuple(absent)) for group, number, text, absent in message["calls"])
        return cls(int(message["rank"]), dict(message["made"]), calls)

    @property
    def waits(self) -> set[tuple[str, int]]:
        """Return the set of the calls that hold the process, each as (group, number)."""
        return {call[:2] for call in self.calls}


class DeadlockWatch(Protocol):
    """The methods of a `FailureWatch` that this module uses.

    Attributes:
        me: Place of this rank in the group.
        ranks: The members, as the whole job numbers them.
        id: Name that only this group has.
    """

    me: int
    ranks: tuple[int, ...]
    id: str

    def held(self) -> tuple[str, int, list[HeldCall] | None, set[int], float]:
        """Return what holds this rank in the group.

        Returns:
            Name of the group; number of calls made; a list of the first open call, empty if all are over, or None if
            this rank also waits for other things than calls; threads that wait without a limit; start of the first wait
            in seconds.
        """

    def give_up_call(self, cause: Cause) -> None:
        """Stop a call of the group for a cause, and send the cause to the other ranks."""


def own_state(watches: Iterable[DeadlockWatch], helping_threads: set[int | None]) -> tuple[Held | None, float]:
    """Return the state in which this process is held, None if it is not held, and since when by `time.monotonic`.

    Args:
        watches: Watches of all groups of this process.
        helping_threads: Threads that make no calls of their own.
    """
    made_by_group, calls, threads, since, rank = (
        dict[str, int](),
        list[HeldCall](),
        set(waiting_threads),
        time.monotonic(),
        -1,
    )
    for watch in watches:
        group, count, group_calls, waiting_of_group, begun = watch.held()
        if group_calls is None:
            return None, since
        made_by_group[group], since = count, min(since, begun)
        calls += group_calls
        threads |= waiting_of_group
        rank = watch.ranks[watch.me]
    free = set(sys._current_frames()) - threads - helping_threads
    return (Held(rank, made_by_group, tuple(calls)) if calls and not free else None), since


def find_stuck(states: Mapping[str, Held]) -> dict[str, Held]:
    """Return the held processes, by name, that wait for each other for ever, and those that wait for these.

    It is empty if there is no deadlock. `states` has the states by name of all processes that are held, and stays.
    """
    stuck = dict(states)
    while True:
        free = [name for name, state in stuck.items() if not all(_lacking(call, stuck) for call in state.calls)]
        if not free:
            return stuck
        for name in free:
            del stuck[name]


def _lacking(call: HeldCall, stuck: Mapping[str, Held]) -> list[str]:
    """Return the names of the stuck processes that a call still lacks, lowest rank first.

    A call lacks a process that is in `call.absent` and has not made so many calls of the group. It does not lack a
    process that does not know the group.
    """
    group, number, _, absent = call
    missing = [name for name in absent if name in stuck and stuck[name].calls_made.get(group, number) < number]
    return sorted(missing, key=lambda name: stuck[name].rank)


def describe(stuck: Mapping[str, Held]) -> str:
    """Describe a circle of ranks that each wait for the next one, with the same text for the same processes.

    `stuck` is what `find_stuck` returns, not empty.
    """
    name, circle = min(stuck, key=lambda name: stuck[name].rank), list[str]()
    while name not in circle:
        circle.append(name)
        name = _lacking(min(stuck[name].calls), stuck)[0]
    circle = circle[circle.index(name) :]
    first = min(range(len(circle)), key=lambda at: stuck[circle[at]].rank)
    states = [stuck[name] for name in (circle[first:] + circle[:first])[:_NAMED]]
    waits = [f"rank {state.rank} {'in' if at else 'is in'} {min(state.calls).text}" for at, state in enumerate(states)]
    return f"{', '.join(waits)}: each waits for another; all ranks must call them in the same order"


@dataclass
class _DeadlockRound:
    """A round of questions to other processes.

    Attributes:
        until: End of the round by `time.monotonic`, in seconds.
        token: Identifies the round in messages.
        asked_names: Processes that were asked.
        answers: By process, the state that it reported.
        stuck_before: Processes that were stuck in the round before, if this is the second one.
    """

    until: float
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    asked_names: set[str] = field(default_factory=set)
    answers: dict[str, Held | None] = field(default_factory=dict)
    stuck_before: dict[str, Held] = field(default_factory=dict)


class Deadlocks:
    """The search of one process for deadlocks, on the thread that receives messages."""

    def __init__(
        self,
        name: str,
        state: Callable[[], tuple[Held | None, float]],
        tell: Callable[[Iterable[str], Message], None],
        after: float = 1.0,
        answers: float = 1.0,
    ) -> None:
        """Build the search of a process.

        Args:
            name: Name of this process.
            state: Returns what `own_state` returns.
            tell: Sends a message to processes.
            after: Seconds that this process must be held before it asks.
            answers: Seconds to wait for the answers.
        """
        self._name, self._state, self._tell, self._after, self._patience = name, state, tell, after, answers
        self._round: _DeadlockRound | None = None
        self._pause, self._next = after, 0.0

    def look(self, watches: Sequence[DeadlockWatch]) -> None:
        """Ask other processes if this one is held for long, and use the answers that have come.

        It does not wait, so it is called again and again. If two rounds of questions show the same deadlock, all stuck
        processes give up its calls. Nothing is reported if more than 64 processes would be asked.

        Args:
            watches: Watches of all groups of this process.
        """
        now = time.monotonic()
        own, since = self._state() if self._round is not None or now >= self._next else (None, now)
        if own is None or now - since < self._after:
            self._round = None
            self._next = max(self._next, now + self._after / 4)
            return
        if self._round is None:
            self._round = _DeadlockRound(now + self._patience)
        current = self._round
        current.answers[self._name] = own
        self._ask(current)
        if current.asked_names - set(current.answers) and now < current.until:
            return
        stuck = find_stuck({name: state for name, state in current.answers.items() if state is not None})
        if self._name not in stuck or len(current.asked_names) > _MOST:
            self._round, self._next, self._pause = None, now + self._pause, 2 * self._pause
        elif not current.stuck_before:
            self._round = _DeadlockRound(now + self._patience, stuck_before=stuck)
            self._ask(self._round)
        elif all(name in stuck and stuck[name].waits == state.waits for name, state in current.stuck_before.items()):
            self._report(current.stuck_before, watches)
        else:
            self._round = None

    def _ask(self, current: _DeadlockRound) -> None:
        """Ask the processes that a call lacks, or in the second round those that were stuck, each only once a round."""
        states = [state for state in (current.stuck_before or current.answers).values() if state is not None]
        lacked = {name for state in states for call in state.calls for name in call.absent}
        names = (set(current.stuck_before) or lacked) - current.asked_names - {self._name}
        if names:
            current.asked_names |= names
            self._tell(names, {"held?": current.token})

    def hear(self, name: str, message: Message) -> None:
        """Read a message: answer the question of another process, or store an answer to this process's question."""
        if "held?" in message:
            state, _ = self._state()
            self._tell([name], {"held": message["held?"], "state": None if state is None else state.message})
        elif self._round is not None and message["held"] == self._round.token:
            self._round.answers[name] = None if message["state"] is None else Held.of(message["state"])

    def _report(self, stuck: Mapping[str, Held], watches: Sequence[DeadlockWatch]) -> None:
        """Send the deadlock of the processes in `stuck` to all of them, and give up its calls here."""
        message = {
            "stuck": describe(stuck),
            "calls": sorted({call for state in stuck.values() for call in state.waits}),
        }
        self._tell([name for name in stuck if name != self._name], message)
        self.give_up(message, watches)

    def give_up(self, message: Message, watches: Sequence[DeadlockWatch]) -> None:
        """Stop the calls that are stuck, those of `watches` among the group and number pairs in message["calls"].

        The text of the cause is message["stuck"].
        """
        self._round = None
        for group, number in message["calls"]:
            for watch in watches:
                if watch.id == group:
                    watch.give_up_call(Cause(str(message["stuck"]), number))
