"""Trees that share the resources best, as fractions: a linear program whose columns are found where they are needed.

Chunks with the same ends are one demand. Each byte of it goes over a tree: from a holder to all goals, from all
contributors to a goal, or up one tree and down another that meet at any rank, or at both ends of a link. The least
load of the busiest resource over all fractions of all such trees is a linear program with a column a tree; the cheapest
trees under its prices are the columns that it still wants (Gilmore and Gomory, 1961), and say how far it is from its
end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from synth.bounds.relaxation import capacities
from synth.bounds.window_limit import alike_chunks
from synth.engines.steiner.arborescences import BEYOND, Arborescences
from synth.engines.steiner.exchanges import Exchanges, sums_within
from synth.engines.steiner.tuning import Tuning
from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.solvers.linear_program import ProgramBuilder
from synth.solvers.workers import Workers
from topologies.network import Network

_LEAST = 1e-3  # of the time, that a tree has to begin


@dataclass(frozen=True)
class Trees:
    """How a byte goes: up trees, and down others.

    Attributes:
        demand: whose byte it is.
        roots: the rank at which both meet; or two, where trees come up to both, which then exchange what they have.
        up, down: links, each behind all that it waits for.
        exchange: the links between two roots, forth and back.
    """

    demand: int
    roots: tuple[int, ...]
    up: tuple[int, ...]
    down: tuple[int, ...]
    exchange: tuple[int, ...] = ()

    @property
    def links(self) -> tuple[int, ...]:
        """All, in order."""
        return *self.up, *self.exchange, *self.down


@dataclass(frozen=True, eq=False)
class Demand:
    """Chunks with the same ends.

    Attributes:
        chunks: these. amount: the sum of theirs, as a part of the message.
        sums: whether contributions come up, over a tree to the root.
        holders, goals: ranks. roots: at which the trees may begin or meet.
    """

    chunks: Ints
    amount: float
    sums: bool
    holders: Ints
    goals: Ints
    roots: Ints

    @property
    def falls(self) -> bool:
        """Whether there is a tree down from the root."""
        return not self.sums or len(self.goals) > 1


def demands(problem: Problem) -> list[Demand]:
    """What has to move."""
    found = []
    for one in alike_chunks(problem):
        sums = one.reduces and len(one.holders) > 1  # of one contribution the sum is a copy
        goals = one.goals if sums else np.setdiff1d(one.goals, one.holders)
        roots = one.holders if not sums else goals if len(goals) == 1 else np.arange(problem.nranks)
        found.append(Demand(one.chunks, one.amount, sums, one.holders, goals, roots))
    return found


class Packing:
    """The linear program of a problem, for a message size and a time.

    What goes over trees of latency L has T - L of a time T to begin: at a steady rate a resource carries so much of it
    (temporally repeated flows: Ford and Fulkerson, 1958). Trees of much latency pay where T is long: they spread the
    load.

    Attributes:
        demands: what has to move.
        trees: the columns so far.
        latency_us: float, shape (trees,): of each.
        part: float, shape (trees,): the fraction of the message that each takes.
        time_us: for which these are; filled: how full the busiest resource is in it (over 1: it does not suffice).
    """

    def __init__(self, problem: Problem, run: Runner, workers: Workers, tuning: Tuning, bulk: bool = False) -> None:
        """bulk: whether latencies count so little that all trees are taken for as long."""
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
        self.trees: list[Trees] = []
        self._loads, self._new = np.zeros((0, len(limits))), list[Floats]()
        self.latency_us, self.part = np.zeros(0), np.zeros(0)
        self.filled = self.time_us = np.inf
        self._known: dict[Trees, int] = {}
        self._prices = 1.0 / self.capacity
        self.ends = ends_of(self.demands)
        most = tuning.work // (net.nranks * 3 ** len(self.ends))
        self.levels = 1 if bulk else max(2, min(tuning.most_levels, most))
        self.lasts_us = np.zeros(net.nlinks)
        self.exchanges = Exchanges(net)

    @property
    def loads(self) -> Floats:
        """µs a byte of each of the trees on each resource, shape (trees, resources)."""
        if self._new:
            self._loads = np.vstack([self._loads, *self._new])
            self._new.clear()
        return self._loads

    def add(self, trees: Trees) -> int:
        """Trees as a column, if they are none yet; their number."""
        if trees not in self._known:
            self._known[trees] = len(self.trees)
            self.trees.append(trees)
            self._new.append(self.uses[list(trees.links)].sum(axis=0) / self.capacity)
            self.latency_us = np.append(self.latency_us, self._latency(trees))
            self.part = np.append(self.part, 0.0)
        return self._known[trees]

    def rates(self, used: Ints) -> Floats:
        """µs a byte of some trees on each resource, more where latency leaves less of the time: shape as `loads`."""
        left = np.ones(len(used)) if self.bulk else 1 - self.latency_us[used] / self.time_us
        return np.asarray(self.loads[used] / np.maximum(left, _LEAST)[:, None])

    def retime(self, lasts_us: Floats) -> None:
        """Take other latencies: of every link µs from a chunk's start to its arrival."""
        if self.bulk and np.isfinite(self.filled):
            return  # the same trees
        net, tuning, self.lasts_us = self.net, self.tuning, lasts_us
        self.unit_us = max(float(lasts_us.min()), float(lasts_us.max()) / tuning.unlike, 1e-9)
        level = np.maximum(1, np.ceil(lasts_us / self.unit_us - 1e-6)).astype(np.int64)
        self.down = Arborescences(net.nranks, net.src, net.dst, level, self.ends, self.levels)
        self.up = Arborescences(net.nranks, net.dst, net.src, level, self.ends, self.levels)
        self.latency_us = np.array([self._latency(trees) for trees in self.trees])
        self._between = self.exchanges.levels(level)
        # of trees that cost the same the fastest
        self._ties = 1e-6 * float(self._prices.mean()) * (1 + lasts_us / max(float(lasts_us.mean()), 1e-9))

    def least_us(self, size_bytes: float, from_us: float, deadline: float) -> float:
        """The least time in µs in which the message fits, about; `part` is for it then. inf: there are no trees."""
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
        """Find the best fractions of trees for a time; whether all can be reached in it."""
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
                found = self._relaxed(size_bytes, time_us, deadline)
                if found is None:
                    break
                dual = found
            elif not smooth:
                break  # no tree is cheaper than those at hand
            fills.append(self.filled)
            stalls = len(fills) > self.tuning.stall and fills[-1] * self.tuning.gains > fills[-1 - self.tuning.stall]
            if self.filled <= least * self.tuning.near or stalls or now() >= deadline:
                break
            smooth = added > 0
            prices = self.tuning.smoothing * best + (1 - self.tuning.smoothing) * dual if smooth else dual
        self._prices, self.time_us = best, time_us
        self._join()
        return bool(np.isfinite(self.filled))

    def _half(self, trees: Trees) -> int:
        """1: only up, of what goes up and down by trees of its own; -1: only down; 0: all of it."""
        demand = self.demands[trees.demand]
        split = self.bulk and demand.sums and demand.falls
        return int(split and not trees.down) - int(split and not trees.up)

    def _join(self) -> None:
        """Of halves that meet at a root whole trees: one after another as much of one up as there is of one down."""
        at: dict[tuple[int, ...], tuple[list[tuple[int, float]], list[tuple[int, float]]]] = {}
        for i in np.flatnonzero(self.part > 0).tolist():
            if half := self._half(self.trees[i]):
                both = at.setdefault((self.trees[i].demand, *self.trees[i].roots), ([], []))
                both[half < 0].append((i, float(self.part[i])))
                self.part[i] = 0.0
        for ups, downs in at.values():
            while ups and downs:
                (i, rises), (j, falls) = ups[-1], downs[-1]
                whole = self.add(replace(self.trees[i], down=self.trees[j].down))
                least = min(rises, falls)
                self.part[whole] += least
                for one in (ups, downs):
                    one[-1] = one[-1][0], one[-1][1] - least
                    if one[-1][1] <= 0:
                        one.pop()

    def _cheapest(self, prices: Floats, size_bytes: float, time_us: float) -> tuple[float, int]:
        """How full prices say that the busiest resource is at least, and how many new trees came."""
        length = self.uses @ prices + self._ties
        if any(d.falls for d in self.demands):
            self.down.find(self.run, length)
        if any(d.sums for d in self.demands):
            self.up.find(self.run, length)
        proved, added = 0.0, 0
        for number, demand in enumerate(self.demands):
            cost, found = self._cheapest_of(number, demand, time_us, length)
            if not found:
                return np.inf, 0
            proved += demand.amount * cost
            before = len(self.trees)
            for trees in found:
                if self.bulk and trees.up and trees.down:  # then any up a root goes with any down from it
                    self.add(replace(trees, down=()))
                    self.add(replace(trees, up=()))
                else:
                    self.add(trees)
            added += len(self.trees) - before
        return proved * size_bytes / float(prices @ self.capacity), added

    def _cheapest_of(self, number: int, demand: Demand, time_us: float, length: Floats) -> tuple[float, list[Trees]]:
        """The least cost by the time that is left of a demand's trees, and the best of some meetings; none in time."""
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
                    np.hstack(both) for both in zip((cost, first), self._exchanged(demand, length), strict=True)
                )
        left_us = time_us - np.arange(len(cost)) * self.unit_us
        worth = np.where(left_us > 0, cost.T / np.where(left_us > 0, left_us, 1.0), np.inf).T
        level = worth.argmin(axis=0)
        each = worth[level, np.arange(worth.shape[1])]
        least = float(each.min())
        if not least < BEYOND * 1e-30:
            return np.inf, []
        order = np.argsort(each, kind="stable")
        if self.bulk and demand.sums and demand.falls:
            order = order[each[order] < BEYOND * 1e-30]  # a half of every root's: see `_join`
        else:
            order = order[: self.tuning.roots]
            order = order[each[order] <= least * self.tuning.dearer]
        return least, [
            self._trees(number, place, int(level[place]), int(first[level[place], place])) for place in order.tolist()
        ]

    def _exchanged(self, demand: Demand, length: Floats) -> tuple[Floats, Ints]:
        """As `sums_within`, of what meets at both ends of a link."""
        x = self.exchanges
        rise = x.least(self.up, self.up.set_of(demand.holders)) + length[x.forth] + length[x.back]
        return sums_within(rise, x.least(self.down, self.down.set_of(demand.goals)), self._between)

    def _trees(self, number: int, place: int, within: int, begin: int) -> Trees:
        """A demand's cheapest trees within a level, what comes up within one; place: of roots, then of exchanges."""
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
        return self.joined(Trees(number, tuple(ups), up, down, exchange))

    def joined(self, trees: Trees) -> Trees:
        """The same, but where trees to both ends have met before, one end only sends, only receives, or neither.

        Links up then come last, links down first.
        """
        if not trees.exchange:
            return trees
        demand, net = self.demands[trees.demand], self.net
        have = {*demand.holders.tolist(), *net.dst[list(trees.up)].tolist()}
        want = {*demand.goals.tolist(), *net.src[list(trees.down)].tolist()}
        for root, other, away, back in zip(
            trees.roots, trees.roots[::-1], trees.exchange, trees.exchange[::-1], strict=True
        ):
            if not (root in have and root in want):
                up = (*trees.up, away) if root in have else trees.up
                down = (back, *trees.down) if root in want else trees.down
                return replace(trees, roots=(other,), up=up, down=down, exchange=())
        return trees

    def _latency(self, trees: Trees) -> float:
        begins = begins_us(self.net, trees, self.lasts_us)
        return float((begins + self.lasts_us[list(trees.links)]).max(initial=0.0) - begins.min(initial=0.0))

    def _relaxed(self, size_bytes: float, time_us: float, deadline: float) -> Floats | None:
        """Solve the program with the trees at hand; its prices, whose sum of price · capacity is 1."""
        left_us = np.full(len(self.trees), time_us) if self.bulk else time_us - self.latency_us
        usable = np.flatnonzero(left_us > time_us * 1e-9)
        number = len(self.capacity)
        loads = self.loads[usable] * (size_bytes / left_us[usable])[:, None]
        builder = ProgramBuilder()
        part = builder.add_variables(len(usable), np.inf)
        (most,) = builder.add_variables(1, np.inf, cost=1.0)
        tree, resource = np.nonzero(loads)
        every = np.arange(number)
        builder.add_rows(
            np.zeros(number),
            (every, np.full(number, most), 1.0),
            (resource, part[tree], -loads[tree, resource]),
        )
        some = [self.trees[i] for i in usable.tolist()]
        owner = np.array([trees.demand for trees in some], dtype=np.int64)
        half = np.array([self._half(trees) for trees in some], dtype=np.int64)
        builder.add_rows(np.array([d.amount for d in self.demands]), (owner[half >= 0], part[half >= 0], 1.0))
        if half.any():  # as much goes down from a root as up
            at, split = owner * self.net.nranks + np.array([trees.roots[0] for trees in some]), half != 0
            each, at = np.unique(at[split], return_inverse=True)
            builder.add_rows(np.zeros(len(each)), (at, part[split], -half[split].astype(np.float64)))
        left = max(0.05, deadline - now())
        result = self.workers.answer(now() + left, "linear", builder.build(), left)
        if result is None or result.solution is None:
            return None
        self.part = np.zeros(len(self.trees))
        self.part[usable] = np.maximum(result.solution.values[:-1], 0.0)
        self.filled = float(result.solution.values[-1])
        return np.maximum(result.solution.dual_prices[:number], 0.0) / self.capacity


