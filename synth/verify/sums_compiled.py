"""The replay of sums in large schedules (`synth.verify.replay_compiled` for the rest): each contribution exactly once.

Within a chunk, as long as every rank gives its partial sum away at most once and gets nothing added after, the
partial sums at the ranks that did not are disjoint, each contribution once in all, so that their sizes say all: one
of as many contributions as there are is whole, and only a whole one may be copied on or put where nothing is. A chunk
that leaves this form is counted again exactly: of every rank one bit a contributor for "at least once" and one for
"at least twice".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from synth.model.collective import Bools, Floats, Ints
from synth.model.compiled import kernel
from synth.verify.replay_compiled import ABSENT, BEFORE, CLASH, EARLY, MISSING, OK, OVERTAKEN, Columns, Sends

Bits = NDArray[np.uint64]
States = NDArray[np.int8]

_UNCLEAR = -1  # a code of this file's own: sizes do not say
_NOTHING, _OWN, _GIVEN, _WHOLE = range(4)  # of a rank: it has no part, one that is its alone, …


def sums(columns: Columns, ptr: Ints, sends: Sends, tolerance: float) -> tuple[int, int, int, float, Ints]:
    """Whether every sum that is wanted has each contribution exactly once, and leaves when its parts have come.

    Returns:
        (ABSENT, CLASH, BEFORE or OVERTAKEN, row, 0, 0, …), (EARLY, row, 0, µs at which the last part came, …),
        (MISSING, chunk, rank, 0, counts of its contributions up to 2, shape (k,)), or OK.
    """
    c = columns
    collective, nranks = c.problem.collective, c.problem.network.nranks
    words = -(-collective.nranks // 64)
    none = bits = np.empty((4, 0, 0), dtype=np.uint64)
    counts = np.zeros(0, dtype=np.int64)
    first, batch, exact = 0, 1, False
    while True:
        last = min(first + batch, collective.nchunks) if exact else collective.nchunks
        code, one, two, when = _sums(
            first, last, exact, bits if exact else none, ptr, sends, c.reduces, c.sums,
            c.holders_ptr, c.holders, c.goals_ptr, c.goals, nranks, tolerance,
        )  # fmt: skip
        if code == _UNCLEAR:
            # count this chunk exactly, and then more at a time: what one does its like do too
            first, exact = int(one), True
            if not bits.size:
                # content and what arrives in a step, once and twice; only the pages that are written take memory
                bits = np.empty((4, nranks, words), dtype=np.uint64)
        elif code == OK and last < collective.nchunks:
            first, batch, exact = last, 2 * batch, False
        else:
            break
    if code == MISSING:
        seen = np.unpackbits(bits[:2, two].view(np.uint8), axis=1, bitorder="little")
        counts = seen[:, : collective.nranks].sum(axis=0, dtype=np.int64)
    return int(code), int(one), int(two), float(when), counts


@kernel
def _sums(
    first: int, last: int, exact: bool, bits: Bits, ptr: Ints, sends: Sends, reduces: Bools, sums: Bools,
    holders_ptr: Ints, holders: Ints, goals_ptr: Ints, goals: Ints, nranks: int, tolerance: float,
) -> tuple[int, int, int, float]:  # fmt: skip
    """The sums of chunks first..last-1 by sizes, until one that is unclear: (_UNCLEAR, chunk, …); `exact`: by bits."""
    has = np.zeros(nranks, dtype=np.int8)
    size = np.zeros(nranks, dtype=np.int64)  # contributions of a partial sum
    latest, replaced = np.zeros(nranks), np.zeros(nranks)  # arrivals of all kinds, of copies
    # the last step in which the rank got something, by its first send, and how many times in this step
    group, changes = np.full(nranks, -1, dtype=np.int64), np.zeros(nranks, dtype=np.int64)
    seen = np.full(nranks, -1, dtype=np.int64)
    for c in range(first, last):
        if not sums[c]:
            continue
        for i in range(goals_ptr[c], goals_ptr[c + 1]):
            if seen[goals[i]] != c:
                _clear(c, exact, goals[i], bits, has, latest, replaced, seen)
        whole = holders_ptr[c + 1] - holders_ptr[c]
        for i in range(holders_ptr[c], holders_ptr[c + 1]):
            at = holders[i]
            if seen[at] != c:
                _clear(c, exact, at, bits, has, latest, replaced, seen)
            has[at] = _WHOLE if whole == 1 else _OWN
            size[at] = 1
            if exact:
                bits[0, at, at >> 6] = np.uint64(1) << np.uint64(at & 63)
        i = ptr[c]
        while i < ptr[c + 1]:
            # what arrives in a step can be sent on in a later one only
            j = i
            while j < ptr[c + 1] and sends[j].step == sends[i].step:
                row, at, to = sends[j].row, int(sends[j].src), int(sends[j].dst)
                if seen[at] != c:
                    _clear(c, exact, at, bits, has, latest, replaced, seen)
                if seen[to] != c:
                    _clear(c, exact, to, bits, has, latest, replaced, seen)
                if has[at] == _NOTHING:
                    return ABSENT, row, 0, 0.0
                if sends[j].start < latest[at] - tolerance:
                    return EARLY, row, 0, latest[at]
                if not exact and not reduces[row] and has[at] != _WHOLE:
                    return _UNCLEAR, c, 0, 0.0
                if group[to] != i:
                    group[to] = i
                    changes[to] = 0
                changes[to] += 1
                j += 1
            for k in range(i, j):
                row, to, when = sends[k].row, sends[k].dst, sends[k].arrives
                if not reduces[row] and changes[to] > 1:
                    return CLASH, row, 0, 0.0
                if not reduces[row] and when < latest[to] - tolerance:
                    return BEFORE, row, 0, 0.0
                if reduces[row] and when < replaced[to] - tolerance:
                    return OVERTAKEN, row, 0, 0.0
            if exact:
                _add_bits(i, j, sends, reduces, bits, has, changes)
            elif not _add_sizes(i, j, sends, whole, reduces, has, size):
                return _UNCLEAR, c, 0, 0.0
            for k in range(i, j):
                to, when = sends[k].dst, sends[k].arrives
                latest[to] = max(latest[to], when)
                if not reduces[sends[k].row]:
                    replaced[to] = max(replaced[to], when)
            i = j
        for i in range(goals_ptr[c], goals_ptr[c + 1]):
            if exact:
                if not _once_each(goals[i], bits, holders_ptr[c], holders_ptr[c + 1], holders):
                    return MISSING, c, goals[i], 0.0
            elif has[goals[i]] != _WHOLE:
                return _UNCLEAR, c, 0, 0.0  # wrong, but what it holds must be counted to be said
    return OK, 0, 0, 0.0


@kernel
def _clear(
    c: int, exact: bool, at: int, bits: Bits, has: States, latest: Floats, replaced: Floats, seen: Ints
) -> None:
    """The first time that a rank is met in a chunk, it has nothing. (Who calls asks `seen`: a call costs more.)"""
    seen[at] = c
    has[at] = _NOTHING
    latest[at] = 0.0
    replaced[at] = 0.0
    if exact:
        for k in range(4):
            for w in range(bits.shape[2]):
                bits[k, at, w] = 0


@kernel
def _add_sizes(i: int, j: int, sends: Sends, whole: int, reduces: Bools, has: States, size: Ints) -> bool:
    """Does a step's sends to what the ranks have; False where sizes do not say what comes out."""
    for k in range(i, j):
        send = sends[k]
        if has[send.src] == _GIVEN:
            return False
        if has[send.src] == _OWN:
            has[send.src] = _GIVEN
    for k in range(i, j):
        send = sends[k]
        at, to = send.src, send.dst
        if not reduces[send.row]:
            has[to] = _WHOLE  # as the source is, else this was unclear before
        elif has[to] == _NOTHING and has[at] == _WHOLE:
            has[to] = _WHOLE
        elif has[at] == _GIVEN and (has[to] == _NOTHING or has[to] == _OWN):
            size[to] = size[at] + (size[to] if has[to] == _OWN else 0)
            has[to] = _WHOLE if size[to] == whole else _OWN
        else:
            return False
    return True


