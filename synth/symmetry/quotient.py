"""Folding: one problem that stands for all its translates under the network's shifts, and its schedules unfolded.

Where every rank has the same outlook (a torus, a full mesh, equal nodes), a schedule for the chunks of a few
representative ranks, translated by the shifts, is a schedule for all chunks. The folded problem holds the chunks of
the representatives on the whole network; its resources are the orbits of the whole's resources, because on a
resource the copies of a send meet exactly the sends that meet on its orbit. A folded schedule is therefore right
exactly when its expansion is right for the whole problem, and takes the same time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from synth.model.collective import MAX_ENTRIES, Collective, Ints, named, parse_name
from synth.model.problem import Fold, Problem, check_ranks
from synth.model.schedule import Schedule
from synth.symmetry.quotient_check import check_fold, check_shifts
from topologies.errors import InputError, QuotientRefused
from topologies.network import Network, network
from topologies.symmetry.translations import (
    Shifts,
    digits,
    elements,
    image,
    link_image,
    orbits,
    representatives,
    shifts,
)
from topologies.topology import Topology

__all__ = ["FOLDABLE", "chunk_image", "expand", "expanded_rows", "fold", "refold", "translates", "whole"]

FOLDABLE = ("allgather", "alltoall", "reducescatter", "allreduce")
_MANY = 1000  # ranks from which SciPy is worth its import
_CELLS_AT_ONCE = 1 << 15  # a block of rows stays in the processor's cache


def fold(
    topology: Topology,
    name: str,
    chunks: int = 1,
    group: Sequence[int] | None = None,
    relays: Sequence[int] = (),
) -> Problem | None:
    """The folded problem of a named collective; None where it cannot be folded.

    It holds the chunks that belong to the representative ranks: for allgather those that they hold before, for
    alltoall those that they send, for reducescatter those that they want, and for allreduce the shares, one a
    rank and numbered like the ranks, of `chunks` chunks each (so that the whole problem has k · chunks chunks a
    block). Fractions and places in the buffers are those of the whole problem.

    Args:
        chunks: chunks a block; for allreduce, a rank's share.
        group: topology ranks in order; all when None. Shifts are looked for in this order.
        relays: with relays there is no folding.

    Raises:
        InputError: ranks that do not exist or repeat, a group of one, no chunks, or an unknown name.
    """
    name, members = _question(topology, name, chunks, group)
    if name not in FOLDABLE or len(relays):
        return None
    net = network(topology, members)
    found = shifts(net)
    if not found or _entries(len(members), chunks, found) > MAX_ENTRIES or not _connected(net):
        return None
    return _problem(topology, name, chunks, members, net, found)


def refold(topology: Topology, name: str, chunks: int, group: Sequence[int], found: Shifts) -> Problem:
    """The folded problem for shifts that somebody states, checked in full.

    Raises:
        QuotientRefused: the shifts are none of this network, or crowd a resource; no collective that can be folded.
        InputError: ranks that do not exist or repeat, no chunks, or more than is held in memory.
    """
    name, members = _question(topology, name, chunks, group)
    check_shifts(found, len(members))
    if name not in FOLDABLE or not found:
        raise QuotientRefused(f"fold: {name} with {len(found)} shifts is not folded")
    if _entries(len(members), chunks, found) > MAX_ENTRIES:
        raise InputError(f"{name}: {len(members)} ranks × {chunks} chunks is more than is held in memory")
    try:
        problem = _problem(topology, name, chunks, members, network(topology, members), found)
    except ValueError as error:
        raise QuotientRefused(f"fold: {error}") from None
    check_fold(problem)
    return problem


def _question(
    topology: Topology, name: str, chunks: int, group: Sequence[int] | None
) -> tuple[str, tuple[int, ...]]:
    """The collective's own name and the members, as `make_problem` would have them."""
    members = tuple(range(topology.nranks)) if group is None else tuple(int(r) for r in group)
    check_ranks(members, "group", topology.nranks)
    if len(members) < 2:
        raise InputError(f"group: has {len(members)} rank; a collective needs at least 2")
    if chunks < 1:
        raise InputError(f"chunks: {chunks} is not possible; it must be 1 or more")
    return parse_name(name), members


def _entries(k: int, chunks: int, found: Shifts) -> int:
    """Rows of a condition: every chunk of a representative is held by all ranks, or there is one for each."""
    return k // math.prod(extent for _, extent in found) * chunks * k


def _problem(
    topology: Topology, name: str, chunks: int, members: tuple[int, ...], net: Network, found: Shifts
) -> Problem:
    return Problem(
        topology=topology,
        collective=base_chunks(name, len(members), chunks, representatives(found, len(members))),
        group=members,
        relays=(),
        network=_folded_network(net, found),
        fold=Fold(found, net),
    )


