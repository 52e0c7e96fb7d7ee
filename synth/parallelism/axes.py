"""Axes of parallelism, parallelism matrices, and the process groups that a matrix makes (P², MLSys 2022).

A parallelism matrix has a row for each axis and a column for each level: x[axis][level] says into how many parts the
axis splits that level. A row's product is the axis's size, a column's is the level's.
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
from topologies.levels.hierarchy import Hierarchy

Matrix = tuple[tuple[int, ...], ...]  # x[axis][level]
_AXIS = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,30})=([0-9]{1,7})")
_FORM = "it must be NAME=SIZE,NAME=SIZE, as in pp=2,dp=2,tp=8"


@dataclass(frozen=True)
class Axis:
    """One axis of parallelism: devices that differ in no other coordinate form a group of `size`."""

    name: str
    size: int


def parse_axes(text: str, hierarchy: Hierarchy) -> tuple[Axis, ...]:
    """Axes as "pp=2,dp=2,tp=8", in that order; the last one varies fastest in the default order of ranks.

    Raises InputError: another form, a name given twice, an axis that no level can hold, or sizes whose product is not
    the number of devices.
    """
    axes = []
    for part in text.split(","):
        match = _AXIS.fullmatch(part.strip())
        if match is None or int(match[2]) < 1:
            raise InputError(f"axes: {part.strip()[:60]!r} is no axis; {_FORM}")
        axes.append(Axis(match[1], int(match[2])))
    twice = [name for name, count in Counter(axis.name for axis in axes).items() if count > 1]
    if twice:
        raise InputError(f"axes: {twice[0]!r} is given twice; every axis must have a name of its own")
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


def parse_over(text: str, axes: Sequence[Axis], what: str = "over") -> tuple[int, ...]:
    """Places of the axes that "dp,ep" names, ascending. Raises InputError (the line begins with `what`)."""
    return axes_named([part.strip() for part in text.split(",")], axes, what)


def axes_named(names: Sequence[str], axes: Sequence[Axis], what: str = "over") -> tuple[int, ...]:
    """Places of axes by name, ascending. Raises InputError for a name that is none or given twice, and for no names."""
    known = [axis.name for axis in axes]
    if not names:
        raise InputError(f"{what}: names no axis; it must name one or more of {', '.join(known)}")
    for name in names:
        if name not in known:
            near = did_you_mean(name, known)
            hint = f"; {near}" if near else ""
            raise InputError(f"{what}: {name[:40]!r} is no axis{hint}; it must be one or more of {', '.join(known)}")
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise InputError(f"{what}: {twice!r} is named twice; every axis must be named once")
    return tuple(sorted(known.index(name) for name in names))


def matrices(axes: Sequence[Axis], hierarchy: Hierarchy, alike: Sequence[Sequence[int]] = ()) -> Iterator[Matrix]:
    """Every parallelism matrix once, in lexicographic order of columns; never none where the products agree.

    alike: sets of levels that a symmetry of the network exchanges; of matrices that differ only in the order of the
    columns of such a set the one with descending columns is given.
    """
    sizes = hierarchy.sizes
    before = {level: group[i - 1] for group in map(sorted, alike) for i, level in enumerate(group) if i}

    def columns(left: Sequence[int], product: int) -> Iterator[tuple[int, ...]]:
        """Every way to write a level's size as one factor an axis, each dividing what is left of its axis."""
        if not left:
            if product == 1:
                yield ()
            return
        for factor in _divisors(math.gcd(left[0], product)):
            for rest in columns(left[1:], product // factor):
                yield (factor, *rest)

    def extend(made: list[tuple[int, ...]], left: Sequence[int]) -> Iterator[Matrix]:
        if len(made) == len(sizes):
            yield tuple(zip(*made, strict=True))
            return
        for column in columns(left, sizes[len(made)]):
            if len(made) in before and column > made[before[len(made)]]:
                continue
            rest = [size // factor for size, factor in zip(left, column, strict=True)]
            yield from extend([*made, column], rest)

    return extend([], [axis.size for axis in axes])


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def mesh(hierarchy: Hierarchy, matrix: Matrix, orders: Sequence[Sequence[int]] | None = None) -> Ints:
    """The rank at each coordinate of the axes: int64 of the axes' sizes, in their order.

    An axis's coordinate has its digit of the outermost level first. With the axes in their own order in every level the
    matrix that fills levels from the innermost with axes from the last is the default order.

    orders: for each level the axes, the one whose digit counts slowest there first; None: all in their own order.
    """
    naxes, nlevels = len(matrix), len(hierarchy.levels)
    orders = [range(naxes)] * nlevels if orders is None else orders
    cells = [(axis, level) for level in range(nlevels) for axis in orders[level]]
    place = {cell: i for i, cell in enumerate(cells)}
    by_axis = [place[axis, level] for axis in range(naxes) for level in range(nlevels)]
    ranks = hierarchy.ranks.reshape([matrix[axis][level] for axis, level in cells]).transpose(by_axis)
    return np.ascontiguousarray(ranks).reshape([math.prod(row) for row in matrix])


def process_groups(ranks: Ints, over: Sequence[int]) -> Ints:
    """The process groups of a mesh (see `mesh`) over some axes: int64 (groups, ranks of a group).

    Ranks that differ only in these axes form a group, in the order of their coordinates; every rank is in exactly one.
    """
    kept = [axis for axis in range(ranks.ndim) if axis not in over]
    size = math.prod(ranks.shape[axis] for axis in over)
    return np.ascontiguousarray(ranks.transpose([*kept, *over])).reshape(-1, size)
