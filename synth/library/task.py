"""One problem of a library: what is to be solved, by whoever has a processor free, and the answer as bytes.

The answer holds the executors' files and the schedules with their proofs, as `emit.library.save` writes them, and what
the index says of them. It follows from the task alone: engines count their work in place of reading the clock, so that
it is the same whoever solves it. The clock only ends what takes far longer than it should (`cut`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from emit.library.index import INDEX, load_index
from emit.library.programs import NONE, executor_for
from emit.library.save import save, stem_of_problem
from synth.bounds.prove import TighteningEffort, prove, tighten
from synth.engines.flow.quotients import quotient_question
from synth.engines.request import Options
from synth.library.carried import carried
from synth.model.deadline import now
from synth.model.defects import collected, contained
from synth.model.problem import Problem, make_problem, question
from synth.search.frontier import Contender, Range, frontier
from synth.search.plans import SearchPlan, Stage
from synth.search.protocols import search_protocols
from synth.search.result import SearchResult
from synth.search.search import search
from synth.solvers.workers import Workers
from synth.storage.bundle import pack, unpack
from synth.storage.schedule_file import load_schedule
from synth.timing.simulate import resource_loads_us
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError, VerificationError
from topologies.text.fields import Fields
from topologies.topology import Topology

FORMAT = "synth-answer-3"
_STATED = ("key", "instance", "stem", "rows", "unfiled", "gap", "cut", "defects")
_MOST_GAP = 1e18
_LINEAR_RANKS = 32  # up to which the linear program of bounds is small
BASELINE_SENDS = 15_000  # of queues that run no longer than the search beside them
_RANK_SENDS = ((0.2, 64), (0.4, 96), (0.8, 160), (1.5, 256), (4.0, 512))  # seconds of work below which, sends


@dataclass(frozen=True, eq=False)
class Task:
    """A problem, in the order of ranks that it is solved in.

    Attributes:
        key: what tells its answer from all others (hexadecimal).
        topology: whose switches only forward, unless its targets' files can say more.
        group: ranks of the topology, in order; root: one of them, None where the collective has none.
        low, high: message sizes in bytes, both inclusive.
        targets: names of executors; none: schedules alone.
        seed: of the search. work_s: seconds of work that its engines count. limit_s: of the clock, after which the best
            so far is the answer.
        known: the packed answer of the same problem in another order; order: its local rank of each rank of this one.
        relays: ranks of the topology that forward.
    """

    key: str
    topology: Topology
    collective: str
    group: tuple[int, ...]
    root: int | None
    low: int
    high: int
    targets: tuple[str, ...]
    seed: int
    work_s: float
    limit_s: float
    known: bytes | None = None
    order: tuple[int, ...] = ()
    relays: tuple[int, ...] = ()

    def problem(self) -> Problem:
        """The problem, or its quotient where its schedules are too large to be written out."""
        small = None
        if self.root is None and not self.topology.protocol:  # of a quotient's protocols there is no one bound
            small = quotient_question(self.topology, self.collective, self.group, self.relays, None)
        return small or make_problem(self.topology, self.collective, self.group, self.relays, root=self.root)


@dataclass(frozen=True)
class Answer:
    """What a task came to.

    Attributes:
        key: of the task.
        instance: topology (its name), group and root in which it was solved; stem: how names of its files begin.
        rows: entries of the index, as `emit.library.index` has them, of all targets.
        unfiled: ranges of sizes of which a target can hold no file: target, refused, and the fields of a row, with the
            schedule's name where it is written.
        gap: the largest time / bound of both.
        cut: whether the clock ended it, so that another run may find another answer.
        files: by name in a library.
        defects: Parts of synth that failed, whose answers are missing; a line each.
    """

    key: str
    instance: Mapping[str, Any]
    stem: str
    rows: Sequence[Mapping[str, Any]]
    unfiled: Sequence[Mapping[str, Any]]
    gap: float
    cut: bool
    files: Mapping[str, bytes]
    defects: Sequence[str] = ()

    def packed(self) -> bytes:
        """Return the answer as bytes, the same for the same answer."""
        return pack({"format": FORMAT, **{name: getattr(self, name) for name in _STATED}}, self.files)


def unpacked(data: bytes) -> Answer:
    """Return the answer that is packed in bytes, of which nothing but its shape is checked.

    Raises:
        InputError: The bytes are no answer.
    """
    origin = "an answer"
    stated, files = unpack(data, origin)
    about = Fields(stated, "", origin)
    if about.string("format") != FORMAT:
        about.fail("format", f"must be {FORMAT}")
    about.only(("format", *_STATED))
    for key in ("rows", "unfiled"):
        if not isinstance(rows := stated.get(key), list) or not all(isinstance(row, dict) for row in rows):
            about.fail(key, "must be an array of objects")
    if not isinstance(stated.get("instance"), dict):
        about.fail("instance", "must be an object")
    return Answer(
        about.string("key"),
        stated["instance"],
        about.string("stem"),
        stated["rows"],
        stated["unfiled"],
        about.number("gap", 1.0, _MOST_GAP, "times the bound"),
        about.boolean("cut", False),
        files,
        about.strings("defects"),
    )


def solve(task: Task) -> bytes:
    """The packed answer of a task. Raises InputError where it has none."""
    with collected() as defects:
        answer = _written(task, _found(task))
    return replace(answer, defects=sorted(defects)).packed()


def plan_for(task: Task, ranks: int) -> SearchPlan:
    """Engines that count their work, and bounds that no clock ends."""
    linear_s = np.inf if ranks <= _LINEAR_RANKS else 0.0
    middle = 1 << ((task.low.bit_length() + task.high.bit_length()) // 2)
    return SearchPlan(
        stages=(
            Stage("switch"),
            Stage("baseline", most_sends=BASELINE_SENDS, always=True),
            Stage("route", most_ranks=16),
            Stage("flow", gap=1.001),
        ),
        rest=False,
        work_s=task.work_s,
        patient=True,
        sizes=tuple(dict.fromkeys((task.high, max(task.low, min(task.high, middle)), task.low))),
        effort=TighteningEffort(quick_ranks=np.inf, least_linear_s=0.0, most_linear_s=linear_s),
        max_flow_ranks=64,
        quick_bounds=True,
        windows=0.0,
    )


def rank_sends(work_s: float) -> int | None:
    """To how many sends of a rank chunks are refined in a budget class: lowering more takes longer than the search."""
    return next((sends for least_s, sends in _RANK_SENDS if work_s < least_s), None)


def _found(task: Task) -> SearchResult:
    if task.known is not None:
        with suppress(InputError, VerificationError):  # what is known may come from a cache, which may be wrong
            return _carried(task, unpacked(task.known))
    return _searched(task)


def _searched(task: Task) -> SearchResult:
    problem = task.problem()
    pinned = task.low if task.low == task.high else None
    options = Options(pinned, budget_s=task.limit_s, seed=task.seed, rank_sends=rank_sends(task.work_s))
    target = task.targets[0] if task.targets and problem.quotient is None else NONE
    executor = None
    for name in task.targets if target != NONE else ():
        try:
            one = executor_for(problem, name, size=options.size)
        except InputError:  # another target may express it
            continue
        if one is not None and (not problem.protocols or one.able(problem.protocols)):
            executor = one
            break
    plan = plan_for(task, problem.nranks)
    with Workers(()) as workers:
        by = search_protocols if problem.protocols else search
        return by(problem, options, workers, None, plan, executor)


def _carried(task: Task, known: Answer) -> SearchResult:
    """The known answer's schedules in this order of ranks, each replayed, with bounds of this one."""
    problem, algorithms = task.problem(), list[Algorithm]()
    with tempfile.TemporaryDirectory() as folder:
        for name, data in known.files.items():
            if name.endswith(".synth"):
                path = Path(folder) / Path(name).name
                path.write_bytes(data)
                stored = load_schedule(path)
                engine = str(stored.header["engine"])
                one = Algorithm(stored.problem, stored.schedule, engine, size_bytes=stored.schedule.size_bytes)
                algorithms.append(carried(one, problem, np.array(task.order)))
    each = [Contender(one) for one in algorithms]
    if task.low == task.high:
        best = min(each, key=lambda one: (one.time_us(task.low), *one.order))
        ranges = [Range(best, task.low, task.low, task.low)]
    else:
        ranges = frontier(each)
    found = SearchResult(problem, bound=prove(problem), ranges=ranges)
    largest, plan = found.ranges[-1], plan_for(task, problem.nranks)
    loads = partial(resource_loads_us, largest.algorithm.problem, largest.algorithm.timed(task.high))
    enough_us = largest.time_us(task.high) / plan.met
    with Workers(()) as workers:
        until = now() + task.limit_s
        for better in tighten(problem, found.bound, loads, task.high, enough_us, workers, until, effort=plan.effort):
            found.bound = better
    return found


