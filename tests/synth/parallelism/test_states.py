"""Reduction states and the sequences over them, against an executor that counts contributions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from synth.parallelism.axes import Axis, matrices
from synth.parallelism.reduction.concrete import concrete, shares
from synth.parallelism.reduction.requests import (
    AXES,
    LEVELS,
    REDUCTION,
    group_hierarchy,
    reduction_groups,
    synthesis_hierarchy,
    translated,
)  # fmt: skip
from synth.parallelism.reduction.sequences import ReductionStep, Sequence, sequences
from synth.parallelism.reduction.states import (
    COLLECTIVES,
    MASTER,
    Slice,
    State,
    SynthesisHierarchy,
    apply,
    goal,
    one_group,
    slices,
    start,
)
from tests.oracles import counted_steps
from topologies.errors import InputError
from topologies.levels.hierarchy import Hierarchy, Level

SHAPES = [(4,), (2, 2), (2, 3), (3, 2, 2)]


def hierarchy(factors: tuple[int, ...]) -> SynthesisHierarchy:
    return one_group([f"l{i}" for i in range(len(factors))], factors)


def counted(steps: Sequence, levels: SynthesisHierarchy) -> counted_steps.Memory | None:
    memory: counted_steps.Memory | None = counted_steps.begin(levels.ndevices, levels.pieces)
    for step in steps:
        if memory is not None:
            memory = counted_steps.run(step.collective, step.slice.groups(levels), memory)
    return memory


@pytest.mark.parametrize("factors", SHAPES)
def test_every_sequence_counts_each_contribution_once(factors: tuple[int, ...]) -> None:
    levels = hierarchy(factors)
    programs = sequences(levels, 3)
    assert programs
    assert len(set(programs)) == len(programs)
    for steps in programs:
        memory = counted(steps, levels)
        assert memory is not None
        assert counted_steps.is_right(memory, levels.group)


@pytest.mark.parametrize("factors", [(4,), (2, 2)])
def test_no_sequence_of_three_steps_is_missing(factors: tuple[int, ...]) -> None:
    """Check all sequences whose steps are allowed and useful, and which the counters call right."""
    levels = hierarchy(factors)
    steps = [(ReductionStep(name, cut), cut.groups(levels)) for cut in slices(levels) for name in COLLECTIVES]
    right = set()

    def extend(tried: Sequence, states: tuple[State, ...], memory: counted_steps.Memory) -> None:
        if counted_steps.is_right(memory, levels.group):
            right.add(tried)
        if len(tried) == 3 or states[-1] == goal(levels):
            return
        for step, groups in steps:
            after, counts = (
                apply(step.collective, groups, states[-1]),
                counted_steps.run(step.collective, groups, memory),
            )
            if after is not None and after not in states:
                assert counts is not None
                extend((*tried, step), (*states, after), counts)

    extend((), (start(levels),), counted_steps.begin(levels.ndevices, levels.pieces))
    assert right == set(sequences(levels, 3))


def test_planted_faults_are_noticed() -> None:
    """Check that a repeated step doubles contributions and a missing step loses some: both miss the goal."""
    levels = hierarchy((2, 4))
    doubled = missing = 0
    for steps in sequences(levels, 3):
        for place, step in enumerate(steps):
            for wrong in ((*steps[:place], step, *steps[place:]), (*steps[:place], *steps[place + 1 :])):
                state = start(levels)
                for wrong_step in wrong:
                    after = apply(wrong_step.collective, wrong_step.slice.groups(levels), state)
                    if after is None:
                        break
                    state = after
                else:
                    memory = counted(wrong, levels)
                    assert (state == goal(levels)) == (
                        memory is not None and counted_steps.is_right(memory, levels.group)
                    )
                    missing += state != goal(levels)
                    continue
                memory = counted(wrong, levels)
                doubled += memory is not None and any(
                    max(piece.values(), default=0) > 1 for own in memory for piece in own.values()
                )
    assert doubled
    assert missing


@pytest.mark.parametrize("factors", [(3, 2), (2, 4, 3)])
def test_parts_of_the_message_are_those_of_the_states(factors: tuple[int, ...]) -> None:
    levels = hierarchy(factors)
    for steps in sequences(levels, 4)[::7]:
        concrete_steps = concrete(steps, levels)
        whole = [{len(pieces) / levels.pieces for pieces in step.pieces} for step in concrete_steps]
        assert whole == [{share} for share in shares(steps, factors)]


@pytest.mark.parametrize(
    ("sizes", "axes", "over"),
    [((2, 4), (2, 4), (0,)), ((2, 4), (2, 4), (1,)), ((2, 2, 2), (4, 2), (0,)), ((2, 4), (2, 2, 2), (0, 2))],
)
def test_the_hierarchy_of_the_reduction_loses_nothing(
    sizes: tuple[int, ...], axes: tuple[int, ...], over: tuple[int, ...]
) -> None:
    """Check that a program over the network's levels, or over the factors of all axes, exists over the reduction's."""
    ranks = np.random.default_rng(2).permutation(math.prod(sizes))
    levels = Hierarchy(tuple(Level(f"l{i}", size) for i, size in enumerate(sizes)), ranks)
    named = [Axis(f"a{i}", size) for i, size in enumerate(axes)]
    for matrix in matrices(named, levels):
        own = synthesis_hierarchy(REDUCTION, levels, named, matrix, over)
        own_programs = set(sequences(own, 3))
        for kind in (AXES, LEVELS):
            wide = synthesis_hierarchy(kind, levels, named, matrix, over)
            wide_programs = sequences(wide, 3)
            assert len(wide_programs) == len(translated(wide_programs, wide, own))
            assert set(translated(wide_programs, wide, own)) <= own_programs
            assert wide_programs or kind == LEVELS


def test_groups_are_in_the_order_of_levels() -> None:
    levels = Hierarchy((Level("node", 2), Level("gpu", 4)), np.arange(8))
    assert reduction_groups(levels, ((2, 2), (1, 2)), (0,)).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert reduction_groups(levels, ((1, 2), (2, 2)), (1,)).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_names_of_slices() -> None:
    levels = hierarchy((2, 3, 4))
    names = {(cut.vertex(levels), cut.described(levels)) for cut in slices(levels)}
    assert len(names) == len(slices(levels))
    master = Slice(0, 1, MASTER)
    assert (master.vertex(levels), master.described(levels)) == ("l0", "master(all)")
    assert master.groups(levels) == ((0, 12),)


def test_refused() -> None:
    with pytest.raises(InputError, match="one rank"):
        one_group(["node"], [1])
    with pytest.raises(InputError, match="levels"):
        sequences(hierarchy((2,) * 5))
    with pytest.raises(InputError, match="too many"):
        sequences(SynthesisHierarchy(("a", "b"), (16, 16), tuple(i % 2 for i in range(256))))


@pytest.mark.parametrize("kind", [REDUCTION, AXES, LEVELS])
def test_groups_of_one_rank_are_refused_for_every_kind_of_hierarchy(kind: str) -> None:
    levels = Hierarchy((Level("node", 2), Level("gpu", 4)), np.arange(8))
    with pytest.raises(InputError, match="groups have one rank"):
        synthesis_hierarchy(kind, levels, [Axis("one", 1), Axis("all", 8)], ((1, 1), (2, 4)), (0,))


def test_too_many_levels_are_joined_from_the_innermost() -> None:
    joined = group_hierarchy(["rack", "one", "node", "island", "package", "gpu"], [2, 1, 4, 2, 2, 3])
    assert (joined.names, joined.factors) == (("rack", "node", "island", "package.gpu"), (2, 4, 2, 6))
    few = group_hierarchy(["node", "gpu"], [2, 8])
    assert (few.names, few.factors) == (("node", "gpu"), (2, 8))
