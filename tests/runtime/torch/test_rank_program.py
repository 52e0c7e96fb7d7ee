"""A rank's own part of a program: right for every example, however early or late messages are copied."""

from __future__ import annotations

import threading
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

from tests import EXAMPLES

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emit.compiler.compile import compile_instructions
from emit.language import Script, load_scripts
from emit.program import ROOTED, Gpu, Program, Step, ThreadBlock
from runtime.algorithms.built_in import built_in, names
from runtime.torch.failures.apart import PARTS_FROM_BYTES
from runtime.torch.programs.rank_program import RankProgram, rank_program
from runtime.torch.programs.run import run
from runtime.torch.programs.transport import Transport
from tests.runtime.torch.threads import run_ranks
from topologies.errors import InputError

CASES: list[tuple[str, dict[str, Any]]] = [
    ("ring", {"ranks": 3, "instances": 2}),
    ("allpairs", {"ranks": 4, "passes": 1}),
    ("allgather", {"ranks": 4, "way": "doubling"}),
    ("hierarchical", {"nodes": 2, "gpus": 2}),
    ("alltoall", {"nodes": 2, "gpus": 2, "steps": 2}),
    ("alltoall", {"nodes": 2, "gpus": 2, "steps": 3}),
]


def programs() -> list[Program]:
    examples = [
        compile_instructions(
            load_scripts(EXAMPLES / f"{name}.py", [f"{k}={v}" for k, v in options.items()])[0].instructions()
        ).program
        for name, options in CASES
    ]
    for collective in ("allreduce", "allgather", "reducescatter", "alltoall", *sorted(ROOTED)):
        for ranks in (2, 3, 4, 5):
            for name in names(collective, ranks):
                examples.append(built_in(collective, name, ranks, ranks - 1 if collective in ROOTED else 0))
    return examples


PROGRAMS = programs()


class Post:
    """Messages in memory.

    If `early`, they are copied as soon as both sides are there; otherwise not before the receiver waits.
    """

    def __init__(self, early: bool) -> None:
        self.early, self.change = early, threading.Condition()
        self.sent: dict[tuple[int, int, int], list[torch.Tensor]] = {}
        self.wanted: dict[tuple[int, int, int], list[torch.Tensor]] = {}

    def end(self, rank: int) -> End:
        return End(self, rank)


class End:
    """A rank's endpoint, with the interface of the wrapped back end."""

    def __init__(self, post: Post, rank: int) -> None:
        self.post, self.rank = post, rank

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Message:
        return Message(self.post, (self.rank, peer, tag), self.post.sent, tensors[0])

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Message:
        return Message(self.post, (peer, self.rank, tag), self.post.wanted, tensors[0])


class Message:
    def __init__(
        self, post: Post, key: tuple[int, int, int], side: dict[Any, list[torch.Tensor]], values: torch.Tensor
    ) -> None:
        self.post, self.key = post, key
        with post.change:
            place = side.setdefault(key, [])
            self.number = len(place)
            place.append(values)
            self.receives = side is post.wanted
            if post.early:
                self._copy()
            post.change.notify_all()

    def _copy(self) -> bool:
        out, into = self.post.sent.get(self.key, []), self.post.wanted.get(self.key, [])
        if min(len(out), len(into)) <= self.number:
            return False
        assert out[self.number].shape == into[self.number].shape
        into[self.number].copy_(out[self.number])
        return True

    def wait(self, *_: Any) -> None:
        if not self.receives:
            return
        with self.post.change:
            ready = self.post.change.wait_for(lambda: len(self.post.sent.get(self.key, [])) > self.number, timeout=20)
            assert ready, "nothing came"
            if not self.post.early:
                self._copy()


