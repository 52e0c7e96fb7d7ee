"""What is laid out as columns is what its program says, and each way to find waits finds the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from itertools import islice

import numpy as np
import pytest

from emit.check.limits import check_limits
from emit.columns import Columns, columns_of
from emit.compiler import waits
from emit.compiler.assembly import Assembled, Layout, assemble
from emit.compiler.ir import NONE, SCRATCH, Instructions, instructions_of
from emit.compiler.lower import lower_to_instructions
from emit.compiler.passes.combine import aggregate, fuse
from emit.compiler.passes.liveness import all_used, without_unused
from emit.compiler.prepared import Prepared
from emit.findings import Findings
from emit.program import OPS
from emit.targets import TARGETS
from synth.verify.algorithm import Algorithm
from tests.emit.right_programs import hand_built
from tests.random_problems import answered, random_problem
from topologies.errors import InputError

LIMITS = TARGETS["executor-nccl"].limits
SOME = 8  # random schedules


def instructions() -> Iterator[Instructions]:
    """Of small programs of ours and of random schedules."""
    for right in list(hand_built())[::2]:
        ir = instructions_of(right.program, right.goal)
        ir.channel = [NONE] * len(ir)
        yield ir
    rng = random.Random(1)
    while True:
        problem = random_problem(rng).with_chunks(rng.choice((1, 2, 4)))
        algorithm = Algorithm(problem, answered(problem, 1 << 20), "route", size_bytes=1 << 20)
        if len(algorithm.schedule) < 150:
            yield lower_to_instructions(algorithm, "x")


@pytest.fixture(scope="module")
def laid_out() -> list[Assembled]:
    """Each in several layouts."""
    made = []
    for ir in islice(instructions(), 9 + SOME):
        for form in (ir, aggregate(ir, LIMITS), fuse(ir)):
            prepared = Prepared(form)
            for layout in (Layout(), Layout(2, paired=False), Layout(2, runs=3), Layout(few_nops=True)):
                with suppress(InputError):  # fused ones that do not fit together
                    made.append(assemble(prepared, LIMITS, layout))
    assert any(
        prepared.op[n] == OPS.index("re") for prepared in (one.prepared for one in made) for n in range(len(prepared))
    )
    return made


def test_columns_are_those_of_the_program(laid_out: list[Assembled]) -> None:
    for made in laid_out:
        program, found = made.program(), Findings()
        right, mine = columns_of(program, found), made.columns()
        assert not found.reported
        for field in fields(Columns):
            assert np.array_equal(getattr(mine, field.name), getattr(right, field.name)), field.name
        assert made.longest_threadblock == max(len(tb.steps) for gpu in program.gpus for tb in gpu.threadblocks)
        assert made.nchannels == program.nchannels


def test_limits_of_columns_are_those_of_the_program(laid_out: list[Assembled]) -> None:
    """With limits that some programs keep and others do not."""
    rng, kept = random.Random(1), 0
    for made in laid_out:
        tight = replace(
            LIMITS,
            steps_per_tb=rng.randint(1, 40),
            tbs_per_gpu=rng.randint(1, 12),
            offset=rng.randint(0, 40),
            count=rng.randint(1, 4),
            nodes=rng.randint(20, 200),
            dep_tb=rng.randint(0, 8),
            ops=LIMITS.ops - {rng.choice(sorted(LIMITS.ops))},
        )
        for limits in (tight, LIMITS):
            mine, right = Findings(), Findings()
            made.check_limits(limits, mine)
            check_limits(made.program(), limits, right)
            assert mine.reported == right.reported
            kept += not right.reported
    assert len(laid_out) < kept < 2 * len(laid_out)


def test_waits_without_what_messages_imply(laid_out: list[Assembled]) -> None:
    """Rows of what is awaited alone tell as much as a row for every instruction."""
    some = 0
    for made in laid_out:
        p, blocks = made.prepared, [len(mine) for mine in made.blocks]
        fixed = p.ir, blocks, made.block_of, p.after
        few, every = waits._by_clocks_of_ranks(*fixed), waits._by_all_clocks(*fixed, False, False)
        assert few == every
        some += sum(map(len, few))
    assert some


def test_what_is_all_used_is_left_as_it_is() -> None:
    """And what nobody reads is seen."""
    found = []
    for ir in islice(instructions(), 9 + SOME):
        found.append(all_used(ir))
        if found[-1]:
            assert without_unused(ir) is ir
            more = ir.copy()
            more.add(0, "cpy", more.src[0] if more.src[0] != NONE else more.dst[0], SCRATCH + 1000, 1)
            assert not all_used(more)
            assert len(without_unused(more)) == len(ir)
    assert any(found)
