"""Answers as files of a library: what to write for each algorithm, and under which name."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emit.compiler.lower import goal_columns
from emit.formats import FORMATS
from emit.library.index import INDEX, SCHEDULES, Entry
from emit.library.programs import NONE, Lowered, Programs, run_by
from emit.library.write import Library, writing
from emit.targets import FEWEST_SMS, MSCCL_FILES, TARGETS, Target
from synth.model.problem import question
from synth.present.statement import row
from synth.present.text import format_size, format_time
from synth.search.frontier import Contender, Range
from synth.search.result import SearchResult
from synth.storage.proof import save_proof
from synth.storage.schedule_file import save_schedule
from topologies.errors import InputError

FORMS = {True: "-inplace", False: "-outofplace"}  # behind the name of a file that is in the other form than usual
_SAME_TIME = 1.005  # of two forms of one algorithm


@dataclass
class Saved:
    """What was written.

    index, files: the index, if any, and each algorithm's files by kind (file, schedule, proof_file).
    found: as it was written: with the times of the target's programs.
    other_form: what serves calls in place where those files serve others, or the other way round, where there is that.
    refused: why some have no executor's file; empty where all have.
    remarks: on what is written, a clause each.
    padding: of the fullest buffer in a file, the part that holds nothing (see `CommonChunk`).
    """

    index: Path | None
    files: list[dict[str, Path]]
    found: SearchResult
    other_form: Saved | None = None
    refused: str = ""
    padding: float = 0.0
    remarks: tuple[str, ...] = ()

    @property
    def paths(self) -> list[Path]:
        """All: the executor's files, the index, then schedules and proofs."""
        of_both = [*self.files, *(self.other_form.files if self.other_form else [])]
        own = [files["file"] for files in of_both if "file" in files]
        stored = [f[kind] for f in self.files for kind in ("schedule", "proof_file") if kind in f]
        return own + ([] if self.index is None else [self.index]) + stored


def save(
    found: SearchResult,
    folder: str | Path,
    target: str = "auto",
    *,
    sms: int | None = None,
    groups_overlap: bool = False,
    scratch_limit: int | None = None,
    proof: bool = False,
) -> Saved:
    """Write what was found into a library: a file for the target's executor and an entry of the index each.

    An algorithm too large for that, or with `proof`, is written as a schedule (schedules/NAME.synth), and with `proof`
    also what proves its bound (NAME.proof.json). Beside them the files for calls of the other form, in or out of place.
    sms, groups_overlap, scratch_limit: as for `Programs`. Raises InputError for a folder that cannot be written, or a
    foreign index.
    """
    programs, found, refused = _programs(found, target, sms, groups_overlap, scratch_limit)
    if not found.ranges:
        return Saved(None, [], found)
    other = None if programs is None else programs.other_form()
    able = any(served.contender.execution for served in found.ranges)
    found_other = run_by(found, other) if other is not None and able else None
    lacking: list[str] = []
    with writing(folder) as library:
        entries = _write_all(library, found, programs, refused)
        entries_other = _write_all(library, found_other, other, lacking) if found_other and other else []
        stored = [
            _place_schedule(library, found, served, name, proof) if proof or not entry else {}
            for served, name, entry in zip(found.ranges, stems(found, library.entries), entries, strict=True)
        ]
        of_algorithm = {served.algorithm: files for served, files in zip(found.ranges, stored, strict=True)}
        for form, made in ((found, entries), (found_other, entries_other)):
            for served, entry in zip(form.ranges if form else (), made, strict=True):
                entry |= of_algorithm.get(served.algorithm, {}) if entry else {}
        rows = [entry for entry in (*entries, *entries_other) if entry]
        library.commit(rows)
    index = library.folder / INDEX if rows else None
    files = [{"file": entry["file"], **one} if entry else one for entry, one in zip(entries, stored, strict=True)]
    saved = Saved(index, [{kind: library.folder / name for kind, name in one.items()} for one in files], found)
    if found_other is not None:
        own = [{"file": library.folder / entry["file"]} if entry else {} for entry in entries_other]
        saved.other_form = Saved(index, own, found_other)
    some = f"{len(refused)} of {len(found.ranges)} algorithms: " if 0 < len(refused) < len(found.ranges) else ""
    saved.refused = some + refused[0] if refused else ""
    saved.padding = max((row["padding"] for row in rows), default=0.0)
    if programs is not None:
        saved.remarks = (*_remarks(programs, rows), *_served(programs.target, rows, lacking))
    if found_other is not None and other is not None:
        saved.remarks += tuple(_slower(found, found_other, other.inplace))
    return saved


