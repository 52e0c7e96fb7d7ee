"""Several groups as they are written on the command line.

0-7;8-15          each group's ranks, in order
tp=8              every group along an axis of the ranks: blocks of 8 consecutive ranks
tp=8,dp=4         axes from the fastest to the slowest, as Megatron's order tp-dp; the groups are those along the
                  first axis. What is left over of the ranks is one more axis, the slowest
tp=8,dp=*:dp      the groups along another axis (here every 8th rank); * stands for as many as there are left
tp=2,cp=2,dp=*:tp+cp   the groups along several axes together
tp=8;tp=8,dp=*:dp      one list after the other: a rank may be in several groups

torch's DeviceMesh names the same axes the other way round, the slowest first: mesh_shape (dp, tp).
"""

from __future__ import annotations

import math
import re

import numpy as np

from synth.model.problem import parse_ranks
from topologies.errors import InputError
from topologies.text.fields import shown

__all__ = ["parse_groups"]

_AXIS = re.compile(r"([A-Za-z][A-Za-z0-9_]{0,15})\s*=\s*([1-9][0-9]{0,6}|\*)")


def parse_groups(text: str, nranks: int, what: str = "--groups") -> list[tuple[int, ...]]:
    """The groups of `text` over the ranks 0..nranks-1, in the order written; along axes by their first rank.

    Raises:
        InputError: not a list of groups, axes that do not fit the ranks, a rank that does not exist or is twice
            in one group, or a group of fewer than two; the line begins with `what`.
    """
    groups: list[tuple[int, ...]] = []
    for part in text.split(";"):
        part = part.strip()
        if not part:
            raise InputError(f"{what}: {shown(text)} has an empty group; it must be as in 0-7;8-15 or tp=8")
        if "=" in part:
            groups += _along(part, nranks, what)
            continue
        ranks = parse_ranks(part, what, nranks)
        if len(ranks) < 2:
            raise InputError(f"{what}: group {part} has one rank; it must be at least 2")
        groups.append(ranks)
    return groups


def _along(part: str, nranks: int, what: str) -> list[tuple[int, ...]]:
    """The groups along one or several axes."""
    listed, colon, chosen = part.partition(":")
    names: list[str] = []
    extents: list[int] = []  # 0: *
    for item in listed.split(","):
        axis = _AXIS.fullmatch(item.strip())
        if axis is None:
            raise InputError(
                f"{what}: {shown(item.strip())} is no axis;"
                " it must be a name and how many ranks it has, as in tp=8,dp=*"
            )
        if axis[1] in names:
            raise InputError(f"{what}: axis {axis[1]} is given twice in {shown(part)}; it must be once")
        names.append(axis[1])
        extents.append(0 if axis[2] == "*" else int(axis[2]))
    if extents.count(0) > 1:
        raise InputError(f"{what}: {shown(part)} has several *; it must be one axis at most that is what is left")
    fixed = math.prod(extent for extent in extents if extent)
    rest, over = divmod(nranks, fixed)
    if over or not rest:
        raise InputError(
            f"{what}: {shown(listed)} is {fixed} ranks, which does not divide the {nranks} there are;"
            " it must be a divisor of that"
        )
    if 0 in extents:
        extents[extents.index(0)], rest = rest, 1
    wanted = [name.strip() for name in chosen.split("+")] if colon else names[:1]
    for name in wanted:
        if name not in names:
            raise InputError(
                f"{what}: {shown(name)} in {shown(part)} is no axis of it; it must be one of {', '.join(names)}"
            )
    if math.prod(extents[names.index(name)] for name in set(wanted)) < 2:
        raise InputError(f"{what}: {shown(part)} makes groups of one rank; it must be at least 2")
    # the slowest axis first; those of a group last, in the same order
    grid = np.arange(nranks).reshape(rest, *extents[::-1])
    inner = [len(names) - i for i in range(len(names) - 1, -1, -1) if names[i] in wanted]
    outer = [axis for axis in range(grid.ndim) if axis not in inner]
    size = math.prod(grid.shape[axis] for axis in inner)
    return [tuple(row) for row in grid.transpose(*outer, *inner).reshape(-1, size).tolist()]
