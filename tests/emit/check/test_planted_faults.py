"""Faults of every kind, planted in right programs of many origins, are reported at their place and nothing else is."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from emit.check.program import check
from emit.goal import Goal
from emit.msccl.format import verify
from emit.program import FIFO_DEPTH, RECEIVES, SENDS, Gpu, Program, Step, ThreadBlock
from tests.emit.check.against_runs import differences
from tests.emit.check.equivalent_programs import finer
from tests.emit.check.fault_kinds import PLANTERS, planted
from tests.emit.check.faults_in_text import READERS, WAYS, changed_texts
from tests.emit.check.planted_fault import Planted
from tests.emit.random_programs import sample
from tests.emit.right_programs import Right, right_programs
from tests.emit.small_programs import alltoall, chain_broadcast, with_step, with_steps
from tests.oracles.delayed_runs import execute, goals_of

EACH = 5  # Programs of each planter; no kind has fewer than 20 programs.


def test_right_programs_cover_all_kinds() -> None:
    assert {right.origin for right in right_programs()} == {"lowered", "compiled", "hand-built", "read from a file"}
    programs = [right.program for right in right_programs()]
    assert {p.protocol for p in programs} == set(FIFO_DEPTH)
    assert len({p.collective for p in programs}) >= 9
    assert {(p.inplace, p.outofplace) for p in programs} == {(True, False), (False, True), (True, True)}
    assert sum(right.goal is not None for right in right_programs()) >= 4


# One test for all, since the programs are lowered by a test, not by every process that collects tests.
def test_right_programs_have_no_findings() -> None:
    for right in right_programs():
        _has_no_findings(right)


def _has_no_findings(right: Right) -> None:
    depth = FIFO_DEPTH[right.program.protocol]
    assert all(execute(right.program, goal, depth).complete for goal in goals_of(right.program, right.goal)), right.name
    report = check(right.program, right.goal, target=None)
    assert report.findings == (), right.name
    assert report.judged, right.name
    finest = finer(right.program, 2)
    if right.goal is None and all(execute(finest, goal, depth).complete for goal in goals_of(finest, None)):
        assert check(finest, target=None).findings == (), right.name


def _is_circle(fault: Planted, cycle: tuple[tuple[int, int, int], ...]) -> bool:
    """Return whether each step of a cycle waits for the threadblock of the next step."""
    blocks = [gpu.threadblocks for gpu in fault.program.gpus]
    for (r, t, x), (r2, t2, x2) in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
        step, tb, next_tb = blocks[r][t].steps[x], blocks[r][t], blocks[r2][t2]
        waits = r == r2 and step.dep_tb == t2 and x2 <= step.dep_step
        empty = step.op in RECEIVES and (tb.recv, r, tb.channel) == (r2, next_tb.send, next_tb.channel)
        full = step.op in SENDS and (r, tb.send, tb.channel) == (next_tb.recv, r2, next_tb.channel)
        if not (waits or empty or full):
            return False
    return True


@pytest.mark.parametrize("kind", PLANTERS)
def test_planted_faults_are_reported_at_their_place(kind: str) -> None:
    programs = set()
    count = max(EACH, -(-20 // len(PLANTERS[kind])))
    for variant in PLANTERS[kind]:
        for right, fault in planted(kind, variant, right_programs(), count):
            programs.add(repr(fault.program))
            report = check(fault.program, fault.goal, fault.depth, target=fault.target)
            named = [f for f in report.findings if fault.named_by(f)]
            assert named, (variant, right.name, report.findings[:3])
            for finding in report.findings:
                assert "\n" not in finding.message
                if fault.circle and finding.kind == "deadlock":
                    assert _is_circle(fault, finding.cycle)
    assert len(programs) >= 20


@pytest.mark.parametrize("seed", range(4))
def test_the_check_agrees_with_runs(seed: int) -> None:
    """Check that the check and runs agree on random programs at several FIFO depths."""
    rng = random.Random(seed)
    small = [right for right in right_programs() if right.program.nsteps <= 70]
    ran = 0
    for right, program in sample(small, 100, seed):
        depth, split = rng.choice([1, 2, 3, 8]), rng.random() < 0.7
        messages = differences(program, right.goal, depth, split)
        ran += messages is not None
        assert not messages, (right.name, depth, split, messages)
    assert ran > 30


def test_a_copy_that_overlaps_itself_only_in_place_is_a_race_in_place() -> None:
    """Check that a copy between i and o, which are one memory in place, is reported as a race in place."""
    program = replace(chain_broadcast(2, 0), inplace=True)
    steps = [Step("cpy", "i", 0, "o", 0, 3), Step("cpy", "i", 0, "o", 1, 2)]
    report = check(with_steps(program, 0, 1, steps))
    races = [f for f in report.findings if f.kind == "race" and "overlaps itself" in f.message]
    assert [(f.rank, f.tb, f.step, f.cell) for f in races] == [(0, 1, 1, ("o", 1))]
    assert all("in place: " in f.message and "out of" not in f.message for f in races)


def test_a_read_of_uninitialised_memory_is_reported_once() -> None:
    """Check that the send of uninitialised memory is reported, but not its receivers."""
    program = with_step(alltoall(3), 0, 1, 0, src_buf="o", src_off=1)
    program = with_steps(program, 0, 0, [Step("cpy", "i", 0, "o", 0, 1)])
    early = [f for f in check(program).findings if f.kind == "read before write"]
    assert len(early) <= 1
    gpus = list(program.gpus)
    gpus[0] = replace(gpus[0], s_chunks=1)
    program = with_step(replace(program, gpus=gpus), 0, 1, 0, src_buf="s", src_off=0)
    report = check(program)
    places = [(f.rank, f.tb, f.step, f.cell) for f in report.findings if f.kind == "read before write"]
    assert places == [(0, 1, 0, ("s", 0))]
    assert any("uninitialised memory" in f.message for f in report.findings)


def test_a_given_goal_protects_the_input_of_an_out_of_place_call() -> None:
    """Check that a program with a goal of its own must leave the input of a call out of place unchanged."""
    blocks = [
        ThreadBlock(1, -1, 0, [Step("s", "i", 0, "o", 0, 1, has_dep=True)]),
        ThreadBlock(-1, -1, 0, [Step("cpy", "i", 1, "i", 0, 1, 0, 0)]),
    ]
    gpus = [Gpu(2, 0, 0, blocks), Gpu(0, 1, 0, [ThreadBlock(-1, 0, 0, [Step("r", "o", 0, "o", 0, 1)])])]
    program = Program("given", "custom", "LL", 2, 2, False, True, gpus)
    goal = Goal.from_arrays(
        2, ([0, 0], ["i", "i"], [0, 1], [0, 0], [0, 1]), ([1], ["o"], [0], [0], [0])
    )  # fmt: skip
    (finding,) = check(program, goal).findings
    assert (finding.kind, finding.rank, finding.tb, finding.step) == ("wrong result", 0, 1, 0)
    assert finding.cell == ("i", 0)
    assert check(replace(program, inplace=True, outofplace=False), goal).ok


@pytest.mark.parametrize("text_fault", WAYS)
def test_text_faults_are_reported_for_readers_that_refuse_them(text_fault: str) -> None:
    cases = changed_texts(text_fault, right_programs(), 2)
    assert cases
    for right, text, faulty, refusing in cases:
        for reader in READERS:
            before, after = verify(text, right.goal, None, reader), verify(faulty, right.goal, None, reader)
            sees = after.exit_code > 0 if reader in refusing else after.exit_code <= before.exit_code
            assert sees, (text_fault, reader, after.lines)
