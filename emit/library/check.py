"""A library checked again from its files alone: every program, schedule and proof, and what the index says of them.

Nothing that an entry states is taken for granted where it can be worked out: a file is replayed against what is asked
and timed on the network, a schedule is replayed and its proof's bound proved anew.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from emit.formats import FORMATS
from emit.library.index import SCHEDULES, Entry
from emit.library.standing import Wanted, network_digest, read_right, states_goal
from emit.program import CUSTOM
from emit.targets import TARGETS
from synth.model.problem import Problem, make_problem
from synth.model.registry import KINDS, find_kind
from synth.present.text import format_listed, format_size, format_time
from synth.storage.check import Checked, check_stored
from synth.storage.proof import EQUAL
from synth.storage.schedule_file import Stored, load_schedule
from topologies.costs import ANY
from topologies.errors import InputError
from topologies.load import load
from topologies.text.files import origin_of
from topologies.topology import Topology

_CLOSE = 1e-6  # of two times that should be one, from rounding


@dataclass
class Report:
    """What a check came to.

    wrong: (path in the library, why), in the order found.  remarks: what could not be checked, a sentence each.
    files, schedules, proofs: how many were looked at.
    """

    wrong: list[tuple[str, str]] = field(default_factory=list)
    remarks: Counter[str] = field(default_factory=Counter)
    files: int = 0
    schedules: int = 0
    proofs: int = 0


class Networks:
    """The topology of each entry: one that was given, or the one that its name is known by."""

    def __init__(self, given: Topology | None = None) -> None:
        self._given = given
        self._load = lru_cache(64)(_known)

    def named(self, entry: Entry) -> Topology | None:
        """None where it is not known."""
        given = self._given is not None and self._given.name == entry.topology
        return self._given if given else self._load(entry.topology)

    def of(self, entry: Entry) -> Topology | None:
        """None where it is not known, or has fewer ranks than the entry names."""
        found = self.named(entry)
        return found if found is not None and _largest(entry) < found.nranks else None


def _largest(entry: Entry) -> int:
    return max(rank for group in (entry.communicator, *entry.isomorphic_groups) for rank in group)


def _known(name: str) -> Topology | None:
    with suppress(InputError):
        found = load(name)
        return found if found.name == name else None
    return None


def check_library(folder: Path, entries: Sequence[Entry], topology: Topology | None = None) -> Report:
    """Check every file of a library, every schedule and proof, and what each entry says.

    topology: of the entries of its name; others are found by their names. What is wrong is in the report.
    """
    report, networks = Report(), Networks(topology)
    stored: dict[str, tuple[Stored, Checked] | None] = {}
    for name in dict.fromkeys(e.schedule for e in entries if e.schedule is not None):
        proof = next((e.proof_file for e in entries if e.schedule == name and e.proof_file is not None), None)
        stored[name] = _stored(folder, name, proof, report)
    for entry in entries:
        report.files += 1
        found = None if entry.schedule is None else stored[entry.schedule]
        report.wrong += [(entry.file, why) for why in _faults(entry, networks, found, report)]
    for path in sorted((folder / SCHEDULES).glob("*.synth")):  # of what has no executor's file
        name = f"{SCHEDULES}/{path.name}"
        if name not in stored:
            stored[name] = _stored(folder, name, None, report)
    named = {entry.file for entry in entries}
    for target in TARGETS.values():
        for path in sorted((folder / target.folder).glob("*")):
            name = f"{target.folder}/{path.name}"
            if path.suffix == target.suffix and name not in named:
                report.wrong.append((name, f"no entry names it, and {target.reader} loads all that is there"))
    return report


def _stored(folder: Path, name: str, proof: str | None, report: Report) -> tuple[Stored, Checked] | None:
    """A schedule and the proof beside it, checked; None where it is wrong, which is reported."""
    path = folder / name
    report.schedules += 1
    try:
        stored = load_schedule(path)
        checked = check_stored(path, stored, None if proof is None else folder / proof)
    except InputError as error:
        report.wrong.append((name, str(error).removeprefix(f"{origin_of(path)}: ")))
        return None
    report.proofs += checked.proof is not None
    if checked.wrong:
        report.wrong.append((name, checked.wrong))
        return None
    return stored, checked


def _faults(
    entry: Entry, networks: Networks, stored: tuple[Stored, Checked] | None, report: Report
) -> Iterator[str]:  # fmt: skip
    """What is wrong with one entry and its file."""
    if not entry.path.is_file():
        yield "is not there"
        return
    for key, name in (("file", entry.file), ("schedule", entry.schedule), ("proof_file", entry.proof_file)):
        stated, path = entry.stated_digest(key), entry.folder / (name or "")
        if stated is not None and name is not None and path.is_file() and stated != (digest := _digest(path)):
            which = "" if key == "file" else f"{name} "
            yield f"{which}has other bytes than were written (SHA-256 {digest[:12]}…, the index says {stated[:12]}…)"
    topology = stored[0].problem.topology if stored is not None else networks.named(entry)
    if topology is not None and _largest(entry) >= topology.nranks:
        yield f"names rank {_largest(entry)}, {topology.name} has {topology.nranks}"
        return
    try:
        planned = "groups" in entry.values  # with other groups: the schedule is of all
        problem = _problem(entry, topology) if stored is None or planned else stored[0].asked
        wanted = _wanted(entry, topology, problem)
        text, program = read_right(entry, wanted)
    except InputError as error:
        yield str(error).removeprefix(f"{entry.file}: ")
        return
    if stored is not None:
        yield from (
            _other_plan(entry, stored[0].asked) if planned else _other_question(entry, stored[0].asked, stored[1])
        )
    if topology is None:
        report.remarks[f"the network {entry.topology} is not known: give it as --topo for times"] += 1
        return
    stated, now = entry.values.get("network"), "" if problem is None else _network(entry, problem)
    if stated and now and stated != now:
        yield f"is for another network than {topology.name} now is"
        return
    predict = FORMATS[TARGETS[entry.target].format].predictor
    try:
        own = predict(text, program, topology, entry.communicator)
        if "costs" in entry.values or entry.values.get("padding") or "groups" in entry.values:
            what = "times with an executor's costs, of unequal chunks or beside other groups are not checked"
            report.remarks[what] += 1
            timed = replace(entry, values={**entry.values, **_as_timed(entry, own.time_us)})
        else:
            timed = entry
            yield from _other_times(entry, own.time_us, None)
        for group in entry.isomorphic_groups:
            yield from _other_times(timed, predict(text, program, topology, group).time_us, group)
    except InputError as error:
        yield str(error).removeprefix(f"{entry.file}: ")


def _network(entry: Entry, problem: Problem) -> str:
    """The digest of a problem's network as its entry has it: with costs on, of all protocols; empty: not known."""
    if "costs" not in entry.values:
        return network_digest(problem)
    return network_digest(problem.under(ANY)) if problem.topology.protocol else ""


