"""Tests that a library only gets better: existing files stay at sizes where new files are not faster."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from emit.formats import PROGRAM_FORMATS, verify_program
from emit.library.checking.check import check_library
from emit.library.entry import INDEX, IndexEntry
from emit.library.index import load_index
from emit.library.saving.save import Saved, save, stem, withdraw
from emit.library.selection.call import LibraryCall
from emit.library.selection.lookup import choose
from emit.targets import TARGETS
from synth import synthesize
from synth.bounds.prove import Bound
from synth.model.collective import uneven
from synth.model.problem import LARGEST
from synth.search.result import SearchResult
from synth.search.settings import NONE, TargetSettings
from synth.solvers.workers import Workers
from tests.synth.model.test_common_chunk import EVEN
from topologies.load import load
from topologies.topology import Topology

SIZES = [base << e for e in range(9, 29, 2) for base in (2, 3)]


@cache
def answer(target: str, engine: str, **options: object) -> SearchResult:
    """Return a result for reduce-scatter on a ring; the engine `baseline` gives the slower one."""
    with Workers(()) as no_workers:
        arguments = {"target": target, "engine": engine, "budget": 60, "workers": no_workers, **options}
        return synthesize("reducescatter", "ring:4", **arguments).result  # type: ignore[arg-type]


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def times(folder: Path, topology: Topology | None = None) -> dict[tuple[int, bool], float]:
    """Return the time of each size and form, read and checked from the files that the index names."""
    time_of = {}
    for entry in load_index(folder):
        form = PROGRAM_FORMATS[TARGETS[entry.target].format]
        verdict = verify_program(entry.path, entry.goal())
        assert verdict.status == "right", entry.file
        program = verdict.program
        assert program is not None
        timer = form.predictor(entry.path, program, topology or load(entry.topology), entry.communicator)
        for size in SIZES:
            if entry.serves(size, 4):
                assert (size, entry.inplace) not in time_of
                time_of[size, entry.inplace] = timer.time_us(size)
    return time_of


def worse(before: dict[tuple[int, bool], float], after: dict[tuple[int, bool], float]) -> list[tuple[int, bool]]:
    return [at for at, us in before.items() if after.get(at, float("inf")) > us * (1 + 1e-9)]


def check_whole(folder: Path) -> None:
    """Check that ranges meet, files state the sizes of their entries, and there are no further files."""
    entries = load_index(folder)
    for form in (True, False):
        entries_of_form = sorted((e for e in entries if e.inplace == form), key=lambda e: e.min_bytes)
        assert all(
            entry_before.max_bytes is not None and entry_before.max_bytes + 1 == entry_after.min_bytes
            for entry_before, entry_after in pairwise(entries_of_form)
        )
    for entry in entries:
        if entry.path.suffix == ".xml":
            head = re.search(r'minBytes="(\d+)" maxBytes="(\d+)"', entry.path.read_text())
            assert head is not None
            end = entry.max_bytes or ((1 << 50) - 1 if entry.target == "msccl" else 0)
            assert (int(head[1]), int(head[2]) - (entry.target == "msccl")) == (entry.min_bytes, end), entry.file
    names = {name for e in entries for name in (e.file, e.schedule, e.proof_file) if name is not None}
    assert set(files(folder)) == {*names, INDEX}


def remarks_with(saved: Saved, word: str) -> str:
    return next((remark for remark in saved.remarks if word in remark), "")


@pytest.mark.parametrize("target", ["executor-nccl", "mscclpp"])
def test_a_worse_answer_changes_nothing_unless_it_replaces(target: str, tmp_path: Path) -> None:
    save(answer(target, "route"), tmp_path, TargetSettings(target))
    before, times_before = files(tmp_path), times(tmp_path)
    second = save(answer(target, "route"), tmp_path, TargetSettings(target))
    assert files(tmp_path) == before
    assert not remarks_with(second, "kept")
    saved = save(answer(target, "baseline"), tmp_path, TargetSettings(target))
    assert worse(times_before, times(tmp_path)) == []
    assert "of the library, no slower: up to " in remarks_with(saved, "kept")
    assert saved.rows[0]["kept"]
    assert saved.rows[0].keys() - {"kept"} >= second.rows[0].keys() - {"kept"}
    assert all(before[name] == data for name, data in files(tmp_path).items() if name != INDEX and name in before)
    check_whole(tmp_path)
    save(answer(target, "baseline"), tmp_path, TargetSettings(target), anew=True)
    assert worse(times_before, times(tmp_path))
    check_whole(tmp_path)


@pytest.mark.parametrize("size", [None, 1 << 16])
def test_rows_show_the_files_that_stay_where_an_answer_has_none(tmp_path: Path, size: int | None) -> None:
    """Check that each size has one row, which is that of the library's file wherever there is one."""
    target, options = TargetSettings("mscclpp"), {} if size is None else {"size": size}
    save(answer("mscclpp", "route", **options), tmp_path, target)
    before = files(tmp_path)
    saved = save(answer("none", "baseline"), tmp_path, target, until=0.0)
    assert {name for name in files(tmp_path) if "schedules" not in name} == before.keys()
    assert bool(saved.refused) == any(row["refused"] for row in saved.rows) == (size is not None)
    reason = saved.refused.rpartition("; try")[0]  # The budgets that would be enough differ.
    assert all(row["refused"].startswith(reason) for row in saved.rows if row["refused"])
    assert all(row["kept"] != bool(row["refused"]) for row in saved.rows)
    ends = [(row["min_bytes"], row["max_bytes"]) for row in saved.rows]
    assert ends[0][0] == 0
    assert (ends[-1][1] or LARGEST) >= LARGEST
    assert all(below[1] + 1 == above[0] for below, above in pairwise(ends))
    kept_rows = [row for row in saved.rows if row["kept"]]
    assert size is None or [(row["min_bytes"], row["max_bytes"]) for row in kept_rows] == [(size, size)]
    for row in kept_rows:
        best = answer("mscclpp", "route", **options).fastest(row["shown_bytes"])
        assert row["time_us"] == pytest.approx(best.time_us(row["shown_bytes"]))


