"""Explain in one line, the same on every rank, why a call failed, from facts about the group's other ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.torch.failures.compare import different_calls

FAILED = "one of its calls had failed: "  # A rank that ends reports the cause after this text.
_MOST = 8  # Ranks named in a line.


@dataclass(frozen=True)
class Waiting:
    """A call that a rank waits in.

    Attributes:
        text: Text of the call.
        number: Number among the calls that all ranks of the group make, from 1; None for a call that is not counted.
        peers: Places in the group of the ranks that it needs; None for all.
        blocks: Elements that this rank sends to each place, and that it expects from each; None if they are equal, or
            the text has their size.
    """

    text: str
    number: int | None = None
    peers: Collection[int] | None = None
    blocks: tuple[Sequence[int], Sequence[int]] | None = None


@dataclass(frozen=True)
class Gone:
    """A rank that makes no more calls of the group.

    Attributes:
        reason: Why it makes none.
        calls_made: Number of calls that it made, or None if that is unknown.
        first_open: Number of the first call that was not over, or None if that is unknown.
        known_at: Time when this became known, by `time.monotonic`, in seconds.
        is_closed: Whether its process has ended.
        has_left: Whether it said that it leaves the group.
    """

    reason: str
    calls_made: int | None
    first_open: int | None
    known_at: float
    is_closed: bool
    has_left: bool = False

    def is_through(self, number: int | None) -> bool:
        """Return True if it has done its part of the call of this number; False if either number is unknown."""
        return number is not None and self.first_open is not None and number < self.first_open

    def makes_none(self, number: int | None) -> bool:
        """Return True if it has not made, and will not make, the call of this number; False if that is unknown.

        A rank that has left the group takes part only in calls before its first open one.
        """
        bound = self.first_open if self.has_left else None if self.calls_made is None else self.calls_made + 1
        return number is not None and bound is not None and number >= bound


@dataclass(frozen=True)
class Fact:
    """The facts known about a rank.

    Attributes:
        end_reason: Why its process ended or left the group, "" if it ended without a word; None if neither is known.
        calls_made: Number of calls that it had made by then, if it said so.
        is_connected: Whether a connection to it is open.
        answer: Its answer to the question what it does, None without an answer. Keys: "made", the number of its calls;
            "text", the call in question, None if it has not made it; "inside", whether that call is not over there;
            "waits", texts of what it waits in; "cause", why it gave up.
    """

    end_reason: str | None = None
    calls_made: int | None = None
    is_connected: bool = True
    answer: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Cause:
    """The cause of a failed call.

    Attributes:
        text: Text to be put after an error.
        number: Number of the call that failed, or None.
        blamed_ranks: Ranks of the job that the others wait for.
    """

    text: str
    number: int | None = None
    blamed_ranks: tuple[int, ...] = ()


def error_end(error: BaseException) -> str:
    """Return what other ranks read of a program that an error ends, such as "raised ValueError: …".

    Only the first line of the error is kept, up to 400 characters. KeyboardInterrupt gives "was interrupted".
    """
    if isinstance(error, KeyboardInterrupt):
        return "was interrupted"
    line = next(iter(str(error).strip().splitlines()), "")
    return f"raised {type(error).__name__}{': ' if line else ''}{line[:400]}"


def _name_ranks(ranks: Sequence[int]) -> str:
    """Return the text that names the first 8 ranks and counts the others, such as "rank 1, 2"."""
    named = ", ".join(map(str, ranks[:_MOST]))
    return f"rank {named}" + (f" and {len(ranks) - _MOST} more" if len(ranks) > _MOST else "")


def find_cause(waiting: Waiting, rank: int, group: str, facts: Mapping[int, Fact]) -> Cause:
    """Return the cause of a failed call.

    The first of these holds: ranks whose processes ended without a reason; a rank that ended or left, first one that
    did so on its own; a rank in another call; a cause that a rank reports; what a living rank does or does not do.

    Args:
        waiting: The call, as this rank waits in it.
        rank: This rank, as the job numbers it.
        group: Name of the group.
        facts: By job rank, facts about the other ranks that the call needs. Without any, the cause is that the call
            takes longer than its time-out.
    """
    lost = sorted(peer for peer, fact in facts.items() if fact.end_reason == "")
    if lost:
        why = "its connection is closed" if len(lost) == 1 else "their connections are closed"
        return Cause(f"lost: {_name_ranks(lost)} ({why})", waiting.number, tuple(lost))
    # A rank that ended on its own is blamed before those that ended because of it.
    gone = sorted(peer for peer, fact in facts.items() if fact.end_reason)
    ended = sorted(gone, key=lambda peer: _follows(facts[peer].end_reason))
    if ended:
        return Cause(_describe_end(ended[0], facts[ended[0]], waiting, group), waiting.number, tuple(ended[:1]))
    answers = {peer: fact.answer for peer, fact in sorted(facts.items()) if fact.answer is not None}
    for peer, answer in answers.items():
        if waiting.number is not None and answer.get("text") not in (None, waiting.text):
            return Cause(different_calls(peer, str(answer["text"]), rank, waiting.text), waiting.number)
    for answer in answers.values():
        if answer.get("cause"):
            text, number, blamed = answer["cause"]
            return Cause(text, number, tuple(blamed))
    return _find_cause_among_live(waiting, rank, group, facts, answers)


def _follows(why: str | None) -> bool:
    """Return True if a rank ended because of another: its last error, or the last that it reported, names a cause."""
    # A refusal of ours has a semicolon too, but it says what must be; a rank that met one ended on its own.
    return why is not None and (FAILED in why or ("; " in why and "; it must" not in why))


def _describe_end(peer: int, fact: Fact, waiting: Waiting, group: str) -> str:
    """Return the text about a rank that has ended, with the calls that it made if it did not make this one."""
    calls_made = ""
    if waiting.number is not None and fact.calls_made is not None and fact.calls_made < waiting.number:
        calls_made = f": it {_describe_calls(fact.calls_made, waiting.number, group)}"
    return f"rank {peer} {fact.end_reason}{calls_made}"


def _describe_calls(calls: object, number: int, group: str, verb: str = "has") -> str:
    """Return the text about the calls that ranks have made, such as "has made 1 call of GROUP, this is call 2"."""
    return f"{verb} made {calls} call{'' if str(calls) == '1' else 's'} of {group}, this is call {number}"


def _find_cause_among_live(
    waiting: Waiting, rank: int, group: str, facts: Mapping[int, Fact], answers: Mapping[int, Mapping[str, Any]]
) -> Cause:
    """Return the cause if no process has ended: a rank that does not answer, waits elsewhere or has not come.

    If all ranks are in the call, it takes longer than its time-out. `answers` are those of `facts`, in the order of
    ranks.
    """
    silent = sorted(peer for peer, fact in facts.items() if fact.is_connected and fact.answer is None)
    if silent:
        why = "stopped, or too busy" if len(silent) == 1 else "each is stopped, or too busy"
        text = f"no answer from {_name_ranks(silent)}: connected, so not lost; {why}"
        return Cause(text, waiting.number, tuple(silent))
    absent = [peer for peer, answer in answers.items() if not answer.get("inside") and answer.get("text") is None]
    elsewhere = [peer for peer in absent if answers[peer]["waits"]]
    if elsewhere:
        waits = ", ".join(f"rank {peer} is in {answers[peer]['waits'][0]}" for peer in elsewhere[:_MOST])
        return Cause(f"{waits}, rank {rank} in {waiting.text} of {group}", waiting.number, tuple(elsewhere))
    if absent:
        counts = {answers[peer].get("made", 0) for peer in absent}
        verb, count = "has" if len(absent) == 1 else "have", f"{counts.pop()}" if len(counts) == 1 else "fewer"
        calls_made = ":" if waiting.number is None else f" {_describe_calls(count, waiting.number, group, verb)};"
        text = f"{_name_ranks(absent)}{calls_made} connected, and waiting for no other rank"
        return Cause(text, waiting.number, tuple(absent))
    unknown = sorted(peer for peer, fact in facts.items() if not fact.is_connected)
    if unknown:
        return Cause(f"nothing is known of {_name_ranks(unknown)}: no connection could be made", waiting.number)
    return Cause("all ranks are in this call: it takes longer than its time-out", waiting.number)
