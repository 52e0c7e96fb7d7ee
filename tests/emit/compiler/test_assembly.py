"""Tests that assembled columns equal those of the program, and that all methods of finding waits agree."""

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
from emit.compiler.assembly import Assembled, BlockLayout, assemble
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
SOME = 8  # Random schedules.


def instructions() -> Iterator[Instructions]:
    """Yield the instructions of small programs, then of random schedules without end."""
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
    """Return instructions assembled in several layouts."""
    assembled = []
    for ir in islice(instructions(), 9 + SOME):
        for form in (ir, aggregate(ir, LIMITS), fuse(ir)):
            lanes = {(rank, peer): 0 for rank in range(form.header.nranks) for peer in range(form.header.nranks)}
            prepared = Prepared(form, lanes)
            for layout in (
                BlockLayout(),
                BlockLayout(2, paired=False),
                BlockLayout(2, runs=3),
                BlockLayout(paired=False, in_turn=True),
                BlockLayout(few_nops=True),
            ):
                with suppress(InputError):  # Some fused instructions do not fit together.
                    assembled.append(assemble(prepared, LIMITS, layout))
    assert any(
        prepared.op[n] == OPS.index("re")
        for prepared in (candidate.prepared for candidate in assembled)
        for n in range(len(prepared))
    )
    return assembled


def test_assembled_columns_equal_those_of_the_program(laid_out: list[Assembled]) -> None:
    for assembled in laid_out:
        program, findings = assembled.program(), Findings()
        right, columns = columns_of(program, findings), assembled.columns()
        assert not findings.reported
        for field in fields(Columns):
            assert np.array_equal(getattr(columns, field.name), getattr(right, field.name)), field.name
        assert assembled.longest_threadblock == max(len(tb.steps) for gpu in program.gpus for tb in gpu.threadblocks)
        assert assembled.nchannels == program.nchannels


def test_limits_of_columns_equal_those_of_the_program(laid_out: list[Assembled]) -> None:
    """Check that columns and programs exceed the same limits, of which some are tight."""
    rng, within_limits = random.Random(1), 0
    for assembled in laid_out:
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
            findings, right = Findings(), Findings()
            assembled.check_limits(limits, findings)
            check_limits(assembled.program(), limits, right)
            assert findings.reported == right.reported
            within_limits += not right.reported
    assert len(laid_out) < within_limits < 2 * len(laid_out)


def test_both_kinds_of_clocks_give_the_same_waits(laid_out: list[Assembled]) -> None:
    """Check that clocks of the awaited instructions alone give the same waits as clocks of every instruction."""
    total_waits = 0
    for assembled in laid_out:
        p, blocks = assembled.prepared, [len(block) for block in assembled.blocks]
        fixed = p.ir, blocks, assembled.block_of, p.after
        waits_by_ranks, waits_by_instructions = (
            waits._by_clocks_of_ranks(*fixed),
            waits._by_all_clocks(*fixed, False, False),
        )
        assert waits_by_ranks == waits_by_instructions
        total_waits += sum(map(len, waits_by_ranks))
    assert total_waits


def test_only_unused_instructions_are_removed() -> None:
    """Check that only instructions whose result is not used are removed."""
    all_used_flags = []
    for ir in islice(instructions(), 9 + SOME):
        all_used_flags.append(all_used(ir))
        if all_used_flags[-1]:
            assert without_unused(ir) is ir
            extended = ir.copy()
            extended.add(0, "cpy", extended.src[0] if extended.src[0] != NONE else extended.dst[0], SCRATCH + 1000, 1)
            assert not all_used(extended)
            assert len(without_unused(extended)) == len(ir)
    assert any(all_used_flags)
