"""Instructions → Program: channels, threadblocks, and the dependencies between them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from emit.compiler.ir import BUFFER, NONE, Instructions, peers, scratch_chunks
from emit.compiler.manual import Block, asked_blocks
from emit.compiler.tuning import TUNING
from emit.program import BUFFERS, Gpu, Program, Step, ThreadBlock
from emit.targets import Limits
from topologies.errors import InputError


@dataclass(frozen=True)
class Layout:
    """How instructions are laid out in channels and threadblocks.

    spread: channels over which the messages of a connection are spread, one by one: so they keep their order in time.
    paired: one threadblock may send to one rank and receive from another; else each has one of its own.
    few_nops: those are paired first of which one sends on what the other receives, else exchanges between two ranks;
        and what waits for several names one that has waited for them, though that may be over later than they are.
    """

    spread: int = 1
    paired: bool = True
    few_nops: bool = False


def assemble(ir: Instructions, limits: Limits, layout: Layout, after: list[list[int]]) -> Program:
    """A program that executes the instructions; `after`: what `predecessors` says about them.

    Raises InputError where its fused instructions do not fit together on their channels.
    """
    channel = _channels(ir, limits, layout)
    blocks, block_of = _threadblocks(ir, channel, layout, after, limits.steps_per_tb)
    waits = _waits(ir, blocks, block_of, after, layout)
    if any(len(mine) > limits.dep_tb for mine in blocks):
        block_of = _awaited_first(ir, blocks, block_of, waits)
    return _program(ir, blocks, block_of, waits)


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


def _channels(ir: Instructions, limits: Limits, layout: Layout) -> list[int]:
    """The channel of every instruction that sends or receives; a chain of fused ones has one channel."""
    nranks, spread = ir.header.nranks, layout.spread
    crowd = -(-(nranks - 1) // limits.tbs_per_channel)  # a channel has room for so many peers
    passed: dict[tuple[int, int], int] = defaultdict(int)
    channel = [0] * len(ir)
    for n, source in enumerate(ir.source):
        if source == NONE:
            continue
        u, v = ir.rank[source], ir.rank[n]
        at = passed[u, v]
        passed[u, v] += 1
        if ir.source[source] != NONE:
            channel[n] = channel[source]  # fused: what it sends goes on the channel that it receives on
            continue
        first = ir.channel[n]
        if first == NONE:
            # one channel in both directions, so that a threadblock can serve a peer in both
            first = (min((v - u) % nranks, (u - v) % nranks) - 1) * crowd // max(1, nranks // 2)
        channel[n] = channel[source] = first * spread + at % spread
    return channel


def _threadblocks(
    ir: Instructions, channel: list[int], layout: Layout, after: list[list[int]], room: int
) -> tuple[list[list[Block]], list[int]]:
    """Per rank its blocks, and for every instruction the number of its block there."""
    nranks = ir.header.nranks
    sends: list[set[tuple[int, int]]] = [set() for _ in range(nranks)]  # channel, peer
    receives: list[set[tuple[int, int]]] = [set() for _ in range(nranks)]
    tied: list[dict[tuple[int, int], int]] = [{} for _ in range(nranks)]  # (channel, receives from) → sends to
    local = [0] * nranks
    ends = [peers(ir, n) for n in range(len(ir))]
    for n, rank in enumerate(ir.rank):
        into, out = ends[n]
        if ir.threadblock[n] != NONE:
            continue
        if into != NONE:
            receives[rank].add((channel[n], into))
        if out != NONE:
            sends[rank].add((channel[n], out))
        if into != NONE and out != NONE and tied[rank].setdefault((channel[n], into), out) != out:
            raise InputError(f"channel {channel[n]}: rank {rank} forwards what comes from rank {into} to two ranks")
        local[rank] += into == out == NONE
    flows = _flows(ir, channel, ends, after) if layout.few_nops else [[] for _ in range(nranks)]
    asked = asked_blocks(ir, channel)
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
    return blocks, _place_instructions(ir, channel, ends, blocks, number, after, room)


def _flows(
    ir: Instructions, channel: list[int], ends: list[tuple[int, int]], after: list[list[int]]
) -> list[list[Block]]:
    """Per rank (channel, sends to, receives from) of messages that are sent on from one rank to another, most first."""
    common: list[Counter[Block]] = [Counter() for _ in range(ir.header.nranks)]
    for n, others in enumerate(after):
        if ir.op[n] == "s":
            mine = ((channel[n], ends[n][1], ends[o][0]) for o in others if channel[o] == channel[n])
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
    ir: Instructions,
    channel: list[int],
    ends: list[tuple[int, int]],
    blocks: list[list[Block]],
    asked: list[dict[int, int]],
    after: list[list[int]],
    room: int,
) -> list[int]:
    """The block of every instruction; a local one stands beside what needs it, else beside what it needs."""
    by_send = [{(ch, out): b for b, (ch, out, _) in enumerate(mine) if out != NONE} for mine in blocks]
    by_receive = [{(ch, into): b for b, (ch, _, into) in enumerate(mine) if into != NONE} for mine in blocks]
    own = [[b for b, key in enumerate(mine) if key[1:] == (NONE, NONE)] for mine in blocks]
    load = [[0] * len(mine) for mine in blocks]
    place = [NONE] * len(ir)
    for n, (rank, (into, out)) in enumerate(zip(ir.rank, ends, strict=True)):
        if ir.threadblock[n] != NONE:
            place[n] = asked[rank][ir.threadblock[n]]
            load[rank][place[n]] += 1
        elif into != NONE or out != NONE:
            place[n] = by_receive[rank][channel[n], into] if out == NONE else by_send[rank][channel[n], out]
            load[rank][place[n]] += 1
    needs: dict[int, int] = {}
    for others, here in zip(after, place, strict=True):
        for other in others:
            if place[other] == NONE and here != NONE:
                needs.setdefault(other, here)
    for n, rank in enumerate(ir.rank):
        if place[n] != NONE:
            continue
        came = [place[o] for o in after[n] if ir.source[o] != NONE]
        if ir.op[n] == "re" and came:
            at = came[-1]  # an executor takes no nop between sums, so each stands behind what brought it
        elif own[rank]:
            at = next((b for b in own[rank] if 2 * load[rank][b] < room), own[rank][-1])
        else:
            beside = [needs[n]] if n in needs else [place[o] for o in after[n]]
            at = min(beside or range(len(blocks[rank])), key=lambda b: load[rank][b])
            if load[rank][at] >= room:
                at = min(range(len(blocks[rank])), key=lambda b: load[rank][b])
        place[n] = at
        load[rank][at] += 1
    return place


def _waits(
    ir: Instructions, blocks: list[list[Block]], block_of: list[int], after: list[list[int]], layout: Layout
) -> list[list[int]]:
    """For every instruction those others that it must name: in another block, and not implied by the rest.

    Vector clocks: entry b of an instruction's row is how many instructions of block b are over when it is.
    """
    first = np.concatenate([[0], np.cumsum([len(mine) for mine in blocks])]).tolist()
    everywhere = len(ir) * first[-1] <= TUNING.clock_entries
    width = first[-1] if everywhere else max((len(mine) for mine in blocks), default=0)
    if len(ir) * width > TUNING.most_clock_entries:
        return _last_of_each_block(block_of, after)
    known: NDArray[np.int32] = np.zeros((len(ir), width), dtype=np.int32)
    # a message of many chunks begins to arrive while it is still being sent: what was over when that began
    overlap = everywhere and any(count > 1 and s != NONE for count, s in zip(ir.count, ir.source, strict=True))
    begun: NDArray[np.int32] = np.zeros((len(ir), width) if overlap else (0, 0), dtype=np.int32)
    latest: dict[tuple[int, int], int] = {}
    index = [0] * len(ir)
    waits: list[list[int]] = [[] for _ in range(len(ir))]
    waited_by: list[list[int]] = [[] for _ in range(len(ir))]
    for n, rank in enumerate(ir.rank):
        block = block_of[n]
        row = known[n]
        base = first[rank] if everywhere else 0
        before = latest.get((rank, block), NONE)
        if before != NONE:
            np.copyto(row, known[before])
        source = ir.source[n] if everywhere else NONE
        if source != NONE:
            np.maximum(row, (known if ir.count[n] == 1 else begun)[source], out=row)
        others = [o for o in after[n] if block_of[o] != block]
        if len(others) > 1:
            others.sort(key=lambda o: (-int(known[o].sum()), o))
        if layout.few_nops and len(others) > 1:
            entry = {o: (base + block_of[o], index[o]) for o in others}
            waiting = [x for o in others for x in waited_by[o] if block_of[x] != block]
            others = _joint_waits(entry, waiting, known, row) + others
        for other in others:
            if row[base + block_of[other]] < index[other]:
                waits[n].append(other)
                waited_by[other].append(n)
                np.maximum(row, known[other], out=row)
        if overlap:
            begun[n] = row
        if source != NONE and ir.count[n] > 1:
            np.maximum(row, known[source], out=row)
        index[n] = 1 if before == NONE else index[before] + 1
        row[base + block] = index[n]
        latest[rank, block] = n
        waits[n].sort()
    return waits


def _joint_waits(
    entry: dict[int, tuple[int, int]], waiting: list[int], known: NDArray[np.int32], row: NDArray[np.int32]
) -> list[int]:
    """Of those `waiting` for some of the instructions in `entry`, the fewest that know of two or more each.

    entry: of each instruction where a row of `known` has its block, and what stands there once it is over.
    """
    found: list[int] = []
    row = row.copy()
    while True:
        needed = [(at, index) for at, index in entry.values() if row[at] < index]
        knows = {x: sum(bool(known[x][at] >= index) for at, index in needed) for x in waiting}
        best = max(knows, key=lambda x: (knows[x], -x), default=NONE)
        if knows.get(best, 0) < 2:
            return found
        found.append(best)
        np.maximum(row, known[best], out=row)


def _last_of_each_block(block_of: list[int], after: list[list[int]]) -> list[list[int]]:
    """For every instruction the last of each other block of its rank that it must come after."""
    waits = []
    for mine, others in zip(block_of, after, strict=True):
        last = {block_of[other]: other for other in sorted(others)}
        waits.append(sorted(other for block, other in last.items() if block != mine))
    return waits


def _program(ir: Instructions, blocks: list[list[Block]], block_of: list[int], waits: list[list[int]]) -> Program:
    members: list[list[list[int]]] = [[[] for _ in mine] for mine in blocks]
    position = [0] * len(ir)
    lengths = [[0] * len(mine) for mine in blocks]
    for n, (rank, block) in enumerate(zip(ir.rank, block_of, strict=True)):
        members[rank][block].append(n)
        lengths[rank][block] += max(1, len(waits[n]))
        position[n] = lengths[rank][block] - 1
    awaited = {other for others in waits for other in others}
    scratch = scratch_chunks(ir)
    places = _places(ir)
    gpus = []
    for rank, mine in enumerate(blocks):
        made = []
        for (channel, out, into), numbers in zip(mine, members[rank], strict=True):
            steps: list[Step] = []
            for n in numbers:
                at = [(block_of[o], position[o]) for o in waits[n]]
                steps += [Step("nop", "i", -1, "o", -1, 0, tb, step, False) for tb, step in at[:-1]]
                tb, step = at[-1] if at else (-1, -1)
                steps.append(Step(ir.op[n], *places[n], ir.count[n], tb, step, n in awaited))
            made.append(ThreadBlock(out, into, channel, steps))
        old = ir.header.gpus[rank]
        gpus.append(Gpu(old.i_chunks, old.o_chunks, scratch[rank], made))
    return replace(ir.header, gpus=gpus)


def _places(ir: Instructions) -> list[tuple[str, int, str, int]]:
    """Of every instruction source and destination, as buffer and offset.

    What it does not use is written as readers expect it: the place that it does use.
    """
    src, dst = np.array(ir.src, dtype=np.int64), np.array(ir.dst, dtype=np.int64)
    ends = np.where(src == NONE, dst, src), np.where(dst == NONE, src, dst)
    (src_buf, src_off), (dst_buf, dst_off) = (((end // BUFFER).tolist(), (end % BUFFER).tolist()) for end in ends)
    names = [[BUFFERS[code] for code in codes] for codes in (src_buf, dst_buf)]
    return list(zip(names[0], src_off, names[1], dst_off, strict=True))


def longest_threadblock(program: Program) -> int:
    """The most steps of a threadblock."""
    return max((len(tb.steps) for gpu in program.gpus for tb in gpu.threadblocks), default=0)


def describe_size(program: Program) -> str:
    """Its steps, threadblocks and channels in words."""
    nops = sum(step.op == "nop" for *_, step in program.steps())
    blocks = max(len(gpu.threadblocks) for gpu in program.gpus)
    size = f"{program.nsteps} steps ({nops} nops), {blocks} threadblocks a rank, {program.nchannels} channels"
    return f"{size}, {longest_threadblock(program)} steps in the longest"