def executed(
    parts: list[RankProgram],
    elements: int,
    early: bool,
    threads_from: int = PARTS_FROM_BYTES,
    op: str = "sum",
) -> list[str]:
    """Return the ranks with a wrong result after all parts have run, with a thread each."""
    p = parts[0].program
    n, c, root = p.nranks, p.collective, p.root
    block = elements * (n if c in ("reducescatter", "alltoall") else 1)
    inputs = [torch.arange(block, dtype=torch.int64) * (r + 2) + r for r in range(n)]
    if c == "scatter":
        inputs = [torch.arange(elements * n, dtype=torch.int64) if r == root else None for r in range(n)]
    outputs = [torch.zeros(size, dtype=torch.int64) for size in {
        "allgather": [elements * n] * n, "reducescatter": [elements] * n, "alltoall": [elements * n] * n,
        "gather": [elements * n if r == root else 0 for r in range(n)]}.get(c, [elements] * n)]  # fmt: skip
    before = [None if g is None else g.clone() for g in inputs]
    post = Post(early)
    faults: list[str] = []

    def rank(r: int) -> None:
        out = outputs[r]
        if c in ("allreduce", "broadcast"):
            out = inputs[r]
        elif c == "reduce":
            out = inputs[r] if r == root else None
        elif c == "gather" and r != root:
            out = None
        try:
            transport = Transport(post.end(r), range(n), r, 0, "a test")
            run(parts[r], inputs[r], out, elements, op, transport, threads_from)
        except Exception as error:
            faults.append(f"rank {r}: {error}")

    run_ranks(n, rank)
    for r in range(n):
        got, start = (inputs[r] if c in ("allreduce", "broadcast", "reduce") else outputs[r]), before[r]
        if c in ("allreduce", "reduce"):
            full = torch.stack(before).sum(0)
            expected = full if c == "allreduce" or r == root else start
        elif c == "reducescatter":
            expected = torch.stack(before).sum(0)[r * elements : (r + 1) * elements]
        elif c == "broadcast":
            expected = before[root]
        elif c == "alltoall":
            expected = torch.cat([b[r * elements : (r + 1) * elements] for b in before])
        elif c == "scatter":
            expected = before[root][r * elements : (r + 1) * elements]
        else:
            expected = torch.cat(before) if c == "allgather" or r == root else got
        if not torch.equal(got, expected):
            faults.append(f"rank {r}: {got.tolist()[:9]}, must be {expected.tolist()[:9]}")
        if c in ("allgather", "reducescatter", "alltoall", "gather") and not torch.equal(inputs[r], start):
            faults.append(f"rank {r}: its input is spoilt")
    return faults


@settings(max_examples=60)
@given(st.sampled_from(PROGRAMS), st.integers(0, 6), st.integers(0, 3), st.booleans(), st.booleans())
def test_every_program_is_right(program: Program, whole: int, more: int, early: bool, threads: bool) -> None:
    parts = [rank_program(program, rank) for rank in range(program.nranks)]
    chunks = program.nchunks_per_loop
    elements = whole * chunks + more
    if parts[0].fits(elements) and elements:
        assert executed(parts, elements, early, 0 if threads else 1 << 60) == []


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: f"{p.collective}-{p.name}-{p.nranks}")
@pytest.mark.parametrize("least", [0, 1 << 60], ids=["threads", "one"])
def test_each_program_on_an_odd_count(program: Program, least: int) -> None:
    parts = [rank_program(program, rank) for rank in range(program.nranks)]
    elements = 3 * program.nchunks_per_loop + 1
    if not parts[0].fits(elements):
        elements -= 1
    for early in (False, True):
        assert executed(parts, elements, early, least) == []


def test_a_send_without_its_copy_is_noticed() -> None:
    steps = [Step("s", "i", 0, "o", -1, 1), Step("rrc", "i", 0, "i", 0, 1)]
    gpus = [Gpu(1, 0, 0, [ThreadBlock(1 - rank, 1 - rank, 0, steps)]) for rank in range(2)]
    program = Program("swap", "allreduce", "Simple", 2, 1, True, False, gpus)
    parts = [rank_program(program, rank) for rank in range(2)]
    assert [step.must_copy for part in parts for step in part.steps] == [True, False] * 2
    assert not any(executed(parts, 12, early=False) for _ in range(20))
    spoilt = [replace(part, steps=tuple(replace(step, must_copy=False) for step in part.steps)) for part in parts]
    assert any(executed(spoilt, 12, early=False) for _ in range(20))


def test_a_ring_sends_nothing_twice() -> None:
    parts = [rank_program(built_in("allreduce", "ring", 4), rank) for rank in range(4)]
    assert not any(step.must_copy for part in parts for step in part.steps)


def test_a_receive_before_its_time_is_noticed() -> None:
    steps = [
        Step("s", "i", 0, "o", -1, 1),
        Step("cpy", "i", 0, "s", 0, 1),
        Step("r", "i", -1, "i", 0, 1),
        Step("re", "s", 0, "i", 0, 1),
    ]
    gpus = [Gpu(1, 0, 1, [ThreadBlock(1 - rank, 1 - rank, 0, steps)]) for rank in range(2)]
    program = Program("aside", "allreduce", "Simple", 2, 1, True, False, gpus)
    parts = [rank_program(program, rank) for rank in range(2)]
    assert not any(step.may_post_early for part in parts for step in part.steps)
    assert not any(executed(parts, 12, early=True) for _ in range(20))
    spoilt = [
        replace(part, steps=tuple(replace(step, may_post_early=step.op == "r") for step in part.steps))
        for part in parts
    ]
    assert any(executed(spoilt, 12, early=True) for _ in range(20))


