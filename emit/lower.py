"""Schedule → Program: where chunks lie, which threadblock moves them, and what must wait for what.

Each directed pair of ranks has a threadblock that sends and one that receives, in the schedule's order. Copies
within a rank have one of their own. A rank's accesses to a cell are ordered as the schedule's steps say: what is
sent in a step is read before what arrives in it is written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from emit.goal import Goal
from emit.limits import limits_of
from emit.program import Gpu, Program, Step, ThreadBlock
from synth.algorithm import Algorithm
from synth.collective import Collective
from topologies.errors import InputError

Cell = tuple[str, int]
_INPLACE = ("allreduce", "allgather", "reducescatter")
_NAMED = (*_INPLACE, "alltoall", "broadcast", "reduce", "gather", "scatter")


@dataclass(eq=False)
class _Op:
    """An instruction on its way into a threadblock; `after` are instructions of the same rank it must follow."""

    rank: int
    kind: str
    src: Cell
    dst: Cell
    block: tuple[str, int, int] = ("local", -1, 0)
    after: list[_Op] = field(default_factory=list)


def lower(
    algorithm: Algorithm,
    name: str,
    protocol: str = "Simple",
    *,
    min_bytes: int = 0,
    max_bytes: int = 0,
    target: str = "executor-nccl",
) -> tuple[Program, Goal | None]:
    """A program that does what the algorithm's schedule does, and its goal where the name does not say it.

    In place where the formats know the collective so (allreduce, allgather, reducescatter), else out of place.

    Raises:
        InputError: more steps than the target's threadblocks and channels hold.
    """
    problem = algorithm.problem
    collective = problem.collective
    named = collective.name in _NAMED and not problem.relays
    inplace = named and collective.name in _INPLACE
    limits = limits_of(target)
    fused = "rrc" in limits.ops
    ranks = [_Rank(collective, rank, inplace, fused) for rank in range(problem.nranks)]
    _fill(algorithm, ranks)
    # a channel has room for so many peers; a pair's lane follows from its distance, so that both ends agree
    lanes = -(-(problem.nranks - 1) // limits.tbs_per_channel)
    channels = 1
    while True:
        gpus = [
            _blocks(rank, channels, lambda u, v: (v - u) % problem.nranks * lanes // problem.nranks)
            for rank in ranks
        ]
        longest = max((len(tb.steps) for gpu in gpus for tb in gpu.threadblocks), default=0)
        if longest <= limits.steps_per_tb:
            break
        channels = max(channels + 1, channels * longest // limits.steps_per_tb)
        if channels * lanes > limits.channels:
            raise InputError(
                f"{name}: needs {longest} steps in a threadblock even with {limits.channels} channels;"
                f" {target} has room for {limits.steps_per_tb}; use fewer chunks (--chunks)"
            )
    per_loop = collective.nchunks
    if collective.name in ("gather", "scatter") and named:
        per_loop = collective.chunks
    elif collective.name == "alltoall" and named:
        per_loop = collective.nchunks // collective.nranks
    elif not named:
        per_loop = max(max((g.i_chunks, g.o_chunks)) for g in gpus)
    program = Program(
        name=name,
        collective=collective.name if named else "custom",
        protocol=protocol,
        nranks=problem.nranks,
        nchunks_per_loop=per_loop,
        inplace=inplace,
        outofplace=not inplace,
        gpus=gpus,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        root=collective.root if named else 0,
    )
    return program, None if named else custom_goal(collective, problem.nranks)


def goal_columns(collective: Collective) -> dict[str, list[list[Any]]]:
    """Rows of `Goal.from_arrays` for any pattern, out of place: columns under initial and required."""
    first = {c: r for r, c in reversed(collective.pre.tolist())}
    holders = defaultdict(list)
    for rank, chunk in collective.pre.tolist():
        holders[chunk].append(rank)
    start = [
        (rank, index, rank if collective.reduces[chunk] else first[chunk], chunk)
        for (rank, chunk), index in zip(collective.pre.tolist(), collective.in_index.tolist(), strict=True)
    ]
    end = [
        (rank, index, source, chunk)
        for (rank, chunk), index in zip(collective.post.tolist(), collective.out_index.tolist(), strict=True)
        for source in (holders[chunk] if collective.reduces[chunk] else [first[chunk]])
    ]
    found = {}
    for name, buffer, rows in (("initial", "i", start), ("required", "o", end)):
        rank, index, source, chunk = (list(column) for column in zip(*rows, strict=True))
        found[name] = [rank, [buffer] * len(rank), index, source, chunk]
    return found


def custom_goal(collective: Collective, nranks: int) -> Goal:
    """What a program for any pattern starts from and must leave; relays have no buffers."""
    columns = goal_columns(collective)
    return Goal.from_arrays(nranks, tuple(columns["initial"]), tuple(columns["required"]))  # type: ignore[arg-type]


class _Rank:
    """One rank's buffers and its instructions in the order in which they touch the cells."""

    def __init__(self, collective: Collective, rank: int, inplace: bool, fused: bool) -> None:
        self.rank, self.fused = rank, fused
        pre = collective.pre[:, 0] == rank
        post = collective.post[:, 0] == rank
        held = dict(zip(collective.pre[pre, 1].tolist(), collective.in_index[pre].tolist(), strict=True))
        wanted = dict(
            zip(collective.post[post, 1].tolist(), collective.out_index[post].tolist(), strict=True)
        )
        self.home: dict[int, Cell] = {}  # where a chunk's content is now
        self.goal: dict[int, Cell] = {}  # where it is to end
        if inplace:
            buffer = "o" if collective.name == "allgather" else "i"
            # in place a chunk has one cell only, in the buffer that holds all blocks
            self.home = {c: (buffer, c) for c in held}
            self.goal = {c: (buffer, c) for c in wanted}
            self.sizes = (0, collective.nchunks) if buffer == "o" else (collective.nchunks, 0)
            if collective.name == "reducescatter":
                self.sizes = (collective.nchunks, 0)
        else:
            self.home = {c: ("i", at) for c, at in held.items()}
            self.goal = {c: ("o", at) for c, at in wanted.items()}
            self.sizes = (
                max(held.values(), default=-1) + 1,
                max(wanted.values(), default=-1) + 1,
            )
            if collective.name in ("broadcast", "reduce", "alltoall", "sendrecv", "alltonext"):
                # these readers give every rank both buffers
                full = collective.nchunks if collective.name in ("broadcast", "reduce") else max(self.sizes)
                self.sizes = (full, full)
        self.inplace = inplace
        self.scratch = 0
        self.writer: dict[Cell, _Op] = {}
        self.readers: dict[Cell, list[_Op]] = defaultdict(list)
        self.ops: list[_Op] = []

    def target(self, chunk: int) -> Cell:
        """The cell in which an arriving chunk is put: its last place, or scratch."""
        if chunk in self.goal:
            return self.goal[chunk]
        home = self.home.get(chunk)
        if home is not None and (self.inplace or home[0] == "s"):
            return home
        self.scratch += 1
        return ("s", self.scratch - 1)

    def add(self, op: _Op, reads: Iterable[Cell], writes: Cell | None) -> None:
        """Take an instruction into the order, after those that touch its cells in a way that matters."""
        for cell in reads:
            if cell in self.writer:
                op.after.append(self.writer[cell])
        if writes is not None:
            op.after += self.readers.pop(writes, [])
            if writes in self.writer:
                op.after.append(self.writer[writes])
            self.writer[writes] = op
        for cell in reads:
            if cell != writes:
                self.readers[cell].append(op)
        self.ops.append(op)

    def send(self, chunk: int, block: tuple[str, int, int]) -> _Op:
        cell = self.home[chunk]
        op = _Op(self.rank, "s", cell, cell, block)
        self.add(op, [cell], None)
        return op

    def receive(self, chunk: int, adds: bool, block: tuple[str, int, int]) -> None:
        cell = self.target(chunk)
        home = self.home.get(chunk)
        if not adds or home is None:
            self.add(_Op(self.rank, "r", cell, cell, block), [], cell)
        elif self.fused:
            self.add(_Op(self.rank, "rrc", home, cell, block), [home], cell)
        else:
            # received beside what it is added to, in scratch if that is where it must end
            beside = cell
            if home == cell:
                beside = ("s", self.scratch)
                self.scratch += 1
            self.add(_Op(self.rank, "r", beside, beside, block), [], beside)
            other = beside if home == cell else home
            self.add(_Op(self.rank, "re", other, cell, block), [other, cell], cell)
        self.home[chunk] = cell

    def settle(self) -> None:
        """Copy what is wanted and has not moved to where it is to end."""
        for chunk, cell in self.goal.items():
            home = self.home.get(chunk)
            if home is not None and home != cell:
                self.add(_Op(self.rank, "cpy", home, cell), [home], cell)


