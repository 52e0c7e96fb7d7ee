"""The check of one entry of a library's index and its file: program, sizes, figures and groups."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from emit.formats import PROGRAM_FORMATS
from emit.library.checking.figures import Evidence, check_figures
from emit.library.checking.report import LibraryReport
from emit.library.checking.schedules import CheckedSchedule, any_protocol, costed_as_stated, form_of
from emit.library.entry import IndexEntry, is_figure
from emit.library.library_file import Requirement, network_digest, read_right, states_goal
from emit.library.lowered import exact_scale
from emit.library.networks import Networks, largest_rank
from emit.program import CUSTOM, Program
from emit.targets import TARGETS, divisor
from emit.timing.timed import TimedProgram
from synth.bounds.check import recompute
from synth.bounds.prove import prove
from synth.bounds.witness import Witness
from synth.concurrent.union import Member, UnionProblem, union_problem
from synth.model.collective import in_shape
from synth.model.collective import named as named_collective
from synth.model.common_chunk import common_chunk
from synth.model.problem import Problem, make_problem
from synth.model.registry import COLLECTIVE_KINDS, find_kind
from synth.model.text import format_listed
from synth.storage.proof import EQUAL
from synth.storage.schedule_file import StoredSchedule
from topologies.costed import with_protocol
from topologies.errors import InputError
from topologies.load import load
from topologies.text.files import open_regular_file
from topologies.topology import Topology

_MOST_RANKS = 32  # of a question whose bound is proved again in a fraction of a second
_EXACT = 1e-12  # rounding between two paddings that should be equal


@dataclass(frozen=True)
class _Subject:
    """What is known of an entry that is checked.

    Attributes:
        entry: The entry.
        topology: Its topology, with the costs that it states; None if neither a name nor a schedule gives it.
        is_known: True if the topology is known by its name.
        checked_schedule: The entry's schedule and its check; None without one.
        problem: The question; None if neither a name nor a schedule states it.
    """

    entry: IndexEntry
    topology: Topology | None
    is_known: bool
    checked_schedule: CheckedSchedule | None
    problem: Problem | None

    @property
    def is_part(self) -> bool:
        """Return True if the schedule is that of all groups of a plan, and the file that of one group."""
        return self.entry.is_of_plan and not self.entry.stated_goal

    @property
    def own_schedule(self) -> CheckedSchedule | None:
        """Return the schedule and its check; None if it is of other groups too, or there is none."""
        return None if self.is_part else self.checked_schedule


def entry_faults(
    entry: IndexEntry,
    networks: Networks,
    checked_schedule: CheckedSchedule | None,
    witnesses_of: Mapping[object, tuple[Witness, ...]],
    report: LibraryReport,
) -> Iterator[str]:
    """Yield the faults of one entry and its file, a line each; one that leaves nothing else to check is the last.

    Args:
        entry: Entry to check.
        networks: Known topologies.
        checked_schedule: The entry's schedule and its check; None without one.
        witnesses_of: Checked witnesses of each question (see `witnesses_of_questions`).
        report: Where what is unproved or could not be checked is added.
    """
    try:
        yield from _changed_bytes(entry)
        topology, is_known = _topology_of(entry, networks, checked_schedule, report)
        problem = _problem(entry, topology, None if checked_schedule is None else checked_schedule[0])
        subject = _Subject(entry, topology, is_known, checked_schedule, problem)
        text, program = read_right(entry, _requirement(entry, topology, problem))
        if checked_schedule is not None:
            other = _other_plan if entry.is_of_plan else _other_question
            yield from other(entry, checked_schedule[0].bounded_problem)
        yield from _other_program(entry, program, text)
        if problem is None or topology is None:
            report.unproved["what its collective means is not known, and no schedule states it"].add(entry.file)
        if topology is None:
            return
        now = None if problem is None else network_digest(any_protocol(problem))
        if entry.network and now and entry.network != now:
            raise InputError(f"is for another network than {topology.name} now is")
        costed_topology = with_protocol(topology, program.protocol)
        timed_for = partial(PROGRAM_FORMATS[TARGETS[entry.target].format].predictor, text, program, costed_topology)
        findings = check_figures(entry.row, _evidence(subject, timed_for(entry.communicator), witnesses_of))
        yield from findings.wrong
        if entry.is_of_plan:
            yield from _other_groups(entry, problem)
        if findings.unproved:
            report.unproved[", ".join(findings.unproved)].add(entry.file)
        own_form = None if problem is None else form_of(problem)
        for group in entry.isomorphic_groups:
            timed_for(group)  # It raises if a message has no link.
            if problem is not None and form_of(make_problem(topology, problem.collective, group)) != own_form:
                yield f"for group {format_listed(group)}: its network is not that of {format_listed(entry.group)}"
    except InputError as error:
        yield str(error).removeprefix(f"{entry.file}: ")


def _changed_bytes(entry: IndexEntry) -> Iterator[str]:
    """Yield which files of an entry have other bytes than its digests say.

    A file without a digest is left out, and so is a schedule or proof that is missing.

    Raises:
        InputError: If the executor's file is missing, or a link leads to one of the files.
    """
    paths = {kind: entry.inside(name) for kind, name in entry.files.items()}
    if not paths["file"].is_file():
        raise InputError("is not there")
    for kind, path in paths.items():
        stated = entry.stated_digest(kind)
        if stated is not None and path.is_file() and stated != (digest := _digest(path)):
            prefix = "" if kind == "file" else f"{entry.files[kind]} "
            yield f"{prefix}has other bytes than were written (SHA-256 {digest[:12]}…, the index says {stated[:12]}…)"


def _topology_of(
    entry: IndexEntry, networks: Networks, checked_schedule: CheckedSchedule | None, report: LibraryReport
) -> tuple[Topology | None, bool]:
    """Return an entry's topology, with the costs that it states, and whether it is known by its name.

    If it is not, or the costs are not its own, the topology is that of the schedule, or None without one, and the
    reason is added to `report`.

    Raises:
        InputError: If the entry names a rank that the topology does not have.
    """
    named = networks.named(entry.topology, entry.folder)
    topology = None if named is None else costed_as_stated(entry, named)
    is_known = topology is not None
    if named is not None and networks.is_kept(entry.topology):
        report.remarks[f"the network {entry.topology} is the one that the library keeps; --topo gives another"] += 1
    if topology is None:
        reason = f"the network {entry.topology} is not known: give it as --topo for times"
        if named is not None:
            reason = "its costs are not those of its topology"
        elif checked_schedule is None:
            report.remarks[reason] += 1
        report.unproved[reason].add(entry.file)
        topology = None if checked_schedule is None else checked_schedule[0].problem.topology
    if topology is not None and largest_rank(entry) >= topology.nranks:
        raise InputError(f"names rank {largest_rank(entry)}, {topology.name} has {topology.nranks}")
    return topology, is_known


def _evidence(subject: _Subject, timed: TimedProgram, witnesses_of: Mapping[object, tuple[Witness, ...]]) -> Evidence:
    """Return what the files prove of an entry's figures.

    A small question's bound is proved anew if no file proves it.

    Args:
        subject: What is known of the entry.
        timed: Predictor of its file.
        witnesses_of: Checked witnesses of each question.

    Raises:
        InputError: If the entry states padding that its schedule does not have.
    """
    entry, problem, own_schedule = subject.entry, subject.problem, subject.own_schedule
    scale = _scale(subject)
    own_witnesses = () if own_schedule is None else own_schedule[1].limits
    witnesses = own_witnesses or witnesses_of.get(_question_key(entry), ())
    if not witnesses and subject.is_known and problem is not None and entry.bound_us is not None:
        witnesses = _prove_again(problem)
    return Evidence(
        None if scale is None else lambda size: timed.time_us(size * scale),
        lambda size: entry.in_range(int(size * (scale or 1.0))),
        witnesses if subject.is_known else (),
        None if problem is None else any_protocol(problem),
        None if own_schedule is None else own_schedule[0],
        bool(own_witnesses),
    )


def _question_key(entry: IndexEntry) -> object:
    """Return an entry's question as `witnesses_of_questions` names it.

    It is (collective, topology, group, relays, root or None, sizes, costs as (protocols, source) or None).
    """
    costs = entry.row.get("costs", {})
    stated = (tuple(costs["protocols"]), costs["source"]) if costs else None
    return entry.collective, entry.topology, entry.group, entry.relays, entry.root, entry.sizes, stated


def _problem(entry: IndexEntry, topology: Topology | None, stored: StoredSchedule | None) -> Problem | None:
    """Return the problem that an entry answers, on its topology; None if neither a name nor a schedule states it.

    A file of all groups of a plan answers their union.

    Args:
        entry: The entry.
        topology: Its topology; None if it is not known, and so is the problem then.
        stored: The entry's schedule; None without one.

    Raises:
        InputError: If the problem is not possible on the topology, or a group's collective is not known by its name.
    """
    if topology is None:
        return None
    if entry.groups and entry.stated_goal:  # One program serves all groups.
        return union_problem(topology, [_member(row) for row in entry.groups], entry.relays or "none")
    if find_kind(entry.collective).by_name or entry.sizes:
        root = entry.root if find_kind(entry.collective).rooted else None
        sizes = in_shape(entry.sizes, entry.nranks)
        return make_problem(topology, entry.collective, entry.group, relays=entry.relays, root=root, sizes=sizes)
    if stored is None or entry.is_of_plan:
        return None
    return make_problem(topology, stored.bounded_problem.collective, entry.group, relays=entry.relays)


def _member(row: Mapping[str, Any]) -> Member:
    """Return the member of a union that a row of an entry's `groups` states, with one chunk a block.

    Raises:
        InputError: If its collective is not known by its name or has a root, or its ranks or size are malformed.
    """
    kind, ranks, size = COLLECTIVE_KINDS.get(str(row["collective"])), row["ranks"], row["size_bytes"]
    if (
        kind is None
        or not kind.by_name
        or kind.rooted
        or not isinstance(ranks, list)
        or not is_figure(size)
        or any(type(rank) is not int for rank in ranks)
    ):
        raise InputError(f"groups: {row['collective']!r}: is not known by its name; its goal is not proved")
    return Member(tuple(ranks), named_collective(kind.name, len(ranks), 1, 0), float(size))


def _requirement(entry: IndexEntry, topology: Topology | None, problem: Problem | None) -> Requirement:
    """Return the requirement on an entry's file: its collective, root and goal on its topology.

    Args:
        entry: The entry.
        topology: Its topology; for None, ranks joined by equal links take its place.
        problem: The question; None if it is not known, so that any stated goal is accepted.
    """
    target = TARGETS[entry.target]
    is_named = (
        entry.collective in COLLECTIVE_KINDS
        and find_kind(entry.collective).by_name
        and entry.collective in target.collectives
    )
    program_collective = entry.collective if is_named and not entry.relays else CUSTOM

    def is_goal(candidate: IndexEntry) -> bool:
        """Return True if an entry's goal is the problem's."""
        custom = program_collective == CUSTOM
        stated = candidate.stated_goal is not None
        return stated == custom and (not custom or problem is None or states_goal(candidate, problem))

    root = None if program_collective == CUSTOM or entry.root is None else entry.group.index(entry.root)
    any_topology = topology if topology is not None else load(f"full:{max(2, len(entry.communicator))}")
    return Requirement(program_collective, root, any_topology, entry.communicator, target, is_goal)


def _other_question(entry: IndexEntry, problem: Problem) -> Iterator[str]:
    """Yield how an entry's stored schedule is for another question: a line for each aspect that differs."""
    root = problem.group[problem.collective.root] if problem.collective.kind.rooted else None
    sizes = problem.collective.sizes
    of_schedule = problem.collective.name, problem.group, problem.relays, root, sizes, problem.topology.name
    of_entry = entry.collective, entry.group, entry.relays, entry.root, entry.sizes, entry.topology
    for aspect, entry_value, schedule_value in zip(
        ("collective", "group", "relays", "root", "sizes", "topology"), of_entry, of_schedule, strict=True
    ):
        if entry_value != schedule_value:
            words = [
                format_listed(value) if isinstance(value, tuple) else str(value)
                for value in (schedule_value, entry_value)
            ]
            yield f"{entry.schedule} is for {aspect} {words[0]}, its entry says {words[1]}"


