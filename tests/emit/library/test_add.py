"""Tests of adding programs to a library: each serves its range, and the library's files serve the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from emit.compiler.compile import compile_instructions
from emit.formats import verify_file
from emit.goal import Goal
from emit.language import Script, load_scripts
from emit.library.goals import goal_stated, state_goal
from emit.library.index import load_index
from emit.library.saving.add import Addition, add
from emit.library.selection.call import LibraryCall
from emit.library.selection.lookup import choose, goal_beside
from emit.targets import TARGETS, target_named
from tests import EXAMPLES
from topologies.errors import InputError
from topologies.load import load


def pair(name: str, low: int = 0, high: int = 0, target: str = "executor-nccl") -> Addition:
    """Return an all-reduce of two ranks."""
    script = Script(name, "allreduce", 2, min_bytes=low, max_bytes=high)
    script.chunk(1, "i", 0).reduce(script.chunk(0, "i", 0)).copy(0, "i", 0)
    return Addition(compile_instructions(script.instructions()).program, None, TARGETS[target])


def served(folder: Path) -> dict[str, tuple[int, int | None]]:
    """Return the range of each file, and check that the file states the index's range."""
    ranges = {}
    for entry in load_index(folder):
        program = verify_file(entry.path, entry.goal()).right_program(entry.file)
        assert (program.min_bytes, program.max_bytes or None) == (entry.min_bytes, entry.max_bytes)
        ranges[entry.path.stem] = (entry.min_bytes, entry.max_bytes)
    return ranges


def test_a_faster_program_replaces_existing_files(tmp_path: Path) -> None:
    add([pair("old")], tmp_path)
    add([pair("new", 1000, 2000), pair("newer", 2001, 3000)], tmp_path, anew=True)
    names = {key.removeprefix("allreduce-any-2ranks-"): value for key, value in served(tmp_path).items()}
    assert names == {"old": (0, 999), "new": (1000, 2000), "newer": (2001, 3000), "old-from3001": (3001, None)}
    for size, stem in ((999, "old"), (1000, "new"), (2000, "new"), (3001, "old-from3001")):
        entry = choose(load_index(tmp_path), LibraryCall("allreduce", 2, None, True), size)
        assert entry is not None
        assert entry.path.stem.endswith(f"-{stem}")
    add([pair("all")], tmp_path, anew=True)
    assert list(served(tmp_path)) == ["allreduce-any-2ranks-all"]
    assert [path.name for path in (tmp_path / "msccl").iterdir()] == ["allreduce-any-2ranks-all.xml"]


def test_adding_a_script_again_replaces_its_file(tmp_path: Path) -> None:
    add([pair("a", 0, 99)], tmp_path)
    before = (tmp_path / "index.json").read_bytes()
    add([pair("a", 0, 99)], tmp_path)
    assert (tmp_path / "index.json").read_bytes() == before
    add([pair("a", 50, 200)], tmp_path)
    assert sorted(served(tmp_path).values()) == [(0, 99), (100, 200)]
    add([pair("a", 50, 200)], tmp_path, anew=True)
    assert sorted(served(tmp_path).values()) == [(0, 49), (50, 200)]


def test_files_of_other_questions_are_kept(tmp_path: Path) -> None:
    """Check that entries of another topology, group, target or form are kept."""
    program = replace(pair("a").program, name="apart")
    add(
        [replace(pair("a"), topology=load("full:2")), replace(pair("a"), ranks=(3, 1)), pair("a", target="msccl")],
        tmp_path,
    )
    add([Addition(program, None, TARGETS["executor-nccl"])], tmp_path)
    entries = load_index(tmp_path)
    assert len(entries) == 4
    assert {(e.topology, e.group, e.target) for e in entries} == {
        ("full:2", (0, 1), "executor-nccl"), ("any", (3, 1), "executor-nccl"), ("any", (0, 1), "msccl"),
        ("any", (0, 1), "executor-nccl"),
    }  # fmt: skip


