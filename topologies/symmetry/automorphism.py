"""Symmetry of a network: permutations of ranks that keep links, figures and shared capacities.

And groups of them that leave no member in place: one orbit is planned, the rest are its images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from topologies.arrays import Ints, marked, reached
from topologies.errors import InputError
from topologies.network import Network
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
    """Identity, generators, a product that leads to each image of `firsts`, then further products breadth first.

    Each once; at most `limit`.
    """
    found: dict[bytes, Ints] = {}
    queue: list[Ints] = []

    def add(p: Ints) -> None:
        if len(found) < limit and found.setdefault(p.tobytes(), p) is p:
            queue.append(p)

    images = (_transversal(first, generators, n) for first in firsts)
    for p in chain((np.arange(n, dtype=np.int64), *generators), *images):
        add(p)
    for p in queue:
        if len(found) >= limit:
            break
        for g in generators:
            add(g[p])
    return queue


def free_subgroup(perms: list[Ints], members: Sequence[int]) -> list[Ints]:
    """The largest group found among `perms` (int64 (n,) each) whose every element but the identity moves every member.

    Closed under composition, its identity first, the rest as generated; its order divides len(members). Greedy from
    several starts, so not proved largest unless it is transitive on an orbit. Raises InputError for no perms.
    """
    if not perms:
        raise InputError("permutations: there are none; it must be at least the identity")
    n = len(perms[0])
    identity = np.arange(n, dtype=np.int64)
    where = np.asarray(members, dtype=np.int64)
    if not len(where):
        return [identity]
    table = np.stack([np.asarray(p, dtype=np.int64) for p in perms])
    # Cheap and exact for one step: an element that fixes some member is out, whatever its powers do.
    moving = (table[:, where] != where).all(axis=1)
    candidates = [p for p, good in zip(table, moving, strict=True) if good]
    orders = [_order(p, where) for p in candidates]
    free = [(p, order) for p, order in zip(candidates, orders, strict=True) if order]
    goal = _goal(perms, where)
    best = [identity]
    work = TUNING.subgroup_work
    # Natural generators stand first in the list; then long cycles, the fewest steps to a large group.
    by_length = sorted(range(len(free)), key=lambda i: (-free[i][1], i))
    starts = list(dict.fromkeys([*range(min(8, len(free))), *by_length]))[: TUNING.subgroup_starts]
    for start in starts:
        group, generators = [identity], list[Ints]()
        for p in [free[start][0], *(p for p, _ in free)]:
            if len(group) >= goal or work < 0:
                break
            # In a free group an element is known by the image of one member.
            if any((p == q).all() for q in group if q[where[0]] == p[where[0]]):
                continue
            larger, cost = _extended(group, [*generators, p], where, goal)
            work -= cost
            if larger is not None:
                group = larger
                generators.append(p)
        if len(group) > len(best):
            best = group
        if len(best) >= goal or work < 0:
            break
    return best


def _order(p: Ints, where: Ints) -> int:
    """Order of p where all its powers but the identity move every member; 0 where they do not."""
    first = int(where[0])
    at, length = int(p[first]), 1
    while at != first:
        at, length = int(p[at]), length + 1
    if (_power(p, length) != np.arange(len(p))).any():
        return 0
    # All cycles divide `length` now; one is shorter exactly where a power length / prime stands still.
    for prime in (d for d in range(2, length + 1) if length % d == 0 and all(d % e for e in range(2, d))):
        if (_power(p, length // prime)[where] == where).any():
            return 0
    return length


def _power(p: Ints, exponent: int) -> Ints:
    result, square = np.arange(len(p), dtype=np.int64), p
    while exponent:
        if exponent & 1:
            result = square[result]
        square = square[square]
        exponent >>= 1
    return result


def _goal(perms: Sequence[Ints], where: Ints) -> int:
    """A free group's order divides the size of every orbit of members: their greatest common divisor."""
    before, orbit = where[:0], np.arange(len(perms[0]))
    while not np.array_equal(before, orbit):
        before = orbit
        for p in perms:
            orbit = np.minimum(orbit, orbit[p])
    sizes = np.unique(orbit[np.unique(where)], return_counts=True)[1]
    return math.gcd(*sizes.tolist())


def _extended(group: list[Ints], generators: list[Ints], where: Ints, goal: int) -> tuple[list[Ints] | None, int]:
    """The group that `group` and the last of the generators generate, None where it is not free; entries composed."""
    found = [*group, generators[-1]]
    known = {int(q[where[0]]): q for q in found}
    cost = 0
    for element in found:  # grows meanwhile
        for g in generators:
            product = g[element]
            cost += len(g)
            image = int(product[where[0]])
            if image in known:
                if (product != known[image]).any():
                    return None, cost
                continue
            if (product[where] == where).any() or len(found) >= goal:
                return None, cost
            known[image] = product
            found.append(product)
    return None if goal % len(found) else found, cost
