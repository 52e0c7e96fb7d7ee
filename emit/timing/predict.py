"""Predicted time of a Program on a topology, in the model of time of `synth.timing.simulate`.

A step that sends holds its link for its bytes / bandwidth, and what it sends can be received α after it has left the
link. It starts when the step before it in its threadblock has ended, the step it depends on has completed, a FIFO
slot of its connection is free, and its link and what that shares with others have room. A step is one
transmission: what it receives it has as a whole before it sends any of it on (devices store and forward). Executors
cut steps of several chunks into single ones when messages are large: `split` is for that. A slot is free again when
the receiver has what is in it. Copies and sums within a rank take no time.

Where several wait for one link, port or limit, the one that has waited longest goes first. A connection uses the
widest link of its pair of ranks; links equally wide serve its channels in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emit.check.capacity import CAPACITY
from emit.check.order import report_stopped, run
from emit.columns import Columns, columns_of
from emit.findings import Findings
from emit.program import FIFO_DEPTH, Program
from emit.timing.loop import execute
from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner
from synth.model.registry import find_kind
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.arrays import pointers, positions
from topologies.errors import InputError
from topologies.network import Network, network
from topologies.topology import Topology

COMPILED_FROM = 100_000  # transmissions executed by this process from which on loading the compiled loop pays

# What is wrong with a result or with memory does not matter to the clock.
_HARMLESS = frozenset({"overrun", "race", "inconsistent"})


@dataclass(frozen=True, eq=False)
class Transfers:
    """All transmissions of a program at one size, in order of their start (then of their place).

    Attributes:
        src, dst, channel: int, shape (n,): the program's ranks.
        link: int, shape (n,): of `Predictor.network`.
        start_us, end_us: float: when it takes and leaves the link. arrive_us: end_us + α.
        received_us: float: when the receiver has taken it out of its slot.
        bytes: float. count: int: chunks (1 each where steps are split).
        step, into: int: the step that sends and the one that receives, numbered in document order.
        sender, receiver: int, shape (n, 3): (rank, threadblock, position) of these.
        src_buffer, src_offset: int: the cells sent, as code (0 i, 1 o, 2 s) and chunk: those that the step reads,
            or, of an rcs or rrcs, those that it writes.
        dst_buffer, dst_offset: int: the cells that the receiving step writes; -1 where it only sends on (rrs).
    """

    src: Ints
    dst: Ints
    channel: Ints
    link: Ints
    start_us: Floats
    end_us: Floats
    arrive_us: Floats
    received_us: Floats
    bytes: Floats
    count: Ints
    step: Ints
    into: Ints
    sender: Ints
    receiver: Ints
    src_buffer: Ints
    src_offset: Ints
    dst_buffer: Ints
    dst_offset: Ints

    def __len__(self) -> int:
        return len(self.src)


class Predictor:
    """A program on some ranks of a topology, ready to be timed at any size.

    Attributes:
        program, topology: as given.  group: the topology's rank of each of the program's ranks.
        network: between these ranks only; its local ranks are the program's.
        columns: the program's steps.
    """

    def __init__(
        self,
        program: Program,
        topology: Topology,
        group: Sequence[int] | None = None,
        fifo_depth: int | None = None,
        split: bool = False,
        compiled_from: int = COMPILED_FROM,
    ) -> None:
        """
        Args:
            group: ranks of the topology, one for each of the program's; None: 0, 1, ….
            fifo_depth: slots of a connection; None: the protocol's.
            split: a step of several chunks is as many transmissions, as for large messages; else it is one.
            compiled_from: transmissions executed by this process, from which on the loop runs compiled.

        Raises InputError: a group that does not fit, two ranks that send without a link, or a program whose sends and
                receives do not pair up.
        """
        self.program, self.topology = program, topology
        self.group = _group(program, topology, group)
        self.network: Network = network(topology, self.group)
        self.fifo_depth = FIFO_DEPTH[program.protocol] if fifo_depth is None else fifo_depth
        if self.fifo_depth < 1:
            raise InputError(f"fifo_depth {fifo_depth}; it must be 1 or more")
        found = Findings()
        self.columns: Columns = columns_of(program, found)
        for finding in found.reported:
            if finding.kind not in _HARMLESS:
                raise InputError(f"cannot be timed: {finding.kind}: {finding.message}")
        c = self.columns
        for bad in np.flatnonzero(((c.sends >= 0) | (c.receives >= 0)) & (c.count < 1)).tolist():
            rank, tb, position = c.place(bad)
            raise InputError(
                f"cannot be timed: rank {rank} tb {tb} step {position}: count {c.count[bad]}; it must be 1 or more"
            )
        self.split = split
        times = c.transmissions() if split else np.ones(len(c.count), dtype=np.int64)
        if int(times.sum()) > CAPACITY.moves:
            raise InputError(
                f"program moves {times.sum()} chunks; it must be at most {CAPACITY.moves} to be timed one by one"
            )
        self._chunks = c.count // times  # of one transmission
        self._moves = pointers(times)
        self._ends = np.array(c.connections, dtype=np.int64).reshape(-1, 3)
        self._link = _links(self.network, self._ends, topology)
        link_of_step = self._link[c.sends] if len(self._link) else np.zeros(len(c.sends), dtype=np.int64)
        hold = self._chunks * US_PER_BYTE_AT_1_GBS
        if self.network.nlinks:
            hold = hold / self.network.bandwidth_gbs[link_of_step]
        self._hold_us = np.where(c.sends >= 0, hold, 0.0)  # a byte a chunk
        ties = _ties(c, self._ends, program.nranks)
        self._fixed = [c.start, c.dep, c.sends, c.receives, c.block, ties, self._link, self._moves]
        self._net = _uses_of_links(self.network)
        self._compiled_from = compiled_from
        self._lists: tuple[list[Any], list[Any]] | None = None  # the same for Python's loop

    def chunk_bytes(self, size_bytes: float) -> float:
        """Bytes of one chunk when the message (nccl-tests' size) has `size_bytes`."""
        p = self.program
        blocks = p.nranks if find_kind(p.collective).blocks_at_root else 1
        return float(size_bytes) / (p.nchunks_per_loop * blocks)

    def time_us(self, size_bytes: float) -> float:
        """When the last threadblock ends, in µs. Raises InputError for a deadlock."""
        return self._run(size_bytes)[0]

    def times_us(self, sizes: Iterable[float]) -> Floats:
        """`time_us` of each size."""
        asked = list(sizes)
        ahead = int(self._moves[-1]) * len(asked)
        return np.array([self._run(size, ahead)[0] for size in asked], dtype=np.float64)

    def transfers(self, size_bytes: float) -> Transfers:
        """Every transmission at this size. Raises InputError for a deadlock."""
        _, start, took = self._run(size_bytes)
        c, ends = self.columns, self._ends
        step, into = c.messages()
        times = np.diff(self._moves)[step]
        nth = positions(times)
        step, into = np.repeat(step, times), np.repeat(into, times)
        order = np.lexsort((nth, step, start[self._moves[step] + nth]))
        step, into, nth = step[order], into[order], nth[order]
        begin, received = start[self._moves[step] + nth], took[self._moves[into] + nth]
        by = c.sends[step]
        link = self._link[by]
        end = begin + self._hold_us[step] * self.chunk_bytes(size_bytes)
        alpha = self.network.alpha_us[link]
        reads = c.is_op(frozenset({"s", "rrs"}))[step]
        writes = ~c.is_op(frozenset({"rrs"}))[into]
        return Transfers(
            src=ends[by, 0],
            dst=ends[by, 1],
            channel=ends[by, 2],
            link=link,
            start_us=begin,
            end_us=end,
            arrive_us=end + alpha,
            received_us=received,
            bytes=np.asarray(self._chunks[step] * self.chunk_bytes(size_bytes), dtype=np.float64),
            count=self._chunks[step],
            step=step,
            into=into,
            sender=_places_of(c, step),
            receiver=_places_of(c, into),
            src_buffer=np.where(reads, c.src[step], c.dst[step]),
            src_offset=np.where(reads, c.src_at[step], c.dst_at[step]) + nth,
            dst_buffer=np.where(writes, c.dst[into], -1),
            dst_offset=np.where(writes, c.dst_at[into] + nth, -1),
        )

    def _run(self, size_bytes: float, ahead: int = 0) -> tuple[float, Floats, Floats]:
        """The time, and of each transmission when it took its link and when it was received (0 where not so).

        `ahead`: how many are about to be executed for other sizes too.
        """
        global _executed
        nmoves = int(self._moves[-1])
        _executed += nmoves
        runner = Runner(interpreted=_executed + ahead < self._compiled_from)
        fixed, net = self._fixed, self._net
        if runner.interpreted:
            self._lists = self._lists or (runner.columns(*fixed), runner.columns(*net))
            fixed, net = self._lists
        lasts_us = self._hold_us * self.chunk_bytes(size_bytes)
        lasts, start, took = runner.columns(lasts_us, np.zeros(nmoves), np.zeros(nmoves))
        time, ended = runner(execute, *fixed, lasts, *net, self.fifo_depth, len(self._link), start, took)
        if ended < len(lasts):
            found = Findings()
            stopped = run(self.columns, self.fifo_depth, self.split)
            report_stopped(self.columns, stopped, self.fifo_depth, found)
            raise InputError(f"cannot be timed: {found.reported[0].message}")
        return float(time), np.asarray(start), np.asarray(took)


_executed = 0


def _group(program: Program, topology: Topology, group: Sequence[int] | None) -> tuple[int, ...]:
    if group is None:
        if program.nranks > topology.nranks:
            raise InputError(
                f"program has {program.nranks} ranks, {topology.name} has {topology.nranks}; it must be at most as many"
            )
        return tuple(range(program.nranks))
    if len(group) != program.nranks:
        raise InputError(f"group has {len(group)} ranks, the program {program.nranks}; it must be as many")
    return tuple(int(rank) for rank in group)


def _links(net: Network, ends: Ints, topology: Topology) -> Ints:
    """The link that each connection uses."""
    n = net.nranks
    pair = net.src * n + net.dst
    # of a pair's links the widest, then the one of least α, first
    order = np.lexsort((net.alpha_us, -net.bandwidth_gbs, pair))
    first = np.searchsorted(pair[order], ends[:, 0] * n + ends[:, 1])
    chosen = np.full(len(ends), -1, dtype=np.int64)
    columns = (pair[order], net.bandwidth_gbs[order], net.alpha_us[order])
    starts = np.flatnonzero(np.any([np.append(True, np.diff(column) != 0) for column in columns], axis=0))
    parallel = np.diff(np.append(starts, len(order)))  # links that are equal
    turns: dict[int, int] = {}
    for number in np.lexsort((ends[:, 2], ends[:, 1], ends[:, 0])).tolist():
        source, target, _ = ends[number].tolist()
        low = int(first[number])
        if low == len(order) or pair[order[low]] != source * n + target:
            there = net.ranks[[source, target]].tolist()
            where = "" if there == [source, target] else f", where they are ranks {there[0]} and {there[1]}"
            raise InputError(
                f"rank {source} sends to rank {target}, which has no link from it in {topology.name}{where};"
                " it must be a program for this network, or other ranks of it (--group)"
            )
        turn = turns[low] = turns.get(low, -1) + 1
        chosen[number] = order[low + turn % parallel[np.searchsorted(starts, low)]]
    return chosen


def _uses_of_links(net: Network) -> list[Any]:
    """α and rate of links, what each takes part in (its resources and itself), and the capacity of that."""
    uses = np.insert(net.uses_idx, net.uses_ptr[1:], net.nresources + np.arange(net.nlinks))
    capacity = np.concatenate([net.capacity_gbs, net.bandwidth_gbs])
    return [net.alpha_us.copy(), net.bandwidth_gbs.copy(), pointers(np.diff(net.uses_ptr) + 1), uses, capacity]


def _ties(c: Columns, ends: Ints, nranks: int) -> Ints:
    """Who goes first, as a permutation of the steps: by place, then by distance, so that not all send to one rank."""
    nsteps = len(c.op)
    position = np.arange(nsteps) - c.start[c.block]
    away = np.zeros(nsteps, dtype=np.int64)
    if len(ends):
        away = np.where(c.sends >= 0, (ends[c.sends, 1] - ends[c.sends, 0]) % nranks, 0)
    tie = np.empty(nsteps, dtype=np.int64)
    tie[np.lexsort((np.arange(nsteps), away, position))] = np.arange(nsteps)
    return tie


def _places_of(c: Columns, steps: Ints) -> Ints:
    block = c.block[steps]
    return np.stack([c.rank[block], c.tb[block], steps - c.start[block]], axis=1)
