"""Several groups with what each does, as they are written on the command line.

0-7;8-15                     groups, see below; all do what the command says
0-7;allgather:8-15           another collective for the groups of one part
tp=8;allreduce:tp=8,dp=*:dp  parts along axes too
allgather@64M:8-15           and another size; @64M:8-15 another size only

Axes are over the ranks that live; ranks are the topology's own numbers. How groups are written:

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
from collections.abc import Sequence

import numpy as np

from synth.concurrent.union import Member
from synth.model.collective import Collective, named
from synth.model.problem import parse_ranks
from synth.model.registry import parse_name
from synth.model.sizes import parse_size
from topologies.errors import InputError
from topologies.faults.ranks import live_ranks
from topologies.text.fields import shown
from topologies.topology import Topology

_AXIS = re.compile(r"([A-Za-z][A-Za-z0-9_]{0,15})\s*=\s*([1-9][0-9]{0,6}|\*)")
_PART = re.compile(r"\s*(?P<name>[A-Za-z][A-Za-z_-]*)?\s*(?:@(?P<size>[^:=,]*))?:(?P<ranks>.*)", re.S)


def parse_members(
    text: str,
    collective: str | Collective,
    topology: Topology,
    *,
    dead: Sequence[int] = (),
    size: str | None = None,
    sizes: str | None = None,
) -> list[Member]:
    """The groups of `text`, each with its collective (the first rank is the root of a rooted one) and size.

    Args:
        text: as the head of this module says.
        collective: what groups do that do not say otherwise.
        topology: the machine or cluster. dead: its ranks that do not live.
        size: of groups that do not say otherwise.
        sizes: one a group, with commas.

    Raises:
        InputError: groups, a collective or a size that cannot be, no size, or two for one group.
    """
    living = live_ranks(topology, dead, None, "--groups")
    known: dict[tuple[str, int], Collective] = {}
    found: list[tuple[tuple[int, ...], Collective, str | None]] = []
    for part in text.split(";"):
        match = _PART.fullmatch(part)
        name, own, body = (match["name"], match["size"], match["ranks"]) if match else (None, None, part)
        if name is None and own is None:
            body = part
        what: str | Collective = collective if name is None else parse_name(name)
        for ranks in _groups(body, topology, dead, living):
            stated = what
            if isinstance(stated, str):
                key = (parse_name(stated), len(ranks))
                stated = known[key] = known.get(key) or named(stated, len(ranks), 1)
            found.append((ranks, stated, own))
    each = _sizes(found, size, sizes)
    return [Member(ranks, stated, size_bytes) for (ranks, stated, _), size_bytes in zip(found, each, strict=True)]


def _groups(body: str, topology: Topology, dead: Sequence[int], living: Sequence[int]) -> list[tuple[int, ...]]:
    if "=" in body:
        return [tuple(living[i] for i in group) for group in parse_groups(body, len(living))]
    return [live_ranks(topology, dead, group, "--groups") for group in parse_groups(body, topology.nranks)]


def _sizes(
    found: Sequence[tuple[tuple[int, ...], Collective, str | None]], size: str | None, sizes: str | None
) -> list[int]:
    """Bytes of every group."""
    given = [None] * len(found) if sizes is None else sizes.split(",")
    if len(given) != len(found):
        raise InputError(
            f"--group-sizes: {shown(sizes)} has {len(given)} sizes for {len(found)} groups; give one a group"
        )
    each = []
    for (ranks, _, own), listed in zip(found, given, strict=True):
        if own is not None and listed is not None:
            raise InputError(
                f"--group-sizes: the group that begins with rank {ranks[0]} has a size of its own, @{own}; give one"
                " or the other"
            )
        sources = ((own, "--groups"), (listed, "--group-sizes"), (size, "--size"))
        given_size = next(((text, option) for text, option in sources if text is not None), None)
        if given_size is None:
            raise InputError(
                "--groups: needs message sizes; give --size 64M, --group-sizes one a group, or @64M: before a group"
            )
        each.append(parse_size(*given_size))
    return each


def parse_groups(text: str, nranks: int) -> list[tuple[int, ...]]:
    """The groups of `text` over the ranks 0..nranks-1, in the order written; along axes by their first rank.

    Raises:
        InputError: not a list of groups, axes that do not fit the ranks, a rank that does not exist or is twice
            in one group, or a group of fewer than two.
    """
    groups: list[tuple[int, ...]] = []
    for part in text.split(";"):
        part = part.strip()
        if not part:
            raise InputError(f"--groups: {shown(text)} has an empty group; it must be as in 0-7;8-15 or tp=8")
        if "=" in part:
            groups += _along(part, nranks)
            continue
        ranks = parse_ranks(part, "--groups", nranks)
        if len(ranks) < 2:
            raise InputError(f"--groups: group {part} has one rank; it must be at least 2")
        groups.append(ranks)
    return groups


def _along(part: str, nranks: int) -> list[tuple[int, ...]]:
    """The groups along one or several axes."""
    listed, colon, chosen = part.partition(":")
    names: list[str] = []
    extents: list[int] = []  # 0: *
    for item in listed.split(","):
        axis = _AXIS.fullmatch(item.strip())
        if axis is None:
            raise InputError(
                f"--groups: {shown(item.strip())} is no axis;"
                " it must be a name and how many ranks it has, as in tp=8,dp=*"
            )
        if axis[1] in names:
            raise InputError(f"--groups: axis {axis[1]} is given twice in {shown(part)}; it must be once")
        names.append(axis[1])
        extents.append(0 if axis[2] == "*" else int(axis[2]))
    if extents.count(0) > 1:
        raise InputError(f"--groups: {shown(part)} has several *; it must be one axis at most that is what is left")
    fixed = math.prod(extent for extent in extents if extent)
    rest, over = divmod(nranks, fixed)
    if over or not rest:
        raise InputError(
            f"--groups: {shown(listed)} is {fixed} ranks, which does not divide the {nranks} there are;"
            " it must be a divisor of that"
        )
    if 0 in extents:
        extents[extents.index(0)], rest = rest, 1
    wanted = [name.strip() for name in chosen.split("+")] if colon else names[:1]
    for name in wanted:
        if name not in names:
            raise InputError(
                f"--groups: {shown(name)} in {shown(part)} is no axis of it; it must be one of {', '.join(names)}"
            )
    if math.prod(extents[names.index(name)] for name in set(wanted)) < 2:
        raise InputError(f"--groups: {shown(part)} makes groups of one rank; it must be at least 2")
    # the slowest axis first; those of a group last, in the same order
    grid = np.arange(nranks).reshape(rest, *extents[::-1])
    inner = [len(names) - i for i in range(len(names) - 1, -1, -1) if names[i] in wanted]
    outer = [axis for axis in range(grid.ndim) if axis not in inner]
    size = math.prod(grid.shape[axis] for axis in inner)
    return [tuple(row) for row in grid.transpose(*outer, *inner).reshape(-1, size).tolist()]
