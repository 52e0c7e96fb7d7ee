"""Reduction requests: which ranks reduce together under a parallelism matrix, and the hierarchy for their programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from synth.model.collective import Ints
from synth.parallelism.axes import Axis, Matrix
from synth.parallelism.sequences import MOST_LEVELS, Step
from synth.parallelism.sequences import Sequence as Steps
from synth.parallelism.states import Groups, SynthesisHierarchy, one_group, slices
from topologies.errors import InputError
from topologies.levels.hierarchy import Hierarchy

REDUCTION, AXES, LEVELS = "reduction", "axes", "levels"
SYNTHESIS = (REDUCTION, AXES, LEVELS)  # P²'s synthesis hierarchies, the default first
_MOST_FACTORS = 3  # of the reduction's axes, each on its own; where there are more, those of a level are one


def reduction_groups(hierarchy: Hierarchy, matrix: Matrix, over: Sequence[int]) -> Ints:
    """The groups that reduce over some axes: ranks, int64 (groups, ranks of a group).

    Every rank is in exactly one. They stand in the order of their coordinates: a level's before those of the levels
    inside it, and within a level the axes in their order.
    """
    levels, axes = len(hierarchy.levels), len(matrix)
    digits = [matrix[axis][level] for level in range(levels) for axis in range(axes)]
    places = range(len(digits))
    kept = [place for place in places if place % axes not in over]
    reduced = [place for place in places if place % axes in over]
    size = math.prod(digits[place] for place in reduced)
    return np.ascontiguousarray(hierarchy.ranks.reshape(digits).transpose([*kept, *reduced])).reshape(-1, size)


def synthesis_hierarchy(
    kind: str, hierarchy: Hierarchy, axes: Sequence[Axis], matrix: Matrix, over: Sequence[int]
) -> SynthesisHierarchy:
    """The hierarchy over which programs for a request are synthesised.

    Args:
        kind: reduction: the factors of the reduction's axes, of one group; axes: the factors of all axes; levels: the
            network's own.

    Raises InputError: an unknown kind, or groups of one rank.
    """
    _check_size(matrix, over)
    if kind not in SYNTHESIS:
        raise InputError(f"hierarchy: {kind[:40]!r} is not known; it must be one of {', '.join(SYNTHESIS)}")
    names = [level.name for level in hierarchy.levels]
    if kind == REDUCTION:
        return _of_one_group(names, axes, matrix, over)
    groups = reduction_groups(hierarchy, matrix, over)
    of_rank = np.empty(hierarchy.ranks.size, dtype=np.int64)
    of_rank[groups.ravel()] = np.repeat(np.arange(len(groups)), groups.shape[1])
    of_device = tuple(of_rank[hierarchy.ranks].tolist())
    listed: list[tuple[str, tuple[int, ...]]]
    listed = [(name, (level.size,)) for name, level in zip(names, hierarchy.levels, strict=True)]
    if kind == AXES:
        listed = [(name, tuple(row[level] for row in matrix)) for level, name in enumerate(names)]
    own_names, factors = _factors(listed, axes)
    return SynthesisHierarchy(own_names, factors, of_device)


def translated(found: Iterable[Steps], wide: SynthesisHierarchy, narrow: SynthesisHierarchy) -> list[Steps]:
    """Sequences over a hierarchy of all devices as those over the hierarchy of one reduction group.

    One that makes groups which `narrow` cannot make is left out: that happens only where `narrow` takes the factors of
    several axes in one level together.
    """
    members = [device for device, group in enumerate(wide.group) if group == wide.group[0]]
    place = {device: position for position, device in enumerate(members)}
    known = {cut.groups(narrow): cut for cut in slices(narrow)}
    own = {cut: known.get(_among(cut.groups(wide), place)) for cut in slices(wide)}
    made = []
    for steps in found:
        cuts = [own[step.slice] for step in steps]
        if None not in cuts:
            made.append(tuple(Step(step.collective, cut) for step, cut in zip(steps, cuts, strict=True) if cut))
    return made


def _among(groups: Groups, place: Mapping[int, int]) -> Groups:
    """The groups of the devices that have a place, by place."""
    return tuple(tuple(place[device] for device in group if device in place) for group in groups if group[0] in place)


def _check_size(matrix: Matrix, over: Sequence[int]) -> None:
    if math.prod(factor for axis in over for factor in matrix[axis]) < 2:
        raise InputError("over: the groups have one rank; it must be axes of at least 2 ranks together")


def _of_one_group(
    names: Sequence[str], axes: Sequence[Axis], matrix: Matrix, over: Sequence[int]
) -> SynthesisHierarchy:
    listed = [(name, tuple(matrix[axis][level] for axis in over)) for level, name in enumerate(names)]
    found = _factors(listed, [axes[axis] for axis in over])
    if len(found[0]) > _MOST_FACTORS:
        found = _factors([(name, (math.prod(parts),)) for name, parts in listed], axes)
    return group_hierarchy(*found)


def group_hierarchy(names: Sequence[str], factors: Sequence[int], most: int = MOST_LEVELS) -> SynthesisHierarchy:
    """That of one reduction group. Of more than so many levels the innermost are one, as "package.gpu".

    Raises InputError as `one_group`.
    """
    known = [(name, factor) for name, factor in zip(names, factors, strict=True) if factor > 1]
    last = known[most - 1 :]
    if len(last) > 1:
        joined = ".".join(name for name, _ in last), math.prod(factor for _, factor in last)
        known = [*known[: most - 1], joined]
    return one_group([name for name, _ in known], [factor for _, factor in known])


def _factors(
    listed: Sequence[tuple[str, tuple[int, ...]]], axes: Sequence[Axis]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names and factors above one; those of a level that several axes split are named `level.axis`."""
    found = []
    for name, parts in listed:
        several = sum(part > 1 for part in parts) > 1
        found += [
            (f"{name}.{axis.name}" if several else name, part)
            for axis, part in zip(axes, parts, strict=False)
            if part > 1
        ]
    return tuple(name for name, _ in found), tuple(part for _, part in found)
