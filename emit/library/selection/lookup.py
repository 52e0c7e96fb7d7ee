"""Look-ups in a library: which file serves a call, and what an index says of a file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from emit.formats import PROGRAM_FORMATS, name_in
from emit.goal import Goal
from emit.library.entry import INDEX, IndexEntry
from emit.library.goals import goal_stated, state_goal
from emit.library.index import MAX_INDEX_BYTES, load_index, read_index
from emit.library.networks import Networks
from emit.library.selection.call import LibraryCall
from emit.library.selection.selector import Selector
from emit.targets import TARGETS
from synth.storage.columns import json_object
from topologies.errors import InputError
from topologies.load import load
from topologies.text.files import origin_of, read_bytes
from topologies.topology import Topology

GOAL_FORMAT = "synth-goal-1"


def choose(entries: Sequence[IndexEntry], call: LibraryCall, size_bytes: int) -> IndexEntry | None:
    """Return the entry that serves a call; None if the executor's own algorithm serves it.

    For many calls of one index, `Selector.choose` does the same faster.

    Args:
        entries: Entries of one index.
        call: The call.
        size_bytes: Larger of a rank's send and receive buffer in bytes.

    Raises:
        InputError: As `Selector.choose` raises it.
    """
    return Selector(entries).choose(call, size_bytes)


def entry_beside(path: str | Path) -> IndexEntry | None:
    """Return the entry of a file in the index of its folder or of the folder above; None if neither index names it."""
    for folder, name in _folders_above(path):
        with suppress(InputError):
            for entry in load_index(folder):
                if entry.file == name:
                    return entry
    return None


def place_beside(path: str | Path) -> tuple[Topology, list[int]] | None:
    """Return the topology of a file and its rank of each rank of the file, by the index of its folder or the one above.

    For a topology with dead or slow parts that is not known it is the healthy one, whose devices and nodes are the
    same. None if no index names the file, neither is known, or the topology has too few ranks.
    """
    entry = entry_beside(path)
    if entry is None:
        return None
    with suppress(InputError):
        topology = Networks().of(entry) or load(re.split(" without | degraded ", entry.topology)[0])
        return (topology, list(entry.communicator)) if max(entry.communicator) < topology.nranks else None
    return None


def namesake_beside(path: str | Path) -> str | None:
    """Return another file of the library, by its path there, that the executor would take for this one by its name.

    None if there is none, no index names the file, or the executor does not tell files apart by the names in them.
    """
    for folder, name in _folders_above(path):
        with suppress(InputError):
            entries = load_index(folder)
            own = next((entry for entry in entries if entry.file == name), None)
            if own is None or not PROGRAM_FORMATS[TARGETS[own.target].format].kept_by_name:
                continue
            other_entries = (entry for entry in entries if entry.target == own.target and entry != own)
            return next((entry.file for entry in other_entries if name_in(entry.path) == name_in(own.path)), None)
    return None


def goal_beside(path: str | Path) -> Goal | None:
    """Return the goal of a file that does not say it itself; None if there is none.

    It is stated by the index of its folder or of the folder above, else by NAME.goal.json in its folder. An index that
    is not ours, or of another version, is ignored.

    Raises:
        InputError: If a NAME.goal.json states no goal.
    """
    for folder, name in _folders_above(path):
        with suppress(InputError):
            rows = json_object(read_index(folder / INDEX), "").get("algorithms")
            for row in rows if isinstance(rows, list) else ():
                if isinstance(row, dict) and row.get("file") == name:
                    return None if row.get("goal") is None else goal_stated(row["goal"], "")
    goal_file = goal_path(path)
    if not goal_file.is_file():
        return None
    stated = json_object(read_bytes(goal_file, "a goal", MAX_INDEX_BYTES), origin_of(goal_file))
    if stated.get("format") != GOAL_FORMAT:
        raise InputError(f"{origin_of(goal_file)}: format: must be {GOAL_FORMAT}")
    return goal_stated(stated, origin_of(goal_file))


def goal_path(path: str | Path) -> Path:
    """Return the path NAME.goal.json next to a file NAME.*, where the goal of a file that is in no library stands."""
    return Path(path).parent / f"{Path(path).stem}.goal.json"  # `.stem` also works for "." and "/", which have no name.


def goal_text(goal: Goal) -> str:
    """Return the contents of a goal file: {"format": "synth-goal-1"} and the fields of an entry's goal.

    `emit.library.index` describes these fields.
    """
    return json.dumps({"format": GOAL_FORMAT, **state_goal(goal)}) + "\n"


def _folders_above(path: str | Path) -> Iterator[tuple[Path, str]]:
    """Yield the file's folder and the one above, each with the name that an index there gives the file.

    Nothing is yielded if a relative path has no folder to begin from, as that was removed.
    """
    try:
        absolute = Path(os.path.abspath(path))
    except OSError:  # The working folder was removed.
        return
    for folder in (absolute.parent, absolute.parent.parent):
        yield folder, absolute.relative_to(folder).as_posix()
