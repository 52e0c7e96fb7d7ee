"""Calls that wait for each other for ever, as where ranks use two groups in opposite order: found when it can be known.

A process is held where each of its threads waits, without a limit of its own, in calls of which all ranks make the
same, and it has no other call under way, whose callbacks could do anything. Of a group's calls that are not over it
says the first, however many there are: who has not made that one has made none after it. Of the held processes those
are stuck whose every call lacks one that is stuck too and has not made that call. What processes say of themselves is
said at different times; so it counts only if all of them say the same again: then there was a time at which all of it
held, and since nothing that is stuck can go on, it holds from then on. Of all else nothing is said before the time-out.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from runtime.torch.failures.causes import Cause
from runtime.torch.threads import waiting_threads

Message = dict[str, Any]
_MOST = 64  # processes that are asked
_NAMED = 8  # ranks in a line


class HeldCall(NamedTuple):
    """A call that is waited in. absent: the processes that have not said that they are in it."""

    group: str
    number: int
    text: str
    absent: tuple[str, ...]


@dataclass(frozen=True)
class Held:
    """What a process says of itself: its rank in the job, by group how many calls it has made, and what holds it."""

    rank: int
    made: Mapping[str, int]
    calls: tuple[HeldCall, ...]

    @property
    def message(self) -> Message:
        """To be sent."""
        return {"rank": self.rank, "made": dict(self.made), "calls": self.calls}

    @classmethod
    def of(cls, message: Message) -> Held:
        """What was sent; raises KeyError, TypeError or ValueError where it is something else."""
        calls = tuple(HeldCall(group, number, text, tuple(absent)) for group, number, text, absent in message["calls"])
        return cls(int(message["rank"]), dict(message["made"]), calls)

    @property
    def waits(self) -> set[tuple[str, int]]:
        """The calls, by group and number."""
        return {call[:2] for call in self.calls}


class Watch(Protocol):
    """A `FailureWatch`, as it is seen here."""

    me: int
    ranks: tuple[int, ...]
    id: str

    def held(self) -> tuple[str, int, list[HeldCall] | None, set[int], float]:
        """Group, calls made, the first not over, threads that wait however long; since when.

        That is a list of one, empty where all calls are over; None where more than calls is waited for.
        """

    def give_up_call(self, cause: Cause) -> None:
        """End this call of the group for a cause, and tell the others."""


def own_state(watches: Iterable[Watch], ours: set[int | None]) -> tuple[Held | None, float]:
    """What this process is held in, None where it is not; since when, by `time.monotonic`.

    ours: threads that make no calls of their own.
    """
    made, calls, threads, since, rank = dict[str, int](), list[HeldCall](), set(waiting_threads), time.monotonic(), -1
    for watch in watches:
        group, count, own, waiting, begun = watch.held()
        if own is None:
            return None, since
        made[group], since = count, min(since, begun)
        calls += own
        threads |= waiting
        rank = watch.ranks[watch.me]
    free = set(sys._current_frames()) - threads - ours
    return (Held(rank, made, tuple(calls)) if calls and not free else None), since


def find_stuck(states: Mapping[str, Held]) -> dict[str, Held]:
    """Of held processes, by name, those that wait for each other for ever, and those that wait for these."""
    stuck = dict(states)
    while True:
        free = [name for name, held in stuck.items() if not all(_lacking(call, stuck) for call in held.calls)]
        if not free:
            return stuck
        for name in free:
            del stuck[name]


def _lacking(call: HeldCall, stuck: Mapping[str, Held]) -> list[str]:
    """Who of them has not made a call, lowest rank first."""
    group, number, _, absent = call
    without = [name for name in absent if name in stuck and stuck[name].made.get(group, number) < number]
    return sorted(without, key=lambda name: stuck[name].rank)


def describe(stuck: Mapping[str, Held]) -> str:
    """The calls of a circle of ranks each of which waits for the next one; the same text for the same processes."""
    name, circle = min(stuck, key=lambda name: stuck[name].rank), list[str]()
    while name not in circle:
        circle.append(name)
        name = _lacking(min(stuck[name].calls), stuck)[0]
    circle = circle[circle.index(name) :]
    first = min(range(len(circle)), key=lambda at: stuck[circle[at]].rank)
    held = [stuck[name] for name in (circle[first:] + circle[:first])[:_NAMED]]
    said = [f"rank {one.rank} {'in' if at else 'is in'} {min(one.calls).text}" for at, one in enumerate(held)]
    return f"{', '.join(said)}: each waits for another; all ranks must call them in the same order"


@dataclass
class _Round:
    """Questions under way: who was asked, what they answered; before: who was stuck in the round before this."""

    until: float
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    asked: set[str] = field(default_factory=set)
    answers: dict[str, Held | None] = field(default_factory=dict)
    before: dict[str, Held] = field(default_factory=dict)


class Deadlocks:
    """One process's search for them, on the thread that hears the others."""

    def __init__(
        self,
        name: str,
        state: Callable[[], tuple[Held | None, float]],
        tell: Callable[[Iterable[str], Message], None],
        after: float = 1.0,
        answers: float = 1.0,
    ) -> None:
        """name: of this process; tell: sends messages to others; after: seconds until it asks; answers: for these."""
        self._name, self._state, self._tell, self._after, self._patience = name, state, tell, after, answers
        self._round: _Round | None = None
        self._pause, self._next = after, 0.0

    def look(self, watches: Sequence[Watch]) -> None:
        """Ask, and see what was answered."""
        now = time.monotonic()
        own, since = self._state() if self._round is not None or now >= self._next else (None, now)
        if own is None or now - since < self._after:
            self._round = None
            self._next = max(self._next, now + self._after / 4)
            return
        if self._round is None:
            self._round = _Round(now + self._patience)
        at = self._round
        at.answers[self._name] = own
        self._ask(at)
        if at.asked - set(at.answers) and now < at.until:
            return
        stuck = find_stuck({name: held for name, held in at.answers.items() if held is not None})
        if self._name not in stuck or len(at.asked) > _MOST:
            self._round, self._next, self._pause = None, now + self._pause, 2 * self._pause
        elif not at.before:
            self._round = _Round(now + self._patience, before=stuck)
            self._ask(self._round)
        elif all(name in stuck and stuck[name].waits == held.waits for name, held in at.before.items()):
            self._say(at.before, watches)
        else:
            self._round = None

    def _ask(self, at: _Round) -> None:
        """Who has not been asked yet of those that a call lacks; in the second round of those that were stuck."""
        known = [held for held in (at.before or at.answers).values() if held is not None]
        lacked = {name for held in known for call in held.calls for name in call.absent}
        wanted = (set(at.before) or lacked) - at.asked - {self._name}
        if wanted:
            at.asked |= wanted
            self._tell(wanted, {"held?": at.token})

    def hear(self, name: str, message: Message) -> None:
        """A question, or an answer to this process's."""
        if "held?" in message:
            held, _ = self._state()
            self._tell([name], {"held": message["held?"], "state": None if held is None else held.message})
        elif self._round is not None and message["held"] == self._round.token:
            self._round.answers[name] = None if message["state"] is None else Held.of(message["state"])

    def _say(self, stuck: Mapping[str, Held], watches: Sequence[Watch]) -> None:
        message = {"stuck": describe(stuck), "calls": sorted({wait for held in stuck.values() for wait in held.waits})}
        self._tell([name for name in stuck if name != self._name], message)
        self.give_up(message, watches)

    def give_up(self, message: Message, watches: Sequence[Watch]) -> None:
        """End the calls that are stuck."""
        self._round = None
        for group, number in message["calls"]:
            for watch in watches:
                if watch.id == group:
                    watch.give_up_call(Cause(str(message["stuck"]), number))
