"""Which engines answer a problem, in which order, for how long."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from synth.algorithm import Algorithm
from synth.at_one_go import PART, fewest_rounds
from synth.baselines import baseline
from synth.bounds import Bound, lengths_witness, prove
from synth.collective import Floats, Ints
from synth.dispatch import dispatched
from synth.engines import milp, route
from synth.engines.allowed import Allowed
from synth.engines.workers import Workers
from synth.flow_search import (
    EXPANDED,
    FLOW,
    MOST_SENDS,
    SEVERAL,
    FlowSearch,
    close_enough,
    estimated_sends,
    folded,
)
from synth.fold import expand
from synth.forms import Form, forms, mirror_links
from synth.frontier import LARGEST, SMALLEST, Range, frontier
from synth.passes import join
from synth.prices import from_loads
from synth.problem import Problem, hops
from synth.recheck import MOST_GOALS, check_step_bound
from synth.schedule import Schedule, unit_gbs
from synth.schedule import rounds as rounds_of
from synth.slot_search import SlotClaim, in_slots
from synth.slots import slotted
from synth.stepwise import Claim, Pins, Shape, StepSearch, Verdict, pareto
from synth.symmetry import Symmetry, free_symmetry
from synth.witness import Witness
from topologies.errors import InputError

ENGINES = ("auto", "flow", "route", "cpsat", "smt", "milp")
WARM = ("cpsat", "linear")
_MOST_EXTRA_STEPS = 4  # beyond the fewest: a step more seldom pays, and each costs a search
_COMBINING_SIZE = 400_000
_CONSTRUCTIVE_SHARE = 0.1  # of the budget
_FEW = 8  # ranks up to which the compiled engine is not worth loading: exact search ends there
_EXACT = 32  # ranks up to which exact search is tried
_COMPARED = 300_000  # sends up to which baselines are run beside the answer


@dataclass(frozen=True)
class Options:
    """What the user pins. Sizes in bytes, budget in seconds."""

    size: int | None = None
    chunks: int | None = None
    steps: int | None = None
    rounds: int | None = None
    engine: str = "auto"
    budget_s: float = 30.0
    seed: int = 0

    @property
    def pinned(self) -> bool:
        """Whether a shape is asked for."""
        return self.chunks is not None or self.steps is not None or self.rounds is not None


@dataclass
class Found:
    """What a search came to.

    Attributes:
        ranges: the frontier, or one range at the pinned size.
        bound: on the time of any algorithm.
        baselines: what a vendor library would run.
        claims: per copying half and number of steps, what is proved in the k-synchronous model.
        slots: what the dual bounds of time-slot programs prove.
        impossible: why no schedule of the pinned shape exists, where that was proved.
        healthy: the same for the healthy network, where this one has dead or slow parts.
        ended: "" or why the search stopped early ("budget", "interrupted").
    """

    problem: Problem
    ranges: list[Range] = field(default_factory=list)
    bound: Bound = field(default_factory=lambda: Bound(()))
    baselines: list[Algorithm] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    slots: list[SlotClaim] = field(default_factory=list)
    impossible: str = ""
    healthy: Found | None = None
    ended: str = ""
    seconds: float = 0.0


Progress = Callable[[str, "Algorithm | None"], None]


def search(
    problem: Problem,
    options: Options,
    workers: Workers,
    progress: Progress | None = None,
    allowed: Allowed | None = None,
) -> Found:
    """Search a problem (one chunk a block) until everything is proved, the budget ends or Ctrl-C.

    There is an answer however it ends: a constructive engine gives one before the solvers start.

    Args:
        allowed: who may hold which chunks, where not everybody may hold all.
    """
    return _Search(problem, options, workers, progress or (lambda _, __: None), allowed).run()


class _Search:
    def __init__(
        self,
        problem: Problem,
        options: Options,
        workers: Workers,
        progress: Progress,
        allowed: Allowed | None = None,
    ) -> None:
        self.allowed = allowed
        self.loads: Floats | None = None
        self.routed: dict[int, Algorithm] = {}  # by message size
        self.problem, self.options, self.workers, self.progress = problem, options, workers, progress
        self.begun = time.monotonic()
        self.deadline = self.begun + options.budget_s
        self.found = Found(problem)
        self.algorithms: list[Algorithm] = []
        self.latest: Algorithm | None = None
        self.claimed: dict[str, Problem] = {}  # the problem that claims of a part are about

    def run(self) -> Found:
        found, options = self.found, self.options
        exact = self.problem.nranks <= _EXACT and self.problem.fold is None and self.allowed is None
        try:
            found.bound = prove(self.problem, max_flow=False)
            self._answer_at_once()
            if not exact:
                self._refuse_shape()
            elif options.engine in ("auto", "cpsat", "smt") and not self._lucky():
                self._exact()
                if self.problem.collective.name == "allreduce":
                    self._combining()
            if exact and options.engine in ("auto", "milp"):
                self._timed()
            self._tighten()
            self._recheck()
        except KeyboardInterrupt:
            found.ended = "interrupted"
        if not found.ended and time.monotonic() >= self.deadline:
            found.ended = "budget"
        if not self.algorithms and not options.pinned:
            self._answer_at_once()
        if not found.bound.witnesses:
            found.bound = prove(self.problem, max_flow=False)
        if options.size is not None and self.algorithms:
            size = options.size
            best = min(self.algorithms, key=lambda a: (a.time_us(size), a.steps, len(a.schedule)))
            found.ranges = [Range(best, size, size, size)]
        else:
            found.ranges = frontier(self.algorithms)
        found.seconds = time.monotonic() - self.begun
        return found

    def _answer_at_once(self) -> None:
        """Constructive answers: by interpreted routing for a few ranks, by the compiled engine for more."""
        options, nranks = self.options, self.problem.nranks
        plain = self.problem.fold is None and self.allowed is None
        if options.engine == "route" or (options.engine != "flow" and nranks <= 2 * _FEW and plain):
            if not options.pinned:
                self._construct()
                self._compare()
        else:
            self._compare()
        wanted = options.engine == "flow" or (options.engine == "auto" and (nranks > _FEW or not plain))
        if wanted and options.steps is None and options.rounds is None:
            self._flow()

    def _compare(self) -> None:
        """What a vendor library would run, where that is no work to speak of."""
        if self.problem.fold is None and self.allowed is None and estimated_sends(self.problem) <= _COMPARED:
            self.found.baselines = baseline(self.problem)
            if not self.options.pinned:
                self.algorithms += self.found.baselines

    def _flow(self) -> None:
        """The engine for any size, on the folded problem first where the network's symmetry has one."""
        options = self.options
        other = folded(self.problem) if self.allowed is None else None
        size = options.size or LARGEST
        sends = estimated_sends(self.problem)
        for problem in (other, self.problem):
            best = min((a.time_us(size) for a in self.algorithms), default=np.inf)
            # what the fold found is good enough where the whole takes long
            near = best <= self.found.bound.at(size)[0] * (close_enough(0) if sends < SEVERAL else 1.03)
            if problem is None or (near and problem is self.problem and other is not None):
                continue
            search = FlowSearch(
                problem,
                self.found.bound,
                self._take,
                size=options.size,
                chunks=options.chunks,
                allowed=self.allowed if problem is self.problem else None,
                deadline=self.deadline,
                most_sends=MOST_SENDS if problem is self.problem else EXPANDED // copies(problem),
                say=self._say,
            )
            search.run()
            if problem is self.problem:
                self.loads = search.loads

    def _refuse_shape(self) -> None:
        options = self.options
        if (options.steps, options.rounds) != (None, None) or options.engine not in ("auto", "flow", "route"):
            raise InputError(
                f"--steps, --rounds and the exact engines are for {_EXACT} ranks at most; this problem has"
                f" {self.problem.nranks}"
            )

    def _take(self, problem: Problem, schedule: Schedule, size: int) -> float:
        """Keep the flow engine's best answer for a size; its time in µs there.

        A folded one is written out, or left where that would be too long.
        """
        if problem.fold is not None and self.problem.fold is None:
            if len(schedule) * problem.fold.order > EXPANDED:
                return np.inf
            problem, schedule = expand(problem, schedule)
        algorithm = Algorithm(problem, schedule, FLOW, size_bytes=size)
        before = self.routed.get(size)
        took = algorithm.time_us(size)
        if before is None or took < before.time_us(size):
            self.algorithms = [a for a in self.algorithms if a is not before] + [algorithm]
            self.routed[size] = self.latest = algorithm
        return took

    def _add(self, problem: Problem, schedule: Schedule, engine: str) -> None:
        if engine != route.NAME:
            schedule = slotted(problem, schedule)
        algorithm = Algorithm(problem, schedule, engine)
        self.algorithms.append(algorithm)
        self.latest = algorithm

    def _say(self, text: str) -> None:
        self.progress(text, self.latest)

    def _construct(self) -> None:
        """Answers at once: shallow trees for small messages, deeper ones of more chunks for large."""
        large, small = self.options.size or LARGEST, self.options.size or SMALLEST
        halves = forms(self.problem)
        source = halves[0].copying(1).collective.pre[:, 0]
        # few sources leave links idle unless their chunks follow each other closely
        several = (8, 64) if len(np.unique(source)) <= 2 else (4, 16)
        plans = [(1, small, 1.0, 1), (1, large, 1.0, 3), (1, large, 0.5, 3)]
        plans += [(chunks, large, depth, 3) for chunks in several for depth in (0.0, 0.5, 1.0)]
        spent = 0.0
        for chunks, size, depth, passes in plans:
            # told by counting, not by the clock: the same question must get the same answer
            spent += sum(route.work(form.copying(chunks)) for form in halves) * passes
            if spent > _CONSTRUCTIVE_SHARE * self.options.budget_s and self.algorithms:
                continue
            parts = [
                form.back(chunks, route.solve(form.copying(chunks), size, depth, passes)) for form in halves
            ]
            problem = self.problem.with_chunks(halves[0].chunks(chunks))
            schedule = parts[0] if len(parts) == 1 else dispatched(problem, join(*parts), size)
            self._add(problem, schedule, route.NAME)
            self._say("constructive search")

    def _lucky(self) -> bool:
        """Whether routing happens to meet a pinned shape, which then needs no solver."""
        options = self.options
        if options.engine != "auto" or None in (options.steps, options.rounds, options.chunks):
            return False
        halves = forms(self.problem)
        if len(halves) == 2 or options.chunks is None:
            return False
        problem = self.problem.with_chunks(options.chunks)
        copying = halves[0].copying(options.chunks)
        if route.work(copying) > 0.1:
            return False
        for depth in (1.0, 0.5):
            schedule = halves[0].back(options.chunks, route.solve(copying, LARGEST, depth))
            if schedule.nsteps == options.steps and rounds_of(problem, schedule) <= (options.rounds or 0):
                self._add(problem, schedule, route.NAME)
                return True
        return False

    def _exact(self) -> None:
        """The Pareto set of every copying half, put together."""
        halves = forms(self.problem)
        options = self.options
        chunks, steps, rounds = options.chunks, options.steps, options.rounds
        if len(halves) == 2:  # the user's numbers are of the whole
            unit = halves[0].chunks(1)
            if any(x is not None and x % d for x, d in ((chunks, unit), (steps, 2), (rounds, 2))):
                return
            chunks, steps, rounds = (
                None if x is None else x // d for x, d in ((chunks, unit), (steps, 2), (rounds, 2))
            )
        first = self._stepper(halves[0])
        whole = halves[0].copying(1)
        part = "each half" if len(halves) == 2 else ""
        self.claimed[part] = whole
        net = whole.network
        distance = hops(net.nranks, net.src, net.dst)
        fewest = _fewest_steps(whole, distance)
        ratio = _ratio_bound(whole, prove(whole, max_flow=False))
        for claim in pareto(
            first,
            fewest,
            ratio,
            most_steps=fewest + _MOST_EXTRA_STEPS,
            pins=Pins(steps, chunks, rounds),
            say=self._say,
        ):
            self.found.claims.append(replace(claim, part=part))
            if claim.best is None or claim.best.schedule is None:
                # of an all-reduce this is only one way to do it
                if options.pinned and claim.complete and claim.best is None and len(halves) == 1:
                    self.found.impossible = _refusal(claim, options)
                continue
            self._compose(halves, claim.best)

    def _stepper(self, form: Form) -> StepSearch:
        @lru_cache(maxsize=64)
        def copying(chunks: int) -> Problem:
            return form.copying(chunks)

        known: dict[int, Symmetry] = {}

        def symmetry(problem: Problem) -> Symmetry:
            return known.setdefault(problem.collective.nchunks, free_symmetry(problem))

        return StepSearch(
            self.workers,
            copying,
            symmetry,
            deadline=self.deadline,
            effort=self.options.budget_s / 50,
            engine=self.options.engine,
            seed=self.options.seed,
        )

    def _compose(self, halves: list[Form], verdict: Verdict) -> None:
        shape, schedule = verdict.shape, verdict.schedule
        assert schedule is not None
        problem = self.problem.with_chunks(halves[0].chunks(shape.chunks))
        parts = [halves[0].back(shape.chunks, schedule)]
        if len(halves) == 2:
            other = self._other_half(halves, shape, schedule)
            parts.append(halves[1].back(shape.chunks, other))
        self._add(problem, _joined(parts), verdict.by)
        self._say(f"found ({shape.chunks}, {shape.steps}, {shape.rounds})")

    def _other_half(self, halves: list[Form], shape: Shape, schedule: Schedule) -> Schedule:
        """The second half's schedule from the first's: the same where both ask the same of like networks."""
        form = halves[1]
        mirror = mirror_links(self.problem.network)
        one, two = (half.copying(shape.chunks).collective for half in halves)
        if mirror is not None and np.array_equal(one.pre, two.pre) and np.array_equal(one.post, two.post):
            return replace(schedule, link=mirror[schedule.link])
        stepper = self._stepper(form)
        for extra in range(shape.steps + 1):
            verdict = stepper.decide(replace(shape, rounds=shape.rounds + extra), stepper.effort)
            if verdict.schedule is not None:
                return verdict.schedule
        return route.solve(form.copying(shape.chunks), LARGEST)

    def _combining(self) -> None:
        """All-reduce in fewer steps than a reduce-scatter and an all-gather need."""
        problem, options = self.problem, self.options
        net, k = problem.network, problem.collective.nranks
        distance = hops(net.nranks, net.src, net.dst)
        diameter = int(distance[:k, :k].max())
        search = StepSearch(
            self.workers,
            problem.with_chunks,
            free_symmetry,
            deadline=self.deadline,
            effort=options.budget_s / 150,
            engine=options.engine,
            seed=options.seed,
            combining=True,
        )
        if options.steps is not None and options.steps < diameter:
            claim = Claim(options.steps, np.inf, "distance", None, True, None, None)
            self.found.impossible = _refusal(claim, options)
            return
        composed = min((a.steps for a in self.algorithms), default=2 * diameter)
        numbers = range(diameter, max(diameter + 1, composed)) if options.steps is None else [options.steps]
        for steps in numbers:
            for chunks in (1, k) if options.chunks is None else (options.chunks,):
                work = net.nlinks * k * steps * chunks * free_symmetry(problem).order
                if (options.pinned and self.algorithms) or search.left() <= 0 or work > _COMBINING_SIZE:
                    continue
                self._at_one_go(search, steps, chunks)

    def _at_one_go(self, search: StepSearch, steps: int, chunks: int) -> None:
        ratio = _ratio_bound(self.problem, self.found.bound)
        pins = Pins(steps, self.options.chunks, self.options.rounds)
        claim = fewest_rounds(search, steps, chunks, ratio, pins, self._say)
        if claim.best is not None and claim.best.schedule is not None:
            self._add(self.problem.with_chunks(chunks), claim.best.schedule, claim.best.by)
            self.found.claims.append(claim)
        elif claim.complete and None not in (self.options.steps, self.options.chunks, self.options.rounds):
            self.found.impossible = _refusal(claim, self.options)

    def _timed(self) -> None:
        """Time slots in place of steps, where no one step suits all links (or this engine is asked for)."""
        net, options = self.problem.network, self.options
        halves = forms(self.problem)
        alike = np.ptp(net.alpha_us) == 0
        if len(halves) == 2 or (options.engine == "auto" and (alike or options.pinned)):
            return
        sizes = [options.size] if options.size else [r.shown for r in frontier(self.algorithms)]
        for size in sizes or [LARGEST]:
            best = min((a.time_us(size) for a in self.algorithms), default=np.inf)
            if options.engine == "auto" and best <= self.found.bound.at(size)[0] * 1.01:
                continue
            for chunks in (1, 2) if options.chunks is None else (options.chunks,):
                self._say(f"time slots: {chunks} chunks")
                answer = in_slots(self.workers, halves[0], chunks, size, self._slot_budget(), options.seed)
                if answer is not None:
                    schedule, claim = answer
                    self._add(self.problem.with_chunks(claim.chunks), schedule, milp.NAME)
                    self.found.slots.append(claim)

    def _slot_budget(self) -> float:
        left = self.deadline - time.monotonic()
        return left * (0.9 if self.options.engine == "milp" else 0.2)

    def _tighten(self) -> None:
        """Work on the bound where the best algorithm does not meet it yet."""
        size = self.options.size or LARGEST
        best = min((a.time_us(size) for a in self.algorithms), default=0.0)
        many = len(self.latest.schedule) if self.latest is not None else 0
        if best <= self.found.bound.at(size)[0] * max(1.001, close_enough(many) - 0.001):
            return
        witnesses = [] if self.options.pinned else [*prove(self.problem, max_flow=True).witnesses]
        if self.loads is not None and len(self.loads) == self.problem.network.nresources:
            self._say("bound: prices")
            witnesses.append(from_loads(self.problem, self.loads, rounds=10))
        self.found.bound = merged_bound(self.found.bound, witnesses)
        if best <= self.found.bound.at(size)[0] * 1.001 or self.problem.fold is not None:
            return
        witness = lengths_witness(self.problem, self.workers, max(2.0, self.deadline - time.monotonic()))
        if witness is not None:
            self.found.bound = merged_bound(self.found.bound, [witness])

    def _recheck(self) -> None:
        """Step bounds again from their prices alone; one that does not hold is a defect and is not hidden."""
        for claim in self.found.claims:
            problem = self.claimed.get(claim.part)
            if claim.bound is None or problem is None or time.monotonic() >= self.deadline:
                continue
            if problem.collective.nranks <= MOST_GOALS + 1 and np.isfinite(claim.bound.ratio):
                check_step_bound(problem, claim.bound)


