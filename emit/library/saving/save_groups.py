"""Saving of plans for concurrent groups in a library: one schedule of all groups, and the executor's files.

Groups that share no rank, relays included, get a file each, for a communicator of their own; they are to be called at
the same time. Groups that share ranks get one program for one communicator of all ranks, as a collective of its own
("custom"), which is checked against what all groups want.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from emit.formats import restate_program
from emit.library.entry import INDEX, NO_END, SCHEDULES, IndexEntry, path_inside
from emit.library.group_programs import ConcurrentPrograms, GroupProgram, GroupPrograms, concurrent_us
from emit.library.library_file import MOST_BYTES, LibraryFile, read_again, requirement_of, schedule_again
from emit.library.saving.save import file_of, stem
from emit.library.saving.write import Library, writing
from emit.targets import TARGETS
from synth.concurrent.isolated import isolated_parts
from synth.concurrent.result import ConcurrentResult, over_protocols
from synth.model.deadline import TimeUp, limited
from synth.model.text import as_file_name
from synth.search.offer import Offer
from synth.search.result import SearchResult
from synth.search.settings import NONE
from synth.storage.proof import save_proof
from synth.storage.schedule_file import save_schedule, write_schedule
from synth.timing.simulate import time_us, timed
from synth.verify.replay import replay
from topologies.errors import InputError
from topologies.text.files import read_text


@dataclass
class SavedGroups:
    """The result of saving a plan for concurrent groups.

    Attributes:
        schedules: Schedules and proofs, the union's first.
        index: Path of the library's index; None if it has no executor's file.
        files: The executor's files, one for all groups or one per group.
        time_us: Time in µs of all groups, predicted as `simulate` does; None if there are no files.
        refused: Why there are no files; "" if there are, or none was asked for.
        existed: True if all this existed before, and is no slower than what was found now.
    """

    schedules: list[Path]
    index: Path | None = None
    files: list[Path] = field(default_factory=list)
    time_us: float | None = None
    refused: str = ""
    existed: bool = False


def save_groups(
    result: ConcurrentResult,
    folder: str | Path,
    programs: GroupPrograms,
    *,
    proof: bool = False,
    until: float = math.inf,
    anew: bool = False,
) -> SavedGroups:
    """Write the union's schedule (schedules/NAME.synth), and the executor's files, with `proof` also the bound's proof.

    If a group's own bound is higher than the union's, `proof` also writes that group's part of the schedule and the
    proof of its bound (NAME-groupN.synth, NAME-groupN.proof.json). Existing files for all groups stay if they are no
    slower, and nothing is written then; files for other sizes stay; with `anew` none of them stays. If there can be no
    file, the schedule is written, where one of the library that is no slower stays, and `SavedGroups.refused` says why.

    Args:
        result: The plan.
        folder: Folder of the library.
        programs: Lowering of plans.
        proof: True to write proofs.
        until: Time of `synth.model.deadline.now` after which no file is made for an executor. If another process still
            holds the library then, all is written to a new one next to it.
        anew: True to replace existing files.

    Raises:
        InputError: If the folder cannot be written.
    """
    name = f"{SCHEDULES}/{_stem(result)}"
    lowered, new_files, refused = _new_files(result, programs, until)
    with writing(folder, until=until, elsewhere=True) as library:
        existing = (
            None if anew or lowered is None else _existing_files(library.entries, result, lowered.parts, new_files)
        )
        if existing is not None and lowered is not None and existing[1] <= lowered.time_us:
            files = [library.folder / entry.file for entry in existing[0]]
            stored = sorted({entry.schedule for entry in existing[0] if entry.schedule is not None})
            placed = [library.folder / schedule for schedule in stored]
            return SavedGroups(placed, library.folder / INDEX, files, existing[1], existed=True)
        unlisted = not anew and all(entry.schedule != f"{name}.synth" for entry in library.entries)
        better = None
        if unlisted and not new_files:
            better, _ = schedule_again(
                path_inside(library.folder, f"{name}.synth"), result.algorithm, [result.size_bytes]
            )
            result = result if better is None else replace(result, algorithm=better)
        schedules = _place_schedules(library, result, name, proof)
        entries = [file.entry.restated(schedule=schedules[0]) for file in new_files]
        remaining = [] if anew else [other for entry in entries for other in _beside(library, entry)]
        for file in new_files:
            library.write(file.entry.file, file.text.encode())
        if entries:
            library.keep(result.algorithm.problem.topology)
        library.commit([*entries, *remaining])
        placed = [library.folder / schedule for schedule in schedules]
        files = [library.folder / entry.file for entry in entries]
        index = library.folder / INDEX if entries else None
        time_us = None if lowered is None else lowered.time_us
        return SavedGroups(placed, index, files, time_us, refused, existed=better is not None)


def _new_files(
    result: ConcurrentResult, programs: GroupPrograms, until: float
) -> tuple[ConcurrentPrograms | None, list[LibraryFile], str]:
    """Return a plan's programs, their files and "", or None, no file and the reason why there are none in time.

    The reason is empty if no target is asked for. Nothing is written.
    """
    if programs.settings.name == NONE:
        return None, [], ""

    def lower_and_write() -> tuple[ConcurrentPrograms, list[LibraryFile]]:
        """Return the plan's programs and their files."""
        lowered = programs.lower(result.problem, result.algorithm)
        return lowered, [_file(result, part) for part in lowered.parts]

    try:
        return *limited(until, lower_and_write), ""
    except InputError as error:
        return None, [], str(error)
    except TimeUp:
        return None, [], "the budget ended before the files were ready; try a longer --budget"


