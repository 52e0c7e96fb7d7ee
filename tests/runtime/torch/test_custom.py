"""Custom collectives in torch: a hand-written program of the library, called by its name."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from emit.compiler.compile import compile_instructions
from emit.formats import write_program
from emit.language import load_scripts
from emit.library.saving.add import Addition, add
from emit.library.selection.lookup import goal_path, goal_text
from emit.targets import TARGETS, target_named
from runtime.torch.choice import Chooser
from tests import EXAMPLES
from tests.runtime.torch.ranks import run_ranks
from topologies.errors import InputError

RANKS = 2


@pytest.fixture
def neighbour_copy() -> Addition:
    """Return a program that copies to the next of two ranks, for up to 1 MiB."""
    ir = load_scripts(EXAMPLES / "alltonext.py", ["nodes=1", "gpus=2"])[0].instructions()
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
    environment = os.environ | {"SYNTH_LIBRARY": str(tmp_path / "mine"), "SYNTH_CHECK": "0"}
    results = [tmp_path / f"{rank}" for rank in range(RANKS)]
    ran = run_ranks(["tests.runtime.torch.custom"], f"file://{tmp_path / 'store'}", results, environment)
    assert all(result.exists() for result in results), "\n".join(output for _, output in ran)