def copies(problem: Problem) -> int:
    """How many translated copies of its schedule a problem stands for."""
    return 1 if problem.fold is None else problem.fold.order


def merged_bound(bound: Bound, witnesses: list[Witness]) -> Bound:
    """With further witnesses; what they prove is not lost, and none stands there twice."""
    return Bound(tuple(dict.fromkeys((*bound.witnesses, *witnesses))))


def _joined(parts: list[Schedule]) -> Schedule:
    return parts[0] if len(parts) == 1 else join(parts[0], parts[1])


def _fewest_steps(problem: Problem, distance: Ints) -> int:
    """Hops that some chunk must go."""
    collective = problem.collective
    holds, wants = collective.holds, collective.wants
    k = collective.nranks
    far = 0
    for chunk in range(collective.nchunks):
        goals = np.flatnonzero(wants[chunk] & ~holds[chunk])
        if len(goals):
            far = max(far, int(distance[:k, :k][holds[chunk]][:, goals].min(axis=0).max()))
    return far


def _ratio_bound(problem: Problem, bound: Bound) -> float:
    """Rounds a chunk that no algorithm can beat, from the bound for large messages (one chunk a block)."""
    smallest = float(problem.collective.fraction.min()) * problem.collective.chunks
    return bound.per_byte_us * 1e3 * unit_gbs(problem) / smallest


def _refusal(claim: Claim, options: Options) -> str:
    pinned = (("steps", options.steps), ("rounds", options.rounds), ("chunks", options.chunks))
    shape = ", ".join(
        f"{value} {name if value > 1 else name[:-1]}" for name, value in pinned if value is not None
    )
    why = {
        "relaxation": f"{claim.steps} steps need at least {claim.at_least:.6g} rounds a chunk (relaxation)",
        "cut": f"any number of steps needs at least {claim.at_least:.6g} rounds a chunk (cut)",
        "distance": "some chunk has further to go than there are steps",
        "rounds ≥ steps": "every step takes a round",
    }.get(claim.by, f"refuted by {claim.by}")
    what = (
        "schedule" if claim.part != PART or claim.by == "cut" else "all-reduce with one sum a rank and chunk"
    )
    return f"no {what} has {shape}: {why}"
