"""Tests of the verdicts in the table of reduction programs."""

from __future__ import annotations

import pytest

from results.scripts.reduction_programs import CANNOT, FREE, LOST, PROGRAM, RELAYED, TIED, WITHIN, WON, Case, summary


def case(ring: float, tree: float, program: float, bound: float, relayed: float, free: float) -> Case:
    times_us = {"ring": ring, "tree": tree, PROGRAM: program, WITHIN: bound, RELAYED: relayed, FREE: free}
    return Case("a case", times=2, took=times_us)


@pytest.mark.parametrize(
    ("measured_case", "against", "verdict"),
    [
        (case(100, 150, 90, 80, 90, 80), "ring", WON),
        (case(100, 95, 95, 80, 95, 80), "", TIED),
        (case(100, 150, 100, 99.5, 100, 99.5), "ring", CANNOT),
        (case(100, 150, 103, 99.5, 103, 99.5), "ring", CANNOT),
        (case(100, 150, 103, 90, 103, 90), "ring", LOST),
    ],
)
def test_verdict(measured_case: Case, against: str, verdict: str) -> None:
    assert measured_case.verdict((against, PROGRAM, WITHIN)) == verdict


def test_relays_have_a_bound_of_their_own() -> None:
    """Check a ring that nothing within its groups beats, and a program that does by relays."""
    far = case(100, 100, 100, 100, 40, 30)
    assert far.verdict(("ring", PROGRAM, WITHIN)) == CANNOT
    assert far.verdict(("ring", RELAYED, FREE)) == WON


def test_a_pair_counts_as_often_as_it_occurs() -> None:
    won, tied = case(130, 130, 100, 90, 60, 30), case(100, 100, 100, 90, 100, 90)
    lines = summary([won, won, won, tied]).splitlines()
    within = next(line for line in lines if line.startswith("| program within its groups, against ring"))
    relayed = next(line for line in lines if line.startswith("| program, others may relay, against ring"))
    assert "| 8 | 75.0% |" in within
    assert "missed: best" in within
    assert "all reached" in relayed
