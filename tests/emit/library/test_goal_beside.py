"""Tests of the goal of a file that does not state it: it comes from an index, which may be hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from emit.formats import verify_file
from emit.library.entry import INDEX
from emit.library.index import index_text, load_index
from emit.library.selection.lookup import goal_beside
from tests.emit.library.made_indices import entry_row
from topologies.errors import InputError

GOAL = {"nranks": 2, "initial": [[0], ["i"], [0], [0], [0]], "required": [[1], ["o"], [0], [0], [0]]}
SEND = """<algo name="one" proto="Simple" nchannels="1" nchunksperloop="1" ngpus="2" coll="custom" inplace="0" \
outofplace="1" minBytes="0" maxBytes="0">
  <gpu id="0" i_chunks="1" o_chunks="1" s_chunks="0">
    <tb id="0" send="1" recv="-1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="1" o_chunks="1" s_chunks="0">
    <tb id="0" send="-1" recv="0" chan="0">
      <step s="0" type="r" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
</algo>
"""


@pytest.fixture
def custom(tmp_path: Path) -> Path:
    """Return a file, in a library, that does not state its own goal."""
    (tmp_path / "msccl-original").mkdir()
    path = tmp_path / "msccl-original" / "a.xml"
    path.write_text(SEND)
    row = entry_row(collective="halo", target="msccl", file="msccl-original/a.xml", goal=GOAL)
    (tmp_path / INDEX).write_bytes(index_text([row]))
    return path


def test_the_goal_of_a_custom_file(custom: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the goal comes from an index beside the file or in the folder above."""
    assert verify_file(custom, goal_beside(custom)).status == "right"
    monkeypatch.chdir(custom.parent)
    assert goal_beside("a.xml") is not None
    assert goal_beside("../msccl-original/a.xml") is not None
    assert goal_beside("b.xml") is None
    (custom.parent.parent / INDEX).unlink()
    assert goal_beside("a.xml") is None
    old = {"format": "synth-index-1", "algorithms": [{"file": "a.xml", "goal": GOAL}]}
    (custom.parent / INDEX).write_text(json.dumps(old))
    assert goal_beside("a.xml") is not None


def test_a_foreign_index_beside_the_file_hides_no_goal(custom: Path) -> None:
    for text in (
        "",
        "[]",
        '{"algorithms": "mine"}',
        "[" * 100_000,
        '{"algorithms": [{"file": "a.xml", "goal": 3}]}',
    ):
        (custom.parent / INDEX).write_text(text)
        assert goal_beside(custom) is not None
    foreign_index = {"algorithms": [3, {"file": ["a.xml"]}, {"file": "b.xml", "goal": GOAL}]}
    (custom.parent / INDEX).write_text(json.dumps(foreign_index))
    assert goal_beside(custom) is not None


BAD_GOALS = [
    3, [], {}, {"nranks": 2}, GOAL | {"nranks": 10**12}, GOAL | {"nranks": "2"}, GOAL | {"nranks": 1},
    GOAL | {"initial": [[0]] * 5}, GOAL | {"initial": [[10**30], ["i"], [0], [0], [0]]},
    GOAL | {"initial": [[0], ["x"], [0], [0], [0]]}, GOAL | {"initial": [["0"], ["i"], [0], [0], [0]]},
    GOAL | {"initial": [[0.7], ["i"], [0], [0], [0]]}, GOAL | {"initial": [[0, 1], ["i"], [0], [0], [0]]},
    GOAL | {"required": [[[0]], ["i"], [0], [0], [0]]}, GOAL | {"required": [[0], [{}], [0], [0], [0]]},
    GOAL | {"required": [[0], ["o"], [-1], [0], [0]]}, GOAL | {"required": [[0], ["o"], [0], [2], [0]]},
]  # fmt: skip


@pytest.mark.parametrize("goal", BAD_GOALS, ids=range(len(BAD_GOALS)))
def test_a_wrong_goal(custom: Path, goal: Any) -> None:
    """Check that a wrong goal is refused by the entry, and ignored when the file is verified."""
    row = entry_row(collective="halo", target="msccl", file="msccl-original/a.xml", goal=goal)
    (custom.parent.parent / INDEX).write_bytes(index_text([row]))
    assert goal_beside(custom) is None
    with pytest.raises(InputError, match="goal") as error:
        load_index(custom.parent.parent)[0].goal()
    assert str(error.value).isprintable()


@pytest.mark.parametrize("place", [1, 40_000, (1 << 20) - 1])
@pytest.mark.parametrize("nranks", [2, 3, 1 << 20])
def test_a_goal_with_cells_out_of_range(custom: Path, place: int, nranks: int) -> None:
    goal = GOAL | {"nranks": nranks, "required": [[nranks - 1], ["o"], [place], [0], [0]]}
    row = entry_row(collective="halo", target="msccl", file="msccl-original/a.xml", goal=goal)
    (custom.parent.parent / INDEX).write_bytes(index_text([row]))
    assert verify_file(custom, goal_beside(custom)).status != "right"
