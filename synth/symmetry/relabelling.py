"""Find relabellings of ranks: those that keep a problem as it is, and those that bring one group onto another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from synth.model.collective import Collective, Ints
from synth.model.deadline import checking_deadline
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
    """A group of relabellings, with the identity first.

    Attributes:
        ranks: Image of every rank, shape (g, local ranks).
        links: Image of every link, shape (g, links).
        chunks: Image of every chunk, shape (g, chunks); the chunk itself everywhere where some relabelling would leave
            a chunk in its place (an all-reduce).
        orbits: One chunk of every orbit under `chunks`, the lowest, ascending; engines schedule these chunks and
            translate the result.
    """

    ranks: Ints
    links: Ints
    chunks: Ints
    orbits: Ints

    @property
    def order(self) -> int:
        """Return the number of relabellings."""
        return len(self.ranks)


def trivial(problem: Problem) -> Symmetry:
    """Return the group of the identity only, which uses no symmetry."""
    chunks = np.arange(problem.collective.nchunks)[None, :]
    return Symmetry(np.arange(problem.nranks)[None, :], np.arange(problem.network.nlinks)[None, :], chunks, chunks[0])


def free_symmetry(problem: Problem) -> Symmetry:
    """Find a group of relabellings in which only the identity leaves a member of the process group in its place.

    Under it every chunk's orbit is as large as the group of relabellings, so that a schedule for one chunk of every
    orbit, translated, is a schedule for all. Where a relabelling would leave a chunk in its place, chunks do not move
    at all, and every chunk is an orbit. For collectives with a root, and where there is no such group, the result is
    the identity only.

    Raises:
        TimeUp: The time of the work around is over.
        InputError: The tables of the collective take too much memory.
    """
    collective, net = problem.collective, problem.network
    k = collective.nranks
    if collective.kind.rooted:
        return trivial(problem)  # A relabelling that keeps the root in its place is not free.
    perms = automorphisms(net, [c for c in (list(range(k)), list(range(k, net.nranks))) if c])
    group = free_subgroup(perms, range(k))
    chunks = [chunk_image(collective, p) for p in checking_deadline(group)]
    if any(c is None for c in chunks):
        perms = [p for p in checking_deadline(perms) if chunk_image(collective, p) is not None]
        group = free_subgroup(perms, range(k))
        chunks = [chunk_image(collective, p) for p in checking_deadline(group)]
    if len(group) < 2 or any(c is None for c in chunks):
        return trivial(problem)
    table = np.array(chunks, dtype=np.int64)
    links = np.array([link_image(net, p) for p in checking_deadline(group)], dtype=np.int64)
    chunk_numbers = np.arange(collective.nchunks)
    if not (table[1:] != chunk_numbers).all():
        # A chunk that stays while ranks move would be scheduled once and sent several times.
        table = np.tile(chunk_numbers, (len(group), 1))
    return Symmetry(np.array(group, dtype=np.int64), links, table, np.flatnonzero(table.min(axis=0) == chunk_numbers))


def chunk_image(collective: Collective, perm: Ints, onto: Collective | None = None) -> Ints | None:
    """Return the image of every chunk under a relabelling of the ranks; None if it does not keep the collective.

    Args:
        collective: The collective.
        perm: Image of every local rank; only those of the group's positions count, which must stay in the group.
        onto: The collective that the image must equal, such as the same one with another root; None for itself.

    Returns:
        Chunks of `onto`, shape (nchunks,); chunks that nothing distinguishes keep their order.

    Raises:
        InputError: The tables of the collective take too much memory.
    """
    target = onto or collective
    target_signatures, moved_signatures = _signatures(target), _signatures(collective, perm[: collective.nranks])
    if len(target_signatures) != len(moved_signatures):
        return None
    # Among indistinguishable chunks the first one maps to the first one.
    target_order, moved_order = (
        sorted(range(len(s)), key=s.__getitem__) for s in (target_signatures, moved_signatures)
    )
    if any(target_signatures[a] != moved_signatures[b] for a, b in zip(target_order, moved_order, strict=True)):
        return None
    image = np.empty(collective.nchunks, dtype=np.int64)
    image[moved_order] = target_order
    return image


def _signatures(collective: Collective, perm: Ints | None = None) -> list[bytes]:
    """Return bytes for each chunk that tell which ranks hold and want it, its size, and whether it reduces.

    Chunks with equal bytes differ in nothing but their numbers and places.

    Args:
        collective: The collective.
        perm: Image of every rank, shape (nranks,), by which holders and goals are moved first; None for none.

    Raises:
        InputError: The tables of the collective take too much memory.
    """
    holds, wants = collective.holds, collective.wants
    if perm is not None:
        inverse = np.argsort(perm)
        holds, wants = holds[:, inverse], wants[:, inverse]
    packed = np.packbits(np.concatenate([holds, wants], axis=1), axis=1)
    tails = zip(collective.fraction.tolist(), collective.reduces.tolist(), strict=True)
    return [row.tobytes() + repr(tail).encode() for row, tail in zip(packed, tails, strict=True)]


class IsomorphicGroups:
    """A finder of process groups that the network's translations bring onto each other, with their schedules.

    Without it, every group of a large torus or of many equal nodes would need its own search.

    Attributes:
        topology: The machine or cluster of all groups.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology

    @cached_property
    def whole(self) -> Network:
        """Return the network of all ranks, in their order."""
        return network(self.topology, range(self.topology.nranks))

    @cached_property
    def translations(self) -> Translations:
        """Return the translations of the whole network, (stride, extent) each; () if it has none."""
        return find_translations(self.whole)

    def find_translation(self, source: Problem, target: Problem) -> tuple[int, ...] | None:
        """Return how often to apply each translation to bring `source` onto `target`; None where none does.

        Both are problems on the finder's topology. The group's ranks must come onto each other in order, relays in any
        order, and the collectives must be equal but for places in buffers. There is none where only some paths of a
        network are links. The result has one number for each of `translations`, which may be negative.
        """
        if source.network.switch_graph is not None or target.network.switch_graph is not None:
            return None
        same = source.nranks == target.nranks and source.collective.equals(target.collective, places=False)
        if not (self.translations and same):
            return None
        ranks, onto = np.array(source.ranks), np.array(target.ranks)
        first, last = digits(self.translations, ranks[:1]), digits(self.translations, onto[:1])
        by = tuple(int(b[0] - a[0]) for a, b in zip(first, last, strict=True))
        moved = translate(self.translations, ranks, by)
        k = len(source.group)
        same = np.array_equal(moved[:k], onto[:k]) and np.array_equal(np.sort(moved[k:]), np.sort(onto[k:]))
        return by if same else None

    def translate_schedule(self, source: Problem, schedule: Schedule, target: Problem, by: Sequence[int]) -> Schedule:
        """Return the schedule of `source` as one of `target`: only its links change, and neither times nor chunks.

        Args:
            source: The problem of the schedule.
            schedule: The schedule.
            target: The problem of the result.
            by: What `find_translation(source, target)` returned, not None.
        """
        whole = self._links(source)[schedule.link]
        onto = translate_links(self.whole, self.translations, whole, by)
        return replace(schedule, link=index_among(self.whole.nlinks, self._links(target))[onto])

    def _links(self, problem: Problem) -> Ints:
        """Return the whole network's number of each of the problem's links, shape (nlinks,)."""
        return links_among(self.whole, np.array(problem.ranks))[0]
