"""Tests of the texts of figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.model.numbers import format_seconds, parse_seconds
from synth.model.problem import parse_ranks
from synth.model.text import format_gap, format_served, format_spans, format_time


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "0 µs"),
        (1.234, "1.23 µs"),
        (999.4, "999 µs"),
        (999.7, "1 ms"),
        (5370, "5.37 ms"),
        (999_700, "1 s"),
        (2e9, "2000 s"),
    ],
)
def test_times_have_three_digits_and_the_unit_of_what_is_shown(microseconds: float, text: str) -> None:
    assert format_time(microseconds) == text


@given(st.floats(1.0, 1.01) | st.integers(-80, -20).map(lambda tenth: 1 + 10 ** (tenth / 10)))
def test_a_gap_reads_as_one_only_if_only_rounding_is_above_it(gap: float) -> None:
    """Check that the text is rounded at its last digit, and has more than three decimals only where it must."""
    text = format_gap(gap)
    assert float(text) > 1.0 or gap < 1 + 6e-9
    assert abs(float(text) - gap) <= 0.51 * 10.0 ** -len(text.partition(".")[2])
    assert len(text) == 5 or gap < 1.0006


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6, unique=True), st.integers(1, 9))
def test_spans_are_groups_as_they_are_asked_for(firsts: list[int], length: int) -> None:
    """Check that spans can be typed as a process group again, whatever the order of the ranks."""
    ranks = [50 * first + rank for first in firsts for rank in range(length)]
    text = format_spans(ranks)
    if "…" not in text:
        assert list(parse_ranks(text, "--group", 4096)) == ranks
    assert text.count(",") <= 6


@given(st.floats(1e-3, 1e5))
def test_a_proposed_time_is_enough_and_can_be_typed(seconds: float) -> None:
    """Check that a rounded time is no shorter, and never so much longer that less than a second becomes one."""
    proposed_s = parse_seconds(format_seconds(seconds), "--budget")
    assert seconds * (1 - 1e-9) <= proposed_s <= max(seconds + 1e-3, 1.2 * seconds if seconds > 5 else seconds + 1)
    assert seconds >= 1 or proposed_s <= seconds + 1.1e-3


def test_spans_of_many_parts_are_cut() -> None:
    assert format_spans(range(0, 20, 2)) == "0,2,4,6,8,…,18"
    assert format_spans([0, 1, 4, 5, 6, 3]) == "0,1,4-6,3"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0, None, "all sizes"), (5, 5, "5 B"), (0, 4, "up to 4 B"), (6, 14719, "6 B to 14.4 KiB"),
        (0, 1 << 18, "up to 256 KiB"), (0, (1 << 18) - 1, "below 256 KiB"), (1 << 18, None, "from 256 KiB"),
        ((1 << 18) + 1, None, "over 256 KiB"), (1 << 10, (1 << 20) - 1, "1 KiB to <1 MiB"),
        (0, (4 << 30) - 256, "below 4 GiB"), (1 << 20, (4 << 30) - 256, "1 MiB to <4 GiB"),
        ((1 << 18) + 1, 1 << 31, ">256 KiB to 2 GiB"), (37376, 1 << 20, "36.5 KiB to 1 MiB"),
    ],
)  # fmt: skip
def test_ranges_say_which_ends_they_serve(low: int, high: int | None, text: str) -> None:
    assert format_served(low, high) == text


def test_neighbouring_ranges_name_one_end_and_only_one_of_them_serves_it() -> None:
    for size in [*range(1 << 10, 1 << 11), *((1 << e) + d for e in range(11, 40) for d in (-1, 0, 1))]:
        lower, upper = format_served(0, size), format_served(size + 1, None)
        assert lower.split()[-2:] == upper.split()[-2:] or not upper.startswith("over")
        assert (lower.startswith("below"), upper.startswith("over")) != (True, True)
