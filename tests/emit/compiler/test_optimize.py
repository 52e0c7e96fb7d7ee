"""Compiled anew a program is as right as before, never longer and never slower."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emit.check.program import check
from emit.compiler.compile import PASSES, compiled
from emit.compiler.ir import draft_of
from emit.compiler.lower import priced
from emit.compiler.optimize import optimized
from emit.language import Script
from emit.program import FIFO_DEPTH, Program, Step
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
    price = priced(load(f"full:{program.nranks}"), tuple(range(program.nranks)), 0, 0)
    made = optimized(program, price=price).program
    assert check(made, target="executor-nccl").ok
    assert _size(made) <= _size(program)
    assert all(a <= b * (1 + 1e-9) for a, b in zip(price(made), price(program), strict=True))


@pytest.mark.parametrize(("name", "asked"), CASES[::3], ids=lambda value: str(value))
def test_what_no_pass_has_touched(name: str, asked: dict[str, object]) -> None:
    """Lowered without passes and optimized: no longer than compiled with them from the start, but for turns."""
    draft = example(name, asked).draft()
    target = "msccl" if draft.like.collective == "custom" else "executor-nccl"
    plain = compiled(draft, target, off=PASSES).program
    made = optimized(plain, draft.goal, target).program
    assert check(made, draft.goal, target=target).ok
    assert _size(made) <= _size(plain)


def test_nops_and_detours_are_gone() -> None:
    """All-pairs reduced from scratch by local sums becomes all-pairs reduced on arrival."""
    program = allpairs_allreduce(6, 2)
    made = optimized(program).program
    assert all(step.op not in ("re", "nop") for *_, step in made.steps())
    assert made.nsteps < program.nsteps


def test_for_a_target_without_fused_instructions() -> None:
    made = optimized(ring_allreduce(4, protocol="Simple"), target="rccl").program
    assert check(made, target="rccl").ok


def test_a_wrong_program_is_refused() -> None:
    program = ring_allgather(4)
    gpu = program.gpus[0]
    block = gpu.threadblocks[0]
    spoilt = replace(block, steps=(Step("s", "o", 1, "o", 1, 1), *block.steps[1:]))
    wrong = replace(program, gpus=(replace(gpu, threadblocks=(spoilt,)), *program.gpus[1:]))
    with pytest.raises(InputError, match="does not pass its check"):
        optimized(wrong)


@given(scripts(), st.sampled_from([(), tuple(PASSES)]))
@settings(max_examples=30, deadline=None)
def test_a_draft_of_a_program_is_the_program(script: Script, off: tuple[str, ...]) -> None:
    """Out of its threadblocks and into others, whatever a program does it still does."""
    draft = script.draft()
    program = compiled(draft, off=off).program
    again = compiled(draft_of(program, draft.goal)).program
    depth = FIFO_DEPTH[program.protocol]
    seen = "i" if script.inplace else "o"
    results = []
    for one in (program, again):
        assert {f.kind for f in check(one, draft.goal).findings} <= {"wrong result"}
        memory = execute(one, depth, random.Random(1))
        assert memory is not None
        results.append([{cell: held for cell, held in mine.items() if cell[0] == seen} for mine in memory])
    assert results[0] == results[1]
