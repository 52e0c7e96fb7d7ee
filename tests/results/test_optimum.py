"""Tests of the table of optima: its questions, rows and text."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from results.scripts import optimum
from synth.bounds.cuts.worst_cut import WorstCut
from topologies.load import load


def test_a_row_compares_a_schedule_with_the_optimum() -> None:
    row = optimum.measured(load("ring:3"), "allgather", 2.0)
    assert row.cut.us_per_byte == Fraction(2, 300_000)  # Two thirds enter a rank at 100 GB/s.
    assert row.exact
    assert 1 <= row.ratio < 1.001
    text = optimum.text([row, replace(row, ratio=1.2)], 9, 2.0)
    assert "2 of 9 questions" in text
    assert "met by 1 of 2" in text
    assert "1.2000 (not met)" in text
    assert "1/150000" in text


def test_an_optimum_that_a_schedule_beats_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    worse = WorstCut(np.array([True, False, False]), np.array([0]), Fraction(1, 1000))
    worst_cuts = optimum.worst_cuts
    monkeypatch.setattr(optimum, "worst_cuts", lambda *arguments: replace(worst_cuts(*arguments), cuts=(worse,)))
    with pytest.raises(AssertionError, match="faster than its optimum"):
        optimum.measured(load("ring:3"), "allgather", 2.0)
