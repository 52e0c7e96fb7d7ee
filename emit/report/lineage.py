"""Where chunks come from: for every send what it carries, and the sends that brought that."""

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
from topologies.arrays import Bools, Ints, pointers

_NAMED = 16  # ranks that a page names for a chunk
_GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, spread evenly, however many are taken
_MAX_HELD = 2_000_000  # contributions in all different sums together; beyond, contents are not followed
_PIECES = 4  # of a value in words
_SPANS = 12  # of numbers in words

Value = tuple[tuple[int, int], ...]  # contributions (rank, place in its input), sorted; empty: not followed
Carried = dict[int, tuple[list[Value], list[int]]]  # by step that sends: a value a chunk, and the steps it came by


@dataclass(frozen=True, eq=False)
class Lineage:
    """For every row of a schedule: the rows whose arrivals it passes on.

    ptr, rows: row i passes on what the rows rows[ptr[i]:ptr[i+1]] brought; none where its source had it before.
    own: bool, shape (rows,): the source's own value (of a sum: its contribution) is in it.
    hop: int, shape (rows,): 1 for what its source had before, else 1 more than the latest of these rows.
    """

    ptr: Ints
    rows: Ints
    own: Bools
    hop: Ints


def sample_chunks(chunk: Ints, nchunks: int, most: int) -> Ints:
    """Chunks, ascending, that have at most so many rows together (one chunk at least): all, or a spread sample."""
    count = np.bincount(chunk, minlength=nchunks)
    if int(count.sum()) <= most:
        return np.flatnonzero(count)
    used = np.flatnonzero(count)
    spread = used[np.argsort(np.arange(len(used)) * _GOLDEN % 1.0, kind="stable")]
    total = np.cumsum(count[spread])
    return np.sort(spread[: max(1, int(np.searchsorted(total, most, side="right")))])


def trace_schedule(problem: Problem, schedule: Schedule) -> Lineage:
    """Follow every chunk of a schedule by its steps, as the replay does; see `Schedule` for what a send carries."""
    net, collective = problem.network, problem.collective
    src, dst = net.src[schedule.link].tolist(), net.dst[schedule.link].tolist()
    came = (schedule.end_us + net.alpha_us[schedule.link]).tolist()
    chunk, reduces = schedule.chunk.tolist(), schedule.reduces.tolist()
    adds = collective.reduces.tolist()
    wanted = np.zeros(collective.nchunks, dtype=bool)
    wanted[schedule.chunk] = True
    rows = collective.pre[wanted[collective.pre[:, 1]]]
    before = set(zip(rows[:, 1].tolist(), rows[:, 0].tolist(), strict=True))
    held: dict[tuple[int, int], tuple[list[int], bool]] = {}
    parents: list[list[int]] = [[] for _ in chunk]
    own = np.zeros(len(chunk), dtype=bool)
    hop = np.ones(len(chunk), dtype=np.int64)
    order = np.argsort(schedule.step, kind="stable")
    for rows_of_step in np.split(order, np.flatnonzero(np.diff(schedule.step[order])) + 1):
        together = rows_of_step.tolist()
        for row in together:
            cell = (chunk[row], src[row])
            known, mine = held.get(cell, ([], cell in before))
            parents[row], own[row] = known, mine
            hop[row] = 1 + max((int(hop[p]) for p in known), default=0)
        # what is replaced goes before what is added
        for row in sorted(together, key=lambda r: (reduces[r], came[r], r)):
            cell = (chunk[row], dst[row])
            known, mine = held.get(cell, ([], cell in before))
            if reduces[row]:
                held[cell] = ([*known, row], mine)
            elif adds[chunk[row]] or (not mine and (not known or came[row] < came[known[0]])):
                held[cell] = ([row], False)
    ptr = pointers(np.array([len(p) for p in parents], dtype=np.int64))
    flat = np.array([p for known in parents for p in known], dtype=np.int64)
    return Lineage(ptr, flat, own, hop)


def describe_chunks(problem: Problem, chunks: Ints) -> dict[str, Any]:
    """What the page says of each chunk: whether it is a sum, who holds it before and who wants it after.

    These are local ranks, null for all of the group; `from_more`, `to_more`: how many there are beyond those named.
    """
    collective = problem.collective
    view: dict[str, Any] = {"id": chunks.tolist(), "sum": collective.reduces[chunks].astype(int).tolist()}
    for key, (ptr, ranks) in (("from", collective.holders), ("to", collective.goals)):
        every = [ranks[ptr[chunk] : ptr[chunk + 1]] for chunk in chunks.tolist()]
        some = [None if len(one) == collective.nranks else one for one in every]
        view[key] = [None if one is None else one[:_NAMED].tolist() for one in some]
        view[f"{key}_more"] = [0 if one is None else max(0, len(one) - _NAMED) for one in some]
    return view


