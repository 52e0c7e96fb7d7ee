"""Tests of algorithms written by hand: the shipped ones are right in many settings, and mistakes name their line."""

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
from emit.language import Chunk, Script, load_scripts
from emit.program import FIFO_DEPTH
from emit.targets import TARGETS, target_named
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
CASES = [(name, asked) for name, settings_of_script in SETTINGS.items() for asked in settings_of_script]


def example(name: str, settings_of_example: dict[str, Any]) -> Script:
    return load_scripts(EXAMPLES / f"{name}.py", [f"{key}={value}" for key, value in settings_of_example.items()])[0]


def test_every_example_has_settings() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SETTINGS)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "settings_of_example"), CASES, ids=lambda value: str(value))
def test_examples_are_right(name: str, settings_of_example: dict[str, Any], target: str) -> None:
    script = example(name, settings_of_example)
    ir = script.instructions()
    compiled = compile_instructions(ir, target_named(target).limits)
    report = check(compiled.program, ir.goal, target=target)
    assert report.ok, report.findings
    assert report.judged
    assert {step.op for *_, step in compiled.program.steps()} <= TARGETS[target].limits.ops


def test_an_all_reduce_ring_is_short() -> None:
    lines = [line for line in (EXAMPLES / "ring.py").read_text().splitlines() if line.strip()]
    assert len(lines) < 15


def test_a_ring_is_one_threadblock_of_fused_instructions() -> None:
    program = compile_instructions(example("ring", {}).instructions()).program
    assert all(len(gpu.threadblocks) == 1 for gpu in program.gpus)
    assert program.nsteps == 8 * (2 * 8 - 1)


