"""Where chunks come from: for every send, the sends that brought what it carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.model.problem import Problem
from synth.model.schedule import Schedule
from topologies.arrays import pointers

__all__ = ["Lineage", "chosen_chunks", "chunk_words", "lineage"]

Ints = NDArray[np.int64]
_NAMED = 16  # ranks that a page names for a chunk
_GOLDEN = 0.6180339887498949  # steps of this part of a whole spread evenly, however many are taken


@dataclass(frozen=True, eq=False)
class Lineage:
    """For every row of a schedule: the rows whose arrivals it passes on.

    ptr, rows: row i passes on what the rows rows[ptr[i]:ptr[i+1]] brought; none where its source had it before.
    own: bool, shape (rows,): the source's own value (of a sum: its contribution) is in it.
    hop: int, shape (rows,): 1 for what its source had before, else 1 more than the latest of these rows.
    """

    ptr: Ints
    rows: Ints
    own: NDArray[np.bool_]
    hop: Ints


def chosen_chunks(chunk: Ints, nchunks: int, most: int) -> Ints:
    """Chunks, ascending, that have at most so many rows together (one chunk at least): all, or a spread sample."""
    count = np.bincount(chunk, minlength=nchunks)
    if int(count.sum()) <= most:
        return np.flatnonzero(count)
    used = np.flatnonzero(count)
    turn = np.argsort(np.arange(len(used)) * _GOLDEN % 1.0, kind="stable")
    total = np.cumsum(count[used[turn]])
    return np.sort(used[turn[: max(1, int(np.searchsorted(total, most, side="right")))]])


def lineage(problem: Problem, schedule: Schedule) -> Lineage:
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
    ends = np.flatnonzero(np.append(np.diff(schedule.step[order]), 1)) + 1
    begin = 0
    for finish in ends.tolist() if len(order) else []:
        together = order[begin:finish].tolist()
        begin = finish
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


def chunk_words(problem: Problem, chunks: Ints) -> dict[str, Any]:
    """Of each chunk: who holds it before and who wants it after (local ranks; null: all of the group), and whether
    it is a sum. `from_more`, `to_more`: how many there are beyond those named."""
    collective = problem.collective
    said: dict[str, Any] = {"id": chunks.tolist(), "sum": collective.reduces[chunks].astype(int).tolist()}
    for word, (ptr, ranks) in (("from", collective.holders), ("to", collective.goals)):
        names: list[list[int] | None] = []
        more = []
        for chunk in chunks.tolist():
            every = ranks[ptr[chunk] : ptr[chunk + 1]]
            if len(every) == collective.nranks:
                names.append(None)
                more.append(0)
                continue
            names.append(every[:_NAMED].tolist())
            more.append(max(0, len(every) - _NAMED))
        said[word], said[f"{word}_more"] = names, more
    return said
