"""Programs side by side: r instances do what one does, each with its share, and cost no more than r times one."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from emit.check.program import check
from emit.compiler.compile import compile_instructions
from emit.goal import Goal
from emit.language import Script
from emit.program import FIFO_DEPTH, Program
from tests.emit.compiler.test_language import example
from tests.oracles.random_runs import Cell, Held, execute
from topologies.errors import InputError

EXAMPLES: list[tuple[str, dict[str, Any]]] = [
    ("ring", {"ranks": 4}),
    ("allpairs", {"ranks": 4, "passes": 1}),
    ("allpairs", {"ranks": 4}),
    ("allgather", {"way": "doubling", "protocol": "Simple"}),
    ("allgather", {"way": "pairs", "ranks": 4}),
    ("halving_doubling", {}),
    ("hierarchical", {"nodes": 2, "gpus": 4}),
    ("alltoall", {"nodes": 2, "gpus": 4, "steps": 2}),
    ("alltoall", {"nodes": 3, "gpus": 2, "steps": 3}),
]


def size(program: Program) -> tuple[int, int, int]:
    """Steps, threadblocks of a rank, channels."""
    return program.nsteps, max(len(gpu.threadblocks) for gpu in program.gpus), program.nchannels


@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize(("name", "asked"), EXAMPLES, ids=str)
def test_instances_cost_what_one_costs_times_their_number(name: str, asked: dict[str, Any], number: int) -> None:
    script = example(name, asked)
    one = compile_instructions(script.instructions()).program
    script.instances = number
    program = compile_instructions(script.instructions()).program
    report = check(program, target="executor-nccl")
    assert report.ok, report.findings
    assert report.judged
    assert program.nchunks_per_loop == number * one.nchunks_per_loop
    for many, single in zip(size(program), size(one), strict=True):
        assert many <= number * single
    # each message of one instance goes on channels of its own
    assert {tb.channel % number for gpu in program.gpus for tb in gpu.threadblocks} == set(range(number))


@pytest.mark.parametrize("interleaved", [True, False])
def test_blocked_and_interleaved(interleaved: bool) -> None:
    """Two chunks, two instances: each has both halves of its own chunk, or the same half of both."""
    script = Script("x", "allreduce", 2, chunks=2, instances=2, interleaved=interleaved)
    for c in range(2):
        script.chunk(1, "i", c).reduce(script.chunk(0, "i", c)).copy(0, "i", c)
    program = compile_instructions(script.instructions(), without=("aggregate",)).program
    assert check(program).ok
    places = {
        tb.channel: {s.src_off for s in tb.steps if s.op == "s"} for tb in program.gpus[0].threadblocks if tb.send == 1
    }
    assert places == ({0: {0, 2}, 1: {1, 3}} if interleaved else {0: {0, 1}, 1: {2, 3}})


def test_a_span_over_several_blocks_cannot_be_blocked() -> None:
    script = example("allgather", {"way": "doubling"})
    script.instances, script.interleaved = 2, False
    with pytest.raises(InputError, match="must be interleaved"):
        compile_instructions(script.instructions())


def test_instances_that_a_target_cannot_hold() -> None:
    script = example("ring", {"ranks": 4})
    script.instances = 40
    with pytest.raises(InputError, match="40 instances, each on channels of its own; executor-nccl has 32 channels"):
        compile_instructions(script.instructions())


def test_instances_of_which_each_takes_more_than_its_share() -> None:
    script = Script("x", "broadcast", 2, instances=20)
    for r in range(2):
        script.chunk(0, "i", 0).copy(r, "o", 0, channel=r)
    with pytest.raises(InputError, match="channel 1; executor-nccl, each of 20 instances, has 1"):
        compile_instructions(script.instructions())


def test_the_shortest_program_is_taken_though_ranks_take_turns() -> None:
    program = compile_instructions(example("hierarchical", {"nodes": 2, "gpus": 8}).instructions()).program
    assert program.nsteps < 300


def test_parallelize_cuts_what_is_inside() -> None:
    script = Script("x", "broadcast", 3)
    near = script.chunk(0, "i", 0).copy(0, "o", 0).copy(1, "o", 0)
    with script.parallelize(4):
        near.copy(2, "o", 0)
    program = compile_instructions(script.instructions()).program
    assert check(program).ok
    assert program.nchunks_per_loop == 4
    sent = [(s.src_off, s.count, tb.channel) for tb in program.gpus[1].threadblocks for s in tb.steps if s.op == "s"]
    assert sorted(sent) == [(k, 1, k) for k in range(4)]
    assert [s.count for tb in program.gpus[0].threadblocks for s in tb.steps if s.op == "s"] == [4]


def test_parallelize_takes_a_number() -> None:
    script = Script("x", "broadcast", 2)
    with pytest.raises(InputError, match=r"line [0-9]+: parallelize\(0\); it must be 1 or more"), script.parallelize(0):
        pass


@pytest.mark.parametrize("number", [2, 3])
def test_instances_of_a_custom_goal(number: int) -> None:
    goal = Goal.from_arrays(
        3, ([0, 0], ["i", "i"], [0, 1], [0, 0], [5, 7]), ([2, 2, 1], ["o"] * 3, [0, 1, 0], [0, 0, 0], [7, 5, 7])
    )
    script = Script("x", "custom", 3, chunks=2, goal=goal, instances=number)
    for c in range(2):
        here = script.chunk(0, "i", c).copy(1, "s", c)
        here.copy(2, "o", 1 - c)
        if c:
            here.copy(1, "o", 0)
    ir = script.instructions()
    program = compile_instructions(ir, "msccl").program
    report = check(program, ir.goal, target="msccl")
    assert report.ok, report.findings
    assert report.judged
    assert program.nchunks_per_loop == 2 * number
    # the refined goal is as strict: what is put in another place is found
    script.chunk(0, "i", 0).copy(1, "o", 0)
    ir = script.instructions()
    assert not check(compile_instructions(ir, "msccl").program, ir.goal).ok


def build(seed: int, parallel: bool) -> Script:
    """Chunks moved at random between three ranks, some of them in parallel parts where that is asked for."""
    rng = random.Random(seed)
    script = Script("random", "allreduce", 3, chunks=3, inplace=False)
    for r in range(3):
        script.chunk(r, "i", 0, 3).copy(r, "o", 0)
    for _ in range(rng.randint(2, 10)):
        count = rng.randint(1, 2)
        at = script.chunk(rng.randrange(3), "o", rng.randint(0, 3 - count), count)
        to, index, parts = rng.randrange(3), rng.randint(0, 3 - count), rng.choice([1, 1, 2, 3])
        through, adds = rng.random() < 0.5, rng.random() < 0.5
        if to == at.rank and abs(index - at.index) < count:
            continue
        with script.parallelize(parts if parallel else 1):
            if through:
                at.copy(to, "s", rng.randint(0, 4)).copy(to, "o", index)
            elif adds:
                script.chunk(to, "o", index, count).reduce(at)
            else:
                at.copy(to, "o", index)
    return script


def outcome(script: Script, seed: int) -> list[dict[Cell, Held]]:
    ir = script.instructions()
    program = compile_instructions(ir).program
    assert {f.kind for f in check(program, ir.goal).findings} <= {"wrong result"}
    memory = execute(program, FIFO_DEPTH[program.protocol], random.Random(seed))
    assert memory is not None
    return [{cell: held for cell, held in mine.items() if cell[0] == "o"} for mine in memory]


def spread(memory: list[dict[Cell, Held]], places: list[list[int]]) -> list[dict[Cell, Held]]:
    """The same where chunk c is the chunks places[c]."""
    return [
        {
            ("o", places[c][k]): Counter({(rank, places[chunk][k]): n for (rank, chunk), n in held.items()})
            for (_, c), held in mine.items()
            for k in range(len(places[0]))
        }
        for mine in memory
    ]


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_do_the_same(seed: int) -> None:
    """One instance, several in both orders, and parts in parallel: no race, no deadlock, and chunk for chunk as one."""
    plain = outcome(build(seed, False), seed)
    for number, interleaved in ((2, True), (3, True), (3, False), (2, None)):
        script = build(seed, False)
        script.instances, script.interleaved = number, interleaved
        blocked = [[k * 3 + c for k in range(number)] for c in range(3)]
        cut = [[c * number + k for k in range(number)] for c in range(3)]
        assert outcome(script, seed) == spread(plain, cut if interleaved else blocked)
    script = build(seed, True)
    finer = script.instructions().header.nchunks_per_loop // 3
    assert outcome(script, seed) == spread(plain, [[c * finer + k for k in range(finer)] for c in range(3)])


def test_a_lost_wait_between_instances_is_found() -> None:
    """Interleaved spans of unlike lengths wait across instances; without one of these waits the check sees the race."""
    script = example("allgather", {"way": "doubling", "ranks": 4, "protocol": "Simple"})
    script.instances = 2
    program = compile_instructions(script.instructions()).program
    assert check(program).ok
    blocks = program.gpus[0].threadblocks
    tb, at, step = next(
        (tb, at, step)
        for tb, block in enumerate(blocks)
        for at, step in enumerate(block.steps)
        if step.dep_tb >= 0 and blocks[step.dep_tb].channel != block.channel
    )
    steps = list(blocks[tb].steps)
    steps[at] = replace(step, dep_tb=-1, dep_step=-1)
    changed = [replace(block, steps=steps) if b == tb else block for b, block in enumerate(blocks)]
    wrong = replace(program, gpus=[replace(program.gpus[0], threadblocks=changed), *program.gpus[1:]])
    assert "race" in {finding.kind for finding in check(wrong).findings}
