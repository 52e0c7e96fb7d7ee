"""Automorphisms of a network: permutations of ranks that keep links, figures and shared capacities.

Also groups of them that leave no member in place, so that one orbit can be planned and the other orbits are its images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from topologies.arrays import Ints, flags_of, reachable
from topologies.network import Network
from topologies.symmetry.refinement import Colours, Structure, find_link_image, mark
from topologies.symmetry.tuning import TUNING


class _SpentError(Exception):
    """An error that ends a search whose budget is spent; its results so far stand."""


class _AutomorphismSearch:
    """The structure, the classes and the budget that all steps of one call share.

    Attributes:
        structure: The network prepared for refinement.
        classes: Class of each rank, which an automorphism must keep: int64 (nranks,).
        budget: Remaining work in elements touched.
        root: Colours of the network with these classes.
    """

    def __init__(self, net: Network, classes: Ints, budget: float) -> None:
        self.structure = Structure(net)
        self.classes = classes
        self.budget = budget
        self.root = self.structure.refine(classes.astype(np.uint64) + np.uint64(1))

    def spend(self, units: int) -> None:
        """Reduce the budget by `units` times the network's size, or raise _SpentError where it is spent."""
        self.budget -= units * self.structure.size
        if self.budget < 0:
            raise _SpentError

    def accepts(self, p: Ints) -> bool:
        """Return whether p, the image of each rank, is an automorphism that keeps the classes.

        Raises:
            _SpentError: The budget is spent before the exact check, which a quick one precedes without cost.
        """
        # The cheap test comes first: it refuses most candidates.
        if (self.root.ranks[p] != self.root.ranks).any() or (self.classes[p] != self.classes).any():
            return False
        self.spend(TUNING.check_cost)
        return find_link_image(self.structure, p) is not None


def automorphisms(net: Network, fixed: Sequence[Sequence[int]], limit: int = 2000, budget_s: float = 1.0) -> list[Ints]:
    """Return automorphisms of the network, the identity first.

    Each maps links onto links of equal α and bandwidth, the links of every resource onto those of a resource of equal
    capacity, and each set of `fixed` onto itself. Generators come next: rotations of all ranks and inside blocks; then
    those that a search found for further images of each set's first rank; then one automorphism for each image of these
    ranks; then products of the generators.

    Args:
        net: The network.
        fixed: Sets of local ranks.
        limit: Most automorphisms, the identity included; at least 1.
        budget_s: Rough time in seconds, counted as work, so that every machine gives the same list. When it is spent,
            the list is built from the generators found so far.

    Returns:
        Different int64 arrays (nranks,), each with the image of every rank. They need not be all automorphisms.
    """
    n = net.nranks
    classes = np.zeros(n, dtype=np.int64)
    for members in fixed:
        is_member = flags_of(n, np.asarray(members, dtype=np.int64))
        classes = np.unique(classes * 2 + is_member, return_inverse=True)[1].reshape(-1)
    firsts = [int(members[0]) for members in fixed if len(members)] or [0]
    search = _AutomorphismSearch(net, classes, budget_s * TUNING.work_per_s)
    generators: list[Ints] = []
    try:
        _add_rotations(search, generators, limit)
        _orbit_search(search, generators, firsts, limit)
    except _SpentError:
        pass
    return _generated(generators, n, limit, firsts)


def _add_rotations(search: _AutomorphismSearch, generators: list[Ints], limit: int) -> None:
    """Add every rotation that is an automorphism, and that earlier ones do not generate, to `generators`.

    Raises:
        _SpentError: The budget is spent; what was added stays.
    """
    n = len(search.classes)
    generated = {np.arange(n).tobytes()}
    for p in _rotations(n):
        if p.tobytes() in generated or not search.accepts(p):
            continue
        generators.append(p)
        # The group is closed after each new generator, so that its products are not checked again.
        if len(generated) < limit:
            generated = {q.tobytes() for q in _generated(generators, n, limit)}


def _rotations(n: int) -> Iterator[Ints]:
    """Yield the rotations of all ranks, then those inside blocks of equal size, by each divisor: int64 (n,) each."""
    i = np.arange(n, dtype=np.int64)
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    for block in reversed(divisors):
        for unit in divisors:
            if unit < block and block % unit == 0:
                yield i - i % block + (i + unit) % block