def test_a_program_that_stops_is_refused() -> None:
    # Both wait for the other before they send.
    steps = [Step("r", "i", -1, "o", 0, 1), Step("s", "i", 0, "o", -1, 1)]
    gpus = [Gpu(2, 2, 0, [ThreadBlock(1 - rank, 1 - rank, 0, steps)]) for rank in range(2)]
    program = Program("stuck", "alltoall", "Simple", 2, 2, False, True, gpus)
    with pytest.raises(InputError, match=r"stuck: stops before its end: rank 0 tb 0 step 0"):
        rank_program(program, 0)


def _sums(parts: list[RankProgram], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the sums of every rank of an all-reduce."""
    n, post = len(parts), Post(True)
    outputs = [tensor.clone() for tensor in inputs]

    def rank(r: int) -> None:
        transport = Transport(post.end(r), range(n), r, 0, "a test")
        run(parts[r], outputs[r], outputs[r], len(inputs[r]), "sum", transport)

    run_ranks(n, rank)
    return outputs


def _one_step(ranks: int, in_scratch: bool) -> Program:
    """Build an all-reduce in one step, whose ranks add what comes to their own data, from scratch or at once."""
    script = Script("one-step", "allreduce", ranks, chunks=2)
    inputs = [script.chunk(r, "i", 0, 2) for r in range(ranks)]
    if in_scratch:
        copies = {(r, p): inputs[r].copy(p, "s", 2 * r) for r in range(ranks) for p in range(ranks) if p != r}
        for r in range(ranks):
            for p in range(ranks):
                if p != r:
                    inputs[r] = inputs[r].reduce(copies[p, r])
        return compile_instructions(script.instructions()).program
    sends = [Step("s", "i", 0, "o", -1, 2, has_dep=True)]
    gpus = []
    for r in range(ranks):
        peers = [(r + shift) % ranks for shift in range(1, ranks)]
        blocks = [ThreadBlock(peer, -1, 0, sends) for peer in peers]
        # What it sends must have left before it adds to it.
        steps, last = [Step("nop", dep_tb=tb, dep_step=0) for tb in range(ranks - 2)], (ranks - 2, 0)
        for tb, peer in enumerate(peers, ranks - 1):
            steps.append(Step("rrc", "i", 0, "i", 0, 2, *last, has_dep=peer != peers[-1]))
            blocks.append(ThreadBlock(-1, peer, 0, steps))
            steps, last = [], (tb, len(steps) - 1)
        gpus.append(Gpu(2, 0, 0, blocks))
    return Program("one-step", "allreduce", "Simple", ranks, 2, True, False, gpus)


def test_all_ranks_get_the_same_bits() -> None:
    """Check all-reduces of random floats: replicas of a model must not drift apart."""
    torch.manual_seed(0)
    programs = [built_in("allreduce", name, n) for n in (2, 3, 4, 8) for name in names("allreduce", n)]
    programs += [_one_step(n, in_scratch) for n in (2, 3, 5) for in_scratch in (False, True)]
    for program in programs:
        parts = [rank_program(program, rank) for rank in range(program.nranks)]
        assert parts[0].is_one_step == (program.name == "one-step" and len(parts) > 2)
        count = 3 * program.nchunks_per_loop + parts[0].is_one_step
        inputs = [torch.randn(count) * 10.0 ** torch.randint(-3, 4, (count,)) for _ in parts]
        outputs = _sums(parts, inputs)
        assert all(torch.equal(outputs[0], output) for output in outputs), (program.name, len(parts))
        torch.testing.assert_close(outputs[0], torch.stack(inputs).sum(0), rtol=1e-4, atol=1e-3)


def test_without_the_order_of_ranks_the_bits_differ() -> None:
    torch.manual_seed(0)
    parts = [rank_program(_one_step(4, True), rank) for rank in range(4)]
    spoilt = [replace(part, is_one_step=False) for part in parts]
    outputs = _sums(spoilt, [torch.randn(999) for _ in parts])
    assert not all(torch.equal(outputs[0], output) for output in outputs)
