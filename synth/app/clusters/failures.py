"""What a failure changes in a library: the questions whose answers it touches, which are answered anew.

The answers for a network with dead parts stand in a library of their own, faults/NAME in the healthy one's folder. It
holds what the failure touches and nothing else, and fault.json says so (`emit.library.overlay`): whoever loads it has
every answer.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emit.library.entry import IndexEntry
from emit.library.overlay import FAULT, FAULTS, LibraryFault, QuestionKey, dead_parts
from emit.library.saving.write import existing_entries, writing
from synth.app.clusters.cluster import read_cluster
from synth.app.clusters.plan import BuildPlan, BuildQuestion, BuildShare, make_plan
from topologies.errors import InputError
from topologies.topology import Topology

KINDS = ("nodes", "links", "nics")
_SHORT = 60  # characters of a folder's name


@dataclass(frozen=True)
class FailureCost:
    """The cost of a failure for one question.

    Attributes:
        question: The question.
        target: Name of the executor.
        factor: Time after the failure / time on the healthy network, for large messages.
    """

    question: BuildQuestion
    target: str
    factor: float


def single_failures(topology: Topology, kinds: Sequence[str]) -> list[str]:
    """Return each single failure of the requested kinds, as `--without` takes it, in the order of the kinds.

    A failure of kind "nodes" is the loss of all ranks of a node; a topology of one node has none. One of kind "nics" is
    the loss of a link from a rank out of its node, to another rank or to a switch of more than one node. One of kind
    "links" is the loss of any other link. Links are lost in both directions.

    Raises:
        InputError: A kind is unknown, or the topology has no such part.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f"--faults: {kind[:40]!r} is not known; it must be one or more of {', '.join(KINDS)}")
    failures = [text for kind in dict.fromkeys(kinds) for text in _of_kind(topology, kind)]
    if not failures:
        raise InputError(f"--faults: {topology.name} has no {' and no '.join(kinds)} to lose; it must be other kinds")
    return failures


def touched(healthy: BuildPlan, file: str | Path, without: Sequence[str]) -> tuple[BuildPlan, LibraryFault]:
    """Return the plan of the questions that a failure touches, and what it leaves of the healthy library.

    A question is touched if its answer is not the healthy network's. Each problem is in the plan once. `impossible` has
    only questions that the healthy network answers.

    Args:
        healthy: The plan of the healthy network.
        file: The cluster file.
        without: The dead parts.

    Raises:
        InputError: Nothing is left of the network, or the parts do not exist.
    """
    hurt_plan = make_plan(read_cluster(file, without), healthy.cores, healthy.searches[0].work_s)
    key_of_question = {question: share.task.key for share in healthy.shares for question in share.questions}
    shares = []
    for share in hurt_plan.shares:
        changed_questions = [
            question for question in share.questions if key_of_question.get(question) != share.task.key
        ]
        if changed_questions:
            shares.append(BuildShare(changed_questions, share.task, share.source))
    impossible_before = {question for question, _ in healthy.impossible}
    impossible = [(question, why) for question, why in hurt_plan.impossible if question not in impossible_before]
    return BuildPlan(hurt_plan.cluster, shares, hurt_plan.cores, impossible), _fault_of(healthy, hurt_plan, without)


def _fault_of(healthy: BuildPlan, hurt: BuildPlan, without: Sequence[str]) -> LibraryFault:
    """Return what a failure leaves of the healthy library: the keys of kept answers, and the changed questions."""
    key_of_question = {question: share.task.key for share in hurt.shares for question in share.questions}
    kept_keys, changed = set[str](), set[QuestionKey]()
    for share in healthy.shares:
        for question in share.questions:
            if key_of_question.get(question) == share.task.key:
                kept_keys.add(share.task.key)
            else:
                place = None if question.root is None else question.group.index(question.root)
                changed.add((question.collective, place, question.group))
    return LibraryFault(tuple(without), healthy.cluster.topology.name, frozenset(kept_keys), frozenset(changed))


