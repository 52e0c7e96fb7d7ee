"""A naive executor that settles what can happen in any order, by holding one transmission back.

Every block is sequential and whether a step may go on only ever changes from no to yes. So a greedy run in which one
transmission is held back for ever does all that can be done before that transmission: what it has not done comes
after it in every order. Two accesses are unordered if each is done while the other is held. Nothing here is shared
with the check but the words of a program and of a goal.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

from emit.goal import Goal, goal_for
from emit.program import READS_SRC, RECEIVES, SENDS, WRITES_DST, Program, Step

Place = tuple[int, int, int]  # rank, tb, step
Event = tuple[int, int, int, int]  # rank, tb, step, chunk: one transmission; chunk 0 where nothing is moved
Cell = tuple[int, str, int]  # rank, buffer, index
Held = Counter[tuple[int, int]]
LOCAL = ("cpy", "re", "nop")
UNLIMITED = 1 << 60


@dataclass(slots=True)
class Run:
    """How one run ended: events in their order, memory by cell, reads of what nothing had written."""

    complete: bool
    done: dict[Event, int]
    stopped: dict[tuple[int, int], int]
    memory: dict[Cell, Held] = field(default_factory=dict)
    unwritten: set[tuple[Place, str, int]] = field(default_factory=set)


def goals_of(program: Program, goal: Goal | None) -> list[Goal]:
    """The goals of each kind of call that the program serves."""
    if goal is not None:
        return [goal]
    p = program
    ways = [way for way, serves in ((True, p.inplace), (False, p.outofplace)) if serves]
    found = [goal_for(p.collective, p.nranks, p.nchunks_per_loop, way, p.root) for way in ways]
    return [g for g in found if g is not None]


def memory_cell(goal: Goal, rank: int, buffer: str, index: int) -> Cell:
    """The memory that a cell is: o lies in i where the goal says so."""
    shift = goal.o_in_i[rank]
    return (rank, "i", index + shift) if buffer == "o" and shift is not None else (rank, buffer, index)


def execute(
    program: Program,
    goal: Goal,
    depth: int = UNLIMITED,
    held: Event | None = None,
    rng: random.Random | None = None,
    split: bool = True,
) -> Run:
    """Run until nothing can go on; with `rng` in a random order, with `held` without that transmission."""
    memory: dict[Cell, Held] = {}
    ranks, buffers, places, sources, chunks = (column.tolist() for column in goal.initial)
    for rank, buffer, index, source, chunk in zip(ranks, buffers, places, sources, chunks, strict=True):
        memory[memory_cell(goal, rank, "ios"[buffer], index)] = Counter([(source, chunk)])
    blocks = [(r, t) for r, gpu in enumerate(program.gpus) for t in range(len(gpu.threadblocks))]
    at = dict.fromkeys(blocks, (0, 0))
    fifo: dict[tuple[int, int, int], list[list[Held]]] = defaultdict(list)
    run = Run(False, {}, {}, memory)
    moved = True
    while moved:
        moved = False
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
                if waits or empty or full or (r, t, position, chunk) == held:
                    break
                whole = s.op in LOCAL or not split
                came = into.pop(0) if s.op in RECEIVES else []
                sent = [
                    _move(run, goal, (r, t, position), s, c, came[x] if came else None)
                    for x, c in enumerate(range(s.count) if whole else [chunk])
                ]
                if s.op in SENDS:
                    out.append(sent)
                run.done[r, t, position, chunk] = len(run.done)
                at[r, t] = (position + 1, 0) if whole or chunk + 1 == s.count else (position, chunk + 1)
                moved = True
                patience -= 1
    run.stopped = {b: at[b][0] for b in at if at[b][0] < len(program.gpus[b[0]].threadblocks[b[1]].steps)}
    run.complete = not run.stopped
    return run


def _move(run: Run, goal: Goal, place: Place, s: Step, chunk: int, came: Held | None) -> Held:
    value: Held = Counter() if came is None else came.copy()
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
    """(rank, buffer, index) of what the goal asks for, or a call out of place gave, and the run did not leave."""
    sets = goal.sets
    bounds, sources, chunks = sets.start.tolist(), sets.source.tolist(), sets.chunk.tolist()
    wrong = set()
    for rank, code, index, number in zip(*(column.tolist() for column in goal.required), strict=True):
        low, high = bounds[number], bounds[number + 1]
        wanted = Counter(zip(sources[low:high], chunks[low:high], strict=True))
        if run.memory.get(memory_cell(goal, rank, "ios"[code], index)) != wanted:
            wrong.add((rank, "ios"[code], index))
    if program.outofplace and not program.inplace:
        for rank, code, index, source, chunk in zip(*(c.tolist() for c in goal.initial), strict=True):
            if code == 0 and run.memory[rank, "i", index] != Counter([(source, chunk)]):
                wrong.add((rank, "i", index))
    return wrong


def accesses(program: Program, goal: Goal) -> dict[Cell, list[tuple[Event, bool]]]:
    """(event, whether it writes) of every memory cell; a copy onto itself is none."""
    found: dict[Cell, list[tuple[Event, bool]]] = defaultdict(list)
    for r, t, position, s in program.steps():
        for chunk in range(s.count):
            event = (r, t, position, 0 if s.op in LOCAL else chunk)
            src = memory_cell(goal, r, s.src_buf, s.src_off + chunk)
            dst = memory_cell(goal, r, s.dst_buf, s.dst_off + chunk)
            if s.op == "cpy" and src == dst:
                found[src].append((event, False))
                continue
            if s.op in READS_SRC:
                found[src].append((event, False))
            if s.op in WRITES_DST:
                found[dst].append((event, True))
    return found


def races(program: Program, goal: Goal) -> set[tuple[Event, Event, Cell]]:
    """Every two accesses of a cell by two threadblocks, one a write, that some two orders do in turn."""
    runs: dict[Event, Run] = {}

    def comes_first(event: Event, other: Event) -> bool:
        """Whether `event` can be done before `other`."""
        if other not in runs:
            runs[other] = execute(program, goal, held=other)
        return event in runs[other].done

    found = set()
    for cell, uses in accesses(program, goal).items():
        for x, (a, a_writes) in enumerate(uses):
            for b, b_writes in uses[x + 1 :]:
                apart = a[:2] != b[:2] and (a_writes or b_writes)
                if apart and comes_first(a, b) and comes_first(b, a):
                    found.add((min(a, b), max(a, b), cell))
    return found


def overlaps(program: Program, goal: Goal) -> set[Place]:
    """Steps that write chunks which they still have to read."""
    found = set()
    for r, t, position, s in program.steps():
        if s.op in READS_SRC & WRITES_DST and s.count > 1:
            src = memory_cell(goal, r, s.src_buf, s.src_off)
            dst = memory_cell(goal, r, s.dst_buf, s.dst_off)
            if src[:2] == dst[:2] and 0 < abs(src[2] - dst[2]) < s.count:
                found.add((r, t, position))
    return found


def unspoilt(program: Program) -> Program:
    """The same with every awaited step saying so, and no flag that nobody waits for."""
    gpus = []
    for gpu in program.gpus:
        awaited = {(s.dep_tb, s.dep_step) for tb in gpu.threadblocks for s in tb.steps if s.dep_tb >= 0}
        blocks = [
            replace(tb, steps=[replace(s, has_dep=(t, x) in awaited) for x, s in enumerate(tb.steps)])
            for t, tb in enumerate(gpu.threadblocks)
        ]
        gpus.append(replace(gpu, threadblocks=blocks))
    return replace(program, gpus=gpus)
