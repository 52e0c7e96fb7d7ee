"""The check of a library from its files: every program, schedule and proof, and what the index says of them.

Nothing that an entry states is taken for granted if it can be worked out: a file is replayed against what is asked and
timed on the network, a schedule is replayed, and the bound of its proof is proved again.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from emit.formats import FORMATS
from emit.library.checking.fault_check import find_fault_errors
from emit.library.checking.figures import SHAPE, UNPROVABLE, Evidence, check_figures
from emit.library.checking.networks import Networks, largest_rank
from emit.library.index import INDEX, SCHEDULES, Entry, check_types, is_figure
from emit.library.overlay import FAULT
from emit.library.standing import Requirement, network_digest, read_right, states_goal
from emit.program import CUSTOM, Program
from emit.targets import TARGETS, divisor
from synth.bounds.prove import prove
from synth.bounds.registry import recompute
from synth.bounds.witness import Witness
from synth.concurrent.union import Member, UnionProblem, union_problem
from synth.model.collective import named as named_collective
from synth.model.common_chunk import common_chunk
from synth.model.problem import Problem, make_problem
from synth.model.registry import KINDS, find_kind
from synth.model.text import format_listed
from synth.storage.check import ScheduleCheck, check_stored
from synth.storage.problem import means_its_name
from synth.storage.proof import EQUAL
from synth.storage.schedule_file import StoredSchedule, load_schedule
from synth.symmetry.canonical import network_form
from synth.verify.algorithm import Algorithm
from topologies.costed import protocols_of, with_costs, with_protocol
from topologies.costs import ANY
from topologies.errors import InputError
from topologies.load import load
from topologies.text.fields import Fields
from topologies.text.files import check_below, open_regular_file, origin_of
from topologies.topology import Topology

_MOST_RANKS = 32  # of a question whose bound is proved again in a fraction of a second
_EXACT = 1e-12  # rounding between two paddings that should be equal


@dataclass
class LibraryReport:
    """The result of checking a library.

    Attributes:
        wrong: (path in the library, reason) of each fault, in the order in which they were found.
        remarks: Sentences on what could not be checked, counted.
        unproved: What no file proves (fields or a reason), with the files that state it.
        files: Number of files checked.
        schedules: Number of schedules checked.
        proofs: Number of proofs checked.
    """

    wrong: list[tuple[str, str]] = field(default_factory=list)
    remarks: Counter[str] = field(default_factory=Counter)
    unproved: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    files: int = 0
    schedules: int = 0
    proofs: int = 0

    @property
    def unproved_files(self) -> set[str]:
        """Return the files that state something unproved besides a schedule's shape and what only a search knows."""
        harmless = {*UNPROVABLE, *SHAPE, "proof"}  # "proof" is the text of a witness; its figures are proved.
        return {
            name
            for fields, names in self.unproved.items()
            if not harmless.issuperset(fields.split(", "))
            for name in names
        }

    def add(self, report: LibraryReport, prefix: str) -> None:
        """Add the result of another folder, whose paths begin with `prefix`."""
        self.wrong += [(f"{prefix}{name}", fault) for name, fault in report.wrong]
        self.remarks += report.remarks
        for reason, names in report.unproved.items():
            self.unproved[reason] |= {f"{prefix}{name}" for name in names}
        self.files, self.schedules = self.files + report.files, self.schedules + report.schedules
        self.proofs += report.proofs


