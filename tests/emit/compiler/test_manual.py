"""Tests of threadblocks chosen by number: the program has the chosen ones, and impossible choices give one line."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from emit.check.program import check
from emit.compiler.compile import compile_instructions
from emit.language import Script
from emit.program import Program
from emit.targets import TARGETS, target_named
from tests.emit.compiler.test_instances import outcome, spread
from topologies.errors import InputError


def doubling(ranks: int, instances: int = 1) -> Script:
    """Return recursive doubling with the peer's number as threadblock, as in msccl-tools' example."""
    script = Script("doubling", "allgather", ranks, instances=instances)
    distance = 1
    while distance < ranks:
        for r in range(ranks):
            part = script.chunk(r, "o", r // distance * distance, distance)
            part.copy(r ^ distance, "o", part.index, sendtb=r ^ distance, recvtb=r)
        distance *= 2
    return script


def blocks(program: Program, rank: int) -> list[tuple[int, int, int]]:
    return [(tb.channel, tb.send, tb.recv) for tb in program.gpus[rank].threadblocks]


@pytest.mark.parametrize("target", ["executor-nccl", "msccl"])
def test_threadblocks_are_ordered_by_their_numbers(target: str) -> None:
    program = compile_instructions(doubling(8).instructions(), target_named(target).limits).program
    assert check(program, target=target).ok
    for r in range(8):
        assert blocks(program, r) == [(0, peer, peer) for peer in sorted((r ^ 1, r ^ 2, r ^ 4))]


@pytest.mark.parametrize("number", [2, 3])
def test_instances_keep_chosen_threadblocks(number: int) -> None:
    program = compile_instructions(doubling(4, number).instructions()).program
    assert check(program).ok
    for r in range(4):
        peers = sorted((r ^ 1, r ^ 2))
        assert blocks(program, r) == [(k, peer, peer) for peer in peers for k in range(number)]


def test_chosen_threadblocks_decide_what_is_fused() -> None:
    """Check that a receive and a send are fused if, and only if, they have one threadblock."""
    for sends, steps in ((1, ["r", "rcs", "s"]), (2, ["r", "r", "s", "s"])):
        script = Script("x", "broadcast", 3)
        script.chunk(0, "i", 0).copy(0, "o", 0)
        received = script.chunk(0, "o", 0).copy(1, "o", 0, sendtb=0, recvtb=1)
        received.copy(2, "o", 0, sendtb=sends, recvtb=0)
        program = compile_instructions(script.instructions()).program
        assert check(program).ok
        assert sorted(step.op for *_, step in program.steps() if step.op != "cpy") == steps
        assert blocks(program, 1) == ([(0, 2, 0)] if sends == 1 else [(0, -1, 0), (0, 2, -1)])


def test_chosen_threadblocks_with_free_ones() -> None:
    """Check that one chosen threadblock holds for all messages of a connection, and for local copies separately."""
    script = Script("x", "alltoall", 3, chunks=2)
    for r in range(3):
        for p in range(3):
            chosen_blocks = {"sendtb": 5} if p == r else {"sendtb": 9, "recvtb": 8} if p == (r + 1) % 3 else {}
            script.chunk(r, "i", 2 * p).copy(p, "o", 2 * r, **chosen_blocks)
            script.chunk(r, "i", 2 * p + 1).copy(p, "o", 2 * r + 1)
    program = compile_instructions(script.instructions(), without=("aggregate",)).program
    assert check(program).ok
    for r in range(3):
        previous_rank, next_rank = (r - 1) % 3, (r + 1) % 3
        assert blocks(program, r) == [
            (0, -1, -1),
            (0, -1, previous_rank),
            (0, next_rank, -1),
            (0, previous_rank, next_rank),
        ]
        assert [len(tb.steps) for tb in program.gpus[r].threadblocks[1:]] == [2, 2, 4]


def _two_for_one(script: Script) -> None:
    for c in range(2):
        script.chunk(0, "i", c).copy(1, "o", c, sendtb=c)


def _two_peers(script: Script) -> None:
    for p in (1, 2):
        script.chunk(0, "i", 0).copy(p, "o", 0, sendtb=3)


def _two_sources(script: Script) -> None:
    for p in (1, 2):
        script.chunk(p, "o", 0).copy(0, "o", 1, recvtb=4)


def _two_channels(script: Script) -> None:
    for c in range(2):
        script.chunk(0, "i", c).copy(1, "o", c, sendtb=0, channel=c)


MISTAKES: dict[str, tuple[Callable[[Script], object], str]] = {
    "two for one": (_two_for_one, "rank 0 sends to rank 1 on channel 0 in threadblocks 0 and 1; it must be one"),
    "two peers": (_two_peers, "rank 0 threadblock 3 sends to ranks 1 and 2; it must be one"),
    "two sources": (_two_sources, "rank 0 threadblock 4 receives from ranks 1 and 2; it must be one"),
    "two channels": (_two_channels, "rank 0 threadblock 0 is on channels 0 and 1; it must be one"),
    "negative": (lambda s: s.chunk(0, "i", 0).copy(1, "o", 0, sendtb=-1), "sendtb -1; it must be 0 to"),
    "stays": (lambda s: s.chunk(0, "i", 0).copy(0, "o", 0, recvtb=1), "recvtb 1 of what stays on rank 0"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_impossible_choices_are_refused(mistake: str) -> None:
    script = Script("x", "broadcast", 3, chunks=2)
    for r in range(3):
        script.chunk(0, "i", 0, 2).copy(r, "o", 0)
    make_mistake, message = MISTAKES[mistake]

    def compiled() -> None:
        make_mistake(script)
        compile_instructions(script.instructions(), without=("prune",))

    with pytest.raises(InputError, match=message):
        compiled()


def build(seed: int, manual: bool) -> Script:
    """Return a script with random moves; with `manual`, in threadblocks of one or both directions of a connection."""
    rng = random.Random(seed)
    script = Script("random", "allreduce", 3, chunks=3, inplace=False)
    offset = rng.randint(0, 1)
    for r in range(3):
        script.chunk(r, "i", 0, 3).copy(r, "o", 0)
    for _ in range(rng.randint(2, 12)):
        count = rng.randint(1, 2)
        source = script.chunk(rng.randrange(3), "o", rng.randint(0, 3 - count), count)
        target, index, adds, channel = (
            rng.randrange(3),
            rng.randint(0, 3 - count),
            rng.random() < 0.5,
            rng.randint(0, 1),
        )
        if target == source.rank and abs(index - source.index) < count:
            continue
        chosen_blocks: dict[str, int] = {}
        if target != source.rank:
            chosen_blocks = {
                "channel": channel,
                "sendtb": 4 * target + 2 * channel,
                "recvtb": 4 * source.rank + 2 * channel + offset,
            }
        elif rng.random() < 0.5:
            chosen_blocks = {"sendtb": 20}
        chosen_blocks = chosen_blocks if manual else {}
        if adds:
            script.chunk(target, "o", index, count).reduce(source, **chosen_blocks)
        else:
            source.copy(target, "o", index, **chosen_blocks)
    return script


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_with_chosen_threadblocks_give_the_same_result(seed: int) -> None:
    plain = outcome(build(seed, False), seed)
    assert outcome(build(seed, True), seed) == plain
    script = build(seed, True)
    script.instances, script.interleaved = 2, True
    assert outcome(script, seed) == spread(plain, [[2 * c, 2 * c + 1] for c in range(3)])
    for target in TARGETS:
        ir = build(seed, True).instructions()
        program = compile_instructions(ir, target_named(target).limits).program
        assert {finding.kind for finding in check(program, ir.goal).findings} <= {"wrong result"}
