"""The linear programs over slots of time to solve: how many slots, whose flows, which parts of the network.

Small programs come first. `synth.bounds.windows.limit` computes what each of them proves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.bounds.search import BoundSearch
from synth.bounds.windows.limit import ChunkClass, alike_chunks, first_whole_holds
from synth.bounds.witnesses.parts import Parts
from synth.model.problem import Problem, least_latency

_MORE_SLOTS = 1.5  # times the largest number of slots: a smaller step is not worth a program


@dataclass(frozen=True)
class WindowShape:
    """The size and the content of one linear program over slots of time.

    Attributes:
        slots: Approximate number of slots.
        ends: Ranks from and to which flows pay; None: all flows pay.
        parts: Parts of the network, of which the first to have all of a sum pays (`part_of`).
    """

    slots: int
    ends: tuple[int, ...] | None = None
    parts: tuple[tuple[int, ...], ...] = ()


def find_shapes(search: BoundSearch) -> list[WindowShape]:
    """Return the shapes to try, those with few slots first; none has more variables than the tuning allows.

    The list is empty where even the fewest slots need too many.

    For sums that many ranks want, programs of the first part that has a whole sum come before programs of flows: they
    are far smaller. Where there are many flows, those from and to one rank come first: they prove nearly as much in a
    part of the time.
    """
    problem, tuning = search.problem, search.tuning
    net, chunk_classes = problem.network, alike_chunks(problem)
    centre = (_farthest(problem, search.size_bytes),)
    all_flows, centre_flows = (
        sum(len(flows_at(chunk_class, ends)) for chunk_class in chunk_classes) for ends in (None, centre)
    )
    kinds: list[tuple[int, tuple[int, ...] | None]] = [(all_flows, None)]
    if 2 * centre_flows < all_flows:
        kinds.insert(0, (centre_flows, centre))
    partitions: list[tuple[tuple[int, ...], ...]] = [()]
    wholes = sum(needs_first_whole(chunk_class) for chunk_class in chunk_classes) if first_whole_holds(net) else 0
    if wholes:
        kinds.insert(0, (0, ()))
        partitions = list(dict.fromkeys((*_steepest_parts(search), ())))
    shapes: list[WindowShape] = []
    for count, ends in kinds:
        most = tuning.window_variables // max(1, (count + max(1, wholes)) * (len(net.pairs.src) + net.nranks))
        slots = [number for number in tuning.window_slots if number <= most]
        if slots and len(slots) < len(tuning.window_slots) and most >= _MORE_SLOTS * slots[-1]:
            slots.append(most)
        tried_partitions = partitions[:1] if count else partitions
        shapes += [WindowShape(number, ends, parts) for number in slots for parts in tried_partitions]
    return sorted(shapes, key=lambda shape: shape.slots)


def needs_first_whole(chunk_class: ChunkClass) -> bool:
    """Return True if the first rank with the whole sum matters: it is a sum that more than one rank wants.

    For others flows prove as much.
    """
    return chunk_class.reduces and len(chunk_class.goals) > 1


def _steepest_parts(search: BoundSearch) -> list[tuple[tuple[int, ...], ...]]:
    """Return the partition of the `Parts` witness that proves most at the search's size, as a list of one.

    The list is empty where there is no such witness.
    """
    proved = [witness for witness in search.witnesses if isinstance(witness, Parts)]
    return [max(proved, key=lambda witness: witness.at(search.size_bytes)).parts] if proved else []


def flows_at(chunk_class: ChunkClass, ends: tuple[int, ...] | None) -> list[tuple[int, int]]:
    """Return the flows (source, goal) from or to the ranks `ends`.

    All flows are returned where `ends` is None, or names ranks and there is only one flow; none where it is empty.
    """
    flows = chunk_class.flows()
    if ends is None or (ends and len(flows) == 1):
        return flows
    return [flow for flow in flows if flow[0] in ends or flow[1] in ends]


def _farthest(problem: Problem, size_bytes: float) -> int:
    """Return the rank from or to which the whole message takes longest: its highest latency to a rank, and its bytes.

    The bytes take the sum of the bandwidths of its links in or out, of which the lower counts. It is a member of the
    group.
    """
    net, k = problem.network, problem.collective.nranks
    away_us = least_latency(net.nranks, net.src, net.dst, net.alpha_us)[:k, :k]
    out, into = (np.bincount(end, weights=net.bandwidth_gbs, minlength=net.nranks)[:k] for end in (net.src, net.dst))
    hold_us = size_bytes * 1e-3 / np.maximum(np.minimum(out, into), 1e-9)
    return int((np.maximum(away_us.max(axis=0), away_us.max(axis=1)) + hold_us).argmax())
