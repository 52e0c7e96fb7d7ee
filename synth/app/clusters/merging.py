"""The merge of a new answer with the files that a library has for the question: at each size the faster file stays."""

from __future__ import annotations

import hashlib
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emit.library.entry import IndexEntry
from emit.library.library_file import read_again, requirement_of
from emit.library.programs import Programs
from emit.library.saving.existing import Outcome, PlacedFile, place
from emit.library.saving.save import prove_again, proved_before
from synth.app.clusters.task import Answer
from synth.bounds.prove import Bound
from synth.model.problem import Problem
from synth.search.result import SearchResult
from synth.search.settings import TargetSettings
from synth.storage.proof import proof_path


@dataclass(frozen=True)
class Merged:
    """The files of a question after a merge.

    Attributes:
        entries: Entries of the index, those of kept files included.
        files: Bytes of each file that is to be written, by its name in the library.
        unfiled: Ranges of sizes without a file, as `Answer.unfiled` has them.
    """

    entries: Sequence[IndexEntry]
    files: Mapping[str, bytes]
    unfiled: Sequence[Mapping[str, Any]]


def merge_answer(answer: Answer, problem: Problem, existing: Sequence[IndexEntry], folder: Path) -> Merged:
    """Return the files of a question: at each size the faster of the answer's file and of the library's.

    A library's file that was changed since it was written, or that does not answer the question, is left out.

    Args:
        answer: The answer, with the names and ranks of the question.
        problem: The question, with one chunk a block.
        existing: The library's entries for the question, for all targets.
        folder: The library.
    """
    intact = [entry for entry in existing if _is_intact(entry)]
    if not intact or any(row.get("padding") for row in (*answer.rows, *(entry.row for entry in intact))):
        return Merged([IndexEntry.of(row, folder) for row in answer.rows], answer.files, answer.unfiled)
    with tempfile.TemporaryDirectory() as name:
        staging = Path(name)
        rows, unfiled, files = _beside(answer, intact)
        for path, data in files.items():
            (staging / path).parent.mkdir(exist_ok=True)
            (staging / path).write_bytes(data)
        new_entries = [IndexEntry.of(row, staging) for row in rows]
        witnesses = proved_before([*new_entries, *intact], problem)
        result = SearchResult(problem, [], bound=Bound(witnesses))
        placed = _placed(new_entries, intact, result)
        names = {path for item in placed if item.entry.folder == staging for path in item.entry.files.values()}
        names |= {row[kind] for row in unfiled for kind in ("schedule", "proof_file") if row.get(kind)}
        written = {path: files[path] for path in sorted(names & files.keys())}
        written |= {item.entry.file: item.text.encode() for item in placed if item.text is not None}
        written |= prove_again(placed, result, staging)
        entries = [replace(item.entry, folder=folder) for item in placed]
    filed = {entry.target: [e for e in entries if e.target == entry.target] for entry in entries}
    unfiled = [
        row
        for row in unfiled
        if row.get("shown_bytes") is None
        or not any(entry.in_range(row["shown_bytes"]) for entry in filed.get(row["target"], ()))
    ]
    return Merged(entries, written, unfiled)


def _beside(
    answer: Answer, existing: Iterable[IndexEntry]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, bytes]]:
    """Return an answer's rows, its rows without a file, and its files.

    Schedules are renamed whose names existing files with other contents have.
    """
    rows, unfiled = ([dict(row) for row in some_rows] for some_rows in (answer.rows, answer.unfiled))
    files = dict(answer.files)
    stored = {name: entry.inside(name) for entry in existing for kind, name in entry.files.items() if kind != "file"}
    for name in [name for name in files if name.endswith(".synth") and name in stored]:
        proof_name = proof_path(name).as_posix()
        pair = [path for path in (name, proof_name) if path in files]
        if all(path in stored and stored[path].read_bytes() == files[path] for path in pair):
            continue
        digest = zlib.crc32(b"".join(files[path] for path in pair))
        new_name = f"{name.removesuffix('.synth')}-{digest:08x}.synth"
        new_names = {name: new_name, proof_name: proof_path(new_name).as_posix()}
        for path in pair:
            files[new_names[path]] = files.pop(path)
        for row in (*rows, *unfiled):
            for kind in ("schedule", "proof_file"):
                if row.get(kind):
                    row[kind] = new_names.get(row[kind], row[kind])
    return rows, unfiled, files


def _placed(
    new_entries: Sequence[IndexEntry], existing: Sequence[IndexEntry], result: SearchResult
) -> list[PlacedFile]:
    """Return the files of all targets and forms of calls as the library will hold them; nothing is written.

    Args:
        new_entries: Entries of new files, in a folder of their own.
        existing: Entries of the library.
        result: The question, with the bound of all proofs.
    """
    placed: list[PlacedFile] = []
    forms = dict.fromkeys((entry.target, entry.inplace) for entry in (*new_entries, *existing))
    for target, inplace in forms:
        requirement = requirement_of(Programs(result.problem, TargetSettings(target)))
        new, old = (
            [entry for entry in entries if (entry.target, entry.inplace) == (target, inplace)]
            for entries in (new_entries, existing)
        )
        new_files = [replace(read_again(entry, requirement), existed=False) for entry in new]
        used_names = [entry.file for entry in existing if entry not in old]
        used_names += [item.entry.file for item in placed]
        placed += place(new_files, old, requirement, Outcome(), used_names, result)
    return placed


def _is_intact(entry: IndexEntry) -> bool:
    """Return whether an entry's files have the bytes that were written."""
    try:
        return all(
            entry.stated_digest(kind) in (None, hashlib.sha256(entry.inside(name).read_bytes()).hexdigest())
            for kind, name in entry.files.items()
        )
    except OSError:
        return False
