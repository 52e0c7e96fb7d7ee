"""Trees over time: which the first bytes take, and which the last, by a linear program over slots of time.

At a steady rate a resource is idle before the first bytes of its trees come to it, and after the last. Other trees can
fill that: at the end those by which little is under way, wherever they cross. So a column is a tree for one part of the
time, and each resource has a row for each slot: a flow over time (Ford and Fulkerson, 1958), of trees in place of
paths. The cheapest trees in a network over time, by the prices of resources in slots, are the columns that it wants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from synth.engines.steiner.arborescences import BEYOND, Arborescences
from synth.engines.steiner.exchanges import at_levels
from synth.engines.steiner.packing import Demand, Packing, Trees, begins_us
from synth.model.collective import Floats, Ints
from synth.model.deadline import now
from synth.solvers.linear_program import ProgramBuilder
from topologies.arrays import pointers, positions

_TINY = 1e-9
_USED = 1e-7  # of the message, from which on a column counts
_TIES = 1e-6  # of the mean price: of trees that cost the same the fastest
_WORTH = 0.999  # of what a byte pays: what cheaper trees cost


@dataclass(frozen=True)
class Timed:
    """Trees, and how long what comes to a rank waits before each link, those up first; up: after it, in µs."""

    trees: Trees
    waits_us: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Begun:
    """Which trees the chunks of a demand take in turn, by number in the packing, and when each link of these begins."""

    trees: Ints
    at_us: list[Floats]


class OverTime:
    """The linear program of a packing over slots of time.

    Attributes:
        time_us: the least time found in which the message fits.
    """

    def __init__(self, packing: Packing, size_bytes: float) -> None:
        self.packing, self.size_bytes, self.time_us = packing, size_bytes, np.inf
        self.tuning = packing.tuning
        self.slots = self.tuning.slots
        work = packing.net.nranks * 3 ** len(packing.ends) * self.slots
        self.finer = max(1, min(self.tuning.finer, self.tuning.over_work // work))
        self.timed: list[Timed] = []
        self._known: dict[Timed, int] = {}
        self._of, self._place, self._unused = np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0)
        self._links: list[Ints] = []
        self._offsets: list[Floats] = []
        self._before, self._spans = np.zeros(0), np.zeros(0)
        link, self._resources = np.nonzero(packing.uses)
        self._resource_ptr = pointers(np.bincount(link, minlength=len(packing.uses)))

    def steps(self, time_us: float, enough_us: float, deadline: float) -> Iterator[None]:
        """Look for the least time, from one on in which the message fits, by one linear program after another.

        Trees of the packing that are in use are taken along.
        """
        for number in np.flatnonzero(self.packing.part > _USED).tolist():
            trees = self.packing.trees[number]
            at = self._number(Timed(trees, (0.0,) * (len(trees.up) + len(trees.down))))
            if not (self._of == at).any():
                self._add(np.full(self.slots, at), np.linspace(0.0, 1.0, self.slots))
        self._retime()
        self.time_us, self.best = np.inf, (self._of[:0], self._place, self._place, self._place)
        times: list[float] = []
        for _ in range(self.tuning.over_steps):
            if not self._solve(time_us, deadline):
                break
            fits = self.filled <= 1 + self.tuning.fits
            if fits and time_us < self.time_us:
                self.time_us, self.best = time_us, (self._of[self._in], self._begin, self._width, self._part)
            times.append(self.time_us)
            ahead = times[-1] * self.tuning.gains < times[max(0, len(times) - 1 - self.tuning.stall)]
            stalls = len(times) > self.tuning.stall and not ahead
            if now() >= deadline or self.time_us <= enough_us or stalls:
                break
            yield
            lower, new = self._price(time_us)
            near = not new or lower > min(1.0, self.filled * self.tuning.over_near)
            if near and not fits:
                break
            if fits:
                mean_us = float(self._part @ self._spans[self._of[self._in]]) / max(float(self._part.sum()), _TINY)
                time_us = max(enough_us, mean_us + self.filled * (time_us - mean_us) * self.tuning.sooner)

    def _number(self, one: Timed) -> int:
        if one not in self._known:
            self._known[one] = len(self.timed)
            self.timed.append(one)
        return self._known[one]

    def _add(self, of: Ints, place: Floats) -> None:
        self._of, self._place = np.append(self._of, of), np.append(self._place, place)
        self._unused = np.append(self._unused, np.zeros(len(of)))

    def _retime(self, first: int = 0) -> None:
        """What follows from the packing's latencies: when links begin if all is at the root at time 0, and how long.

        first: the tree from which on that is not known yet.
        """
        packing, lasts = self.packing, self.packing.lasts_us
        links = [np.array(one.trees.links, dtype=np.int64) for one in self.timed[first:]]
        offsets = [begins_us(packing.net, one.trees, lasts, one.waits_us) for one in self.timed[first:]]
        each = [(i, at, len(one.trees.up)) for i, at, one in zip(links, offsets, self.timed[first:], strict=True)]
        before = np.array([-float(at[:up].min(initial=0.0)) for _, at, up in each])
        after = np.array([float((at + lasts[i])[up:].max(initial=0.0)) for i, at, up in each])
        self._links, self._offsets = [*self._links[:first], *links], [*self._offsets[:first], *offsets]
        self._before = np.append(self._before[:first], before)
        self._spans = np.append(self._spans[:first], before + after)

    def _solve(self, time_us: float, deadline: float) -> bool:
        """Find the least load of the fullest slot for a time; whether there is one."""
        packing, slot_us = self.packing, time_us / self.slots
        kept = self._unused < self.tuning.unused
        self._of, self._place, self._unused = self._of[kept], self._place[kept], self._unused[kept]
        left_us = time_us - self._spans[self._of]
        self._in = np.flatnonzero(left_us > _TINY)
        of = self._of[self._in]
        self._width = np.minimum(left_us[self._in], slot_us)
        self._begin = self._before[of] + self._place[self._in] * (left_us[self._in] - self._width)
        demand = np.array([one.trees.demand for one in self.timed], dtype=np.int64)[of]
        if len(np.unique(demand)) < len(packing.demands):
            return False
        # an entry for every column, link of its tree, and resource of that
        size = np.array([len(one) for one in self._links])
        first = (np.cumsum(size) - size)[of]
        column = np.repeat(np.arange(len(of)), size[of])
        at = first[column] + positions(size[of])
        link, at_us = np.concatenate(self._links)[at], self._begin[column] + np.concatenate(self._offsets)[at]
        count = self._resource_ptr[link + 1] - self._resource_ptr[link]
        resource = self._resources[np.repeat(self._resource_ptr[link], count) + positions(count)]
        column, at_us = np.repeat(column, count), np.repeat(at_us, count)
        slot = np.clip(np.floor(at_us / slot_us + _TINY).astype(np.int64), 0, self.slots - 1)
        here = np.clip(((slot + 1) * slot_us - at_us) / self._width[column], 0.0, 1.0)
        load = np.tile(self.size_bytes / packing.capacity[resource] / slot_us, 2) * np.concatenate([here, 1 - here])
        row = np.concatenate(
            [resource * self.slots + slot, resource * self.slots + np.minimum(slot + 1, self.slots - 1)]
        )
        return self._minimise(row, np.tile(column, 2), load, demand, deadline)

    def _minimise(self, row: Ints, column: Ints, load: Floats, demand: Ints, deadline: float) -> bool:
        packing = self.packing
        kept = load > _TINY
        used, row = np.unique(row[kept], return_inverse=True)
        builder = ProgramBuilder()
        part = builder.add_variables(len(demand), np.inf)
        (most,) = builder.add_variables(1, np.inf, cost=1.0)
        every = np.arange(len(used))
        full = (every, np.full(len(used), most), 1.0)
        builder.add_rows(np.zeros(len(used)), full, (row, part[column[kept]], -load[kept]))
        builder.add_rows(np.array([d.amount for d in packing.demands]), (demand, part, 1.0))
        left = max(0.05, deadline - now())
        # prices from amid all that are best are those of more trees that are wanted
        result = packing.workers.answer(now() + left, "linear", builder.build(), left, True)
        if result is None or result.solution is None:
            return False
        self._part, self.filled = np.maximum(result.solution.values[:-1], 0.0), float(result.solution.values[-1])
        self._unused[self._in] = np.where(self._part > _USED, 0, self._unused[self._in] + 1)
        self._worth = result.solution.dual_prices[len(used) :]
        self._prices = np.zeros(len(packing.capacity) * self.slots)
        self._prices[used] = np.maximum(result.solution.dual_prices[: len(used)], 0.0)
        self._prices = self._prices.reshape(-1, self.slots) / packing.capacity[:, None]
        return True

    def _price(self, time_us: float) -> tuple[float, int]:
        """How full the prices say that the fullest slot is at least, about, and how many new columns came."""
        packing, net, finer = self.packing, self.packing.net, self.finer
        slot_us = time_us / self.slots
        unit_us = slot_us / finer
        count = (self.slots - 1) * finer  # units; what begins in the last slot is sent for a slot
        level = np.maximum(1, np.ceil(packing.lasts_us / unit_us - 1e-6)).astype(np.int64)
        by_unit = np.repeat(self._prices.T @ packing.uses.T, finer, axis=0)
        sums = np.vstack([np.zeros((1, net.nlinks)), np.cumsum(by_unit, axis=0)])
        length = (sums[finer:] - sums[:-finer]) / finer * (self.size_bytes / slot_us)  # sent for a slot from there on
        length += _TIES * length.mean()
        levels = np.arange(count + 1)
        self._between = packing.exchanges.levels(level)
        rise = fall = None
        if any(d.falls for d in packing.demands):
            fall = Arborescences(net.nranks, net.src, net.dst, level, packing.ends, count + 1)
            fall.find(packing.run, length[count - levels], endless=False)
        if any(d.sums for d in packing.demands):
            rise = Arborescences(net.nranks, net.dst, net.src, level, packing.ends, count + 1)
            begins = np.maximum(levels[:, None] - level, 0)
            rise.find(packing.run, length[begins, np.arange(net.nlinks)], endless=False)
        lower, found = 0.0, list[tuple[Timed, float]]()
        for number, demand in enumerate(packing.demands):
            cost = self._cost(demand, rise, fall, length)
            lower += float(cost.min()) * demand.amount
            roots = np.argsort(cost.min(axis=0), kind="stable")[: self.tuning.roots]
            for stretch in np.array_split(levels, self.tuning.stretches):
                for place in roots.tolist():
                    met = int(stretch[cost[stretch, place].argmin()])
                    if cost[met, place] < min(BEYOND / 2, self._worth[number] * _WORTH):
                        timed = self._timed(number, place, met, rise, fall, unit_us)
                        found.append((timed, met * unit_us))
        before = len(self._of)
        self._take(found, time_us)
        return lower, len(self._of) - before

    def _cost(self, demand: Demand, rise: Arborescences | None, fall: Arborescences | None, length: Floats) -> Floats:
        """The least cost of a demand's trees by when all is at the root, shape (levels, roots, then exchanges)."""
        if rise is None or not demand.sums:
            assert fall is not None
            return np.asarray(fall.cost[::-1, fall.set_of(demand.goals)][:, demand.roots])
        holders = rise.set_of(demand.holders)
        up = rise.cost[:, holders][:, demand.roots]
        if fall is None or not demand.falls:
            return np.asarray(up)
        goals, x = fall.set_of(demand.goals), self.packing.exchanges
        one = up + fall.cost[::-1, goals][:, demand.roots]
        down = at_levels(x.least(fall, goals), np.arange(len(one))[::-1, None] - self._between)
        return np.hstack([one, x.least(rise, holders) + length[:, x.forth] + length[:, x.back] + down])

    def _timed(
        self, number: int, place: int, met: int, rise: Arborescences | None, fall: Arborescences | None, unit_us: float
    ) -> Timed:
        """The cheapest trees of which all is at the root after so many units; place: as in `_cost`."""
        packing, demand = self.packing, self.packing.demands[number]
        holders = rise.set_of(demand.holders) if rise and demand.sums else 0
        goals = fall.set_of(demand.goals) if fall and demand.falls else 0
        left = (self.slots - 1) * self.finer - met
        left -= 0 if place < len(demand.roots) else int(self._between[place - len(demand.roots)])
        above, below, exchange = packing.exchanges.meeting(
            demand.roots, place, (rise, holders, met), (fall, goals, left)
        )
        ups, early = rise.timed(above, met) if rise and holders else ((), ())
        downs, late = fall.timed(below, left) if fall and goals else ((), ())
        trees = packing.joined(Trees(number, tuple(above), ups[::-1], downs, exchange))
        added = len(trees.up) - len(ups) + len(trees.down) - len(downs)
        waits = (*early[::-1], *(0 for _ in range(added)), *late)
        return Timed(trees, tuple(round(wait * unit_us, 9) for wait in waits))

    def _take(self, found: list[tuple[Timed, float]], time_us: float) -> None:
        """Trees as columns for the slot from which on they are wanted."""
        before = len(self.timed)
        numbers = np.array([self._number(timed) for timed, _ in found], dtype=np.int64)
        self._retime(before)
        for fresh in range(before, len(self.timed)):  # and, fewer, at other times
            self._add(np.full(self.tuning.places, fresh), np.linspace(0.0, 1.0, self.tuning.places))
        room = time_us * (1 - 1 / self.slots) - self._spans[numbers]
        place = (np.array([met for _, met in found]) - self._before[numbers]) / np.maximum(room, _TINY)
        place = np.clip(place, 0.0, 1.0).round(4)
        have = set(zip(self._of.tolist(), self._place.tolist(), strict=True))
        new = [one for one in dict.fromkeys(zip(numbers.tolist(), place.tolist(), strict=True)) if one not in have]
        if new:
            of, at = zip(*new, strict=True)
            self._add(np.array(of, dtype=np.int64), np.array(at))

    def begun(self, parts: int) -> list[Begun]:
        """Of every demand which trees its chunks take, cut into so many parts, and when each of their links begins."""
        of, begin, width, part = self.best
        found = []
        owner = np.array([self.timed[i].trees.demand for i in of.tolist()], dtype=np.int64)
        for number, demand in enumerate(self.packing.demands):
            mine = np.flatnonzero((owner == number) & (part > _USED))
            mine = mine[np.lexsort((of[mine], begin[mine]))]
            units = len(demand.chunks) * parts
            upto = np.cumsum(part[mine])
            want = (np.arange(units) + 0.5) / units * upto[-1]
            row = np.searchsorted(upto, want, side="right")
            within = 1 - (upto[row] - want) / part[mine[row]]
            at = begin[mine[row]] + width[mine[row]] * within
            order = np.argsort(at, kind="stable")
            taken = of[mine[row[order]]].tolist()
            trees = np.array([self.packing.add(self.timed[i].trees) for i in taken])
            found.append(Begun(trees, [self._offsets[i] + t for i, t in zip(taken, at[order].tolist(), strict=True)]))
        return found
