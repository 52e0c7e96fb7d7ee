"""Reduction requests: the ranks that reduce with each other under a parallelism matrix, and their hierarchy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from synth.model.collective import Ints
from synth.parallelism.axes import Axis, Matrix
from synth.parallelism.reduction.sequences import MOST_LEVELS, ReductionStep
from synth.parallelism.reduction.sequences import Sequence as Steps
from synth.parallelism.reduction.states import Groups, SynthesisHierarchy, one_group, slices
from topologies.errors import InputError
from topologies.levels.hierarchy import Hierarchy

REDUCTION, AXES, LEVELS = "reduction", "axes", "levels"
SYNTHESIS = (REDUCTION, AXES, LEVELS)  # P²'s synthesis hierarchies, the default first.
_MOST_FACTORS = 3  # If the axes have more factors, those of a level are joined.


def reduction_groups(hierarchy: Hierarchy, matrix: Matrix, over: Sequence[int]) -> Ints:
    """Return the groups that reduce over the axes at the positions `over`: ranks, int64 (groups, ranks of a group).

    Every rank is in exactly one group. Groups and ranks are ordered by their coordinates: the levels from the outermost
    to the innermost, and within a level the axes in their order.
    """
    levels, axes = len(hierarchy.levels), len(matrix)
    digits = [matrix[axis][level] for level in range(levels) for axis in range(axes)]
    places = range(len(digits))
    group_places = [place for place in places if place % axes not in over]
    reduced = [place for place in places if place % axes in over]
    size = math.prod(digits[place] for place in reduced)
    return np.ascontiguousarray(hierarchy.ranks.reshape(digits).transpose([*group_places, *reduced])).reshape(-1, size)


def synthesis_hierarchy(
    kind: str, hierarchy: Hierarchy, axes: Sequence[Axis], matrix: Matrix, over: Sequence[int]
) -> SynthesisHierarchy:
    """Return the hierarchy over which the programs of a request are synthesised.

    Args:
        kind: "reduction": the factors of the reduction's axes, with the devices of one group; "axes": the factors of
            all axes, with all devices and their groups; "levels": the levels of the network, with all devices and their
            groups.
        hierarchy: Levels of the network.
        axes: The axes of parallelism.
        matrix: The parallelism matrix.
        over: Positions of the axes that are reduced over.

    Raises:
        InputError: The kind is unknown, or the groups have one rank.
    """
    if kind not in SYNTHESIS:
        raise InputError(f"hierarchy: {kind[:40]!r} is not known; it must be one of {', '.join(SYNTHESIS)}")
    names = [level.name for level in hierarchy.levels]
    of_one_group = _one_group_hierarchy(names, axes, matrix, over)  # Raise for groups of one rank, for any kind.
    if kind == REDUCTION:
        return of_one_group
    groups = reduction_groups(hierarchy, matrix, over)
    group_of_rank = np.empty(hierarchy.ranks.size, dtype=np.int64)
    group_of_rank[groups.ravel()] = np.repeat(np.arange(len(groups)), groups.shape[1])
    group_of_device = tuple(group_of_rank[hierarchy.ranks].tolist())
    level_factors: list[tuple[str, tuple[int, ...]]]
    level_factors = [(name, (level.size,)) for name, level in zip(names, hierarchy.levels, strict=True)]
    if kind == AXES:
        level_factors = [(name, tuple(row[level] for row in matrix)) for level, name in enumerate(names)]
    own_names, factors = _factors(level_factors, axes)
    return SynthesisHierarchy(own_names, factors, group_of_device)


def translated(wide_sequences: Iterable[Steps], wide: SynthesisHierarchy, narrow: SynthesisHierarchy) -> list[Steps]:
    """Return sequences over a hierarchy of all devices as sequences over the hierarchy of one reduction group.

    The order stays. A sequence with groups that `narrow` cannot form is left out. This happens only where `narrow`
    joins the factors of several axes in one level.
    """
    members = [device for device, group in enumerate(wide.group) if group == wide.group[0]]
    place = {device: position for position, device in enumerate(members)}
    narrow_slice_of_groups = {cut.groups(narrow): cut for cut in slices(narrow)}
    narrow_slice = {cut: narrow_slice_of_groups.get(_among(cut.groups(wide), place)) for cut in slices(wide)}
    narrow_sequences = []
    for steps in wide_sequences:
        cuts = [narrow_slice[step.slice] for step in steps]
        if None not in cuts:
            narrow_sequences.append(
                tuple(ReductionStep(step.collective, cut) for step, cut in zip(steps, cuts, strict=True) if cut)
            )
    return narrow_sequences


def _among(groups: Groups, place: Mapping[int, int]) -> Groups:
    """Return the groups whose devices have a place, with each device replaced by its place."""
    return tuple(tuple(place[device] for device in group if device in place) for group in groups if group[0] in place)


def _one_group_hierarchy(
    names: Sequence[str], axes: Sequence[Axis], matrix: Matrix, over: Sequence[int]
) -> SynthesisHierarchy:
    """Return the hierarchy of one reduction group from the factors of the reduction's axes.

    If there are more than three factors above one, those of the same level are joined.

    Raises:
        InputError: The group has one rank.
    """
    level_factors = [(name, tuple(matrix[axis][level] for axis in over)) for level, name in enumerate(names)]
    names_and_factors = _factors(level_factors, [axes[axis] for axis in over])
    if len(names_and_factors[0]) > _MOST_FACTORS:
        names_and_factors = _factors([(name, (math.prod(parts),)) for name, parts in level_factors], axes)
    return group_hierarchy(*names_and_factors)


def group_hierarchy(names: Sequence[str], factors: Sequence[int], most: int = MOST_LEVELS) -> SynthesisHierarchy:
    """Build the hierarchy of one reduction group with at most `most` levels.

    The innermost levels beyond that are joined, as in "package.gpu"; levels of one part are left out.

    Args:
        names: Names of the levels, the outermost first.
        factors: Number of parts of each level.
        most: Most levels of the result.

    Raises:
        InputError: No level has more than one part.
    """
    split_levels = [(name, factor) for name, factor in zip(names, factors, strict=True) if factor > 1]
    last = split_levels[most - 1 :]
    if len(last) > 1:
        joined = ".".join(name for name, _ in last), math.prod(factor for _, factor in last)
        split_levels = [*split_levels[: most - 1], joined]
    return one_group([name for name, _ in split_levels], [factor for _, factor in split_levels])


def _factors(
    level_factors: Sequence[tuple[str, tuple[int, ...]]], axes: Sequence[Axis]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the names and factors above one; a level that several axes split gives names like `level.axis`."""
    named_factors = []
    for name, parts in level_factors:
        is_shared = sum(part > 1 for part in parts) > 1
        named_factors += [
            (f"{name}.{axis.name}" if is_shared else name, part)
            for axis, part in zip(axes, parts, strict=False)
            if part > 1
        ]
    return tuple(name for name, _ in named_factors), tuple(part for _, part in named_factors)
