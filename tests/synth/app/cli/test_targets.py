"""A target is one row, and one more for a format of its own: every command then has it and says how it is loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from emit.findings import Verdict
from emit.formats import PROGRAM_FORMATS, Format, verify_file
from emit.goal import Goal
from emit.library import load_index
from emit.msccl.format import write_msccl
from emit.msccl.read import read_msccl
from emit.program import Program
from emit.targets import TARGETS, Target
from tests import EXAMPLES
from tests.readme.blocks import all_text
from tests.synth.app.cli.calling import Call
from topologies.errors import InputError


class ToyModule:
    """A module of a format whose files wrap MSCCL XML."""

    def write(self, program: Program, goal: Goal | None, _: Target, nodes: Sequence[int] | None, *calls: object) -> str:
        return json.dumps({"toy": write_msccl(program, goal), "nodes": nodes, "inplace": calls[0]}) + "\n"

    def verify(self, path: Path, *_: object) -> Verdict:
        try:
            read_msccl(json.loads(path.read_text())["toy"])
        except (InputError, ValueError) as error:
            return Verdict("not readable", (str(error),))
        return Verdict("right", ("right: as every toy",))

    def restate(self, text: str, *_: object) -> str:
        raise InputError(f"{text[:20]}: cannot be restated; it must be written anew")

    def describe(self, *_: object) -> str:
        return "a toy"

    def largest_message(self, _: str) -> None:
        """Return None, since there is no limit."""

    def threadblocks(self, *_: object) -> list[int]:
        return [1] * 4


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> str:
    """Register a target and its format for one test."""
    form = Format("toy", "Toy", "a toy", ".toy", b"toy", ToyModule)
    row = replace(
        TARGETS["executor-nccl"], name="toy", reader="nobody", load="TOY_DIR=out/toys", format="toy", folder="toys",
        suffix=".toy", collectives={"allgather": "all together now"}, runs_here=False,
    )  # fmt: skip
    monkeypatch.setitem(PROGRAM_FORMATS, "toy", form)
    monkeypatch.setitem(TARGETS, "toy", row)
    return "toy"


def test_a_row_makes_a_target_of_every_command(toy: str, synth: Call, working_folder: Path) -> None:
    answer = synth("allgather", "--topo", "ring:4", "--engine", "route", "--target", toy, "--proof")
    assert (answer.code, answer.err) == (0, "")
    entries = load_index(working_folder / "out")
    assert {entry.target for entry in entries} == {toy}
    assert {path.suffix for path in (working_folder / "out" / "toys").iterdir()} == {".toy"}
    assert synth("verify", entries[0].path).out.splitlines()[0] == f"{entries[0].path}: right"
    stored = next((working_folder / "out" / "schedules").glob("*.synth"))
    for arguments, name in (
        (("lower", stored, "--target", toy), stored.with_suffix(".toy").name),
        (("compile", EXAMPLES / "allgather.py", "--target", toy), "allgather.toy"),
        (("compile", EXAMPLES / "allgather.py", "-o", "a.xml"), "a.xml"),
        (("convert", "a.xml", "b.toy"), "b.toy"),
        (("convert", "a.xml", "c.toy", "--target", toy), "c.toy"),
        (("optimize", "a.xml", "--target", toy), "a-optimized.toy"),
    ):
        answer = synth(*arguments)
        assert (answer.code, answer.err) == (0, ""), arguments
        assert name.endswith(".xml") or verify_file(working_folder / name).status == "right"
    refused = synth("compile", EXAMPLES / "ring.py", "--target", toy)
    assert "has no name for allreduce" in refused.err
    assert "is a toy" in synth("simulate", "b.toy", "--topo", "ring:4").err


def test_an_unknown_target_is_refused(synth: Call) -> None:
    for arguments in (
        ("allgather", "--topo", "ring:4", "--target", "toy"),
        ("compile", EXAMPLES / "ring.py", "--target", "toy"),
    ):
        answer = synth(*arguments)
        assert (answer.code, answer.out, len(answer.err.splitlines())) == (2, "", 1)
        assert all(name in answer.err for name in ("toy", *TARGETS))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_readme_and_the_help_agree_with_the_row(target: Target, synth: Call) -> None:
    rows = [line for line in all_text().splitlines() if line.startswith(f"| `{target.folder}/NAME{target.suffix}` |")]
    assert len(rows) == 1
    assert all(message in rows[0] for message in (f"| `{target.name}` | {target.reader}", f"| `{target.load}`"))
    for command in ("allreduce", "compile", "lower", "convert"):
        option = "--help-all" if command == "allreduce" else "--help"
        assert target.load.split()[-1] in "".join(synth(command, option).out.split())
