"""Routing first, then scheduling, for problems of any size: the engine for thousands of devices.

Every chunk gets a path, a tree to its goals, or a tree from its contributors and one to its goals (`routes`); the order
of the sends comes afterwards (`list_scheduling`) and costs little. A sum is a tree read backwards, so a chunk may be
spread while others are still being added up. What nearly everybody wants is also matched in time
(`time_expanded_matching`), and the better of the two is taken.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from synth.engines.flow.csr_network import csr_network, reverse_network
from synth.engines.flow.list_scheduling import list_schedule, urgencies
from synth.engines.flow.routes import Router, Routing
from synth.engines.flow.time_expanded_matching import match_in_time
from synth.engines.flow.trees import find_parents
from synth.engines.flow.tuning import TUNING, Tuning
from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner, choose_runner
from synth.model.problem import Problem
from synth.model.schedule import Schedule, untimed
from synth.phases.reversal import reversible
from synth.timing.simulate import predict_us, resource_loads_us
from topologies.arrays import pointers, positions, ranges, row_of_entry


class Sends:
    """A routing's sends, and what waits for what; `ordered` finds good orders for them.

    Rows stand path by path, so that what follows each other lies together.
    """

    def __init__(self, router: Router, routing: Routing) -> None:
        self.router, self.routing = router, routing
        if router.single and not len(routing.gather[1]):
            self._state_paths()
        else:
            self._state_trees()
        self.bundle = router.net.bundle[self.link]
        self.hold_us = router.work[self.chunk] / router.net.bandwidth_gbs[self.bundle]
        self.lasts_us = self.hold_us + router.net.alpha_us[self.bundle]

    def _state_paths(self) -> None:
        """One holder and one goal a chunk: every row but a path's last is waited for by the next."""
        ptr, links = self.routing.spread
        length = np.diff(ptr)
        # long paths first: what is under way at one time then lies together in memory, too
        order = self.router.order[np.argsort(-length[self.router.order], kind="stable")]
        length = length[order]
        self.gathers = 0
        self.chunk = np.repeat(order, length)
        self.step = positions(length)
        self.link = links[ptr[self.chunk] + self.step]
        inner = np.ones(len(self.link), dtype=bool)
        inner[np.cumsum(length)[length > 0] - 1] = False
        self.before = np.flatnonzero(inner)
        self.after = self.before + 1

    def _state_trees(self) -> None:
        router, (gather, spread) = self.router, (self.routing.gather, self.routing.spread)
        collective = router.problem.collective
        # gathering is a tree read backwards: what is nearest to the owner goes last
        up, up_depth = find_parents(router.run, reverse_network(router.loop_net), gather)
        down, down_depth = find_parents(router.run, router.loop_net, spread)
        gather_chunk, spread_chunk = row_of_entry(gather[0]), row_of_entry(spread[0])
        self.gathers = len(gather_chunk)
        deepest = np.zeros(collective.nchunks, dtype=np.int64)
        np.maximum.at(deepest, gather_chunk, up_depth + 1)
        self.link = np.concatenate([gather[1], spread[1]])
        self.chunk = np.concatenate([gather_chunk, spread_chunk])
        self.step = np.concatenate([deepest[gather_chunk] - 1 - up_depth, deepest[spread_chunk] + down_depth])
        child = np.flatnonzero(up >= 0)
        before, after = [child], [up[child]]
        if self.gathers:
            # what leaves the owner waits for all that comes to it
            root = np.flatnonzero(up < 0)
            leaving = np.flatnonzero((down < 0) & collective.reduces[spread_chunk])
            ptr = np.searchsorted(gather_chunk[root], np.arange(collective.nchunks + 1))
            many = np.diff(ptr)[spread_chunk[leaving]]
            before.append(root[ranges(ptr[spread_chunk[leaving]], many)])
            after.append(np.repeat(leaving, many) + self.gathers)
        child = np.flatnonzero(down >= 0)
        self.before = np.concatenate([*before, down[child] + self.gathers])
        self.after = np.concatenate([*after, child + self.gathers])

    def ordered(self, enough_us: float, most: int = 10**9, deadline: float = np.inf) -> tuple[float, Schedule]:
        """(µs, the sends in the order of the best list schedule found); `most` schedules are made at most.

        The rule is the least slack: what has the longest chain of sends behind it, and belongs to the part of the
        message that is asked for first, goes first. Then each order is swung: backwards with the last first,
        forwards again (Li and Willis, 1992).
        """
        chain = urgencies(self.router.run, self.lasts_us, self.before, self.after, self.step)
        part = self._part()
        best, found = np.inf, np.zeros(0, dtype=np.int64)
        made = 0
        # parts asked for one after another: links stay in use by all pairs, sums are spread while others are gathered
        for spread in self.router.tuning.spreads if part.any() else (0.0,):
            urgency = chain - spread * self.routing.busiest_us * part
            for swing in range(self.router.tuning.swings + 1):
                rows, start = self._list_schedule(urgency, self.before, self.after)
                took = float((start + self.lasts_us[rows]).max(initial=0.0))
                made += 1 + (swing > 0)
                better = took < best * (1 - 1e-12)
                if better:
                    best, found = took, rows
                over = best <= enough_us or made >= most or time.monotonic() >= deadline
                if over or swing == self.router.tuning.swings or (swing > 1 and not better):
                    break
                end = np.empty(len(rows))
                end[rows] = start + self.hold_us[rows]
                rows, start = self._list_schedule(end, self.after, self.before)
                urgency = np.empty(len(rows))
                urgency[rows] = start + self.hold_us[rows]
            if over:
                break
        rows = found
        return best, untimed(self.chunk[rows], self.link[rows], self.step[rows], rows < self.gathers)

    def _list_schedule(self, urgency: Floats, before: Ints, after: Ints) -> tuple[Ints, Floats]:
        router = self.router
        return list_schedule(
            router.run, router.loop_net, self.bundle, self.hold_us, urgency, before, after, router.tuning
        )

    def _part(self) -> Floats:
        """Which part of its block, or of its owner's share, a row's chunk is: 0 for the first, towards 1."""
        collective = self.router.problem.collective
        block = collective.chunks
        if collective.kind.in_shares and block > collective.nranks:
            block //= collective.nranks
        return (self.chunk % block) / block