def write_fault(folder: Path, fault: LibraryFault) -> None:
    """Write into a failure's folder what it leaves of the healthy library; do nothing if the same is written there.

    Raises:
        InputError: The folder cannot be written.
    """
    text = fault.text()
    with suppress(OSError):
        if (folder / FAULT).read_bytes() == text:
            return
    with writing(folder) as library:
        library.write(FAULT, text)
        library.commit()


def fault_folder(library: str | Path, without: Sequence[str]) -> Path:
    """Return the folder of the answers for a network with dead parts, faults/NAME in the library; it is not made.

    NAME is the parts in one order, with other characters than letters, digits, `_` and `.` replaced by -. It is
    shortened over 60 characters. A name that is shortened, or from parts with signs such as > that - replaces, ends in
    a checksum.
    """
    text = ",".join(sorted(dead_parts(without), key=lambda part: (len(part), part)))
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", text)
    if len(name) > _SHORT or not re.fullmatch(r"[A-Za-z0-9_.:,-]*", text):
        name = f"{name[: _SHORT - 9]}-{zlib.crc32(text.encode()):08x}"
    return Path(library) / FAULTS / name


def costs(library: str | Path, hurt: str | Path) -> list[FailureCost]:
    """Return the cost of a failure for each question at its largest messages, the most expensive first.

    Only questions that the healthy library answers too, at the same shown size, are listed.

    Args:
        library: Folder of the healthy library.
        hurt: Folder of the library for the network with dead parts.
    """
    healthy_us_of: dict[object, tuple[int | None, float]] = {}
    for entry in _for_largest_messages(existing_entries(library)):
        for group in (entry.group, *entry.isomorphic_groups):
            group_entry = entry if group == entry.group else entry.for_group(group)
            healthy_us_of[_question_of(group_entry)] = entry.shown_bytes, entry.time_us or 0.0
    question_costs = []
    for entry in _for_largest_messages(existing_entries(hurt)):
        shown_bytes, healthy_us = healthy_us_of.get(_question_of(entry), (None, 0.0))
        if healthy_us and entry.time_us is not None and shown_bytes == entry.shown_bytes:
            question = BuildQuestion(entry.collective, entry.group, entry.root)
            question_costs.append(FailureCost(question, entry.target, entry.time_us / healthy_us))
    return sorted(question_costs, key=lambda cost: -cost.factor)


def _question_of(entry: IndexEntry) -> tuple[object, ...]:
    """Return what tells the questions of a library apart: collective, group, root, target and form of calls."""
    return entry.collective, entry.group, entry.root, entry.target, entry.inplace


def _for_largest_messages(entries: Iterable[IndexEntry]) -> list[IndexEntry]:
    """Return, for each question (`_question_of`), the entry whose range of sizes ends last; of equal ends the first.

    A question is a collective, group, root, target and form of calls (not topology or relays). Questions are in the
    order of their first entries.
    """
    largest: dict[tuple[object, ...], IndexEntry] = {}
    for entry in entries:
        known = largest.get(_question_of(entry))
        if known is None or entry.last_bytes > known.last_bytes:
            largest[_question_of(entry)] = entry
    return list(largest.values())


def _of_kind(topology: Topology, kind: str) -> Iterator[str]:
    """Yield each single failure of one kind, as `single_failures` describes; links are sorted by their ends."""
    nranks, nodes = topology.nranks, topology.nodes
    if kind == "nodes":
        for node in np.unique(nodes).tolist() if len(np.unique(nodes)) > 1 else []:
            yield ",".join(f"rank:{rank}" for rank in np.flatnonzero(nodes == node).tolist())
        return
    names = [*map(str, range(nranks)), *topology.switches]
    src, dst = topology.link_src, topology.link_dst
    nodes_at_switch: dict[int, set[int]] = {}
    for first, second in zip(src.tolist(), dst.tolist(), strict=True):
        if first < nranks <= second:
            nodes_at_switch.setdefault(second, set()).add(int(nodes[first]))
    for first, second in sorted({(min(pair), max(pair)) for pair in zip(src.tolist(), dst.tolist(), strict=True)}):
        outward = first < nranks and (
            nodes[first] != nodes[second] if second < nranks else len(nodes_at_switch.get(second, ())) > 1
        )
        if outward == (kind == "nics"):
            yield f"link:{names[first]}-{names[second]}"
