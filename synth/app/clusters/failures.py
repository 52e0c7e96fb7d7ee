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
from synth.app.clusters.placing import at_asked_sizes
from synth.app.clusters.plan import BuildPlan, BuildQuestion, BuildShare, make_plan
from topologies.errors import InputError
from topologies.topology import Topology

FAULT_KINDS = ("nodes", "links", "nics")
_SHORT = 60  # characters of a folder's name


@dataclass(frozen=True)
class FailureCost:
    """The cost of a failure for one question.

    Attributes:
        question: The question on the healthy network.
        group: The ranks of the same question after the failure: without the dead ones.
        target: Name of the executor.
        inplace: Whether the calls are in place.
        times: For each message size in bytes, ascending, the time in µs on the healthy network and after the failure;
            None where no file serves the size.
    """

    question: BuildQuestion
    group: tuple[int, ...]
    target: str
    inplace: bool
    times: tuple[tuple[int, float | None, float | None], ...]

    @property
    def largest(self) -> tuple[int, float]:
        """Return the largest size in bytes that files serve before and after, and the cost there; (0, 0) without any.

        The cost is the time after the failure / before.
        """
        served = (
            (size, after_us / before_us) for size, before_us, after_us in self.times[::-1] if before_us and after_us
        )
        return next(served, (0, 0.0))

    @property
    def factor(self) -> float:
        """Return the time after the failure / before, at the largest size that files serve in both; 0 without any."""
        return self.largest[1]


def single_failures(topology: Topology, kinds: Sequence[str]) -> list[str]:
    """Return each single failure of the requested kinds, as `--without` takes it, in the order of the kinds.

    A failure of kind "nodes" is the loss of all ranks of a node; a topology of one node has none. One of kind "nics" is
    the loss of a link from a rank out of its node, to another rank or to a switch of more than one node. One of kind
    "links" is the loss of any other link. Links are lost in both directions.

    Raises:
        InputError: A kind is unknown, or the topology has no such part.
    """
    for kind in kinds:
        if kind not in FAULT_KINDS:
            raise InputError(
                f"--faults: {kind[:40]!r} is not known; it must be one or more of {', '.join(FAULT_KINDS)}"
            )
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


def costs(library: str | Path, hurt: str | Path, without: Sequence[str] = ()) -> list[FailureCost]:
    """Return the cost of a failure for each question that both libraries have files for, the most expensive first.

    The sizes are those for which the libraries' builds were asked.

    Args:
        library: Folder of the healthy library.
        hurt: Folder of the library for the network with dead parts.
        without: The dead parts; groups that lose ranks are compared with what is left of them.
    """
    dead = {f"rank:{rank}": rank for entry in existing_entries(library) for rank in entry.group}
    dead_ranks = {rank for part, rank in dead.items() if part in dead_parts(without)}
    hurt_files = _by_question(at_asked_sizes(existing_entries(hurt)))
    question_costs = []
    for key, entries in _by_question(at_asked_sizes(existing_entries(library))).items():
        collective, group, root, target, inplace = key
        remaining = tuple(rank for rank in group if rank not in dead_ranks)
        hurt_entries = hurt_files.get((collective, remaining, root, target, inplace))
        if hurt_entries is not None:
            before, after = _times_us(entries), _times_us(hurt_entries)
            times = tuple((size, before.get(size), after.get(size)) for size in sorted(before | after))
            question = BuildQuestion(collective, group, root)
            question_costs.append(FailureCost(question, remaining, target, inplace, times))
    return sorted(question_costs, key=lambda cost: -cost.factor)


_QuestionOfFiles = tuple[str, tuple[int, ...], int | None, str, bool]  # collective, group, root, target, in place


def _by_question(entries: Iterable[IndexEntry]) -> dict[_QuestionOfFiles, list[IndexEntry]]:
    """Return the entries of a library by collective, group, root, target and form of calls, in their order.

    An entry that serves further groups is there for each of them.
    """
    by_question: dict[_QuestionOfFiles, list[IndexEntry]] = {}
    for entry in entries:
        for group in (entry.group, *entry.isomorphic_groups):
            own = entry if group == entry.group else entry.for_group(group)
            key = own.collective, own.group, own.root, own.target, own.inplace
            by_question.setdefault(key, []).append(own)
    return by_question


def _times_us(entries: Iterable[IndexEntry]) -> dict[int, float]:
    """Return the time in µs at each size in bytes at which an entry states one and serves it."""
    times_us: dict[int, float] = {}
    for entry in entries:
        stated = [(size, time_us) for size, time_us, _ in entry.curve]
        if entry.shown_bytes is not None and entry.time_us is not None:
            stated.append((entry.shown_bytes, entry.time_us))
        times_us |= {int(size): time_us for size, time_us in stated if entry.in_range(int(size))}
    return times_us


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
