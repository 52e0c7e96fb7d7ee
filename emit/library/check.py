"""A library checked again from its files alone: every program, schedule and proof, and what the index says of them.

Nothing that an entry states is taken for granted where it can be worked out: a file is replayed against what is asked
and timed on the network, a schedule is replayed and its proof's bound proved anew.
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
from emit.library.fault_check import find_fault_errors
from emit.library.figures import SHAPE, UNPROVABLE, Evidence, check_figures
from emit.library.index import INDEX, SCHEDULES, Entry, check_types, is_figure
from emit.library.networks import Networks, largest_rank
from emit.library.overlay import FAULT
from emit.library.standing import Wanted, network_digest, read_right, states_goal
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
from synth.present.text import format_listed
from synth.storage.check import Checked, check_stored
from synth.storage.problem import means_its_name
from synth.storage.proof import EQUAL
from synth.storage.schedule_file import Stored, load_schedule
from synth.symmetry.canonical import network_form
from synth.verify.algorithm import Algorithm
from topologies.costed import protocols_of, under, with_costs
from topologies.costs import ANY
from topologies.errors import InputError
from topologies.load import load
from topologies.text.fields import Fields
from topologies.text.files import check_below, opened, origin_of
from topologies.topology import Topology

_MOST_RANKS = 32  # of a question whose bound is proved anew in a fraction of a second
_EXACT = 1e-12  # of two paddings that should be one, from rounding


@dataclass
class Report:
    """What a check came to.

    wrong: (path in the library, why), in the order found.  remarks: what could not be checked, a sentence each.
    unproved: what no file proves, fields or why, with the files that state it.
    files, schedules, proofs: how many were looked at.
    """

    wrong: list[tuple[str, str]] = field(default_factory=list)
    remarks: Counter[str] = field(default_factory=Counter)
    unproved: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    files: int = 0
    schedules: int = 0
    proofs: int = 0

    @property
    def unproved_files(self) -> set[str]:
        """The files of which more is not proved than the shape of a schedule and what a search alone knows."""
        about = {*UNPROVABLE, *SHAPE, "proof"}  # the words of a witness, beside figures that are proved
        return {
            name for what, names in self.unproved.items() if not about.issuperset(what.split(", ")) for name in names
        }

    def add(self, other: Report, prefix: str) -> None:
        """Add what the check of another folder came to, whose paths begin with the prefix."""
        self.wrong += [(f"{prefix}{name}", why) for name, why in other.wrong]
        self.remarks += other.remarks
        for what, names in other.unproved.items():
            self.unproved[what] |= {f"{prefix}{name}" for name in names}
        self.files, self.schedules = self.files + other.files, self.schedules + other.schedules
        self.proofs += other.proofs


def check_library(
    folder: Path,
    entries: Sequence[Entry],
    topology: Topology | None = None,
    unfiled: Sequence[Mapping[str, Any]] = (),
) -> Report:
    """Check every file of a library, every schedule and proof, and what each entry says.

    Args:
        topology: Topology of the entries of its name; others are found by their names.
        unfiled: Rows of builds' records that state a schedule for which there is no file.
    """
    report = Report()
    fault = find_fault_errors(folder, entries, topology)
    report.wrong += [(FAULT, why) for why in fault.wrong]
    if fault.unproved:
        report.unproved[fault.unproved].add(FAULT)
    networks = Networks(topology, fault.hurt)
    stored: dict[str, tuple[Stored, Checked] | None] = {}
    for name in dict.fromkeys(e.schedule for e in entries if e.schedule is not None):
        proof = next((e.proof_file for e in entries if e.schedule == name and e.proof_file is not None), None)
        stored[name] = _stored(folder, name, proof, networks, report)
    for path in sorted((folder / SCHEDULES).glob("*.synth")):  # of what has no executor's file
        name = f"{SCHEDULES}/{path.name}"
        if name not in stored:
            stored[name] = _stored(folder, name, None, networks, report)
    proved = _proved(found for found in stored.values() if found is not None)
    for entry in entries:
        report.files += 1
        found = None if entry.schedule is None else stored[entry.schedule]
        report.wrong += [(entry.file, why) for why in _faults(entry, networks, found, proved, report)]
    for row in unfiled:
        report.wrong += [(INDEX, why) for why in _unfiled_faults(row, networks, stored, report)]
    named = {entry.file for entry in entries}
    for target in TARGETS.values():
        for path in sorted((folder / target.folder).glob("*")):
            name = f"{target.folder}/{path.name}"
            if path.suffix == target.suffix and name not in named:
                report.wrong.append((name, f"no entry names it, and {target.reader} loads all that is there"))
    return report


def _proved(stored: Iterable[tuple[Stored, Checked]]) -> dict[object, tuple[Witness, ...]]:
    """Return what is proved of each question that names alone state; a bound holds for every schedule of it."""
    proved: dict[object, tuple[Witness, ...]] = {}
    for one, checked in stored:
        asked = one.asked
        if one.as_named and asked.collective.kind.by_name and one.problem.quotient is None:
            costs = asked.topology.costs.source if asked.topology.protocol and asked.topology.costs else None
            root = asked.group[asked.collective.root] if asked.collective.kind.rooted else None
            key = asked.collective.name, asked.topology.name, asked.group, asked.relays, root, costs
            proved[key] = proved.get(key, ()) + checked.limits
    return proved


def _asked(entry: Entry) -> object:
    """Return an entry's question as `_proved` names it."""
    costs = (entry.values.get("costs") or {}).get("source")
    return entry.collective, entry.topology, entry.group, entry.relays, entry.root, costs


