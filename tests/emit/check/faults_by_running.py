"""Faults that show when a program runs: wrong results, deadlocks, races, reads before writes."""

from __future__ import annotations

import random
from dataclasses import replace

from emit.goal import Goal
from emit.program import FIFO_DEPTH, READS_DST, READS_SRC, RECEIVES, SENDS, WRITES_DST, Program, Step
from tests.emit.check.equivalent_programs import awaited, reordered
from tests.emit.check.planted_fault import Planted, Planter, Where, ends_of, sizes_of, steps_of
from tests.emit.right_programs import Right
from tests.emit.small_programs import with_gpu, with_step, with_steps
from tests.oracles.delayed_runs import execute, goals_of, memory_cell, overlaps, races, wrong_cells


def _seen(kind: str, right: Right, program: Program) -> Planted | None:
    """Return the fault of `kind` that running the program shows in each of its forms, or None."""
    if not paired(program):
        return None
    goals = goals_of(program, right.goal)
    places: set[Where] = set()
    cells: set[tuple[int, str, int]] = set()
    for goal in goals:
        if overlaps(program, goal):
            return None
        run = execute(program, goal, FIFO_DEPTH[program.protocol])
        if not run.complete:
            return None
        if kind == "race":
            pairs = races(program, goal)
            for a, b, cell in pairs:
                for r, t, x, _ in (a, b):
                    places.add((r, t, x))
                cells |= {
                    (cell[0], buffer, index)
                    for buffer, size in sizes_of(program, cell[0]).items()
                    for index in range(size)
                    if memory_cell(goal, cell[0], buffer, index) == cell
                }
            continue
        if races(program, goal):
            return None
        if kind == "read before write":
            places |= {place for place, _, _ in run.unwritten}
            cells |= {(place[0], buffer, index) for place, buffer, index in run.unwritten}
        elif run.unwritten:
            return None
        else:
            wrong = wrong_cells(program, goal, run)
            places |= {_last_writer(program, goal, cell) for cell in wrong}
            cells |= wrong
    return Planted(kind, program, right.goal, frozenset(places), frozenset(cells)) if cells else None


def paired(program: Program) -> bool:
    """Return whether both ends of every transmission move the same count."""
    blocks = [gpu.threadblocks for gpu in program.gpus]
    return all(
        [blocks[r][t].steps[x].count for r, t, x in out] == [blocks[r][t].steps[x].count for r, t, x in into]
        for out, into in ends_of(program).values()
    )


def _last_writer(program: Program, goal: Goal, cell: tuple[int, str, int]) -> Where:
    """Return the last step that wrote a wrong cell, or only its rank where no step did."""
    wrong_cell = memory_cell(goal, *cell)
    position_of_event = execute(program, goal).done
    last: tuple[int, Where] = (-1, (cell[0], None, None))
    for event, order in position_of_event.items():
        s = program.gpus[event[0]].threadblocks[event[1]].steps[event[2]]
        if event[0] != cell[0] or s.op not in WRITES_DST:
            continue
        chunks = range(s.count) if s.op in ("cpy", "re") else [event[3]]
        for c in chunks:
            dst = memory_cell(goal, event[0], s.dst_buf, s.dst_off + c)
            self_copy = s.op == "cpy" and memory_cell(goal, event[0], s.src_buf, s.src_off + c) == dst
            if dst == wrong_cell and not self_copy:
                last = max(last, (order, event[:3]))
    return last[1]


def _first(kind: str, right: Right, programs: list[Program]) -> Planted | None:
    return next((p for p in (_seen(kind, right, program) for program in programs) if p is not None), None)


# --- wrong result


def another_source(right: Right, rng: random.Random) -> Planted | None:
    changed = []
    for place, s in steps_of(right.program, rng, READS_SRC):
        buffers = [b for b, size in sizes_of(right.program, place[0]).items() if size >= s.count]
        buffer = rng.choice(buffers)
        offset = rng.randrange(sizes_of(right.program, place[0])[buffer] - s.count + 1)
        changed.append(with_step(right.program, *place, src_buf=buffer, src_off=offset))
    return _first("wrong result", right, changed)


