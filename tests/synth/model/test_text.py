"""Tests of the texts of figures."""

from __future__ import annotations

import pytest

from synth.model.text import format_time


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
