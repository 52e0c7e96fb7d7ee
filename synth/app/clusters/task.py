"""One problem of a library: the task to solve, for any idle process, and its answer as bytes.

The answer holds the executors' files and the schedules with their proofs, as `emit.library.saving.save` writes them,
and their rows of the index. It follows from the task only: engines count their work instead of reading the clock, so
that every machine finds the same answer. The clock hurries a task only at the end of its time limit (`cut`); then it
makes programs of as many schedules as there is time for, one at least.
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

from emit.compiler.lower import may_have_images
from emit.library.entry import INDEX
from emit.library.index import load_index
from emit.library.programs import executor_for
from emit.library.saving.save import save, stem_of_problem
from synth.app.clusters.carried import relabel
from synth.bounds.prove import prove, tighten
from synth.engines.flow.quotients import quotient_question
from synth.engines.request import Options
from synth.model.deadline import now
from synth.model.defects import collected, contained
from synth.model.problem import LARGEST, SMALLEST, Problem, make_problem, question
from synth.search.frontier import frontier
from synth.search.offer import Offer
from synth.search.plans import library_plan
from synth.search.result import SearchResult
from synth.search.search import search
from synth.search.settings import NONE, TargetSettings
from synth.solvers.workers import Workers
from synth.storage.bundle import pack, unpack
from synth.storage.schedule_file import load_schedule
from synth.timing.simulate import resource_loads_us
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError, VerificationError
from topologies.symmetry.translations import find_translations
from topologies.text.fields import Fields
from topologies.topology import Topology

FORMAT = "synth-answer-3"
_STATED = ("key", "instance", "stem", "rows", "unfiled", "gap", "cut", "defects")
_MOST_GAP = 1e18
_RANK_SENDS = ((0.2, 64), (0.4, 96), (0.8, 160), (1.5, 256), (4.0, 512))  # (seconds of work below this, sends)
_PATIENCE, _LEAST_PATIENCE_S = 20.0, 2.0  # lowering of a program over the work of the search, in seconds as estimated
# The part of a target's time for the search and its programs; the rest is for files and the other form of calls.
_SEARCHING = 0.75
FEW_RANKS = 8  # up to which lowering every rank takes no longer than the search
_WITHOUT_IMAGES = 4  # times as long, about, if no program is the image of another


@dataclass(frozen=True, eq=False)
class Task:
    """A problem, in the order of ranks that it is solved in.

    Attributes:
        key: Key that tells its answer from all others (hexadecimal).
        topology: The topology; its switches only forward, unless the targets' files can express more.
        collective: Name of the collective.
        group: Ranks of the topology, in order.
        root: Rank of the topology in the group; None where the collective has no root.
        low: Smallest message size in bytes.
        high: Largest message size in bytes, inclusive.
        targets: Names of executors; with none, the answer has schedules only.
        seed: Seed of the search.
        work_s: Seconds of work that the engines count.
        limit_s: Seconds of the clock for the search, its programs and the files of all targets.
        known: The packed answer of the same problem in another order of ranks; None for a search.
        order: Local rank of the known answer for each rank of this task.
        relays: Ranks of the topology that forward.
        stated_s: Seconds of the budget that errors speak of; None for `limit_s`.
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
    stated_s: float | None = None

    def problem(self) -> Problem:
        """Return the problem, or its quotient where its schedules are too large to be written out.

        Problems with a root or under a protocol have no quotient.
        """
        quotient = None
        if self.root is None and not self.topology.protocol:  # A bound covers only one protocol of a quotient.
            quotient = quotient_question(self.topology, self.collective, self.group, self.relays, None)
        return quotient or make_problem(self.topology, self.collective, self.group, self.relays, root=self.root)


@dataclass(frozen=True)
class Answer:
    """The answer of a task.

    Attributes:
        key: Key of the task.
        instance: Name of the topology, group and root with which the task was solved.
        stem: Beginning of the names of its files.
        rows: Entries of the index, as `emit.library.index` has them, for all targets.
        unfiled: Ranges of sizes without a file: target, refused, min_bytes and max_bytes, and where the target can hold
            none the fields of a row, with the schedule's name if it is written.
        gap: Largest time / bound over `rows` and `unfiled`.
        cut: Whether the clock hurried the search, so that another run may find another answer.
        files: Bytes of each file, by its name in a library.
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
        """Return the answer as bytes for `unpacked`, the same for the same answer."""
        return pack({"format": FORMAT, **{name: getattr(self, name) for name in _STATED}}, self.files)


def unpacked(data: bytes) -> Answer:
    """Return the answer that is packed in bytes; only its shape is checked.

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
        about.boolean("cut"),
        files,
        about.strings("defects"),
    )


