"""Instructions in the order of time, as far as what must come before what allows it."""

from __future__ import annotations

import heapq

import numpy as np

from emit.compiler.ir import NONE, Instructions, predecessor_pairs
from synth.model.collective import Ints
from topologies.errors import InputError


def in_time(ir: Instructions, due: list[float], rows: list[int]) -> Instructions:
    """The instructions by when they are due, in µs, and of one time by their row of the schedule.

    Both ends of a connection have its messages in the order of the schedule's rows, which is that of its links at any
    message size. Where a chunk comes to a rank twice that can contradict its steps: then step by step, as they are.
    Raises InputError where no order is right.
    """
    by_time = np.lexsort((rows, due))
    place = np.empty(len(by_time), dtype=np.int64)
    place[by_time] = np.arange(len(by_time))
    after, before = predecessor_pairs(ir)
    for messages in (np.argsort(rows, kind="stable"), np.arange(len(ir))):
        later, earlier = _message_pairs(ir, messages)
        later, earlier = np.concatenate([after, later]), np.concatenate([before, earlier])
        if (place[earlier] < place[later]).all():
            return ir.select(by_time.tolist())
        order = _topological(place.tolist(), later, earlier)
        if len(order) == len(ir):
            return ir.select(order)
    raise InputError("the schedule's order of sends contradicts its steps; it cannot be lowered")


def _message_pairs(ir: Instructions, messages: Ints) -> tuple[Ints, Ints]:
    """What comes later and earlier: of a message its ends, of a connection each message and the one before it.

    messages: all instructions, receives in the order of their messages.
    """
    source, rank = np.array(ir.source, dtype=np.int64), np.array(ir.rank, dtype=np.int64)
    into = messages[source[messages] != NONE]
    sent = source[into]
    connection = rank[sent] * ir.header.nranks + rank[into]
    order = np.argsort(connection, kind="stable")
    follows = np.flatnonzero(np.diff(connection[order]) == 0)
    low, high = order[follows], order[follows + 1]
    return np.concatenate([into, into[high], sent[high]]), np.concatenate([sent, into[low], sent[low]])


def _topological(place: list[int], after: Ints, before: Ints) -> list[int]:
    """Everything behind what it must follow, else by `place`; what goes round in a circle is left out."""
    followers: list[list[int]] = [[] for _ in place]
    for later, earlier in zip(after.tolist(), before.tolist(), strict=True):
        followers[earlier].append(later)
    waits = np.bincount(after, minlength=len(place)).tolist()
    ready = [(place[n], n) for n, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, n = heapq.heappop(ready)
        order.append(n)
        for later in followers[n]:
            waits[later] -= 1
            if not waits[later]:
                heapq.heappush(ready, (place[later], later))
    return order
