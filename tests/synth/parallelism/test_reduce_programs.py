"""Reduction programs as schedules: right, without barriers, and compared with their rivals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from synth.concurrent.union import UnionProblem
from synth.model.problem import Problem
from synth.parallelism.axes import parse_axes, parse_over
from synth.parallelism.reduction.concrete import concrete
from synth.parallelism.reduction.join_steps import Reduction, join_steps
from synth.parallelism.reduction.reduce_programs import (
    ProgramSearch,
    ReductionTuning,
    reduce_programs,
    reduction,
    single_step,
    statement,
)
from synth.parallelism.reduction.requests import REDUCTION, reduction_groups, synthesis_hierarchy
from synth.parallelism.reduction.sequences import sequences
from synth.parallelism.reduction.states import SynthesisHierarchy
from synth.parallelism.reduction.step_costs import StepCosts
from synth.parallelism.reduction.step_schedules import library_schedules
from synth.verify.algorithm import Algorithm
from tests.oracles import plain_replay
from topologies.errors import InputError
from topologies.levels.hierarchy import Hierarchy, Level
from topologies.load import load

SIZE = float(1 << 22)
RING_AND_PCIE = """name = "ring and PCIe"
ranks = 4
switches = ["pcie"]
[[links]]
pairs = "0>1 1>2 2>3 3>0"
both = true
gbs = 75
alpha_us = 0.7
[[links]]
from = "0-3"
to = "pcie"
both = true
gbs = 13
alpha_us = 2.5
"""


def request(topo: str, axes: str, over: str, matrix: tuple[tuple[int, ...], ...], *sizes: int) -> ProgramSearch:
    """Return a search for ranks in order, with levels of the given sizes."""
    topology = load(topo)
    levels = Hierarchy(tuple(Level(f"l{i}", size) for i, size in enumerate(sizes)), np.arange(topology.nranks))
    named = parse_axes(axes, levels)
    places = parse_over(over, named)
    levels_of_groups = synthesis_hierarchy(REDUCTION, levels, named, matrix, places)
    question = reduction(topology, reduction_groups(levels, matrix, places).tolist(), SIZE)
    return ProgramSearch(question, levels_of_groups, sequences(levels_of_groups, 3))


@pytest.fixture(scope="module")
def two_levels() -> ProgramSearch:
    """Return a search for groups of four over two levels of a fat tree."""
    return request("fattree:4", "dp=4,tp=4", "dp", ((2, 2), (2, 2)), 4, 4)


def test_every_program_is_one_right_schedule_without_barriers(two_levels: ProgramSearch) -> None:
    """Check each program with a plain executor too, and that it takes no longer than its steps one after the other."""
    overlapped = 0
    for steps in sequences(two_levels.hierarchy, 3):
        concrete_steps = concrete(steps, two_levels.hierarchy)
        schedules = [two_levels.library(step, ("ring",))[0] for step in concrete_steps]
        algorithm = join_steps(two_levels.request, concrete_steps, schedules, 2100)
        took, apart = algorithm.time_us(SIZE), sum(own.time_us for own in schedules)
        assert took <= apart * (1 + 1e-9)
        overlapped += took < apart * 0.98
        if len(algorithm.schedule) < 600:
            assert plain_replay.is_right(algorithm.problem, algorithm.timed(SIZE))
    assert overlapped


def test_a_schedule_of_another_step_is_refused(two_levels: ProgramSearch) -> None:
    steps = next(s for s in sequences(two_levels.hierarchy, 3) if [x.collective for x in s] == ["reduce", "broadcast"])
    concrete_steps = concrete(steps, two_levels.hierarchy)
    schedules = [two_levels.library(step, ("ring",))[0] for step in concrete_steps]
    with pytest.raises(ValueError, match=r"send|chunk|rank"):
        join_steps(two_levels.request, concrete_steps[::-1], schedules[::-1], 4000)


def test_a_program_beats_the_ring_where_groups_share_a_nic() -> None:
    """Check two nodes that share one NIC each, as on NDv2: the ring of all ranks crosses it with more bytes."""
    search = request("fattree:4", "dp=8,tp=2", "dp", ((2, 2, 2), (2, 1, 1)), 4, 2, 2)
    single = search.single(("ring",))
    assert single is not None
    best = min(filter(None, (search.by_library(s, ("ring",)) for s in search.ranked[:4])), key=lambda p: p.time_us)
    assert best.time_us <= single.time_us


def test_the_formula_is_no_less_than_the_schedule(two_levels: ProgramSearch) -> None:
    """Check rings, which are at least as good as the formula's, in programs that may overlap."""
    costs = StepCosts(two_levels.request, two_levels.hierarchy)
    for steps in sequences(two_levels.hierarchy, 2):
        program = two_levels.by_library(steps, ("ring",))
        assert program is not None
        assert costs.overlapped_us(steps) <= costs.in_turn_us(steps)
        assert program.time_us <= costs.in_turn_us(steps) * 1.1


