"""The engine `lns`: large neighbourhood search over routes and times together, for middle sizes and odd networks.

A schedule is improved by taking some chunks out of it and putting each back along the paths, and at the times, by which
it arrives first beside all others (`insertion`). Numbers of chunks race: each has a plan, and those that fall behind
are given up (successive halving: Jamieson and Talwalkar, 2016). What is tried is told by counted work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from synth.engines.flow.search import best_of
from synth.engines.lns.calendars import calendars
from synth.engines.lns.improve import construct, improve, place_all
from synth.engines.lns.insertion import Chunks, Graph, Plan, Scratch
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.model.collective import Ints
from synth.model.compiled import Runner
from synth.model.deadline import now
from synth.model.problem import Problem, least_latency
from synth.model.schedule import Schedule, untimed
from synth.phases.reversal import reversible
from synth.phases.split import Phase, phases
from synth.timing.simulate import predict_us, timed
from topologies.arrays import grouped, positions
from topologies.network import Network

NAME = "lns"
_MOST_ROOTS, _FEW_CHUNKS = 12, 4  # roots of a sum, where there are few chunks; the more, the more sends
_EVERY = 3  # number of chunks beyond
_GATHER, _EXCHANGE = 0, 1  # phases of a chunk's sends; then it is spread


@dataclass(frozen=True)
class Tuning:
    """How much the engine tries.

    Attributes:
        most_ranks: up to which it is asked. most_sends: of a plan.
        counts: numbers of chunks that race.
        starts: plans that are made from nothing for each.
        near: time / bound from which on nothing is gained by going on.
        busy: of the latency: what a chunk must hold a link for. beyond: numbers of chunks after that which may race.
        rate: links looked at in a second, about, by which work is counted.
        most_work_s: of the first race. rounds: races, each with twice the work of the one before.
        kept: plans that the next race goes on with.
        worth: the part that a race must gain, and be the best of all engines, for another to follow.
        heat: how much worse, as a part, a plan may be that is gone on with.
    """

    most_ranks: int = 32
    most_sends: int = 3_000
    counts: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128)
    starts: int = 4
    near: float = 1.003
    busy: float = 0.1
    beyond: int = 6
    rate: float = 2e6
    most_work_s: float = 0.6
    rounds: int = 4
    worth: float = 0.003
    heat: float = 0.003
    kept: int = 4


TUNING = Tuning()


def accepts(problem: Problem, options: Options) -> str:
    """Whole problems of one group; no shape."""
    if problem.quotient is not None or problem.allowed is not None or problem.nranks > TUNING.most_ranks:
        return f"lns is for one group of {TUNING.most_ranks} ranks at most, not planned by its symmetry"
    return "lns takes no shape; leave --chunks, --steps and --rounds out" if options.pinned else ""


def solve(problem: Problem, request: Request, tuning: Tuning = TUNING, run: Runner | None = None) -> Iterator[Outcome]:
    """Better and better schedules for each size, the most important first, then the best plans go on with more work."""
    run = run or Runner(interpreted=False)
    known = dict.fromkeys(request.sizes, np.inf)
    left = list(request.sizes)
    kept: dict[int, list[_Planned]] = {size: [] for size in request.sizes}
    work = int(min(request.work_s / 2, tuning.most_work_s) * tuning.rate / len(left))
    for number in range(tuning.rounds):
        # where most is to be gained first, as time may be short
        left.sort(key=lambda size: request.bound.at(size)[0] / (request.known.best_us(size) or np.inf))
        for size in tuple(left):
            before_us = known[size]
            if request.known.best_us(size) <= request.bound.at(size)[0] * tuning.near:
                left.remove(size)
                continue
            race = list(kept[size]) or _race(problem, size, request, tuning, run)
            enough_us = request.bound.at(size)[0] * tuning.near
            for found in _raced(race, enough_us, work << number, tuning, kept[size]):
                if isinstance(found, Progress):
                    yield found
                elif (time_us := predict_us(found.problem, found.schedule, size)) < known[size]:
                    known[size] = time_us
                    yield found
                if now() >= request.deadline and np.isfinite(known[size]):
                    return
            best = known[size] <= request.known.best_us(size) * (1 + 1e-9)
            if not best or known[size] > before_us * (1 - tuning.worth):
                left.remove(size)


def _raced(
    race: list[_Planned], enough_us: float, work: int, tuning: Tuning, kept: list[_Planned]
) -> Iterator[Candidate | Progress]:
    """What plans come to; of those that are behind the others each time half are given up.

    kept: becomes the best plans, to go on with.
    """
    best_us = np.inf
    while race:
        share = work // (4 * len(race)) + 1
        for plan in race:
            starts_us = plan.problem.network.start_us
            plan.improve(share, max(0.0, enough_us - starts_us), tuning.heat)
            if plan.best_us < best_us * (1 - 1e-9):
                best_us = plan.best_us
                yield plan.candidate()
            yield Progress(f"large neighbourhoods: {plan.chunks} chunks")
        race = sorted(race, key=lambda plan: (plan.best_us, plan.chunks))
        kept[:] = [*race, *(plan for plan in kept if plan not in race)][: tuning.kept]
        if best_us <= enough_us or len(race) == 1:
            return
        race = race[: (len(race) + 1) // 2]


def _race(problem: Problem, size: int, request: Request, tuning: Tuning, run: Runner) -> list[_Planned]:
    """A plan for every number of chunks that is worth it."""
    single = reversible(problem.collective)
    (phase, *_) = phases(problem) if single else [Phase(problem)]
    net, collective = problem.network, problem.collective
    latency_bytes = float(net.alpha_us.min()) * float(net.bandwidth_gbs.max()) * 1e3
    largest_bytes = float(collective.fraction.max()) * size
    found: list[_Planned] = []
    beyond = 0  # numbers of chunks too short for the fastest links; slower ones may want some of them
    for chunks in tuning.counts:
        beyond += largest_bytes / chunks < tuning.busy * latency_bytes
        if found and largest_bytes / chunks < (request.options.least_bytes or 0):
            break
        planned = _Planned(phase, chunks, size, run, request.options.seed)
        if found and (beyond > tuning.beyond or planned.sends > tuning.most_sends):
            break
        if found and beyond % _EVERY:
            continue
        if planned.start(tuning.starts, request.bound.at(size)[0]):
            found.append(planned)
    return found


class _Planned:
    """The search with one number of chunks a block.

    Attributes:
        chunks: that number. best_us: the time of its best plan. sends: at most.
    """

    def __init__(self, phase: Phase, chunks: int, size: int, run: Runner, seed: int) -> None:
        self.phase, self.chunks, self.size, self._run = phase, chunks, size, run
        self.asked = phase.asked.with_chunks(phase.asked_chunks(chunks))
        self.problem = problem = phase.apply(chunks)
        net, collective = problem.network, problem.collective
        self.best_us = np.inf
        self._sums = bool(collective.reduces.any())
        self._most_roots = min(net.nranks, _MOST_ROOTS if collective.nchunks <= _FEW_CHUNKS else 2)
        each = 2 * net.nranks + self._most_roots * (self._most_roots - 1) if self._sums else net.nranks
        goals = len(collective.post) + (len(collective.pre) if self._sums else 0)
        self.sends = max(goals, 1)
        self._shape = collective.nchunks, each
        self._seed = seed

    def start(self, times: int, likely_us: float) -> bool:
        """Make a few plans from nothing and keep the best; False where there is none."""
        problem = self.problem
        net, collective = problem.network, problem.collective
        nchunks, each = self._shape
        self._graph, self._chunks = _graph(net), _chunks(problem, self.size)
        self._calendars = calendars(net, nchunks * each)
        self._scratch = _scratch(net.nranks, self._seed)
        self._now, self._trial, self._best = (
            _plan(*self._shape, self._most_roots, collective.holders) for _ in range(3)
        )
        self._came, self._last, self._ends = np.zeros((2, nchunks, net.nranks)), np.zeros(nchunks), np.zeros(nchunks)
        self._costs = np.full(2, np.inf)
        part = np.arange(nchunks) % collective.chunks
        order = np.lexsort((np.arange(nchunks), part)).astype(np.int64)
        for roots in dict.fromkeys((0, min(2, self._most_roots), self._most_roots)) if self._sums else (0,):
            for number in range(times):
                weight, noise = (0.0, 0.0) if number < 2 else (1.0, 0.3)
                cost = self._run(
                    construct, self._graph, self._calendars, self._chunks, self._trial, self._scratch, self._came,
                    self._ends, order, 1.5 * likely_us, weight, noise, number % 2 == 1, roots,
                )  # fmt: skip
                if cost < 0:
                    return False
                self._take(cost)
        routed = best_of(problem, self.size, bias=0.05, narrow=False, orders=4, passes=6, run=self._run)
        self._read(timed(problem, routed.schedule, self.size))
        self._take(
            self._run(place_all, self._graph, self._calendars, self._chunks, self._trial, self._came, self._ends)
        )
        self._time()
        return True

    def _take(self, cost: float) -> None:
        """Go on with the trial if it is the best so far."""
        if cost < self._costs[1]:
            self._costs[:] = cost
            for to in (self._now, self._best):
                _copy(self._trial, to)
            self._last[:] = self._ends

    def _read(self, schedule: Schedule) -> None:
        """Have the trial say what a schedule of trees says."""
        net, plan = self.problem.network, self._trial
        order = np.lexsort((schedule.start_us, ~schedule.reduces, schedule.chunk))
        chunk, reduces = schedule.chunk[order], schedule.reduces[order]
        nchunks = len(plan.count)
        plan.count[:] = np.bincount(chunk, minlength=nchunks)
        plan.gathers[:] = plan.adds[:] = np.bincount(chunk[reduces], minlength=nchunks)
        row = positions(plan.count)
        plan.link[chunk, row], plan.start[chunk, row] = schedule.link[order], schedule.start_us[order]
        if reduces.any():
            sends = np.zeros((nchunks, net.nranks), dtype=bool)
            gathered = schedule.link[order][reduces]
            sends[chunk[reduces], net.src[gathered]] = True
            last = ~sends[chunk[reduces], net.dst[gathered]]
            plan.nroots[:] = 1
            plan.roots[chunk[reduces][last], 0] = net.dst[gathered][last]

    def improve(self, work: int, enough_us: float, heat: float) -> None:
        """So much work more."""
        self._run(
            improve, self._graph, self._calendars, self._chunks, self._now, self._trial, self._best, self._scratch,
            self._came, self._last, self._ends, self._costs, work, enough_us, heat,
        )  # fmt: skip
        self._time()

    def candidate(self) -> Candidate:
        """The best plan as a schedule of the asked problem."""
        return Candidate(self.asked, self.schedule(), NAME, self.size, True)

    def schedule(self) -> Schedule:
        """The best plan's."""
        return self.phase.invert(self.chunks, _schedule(self.problem, self._best))

    def _time(self) -> None:
        self.best_us = predict_us(self.asked, self.schedule(), self.size)


