"""Plans of sends in few messages between nodes: copies to all ranks, and chunks from one rank to another.

Nodes exchange data as in dissemination (Bruck and others, IEEE TPDS 8, 1997) with a radix: in each phase a node sends
to radix - 1 other nodes, at once, what these lack. Radix = number of nodes is one phase of direct messages; radix 1
stands for a ring, in which the data of a node that has more than others leave it only once. The message
from one node to another goes over one or several links. Before and after each phase its chunks move inside nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from synth.engines.messages.merging import MessagePhase
from synth.engines.messages.nodes import LinkChoice, Nodes
from synth.engines.messages.trees import Hand, one_peer_a_door, rarest_first
from synth.model.collective import Bools, Collective, Floats, Ints
from synth.model.schedule import Schedule, follows_same, untimed


class MessagesForm(NamedTuple):
    """The form of a plan.

    Attributes:
        radix: Number of nodes among which one phase exchanges; 1 for a ring, where each node sends to the next.
        carriers: Most links over which a message from one node to another is spread.
        scattered: Whether copies inside a node go by way of different ranks, which spread the load of one port.
        exchanged: Whether ranks at one place of all nodes exchange their partial sums, so that each has the sum.
        radixes: With `exchanged`, the numbers of nodes among which each phase exchanges; in place of `radix`.
        halved: With `exchanged`, the number of phases, from the first on, in which nodes get only their parts of the
            sums. At the end as many phases copy the results back.
        gathered: Whether, with `exchanged`, the messages of a phase leave from different ranks, which all have the sum
            of their node by then. Each of `carriers` parts of the buffer has its own such ranks.
        distributed: Whether a root's chunks go to one node each first, and the nodes exchange them.
        parts: Number of messages that follow each other from a node to another.
        trees: Number of parts of a root's buffer that go over trees of their own; 0 for other forms.
        doors: With `trees`, the number of doors of each node if each has one peer only; 0 if parts go rarest first.
        lag: With `trees`, the time in which a part comes to a node / the time for which its message keeps a link busy.
        merged: Phases of messages of growing width (`synth.engines.messages.merging`), in place of `radix` and
            `carriers`; () for other forms.
    """

    radix: int
    carriers: int
    scattered: bool = False
    exchanged: bool = False
    radixes: tuple[int, ...] = ()
    halved: int = 0
    gathered: bool = False
    distributed: bool = False
    parts: int = 1
    trees: int = 0
    doors: int = 0
    lag: float = 0.0
    merged: tuple[MessagePhase, ...] = ()


class Row(NamedTuple):
    """A send of a plan.

    Attributes:
        stage: Place of the row's stage; stages alternate between the inside of nodes and the links between nodes.
        order: Key by which the rows of a stage are sorted.
        chunk: The chunk.
        link: The link.
        step: Step of the send.
        message: Number of the message between nodes; -1 inside a node.
        reduces: Whether the destination adds the chunk.
    """

    stage: int
    order: tuple[int, ...]
    chunk: int
    link: int
    step: int
    message: int
    reduces: bool = False


@dataclass(frozen=True, eq=False)
class MessagePlan:
    """The rows of a plan, in order of stage, then of place within the stage.

    Attributes:
        stage: Stage of each row, int64, shape (rows,).
        chunk: Chunk of each row.
        link: Link of each row.
        step: Step of each row.
        message: Message of each row; inside nodes each row is a message of its own.
        reduces: Whether the destination of each row adds the chunk.
        turn: When each chunk leaves its root, from 0 for the first to 1; None where chunks leave at once.
    """

    stage: Ints
    chunk: Ints
    link: Ints
    step: Ints
    message: Ints
    reduces: Bools
    turn: Floats | None = None

    def schedule(self, waves: int) -> Schedule:
        """Return the untimed schedule, with every chunk cut into `waves` parts that follow each other in a pipeline."""
        wave = np.repeat(np.arange(waves), len(self.chunk))
        stage, chunk, link, step = (np.tile(x, waves) for x in (self.stage, self.chunk, self.link, self.step))
        message = np.tile(self.message, waves) * waves + wave
        # In each stage of the pipeline early rows go first, because they wait for less.
        order = np.lexsort((np.tile(np.arange(len(self.chunk)), waves), stage, stage + wave))
        joined = follows_same(message[order])
        reduces = np.tile(self.reduces, waves)
        return untimed((chunk * waves + wave)[order], link[order], step[order], reduces[order], joined)


def hands_of(count: int, form: MessagesForm) -> tuple[float, tuple[Hand, ...]]:
    """Return when all nodes have all parts of a form with trees, in slots, and every part that is sent."""
    if form.doors:
        return one_peer_a_door(count, form.doors, form.trees // form.doors, form.lag)
    return rarest_first(count, form.trees, form.lag)


def spreading(nodes: Nodes, collective: Collective, form: MessagesForm) -> MessagePlan:
    """Return the plan of a collective whose chunks all go from one rank each to all ranks.

    If the form is distributed or has trees, all chunks come from one rank. Distributed, each of the other nodes gets a
    part of them first, and then these nodes exchange their parts (van de Geijn's scatter and all-gather).
    """
    plan = _Spreading(nodes, form, collective.fraction)
    holder = collective.holders[1].tolist()
    home_of = nodes.node_of[holder].tolist()
    arrivals = [(chunk, rank, 0) for chunk, rank in enumerate(holder)]
    if form.trees:
        turn = plan.grow_trees(home_of[0], arrivals)
        return replace(plan_of(plan.rows), turn=turn)
    if form.distributed:
        other_nodes = [(home_of[0] + ahead) % len(nodes) for ahead in range(1, len(nodes))]
        parts = [
            (place, [chunk for chunk in range(len(holder)) if chunk * len(other_nodes) // len(holder) == place])
            for place in range(len(other_nodes))
        ]
        first = plan.messages([(home_of[0], other_node) for other_node in other_nodes], parts)
        turn = np.empty(len(holder))
        for place, chunks, _ in first:
            turn[chunks] = place / (form.parts * len(other_nodes))
        plan.copy_inside(plan.from_exits(arrivals, first))
        plan.copy_inside(plan.deliver(first))
        plan.exchange(other_nodes, [{place: chunks} for place, chunks in parts])
        return replace(plan_of(plan.rows), turn=turn)
    chunks_at: list[dict[int, list[int]]] = [{} for _ in range(len(nodes))]
    for chunk, home in enumerate(home_of):
        chunks_at[home].setdefault(home, []).append(chunk)
    plan.exchange(list(range(len(nodes))), chunks_at, arrivals)
    return plan_of(plan.rows)


# A message's place among those of its node, its chunks, and its link.
_Message = tuple[int, list[int], int]
# A chunk, the rank that it comes to, the place of its message, and the rank of the node that gets it first, or None.
_Arrival = tuple[int, int, int] | tuple[int, int, int, int | None]


class _Spreading:
    """The rows of copies to all ranks, as they are added.

    Attributes:
        rows: The rows so far.
        stage: Stage of the next rows.
        step: Step of the next rows.
    """

    def __init__(self, nodes: Nodes, form: MessagesForm, weight: Floats) -> None:
        """Begin without rows; `weight` is the size of each chunk, in any unit."""
        self.rows: list[Row] = []
        self.stage = self.step = 0
        self._nodes, self._form, self._carriers, self._weight = nodes, form, LinkChoice(nodes), weight.tolist()

    def exchange(
        self, order: list[int], held: list[dict[int, list[int]]], arrivals: Sequence[_Arrival] | None = None
    ) -> None:
        """Add the phases in which nodes send each other what they lack, and the copies inside nodes.

        Args:
            order: The nodes, in order.
            held: Chunks of each of them, by the place in the order of the node that had them first; gets what each node
                gains.
            arrivals: Chunks that are to be copied inside nodes before the first phase.
        """
        count = len(order)
        lacking = [{home for homes in held for home in homes} - set(homes) for homes in held]
        for ahead, width, links in self._phases(count):
            ends, carried, gained = list[tuple[int, int]](), list[tuple[int, list[int]]](), list[tuple[int, int, int]]()
            for place, distance in enumerate(ahead):
                for node in range(count):
                    goal = (node + distance) % count
                    homes = [home for home in held[node] if home in lacking[goal] and (node - home) % count < width]
                    lacking[goal] -= set(homes)
                    if homes:
                        ends.append((order[node], order[goal]))
                        carried.append((place, sorted(chunk for home in homes for chunk in held[node][home])))
                        gained += [(goal, home, node) for home in homes]
            messages = self.messages(ends, carried, links)
            if arrivals is not None:
                self.copy_inside(self.from_exits(arrivals, messages))
                arrivals = None
            self.copy_inside(self.deliver(messages))
            for goal, home, node in gained:
                held[goal][home] = held[node][home]

    def _phases(self, count: int) -> list[tuple[list[int], int, int]]:
        """Return the phases among so many nodes.

        Returns:
            For each phase how many nodes ahead each node sends, of how many nodes, itself and those behind it, the data
            are, and over how many links each message is spread.
        """
        form = self._form
        if not form.merged:
            return [(ahead, count, form.carriers) for ahead in phases_of(count, form.radix)]
        phases, first = list[tuple[list[int], int, int]](), 1
        for messages, width, links in form.merged:
            phases.append((list(range(first, min(count, first + messages * width), width)), width, links))
            first += messages * width
        return phases

    def grow_trees(self, root: int, arrivals: Sequence[_Arrival]) -> Floats:
        """Add the trees of all parts of the root's chunks, and return when each chunk leaves the root, from 0 to 1.

        Args:
            root: The root's node.
            arrivals: All chunks, at the root.
        """
        count, form = len(self._nodes), self._form
        end, hands = hands_of(count, form)
        parts = dict(cut(range(form.trees), [chunk for chunk, *_ in arrivals]))
        ends = [((root + hand.source) % count, (root + hand.goal) % count) for hand in hands]
        carried = [(number, parts.get(hand.part, [])) for number, hand in enumerate(hands)]
        links = None
        if form.doors:
            links = [[self._nodes.doors[hand.door][own]] for own, hand in zip(ends, hands, strict=True)]
        messages_of: list[list[_Message]] = [[] for _ in hands]
        for message in self.messages(ends, carried, links_of=links):
            messages_of[message[0]].append(message)
        turn = np.zeros(len(arrivals))
        from_root = [
            message for hand, own in zip(hands, messages_of, strict=True) if not hand.source for message in own
        ]
        for number, chunks, _ in reversed(from_root):
            turn[chunks] = hands[number].start / end
        self.copy_inside(self.from_exits(arrivals, from_root))
        first_step, hop = self.step, 1 + 2 * self._nodes.depth
        # What comes at a time is copied inside its node before it is sent on.
        events = [(hand.start, True, number) for number, hand in enumerate(hands)]
        events += [(hand.start + form.lag, False, number) for number, hand in enumerate(hands)]
        arrivals_of: dict[int, list[_Arrival]] = {}
        for _, leaves, number in sorted(events):
            self.step = first_step + hop * hands[number].depth
            if leaves:
                arrivals_of[number] = self.deliver(messages_of[number])
            else:
                self.step += 1
                self.copy_inside(arrivals_of[number])
        return turn

    def messages(
        self,
        ends: list[tuple[int, int]],
        carried: list[tuple[int, list[int]]],
        links: int | None = None,
        links_of: list[list[int]] | None = None,
    ) -> list[_Message]:
        """Return messages from node to node, each with equal parts of the chunks over its links.

        Args:
            ends: Source and goal of each message, as nodes.
            carried: Place of each message among those of its source, and its chunks.
            links: Most links of each; None for the form's `carriers`.
            links_of: The links of each message; None to choose them.
        """
        links_of = links_of or self._carriers.choose(ends, links or self._form.carriers)
        parts, places = range(self._form.parts), len(carried)
        return [
            (part * places + place, part_chunks, link)
            for links, (place, chunks) in zip(links_of, carried, strict=True)
            for link, link_chunks in self._share_out(links, chunks)
            for part, part_chunks in cut(parts, link_chunks)
        ]

    def _share_out(self, links: list[int], chunks: list[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield links with their parts of the chunks: as many chunks, or as many bytes where chunks differ in size."""
        if len({self._weight[chunk] for chunk in chunks}) == 1:
            yield from cut(links, chunks)
            return
        loads, parts = [0.0] * len(links), [list[int]() for _ in links]
        for chunk in sorted(chunks, key=lambda chunk: (-self._weight[chunk], chunk)):
            least = loads.index(min(loads))
            loads[least] += self._weight[chunk]
            parts[least].append(chunk)
        yield from ((link, sorted(part)) for link, part in zip(links, parts, strict=True) if part)

    def from_exits(self, arrivals: Sequence[_Arrival], messages: list[_Message]) -> list[_Arrival]:
        """Return the arrivals, each with the place of the first message that its chunk leaves in.

        Where a rank has more than one chunk, and a chunk leaves its node from one rank only, the arrival also names
        that rank, which gets the chunk first. If it is the rank itself, another rank of a node of three or more gets it
        first, and copies it to the others.
        """
        exits: dict[int, tuple[int, set[int]]] = {}
        for place, chunks, link in messages:
            for chunk in chunks:
                first, ranks = exits.get(chunk, (place, set()))
                exits[chunk] = min(first, place), {*ranks, int(self._nodes.net.src[link])}
        has_many = len(arrivals) > len({arrival[1] for arrival in arrivals})
        placed = list[_Arrival]()
        for chunk, rank, *_ in arrivals:
            place, ranks = exits.get(chunk, (0, set()))
            middle = min(ranks) if has_many and len(ranks) == 1 else None
            members = self._nodes.members[self._nodes.node_of[rank]]
            if middle == rank and len(members) > 2:
                # Other ranks copy what leaves from the root, whose port has to send everything else.
                middle = members[(members.index(rank) + 1 + chunk % (len(members) - 1)) % len(members)]
            placed.append((chunk, rank, place, middle) if middle is not None else (chunk, rank, place))
        return placed

    def deliver(self, messages: list[_Message]) -> list[_Arrival]:
        """Add the sends of messages at the present stage and step, and return the chunks that come to ranks.

        Both the stage and the step move on by one.
        """
        arrivals = list[_Arrival]()
        for place, chunks, link in messages:
            number = len(self.rows)
            arrivals += [(chunk, int(self._nodes.net.dst[link]), place) for chunk in chunks]
            self.rows += [Row(self.stage, (place, number), chunk, link, self.step, number) for chunk in chunks]
        self.stage, self.step = self.stage + 1, self.step + 1
        return arrivals

    def copy_inside(self, arrivals: Sequence[_Arrival]) -> None:
        """Add rows that copy chunks to all ranks of the node that they came to, and move the stage and the step on."""
        last_turn: dict[int, int] = {}
        for chunk, rank, place, *chosen in arrivals:
            turn = last_turn[rank] = last_turn.get(rank, -1) + 1
            members = self._nodes.members[self._nodes.node_of[rank]]
            rotated = members[(members.index(rank) + turn) % len(members)] if self._form.scattered else None
            middle = chosen[0] if chosen else rotated
            for hop in self._nodes.tree(rank, middle):
                # What a rank gets to pass it on does not wait behind copies that others pass on.
                order = (0, hop.depth, place, turn, hop.turn) if self.stage == 0 else (place, hop.depth, turn, hop.turn)
                self.rows.append(Row(self.stage, order, chunk, hop.link, self.step + hop.depth, -1))
        self.stage, self.step = self.stage + 1, self.step + 2 * self._nodes.depth


def cut(takers: Sequence[int], chunks: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield each taker with its equal part of the chunks, in order; takers without chunks are left out."""
    cuts = [len(chunks) * i // len(takers) for i in range(len(takers) + 1)]
    for taker, low, high in zip(takers, cuts, cuts[1:], strict=False):
        if low < high:
            yield taker, chunks[low:high]


def moving(nodes: Nodes, collective: Collective, form: MessagesForm) -> MessagePlan:
    """Return the plan of a collective whose chunks each go from one rank to one other rank, in phases between nodes."""
    at, goals, count = collective.holders[1].copy(), collective.goals[1], len(nodes)
    place_of = {rank: place for members in nodes.members for place, rank in enumerate(members)}
    rows: list[Row] = []
    step, width = 0, 1
    for stage, ahead in enumerate(phases_of(count, form.radix)):
        distance = (nodes.node_of[goals] - nodes.node_of[collective.holders[1]]) % count
        digit = distance // width % form.radix
        width *= form.radix
        ends, carried = list[tuple[int, int]](), list[tuple[int, list[int]]]()
        for place, far in enumerate(ahead):
            leaving = np.flatnonzero(digit == place + 1)
            own_node = nodes.node_of[at[leaving]]
            for node in np.unique(own_node).tolist():
                chunks = leaving[own_node == node].tolist()
                chunks.sort(key=lambda chunk: (place_of[int(goals[chunk])], int(at[chunk]), chunk))
                ends.append((node, (node + far) % count))
                carried.append((place, chunks))
        for links, (place, chunks) in zip(LinkChoice(nodes).choose(ends, form.carriers), carried, strict=True):
            for link, part in cut(links, chunks):
                number, source = len(rows), int(nodes.net.src[link])
                for chunk in part:
                    _move(rows, nodes, chunk, int(at[chunk]), source, (step, 2 * stage, place))
                    rows.append(Row(2 * stage + 1, (place, number), chunk, link, step + nodes.depth, number))
                    at[chunk] = nodes.net.dst[link]
        step += nodes.depth + 1
    last = 2 * len(phases_of(count, form.radix))
    for chunk, (rank, goal) in enumerate(zip(at.tolist(), goals.tolist(), strict=True)):
        _move(rows, nodes, chunk, rank, goal, (step, last, 0))
    return plan_of(rows)


def phases_of(count: int, radix: int) -> list[list[int]]:
    """Return how many nodes ahead each node sends, phase after phase.

    With radix 1 it is 1 in each of `count` - 1 phases. Else in phase p these are 1, 2, …, radix - 1 times radix to the
    power p, as far as they are less than `count`.
    """
    if radix == 1:
        return [[1]] * (count - 1)
    phases, width = [], 1
    while width < count:
        phases.append([j * width for j in range(1, radix) if j * width < count])
        width *= radix
    return phases


def _move(rows: list[Row], nodes: Nodes, chunk: int, source: int, goal: int, at: tuple[int, int, int]) -> None:
    """Add rows that move a chunk inside a node; none where it is at its goal.

    Args:
        rows: Rows of the plan; get the new ones.
        nodes: The nodes.
        chunk: The chunk.
        source: Rank that has it.
        goal: Rank of the same node that is to have it.
        at: First step, stage, and place of the message that waits for it.
    """
    step, stage, place = at
    members = nodes.members[nodes.node_of[source]]
    turn = (members.index(goal) - members.index(source)) % len(members)
    for depth, link in enumerate(nodes.path(source, goal)):
        rows.append(Row(stage, (place, depth, turn), chunk, link, step + depth, -1))


def plan_of(rows: list[Row]) -> MessagePlan:
    """Return the plan of one or more rows in any order, without a time at which chunks leave their root."""
    ordered = sorted(range(len(rows)), key=lambda i: (rows[i].stage, rows[i].order, i))
    stage, _, chunk, link, step, message, reduces = zip(*(rows[i] for i in ordered), strict=True)
    numbers = np.array(message)
    numbers = np.where(numbers < 0, len(rows) + np.arange(len(rows)), numbers)
    return MessagePlan(np.array(stage), np.array(chunk), np.array(link), np.array(step), numbers, np.array(reduces))
