"""Prepare the files that a library already has for `merge`: replay and time them again, and restate their entries."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from emit.formats import restate_program
from emit.library.index import Entry
from emit.library.lowered import Lowered, blocks_of, divides_usual
from emit.library.programs import Programs
from emit.library.saving.merge import NO_END, MergedPart, Rival, merge
from emit.library.standing import File, Requirement, network_digest, read_again, requirement_of
from emit.targets import Target
from synth.model.problem import LARGEST
from synth.model.text import format_count, format_served
from synth.search.result import SearchResult
from synth.search.statement import compare, over_sizes, row
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

FORMS = {True: "-inplace", False: "-outofplace"}  # ending of a file's name if its form is not the usual one
# Values of `Rival.first`: files planned with other groups; other files; files beyond limits.
_FIRST, _PLAIN, _LAST = -1, 0, 1


@dataclass(eq=False)
class PlacedFile:
    """A file of the library as it will be.

    Attributes:
        file: The file.
        entry: Its entry in the index.
        text: Its text if the file has to be written, else None.
    """

    file: File
    entry: dict[str, Any]
    text: str | None = None

    @property
    def kept(self) -> bool:
        """Return True if the file existed before."""
        return self.file.existed

    @property
    def algorithm(self) -> Algorithm | None:
        """Return the file's algorithm if this command found it, else None."""
        return None if self.file.served is None else self.file.served.algorithm


@dataclass
class Outcome:
    """The outcome for the existing files of a library.

    Attributes:
        ranges: Sizes (smallest, largest) of the files that stay; the largest is None for no limit.
        thrown: Why files were not usable_files.
        moved: Number of files for another network or pattern.
        lapsed: Number of files that are beyond the limits asked for and gave way.
    """

    ranges: list[tuple[int, int | None]] = field(default_factory=list)
    thrown: list[str] = field(default_factory=list)
    moved: int = 0
    lapsed: int = 0

    def clauses(self) -> Iterator[str]:
        """Yield what a report says of the outcome, clause by clause."""
        if self.ranges:
            ranges = sorted(set(self.ranges), key=lambda ends: ends[0])
            sizes = ", ".join(format_served(low, high) for low, high in ranges)
            yield f"kept {format_count(len(self.ranges), 'file')} of the library, no slower: {sizes}"
        if self.moved:
            yield f"{format_count(self.moved, 'file')} for another network or pattern of this name gave way"
        if self.lapsed:
            yield f"{format_count(self.lapsed, 'file')} beyond the limits asked for gave way"
        yield from (f"thrown out: {why}" for why in self.thrown)


def join(
    standing: Sequence[Entry],
    new_files: Sequence[File],
    result: SearchResult,
    programs: Programs,
    outcome: Outcome,
    used_names: Sequence[str] = (),
) -> list[PlacedFile]:
    """Return the files of one question and form as they will be, in order of their sizes.

    Args:
        standing: The library's entries for the question and form.
        new_files: New files, no two of which serve one size.
        result: The search whose answers they are.
        programs: Lowering that made them.
        outcome: Where the outcome for the existing files is added.
        used_names: Names of files in the library that belong to another question.
    """
    existing = usable_files(standing, network_digest(programs.problem), requirement_of(programs), outcome)
    fresh = [_with_known_facts(file, existing) for file in new_files]

    def restated(file: File, low: int, high: int | None) -> Mapping[str, Any]:
        """Return what a file's entry says of its time at other sizes, if it states a time."""
        return _restated(file, low, high, result, fresh) if "shown_bytes" in file.entry else {}

    rivals = {_rival(file, programs, fresh): file for file in not_rewritten(existing, fresh) + fresh}
    return assign_sizes(rivals, programs.target, outcome, used_names, restated)


def assign_sizes(
    files: Mapping[Rival, File],
    target: Target,
    outcome: Outcome,
    used_names: Sequence[str] = (),
    restated: Callable[[File, int, int | None], Mapping[str, Any]] = lambda *_: {},
) -> list[PlacedFile]:
    """Assign each size to a file, and return the files that the library then holds.

    Args:
        files: Files by their rivals, in order of precedence.
        target: Executor of the files.
        outcome: Where the outcome for the existing files is added.
        used_names: Names of files in the library that belong to another question.
        restated: Returns what a file's entry says anew when its sizes change.
    """
    parts = [(part, files[part.rival]) for part in merge(list(files))]
    # Answers are not compared beyond LARGEST. A new file's remainder there only follows another file's limit.
    parts = [(p, file) for p, file in parts if p.low <= LARGEST or file.existed or p.low == file.entry["min_bytes"]]
    names = {*used_names, *(file.entry["file"] for _, file in parts if file.existed)}
    placed: list[PlacedFile] = []
    for part, file in parts:
        is_repeated = any(placed_file.file is file for placed_file in placed)
        placed_file = _place(part, file, is_repeated=is_repeated, names=names, target=target, restated=restated)
        placed += [] if placed_file is None else [placed_file]
    if any(not file.existed for file in files.values()):
        replaced_files = [
            file for file in files.values() if file.existed and all(server is not file for _, server in parts)
        ]
        outcome.lapsed += sum(not file.within for file in replaced_files)
        outcome.ranges += [(p.entry["min_bytes"], p.entry["max_bytes"]) for p in placed if p.kept]
    return placed