def _fill(algorithm: Algorithm, ranks: list[_Rank]) -> None:
    """Instructions of all ranks, and for every send its row, so that both ends keep one order."""
    net, schedule = algorithm.problem.network, algorithm.schedule
    rows: dict[int, list[int]] = defaultdict(list)
    for row, step in enumerate(schedule.step.tolist()):
        rows[step].append(row)
    arrival = schedule.end_us + net.alpha_us[schedule.link]
    src, dst = net.src[schedule.link].tolist(), net.dst[schedule.link].tolist()
    chunk, adds = schedule.chunk.tolist(), schedule.reduces.tolist()
    for step in sorted(rows):
        for row in rows[step]:
            ranks[src[row]].send(chunk[row], ("s", dst[row], row))
        for row in sorted(rows[step], key=lambda row: (float(arrival[row]), row)):
            ranks[dst[row]].receive(chunk[row], adds[row], ("r", src[row], row))
    for rank in ranks:
        rank.settle()


def _blocks(rank: _Rank, channels: int, lane: Callable[[int, int], int]) -> Gpu:
    """Threadblocks of one rank, each connection's sends dealt out over `channels` of its lane in runs."""
    by_block: dict[tuple[str, int, int], list[_Op]] = defaultdict(list)
    connections: dict[tuple[str, int], list[_Op]] = defaultdict(list)
    for op in rank.ops:
        connections[op.block[0], op.block[1]].append(op)
    for (kind, peer), ops in sorted(connections.items()):
        ops.sort(key=lambda op: op.block[2])
        share = -(-len(ops) // channels)
        first = 0
        if kind != "local":
            first = channels * (lane(rank.rank, peer) if kind == "s" else lane(peer, rank.rank))
        for i, op in enumerate(ops):
            by_block[kind, peer, first + i // share].append(op)
    keys = sorted(by_block)
    place = {id(op): (b, i) for b, key in enumerate(keys) for i, op in enumerate(by_block[key])}
    needed = _pruned(rank.ops, place)
    awaited = {id(other) for others in needed.values() for other in others}
    position: dict[int, tuple[int, int]] = {}
    for b, key in enumerate(keys):
        at = 0
        for op in by_block[key]:
            at += max(0, len(needed[id(op)]) - 1)
            position[id(op)] = (b, at)
            at += 1
    blocks = []
    for key in keys:
        steps: list[Step] = []
        for op in by_block[key]:
            waits = [position[id(other)] for other in needed[id(op)]]
            steps += [Step("nop", "i", -1, "o", -1, 0, tb, at, False) for tb, at in waits[:-1]]
            tb, at = waits[-1] if waits else (-1, -1)
            steps.append(Step(op.kind, *op.src, *op.dst, 1, tb, at, id(op) in awaited))
        peer = key[1]
        blocks.append(
            ThreadBlock(peer if key[0] == "s" else -1, peer if key[0] == "r" else -1, key[2], steps)
        )
    return Gpu(*rank.sizes, rank.scratch, blocks)


def _pruned(ops: list[_Op], place: dict[int, tuple[int, int]]) -> dict[int, list[_Op]]:
    """For every instruction those others that it must name: not in its own block, not implied by the rest.

    `known[x]`: per block, how far it must have come when x has completed.
    """
    order = _topological(ops, place)
    known: dict[int, dict[int, int]] = {}
    needed: dict[int, list[_Op]] = {}
    before: dict[int, dict[int, int]] = defaultdict(dict)
    for op in order:
        block, index = place[id(op)]
        sure = dict(before[block])
        candidates = {id(o): o for o in op.after if place[id(o)][0] != block}
        kept = []
        for other in sorted(candidates.values(), key=lambda o: (-sum(known[id(o)].values()), place[id(o)])):
            b, i = place[id(other)]
            if sure.get(b, -1) >= i:
                continue
            kept.append(other)
            for tb, upto in known[id(other)].items():
                sure[tb] = max(sure.get(tb, -1), upto)
        sure[block] = index
        known[id(op)] = before[block] = sure
        needed[id(op)] = sorted(kept, key=lambda o: place[id(o)])
    return needed


def _topological(ops: list[_Op], place: dict[int, tuple[int, int]]) -> list[_Op]:
    """Instructions so that each stands behind its block's earlier ones and behind what it follows."""
    blocks: dict[int, list[_Op]] = defaultdict(list)
    for op in sorted(ops, key=lambda op: place[id(op)]):
        blocks[place[id(op)][0]].append(op)
    followers: dict[int, list[_Op]] = defaultdict(list)
    waits: dict[int, int] = {id(op): 0 for op in ops}
    for queue in blocks.values():
        for earlier, later in pairwise(queue):
            followers[id(earlier)].append(later)
            waits[id(later)] += 1
    for op in ops:
        for other in op.after:
            followers[id(other)].append(op)
            waits[id(op)] += 1
    ready = [op for op in ops if not waits[id(op)]]
    order = []
    while ready:
        op = ready.pop()
        order.append(op)
        for later in followers[id(op)]:
            waits[id(later)] -= 1
            if not waits[id(later)]:
                ready.append(later)
    if len(order) != len(ops):
        raise InputError("the schedule's order of sends contradicts its steps; it cannot be lowered")
    return order
