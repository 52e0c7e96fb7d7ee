"""The core of the back end does not depend on c10d: it works with the messages of another library of collectives."""

from __future__ import annotations

import ast
from dataclasses import replace
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

import torch

import synth
from emit.compiler.compile import compile_instructions
from emit.msccl.format import write_msccl
from runtime.algorithms.built_in import built_in
from runtime.torch.choice import Method
from runtime.torch.core import Core, Terms
from runtime.torch.counters import counters
from runtime.torch.failures.lost import FailureWatch
from runtime.torch.programs.blocks import Blocks, Buffers, exchange_blocks, gather_blocks, reduce_blocks
from runtime.torch.programs.transport import Transport
from runtime.torch.rank_choices import requested_method
from runtime.torch.table import TableCall
from synth.solvers.workers import Workers
from tests.runtime.torch.test_rank_program import End, Post
from tests.runtime.torch.threads import run_ranks
from tests.runtime.torch.uneven import relays

FOLDER = ROOT / "runtime" / "torch"
FACE = ("c10d.", "process_group.", "launch.")  # Everything else is the core.


class Rank(End):
    """A rank of another library."""

    def allgather(self, outputs: Any, inputs: Any) -> Any:
        n = len(outputs[0])
        begun = [self.recv([outputs[0][r]], r, -1) for r in range(n)]
        for peer in range(n):
            self.send(inputs, peer, -1)
        return All(begun)


class All:
    def __init__(self, begun: list[Any]) -> None:
        self.begun = begun

    def wait(self) -> None:
        for work in self.begun:
            work.wait()


def imported(path: Any) -> set[str]:
    """Return the imports of a file, with `from x import y` as x.y."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{name.name}" for name in node.names}
    return names


def test_the_core_imports_neither_c10d_nor_its_face() -> None:
    modules = {".".join(path.relative_to(FOLDER).with_suffix("").parts): path for path in FOLDER.rglob("*.py")}
    core = {name: path for name, path in modules.items() if not f"{name}.".startswith(FACE)}
    assert {"core", "tasks", "programs.run", "failures.lost"} <= set(core) < set(modules)
    shut = ("torch.distributed", "torch._C", *(f"runtime.torch.{name}" for name in FACE))
    for stem, path in core.items():
        wrong = {name for name in imported(path) if f"{name}.".startswith(shut)}
        assert not wrong, f"{stem}: {wrong}"
    # Such an import would be noticed.
    assert any(name.startswith("torch.distributed") for name in imported(modules["c10d.work"]))


def test_ranks_of_another_library_run_our_algorithms() -> None:
    n, post = 4, Post(True)

    def rank(me: int) -> None:
        core = Core(FailureWatch(me, range(n), Rank(post, me)))
        requested_method.set(Method("synth"))
        tensor = torch.arange(1000.0) + me
        buffers = Buffers([tensor], [tensor], 1000, in_place=True)
        call = TableCall("allreduce", 4000, "float32", core.ranks, inplace=True)
        choice, part = core.choices.choose(call, buffers, "avg")
        assert part is not None, choice.reason
        task = core.execute(core.issue(call, "allreduce"), part, buffers, "avg", Terms(timeout=timedelta(seconds=9)))
        into = [torch.zeros(me + r) for r in range(n)]
        parts = [torch.full((me + r,), float(me)) for r in range(n)]
        later = core.send_blocks(
            call, Buffers(parts, into, 0), lambda transport: exchange_blocks(transport, parts, into), "sum", Terms()
        )
        task.wait()
        later.wait()
        torch.testing.assert_close(tensor, torch.arange(1000.0) + (n - 1) / 2)
        assert [t.tolist() for t in into] == [[float(r)] * (me + r) for r in range(n)]
        core.lane.stop()

    run_ranks(n, rank)


def test_a_barrier_that_all_have_come_to_is_over_although_a_rank_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check what happens if the last rank to wait starts to wait after another one, which needs no more, has ended."""
    core = Core(FailureWatch(0, range(1), Rank(Post(True), 0)))
    gone: list[bool] = []
    monkeypatch.setattr(core.watch, "_in_vain", lambda _: bool(gone))

    def begin(_: bool) -> Any:
        gone.append(True)
        return lambda: False

    core.barrier(begin, "gloo", Terms(waits=True)).wait()
    with pytest.raises(RuntimeError, match="barrier"):  # No rank has come to the next one.
        core.barrier(begin, "gloo", Terms(waits=True)).wait()
    core.lane.stop()


def test_parts_that_were_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.torch.rank_choices._MOST_PARTS", 2)
    core = Core(FailureWatch(0, range(1), Rank(Post(True), 0)))
    programs = [replace(built_in("allreduce", "allpairs", 4), name=name) for name in "abc"]
    first_part = core.choices.part(programs[0])
    for program in (programs[1], programs[0], programs[2]):
        core.choices.part(program)
    assert core.choices.part(programs[0]) is first_part
    core.lane.stop()