def check_library(
    folder: Path,
    entries: Sequence[Entry],
    topology: Topology | None = None,
    unfiled: Sequence[Mapping[str, Any]] = (),
) -> LibraryReport:
    """Check every file of a library, every schedule and proof, and what each entry says.

    Args:
        folder: Folder of the library.
        entries: Entries of its index.
        topology: Topology of the entries of its name; others are found by their names.
        unfiled: Rows of builds' records that state a schedule for which there is no file.
    """
    report = LibraryReport()
    fault = find_fault_errors(folder, entries, topology)
    report.wrong += [(FAULT, why) for why in fault.wrong]
    if fault.unproved:
        report.unproved[fault.unproved].add(FAULT)
    networks = Networks(topology, fault.hurt)
    stored: dict[str, tuple[StoredSchedule, ScheduleCheck] | None] = {}
    for name in dict.fromkeys(e.schedule for e in entries if e.schedule is not None):
        proof = next((e.proof_file for e in entries if e.schedule == name and e.proof_file is not None), None)
        stored[name] = _check_schedule(folder, name, proof, networks, report)
    for path in sorted((folder / SCHEDULES).glob("*.synth")):  # They belong to algorithms without an executor's file.
        name = f"{SCHEDULES}/{path.name}"
        if name not in stored:
            stored[name] = _check_schedule(folder, name, None, networks, report)
    witnesses_of = _witnesses_of_questions(schedule for schedule in stored.values() if schedule is not None)
    for entry in entries:
        report.files += 1
        schedule = None if entry.schedule is None else stored[entry.schedule]
        report.wrong += [(entry.file, why) for why in _faults(entry, networks, schedule, witnesses_of, report)]
    for row in unfiled:
        report.wrong += [(INDEX, why) for why in _unfiled_faults(row, networks, stored, report)]
    files_in_index = {entry.file for entry in entries}
    for target in TARGETS.values():
        for path in sorted((folder / target.folder).glob("*")):
            name = f"{target.folder}/{path.name}"
            if path.suffix == target.suffix and name not in files_in_index:
                report.wrong.append((name, f"no entry names it, and {target.reader} loads all that is there"))
    return report


def _witnesses_of_questions(
    stored: Iterable[tuple[StoredSchedule, ScheduleCheck]],
) -> dict[object, tuple[Witness, ...]]:
    """Return the checked witnesses of each question that names alone state; a bound holds for every schedule of it."""
    witnesses_of: dict[object, tuple[Witness, ...]] = {}
    for schedule, checked in stored:
        problem = schedule.bounded_problem
        if schedule.as_named and problem.collective.kind.by_name and schedule.problem.quotient is None:
            costs = problem.topology.costs.source if problem.topology.protocol and problem.topology.costs else None
            root = problem.group[problem.collective.root] if problem.collective.kind.rooted else None
            key = problem.collective.name, problem.topology.name, problem.group, problem.relays, root, costs
            witnesses_of[key] = witnesses_of.get(key, ()) + checked.limits
    return witnesses_of


def _question_key(entry: Entry) -> object:
    """Return an entry's question as `_witnesses_of_questions` names it."""
    costs = (entry.values.get("costs") or {}).get("source")
    return entry.collective, entry.topology, entry.group, entry.relays, entry.root, costs


def _check_schedule(
    folder: Path, name: str, proof: str | None, networks: Networks, report: LibraryReport
) -> tuple[StoredSchedule, ScheduleCheck] | None:
    """Check a schedule and the proof beside it; return None if one is wrong, which is reported."""
    path = folder / name
    report.schedules += 1
    try:
        check_below(folder, path)
        if proof is not None:
            check_below(folder, folder / proof)
        stored = load_schedule(path)
        if not stored.as_named and not means_its_name(stored.problem.collective):
            kind = stored.problem.collective.name
            raise InputError(f"collective: its columns are not {kind}; they must be what that means")
        checked = check_stored(path, stored, None if proof is None else folder / proof)
    except InputError as error:
        report.wrong.append((name, str(error).removeprefix(f"{origin_of(path)}: ")))
        return None
    report.proofs += checked.proof is not None
    if checked.wrong:
        report.wrong.append((name, checked.wrong))
        return None
    try:
        named_problem = _on_named(stored, networks)
    except InputError as error:
        report.wrong.append((name, f"is not possible on {stored.problem.topology.name}: {error}"))
        return None
    if named_problem is None:
        reason = f"the network {stored.problem.topology.name} is not known: give it as --topo"
        report.unproved[reason].add(name)
    elif network_digest(named_problem) != network_digest(_any_protocol(stored.bounded_problem)):
        report.wrong.append((name, f"is for another network than {stored.problem.topology.name} now is"))
        return None
    return stored, checked


