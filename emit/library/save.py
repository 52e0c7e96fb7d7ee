"""Answers as files of a library: what to write for each algorithm, and under which name."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from emit.compiler.lower import goal_columns
from emit.formats import FORMATS, restate_program
from emit.library.index import INDEX, SCHEDULES, Entry
from emit.library.kept import FORMS, Outcome, PlacedFile, join, table_rows
from emit.library.lowered import Lowered
from emit.library.programs import NONE, Programs, run_by
from emit.library.standing import File, network_digest, schedule_again
from emit.library.write import Library, writing
from emit.targets import FEWEST_SMS, MSCCL_FILES, TARGETS, Target
from synth.model.deadline import TimeUp, limited
from synth.model.defects import contained
from synth.model.problem import LARGEST, Problem, question
from synth.present.statement import row
from synth.present.text import format_size, format_time
from synth.search.budget import GRACE_S
from synth.search.frontier import Contender, Range
from synth.search.result import SearchResult
from synth.storage.proof import save_proof, state_costs
from synth.storage.schedule_file import save_schedule
from topologies.errors import InputError

_SAME_TIME = 1.005  # of two forms of one algorithm


@dataclass
class Saved:
    """What was written.

    index: if there is one.
    rows, files: what the library now has for the sizes asked for, as `table_rows` has it, and the files of each row by
    kind (file, schedule, proof_file).
    made: The new file of each range of `found`; None where a range has none.
    found: as it was written: with the times of the target's programs.
    other_form: what serves calls in place where those files serve others, or the other way round, where there is that.
    refused: why some have no executor's file; empty where all have.
    remarks: on what is written and on what was there, a clause each.
    padding: of the fullest buffer in a file, the part that holds nothing (see `CommonChunk`).
    folder: of the library, which is another than the one asked for where that was held by another process.
    """

    index: Path | None
    found: SearchResult
    rows: list[dict[str, Any]] = field(default_factory=list)
    files: list[dict[str, Path]] = field(default_factory=list)
    made: list[File | None] = field(default_factory=list)
    other_form: Saved | None = None
    refused: str = ""
    padding: float = 0.0
    remarks: tuple[str, ...] = ()
    folder: Path | None = None

    @property
    def paths(self) -> list[Path]:
        """All but those that were there: the executor's files, the index, then schedules and proofs."""
        both = [*self._new(), *(self.other_form._new() if self.other_form else [])]
        stored = [files[kind] for files in self._new() for kind in ("schedule", "proof_file") if kind in files]
        index = [] if self.index is None else [self.index]
        return [files["file"] for files in both if "file" in files] + index + stored

    def _new(self) -> list[dict[str, Path]]:
        return [files for row, files in zip(self.rows, self.files, strict=True) if not row["kept"]]


def save(
    found: SearchResult,
    folder: str | Path,
    target: str = "auto",
    *,
    sms: int | None = None,
    groups_overlap: bool = False,
    scratch_limit: int | None = None,
    proof: bool = False,
    anew: bool = False,
    until: float = math.inf,
    other_found: SearchResult | None = None,
) -> Saved:
    """Write what was found into a library: a file for the target's executor and an entry of the index each.

    An algorithm too large for that, or with `proof`, is written as a schedule (schedules/NAME.synth), and with `proof`
    also what proves its bound (NAME.proof.json). Beside them the files for calls of the other form, in or out of place.
    Of files that the library has for the question those stay that are no slower, each at its sizes; with `anew` none.

    Args:
        sms, groups_overlap, scratch_limit: As for `Programs`.
        until: The time of `synth.model.deadline.now` after which nothing is made or checked any more. What is missing
            then has no file, files of the other form first. A library that another process still holds then is left
            alone: all is written to a new one beside it, which `Saved.folder` names.
        other_found: The same answer with the programs of the other form of calls, in or out of place, where these are
            known. They are not lowered then.

    Raises:
        InputError: The folder cannot be written, or has a foreign index.
    """
    programs, found, refused = _programs(found, target, sms, groups_overlap, scratch_limit, until)
    if not found.ranges:
        return Saved(None, found)
    other = None if programs is None else programs.other_form()
    forms = [_Form(found, programs, refused)]
    kept, rows = Outcome(), list[dict[str, Any]]()
    with writing(folder, until=until, elsewhere=True) as library:
        forms[0].make(library.entries, until)
        if other is not None and forms[0].files:
            lowered = other_found or contained("other form of calls", partial(run_by, found, other, until), None)
            if lowered is not None:
                forms.append(_Form(lowered, other, []))
                forms[1].make(library.entries, until)
        asked = None if programs is None else programs.question
        standing = [entry for entry in library.entries if entry.question == asked and not anew]
        taken = [entry.file for entry in library.entries if entry.question != asked]
        for form in forms:
            form.join([entry for entry in standing if form.is_of(entry)], kept, taken)
        if not anew:
            forms[0].keep_schedules(library, kept, until)
        stored = _place_schedules(library, forms, proof)
        for form in forms:
            rows += [one.entry for one in form.placed]
            for one in form.placed:
                if one.text is not None:
                    library.write(one.entry["file"], one.text.encode())
        if rows:
            rows += [dict(entry.values) for entry in standing if not any(form.is_of(entry) for form in forms)]
        library.commit(rows)
    usual = forms[0]
    saved = usual.saved(library.folder, stored)
    saved.folder = library.folder
    saved.index = library.folder / INDEX if rows else None
    if len(forms) > 1:
        saved.other_form = forms[1].saved(library.folder, {})
    some = f"{len(refused)} of {len(found.ranges)} algorithms: " if 0 < len(refused) < len(found.ranges) else ""
    saved.refused = some + refused[0] if refused else ""
    saved.padding = max((row["padding"] for row in rows if "padding" in row), default=0.0)
    if programs is not None:
        lacking = [why for form in forms[1:] for why in form.refused]
        saved.remarks = (*_remarks(programs, rows), *_served(programs.target, rows, lacking))
    if len(forms) > 1 and not kept.ranges:
        saved.remarks += tuple(_slower(found, forms[1].found, not forms[0].placed[0].entry["inplace"]))
    saved.remarks += tuple(kept.clauses())
    return saved


