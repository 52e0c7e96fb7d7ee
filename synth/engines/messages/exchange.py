"""Plans of an all-reduce between nodes: the ranks of a node exchange the node's sums with those of other nodes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from synth.engines.messages.nodes import Nodes
from synth.engines.messages.plans import MessagePlan, MessagesForm, Row, plan_of


def exchanging(nodes: Nodes, form: MessagesForm) -> MessagePlan | None:
    """Return the plan of an all-reduce in whose nodes all ranks are linked.

    None where the form's radixes do not multiply to the number of nodes, or ranks have no link. The numbers of the
    nodes are written with these radixes, and in a phase each node exchanges with those that differ in one digit.

    Without `gathered` there is a chunk for each place of a node. A node's ranks sum a chunk at the rank at the chunk's
    place, these ranks exchange their sums in phases, and each copies the result to its node. In phases that are halved,
    a chunk is cut into a part for each digit, and a node sends others only the parts of their digit (Rabenseifner's
    reduce-scatter, with any radixes); the same phases in reverse copy the results back.

    With `gathered` as many ranks as a node has messages in a phase get the sum of their node, for each part of the
    buffer. Each of them sends it to one other node. What arrives is added to the sum of the first of these ranks and
    replaces those of the others, so that they have the sums of different nodes, which they add. If the form is
    scattered, the sums of each of the part's chunks (`shards_of`) meet at one of these ranks first.
    """
    count, places = len(nodes), len(nodes.members[0])
    is_regular = all(len(members) == places for members in nodes.members)
    if prod(form.radixes) != count or not is_regular or nodes.depth > 1:
        return None
    link_of = {
        (int(nodes.net.src[link]), int(nodes.net.dst[link])): link for links in nodes.between.values() for link in links
    }
    exchange, before = _Exchange(nodes, form), None
    for phase, copies in [(phase, False) for phase in range(len(form.radixes))] + [
        (phase, True) for phase in reversed(range(form.halved))
    ]:
        radix, width = form.radixes[phase], prod(form.radixes[:phase])
        senders = radix - 1 if form.gathered else 1
        exchange.add_inside(before, senders)
        for node in range(count):
            digit = node // width % radix
            for turn in range(radix - 1):
                goal = node + ((digit + turn + 1) % radix - digit) * width
                shards = exchange.shards_between(node, goal, phase, copies=copies)
                for part, ranks in enumerate(exchange.places_of):
                    place = ranks[turn % senders]
                    ends = nodes.members[node][place], nodes.members[goal][place]
                    if ends not in link_of:
                        return None
                    reduces = place == ranks[0] and not copies
                    exchange.add_message(part, shards, link_of[ends], turn, reduces=reduces)
        exchange.end_stage()
        before = senders
    exchange.add_inside(before, None)
    return plan_of(exchange.rows)


def factors_of(count: int, most: int | None = None) -> list[tuple[int, ...]]:
    """Return all ways to write a number as a product of numbers from 2 on, each descending; few factors come first.

    Args:
        count: The number, 2 or more.
        most: Largest factor; None for any.
    """
    ways: list[tuple[int, ...]] = []
    for factor in range(min(count, most or count), 1, -1):
        if count % factor == 0:
            ways += [(factor, *lesser) for lesser in (factors_of(count // factor, factor) if factor < count else [()])]
    return sorted(ways, key=len)


def shards_of(form: MessagesForm) -> int:
    """Return the number of chunks of a part that an all-reduce exchanges.

    It is 1 unless phases are halved, or the form is gathered and scattered. Then it is a power of two, because programs
    need chunks that divide the usual message sizes.
    """
    if form.gathered and form.scattered:
        return 1 << (max(form.radixes) - 2).bit_length()
    return prod(form.radixes[: form.halved])


_Inside = tuple[int, int, int, int]  # A send in all nodes: chunk, place of the source and of the goal, and turn.


class _Exchange:
    """The rows of an exchange of sums, as they are added, stage after stage.

    Attributes:
        rows: The rows so far.
        places_of: For each part the places of the ranks that exchange it.
    """

    def __init__(self, nodes: Nodes, form: MessagesForm) -> None:
        self.rows: list[Row] = []
        places = len(nodes.members[0])
        width = max(form.radixes) - 1 if form.gathered else 1
        parts = form.carriers if form.gathered else places
        self.places_of = [list(range(part * width, (part + 1) * width)) for part in range(parts)]
        self._nodes, self._stage = nodes, 0
        self._form, self._shards = form, shards_of(form)

    def end_stage(self) -> None:
        """Begin the next stage, if the present one has any rows."""
        self._stage += bool(self.rows) and self.rows[-1].stage == self._stage

    def shards_between(self, node: int, goal: int, phase: int, *, copies: bool) -> list[int]:
        """Return which chunks of a part a node sends to another one in a phase.

        In the reverse of halved phases (`copies`) these are the ones that the node has the results of.
        """
        shards = list(range(self._shards))
        # The first phases have cut the chunks; of the digit of a halved phase, the goal takes its own part.
        for before in range(min(phase + 1, self._form.halved)):
            radix, width = self._form.radixes[before], prod(self._form.radixes[:before])
            digit = (node if copies or before < phase else goal) // width % radix
            shards = [shard for shard in shards if shard // width % radix == digit]
        return shards

    def add_message(self, part: int, shards: Sequence[int], link: int, turn: int, *, reduces: bool) -> None:
        """Add a message with chunks of a part over a link, which the receiver adds or takes instead of its own."""
        number = len(self.rows)
        for shard in shards:
            chunk = part * self._shards + shard
            self.rows.append(Row(self._stage, (turn,), chunk, link, self._stage, number, reduces))

    def add_inside(self, sources: int | None, goals: int | None) -> None:
        """Add the stages in which, for each part, every goal of a node gets the sum of what the node's sources have.

        In a scattered form the sources send each chunk to one of the ranks that exchange the part, which adds them and
        copies the sum to the goals. Otherwise the sources send to every goal, which adds for itself; a goal that is no
        source gets a copy of what one source has first, and adds what the others have.

        Args:
            sources: How many of the part's ranks (`places_of`), from the first on, are sources; None if all ranks of
                the node are.
            goals: How many of them are goals, likewise.
        """
        all_places = range(len(self._nodes.members[0]))
        sums, copies = list[_Inside](), list[_Inside]()
        for part, own in enumerate(self.places_of):
            froms, tos = (all_places if count is None else own[:count] for count in (sources, goals))
            for shard in range(self._shards):
                chunk = part * self._shards + shard
                meeting = own[shard % (sources or goals or 1)]
                for top in [meeting] if self._form.scattered else tos:
                    for turn, source in enumerate(_rotated(froms, top)):
                        is_copy = turn == 0 and top not in froms
                        (copies if is_copy else sums).append((chunk, source, top, turn))
                if self._form.scattered:
                    copies += [(chunk, meeting, goal, n) for n, goal in enumerate(_rotated(tos, meeting))]
        for rows in (sums, copies) if self._form.scattered else (copies, sums):
            for chunk, source, goal, turn in rows:
                for members in self._nodes.members:
                    link = self._nodes.path(members[source], members[goal])[0]
                    self.rows.append(Row(self._stage, (turn,), chunk, link, self._stage, -1, reduces=rows is sums))
            self.end_stage()


def _rotated(places: Sequence[int], own: int) -> list[int]:
    """Return ascending places without the own one, from the next one on, so that not all begin with one place."""
    return [place for place in places if place > own] + [place for place in places if place < own]