def _any_protocol(problem: Problem) -> Problem:
    """Return a problem under its best protocol if its costs are on, else as it is."""
    return problem.under(ANY) if problem.topology.protocol else problem


def _on_named(stored: StoredSchedule, networks: Networks) -> Problem | None:
    """Return the problem of a schedule file on the topology of its stated name; None if that is not known.

    Costs that are not the named topology's own count as not known.
    """
    problem = stored.bounded_problem
    topology = networks.named(problem.topology.name)
    if topology is None:
        return None
    if problem.topology.protocol:
        source = None if problem.topology.costs is None else problem.topology.costs.source
        if topology.costs is None or topology.costs.source != source:
            return None
        topology = with_costs(topology)
    return make_problem(topology, problem.collective, problem.group, relays=problem.relays)


def _faults(
    entry: Entry,
    networks: Networks,
    stored: tuple[StoredSchedule, ScheduleCheck] | None,
    witnesses_of: Mapping[object, tuple[Witness, ...]],
    report: LibraryReport,
) -> Iterator[str]:
    """Yield the faults of one entry and its file.

    Args:
        entry: Entry to check.
        networks: Known topologies.
        stored: The entry's schedule and its check; None without one.
        witnesses_of: Checked witnesses of each question.
        report: Where what is unproved is added.
    """
    try:
        is_there = entry.path.is_file()
        for name in (entry.schedule, entry.proof_file):
            if name is not None:
                entry.inside(name)
    except InputError as error:
        yield str(error)
        return
    if not is_there:
        yield "is not there"
        return
    for key, name in (("file", entry.file), ("schedule", entry.schedule), ("proof_file", entry.proof_file)):
        if name is None:
            continue
        stated, path = entry.stated_digest(key), entry.inside(name)
        if stated is not None and path.is_file() and stated != (digest := _digest(path)):
            prefix = "" if key == "file" else f"{name} "
            yield f"{prefix}has other bytes than were written (SHA-256 {digest[:12]}…, the index says {stated[:12]}…)"
    topology, is_known = networks.named(entry.topology), True
    if topology is not None and entry.values.get("costs") is not None:
        topology = _with_stated_costs(entry, topology)
    if topology is None:
        is_known = False
        if stored is not None:
            topology = stored[0].problem.topology
        reason = f"the network {entry.topology} is not known: give it as --topo for times"
        if networks.named(entry.topology) is not None:
            reason = "its costs are not those of its topology"
        elif stored is None:
            report.remarks[reason] += 1
        report.unproved[reason].add(entry.file)
    if topology is not None and largest_rank(entry) >= topology.nranks:
        yield f"names rank {largest_rank(entry)}, {topology.name} has {topology.nranks}"
        return
    has_groups = "groups" in entry.values  # Then the schedule is that of all groups.
    try:
        problem = _problem(entry, topology, None if stored is None else stored[0])
        requirement = _requirement(entry, topology, problem)
        text, program = read_right(entry, requirement)
    except InputError as error:
        yield str(error).removeprefix(f"{entry.file}: ")
        return
    if stored is not None:
        yield from (
            _other_plan(entry, stored[0].bounded_problem)
            if has_groups
            else _other_question(entry, stored[0].bounded_problem)
        )
    yield from _other_program(entry, program, text)
    if problem is None or topology is None:
        report.unproved["what its collective means is not known, and no schedule states it"].add(entry.file)
    if topology is None:
        return
    stated, digest_now = entry.values.get("network"), "" if problem is None else network_digest(_any_protocol(problem))
    if stated and digest_now and stated != digest_now:
        yield f"is for another network than {topology.name} now is"
        return
    try:
        predict, costed_topology = (
            FORMATS[TARGETS[entry.target].format].predictor,
            with_protocol(topology, program.protocol),
        )
        predictor = predict(text, program, costed_topology, entry.communicator)
        scale = _scale(entry, stored, problem)
        own_group = has_groups and not entry.values.get("goal")
        witnesses = witnesses_of.get(_question_key(entry), ())
        if stored is not None and not own_group:
            witnesses = stored[1].limits or witnesses
        proved_here = not witnesses and is_known and problem is not None and entry.values.get("bound_us") is not None
        if proved_here and problem is not None:
            witnesses = _prove_again(problem)
        evidence = Evidence(
            None if scale is None else lambda size: predictor.time_us(size * scale),
            lambda size: entry.in_range(int(size * (scale or 1.0))),
            witnesses if is_known else (),
            None if problem is None else _any_protocol(problem),
            None if stored is None or own_group else stored[0],
            proved_here,
        )
        findings = check_figures(entry.values, evidence)
        yield from findings.wrong
        if has_groups:
            yield from _other_groups(entry, problem)
        if findings.unproved:
            report.unproved[", ".join(findings.unproved)].add(entry.file)
        own_form = None if problem is None else _form(problem)
        for group in entry.isomorphic_groups:
            predict(text, program, costed_topology, group)  # It raises if a message has no link.
            if problem is not None and _form(make_problem(topology, problem.collective, group)) != own_form:
                yield f"for group {format_listed(group)}: its network is not that of {format_listed(entry.group)}"
    except InputError as error:
        yield str(error).removeprefix(f"{entry.file}: ")