def not_rewritten(existing: Sequence[File], fresh: Sequence[File]) -> list[File]:
    """Return the existing files whose texts differ from those of all new files."""
    new_texts = {file.text for file in fresh}
    return [file for file in existing if file.text not in new_texts]


def usable_files(
    standing: Sequence[Entry], network: str | None, requirement: Requirement, outcome: Outcome
) -> list[File]:
    """Return the existing files that answer this question and are right, in order of their sizes.

    Args:
        standing: Entries of the library.
        network: `network_digest` of the question; None if not known.
        requirement: What a file must be.
        outcome: Where refused files are noted.
    """
    files = []
    for entry in sorted(standing, key=lambda entry: entry.min_bytes):
        if network is not None and entry.values.get("network", network) != network:
            outcome.moved += 1
            continue
        try:
            files.append(read_again(entry, requirement))
        except InputError as error:
            outcome.thrown.append(str(error))
    return files


def _with_known_facts(file: File, existing: Sequence[File]) -> File:
    """Return a new file, with the better bound, the schedule and the proof of an existing file of the same text."""
    same_file = next(
        (
            candidate
            for candidate in existing
            if candidate.text == file.text and candidate.entry["file"] == file.entry["file"]
        ),
        None,
    )
    if same_file is None:
        return file
    stated = same_file.entry.get("bound_us")
    better = isinstance(stated, int | float) and stated >= file.entry["bound_us"]
    stored = {key: same_file.entry[key] for key in ("schedule", "proof_file")}
    return replace(file, entry=dict(same_file.entry) if better else {**file.entry, **stored})


def _rival(file: File, programs: Programs, fresh: Sequence[File]) -> Rival:
    """Return a file as a rival for its sizes."""
    low, high = file.entry["min_bytes"], file.entry["max_bytes"]
    divides, padding = file.entry.get("divides", 1), file.entry.get("padding", 0.0)
    target, scaled = programs.target, any(_scale(new_file) != 1.0 for new_file in fresh)
    cells = divides // (blocks_of(programs.problem) * (target.cell_bytes or 1))

    def serves(size: int) -> bool:
        """Return True if the file takes messages of about a size."""
        return bool(padding) or scaled or divides_usual(divides, cells, target, size)

    precedence = _PLAIN if file.within else _LAST
    if file.existed and "groups" in file.entry:  # Its speed next to other groups is another question.
        precedence = _FIRST
    if file.existed and any(new_file.entry["padding"] != padding for new_file in fresh):
        precedence = _FIRST if _never_slower(file, fresh) else _LAST
    return Rival(low, NO_END - 1 if high is None else high, file.time_us, serves, precedence)


def _never_slower(file: File, fresh: Sequence[File]) -> bool:
    """Return True if a file with other padding is never slower than the new files for the same contents."""
    filled = 1 - file.entry.get("padding", 0.0)
    for new_file in fresh:
        assert new_file.served is not None
        size = new_file.served.shown * _scale(new_file)
        if file.time_us(size * (1 - new_file.entry["padding"]) / filled) > new_file.time_us(size):
            return False
    return True


def _scale(file: File) -> float:
    """Return the message size that an executor sees, divided by the problem's message size."""
    program = file.served.execution if file.served is not None else None
    return program.scale if isinstance(program, Lowered) else 1.0


def _place(
    part: MergedPart,
    file: File,
    *,
    is_repeated: bool,
    names: set[str],
    target: Target,
    restated: Callable[[File, int, int | None], Mapping[str, Any]],
) -> PlacedFile | None:
    """Return a file for a part of its sizes; None if it takes no message of these. Add its name to `names`.

    Args:
        part: The sizes.
        file: The file.
        is_repeated: True if another part of the file has its name.
        names: Names that are in use.
        target: Executor of the file.
        restated: Returns what the entry says anew when its sizes change.
    """
    entry, suffix = dict(file.entry), target.suffix
    name, high = entry["file"], None if part.high >= NO_END - 1 else part.high
    if is_repeated or (not file.existed and name in names):
        name = _free_name(name.removesuffix(suffix), part.low, file.text, suffix, names)
    has_all_sizes = (part.low, high) == (entry["min_bytes"], entry["max_bytes"])
    if has_all_sizes and name == entry["file"]:
        names.add(name)
        return PlacedFile(file, entry, None if file.existed else file.text)
    try:
        stem = Path(name).name.removesuffix(suffix)
        text = restate_program(file.text, stem, part.low, high, target)
    except InputError:
        return None
    names.add(name)
    entry |= {"file": name, "min_bytes": part.low, "max_bytes": high}
    if not has_all_sizes:
        entry |= restated(file, part.low, high)
    return PlacedFile(file, entry, text)