def ends_of(wanted: list[Demand]) -> list[int]:
    """The ranks that trees must reach."""
    ends = [np.concatenate([d.holders, d.goals]) if d.sums else d.goals for d in wanted]
    found: list[int] = np.unique(np.concatenate([*ends, np.zeros(0, dtype=np.int64)])).tolist()
    return found


def begins_us(net: Network, trees: Trees, lasts_us: Floats, waits_us: Sequence[float] = ()) -> Floats:
    """When each link of trees begins to carry what is at their roots at time 0, in µs: those up before that.

    Args:
        lasts_us: of each link of the network, from a chunk's start to its arrival.
        waits_us: how long what is at a rank waits before each link down, and what came up after it; those up first,
            none of an exchange.

    Returns:
        float, shape (links of the trees,), in the order of `trees.links`.
    """
    waits = waits_us or (0.0,) * (len(trees.up) + len(trees.down))
    far, early = dict.fromkeys(trees.roots, 0.0), list[float]()
    for link, wait in zip(trees.up[::-1], waits[: len(trees.up)][::-1], strict=True):
        far[int(net.src[link])] = far[int(net.dst[link])] + wait + float(lasts_us[link])
        early.append(-far[int(net.src[link])])
    far, late = dict.fromkeys(trees.roots, 0.0), list[float]()
    far |= {int(net.dst[link]): float(lasts_us[link]) for link in trees.exchange}
    for link, wait in zip(trees.down, waits[len(trees.up) :], strict=True):
        late.append(far[int(net.src[link])] + wait)
        far[int(net.dst[link])] = late[-1] + float(lasts_us[link])
    return np.array([*early[::-1], *(0.0 for _ in trees.exchange), *late])
