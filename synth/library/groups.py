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
    """A list of axes as it was written: extents by name, the fastest first, and those that its groups lie along."""

    text: str
    extents: Mapping[str, int]
    along: tuple[str, ...]

    def agrees(self, other: Axes) -> bool:
        """Whether both begin one mesh."""
        return all(mine == others for mine, others in zip(self.extents.items(), other.extents.items(), strict=False))


def parse_groups(
    part: str, topology: Topology, dead: Sequence[int], lists: list[Axes], what: str = "--groups"
) -> list[tuple[int, ...]]:
    """The groups of one part, in the order written; along axes by their first rank. `lists`: of the parts before it."""
    if not part.strip():
        raise InputError(f"{what}: {shown(part)} has an empty group; it must be as in 0-7;8-15 or tp=8")
    part = part.strip()
    if "=" in part:
        living = live_ranks(topology, dead, None, what)
        axes = _axes(part, len(living), what)
        for other in lists:
            if not axes.agrees(other):
                _refuse_mesh(axes, other, len(living), what)
        lists.append(axes)
        return _along(axes, living)
    ranks = parse_ranks(part, what, topology.nranks)
    if len(ranks) < 2:
        raise InputError(f"{what}: group {part} has one rank; it must be at least 2")
    return [live_ranks(topology, dead, ranks, what)]


def _refuse_mesh(axes: Axes, other: Axes, living: int, what: str) -> NoReturn:
    """Two lists that are not of one mesh: groups along the second are seldom what was meant."""
    both = {**axes.extents, **other.extents}
    whole = {**other.extents, **axes.extents}
    right = "one mesh for all lists, the fastest axis first, as in tp=8;tp=8,dp=*:dp"
    if both == whole and living % math.prod(whole.values()) == 0:
        listed = ",".join(f"{name}={extent}" for name, extent in whole.items())
        right = f"'{listed}:{'+'.join(axes.along)}' for those of one mesh with {shown(other.text)}"
    raise InputError(
        f"{what}: {shown(axes.text)} is not of the mesh of {shown(other.text)}, so that its groups would be"
        f" {_example(axes, living)}…; it must be {right}, or ranks, as in 0-3;4-7"
    )


def _example(axes: Axes, living: int) -> str:
    """The first group along axes, of ranks by their position."""
    return " ".join(map(str, _along(axes, range(living))[0][:4]))


def _axes(part: str, living: int, what: str) -> Axes:
    """The axes of a part, * resolved, of so many ranks that live."""
    listed, colon, chosen = part.partition(":")
    extents: dict[str, int] = {}  # 0: *
    for item in listed.split(","):
        axis = _AXIS.fullmatch(item.strip())
        if axis is None:
            raise InputError(
                f"{what}: {shown(item.strip())} is no axis;"
                " it must be a name and how many ranks it has, as in tp=8,dp=*"
            )
        if axis[1] in extents:
            raise InputError(f"{what}: axis {axis[1]} is given twice in {shown(part)}; it must be once")
        extents[axis[1]] = 0 if axis[2] == "*" else int(axis[2])
    open_axes = [name for name, extent in extents.items() if not extent]
    if len(open_axes) > 1:
        raise InputError(f"{what}: {shown(part)} has several *; it must be one axis at most that is what is left")
    fixed = math.prod(extent for extent in extents.values() if extent)
    rest, over = divmod(living, fixed)
    if over or not rest:
        raise InputError(
            f"{what}: {shown(listed)} is {fixed} ranks, which does not divide the {living} there are;"
            " it must be a divisor of that"
        )
    extents |= dict.fromkeys(open_axes, rest)
    wanted = tuple(name.strip() for name in chosen.split("+")) if colon else tuple(extents)[:1]
    for name in wanted:
        if name not in extents:
            raise InputError(
                f"{what}: {shown(name)} in {shown(part)} is no axis of it; it must be one of {', '.join(extents)}"
            )
    if math.prod(extents[name] for name in set(wanted)) < 2:
        raise InputError(f"{what}: {shown(part)} makes groups of one rank; it must be at least 2")
    return Axes(part, extents, wanted)


def _along(axes: Axes, living: Sequence[int]) -> list[tuple[int, ...]]:
    """The groups along one or several axes of the ranks that live; what is left over of these is one axis more."""
    extents = tuple(axes.extents.values())
    # the slowest axis first; those of a group last, in the same order
    grid = np.array(living).reshape(-1, *extents[::-1])
    inner = [axis for axis, name in enumerate(reversed(tuple(axes.extents)), 1) if name in axes.along]
    outer = [axis for axis in range(grid.ndim) if axis not in inner]
    size = math.prod(grid.shape[axis] for axis in inner)
    return [tuple(row) for row in grid.transpose(*outer, *inner).reshape(-1, size).tolist()]
