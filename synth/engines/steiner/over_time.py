"""Trees over time: some trees for the first bytes and others for the last, by a linear program over slots of time.

At a steady rate a resource is idle before the first bytes of its trees come to it, and after the last. Other trees can
fill the idle time: at the end those with little in flight, wherever they cross. So a column is a tree for one part of
the time, and each resource has a row for each slot: a flow over time (Ford and Fulkerson, 1958), of trees in place of
paths. The cheapest trees in a network over time, by the prices of resources in slots, are the columns to add.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from synth.engines.steiner.arborescences import BEYOND, Arborescences
from synth.engines.steiner.exchanges import at_levels
from synth.engines.steiner.packing import Packing, SteinerTrees, TreeDemand, begins_us
from synth.model.collective import Floats, Ints
from synth.model.deadline import now
from synth.solvers.linear_program import ProgramBuilder
from topologies.arrays import pointers, positions

_TINY = 1e-9
_USED = 1e-7  # part of the message above which a column counts
_TIES = 1e-6  # part of the mean price, so that among trees of the same cost the fastest wins
_WORTH = 0.999  # part of the price of a byte that cheaper trees cost at most


@dataclass(frozen=True)
class TimedTrees:
    """Trees and their waits.

    Attributes:
        trees: The trees.
        waits_us: Time in µs that data waits at a rank before each link down and after each link up; links up first.
    """

    trees: SteinerTrees
    waits_us: tuple[float, ...]


class OverTime:
    """The linear program of a packing over slots of time.

    Attributes:
        time_us: The least time found in which the message fits, in µs.
    """

    def __init__(self, packing: Packing, size_bytes: float) -> None:
        self.packing, self.size_bytes, self.time_us = packing, size_bytes, np.inf
        self.tuning = packing.tuning
        self.slots = self.tuning.slots
        work = packing.net.nranks * 3 ** len(packing.ends) * self.slots
        self.finer = max(1, min(self.tuning.finer, self.tuning.over_work // work))
        self.timed: list[TimedTrees] = []
        self._number_of: dict[TimedTrees, int] = {}
        self._tree_of_column, self._place, self._unused = np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0)
        self._links: list[Ints] = []
        self._offsets: list[Floats] = []
        self._before, self._spans = np.zeros(0), np.zeros(0)
        link, self._resources = np.nonzero(packing.uses)
        self._resource_ptr = pointers(np.bincount(link, minlength=len(packing.uses)))

    def steps(self, time_us: float, enough_us: float, deadline: float) -> Iterator[None]:
        """Find the least time by linear programs one after another, and yield between them.

        It sets `time_us`, to inf until a time is found. The trees of the packing that are in use are columns too.

        Args:
            time_us: The first time to try, in µs, in which the message fits.
            enough_us: A time that need not be improved.
            deadline: Time on the clock `synth.model.deadline.now`.
        """
        for number in np.flatnonzero(self.packing.part > _USED).tolist():
            trees = self.packing.trees[number]
            number_of_timed = self._number(TimedTrees(trees, (0.0,) * (len(trees.up) + len(trees.down))))
            if not (self._tree_of_column == number_of_timed).any():
                self._add(np.full(self.slots, number_of_timed), np.linspace(0.0, 1.0, self.slots))
        self._retime()
        self.time_us, self.best = np.inf, (self._tree_of_column[:0], self._place, self._place, self._place)
        times: list[float] = []
        for _ in range(self.tuning.over_steps):
            if not self._solve(time_us, deadline):
                break
            fits = self.filled <= 1 + self.tuning.fits
            if fits and time_us < self.time_us:
                self.time_us, self.best = (
                    time_us,
                    (self._tree_of_column[self._columns_in_time], self._begin, self._width, self._part),
                )
            times.append(self.time_us)
            gains = times[-1] * self.tuning.gains < times[max(0, len(times) - 1 - self.tuning.stall)]
            stalls = len(times) > self.tuning.stall and not gains
            if now() >= deadline or self.time_us <= enough_us or stalls:
                break
            yield
            lower, new = self._price(time_us)
            near = not new or lower > min(1.0, self.filled * self.tuning.over_near)
            if near and not fits:
                break
            if fits:
                mean_us = float(self._part @ self._spans[self._tree_of_column[self._columns_in_time]]) / max(
                    float(self._part.sum()), _TINY
                )
                time_us = max(enough_us, mean_us + self.filled * (time_us - mean_us) * self.tuning.sooner)

    def _number(self, timed: TimedTrees) -> int:
        """Return the number of timed trees, and add them if they are new."""
        if timed not in self._number_of:
            self._number_of[timed] = len(self.timed)
            self.timed.append(timed)
        return self._number_of[timed]

    def _add(self, numbers: Ints, place: Floats) -> None:
        """Add columns: trees by number, each at a place in time from 0 for the earliest to 1 for the latest."""
        self._tree_of_column, self._place = np.append(self._tree_of_column, numbers), np.append(self._place, place)
        self._unused = np.append(self._unused, np.zeros(len(numbers)))

    def _retime(self, first: int = 0) -> None:
        """Compute when links begin and how long trees take, from the packing's latencies.

        The links begin relative to the time at which all data is at the root.

        Args:
            first: Number of the first trees to compute.
        """
        packing, lasts = self.packing, self.packing.lasts_us
        links = [np.array(timed.trees.links, dtype=np.int64) for timed in self.timed[first:]]
        offsets = [begins_us(packing.net, timed.trees, lasts, timed.waits_us) for timed in self.timed[first:]]
        timings = [
            (i, at, len(timed.trees.up)) for i, at, timed in zip(links, offsets, self.timed[first:], strict=True)
        ]
        before = np.array([-float(at[:up].min(initial=0.0)) for _, at, up in timings])
        after = np.array([float((at + lasts[i])[up:].max(initial=0.0)) for i, at, up in timings])
        self._links, self._offsets = [*self._links[:first], *links], [*self._offsets[:first], *offsets]
        self._before = np.append(self._before[:first], before)
        self._spans = np.append(self._spans[:first], before + after)

    def _solve(self, time_us: float, deadline: float) -> bool:
        """Find the least load of the fullest slot for a time; return False if some demand has no column, or on failure.

        It sets `filled`, the fractions and the prices, and drops columns that were unused for long.
        """
        packing, slot_us = self.packing, time_us / self.slots
        in_use = self._unused < self.tuning.unused
        self._tree_of_column, self._place, self._unused = (
            self._tree_of_column[in_use],
            self._place[in_use],
            self._unused[in_use],
        )
        remaining_us = time_us - self._spans[self._tree_of_column]
        self._columns_in_time = np.flatnonzero(remaining_us > _TINY)
        numbers = self._tree_of_column[self._columns_in_time]
        self._width = np.minimum(remaining_us[self._columns_in_time], slot_us)
        self._begin = self._before[numbers] + self._place[self._columns_in_time] * (
            remaining_us[self._columns_in_time] - self._width
        )
        demand = np.array([timed.trees.demand for timed in self.timed], dtype=np.int64)[numbers]
        if len(np.unique(demand)) < len(packing.demands):
            return False
        # One entry for every column, link of its tree, and resource of the link.
        size = np.array([len(links) for links in self._links])
        first = (np.cumsum(size) - size)[numbers]
        column = np.repeat(np.arange(len(numbers)), size[numbers])
        at = first[column] + positions(size[numbers])
        link, at_us = np.concatenate(self._links)[at], self._begin[column] + np.concatenate(self._offsets)[at]
        count = self._resource_ptr[link + 1] - self._resource_ptr[link]
        resource = self._resources[np.repeat(self._resource_ptr[link], count) + positions(count)]
        column, at_us = np.repeat(column, count), np.repeat(at_us, count)
        slot = np.clip(np.floor(at_us / slot_us + _TINY).astype(np.int64), 0, self.slots - 1)
        share_of_slot = np.clip(((slot + 1) * slot_us - at_us) / self._width[column], 0.0, 1.0)
        load = np.tile(self.size_bytes / packing.capacity[resource] / slot_us, 2) * np.concatenate(
            [share_of_slot, 1 - share_of_slot]
        )
        row = np.concatenate(
            [resource * self.slots + slot, resource * self.slots + np.minimum(slot + 1, self.slots - 1)]
        )
        return self._minimise(row, np.tile(column, 2), load, demand, deadline)

    def _minimise(self, row: Ints, column: Ints, load: Floats, demand: Ints, deadline: float) -> bool:
        """Solve the linear program, set the fractions, `filled` and the prices, and return False if the solver fails.

        It also counts for each column in how many programs in a row it was unused.

        Args:
            row: Row of each entry: resource · slots + slot; entries of one row and column add up.
            column: Column of each entry, an index into `demand`.
            load: Load of each entry, relative to a full slot, for the whole message.
            demand: Demand of each column.
            deadline: Time on the clock `synth.model.deadline.now` for the solver, which has 0.05 s at least.
        """
        packing = self.packing
        nonzero = load > _TINY
        used_rows, row = np.unique(row[nonzero], return_inverse=True)
        builder = ProgramBuilder()
        part = builder.add_variables(len(demand), np.inf)
        (most,) = builder.add_variables(1, np.inf, cost=1.0)
        rows = np.arange(len(used_rows))
        full = (rows, np.full(len(used_rows), most), 1.0)
        builder.add_rows(np.zeros(len(used_rows)), full, (row, part[column[nonzero]], -load[nonzero]))
        builder.add_rows(np.array([d.amount for d in packing.demands]), (demand, part, 1.0))
        budget_s = max(0.05, deadline - now())
        # Prices from the middle of all optimal prices lead to more useful trees.
        result = packing.workers.answer(now() + budget_s, "linear", builder.build(), budget_s, True)
        if result is None or result.solution is None:
            return False
        self._part, self.filled = np.maximum(result.solution.values[:-1], 0.0), float(result.solution.values[-1])
        self._unused[self._columns_in_time] = np.where(self._part > _USED, 0, self._unused[self._columns_in_time] + 1)
        self._worth = result.solution.dual_prices[len(used_rows) :]
        self._prices = np.zeros(len(packing.capacity) * self.slots)
        self._prices[used_rows] = np.maximum(result.solution.dual_prices[: len(used_rows)], 0.0)
        self._prices = self._prices.reshape(-1, self.slots) / packing.capacity[:, None]
        return True

    def _price(self, time_us: float) -> tuple[float, int]:
        """Add columns that the prices favour; return an estimate of the fullest slot's least load, and their number."""
        packing, net, finer = self.packing, self.packing.net, self.finer
        slot_us = time_us / self.slots
        unit_us = slot_us / finer
        count = (self.slots - 1) * finer  # units; a send that begins in the last slot takes a slot
        level = np.maximum(1, np.ceil(packing.lasts_us / unit_us - 1e-6)).astype(np.int64)
        by_unit = np.repeat(self._prices.T @ packing.uses.T, finer, axis=0)
        sums = np.vstack([np.zeros((1, net.nlinks)), np.cumsum(by_unit, axis=0)])
        # The length of a link in a unit is the price of a send that begins in that unit and takes a slot.
        length = (sums[finer:] - sums[:-finer]) / finer * (self.size_bytes / slot_us)
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
        lower, new_trees = 0.0, list[tuple[TimedTrees, float]]()
        for number, demand in enumerate(packing.demands):
            cost = self._cost(demand, rise, fall, length)
            lower += float(cost.min()) * demand.amount
            roots = np.argsort(cost.min(axis=0), kind="stable")[: self.tuning.roots]
            for stretch in np.array_split(levels, self.tuning.stretches):
                for place in roots.tolist():
                    met_at = int(stretch[cost[stretch, place].argmin()])
                    if cost[met_at, place] < min(BEYOND / 2, self._worth[number] * _WORTH):
                        timed = self._timed(number, place, met_at, rise, fall, unit_us)
                        new_trees.append((timed, met_at * unit_us))
        ncolumns = len(self._tree_of_column)
        self._take(new_trees, time_us)
        return lower, len(self._tree_of_column) - ncolumns

    def _cost(
        self, demand: TreeDemand, rise: Arborescences | None, fall: Arborescences | None, length: Floats
    ) -> Floats:
        """Return the least cost of a demand's trees, shape (levels, roots + exchanges).

        A row is a level of time at which all data has come to the root. A column is a root, or, for sums with several
        goals, an exchange between two roots.

        Args:
            demand: The demand.
            rise: Cheapest trees over time that lead to each rank; None if no demand sums.
            fall: Cheapest trees over time that begin at each rank; None if no demand has trees down.
            length: Price of each link.
        """
        if rise is None or not demand.sums:
            assert fall is not None
            return np.asarray(fall.cost[::-1, fall.set_of(demand.goals)][:, demand.roots])
        holders = rise.set_of(demand.holders)
        up = rise.cost[:, holders][:, demand.roots]
        if fall is None or not demand.falls:
            return np.asarray(up)
        goals, exchanges = fall.set_of(demand.goals), self.packing.exchanges
        at_one_root = up + fall.cost[::-1, goals][:, demand.roots]
        down = at_levels(exchanges.least(fall, goals), np.arange(len(at_one_root))[::-1, None] - self._between)
        return np.hstack(
            [
                at_one_root,
                exchanges.least(rise, holders) + length[:, exchanges.forth] + length[:, exchanges.back] + down,
            ]
        )

    def _timed(
        self, number: int, place: int, met: int, rise: Arborescences | None, fall: Arborescences | None, unit_us: float
    ) -> TimedTrees:
        """Return the cheapest trees for which all data is at the root after `met` units.

        Args:
            number: Index of the demand.
            place: Index into the demand's roots, or after these into the exchanges.
            met: Units of time.
            rise: Table of trees up, None if no demand sums.
            fall: Table of trees down, None if no demand has them.
            unit_us: Length of a unit in µs.
        """
        packing, demand = self.packing, self.packing.demands[number]
        holders = rise.set_of(demand.holders) if rise and demand.sums else 0
        goals = fall.set_of(demand.goals) if fall and demand.falls else 0
        units_below = (self.slots - 1) * self.finer - met
        units_below -= 0 if place < len(demand.roots) else int(self._between[place - len(demand.roots)])
        above, below, exchange = packing.exchanges.meeting(
            demand.roots, place, (rise, holders, met), (fall, goals, units_below)
        )
        ups, early = rise.timed(above, met) if rise and holders else ((), ())
        downs, late = fall.timed(below, units_below) if fall and goals else ((), ())
        trees = packing.joined(SteinerTrees(number, tuple(above), ups[::-1], downs, exchange))
        added = len(trees.up) - len(ups) + len(trees.down) - len(downs)
        waits = (*early[::-1], *(0 for _ in range(added)), *late)
        return TimedTrees(trees, tuple(round(wait * unit_us, 9) for wait in waits))

    def _take(self, new_trees: list[tuple[TimedTrees, float]], time_us: float) -> None:
        """Add columns for trees, each at the time at which it is needed, and for new trees at a few other times.

        A column that exists is not added again.

        Args:
            new_trees: Trees, each with the time in µs at which all data is at the root.
            time_us: The time in µs in which the message has to fit.
        """
        first = len(self.timed)
        numbers = np.array([self._number(timed) for timed, _ in new_trees], dtype=np.int64)
        self._retime(first)
        for fresh in range(first, len(self.timed)):  # New trees are tried at a few other times, too.
            self._add(np.full(self.tuning.places, fresh), np.linspace(0.0, 1.0, self.tuning.places))
        room = time_us * (1 - 1 / self.slots) - self._spans[numbers]
        place = (np.array([met for _, met in new_trees]) - self._before[numbers]) / np.maximum(room, _TINY)
        place = np.clip(place, 0.0, 1.0).round(4)
        existing = set(zip(self._tree_of_column.tolist(), self._place.tolist(), strict=True))
        new = [
            column
            for column in dict.fromkeys(zip(numbers.tolist(), place.tolist(), strict=True))
            if column not in existing
        ]
        if new:
            numbers_of_columns, places = zip(*new, strict=True)
            self._add(np.array(numbers_of_columns, dtype=np.int64), np.array(places))

    def begun(self, chunks: list[Ints]) -> tuple[list[Ints], list[list[Floats]]]:
        """Return the trees that the chunks of each demand take in turn, and when their links begin.

        `steps` must have found a time. Trees that are new to the packing become columns of it.

        Args:
            chunks: Chunks of each demand, of which only the number counts.

        Returns:
            For each demand the number of each chunk's trees in the packing, int, shape (chunks,), the earliest
            first; and for each demand and chunk the time in µs at which each link of its trees begins.
        """
        numbers, begin, width, part = self.best
        trees_of_demands, starts_of_demands = list[Ints](), list[list[Floats]]()
        owner = np.array([self.timed[i].trees.demand for i in numbers.tolist()], dtype=np.int64)
        for number, own_chunks in enumerate(chunks):
            columns = np.flatnonzero((owner == number) & (part > _USED))
            columns = columns[np.lexsort((numbers[columns], begin[columns]))]
            units = len(own_chunks)
            cumulative = np.cumsum(part[columns])
            middle_of_chunk = (np.arange(units) + 0.5) / units * cumulative[-1]
            row = np.searchsorted(cumulative, middle_of_chunk, side="right")
            within = 1 - (cumulative[row] - middle_of_chunk) / part[columns[row]]
            at_us = begin[columns[row]] + width[columns[row]] * within
            order = np.argsort(at_us, kind="stable")
            numbers_of_chunks = numbers[columns[row[order]]].tolist()
            trees_of_demands.append(np.array([self.packing.add(self.timed[i].trees) for i in numbers_of_chunks]))
            starts = zip(numbers_of_chunks, at_us[order].tolist(), strict=True)
            starts_of_demands.append([self._offsets[i] + start_us for i, start_us in starts])
        return trees_of_demands, starts_of_demands
