"""Who is to blame when a call fails or takes too long: each rank's watch over its waits for the others of a group.

Where the wrapped back end's connection breaks, `runtime.torch.failures.presence` knows which process has ended, and
why. A rank that gives up a call tells the group's others the cause, and they give up that call for the same cause, also
where they wait for a rank that only waited for the one that ended. At a time-out a rank asks the others what they do
(`runtime.torch.failures.causes`): one whose connection is open is never said to be lost.
"""

from __future__ import annotations

import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from runtime.torch.failures.calls import Calls, Wait
from runtime.torch.failures.causes import FAILED, Cause, Fact, Gone, Waiting, find_cause
from runtime.torch.failures.compare import different_calls
from runtime.torch.failures.deadlock import HeldCall
from runtime.torch.failures.meeting import call_unless, meet
from runtime.torch.failures.presence import End, Presence, presence
from runtime.torch.failures.wire import Message
from runtime.torch.messages import CLOSED_BY_US, Messages, any_closed, close_all, error_text


@dataclass(frozen=True)
class Tuning:
    """Times in seconds."""

    long: float = 1.0  # a wait after which the others are told of it, to find calls that differ
    grace: float = 1.0  # for what a rank sent before it ended, where it did not say that it will make no such call
    making: float = 0.25  # for the making of a group, when one of its ranks has ended
    spread: float = 1.5  # for the cause, where a connection was closed: somebody has given up, and is about to say why
    answers: float = 1.0  # to "what do you do?"
    leaving: float = 30.0  # for a rank that has not made a call which is under way where another leaves the group
    ending: float = 0.25  # of waits, after connections were closed: those that go on are left


_TUNING = Tuning()


class _Key:
    """Of a wait within `FailureWatch.guard`."""


