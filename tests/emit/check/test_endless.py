"""The check of a program ends at its deadline, whatever it runs."""

from __future__ import annotations

from functools import partial

import pytest

from emit.check.executor import execute
from emit.check.program import check
from emit.compiler.lower import lower
from emit.mscclpp.format import check_plan, write_plan
from synth.baselines import baseline
from synth.model.deadline import TimeUp, limited, now
from synth.model.problem import make_problem
from topologies.load import load


def test_threadblocks_that_release_each_other_for_ever() -> None:
    with pytest.raises(TimeUp):
        limited(now() + 0.1, partial(execute, 2, lambda block: [1 - block]))


def test_every_check_looks_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a check whose time is over after it has begun does not go on to its end."""
    algorithm = baseline(make_problem(load("full:4"), "allgather"))[0]
    program, _ = lower(algorithm, "all-gather")
    plan = write_plan(program)
    for work in (
        partial(lower, algorithm, "all-gather"),
        partial(check, program),
        partial(check_plan, plan),
        partial(write_plan, program),
    ):
        looks = [0.0]

        def until(looks: list[float] = looks) -> float:
            looks[0] += 1
            return float("inf") if looks[0] <= 2 else 0.0

        with monkeypatch.context() as patched:
            patched.setattr("synth.model.deadline._LOOK_S", 0.0)
            with pytest.raises(TimeUp):
                limited(until, work)
