"""The schedules and programs that a report shows, from a file, a folder or a library."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emit.formats import PROGRAM_FORMATS, Format, format_of
from emit.library.entry import FORMS, INDEX, SCHEDULES, IndexEntry
from emit.library.index import load_index
from emit.library.selection.lookup import entry_beside
from emit.targets import TARGETS
from topologies.errors import InputError
from topologies.text.files import check_below, open_regular_file, origin_of

_WANTED = f"a schedule (.synth), an XML or JSON program, a library's {INDEX}, or a folder of these"


@dataclass(frozen=True)
class Source:
    """A file that a report shows.

    Attributes:
        path: The file.
        kind: "schedule" or "program".
        name: Name on the page.
        entry: Entry of the library's index, if any.
    """

    path: Path
    kind: str
    name: str
    entry: IndexEntry | None = None

    @property
    def algorithm(self) -> str:
        """Return a name that is the same for the schedule of an algorithm and its files for either form of calls."""
        if self.entry is None:
            return self.name
        stem = Path(self.entry.file).stem
        return next((stem.removesuffix(form) for form in FORMS.values() if stem.endswith(form)), stem)


def find_sources(path: str | Path) -> list[Source]:
    """Return the files to report on, in the order of the index, then of their names.

    Args:
        path: A schedule, a program, an index.json, or a folder: of this its index's files, its own files and those in
            its folders of schedules and programs are reported, without links.

    Raises:
        InputError: There is nothing to report on, or an index cannot be read or names a missing file.
    """
    location = Path(path)
    if location.is_dir():
        return _folder(location)
    open_regular_file(location, _WANTED).close()
    if location.name == INDEX:
        sources = _library(location)
        if not sources:
            raise InputError(f"{origin_of(location)}: names no schedule and no program to show; it must name some")
        return sources
    if location.name.endswith(".proof.json"):
        raise InputError(f"{origin_of(location)}: is a proof; give the schedule, NAME.synth, in the same folder")
    file_format = format_of(location)
    kind = _kind(file_format)
    if kind is None:
        raise InputError(f"{origin_of(location)}: is {file_format.what}; it must be {_WANTED}")
    return [Source(location, kind, location.name, _entry_of(location))]


def _entry_of(path: Path) -> IndexEntry | None:
    """Return the entry of a program in the index of its library, if the file has the bytes that the index states."""
    entry = entry_beside(path)
    if entry is None or entry.stated_digest("file") != hashlib.sha256(path.read_bytes()).hexdigest():
        return None
    return entry


def _kind(file_format: Format) -> str | None:
    """Return "program" or "schedule", as which a report shows files of a format; None if it shows none of them."""
    return "program" if file_format.has_program else "schedule" if file_format.name == "schedule" else None


def _folder(folder_path: Path) -> list[Source]:
    """Return the files of a folder's index, then, by name, its other files and those of its inner folders.

    The inner folders are those of schedules and of executors' files. Links are left out. JSON files count only in a
    target's own folder, since elsewhere they need not be plans.

    Raises:
        InputError: There is no such file, a folder is a link or cannot be read, or the index is wrong.
    """
    sources = _library(folder_path / INDEX) if (folder_path / INDEX).exists() else []
    indexed = {source.path for source in sources}
    kinds = {
        file_format.suffix: _kind(file_format) for file_format in PROGRAM_FORMATS.values() if not file_format.simulator
    }
    # A JSON file need not be a plan.
    plain = {file_format.suffix for file_format in PROGRAM_FORMATS.values() if file_format.load_converter is None}
    own = {target.folder for target in TARGETS.values()}
    for folder in ("", SCHEDULES, *(target.folder for target in TARGETS.values() if target.runs_here)):
        inner = folder_path / folder
        check_below(folder_path, inner)
        try:
            files = sorted(inner.iterdir()) if inner.is_dir() else []
        except OSError as error:
            raise InputError(f"{origin_of(inner)}: cannot be read ({error.strerror or error})") from None
        for file in files:
            kind = kinds.get(file.suffix)
            if (
                kind is not None
                and file not in indexed
                and not file.is_symlink()
                and (file.suffix in plain or folder in own)
            ):
                sources.append(Source(file, kind, file.name))
    if not sources:
        raise InputError(
            f"{origin_of(folder_path)}: contains no schedule (.synth), MSCCL XML or execution plan; it must have some"
        )
    return sources


def _library(index: Path) -> list[Source]:
    """Return the files that an index names, as `sources_of` does.

    Raises:
        InputError: The index cannot be read, or a file that it names is missing.
    """
    return sources_of(load_index(index), origin_of(index))


def sources_of(entries: Sequence[IndexEntry], origin: str) -> list[Source]:
    """Return the schedule of each entry, if it has one, and its file, if that holds a program; each file once.

    Args:
        entries: Entries of an index.
        origin: Name of the index, for messages.

    Raises:
        InputError: A file is missing.
    """
    sources: dict[Path, Source] = {}
    for entry in entries:
        program = entry.file if TARGETS[entry.target].runs_here else None
        for kind, file in (("schedule", entry.schedule), ("program", program)):
            if file is None:
                continue
            path = entry.inside(file)
            if not path.is_file():
                raise InputError(
                    f"{origin}: names {file}, which does not exist; restore it, or build the library again"
                )
            sources.setdefault(path, Source(path, kind, path.name, entry))
    return list(sources.values())
