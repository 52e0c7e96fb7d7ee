"""Build quotient problems and expand their schedules.

A quotient problem has one representative of each orbit of chunks under a network's translations. Where the network
looks the same from every rank (a torus, a full mesh, equal nodes), a schedule for the chunks of a few representative
ranks, translated, is a schedule for all chunks. The quotient problem holds the chunks of the representatives on the
whole network. Its resources are the orbits of the whole's resources, because on a resource the translates of a send
meet exactly the sends that meet on its orbit. A schedule of the quotient is therefore right exactly when its expansion
is right for the whole problem, and takes the same time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from synth.model.collective import MAX_ENTRIES, Collective, Ints, named
from synth.model.deadline import check_deadline
from synth.model.problem import Problem, Quotient, check_group
from synth.model.registry import COLLECTIVE_KINDS, OWN, PAIR, find_kind, parse_name
from synth.model.schedule import Schedule, follows_same
from synth.symmetry.quotient_check import check_quotient, check_translations
from topologies.arrays import strongly_connected
from topologies.errors import InputError, QuotientRefused
from topologies.network import Network, network
from topologies.symmetry.translations import (
    Translations,
    digits,
    element_of_rank,
    find_translations,
    orbits,
    quotient_network,
    representatives,
)
from topologies.topology import Topology

_CELLS_PER_BLOCK = 1 << 15  # A block of rows of this size stays in the processor's cache.


def quotient_problem(
    topology: Topology, name: str, chunks: int = 1, group: Sequence[int] | None = None, relays: Sequence[int] = ()
) -> Problem | None:
    """Return the quotient problem of a named collective; None where it has none.

    There is none for collectives that translations of the ranks do not map onto themselves, with relays, where the
    group's network has no translations or is not connected, and where it would not fit in memory.

    It holds the chunks that belong to the representative ranks: for allgather those that they hold before, for
    alltoall those that they send, for reducescatter those that they want. For allreduce it holds their shares, one a
    rank and numbered like the ranks, of `chunks` chunks each (so that the whole problem has k · chunks chunks a
    block). Fractions and places in the buffers are those of the whole problem.

    Args:
        topology: The machine or cluster.
        name: The collective's name.
        chunks: Chunks a block; for allreduce, chunks in a rank's share.
        group: Topology ranks in order; all when None. Translations are searched for in this order.
        relays: Relays; with relays there is no quotient.

    Raises:
        InputError: Ranks do not exist or repeat, the group has fewer than two ranks, there are no chunks, or the name
            is unknown.
        TimeUp: The time of the work around is over before the translations are found.
    """
    name, members = parse_name(name), check_group(group, topology.nranks)
    if not find_kind(name).translatable or len(relays):
        return None
    net = network(topology, members, paths=find_kind(name).paths)
    translations = find_translations(net, check_deadline)
    if not translations or _entries(len(members), chunks, translations) > MAX_ENTRIES:
        return None
    if not strongly_connected(net.nranks, net.src, net.dst):
        return None
    return _build_quotient(topology, name, chunks, members, net, translations)


def quotient_by(
    topology: Topology, name: str, chunks: int, group: Sequence[int], translations: Translations
) -> Problem:
    """Return the quotient problem by stated translations, checked in full.

    Args:
        topology: The machine or cluster.
        name: The collective's name, in any spelling.
        chunks: Chunks a block; for allreduce, chunks in a rank's share.
        group: Topology ranks in order.
        translations: (stride, extent) pairs over positions of the group, with ascending strides, at least one.

    Raises:
        QuotientRefused: The translations are no symmetries of this network, or crowd a resource, or the collective has
            no quotient.
        InputError: The name is unknown, ranks do not exist or repeat, the group has fewer than two, there are no
            chunks, or the problem does not fit in memory.
    """
    name, members = parse_name(name), check_group(group, topology.nranks)
    check_translations(translations, len(members))
    if not find_kind(name).translatable or not translations:
        quotient_names = [kind.name for kind in COLLECTIVE_KINDS.values() if kind.translatable]
        raise QuotientRefused(
            f"quotient: {name} by {len(translations)} translations;"
            f" it must be {' or '.join(quotient_names)}, by at least one"
        )
    if _entries(len(members), chunks, translations) > MAX_ENTRIES:
        raise InputError(f"{name}: {len(members)} ranks × {chunks} chunks do not fit in memory")
    try:
        net = network(topology, members, paths=find_kind(name).paths)
        problem = _build_quotient(topology, name, chunks, members, net, translations)
    except ValueError as error:
        raise QuotientRefused(f"quotient: {error}") from None
    check_quotient(problem)
    return problem


def _entries(k: int, chunks: int, translations: Translations) -> int:
    """Return the most rows that a condition can have: k for each chunk of a representative.

    Args:
        k: Number of ranks.
        chunks: Chunks a block; for allreduce, chunks in a rank's share.
        translations: (stride, extent) of each translation.

    Raises:
        InputError: There are no chunks.
    """
    if chunks < 1:
        raise InputError(f"chunks: {chunks} is not possible; it must be 1 or more")
    return k // math.prod(extent for _, extent in translations) * chunks * k


def _build_quotient(
    topology: Topology, name: str, chunks: int, members: tuple[int, ...], net: Network, translations: Translations
) -> Problem:
    """Build the quotient problem of the members' network by its translations; nothing is checked but the network.

    Args:
        topology: The topology.
        name: The collective's own name.
        chunks: Chunks a block; for allreduce, chunks in a rank's share.
        members: Topology ranks of the group.
        net: The network of the members.
        translations: (stride, extent) of each translation.

    Raises:
        InputError: The translations do not keep the network, or crowd one of its resources.
    """
    collective = representative_chunks(name, len(members), chunks, representatives(translations, len(members)))
    return Problem(topology, collective, members, (), quotient_network(net, translations), Quotient(translations, net))


def representative_chunks(name: str, k: int, chunks: int, owners: Ints) -> Collective:
    """Return the part of a named collective over k ranks that belongs to `owners`, with its places in the buffers.

    Chunk numbers are those of the whole without the chunks of other ranks: part p of the share of the i-th owner is
    i·chunks + p; for alltoall it is (i·k + destination)·chunks + p. Places are those of the whole problem.

    Args:
        name: The name of a translatable collective, as `parse_name` returns it.
        k: Number of ranks.
        chunks: Chunks a block; for allreduce, chunks in a rank's share.
        owners: The positions whose chunks are taken, ascending.
    """
    kind, part = find_kind(name), np.arange(chunks)
    if kind.unit == PAIR:
        i, dest, p = (a.ravel() for a in np.indices((len(owners), k, chunks)))
        chunk = (i * k + dest) * chunks + p
        pre, in_index = np.column_stack([owners[i], chunk]), dest * chunks + p
        dest, i, p = (a.ravel() for a in np.indices((k, len(owners), chunks)))
        post = np.column_stack([dest, (i * k + dest) * chunks + p])
        out_index = owners[i] * chunks + p
    else:
        chunk = np.arange(len(owners) * chunks)
        share = (owners[:, None] * chunks + part).ravel()
        at_all_ranks = np.column_stack([np.repeat(np.arange(k), len(chunk)), np.tile(chunk, k)])
        at_owners = np.column_stack([np.repeat(owners, chunks), chunk])
        place_in_buffer, place_in_share = np.tile(share, k), np.tile(part, len(owners))
        pre, in_index = (at_owners, place_in_share) if kind.before == OWN else (at_all_ranks, place_in_buffer)
        post, out_index = (at_owners, place_in_share) if kind.after == OWN else (at_all_ranks, place_in_buffer)
    nchunks, block = len(chunk), chunks * k if kind.in_shares else chunks
    # Round twice, as the whole problem does.
    fraction = np.full(nchunks, 1.0 / (k * chunks) if kind.in_shares else 1.0 / k / chunks)
    reduces = np.full(nchunks, kind.reduces)
    return Collective(name, k, block, nchunks, reduces, fraction, pre, post, in_index, out_index)


def _find_quotient(problem: Problem) -> tuple[Quotient, int]:
    """Return a quotient problem's reference to its whole, and its chunks a rank (for alltoall, from a rank to another).

    Raises:
        InputError: The problem is no quotient.
    """
    kind = problem.collective.kind
    if problem.quotient is None or not kind.translatable:
        raise InputError(f"{problem.collective.name}: this problem is no quotient")
    return problem.quotient, problem.collective.chunks // (problem.collective.nranks if kind.in_shares else 1)


def whole_problem(problem: Problem) -> Problem:
    """Return the whole problem of a quotient problem, on the whole network, with as many chunks a block.

    Raises:
        InputError: It does not fit in memory, or the problem is no quotient.
    """
    (quotient, _), representative = _find_quotient(problem), problem.collective
    collective = named(representative.name, representative.nranks, representative.chunks)
    return replace(problem, collective=collective, network=quotient.whole, quotient=None)


def expanded(problem: Problem, schedule: Schedule) -> tuple[Problem, Schedule]:
    """Return the whole problem and its schedule as `expand` does; the given ones where the problem is no quotient.

    Raises:
        InputError: The whole problem does not fit in memory.
    """
    return (problem, schedule) if problem.quotient is None else expand(problem, schedule)


def expand(problem: Problem, schedule: Schedule) -> tuple[Problem, Schedule]:
    """Return the whole problem and its schedule, with every send once for each product of translations.

    Rows are in order of start, then step, then their place in the given schedule; translates of one send stand next to
    each other. If sends leave in joined messages, rows of a message stand next to each other instead. Times do not
    change.

    Raises:
        InputError: The whole problem does not fit in memory, or the problem is no quotient.
    """
    full, (quotient, chunks) = whole_problem(problem), _find_quotient(problem)
    schedule = schedule.take(np.lexsort((schedule.step, schedule.start_us)))
    order, n = quotient.order, len(schedule)
    chunk, link = np.empty((n, order), dtype=np.int64), np.empty((n, order), dtype=np.int64)
    tables = _Translates(quotient)
    block, part = np.divmod(schedule.chunk, chunks)
    ndestinations = full.nranks if full.collective.kind.unit == PAIR else 1  # of an owner's chunks
    owner, dest = representatives(quotient.translations, full.nranks)[block // ndestinations], block % ndestinations
    rows_per_block = max(1, _CELLS_PER_BLOCK // order)
    for low in range(0, n, rows_per_block):
        rows = slice(low, low + rows_per_block)
        link[rows] = tables.links(schedule.link[rows])
        goals = tables.ranks(dest[rows]) if ndestinations > 1 else 0
        chunk[rows] = (tables.owners(owner[rows]) * ndestinations + goals) * chunks + part[rows, None]
    columns = ("step", "reduces", "start_us", "end_us")
    repeated: dict[str, Any] = {name: np.repeat(getattr(schedule, name), order) for name in columns}
    whole = replace(
        schedule, chunk=chunk.reshape(-1), link=link.reshape(-1), joined=np.zeros(0, dtype=bool), **repeated
    )
    return full, _joined_again(whole, schedule, order) if len(schedule.joined) else whole


def _joined_again(whole: Schedule, schedule: Schedule, order: int) -> Schedule:
    """Return an expanded schedule in whose messages the sends stand behind each other, as in the given schedule.

    Args:
        whole: The expanded schedule, with `order` translates behind each other for each send.
        schedule: The quotient's schedule.
        order: Number of translates.
    """
    message = (schedule.message[:, None] * order + np.arange(order)).reshape(-1)
    rows = np.argsort(message, kind="stable")
    return replace(whole.take(rows), joined=follows_same(message[rows]))


class _Translates:
    """All translates of ranks and links at once, in the order of `translations.elements`.

    Attributes:
        net: The whole network.
        translations: The translations.
        rank_class: Number of each rank's representative.
        rank_of: Translates of each representative, shape (representatives, order).
        link_class: Class of each link.
        link_of: Translates of each class's first link, shape (classes, order).
        digit: For each translation, its digit in every product of translations.
        added: For each translation, the weighted digit in a product's number of every sum of two digits.
    """

    def __init__(self, quotient: Quotient) -> None:
        net, order, translations = quotient.whole, quotient.order, quotient.translations
        self.net, self.translations = net, translations
        every = np.arange(net.nranks)
        element = element_of_rank(translations, every)
        owners = representatives(translations, net.nranks)
        ground = every - sum(d * s for d, (s, _) in zip(digits(translations, every), translations, strict=True))
        self.rank_class = np.searchsorted(owners, ground)
        self.rank_of = np.empty((len(owners), order), dtype=np.int64)
        self.rank_of[self.rank_class, element] = every
        self.link_class = orbits(net, translations).link_class
        self.link_of = np.empty((net.nlinks // order, order), dtype=np.int64)
        self.link_of[self.link_class, element[net.src]] = np.arange(net.nlinks)
        # A product of translations is a number of digits; two products are composed by adding digit by digit.
        self.digit: list[Ints] = []
        self.added: list[Ints] = []
        weight = 1
        for _, extent in translations:
            self.digit.append(np.arange(order) // weight % extent)
            self.added.append(np.arange(2 * extent - 1) % extent * weight)
            weight *= extent

    def _after(self, ranks: Ints) -> Ints:
        """Return the products that bring each rank's representative to the rank's translates, shape (ranks, order).

        Entry [i, e] is the number of the product that brings the representative of ranks[i] to the image of ranks[i]
        under product e. Numbers are columns of `rank_of` and `link_of`.
        """
        number = np.zeros((len(ranks), len(self.digit[0])), dtype=np.int64)
        for rank_digit, digit, added in zip(digits(self.translations, ranks), self.digit, self.added, strict=True):
            number += added[rank_digit[:, None] + digit]
        return number

    def owners(self, owners: Ints) -> Ints:
        """Return the translates of representative ranks, in the order of the elements, shape (owners, order)."""
        return np.asarray(self.rank_of[self.rank_class[owners]])

    def ranks(self, ranks: Ints) -> Ints:
        """Return the translates of any ranks, in the order of the elements, shape (ranks, order)."""
        return np.asarray(self.rank_of[self.rank_class[ranks][:, None], self._after(ranks)])

    def links(self, links: Ints) -> Ints:
        """Return the translates of links, in the order of the elements, shape (links, order)."""
        return np.asarray(self.link_of[self.link_class[links][:, None], self._after(self.net.src[links])])