def another_operation(right: Right, rng: random.Random) -> Planted | None:
    """Replace a sum by a copy, or a copy by a sum."""
    replacement = {"re": "cpy", "cpy": "re", "rrc": "r", "rrcs": "rcs", "rrs": "rcs", "rcs": "rrcs", "r": "rrc"}
    changed = []
    for place, s in steps_of(right.program, rng, frozenset(replacement)):
        if s.op == "rrs" and s.dst_off < 0:
            continue
        src = {} if s.src_off >= 0 else {"src_buf": s.dst_buf, "src_off": s.dst_off}
        changed.append(with_step(right.program, *place, op=replacement[s.op], **src))
    return _first("wrong result", right, changed)


def added_twice(right: Right, rng: random.Random) -> Planted | None:
    changed = []
    for (r, t, x), s in steps_of(right.program, rng, WRITES_DST):
        order = list(range(len(right.program.gpus[r].threadblocks[t].steps)))
        twice = reordered(right.program, r, t, [*order[: x + 1], *order[x:]])
        repeated_sum = Step("re", s.dst_buf, s.dst_off, s.dst_buf, s.dst_off, s.count)
        if s.op == "re":
            repeated_sum = Step("re", s.src_buf, s.src_off, s.dst_buf, s.dst_off, s.count)
        changed.append(with_step(twice, r, t, x, has_dep=False))
        steps = list(changed[-1].gpus[r].threadblocks[t].steps)
        steps[x + 1] = replace(repeated_sum, has_dep=s.has_dep)
        changed[-1] = with_steps(changed[-1], r, t, steps)
    return _first("wrong result", right, changed)


def left_out(right: Right, rng: random.Random) -> Planted | None:
    """Remove a local step."""
    changed = []
    for (r, t, x), _ in steps_of(right.program, rng, frozenset({"re", "cpy"})):
        count = len(right.program.gpus[r].threadblocks[t].steps)
        if x in awaited(right.program, r, t) or count == 1:
            continue
        changed.append(reordered(right.program, r, t, [y for y in range(count) if y != x]))
    return _first("wrong result", right, changed)


# --- deadlock


def _stuck(right: Right, program: Program, depth: int | None = None) -> Planted | None:
    slots = FIFO_DEPTH[program.protocol] if depth is None else depth
    if not paired(program):
        return None
    stopped: set[Where] = set()
    for goal in goals_of(program, right.goal):
        run = execute(program, goal, slots)
        if run.complete or (depth is None and not execute(right.program, goal, slots).complete):
            return None
        stopped |= {(r, t, x) for (r, t), x in run.stopped.items()}
    return Planted("deadlock", program, right.goal, frozenset(stopped), depth=depth, circle=True)


def another_order(right: Right, rng: random.Random) -> Planted | None:
    """Place a step where it comes too late for the steps that wait for it."""
    for (r, t, x), _ in steps_of(right.program, rng, SENDS | RECEIVES):
        order = list(range(len(right.program.gpus[r].threadblocks[t].steps)))
        order.remove(x)
        order.insert(rng.randrange(len(order) + 1), x)
        fault = _stuck(right, reordered(right.program, r, t, order))
        if fault is not None:
            return fault
    return None


def wait_in_a_circle(right: Right, rng: random.Random) -> Planted | None:
    """Make a step wait for a step that comes after it."""
    for (r, t, x), s in steps_of(right.program, rng, SENDS | RECEIVES | {"cpy", "re"}):
        if s.dep_tb >= 0:
            continue
        blocks = right.program.gpus[r].threadblocks
        tb = rng.randrange(len(blocks))
        if not blocks[tb].steps:
            continue
        at = rng.randrange(len(blocks[tb].steps))
        if blocks[tb].steps[at].op == "nop":  # A nop never signals that it is done.
            continue
        waits = with_step(right.program, r, t, x, dep_tb=tb, dep_step=at)
        fault = _stuck(right, with_step(waits, r, tb, at, has_dep=True))
        if fault is not None:
            return fault
    return None


