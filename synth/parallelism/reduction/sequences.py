"""All sequences of collectives that make a reduction, up to a given length (P²'s synthesis).

States are explored from the start. A prefix is cut if its next step is illegal, if the goal is further from its state
than the remaining steps, or if it returns to a state that it visited. Which steps are legal does not depend on the
number of parts of a level, so one reduction group is synthesised with two parts a level.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from synth.parallelism.reduction.states import (
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
_MOST_DEVICES = 64  # Devices of a hierarchy that is not reduced to one group.
MOST_LEVELS = 4  # Of a reduction group: 16 devices with two parts a level.


@dataclass(frozen=True)
class ReductionStep:
    """A collective in the groups that a slice forms."""

    collective: str
    slice: Slice


Sequence = tuple[ReductionStep, ...]


def sequences(hierarchy: SynthesisHierarchy, most: int = MOST_STEPS) -> list[Sequence]:
    """Return all sequences of at most `most` collectives that make the reduction, the shortest first.

    The state is what every device holds: every step changes it, and no state occurs twice in a sequence. The list is
    empty if so few steps do not make the reduction.

    Raises:
        InputError: The hierarchy is too large for the synthesis: one group with more than `MOST_LEVELS` levels, or
            several groups with too many devices.
    """
    return list(_search_sequences(_smallest(hierarchy), most))


@lru_cache(maxsize=32)
def _search_sequences(small: SynthesisHierarchy, most: int) -> tuple[Sequence, ...]:
    """Return all sequences of at most `most` steps from the start to the goal, the shortest first (see `sequences`)."""
    steps = [(ReductionStep(name, cut), cut.groups(small)) for cut in slices(small) for name in COLLECTIVES]
    following: dict[State, list[tuple[ReductionStep, State]]] = {}
    frontier, first, last = [start(small)], start(small), goal(small)
    for _ in range(most):
        reached: dict[State, None] = {}
        for state in frontier:
            if state in following or state == last:
                continue
            outcomes = ((step, apply(step.collective, groups, state)) for step, groups in steps)
            following[state] = [(step, after) for step, after in outcomes if after is not None and _alive(small, after)]
            reached |= dict.fromkeys(after for _, after in following[state])
        frontier = list(reached)
    away = _distances(following, last, most)
    return tuple(sorted(_paths(following, away, first, last, most), key=len))


def _smallest(hierarchy: SynthesisHierarchy) -> SynthesisHierarchy:
    """Return a hierarchy with the same sequences that is as small as possible.

    For a single group it has two devices a level; for several groups it is the hierarchy itself.

    Raises:
        InputError: There are too many levels (of one group) or too many devices (of several groups).
    """
    if len(set(hierarchy.group)) == 1:
        if len(hierarchy.factors) > MOST_LEVELS:
            raise InputError(
                f"axes: the groups lie over {len(hierarchy.factors)} levels; reduction programs are made for"
                f" {MOST_LEVELS} at most"
            )
        # Hierarchies with as many levels share the cached result.
        return one_group([""] * len(hierarchy.factors), [2] * len(hierarchy.factors))
    if hierarchy.ndevices > _MOST_DEVICES:
        raise InputError(
            f"hierarchy: {hierarchy.ndevices} devices are too many for the synthesis;"
            f" it must be {_MOST_DEVICES} at most, or the hierarchy of the reduction's axes"
        )
    return hierarchy


def _alive(hierarchy: SynthesisHierarchy, state: State) -> bool:
    """Return False if a device holds a contribution of another reduction group, because no step removes it."""
    group_masks = [max(pieces) for pieces in goal(hierarchy)]
    return not any(piece & ~group_mask for row, group_mask in zip(state, group_masks, strict=True) for piece in row)


def _distances(following: dict[State, list[tuple[ReductionStep, State]]], last: State, most: int) -> dict[State, int]:
    """Return the fewest steps to the goal from every state that reaches it in at most `most` steps."""
    away = {last: 0}
    for distance in range(1, most + 1):
        near = [
            state
            for state, transitions in following.items()
            if state not in away and any(away.get(after, most) == distance - 1 for _, after in transitions)
        ]
        away |= dict.fromkeys(near, distance)
    return away


def _paths(
    following: dict[State, list[tuple[ReductionStep, State]]],
    away: dict[State, int],
    first: State,
    last: State,
    most: int,
) -> Iterator[Sequence]:
    """Yield all paths of at most `most` steps from `first` to `last` that visit no state twice."""
    stack: list[tuple[tuple[ReductionStep, ...], tuple[State, ...]]] = [((), (first,))]
    while stack:
        steps, states = stack.pop()
        if states[-1] == last:
            yield steps
            continue
        remaining_steps = most - len(steps) - 1
        for step, after in reversed(following.get(states[-1], ())):
            if away.get(after, most + 1) <= remaining_steps and after not in states:
                stack.append(((*steps, step), (*states, after)))
