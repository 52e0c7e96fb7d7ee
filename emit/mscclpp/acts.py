"""List what the threadblocks of a plan do, act by act: pipelines are unrolled, ids are resolved, data is cells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from emit.check.acts import Act, ActRun, Acts, ChannelEnd, Move
from emit.check.capacity import CAPACITY
from emit.images import Images
from emit.mscclpp.memory import Memory, buffer_of
from emit.mscclpp.plan import PACKETS, SUMS, Op, PlanGpu
from emit.mscclpp.structure import executed_parts, packet_parts
from synth.model.deadline import checking_deadline
from topologies.errors import InputError

# Kind of the act of each operation that moves no data; a flush has none.
_KINDS = {
    **{name: name for name in ("nop", "barrier", "signal", "wait")},
    **{"rlxsignal": "signal", "rlxwait": "wait", "sem_acquire": "acquire", "sem_release": "release"},
}


def acts_of(memory: Memory) -> Acts:
    """Return the acts of a plan, which must have passed `check_structure`, as its first launch does them.

    Threadblocks are numbered through all ranks. Pipelines are unrolled. A flush has no act, because it does nothing.

    Raises:
        InputError: The plan moves too much to be checked.
    """
    images = None if memory.images is None else memory.images.images
    plan_acts, end_of = _with_channels(memory.plan.gpus, images)
    barrier_of: dict[tuple[int, int, int], int] = {}
    size = 0
    for rank, gpu in enumerate(memory.plan.gpus):
        first_semaphore = len(plan_acts.semaphores)
        plan_acts.semaphores += [(rank, number, value) for number, value in enumerate(gpu.semaphores)]
        for tb, block in checking_deadline(enumerate(gpu.blocks)):
            acts: list[Act] = []
            for at, op, low, max_cells in _unrolled(memory, block.ops):
                ids: tuple[int, ...] = ()
                if op.channels and op.channel_type != "switch":
                    channels = block.channels.get(op.channel_type, ())
                    ids = tuple([end_of[rank, op.channel_type, channels[x]] for x in op.channels])
                kind = _KINDS.get(op.name)
                if kind == "barrier":
                    number = barrier_of.setdefault((rank, op.barrier, op.blocks), len(barrier_of))
                    acts.append(Act(kind, at, op.name, (number,)))
                elif kind in ("acquire", "release"):
                    acts.append(Act(kind, at, op.name, tuple([first_semaphore + x for x in op.semaphores])))
                elif kind in ("signal", "wait"):
                    acts.append(Act(kind, at, op.name, ids, op.name.startswith("rlx")))
                elif kind is not None:
                    acts.append(Act(kind, at, op.name))
                elif op.src:
                    moves = _moves_of(memory, rank, tb, op, low, max_cells)
                    ports = ids if op.channel_type == "port" else ()
                    acts.append(Act("data", at, op.name, moves=moves, packets=op.name in PACKETS, ports=ports))
                    if memory.is_checked:
                        size += sum(move.length * (len(move.sources) + len(move.targets)) for move in moves)
                size += 1
                if size > CAPACITY.moves:
                    raise InputError(f"plan moves more than {CAPACITY.moves} cells: too large to be checked")
            plan_acts.acts.append(acts)
            plan_acts.rank.append(rank)
            plan_acts.tb.append(tb)
    plan_acts.barriers = list(barrier_of)
    return plan_acts


def _with_channels(gpus: list[PlanGpu], images: Images | None = None) -> tuple[Acts, dict[tuple[int, str, int], int]]:
    """Return acts with the channel ends of all ranks, and the number of each end by (rank, type, number in its list).

    The k-th channel of a rank to a peer is connected to the peer's k-th channel of that type to that rank; an end
    without such a channel has −1 in `across`. With images, the other end is that of the peer's representative; if that
    is the same list, the ends of a channel are adjacent in it, and the last of an odd number is its own other end.
    """
    plan_acts = Acts()
    end_of: dict[tuple[int, str, int], int] = {}
    ends_between: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    for rank, gpu in enumerate(gpus):
        for kind, peers in gpu.peers.items():
            for number, peer in enumerate(peers):
                end_of[rank, kind, number] = len(plan_acts.ends)
                ends_between[rank, peer, kind].append(len(plan_acts.ends))
                plan_acts.ends.append(ChannelEnd(rank, kind, number, peer))
    plan_acts.across = [-1] * len(plan_acts.ends)
    for (rank, peer, kind), own_ends in ends_between.items():
        if images is not None and 0 <= peer < images.nranks:
            reverse_pair = images.reverse(rank, peer)
            if reverse_pair == (rank, peer):
                for first_end, second_end in zip(own_ends[::2], own_ends[1::2], strict=False):
                    plan_acts.across[first_end], plan_acts.across[second_end] = second_end, first_end
                if len(own_ends) % 2:
                    plan_acts.across[own_ends[-1]] = own_ends[-1]  # The other end is an image of this one.
                continue
            for own_end, other_end in zip(own_ends, ends_between.get((*reverse_pair, kind), ()), strict=False):
                plan_acts.across[own_end] = other_end
            continue
        for own_end, other_end in zip(own_ends, ends_between.get((peer, rank, kind), ()), strict=False):
            plan_acts.across[own_end] = other_end
    return plan_acts, end_of


def _unrolled(memory: Memory, ops: list[Op]) -> Iterator[tuple[int, Op, int, int | None]]:
    """Yield (position, operation, first cell, largest number of cells) in the order of execution.

    An operation of a pipeline has the pipeline's position and is yielded once an iteration; its first cell is counted
    within the operation's share. Outside of pipelines the first cell is 0 and the number is None, for all cells.

    Raises:
        InputError: The plan is too large to be checked.
    """
    for at, op in enumerate(ops):
        if op.name != "pipeline":
            yield at, op, 0, None
            continue
        step = memory.iteration[op.unit_bytes, op.unit_chunks]
        if op.unit_chunks * memory.units // step * (1 + len(op.ops)) > CAPACITY.moves:
            raise InputError(f"plan moves more than {CAPACITY.moves} cells: too large to be checked")
        for low in range(0, op.unit_chunks * memory.units, step):
            for inner in op.ops:
                yield at, inner, low, step


def _moves_of(memory: Memory, rank: int, tb: int, op: Op, low: int, most: int | None) -> tuple[Move, ...]:
    """Return the moves of a data operation, in the order in which it makes them; their lengths and `low` are in cells.

    Args:
        memory: Memory of the plan.
        rank: Rank of the operation.
        tb: Its threadblock.
        op: The operation, of which a threadblock group's member makes its own share.
        low: First cell of its share in this iteration of a pipeline.
        most: Largest number of cells in this iteration; None outside of pipelines.
    """
    number, size = op.group
    count = op.src[0].size * memory.units // size
    shift = count * number + low
    if most is not None:
        count = max(0, min(count - low, most))
    sides: list[list[list[ActRun]]] = [[], []]
    plan, channel_type = memory.plan, op.channel_type
    for parts, packets, runs in zip(executed_parts(op), packet_parts(op), sides, strict=True):
        for part, packet in zip(parts, packets, strict=True):
            at = shift * (2 if packet else 1)
            # The executor applies halves neither to plain data of other ranks nor to data that port channels move.
            turns = plan.double and (packet or (part.side == "L" and channel_type != "port"))
            runs.append(
                [
                    ActRun(memory.cell(owner, kind, part.first, packet) + at, owner, packet, turns and kind == "s")
                    for owner, kind in buffer_of(plan, rank, tb, part, channel_type)
                ]
            )
    sources, targets = sides
    if op.name in ("put", "ppkt", "pws", "pwsf", "get"):
        return tuple(Move(count, tuple(a), tuple(b)) for a, b in zip(sources, targets, strict=True))
    if op.name in SUMS or len(sources) == 1:
        return (Move(count, tuple(x for a in sources for x in a), tuple(x for b in targets for x in b)),)
    return tuple(Move(count, tuple(a), tuple(x for b in targets for x in b)) for a in sources)


def in_upper_half(plan_acts: Acts, memory: Memory) -> list[list[Act]]:
    """Return the acts of each threadblock as every second launch does them; acts without moves are the same objects.

    They use the cells half of a rank's *own* scratch further, also in the scratch of other ranks.
    """

    def moved(move: Move, half: int) -> Move:
        """Return a move in which the runs that change between launches are `half` cells further."""
        sources, targets = (
            tuple(run._replace(cell=run.cell + half) if run.turns else run for run in runs)
            for runs in (move.sources, move.targets)
        )
        return Move(move.length, sources, targets)

    scratch_halves = [memory.half(rank) for rank in plan_acts.rank]
    return [
        [replace(act, moves=tuple(moved(move, half) for move in act.moves)) if act.moves else act for act in acts]
        for acts, half in zip(plan_acts.acts, scratch_halves, strict=True)
    ]
