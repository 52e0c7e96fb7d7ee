"""Tests of the verdict on failing ranks: faults are reported, right behaviour passes, and the cases fill a table."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

from results.measuring.failing_ranks import Case
from results.scripts.lost_ranks import SOON_S, Seen, cases, verdict

KILLED = Case("killed", 3, "synth")
STOPPED = Case("stopped", 3, "synth")
LOST = "allreduce: in vain; lost: rank 2 (its connection is closed)"


def rank(text: str, at: float, ended: bool = True) -> Seen:
    """Return a rank whose call began at second 1 and failed with this text."""
    return Seen([{"at": 1.0, "event": "begins"}, {"at": at, "event": "fails", "text": text}], ended, False)


def culprit(fault: float, killed: bool) -> Seen:
    return Seen([{"at": fault, "event": "fault"}], True, killed)


@pytest.mark.parametrize(
    ("case", "seen_rank", "expected"),
    [
        (KILLED, rank(LOST, 5.1), ""),
        (KILLED, rank(LOST, 5.1 + SOON_S), "late"),
        (KILLED, rank("allreduce: in vain; lost: rank 1, 2 (its connection is closed)", 5.1), "falsely accuses"),
        (KILLED, rank(f"two\n{LOST}", 5.1), "does not name it"),
        (KILLED, rank("Connection closed", 5.1), "does not name it"),
        (KILLED, rank(LOST, 5.1, ended=False), "hangs"),
        (KILLED, Seen([{"at": 1.0, "event": "begins"}, {"at": 2.0, "event": "passes"}], True, False), "does not fail"),
        (STOPPED, rank(LOST, 8.5), "falsely accuses"),
        (STOPPED, rank("late; no answer from rank 2: connected, so not lost", 8.5), ""),
        (Case("comes late, within the time-out", 3, "auto"), rank(LOST, 5.1), "falsely accuses"),
        (Case("comes late, within the time-out", 3, "auto"), rank("rank 2 ended", 5.1), "fails for nothing"),
    ],
)
def test_wrong_behaviour_is_reported(case: Case, seen_rank: Seen, expected: str) -> None:
    ranks = [seen_rank, seen_rank, culprit(5.0, case is KILLED)]
    assert verdict(case, 0, ranks)[0] == expected


def test_cases_are_many_and_distinct() -> None:
    assert len(set(cases())) == len(cases()) >= 100
    assert {case.ranks for case in cases()} == {2, 3, 4, 8}
    assert {case.mode for case in cases()} == {"synth", "auto", "synth, library"}
