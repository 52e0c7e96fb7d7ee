"""Time programs and plans: steps with links, which one clock runs at any message size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from emit.check.order import report_stopped, run
from emit.columns import Columns
from emit.findings import Findings
from emit.program import FREE_SLOTS
from emit.timing.clock import COMPILED_FROM, MOST_TURNS, ProgramClock
from emit.timing.links import MessageLinks, block_rates, place_ranks, program_network
from emit.timing.slices import Passes, passes
from synth.model.collective import Floats, Ints
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.costed import with_protocol
from topologies.errors import InputError
from topologies.network import Network
from topologies.topology import Topology


@dataclass(frozen=True, eq=False)
class TimedSteps:
    """The steps of a program or a plan with the links that their messages use.

    Attributes:
        columns: The steps; only their order, waits and connections matter.
        chunks: Chunks of each step, float, shape (steps,).
        ends: (source, destination, channel) of each connection, int, shape (connections, 3).
        link: Link of each connection, int, shape (connections,).
        links: The links.
        weight: Bytes of each rank's chunks relative to the program's chunks, shape (nranks,).
    """

    columns: Columns
    chunks: Floats
    ends: Ints
    link: Ints
    links: MessageLinks
    weight: Floats


class TimedProgram(ABC):
    """An executable object (a program or a plan) on some ranks of a topology, ready to be timed at any size.

    Attributes:
        topology: The topology.
        group: The topology's rank of each rank of the program.
        network: The network between these ranks; its local ranks are the program's.
        columns: Steps of the program; those of a plan state only who sends, receives and waits.
    """

    def __init__(self, topology: Topology, protocol: str, nranks: int, group: Sequence[int] | None) -> None:
        """Check that a program of `nranks` ranks fits the topology.

        Raises:
            InputError: The group does not fit.
        """
        self.topology = topology
        self._costed = with_protocol(topology, protocol)
        self.group = place_ranks(nranks, self._costed, group)
        self.network: Network = program_network(self._costed, self.group)

    def _take_steps(
        self, steps: TimedSteps, slots: int, compiled_from: int = COMPILED_FROM, most_turns: int = MOST_TURNS
    ) -> None:
        """Prepare steps for timing: set `columns` and what a run needs, and drop clocks of earlier steps.

        Args:
            steps: The steps.
            slots: Transmissions in flight on a connection before the sender waits.
            compiled_from: Number of transmissions executed by this process from which on the loop runs compiled.
            most_turns: Largest number of turns in which a transmission takes a link that it shares.
        """
        c = self.columns = steps.columns
        self._steps, self._slots, self._compiled_from, self._most_turns = steps, slots, compiled_from, most_turns
        sending = np.flatnonzero(c.sends >= 0)
        self._rate_gbs = block_rates(self._costed, steps.links.bandwidth_gbs)
        gap_us = steps.links.gap_us
        if not self.has_fifo and gap_us is not None and len(gap_us):
            # In a plan, no threadblock moves what goes over a network: its NIC reads the data itself.
            self._rate_gbs = np.where(gap_us > 0, steps.links.bandwidth_gbs, self._rate_gbs)
        self._hold_us = np.zeros(len(c.sends))  # for chunks of one byte
        connection = c.sends[sending]
        chunks = steps.chunks[sending] * steps.weight[steps.ends[connection, 0]]
        self._hold_us[sending] = chunks * US_PER_BYTE_AT_1_GBS / self._rate_gbs[steps.link[connection]]
        self._runs: dict[int, tuple[Passes, ProgramClock]] = {}  # by slices

    @property
    def has_fifo(self) -> bool:
        """Return whether messages go through FIFO slots, as in MSCCL's executors; plans for MSCCL++ have none."""
        return self._slots != FREE_SLOTS

    @property
    @abstractmethod
    def nsteps(self) -> int:
        """Return the number of steps of all ranks."""

    @property
    @abstractmethod
    def nthreadblocks(self) -> int:
        """Return the number of threadblocks of all ranks."""

    @property
    @abstractmethod
    def nchannels(self) -> int:
        """Return the largest number of channels of a pair of ranks."""

    @property
    @abstractmethod
    def fifo_depth(self) -> int | None:
        """Return the number of FIFO slots of a connection; None if there is no FIFO."""

    @abstractmethod
    def chunk_bytes(self, size_bytes: float) -> float:
        """Return the bytes of one chunk for a message of `size_bytes` (as nccl-tests counts sizes)."""

    @classmethod
    @abstractmethod
    def concurrent_us(
        cls,
        timed: Sequence[Self],
        positions: Sequence[Ints],
        chunk_bytes: Sequence[float],
        topology: Topology,
        ranks: Sequence[int],
    ) -> float:
        """Return the time when the last of the programs that begin simultaneously has ended, in µs.

        Args:
            timed: The programs; no two use the same rank.
            positions: For each program, the position in `ranks` of each of its ranks.
            chunk_bytes: Bytes of a chunk of each program (see `chunk_bytes`).
            topology: The topology.
            ranks: Ranks of the topology that the programs use.

        Raises:
            InputError: Two ranks send without a link, or a program deadlocks.
        """

    def time_us(self, size_bytes: float) -> float:
        """Return the time when everything has ended and arrived, in µs, for a message of `size_bytes` as in nccl-tests.

        Raises:
            InputError: The program deadlocks.
        """
        return self._run(size_bytes)[0]

    def times_us(self, sizes: Iterable[float]) -> Floats:
        """Return `time_us` of each size (bytes, as in nccl-tests), in µs, float, shape (sizes,).

        Raises:
            InputError: The program deadlocks.
        """
        size_list = list(sizes)
        return np.array([self._run(size, len(size_list))[0] for size in size_list], dtype=np.float64)

    def _slices(self, size_bytes: float) -> int:  # noqa: ARG002 - programs need it
        """Return the number of passes in which the steps run at a message size: 1, unless a subclass has slices."""
        return 1

    def _prepared(self, slices: int) -> tuple[Passes, ProgramClock]:
        """Return the steps, repeated for so many slices, and their clock, both built once for each number."""
        if slices not in self._runs:
            steps, links = self._steps, self._steps.links
            repeated = passes(steps.columns, slices)
            shares_links = bool((self._rate_gbs < links.bandwidth_gbs).any())
            clock = ProgramClock(
                repeated,
                repeated.by_tie(_by_tie(steps.columns, steps.ends, self.network.nranks)),
                steps.link,
                links,
                self._rate_gbs,
                self._slots,
                start_us=self.network.start_us,
                most_turns=self._most_turns // slices if shares_links else 1,
                compiled_from=self._compiled_from,
            )
            self._runs[slices] = repeated, clock
        return self._runs[slices]

    def _run(self, size_bytes: float, sizes: int = 0) -> tuple[float, Floats, Floats]:
        """Run the steps at one size; `sizes` is how many sizes are about to be run.

        Returns:
            The time in µs when the last step ended and its data arrived; the time in µs when each repeated step took
            its link; and the time when it had received (0 for a step that does not send or receive).

        Raises:
            InputError: The program deadlocks.
        """
        slices = self._slices(size_bytes)
        repeated, clock = self._prepared(slices)
        lasts_us = self._hold_us[repeated.step] * self.chunk_bytes(size_bytes) / slices
        time, ended, start, took = clock.run(lasts_us, len(repeated.step) * sizes)
        if not ended:
            c, depth, findings = self.columns, self._slots, Findings()
            report_stopped(c, run(c, depth, split=False), depth, findings)
            raise InputError(f"cannot be timed: {findings.reported[0].message}")
        return time, start, took


def _by_tie(c: Columns, ends: Ints, nranks: int) -> Ints:
    """Return the steps in the order in which requests of the same age are served, shape (steps,).

    The order is by position in the threadblock, then by the distance of the ranks, so that not all send to one rank.

    Args:
        c: The steps.
        ends: (source, destination, channel) of each connection, shape (connections, 3).
        nranks: Number of ranks.
    """
    source, target, _ = np.vstack([ends, np.zeros(3, dtype=np.int64)])[
        c.sends
    ].T  # The last row stands for no connection.
    return np.lexsort(((target - source) % nranks, np.arange(len(c.sends)) - c.start[c.block]))
