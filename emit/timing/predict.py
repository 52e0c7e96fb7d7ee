"""Predicted time of a Program on a topology, in the model of time of `synth.timing.simulate`.

A step that sends holds its link for its bytes / bandwidth, and what it sends can be received α after it has left the
link. It starts when the step before it in its threadblock has ended, the step it depends on has completed, a FIFO
slot of its connection is free, and its link and what that shares with others have room. A step is one
transmission: what it receives it has as a whole before it sends any of it on (devices store and forward). Executors
cut steps of several chunks into single ones when messages are large: `split` is for that. A slot is free again when
the receiver has what is in it. Copies and sums within a rank take no time.

With an executor's costs (`topologies.costs`), those of the program's protocol, a threadblock moves no more than it can,
a message keeps links busy for the gap, all begins with the call's start, and large chunks move slice by slice.
Where several wait for one link, port or limit, the one that has waited longest goes first; a wait holds up only what
needs the same place. A connection uses the widest link of its pair of ranks; equally wide ones serve channels in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np

from emit.check.capacity import CAPACITY
from emit.check.order import report_stopped, run
from emit.columns import Columns, columns_of
from emit.findings import Findings
from emit.program import FIFO_DEPTH, Gpu, Program, ThreadBlock
from emit.timing.clock import COMPILED_FROM, MOST_TURNS, Clock
from emit.timing.slices import Passes, passes, slices_of
from synth.model.collective import Floats, Ints
from synth.model.registry import find_kind
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.arrays import positions
from topologies.costed import protocol_costs, under
from topologies.errors import InputError
from topologies.network import Network, network
from topologies.topology import Topology

_ROUNDING = 1e-9
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


class Timed(Protocol):
    """What an executor runs, on some ranks of a topology, ready to be timed at any size.

    Attributes:
        topology, group, network: where; see `Predictor`. fifo_depth: slots of a connection; None: it has no FIFO.
        nsteps, nthreadblocks, nchannels: of all ranks together; the most of a pair of ranks.
    """

    topology: Topology
    group: tuple[int, ...]
    network: Network

    @property
    def nsteps(self) -> int: ...
    @property
    def nthreadblocks(self) -> int: ...
    @property
    def nchannels(self) -> int: ...
    @property
    def fifo_depth(self) -> int | None: ...

    def chunk_bytes(self, size_bytes: float) -> float:
        """Bytes of one chunk when the message (nccl-tests' size) has `size_bytes`."""
        ...

    def time_us(self, size_bytes: float) -> float:
        """When all has ended, in µs. Raises InputError for a deadlock."""
        ...

    def times_us(self, sizes: Iterable[float]) -> Floats:
        """`time_us` of each size."""
        ...

    @classmethod
    def concurrent_us(
        cls,
        timed: Sequence[Self],
        positions: Sequence[Ints],
        chunk_bytes: Sequence[float],
        topology: Topology,
        ranks: Sequence[int],
    ) -> float:
        """When the last of several ends that begin at once, in µs.

        timed: no two on one rank. positions: of the ranks of each among `ranks`, which are the topology's. chunk_bytes:
        of a chunk of each.
        """
        ...


class Predictor:
    """A program on some ranks of a topology, ready to be timed at any size.

    Attributes:
        program, topology: as given.  group: the topology's rank of each of the program's ranks.
        network: between these ranks only; its local ranks are the program's.
        columns: the program's steps.
    """

    def __init__(  # over 60 lines: most of them say what the arguments are
        self,
        program: Program,
        topology: Topology,
        group: Sequence[int] | None = None,
        fifo_depth: int | None = None,
        split: bool = False,
        compiled_from: int = COMPILED_FROM,
        weight: Floats | None = None,
        columns: Columns | None = None,
    ) -> None:
        """
        Args:
            group: the topology's rank of each of the program's; None: 0, 1, …. fifo_depth: None: the protocol's.
            split: a step of several chunks is as many transmissions, as for large messages; else it is one.
            weight: how large each rank's chunks are beside those of the program, shape (nranks,); None: 1.
            compiled_from: transmissions executed by this process, from which on the loop runs compiled.
            columns: of the program, nothing being wrong in them; the program then need not have its steps.

        Raises InputError: a group that does not fit, two ranks that send without a link, or a program whose sends and
                receives do not pair up.
        """
        self.program, self.topology = program, topology
        topology = under(topology, program.protocol)
        self.group = place_ranks(program.nranks, topology, group)
        self.network: Network = network(topology, self.group)
        self.fifo_depth = FIFO_DEPTH[program.protocol] if fifo_depth is None else fifo_depth
        if self.fifo_depth < 1:
            raise InputError(f"fifo_depth {fifo_depth}; it must be 1 or more")
        found = Findings()
        self.columns: Columns = columns_of(program, found) if columns is None else columns
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
        self._times = times = c.transmissions() if split else np.ones_like(c.count)
        if int(times.sum()) > CAPACITY.moves:
            raise InputError(
                f"program moves {times.sum()} chunks; it must be at most {CAPACITY.moves} to be timed one by one"
            )
        self._chunks = c.count // times  # of one transmission
        self._weight = np.ones(program.nranks) if weight is None else weight
        self._ends = np.array(c.connections, dtype=np.int64).reshape(-1, 3)
        self._link = assign_links(self.network, self._ends, topology)
        sending = np.flatnonzero(c.sends >= 0)
        link_gbs = block_rates(topology, self.network.bandwidth_gbs)
        rate = link_gbs[self._link[c.sends[sending]]]
        self._hold_us = np.zeros(len(times))  # a byte a chunk
        chunks = self._chunks[sending] * self._weight[c.rank[c.block[sending]]]
        self._hold_us[sending] = chunks * US_PER_BYTE_AT_1_GBS / rate
        self._link_gbs, self._compiled_from = link_gbs, compiled_from
        self._runs: dict[int, tuple[Passes, Clock]] = {}  # by slices

    @property
    def nsteps(self) -> int:
        return self.program.nsteps

    @property
    def nthreadblocks(self) -> int:
        return sum(len(gpu.threadblocks) for gpu in self.program.gpus)

    @property
    def nchannels(self) -> int:
        return self.program.nchannels

    def chunk_bytes(self, size_bytes: float) -> float:
        """Bytes of one chunk when the message (nccl-tests' size) has `size_bytes`."""
        p = self.program
        blocks = p.nranks if find_kind(p.collective).blocks_at_root else 1
        return float(size_bytes) / (p.nchunks_per_loop * blocks)

    def time_us(self, size_bytes: float) -> float:
        """When the last threadblock ends, in µs. Raises InputError for a deadlock."""
        return self._run(size_bytes)[0]

    @classmethod
    def concurrent_us(
        cls,
        timed: Sequence[Predictor],
        positions: Sequence[Ints],
        chunk_bytes: Sequence[float],
        topology: Topology,
        ranks: Sequence[int],
    ) -> float:
        """See `Timed`; all have the FIFO slots of the one that has fewest."""
        gpus, weight = [Gpu(0, 0, 0, ())] * len(ranks), np.ones(len(ranks))
        for one, where, size in zip(timed, positions, chunk_bytes, strict=True):
            for rank, gpu in zip(where.tolist(), one.program.gpus, strict=True):
                gpus[rank] = replace(gpu, threadblocks=[_renumbered(tb, where) for tb in gpu.threadblocks])
                weight[rank] = size
        all_ranks = replace(
            timed[0].program, collective="custom", nranks=len(ranks), nchunks_per_loop=1, gpus=gpus, root=0,
            inplace=False, outofplace=True,
        )  # fmt: skip
        slots = min(one.fifo_depth for one in timed)
        return cls(all_ranks, topology, ranks, slots, weight=weight).time_us(1.0)

    def times_us(self, sizes: Iterable[float]) -> Floats:
        """`time_us` of each size."""
        asked = list(sizes)
        return np.array([self._run(size, len(asked))[0] for size in asked], dtype=np.float64)

    def transfers(self, size_bytes: float) -> Transfers:
        """Every transmission at this size. Raises InputError for a deadlock."""
        _, start, took = self._run(size_bytes)
        c, ends, chunk_bytes = self.columns, self._ends, self.chunk_bytes(size_bytes)
        slices = self._slices(size_bytes)
        moves, number = self._runs[slices][0].moves, self._runs[slices][0].number
        step, into = c.messages()
        step, into, run = np.tile(step, slices), np.tile(into, slices), np.repeat(np.arange(slices), len(step))
        times = self._times[step]
        nth = positions(times)
        step, into, run = np.repeat(step, times), np.repeat(into, times), np.repeat(run, times)
        order = np.lexsort((nth, step, start[moves[number[run, step]] + nth]))
        step, into, run, nth = step[order], into[order], run[order], nth[order]
        begin, received = start[moves[number[run, step]] + nth], took[moves[number[run, into]] + nth]
        by = c.sends[step]
        link = self._link[by]
        end = begin + self._hold_us[step] * chunk_bytes / slices
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
            bytes=self._chunks[step] * self._weight[ends[by, 0]] * chunk_bytes / slices,
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

    def _slices(self, size_bytes: float) -> int:
        """In how many passes over its steps the program runs: one where costs are off."""
        if not self.topology.protocol:
            return 1
        return slices_of(self.program.protocol, self.chunk_bytes(size_bytes) * float(self._weight.max()))

    def _prepared(self, slices: int) -> tuple[Passes, Clock]:
        """The steps in so many passes, and their clock."""
        if slices not in self._runs:
            c, net, made = self.columns, self.network, passes(self.columns, self._times, slices)
            self._runs[slices] = (
                made,
                Clock(
                    start=made.start,
                    dep=made.dep,
                    sends=made.sends,
                    receives=made.receives,
                    block=made.block,
                    by_tie=made.by_tie(_by_tie(c, self._ends, self.program.nranks)),
                    link=self._link,
                    moves=made.moves,
                    alpha_us=net.alpha_us.copy(),
                    rate_gbs=self._link_gbs,
                    limits=net.uses_and_links(),
                    slots=self.fifo_depth,
                    gap_us=net.gap_us,
                    start_us=net.start_us,
                    most_turns=MOST_TURNS // slices if (self._link_gbs < net.bandwidth_gbs).any() else 1,
                    compiled_from=self._compiled_from,
                ),
            )
        return self._runs[slices]

    def _run(self, size_bytes: float, sizes: int = 0) -> tuple[float, Floats, Floats]:
        """See `Clock.run`; as many `sizes` are about to be asked for."""
        slices = self._slices(size_bytes)
        made, clock = self._prepared(slices)
        lasts_us = self._hold_us[made.step] * self.chunk_bytes(size_bytes) / slices
        time, ended, start, took = clock.run(lasts_us, int(made.moves[-1]) * sizes)
        if not ended:
            c, depth, found = self.columns, self.fifo_depth, Findings()
            report_stopped(c, run(c, depth, self.split), depth, found)
            raise InputError(f"cannot be timed: {found.reported[0].message}")
        return time, start, took


def place_ranks(n: int, topology: Topology, group: Sequence[int] | None) -> tuple[int, ...]:
    """The topology's rank of each of a program's `n`; InputError where there are not as many."""
    if group is None and n > topology.nranks:
        raise InputError(f"program has {n} ranks, {topology.name} has {topology.nranks}; it must be at most as many")
    if group is not None and len(group) != n:
        raise InputError(f"group has {len(group)} ranks, the program {n}; it must be as many")
    return tuple(range(n)) if group is None else tuple(int(rank) for rank in group)


def block_rates(topology: Topology, link_gbs: Floats) -> Floats:
    """GB/s at which one threadblock sends over links of these bandwidths: where costs are on, an equal share of it.

    Of so many shares as it takes to be no more than a threadblock moves: as many blocks then fill the link.
    """
    costs = protocol_costs(topology)
    if costs is None:
        return link_gbs.copy()
    return np.asarray(link_gbs / np.maximum(1.0, np.ceil(link_gbs / costs.threadblock_gbs - _ROUNDING)))


def assign_links(net: Network, ends: Ints, topology: Topology) -> Ints:
    """The link that each connection, a row (source, destination, channel) of `ends`, uses; InputError for none."""
    n = net.nranks
    pair = net.src * n + net.dst
    # of a pair's links the widest, then the one of least α, first
    order = np.lexsort((net.alpha_us, -net.bandwidth_gbs, pair))
    first = np.searchsorted(pair[order], ends[:, 0] * n + ends[:, 1])
    alike = np.stack([pair, net.bandwidth_gbs, net.alpha_us])[:, order]
    starts = np.flatnonzero(np.any(np.diff(alike, prepend=np.nan) != 0, axis=0))
    parallel = np.diff(starts, append=len(order))  # links that are equal
    chosen = np.empty(len(ends), dtype=np.int64)
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


def _by_tie(c: Columns, ends: Ints, nranks: int) -> Ints:
    """The steps as they go first of one age: by place, then by distance, so that not all send to one rank."""
    source, target, _ = np.vstack([ends, np.zeros(3, dtype=np.int64)])[c.sends].T  # the last row is of no connection
    return np.lexsort(((target - source) % nranks, np.arange(len(c.sends)) - c.start[c.block]))


def _places_of(c: Columns, steps: Ints) -> Ints:
    block = c.block[steps]
    return np.stack([c.rank[block], c.tb[block], steps - c.start[block]], axis=1)


def _renumbered(block: ThreadBlock, where: Ints) -> ThreadBlock:
    """The same with its ranks at other places."""
    send, recv = (int(where[peer]) if peer >= 0 else peer for peer in (block.send, block.recv))
    return replace(block, send=send, recv=recv)