def waits_for_itself(right: Right, rng: random.Random) -> Planted | None:
    for place, s in steps_of(right.program, rng, SENDS | RECEIVES | {"cpy", "re"}):
        if s.dep_tb < 0:
            changed = with_step(right.program, *place, dep_tb=place[1], dep_step=place[2], has_dep=True)
            return _stuck(right, changed)
    return None


def too_few_slots(right: Right, rng: random.Random) -> Planted | None:  # noqa: ARG001 - nothing to choose
    return _stuck(right, right.program, 1)


# --- race


def dropped_wait(right: Right, rng: random.Random) -> Planted | None:
    changed = []
    for (r, t, x), s in steps_of(right.program, rng, frozenset({*SENDS, *RECEIVES, "cpy", "re", "nop"})):
        steps = right.program.gpus[r].threadblocks[t].steps
        if s.dep_tb < 0 or (x and steps[x - 1].op == "nop" and s.op != "nop"):
            continue
        if s.op == "nop":
            changed.append(reordered(right.program, r, t, [y for y in range(len(steps)) if y != x]))
        else:
            changed.append(with_step(right.program, r, t, x, dep_tb=-1, dep_step=-1))
    return _first("race", right, changed)


def wait_for_an_earlier_step(right: Right, rng: random.Random) -> Planted | None:
    changed = []
    for (r, t, x), s in steps_of(right.program, rng, frozenset({*SENDS, *RECEIVES, "cpy", "re", "nop"})):
        if s.dep_step > 0:
            at = rng.randrange(s.dep_step)
            if right.program.gpus[r].threadblocks[s.dep_tb].steps[at].op == "nop":
                continue
            early = with_step(right.program, r, t, x, dep_step=at)
            changed.append(with_step(early, r, s.dep_tb, at, has_dep=True))
    return _first("race", right, changed)


def one_cell_for_two(right: Right, rng: random.Random) -> Planted | None:
    """Make a step write a cell that another threadblock reads or writes."""
    changed = []
    for place, s in steps_of(right.program, rng, WRITES_DST):
        buffer = rng.choice([b for b, size in sizes_of(right.program, place[0]).items() if size >= s.count])
        offset = rng.randrange(sizes_of(right.program, place[0])[buffer] - s.count + 1)
        changed.append(with_step(right.program, *place, dst_buf=buffer, dst_off=offset))
    return _first("race", right, changed)


# --- read before write


def fresh_source(right: Right, rng: random.Random) -> Planted | None:
    """Make a step read scratch that no step writes."""
    for (r, t, x), s in steps_of(right.program, rng, READS_SRC):
        gpu = right.program.gpus[r]
        larger_program = with_gpu(right.program, r, replace(gpu, s_chunks=gpu.s_chunks + s.count))
        changed = with_step(larger_program, r, t, x, src_buf="s", src_off=gpu.s_chunks)
        return _seen("read before write", right, changed)
    return None


def written_elsewhere(right: Right, rng: random.Random) -> Planted | None:
    """Make a step write to scratch that no step reads."""
    changed = []
    for (r, t, x), s in steps_of(right.program, rng, WRITES_DST - READS_DST):
        gpu = right.program.gpus[r]
        larger_program = with_gpu(right.program, r, replace(gpu, s_chunks=gpu.s_chunks + s.count))
        changed.append(with_step(larger_program, r, t, x, dst_buf="s", dst_off=gpu.s_chunks))
    return _first("read before write", right, changed)


SEEN: dict[str, dict[str, Planter]] = {
    "wrong result": {
        "another source": another_source,
        "another operation": another_operation,
        "added twice": added_twice,
        "a local step left out": left_out,
    },
    "deadlock": {
        "another order": another_order,
        "a wait in a circle": wait_in_a_circle,
        "a wait for itself": waits_for_itself,
        "one FIFO slot": too_few_slots,
    },
    "race": {
        "a dropped wait": dropped_wait,
        "a wait for an earlier step": wait_for_an_earlier_step,
        "one cell for two": one_cell_for_two,
    },
    "read before write": {"a source that nobody writes": fresh_source, "written elsewhere": written_elsewhere},
}
