"""Tests that an optimized program is right, and neither longer nor slower than before."""

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
from emit.targets import target_named
from tests.emit.compiler.test_language import CASES, example, scripts
from tests.emit.small_programs import allpairs_allreduce, ring_allgather, ring_allreduce
from tests.oracles.random_runs import execute
from topologies.errors import InputError
from topologies.load import load

OWN = [ring_allgather(4), ring_allreduce(5, 2), allpairs_allreduce(4), allpairs_allreduce(6, 2)]


def _size(program: Program) -> tuple[int, int, int]:
    return program.nsteps, sum(len(gpu.threadblocks) for gpu in program.gpus), program.nchannels


@pytest.mark.parametrize("program", OWN, ids=lambda p: f"{p.name}-{p.nranks}")
def test_optimized_programs_are_right_and_no_worse(program: Program) -> None:
    timer = timer_for(load(f"full:{program.nranks}"), tuple(range(program.nranks)), 0, 0)
    optimized = optimize(program, timer=timer).program
    assert check(optimized, target="executor-nccl").ok
    assert _size(optimized) <= _size(program)
    assert all(a <= b * (1 + 1e-9) for a, b in zip(timer(optimized), timer(program), strict=True))


@pytest.mark.parametrize(("name", "settings_of_example"), CASES[::3], ids=lambda value: str(value))
def test_programs_compiled_without_passes_are_optimized(name: str, settings_of_example: dict[str, object]) -> None:
    """Check that optimizing a program that was compiled without passes makes it right and not longer."""
    ir = example(name, settings_of_example).instructions()
    target = "msccl" if ir.header.collective == "custom" else "executor-nccl"
    plain = compile_instructions(ir, target_named(target).limits, without=PASSES).program
    optimized = optimize(plain, ir.goal, target_named(target).limits).program
    assert check(optimized, ir.goal, target=target).ok
    assert _size(optimized) <= _size(plain)


def test_nops_and_detours_are_removed() -> None:
    """Check that a reduction from scratch becomes a reduction on arrival."""
    program = allpairs_allreduce(6, 2)
    optimized = optimize(program).program
    assert all(step.op not in ("re", "nop") for *_, step in optimized.steps())
    assert optimized.nsteps < program.nsteps


def test_optimizing_for_a_target_without_fused_instructions() -> None:
    optimized = optimize(ring_allreduce(4, protocol="Simple"), limits=target_named("rccl").limits).program
    assert check(optimized, target="rccl").ok


def test_a_wrong_program_is_refused() -> None:
    program = ring_allgather(4)
    gpu = program.gpus[0]
    block = gpu.threadblocks[0]
    wrong_block = replace(block, steps=(Step("s", "o", 1, "o", 1, 1), *block.steps[1:]))
    wrong = replace(program, gpus=(replace(gpu, threadblocks=(wrong_block,)), *program.gpus[1:]))
    with pytest.raises(InputError, match="does not pass its check"):
        optimize(wrong)


@given(scripts(), st.sampled_from([(), tuple(PASSES)]))
@settings(max_examples=30)
def test_instructions_of_a_program_give_the_same_result(script: Script, off: tuple[str, ...]) -> None:
    """Check that the instructions of a random program compile to a program with the same result."""
    ir = script.instructions()
    program = compile_instructions(ir, without=off).program
    recompiled = compile_instructions(instructions_of(program, ir.goal)).program
    depth = FIFO_DEPTH[program.protocol]
    output_buffer = "i" if script.inplace else "o"
    results = []
    for candidate in (program, recompiled):
        assert {f.kind for f in check(candidate, ir.goal).findings} <= {"wrong result"}
        memory = execute(candidate, depth, random.Random(1))
        assert memory is not None
        results.append(
            [
                {cell: content for cell, content in rank_memory.items() if cell[0] == output_buffer}
                for rank_memory in memory
            ]
        )
    assert results[0] == results[1]


def test_without_a_goal_all_visible_results_are_kept() -> None:
    """Check that writes into the longer output are kept in place, but not those that are overwritten."""
    program = Program("one", "custom", "LL", 2, 2, True, False, [
        Gpu(1, 0, 0, [ThreadBlock(1, -1, 0, [Step("s", "i", 0, "o", 0, 1), Step("s", "i", 0, "o", 0, 1)])]),
        Gpu(1, 2, 0, [ThreadBlock(-1, 0, 0, [Step("r", "i", 0, "o", 0, 1), Step("r", "i", 0, "o", 1, 1)])]),
    ])  # fmt: skip
    assert len(prune(instructions_of(program))) == 4
    twice = replace(program, gpus=[program.gpus[0], replace(program.gpus[1], threadblocks=[
        ThreadBlock(-1, 0, 0, [Step("r", "i", 0, "o", 1, 1), Step("r", "i", 0, "o", 1, 1)])
    ])])  # fmt: skip
    assert len(prune(instructions_of(twice))) == 2  # The overwritten chunk is not needed.
