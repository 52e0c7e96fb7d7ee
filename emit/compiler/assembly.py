"""Assemble Instructions to a Program: choose channels, threadblocks, and the dependencies between threadblocks."""

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
from synth.model.deadline import check_deadline, checking_deadline
from topologies.arrays import pointers, positions
from topologies.errors import InputError


@dataclass(frozen=True)
class BlockLayout:
    """A choice of how instructions are laid out in channels and threadblocks.

    Attributes:
        spread: Number of channels over which the messages of a connection are spread cyclically, so that they keep
            their order in time.
        runs: Number of runs of a connection's messages, each spread over its own channels: a run begins when the run
            before it has ended, and what arrives over a link keeps its order for any number of channels. A connection
            has spread · runs channels.
        paired: Whether one threadblock may send to one rank and receive from another; if not, each direction has a
            threadblock of its own.
        in_turn: Whether a message waits until the one before it on its lane (`Prepared`) has left.
        few_nops: Whether to prefer few waits. Pairing prefers threadblocks that forward what they receive, then
            exchanges between two ranks. An instruction that must wait for several others names one that has waited for
            them, although it may be over later.
    """

    spread: int = 1
    runs: int = 1
    paired: bool = True
    in_turn: bool = False
    few_nops: bool = False


class Assembled:
    """Instructions in threadblocks, available as columns, and as a Program on request.

    Attributes:
        prepared: The instructions.
        header: Header of the program.
        blocks: Threadblocks of every rank, each as (channel, rank it sends to, rank it receives from), −1 for none.
        block_of: Threadblock of every instruction, as a number from 0 in its rank.
        waits: Instructions of other threadblocks that every instruction waits for.
        lengths: Number of steps of every threadblock, rank after rank.
    """

    def __init__(
        self, prepared: Prepared, blocks: list[list[Block]], block_of: list[int], waits: list[list[int]]
    ) -> None:
        self.prepared, self.header = prepared, prepared.ir.header
        self.blocks, self.block_of, self.waits = blocks, block_of, waits
        counts = np.array([len(rank_blocks) for rank_blocks in blocks], dtype=np.int64)
        self._block = pointers(counts)[prepared.rank] + np.array(block_of, dtype=np.int64)
        self._names = np.array([len(awaited) for awaited in waits], dtype=np.int64)
        steps = np.maximum(1, self._names)  # Each wait but the last takes a nop.
        self.lengths = np.bincount(self._block, steps, minlength=int(counts.sum())).astype(np.int64)
        order = np.argsort(self._block, kind="stable")
        self._step = np.empty(len(order), dtype=np.int64)  # step of every instruction in the program
        self._step[order] = np.cumsum(steps[order]) - 1

    @property
    def nchannels(self) -> int:
        """Return the largest channel number plus one; 1 if there are no threadblocks."""
        return max((channel for rank_blocks in self.blocks for channel, _, _ in rank_blocks), default=0) + 1

    @property
    def nsteps(self) -> int:
        """Return the number of steps of all ranks, nops included."""
        return int(self.lengths.sum())

    @property
    def longest_threadblock(self) -> int:
        """Return the number of steps of the longest threadblock, nops included; 0 if there are no threadblocks."""
        return int(self.lengths.max(initial=0))

    def check_limits(self, limits: Limits, findings: Findings) -> None:
        """Add a finding to `findings` for every limit on ranks, threadblocks, steps and waits that is exceeded."""
        lengths = iter(self.lengths.tolist())
        shapes = [[(*block, next(lengths)) for block in rank_blocks] for rank_blocks in self.blocks]
        check_threadblocks(self.header.nranks, shapes, limits, findings)
        nops = bool((self._names > 1).any())
        if not self.prepared.surely_within(limits) or (nops and "nop" not in limits.ops):
            check_steps(self.program(), limits, findings)
        elif (
            max((self.block_of[instruction] for awaited in self.waits for instruction in awaited), default=NONE)
            > limits.dep_tb
        ):
            c = self.columns()
            named = np.where(c.dep == NONE, NONE, c.tb[c.block[c.dep]])
            for step in np.flatnonzero(named > limits.dep_tb).tolist():
                check_dependency(int(named[step]), limits, findings, *c.place(step))

    def columns(self) -> Columns:
        """Return the program as new columns with one row for each step, as `emit.columns.columns_of` builds them.

        An instruction that waits for n > 1 others has n - 1 nops before its own step, and each of these steps has one
        wait.
        """
        p, total = self.prepared, int(self.lengths.sum())
        columns = {name: np.full(total, value, dtype=np.int64) for name, value in _NOP.items()}
        for name, column in columns.items():
            column[self._step] = getattr(p, name)
        dep = np.full(total, NONE, dtype=np.int64)
        waiting = np.repeat(np.arange(len(p)), self._names)
        ends = np.cumsum(self._names)
        dep[self._step[waiting] - (ends[waiting] - 1 - np.arange(len(waiting)))] = self._step[
            np.fromiter(chain.from_iterable(self.waits), dtype=np.int64, count=len(waiting))
        ]
        block_rows = [
            (rank, tb, *block) for rank, rank_blocks in enumerate(self.blocks) for tb, block in enumerate(rank_blocks)
        ]
        ranks, numbers = (np.array([row[at] for row in block_rows], dtype=np.int64) for at in (0, 1))
        c = Columns(
            **columns,
            block=np.repeat(np.arange(len(block_rows), dtype=np.int64), self.lengths),
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
        findings = Findings()
        header = p.ir.header
        rows = [(*row[:2], *row[3:], row[2]) for row in block_rows]
        link_connections(c, header.nranks, rows, findings, header.translations)
        assert not findings.reported
        return c

    def program(self) -> Program:
        """Return a new Program with all its steps, and as much scratch on each rank as its instructions need."""
        check_deadline()
        c, p = self.columns(), self.prepared
        flags = np.zeros(len(c.op), dtype=bool)
        flags[c.dep[c.dep != NONE]] = True
        awaited_block = c.block[c.dep]
        dependency = (
            np.where(c.dep == NONE, NONE, c.dep - c.start[awaited_block]),
            np.where(c.dep == NONE, NONE, c.tb[awaited_block]),
        )
        columns = (
            [OPS[code] for code in c.op.tolist()],
            [BUFFERS[code] for code in c.src.tolist()],
            c.src_at.tolist(),
            [BUFFERS[code] for code in c.dst.tolist()],
            c.dst_at.tolist(),
            c.count.tolist(),
            dependency[1].tolist(),
            dependency[0].tolist(),
            flags.tolist(),
        )
        steps = list(map(Step, *columns))
        begins = c.start.tolist()
        first = 0
        gpus = []
        for old, scratch, rank_blocks in zip(self.header.gpus, p.scratch, self.blocks, strict=True):
            threadblocks = [
                ThreadBlock(out, into, channel, steps[begins[b] : begins[b + 1]])
                for b, (channel, out, into) in enumerate(rank_blocks, first)
            ]
            first += len(rank_blocks)
            gpus.append(Gpu(old.i_chunks, old.o_chunks, scratch, threadblocks))
        return replace(self.header, gpus=gpus)


_NOP = {"op": OPS.index("nop"), "src": 0, "src_at": NONE, "dst": 1, "dst_at": NONE, "count": 0}


def assemble(prepared: Prepared, limits: Limits, layout: BlockLayout) -> Assembled:
    """Build threadblocks that execute the instructions.

    The limits guide the layout, but it may exceed them, and it may deadlock: the caller must check that.

    Raises:
        InputError: Fused instructions do not fit on their channels, or a requested threadblock would need two channels,
            or two peers in one direction.
    """
    ir = prepared.ir
    check_deadline()
    channel = _channels(prepared, limits, layout)
    blocks, block_of = _threadblocks(prepared, channel, layout, limits.steps_per_tb)
    check_deadline()
    after = _after_runs(prepared, channel, layout) if layout.runs > 1 else prepared.after
    after = _after_turns(prepared, after) if layout.in_turn else after
    waits = waits_of(ir, [len(rank_blocks) for rank_blocks in blocks], block_of, after, layout.few_nops)
    if any(len(rank_blocks) > limits.dep_tb for rank_blocks in blocks):
        block_of = _awaited_first(ir, blocks, block_of, waits)
    return Assembled(prepared, blocks, block_of, waits)


def _awaited_first(
    ir: Instructions, blocks: list[list[Block]], block_of: list[int], waits: list[list[int]]
) -> list[int]:
    """Order the threadblocks (in place) with the awaited ones first, because executors' waits name only the first ones.

    The awaited ones keep their order among themselves, and so do the others.

    Returns:
        The new number of every instruction's threadblock in its rank.
    """
    awaited = {(ir.rank[instruction], block_of[instruction]) for instructions in waits for instruction in instructions}
    new: list[list[int]] = []
    for rank, rank_blocks in enumerate(blocks):
        order = sorted(range(len(rank_blocks)), key=lambda b: ((rank, b) not in awaited, b))
        new.append(np.argsort(order).tolist())
        blocks[rank] = [rank_blocks[b] for b in order]
    return [new[rank][b] for rank, b in zip(ir.rank, block_of, strict=True)]


def _channels(prepared: Prepared, limits: Limits, layout: BlockLayout) -> Ints:
    """Return the channel of every instruction, shape (instructions,); 0 for those that neither send nor receive.

    A connection has spread · runs channels, which begin at its base number times spread · runs. Its messages are
    divided evenly into runs in their order, and those of a run go cyclically over the `spread` channels of the run. The
    base number is the requested channel. Without a request it grows with the distance of the two ranks' numbers, if a
    rank has more peers than a channel has threadblocks, and is 0 otherwise. A chain of fused instructions has the
    channel of its first message. The channels may exceed the limits.
    """
    p, nranks, spread, runs = prepared, prepared.ir.header.nranks, layout.spread, layout.runs
    received = np.flatnonzero(p.source != NONE)
    source = p.source[received]
    u, v = p.rank[source], p.out[source]
    pairs, pair, counts = np.unique(u * nranks + v, return_inverse=True, return_counts=True)
    receiving_pairs = np.unique(p.rank[received] * nranks + p.into[received])
    most_peers = max(int(np.bincount(keys // nranks, minlength=1).max()) for keys in (pairs, receiving_pairs))
    # channels that a rank needs to reach all other ranks, or one if its peers are few
    crowd = 1 if most_peers <= limits.tbs_per_channel else -(-(nranks - 1) // limits.tbs_per_channel)
    message_number = np.empty(len(received), dtype=np.int64)  # messages before it between these ranks
    message_number[np.argsort(pair, kind="stable")] = positions(counts)
    first = np.array(p.ir.channel, dtype=np.int64)[received]
    # Both directions between two ranks have one channel, so that one threadblock can serve both.
    distance = np.minimum((v - u) % nranks, (u - v) % nranks)
    if p.ir.header.translations:
        back = p.into[received], p.rank[received]  # the other direction, as the receiver sees it
        distance = np.minimum(distance, np.minimum((back[0] - back[1]) % nranks, (back[1] - back[0]) % nranks))
    shared = (distance - 1) * crowd // max(1, nranks // 2)
    channel = np.zeros(len(p), dtype=np.int64)
    run, place = np.divmod(message_number, -(-counts // runs)[pair])
    own = (np.where(first == NONE, shared, first) * runs + run) * spread + place % spread
    channel[received] = channel[source] = own
    if (p.source[source] == NONE).all():
        return channel
    channel[:] = 0
    begins = p.source[source] == NONE
    channel[received[begins]] = channel[source[begins]] = own[begins]
    for n in received[~begins].tolist():  # A fused instruction sends on the channel that it receives on.
        channel[n] = channel[p.source[n]]
    return channel


def _after_runs(prepared: Prepared, channel: Ints, layout: BlockLayout) -> list[list[int]]:
    """Return `Prepared.after`, extended so that each run of a connection follows the run before it.

    The first send on each channel of a run also follows the last send on the corresponding channel of the run before.
    The lists of `prepared.after` are not changed.
    """
    after = prepared.after.copy()
    last_send: dict[tuple[int, int, int], int] = {}  # last send so far, by (rank, sends to, channel)
    for n in np.flatnonzero(prepared.out != NONE).tolist():
        rank, out, own_channel = int(prepared.rank[n]), int(prepared.out[n]), int(channel[n])
        before = last_send.get((rank, out, own_channel - layout.spread))
        if (
            before is not None
            and (rank, out, own_channel) not in last_send
            and own_channel // layout.spread % layout.runs
        ):
            after[n] = sorted({*after[n], before})
        last_send[rank, out, own_channel] = n
    return after


def _after_turns(prepared: Prepared, after: list[list[int]]) -> list[list[int]]:
    """Return a copy of `after` in which each send also follows the rank's send before it on the same lane.

    Lanes are those of `Prepared.lanes`; a send without a lane gets nothing added. The lists of `after` are not changed.
    """
    after = after.copy()
    last_send: dict[tuple[int, int], int] = {}  # last send so far, by (rank, lane)
    for n in np.flatnonzero(prepared.out != NONE).tolist():
        rank, out = int(prepared.rank[n]), int(prepared.out[n])
        if (lane := prepared.lanes.get((rank, out))) is None:
            continue
        if (before := last_send.get((rank, lane))) is not None:
            after[n] = sorted({*after[n], before})
        last_send[rank, lane] = n
    return after


def _threadblocks(
    prepared: Prepared, channel: Ints, layout: BlockLayout, room: int
) -> tuple[list[list[Block]], list[int]]:
    """Return each rank's threadblocks as (channel, sends to, receives from), and each instruction's place in that list.

    Requested threadblocks come first, by their numbers; the others are sorted. Local instructions have threadblocks of
    their own only where a rank has no others, or where the layout is not paired.

    Args:
        prepared: Instructions.
        channel: Channel of every instruction.
        layout: Layout.
        room: Largest number of steps of a threadblock; it guides the layout, but may be exceeded.

    Raises:
        InputError: A rank forwards from one rank to two, or from two to one, on a channel, or as `assemble` raises it.
    """
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
    requested: list[dict[int, Block]] = [{} for _ in range(nranks)] if free.all() else requested_blocks(ir, channels)
    blocks: list[list[Block]] = []
    for rank in checking_deadline(range(nranks), every=16):
        manual = list(requested[rank].values())
        bound = {(ch, out): into for (ch, into), out in tied[rank].items()}
        if len(bound) < len(tied[rank]):
            raise InputError(f"rank {rank} forwards from two ranks to one on one channel")
        rank_blocks = [(ch, out, into) for (ch, into), out in tied[rank].items()]
        free_out = sorted(sends[rank] - bound.keys())
        free_in = sorted(receives[rank] - tied[rank].keys())
        if layout.paired:
            rank_blocks += _pair_threadblocks(free_out, free_in, flows[rank])
        else:
            rank_blocks += [(ch, out, NONE) for ch, out in free_out] + [(ch, NONE, into) for ch, into in free_in]
        if not (rank_blocks or manual) or not layout.paired:  # Half of a threadblock's steps are reserved for nops.
            rank_blocks += [(k, NONE, NONE) for k in range(-(-2 * local[rank] // room))]
        blocks.append(manual + sorted(rank_blocks))
    number = [{name: b for b, name in enumerate(rank_blocks)} for rank_blocks in requested]
    return blocks, _place_instructions(prepared, channel, blocks, number, room)


def _ends_of(prepared: Prepared, channel: Ints, peer: Ints, free: NDArray[np.bool_]) -> list[set[tuple[int, int]]]:
    """Return for each rank the set of (channel, peer) of its sends, or of its receives.

    Args:
        prepared: Instructions.
        channel: Channel of every instruction.
        peer: Rank that every instruction sends to, or that it receives from; −1 for none.
        free: Mask of the instructions that request no threadblock; only these count.
    """
    ends_of_rank: list[set[tuple[int, int]]] = [set() for _ in prepared.ir.header.gpus]
    moves = free & (peer != NONE)
    ends = np.stack([prepared.rank[moves], channel[moves], peer[moves]])
    width = int(ends[1].max(initial=0)) + 1
    names = np.unique((ends[0] * width + ends[1]) * len(ends_of_rank) + ends[2])
    place, peer_ranks = np.divmod(names, len(ends_of_rank))
    for rank, ch, peer_rank in zip(*np.divmod(place, width), peer_ranks, strict=True):
        ends_of_rank[rank].add((int(ch), int(peer_rank)))
    return ends_of_rank


def _flows(prepared: Prepared, channel: list[int]) -> list[list[Block]]:
    """Return for each rank the (channel, sends to, receives from) of what it forwards, the most frequent first.

    A plain send (s) counts once for each instruction that it follows and that receives on the same channel. Equally
    frequent ones ascend.
    """
    ir, into, out = prepared.ir, prepared.into.tolist(), prepared.out.tolist()
    common: list[Counter[Block]] = [Counter() for _ in range(ir.header.nranks)]
    for n, earlier_list in enumerate(prepared.after):
        if ir.op[n] == "s":
            candidates = (
                (channel[n], out[n], into[earlier]) for earlier in earlier_list if channel[earlier] == channel[n]
            )
            common[ir.rank[n]].update(block for block in candidates if block[2] != NONE)
    return [sorted(flow, key=lambda block: (-flow[block], block)) for flow in common]


def _pair_threadblocks(outs: list[tuple[int, int]], ins: list[tuple[int, int]], flows: list[Block]) -> list[Block]:
    """Return threadblocks that send and receive: first as in `flows`, then with one peer, then with any two peers.

    Args:
        outs: (channel, peer) of each direction that sends, each once; not changed.
        ins: (channel, peer) of each direction that receives, each once; not changed.
        flows: Threadblocks that are preferred, the best first.

    Returns:
        Threadblocks as (channel, sends to, receives from). Each direction is in one of them, with −1 for the other
        direction if none is left on its channel.
    """
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


def _place_messages(prepared: Prepared, channel: Ints, blocks: list[list[Block]]) -> list[int]:
    """Return the threadblock of the connection of every instruction that sends or receives, NONE of the others.

    A fused instruction is in the threadblock of its send.

    Args:
        prepared: Instructions.
        channel: Channel of every instruction.
        blocks: Threadblocks of each rank, as (channel, sends to, receives from).
    """
    p, nranks = prepared, prepared.ir.header.nranks
    width = max((ch for rank_blocks in blocks for ch, _, _ in rank_blocks), default=0) + 1
    placed = np.full(len(p), NONE, dtype=np.int64)
    for side, peer, opposite in ((1, p.out, p.into), (2, p.into, p.out)):
        keys = [
            ((rank * width + block[0]) * nranks + block[side], b)
            for rank, rank_blocks in enumerate(blocks)
            for b, block in enumerate(rank_blocks)
            if block[side] != NONE
        ]
        names, numbers = np.array(sorted(keys), dtype=np.int64).reshape(-1, 2).T
        moves = np.flatnonzero((peer != NONE) & ((opposite == NONE) | (side == 1)))
        placed[moves] = numbers[np.searchsorted(names, (p.rank[moves] * width + channel[moves]) * nranks + peer[moves])]
    own_places: list[int] = placed.tolist()
    return own_places


def _place_instructions(
    prepared: Prepared, channel: Ints, blocks: list[list[Block]], requested: list[dict[int, int]], room: int
) -> list[int]:
    """Return the threadblock of every instruction.

    An instruction that requests a threadblock is in it. A message is in the threadblock of its connection, a fused
    instruction in that of its send. Of the local instructions, a sum (re) follows the last receive that it needs. The
    others are in the threadblocks without messages, if the rank has any; else with an instruction that needs them, or
    else with one that they need, or in the threadblock with the fewest instructions.

    Args:
        prepared: Instructions.
        channel: Channel of every instruction.
        blocks: Threadblocks of each rank, as (channel, sends to, receives from).
        requested: For each rank, the position in `blocks` of each threadblock number that instructions request.
        room: Largest number of steps of a threadblock; it guides the placement, but may be exceeded.

    Returns:
        The number of every instruction's threadblock in its rank.
    """
    ir, after = prepared.ir, prepared.after
    place = _place_messages(prepared, channel, blocks)
    if max(ir.threadblock, default=NONE) != NONE:
        for n, requested_number in enumerate(ir.threadblock):
            if requested_number != NONE:
                place[n] = requested[ir.rank[n]][requested_number]
    unplaced = [n for n, own_place in enumerate(place) if own_place == NONE]
    if not unplaced:
        return place
    own = [[b for b, key in enumerate(rank_blocks) if key[1:] == (NONE, NONE)] for rank_blocks in blocks]
    load = [[0] * len(rank_blocks) for rank_blocks in blocks]
    for rank, own_place in zip(ir.rank, place, strict=True):
        if own_place != NONE:
            load[rank][own_place] += 1
    block_that_needs: dict[int, int] = {}
    for earlier, own_place in zip(after, place, strict=True):
        for awaited in earlier:
            if place[awaited] == NONE and own_place != NONE:
                block_that_needs.setdefault(awaited, own_place)
    for n in checking_deadline(unplaced, every=256):
        rank = ir.rank[n]
        receiving_blocks = [place[o] for o in after[n] if ir.source[o] != NONE]
        if ir.op[n] == "re" and receiving_blocks:
            best = receiving_blocks[-1]  # Executors take no nop between sums, so each sum follows its receive.
        elif own[rank]:
            best = next((b for b in own[rank] if 2 * load[rank][b] < room), own[rank][-1])
        else:
            candidates = [block_that_needs[n]] if n in block_that_needs else [place[o] for o in after[n]]
            best = min(candidates or range(len(blocks[rank])), key=lambda b: load[rank][b])
            if load[rank][best] >= room:
                best = min(range(len(blocks[rank])), key=lambda b: load[rank][b])
        place[n] = best
        load[rank][best] += 1
    return place


def longest_threadblock(program: Program) -> int:
    """Return the number of steps of a program's longest threadblock, nops included; 0 if there are no threadblocks."""
    return max((len(tb.steps) for gpu in program.gpus for tb in gpu.threadblocks), default=0)


def describe_size(program: Program) -> str:
    """Describe a program's steps, threadblocks and channels in words.

    An example is `24 steps (2 nops), 3 threadblocks a rank, 1 channels, 8 steps in the longest`. The steps are those of
    all ranks, the threadblocks those of the rank that has most.
    """
    nops = sum(step.op == "nop" for *_, step in program.steps())
    blocks = max(len(gpu.threadblocks) for gpu in program.gpus)
    size = f"{program.nsteps} steps ({nops} nops), {blocks} threadblocks a rank, {program.nchannels} channels"
    return f"{size}, {longest_threadblock(program)} steps in the longest"
