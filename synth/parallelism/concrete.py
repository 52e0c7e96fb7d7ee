"""Sequences of steps with the devices and the pieces of a message that every step's collective is about."""

from __future__ import annotations

import math
from dataclasses import dataclass

from synth.parallelism.sequences import Sequence, Step
from synth.parallelism.states import (
    ALLGATHER,
    REDUCESCATTER,
    Groups,
    SynthesisHierarchy,
    apply,
    held,
    start,
)


@dataclass(frozen=True)
class ConcreteStep:
    """A collective in groups of devices of one reduction group.

    Attributes:
        groups: those that hold anything, each in order, the root first.
        pieces: of each group, the pieces that its collective is over, in the order of its chunks.
    """

    collective: str
    groups: Groups
    pieces: Groups


def concrete(sequence: Sequence, hierarchy: SynthesisHierarchy) -> list[ConcreteStep]:
    """The steps for the number of parts that each level has; of all devices of the hierarchy."""
    state, made = start(hierarchy), []
    for step in sequence:
        groups = step.slice.groups(hierarchy)
        busy = tuple(group for group in groups if any(state[group[0]]))
        pieces = []
        for group in busy:
            rows = [held(state[device]) for device in group]
            gathered = step.collective == ALLGATHER
            pieces.append(tuple(piece for row in rows for piece in row) if gathered else rows[0])
        made.append(ConcreteStep(step.collective, busy, tuple(pieces)))
        after = apply(step.collective, groups, state)
        assert after is not None, "what is legal does not depend on how many parts a level has"
        state = after
    return made


def shares(sequence: Sequence, factors: tuple[int, ...]) -> list[float]:
    """Of every step, the part of the message that its collective is over (nccl-tests' size / the message's).

    A reduce-scatter within levels leaves each device one of as many parts; an all-gather brings them together again.
    """
    scattered: set[int] = set()
    found = []
    for step in sequence:
        levels = set(range(step.slice.low, step.slice.high))
        if step.collective == ALLGATHER:
            scattered -= levels
        found.append(1 / math.prod(factors[level] for level in scattered))
        if step.collective == REDUCESCATTER:
            scattered |= levels
    return found


def described(step: Step, hierarchy: SynthesisHierarchy) -> dict[str, str]:
    """The step as `--json` states it: collective, slice, form."""
    cut = step.slice
    return {"collective": step.collective, "slice": cut.vertex(hierarchy), "form": cut.described(hierarchy)}
