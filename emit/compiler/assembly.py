"""Instructions → Program: channels, threadblocks, and the dependencies between them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain, zip_longest

import numpy as np
from numpy.typing import NDArray

from emit.check.limits import check_dependency, check_steps, check_threadblocks
from emit.columns import Columns, link_connections
from emit.compiler.ir import NONE, Instructions
from emit.compiler.manual import Block, requested_blocks
from emit.compiler.prepared import Prepared
from emit.compiler.waits import waits_of
from emit.findings import Findings
from emit.program import BUFFERS, OPS, Gpu, Program, Step, ThreadBlock
from emit.targets import Limits
from synth.model.collective import Ints
from topologies.arrays import pointers, positions
from topologies.errors import InputError


@dataclass(frozen=True)
class Layout:
    """How instructions are laid out in channels and threadblocks.

    spread: channels over which the messages of a connection are spread, one by one: so they keep their order in time.
    runs: one behind another, each spread so: the next begins when the one before it has ended, and what comes over a
        link keeps its order whatever the number of channels; spread · runs channels in all.
    paired: one threadblock may send to one rank and receive from another; else each has one of its own.
    few_nops: those are paired first of which one sends on what the other receives, else exchanges between two ranks;
        and what waits for several names one that has waited for them, though that may be over later than they are.
    """

    spread: int = 1
    runs: int = 1
    paired: bool = True
    few_nops: bool = False


class Assembled:
    """Instructions in threadblocks: as columns at once, as a Program where one is asked for.

    Attributes:
        prepared: the instructions. header: of the program.
        blocks: of every rank. block_of: of every instruction, the number of its block there.
        waits: of every instruction, those in other blocks that it names.
        lengths: steps of every block, rank after rank.
    """

    def __init__(
        self, prepared: Prepared, blocks: list[list[Block]], block_of: list[int], waits: list[list[int]]
    ) -> None:
        self.prepared, self.header = prepared, prepared.ir.header
        self.blocks, self.block_of, self.waits = blocks, block_of, waits
        many = np.array([len(mine) for mine in blocks], dtype=np.int64)
        self._block = pointers(many)[prepared.rank] + np.array(block_of, dtype=np.int64)
        self._names = np.array([len(others) for others in waits], dtype=np.int64)
        steps = np.maximum(1, self._names)  # each wait but the last is a nop's
        self.lengths = np.bincount(self._block, steps, minlength=int(many.sum())).astype(np.int64)
        order = np.argsort(self._block, kind="stable")
        self._step = np.empty(len(order), dtype=np.int64)  # of every instruction, in the program
        self._step[order] = np.cumsum(steps[order]) - 1

    @property
    def nchannels(self) -> int:
        """As `Program.nchannels`."""
        return max((channel for mine in self.blocks for channel, _, _ in mine), default=0) + 1

    @property
    def longest_threadblock(self) -> int:
        """The most steps of a threadblock."""
        return int(self.lengths.max(initial=0))

    def check_limits(self, limits: Limits, found: Findings) -> None:
        """Add a finding for what is beyond the limits, as `emit.targets.check_limits` does."""
        lengths = iter(self.lengths.tolist())
        shapes = [[(*block, next(lengths)) for block in mine] for mine in self.blocks]
        check_threadblocks(self.header.nranks, shapes, limits, found)
        nops = bool((self._names > 1).any())
        if not self.prepared.surely_within(limits) or (nops and "nop" not in limits.ops):
            check_steps(self.program(), limits, found)
        elif max((self.block_of[other] for others in self.waits for other in others), default=NONE) > limits.dep_tb:
            c = self.columns()
            named = np.where(c.dep == NONE, NONE, c.tb[c.block[c.dep]])
            for step in np.flatnonzero(named > limits.dep_tb).tolist():
                check_dependency(int(named[step]), limits, found, *c.place(step))

    def columns(self) -> Columns:
        """Those of its program: what `columns_of` says of it."""
        p, total = self.prepared, int(self.lengths.sum())
        made = {name: np.full(total, value, dtype=np.int64) for name, value in _NOP.items()}
        for name, column in made.items():
            column[self._step] = getattr(p, name)
        dep = np.full(total, NONE, dtype=np.int64)
        waiting = np.repeat(np.arange(len(p)), self._names)
        ends = np.cumsum(self._names)
        dep[self._step[waiting] - (ends[waiting] - 1 - np.arange(len(waiting)))] = self._step[
            np.fromiter(chain.from_iterable(self.waits), dtype=np.int64, count=len(waiting))
        ]
        named = [(rank, tb, *block) for rank, mine in enumerate(self.blocks) for tb, block in enumerate(mine)]
        ranks, numbers = (np.array([row[at] for row in named], dtype=np.int64) for at in (0, 1))
        c = Columns(
            **made,
            block=np.repeat(np.arange(len(named), dtype=np.int64), self.lengths),
            dep=dep,
            sends=np.full(total, NONE, dtype=np.int64),
            receives=np.full(total, NONE, dtype=np.int64),
            rank=ranks,
            tb=numbers,
            start=pointers(self.lengths),
            connections=[],
            sender=[],
            receiver=[],
        )
        found = Findings()
        link_connections(c, p.ir.header.nranks, [(*row[:2], *row[3:], row[2]) for row in named], found)
        assert not found.reported
        return c

    def program(self) -> Program:
        """With all its steps."""
        c, p = self.columns(), self.prepared
        flags = np.zeros(len(c.op), dtype=bool)
        flags[c.dep[c.dep != NONE]] = True
        waited = c.block[c.dep]
        at = np.where(c.dep == NONE, NONE, c.dep - c.start[waited]), np.where(c.dep == NONE, NONE, c.tb[waited])
        columns = (
            [OPS[code] for code in c.op.tolist()],
            [BUFFERS[code] for code in c.src.tolist()],
            c.src_at.tolist(),
            [BUFFERS[code] for code in c.dst.tolist()],
            c.dst_at.tolist(),
            c.count.tolist(),
            at[1].tolist(),
            at[0].tolist(),
            flags.tolist(),
        )
        steps = list(map(Step, *columns))
        begins = c.start.tolist()
        first = 0
        gpus = []
        for old, scratch, mine in zip(self.header.gpus, p.scratch, self.blocks, strict=True):
            made = [
                ThreadBlock(out, into, channel, steps[begins[b] : begins[b + 1]])
                for b, (channel, out, into) in enumerate(mine, first)
            ]
            first += len(mine)
            gpus.append(Gpu(old.i_chunks, old.o_chunks, scratch, made))
        return replace(self.header, gpus=gpus)


_NOP = {"op": OPS.index("nop"), "src": 0, "src_at": NONE, "dst": 1, "dst_at": NONE, "count": 0}


def assemble(prepared: Prepared, limits: Limits, layout: Layout) -> Assembled:
    """Threadblocks that execute the instructions.

    Raises InputError where its fused instructions do not fit together on their channels.
    """
    ir = prepared.ir
    channel = _channels(prepared, limits, layout)
    blocks, block_of = _threadblocks(prepared, channel, layout, limits.steps_per_tb)
    after = _after_runs(prepared, channel, layout) if layout.runs > 1 else prepared.after
    waits = waits_of(ir, [len(mine) for mine in blocks], block_of, after, layout.few_nops)
    if any(len(mine) > limits.dep_tb for mine in blocks):
        block_of = _awaited_first(ir, blocks, block_of, waits)
    return Assembled(prepared, blocks, block_of, waits)


def _awaited_first(
    ir: Instructions, blocks: list[list[Block]], block_of: list[int], waits: list[list[int]]
) -> list[int]:
    """Number the blocks anew (in place), those that others wait for first: executors name no others."""
    awaited = {(ir.rank[other], block_of[other]) for others in waits for other in others}
    new: list[list[int]] = []
    for rank, mine in enumerate(blocks):
        order = sorted(range(len(mine)), key=lambda b: ((rank, b) not in awaited, b))
        new.append(np.argsort(order).tolist())
        blocks[rank] = [mine[b] for b in order]
    return [new[rank][b] for rank, b in zip(ir.rank, block_of, strict=True)]


def _channels(prepared: Prepared, limits: Limits, layout: Layout) -> Ints:
    """The channel of every instruction that sends or receives; a chain of fused ones has one channel."""
    p, nranks, spread, runs = prepared, prepared.ir.header.nranks, layout.spread, layout.runs
    crowd = -(-(nranks - 1) // limits.tbs_per_channel)  # a channel has room for so many peers
    received = np.flatnonzero(p.source != NONE)
    source, u, v = p.source[received], p.into[received], p.rank[received]
    _, pair, many = np.unique(u * nranks + v, return_inverse=True, return_counts=True)
    at = np.empty(len(received), dtype=np.int64)  # of each message, how many were before it between these ranks
    at[np.argsort(pair, kind="stable")] = positions(many)
    first = np.array(p.ir.channel, dtype=np.int64)[received]
    # one channel in both directions, so that a threadblock can serve a peer in both
    shared = (np.minimum((v - u) % nranks, (u - v) % nranks) - 1) * crowd // max(1, nranks // 2)
    channel = np.zeros(len(p), dtype=np.int64)
    run, place = np.divmod(at, -(-many // runs)[pair])
    own = (np.where(first == NONE, shared, first) * runs + run) * spread + place % spread
    channel[received] = channel[source] = own
    if (p.source[source] == NONE).all():
        return channel
    channel[:] = 0
    begins = p.source[source] == NONE
    channel[received[begins]] = channel[source[begins]] = own[begins]
    for n in received[~begins].tolist():  # fused: what it sends goes on the channel that it receives on
        channel[n] = channel[p.source[n]]
    return channel


def _after_runs(prepared: Prepared, channel: Ints, layout: Layout) -> list[list[int]]:
    """As `Prepared.after`; what a run of a connection sends first comes after what the run before it sends last."""
    after = prepared.after.copy()
    ends: dict[tuple[int, int, int], int] = {}  # (rank, sends to, channel): the last so far
    for n in np.flatnonzero(prepared.out != NONE).tolist():
        rank, out, here = int(prepared.rank[n]), int(prepared.out[n]), int(channel[n])
        before = ends.get((rank, out, here - layout.spread))
        if before is not None and (rank, out, here) not in ends and here // layout.spread % layout.runs:
            after[n] = sorted({*after[n], before})
        ends[rank, out, here] = n
    return after


def _threadblocks(prepared: Prepared, channel: Ints, layout: Layout, room: int) -> tuple[list[list[Block]], list[int]]:
    """Per rank its blocks, and for every instruction the number of its block there."""
    p, ir = prepared, prepared.ir
    nranks, channels = ir.header.nranks, channel.tolist()
    free = np.array(ir.threadblock, dtype=np.int64) == NONE
    sends = _ends_of(p, channel, p.out, free)
    receives = _ends_of(p, channel, p.into, free)
    tied: list[dict[tuple[int, int], int]] = [{} for _ in range(nranks)]  # (channel, receives from) → sends to
    for n in np.flatnonzero(free & (p.into != NONE) & (p.out != NONE)).tolist():
        rank, into, out = ir.rank[n], int(p.into[n]), int(p.out[n])
        if tied[rank].setdefault((channels[n], into), out) != out:
            raise InputError(f"channel {channels[n]}: rank {rank} forwards what comes from rank {into} to two ranks")
    local = np.bincount(p.rank[free & (p.into == NONE) & (p.out == NONE)], minlength=nranks).tolist()
    flows = _flows(prepared, channels) if layout.few_nops else [[] for _ in range(nranks)]
    asked: list[dict[int, Block]] = [{} for _ in range(nranks)] if free.all() else requested_blocks(ir, channels)
    blocks: list[list[Block]] = []
    for rank in range(nranks):
        manual = list(asked[rank].values())
        bound = {(ch, out): into for (ch, into), out in tied[rank].items()}
        if len(bound) < len(tied[rank]):
            raise InputError(f"rank {rank} forwards from two ranks to one on one channel")
        mine = [(ch, out, into) for (ch, into), out in tied[rank].items()]
        free_out = sorted(sends[rank] - bound.keys())
        free_in = sorted(receives[rank] - tied[rank].keys())
        if layout.paired:
            mine += _pair_threadblocks(free_out, free_in, flows[rank])
        else:
            mine += [(ch, out, NONE) for ch, out in free_out] + [(ch, NONE, into) for ch, into in free_in]
        if not (mine or manual) or not layout.paired:  # half of the room is for nops
            mine += [(k, NONE, NONE) for k in range(-(-2 * local[rank] // room))]
        blocks.append(manual + sorted(mine))
    number = [{name: b for b, name in enumerate(mine)} for mine in asked]
    return blocks, _place_instructions(prepared, channel, blocks, number, room)


def _ends_of(prepared: Prepared, channel: Ints, peer: Ints, free: NDArray[np.bool_]) -> list[set[tuple[int, int]]]:
    """Per rank the (channel, peer) of what it sends, or receives."""
    found: list[set[tuple[int, int]]] = [set() for _ in prepared.ir.header.gpus]
    moves = free & (peer != NONE)
    ends = np.stack([prepared.rank[moves], channel[moves], peer[moves]])
    width = int(ends[1].max(initial=0)) + 1
    names = np.unique((ends[0] * width + ends[1]) * len(found) + ends[2])
    place, other = np.divmod(names, len(found))
    for rank, ch, who in zip(*np.divmod(place, width), other, strict=True):
        found[rank].add((int(ch), int(who)))
    return found


def _flows(prepared: Prepared, channel: list[int]) -> list[list[Block]]:
    """Per rank (channel, sends to, receives from) of messages that are sent on from one rank to another, most first."""
    ir, into, out = prepared.ir, prepared.into.tolist(), prepared.out.tolist()
    common: list[Counter[Block]] = [Counter() for _ in range(ir.header.nranks)]
    for n, others in enumerate(prepared.after):
        if ir.op[n] == "s":
            mine = ((channel[n], out[n], into[o]) for o in others if channel[o] == channel[n])
            common[ir.rank[n]].update(block for block in mine if block[2] != NONE)
    return [sorted(flow, key=lambda block: (-flow[block], block)) for flow in common]


def _pair_threadblocks(outs: list[tuple[int, int]], ins: list[tuple[int, int]], flows: list[Block]) -> list[Block]:
    """Blocks that send and receive: as `flows` has it, else with one peer; what is left over is unpaired."""
    outs, ins = outs.copy(), ins.copy()
    blocks = []
    for block in (*flows, *((ch, peer, peer) for ch, peer in outs)):
        ch, out, into = block
        if (ch, out) in outs and (ch, into) in ins:
            outs.remove((ch, out))
            ins.remove((ch, into))
            blocks.append(block)
    for ch in {ch for ch, _ in (*outs, *ins)}:
        sides = ([peer for at, peer in ends if at == ch] for ends in (outs, ins))
        blocks += [(ch, out, into) for out, into in zip_longest(*sides, fillvalue=NONE)]
    return blocks


def _place_instructions(
    prepared: Prepared, channel: Ints, blocks: list[list[Block]], asked: list[dict[int, int]], room: int
) -> list[int]:
    """The block of every instruction; a local one stands beside what needs it, else beside what it needs."""
    p, ir, after = prepared, prepared.ir, prepared.after
    nranks, width = ir.header.nranks, max((ch for mine in blocks for ch, _, _ in mine), default=0) + 1
    placed = np.full(len(p), NONE, dtype=np.int64)
    for side, peer, opposite in ((1, p.out, p.into), (2, p.into, p.out)):
        keys = [
            ((rank * width + block[0]) * nranks + block[side], b)
            for rank, mine in enumerate(blocks)
            for b, block in enumerate(mine)
            if block[side] != NONE
        ]
        names, numbers = np.array(sorted(keys), dtype=np.int64).reshape(-1, 2).T
        # what is fused stands with what it sends
        moves = np.flatnonzero((peer != NONE) & ((opposite == NONE) | (side == 1)))
        placed[moves] = numbers[np.searchsorted(names, (p.rank[moves] * width + channel[moves]) * nranks + peer[moves])]
    place: list[int] = placed.tolist()
    if max(ir.threadblock, default=NONE) != NONE:
        for n, wanted in enumerate(ir.threadblock):
            if wanted != NONE:
                place[n] = asked[ir.rank[n]][wanted]
    homeless = [n for n, here in enumerate(place) if here == NONE]
    if not homeless:
        return place
    own = [[b for b, key in enumerate(mine) if key[1:] == (NONE, NONE)] for mine in blocks]
    load = [[0] * len(mine) for mine in blocks]
    for rank, here in zip(ir.rank, place, strict=True):
        if here != NONE:
            load[rank][here] += 1
    needs: dict[int, int] = {}
    for others, here in zip(after, place, strict=True):
        for other in others:
            if place[other] == NONE and here != NONE:
                needs.setdefault(other, here)
    for n in homeless:
        rank = ir.rank[n]
        came = [place[o] for o in after[n] if ir.source[o] != NONE]
        if ir.op[n] == "re" and came:
            best = came[-1]  # an executor takes no nop between sums, so each stands behind what brought it
        elif own[rank]:
            best = next((b for b in own[rank] if 2 * load[rank][b] < room), own[rank][-1])
        else:
            beside = [needs[n]] if n in needs else [place[o] for o in after[n]]
            best = min(beside or range(len(blocks[rank])), key=lambda b: load[rank][b])
            if load[rank][best] >= room:
                best = min(range(len(blocks[rank])), key=lambda b: load[rank][b])
        place[n] = best
        load[rank][best] += 1
    return place


def longest_threadblock(program: Program) -> int:
    """The most steps of a threadblock."""
    return max((len(tb.steps) for gpu in program.gpus for tb in gpu.threadblocks), default=0)


def describe_size(program: Program) -> str:
    """Its steps, threadblocks and channels in words."""
    nops = sum(step.op == "nop" for *_, step in program.steps())
    blocks = max(len(gpu.threadblocks) for gpu in program.gpus)
    size = f"{program.nsteps} steps ({nops} nops), {blocks} threadblocks a rank, {program.nchannels} channels"
    return f"{size}, {longest_threadblock(program)} steps in the longest"