def _restated(file: File, low: int, high: int | None, result: SearchResult, fresh: Sequence[File]) -> dict[str, Any]:
    """Return what a file's entry says of its time, now that the file is for these sizes."""
    scale_of_contents = next((_scale(new_file) * (1 - new_file.entry["padding"]) for new_file in fresh), 1.0)
    scale = scale_of_contents / (1 - file.entry.get("padding", 0.0))
    least, most = math.ceil(max(1, low) / scale), LARGEST if high is None else int(high / scale)
    size = file.entry["shown_bytes"]
    if type(size) is not int or not least <= size <= max(least, most):
        size = _middle(least, max(least, most))
    end = None if high is None else most
    if file.served is not None:
        fields = row(result, replace(file.served, low=low, high=end, shown=size))
        return {key: fields[key] for key in (*compare(result, 1.0, size), "worst", "curve")}
    over_range = over_sizes(result, lambda at: file.time_us(at * scale), low, end, size, file.entry["sends"] or 0)
    return compare(result, file.time_us(size * scale), size) | over_range


def _middle(low: int, high: int) -> int:
    """Return a power of two in the middle of a range, or its lower end if it contains none."""
    exponents = [e for e in range(63) if low <= 1 << e <= high]
    return 1 << exponents[(len(exponents) - 1) // 2] if exponents else low


def _free_name(stem: str, low: int, text: str, suffix: str, names: set[str]) -> str:
    """Return a free name for a file whose name is in use: with its first size, and with a digest if that is needed."""
    form_ending = next((ending for ending in FORMS.values() if stem.endswith(ending)), "")
    named = f"{stem.removesuffix(form_ending)}-from{low}"
    candidates = [f"{named}{form_ending}{suffix}", f"{named}-{zlib.crc32(text.encode()):08x}{form_ending}{suffix}"]
    return next((name for name in candidates if name not in names), candidates[-1])


def table_rows(
    result: SearchResult, placed: Sequence[PlacedFile], lacking: Sequence[int], stays: Collection[int] = ()
) -> list[tuple[PlacedFile | int, dict[str, Any]]]:
    """Return a row for each file that serves the sizes asked for, existing files included, in order of their sizes.

    Each is a row of `synth.search.statement.row`, with `refused` and `kept`. A range of `result` without a file has a
    row too, unless an existing file serves all of its sizes.

    Args:
        result: The search.
        placed: The library's files for the question.
        lacking: Positions of the ranges without a file.
        stays: Positions of those whose existing schedule stays.

    Returns:
        (file or position of the range, row) of each.
    """
    pinned = {served.low for served in result.ranges if served.low == served.high}
    rows: list[tuple[PlacedFile | int, dict[str, Any]]] = []
    for item in placed:
        if item.kept and pinned and not any(_in_range(item.entry, size, size) for size in pinned):
            continue
        rows.append((item, _table_row(result, item) | {"refused": "", "kept": item.kept}))
    for number in lacking:
        served = result.ranges[number]
        if not any(item.kept and _in_range(item.entry, served.low, served.high) for item in placed):
            rows.append((number, row(result, served) | {"refused": served.refused, "kept": number in stays}))
    return sorted(rows, key=lambda item: item[1]["min_bytes"])


def _table_row(result: SearchResult, placed_file: PlacedFile) -> dict[str, Any]:
    """Return the row of a file; the time and bound of an existing file are computed again."""
    entry, served = placed_file.entry, placed_file.file.served
    ends = {key: entry[key] for key in ("min_bytes", "max_bytes")}
    if served is not None:
        has_same_sizes = all(placed_file.file.entry[key] == entry[key] for key in ends)
        new_ends = {"low": entry["min_bytes"], "high": entry["max_bytes"], "shown": entry["shown_bytes"]}
        return row(result, served) if has_same_sizes else row(result, replace(served, **new_ends)) | ends
    size = entry.get("shown_bytes")
    if type(size) is not int or not _in_range(entry, size, size):
        size = _middle(max(1, entry["min_bytes"]), entry["max_bytes"] or LARGEST)
    shape = {key: entry.get(key) for key in ("steps", "rounds", "chunks", "sends", "engine")}
    shape["switch_ops"] = bool(entry.get("switch_ops"))  # An entry of a hand-written algorithm does not state it.
    over_range = over_sizes(
        result, placed_file.file.time_us, ends["min_bytes"], ends["max_bytes"], size, shape["sends"] or 0
    )
    return shape | ends | compare(result, placed_file.file.time_us(size), size) | over_range


def _in_range(entry: Mapping[str, Any], low: int, high: int | None) -> bool:
    """Return True if an entry serves all sizes from `low` to `high` (None: no limit)."""
    most = NO_END if entry["max_bytes"] is None else entry["max_bytes"]
    return bool(entry["min_bytes"] <= low and (NO_END if high is None else high) <= most)
