"""Order instructions by time, as far as their dependencies allow it."""

from __future__ import annotations

import heapq

import numpy as np

from emit.compiler.ir import NONE, Instructions, predecessor_pairs
from synth.model.collective import Ints
from synth.model.deadline import check_deadline
from topologies.errors import InputError

_LOOK_EVERY = 1024  # instructions from one look at the clock to the next


def in_time(ir: Instructions, due: list[float], rows: list[int]) -> Instructions:
    """Return the instructions in the order in which they are due, at equal times in the order of schedule rows.

    The two ends of a connection have its messages in the order of the schedule's rows, which is the order on the links
    at any message size. If a chunk arrives at a rank twice, this can contradict the steps; then each connection keeps
    the order of the given instructions, and everything else stays in order of due time.

    Args:
        ir: Instructions, in an order that is right.
        due: Time when each instruction is due, in µs.
        rows: Row of the schedule of each instruction; −1 for one that is in no row.

    Raises:
        InputError: No order is right.
    """
    by_time = np.lexsort((rows, due))
    place = np.empty(len(by_time), dtype=np.int64)
    place[by_time] = np.arange(len(by_time))
    after, before = predecessor_pairs(ir)
    for messages in (np.argsort(rows, kind="stable"), np.arange(len(ir))):
        check_deadline()
        later, earlier = _message_pairs(ir, messages)
        later, earlier = np.concatenate([after, later]), np.concatenate([before, earlier])
        if (place[earlier] < place[later]).all():
            return ir.select(by_time.tolist())
        order = _topological(place.tolist(), later, earlier)
        if len(order) == len(ir):
            return ir.select(order)
    raise InputError("the schedule's order of sends contradicts its steps; it cannot be lowered")


def _message_pairs(ir: Instructions, messages: Ints) -> tuple[Ints, Ints]:
    """Return pairs (later, earlier) of instructions that connections order.

    The pairs are the two ends of each message, and each message of a connection with the message before it.

    Args:
        ir: Instructions.
        messages: All instructions, the receives in the order of their messages.
    """
    source, rank = np.array(ir.source, dtype=np.int64), np.array(ir.rank, dtype=np.int64)
    into = messages[source[messages] != NONE]
    sent = source[into]
    receiver = np.array(ir.out, dtype=np.int64)[sent] if ir.header.translations else rank[into]
    connection = rank[sent] * ir.header.nranks + receiver
    order = np.argsort(connection, kind="stable")
    follows = np.flatnonzero(np.diff(connection[order]) == 0)
    low, high = order[follows], order[follows + 1]
    return np.concatenate([into, into[high], sent[high]]), np.concatenate([sent, into[low], sent[low]])


def _topological(place: list[int], after: Ints, before: Ints) -> list[int]:
    """Return a topological order of instructions, the smallest `place` first where the pairs allow it.

    Instructions on a cycle, and those that must follow one, are left out.

    Args:
        place: Place of each instruction in the wanted order.
        after: Later instruction of each pair.
        before: Earlier instruction of each pair.
    """
    followers: list[list[int]] = [[] for _ in place]
    for later, earlier in zip(after.tolist(), before.tolist(), strict=True):
        followers[earlier].append(later)
    waits = np.bincount(after, minlength=len(place)).tolist()
    ready = [(place[n], n) for n, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        if len(order) % _LOOK_EVERY == 0:
            check_deadline()
        _, n = heapq.heappop(ready)
        order.append(n)
        for later in followers[n]:
            waits[later] -= 1
            if not waits[later]:
                heapq.heappush(ready, (place[later], later))
    return order
