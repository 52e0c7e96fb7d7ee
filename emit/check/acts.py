"""Execute what the threadblocks of an execution plan do, act by act: signals, waits, moves of cells, and barriers.

A format translates its operations to acts: loops are unrolled, ids are resolved, data is cells. Steps of a program,
which move whole chunks and wait for at most one step and one message, are executed faster by `emit.check.order`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from emit.check.executor import execute, report_deadlock
from emit.findings import Findings
from topologies.errors import InputError

Need = tuple[str, int]  # ("signal", channel end), ("release", semaphore), ("packet", cell) or ("barrier", number)
_GIVES = {"wait": "signal", "acquire": "release"}  # event that each kind of act waits for


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
        """Return the cells of element `number`, counted from 0: one cell, or two for a packet."""
        return (self.cell + 2 * number, self.cell + 2 * number + 1) if self.packet else (self.cell + number,)

    def cells(self, length: int) -> range:
        """Return all cells of the first `length` elements."""
        return range(self.cell, self.cell + length * (2 if self.packet else 1))


class Move(NamedTuple):
    """A move of `length` elements: each destination becomes the sum of the sources.

    Attributes:
        length: Number of elements.
        sources: Runs that are read, each of `length` elements.
        targets: Runs that are written, each of `length` elements.
    """

    length: int
    sources: tuple[ActRun, ...]
    targets: tuple[ActRun, ...]

    def packets_read(self) -> Iterator[int]:
        """Yield the cells of the sources that are packets, source after source."""
        for run in self.sources:
            if run.packet:
                yield from run.cells(self.length)


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

    @property
    def signalled(self) -> tuple[int, ...]:
        """Return the channel ends on which it signals, also as part of a pws or pwsf; () for none."""
        return self.ids if self.kind == "signal" else self.ports if self.name in ("pws", "pwsf") else ()


class ChannelEnd(NamedTuple):
    """An end of a channel.

    Attributes:
        rank: Its rank.
        kind: Type of the channel.
        number: Number of the channel in the rank's list of its type.
        peer: Rank at the other end.
    """

    rank: int
    kind: str
    number: int
    peer: int

    def __str__(self) -> str:
        return f"{self.kind} channel {self.number}"


@dataclass(slots=True)
class Acts:
    """The acts of a plan's threadblocks, which are numbered through all ranks.

    Attributes:
        acts: Acts of each threadblock.
        rank: Rank of each threadblock.
        tb: Number of each threadblock in its rank.
        ends: Every channel end.
        across: Other end of every channel end, −1 for none.
        semaphores: (rank, number, initial value) of every semaphore.
        barriers: (rank, id, number of threadblocks that must meet) of every barrier.
    """

    acts: list[list[Act]] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    tb: list[int] = field(default_factory=list)
    ends: list[ChannelEnd] = field(default_factory=list)
    across: list[int] = field(default_factory=list)
    semaphores: list[tuple[int, int, int]] = field(default_factory=list)
    barriers: list[tuple[int, int, int]] = field(default_factory=list)

    def place(self, block: int, op: int) -> tuple[int, int, int]:
        """Return (rank, threadblock in that rank, `op`) for an operation of the threadblock `block` of all ranks."""
        return self.rank[block], self.tb[block], op

    def name(self, block: int, op: int) -> str:
        """Return the name of the operation at position `op` of a threadblock, which must have an act of it.

        All acts of a pipeline have its position. If they are of several operations, the name is "pipeline".
        """
        names = {act.name for act in self.acts[block] if act.op == op}
        return names.pop() if len(names) == 1 else "pipeline"

    def blocks_of_ranks(self, nranks: int) -> list[list[int]]:
        """Return the threadblocks of each of `nranks` ranks, by their numbers through all ranks, ascending."""
        blocks: list[list[int]] = [[] for _ in range(nranks)]
        for block, rank in enumerate(self.rank):
            blocks[rank].append(block)
        return blocks


class ActExecution:
    """The execution of acts, one launch after another; signals and the values of semaphores stay for the next launch.

    Attributes:
        plan_acts: Acts of the plan.
        acts: Acts of each threadblock in the current launch.
        at: Next act of each threadblock.
        arrived: Threadblocks that wait at each barrier, by its number.
        counts: Number of signals at each channel end, and value of each semaphore.
        flags: Cells that hold packets of the current launch.
    """

    def __init__(self, plan_acts: Acts) -> None:
        self.plan_acts = plan_acts
        self.counts: Counter[Need] = Counter(
            {("release", n): initial_value for n, (_, _, initial_value) in enumerate(plan_acts.semaphores)}
        )
        self.acts: Sequence[Sequence[Act]] = plan_acts.acts
        self.at: list[int] = []
        self.arrived: dict[int, list[int]] = defaultdict(list)
        self.flags: set[int] = set()
        self._waiting: dict[Need, list[int]] = {}

    def launch(self, acts: Sequence[Sequence[Act]], do: Callable[[Sequence[int], Act], None]) -> list[int]:
        """Run all threadblocks once; return the ones that stopped before their end, none if the launch completed.

        Packets and barriers start anew; signals and semaphores are as the last launch left them.

        Args:
            acts: Acts of each threadblock in this launch: those of the plan, or the same ones on other cells.
            do: Called for each act in the order of execution, with its threadblock; for a barrier once, with all.
        """
        self.acts, self.at = acts, [0] * len(acts)
        self.arrived.clear()
        self.flags.clear()
        self._waiting.clear()
        execute(len(acts), lambda block: self._advance(block, do))
        return [block for block, at in enumerate(self.at) if at < len(acts[block])]

    def _advance(self, block: int, do: Callable[[Sequence[int], Act], None]) -> list[int]:
        """Run a threadblock until it ends or must wait; return the threadblocks that may proceed because of that."""
        released: list[int] = []
        acts, at, own = self.acts[block], self.at, [block]
        while at[block] < len(acts):
            act = acts[at[block]]
            if act.kind == "nop":
                do(own, act)
                at[block] += 1
                continue
            need = self._need(act)
            if need is not None:
                self._waiting.setdefault(need, []).append(block)
                break
            blocks = own
            if act.kind == "barrier":
                arrived = self.arrived[act.ids[0]]
                arrived.append(block)
                if len(arrived) < self.plan_acts.barriers[act.ids[0]][2]:
                    break
                blocks = arrived.copy()
                released += arrived[:-1]
                arrived.clear()
            do(blocks, act)
            for event in self._events(act):
                if event in self._waiting:
                    released += self._waiting.pop(event)
            for member in blocks:
                at[member] += 1
        return released

    def _need(self, act: Act) -> Need | None:
        """Return the first event that must happen before an act can be executed; None if it can be executed now.

        Barriers are not considered.
        """
        event = _GIVES.get(act.kind)
        if event is not None:
            ids = act.ids
            for number in ids:
                if self.counts[event, number] < (1 if len(ids) == 1 else ids.count(number)):
                    return event, number
        elif act.flagged:
            for move in act.moves:
                for run in move.sources:
                    if run.packet and not self.flags.issuperset(run.cells(move.length)):
                        return "packet", next(cell for cell in run.cells(move.length) if cell not in self.flags)
        return None

    def _events(self, act: Act) -> list[Need]:
        """Count the events that an act consumes and causes; return those caused that threadblocks may wait for.

        An act that writes plain data over packets also takes their flags away.
        """
        consumed = _GIVES.get(act.kind)
        if consumed is not None:
            for number in act.ids:
                self.counts[consumed, number] -= 1
            return []
        events: list[Need] = []
        if act.kind == "release":
            events = [("release", number) for number in act.ids]
        elif act.ids or act.ports:
            events = [("signal", self.plan_acts.across[end]) for end in act.signalled]
        for event in events:
            self.counts[event] += 1
        for move in act.moves:
            for run in move.targets:
                if run.packet:
                    self.flags.update(cells := run.cells(move.length))
                    if self._waiting:
                        events += [("packet", cell) for cell in cells if ("packet", cell) in self._waiting]
                elif self.flags:  # Plain data leaves no flag.
                    self.flags.difference_update(run.cells(move.length))
        return events

    def report_stopped(self, stopped: list[int], cell_name: Callable[[int], str], findings: Findings) -> None:
        """Add the cycle of waits in which a launch stopped, or the wait for something that nothing provides.

        Args:
            stopped: Threadblocks that stopped, as `launch` returned them; at least one.
            cell_name: Returns the name of a cell with packets.
            findings: Where the deadlock is added.
        """
        acts, at, plan_acts = self.acts, self.at, self.plan_acts

        def waits_for(block: int) -> tuple[int | None, str]:
            """Return the threadblock that a stopped one waits for (None for no threadblock), and the event in words."""
            act = acts[block][at[block]]
            need = ("barrier", act.ids[0]) if act.kind == "barrier" else self._need(act)
            assert need is not None  # It stopped there.
            arrived = self.arrived[need[1]] if act.kind == "barrier" else []
            providers = (
                candidate
                for candidate in stopped
                if candidate not in arrived and any(self._provides(a, need) for a in acts[candidate][at[candidate] :])
            )
            return next(providers, None), self._describe(need, cell_name)

        report_deadlock(
            stopped[0],
            waits_for,
            lambda block: plan_acts.place(block, acts[block][at[block]].op),
            lambda block: acts[block][at[block]].name,
            findings,
        )

    def _provides(self, act: Act, need: Need) -> bool:
        """Return True if the act would cause the event `need`; for a barrier, if the act is an arrival there."""
        kind, number = need
        if kind == "signal":
            return self.plan_acts.across[number] in act.signalled
        if kind in ("release", "barrier"):
            return act.kind == kind and number in act.ids
        return any(number in run.cells(move.length) for move in act.moves for run in move.targets if run.packet)

    def _describe(self, need: Need, cell_name: Callable[[int], str]) -> str:
        """Describe the event `need` in words; `cell_name` returns the name of a cell with packets."""
        kind, number = need
        if kind == "barrier":
            return f"the other threadblocks at barrier {self.plan_acts.barriers[number][1]}"
        if kind == "signal":
            end = self.plan_acts.ends[number]
            return f"a signal of rank {end.peer} on {end}"
        if kind == "release":
            return f"semaphore {self.plan_acts.semaphores[number][1]}"
        return f"a packet in {cell_name(number)}"


def execute_acts(plan_acts: Acts, do: Callable[[int, Act], None]) -> None:
    """Call `do(threadblock, act)` for everything that a plan does in one launch, in one possible order.

    Acts that meet at a barrier are adjacent.

    Raises:
        InputError: The plan stops before its end; `do` was called for everything that it did until then.
    """

    def do_each(blocks: Sequence[int], act: Act) -> None:
        """Call `do` for each threadblock of an act."""
        for block in blocks:
            do(block, act)

    if ActExecution(plan_acts).launch(plan_acts.acts, do_each):
        raise InputError("stops before its end; synth verify says where")


def execution_order(plan_acts: Acts) -> list[tuple[int, Act]]:
    """Return (threadblock, act) of everything that a plan does in one launch, in the order of `execute_acts`.

    Raises:
        InputError: The plan stops before its end.
    """
    order: list[tuple[int, Act]] = []
    execute_acts(plan_acts, lambda block, act: order.append((block, act)))
    return order


def check_counts(plan_acts: Acts, findings: Findings) -> None:
    """Add a finding of kind "unpaired" where signals and waits do not match, or a semaphore changes its value.

    The counts are those of one launch. Add such a finding too for a barrier that is not reached by as many threadblocks
    as it needs, all equally often, and for signals on a channel end without another end.
    """
    times: dict[str, Counter[int]] = defaultdict(Counter)
    last_use: dict[tuple[str, int], tuple[int, int]] = {}
    at_barrier: dict[int, Counter[int]] = defaultdict(Counter)
    for block, acts in enumerate(plan_acts.acts):
        for act in acts:
            kind, ids = ("signal", act.signalled) if act.signalled else (act.kind, act.ids)
            if kind == "barrier":
                at_barrier[ids[0]][block] += 1
            for number in ids:
                times[kind][number] += 1
                last_use[kind, number] = (block, act.op)

    def unpaired(kind: str, number: int, message: str) -> None:
        """Add a finding at the last use of a channel end or semaphore."""
        findings.add("unpaired", message, *plan_acts.place(*last_use[kind, number]))

    signals, waits = times["signal"], times["wait"]
    for number, (end, other_end) in enumerate(zip(plan_acts.ends, plan_acts.across, strict=True)):
        if signals[number] and other_end < 0:
            unpaired("signal", number, f"signals on {end}, which has no other end; it must have one")
        received = signals[other_end] if other_end >= 0 else 0
        if waits[number] > received:
            message = f"waits {waits[number]} times on {end}, where rank {end.peer} signals {received} times"
            unpaired("wait", number, f"{message}: a missing signal")
        elif waits[number] < received:
            message = f"signals {received} times on {plan_acts.ends[other_end]}, but rank {end.rank} waits"
            remedy = "a missing wait"
            unpaired("signal", other_end, f"{message} {waits[number]} times on its channel {end.number}: {remedy}")
    releases, acquires = times["release"], times["acquire"]
    for semaphore, (_, number, _) in enumerate(plan_acts.semaphores):
        nreleases, nacquires = releases[semaphore], acquires[semaphore]
        if nreleases != nacquires:
            message = f"semaphore {number} is released {nreleases} times and acquired {nacquires} times"
            kind = "release" if nreleases > nacquires else "acquire"
            unpaired(kind, semaphore, f"{message}; the next call would find it changed")
    _check_barriers(plan_acts, at_barrier, findings)


def _check_barriers(plan_acts: Acts, at_barrier: dict[int, Counter[int]], findings: Findings) -> None:
    """Add a finding for each barrier that is not reached by as many threadblocks as it needs, all equally often.

    `at_barrier` holds, by barrier, how often each threadblock reaches it.
    """
    used: dict[tuple[int, int], int] = {}
    for barrier, counts in at_barrier.items():
        rank, number, size = plan_acts.barriers[barrier]
        full = len(counts) == size and len(set(counts.values())) == 1
        if not full or used.setdefault((rank, number), barrier) != barrier:
            reached = ", ".join(f"tb {plan_acts.tb[b]} {n} times" for b, n in sorted(counts.items())[:8])
            remedy = f"it must be by {size}, equally often"
            message = f"barrier {number} of {size} threadblocks is reached by {reached}; {remedy}"
            findings.add("unpaired", message, rank, plan_acts.tb[min(counts)])
