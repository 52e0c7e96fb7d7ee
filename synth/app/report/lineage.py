"""The sources of chunks: for every send what it carries, and the sends that brought that."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from emit.check.cells import Cells
from emit.columns import Columns
from emit.program import READS_DST, READS_SRC, WRITES_DST
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.model.text import format_spans
from topologies.arrays import Bools, Ints, pointers

_NAMED = 16  # ranks that a page names for a chunk
_GOLDEN = 0.6180339887498949  # its multiples modulo 1 are evenly spread, whatever their number
_MAX_FOLLOWED = 2_000_000  # contributions in all sums; beyond it, contents are not followed
_PIECES = 4  # pieces of a value in words

Value = tuple[tuple[int, int], ...]  # contributions (rank, place in its input), sorted; empty: not followed
Carried = dict[int, tuple[list[Value], list[int]]]  # by sending step: a value a chunk, and the steps that brought them


@dataclass(frozen=True, eq=False)
class Lineage:
    """The rows whose arrivals every row of a schedule passes on.

    Attributes:
        ptr: Row i passes on what the rows rows[ptr[i]:ptr[i+1]] brought; there are none if its source had it at the
            start.
        rows: See `ptr`.
        own: True if the source's own value (for a sum: its contribution) is in it, bool, shape (rows,).
        hop: 1 for what the source had at the start, otherwise 1 more than the latest of these rows, int, shape (rows,).
    """

    ptr: Ints
    rows: Ints
    own: Bools
    hop: Ints


def sample_chunks(chunk: Ints, nchunks: int, most: int) -> Ints:
    """Return the chunks whose rows are listed, ascending: all chunks with rows if there are at most `most` rows.

    Otherwise it is an evenly spread sample of chunks with at most `most` rows in sum, but of at least one chunk.

    Args:
        chunk: Chunk of each row.
        nchunks: Number of chunks.
        most: Most rows.
    """
    count = np.bincount(chunk, minlength=nchunks)
    if int(count.sum()) <= most:
        return np.flatnonzero(count)
    used = np.flatnonzero(count)
    spread = used[np.argsort(np.arange(len(used)) * _GOLDEN % 1.0, kind="stable")]
    total = np.cumsum(count[spread])
    return np.sort(spread[: max(1, int(np.searchsorted(total, most, side="right")))])


def trace_schedule(problem: Problem, schedule: Schedule) -> Lineage:
    """Return for every row of a schedule the rows whose arrivals it passes on, step by step, as the replay does.

    Rows of one step pass on only what came in earlier steps. See `Schedule` for what a send carries.
    """
    net, collective = problem.network, problem.collective
    src, dst = net.src[schedule.link].tolist(), net.dst[schedule.link].tolist()
    arrival = (schedule.end_us + net.alpha_us[schedule.link]).tolist()
    chunk, reduces = schedule.chunk.tolist(), schedule.reduces.tolist()
    adds = collective.reduces.tolist()
    sent = np.zeros(collective.nchunks, dtype=bool)
    sent[schedule.chunk] = True
    rows = collective.pre[sent[collective.pre[:, 1]]]
    before = set(zip(rows[:, 1].tolist(), rows[:, 0].tolist(), strict=True))
    brought_by: dict[tuple[int, int], tuple[list[int], bool]] = {}
    parents: list[list[int]] = [[] for _ in chunk]
    own = np.zeros(len(chunk), dtype=bool)
    hop = np.ones(len(chunk), dtype=np.int64)
    order = np.argsort(schedule.step, kind="stable")
    for rows_of_step in np.split(order, np.flatnonzero(np.diff(schedule.step[order])) + 1):
        step_rows = rows_of_step.tolist()
        for row in step_rows:
            cell = (chunk[row], src[row])
            sources, own_inside = brought_by.get(cell, ([], cell in before))
            parents[row], own[row] = sources, own_inside
            hop[row] = 1 + max((int(hop[p]) for p in sources), default=0)
        # Copies that replace a value come before additions.
        for row in sorted(step_rows, key=lambda r: (reduces[r], arrival[r], r)):
            cell = (chunk[row], dst[row])
            sources, own_inside = brought_by.get(cell, ([], cell in before))
            if reduces[row]:
                brought_by[cell] = ([*sources, row], own_inside)
            elif adds[chunk[row]] or (not own_inside and (not sources or arrival[row] < arrival[sources[0]])):
                brought_by[cell] = ([row], False)
    ptr = pointers(np.array([len(p) for p in parents], dtype=np.int64))
    flat = np.array([p for sources in parents for p in sources], dtype=np.int64)
    return Lineage(ptr, flat, own, hop)


def describe_chunks(problem: Problem, chunks: Ints) -> dict[str, Any]:
    """Return the page's data about some chunks of a problem.

    Returns:
        A dictionary with a list for each key, one element a chunk:

        - id: Number of the chunk.
        - sum: 1 if the chunk is a sum of contributions, otherwise 0.
        - from, to: The first local ranks that hold it before, and that must hold it after; None for the whole group.
        - from_more, to_more: Number of further such ranks.
    """
    collective = problem.collective
    view: dict[str, Any] = {"id": chunks.tolist(), "sum": collective.reduces[chunks].astype(int).tolist()}
    for key, (ptr, ranks) in (("from", collective.holders), ("to", collective.goals)):
        every = [ranks[ptr[chunk] : ptr[chunk + 1]] for chunk in chunks.tolist()]
        named = [None if len(chunk_ranks) == collective.nranks else chunk_ranks for chunk_ranks in every]
        view[key] = [None if chunk_ranks is None else chunk_ranks[:_NAMED].tolist() for chunk_ranks in named]
        view[f"{key}_more"] = [0 if chunk_ranks is None else max(0, len(chunk_ranks) - _NAMED) for chunk_ranks in named]
    return view


def assign_ticks(columns: Columns, order: list[int]) -> list[int]:
    """Return the tick of every step in `order` (topological), −1 for all others, if each step takes one tick.

    The first tick is 0. A receive comes a tick after its send, and a step a tick after the step before it in its
    threadblock and after the step that it waits for. FIFO slots do not delay steps.
    """
    tick = [-1] * len(columns.op)
    block, start, dep = columns.block.tolist(), columns.start.tolist(), columns.dep.tolist()
    sends, receives = columns.sends.tolist(), columns.receives.tolist()
    flying: list[deque[int]] = [deque() for _ in columns.connections]
    for step in order:
        ready = tick[step - 1] + 1 if step > start[block[step]] else 0
        if dep[step] >= 0:
            ready = max(ready, tick[dep[step]] + 1)
        if receives[step] >= 0:
            ready = max(ready, flying[receives[step]].popleft() + 1)
        if sends[step] >= 0:
            flying[sends[step]].append(ready)
        tick[step] = ready
    return tick


def trace_program(c: Columns, order: list[int], cells: Cells) -> Carried:
    """Return what each sending step carries if the steps are executed in `order`.

    A cell that nothing wrote holds a contribution of its rank, named by its place in the buffer i.

    Returns:
        For each step that sends: the values, one for each chunk, and the numbers of the sending steps whose
        transmissions brought what is in them, ascending ([] for what was there at the start). A value is the sorted
        contributions (rank, place); it is () if sums became too large to follow.
    """
    reads, writes, reads_destination = (c.is_op(ops).tolist() for ops in (READS_SRC, WRITES_DST, READS_DST))
    sends, receives, count = c.sends.tolist(), c.receives.tolist(), c.count.tolist()
    rank_of = c.rank[c.block].tolist()
    base = cells.base[:, 0].tolist()
    memory: dict[int, tuple[Value, tuple[int, ...]]] = {}
    flying: list[deque[list[tuple[Value, tuple[int, ...]]]]] = [deque() for _ in c.connections]
    carried: Carried = {}
    followed = 0

    def read(cell: int, rank: int) -> tuple[Value, tuple[int, ...]]:
        """Return a cell's value and the sending steps that brought it; the rank's own input if nothing wrote it."""
        stored = memory.get(cell)
        return stored if stored is not None else (((rank, cell - base[rank]),), ())

    for step in order:
        rank, into = rank_of[step], receives[step]
        received = flying[into].popleft() if into >= 0 else []
        moved = []
        for i in range(count[step]):
            parts = [received[i]] if i < len(received) else []
            if reads[step]:
                parts.append(read(cells.src[step] + i, rank))
            if reads_destination[step]:
                parts.append(read(cells.dst[step] + i, rank))
            if not parts:
                continue
            value, via = parts[0]
            for more, also in parts[1:]:
                value = tuple(sorted(value + more)) if value and more and followed < _MAX_FOLLOWED else ()
                via = tuple(sorted({*via, *also}))
                followed += len(value)
            moved.append((value, via))
            if writes[step]:
                memory[cells.dst[step] + i] = value, via
        if sends[step] >= 0:
            carried[step] = [value for value, _ in moved], sorted({s for _, via in moved for s in via})
            # The receiver gets these values from this step.
            flying[sends[step]].append([(value, (step,)) for value, _ in moved])
    return carried


def describe_values(values: Sequence[Value]) -> str:
    """Return values in words, such as `rank 3's chunk 5` or `sum over 4 ranks (0–3) of chunks 4–7`.

    At most four pieces are named, and the number of the others is stated. The text is `contents not followed` if there
    is no value or one is empty.
    """
    if not values or not all(values):
        return "contents not followed"
    pieces: list[tuple[tuple[int, ...], list[int]]] = []
    for value in values:
        ranks = tuple(r for r, _ in value)
        places = {place for _, place in value}
        if len(places) > 1:
            pieces.append((ranks, [-1]))
            continue
        place = places.pop()
        if pieces and pieces[-1][0] == ranks and pieces[-1][1][-1] == place - 1:
            pieces[-1][1].append(place)
        else:
            pieces.append((ranks, [place]))
    # Single ranks' chunks of the same places become one piece; negative ranks mark that it is no sum.
    if len(pieces) > 1 and all(len(ranks) == 1 and places == pieces[0][1] for ranks, places in pieces):
        pieces = [(tuple(-1 - ranks[0] for ranks, _ in pieces), pieces[0][1])]
    words = [_piece(ranks, places) for ranks, places in pieces[:_PIECES]]
    return "; ".join(words) + (f"; {len(pieces) - _PIECES} more" if len(pieces) > _PIECES else "")


def _piece(ranks: tuple[int, ...], places: list[int]) -> str:
    """Return in words the chunks at `places` of one rank's input, or their sum over `ranks`.

    Ranks written as −1 − r stand for each rank's own chunks, not for a sum; places [-1] stand for a sum of different
    chunks.
    """
    if places == [-1]:
        return f"sum of different chunks of ranks {format_spans(sorted(set(ranks)))}"
    chunks = f"chunk{'s' if len(places) > 1 else ''} {format_spans(places)}"
    if ranks[0] < 0:
        return f"{chunks} of each of ranks {format_spans(sorted(-1 - r for r in ranks))}"
    if len(ranks) == 1:
        return f"rank {ranks[0]}'s {chunks}"
    different = sorted(set(ranks))
    twice = sorted({r for r, after in pairwise(ranks) if r == after})
    again = f", rank{'s' if len(twice) > 1 else ''} {format_spans(twice)} more than once" if twice else ""
    return f"sum over {len(different)} ranks ({format_spans(different)}{again}) of {chunks}"