def _connected(net: Network) -> bool:
    """Whether every rank reaches every other."""
    if net.nranks > _MANY:
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import connected_components

        pairs = (np.ones(net.nlinks, dtype=bool), (net.src, net.dst))
        graph = csr_matrix(pairs, shape=(net.nranks, net.nranks))
        return int(connected_components(graph, connection="strong")[0]) == 1
    for src, dst in ((net.src, net.dst), (net.dst, net.src)):
        found = np.arange(net.nranks) == 0
        before, reached = 0, 1
        while before < reached:
            found[dst[found[src]]] = True
            before, reached = reached, int(found.sum())
        if reached < net.nranks:
            return False
    return True


def base_chunks(name: str, k: int, chunks: int, owners: Ints) -> Collective:
    """The part of a named collective over k ranks that belongs to `owners` (ascending), as it lies in the whole.

    Chunk numbers are the whole's without those of other ranks: part p of owner i's share is i·chunks + p, for
    alltoall (i·k + destination)·chunks + p.
    """
    part = np.arange(chunks)
    if name == "alltoall":
        i, dest, p = (a.ravel() for a in np.indices((len(owners), k, chunks)))
        ident = (i * k + dest) * chunks + p
        pre, in_index = np.column_stack([owners[i], ident]), dest * chunks + p
        dest, i, p = (a.ravel() for a in np.indices((k, len(owners), chunks)))
        post = np.column_stack([dest, (i * k + dest) * chunks + p])
        out_index = owners[i] * chunks + p
    else:
        ident = np.arange(len(owners) * chunks)
        share = (owners[:, None] * chunks + part).ravel()
        every = np.column_stack([np.repeat(np.arange(k), len(ident)), np.tile(ident, k)])
        own = np.column_stack([np.repeat(owners, chunks), ident])
        placed, local = np.tile(share, k), np.tile(part, len(owners))
        pre, in_index = (own, local) if name == "allgather" else (every, placed)
        post, out_index = (own, local) if name == "reducescatter" else (every, placed)
    return Collective(
        name=name,
        nranks=k,
        chunks=chunks * k if name == "allreduce" else chunks,
        nchunks=len(ident),
        reduces=np.full(len(ident), name in ("reducescatter", "allreduce")),
        # the same two roundings as in the whole
        fraction=np.full(len(ident), 1.0 / (k * chunks) if name == "allreduce" else 1.0 / k / chunks),
        pre=pre,
        post=post,
        in_index=in_index,
        out_index=out_index,
    )


def _folded_network(net: Network, found: Shifts) -> Network:
    """The network with a resource for every class of resources; see `Fold`.

    Copies of two sends cannot meet on a link either: a link is as narrow as some resource that it uses (see
    `Network`), so two sends over links of its class have no room on that resource's class.
    """
    classes = orbits(net, found)
    cls, resource = classes.uses[:, 0], classes.uses[:, 1]  # sorted by class, then resource
    ptr = np.zeros(net.nlinks + 1, dtype=np.int64)
    starts = np.searchsorted(cls, np.arange(len(classes.link_first) + 1))
    many = np.diff(starts)[classes.link_class]
    np.cumsum(many, out=ptr[1:])
    row = np.repeat(starts[classes.link_class] - ptr[:-1], many) + np.arange(ptr[-1])
    names = [net.resource_names[i] for i in classes.resource_first.tolist()]
    return replace(
        net,
        uses_ptr=ptr,
        uses_idx=resource[row],
        capacity_gbs=net.capacity_gbs[classes.resource_first] / classes.times,
        resource_names=tuple(f"{name} and its translates" for name in names),
    )


def _folded(problem: Problem) -> tuple[Fold, int]:
    """The problem's fold and its chunks a rank (and pair). Raises InputError where it has none."""
    if problem.fold is None or problem.collective.name not in FOLDABLE:
        raise InputError(f"{problem.collective.name}: this problem is not folded")
    k = problem.collective.nranks
    return problem.fold, problem.collective.chunks // (k if problem.collective.name == "allreduce" else 1)


def whole(problem: Problem) -> Problem:
    """The problem that a folded one stands for.

    Raises InputError where it is too large to be held in memory, ValueError for a problem that is not folded.
    """
    known, chunks = _folded(problem)
    k, name = problem.collective.nranks, problem.collective.name
    collective = named(name, k, chunks * k if name == "allreduce" else chunks)
    return replace(problem, collective=collective, network=known.whole, fold=None)


