"""States of a reduction (P²): which contributions each device holds of each piece, and how a collective changes them.

A message is cut into as many pieces as a reduction group has devices. The state of a device is, for every piece, the
set of devices whose contributions its partial sum holds. Sets that overlap are never merged: a step that would add a
contribution twice is illegal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from topologies.errors import InputError

ALLREDUCE, REDUCESCATTER, ALLGATHER, REDUCE, BROADCAST = (
    "allreduce", "reducescatter", "allgather", "reduce", "broadcast",
)  # fmt: skip
COLLECTIVES = (ALLREDUCE, REDUCESCATTER, ALLGATHER, REDUCE, BROADCAST)
INSIDE, PARALLEL, MASTER = "inside", "parallel", "master"
WHOLE = "all"  # The vertex above the first level.

Groups = tuple[tuple[int, ...], ...]
# state[device][piece] is a bit mask: bit d is set where the sum contains device d's contribution; 0: nothing is held.
State = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class SynthesisHierarchy:
    """The levels in which groups are formed, and the devices that reduce with each other.

    Attributes:
        names: Names of the levels, the outermost first.
        factors: Number of parts (≥ 2) into which each level splits a part of the level above it.
        group: Reduction group of every device. Devices are numbered by their coordinates, the innermost level fastest.
    """

    names: tuple[str, ...]
    factors: tuple[int, ...]
    group: tuple[int, ...]

    @property
    def ndevices(self) -> int:
        """Return the number of devices."""
        return len(self.group)

    @property
    def pieces(self) -> int:
        """Return the number of pieces of a message, which is the number of devices of a reduction group."""
        return self.group.count(self.group[0])


def one_group(names: Sequence[str], factors: Sequence[int]) -> SynthesisHierarchy:
    """Build the hierarchy of one reduction group, without the levels that have only one part.

    Raises:
        InputError: No level has more than one part.
        ValueError: `names` and `factors` differ in length.
    """
    split_levels = [(name, factor) for name, factor in zip(names, factors, strict=True) if factor > 1]
    if not split_levels:
        raise InputError("over: the groups have one rank; it must name axes with at least 2 ranks in all")
    return SynthesisHierarchy(
        tuple(name for name, _ in split_levels), tuple(factor for _, factor in split_levels), (0,) * math.prod(factors)
    )


@dataclass(frozen=True)
class Slice:
    """A rule by which a step forms groups of devices that differ only in the coordinates of the levels low..high-1.

    Attributes:
        low: First level in which the members of a group differ.
        high: Level behind the last one in which they differ.
        form: "inside": `high` is the number of levels. "parallel": one group for every position within the vertices
            that level high-1 makes. "master": a group only for the first position within these vertices.
    """

    low: int
    high: int
    form: str

    def vertex(self, hierarchy: SynthesisHierarchy) -> str:
        """Return P²'s slice: the level whose vertices are grouped, or whose devices are grouped (form "inside").

        It is a name of the hierarchy, or "all" for the vertex above all levels.
        """
        depth = self.low if self.form == INSIDE else self.high
        return hierarchy.names[depth - 1] if depth else WHOLE

    def described(self, hierarchy: SynthesisHierarchy) -> str:
        """Return the form as text: "inside", or the form with the level within whose parts it groups: "parallel(rack)".

        The level is "all" where the groups are formed over the whole hierarchy.
        """
        if self.form == INSIDE:
            return INSIDE
        return f"{self.form}({hierarchy.names[self.low - 1] if self.low else WHOLE})"

    def groups(self, hierarchy: SynthesisHierarchy) -> Groups:
        """Return the groups of devices, each in the order of coordinates; the first device of a group is its root.

        Each group has the same number of devices and no device is in two; with "master" some devices are in none.
        """
        factors = hierarchy.factors
        below = math.prod(factors[self.high :])
        size = math.prod(factors[self.low : self.high])
        places = 1 if self.form == MASTER else below
        return tuple(
            tuple(above + place + member * below for member in range(size))
            for above in range(0, hierarchy.ndevices, size * below)
            for place in range(places)
        )


def slices(hierarchy: SynthesisHierarchy) -> list[Slice]:
    """Return all slices of a hierarchy, no two with the same groups."""
    levels = len(hierarchy.factors)
    inside_slices = [Slice(low, levels, INSIDE) for low in range(levels)]
    pairs = [(low, high) for high in range(1, levels) for low in range(high)]
    return inside_slices + [Slice(low, high, form) for form in (PARALLEL, MASTER) for low, high in pairs]


def start(hierarchy: SynthesisHierarchy) -> State:
    """Return the initial state: every device holds its own contribution to all pieces."""
    return tuple((1 << device,) * hierarchy.pieces for device in range(hierarchy.ndevices))


def goal(hierarchy: SynthesisHierarchy) -> State:
    """Return the final state: every device holds all contributions of its reduction group, for all pieces."""
    group_mask: dict[int, int] = {}
    for device, group in enumerate(hierarchy.group):
        group_mask[group] = group_mask.get(group, 0) | 1 << device
    return tuple((group_mask[group],) * hierarchy.pieces for group in hierarchy.group)


def apply(collective: str, groups: Groups, state: State) -> State | None:
    """Return the state after a collective in all groups, or None if it is illegal or changes nothing.

    `state` itself stays unchanged. A group whose devices hold nothing stays as it is; a step that is illegal in one
    other group is illegal.

    Args:
        collective: One of `COLLECTIVES`.
        groups: Devices of each group, the root first; no device is in two groups.
        state: The state before.
    """
    after = list(state)
    for group in groups:
        rows = [state[device] for device in group]
        if not any(map(any, rows)):
            continue
        new_rows = _RULES[collective](rows)
        if new_rows is None:
            return None
        for device, row in zip(group, new_rows, strict=True):
            after[device] = row
    new_state = tuple(after)
    return None if new_state == state else new_state


def pieces_held(row: Sequence[int]) -> tuple[int, ...]:
    """Return the pieces of which a device holds at least one contribution, in ascending order."""
    return tuple(piece for piece, contributors in enumerate(row) if contributors)


Rows = list[tuple[int, ...]]


def _united(rows: Rows) -> tuple[int, ...] | None:
    """Return the sums of all rows, or None if the rows hold different pieces or share a contribution."""
    if len({pieces_held(row) for row in rows}) > 1:
        return None
    united = []
    for pieces in zip(*rows, strict=True):
        union = 0
        for contributors in pieces:
            if union & contributors:
                return None
            union |= contributors
        united.append(union)
    return tuple(united)


def _allreduce(rows: Rows) -> Rows | None:
    """Return the rows after an all-reduce, all of them the sum; None if it is illegal (see `_united`)."""
    united = _united(rows)
    return None if united is None else [united] * len(rows)


def _reduce(rows: Rows) -> Rows | None:
    """Return the rows after a reduce, of which only the first holds the sum; None if it is illegal (see `_united`)."""
    united = _united(rows)
    return None if united is None else [united] + [(0,) * len(united)] * (len(rows) - 1)


def _reducescatter(rows: Rows) -> Rows | None:
    """Return the rows after a reduce-scatter: each has the sum of an equal share of the held pieces, in order.

    It is None if the reduction is illegal (see `_united`), or the pieces do not divide by the rows.
    """
    united = _united(rows)
    if united is None:
        return None
    pieces = pieces_held(united)
    share, remainder = divmod(len(pieces), len(rows))
    if remainder:
        return None
    new_rows = []
    for member in range(len(rows)):
        own_pieces = set(pieces[member * share : (member + 1) * share])
        new_rows.append(tuple(contributors if piece in own_pieces else 0 for piece, contributors in enumerate(united)))
    return new_rows


def _allgather(rows: Rows) -> Rows | None:
    """Return the rows after an all-gather: all have the pieces of all rows.

    It is None if the rows hold different numbers of pieces, or two rows hold the same piece.
    """
    pieces = [pieces_held(row) for row in rows]
    share = len(pieces[0])
    if any(len(held_pieces) != share for held_pieces in pieces) or len(
        {piece for held_pieces in pieces for piece in held_pieces}
    ) < share * len(rows):
        return None
    return [tuple(map(max, zip(*rows, strict=True)))] * len(rows)  # Only one row holds each piece.


def _broadcast(rows: Rows) -> Rows | None:
    """Return the rows after a broadcast: all are the first row.

    It is None if another row equals the first one, or holds a contribution that the first row lacks.
    """
    root = rows[0]
    for row in rows[1:]:
        if row == root:  # The program without this device's step does as well.
            return None
        if any(contributors & ~root_contributors for contributors, root_contributors in zip(row, root, strict=True)):
            return None
    return [root] * len(rows)


_RULES = {
    ALLREDUCE: _allreduce, REDUCESCATTER: _reducescatter, ALLGATHER: _allgather, REDUCE: _reduce, BROADCAST: _broadcast,
}  # fmt: skip