def _prove_again(problem: Problem) -> tuple[Witness, ...]:
    """Return checked witnesses of a small question's bound if no file proves one; nothing for a large question."""
    if problem.nranks > _MOST_RANKS:
        return ()
    whole = _any_protocol(problem)
    witnesses = prove(whole, max_flow=False).witnesses
    for witness in witnesses:
        base_us, per_byte_us, cap_us = recompute(whole, witness)
        if witness.base_us > base_us * (1 + EQUAL) or witness.per_byte_us > per_byte_us * (1 + EQUAL):
            return ()
        if witness.cap_us > cap_us * (1 + EQUAL):
            return ()
    return tuple(witnesses)


def _form(problem: Problem) -> bytes:
    """Return the canonical form of a problem's network and nodes."""
    return network_form(problem.network, problem.topology.nodes[list(problem.ranks)])


def _with_stated_costs(entry: Entry, topology: Topology) -> Topology | None:
    """Return the topology with the costs on that an entry states; None if they are not the topology's own."""
    if topology.costs is None:
        return None
    costed = with_costs(topology)
    own_costs = {"protocols": protocols_of(costed), "source": topology.costs.source}
    return costed if entry.values["costs"] == own_costs else None


def _scale(entry: Entry, stored: tuple[StoredSchedule, ScheduleCheck] | None, problem: Problem | None) -> float | None:
    """Return the message size that an executor sees, divided by the problem's message size; None if it is not known.

    Raises:
        InputError: If the entry states padding that its schedule does not have.
    """
    padding = float(entry.values.get("padding", 0.0))
    if stored is None or ("groups" in entry.values and not entry.values.get("goal")):
        return 1.0 if padding == 0 else None
    common = common_chunk(stored[0].problem.collective)
    if not math.isclose(padding, common.padding, abs_tol=_EXACT):
        raise InputError(f"padding: is {padding}; it must be {common.padding}, as in its schedule")
    if padding == 0 and problem is not None and problem.collective.kind.by_name:
        return 1.0
    return _fullest(stored[0].problem) / (1 - padding)


def _fullest(problem: Problem) -> float:
    """Return the contents of a rank's fullest buffer, divided by the message size."""
    whole = problem.collective
    sides = ((whole.pre, whole.in_index), (whole.post, whole.out_index))
    most = 0.0
    for rows, places in sides:
        _, first = np.unique(np.column_stack([rows[:, 0], places]), axis=0, return_index=True)
        most = max(most, float(np.bincount(rows[first, 0], whole.fraction[rows[first, 1]]).max()))
    return most


