"""Know the ranks of a group: their processes, which of them have ended or left, and what they answered."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from runtime.torch.failures.causes import Fact, Gone, Waiting
from runtime.torch.failures.presence import End, Presence
from runtime.torch.failures.wire import Message


class Members:
    """The ranks of a group, as one of them knows them.

    Attributes:
        me: Place of this rank in the group.
        ranks: The members, as the whole job numbers them.
        peers: Places of the other ranks.
        group: Name of the group for messages to users.
        id: Name that only this group has; "" before the ranks have met.
        presence: The presence of this process; None before the ranks have met.
        names: Names of the processes, by place; empty before the ranks have met.
        departures: By place, ranks that have left the group.
        answers: By place, answers to the last question what ranks do.
    """

    def __init__(self, me: int, ranks: Sequence[int], name: str = "") -> None:
        """Build the members of the group that torch calls `name`, of which nothing is known yet.

        `me` is the place of this rank in the group, `ranks` are the members as the whole job numbers them.
        """
        self.me, self.ranks = me, tuple(ranks)
        self.peers = [place for place in range(len(self.ranks)) if place != me]
        few = ", ".join(map(str, self.ranks[:16])) + (", …" if len(self.ranks) > 16 else "")
        self.group = f"group {name} (ranks {few})".replace("  ", " ")
        self.id = ""
        self.presence: Presence | None = None
        self.names: list[str] = []
        self.departures: dict[int, Gone] = {}
        self.answers: dict[int, Message] = {}

    @property
    def ends(self) -> Mapping[str, End]:
        """Return the processes of the whole job that have ended; always the same object once ranks have met."""
        return {} if self.presence is None else self.presence.ends

    def any_gone(self, waiting: Waiting | None) -> bool:
        """Return True if a rank that the call needs has ended or left, unless it has done its part of the call.

        None stands for a call that needs all ranks.
        """
        return any(fact.end_reason is not None for fact in self.facts(waiting).values())

    def facts(self, waiting: Waiting | None) -> dict[int, Fact]:
        """Return by job rank the facts about the other ranks that the call needs; None stands for all ranks.

        A rank that has ended or left, but has done its part of the call, counts as one that lives and answered so.
        Before the ranks have met, there are no facts.
        """
        fact_of_rank = {}
        for place, name in enumerate(self.names):
            if place == self.me or (waiting and waiting.peers is not None and place not in waiting.peers):
                continue
            gone = self.gone(place)
            if gone is None:
                fact = Fact(is_connected=self.is_open(name), answer=self.answers.get(place))
            elif waiting is not None and gone.is_through(waiting.number):
                fact = Fact(answer={"text": waiting.text, "inside": False, "waits": []})
            else:
                fact = Fact(gone.reason, gone.calls_made)
            fact_of_rank[self.ranks[place]] = fact
        return fact_of_rank

    def gone(self, place: int) -> Gone | None:
        """Return why the rank at a place makes no more calls, or None if nothing of the kind is known.

        The names of the processes must be known.
        """
        end = self.presence.ends.get(self.names[place]) if self.presence is not None else None
        if end is None or place in self.departures:
            return self.departures.get(place)
        calls_made, first_open = end.counts.get(self.id, (None, None))
        return Gone(end.reason, calls_made, first_open, end.known_at, end.is_closed)

    def lacks(self, number: int | None, start: float, grace_s: float) -> bool:
        """Return True if any other rank has ended or left without its part of a call.

        Args:
            number: Number of the call; None for one that is not counted, of which any rank that ended lacks its part.
            start: Start of the wait for it by `time.monotonic`, in seconds.
            grace_s: Time for messages that a rank sent before it ended, if it did not say that it makes no such call.
        """
        if self.presence is None or not (self.departures or self.presence.ends):
            return False
        for gone in map(self.gone, self.peers if self.names else ()):
            if gone is None:
                continue
            is_past_grace = start > gone.known_at or time.monotonic() > gone.known_at + grace_s
            if gone.makes_none(number) or (
                gone.is_closed and not gone.has_left and not gone.is_through(number) and is_past_grace
            ):
                return True
        return False

    def is_open(self, name: str) -> bool:
        """Return True if there is an open connection to the process of a name; False before the ranks have met."""
        return self.presence is not None and self.presence.is_open(name)

    def tell(self, message: Message, places: Iterable[int] | None = None) -> None:
        """Send a message about this group to other ranks that are connected; nothing before the ranks met.

        `places` are those of the ranks; None for all others.
        """
        if self.presence is not None and self.id:
            names = [self.names[place] for place in (self.peers if places is None else places)]
            self.presence.tell(names, message | {"group": self.id})
