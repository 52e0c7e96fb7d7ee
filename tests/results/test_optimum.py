"""The table of optima: what is asked, drawn and told."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from results.scripts import optimum
from synth.bounds.cuts.worst_cut import WorstCut
from topologies.load import load


def test_a_row_is_the_optimum_and_a_schedule_over_it() -> None:
    row = optimum.measured(load("ring:3"), "allgather", 2.0)
    assert row.cut.us_per_byte == Fraction(2, 300_000)  # two thirds over the 100 GB/s into a rank
    assert row.exact
    assert 1 <= row.ratio < 1.001
    told = optimum.text([row, replace(row, ratio=1.2)], 9, 2.0)
    assert "2 of 9 questions" in told
    assert "met by 1 of 2" in told
    assert "1.2000 (not met)" in told
    assert "1/150000" in told


def test_an_optimum_that_a_schedule_beats_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    worse = WorstCut(np.array([True, False, False]), np.array([0]), Fraction(1, 1000))
    found = optimum.worst_cuts
    monkeypatch.setattr(optimum, "worst_cuts", lambda *given: replace(found(*given), found=(worse,)))
    with pytest.raises(AssertionError, match="faster than its optimum"):
        optimum.measured(load("ring:3"), "allgather", 2.0)
