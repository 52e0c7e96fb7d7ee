"""Concurrent groups as files of a library: one schedule of all, and the executor's files that carry it out.

Groups that share no rank, relays included, get a file each, for a communicator of their own: they are to be called at
the same time. Groups that do share ranks get one program for one communicator of all ranks, as a collective of its own
("custom"), which is checked against what all groups want.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from emit.formats import restate_program
from emit.library.group_programs import GroupProgram, GroupPrograms, concurrent_us
from emit.library.index import INDEX, SCHEDULES, Entry
from emit.library.merge import NO_END
from emit.library.programs import NONE
from emit.library.save import document, stem
from emit.library.standing import MOST_BYTES, File, read_again, requirement_of, schedule_again
from emit.library.write import Library, writing
from emit.targets import TARGETS
from synth.concurrent.isolated import isolated_parts
from synth.concurrent.protocols import over_protocols
from synth.concurrent.result import ConcurrentResult
from synth.model.deadline import TimeUp, limited
from synth.search.frontier import Contender, Range
from synth.search.result import SearchResult
from synth.storage.proof import save_proof
from synth.storage.schedule_file import save_schedule, write_schedule
from synth.timing.simulate import time_us, timed
from synth.verify.replay import replay
from topologies.errors import InputError
from topologies.text.files import read_text


@dataclass
class SavedGroups:
    """What was written.

    Attributes:
        schedules: schedules and proofs, the union's first.
        index: of the library, None where no executor's file is in it.
        files: the executor's, one for all groups or one a group.
        time_us: what they take together, predicted as `simulate` does; None where there are none.
        refused: why there are none; "" where there are, or none was asked for.
        kept: whether all this was there, and takes no longer together than what was found now.
    """

    schedules: list[Path]
    index: Path | None = None
    files: list[Path] = field(default_factory=list)
    time_us: float | None = None
    refused: str = ""
    kept: bool = False


def save_groups(
    found: ConcurrentResult,
    folder: str | Path,
    programs: GroupPrograms,
    *,
    proof: bool = False,
    until: float = math.inf,
    anew: bool = False,
) -> SavedGroups:
    """Write the union's schedule (schedules/NAME.synth), with `proof` what proves its bound, and executor's files.

    Where a group's own bound is higher than the union's, `proof` also writes that group's part of the schedule and the
    proof of its bound (NAME-groupN.synth, NAME-groupN.proof.json). Files that the library has for all groups stay if
    they take no longer together, unless `anew`; those for other sizes stay. until: of `synth.model.deadline.now`: after
    it no file is made for an executor. A library that another process still holds then is left alone: all is written to
    a new one beside it. Raises InputError for a folder that cannot be written.
    """
    name = f"{SCHEDULES}/{_stem(found)}"
    time_us, refused = None, ""
    documents: list[tuple[str, dict[str, Any]]] = []
    parts: Sequence[GroupProgram] = ()
    if programs.target != NONE:
        try:
            documents, parts, time_us = limited(until, partial(_documents, found, programs))
        except InputError as error:
            refused = str(error)
        except TimeUp:
            refused = "no time was left to lower and to check them; give more --budget"
    with writing(folder, until=until, elsewhere=True) as library:
        there = None if anew or time_us is None else _standing(library.entries, found, parts, documents)
        if there is not None and time_us is not None and there[1] <= time_us:
            files = [library.folder / entry["file"] for entry in there[0]]
            stored = sorted({entry["schedule"] for entry in there[0] if entry["schedule"] is not None})
            placed = [library.folder / one for one in stored]
            return SavedGroups(placed, library.folder / INDEX, files, there[1], kept=True)
        unlisted = not anew and all(entry.schedule != f"{name}.synth" for entry in library.entries)
        better = None
        if unlisted and not documents:
            better, _ = schedule_again(library.inside(f"{name}.synth"), found.algorithm, [found.size_bytes])
            found = found if better is None else replace(found, algorithm=better)
        schedules = _place_schedules(library, found, name, proof)
        entries = [entry | {"schedule": schedules[0]} for _, entry in documents]
        rest = [] if anew else [row for entry in entries for row in _beside(library, entry)]
        for text, entry in documents:
            library.write(entry["file"], text.encode())
        library.commit([*entries, *rest])
        placed = [library.folder / one for one in schedules]
        files = [library.folder / entry["file"] for entry in entries]
        index = library.folder / INDEX if entries else None
        return SavedGroups(placed, index, files, time_us, refused, kept=better is not None)


def _asked(entry: Mapping[str, Any]) -> tuple[object, ...]:
    """As `Entry.question` has it."""
    ranks = (tuple(entry[key]) for key in ("group", "relays"))
    return entry["collective"], entry["topology"], *ranks, entry["root"], entry["target"]


def _standing(
    entries: Sequence[Entry],
    found: ConcurrentResult,
    parts: Sequence[GroupProgram],
    documents: Sequence[tuple[str, Mapping[str, Any]]],
) -> tuple[list[Mapping[str, Any]], float] | None:
    """The files that the library has for all groups, checked again, and what they take together in µs; None without."""
    files: list[File] = []
    for part, (_, entry) in zip(parts, documents, strict=True):
        own = [e for e in entries if e.question == _asked(entry) and e.inplace == entry["inplace"]]
        own = [e for e in own if e.in_range(entry["min_bytes"]) and e.values.get("network") == entry["network"]]
        programs, problem = copy(part.programs), part.algorithm.problem
        asked = found.problem if len(part.groups) > 1 else found.problem.members[part.groups[0]]
        programs.problem = replace(problem, collective=asked.collective)
        try:
            files += [read_again(e, requirement_of(programs)) for e in own if e.serves(entry["min_bytes"])]
        except InputError:
            return None
    predictors = [file.predictor for file in files if file.within and file.predictor is not None]
    if len(predictors) < len(parts):
        return None
    return [file.entry for file in files], concurrent_us(found.problem, parts, predictors)


def _beside(library: Library, entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What stays of the library's entries for a question beside that of a group's file for one size, files cut."""
    for other in library.entries:
        if other.question != _asked(entry):
            continue
        low, high = other.min_bytes, NO_END if other.max_bytes is None else other.max_bytes
        size, target = entry["min_bytes"], TARGETS[other.target]
        if other.inplace != entry["inplace"] or not other.in_range(size):
            yield dict(other.values)
            continue
        for least, most in ((low, size - 1), (size + 1, high)):
            end = None if most >= NO_END else most
            suffix = target.suffix
            file = other.file if least == low else f"{other.file.removesuffix(suffix)}-from{least}{suffix}"
            with suppress(InputError):  # it takes no message of these, or is gone
                if least <= most:
                    text = read_text(other.path, "a file of the library", MOST_BYTES, other.folder, None)
                    cut = restate_program(text, Path(file).name.removesuffix(suffix), least, end, target)
                    library.write(file, cut.encode())
                    yield {**other.values, "file": file, "min_bytes": least, "max_bytes": end}


