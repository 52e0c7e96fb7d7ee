"""What prices of resources in windows of time prove: that nothing can end by some time; checked without a solver.

Cut the time up to T into slots. Whatever ends by T sends every byte of a chunk along a path from a holder to each goal,
over link after link, each at a time; at the far end of a link it is α later. So its path in slots goes from a slot to
the one in which that has come, or a later one. With a price for each resource in each slot, a byte pays for what it
uses; of what several goals need of a chunk, or of the contributions to one sum, a send that serves all is paid once, in
shares (over a switch that multicasts or reduces it goes between several ranks at once). Bytes × (the least that each
can pay) must not exceed Σ price × capacity × length of slot: if it does, T is refuted (flow over time: Ford and
Fulkerson, 1958; the dual of its relaxation in slots).

A schedule for a message of s bytes is one for fewer bytes too, and one for c · s with every time c times as long. So
the message of s bytes needs T at least, each larger one too, and each smaller one its part of T.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.bounds.metric import carrier_lengths, latencies
from synth.bounds.witness import Limit, Witness, refused
from synth.model.collective import Bools, Floats, Ints
from synth.model.problem import Problem
from topologies.arrays import row_of_entry
from topologies.errors import BadWitness
from topologies.network import Network

MOST_SLOTS = 256
MOST_RANKS = 128  # the check holds tables of pairs × ranks
_NOTHING = (0.0, 0.0, np.inf)
_ROUNDING = 1e-9  # relative: latencies are taken for so much longer


@dataclass(frozen=True, eq=False)
class Slots:
    """Time cut into slots, and what a send in each of them means.

    Attributes:
        edges: µs, shape (slots + 1,): from 0 to the end.
        lands: int, shape (carriers, slots): of links and then hyperlinks, the slot from which on what was sent may be
            at the far end (the number of slots: at the very end).
        in_time: bool, shape (carriers, slots): whether what is sent there can come before the end at all. What comes at
            the end is what is sent at one moment: nothing.
    """

    edges: Floats
    lands: Ints
    in_time: Bools

    def __len__(self) -> int:
        return len(self.edges) - 1

    @property
    def end_us(self) -> float:
        return float(self.edges[-1])


def slots_of(net: Network, edges: Floats) -> Slots:
    """The slots between these times of a network."""
    # as if α were that much longer, so that edges meet; whoever can be done in time then takes no longer than that much
    comes = edges[None, :-1] + net.carriers.alpha_us[:, None] * (1 + _ROUNDING)
    lands = np.searchsorted(edges, comes.ravel(), side="right").reshape(comes.shape) - 1
    return Slots(edges, lands, comes < edges[-1])


@dataclass(frozen=True, eq=False)
class Alike:
    """Chunks with the same holders and goals, that are paid for alike.

    Attributes:
        chunks: these, ascending. amount: the sum of theirs, as a part of the message.
        reduces: whether they are sums. holders, goals: local ranks, ascending.
    """

    chunks: Ints
    amount: float
    reduces: bool
    holders: Ints
    goals: Ints

    @property
    def chunk(self) -> int:
        """The first of them."""
        return int(self.chunks[0])

    def flows(self) -> list[tuple[int, int]]:
        """(source, goal) of all that must come: of a sum each contribution to each goal, else a copy to each goal.

        A copy's source stands for any holder: it is the first.
        """
        if self.reduces:
            return [(h, g) for g in self.goals.tolist() for h in self.holders.tolist() if h != g]
        held = set(self.holders.tolist())
        return [(int(self.holders[0]), g) for g in self.goals.tolist() if g not in held]

    def starts(self, source: int) -> Ints:
        """Where what flows from a source may start."""
        return np.array([source]) if self.reduces else self.holders


def alike_chunks(problem: Problem) -> list[Alike]:
    """The problem's chunks by their holders and goals, those that move."""
    collective = problem.collective
    (hold_ptr, hold), (goal_ptr, goal) = collective.holders, collective.goals
    chunks_of: dict[tuple[bytes, bytes, bool], list[int]] = {}
    for chunk, reduces in enumerate(collective.reduces.tolist()):
        ends = (
            np.sort(hold[hold_ptr[chunk] : hold_ptr[chunk + 1]]),
            np.sort(goal[goal_ptr[chunk] : goal_ptr[chunk + 1]]),
        )
        chunks_of.setdefault((ends[0].tobytes(), ends[1].tobytes(), reduces), []).append(chunk)
    found = []
    for (held, wanted, reduces), chunks in chunks_of.items():
        holders, goals = np.frombuffer(held, dtype=np.int64), np.frombuffer(wanted, dtype=np.int64)
        found.append(Alike(np.array(chunks), sum(collective.fraction[chunks].tolist()), reduces, holders, goals))
    return [one for one in found if len(one.holders) and one.flows()]


