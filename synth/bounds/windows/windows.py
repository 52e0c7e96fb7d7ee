"""Prices of resources in windows of time that refute an early end: the dual of a flow over time, by linear programs.

For an end time T and a message size, a linear program over slots of time finds the prices that prove most. The search
raises T where they refute it, and lowers T where they do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from synth.bounds.metric import latencies
from synth.bounds.relaxation import LinkCapacity, capacities
from synth.bounds.search import BoundSearch
from synth.bounds.windows.edges import window_edges
from synth.bounds.windows.limit import (
    ChunkClass,
    Slots,
    Window,
    alike_chunks,
    first_whole_holds,
    part_of,
    slots_of,
    useful,
)
from synth.bounds.windows.shapes import find_shapes, flows_at, needs_first_whole
from synth.model.collective import Floats, Ints
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.solvers.linear_program import ProgramBuilder
from synth.solvers.workers import Workers
from topologies.arrays import row_of_entry

_LEAST_PRICE = 1e-7  # of the highest price; lower prices are not worth a place in the witness
_MOST_PAID = 50.0  # a byte pays at most (1 refutes); without a limit it pays inf where nothing can arrive
_JUST_OVER = 1e-3  # logarithm of what a byte should pay at the next end
_WAIT_S = 1e-3  # s to wait for a solver's process before the caller goes on
_NEAR = 3e-4  # relative: prices for an end within this distance would refute no more
_MARGIN = 1e-7  # relative, for the rounding of the capacity's cost
_MOST_SHRINK = 0.9  # of its length: no slot gets shorter by more
_STRETCHES = 6  # later ends that are tried with the same prices


def refutations(search: BoundSearch) -> Iterator[Window | None]:
    """Yield witnesses of later and later ends that are refuted at `search.size_bytes`, and None while a solver works.

    The ends lie between what is proved and what a schedule reaches. Programs with few slots come first. The search ends
    after `search.budget_s`, or when a solver fails. Nothing is yielded without workers, for a quotient problem, and for
    more ranks than the tuning allows. `search.witnesses` must not be empty.
    """
    problem, tuning = search.problem, search.tuning
    if search.workers is None or problem.quotient is not None:
        return
    if problem.nranks > tuning.window_ranks:
        return
    starts_us = problem.network.start_us  # a call takes this long before it sends
    low_us = max(witness.at(search.size_bytes) for witness in search.witnesses) - starts_us
    reached_us = search.reached_us - starts_us
    deadline = now() + search.budget_s
    tried_programs: set[tuple[object, ...]] = set()
    # The end up to which the best prices so far refute; new prices should refute this end. 0: none.
    next_us = 0.0
    for shape in find_shapes(search):
        high_us = reached_us
        # Where all sums of latencies are edges already, more slots give the same edges.
        key = shape.ends, shape.parts, len(window_edges(problem.network, reached_us, shape.slots))
        if key in tried_programs:
            continue
        tried_programs.add(key)
        tried: list[tuple[float, float]] = []
        for _ in range(tuning.window_tries):
            if not high_us > max(0.0, low_us) * tuning.window_near or now() >= deadline:
                break
            try_us = next_us or _next_time(low_us, high_us, tried)
            edges = window_edges(problem.network, try_us, shape.slots)
            program = _WindowProgram(problem, edges, search.size_bytes, shape.ends, shape.parts)
            values = None
            for values in program.solved(search.workers, deadline):
                if values is None:
                    yield None
            if values is None:
                return  # The time is over, or the solver failed.
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
                if pays >= 1 + _JUST_OVER:
                    next_us = 0.0  # These prices fit no later end, so `_next_time` chooses it.
                elif low_us >= try_us * (1 - _NEAR):
                    break


def _text(times: tuple[float, ...], prices: int) -> str:
    """Return the text of a witness: its number of slots, its end in µs and its number of prices."""
    return f"{len(times) - 1} windows of time up to {times[-1]:.6g} µs, {prices} prices"


def _latest(problem: Problem, claim: Window, most_us: float) -> Window | None:
    """Return the claim with the latest end that its prices refute if the longest slot changes its length.

    The other slots stay as they are to each other, so what a byte pays stays the same. The end is where what all bytes
    pay equals what the capacity costs. This is one of Newton's steps towards the last end that any prices refute. Where
    that fails, the claim's last slot is stretched as far as the prices still refute (`_stretched`). The result is None
    if they do not refute the claim's own end either.

    Args:
        problem: The problem.
        claim: A claim.
        most_us: End in µs that stretching does not try any more.
    """
    paid, cost = claim.balance(problem)
    lengths = np.diff(claim.times)
    slot = int(lengths.argmax())
    if cost[slot] > 0 and paid < np.inf:
        more_us = float(paid * claim.at_bytes / (1 + _MARGIN) - cost @ lengths) / float(cost[slot])
        times = tuple((np.array(claim.times) + more_us * (np.arange(len(claim.times)) > slot)).tolist())
        rises = bool((np.diff(times) > 0).all())  # Rounding can close slots that are far shorter.
        if rises and more_us > -_MOST_SHRINK * lengths[slot]:
            longer = replace(claim, times=times, text=_text(times, len(claim.windows)))
            if longer.limit(problem)[2] < np.inf:
                return longer
    return _stretched(problem, claim, most_us) if claim.limit_of(paid, cost)[2] < np.inf else None


def _stretched(problem: Problem, claim: Window, most_us: float) -> Window:
    """Return the claim with a late end that its prices still refute, found by bisection of the last slot's length.

    Args:
        problem: The problem.
        claim: A claim that refutes its own end.
        most_us: End in µs that is not tried any more.
    """
    low_us, high_us = claim.times[-1], most_us
    for _ in range(_STRETCHES):
        end_us = (low_us + high_us) / 2
        times = (*claim.times[:-1], end_us)
        longer = replace(claim, times=times, text=_text(times, len(claim.windows)))
        if longer.limit(problem)[2] < np.inf:
            low_us, claim = end_us, longer
        else:
            high_us = end_us
    return claim


def _next_time(low_us: float, high_us: float, tried: list[tuple[float, float]]) -> float:
    """Return the end to try next, in µs: that at which a byte should pay just over 1, well within the limits.

    It follows from the two tried ends at which a byte pays nearest to 1, or from the limits if none was tried.

    Args:
        low_us: End that is refuted already.
        high_us: End that a schedule reaches, or that the best prices for it did not refute.
        tried: (end in µs, what a byte pays there).
    """
    low = max(low_us, high_us / 100)
    nearest = sorted((abs(np.log(pays)), np.log(us), np.log(pays)) for us, pays in tried if pays > 0)[:2]
    slope = -1.5
    if len(nearest) == 2 and nearest[0][1] != nearest[1][1]:
        slope = min(-0.5, (nearest[0][2] - nearest[1][2]) / (nearest[0][1] - nearest[1][1]))
    guess = np.exp(nearest[0][1] - (nearest[0][2] - _JUST_OVER) / slope) if nearest else np.sqrt(low * high_us)
    margin = (high_us / low) ** 0.1
    return float(np.clip(guess, low * margin, high_us / margin))


@dataclass(eq=False)
class _WindowProgram:
    """The linear program of some slots: the prices at which a byte pays most, if all capacity costs 1 in sum.

    Attributes:
        problem: The problem.
        edges: Times in µs at which slots begin and end, shape (slots + 1,).
        size_bytes: Message size in bytes.
        ends: See `shapes.WindowShape`.
        parts: See `shapes.WindowShape`.
        slots: The slots between the edges.
        builder: The rows and the columns so far.
        rows: The capacities that have prices.
        price: Columns of the prices, shape (capacities, slots).
        link_price: Columns of what a byte pays on each link and hyperlink, shape (carriers, slots).
        shares: (chunk class, flow, columns of the flow's share of the link prices).
        pays: Columns and amounts of what is paid.
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
        self.rows: list[LinkCapacity] = capacities(self.problem)
        count, number = len(self.slots), len(self.rows)
        self.price = self.builder.add_variables(number * count, np.inf).reshape(number, count)
        gbs = np.concatenate([net.capacity_gbs, net.bandwidth_gbs])[[row.resource for row in self.rows]]
        room = np.outer(gbs * 1e3, np.diff(self.edges)) / self.size_bytes  # shares of the message
        self._row(-1.0, (self.price.ravel(), -room.ravel()))
        carriers = net.ncarriers
        self.link_price = self.builder.add_variables(carriers * count, np.inf).reshape(carriers, count)
        links, owner, holds = self._uses()
        columns = np.arange(carriers * count).reshape(carriers, count)
        self.builder.add_rows(
            np.zeros(carriers * count),
            (columns[links].ravel(), self.price[owner].ravel(), np.repeat(holds, count)),
            (columns.ravel(), self.link_price.ravel(), -1.0),
        )
        self.shares: list[tuple[ChunkClass, tuple[int, int], Ints]] = []
        self.pays: list[tuple[int, float]] = []  # columns and amounts of what is paid
        for chunk_class in alike_chunks(self.problem):
            self._add(chunk_class)

    def solved(self, workers: Workers, deadline: float) -> Iterator[Floats | None]:
        """Ask the solver; yield None while it works, then the values of all variables once, or None if there are none.

        There are none when `now` has passed `deadline` or the solver failed. If the caller stops early, the solver is
        killed.

        Args:
            workers: Solver processes.
            deadline: End of the wait, on the clock of `now`.
        """
        ticket = workers.ask("linear", self.builder.build(), max(0.01, deadline - now()), True)
        try:
            while (event := workers.first([ticket], min(deadline, now() + _WAIT_S))) is None and now() < deadline:
                yield None
        finally:
            workers.drop(ticket)
        solution = None if event is None or event.reply is None else event.reply.solution
        yield None if solution is None else solution.values

    def paid(self, values: Floats) -> float:
        """Return what a message's byte pays by a solution, if all capacity costs 1; a value over 1 refutes the end."""
        return float(sum(amount * values[column] for column, amount in self.pays))

    def claim(self, values: Floats) -> Window:
        """Return the witness of a solution, without its limit; negligible prices are left out."""
        price = np.maximum(values[self.price], 0.0)
        threshold = _LEAST_PRICE * price.max(initial=0.0)
        windows = [
            (self.rows[row].resource, int(slot), float(price[row, slot]))
            for row, slot in np.argwhere(price > threshold)
        ]
        shares = [
            (chunk_class.chunk, *flow, int(link), int(slot), float(values[share[link, slot]]))
            for chunk_class, flow, share in self.shares
            for link, slot in np.argwhere(values[share] > threshold)
        ]
        times = tuple(self.edges.tolist())
        return Window(
            text=_text(times, len(windows)), at_bytes=float(self.size_bytes), times=times,
            windows=tuple(windows), shares=tuple(shares), parts=self.parts,
        )  # fmt: skip

    def _row(self, least: float, *terms: tuple[Ints, Floats]) -> None:
        """Add one row Σ value · x ≥ least to the program.

        Args:
            least: The right side.
            *terms: (columns, values), shape (n,) each, or one value for all columns.
        """
        self.builder.add_rows(
            np.array([least]), *((np.zeros(len(c), dtype=np.int64), c, np.broadcast_to(v, c.shape)) for c, v in terms)
        )

    def _uses(self) -> tuple[Ints, Ints, Floats]:
        """Return links and hyperlinks, the index in `rows` of a capacity that each uses, and what a byte takes of it.

        There is an entry for each use, so that a link that uses two capacities is there twice. The arrays have shape
        (uses,).
        """
        net = self.problem.network
        links = [row.links for row in self.rows]
        owner = [np.full(len(row.links), at) for at, row in enumerate(self.rows)]
        if net.hyperlinks is not None:
            row_of = np.full(net.nresources, -1)
            for at, row in enumerate(self.rows):
                if row.resource < net.nresources:
                    row_of[row.resource] = at
            hyperlinks = net.hyperlinks
            in_rows = row_of[hyperlinks.uses_idx] >= 0
            links.append(net.nlinks + row_of_entry(hyperlinks.uses_ptr)[in_rows])
            owner.append(row_of[hyperlinks.uses_idx][in_rows])
        chosen = np.concatenate(links)
        return chosen, np.concatenate(owner), net.carriers.holds[chosen]

    def _add(self, chunk_class: ChunkClass) -> None:
        """Add the variables and rows for what a byte of such chunks pays, weighted by their amount.

        Nothing is added where none of their flows counts (`ends`) and no first part with the whole sum does.
        """
        net, flows = self.problem.network, flows_at(chunk_class, self.ends)
        link_price = self.link_price
        wholes = needs_first_whole(chunk_class) and first_whole_holds(net)
        if not (flows or wholes):
            return
        if len(chunk_class.flows()) > 1 or chunk_class.reduces:
            flow_shares = [self.builder.add_variables(link_price.size, np.inf).reshape(link_price.shape) for _ in flows]
            whole_share = (
                self.builder.add_variables(link_price.size, np.inf).reshape(link_price.shape) if wholes else None
            )
            rows = np.arange(link_price.size)
            addends = [*flow_shares, *([] if whole_share is None else [whole_share])]
            self.builder.add_rows(
                np.zeros(link_price.size),
                (rows, link_price.ravel(), 1.0),
                *((rows, addend.ravel(), -1.0) for addend in addends),
            )
            self.shares += [(chunk_class, flow, share) for flow, share in zip(flows, flow_shares, strict=True)]
            if whole_share is not None:
                self._first_whole(chunk_class, whole_share)
        else:
            flow_shares = [link_price]
        for (source, goal), share in zip(flows, flow_shares, strict=True):
            self._flow(chunk_class.starts(source), goal, share, chunk_class.amount)

    def _flow(self, starts: Ints, goal: int, share: Ints, amount: float) -> None:
        """Add a variable for the least that a flow pays, with what is still to pay from each rank and slot.

        Args:
            starts: Ranks at any of which the flow may start.
            goal: Rank at which it ends.
            share: Columns of what it pays on each link and hyperlink in each slot, shape (carriers, slots).
            amount: Share of the message that each such flow carries.
        """
        net, slots, count = self.problem.network, self.slots, len(self.slots)
        ahead = self.builder.add_variables((count + 1) * net.nranks, _MOST_PAID).reshape(count + 1, net.nranks)
        pays = self.builder.add_variables(1, _MOST_PAID, cost=-amount)
        self.pays.append((int(pays[0]), amount))
        begin = ahead[0, starts]
        rows = np.arange(len(begin))
        self.builder.add_rows(np.zeros(len(begin)), (rows, begin, 1.0), (rows, np.repeat(pays, len(begin)), -1.0))
        inner = np.delete(np.arange(net.nranks), goal)
        now_, later = ahead[:-1, inner].ravel(), ahead[1:, inner].ravel()
        rows = np.arange(len(now_))
        self.builder.add_rows(np.zeros(len(rows)), (rows, later, 1.0), (rows, now_, -1.0))
        carrier, (_, src, dst) = row_of_entry(net.pairs.ptr), net.pairs
        pair, slot = np.nonzero(slots.in_time[carrier] & (src != goal)[:, None])
        link = carrier[pair]
        ahead_after = ahead[slots.lands[link, slot], dst[pair]]
        rows = np.arange(len(link))
        terms = [(rows, share[link, slot], 1.0), (rows, ahead[slot, src[pair]], -1.0)]
        further = dst[pair] != goal
        terms.append((rows[further], ahead_after[further], 1.0))
        self.builder.add_rows(np.zeros(len(rows)), *terms)

    def _first_whole(self, chunk_class: ChunkClass, share: Ints) -> None:
        """Add variables and rows so that the objective counts what each byte of a sum pays at least.

        That is the least over all parts and slots in which a part may be the first to have the whole sum (see
        `first_whole`).

        Args:
            chunk_class: The sums.
            share: Columns of what it pays on each link in each slot, shape (carriers, slots).
        """
        net, slots = self.problem.network, self.slots
        part = part_of(net, self.parts)
        links = np.flatnonzero(part[net.src] != part[net.dst])
        usable = useful(net, chunk_class, slots)[links]
        price, alpha_us = share[links], net.alpha_us[links]
        # The least price of a link up to each slot, and from each slot on.
        upto = self.builder.add_variables(price.size, _MOST_PAID).reshape(price.shape)
        since = self.builder.add_variables(price.size, _MOST_PAID).reshape(price.shape)
        for least, before, after in ((upto, upto[:, :-1], upto[:, 1:]), (since, since[:, 1:], since[:, :-1])):
            rows = np.arange(int(usable.sum()))
            self.builder.add_rows(np.zeros(len(rows)), (rows, price[usable], 1.0), (rows, least[usable], -1.0))
            steps = np.arange(before.size)
            self.builder.add_rows(np.zeros(before.size), (steps, before.ravel(), 1.0), (steps, after.ravel(), -1.0))
        begins, ends = slots.edges[:-1], slots.edges[1:]
        slot = np.arange(len(slots))
        any_usable = (
            np.logical_or.accumulate(usable, axis=1),
            np.logical_or.accumulate(usable[:, ::-1], axis=1)[:, ::-1],
        )
        # The first slot in which a send into a part may end in or after slot j.
        from_slot = np.minimum(np.searchsorted(ends, begins[None, :] - alpha_us[:, None], side="left"), slot[-1])
        from_slot = np.where(np.take_along_axis(any_usable[1], from_slot, axis=1), from_slot, -1)
        pays = self.builder.add_variables(1, _MOST_PAID, cost=-chunk_class.amount)
        self.pays.append((int(pays[0]), chunk_class.amount))
        receives = self._least_of(part[net.dst[links]], since, from_slot)
        away = latencies(net).rows(np.arange(net.nranks))
        holds, wants = (np.unique(part[ranks]).tolist() for ranks in (chunk_class.holders, chunk_class.goals))
        for first in range(int(part.max()) + 1):
            comes_us = alpha_us + away[:, part == first].min(axis=1)[net.dst[links]]
            last = np.searchsorted(begins, ends[None, :] - comes_us[:, None], side="right") - 1
            last = np.where(np.take_along_axis(any_usable[0], np.maximum(last, 0), axis=1), last, -1)
            sends = self._least_of(part[net.src[links]], upto, last)
            for at in slot.tolist():
                terms = [sends.get((h, at)) for h in holds if h != first]
                terms += [receives.get((g, at)) for g in wants if g != first]
                if any(term is None for term in terms):
                    continue  # The part cannot have the whole sum in this slot.
                columns = np.array(terms, dtype=np.int64)
                self._row(0.0, (columns, np.ones(len(columns))), (pays, np.array([-1.0])))

    def _least_of(self, part: Ints, table: Ints, at: Ints) -> dict[tuple[int, int], int]:
        """Return, by part and slot, a new variable that is at most each table entry that counts for the part's links.

        A part has none in a slot where no entry counts for its links.

        Args:
            part: Part of each link.
            table: Columns by link and slot.
            at: Slot whose column counts, by link and slot; −1: none.
        """
        least_column: dict[tuple[int, int], int] = {}
        rows: list[tuple[int, int]] = []
        column_of_key: dict[tuple[int, bytes], int] = {}
        for number in np.unique(part).tolist():
            links = np.flatnonzero(part == number)
            for slot in range(len(self.slots)):
                link_slots = at[links, slot]
                usable = links[link_slots >= 0], link_slots[link_slots >= 0]
                if not len(usable[0]):
                    continue
                key = (number, link_slots.tobytes())
                if key not in column_of_key:
                    column_of_key[key] = int(self.builder.add_variables(1, _MOST_PAID)[0])
                    rows += [(column_of_key[key], column) for column in table[usable].tolist()]
                least_column[number, slot] = column_of_key[key]
        if rows:
            least, columns = np.array(rows).T
            row_numbers = np.arange(len(rows))
            self.builder.add_rows(np.zeros(len(rows)), (row_numbers, columns, 1.0), (row_numbers, least, -1.0))
        return least_column