def _written(task: Task, found: SearchResult) -> Answer:
    """The answer as the files of a library, for each target, with schedules and proofs."""
    rows, unfiled, cut = list[dict[str, Any]](), list[dict[str, Any]](), bool(found.ended)
    plain = found.problem.quotient is not None  # which no file can hold
    with tempfile.TemporaryDirectory() as folder:
        for number, target in enumerate((NONE,) if plain else task.targets or (NONE,)):
            first = replace(found, ended="", others=found.others if number == 0 else [])
            try:
                saved = contained(f"files for {target}", partial(save, first, folder, target, proof=True), None)
            except InputError as error:
                unfiled.append({"target": target, "refused": str(error)})
                continue
            if saved is None:
                unfiled.append({"target": target, "refused": "no file can be made, for a defect of synth"})
                continue
            for told, paths in zip(saved.rows, saved.files, strict=True):
                if "file" not in paths and _overlaps(told, task):
                    stored = {kind: path.relative_to(folder).as_posix() for kind, path in paths.items()}
                    unfiled.append({"target": target} | told | stored)
        entries = load_index(folder) if (Path(folder) / INDEX).exists() else []
        rows = [dict(entry.values) for entry in entries if _overlaps(entry.values, task)]
        named = {row[kind] for row in (*rows, *unfiled) for kind in ("file", "schedule", "proof_file") if row.get(kind)}
        files = {name: (Path(folder) / name).read_bytes() for name in sorted(named)}
    gaps = [row["gap"] for row in (*rows, *unfiled) if "gap" in row]
    instance = {key: value for key, value in question(found.problem).items() if key in ("topology", "group", "root")}
    stem = stem_of_problem(found.problem)
    return Answer(task.key, instance, stem, rows, unfiled, max(gaps, default=1.0), cut, files)


def _overlaps(row: Mapping[str, Any], task: Task) -> bool:
    """Whether it serves a size that is asked for."""
    return bool(row["min_bytes"] <= task.high and (row["max_bytes"] is None or row["max_bytes"] >= task.low))
