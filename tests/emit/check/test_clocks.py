"""Tests that the clocks of a plan's threadblocks keep only signals in flight in memory."""

from __future__ import annotations

import pytest

from emit.check import clocks
from emit.check.capacity import CheckCapacity
from emit.check.clocks import ActorGroup, ThreadClocks
from topologies.errors import InputError


@pytest.mark.parametrize("relaxed", [False, True])
def test_received_signals_free_their_memory(relaxed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "CAPACITY", CheckCapacity(clock_entries=16))
    thread_clocks = ThreadClocks([0, 0, 1, 1], merged=False, group=ActorGroup(None))
    for _ in range(1000):
        thread_clocks.hear(2, thread_clocks.message(0, relaxed))
        thread_clocks.nop(2)
        thread_clocks.packet(1)

    def say_unheard() -> None:
        for _ in range(1000):
            thread_clocks.hear(2, thread_clocks.message(0, relaxed))

    with pytest.raises(InputError, match="too many signals in flight"):
        say_unheard()


def test_a_received_signal_orders_steps_after_the_next_nop() -> None:
    thread_clocks = ThreadClocks([0, 1], merged=True, group=ActorGroup(None))
    thread_clocks.nop(0)
    thread_clocks.hear(1, thread_clocks.message(0))
    assert not thread_clocks.started(1, 0, [0, 0])
    thread_clocks.nop(1)
    assert thread_clocks.started(1, 0, [0, 0])
