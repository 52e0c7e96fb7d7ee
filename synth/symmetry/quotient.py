"""Quotient problems: one representative of each orbit of chunks under a network's translations, and their schedules.

Where every rank has the same outlook (a torus, a full mesh, equal nodes), a schedule for the chunks of a few
representative ranks, translated, is a schedule for all chunks. The quotient problem holds the chunks of the
representatives on the whole network; its resources are the orbits of the whole's resources, because on a resource the
translates of a send meet exactly the sends that meet on its orbit. A schedule of the quotient is therefore right
exactly when its expansion is right for the whole problem, and takes the same time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from synth.model.collective import MAX_ENTRIES, Collective, Ints, named
from synth.model.problem import Problem, Quotient, check_group
from synth.model.registry import KINDS, OWN, PAIR, find_kind, parse_name
from synth.model.schedule import Schedule
from synth.symmetry.quotient_check import check_quotient, check_translations
from topologies.arrays import pointers, row_entries, strongly_connected
from topologies.errors import InputError, QuotientRefused
from topologies.network import Network, network
from topologies.symmetry.translations import Translations, digits, elements, find_translations, orbits, representatives
from topologies.topology import Topology

_CELLS_AT_ONCE = 1 << 15  # a block of rows stays in the processor's cache


def quotient_problem(
    topology: Topology, name: str, chunks: int = 1, group: Sequence[int] | None = None, relays: Sequence[int] = ()
) -> Problem | None:
    """The quotient problem of a named collective; None where it has none.

    It holds the chunks that belong to the representative ranks: for allgather those that they hold before, for
    alltoall those that they send, for reducescatter those that they want, and for allreduce the shares, one a
    rank and numbered like the ranks, of `chunks` chunks each (so that the whole problem has k · chunks chunks a
    block). Fractions and places in the buffers are those of the whole problem.

    Args:
        chunks: chunks a block; for allreduce, a rank's share.
        group: topology ranks in order; all when None. Translations are looked for in this order.
        relays: with relays there is no quotient.

    Raises InputError: ranks that do not exist or repeat, a group of one, no chunks, or an unknown name.
    """
    name, members = parse_name(name), check_group(group, topology.nranks)
    if not find_kind(name).translatable or len(relays):
        return None
    net = network(topology, members)
    found = find_translations(net)
    if not found or _entries(len(members), chunks, found) > MAX_ENTRIES:
        return None
    if not strongly_connected(net.nranks, net.src, net.dst):
        return None
    return _problem(topology, name, chunks, members, net, found)


def quotient_by(topology: Topology, name: str, chunks: int, group: Sequence[int], found: Translations) -> Problem:
    """The quotient problem by translations that somebody states, checked in full.

    Raises:
        QuotientRefused: the translations are none of this network, or crowd a resource, or the collective has no
            quotient.
        InputError: ranks that do not exist or repeat, no chunks, or more than is held in memory.
    """
    name, members = parse_name(name), check_group(group, topology.nranks)
    check_translations(found, len(members))
    if not find_kind(name).translatable or not found:
        able = [kind.name for kind in KINDS.values() if kind.translatable]
        raise QuotientRefused(
            f"quotient: {name} by {len(found)} translations; it must be {' or '.join(able)}, by one or more"
        )
    if _entries(len(members), chunks, found) > MAX_ENTRIES:
        raise InputError(f"{name}: {len(members)} ranks × {chunks} chunks is more than is held in memory")
    try:
        problem = _problem(topology, name, chunks, members, network(topology, members), found)
    except ValueError as error:
        raise QuotientRefused(f"quotient: {error}") from None
    check_quotient(problem)
    return problem


def _entries(k: int, chunks: int, found: Translations) -> int:
    """Rows of a condition: every chunk of a representative is held by all ranks, or there is one for each.

    Raises InputError for no chunks.
    """
    if chunks < 1:
        raise InputError(f"chunks: {chunks} is not possible; it must be 1 or more")
    return k // math.prod(extent for _, extent in found) * chunks * k


def _problem(
    topology: Topology, name: str, chunks: int, members: tuple[int, ...], net: Network, found: Translations
) -> Problem:
    collective = representative_chunks(name, len(members), chunks, representatives(found, len(members)))
    return Problem(topology, collective, members, (), _quotient_network(net, found), Quotient(found, net))


def representative_chunks(name: str, k: int, chunks: int, owners: Ints) -> Collective:
    """The part of a named collective over k ranks that belongs to `owners` (ascending), as it lies in the whole.

    Chunk numbers are the whole's without those of other ranks: part p of owner i's share is i·chunks + p, for
    alltoall (i·k + destination)·chunks + p.
    """
    kind, part = find_kind(name), np.arange(chunks)
    if kind.unit == PAIR:
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
        pre, in_index = (own, local) if kind.before == OWN else (every, placed)
        post, out_index = (own, local) if kind.after == OWN else (every, placed)
    nchunks, block = len(ident), chunks * k if kind.in_shares else chunks
    # the same two roundings as in the whole
    fraction = np.full(nchunks, 1.0 / (k * chunks) if kind.in_shares else 1.0 / k / chunks)
    reduces = np.full(nchunks, kind.reduces)
    return Collective(name, k, block, nchunks, reduces, fraction, pre, post, in_index, out_index)


def _quotient_network(net: Network, found: Translations) -> Network:
    """The network with a resource for every class of resources; see `Quotient`.

    Copies of two sends cannot meet on a link either: a link is as narrow as some resource that it uses (see
    `Network`), so two sends over links of its class have no room on that resource's class.
    """
    classes = orbits(net, found)
    cls, resource = classes.uses[:, 0], classes.uses[:, 1]  # sorted by class, then resource
    starts = np.searchsorted(cls, np.arange(len(classes.link_first) + 1))
    used = row_entries(starts, classes.link_class)
    names = [net.resource_names[i] for i in classes.resource_first.tolist()]
    return replace(
        net,
        uses_ptr=pointers(np.diff(starts)[classes.link_class]),
        uses_idx=resource[used],
        capacity_gbs=net.capacity_gbs[classes.resource_first] / classes.times,
        resource_names=tuple(f"{name} and its translates" for name in names),
        hyperlinks=None,
    )


def _stated(problem: Problem) -> tuple[Quotient, int]:
    """What the problem is the quotient of, and its chunks a rank (and pair). Raises InputError where it is none."""
    kind = problem.collective.kind
    if problem.quotient is None or not kind.translatable:
        raise InputError(f"{problem.collective.name}: this problem is no quotient")
    return problem.quotient, problem.collective.chunks // (problem.collective.nranks if kind.in_shares else 1)


def whole_problem(problem: Problem) -> Problem:
    """The problem that this one is the quotient of.

    Raises InputError where it is too large to be held in memory, or the problem is no quotient.
    """
    (quotient, _), known = _stated(problem), problem.collective
    collective = named(known.name, known.nranks, known.chunks)
    return replace(problem, collective=collective, network=quotient.whole, quotient=None)


def expand(problem: Problem, schedule: Schedule) -> tuple[Problem, Schedule]:
    """The whole problem and its schedule: every send once for every product of translations.

    Rows are in order of start, then step, then their place in the schedule given; translates of one send stand
    together. Times stay.

    Raises InputError where the whole problem is too large to be held in memory.
    """
    full, (quotient, chunks) = whole_problem(problem), _stated(problem)
    schedule = schedule.take(np.lexsort((schedule.step, schedule.start_us)))
    order, n = quotient.order, len(schedule)
    chunk, link = np.empty((n, order), dtype=np.int64), np.empty((n, order), dtype=np.int64)
    tables = _Translates(quotient)
    block, part = np.divmod(schedule.chunk, chunks)
    wide = full.nranks if full.collective.kind.unit == PAIR else 1  # destinations that an owner's chunks have
    owner, dest = representatives(quotient.translations, full.nranks)[block // wide], block % wide
    at_once = max(1, _CELLS_AT_ONCE // order)
    for low in range(0, n, at_once):
        rows = slice(low, low + at_once)
        link[rows] = tables.links(schedule.link[rows])
        goals = tables.ranks(dest[rows]) if wide > 1 else 0
        chunk[rows] = (tables.owners(owner[rows]) * wide + goals) * chunks + part[rows, None]
    columns = ("step", "reduces", "start_us", "end_us")
    repeated: dict[str, Any] = {name: np.repeat(getattr(schedule, name), order) for name in columns}
    return full, replace(schedule, chunk=chunk.reshape(-1), link=link.reshape(-1), **repeated)


class _Translates:
    """All translates of ranks and links at once, in the order of `translations.elements`."""

    def __init__(self, quotient: Quotient) -> None:
        net, order, translations = quotient.whole, quotient.order, quotient.translations
        self.net, self.translations = net, translations
        every = np.arange(net.nranks)
        element = elements(translations, every)
        owners = representatives(translations, net.nranks)
        ground = every - sum(d * s for d, (s, _) in zip(digits(translations, every), translations, strict=True))
        self.rank_class = np.searchsorted(owners, ground)
        self.rank_of = np.empty((len(owners), order), dtype=np.int64)
        self.rank_of[self.rank_class, element] = every
        self.link_class = orbits(net, translations).link_class
        self.link_of = np.empty((net.nlinks // order, order), dtype=np.int64)
        self.link_of[self.link_class, element[net.src]] = np.arange(net.nlinks)
        # a product of translations is its digits; adding two is adding digit by digit
        self.digit: list[Ints] = []
        self.added: list[Ints] = []  # what the sum of two digits counts for in the product's number
        weight = 1
        for _, extent in translations:
            self.digit.append(np.arange(order) // weight % extent)
            self.added.append(np.arange(2 * extent - 1) % extent * weight)
            weight *= extent

    def _after(self, ranks: Ints) -> Ints:
        """The products that bring each rank's representative to its translates, shape (ranks, order)."""
        number = np.zeros((len(ranks), len(self.digit[0])), dtype=np.int64)
        for mine, digit, added in zip(digits(self.translations, ranks), self.digit, self.added, strict=True):
            number += added[mine[:, None] + digit]
        return number

    def owners(self, owners: Ints) -> Ints:
        """Of representatives."""
        return np.asarray(self.rank_of[self.rank_class[owners]])

    def ranks(self, ranks: Ints) -> Ints:
        return np.asarray(self.rank_of[self.rank_class[ranks][:, None], self._after(ranks)])

    def links(self, links: Ints) -> Ints:
        return np.asarray(self.link_of[self.link_class[links][:, None], self._after(self.net.src[links])])
