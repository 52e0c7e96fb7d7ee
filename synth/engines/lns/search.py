"""The engine `lns`: large neighbourhood search over routes and times at once, for middle sizes and irregular networks.

A schedule is improved by removing some chunks and inserting each along the paths, and at the times, by which it arrives
first between the other chunks (`insertion`). Numbers of chunks race: each has a plan, and plans that fall behind are
dropped (successive halving: Jamieson and Talwalkar, 2016). The trials follow counted work, not the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from synth.engines.flow.routes import RouteShape
from synth.engines.flow.search import best_of
from synth.engines.lns.calendars import calendars, entries_of_calendars
from synth.engines.lns.improve import construct, improve, place_all
from synth.engines.lns.insertion import LnsChunks, LnsGraph, LnsPlan, LnsPrices, LnsScratch, LnsTables
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner
from synth.model.deadline import now
from synth.model.problem import Problem, least_latency
from synth.model.schedule import Schedule, untimed
from synth.model.text import format_count
from synth.phases.reversal import reversible
from synth.phases.split import Phase, phases
from synth.timing.simulate import predict_us, timed
from topologies.arrays import grouped, positions
from topologies.network import Network

NAME = "lns"
_MOST_ROOTS, _FEW_CHUNKS = 12, 4  # most roots of a sum, and chunks up to which so many are allowed, as roots cost sends
_EVERY_NTH = 3  # number of chunks races, of those whose chunks are too short
_GATHER, _EXCHANGE, _SPREAD = 0, 1, 2  # phases of a chunk's sends


@dataclass(frozen=True)
class LnsTuning:
    """Settings of the engine.

    Attributes:
        most_ranks: Most ranks for which the engine is tried.
        most_sends: Most sends of a plan.
        most_entries: Most entries of a plan's calendars (512 MB).
        counts: Numbers of chunks a block that race.
        starts: Plans that are built from nothing for each number of chunks.
        near: Ratio time / bound up to which a size is not improved.
        busy: Fraction of the latency that a chunk must hold a link for.
        beyond: Numbers of chunks that may race although their chunks are too short.
        rate: Approximate number of links looked at in a second, which turns seconds into counted work.
        most_work_s: Most seconds of work of the first race.
        rounds: Number of races, each with twice the work of the one before.
        worth: Part of the time that a race must gain, besides being the best of all engines, for another race to
            follow.
        heat: How much worse, as a fraction, a plan may be and still be improved further.
        kept: Plans that the next race starts from.
    """

    most_ranks: int = 64
    most_sends: int = 3_000
    most_entries: int = 1 << 26
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


TUNING = LnsTuning()


def accepts(problem: Problem, options: Options) -> str:
    """Return why the engine refuses a problem, empty where it accepts the problem.

    It accepts one process group with up to `TUNING.most_ranks` ranks, no quotient, and no pinned chunks, steps or
    rounds.
    """
    if problem.quotient is not None or problem.allowed_holders is not None or problem.nranks > TUNING.most_ranks:
        return f"lns takes one group of {TUNING.most_ranks} ranks at most, and no quotient problems"
    return "lns takes no shape; leave --chunks, --steps and --rounds out" if options.pinned else ""


def solve(
    problem: Problem, request: Request, tuning: LnsTuning = TUNING, run: Runner | None = None
) -> Iterator[Outcome]:
    """Yield better and better schedules for each size, the largest gap first; then race on with more work.

    Args:
        problem: The problem.
        request: The request.
        tuning: Settings of the engine.
        run: Runner of the loops; None to compile them.
    """
    run = run or Runner(interpreted=False)
    best_us = dict.fromkeys(request.sizes, np.inf)
    open_sizes = list(request.sizes)
    best_plans: dict[int, list[_PlanSearch]] = {size: [] for size in request.sizes}
    work = int(min(request.work_s / 2, tuning.most_work_s) * tuning.rate / len(open_sizes))
    for number in range(tuning.rounds):
        # The sizes with the most to gain come first, as time may be short.
        open_sizes.sort(key=lambda size: request.bound.at(size)[0] / (request.knowledge.best_us(size) or np.inf))
        for size in tuple(open_sizes):
            before_us = best_us[size]
            if request.knowledge.best_us(size) <= request.bound.at(size)[0] * tuning.near:
                open_sizes.remove(size)
                continue
            race = list(best_plans[size]) or _starting_plans(problem, size, request, tuning, run)
            enough_us = request.bound.at(size)[0] * tuning.near
            for outcome in _run_race(race, enough_us, work << number, tuning, best_plans[size]):
                if isinstance(outcome, Progress):
                    yield outcome
                elif (time_us := predict_us(outcome.problem, outcome.schedule, size)) < best_us[size]:
                    best_us[size] = time_us
                    yield outcome
                if now() >= request.deadline and np.isfinite(best_us[size]):
                    return
            is_best = best_us[size] <= request.knowledge.best_us(size) * (1 + 1e-9)
            if not is_best or best_us[size] > before_us * (1 - tuning.worth):
                open_sizes.remove(size)


def _run_race(
    race: list[_PlanSearch], enough_us: float, work: int, tuning: LnsTuning, best_plans: list[_PlanSearch]
) -> Iterator[Candidate | Progress]:
    """Yield the candidates of the plans in a race; each time the slower half of the plans drops out.

    Args:
        race: The plans.
        enough_us: A time that need not be improved.
        work: Links to look at in all.
        tuning: Settings of the engine.
        best_plans: Set to the best plans, from which the next race starts.
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
            yield Progress(f"large neighbourhood search: {format_count(plan.chunks, 'chunk')}")
        race = sorted(race, key=lambda plan: (plan.best_us, plan.chunks))
        best_plans[:] = [*race, *(plan for plan in best_plans if plan not in race)][: tuning.kept]
        if best_us <= enough_us or len(race) == 1:
            return
        race = race[: (len(race) + 1) // 2]


def _starting_plans(problem: Problem, size: int, request: Request, tuning: LnsTuning, run: Runner) -> list[_PlanSearch]:
    """Return a plan for every number of chunks that is worth it.

    There is none where a goal cannot be reached, and none that would need too much memory.
    """
    single = reversible(problem.collective)
    (phase, *_) = phases(problem) if single else [Phase(problem)]
    net, collective = problem.network, problem.collective
    latency_bytes = float(net.alpha_us.min()) * float(net.bandwidth_gbs.max()) * 1e3
    largest_bytes = float(collective.fraction.max()) * size
    plans: list[_PlanSearch] = []
    beyond = 0  # Counts chunks too short for the fastest links, which slower links may still need.
    for chunks in tuning.counts:
        beyond += largest_bytes / chunks < tuning.busy * latency_bytes
        if plans and largest_bytes / chunks < (request.options.least_bytes or 0):
            break
        plan = _PlanSearch(phase, chunks, size, run, request.options.seed)
        if plan.entries > tuning.most_entries or (plans and (beyond > tuning.beyond or plan.sends > tuning.most_sends)):
            break
        if plans and beyond % _EVERY_NTH:
            continue
        if plan.start(tuning.starts, request.bound.at(size)[0]):
            plans.append(plan)
    return plans


class _PlanSearch:
    """The search for the best plan with one number of chunks a block.

    Attributes:
        phase: The phase of the collective that is searched.
        chunks: Chunks a block of the phase.
        size: Message size in bytes.
        asked: The question's problem with the chunks of the schedule.
        problem: The phase's problem.
        best_us: Time of the best plan in µs.
        sends: Number of (rank, chunk) pairs that the sends must serve, at least 1.
        entries: Number of entries of the calendars, which may be more than memory holds.
    """

    def __init__(self, phase: Phase, chunks: int, size: int, run: Runner, seed: int) -> None:
        self.phase, self.chunks, self.size, self._run = phase, chunks, size, run
        self.asked = phase.problem.with_chunks(phase.whole_chunks(chunks))
        self.problem = problem = phase.apply(chunks)
        net, collective = problem.network, problem.collective
        self.best_us = np.inf
        self._sums = bool(collective.reduces.any())
        self._most_roots = min(net.nranks, _MOST_ROOTS if collective.nchunks <= _FEW_CHUNKS else 2)
        most_sends = 2 * net.nranks + self._most_roots * (self._most_roots - 1) if self._sums else net.nranks
        goals = len(collective.post) + (len(collective.pre) if self._sums else 0)
        self.sends = max(goals, 1)
        self._shape = collective.nchunks, most_sends
        self.entries = entries_of_calendars(net, collective.nchunks * most_sends)
        self._seed = seed

    def start(self, times: int, likely_us: float) -> bool:
        """Build `times` plans for each number of roots, and a routed one; keep the best and set `best_us`.

        Args:
            times: Number of plans for each number of roots.
            likely_us: Likely time of a schedule in µs, such as its bound.

        Returns:
            False, without a plan, if a goal cannot be reached.
        """
        problem = self.problem
        net, collective = problem.network, problem.collective
        nchunks, most_sends = self._shape
        arrival_us, scratch = np.zeros((2, nchunks, net.nranks)), _scratch(net.nranks, self._seed)
        empty = calendars(net, nchunks * most_sends)
        self._tables = LnsTables(_graph(net), empty, _chunks(problem, self.size), scratch, arrival_us)
        self._now, self._trial, self._best = (
            _plan(*self._shape, self._most_roots, collective.holders) for _ in range(3)
        )
        self._last, self._ends = np.zeros(nchunks), np.zeros(nchunks)
        self._costs = np.full(2, np.inf)
        order = np.argsort(collective.place_in_block, kind="stable").astype(np.int64)
        for roots in dict.fromkeys((0, min(2, self._most_roots), self._most_roots)) if self._sums else (0,):
            for number in range(times):
                weight, noise = (0.0, 0.0) if number < 2 else (1.0, 0.3)
                prices = LnsPrices(weight, noise, number % 2 == 1)
                cost = self._run(
                    construct, self._tables, self._trial, self._ends, order, 1.5 * likely_us, prices, roots
                )
                if cost < 0:
                    return False
                self._take(cost)
        routed = best_of(problem, self.size, shape=RouteShape(narrow=False), orders=4, passes=6, run=self._run)
        self._read(timed(problem, routed.schedule, self.size))
        self._take(self._run(place_all, self._tables, self._trial, self._ends))
        self._time()
        return True

    def _take(self, cost: float) -> None:
        """Make the trial the present and best plan, and keep its cost, if `cost` is less than the best so far."""
        if cost < self._costs[1]:
            self._costs[:] = cost
            for target in (self._now, self._best):
                _copy(self._trial, target)
            self._last[:] = self._ends

    def _read(self, schedule: Schedule) -> None:
        """Read a timed schedule of trees into the trial plan; each sum gets the one root that its gather ends at."""
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
            is_root = ~sends[chunk[reduces], net.dst[gathered]]
            plan.nroots[:] = 1
            plan.roots[chunk[reduces][is_root], 0] = net.dst[gathered][is_root]

    def improve(self, work: int, enough_us: float, heat: float) -> None:
        """Improve the best plan with `work` more looks at links.

        Args:
            work: Number of links to look at.
            enough_us: A cost in µs (see `place_all`), without the start of a call, that need not be improved.
            heat: How much worse, as a fraction, a plan may be and still be improved further.
        """
        self._run(
            improve, self._tables, self._now, self._trial, self._best, self._last, self._ends, self._costs, work,
            (enough_us, heat),
        )  # fmt: skip
        self._time()

    def candidate(self) -> Candidate:
        """Return the best plan as a schedule of the question's problem."""
        return Candidate(self.asked, self.schedule(), NAME, self.size, True)

    def schedule(self) -> Schedule:
        """Return the untimed schedule of the best plan, for the question's problem."""
        return self.phase.invert(self.chunks, _schedule(self.problem, self._best))

    def _time(self) -> None:
        """Set `best_us` to the time of the best plan in µs, with the start of a call."""
        self.best_us = predict_us(self.asked, self.schedule(), self.size)


def _graph(net: Network) -> LnsGraph:
    """Return the arrays of a network for the loops."""
    gap = net.gap_us if len(net.gap_us) else np.zeros(net.nlinks)
    columns = (*grouped(net.src, net.nranks), *grouped(net.dst, net.nranks))
    ints = [np.array(column, dtype=np.int64) for column in (net.src, net.dst, *columns)]
    return LnsGraph._make([*ints[:2], np.array(net.alpha_us), np.array(gap), *ints[2:], net.widest_link.copy()])


def _chunks(problem: Problem, size: int) -> LnsChunks:
    """Return the arrays of a problem's chunks for the loops, for messages of `size` bytes."""
    net, collective = problem.network, problem.collective
    work = np.array(collective.chunk_bytes(size) * 1e-3)
    least_us = least_latency(net.nranks, net.src, net.dst, net.alpha_us + float(work.max()) / net.bandwidth_gbs)
    holders, goals = ([np.array(c, dtype=np.int64) for c in table] for table in (collective.holders, collective.goals))
    return LnsChunks._make([work, np.array(collective.reduces), *holders, *goals, least_us])


def _plan(nchunks: int, most_sends: int, most_roots: int, holders: tuple[Ints, Ints]) -> LnsPlan:
    """Return a plan without sends, with one root for each sum.

    The root of chunk c is its holder at place c modulo their number, and 0 for a chunk without holders.

    Args:
        nchunks: Number of chunks.
        most_sends: Most sends of a chunk.
        most_roots: Most roots of a sum.
        holders: Holders by chunk, (ptr, ranks).
    """
    ptr, ranks = holders
    holder_of_chunk = np.arange(nchunks) % np.maximum(np.diff(ptr), 1)
    roots = np.zeros((nchunks, most_roots), dtype=np.int64)
    roots[:, 0] = [ranks[a + t] if b > a else 0 for a, b, t in zip(ptr[:-1], ptr[1:], holder_of_chunk, strict=True)]
    count, gathers, adds = (np.zeros(nchunks, dtype=np.int64) for _ in range(3))
    shape = nchunks, most_sends
    return LnsPlan(count, gathers, adds, np.ones(nchunks, np.int64), roots, np.zeros(shape, np.int64), np.zeros(shape))


def _copy(source: LnsPlan, target: LnsPlan) -> None:
    """Write all columns of one plan into another of the same shape, in place."""
    for column, target_column in zip(source, target, strict=True):
        target_column[...] = column


def _scratch(nranks: int, seed: int) -> LnsScratch:
    """Return the scratch for trees among a number of ranks, with the random numbers at the state of a seed."""
    floats = [np.zeros(nranks) for _ in range(4)]
    flags = [np.zeros(nranks, dtype=bool) for _ in range(3)]
    ints = [np.zeros(nranks, dtype=np.int64) for _ in range(2)]
    drawn = np.array([(seed * 7919 + 12345) & 0x7FFFFFFF, 0], dtype=np.int64)
    at, key, when, start = floats
    inside, is_goal, is_settled = flags
    via, path = ints
    return LnsScratch(at, inside, is_goal, key, when, start, via, is_settled, path, drawn)


def _schedule(problem: Problem, plan: LnsPlan) -> Schedule:
    """Return a plan's sends in the order of their starts, each a step after the sends that bring its chunk."""
    nchunks, most_sends = plan.link.shape
    used = np.arange(most_sends) < plan.count[:, None]
    chunk, row = np.nonzero(used)
    phase = (row >= plan.gathers[chunk]).astype(np.int64) + (row >= plan.adds[chunk])
    start, hops = _ordered_starts(problem, chunk, plan.link[chunk, row], phase, plan.start[chunk, row])
    order = np.lexsort((hops, start, phase))
    chunk, row, phase, start = chunk[order], row[order], phase[order], start[order]
    link = plan.link[chunk, row]
    ahead = np.zeros((nchunks, problem.nranks), dtype=np.int64)
    gathered = np.zeros(nchunks, dtype=np.int64)  # first step in which a chunk's whole gather is done
    step = np.zeros(len(chunk), dtype=np.int64)
    ends = zip(
        chunk.tolist(), problem.network.src[link].tolist(), problem.network.dst[link].tolist(), phase.tolist(),
        strict=True,
    )  # fmt: skip
    for i, (c, u, v, p) in enumerate(ends):
        # Roots send their parts before they get the parts of other roots.
        step[i] = gathered[c] if p == _EXCHANGE else ahead[c, u]
        ahead[c, v] = max(ahead[c, v], step[i] + 1)
        if p == _GATHER:
            gathered[c] = max(gathered[c], step[i] + 1)
    order = np.argsort(start, kind="stable")
    return untimed(chunk[order], link[order], step[order], (row < plan.adds[chunk])[order])


def _ordered_starts(problem: Problem, chunk: Ints, link: Ints, phase: Ints, start_us: Floats) -> tuple[Floats, Ints]:
    """Return the start of each send in µs, no earlier than those of the sends that bring its chunk, and its hops.

    The hops are the sends of the chunk and phase that come one after another before it. Beside a latency of minutes,
    the starts of small messages are rounded so far that they may be equal or in a wrong order.

    Args:
        problem: The problem.
        chunk: Chunk of each send, shape (sends,).
        link: Link of each send.
        phase: Phase of each send; in an exchange no send waits for another.
        start_us: Start of each send by the plan.
    """
    net = problem.network
    tree = (chunk * (_SPREAD + 1) + phase) * net.nranks
    leaves, reaches = tree + net.src[link], tree + net.dst[link]
    hops, count = np.zeros(len(chunk), dtype=np.int64), int(tree.max(initial=0)) + net.nranks
    for _ in range(net.nranks):
        most, latest = np.zeros(count, dtype=np.int64), np.full(count, -np.inf)
        np.maximum.at(most, reaches, hops + 1)
        np.maximum.at(latest, reaches, start_us)
        more = np.where(phase == _EXCHANGE, 0, most[leaves])
        start_us = np.where(phase == _EXCHANGE, start_us, np.maximum(start_us, latest[leaves]))
        if np.array_equal(more, hops):
            break
        hops = more
    return start_us, hops