def _other_program(entry: Entry, program: Program, text: str) -> Iterator[str]:
    """Yield what differs between a file and its entry: threadblocks, the unit of sizes, what serves other calls."""
    target = TARGETS[entry.target]
    blocks = max(FORMATS[target.format].threadblocks(program, text))
    rows = (
        ("threadblocks", entry.values.get("threadblocks"), blocks),
        ("divides", entry.divides, divisor(program, target)),
        ("otherwise", entry.values.get("otherwise"), target.otherwise),
    )
    for key, stated, actual in rows:
        if stated is not None and stated != actual:
            yield f"{key}: is {stated}; it must be {actual}, as in its file"


def _unfiled_faults(
    row: Mapping[str, Any],
    networks: Networks,
    stored: Mapping[str, tuple[StoredSchedule, ScheduleCheck] | None],
    report: LibraryReport,
) -> Iterator[str]:
    """Yield the faults of a row of a build's record that has a schedule and no file."""
    name = str(row.get("schedule"))
    label = f"unfiled row of {name[:80]!r}"
    schedule_and_check = stored.get(name)
    if schedule_and_check is None:
        yield f"{label}: its schedule is missing or wrong; the library must hold it"
        return
    schedule, checked = schedule_and_check
    try:
        figures = {key: value for key, value in row.items() if key != "groups"}  # The groups are checked below.
        check_types(Fields(figures, "", label))
        problem = schedule.bounded_problem
        root = problem.collective.root if problem.collective.kind.rooted else None
        group = list(problem.group)
        if (row["collective"], row["root"], row["groups"][0]) != (problem.collective.name, root, group):
            yield f"{label}: states another question than its schedule; it must be {problem.collective.name} of {group}"
        algorithm = Algorithm(
            schedule.problem, schedule.schedule, str(schedule.header["engine"]), size_bytes=schedule.schedule.size_bytes
        )
        low, high, named_problem = row["min_bytes"], row["max_bytes"], _on_named(schedule, networks)
        evidence = Evidence(
            algorithm.time_us,
            lambda size: low <= size and (high is None or size <= high),
            checked.limits if named_problem is not None else (),
            named_problem,
            schedule,
            has_file=False,
        )
        findings = check_figures(row, evidence)
        yield from (f"{label}: {reason}" for reason in findings.wrong)
        if findings.unproved:
            report.unproved[", ".join(findings.unproved)].add(name)
        for ranks in row["groups"][1:]:
            if named_problem is not None and _form(
                make_problem(named_problem.topology, named_problem.collective, tuple(ranks))
            ) != _form(named_problem):
                yield f"{label}: for group {format_listed(ranks)}: its network is not that of {format_listed(group)}"
    except (InputError, KeyError, TypeError, LookupError) as error:
        yield f"{label}: {str(error).removeprefix(f'{label}: ')}"


def _problem(entry: Entry, topology: Topology | None, stored: StoredSchedule | None) -> Problem | None:
    """Return the problem that an entry answers, on its topology; None if neither a name nor a schedule states it."""
    if topology is None:
        return None
    if entry.values.get("groups") and entry.values.get("goal"):  # One program serves all groups.
        return union_problem(topology, [_member(row) for row in entry.values["groups"]], entry.relays or "none")
    if entry.collective in KINDS and find_kind(entry.collective).by_name:
        root = entry.root if find_kind(entry.collective).rooted else None
        return make_problem(topology, entry.collective, entry.group, relays=entry.relays, root=root)
    if stored is None or "groups" in entry.values:
        return None
    return make_problem(topology, stored.bounded_problem.collective, entry.group, relays=entry.relays)


