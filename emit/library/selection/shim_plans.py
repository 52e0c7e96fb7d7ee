"""Plans of a library in the folder from which MSCCL++'s shim for NCCL loads plans without any Python.

The shim reads four file names from the folder `default` of $MSCCLPP_CACHE_DIR, each for one number of ranks and of
ranks a node. What a plan does, its message sizes and its form of calls stand in the plan. Source: MSCCL++ 0.9.0
(1f5f065, August 2026), src/ext/collectives/algorithm_collection_builder.cc, and src/ext/nccl for the choice of a plan.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from emit.library.entry import IndexEntry, vs_library
from emit.library.library_file import MOST_BYTES
from emit.library.selection.export import checked_bytes
from synth.storage.columns import replaced
from topologies.errors import InputError
from topologies.text.files import origin_of, parse_json, read_bytes, read_text

TARGET = "mscclpp"


class Slot(NamedTuple):
    """A file name that the shim reads, and the communicators for which it does.

    Attributes:
        name: The file's name.
        nranks: Number of ranks of the communicator.
        ranks_per_node: Number of its ranks on each node.
    """

    name: str
    nranks: int
    ranks_per_node: int


SLOTS = (
    Slot("allreduce_2nodes_1K_64K.json", 16, 8),
    Slot("allreduce_2nodes_128K_2M.json", 16, 8),
    Slot("allreduce_4nodes_1K_64K.json", 32, 8),
    # MSCCL++'s own installer writes this plan for 32 ranks, 8 a node, but the shim reads it for these.
    Slot("allreduce_4nodes_128K_2M.json", 64, 4),
)
_SHAPES = ", ".join(dict.fromkeys(f"{slot.nranks} ({slot.ranks_per_node} a node)" for slot in SLOTS))
_NO_SLOT = f"the shim reads plans for {_SHAPES} ranks only"
# The shim compares no root, and takes a reduce-scatter in place for one on rank 0 only, so that other ranks would hang.
COLLECTIVES = ("allreduce", "allgather")
_RECORD, _FORMAT = "synth-installed.json", "synth-installed-1"
_KEPT = ".before-synth"  # ending of a file that had one of the names before
_MOST_RECORD = 1 << 16  # bytes


def mscclpp_plan_dir() -> Path:
    """Return the folder from which MSCCL++'s shim loads plans: `default` in $MSCCLPP_CACHE_DIR or ~/.cache/mscclpp."""
    return Path(os.environ.get("MSCCLPP_CACHE_DIR") or Path.home() / ".cache" / "mscclpp") / "default"


@dataclass(frozen=True)
class PlanChoice:
    """Which plans of a library go to which of the shim's names.

    Attributes:
        placed: The entry for each slot that gets one.
        reasons: Why entries get none, each with the number of entries.
    """

    placed: dict[Slot, IndexEntry]
    reasons: Counter[str]


def choose_plans(
    entries: Sequence[IndexEntry], nodes: Sequence[int], *, inplace: bool = True, only_sums: bool = False
) -> PlanChoice:
    """Choose the plans of one communicator for the shim's names.

    If there are more plans than names, those that gain most over NCCL's own algorithm are chosen. Names are given in
    the order of SLOTS to the chosen plans by their smallest message. Only allreduce and allgather qualify.

    Args:
        entries: Entries of plans, one or more, for one communicator without relays.
        nodes: Node of each rank of the topology.
        inplace: Whether the plans are for calls in place; the shim supposes one form for all plans of a process.
        only_sums: Whether the user states that all calls of collectives that reduce are sums; without it, allreduce is
            left out.
    """
    reasons: Counter[str] = Counter()
    slots = _slots_of(entries[0].communicator, nodes)
    fitting: list[IndexEntry] = []
    for entry in entries:
        if reason := _unfit(entry, inplace, only_sums) or (_NO_SLOT if not slots else ""):
            reasons[reason] += 1
        else:
            fitting.append(entry)
    fitting.sort(key=lambda entry: (-_sure_gain(entry), entry.min_bytes))
    if len(fitting) > len(slots):
        reasons["the shim reads no further name for so many ranks and ranks a node"] = len(fitting) - len(slots)
    chosen = sorted(fitting[: len(slots)], key=lambda entry: entry.min_bytes)
    return PlanChoice(dict(zip(slots, chosen, strict=False)), reasons)


