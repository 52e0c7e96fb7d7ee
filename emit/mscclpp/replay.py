"""Replay a plan as the executor runs it: track the content of every cell, and find accesses that nothing orders.

A rank launches the plan repeatedly, each time when its last launch has ended, whatever other ranks do. Scratch, the
flags of its packets, and the counts of semaphores and channels stay for the next launch; inputs are new. Every second
launch uses the upper half of double scratch, so the third is the first that meets data of an earlier launch.

Every channel end and every semaphore has its signals in a fixed order, as `emit.check.executor` requires.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from enum import Enum

import numpy as np

from emit.check.acts import Act, ActExecution, ActRun, Acts, Move
from emit.check.clocks import ActorGroup, Message, Row, ThreadClocks, VectorClocks
from emit.check.contents import GARBAGE, NOTHING, ProgramContents
from emit.findings import Findings
from emit.mscclpp.acts import in_upper_half
from emit.mscclpp.alike import first_cells_of, first_of_alike
from emit.mscclpp.memory import Memory

# An access: actor, tick, threadblock and operation (for messages); then the number of nops before it, whether elements
# are spread over threads as in packet operations, and the element (−1 for several). One thread does two accesses if
# these last three are equal.
Access = tuple[int, int, int, int, int, bool, int]
_MIXED = -1
_SPELT_OUT = 8  # cautions that are written out; further ones are counted


class CallAssumption(Enum):
    """What the caller of a plan promises about its calls, in words for a finding."""

    ANY = "any calls"
    OF_ONE_SIZE = "all calls have one size, and no other plan uses its scratch"
    APART = "no rank begins a call before all ranks have ended the last one"


class Replay:
    """The repeated execution of a plan's acts on cells, one launch for each `run`.

    Attributes:
        plan_acts: Acts of the plan.
        memory: Memory of the plan.
        contents: Contents of cells.
        begins: Which cells are looked at, as `first_of_alike` says; None for all.
        initial: Content of each cell that is looked at, at the start of a launch.
        cells: Content of each cell that is looked at.
        findings: Where findings are added.
        calls: What the caller promises about the calls.
        launch: Number of launches so far, including the current one.
        execution: Execution of the acts.
        begun: Tick of each rank's first actor when the current launch began.
        written: Last write of each cell.
        read: Reads of each cell since its last write, by actor.
        packet: Knowledge of the flag of each cell that was written as a packet in this launch.
        times: How often each cell was written as a packet in this launch.
        scratch_uses: Last uses of each rank's scratch in the launch before, as `_last_scratch_uses` returns them.
        acquired: Number of acquires in this launch, by (threadblock, semaphore).
    """

    def __init__(
        self,
        plan_acts: Acts,
        memory: Memory,
        contents: ProgramContents,
        findings: Findings,
        calls: CallAssumption = CallAssumption.ANY,
    ) -> None:
        self.plan_acts, self.memory, self.contents = plan_acts, memory, contents
        self.findings, self.calls = findings, calls
        self.group = ActorGroup(None if memory.images is None else memory.images.images)
        self.launch, self.execution = 0, ActExecution(plan_acts)
        self.halves = [plan_acts.acts, *([in_upper_half(plan_acts, memory)] if memory.plan.double else ())]
        self.begins = first_of_alike(memory, contents.goal, self.halves)
        self._begins = b"" if self.begins is None else self.begins.tobytes()  # Short slices of bytes are faster.
        self.initial = self._initial_cells()
        self.cells = dict(self.initial)
        self.begun = [0] * len(memory.plan.gpus)
        nblocks = len(plan_acts.acts)
        used = sorted({port for acts in plan_acts.acts for act in acts for port in act.ports})
        used += sorted(
            {e for acts in plan_acts.acts for a in acts if a.kind == "signal" for e in a.ids}.difference(used)
        )
        ports = [end for end in used if plan_acts.ends[end].kind == "port"]
        self.port = {end: nblocks + n for n, end in enumerate(ports)}
        is_ordered_alike = not any(a.packets or a.relaxed for acts in plan_acts.acts for a in acts)
        self.clocks = ThreadClocks(
            [*plan_acts.rank, *(plan_acts.ends[end].rank for end in ports)], is_ordered_alike, self.group
        )
        self.written: dict[int, Access] = {}
        self.read: dict[int, dict[int, Access]] = {}
        self.packet: dict[int, Message] = {}
        self.times: Counter[int] = Counter()
        self.scratch_uses: dict[int, list[tuple[VectorClocks, int, int]]] = {}
        self.signals: list[deque[Message]] = [deque() for _ in plan_acts.ends]
        self.released: list[list[Message]] = [[] for _ in plan_acts.semaphores]
        self.acquired: Counter[tuple[int, int]] = Counter()
        self.last_use: dict[tuple[str, int], tuple[int, int, int, int, int]] = {}
        self.reported: set[tuple[int, int, int, int]] = set()
        self.single = _single(plan_acts)
        self.total = Counter(n for acts in plan_acts.acts for act in acts if act.kind == "release" for n in act.ids)

    def _initial_cells(self) -> dict[int, int]:
        """Return the content at the start of a launch of each cell that is looked at and holds something.

        Raises:
            InputError: As `ProgramContents.of` raises it.
        """
        first = self.memory.first_cells(self.contents.goal.initial[:3])
        rows = slice(None) if self.begins is None else self.begins[first]
        cells: dict[int, int] = {}
        for cell, content in zip(first[rows].tolist(), self.contents.initial(rows), strict=True):
            cells.update(dict.fromkeys(range(cell, cell + self.memory.units), content))
        return cells

    def run(self) -> list[int]:
        """Run the plan once on all ranks, and add findings; return the threadblocks that stopped before their end.

        The result is empty if the launch completed. Every second launch uses the upper half of double scratch. After a
        launch that stopped, no further one may be run.
        """
        if self.launch:
            self._end_launch()
        self.launch += 1
        return self.execution.launch(self.halves[(self.launch - 1) % len(self.halves)], self._run_act)

    def _end_launch(self) -> None:
        """Join the threadblocks of each rank at the end of a launch; the next launch knows what they know.

        With Calls.APART, the threadblocks of all ranks are joined. Cells get their initial contents again, and
        everything that is recorded of the launch is forgotten, except for accesses of scratch.
        """
        blocks_of_ranks = [blocks for blocks in self.plan_acts.blocks_of_ranks(len(self.begun)) if blocks]
        for blocks in blocks_of_ranks:
            self.clocks.join(blocks)
        if self.calls == CallAssumption.APART:
            self.clocks.join(range(len(self.plan_acts.acts)))
        for blocks in blocks_of_ranks:
            self.begun[self.plan_acts.rank[blocks[0]]] = self.clocks.tick[blocks[0]]
            self.clocks.join(blocks)  # From now on all of them know that the launch has begun.
        self.cells = dict(self.initial)  # The next launch may not read what this one left in scratch.
        for accesses in (self.written, self.read):
            for cell in [cell for cell in accesses if not self.memory.in_scratch(cell)]:
                del accesses[cell]
        self.scratch_uses = self._last_scratch_uses()
        for of_launch in (self.packet, self.times, self.acquired, self.last_use):
            of_launch.clear()
        self.released = [[] for _ in self.released]  # As many were acquired, so each semaphore has its old value.

    def _last_scratch_uses(self) -> dict[int, list[tuple[VectorClocks, int, int]]]:
        """Return for each rank who used its scratch in the launch that ended, and when last.

        A use is (clocks, actor, tick): whoever knows by these clocks that the actor's tick is over also knows that of
        the use. Reads before the last write of a cell are over when that is. Only accesses of scratch may be left.
        """
        accesses = [(cell, True, access) for cell, access in self.written.items()]
        accesses += [(cell, False, access) for cell, readers in self.read.items() for access in readers.values()]
        last_uses: dict[tuple[int, bool, int], int] = {}
        for cell, is_write, access in accesses:
            use = self.memory.rank(cell), is_write, access[0]
            last_uses[use] = max(last_uses.get(use, 0), access[1])
        uses: dict[int, list[tuple[VectorClocks, int, int]]] = {}
        for (rank, is_write, actor), tick in last_uses.items():
            uses.setdefault(rank, []).append((self.clocks.shown if is_write else self.clocks.seen, actor, tick))
        return uses

    def _run_act(self, blocks: Sequence[int], act: Act) -> None:
        """Run one act: update knowledge, signals and cells, and add findings.

        `blocks` holds the act's threadblock; for a barrier, all threadblocks that meet there.
        """
        clocks, block, kind = self.clocks, blocks[0], act.kind
        if kind == "nop":
            clocks.nop(block)
        elif kind == "data":
            self._data(block, act)
        elif kind == "barrier":
            clocks.join(blocks)
        elif kind == "wait":
            for thread, number in enumerate(act.ids):
                clocks.hear(block, self.signals[number].popleft())
                self._in_order("wait", number, block, act, thread)
        elif kind == "signal":
            for thread, number in enumerate(act.ids):
                self._signal(block, number, act, thread)
        elif kind == "acquire":
            for number in act.ids:
                self._acquire(block, number)
        elif kind == "release":
            for number in act.ids:
                self.released[number].append(clocks.message(block))

    def _signal(self, block: int, end: int, act: Act, thread: int = 0) -> None:
        """Add a signal at the other end of the channel end `end`, if it has one, for an act of a threadblock.

        A port channel signals itself, after it has learned what the threadblock knows. A race is added if nothing
        orders this signal after the last one on the same end.

        Args:
            block: Threadblock that signals.
            end: Channel end on which it signals.
            act: Its act.
            thread: Thread of the threadblock that signals; a port channel ignores it.
        """
        actor = self._handed_over(block, end) if end in self.port else block
        # A port channel counts its own signals.
        self._in_order("signal", end, block, act, 0 if actor != block else thread)
        message = self.clocks.message(actor, act.relaxed)
        other_end = self.plan_acts.across[end]
        if other_end >= 0:
            self.signals[other_end].append(self.clocks.seen_from(message, self.plan_acts.ends[end].peer))

    def _handed_over(self, block: int, end: int) -> int:
        """Return the actor of the port channel at a channel end, which works asynchronously, for its next task.

        Before, the actor learns what the threadblock knew at its last nop, and begins a new tick.
        """
        actor = self.port[end]
        self.clocks.hear(actor, self.clocks.message(block))
        self.clocks.nop(actor)
        return actor

    def _acquire(self, block: int, number: int) -> None:
        """Record an acquire of a semaphore, and learn the releases that are surely over.

        With one threadblock that releases and one that acquires, that is the release that this acquire needs. Else it
        is all releases of the launch, if this acquire needs all of them, or none. The threadblock knows them from its
        next nop on.
        """
        self.acquired[block, number] += 1
        releases_needed = self.acquired[block, number] - self.plan_acts.semaphores[number][2]
        if number in self.single:
            if releases_needed > 0:
                self.clocks.hear(block, self.released[number][releases_needed - 1])
        elif releases_needed == self.total[number]:
            for message in self.released[number]:
                self.clocks.hear(block, message)

    def _in_order(self, kind: str, end: int, block: int, act: Act, thread: int) -> None:
        """Check that threads and threadblocks use a channel end, which counts, one after the other; record this use.

        If nothing orders this use after the last one of the same kind, a race is added.

        Args:
            kind: "signal" or "wait".
            end: The channel end.
            block: Threadblock that uses it.
            act: Its act.
            thread: Its thread that uses it.
        """
        last_use = self.last_use.get((kind, end))
        nops = self.clocks.nops[block]
        if last_use is not None:
            user_block, tick, op, nops_before, user = last_use
            is_concurrent = user_block != block and self.clocks.known(block, user_block) < tick + 2
            if is_concurrent or (user_block == block and nops_before == nops and user != thread):
                user_text = (
                    f"tb {self.plan_acts.tb[user_block]} step {op}" if is_concurrent else f"another thread in step {op}"
                )
                remedy = "one must wait for the other" if is_concurrent else "a nop must stand between"
                message = f"{kind}s on {self.plan_acts.ends[end]} in no fixed order with {user_text}; {remedy}"
                self.findings.add("race", message, *self.plan_acts.place(block, act.op))
        self.last_use[kind, end] = (block, self.clocks.tick[block], act.op, nops, thread)

    def _data(self, block: int, act: Act) -> None:
        """Run the moves of a data operation of a threadblock, and send the signals that are part of it.

        Moves on port channels are run by the channels' own actors, one for each target. After a pwsf, the threadblock
        also learns what the channel knows.
        """
        if act.name == "rppkt" and act.ports:  # All threads read and synchronize before one sends.
            self._hear_packets(block, act.moves[0])
            self.clocks.nop(block)
        for n, move in enumerate(act.moves):
            if not act.ports:
                self._move(block, block, act, move)
                continue
            for k, target in enumerate(move.targets):
                end = act.ports[n + k]
                self._move(self._handed_over(block, end), block, act, Move(move.length, move.sources, (target,)))
                if end in act.signalled:
                    self._signal(block, end, act)
                if act.name == "pwsf":  # The thread goes on when the channel has read what it sends.
                    self.clocks.nop(self.port[end])
                    self.clocks.hear(block, self.clocks.message(self.port[end], relaxed=True))

    def _hear_packets(self, actor: int, move: Move) -> None:
        """Add what the writers of the packets that a move reads had seen to what `actor` has seen.

        This orders execution, but does not show it their other writes to memory.
        """
        seen_messages: set[tuple[int, int]] = set()
        for run in move.sources:
            for cell in run.cells(move.length) if run.packet else ():
                message = self.packet.get(cell)
                if message is not None and (id(message), run.rank) not in seen_messages:
                    seen_messages.add((id(message), run.rank))
                    own = self.clocks.seen_by(message, self.clocks.rank[actor], run.rank)
                    self.clocks.seen.learn(actor, own.seen)  # Each thread reads the packets of its own elements.

    def _move(self, actor: int, block: int, act: Act, move: Move) -> None:
        """Run one move: check its accesses, and store its sums and the flags of its packets in the cells.

        Args:
            actor: Actor that executes it: the threadblock, or a port channel.
            block: Threadblock of the operation, which findings name.
            act: The data operation.
            move: The move.
        """
        clocks = self.clocks
        if act.packets and actor == block:
            self._hear_packets(actor, move)
        for run in (*move.sources, *move.targets):
            if run.rank != clocks.rank[actor] and not clocks.started(actor, run.rank, self.begun):
                self._too_early(actor, block, act, run)
        packet_ranks = [run.rank for run in move.targets if run.packet]
        message = clocks.packet(actor) if packet_ranks else None
        packets = {} if message is None else {rank: clocks.seen_from(message, rank) for rank in packet_ranks}
        cells, add, image, group = self.cells, self.contents.add, self.contents.image, self.group
        # A packet that is written over itself, once it has been read, changes nothing for others who read it.
        is_copy = act.flagged and len(move.sources) == 1
        put_back = next((run for run in move.targets if run.packet and run in move.sources), None) if is_copy else None
        for j in self._elements(move):
            access = (actor, clocks.tick[actor], block, act.op, clocks.nops[actor], act.packets, j)
            total = NOTHING
            for n, run in enumerate(move.sources):
                for cell in run.element(j):
                    self._check_read(cell, access, run, act)
                    value = cells.get(cell, NOTHING)
                if value == NOTHING:
                    value = self._uninitialised(cell, run.packet, block, act)
                if moved_by := group.element(run.rank):
                    value = image(value, moved_by)
                total = value if n == 0 else add(total, value)
            for run in move.targets:
                if run == put_back:
                    self.written.update(dict.fromkeys(run.element(j), self._at_owner(access, run)))
                    continue
                moved_by = group.element(run.rank)
                value = image(total, group.inverse(moved_by)) if moved_by else total
                for cell in run.element(j):
                    self._check_write(cell, access, run, act)
                    cells[cell] = value
                    self.packet.pop(cell, None)
                    if run.packet:
                        self.packet[cell] = packets[run.rank]
                        self.times[cell] += 1
        if packets:
            clocks.tick[actor] += 1  # The packet says nothing about later events.

    def _elements(self, move: Move) -> Iterable[int]:
        """Return the elements of a move that are looked at: all, or with `begins` the first of equal elements."""
        if self.begins is None or not move.length:
            return range(move.length)
        first_run = move.sources[0] if move.sources else move.targets[0]
        return [j for j, begins in enumerate(self._begins[first_cells_of(first_run, move.length)]) if begins]

    def _check_read(self, cell: int, access: Access, run: ActRun, act: Act) -> None:
        """Check that a read of a cell is ordered after its last write, add a race if not, and record the read.

        A packet whose flag the operation waits for needs no other order, if it was written just once in this launch.
        """
        last_write = self.written.get(cell)
        flagged = run.packet and act.flagged
        access = self._at_owner(access, run)
        if last_write is not None and not (flagged and self.times[cell] == 1 and cell in self.packet):
            self._check_order(last_write, access, self.clocks.shown, cell, act)
        readers = self.read.setdefault(cell, {})
        before = readers.get(access[0])
        if before is not None and before[4] == access[4] and before[5:] != access[5:]:
            access = (*access[:6], _MIXED)
        readers[access[0]] = access

    def _check_write(self, cell: int, access: Access, run: ActRun, act: Act) -> None:
        """Check that a write of a cell is ordered after its last write and the reads since, and record it.

        Each earlier access that nothing orders before it adds a race. The reads before it are forgotten.
        """
        last_write = self.written.get(cell)
        access = self._at_owner(access, run)
        if last_write is not None:
            self._check_order(last_write, access, self.clocks.shown, cell, act, run.packet)
        for reader in self.read.pop(cell, {}).values():
            self._check_order(reader, access, self.clocks.seen, cell, act, run.packet)
        self.written[cell] = access

    def _at_owner(self, access: Access, run: ActRun) -> Access:
        """Return an access whose actor is the entry by which the representative of the run's rank knows that actor."""
        if self.group.images is None:
            return access
        element = self.group.inverse(self.group.element(run.rank))
        return (self.clocks.entry(access[0], element), *access[1:])

    def _check_order(
        self, earlier: Access, access: Access, clocks: VectorClocks, cell: int, act: Act, packet: bool = False
    ) -> None:
        """Check that `access` follows `earlier`, by clocks or because one thread does both; if not, add a race.

        Each pair of operations is reported only once.

        Args:
            earlier: The access that must be over.
            access: The later access; its actor is an entry of the same rank's rows.
            clocks: The clocks that must know of the earlier access: of memory after a write, of execution after a read.
            cell: The cell that the two accesses share.
            act: The operation of the later access.
            packet: Whether the race names the cell as part of a packet.
        """
        if earlier[0] == access[0]:
            if earlier[4] < access[4] or (earlier[5:] == access[5:] and earlier[6] != _MIXED):
                return
        elif self.clocks.known_of(clocks, access[0], earlier[0]) >= earlier[1] + 2:
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
        if earlier[0] // self.group.order >= len(self.plan_acts.acts):
            remedy = "a port channel moves data on its own time; the other end must answer first"
        self.findings.add_race(act.name, f"the {earlier_name} of {step}", where, remedy, own_place, name)

    def _name(self, cell: int, packet: bool, rank: int) -> tuple[str, tuple[str, int]]:
        """Return a cell as a message of `rank` names it, and as (buffer, index).

        With `packet`, a cell of scratch is named as part of a packet, and the index counts packets.
        """
        name, index = self.memory.name(cell, packet)
        owner = self.memory.rank(cell)
        return f"{name}[{index}]{'' if owner == rank else f' of rank {owner}'}", (name, index)

    def _too_early(self, actor: int, block: int, act: Act, run: ActRun) -> None:
        """Add a race, once for each operation and rank: the rank may not have started when its memory is used.

        Nothing is added for packets in double scratch; nor for scratch, if the caller promises anything about its
        calls, or if the actor knows that the last launch is over with the rank's scratch. Scratch belongs to one plan
        and its buffers, unless the plan asks for scratch that all plans share.
        """
        # Packets in double scratch may arrive before the start, because the last launch uses the other half.
        may_come_early = run.packet and self.memory.plan.double
        if self.memory.in_scratch(run.cell):
            may_come_early |= self.calls != CallAssumption.ANY or self._is_used_up(actor, run)
        if may_come_early:
            return
        pair = (block, act.op, -1, run.rank)
        if pair in self.reported:
            return
        self.reported.add(pair)
        own_place = self.plan_acts.place(block, act.op)
        where, name = self._name(run.cell, run.packet, own_place[0])
        message = f"{act.name} uses {where}, which may not have started the call"
        self.findings.add("race", f"{message}; it must wait for a signal of it first", *own_place, cell=name)

    def _is_used_up(self, actor: int, run: ActRun) -> bool:
        """Return whether an actor knows that the last launch no longer uses the scratch of a run's rank, nor will.

        The sizes of the two calls may differ, so that any cell may be where another one was.
        """
        plan = self.memory.plan
        if plan.double or plan.reuse:
            return False
        entry = self._at_owner((actor, 0, -1, -1, 0, False, 0), run)[0]
        clocks = self.clocks
        return all(
            clocks.known_of(known, entry, user) >= tick + 2
            for known, user, tick in self.scratch_uses.get(self.memory.rank(run.cell), ())
        )

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
        """Add the cycle of waits in which the launch stopped, or the wait for something that nothing provides.

        `stopped` is the result of `run`, which must not be empty.
        """

        def cell_name(cell: int) -> str:
            """Return the name of a cell with packets, whose index counts packets: "s[3]"."""
            name, index = self.memory.name(cell, True)
            return f"{name}[{index}]"

        self.execution.report_stopped(stopped, cell_name, self.findings)

    def check_ends(self, notes: list[str]) -> None:
        """Report a race for each access to another rank's memory that may come after that rank's kernel has ended.

        The caller of the kernel may then use its buffers. A port channel's reads of a rank's own memory get a caution
        in `notes` instead. This is to be called after a launch that ended.
        """
        plan_acts, known_at_end = self.plan_acts, self._known_at_end()
        reported: set[tuple[int, int, int]] = set()
        cautions: list[str] = []
        accesses = [(cell, access, "writes") for cell, access in sorted(self.written.items())]
        for cell, readers in sorted(self.read.items()):
            accesses += ((cell, access, "reads") for _, access in sorted(readers.items()))
        for cell, access, verb in accesses:
            actor, tick, block, op = access[:4]
            owner = self.memory.rank(cell)
            own_actor, element = divmod(actor, self.group.order)
            is_own = self.clocks.rank[own_actor] == owner and not element
            if own_actor < len(plan_acts.acts) and is_own:
                continue
            # A relaxed signal says that a store was made, not that memory has it. A packet that was read is there.
            known_ticks = known_at_end[owner][verb == "writes" and not access[5]]
            is_known = len(known_ticks) and known_ticks[actor] >= tick + 2
            if is_known or (block, op, owner) in reported:
                continue
            is_unseen = not len(known_ticks) or known_at_end[owner][0][actor] < tick + 2
            reported.add((block, op, owner))
            name, at = self.memory.name(cell)
            op_name, place = plan_acts.name(block, op), plan_acts.place(block, op)
            if not is_own:
                message = f"{op_name} {verb} {name}[{at}] of rank {owner}, which can end before that"
                remedy = "it must wait for a signal" if is_unseen else "the signal must not be a relaxed one"
                self.findings.add("race", f"{message}; {remedy}", *place, cell=(name, at))
            elif name != "s" or not self.memory.plan.double:  # With double scratch, the next call uses the other half.
                cautions.append(
                    f"caution: rank {owner} can end while a port channel still reads {name}[{at}] for the {op_name} of"
                    f" tb {place[1]} step {op}; flush does not wait for it in the executor, pwsf does"
                )
        notes += cautions[:_SPELT_OUT]
        if len(cautions) > _SPELT_OUT:
            notes.append(f"caution: {len(cautions) - _SPELT_OUT} more of that kind")

    def check_hearing(self, notes: list[str]) -> None:
        """Add a finding or a caution if a rank hears nothing of another rank, and so can be two launches ahead of it.

        Such launches use the same half of scratch. Only the first such pair of ranks is reported, as a caution in
        `notes`. It is a race if the plan has packets in double scratch and channels that connect the two ranks, because
        its launches mix with those of other packet plans. Nothing is added for calls that are apart.
        """
        plan, clocks = self.memory.plan, self.clocks
        known_at_end = self._known_at_end()
        unaware_pairs = (
            (rank, peer)
            for rank in self.memory.owners
            for peer in range(len(plan.gpus))
            if rank != peer and not clocks.has_begun(known_at_end[rank][0], peer, self.begun)
        )
        pair = next(unaware_pairs, None)
        if pair is None or self.calls == CallAssumption.APART:
            return
        subject = f"hears nothing of rank {pair[1]} in a launch, and can be two ahead of it"
        if plan.packets and plan.double and plan.connects(*pair):
            requirement = "it must hear that it has started, before it ends"
            self.findings.add(
                "race", f"{subject}: packets that are not yet read are overwritten; {requirement}", pair[0]
            )
        else:
            notes.append(f"caution: rank {pair[0]} {subject}, which breaks plans of packets (LL) before and after it")

    def _known_at_end(self) -> list[tuple[Row, Row]]:
        """Return for each rank the row of what it has seen, and that of what memory it was shown, when its launch ends.

        Both rows are empty for a rank without threadblocks. The threadblocks' knowledge is brought up to date by a nop.
        """
        nothing = np.zeros(0, dtype=np.int32)
        of_rank = self.plan_acts.blocks_of_ranks(len(self.begun))
        return [self.clocks.ended(blocks) if blocks else (nothing, nothing) for blocks in of_rank]


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
