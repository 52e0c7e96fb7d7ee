"""The search for reduction programs: all sequences by a formula, the best as verified schedules, and their rivals.

Beside the programs stand the single all-reduce as a library would run it (rings or double binary trees in every group
at once), our own search's schedule for the same groups, and the bound on any algorithm for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from synth.concurrent.executable import GroupExecutor
from synth.concurrent.plans import ConcurrentPlan
from synth.concurrent.result import ConcurrentResult
from synth.concurrent.search import plan
from synth.concurrent.union import UnionProblem
from synth.engines.estimates import estimated_sends
from synth.model.deadline import now
from synth.parallelism.concrete import ConcreteStep, concrete, described
from synth.parallelism.join_steps import MOST_SENDS, Reduction, StepSchedule, join_steps
from synth.parallelism.sequences import Sequence as Steps
from synth.parallelism.sequences import Step
from synth.parallelism.states import ALLREDUCE, INSIDE, Slice, SynthesisHierarchy
from synth.parallelism.step_costs import StepCosts, ranked
from synth.parallelism.step_schedules import library_schedules, searched_schedule
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError, ScheduleError, ScheduleRefused
from topologies.topology import Topology

LIBRARY = ("ring", "tree")  # what NCCL runs a single all-reduce as
ALL = ("ring", "tree", "direct", "recursive doubling")  # what a step may be run as without a search
METHOD, LIBRARY_S = "reduction program", "as a library runs it"  # how a searched plan may have been planned
_MORE = (1, 4, 16)  # times the budget of the search for all groups, until it is enough
_TRIED = 4  # times as many sequences are tried as programs are to be made
_LEAST_S = 0.05  # that a search may take, however late it is


@dataclass(frozen=True)
class Tuning:
    """What becomes a schedule, and for how long is searched.

    Attributes:
        joined: programs that become schedules with what libraries run in their steps, the best by the formula.
        searched: of these, how many are made again with schedules that are searched for.
        steps, union: parts of the budget for the searches of the programs' steps and of the all-reduce itself.
        least: seconds a send of the all-reduce, however late its search begins: less is too short for an answer.
    """

    joined: int = 6
    searched: int = 1
    steps: float = 0.4
    union: float = 0.3
    least: float = 4e-5


TUNING = Tuning()


@dataclass(frozen=True, eq=False)
class ReductionProgram:
    """A program as one verified schedule of the all-reduce of all groups.

    time_us: at the size that is asked: its files', where an executor runs it, else its schedule's.
    """

    steps: Steps
    algorithm: Algorithm
    time_us: float


@dataclass(eq=False)
class ReductionPrograms:
    """What a search for reduction programs came to.

    Attributes:
        count: of all sequences. programs: those that became schedules, the fastest first.
        single: the single all-reduce as a library would run it, None where it has none. searched: by our own search,
            which may take up a program. searched_us: its time, as that of a program is meant.
        ended: "" or why it stopped early ("budget", "interrupted").
    """

    asked: Reduction
    hierarchy: SynthesisHierarchy
    count: int
    programs: list[ReductionProgram]
    single: StepSchedule | None
    searched: ConcurrentResult
    searched_us: float
    seconds: float = 0.0
    ended: str = ""

    @property
    def bound_us(self) -> float:
        """No algorithm for these groups takes less."""
        return self.searched.bound_us

    @property
    def best_us(self) -> float:
        """Of the programs and the searched schedule."""
        return min([self.searched_us, *(program.time_us for program in self.programs[:1])])

    def written_as(self, program: ReductionProgram) -> ConcurrentResult:
        """A program in the place of the searched plan, to be written as one."""
        plan = as_plan(program)
        return replace(self.searched, problem=plan.problem, algorithm=plan.algorithm, method=plan.method)


def as_plan(program: ReductionProgram) -> ConcurrentPlan:
    """A program as a plan for concurrent groups."""
    problem = program.algorithm.problem
    assert isinstance(problem, UnionProblem)
    return ConcurrentPlan(problem, program.algorithm, METHOD)


def as_it_is(single: StepSchedule) -> ConcurrentPlan:
    """What a library would run as a plan for concurrent groups."""
    return ConcurrentPlan(single.problem, Algorithm(single.problem, single.schedule, single.engine), LIBRARY_S)


def reduction(
    topology: Topology, groups: Sequence[Sequence[int]], size_bytes: float, relays: str = "none"
) -> Reduction:
    """The all-reduce of groups at once, of `size_bytes` each.

    relays: "all": every rank may forward for every group; "none": only where a group's own ranks are not joined to
    each other.

    Raises InputError: ranks that cannot reach each other at all.
    """
    members = tuple(tuple(int(rank) for rank in group) for group in groups)
    within = Reduction(topology, members, size_bytes, relays)
    try:
        within.problem()
    except InputError:
        relayed = replace(within, relays="all")
        relayed.problem()
        return relayed
    return within


def single_step(hierarchy: SynthesisHierarchy) -> Steps:
    """The program that is one all-reduce."""
    return (Step(ALLREDUCE, Slice(0, len(hierarchy.factors), INSIDE)),)


class ProgramSearch:
    """Programs of one request; what a step is to be run as is made once."""

    def __init__(
        self,
        asked: Reduction,
        hierarchy: SynthesisHierarchy,
        found: Sequence[Steps],
        executor: GroupExecutor | None = None,
    ) -> None:
        """found: the sequences, over `hierarchy`, which is that of one of the groups. executor: what runs them."""
        self.asked, self.hierarchy, self.count = asked, hierarchy, len(found)
        self.ranked = ranked(found, StepCosts(asked, hierarchy))
        union = asked.problem()
        rank_sends = None if executor is None else executor.rank_sends(union)
        self.most_sends = MOST_SENDS if rank_sends is None else min(MOST_SENDS, rank_sends * union.nranks)
        self._library: dict[tuple[ConcreteStep, tuple[str, ...]], list[StepSchedule]] = {}
        self._searched: dict[ConcreteStep, StepSchedule] = {}

    def single(self, names: Sequence[str] = LIBRARY) -> StepSchedule | None:
        """The single all-reduce as a library would run it."""
        (step,) = concrete(single_step(self.hierarchy), self.hierarchy)
        return next(iter(self.library(step, names)), None)

    def library(self, step: ConcreteStep, names: Sequence[str]) -> list[StepSchedule]:
        """What a library would run a step as, the fastest first."""
        key = step, tuple(names)
        if key not in self._library:
            self._library[key] = library_schedules(self.asked, step, names)
        return self._library[key]

    def searched(self, step: ConcreteStep, budget_s: float, workers: Workers) -> StepSchedule:
        """The faster of what a library would run and what is searched for."""
        if step not in self._searched:
            found = searched_schedule(self.asked, step, budget_s, workers)
            self._searched[step] = min([found, *self.library(step, ALL)[:1]], key=lambda made: made.time_us)
        return self._searched[step]

    def made(self, steps: Steps, schedule_of: Callable[[ConcreteStep], StepSchedule | None]) -> ReductionProgram | None:
        """A program with the schedules given for its steps; None where a step has none or they do not go together."""
        each = concrete(steps, self.hierarchy)
        schedules = [own for own in map(schedule_of, each) if own is not None]
        if len(schedules) < len(each):
            return None
        with suppress(InputError, ScheduleError, ScheduleRefused):
            algorithm = join_steps(self.asked, each, schedules, self.most_sends)
            return ReductionProgram(steps, algorithm, algorithm.time_us(self.asked.size_bytes))
        return None

    def by_library(self, steps: Steps, names: Sequence[str]) -> ReductionProgram | None:
        """A program whose steps are what a library would run."""
        return self.made(steps, lambda step: next(iter(self.library(step, names)), None))


def reduce_programs(
    asked: Reduction,
    hierarchy: SynthesisHierarchy,
    found: Sequence[Steps],
    *,
    budget: float = 30.0,
    begun: float | None = None,
    workers: Workers | None = None,
    progress: Callable[[str], None] = lambda _: None,
    executor: GroupExecutor | None = None,
    tuning: Tuning = TUNING,
) -> ReductionPrograms:
    """The best programs of a request, what they compete with, and the bound.

    Args:
        asked: the groups. hierarchy: of one of them, over which `found`, the sequences, are.
        budget: seconds, since `begun` of `now` (None: since now). There is an answer even where it is 0.
        executor: what is to run the searched plan; None: its schedule is all that counts.
    """
    begun = now() if begun is None else begun
    search, ended = ProgramSearch(asked, hierarchy, found, executor), ""
    programs: list[ReductionProgram] = []
    single: StepSchedule | None = None
    with ExitStack() as stack:
        workers = workers or stack.enter_context(Workers())
        try:
            progress("single all-reduce")
            single = search.single()
            _join_best(search, programs, tuning, begun + tuning.steps * budget, workers, progress)
        except KeyboardInterrupt:
            ended = "interrupted"
        left = 0.0 if ended else begun + (tuning.steps + tuning.union) * budget - now()
        left = max(left, _LEAST_S, tuning.least * estimated_sends(asked.problem()))
        first = [*map(as_plan, programs), *([] if single is None else [as_it_is(single)])]
        union = _searched(asked, left, first, workers, executor, progress)
    programs.sort(key=lambda made: made.time_us)
    searched_us = union.makespan_us
    if executor is not None and not ended:
        try:
            searched_us = _run_us(ConcurrentPlan(union.problem, union.algorithm, union.method), executor)
            for number, made in enumerate(programs):
                if number == 0 or now() < begun + budget:  # the first has files however long the search was
                    programs[number] = replace(made, time_us=_run_us(as_plan(made), executor))
        except KeyboardInterrupt:
            ended = "interrupted"
    programs.sort(key=lambda made: made.time_us)
    result = ReductionPrograms(asked, hierarchy, search.count, programs, single, union, searched_us)
    if programs and programs[0].time_us < searched_us:  # the search's answer too, though it had no time to take it up
        result.searched, result.searched_us = result.written_as(programs[0]), programs[0].time_us
    result.seconds, result.ended = now() - begun, ended or union.ended
    return result


def _run_us(plan: ConcurrentPlan, executor: GroupExecutor) -> float:
    """A plan's time in µs as its files take it, as its schedule does where the executor can hold none."""
    with suppress(InputError):
        return executor.time_us(plan.problem, plan.algorithm)
    return plan.makespan_us


