"""What a report shows of programs, right and broken, against the replay of the check."""

from __future__ import annotations

import json
import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emit.check.cells import cells_of
from emit.check.order import run
from emit.check.program import check
from emit.columns import columns_of
from emit.findings import Findings
from emit.goal import goal_for
from emit.program import READS_DST, READS_SRC, WRITES_DST, Gpu, Program
from synth.app.report.lineage import describe_values, trace_program
from synth.app.report.program import program_view
from tests.emit.random_programs import changed
from tests.emit.right_programs import Right, right_programs
from tests.emit.small_programs import ring_allgather
from topologies.errors import InputError

RIGHT = st.deferred(lambda: st.sampled_from(right_programs()))  # They are lowered when a test draws one.


def goal_of(right: Right) -> object:
    program = right.program
    inplace = program.inplace and not program.outofplace
    return right.goal or goal_for(program.collective, program.nranks, program.nchunks_per_loop, inplace, program.root)


@given(RIGHT)
@settings(max_examples=25)
def test_carried_values_make_the_result(right: Right) -> None:
    """Check that the values that `trace_program` names for the sends leave the required result in memory."""
    program, goal = right.program, goal_of(right)
    c = columns_of(program, Findings())
    order = run(c, None, split=False).order
    cells = cells_of(program, c, goal, False)  # type: ignore[arg-type]
    carried = trace_program(c, order, cells)
    base = cells.base[:, 0].tolist()
    start = {
        cell: ((int(rank), cell - base[rank]),)
        for rank, cell in zip(goal.initial[0].tolist(), cells.of(*goal.initial[:3]), strict=True)  # type: ignore[attr-defined]
    }
    memory = dict(start)
    flying: list[deque[int]] = [deque() for _ in c.connections]
    reads, writes, reads_dst = (c.is_op(ops).tolist() for ops in (READS_SRC, WRITES_DST, READS_DST))
    brought: dict[int, set[int]] = {}
    for step in order:
        sender = flying[int(c.receives[step])].popleft() if c.receives[step] >= 0 else None
        via = set() if sender is None else {sender}
        for i in range(int(c.count[step])):
            parts = [carried[sender][0][i]] if sender is not None else []
            for is_read, at in ((reads[step], cells.src), (reads_dst[step], cells.dst)):
                if is_read:
                    parts.append(memory[at[step] + i])
                    via |= brought.get(at[step] + i, set())
            value = tuple(sorted(x for part in parts for x in part))
            if c.sends[step] >= 0:
                assert carried[step][0][i] == value
            if writes[step]:
                memory[cells.dst[step] + i] = value
                brought[cells.dst[step] + i] = set(via)
        if c.sends[step] >= 0:
            flying[int(c.sends[step])].append(step)
            values, came = carried[step]
            assert set(came) <= via
            rank = c.place(step)[0]
            assert all(c.connections[int(c.sends[p])][1] == rank for p in came)
            # Values of other ranks must have come from a send.
            if any(r != rank for value in values for r, _ in value):
                assert came
    named = {
        (s, k): start[cell][0]
        for s, k, cell in zip(
            goal.initial[3].tolist(), goal.initial[4].tolist(), cells.of(*goal.initial[:3]), strict=True
        )
    }  # type: ignore[attr-defined]
    sets = goal.sets  # type: ignore[attr-defined]
    for cell, which_set in zip(cells.of(*goal.required[:3]), goal.required[3].tolist(), strict=True):  # type: ignore[attr-defined]
        low, high = int(sets.start[which_set]), int(sets.start[which_set + 1])
        required = [
            named[s, k] for s, k in zip(sets.source[low:high].tolist(), sets.chunk[low:high].tolist(), strict=True)
        ]
        assert memory[cell] == tuple(sorted(required))


@given(RIGHT, st.integers(0, 10**6))
@settings(max_examples=75)
def test_any_broken_program_can_be_shown(right: Right, seed: int) -> None:
    """Check deadlocks, sends without receives, and unwritten cells: the result is a view or one line."""
    program = changed(right, random.Random(seed))
    try:
        view = program_view(program, 10**6, right.goal)
    except InputError:  # No program can hold such numbers.
        return
    json.dumps(view, allow_nan=False)
    if view["network"] is not None:
        c = columns_of(program, Findings())
        replayed = run(c, None, split=False)
        assert view["sends"]["total"] == sum(replayed.sent)
        assert len(view["blocks"]["listed"]) == len(set(replayed.order))
        assert all(at < view["span"] for _, _, at, *_ in view["blocks"]["listed"])
    else:
        assert not check(program, right.goal, target=None, split=False).ok


def test_a_program_that_does_nothing() -> None:
    program = Program("x", "custom", "LL", 2, 1, False, True, [Gpu(1, 1, 0, []), Gpu(1, 1, 0, [])])
    view = program_view(program, 100)
    assert view["span"] == 0
    assert view["sends"]["total"] == 0
    json.dumps(view, allow_nan=False)


def test_instructions_are_listed_up_to_a_number() -> None:
    view = program_view(ring_allgather(6), 7)
    assert view["sends"]["shown"] == 7
    assert view["sends"]["total"] == 30
    assert len(view["blocks"]["listed"]) <= 7
    assert all(p < 7 for p in view["sends"]["from"])
    assert view["rows"]["heat"] is not None


@pytest.mark.parametrize(
    ("values", "description"),
    [
        ((((3, 5),),), "rank 3's chunk 5"),
        ((((3, 5),), ((3, 6),), ((3, 8),)), "rank 3's chunks 5,6; rank 3's chunk 8"),
        ((((0, 2), (1, 2), (2, 2)),), "sum over 3 ranks (0-2) of chunk 2"),
        ((((0, 2), (1, 2), (1, 2)),), "sum over 2 ranks (0,1, rank 1 more than once) of chunk 2"),
        ((((4, 1),), ((5, 1),)), "chunk 1 of each of ranks 4,5"),
        ((((0, 1), (2, 3)),), "sum of different chunks of ranks 0,2"),
        (((),), "contents not followed"),
        ((), "contents not followed"),
    ],
)
def test_descriptions_of_values(values: tuple[tuple[tuple[int, int], ...], ...], description: str) -> None:
    assert describe_values(values) == description
