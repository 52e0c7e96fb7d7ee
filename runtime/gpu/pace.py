"""An emulated network as the tables that `pace.h` reads: an executed program takes as long as it would there.

Bytes, links, limits, α and FIFO slots are those of `emit.timing.predict`, which has the same model of time: a step is
one transmission, and a protocol is no more than its number of slots. The order of sends that wait for one link is
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

# The first numbers of the sheet, in the order of pace.h.
SHEET = ("blocks", "settle", "arrived", "origin", "gate", "ended", "due", "paces", "times", "links", "used", "places",
         "users", "holds")  # fmt: skip
FROM, EMPTIED, NEED, HOLD, TIE, PACE = range(6)  # Columns of a step, and their number.
TIMES = 3  # Of a step, written by the kernel.
_PS = 1e6  # ps per µs.
_RATE = 1e6  # Rates are whole numbers of kB/s.
_LONGEST_US = 1e11  # About a day on the slowed network.


class Pace:
    """A program on an emulated network.

    Attributes:
        slower: Factor by which every bandwidth is divided and every α multiplied, so that a device keeps up; times are
            stated as if it were 1.
        predictor: The predicted times.
        messages: Number of slots of a connection that hold all messages that can be in flight.
    """

    def __init__(
        self, program: Program, topology: Topology, group: Sequence[int] | None = None, slower: float = 1.0
    ) -> None:
        """Build the tables that do not depend on the message size.

        Args:
            program: The program.
            topology: The network to emulate.
            group: The topology's rank of each rank of the program; None: as for Predictor.
            slower: As in the class.

        Raises:
            InputError: As for Predictor, or the factor is not above 0.
        """
        if not 0 < slower < 1e9:
            raise InputError(f"slower {slower:g}; it must be a number above 0")
        self.slower = slower
        self.predictor = Predictor(program, topology, group)
        net, c = self.predictor.network, self.predictor.columns
        depth = self.predictor.fifo_depth
        t = self.predictor.transfers(1.0)
        order = np.argsort(t.step, kind="stable")
        step, into, link = t.step[order], t.into[order], t.link[order]
        self._byte_us = np.zeros(len(c.op))  # Time that a step holds its link, for a chunk of one byte.
        self._byte_us[step] = c.count[step] * US_PER_BYTE_AT_1_GBS / net.bandwidth_gbs[link]
        self._paces = np.full((len(c.op), PACE), -1, dtype=np.int64)
        self._paces[into, FROM] = step
        self._paces[:, HOLD] = 0
        position = np.arange(len(c.op)) - c.start[c.block]
        offset = np.zeros(len(c.op), dtype=np.int64)
        offset[step] = (t.dst[order] - t.src[order]) % program.nranks
        # The order of sends that ask at the same time is that of emit.timing.predict.
        self._paces[:, TIE] = (position * program.nranks + offset) * len(c.op) + np.arange(len(c.op))
        self.messages = 1
        links = np.zeros(len(c.connections), dtype=np.int64)
        rates = np.zeros(len(c.connections))
        for number in range(len(c.connections)):
            own_sends = np.flatnonzero(c.sends[step] == number)
            if not len(own_sends):
                continue
            links[number], rates[number] = link[own_sends[0]], net.bandwidth_gbs[link[own_sends[0]]]
            chunks_before = np.cumsum(c.count[step[own_sends]]) - c.count[step[own_sends]]
            self._paces[step[own_sends[depth:]], EMPTIED] = into[own_sends[:-depth]]
            self._paces[step[own_sends[depth:]], NEED] = chunks_before[:-depth] + 1
            in_flight = (depth + 1) * int(c.count[step[own_sends]].max())
            self.messages = max(self.messages, min(in_flight, int(c.count[step[own_sends]].sum())))
        places = [[*net.uses(int(li)).tolist(), net.nresources + int(li)] for li in links]
        self._keep_shared(places, rates, np.concatenate([net.capacity_gbs, net.bandwidth_gbs]))
        self._alpha_us = np.where(rates > 0, net.alpha_us[links] if net.nlinks else 0.0, 0.0)

    def _keep_shared(self, places: list[list[int]], rates: NDArray[np.float64], capacity: NDArray[np.float64]) -> None:
        """Keep the links and limits that their connections can fill, and the connections' rates, in this object.

        A place counts if the rates of its connections in sum are above its capacity. Rates and capacities are kept in
        kB/s.

        Args:
            places: Links and limits that each connection uses, by number.
            rates: Rate of each connection in GB/s; 0 for one without messages.
            capacity: Capacity of each link and limit in GB/s.
        """
        users: dict[int, list[int]] = {}
        for number, connection_places in enumerate(places):
            if rates[number]:
                for place in connection_places:
                    users.setdefault(place, []).append(number)
        shared_places = [
            place for place, connections in sorted(users.items()) if rates[connections].sum() > capacity[place] * SAME
        ]
        renumbered = {place: number for number, place in enumerate(shared_places)}
        self._users = [users[place] for place in shared_places]
        self._used = [[renumbered[p] for p in connection_places if p in renumbered] for connection_places in places]
        self._rates = np.round(rates * _RATE).astype(np.int64)
        capacities = [
            int(capacity[place] * _RATE) + len(users[place]) for place in shared_places
        ]  # Each rate is rounded.
        self._capacity = np.array(capacities, dtype=np.int64)

    @property
    def shared(self) -> int:
        """Return the number of links and limits that the program can fill."""
        return len(self._users)

    def predicted_us(self, chunk_bytes: float) -> float:
        """Return the predicted time in µs for chunks of `chunk_bytes` bytes, on the network as it is (not slowed)."""
        return self.predictor.time_us(chunk_bytes / self.predictor.chunk_bytes(1.0))

    def limit_ns(self, chunk_bytes: float) -> int:
        """Return a limit in ns, on the slowed network, that no wait should reach: 4 times the predicted time."""
        return int(4e3 * self.slower * self.predicted_us(chunk_bytes))

    def sheet(self, columns: Columns, chunk_bytes: float) -> Numbers:
        """Build all numbers for one size, in the layout of pace.h, as a new column.

        Args:
            columns: The columns of the program.
            chunk_bytes: Mean size of a chunk in bytes.

        Raises:
            InputError: The emulation would take more than a day.
        """
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
        sharing_connections = [number for number, connection_places in enumerate(self._used) if connection_places]
        # All that ask at one time have asked by then. A message cannot be used before α, so no time is lost.
        settle = int(alpha[sharing_connections].min()) // 2 if sharing_connections else 0
        parts = [paces.ravel(), times, rows.ravel(), used[2], places.ravel(), users[2], holds]
        head = np.zeros(len(SHEET), dtype=np.int64)
        head[:2] = len(columns.rank), settle
        head[len(SHEET) - len(parts) :] = len(SHEET) + np.cumsum([0, *map(len, parts[:-1])])
        return np.concatenate([head, *parts]).astype(np.int64)

    def read_times(self, sheet: Sequence[int] | Numbers) -> EmulatedTime:
        """Read the times that the kernel wrote to a sheet, and return them for the network as it is (not slowed)."""
        ended, due = (int(sheet[SHEET.index(name)]) / _PS / self.slower for name in ("ended", "due"))
        return EmulatedTime(ended, due)


def _rows(lists: list[list[int]]) -> tuple[Numbers, Numbers, Numbers]:
    """Return the first position and the length of each list in the third array, which joins all lists."""
    counts = np.array([len(row) for row in lists], dtype=np.int64)
    flat = np.array([x for row in lists for x in row], dtype=np.int64)
    return np.cumsum(counts) - counts, counts, flat
