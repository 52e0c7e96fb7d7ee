"""The search for reduction programs: all sequences by a formula, the best as verified schedules, and their rivals.

The rivals are the single all-reduce as a library would run it (rings or double binary trees in every group at the same
time) and our own search's schedule for the same groups. The bound holds for any algorithm for these groups.
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
from synth.parallelism.reduction.concrete import ConcreteStep, concrete, described
from synth.parallelism.reduction.join_steps import MOST_SENDS, Reduction, StepSchedule, join_steps
from synth.parallelism.reduction.sequences import ReductionStep
from synth.parallelism.reduction.sequences import Sequence as Steps
from synth.parallelism.reduction.states import ALLREDUCE, INSIDE, Slice, SynthesisHierarchy
from synth.parallelism.reduction.step_costs import StepCosts, ranked
from synth.parallelism.reduction.step_schedules import library_schedules, searched_schedule
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError, ScheduleError, ScheduleRefused
from topologies.topology import Topology

LIBRARY = ("ring", "tree")  # NCCL's algorithms for a single all-reduce.
ALL = ("ring", "tree", "direct", "recursive doubling")  # The baselines for a step.
METHOD, LIBRARY_S = "reduction program", "as a library runs it"  # Values of a plan's method.
_MORE = (1, 4, 16)  # Factors on the budget of the search for all groups, tried until it has an answer.
_TRIED = 4  # Sequences that are tried for each wanted program.
_LEAST_S = 0.05  # Seconds that a search gets even after the deadline.


@dataclass(frozen=True)
class ReductionTuning:
    """The settings that decide which programs become schedules and how long each search takes.

    Attributes:
        joined: Number of programs that become schedules with baseline schedules for their steps, the best by the
            formula.
        searched: Number of these that are built again with searched schedules for their steps.
        steps: Share of the budget for the searches of the programs' steps.
        union: Share of the budget for the search of the all-reduce itself.
        least: Seconds per send of the all-reduce that its search gets even if it begins late; less gives no answer.
    """

    joined: int = 6
    searched: int = 1
    steps: float = 0.4
    union: float = 0.3
    least: float = 4e-5


TUNING = ReductionTuning()


@dataclass(frozen=True, eq=False)
class ReductionProgram:
    """A program as one verified schedule of the all-reduce of all groups.

    Attributes:
        steps: Its steps.
        algorithm: The schedule.
        time_us: Time in µs at the requested size: of its files if an executor runs it, else of its schedule.
    """

    steps: Steps
    algorithm: Algorithm
    time_us: float


@dataclass(eq=False)
class ReductionPrograms:
    """The result of a search for reduction programs.

    Attributes:
        request: The request.
        hierarchy: Synthesis hierarchy of one group.
        count: Number of all sequences.
        programs: The programs that became schedules, the fastest first.
        single: The single all-reduce as a library would run it; None if there is none.
        searched: Result of our own search, which may have adopted a program.
        searched_us: Time of that result in µs, measured as that of a program.
        seconds: Duration of the search in seconds.
        stop_reason: "", or why the search stopped early ("budget", "interrupted").
    """

    request: Reduction
    hierarchy: SynthesisHierarchy
    count: int
    programs: list[ReductionProgram]
    single: StepSchedule | None
    searched: ConcurrentResult
    searched_us: float
    seconds: float = 0.0
    stop_reason: str = ""

    @property
    def bound_us(self) -> float:
        """Return the bound in µs: no algorithm for these groups takes less."""
        return self.searched.bound_us

    @property
    def best_us(self) -> float:
        """Return the time in µs of the fastest program or of the searched schedule, whichever is less."""
        return min([self.searched_us, *(program.time_us for program in self.programs[:1])])

    def written_as(self, program: ReductionProgram) -> ConcurrentResult:
        """Return a copy of `searched` with a program in the place of its plan, so that the program can be written."""
        plan = as_plan(program)
        return replace(self.searched, problem=plan.problem, algorithm=plan.algorithm, method=plan.method)


def as_plan(program: ReductionProgram) -> ConcurrentPlan:
    """Return a program as a plan for concurrent groups."""
    problem = program.algorithm.problem
    assert isinstance(problem, UnionProblem)
    return ConcurrentPlan(problem, program.algorithm, METHOD)


def as_it_is(single: StepSchedule) -> ConcurrentPlan:
    """Return a library's schedule of the single all-reduce as a plan for concurrent groups."""
    return ConcurrentPlan(single.problem, Algorithm(single.problem, single.schedule, single.engine), LIBRARY_S)


