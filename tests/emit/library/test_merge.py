"""Tests of merging overlapping files: no size gets slower or lost, and merging again changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from emit.library.entry import NO_END
from emit.library.saving.merge import merge
from synth.model.problem import LARGEST

SIZES = sorted({base << e for e in range(9, 30) for base in (2, 3, 5, 7)})


@dataclass(frozen=True, eq=False)
class TimedRange:
    """A rival with a given time and given messages."""

    low: int
    high: int
    time_us: Callable[[float], float]
    serves: Callable[[int], bool]
    precedence: int = 0


Part = tuple[TimedRange, int, int]


def rival(low: int, high: int, base_us: float, us_per_byte: float, divides: int = 1, precedence: int = 0) -> TimedRange:
    return TimedRange(
        low, high, lambda size: base_us + us_per_byte * size, lambda size: size % divides == 0, precedence
    )


@st.composite
def answers(draw: st.DrawFn) -> list[TimedRange]:
    """Draw files of one answer, whose ranges meet."""
    cuts = [0, *sorted(draw(st.sets(st.sampled_from(SIZES[:-20]), max_size=3)))]
    ends = [*(cut - 1 for cut in cuts[1:]), draw(st.sampled_from([NO_END - 1, LARGEST]))]
    costs = st.tuples(st.floats(1, 20), st.floats(1e-5, 1e-3), st.sampled_from([1, 1, 64]))
    return [rival(low, high, *draw(costs)) for low, high in zip(cuts, ends, strict=True)]


def serving(parts: Sequence[Part], size: int) -> TimedRange | None:
    parts_of_size = [server for server, low, high in parts if low <= size <= high]
    assert len(parts_of_size) < 2
    return parts_of_size[0] if parts_of_size else None


def at(candidates: list[TimedRange], size: int) -> TimedRange | None:
    return next((rival for rival in candidates if rival.low <= size <= rival.high), None)


def slower(parts: Sequence[Part], earlier_rivals: list[TimedRange]) -> list[int]:
    """Return the sizes that are now served slower than before, or by a file that does not take the message."""
    sizes = []
    for size in SIZES:
        was, now = at(earlier_rivals, size), serving(parts, size)
        power = size & (size - 1) == 0
        if was is not None and (
            now is None
            or (now.serves(size) or not power) < was.serves(size)
            or (now.time_us(size) > was.time_us(size) * (1 + 1e-9) and (was.serves(size) or not power))
        ):
            sizes.append(size)
    return sizes


@settings(max_examples=60)
@given(answers(), answers())
def test_nothing_gets_slower_and_no_size_is_lost(before: list[TimedRange], new: list[TimedRange]) -> None:
    parts = merge([*before, *new])
    assert [low for _, low, _ in parts] == [0, *(high + 1 for _, _, high in parts[:-1])]
    assert parts[-1][2] == max(before[-1].high, new[-1].high)
    plain = [rival_before for rival_before in (*before, *new) if rival_before.serves(1)]
    if len(plain) == len(before) + len(new):
        assert slower(parts, before) == []
    planted = [
        TimedRange(rival_before.low, rival_before.high, rival_before.time_us, rival_before.serves, precedence=-1)
        for rival_before in new
    ]
    for size in SIZES:
        was, now = at(before, size), at(new, size)
        if was and now and now.time_us(size) > 1.01 * was.time_us(size) and was.serves(size) >= now.serves(size):
            assert size in slower(merge([*before, *planted]), before)
            break


@settings(max_examples=40)
@given(answers(), answers())
def test_merging_again_changes_nothing(before: list[TimedRange], new: list[TimedRange]) -> None:
    parts = merge([*before, *new])
    now = [TimedRange(low, high, server.time_us, server.serves) for server, low, high in parts]
    for answer in (before, new):
        assert [ends for _, *ends in merge([*now, *answer])] == [[part.low, part.high] for part in now]


def test_one_size_is_cut_out_of_a_range() -> None:
    full_range, single_size = rival(0, NO_END - 1, 2, 1e-3), rival(1 << 20, 1 << 20, 1, 1e-3)
    ends = [(low, high, server is single_size) for server, low, high in merge([full_range, single_size])]
    assert ends == [(0, (1 << 20) - 1, False), (1 << 20, 1 << 20, True), ((1 << 20) + 1, NO_END - 1, False)]


def test_a_few_sizes_at_the_end_of_a_range_get_no_file() -> None:
    existing = [rival(0, 1 << 20, 1, 1e-3), rival((1 << 20) + 1, NO_END - 1, 0, 1e-4)]
    new = rival((1 << 20) - 50, NO_END - 1, 0.5, 1e-3)
    assert [server for server, _, _ in merge([*existing, new])] == existing
    assert [server for server, _, _ in merge([existing[0], new])] == [existing[0], new]
