"""The engine `levels`: schedules of a network's levels composed into one, for clusters, racks and pods.

The levels come from the topology (`topologies.levels`). Sends along a level go among ranks at the same place in its
parts, so that the outer, slower levels carry every byte once, over all their links. Where ranks of a level are not all
linked to each other, trees are routed among some ranks that represent all. All sends go into one list schedule, so that
levels work at the same time on different chunks. A network's symmetry leads to a quotient as elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import numpy as np

from synth.baselines.fifo import waits
from synth.engines.estimates import estimated_sends
from synth.engines.flow.csr_network import CsrNetwork, csr_network
from synth.engines.flow.ordering import OrderedSends, busiest_us
from synth.engines.flow.quotients import quotient_of
from synth.engines.flow.tree_sends import Sends
from synth.engines.flow.tuning import SEARCH as FLOW
from synth.engines.levels.composition import CHAIN, DOUBLING, RING, TREES
from synth.engines.levels.plan import Levels, LevelsShape
from synth.engines.levels.relays import LevelsWithRelays, with_relays
from synth.engines.levels.tuning import TUNING, LevelsTuning
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.model.collective import Ints
from synth.model.compiled import choose_runner
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.model.text import format_count
from topologies.costed import protocol_costs
from topologies.errors import InputError
from topologies.levels.hierarchy import find_levels, nested
from topologies.topology import Topology

NAME = "levels"
_KINDS = ("allgather", "reducescatter", "broadcast", "reduce", "allreduce", "allgatherv", "reducescatterv")


def accepts(problem: Problem, options: Options) -> str:
    """Return why the engine refuses a problem, empty for copies to all and sums of all, of a group with levels.

    The group must have the same ranks in each part of a level. Steps and rounds cannot be pinned.
    """
    if options.steps is not None or options.rounds is not None:
        return "levels takes no steps or rounds; leave --steps and --rounds out"
    if problem.allowed_holders is not None or problem.collective.name not in _KINDS:
        return f"levels is for one group's {', '.join(_KINDS)}"
    chunks_of_block = (
        problem.collective.nranks if problem.collective.kind.in_shares and problem.quotient is not None else 1
    )
    if problem.collective.chunks != chunks_of_block:
        return "levels is for collectives with one chunk a block"
    if len(problem.group) > TUNING.most_ranks:
        return f"levels is for {TUNING.most_ranks} ranks or fewer"
    if _members(problem.topology, problem.group).ndim < 2 and _with_relays(problem) is None:
        return "levels needs a group with equal shares in two or more parts of the network (synth topo show … --levels)"
    return ""


@lru_cache(maxsize=4)
def _members(topology: Topology, group: tuple[int, ...]) -> Ints:
    """Return the local ranks by level, int64, shape (c₀, c₁, …); one axis where there are no levels."""
    try:
        members, _ = nested(find_levels(topology), np.array([group]))
    except InputError:
        return np.arange(len(group))
    local = np.zeros(topology.nranks, dtype=np.int64)
    local[list(group)] = np.arange(len(group))
    return np.asarray(local[members[0]])


def _with_relays(problem: Problem) -> Problem | None:
    """Return the problem in which relays of the parts that have members take part; None if their shares are unequal.

    It is None too where no such relay exists, or the collective has blocks of sizes of their own.
    """
    try:
        levels = find_levels(problem.topology)
    except InputError:
        return None
    if len(levels.sizes) < 2 or problem.quotient is not None:
        return None
    part = levels.position // (len(levels.ranks) // levels.sizes[0])
    shared = set(part[list(problem.group)].tolist())
    joined = with_relays(problem, tuple(rank for rank in problem.relays if part[rank] in shared))
    return None if joined is None or _members(problem.topology, joined.group).ndim < 2 else joined


def solve(problem: Problem, request: Request, tuning: LevelsTuning = TUNING) -> Iterator[Outcome]:
    """Yield for each size better and better schedules and progress, of the quotient problem where there is one.

    Where ranks at the same place are linked to each other across the two outermost levels, these are also tried as one,
    which saves a latency. For programs, schedules in which a rank sends to few others are searched apart where there
    are more than two outermost parts: by doubling and along rings, or over two trees and along chains if there is a
    root. Schedules in which relays take part as members come first. Where no level has all its ranks linked, or ranks
    do not reach each other, there is only progress that says so.
    """
    planned_problem = quotient_of(problem) or problem
    order = 1 if planned_problem.quotient is None else planned_problem.quotient.order
    most_sends = FLOW.expanded // order if problem.quotient is None else tuning.most_sends
    most_sends = min(most_sends, request.most_sends // order or most_sends)
    if not problem.collective.kind.in_shares and estimated_sends(planned_problem) > most_sends:
        yield Progress(f"levels: more than {format_count(most_sends, 'send')}")
        return
    ways = [_Way(_members(problem.topology, problem.group), partial(Levels, planned_problem, tuning=tuning))]
    joined = _with_relays(problem)
    if joined is not None:
        levels_of = partial(LevelsWithRelays, problem, joined, tuning=tuning)
        ways.insert(0, _Way(_members(problem.topology, joined.group), levels_of))
    prepared = list[tuple[_Way, Levels]]()
    for way in (way for way in ways if way.members.ndim > 1):
        try:
            prepared.append((way, way.levels))
        except InputError as error:
            yield Progress(str(error))
    for size in request.sizes:
        for way, levels in prepared:
            yield from _solve_size(way, levels, request, size, most_sends)


@dataclass(eq=False)
class _Way:
    """A way to arrange who takes part by level.

    Attributes:
        members: Local ranks by level.
        levels_of: Returns the problem with local ranks by level, or raises InputError as `Levels` does.
    """

    members: Ints
    levels_of: Callable[[Ints], Levels]

    @cached_property
    def levels(self) -> Levels:
        """Return the problem with the members."""
        return self.levels_of(self.members)

    @cached_property
    def as_one(self) -> Levels | None:
        """Return the problem with the two outermost levels as one, or None if ranks are not linked across them."""
        if self.members.ndim < 3:
            return None
        joined, levels = self.members.reshape(-1, *self.members.shape[2:]), self.levels
        is_linked = joined.ndim < levels.members.ndim and levels.is_linked(joined.reshape(len(joined), -1)[:, 0])
        return self.levels_of(joined) if is_linked else None


def _solve_size(way: _Way, levels: Levels, request: Request, size: int, most_sends: int) -> Iterator[Outcome]:
    """Yield better and better schedules for a size in bytes, and progress; `levels` are those of the way."""
    composed: _Composed = {}
    search = _LevelsSearch(request, size, most_sends, levels.tuning, composed)
    yield from search.run(NAME, levels, levels.shapes())
    if not search.is_over() and way.as_one is not None:
        yield from search.run(NAME, way.as_one, way.as_one.shapes())
    # Programs send to many peers at once, so that all messages arrive late, and have few threadblocks for them.
    if request.most_sends and len(levels.members) > 2:
        collective = levels.problem.collective
        forms = (TREES, CHAIN) if collective.kind.rooted else (DOUBLING, RING)
        for form in forms if collective.block is None else (RING, TREES):
            search = _LevelsSearch(request, size, most_sends, levels.tuning, composed)
            yield from search.run(f"{NAME}, {form}", levels, [LevelsShape(form)])


# The time in µs, the problem and the schedule of a shape in so many chunks; None where there is none.
_Composed = dict[tuple[Levels, LevelsShape, int], tuple[float, Problem, Schedule] | None]


class _LevelsSearch:
    """The search for the best shape and number of chunks at a message size.

    Attributes:
        request: The request to the engine.
        size: Message size in bytes.
        most: Most sends of a schedule.
        enough_us: Time in µs that need not be improved.
        composed: What was composed at this size, which searches apart compose again.
        best_us: Best time so far in µs.
    """

    def __init__(self, request: Request, size: int, most: int, tuning: LevelsTuning, composed: _Composed) -> None:
        self.request, self.size, self.most, self.tuning, self.composed = request, size, most, tuning, composed
        self.enough_us = request.bound.at(size)[0] * tuning.near
        self.best_us = np.inf

    def run(self, name: str, levels: Levels, shapes: Sequence[LevelsShape]) -> Iterator[Outcome]:
        """Yield better and better schedules: more chunks with every shape, as long as that gains.

        Args:
            name: Name of the engine in these answers.
            levels: The problem with its members by level.
            shapes: The shapes to compose, the most likely first.
        """
        counts = self._counts(levels)
        for shape in shapes:
            before_us, idle, nchunks = np.inf, 0, 0
            for count in counts:
                composed = self._compose(levels, shape, count)
                if composed is None or composed[1].collective.nchunks == nchunks:  # Blocks have a last size of chunks.
                    break
                time_us, problem, schedule = composed
                nchunks = problem.collective.nchunks
                is_enough = time_us <= self.enough_us < self.best_us
                if is_enough or time_us < self.best_us * (1 - self.tuning.worth / 2):
                    self.best_us = time_us
                    yield Candidate(problem, schedule, name, self.size, supersedes=True)
                yield Progress(f"levels: {shape}, {time_us / self.request.bound.at(self.size)[0]:.3f} × the bound")
                if self.is_over():
                    return
                idle = idle + 1 if time_us > before_us * (1 - self.tuning.worth) else 0
                before_us = min(before_us, time_us)
                if idle > 1 or (idle and time_us > self.tuning.hopeless * self.best_us):
                    break

    def is_over(self) -> bool:
        """Return True if the best time is near the bound, or the deadline has passed."""
        return self.best_us <= self.enough_us or now() >= self.request.deadline

    def _counts(self, levels: Levels) -> Sequence[int]:
        """Return the numbers of chunks a block to try: the pinned one only, or those of `Levels.counts`."""
        if self.request.options.chunks is not None:
            return [self.request.options.chunks]
        return levels.counts(self.tuning.doublings)

    def _compose(self, levels: Levels, shape: LevelsShape, count: int) -> tuple[float, Problem, Schedule] | None:
        """Return the time in µs, the problem and the schedule of a shape in so many chunks a block, composed once.

        It is None where a send has no link, or where there are too many sends.
        """
        key = levels, shape, count
        if key not in self.composed:
            plan = levels.plan(shape, count)
            self.composed[key] = None
            if plan is not None and len(plan[1]) <= self.most:
                self.composed[key] = self._schedule(levels, *plan)
        return self.composed[key]

    def _schedule(self, levels: Levels, problem: Problem, sends: Schedule) -> tuple[float, Problem, Schedule]:
        """Return the time in µs, with the start of a call, the problem, and the best list schedule of the sends."""
        columns = Sends(sends.chunk, sends.link, sends.step, sends.reduces, *waits(problem, sends))
        run = choose_runner(1e-5 * len(sends) * self.tuning.orders)
        longest_us, start_us = busiest_us(problem, sends, self.size), problem.network.start_us
        net = levels.net
        if self.request.most_sends and problem.collective.block is not None:
            net = _as_by_threadblocks(problem, self.size, self.tuning.instances) or net
        ordered_sends = OrderedSends(problem, self.size, columns, run, net, longest_us, turn=levels.turns(sends.link))
        time_us, schedule = ordered_sends.ordered(self.enough_us - start_us, self.tuning.orders, self.request.deadline)
        return time_us + start_us, problem, schedule


def _as_by_threadblocks(problem: Problem, size_bytes: float, instances: int) -> CsrNetwork | None:
    """Return a problem's network with the latencies that chunks have in programs, or None where they are no longer.

    One threadblock moves less than a link inside a node carries, so such a link is full only while it carries several
    chunks, and each of them arrives later than if it had the link to itself. All chunks are taken to be as large as the
    median one.

    Args:
        problem: The problem with its chunks.
        size_bytes: Message size in bytes.
        instances: Number of threadblocks that share each chunk.
    """
    costs, net = protocol_costs(problem.topology), problem.network
    if costs is None or costs.threadblock_gbs >= net.bandwidth_gbs.max():
        return None
    shares = np.maximum(1.0, np.ceil(net.bandwidth_gbs / costs.threadblock_gbs) / instances)
    if len(net.gap_us):
        shares[net.gap_us > 0] = 1.0
    kilobytes = float(np.median(problem.collective.chunk_bytes(size_bytes))) * 1e-3
    return csr_network(replace(net, alpha_us=net.alpha_us + kilobytes / net.bandwidth_gbs * (shares - 1)))
