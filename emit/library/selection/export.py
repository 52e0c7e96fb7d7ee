"""Export of a library for other people's loaders: one folder per communicator, each a library itself.

Loaders know a call's collective and its number of ranks, but not which ranks. A folder that they read must therefore
hold the files of one group of one topology, and of one root. The MSCCL executors find it by an environment variable,
which `env.sh` in the folder sets; MSCCL++ reads it with `synth.Plans`. Ranges of sizes stand in the files and
in the folder's index.
"""

from __future__ import annotations

import hashlib
import shlex
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from emit.formats import PROGRAM_FORMATS, verify_file, verify_header
from emit.library.entry import ISOMORPHIC, IndexEntry
from emit.library.index import load_index
from emit.library.library_file import MOST_BYTES
from emit.library.saving.write import writing
from emit.library.selection.environment import environments
from emit.library.selection.selector import Selector, entries_in_order
from emit.program import CUSTOM, Program
from emit.targets import TARGETS, target_named
from synth.model.registry import COLLECTIVE_KINDS
from synth.model.text import as_file_name, format_listed
from synth.storage.columns import replaced
from topologies.errors import InputError
from topologies.text.files import origin_of, read_bytes

_LONGEST = 40  # characters of ranks in a folder's name


@dataclass(frozen=True)
class Folder:
    """A folder that was written for one communicator.

    Attributes:
        path: The folder.
        communicator: The topology's ranks, in the communicator's order.
        files: Number of files in it.
    """

    path: Path
    communicator: tuple[int, ...]
    files: int


def export_folders(
    entries: Sequence[IndexEntry],
    target: str,
    out: str | Path,
    groups: Iterable[tuple[int, ...]] = (),
    progress: Callable[[int, int], object] = lambda *_: None,
) -> list[Folder]:
    """Write a folder for each communicator that a target has files for, or for each root if there is more than one.

    Each is a library with an index and env.sh. Every file is checked before the first folder is written. Files that a
    folder holds for other questions stay.

    Args:
        entries: Entries of the library.
        target: Name of the target.
        out: Folder in which the folders are made.
        groups: Groups to export, each its ranks in order; empty for all, including those that files serve by a
            symmetry.
        progress: Receives how many files are checked, of how many.

    Raises:
        InputError: If the target or a group has no files, a file is not what the index says, or a folder cannot be
            written.
    """
    target_named(target)
    target_entries = [entry for entry in entries if entry.target == target]
    if not target_entries:
        has = ", ".join(name for name in TARGETS if any(entry.target == name for entry in entries)) or "none"
        raise InputError(f"--for {target}: the library has no file for it; it has files for {has}")
    distinct_groups = list(dict.fromkeys(groups))
    for group in distinct_groups:
        if not entries_in_order(target_entries, group):
            raise InputError(f"--group {format_listed(group)}: the library has no file for it and {target}")
    exported = (
        Selector(target_entries).expanded()
        if not distinct_groups
        else [e for g in distinct_groups for e in entries_in_order(target_entries, g)]
    )
    entry_of_file = {entry.file: entry for entry in exported}
    checked: dict[str, bytes] = {}
    for file, entry in entry_of_file.items():
        progress(len(checked), len(entry_of_file))
        checked[file] = checked_bytes(entry)
    return [_write(Path(out) / name, folder_entries, checked) for name, folder_entries in _folders(exported).items()]


def _folder_name(topology: str, communicator: Sequence[int]) -> str:
    """Return the name of a communicator's folder, which topologies with similar names may share."""
    ranks = ".".join(map(str, communicator))
    short = ranks if len(ranks) <= _LONGEST else f"{len(communicator)}ranks-{zlib.crc32(ranks.encode()):08x}"
    return f"{as_file_name(Path(topology).name)}-{short}"