def _orbit_search(search: _AutomorphismSearch, generators: list[Ints], firsts: Sequence[int], limit: int) -> None:
    """Find automorphisms that map each first rank to its other images, then the same for one more rank at a time.

    The earlier ranks stay fixed (a chain of stabilisers), so the search ends with generators of the whole group. They
    are added to `generators`; with `limit` automorphisms the search ends, too.

    Raises:
        _SpentError: The budget is spent; what was added stays.
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


def _complete_orbit(
    search: _AutomorphismSearch, root: Colours, first: int, generators: list[Ints], base: Sequence[int]
) -> None:
    """Add generators that fix `base` until they map `first` to every rank to which such automorphisms can map it.

    Args:
        search: The search, whose budget is spent.
        root: Colours in which the ranks of `base` differ from all others.
        first: The rank.
        generators: Automorphisms so far, to which new ones are added.
        base: Ranks that stay in place.

    Raises:
        _SpentError: The budget is spent; what was added stays.
    """
    n = len(search.classes)

    def stabiliser() -> list[Ints]:
        """Return the generators that fix `base`."""
        return [g for g in generators if all(g[b] == b for b in base)]

    images, refused = _orbit(first, stabiliser(), n), set[int]()
    for target in np.flatnonzero(root.ranks == root.ranks[first]).tolist():
        if target in images or target in refused:
            continue
        p = _sending(search, root, first, target)
        if p is None:
            refused |= _orbit(target, stabiliser(), n)
        else:
            generators.append(p)
            images = _orbit(first, stabiliser(), n)


def _orbit(start: int, generators: Sequence[Ints], n: int) -> set[int]:
    """Return the ranks to which products of the generators map `start`, itself included."""
    images = np.concatenate(generators) if generators else np.arange(n)
    is_reached = reachable(n, np.tile(np.arange(n), len(images) // n), images, start)
    return set(np.flatnonzero(is_reached).tolist())


def _in_smallest_cell(colours: Colours) -> int | None:
    """Return the first rank of the smallest set of two or more ranks of one colour, or None for no such set."""
    _, cell, sizes = np.unique(colours.ranks, return_inverse=True, return_counts=True)
    size = sizes[cell.reshape(-1)]
    return int(np.argmin(np.where(size > 1, size, len(size) + 1))) if size.max() > 1 else None


def _sending(search: _AutomorphismSearch, root: Colours, first: int, target: int) -> Ints | None:
    """Return an automorphism that maps `first` to `target` and keeps the colours of `root`, or None for none.

    Raises:
        _SpentError: The budget is spent.
    """
    structure = search.structure

    def refined(c: Colours, vertex: int, rounds: int = 0) -> Colours:
        """Return the colours after a vertex is marked, refined for `rounds` rounds, or for 0 until no cell splits.

        Raises:
            _SpentError: The budget, from which the work is taken, is spent.
        """
        search.spend(TUNING.refine_cost * (rounds or 2))
        return structure.refine(mark(c.ranks, vertex), c.links, c.resources, rounds)

    # The first side always marks the same ranks, so its colours depend only on the depth.
    first_side = [refined(root, first)]
    trail: list[tuple[Colours, Iterator[int]]] = [(root, iter([target]))]
    while trail:
        colours, choices = trail[-1]
        choice = next(choices, None)
        if choice is None:
            trail.pop()
            continue
        first_colours = first_side[len(trail) - 1]
        second_side = refined(colours, choice, first_colours.rounds)
        a, b = np.argsort(first_colours.ranks, kind="stable"), np.argsort(second_side.ranks, kind="stable")
        if (first_colours.ranks[a] != second_side.ranks[b]).any():
            continue
        p = np.empty(len(a), dtype=np.int64)
        p[a] = b
        # The guess is tested before all colours differ, because in a very symmetric network it is often right.
        if (root.ranks[p] == root.ranks).all() and search.accepts(p):
            return p
        vertex = _in_smallest_cell(first_colours)
        if vertex is None:
            continue
        if len(first_side) == len(trail):
            first_side.append(refined(first_colours, vertex))
        trail.append((second_side, iter(np.flatnonzero(second_side.ranks == first_colours.ranks[vertex]).tolist())))
    return None


def _transversal(first: int, generators: Sequence[Ints], n: int) -> list[Ints]:
    """Return one product of generators for each rank to which they map `first`, breadth first."""
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
    """Return the identity, the generators, a product for each image of `firsts`, then further products breadth first.

    Each permutation occurs once, and there are at most `limit`.
    """
    by_bytes: dict[bytes, Ints] = {}
    queue: list[Ints] = []

    def add(p: Ints) -> None:
        """Add a permutation unless it is there already or the limit is reached."""
        if len(by_bytes) < limit and by_bytes.setdefault(p.tobytes(), p) is p:
            queue.append(p)

    images = (_transversal(first, generators, n) for first in firsts)
    for p in chain((np.arange(n, dtype=np.int64), *generators), *images):
        add(p)
    for p in queue:
        if len(by_bytes) >= limit:
            break
        for g in generators:
            add(g[p])
    return queue


def free_subgroup(perms: list[Ints], members: Sequence[int]) -> list[Ints]:
    """Return the largest group found among `perms` whose every element but the identity moves every member.

    The group is closed under composition, its identity first, and its order divides len(members). The search is greedy
    from several starts, so the group is proved largest only where it is transitive on an orbit.

    Args:
        perms: Automorphisms, int64 (n,) each, the identity among them.
        members: Ranks that take part, which the automorphisms map onto each other. Without any, or where no larger
            group is found, the result is the identity alone.
    """
    n = len(perms[0])
    identity = np.arange(n, dtype=np.int64)
    where = np.asarray(members, dtype=np.int64)
    if not len(where):
        return [identity]
    table = np.stack([np.asarray(p, dtype=np.int64) for p in perms])
    # An element that fixes a member cannot be in a free group, whatever its powers do.
    moving = (table[:, where] != where).all(axis=1)
    free = [p for p, is_moving in zip(table, moving, strict=True) if is_moving and _has_free_powers(p, where)]
    goal = _goal(perms, where)
    best = [identity]
    work = TUNING.subgroup_work
    for start in free[: TUNING.subgroup_starts]:
        group, generators = [identity], list[Ints]()
        for p in [start, *free]:
            if len(group) >= goal or work < 0:
                break
            # In a free group the image of one member identifies an element.
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


def _has_free_powers(p: Ints, where: Ints) -> bool:
    """Return whether all powers of p but the identity move every rank of `where`."""
    first = int(where[0])
    at, length = int(p[first]), 1
    while at != first:
        at, length = int(p[at]), length + 1
    if (_power(p, length) != np.arange(len(p))).any():
        return False
    # All cycles divide `length`; a member's cycle is shorter exactly where a power length / prime fixes the member.
    primes = (d for d in range(2, length + 1) if length % d == 0 and all(d % e for e in range(2, d)))
    return not any((_power(p, length // prime)[where] == where).any() for prime in primes)


def _power(p: Ints, exponent: int) -> Ints:
    """Return the power of a permutation, for an exponent of 0 or more."""
    result, square = np.arange(len(p), dtype=np.int64), p
    while exponent:
        if exponent & 1:
            result = square[result]
        square = square[square]
        exponent >>= 1
    return result


def _goal(perms: Sequence[Ints], where: Ints) -> int:
    """Return the greatest common divisor of the sizes of all orbits of members, which a free group's order divides."""
    before, orbit = where[:0], np.arange(len(perms[0]))
    while not np.array_equal(before, orbit):
        before = orbit
        for p in perms:
            orbit = np.minimum(orbit, orbit[p])
    sizes = np.unique(orbit[np.unique(where)], return_counts=True)[1]
    return math.gcd(*sizes.tolist())


def _extended(group: list[Ints], generators: list[Ints], where: Ints, goal: int) -> tuple[list[Ints] | None, int]:
    """Return the group that `group` and the last generator generate, and the number of entries composed.

    The group is None where it is not free or its order does not divide the goal.
    """
    elements = [*group, generators[-1]]
    element_of_image = {int(q[where[0]]): q for q in elements}
    cost = 0
    for element in elements:  # The list grows during the loop.
        for g in generators:
            product = g[element]
            cost += len(g)
            image = int(product[where[0]])
            if image in element_of_image:
                if (product != element_of_image[image]).any():
                    return None, cost
                continue
            if (product[where] == where).any() or len(elements) >= goal:
                return None, cost
            element_of_image[image] = product
            elements.append(product)
    return None if goal % len(elements) else elements, cost