@kernel
def _add_bits(i: int, j: int, sends: Sends, reduces: Bools, bits: Bits, has: States, changes: Ints) -> None:
    """The same by bits: first what comes to every rank together, then to what it had."""
    words = bits.shape[2]
    for k in range(i, j):
        send = sends[k]
        at, to = send.src, send.dst
        for w in range(words):
            bits[3, to, w] |= bits[1, at, w] | (bits[2, to, w] & bits[0, at, w])
            bits[2, to, w] |= bits[0, at, w]
    for k in range(i, j):
        send = sends[k]
        to = send.dst
        if changes[to] == 0:
            continue  # done with an earlier send
        changes[to] = 0
        has[to] = _OWN
        for w in range(words):
            once = bits[0, to, w] if reduces[send.row] else np.uint64(0)
            twice = bits[1, to, w] if reduces[send.row] else np.uint64(0)
            bits[1, to, w] = twice | bits[3, to, w] | (once & bits[2, to, w])
            bits[0, to, w] = once | bits[2, to, w]
            bits[2, to, w] = 0
            bits[3, to, w] = 0


@kernel
def _once_each(at: int, bits: Bits, first: int, last: int, holders: Ints) -> bool:
    """Whether a rank has the contributions of holders[first:last], the only ones that there are, each once."""
    for w in range(bits.shape[2]):
        if bits[1, at, w]:
            return False
    for i in range(first, last):
        h = holders[i]
        if not (bits[0, at, h >> 6] >> np.uint64(h & 63)) & np.uint64(1):
            return False
    return True
