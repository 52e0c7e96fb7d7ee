"""Reduction states and the sequences over them, beside an executor that counts contributions."""

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
from synth.parallelism.reduction.sequences import Sequence, Step, sequences
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


def counted(steps: Sequence, made: SynthesisHierarchy) -> counted_steps.Memory | None:
    memory: counted_steps.Memory | None = counted_steps.begin(made.ndevices, made.pieces)
    for step in steps:
        if memory is not None:
            memory = counted_steps.run(step.collective, step.slice.groups(made), memory)
    return memory


@pytest.mark.parametrize("factors", SHAPES)
def test_every_sequence_counts_each_contribution_once(factors: tuple[int, ...]) -> None:
    made = hierarchy(factors)
    found = sequences(made, 3)
    assert found
    assert len(set(found)) == len(found)
    for steps in found:
        memory = counted(steps, made)
        assert memory is not None
        assert counted_steps.is_right(memory, made.group)


@pytest.mark.parametrize("factors", [(4,), (2, 2)])
def test_no_sequence_of_three_steps_is_missing(factors: tuple[int, ...]) -> None:
    """Of all sequences, those that the counters find right and in which every step is allowed and of use."""
    made = hierarchy(factors)
    steps = [(Step(name, cut), cut.groups(made)) for cut in slices(made) for name in COLLECTIVES]
    right = set()

    def extend(tried: Sequence, states: tuple[State, ...], memory: counted_steps.Memory) -> None:
        if counted_steps.is_right(memory, made.group):
            right.add(tried)
        if len(tried) == 3 or states[-1] == goal(made):
            return
        for step, groups in steps:
            after, counts = (
                apply(step.collective, groups, states[-1]),
                counted_steps.run(step.collective, groups, memory),
            )
            if after is not None and after not in states:
                assert counts is not None
                extend((*tried, step), (*states, after), counts)

    extend((), (start(made),), counted_steps.begin(made.ndevices, made.pieces))
    assert right == set(sequences(made, 3))


def test_faults_that_are_planted_are_found() -> None:
    """A step twice doubles contributions, a step left out misses some: neither reaches the goal, and counters agree."""
    made = hierarchy((2, 4))
    doubled = missing = 0
    for steps in sequences(made, 3):
        for place, step in enumerate(steps):
            for wrong in ((*steps[:place], step, *steps[place:]), (*steps[:place], *steps[place + 1 :])):
                state = start(made)
                for each in wrong:
                    after = apply(each.collective, each.slice.groups(made), state)
                    if after is None:
                        break
                    state = after
                else:
                    memory = counted(wrong, made)
                    assert (state == goal(made)) == (memory is not None and counted_steps.is_right(memory, made.group))
                    missing += state != goal(made)
                    continue
                memory = counted(wrong, made)
                doubled += memory is not None and any(
                    max(piece.values(), default=0) > 1 for own in memory for piece in own.values()
                )
    assert doubled
    assert missing


@pytest.mark.parametrize("factors", [(3, 2), (2, 4, 3)])
def test_parts_of_the_message_are_those_of_the_states(factors: tuple[int, ...]) -> None:
    made = hierarchy(factors)
    for steps in sequences(made, 4)[::7]:
        each = concrete(steps, made)
        whole = [{len(pieces) / made.pieces for pieces in step.pieces} for step in each]
        assert whole == [{share} for share in shares(steps, factors)]


@pytest.mark.parametrize(
    ("sizes", "axes", "over"),
    [((2, 4), (2, 4), (0,)), ((2, 4), (2, 4), (1,)), ((2, 2, 2), (4, 2), (0,)), ((2, 4), (2, 2, 2), (0, 2))],
)
def test_the_hierarchy_of_the_reduction_loses_nothing(
    sizes: tuple[int, ...], axes: tuple[int, ...], over: tuple[int, ...]
) -> None:
    """Whatever is found over the network's levels, or over the factors of all axes, is found over the reduction's."""
    ranks = np.random.default_rng(2).permutation(math.prod(sizes))
    levels = Hierarchy(tuple(Level(f"l{i}", size) for i, size in enumerate(sizes)), ranks)
    named = [Axis(f"a{i}", size) for i, size in enumerate(axes)]
    for matrix in matrices(named, levels):
        own = synthesis_hierarchy(REDUCTION, levels, named, matrix, over)
        known = set(sequences(own, 3))
        for kind in (AXES, LEVELS):
            wide = synthesis_hierarchy(kind, levels, named, matrix, over)
            found = sequences(wide, 3)
            assert len(found) == len(translated(found, wide, own))
            assert set(translated(found, wide, own)) <= known
            assert found or kind == LEVELS


def test_groups_are_in_the_order_of_levels() -> None:
    levels = Hierarchy((Level("node", 2), Level("gpu", 4)), np.arange(8))
    assert reduction_groups(levels, ((2, 2), (1, 2)), (0,)).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert reduction_groups(levels, ((1, 2), (2, 2)), (1,)).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_what_slices_are_called() -> None:
    made = hierarchy((2, 3, 4))
    names = {(cut.vertex(made), cut.described(made)) for cut in slices(made)}
    assert len(names) == len(slices(made))
    master = Slice(0, 1, MASTER)
    assert (master.vertex(made), master.described(made)) == ("l0", "master(all)")
    assert master.groups(made) == ((0, 12),)


def test_refused() -> None:
    with pytest.raises(InputError, match="one rank"):
        one_group(["node"], [1])
    with pytest.raises(InputError, match="levels"):
        sequences(hierarchy((2,) * 5))
    with pytest.raises(InputError, match="too many"):
        sequences(SynthesisHierarchy(("a", "b"), (16, 16), tuple(i % 2 for i in range(256))))


def test_more_levels_than_are_synthesised_are_joined_from_the_innermost_on() -> None:
    made = group_hierarchy(["rack", "one", "node", "island", "package", "gpu"], [2, 1, 4, 2, 2, 3])
    assert (made.names, made.factors) == (("rack", "node", "island", "package.gpu"), (2, 4, 2, 6))
    few = group_hierarchy(["node", "gpu"], [2, 8])
    assert (few.names, few.factors) == (("node", "gpu"), (2, 8))
