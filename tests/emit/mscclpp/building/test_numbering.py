"""Tests of the last operations of threadblocks: who flushes its port, and who waits for a confirmation."""

from __future__ import annotations

import pytest

from emit.mscclpp.building.numbering import _flushes
from emit.mscclpp.building.threadblocks import SymbolicOp

SEND, OTHER_STEP = 5, 4


def ops_after_put(*ops: SymbolicOp) -> list[SymbolicOp]:
    """Return the operations of a threadblock that puts data of the step SEND, and then does what is given."""
    return [SymbolicOp("nop"), SymbolicOp("pws", sends=[SEND], kind="port"), *ops]


def test_a_flush_keeps_nobody_waiting() -> None:
    """Check that those who wait for the send hear before the put is flushed, and that last waits stay behind it."""
    ops = ops_after_put(SymbolicOp("sem_release", steps=[SEND]), SymbolicOp("wait", sends=[OTHER_STEP]))
    assert _flushes(ops, SEND)
    assert [op.name for op in ops] == ["nop", "sem_release", "pwsf", "wait"]


@pytest.mark.parametrize(
    "after",
    [
        SymbolicOp("sem_release", steps=[OTHER_STEP]),
        SymbolicOp("pws", sends=[OTHER_STEP], kind="port"),
        SymbolicOp("signal", sends=[OTHER_STEP], kind="memory"),
        SymbolicOp("re"),
    ],
)
def test_what_others_need_is_not_put_off_by_a_flush(after: SymbolicOp) -> None:
    ops = ops_after_put(SymbolicOp("sem_release", steps=[SEND]), after)
    names = [op.name for op in ops]
    assert not _flushes(ops, SEND)
    assert [op.name for op in ops] == names


def test_a_send_without_a_put_of_its_own_cannot_flush() -> None:
    assert not _flushes(ops_after_put(), OTHER_STEP)
