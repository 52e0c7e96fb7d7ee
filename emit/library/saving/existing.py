"""Place new files among those that a library already has: replay and time these again, and restate their entries."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from emit.formats import restate_program
from emit.library.entry import FORMS, NO_END, IndexEntry
from emit.library.library_file import LibraryFile, Requirement, read_again
from emit.library.lowered import divides_usual
from emit.library.saving.merge import merge
from emit.library.saving.write import Library
from emit.targets import TARGETS
from synth.model.problem import LARGEST
from synth.model.text import format_count, format_served
from synth.search.offer import Offer
from synth.search.result import SearchResult
from synth.search.statement import compare, over_sizes, row, spacing_for
from topologies.errors import InputError

# Values of `LibraryFile.precedence`: new files that replace all others; files planned with other groups, whose speed
# next to these is another question; other files; files beyond limits.
_REPLACING, _FIRST, _PLAIN, _LAST = -2, -1, 0, 1


@dataclass(eq=False)
class PlacedFile:
    """A file of the library as it will be.

    Attributes:
        file: The file as it was made or read.
        entry: Its entry in the index.
        text: Its text if the file has to be written, else None.
        scale: Message size that an executor sees, divided by the problem's message size.
    """

    file: LibraryFile
    entry: IndexEntry
    text: str | None = None
    scale: float = 1.0


@dataclass
class Outcome:
    """The outcome for the existing files of a library.

    Attributes:
        ranges: Sizes (smallest, largest) of the files that stay; the largest is None for no limit.
        thrown: Why each unusable file was left out.
        moved: Number of files for another network or pattern.
        lapsed: Number of files that are beyond the limits asked for and gave way.
    """

    ranges: list[tuple[int, int | None]] = field(default_factory=list)
    thrown: list[str] = field(default_factory=list)
    moved: int = 0
    lapsed: int = 0

    def clauses(self) -> Iterator[str]:
        """Yield what a report says of the outcome, a clause for each kind of outcome that occurred."""
        if self.ranges:
            ranges = sorted(set(self.ranges), key=lambda ends: ends[0])
            sizes = ", ".join(format_served(low, high) for low, high in ranges)
            yield f"kept {format_count(len(self.ranges), 'file')} of the library, no slower: {sizes}"
        if self.moved:
            yield f"{format_count(self.moved, 'file')} for another network or pattern of this name gave way"
        if self.lapsed:
            yield f"{format_count(self.lapsed, 'file')} beyond the limits asked for gave way"
        yield from (f"thrown out: {why}" for why in self.thrown)


def place(
    new_files: Sequence[LibraryFile],
    entries: Sequence[IndexEntry],
    requirement: Requirement,
    outcome: Outcome,
    used_names: Iterable[str],
    result: SearchResult | None = None,
    *,
    anew: bool = False,
) -> list[PlacedFile]:
    """Return the files of one question and form as the library will hold them, in order of their sizes.

    Nothing is written. A file can be there more than once, with different ranges of sizes, or not at all if others
    serve all of its sizes.

    Args:
        new_files: New files, no two of which serve one size. Their `entry`, `serves` and `precedence` are changed in
            place.
        entries: The library's entries for the question and form; files that are not usable are left out and noted.
        requirement: What a file must be to answer the question.
        outcome: Where the outcome for the existing files is added.
        used_names: Names of files in the library that belong to another question or form.
        result: The search whose answers the new files are; None for hand-written programs.
        anew: True to let the new files replace existing ones at all of their sizes.
    """
    existing = _usable(entries, requirement, outcome)
    for file in new_files:
        _add_known_facts(file, existing)
    new_texts = {file.text for file in new_files}
    files = [*(file for file in existing if file.text not in new_texts), *new_files]
    for file in files:
        _rank(file, new_files, requirement, anew)
    parts = [(file, low, None if high >= NO_END - 1 else high) for file, low, high in merge(files)]
    # Answers are not compared beyond LARGEST. A new file's remainder there only follows another file's limit.
    parts = [(file, low, high) for file, low, high in parts if low <= LARGEST or file.existed or low == file.low]
    names = {*used_names, *(file.entry.file for file, _, _ in parts if file.existed)}
    # The first new file tells how message sizes of the problem and of executors compare.
    scale_of_contents = next((new_file.scale * (1 - new_file.entry.padding) for new_file in new_files), 1.0)
    placed: list[PlacedFile] = []
    for file, low, high in parts:
        is_repeated = any(placed_file.file is file for placed_file in placed)
        entry = _entry_for(file, low, high, names, is_repeated=is_repeated)
        try:
            text = _text_for(file, entry)
        except InputError:  # The file takes no message of these sizes.
            continue
        names.add(entry.file)
        scale = scale_of_contents / (1 - file.entry.padding)
        if result is not None and entry.shown_bytes is not None and (low, high) != _ends(file.entry):
            entry = entry.restated(**_figures_for(file, low, high, result, scale))
        placed.append(PlacedFile(file, entry, text, scale))
    if new_files:
        servers = {id(file) for file, _, _ in parts}
        outcome.lapsed += sum(not file.within for file in files if file.existed and id(file) not in servers)
        outcome.ranges += [_ends(placed_file.entry) for placed_file in placed if placed_file.file.existed]
    return placed


def write_placed(library: Library, placed: Iterable[PlacedFile]) -> None:
    """Write those of the placed files that are new or changed."""
    for placed_file in placed:
        if placed_file.text is not None:
            library.write(placed_file.entry.file, placed_file.text.encode())


def _usable(entries: Sequence[IndexEntry], requirement: Requirement, outcome: Outcome) -> list[LibraryFile]:
    """Return the existing files that meet a requirement, in order of their sizes, after checking them.

    The others are left out: `outcome.moved` counts those for another network, `outcome.thrown` has the reason for each
    other one.
    """
    files = []
    for entry in sorted(entries, key=lambda entry: entry.min_bytes):
        if None not in (requirement.network, entry.network) and entry.network != requirement.network:
            outcome.moved += 1
            continue
        try:
            files.append(read_again(entry, requirement))
        except InputError as error:
            outcome.thrown.append(str(error))
    return files


def _add_known_facts(file: LibraryFile, existing: Sequence[LibraryFile]) -> None:
    """Let a new file state what the library knows of it, if `existing` has a file of the same text and name.

    Its `entry` becomes that file's entry if this has a bound that is no lower; else it gets only that entry's schedule,
    since its proof shows the lower bound.
    """
    entry = file.entry
    known = next((old.entry for old in existing if old.text == file.text and old.entry.file == entry.file), None)
    if known is None:
        return
    if known.bound_us is not None and known.bound_us >= (entry.bound_us or 0.0):
        file.entry = known
    elif entry.schedule is None:
        file.entry = entry.restated(schedule=known.schedule)


def _rank(file: LibraryFile, new_files: Sequence[LibraryFile], requirement: Requirement, anew: bool) -> None:
    """Set what decides which sizes a file gets: its `precedence`, and `serves`, which messages it takes.

    `serves` stays if the file has padding, or a new file sees other message sizes than the problem.

    Args:
        file: The file, existing or new.
        new_files: All new files.
        requirement: What a file must be to answer the question.
        anew: True if new files replace all others.
    """
    target, divides, padding = requirement.target, file.entry.divides, file.entry.padding
    cells = divides // (requirement.blocks * (target.cell_bytes or 1))
    # The blocks of such files differ in size, so any size may be usual.
    if not padding and all(new_file.scale == 1.0 for new_file in new_files):
        file.serves = lambda size: divides_usual(divides, cells, target, size)
    file.precedence = _PLAIN if file.within else _LAST
    if file.existed and file.entry.is_of_plan:
        file.precedence = _FIRST
    if file.existed and any(new_file.offer and new_file.entry.padding != padding for new_file in new_files):
        file.precedence = _FIRST if _never_slower(file, new_files) else _LAST
    if anew and not file.existed:
        file.precedence = _REPLACING


def _never_slower(file: LibraryFile, new_files: Sequence[LibraryFile]) -> bool:
    """Return True if a file with other padding is never slower than the new files for the same contents.

    It is compared with each new file at the size at which that is shown. Every new file must have an offer.
    """
    filled = 1 - file.entry.padding
    for new_file in new_files:
        assert new_file.offer is not None
        size = new_file.offer.shown * new_file.scale
        if file.time_us(size * (1 - new_file.entry.padding) / filled) > new_file.time_us(size):
            return False
    return True


def _ends(entry: IndexEntry) -> tuple[int, int | None]:
    """Return the smallest and the largest message of an entry in bytes; the latter is None for no limit."""
    return entry.min_bytes, entry.max_bytes


def _entry_for(
    file: LibraryFile, low: int, high: int | None, names: Collection[str], *, is_repeated: bool
) -> IndexEntry:
    """Return the entry of a file for a part of its sizes, with a name of its own; its own entry if nothing changes.

    A new file whose name is in use, or another part of a file, gets a new name.

    Args:
        file: The file.
        low: Smallest message in bytes.
        high: Largest message in bytes; None if there is no limit.
        names: Names that are in use.
        is_repeated: True if another part of the file has its name.
    """
    entry, suffix = file.entry, TARGETS[file.entry.target].suffix
    name = entry.file
    if is_repeated or (not file.existed and name in names):
        name = _free_name(name.removesuffix(suffix), low, file.text, suffix, names)
    if (name, low, high) == (entry.file, *_ends(entry)):
        return entry
    return entry.restated(file=name, min_bytes=low, max_bytes=high)


def _text_for(file: LibraryFile, entry: IndexEntry) -> str | None:
    """Return the text of a file under a new entry, restated if the entry changed; None if the library has it already.

    Raises:
        InputError: If the file takes no message of the entry's sizes.
    """
    if entry is file.entry:
        return None if file.existed else file.text
    target = TARGETS[entry.target]
    return restate_program(
        file.text, Path(entry.file).name.removesuffix(target.suffix), entry.min_bytes, entry.max_bytes, target
    )


def _figures_for(
    file: LibraryFile, low: int, high: int | None, result: SearchResult, scale: float, size: int | None = None
) -> dict[str, Any]:
    """Return what a file's entry states of its time, now that the file is for the sizes from `low` to `high`.

    Without a size they are for the one at which the entry is shown if that is in the range, else for one in its middle.

    Args:
        file: The file.
        low: Smallest message in bytes, as an executor sees it.
        high: Largest message in bytes, as an executor sees it; None if there is no limit.
        result: The search, whose bound counts.
        scale: Message size that an executor sees, divided by the problem's message size.
        size: Message size of the problem in bytes, in the range, that all figures are for.

    Returns:
        Values of the entry's fields: those of `synth.search.statement.compare`, and worst and curve.
    """
    least, most = math.ceil(max(1, low) / scale), LARGEST if high is None else int(high / scale)
    end = None if high is None else most
    if size is not None:
        low = end = size
    else:
        size = file.entry.shown_bytes
        if size is None or not least <= size <= max(least, most):
            size = _middle(least, max(least, most))
    if file.offer is not None:
        fields = row(result, replace(file.offer, low=low, high=end, shown=size))
        return {key: fields[key] for key in (*compare(result, 1.0, size), "worst", "curve")}
    spacing = spacing_for(file.entry.row.get("sends") or 0, True, low == end)
    unit = file.entry.unit() if scale == 1.0 else 1
    over_range = over_sizes(result, lambda at: file.time_us(at * scale), low, end, size, spacing, lambda _: unit)
    return compare(result, file.time_us(size * scale), size) | over_range


def _middle(low: int, high: int) -> int:
    """Return the power of two in the middle of a range, the lower of two; the lower end if it contains none."""
    exponents = [e for e in range(63) if low <= 1 << e <= high]
    return 1 << exponents[(len(exponents) - 1) // 2] if exponents else low


def _free_name(stem: str, low: int, text: str, suffix: str, names: Collection[str]) -> str:
    """Return a new name for a file whose name is in use: with its first size, and with a digest of its text if needed.

    The name with the digest is returned even if it is in use. An ending for the form of calls stays at the end.

    Args:
        stem: The name without its suffix.
        low: Smallest message in bytes.
        text: Text of the file.
        suffix: Suffix of the name.
        names: Names that are in use.
    """
    form_ending = next((ending for ending in FORMS.values() if stem.endswith(ending)), "")
    named = f"{stem.removesuffix(form_ending)}-from{low}"
    candidates = [f"{named}{form_ending}{suffix}", f"{named}-{zlib.crc32(text.encode()):08x}{form_ending}{suffix}"]
    return next((name for name in candidates if name not in names), candidates[-1])


def table_rows(
    result: SearchResult, placed: Sequence[PlacedFile], lacking: Sequence[int], stays: Collection[int] = ()
) -> list[tuple[PlacedFile | int, dict[str, Any]]]:
    """Return a row for each file that serves the sizes asked for, existing files included, in order of their sizes.

    Each is a row of `synth.search.statement.row`, for the size that was asked for if it is only one. It has `refused`
    too (why there is no file; "" for a file) and `kept` (True for an existing file, or for a range whose schedule
    stays). A range of `result` without a file has a row for each part of its sizes that no existing file serves.

    Args:
        result: The search.
        placed: The library's files for the question.
        lacking: Positions of the ranges without a file.
        stays: Positions of those whose existing schedule stays.

    Returns:
        (file or position of the range, row) of each.
    """
    pinned = {offer.low for offer in result.ranges if offer.low == offer.high}
    rows: list[tuple[PlacedFile | int, dict[str, Any]]] = []
    for item in placed:
        size = next((size for size in pinned if item.entry.in_range(size)), None)
        if item.file.existed and pinned and size is None:
            continue
        rows.append((item, _table_row(result, item, size) | {"refused": "", "kept": item.file.existed}))
    existing = [item.entry for item in placed if item.file.existed]
    for number in lacking:
        for offer in unserved(result.ranges[number], existing):
            rows.append((number, row(result, offer) | {"refused": offer.refused, "kept": number in stays}))
    return sorted(rows, key=lambda item: item[1]["min_bytes"])


def unserved(offer: Offer, entries: Sequence[IndexEntry]) -> Iterator[Offer]:
    """Yield an offer for each part of its sizes that no entry serves; the offer itself if no entry serves any of them.

    Args:
        offer: The offer.
        entries: Entries of files, in the order of their sizes; no two serve one size.
    """
    last = NO_END - 1 if offer.high is None else offer.high
    inside = [entry for entry in entries if entry.min_bytes <= last and entry.last_bytes >= offer.low]
    starts = [offer.low, *(entry.last_bytes + 1 for entry in inside)]
    ends = [*(entry.min_bytes - 1 for entry in inside), last]
    for low, end in zip(starts, ends, strict=True):
        high = None if end >= NO_END - 1 else end
        if low <= min(end, LARGEST):
            shown = offer.shown if low <= offer.shown <= end else _middle(max(1, low), min(end, LARGEST))
            yield replace(offer, low=low, high=high, shown=shown)


def _table_row(result: SearchResult, placed_file: PlacedFile, size: int | None) -> dict[str, Any]:
    """Return the row of a file with the sizes that it now serves.

    The time and bound of an existing file are computed again, at the only size that was asked for, or, if `size` is
    None, at the size at which its entry is shown or, if it does not serve that, at one in the middle.
    """
    entry, file = placed_file.entry, placed_file.file
    ends = {"min_bytes": entry.min_bytes, "max_bytes": entry.max_bytes}
    if file.offer is not None:
        if _ends(file.entry) == _ends(entry):
            return row(result, file.offer)
        assert entry.shown_bytes is not None
        return (
            row(result, replace(file.offer, low=entry.min_bytes, high=entry.max_bytes, shown=entry.shown_bytes)) | ends
        )
    shape = {key: entry.row.get(key) for key in ("steps", "rounds", "chunks", "sends", "engine")}
    shape["switch_ops"] = bool(entry.row.get("switch_ops"))  # An entry of a hand-written algorithm does not state it.
    return shape | ends | _figures_for(file, *_ends(entry), result, placed_file.scale, size)
