"""Predicted time of an execution plan, in the model of time of `emit.timing.predict`.

What a threadblock moves to or from another rank's memory holds the link between the two for its bytes / bandwidth, and
the block with it; it is there α after it has left. What a switch sums or multicasts takes every member's port once
(`topologies.hyperlinks`); what it has summed is multicast while more is summed, in slices. A signal takes α and holds
nothing. A port channel moves data on its own time, in the order in which it was told. Whoever reads a packet waits for
it to arrive; copies and sums within a rank take no time, nor do semaphores, barriers and nops. There is no FIFO: what a
plan waits for stands in it. Flags of packets take no time of the link (as for programs of protocol LL). A pipeline is
as many iterations as its check unrolls, whatever the size of the message.

A threadblock uses the widest link of a pair of ranks; equally wide ones serve threadblocks in turn. Where several
threadblocks release one semaphore, or several signal on one channel, they are taken in the order of one execution.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from emit.mscclpp.acts import Act, Acts, Move, Run, acts_of
from emit.mscclpp.execution import execution_order
from emit.mscclpp.memory import memory_of
from emit.mscclpp.plan import Plan, PlanGpu
from emit.mscclpp.structure import ensure_executable
from emit.timing.clock import MOST_TURNS, Clock
from emit.timing.predict import assign_links, block_rates, place_ranks
from synth.model.collective import Bools, Floats, Ints
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.arrays import pointers
from topologies.costed import under
from topologies.errors import InputError
from topologies.network import Network, network
from topologies.topology import Topology

_NONE = -1
_SLICES = 16  # of what a switch sums and multicasts, as the kernel does element by element
_FREE = 1 << 20  # transmissions in flight: no slots to run out of


class PlanPredictor:
    """A plan on some ranks of a topology, ready to be timed at any size.

    Attributes:
        plan, topology: as given.  group: the topology's rank of each of the plan's ranks.
        network: between these ranks only; its local ranks are the plan's.
    """

    def __init__(
        self, plan: Plan, topology: Topology, group: Sequence[int] | None = None, weight: Floats | None = None
    ) -> None:
        """
        Args:
            group: ranks of the topology, one for each of the plan's; None: 0, 1, ….
            weight: how large each rank's chunks are beside those of the plan, shape (nranks,); None: 1.

        Raises InputError: a group that does not fit, two ranks that meet without a link, or a plan that names what is
                not there, stops before its end, or is too large to be checked; a switch channel that no switch has.
        """
        self.plan, self.topology = plan, topology
        topology = under(topology, "LL" if plan.protocol == "LL" else "Simple")
        self.group = place_ranks(len(plan.gpus), topology, group)
        self.network: Network = network(topology, self.group)
        ensure_executable(plan, None, "cannot be timed")
        memory = memory_of(plan, None)
        try:
            steps = _Steps(acts_of(memory), _switches(plan, self.network))
        except InputError as error:
            raise InputError(f"cannot be timed: {error}") from None
        self._chunks = max(max(gpu.input_chunks, gpu.output_chunks) for gpu in plan.gpus)
        weight = np.ones(len(plan.gpus)) if weight is None else weight
        self._clock, hold_us = _clock_of(steps, self.network, topology, weight)
        self._hold_us = hold_us / memory.units  # a byte of a chunk

    @property
    def nsteps(self) -> int:
        return self.plan.nops

    @property
    def nthreadblocks(self) -> int:
        return sum(len(gpu.blocks) for gpu in self.plan.gpus)

    @property
    def nchannels(self) -> int:
        pairs = Counter((r, p) for r, gpu in enumerate(self.plan.gpus) for peers in gpu.peers.values() for p in peers)
        return max(pairs.values(), default=0)

    @property
    def fifo_depth(self) -> None:
        return None

    def chunk_bytes(self, size_bytes: float) -> float:
        """Bytes of one chunk when the message (nccl-tests' size) has `size_bytes`."""
        return float(size_bytes) / self._chunks

    def time_us(self, size_bytes: float) -> float:
        """When all has ended and arrived, in µs."""
        time, ended, _, _ = self._clock.run(self._hold_us * self.chunk_bytes(size_bytes))
        if not ended:  # not after an execution went through
            raise InputError("cannot be timed: it stops before its end; synth verify says where")
        return time

    def times_us(self, sizes: Iterable[float]) -> Floats:
        """`time_us` of each size."""
        return np.array([self.time_us(size) for size in sizes], dtype=np.float64)

    @classmethod
    def concurrent_us(
        cls,
        timed: Sequence[PlanPredictor],
        positions: Sequence[Ints],
        chunk_bytes: Sequence[float],
        topology: Topology,
        ranks: Sequence[int],
    ) -> float:
        """See `Timed`."""
        gpus, weight = [PlanGpu(1, 1, 0, peers={"memory": [], "port": []}) for _ in ranks], np.ones(len(ranks))
        for one, where, size in zip(timed, positions, chunk_bytes, strict=True):
            for rank, gpu in zip(where.tolist(), one.plan.gpus, strict=True):
                peers = {kind: where[ends].tolist() for kind, ends in gpu.peers.items()}
                buffers = [buffer._replace(rank=int(where[buffer.rank])) for buffer in gpu.buffers]
                gpus[rank], weight[rank] = replace(gpu, peers=peers, buffers=buffers), size
        # what is said of sizes, and of halves of scratch, is each plan's own, and takes no time
        protocol = max((one.plan.protocol for one in timed), key=lambda name: name == "LL")
        plan = Plan("concurrent", "concurrent", protocol, False, gpus)
        predictor = cls(plan, topology, ranks, weight)
        return predictor.time_us(predictor._chunks)


class _Steps:
    """The acts of a plan as steps that a clock takes.

    A step waits for one other step, and may send. Blocks are the plan's threadblocks, then the port channels' own
    sides, then one for each message, whose only step receives it: whoever waits for the message waits for that step.

    Attributes:
        blocks: the steps of each, by number.  dep, sends, receives: of each step, `_NONE` where none.
        cells: of each step, that it moves.  lane: of each message: (source, destination, threadblock); `signal`: of
            each, whether it is one; `over`: the hyperlink of each that goes through a switch to or from many, else −1.
    """

    def __init__(self, made: Acts, switches: dict[tuple[bool, int, frozenset[int]], int]) -> None:
        """switches: see `_switches`."""
        self.made, self.switches = made, switches
        nblocks = len(made.acts)
        ports = sorted({end for end, (_, kind, _) in enumerate(made.ends) if kind == "port"})
        self.port = {end: nblocks + n for n, end in enumerate(ports)}
        self.blocks: list[list[int]] = [[] for _ in range(nblocks + len(ports))]
        self.dep: list[int] = []
        self.sends: list[int] = []
        self.receives: list[int] = []
        self.cells: list[float] = []
        self.lane: list[tuple[int, int, int]] = []
        self.signal: list[bool] = []
        self.over: list[int] = []
        self._signals: list[deque[int]] = [deque() for _ in made.ends]
        self._held: list[deque[int]] = [deque([_NONE] * held) for _, _, held in made.semaphores]
        self._storing: dict[int, int] = {}  # of threadblocks, by number, what multicasts beside what it sums
        self._packets: dict[int, int] = {}  # cell → the step with which its packet is there
        self._met: dict[int, list[int]] = defaultdict(list)
        for block, act in execution_order(made):
            self._do(block, act)

    def _do(self, block: int, act: Act) -> None:
        if act.kind == "wait":
            for end in act.ids:
                self._add(block, self._signals[end].popleft())
        elif act.kind == "acquire":
            for number in act.ids:
                self._add(block, self._held[number].popleft())
        elif act.kind == "release":
            for number in act.ids:
                self._held[number].append(self._last(block))
        elif act.kind == "signal":
            for end in act.ids:
                self._say(block, end)
        elif act.kind == "data":
            self._data(block, act)
        elif act.kind == "barrier":
            self._meet(block, act.ids[0])

    def _meet(self, block: int, barrier: int) -> None:
        """All that meet wait for what the others did before; they come here one after another."""
        here = self._met[barrier]
        here.append(block)
        if len(here) < self.made.barriers[barrier][2]:
            return
        last = [self._last(other) for other in here]
        for n, other in enumerate(here):
            for step in last[:n] + last[n + 1 :]:
                self._add(other, step)
        here.clear()

    def _last(self, block: int) -> int:
        return self.blocks[block][-1] if self.blocks[block] else _NONE

    def _add(self, block: int, dep: int = _NONE, sends: int = _NONE, receives: int = _NONE, cells: float = 0) -> None:
        """A step at the end of a block; none where it would only wait for nothing."""
        if (dep, sends, receives) == (_NONE, _NONE, _NONE):
            return
        self.blocks[block].append(len(self.dep))
        for column, value in zip((self.dep, self.sends, self.receives), (dep, sends, receives), strict=True):
            column.append(value)
        self.cells.append(cells)

    def _send(
        self, block: int, source: int, target: int, cells: float, *, signal: bool = False, over: int = _NONE
    ) -> int:
        """A message by a step of the block; the step with which it is there."""
        number = len(self.lane)
        self.lane.append((source, target, block))
        self.signal.append(signal)
        self.over.append(over)
        self._add(block, sends=number, cells=cells)
        self.blocks.append([])
        self._add(len(self.blocks) - 1, receives=number)
        return len(self.dep) - 1

    def _say(self, block: int, end: int) -> None:
        actor = self._hand_over(block, end) if end in self.port else block
        there = self.made.across[end]
        if there >= 0:
            step = self._send(actor, self.made.ends[end][0], self.made.ends[there][0], 0, signal=True)
            self._signals[there].append(step)

    def _hand_over(self, block: int, end: int) -> int:
        """A port channel's own side, which goes on when the block has come here."""
        self._add(self.port[end], self._last(block))
        return self.port[end]

    def _data(self, block: int, act: Act) -> None:
        if act.flagged:
            cells = {cell for move in act.moves for cell in move.packets_read()}
            for step in sorted({self._packets[cell] for cell in cells}):
                self._add(block, step)
        for n, move in enumerate(act.moves):
            if act.name in ("glres", "gstore"):
                self._in_switch(block, move)
                continue
            if not act.ports:
                self._move(block, block, move, move.targets)
                continue
            for k, target in enumerate(move.targets):
                self._move(self._hand_over(block, act.ports[n + k]), block, move, (target,))
                if act.name in ("pws", "pwsf"):
                    self._say(block, act.ports[n + k])

    def _in_switch(self, block: int, move: Move) -> None:
        """What the switch sums for this rank and multicasts: what it has summed while it sums what comes next."""
        rank = self.made.rank[block]
        back = self._over(rank, move.sources, forth=False) if len(move.sources) > 1 else _NONE
        forth = self._over(rank, move.targets, forth=True)
        if back == _NONE:
            self._send(block, rank, rank, move.length, over=forth)
            return
        if block not in self._storing:
            self._storing[block] = len(self.blocks)
            self.blocks.append([])
        stores = self._storing[block]
        for _ in range(_SLICES):
            summed = self._send(block, rank, rank, move.length / _SLICES, over=back)
            self._add(stores, summed)
            self._send(stores, rank, rank, move.length / _SLICES, over=forth)
        self._add(block, self._last(stores))

    def _over(self, rank: int, runs: Sequence[Run], *, forth: bool) -> int:
        """The hyperlink for a rank that multicasts to these, or reads their sum; InputError where there is none."""
        members = frozenset(run.rank for run in runs)
        if (forth, rank, members) not in self.switches:
            word, where = "multicasts to" if forth else "reduces over", ", ".join(map(str, sorted(members)))
            raise InputError(f"no switch of the topology {word} ranks {where}, and no others, for rank {rank}")
        return self.switches[forth, rank, members]

    def _move(self, actor: int, block: int, move: Move, targets: Sequence[Run]) -> None:
        rank = self.made.rank[block]
        for run in move.sources:
            if run.rank != rank:
                self._add(actor, self._send(actor, run.rank, rank, move.length))
        for run in targets:
            there = self._last(actor)
            if run.rank != rank:
                there = self._send(actor, rank, run.rank, move.length)
            if run.packet:
                self._packets.update(dict.fromkeys(range(run.cell, run.cell + 2 * move.length), there))


def _switches(plan: Plan, net: Network) -> dict[tuple[bool, int, frozenset[int]], int]:
    """The hyperlink for (whether it multicasts, one rank, all members); paced where a plan has both directions."""
    h = net.hyperlinks
    if h is None:
        return {}
    both = any(op.name == "glres" for *_, op in plan.ops())
    return {
        (bool(h.multicast[i]), int(h.one[i]), frozenset(h.members(i).tolist())): i
        for i in np.flatnonzero(h.paced == both).tolist()
    }


def _clock_of(steps: _Steps, net: Network, topology: Topology, weight: Floats) -> tuple[Clock, Floats]:
    """The clock of the steps, and of each step the µs for a byte in every cell that it moves"""
    order = np.array([step for block in steps.blocks for step in block], dtype=np.int64)
    number = np.full(len(order) + 1, _NONE, dtype=np.int64)  # the last entry is of no step
    number[order] = np.arange(len(order))
    lengths = np.array([len(block) for block in steps.blocks], dtype=np.int64)
    start = pointers(lengths)
    block = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    dep, sends, receives = (np.array(x, dtype=np.int64)[order] for x in (steps.dep, steps.sends, steps.receives))
    cells = np.array(steps.cells, dtype=np.float64)[order]
    lanes = np.array(steps.lane, dtype=np.int64).reshape(-1, 3)
    signal = np.array(steps.signal, dtype=bool)
    link, alpha, rate = _links(lanes, signal, np.array(steps.over, dtype=np.int64), net, topology)
    link_gbs, rate = rate, block_rates(topology, rate)
    holds = np.ones(len(rate))  # what is taken of limits, for each GB/s
    holds[: net.ncarriers] = net.carriers.holds
    gap = np.append(net.carriers.gap_us, np.zeros(len(alpha) - net.ncarriers)) if len(net.gap_us) else None
    sending = sends >= 0
    hold_us = np.zeros(len(order))
    moved = cells[sending] * weight[lanes[sends[sending], 0]]
    hold_us[sending] = moved * US_PER_BYTE_AT_1_GBS / rate[link[sends[sending]]]
    ends = np.vstack([lanes, np.zeros(3, dtype=np.int64)])[sends]
    # as for programs: by place, then by distance, so that not all send to one rank
    by_tie = np.lexsort(((ends[:, 1] - ends[:, 0]) % net.nranks, np.arange(len(order)) - start[block]))
    uses_ptr, uses, capacity = net.uses_and_links(hyperlinks=True)
    uses_ptr = np.append(uses_ptr, np.full(len(alpha) - net.ncarriers, uses_ptr[-1]))  # signals take part in nothing
    clock = Clock(
        start=start,
        dep=number[dep],
        sends=sends,
        receives=receives,
        block=block,
        by_tie=by_tie,
        link=link,
        moves=np.arange(len(order) + 1, dtype=np.int64),
        alpha_us=alpha,
        rate_gbs=rate * holds,
        limits=(uses_ptr, uses, capacity),
        slots=_FREE,
        gap_us=gap,
        start_us=net.start_us,
        most_turns=MOST_TURNS if (rate < link_gbs).any() else 1,
    )
    return clock, hold_us


def _links(lanes: Ints, signal: Bools, over: Ints, net: Network, topology: Topology) -> tuple[Ints, Floats, Floats]:
    """The link of each message, and α and bandwidth of all: links, hyperlinks, then one for each pair that signals.

    A pair that is linked one way only has that link's α in both: memory that can be written can be signalled from.
    """
    link = np.full(len(lanes), _NONE, dtype=np.int64)
    # one connection for each threadblock and pair, however many messages it carries
    plain = ~signal & (over < 0)
    data, which = np.unique(lanes[plain], axis=0, return_inverse=True)
    link[plain] = assign_links(net, data, topology)[which.reshape(-1)]
    link[over >= 0] = net.nlinks + over[over >= 0]
    pairs, which = np.unique(lanes[signal, :2], axis=0, return_inverse=True)
    linked = np.zeros((net.nranks, net.nranks), dtype=bool)
    linked[net.src, net.dst] = True
    forward = linked[pairs[:, 0], pairs[:, 1]] | ~linked[pairs[:, 1], pairs[:, 0]]
    ways = np.where(forward[:, None], pairs, pairs[:, ::-1])
    of_pairs = assign_links(net, np.column_stack([ways, np.zeros(len(ways), dtype=np.int64)]), topology)
    link[signal] = net.ncarriers + which.reshape(-1)
    alpha = np.concatenate([net.carriers.alpha_us, net.alpha_us[of_pairs]])
    return link, alpha, np.concatenate([net.carriers.bandwidth_gbs, net.bandwidth_gbs[of_pairs]])
