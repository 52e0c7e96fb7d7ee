"""List what the threadblocks of a plan do, act by act: pipelines are unrolled, ids are resolved, data is cells."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from emit.check.capacity import CAPACITY
from emit.findings import Findings
from emit.mscclpp.memory import Memory, buffer_of, width
from emit.mscclpp.plan import PACKETS, SUMS, ExecutionPlan, Op
from emit.mscclpp.structure import executed_parts, packet_parts
from synth.model.deadline import checking_deadline
from topologies.errors import InputError


class ActRun(NamedTuple):
    """A run of cells of one rank; packets take two cells an element.

    Attributes:
        cell: First cell.
        rank: Rank whose memory it is.
        packet: Whether the elements are packets.
        turns: Whether every second launch uses the upper half of double scratch instead.
    """

    cell: int
    rank: int
    packet: bool
    turns: bool = False

    def element(self, number: int) -> Sequence[int]:
        """Return the cells of one element."""
        return (self.cell + 2 * number, self.cell + 2 * number + 1) if self.packet else (self.cell + number,)


class Move(NamedTuple):
    """A move of `length` elements: each destination becomes the sum of the sources.

    Attributes:
        length: Number of elements.
        sources: Runs that are read.
        targets: Runs that are written.
    """

    length: int
    sources: tuple[ActRun, ...]
    targets: tuple[ActRun, ...]

    def packets_read(self) -> Iterator[int]:
        """Yield the cells of the sources that are packets."""
        for run in self.sources:
            if run.packet:
                yield from range(run.cell, run.cell + 2 * self.length)


@dataclass(slots=True)
class Act:
    """A single act of a threadblock.

    Attributes:
        kind: "nop", "barrier", "signal", "wait", "acquire", "release" or "data".
        op: Position of its operation in the threadblock's list.
        name: Name of its operation.
        ids: Channel ends, semaphores or the barrier, numbered through all ranks.
        relaxed: Whether it orders execution but not memory.
        moves: Moves of a data operation.
        packets: Whether the operation distributes its elements over threads as packet operations do.
        ports: Channel ends through which port channels move the data asynchronously.
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
        """Return True if its threads wait for the flags of packets that they read; a port channel's put does not."""
        return self.packets and not (self.ports and self.name == "ppkt")


@dataclass(slots=True)
class Acts:
    """The acts of a plan's threadblocks, which are numbered through all ranks.

    Attributes:
        acts: Acts of each threadblock.
        rank: Rank of each threadblock.
        tb: Number of each threadblock in its rank.
        ends: (rank, type, number in its list) of every channel end.
        across: Other end of every channel end, −1 for none.
        semaphores: (rank, number, initial value) of every semaphore.
        barriers: (rank, id, number of threadblocks that must meet) of every barrier.
    """

    acts: list[list[Act]] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    tb: list[int] = field(default_factory=list)
    ends: list[tuple[int, str, int]] = field(default_factory=list)
    across: list[int] = field(default_factory=list)
    semaphores: list[tuple[int, int, int]] = field(default_factory=list)
    barriers: list[tuple[int, int, int]] = field(default_factory=list)

    def place(self, block: int, op: int) -> tuple[int, int, int]:
        """Return (rank, threadblock, operation) for a message."""
        return self.rank[block], self.tb[block], op

    def name(self, block: int, op: int) -> str:
        """Return the name of an operation."""
        return next(act.name for act in self.acts[block] if act.op == op)