class FailureWatch:
    """One rank's watch over its waits for the others of a group; me: its place there, ranks: the whole job's numbers.

    messages: what is waited for. name: of the group. Without `meet` nothing is known of other ranks, and nothing said.
    """

    def __init__(
        self,
        me: int,
        ranks: Sequence[int],
        messages: Messages | None = None,
        name: str = "",
        tuning: Tuning = _TUNING,
        own: Callable[[], Presence] = presence,
    ) -> None:
        self.me, self.ranks, self.tuning = me, tuple(ranks), tuning
        self._others = [place for place in range(len(self.ranks)) if place != me]
        few = ", ".join(map(str, self.ranks[:16])) + (", …" if len(self.ranks) > 16 else "")
        self.group = f"group {name} (ranks {few})".replace("  ", " ")
        self.messages: Any = messages
        self._own = own
        self._presence: Presence | None = None
        self.id = ""  # a name that only this group has
        self._names: list[str] = []  # by place, of the processes; empty until they have met
        self._change = threading.Condition()
        self._asking = threading.Lock()
        self.calls = Calls()  # of which all ranks make the same
        self.theirs: dict[int, tuple[int, str]] = {}  # by number, who told of its wait in a call, and in which
        self.left: dict[int, Gone] = {}  # by place
        self._heard: dict[int, int] = {}  # by place, the last call whose wait it told of
        self._gave_up: set[int] = set()  # places
        self._answers: dict[int, Message] = {}
        self._question = ""
        self.cause: Cause | None = None
        self._told = False  # the others, of it
        self._woken, self._leaves_at = False, math.inf

    @property
    def ends(self) -> Mapping[str, End]:
        """The processes that have ended, of the whole job; always the same object once ranks have met."""
        return {} if self._presence is None else self._presence.ends

    # ---- meeting

    def meet(self, store: Any, timeout: timedelta, whole_job: bool) -> str:
        """Wait for all ranks of the group, connect to their processes, and give a name that only this group has.

        whole_job: these are all, so that ranks have been numbered anew. Raises RuntimeError, naming who is to blame,
        where one ends meanwhile or does not come in time.
        """
        self._presence = self._own()
        if whole_job:
            self._presence.of_rank.clear()

        def check(names: list[str]) -> None:
            self._names = names
            self._raise_if_gone()

        self._presence.add(self)
        try:
            self._names, self.id = meet(self._presence, store, self.me, self.ranks, timeout, check)
        except RuntimeError as error:  # where the store is gone, somebody may be known to have ended with it
            self._raise_if_gone()
            self._give_up(Cause(error_text(error)))
            raise
        return self.id

    def call_unless_gone(self, function: Callable[[], Any]) -> Any:
        """What it returns, which needs all ranks. Raises what it raises, and RuntimeError soon after one has ended."""

        def in_vain() -> bool:
            return self.cause is not None or self._any_gone(None)

        return call_unless(in_vain, self._raise_if_gone, function, self.tuning.making)

    def _raise_if_gone(self) -> None:
        if self.cause is None and self._any_gone(None):
            self._give_up(find_cause(Waiting(""), self.ranks[self.me], self.group, self._facts(None)))
        if self.cause is not None:
            self._tell_cause()
            raise RuntimeError(self.cause.text)

    # ---- calls and waits

    def issue(self, text: str) -> Waiting:
        """Number the group's next call, of which all ranks make the same."""
        with self._change:
            waiting = self.calls.issue(text)
            assert waiting.number is not None
            place, theirs = self.theirs.pop(waiting.number, (self.me, text))
        if theirs != text:
            self._differ(waiting.number, place, theirs)
        return waiting

    def begin(self, key: Any, waiting: Waiting, thread: int | None = None, limited: bool = False) -> None:
        """A wait begins, of a thread or of none yet; it is forgotten with its key. limited: as in `Wait`."""
        with self._change:
            self.calls.begin_wait(key, Wait(waiting, time.monotonic(), thread, limited))

    def end(self, key: Any, closes: bool = True) -> None:
        """It is over, and with it the call where it `closes` it."""
        with self._change:
            self.calls.end_wait(key, closes)

    @contextmanager
    def guard(self, waiting: Waiting, new: bool = False, closes: bool = True, limited: bool = False) -> Iterator[None]:
        """A context for what needs the other ranks. Raises RuntimeError, naming who is to blame, where it fails.

        new: nothing of it has begun, so it does not where it is known to be in vain. closes: with it the call is over,
        also where it does not fail. limited: as in `Wait`.
        """
        key = _Key()
        self.begin(key, waiting, threading.get_ident(), limited)
        try:
            if new and self._in_vain(Wait(waiting, time.monotonic()), time.monotonic()):
                raise RuntimeError(waiting.text)
            yield
        except BaseException as error:
            closes = True
            if not isinstance(error, RuntimeError):
                raise
            vain = str(error) == waiting.text
            if self.cause is None and not self._woken and not vain and not any_closed(self.messages, self._others):
                raise  # all can be reached: what failed is the call itself
            # when it was too late for one message, Gloo has closed all connections
            late = not self._woken and bool(re.search("timed out|timeout", str(error), re.IGNORECASE))
            text = waiting.text if vain else error_text(error)
            text = text.replace(CLOSED_BY_US, "given up") if self._woken else text
            text = text if text.startswith(waiting.text) else f"{waiting.text}: {text}"
            raise RuntimeError(f"{text}{self._find_cause(waiting, late)}") from None
        finally:
            self.end(key, closes)

    def is_left(self, peers: Collection[int] = ()) -> bool:
        """Whether waits that have not ended are in vain, or those for messages of any of these peers."""
        now = time.monotonic()
        gone = [self._gone(peer) for peer in peers] if self._names else []
        dead = [each is not None and each.closed and now > each.at + self.tuning.grace for each in gone]
        return now > self._leaves_at or (bool(dead) and all(dead))

    def leave(self, why: str = "has left the group", over: bool = True) -> None:
        """Tell the others that this rank makes no more calls. over: those under way come to their end all the same."""
        made, first_open = self.counts()[self.id]
        self._tell({"left": why, "counts": [made, made + 1 if over else first_open]})

    def is_in_call(self) -> bool:
        """Return whether a call that all ranks make is under way, as far as somebody still holds its work."""
        with self._change:
            return any(wait.waiting.number is not None for wait in self.calls.waits())

    def leave_calls(self, are_over: Callable[[float], bool], limit_s: float) -> bool:
        """Wait for the calls under way before this rank leaves the group; return whether they came to their end.

        Those that another rank has not made, long after this one was about to leave, end with an error that names it;
        so does what is not over after `limit_s`. are_over: waits so many seconds, and tells whether all are over.
        """
        begun = time.monotonic()
        while not are_over(self.tuning.leaving):
            with self._change:
                numbers = [wait.waiting.number for wait in self.calls.waits() if wait.waiting.number is not None]
            first = min(numbers, default=None)
            absent = [] if first is None else self._absent_from(first)
            if absent or time.monotonic() > begun + limit_s:
                why = f", which rank {', '.join(map(str, absent))} has not made" if absent else ""
                text = f"rank {self.ranks[self.me]} has left {self.group} amid this call{why}"
                self.give_up_call(Cause(text, first))
                self._end_waits()
                return False
        return True

    def _absent_from(self, number: int) -> list[int]:
        """Return the ranks, as the whole job numbers them, that say that they have not made the call of a number."""
        with self._asking:
            self._ask(Waiting("", number))
            made = {place: answer.get("made") for place, answer in self._answers.items()}
        return sorted(self.ranks[place] for place, calls in made.items() if calls is not None and calls < number)

    # ---- why

    def _find_cause(self, waiting: Waiting, late: bool) -> str:
        """To be put after an error; the first one found is every later call's, too."""
        if not self._names:
            return ""
        with self._asking:
            if self.cause is None and not late:
                self._wait_until(lambda: self.cause is not None or self._any_gone(waiting), self.tuning.spread)
            if self.cause is None and not self._any_gone(waiting):
                self._ask(waiting)
            if self.cause is None:
                self._give_up(find_cause(waiting, self.ranks[self.me], self.group, self._facts(waiting)))
            cause = self.cause
            assert cause is not None
            self._tell_cause()  # also where another found it: some may wait for this rank alone
        if self.ranks[self.me] in cause.blamed:
            return f"; the others gave up waiting for this rank: {cause.text}"
        return f"; {cause.text}"

    def _wait_until(self, over: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._change:
            while not over() and time.monotonic() < until:
                self._change.wait(0.02)  # ends of processes are not notified

    def _any_gone(self, waiting: Waiting | None) -> bool:
        return any(fact.ended is not None for fact in self._facts(waiting).values())

    def _facts(self, waiting: Waiting | None) -> dict[int, Fact]:
        """By job rank, of those that it needs."""
        found = {}
        for place, name in enumerate(self._names):
            if place == self.me or (waiting and waiting.peers is not None and place not in waiting.peers):
                continue
            gone = self._gone(place)
            if gone is None:
                fact = Fact(connected=self._is_open(name), answer=self._answers.get(place))
            elif waiting is not None and gone.is_through(waiting.number):
                fact = Fact(answer={"text": waiting.text, "inside": False, "waits": []})
            else:
                fact = Fact(gone.why, gone.made)
            found[self.ranks[place]] = fact
        return found

    def _gone(self, place: int) -> Gone | None:
        end = self._presence.ends.get(self._names[place]) if self._presence is not None else None
        if end is None or place in self.left:
            return self.left.get(place)
        made, first = end.counts.get(self.id, (None, None))
        return Gone(end.why, made, first, end.at, end.closed)

    def _ask(self, waiting: Waiting) -> None:
        """What the others do."""
        self._answers, self._question = {}, secrets.token_hex(8)
        self._tell({"ask": self._question, "number": waiting.number})
        asked = {place for place, name in enumerate(self._names) if self._is_open(name)}
        self._wait_until(lambda: self.cause is not None or asked <= set(self._answers), self.tuning.answers)

    def _give_up(self, cause: Cause) -> None:
        with self._change:
            self.cause = self.cause or cause
            self._change.notify_all()

    def _tell_cause(self) -> None:
        if self.cause is not None and not self._told:
            self._told = True
            self._tell({"cause": [self.cause.text, self.cause.number, self.cause.blamed]})

    def _differ(self, number: int, place: int, theirs: str) -> None:
        text = different_calls(self.ranks[place], theirs, self.ranks[self.me], self.calls.text(number) or "")
        self._give_up(Cause(text, number))
        self._tell_cause()

    def _is_open(self, name: str) -> bool:
        return self._presence is not None and self._presence.is_open(name)

    def _tell(self, message: Message) -> None:
        if self._presence is not None and self.id:
            names = (name for place, name in enumerate(self._names) if place != self.me)
            self._presence.tell(names, message | {"group": self.id})

    # ---- as the presence's thread calls it

    def state(self, asked: Message) -> Message:
        """What this rank does, for one that asks."""
        with self._change:
            waits = [f"{wait.waiting.text} of {self.group}" for wait in self.calls.waits()[:1]]  # as many as are read
            if asked["group"] != self.id:
                return {"waits": waits}
            number, cause = asked["number"], self.cause
            given_up = None if cause is None else [cause.text, cause.number, cause.blamed]
            text = None if number is None else self.calls.text(number)
            part = {"made": self.calls.made, "text": text, "inside": self.calls.is_open(number)}
            return part | {"waits": waits, "cause": given_up, "group": self.id}

    def held(self) -> tuple[str, int, list[HeldCall] | None, set[int], float]:
        """As `deadlock.Watch` has it."""
        with self._change:
            texts, threads, since = self.calls.held()
            if not texts:
                return self.id, self.calls.made, [], threads, since
            numbers = [number for number in texts if number is not None]
            if len(numbers) < len(texts) or not self._names:
                return self.id, self.calls.made, None, threads, since
            first = min(numbers)  # who has not made this one has made none of those after it
            absent = [name for place, name in enumerate(self._names) if self._heard.get(place, 0) < first]
            absent.remove(self._names[self.me])
            call = HeldCall(self.id, first, f"{texts[first]} of {self.group}", tuple(absent))
            return self.id, self.calls.made, [call], threads, since

    def give_up_call(self, cause: Cause) -> None:
        """End a call that is waited in, and those after it, for a cause that the others are told of."""
        self._give_up(cause)
        self._tell_cause()

    def counts(self) -> Message:
        """For the others, when this process ends or leaves the group."""
        with self._change:
            self.calls.waits()  # which forgets those that have completed
            return {self.id: [self.calls.made, self.calls.first_open()]}

    def failed(self) -> str:
        """For the others, when this process ends."""
        return "" if self.cause is None else FAILED + self.cause.text

    def hear(self, name: str, message: Message) -> None:
        """What another rank says of this group."""
        if not self.id or message.get("group") != self.id or name not in self._names:
            return
        place = self._names.index(name)
        differs = False
        with self._change:
            if "left" in message:
                made, first = message["counts"]
                self.left[place] = Gone(message["left"], made, first, time.monotonic(), closed=False, left=True)
            elif "answer" in message:
                if message["answer"] == self._question:
                    self._answers[place] = message
            elif "cause" in message:
                self._gave_up.add(place)
                text, number, blamed = message["cause"]
                self.cause = self.cause or Cause(text, number, tuple(blamed))
            elif "call" in message:
                number, theirs = message["number"], message["call"]
                self._heard[place] = max(number, self._heard.get(place, 0))
                if number > self.calls.made:
                    self.theirs[number] = place, theirs
                differs = (self.calls.text(number) or theirs) != theirs
            self._change.notify_all()
        if differs:
            self._differ(number, place, theirs)

    def interrupt(self) -> None:
        """End the main thread's wait, so that Ctrl-C is raised there."""
        with self._change:
            waits = [wait for wait in self.calls.waits() if wait.thread == threading.main_thread().ident]
        if waits and not self._woken and self.messages is not None:
            rank = self.ranks[self.me]
            self._give_up(Cause(f"rank {rank} was interrupted", waits[0].waiting.number, (rank,)))
            self._tell_cause()
            self._end_waits()

    def look(self) -> None:
        """End waits that are in vain; tell the others of the first one where it is long, and so of each that lasts."""
        now = time.monotonic()
        with self._change:
            waits = self.calls.waits()
        if self.is_left():
            self.calls.leave()
        if self._woken or self.messages is None:
            return
        counted = [(wait.waiting.number, wait) for wait in waits if wait.waiting.number is not None]
        number, wait = min(counted, key=lambda each: each[0], default=(0, None))
        if wait is not None and not wait.told and now - wait.since > self.tuning.long:
            wait.told = True
            self._tell({"call": self.calls.text(number) or wait.waiting.text, "number": number})
        if any(self._in_vain(wait, now) for wait in waits):
            self._end_waits()

    def _in_vain(self, wait: Wait, now: float) -> bool:
        """Whether a rank that it needs will not do its part."""
        number, cause = wait.waiting.number, self.cause
        if cause is not None and wait.waiting.peers is None:
            return cause.number is None or number is None or number >= cause.number
        if wait.waiting.peers is not None:  # where a connection is closed the wrapped back end sees it by itself
            return bool(self._gave_up.intersection(wait.waiting.peers))
        if self._presence is None:
            return False
        if not self.left and not self._presence.ends:
            return False
        for place in range(len(self._names)):
            gone = self._gone(place)
            if place == self.me or gone is None:
                continue
            vain = wait.since > gone.at or now > gone.at + self.tuning.grace
            if gone.makes_none(number) or (gone.closed and not gone.left and not gone.is_through(number) and vain):
                return True
        return False

    def _end_waits(self) -> None:
        self._woken, self._leaves_at = True, time.monotonic() + self.tuning.ending
        close_all(self.messages, self._others)