def _places(problem: Problem, chunk: Ints) -> tuple[Ints, Ints, Ints]:
    """Of chunks of a folded problem: the owner, the destination (alltoall; else 0), and the part."""
    known, chunks = _folded(problem)
    k = problem.collective.nranks
    owners = representatives(known.shifts, k)
    block, part = chunk // chunks, chunk % chunks
    if problem.collective.name == "alltoall":
        return owners[block // k], block % k, part
    return owners[block], np.zeros_like(block), part


def _numbers(problem: Problem, owner: Ints, dest: Ints, part: Ints) -> Ints:
    """Chunks of the whole problem."""
    chunks = _folded(problem)[1]
    if problem.collective.name == "alltoall":
        owner = owner * problem.collective.nranks + dest
    return owner * chunks + part


def chunk_image(problem: Problem, chunk: Ints, by: Sequence[int]) -> Ints:
    """Where shifts bring chunks of a folded problem: chunks of the whole problem."""
    known, _ = _folded(problem)
    owner, dest, part = _places(problem, chunk)
    return _numbers(problem, image(known.shifts, owner, by), image(known.shifts, dest, by), part)


def expanded_rows(problem: Problem, schedule: Schedule, by: Sequence[int]) -> Schedule:
    """One translate of a folded problem's schedule, in chunks and links of the whole problem: by[i] times shift i."""
    known, _ = _folded(problem)
    return replace(
        schedule,
        chunk=chunk_image(problem, schedule.chunk, by),
        link=link_image(known.whole, known.shifts, schedule.link, by),
    )


def expand(problem: Problem, schedule: Schedule) -> tuple[Problem, Schedule]:
    """The whole problem and its schedule: every send of the folded schedule once for every product of shifts.

    Rows are in order of start, then step, then their place in the folded schedule; translates of one send stand
    together. Times are those of the folded schedule.

    Raises InputError where the whole problem is too large to be held in memory.
    """
    full = whole(problem)
    known, _ = _folded(problem)
    schedule = schedule.take(np.lexsort((schedule.step, schedule.start_us)))
    order, n = known.order, len(schedule)
    chunk, link = np.empty((n, order), dtype=np.int64), np.empty((n, order), dtype=np.int64)
    tables = _Translates(known)
    owner, dest, part = _places(problem, schedule.chunk)
    block = max(1, _CELLS_AT_ONCE // order)
    for low in range(0, n, block):
        rows = slice(low, low + block)
        link[rows] = tables.links(schedule.link[rows])
        goals = (
            tables.ranks(dest[rows]) if problem.collective.name == "alltoall" else np.zeros(1, dtype=np.int64)
        )
        chunk[rows] = _numbers(problem, tables.owners(owner[rows]), goals, part[rows, None])
    return full, Schedule(
        chunk=chunk.reshape(-1),
        link=link.reshape(-1),
        step=np.repeat(schedule.step, order),
        reduces=np.repeat(schedule.reduces, order),
        start_us=np.repeat(schedule.start_us, order),
        end_us=np.repeat(schedule.end_us, order),
        size_bytes=schedule.size_bytes,
    )


class _Translates:
    """All translates of ranks and links at once, the products of shifts in the order of `shifts.elements`."""

    def __init__(self, known: Fold) -> None:
        net, order = known.whole, known.order
        self.net, self.shifts = net, known.shifts
        every = np.arange(net.nranks)
        element = elements(known.shifts, every)
        owners = representatives(known.shifts, net.nranks)
        ground = every - sum(
            d * s for d, (s, _) in zip(digits(known.shifts, every), known.shifts, strict=True)
        )
        self.rank_class = np.searchsorted(owners, ground)
        self.rank_of = np.empty((len(owners), order), dtype=np.int64)
        self.rank_of[self.rank_class, element] = every
        self.link_class = orbits(net, known.shifts).link_class
        self.link_of = np.empty((net.nlinks // order, order), dtype=np.int64)
        self.link_of[self.link_class, element[net.src]] = np.arange(net.nlinks)
        # a product of shifts is its digits; adding two is adding digit by digit
        self.digit: list[Ints] = []
        self.added: list[Ints] = []  # what the sum of two digits counts for in the product's number
        weight = 1
        for _, extent in known.shifts:
            self.digit.append(np.arange(order) // weight % extent)
            self.added.append(np.arange(2 * extent - 1) % extent * weight)
            weight *= extent

    def _after(self, ranks: Ints) -> Ints:
        """The products that bring each rank's representative to its translates, shape (ranks, order)."""
        number = np.zeros((len(ranks), len(self.digit[0])), dtype=np.int64)
        for mine, digit, added in zip(digits(self.shifts, ranks), self.digit, self.added, strict=True):
            number += added[mine[:, None] + digit]
        return number

    def owners(self, owners: Ints) -> Ints:
        """Of representatives."""
        return np.asarray(self.rank_of[self.rank_class[owners]])

    def ranks(self, ranks: Ints) -> Ints:
        return np.asarray(self.rank_of[self.rank_class[ranks][:, None], self._after(ranks)])

    def links(self, links: Ints) -> Ints:
        return np.asarray(self.link_of[self.link_class[links][:, None], self._after(self.net.src[links])])


def translates(known: Fold) -> Iterator[tuple[int, ...]]:
    """Every product of the shifts as a number of times for each, the identity first."""
    extents = [extent for _, extent in known.shifts]
    for number in np.ndindex(*extents[::-1]):
        yield tuple(number[::-1])
