"""Tests for readers that allocate scratch before they serve a call: no file needs more than the limit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from emit.library.lowered import Lowered
from emit.library.saving.save import save
from emit.msccl.format import verify, write_msccl
from emit.msccl.read import read, read_msccl
from emit.targets import SCRATCH_LIMIT, TARGETS, on_devices
from synth.app.synthesis import synthesize
from synth.search.result import SearchResult
from synth.search.settings import TargetSettings
from tests.emit.small_programs import allpairs_allreduce
from topologies.errors import InputError

PAIRS = allpairs_allreduce(4)


def scratch_bytes(text: str) -> int:
    """Return the bytes that Microsoft's msccl allocates for a file of its dialect."""
    program = read_msccl(text)
    return (program.max_bytes + 1) * max(gpu.s_chunks for gpu in program.gpus) // program.nchunks_per_loop


@pytest.mark.parametrize("limit", [1 << 10, 1000, SCRATCH_LIMIT, 1 << 40])
def test_files_serve_only_sizes_within_the_limit(limit: int) -> None:
    target = on_devices(TARGETS["msccl"], 0, TargetSettings(scratch_limit=limit))
    text = write_msccl(PAIRS, target=target)
    assert scratch_bytes(text) <= limit
    assert scratch_bytes(write_msccl(replace(PAIRS, max_bytes=1 << 50), target=target)) <= limit
    one_more = replace(read_msccl(text), max_bytes=read_msccl(text).max_bytes + 2)
    assert (one_more.max_bytes + 1) * PAIRS.gpus[0].s_chunks // PAIRS.nchunks_per_loop >= limit
    small = replace(PAIRS, max_bytes=64)
    assert read_msccl(write_msccl(small, target=target)) == small
    with pytest.raises(InputError, match="--scratch-limit"):
        write_msccl(replace(PAIRS, min_bytes=1 << 45), target=target)


def test_other_targets_are_unchanged() -> None:
    assert 'maxBytes="0"' in write_msccl(
        PAIRS, target=on_devices(TARGETS["executor-nccl"], 0, TargetSettings(scratch_limit=1))
    )
    assert read_msccl(write_msccl(replace(PAIRS, max_bytes=1 << 40))).max_bytes == 1 << 40


def test_scratch_of_a_file_is_stated() -> None:
    text = write_msccl(PAIRS, target="msccl")
    assert any("of scratch a rank" in line for line in verify(text, target="msccl").lines)
    assert not any("scratch" in line for line in verify(text, target="executor-nccl").lines)
    hungry = text.replace(f'maxBytes="{read_msccl(text).max_bytes + 1}"', f'maxBytes="{1 << 50}"')
    assert hungry != text
    verdict = verify(hungry, target="msccl")
    assert verdict.status == "wrong"
    assert "more than any device has" in verdict.reason
    assert not read(hungry).refused["rccl"]


@pytest.fixture(scope="module")
def result() -> SearchResult:
    return synthesize("alltoall", "line:3", target="msccl", scratch_limit=1 << 20, chunks=1, engine="cpsat").result


def test_ranges_follow_the_limit(result: SearchResult, tmp_path: Path) -> None:
    """Check that sizes without a file have a row of their own, and that programs with less scratch serve them first."""
    limit = 1 << 20
    ends = [(served.low, served.high) for served in result.ranges]
    assert ends[0][0] == 0
    assert ends[-1][1] is None
    assert all(low == (high or 0) + 1 for (_, high), (low, _) in pairwise(ends))
    for served in result.ranges:
        by = served.execution
        if isinstance(by, Lowered) and by.largest is not None:
            assert served.high is not None
            assert served.high <= by.largest
        elif by is None:
            assert "--scratch-limit 1 MiB" in served.refused
    assert any(served.execution is None for served in result.ranges)
    assert any(served.execution is not None for served in result.ranges)
    written = save(result, tmp_path, TargetSettings("msccl", scratch_limit=limit))
    assert "--scratch-limit" in written.refused
    for files in written.files:
        if "file" in files:
            assert scratch_bytes(files["file"].read_text()) <= limit


def test_a_slower_algorithm_serves_a_size_for_which_the_fastest_needs_too_much_scratch() -> None:
    size = 1 << 20

    def fastest(limit: int) -> SearchResult:
        """Return the answer of one engine, which sends through relays, in as much scratch."""
        return synthesize(
            "reduce", "full:4", target="msccl", scratch_limit=limit, size=size, engine="route", costs="none"
        ).result

    large, small = fastest(1 << 30), fastest(1 << 10)
    assert any("--scratch-limit 1 KiB" in refused.refused for refused in small.refused)
    (offer,) = small.ranges
    assert isinstance(offer.execution, Lowered)
    assert offer.execution.takes(size)
    assert offer.time_us(size) > large.ranges[0].time_us(size)


def test_programs_of_another_limit_are_lowered_again(result: SearchResult, tmp_path: Path) -> None:
    written = save(result, tmp_path, TargetSettings("msccl"))
    ends = [max(s.high or 0 for s in search_result.ranges if s.execution) for search_result in (result, written.result)]
    assert ends[1] >= 1000 * ends[0]


def test_files_beyond_the_first_four_are_reported(result: SearchResult, tmp_path: Path) -> None:
    """Check that more files than the four that Microsoft's msccl loads from a list are reported."""
    served = next(candidate for candidate in result.ranges if candidate.execution is not None)
    five = [replace(served, low=1 << e, high=(1 << e + 1) - 1, shown=1 << e) for e in range(10, 15)]
    saved_four = save(
        replace(result, ranges=five[:4]), tmp_path / "four", TargetSettings("msccl", scratch_limit=1 << 20)
    )
    assert not any("loads only" in remark for remark in saved_four.remarks)
    saved_five = save(replace(result, ranges=five), tmp_path / "five", TargetSettings("msccl", scratch_limit=1 << 20))
    assert any("loads only 4 files" in remark for remark in saved_five.remarks)