def _programs(
    found: SearchResult, target: str, sms: int | None, groups_overlap: bool, scratch_limit: int | None
) -> tuple[Programs | None, SearchResult, list[str]]:
    """What lowers for the target, what was found with its programs, and why there are none."""
    if target == NONE:
        return None, found, []
    try:
        size = min((served.low for served in found.ranges if served.low == served.high), default=None)
        programs = Programs(found.problem, target, sms, groups_overlap, scratch_limit, size=size)
        return programs, run_by(found, programs), []
    except InputError as error:
        no_file = [replace(one, contender=Contender(one.algorithm, refused=str(error))) for one in found.ranges]
        return None, replace(found, ranges=no_file), [str(error)]


def _write_all(
    library: Library, found: SearchResult, programs: Programs | None, refused: list[str]
) -> list[dict[str, Any]]:
    """Write the files of one form of calls; each one's entry, empty where there is none: why, goes to `refused`."""
    entries: list[dict[str, Any]] = []
    form = "" if programs is None or programs.is_usual else FORMS[programs.inplace]
    for served, name in zip(found.ranges, stems(found, library.entries), strict=True):
        entry: dict[str, Any] = {}
        try:
            if programs is not None:
                text, entry = document(found, served, name + form, programs)
                library.write(entry["file"], text.encode())
        except InputError as error:
            refused.append(
                f"{name} {'in' if programs and programs.inplace else 'out of'} place: {error}" if form else str(error)
            )
        entries.append(entry)
    return entries


