"""The core of the back end knows no c10d: another library of collectives brings its messages, and it works."""

from __future__ import annotations

import ast
import threading
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import pytest

from tests import ROOT

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install 'synth-collectives[torch]'", allow_module_level=True)

import torch

from runtime.torch.blocks import Buffers, exchange_blocks
from runtime.torch.choice import Method
from runtime.torch.core import Core, Terms, asked_method
from runtime.torch.failures.lost import FailureWatch
from runtime.torch.table import Call
from tests.runtime.torch.test_rank_program import End, Post

FOLDER = ROOT / "runtime" / "torch"
FACE = {
    "process_group",
    "dispatch",
    "pass_through",
    "operations",
    "registered",
    "untraced",
    "work",
    "launch",
}  # all else is the core


class Rank(End):
    """A rank of a library of its own."""

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
        for each in self.begun:
            each.wait()


def imported(path: Any) -> set[str]:
    """What a file imports, `from x import y` as x.y."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{name.name}" for name in node.names}
    return found


def test_the_core_imports_neither_c10d_nor_its_face() -> None:
    stems = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert stems > FACE
    shut = ("torch.distributed", "torch._C", *(f"runtime.torch.{name}." for name in FACE))
    for stem in stems - FACE:
        wrong = {name for name in imported(FOLDER / f"{stem}.py") if f"{name}.".startswith(shut)}
        assert not wrong, f"{stem}: {wrong}"
    assert any(name.startswith("torch.distributed") for name in imported(FOLDER / "work.py"))  # it would be seen


def test_ranks_of_another_library_run_our_algorithms() -> None:
    n, post = 4, Post(True)
    faults: list[BaseException] = []

    def rank(me: int) -> None:
        try:
            core = Core(FailureWatch(me, range(n), Rank(post, me)))
            asked_method.set(Method("synth"))
            tensor = torch.arange(1000.0) + me
            buffers = Buffers([tensor], [tensor], 1000, in_place=True)
            call = Call("allreduce", 4000, "float32", core.ranks, inplace=True)
            choice, part = core.choose(call, buffers, "avg")
            assert part is not None, choice.reason
            task = core.execute(
                core.issue(call, "allreduce"), part, buffers, "avg", Terms(timeout=timedelta(seconds=9))
            )
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
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults
