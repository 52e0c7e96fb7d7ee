"""The levels of a topology, such as racks, nodes and GPUs: derived from its graph, or given by the user.

The levels are a chain of partitions of the ranks into parts of equal size, each finer than the one before (P², MLSys
2022, arXiv 2110.10548, where the user gives them). Partitions come from four sources, in this order of trust: the
chassis that the topology names; the parts that stay connected by the links above some bandwidth, below some number of
switches or below some α; the dimensions of a grid, where the ranks' numbers are its coordinates; and the parts that are
connected by links in triangles.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, pairwise

import numpy as np

from topologies.arrays import Ints
from topologies.errors import InputError
from topologies.levels.partitions import Partition, chassis, connected_parts, grid_blocks
from topologies.topology import Topology

_LEVEL = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,30}):([0-9]{1,7})")
_FORM = "it must be NAME:SIZE,NAME:SIZE with the outermost first, as in rack:2,node:4,gpu:8"
_SHOWN = 6  # Most sizes of parts in a message.


@dataclass(frozen=True)
class Level:
    """A level of a hierarchy.

    Attributes:
        name: The level's name.
        size: Number of parts of this level in every part of the level before; of the outermost level, in all.
    """

    name: str
    size: int


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """Levels, outermost first, and the rank at every position.

    A position is a number 0..n-1 whose digits, in the mixed radix of the levels' sizes, are the coordinates of a
    device, the outermost level's digit first; n is the number of ranks and the product of the sizes.

    Attributes:
        levels: The levels, outermost first.
        ranks: Rank of the topology at each position: int64 (n,).
    """

    levels: tuple[Level, ...]
    ranks: Ints

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of the levels, outermost first."""
        return tuple(level.size for level in self.levels)

    @cached_property
    def position(self) -> Ints:
        """Return the position of every rank: int64 (n,)."""
        return np.argsort(self.ranks)

    def parts(self, level: int) -> Ints:
        """Return the ranks of every part of `levels[level]`, a row per part: int64 (parts, ranks of a part).

        Parts stand in the order of their positions, and so do the ranks of a part.
        """
        return self.ranks.reshape(math.prod(self.sizes[: level + 1]), -1)

    def __str__(self) -> str:
        """Return the levels in the notation that `parse_levels` reads."""
        return ",".join(f"{level.name}:{level.size}" for level in self.levels)