def window_limit(problem: Problem, witness: Witness) -> Limit:
    """That messages of `at_bytes` and more need `times[-1]`, and smaller ones their part of it.

    Takes O(flows × links × slots). Raises BadWitness for what names no slot, resource, link or flow.
    """
    return limit_of(witness, *balance(problem, witness))


def limit_of(witness: Witness, paid: float, cost: Floats) -> Limit:
    """The same by its `balance`."""
    budget = float(cost @ np.diff(witness.times))
    if not (0 < budget < np.inf and 0 < witness.at_bytes < np.inf):
        return _NOTHING
    if not paid * witness.at_bytes > budget * (1 + _ROUNDING):
        return _NOTHING
    end_us = witness.times[-1] / (1 + _ROUNDING)
    return 0.0, end_us / witness.at_bytes, end_us


def balance(problem: Problem, witness: Witness) -> tuple[float, Floats]:
    """The least that a message's byte pays, and what all capacity costs for a µs of each slot, shape (slots,).

    Takes O(flows × links × slots). Raises BadWitness for what names no slot, resource, link or flow.
    """
    net = problem.network
    slots = slots_of(net, _edges(witness))
    try:
        part_of(net, witness.parts)
    except ValueError as error:
        raise refused(witness, str(error)) from None
    if not problem.nranks <= MOST_RANKS:
        raise refused(witness, f"{problem.nranks} ranks are too many; it must be at most {MOST_RANKS}")
    price = np.zeros((net.nresources + net.nlinks, len(slots)))
    for resource, slot, value in witness.windows:
        if not (0 <= resource < len(price) and 0 <= slot < len(slots) and 0 <= value < np.inf):
            raise refused(
                witness, f"the price {value} of resource {resource} in slot {slot}; it must be ≥ 0 and of both"
            )
        price[resource, slot] = value
    capacity = np.concatenate([net.capacity_gbs, net.bandwidth_gbs]) * 1e3  # bytes a µs
    link_price = np.stack([carrier_lengths(problem, column) for column in price.T], axis=1)
    alike = alike_chunks(problem)
    shares = _shares(problem, witness, alike, len(slots))
    paid = sum(one.amount * _least_paid(problem, one, slots, link_price, shares, witness.parts) for one in alike)
    return float(paid), np.asarray(capacity @ price)


def least_cost(net: Network, slots: Slots, price: Floats, starts: list[Ints], goals: Ints) -> Floats:
    """The least that a byte pays on its way from its start at time 0 to its goal at the end, shape (flows,).

    Args:
        price: of each flow on each link and hyperlink in each slot, shape (flows, carriers, slots).
        starts, goals: of each flow; one start of several.
    """
    count = len(goals)
    ahead = np.full((len(slots) + 1, count, net.nranks), np.inf)  # what is still to pay from each rank and slot on
    ahead[:, np.arange(count), goals] = 0.0
    within = slots.lands == np.arange(len(slots))
    carrier = row_of_entry(net.pairs.ptr)
    for slot in range(len(slots) - 1, -1, -1):
        here = ahead[slot]
        np.minimum(here, ahead[slot + 1], out=here)
        pairs = np.flatnonzero(slots.in_time[carrier, slot])
        usable = carrier[pairs]
        pay, lands = price[:, usable, slot], slots.lands[usable, slot]
        src, dst = net.pairs.src[pairs], net.pairs.dst[pairs]
        for _ in range(net.nranks):
            before = here.copy()
            np.minimum.at(here.T, src, pay.T + ahead[lands, :, dst])
            if not within[usable, slot].any() or (here == before).all():
                break
    return np.array([ahead[0, i, of].min() for i, of in enumerate(starts)])


