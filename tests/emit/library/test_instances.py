"""Tests that instances of a program fill links, also where ranks relay, so that the program's goal is custom."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from emit.compiler.lower import goal_columns
from emit.formats import PROGRAM_FORMATS, verify_file
from emit.goal import Goal
from emit.library import program_maker
from emit.library.program_maker import _is_faster
from emit.library.programs import Programs
from synth.baselines import baseline
from synth.bounds.prove import prove
from synth.engines.messages import search as messages
from synth.engines.request import Candidate, Options, Request
from synth.model.problem import make_problem
from synth.search.settings import TargetSettings
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from tests.synth.engines.knowledge import BestTimes
from topologies.costed import with_costs
from topologies.load import load

SIZE = 64 << 20


@pytest.mark.parametrize(("group", "target"), [((0, 2, 9, 11), "mscclpp"), ((1, 4, 5, 8), "msccl")])
def test_instances_of_a_program_with_relays_are_right(group: tuple[int, ...], target: str, tmp_path: Path) -> None:
    """Check that their files reach the goal in finer chunks, and not the one in the chunks of the schedule."""
    topology = with_costs(load("dgx-a100:2"))
    relays = [rank for rank in range(topology.nranks) if rank not in group and rank % 8 < 4]
    problem = make_problem(topology, "allgather", group, relays).under("Simple")
    programs = Programs(problem, TargetSettings(target), size=SIZE)
    repeated = 0
    for number, algorithm in enumerate(baseline(problem)):
        lowered = programs.lower(algorithm)
        in_haste = programs.lower(algorithm, until=0.0)
        assert lowered.time_us(SIZE) <= 1.05 * in_haste.time_us(SIZE)
        programs.complete(lowered)
        path = tmp_path / f"{number}{PROGRAM_FORMATS[programs.target.format].suffix}"
        path.write_text(lowered.text)
        assert verify_file(path, lowered.goal, target=target).status == "right"
        instances, remainder = divmod(lowered.common.cells.nchunks, algorithm.problem.collective.nchunks)
        assert remainder == 0
        if instances > 1:
            repeated += 1
            coarse = Goal.from_arrays(problem.nranks, **goal_columns(algorithm.problem.collective))
            assert verify_file(path, coarse, target=target).status != "right"
    assert repeated


def test_chunks_of_plans_are_as_small_as_schedules_want() -> None:
    """Check that only programs with FIFO slots have a smallest useful chunk."""
    problem = make_problem(with_costs(load("dgx-a100:2")), "allreduce").under("Simple")
    assert Programs(problem, TargetSettings("msccl"), size=SIZE).least_bytes(problem) > 0
    assert Programs(problem, TargetSettings("mscclpp"), size=SIZE).least_bytes(problem) == 0


def test_haste_divides_messages_inside_nodes_only() -> None:
    """Check that a program in haste fills the links of its nodes, and sends no more messages between nodes."""
    problem = make_problem(with_costs(load("dgx-h100:3")), "allgather", (1, 5, 9, 13, 17, 21)).under("Simple")
    programs = Programs(problem, TargetSettings("mscclpp"), size=SIZE)
    algorithm = min(baseline(problem), key=lambda algorithm: algorithm.time_us(SIZE))
    in_haste = programs.lower(algorithm, until=0.0)
    assert in_haste.repetition.is_inside
    assert in_haste.time_us(SIZE) < 1.1 * algorithm.time_us(SIZE)


def test_other_cuts_are_tried_while_a_program_is_much_slower_than_its_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check an all-reduce of 7 ranks whose chunks divide no power of two, so that messages wait for unlike ones."""
    size = 4 << 20
    problem = make_problem(with_costs(load("mi300x:7")), "allreduce", range(0, 56, 8)).under("Simple")
    request = Request(Options(size=size), (size,), np.inf, Workers(()), BestTimes(), prove(problem, max_flow=False))
    *_, best = (outcome for outcome in messages.solve(problem, request) if isinstance(outcome, Candidate))
    algorithm = Algorithm(best.problem, best.schedule, best.engine)
    times_us = []
    for most in (1, program_maker._MOST_CUTS):
        monkeypatch.setattr(program_maker, "_MOST_CUTS", most)
        times_us.append(Programs(problem, TargetSettings("mscclpp"), size=size).lower(algorithm).time_us(size))
    assert times_us[0] > 1.1 * algorithm.time_us(size)
    assert times_us[1] < 0.97 * times_us[0]


class _Timed:
    """A stand-in for a program that takes equally long at all sizes.

    Attributes:
        us: Its time in µs.
        sizes: Sizes at which it was timed.
    """

    def __init__(self, us: float) -> None:
        self.us, self.sizes = us, list[int]()

    def time_us(self, size: int) -> float:
        self.sizes.append(size)
        return self.us


@pytest.mark.parametrize(("us", "timed"), [(0.9, 3), (1.0, 3), (1.6, 2), (4.0, 1)])
def test_a_slower_program_is_not_timed_at_sizes_that_change_nothing(us: float, timed: int) -> None:
    program, other = _Timed(us), _Timed(1.0)
    assert _is_faster(program, other, [1, 2, 3]) == (us < other.us)  # type: ignore[arg-type]
    assert program.sizes == other.sizes == [1, 2, 3][:timed]
