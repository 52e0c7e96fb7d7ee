"""Answers of the flow engine for a problem of any size: which chunks, which trees, how often, until the gap closes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from synth.bounds.prove import Bound
from synth.model.allowed import Allowed
from synth.model.collective import Floats
from synth.model.problem import Problem
from synth.model.registry import find_kind
from synth.model.schedule import Schedule
from synth.search.frontier import LARGEST, SMALLEST
from synth.symmetry.quotient import quotient_problem
from topologies.topology import Topology

FLOW = "flow"
CLOSE = 1.005  # time / bound from which on nothing is gained by going on
CLOSE_MANY = 1.008  # the same where every try takes seconds
EXPANDED = 500_000  # sends up to which a quotient's schedule is expanded
MOST_SENDS = 400_000  # to which chunks are cut finer
_MANY = 150_000  # sends from which on fewer orders are tried
_VERY_MANY = 1_000_000
SEVERAL = 20_000  # sends from which on a search takes many seconds, and every try some
_FEW_SENDS = 10_000  # up to which all ways are tried
_SHORT = 0.02  # of the latency: a chunk is on a link at least so long
_LIKELY = 20  # latencies that a chunk is on a link where latency hardly counts
_LIKELY_SENDS = 50_000
_WORTH = 0.003  # a step to more chunks must gain this part, or it was the last but one

Add = Callable[[Problem, Schedule, int], float]  # (problem, schedule, message size) → µs at that size
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Trial:
    """One go of the engine."""

    size: int
    chunks: int
    passes: int
    depth: float = 0.5
    narrow: bool = True
    bias: float = 0.05


class FlowSearch:
    """Constructive search at one or a few message sizes.

    Attributes:
        loads: how long the best plan for the largest size keeps each resource busy, for a bound by prices.
    """

    def __init__(
        self,
        problem: Problem,
        bound: Bound,
        add: Add,
        *,
        size: int | None = None,
        chunks: int | None = None,
        allowed: Allowed | None = None,
        deadline: float = np.inf,
        most_sends: int = MOST_SENDS,
        say: Say = lambda _: None,
    ) -> None:
        self.problem, self.bound, self.add, self.most_sends = problem, bound, add, most_sends
        self.sizes = [size] if size is not None else [LARGEST, 1 << 20, SMALLEST]
        self.pinned, self.allowed, self.deadline, self.say = chunks, allowed, deadline, say
        self.loads: Floats | None = None
        sends = estimated_sends(problem)
        if size is None and sends > EXPANDED:
            self.sizes = self.sizes[:1]  # so large an answer is made once
        # an all-reduce is cut into a share a rank; a quotient's chunks are shares already
        shares = problem.collective.kind.in_shares and problem.quotient is None and chunks is None
        self.unit = problem.collective.nranks if shares else 1
        self.sends = sends * self.unit

    def run(self) -> None:
        """Try until the gap is closed, nothing more is gained, or the time is over."""
        for size in self.sizes:
            best = np.inf
            for trial in self._trials(size):
                if best <= self.bound.at(size)[0] * close_enough(self.sends) or (
                    np.isfinite(best) and time.monotonic() >= self.deadline
                ):
                    break
                best = min(best, self._try(trial, best))

    def _trials(self, size: int) -> Iterator[Trial]:
        """From a likely number of chunks to more, then to fewer, while that gains; then longer with the best."""
        ways = self._ways(size)
        best, at = np.inf, 1
        lists = self._counts(size)
        for counts in lists:
            idle = 0
            for chunks in counts:
                before = best
                sends = self.sends * chunks
                passes = 3 if sends > 3 * MOST_SENDS else 6 if sends > _MANY else 12
                for way in ways[: 4 if sends <= _FEW_SENDS else 2 if passes > 3 else 1]:
                    self.took = np.inf
                    yield replace(way, chunks=chunks, passes=passes)
                    if self.took > 1.3 * best and len(ways) > 2:
                        ways = [w for w in ways if w is not way]  # not the way to go here
                    if self.took < best:
                        best, at = self.took, chunks
                idle = 0 if best < before * (1 - _WORTH) else idle + 1
                if idle > 1:
                    break
        near = [2 * at, at, max(1, at // 2)] if self.pinned is None else [at] if lists else []
        for chunks in dict.fromkeys(near):
            if self.sends * chunks <= self.most_sends:
                for way in self._ways(size):
                    yield replace(way, chunks=chunks, passes=20)

    def _ways(self, size: int) -> list[Trial]:
        """How to route: what differs between goes, the most promising first."""
        collective = self.problem.collective
        one = len(collective.post) == collective.nchunks and not collective.reducing
        if one:  # trees are paths
            kinds = [(0.5, False, 0.05), (0.5, True, 0.05), (0.5, False, 0.01), (0.5, False, 0.2)]
        elif size >= 1 << 22:
            kinds = [(0.5, False, 0.05), (0.0, False, 0.05), (0.1, False, 0.01), (0.75, False, 0.1)]
        else:
            kinds = [(0.0, False, 0.05), (1.0, False, 0.05), (0.5, False, 0.05), (0.0, False, 0.2)]
        return [Trial(size, 1, 1, depth, narrow, bias) for depth, narrow, bias in kinds]

    def _counts(self, size: int) -> list[list[int]]:
        """Numbers of chunks to try, each list as long as it gains."""
        if self.pinned is not None:
            whole, rest = divmod(self.pinned, self.problem.collective.chunks)
            return [] if rest else [[whole]]
        # a chunk that is over in no time beside its latency need not be cut
        net, collective = self.problem.network, self.problem.collective
        latency_bytes = float(net.alpha_us.min()) * float(net.bandwidth_gbs.max()) * 1e3
        bytes_each = float(collective.fraction.max()) * size / self.unit
        counts = [1]
        while self.sends * counts[-1] * 4 <= self.most_sends and (
            bytes_each / (counts[-1] * 4) >= _SHORT * latency_bytes
        ):
            counts.append(counts[-1] * 4)
        likely = sum(
            bytes_each / chunks >= _LIKELY * latency_bytes and self.sends * chunks <= _LIKELY_SENDS
            for chunks in counts[1:]
        )
        return [counts[likely:], counts[:likely][::-1]]

    def _try(self, trial: Trial, best: float) -> float:
        from synth.engines.flow import schedules as flow  # brings Numba

        problem = self.problem.with_chunks(trial.chunks * self.unit)
        least = self.bound.at(trial.size)[0]
        latency = self.bound.at(0.0)[0]
        allowed = self.allowed
        if allowed is not None:  # it is stated for the chunks before they are cut
            cut = problem.collective.nchunks // len(allowed.family)
            allowed = Allowed(np.repeat(allowed.family, cut), allowed.ranks)
        many = self.sends * trial.chunks > _MANY
        answer = flow.best_of(
            problem,
            trial.size,
            allowed=allowed,
            depth=trial.depth,
            narrow=trial.narrow,
            bias=trial.bias,
            passes=trial.passes,
            orders=1 if self.sends * trial.chunks > _VERY_MANY else 6 if many else 12,
            enough_us=least * close_enough(self.sends * trial.chunks),
            likely_us=max(least - latency, 0.0),
            latency_us=latency,
            deadline=self.deadline,
        )
        self.took = answer.took_us
        if answer.took_us < best * (1 - 1e-9):
            self.took = self.add(problem, answer.schedule, trial.size)
            if trial.size == self.sizes[0]:
                self.loads = answer.load_us
        self.say(f"routing: {trial.chunks} chunks, {self.took / least:.3f} × the bound")
        return self.took


def close_enough(sends: int) -> float:
    """time / bound from which on nothing is gained by going on, for a schedule of so many sends."""
    return CLOSE if sends < SEVERAL else CLOSE_MANY


def estimated_sends(problem: Problem) -> int:
    """About how many sends a schedule with these chunks has (of a quotient problem: of what it holds)."""
    collective, net = problem.collective, problem.network
    pairs = len(collective.post)
    if collective.reducing:
        pairs += len(collective.pre)
    goals = pairs / max(1, collective.nchunks)
    if goals > 0.3 * problem.nranks:
        return pairs
    return int(pairs * mean_hops(net.nranks, net.nlinks))


def mean_hops(nranks: int, nlinks: int) -> float:
    """About how far apart two ranks are, from the number of links a rank."""
    degree = max(2.0, nlinks / max(1, nranks))
    if degree > 8:
        return max(1.0, math.log(max(2, nranks)) / math.log(degree))
    return max(1.0, math.pow(nranks, 2 / degree) * degree / 8)  # of a torus


def quotient_question(
    topology: Topology, name: str, group: Sequence[int], relays: Sequence[int], chunks: int | None
) -> Problem | None:
    """A named collective's quotient, where it is so large that its schedule is not expanded; else None."""
    k = len(group)
    if relays or not find_kind(name).translatable or k * k <= EXPANDED // 4:
        return None
    found = quotient_problem(
        topology, name, 1, None if k == topology.nranks and list(group) == list(range(k)) else group
    )
    if found is not None and chunks is not None and chunks % found.collective.chunks:
        return None  # the quotient of an allreduce has whole shares
    if found is None or found.quotient is None or estimated_sends(found) * found.quotient.order <= EXPANDED:
        return None
    return found


def quotient_of(problem: Problem) -> Problem | None:
    """The same question's quotient by the network's symmetry; None where there is none of use."""
    if problem.quotient is not None or problem.relays or not problem.collective.kind.translatable:
        return None
    found = quotient_problem(problem.topology, problem.collective.name, 1, problem.group)
    return found if found is not None and found.quotient is not None and found.quotient.order >= 4 else None
