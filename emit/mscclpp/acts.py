"""What the threadblocks of a plan do, one act after another: pipelines unrolled, ids followed, data as cells."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from emit.check.capacity import CAPACITY
from emit.findings import Findings
from emit.mscclpp.memory import Memory, buffer_of, width
from emit.mscclpp.plan import PACKETS, SUMS, Op, Plan
from emit.mscclpp.structure import executed_parts, packet_parts
from topologies.errors import InputError


class Run(NamedTuple):
    """Cells from `cell` of `rank`; packets take two cells an element.

    turns: every second launch uses the upper half of double scratch.
    """

    cell: int
    rank: int
    packet: bool
    turns: bool = False

    def element(self, number: int) -> Sequence[int]:
        """The cells of one element."""
        return (self.cell + 2 * number, self.cell + 2 * number + 1) if self.packet else (self.cell + number,)


class Move(NamedTuple):
    """`length` elements: each destination becomes the sum of the sources."""

    length: int
    sources: tuple[Run, ...]
    targets: tuple[Run, ...]

    def packets_read(self) -> Iterator[int]:
        """The cells of its sources that are packets."""
        for run in self.sources:
            if run.packet:
                yield from range(run.cell, run.cell + 2 * self.length)


@dataclass(slots=True)
class Act:
    """One thing that a threadblock does; `op` is the operation's place in its list.

    kind: "nop", "barrier", "signal", "wait", "acquire", "release", "data". ids: channel ends, semaphores or the
    barrier, by number over all ranks. relaxed: orders execution but not memory. packets: how the operation deals its
    elements to threads. port: the channel end through which the data moves on its own time.
    """

    kind: str
    op: int
    name: str
    ids: tuple[int, ...] = ()
    relaxed: bool = False
    moves: tuple[Move, ...] = ()
    packets: bool = False
    ports: tuple[int, ...] = ()

    @property
    def flagged(self) -> bool:
        """Whether its threads wait for the flags of the packets that they read; a port channel's put does not."""
        return self.packets and not (self.ports and self.name == "ppkt")


@dataclass(slots=True)
class Acts:
    """Per threadblock, numbered through all ranks, its acts.

    rank, tb: of each block. ends: (rank, type, number in its list) of every channel end, and `across` the other end
    (−1 where there is none). semaphores: (rank, number, value at the start). barriers: (rank, id, blocks asked for).
    """

    acts: list[list[Act]] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    tb: list[int] = field(default_factory=list)
    ends: list[tuple[int, str, int]] = field(default_factory=list)
    across: list[int] = field(default_factory=list)
    semaphores: list[tuple[int, int, int]] = field(default_factory=list)
    barriers: list[tuple[int, int, int]] = field(default_factory=list)

    def place(self, block: int, op: int) -> tuple[int, int, int]:
        """(rank, tb, operation) for a message."""
        return self.rank[block], self.tb[block], op

    def name(self, block: int, op: int) -> str:
        """The operation's name."""
        return next(act.name for act in self.acts[block] if act.op == op)


def acts_of(memory: Memory) -> Acts:
    """Follow every id and unroll every pipeline. The plan must have passed `check_structure`.

    Raises InputError where it moves too much to be checked.
    """
    plan, made = memory.plan, Acts()
    end_of: dict[tuple[int, str, int], int] = {}
    met: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    for rank, gpu in enumerate(plan.gpus):
        for kind, peers in gpu.peers.items():
            for number, peer in enumerate(peers):
                end_of[rank, kind, number] = len(made.ends)
                met[rank, peer, kind].append(len(made.ends))
                made.ends.append((rank, kind, number))
    made.across = [-1] * len(made.ends)
    for (rank, peer, kind), mine in met.items():
        for here, there in zip(mine, met.get((peer, rank, kind), ()), strict=False):
            made.across[here] = there
    barrier_of: dict[tuple[int, int, int], int] = {}
    size = 0
    for rank, gpu in enumerate(plan.gpus):
        semaphores = len(made.semaphores)
        made.semaphores += [(rank, number, held) for number, held in enumerate(gpu.semaphores)]
        for tb, block in enumerate(gpu.blocks):
            acts: list[Act] = []
            for at, op, low, most in _unrolled(memory, block.ops):
                name = op.name
                if name == "nop":
                    acts.append(Act("nop", at, name))
                elif name == "barrier":
                    key = (rank, op.barrier, op.blocks)
                    number = barrier_of.setdefault(key, len(made.barriers))
                    if number == len(made.barriers):
                        made.barriers.append(key)
                    acts.append(Act("barrier", at, name, (number,)))
                elif name in ("sem_acquire", "sem_release"):
                    acts.append(Act(name[4:], at, name, tuple(semaphores + x for x in op.semaphores)))
                elif name in ("signal", "wait", "rlxsignal", "rlxwait"):
                    ids = tuple(end_of[rank, op.channel_type, block.channels[op.channel_type][x]] for x in op.channels)
                    acts.append(Act(name.removeprefix("rlx"), at, name, ids, relaxed=name.startswith("rlx")))
                elif op.src:
                    moves = _moves_of(memory, rank, tb, op, low, most)
                    ports: tuple[int, ...] = ()
                    if op.channel_type == "port":
                        ports = tuple(end_of[rank, "port", block.channels["port"][x]] for x in op.channels)
                    acts.append(Act("data", at, name, (), False, moves, name in PACKETS, ports))
                    size += sum(move.length * (len(move.sources) + len(move.targets)) for move in moves)
                size += 1
                if size > CAPACITY.moves:
                    raise InputError(f"plan moves more than {CAPACITY.moves} cells: too large to be checked")
            made.acts.append(acts)
            made.rank.append(rank)
            made.tb.append(tb)
    return made


