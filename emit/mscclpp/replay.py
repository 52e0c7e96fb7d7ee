"""A plan executed as the executor does: what every cell holds, and accesses that nothing orders.

A rank launches it again and again, each time when its launch before has ended and whatever other ranks do. Scratch,
with the flags of its packets, and the counts of semaphores and channels stay for the next launch, inputs are new ones.
Every second launch uses the upper half of double scratch: the third is the first to meet what another has used.

Every channel end and every semaphore has its signals in a fixed order, as `emit.check.executor` asks.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence

from emit.check.clocks import Message, ThreadClocks, VectorClocks
from emit.check.contents import GARBAGE, NOTHING, Contents
from emit.check.executor import report_deadlock
from emit.findings import Findings
from emit.mscclpp.acts import Act, Acts, Move, Run, in_upper_half
from emit.mscclpp.execution import Need, Progress
from emit.mscclpp.memory import Memory

# Of an access: actor, tick, block and operation for a message; then nops before it, how the elements are spread over
# threads, and the element (−1 once there are several): equal in all three, one thread does both.
Access = tuple[int, int, int, int, int, bool, int]
_MIXED = -1


class Replay:
    """Executes a plan's acts on cells that hold what `cells` says, once a `run`; findings go to `found`.

    Attributes:
        launch: how many runs are over or under way. progress: of this one. begun: of each rank its first actor's tick
            when it began.
        written, read: of each cell its last write, and by actor the reads since.
        packet, times: of each cell written as a packet in this launch what its flag tells, and how often that was.
    """

    def __init__(self, made: Acts, memory: Memory, contents: Contents, cells: dict[int, int], found: Findings) -> None:
        self.made, self.memory, self.contents = made, memory, contents
        self.initial, self.cells = cells, dict(cells)
        self.found = found
        self.launch, self.progress = 0, Progress(made, made.acts)
        self.halves = [made.acts, in_upper_half(made, memory) if memory.plan.double else made.acts]
        self.begun = [0] * len(memory.plan.gpus)
        nblocks = len(made.acts)
        used = sorted({port for acts in made.acts for act in acts for port in act.ports})
        used += sorted({e for acts in made.acts for a in acts if a.kind == "signal" for e in a.ids}.difference(used))
        ports = [end for end in used if made.ends[end][1] == "port"]
        self.port = {end: nblocks + n for n, end in enumerate(ports)}
        plain = not any(a.packets or a.relaxed for acts in made.acts for a in acts)
        self.clocks = ThreadClocks([*made.rank, *(made.ends[end][0] for end in ports)], merged=plain)
        self.written: dict[int, Access] = {}
        self.read: dict[int, dict[int, Access]] = {}
        self.packet: dict[int, Message] = {}
        self.times: Counter[int] = Counter()
        self.signals: list[deque[Message]] = [deque() for _ in made.ends]
        self.released: list[list[Message]] = [[] for _ in made.semaphores]
        self.held = [held for _, _, held in made.semaphores]
        self.taken: Counter[tuple[int, int]] = Counter()
        self.last_use: dict[tuple[str, int], tuple[int, int, int, int, int]] = {}
        self.reported: set[tuple[int, int, int, int]] = set()
        self.single = _single(made)
        self.total = Counter(n for acts in made.acts for act in acts if act.kind == "release" for n in act.ids)

    def run(self) -> list[int]:
        """Launch the plan on all ranks and execute all; the threadblocks that stopped before their end."""
        if self.launch:
            self._end_launch()
        self.progress = Progress(self.made, self.halves[self.launch % 2])
        self.launch += 1
        return self.progress.run(self)

    def _end_launch(self) -> None:
        """All threadblocks of a rank have ended; what they know is known to all of its next launch."""
        of_rank: dict[int, list[int]] = defaultdict(list)
        for block, rank in enumerate(self.made.rank):
            of_rank[rank].append(block)
        for rank, blocks in of_rank.items():
            self.clocks.join(blocks)
            self.begun[rank] = self.clocks.tick[blocks[0]]
            self.clocks.join(blocks)  # from now on all of them know that it has begun
        self.cells = dict(self.initial)  # what lies in scratch, nothing in the next launch may ask for
        for known in (self.written, self.read):
            for cell in [cell for cell in known if not self.memory.in_scratch(cell)]:
                del known[cell]
        for counted in (self.packet, self.times, self.taken, self.last_use):
            counted.clear()
        self.released = [[] for _ in self.released]  # as many were acquired: each holds what it held before

    def meet(self, blocks: Sequence[int]) -> None:
        """What any of them knows, all know."""
        self.clocks.join(blocks)

    def need(self, act: Act) -> Need | None:
        """What must come before the act can be done, None if nothing."""
        needs: Iterable[Need] = ()
        if act.kind == "wait":
            needs = (("signal", end) for end, n in Counter(act.ids).items() if len(self.signals[end]) < n)
        elif act.kind == "acquire":
            needs = (("release", number) for number, n in Counter(act.ids).items() if self.held[number] < n)
        elif act.flagged:
            needs = (("packet", cell) for move in act.moves for cell in move.packets_read() if cell not in self.packet)
        return next(iter(needs), None)

    def do(self, block: int, act: Act) -> list[Need]:
        """Do it; what came about by it, as `need` names it."""
        clocks = self.clocks
        if act.kind == "nop":
            clocks.nop(block)
            return []
        if act.kind == "wait":
            for thread, end in enumerate(act.ids):
                clocks.hear(block, self.signals[end].popleft())
                self._in_order("wait", end, block, act, thread)
            return []
        if act.kind == "signal":
            return [self._signal(block, end, act, thread) for thread, end in enumerate(act.ids)]
        if act.kind == "data":
            return self._data(block, act)
        for number in act.ids:
            if act.kind == "acquire":
                self._acquire(block, number)
            else:
                self.released[number].append(clocks.message(block))
                self.held[number] += 1
        return [("release", number) for number in act.ids if act.kind == "release"]

    def _signal(self, block: int, end: int, act: Act, thread: int = 0) -> Need:
        actor = self._handed_over(block, end) if end in self.port else block
        # a port channel's own side counts its signals
        self._in_order("signal", end, block, act, 0 if actor != block else thread)
        message = self.clocks.message(actor, act.relaxed)
        there = self.made.across[end]
        if there >= 0:
            self.signals[there].append(message)
        return ("signal", there)

    def _handed_over(self, block: int, end: int) -> int:
        """What a port channel does on its own time for the block: the actor, who knows what that did."""
        actor = self.port[end]
        self.clocks.hear(actor, self.clocks.message(block))
        self.clocks.nop(actor)
        return actor

    def _acquire(self, block: int, number: int) -> None:
        """Which releases are surely over: the one of the same number, or all, or none."""
        self.held[number] -= 1
        self.taken[block, number] += 1
        mine = self.taken[block, number] - self.made.semaphores[number][2]
        if number in self.single:
            if mine > 0:
                self.clocks.hear(block, self.released[number][mine - 1])
        elif mine == self.total[number]:
            for message in self.released[number]:
                self.clocks.hear(block, message)

    def _in_order(self, kind: str, end: int, block: int, act: Act, thread: int) -> None:
        """A channel end counts: threads, and threadblocks, may use it only one after the other."""
        last = self.last_use.get((kind, end))
        nops = self.clocks.nops[block]
        if last is not None:
            other, tick, op, before, user = last
            together = other != block and self.clocks.seen.row(block)[other] < tick + 2
            if together or (other == block and before == nops and user != thread):
                _, channel_type, number = self.made.ends[end]
                who = f"tb {self.made.tb[other]} step {op}" if together else f"another thread in step {op}"
                right = "one must wait for the other" if together else "a nop must stand between"
                message = f"{kind}s on {channel_type} channel {number} in no fixed order with {who}; {right}"
                self.found.add("race", message, *self.made.place(block, act.op))
        self.last_use[kind, end] = (block, self.clocks.tick[block], act.op, nops, thread)

    def _data(self, block: int, act: Act) -> list[Need]:
        news: list[Need] = []
        if act.name == "rppkt" and act.ports:  # all threads read, and meet, before one of them sends
            self._hear_packets(block, act.moves[0])
            self.clocks.nop(block)
        for n, move in enumerate(act.moves):
            if not act.ports:
                news += self._move(block, block, act, move)
                continue
            for k, target in enumerate(move.targets):
                end = act.ports[n + k]
                actor = self._handed_over(block, end)
                news += self._move(actor, block, act, Move(move.length, move.sources, (target,)))
                if act.name in ("pws", "pwsf"):
                    news.append(self._signal(block, end, act))
        return news

    def _hear_packets(self, actor: int, move: Move) -> None:
        heard: set[int] = set()
        for cell in move.packets_read():
            message = self.packet.get(cell)
            if message is not None and id(message) not in heard:
                heard.add(id(message))
                self.clocks.seen.learn(actor, message.seen)  # each thread reads the packets of what it goes on with

    def _move(self, actor: int, block: int, act: Act, move: Move) -> list[Need]:
        """Move the elements of one move, by `actor` for an operation of `block`."""
        clocks = self.clocks
        if act.packets and actor == block:
            self._hear_packets(actor, move)
        for run in (*move.sources, *move.targets):
            # packets in double scratch may come early: the launch before uses the other half
            early = not (run.packet and self.memory.plan.double)
            if early and run.rank != clocks.rank[actor] and not clocks.started(actor, run.rank, self.begun[run.rank]):
                self._too_early(block, act, run)
        message = clocks.packet(actor) if any(run.packet for run in move.targets) else None
        news: list[Need] = []
        cells, add = self.cells, self.contents.add
        for j in range(move.length):
            who = (actor, clocks.tick[actor], block, act.op, clocks.nops[actor], act.packets, j)
            total = NOTHING
            for n, run in enumerate(move.sources):
                for cell in run.element(j):
                    self._reads(cell, who, run.packet and act.flagged, act)
                    value = cells.get(cell, NOTHING)
                if value == NOTHING:
                    value = self._uninitialised(cell, run.packet, block, act)
                total = value if n == 0 else add(total, value)
            for run in move.targets:
                for cell in run.element(j):
                    self._writes(cell, who, run.packet, act)
                    cells[cell] = total
                    self.packet.pop(cell, None)
                    if run.packet and message is not None:
                        self.packet[cell] = message
                        self.times[cell] += 1
                        news.append(("packet", cell))
        if message is not None:
            clocks.tick[actor] += 1  # of what it does from now on the packet says nothing
        return news

    def _reads(self, cell: int, who: Access, flagged: bool, act: Act) -> None:
        last = self.written.get(cell)
        if last is not None and not (flagged and self.times[cell] == 1 and cell in self.packet):
            self._ordered(last, who, self.clocks.shown, cell, act)
        readers = self.read.setdefault(cell, {})
        before = readers.get(who[0])
        if before is not None and before[4] == who[4] and before[5:] != who[5:]:
            who = (*who[:6], _MIXED)
        readers[who[0]] = who

    def _writes(self, cell: int, who: Access, packet: bool, act: Act) -> None:
        last = self.written.get(cell)
        if last is not None:
            self._ordered(last, who, self.clocks.shown, cell, act, packet)
        for reader in self.read.pop(cell, {}).values():
            self._ordered(reader, who, self.clocks.seen, cell, act, packet)
        self.written[cell] = who

    def _ordered(
        self, last: Access, who: Access, clocks: VectorClocks, cell: int, act: Act, packet: bool = False
    ) -> None:
        """`who` must follow `last`, by clocks or because one thread does both."""
        if last[0] == who[0]:
            if last[4] < who[4] or (last[5:] == who[5:] and last[6] != _MIXED):
                return
        elif clocks.row(who[0])[last[0]] >= last[1] + 2:
            return
        pair = (who[2], who[3], last[2], last[3])
        if pair in self.reported:
            return
        self.reported.add(pair)
        rank, tb, op = self.made.place(last[2], last[3])
        here = self.made.place(who[2], who[3])
        other = self.made.name(last[2], last[3])
        step = f"tb {tb} step {op}" if rank == here[0] else f"rank {rank} tb {tb} step {op}"
        where, name = self._name(cell, packet, here[0])
        right = "a nop must stand between" if here[:2] == (rank, tb) else "one must wait for the other"
        if last[0] >= len(self.made.acts):
            right = "a port channel moves data on its own time; the other end must answer first"
        self.found.add_race(act.name, f"the {other} of {step}", where, right, here, name)

    def _name(self, cell: int, packet: bool, rank: int) -> tuple[str, tuple[str, int]]:
        """A cell as a message of `rank` names it, and as (buffer, index)."""
        name, index = self.memory.name(cell, packet)
        owner = self.memory.rank(cell)
        return f"{name}[{index}]{'' if owner == rank else f' of rank {owner}'}", (name, index)

    def _too_early(self, block: int, act: Act, run: Run) -> None:
        pair = (block, act.op, -1, run.rank)
        if pair in self.reported:
            return
        self.reported.add(pair)
        here = self.made.place(block, act.op)
        where, name = self._name(run.cell, run.packet, here[0])
        message = f"{act.name} uses {where}, which may not have started the call"
        self.found.add("race", f"{message}; it must wait for a signal of it first", *here, cell=name)

    def _uninitialised(self, cell: int, packet: bool, block: int, act: Act) -> int:
        """Reported here only, not where the garbage that comes of it is passed on."""
        if self.found.full("read before write"):
            self.found.add("read before write", "")
            return GARBAGE
        here = self.made.place(block, act.op)
        where, name = self._name(cell, packet, here[0])
        message = f"{act.name} reads {where}, which nothing before it has written"
        self.found.add("read before write", message, *here, cell=name)
        return GARBAGE

    def report_stopped(self, stopped: list[int]) -> None:
        """Add the cycle of waits in which the run ended, or the wait for what nothing gives."""
        acts, at = self.progress.acts, self.progress.at

        def act(block: int) -> Act:
            return acts[block][at[block]]

        def waits_for(block: int) -> tuple[int | None, str]:
            barrier = act(block).kind == "barrier"
            need = ("barrier", act(block).ids[0]) if barrier else self.need(act(block))
            assert need is not None  # it stopped there
            here = self.progress.arrived[need[1]] if barrier else []
            able = (
                other
                for other in stopped
                if other not in here and any(self._provides(a, need) for a in acts[other][at[other] :])
            )
            return next(able, None), self._describe(need)

        made, found = self.made, self.found
        report_deadlock(stopped[0], waits_for, lambda b: made.place(b, act(b).op), lambda b: act(b).name, found)

    def _provides(self, act: Act, need: Need) -> bool:
        """Whether the act, once done, would help who needs that."""
        kind, number = need
        if kind == "signal":
            other = self.made.across[number]
            return other in act.ids if act.kind == "signal" else act.name in ("pws", "pwsf") and other in act.ports
        if kind in ("release", "barrier"):
            return act.kind == kind and number in act.ids
        packets = ((run.cell, move.length) for move in act.moves for run in move.targets if run.packet)
        return any(cell <= number < cell + 2 * length for cell, length in packets)

    def _describe(self, need: Need) -> str:
        kind, number = need
        if kind == "barrier":
            return f"the others at barrier {self.made.barriers[number][1]}"
        if kind == "signal":
            rank, channel_type, n = self.made.ends[number]
            peer = self.memory.plan.gpus[rank].peers[channel_type][n]
            return f"a signal of rank {peer} on {channel_type} channel {n}"
        if kind == "release":
            return f"semaphore {self.made.semaphores[number][1]}"
        name, index = self.memory.name(number, True)
        return f"a packet in {name}[{index}]"


def _single(made: Acts) -> set[int]:
    """Semaphores that one threadblock releases and one acquires: their uses pair up in order."""
    users: dict[tuple[str, int], set[int]] = defaultdict(set)
    for block, acts in enumerate(made.acts):
        for act in acts:
            if act.kind in ("acquire", "release"):
                for number in act.ids:
                    users[act.kind, number].add(block)
    numbers = range(len(made.semaphores))
    return {n for n in numbers if len(users["acquire", n]) <= 1 and len(users["release", n]) <= 1}
