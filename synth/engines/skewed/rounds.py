"""The rounds in which ports send to each other, without idle time at the port that has most to send or to receive.

A loop in the form that `synth.model.compiled` takes: plain Python over flat sequences.
"""

from __future__ import annotations

from typing import Any

from synth.engines.skewed.columns import FULL


def largest_line(cell: Any, base: int, n: int) -> int:
    """Return the largest sum of a row or a column of the n × n matrix that begins at cell[base]."""
    most = 0
    for p in range(n):
        row, column = 0, 0
        for q in range(n):
            row += cell[base + p * n + q]
            column += cell[base + q * n + p]
        most = max(most, row, column)
    return most


def add_rounds(  # A loop that Numba compiles takes columns, however many.
    cell: Any, base: int, n: int, flow: int, count: int, seg_flow: Any, seg_begin: Any, seg_end: Any, padded: Any,
    real: Any, match: Any, owner: Any, since: Any, queue: Any, came: Any,
) -> int:  # fmt: skip
    """Decompose an n × n matrix of ticks into segments: when each port sends to which other port.

    At any time each row sends to one column at most, and each column receives from one row at most. All ends with the
    largest sum of a row or a column. The matrix is padded to equal sums of all lines, and decomposed into permutations
    (Birkhoff; for schedules Gonzalez and Sahni, "Open shop scheduling to minimize finish time", JACM 1976). One
    permutation follows from the one before by augmenting paths, shortest first, so that few rows change their column.

    Args:
        cell: Ticks of each cell; the matrix begins at cell[base].
        base: First cell.
        n: Number of ports.
        flow: Number of the flow of the first cell; the flows of the cells are numbered in their order.
        count: Number of segments so far.
        seg_flow: Flow of each segment, to be appended to.
        seg_begin: Tick at which each segment begins.
        seg_end: Tick at which each segment ends.
        padded: Workspace of n · n numbers.
        real: Workspace of n · n numbers.
        match: Workspace of n numbers, as the following ones; the column to which each row sends now, or -1.
        owner: Workspace; the row that sends to each column now, or -1.
        since: Workspace; the tick from which each row sends to its present column.
        queue: Workspace.
        came: Workspace.

    Returns:
        The number of segments after it, or FULL.
    """
    most = largest_line(cell, base, n)
    if most == 0:
        return count
    room = len(seg_flow)
    for p in range(n):
        row, column = 0, 0
        for q in range(n):
            ticks = cell[base + p * n + q]
            real[p * n + q] = ticks
            padded[p * n + q] = ticks
            row += ticks
            column += cell[base + q * n + p]
        # Here `since` and `came` hold what each row and column lacks; below, a time and the row that reached a column.
        since[p], came[p] = most - row, most - column
        match[p] = owner[p] = -1
    # Ticks in which nothing is sent fill every row and column up to the largest sum.
    p = q = 0
    while p < n and q < n:
        ticks = min(since[p], came[q])
        padded[p * n + q] += ticks
        since[p] -= ticks
        came[q] -= ticks
        if since[p] == 0:
            p += 1
        else:
            q += 1
    now = 0
    while True:
        for first in range(n):
            if match[first] >= 0:
                continue
            # A search in breadth from the free row; came[q] is the row from which column q was reached.
            for q in range(n):
                came[q] = -1
            queue[0] = first
            head, tail, free = 0, 1, -1
            while free < 0:
                p = queue[head]
                head += 1
                for q in range(n):
                    if came[q] < 0 and padded[p * n + q] > 0:
                        came[q] = p
                        if owner[q] < 0:
                            free = q
                            break
                        queue[tail] = owner[q]
                        tail += 1
            while free >= 0:
                p = came[free]
                before = match[p]
                if before >= 0:
                    ticks = now - since[p]
                    if ticks > 0:
                        padded[p * n + before] -= ticks
                        ticks = min(ticks, real[p * n + before])
                        if ticks > 0:
                            if count == room:
                                return FULL
                            seg_flow[count] = flow + p * n + before
                            seg_begin[count], seg_end[count] = since[p], since[p] + ticks
                            count += 1
                            real[p * n + before] -= ticks
                match[p], owner[free], since[p] = free, p, now
                free = before
        if now == most:
            return count
        after = most
        for p in range(n):
            after = min(after, since[p] + padded[p * n + match[p]])
        now = after
        for p in range(n):
            q = match[p]
            if since[p] + padded[p * n + q] == now:
                ticks = real[p * n + q]
                if ticks > 0:
                    if count == room:
                        return FULL
                    seg_flow[count] = flow + p * n + q
                    seg_begin[count], seg_end[count] = since[p], since[p] + ticks
                    count += 1
                padded[p * n + q] = real[p * n + q] = 0
                match[p] = owner[q] = -1
        if now == most:
            return count
