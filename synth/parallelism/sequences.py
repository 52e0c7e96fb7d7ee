"""All sequences of collectives that make a reduction, up to a length (P²'s synthesis).

States are explored from the start; a prefix whose step is not allowed, or from whose state the goal is further than the
steps that are left, is cut, and so is one that comes back to a state it had. What is legal does not depend on how many
parts a level has, so that one reduction group is synthesised with two parts a level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from synth.parallelism.states import (
    COLLECTIVES,
    Slice,
    State,
    SynthesisHierarchy,
    apply,
    goal,
    one_group,
    slices,
    start,
)
from topologies.errors import InputError

MOST_STEPS = 5
_MOST_DEVICES = 64  # of a hierarchy that is synthesised as it is
MOST_LEVELS = 4  # of a reduction group: 16 devices of two parts a level


@dataclass(frozen=True)
class Step:
    """A collective in the groups that a slice makes."""

    collective: str
    slice: Slice


Sequence = tuple[Step, ...]


def sequences(hierarchy: SynthesisHierarchy, most: int = MOST_STEPS) -> list[Sequence]:
    """All sequences of at most so many steps from the start to the goal, the shortest first.

    Raises InputError: a hierarchy too large to be synthesised.
    """
    return list(_found(_smallest(hierarchy), most))


@lru_cache(maxsize=32)
def _found(small: SynthesisHierarchy, most: int) -> tuple[Sequence, ...]:
    steps = [(Step(name, cut), cut.groups(small)) for cut in slices(small) for name in COLLECTIVES]
    following: dict[State, list[tuple[Step, State]]] = {}
    frontier, first, last = [start(small)], start(small), goal(small)
    for _ in range(most):
        reached: dict[State, None] = {}
        for state in frontier:
            if state in following or state == last:
                continue
            made = ((step, apply(step.collective, groups, state)) for step, groups in steps)
            following[state] = [(step, after) for step, after in made if after is not None and _alive(small, after)]
            reached |= dict.fromkeys(after for _, after in following[state])
        frontier = list(reached)
    away = _distances(following, last, most)
    return tuple(sorted(_paths(following, away, first, last, most), key=len))


def _smallest(hierarchy: SynthesisHierarchy) -> SynthesisHierarchy:
    if len(set(hierarchy.group)) == 1:
        if len(hierarchy.factors) > MOST_LEVELS:
            raise InputError(
                f"axes: the groups lie over {len(hierarchy.factors)} levels; reduction programs are made for"
                f" {MOST_LEVELS} at most"
            )
        return one_group([""] * len(hierarchy.factors), [2] * len(hierarchy.factors))  # the same for all of so many
    if hierarchy.ndevices > _MOST_DEVICES:
        raise InputError(
            f"hierarchy: {hierarchy.ndevices} devices are too many to be synthesised together;"
            f" it must be {_MOST_DEVICES} at most, or the hierarchy of the reduction's axes"
        )
    return hierarchy


def _alive(hierarchy: SynthesisHierarchy, state: State) -> bool:
    """Whether no device holds what another group contributed: that never goes away again."""
    own = [max(pieces) for pieces in goal(hierarchy)]
    return not any(piece & ~whole for row, whole in zip(state, own, strict=True) for piece in row)


def _distances(following: dict[State, list[tuple[Step, State]]], last: State, most: int) -> dict[State, int]:
    """Fewest steps to the goal, of the states from which it can be reached in `most`."""
    away = {last: 0}
    for distance in range(1, most + 1):
        near = [
            state
            for state, ways in following.items()
            if state not in away and any(away.get(after, most) == distance - 1 for _, after in ways)
        ]
        away |= dict.fromkeys(near, distance)
    return away


def _paths(
    following: dict[State, list[tuple[Step, State]]], away: dict[State, int], first: State, last: State, most: int
) -> Iterator[Sequence]:
    """All paths of at most `most` steps that visit no state twice."""
    stack: list[tuple[tuple[Step, ...], tuple[State, ...]]] = [((), (first,))]
    while stack:
        steps, states = stack.pop()
        if states[-1] == last:
            yield steps
            continue
        left = most - len(steps) - 1
        for step, after in reversed(following.get(states[-1], ())):
            if away.get(after, most + 1) <= left and after not in states:
                stack.append(((*steps, step), (*states, after)))
