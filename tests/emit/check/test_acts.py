"""Tests of the names and places of acts in messages."""

from __future__ import annotations

from emit.check.acts import Act, Acts


def test_a_position_that_several_operations_share_is_named_as_their_pipeline() -> None:
    wait, get, release = Act("wait", 0, "wait"), Act("data", 1, "get"), Act("release", 1, "sem_release")
    acts = Acts(acts=[[wait, get, release, get, release], [get, get]], rank=[0, 0], tb=[0, 1])
    assert [acts.name(0, 0), acts.name(0, 1), acts.name(1, 1)] == ["wait", "pipeline", "get"]
