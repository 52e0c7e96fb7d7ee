"""Tests of parallel instances: r instances give the result of one, each on its share, and cost at most r times one."""

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
from emit.targets import target_named
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
    """Return the number of steps, of threadblocks of a rank, and of channels."""
    return program.nsteps, max(len(gpu.threadblocks) for gpu in program.gpus), program.nchannels


@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize(("name", "settings"), EXAMPLES, ids=str)
def test_instances_cost_at_most_their_number_times_one(name: str, settings: dict[str, Any], number: int) -> None:
    script = example(name, settings)
    single_program = compile_instructions(script.instructions()).program
    script.instances = number
    program = compile_instructions(script.instructions()).program
    report = check(program, target="executor-nccl")
    assert report.ok, report.findings
    assert report.judged
    assert program.nchunks_per_loop == number * single_program.nchunks_per_loop
    for program_size, single_size in zip(size(program), size(single_program), strict=True):
        assert program_size <= number * single_size
    # Each instance has channels of its own.
    assert {tb.channel % number for gpu in program.gpus for tb in gpu.threadblocks} == set(range(number))


@pytest.mark.parametrize("interleaved", [True, False])
def test_blocked_and_interleaved(interleaved: bool) -> None:
    """Check that two instances divide two chunks blocked (one chunk each) or interleaved (half of each chunk)."""
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


def test_instances_beyond_a_targets_limits_are_refused() -> None:
    script = example("ring", {"ranks": 4})
    script.instances = 40
    with pytest.raises(InputError, match="40 instances, each on channels of its own; executor-nccl has 32 channels"):
        compile_instructions(script.instructions())


def test_instances_whose_share_is_exceeded() -> None:
    script = Script("x", "broadcast", 2, instances=20)
    for r in range(2):
        script.chunk(0, "i", 0).copy(r, "o", 0, channel=r)
    with pytest.raises(InputError, match="channel 1; executor-nccl, each of 20 instances, has 1"):
        compile_instructions(script.instructions())


def test_the_shortest_program_is_chosen_although_ranks_alternate() -> None:
    program = compile_instructions(example("hierarchical", {"nodes": 2, "gpus": 8}).instructions()).program
    assert program.nsteps < 300


def test_parallelize_divides_the_transfers_inside() -> None:
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
        relayed = script.chunk(0, "i", c).copy(1, "s", c)
        relayed.copy(2, "o", 1 - c)
        if c:
            relayed.copy(1, "o", 0)
    ir = script.instructions()
    program = compile_instructions(ir, target_named("msccl").limits).program
    report = check(program, ir.goal, target="msccl")
    assert report.ok, report.findings
    assert report.judged
    assert program.nchunks_per_loop == 2 * number
    # The refined goal is as strict, so a chunk at another place is reported.
    script.chunk(0, "i", 0).copy(1, "o", 0)
    ir = script.instructions()
    assert not check(compile_instructions(ir, target_named("msccl").limits).program, ir.goal).ok


def build(seed: int, parallel: bool) -> Script:
    """Return a script that moves chunks at random between three ranks, with parallel parts if `parallel` is set."""
    rng = random.Random(seed)
    script = Script("random", "allreduce", 3, chunks=3, inplace=False)
    for r in range(3):
        script.chunk(r, "i", 0, 3).copy(r, "o", 0)
    for _ in range(rng.randint(2, 10)):
        count = rng.randint(1, 2)
        source = script.chunk(rng.randrange(3), "o", rng.randint(0, 3 - count), count)
        target, index, parts = rng.randrange(3), rng.randint(0, 3 - count), rng.choice([1, 1, 2, 3])
        through, adds = rng.random() < 0.5, rng.random() < 0.5
        if target == source.rank and abs(index - source.index) < count:
            continue
        with script.parallelize(parts if parallel else 1):
            if through:
                source.copy(target, "s", rng.randint(0, 4)).copy(target, "o", index)
            elif adds:
                script.chunk(target, "o", index, count).reduce(source)
            else:
                source.copy(target, "o", index)
    return script


def outcome(script: Script, seed: int) -> list[dict[Cell, Held]]:
    """Return the ranks' outputs after a random interleaving of the compiled script."""
    ir = script.instructions()
    program = compile_instructions(ir).program
    assert {f.kind for f in check(program, ir.goal).findings} <= {"wrong result"}
    memory = execute(program, FIFO_DEPTH[program.protocol], random.Random(seed))
    assert memory is not None
    return [{cell: content for cell, content in rank_memory.items() if cell[0] == "o"} for rank_memory in memory]


def spread(memory: list[dict[Cell, Held]], places: list[list[int]]) -> list[dict[Cell, Held]]:
    """Return the memory after replacing each chunk c by the chunks places[c]."""
    return [
        {
            ("o", places[c][k]): Counter({(rank, places[chunk][k]): n for (rank, chunk), n in content.items()})
            for (_, c), content in rank_memory.items()
            for k in range(len(places[0]))
        }
        for rank_memory in memory
    ]


@pytest.mark.parametrize("seed", range(12))
def test_instances_of_random_programs_give_the_same_result(seed: int) -> None:
    """Check that instances and parallel parts of random programs give the result of a single instance."""
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


def test_a_missing_wait_between_instances_is_reported() -> None:
    """Check that a race is reported if a wait between interleaved instances is missing."""
    script = example("allgather", {"way": "doubling", "ranks": 4, "protocol": "Simple"})
    script.instances = 2
    program = compile_instructions(script.instructions()).program
    assert check(program).ok
    blocks = program.gpus[0].threadblocks
    tb, position, step = next(
        (tb, position, step)
        for tb, block in enumerate(blocks)
        for position, step in enumerate(block.steps)
        if step.dep_tb >= 0 and blocks[step.dep_tb].channel != block.channel
    )
    steps = list(blocks[tb].steps)
    steps[position] = replace(step, dep_tb=-1, dep_step=-1)
    changed = [replace(block, steps=steps) if b == tb else block for b, block in enumerate(blocks)]
    wrong = replace(program, gpus=[replace(program.gpus[0], threadblocks=changed), *program.gpus[1:]])
    assert "race" in {finding.kind for finding in check(wrong).findings}
