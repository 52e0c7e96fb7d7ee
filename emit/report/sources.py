"""What a report is about: the schedules and programs in a file, a folder or a library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from emit.library.index import INDEX, SCHEDULES, Entry, load_index
from emit.targets import TARGETS
from topologies.errors import InputError
from topologies.text.files import opened, origin_of

__all__ = ["Source", "find_sources"]

_WANTED = f"a schedule (.synth), an MSCCL XML, a library's {INDEX}, or a folder of these"
_FOLDERS = ("", SCHEDULES, *(target.folder for target in TARGETS.values() if target.runs_here))


@dataclass(frozen=True)
class Source:
    """One file. kind: schedule or program.  name: as the page calls it.  entry: what an index says of it."""

    path: Path
    kind: str
    name: str
    entry: Entry | None = None


def find_sources(path: str | Path) -> list[Source]:
    """The files to report on, in the order of the index, then of their names.

    Raises:
        InputError: nothing there that can be reported on, or an index that cannot be read or names a missing file.
    """
    where = Path(path)
    if "\0" in str(where):
        raise InputError(f"{origin_of(where)}: is no path; give {_WANTED}")
    if where.is_dir():
        return _folder(where)
    if where.name == INDEX:
        opened(where, _WANTED).close()
        return _library(where)
    if where.name.endswith(".proof.json"):
        raise InputError(
            f"{origin_of(where)}: is a proof; give the schedule, NAME.synth, that it stands beside"
        )
    with opened(where, _WANTED) as file:
        first = file.read(4)
    kind = "schedule" if where.suffix == ".synth" or first.startswith(b"PK") else "program"
    return [Source(where, kind, where.name)]


def _folder(where: Path) -> list[Source]:
    found = _library(where / INDEX) if (where / INDEX).exists() else []
    known = {source.path for source in found}
    for folder in _FOLDERS:
        inner = where / folder
        try:
            files = sorted(inner.iterdir()) if inner.is_dir() else []
        except OSError as error:
            raise InputError(f"{origin_of(inner)}: cannot be read ({error.strerror or error})") from None
        for file in files:
            kind = {".synth": "schedule", ".xml": "program"}.get(file.suffix)
            if kind is not None and file not in known:
                found.append(Source(file, kind, file.name))
    if not found:
        raise InputError(f"{origin_of(where)}: holds neither .synth nor .xml; give {_WANTED}")
    return found


def _library(index: Path) -> list[Source]:
    """Of each entry its schedule, if there is one, and its file, if it is an XML."""
    found: dict[Path, Source] = {}
    for entry in load_index(index):
        files = [("schedule", entry.schedule)]
        if TARGETS[entry.target].runs_here:
            files.append(("program", entry.file))
        for kind, file in files:
            if file is None:
                continue
            path = entry.folder / file
            if not path.is_file():
                raise InputError(f"{origin_of(index)}: names {file}, which is not there; would be beside it")
            found.setdefault(path, Source(path, kind, path.name, entry))
    return list(found.values())
