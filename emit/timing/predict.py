"""Predicted time of a Program on a topology, in the model of time of `synth.timing.simulate`.

A step that sends holds its link for its bytes / bandwidth, and what it sends can be received α after it has left the
link. It starts when the step before it in its threadblock has ended, the step it depends on has completed, a FIFO
slot of its connection is free, and its link and what that shares with others have room. A step is one
transmission: what it receives it has as a whole before it sends any of it on (devices store and forward). Executors
cut steps of several chunks into single ones when messages are large: `split` is for that. A slot is free again when
the receiver has what is in it. Copies and sums within a rank take no time.

Where several wait for one link, port or limit, the one that has waited longest goes first; a wait holds up only what
needs the same place. A connection uses the widest link of its pair of ranks; equally wide ones serve channels in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np

from emit.check.capacity import CAPACITY
from emit.check.order import report_stopped, run
from emit.columns import Columns, columns_of
from emit.findings import Findings
from emit.program import FIFO_DEPTH, Program
from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner
from synth.model.registry import find_kind
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.arrays import pointers, positions
from topologies.errors import InputError
from topologies.network import Network, network
from topologies.topology import Topology

SAME = 1 + 1e-12  # times and sums of rates that differ by rounding only are one
COMPILED_FROM = 100_000  # transmissions executed by this process from which on loading the compiled loop pays
_executed = 0  # so far
_LEAVES, _ARRIVES = 0, 1  # events

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
        weight: Floats | None = None,
    ) -> None:
        """
        Args:
            group: ranks of the topology, one for each of the program's; None: 0, 1, ….
            fifo_depth: slots of a connection; None: the protocol's.
            split: a step of several chunks is as many transmissions, as for large messages; else it is one.
            weight: how large each rank's chunks are beside those of the program, shape (nranks,); None: 1.
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
        times = c.transmissions() if split else np.ones_like(c.count)
        if int(times.sum()) > CAPACITY.moves:
            raise InputError(
                f"program moves {times.sum()} chunks; it must be at most {CAPACITY.moves} to be timed one by one"
            )
        self._chunks = c.count // times  # of one transmission
        self._weight = np.ones(program.nranks) if weight is None else weight
        self._moves = pointers(times)
        self._ends = np.array(c.connections, dtype=np.int64).reshape(-1, 3)
        self._link = _links(self.network, self._ends, topology)
        sending = np.flatnonzero(c.sends >= 0)
        rate = self.network.bandwidth_gbs[self._link[c.sends[sending]]]
        self._hold_us = np.zeros(len(times))  # a byte a chunk
        chunks = self._chunks[sending] * self._weight[c.rank[c.block[sending]]]
        self._hold_us[sending] = chunks * US_PER_BYTE_AT_1_GBS / rate
        by_tie, net = _by_tie(c, self._ends, program.nranks), self.network
        of_program = [c.start, c.dep, c.sends, c.receives, c.block, by_tie, np.argsort(by_tie), self._link, self._moves]
        self._fixed = [*of_program, net.alpha_us.copy(), net.bandwidth_gbs.copy(), *net.uses_and_links()]
        self._lists: list[Any] = []  # the same for Python's loop, once it is asked for
        self._compiled_from = compiled_from

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
        c, ends, chunk_bytes = self.columns, self._ends, self.chunk_bytes(size_bytes)
        step, into = c.messages()
        times = np.diff(self._moves)[step]
        nth = positions(times)
        step, into = np.repeat(step, times), np.repeat(into, times)
        order = np.lexsort((nth, step, start[self._moves[step] + nth]))
        step, into, nth = step[order], into[order], nth[order]
        begin, received = start[self._moves[step] + nth], took[self._moves[into] + nth]
        by = c.sends[step]
        link = self._link[by]
        end = begin + self._hold_us[step] * chunk_bytes
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
            bytes=self._chunks[step] * self._weight[ends[by, 0]] * chunk_bytes,
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
        fixed = self._fixed
        if runner.interpreted:
            fixed = self._lists = self._lists or runner.columns(*fixed)
        lasts_us = self._hold_us * self.chunk_bytes(size_bytes)
        lasts, start, took = runner.columns(lasts_us, np.zeros(nmoves), np.zeros(nmoves))
        time, ended = runner(_execute, *fixed, self.fifo_depth, lasts, start, took)
        if ended < len(lasts):
            c, depth, found = self.columns, self.fifo_depth, Findings()
            report_stopped(c, run(c, depth, self.split), depth, found)
            raise InputError(f"cannot be timed: {found.reported[0].message}")
        return float(time), np.asarray(start), np.asarray(took)


def _group(program: Program, topology: Topology, group: Sequence[int] | None) -> tuple[int, ...]:
    n = program.nranks
    if group is None and n > topology.nranks:
        raise InputError(f"program has {n} ranks, {topology.name} has {topology.nranks}; it must be at most as many")
    if group is not None and len(group) != n:
        raise InputError(f"group has {len(group)} ranks, the program {n}; it must be as many")
    return tuple(range(n)) if group is None else tuple(int(rank) for rank in group)


def _links(net: Network, ends: Ints, topology: Topology) -> Ints:
    """The link that each connection uses."""
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