def test_a_better_answer_replaces_a_worse_one(tmp_path: Path) -> None:
    target = "executor-nccl"
    save(answer(target, "baseline"), tmp_path / "worse", TargetSettings(target))
    save(answer(target, "baseline"), tmp_path / "both", TargetSettings(target))
    save(answer(target, "route"), tmp_path / "both", TargetSettings(target))
    save(answer(target, "route"), tmp_path / "good", TargetSettings(target))
    times_of_both = times(tmp_path / "both")
    assert worse(times(tmp_path / "worse"), times_of_both) == []
    assert worse(times(tmp_path / "good"), times_of_both) == []
    check_whole(tmp_path / "both")
    now = files(tmp_path / "both")
    for engine in ("route", "baseline"):
        save(answer(target, engine), tmp_path / "both", TargetSettings(target))
        assert files(tmp_path / "both") == now


def test_a_schedule_is_not_replaced_by_a_slower_one(tmp_path: Path) -> None:
    """Check that a schedule without a program is not replaced by a slower one of the same name."""
    save(answer(NONE, "route"), tmp_path / "good", TargetSettings(NONE))
    good, poor = answer(NONE, "route"), answer(NONE, "baseline")
    poor = replace(poor, ranges=[replace(poor.ranges[0], low=1 << 20, high=1 << 28, shown=1 << 24)])
    save(poor, tmp_path / "poor", TargetSettings(NONE))
    large = good.fastest(1 << 24)
    best, worst = (tmp_path / at / "schedules" / f"{stem(good, served_range)}.synth" for at, served_range in
                   (("good", large), ("poor", poor.ranges[0])))  # fmt: skip
    existing = tmp_path / "poor" / "schedules" / worst.name
    data, slow = best.read_bytes(), worst.read_bytes()
    existing.write_bytes(data)
    saved = save(poor, tmp_path / "poor", TargetSettings(NONE))
    assert existing.read_bytes() == data
    assert saved.rows[0]["kept"]
    assert saved.rows[0]["time_us"] == pytest.approx(large.time_us(1 << 24))
    assert "kept 1 file of the library" in remarks_with(saved, "kept")
    save(poor, tmp_path / "poor", TargetSettings(NONE), anew=True)
    assert existing.read_bytes() == slow
    (tmp_path / "good" / "schedules" / best.name).write_bytes(slow)
    save(good, tmp_path / "good", TargetSettings(NONE))
    assert best.read_bytes() == data


