"""Find the rank to blame when a call fails or takes too long: each rank watches its waits for other ranks of a group.

If the wrapped back end's connection breaks, `runtime.torch.failures.presence` knows which process has ended, and why. A
rank that gives up a call tells the group's other ranks the cause. They give up that call for the same cause, even if
they wait for a rank that itself only waited for the one that ended. At a time-out a rank asks the others what they do
(`runtime.torch.failures.causes`): a rank with an open connection is never called lost.
"""

from __future__ import annotations

import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from runtime.torch.failures.apart import parts_from_bytes, wait_apart
from runtime.torch.failures.calls import Calls, Wait
from runtime.torch.failures.causes import FAILED, Cause, Gone, Waiting, find_cause
from runtime.torch.failures.compare import different_blocks, different_calls
from runtime.torch.failures.deadlock import HeldCall
from runtime.torch.failures.meeting import meet
from runtime.torch.failures.members import Members
from runtime.torch.failures.presence import Presence
from runtime.torch.failures.this_process import presence
from runtime.torch.failures.wire import Message
from runtime.torch.messages import CLOSED_BY_US, Messages, any_closed, close_all, error_text


@dataclass(frozen=True)
class LostTuning:
    """Time limits of a watch, in seconds.

    Attributes:
        long: Duration of a wait after which the other ranks are told of it, to find calls that differ.
        grace: Time for messages that a rank sent before it ended, if it did not say that it makes no such call.
        making: Time that the making of a group may still take after one of its ranks has ended.
        spread: Wait for the cause after a connection was closed: some rank has given up, and will soon say why.
        answers: Wait for answers to the question what a rank does.
        leaving: Wait for a rank that has not made a call under way, while another rank leaves the group.
        ending: Time that waits have to end after connections were closed; waits that go on are left.
    """

    long: float = 1.0
    grace: float = 1.0
    making: float = 0.25
    spread: float = 1.5
    answers: float = 1.0
    leaving: float = 30.0
    ending: float = 0.25


_TUNING = LostTuning()


class _Key:
    """The key of a wait within `FailureWatch.guard`."""