def reduction(
    topology: Topology, groups: Sequence[Sequence[int]], size_bytes: float, relays: str = "none"
) -> Reduction:
    """Build the request of an all-reduce in groups at the same time, of `size_bytes` bytes each.

    `relays` of the request is "all" also where "none" was given but the groups need relays.

    Args:
        topology: The topology.
        groups: Ranks of each group, all of one size, in the order of their coordinates in the synthesis hierarchy.
        size_bytes: Size of each group's message in bytes.
        relays: "all": every rank may forward for every group; "none": only where the ranks of a group do not reach each
            other without relays.

    Raises:
        InputError: Ranks cannot reach each other at all, or `union_problem` refuses the groups otherwise.
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
    """Return the program whose only step is an all-reduce."""
    return (ReductionStep(ALLREDUCE, Slice(0, len(hierarchy.factors), INSIDE)),)


class ProgramSearch:
    """The programs of one request, with a cache of the schedules of their steps.

    Attributes:
        request: The request.
        hierarchy: Synthesis hierarchy of one of its groups.
        count: Number of sequences.
        ranked: The sequences, the best by the formula first, without those for which there are no routes.
        most_sends: Largest number of sends of a program.
    """

    def __init__(
        self,
        request: Reduction,
        hierarchy: SynthesisHierarchy,
        all_sequences: Sequence[Steps],
        executor: GroupExecutor | None = None,
    ) -> None:
        """Rank the sequences.

        Args:
            request: The request.
            hierarchy: Synthesis hierarchy of one of its groups.
            all_sequences: The sequences over this hierarchy.
            executor: The executor that will run the programs, by which `most_sends` is smaller; None: `MOST_SENDS`.

        Raises:
            InputError: Ranks of a group do not reach each other.
        """
        self.request, self.hierarchy, self.count = request, hierarchy, len(all_sequences)
        self.ranked = ranked(all_sequences, StepCosts(request, hierarchy))
        union = request.problem()
        rank_sends = None if executor is None else executor.rank_sends(union)
        self.most_sends = MOST_SENDS if rank_sends is None else min(MOST_SENDS, rank_sends * union.nranks)
        self._library: dict[tuple[ConcreteStep, tuple[str, ...]], list[StepSchedule]] = {}
        self._searched: dict[ConcreteStep, StepSchedule] = {}

    def single(self, names: Sequence[str] = LIBRARY) -> StepSchedule | None:
        """Return the fastest of the baselines `names` for the single all-reduce, or None if there is none."""
        (step,) = concrete(single_step(self.hierarchy), self.hierarchy)
        return next(iter(self.library(step, names)), None)

    def library(self, step: ConcreteStep, names: Sequence[str]) -> list[StepSchedule]:
        """Return the schedules of a step by the baselines `names`, the fastest first; empty if none has the step."""
        key = step, tuple(names)
        if key not in self._library:
            self._library[key] = library_schedules(self.request, step, names)
        return self._library[key]

    def searched(self, step: ConcreteStep, budget_s: float, workers: Workers) -> StepSchedule:
        """Return the faster of a step's best baseline schedule and its searched schedule.

        A step is searched once, for `budget_s` seconds (more than 0); later calls return the same schedule.

        Raises:
            InputError: The ranks of a group of the step do not reach each other.
        """
        if step not in self._searched:
            searched_result = searched_schedule(self.request, step, budget_s, workers)
            self._searched[step] = min(
                [searched_result, *self.library(step, ALL)[:1]], key=lambda candidate: candidate.time_us
            )
        return self._searched[step]

    def made(self, steps: Steps, schedule_of: Callable[[ConcreteStep], StepSchedule | None]) -> ReductionProgram | None:
        """Build a program from schedules of its steps.

        Args:
            steps: Its steps.
            schedule_of: Function that returns the schedule of a step, or None if it has none.

        Returns:
            The program, or None if a step has no schedule, the schedules do not fit each other, or the program has more
            than `most_sends` sends.
        """
        concrete_steps = concrete(steps, self.hierarchy)
        schedules = [schedule for schedule in map(schedule_of, concrete_steps) if schedule is not None]
        if len(schedules) < len(concrete_steps):
            return None
        with suppress(InputError, ScheduleError, ScheduleRefused):
            algorithm = join_steps(self.request, concrete_steps, schedules, self.most_sends)
            return ReductionProgram(steps, algorithm, algorithm.time_us(self.request.size_bytes))
        return None

    def by_library(self, steps: Steps, names: Sequence[str]) -> ReductionProgram | None:
        """Build a program from the fastest schedule of each step by the baselines `names`; None as for `made`."""
        return self.made(steps, lambda step: next(iter(self.library(step, names)), None))


def reduce_programs(
    request: Reduction,
    hierarchy: SynthesisHierarchy,
    all_sequences: Sequence[Steps],
    *,
    budget: float = 30.0,
    begun: float | None = None,
    workers: Workers | None = None,
    progress: Callable[[str], None] = lambda _: None,
    executor: GroupExecutor | None = None,
    tuning: ReductionTuning = TUNING,
) -> ReductionPrograms:
    """Find the best programs of a request, their rivals and the bound.

    If a program is faster than the searched schedule, `searched` of the result is that program. After Ctrl-C the result
    holds what was found before.

    Args:
        request: The request.
        hierarchy: Synthesis hierarchy of one of its groups.
        all_sequences: The sequences over this hierarchy.
        budget: Seconds for the search. There is an answer even with 0 seconds.
        begun: Time of `now` from which the budget counts; None: the time of the call.
        workers: Solver processes to use; None: new ones.
        progress: Function that gets a text about each part of the search.
        executor: The executor that will run the plans; None: only the schedules count.
        tuning: Settings of the search.

    Raises:
        InputError: The ranks of a group do not reach each other.
    """
    begun = now() if begun is None else begun
    search, ended = ProgramSearch(request, hierarchy, all_sequences, executor), ""
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
        remaining_s = 0.0 if ended else begun + (tuning.steps + tuning.union) * budget - now()
        remaining_s = max(remaining_s, _LEAST_S, tuning.least * estimated_sends(request.problem()))
        rivals = [*map(as_plan, programs), *([] if single is None else [as_it_is(single)])]
        union = _searched(request, remaining_s, rivals, workers, executor, progress)
    programs.sort(key=lambda program: program.time_us)
    searched_us = union.makespan_us
    if executor is not None and not ended:
        try:
            searched_us = _run_us(ConcurrentPlan(union.problem, union.algorithm, union.method), executor)
            for number, program in enumerate(programs):
                if number == 0 or now() < begun + budget:  # The first program always has files.
                    programs[number] = replace(program, time_us=_run_us(as_plan(program), executor))
        except KeyboardInterrupt:
            ended = "interrupted"
    programs.sort(key=lambda program: program.time_us)
    result = ReductionPrograms(request, hierarchy, search.count, programs, single, union, searched_us)
    if programs and programs[0].time_us < searched_us:  # The search had no time to adopt it.
        result.searched, result.searched_us = result.written_as(programs[0]), programs[0].time_us
    result.seconds, result.stop_reason = now() - begun, ended or union.stop_reason
    return result


def _run_us(plan: ConcurrentPlan, executor: GroupExecutor) -> float:
    """Return a plan's time in µs as the executor runs its files, or as its schedule if the executor has no files."""
    with suppress(InputError):
        return executor.time_us(plan.problem, plan.algorithm)
    return plan.makespan_us