def _programs(
    found: SearchResult, target: str, sms: int | None, groups_overlap: bool, scratch_limit: int | None, until: float
) -> tuple[Programs | None, SearchResult, list[str]]:
    """What lowers for the target, what was found with its programs, and why there are none."""
    if target == NONE:
        return None, found, []
    try:
        size = min((served.low for served in found.ranges if served.low == served.high), default=None)
        programs = Programs(found.problem, target, sms, groups_overlap, scratch_limit, size=size)
        return programs, run_by(found, programs, until), []
    except InputError as error:
        no_file = [replace(one, contender=Contender(one.algorithm, refused=str(error))) for one in found.ranges]
        return None, replace(found, ranges=no_file), [str(error)]


@dataclass
class _Form:
    """One form of calls: what was found for it and for whom, its files, and why some have none.

    made: of each range, None where there is no file.  placed: the library's as they will be.  stays: ranges without a
    file, by their places, whose schedule was there and is no slower; `found` has it.  beside: those whose schedule
    stays beside that.
    """

    found: SearchResult
    programs: Programs | None
    refused: list[str]
    made: list[File | None] = field(default_factory=list)
    placed: list[PlacedFile] = field(default_factory=list)
    stays: set[int] = field(default_factory=set)
    beside: set[int] = field(default_factory=set)

    @property
    def files(self) -> list[File]:
        """Those that there are."""
        return [file for file in self.made if file is not None]

    def make(self, others: Sequence[Entry], until: float) -> None:
        """Make a file for each range; others: of the library; until: of `now`, when no more is made."""
        programs = self.programs
        ending = "" if programs is None or programs.is_usual else FORMS[programs.inplace]
        for served, name in zip(self.found.ranges, stems(self.found, others), strict=True):
            made = None
            try:
                if programs is not None:
                    write = partial(_file, self.found, served, name + ending, programs)
                    without: File | None = None
                    make = partial(contained, f"file {name}", write, without)
                    made = make() if served.contender.execution is None else limited(until + GRACE_S / 2, make)
                    if made is None:
                        raise InputError("its file cannot be made, for a defect of synth")
            except (InputError, TimeUp) as error:
                form = "in" if programs is not None and programs.inplace else "out of"
                why = "no time was left to check it; give more --budget" if isinstance(error, TimeUp) else error
                self.refused.append(f"{name} {form} place: {why}" if ending else str(why))
            self.made.append(made)

    def join(self, standing: Sequence[Entry], kept: Outcome, taken: Sequence[str]) -> None:
        """Place them beside those that stand in the library; taken: names that are another form's or question's."""
        if self.programs is not None and self.files:
            self.placed = join(standing, self.files, self.found, self.programs, kept, taken)

    def keep_schedules(self, library: Library, kept: Outcome, until: float) -> None:
        """Look at the library's schedules that have the names of those for ranges without a file.

        One that is no slower at any size looked at stays, one that is slower at all of them gives way, else both stay.
        """
        ranges, listed = list(self.found.ranges), {entry.schedule for entry in library.entries}
        for number, name in enumerate(stems(self.found, library.entries)):
            path, served = f"{SCHEDULES}/{name}.synth", ranges[number]
            if self.made[number] is not None or path in listed:
                continue
            look = partial(schedule_again, library.inside(path), served.algorithm, _sizes(served))
            try:
                there, beside = limited(until + GRACE_S / 2, look)
            except TimeUp:
                there, beside = None, True
            if beside:
                self.beside.add(number)
            elif there is not None:
                ranges[number] = replace(served, contender=replace(served.contender, algorithm=there))
                self.stays.add(number)
                kept.ranges.append((served.low, served.high))
        self.found = replace(self.found, ranges=ranges)

    def is_of(self, entry: Entry) -> bool:
        """Whether an entry is of this form, and there are new files for it."""
        return any(entry.inplace == file.entry["inplace"] for file in self.files)

    def saved(self, folder: Path, stored: Mapping[int, Mapping[str, str]]) -> Saved:
        """The rows of this form with their files; stored: of ranges by their place, schedules and proofs."""
        saved = Saved(None, self.found, made=self.made)
        lacking = [number for number, file in enumerate(self.made) if file is None]
        for what, told in table_rows(self.found, self.placed, lacking, self.stays):
            files = stored.get(what, {}) if isinstance(what, int) else _files_of(what.entry)
            saved.rows.append(told)
            saved.files.append({kind: folder / name for kind, name in files.items()})
        return saved