def _existing_files(
    entries: Sequence[IndexEntry],
    result: ConcurrentResult,
    parts: Sequence[GroupProgram],
    new_files: Sequence[LibraryFile],
) -> tuple[list[IndexEntry], float] | None:
    """Return the entries of the library's files for all groups and their time in µs; None if a group has none.

    The files are checked again. A wrong one, or one beyond the target's present limits, counts as none.

    Args:
        entries: Entries of the library.
        result: The plan.
        parts: The plan's new programs.
        new_files: Their files, in the same order.
    """
    files: list[LibraryFile] = []
    for part, new_file in zip(parts, new_files, strict=True):
        programs, problem = copy(part.programs), part.algorithm.problem
        question = result.problem if len(part.groups) > 1 else result.problem.members[part.groups[0]]
        programs.problem = replace(problem, collective=question.collective)
        size, key = new_file.low, (new_file.entry.question_and_form, new_file.entry.network)
        own = [entry for entry in entries if (entry.question_and_form, entry.network) == key and entry.serves(size)]
        try:
            files += [read_again(entry, requirement_of(programs)) for entry in own]
        except InputError:
            return None
    predictors = [file.predictor for file in files if file.within and file.predictor is not None]
    if len(predictors) < len(parts):
        return None
    return [file.entry for file in files], concurrent_us(result.problem, parts, predictors)


def _beside(library: Library, entry: IndexEntry) -> Iterator[IndexEntry]:
    """Yield the library's entries that remain for a question next to a group's file for one size.

    A file whose range has that size is cut into the sizes below and above, which are written to `library`. A part that
    cannot be written is left out.

    Args:
        library: The library that is being written.
        entry: The group's entry, of one size.
    """
    size = entry.min_bytes
    for existing in library.entries:
        if existing.question != entry.question:
            continue
        if existing.inplace != entry.inplace or not existing.in_range(size):
            yield existing
            continue
        target = TARGETS[existing.target]
        stem = existing.file.removesuffix(target.suffix)
        for least, most in ((existing.min_bytes, size - 1), (size + 1, existing.last_bytes)):
            end = None if most >= NO_END - 1 else most
            file = existing.file if least == existing.min_bytes else f"{stem}-from{least}{target.suffix}"
            with suppress(InputError):  # The file takes no message of these sizes, or is missing.
                if least <= most:
                    text = read_text(existing.path, "a file of the library", MOST_BYTES, existing.folder, None)
                    cut = restate_program(text, Path(file).name.removesuffix(target.suffix), least, end, target)
                    library.write(file, cut.encode())
                    yield existing.restated(file=file, min_bytes=least, max_bytes=end)


