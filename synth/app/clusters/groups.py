"""How groups of ranks are written, on the command line and in files.

0-7;8-15          each group's ranks, in order
tp=8              every group along an axis of the ranks: blocks of 8 consecutive ranks
tp=8,dp=4         axes from the fastest to the slowest, as Megatron's order tp-dp; the groups are those along the
                  first axis. What is left over of the ranks is one more axis, the slowest
tp=8,dp=*:dp      the groups along another axis (here every 8th rank); * stands for as many as there are left
tp=2,cp=2,dp=*:tp+cp   the groups along several axes together
tp=8;tp=8,dp=*:dp      one list after the other: a rank may be in several groups

All lists of axes are of one mesh, each from its fastest axis on: tp=8;dp=4:dp is refused, since dp=4 by itself would be
blocks of 4 consecutive ranks, not every 8th one. DeviceMesh names the same axes the other way round, the
slowest first: mesh_shape (dp, tp).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from synth.model.problem import parse_ranks
from topologies.errors import InputError
from topologies.faults.notation import live_ranks
from topologies.text.fields import shown
from topologies.topology import Topology

_AXIS = re.compile(r"([A-Za-z][A-Za-z0-9_]{0,15})\s*=\s*([1-9][0-9]{0,6}|\*)")


@dataclass(frozen=True)
class Axes:
    """A list of axes as the user wrote it.

    Attributes:
        text: The text.
        extents: Number of ranks along each axis by name, the fastest axis first.
        along: The axes that the groups lie along.
    """

    text: str
    extents: Mapping[str, int]
    along: tuple[str, ...]

    def agrees(self, axes: Axes) -> bool:
        """Return whether two lists of axes begin the same mesh: equal names and extents at the same positions.

        Only the positions that both lists have count.
        """
        return all(
            own_axis == other_axis
            for own_axis, other_axis in zip(self.extents.items(), axes.extents.items(), strict=False)
        )


def parse_groups(
    part: str, topology: Topology, dead: Sequence[int], lists: list[Axes], option: str = "--groups"
) -> list[tuple[int, ...]]:
    """Return the groups of one part of a list, in the order written; groups along axes are ordered by their first rank.

    Dead ranks are left out. Axes are over the living ranks; those beyond all axes form one slowest axis more.

    Args:
        part: The text between two semicolons: ranks, axes or "all".
        topology: The topology, with its dead ranks.
        dead: Dead ranks, which are left out of the groups.
        lists: The axes of the parts before this one; the axes of this part are appended.
        option: Name of the option or field for error messages.

    Raises:
        InputError: The part is no list of ranks or axes, has a group of one rank, or its axes are not of the mesh of
            the parts before it.
    """
    if not part.strip():
        raise InputError(f"{option}: {shown(part)} has an empty group; it must be as in 0-7;8-15 or tp=8")
    part = part.strip()
    if part == "all":
        return [live_ranks(topology, dead, None, option)]
    if "=" in part:
        living = live_ranks(topology, dead, None, option)
        axes = _axes(part, len(living), option)
        for earlier in lists:
            if not axes.agrees(earlier):
                _refuse_mesh(axes, earlier, len(living), option)
        lists.append(axes)
        return _along(axes, living)
    if part.replace("_", "").isalpha():
        raise InputError(
            f"{option}: {shown(part)} is not known; it must be all, ranks as in 0,2,4-7, or axes as in tp=8"
        )
    ranks = parse_ranks(part, option, topology.nranks)
    if len(ranks) < 2:
        raise InputError(f"{option}: group {part} has one rank; it must be at least 2")
    return [live_ranks(topology, dead, ranks, option)]


def _refuse_mesh(axes: Axes, earlier: Axes, living: int, option: str) -> NoReturn:
    """Raise InputError for two lists of axes of different meshes: the user seldom means groups along the second one.

    Args:
        axes: The list that is refused.
        earlier: A list before it.
        living: Number of living ranks.
        option: Name of the option or field for the message.
    """
    merged = {**axes.extents, **earlier.extents}
    mesh = {**earlier.extents, **axes.extents}
    advice = "one mesh for all lists, the fastest axis first, as in tp=8;tp=8,dp=*:dp"
    if merged == mesh and living % math.prod(mesh.values()) == 0:
        listed = ",".join(f"{name}={extent}" for name, extent in mesh.items())
        advice = f"'{listed}:{'+'.join(axes.along)}' for one mesh"
    raise InputError(
        f"{option}: {shown(axes.text)} is not of the mesh of {shown(earlier.text)} (its first group: "
        f"{_example(axes, living)} …); it must be {advice}, or ranks, as in 0-3;4-7"
    )


def _example(axes: Axes, living: int) -> str:
    """Return the first ranks (at most four) of the first group along axes, as positions among the living ranks."""
    return " ".join(map(str, _along(axes, range(living))[0][:4]))


def _axes(part: str, living: int, option: str) -> Axes:
    """Return the axes of a part, with * replaced by the number of ranks that are left.

    Without `:AXES` in the text the groups lie along the first axis.

    Args:
        part: The text, such as `tp=8,dp=*:dp`.
        living: Number of living ranks.
        option: Name of the option or field for error messages.

    Raises:
        InputError: The part is no list of axes, does not divide the living ranks, or makes groups of one rank.
    """
    listed, colon, chosen = part.partition(":")
    extents: dict[str, int] = {}  # 0 stands for *.
    for item in listed.split(","):
        axis = _AXIS.fullmatch(item.strip())
        if axis is None:
            raise InputError(
                f"{option}: {shown(item.strip())} is no axis;"
                " it must be a name and how many ranks it has, as in tp=8,dp=*"
            )
        if axis[1] in extents:
            raise InputError(f"{option}: axis {axis[1]} is given twice in {shown(part)}; it must be once")
        extents[axis[1]] = 0 if axis[2] == "*" else int(axis[2])
    open_axes = [name for name, extent in extents.items() if not extent]
    if len(open_axes) > 1:
        raise InputError(f"{option}: {shown(part)} has several *; at most one axis may be *")
    fixed = math.prod(extent for extent in extents.values() if extent)
    open_extent, remainder = divmod(living, fixed)
    if remainder or not open_extent:
        raise InputError(
            f"{option}: {shown(listed)} has {fixed} ranks, which do not divide the {living} living ranks;"
            " it must be a divisor of that number"
        )
    extents |= dict.fromkeys(open_axes, open_extent)
    along = tuple(name.strip() for name in chosen.split("+")) if colon else tuple(extents)[:1]
    for name in along:
        if name not in extents:
            raise InputError(
                f"{option}: {shown(name)} in {shown(part)} is no axis of it; it must be one of {', '.join(extents)}"
            )
    if math.prod(extents[name] for name in set(along)) < 2:
        raise InputError(f"{option}: {shown(part)} makes groups of one rank; a group must have at least 2")
    return Axes(part, extents, along)


def _along(axes: Axes, living: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the groups of living ranks along the axes of `along`; ranks beyond all axes form one slowest axis more."""
    extents = tuple(axes.extents.values())
    # The slowest axis is the first dimension. The axes of a group become the last dimensions, in the same order.
    grid = np.array(living).reshape(-1, *extents[::-1])
    inner = [axis for axis, name in enumerate(reversed(tuple(axes.extents)), 1) if name in axes.along]
    outer = [axis for axis in range(grid.ndim) if axis not in inner]
    size = math.prod(grid.shape[axis] for axis in inner)
    return [tuple(group) for group in grid.transpose(*outer, *inner).reshape(-1, size).tolist()]
