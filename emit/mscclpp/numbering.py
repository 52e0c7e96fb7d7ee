"""Symbolic threadblocks → a plan's ranks: the numbers of channels, remote buffers and semaphores."""

from __future__ import annotations

from collections import defaultdict

from emit.mscclpp.plan import (
    EVEN_SCRATCH,
    MAX_OP_CHANNELS,
    MAX_OP_SEMAPHORES,
    Op,
    Part,
    PlanBlock,
    PlanGpu,
    RemoteBuffer,
)
from emit.mscclpp.spans import Placement, Span, Step
from emit.mscclpp.threadblocks import RemoteSpan, SymbolicBlock, SymbolicOp

_Channel = tuple[int, int]  # the threadblock that sends on a channel, and the one that receives
_NOP = Op("nop")


class Numbering:
    """One plan's numbers; sizes: of each rank, input and output chunks.

    Attributes:
        part, place: of each step its threadblock and its place among that one's steps.
        channel_of: of each send. kind: of each channel.
        first_packet: of each rank the packet that its scratch for packets begins with.
        semaphores: of each rank, by (threadblock that releases, one that acquires). needed: those of each step.
    """

    def __init__(
        self,
        blocks: list[SymbolicBlock],
        places: Placement,
        nodes: list[int],
        sizes: list[tuple[int, int]],
        packets: bool,
    ) -> None:
        self.blocks, self.places, self.nodes, self.sizes, self.packets = blocks, places, nodes, sizes, packets
        self.part: dict[Step, int] = {}
        self.place: dict[Step, int] = {}
        for number, block in enumerate(blocks):
            for at, step in enumerate(block.steps):
                self.part[step], self.place[step] = number, at
        self.channel_of: dict[Step, _Channel] = {
            send: (self.part[send], self.part[receive]) for send, receive in sorted(places.match.items())
        }
        self.kind = {
            channel: self._type(*(blocks[end].rank for end in channel)) for channel in self.channel_of.values()
        }
        self.first_packet = [-(-plain // 2) if packets else plain for plain in places.scratch]
        self.semaphores: list[dict[_Channel, int]] = [{} for _ in sizes]
        self.needed: dict[Step, list[int]] = defaultdict(list)

    def _type(self, u: int, v: int) -> str:
        return "memory" if self.nodes[u] == self.nodes[v] else "port"

    def gpus(self) -> list[PlanGpu]:
        """The ranks of the plan. The symbolic blocks gain what their other ends need."""
        self._other_ends()
        acquired = self._edges()
        scratch = [first + packets for first, packets in zip(self.first_packet, self.places.packets, strict=True)]
        if self.packets:  # a rank finds the upper half of others' scratch by the size of its own
            scratch = [-(-max(scratch) // EVEN_SCRATCH) * EVEN_SCRATCH] * len(scratch)
        made = [PlanGpu(*size, chunks) for size, chunks in zip(self.sizes, scratch, strict=True)]
        ends = self._channels(made)
        buffers: list[dict[tuple[int, str], int]] = [{} for _ in made]
        for number, block in enumerate(self.blocks):
            gpu = made[block.rank]
            gpu.blocks.append(self._block(number, block, acquired, ends, buffers[block.rank]))
        for rank, gpu in enumerate(made):
            gpu.semaphores = [0] * len(self.semaphores[rank])
            for other, kind in buffers[rank]:
                gpu.buffers.append(RemoteBuffer(other, kind, (self._type(rank, other),)))
        return made

    def _other_ends(self) -> None:
        """Receivers say at once that they have started, where a sender asks; and at their end that all arrived."""
        top: dict[int, list[Step]] = defaultdict(list)
        for send, placed in enumerate(self.places.steps):
            if placed.awaits_start:
                top[self.channel_of[send][1]].append(send)
        for number, sends in top.items():
            ops: list[SymbolicOp] = []
            for kind in ("memory", "port"):
                chosen = [send for send in sends if self.kind[self.channel_of[send]] == kind]
                for low in range(0, len(chosen), MAX_OP_CHANNELS):
                    ops.append(SymbolicOp("signal", sends=chosen[low : low + MAX_OP_CHANNELS], kind=kind, back=True))
            self.blocks[number].ops[:0] = ops
        answers = {self.channel_of[send]: send for send in sorted(self.places.unconfirmed)}
        confirmed: set[int] = set()
        for (_, receiver), send in answers.items():
            if receiver not in confirmed:
                self.blocks[receiver].ops.append(SymbolicOp("nop"))
                confirmed.add(receiver)
            self.blocks[receiver].ops.append(SymbolicOp("signal", sends=[send], kind="port", back=True))
        for send in answers.values():
            channel = self.channel_of[send]
            self.blocks[channel[0]].ops.append(SymbolicOp("wait", sends=[send], kind=self.kind[channel], back=True))

    def _edges(self) -> dict[tuple[int, int], list[int]]:
        """Of each (threadblock, operation) that waits for steps the semaphores; what a part knows is not asked for."""
        acquired: dict[tuple[int, int], list[int]] = {}
        for number, block in enumerate(self.blocks):
            known: dict[int, int] = {}
            semaphores = self.semaphores[block.rank]
            for at, op in enumerate(block.ops):
                if op.name != "sem_acquire":
                    continue
                latest: dict[int, Step] = {}
                for step in op.steps:
                    part = self.part[step]
                    if part != number and self.place[step] > known.get(part, -1):
                        known[part] = self.place[step]
                        latest[part] = step
                ids = []
                for part, step in latest.items():
                    semaphore = semaphores.setdefault((part, number), len(semaphores))
                    self.needed[step].append(semaphore)
                    ids.append(semaphore)
                acquired[number, at] = ids
        return acquired

    def _channels(self, made: list[PlanGpu]) -> dict[tuple[_Channel, int], int]:
        """Of each channel's end (channel, rank) its number there; the k-th to a rank meets that rank's k-th back."""
        ends: dict[tuple[_Channel, int], int] = {}
        of_rank: dict[tuple[int, str], list[tuple[int, int, _Channel]]] = defaultdict(list)
        for n, (channel, kind) in enumerate(self.kind.items()):
            u, v = (self.blocks[end].rank for end in channel)
            of_rank[u, kind].append((v, n, channel))
            of_rank[v, kind].append((u, n, channel))
        for rank, gpu in enumerate(made):
            for kind in ("memory", "port"):
                mine = sorted(of_rank[rank, kind])
                gpu.peers[kind] = [peer for peer, _, _ in mine]
                for n, (_, _, channel) in enumerate(mine):
                    ends[channel, rank] = n
        return ends

    def _block(
        self,
        number: int,
        block: SymbolicBlock,
        acquired: dict[tuple[int, int], list[int]],
        ends: dict[tuple[_Channel, int], int],
        buffers: dict[tuple[int, str], int],
    ) -> PlanBlock:
        made = PlanBlock()
        channels: dict[str, dict[int, int]] = {"memory": {}, "port": {}}
        remote: dict[str, dict[int, int]] = {"memory": {}, "port": {}}

        def channel(send: Step, kind: str) -> int:
            end = ends[self.channel_of[send], block.rank]
            return channels[kind].setdefault(end, len(channels[kind]))

        def part(place: Span | RemoteSpan, kind: str) -> Part:
            span = place.span if isinstance(place, RemoteSpan) else place
            rank = place.rank if isinstance(place, RemoteSpan) else block.rank
            name, index = span.kind, span.first
            if name == "p":
                name, index = "s", index + self.first_packet[rank]
            if not isinstance(place, RemoteSpan):
                return Part("L", name, index, span.size)
            in_gpu = buffers.setdefault((rank, name), len(buffers))
            return Part("R", remote[kind].setdefault(in_gpu, len(remote[kind])), index, span.size)

        for at, op in enumerate(block.ops):
            if op.name == "nop":
                if made.ops and made.ops[-1] is not _NOP:
                    made.ops.append(_NOP)
            elif op.name in ("sem_acquire", "sem_release"):
                ids = acquired[number, at] if op.name == "sem_acquire" else []
                if op.name == "sem_release":
                    ids = [semaphore for step in op.steps for semaphore in self.needed[step]]
                for low in range(0, len(ids), MAX_OP_SEMAPHORES):
                    made.ops.append(Op(op.name, semaphores=ids[low : low + MAX_OP_SEMAPHORES]))
            else:
                made.ops.append(
                    Op(
                        op.name,
                        src=[part(place, op.kind) for place in op.src],
                        dst=[part(place, op.kind) for place in op.dst],
                        channel_type=op.kind,
                        channels=[channel(send, op.kind) for send in op.sends],
                    )
                )
        while made.ops and made.ops[-1] is _NOP:
            made.ops.pop()
        made.channels = {kind: list(ids) for kind, ids in channels.items() if ids}
        made.buffers = {kind: list(ids) for kind, ids in remote.items() if ids}
        return made
