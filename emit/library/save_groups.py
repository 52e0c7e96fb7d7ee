"""Concurrent groups as files of a library: one schedule of all, and the executor's files that carry it out.

Groups that share no rank, relays included, get a file each, for a communicator of their own: they are to be called at
the same time. Groups that do share ranks get one program for one communicator of all ranks, as a collective of its own
("custom"), which is checked against what all groups want.
"""

from __future__ import annotations

import math
import re
import zlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from emit.library.group_programs import GroupProgram, GroupPrograms
from emit.library.index import INDEX, SCHEDULES
from emit.library.programs import NONE
from emit.library.save import document, stem
from emit.library.write import Library, writing
from synth.concurrent.isolated import isolated_parts
from synth.concurrent.result import ConcurrentResult
from synth.model.deadline import TimeUp, limited
from synth.search.frontier import Contender, Range
from synth.search.result import SearchResult
from synth.storage.proof import save_proof
from synth.storage.schedule_file import save_schedule, write_schedule
from synth.timing.simulate import time_us, timed
from synth.verify.replay import replay
from topologies.errors import InputError


@dataclass
class SavedGroups:
    """What was written.

    Attributes:
        schedules: schedules and proofs, the union's first.
        index: of the library, None where no executor's file is in it.
        files: the executor's, one for all groups or one a group.
        time_us: what they take together, predicted as `simulate` does; None where there are none.
        refused: why there are none; "" where there are, or none was asked for.
    """

    schedules: list[Path]
    index: Path | None = None
    files: list[Path] = field(default_factory=list)
    time_us: float | None = None
    refused: str = ""


def save_groups(
    found: ConcurrentResult,
    folder: str | Path,
    programs: GroupPrograms,
    *,
    proof: bool = False,
    until: float = math.inf,
) -> SavedGroups:
    """Write the union's schedule (schedules/NAME.synth), with `proof` what proves its bound, and executor's files.

    Where a group's own bound is higher than the union's, `proof` also writes that group's part of the schedule and the
    proof of its bound (NAME-groupN.synth, NAME-groupN.proof.json). until: of `synth.model.deadline.now`: after it no
    file is made for an executor. Raises InputError for a folder that cannot be written.
    """
    name = f"{SCHEDULES}/{_stem(found)}"
    time_us, refused = None, ""
    documents: list[tuple[str, dict[str, Any]]] = []
    if programs.target != NONE:
        try:
            documents, time_us = limited(until, partial(_documents, found, programs))
        except InputError as error:
            refused = str(error)
        except TimeUp:
            refused = "no time was left to lower and to check them; give more --budget"
    with writing(folder) as library:
        schedules = _place_schedules(library, found, name, proof)
        for text, entry in documents:
            library.write(entry["file"], text.encode())
        entries = [entry | {"schedule": schedules[0]} for _, entry in documents]
        library.commit(entries)
        placed = [library.folder / one for one in schedules]
        files = [library.folder / entry["file"] for entry in entries]
        return SavedGroups(placed, library.folder / INDEX if entries else None, files, time_us, refused)


def _place_schedules(library: Library, found: ConcurrentResult, name: str, proof: bool) -> list[str]:
    """Write schedules and proofs; their paths in the library."""
    size, written = found.size_bytes, [f"{name}.synth"]
    path = save_schedule(library.place(written[0]), found.algorithm, size)
    if proof:
        written.append(f"{name}.proof.json")
        save_proof(path, found.problem, found.bound.witnesses, size, found.makespan_us, library.place(written[-1]))
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
        save_proof(path, problem, own.bound.witnesses, part.size_bytes, time_us(problem, part), beside)
    return written


def _documents(
    found: ConcurrentResult, programs: GroupPrograms
) -> tuple[list[tuple[str, dict[str, Any]]], float | None]:
    """The executor's files with their entries, and what they take together."""
    made = programs.lower(found.problem, found.algorithm)
    return [_document(found, part) for part in made.parts], made.time_us


def _document(found: ConcurrentResult, part: GroupProgram) -> tuple[str, dict[str, Any]]:
    """A file's text and its entry, which says where each group's chunks are."""
    own, problem, size = len(part.groups) == 1, part.algorithm.problem, max(1, round(part.size_bytes))
    served = Range(Contender(part.algorithm, part.by), size, size, size)
    bound = found.isolated[part.groups[0]].bound if own else found.bound
    answer = SearchResult(problem, [served], bound=bound)
    name = stem(answer, served) if own else _stem(found)
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
