"""Composition of schedules: across the parts of a level among ranks at the same place, then inside each part.

The members of a group form an array with an axis for each level, outermost first. A chunk crosses into every part of a
level once, at its place in the parts, and chunks take the places in turn, so that all NICs work at once. A sum either
goes up the tree over which copies of the result come down. Or the ranks at its place exchange their partial sums, in
one step a level, and each has the sum (hierarchical all-reduce as in BlueConnect, Cho and others, 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from synth.model.collective import Bools, Ints

STAR, SCATTER, CHAIN, TREES, RING, DOUBLING = "star", "scatter", "chain", "trees", "ring", "doubling"


class Hops(NamedTuple):
    """A tree along an axis.

    Attributes:
        tail: Place from which each send goes, int64, shape (places - 1,).
        head: Place to which each send goes, int64, shape (places - 1,).
        depth: Step of each send, int64, shape (places - 1,).
    """

    tail: Ints
    head: Ints
    depth: Ints


# The arguments are a level (0 is the outermost), a place along it, and a chunk's rotation.
Along = Callable[[int, int, int], Hops]


class Arcs(NamedTuple):
    """The sends of a chunk.

    Attributes:
        tail: Rank from which each send goes, shape (sends,).
        head: Rank to which each send goes, shape (sends,).
        step: Step of each send, shape (sends,).
        adds: Whether each send adds to a sum, else it copies, shape (sends,).
    """

    tail: Ints
    head: Ints
    step: Ints
    adds: Bools

    @property
    def nsteps(self) -> int:
        """Return the number of steps."""
        return int(self.step.max(initial=-1)) + 1

    def backwards(self) -> Arcs:
        """Return the reversal of copies from one rank: addends to it."""
        return Arcs(self.head, self.tail, self.nsteps - 1 - self.step, ~self.adds)


def hops(form: str, places: int, root: int, rotation: int) -> Hops:
    """Return a tree along an axis on which every two places are linked.

    Args:
        form: STAR: the root sends to all places. SCATTER: the root sends to one place, which sends on to all others
            (van de Geijn's scatter and all-gather, where chunks take turns). CHAIN: each place sends to the next.
            TREES: one of two binary trees, in which no place but one sends on both kinds of chunks, so that all send
            equally much (Sanders, Speck and Träff, 2009, section 3). RING: a chain without rotation, so that every
            place sends to the one after it, whatever the root. DOUBLING: all places that are reached send as far ahead
            as their number (Bruck and others, 1997).
        places: Number of places.
        root: Place of the root.
        rotation: Which of the other places comes first: 0 for the one after the root, and so on round. With TREES, even
            and odd numbers are the two trees.
    """
    rotation = {RING: 0, TREES: rotation % 2}.get(form, rotation)
    places_after_root = (root + 1 + (rotation + np.arange(places - 1)) % max(1, places - 1)) % places
    is_later = np.arange(places - 1) > 0
    if form == DOUBLING:
        ahead = np.arange(1, places)
        depth = np.array([number.bit_length() - 1 for number in ahead.tolist()], dtype=np.int64)
        return Hops((root + ahead - (1 << depth)) % places, (root + ahead) % places, depth)
    if form == TREES:
        tail, depth = binary_tree(places - 1)
        places_in_order = np.append(root, places_after_root)
        order = np.argsort(depth, kind="stable")
        return Hops(places_in_order[tail[order]], places_after_root[order], depth[order])
    if form in (CHAIN, RING):
        return Hops(np.append(root, places_after_root)[:-1], places_after_root, np.arange(places - 1))
    if form == SCATTER and places > 2:
        return Hops(np.where(is_later, places_after_root[0], root), places_after_root, is_later.astype(np.int64))
    return Hops(np.full(places - 1, root), places_after_root, np.zeros(places - 1, dtype=np.int64))


def binary_tree(count: int) -> tuple[Ints, Ints]:
    """Return the parent and the depth of each of the numbers 1 to `count` in a binary tree.

    A parent lies between its children, the top's parent is 0, and odd numbers are leaves.

    Returns:
        The parents and the depths, which begin at 0 for the top; int64, shape (count,).
    """
    parent, depth = np.zeros((2, count), dtype=np.int64)
    ranges = [(1, count, 0, 0)]
    for low, high, above, level in ranges:  # It grows while it is read.
        if low > high:
            continue
        # The number with the most factors of two in a range stands near its middle.
        top = max(range(low, high + 1), key=lambda number: number & -number)
        parent[top - 1], depth[top - 1] = above, level
        ranges += [(low, top - 1, top, level + 1), (top + 1, high, top, level + 1)]
    return parent, depth


def spread(members: Ints, along: Along, place: Sequence[int], rotation: int, first: int = 0) -> Arcs:
    """Return copies from a place to all members, level by level from `first` on.

    The ranks at that place in every part of the levels before `first` have the value already.

    Args:
        members: Ranks by level, int64, shape (c₀, c₁, …).
        along: Tree along a level, from a place, in a chunk's rotation.
        place: Place of the root along each level.
        rotation: Rotation of the chunk: which of the other places comes first.
        first: First level to spread along.
    """
    parts, nsteps = [_none()], 0
    for level in range(first, members.ndim):
        tree = along(level, place[level], rotation)
        ranks = _at(members, place[level + 1 :]).reshape(-1, members.shape[level])
        depth = np.broadcast_to(nsteps + tree.depth, (len(ranks), len(tree.depth)))
        parts.append(_arcs(ranks[:, tree.tail], ranks[:, tree.head], depth))
        nsteps = parts[-1].nsteps or nsteps
    return joined(parts)


def exchange(members: Ints, place: Sequence[int], levels: int) -> Arcs:
    """Return partial sums from each rank at a place in the parts of the outermost levels to all of them.

    Inner levels come first, each in one step; without levels there are no sends.

    Args:
        members: Ranks by level, int64, shape (c₀, c₁, …).
        place: Place along each level, of which only the levels after the outermost `levels` matter.
        levels: Number of outermost levels.
    """
    parts = [_none()]
    ranks_at_place = _at(members, place[levels:])
    for level in range(levels - 1, -1, -1):
        places = members.shape[level]
        ranks = np.moveaxis(ranks_at_place, level, -1).reshape(-1, places)
        tail, head = (axis.ravel() for axis in np.indices((places, places)))
        tail, head = tail[tail != head], head[tail != head]
        step = np.full((len(ranks), len(tail)), levels - 1 - level)
        arcs_of_level = _arcs(ranks[:, tail], ranks[:, head], step)
        parts.append(arcs_of_level._replace(adds=~arcs_of_level.adds))
    return joined(parts)


def following(*parts: Arcs) -> Arcs:
    """Return all parts, each with its steps after those of the part before."""
    shifts = np.cumsum([0, *(part.nsteps for part in parts)])
    return joined([part._replace(step=part.step + shift) for part, shift in zip(parts, shifts, strict=False)])


def from_root(root: int, first: Arcs, tree: Arcs) -> Arcs:
    """Return a tree whose first rank gets the value from the root over `first`, without sends back to the root."""
    other_ranks = tree.head != root
    return following(first, Arcs(*(column[other_ranks] for column in tree)))


def send(root: int, goal: int) -> Arcs:
    """Return a send from one rank to another, none where they are equal."""
    ends = np.array([[root]]), np.array([[goal]]), np.array([[0]])
    return _none() if root == goal else _arcs(*ends)


def joined(parts: Sequence[Arcs]) -> Arcs:
    """Return all parts as one, with their own steps."""
    return Arcs(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _at(members: Ints, inner: Sequence[int]) -> Ints:
    """Return the ranks at a place in the innermost levels."""
    for place in reversed(inner):
        members = members[..., place]
    return members


def _arcs(tail: Ints, head: Ints, step: Ints) -> Arcs:
    """Return copies with these ends and steps."""
    return Arcs(tail.ravel(), head.ravel(), step.ravel(), np.zeros(tail.size, dtype=bool))


_none = partial(_arcs, *(np.zeros(0, dtype=np.int64) for _ in range(3)))
