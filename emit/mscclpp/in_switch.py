"""Write schedules whose sends all go through a switch as execution plans of switch-channel operations and barriers.

A plan can express a sum in the switch only together with its multicast by the rank that reads it (glres), and a
multicast of a rank's own data (gstore): all-reduces, broadcasts and all-gathers, but no reduce-scatter. Each
threadblock has its own chunks, or parts of them if there are few, since it moves less than a port does. Ranks meet
before the first operation, because the input of the others must exist, and after the last, because others write their
output. The threadblocks of a rank divide the other ranks between them, so that a meeting takes the latency of one
signal. Where translations of the ranks' numbers keep the plan, it has the threadblocks of few ranks, whose images the
others are (`emit.images`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from emit.images import BufferImages, block_of_chunks, images_of
from emit.mscclpp.as_program import header
from emit.mscclpp.format import PlanDraft
from emit.mscclpp.memory import limit_sizes
from emit.mscclpp.plan import (
    MAX_CHANNELS,
    MAX_OP_CHANNELS,
    MAX_OPS,
    ExecutionPlan,
    Op,
    PlanBlock,
    PlanGpu,
    PlanPart,
)
from emit.program import Program
from synth.model.common_chunk import CommonChunk, common_chunk
from synth.model.pairs import ordinary
from synth.model.registry import BUFFER, EVERY, OWN, ROOT, SHARE, CollectiveKind
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError
from topologies.symmetry.translations import Translations, chains, single_translations

_BLOCKS = 16  # Threadblocks of a rank: with two, the switch reduces for one while it multicasts for the other.


def is_in_switch(algorithm: Algorithm) -> bool:
    """Return True if an algorithm sends through switches that multicast or reduce."""
    return not ordinary(algorithm.problem.network, algorithm.schedule.link)


def refusal(algorithm: Algorithm) -> str:
    """Return why plans cannot express an algorithm through switches, as far as is seen at once; else ""."""
    try:
        _senders(algorithm)
    except InputError as error:
        return str(error)
    return ""


def draft_in_switch(
    algorithm: Algorithm, name: str, *, inplace: bool = True, common: CommonChunk | None = None, sms: int = 0
) -> PlanDraft:
    """Return an algorithm's plan, of protocol Simple; it is checked when its text is made.

    Args:
        algorithm: The algorithm, whose sends all go through a switch.
        name: Name of the plan.
        inplace: Whether the plan is in place.
        common: Cells of the chunks; None for those of `common_chunk`: one cell each if the chunks have one size.
        sms: Number of threadblocks that a rank may have, 0 for any number. It has up to 16, and more if each would
            have more than MAX_CHANNELS peers.

    Raises:
        InputError: Plans cannot express the algorithm, it exceeds the executor's limits, or it needs more threadblocks
            than `sms`.
    """
    problem = algorithm.problem
    readers, collective = _senders(algorithm), problem.collective
    common = common or common_chunk(collective)
    n, cells = len(problem.group), common.cells
    is_share = collective.kind.before == OWN  # The input of a rank is its share.
    places = np.zeros(cells.nchunks, dtype=np.int64)
    places[cells.pre[:, 1]] = cells.in_index
    most = min(_BLOCKS, sms or _BLOCKS)
    spans = [_spans(common, np.flatnonzero(readers == rank).tolist(), most) for rank in range(n)]
    parts = max(1, min(most, max(map(len, spans))))
    blocks = max(parts, -(-(n - 1) // MAX_CHANNELS))
    if 0 < sms < blocks:
        raise InputError(f"{name}: {n} ranks need {blocks} threadblocks each to meet; each may have {sms} (--sms)")
    translations = _translations(collective.kind, n, cells.nchunks, spans)
    sizes, every_rank = (cells.nchunks // n if is_share else cells.nchunks, cells.nchunks, 0), tuple(range(n))
    gpus = [PlanGpu(*sizes) for _ in every_rank]
    for rank in images_of(translations, n).representatives.tolist():
        gpu = gpus[rank] = PlanGpu(*sizes, switches=[("i", every_rank), ("o", every_rank)])
        for tb in range(blocks):
            data = [
                _op(first, int(places[first]), count, sums=collective.reducing)
                for first, count in (spans[rank][tb::parts] if tb < parts else ())
            ]
            peers = [(rank + step) % n for step in range(1 + tb, n, blocks)]
            gpu.blocks.append(_block(gpu, peers, data, blocks))
    plan = ExecutionPlan(name, collective.name, "Simple", inplace, gpus, translations=translations)
    limit_sizes(plan, 0, 0)
    max_ops = max(len(block.ops) for gpu in plan.gpus for block in gpu.blocks)
    if max_ops > MAX_OPS:
        raise InputError(
            f"{name}: {max_ops} operations in a threadblock; plans take {MAX_OPS}; use fewer chunks (--chunks)"
        )
    return PlanDraft(plan, None, collective.root)


def draft_program(algorithm: Algorithm, common: CommonChunk, inplace: bool, sms: int) -> tuple[PlanDraft, Program]:
    """Return an algorithm's plan, and its header as a Program without threadblocks.

    The plan has the collective's name. The other arguments and the errors are those of `draft_in_switch`.
    """
    collective = algorithm.problem.collective
    draft = draft_in_switch(algorithm, collective.name, inplace=inplace, common=common, sms=sms)
    return draft, header(draft.plan, collective.root)


def _translations(
    kind: CollectiveKind, nranks: int, cells: int, spans: Sequence[Sequence[tuple[int, int]]]
) -> Translations:
    """Return the largest group of translations that carry the operations of each rank to those of its image.

    Args:
        kind: The kind of the collective.
        nranks: Number of ranks.
        cells: Number of cells of the output.
        spans: First cell and number of cells of each operation, by rank.
    """
    if not kind.translatable:
        return ()
    operations = [sorted(own_spans) for own_spans in spans]

    def is_kept(edge: tuple[int, int]) -> bool:
        """Return True if a translation moves operations to operations."""
        buffers = BufferImages(images_of((edge,), nranks), {"o": block_of_chunks((edge,), nranks, cells)})
        images = buffers.images.moved(1).tolist()
        return all(
            sorted((buffers.moved(1, "o", first), count) for first, count in operations[rank]) == operations[image]
            for rank, image in enumerate(images)
        )

    edges = [edge for edge in single_translations(nranks) if is_kept(edge)]
    return next(chains(nranks, edges))


def _senders(algorithm: Algorithm) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the rank that multicasts each chunk, after it has read its sum in a reducing collective, shape (nchunks,).

    Raises:
        InputError: Plans cannot express the algorithm.
    """
    problem, schedule = algorithm.problem, algorithm.schedule
    kind, h = problem.collective.kind, problem.network.hyperlinks
    whole = kind.unit == BUFFER and kind.before in (EVERY, ROOT)
    is_supported = (whole or (kind.unit, kind.before) == (SHARE, OWN)) and kind.after == EVERY and not problem.relays
    hyperlink = schedule.link - problem.network.nlinks
    name = problem.collective.name
    message = f"{name}: a plan can express sums in switches only if the reader multicasts them to all ranks"
    if not problem.collective.reducing:
        message = f"{name}: a plan can express multicasts only if one switch sends each of them to all ranks"
    if h is None or not is_supported or (hyperlink < 0).any() or len(np.unique(h.group[hyperlink])) > 1:
        raise InputError(message)
    if len(h.members(int(hyperlink[0]))) != len(problem.group):
        raise InputError(message)
    rank_of_chunk = {}
    for multicasts in (True, False):
        rows = np.flatnonzero(h.multicast[hyperlink] == multicasts)
        rank_of_chunk[multicasts] = np.full(problem.collective.nchunks, -1, dtype=np.int64)
        rank_of_chunk[multicasts][schedule.chunk[rows]] = h.hub[hyperlink[rows]]
        if len(np.unique(schedule.chunk[rows])) < len(rows):
            raise InputError(message)
    if (rank_of_chunk[True] < 0).any() or (
        problem.collective.reducing and not np.array_equal(rank_of_chunk[True], rank_of_chunk[False])
    ):
        raise InputError(message)
    return rank_of_chunk[True]