def _stored(
    folder: Path, name: str, proof: str | None, networks: Networks, report: Report
) -> tuple[Stored, Checked] | None:
    """Check a schedule and the proof beside it; return None where one is wrong, which is reported."""
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
        named = _on_named(stored, networks)
    except InputError as error:
        report.wrong.append((name, f"is not possible on {stored.problem.topology.name}: {error}"))
        return None
    if named is None:
        words = f"the network {stored.problem.topology.name} is not known: give it as --topo"
        report.unproved[words].add(name)
    elif network_digest(named) != network_digest(_any_protocol(stored.asked)):
        report.wrong.append((name, f"is for another network than {stored.problem.topology.name} now is"))
        return None
    return stored, checked


def _any_protocol(problem: Problem) -> Problem:
    """Return a problem with its costs, where they are on, under whichever protocol is best."""
    return problem.under(ANY) if problem.topology.protocol else problem


def _on_named(stored: Stored, networks: Networks) -> Problem | None:
    """Return what a schedule file asks on the topology that its name is known by; None where that is not known.

    Costs that are not the named topology's own are not known either.
    """
    asked = stored.asked
    topology = networks.named(asked.topology.name)
    if topology is None:
        return None
    if asked.topology.protocol:
        source = None if asked.topology.costs is None else asked.topology.costs.source
        if topology.costs is None or topology.costs.source != source:
            return None
        topology = with_costs(topology)
    return make_problem(topology, asked.collective, asked.group, relays=asked.relays)


def _faults(
    entry: Entry,
    networks: Networks,
    stored: tuple[Stored, Checked] | None,
    proved: Mapping[object, tuple[Witness, ...]],
    report: Report,
) -> Iterator[str]:
    """Yield what is wrong with one entry and its file; proved: checked witnesses of each question."""
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
            which = "" if key == "file" else f"{name} "
            yield f"{which}has other bytes than were written (SHA-256 {digest[:12]}…, the index says {stated[:12]}…)"
    topology, known = networks.named(entry.topology), True
    if topology is not None and entry.values.get("costs") is not None:
        topology = _with_stated_costs(entry, topology)
    if topology is None:
        known = False
        if stored is not None:
            topology = stored[0].problem.topology
        words = f"the network {entry.topology} is not known: give it as --topo for times"
        if networks.named(entry.topology) is not None:
            words = "its costs are not those of its topology"
        elif stored is None:
            report.remarks[words] += 1
        report.unproved[words].add(entry.file)
    if topology is not None and largest_rank(entry) >= topology.nranks:
        yield f"names rank {largest_rank(entry)}, {topology.name} has {topology.nranks}"
        return
    planned = "groups" in entry.values  # with other groups: the schedule is of all
    try:
        problem = _problem(entry, topology, None if stored is None else stored[0])
        wanted = _wanted(entry, topology, problem)
        text, program = read_right(entry, wanted)
    except InputError as error:
        yield str(error).removeprefix(f"{entry.file}: ")
        return
    if stored is not None:
        yield from _other_plan(entry, stored[0].asked) if planned else _other_question(entry, stored[0].asked)
    yield from _other_program(entry, program, text)
    if problem is None or topology is None:
        report.unproved["what its collective means is not known, and no schedule states it"].add(entry.file)
    if topology is None:
        return
    stated, now = entry.values.get("network"), "" if problem is None else network_digest(_any_protocol(problem))
    if stated and now and stated != now:
        yield f"is for another network than {topology.name} now is"
        return
    try:
        predict, on = FORMATS[TARGETS[entry.target].format].predictor, under(topology, program.protocol)
        predictor = predict(text, program, on, entry.communicator)
        scale = _scale(entry, stored, problem)
        own_group = planned and not entry.values.get("goal")
        witnesses = proved.get(_asked(entry), ())
        if stored is not None and not own_group:
            witnesses = stored[1].limits or witnesses
        anew = not witnesses and known and problem is not None and entry.values.get("bound_us") is not None
        if anew and problem is not None:
            witnesses = _proved_anew(problem)
        evidence = Evidence(
            None if scale is None else lambda size: predictor.time_us(size * scale),
            lambda size: entry.in_range(int(size * (scale or 1.0))),
            witnesses if known else (),
            None if problem is None else _any_protocol(problem),
            None if stored is None or own_group else stored[0],
            anew,
        )
        findings = check_figures(entry.values, evidence)
        yield from findings.wrong
        if planned:
            yield from _other_groups(entry, problem)
        if findings.unproved:
            report.unproved[", ".join(findings.unproved)].add(entry.file)
        own = None if problem is None else _form(problem)
        for group in entry.isomorphic_groups:
            predict(text, program, on, group)  # refuses what is sent where there is no link
            if problem is not None and _form(make_problem(topology, problem.collective, group)) != own:
                yield f"for group {format_listed(group)}: its network is not that of {format_listed(entry.group)}"
    except InputError as error:
        yield str(error).removeprefix(f"{entry.file}: ")


