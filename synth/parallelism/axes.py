"""Axes of parallelism, parallelism matrices, and the process groups that a matrix makes (P², MLSys 2022).

A parallelism matrix has a row for each axis and a column for each level: x[axis][level] is the number of parts into
which the axis splits that level. The product of a row is the axis's size, that of a column is the level's size.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from synth.model.collective import Ints
from topologies.errors import InputError, did_you_mean
from topologies.levels.hierarchy import Hierarchy, named_sizes

Matrix = tuple[tuple[int, ...], ...]  # x[axis][level]
_AXIS = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,30})=([0-9]{1,7})")
_FORM = "it must be NAME=SIZE,NAME=SIZE, as in pp=2,dp=2,tp=8"


@dataclass(frozen=True)
class Axis:
    """An axis of parallelism: devices that differ in no other coordinate form a group of `size`."""

    name: str
    size: int


def parse_axes(text: str, hierarchy: Hierarchy) -> tuple[Axis, ...]:
    """Parse axes like "pp=2,dp=2,tp=8", in this order; the last one varies fastest in the default order of ranks.

    Raises:
        InputError: The form is wrong, a name stands twice, the size of an axis does not divide the number of devices,
            or the product of the sizes is not that number.
    """
    axes = [Axis(name, size) for name, size in named_sizes(text, _AXIS, "axes", "axis", _FORM)]
    devices = len(hierarchy.ranks)
    for axis in axes:
        if devices % axis.size:
            raise InputError(
                f"axes: {axis.name}={axis.size} fits no level of {hierarchy}; it must divide the {devices} devices"
            )
    if math.prod(axis.size for axis in axes) != devices:
        sizes = "·".join(str(axis.size) for axis in axes)
        product = math.prod(axis.size for axis in axes)
        raise InputError(
            f"axes: {sizes} = {product}, but {hierarchy} has {devices} devices; the sizes must multiply to that"
        )
    return tuple(axes)


def parse_over(text: str, axes: Sequence[Axis]) -> tuple[int, ...]:
    """Parse names of axes like "dp,ep" and return their positions in ascending order.

    Raises:
        InputError: As for `axes_named`.
    """
    return axes_named([part.strip() for part in text.split(",")], axes)


def axes_named(names: Sequence[str], axes: Sequence[Axis], where: str = "over") -> tuple[int, ...]:
    """Return the positions in `axes` of the axes with these names, in ascending order.

    Raises:
        InputError: `names` is empty, or a name is unknown or stands twice; the message begins with `where`.
    """
    axis_names = [axis.name for axis in axes]
    if not names:
        raise InputError(f"{where}: names no axis; it must name one or more of {', '.join(axis_names)}")
    for name in names:
        if name not in axis_names:
            hint = did_you_mean(name, axis_names, "; ")
            raise InputError(
                f"{where}: {name[:40]!r} is no axis{hint}; it must be one or more of {', '.join(axis_names)}"
            )
    if len(set(names)) < len(names):
        repeated_name = Counter(names).most_common(1)[0][0]
        raise InputError(f"{where}: {repeated_name!r} is named twice; every axis must be named once")
    return tuple(sorted(axis_names.index(name) for name in names))


def matrices(axes: Sequence[Axis], hierarchy: Hierarchy, orbits: Sequence[Sequence[int]] = ()) -> Iterator[Matrix]:
    """Yield every parallelism matrix once, in lexicographic order of its columns.

    There is at least one matrix wherever the products of the sizes agree.

    Args:
        axes: The axes; their sizes multiply to the number of devices.
        hierarchy: Levels of the network.
        orbits: Disjoint sets of levels (0: the outermost) that a symmetry of the network exchanges. Of the matrices
            that differ only in the order of the columns of such a set, only the one with descending columns is yielded.
    """
    sizes = hierarchy.sizes
    before = {level: group[i - 1] for group in map(sorted, orbits) for i, level in enumerate(group) if i}

    def columns(remaining_sizes: Sequence[int], product: int) -> Iterator[tuple[int, ...]]:
        """Yield every factorisation of a level's size into a factor an axis that divides the axis's remaining size."""
        if not remaining_sizes:
            if product == 1:
                yield ()
            return
        for factor in _divisors(math.gcd(remaining_sizes[0], product)):
            for other_factors in columns(remaining_sizes[1:], product // factor):
                yield (factor, *other_factors)

    def extend(leading_columns: list[tuple[int, ...]], remaining_sizes: Sequence[int]) -> Iterator[Matrix]:
        """Yield the matrices that begin with the given columns."""
        if len(leading_columns) == len(sizes):
            yield tuple(zip(*leading_columns, strict=True))
            return
        for column in columns(remaining_sizes, sizes[len(leading_columns)]):
            if len(leading_columns) in before and column > leading_columns[before[len(leading_columns)]]:
                continue
            next_sizes = [size // factor for size, factor in zip(remaining_sizes, column, strict=True)]
            yield from extend([*leading_columns, column], next_sizes)

    return extend([], [axis.size for axis in axes])


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def mesh(hierarchy: Hierarchy, matrix: Matrix, orders: Sequence[Sequence[int]] | None = None) -> Ints:
    """Return the rank at each coordinate of the axes: int64, shaped as the axes' sizes in their order.

    The coordinate on an axis has the digit of the outermost level first. With the axes in their own order in every
    level, the matrix that fills the levels from the innermost with the axes from the last is the default order.

    Args:
        hierarchy: Levels of the network.
        matrix: The parallelism matrix of these levels.
        orders: For each level all axes, first the one whose digit varies slowest in that level; None: all in their
            order.
    """
    naxes, nlevels = len(matrix), len(hierarchy.levels)
    orders = [range(naxes)] * nlevels if orders is None else orders
    cells = [(axis, level) for level in range(nlevels) for axis in orders[level]]
    place = {cell: i for i, cell in enumerate(cells)}
    by_axis = [place[axis, level] for axis in range(naxes) for level in range(nlevels)]
    ranks = hierarchy.ranks.reshape([matrix[axis][level] for axis, level in cells]).transpose(by_axis)
    return np.ascontiguousarray(ranks).reshape([math.prod(row) for row in matrix])


def process_groups(ranks: Ints, over: Sequence[int]) -> Ints:
    """Return the process groups of a mesh (see `mesh`) over some axes: int64 (groups, ranks of a group).

    Ranks that differ only in these axes form a group, in the order of their coordinates. Every rank is in one group.
    """
    group_axes = [axis for axis in range(ranks.ndim) if axis not in over]
    size = math.prod(ranks.shape[axis] for axis in over)
    return np.ascontiguousarray(ranks.transpose([*group_axes, *over])).reshape(-1, size)