def _spans(common: CommonChunk, chunks: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Return the (first cell, number of cells) that each operation of a rank moves, in the order of its chunks.

    These are its chunks; if they are fewer than `most`, each is cut into as many parts as bring them to `most`, as far
    as it has cells.
    """
    spans = []
    for chunk in chunks:
        first, count = int(common.first[chunk]), int(common.count[chunk])
        parts = min(max(1, most // len(chunks)), count)
        cuts = [first + count * part // parts for part in range(parts + 1)] if parts else []
        spans += [(low, high - low) for low, high in pairwise(cuts)]
    return spans


def _op(first: int, at: int, count: int, *, sums: bool) -> Op:
    """Return the operation that sends `count` cells to all ranks, whose outputs receive them from cell `first` on.

    With `sums`, the switch first sums the cells of all inputs, also from `first` on. Else they are the sender's own,
    from cell `at` of its input on.
    """
    source = PlanPart("W", 0, first, count) if sums else PlanPart("L", "i", at, count)
    return Op("glres" if sums else "gstore", (source,), (PlanPart("W", 1, first, count),), channel_type="switch")


def _block(gpu: PlanGpu, peers: list[int], data: list[Op], blocks: int) -> PlanBlock:
    """Return a threadblock with the operations `data`, one of `blocks` of its rank, that hears of `peers`.

    Its channels to them are added to `gpu.peers`.
    """
    rank_peers = gpu.peers.setdefault("memory", [])
    channels = {"memory": list(range(len(rank_peers), len(rank_peers) + len(peers))), "switch": [0, 1]}
    rank_peers += peers
    meeting = [
        Op(word, channels=tuple(range(len(peers))[low : low + MAX_OP_CHANNELS]), channel_type="memory")
        for word in ("signal", "wait")
        for low in range(0, len(peers), MAX_OP_CHANNELS)
    ]
    # After it, all threads of all threadblocks know what one of them heard, and have done what one of them signals.
    synchronize = Op("barrier", barrier=0, blocks=blocks) if blocks > 1 else Op("nop")
    return PlanBlock([*meeting, synchronize, *data, synchronize, *meeting], channels)
