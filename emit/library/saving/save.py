"""Saving of a search's answers as files of a library: what is written for each algorithm, and under which name."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from emit.compiler.lower import goal_columns
from emit.formats import PROGRAM_FORMATS, restate_program
from emit.library.entry import FILE_KINDS, FORMS, INDEX, SCHEDULES, IndexEntry, path_inside
from emit.library.library_file import LibraryFile, network_digest, requirement_of, schedule_again
from emit.library.lowered import Lowered, has_text
from emit.library.programs import Programs
from emit.library.run_by import run_by
from emit.library.saving.existing import Outcome, PlacedFile, place, table_rows, unserved, write_placed
from emit.library.saving.left_ranges import leave_to_libraries
from emit.library.saving.write import Library, existing_entries, writing
from emit.targets import FEWEST_SMS, MSCCL_FILES, TARGETS, Target
from synth.bounds.witness import Witness
from synth.model.deadline import TimeUp, limited, now
from synth.model.defects import contained
from synth.model.problem import LARGEST, Problem, question
from synth.model.text import as_file_name
from synth.search.budget import GRACE_S
from synth.search.offer import Offer
from synth.search.result import SearchResult
from synth.search.settings import ANY_TARGET, NONE, TargetSettings
from synth.search.statement import row
from synth.storage.proof import check_proof, load_proof, save_proof, state_costs
from synth.storage.schedule_file import save_schedule
from topologies.errors import InputError, ProofRefused

_USUAL_ELEMENT = 4  # bytes of a float, the usual element of messages
_ELEMENTS = _USUAL_ELEMENT, 2  # Bytes of elements, of a float and of a half, one of which must fit a file's only size.
_MOST_NAMED = 16  # Characters of ranks in a file's name, so that a line of a terminal holds it.


@dataclass
class Saved:
    """The result of saving a search's answers.

    Attributes:
        index: Path of the index; None if there is none.
        result: The search as it was written, with the times of the target's programs.
        rows: What the library now has for the sizes asked for (see `table_rows`).
        files: Files of each row by kind (file, schedule, proof_file).
        new_files: New file of each range of `result`; None if a range has none.
        other_form: The result for calls of the other form, in or out of place; None if nothing serves these.
        refused: Why some ranges have no executor's file; empty if all have one, or are left to a vendor library.
        left: Why there is no file at all, if all ranges are left to a vendor library; else empty.
        padding: Empty share of the fullest buffer in a file (see `CommonChunk`).
        remarks: What is written and what became of existing files, a clause each.
        folder: Folder of the library. It differs from the one asked for if another process held that one.
    """

    index: Path | None
    result: SearchResult
    rows: list[dict[str, Any]] = field(default_factory=list)
    files: list[dict[str, Path]] = field(default_factory=list)
    new_files: list[LibraryFile | None] = field(default_factory=list)
    other_form: Saved | None = None
    refused: str = ""
    left: str = ""
    padding: float = 0.0
    remarks: tuple[str, ...] = ()
    folder: Path | None = None

    @property
    def paths(self) -> list[Path]:
        """Return the paths of all new files: the executor's files, the index, then schedules and proofs.

        They include those of the other form of calls; what both forms name is there once.
        """
        new_paths = [*self._new(), *(self.other_form._new() if self.other_form else [])]
        stored = [*dict.fromkeys(paths[kind] for paths in new_paths for kind in FILE_KINDS[1:] if kind in paths)]
        index = [] if self.index is None else [self.index]
        return [paths["file"] for paths in new_paths if "file" in paths] + index + stored

    @property
    def kept_paths(self) -> list[Path]:
        """Return the paths of those of the library's executors' files that stay and serve a row, each once."""
        forms = [self] if self.other_form is None else [self, self.other_form]
        rows = [row for form in forms for row in zip(form.rows, form.files, strict=True)]
        return [*dict.fromkeys(paths["file"] for row, paths in rows if row["kept"] and "file" in paths)]

    def _new(self) -> list[dict[str, Path]]:
        """Return the files of the rows that are new, each by kind (file, schedule, proof_file)."""
        return [files for row, files in zip(self.rows, self.files, strict=True) if not row["kept"]]


# Longer than 60 lines for its arguments' description; its steps must stand in this order inside one lock.
def save(
    result: SearchResult,
    folder: str | Path,
    settings: TargetSettings = ANY_TARGET,
    *,
    proof: bool = False,
    anew: bool = False,
    until: float = math.inf,
    other_result: SearchResult | None = None,
    first: Sequence[IndexEntry] = (),
) -> Saved:
    """Write a search's answers into a library: a file for the target's executor and an entry of the index each.

    An algorithm that is too large for that is also written as a schedule (schedules/NAME.synth). So is every algorithm
    without a target or with `proof`, which adds the proof of its bound (NAME.proof.json). Where the library has proofs
    for the question, their witnesses join the search's bound, and new files get proofs too. Files for calls of the
    other form, in or out of place, are written as well. An existing file for the question stays at every size at which
    it is no slower; with `anew` none stays. If the search has no ranges, nothing is written.

    Args:
        result: The search.
        folder: Folder of the library.
        settings: The target and its limits; without a target only schedules are written.
        proof: True to write schedules and proofs.
        anew: True to replace existing files.
        until: Time of `synth.model.deadline.now` after which nothing is lowered or checked. What is missing then has no
            file, files of the other form first. If another process still holds the library then, all is written to a
            new library next to it, which `Saved.folder` names.
        other_result: The same answers with programs of the other form of calls, if these are known. They are not
            lowered then.
        first: What `save_first` returned during this search. These files give way to the new ones, as if they had never
            been there; without new files they stay.

    Raises:
        InputError: If the folder cannot be written, or has a foreign index.
    """
    programs, result, refused = _programs(result, settings, until)
    if not result.ranges:
        return Saved(None, result)
    other_programs = None if programs is None else programs.other_form()
    own_libraries = () if programs is None else programs.target.libraries
    question_key = None if programs is None else programs.question
    outcome = Outcome()
    with writing(folder, until=until, elsewhere=True) as library:
        old_entries = [
            entry for entry in library.entries if entry.question == question_key and not anew and entry not in first
        ]
        known_witnesses = proved_before(old_entries, result.problem)
        proof = proof or bool(known_witnesses)
        bound = result.bound.merged(known_witnesses)
        forms = [_CallForm(leave_to_libraries(replace(result, bound=bound), own_libraries), programs, dict(refused))]
        forms[0].make(library.entries, until)
        if other_programs is not None and forms[0].files:
            lowered = other_result or contained(
                "other form of calls", partial(run_by, result, other_programs, until), None
            )
            if lowered is not None:
                lowered = replace(lowered, bound=bound)
                forms.append(_CallForm(leave_to_libraries(lowered, own_libraries), other_programs))
                forms[1].make(library.entries, until)
        others = [entry for entry in library.entries if entry.question != question_key]
        used_names = [entry.file for entry in others]
        for form in forms:
            form.join(old_entries if form.files else [*old_entries, *first], outcome, used_names)
        if not anew:
            forms[0].keep_schedules(library, outcome, until)
        stored = _place_schedules(library, forms, proof, others)
        for form in forms:
            kept = [item for item in form.placed if item.entry.proof_file not in library.placed]
            for name, data in prove_again(kept, form.result, library.staging).items():
                library.write(name, data)
        placed = [placed_file for form in forms if form.files for placed_file in form.placed]
        entries = [placed_file.entry for placed_file in placed]
        write_placed(library, placed)
        if entries:
            library.keep(result.problem.topology)
            entries += [entry for entry in old_entries if not any(form.is_of(entry) for form in forms)]
        library.commit(entries)
    saved = _summarize(library.folder, forms, entries, stored)
    reasons = [*forms[0].refused.values()]
    share = f"{len(reasons)} of {len(result.ranges)} algorithms: " if 0 < len(reasons) < len(result.ranges) else ""
    saved.refused = share + reasons[0] if reasons else ""
    stays = [] if entries else [f"the library keeps {entry.folder / entry.file}" for entry in old_entries]
    if first and not entries:
        stays = [f"the first file stays, because there is no other: {first[0].folder / first[0].file}"]
    saved.remarks = (*_remarks(forms, entries, outcome), *stays)
    return saved


def proved_before(entries: Iterable[IndexEntry], problem: Problem) -> tuple[Witness, ...]:
    """Return the witnesses of those proofs of a library's entries that hold for a problem, each checked, once.

    Args:
        entries: Entries for the problem.
        problem: The problem.
    """
    witnesses: dict[Witness, None] = {}
    for path in dict.fromkeys(path_inside(entry.folder, entry.proof_file) for entry in entries if entry.proof_file):
        with suppress(InputError, ProofRefused):  # `synth library check` reports a wrong proof.
            proof = load_proof(path)
            check_proof(problem, proof, float(proof.question.get("size_bytes", 0.0)))
            witnesses |= dict.fromkeys(proof.witnesses)
    return tuple(witnesses)


def withdraw(saved: Saved) -> None:
    """Remove the new files of a save and their entries from its library; what they replaced stays away.

    Args:
        saved: What was saved.

    Raises:
        InputError: If the folder cannot be written, or another process holds it too long.
    """
    if saved.folder is not None and saved.index is not None:
        names = {path.relative_to(saved.folder).as_posix() for path in saved.paths}
        with writing(saved.folder) as library:
            library.commit(dropped=names)


def _summarize(
    folder: Path,
    forms: Sequence[_CallForm],
    entries: Sequence[IndexEntry],
    stored: Mapping[int, Mapping[str, str]],
) -> Saved:
    """Return what was written: rows and files of each form of calls, and the index; without refusals and remarks.

    Args:
        folder: Folder of the library.
        forms: The files of each form of calls, the usual one first.
        entries: Entries of the index that were written.
        stored: Schedules and proofs of ranges of the usual form by their number.
    """
    usual = forms[0]
    saved = usual.saved(folder, stored)
    saved.folder = folder
    saved.index = folder / INDEX if entries else None
    if len(forms) > 1:
        saved.other_form = forms[1].saved(folder, {})
    # Where the library's own files serve these sizes, none are left.
    saved.left = next(iter(usual.left.values()), "") if all(offer.library for offer in usual.result.ranges) else ""
    saved.padding = max((entry.padding for entry in entries), default=0.0)
    return saved


def save_first(result: SearchResult, folder: str | Path, settings: TargetSettings) -> list[IndexEntry]:
    """Write first programs of a search, which goes on, to a library that has no files for the question yet.

    The files are for the usual form of calls, in or out of place, and for the sizes at which no vendor library is
    faster. `save` takes them away again at the end of the search.

    Args:
        result: The programs, with what is proved so far; nothing is written if there are none.
        folder: Folder of the library.
        settings: The target and its limits.

    Returns:
        The entries of the files in the index; none if nothing was written.

    Raises:
        LibraryHeldError: Another process holds the library.
        InputError: The folder cannot be written, or has a foreign index.
    """
    if not result.ranges:
        return []
    programs, result, refused = _programs(result, settings, math.inf)
    if programs is None:
        return []
    form = _CallForm(leave_to_libraries(result, programs.target.libraries), programs, dict(refused))
    with writing(folder, until=now()) as library:
        if any(entry.question == programs.question for entry in library.entries):
            return []
        form.make(library.entries, math.inf)
        form.join([], Outcome(), [entry.file for entry in library.entries])
        write_placed(library, form.placed)
        if form.placed:
            library.keep(result.problem.topology)
        library.commit([placed_file.entry for placed_file in form.placed])
    return [entry for entry in existing_entries(folder) if entry.question == programs.question]


def _programs(
    result: SearchResult, settings: TargetSettings, until: float
) -> tuple[Programs | None, SearchResult, dict[int, str]]:
    """Return the lowering for the target, the search with its programs, and by range the error that prevented them.

    Without a target, there is no lowering, and the search is unchanged. If the target refuses, each range of the search
    is marked as without a program.
    """
    if settings.name == NONE:
        return None, result, {}
    try:
        size = min((served.low for served in result.ranges if served.low == served.high), default=None)
        programs = Programs(result.problem, settings, size=size)
        return programs, run_by(result, programs, until), {}
    except InputError as error:
        refused = [offer.without_program(str(error)) for offer in result.ranges]
        return None, replace(result, ranges=refused), dict.fromkeys(range(len(refused)), str(error))


@dataclass
class _CallForm:
    """The files for one form of calls, in or out of place.

    Attributes:
        result: The search, with the programs of this form.
        programs: Lowering that made them; None if the target has none.
        refused: Why ranges have no file, by the range's number; those that the library's own files serve are left out.
        left: Why ranges are left to a vendor library, by the range's number.
        new_files: New file of each range; None if it has none.
        placed: The library's files as they will be.
        stays: Numbers of the ranges without a file whose existing schedule stays; `result` holds it.
        stays_beside: Numbers of the ranges whose existing schedule stays next to the new one.
    """

    result: SearchResult
    programs: Programs | None
    refused: dict[int, str] = field(default_factory=dict)
    left: dict[int, str] = field(default_factory=dict)
    new_files: list[LibraryFile | None] = field(default_factory=list)
    placed: list[PlacedFile] = field(default_factory=list)
    stays: set[int] = field(default_factory=set)
    stays_beside: set[int] = field(default_factory=set)

    @property
    def files(self) -> list[LibraryFile]:
        """Return the new files, in the order of their ranges."""
        return [file for file in self.new_files if file is not None]

    def make(self, library_entries: Sequence[IndexEntry], until: float) -> None:
        """Make a file for each range, or note why there is none; fill `new_files`, `refused` and `left`.

        Args:
            library_entries: Entries of the library.
            until: Time of `now` after which no more files are made, with half of the search's time of grace. The first
                file of the usual form is made even then if its text is written already.
        """
        programs = self.programs
        ending = "" if programs is None or programs.is_usual else FORMS[programs.inplace]
        names = stems(self.result, library_entries)
        for number, (served, name) in enumerate(zip(self.result.ranges, names, strict=True)):
            new_file = None
            try:
                if programs is not None:
                    write = partial(file_of, self.result, served, name + ending, programs)
                    no_file: LibraryFile | None = None
                    make = partial(contained, f"file {name}", write, no_file)
                    # The first file is made even if it is late: its text is checked already.
                    is_first = programs.is_usual and not self.files
                    is_limited = served.execution is not None and not (is_first and has_text(served.execution))
                    new_file = limited(until + GRACE_S / 2, make) if is_limited else make()
                    if new_file is None:
                        raise InputError("its file cannot be made, for a defect of synth")
            except (InputError, TimeUp) as error:
                preposition = "in" if programs is not None and programs.inplace else "out of"
                late = "the budget ended before it was checked; try a longer --budget"
                reason = late if isinstance(error, TimeUp) else error
                reasons = self.left if served.library else self.refused
                reasons[number] = f"{name} {preposition} place: {reason}" if ending else str(reason)
            self.new_files.append(new_file)

    def join(self, old_entries: Sequence[IndexEntry], outcome: Outcome, used_names: Sequence[str]) -> None:
        """Place the new files among those of the library (see `place`), and keep the result in `placed`.

        Without new files it holds what the library has, which stays as it is. Files for blocks that differ in size are
        left out then, as only a new file tells which messages executors see.

        Args:
            old_entries: The library's entries for the question; those of another form are left out.
            outcome: Where the outcome for the existing files is added.
            used_names: Names of files that belong to another form or question.
        """
        if self.programs is not None:
            own_entries = [entry for entry in old_entries if entry.inplace == self.programs.inplace]
            if not self.files:
                are_equal = "sizes" not in question(self.result.problem)
                own_entries = [entry for entry in own_entries if are_equal and not entry.padding]
            requirement, outcome = requirement_of(self.programs), outcome if self.files else Outcome()
            self.placed = place(self.files, own_entries, requirement, outcome, used_names, self.result)
            existing = [item.entry for item in self.placed if item.file.existed]
            for reasons in (self.refused, self.left):
                for number in [number for number in reasons if not any(unserved(self.result.ranges[number], existing))]:
                    del reasons[number]

    def keep_schedules(self, library: Library, outcome: Outcome, until: float) -> None:
        """Check the library's schedules against the new ones of the same names, for ranges without a file.

        An existing schedule stays if it is no slower at any size compared, and is replaced if it is slower at all of
        them. Else both stay, also if the time ends first. `result`, `stays` and `stays_beside` say so afterwards.

        Args:
            library: The library.
            outcome: Where the ranges of the schedules that stay are added.
            until: Time of `now` after which no more schedules are checked, with half of the search's time of grace.
        """
        ranges, listed = list(self.result.ranges), {entry.schedule for entry in library.entries}
        for number, name in enumerate(stems(self.result, library.entries)):
            path, served = f"{SCHEDULES}/{name}.synth", ranges[number]
            if self.new_files[number] is not None or path in listed or served.library:
                continue
            compare = partial(schedule_again, path_inside(library.folder, path), served.algorithm, _sizes(served))
            try:
                existing, stays_beside = limited(until + GRACE_S / 2, compare)
            except TimeUp:
                existing, stays_beside = None, True
            if stays_beside:
                self.stays_beside.add(number)
            elif existing is not None:
                ranges[number] = replace(served, algorithm=existing)
                self.stays.add(number)
                outcome.ranges.append((served.low, served.high))
        self.result = replace(self.result, ranges=ranges)

    def is_of(self, entry: IndexEntry) -> bool:
        """Return True if an entry has this form, and there are new files for it."""
        return any(entry.inplace == file.entry.inplace for file in self.files)

    def saved(self, folder: Path, stored: Mapping[int, Mapping[str, str]]) -> Saved:
        """Return the rows of this form with their files.

        Args:
            folder: Folder of the library.
            stored: Schedules and proofs of ranges by their number.
        """
        saved = Saved(None, self.result, new_files=self.new_files)
        lacking = [number for number, file in enumerate(self.new_files) if file is None]
        for subject, fields in table_rows(self.result, self.placed, lacking, self.stays):
            files = stored.get(subject, {}) if isinstance(subject, int) else subject.entry.files
            if isinstance(subject, int) and (self.programs is None or self.programs.is_usual):
                fields["refused"] = fields["refused"] or self.refused.get(subject, "")
            saved.rows.append(fields)
            saved.files.append({kind: folder / name for kind, name in files.items()})
        return saved


def file_of(result: SearchResult, served: Offer, name: str, programs: Programs, **fields: object) -> LibraryFile:
    """Return an offer of a search as a file of a library; nothing is written.

    Args:
        result: The search.
        served: The offer.
        name: Stem of the file's name.
        programs: Lowering that made the offer's program.
        fields: Fields of its entry to add or to replace.

    Raises:
        InputError: If the offer has no program (the message is its `refused`), or the target cannot hold it.
    """
    problem, target, lowered = result.problem, programs.target, served.execution
    if not isinstance(lowered, Lowered):
        raise InputError(served.refused)
    low, high = lowered.served(served.low, served.high)
    program, goal = replace(lowered.program, name=name, min_bytes=low, max_bytes=high or 0), lowered.goal
    text, has_steps = "", any(gpu.threadblocks for gpu in program.gpus)
    if not has_steps:  # Only its draft or its text says what it does.
        programs.complete(lowered)
    if lowered.text:
        # A text that a format cannot restate, or not for these sizes, is written anew, if the program holds its steps.
        with suppress(InputError) if has_steps else nullcontext():
            text = restate_program(lowered.text, name, low, high, target)
    text = text or programs.text(program, goal)
    asked_fields = question(problem)
    entry_row = {
        **asked_fields,
        "network": network_digest(problem),
        "nranks": len(asked_fields["group"]),
        "communicator": list(problem.ranks),
        "file": f"{target.folder}/{name}{target.suffix}",
        "target": target.name,
        "protocol": target.protocols[program.protocol],
        "inplace": program.inplace,
        "threadblocks": max(PROGRAM_FORMATS[target.format].threadblocks(program, lowered.text or text)),
        **row(result, served),
        "min_bytes": low,
        "max_bytes": high,
        "divides": lowered.divides,
        "otherwise": target.own_algorithm(problem.collective.name),
        "padding": lowered.common.padding,
        "schedule": None,
        "proof_file": None,
        # The file itself may not say what it must achieve.
        "goal": None if goal is None else {"nranks": program.nranks, **goal_columns(lowered.common.cells)},
        # The executor's costs, if its times are with them.
        **state_costs(problem),
    }
    entry = IndexEntry.of(entry_row | fields, Path())
    if low == high and not any(entry.serves(low, element_bytes) for element_bytes in _ELEMENTS):
        unit = entry.unit(_USUAL_ELEMENT)
        of_elements = f", for elements of {_USUAL_ELEMENT} bytes" if entry.counts_elements else ""
        raise InputError(f"{low} bytes are no multiple of {unit} bytes{of_elements}, so no call could use it")
    return LibraryFile(entry, text, lambda size: lowered.time_us(size / lowered.scale), served)


def _sizes(served: Offer) -> set[int]:
    """Return the sizes in bytes at which schedules for a range are compared: its ends and the size that is shown.

    They are 1 byte or more; without a largest size LARGEST is taken.
    """
    return {max(1, served.low), served.shown, max(served.low, LARGEST) if served.high is None else served.high}


def _remarks(forms: Sequence[_CallForm], entries: Sequence[IndexEntry], outcome: Outcome) -> Iterator[str]:
    """Yield what users of the files must know, and what became of existing files."""
    programs = forms[0].programs
    if programs is not None:
        yield from _of_target(programs, entries)
        # The ranges of the first form that are left to a library are said with the table.
        left = [] if forms[0].left else [reason for form in forms[1:] for reason in form.left.values()]
        refused = [reason for form in forms[1:] for reason in form.refused.values()]
        yield from _served(programs.target, programs.problem, entries, [*refused, *left])
        size = next((offer.low for offer in forms[0].result.ranges if offer.low == offer.high), None)
        yield from [] if size is None else _neighbours(entries, size)
    elif not forms[0].refused:
        yield "without a target there are schedules only, and no index, which lists files of executors"
    yield from outcome.clauses()


def _of_target(programs: Programs, entries: Sequence[IndexEntry]) -> Iterator[str]:
    """Yield sentences on what users of the files must know of the executor and its devices, maybe none."""
    target, collective = programs.target, programs.problem.collective.name
    if programs.in_place_of is not None:
        yield f"{programs.in_place_of.reader} cannot call {collective}: the files are for {target.reader}"
    if target.name == "msccl" and len(entries) > MSCCL_FILES:
        yield f"msccl loads only {MSCCL_FILES} files of MSCCL_XML_FILES: see synth library env"
    if entries and collective in target.uncallable:
        yield f"{target.reader} has no function that calls {collective}: synth bench and torch run these files"
    most = max((entry.row["threadblocks"] for entry in entries), default=0)
    if not target.limits.sms and most > FEWEST_SMS:
        yield f"a rank has {most} threadblocks, and the SMs of its device are not known: state sms, or give --sms"


def _neighbours(entries: Iterable[IndexEntry], size: int) -> Iterator[str]:
    """Yield a sentence for each number that a file's messages must be multiples of, if the size asked for is none.

    Args:
        entries: Entries of the files.
        size: The only size in bytes that was asked for.
    """
    # Kept files of other questions' sizes say nothing of this size.
    concerned = [entry for entry in entries if entry.in_range(size) and not entry.serves(size, _USUAL_ELEMENT)]
    for entry in {entry.divides: entry for entry in concerned}.values():
        unit = entry.unit(_USUAL_ELEMENT)
        near = [near for near in (size // unit * unit, -(-size // unit) * unit) if near and entry.in_range(near)]
        form = f", for elements of {_USUAL_ELEMENT} bytes" if entry.counts_elements else ""
        nearest = (
            f"the nearest sizes that work are {' and '.join(map(str, near))}" if near else "the file serves no size"
        )
        yield f"{size} bytes are no multiple of {unit} bytes{form}: {nearest}"


def _served(target: Target, problem: Problem, entries: Sequence[IndexEntry], lacking: Sequence[str]) -> Iterator[str]:
    """Yield which sizes and forms of calls the files do not serve, and what serves these.

    Args:
        target: Executor of the files.
        problem: What the files do.
        entries: Entries of the files.
        lacking: Reasons why ranges have no file, a clause each.
    """
    unit = "bytes" if target.cell_bytes else "elements"
    divides = sorted({entry.divides for entry in entries} - {1})
    if divides:
        first, last = ", ".join(map(str, divides[:-1])), divides[-1]
        multiples = f"{divides[0]} to {last}" if len(divides) > 3 else f"{first} or {last}" if first else f"{last}"
        yield f"a file serves messages of a multiple of {multiples} {unit}; {target.fallback(problem, 'the others')}"
    for reason in _joined_reasons(lacking):
        yield f"no file for {reason}" + ("" if target.otherwise in reason else f"; {target.fallback(problem, 'it')}")


def _joined_reasons(lacking: Iterable[str]) -> Iterator[str]:
    """Yield clauses `NAME FORM: REASON`, those with one reason as one clause that counts them, as `2 files FORM: …`."""
    names: dict[tuple[str, str], list[str]] = {}
    for clause in lacking:
        name, _, reason = clause.partition(": ")
        names.setdefault((name.partition(" ")[2], reason), []).append(name)
    for (form, reason), own in names.items():
        yield f"{own[0] if len(own) == 1 else f'{len(own)} algorithms {form}'}: {reason}"


def _place_schedules(
    library: Library, forms: Sequence[_CallForm], proof: bool, others: Sequence[IndexEntry]
) -> dict[int, dict[str, str]]:
    """Write the schedules of algorithms without a file, with `proof` those of all new files too, each with its proof.

    Entries of their files then name them. The entries in `others`, of other questions or targets, keep their schedules.
    Ranges that are left to a vendor library have none.

    Args:
        library: The library that is being written.
        forms: The files of each form of calls, the usual one first; entries of their new files are changed in place.
        proof: True to write all schedules, with their proofs.
        others: The library's entries that are not replaced.

    Returns:
        The names of the schedule (and the proof_file) by this kind, for each range number that has any. An existing
        schedule that stays is included.
    """
    usual, stored = forms[0], {}
    placed = [placed_file for form in forms for placed_file in form.placed]
    new_files = [placed_file for placed_file in placed if not placed_file.file.existed]
    used_names = {placed_file.entry.schedule for placed_file in placed if placed_file.file.existed}
    used_names |= {entry.schedule for entry in others}
    for number, (served, name) in enumerate(
        zip(usual.result.ranges, stems(usual.result, library.entries), strict=True)
    ):
        own = [placed_file for placed_file in new_files if placed_file.file.offer is served]
        own += [
            placed_file
            for placed_file in new_files
            if (offer := placed_file.file.offer) not in usual.result.ranges
            and offer is not None
            and offer.algorithm is served.algorithm
        ]
        if served.library or (own and not proof) or (not own and usual.new_files[number] is not None):
            continue
        if number in usual.stays and not proof:
            stored[number] = {"schedule": f"{SCHEDULES}/{name}.synth"}
            continue
        # Another algorithm of this shape may have the name.
        if number in usual.stays_beside or f"{SCHEDULES}/{name}.synth" in used_names:
            name += f"-{zlib.crc32(served.algorithm.schedule.start_us.tobytes()):08x}"
        stored[number] = _place_schedule(library, usual.result, served, name, proof)
        for placed_file in own:
            placed_file.entry = placed_file.entry.restated(**stored[number])
            new_files.remove(placed_file)
    # The other form of calls may be served by algorithms of its own.
    for placed_file in new_files if proof else ():
        if (offer := placed_file.file.offer) is not None and not offer.library and offer not in usual.result.ranges:
            name = Path(placed_file.entry.file).stem
            placed_file.entry = placed_file.entry.restated(**_place_schedule(library, usual.result, offer, name, proof))
    return stored


def prove_again(placed: Iterable[PlacedFile], result: SearchResult, folder: Path) -> dict[str, bytes]:
    """Return new proofs of files whose entries were restated, and state the search's bound since then, by their names.

    Args:
        placed: The files.
        result: The search, whose bound counts.
        folder: Folder in which files may be made.

    Raises:
        InputError: A proof or its schedule cannot be read, or the new proof not be written.
    """
    proofs: dict[str, bytes] = {}
    for entry in (item.entry for item in placed if item.entry is not item.file.entry):
        if entry.schedule is None or entry.proof_file is None or entry.proof_file in proofs:
            continue
        proof, path = load_proof(path_inside(entry.folder, entry.proof_file)), folder / "again.proof.json"
        size, schedule = float(proof.question["size_bytes"]), path_inside(entry.folder, entry.schedule)
        save_proof(schedule, result.problem, result.bound.witnesses, size, proof.time_us, path)
        proofs[entry.proof_file] = path.read_bytes()
        path.unlink()
    return proofs


def _place_schedule(library: Library, result: SearchResult, served: Offer, name: str, proof: bool) -> dict[str, str]:
    """Write the schedule of one algorithm at the size it is shown for, with `proof` also the proof of its bound.

    Args:
        library: The library that is being written.
        result: The search.
        served: The offer of the algorithm.
        name: Stem of the files' names.
        proof: True to write the proof.

    Returns:
        The names in the library: schedule, and proof_file if there is one.

    Raises:
        InputError: If a file cannot be written.
    """
    files = {"schedule": f"{SCHEDULES}/{name}.synth"}
    path = save_schedule(library.place(files["schedule"]), served.algorithm, served.shown)
    if proof:
        files["proof_file"] = f"{SCHEDULES}/{name}.proof.json"
        time_us = served.algorithm.time_us(served.shown)
        proof_place = library.place(files["proof_file"])
        save_proof(path, result.problem, result.bound.witnesses, served.shown, time_us, proof_place)
    return files


def stem_of_problem(problem: Problem) -> str:
    """Return how the names of a problem's files begin: collective, network, group, root and relays.

    A digest of the proportions of blocks follows, where these have sizes of their own. The group is allN if it is all N
    ranks, else its ranks with dots between. Ranks that would take more than 16 characters are replaced by a digest.
    """
    fields = question(problem)
    root = "" if fields["root"] is None else f"-root{fields['root']}"
    network, group, relays = _names_of_ranks(problem)
    sizes = f"-sizes{zlib.crc32(repr(fields['sizes']).encode()):08x}" if "sizes" in fields else ""
    return f"{fields['collective']}-{network}-{group}{root}{relays}{sizes}"


def folder_of_problem(problem: Problem) -> str:
    """Return a name for a folder of the files for a problem, NETWORK-GROUP, with -relayRANKS if there are relays."""
    return "{}-{}{}".format(*_names_of_ranks(problem))


def _names_of_ranks(problem: Problem) -> tuple[str, str, str]:
    """Return a problem's network, group and relays as parts of names; the relays begin with -relay, or are "" if none.

    The group is allN if it is all N ranks, else its ranks with dots between. Ranks that would take more than 16
    characters are replaced by a digest.
    """
    fields = question(problem)
    topology = as_file_name(Path(fields["topology"]).name)
    group = fields["group"]
    names = ".".join(map(str, group))
    if group == list(range(problem.topology.nranks)):
        names = f"all{len(group)}"
    elif len(names) > _MOST_NAMED:
        names = f"{len(group)}ranks-{zlib.crc32(names.encode()):08x}"
    relays = ".".join(map(str, fields["relays"]))
    relays = relays if len(relays) <= _MOST_NAMED else f"{zlib.crc32(relays.encode()):08x}"
    return topology, names, f"-relay{relays}" if relays else ""


def stem(result: SearchResult, served: Offer) -> str:
    """Return a file's name without its ending: what is asked, and the algorithm's steps, rounds and chunks.

    Two ranges of one algorithm have the same; `stems` tells them apart.
    """
    shape = served.algorithm
    return f"{stem_of_problem(result.problem)}-{shape.steps}step-{shape.rounds}r{shape.chunks}c"


def stems(result: SearchResult, library_entries: Iterable[IndexEntry] = ()) -> list[str]:
    """Return a name without ending for each range of a search, all different; one algorithm can serve two of them.

    If a name is that of another question's file (topologies `a b` and `a-b`), all names get a number that follows from
    the question.

    Args:
        result: The search.
        library_entries: Entries of the library that the files are for.
    """
    names: list[str] = []
    for served in result.ranges:
        name = stem(result, served)
        names.append(name if name not in names else f"{name}-from{served.low}")
    fields = question(result.problem)
    foreign_names = {
        Path(entry.file).name.removesuffix(TARGETS[entry.target].suffix)
        for entry in library_entries
        if not entry.answers(fields)
    }
    if not foreign_names.isdisjoint(name + form for name in names for form in ("", *FORMS.values())):
        names = [f"{name}-{zlib.crc32(repr(fields).encode()):08x}" for name in names]
    return names