def acts_of(memory: Memory) -> Acts:
    """Return the acts of a plan, which must have passed `check_structure`.

    Raises:
        InputError: The plan moves too much to be checked.
    """
    plan, result = memory.plan, Acts()
    end_of: dict[tuple[int, str, int], int] = {}
    ends_between: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    for rank, gpu in enumerate(plan.gpus):
        for kind, peers in gpu.peers.items():
            for number, peer in enumerate(peers):
                end_of[rank, kind, number] = len(result.ends)
                ends_between[rank, peer, kind].append(len(result.ends))
                result.ends.append((rank, kind, number))
    result.across = [-1] * len(result.ends)
    for (rank, peer, kind), own_ends in ends_between.items():
        for own_end, other_end in zip(own_ends, ends_between.get((peer, rank, kind), ()), strict=False):
            result.across[own_end] = other_end
    barrier_of: dict[tuple[int, int, int], int] = {}
    size = 0
    for rank, gpu in enumerate(plan.gpus):
        semaphores = len(result.semaphores)
        result.semaphores += [(rank, number, value) for number, value in enumerate(gpu.semaphores)]
        for tb, block in checking_deadline(enumerate(gpu.blocks)):
            acts: list[Act] = []
            for at, op, low, max_cells in _unrolled(memory, block.ops):
                name = op.name
                if name == "nop":
                    acts.append(Act("nop", at, name))
                elif name == "barrier":
                    key = (rank, op.barrier, op.blocks)
                    number = barrier_of.setdefault(key, len(result.barriers))
                    if number == len(result.barriers):
                        result.barriers.append(key)
                    acts.append(Act("barrier", at, name, (number,)))
                elif name in ("sem_acquire", "sem_release"):
                    acts.append(Act(name[4:], at, name, tuple(semaphores + x for x in op.semaphores)))
                elif name in ("signal", "wait", "rlxsignal", "rlxwait"):
                    ids = tuple(end_of[rank, op.channel_type, block.channels[op.channel_type][x]] for x in op.channels)
                    acts.append(Act(name.removeprefix("rlx"), at, name, ids, relaxed=name.startswith("rlx")))
                elif op.src:
                    moves = _moves_of(memory, rank, tb, op, low, max_cells)
                    ports: tuple[int, ...] = ()
                    if op.channel_type == "port":
                        ports = tuple(end_of[rank, "port", block.channels["port"][x]] for x in op.channels)
                    acts.append(Act("data", at, name, (), False, moves, name in PACKETS, ports))
                    size += sum(move.length * (len(move.sources) + len(move.targets)) for move in moves)
                size += 1
                if size > CAPACITY.moves:
                    raise InputError(f"plan moves more than {CAPACITY.moves} cells: too large to be checked")
            result.acts.append(acts)
            result.rank.append(rank)
            result.tb.append(tb)
    return result


def _unrolled(memory: Memory, ops: list[Op]) -> Iterator[tuple[int, Op, int, int | None]]:
    """Yield (position, operation, its first cell, its largest number of cells) in the order of execution."""
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
    """Return the moves of a data operation.

    Args:
        memory: Memory of the plan.
        rank: Rank of the operation.
        tb: Its threadblock.
        op: The operation.
        low: First cell of its share in this iteration of a pipeline.
        most: Largest number of cells in this iteration; None outside of pipelines.
    """
    number, size = op.group
    count = op.src[0].size * memory.units // size
    shift = count * number + low
    if most is not None:
        count = max(0, min(count - low, most))
    sides: list[list[list[ActRun]]] = [[], []]
    for parts, packets, runs in zip(executed_parts(op), packet_parts(op), sides, strict=True):
        for part, packet in zip(parts, packets, strict=True):
            at = shift * (2 if packet else 1)
            owners = buffer_of(memory.plan, rank, tb, part, op.channel_type)
            # The executor applies halves neither to plain data of other ranks nor to data that port channels move.
            turns = memory.plan.double and (packet or (part.side == "L" and op.channel_type != "port"))
            runs.append(
                [
                    ActRun(memory.cell(owner, kind, part.first, packet) + at, owner, packet, turns and kind == "s")
                    for owner, kind in owners
                ]
            )
    sources, targets = sides
    if op.name in ("put", "ppkt", "pws", "pwsf", "get"):
        return tuple(Move(count, tuple(a), tuple(b)) for a, b in zip(sources, targets, strict=True))
    if op.name in SUMS or len(sources) == 1:
        return (Move(count, tuple(x for a in sources for x in a), tuple(x for b in targets for x in b)),)
    return tuple(Move(count, tuple(a), tuple(x for b in targets for x in b)) for a in sources)


