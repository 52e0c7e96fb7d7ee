"""Groups of symmetries that leave no member in place: one orbit is planned, the rest are its images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from topologies.arrays import Ints
from topologies.errors import InputError
from topologies.symmetry.tuning import TUNING


def generate(seeds: Iterable[Ints], generators: Sequence[Ints], limit: int) -> list[Ints]:
    """The seeds and their products with generators, breadth first, each once; at most `limit`."""
    found: dict[bytes, Ints] = {}
    queue: list[Ints] = []

    def add(p: Ints) -> None:
        if len(found) < limit and found.setdefault(p.tobytes(), p) is p:
            queue.append(p)

    for p in seeds:
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
        group = [identity]
        for p in [free[start][0], *(p for p, _ in free)]:
            if len(group) >= goal or work < 0:
                break
            # In a free group an element is known by the image of one member.
            if any((p == q).all() for q in group if q[where[0]] == p[where[0]]):
                continue
            larger, cost = _extended(group, p, where, goal)
            work -= cost
            if larger is not None:
                group = larger
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


def _extended(group: list[Ints], p: Ints, where: Ints, goal: int) -> tuple[list[Ints] | None, int]:
    """The group that `group` and p generate, None where it is not free; and the entries composed."""
    known = {int(q[where[0]]): q for q in group}
    found = [*group, p]
    known[int(p[where[0]])] = p
    generators = [*_generators(group), p]
    cost = 0
    for element in found:  # grows meanwhile
        for g in generators:
            product = g[element]
            cost += len(p)
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


def _generators(group: list[Ints]) -> list[Ints]:
    """Few elements that generate the group, in its order, none that earlier ones give."""
    closed = {group[0].tobytes()}
    chosen: list[Ints] = []
    for p in group[1:]:
        if len(closed) == len(group):
            break
        if p.tobytes() not in closed:
            chosen.append(p)
            closed = {q.tobytes() for q in generate(group[:1], chosen, len(group))}
    return chosen
