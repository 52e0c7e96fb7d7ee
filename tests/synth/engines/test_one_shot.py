"""All-reduce with a separate sum for every rank: right, stored, lowered and carried to other groups."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from emit.check.program import check
from emit.compiler.lower import forms, lower
from emit.targets import target_named
from synth.app.clusters.carried import relabel
from synth.app.synthesis import synthesize
from synth.bounds.prove import prove
from synth.engines.one_shot import NAME, accepts, least_time
from synth.engines.request import Options
from synth.model.collective import named, one_shot, subdivided
from synth.model.problem import Problem, make_problem
from synth.storage.schedule_file import load_schedule
from synth.timing.simulate import timed
from synth.verify.algorithm import Algorithm
from tests.random_problems import answered
from tests.synth.storage.stored_files import members, rewritten, written
from tests.synth.symmetry.test_canonical import DGX1, form
from topologies.errors import InputError
from topologies.load import load


def one_shot_algorithm(problem: Problem, chunks: int = 1) -> Algorithm:
    whole = replace(problem, collective=one_shot(problem.collective)).with_chunks(chunks)
    return Algorithm(whole, timed(whole, answered(whole, 1e3), 1e3), NAME)  # The constructor replays the schedule.


def test_a_sum_for_every_rank_is_numbered_by_rank_then_chunk() -> None:
    whole, parts = one_shot(named("allreduce", 3, 2)), subdivided(one_shot(named("allreduce", 3, 1)), 2)
    assert whole.equals(parts)
    assert whole.post.tolist() == [[0, 0], [0, 1], [1, 2], [1, 3], [2, 4], [2, 5]]
    assert (whole.is_one_shot, named("allreduce", 3, 2).is_one_shot) == (True, False)


def test_no_contribution_goes_further_than_the_longest_shortest_path() -> None:
    """Check a cube without a corner: three steps, where reducing to a rank and broadcasting takes four."""
    problem = make_problem(load("hypercube:3"), "allreduce", (0, *range(2, 8)))
    algorithm = one_shot_algorithm(problem)
    assert algorithm.steps == 3
    assert algorithm.time_us(1024) < 1.05 * prove(problem).at(1024)[0]


def test_it_can_be_requested_by_name() -> None:
    result = synthesize("allreduce", "line:3", engine=NAME, size="1K", target="none", budget=2).result
    assert result.ranges[0].algorithm.engine == NAME
    assert result.ranges[0].algorithm.steps == 2


def test_all_of_many_ranks_are_reached_in_the_latency_of_the_longest_shortest_path() -> None:
    """Check the quotient of a torus of 6 by 6 by its translations; reducing and broadcasting takes twice the time."""
    result = synthesize("allreduce", "torus:6x6", engine=NAME, size="1K", target="none", budget=10).result
    best = result.ranges[0]
    assert best.algorithm.engine == NAME
    assert best.algorithm.steps == 6
    assert best.time_us(1024) < 1.05 * result.bound.at(1024)[0]


@pytest.mark.parametrize(("group", "relays"), [((0, 1, 2, 4), ()), ((0, 1, 6, 7), (2, 3, 4, 5))])
def test_it_becomes_programs_of_each_form(group: tuple[int, ...], relays: tuple[int, ...]) -> None:
    """Check that in place, the data that other ranks' sums begin with stays until they have it."""
    for chunks in (1, 3):
        algorithm = one_shot_algorithm(make_problem(DGX1, "allreduce", group, relays), chunks)
        for inplace in forms(algorithm.problem):
            program, goal = lower(algorithm, "x", limits=target_named("msccl").limits, inplace=inplace)
            assert program.nchunks_per_loop == chunks
            report = check(program, goal, target="msccl")
            assert report.ok
            assert report.judged


def test_a_file_states_its_engine(tmp_path: Path) -> None:
    path = written(tmp_path, one_shot_algorithm(make_problem(load("line:4"), "allreduce"), 2).problem)
    stored = load_schedule(path)
    assert stored.as_named
    assert stored.bounded_problem.collective.equals(named("allreduce", 4, 1))  # Bounds are about this collective.


def test_a_file_of_another_collective_with_this_engine_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, make_problem(load("line:4"), "allgather"))
    inside = members(path)
    inside["header.json"] = inside["header.json"].replace(b'"columns":', b'"one_shot": true, "columns":', 1)
    rewritten(path, inside)
    with pytest.raises(InputError, match="one_shot: it must be false for allgather"):
        load_schedule(path)


def test_it_is_carried_to_another_group_of_the_same_network() -> None:
    problem, group = make_problem(DGX1, "allreduce", (0, 1, 2, 4)), (4, 0, 6, 5)
    order = next(np.array(o) for o in permutations(range(4)) if form(tuple(problem.group[i] for i in o)) == form(group))
    algorithm = one_shot_algorithm(problem, 2)
    carried_algorithm = relabel(algorithm, make_problem(DGX1, "allreduce", group), order)
    assert carried_algorithm.problem.collective.equals(algorithm.problem.collective)
    assert carried_algorithm.time_us(1024) == algorithm.time_us(1024)


def test_it_is_for_all_reduce_of_one_group() -> None:
    assert accepts(make_problem(load("ring:5"), "broadcast"), Options()) == "one-shot is for allreduce"
    assert "takes no shape" in accepts(make_problem(load("ring:5"), "allreduce"), Options(chunks=2))


@pytest.mark.parametrize("name", ["full:4", "ring:5", "dgx-a100", "dgx1"])
def test_no_schedule_beats_the_time_by_which_sizes_are_left_out(name: str) -> None:
    """Check it against direct sends: where all ranks are linked, these take that time but for the last latency."""
    group = (0, 2, 4, 6) if name == "dgx-a100" else tuple(range(4))
    problem = make_problem(load(name), "allreduce", group, relays=(4,) if name == "ring:5" else ())
    latency_us, us_per_byte = least_time(problem)
    size = 1 << 24
    least_us, time_us = latency_us + us_per_byte * size, one_shot_algorithm(problem).time_us(size)
    assert least_us <= time_us * (1 + 1e-9)
    assert name in ("ring:5", "dgx1") or time_us < least_us + 2.0