def _file(found: SearchResult, served: Range, name: str, programs: Programs) -> File:
    text, entry = document(found, served, name, programs)
    by = served.contender.execution
    assert isinstance(by, Lowered)
    return File(entry, text, lambda size: by.time_us(size / by.scale), served)


def _sizes(served: Range) -> set[int]:
    """At which schedules for a range are compared."""
    return {max(1, served.low), served.shown, max(served.low, LARGEST) if served.high is None else served.high}


def _files_of(entry: Mapping[str, Any]) -> dict[str, str]:
    return {kind: entry[kind] for kind in ("file", "schedule", "proof_file") if entry[kind] is not None}


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
    divides = sorted({entry.get("divides", 1) for entry in entries} - {1})
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


def _place_schedules(library: Library, forms: Sequence[_Form], proof: bool) -> dict[int, dict[str, str]]:
    """Write the schedules of algorithms that have no file, with `proof` of all that stay; by their place in the ranges.

    Entries of their files then name them.
    """
    usual, stored = forms[0], {}
    fresh = [one for form in forms for one in form.placed if not one.kept]
    taken = {one.entry["schedule"] for form in forms for one in form.placed if one.kept}
    for number, (served, name) in enumerate(zip(usual.found.ranges, stems(usual.found, library.entries), strict=True)):
        own = [one for one in fresh if one.file.served is served]
        own += [one for one in fresh if one.file.served not in usual.found.ranges and one.algorithm is served.algorithm]
        if (own and not proof) or (not own and usual.made[number] is not None):
            continue
        if number in usual.stays and not proof:
            stored[number] = {"schedule": f"{SCHEDULES}/{name}.synth"}
            continue
        if number in usual.beside or f"{SCHEDULES}/{name}.synth" in taken:  # of another algorithm of this shape
            name += f"-{zlib.crc32(served.algorithm.schedule.start_us.tobytes()):08x}"
        stored[number] = _place_schedule(library, usual.found, served, name, proof)
        for one in own:
            one.entry |= stored[number]
            fresh.remove(one)
    return stored


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


def stem_of_problem(problem: Problem) -> str:
    """How the names of a problem's files begin: what is asked."""
    asked = question(problem)
    topology = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(asked["topology"]).name)
    group = asked["group"]
    names = ".".join(map(str, group))
    if group == list(range(problem.topology.nranks)):
        names = f"all{len(group)}"
    elif len(names) > 40:
        names = f"{len(group)}ranks-{zlib.crc32(names.encode()):08x}"
    parts = [asked["collective"], topology, names]
    if asked["root"] is not None:
        parts.append(f"root{asked['root']}")
    if asked["relays"]:
        relays = ".".join(map(str, asked["relays"]))
        parts.append("relay" + (relays if len(relays) <= 40 else f"{zlib.crc32(relays.encode()):08x}"))
    return "-".join(parts)


def stem(found: SearchResult, served: Range) -> str:
    """A file's name without its ending: what is asked, and the shape (unique within a library)."""
    shape = served.algorithm
    return f"{stem_of_problem(found.problem)}-{shape.steps}step-{shape.rounds}r{shape.chunks}c"


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
    text = restate_program(by.text, name, low, high, target) if by.text else programs.text(program, goal)
    asked = question(problem)
    return text, {
        **asked,
        "network": network_digest(problem),
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
        # of the model in which its times are, where an executor's are on
        **state_costs(problem),
    }
