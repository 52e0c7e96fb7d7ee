"""Who holds which contributions of which piece, and what a collective within groups does to that (P²'s states).

A message is cut into as many pieces as a reduction group has devices. The state of a device is, for every piece, the
set of devices whose contributions its partial sum holds. Sets are counted, never merged where they overlap: a
contribution that would be added twice makes a step illegal.
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
WHOLE = "all"  # the vertex above the first level

Groups = tuple[tuple[int, ...], ...]
State = tuple[
    tuple[int, ...], ...
]  # [device][piece]: bit d is set where device d's contribution is in; 0: nothing held


@dataclass(frozen=True)
class SynthesisHierarchy:
    """Levels in which groups are made, and which devices reduce together.

    Attributes:
        names: of the levels, the outermost first. factors: into how many parts each splits what is above it, ≥ 2.
        group: of every device (numbered by its coordinates, the innermost level fastest) the reduction group.
    """

    names: tuple[str, ...]
    factors: tuple[int, ...]
    group: tuple[int, ...]

    @property
    def ndevices(self) -> int:
        return len(self.group)

    @property
    def pieces(self) -> int:
        """Of a message: the devices of a reduction group."""
        return self.group.count(self.group[0])


def one_group(names: Sequence[str], factors: Sequence[int]) -> SynthesisHierarchy:
    """The hierarchy of one reduction group: levels of one part are left out.

    Raises InputError where nothing is left, or for names that are not as many as factors.
    """
    kept = [(name, factor) for name, factor in zip(names, factors, strict=True) if factor > 1]
    if not kept:
        raise InputError("over: the groups have one rank; it must be axes of at least 2 ranks together")
    return SynthesisHierarchy(
        tuple(name for name, _ in kept), tuple(factor for _, factor in kept), (0,) * math.prod(factors)
    )


@dataclass(frozen=True)
class Slice:
    """How a step makes groups: the devices whose coordinates differ in the levels low..high-1 only.

    Inside group: `high` is the last level. Parallel, master: groups of the devices at one place, or at the first place,
    of the vertices that level high-1 makes, within a vertex above level `low`.
    """

    low: int
    high: int
    form: str

    def vertex(self, hierarchy: SynthesisHierarchy) -> str:
        """P²'s slice: the level whose vertices are grouped, or (inside group) whose devices are."""
        depth = self.low if self.form == INSIDE else self.high
        return hierarchy.names[depth - 1] if depth else WHOLE

    def described(self, hierarchy: SynthesisHierarchy) -> str:
        """The form, with the level above the vertices where there is one: `parallel(rack)`."""
        if self.form == INSIDE:
            return INSIDE
        return f"{self.form}({hierarchy.names[self.low - 1] if self.low else WHOLE})"

    def groups(self, hierarchy: SynthesisHierarchy) -> Groups:
        """The groups, each in the order of coordinates; the first of a group is its root."""
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
    """All of a hierarchy, no two with the same groups."""
    levels = len(hierarchy.factors)
    found = [Slice(low, levels, INSIDE) for low in range(levels)]
    pairs = [(low, high) for high in range(1, levels) for low in range(high)]
    return found + [Slice(low, high, form) for form in (PARALLEL, MASTER) for low, high in pairs]


def start(hierarchy: SynthesisHierarchy) -> State:
    """Every device holds its own contribution of all pieces."""
    return tuple((1 << device,) * hierarchy.pieces for device in range(hierarchy.ndevices))


def goal(hierarchy: SynthesisHierarchy) -> State:
    """Every device holds every contribution of its group, of all pieces."""
    whole: dict[int, int] = {}
    for device, group in enumerate(hierarchy.group):
        whole[group] = whole.get(group, 0) | 1 << device
    return tuple((whole[group],) * hierarchy.pieces for group in hierarchy.group)


def apply(collective: str, groups: Groups, state: State) -> State | None:
    """The state after a collective in every group at once; None where it is not allowed, or changes nothing.

    A group in which nobody holds anything does nothing.
    """
    after = list(state)
    for group in groups:
        rows = [state[device] for device in group]
        if not any(map(any, rows)):
            continue
        made = _RULES[collective](rows)
        if made is None:
            return None
        for device, row in zip(group, made, strict=True):
            after[device] = row
    found = tuple(after)
    return None if found == state else found


def held(row: Sequence[int]) -> tuple[int, ...]:
    """The pieces of which a device holds anything, ascending."""
    return tuple(piece for piece, contributors in enumerate(row) if contributors)


Rows = list[tuple[int, ...]]


def _united(rows: Rows) -> tuple[int, ...] | None:
    """The sums of all; None unless all hold the same pieces, and no contribution is with two of them."""
    if len({held(row) for row in rows}) > 1:
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
    united = _united(rows)
    return None if united is None else [united] * len(rows)


def _reduce(rows: Rows) -> Rows | None:
    united = _united(rows)
    return None if united is None else [united] + [(0,) * len(united)] * (len(rows) - 1)


def _reducescatter(rows: Rows) -> Rows | None:
    united = _united(rows)
    if united is None:
        return None
    pieces = held(united)
    share, left = divmod(len(pieces), len(rows))
    if left:
        return None
    made = []
    for member in range(len(rows)):
        kept = set(pieces[member * share : (member + 1) * share])
        made.append(tuple(contributors if piece in kept else 0 for piece, contributors in enumerate(united)))
    return made


def _allgather(rows: Rows) -> Rows | None:
    pieces = [held(row) for row in rows]
    many = len(pieces[0])
    if any(len(own) != many for own in pieces) or len({piece for own in pieces for piece in own}) < many * len(rows):
        return None
    return [tuple(map(max, zip(*rows, strict=True)))] * len(rows)  # of every piece one holds more than nothing


def _broadcast(rows: Rows) -> Rows | None:
    root = rows[0]
    for row in rows[1:]:
        if row == root:  # nothing new for this device: the same program without it does as well
            return None
        if any(theirs & ~own for theirs, own in zip(row, root, strict=True)):
            return None
    return [root] * len(rows)


_RULES = {
    ALLREDUCE: _allreduce, REDUCESCATTER: _reducescatter, ALLGATHER: _allgather, REDUCE: _reduce, BROADCAST: _broadcast,
}  # fmt: skip
