"""Tests of programs in place and out of place, whose blocks are cut into cells that divide the message."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from emit.check.program import check
from emit.compiler.cuts import best_cuts
from emit.compiler.lower import lower
from emit.formats import write_program
from emit.goal import goals_of
from emit.program import WRITES_DST
from emit.targets import TARGETS
from emit.timing.predict import Predictor
from synth.app.synthesis import synthesize
from synth.model.common_chunk import cut_blocks
from synth.model.problem import LARGEST
from synth.model.registry import find_kind
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

TWO_FORM_COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")


def algorithm_of(collective: str, chunks: int) -> Algorithm:
    with Workers(()) as no_workers:
        options = {"engine": "flow", "chunks": chunks, "budget": 2, "workers": no_workers, "costs": "none"}
        return synthesize(collective, "dgx-a100", (0, 1, 2), **options).result.fastest(LARGEST).algorithm


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("collective", TWO_FORM_COLLECTIVES)
def test_both_forms_of_a_call(collective: str, inplace: bool) -> None:
    algorithm = algorithm_of(collective, 3)
    common = best_cuts(algorithm, [4, 8, 16, 32, 64])[0]
    assert common.cells.chunks in (4, 8, 16, 32, 64)
    for target in TARGETS.values():
        program, goal = lower(algorithm, "x", limits=target.limits, inplace=inplace, common=common)
        assert (program.inplace, program.outofplace) == (inplace, not inplace)
        assert write_program(program, goal, target)
    if inplace:  # An out-of-place program may be right in place, too.
        other_form = replace(program, inplace=not inplace, outofplace=inplace)
        assert not check(other_form, target=None).ok
    kind = find_kind(collective)
    for rank, _, _, step in program.steps():  # The caller's input must not change.
        written = step.op in WRITES_DST and step.dst_buf == "i"
        assert not (written and (not inplace or (kind.rooted and rank != program.root)))
    assert [form for form, _ in goals_of(program)] == [inplace]


@pytest.mark.parametrize("collective", ["alltoall", "gather", "scatter"])
def test_collectives_without_an_in_place_form_are_refused(collective: str) -> None:
    with pytest.raises(InputError, match=f"{collective}: has no form in place; it must be out of place"):
        lower(algorithm_of(collective, 1), "x", inplace=True)


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "broadcast", "alltoall"])
def test_cells_cost_little_time(collective: str) -> None:
    algorithm = algorithm_of(collective, 3)
    problem = algorithm.problem
    times, steps = [], []
    for common in (None, best_cuts(algorithm, [1 << e for e in range(2, 9)])[0]):
        program, _ = lower(algorithm, "x", common=common)
        times.append(Predictor(program, problem.topology, problem.ranks).time_us(LARGEST))
        steps.append(program.nsteps)
    assert times[1] <= 1.02 * times[0]
    assert steps[1] <= 1.3 * steps[0]


def test_cut_blocks_keep_their_size() -> None:
    collective = algorithm_of("allgather", 3).problem.collective
    common = cut_blocks(collective, [2, 1, 1])
    assert common.count.tolist() == [2, 1, 1] * 3
    assert common.cells.nchunks == 12
    assert common.cells.chunks == 4
    assert float(common.cells.fraction.sum()) == pytest.approx(float(collective.fraction.sum()))
    assert np.array_equal(common.first, [0, 2, 3, 4, 6, 7, 8, 10, 11])
    divisible = algorithm_of("allgather", 4)
    assert best_cuts(divisible, [4, 8])[0].cells is divisible.problem.collective  # Its chunks divide the sizes already.
