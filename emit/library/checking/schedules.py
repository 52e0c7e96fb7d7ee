"""The check of a library's schedules and proofs, and of what a build's record says of schedules without a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from emit.library.checking.figures import Evidence, check_figures
from emit.library.checking.report import LibraryReport
from emit.library.entry import IndexEntry, check_types
from emit.library.library_file import network_digest
from emit.library.networks import Networks
from emit.targets import TARGETS, Target
from synth.bounds.witness import Witness
from synth.model.problem import Problem, make_problem
from synth.model.text import format_listed
from synth.storage.check import ScheduleCheck, check_stored
from synth.storage.problem import means_its_name
from synth.storage.schedule_file import StoredSchedule, load_schedule
from synth.symmetry.canonical import network_form
from synth.verify.algorithm import Algorithm
from topologies.costed import protocols_of, with_costs, with_protocols
from topologies.costs import ANY
from topologies.errors import InputError
from topologies.load import NO_COSTS, apply_costs
from topologies.text.fields import Fields
from topologies.text.files import check_below, origin_of
from topologies.topology import Topology

CheckedSchedule = tuple[StoredSchedule, ScheduleCheck]


def check_schedule(
    folder: Path, name: str, proof: str | None, networks: Networks, report: LibraryReport
) -> CheckedSchedule | None:
    """Check a schedule and the proof of its bound; return None if one is wrong, which is reported.

    Args:
        folder: Folder of the library.
        name: Path of the schedule in the library.
        proof: Path of its proof in the library; None without one.
        networks: Known topologies.
        report: Where faults, what is unproved and the numbers of schedules and proofs are added.
    """
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
    elif network_digest(named_problem) != network_digest(any_protocol(stored.bounded_problem)):
        report.wrong.append((name, f"is for another network than {stored.problem.topology.name} now is"))
        return None
    return stored, checked


def witnesses_of_questions(stored: Iterable[CheckedSchedule]) -> dict[object, tuple[Witness, ...]]:
    """Return the checked witnesses of each question that its names state in full.

    A bound holds for every schedule of a question. Schedules of other questions are left out, and so are those on a
    quotient of the network.

    Args:
        stored: Schedules with their checks.

    Returns:
        The witnesses of the schedules' proofs by question: (collective, topology, group, relays, root or None, sizes,
        costs as (protocols, source) or None).
    """
    witnesses_of: dict[object, tuple[Witness, ...]] = {}
    for schedule, checked in stored:
        problem = schedule.bounded_problem
        is_known = problem.collective.kind.by_name or problem.collective.sizes
        if schedule.as_named and is_known and schedule.problem.quotient is None:
            costs = None
            if problem.topology.protocol and problem.topology.costs:
                costs = tuple(protocols_of(problem.topology)), problem.topology.costs.source
            root = problem.group[problem.collective.root] if problem.collective.kind.rooted else None
            collective = problem.collective
            asked = collective.name, problem.topology.name, problem.group, problem.relays, root, collective.sizes
            key = *asked, costs
            witnesses_of[key] = witnesses_of.get(key, ()) + checked.limits
    return witnesses_of


def _on_named(stored: StoredSchedule, networks: Networks) -> Problem | None:
    """Return the problem of a schedule file on the topology of its stated name; None if that is not known.

    Costs that are not the named topology's own count as not known.

    Raises:
        InputError: If the problem is not possible on that topology.
    """
    problem = stored.bounded_problem
    topology = networks.named(problem.topology.name)
    if topology is None:
        return None
    if problem.topology.protocol:
        source = None if problem.topology.costs is None else problem.topology.costs.source
        topology = with_stated_costs(topology, protocols_of(problem.topology), source, TARGETS.values())
        if topology is None:
            return None
    return make_problem(topology, problem.collective, problem.group, relays=problem.relays)


def costed_as_stated(entry: IndexEntry, topology: Topology) -> Topology | None:
    """Return an entry's topology with the costs on that it states; None if they are not the topology's own.

    Args:
        entry: The entry.
        topology: The topology that it names.
    """
    costs = entry.row.get("costs")
    if costs is None:
        return apply_costs(topology, NO_COSTS)
    return with_stated_costs(topology, costs.get("protocols", ()), costs.get("source"), [TARGETS[entry.target]])


def with_stated_costs(
    topology: Topology, names: Sequence[str], source: str | None, targets: Iterable[Target]
) -> Topology | None:
    """Return the topology with the costs on that a file states; None if they are not the topology's own.

    They are its own if the source is, and the protocols are all that its costs allow or those that one of the targets
    has.

    Args:
        topology: The topology.
        names: The protocols that the file states.
        source: The source of the costs that the file states.
        targets: The executors that the file may be for.
    """
    if topology.costs is None or topology.costs.source != source:
        return None
    costed = with_costs(topology)
    allowed = protocols_of(costed)
    is_own = bool(names) and list(names) in [allowed, *(target.own_protocols(allowed) for target in targets)]
    return with_protocols(costed, names) if is_own else None


def unfiled_faults(
    row: Mapping[str, Any],
    networks: Networks,
    stored: Mapping[str, CheckedSchedule | None],
    report: LibraryReport,
) -> Iterator[str]:
    """Yield the faults of a row of a build's record that has a schedule and no file, each a line that names the row.

    Args:
        row: The row.
        networks: Known topologies.
        stored: Each schedule of the library and its check by its path; None for a wrong one.
        report: Where what is unproved is added.
    """
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
            if named_problem is not None and form_of(
                make_problem(named_problem.topology, named_problem.collective, tuple(ranks))
            ) != form_of(named_problem):
                yield f"{label}: for group {format_listed(ranks)}: its network is not that of {format_listed(group)}"
    except (InputError, KeyError, TypeError, LookupError) as error:
        yield f"{label}: {str(error).removeprefix(f'{label}: ')}"


def any_protocol(problem: Problem) -> Problem:
    """Return a problem under the best of its protocols if its costs are on, else the problem itself."""
    return problem.under(ANY) if problem.topology.protocol else problem


def form_of(problem: Problem) -> bytes:
    """Return a digest of a problem's network and nodes, which is equal where two of these are the same rank by rank."""
    return network_form(problem.network, problem.topology.nodes[list(problem.ranks)])
