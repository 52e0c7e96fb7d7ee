"""Find the translations of a network that map a schedule onto itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np

from synth.model.collective import Ints
from synth.model.deadline import check_deadline
from synth.model.problem import Problem
from synth.model.registry import PAIR
from synth.model.schedule import Schedule
from topologies.network import Network
from topologies.symmetry.translations import (
    Translations,
    find_translations,
    least_powers,
    translate,
    translate_links,
)


def invariant_under(problem: Problem, schedule: Schedule) -> Translations:
    """Return translations (stride, extent) that map a schedule onto itself, apart from times; () if there are none.

    Where sends wait for one resource, one of many images goes first, so that their times may differ. The translations
    are those of the network (`find_translations`), each replaced by its least power that keeps the schedule, or left
    out.

    There are none for quotient problems, with relays or restricted holders, for collectives that translations do not
    map onto themselves and one-shot ones, for chunks of different sizes, and for a schedule that is empty or sends a
    chunk over a link twice in a step.

    Args:
        problem: A whole problem, on all ranks of its network.
        schedule: A schedule of it.

    Raises:
        TimeUp: The time of the work around is over.
    """
    collective = problem.collective
    is_whole = problem.quotient is None and not problem.relays and problem.allowed_holders is None
    if not (is_whole and collective.kind.translatable and len(schedule)) or collective.is_one_shot:
        return ()
    if np.ptp(collective.fraction) or (collective.kind.in_shares and collective.chunks % collective.nranks):
        return ()
    place = (schedule.step * collective.nchunks + schedule.chunk) * problem.network.nlinks + schedule.link
    if len(np.unique(place)) < len(place):  # Which of two equal sends an image is would not be known.
        return ()
    return least_powers(_translations_of(problem.network), partial(_keeps, problem, schedule))


@lru_cache(maxsize=4)
def _translations_of(net: Network) -> Translations:
    """Return `find_translations` of a network, from a cache of four networks.

    Raises:
        TimeUp: The time of the work around is over.
    """
    return find_translations(net, check_deadline)


def image_of_chunks(problem: Problem, translations: Translations, chunks: Ints, counts: Sequence[int | Ints]) -> Ints:
    """Return the images of chunks under translations of a whole problem, shape (n,).

    The chunks of a translatable collective are numbered by their owner, for alltoall then by their destination, and
    then by their part of the block.

    Args:
        problem: The problem, whose collective is translatable.
        translations: (stride, extent) of each translation.
        chunks: Chunks, shape (n,).
        counts: How often each translation is applied, with any sign: a number, or one for each chunk.
    """
    n, kind = problem.collective.nranks, problem.collective.kind
    parts = problem.collective.chunks // n if kind.in_shares else problem.collective.chunks
    block, part = np.divmod(chunks, parts)
    destinations = n if kind.unit == PAIR else 1
    owner, destination = np.divmod(block, destinations)
    owner = translate(translations, owner, counts)
    if destinations > 1:
        destination = translate(translations, destination, counts)
    return np.asarray((owner * destinations + destination) * parts + part)


def _keeps(problem: Problem, schedule: Schedule, translation: tuple[int, int]) -> bool:
    """Return True if a translation maps every send onto a send of the same step, of which both add or neither does.

    Args:
        problem: The problem.
        schedule: A schedule without two sends of one chunk over one link in one step.
        translation: (stride, extent) of a translation of the network.

    Raises:
        TimeUp: The time of the work around is over.
    """
    check_deadline()
    chunk = image_of_chunks(problem, (translation,), schedule.chunk, [1])
    link = translate_links(problem.network, (translation,), schedule.link, [1])
    order, target = (np.lexsort((schedule.step, *ends)) for ends in ((schedule.link, schedule.chunk), (link, chunk)))
    exact = ((schedule.chunk, chunk), (schedule.link, link), (schedule.step, schedule.step))
    if not all(np.array_equal(column[order], image[target]) for column, image in exact):
        return False
    return np.array_equal(schedule.reduces[order], schedule.reduces[target])
