"""A naive executor that settles what can happen in any order, by holding one transmission back.

Every threadblock is sequential, and a step that may go on stays allowed to. So a greedy run in which one transmission
is held back for ever does everything that can precede this transmission: whatever the run has not done comes after the
transmission in every order. Two accesses are unordered if each is done while the other is held back. The executor
shares only the definitions of a program and of a goal with the check.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

from emit.goal import Goal, goal_for
from emit.program import READS_SRC, RECEIVES, SENDS, WRITES_DST, Program, Step

Place = tuple[int, int, int]  # (rank, tb, step)
Event = tuple[int, int, int, int]  # (rank, tb, step, chunk) of one transmission; chunk 0: no chunk is moved.
Cell = tuple[int, str, int]  # (rank, buffer, index)
Held = Counter[tuple[int, int]]
LOCAL = ("cpy", "re", "nop")
UNLIMITED = 1 << 60


@dataclass(slots=True)
class Run:
    """The result of one run.

    Attributes:
        complete: Whether every step was executed.
        done: Position of each event in the run's order.
        stopped: Position of the step at which each unfinished (rank, threadblock) stopped.
        memory: Content of each cell at the end.
        unwritten: (step, buffer, index) of reads of cells that nothing had written.
    """

    complete: bool
    done: dict[Event, int]
    stopped: dict[tuple[int, int], int]
    memory: dict[Cell, Held] = field(default_factory=dict)
    unwritten: set[tuple[Place, str, int]] = field(default_factory=set)


def goals_of(program: Program, goal: Goal | None) -> list[Goal]:
    """Return the given goal, or a goal for each kind of call (in place, out of place) that the program serves."""
    if goal is not None:
        return [goal]
    p = program
    inplace_values = [inplace for inplace, serves in ((True, p.inplace), (False, p.outofplace)) if serves]
    goals = [goal_for(p.collective, p.nranks, p.nchunks_per_loop, inplace, p.root) for inplace in inplace_values]
    return [g for g in goals if g is not None]


def memory_cell(goal: Goal, rank: int, buffer: str, index: int) -> Cell:
    """Return the cell that holds a buffer's index: o lies in i where the goal says so."""
    shift = goal.o_in_i[rank]
    return (rank, "i", index + shift) if buffer == "o" and shift is not None else (rank, buffer, index)


def execute(
    program: Program,
    goal: Goal,
    depth: int = UNLIMITED,
    held_event: Event | None = None,
    rng: random.Random | None = None,
    split: bool = True,
) -> Run:
    """Run until nothing can go on, and return what happened.

    Args:
        program: The program.
        goal: States the initial content of memory.
        depth: Number of FIFO slots of a connection.
        held_event: A transmission that is never done.
        rng: Draws the order of threadblocks; None: greedy, in order of ranks and threadblocks.
        split: Whether the chunks of a step are transmitted one by one.
    """
    memory: dict[Cell, Held] = {}
    ranks, buffers, places, sources, chunks = (column.tolist() for column in goal.initial)
    for rank, buffer, index, source, chunk in zip(ranks, buffers, places, sources, chunks, strict=True):
        memory[memory_cell(goal, rank, "ios"[buffer], index)] = Counter([(source, chunk)])
    blocks = [(r, t) for r, gpu in enumerate(program.gpus) for t in range(len(gpu.threadblocks))]
    at = dict.fromkeys(blocks, (0, 0))
    fifo: dict[tuple[int, int, int], list[list[Held]]] = defaultdict(list)
    run = Run(False, {}, {}, memory)
    progressed = True
    while progressed:
        progressed = False
        if rng is not None:
            rng.shuffle(blocks)
        for r, t in blocks:
            tb = program.gpus[r].threadblocks[t]
            patience = 1 if rng is not None else UNLIMITED
            while patience and at[r, t][0] < len(tb.steps):
                position, chunk = at[r, t]
                s = tb.steps[position]
                into, out = fifo[tb.recv, r, tb.channel], fifo[r, tb.send, tb.channel]
                waits = s.dep_tb >= 0 and at[r, s.dep_tb][0] <= s.dep_step
                empty = s.op in RECEIVES and not into
                full = s.op in SENDS and len(out) >= depth
                if waits or empty or full or (r, t, position, chunk) == held_event:
                    break
                at_once = s.op in LOCAL or not split
                received = into.pop(0) if s.op in RECEIVES else []
                sent = [
                    _move(run, goal, (r, t, position), s, c, received[x] if received else None)
                    for x, c in enumerate(range(s.count) if at_once else [chunk])
                ]
                if s.op in SENDS:
                    out.append(sent)
                run.done[r, t, position, chunk] = len(run.done)
                at[r, t] = (position + 1, 0) if at_once or chunk + 1 == s.count else (position, chunk + 1)
                progressed = True
                patience -= 1
    run.stopped = {b: at[b][0] for b in at if at[b][0] < len(program.gpus[b[0]].threadblocks[b[1]].steps)}
    run.complete = not run.stopped
    return run


