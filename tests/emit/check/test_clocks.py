"""Clocks of a plan's threadblocks: memory is bounded by what is on its way, not by what was ever said."""

from __future__ import annotations

import pytest

from emit.check import clocks
from emit.check.capacity import Capacity
from emit.check.clocks import ThreadClocks
from topologies.errors import InputError


@pytest.mark.parametrize("relaxed", [False, True])
def test_what_was_heard_is_forgotten(relaxed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "CAPACITY", Capacity(clock_entries=16))
    made = ThreadClocks([0, 0, 1, 1], merged=False)
    for _ in range(1000):
        made.hear(2, made.message(0, relaxed))
        made.nop(2)
        made.packet(1)

    def say_unheard() -> None:
        for _ in range(1000):
            made.hear(2, made.message(0, relaxed))

    with pytest.raises(InputError, match="too many signals in flight"):
        say_unheard()


def test_what_is_said_is_known_from_the_next_nop_on() -> None:
    made = ThreadClocks([0, 1], merged=True)
    made.nop(0)
    made.hear(1, made.message(0))
    assert not made.started(1, 0, 0)
    made.nop(1)
    assert made.started(1, 0, 0)
