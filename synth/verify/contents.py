"""What every rank holds in the course of a schedule, chunk by chunk and step by step: plain values and sums.

Within a chunk, as long as every rank gives its partial sum away at most once and gets nothing added after, the
partial sums at the ranks that did not are disjoint, each contribution once in all, so that their sizes say all: one
of as many contributions as there are is whole, and only a whole one may be copied on or put where nothing is. A chunk
that leaves this form is counted again exactly: of every rank one bit a contributor for "at least once" and one for
"at least twice".

Loops return the first fault as (code, row or chunk, rank, µs); what they share with the rest of the replay is the
number of the fault.
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

_UNCLEAR = -1  # sizes do not say
_NOTHING, _OWN, _GIVEN, _WHOLE = range(4)  # of a rank: it has no part, one that no other rank has, …
_WORD = 62  # contributors a word of 64 bits, of which none is a sign
# bits of every rank: what it holds at least once and at least twice, and the same of what comes to it in a step
_ONCE, _TWICE, _COMING_ONCE, _COMING_TWICE, _TABLES = range(5)


class Fault(NamedTuple):
    """The first fault of a schedule, none where `code` is OK.

    (ABSENT, CLASH, BEFORE or OVERTAKEN, pair, 0, 0), (EARLY, pair, 0, µs at which the last part came), or
    (MISSING, chunk, rank, 0, how often each position's contribution is there, up to 2).
    """

    code: int
    which: int = 0
    rank: int = 0
    value: float = 0.0
    counts: Ints = np.zeros(0, dtype=np.int64)


class _Sends(NamedTuple):
    """Sends by chunk, step and row: chunk c's are ptr[c]..ptr[c+1]-1."""

    ptr: Any
    row: Any
    src: Any
    dst: Any
    step: Any
    start: Any
    arrives: Any
    adds: Any


class _Chunks(NamedTuple):
    """Which chunks are sums, and as CSR who holds and who wants each."""

    sums: Any
    holders_ptr: Any
    holders: Any
    goals_ptr: Any
    goals: Any


class _Ranks(NamedTuple):
    """What every rank has of the chunk that is looked at."""

    seen: Any  # the last chunk that it was met in; of this chunk:
    has: Any
    size: Any  # contributions of its partial sum
    latest: Any  # when the last of all arrivals came,
    replaced: Any  # and of copies
    group: Any  # the last step in which it got something, by the step's first send,
    changes: Any  # and how many times in this step


class Contents:
    """The sends of a timed schedule by chunk, step and row, and what its chunks are; time O(sends · log sends)."""

    def __init__(self, problem: Problem, schedule: Schedule, run: Runner, tolerance: float) -> None:
        net, collective = problem.network, problem.collective
        self.run, self.nranks, self.positions, self.tolerance = run, net.nranks, collective.nranks, tolerance
        self.nchunks = collective.nchunks
        # (row of the schedule, source, destination): several of a row over a hyperlink, all at the same moment
        self.pairs = row, src, dst = pairs_of_rows(net, schedule.link)
        arrives = schedule.end_us + net.carriers.alpha_us[schedule.link]
        chunk, step, start, reduces = schedule.chunk, schedule.step, schedule.start_us, schedule.reduces
        if len(row) > len(schedule):
            chunk, step, reduces = chunk[row], step[row], reduces[row]
            start, arrives = start[row], arrives[row]
        order = sorted_rows(step)
        order = order[sorted_rows(chunk[order])]
        if step.max(initial=0) > np.iinfo(np.int32).max:
            step = np.unique(step, return_inverse=True)[1]  # only their order counts
        narrow = (column.astype(np.int32) for column in (order, src[order], dst[order], step[order]))
        self._sends = _Sends(
            *run.columns(
                pointers(np.bincount(chunk, minlength=collective.nchunks)), *narrow, start[order],
                arrives[order], reduces[order],
            )
        )  # fmt: skip
        self._chunks = _Chunks(*run.columns(collective.reduces, *collective.holders, *collective.goals))

    def check_plain_values(self) -> Fault:
        """Whether every plain value is where it leaves from when it does, and in the end where it is wanted."""
        return Fault(*self.run(_plain_values, self._sends, self._chunks, self.nranks, self.tolerance))

    def check_sums(self) -> Fault:
        """Whether every wanted sum has each contribution exactly once, and leaves when its parts have come."""
        words = -(-self.positions // _WORD)
        none = bits = np.empty(0, dtype=np.int64)
        first, batch, exact = 0, 1, False
        while True:
            last = min(first + batch, self.nchunks) if exact else self.nchunks
            zeros, some = np.zeros(self.nranks, dtype=np.int64), np.zeros(self.nranks)
            ranks = _Ranks(
                *self.run.columns(zeros - 1, zeros, zeros.copy(), some, some.copy(), zeros - 1, zeros.copy())
            )
            fault = Fault(
                *self.run(
                    _sums, first, last, exact, bits if exact else none, words, self._sends, self._chunks, ranks,
                    self.tolerance,
                )
            )  # fmt: skip
            if fault.code == _UNCLEAR:
                # count this chunk exactly, and then more at a time: what one does its like do too
                first, exact = fault.which, True
                if not len(bits):
                    # of the array only the pages that are written take memory
                    (bits,) = self.run.columns(np.empty(_TABLES * self.nranks * words, dtype=np.int64))
            elif fault.code == OK and last < self.nchunks:
                first, batch, exact = last, 2 * batch, False
            elif fault.code == MISSING:
                table = np.array(bits).reshape(_TABLES, self.nranks, words)[: _TWICE + 1, fault.rank]
                seen = table[:, :, None] >> np.arange(_WORD) & 1
                return fault._replace(counts=seen.sum(axis=0).ravel()[: self.positions])
            else:
                return fault


def _plain_values(sends: _Sends, chunks: _Chunks, nranks: int, tolerance: float) -> tuple[int, int, int, float]:
    """The first fault of chunks that are plain values, of which any copy will do."""
    ptr, row, src, dst, step, start, arrives, _ = sends
    sums, holders_ptr, holders, goals_ptr, goals = chunks
    has = [-1] * nranks  # the last chunk that the rank had,
    since = [0.0] * nranks  # and from when
    for c in range(len(sums)):
        if sums[c]:
            continue
        for i in range(holders_ptr[c], holders_ptr[c + 1]):
            has[holders[i]] = c
            since[holders[i]] = 0.0
        i = ptr[c]
        while i < ptr[c + 1]:
            # what arrives in a step can be sent on in a later one only
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


def _sums(  # over 60 lines: a chunk's replay in one piece, which reads as the list of what it checks
    first: int, last: int, exact: bool, bits: Any, words: int, sends: _Sends, chunks: _Chunks, ranks: _Ranks,
    tolerance: float,
) -> tuple[int, int, int, float]:  # fmt: skip
    """The sums of chunks first..last-1 by sizes, until one that is unclear: (_UNCLEAR, chunk, …); `exact`: by bits."""
    ptr, row, src, dst, step, start, arrives, adds = sends
    sums, holders_ptr, holders, goals_ptr, goals = chunks
    seen, has, size, latest, replaced, group, changes = ranks
    nranks = len(seen)
    for c in range(first, last):
        if not sums[c]:
            continue
        for i in range(goals_ptr[c], goals_ptr[c + 1]):
            if seen[goals[i]] != c:
                _clear(c, exact, goals[i], nranks, bits, words, has, latest, replaced, seen)
        whole = holders_ptr[c + 1] - holders_ptr[c]
        for i in range(holders_ptr[c], holders_ptr[c + 1]):
            at = holders[i]
            if seen[at] != c:
                _clear(c, exact, at, nranks, bits, words, has, latest, replaced, seen)
            has[at] = _WHOLE if whole == 1 else _OWN
            size[at] = 1
            if exact:
                bits[at * words + at // _WORD] = 1 << at % _WORD
        i = ptr[c]
        while i < ptr[c + 1]:
            # what arrives in a step can be sent on in a later one only
            j = i
            while j < ptr[c + 1] and step[j] == step[i]:
                at, to = src[j], dst[j]
                if seen[at] != c:
                    _clear(c, exact, at, nranks, bits, words, has, latest, replaced, seen)
                if seen[to] != c:
                    _clear(c, exact, to, nranks, bits, words, has, latest, replaced, seen)
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
                _add_bits(i, j, src, dst, adds, nranks, bits, words, has, changes)
            elif not _add_sizes(i, j, src, dst, adds, whole, has, size):
                return _UNCLEAR, c, 0, 0.0
            for k in range(i, j):
                to = dst[k]
                latest[to] = max(latest[to], arrives[k])
                if not adds[k]:
                    replaced[to] = max(replaced[to], arrives[k])
            i = j
        for i in range(goals_ptr[c], goals_ptr[c + 1]):
            if exact:
                if not _once_each(goals[i], nranks, bits, words, holders_ptr[c], holders_ptr[c + 1], holders):
                    return MISSING, c, int(goals[i]), 0.0
            elif has[goals[i]] != _WHOLE:
                return _UNCLEAR, c, 0, 0.0  # wrong, but what it holds must be counted for the message
    return OK, 0, 0, 0.0


def _clear(
    c: int, exact: bool, at: int, nranks: int, bits: Any, words: int, has: Any, latest: Any, replaced: Any, seen: Any
) -> None:
    """The first time that a rank is met in a chunk, it has nothing. (Who calls asks `seen`: a call costs more.)"""
    seen[at] = c
    has[at] = _NOTHING
    latest[at] = 0.0
    replaced[at] = 0.0
    if exact:
        for table in range(_TABLES):
            for w in range(words):
                bits[(table * nranks + at) * words + w] = 0


def _add_sizes(i: int, j: int, src: Any, dst: Any, adds: Any, whole: int, has: Any, size: Any) -> bool:
    """Does a step's sends to what the ranks have; False where sizes do not say what comes out."""
    for k in range(i, j):
        if has[src[k]] == _GIVEN:
            return False
        if has[src[k]] == _OWN:
            has[src[k]] = _GIVEN
    for k in range(i, j):
        at, to = src[k], dst[k]
        if not adds[k]:
            has[to] = _WHOLE  # as the source is, else this was unclear before
        elif has[to] == _NOTHING and has[at] == _WHOLE:
            has[to] = _WHOLE
        elif has[at] == _GIVEN and (has[to] == _NOTHING or has[to] == _OWN):
            size[to] = size[at] + (size[to] if has[to] == _OWN else 0)
            has[to] = _WHOLE if size[to] == whole else _OWN
        else:
            return False
    return True


def _add_bits(
    i: int, j: int, src: Any, dst: Any, adds: Any, nranks: int, bits: Any, words: int, has: Any, changes: Any
) -> None:
    """The same by bits: first what comes to every rank together, then to what it had."""
    table = nranks * words
    for k in range(i, j):
        for w in range(words):
            at, to = src[k] * words + w, dst[k] * words + w
            bits[_COMING_TWICE * table + to] |= bits[_TWICE * table + at] | (bits[_COMING_ONCE * table + to] & bits[at])
            bits[_COMING_ONCE * table + to] |= bits[at]
    for k in range(i, j):
        if changes[dst[k]] == 0:
            continue  # done with an earlier send
        changes[dst[k]] = 0
        has[dst[k]] = _OWN
        for w in range(words):
            to = dst[k] * words + w
            once = bits[to] if adds[k] else 0
            twice = bits[_TWICE * table + to] if adds[k] else 0
            bits[_TWICE * table + to] = (
                twice | bits[_COMING_TWICE * table + to] | (once & bits[_COMING_ONCE * table + to])
            )
            bits[to] = once | bits[_COMING_ONCE * table + to]
            bits[_COMING_ONCE * table + to] = 0
            bits[_COMING_TWICE * table + to] = 0


def _once_each(at: int, nranks: int, bits: Any, words: int, first: int, last: int, holders: Any) -> bool:
    """Whether a rank has the contributions of holders[first:last], the only ones that there are, each once."""
    for w in range(words):
        if bits[(_TWICE * nranks + at) * words + w]:
            return False
    for i in range(first, last):
        h = holders[i]
        if not bits[at * words + h // _WORD] >> h % _WORD & 1:
            return False
    return True
