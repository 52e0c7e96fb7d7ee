"""Tests that instances of a program fill links, also where ranks relay, so that the program's goal is custom."""

from __future__ import annotations

from pathlib import Path

import pytest

from emit.formats import FORMATS, verify_file
from emit.library.programs import Programs
from synth.baselines import baseline
from synth.model.problem import make_problem
from synth.search.settings import TargetSettings
from topologies.costed import with_costs
from topologies.load import load

SIZE = 64 << 20


@pytest.mark.parametrize("target", ["msccl", "mscclpp"])
@pytest.mark.parametrize("group", [(0, 2, 9, 11), (1, 4, 5, 8)])
def test_instances_of_a_program_with_relays_are_right(group: tuple[int, ...], target: str, tmp_path: Path) -> None:
    """Check that their files reach the goal in finer chunks, and not the one in the chunks of the schedule."""
    topology = with_costs(load("dgx-a100:2"))
    relays = [rank for rank in range(topology.nranks) if rank not in group]
    problem = make_problem(topology, "allgather", group, relays).under("Simple")
    programs = Programs(problem, TargetSettings(target), size=SIZE)
    repeated = 0
    for number, algorithm in enumerate(baseline(problem)):
        lowered = programs.lower(algorithm)
        in_haste = programs.lower(algorithm, until=0.0)
        assert lowered.time_us(SIZE) <= 1.05 * in_haste.time_us(SIZE)
        programs.complete(lowered)
        path = tmp_path / f"{number}{FORMATS[programs.target.format].suffix}"
        path.write_text(lowered.text)
        assert verify_file(path, lowered.goal, target=target).status == "right"
        instances, remainder = divmod(lowered.common.cells.nchunks, algorithm.problem.collective.nchunks)
        assert remainder == 0
        if instances > 1:
            repeated += 1
            goal = programs.lower_once(algorithm, "Simple", SIZE, SIZE, until=0.0).goal
            if goal is not None and len(goal.initial[0]) != len(lowered.goal.initial[0]):
                assert verify_file(path, goal, target=target).status != "right"
    assert repeated
