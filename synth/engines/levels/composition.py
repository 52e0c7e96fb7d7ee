"""Schedules of levels composed: across the parts of a level among ranks at the same place, then inside each part.

Members of a group stand in an array with an axis for each level, outermost first. A chunk crosses into every part of a
level once, at its place in the parts, and chunks take the places in turn, so that all NICs work at once. A sum comes
back the way that copies of its whole go; or the ranks at its place hand their partial sums to each other, in one step
a level, and all have it (hierarchical all-reduce as in BlueConnect, Cho and others, 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from synth.model.collective import Bools, Ints

STAR, DEALT, CHAIN = "star", "dealt", "chain"


class Hops(NamedTuple):
    """A tree along an axis: from place tail[i] to head[i] in step depth[i]; int64, shape (places - 1,) each."""

    tail: Ints
    head: Ints
    depth: Ints


# of a level (0 the outermost), from a place along it, in a chunk's turn
Along = Callable[[int, int, int], Hops]


class Arcs(NamedTuple):
    """A chunk's sends: from rank tail[i] to head[i] in a step, as an addend or a copy; shape (sends,) each."""

    tail: Ints
    head: Ints
    step: Ints
    adds: Bools

    @property
    def nsteps(self) -> int:
        """Number of steps."""
        return int(self.step.max(initial=-1)) + 1

    def backwards(self) -> Arcs:
        """Copies from one rank, read backwards: addends to it."""
        return Arcs(self.head, self.tail, self.nsteps - 1 - self.step, ~self.adds)


def hops(form: str, places: int, root: int, turn: int) -> Hops:
    """A tree along an axis on which every two places are linked.

    Args:
        form: STAR: the root sends to all. DEALT: to one, which sends on to all others (van de Geijn's scatter and
            all-gather, where chunks take turns). CHAIN: each to the next.
        turn: which of the others comes first.
    """
    others = (root + 1 + (turn + np.arange(places - 1)) % max(1, places - 1)) % places
    later = np.arange(places - 1) > 0
    if form == CHAIN:
        return Hops(np.append(root, others)[:-1], others, np.arange(places - 1))
    if form == DEALT:
        return Hops(np.where(later, others[0], root), others, later.astype(np.int64))
    return Hops(np.full(places - 1, root), others, np.zeros(places - 1, dtype=np.int64))


def spread(members: Ints, along: Along, place: Sequence[int], turn: int, first: int = 0) -> Arcs:
    """Copies from a place to all members, level by level from `first` on.

    The ranks at that place in every part of the levels before `first` have the value already.

    Args:
        members: ranks by level, int64 (c₀, c₁, …).
        place: (p₀, p₁, …).
    """
    found, base = [_none()], 0
    for level in range(first, members.ndim):
        tree = along(level, place[level], turn)
        ranks = _at(members, place[level + 1 :]).reshape(-1, members.shape[level])
        depth = np.broadcast_to(base + tree.depth, (len(ranks), len(tree.depth)))
        found.append(_arcs(ranks[:, tree.tail], ranks[:, tree.head], depth))
        base = found[-1].nsteps or base
    return joined(found)


def exchange(members: Ints, place: Sequence[int], levels: int) -> Arcs:
    """Partial sums from each rank at a place in the parts of the outermost `levels` to all of them, inner levels first.

    Of the place only what is inside those levels matters.
    """
    found = [_none()]
    at = _at(members, place[levels:])
    for level in range(levels - 1, -1, -1):
        places = members.shape[level]
        ranks = np.moveaxis(at, level, -1).reshape(-1, places)
        tail, head = (axis.ravel() for axis in np.indices((places, places)))
        tail, head = tail[tail != head], head[tail != head]
        step = np.full((len(ranks), len(tail)), levels - 1 - level)
        one = _arcs(ranks[:, tail], ranks[:, head], step)
        found.append(one._replace(adds=~one.adds))
    return joined(found)


def following(*parts: Arcs) -> Arcs:
    """Each part after the one before."""
    shifts = np.cumsum([0, *(part.nsteps for part in parts)])
    return joined([part._replace(step=part.step + by) for part, by in zip(parts, shifts, strict=False)])


def from_root(root: int, first: Arcs, tree: Arcs) -> Arcs:
    """A tree whose first rank gets the value from the root, over `first`, and which the root needs not receive from."""
    kept = tree.head != root
    return following(first, Arcs(*(column[kept] for column in tree)))


def send(root: int, to: int) -> Arcs:
    """A send from one rank to another; none where they are the same."""
    ends = np.array([[root]]), np.array([[to]]), np.array([[0]])
    return _none() if root == to else _arcs(*ends)


def joined(parts: Sequence[Arcs]) -> Arcs:
    """All of them."""
    return Arcs(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _at(members: Ints, inner: Sequence[int]) -> Ints:
    """The ranks at a place in the innermost levels."""
    for place in reversed(inner):
        members = members[..., place]
    return members


def _arcs(tail: Ints, head: Ints, step: Ints) -> Arcs:
    return Arcs(tail.ravel(), head.ravel(), step.ravel(), np.zeros(tail.size, dtype=bool))


_none = partial(_arcs, *(np.zeros(0, dtype=np.int64) for _ in range(3)))
