"""The check of a library from its files: every program, schedule and proof, and what the index says of them.

Nothing that an entry states is taken for granted if it can be worked out: a file is replayed against what is asked and
timed on the network, a schedule is replayed, and the bound of its proof is proved again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from emit.library.checking.entries import entry_faults
from emit.library.checking.fault_check import find_fault_errors
from emit.library.checking.report import LibraryReport
from emit.library.checking.schedules import CheckedSchedule, check_schedule, unfiled_faults, witnesses_of_questions
from emit.library.entry import INDEX, SCHEDULES, IndexEntry
from emit.library.networks import Networks, kept_faults
from emit.library.overlay import FAULT
from emit.targets import TARGETS
from topologies.topology import Topology


def check_library(
    folder: Path,
    entries: Sequence[IndexEntry],
    topology: Topology | None = None,
    unfiled: Sequence[Mapping[str, Any]] = (),
    progress: Callable[[int, int], None] = lambda *_: None,
) -> LibraryReport:
    """Check every file of a library, every schedule and proof, and what each entry says.

    Faults are in `wrong` of the report and are not raised. Files that no entry names are faults too; schedules that no
    entry names are checked without a proof.

    Args:
        folder: Folder of the library.
        entries: Entries of its index.
        topology: Topology of the entries of its name; others are looked up by their names.
        unfiled: Rows of builds' records that state a schedule for which there is no file.
        progress: Function that is called with the number of checked schedules and entries, and of all.
    """
    report = LibraryReport()
    fault = find_fault_errors(folder, entries, topology)
    report.wrong += [(FAULT, why) for why in fault.wrong]
    if fault.unproved:
        report.unproved[fault.unproved].add(FAULT)
    networks = Networks(topology, fault.hurt, folder)
    report.wrong += kept_faults(folder)
    proof_of: dict[str, str | None] = {}
    for entry in entries:
        if entry.schedule is not None:
            proof_of[entry.schedule] = proof_of.get(entry.schedule) or entry.proof_file
    for path in sorted((folder / SCHEDULES).glob("*.synth")):  # They belong to algorithms without an executor's file.
        proof_of.setdefault(f"{SCHEDULES}/{path.name}", None)
    total, stored = len(proof_of) + len(entries), dict[str, CheckedSchedule | None]()
    for name, proof in proof_of.items():
        progress(len(stored), total)
        stored[name] = check_schedule(folder, name, proof, networks, report)
    witnesses_of = witnesses_of_questions(schedule for schedule in stored.values() if schedule is not None)
    for number, entry in enumerate(entries):
        progress(len(stored) + number, total)
        report.files += 1
        schedule = None if entry.schedule is None else stored[entry.schedule]
        report.wrong += [(entry.file, why) for why in entry_faults(entry, networks, schedule, witnesses_of, report)]
    progress(total, total)
    for row in unfiled:
        report.wrong += [(INDEX, why) for why in unfiled_faults(row, networks, stored, report)]
    files_in_index = {entry.file for entry in entries}
    for target in TARGETS.values():
        for path in sorted((folder / target.folder).glob("*")):
            name = f"{target.folder}/{path.name}"
            if path.suffix == target.suffix and name not in files_in_index:
                report.wrong.append((name, f"no entry names it, and {target.reader} loads all that is there"))
    return report