def test_schedules_that_are_each_faster_at_some_sizes_are_kept(tmp_path: Path) -> None:
    with Workers(()) as no_workers:
        result = synthesize("broadcast", "full:4", engine="route", target=NONE, budget=3, workers=no_workers).result
    small, large = result.ranges
    first_path, second_path = (path for path in save(result, tmp_path, TargetSettings(NONE)).paths)
    data = first_path.read_bytes()
    second_path.write_bytes(data)
    single_range = replace(result, ranges=[replace(large, low=1)])
    (new_path,) = save(single_range, tmp_path, TargetSettings(NONE)).paths
    assert second_path.read_bytes() == data != new_path.read_bytes()
    assert small.time_us(1) < large.time_us(1)
    assert save(result, tmp_path, TargetSettings(NONE)).paths == [
        first_path,
        second_path,
    ]  # The new schedule is slower at all sizes of the range.
    assert second_path.read_bytes() == new_path.read_bytes()


def test_adding_one_size_removes_nothing(tmp_path: Path) -> None:
    target = "executor-nccl"
    save(answer(target, "baseline"), tmp_path, TargetSettings(target))
    before = times(tmp_path)
    saved = save(answer(target, "route", size="1M"), tmp_path, TargetSettings(target))
    after = times(tmp_path)
    assert worse(before, after) == []
    assert all(after[1 << 20, form] < before[1 << 20, form] for form in (True, False))
    assert [row["min_bytes"] for row in saved.rows] == [1 << 20]
    assert not saved.rows[0]["kept"]
    assert set(after) == set(before)
    check_whole(tmp_path)
    second = save(answer(target, "baseline", size="1M"), tmp_path, TargetSettings(target))
    assert worse(after, times(tmp_path)) == []
    assert [row["kept"] for row in second.rows] == [True]
    assert second.rows[0]["time_us"] == pytest.approx(after[1 << 20, True])


def plant(entry: IndexEntry) -> None:
    """Replace a schedule by another one under the entry's name."""
    text = entry.path.read_text()
    entry.path.write_text(text.replace(' cnt="1"', ' cnt="2"', 1).replace('"size": 1}', '"size": 2}', 1))
    assert entry.path.read_text() != text


@pytest.mark.parametrize("target", ["executor-nccl", "mscclpp"])
def test_a_changed_file_is_removed(target: str, tmp_path: Path) -> None:
    save(answer(target, "route"), tmp_path, TargetSettings(target))
    first = load_index(tmp_path)[0]
    plant(first)
    changed = first.path.read_bytes()
    saved = save(answer(target, "baseline"), tmp_path, TargetSettings(target))
    assert remarks_with(saved, "thrown out").startswith(f"thrown out: {first.file}: wrong: ")
    assert changed not in files(tmp_path).values()
    check_whole(tmp_path)
    assert times(tmp_path)


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("sizes", lambda text: text.replace('minBytes="0"', 'minBytes="8"', 1)),
        ("form", lambda text: text.replace('inplace="1" outofplace="0"', 'inplace="0" outofplace="1"', 1)),
        ("nothing there", lambda _: ""),
    ],
)
def test_a_file_that_contradicts_its_entry_is_removed(key: str, changed: object, tmp_path: Path) -> None:
    target = "executor-nccl"
    save(answer(target, "route"), tmp_path, TargetSettings(target))
    first = load_index(tmp_path)[0]
    text = first.path.read_text()
    first.path.write_text(changed(text))  # type: ignore[operator]
    assert first.path.read_text() != text, key
    assert first.file in remarks_with(save(answer(target, "baseline"), tmp_path, TargetSettings(target)), "thrown out")
    check_whole(tmp_path)


def test_a_missing_file_is_no_obstacle(tmp_path: Path) -> None:
    target = "executor-nccl"
    save(answer(target, "route"), tmp_path, TargetSettings(target))
    first = load_index(tmp_path)[0]
    first.path.unlink()
    assert "no such file" in remarks_with(
        save(answer(target, "baseline"), tmp_path, TargetSettings(target)), "thrown out"
    )
    check_whole(tmp_path)


def test_another_network_of_the_same_name_is_another_question(tmp_path: Path) -> None:
    target, fast = "executor-nccl", tmp_path / "net.toml"
    results = []
    for gbs in (90, 9):
        links = "".join(
            f"[[links]]\npairs = '{a}>{a + 1}'\nboth = true\ngbs = {gbs + a}\nalpha_us = 1\n" for a in (0, 1)
        )
        fast.write_text(f'name = "net"\nranks = 3\n{links}')
        results.append(synthesize("allgather", fast, target=target, budget=10, engine="route").result)
    save(results[0], tmp_path / "out", TargetSettings(target))
    saved = save(results[1], tmp_path / "out", TargetSettings(target))
    assert "another network or pattern of this name gave way" in remarks_with(saved, "gave way")
    save(results[1], tmp_path / "alone", TargetSettings(target))
    assert files(tmp_path / "out") == files(tmp_path / "alone")