def _place_schedules(library: Library, result: ConcurrentResult, name: str, proof: bool) -> list[str]:
    """Write the union's schedule, with `proof` also the proof of its bound; return their names in the library.

    If the decisive bound is one group's own, `proof` also writes that group's part and its proof, whose names follow.

    Args:
        library: The library that is being written.
        result: The plan.
        name: Path of the files in the library without their endings.
        proof: True to write proofs.
    """
    size, written = result.size_bytes, [f"{name}.synth"]
    path = save_schedule(library.place(written[0]), result.algorithm, size)
    if proof:
        written.append(f"{name}.proof.json")
        bound_over_protocols = over_protocols(result.problem, result.bound, result.rivals)
        save_proof(path, *bound_over_protocols, size, result.makespan_us, library.place(written[-1]))
    group = result.decisive[2]
    if proof and group is not None:
        own = result.isolated[group]
        at_size = timed(result.problem, result.algorithm.schedule, size)
        ((problem, part),) = isolated_parts(result.problem, at_size, [group])
        replay(problem, part)  # It keeps the union's times.
        written += [f"{name}-group{group}.synth", f"{name}-group{group}.proof.json"]
        path = library.place(written[-2])
        write_schedule(path, problem, part, result.algorithm.engine)
        proof_place = library.place(written[-1])
        bound_over_protocols = over_protocols(problem, own.bound)
        save_proof(path, *bound_over_protocols, part.size_bytes, time_us(problem, part), proof_place)
    return written


def _file(result: ConcurrentResult, part: GroupProgram) -> LibraryFile:
    """Return the library's file of a program of a plan; its entry says where each group's chunks are.

    Nothing is written. A program of more than one group gets a collective of its own, whose name ends in a digest of
    the plan's question.

    Raises:
        InputError: If the target cannot hold the program.
    """
    is_one_group, problem, size = len(part.groups) == 1, part.algorithm.problem, max(1, round(part.size_bytes))
    offer = Offer(part.algorithm, part.by).at_size(size)
    bound = result.isolated[part.groups[0]].bound if is_one_group else result.bound
    answer = SearchResult(problem, [offer], bound=bound)
    # With the digest the name differs from that of the group's file outside a plan.
    name = f"{stem(answer, offer)}-{_digest(result)}" if is_one_group else _stem(result)
    first = np.append(0, np.cumsum(part.by.common.count))
    chunks = result.problem.first_chunk if not is_one_group else np.array([0, problem.collective.nchunks])
    members = [result.problem.members[group] for group in part.groups]
    groups = [
        {
            "ranks": list(member.ranks),
            "collective": member.collective.name,
            "size_bytes": member.size_bytes,
            "chunks": first[chunks[at : at + 2]].tolist(),
        }
        for at, member in enumerate(members)
    ]
    # Other groups of the same ranks are another question.
    collective = problem.collective.name + ("" if is_one_group else f"-{_digest(result)}")
    return file_of(answer, offer, name, part.programs, collective=collective, groups=groups)


def _stem(result: ConcurrentResult) -> str:
    """Return a file's name without its ending: collective, topology, groups, digest of what is asked, and the shape."""
    problem = result.problem
    plain = [as_file_name(name) for name in (problem.collective.name, Path(problem.topology.name).name)]
    shape = f"{result.algorithm.steps}step-{len(result.algorithm.schedule)}sends"
    return "-".join([*plain, f"{len(problem.members)}groups", _digest(result), shape])


def _digest(result: ConcurrentResult) -> str:
    """Return eight hexadecimal digits for what is asked: groups' ranks, collectives and sizes, relays, objective."""
    members = [
        (m.ranks, m.collective.name, float(m.size_bytes), *([m.collective.sizes] if m.collective.sizes else []))
        for m in result.problem.members
    ]
    return f"{zlib.crc32(repr([*members, result.relay, result.objective]).encode()):08x}"
