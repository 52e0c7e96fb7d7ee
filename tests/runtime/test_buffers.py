"""Tests of the places of elements in the caller's buffers."""

from __future__ import annotations

import pytest

from runtime.buffers import overlaps_itself


@pytest.mark.parametrize(
    ("shape", "strides", "overlaps"),
    [
        ((2, 3), (3, 1), False),
        ((2, 3), (1, 2), False),
        ((2, 3), (8, 2), False),  # a view with gaps
        ((), (), False),
        ((0, 3), (1, 0), False),
        ((1, 3), (0, 1), False),
        ((4, 3), (0, 1), True),  # an expanded tensor
        ((3, 3), (1, 1), True),
        ((3, 3), (2, 1), True),  # overlapping windows
        ((2, 2, 2), (4, 3, 1), True),  # 4 is reached twice
        ((2, 3), (3, 2), False),  # 0, 2, 4, 3, 5 and 7
    ],
)
def test_elements_that_share_a_place_are_found(
    shape: tuple[int, ...], strides: tuple[int, ...], overlaps: bool
) -> None:
    assert overlaps_itself(shape, strides) == overlaps