def _exchange(sizes: list[list[int]]) -> str:
    """Run an all-to-all of these blocks on ranks that know their own only; return what ran, the same on all."""
    n, post = len(sizes), Post(True)

    def rank(me: int) -> None:
        core = Core(FailureWatch(me, range(n), Rank(post, me)))
        parts = [torch.full((sizes[me][r],), float(10 * me + r)) for r in range(n)]
        into = [torch.zeros(sizes[r][me]) for r in range(n)]
        buffers, call = Buffers(parts, into, 0), TableCall("alltoall", 0, "float32", core.ranks)
        assert "program" in core.choices.paths(call)
        core.run_blocks(call, "alltoall", Blocks.of(parts, into), buffers, True, Terms(True)).wait()
        assert [t.tolist() for t in into] == [[10.0 * r + me] * sizes[r][me] for r in range(n)]
        core.lane.stop()

    run_ranks(n, rank)
    return counters.last("alltoall")


def test_unequal_blocks_run_the_librarys_program_unless_they_are_too_unequal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 6
    *_, alltoall = relays(n)
    program = compile_instructions(alltoall.instructions()).program
    (tmp_path / "relayed.xml").write_text(write_msccl(program))
    monkeypatch.setenv("SYNTH_LIBRARY", str(tmp_path / "relayed.xml"))
    monkeypatch.setenv("SYNTH_BACKEND", "synth")
    assert _exchange([[(3 * a + b) % 4 for b in range(n)] for a in range(n)]) == "synth relayed"
    assert _exchange([[5] * n for _ in range(n)]) == "synth relayed"
    before = counters.text()
    lonely = [[0] * n for _ in range(n)]
    lonely[1][4] = 9  # All data uses one link, while the program shares it over other links.
    assert _exchange(lonely) == "synth direct"
    log_line = "not ours: alltoall, {} calls: blocks too unequal for relayed: sent directly"
    assert log_line.format(n) in counters.text()
    assert "too unequal" not in before


def _sized(sizes: list[int], method: Method, reduces: bool) -> str:
    """Run an all-gather or a reduce-scatter of blocks of these sizes on ranks that know all; return what ran."""
    n, post, collective = len(sizes), Post(True), "reducescatter" if reduces else "allgather"

    def rank(me: int) -> None:
        core = Core(FailureWatch(me, range(n), Rank(post, me)))
        requested_method.set(method)
        blocks = [torch.arange(float(size)) + 100 * me + 1000 * r for r, size in enumerate(sizes)]
        into = [torch.zeros(size) for size in sizes]
        buffers = Buffers(blocks, into[me : me + 1], sum(sizes)) if reduces else Buffers([blocks[me]], into, sum(sizes))
        call = TableCall(collective, buffers.size_bytes, "float32", core.ranks)
        part = core.choices.part_for_sizes(call, sizes)

        def work(transport: Transport) -> None:
            if reduces:
                reduce_blocks(transport, into[me], blocks, "avg", part)
            else:
                gather_blocks(transport, blocks[me], into, part)

        core.send_blocks(call, buffers, work, "avg" if reduces else "sum", Terms(True), part).wait()
        core.lane.stop()
        own = torch.arange(float(sizes[me])) + 1000 * me + 100 * (n - 1) / 2
        every = [torch.arange(float(size)) + 1100 * r for r, size in enumerate(sizes)]
        for got, expected in zip(into[me : me + 1] if reduces else into, [own] if reduces else every, strict=True):
            torch.testing.assert_close(got, expected)

    run_ranks(n, rank)
    return counters.last(collective)


def test_the_librarys_programs_for_the_proportions_of_sizes_serve_gathers_and_reduce_scatters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Workers(()) as no_workers:
        for collective in ("allgatherv", "reducescatterv"):
            answer = synth.synthesize(
                collective, "ring:4", sizes=[3000, 1000, 0, 2000], budget=0.5, engine="route", target="msccl",
                workers=no_workers,
            )  # fmt: skip
            answer.save(tmp_path, "msccl")
    monkeypatch.setenv("SYNTH_LIBRARY", str(tmp_path))
    for reduces in (False, True):
        for unit in (2, 20):
            assert _sized([3 * unit, unit, 0, 2 * unit], Method("synth"), reduces).startswith("synth ")
        assert _sized([6, 2, 0, 6], Method("synth"), reduces) == "one by one"  # Other proportions.
        assert _sized([2, 6, 0, 4], Method("synth"), reduces) == "one by one"  # Other ranks have these blocks.
        assert _sized([0, 0, 0, 0], Method("synth"), reduces) == "one by one"
        assert _sized([6, 2, 0, 4], Method("auto"), reduces) == "one by one"