def test_two_programs_for_one_size_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a and b both serve 100 bytes"):
        add([pair("a", 0, 100), pair("b", 100, 0)], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def halves(name: str) -> Addition:
    """Return an all-reduce of two ranks in which each sums a half; it is faster than `pair`."""
    script = Script(name, "allreduce", 2, chunks=2)
    for own in (0, 1):
        script.chunk(1 - own, "i", own).reduce(script.chunk(own, "i", own)).copy(own, "i", own)
    return Addition(compile_instructions(script.instructions()).program, None, TARGETS["executor-nccl"])


def test_a_library_only_gets_better(tmp_path: Path) -> None:
    """Check that a program is added only at sizes where it is faster, and that the outcome is reported."""
    add([pair("slow", 0, 1 << 20), pair("slowest", (1 << 20) + 1)], tmp_path)
    fast = add([halves("fast")], tmp_path)
    ((path,),) = fast.files
    assert served(tmp_path) == {"allreduce-any-2ranks-fast": (0, None)}
    contents = {file: file.read_bytes() for file in tmp_path.rglob("*.*")}
    second = add([pair("slower")], tmp_path)
    assert second.files == [[]]
    assert second.remarks == ("kept 1 file of the library, no slower: all sizes",)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.*")} == contents
    forced = add([pair("slower", 5, 9)], tmp_path, anew=True)
    assert served(tmp_path)["allreduce-any-2ranks-slower"] == (5, 9)
    assert forced.remarks == ("kept 2 files of the library, no slower: up to 4 B, from 10 B",)
    add([pair("last")], tmp_path, anew=True)
    assert list(served(tmp_path)) == ["allreduce-any-2ranks-last"]
    assert not path.exists()


def test_existing_files_are_checked_before_comparison(tmp_path: Path) -> None:
    ((path,),) = add([halves("fast")], tmp_path).files
    path.write_text(path.read_text().replace('type="rrc', 'type="r', 1))
    result = add([pair("slow")], tmp_path)
    assert (len(result.files[0]), result.remarks[0].startswith("thrown out: msccl/")) == (1, True)
    assert not path.exists()


def test_another_network_of_the_same_name_is_another_question(tmp_path: Path) -> None:
    topology = load("full:2")
    add([replace(halves("fast"), topology=topology)], tmp_path)
    result = add([replace(pair("slow"), topology=replace(load("dgx-a100"), name="full:2"))], tmp_path)
    assert "1 file for another network or pattern of this name gave way" in result.remarks
    assert list(served(tmp_path)) == ["allreduce-full-2-2ranks-slow"]


def test_the_range_of_a_plan_is_cut(tmp_path: Path) -> None:
    add([pair("old", target="mscclpp")], tmp_path)
    ((path,),) = add([pair("new", 1000, 2000, target="mscclpp")], tmp_path, anew=True).files
    assert path.name == "allreduce-any-2ranks-new.json"
    ends = {(entry.min_bytes, entry.max_bytes) for entry in load_index(tmp_path)}
    assert {(0, 999), (1000, 2000)} < ends
    assert len(ends) == 3
    assert all(verify_file(entry.path).status == "right" for entry in load_index(tmp_path))


def test_the_index_states_a_custom_goal(tmp_path: Path) -> None:
    """Check that the index states a custom goal, also one with sums and with several places for one set."""
    goal = Goal.from_arrays(
        2,
        ([0, 1], ["i", "i"], [0, 0], [0, 1], [4, 4]),
        ([0, 0, 1, 1, 1], ["o"] * 5, [0, 0, 0, 0, 1], [0, 1, 0, 1, 1], [4, 4, 4, 4, 4]),
    )
    assert state_goal(goal_stated(state_goal(goal), "")) == state_goal(goal)
    script = Script("both", "custom", 2, chunks=2, goal=goal)
    script.chunk(1, "i", 0).copy(1, "o", 1)
    script.chunk(1, "i", 0).copy(1, "o", 0).reduce(script.chunk(0, "i", 0)).copy(0, "o", 0)
    ir = script.instructions()
    target = TARGETS["msccl"]
    ((path,),) = add(
        [Addition(compile_instructions(ir, target_named("msccl").limits).program, ir.goal, target)], tmp_path
    ).files
    entry = load_index(tmp_path)[0]
    assert entry.collective == "both"
    stated_goal = goal_beside(path)
    assert stated_goal is not None
    assert state_goal(stated_goal) == state_goal(goal)
    assert verify_file(path, stated_goal).status == "right"
    # The program does not meet a goal that requires more.
    stricter = state_goal(goal)
    stricter["required"] = [
        [*column, value] for column, value in zip(stricter["required"], (0, "o", 1, 0, 4), strict=True)
    ]
    assert verify_file(path, goal_stated(stricter, "")).status == "wrong"


def test_ranges_end_where_a_reader_cannot_allocate(tmp_path: Path) -> None:
    """Check that the index serves only sizes that msccl's scratch or a plan's offsets allow."""
    ir = load_scripts(EXAMPLES / "alltonext.py")[0].instructions()
    for name in ("msccl", "mscclpp"):
        program = compile_instructions(ir, target_named(name).limits).program
        ((path,),) = add([Addition(program, ir.goal, TARGETS[name])], tmp_path / name).files
        most = load_index(tmp_path / name)[0].max_bytes
        assert most is not None
        words = (f'maxBytes="{most + 1}"', f'"max_message_size": {most}')
        assert any(word in path.read_text() for word in words), (name, most)