def assign_ticks(c: Columns, order: list[int]) -> list[int]:
    """The tick of every step in `order` (topological), −1 for all others, if each step took one.

    A receive comes a tick after the send that it meets, a step a tick after the one before it in its threadblock and
    the one that it waits for. FIFO slots hold nobody up.
    """
    tick = [-1] * len(c.op)
    block, start, dep = c.block.tolist(), c.start.tolist(), c.dep.tolist()
    sends, receives = c.sends.tolist(), c.receives.tolist()
    flying: list[deque[int]] = [deque() for _ in c.connections]
    for step in order:
        at = tick[step - 1] + 1 if step > start[block[step]] else 0
        if dep[step] >= 0:
            at = max(at, tick[dep[step]] + 1)
        if receives[step] >= 0:
            at = max(at, flying[receives[step]].popleft() + 1)
        if sends[step] >= 0:
            flying[sends[step]].append(at)
        tick[step] = at
    return tick


def trace_program(c: Columns, order: list[int], cells: Cells) -> Carried:
    """Execute in `order`. A cell that nothing wrote holds a contribution of its rank, named by its place in i.

    Returns for each step that sends: the values, one a chunk, and the sending steps, by number, whose transmissions
    brought what is in them (none for what was there at the start).
    """
    reads, writes, both = (c.is_op(ops).tolist() for ops in (READS_SRC, WRITES_DST, READS_DST))
    sends, receives, count = c.sends.tolist(), c.receives.tolist(), c.count.tolist()
    rank_of = c.rank[c.block].tolist()
    base = cells.base[:, 0].tolist()
    memory: dict[int, tuple[Value, tuple[int, ...]]] = {}
    flying: list[deque[list[tuple[Value, tuple[int, ...]]]]] = [deque() for _ in c.connections]
    carried: Carried = {}
    held = 0

    def read(cell: int, rank: int) -> tuple[Value, tuple[int, ...]]:
        found = memory.get(cell)
        return found if found is not None else (((rank, cell - base[rank]),), ())

    for step in order:
        rank, into = rank_of[step], receives[step]
        came = flying[into].popleft() if into >= 0 else []
        moved = []
        for i in range(count[step]):
            parts = [came[i]] if i < len(came) else []
            if reads[step]:
                parts.append(read(cells.src[step] + i, rank))
            if both[step]:
                parts.append(read(cells.dst[step] + i, rank))
            if not parts:
                continue
            value, via = parts[0]
            for more, also in parts[1:]:
                value = tuple(sorted(value + more)) if value and more and held < _MAX_HELD else ()
                via = tuple(sorted({*via, *also}))
                held += len(value)
            moved.append((value, via))
            if writes[step]:
                memory[cells.dst[step] + i] = value, via
        if sends[step] >= 0:
            carried[step] = [value for value, _ in moved], sorted({s for _, via in moved for s in via})
            # for whoever gets it, it came by this step
            flying[sends[step]].append([(value, (step,)) for value, _ in moved])
    return carried


def describe_values(values: Sequence[Value]) -> str:
    """`rank 3's chunk 5`, `sum of ranks 0–3, chunks 4–7`."""
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
    # neighbouring ranks' chunks of the same places are one piece, its ranks negative: no sum of them
    if len(pieces) > 1 and all(len(ranks) == 1 and places == pieces[0][1] for ranks, places in pieces):
        pieces = [(tuple(-1 - ranks[0] for ranks, _ in pieces), pieces[0][1])]
    words = [_piece(ranks, places) for ranks, places in pieces[:_PIECES]]
    return "; ".join(words) + (f"; {len(pieces) - _PIECES} more" if len(pieces) > _PIECES else "")


def _piece(ranks: tuple[int, ...], places: list[int]) -> str:
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


def format_spans(numbers: list[int]) -> str:
    """`0–3, 7` of ascending numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = [str(a) if a == b else f"{a}–{b}" for a, b in runs[:_SPANS]]
    return ", ".join(words) + (", …" if len(runs) > _SPANS else "")