def _folders(entries: Sequence[IndexEntry]) -> dict[str, list[IndexEntry]]:
    """Return the entries of each folder by its name: one per topology and communicator, or one per root of it.

    Roots have folders of their own if there are two or more. With one per root, entries without a root are in each of
    these folders.
    """
    folders: dict[str, list[IndexEntry]] = {}
    by_communicator: dict[tuple[str, tuple[int, ...]], list[IndexEntry]] = defaultdict(list)
    for entry in entries:
        by_communicator[entry.topology, entry.communicator].append(entry)
    names = {key: _folder_name(*key) for key in by_communicator}
    uses = Counter(names.values())
    for (topology, communicator), communicator_entries in by_communicator.items():
        name = names[topology, communicator]
        if uses[name] > 1:  # Other topologies differ from this one only in characters that no folder's name has.
            name = f"{name}-{zlib.crc32(topology.encode()):08x}"
        roots = sorted({entry.root for entry in communicator_entries if entry.root is not None})
        if len(roots) < 2:
            folders[name] = communicator_entries
        for root in roots if len(roots) > 1 else ():
            folders[f"{name}-root{root}"] = [entry for entry in communicator_entries if entry.root in (None, root)]
    return folders


def checked_bytes(entry: IndexEntry) -> bytes:
    """Return a file's bytes, which must be right for what the entry serves, whatever digest the index states.

    Raises:
        InputError: If the file cannot be read, is wrong, or is not the one that the index was written for.
    """
    data = read_bytes(entry.path, "a file of the library", MOST_BYTES, entry.folder)
    stated = entry.stated_digest("file")
    if stated is not None and stated != hashlib.sha256(data).hexdigest():
        raise InputError(f"{origin_of(entry.path)}: is not what its entry says; see synth library check")
    verdict = verify_file(entry.path, entry.goal(), None, entry.target)
    if verdict.status == "right" and PROGRAM_FORMATS[TARGETS[entry.target].format].load_converter:
        verdict = verify_header(entry.path, entry.goal())
    fault = verdict.status
    if verdict.program is not None and verdict.status == "right":
        fault = _other_call(entry, verdict.program)
    if fault:
        raise InputError(f"{origin_of(entry.path)}: {fault}; see synth library check")
    return data


def _other_call(entry: IndexEntry, program: Program) -> str:
    """Return in words how a right program serves other calls than its entry says; empty if it serves these.

    The first difference of collective, ranks, root, form of calls and protocol counts.

    Raises:
        InputError: If the goal that the entry states is malformed.
    """
    kind = COLLECTIVE_KINDS.get(entry.collective)
    is_named = kind is not None and kind.by_name and not entry.relays and entry.goal() is None
    root = program.root if entry.root is None or not is_named else entry.group.index(entry.root)
    for field, actual, stated in (
        ("collective", program.collective, entry.collective if is_named else CUSTOM),
        ("ranks", program.nranks, len(entry.communicator)),
        ("root", program.root, root),
        ("in place", program.inplace, entry.inplace),
        ("protocol", TARGETS[entry.target].protocols.get(program.protocol), entry.protocol),
    ):
        if actual != stated:
            return f"{field}: is {actual}; it must be {stated}, as its entry says"
    return ""


def _write(folder: Path, entries: Sequence[IndexEntry], files: dict[str, bytes]) -> Folder:
    """Write one folder with its files, its index and env.sh, and return what was written.

    Args:
        folder: The folder, which is made if it is missing.
        entries: Its entries, one or more, of one target; their schedules and proofs are not written.
        files: Bytes of the files by their names in `entries`.

    Raises:
        InputError: If the folder cannot be written.
    """
    with writing(folder) as library:
        own_entries = []
        for entry in entries:
            # An entry of a failure names its file by the path to the healthy library, which does not hold here.
            name = f"{TARGETS[entry.target].folder}/{entry.path.name}"
            library.write(name, files[entry.file])
            own = {key: value for key, value in entry.row.items() if key not in (ISOMORPHIC, "sha256")}
            own |= {"file": name, "schedule": None, "proof_file": None}
            own_entries.append(IndexEntry.of(own, folder))
        library.commit(own_entries)
    environment = environments(load_index(folder), entries[0].target)[0]
    order = format_listed(entries[0].communicator)
    lines = [f"# ranks of {entries[0].topology} in the order of the communicator: {order}", *environment.lines()]
    with replaced(folder / "env.sh") as file:
        file.write(("\n".join(lines) + "\n").encode())
    return Folder(folder, entries[0].communicator, len(entries))


def load_line(folder: Folder) -> str:
    """Return the line for a POSIX shell that sets the environment of a folder, by which the executor loads it."""
    return f". {shlex.quote(str(folder.path / 'env.sh'))}"