def test_files_of_a_pattern_are_compared_with_the_pattern(tmp_path: Path) -> None:
    """Check that files of a pattern are compared with the pattern, since the goal in the index may be changed."""
    sizes = [[0, 100, 3], [50, 0, 1], [7, 20, 0]]
    results = [
        synthesize(uneven("alltoallv", sizes), "full:3", size="1M", target="msccl", budget=10, engine="route").result
        for _ in range(2)
    ]
    save(results[0], tmp_path, TargetSettings("msccl"))
    before, index = files(tmp_path), tmp_path / INDEX
    for result in results:
        saved = save(result, tmp_path, TargetSettings("msccl"))
        assert not remarks_with(saved, "thrown out")
    assert files(tmp_path) == before
    entry = load_index(tmp_path)[0]
    stated = entry.row["goal"]["required"][0]
    index.write_text(index.read_text().replace(f'"required": [[{stated[0]},', f'"required": [[{stated[0] + 1},', 1))
    other_pattern = uneven("alltoallv", [[0, 100, 3], [50, 0, 1], [7, 30, 0]])
    assert "another goal" in remarks_with(save(results[1], tmp_path, TargetSettings("msccl")), "thrown out")
    saved = save(
        synthesize(other_pattern, "full:3", size="1M", target="msccl", budget=10, engine="route").result,
        tmp_path,
        TargetSettings("msccl"),
    )
    assert not remarks_with(saved, "gave way")  # Other sizes are another question.
    assert {entry.sizes for entry in load_index(tmp_path)} == {other_pattern.sizes, uneven("alltoallv", sizes).sizes}


def test_files_beyond_requested_limits_are_replaced(tmp_path: Path) -> None:
    target = "executor-nccl"
    save(answer(target, "route"), tmp_path, TargetSettings(target))
    most = max(entry.row["threadblocks"] for entry in load_index(tmp_path))
    small_result = answer(target, "route", sms=2)
    assert most > 2
    saved = save(small_result, tmp_path, TargetSettings(target, sms=2))
    assert "beyond the limits asked for gave way" in remarks_with(saved, "gave way")
    assert max(entry.row["threadblocks"] for entry in load_index(tmp_path)) <= 2
    check_whole(tmp_path)


def test_schedules_and_proofs_of_kept_files_are_kept(tmp_path: Path) -> None:
    target = "executor-nccl"
    save(answer(target, "route"), tmp_path, TargetSettings(target), proof=True)
    before = files(tmp_path)
    save(answer(target, "baseline"), tmp_path, TargetSettings(target), proof=True)
    now = files(tmp_path)
    assert all(now[name] == data for name, data in before.items() if name != INDEX)
    save(answer(target, "route"), tmp_path, TargetSettings(target))
    assert all(entry.proof_file for entry in load_index(tmp_path) if entry.file in before)
    check_whole(tmp_path)


def test_files_for_two_targets_never_share_a_schedule_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emit.library.saving.save.stems", lambda result, _: ["shape" for _ in result.ranges])
    for target, engine in (("executor-nccl", "route"), ("msccl", "baseline")):
        save(answer(target, engine, size="1M"), tmp_path, TargetSettings(target), proof=True)
    assert len({entry.schedule for entry in load_index(tmp_path)}) == 2
    assert check_library(tmp_path, load_index(tmp_path)).wrong == []