def solve(task: Task) -> bytes:
    """Return the packed answer of a task: its known answer in the task's order of ranks, or else that of a search.

    A known answer that is wrong is searched anew. Parts of synth that fail do not raise; each is a line of the answer's
    `defects`, sorted.

    Raises:
        InputError: The task has no answer.
    """
    begun = now()
    with collected() as defects:
        answer = _answer_with_files(task, _search_result(task), begun)
    return replace(answer, defects=sorted(defects)).packed()


def rank_sends(work_s: float, problem: Problem) -> int | None:
    """Return the number of sends of a rank up to which a budget class refines chunks; None for any number.

    Lowering more sends takes longer than the search. It takes several times as long where the programs of most ranks
    are not images of those of a few.

    Args:
        work_s: Seconds of work of the budget class.
        problem: The problem.
    """
    most = next((sends for below_s, sends in _RANK_SENDS if work_s < below_s), None)
    if most is None or problem.nranks <= FEW_RANKS:
        return most
    if may_have_images(problem) and problem.collective.kind.translatable and find_translations(problem.network):
        return most
    return most // _WITHOUT_IMAGES


def _settings(task: Task, target: str) -> TargetSettings:
    """Return the settings of a target; the patience for lowering is 20 times the task's work, and at least 2 s."""
    return TargetSettings(target, patience_s=max(_LEAST_PATIENCE_S, _PATIENCE * task.work_s))


def _search_result(task: Task) -> SearchResult:
    """Return the search result of a task: the known answer relabelled and replayed, or else that of a search.

    A known answer that is wrong is searched anew.
    """
    if task.known is not None:
        with suppress(InputError, VerificationError):  # A known answer of a cache may be wrong.
            return _relabelled_result(task, unpacked(task.known))
    return _searched_result(task)


def _searched_result(task: Task) -> SearchResult:
    """Return the result of a search for a task, with the programs of its first target that can express the problem.

    Without such a target, and of a quotient, only schedules are searched. The search runs in this process.
    """
    problem = task.problem()
    pinned = task.low if task.low == task.high else None
    options = Options(
        pinned,
        budget_s=_end_of_target(task, 0),
        stated_s=task.stated_s,
        seed=task.seed,
        rank_sends=rank_sends(task.work_s, problem),
    )
    target = task.targets[0] if task.targets and problem.quotient is None else NONE
    executor = None
    for name in task.targets if target != NONE else ():
        try:
            candidate = executor_for(problem, _settings(task, name), options.size)
        except InputError:  # Another target may express the problem.
            continue
        if candidate is not None and (not problem.protocols or candidate.able(problem.protocols)):
            executor = candidate
            break
    plan = library_plan(task.low, task.high, task.work_s, problem.nranks)
    with Workers(()) as workers:
        return search(problem, options, workers, None, plan, executor)


def _relabelled_result(task: Task, known_answer: Answer) -> SearchResult:
    """Return the known answer's schedules in this order of ranks, each replayed, with the bounds of this order.

    Args:
        task: The task; its `order` has the known answer's local rank of each of its ranks.
        known_answer: The answer.

    Raises:
        InputError: A schedule cannot be read.
        VerificationError: A schedule is wrong.
    """
    problem, algorithms = task.problem(), list[Algorithm]()
    with tempfile.TemporaryDirectory() as folder:
        for name, data in known_answer.files.items():
            if name.endswith(".synth"):
                path = Path(folder) / Path(name).name
                path.write_bytes(data)
                stored = load_schedule(path)
                engine = str(stored.header["engine"])
                algorithm = Algorithm(stored.problem, stored.schedule, engine, size_bytes=stored.schedule.size_bytes)
                algorithms.append(relabel(algorithm, problem, np.array(task.order)))
    offers = [Offer(algorithm) for algorithm in algorithms]
    if task.low == task.high:
        ranges = [min(offers, key=lambda offer: offer.rank_at(task.low)).at_size(task.low)]
    else:
        ranges = frontier(offers)
    stop_reason = "budget" if known_answer.cut else ""
    result = SearchResult(problem, bound=prove(problem), ranges=ranges, stop_reason=stop_reason)
    largest, plan = result.ranges[-1], library_plan(task.low, task.high, task.work_s, problem.nranks)
    loads = partial(resource_loads_us, largest.algorithm.problem, largest.algorithm.timed(task.high))
    met_us = largest.time_us(task.high) / plan.met
    with Workers(()) as workers:
        until = now() + task.limit_s
        for better in tighten(problem, result.bound, loads, task.high, met_us, workers, until, effort=plan.effort):
            result.bound = better
    return result


