"""What prices of resources in windows of time prove: nothing can end by some time. The check needs no solver.

Cut the time up to T into slots. Whatever ends by T sends every byte of a chunk along a path from a holder to each goal,
link after link, each at a time; the byte is at the far end of a link α later. So its path in slots goes from a slot to
the slot in which it arrives, or a later one. Let each resource have a price in each slot; a byte pays for what it uses.
If several goals need a chunk, or a sum has several contributions, a send that serves all of them is paid once, in
shares (over a switch that multicasts or reduces, it goes between several ranks at once). Bytes × (the least that each
can pay) must not exceed Σ price × capacity × length of slot. If it does, T is refuted (flow over time: Ford and
Fulkerson, 1958; this is the dual of its relaxation in slots).

A schedule for a message of s bytes is also one for fewer bytes, and one for c · s bytes with every time c times as
long. So the message of s bytes needs at least T, each larger one too, and each smaller one its part of T.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from synth.bounds.metric import carrier_lengths, latencies
from synth.bounds.witness import NOTHING, Limit, Witness
from synth.model.collective import Bools, Floats, Ints, chunks_by_ends
from synth.model.problem import Problem
from topologies.arrays import row_of_entry
from topologies.errors import BadWitness
from topologies.network import Network

MOST_SLOTS = 256
MOST_RANKS = 128  # the check holds tables of pairs × ranks
_ROUNDING = 1e-9  # relative: the check assumes latencies that are longer by this


@dataclass(frozen=True, eq=False)
class Slots:
    """Time cut into slots, with the effect of a send in each slot.

    Attributes:
        edges: Times in µs from 0 to the end, shape (slots + 1,).
        lands: int, shape (carriers, slots), for links and then hyperlinks: the first slot in which what was sent may be
            at the far end. The number of slots means the very end.
        in_time: bool, shape (carriers, slots): whether anything that is sent in the slot can arrive before the end.
            What arrives exactly at the end was sent in an instant, so it is nothing.
    """

    edges: Floats
    lands: Ints
    in_time: Bools

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def end_us(self) -> float:
        """Return the end in µs."""
        return float(self.edges[-1])


def slots_of(net: Network, edges: Floats) -> Slots:
    """Return the slots of a network between the edges.

    Args:
        net: The network, whose latencies decide where sends land.
        edges: Times in µs that rise from 0, shape (slots + 1,); this is not checked.
    """
    # A slightly longer α makes edges meet that rounding separates; no schedule gets longer by more than that factor.
    comes = edges[None, :-1] + net.carriers.alpha_us[:, None] * (1 + _ROUNDING)
    lands = np.searchsorted(edges, comes.ravel(), side="right").reshape(comes.shape) - 1
    return Slots(edges, lands, comes < edges[-1])


@dataclass(frozen=True, eq=False)
class ChunkClass:
    """Chunks with the same holders and goals, which pay the same.

    Attributes:
        chunks: Indices of the chunks, ascending.
        amount: Their sum as a share of the message.
        reduces: True if they are sums.
        holders: Local ranks that hold them, ascending.
        goals: Local ranks that want them, ascending.
    """

    chunks: Ints
    amount: float
    reduces: bool
    holders: Ints
    goals: Ints

    @property
    def chunk(self) -> int:
        """Return the first of the chunks."""
        return int(self.chunks[0])

    def flows(self) -> list[tuple[int, int]]:
        """Return (source, goal) of all flows: each contribution to each goal of a sum, otherwise a copy to each goal.

        A goal that holds the chunk gets no copy, and no contribution of its own. A copy's source is the first holder,
        and stands for any holder.
        """
        if self.reduces:
            return [(h, g) for g in self.goals.tolist() for h in self.holders.tolist() if h != g]
        holders = set(self.holders.tolist())
        return [(int(self.holders[0]), g) for g in self.goals.tolist() if g not in holders]

    def starts(self, source: int) -> Ints:
        """Return the ranks at which a flow from a source may start: of a sum the source, of a copy any holder."""
        return np.array([source]) if self.reduces else self.holders


def alike_chunks(problem: Problem) -> list[ChunkClass]:
    """Return the problem's chunks that move, grouped by whether they reduce and by their holders and goals.

    Groups are in the order of their first chunks. Chunks that no rank must get are left out.
    """
    collective = problem.collective
    classes = [
        ChunkClass(
            chunks, sum(collective.fraction[chunks].tolist()), bool(collective.reduces[chunks[0]]), holders, goals
        )
        for chunks, holders, goals in chunks_by_ends(collective, np.arange(collective.nchunks))
    ]
    return [chunk_class for chunk_class in classes if len(chunk_class.holders) and chunk_class.flows()]


def least_cost(net: Network, slots: Slots, price: Floats, starts: list[Ints], goals: Ints) -> Floats:
    """Return the least that a byte of each flow pays from its start at time 0 to its goal at the end, shape (flows,).

    It is inf where nothing can get there in time.

    Args:
        net: The network.
        slots: The slots of time.
        price: Price of each flow on each link and hyperlink in each slot, shape (flows, carriers, slots).
        starts: Ranks of each flow, at any of which it may start.
        goals: Goal of each flow.
    """
    count = len(goals)
    ahead = np.full((len(slots) + 1, count, net.nranks), np.inf)  # still to pay from each rank and slot on
    ahead[:, np.arange(count), goals] = 0.0
    within = slots.lands == np.arange(len(slots))
    carrier = row_of_entry(net.pairs.ptr)
    for slot in range(len(slots) - 1, -1, -1):
        current = ahead[slot]
        np.minimum(current, ahead[slot + 1], out=current)
        pairs = np.flatnonzero(slots.in_time[carrier, slot])
        usable = carrier[pairs]
        pay, lands = price[:, usable, slot], slots.lands[usable, slot]
        src, dst = net.pairs.src[pairs], net.pairs.dst[pairs]
        for _ in range(net.nranks):
            before = current.copy()
            np.minimum.at(current.T, src, pay.T + ahead[lands, :, dst])
            if not within[usable, slot].any() or (current == before).all():
                break
    return np.array([ahead[0, i, start_ranks].min() for i, start_ranks in enumerate(starts)])


def part_of(net: Network, parts: tuple[tuple[int, ...], ...]) -> Ints:
    """Return the number of each rank's part, shape (nranks,); a rank that is in no part is a part of its own.

    Raises:
        ValueError: A part is empty, or a rank does not exist or is in two parts.
    """
    part = np.full(net.nranks, -1, dtype=np.int64)
    listed = [rank for ranks in parts for rank in ranks]
    if not all(parts) or len(set(listed)) < len(listed) or not all(0 <= rank < net.nranks for rank in listed):
        raise ValueError(f"parts {parts}; each must have ranks of 0..{net.nranks - 1}, and no rank must stand in two")
    for number, ranks in enumerate(parts):
        part[list(ranks)] = number
    lone = np.flatnonzero(part < 0)
    part[lone] = len(parts) + np.arange(len(lone))
    return part


def useful(net: Network, chunk_class: ChunkClass, slots: Slots) -> Bools:
    """Return in which slots a link's sends of such chunks can be of use, shape (nlinks, slots).

    The chunk must have come to the link's start, and be able to go on from its end to some goal. All other sends can be
    left out of any schedule.
    """
    distances = latencies(net)
    since = distances.nearest(chunk_class.holders)[net.src] * (1 + _ROUNDING)
    takes = (net.alpha_us + distances.nearest(chunk_class.goals, to=True)[net.dst]) * (1 + _ROUNDING)
    return (slots.edges[1:] > since[:, None]) & (slots.edges[:-1] + takes[:, None] < slots.end_us)


def first_whole_holds(net: Network) -> bool:
    """Return True if `first_whole` proves anything about a network: no hyperlinks and no latency of 0.

    With a latency of 0, what arrives could be sent on at the same time.
    """
    return net.hyperlinks is None and bool((net.alpha_us > 0).all())


def first_whole(
    problem: Problem, chunk_class: ChunkClass, slots: Slots, price: Floats, parts: tuple[tuple[int, ...], ...] = ()
) -> float:
    """Return the least that a byte of a sum pays by the first part of the network whose ranks have all of it.

    Until then each other part with a holder has sent (what leaves it must reach that first part), and after it each
    other part with a goal still receives. These are different sends, unless switches multicast or reduce; networks for
    which `first_whole_holds` is False get 0. The result is inf where no part can have all of the sum in time.

    Args:
        problem: The problem.
        chunk_class: The sums.
        slots: The slots of time.
        price: Price on each link in each slot, shape (nlinks, slots).
        parts: Parts as for `part_of`; empty: every rank is a part.
    """
    net = problem.network
    if not first_whole_holds(net):
        return 0.0
    part = part_of(net, parts)
    count = int(part.max()) + 1
    begins, ends = slots.edges[:-1], slots.edges[1:]
    away = latencies(net).rows(np.arange(net.nranks))
    crossing = np.flatnonzero(part[net.src] != part[net.dst])
    src, dst, alpha_us = part[net.src[crossing]], part[net.dst[crossing]], net.alpha_us[crossing]
    pay = np.where(useful(net, chunk_class, slots), price, np.inf)[crossing]
    holds, wants = np.unique(part[chunk_class.holders]), np.unique(part[chunk_class.goals])
    least = np.inf
    # receives[g, j] is the least paid for a send into part g that ends in or after slot j.
    late = (ends + alpha_us[:, None])[:, :, None] >= begins * (1 - _ROUNDING)
    receives = np.full((count, len(slots)), np.inf)
    np.minimum.at(receives, dst, np.where(late, pay[:, :, None], np.inf).min(axis=1))
    for first in range(count):
        comes = begins + (alpha_us + away[:, part == first].min(axis=1)[net.dst[crossing]])[:, None]
        early = comes[:, :, None] <= ends * (1 + _ROUNDING)
        sends = np.full((count, len(slots)), np.inf)
        np.minimum.at(sends, src, np.where(early, pay[:, :, None], np.inf).min(axis=1))
        total = sends[holds[holds != first]].sum(axis=0) + receives[wants[wants != first]].sum(axis=0)
        least = min(least, float(total.min()))
    return least


def _least_paid(
    problem: Problem,
    chunk_class: ChunkClass,
    slots: Slots,
    price: Floats,
    shares: dict[int, dict[tuple[int, int], Floats]],
    parts: tuple[tuple[int, ...], ...],
) -> float:
    """Return the least that a byte of such chunks pays.

    Args:
        problem: The problem.
        chunk_class: The chunks.
        slots: The slots of time.
        price: Price on each link and hyperlink in each slot, shape (carriers, slots).
        shares: By the first chunk of a class and (source, goal), the part of the price that a flow pays, shape
            (carriers, slots); where the flows' parts exceed the price in sum, they are scaled down to it.
        parts: Parts as for `part_of`.

    Raises:
        BadWitness: There are shares of a flow that the chunks do not have.
    """
    net, flow_prices = problem.network, shares.get(chunk_class.chunk, {})
    flows = chunk_class.flows()
    unknown = next((flow for flow in flow_prices if flow not in flows), None)
    if unknown is not None:
        raise BadWitness(
            f"window: chunk {chunk_class.chunk} has no flow from {unknown[0]} to {unknown[1]}; shares are of its flows"
        )
    if not flow_prices and len(flows) == 1:
        flow_prices = {flows[0]: price}
    paid, remaining = 0.0, price
    if flow_prices:
        prices = np.stack(list(flow_prices.values()))
        total = prices.sum(axis=0)
        prices = prices * np.divide(price, total, out=np.ones_like(price), where=total > price)
        starts, goals = (
            [chunk_class.starts(source) for source, _ in flow_prices],
            np.array([goal for _, goal in flow_prices]),
        )
        paid = float(least_cost(net, slots, prices, starts, goals).sum())
        remaining = np.maximum(price - prices.sum(axis=0), 0.0)
    return paid + (first_whole(problem, chunk_class, slots, remaining, parts) if chunk_class.reduces else 0.0)


@dataclass(frozen=True, kw_only=True)
class Window(Witness):
    """Prices of resources in slots of time, which refute that a message can be there by the end of the slots.

    Attributes:
        at_bytes: Message size in bytes.
        times: Times in µs, from 0 on, that separate the slots.
        windows: (resource, slot, price). A resource beyond the network's own (nresources + link) is that link's own
            bandwidth.
        shares: (chunk, source, goal, link, slot, price), the price that one of several flows of a chunk pays.
        parts: Parts for sums: see `part_of`.
    """

    kind: ClassVar[str] = "window"
    of_quotients: ClassVar[bool] = False
    at_bytes: float = 0.0
    times: tuple[float, ...] = ()
    windows: tuple[tuple[int, int, float], ...] = ()
    shares: tuple[tuple[int, int, int, int, int, float], ...] = ()
    parts: tuple[tuple[int, ...], ...] = ()

    def resource_numbers(self) -> set[int]:
        """Return the resources with a price."""
        return {resource for resource, _, _ in self.windows}

    def renumbered(self, resource_map: Ints) -> Self:
        """Return a witness with the resources of another network; see `Witness.renumbered`.

        Links in `shares` keep their numbers.
        """
        return replace(self, windows=tuple((int(resource_map[row[0]]), *row[1:]) for row in self.windows))

    def limit(self, problem: Problem) -> Limit:
        """Return (0, T / `at_bytes`, T): messages of `at_bytes` and more need T, and smaller ones their part of it.

        T is `times[-1]` in µs, less a rounding. The result is (0, 0, inf) where the prices refute nothing. It takes
        O(flows × links × slots).

        Raises:
            BadWitness: The witness names something that does not exist, or has a wrong price, time or size; see
                `balance`.
        """
        return self.limit_of(*self.balance(problem))

    def limit_of(self, paid: float, cost: Floats) -> Limit:
        """Return the limit (0, µs per byte, µs at most) that follows from a `balance`.

        It is (0, 0, inf) where the prices refute nothing: what `at_bytes` bytes pay is not more than what all capacity
        costs until the end.

        Args:
            paid: The least that a message's byte pays; may be inf.
            cost: What all capacity costs in a µs of each slot, shape (slots,).
        """
        budget = float(cost @ np.diff(self.times))
        if not (0 < budget < np.inf and 0 < self.at_bytes < np.inf):
            return NOTHING
        if not paid * self.at_bytes > budget * (1 + _ROUNDING):
            return NOTHING
        end_us = self.times[-1] / (1 + _ROUNDING)
        return 0.0, end_us / self.at_bytes, end_us

    def balance(self, problem: Problem) -> tuple[float, Floats]:
        """Return the least that a message's byte pays, and what all capacity costs in a µs of each slot.

        The first is inf where something cannot arrive before the end; the second has shape (slots,). It takes O(flows ×
        links × slots).

        Raises:
            BadWitness: The witness names a slot, resource, link, rank or flow that does not exist, a price is negative
                or not finite, the times do not rise from 0, or there are more than 256 slots or 128 ranks.
        """
        net = problem.network
        slots = slots_of(net, self._edges())
        try:
            part_of(net, self.parts)
        except ValueError as error:
            raise self.refusal(str(error)) from None
        if not problem.nranks <= MOST_RANKS:
            raise self.refusal(f"{problem.nranks} ranks are too many; it must be at most {MOST_RANKS}")
        price = np.zeros((net.nresources + net.nlinks, len(slots)))
        for resource, slot, value in self.windows:
            if not (0 <= resource < len(price) and 0 <= slot < len(slots) and 0 <= value < np.inf):
                rule = "it must be ≥ 0, and the two must exist"
                raise self.refusal(f"the price {value} of resource {resource} in slot {slot}; {rule}")
            price[resource, slot] = value
        capacity = np.concatenate([net.capacity_gbs, net.bandwidth_gbs]) * 1e3  # bytes/µs
        link_price = np.stack([carrier_lengths(problem, column) for column in price.T], axis=1)
        classes = alike_chunks(problem)
        shares = self._shares(problem, classes, len(slots))
        paid = sum(
            chunk_class.amount * _least_paid(problem, chunk_class, slots, link_price, shares, self.parts)
            for chunk_class in classes
        )
        return float(paid), np.asarray(capacity @ price)

    def _shares(
        self, problem: Problem, classes: list[ChunkClass], nslots: int
    ) -> dict[int, dict[tuple[int, int], Floats]]:
        """Return each flow's prices by the first chunk of a class and (source, goal), shape (carriers, slots) each.

        Raises:
            BadWitness: A chunk is not the first of a class, a link or slot does not exist, or a price is not ≥ 0.
        """
        count = problem.network.ncarriers
        first = {chunk_class.chunk for chunk_class in classes}
        prices: dict[int, dict[tuple[int, int], Floats]] = {}
        for chunk, source, goal, link, slot, value in self.shares:
            if not (chunk in first and 0 <= link < count and 0 <= slot < nslots and 0 <= value < np.inf):
                rule = "it must be ≥ 0, and all must exist"
                raise self.refusal(f"the share {value} of chunk {chunk} on link {link} in slot {slot}; {rule}")
            flow = prices.setdefault(chunk, {}).setdefault((source, goal), np.zeros((count, nslots)))
            flow[link, slot] = value
        return prices

    def _edges(self) -> Floats:
        """Return the edges of the slots in µs, shape (slots + 1,).

        Raises:
            BadWitness: They do not rise from 0, are not finite, or are fewer than 2 or more than 257.
        """
        edges = np.array(self.times, dtype=np.float64)
        good = 2 <= len(edges) <= MOST_SLOTS + 1 and edges[0] == 0.0 and bool(np.all(np.diff(edges) > 0))
        if not good or not np.isfinite(edges).all():
            raise self.refusal(f"times {edges[:3].tolist()}…; they must rise from 0, {MOST_SLOTS + 1} at most")
        return edges