def _as_timed(entry: Entry, time_us: Callable[[float], float]) -> dict[str, Any]:
    """The times that an entry would state by its file's program alone, for other groups to be compared with."""
    size = entry.values.get("shown_bytes")
    return {"curve": [], "time_us": time_us(size)} if isinstance(size, int) else {"curve": []}


def _problem(entry: Entry, topology: Topology | None) -> Problem | None:
    """What an entry of a collective that is known by its name answers."""
    if topology is None or entry.collective not in KINDS or not find_kind(entry.collective).by_name:
        return None
    root = entry.root if find_kind(entry.collective).rooted else None
    return make_problem(topology, entry.collective, entry.group, relays=entry.relays, root=root)


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


def _other_question(entry: Entry, asked: Problem, checked: Checked) -> Iterator[str]:
    """Where the stored schedule is for something else, or its proof for another bound."""
    root = asked.group[asked.collective.root] if asked.collective.kind.rooted else None
    own = asked.collective.name, asked.group, asked.relays, root, asked.topology.name
    said = entry.collective, entry.group, entry.relays, entry.root, entry.topology
    for what, mine, its in zip(("collective", "group", "relays", "root", "topology"), said, own, strict=True):
        if mine != its:
            words = [format_listed(one) if isinstance(one, tuple) else str(one) for one in (its, mine)]
            yield f"{entry.schedule} is for {what} {words[0]}, its entry says {words[1]}"
    bound, size = entry.values.get("bound_us"), entry.values.get("shown_bytes")
    proved = checked.bound_at(size) if isinstance(size, int) else None
    if isinstance(bound, int | float) and proved is not None and bound > proved * (1 + EQUAL):
        yield f"states a bound of {format_time(bound)} at {format_size(size or 0)}, the proof {format_time(proved)}"


def _other_plan(entry: Entry, asked: Problem) -> Iterator[str]:
    """Where the stored schedule of several groups is not this one's too."""
    if asked.topology.name != entry.topology:
        yield f"{entry.schedule} is for topology {asked.topology.name}, its entry says {entry.topology}"
    if missing := sorted(set(entry.group) - set(asked.group)):
        yield f"{entry.schedule} is for ranks {format_listed(asked.group)}, its entry says {missing[0]}"
    groups = entry.values["groups"]
    own = {"ranks": list(entry.group), "collective": entry.collective}
    if not any(isinstance(one, dict) and own.items() <= one.items() for one in groups):
        yield f"is of {entry.collective} among {format_listed(entry.group)}, which its entry's groups do not name"


def _other_times(entry: Entry, time_us: object, group: tuple[int, ...] | None) -> Iterator[str]:
    """Where a file takes another time than its entry states."""
    stated, size = entry.values.get("time_us"), entry.values.get("shown_bytes")
    if not isinstance(stated, int | float) or not isinstance(size, int) or not callable(time_us):
        return
    taken = time_us(size)
    of = "" if group is None else f" for group {format_listed(group)}"
    said = [(size, float(stated)), *((int(s), t) for s, t, _ in entry.curve if entry.in_range(int(s)))]
    for at, claimed in said:
        if not math.isclose(time_us(at), claimed, rel_tol=_CLOSE):
            yield f"takes {format_time(time_us(at))}{of} at {format_size(at)}, its entry says {format_time(claimed)}"
            break
    bound, gap = entry.values.get("bound_us"), entry.values.get("gap")
    if group is None and isinstance(bound, int | float) and bound > 0 and isinstance(gap, int | float):
        if bound > taken * (1 + _CLOSE):
            yield f"states a bound of {format_time(bound)} at {format_size(size)} and takes {format_time(taken)}"
        elif not math.isclose(gap, max(1.0, stated / bound), rel_tol=_CLOSE):
            yield f"states a gap of {gap:.4f}, its time and bound say {max(1.0, stated / bound):.4f}"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