def test_concurrent_writers_are_both_right(tmp_path: Path) -> None:
    target = "executor-nccl"
    results = [answer(target, "route"), answer(target, "baseline"), answer(target, "route", size="1M")]
    times_alone = []
    for number, result in enumerate(results):
        save(result, tmp_path / f"{number}", TargetSettings(target))
        times_alone.append(times(tmp_path / f"{number}"))
    settings = TargetSettings(target)
    threads = [threading.Thread(target=save, args=(result, tmp_path / "out", settings)) for result in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times_of_both = times(tmp_path / "out")
    assert [worse(single_times, times_of_both) for single_times in times_alone] == [[], [], []]
    check_whole(tmp_path / "out")
    entries = load_index(tmp_path / "out")
    assert choose(entries, LibraryCall("reducescatter", 4, (0, 1, 2, 3), True, element_bytes=4), 1 << 20) is not None


def test_kept_files_of_unequal_blocks_are_timed_at_the_sizes_that_executors_see(tmp_path: Path) -> None:
    for engine in ("flow", "route"):
        with Workers(()) as no_workers:
            arguments = {"target": "msccl", "engine": engine, "budget": 1, "workers": no_workers, "costs": "none"}
            result = synthesize(uneven("alltoallv", EVEN), "ring:4", **arguments).result
        saved = save(result, tmp_path, TargetSettings("msccl"))
    kept_rows = [row for row in saved.rows if row["kept"]]
    assert kept_rows
    assert all(row["time_us"] >= row["bound_us"] * (1 - 1e-9) for row in kept_rows)


def test_withdrawn_files_leave_the_rest_of_their_library(tmp_path: Path) -> None:
    kept, unwanted = answer("msccl", "baseline"), answer("msccl", "baseline", group=(2, 1, 0))
    save(kept, tmp_path, TargetSettings("msccl"))
    before = files(tmp_path)
    saved = save(unwanted, tmp_path, TargetSettings("msccl"), proof=True)
    assert len(files(tmp_path)) > len(before)
    withdraw(saved)
    assert files(tmp_path) == before


def test_a_library_with_proofs_passes_its_check_after_a_question_with_a_better_bound(tmp_path: Path) -> None:
    """The files of the second question state its bound, which the proofs of the first do not reach."""
    target = "executor-nccl"
    slower, faster = answer(target, "baseline"), answer(target, "route")
    weak = Bound(
        tuple(replace(w, base_us=w.base_us / 2, per_byte_us=w.per_byte_us / 2) for w in slower.bound.witnesses)
    )
    save(replace(slower, bound=weak), tmp_path, TargetSettings(target), proof=True)
    save(faster, tmp_path, TargetSettings(target))
    entries = load_index(tmp_path)
    assert all(entry.proof_file for entry in entries)
    assert check_library(tmp_path, entries).wrong == []
    # The other way round, the bound that the library proves counts for the new files too.
    save(replace(slower, bound=weak), tmp_path, TargetSettings(target))
    assert [entry.row["bound_us"] for entry in load_index(tmp_path)] == [entry.row["bound_us"] for entry in entries]
    assert check_library(tmp_path, load_index(tmp_path)).wrong == []


def test_a_bound_that_no_proof_reaches_is_not_proved_where_the_entry_names_no_proof(tmp_path: Path) -> None:
    target = "executor-nccl"
    result = answer(target, "route")
    weak = Bound(
        tuple(replace(w, base_us=w.base_us / 2, per_byte_us=w.per_byte_us / 2) for w in result.bound.witnesses)
    )
    save(result, tmp_path, TargetSettings(target))
    save(replace(answer("msccl", "route"), bound=weak), tmp_path, TargetSettings("msccl"), proof=True)
    report = check_library(tmp_path, load_index(tmp_path))
    assert report.wrong == []
    assert {entry.file for entry in load_index(tmp_path) if not entry.proof_file} <= report.unproved_files


def test_a_kept_file_for_other_sizes_states_its_curve_at_every_power_of_two(tmp_path: Path) -> None:
    target = "executor-nccl"
    save(answer(target, "baseline"), tmp_path, TargetSettings(target))
    save(answer(target, "route", size="1M"), tmp_path, TargetSettings(target))
    entries = load_index(tmp_path)
    assert len({entry.file for entry in entries if entry.inplace}) > 1
    assert all(len(entry.curve) > 10 for entry in entries if entry.min_bytes != entry.max_bytes)


def test_a_pinned_size_is_answered_at_that_size_by_the_file_that_stays(tmp_path: Path) -> None:
    target, size = TargetSettings("mscclpp"), 3 << 16
    save(answer("mscclpp", "route"), tmp_path, target)
    saved = save(answer("mscclpp", "route", size=size), tmp_path, target)
    kept_rows = [row for row in saved.rows if row["kept"]]
    assert [row["shown_bytes"] for row in saved.rows] == [size]
    assert [row["worst"]["bytes"] for row in kept_rows] == [size] * len(kept_rows)
    assert len(saved.kept_paths) >= len(kept_rows)
    assert all(path.is_file() for path in saved.kept_paths)


@pytest.mark.parametrize(("size", "is_made"), [(5, False), (1 << 16, True)])
def test_a_size_that_no_call_of_a_file_has_gets_none(tmp_path: Path, size: int, is_made: bool) -> None:
    result = synthesize("allreduce", "ring:4", size=size, engine="route", target="executor-nccl").result
    saved = save(result, tmp_path, TargetSettings("executor-nccl"))
    assert (saved.index is not None) == is_made
    assert ("5 bytes are no multiple of" in saved.rows[0]["refused"]) != is_made