def _other_plan(entry: IndexEntry, problem: Problem) -> Iterator[str]:
    """Yield what shows that the schedule of a plan's groups is not the entry's: its topology, ranks or groups.

    `problem` is that of the schedule.
    """
    if problem.topology.name != entry.topology:
        yield f"{entry.schedule} is for topology {problem.topology.name}, its entry says {entry.topology}"
    if missing := sorted(set(entry.group) - set(problem.group)):
        yield f"{entry.schedule} is for ranks {format_listed(problem.group)}, its entry says {missing[0]}"
    if entry.stated_goal:  # The schedule is of all groups, and was compared with them.
        return
    own = {"ranks": list(entry.group), "collective": entry.collective}
    if not any(own.items() <= row.items() for row in entry.groups):
        yield f"is of {entry.collective} among {format_listed(entry.group)}, which its entry's groups do not name"


def _other_program(entry: IndexEntry, program: Program, text: str) -> Iterator[str]:
    """Yield what differs between a file and its entry: threadblocks, the unit of sizes, what serves other calls.

    Threadblocks are the most that a rank has. What the entry does not state is not compared.
    """
    target = TARGETS[entry.target]
    blocks = max(PROGRAM_FORMATS[target.format].threadblocks(program, text))
    rows = (
        ("threadblocks", entry.row.get("threadblocks"), blocks),
        ("divides", entry.divides, divisor(program, target)),
        ("otherwise", entry.row.get("otherwise"), target.own_algorithm(entry.collective)),
    )
    for key, stated, actual in rows:
        if stated is not None and stated != actual:
            yield f"{key}: is {stated}; it must be {actual}, as in its file"


