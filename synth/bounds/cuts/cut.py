"""Searches for cuts: what must leave a set of ranks over the capacity of its links; the worst cuts come by max-flow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from synth.bounds.cuts.cut_candidates import blocks, candidates
from synth.bounds.cuts.worst_cut import worst_cuts
from synth.bounds.metric import crossing_times
from synth.bounds.resource_cover import cover
from synth.bounds.search import BoundSearch, with_gbs
from synth.bounds.witness import whole_network
from synth.bounds.witnesses.cut import Cut, must_leave
from synth.model.collective import Bools, Floats, Ints
from topologies.arrays import flags_of, segment_sums

_SAME_US = 1e-8
_STEEPER = 1 + 1e-9  # a smaller ratio of two limits is rounding


def find_cuts(search: BoundSearch) -> Iterator[Cut]:
    """Yield cuts around single ranks and nodes, and around the best of many other sets by an estimate.

    Networks of few ranks also get cuts that count only late chunks, where all paths are links. Quotient problems get
    those of `blocks` only.
    """
    if search.problem.quotient is not None:
        sets = blocks(search.problem, search.tuning)
    else:
        sets = candidates(search.problem, search.traffic, search.tuning)
    for inside in sets:
        yield from _cut(search, inside)
    has_all_links = search.problem.quotient is None and search.problem.network.switch_graph is None
    if has_all_links and search.problem.nranks <= search.tuning.timed_ranks:
        yield from _late(search, sets)


def _late(search: BoundSearch, sets: list[Bools]) -> Iterator[Cut]:
    """Yield, for the cuts, claims about the chunks that reach the cut late or have far to go after it.

    They are the pairs of latency and bytes for which no other pair is higher in both, the highest latency first.

    Args:
        search: The search.
        sets: Flags of the ranks on the sending side of each cut, shape (nranks,).
    """
    net, fraction = search.problem.network, search.problem.collective.fraction
    late_cuts = []
    for inside in sets:
        counts, crossed = must_leave(search.problem.collective, inside), inside[net.pairs.src] & ~inside[net.pairs.dst]
        links = np.flatnonzero(inside[net.src] & ~inside[net.dst])
        if not (counts.any() and len(links)):
            continue
        gbs = float(net.capacity_gbs[cover(net, links)].sum())
        begins, takes = (times[counts] for times in crossing_times(search.problem, inside, crossed))
        for since, last in product(_distinct(begins), _distinct(takes)):
            late = (begins >= since - _SAME_US) & (takes >= last - _SAME_US)
            if late.any():
                times = float(begins[late].min()), float(takes[late].min())
                late_cuts.append((sum(times), float(fraction[counts][late].sum()) / gbs, times, inside))
    steepest = 0.0
    for _, per_byte, times, inside in sorted(late_cuts, key=lambda late_cut: late_cut[:2], reverse=True):
        if per_byte > steepest * _STEEPER:
            steepest = per_byte
            for claim in _cut(search, inside):
                text = f"{claim.text}, after {times[0]:.4g} µs, {times[1]:.4g} µs before the end"
                yield replace(claim, times=times, text=text)


def _distinct(us: Floats) -> list[float]:
    """Return the distinct finite times, ascending and rounded to 10⁻⁹ µs."""
    return [float(time) for time in np.unique(np.round(us[np.isfinite(us)], 9))]


def find_worst_cuts(search: BoundSearch) -> Iterator[Cut]:
    """Yield worse and worse cuts, up to the worst of all sets of ranks, by max-flow (ForestColl, section 4).

    The search ends earlier where it would take more work than the tuning allows.
    """
    for worst_cut in worst_cuts(search.problem, search.tuning.max_flow_work).cuts:
        yield from _cut(search, worst_cut.inside, worst_cut.resources)


def _cut(search: BoundSearch, inside: Bools, crossed: Ints | None = None) -> Iterator[Cut]:
    """Yield the claim of the cut around a set of ranks, if any link leaves it.

    Args:
        search: The search to which the claim belongs.
        inside: Flags of the ranks on the sending side, shape (nranks,).
        crossed: Resources that may cover all links out of the set; used if they do, and have less capacity.
    """
    net = whole_network(search.problem)
    links = np.flatnonzero(inside[net.src] & ~inside[net.dst])
    if not len(links):
        return
    resources = cover(net, links)
    if crossed is not None and segment_sums(flags_of(net.nresources, crossed)[net.uses_idx], net.uses_ptr)[links].all():
        resources = min(resources, crossed, key=lambda r: float(net.capacity_gbs[r].sum()))
    inward = 2 * int(inside.sum()) > net.nranks
    smaller = search.name_ranks(np.flatnonzero(~inside if inward else inside))
    text = f"cut {smaller}{' inward' if inward else ''}"
    yield Cut(
        ranks=tuple(np.flatnonzero(inside).tolist()),
        resources=tuple(resources.tolist()),
        text=with_gbs(text, net, resources),
    )