def _end_of_target(task: Task, number: int) -> float:
    """Return the seconds from the start of a task after which a target's programs must be there.

    Files of the first target get twice the time of those of another one, with the search.

    Args:
        task: The task.
        number: Number of the target, from 0.
    """
    return _SEARCHING * task.limit_s * (number + 2) / (max(1, len(task.targets)) + 1)


def _answer_with_files(task: Task, result: SearchResult, begun: float) -> Answer:
    """Return the answer of a task with the files of a library for each target, with schedules and proofs.

    A target that can hold no file is stated in `unfiled`. Rows that serve none of the task's sizes are left out. Of a
    quotient there are schedules only.

    Args:
        task: The task.
        result: Its search result.
        begun: When the task began, a reading of `now`.
    """
    result = replace(result, ranges=[_shown_inside(offer, task) for offer in result.ranges])
    rows, unfiled, cut = list[dict[str, Any]](), list[dict[str, Any]](), bool(result.stop_reason)
    is_quotient = result.problem.quotient is not None  # No file can hold a quotient's schedule.
    with tempfile.TemporaryDirectory() as folder:
        for number, target in enumerate((NONE,) if is_quotient else task.targets or (NONE,)):
            result_of_target = replace(result, stop_reason="", unused=result.unused if number == 0 else [])
            try:
                until = begun + _end_of_target(task, number) / _SEARCHING
                write = partial(save, result_of_target, folder, _settings(task, target), proof=True, until=until)
                saved = contained(f"files for {target}", write, None)
            except InputError as error:
                unfiled.append({"target": target, "refused": str(error)})
                continue
            if saved is None:
                unfiled.append({"target": target, "refused": "no file can be made, for a defect of synth"})
                continue
            cut |= any(form is not None and bool(form.result.stop_reason) for form in (saved, saved.other_form))
            for saved_row, paths in zip(saved.rows, saved.files, strict=True):
                if "file" in paths or not _overlaps(saved_row, task):
                    continue
                if "schedule" in paths:
                    stored = {kind: path.relative_to(folder).as_posix() for kind, path in paths.items()}
                    unfiled.append({"target": target} | saved_row | stored)
                else:  # The range is left to a vendor library, whose figures are not part of the answer.
                    sizes = {key: saved_row[key] for key in ("min_bytes", "max_bytes")}
                    unfiled.append({"target": target, "refused": saved_row["refused"], **sizes})
        entries = load_index(folder) if (Path(folder) / INDEX).exists() else []
        rows = [dict(entry.row) for entry in entries if _overlaps(entry.row, task)]
        names = {row[kind] for row in (*rows, *unfiled) for kind in ("file", "schedule", "proof_file") if row.get(kind)}
        files = {name: (Path(folder) / name).read_bytes() for name in sorted(names)}
    asked_rows = (
        []
        if (task.low, task.high) == (SMALLEST, LARGEST)
        else [limited.row for entry in entries if (limited := entry.at_sizes(task.low, task.high)) is not None]
    )
    gaps = [(row.get("worst") or row)["gap"] for row in (*(asked_rows or rows), *unfiled) if "gap" in row]
    instance = {key: value for key, value in question(result.problem).items() if key in ("topology", "group", "root")}
    stem = stem_of_problem(result.problem)
    return Answer(task.key, instance, stem, rows, unfiled, max(gaps, default=1.0), cut, files)


def _shown_inside(offer: Offer, task: Task) -> Offer:
    """Return an offer that is shown, and stored as a schedule, at a size of the task; unchanged if it serves none."""
    least, most = max(offer.low, task.low), task.high if offer.high is None else min(offer.high, task.high)
    return offer if least > most else replace(offer, shown=min(max(offer.shown, least), most))


def _overlaps(row: Mapping[str, Any], task: Task) -> bool:
    """Return whether a row's range from min_bytes to max_bytes (None for no end), inclusive, has a size of the task."""
    return bool(row["min_bytes"] <= task.high and (row["max_bytes"] is None or row["max_bytes"] >= task.low))
