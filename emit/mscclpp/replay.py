"""Replay a plan as the executor runs it: track the content of every cell, and find accesses that nothing orders.

A rank launches the plan repeatedly, each time when its last launch has ended, whatever other ranks do. Scratch, the
flags of its packets, and the counts of semaphores and channels stay for the next launch; inputs are new. Every second
launch uses the upper half of double scratch, so the third is the first that meets data of an earlier launch.

Every channel end and every semaphore has its signals in a fixed order, as `emit.check.executor` requires.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence

from emit.check.clocks import Message, ThreadClocks, VectorClocks
from emit.check.contents import GARBAGE, NOTHING, ProgramContents
from emit.check.executor import report_deadlock
from emit.findings import Findings
from emit.mscclpp.acts import Act, ActRun, Acts, Move, in_upper_half
from emit.mscclpp.execution import ExecutionProgress, Need
from emit.mscclpp.memory import Memory

# An access: actor, tick, threadblock and operation (for messages); then the number of nops before it, whether elements
# are spread over threads as in packet operations, and the element (−1 for several). One thread does two accesses if
# these last three are equal.
Access = tuple[int, int, int, int, int, bool, int]
_MIXED = -1


class Replay:
    """The repeated execution of a plan's acts on cells, one launch for each `run`.

    Attributes:
        plan_acts: Acts of the plan.
        memory: Memory of the plan.
        contents: Contents of cells.
        initial: Content of each cell at the start of a launch.
        cells: Content of each cell.
        findings: Where findings are added.
        launch: Number of launches so far, including the current one.
        progress: Progress of the current launch.
        begun: Tick of each rank's first actor when the current launch began.
        written: Last write of each cell.
        read: Reads of each cell since its last write, by actor.
        packet: Knowledge of the flag of each cell that was written as a packet in this launch.
        times: How often each cell was written as a packet in this launch.
        semaphore_values: Value of each semaphore.
        acquired: Number of acquires in this launch, by (threadblock, semaphore).
    """

    def __init__(
        self, plan_acts: Acts, memory: Memory, contents: ProgramContents, cells: dict[int, int], findings: Findings
    ) -> None:
        self.plan_acts, self.memory, self.contents = plan_acts, memory, contents
        self.initial, self.cells = cells, dict(cells)
        self.findings = findings
        self.launch, self.progress = 0, ExecutionProgress(plan_acts, plan_acts.acts)
        self.halves = [plan_acts.acts, in_upper_half(plan_acts, memory) if memory.plan.double else plan_acts.acts]
        self.begun = [0] * len(memory.plan.gpus)
        nblocks = len(plan_acts.acts)
        used = sorted({port for acts in plan_acts.acts for act in acts for port in act.ports})
        used += sorted(
            {e for acts in plan_acts.acts for a in acts if a.kind == "signal" for e in a.ids}.difference(used)
        )
        ports = [end for end in used if plan_acts.ends[end][1] == "port"]
        self.port = {end: nblocks + n for n, end in enumerate(ports)}
        is_ordered_alike = not any(a.packets or a.relaxed for acts in plan_acts.acts for a in acts)
        self.clocks = ThreadClocks(
            [*plan_acts.rank, *(plan_acts.ends[end][0] for end in ports)], merged=is_ordered_alike
        )
        self.written: dict[int, Access] = {}
        self.read: dict[int, dict[int, Access]] = {}
        self.packet: dict[int, Message] = {}
        self.times: Counter[int] = Counter()
        self.signals: list[deque[Message]] = [deque() for _ in plan_acts.ends]
        self.released: list[list[Message]] = [[] for _ in plan_acts.semaphores]
        self.semaphore_values = [value for _, _, value in plan_acts.semaphores]
        self.acquired: Counter[tuple[int, int]] = Counter()
        self.last_use: dict[tuple[str, int], tuple[int, int, int, int, int]] = {}
        self.reported: set[tuple[int, int, int, int]] = set()
        self.single = _single(plan_acts)
        self.total = Counter(n for acts in plan_acts.acts for act in acts if act.kind == "release" for n in act.ids)

    def run(self) -> list[int]:
        """Run the plan once on all ranks; return the threadblocks that stopped before their end."""
        if self.launch:
            self._end_launch()
        self.progress = ExecutionProgress(self.plan_acts, self.halves[self.launch % 2])
        self.launch += 1
        return self.progress.run(self)

    def _end_launch(self) -> None:
        """Join the threadblocks of each rank at the end of a launch; the next launch knows what they know."""
        of_rank: dict[int, list[int]] = defaultdict(list)
        for block, rank in enumerate(self.plan_acts.rank):
            of_rank[rank].append(block)
        for rank, blocks in of_rank.items():
            self.clocks.join(blocks)
            self.begun[rank] = self.clocks.tick[blocks[0]]
            self.clocks.join(blocks)  # From now on all of them know that the launch has begun.
        self.cells = dict(self.initial)  # The next launch may not read what this one left in scratch.
        for accesses in (self.written, self.read):
            for cell in [cell for cell in accesses if not self.memory.in_scratch(cell)]:
                del accesses[cell]
        for of_launch in (self.packet, self.times, self.acquired, self.last_use):
            of_launch.clear()
        self.released = [[] for _ in self.released]  # As many were acquired, so each semaphore has its old value.

    def meet(self, blocks: Sequence[int]) -> None:
        """Join threadblocks at a barrier, so that each knows what any of them knows."""
        self.clocks.join(blocks)

    def need(self, act: Act) -> Need | None:
        """Return the event that must happen before an act can be executed, None for none."""
        needs: Iterable[Need] = ()
        if act.kind == "wait":
            needs = (("signal", end) for end, n in Counter(act.ids).items() if len(self.signals[end]) < n)
        elif act.kind == "acquire":
            needs = (("release", number) for number, n in Counter(act.ids).items() if self.semaphore_values[number] < n)
        elif act.flagged:
            needs = (("packet", cell) for move in act.moves for cell in move.packets_read() if cell not in self.packet)
        return next(iter(needs), None)

    def do(self, block: int, act: Act) -> list[Need]:
        """Run an act; return the events that it causes, named as in `need`."""
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
                self.semaphore_values[number] += 1
        return [("release", number) for number in act.ids if act.kind == "release"]

    def _signal(self, block: int, end: int, act: Act, thread: int = 0) -> Need:
        """Add a signal at the other end of a channel end, and return the need that it meets."""
        actor = self._handed_over(block, end) if end in self.port else block
        # A port channel counts its own signals.
        self._in_order("signal", end, block, act, 0 if actor != block else thread)
        message = self.clocks.message(actor, act.relaxed)
        other_end = self.plan_acts.across[end]
        if other_end >= 0:
            self.signals[other_end].append(message)
        return ("signal", other_end)

    def _handed_over(self, block: int, end: int) -> int:
        """Return the actor of a port channel, which works asynchronously, with the knowledge of the threadblock."""
        actor = self.port[end]
        self.clocks.hear(actor, self.clocks.message(block))
        self.clocks.nop(actor)
        return actor

    def _acquire(self, block: int, number: int) -> None:
        """Record an acquire of a semaphore, and learn the releases that are surely over.

        These are the release of the same number, all releases, or none.
        """
        self.semaphore_values[number] -= 1
        self.acquired[block, number] += 1
        releases_needed = self.acquired[block, number] - self.plan_acts.semaphores[number][2]
        if number in self.single:
            if releases_needed > 0:
                self.clocks.hear(block, self.released[number][releases_needed - 1])
        elif releases_needed == self.total[number]:
            for message in self.released[number]:
                self.clocks.hear(block, message)

    def _in_order(self, kind: str, end: int, block: int, act: Act, thread: int) -> None:
        """Check that threads and threadblocks use a channel end one after the other, because it counts."""
        last_use = self.last_use.get((kind, end))
        nops = self.clocks.nops[block]
        if last_use is not None:
            user_block, tick, op, nops_before, user = last_use
            is_concurrent = user_block != block and self.clocks.seen.row(block)[user_block] < tick + 2
            if is_concurrent or (user_block == block and nops_before == nops and user != thread):
                _, channel_type, number = self.plan_acts.ends[end]
                user_text = (
                    f"tb {self.plan_acts.tb[user_block]} step {op}" if is_concurrent else f"another thread in step {op}"
                )
                remedy = "one must wait for the other" if is_concurrent else "a nop must stand between"
                message = f"{kind}s on {channel_type} channel {number} in no fixed order with {user_text}; {remedy}"
                self.findings.add("race", message, *self.plan_acts.place(block, act.op))
        self.last_use[kind, end] = (block, self.clocks.tick[block], act.op, nops, thread)

    def _data(self, block: int, act: Act) -> list[Need]:
        """Run the moves of a data operation; return the events that they cause."""
        news: list[Need] = []
        if act.name == "rppkt" and act.ports:  # All threads read and synchronize before one sends.
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
        """Add the knowledge of the packets that a move reads."""
        seen_messages: set[int] = set()
        for cell in move.packets_read():
            message = self.packet.get(cell)
            if message is not None and id(message) not in seen_messages:
                seen_messages.add(id(message))
                self.clocks.seen.learn(actor, message.seen)  # Each thread reads the packets of its own elements.

    def _move(self, actor: int, block: int, act: Act, move: Move) -> list[Need]:
        """Run one move, which `actor` executes for an operation of threadblock `block`; return the resulting events."""
        clocks = self.clocks
        if act.packets and actor == block:
            self._hear_packets(actor, move)
        for run in (*move.sources, *move.targets):
            # Packets in double scratch may arrive before the start, because the last launch uses the other half.
            must_have_started = not (run.packet and self.memory.plan.double)
            if (
                must_have_started
                and run.rank != clocks.rank[actor]
                and not clocks.started(actor, run.rank, self.begun[run.rank])
            ):
                self._too_early(block, act, run)
        message = clocks.packet(actor) if any(run.packet for run in move.targets) else None
        news: list[Need] = []
        cells, add = self.cells, self.contents.add
        for j in range(move.length):
            access = (actor, clocks.tick[actor], block, act.op, clocks.nops[actor], act.packets, j)
            total = NOTHING
            for n, run in enumerate(move.sources):
                for cell in run.element(j):
                    self._reads(cell, access, run.packet and act.flagged, act)
                    value = cells.get(cell, NOTHING)
                if value == NOTHING:
                    value = self._uninitialised(cell, run.packet, block, act)
                total = value if n == 0 else add(total, value)
            for run in move.targets:
                for cell in run.element(j):
                    self._writes(cell, access, run.packet, act)
                    cells[cell] = total
                    self.packet.pop(cell, None)
                    if run.packet and message is not None:
                        self.packet[cell] = message
                        self.times[cell] += 1
                        news.append(("packet", cell))
        if message is not None:
            clocks.tick[actor] += 1  # The packet says nothing about later events.
        return news

    def _reads(self, cell: int, access: Access, flagged: bool, act: Act) -> None:
        """Check that a read of a cell is ordered after its last write, and record it."""
        last_write = self.written.get(cell)
        if last_write is not None and not (flagged and self.times[cell] == 1 and cell in self.packet):
            self._ordered(last_write, access, self.clocks.shown, cell, act)
        readers = self.read.setdefault(cell, {})
        before = readers.get(access[0])
        if before is not None and before[4] == access[4] and before[5:] != access[5:]:
            access = (*access[:6], _MIXED)
        readers[access[0]] = access

    def _writes(self, cell: int, access: Access, packet: bool, act: Act) -> None:
        """Check that a write of a cell is ordered after its last write and the reads since, and record it."""
        last_write = self.written.get(cell)
        if last_write is not None:
            self._ordered(last_write, access, self.clocks.shown, cell, act, packet)
        for reader in self.read.pop(cell, {}).values():
            self._ordered(reader, access, self.clocks.seen, cell, act, packet)
        self.written[cell] = access

    def _ordered(
        self, earlier: Access, access: Access, clocks: VectorClocks, cell: int, act: Act, packet: bool = False
    ) -> None:
        """Check that `access` follows `earlier`, by clocks or because one thread does both; if not, add a race."""
        if earlier[0] == access[0]:
            if earlier[4] < access[4] or (earlier[5:] == access[5:] and earlier[6] != _MIXED):
                return
        elif clocks.row(access[0])[earlier[0]] >= earlier[1] + 2:
            return
        pair = (access[2], access[3], earlier[2], earlier[3])
        if pair in self.reported:
            return
        self.reported.add(pair)
        rank, tb, op = self.plan_acts.place(earlier[2], earlier[3])
        own_place = self.plan_acts.place(access[2], access[3])
        earlier_name = self.plan_acts.name(earlier[2], earlier[3])
        step = f"tb {tb} step {op}" if rank == own_place[0] else f"rank {rank} tb {tb} step {op}"
        where, name = self._name(cell, packet, own_place[0])
        remedy = "a nop must stand between" if own_place[:2] == (rank, tb) else "one must wait for the other"
        if earlier[0] >= len(self.plan_acts.acts):
            remedy = "a port channel moves data on its own time; the other end must answer first"
        self.findings.add_race(act.name, f"the {earlier_name} of {step}", where, remedy, own_place, name)

    def _name(self, cell: int, packet: bool, rank: int) -> tuple[str, tuple[str, int]]:
        """Return a cell as a message of `rank` names it, and as (buffer, index)."""
        name, index = self.memory.name(cell, packet)
        owner = self.memory.rank(cell)
        return f"{name}[{index}]{'' if owner == rank else f' of rank {owner}'}", (name, index)

    def _too_early(self, block: int, act: Act, run: ActRun) -> None:
        """Add a race, once for each operation and rank: the rank may not have started when its memory is used."""
        pair = (block, act.op, -1, run.rank)
        if pair in self.reported:
            return
        self.reported.add(pair)
        own_place = self.plan_acts.place(block, act.op)
        where, name = self._name(run.cell, run.packet, own_place[0])
        message = f"{act.name} uses {where}, which may not have started the call"
        self.findings.add("race", f"{message}; it must wait for a signal of it first", *own_place, cell=name)

    def _uninitialised(self, cell: int, packet: bool, block: int, act: Act) -> int:
        """Report a read of uninitialised memory; return GARBAGE, whose later uses are not reported."""
        if self.findings.full("read before write"):
            self.findings.add("read before write", "")
            return GARBAGE
        own_place = self.plan_acts.place(block, act.op)
        where, name = self._name(cell, packet, own_place[0])
        message = f"{act.name} reads {where}, which nothing before it has written"
        self.findings.add("read before write", message, *own_place, cell=name)
        return GARBAGE

    def report_stopped(self, stopped: list[int]) -> None:
        """Add the cycle of waits in which the run stopped, or the wait for something that nothing provides."""
        acts, at = self.progress.acts, self.progress.at

        def act(block: int) -> Act:
            """Return the act at which a threadblock stopped."""
            return acts[block][at[block]]

        def waits_for(block: int) -> tuple[int | None, str]:
            """Return the threadblock that a stopped one waits for, and the event in words."""
            barrier = act(block).kind == "barrier"
            need = ("barrier", act(block).ids[0]) if barrier else self.need(act(block))
            assert need is not None  # It stopped there.
            arrived = self.progress.arrived[need[1]] if barrier else []
            providers = (
                candidate
                for candidate in stopped
                if candidate not in arrived and any(self._provides(a, need) for a in acts[candidate][at[candidate] :])
            )
            return next(providers, None), self._describe(need)

        plan_acts, findings = self.plan_acts, self.findings
        report_deadlock(stopped[0], waits_for, lambda b: plan_acts.place(b, act(b).op), lambda b: act(b).name, findings)

    def _provides(self, act: Act, need: Need) -> bool:
        """Return True if the act would cause the event `need`."""
        kind, number = need
        if kind == "signal":
            other_end = self.plan_acts.across[number]
            return (
                other_end in act.ids if act.kind == "signal" else act.name in ("pws", "pwsf") and other_end in act.ports
            )
        if kind in ("release", "barrier"):
            return act.kind == kind and number in act.ids
        packets = ((run.cell, move.length) for move in act.moves for run in move.targets if run.packet)
        return any(cell <= number < cell + 2 * length for cell, length in packets)

    def _describe(self, need: Need) -> str:
        """Describe the event `need` in words."""
        kind, number = need
        if kind == "barrier":
            return f"the other threadblocks at barrier {self.plan_acts.barriers[number][1]}"
        if kind == "signal":
            rank, channel_type, n = self.plan_acts.ends[number]
            peer = self.memory.plan.gpus[rank].peers[channel_type][n]
            return f"a signal of rank {peer} on {channel_type} channel {n}"
        if kind == "release":
            return f"semaphore {self.plan_acts.semaphores[number][1]}"
        name, index = self.memory.name(number, True)
        return f"a packet in {name}[{index}]"


def _single(plan_acts: Acts) -> set[int]:
    """Return the semaphores that one threadblock releases and one acquires, so that their uses pair up in order."""
    users: dict[tuple[str, int], set[int]] = defaultdict(set)
    for block, acts in enumerate(plan_acts.acts):
        for act in acts:
            if act.kind in ("acquire", "release"):
                for number in act.ids:
                    users[act.kind, number].add(block)
    numbers = range(len(plan_acts.semaphores))
    return {n for n in numbers if len(users["acquire", n]) <= 1 and len(users["release", n]) <= 1}