def _sure_gain(entry: IndexEntry) -> float:
    """Return NCCL's time divided by the entry's, by the lower end of the interval where one is stated; 1 if unknown."""
    return vs_library(entry.row, "NCCL", "vs_low") or vs_library(entry.row, "NCCL") or 1.0


def _slots_of(communicator: Sequence[int], nodes: Sequence[int]) -> list[Slot]:
    """Return the slots for a communicator, in the order of SLOTS, maybe none.

    Its ranks must fill equal blocks of nodes in order. `nodes` holds the node of each rank of the topology.
    """
    own_nodes = [nodes[rank] for rank in communicator]
    counts = Counter(own_nodes)
    ranks_per_node = max(counts.values())
    blocks = [own_nodes[at : at + ranks_per_node] for at in range(0, len(own_nodes), ranks_per_node)]
    if set(counts.values()) != {ranks_per_node} or any(len(set(block)) > 1 for block in blocks):
        return []
    return [slot for slot in SLOTS if (slot.nranks, slot.ranks_per_node) == (len(own_nodes), ranks_per_node)]


def _unfit(entry: IndexEntry, inplace: bool, only_sums: bool) -> str:
    """Return why the shim must not load an entry's file, whatever its communicator; "" if it may."""
    if entry.collective not in COLLECTIVES:
        return f"the shim must choose plans of {' and '.join(COLLECTIVES)} only"
    if entry.collective == "allreduce" and not only_sums:
        return "plans sum, but the shim runs them for a maximum too; give --only-sums if all calls are sums"
    if entry.inplace != inplace:
        return f"only plans for calls {'in' if inplace else 'out of'} place are installed, as all must have one form"
    return ""


def install_plans(placed: dict[Slot, IndexEntry], folder: Path) -> list[str]:
    """Write plans under the shim's names, and return the names of the files that were there before and are kept.

    A file that is not ours and has one of the names, or another name that the shim reads for the same communicators, is
    kept under another name: the shim takes any of two plans that serve a call. Our own earlier files of these names are
    replaced or removed. A record in the folder lets `undo_plans` restore it, also after a call that was killed.

    Args:
        placed: The entry for each slot.
        folder: The folder; it is made if it does not exist.

    Returns:
        The new names of the files that are kept, which end in .before-synth.

    Raises:
        InputError: A plan is not what its entry says, a file is kept already, or the folder cannot be written.
    """
    files = {slot.name: checked_bytes(entry) for slot, entry in placed.items()}
    shapes = {(slot.nranks, slot.ranks_per_node) for slot in placed}
    names = [slot.name for slot in SLOTS if (slot.nranks, slot.ranks_per_node) in shapes]
    with _locked(folder):
        record = _Record.read(folder)
        ours = [name for name in names if record.is_ours(folder, name)]
        displaced = [name for name in names if name not in ours and os.path.lexists(folder / name)]
        for name in displaced:
            if os.path.lexists(_kept(folder, name)):
                raise InputError(
                    f"{origin_of(folder)}: {name} was changed since {name}{_KEPT} was kept; move one of them"
                )
        # Both old and new files count as ours until all are written.
        record.kept |= set(displaced)
        for name, data in files.items():
            record.digests.setdefault(name, set()).add(_digest(data))
        record.write(folder)
        for name in displaced:
            os.rename(folder / name, _kept(folder, name))
        for name in names:
            if name in files:
                with replaced(folder / name) as file:
                    file.write(files[name])
            else:
                (folder / name).unlink(missing_ok=True)
        record.digests |= {name: {_digest(files[name])} if name in files else set() for name in names}
        record.write(folder)
    return [f"{name}{_KEPT}" for name in displaced]


