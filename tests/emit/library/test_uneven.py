"""Libraries with files for blocks of different sizes: a file for each list of proportions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import synth
from emit.library.checking.check import check_library
from emit.library.entry import INDEX
from emit.library.index import load_index
from emit.library.selection.call import LibraryCall
from emit.library.selection.selector import Selector
from emit.msccl.read import read_msccl
from runtime.bench import Settings, measure
from runtime.host.executor import HostExecutor
from synth.solvers.workers import Workers
from synth.storage.problem import means_its_name
from synth.storage.schedule_file import load_schedule
from topologies.errors import InputError

SHAPES = ([3000, 1000, 0, 2000], [1000, 1000, 1000, 1000], [1, 0, 0, 5])


@pytest.fixture(scope="module", params=["allgatherv", "reducescatterv", "scatterv"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library with files of one collective for several lists of sizes."""
    folder: Path = tmp_path_factory.mktemp("uneven")
    with Workers(()) as no_workers:
        for sizes in SHAPES:
            answer = synth.synthesize(
                request.param,
                "ring:4",
                sizes=sizes,
                size=1 << 20,
                budget=5,
                engine="route",
                target="msccl",
                workers=no_workers,
            )
            answer.save(folder, "msccl", proof=True)
    return folder


def test_every_list_of_proportions_has_its_own_files(library: Path) -> None:
    entries = load_index(library)
    assert {entry.sizes for entry in entries} == {(3, 1, 0, 2), (1, 1, 1, 1), (1, 0, 0, 5)}
    collective, root = entries[0].collective, entries[0].root
    selector = Selector(entries)
    for entry in entries:
        size_bytes = -(-entry.min_bytes // entry.divides) * entry.divides or entry.divides
        proportional = [7 * size for size in entry.sizes]
        assert selector.choose(LibraryCall(collective, 4, range(4), False, root=root, sizes=proportional), size_bytes)
        assert selector.choose(LibraryCall(collective, 4, range(4), False, root=root), size_bytes) is None
        other = [*entry.sizes[1:], entry.sizes[0] + 1]
        assert selector.choose(LibraryCall(collective, 4, range(4), False, root=root, sizes=other), size_bytes) is None
        # In another order of the ranks the blocks would be others.
        call = LibraryCall(collective, 4, (1, 0, 2, 3), False, root=root, sizes=entry.sizes, any_order=True)
        assert selector.choose(call, size_bytes) is None


def test_every_file_does_what_its_sizes_say(library: Path) -> None:
    for entry in load_index(library):
        program, goal = read_msccl(entry.path), entry.goal()
        size_bytes = max(entry.min_bytes, entry.divides * 4)
        row = measure(program, goal, size_bytes, HostExecutor(program, goal), Settings(iterations=1, warmup=0))
        assert row.wrong == 0
    report = check_library(library, load_index(library))
    assert not report.wrong
    assert not report.unproved.keys() - {"vs_baseline"}


def test_a_schedule_of_other_sizes_proves_nothing(library: Path, tmp_path: Path) -> None:
    copied(library, tmp_path)
    index = json.loads((tmp_path / INDEX).read_text())
    first, other = (
        next(row for row in index["algorithms"] if row["sizes"] == sizes) for sizes in ([3, 1, 0, 2], [1, 1, 1, 1])
    )
    for key in ("schedule", "proof_file"):
        first[key] = other[key]
        first["sha256"][key] = other["sha256"][key]
    (tmp_path / INDEX).write_text(json.dumps(index))
    report = check_library(tmp_path, load_index(tmp_path))
    assert any("sizes" in why for _, why in report.wrong), report.wrong


def test_a_schedule_named_uneven_must_state_its_sizes(library: Path) -> None:
    entry = load_index(library)[0]
    assert entry.schedule is not None
    stored = load_schedule(library / entry.schedule)
    assert stored.as_named
    assert means_its_name(stored.problem.collective)
    assert not means_its_name(replace(stored.problem.collective, sizes=()))
    assert not means_its_name(replace(stored.problem.collective, sizes=(2, 3, 5, 7)))


def copied(library: Path, folder: Path) -> None:
    """Copy a library's files to a folder."""
    for path in library.rglob("*"):
        if path.is_file():
            target = folder / path.relative_to(library)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())


def test_sizes_that_are_not_those_of_the_file_are_found(library: Path, tmp_path: Path) -> None:
    index = json.loads((library / INDEX).read_text())
    number = next(n for n, row in enumerate(index["algorithms"]) if row["sizes"] == [3, 1, 0, 2])
    copied(library, tmp_path)
    index["algorithms"][number]["sizes"] = [2, 1, 0, 3]
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert check_library(tmp_path, load_index(tmp_path)).wrong
    for malformed in ([1, 2], "3,1,0,2", [1, 2, 3, -4], [1.5, 1, 1, 1], [1, 2, 3, True], [2, 4, 0, 2]):
        index["algorithms"][number]["sizes"] = malformed
        (tmp_path / INDEX).write_text(json.dumps(index))
        with pytest.raises(InputError, match="sizes"):
            load_index(tmp_path)