def test_a_wrong_algorithm_is_reported() -> None:
    """Check that a ring that stops a hop early compiles and that the check states what is missing."""
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
    "no chunk": (lambda _, c: c.reduce(3), "reduces 3; it must be a chunk"),  # type: ignore[arg-type]
    "unlike": (lambda s, c: s.chunk(1, "i", 0, 2).reduce(c), "reduces 1 chunks into 2"),
    "part": (lambda _, c: c.part(0, 2), "must lie within"),
    "onto itself": (lambda s, c: s.chunk(0, "i", 0).reduce(c), "chunks each, overlap"),
    "another's": (lambda _, c: Script("y", "allreduce", 2).chunk(0, "i", 0).reduce(c), "another script"),
    "channel": (lambda _, c: c.copy(1, "i", 0, channel=-1), "channel -1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_name_their_line(mistake: str) -> None:
    make_mistake, message = MISTAKES[mistake]
    script = Script("x", "allreduce", 2, chunks=2)
    with pytest.raises(InputError, match=r"line [0-9]+: ") as error:
        make_mistake(script, script.chunk(0, "i", 0))
    assert message in str(error.value)
    assert Path(__file__).name in str(error.value)


def _right(script: Script, off: Collection[str] = ()) -> bool:
    ir = script.instructions()
    return check(compile_instructions(ir, without=off).program, ir.goal).ok


def test_explicit_and_default_channels_on_one_connection() -> None:
    """Check that messages without a channel and those on channel 0 keep one order."""
    script = Script("x", "alltoall", 2, chunks=3)
    for r in range(2):
        for k in range(3):
            script.chunk(r, "i", r * 3 + k).copy(r, "o", r * 3 + k)
            script.chunk(r, "i", (1 - r) * 3 + k).copy(1 - r, "o", r * 3 + k, channel=0 if k == 1 else None)
    assert _right(script)


@pytest.mark.parametrize("off", [(), ("pair",), ("fuse",), ("scratch",)], ids=str)
def test_a_message_of_many_chunks_arrives_while_it_is_sent(off: tuple[str, ...]) -> None:
    """Check that a reply does not overwrite chunks of a message that are still being sent."""
    script = Script("x", "broadcast", 4, chunks=3)
    script.chunk(0, "i", 0, 3).copy(0, "o", 0)
    relayed = script.chunk(0, "o", 0, 2).copy(1, "s", 0).copy(2, "s", 0)
    relayed.copy(0, "s", 0).copy(0, "o", 0)
    relayed.copy(0, "o", 1)
    script.chunk(0, "i", 0, 3).copy(0, "o", 0)
    for r in (1, 2, 3):
        script.chunk(0, "i", 0, 3).copy(r, "o", 0)
    assert _right(script, off)


def test_sums_that_read_one_another_are_not_absorbed() -> None:
    script = Script("x", "allreduce", 2, chunks=2)
    received = script.chunk(0, "i", 0, 2).copy(1, "s", 0)
    partial_sum = script.chunk(1, "i", 0).copy(1, "s", 2).reduce(received.part(1))
    received.part(0).copy(1, "s", 5)
    script.chunk(1, "s", 1).reduce(script.chunk(1, "s", 0))
    partial_sum.copy(1, "s", 6)
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
    program = compile_instructions(ir, target_named(target).limits).program
    assert check(program, ir.goal, target=target).ok
    assert max(step.count for *_, step in program.steps()) > 1


def test_a_channel_that_the_target_does_not_have() -> None:
    script = Script("x", "broadcast", 2)
    for r in range(2):
        script.chunk(0, "i", 0).copy(r, "o", 0, channel=40)
    with pytest.raises(InputError, match="channel 40; executor-nccl has 32"):
        compile_instructions(script.instructions())


def test_wrong_scripts_are_refused() -> None:
    goal = Goal.from_arrays(2, ([0], ["i"], [0], [0], [0]), ([1], ["o"], [0], [0], [0]))
    with pytest.raises(InputError, match="a goal for allreduce"):
        Script("x", "allreduce", 2, goal=goal)
    with pytest.raises(InputError, match="collective 'alltoallv'"):
        Script("x", "alltoallv", 2)


def test_empty_scripts_are_refused() -> None:
    with pytest.raises(InputError, match="moves nothing"):
        Script("x", "allreduce", 2).instructions()


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """Draw a script that moves chunks at random between buffers of a few ranks."""
    ranks = draw(st.integers(2, 4))
    script = Script("random", "allreduce", ranks, chunks=3, inplace=draw(st.booleans()))
    script.chunk(0, "i", 0).copy(1, "s", 9)
    if not script.inplace:
        for r in range(ranks):
            script.chunk(r, "i", 0, 3).copy(r, "o", 0)
    for _ in range(draw(st.integers(1, 14))):
        count = draw(st.integers(1, 2))
        buffer = draw(st.sampled_from("io" if script.inplace else "o"))
        source = script.chunk(draw(st.integers(0, ranks - 1)), buffer, draw(st.integers(0, 3 - count)), count)
        target_rank, index = draw(st.integers(0, ranks - 1)), draw(st.integers(0, 3 - count))
        channel = draw(st.sampled_from([None, None, 0, 1]))
        if target_rank == source.rank and abs(index - source.index) < count:
            continue
        if draw(st.booleans()):
            source.copy(target_rank, "s", draw(st.integers(0, 4)), channel=channel).copy(target_rank, buffer, index)
        elif draw(st.booleans()):
            source.copy(target_rank, buffer, index, channel=channel)
        else:
            target = script.chunk(target_rank, buffer, index, count)
            target.reduce(source, channel=channel)
    return script


def _outcome(script: Script, off: Collection[str]) -> list[dict[Cell, Held]]:
    """Return the outputs after some interleaving, and check that the program has at most a wrong result."""
    ir = script.instructions()
    program = compile_instructions(ir, without=off).program
    assert {f.kind for f in check(program, ir.goal).findings} <= {"wrong result"}
    memory = execute(program, FIFO_DEPTH[program.protocol], random.Random(len(off)))
    assert memory is not None
    output_buffer = "i" if script.inplace else "o"
    return [
        {cell: content for cell, content in rank_memory.items() if cell[0] == output_buffer} for rank_memory in memory
    ]


@given(scripts())
@settings(max_examples=25)
def test_passes_keep_the_result(script: Script) -> None:
    """Check that random scripts give the same result with and without passes, without races or deadlocks."""
    plain = _outcome(script, PASSES)
    for off in ((), *([pass_name for pass_name in PASSES if pass_name != name] for name in PASSES)):
        assert _outcome(script, off) == plain


WRONG_LINES = {
    "Script('ring', 'allreduce', 0)": "it must be 1 or more each",
    "Script('ring', 'allreduc', 2)": "collective 'allreduc'",
    "Script('ring', 'allreduce', 'x')": "ranks: 'x' is no whole number",
    "Script('ring', 'allreduce', 2, foo=3)": "has no keyword 'foo'",
    "Script('ring', 'allreduce')": "missing a required argument",
    "Script('ring', 'allreduce', 2, protocol='LL12')": "protocol 'LL12'",
    "Script('ring', 'allreduce', 2, root=7)": "root 7",
    "Script(3, 'allreduce', 2)": "3 is no text",
    "Script('ring', 'allreduce', 2, inplace=3)": "3 is no flag",
    "Script('ring', 'allreduce', 2).parallelize(0).__enter__()": "parallelize(0)",
    "Script('ring', 'allreduce', 2).chunk(0, 'i', 0).copy(7, 'i', 0)": "rank 7",
    "Script('ring', 'allreduce', 2).chunk(0, 'i', 9)": "beyond the buffer",
    "synth.synthesize('allreduce', 'dgx9')": "topology 'dgx9'",
    "1 / 0": "ZeroDivisionError",
}


@pytest.mark.parametrize(("line", "message"), WRONG_LINES.items())
def test_every_error_names_the_line_of_the_script(tmp_path: Path, line: str, message: str) -> None:
    """Check that no error of a script blames a file of this package or of Python."""
    path = tmp_path / "wrong.py"
    path.write_text(f"import synth\nfrom synth import Script\n\ndef algorithm():\n    return {line}\n")
    with pytest.raises(InputError) as caught:
        load_scripts(path)
    assert str(caught.value).startswith(f"{path}, line 5: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