def undo_plans(folder: Path) -> list[str]:
    """Remove the plans that `install_plans` wrote, restore what had their names before, and return a line on each file.

    A file that was changed since stays, and so does the record of it while a file that was kept waits for its name.

    Raises:
        InputError: Nothing is installed there, the record is not ours, or the folder cannot be written.
    """
    if not os.path.lexists(folder / _RECORD):
        raise InputError(f"--undo: {origin_of(folder)} has no plans of synth")
    done = []
    with _locked(folder):
        record = _Record.read(folder)
        waiting = set()
        for name in (slot.name for slot in SLOTS if slot.name in record.digests or slot.name in record.kept):
            is_kept = os.path.lexists(_kept(folder, name))
            if name in record.kept and not is_kept:
                # A killed installation had not come to it, so the file is not ours; or somebody moved what was kept.
                if record.has_digest(folder, name):
                    done.append(f"{name}: stays, because {name}{_KEPT} is gone; remove it if it is not yours")
                continue
            if os.path.lexists(folder / name) and not record.is_ours(folder, name):
                done.append(f"{name}: was changed since, and stays")
                if is_kept:
                    done.append(f"{name}{_KEPT}: is what was there before")
                    waiting.add(name)
            elif is_kept:
                os.replace(_kept(folder, name), folder / name)
                done.append(f"{name}: restored")
            elif os.path.lexists(folder / name):
                (folder / name).unlink()
                done.append(f"{name}: removed")
        record.digests, record.kept = {}, waiting
        if waiting:
            record.write(folder)
        else:
            (folder / _RECORD).unlink()
    return done


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Make a folder and lock it against other installations; raise InputError for an OSError inside.

    It waits for another installation without an end. Where the file system has no locks, the folder is not locked.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        try:
            with suppress(OSError):  # Some file systems have no locks.
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error}); it must be a folder you may write to"
        raise InputError(f"{origin_of(folder)}: {reason}") from None


def _kept(folder: Path, name: str) -> Path:
    """Return the path under which a file is kept that had one of the names before."""
    return folder / f"{name}{_KEPT}"


def _digest(data: bytes) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


@dataclass(eq=False)
class _Record:
    """What was installed in a folder.

    Attributes:
        digests: SHA-256 of each file that is ours, by name; several while an installation replaces it.
        kept: Names whose files are only ours if a file with that name is kept.
    """

    digests: dict[str, set[str]] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, folder: Path) -> _Record:
        """Return the record of a folder, empty if there is none; raise InputError if it is not one of ours."""
        path = folder / _RECORD
        if not os.path.lexists(path):
            return cls()
        expected = f"a record of synth ({_FORMAT})"
        document = parse_json(read_text(path, expected, _MOST_RECORD), origin_of(path), expected)
        names = {slot.name for slot in SLOTS}
        digests, kept = (document.get(key) if isinstance(document, dict) else None for key in ("files", "kept"))
        if (
            not isinstance(digests, dict)
            or not isinstance(kept, list)
            or document.get("format") != _FORMAT
            or not all(name in names and isinstance(texts, list) for name, texts in digests.items())
            or not all(isinstance(text, str) for texts in digests.values() for text in texts)
            or not all(isinstance(name, str) and name in names for name in kept)
        ):
            raise InputError(f"{origin_of(path)}: must be {expected}; remove it if it is another's")
        return cls({name: set(texts) for name, texts in digests.items()}, set(kept))

    def write(self, folder: Path) -> None:
        """Write the record to a folder, as JSON; raise InputError if that fails."""
        digests = {name: sorted(texts) for name, texts in sorted(self.digests.items()) if texts}
        document = {"format": _FORMAT, "files": digests, "kept": sorted(self.kept)}
        with replaced(folder / _RECORD) as file:
            file.write((json.dumps(document, indent=1) + "\n").encode())

    def is_ours(self, folder: Path, name: str) -> bool:
        """Return whether the file of a name is one that we wrote.

        If another file of the name is to be kept and is not yet, the file is not ours, whatever its bytes.
        """
        is_kept = os.path.lexists(_kept(folder, name))
        return (is_kept or name not in self.kept) and self.has_digest(folder, name)

    def has_digest(self, folder: Path, name: str) -> bool:
        """Return whether the file of a name has the bytes of one that we wrote.

        It has not if it is a link, is missing or cannot be read.
        """
        path = folder / name
        if path.is_symlink() or not self.digests.get(name):
            return False
        try:
            data = read_bytes(path, "an execution plan", MOST_BYTES)
        except InputError:
            return False
        return _digest(data) in self.digests[name]
