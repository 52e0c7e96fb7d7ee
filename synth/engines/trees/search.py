"""The engine `trees`: spanning trees packed as densely as the worst cut allows, and pipelined.

A collective whose chunks all go to all ranks (all-gather, broadcast), or come from all (reduce-scatter, reduce: the
reverse), is a packing of spanning trees from its roots; the best packing attains the worst cut. As many trees a root as
make all capacities whole numbers attain it; fewer trees, of larger chunks, come near it. An all-reduce goes up each of
its trees and down again, where links run both ways.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Protocol

import numpy as np

from synth.bounds.cuts.worst_cut import worst_cuts
from synth.bounds.search import DEFAULT as BOUNDS
from synth.engines.flow.tree_sends import Sends
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.engines.trees.combs import Combs, is_mesh
from synth.engines.trees.mirrored import MirroredTrees
from synth.engines.trees.packing import TooLate
from synth.engines.trees.pipeline import listed
from synth.engines.trees.rooted import RootedTrees, unshared
from synth.engines.trees.tuning import TUNING, TreesTuning
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.phases.reversal import backwards, mirror_links, reverse, reversible
from topologies.arrays import strongly_connected

TREES = "trees"
_MET = 1.0005  # time / bound up to which a schedule is not improved
_KINDS = ("allgather", "broadcast", "reducescatter", "reduce", "allreduce")


def accepts(problem: Problem, options: Options) -> str:
    """Return why the engine refuses a problem, empty where it accepts the problem.

    It accepts the collectives of `_KINDS` with one chunk a block, where links that share nothing connect all ranks. An
    all-reduce needs that all links share nothing and have an equal reverse. It takes no pinned shape, quotient, shared
    network, choice of protocols or relays, and not too many arcs.
    """
    kind, net = problem.collective.name, problem.network
    if options.pinned:
        return "trees pins no chunks, steps or rounds; leave --chunks, --steps and --rounds out"
    if kind not in _KINDS or problem.collective.chunks != 1:
        return f"trees packs trees for {', '.join(_KINDS)}; this is {kind}"
    if problem.quotient is not None or problem.allowed_holders is not None or problem.protocols:
        return "trees takes no quotients, no shared networks and one protocol of an executor's costs at a time"
    if max(len(problem.collective.post), len(problem.collective.pre)) > TUNING.most_arcs:
        return f"trees packs at most {TUNING.most_arcs} arcs; this problem has more (ranks × roots)"
    if problem.relays:
        return "trees takes no relays; the engine steiner packs trees through relays"
    links = unshared(problem)
    if not strongly_connected(net.nranks, net.src[links], net.dst[links]):
        return "trees needs links that share no switch port and no limit; here such links do not connect all ranks"
    if kind == "allreduce" and len(links) < net.nlinks:
        return "trees all-reduces only over links that share nothing; here links share switches or limits"
    if kind == "allreduce" and mirror_links(net) is None:
        return "trees all-reduces only where each link has a reverse of the same bandwidth and latency"
    return ""


class SpanningTrees(Protocol):
    """Trees that can be packed.

    Attributes:
        least: The proved least time in µs a byte.
    """

    least: Fraction

    def counts(self, tuning: TreesTuning) -> list[int]:
        """Return numbers of trees a root, in the order in which they are tried."""

    def least_time(self, k: int) -> Fraction | None:
        """Return the least time in µs a byte in which k trees a root can be packed; None if it is not found."""

    def packed(self, k: int, us_per_byte: Fraction, deadline: float) -> Sends:
        """Return a round of k trees a root.

        Raises:
            TooLate: If the packing is not done by the deadline.
        """


def solve(problem: Problem, request: Request, tuning: TreesTuning = TUNING) -> Iterator[Outcome]:
    """Yield schedules and progress for the number of trees that attains the optimum first, then for fewer trees.

    A number of trees is tried as long as it can help for some size. A mesh's all-reduce tries trees by formula first,
    and others only where these do not attain the bound.
    """
    if problem.collective.name == "allreduce":
        if is_mesh(problem):
            yield from _solve(problem, combs := Combs(problem, request.bound.per_byte_us), request, tuning)
            if combs.nearest <= _MET * combs.least:
                return
        yield from _solve(problem, MirroredTrees(problem, request.bound.per_byte_us, tuning), request, tuning)
    else:
        copying = reverse(problem) if reversible(problem.collective) else problem
        least = worst_cuts(problem, BOUNDS.max_flow_work).cuts[-1].us_per_byte
        # These are the links that `accepts` tested. In the reversed network `unshared` might return links that do not
        # connect all ranks.
        yield from _solve(problem, RootedTrees(copying, least, unshared(problem)), request, tuning)


def _solve(problem: Problem, trees: SpanningTrees, request: Request, tuning: TreesTuning) -> Iterator[Outcome]:
    """Yield the pipelined schedules of one kind of trees, for each number of trees and rounds, and progress.

    It ends when all sizes are near their bounds, or the deadline has passed.
    """
    reduces = reversible(problem.collective)
    copying = reverse(problem) if reduces else problem
    counts = trees.counts(tuning)
    for k in counts:
        best_us = [request.knowledge.best_us(size) for size in request.sizes]
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
            round_of_trees = trees.packed(k, us_per_byte, request.deadline)
        except TooLate:
            return
        most = tuning.most_sends if k == max(counts) else tuning.most_sends_of_fewer
        most = min(most, request.most_sends or most)
        for size in request.sizes:
            at_least_us = max(request.bound.at(size)[0], float(us_per_byte) * size)
            if request.knowledge.best_us(size) <= at_least_us * _MET:
                continue
            for rounds, schedule in _by_rounds(copying, round_of_trees, k, size, request, at_least_us, most, tuning):
                problem_of_rounds = problem.with_chunks(k * rounds)
                yield Candidate(
                    problem_of_rounds, backwards(problem_of_rounds, schedule) if reduces else schedule, TREES, size
                )
        yield Progress(f"trees: {k} a root, {float(us_per_byte / trees.least):.4f} × the optimum")


def _by_rounds(
    problem: Problem,
    round_of_trees: Sends,
    k: int,
    size: int,
    request: Request,
    least_us: float,
    most_sends: int,
    tuning: TreesTuning,
) -> Iterator[tuple[int, Schedule]]:
    """Yield (number of rounds, schedule), fewest rounds first, while more rounds gain time.

    A schedule is yielded only if it is enough faster than those before to be worth its sends, since files can hold only
    so many.

    Args:
        problem: The copying problem, one chunk a block.
        round_of_trees: One round.
        k: Trees a root.
        size: Message size in bytes.
        request: The request.
        least_us: Least time in µs of any number of rounds.
        most_sends: Most sends of a schedule.
        tuning: Settings of the engine.
    """
    best_us = shown_us = np.inf
    rounds, last_rounds, sends_of_round, idle = 1, 0, len(round_of_trees.link), 0
    if request.options.least_bytes:
        most_rounds = float(problem.collective.fraction[0]) * size / (k * request.options.least_bytes)
        most_sends = min(most_sends, max(1, int(most_rounds)) * sends_of_round)
    while last_rounds < rounds <= most_sends // sends_of_round:
        if now() + tuning.s_a_send * rounds * sends_of_round > request.deadline:
            return
        orders = tuning.orders if rounds * sends_of_round <= tuning.sends_of_many_orders else 1
        time_us, schedule = listed(problem, round_of_trees, k, rounds, size, least_us * _MET, orders, request.deadline)
        idle = 0 if time_us * tuning.worth < best_us else idle + 1
        if time_us > best_us * 1.1 or idle > 1:  # From here on latency outweighs the gain of more rounds.
            return
        best_us = min(best_us, time_us)
        is_near = time_us <= least_us * tuning.worth
        if time_us < min(shown_us if is_near else shown_us / tuning.worth, request.knowledge.best_us(size)):
            shown_us = time_us
            yield rounds, schedule
        if is_near:
            return
        last_rounds, rounds = rounds, 2 * rounds
        # No file holds more sends: the next trial has as many as are useful, or as many as the time allows.
        if rounds * sends_of_round > tuning.most_sends_of_fewer:
            remaining_s = tuning.share_of_time * (request.deadline - now())
            enough = math.ceil(last_rounds * (time_us / least_us - 1) / (tuning.worth - 1))
            rounds = min(
                max(rounds, enough), most_sends // sends_of_round, int(remaining_s / tuning.s_a_send) // sends_of_round
            )
