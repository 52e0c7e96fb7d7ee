"""Steps of a sequence with the devices and the pieces of the message on which each step's collective works."""

from __future__ import annotations

import math
from dataclasses import dataclass

from synth.parallelism.reduction.sequences import ReductionStep, Sequence
from synth.parallelism.reduction.states import (
    ALLGATHER,
    REDUCESCATTER,
    Groups,
    SynthesisHierarchy,
    apply,
    pieces_held,
    start,
)


@dataclass(frozen=True)
class ConcreteStep:
    """A collective in groups of devices of one reduction group.

    Attributes:
        collective: Name of the collective.
        groups: The groups that hold data, each in order, with the root first.
        pieces: For each group the pieces that its collective works on, in the order of its chunks.
    """

    collective: str
    groups: Groups
    pieces: Groups


def concrete(sequence: Sequence, hierarchy: SynthesisHierarchy) -> list[ConcreteStep]:
    """Return the steps with their groups and pieces for all devices of the hierarchy and its real numbers of parts.

    Groups whose devices hold no data when their step begins are left out.

    Args:
        sequence: A sequence that `sequences` returns for the hierarchy; an illegal one is an AssertionError.
        hierarchy: The hierarchy, whose devices the groups name.
    """
    state, concrete_steps = start(hierarchy), []
    for step in sequence:
        groups = step.slice.groups(hierarchy)
        busy = tuple(group for group in groups if any(state[group[0]]))
        pieces = []
        for group in busy:
            rows = [pieces_held(state[device]) for device in group]
            gathered = step.collective == ALLGATHER
            pieces.append(tuple(piece for row in rows for piece in row) if gathered else rows[0])
        concrete_steps.append(ConcreteStep(step.collective, busy, tuple(pieces)))
        after = apply(step.collective, groups, state)
        assert after is not None, "what is legal does not depend on how many parts a level has"
        state = after
    return concrete_steps


def shares(sequence: Sequence, factors: tuple[int, ...]) -> list[float]:
    """Return for every step the share of the message on which its collective works (nccl-tests' size / message size).

    A reduce-scatter within levels leaves a device one of as many parts; an all-gather joins these parts again, and its
    share is that of its result.

    Args:
        sequence: The steps.
        factors: Number of parts of each level of their hierarchy.
    """
    scattered: set[int] = set()
    step_shares = []
    for step in sequence:
        levels = set(range(step.slice.low, step.slice.high))
        if step.collective == ALLGATHER:
            scattered -= levels
        step_shares.append(1 / math.prod(factors[level] for level in scattered))
        if step.collective == REDUCESCATTER:
            scattered |= levels
    return step_shares


def described(step: ReductionStep, hierarchy: SynthesisHierarchy) -> dict[str, str]:
    """Return the step as `--json` states it: collective, slice, form."""
    cut = step.slice
    return {"collective": step.collective, "slice": cut.vertex(hierarchy), "form": cut.described(hierarchy)}