def is_matchable(problem: Problem, tuning: Tuning = TUNING) -> bool:
    """Whether nearly everybody wants every chunk, or adds to it, so that matching in time is worth a try."""
    collective = problem.collective
    if collective.reducing and not reversible(collective):
        return False
    wanted = len(collective.pre if collective.reducing else collective.post) / max(1, collective.nchunks)
    cells = collective.nchunks * problem.nranks
    return wanted > tuning.matched_share * problem.nranks and cells <= tuning.matched_cells


def matched(problem: Problem, size_bytes: float, run: Runner) -> FlowSchedule | None:
    """A schedule by matching in time; None where some goal is reached only through ranks that want nothing.

    A sum that one rank wants is matched from there over the links reversed, and read backwards.
    """
    collective = problem.collective
    back = collective.reducing
    net = csr_network(problem.network)
    over = run.table(reverse_network(net) if back else net)
    first, last = (collective.post, collective.pre) if back else (collective.pre, collective.post)
    wanted = np.zeros((collective.nchunks, problem.nranks), dtype=bool)
    wanted[last[:, 1], last[:, 0]] = True
    wanted[first[:, 1], first[:, 0]] = False
    total = int(wanted.sum())
    work = collective.chunk_bytes(size_bytes) * 1e-3
    eps = float(work.min()) / float(net.bandwidth_gbs.max()) * 1e-9
    holders = collective.goals if back else collective.holders
    chunk, link, start = match_in_time(run, over, wanted, holders, work, eps)
    if len(chunk) < total:
        return None
    order = np.argsort(chunk, kind="stable")
    ptr = pointers(np.bincount(chunk, minlength=collective.nchunks))
    _, depth = find_parents(run, over, (ptr, link[order]))
    step = np.empty(len(chunk), dtype=np.int64)
    step[order] = depth
    bundle = net.bundle[link]
    end = start + work[chunk] / net.bandwidth_gbs[bundle] + net.alpha_us[bundle]
    if back:
        rows = np.argsort(-end, kind="stable")
        chunk, link, step = chunk[rows], link[rows], step.max(initial=0) - step[rows]
    schedule = untimed(chunk, link, step, np.full(len(chunk), back))
    # read backwards, sends through a resource that several share may not fit as they did
    took = predict_us(problem, schedule, size_bytes) if back else float(end.max(initial=0.0))
    return FlowSchedule(took, schedule, resource_loads_us(problem, replace(schedule, size_bytes=size_bytes)))


@dataclass(frozen=True, eq=False)
class FlowSchedule:
    """A schedule, its time, and how long it keeps each resource busy (for bounds)."""

    took_us: float
    schedule: Schedule
    load_us: Floats


def best_of(
    problem: Problem,
    size_bytes: float,
    *,
    depth: float = 0.5,
    passes: int = 4,
    orders: int = 8,
    enough_us: float = 0.0,
    likely_us: float = 0.0,
    latency_us: float = 0.0,
    narrow: bool = True,
    bias: float = 0.05,
    deadline: float = np.inf,
    run: Runner | None = None,
    tuning: Tuning = TUNING,
) -> FlowSchedule:
    """The best schedule of a few passes, for messages of `size_bytes`.

    Args:
        passes: how often all chunks are routed. orders: list schedules made at most for the best routes.
        enough_us: a time that need not be improved (a bound, or a little above it).
        depth, likely_us, latency_us, narrow, bias: see `Router`.
        deadline: by time.monotonic(): what is at hand by then is the answer.
        run: how loops are run; None: interpreted while that takes less time than to load them. The same answers.

    Raises:
        InputError: a chunk that cannot get to where it is wanted over the ranks that may hold it.
    """
    if run is None:
        # by the interpreter a link looked at takes some 2 µs, and a send in a list schedule 10 µs
        links_seen = passes * problem.collective.nchunks * problem.network.nlinks
        sends = len(problem.collective.pre) + 2 * len(problem.collective.post)
        run = choose_runner(2e-6 * links_seen + 1e-5 * orders * sends)
    best: FlowSchedule | None = None
    if problem.allowed is None and is_matchable(problem, tuning):
        best = matched(problem, size_bytes, run)
        if best is not None and best.took_us <= enough_us:
            return best
    router = Router(
        problem, size_bytes, run, depth=depth, likely_us=likely_us, latency_us=latency_us,
        narrow=narrow, bias=bias, tuning=tuning,
    )  # fmt: skip
    routing = router.improve()
    level = max(likely_us, enough_us - latency_us) * 1.002
    for _ in range(passes - 1):
        if routing.busiest_us <= level or time.monotonic() >= deadline:
            break
        routing = router.improve()
    if best is None or routing.busiest_us < best.took_us:
        took, schedule = Sends(router, routing).ordered(enough_us, orders, deadline)
        if best is None or took < best.took_us * (1 - 1e-9):
            best = FlowSchedule(took, schedule, routing.load_us)
    return best