def _move(run: Run, goal: Goal, place: Place, s: Step, chunk: int, received: Held | None) -> Held:
    """Run one chunk of a step and return the value that it yields."""
    value: Held = Counter() if received is None else received.copy()
    reads = [(s.src_buf, s.src_off)] if s.op in READS_SRC else []
    reads += [(s.dst_buf, s.dst_off)] if s.op == "re" else []
    for buffer, offset in reads:
        cell = memory_cell(goal, place[0], buffer, offset + chunk)
        if cell not in run.memory:
            run.unwritten.add((place, buffer, offset + chunk))
        value += run.memory.get(cell, Counter({(-1, 0): 1}))
    if s.op in WRITES_DST:
        run.memory[memory_cell(goal, place[0], s.dst_buf, s.dst_off + chunk)] = value
    return value


def wrong_cells(program: Program, goal: Goal, run: Run) -> set[Cell]:
    """Return (rank, buffer, index) of each cell that differs at the end from what the goal requires.

    The input of a call that is only out of place must be unchanged, too.
    """
    sets = goal.sets
    bounds, sources, chunks = sets.start.tolist(), sets.source.tolist(), sets.chunk.tolist()
    wrong = set()
    for rank, code, index, number in zip(*(column.tolist() for column in goal.required), strict=True):
        low, high = bounds[number], bounds[number + 1]
        expected = Counter(zip(sources[low:high], chunks[low:high], strict=True))
        if run.memory.get(memory_cell(goal, rank, "ios"[code], index)) != expected:
            wrong.add((rank, "ios"[code], index))
    if program.outofplace and not program.inplace:
        for rank, code, index, source, chunk in zip(*(c.tolist() for c in goal.initial), strict=True):
            if code == 0 and run.memory[rank, "i", index] != Counter([(source, chunk)]):
                wrong.add((rank, "i", index))
    return wrong


def accesses(program: Program, goal: Goal) -> dict[Cell, list[tuple[Event, bool]]]:
    """Return (event, whether it writes) of every access by memory cell; a copy onto itself only reads."""
    accesses_of_cell: dict[Cell, list[tuple[Event, bool]]] = defaultdict(list)
    for r, t, position, s in program.steps():
        for chunk in range(s.count):
            event = (r, t, position, 0 if s.op in LOCAL else chunk)
            src = memory_cell(goal, r, s.src_buf, s.src_off + chunk)
            dst = memory_cell(goal, r, s.dst_buf, s.dst_off + chunk)
            if s.op == "cpy" and src == dst:
                accesses_of_cell[src].append((event, False))
                continue
            if s.op in READS_SRC:
                accesses_of_cell[src].append((event, False))
            if s.op in WRITES_DST:
                accesses_of_cell[dst].append((event, True))
    return accesses_of_cell


def races(program: Program, goal: Goal) -> set[tuple[Event, Event, Cell]]:
    """Return pairs of accesses of a cell by two threadblocks, one a write, that can happen in either order."""
    runs: dict[Event, Run] = {}

    def comes_first(event: Event, later_event: Event) -> bool:
        """Return whether `event` can be done before `later_event`."""
        if later_event not in runs:
            runs[later_event] = execute(program, goal, held_event=later_event)
        return event in runs[later_event].done

    races_found = set()
    for cell, uses in accesses(program, goal).items():
        for x, (a, a_writes) in enumerate(uses):
            for b, b_writes in uses[x + 1 :]:
                conflict = a[:2] != b[:2] and (a_writes or b_writes)
                if conflict and comes_first(a, b) and comes_first(b, a):
                    races_found.add((min(a, b), max(a, b), cell))
    return races_found


def overlaps(program: Program, goal: Goal) -> set[Place]:
    """Return the steps that write chunks which they still have to read."""
    overlapping_steps = set()
    for r, t, position, s in program.steps():
        if s.op in READS_SRC & WRITES_DST and s.count > 1:
            src = memory_cell(goal, r, s.src_buf, s.src_off)
            dst = memory_cell(goal, r, s.dst_buf, s.dst_off)
            if src[:2] == dst[:2] and 0 < abs(src[2] - dst[2]) < s.count:
                overlapping_steps.add((r, t, position))
    return overlapping_steps


def unspoilt(program: Program) -> Program:
    """Return the program with `has_dep` set for exactly those steps that another step waits for."""
    gpus = []
    for gpu in program.gpus:
        awaited = {(s.dep_tb, s.dep_step) for tb in gpu.threadblocks for s in tb.steps if s.dep_tb >= 0}
        blocks = [
            replace(tb, steps=[replace(s, has_dep=(t, x) in awaited) for x, s in enumerate(tb.steps)])
            for t, tb in enumerate(gpu.threadblocks)
        ]
        gpus.append(replace(gpu, threadblocks=blocks))
    return replace(program, gpus=gpus)
