"""Custom collectives in torch: a hand-written program of the library, called by its name."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from emit.compiler.compile import compile_instructions
from emit.formats import write_program
from emit.language import load_script
from emit.library.saving.add import Addition, add
from emit.library.selection.lookup import goal_path, goal_text
from emit.targets import TARGETS, target_named
from runtime.torch.choice import Chooser
from tests import EXAMPLES, ROOT
from tests.hang import HANG_S
from topologies.errors import InputError

RANKS = 2


@pytest.fixture
def neighbour_copy() -> Addition:
    """Return a program that copies to the next of two ranks, for up to 1 MiB."""
    ir = load_script(EXAMPLES / "alltonext.py", ["nodes=1", "gpus=2"]).instructions()
    ir.header = replace(ir.header, max_bytes=1 << 20)
    assert ir.goal is not None
    return Addition(compile_instructions(ir, target_named("msccl").limits).program, ir.goal, TARGETS["msccl"])


def test_one_file_with_its_goal_is_a_library(neighbour_copy: Addition, tmp_path: Path) -> None:
    path = tmp_path / "next.xml"
    path.write_text(write_program(neighbour_copy.program, neighbour_copy.goal, neighbour_copy.target))
    assert neighbour_copy.goal is not None
    goal_path(path).write_text(goal_text(neighbour_copy.goal))
    programs = Chooser("auto", path).custom("alltonext", (4, 5))
    assert [program.nranks for _, program in programs] == [RANKS]
    # The program is checked against its goal.
    goal_path(path).write_text(goal_text(neighbour_copy.goal).replace('"o", "o"', '"o", "i"', 1))
    with pytest.raises(InputError, match="library"):
        Chooser("auto", path)


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed: make torch runs this")
def test_a_custom_collective_by_its_name(neighbour_copy: Addition, tmp_path: Path) -> None:
    add([neighbour_copy], tmp_path / "mine")
    environment = os.environ | {
        "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "SYNTH_LIBRARY": str(tmp_path / "mine"), "SYNTH_CHECK": "0",
    }  # fmt: skip
    results = [tmp_path / f"{rank}" for rank in range(RANKS)]
    command = [sys.executable, "-m", "tests.runtime.torch.custom"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(RANKS), f"file://{tmp_path / 'store'}", str(result)],
            env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank, result in enumerate(results)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=HANG_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert all(result.exists() for result in results), "\n".join(outputs)