class FailureWatch(Members):
    """A rank's watch over its waits for the other ranks of a group.

    Without `meet` nothing is known of other ranks, and nothing is sent to them.

    Attributes:
        tuning: Time limits.
        messages: The messages that ranks wait for.
        calls: The calls that all ranks make.
        awaited_texts: By the number of a call, the place that told of its wait in it, and the text of that call.
        cause: Cause of the group's failure, or None.
        is_alert: Whether a rank has left, told of its wait or failed lately, so that each call must be examined.
        parts_from_bytes: Size in bytes from which on a message may arrive in parts.
    """

    def __init__(
        self,
        me: int,
        ranks: Sequence[int],
        messages: Messages | None = None,
        name: str = "",
        tuning: LostTuning = _TUNING,
        own: Callable[[], Presence] = presence,
    ) -> None:
        """Build the watch of a group.

        Args:
            me: Place of this rank in the group.
            ranks: The members, as the whole job numbers them.
            messages: The messages that ranks wait for; None if they are set later, before the first wait.
            name: torch's name of the group.
            tuning: Time limits.
            own: Returns the presence of this process.
        """
        super().__init__(me, ranks, name)
        self.tuning = tuning
        self.messages: Any = messages
        self._own = own
        self._change = threading.Condition()
        self._asking = threading.Lock()
        self.calls = Calls()
        self.parts_from_bytes = parts_from_bytes()
        self.awaited_texts: dict[int, tuple[int, str]] = {}
        self._awaited_blocks: dict[int, list[tuple[int, Sequence[int]]]] = {}  # As heard, by the number of the call.
        self._heard: dict[int, int] = {}  # By place, the number of the last call whose wait it reported.
        self._gave_up: set[int] = set()  # Places that gave up.
        self._question = ""
        self.cause: Cause | None = None
        self.is_alert = False
        self._has_told_cause = False
        self._has_ended_waits = False  # Whether it closed the group's connections, so that waits end.
        self._abandons_at = math.inf  # When waits that did not end so are abandoned, by `time.monotonic`.

    # ---- meeting

    def meet(self, store: Any, timeout: timedelta, whole_job: bool) -> str:
        """Wait for all ranks of the group, connect to their processes, and return a name that only this group has.

        From then on the watch hears of the other ranks. All ranks of the group must call it.

        Args:
            store: torch's store of the group.
            timeout: Limit of the wait.
            whole_job: Whether the group holds all ranks of the job, so that ranks have been numbered anew.

        Raises:
            RuntimeError: A rank ended or did not come in time; the message names it. Or the store failed.
        """
        self.presence = self._own()
        if whole_job:
            self.presence.of_rank.clear()

        def check(names: list[str]) -> None:
            """Store the names of the processes; raise RuntimeError if one has ended."""
            self.names = names
            self._raise_if_gone()

        self.presence.add(self)
        try:
            self.names, self.id = meet(self.presence, store, self.me, self.ranks, timeout, check)
        except RuntimeError as error:  # If the store is gone, the rank that ended with it may be known.
            try:
                self._raise_if_gone()
                self._give_up(Cause(error_text(error)))
                raise
            finally:
                self.presence.failed_meeting = self.failed()  # The watch may be gone when the process ends.
        self.presence.failed_meeting = ""
        return self.id

    def call_unless_gone(self, function: Callable[[], Any]) -> Any:
        """Return the result of a function that needs all ranks; it runs on another thread.

        Raises:
            RuntimeError: A rank has ended; it is raised `tuning.making` seconds after that, while the function goes on.
                Errors of the function are raised as they are, unless a rank has ended.
        """
        leaves_at = math.inf

        def is_too_late() -> bool:
            """Return True if the time that the function still has after a rank has ended is over."""
            nonlocal leaves_at
            now = time.monotonic()
            if self.cause is not None or self.any_gone(None):
                leaves_at = min(leaves_at, now + self.tuning.making)
            return now > leaves_at

        try:
            return wait_apart(function, is_too_late)
        except Exception:
            self._raise_if_gone()
            raise

    def _raise_if_gone(self) -> None:
        """Raise RuntimeError with the cause if a rank has ended or left, or if the group has failed before.

        The cause is kept for the group, and sent to the other ranks once.
        """
        if self.cause is None and self.any_gone(None):
            self._give_up(find_cause(Waiting(""), self.ranks[self.me], self.group, self.facts(None)))
        if self.cause is not None:
            self._tell_cause()
            raise RuntimeError(self.cause.text)

    # ---- calls and waits

    def issue(self, text: str, blocks: tuple[Sequence[int], Sequence[int]] | None = None) -> Waiting:
        """Return the group's next call, which all ranks make, with its number, counted from 1.

        If another rank has reported another text of this call, or blocks that do not fit, this becomes the cause for
        which later waits fail, and it is sent to all ranks; nothing is raised here. `blocks` are those of `Waiting`.
        """
        with self._change:
            waiting = self.calls.issue(text, blocks)
            assert waiting.number is not None
            place, other_text = self.awaited_texts.pop(waiting.number, (self.me, text))
            blocks_of_places = self._awaited_blocks.pop(waiting.number, [])
            self.is_alert = bool(self.awaited_texts or self.departures or self.cause)
        if other_text != text:
            self._differ(waiting.number, place, other_text)
        for place, blocks_of_place in blocks_of_places:
            self._compare_blocks(waiting.number, place, blocks_of_place)
        return waiting

    def begin(self, key: Any, waiting: Waiting, thread: int | None = None, is_limited: bool = False) -> None:
        """Record that a wait begins; it is forgotten with its key.

        Args:
            key: Object that stands for the wait; it is not kept alive.
            waiting: The call.
            thread: Identifier of the thread that waits; None for none yet.
            is_limited: Whether the thread goes on elsewhere after a time limit.
        """
        with self._change:
            self.calls.begin_wait(key, Wait(waiting, time.monotonic(), thread, is_limited))

    def end(self, key: Any, closes: bool = True) -> None:
        """Record that a wait is over, and with `closes` its call, too; an unknown key is ignored."""
        with self._change:
            self.calls.end_wait(key, closes)

    @contextmanager
    def guard(
        self, waiting: Waiting, new: bool = False, closes: bool = True, is_limited: bool = False
    ) -> Iterator[None]:
        """Return a context for an operation that needs the other ranks; its wait is watched until it is over.

        Args:
            waiting: The call.
            new: Whether nothing of the operation has begun, so that it does not begin if it is known to be in vain.
            closes: Whether the call is over with the operation; it always is if the operation fails.
            is_limited: Whether the thread goes on elsewhere after a time limit.

        Raises:
            RuntimeError: The operation raised one or is in vain; the message names the call and the rank to blame. If
                all ranks can be reached and none has given up, the operation's own error is raised as it is, and so are
                all errors that are no RuntimeError.
        """
        key = _Key()
        self.begin(key, waiting, threading.get_ident(), is_limited)
        try:
            if new and self._in_vain(Wait(waiting, time.monotonic())):
                raise RuntimeError(waiting.text)
            yield
        except BaseException as error:
            closes = True
            if not isinstance(error, RuntimeError):
                raise
            is_vain = str(error) == waiting.text
            if (
                self.cause is None
                and not self._has_ended_waits
                and not is_vain
                and not any_closed(self.messages, self.peers)
            ):
                raise  # All ranks can be reached, so the call itself failed.
            # When a message came too late, Gloo has closed all connections.
            is_late = not self._has_ended_waits and bool(re.search("timed out|timeout", str(error), re.IGNORECASE))
            text = waiting.text if is_vain else error_text(error)
            text = text.replace(CLOSED_BY_US, "given up") if self._has_ended_waits else text
            text = text if text.startswith(waiting.text) else f"{waiting.text}: {text}"
            raise RuntimeError(f"{text}{self._find_cause(waiting, is_late)}") from None
        finally:
            self.end(key, closes)

    def abandons_waits(self, peers: Collection[int] = ()) -> bool:
        """Return True if waits that still go on are to be abandoned, since they are in vain.

        That is so `tuning.ending` seconds after this watch closed the group's connections to end them. For a wait for
        certain peers, which are places in the group, it is also so if all of these ended more than `tuning.grace`
        seconds ago.
        """
        now = time.monotonic()
        dead = [
            gone is not None and gone.is_closed and now > gone.known_at + self.tuning.grace
            for gone in map(self.gone, peers if self.names else ())
        ]
        return now > self._abandons_at or (bool(dead) and all(dead))

    def leave(self, why: str = "has left the group", over: bool = True) -> None:
        """Report to the other ranks that this rank makes no more calls; it ends none of its own.

        Before the ranks have met it does nothing.

        Args:
            why: Text for the other ranks, to be read after "rank N".
            over: Whether the open calls still complete.
        """
        calls_made, first_open = self.counts()[self.id]
        self.tell({"left": why, "counts": [calls_made, calls_made + 1 if over else first_open]})

    def is_in_call(self) -> bool:
        """Return True if a call that all ranks make is waited for, or its work exists and is not over."""
        with self._change:
            return any(wait.waiting.number is not None for wait in self.calls.waits())

    def leave_calls(self, are_over: Callable[[float], bool], limit_s: float) -> bool:
        """Wait for the open calls before this rank leaves the group; return True if they all ended.

        Every `tuning.leaving` seconds it checks whether another rank has not made a call, or `limit_s` is over. Then it
        ends all calls with an error that names that rank, if any, closes the group's connections, and returns False.

        Args:
            are_over: Waits up to this many seconds, and returns True if all calls are over.
            limit_s: Limit of the wait in seconds.
        """
        start = time.monotonic()
        while not are_over(min(self.tuning.leaving, limit_s)):
            with self._change:
                numbers = [wait.waiting.number for wait in self.calls.waits() if wait.waiting.number is not None]
            first = min(numbers, default=None)
            absent = [] if first is None else self._absent_from(first)
            if absent or time.monotonic() > start + limit_s:
                why = f", which rank {', '.join(map(str, absent))} has not made" if absent else ""
                text = f"rank {self.ranks[self.me]} has left {self.group} amid this call{why}"
                self.give_up_call(Cause(text, first))
                self._end_waits()
                return False
        return True

    def _absent_from(self, number: int) -> list[int]:
        """Ask the other ranks, and return those that answer that they have not made the call of a number.

        They are sorted, as the whole job numbers them. It waits up to `tuning.answers` seconds.
        """
        with self._asking:
            self._ask(Waiting("", number))
            calls_of_place = {place: answer.get("made") for place, answer in self.answers.items()}
        return sorted(
            self.ranks[place]
            for place, calls_made in calls_of_place.items()
            if calls_made is not None and calls_made < number
        )

    # ---- causes

    def _find_cause(self, waiting: Waiting, late: bool) -> str:
        """Return the cause of a failed call as a text to be put after an error, which begins with "; ".

        It is "" before the ranks have met. The first cause holds for every later call, too; it is sent to the other
        ranks.

        Args:
            waiting: The call.
            late: Whether a message came too late. Otherwise it waits up to `tuning.spread` seconds for other ranks to
                report the cause.
        """
        if not self.names:
            return ""
        with self._asking:
            if self.cause is None and not late:
                self._wait_until(lambda: self.cause is not None or self.any_gone(waiting), self.tuning.spread)
            if self.cause is None and not self.any_gone(waiting):
                self._ask(waiting)
            if self.cause is None:
                self._give_up(find_cause(waiting, self.ranks[self.me], self.group, self.facts(waiting)))
            cause = self.cause
            assert cause is not None
            self._tell_cause()  # Even if another rank reported it, since some ranks may wait for this rank only.
        if self.ranks[self.me] in cause.blamed_ranks:
            return f"; the others gave up waiting for this rank: {cause.text}"
        return f"; {cause.text}"

    def _wait_until(self, over: Callable[[], bool], seconds: float) -> None:
        """Wait until a condition holds or the seconds are over; `over` is called every 0.02 s, under the lock."""
        deadline = time.monotonic() + seconds
        with self._change:
            while not over() and time.monotonic() < deadline:
                self._change.wait(0.02)  # No notification comes when a process ends.

    def _ask(self, waiting: Waiting) -> None:
        """Ask the other ranks what they do, and wait until all that are connected have answered, or a cause is known.

        It waits up to `tuning.answers` seconds. The answers are in `answers`, by place; those to earlier questions are
        dropped.
        """
        self.answers, self._question = {}, secrets.token_hex(8)
        self.tell({"ask": self._question, "number": waiting.number})
        open_places = {place for place, name in enumerate(self.names) if self.is_open(name)}
        self._wait_until(lambda: self.cause is not None or open_places <= set(self.answers), self.tuning.answers)

    def _give_up(self, cause: Cause) -> None:
        """Set the cause of the group's failure, if there is none yet, and wake all that wait for it."""
        with self._change:
            self.cause, self.is_alert = self.cause or cause, True
            self._change.notify_all()

    def _tell_cause(self) -> None:
        """Send the cause to the other ranks, once; do nothing without a cause."""
        if self.cause is not None and not self._has_told_cause:
            self._has_told_cause = True
            self.tell({"cause": [self.cause.text, self.cause.number, self.cause.blamed_ranks]})

    def _differ(self, number: int, place: int, other_text: str) -> None:
        """Set and send the cause that another rank makes a different call.

        Args:
            number: Number of the call.
            place: Place of the other rank in the group.
            other_text: Text of its call.
        """
        text = different_calls(self.ranks[place], other_text, self.ranks[self.me], self.calls.text(number) or "")
        self._give_up(Cause(text, number))
        self._tell_cause()

    def _compare_blocks(self, number: int, place: int, blocks: Sequence[int]) -> None:
        """Set and send the cause that another rank's blocks of a call do not fit this rank's, if so.

        Args:
            number: Number of the call, which this rank has made.
            place: Place of the other rank in the group.
            blocks: Elements that the other rank sends to this one, and that it expects from it.
        """
        own, me, other_rank = self.calls.blocks(number, place), self.ranks[self.me], self.ranks[place]
        if own is None:
            return
        sent, expected = own
        if blocks[0] != expected:
            self._give_up(Cause(different_blocks(other_rank, blocks[0], me, expected), number))
        elif sent != blocks[1]:
            self._give_up(Cause(different_blocks(me, sent, other_rank, blocks[1]), number))
        self._tell_cause()

    # ---- methods that the thread of `Presence` calls

    def state(self, question: Message) -> Message:
        """Return what this rank does, for a rank that asks about the call question["number"]; None stands for no call.

        The keys are "made", the number of calls made; "text" of that call, None if it is too old or not made; "inside",
        whether it is not over; "waits", at most one text; "cause", [text, number, blamed ranks] or None; and "group". A
        question about another group is answered with "waits" only.
        """
        with self._change:
            waits = [
                f"{wait.waiting.text} of {self.group}" for wait in self.calls.waits()[:1]
            ]  # Only the first is read.
            if question["group"] != self.id:
                return {"waits": waits}
            number, cause = question["number"], self.cause
            given_up = None if cause is None else [cause.text, cause.number, cause.blamed_ranks]
            text = None if number is None else self.calls.text(number)
            part = {"made": self.calls.last_number, "text": text, "inside": self.calls.is_open(number)}
            return part | {"waits": waits, "cause": given_up, "group": self.id}

    def held(self) -> tuple[str, int, list[HeldCall] | None, set[int], float]:
        """Return what holds this rank in the group.

        Returns:
            Name of the group; number of calls made; a list of the first open call, empty if all are over, or None if
            this rank also waits for other things than calls or has not met the others; threads that wait without a
            limit; start of the first wait by `time.monotonic`, in seconds, inf without any.
        """
        with self._change:
            texts, threads, since = self.calls.held()
            if not texts:
                return self.id, self.calls.last_number, [], threads, since
            numbers = [number for number in texts if number is not None]
            if len(numbers) < len(texts) or not self.names:
                return self.id, self.calls.last_number, None, threads, since
            first = min(numbers)  # A rank that has not made this call has made none of those after it.
            absent = [name for place, name in enumerate(self.names) if self._heard.get(place, 0) < first]
            absent.remove(self.names[self.me])
            call = HeldCall(self.id, first, f"{texts[first]} of {self.group}", tuple(absent))
            return self.id, self.calls.last_number, [call], threads, since

    def give_up_call(self, cause: Cause) -> None:
        """Set the cause for which a call that is waited in, and those after it, end; send it to the other ranks.

        An earlier cause stays. The waits end at the next `look`.
        """
        self._give_up(cause)
        self._tell_cause()

    def counts(self) -> Message:
        """Return, by the group's id, a list: the number of calls made, and that of the first call that is not over."""
        with self._change:
            self.calls.waits()  # This forgets waits that have completed.
            return {self.id: [self.calls.last_number, self.calls.first_open()]}

    def failed(self) -> str:
        """Return FAILED and the cause of the failure, for the other ranks when this process ends; "" without one."""
        return "" if self.cause is None else FAILED + self.cause.text

    def hear(self, name: str, message: Message) -> None:
        """Read a message of the process of a name, if it is about this group and from one of its members.

        It records that the rank has left, an answer to the last question, the cause of a failure, or that the rank
        waits long in a call. If that call differs from this rank's, this becomes the cause, which is sent to all ranks.
        """
        if not self.id or message.get("group") != self.id or name not in self.names:
            return
        place = self.names.index(name)
        is_different, blocks = False, None
        with self._change:
            self.is_alert |= "answer" not in message  # A call that reads it too early is found out by `look`.
            if "left" in message:
                calls_made, first_open = message["counts"]
                self.departures[place] = Gone(
                    message["left"], calls_made, first_open, time.monotonic(), is_closed=False, has_left=True
                )
            elif "answer" in message:
                if message["answer"] == self._question:
                    self.answers[place] = message
            elif "cause" in message:
                self._gave_up.add(place)
                text, number, blamed = message["cause"]
                self.cause = self.cause or Cause(text, number, tuple(blamed))
            elif "call" in message:
                number, other_text = message["number"], message["call"]
                self._heard[place] = max(number, self._heard.get(place, 0))
                blocks = message.get("blocks")
                if number > self.calls.last_number:
                    self.awaited_texts[number] = place, other_text
                    if blocks is not None:
                        self._awaited_blocks.setdefault(number, []).append((place, blocks))
                        blocks = None
                is_different = (self.calls.text(number) or other_text) != other_text
            self._change.notify_all()
        if is_different:
            self._differ(number, place, other_text)
        elif blocks is not None:
            self._compare_blocks(number, place, blocks)

    def interrupt(self) -> None:
        """Stop the main thread's wait, so that Ctrl-C is raised there; do nothing if it does not wait.

        It closes the group's connections, and sends the cause to the other ranks.
        """
        with self._change:
            waits = [wait for wait in self.calls.waits() if wait.thread == threading.main_thread().ident]
        if waits and not self._has_ended_waits and self.messages is not None:
            rank = self.ranks[self.me]
            self._give_up(Cause(f"rank {rank} was interrupted", waits[0].waiting.number, (rank,)))
            self._tell_cause()
            self._end_waits()

    def look(self) -> None:
        """Stop waits that are in vain, and report the first call's wait to the other ranks after `tuning.long` seconds.

        When that wait is over, the next one becomes the first. So each wait that lasts is reported, once.
        """
        now = time.monotonic()
        with self._change:
            waits = self.calls.waits()
        if self.abandons_waits():
            self.calls.abandon_waits()
        if self._has_ended_waits or self.messages is None:
            return
        counted = [(wait.waiting.number, wait) for wait in waits if wait.waiting.number is not None]
        number, wait = min(counted, key=lambda number_and_wait: number_and_wait[0], default=(0, None))
        if wait is not None and not wait.is_reported and now - wait.since > self.tuning.long:
            wait.is_reported = True
            message = {"call": self.calls.text(number) or wait.waiting.text, "number": number}
            if wait.waiting.blocks is None:
                self.tell(message)
            else:
                for place in self.peers:
                    self.tell(message | {"blocks": self.calls.blocks(number, place)}, [place])
        if any(self._in_vain(wait) for wait in waits):
            self._end_waits()

    def _in_vain(self, wait: Wait) -> bool:
        """Return True if a rank that the wait needs is known not to do its part.

        A wait for certain peers is in vain only if one of them gave up: the wrapped back end itself sees that a peer
        has ended.
        """
        number, cause = wait.waiting.number, self.cause
        if cause is not None and wait.waiting.peers is None:
            return cause.number is None or number is None or number >= cause.number
        if wait.waiting.peers is not None:
            return bool(self._gave_up.intersection(wait.waiting.peers))
        return self.lacks(number, wait.since, self.tuning.grace)

    def _end_waits(self) -> None:
        """Close all connections, so that waits for them end; waits that go on are abandoned `tuning.ending` s later."""
        self._has_ended_waits, self._abandons_at = True, time.monotonic() + self.tuning.ending
        close_all(self.messages, self.peers)