def test_answer_has_programs_rivals_and_a_bound() -> None:
    search = request("ring:8", "dp=4,tp=2", "dp", ((2, 2), (2, 1)), 4, 2)
    result = reduce_programs(
        search.request, search.hierarchy, sequences(search.hierarchy, 3), budget=1.0, tuning=ReductionTuning(joined=2)
    )
    document = statement(result)
    times = [program["time_us"] for program in document["programs"]]
    assert times
    assert times == sorted(times)
    assert document["searched"]["time_us"] <= times[0] * 1.02
    assert document["bound_us"] <= min(*times, document["searched"]["time_us"]) * (1 + 1e-9)
    assert set(document["programs"][0]["steps"][0]) == {"collective", "slice", "form"}
    assert document["gap"] >= 1 - 1e-9


class Slow:
    """An executor that takes twice as long as schedules do."""

    def isolated(self, problem: Problem) -> None:  # noqa: ARG002
        return None

    def rank_sends(self, union: UnionProblem) -> None:  # noqa: ARG002
        return None

    def time_us(self, union: UnionProblem, algorithm: Algorithm) -> float:
        return 2 * algorithm.time_us(union.size_bytes)


def test_times_are_those_of_the_executor() -> None:
    """Check the times of all compared programs, and that the search uses a program faster than its own answer."""
    search = request("line:4", "dp=2,tp=2", "dp", ((2, 1), (1, 2)), 2, 2)
    result = reduce_programs(
        search.request,
        search.hierarchy,
        sequences(search.hierarchy, 3),
        budget=20,
        executor=Slow(),
        tuning=ReductionTuning(joined=2),
    )
    for program in result.programs:
        assert program.time_us == pytest.approx(2 * program.algorithm.time_us(search.request.size_bytes))
    assert result.searched_us <= result.programs[0].time_us
    assert result.searched_us >= 2 * result.bound_us * (1 - 1e-9)


def test_unconnected_groups_have_relays() -> None:
    question = reduction(load("ring:8"), [(0, 4), (1, 5), (2, 6), (3, 7)], SIZE)
    assert question.relays == "all"
    assert reduction(load("ring:8"), [(0, 1), (2, 3)], SIZE).relays == "none"
    with pytest.raises(InputError):
        reduction(load("ring:8"), [(0, 8)], SIZE)


def test_programs_whose_relays_hold_sums_are_replaced() -> None:
    """Check groups over two islands and two nodes, relayed by ranks of their reduction: many programs do not join."""
    search = request("ndv2:2", "dp=4,tp=4", "dp", ((2, 2, 1), (1, 1, 4)), 2, 2, 4)
    assert search.request.relays == "all"
    first = next(steps for steps in search.ranked if len(steps) > 1)
    assert search.by_library(first, ("ring",)) is None
    result = reduce_programs(search.request, search.hierarchy, sequences(search.hierarchy, 3), budget=0.0)
    assert any(len(program.steps) > 1 for program in result.programs)


def test_relays_beat_the_group_s_own_ranks(tmp_path: Path) -> None:
    """Check opposite ranks of a ring: the path through the others is faster than their own slow switch."""
    (tmp_path / "node.toml").write_text(RING_AND_PCIE)
    topology = load(tmp_path / "node.toml")
    pair_hierarchy = SynthesisHierarchy(("gpu",), (2,), (0,) * 2)
    within, relayed = (
        reduce_programs(
            reduction(topology, [(0, 2), (1, 3)], SIZE, relays), pair_hierarchy, sequences(pair_hierarchy), budget=0.0
        )
        for relays in ("none", "all")
    )
    assert statement(relayed)["relay"] == "all"
    assert relayed.bound_us * (1 - 1e-9) <= relayed.best_us < within.bound_us
    assert within.single is not None
    assert relayed.single is not None
    assert relayed.single.time_us == pytest.approx(within.single.time_us)  # A library's rings stay within the group.


def test_single_step_is_the_library_s_all_reduce() -> None:
    node_hierarchy = SynthesisHierarchy(("gpu",), (4,), (0,) * 4)
    question = Reduction(load("dgx-a100"), ((0, 1, 2, 3), (4, 5, 6, 7)), SIZE)
    (step,) = concrete(single_step(node_hierarchy), node_hierarchy)
    names = {own.engine for own in library_schedules(question, step)}
    assert {"ring", "tree"} <= names
