"""Sizes at which a library's own algorithm is faster get no file, and rows name the library."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from emit.library.index import load_index
from emit.library.saving.left_ranges import OwnAlgorithm, leave_to_libraries
from emit.library.saving.save import save
from synth import synthesize
from synth.baselines.nccl.model import LibraryChoice
from synth.search.result import SearchResult
from synth.search.settings import TargetSettings
from synth.search.statement import row
from tests.synth.search.test_pool import Slower
from topologies.errors import NotModelled

FROM, TO = 64 << 10, 1 << 20  # The library is faster from FROM to TO, without TO.


@pytest.fixture(scope="module")
def found() -> SearchResult:
    result = synthesize("allgather", "dgx-a100", [0, 1], engine="route", target="executor-nccl", budget=5).result
    return replace(result, engine="auto")


def let_nccl_win(monkeypatch: pytest.MonkeyPatch, result: SearchResult, part: float = 0.5, start: int = FROM) -> None:
    """Let NCCL take a part of our time from `start` to TO, and twice our time elsewhere."""

    def library(_: SearchResult, name: str, size_bytes: int) -> LibraryChoice | NotModelled:
        if name != "NCCL":
            return NotModelled("it is not the library of this test")
        time_us = result.fastest(size_bytes).time_us(size_bytes) * (part if start <= size_bytes < TO else 2.0)
        return LibraryChoice("ring", "LL", 1, time_us, 0.0, 1.0)

    monkeypatch.setattr(SearchResult, "library", library)


@pytest.mark.parametrize("has_programs", [True, False])
def test_ranges_are_cut(monkeypatch: pytest.MonkeyPatch, found: SearchResult, has_programs: bool) -> None:
    if not has_programs:
        found = replace(found, ranges=[offer.without_program("") for offer in found.ranges])
    let_nccl_win(monkeypatch, found)
    ranges = leave_to_libraries(found, ["NCCL"]).ranges
    assert (ranges[0].low, ranges[-1].high) == (found.ranges[0].low, found.ranges[-1].high)
    assert all(before.high is not None and before.high + 1 == after.low for before, after in pairwise(ranges))
    left = [offer for offer in ranges if offer.library]
    assert (left[0].low, left[-1].high) == (FROM, TO - 1)
    assert all(offer.low >= FROM and offer.high is not None and offer.high < TO for offer in left)
    for offer in ranges:
        assert offer.low <= offer.shown <= (offer.high or offer.shown)
        assert isinstance(offer.execution, OwnAlgorithm) == bool(offer.library) == bool(offer.refused)
    again = leave_to_libraries(leave_to_libraries(found, ["NCCL"]), ["NCCL"]).ranges
    assert [(offer.low, offer.library) for offer in again] == [(offer.low, offer.library) for offer in ranges]


@pytest.mark.parametrize("start", [FROM + 1, FROM * 5 // 4, 2 * FROM - 1])
def test_a_range_is_cut_between_powers_of_two(monkeypatch: pytest.MonkeyPatch, found: SearchResult, start: int) -> None:
    let_nccl_win(monkeypatch, found, start=start)
    (left,) = [offer for offer in leave_to_libraries(found, ["NCCL"]).ranges if offer.library]
    assert start <= left.low <= start * 33 / 32
    assert left.high == TO - 1


def test_the_end_of_a_range_counts(monkeypatch: pytest.MonkeyPatch, found: SearchResult) -> None:
    """Check that a library is seen that is faster only from the last power of two in a range on."""
    short = replace(found, ranges=[replace(found.ranges[-1], low=1, high=TO - 1, shown=1)])
    let_nccl_win(monkeypatch, short, start=TO * 3 // 4)
    (left,) = [part for part in leave_to_libraries(short, ["NCCL"]).ranges if part.library]
    assert TO * 3 / 4 <= left.low <= TO * 3 / 4 * 33 / 32
    assert left.high == TO - 1


def test_the_reason_names_a_faster_schedule_that_has_no_file(
    monkeypatch: pytest.MonkeyPatch, found: SearchResult
) -> None:
    lacking = found.ranges[-1].without_program("the budget ended before it was ready")
    slower = [replace(offer, execution=Slower(offer.algorithm, 20.0)) for offer in found.ranges]
    result = replace(found, ranges=slower, refused=[lacking])
    let_nccl_win(monkeypatch, result)
    reasons = [offer.refused for offer in leave_to_libraries(result, ["NCCL"]).ranges if offer.library]
    assert any("has no file: the budget ended before it was ready" in reason for reason in reasons)


def test_files_of_the_library_stay_where_all_sizes_of_a_new_answer_are_left(
    monkeypatch: pytest.MonkeyPatch, found: SearchResult, tmp_path: Path
) -> None:
    let_nccl_win(monkeypatch, found, 2.0)
    before = {entry.file for entry in load_index(save(found, tmp_path, TargetSettings("executor-nccl")).folder)}
    let_nccl_win(monkeypatch, found, start=0)
    short = replace(found, ranges=[replace(found.ranges[-1], low=1, high=TO - 1, shown=1024)])
    saved = save(short, tmp_path, TargetSettings("executor-nccl"))
    assert (saved.left, saved.refused) == ("", "")
    assert before <= {entry.file for entry in load_index(tmp_path)}


def test_a_left_range_has_no_file_and_its_row_names_the_library(
    monkeypatch: pytest.MonkeyPatch, found: SearchResult, tmp_path: Path
) -> None:
    let_nccl_win(monkeypatch, found, 1.0)
    whole = save(found, tmp_path / "whole", TargetSettings("executor-nccl"))
    assert whole.refused == ""
    let_nccl_win(monkeypatch, found)
    saved = save(found, tmp_path / "part", TargetSettings("executor-nccl"))
    assert (saved.refused, saved.left) == ("", "")
    reasons = [offer.refused for offer in leave_to_libraries(found, ["NCCL"]).ranges if offer.library]
    assert all(reason.startswith("NCCL's own algorithm is faster than ours, which takes ") for reason in reasons)
    entries = load_index(tmp_path / "part")
    for size, is_ours in ((1024, True), (FROM, False), (TO - 1, False), (TO, True), (1 << 30, True)):
        assert any(entry.in_range(size) for entry in entries) == is_ours
    rows = [fields for fields in saved.rows if fields["engine"] == "NCCL"]
    assert rows
    for fields in rows:
        assert fields["libraries"]["NCCL"]["vs"] == pytest.approx(1.0)
        assert (fields["steps"], fields["sends"], fields["optimal"]) == (None, None, False)


def test_nothing_is_left_where_no_library_is_comparable(found: SearchResult) -> None:
    assert leave_to_libraries(found, []).ranges == found.ranges
    named = replace(found, engine="route")  # What the user asked for is written.
    assert leave_to_libraries(named, ["NCCL"]).ranges == found.ranges
    plain = synthesize("allgather", "dgx-a100", [0, 1], engine="route", target="executor-nccl", costs="none", budget=5)
    assert leave_to_libraries(plain.result, ["NCCL"]).ranges == plain.result.ranges
    assert all(row(plain.result, offer)["libraries"] == {} for offer in plain.result.ranges)