def nested(hierarchy: Hierarchy, groups: Ints) -> tuple[Ints, tuple[Level, ...]]:
    """Return the members of groups arranged by level.

    Each group has c₀ parts of an outer level, c₁ parts of the next level in each of these, and so on. Where the groups
    do not share one regular arrangement, there is one level, "rank", with all ranks of a group.

    Args:
        hierarchy: The levels of the topology.
        groups: Ranks of each group, in any order: int64 (groups, members).

    Returns:
        The ranks by position, int64 (groups, c₀, c₁, …), and the levels of c₀, c₁, … parts, named as in `hierarchy`.
        Levels with one part are left out, so that groups of one member have no level.
    """
    position = np.sort(hierarchy.position[groups], axis=1)
    part_counts, size, outer_parts, regular = [], len(hierarchy.ranks), 1, True
    for level in hierarchy.sizes:
        size //= level
        new = np.diff(position // size, axis=1, prepend=-1) != 0
        starts = new.sum(axis=1)
        parts_of_group = int(starts[0])
        regular = (
            regular
            and bool((starts == parts_of_group).all())
            and groups.shape[1] % parts_of_group == 0
            and parts_of_group % outer_parts == 0
        )
        regular = regular and bool(new[:, :: groups.shape[1] // parts_of_group].all())
        part_counts.append(parts_of_group // outer_parts)
        outer_parts = parts_of_group
    levels = [Level(level.name, count) for level, count in zip(hierarchy.levels, part_counts, strict=True) if count > 1]
    if not regular:
        levels = [Level("rank", groups.shape[1])]
    return hierarchy.ranks[position].reshape(len(groups), *(level.size for level in levels)), tuple(levels)


@lru_cache(maxsize=4)
def find_levels(topology: Topology) -> Hierarchy:
    """Find the levels of a topology; there is one level, "gpu", where nothing divides the ranks.

    The results of the last four calls are kept.

    Raises:
        InputError: The chassis have different sizes, or the fastest links connect parts of different sizes and no other
            level exists. The message says which parts, and which levels remain.
    """
    partitions: list[Partition] = []
    irregular: list[Partition] = []
    sources = (chassis(topology), connected_parts(topology), grid_blocks(topology), connected_parts(topology, True))
    for partition in chain.from_iterable(sources):
        if not partition.is_regular:
            irregular.append(partition)
        elif all(partition.nests_with(chosen) for chosen in partitions):
            partitions.append(partition)
    partitions.sort(key=lambda part: part.count)
    ranks = np.lexsort((np.arange(topology.nranks), *(part.of_rank for part in reversed(partitions))))
    counts = [1, *(part.count for part in partitions), topology.nranks]
    names = _named(partitions)
    sizes = [after // before for before, after in pairwise(counts)]
    levels = tuple(Level(name, size) for name, size in zip(names, sizes, strict=True) if size > 1 or len(sizes) == 1)
    hierarchy = Hierarchy(levels, ranks)
    uneven = next((part for part in irregular if part.is_chassis or not partitions), None)
    if uneven is not None:
        sizes_shown = ", ".join(map(str, uneven.sizes[:_SHOWN].tolist())) + (" …" if uneven.count > _SHOWN else "")
        raise InputError(
            f"levels of {topology.name}: {uneven.parts_name} hold {sizes_shown} ranks; they must be equally large, or"
            f" give the levels that remain: --levels {hierarchy}"
        )
    return hierarchy


def named_sizes(text: str, pattern: re.Pattern[str], things: str, thing: str, form: str) -> list[tuple[str, int]]:
    """Return the names and sizes of a text such as "pp=2,dp=4", in its order.

    Args:
        text: The text.
        pattern: Pattern of a part of the text, with groups for its name and its size.
        things: Noun for all parts, with which error messages begin.
        thing: Noun for one part.
        form: End of the error message about a part of another form.

    Raises:
        InputError: A part has another form or the size 0, or a name stands twice.
    """
    pairs = []
    for part in map(str.strip, text.split(",")):
        match = pattern.fullmatch(part)
        if match is None or int(match[2]) < 1:
            raise InputError(f"{things}: {part[:60]!r} is no {thing}; {form}")
        pairs.append((match[1], int(match[2])))
    repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if repeated:
        raise InputError(f"{things}: {repeated[0]!r} is named twice; every {thing} must have a name of its own")
    return pairs


def parse_levels(text: str, topology: Topology) -> Hierarchy:
    """Return the levels of a text such as "rack:2,node:4,gpu:8", outermost first.

    Ranks have the order of the topology's own levels (see `find_levels`), or ascend where these cannot be found.

    Raises:
        InputError: The text has another form, a name is repeated, or the product of the sizes is not the number of
            ranks.
    """
    levels = [Level(name, size) for name, size in named_sizes(text, _LEVEL, "levels", "level", _FORM)]
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


def _named(partitions: list[Partition]) -> list[str]:
    """Return the names of the levels.

    If any partition is a grid, all levels are called d0, d1, …, the ranks too. Otherwise outer levels are row and rack,
    the chassis is node, inner levels follow, and the ranks are gpu.
    """
    at = next((i for i, part in enumerate(partitions) if part.is_chassis), None)
    if any(part.is_grid for part in partitions):
        return [f"d{i}" for i in range(len(partitions) + 1)]
    if at is None:
        return [*_inside(len(partitions)), "gpu"]
    outer_names = [f"row{i}" for i in range(at - 1, 1, -1)] + ["row", "rack"][max(0, 2 - at) :]
    return [*outer_names, "node", *_inside(len(partitions) - at - 1), "gpu"]


def _inside(count: int) -> list[str]:
    """Return names for `count` partitions inside a node, outermost first: island and package, or island1, island2, ….

    Of three or more partitions the innermost is package.
    """
    return ["island", "package"][:count] if count < 3 else [f"island{i}" for i in range(1, count)] + ["package"]
