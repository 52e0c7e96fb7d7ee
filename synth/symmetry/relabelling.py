"""Relabellings of the ranks: those that keep a problem as it is, and those that bring one group onto another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from synth.model.collective import Collective, Ints
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from topologies.arrays import index_among
from topologies.network import Network, links_among, network
from topologies.symmetry.automorphism import automorphisms, free_subgroup
from topologies.symmetry.refinement import link_image
from topologies.symmetry.translations import Translations, digits, find_translations, translate, translate_links
from topologies.topology import Topology


@dataclass(frozen=True, eq=False)
class Symmetry:
    """A group of relabellings, identity first.

    Attributes:
        ranks: shape (g, local ranks): image of every rank.
        links: shape (g, links).
        chunks: shape (g, chunks).
        orbits: one chunk of every orbit, ascending: plan these and translate.
    """

    ranks: Ints
    links: Ints
    chunks: Ints
    orbits: Ints

    @property
    def order(self) -> int:
        return len(self.ranks)


def trivial(problem: Problem) -> Symmetry:
    """No symmetry used."""
    chunks = np.arange(problem.collective.nchunks)[None, :]
    return Symmetry(np.arange(problem.nranks)[None, :], np.arange(problem.network.nlinks)[None, :], chunks, chunks[0])


def free_symmetry(problem: Problem) -> Symmetry:
    """A group of relabellings of which none but the identity leaves a member of the group in its place.

    Under it every chunk's orbit is as large as the group, so that a schedule for one chunk of every orbit,
    translated, is a schedule for all.
    """
    collective, net = problem.collective, problem.network
    k = collective.nranks
    if collective.kind.rooted:
        return trivial(problem)  # whatever keeps the root in its place is not free
    perms = automorphisms(net, [c for c in (list(range(k)), list(range(k, net.nranks))) if c])
    group = free_subgroup(perms, range(k))
    chunks = [chunk_image(collective, p) for p in group]
    if any(c is None for c in chunks):
        perms = [p for p in perms if chunk_image(collective, p) is not None]
        group = free_subgroup(perms, range(k))
        chunks = [chunk_image(collective, p) for p in group]
    if len(group) < 2 or any(c is None for c in chunks):
        return trivial(problem)
    table = np.array(chunks, dtype=np.int64)
    links = np.array([link_image(net, p) for p in group], dtype=np.int64)
    every = np.arange(collective.nchunks)
    if not (table[1:] != every).all():
        # a chunk that stays while ranks move would be planned once and sent several times over
        table = np.tile(every, (len(group), 1))
    return Symmetry(np.array(group, dtype=np.int64), links, table, np.flatnonzero(table.min(axis=0) == every))


def chunk_image(collective: Collective, perm: Ints, onto: Collective | None = None) -> Ints | None:
    """The image of every chunk under a relabelling of the ranks; None where the pattern is not kept.

    onto: the pattern that it is to become, such as the same one with its root elsewhere; None: itself.
    """
    into = onto or collective
    signs, moved = _signatures(into), _signatures(collective, perm[: collective.nranks])
    if len(signs) != len(moved):
        return None
    # of chunks that nothing tells apart the first goes to the first
    here, there = (sorted(range(len(s)), key=s.__getitem__) for s in (signs, moved))
    if any(signs[a] != moved[b] for a, b in zip(here, there, strict=True)):
        return None
    image = np.empty(collective.nchunks, dtype=np.int64)
    image[there] = here
    return image


def _signatures(collective: Collective, perm: Ints | None = None) -> list[bytes]:
    """What tells a chunk from others: who holds it, who wants it, its size and whether it reduces."""
    holds, wants = collective.holds, collective.wants
    if perm is not None:
        inverse = np.argsort(perm)
        holds, wants = holds[:, inverse], wants[:, inverse]
    packed = np.packbits(np.concatenate([holds, wants], axis=1), axis=1)
    tails = zip(collective.fraction.tolist(), collective.reduces.tolist(), strict=True)
    return [row.tobytes() + repr(tail).encode() for row, tail in zip(packed, tails, strict=True)]


class IsomorphicGroups:
    """Groups that the network's translations bring onto each other, and their schedules.

    Without this every group of a large torus or of many equal nodes would be searched for by itself.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology

    @cached_property
    def whole(self) -> Network:
        """All ranks, in their order."""
        return network(self.topology, range(self.topology.nranks))

    @cached_property
    def translations(self) -> Translations:
        return find_translations(self.whole)

    def find_translation(self, one: Problem, other: Problem) -> tuple[int, ...] | None:
        """How often to apply each translation to bring one problem onto the other; None where that does not."""
        same = one.nranks == other.nranks and one.collective.equals(other.collective, places=False)
        if not (self.translations and same):
            return None
        ranks, onto = np.array(one.ranks), np.array(other.ranks)
        first, last = digits(self.translations, ranks[:1]), digits(self.translations, onto[:1])
        by = tuple(int(b[0] - a[0]) for a, b in zip(first, last, strict=True))
        moved = translate(self.translations, ranks, by)
        k = len(one.group)
        same = np.array_equal(moved[:k], onto[:k]) and np.array_equal(np.sort(moved[k:]), np.sort(onto[k:]))
        return by if same else None

    def translate_schedule(self, one: Problem, schedule: Schedule, other: Problem, by: Sequence[int]) -> Schedule:
        """The schedule of `one` as one of `other`; times stay."""
        whole = self._links(one)[schedule.link]
        onto = translate_links(self.whole, self.translations, whole, by)
        return replace(schedule, link=index_among(self.whole.nlinks, self._links(other))[onto])

    def _links(self, problem: Problem) -> Ints:
        """The whole network's number of each of the problem's links."""
        return links_among(self.whole, np.array(problem.ranks))[0]