def _searched(
    request: Reduction,
    budget: float,
    first: Sequence[ConcurrentPlan],
    workers: Workers,
    executor: GroupExecutor | None,
    progress: Callable[[str], None],
) -> ConcurrentResult:
    """Find a plan for all groups; repeat with more time if a busy machine gives no answer.

    Raises:
        InputError: There is no answer with the most time either.
    """
    members = request.members(1)
    for factor in _MORE:
        try:
            return plan(
                request.topology, members, relays=request.relays, budget=budget * factor, workers=workers,
                executor=executor, first=first, progress=lambda text, _: progress(f"all-reduce: {text}"),
            )  # fmt: skip
        except InputError:
            if factor == _MORE[-1]:
                raise
    raise AssertionError  # The last factor returns or raises.


def _join_best(
    search: ProgramSearch,
    programs: list[ReductionProgram],
    tuning: ReductionTuning,
    until: float,
    workers: Workers,
    progress: Callable[[str], None],
) -> None:
    """Add the best sequences' programs: with baseline schedules, then the best of them with searched schedules.

    `programs` is changed in place; a searched program replaces its baseline version if it is faster.
    """
    for number, steps in enumerate(search.ranked[: _TRIED * tuning.joined]):
        has_steps = any(len(program.steps) > 1 for program in programs)
        # Where the steps of many sequences do not fit (see `join_steps`), later sequences replace them.
        if len(programs) == tuning.joined or (now() >= until and (has_steps or number >= tuning.joined)):
            break
        progress(f"program {len(programs) + 1} of {tuning.joined}")
        program = search.by_library(steps, ALL)
        if program is not None:
            programs.append(program)
    if now() >= until:
        return
    programs.sort(key=lambda program: program.time_us)
    # The search for the union covers the all-reduce as one step.
    for candidate in [program for program in programs if len(program.steps) > 1][: tuning.searched]:
        distinct = len(set(concrete(candidate.steps, search.hierarchy)))

        def searched(step: ConcreteStep, share: int = distinct) -> StepSchedule:
            """Return the searched schedule of a step, with an equal share of the remaining time."""
            progress(f"{step.collective} in {len(step.groups)} groups of each")
            return search.searched(step, max(_LEAST_S, until - now()) / share, workers)

        program = search.made(candidate.steps, searched)
        if program is not None and program.time_us < candidate.time_us:
            programs[programs.index(candidate)] = program