def _graph(net: Network) -> Graph:
    gap = net.gap_us if len(net.gap_us) else np.zeros(net.nlinks)
    columns = (*grouped(net.src, net.nranks), *grouped(net.dst, net.nranks))
    ints = [np.array(column, dtype=np.int64) for column in (net.src, net.dst, *columns)]
    between = np.full((net.nranks, net.nranks), -1, dtype=np.int64)
    slowest_first = np.argsort(net.bandwidth_gbs, kind="stable")
    between[net.src[slowest_first], net.dst[slowest_first]] = slowest_first
    return Graph._make([*ints[:2], np.array(net.alpha_us), np.array(gap), *ints[2:], between])


def _chunks(problem: Problem, size: int) -> Chunks:
    net, collective = problem.network, problem.collective
    work = np.array(collective.chunk_bytes(size) * 1e-3)
    away = least_latency(net.nranks, net.src, net.dst, net.alpha_us + float(work.max()) / net.bandwidth_gbs)
    holders, goals = ([np.array(c, dtype=np.int64) for c in table] for table in (collective.holders, collective.goals))
    return Chunks._make([work, np.array(collective.reduces), *holders, *goals, away])


def _plan(nchunks: int, each: int, most_roots: int, holders: tuple[Ints, Ints]) -> Plan:
    """An empty one; sums come together at their holders in turn."""
    ptr, ranks = holders
    turn = np.arange(nchunks) % np.maximum(np.diff(ptr), 1)
    roots = np.zeros((nchunks, most_roots), dtype=np.int64)
    roots[:, 0] = [ranks[a + t] if b > a else 0 for a, b, t in zip(ptr[:-1], ptr[1:], turn, strict=True)]
    count, gathers, adds = (np.zeros(nchunks, dtype=np.int64) for _ in range(3))
    shape = nchunks, each
    return Plan(count, gathers, adds, np.ones(nchunks, np.int64), roots, np.zeros(shape, np.int64), np.zeros(shape))