def _proved_anew(problem: Problem) -> tuple[Witness, ...]:
    """Return what proves a bound of a small question that has no proof, each witness checked; none of a large one."""
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
    return network_form(problem.network, problem.topology.nodes[list(problem.ranks)])


def _with_stated_costs(entry: Entry, topology: Topology) -> Topology | None:
    """Return the topology with the costs on that an entry states; None where they are not the topology's own."""
    if topology.costs is None:
        return None
    on = with_costs(topology)
    own = {"protocols": protocols_of(on), "source": topology.costs.source}
    return on if entry.values["costs"] == own else None


def _scale(entry: Entry, stored: tuple[Stored, Checked] | None, problem: Problem | None) -> float | None:
    """Return the size that an executor takes for that of messages / the message size; None where it is not known.

    Raises InputError where the entry states padding that its schedule has not.
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
    """Return what the fullest buffer of a rank holds / the message size."""
    whole = problem.collective
    sides = ((whole.pre, whole.in_index), (whole.post, whole.out_index))
    most = 0.0
    for rows, places in sides:
        _, first = np.unique(np.column_stack([rows[:, 0], places]), axis=0, return_index=True)
        most = max(most, float(np.bincount(rows[first, 0], whole.fraction[rows[first, 1]]).max()))
    return most


def _other_program(entry: Entry, program: Program, text: str) -> Iterator[str]:
    """Where a file has other threadblocks, or serves other sizes, than its entry states."""
    target = TARGETS[entry.target]
    blocks = max(FORMATS[target.format].threadblocks(program, text))
    rows = (
        ("threadblocks", entry.values.get("threadblocks"), blocks),
        ("divides", entry.divides, divisor(program, target)),
        ("otherwise", entry.values.get("otherwise"), target.otherwise),
    )
    for key, stated, right in rows:
        if stated is not None and stated != right:
            yield f"{key}: is {stated}; it must be {right}, as in its file"


def _unfiled_faults(
    row: Mapping[str, Any], networks: Networks, stored: Mapping[str, tuple[Stored, Checked] | None], report: Report
) -> Iterator[str]:
    """Yield what is wrong with a row of a build's record that has a schedule and no file."""
    name = str(row.get("schedule"))
    where = f"unfiled row of {name[:80]!r}"
    found = stored.get(name)
    if found is None:
        yield f"{where}: is no right schedule of this library; it must be one"
        return
    own, checked = found
    try:
        check_types(Fields(dict(row), "", where))
        asked = own.asked
        root = asked.collective.root if asked.collective.kind.rooted else None
        group = list(asked.group)
        if (row["collective"], row["root"], row["groups"][0]) != (asked.collective.name, root, group):
            yield f"{where}: states another question than its schedule; it must be {asked.collective.name} of {group}"
        algorithm = Algorithm(own.problem, own.schedule, str(own.header["engine"]), size_bytes=own.schedule.size_bytes)
        low, high, named = row["min_bytes"], row["max_bytes"], _on_named(own, networks)
        evidence = Evidence(
            algorithm.time_us,
            lambda size: low <= size and (high is None or size <= high),
            checked.limits if named is not None else (),
            named,
            own,
        )
        findings = check_figures(row, evidence)
        yield from (f"{where}: {why}" for why in findings.wrong)
        if findings.unproved:
            report.unproved[", ".join(findings.unproved)].add(name)
        for ranks in row["groups"][1:]:
            if named is not None and _form(make_problem(named.topology, named.collective, tuple(ranks))) != _form(
                named
            ):
                yield f"{where}: for group {format_listed(ranks)}: its network is not that of {format_listed(group)}"
    except (InputError, KeyError, TypeError, LookupError) as error:
        yield f"{where}: {error}"


