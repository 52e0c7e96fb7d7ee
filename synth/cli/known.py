"""Answers of the commands that search, kept by all that was asked: the same question again is answered at once.

What is kept is what the command printed and wrote. It is taken where the library at hand has nothing for the question,
or these very files; where it has others, the command searches, and the better ones stay.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from emit.library.index import Entry, load_index
from emit.library.save import Saved
from emit.library.write import standing, writing
from synth.cli.options import Asked
from synth.model.problem import question
from synth.storage.cache import Cache, engines_version
from synth.synthesis import Question

_FORMAT = "synth-known-1"
_OF_THE_ANSWER = ("size", "chunks", "steps", "rounds", "engine", "seed", "proof")
_KINDS = ("file", "schedule", "proof_file")


def known_key(asked: Asked, problem: Question) -> str:
    """What tells the answer from others: the problem, its topology, what is pinned, for whom, the class of budget."""
    stated = [getattr(asked, name) for name in _OF_THE_ANSWER]
    about = [
        _FORMAT, engines_version(), stated, problem.target, problem.sms, problem.groups_overlap, problem.scratch_limit,
        problem.unsaid, math.ceil(math.log2(asked.budget)),
    ]  # fmt: skip
    digest = hashlib.sha256(json.dumps(about).encode())
    for one in (problem.problem, problem.healthy):
        if one is None:
            continue
        for part in (one.topology, one.collective, one.group, one.relays, one.quotient is None):
            _add(digest, part)
    return digest.hexdigest()[:40]


def of_question(entries: Iterable[Entry], problem: Question) -> list[Entry]:
    """The entries of a library for a question, whoever its files are for."""
    asked = question(problem.problem)
    return [entry for entry in entries if all(entry.values[key] == value for key, value in asked.items())]


def keep(cache: Cache, key: str, document: Mapping[str, Any], parts: list[str], written: Saved, folder: Path) -> None:
    """Keep what a command printed and wrote; nothing where the cache cannot be written."""
    forms = [written] + ([written.other_form] if written.other_form is not None else [])
    names = {p.relative_to(folder).as_posix() for form in forms for files in form.files for p in files.values()}
    rows = [dict(e.values) for e in load_index(folder) if e.file in names] if written.index is not None else []
    data = {name: b64encode((folder / name).read_bytes()).decode() for name in sorted(names)}
    shown = json.loads(json.dumps(document))
    for key_of_rows in ("algorithms", "other_form"):
        for row in shown.get(key_of_rows, ()):
            row |= {kind: Path(row[kind]).relative_to(folder).as_posix() for kind in _KINDS if kind in row}
    kept = {"format": _FORMAT, "document": shown, "parts": parts, "rows": rows, "files": data}
    with suppress(OSError):  # a full disk costs the next one a search
        cache.put(key, json.dumps(kept, ensure_ascii=False).encode())


def take(cache: Cache, key: str, asked: Asked, problem: Question) -> tuple[dict[str, Any], list[str]] | None:
    """What is known: the document and the parts of the last line, its files written; None where it must be searched."""
    data = cache.get(key)
    kept = None if data is None else json.loads(data)
    if kept is None:
        return None
    folder, files = Path(asked.out), {name: b64decode(text) for name, text in kept["files"].items()}
    entries = standing(folder)
    there = of_question(entries, problem)
    same = bool(there or not kept["rows"]) and {e.file for e in there} == {row["file"] for row in kept["rows"]}
    same = same and all(_holds(folder / name, data) for name, data in files.items())
    taken = {entry.file for entry in entries} - {entry.file for entry in there}
    if not same and ((there and not asked.replace) or not taken.isdisjoint(files)):
        return None
    if not same:
        with writing(folder) as library:
            for name, content in files.items():
                library.write(name, content)
            library.commit(kept["rows"])
    document = kept["document"]
    for key_of_rows in ("algorithms", "other_form"):
        for row in document.get(key_of_rows, ()):
            row |= {kind: str(folder / row[kind]) for kind in _KINDS if kind in row}
    where = "the library has these files" if same else f"{len(files)} files → {folder}"
    return document, [*kept["parts"], where, f"from the cache: no search, which took {document['seconds']:.1f} s"]


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False


def _add(digest: Any, value: object) -> None:
    """All of a value, with every element of its arrays."""
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            digest.update(field.name.encode())
            _add(digest, getattr(value, field.name))
    elif isinstance(value, tuple | list):
        digest.update(f"[{len(value)}".encode())
        for one in value:
            _add(digest, one)
    else:
        digest.update(repr(value).encode())
