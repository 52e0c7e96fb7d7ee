"""Tests of GOAL text: files of other generators are read, and wrong files are refused with the line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from emit.loggopsim.format import read, verify, write
from emit.operations import CALC, RECV, SEND, Operation
from synth.app.cli import cli
from tests.emit.small_programs import ring_allgather

FOREIGN = """// made by another
num_ranks 2

rank 1 {
  a: recv 8b from 0 tag 3 cpu 1 nic 0
  b:calc 50
  b requires a
  send 1b to 0
}
rank 0 {
l1: send 8b to 1 tag 3
l2: recv 1b from 1
}
"""


def test_a_file_of_another_generator_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.goal"
    path.write_text(FOREIGN)
    assert read(path) == (
        [
            [Operation(SEND, (), 1, 3, 8), Operation(RECV, (), 1, 0, 1)],
            [Operation(RECV, (), 0, 3, 8), Operation(CALC, (0,)), Operation(SEND, (), 0, 0, 1)],
        ],
        None,
    )


REFUSED = {
    "": "is empty; it must begin with num_ranks N",
    "rank 0 {\n}\n": ":1: 'rank 0 {'; it must be num_ranks N first",
    "num_ranks 0\n": ":1: 'num_ranks 0'; it must be num_ranks N first",
    "num_ranks 2\nrank 0 {\n}\n": "rank 1 is missing",
    "num_ranks 1\nrank 0 {\n": "rank 0 has no }",
    "num_ranks 1\nrank 0 {\n}\nrank 0 {\n}\n": ":4: 'rank 0 {'; it must be rank R {, each of 0..0 once",
    "num_ranks 1\nrank 0 {\nsend 8 to 1\n}\n": ":3: 'send 8 to 1'; it must be send Nb to R",
    "num_ranks 1\nrank 0 {\na: calc 1\na: calc 2\n}\n": ":4: label 'a' is there already",
    "num_ranks 1\nrank 0 {\na: calc 1\na requires b\n}\n": ":5: rank 0 has no label 'b'",
    f"num_ranks 1\nrank 0 {{\na: calc 1\na requires {'b' * 5000}\n}}\n": ":5: rank 0 has no label 'bbb",
    f'// <algo {"n" * 5000}="{"v" * 300}">\nnum_ranks 1\nrank 0 {{\n}}\n': "line 1: 'nnn",
    "num_ranks 1\nrank 0 {\na: calc 1\nb: calc 1\na irequires b\n}\n": ":5: 'a irequires b'; it must be",
}


@pytest.mark.parametrize("text", REFUSED)
def test_wrong_goal_text_is_refused_with_its_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.goal"
    path.write_text(text)
    verdict = verify(path)
    assert verdict.status == "not readable"
    assert REFUSED[text] in verdict.lines[0]
    assert len(verdict.lines) == len(verdict.lines[0].splitlines()) == 1
    assert len(verdict.lines[0]) < 500


def test_operations_without_a_program_are_wrong_in_a_verdict(tmp_path: Path) -> None:
    """No program is counted, on a topology or on none, and no exception ends the command."""
    path = tmp_path / "a.goal"
    path.write_text("num_ranks 2\nrank 0 {\nsend 8b to 1\n}\nrank 1 {\n}\n")
    for placed in ([], ["--topo", "ring:2"]):
        answer = CliRunner().invoke(cli, ["verify", str(path), *placed])
        assert (answer.exit_code, answer.exception.__class__) == (1, SystemExit)
        assert "unpaired: rank 0 sends 1 messages" in answer.output


def test_the_text_is_for_txt2bin() -> None:
    (end, content), = write(ring_allgather(2), 64)  # fmt: skip
    lines = content.decode().splitlines()
    assert (end, lines[0]) == (".goal", "num_ranks 2")
    statements = [line for line in lines[1:] if line and not line.startswith("//")]
    assert statements == [
        "rank 0 {", "l0: send 32b to 1 tag 0", "l1: recv 32b from 1 tag 0", "l1 requires l0", "}",
        "rank 1 {", "l0: send 32b to 0 tag 0", "l1: recv 32b from 0 tag 0", "l1 requires l0", "}",
    ]  # fmt: skip