def _problem(entry: Entry, topology: Topology | None, stored: Stored | None) -> Problem | None:
    """Return what an entry answers, on its topology; None where neither a name nor a schedule says it."""
    if topology is None:
        return None
    if entry.values.get("groups") and entry.values.get("goal"):  # one program of all groups
        return union_problem(topology, [_member(row) for row in entry.values["groups"]], entry.relays or "none")
    if entry.collective in KINDS and find_kind(entry.collective).by_name:
        root = entry.root if find_kind(entry.collective).rooted else None
        return make_problem(topology, entry.collective, entry.group, relays=entry.relays, root=root)
    if stored is None or "groups" in entry.values:
        return None
    return make_problem(topology, stored.asked.collective, entry.group, relays=entry.relays)


def _member(row: Mapping[str, Any]) -> Member:
    """Return one of an entry's `groups`. Raises InputError where its collective is not known by its name."""
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


def _wanted(entry: Entry, topology: Topology | None, problem: Problem | None) -> Wanted:
    target = TARGETS[entry.target]
    known = entry.collective in KINDS and find_kind(entry.collective).by_name and entry.collective in target.collectives
    named = entry.collective if known and not entry.relays else CUSTOM

    def is_goal(one: Entry) -> bool:
        custom = named == CUSTOM
        stated = one.values.get("goal") is not None
        return stated == custom and (not custom or problem is None or states_goal(one, problem))

    root = None if named == CUSTOM or entry.root is None else entry.group.index(entry.root)
    nowhere = topology if topology is not None else load(f"full:{max(2, len(entry.communicator))}")
    return Wanted(named, root, nowhere, entry.communicator, target, is_goal)


def _other_question(entry: Entry, asked: Problem) -> Iterator[str]:
    """Yield where the stored schedule is for something else."""
    root = asked.group[asked.collective.root] if asked.collective.kind.rooted else None
    own = asked.collective.name, asked.group, asked.relays, root, asked.topology.name
    said = entry.collective, entry.group, entry.relays, entry.root, entry.topology
    for what, mine, its in zip(("collective", "group", "relays", "root", "topology"), said, own, strict=True):
        if mine != its:
            words = [format_listed(one) if isinstance(one, tuple) else str(one) for one in (its, mine)]
            yield f"{entry.schedule} is for {what} {words[0]}, its entry says {words[1]}"


def _other_groups(entry: Entry, problem: Problem | None) -> Iterator[str]:
    """Where what an entry states of its groups is not what its file is for."""
    rows, size, goal = entry.values["groups"], entry.values.get("shown_bytes"), entry.values.get("goal")
    stated = [row["chunks"] for row in rows]
    most: float | None
    wanted: list[list[Any]] | None
    if isinstance(problem, UnionProblem) and goal:
        most, cells = problem.size_bytes, 1 + max(goal["initial"][4])
        right = (problem.first_chunk * (cells // problem.collective.nchunks)).tolist()
        wanted = [[low, high] for low, high in pairwise(right)] if not entry.values.get("padding") else stated
    else:
        most = rows[0]["size_bytes"] if len(rows) == 1 else None
        wanted = [[0, stated[0][1]]] if len(rows) == 1 and isinstance(stated[0], list) and len(stated[0]) == 2 else None
    if size != (None if not is_figure(most) else max(1, round(most))):
        yield f"groups: states a size of {most}; it must be {size}, for which its time is"
    if stated != wanted:
        yield f"groups: states chunks {stated}; it must be {wanted}"


def _other_plan(entry: Entry, asked: Problem) -> Iterator[str]:
    """Yield where the stored schedule of several groups is not this one's too."""
    if asked.topology.name != entry.topology:
        yield f"{entry.schedule} is for topology {asked.topology.name}, its entry says {entry.topology}"
    if missing := sorted(set(entry.group) - set(asked.group)):
        yield f"{entry.schedule} is for ranks {format_listed(asked.group)}, its entry says {missing[0]}"
    if entry.values.get("goal"):  # it is of all groups, and held against them
        return
    groups = entry.values["groups"]
    own = {"ranks": list(entry.group), "collective": entry.collective}
    if not any(isinstance(one, dict) and own.items() <= one.items() for one in groups):
        yield f"is of {entry.collective} among {format_listed(entry.group)}, which its entry's groups do not name"


def _digest(path: Path) -> str:
    with opened(path, "a file of the library") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
