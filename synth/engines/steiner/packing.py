"""Trees that share the resources best, as fractions: a linear program whose columns are added where they help.

Chunks with the same ends are one demand. Each byte of a demand goes over a tree: from a holder to all goals, from all
contributors to a goal, or up one tree and down another that meet at any rank, or at the two ends of a link. The least
load of the busiest resource over all fractions of all such trees is a linear program with a column a tree. The cheapest
trees under its prices are the columns that it still needs (Gilmore and Gomory, 1961), and prove how far it is from its
optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from synth.bounds.relaxation import capacities
from synth.bounds.windows.limit import alike_chunks
from synth.engines.steiner.arborescences import BEYOND, Arborescences
from synth.engines.steiner.exchanges import Exchanges, sums_within
from synth.engines.steiner.tuning import TUNING, SteinerTuning
from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.solvers.linear_program import ProgramBuilder
from synth.solvers.workers import Workers
from topologies.network import Network

_LEAST = 1e-3  # least part of the time that a tree has to begin


@dataclass(frozen=True)
class SteinerTrees:
    """The path of a byte: up one tree, and down another.

    Attributes:
        demand: Index of the byte's demand.
        roots: The rank at which both trees meet; or two ranks, where trees come up to each, which then exchange their
            sums.
        up: Links of the tree up, each after all links that it waits for.
        down: Links of the tree down, each after the link that it waits for.
        exchange: The links between two roots, forth and back.
    """

    demand: int
    roots: tuple[int, ...]
    up: tuple[int, ...]
    down: tuple[int, ...]
    exchange: tuple[int, ...] = ()

    @property
    def links(self) -> tuple[int, ...]:
        """Return all links in order: those up, those of the exchange, those down."""
        return *self.up, *self.exchange, *self.down


@dataclass(frozen=True, eq=False)
class TreeDemand:
    """Chunks with the same ends.

    Attributes:
        chunks: The chunks.
        amount: Their size in all, as a part of the message, and at least `SteinerTuning.least_amount`.
        sums: Whether contributions come up a tree to the root.
        holders: Ranks that hold the chunks.
        goals: Ranks that want the chunks.
        roots: Ranks at which the trees may begin or meet.
    """

    chunks: Ints
    amount: float
    sums: bool
    holders: Ints
    goals: Ints
    roots: Ints

    @property
    def falls(self) -> bool:
        """Return True if there is a tree down from the root: for a copy, or a sum with more than one goal."""
        return not self.sums or len(self.goals) > 1


def demands(problem: Problem) -> list[TreeDemand]:
    """Return the demands of a problem; chunks that need no send are in none, and holders are no goals of a copy."""
    demands_of_problem = []
    for chunk_set in alike_chunks(problem):
        sums = chunk_set.reduces and len(chunk_set.holders) > 1  # With one contribution the sum is a copy.
        goals = chunk_set.goals if sums else np.setdiff1d(chunk_set.goals, chunk_set.holders)
        roots = chunk_set.holders if not sums else goals if len(goals) == 1 else np.arange(problem.nranks)
        amount = max(chunk_set.amount, TUNING.least_amount)  # Solvers lose smaller ones.
        demands_of_problem.append(TreeDemand(chunk_set.chunks, amount, sums, chunk_set.holders, goals, roots))
    return demands_of_problem


class Packing:
    """The linear program of a problem, for a message size and a time.

    A tree of latency L may begin to send for T - L of a time T: at a steady rate a resource carries so much of its
    bytes (temporally repeated flows: Ford and Fulkerson, 1958). Trees of much latency pay where T is long, as they
    balance the load.

    Attributes:
        demands: The demands of the problem.
        trees: The columns so far.
        latency_us: Latency of each tree in µs, float, shape (trees,).
        part: Fraction of the message that each tree carries, float, shape (trees,).
        time_us: The time for which the fractions hold.
        filled: Load of the busiest resource in that time (over 1: the time does not suffice).
    """

    def __init__(
        self, problem: Problem, run: Runner, workers: Workers, tuning: SteinerTuning, bulk: bool = False
    ) -> None:
        """Build the program without columns; `retime` must follow before it is solved.

        Args:
            problem: The problem.
            run: Runner of the compiled loops.
            workers: Solver processes.
            tuning: Settings of the engine.
            bulk: Whether latencies count so little that all trees may send for the whole time.
        """
        self.problem, net = problem, problem.network
        self.net = net
        self.bulk = bulk
        self.run, self.workers, self.tuning = run, workers, tuning
        self.demands = demands(problem)
        limits = capacities(problem)
        gbs = np.concatenate([net.capacity_gbs, net.bandwidth_gbs])[[limit.resource for limit in limits]]
        self.capacity = gbs * 1e3  # bytes a µs
        self.uses = np.zeros((net.nlinks, len(limits)))
        for number, limit in enumerate(limits):
            self.uses[limit.links, number] = 1.0
        self.trees: list[SteinerTrees] = []
        self._loads, self._new = np.zeros((0, len(limits))), list[Floats]()
        self.latency_us, self.part = np.zeros(0), np.zeros(0)
        self.filled = self.time_us = np.inf
        self._number_of: dict[SteinerTrees, int] = {}
        self._prices = 1.0 / self.capacity
        self.ends = ends_of(self.demands)
        most = tuning.work // (net.nranks * 3 ** len(self.ends))
        self.levels = 1 if bulk else max(2, min(tuning.most_levels, most))
        self.lasts_us = np.zeros(net.nlinks)
        self.exchanges = Exchanges(net)

    @property
    def loads(self) -> Floats:
        """Return the µs a byte of each tree on each resource, shape (trees, resources)."""
        if self._new:
            self._loads = np.vstack([self._loads, *self._new])
            self._new.clear()
        return self._loads

    def add(self, trees: SteinerTrees) -> int:
        """Add trees as a column of fraction 0 if they are new, and return their index in `trees`."""
        if trees not in self._number_of:
            self._number_of[trees] = len(self.trees)
            self.trees.append(trees)
            self._new.append(self.uses[list(trees.links)].sum(axis=0) / self.capacity)
            self.latency_us = np.append(self.latency_us, self._latency(trees))
            self.part = np.append(self.part, 0.0)
        return self._number_of[trees]

    def rates(self, used: Ints) -> Floats:
        """Return µs a byte of some trees on each resource, more where latency leaves less time.

        It is the load over the part of `time_us` that the tree's latency leaves, which counts as 0.001 at least. In a
        bulk program latency does not count.

        Args:
            used: Numbers of the trees.

        Returns:
            float, shape (used trees, resources).
        """
        time_share = np.ones(len(used)) if self.bulk else 1 - self.latency_us[used] / self.time_us
        return np.asarray(self.loads[used] / np.maximum(time_share, _LEAST)[:, None])

    def retime(self, lasts_us: Floats) -> None:
        """Set new latencies: for every link the µs from a chunk's start to its arrival, shape (links,).

        The tables of trees become empty, and the latencies of all columns are computed again. A bulk program that is
        solved stays as it is.
        """
        if self.bulk and np.isfinite(self.filled):
            return  # The trees stay the same.
        net, tuning, self.lasts_us = self.net, self.tuning, lasts_us
        self.unit_us = max(float(lasts_us.min()), float(lasts_us.max()) / tuning.unlike, 1e-9)
        level = np.maximum(1, np.ceil(lasts_us / self.unit_us - 1e-6)).astype(np.int64)
        self.down = Arborescences(net.nranks, net.src, net.dst, level, self.ends, self.levels)
        self.up = Arborescences(net.nranks, net.dst, net.src, level, self.ends, self.levels)
        self.latency_us = np.array([self._latency(trees) for trees in self.trees])
        self._between = self.exchanges.levels(level)
        # Among trees of the same cost the fastest one wins.
        self._ties = 1e-6 * float(self._prices.mean()) * (1 + lasts_us / max(float(lasts_us.mean()), 1e-9))

    def least_us(self, size_bytes: float, from_us: float, deadline: float) -> float:
        """Return about the least time in µs in which the message fits, and set `part` for it; inf without trees.

        A bulk program is solved once; later calls return `from_us`.

        Args:
            size_bytes: Message size in bytes.
            from_us: The first time to try, in µs.
            deadline: Time on the clock `synth.model.deadline.now` at which the latest time is the answer.
        """
        if self.bulk and np.isfinite(self.filled):
            return from_us
        time_us = max(from_us, 1e-6)
        for _ in range(self.tuning.times):
            if not self.solve(size_bytes, time_us, deadline):
                time_us *= 2
                continue
            if abs(self.filled - 1) <= self.tuning.fits:
                break
            mean_us = 0.0 if self.bulk else float(self.part @ self.latency_us) / max(float(self.part.sum()), 1e-12)
            time_us = mean_us + self.filled * (time_us - mean_us)
            if now() >= deadline:
                break
        return time_us if np.isfinite(self.filled) else np.inf

    def solve(self, size_bytes: float, time_us: float, deadline: float) -> bool:
        """Find the best fractions of trees for a time; return False if some goal cannot be reached in it.

        It sets `part`, `filled` and `time_us`, and adds columns. It also returns False if the solver never answered.

        Args:
            size_bytes: Message size in bytes.
            time_us: The time in µs.
            deadline: Time on the clock `synth.model.deadline.now` after which the fractions so far are taken.
        """
        best, least = self._prices, 0.0
        prices, dual = best, best
        smooth, fills = False, list[float]()
        for step in range(self.tuning.steps):
            proved, added = self._cheapest(prices, size_bytes, time_us)
            if not np.isfinite(proved):
                return False
            if proved > least:
                least, best = proved, prices
            if added or not step:
                prices_of_program = self._solve_program(size_bytes, time_us, deadline)
                if prices_of_program is None:
                    break
                dual = prices_of_program
            elif not smooth:
                break  # No tree is cheaper than the present trees.
            fills.append(self.filled)
            stalls = len(fills) > self.tuning.stall and fills[-1] * self.tuning.gains > fills[-1 - self.tuning.stall]
            if self.filled <= least * self.tuning.near or stalls or now() >= deadline:
                break
            smooth = added > 0
            prices = self.tuning.smoothing * best + (1 - self.tuning.smoothing) * dual if smooth else dual
        self._prices, self.time_us = best, time_us
        self._join()
        return bool(np.isfinite(self.filled))

    def _direction(self, trees: SteinerTrees) -> int:
        """Return 1 for a separate tree up of a sum, -1 for a separate tree down, and 0 for trees in both directions."""
        demand = self.demands[trees.demand]
        split = self.bulk and demand.sums and demand.falls
        return int(split and not trees.down) - int(split and not trees.up)

    def _join(self) -> None:
        """Join trees up with trees down that meet at the same root, each time up to the smaller of their fractions.

        It changes `part` and adds the joined trees as columns. Separate trees are left with fraction 0.
        """
        columns_at: dict[tuple[int, ...], tuple[list[tuple[int, float]], list[tuple[int, float]]]] = {}
        for i in np.flatnonzero(self.part > 0).tolist():
            if direction := self._direction(self.trees[i]):
                ups_and_downs = columns_at.setdefault((self.trees[i].demand, *self.trees[i].roots), ([], []))
                ups_and_downs[direction < 0].append((i, float(self.part[i])))
                self.part[i] = 0.0
        for ups, downs in columns_at.values():
            while ups and downs:
                (i, rises), (j, falls) = ups[-1], downs[-1]
                joined_trees = self.add(replace(self.trees[i], down=self.trees[j].down))
                least = min(rises, falls)
                self.part[joined_trees] += least
                for fractions in (ups, downs):
                    fractions[-1] = fractions[-1][0], fractions[-1][1] - least
                    if fractions[-1][1] <= 0:
                        fractions.pop()

    def _cheapest(self, prices: Floats, size_bytes: float, time_us: float) -> tuple[float, int]:
        """Return the load that the prices prove for the busiest resource, and the number of new trees, which it adds.

        The load is inf where some demand has no tree in the time.
        """
        length = self.uses @ prices + self._ties
        if any(d.falls for d in self.demands):
            self.down.find(self.run, length)
        if any(d.sums for d in self.demands):
            self.up.find(self.run, length)
        proved, added = 0.0, 0
        for number, demand in enumerate(self.demands):
            cost, new_trees = self._cheapest_of(number, demand, time_us, length)
            if not new_trees:
                return np.inf, 0
            proved += demand.amount * cost
            ntrees = len(self.trees)
            for trees in new_trees:
                if self.bulk and trees.up and trees.down:  # Any tree up goes with any tree down from the same root.
                    self.add(replace(trees, down=()))
                    self.add(replace(trees, up=()))
                else:
                    self.add(trees)
            added += len(self.trees) - ntrees
        return proved * size_bytes / float(prices @ self.capacity), added

    def _cheapest_of(
        self, number: int, demand: TreeDemand, time_us: float, length: Floats
    ) -> tuple[float, list[SteinerTrees]]:
        """Return the least cost over the remaining time of a demand's trees, and the best trees of some meetings.

        These are up to `tuning.roots` meetings whose cost is near the least; in a bulk program all meetings of a sum
        with trees down. It is inf without trees where none fits the time.

        Args:
            number: Index of the demand.
            demand: The demand.
            time_us: The time in µs in which the message has to fit.
            length: Length of each link, shape (links,).
        """
        rise = self.up.cost[:, self.up.set_of(demand.holders)][:, demand.roots] if demand.sums else None
        fall = self.down.cost[:, self.down.set_of(demand.goals)][:, demand.roots] if demand.falls else None
        if rise is None or fall is None:
            cost = rise if rise is not None else fall
            assert cost is not None
            first = np.arange(len(cost))[:, None].repeat(len(demand.roots), axis=1)
        else:
            cost, first = sums_within(rise, fall)
            if not self.bulk:
                cost, first = (
                    np.hstack(costs_and_levels)
                    for costs_and_levels in zip((cost, first), self._costs_over_links(demand, length), strict=True)
                )
        remaining_us = (time_us - np.arange(len(cost)) * self.unit_us)[:, None]
        # BEYOND over the last nanosecond would be more than a float holds, so what has no tree is never divided.
        fits = (remaining_us > 0) & (cost < BEYOND)
        worth = np.divide(cost, remaining_us, out=np.full(cost.shape, np.inf), where=fits)
        level = worth.argmin(axis=0)
        worth_of_meeting = worth[level, np.arange(worth.shape[1])]
        least = float(worth_of_meeting.min())
        if not np.isfinite(least):
            return np.inf, []
        order = np.argsort(worth_of_meeting, kind="stable")
        if self.bulk and demand.sums and demand.falls:
            # Every root gets a tree up and a tree down, which `_join` pairs.
            order = order[np.isfinite(worth_of_meeting[order])]
        else:
            order = order[: self.tuning.roots]
            order = order[worth_of_meeting[order] <= least * self.tuning.dearer]
        return least, [
            self._trees(number, place, int(level[place]), int(first[level[place], place])) for place in order.tolist()
        ]

    def _costs_over_links(self, demand: TreeDemand, length: Floats) -> tuple[Floats, Ints]:
        """Return the costs of trees that meet at the two ends of a link, and the levels of the trees up.

        Both have shape (levels, exchanges); see `sums_within`.
        """
        exchanges = self.exchanges
        rise = (
            exchanges.least(self.up, self.up.set_of(demand.holders)) + length[exchanges.forth] + length[exchanges.back]
        )
        return sums_within(rise, exchanges.least(self.down, self.down.set_of(demand.goals)), self._between)

    def _trees(self, number: int, place: int, within: int, begin: int) -> SteinerTrees:
        """Return a demand's cheapest trees within a level.

        Args:
            number: Index of the demand.
            place: Index into the demand's roots, or after these into the exchanges.
            within: Level of both trees.
            begin: Level of the tree up.
        """
        demand, last = self.demands[number], len(self.up.cost) - 1
        holders, goals = self.up.set_of(demand.holders) if demand.sums else 0, self.down.set_of(demand.goals)
        end = last if within == last else within - begin if demand.sums else within
        if place >= len(demand.roots) and within < last:
            end -= int(self._between[place - len(demand.roots)])
        ups, downs, exchange = self.exchanges.meeting(
            demand.roots, place, (self.up, holders, begin), (self.down, goals, end)
        )
        up = self.up.tree(ups, begin)[::-1] if demand.sums else ()
        down = self.down.tree(downs, end) if demand.falls else ()
        return self.joined(SteinerTrees(number, tuple(ups), up, down, exchange))

    def joined(self, trees: SteinerTrees) -> SteinerTrees:
        """Return the same trees, with one root where one end of the exchange does not both send and receive.

        The trees to the two ends may have met before, so that an end only sends, only receives, or neither. A link of
        the exchange then becomes the last link up, or the first link down.
        """
        if not trees.exchange:
            return trees
        demand, net = self.demands[trees.demand], self.net
        contributors = {*demand.holders.tolist(), *net.dst[list(trees.up)].tolist()}
        receivers = {*demand.goals.tolist(), *net.src[list(trees.down)].tolist()}
        for root, partner, link_to_partner, link_back in zip(
            trees.roots, trees.roots[::-1], trees.exchange, trees.exchange[::-1], strict=True
        ):
            if not (root in contributors and root in receivers):
                up = (*trees.up, link_to_partner) if root in contributors else trees.up
                down = (link_back, *trees.down) if root in receivers else trees.down
                return replace(trees, roots=(partner,), up=up, down=down, exchange=())
        return trees

    def _latency(self, trees: SteinerTrees) -> float:
        """Return the latency of trees in µs, from the first start to the last arrival of a chunk without load."""
        begins = begins_us(self.net, trees, self.lasts_us)
        return float((begins + self.lasts_us[list(trees.links)]).max(initial=0.0) - begins.min(initial=0.0))

    def _solve_program(self, size_bytes: float, time_us: float, deadline: float) -> Floats | None:
        """Solve the program with the present trees, set `part` and `filled`, and return its prices; None if that fails.

        The prices have shape (resources,), and their sum of price · capacity is 1. A tree whose latency takes the whole
        time gets fraction 0.

        Args:
            size_bytes: Message size in bytes.
            time_us: The time in µs in which the message has to fit.
            deadline: Time on the clock `synth.model.deadline.now` for the solver, which has 0.05 s at least.
        """
        remaining_us = np.full(len(self.trees), time_us) if self.bulk else time_us - self.latency_us
        usable = np.flatnonzero(remaining_us > time_us * 1e-9)
        number = len(self.capacity)
        loads = self.loads[usable] * (size_bytes / remaining_us[usable])[:, None]
        builder = ProgramBuilder()
        part = builder.add_variables(len(usable), np.inf)
        (most,) = builder.add_variables(1, np.inf, cost=1.0)
        tree, resource = np.nonzero(loads)
        resources = np.arange(number)
        builder.add_rows(
            np.zeros(number),
            (resources, np.full(number, most), 1.0),
            (resource, part[tree], -loads[tree, resource]),
        )
        usable_trees = [self.trees[i] for i in usable.tolist()]
        owner = np.array([trees.demand for trees in usable_trees], dtype=np.int64)
        direction = np.array([self._direction(trees) for trees in usable_trees], dtype=np.int64)
        builder.add_rows(np.array([d.amount for d in self.demands]), (owner[direction >= 0], part[direction >= 0], 1.0))
        if direction.any():  # As much goes down from a root as up to it.
            root_of_tree, split = (
                owner * self.net.nranks + np.array([trees.roots[0] for trees in usable_trees]),
                direction != 0,
            )
            roots_of_trees, root_of_tree = np.unique(root_of_tree[split], return_inverse=True)
            builder.add_rows(
                np.zeros(len(roots_of_trees)), (root_of_tree, part[split], -direction[split].astype(np.float64))
            )
        budget_s = max(0.05, deadline - now())
        result = self.workers.answer(now() + budget_s, "linear", builder.build(), budget_s)
        if result is None or result.solution is None:
            return None
        self.part = np.zeros(len(self.trees))
        self.part[usable] = np.maximum(result.solution.values[:-1], 0.0)
        self.filled = float(result.solution.values[-1])
        return np.maximum(result.solution.dual_prices[:number], 0.0) / self.capacity


def ends_of(demands_of_problem: list[TreeDemand]) -> list[int]:
    """Return the ranks that trees must reach, ascending."""
    ends = [np.concatenate([d.holders, d.goals]) if d.sums else d.goals for d in demands_of_problem]
    distinct: list[int] = np.unique(np.concatenate([*ends, np.zeros(0, dtype=np.int64)])).tolist()
    return distinct


def begins_us(net: Network, trees: SteinerTrees, lasts_us: Floats, waits_us: Sequence[float] = ()) -> Floats:
    """Return when each link of trees begins to carry a chunk that is at the roots at time 0, in µs.

    Links up begin before 0.

    Args:
        net: The network.
        trees: The trees.
        lasts_us: Time from a chunk's start to its arrival over each link of the network.
        waits_us: Time that a chunk waits before each link down, and after each link up: links up first, none for an
            exchange. Empty if it never waits.

    Returns:
        float, shape (links of the trees,), in the order of `trees.links`.
    """
    waits = waits_us or (0.0,) * (len(trees.up) + len(trees.down))
    at_us, early = dict.fromkeys(trees.roots, 0.0), list[float]()
    for link, wait in zip(trees.up[::-1], waits[: len(trees.up)][::-1], strict=True):
        at_us[int(net.src[link])] = at_us[int(net.dst[link])] + wait + float(lasts_us[link])
        early.append(-at_us[int(net.src[link])])
    at_us, late = dict.fromkeys(trees.roots, 0.0), list[float]()
    at_us |= {int(net.dst[link]): float(lasts_us[link]) for link in trees.exchange}
    for link, wait in zip(trees.down, waits[len(trees.up) :], strict=True):
        late.append(at_us[int(net.src[link])] + wait)
        at_us[int(net.dst[link])] = late[-1] + float(lasts_us[link])
    return np.array([*early[::-1], *(0.0 for _ in trees.exchange), *late])
