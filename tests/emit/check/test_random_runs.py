"""Random runs against the check: a program that the check accepts is right in every order of execution."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from emit.check.program import check
from emit.program import OPS, Program
from tests.emit.small_programs import (
    allpairs_allreduce,
    alltoall,
    doubling_allgather,
    ring_allgather,
    ring_allreduce,
    with_step,
)
from tests.oracles.random_runs import execute, is_right

PROGRAMS = [
    ring_allgather(3),
    ring_allgather(4),
    ring_allreduce(3, 2),
    allpairs_allreduce(3, 2),
    allpairs_allreduce(4),
    doubling_allgather(4),
    alltoall(3, 2),
]
CHANGES = st.one_of(
    st.tuples(st.sampled_from(["src_off", "dst_off"]), st.integers(0, 5)),
    st.tuples(st.sampled_from(["src_buf", "dst_buf"]), st.sampled_from(["i", "o", "s"])),
    st.tuples(st.just("op"), st.sampled_from(OPS)),
    st.tuples(st.just("count"), st.integers(0, 3)),
    st.tuples(st.just("dep"), st.tuples(st.integers(-1, 3), st.integers(-1, 3))),
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> Program:
    program = draw(st.sampled_from(PROGRAMS))
    for _ in range(draw(st.integers(0, 2))):
        places = [(r, t, s) for r, t, s, _ in program.steps()]
        place = draw(st.sampled_from(places))
        field, value = draw(CHANGES)
        if field == "dep":
            dep_tb, dep_step = value
            program = with_step(program, *place, dep_tb=dep_tb, dep_step=dep_step)
            blocks = program.gpus[place[0]].threadblocks
            if 0 <= dep_tb < len(blocks) and 0 <= dep_step < len(blocks[dep_tb].steps):
                program = with_step(program, place[0], dep_tb, dep_step, has_dep=True)
        else:
            program = with_step(program, *place, **{field: value})
    return program


@settings(max_examples=120, derandomize=True)
@given(mutated(), st.integers(1, 3), st.integers(0, 2**32))
def test_accepted_programs_are_right_in_every_order(program: Program, depth: int, seed: int) -> None:
    report = check(program, fifo_depth=depth, target=None)
    structural = {"inconsistent", "overrun", "unpaired", "unequal counts", "dangling dependency"}
    if any(f.kind in structural for f in report.findings):
        return
    rng = random.Random(seed)
    runs = [execute(program, depth, rng) for _ in range(6)]
    stopped = any(f.kind == "deadlock" for f in report.findings)
    assert all((memory is None) == stopped for memory in runs)
    if report.ok:
        assert all(memory is not None and is_right(program, memory) for memory in runs)
    elif {f.kind for f in report.findings} == {"wrong result"} and program.collective != "alltoall":
        assert not any(memory is not None and is_right(program, memory) for memory in runs)
    ends = [m for m in runs if m is not None]
    if not any(f.kind == "race" for f in report.findings):
        assert all(m == ends[0] for m in ends)


@settings(max_examples=40, derandomize=True)
@given(st.integers(2, 7), st.integers(1, 4), st.sampled_from(["Simple", "LL", "LL128"]))
def test_families_are_right_for_all_sizes(n: int, k: int, protocol: str) -> None:
    assert check(ring_allgather(n, protocol)).ok
    assert check(ring_allreduce(n, k, protocol)).ok
    assert check(allpairs_allreduce(n, k, "LL")).ok
    assert check(alltoall(n, k, protocol)).ok


@settings(max_examples=60, derandomize=True)
@given(st.randoms(use_true_random=False))
def test_the_verdict_does_not_depend_on_rank_numbers(rng: random.Random) -> None:
    program = rng.choice([ring_allreduce(4), allpairs_allreduce(4)])
    name = list(range(4))
    rng.shuffle(name)
    gpus = list(program.gpus)
    for rank, gpu in enumerate(program.gpus):
        blocks = [
            replace(b, send=name[b.send] if b.send >= 0 else -1, recv=name[b.recv] if b.recv >= 0 else -1)
            for b in gpu.threadblocks
        ]
        gpus[name[rank]] = replace(gpu, threadblocks=blocks)
    assert check(replace(program, gpus=gpus)).ok
    place = rng.choice([(r, t, s) for r, t, s, step in program.steps() if step.op in ("rrs", "re", "rrcs")])
    broken = with_step(program, *place, op={"rrs": "rcs", "re": "cpy", "rrcs": "rcs"}[
        program.gpus[place[0]].threadblocks[place[1]].steps[place[2]].op])  # fmt: skip
    assert check(broken).status == "wrong"
