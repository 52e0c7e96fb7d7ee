"""Algorithms written by hand: the shipped ones are right whatever their settings, and mistakes name their line."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emit.check.program import check
from emit.compiler.compile import compile_instructions
from emit.compiler.passes.registry import PASSES
from emit.goal import Goal
from emit.language import Chunk, Script, load_script
from emit.program import FIFO_DEPTH
from emit.targets import TARGETS
from tests import EXAMPLES
from tests.oracles.random_runs import Cell, Held, execute
from topologies.errors import InputError

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "ring": [{"ranks": n} for n in (2, 3, 8)] + [{"ranks": 4, "instances": 3}],
    "allpairs": [{"ranks": n, "passes": p} for n in (2, 5, 8) for p in (1, 2)] + [{"instances": 2}],
    "allgather": [{"ranks": 8, "way": way, "protocol": "Simple"} for way in ("ring", "doubling", "pairs")],
    "halving_doubling": [{"ranks": n} for n in (2, 4, 16)] + [{"ranks": 4, "instances": 2}],
    "hierarchical": [{"nodes": n, "gpus": g} for n in (1, 2, 3) for g in (2, 4)],
    "alltoall": [{"nodes": n, "gpus": g, "steps": s} for n, g in ((2, 2), (3, 2), (2, 4)) for s in (1, 2, 3)],
    "alltonext": [{"nodes": n, "gpus": g} for n in (1, 2, 3) for g in (2, 4)],
}
CASES = [(name, asked) for name, all_asked in SETTINGS.items() for asked in all_asked]


def example(name: str, asked: dict[str, Any]) -> Script:
    return load_script(EXAMPLES / f"{name}.py", [f"{key}={value}" for key, value in asked.items()])


def test_every_example_is_tried() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SETTINGS)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "asked"), CASES, ids=lambda value: str(value))
def test_examples_are_right(name: str, asked: dict[str, Any], target: str) -> None:
    script = example(name, asked)
    ir = script.instructions()
    made = compile_instructions(ir, target)
    report = check(made.program, ir.goal, target=target)
    assert report.ok, report.findings
    assert report.judged
    assert {step.op for *_, step in made.program.steps()} <= TARGETS[target].limits.ops


def test_an_all_reduce_ring_is_short() -> None:
    lines = [line for line in (EXAMPLES / "ring.py").read_text().splitlines() if line.strip()]
    assert len(lines) < 15


def test_a_ring_is_one_threadblock_of_fused_instructions() -> None:
    program = compile_instructions(example("ring", {}).instructions()).program
    assert all(len(gpu.threadblocks) == 1 for gpu in program.gpus)
    assert program.nsteps == 8 * (2 * 8 - 1)


def test_the_wrong_algorithm_is_found_wrong() -> None:
    """A ring that stops a hop early compiles, and the check says what is missing."""
    script = Script("short", "allreduce", 4, chunks=4)
    for c in range(4):
        part = script.chunk(c, "i", c)
        for hop in range(1, 3):
            part = script.chunk((c + hop) % 4, "i", c).reduce(part)
        for hop in range(3, 6):
            part = part.copy((c + hop) % 4, "i", c)
    ir = script.instructions()
    assert not check(compile_instructions(ir).program, ir.goal).ok


def _stale(script: Script, chunk: Chunk) -> None:
    chunk.copy(1, "i", 0)
    chunk.copy(0, "s", 0)
    script.chunk(1, "i", 1).copy(0, "i", 0)
    chunk.copy(1, "s", 0)


MISTAKES: dict[str, tuple[Callable[[Script, Chunk], object], str]] = {
    "overwritten": (_stale, "was overwritten since, by"),
    "no such rank": (lambda _, c: c.copy(7, "i", 0), "rank 7; it must be in 0..1"),
    "no such buffer": (lambda _, c: c.copy(1, "x", 0), "buffer 'x'; it must be one of i, o, s"),
    "beyond": (lambda s, _: s.chunk(0, "i", 2), "beyond the buffer; it has 2"),
    "negative": (lambda s, _: s.chunk(0, "i", -1), "beyond the buffer"),
    "empty": (lambda s, _: s.chunk(0, "s", 0), "holds nothing yet"),
    "unlike": (lambda s, c: s.chunk(1, "i", 0, 2).reduce(c), "reduces 1 chunks into 2"),
    "part": (lambda _, c: c.part(0, 2), "must lie within"),
    "onto itself": (lambda s, c: s.chunk(0, "i", 0).reduce(c), "chunks each, overlap"),
    "another's": (lambda _, c: Script("y", "allreduce", 2).chunk(0, "i", 0).reduce(c), "another script"),
    "channel": (lambda _, c: c.copy(1, "i", 0, channel=-1), "channel -1"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_name_their_line(what: str) -> None:
    do, words = MISTAKES[what]
    script = Script("x", "allreduce", 2, chunks=2)
    with pytest.raises(InputError, match=r"line [0-9]+: ") as error:
        do(script, script.chunk(0, "i", 0))
    assert words in str(error.value)
    assert Path(__file__).name in str(error.value)


def _right(script: Script, off: Collection[str] = ()) -> bool:
    ir = script.instructions()
    return check(compile_instructions(ir, without=off).program, ir.goal).ok


def test_channels_asked_for_and_not_on_one_connection() -> None:
    """Messages with no channel and those on channel 0 keep one order."""
    script = Script("x", "alltoall", 2, chunks=3)
    for r in range(2):
        for k in range(3):
            script.chunk(r, "i", r * 3 + k).copy(r, "o", r * 3 + k)
            script.chunk(r, "i", (1 - r) * 3 + k).copy(1 - r, "o", r * 3 + k, channel=0 if k == 1 else None)
    assert _right(script)


@pytest.mark.parametrize("off", [(), ("pair",), ("fuse",), ("scratch",)], ids=str)
def test_a_message_of_many_chunks_arrives_while_it_is_sent(off: tuple[str, ...]) -> None:
    """What comes back may not be written over what is still leaving: being first in line is not being over."""
    script = Script("x", "broadcast", 4, chunks=3)
    script.chunk(0, "i", 0, 3).copy(0, "o", 0)
    there = script.chunk(0, "o", 0, 2).copy(1, "s", 0).copy(2, "s", 0)
    there.copy(0, "s", 0).copy(0, "o", 0)
    there.copy(0, "o", 1)
    script.chunk(0, "i", 0, 3).copy(0, "o", 0)
    for r in (1, 2, 3):
        script.chunk(0, "i", 0, 3).copy(r, "o", 0)
    assert _right(script, off)


def test_sums_that_read_one_another_are_not_absorbed() -> None:
    script = Script("x", "allreduce", 2, chunks=2)
    came = script.chunk(0, "i", 0, 2).copy(1, "s", 0)
    other = script.chunk(1, "i", 0).copy(1, "s", 2).reduce(came.part(1))
    came.part(0).copy(1, "s", 5)
    script.chunk(1, "s", 1).reduce(script.chunk(1, "s", 0))
    other.copy(1, "s", 6)
    for c in range(2):
        total = script.chunk(1, "i", c).reduce(script.chunk(0, "i", c))
        total.copy(0, "i", c)
    for off in ((), ("absorb",), ("prune",)):
        assert _right(script, off)


@pytest.mark.parametrize("target", ["executor-nccl", "rccl"])
def test_more_chunks_than_an_executor_takes_at_once(target: str) -> None:
    script = Script("x", "broadcast", 2, chunks=150)
    for r in range(2):
        script.chunk(0, "i", 0, 150).copy(r, "o", 0)
    ir = script.instructions()
    program = compile_instructions(ir, target).program
    assert check(program, ir.goal, target=target).ok
    assert max(step.count for *_, step in program.steps()) > 1


def test_a_channel_that_the_target_does_not_have() -> None:
    script = Script("x", "broadcast", 2)
    for r in range(2):
        script.chunk(0, "i", 0).copy(r, "o", 0, channel=40)
    with pytest.raises(InputError, match="channel 40; executor-nccl has 32"):
        compile_instructions(script.instructions())


def test_what_scripts_cannot_be() -> None:
    goal = Goal.from_arrays(2, ([0], ["i"], [0], [0], [0]), ([1], ["o"], [0], [0], [0]))
    with pytest.raises(InputError, match="a goal for allreduce"):
        Script("x", "allreduce", 2, goal=goal)
    with pytest.raises(InputError, match="collective 'alltoallv'"):
        Script("x", "alltoallv", 2)


def test_what_holds_nothing_cannot_be_compiled() -> None:
    with pytest.raises(InputError, match="moves nothing"):
        Script("x", "allreduce", 2).instructions()


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """Chunks moved at random between buffers of a few ranks; what they come to is whatever it is."""
    ranks = draw(st.integers(2, 4))
    script = Script("random", "allreduce", ranks, chunks=3, inplace=draw(st.booleans()))
    script.chunk(0, "i", 0).copy(1, "s", 9)
    if not script.inplace:
        for r in range(ranks):
            script.chunk(r, "i", 0, 3).copy(r, "o", 0)
    for _ in range(draw(st.integers(1, 14))):
        count = draw(st.integers(1, 2))
        buffer = draw(st.sampled_from("io" if script.inplace else "o"))
        at = script.chunk(draw(st.integers(0, ranks - 1)), buffer, draw(st.integers(0, 3 - count)), count)
        to, index = draw(st.integers(0, ranks - 1)), draw(st.integers(0, 3 - count))
        channel = draw(st.sampled_from([None, None, 0, 1]))
        if to == at.rank and abs(index - at.index) < count:
            continue
        if draw(st.booleans()):
            at.copy(to, "s", draw(st.integers(0, 4)), channel=channel).copy(to, buffer, index)
        elif draw(st.booleans()):
            at.copy(to, buffer, index, channel=channel)
        else:
            other = script.chunk(to, buffer, index, count)
            other.reduce(at, channel=channel)
    return script


def _outcome(script: Script, off: Collection[str]) -> list[dict[Cell, Held]]:
    """What the outputs hold after some interleaving; the program must be free of all but a wrong result."""
    ir = script.instructions()
    program = compile_instructions(ir, without=off).program
    assert {f.kind for f in check(program, ir.goal).findings} <= {"wrong result"}
    memory = execute(program, FIFO_DEPTH[program.protocol], random.Random(len(off)))
    assert memory is not None
    seen = "i" if script.inplace else "o"
    return [{cell: held for cell, held in mine.items() if cell[0] == seen} for mine in memory]


@given(scripts())
@settings(max_examples=50, deadline=None)
def test_passes_change_nothing_but_the_way(script: Script) -> None:
    """Whatever a script does, the program does: no race, no deadlock, and the same result with passes as without."""
    plain = _outcome(script, PASSES)
    for off in ((), *([other for other in PASSES if other != name] for name in PASSES)):
        assert _outcome(script, off) == plain
