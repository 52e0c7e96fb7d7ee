"""Track the data that every rank holds during a schedule, chunk by chunk and step by step: plain values and sums.

Sums are first tracked by their sizes. Within a chunk, suppose that every rank gives its partial sum away at most once
and gets nothing added after. Then the partial sums at the ranks that still have theirs are disjoint, and each
contribution is in one of them, so that their sizes tell everything: a sum of as many contributions as there are is
whole, and only a whole sum may be copied on or put where nothing is. A chunk that breaks this form is counted again
exactly: every rank has one bit a contributor for "at least once" and one for "at least twice".

The loops return the first fault as (code, row or chunk, rank, µs). They share only the number of the fault with the
rest of the replay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from synth.model.collective import Ints
from synth.model.compiled import Runner
from synth.model.pairs import pairs_of_rows
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from topologies.arrays import pointers, sorted_rows

OK, ABSENT, EARLY, CLASH, BEFORE, OVERTAKEN, MISSING = range(7)

_UNCLEAR = -1  # Sizes do not determine the contents.
# The state of a rank: it has nothing, a partial sum that no other rank has, one that it gave away, or the whole sum.
_NOTHING, _OWN, _GIVEN_AWAY, _WHOLE = range(4)
_WORD = 62  # contributors a word of 64 bits, none of which is a sign bit
# The tables of every rank's bits: contributions that it holds at least once and at least twice, and contributions
# that come to it in a step at least once and at least twice.
_ONCE, _TWICE, _COMING_ONCE, _COMING_TWICE, _TABLES = range(5)


class ReplayFault(NamedTuple):
    """The first fault of a schedule; there is none where `code` is OK.

    The fields are (ABSENT, CLASH, BEFORE or OVERTAKEN, pair, 0, 0), (EARLY, pair, 0, µs at which the last part came),
    or (MISSING, chunk, rank, 0, how often each position's contribution is present, up to 2; empty for a plain value). A
    pair is an index of `Contents.pairs`.
    """

    code: int
    which: int = 0
    rank: int = 0
    value: float = 0.0
    counts: Ints = np.zeros(0, dtype=np.int64)


class _SendTable(NamedTuple):
    """The sends of a schedule by chunk, step and row; those of chunk c are ptr[c]..ptr[c+1]-1.

    A row over a hyperlink is a send for each of its pairs of ranks; `row` is then the pair, as in `Contents.pairs`.
    """

    ptr: Any
    row: Any
    src: Any
    dst: Any
    step: Any
    start: Any
    arrives: Any
    adds: Any


class _ChunkTable(NamedTuple):
    """The chunks of a collective: which chunks are sums, and in CSR form which ranks hold and which want each."""

    sums: Any
    holders_ptr: Any
    holders: Any
    goals_ptr: Any
    goals: Any


class _RankTable(NamedTuple):
    """The state of every rank in the chunk that is replayed."""

    last_chunk: Any  # the last chunk in which the rank occurred; the fields below are about this chunk
    has: Any  # _NOTHING, _OWN, _GIVEN_AWAY or _WHOLE
    size: Any  # number of contributions in its partial sum
    latest: Any  # time of the latest arrival, in µs
    replaced: Any  # time of the latest arrival of a copy, in µs
    group: Any  # the last step in which it received something, by the step's first send
    changes: Any  # number of arrivals in this step


class Contents:
    """The sends of a timed schedule by chunk, step and row, with its chunks; takes O(sends · log sends) time.

    Every chunk and link of the schedule must exist (`replay` checks that before).

    Attributes:
        run: The runner of the loops.
        nranks: Number of local ranks, with relays.
        positions: Number of positions in the group.
        tolerance: Time in µs by which a send may be too early, for rounding.
        nchunks: Number of chunks of the collective.
        pairs: Row of the schedule, source and destination of each pair of ranks, as `pairs_of_rows` returns them.
    """

    def __init__(self, problem: Problem, schedule: Schedule, run: Runner, tolerance: float) -> None:
        net, collective = problem.network, problem.collective
        self.run, self.nranks, self.positions, self.tolerance = run, net.nranks, collective.nranks, tolerance
        self.nchunks = collective.nchunks
        # The columns are row of the schedule, source and destination. A hyperlink's row has several pairs at one time.
        self.pairs = row, src, dst = pairs_of_rows(net, schedule.link)
        arrives = schedule.end_us + net.carriers.alpha_us[schedule.link]
        chunk, step, start, reduces = schedule.chunk, schedule.step, schedule.start_us, schedule.reduces
        if len(row) > len(schedule):
            chunk, step, reduces = chunk[row], step[row], reduces[row]
            start, arrives = start[row], arrives[row]
        order = sorted_rows(step)
        order = order[sorted_rows(chunk[order])]
        if step.max(initial=0) > np.iinfo(np.int32).max:
            step = np.unique(step, return_inverse=True)[1]  # Only the order of steps counts.
        narrow = (column.astype(np.int32) for column in (order, src[order], dst[order], step[order]))
        self._sends = _SendTable(
            *run.columns(
                pointers(np.bincount(chunk, minlength=collective.nchunks)), *narrow, start[order],
                arrives[order], reduces[order],
            )
        )  # fmt: skip
        self._chunks = _ChunkTable(*run.columns(collective.reduces, *collective.holders, *collective.goals))

    def check_plain_values(self) -> ReplayFault:
        """Check that every plain value is at a send's source in time, and in the end where it is wanted.

        Returns:
            The first fault by chunk and step; with the code OK if there is none.
        """
        return ReplayFault(*self.run(_plain_values, self._sends, self._chunks, self.nranks, self.tolerance))

    def check_sums(self) -> ReplayFault:
        """Check that every wanted sum has each contribution exactly once, and leaves only when its parts have come.

        Returns:
            The first fault by chunk and step; with the code OK if there is none.
        """
        nwords = -(-self.positions // _WORD)
        no_bits = bits = np.empty(0, dtype=np.int64)
        first, batch, exact = 0, 1, False
        while True:
            last = min(first + batch, self.nchunks) if exact else self.nchunks
            zeros, no_times = np.zeros(self.nranks, dtype=np.int64), np.zeros(self.nranks)
            ranks = _RankTable(
                *self.run.columns(zeros - 1, zeros, zeros.copy(), no_times, no_times.copy(), zeros - 1, zeros.copy())
            )
            fault = ReplayFault(
                *self.run(
                    _sums, first, last, exact, bits if exact else no_bits, nwords, self._sends, self._chunks, ranks,
                    self.tolerance,
                )
            )  # fmt: skip
            if fault.code == _UNCLEAR:
                # Count this chunk exactly, and then ever more at a time, as similar chunks are often unclear too.
                first, exact = fault.which, True
                if not len(bits):
                    # Only the pages of the array that are written take memory.
                    (bits,) = self.run.columns(np.empty(_TABLES * self.nranks * nwords, dtype=np.int64))
            elif fault.code == OK and last < self.nchunks:
                first, batch, exact = last, 2 * batch, False
            elif fault.code == MISSING:
                table = np.array(bits).reshape(_TABLES, self.nranks, nwords)[: _TWICE + 1, fault.rank]
                is_present = table[:, :, None] >> np.arange(_WORD) & 1
                return fault._replace(counts=is_present.sum(axis=0).ravel()[: self.positions])
            else:
                return fault


def _plain_values(sends: _SendTable, chunks: _ChunkTable, nranks: int, tolerance: float) -> tuple[int, int, int, float]:
    """Return the first fault of the chunks that are plain values, in the fields of `ReplayFault`; sums are left out.

    Any copy of a plain value will do. The row in a fault is that of `Contents.pairs`; tolerance is in µs.
    """
    ptr, row, src, dst, step, start, arrives, _ = sends
    sums, holders_ptr, holders, goals_ptr, goals = chunks
    has = [-1] * nranks  # the last chunk that the rank had
    since = [0.0] * nranks  # the time from which it had this chunk
    for c in range(len(sums)):
        if sums[c]:
            continue
        for i in range(holders_ptr[c], holders_ptr[c + 1]):
            has[holders[i]] = c
            since[holders[i]] = 0.0
        i = ptr[c]
        while i < ptr[c + 1]:
            # A chunk that arrives in a step can be sent on only in a later step.
            j = i
            while j < ptr[c + 1] and step[j] == step[i]:
                if has[src[j]] != c:
                    return ABSENT, int(row[j]), 0, 0.0
                if start[j] < since[src[j]] - tolerance:
                    return EARLY, int(row[j]), 0, since[src[j]]
                j += 1
            for k in range(i, j):
                to = dst[k]
                since[to] = min(since[to], arrives[k]) if has[to] == c else arrives[k]
                has[to] = c
            i = j
        for i in range(goals_ptr[c], goals_ptr[c + 1]):
            if has[goals[i]] != c:
                return MISSING, c, int(goals[i]), 0.0
    return OK, 0, 0, 0.0


def _sums(  # It exceeds 60 lines: in one piece, a chunk's replay reads as a list of its checks.
    first: int, last: int, exact: bool, bits: Any, nwords: int, sends: _SendTable, chunks: _ChunkTable,
    ranks: _RankTable, tolerance: float,
) -> tuple[int, int, int, float]:  # fmt: skip
    """Return the first fault of the sums of chunks first..last-1, in the fields of `ReplayFault`.

    The sums are tracked by sizes, until one is unclear: (_UNCLEAR, chunk, …). With `exact` they are counted by bits:
    `bits` holds `nwords` words for each table and rank, and has the contents of the last chunk in the end. `ranks` is
    changed too.
    """
    ptr, row, src, dst, step, start, arrives, adds = sends
    sums, holders_ptr, holders, goals_ptr, goals = chunks
    last_chunk, has, size, latest, replaced, group, changes = ranks
    nranks = len(last_chunk)
    for c in range(first, last):
        if not sums[c]:
            continue
        for i in range(goals_ptr[c], goals_ptr[c + 1]):
            if last_chunk[goals[i]] != c:
                _clear(c, exact, goals[i], bits, nwords, ranks)
        ncontributions = holders_ptr[c + 1] - holders_ptr[c]
        for i in range(holders_ptr[c], holders_ptr[c + 1]):
            at = holders[i]
            if last_chunk[at] != c:
                _clear(c, exact, at, bits, nwords, ranks)
            has[at] = _WHOLE if ncontributions == 1 else _OWN
            size[at] = 1
            if exact:
                bits[at * nwords + at // _WORD] = 1 << at % _WORD
        i = ptr[c]
        while i < ptr[c + 1]:
            # A chunk that arrives in a step can be sent on only in a later step.
            j = i
            while j < ptr[c + 1] and step[j] == step[i]:
                at, to = src[j], dst[j]
                if last_chunk[at] != c:
                    _clear(c, exact, at, bits, nwords, ranks)
                if last_chunk[to] != c:
                    _clear(c, exact, to, bits, nwords, ranks)
                if has[at] == _NOTHING:
                    return ABSENT, int(row[j]), 0, 0.0
                if start[j] < latest[at] - tolerance:
                    return EARLY, int(row[j]), 0, latest[at]
                if not exact and not adds[j] and has[at] != _WHOLE:
                    return _UNCLEAR, c, 0, 0.0
                if group[to] != i:
                    group[to] = i
                    changes[to] = 0
                changes[to] += 1
                j += 1
            for k in range(i, j):
                to = dst[k]
                if adds[k]:
                    if arrives[k] < replaced[to] - tolerance:
                        return OVERTAKEN, int(row[k]), 0, 0.0
                elif changes[to] > 1:
                    return CLASH, int(row[k]), 0, 0.0
                elif arrives[k] < latest[to] - tolerance:
                    return BEFORE, int(row[k]), 0, 0.0
            if exact:
                _add_bits(i, j, sends, bits, nwords, ranks)
            elif not _add_sizes(i, j, src, dst, adds, ncontributions, has, size):
                return _UNCLEAR, c, 0, 0.0
            for k in range(i, j):
                to = dst[k]
                latest[to] = max(latest[to], arrives[k])
                if not adds[k]:
                    replaced[to] = max(replaced[to], arrives[k])
            i = j
        for i in range(goals_ptr[c], goals_ptr[c + 1]):
            if exact:
                if not _once_each(goals[i], nranks, bits, nwords, holders_ptr[c], holders_ptr[c + 1], holders):
                    return MISSING, c, int(goals[i]), 0.0
            elif has[goals[i]] != _WHOLE:
                return _UNCLEAR, c, 0, 0.0  # It is wrong, but its contents must be counted for the message.
    return OK, 0, 0, 0.0


def _clear(c: int, exact: bool, at: int, bits: Any, nwords: int, ranks: _RankTable) -> None:
    """Set a rank to hold nothing, as it does when it first occurs in a chunk.

    The caller compares `last_chunk` itself, as a call would cost more.
    """
    ranks.last_chunk[at] = c
    ranks.has[at] = _NOTHING
    ranks.latest[at] = 0.0
    ranks.replaced[at] = 0.0
    if exact:
        for table in range(_TABLES):
            for w in range(nwords):
                bits[(table * len(ranks.has) + at) * nwords + w] = 0


def _add_sizes(i: int, j: int, src: Any, dst: Any, adds: Any, ncontributions: int, has: Any, size: Any) -> bool:
    """Apply a step's sends, the entries i..j-1, to `has` and `size` of the ranks' sums.

    It returns False where sizes do not determine the result; `has` and `size` are then of no use.
    """
    for k in range(i, j):
        if has[src[k]] == _GIVEN_AWAY:
            return False
        if has[src[k]] == _OWN:
            has[src[k]] = _GIVEN_AWAY
    for k in range(i, j):
        at, to = src[k], dst[k]
        if not adds[k]:
            has[to] = _WHOLE  # The source is whole, else the chunk was unclear before.
        elif has[to] == _NOTHING and has[at] == _WHOLE:
            has[to] = _WHOLE
        elif has[at] == _GIVEN_AWAY and (has[to] == _NOTHING or has[to] == _OWN):
            size[to] = size[at] + (size[to] if has[to] == _OWN else 0)
            has[to] = _WHOLE if size[to] == ncontributions else _OWN
        else:
            return False
    return True


def _add_bits(i: int, j: int, sends: _SendTable, bits: Any, nwords: int, ranks: _RankTable) -> None:
    """Apply a step's sends, the entries i..j-1, to `bits` and `ranks`.

    All arrivals at a rank are combined first, and then added to what it had.
    """
    src, dst, adds, has, changes = sends.src, sends.dst, sends.adds, ranks.has, ranks.changes
    table = len(has) * nwords
    for k in range(i, j):
        for w in range(nwords):
            at, to = src[k] * nwords + w, dst[k] * nwords + w
            bits[_COMING_TWICE * table + to] |= bits[_TWICE * table + at] | (bits[_COMING_ONCE * table + to] & bits[at])
            bits[_COMING_ONCE * table + to] |= bits[at]
    for k in range(i, j):
        if changes[dst[k]] == 0:
            continue  # An earlier send of this step has updated the rank.
        changes[dst[k]] = 0
        has[dst[k]] = _OWN
        for w in range(nwords):
            to = dst[k] * nwords + w
            once = bits[to] if adds[k] else 0
            twice = bits[_TWICE * table + to] if adds[k] else 0
            bits[_TWICE * table + to] = (
                twice | bits[_COMING_TWICE * table + to] | (once & bits[_COMING_ONCE * table + to])
            )
            bits[to] = once | bits[_COMING_ONCE * table + to]
            bits[_COMING_ONCE * table + to] = 0
            bits[_COMING_TWICE * table + to] = 0


def _once_each(at: int, nranks: int, bits: Any, nwords: int, first: int, last: int, holders: Any) -> bool:
    """Return whether a rank has each contribution of holders[first:last] exactly once; the chunk has no others."""
    for w in range(nwords):
        if bits[(_TWICE * nranks + at) * nwords + w]:
            return False
    for i in range(first, last):
        h = holders[i]
        if not bits[at * nwords + h // _WORD] >> h % _WORD & 1:
            return False
    return True
