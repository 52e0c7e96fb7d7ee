"""Prices of resources in windows of time that refute an early end: the dual of a flow over time, by linear programs.

For a time T and a message size, the prices that prove most are the solution of a linear program over slots; T is raised
where they refute it, and lowered where they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from synth.bounds.metric import latencies
from synth.bounds.relaxation import Capacity, capacities
from synth.bounds.search import Search
from synth.bounds.window_edges import window_edges
from synth.bounds.window_limit import (
    Alike,
    Slots,
    alike_chunks,
    balance,
    limit_of,
    part_of,
    slots_of,
    tells_first,
    useful,
    window_limit,
)
from synth.bounds.window_shapes import find_shapes, flows_at, meets
from synth.bounds.witness import Witness
from synth.model.collective import Floats, Ints
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.solvers.linear_program import ProgramBuilder
from synth.solvers.workers import Workers
from topologies.arrays import row_of_entry

_KEPT = 1e-7  # of the highest price: what is less is not worth a place in the witness
_MOST = 50.0  # what a byte can pay, where 1 refutes: where nothing can arrive at all it has no end
_JUST = 1e-3  # so much over 1, as its logarithm, a byte is to pay
_WAIT_S = 1e-3  # for a solver's process, before others go on
_NEAR = 3e-4  # of a time: prices for another end that is no farther would refute no more
_MARGIN = 1e-7  # relative: for the rounding of what capacity costs
_SHRUNK = 0.9  # of its length: no slot gets shorter by more
_STRETCHES = 6  # ends that are tried with prices that refute one


def refutations(search: Search) -> Iterator[Witness | None]:
    """Later and later times that are refuted at `search.size_bytes`, between what is proved and what is reached.

    With few slots first, then with more. None while the solver's process is at work.
    """
    problem, tuning = search.problem, search.tuning
    if search.workers is None or problem.quotient is not None:
        return
    if problem.nranks > tuning.window_ranks:
        return
    starts_us = problem.network.start_us  # of a call, before anything is sent
    low_us = max(one.at(search.size_bytes) for one in search.found) - starts_us
    reached_us = search.reached_us - starts_us
    until = now() + search.budget_s
    known: set[tuple[object, ...]] = set()
    next_us = 0.0  # the end from which the best prices so far are left: others are to refute that
    for shape in find_shapes(search):
        high_us = reached_us
        # where all sums of latencies are edges already, more slots are the same
        key = shape.ends, shape.parts, len(window_edges(problem.network, reached_us, shape.slots))
        if key in known:
            continue
        known.add(key)
        tried: list[tuple[float, float]] = []
        for _ in range(tuning.window_tries):
            if not high_us > max(0.0, low_us) * tuning.window_near or now() >= until:
                break
            try_us = next_us or _next_time(low_us, high_us, tried)
            edges = window_edges(problem.network, try_us, shape.slots)
            program = _Program(problem, edges, search.size_bytes, shape.ends, shape.parts)
            values = None
            for values in program.solved(search.workers, until):
                if values is None:
                    yield None
            if values is None:
                return  # the time is over, or the solver failed
            pays = program.paid(values)
            tried.append((try_us, pays))
            claim = _latest(problem, program.claim(values), reached_us)
            if pays < 1:
                high_us = try_us
            if claim is None:
                next_us = 0.0
                continue
            end_us = claim.times[-1]
            if end_us > low_us:
                low_us = end_us
                yield claim
            next_us = low_us
            if end_us <= try_us * (1 + _NEAR):
                if pays >= 1 + _JUST:
                    next_us = 0.0  # these prices fit no other end: later ones are tried by what is paid
                elif low_us >= try_us * (1 - _NEAR):
                    break


def _text(times: tuple[float, ...], prices: int) -> str:
    return f"{len(times) - 1} windows of time up to {times[-1]:.6g} µs, {prices} prices"


def _latest(problem: Problem, claim: Witness, most_us: float) -> Witness | None:
    """The same prices up to the latest end that they refute, the longest slot longer or shorter; None: there is none.

    What a byte pays stays, since the other slots stay as they are to each other; so the end is where what all pay is
    what capacity costs (one of Newton's steps towards the last end that any prices refute).
    """
    paid, cost = balance(problem, claim)
    lengths = np.diff(claim.times)
    slot = int(lengths.argmax())
    if cost[slot] > 0 and paid < np.inf:
        more_us = float(paid * claim.at_bytes / (1 + _MARGIN) - cost @ lengths) / float(cost[slot])
        times = tuple((np.array(claim.times) + more_us * (np.arange(len(claim.times)) > slot)).tolist())
        rises = bool((np.diff(times) > 0).all())  # else rounding ends windows that are so much shorter
        if rises and more_us > -_SHRUNK * lengths[slot]:
            longer = replace(claim, times=times, text=_text(times, len(claim.windows)))
            if window_limit(problem, longer)[2] < np.inf:
                return longer
    return _stretched(problem, claim, most_us) if limit_of(claim, paid, cost)[2] < np.inf else None


def _stretched(problem: Problem, claim: Witness, most_us: float) -> Witness:
    """The same prices up to the latest end that they refute as well: the last slot longer, of any length."""
    low_us, high_us = claim.times[-1], most_us
    for _ in range(_STRETCHES):
        end_us = (low_us + high_us) / 2
        times = (*claim.times[:-1], end_us)
        longer = replace(claim, times=times, text=_text(times, len(claim.windows)))
        if window_limit(problem, longer)[2] < np.inf:
            low_us, claim = end_us, longer
        else:
            high_us = end_us
    return claim


def _next_time(low_us: float, high_us: float, tried: list[tuple[float, float]]) -> float:
    """Where a byte pays just over 1, by the two times tried at which it pays nearest to that; between the limits."""
    low = max(low_us, high_us / 100)
    known = sorted((abs(np.log(pays)), np.log(us), np.log(pays)) for us, pays in tried if pays > 0)[:2]
    slope = -1.5
    if len(known) == 2 and known[0][1] != known[1][1]:
        slope = min(-0.5, (known[0][2] - known[1][2]) / (known[0][1] - known[1][1]))
    guess = np.exp(known[0][1] - (known[0][2] - _JUST) / slope) if known else np.sqrt(low * high_us)
    margin = (high_us / low) ** 0.1
    return float(np.clip(guess, low * margin, high_us / margin))


@dataclass(eq=False)
class _Program:
    """The linear program of some slots: the prices of which a byte pays most, if all capacity costs 1 together.

    ends, parts: see `window_shapes.Shape`.
    """

    problem: Problem
    edges: Floats
    size_bytes: float
    ends: tuple[int, ...] | None = None
    parts: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        net = self.problem.network
        self.slots: Slots = slots_of(net, self.edges)
        self.builder = ProgramBuilder()
        self.rows: list[Capacity] = capacities(self.problem)
        count, number = len(self.slots), len(self.rows)
        self.price = self.builder.add_variables(number * count, np.inf).reshape(number, count)
        gbs = np.concatenate([net.capacity_gbs, net.bandwidth_gbs])[[row.resource for row in self.rows]]
        room = np.outer(gbs * 1e3, np.diff(self.edges)) / self.size_bytes  # as parts of the message
        self._row(-1.0, (self.price.ravel(), -room.ravel()))
        carriers = net.ncarriers
        self.link_price = self.builder.add_variables(carriers * count, np.inf).reshape(carriers, count)
        links, owner, holds = self._uses()
        here = np.arange(carriers * count).reshape(carriers, count)
        self.builder.add_rows(
            np.zeros(carriers * count),
            (here[links].ravel(), self.price[owner].ravel(), np.repeat(holds, count)),
            (here.ravel(), self.link_price.ravel(), -1.0),
        )
        self.shares: list[tuple[Alike, tuple[int, int], Ints]] = []
        self.pays: list[tuple[int, float]] = []  # columns and amounts of what is paid
        for one in alike_chunks(self.problem):
            self._add(one)

    def solved(self, workers: Workers, until: float) -> Iterator[Floats | None]:
        """The values of all variables at last, None before while they are waited for; None at last: there are none."""
        ticket = workers.ask("linear", self.builder.build(), max(0.01, until - now()), True)
        # no `finally`: TimeUp in a generator being cleaned up would be swallowed; the rest ends with the workers
        while (done := workers.first([ticket], min(until, now() + _WAIT_S))) is None and now() < until:
            yield None
        workers.drop(ticket)
        solution = None if done is None or done.reply is None else done.reply.solution
        yield None if solution is None else solution.values

    def paid(self, values: Floats) -> float:
        """What a byte pays, where over 1 refutes."""
        return float(sum(amount * values[column] for column, amount in self.pays))

    def claim(self, values: Floats) -> Witness:
        """The witness of a solution."""
        price = np.maximum(values[self.price], 0.0)
        kept = _KEPT * price.max(initial=0.0)
        windows = [
            (self.rows[row].resource, int(slot), float(price[row, slot])) for row, slot in np.argwhere(price > kept)
        ]
        shares = [
            (one.chunk, *flow, int(link), int(slot), float(values[share[link, slot]]))
            for one, flow, share in self.shares
            for link, slot in np.argwhere(values[share] > kept)
        ]
        times = tuple(self.edges.tolist())
        return Witness(
            "window", text=_text(times, len(windows)), at_bytes=float(self.size_bytes), times=times,
            windows=tuple(windows), shares=tuple(shares), parts=self.parts,
        )  # fmt: skip

    def _row(self, least: float, *terms: tuple[Ints, Floats]) -> None:
        """One row Σ value · x ≥ least."""
        self.builder.add_rows(
            np.array([least]), *((np.zeros(len(c), dtype=np.int64), c, np.broadcast_to(v, c.shape)) for c, v in terms)
        )

    def _uses(self) -> tuple[Ints, Ints, Floats]:
        """Links and hyperlinks, for each the rows that it takes some of, and how much of them by the byte."""
        net = self.problem.network
        links = [row.links for row in self.rows]
        owner = [np.full(len(row.links), at) for at, row in enumerate(self.rows)]
        if net.hyperlinks is not None:
            row_of = np.full(net.nresources, -1)
            for at, row in enumerate(self.rows):
                if row.resource < net.nresources:
                    row_of[row.resource] = at
            h = net.hyperlinks
            kept = row_of[h.uses_idx] >= 0
            links.append(net.nlinks + row_of_entry(h.uses_ptr)[kept])
            owner.append(row_of[h.uses_idx][kept])
        chosen = np.concatenate(links)
        return chosen, np.concatenate(owner), net.carriers.holds[chosen]

    def _add(self, one: Alike) -> None:
        """What a byte of such chunks pays, counted by their amount."""
        net, flows = self.problem.network, flows_at(one, self.ends)
        left = self.link_price
        wholes = meets(one) and tells_first(net)
        if not (flows or wholes):
            return
        if len(one.flows()) > 1 or one.reduces:
            many = [self.builder.add_variables(left.size, np.inf).reshape(left.shape) for _ in flows]
            rest = self.builder.add_variables(left.size, np.inf).reshape(left.shape) if wholes else None
            each = np.arange(left.size)
            parts = [*many, *([] if rest is None else [rest])]
            self.builder.add_rows(
                np.zeros(left.size),
                (each, left.ravel(), 1.0),
                *((each, part.ravel(), -1.0) for part in parts),
            )
            self.shares += [(one, flow, share) for flow, share in zip(flows, many, strict=True)]
            if rest is not None:
                self._first_whole(one, rest)
        else:
            many = [left]
        for (source, goal), share in zip(flows, many, strict=True):
            self._flow(one.starts(source), goal, share, one.amount)

    def _flow(self, starts: Ints, goal: int, share: Ints, amount: float) -> None:
        """A variable for what it pays at least, by what is ahead from each rank and slot on."""
        net, slots, count = self.problem.network, self.slots, len(self.slots)
        ahead = self.builder.add_variables((count + 1) * net.nranks, _MOST).reshape(count + 1, net.nranks)
        pays = self.builder.add_variables(1, _MOST, cost=-amount)
        self.pays.append((int(pays[0]), amount))
        begin = ahead[0, starts]
        each = np.arange(len(begin))
        self.builder.add_rows(np.zeros(len(begin)), (each, begin, 1.0), (each, np.repeat(pays, len(begin)), -1.0))
        others = np.delete(np.arange(net.nranks), goal)
        now_, later = ahead[:-1, others].ravel(), ahead[1:, others].ravel()
        each = np.arange(len(now_))
        self.builder.add_rows(np.zeros(len(each)), (each, later, 1.0), (each, now_, -1.0))
        carrier, (_, src, dst) = row_of_entry(net.pairs.ptr), net.pairs
        pair, slot = np.nonzero(slots.in_time[carrier] & (src != goal)[:, None])
        link = carrier[pair]
        there = ahead[slots.lands[link, slot], dst[pair]]
        each = np.arange(len(link))
        terms = [(each, share[link, slot], 1.0), (each, ahead[slot, src[pair]], -1.0)]
        further = dst[pair] != goal
        terms.append((each[further], there[further], 1.0))
        self.builder.add_rows(np.zeros(len(each)), *terms)

    def _first_whole(self, one: Alike, rest: Ints) -> None:
        """A variable for what a byte of a sum pays by the first part that has all of it; see `first_whole`."""
        net, slots = self.problem.network, self.slots
        part = part_of(net, self.parts)
        links = np.flatnonzero(part[net.src] != part[net.dst])
        usable = useful(net, one, slots)[links]
        price, alpha_us = rest[links], net.alpha_us[links]
        # the least price of a link up to each slot, and from each slot on
        upto = self.builder.add_variables(price.size, _MOST).reshape(price.shape)
        since = self.builder.add_variables(price.size, _MOST).reshape(price.shape)
        for least, before, after in ((upto, upto[:, :-1], upto[:, 1:]), (since, since[:, 1:], since[:, :-1])):
            each = np.arange(int(usable.sum()))
            self.builder.add_rows(np.zeros(len(each)), (each, price[usable], 1.0), (each, least[usable], -1.0))
            steps = np.arange(before.size)
            self.builder.add_rows(np.zeros(before.size), (steps, before.ravel(), 1.0), (steps, after.ravel(), -1.0))
        begins, ends = slots.edges[:-1], slots.edges[1:]
        slot = np.arange(len(slots))
        some = np.logical_or.accumulate(usable, axis=1), np.logical_or.accumulate(usable[:, ::-1], axis=1)[:, ::-1]
        # the first slot in which a send into a part may end in or after slot j
        from_slot = np.minimum(np.searchsorted(ends, begins[None, :] - alpha_us[:, None], side="left"), slot[-1])
        from_slot = np.where(np.take_along_axis(some[1], from_slot, axis=1), from_slot, -1)
        pays = self.builder.add_variables(1, _MOST, cost=-one.amount)
        self.pays.append((int(pays[0]), one.amount))
        receives = self._least_of(part[net.dst[links]], since, from_slot)
        away = latencies(net).rows(np.arange(net.nranks))
        holds, wants = (np.unique(part[ranks]).tolist() for ranks in (one.holders, one.goals))
        for first in range(int(part.max()) + 1):
            comes_us = alpha_us + away[:, part == first].min(axis=1)[net.dst[links]]
            last = np.searchsorted(begins, ends[None, :] - comes_us[:, None], side="right") - 1
            last = np.where(np.take_along_axis(some[0], np.maximum(last, 0), axis=1), last, -1)
            sends = self._least_of(part[net.src[links]], upto, last)
            for at in slot.tolist():
                terms = [sends.get((h, at)) for h in holds if h != first]
                terms += [receives.get((g, at)) for g in wants if g != first]
                if any(term is None for term in terms):
                    continue  # it cannot have all then
                columns = np.array(terms, dtype=np.int64)
                self._row(0.0, (columns, np.ones(len(columns))), (pays, np.array([-1.0])))

    def _least_of(self, part: Ints, table: Ints, at: Ints) -> dict[tuple[int, int], int]:
        """By part and slot a variable for the least over its links of what a table has at their slots (−1: nothing)."""
        found: dict[tuple[int, int], int] = {}
        rows: list[tuple[int, int]] = []
        known: dict[tuple[int, bytes], int] = {}
        for one in np.unique(part).tolist():
            links = np.flatnonzero(part == one)
            for slot in range(len(self.slots)):
                where = at[links, slot]
                usable = links[where >= 0], where[where >= 0]
                if not len(usable[0]):
                    continue
                key = (one, where.tobytes())
                if key not in known:
                    known[key] = int(self.builder.add_variables(1, _MOST)[0])
                    rows += [(known[key], column) for column in table[usable].tolist()]
                found[one, slot] = known[key]
        if rows:
            least, given = np.array(rows).T
            each = np.arange(len(rows))
            self.builder.add_rows(np.zeros(len(rows)), (each, given, 1.0), (each, least, -1.0))
        return found