class Written(Protocol):
    """Files that were written for one schedule."""

    files: list[Path]
    schedules: list[Path]


def statement(result: ReductionPrograms, written: Sequence[Written | None] = ()) -> dict[str, Any]:
    """Return the result of a search in plain values; times are in µs.

    Keys: topology (its name), groups, hierarchy (level → parts, of one group), size_bytes, relay, sequences (how many
    there are); programs, best first: steps (collective, slice, form), time_us, vs_single (the single all-reduce's time
    / its own; None without single), engine, file (an executor's or else the schedule's; None without), files; single
    (None if there is none) and searched: time_us, engine, the latter with by (how it was planned; it may be a program),
    file and files; bound_us, proof (what proves it); gap (best time / bound); best ("program" or "searched"; of equal
    times the program); ended ("", "budget" or "interrupted"), seconds.

    Args:
        result: The result.
        written: Files of the searched schedule, then of each program in order; None, or an entry that is missing at the
            end, for what was not written.
    """
    single_us = None if result.single is None else result.single.time_us
    files = [_files(entry) for entry in written] + [_files(None)] * (1 + len(result.programs) - len(written))
    best_program = bool(result.programs) and result.programs[0].time_us <= result.searched_us
    return {
        "topology": result.request.topology.name,
        "groups": [list(group) for group in result.request.groups],
        "hierarchy": dict(zip(result.hierarchy.names, result.hierarchy.factors, strict=True)),
        "size_bytes": result.request.size_bytes,
        "relay": result.request.relays,
        "sequences": result.count,
        "programs": [
            {
                "steps": [described(step, result.hierarchy) for step in program.steps],
                "time_us": program.time_us,
                "vs_single": None if single_us is None else single_us / program.time_us,
                "engine": program.algorithm.engine,
                **own,
            }
            for program, own in zip(result.programs, files[1:], strict=True)
        ],
        "single": None if result.single is None else {"time_us": single_us, "engine": result.single.engine},
        "searched": {
            "time_us": result.searched_us,
            "engine": result.searched.algorithm.engine,
            "by": result.searched.method,
            **files[0],
        },
        "bound_us": result.bound_us,
        "proof": result.searched.decisive[1].text,
        "gap": result.best_us / result.bound_us,
        "best": "program" if best_program else "searched",
        "ended": result.stop_reason,
        "seconds": round(result.seconds, 3),
    }


def _files(written: Written | None) -> dict[str, Any]:
    """Return the files that were written for a schedule, as texts: `file` (the first, or None) and `files` (all).

    They are an executor's files, or the schedules where there are none.
    """
    listed = [] if written is None else [str(path) for path in written.files or written.schedules]
    return {"file": listed[0] if listed else None, "files": listed}
