"""Tests of schedules as programs in memory: they are right without a reader's limits, and with all waits named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emit.check.program import check
from emit.compiler import waits
from emit.compiler.unlimited import MOST_RANKS, lower_unlimited
from emit.goal import Goal
from emit.program import Program
from runtime.bench import Settings, measure
from runtime.host.executor import HostExecutor
from synth.baselines import baseline_named
from synth.model.collective import named
from synth.model.problem import make_problem
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError
from topologies.load import load


def direct(collective: str, topo: str) -> Algorithm:
    """Return the first algorithm that sends every chunk directly."""
    topology = load(topo)
    problem = make_problem(topology, named(collective, topology.nranks, 1), tuple(range(topology.nranks)))
    return baseline_named(problem, "direct")[0]


def run(program: Program, goal: Goal | None) -> int:
    """Return the number of wrong elements after three launches."""
    return measure(program, goal, 1 << 18, HostExecutor(program, goal), Settings(iterations=3, warmup=0)).wrong


@pytest.mark.parametrize(("collective", "topo"), [("alltoall", "full:48"), ("allgather", "ring:12")])
def test_programs_beyond_all_limits_run(collective: str, topo: str) -> None:
    program, goal = lower_unlimited(direct(collective, topo), collective)
    assert check(program, goal, target=None).ok
    assert run(program, goal) == 0


def test_programs_with_all_waits_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = direct("allgather", "mesh:3x3")
    usual = lower_unlimited(algorithm, "one")[0]
    monkeypatch.setattr(waits, "TUNING", replace(waits.TUNING, most_clock_entries=0))
    all_waits, goal = lower_unlimited(algorithm, "other")
    assert all_waits.nsteps >= usual.nsteps
    assert check(all_waits, goal, target=None).ok
    assert run(all_waits, goal) == 0


def test_too_many_ranks_are_refused() -> None:
    with pytest.raises(InputError, match=rf"{MOST_RANKS + 1} ranks; it must be at most {MOST_RANKS}"):
        lower_unlimited(direct("sendrecv", f"ring:{MOST_RANKS + 1}"), "sendrecv")
