"""Which file of a library serves a call, and what an index says of a file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from emit.formats import FORMATS, name_in
from emit.goal import Goal
from emit.library.index import INDEX, MAX_INDEX_BYTES, Entry, goal_stated, load_index, read_index, state_goal
from emit.library.selector import Selector
from emit.targets import TARGETS
from synth.storage.columns import json_object
from topologies.errors import InputError
from topologies.load import load
from topologies.text.files import origin_of, read_bytes
from topologies.topology import Topology

GOAL_FORMAT = "synth-goal-1"


def choose(
    entries: Sequence[Entry],
    collective: str,
    nranks: int,
    ranks: Sequence[int] | None,
    size_bytes: int,
    inplace: bool,
    *,
    target: str | None = None,
    topology: str | None = None,
    root: int | None = None,
    relays: Sequence[int] = (),
    element_bytes: int = 1,
    any_order: bool = False,
) -> Entry | None:
    """The entry that serves a call; None where the executor's own algorithm does, as none of the library's fits, or
    the message does not divide as its file needs. For many calls make one `Selector`.

    Args:
        collective: torch's spellings too.
        ranks: of the topology, on which the group's `nranks` stand in order; None: wherever they are.
        size_bytes: the larger of a rank's send and receive buffer.
        target, topology: None: any, where all that fit have the same.
        root: rank of the topology: a file is for one root only.
        relays: ranks of the topology after the group's in the communicator.
        element_bytes: of the call's type.
        any_order: also a file for these ranks in another order, if there is none for this one: the communicator must
            then be made in the order of the entry's `communicator`.

    Raises InputError where it cannot be, or more than one entry fits; the line says what would tell them apart.
    """
    call = collective, nranks, ranks, size_bytes, inplace
    return Selector(entries).choose(
        *call,
        target=target,
        topology=topology,
        root=root,
        relays=relays,
        element_bytes=element_bytes,
        any_order=any_order,
    )


def entry_beside(path: str | Path) -> Entry | None:
    """What an index beside a file, or in the folder above, says of it. A stranger's index is no obstacle."""
    for folder, name in _folders_above(path):
        with suppress(InputError):
            for entry in load_index(folder):
                if entry.file == name:
                    return entry
    return None


def place_beside(path: str | Path) -> tuple[Topology, list[int]] | None:
    """The topology of a file by an index beside it, or in the folder above, and its rank of each of the file's.

    Of one with dead or slow parts the healthy one, whose devices and nodes are the same. None without, where `load`
    does not know its name, or it has not so many ranks.
    """
    entry = entry_beside(path)
    if entry is None:
        return None
    with suppress(InputError):
        topology = load(re.split(" without | degraded ", entry.topology)[0])
        return (topology, list(entry.communicator)) if max(entry.communicator) < topology.nranks else None
    return None


def namesake_beside(path: str | Path) -> str | None:
    """Another file of the library, for the same executor, that this one takes for the same; None without."""
    for folder, name in _folders_above(path):
        with suppress(InputError):
            entries = load_index(folder)
            own = next((entry for entry in entries if entry.file == name), None)
            if own is None or not FORMATS[TARGETS[own.target].format].kept_by_name:
                continue
            others = (entry for entry in entries if entry.target == own.target and entry != own)
            return next((entry.file for entry in others if name_in(entry.path) == name_in(own.path)), None)
    return None


def goal_beside(path: str | Path) -> Goal | None:
    """The goal of a file whose own words do not say it, or None.

    It is that of the index beside it or in the folder above, else of the file NAME.goal.json beside it. A stranger's
    index, or one of another version, is no obstacle. Raises InputError for what is no goal in a NAME.goal.json.
    """
    for folder, name in _folders_above(path):
        with suppress(InputError):
            rows = json_object(read_index(folder / INDEX), "").get("algorithms")
            for row in rows if isinstance(rows, list) else ():
                if isinstance(row, dict) and row.get("file") == name:
                    return None if row.get("goal") is None else goal_stated(row["goal"], "")
    beside = goal_path(path)
    if not beside.is_file():
        return None
    stated = json_object(read_bytes(beside, "a goal", MAX_INDEX_BYTES), origin_of(beside))
    if stated.get("format") != GOAL_FORMAT:
        raise InputError(f"{origin_of(beside)}: format: must be {GOAL_FORMAT}")
    return goal_stated(stated, origin_of(beside))


def goal_path(path: str | Path) -> Path:
    """Where the goal of a file that is in no library stands."""
    return Path(path).parent / f"{Path(path).stem}.goal.json"  # also of "." and "/", which have no name


def goal_text(goal: Goal) -> str:
    """What stands there: {"format": "synth-goal-1"} and the fields of an entry's goal (`emit.library.index`)."""
    return json.dumps({"format": GOAL_FORMAT, **state_goal(goal)}) + "\n"


def _folders_above(path: str | Path) -> Iterator[tuple[Path, str]]:
    """The file's folder and the one above, with the name that an index there gives the file."""
    try:
        where = Path(os.path.abspath(path))
    except OSError:  # the working folder is gone
        return
    for folder in (where.parent, where.parent.parent):
        yield folder, where.relative_to(folder).as_posix()
