"""Compiled anew a program is as right as before, never longer and never slower."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emit.check.program import check
from emit.compiler.compile import compile_instructions, optimize
from emit.compiler.ir import instructions_of
from emit.compiler.lower import timer_for
from emit.compiler.passes.liveness import prune
from emit.compiler.passes.registry import PASSES
from emit.language import Script
from emit.program import FIFO_DEPTH, Gpu, Program, Step, ThreadBlock
from tests.emit.compiler.test_language import CASES, example, scripts
from tests.emit.small_programs import allpairs_allreduce, ring_allgather, ring_allreduce
from tests.oracles.random_runs import execute
from topologies.errors import InputError
from topologies.load import load

OWN = [ring_allgather(4), ring_allreduce(5, 2), allpairs_allreduce(4), allpairs_allreduce(6, 2)]


def _size(program: Program) -> tuple[int, int, int]:
    return program.nsteps, sum(len(gpu.threadblocks) for gpu in program.gpus), program.nchannels


@pytest.mark.parametrize("program", OWN, ids=lambda p: f"{p.name}-{p.nranks}")
def test_never_longer_never_slower_still_right(program: Program) -> None:
    timer = timer_for(load(f"full:{program.nranks}"), tuple(range(program.nranks)), 0, 0)
    made = optimize(program, timer=timer).program
    assert check(made, target="executor-nccl").ok
    assert _size(made) <= _size(program)
    assert all(a <= b * (1 + 1e-9) for a, b in zip(timer(made), timer(program), strict=True))


@pytest.mark.parametrize(("name", "asked"), CASES[::3], ids=lambda value: str(value))
def test_what_no_pass_has_touched(name: str, asked: dict[str, object]) -> None:
    """Lowered without passes and optimized: no longer than compiled with them from the start, but for turns."""
    ir = example(name, asked).instructions()
    target = "msccl" if ir.header.collective == "custom" else "executor-nccl"
    plain = compile_instructions(ir, target, without=PASSES).program
    made = optimize(plain, ir.goal, target).program
    assert check(made, ir.goal, target=target).ok
    assert _size(made) <= _size(plain)


def test_nops_and_detours_are_gone() -> None:
    """All-pairs reduced from scratch by local sums becomes all-pairs reduced on arrival."""
    program = allpairs_allreduce(6, 2)
    made = optimize(program).program
    assert all(step.op not in ("re", "nop") for *_, step in made.steps())
    assert made.nsteps < program.nsteps


def test_for_a_target_without_fused_instructions() -> None:
    made = optimize(ring_allreduce(4, protocol="Simple"), target="rccl").program
    assert check(made, target="rccl").ok


def test_a_wrong_program_is_refused() -> None:
    program = ring_allgather(4)
    gpu = program.gpus[0]
    block = gpu.threadblocks[0]
    spoilt = replace(block, steps=(Step("s", "o", 1, "o", 1, 1), *block.steps[1:]))
    wrong = replace(program, gpus=(replace(gpu, threadblocks=(spoilt,)), *program.gpus[1:]))
    with pytest.raises(InputError, match="does not pass its check"):
        optimize(wrong)


@given(scripts(), st.sampled_from([(), tuple(PASSES)]))
@settings(max_examples=30, deadline=None)
def test_instructions_of_a_program_make_it_again(script: Script, off: tuple[str, ...]) -> None:
    """Out of its threadblocks and into others, whatever a program does it still does."""
    ir = script.instructions()
    program = compile_instructions(ir, without=off).program
    again = compile_instructions(instructions_of(program, ir.goal)).program
    depth = FIFO_DEPTH[program.protocol]
    seen = "i" if script.inplace else "o"
    results = []
    for one in (program, again):
        assert {f.kind for f in check(one, ir.goal).findings} <= {"wrong result"}
        memory = execute(one, depth, random.Random(1))
        assert memory is not None
        results.append([{cell: held for cell, held in mine.items() if cell[0] == seen} for mine in memory])
    assert results[0] == results[1]


def test_without_a_goal_all_that_the_caller_sees_is_kept() -> None:
    """In place o lies on i and may be longer: what is written beyond i's end is needed too."""
    program = Program("one", "custom", "LL", 2, 2, True, False, [
        Gpu(1, 0, 0, [ThreadBlock(1, -1, 0, [Step("s", "i", 0, "o", 0, 1), Step("s", "i", 0, "o", 0, 1)])]),
        Gpu(1, 2, 0, [ThreadBlock(-1, 0, 0, [Step("r", "i", 0, "o", 0, 1), Step("r", "i", 0, "o", 1, 1)])]),
    ])  # fmt: skip
    assert len(prune(instructions_of(program))) == 4
    twice = replace(program, gpus=[program.gpus[0], replace(program.gpus[1], threadblocks=[
        ThreadBlock(-1, 0, 0, [Step("r", "i", 0, "o", 1, 1), Step("r", "i", 0, "o", 1, 1)])
    ])])  # fmt: skip
    assert len(prune(instructions_of(twice))) == 2  # what is written over is not
