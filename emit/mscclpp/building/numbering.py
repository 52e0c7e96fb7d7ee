"""Assign the numbers of channels, remote buffers and semaphores: symbolic threadblocks become a plan's ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import count

from emit.images import Images
from emit.mscclpp.building.spans import Span, SpanPlacement, Step
from emit.mscclpp.building.threadblocks import SymbolicBlock, SymbolicOp
from emit.mscclpp.plan import (
    EVEN_SCRATCH,
    MAX_OP_CHANNELS,
    MAX_OP_SEMAPHORES,
    NOP,
    Op,
    PlanBlock,
    PlanGpu,
    PlanPart,
    RemoteBuffer,
)
from synth.model.deadline import checking_deadline

# (threadblock that sends, threadblock that receives). A threadblock of the program that is split counts as its first
# part: all parts have its channels, which they use one after the other, so that its messages stay in their order.
_Channel = tuple[int, int]


class Numbering:
    """The numbers of one plan.

    Attributes:
        blocks: Symbolic threadblocks of all ranks.
        places: Places of the program's data.
        nodes: Node of each rank.
        sizes: Input and output chunks of each rank.
        packets: Whether messages are packets.
        connections: (rank, rank that it sends to, as it sees it) of each send.
        images: Images of the ranks, if the program has translations; else None.
        unit_bytes: Bytes of an iteration of every pipeline.
        part: Threadblock of each step.
        place: Position of each step among the steps of its threadblock.
        channel_of: Channel of each send.
        kind: Type of each channel.
        first_packet: First packet of each rank's scratch for packets.
        semaphores: Number of each rank's semaphores, by (threadblock that releases, threadblock that acquires).
        needed: Semaphores that each step releases.
    """

    def __init__(
        self,
        blocks: list[SymbolicBlock],
        places: SpanPlacement,
        nodes: list[int],
        sizes: list[tuple[int, int]],
        packets: bool,
        connections: Mapping[Step, tuple[int, int]],
        images: Images | None = None,
        unit_bytes: int = 0,
    ) -> None:
        self.connections, self.images, self.unit_bytes = connections, images, unit_bytes
        self.blocks, self.places, self.nodes, self.sizes, self.packets = blocks, places, nodes, sizes, packets
        self.part: dict[Step, int] = {}
        self.place: dict[Step, int] = {}
        for number, block in checking_deadline(enumerate(blocks)):
            for at, step in enumerate(block.steps):
                self.part[step], self.place[step] = number, at
        first_parts: dict[int, int] = {}
        for number, block in enumerate(blocks):
            first_parts.setdefault(block.number, number)
        first_part = {step: first_parts[blocks[part].number] for step, part in self.part.items()}
        self.channel_of: dict[Step, _Channel] = {
            send: (first_part[send], first_part[receive]) for send, receive in sorted(places.match.items())
        }
        self.kind = {channel: self._type(*connections[send]) for send, channel in self.channel_of.items()}
        self.first_packet = [-(-plain // 2) if packets else plain for plain in places.scratch]
        self.semaphores: list[dict[_Channel, int]] = [{} for _ in sizes]
        self.needed: dict[Step, list[int]] = defaultdict(list)

    def _type(self, u: int, v: int) -> str:
        """Return the type of channels between two ranks: memory within a node, else port."""
        return "memory" if self.nodes[u] == self.nodes[v] else "port"

    def gpus(self) -> list[PlanGpu]:
        """Return the ranks of the plan; this adds to the symbolic threadblocks what their other ends need.

        It is to be called once.
        """
        self._other_ends()
        acquired = self._edges()
        scratch = [first + packets for first, packets in zip(self.first_packet, self.places.packets, strict=True)]
        if self.packets:  # A rank computes the upper half of its peers' scratch from the size of its own scratch.
            scratch = [-(-max(scratch) // EVEN_SCRATCH) * EVEN_SCRATCH] * len(scratch)
        gpus = [PlanGpu(*size, chunks) for size, chunks in zip(self.sizes, scratch, strict=True)]
        ends = self._channels(gpus)
        buffers: list[dict[tuple[int, str], int]] = [{} for _ in gpus]
        for number, block in enumerate(self.blocks):
            gpu = gpus[block.rank]
            gpu.blocks.append(self._block(number, block, acquired, ends, buffers[block.rank]))
        for rank, gpu in enumerate(gpus):
            gpu.semaphores = [0] * len(self.semaphores[rank])
            for peer, kind in buffers[rank]:
                gpu.buffers.append(RemoteBuffer(peer, kind, (self._type(rank, peer),)))
        return gpus

    def _other_ends(self) -> None:
        """Add to the symbolic threadblocks the signals of receivers to their senders, and the senders' last waits.

        At its start a receiver signals that it has started, if a sender waits for that. A sender may end only when port
        channels have read what it sends. If it would not hear of that otherwise, its last put flushes the channel if
        that keeps nobody waiting. Others are confirmed: the receiver signals at its end that everything has arrived.
        """
        waiting_sends: dict[int, list[Step]] = defaultdict(list)
        for send, placed in enumerate(self.places.steps):
            if placed.awaits_start:
                waiting_sends[self.channel_of[send][1]].append(send)
        for number, sends in waiting_sends.items():
            ops: list[SymbolicOp] = []
            for kind in ("memory", "port"):
                chosen = [send for send in sends if self.kind[self.channel_of[send]] == kind]
                for low in range(0, len(chosen), MAX_OP_CHANNELS):
                    ops.append(SymbolicOp("signal", sends=chosen[low : low + MAX_OP_CHANNELS], kind=kind, back=True))
            self.blocks[number].ops[:0] = ops
        confirmed_sends = {self.channel_of[send]: send for send in sorted(self.places.unconfirmed)}
        for channel, send in list(confirmed_sends.items()):
            if _flushes(self.blocks[self.part[send]].ops, send):
                del confirmed_sends[channel]
        synchronized: set[int] = set()
        for send in confirmed_sends.values():
            receiver = self.part[self.places.match[send]]
            if receiver not in synchronized:
                self.blocks[receiver].ops.append(SymbolicOp("nop"))
                synchronized.add(receiver)
            self.blocks[receiver].ops.append(SymbolicOp("signal", sends=[send], kind="port", back=True))
        for send in confirmed_sends.values():
            kind = self.kind[self.channel_of[send]]
            self.blocks[self.part[send]].ops.append(SymbolicOp("wait", sends=[send], kind=kind, back=True))

    def _edges(self) -> dict[tuple[int, int], list[int]]:
        """Return the semaphores that each (threadblock, position of operation) acquires, without implied waits.

        A wait is implied by an earlier wait of the threadblock for the same step or a later one of the same
        threadblock. New semaphores are numbered, and recorded with the steps that release them.
        """
        acquired: dict[tuple[int, int], list[int]] = {}
        for number, block in checking_deadline(enumerate(self.blocks)):
            known_place: dict[int, int] = {}
            semaphores = self.semaphores[block.rank]
            for at, op in enumerate(block.all_ops()):
                if op.name != "sem_acquire":
                    continue
                latest: dict[int, Step] = {}
                for step in op.steps:
                    part = self.part[step]
                    if part != number and self.place[step] > known_place.get(part, -1):
                        known_place[part] = self.place[step]
                        latest[part] = step
                ids = []
                for part, step in latest.items():
                    semaphore = semaphores.setdefault((part, number), len(semaphores))
                    self.needed[step].append(semaphore)
                    ids.append(semaphore)
                acquired[number, at] = ids
        return acquired

    def _channels(self, gpus: list[PlanGpu]) -> dict[tuple[_Channel, bool], int]:
        """Return the number, in its rank's list, of each channel end, by (channel, whether it is the receiver's end).

        The lists `peers` of `gpus` are set. The k-th channel of a rank to a peer is connected to the peer's k-th
        channel to that rank. If an image of a channel is the same channel in the other direction, its two ends are
        adjacent (see `emit.mscclpp.images`).
        """
        ends: dict[tuple[_Channel, bool], int] = {}
        of_rank: dict[tuple[int, str], list[tuple[int, int, bool, _Channel]]] = defaultdict(list)
        ranks = {channel: self.connections[send] for send, channel in self.channel_of.items()}
        for n, (channel, kind) in enumerate(self.kind.items()):
            u, v = ranks[channel]
            of_rank[u, kind].append((v, n, False, channel))
            receiver, sender = (v, u) if self.images is None else self.images.reverse(u, v)
            of_rank[receiver, kind].append((sender, n, True, channel))
        for rank, gpu in enumerate(gpus):
            for kind in ("memory", "port"):
                channels = sorted(of_rank[rank, kind])
                gpu.peers[kind] = [peer for peer, *_ in channels]
                for n, (_, _, is_receiver, channel) in enumerate(channels):
                    ends[channel, is_receiver] = n
        return ends

    def _block(
        self,
        number: int,
        block: SymbolicBlock,
        acquired: dict[tuple[int, int], list[int]],
        ends: dict[tuple[_Channel, bool], int],
        buffers: dict[tuple[int, str], int],
    ) -> PlanBlock:
        """Return a threadblock of the plan, without nops that follow nops, or stand first or last.

        Args:
            number: Number of the symbolic threadblock.
            block: The symbolic threadblock.
            acquired: Semaphores of each acquire, as `_edges` returns them.
            ends: Numbers of channel ends, as `_channels` returns them.
            buffers: Number of each remote buffer (rank, buffer) of the threadblock's rank; new ones are added.
        """
        plan_block = PlanBlock()
        channels: dict[str, dict[int, int]] = {"memory": {}, "port": {}}
        remote: dict[str, dict[int, int]] = {"memory": {}, "port": {}}

        def channel(send: Step, op: SymbolicOp) -> int:
            """Return the place of a send's channel in the threadblock's list; a new one is appended."""
            end = ends[self.channel_of[send], (op.name == "wait") != op.back]
            return channels[op.kind].setdefault(end, len(channels[op.kind]))

        def part(span: Span, kind: str) -> PlanPart:
            """Return a span as part of an operation on channels of type `kind`; a new remote buffer is appended."""
            _, name, index, size, rank = span
            if name == "p":
                name, index = "s", index + self.first_packet[rank if rank >= 0 else block.rank]
            if rank < 0:
                return PlanPart("L", name, index, size)
            in_gpu = buffers.setdefault((rank, name), len(buffers))
            return PlanPart("R", remote[kind].setdefault(in_gpu, len(remote[kind])), index, size)

        positions = count()  # in `SymbolicBlock.all_ops`

        def numbered(symbolic_ops: list[SymbolicOp], *, in_pipeline: bool) -> list[Op]:
            """Return operations with the numbers of their channels and semaphores in place of symbols.

            Outside of a pipeline, nops at the beginning and nops that follow another nop are left out. So are pipelines
            without operations. Semaphores of which an operation would have too many get several operations.
            """
            ops: list[Op] = []
            for op in symbolic_ops:
                at = next(positions)
                if op.name == "pipeline":
                    if body := numbered(op.body, in_pipeline=True):
                        ops.append(Op(op.name, ops=body, unit_bytes=self.unit_bytes, unit_chunks=op.chunks))
                elif op.name == "nop":
                    if in_pipeline or (ops and ops[-1] is not NOP):
                        ops.append(NOP)
                elif op.name in ("sem_acquire", "sem_release"):
                    ids = acquired[number, at] if op.name == "sem_acquire" else []
                    if op.name == "sem_release":
                        ids = [semaphore for step in op.steps for semaphore in self.needed[step]]
                    for low in range(0, len(ids), MAX_OP_SEMAPHORES):
                        ops.append(Op(op.name, semaphores=ids[low : low + MAX_OP_SEMAPHORES]))
                else:
                    src, dst = ([part(span, op.kind) for span in spans] for spans in (op.src, op.dst))
                    ops.append(Op(op.name, src, dst, op.kind, [channel(send, op) for send in op.sends]))
            return ops

        ops = numbered(block.ops, in_pipeline=False)
        while ops and ops[-1] is NOP:
            ops.pop()
        plan_block.ops = ops
        plan_block.channels = {kind: list(ids) for kind, ids in channels.items() if ids}
        plan_block.buffers = {kind: list(ids) for kind, ids in remote.items() if ids}
        return plan_block


def _flushes(ops: list[SymbolicOp], send: Step) -> bool:
    """Make the put of a send on a port channel flush it if that keeps no other threadblock waiting; return whether.

    What follows the put may be waits, and a release for those who wait for the send. The release moves to before the
    put: a port channel reads its data later in any case, so that the order of the two says nothing about that.

    Args:
        ops: Operations of the threadblock, which may be changed.
        send: The send.
    """
    put = max((n for n, op in enumerate(ops) if op.name == "pws" and op.sends == [send]), default=len(ops))
    rest = ops[put + 1 :]
    releases = [op for op in rest if op.name == "sem_release"]
    if put == len(ops) or any(op.steps != [send] for op in releases):
        return False
    if any(op.name not in ("nop", "wait", "sem_release") for op in rest):
        return False
    ops[put].name = "pwsf"
    before = [op for op in rest if op.name == "nop"][:1] if releases else []
    ops[put:] = [*before, *releases, ops[put], *(op for op in rest if op.name != "sem_release")]
    return True