def _searched(
    asked: Reduction,
    budget: float,
    first: Sequence[ConcurrentPlan],
    workers: Workers,
    executor: GroupExecutor | None,
    progress: Callable[[str], None],
) -> ConcurrentResult:
    """The search for all groups; with more time where it is too short for an answer on a machine as busy as this."""
    members = asked.members(1)
    for times in _MORE:
        try:
            return plan(
                asked.topology, members, relays=asked.relays, budget=budget * times, workers=workers,
                executor=executor, first=first, progress=lambda text, _: progress(f"all-reduce: {text}"),
            )  # fmt: skip
        except InputError:
            if times == _MORE[-1]:
                raise
    raise AssertionError  # there is a last one


def _join_best(
    search: ProgramSearch,
    programs: list[ReductionProgram],
    tuning: Tuning,
    until: float,
    workers: Workers,
    progress: Callable[[str], None],
) -> None:
    """Add the best sequences' programs: with a library's schedules, then the best of them with searched ones."""
    for number, steps in enumerate(search.ranked[: _TRIED * tuning.joined]):
        several = any(len(made.steps) > 1 for made in programs)
        # where many do not go together (see `join_steps`), later ones stand in for them
        if len(programs) == tuning.joined or (now() >= until and (several or number >= tuning.joined)):
            break
        progress(f"program {len(programs) + 1} of {tuning.joined}")
        made = search.by_library(steps, ALL)
        if made is not None:
            programs.append(made)
    if now() >= until:
        return
    programs.sort(key=lambda made: made.time_us)
    # the all-reduce as one step is searched for in any case
    for best in [made for made in programs if len(made.steps) > 1][: tuning.searched]:
        distinct = len(set(concrete(best.steps, search.hierarchy)))

        def searched(step: ConcreteStep, share: int = distinct) -> StepSchedule:
            progress(f"{step.collective} in {len(step.groups)} groups of each")
            return search.searched(step, max(_LEAST_S, until - now()) / share, workers)

        made = search.made(best.steps, searched)
        if made is not None and made.time_us < best.time_us:
            programs[programs.index(best)] = made