def _other_groups(entry: IndexEntry, problem: Problem | None) -> Iterator[str]:
    """Yield how an entry's statements on its groups, their sizes and chunks, differ from what its file is for.

    `problem` is the question; the chunks of a union are compared with it.
    """
    rows, size, goal = entry.groups, entry.shown_bytes, entry.stated_goal
    stated = [row["chunks"] for row in rows]
    most: float | None
    expected: list[list[Any]] | None
    if isinstance(problem, UnionProblem) and goal:
        most, cells = problem.size_bytes, 1 + max(goal["initial"][4])
        starts = (problem.first_chunk * (cells // problem.collective.nchunks)).tolist()
        expected = [[low, high] for low, high in pairwise(starts)] if not entry.padding else stated
    else:
        most = rows[0]["size_bytes"] if len(rows) == 1 else None
        expected = (
            [[0, stated[0][1]]] if len(rows) == 1 and isinstance(stated[0], list) and len(stated[0]) == 2 else None
        )
    if size != (None if not is_figure(most) else max(1, round(most))):
        yield f"groups: states a size of {most}; it must be {size}, the size of its time"
    if stated != expected:
        yield f"groups: states chunks {stated}; it must be {expected}"


def _prove_again(problem: Problem) -> tuple[Witness, ...]:
    """Return checked witnesses of a problem's bound; none for more than _MOST_RANKS ranks, or if one is refuted.

    With costs on, the bound holds over all protocols.
    """
    if problem.nranks > _MOST_RANKS:
        return ()
    whole = any_protocol(problem)
    witnesses = prove(whole, max_flow=False).witnesses
    for witness in witnesses:
        claims_and_proofs = zip(witness.claims, recompute(whole, witness), strict=True)
        if any(claimed > proved * (1 + EQUAL) for claimed, proved in claims_and_proofs):
            return ()
    return tuple(witnesses)


def _scale(subject: _Subject) -> float | None:
    """Return the message size that an executor sees, divided by the problem's message size; None if it is not known.

    Of a file that has no schedule of its own, it is not known with padding, nor for a pattern, whose message may be
    smaller than its fullest buffer.

    Raises:
        InputError: If the entry states padding that its schedule does not have.
    """
    padding, problem = subject.entry.padding, subject.problem
    if subject.own_schedule is None:
        return 1.0 if padding == 0 and problem is not None else None
    scheduled = subject.own_schedule[0].problem
    common = common_chunk(scheduled.collective)
    if not math.isclose(padding, common.padding, abs_tol=_EXACT):
        raise InputError(f"padding: is {padding}; it must be {common.padding}, as in its schedule")
    if padding == 0 and problem is not None and problem.collective.kind.by_name:
        return 1.0
    return exact_scale(_fullest(scheduled) / (1 - padding))


def _fullest(problem: Problem) -> float:
    """Return the size of the fullest input or output of any rank, as a multiple of the message size.

    Chunks that share a place count once.
    """
    whole = problem.collective
    sides = ((whole.pre, whole.in_index), (whole.post, whole.out_index))
    most = 0.0
    for rows, places in sides:
        _, first = np.unique(np.column_stack([rows[:, 0], places]), axis=0, return_index=True)
        most = max(most, float(np.bincount(rows[first, 0], whole.fraction[rows[first, 1]]).max()))
    return most


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits; raise InputError if it cannot be read."""
    with open_regular_file(path, "a file of the library") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
