"""Symmetry of a network: permutations of ranks that keep links, figures and shared capacities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from topologies.arrays import Ints, marked, reached
from topologies.errors import InputError
from topologies.network import Network
from topologies.symmetry.free_subgroup import generate
from topologies.symmetry.refinement import Colours, Structure, find_link_image, mark
from topologies.symmetry.tuning import TUNING


class _SpentError(Exception):
    """The budget is gone; what was found so far stands."""


class _Search:
    """What all steps of one call share: the structure, the classes and the budget."""

    def __init__(self, net: Network, classes: Ints, budget: float) -> None:
        self.structure = Structure(net)
        self.classes = classes
        self.left = budget
        self.root = self.structure.refine(classes.astype(np.uint64) + np.uint64(1))

    def spend(self, units: int) -> None:
        self.left -= units * self.structure.size
        if self.left < 0:
            raise _SpentError

    def accepts(self, p: Ints) -> bool:
        # Cheap refusals first: most candidates die here and cost nothing.
        if (self.root.ranks[p] != self.root.ranks).any() or (self.classes[p] != self.classes).any():
            return False
        self.spend(TUNING.check_cost)
        return find_link_image(self.structure, p) is not None


def automorphisms(net: Network, fixed: Sequence[Sequence[int]], limit: int = 2000, budget_s: float = 1.0) -> list[Ints]:
    """Automorphisms of the network, int64 (nranks,) each, p[i] the image of rank i; the identity first.

    Each maps links onto links of equal α and bandwidth, the links of every resource onto those of a resource of equal
    capacity, and each set of `fixed` (local ranks) onto itself. Generators come next: rotations, XOR masks, reversals,
    whole and by blocks; then those that a search found for further images of each set's first rank; then one for each
    image of these ranks; then what all of them generate. At most `limit` in all. budget_s: rough seconds, counted as
    work, so that every machine gives the same list. Raises InputError for a rank outside the network or limit < 1.
    """
    n = net.nranks
    if limit < 1:
        raise InputError(f"limit: {limit} must be at least 1")
    classes = np.zeros(n, dtype=np.int64)
    for i, members in enumerate(fixed):
        at = np.asarray(members, dtype=np.int64)
        if at.size and (at.min() < 0 or at.max() >= n):
            raise InputError(f"fixed set {i}: holds a rank outside; it must be 0..{n - 1}")
        classes = np.unique(classes * 2 + marked(n, at), return_inverse=True)[1].reshape(-1)
    firsts = [int(members[0]) for members in fixed if len(members)] or [0]
    search = _Search(net, classes, budget_s * TUNING.work_per_s)
    generators: list[Ints] = []
    try:
        _natural(search, fixed, generators, limit)
        _orbit_search(search, generators, firsts, limit)
    except _SpentError:
        pass
    return _generated(generators, n, limit, firsts)


def _natural(search: _Search, fixed: Sequence[Sequence[int]], generators: list[Ints], limit: int) -> None:
    """Adds every natural candidate that holds and that the earlier ones do not generate."""
    n = len(search.classes)
    known = {np.arange(n).tobytes()}
    for p in chain(_candidates(n), _class_rotations(n, fixed)):
        if p.tobytes() in known or not search.accepts(p):
            continue
        generators.append(p)
        # Closing the group after each find keeps powers and sums of what is known from being checked again.
        if len(known) < limit:
            known = {q.tobytes() for q in _generated(generators, n, limit)}


def _candidates(n: int) -> Iterator[Ints]:
    """Rotations, XOR masks, reversals and exchanges of equal digits, the whole range first."""
    i = np.arange(n, dtype=np.int64)
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    blocks = [(b, unit) for b in reversed(divisors) for unit in divisors if unit < b and b % unit == 0]
    for block, unit in blocks:
        yield i - i % block + (i + unit) % block
    if n & (n - 1) == 0:
        for bit in range(n.bit_length() - 1):
            yield i ^ (1 << bit)
        if n <= 64:
            for m in range(3, n):
                yield i ^ m
    for block, unit in blocks:
        digit = i % block // unit
        yield i + (block // unit - 1 - 2 * digit) * unit
        yield i + ((-digit) % (block // unit) - digit) * unit
    for low in divisors:
        for size in divisors:
            if size > 1 and n % (low * size * size) == 0:
                x, y = i // low % size, i // (low * size) % size
                yield i + (y - x) * low + (x - y) * low * size


def _class_rotations(n: int, fixed: Sequence[Sequence[int]]) -> Iterator[Ints]:
    """One set rotated along its own order, the others left in place."""
    for members in fixed:
        at = np.asarray(members, dtype=np.int64)
        for unit in range(1, len(at)):
            if len(at) % unit == 0 and len(np.unique(at)) == len(at):
                p = np.arange(n, dtype=np.int64)
                p[at] = np.roll(at, -unit)
                yield p


def _orbit_search(search: _Search, generators: list[Ints], firsts: Sequence[int], limit: int) -> None:
    """Searches what brings each first rank to its other images, then does so for one more rank at a time.

    Those before it stay fixed (a chain of stabilisers), which ends with generators of the whole group.
    """
    n = len(search.classes)
    for first in dict.fromkeys(firsts):
        _complete_orbit(search, search.root, first, generators, [])
    root, base = search.root, list[int]()
    while len(_generated(generators, n, limit)) < limit:
        vertex = _in_smallest_cell(root)
        if vertex is None:
            return
        _complete_orbit(search, root, vertex, generators, base)
        base.append(vertex)
        search.spend(2 * TUNING.refine_cost)
        root = search.structure.refine(mark(root.ranks, vertex), root.links, root.resources)


def _complete_orbit(search: _Search, root: Colours, first: int, generators: list[Ints], base: Sequence[int]) -> None:
    """Adds generators that fix `base` until they bring `first` wherever such automorphisms can."""
    n = len(search.classes)

    def stabiliser() -> list[Ints]:
        return [g for g in generators if all(g[b] == b for b in base)]

    reached, refused = _orbit(first, stabiliser(), n), set[int]()
    for target in np.flatnonzero(root.ranks == root.ranks[first]).tolist():
        if target in reached or target in refused:
            continue
        p = _sending(search, root, first, target)
        if p is None:
            refused |= _orbit(target, stabiliser(), n)
        else:
            generators.append(p)
            reached = _orbit(first, stabiliser(), n)


def _orbit(start: int, generators: Sequence[Ints], n: int) -> set[int]:
    """Ranks that products of the generators bring `start` to, itself included."""
    images = np.concatenate(generators) if generators else np.arange(n)
    found = reached(n, np.tile(np.arange(n), len(images) // n), images, start)
    return set(np.flatnonzero(found).tolist())


def _in_smallest_cell(colours: Colours) -> int | None:
    """The first rank of those that share their colour with the fewest others; None where all colours differ."""
    _, cell, sizes = np.unique(colours.ranks, return_inverse=True, return_counts=True)
    size = sizes[cell.reshape(-1)]
    return int(np.argmin(np.where(size > 1, size, len(size) + 1))) if size.max() > 1 else None


def _sending(search: _Search, root: Colours, first: int, target: int) -> Ints | None:
    """An automorphism with first → target that keeps the colours of `root`, None where there is none."""
    structure = search.structure

    def refined(c: Colours, vertex: int, rounds: int = 0) -> Colours:
        search.spend(TUNING.refine_cost * (rounds or 2))
        return structure.refine(mark(c.ranks, vertex), c.links, c.resources, rounds)

    # The left side always marks the same ranks, so its colours depend on the depth alone.
    left = [refined(root, first)]
    trail: list[tuple[Colours, Iterator[int]]] = [(root, iter([target]))]
    while trail:
        colours, choices = trail[-1]
        choice = next(choices, None)
        if choice is None:
            trail.pop()
            continue
        here = left[len(trail) - 1]
        right = refined(colours, choice, here.rounds)
        a, b = np.argsort(here.ranks, kind="stable"), np.argsort(right.ranks, kind="stable")
        if (here.ranks[a] != right.ranks[b]).any():
            continue
        p = np.empty(len(a), dtype=np.int64)
        p[a] = b
        # Also before all ranks are told apart: in a very symmetric network the plain guess is often right.
        if (root.ranks[p] == root.ranks).all() and search.accepts(p):
            return p
        vertex = _in_smallest_cell(here)
        if vertex is None:
            continue
        if len(left) == len(trail):
            left.append(refined(here, vertex))
        trail.append((right, iter(np.flatnonzero(right.ranks == here.ranks[vertex]).tolist())))
    return None


def _transversal(first: int, generators: Sequence[Ints], n: int) -> list[Ints]:
    """For each rank that the generators bring `first` to, one product that does so; breadth first."""
    by_image = {first: np.arange(n, dtype=np.int64)}
    queue = [first]
    for v in queue:
        for g in generators:
            image = int(g[v])
            if image not in by_image:
                by_image[image] = g[by_image[v]]
                queue.append(image)
    return list(by_image.values())


def _generated(generators: Sequence[Ints], n: int, limit: int, firsts: Sequence[int] = ()) -> list[Ints]:
    """Identity, generators, a product that leads to each image of `firsts`, then further products breadth first."""
    images = (_transversal(first, generators, n) for first in firsts)
    return generate(chain((np.arange(n, dtype=np.int64), *generators), *images), generators, limit)
