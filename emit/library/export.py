"""A library's files as other people's loaders want them: a folder for each communicator, which is a library itself.

Loaders know a call's collective and its number of ranks, not which ranks: a folder that they read must hold the files
of one group of one topology, and of one root. The MSCCL executors read it by an environment variable (`env.sh` in it
says which), MSCCL++ by `runtime.mscclpp.Plans`; ranges of sizes stand in the files and in the folder's index.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from emit.formats import FORMATS, verify_file, verify_program
from emit.library.environment import environments
from emit.library.index import ISOMORPHIC, Entry, load_index
from emit.library.selector import Selector, entries_in_order
from emit.library.standing import MOST_BYTES
from emit.library.write import writing
from emit.program import CUSTOM, Program
from emit.targets import TARGETS, target_named
from synth.model.registry import KINDS
from synth.present.text import format_listed
from synth.storage.columns import replaced
from topologies.errors import InputError
from topologies.text.files import origin_of, read_bytes

_LONGEST = 40  # characters of ranks in a folder's name


@dataclass(frozen=True)
class Folder:
    """One that was written: the communicator's ranks of the topology in order, and how many files are in it."""

    path: Path
    communicator: tuple[int, ...]
    files: int


def export_folders(
    entries: Sequence[Entry], target: str, out: str | Path, groups: Iterable[tuple[int, ...]] = ()
) -> list[Folder]:
    """Write a folder for each communicator that a target has files for.

    groups: only of these, ranks in order; none: all, those too that files serve by a symmetry. Raises InputError for a
    target or a group without files, a file that is not what the index says, or a folder that cannot be written.
    """
    target_named(target)
    able = [entry for entry in entries if entry.target == target]
    if not able:
        has = ", ".join(name for name in TARGETS if any(entry.target == name for entry in entries)) or "none"
        raise InputError(f"--for {target}: the library has no file for it; it has files for {has}")
    asked = list(dict.fromkeys(groups))
    for group in asked:
        if not entries_in_order(able, group):
            raise InputError(f"--group {format_listed(group)}: the library has no file for it and {target}")
    every = Selector(able).expanded() if not asked else [e for g in asked for e in entries_in_order(able, g)]
    checked: dict[str, bytes] = {}
    for entry in every:
        if entry.file not in checked:
            checked[entry.file] = _checked(entry)
    return [_write(Path(out) / name, its, checked) for name, its in _folders(every).items()]


def _folders(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """The entries of each folder by its name: a communicator, and a root where it has files for several."""
    found: dict[str, list[Entry]] = {}
    of: dict[tuple[str, tuple[int, ...]], list[Entry]] = defaultdict(list)
    for entry in entries:
        of[entry.topology, entry.communicator].append(entry)
    for (topology, communicator), its in of.items():
        ranks = ".".join(map(str, communicator))
        short = ranks if len(ranks) <= _LONGEST else f"{len(communicator)}ranks-{zlib.crc32(ranks.encode()):08x}"
        name = f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', Path(topology).name)}-{short}"
        roots = sorted({entry.root for entry in its if entry.root is not None})
        if len(roots) < 2:
            found[name] = its
        for root in roots if len(roots) > 1 else ():
            found[f"{name}-root{root}"] = [entry for entry in its if entry.root in (None, root)]
    return found


def _checked(entry: Entry) -> bytes:
    """Return a file's bytes, which must be right for what the entry serves, whatever digest the index states.

    Raises InputError where they are not, or are not those that the index was written for.
    """
    data = read_bytes(entry.path, "a file of the library", MOST_BYTES, entry.folder)
    stated = entry.stated_digest("file")
    if stated is not None and stated != hashlib.sha256(data).hexdigest():
        raise InputError(f"{origin_of(entry.path)}: is not what its entry says; see synth library check")
    verdict = verify_file(entry.path, entry.goal(), None, entry.target)
    if verdict.status == "right" and FORMATS[TARGETS[entry.target].format].converter:
        verdict = verify_program(entry.path, entry.goal())
    wrong = verdict.status
    if verdict.program is not None and verdict.status == "right":
        wrong = _other_call(entry, verdict.program)
    if wrong:
        raise InputError(f"{origin_of(entry.path)}: {wrong}; see synth library check")
    return data


def _other_call(entry: Entry, program: Program) -> str:
    """Return how a right program serves other calls than its entry says; empty where it serves these."""
    kind = KINDS.get(entry.collective)
    named = kind is not None and kind.by_name and not entry.relays and entry.goal() is None
    root = program.root if entry.root is None or not named else entry.group.index(entry.root)
    for what, is_so, stated in (
        ("collective", program.collective, entry.collective if named else CUSTOM),
        ("ranks", program.nranks, len(entry.communicator)),
        ("root", program.root, root),
        ("in place", program.inplace, entry.inplace),
        ("protocol", TARGETS[entry.target].protocols.get(program.protocol), entry.protocol),
    ):
        if is_so != stated:
            return f"{what}: is {is_so}; it must be {stated}, as its entry says"
    return ""


def _write(folder: Path, entries: Sequence[Entry], files: dict[str, bytes]) -> Folder:
    with writing(folder, "-o") as library:
        rows = []
        for entry in entries:
            name = f"{TARGETS[entry.target].folder}/{entry.path.name}"  # not where a failure's folder has it
            library.write(name, files[entry.file])
            own = {key: value for key, value in entry.values.items() if key not in (ISOMORPHIC, "sha256")}
            rows.append({**own, "file": name, "schedule": None, "proof_file": None})
        library.commit(rows)
    said = environments(load_index(folder), entries[0].target)[0]
    order = format_listed(entries[0].communicator)
    lines = [f"# ranks of {entries[0].topology} in the order of the communicator: {order}", *said.lines()]
    with replaced(folder / "env.sh") as file:
        file.write(("\n".join(lines) + "\n").encode())
    return Folder(folder, entries[0].communicator, len(entries))


def load_line(folder: Folder) -> str:
    """The command of a POSIX shell that makes an executor load it."""
    return f". {shlex.quote(str(folder.path / 'env.sh'))}"
