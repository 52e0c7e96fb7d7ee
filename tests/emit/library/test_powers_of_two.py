"""Tests that groups whose size is no power of two have files for messages that are powers of two."""

from __future__ import annotations

import numpy as np

from emit.library.lowered import Lowered
from emit.library.programs import Programs
from emit.mscclpp.format import check_plan
from emit.mscclpp.read import read_plan
from synth.baselines import baseline
from synth.model.problem import make_problem
from synth.search.settings import TargetSettings
from topologies.costed import with_costs
from topologies.load import load

_SIZE = 1 << 16


def test_programs_of_few_ranks_stand_for_ranks_that_sum_unlike_shares() -> None:
    """Check a direct all-reduce of 18 ranks: all are images of one, and the shares of the file differ by a chunk."""
    problem = make_problem(load("full:18"), "allreduce")
    programs = Programs(problem, TargetSettings("mscclpp"), size=_SIZE)
    algorithm = next(a for a in baseline(problem) if a.engine == "direct")
    lowered = programs.lower(algorithm)
    assert isinstance(lowered, Lowered)
    assert lowered.serves(_SIZE)
    assert _SIZE % lowered.divides == 0
    assert len(lowered.program.widths) == problem.nranks
    assert np.ptp(lowered.program.widths) == 1
    programs.complete(lowered)
    assert check_plan(read_plan(lowered.text)).ok


def test_ranks_of_a_node_sum_as_much() -> None:
    """Check three nodes, whose shares differ: ranks of one node sum the same, at the same time."""
    problem = make_problem(with_costs(load("dgx-a100:3")), "allreduce").under("LL")
    programs = Programs(problem, TargetSettings("mscclpp"), size=_SIZE)
    algorithms = [a for a in baseline(problem) if a.engine in ("direct", "ring")]
    assert len(algorithms) > 1
    for algorithm in algorithms:
        lowered = programs.lower(algorithm)
        assert isinstance(lowered, Lowered)
        if algorithm.engine == "direct":
            widths_of_node = np.array(lowered.program.widths).reshape(3, -1)
            assert np.ptp(widths_of_node[:, 0]) == 1
            assert not np.ptp(widths_of_node, axis=1).any()
        programs.complete(lowered)
        assert check_plan(read_plan(lowered.text)).ok
