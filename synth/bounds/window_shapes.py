"""Which linear programs over slots of time are worth it: how many slots, whose flows, which parts of the network.

Small ones come first; what each proves is worked out by `synth.bounds.window_limit`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.bounds.search import Search
from synth.bounds.window_limit import Alike, alike_chunks, tells_first
from synth.model.problem import Problem, least_latency

_MORE_SLOTS = 1.5  # times as many as before: fewer are not worth a program


@dataclass(frozen=True)
class Shape:
    """What a program holds.

    Attributes:
        slots: how many there are, about. ends: the ranks from and to which flows pay; all do where it is None.
        parts: of which the first that has all of a sum counts (`part_of`).
    """

    slots: int
    ends: tuple[int, ...] | None = None
    parts: tuple[tuple[int, ...], ...] = ()


def find_shapes(search: Search) -> list[Shape]:
    """As many slots as wanted, few first, or as there may be variables for; none where these allow fewer.

    Of sums that many want, by the first part that has all of them before any flows: it is a far smaller program. Where
    there are many flows, those from and to one rank first: they prove nearly as much, in a part of the time.
    """
    problem, tuning = search.problem, search.tuning
    net, alike = problem.network, alike_chunks(problem)
    centre = (_farthest(problem, search.size_bytes),)
    everything, near = (sum(len(flows_at(one, ends)) for one in alike) for ends in (None, centre))
    kinds: list[tuple[int, tuple[int, ...] | None]] = [(everything, None)]
    if 2 * near < everything:
        kinds.insert(0, (near, centre))
    kept: list[tuple[tuple[int, ...], ...]] = []
    wholes = sum(meets(one) for one in alike) if tells_first(net) else 0
    if wholes:
        kinds.insert(0, (0, ()))
        kept = list(dict.fromkeys((*_steepest_parts(search), ())))
    found: list[Shape] = []
    for count, ends in kinds:
        most = tuning.window_variables // max(1, (count + max(1, wholes)) * (len(net.pairs.src) + net.nranks))
        slots = [number for number in tuning.window_slots if number <= most]
        if slots and len(slots) < len(tuning.window_slots) and most >= _MORE_SLOTS * slots[-1]:
            slots.append(most)
        if kept:
            found += [Shape(number, ends, parts) for number in slots for parts in (kept if not count else kept[:1])]
        else:
            found += [Shape(number, ends) for number in slots]
    return sorted(found, key=lambda shape: shape.slots)


def meets(one: Alike) -> bool:
    """Whether it counts who has all of a sum first: else flows say as much."""
    return one.reduces and len(one.goals) > 1


def _steepest_parts(search: Search) -> list[tuple[tuple[int, ...], ...]]:
    """The parts of the witness that proves most about the size, if there is any of parts."""
    proved = [one for one in search.found if one.kind == "parts"]
    return [max(proved, key=lambda one: one.at(search.size_bytes)).parts] if proved else []


def flows_at(one: Alike, ends: tuple[int, ...] | None) -> list[tuple[int, int]]:
    """Those flows from and to some ranks; all where it is None, or where there is one only."""
    flows = one.flows()
    if ends is None or (ends and len(flows) == 1):
        return flows
    return [flow for flow in flows if flow[0] in ends or flow[1] in ends]


def _farthest(problem: Problem, size_bytes: float) -> int:
    """The rank from or to which the whole message takes longest: over its links, and to the farthest other rank."""
    net, k = problem.network, problem.collective.nranks
    away_us = least_latency(net.nranks, net.src, net.dst, net.alpha_us)[:k, :k]
    out, into = (np.bincount(end, weights=net.bandwidth_gbs, minlength=net.nranks)[:k] for end in (net.src, net.dst))
    hold_us = size_bytes * 1e-3 / np.maximum(np.minimum(out, into), 1e-9)
    return int((np.maximum(away_us.max(axis=0), away_us.max(axis=1)) + hold_us).argmax())
