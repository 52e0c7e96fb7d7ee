"""Why a call failed, in one line that is the same on every rank: what is known of the group's other ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.torch.failures.compare import different_calls

FAILED = "a call of its had failed: "  # in the words of one that ends
_MOST = 8  # ranks named in a line


@dataclass(frozen=True)
class Waiting:
    """What is waited in.

    number: which of the calls that all ranks of the group make, from 1; None where they do not count it. peers: places
    in the group of those that it needs; None: all.
    """

    text: str
    number: int | None = None
    peers: Collection[int] | None = None


@dataclass(frozen=True)
class Gone:
    """A rank that makes no more calls of the group: why; the calls it made, and the first of them that was not over.

    at: when that became known, by `time.monotonic`. closed: its process has ended. left: it said that it leaves the
    group.
    """

    why: str
    made: int | None
    first_open: int | None
    at: float
    closed: bool
    left: bool = False

    def is_through(self, number: int | None) -> bool:
        """Whether it has done its part of the call of this number."""
        return number is not None and self.first_open is not None and number < self.first_open

    def makes_none(self, number: int | None) -> bool:
        """Whether it has not made, and will not make, the call of this number."""
        bound = self.first_open if self.left else None if self.made is None else self.made + 1
        return number is not None and bound is not None and number >= bound


@dataclass(frozen=True)
class Fact:
    """What is known of a rank.

    ended: why its process ended or left the group, "" where it did so without a word; None: neither is known. made: the
    calls it had made by then, where it said so. connected: whether a connection to it is open. answer: what it says it
    is doing, None where it does not answer: "made", how many calls; "text", of the call in question, None where it has
    not made it; "inside", whether that is not over there; "waits", texts of what it waits in; "cause", why it gave up.
    """

    ended: str | None = None
    made: int | None = None
    connected: bool = True
    answer: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Cause:
    """text: to be put after an error. number: the call that failed; blamed: job ranks that the others wait for."""

    text: str
    number: int | None = None
    blamed: tuple[int, ...] = ()


def error_end(error: BaseException) -> str:
    """What is said of a program that ends with an error."""
    if isinstance(error, KeyboardInterrupt):
        return "was interrupted"
    line = next(iter(str(error).strip().splitlines()), "")
    return f"raised {type(error).__name__}{': ' if line else ''}{line[:400]}"


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:_MOST]))
    return f"rank {named}" + (f" and {len(ranks) - _MOST} more" if len(ranks) > _MOST else "")


def find_cause(mine: Waiting, rank: int, group: str, facts: Mapping[int, Fact]) -> Cause:
    """From the facts about the other ranks that the call needs, by job rank; `rank` is this one, `group` its name."""
    lost = sorted(other for other, fact in facts.items() if fact.ended == "")
    if lost:
        why = "its connection is closed" if len(lost) == 1 else "their connections are closed"
        return Cause(f"lost: {_ranks(lost)} ({why})", mine.number, tuple(lost))
    # one that ended in its own right comes before those that ended because of it
    gone = sorted(other for other, fact in facts.items() if fact.ended)
    ended = sorted(gone, key=lambda other: _follows(facts[other].ended))
    if ended:
        return Cause(_ended(ended[0], facts[ended[0]], mine, group), mine.number, tuple(ended[:1]))
    answers = {other: fact.answer for other, fact in sorted(facts.items()) if fact.answer is not None}
    for other, answer in answers.items():
        if mine.number is not None and answer.get("text") not in (None, mine.text):
            return Cause(different_calls(other, str(answer["text"]), rank, mine.text), mine.number)
    for answer in answers.values():
        if answer.get("cause"):
            text, number, blamed = answer["cause"]
            return Cause(text, number, tuple(blamed))
    return _live(mine, rank, group, facts, answers)


def _follows(why: str | None) -> bool:
    """Whether a rank ended because of another: its last error, or the last one that it told, names a cause."""
    return why is not None and ("; " in why or FAILED in why)


def _ended(other: int, fact: Fact, mine: Waiting, group: str) -> str:
    made = ""
    if mine.number is not None and fact.made is not None and fact.made < mine.number:
        made = f": it {_made(fact.made, mine.number, group)}"
    return f"rank {other} {fact.ended}{made}"


def _made(calls: object, number: int, group: str, verb: str = "has") -> str:
    return f"{verb} made {calls} call{'' if str(calls) == '1' else 's'} of {group}, this is call {number}"


def _live(
    mine: Waiting, rank: int, group: str, facts: Mapping[int, Fact], answers: Mapping[int, Mapping[str, Any]]
) -> Cause:
    """Where no process has ended: who does not answer, who waits elsewhere, who has not come."""
    silent = sorted(other for other, fact in facts.items() if fact.connected and fact.answer is None)
    if silent:
        why = "stopped, or too busy" if len(silent) == 1 else "each is stopped, or too busy"
        text = f"no answer from {_ranks(silent)}: connected, so not lost; {why}"
        return Cause(text, mine.number, tuple(silent))
    absent = [other for other, answer in answers.items() if not answer.get("inside") and answer.get("text") is None]
    waiting = [other for other in absent if answers[other]["waits"]]
    if waiting:
        said = ", ".join(f"rank {other} is in {answers[other]['waits'][0]}" for other in waiting[:_MOST])
        return Cause(f"{said}, rank {rank} in {mine.text} of {group}", mine.number, tuple(waiting))
    if absent:
        counts = {answers[other].get("made", 0) for other in absent}
        verb, few = "has" if len(absent) == 1 else "have", f"{counts.pop()}" if len(counts) == 1 else "fewer"
        made = ":" if mine.number is None else f" {_made(few, mine.number, group, verb)};"
        text = f"{_ranks(absent)}{made} connected, and waiting for no other rank"
        return Cause(text, mine.number, tuple(absent))
    unknown = sorted(other for other, fact in facts.items() if not fact.connected)
    if unknown:
        return Cause(f"of {_ranks(unknown)} nothing is known: no connection could be made", mine.number)
    return Cause("all ranks are in this call: it takes longer than its time-out", mine.number)
