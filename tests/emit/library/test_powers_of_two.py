"""Tests that groups whose size is no power of two have files for messages that are powers of two."""

from __future__ import annotations

from emit.library.lowered import Lowered
from emit.library.programs import Programs
from emit.mscclpp.format import check_plan
from synth.baselines import baseline
from synth.model.problem import make_problem
from synth.search.settings import TargetSettings
from topologies.load import load

_SIZE = 1 << 16


def test_programs_of_few_ranks_stand_for_ranks_that_sum_unlike_numbers_of_cells() -> None:
    """Check a direct all-reduce of 18 ranks, in whose blocks of 3 or 4 of 64 cells every ninth is alike."""
    problem = make_problem(load("full:18"), "allreduce")
    programs = Programs(problem, TargetSettings("mscclpp"), size=_SIZE)
    algorithm = next(a for a in baseline(problem) if a.engine == "direct")
    lowered = programs.lower(algorithm)
    assert isinstance(lowered, Lowered)
    assert lowered.serves(_SIZE)
    assert _SIZE % lowered.divides == 0
    assert lowered.program.translations == ((9, 2),)
    programs.complete(lowered)
    assert check_plan(lowered.text).ok
