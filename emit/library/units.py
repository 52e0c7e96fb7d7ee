"""Merge the chunks of an algorithm that go the same way: a file then moves them unit by unit, in pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from synth.model.collective import Ints
from synth.model.common_chunk import CommonChunk, cut_blocks
from synth.model.problem import Problem
from synth.model.registry import BUFFER
from synth.verify.algorithm import Algorithm
from topologies.arrays import grouped
from topologies.errors import InputError

_LEAST_CELLS = 16  # of a chunk on average, where chunks differ in size
_ROUNDING = 1e-9  # relative
_LEAST_MERGED = 12  # Chunks that become one, on average, so that merging is worth while.


def merged_routes(algorithm: Algorithm) -> Algorithm | None:
    """Return the algorithm with one chunk for all chunks that go over the same links; None if these are not many.

    What a pipeline does with a large chunk, unit after unit, is then what the algorithm does with small ones. Chunks
    are merged only where each rank's buffer is one block, so that any chunk may lie anywhere in it, and where no link
    carries two of the large chunks, for one of which the other would have to wait.
    """
    problem, schedule = algorithm.problem, algorithm.schedule
    collective = problem.collective
    if collective.kind.unit != BUFFER or collective.sizes or problem.quotient is not None or problem.allowed_holders:
        return None
    ptr, rows = grouped(schedule.chunk, collective.nchunks)
    first_of_route: dict[bytes, int] = {}
    route = np.empty(collective.nchunks, dtype=np.int64)
    for chunk in range(collective.nchunks):
        own = rows[ptr[chunk] : ptr[chunk + 1]]
        links = np.sort(schedule.link[own] * 2 + schedule.reduces[own])
        route[chunk] = first_of_route.setdefault(links.tobytes(), len(first_of_route))
    count = len(first_of_route)
    if count * _LEAST_MERGED > collective.nchunks:
        return None
    first = np.unique(route, return_index=True)[1]
    merged = schedule.take(np.flatnonzero(first[route[schedule.chunk]] == schedule.chunk))
    merged = replace(merged, chunk=route[merged.chunk], joined=np.zeros(0, dtype=bool))
    if len(np.unique(merged.link * 2 + merged.reduces)) < len(merged):
        return None
    try:
        return Algorithm(_in_routes(problem, route, first), merged, algorithm.engine)
    except InputError:
        return None


def cut_in_proportion(algorithm: Algorithm, cells: Sequence[int]) -> CommonChunk:
    """Return a division of an algorithm's only block into cells, with about as many for each chunk as it is large.

    Args:
        algorithm: An algorithm whose buffers are one block.
        cells: Allowed numbers of cells, ascending; empty for any number.
    """
    collective = algorithm.problem.collective
    least = collective.nchunks if np.ptp(collective.fraction) == 0 else _LEAST_CELLS * collective.nchunks
    number = next((number for number in cells if number >= least), cells[-1] if cells else least)
    ideal = collective.fraction / collective.fraction.sum() * max(number, collective.nchunks)
    widths = np.maximum(1, np.floor(ideal * (1 + _ROUNDING))).astype(np.int64)
    missing = max(number, collective.nchunks) - int(widths.sum())
    if missing > 0:
        widths[np.argsort(widths - ideal, kind="stable")[:missing]] += 1
    return cut_blocks(collective, widths.tolist())


def _in_routes(problem: Problem, route: Ints, first: Ints) -> Problem:
    """Return a problem with one chunk for each route.

    Args:
        problem: The problem.
        route: Route of each chunk, shape (nchunks,).
        first: First chunk of each route, shape (routes,).
    """
    old = problem.collective
    is_first = np.zeros(old.nchunks, dtype=bool)
    is_first[first] = True
    pre, post = (rows[is_first[rows[:, 1]]] for rows in (old.pre, old.post))
    pre, post = (np.column_stack([rows[:, 0], route[rows[:, 1]]]) for rows in (pre, post))
    collective = replace(
        old,
        chunks=len(first),
        nchunks=len(first),
        reduces=old.reduces[first],
        fraction=np.bincount(route, old.fraction).astype(np.float64),
        pre=pre,
        post=post,
        in_index=pre[:, 1],
        out_index=post[:, 1],
    )
    return replace(problem, collective=collective)
