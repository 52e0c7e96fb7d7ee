"""What a failure changes of a library: the questions whose answers it touches, which are made anew beside the others.

The answers for a hurt network stand in a library of their own, faults/NAME in the healthy one's folder, which holds
what the failure touches and nothing else, and says so (`emit.library.overlay`): who loads it has every answer.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emit.library.overlay import FAULT, FAULTS, Asked, Fault
from emit.library.write import standing, writing
from synth.library.cluster import read_cluster
from synth.library.plan import Plan, Question, Share, make_plan
from topologies.errors import InputError
from topologies.topology import Topology

KINDS = ("nodes", "links", "nics")
_SHORT = 60  # characters of a list of faults as a folder's name


@dataclass(frozen=True)
class Cost:
    """What a failure costs one question: its time / the healthy network's, for large messages."""

    question: Question
    target: str
    factor: float


def single_failures(topology: Topology, kinds: Sequence[str]) -> list[str]:
    """Each single failure of some kinds, as --without takes it.

    A node's ranks; a NIC: the link of a rank out of its node, to another rank or to a switch of several nodes; a link:
    every other one. Raises InputError for another kind, or where there is no such part.
    """
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f"--faults: {kind[:40]!r} is not known; it must be one or more of {', '.join(KINDS)}")
    found = [text for kind in dict.fromkeys(kinds) for text in _of_kind(topology, kind)]
    if not found:
        raise InputError(f"--faults: {topology.name} has no {' and no '.join(kinds)} to lose; it must be other kinds")
    return found


def touched(healthy: Plan, file: str | Path, without: Sequence[str]) -> tuple[Plan, Fault]:
    """The plan of what a failure touches: questions whose answer is not the healthy network's, each problem once.

    And what it leaves of the healthy library.

    Raises InputError where nothing is left of the network, or the parts do not exist.
    """
    whole = make_plan(read_cluster(file, without), healthy.cores, healthy.searches[0].work_s)
    known = {question: share.task.key for share in healthy.shares for question in share.questions}
    shares = []
    for share in whole.shares:
        asked = [question for question in share.questions if known.get(question) != share.task.key]
        if asked:
            shares.append(Share(asked, share.task, share.source))
    lost = {question for question, _ in healthy.impossible}
    impossible = [(question, why) for question, why in whole.impossible if question not in lost]
    return Plan(whole.cluster, shares, whole.cores, impossible), _left(healthy, whole, without)


def _left(healthy: Plan, hurt: Plan, without: Sequence[str]) -> Fault:
    now = {question: share.task.key for share in hurt.shares for question in share.questions}
    kept, changed = set[str](), set[Asked]()
    for share in healthy.shares:
        for question in share.questions:
            if now.get(question) == share.task.key:
                kept.add(share.task.key)
            else:
                place = None if question.root is None else question.group.index(question.root)
                changed.add((question.collective, place, question.group))
    return Fault(tuple(without), healthy.cluster.topology.name, frozenset(kept), frozenset(changed))


def write_fault(folder: Path, fault: Fault) -> None:
    """Say in a failure's folder what it leaves of the healthy library. Raises InputError where it cannot be written."""
    text = fault.text()
    with suppress(OSError):
        if (folder / FAULT).read_bytes() == text:
            return
    with writing(folder) as library:
        library.write(FAULT, text)
        library.commit()


def fault_folder(library: str | Path, without: Sequence[str]) -> Path:
    """Where the answers for a hurt network stand."""
    text = ",".join(without)
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", text)
    if len(name) > _SHORT:
        name = f"{name[: _SHORT - 9]}-{zlib.crc32(text.encode()):08x}"
    return Path(library) / FAULTS / name


def costs(library: str | Path, hurt: str | Path) -> list[Cost]:
    """What each question's largest messages cost now, the dearest first; those that the healthy library answers too."""
    before: dict[object, float] = {}
    for entry in standing(library):
        if entry.max_bytes is None:
            for group in (entry.group, *entry.isomorphic_groups):
                own = entry if group == entry.group else entry.for_group(group)
                before[own.collective, group, own.root, own.target, own.inplace] = entry.values["time_us"]
    found = []
    for entry in standing(hurt):
        healthy_us = before.get((entry.collective, entry.group, entry.root, entry.target, entry.inplace))
        if healthy_us and entry.max_bytes is None:
            asked = Question(entry.collective, entry.group, entry.root)
            found.append(Cost(asked, entry.target, entry.values["time_us"] / healthy_us))
    return sorted(found, key=lambda cost: -cost.factor)


def _of_kind(topology: Topology, kind: str) -> Iterator[str]:
    n, nodes = topology.nranks, topology.nodes
    if kind == "nodes":
        for node in np.unique(nodes).tolist() if len(np.unique(nodes)) > 1 else []:
            yield ",".join(f"rank:{rank}" for rank in np.flatnonzero(nodes == node).tolist())
        return
    names = [*map(str, range(n)), *topology.switches]
    src, dst = topology.link_src, topology.link_dst
    seen: dict[int, set[int]] = {}  # nodes of the ranks at each switch
    for a, b in zip(src.tolist(), dst.tolist(), strict=True):
        if a < n <= b:
            seen.setdefault(b, set()).add(int(nodes[a]))
    for a, b in sorted({(min(pair), max(pair)) for pair in zip(src.tolist(), dst.tolist(), strict=True)}):
        outward = a < n and (nodes[a] != nodes[b] if b < n else len(seen.get(b, ())) > 1)
        if outward == (kind == "nics"):
            yield f"link:{names[a]}-{names[b]}"