def _copy(of: Plan, to: Plan) -> None:
    for one, other in zip(of, to, strict=True):
        other[...] = one


def _scratch(nranks: int, seed: int) -> Scratch:
    floats = [np.zeros(nranks) for _ in range(4)]
    flags = [np.zeros(nranks, dtype=bool) for _ in range(3)]
    ints = [np.zeros(nranks, dtype=np.int64) for _ in range(2)]
    drawn = np.array([(seed * 7919 + 12345) & 0x7FFFFFFF, 0], dtype=np.int64)
    at, key, when, start = floats
    inside, wanted, done = flags
    via, path = ints
    return Scratch(at, inside, wanted, key, when, start, via, done, path, drawn)


def _schedule(problem: Problem, plan: Plan) -> Schedule:
    """A plan's sends in the order of their starts, each a step after what brings what it carries."""
    nchunks, each = plan.link.shape
    used = np.arange(each) < plan.count[:, None]
    chunk, row = np.nonzero(used)
    phase = (row >= plan.gathers[chunk]).astype(np.int64) + (row >= plan.adds[chunk])
    order = np.lexsort((plan.start[chunk, row], phase))  # stable
    chunk, row, phase = chunk[order], row[order], phase[order]
    link = plan.link[chunk, row]
    ahead = np.zeros((nchunks, problem.nranks), dtype=np.int64)
    gathered = np.zeros(nchunks, dtype=np.int64)  # the first step in which all of a chunk is
    step = np.zeros(len(chunk), dtype=np.int64)
    ends = zip(
        chunk.tolist(), problem.network.src[link].tolist(), problem.network.dst[link].tolist(), phase.tolist(),
        strict=True,
    )  # fmt: skip
    for i, (c, u, v, p) in enumerate(ends):
        # roots send what they have before they get anything of each other
        step[i] = gathered[c] if p == _EXCHANGE else ahead[c, u]
        ahead[c, v] = max(ahead[c, v], step[i] + 1)
        if p == _GATHER:
            gathered[c] = max(gathered[c], step[i] + 1)
    order = np.argsort(plan.start[chunk, row], kind="stable")
    return untimed(chunk[order], link[order], step[order], (row < plan.adds[chunk])[order])
