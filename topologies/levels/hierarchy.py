"""Levels of a topology, as racks, nodes and GPUs: read off the graph, or given.

The levels are a chain of partitions of the ranks into parts of equal size, each finer than the one before (P², MLSys
2022, arXiv 2110.10548, where they are given). Partitions come from four places, in this order of trust: the chassis
that the topology names; what stays connected when only links above some bandwidth, below some number of switches or
below some α are left; the dimensions of a grid, where the ranks' numbers are its coordinates; and what is connected by
links that are in triangles.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise

import numpy as np

from topologies.arrays import Ints
from topologies.errors import InputError
from topologies.levels.partitions import Partition, chassis, connected_parts, grid_blocks
from topologies.topology import Topology

_LEVEL = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,30}):([0-9]{1,7})")
_FORM = "it must be NAME:SIZE,NAME:SIZE with the outermost first, as in rack:2,node:4,gpu:8"
_SHOWN = 6  # sizes of parts in a message


@dataclass(frozen=True)
class Level:
    """One level: `size` parts of it stand in every part of the level before."""

    name: str
    size: int


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """Levels, outermost first, and the rank at every position.

    A position is a number 0..n-1 whose digits, in the mixed radix of the levels' sizes, are the coordinates of a
    device, the outermost level's digit first; n is the number of ranks and the product of the sizes.
    """

    levels: tuple[Level, ...]
    ranks: Ints  # (n,), rank of the topology at each position

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the levels, outermost first."""
        return tuple(level.size for level in self.levels)

    @cached_property
    def position(self) -> Ints:
        """Of every rank."""
        return np.argsort(self.ranks)

    def parts(self, level: int) -> Ints:
        """Ranks of every part of a level, a row each: int64 (parts, ranks of a part)."""
        return self.ranks.reshape(math.prod(self.sizes[: level + 1]), -1)

    def __str__(self) -> str:
        """As `parse_levels` reads them."""
        return ",".join(f"{level.name}:{level.size}" for level in self.levels)


def nested(hierarchy: Hierarchy, groups: Ints) -> tuple[Ints, tuple[Level, ...]]:
    """Groups (a row of ranks each) by level: members (groups, c₀, c₁, …), and the levels of c₀, c₁, … parts, all > 1.

    They have c₀ parts of an outer level, in each of these c₁ of the next one, and so on; one level of all ranks of a
    group where they do not lie alike.
    """
    position = np.sort(hierarchy.position[groups], axis=1)
    counts, size, before, regular = [], len(hierarchy.ranks), 1, True
    for level in hierarchy.sizes:
        size //= level
        new = np.diff(position // size, axis=1, prepend=-1) != 0
        starts = new.sum(axis=1)
        now = int(starts[0])
        regular = regular and bool((starts == now).all()) and groups.shape[1] % now == 0 and now % before == 0
        regular = regular and bool(new[:, :: groups.shape[1] // now].all())
        counts.append(now // before)
        before = now
    kept = [Level(level.name, count) for level, count in zip(hierarchy.levels, counts, strict=True) if count > 1]
    if not regular:
        kept = [Level("rank", groups.shape[1])]
    return hierarchy.ranks[position].reshape(len(groups), *(level.size for level in kept)), tuple(kept)


def find_levels(topology: Topology) -> Hierarchy:
    """The levels of a topology; one, "gpu", where all ranks are alike.

    Raises InputError where the chassis, or the fastest links, leave parts of different sizes and no other level is
    left: the line says which, and the levels that remain.
    """
    kept: list[Partition] = []
    irregular: list[Partition] = []
    sources = (chassis(topology), connected_parts(topology), grid_blocks(topology), connected_parts(topology, True))
    for found in chain.from_iterable(sources):
        if not found.is_regular:
            irregular.append(found)
        elif all(found.nests_with(other) for other in kept):
            kept.append(found)
    kept.sort(key=lambda part: part.count)
    ranks = np.lexsort((np.arange(topology.nranks), *(part.of_rank for part in reversed(kept))))
    counts = [1, *(part.count for part in kept), topology.nranks]
    names = _named(kept)
    sizes = [after // before for before, after in pairwise(counts)]
    levels = tuple(Level(name, size) for name, size in zip(names, sizes, strict=True) if size > 1 or len(sizes) == 1)
    hierarchy = Hierarchy(levels, ranks)
    wrong = next((part for part in irregular if part.is_chassis or not kept), None)
    if wrong is not None:
        sizes_shown = ", ".join(map(str, wrong.sizes[:_SHOWN].tolist())) + (" …" if wrong.count > _SHOWN else "")
        raise InputError(
            f"levels of {topology.name}: {wrong.what} hold {sizes_shown} ranks; they must be equally large, or give"
            f" the levels that remain: --levels {hierarchy}"
        )
    return hierarchy


def parse_levels(text: str, topology: Topology) -> Hierarchy:
    """Levels as "rack:2,node:4,gpu:8", outermost first; ranks stand in the order of the levels found, if there are any.

    Raises InputError: another form, a name given twice, or sizes whose product is not the number of ranks.
    """
    levels = []
    for part in text.split(","):
        match = _LEVEL.fullmatch(part.strip())
        if match is None or int(match[2]) < 1:
            raise InputError(f"levels: {part.strip()[:60]!r} is no level; {_FORM}")
        levels.append(Level(match[1], int(match[2])))
    twice = [name for name, count in Counter(level.name for level in levels).items() if count > 1]
    if twice:
        raise InputError(f"levels: {twice[0]!r} is named twice; every level must have a name of its own")
    product = math.prod(level.size for level in levels)
    if product != topology.nranks:
        sizes = "·".join(str(level.size) for level in levels)
        raise InputError(
            f"levels: {sizes} = {product} devices, but {topology.name} has {topology.nranks} ranks;"
            " the sizes must multiply to that"
        )
    try:
        ranks = find_levels(topology).ranks
    except InputError:
        ranks = np.arange(topology.nranks)
    return Hierarchy(tuple(levels), ranks)


def _named(kept: list[Partition]) -> list[str]:
    """A name for the parts of each partition, then for the ranks: those of the field where the place says which."""
    at = next((i for i, part in enumerate(kept) if part.is_chassis), None)
    if any(part.is_grid for part in kept):
        return [f"d{i}" for i in range(len(kept) + 1)]
    if at is None:  # one chassis, or none named
        return [*_inside(len(kept)), "gpu"]
    before = [f"row{i}" for i in range(at - 1, 1, -1)] + ["row", "rack"][max(0, 2 - at) :]
    return [*before, "node", *_inside(len(kept) - at - 1), "gpu"]


def _inside(count: int) -> list[str]:
    """Names for so many partitions of a node."""
    return ["island", "package"][:count] if count < 3 else [f"island{i}" for i in range(1, count)] + ["package"]