def _execute(  # over 60 lines: one loop over events, one function as Numba compiles it
    first: Any, dep: Any, sends: Any, receives: Any, block_of: Any, by_tie: Any, tie: Any, link: Any, moves: Any,
    alpha: Any, rate: Any, uses_ptr: Any, uses: Any, capacity: Any, slots: int, lasts: Any, start: Any, took: Any,
) -> tuple[float, int]:  # fmt: skip
    """Run a program; returns when its last step ended, in µs, and how many steps ended (fewer: deadlock).

    Args:
        first: the first step of every block, one more entry than blocks.
        dep, sends, receives: of every step, the step it waits for and its connections, -1 where none.
        block_of, tie: of every step; of requests of one age the smaller tie goes first. by_tie: the step of each.
        link: of every connection.
        moves: step s is the transmissions moves[s]..moves[s+1]-1, one after the other (one, where it moves nothing).
        alpha, rate: of every link. uses_ptr, uses: what it takes part in; capacity: of that, GB/s.
        slots: transmissions in flight on a connection before the sender waits.
        lasts: µs that each transmission of a step that sends holds its link.
        start, took: set for every transmission of a step that sends (when it takes its link) and of one that
            receives (when it has what came, and the slot is free again).
    """
    nblocks, nsteps = len(first) - 1, len(dep)
    at = [int(first[b]) for b in range(nblocks)]
    left = [int(moves[at[b] + 1] - moves[at[b]]) if at[b] < nsteps else 0 for b in range(nblocks)]
    done = [False] * nsteps
    waiter, beside = [-1] * nsteps, [-1] * nblocks  # blocks that wait for a step, as a chain
    sent, came, taken = [0] * len(link), [0] * len(link), [0] * len(link)
    wants_data, wants_slot = [-1] * len(link), [-1] * len(link)
    used, holders = [0.0] * len(capacity), [0] * len(capacity)
    queued, behind = [-1] * len(capacity), [-1] * nblocks  # steps that wait for a place, as a chain
    asked = [0.0] * nblocks
    events = [(0.0, 0)]
    events.pop()
    requests = [(0.0, 0)]
    requests.pop()
    todo = [nblocks - 1 - b for b in range(nblocks)]
    now, ended = 0.0, 0
    while True:
        while len(todo):
            b = todo.pop()
            s = at[b]
            while s < first[b + 1]:
                need, into, out = dep[s], receives[s], sends[s]
                if need >= 0 and not done[need]:
                    beside[b] = waiter[need]
                    waiter[need] = b
                    break
                if into >= 0 and came[into] <= taken[into]:
                    wants_data[into] = b
                    break
                if out >= 0 and sent[out] - taken[out] >= slots:
                    wants_slot[out] = b
                    break
                if into >= 0:
                    taken[into] += 1
                    took[moves[s + 1] - left[b]] = now
                    if wants_slot[into] >= 0:
                        todo.append(wants_slot[into])
                        wants_slot[into] = -1
                if out >= 0:
                    sent[out] += 1
                    asked[b] = now
                    heappush(requests, (now, tie[s]))
                    break
                left[b] -= 1
                if left[b]:
                    continue
                done[s] = True
                ended += 1
                while waiter[s] >= 0:
                    todo.append(waiter[s])
                    waiter[s] = beside[waiter[s]]
                s += 1
                if s < nsteps:
                    left[b] = moves[s + 1] - moves[s]
            at[b] = s
        while len(requests):
            _, which = heappop(requests)
            s = by_tie[which]
            l = link[sends[s]]  # noqa: E741
            full = -1
            for i in range(uses_ptr[l], uses_ptr[l + 1]):
                r = uses[i]
                if holders[r] and used[r] + rate[l] > capacity[r] * SAME:
                    full = r
                    break
            if full >= 0:
                behind[block_of[s]] = queued[full]
                queued[full] = s
                continue
            for i in range(uses_ptr[l], uses_ptr[l + 1]):
                holders[uses[i]] += 1
                used[uses[i]] += rate[l]
            start[moves[s + 1] - left[block_of[s]]] = now
            end = now + lasts[s]
            heappush(events, (end, 2 * s + _LEAVES))
            heappush(events, (end + alpha[l], 2 * s + _ARRIVES))
        if not len(events):
            return now, ended
        together = events[0][0] * SAME
        while len(events) and events[0][0] <= together:
            now, code = heappop(events)
            s = code // 2
            out = sends[s]
            if code % 2 == _ARRIVES:
                came[out] += 1
                if wants_data[out] >= 0:
                    todo.append(wants_data[out])
                    wants_data[out] = -1
                continue
            b = block_of[s]
            todo.append(b)
            left[b] -= 1
            if not left[b]:
                done[s] = True
                ended += 1
                while waiter[s] >= 0:
                    todo.append(waiter[s])
                    waiter[s] = beside[waiter[s]]
                at[b] = s + 1
                if s + 1 < nsteps:
                    left[b] = moves[s + 2] - moves[s + 1]
            for i in range(uses_ptr[link[out]], uses_ptr[link[out] + 1]):
                r = uses[i]
                holders[r] -= 1
                used[r] = used[r] - rate[link[out]] if holders[r] else 0.0
                while queued[r] >= 0:
                    freed = queued[r]
                    queued[r] = behind[block_of[freed]]
                    heappush(requests, (asked[block_of[freed]], tie[freed]))
