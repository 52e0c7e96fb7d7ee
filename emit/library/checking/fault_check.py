"""The check of a fault.json: no file that it leaves depends on a network that the failure changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emit.library.entry import INDEX, IndexEntry
from emit.library.index import load_index
from emit.library.library_file import network_digest
from emit.library.networks import Networks
from emit.library.overlay import FAULT, entries_left, read_fault
from synth.model.problem import make_problem
from synth.model.registry import COLLECTIVE_KINDS, find_kind
from synth.model.text import format_listed
from topologies.errors import InputError
from topologies.faults.apply import apply_faults
from topologies.text.files import origin_of
from topologies.topology import Topology


@dataclass
class CheckedFault:
    """The result of checking a failure's folder.

    Attributes:
        hurt: Topology with the failure; None if there is no failure, or its topology is not known.
        wrong: What is wrong in fault.json, a sentence each.
        unproved: Why it cannot be checked; empty if it can.
    """

    hurt: Topology | None = None
    wrong: list[str] = field(default_factory=list)
    unproved: str = ""


def check_fault(library: Path) -> Topology | None:
    """Check the fault.json of a library's folder, and return the topology with the failure.

    None means that the folder has no failure, or that its healthy topology is not known.

    Args:
        library: The failure's folder or a healthy library's, or the index in it.

    Raises:
        InputError: If fault.json is malformed, leaves files that the failure changes, or states another failure than
            the folder's index; also if that index is wrong.
    """
    folder = library if library.is_dir() else library.parent
    entries = load_index(folder) if (folder / FAULT).exists() and (folder / INDEX).exists() else []
    checked = find_fault_errors(folder, entries, None)
    if checked.wrong:
        raise InputError(f"{origin_of(folder / FAULT)}: {checked.wrong[0]}; see synth library check")
    return checked.hurt


def find_fault_errors(folder: Path, entries: Sequence[IndexEntry], topology: Topology | None) -> CheckedFault:
    """Check the fault.json of a folder; without one nothing is wrong and there is no hurt topology.

    What is wrong is in the result and is not raised.

    Args:
        folder: The failure's folder.
        entries: Entries of the folder's own index.
        topology: Topology of its name; others are looked up by their names.
    """
    checked = CheckedFault()
    try:
        fault = read_fault(folder)
        if fault is None:
            return checked
        healthy = Networks(topology, library=folder).named(fault.topology)
        if healthy is None:
            checked.unproved = f"the network {fault.topology} of {FAULT} is not known: give it as --topo"
            return checked
        checked.hurt = hurt = apply_faults(healthy, fault.without, ())
        for entry in entries:
            if entry.topology != hurt.name:
                checked.wrong.append(
                    f"without: the failure's network is {hurt.name}; {entry.file} is for {entry.topology}"
                )
        for entry in entries_left(fault, folder):
            for group in (entry.group, *entry.isomorphic_groups):
                if not _same_network(entry, group, healthy, hurt):
                    checked.wrong.append(
                        f"touched: leaves out {entry.collective} of {format_listed(group)}, whose network the failure"
                        f" changes; {entry.file} must not serve it"
                    )
    except InputError as error:
        checked.wrong.append(str(error).removeprefix(f"{origin_of(folder / FAULT)}: "))
        checked.hurt = None
    return checked


def _same_network(entry: IndexEntry, group: tuple[int, ...], healthy: Topology, hurt: Topology) -> bool:
    """Return True if a failure does not change the network of a group and of the relays of its file.

    It is False if the failure separates ranks of the group.

    Args:
        entry: Entry of the healthy library.
        group: Its group, or one of its isomorphic groups.
        healthy: Topology without the failure.
        hurt: Topology with the failure.
    """
    kind = COLLECTIVE_KINDS.get(entry.collective)
    name = entry.collective if kind is not None and kind.by_name else "allgather"
    root = group[0] if find_kind(name).rooted else None
    try:
        forms = [
            network_digest(make_problem(topology, name, group, relays=entry.relays, root=root))
            for topology in (healthy, hurt)
        ]
    except InputError:  # The failure separates its ranks.
        return False
    return forms[0] == forms[1]
