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
from emit.targets import TARGETS
from synth.model.numbers import as_flag, as_text, whole, whole_numbers
from synth.model.registry import parse_name
from synth.present.text import format_listed
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
) -> Entry | None:
    """The entry that serves a call; None where the executor's own algorithm does, as none of the library's fits, or
    the message does not divide as its file needs. collective: torch's spellings too.

    ranks: of the topology, on which the group's `nranks` stand in order; None: wherever they are.  size_bytes: the
    larger of a rank's send and receive buffer.  target, topology: None: any, where all that fit have the same.  root:
    rank of the topology: a file is for one root only.  relays: ranks of the topology after the group's in the
    communicator.  element_bytes: of the call's type. Raises InputError where it cannot be, or more than one entry fits;
    the line says what would tell them apart.
    """
    if not all(isinstance(entry, Entry) for entry in (entries if isinstance(entries, list | tuple) else [None])):
        raise InputError("entries: hold something else; it must be a list of entries, as load_index gives it")
    collective = as_text(collective, "collective")
    nranks, size_bytes = whole(nranks, "nranks"), whole(size_bytes, "size_bytes")
    ranks, relays = None if ranks is None else whole_numbers(ranks, "ranks"), whole_numbers(relays, "relays")
    target = None if target is None else as_text(target, "target")
    topology = None if topology is None else as_text(topology, "topology")
    root, inplace = None if root is None else whole(root, "root"), as_flag(inplace, "inplace")
    if whole(element_bytes, "element_bytes") < 1:
        raise InputError(f"element_bytes {element_bytes}: is not possible; it must be 1 or more")
    if collective not in {entry.collective for entry in entries}:
        collective = parse_name(collective)
    if nranks < 1 or (ranks is not None and not len(set(ranks)) == len(ranks) == nranks):
        which = "" if ranks is None else f" and ranks {format_listed(ranks)}"
        raise InputError(
            f"nranks {nranks}{which}: is not possible; it must be 1 or more, and as many different ranks if given"
        )
    if size_bytes < 0:
        raise InputError(f"size_bytes {size_bytes}: is not possible; it must be 0 or more")
    wanted = {"collective": collective, "nranks": nranks, "relays": relays, "inplace": inplace}
    given = {"group": ranks, "target": target, "topology": topology, "root": root}
    wanted |= {key: value for key, value in given.items() if value is not None}
    able = [e for e in _of_group(entries, ranks) if all(getattr(e, key) == value for key, value in wanted.items())]
    fit = [e for e in able if e.serves(size_bytes, element_bytes)]
    asked = f"{collective} of {nranks} ranks, {size_bytes} bytes"
    if root is None and any(entry.root is not None for entry in fit):
        raise InputError(f"{asked}: the library's files are for one root each; give root")
    if len(fit) < 2:
        return fit[0] if fit else None
    one, other = fit[:2]
    for key, word in (("target", "target"), ("topology", "topology"), ("group", "ranks")):
        values = [getattr(entry, key) for entry in (one, other)]
        if values[0] != values[1]:
            both = " and ".join(v if isinstance(v, str) else format_listed(v) for v in values)
            raise InputError(f"{asked}: there are files for {word} {both}; give {word}")
    raise InputError(f"{asked}: {one.file} and {other.file} both serve it; take entries of one index")


def _of_group(entries: Sequence[Entry], ranks: tuple[int, ...] | None) -> list[Entry]:
    """The entries, those that name the group among others as entries of it, unless the same question has its own."""
    if ranks is None:
        return list(entries)
    shared = [entry.for_group(ranks) for entry in entries if ranks in entry.groups]
    own = {(entry.question, entry.inplace) for entry in entries} if shared else set()
    return [*entries, *(one for one in shared if (one.question, one.inplace) not in own)]


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