class Written(Protocol):
    """Files that were made of one schedule."""

    files: list[Path]
    schedules: list[Path]


def statement(found: ReductionPrograms, written: Sequence[Written | None] = ()) -> dict[str, Any]:
    """Everything that was found, in plain values; times in µs.

    Keys: topology, groups, hierarchy (level → parts, of one group), size_bytes, relay, sequences (how many there are);
    programs, best first: steps (collective, slice, form), time_us, vs_single (the single all-reduce's time / its own),
    file (an executor's or else the schedule's; None without), files; single and searched: time_us, engine, the latter
    with by (how it was planned; it may be a program), file and files; bound_us, proof (what proves it); gap (best time
    / bound); best (program or searched); ended, seconds.

    Args:
        written: of the searched schedule, then of each program.
    """
    single_us = None if found.single is None else found.single.time_us
    files = [_files(one) for one in written] + [_files(None)] * (1 + len(found.programs) - len(written))
    best_program = bool(found.programs) and found.programs[0].time_us <= found.searched_us
    return {
        "topology": found.asked.topology.name,
        "groups": [list(group) for group in found.asked.groups],
        "hierarchy": dict(zip(found.hierarchy.names, found.hierarchy.factors, strict=True)),
        "size_bytes": found.asked.size_bytes,
        "relay": found.asked.relays,
        "sequences": found.count,
        "programs": [
            {
                "steps": [described(step, found.hierarchy) for step in program.steps],
                "time_us": program.time_us,
                "vs_single": None if single_us is None else single_us / program.time_us,
                "engine": program.algorithm.engine,
                **own,
            }
            for program, own in zip(found.programs, files[1:], strict=True)
        ],
        "single": None if found.single is None else {"time_us": single_us, "engine": found.single.engine},
        "searched": {
            "time_us": found.searched_us,
            "engine": found.searched.algorithm.engine,
            "by": found.searched.method,
            **files[0],
        },
        "bound_us": found.bound_us,
        "proof": found.searched.decisive[1].text,
        "gap": found.best_us / found.bound_us,
        "best": "program" if best_program else "searched",
        "ended": found.ended,
        "seconds": round(found.seconds, 3),
    }


def _files(written: Written | None) -> dict[str, Any]:
    listed = [] if written is None else [str(path) for path in written.files or written.schedules]
    return {"file": listed[0] if listed else None, "files": listed}