def part_of(net: Network, parts: tuple[tuple[int, ...], ...]) -> Ints:
    """The number of each rank's part, shape (nranks,); a rank that stands in none is one of its own.

    Raises ValueError: a part is empty, or a rank stands in two or does not exist.
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


def useful(net: Network, one: Alike, slots: Slots) -> Bools:
    """In which slots what a link sends of such chunks can be of use, shape (nlinks, slots).

    Something must have come to where it starts, and be able to go on to some goal from where it ends. Other sends
    can be left out of any schedule.
    """
    distances = latencies(net)
    since = distances.nearest(one.holders)[net.src] * (1 + _ROUNDING)
    takes = (net.alpha_us + distances.nearest(one.goals, to=True)[net.dst]) * (1 + _ROUNDING)
    return (slots.edges[1:] > since[:, None]) & (slots.edges[:-1] + takes[:, None] < slots.end_us)


def tells_first(net: Network) -> bool:
    """Whether who has all of a sum first proves anything: else what comes could be sent on at the same moment."""
    return net.hyperlinks is None and bool((net.alpha_us > 0).all())


def first_whole(
    problem: Problem, one: Alike, slots: Slots, price: Floats, parts: tuple[tuple[int, ...], ...] = ()
) -> float:
    """The least that a byte of a sum pays, by the first part of the network whose ranks together have all of it.

    Until then each other part with a holder has sent (what leaves it must reach that first part), and after it each
    other part with a goal still receives. These are different sends, unless switches multicast or reduce: nothing is
    said of such networks.

    Args:
        price: on each link in each slot, shape (nlinks, slots).
        parts: as of `part_of`.
    """
    net = problem.network
    if not tells_first(net):
        return 0.0
    part = part_of(net, parts)
    count = int(part.max()) + 1
    begins, ends = slots.edges[:-1], slots.edges[1:]
    away = latencies(net).rows(np.arange(net.nranks))
    crossing = np.flatnonzero(part[net.src] != part[net.dst])
    src, dst, alpha_us = part[net.src[crossing]], part[net.dst[crossing]], net.alpha_us[crossing]
    pay = np.where(useful(net, one, slots), price, np.inf)[crossing]
    holds, wants = np.unique(part[one.holders]), np.unique(part[one.goals])
    least = np.inf
    # receives[g, j]: the least paid for a send into part g that ends in or after slot j
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
    one: Alike,
    slots: Slots,
    price: Floats,
    shares: dict[int, dict[tuple[int, int], Floats]],
    parts: tuple[tuple[int, ...], ...],
) -> float:
    """The least that a byte of such chunks pays."""
    net, mine = problem.network, shares.get(one.chunk, {})
    flows = one.flows()
    unknown = next((flow for flow in mine if flow not in flows), None)
    if unknown is not None:
        raise BadWitness(f"window: nothing of chunk {one.chunk} flows from {unknown[0]} to {unknown[1]}; it must")
    if not mine and len(flows) == 1:
        mine = {flows[0]: price}
    paid, left = 0.0, price
    if mine:
        prices = np.stack(list(mine.values()))
        over = prices.sum(axis=0)
        prices = prices * np.divide(price, over, out=np.ones_like(price), where=over > price)
        starts, goals = [one.starts(source) for source, _ in mine], np.array([goal for _, goal in mine])
        paid = float(least_cost(net, slots, prices, starts, goals).sum())
        left = np.maximum(price - prices.sum(axis=0), 0.0)
    return paid + (first_whole(problem, one, slots, left, parts) if one.reduces else 0.0)


def _shares(
    problem: Problem, witness: Witness, alike: list[Alike], nslots: int
) -> dict[int, dict[tuple[int, int], Floats]]:
    """By chunk and flow its prices, shape (nlinks, slots)."""
    count = problem.network.ncarriers
    first = {one.chunk for one in alike}
    found: dict[int, dict[tuple[int, int], Floats]] = {}
    for chunk, source, goal, link, slot, value in witness.shares:
        if not (chunk in first and 0 <= link < count and 0 <= slot < nslots and 0 <= value < np.inf):
            raise refused(
                witness, f"the share {value} of chunk {chunk} on link {link} in slot {slot}; it must be of all"
            )
        flow = found.setdefault(chunk, {}).setdefault((source, goal), np.zeros((count, nslots)))
        flow[link, slot] = value
    return found


def _edges(witness: Witness) -> Floats:
    edges = np.array(witness.times, dtype=np.float64)
    good = 2 <= len(edges) <= MOST_SLOTS + 1 and edges[0] == 0.0 and bool(np.all(np.diff(edges) > 0))
    if not good or not np.isfinite(edges).all():
        raise refused(witness, f"times {edges[:3].tolist()}…; they must rise from 0, {MOST_SLOTS + 1} at most")
    return edges
