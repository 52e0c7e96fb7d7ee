"""The engine `trees`: spanning trees packed as densely as the worst cut allows, and pipelined.

A collective whose chunks all go to all ranks (all-gather, broadcast), or come from all (reduce-scatter, reduce: the
same read backwards), is a packing of spanning trees from its roots; the best there is attains the worst cut. As many
trees a root as make all capacities whole numbers attain it; fewer trees, of larger chunks, come near it. An all-reduce
goes up each of its trees and down again, where links run both ways.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Protocol

import numpy as np

from synth.bounds.search import DEFAULT as BOUNDS
from synth.bounds.worst_cut import worst_cuts
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.engines.trees.combs import Combs, is_mesh
from synth.engines.trees.mirrored import MirroredTrees
from synth.engines.trees.packing import TooLate
from synth.engines.trees.pipeline import Round, listed
from synth.engines.trees.rooted import RootedTrees, unshared
from synth.engines.trees.tuning import TUNING, Tuning
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.phases.reversal import backwards, mirror_links, reverse, reversible
from topologies.arrays import strongly_connected

TREES = "trees"
_MET = 1.0005  # time / bound that is not improved
_KINDS = ("allgather", "broadcast", "reducescatter", "reduce", "allreduce")


def accepts(problem: Problem, options: Options) -> str:
    """Collectives by trees, over ranks without relays, on links that share nothing; no shape but chunks pinned."""
    kind, net = problem.collective.name, problem.network
    if options.pinned:
        return "trees pins no chunks, steps or rounds; leave --chunks, --steps and --rounds out"
    if kind not in _KINDS or problem.collective.chunks != 1:
        return f"it packs trees for {', '.join(_KINDS)}; this is {kind}"
    if problem.quotient is not None or problem.allowed is not None or problem.protocols or len(net.gap_us):
        return "it knows no quotients, no shared networks and no executor's costs"
    if max(len(problem.collective.post), len(problem.collective.pre)) > TUNING.most_arcs:
        return f"it packs at most {TUNING.most_arcs} arcs; there are more ranks and roots here"
    if problem.relays:
        return "trees through relays (Steiner trees) are not packed"
    kept = unshared(problem)
    if not strongly_connected(net.nranks, net.src[kept], net.dst[kept]):
        return "it packs trees over links that share no switch's port and no limit; here these do not join all ranks"
    if kind == "allreduce" and len(kept) < net.nlinks:
        return "its all-reduces go over links that share nothing; here switches or limits are shared"
    if kind == "allreduce" and mirror_links(net) is None:
        return "its all-reduces need links that run both ways, at the same rate and latency"
    return ""


class Trees(Protocol):
    """What can be packed.

    Attributes:
        nroots: ranks at which chunks begin. least: µs a byte that is proved to be needed.
    """

    nroots: int
    least: Fraction

    def counts(self, tuning: Tuning) -> list[int]:
        """Numbers of trees a root, in the order in which they are tried."""

    def least_time(self, k: int) -> Fraction | None:
        """The least µs a byte in which k trees a root can be packed; None where that is not found."""

    def packed(self, k: int, us_per_byte: Fraction, deadline: float) -> Round:
        """A round of k trees a root. Raises TooLate."""


def solve(problem: Problem, request: Request, tuning: Tuning = TUNING) -> Iterator[Outcome]:
    """As many trees as attain the optimum first, then fewer, as long as they are of use for some size."""
    if problem.collective.name == "allreduce":
        if is_mesh(problem):
            yield from _solve(problem, combs := Combs(problem, request.bound.per_byte_us), request, tuning)
            if combs.nearest <= _MET * combs.least:
                return
        yield from _solve(problem, MirroredTrees(problem, request.bound.per_byte_us, tuning), request, tuning)
    else:
        copying = reverse(problem) if reversible(problem.collective) else problem
        least = worst_cuts(problem, BOUNDS.max_flow_work).found[-1].us_per_byte
        # those that were looked at; of the reversed network others might be kept, which do not join all ranks
        yield from _solve(problem, RootedTrees(copying, least, unshared(problem)), request, tuning)


def _solve(problem: Problem, trees: Trees, request: Request, tuning: Tuning) -> Iterator[Outcome]:
    reduces = reversible(problem.collective)
    copying = reverse(problem) if reduces else problem
    counts = trees.counts(tuning)
    for k in counts:
        best_us = [request.known.best_us(size) for size in request.sizes]
        least_us = [request.bound.at(size)[0] for size in request.sizes]
        if all(best <= _MET * least for best, least in zip(best_us, least_us, strict=True)):
            return
        if now() >= request.deadline:
            return
        us_per_byte = trees.least_time(k)
        if us_per_byte is None:
            continue
        if all(best <= float(us_per_byte) * size for best, size in zip(best_us, request.sizes, strict=True)):
            continue
        try:
            one = trees.packed(k, us_per_byte, request.deadline)
        except TooLate:
            return
        most = tuning.most_sends if k == max(counts) else tuning.most_sends_of_fewer
        most = min(most, request.most_sends or most)
        for size in request.sizes:
            at_least_us = max(request.bound.at(size)[0], float(us_per_byte) * size)
            if request.known.best_us(size) <= at_least_us * _MET:
                continue
            for rounds, found in _repeated(copying, one, k, size, request, at_least_us, most, tuning):
                cut = problem.with_chunks(k * rounds)
                yield Candidate(cut, backwards(cut, found) if reduces else found, TREES, size)
        yield Progress(f"trees: {k} a root, {float(us_per_byte / trees.least):.4f} × the optimum")


def _repeated(
    problem: Problem, one: Round, k: int, size: int, request: Request, least_us: float, most_sends: int, tuning: Tuning
) -> Iterator[tuple[int, Schedule]]:
    """Numbers of rounds with their schedules, each worth its sends: of few sends first, which files can hold.

    problem: the copying one, one chunk a block. least_us: what any number of rounds takes.
    """
    best_us = shown_us = np.inf
    rounds, before, each, idle = 1, 0, len(one.link), 0
    if request.options.least_bytes:
        most_rounds = float(problem.collective.fraction[0]) * size / (k * request.options.least_bytes)
        most_sends = min(most_sends, max(1, int(most_rounds)) * each)
    while before < rounds <= most_sends // each:
        if now() + tuning.s_a_send * rounds * each > request.deadline:
            return
        orders = tuning.orders if rounds * each <= tuning.sends_of_many_orders else 1
        took_us, schedule = listed(problem, one, k, rounds, size, least_us * _MET, orders, request.deadline)
        idle = 0 if took_us * tuning.worth < best_us else idle + 1
        if took_us > best_us * 1.1 or idle > 1:  # latency counts more from here on, or all
            return
        best_us = min(best_us, took_us)
        is_near = took_us <= least_us * tuning.worth
        if took_us < min(shown_us if is_near else shown_us / tuning.worth, request.known.best_us(size)):
            shown_us = took_us
            yield rounds, schedule
        if is_near:
            return
        before, rounds = rounds, 2 * rounds
        if rounds * each > tuning.most_sends_of_fewer:  # no file holds more: at once as many as are of use, or in time
            left_s = tuning.share_of_time * (request.deadline - now())
            enough = math.ceil(before * (took_us / least_us - 1) / (tuning.worth - 1))
            rounds = min(max(rounds, enough), most_sends // each, int(left_s / tuning.s_a_send) // each)
