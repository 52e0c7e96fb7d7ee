"""The engine `trees`: spanning trees packed as densely as the worst cut allows, and pipelined.

A collective whose chunks all go to all ranks (all-gather, broadcast), or come from all (reduce-scatter, reduce: the
same read backwards), is a packing of spanning trees from its roots; the best there is attains the worst cut. As many
trees a root as make all capacities whole numbers attain it; fewer trees, of larger chunks, come near it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from synth.bounds.max_flow import max_flow, residual
from synth.bounds.search import DEFAULT as BOUNDS
from synth.bounds.worst_cut import worst_cuts, written
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.engines.trees.packing import TooLate, pack
from synth.engines.trees.pipeline import Round, offsets_us, one_round, repeated
from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner, choose_runner
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.phases.reversal import backwards, reverse, reversible

TREES = "trees"
_KINDS = ("allgather", "broadcast", "reducescatter", "reduce")


@dataclass(frozen=True)
class Tuning:
    """How much is tried.

    Attributes:
        counts: trees a root beside the number that attains the optimum, if it is larger than these.
        round_sends: sends of a round, up to which more trees a root are tried.
        most_arcs: that all trees of a problem have if each root had one: packing takes some ms for each.
        most_sends: of a schedule.
        sends: of schedules that are handed out before longer ones, which take long to become programs.
        worth: of the time: what a longer one must gain. near: what more rounds of one must.
    """

    counts: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16)
    round_sends: int = 100_000
    most_arcs: int = 4_000
    most_sends: int = 400_000
    sends: tuple[int, ...] = (2_000, 10_000, 50_000)
    worth: float = 1.003
    near: float = 1.001


TUNING = Tuning()


def accepts(problem: Problem, options: Options) -> str:
    """Collectives by trees, over ranks without relays that share no links; no shape but chunks pinned."""
    kind, net = problem.collective.name, problem.network
    if options.pinned:
        return "trees pins no chunks, steps or rounds; leave --chunks, --steps and --rounds out"
    if kind not in _KINDS or problem.collective.chunks != 1:
        return f"it packs trees for {', '.join(_KINDS)}; this is {kind}"
    if problem.quotient is not None or problem.allowed is not None or problem.protocols or len(net.gap_us):
        return "it knows no quotients, no shared networks and no executor's costs"
    if len(problem.collective.post if kind in _KINDS[:2] else problem.collective.pre) > TUNING.most_arcs:
        return f"it packs at most {TUNING.most_arcs} arcs; there are more ranks and roots here"
    if problem.relays:
        return "trees through relays (Steiner trees) are not packed"
    if len(net.uses_idx) != net.nlinks or len(np.unique(net.uses_idx)) != net.nlinks:
        return "it packs trees over links that share nothing; here switches or limits are shared"
    return ""


def solve(problem: Problem, request: Request, tuning: Tuning = TUNING) -> Iterator[Outcome]:
    """As many trees as attain the optimum first, then fewer, as long as they are of use for some size."""
    reduces = reversible(problem.collective)
    copying = reverse(problem) if reduces else problem
    graph = Graph(copying, worst_cuts(problem, BOUNDS.max_flow_work).found[-1].us_per_byte)
    for k in graph.counts(tuning):
        best_us = [request.known.best_us(size) for size in request.sizes]
        met = [best <= request.bound.at(size)[0] * 1.0005 for best, size in zip(best_us, request.sizes, strict=True)]
        if all(met) or now() >= request.deadline:
            return
        us_per_byte = graph.least_time(k)
        if all(best <= float(us_per_byte) * size for best, size in zip(best_us, request.sizes, strict=True)):
            continue
        try:
            one, uses = graph.packed(k, us_per_byte, request.deadline)
        except TooLate:
            return
        for size in request.sizes:
            most = request.most_sends or tuning.most_sends
            for plan in _plans(copying, (one, uses), k, size, most, tuning):
                if plan.took_us >= request.known.best_us(size):
                    continue
                cut = problem.with_chunks(k * plan.rounds)
                found = repeated(one, plan.offset_us, plan.period_us, plan.rounds, graph.chunks(k, plan.rounds))
                yield Candidate(cut, backwards(cut, found) if reduces else found, TREES, size)
        yield Progress(f"trees: {k} a root, {float(us_per_byte / graph.least):.4f} × the optimum")


@dataclass(frozen=True, eq=False)
class _Plan:
    """How a round is repeated: the time of the whole as planned, in µs."""

    took_us: float
    rounds: int
    period_us: float
    offset_us: Floats


def _plans(
    problem: Problem, packed: tuple[Round, Ints], k: int, size: int, most_sends: int, tuning: Tuning
) -> Iterator[_Plan]:
    """Numbers of rounds: the fastest of few sends, and of more where these gain."""
    one, uses = packed
    net, best, shown = problem.network, None, None
    share = float(problem.collective.fraction[0]) * size
    rounds, steps = 1, [*tuning.sends, most_sends]
    while rounds == 1 or rounds * len(one.link) <= most_sends:
        while steps and rounds * len(one.link) > steps[0]:
            steps.pop(0)
            if best is not None and (shown is None or best.took_us < shown.took_us / tuning.worth):
                shown = best
                yield best
        hold_us = share / (k * rounds) / net.bandwidth_gbs / 1e3
        period_us = float((uses * hold_us).max())
        lasts_us = (hold_us + net.alpha_us)[one.link]
        took_us, offset_us = np.inf, np.zeros(0)
        for urgent_first in (True, False):
            start_us = offsets_us(one, hold_us, net.alpha_us, period_us, urgent_first=urgent_first)
            end_us = (rounds - 1) * period_us + float((start_us + lasts_us).max(initial=0.0))
            if end_us < took_us:
                took_us, offset_us = end_us, start_us
        if best is not None and took_us > best.took_us * 1.1:
            break
        if best is None or took_us < best.took_us / tuning.near:
            best = _Plan(took_us, rounds, period_us, offset_us)
        rounds += max(1, rounds // 2)
    if best is not None and best is not shown:
        yield best


class Graph:
    """What trees are packed into.

    Attributes:
        roots: ranks from which chunks go to all others.
        least: the optimum: µs a byte.
    """

    def __init__(self, problem: Problem, least: Fraction) -> None:
        """Of a copying problem. least: µs a byte that the worst cut takes."""
        net, self.least = problem.network, least
        collective = problem.collective
        self.n, self.src, self.dst = problem.nranks, net.src, net.dst
        self.roots = collective.pre[np.argsort(collective.pre[:, 1]), 0].tolist()
        self.gbs = [written(value) for value in net.bandwidth_gbs.tolist()]
        self.share = written(float(collective.fraction[0]))
        self.run: Runner = choose_runner(2e-5 * net.nlinks * self.n * len(self.roots))
        ends = np.concatenate([np.full(self.n, self.n), self.src]), np.concatenate([np.arange(self.n), self.dst])
        self.flow = residual(self.run, self.n + 1, *ends)

    def chunks(self, k: int, rounds: int) -> Ints:
        """The first chunk of every tree in the order of the roots."""
        return np.arange(len(self.roots) * k) * rounds

    def counts(self, tuning: Tuning) -> list[int]:
        """Numbers of trees a root, in the order in which they are tried."""
        exact = math.lcm(*(self._trees(self.least, gbs).denominator for gbs in set(self.gbs)))
        each = (self.n - 1) * len(self.roots)
        most = max(1, tuning.round_sends // each)
        some = [k for k in tuning.counts if k <= min(most, exact)]
        return [*dict.fromkeys([min(exact, most), *some])]

    def _trees(self, us_per_byte: Fraction, gbs: Fraction) -> Fraction:
        """How many times a root's whole data a link carries in the time."""
        return us_per_byte * 1000 * gbs / self.share

    def capacity(self, k: int, us_per_byte: Fraction) -> Ints:
        """Trees that every link may be in."""
        return np.array([math.floor(self._trees(us_per_byte, gbs) * k) for gbs in self.gbs], dtype=np.int64)

    def _suffices(self, k: int, capacity: Ints) -> bool:
        """Whether k trees a root can be packed."""
        supply = np.zeros(self.n, dtype=np.int64)
        np.add.at(supply, self.roots, k)
        enough = int(supply.sum())
        for target in range(self.n):
            whole = np.concatenate([np.where(np.arange(self.n) < target, enough, supply), capacity])
            if max_flow(self.run, self.flow, whole, self.n, target, enough)[0] < enough:
                return False
        return True

    def least_time(self, k: int) -> Fraction:
        """The least µs a byte in which k trees a root can be packed."""
        low, high = self.least, self.least
        widths = sorted(set(self.gbs))
        while not self._suffices(k, self.capacity(k, high)):
            low, high = high, high * 2
        # times at which some link may be in one more tree
        steps = sorted(
            {
                time
                for gbs in widths
                for count in range(math.floor(self._trees(low, gbs) * k), math.floor(self._trees(high, gbs) * k) + 1)
                if low <= (time := count * self.share / (1000 * gbs * k)) <= high
            }
            | {high}
        )
        first, last = 0, len(steps) - 1
        while first < last:
            middle = (first + last) // 2
            if self._suffices(k, self.capacity(k, steps[middle])):
                last = middle
            else:
                first = middle + 1
        return steps[last]

    def packed(self, k: int, us_per_byte: Fraction, deadline: float) -> tuple[Round, Ints]:
        """A round of k trees a root, and how many trees every link is in.

        Raises TooLate.
        """
        capacity = self.capacity(k, us_per_byte)
        trees = pack(self.run, self.n, self.src, self.dst, capacity, dict.fromkeys(self.roots, k), deadline)
        trees.sort(key=lambda tree: self.roots.index(tree.root))
        one = one_round(trees, self.src, self.dst, None)
        return one, np.bincount(one.link, minlength=len(capacity))
