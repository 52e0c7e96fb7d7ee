"""Plans under the names that MSCCL++'s shim reads: which fit, what was there before, and back again."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from emit.library.entry import IndexEntry
from emit.library.index import index_text, load_index
from emit.library.selection import shim_plans
from emit.library.selection.shim_plans import SLOTS, choose_plans, install_plans, undo_plans
from emit.mscclpp.format import write_plan
from emit.program import Program
from emit.targets import TARGETS
from tests.emit.library.made_indices import entry_row
from tests.emit.small_programs import ring_allgather, ring_allreduce
from topologies.errors import InputError

NODES = [rank // 8 for rank in range(16)]
NAMES = [slot.name for slot in SLOTS]


@cache
def plans() -> list[tuple[Program, bool, float, str]]:
    """Return programs for 16 ranks on two nodes, each with its form, its gain and the text of its plan.

    They are three all-reduces and an all-gather in place, and another all-reduce out of place.
    """
    programs = [
        (replace(ring_allreduce(16), max_bytes=1 << 16, protocol="LL"), True, 1.2),
        (replace(ring_allreduce(16), min_bytes=(1 << 16) + 1, max_bytes=1 << 20), True, 1.5),
        (replace(ring_allreduce(16), min_bytes=(1 << 20) + 1), True, 1.1),
        (ring_allgather(16), True, 1.05),
        (ring_allreduce(16), False, 3.0),
    ]
    return [
        (program, inplace, gain, write_plan(replace(program, name=f"plan{number}"), nodes=NODES, inplace=inplace))
        for number, (program, inplace, gain) in enumerate(programs)
    ]


def library(folder: Path, **changes: Any) -> list[IndexEntry]:
    """Write the plans as a library."""
    (folder / "mscclpp").mkdir(parents=True)
    rows = []
    for number, (program, inplace, gain, text) in enumerate(plans()):
        name = f"plan{number}"
        (folder / "mscclpp" / f"{name}.json").write_text(text)
        rows.append(
            entry_row(
                collective=program.collective, target="mscclpp", file=f"mscclpp/{name}.json", inplace=inplace,
                topology="dgx-h100:2", nranks=16, group=list(range(16)), communicator=list(range(16)),
                protocol=TARGETS["mscclpp"].protocols[program.protocol],
                min_bytes=program.min_bytes, max_bytes=program.max_bytes or None,
                libraries={"NCCL": {"vs": gain}}, **changes,
            )
        )  # fmt: skip
    (folder / "index.json").write_bytes(index_text(rows))
    return load_index(folder)


@pytest.fixture
def entries(tmp_path: Path) -> list[IndexEntry]:
    return library(tmp_path / "lib")


def names(choice: dict[Any, IndexEntry]) -> dict[str, str]:
    return {slot.name: entry.file for slot, entry in choice.items()}


def test_plans_that_gain_most_are_placed_in_the_order_of_their_sizes(entries: list[IndexEntry]) -> None:
    choice = choose_plans(entries, NODES, only_sums=True)
    assert names(choice.placed) == dict(zip(NAMES, ["mscclpp/plan0.json", "mscclpp/plan1.json"], strict=False))
    assert sum(choice.reasons.values()) == 3
    assert choose_plans(entries, NODES).placed.keys() == {SLOTS[0]}  # Only the all-gather sums nothing.
    outside = choose_plans(entries, NODES, inplace=False, only_sums=True)
    assert names(outside.placed) == {NAMES[0]: "mscclpp/plan4.json"}


@pytest.mark.parametrize(
    "nodes", [[0] * 16, [rank // 4 for rank in range(16)], [rank % 2 for rank in range(16)], [0] * 9 + [1] * 7]
)
def test_other_nodes_than_two_in_order_get_none(entries: list[IndexEntry], nodes: list[int]) -> None:
    choice = choose_plans(entries, nodes, only_sums=True)
    assert (choice.placed, sum(choice.reasons.values())) == ({}, len(entries))


def test_what_was_there_is_kept_and_comes_back(entries: list[IndexEntry], tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "default"
    folder.mkdir(parents=True)
    before = {NAMES[0]: b"theirs", NAMES[1]: b"theirs too", NAMES[2]: b"for 32 ranks"}
    for name, data in before.items():
        (folder / name).write_bytes(data)
    choice = choose_plans(entries, NODES)
    # The second name is for the same communicators, and the shim would take either of the two plans.
    assert install_plans(choice.placed, folder) == [f"{name}.before-synth" for name in NAMES[:2]]
    assert (folder / NAMES[0]).read_bytes() == (tmp_path / "lib" / "mscclpp" / "plan3.json").read_bytes()
    assert not (folder / NAMES[1]).exists()
    assert install_plans(choose_plans(entries, NODES, only_sums=True).placed, folder) == []
    assert (folder / NAMES[1]).exists()
    undo_plans(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    with pytest.raises(InputError, match="has no plans of synth"):
        undo_plans(folder)


def test_a_file_that_was_changed_since_stays_and_so_does_what_was_before(
    entries: list[IndexEntry], tmp_path: Path
) -> None:
    folder, placed = tmp_path / "default", choose_plans(entries, NODES).placed
    folder.mkdir()
    (folder / NAMES[0]).write_bytes(b"theirs")
    install_plans(placed, folder)
    (folder / NAMES[0]).write_bytes(b"mine")
    with pytest.raises(InputError, match="move one"):
        install_plans(placed, folder)
    for _ in range(2):
        assert [line.partition(":")[0] for line in undo_plans(folder)] == [NAMES[0], f"{NAMES[0]}.before-synth"]
    (folder / NAMES[0]).unlink()
    assert undo_plans(folder) == [f"{NAMES[0]}: restored"]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {NAMES[0]: b"theirs"}


@pytest.mark.parametrize("theirs", [b"theirs", None])
@pytest.mark.parametrize("steps", range(8))
def test_a_killed_installation_can_be_undone(
    entries: list[IndexEntry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, theirs: bytes | None
) -> None:
    """Check a kill before each change of a file, in a first and in a second installation; None: theirs is like ours."""
    folder, placed = tmp_path / "default", choose_plans(entries, NODES).placed
    folder.mkdir()
    monkeypatch.setattr(shim_plans, "checked_bytes", lambda entry: entry.path.read_bytes())  # They are right.
    before = theirs or entries[3].path.read_bytes()
    (folder / NAMES[0]).write_bytes(before)
    for choice in (placed, choose_plans(entries, NODES, only_sums=True).placed):
        with monkeypatch.context() as patch:
            _kill_after(steps, patch)
            with suppress(KeyboardInterrupt):
                install_plans(choice, folder)
    with suppress(InputError):  # Killed before the record was written, so that nothing was changed.
        undo_plans(folder)
    assert (folder / NAMES[0]).read_bytes() == before
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == {NAMES[0]}


def _kill_after(steps: int, patch: pytest.MonkeyPatch) -> None:
    """Let calls that rename, replace or remove files raise KeyboardInterrupt after so many of them."""
    left = [steps]
    for name in ("rename", "replace", "unlink"):
        call = getattr(os, name)

        def counted(*arguments: Any, _call: Any = call, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return _call(*arguments, **options)

        patch.setattr(os, name, counted)


def test_unreadable_files_do_not_block_undo(entries: list[IndexEntry], tmp_path: Path) -> None:
    folder = tmp_path / "default"
    install_plans(choose_plans(entries, NODES, only_sums=True).placed, folder)
    (folder / NAMES[0]).unlink()
    (folder / NAMES[0]).mkdir()
    assert undo_plans(folder) == [f"{NAMES[0]}: was changed since, and stays", f"{NAMES[1]}: removed"]


def test_a_wrong_plan_or_record_changes_nothing(entries: list[IndexEntry], tmp_path: Path) -> None:
    folder, plan = tmp_path / "default", tmp_path / "lib" / "mscclpp" / "plan3.json"
    right = plan.read_text()
    plan.write_text(right.replace('"collective": "allgather"', '"collective": "allreduce"', 1).replace("{", "{ ", 1))
    assert plan.read_text() != right
    choice = choose_plans(entries, NODES)
    with pytest.raises(InputError, match=r"plan3\.json"):
        install_plans(choice.placed, folder)
    assert not folder.exists()
    plan.write_text(right)
    folder.mkdir()
    for text in ("[]", '{"format": "synth-installed-1", "files": {"../x": ["0"]}, "kept": []}', "{"):
        (folder / "synth-installed.json").write_text(text)
        for attempt in (lambda: install_plans(choice.placed, folder), lambda: undo_plans(folder)):
            with pytest.raises(InputError, match=r"synth-installed\.json"):
                attempt()
        assert [path.name for path in folder.iterdir()] == ["synth-installed.json"]