def _remarks(programs: Programs, entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What whoever runs these files must know."""
    if programs.target.name == "msccl" and len(entries) > MSCCL_FILES:
        yield f"msccl loads only {MSCCL_FILES} files of MSCCL_XML_FILES: see synth library env"
    target, collective = programs.target, programs.problem.collective.name
    if entries and collective in target.uncallable:
        yield f"{target.reader} has no function that calls {collective}: synth bench and torch run these files"
    most = max((entry["threadblocks"] for entry in entries), default=0)
    if not target.limits.sms and most > FEWEST_SMS:
        yield f"a rank has {most} threadblocks, and the SMs of its device are not known: state sms, or give --sms"


def _served(target: Target, entries: Sequence[Mapping[str, Any]], lacking: Sequence[str]) -> Iterator[str]:
    """Which sizes and forms of calls the files do not serve, and what then does."""
    unit = "bytes" if target.cell_bytes else "elements"
    divides = sorted({entry["divides"] for entry in entries} - {1})
    if divides:
        of = " or ".join(map(str, divides)) if len(divides) < 4 else f"{divides[0]} to {divides[-1]}"
        yield f"a file serves messages of a multiple of {of} {unit}; {target.otherwise} serves the others"
    yield from (f"no file for {reason}; {target.otherwise} serves it" for reason in lacking)


def _slower(found: SearchResult, other: SearchResult, inplace: bool) -> Iterator[str]:
    """At which of the sizes shown calls of the other form take longer than the table says."""
    for served in found.ranges:
        by, size = other.fastest(served.shown), served.shown
        longer, time_us = by.time_us(size), served.time_us(size)
        if by.contender.execution and served.contender.execution and longer > _SAME_TIME * time_us:
            form = "in place" if inplace else "out of place"
            yield f"{form} {format_size(size)} take {format_time(longer)} in place of {format_time(time_us)}"


def _place_schedule(library: Library, found: SearchResult, served: Range, name: str, proof: bool) -> dict[str, str]:
    """Write the schedule of one algorithm, at the size it is shown for; by kind the files in the library."""
    files = {"schedule": f"{SCHEDULES}/{name}.synth"}
    path = save_schedule(library.place(files["schedule"]), served.algorithm, served.shown)
    if proof:
        files["proof_file"] = f"{SCHEDULES}/{name}.proof.json"
        time_us = served.algorithm.time_us(served.shown)
        beside = library.place(files["proof_file"])
        save_proof(path, found.problem, found.bound.witnesses, served.shown, time_us, beside)
    return files


def stem(found: SearchResult, served: Range) -> str:
    """A file's name without its ending: what is asked, and the shape (unique within a library)."""
    asked = question(found.problem)
    topology = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(asked["topology"]).name)
    group = asked["group"]
    names = ".".join(map(str, group))
    if group == list(range(found.problem.topology.nranks)):
        names = f"all{len(group)}"
    elif len(names) > 40:
        names = f"{len(group)}ranks-{zlib.crc32(names.encode()):08x}"
    parts = [asked["collective"], topology, names]
    if asked["root"] is not None:
        parts.append(f"root{asked['root']}")
    if asked["relays"]:
        relays = ".".join(map(str, asked["relays"]))
        parts.append("relay" + (relays if len(relays) <= 40 else f"{zlib.crc32(relays.encode()):08x}"))
    shape = served.algorithm
    return "-".join([*parts, f"{shape.steps}step", f"{shape.rounds}r{shape.chunks}c"])


def stems(found: SearchResult, others: Iterable[Entry] = ()) -> list[str]:
    """A name for each range of sizes; one algorithm can serve two of them.

    others: entries of the library that the files are for. Where a name is that of another question's file (topologies
    `a b` and `a-b`), all of these get a number that follows from the question.
    """
    names: list[str] = []
    for served in found.ranges:
        name = stem(found, served)
        names.append(name if name not in names else f"{name}-from{served.low}")
    asked = question(found.problem)
    taken = {
        Path(entry.file).name.removesuffix(TARGETS[entry.target].suffix)
        for entry in others
        if any(entry.values[key] != value for key, value in asked.items())
    }
    if not taken.isdisjoint(name + form for name in names for form in ("", *FORMS.values())):
        names = [f"{name}-{zlib.crc32(repr(asked).encode()):08x}" for name in names]
    return names


def document(found: SearchResult, served: Range, name: str, programs: Programs) -> tuple[str, dict[str, Any]]:
    """One algorithm's file and its entry; InputError where the target cannot hold it."""
    problem, target, by = found.problem, programs.target, served.contender.execution
    if not isinstance(by, Lowered):
        raise InputError(served.contender.refused)
    low, high = by.served(served.low, served.high)
    program, goal = replace(by.program, name=name, min_bytes=low, max_bytes=high or 0), by.goal
    text = programs.text(program, goal)
    asked = question(problem)
    return text, {
        **asked,
        "nranks": len(asked["group"]),
        "communicator": list(problem.ranks),
        "file": f"{target.folder}/{name}{target.suffix}",
        "target": target.name,
        "protocol": target.protocols[program.protocol],
        "inplace": program.inplace,
        "threadblocks": max(FORMATS[target.format].threadblocks(program, text)),
        **row(found, served),
        "min_bytes": low,
        "max_bytes": high,
        "divides": by.divides,
        "otherwise": target.otherwise,
        "padding": by.common.padding,
        "schedule": None,
        "proof_file": None,
        # what the file must achieve, where its own words do not say it
        "goal": None if goal is None else {"nranks": program.nranks, **goal_columns(by.common.cells)},
    }
