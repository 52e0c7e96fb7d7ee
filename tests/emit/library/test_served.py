"""Tests of the calls that a library's files serve, in the index, `choose` and the table."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from emit.formats import verify_file
from emit.library.index import load_index
from emit.library.saving.save import Saved, _joined_reasons, _served, save
from emit.library.selection.call import LibraryCall
from emit.library.selection.lookup import choose
from emit.msccl.read import read_msccl
from emit.targets import TARGETS
from synth.app.synthesis import synthesize
from synth.model.pattern import read_pattern
from synth.model.problem import make_problem
from synth.search.settings import TargetSettings
from synth.solvers.workers import Workers
from tests.combinations import every_other
from topologies.errors import InputError
from topologies.load import load

RANKS = (0, 1, 2)


def library(folder: Path, collective: str, target: str, **options: object) -> Saved:
    with Workers(()) as no_workers:
        arguments = {
            "engine": "route",
            "budget": 1,
            "workers": no_workers,
            "target": target,
            "costs": "none",
            **options,
        }
        return save(synthesize(collective, "dgx-a100", RANKS, **arguments).result, folder, TargetSettings(target))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("collective", "target"), every_other(["allreduce", "allgather", "broadcast"], ["executor-nccl", "mscclpp"])
)
def test_powers_of_two_are_served_in_both_forms(collective: str, target: str, tmp_path: Path) -> None:
    """Check three ranks, whose chunks do not divide powers of two."""
    saved = library(tmp_path, collective, target)
    entries = load_index(tmp_path)
    block = 3 if collective == "allgather" else 1
    root = 0 if collective == "broadcast" else None
    for inplace in (True, False):
        for size in (block << e for e in range(10, 31)):
            entry = choose(entries, LibraryCall(collective, 3, RANKS, inplace, root=root, element_bytes=4), size)
            assert entry is not None, (size, inplace)
            assert entry.inplace == inplace
        assert choose(
            entries, LibraryCall(collective, 3, RANKS, inplace, root=root, element_bytes=4), (25 << 20) + 4
        ) is None or all(entry.divides == 1 for entry in entries)
    for entry in entries:
        assert verify_file(entry.path).status == "right"
        assert entry.row["otherwise"] in "".join(saved.remarks) or entry.divides == 1
        if target == "executor-nccl":
            assert entry.divides == read_msccl(entry.path).nchunks_per_loop
        else:
            assert entry.divides % 16 == 0
    assert len({entry.path.read_text().split(">")[0] for entry in entries}) == len(entries)


def test_a_size_that_no_call_has_stands_for_the_nearest_ones(tmp_path: Path) -> None:
    """Check that three ranks, which cannot gather 1 MiB in equal blocks, have a file for the calls next to it."""
    size = 1 << 20
    saved = library(tmp_path / "one", "allgather", "executor-nccl", size=size)
    assert not saved.refused
    entries = load_index(tmp_path / "one")
    for nearest in (size // 12 * 12, (size // 12 + 1) * 12):
        call = LibraryCall("allgather", 3, RANKS, entries[0].inplace, root=None, element_bytes=4)
        assert choose(entries, call, nearest) is not None
    assert all(entry.max_bytes - entry.min_bytes <= 8 * entry.divides for entry in entries)


def test_a_file_for_a_size_that_calls_have_is_written(tmp_path: Path) -> None:
    library(tmp_path, "allgather", "executor-nccl", size=3 << 20)
    assert [entry.inplace for entry in load_index(tmp_path)] == [True, False]


def test_missing_divisors_are_read_and_wrong_ones_refused(tmp_path: Path) -> None:
    library(tmp_path, "allreduce", "executor-nccl")
    path = tmp_path / "index.json"
    index = json.loads(path.read_text())
    for row in index["algorithms"]:
        del row["divides"]
    path.write_text(json.dumps(index))
    assert {entry.divides for entry in load_index(path)} == {1}
    index["algorithms"][0]["divides"] = 0
    path.write_text(json.dumps(index))
    with pytest.raises(InputError, match="divides"):
        load_index(path)


@pytest.mark.parametrize(
    ("divides", "multiples"),
    [
        ((1,), ""),
        ((1, 16), "16"),
        ((16, 512), "16 or 512"),
        ((16, 512, 4096), "16, 512 or 4096"),
        ((2, 4, 8, 9), "2 to 9"),
    ],
)
def test_the_multiples_that_files_serve_are_listed(divides: tuple[int, ...], multiples: str) -> None:
    entries: list[Any] = [SimpleNamespace(divides=number) for number in divides]
    problem = make_problem(load("dgx-a100"), "allreduce")
    lines = list(_served(TARGETS["mscclpp"], problem, entries, []))
    assert len(lines) == bool(multiples)
    assert not lines or f"a multiple of {multiples} bytes;" in lines[0]


@pytest.mark.parametrize(("target", "unit"), [("executor-nccl", 12), ("mscclpp", 48)])
def test_a_size_that_no_file_takes_is_stated_with_the_sizes_that_it_takes(
    target: str, unit: int, tmp_path: Path
) -> None:
    """Check the remark about 1 MiB on three ranks, and that the sizes that it names are served."""
    for size, is_served in ((1 << 20, False), (3 << 18, True)):
        saved = library(tmp_path / str(size), "allgather", target, size=size)
        lines = [line for line in saved.remarks if line.startswith(f"{size} bytes are no multiple of")]
        assert len(lines) == (not is_served)
        for line in lines:
            assert f" {unit} bytes" in line
            sizes = [int(word) for word in line.partition(": the nearest sizes")[2].split() if word.isdigit()]
            assert sizes == [size // unit * unit, size // unit * unit + unit]
            (entry, *_) = load_index(tmp_path / str(size))
            assert all(entry.serves(size, 4) for size in sizes)


def test_a_library_without_a_target_says_why_it_has_no_index(tmp_path: Path) -> None:
    saved = library(tmp_path, "allgather", "none")
    assert any("no index" in remark for remark in saved.remarks)
    with pytest.raises(InputError, match="has only schedules"):
        load_index(tmp_path)


def test_kept_files_for_other_sizes_say_nothing_of_a_size(tmp_path: Path) -> None:
    """Check that a second question into a library, with a size that its file serves, gets no remark that none does."""
    for size in (3 << 18, 3 << 20):
        saved = library(tmp_path, "allgather", "executor-nccl", size=size)
    assert any("kept" in line for line in saved.remarks)
    assert not any("no multiple of" in line for line in saved.remarks)


@pytest.mark.parametrize(
    ("collective", "topology", "clause"),
    [
        ("allgather", "dgx1", "NCCL's own algorithm serves the others"),
        ("allgather", "gaudi3", "on GPUs NCCL's own algorithm serves the others, other devices have no fallback"),
        ("gather", "dgx1", "there is no fallback for the others"),
        ("a pattern", "dgx1", "there is no fallback for the others"),
    ],
)
def test_only_collectives_of_a_library_have_a_fallback(
    collective: str, topology: str, clause: str, tmp_path: Path
) -> None:
    """Check that a library's own algorithm is promised only for collectives that it can call, and on its devices."""
    pattern = tmp_path / "halo.toml"
    pattern.write_text('name = "halo"\nranks = 4\n[[chunk]]\nfrom = [1]\nto = [0, 2]\n')
    is_pattern, network = collective == "a pattern", load(topology)
    root = 0 if collective == "gather" else None
    problem = make_problem(network, read_pattern(pattern) if is_pattern else collective, range(4), root=root)
    assert TARGETS["executor-nccl"].fallback(problem, "the others") == clause
    entries: list[Any] = [SimpleNamespace(divides=16)]
    assert all(line.endswith(clause) for line in _served(TARGETS["executor-nccl"], problem, entries, []))


def test_one_reason_for_several_files_is_one_clause() -> None:
    late = "the budget ended before it was checked"
    clauses = [f"a out of place: {late}", f"b out of place: {late}", "c out of place: too large"]
    assert list(_joined_reasons(clauses)) == [f"2 algorithms out of place: {late}", "c out of place: too large"]
