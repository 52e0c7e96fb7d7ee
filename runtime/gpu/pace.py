"""An emulated network as the tables that `pace.h` reads: an executed program takes as long as it would there.

Bytes, links, limits, α and FIFO slots are those of `emit.timing.predict`, whose model of time this is: a step is one
transmission, and a protocol is no more than its number of slots. Who goes first where several wait for one link is
decided while the program runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from emit.columns import Columns
from emit.program import Program
from emit.timing.clock import SAME
from emit.timing.predict import Predictor
from runtime.bench import EmulatedTime
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.errors import InputError
from topologies.topology import Topology

Numbers = NDArray[np.int64]

# what the sheet begins with, in the order of pace.h
SHEET = ("blocks", "settle", "arrived", "origin", "gate", "ended", "due", "paces", "times", "links", "used", "places",
         "users", "holds")  # fmt: skip
FROM, EMPTIED, NEED, HOLD, TIE, PACE = range(6)  # of a step, and how many these are
TIMES = 3  # of a step, written by the kernel
_PS = 1e6  # of a µs
_RATE = 1e6  # whole numbers of kB/s
_LONGEST_US = 1e11  # about a day, as a network that is so much slower takes it


class Pace:
    """A program on a network that is emulated; `predictor` gives the predicted times.

    slower: every bandwidth divided by it, every α times it, so that a device keeps up; times are given as if it were 1.
    messages: slots of a connection that hold all that can be under way.
    """

    def __init__(
        self, program: Program, topology: Topology, group: Sequence[int] | None = None, slower: float = 1.0
    ) -> None:
        """Raises InputError as Predictor does, or for a factor that is not above 0."""
        if not 0 < slower < 1e9:
            raise InputError(f"slower {slower:g}; it must be a number above 0")
        self.slower = slower
        self.predictor = Predictor(program, topology, group)
        net, c = self.predictor.network, self.predictor.columns
        depth = self.predictor.fifo_depth
        t = self.predictor.transfers(1.0)
        order = np.argsort(t.step, kind="stable")
        step, into, link = t.step[order], t.into[order], t.link[order]
        self._byte_us = np.zeros(len(c.op))  # that a step holds its link, for a chunk of one byte
        self._byte_us[step] = c.count[step] * US_PER_BYTE_AT_1_GBS / net.bandwidth_gbs[link]
        self._paces = np.full((len(c.op), PACE), -1, dtype=np.int64)
        self._paces[into, FROM] = step
        self._paces[:, HOLD] = 0
        position = np.arange(len(c.op)) - c.start[c.block]
        away = np.zeros(len(c.op), dtype=np.int64)
        away[step] = (t.dst[order] - t.src[order]) % program.nranks
        # who goes first of those that ask at one time: as in emit.timing.predict
        self._paces[:, TIE] = (position * program.nranks + away) * len(c.op) + np.arange(len(c.op))
        self.messages = 1
        links = np.zeros(len(c.connections), dtype=np.int64)
        rates = np.zeros(len(c.connections))
        for number in range(len(c.connections)):
            mine = np.flatnonzero(c.sends[step] == number)
            if not len(mine):
                continue
            links[number], rates[number] = link[mine[0]], net.bandwidth_gbs[link[mine[0]]]
            before = np.cumsum(c.count[step[mine]]) - c.count[step[mine]]
            self._paces[step[mine[depth:]], EMPTIED] = into[mine[:-depth]]
            self._paces[step[mine[depth:]], NEED] = before[:-depth] + 1
            most = (depth + 1) * int(c.count[step[mine]].max())
            self.messages = max(self.messages, min(most, int(c.count[step[mine]].sum())))
        places = [[*net.uses(int(li)).tolist(), net.nresources + int(li)] for li in links]
        self._keep_shared(places, rates, np.concatenate([net.capacity_gbs, net.bandwidth_gbs]))
        self._alpha_us = np.where(rates > 0, net.alpha_us[links] if net.nlinks else 0.0, 0.0)

    def _keep_shared(self, places: list[list[int]], rates: NDArray[np.float64], capacity: NDArray[np.float64]) -> None:
        """Keep the links and limits that can be full: those that their connections could fill more than once."""
        users: dict[int, list[int]] = {}
        for number, mine in enumerate(places):
            if rates[number]:
                for place in mine:
                    users.setdefault(place, []).append(number)
        kept = [place for place, by in sorted(users.items()) if rates[by].sum() > capacity[place] * SAME]
        renumbered = {place: number for number, place in enumerate(kept)}
        self._users = [users[place] for place in kept]
        self._used = [[renumbered[p] for p in mine if p in renumbered] for mine in places]
        self._rates = np.round(rates * _RATE).astype(np.int64)
        capacities = [int(capacity[place] * _RATE) + len(users[place]) for place in kept]  # each rate is rounded
        self._capacity = np.array(capacities, dtype=np.int64)

    @property
    def shared(self) -> int:
        """How many links and limits the program can find full."""
        return len(self._users)

    def predicted_us(self, chunk_bytes: float) -> float:
        """The predicted time when a chunk has so many bytes."""
        return self.predictor.time_us(chunk_bytes / self.predictor.chunk_bytes(1.0))

    def limit_ns(self, chunk_bytes: float) -> int:
        """A limit that no wait should reach, in ns."""
        return int(4e3 * self.slower * self.predicted_us(chunk_bytes))

    def sheet(self, columns: Columns, chunk_bytes: float) -> Numbers:
        """All numbers for one size, as pace.h has them. Raises InputError where it would take more than a day."""
        takes_us = self.slower * self.predicted_us(chunk_bytes)
        if takes_us > _LONGEST_US:
            raise InputError(
                f"a network {self.slower:g} times slower takes {takes_us / 1e6:.0f} s; it must take at most a day"
            )
        alpha = np.round(self._alpha_us * _PS * self.slower).astype(np.int64)
        paces = self._paces.copy()
        paces[:, HOLD] = np.round(self._byte_us * chunk_bytes * _PS * self.slower)
        used, users = _rows(self._used), _rows(self._users)
        rows = np.column_stack([alpha, self._rates, used[0], used[1]])
        places = np.column_stack([self._capacity, users[0], users[1]])
        times = np.zeros(TIMES * len(columns.op), dtype=np.int64)
        holds = np.tile(np.array([0, -1, 0, 0, 0], dtype=np.int64), len(rows))
        asks = [number for number, mine in enumerate(self._used) if mine]
        # who asks at one time has asked by then; what is sent cannot be used before α is over anyhow
        settle = int(alpha[asks].min()) // 2 if asks else 0
        parts = [paces.ravel(), times, rows.ravel(), used[2], places.ravel(), users[2], holds]
        head = np.zeros(len(SHEET), dtype=np.int64)
        head[:2] = len(columns.rank), settle
        head[len(SHEET) - len(parts) :] = len(SHEET) + np.cumsum([0, *map(len, parts[:-1])])
        return np.concatenate([head, *parts]).astype(np.int64)

    def read_times(self, sheet: Sequence[int] | Numbers) -> EmulatedTime:
        """The times that the kernel left in a sheet."""
        ended, due = (int(sheet[SHEET.index(name)]) / _PS / self.slower for name in ("ended", "due"))
        return EmulatedTime(ended, due)


def _rows(lists: list[list[int]]) -> tuple[Numbers, Numbers, Numbers]:
    """First place and length of each list in the third, all of them in a row."""
    counts = np.array([len(row) for row in lists], dtype=np.int64)
    flat = np.array([x for row in lists for x in row], dtype=np.int64)
    return np.cumsum(counts) - counts, counts, flat