def _place_schedules(library: Library, found: ConcurrentResult, name: str, proof: bool) -> list[str]:
    """Write schedules and proofs; their paths in the library."""
    size, written = found.size_bytes, [f"{name}.synth"]
    path = save_schedule(library.place(written[0]), found.algorithm, size)
    if proof:
        written.append(f"{name}.proof.json")
        asked = over_protocols(found.problem, found.bound, found.rivals)
        save_proof(path, *asked, size, found.makespan_us, library.place(written[-1]))
    group = found.decisive[2]
    if proof and group is not None:
        own = found.isolated[group]
        at_size = timed(found.problem, found.algorithm.schedule, size)
        ((problem, part),) = isolated_parts(found.problem, at_size, [group])
        replay(problem, part)  # at the union's times
        written += [f"{name}-group{group}.synth", f"{name}-group{group}.proof.json"]
        path = library.place(written[-2])
        write_schedule(path, problem, part, found.algorithm.engine)
        beside = library.place(written[-1])
        asked = over_protocols(problem, own.bound)
        save_proof(path, *asked, part.size_bytes, time_us(problem, part), beside)
    return written


def _documents(
    found: ConcurrentResult, programs: GroupPrograms
) -> tuple[list[tuple[str, dict[str, Any]]], Sequence[GroupProgram], float | None]:
    """The executor's files with their entries, the programs in them, and what they take together."""
    made = programs.lower(found.problem, found.algorithm)
    return [_document(found, part) for part in made.parts], made.parts, made.time_us


def _document(found: ConcurrentResult, part: GroupProgram) -> tuple[str, dict[str, Any]]:
    """A file's text and its entry, which says where each group's chunks are."""
    own, problem, size = len(part.groups) == 1, part.algorithm.problem, max(1, round(part.size_bytes))
    served = Range(Contender(part.algorithm, part.by), size, size, size)
    bound = found.isolated[part.groups[0]].bound if own else found.bound
    answer = SearchResult(problem, [served], bound=bound)
    name = f"{stem(answer, served)}-{_digest(found)}" if own else _stem(found)  # beside the group's own files
    text, entry = document(answer, served, name, part.programs)
    if not own:  # other groups of the same ranks are another question
        entry["collective"] += f"-{_digest(found)}"
    first = np.append(0, np.cumsum(part.by.common.count))
    chunks = found.problem.first_chunk if not own else np.array([0, problem.collective.nchunks])
    entry["groups"] = [
        {
            "ranks": list(member.ranks),
            "collective": member.collective.name,
            "size_bytes": member.size_bytes,
            "chunks": first[chunks[at : at + 2]].tolist(),
        }
        for at, member in enumerate(found.problem.members[group] for group in part.groups)
    ]
    return text, entry


def _stem(found: ConcurrentResult) -> str:
    """A file's name without its ending: what is asked, shortened, and the shape."""
    asked = found.problem
    plain = [re.sub(r"[^A-Za-z0-9_.-]+", "-", name) for name in (asked.collective.name, Path(asked.topology.name).name)]
    shape = f"{found.algorithm.steps}step-{len(found.algorithm.schedule)}sends"
    return "-".join([*plain, f"{len(asked.members)}groups", _digest(found), shape])


def _digest(found: ConcurrentResult) -> str:
    """Of what is asked."""
    members = [(m.ranks, m.collective.name, float(m.size_bytes)) for m in found.problem.members]
    return f"{zlib.crc32(repr([*members, found.relay, found.objective]).encode()):08x}"