def _member(row: Mapping[str, Any]) -> Member:
    """Return a member of an entry's `groups`; raise InputError if its collective is not known by its name."""
    kind, ranks, size = KINDS.get(str(row["collective"])), row["ranks"], row["size_bytes"]
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


def _requirement(entry: Entry, topology: Topology | None, problem: Problem | None) -> Requirement:
    """Return the requirement on an entry's file."""
    target = TARGETS[entry.target]
    is_named = (
        entry.collective in KINDS and find_kind(entry.collective).by_name and entry.collective in target.collectives
    )
    program_collective = entry.collective if is_named and not entry.relays else CUSTOM

    def is_goal(candidate: Entry) -> bool:
        """Return True if an entry's goal is the problem's."""
        custom = program_collective == CUSTOM
        stated = candidate.values.get("goal") is not None
        return stated == custom and (not custom or problem is None or states_goal(candidate, problem))

    root = None if program_collective == CUSTOM or entry.root is None else entry.group.index(entry.root)
    any_topology = topology if topology is not None else load(f"full:{max(2, len(entry.communicator))}")
    return Requirement(program_collective, root, any_topology, entry.communicator, target, is_goal)


def _other_question(entry: Entry, problem: Problem) -> Iterator[str]:
    """Yield how an entry's stored schedule is for another question."""
    root = problem.group[problem.collective.root] if problem.collective.kind.rooted else None
    of_schedule = problem.collective.name, problem.group, problem.relays, root, problem.topology.name
    of_entry = entry.collective, entry.group, entry.relays, entry.root, entry.topology
    for aspect, entry_value, schedule_value in zip(
        ("collective", "group", "relays", "root", "topology"), of_entry, of_schedule, strict=True
    ):
        if entry_value != schedule_value:
            words = [
                format_listed(value) if isinstance(value, tuple) else str(value)
                for value in (schedule_value, entry_value)
            ]
            yield f"{entry.schedule} is for {aspect} {words[0]}, its entry says {words[1]}"


def _other_groups(entry: Entry, problem: Problem | None) -> Iterator[str]:
    """Yield how an entry's statements on its groups differ from what its file is for."""
    rows, size, goal = entry.values["groups"], entry.values.get("shown_bytes"), entry.values.get("goal")
    stated = [row["chunks"] for row in rows]
    most: float | None
    expected: list[list[Any]] | None
    if isinstance(problem, UnionProblem) and goal:
        most, cells = problem.size_bytes, 1 + max(goal["initial"][4])
        starts = (problem.first_chunk * (cells // problem.collective.nchunks)).tolist()
        expected = [[low, high] for low, high in pairwise(starts)] if not entry.values.get("padding") else stated
    else:
        most = rows[0]["size_bytes"] if len(rows) == 1 else None
        expected = (
            [[0, stated[0][1]]] if len(rows) == 1 and isinstance(stated[0], list) and len(stated[0]) == 2 else None
        )
    if size != (None if not is_figure(most) else max(1, round(most))):
        yield f"groups: states a size of {most}; it must be {size}, the size of its time"
    if stated != expected:
        yield f"groups: states chunks {stated}; it must be {expected}"


def _other_plan(entry: Entry, problem: Problem) -> Iterator[str]:
    """Yield what shows that the stored schedule of several groups is not the entry's."""
    if problem.topology.name != entry.topology:
        yield f"{entry.schedule} is for topology {problem.topology.name}, its entry says {entry.topology}"
    if missing := sorted(set(entry.group) - set(problem.group)):
        yield f"{entry.schedule} is for ranks {format_listed(problem.group)}, its entry says {missing[0]}"
    if entry.values.get("goal"):  # The schedule is of all groups, and was compared with them.
        return
    groups = entry.values["groups"]
    own = {"ranks": list(entry.group), "collective": entry.collective}
    if not any(isinstance(row, dict) and own.items() <= row.items() for row in groups):
        yield f"is of {entry.collective} among {format_listed(entry.group)}, which its entry's groups do not name"


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with open_regular_file(path, "a file of the library") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