def _unrolled(memory: Memory, ops: list[Op]) -> Iterator[tuple[int, Op, int, int | None]]:
    """(place, operation, first cell of it, cells of it at most) in the order of execution."""
    for at, op in enumerate(ops):
        if op.name != "pipeline":
            yield at, op, 0, None
            continue
        step = width(memory.plan, op)
        if op.unit_chunks * memory.units // step * (1 + len(op.ops)) > CAPACITY.moves:
            raise InputError(f"plan moves more than {CAPACITY.moves} cells: too large to be checked")
        for low in range(0, op.unit_chunks * memory.units, step):
            for inner in op.ops:
                yield at, inner, low, step


def _moves_of(memory: Memory, rank: int, tb: int, op: Op, low: int, most: int | None) -> tuple[Move, ...]:
    number, size = op.group
    count = op.src[0].size * memory.units // size
    shift = count * number + low
    if most is not None:
        count = max(0, min(count - low, most))
    sides: list[list[list[Run]]] = [[], []]
    for parts, packets, runs in zip(executed_parts(op), packet_parts(op), sides, strict=True):
        for part, packet in zip(parts, packets, strict=True):
            at = shift * (2 if packet else 1)
            owners = buffer_of(memory.plan, rank, tb, part, op.channel_type)
            # plain data of others, and what port channels move, knows no halves
            turns = memory.plan.double and (packet or (part.side == "L" and op.channel_type != "port"))
            runs.append(
                [
                    Run(memory.cell(owner, kind, part.first, packet) + at, owner, packet, turns and kind == "s")
                    for owner, kind in owners
                ]
            )
    sources, targets = sides
    if op.name in ("put", "ppkt", "pws", "pwsf", "get"):
        return tuple(Move(count, tuple(a), tuple(b)) for a, b in zip(sources, targets, strict=True))
    if op.name in SUMS or len(sources) == 1:
        return (Move(count, tuple(x for a in sources for x in a), tuple(x for b in targets for x in b)),)
    return tuple(Move(count, tuple(a), tuple(x for b in targets for x in b)) for a in sources)


def in_upper_half(made: Acts, memory: Memory) -> list[list[Act]]:
    """The acts as every second launch does them: half of a rank's *own* scratch further, also in scratch of others."""

    def moved(move: Move, half: int) -> Move:
        sources, targets = (
            tuple(run._replace(cell=run.cell + half) if run.turns else run for run in runs)
            for runs in (move.sources, move.targets)
        )
        return Move(move.length, sources, targets)

    halves = [memory.half(rank) for rank in made.rank]
    return [
        [replace(act, moves=tuple(moved(move, half) for move in act.moves)) if act.moves else act for act in acts]
        for acts, half in zip(made.acts, halves, strict=True)
    ]


def check_counts(made: Acts, plan: Plan, found: Findings) -> None:
    """Every signal must be waited for and every wait be signalled; semaphores end as they began; barriers are full."""
    times: dict[str, Counter[int]] = defaultdict(Counter)
    last: dict[tuple[str, int], tuple[int, int]] = {}
    at_barrier: dict[int, Counter[int]] = defaultdict(Counter)
    for block, acts in enumerate(made.acts):
        for act in acts:
            kind, ids = ("signal", act.ports) if act.name in ("pws", "pwsf") else (act.kind, act.ids)
            if kind == "barrier":
                at_barrier[ids[0]][block] += 1
            for number in ids:
                times[kind][number] += 1
                last[kind, number] = (block, act.op)

    def unpaired(kind: str, number: int, message: str) -> None:
        found.add("unpaired", message, *made.place(*last[kind, number]))

    signals, waits = times["signal"], times["wait"]
    for end, (rank, channel_type, number) in enumerate(made.ends):
        other = made.across[end]
        here = f"{channel_type} channel {number}"
        if signals[end] and other < 0:
            unpaired("signal", end, f"signals on {here}, which has no other end; it must have one")
        came = signals[other] if other >= 0 else 0
        if waits[end] > came:
            peer = plan.gpus[rank].peers[channel_type][number]
            message = f"waits {waits[end]} times on {here}, where rank {peer} signals {came} times"
            unpaired("wait", end, f"{message}: a missing signal")
        elif waits[end] < came:
            there = f"{channel_type} channel {made.ends[other][2]}"
            message = f"signals {came} times on {there}, but rank {rank} waits {waits[end]} times"
            unpaired("signal", other, f"{message} on its channel {number}: a missing wait")
    releases, acquires = times["release"], times["acquire"]
    for semaphore, (_, number, _) in enumerate(made.semaphores):
        more, less = releases[semaphore], acquires[semaphore]
        if more != less:
            message = f"semaphore {number} is released {more} times and acquired {less} times"
            kind = "release" if more > less else "acquire"
            unpaired(kind, semaphore, f"{message}; the next call would find it changed")
    used: dict[tuple[int, int], int] = {}
    for barrier, counts in at_barrier.items():
        rank, number, size = made.barriers[barrier]
        full = len(counts) == size and len(set(counts.values())) == 1
        if not full or used.setdefault((rank, number), barrier) != barrier:
            reached = ", ".join(f"tb {made.tb[b]} {n} times" for b, n in sorted(counts.items())[:8])
            right = f"it must be by {size}, equally often"
            message = f"barrier {number} of {size} threadblocks is reached by {reached}; {right}"
            found.add("unpaired", message, rank, made.tb[min(counts)])
