"""The engine `trees`: spanning trees packed as densely as the worst cut allows, and pipelined.

A collective whose chunks all go to all ranks (all-gather, broadcast), or come from all (reduce-scatter, reduce: the
same read backwards), is a packing of spanning trees from its roots; the best there is attains the worst cut. As many
trees a root as make all capacities whole numbers attain it; fewer trees, of larger chunks, come near it. An all-reduce
goes up each of its trees and down again, where links run both ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from synth.bounds.search import DEFAULT as BOUNDS
from synth.bounds.worst_cut import worst_cuts
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.engines.trees.mirrored import MirroredTrees
from synth.engines.trees.packing import TooLate
from synth.engines.trees.pipeline import Round, offsets_us, repeated
from synth.engines.trees.rooted import RootedTrees, unshared
from synth.engines.trees.tuning import TUNING, Tuning
from synth.model.collective import Floats
from synth.model.deadline import now
from synth.model.problem import Problem
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
    reduces = reversible(problem.collective)
    copying = reverse(problem) if reduces else problem
    trees: Trees
    if problem.collective.name == "allreduce":
        trees = MirroredTrees(problem, request.bound.per_byte_us, tuning)
    else:
        trees = RootedTrees(copying, worst_cuts(problem, BOUNDS.max_flow_work).found[-1].us_per_byte)
    for k in trees.counts(tuning):
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
        for size in request.sizes:
            for plan in _plans(copying, one, k, size, request.most_sends or tuning.most_sends, tuning):
                if plan.took_us >= request.known.best_us(size):
                    continue
                if now() + tuning.s_a_send * plan.rounds * len(one.link) > request.deadline:
                    break  # it could not be replayed in time
                cut = problem.with_chunks(k * plan.rounds)
                first = np.arange(trees.nroots * k) * plan.rounds
                found = repeated(one, plan.offset_us, plan.period_us, plan.rounds, first)
                yield Candidate(cut, backwards(cut, found) if reduces else found, TREES, size)
        yield Progress(f"trees: {k} a root, {float(us_per_byte / trees.least):.4f} × the optimum")


@dataclass(frozen=True, eq=False)
class _Plan:
    """How a round is repeated: the time of the whole as planned, in µs."""

    took_us: float
    rounds: int
    period_us: float
    offset_us: Floats


def _plans(problem: Problem, one: Round, k: int, size: int, most_sends: int, tuning: Tuning) -> Iterator[_Plan]:
    """Numbers of rounds: the fastest of few sends, and of more where these gain."""
    shown: _Plan | None = None
    best = _plan(problem, one, k, size, 1)
    rounds = 1
    for most in (*(few for few in tuning.sends if few < most_sends), most_sends):
        while rounds * 2 * len(one.link) <= most:
            plan = _plan(problem, one, k, size, rounds * 2)
            if plan.took_us > best.took_us * 1.1:  # latency counts more from here on
                most_sends = 0
                break
            rounds *= 2
            if plan.took_us < best.took_us / tuning.near:
                best = plan
        if shown is None or best.took_us < shown.took_us / tuning.worth:
            shown = best
            yield best
        if not most_sends:
            return


def _plan(problem: Problem, one: Round, k: int, size: int, rounds: int) -> _Plan:
    """The better of two orders."""
    net = problem.network
    hold_us = float(problem.collective.fraction[0]) * size / (k * rounds) / net.bandwidth_gbs / 1e3
    period_us = float((np.bincount(one.link, minlength=net.nlinks) * hold_us).max())
    lasts_us = (hold_us + net.alpha_us)[one.link]
    plans = []
    for urgent_first in (True, False):
        start_us = offsets_us(one, hold_us, net.alpha_us, period_us, urgent_first=urgent_first)
        took_us = (rounds - 1) * period_us + float((start_us + lasts_us).max(initial=0.0))
        plans.append(_Plan(took_us, rounds, period_us, start_us))
    return min(plans, key=lambda plan: plan.took_us)