def in_upper_half(plan_acts: Acts, memory: Memory) -> list[list[Act]]:
    """Return the acts as every second launch does them.

    They use the cells half of a rank's *own* scratch further, also in the scratch of other ranks.
    """

    def moved(move: Move, half: int) -> Move:
        """Return a move in the upper half of scratch."""
        sources, targets = (
            tuple(run._replace(cell=run.cell + half) if run.turns else run for run in runs)
            for runs in (move.sources, move.targets)
        )
        return Move(move.length, sources, targets)

    halves = [memory.half(rank) for rank in plan_acts.rank]
    return [
        [replace(act, moves=tuple(moved(move, half) for move in act.moves)) if act.moves else act for act in acts]
        for acts, half in zip(plan_acts.acts, halves, strict=True)
    ]


def check_counts(plan_acts: Acts, plan: ExecutionPlan, findings: Findings) -> None:
    """Check that signals and waits match, that semaphores end at their initial value, and that barriers are full."""
    times: dict[str, Counter[int]] = defaultdict(Counter)
    last_use: dict[tuple[str, int], tuple[int, int]] = {}
    at_barrier: dict[int, Counter[int]] = defaultdict(Counter)
    for block, acts in enumerate(plan_acts.acts):
        for act in acts:
            kind, ids = ("signal", act.ports) if act.name in ("pws", "pwsf") else (act.kind, act.ids)
            if kind == "barrier":
                at_barrier[ids[0]][block] += 1
            for number in ids:
                times[kind][number] += 1
                last_use[kind, number] = (block, act.op)

    def unpaired(kind: str, number: int, message: str) -> None:
        """Add a finding at the last use of a channel end or semaphore."""
        findings.add("unpaired", message, *plan_acts.place(*last_use[kind, number]))

    signals, waits = times["signal"], times["wait"]
    for end, (rank, channel_type, number) in enumerate(plan_acts.ends):
        other_end = plan_acts.across[end]
        channel_text = f"{channel_type} channel {number}"
        if signals[end] and other_end < 0:
            unpaired("signal", end, f"signals on {channel_text}, which has no other end; it must have one")
        received = signals[other_end] if other_end >= 0 else 0
        if waits[end] > received:
            peer = plan.gpus[rank].peers[channel_type][number]
            message = f"waits {waits[end]} times on {channel_text}, where rank {peer} signals {received} times"
            unpaired("wait", end, f"{message}: a missing signal")
        elif waits[end] < received:
            other_channel = f"{channel_type} channel {plan_acts.ends[other_end][2]}"
            message = f"signals {received} times on {other_channel}, but rank {rank} waits {waits[end]} times"
            unpaired("signal", other_end, f"{message} on its channel {number}: a missing wait")
    releases, acquires = times["release"], times["acquire"]
    for semaphore, (_, number, _) in enumerate(plan_acts.semaphores):
        nreleases, nacquires = releases[semaphore], acquires[semaphore]
        if nreleases != nacquires:
            message = f"semaphore {number} is released {nreleases} times and acquired {nacquires} times"
            kind = "release" if nreleases > nacquires else "acquire"
            unpaired(kind, semaphore, f"{message}; the next call would find it changed")
    used: dict[tuple[int, int], int] = {}
    for barrier, counts in at_barrier.items():
        rank, number, size = plan_acts.barriers[barrier]
        full = len(counts) == size and len(set(counts.values())) == 1
        if not full or used.setdefault((rank, number), barrier) != barrier:
            reached = ", ".join(f"tb {plan_acts.tb[b]} {n} times" for b, n in sorted(counts.items())[:8])
            remedy = f"it must be by {size}, equally often"
            message = f"barrier {number} of {size} threadblocks is reached by {reached}; {remedy}"
            findings.add("unpaired", message, rank, plan_acts.tb[min(counts)])
