"""What a report is about: the schedules and programs in a file, a folder or a library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emit.formats import FORMATS, Format, format_of
from emit.library.index import INDEX, SCHEDULES, Entry, load_index
from emit.targets import TARGETS
from topologies.errors import InputError
from topologies.text.files import check_below, opened, origin_of

_WANTED = f"a schedule (.synth), an MSCCL XML, an execution plan (JSON), a library's {INDEX}, or a folder of these"


@dataclass(frozen=True)
class Source:
    """One file. kind: schedule or program.  name: as the page calls it.  entry: what an index says of it."""

    path: Path
    kind: str
    name: str
    entry: Entry | None = None


def find_sources(path: str | Path) -> list[Source]:
    """The files to report on, in the order of the index, then of their names.

    Raises InputError for nothing to report on, an index that cannot be read, or one that names a missing file.
    """
    where = Path(path)
    if where.is_dir():
        return _folder(where)
    opened(where, _WANTED).close()
    if where.name == INDEX:
        return _library(where)
    if where.name.endswith(".proof.json"):
        raise InputError(f"{origin_of(where)}: is a proof; it must be the schedule, NAME.synth, that it stands beside")
    found = format_of(where)
    kind = _kind(found)
    if kind is None:
        raise InputError(f"{origin_of(where)}: is {found.what}; it must be {_WANTED}")
    return [Source(where, kind, where.name)]


def _kind(found: Format) -> str | None:
    """What a file of a format is to a report; None: nothing."""
    return "program" if found.has_program else "schedule" if found.name == "schedule" else None


def _folder(where: Path) -> list[Source]:
    found = _library(where / INDEX) if (where / INDEX).exists() else []
    known = {source.path for source in found}
    kinds = {one.suffix: _kind(one) for one in FORMATS.values() if not one.simulator}
    plain = {one.suffix for one in FORMATS.values() if not one.converter}  # JSON is also what is no plan
    own = {target.folder for target in TARGETS.values()}
    for folder in ("", SCHEDULES, *(target.folder for target in TARGETS.values() if target.runs_here)):
        inner = where / folder
        check_below(where, inner)
        try:
            files = sorted(inner.iterdir()) if inner.is_dir() else []
        except OSError as error:
            raise InputError(f"{origin_of(inner)}: cannot be read ({error.strerror or error})") from None
        for file in files:
            kind = kinds.get(file.suffix)
            if (
                kind is not None
                and file not in known
                and not file.is_symlink()
                and (file.suffix in plain or folder in own)
            ):
                found.append(Source(file, kind, file.name))
    if not found:
        raise InputError(f"{origin_of(where)}: holds neither .synth nor .xml nor plans; it must be {_WANTED}")
    return found


def _library(index: Path) -> list[Source]:
    return sources_of(load_index(index), origin_of(index))


def sources_of(entries: Sequence[Entry], origin: str) -> list[Source]:
    """Of each entry its schedule, if there is one, and its file, if that holds a program.

    origin: of the index, for messages. Raises InputError for a file that is not there.
    """
    found: dict[Path, Source] = {}
    for entry in entries:
        program = entry.file if TARGETS[entry.target].runs_here else None
        for kind, file in (("schedule", entry.schedule), ("program", program)):
            if file is None:
                continue
            path = entry.inside(file)
            if not path.is_file():
                raise InputError(f"{origin}: names {file}, which is not there; it must be beside it")
            found.setdefault(path, Source(path, kind, path.name, entry))
    return list(found.values())
