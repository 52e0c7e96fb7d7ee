"""Answers as files of a library: what to write for each algorithm, and under which name."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
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
from synth.present.text import format_time
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

    index, files: the index, if any, and each algorithm's files by kind (file, other_form, schedule, proof_file).
    found: as it was written: with the times of the target's programs.
    refused: why some have no executor's file; empty where all have.
    remarks: on what is written, a clause each.
    padding: of the fullest buffer in a file, the part that holds nothing (see `CommonChunk`).
    """

    index: Path | None
    files: list[dict[str, Path]]
    found: SearchResult
    refused: str = ""
    padding: float = 0.0
    remarks: tuple[str, ...] = ()

    @property
    def paths(self) -> list[Path]:
        """All: the executor's files, the index, then schedules and proofs."""
        own = [files[kind] for files in self.files for kind in ("file", "other_form") if kind in files]
        stored = [f[kind] for f in self.files for kind in ("schedule", "proof_file") if kind in f]
        return own + ([] if self.index is None else [self.index]) + stored


def save(  # over 60 lines: one library is written, or nothing of it
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
    also what proves its bound (NAME.proof.json). sms, groups_overlap, scratch_limit: as for `Programs`. Raises
    InputError for a folder that cannot be written, or a foreign index.
    """
    programs: Programs | None = None
    refused: list[str] = []
    if target != NONE:
        try:
            pinned = {served.low for served in found.ranges if served.low == served.high}
            size = min(pinned, default=None)
            programs = Programs(found.problem, target, sms, groups_overlap, scratch_limit, size=size)
            found = run_by(found, programs)
        except InputError as error:
            refused.append(str(error))
            no_file = [replace(one, contender=Contender(one.algorithm, refused=str(error))) for one in found.ranges]
            found = replace(found, ranges=no_file)
    if not found.ranges:
        return Saved(None, [], found)
    written: list[dict[str, Path]] = []
    entries: list[dict[str, Any]] = []
    lacking: list[str] = []
    with writing(folder) as library:
        for served, name in zip(found.ranges, stems(found, library.entries), strict=True):
            files: dict[str, str] = {}
            made: list[dict[str, Any]] = []
            if programs is not None:
                try:
                    made.append(_write(library, found, served, name, programs))
                    files["file"] = made[0]["file"]
                except InputError as error:
                    refused.append(str(error))
            if programs is not None and made:
                try:
                    other = programs.other_form(served)
                    if other is not None:
                        served_so = replace(served, contender=Contender(served.algorithm, other))
                        form = name + FORMS[other.program.inplace]
                        made.append(_write(library, found, served_so, form, programs))
                        files["other_form"] = made[1]["file"]
                except InputError as error:
                    lacking.append(f"{name} {'out of' if made[0]['inplace'] else 'in'} place: {error}")
            if proof or not made:
                files |= _place_schedule(library, found, served, name, proof)
            for entry in made:
                entries.append(entry | {key: files[key] for key in ("schedule", "proof_file") if key in files})
            written.append({kind: library.folder / file for kind, file in files.items()})
        library.commit(entries)
    some = f"{len(refused)} of {len(found.ranges)} algorithms: " if 0 < len(refused) < len(found.ranges) else ""
    padding = max((entry["padding"] for entry in entries), default=0.0)
    why = some + refused[0] if refused else ""
    remarks = () if programs is None else (*_remarks(programs, entries), *_served(programs.target, entries, lacking))
    return Saved(library.folder / INDEX if entries else None, written, found, why, padding, remarks)


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
    """Which sizes and forms of calls the files do not serve, and what then does; in how far forms differ in time."""
    unit = "bytes" if target.cell_bytes else "elements"
    divides = sorted({entry["divides"] for entry in entries} - {1})
    if divides:
        of = " or ".join(map(str, divides)) if len(divides) < 4 else f"{divides[0]} to {divides[-1]}"
        yield f"a file serves messages of a multiple of {of} {unit}; {target.otherwise} serves the others"
    yield from (f"no file for {reason}; {target.otherwise} serves it" for reason in lacking)
    for one, other in pairwise(entries):
        if one["min_bytes"] == other["min_bytes"] and other["time_us"] > _SAME_TIME * one["time_us"]:
            longer, time_us = format_time(other["time_us"]), format_time(one["time_us"])
            yield f"{other['file']}: {longer}, where the other form takes {time_us}"


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


def _write(library: Library, found: SearchResult, served: Range, name: str, programs: Programs) -> dict[str, Any]:
    """Write one algorithm's file; its entry. InputError where the target cannot hold it."""
    text, entry = document(found, served, name, programs)
    library.write(entry["file"], text.encode())
    return entry


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
