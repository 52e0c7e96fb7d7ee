"""Algorithms as files: one MSCCL XML each, and an index that says which serves which sizes.

Everything is checked and written under temporary names first; the index comes last, so that a reader never finds
it pointing at what is not there.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from emit.goal import Goal
from emit.lower import goal_columns, lower
from emit.msccl import NAMES, write_msccl
from synth.found import Found
from synth.frontier import Range
from synth.problem import Problem, question
from synth.statement import row
from topologies.errors import InputError

FORMAT = "synth-index-1"
_MOST_SENDS = 200_000  # an executor takes far fewer
_SMALL_BYTES = 256 << 10  # up to here LL's flags cost less than Simple's barriers


def protocol_for(served: Range) -> str:
    """LL for small messages, Simple for the rest."""
    return "LL" if served.high is not None and served.high <= _SMALL_BYTES else "Simple"


def target_for(problem: Problem, asked: str = "auto") -> str:
    """The executor to write for: the one asked for, or the first that can express the problem.

    Raises:
        InputError: the one asked for cannot, or none can.
    """
    collective = problem.collective
    if collective.fraction.max() > collective.fraction.min() * (1 + 1e-9):
        raise InputError(
            f"{collective.name}: its chunks have different sizes, which no format can say; use equal sizes"
        )
    name = "custom" if problem.relays else collective.name
    if name not in NAMES["executor-nccl"] and name not in NAMES["msccl"]:
        name = "custom"
    able = [target for target, names in NAMES.items() if name in names]
    if asked == "auto":
        return able[0]
    if asked not in able:
        what = f"{collective.name} with relays" if problem.relays else collective.name
        ways = f"use --target {' or '.join(able)}" + (" or --relay none" if problem.relays else "")
        raise InputError(f"--target {asked}: has no name for {what}; {ways}")
    return asked


def stem(found: Found, served: Range) -> str:
    """A file's name without its ending: what is asked, and the shape (unique within a library)."""
    asked = question(found.problem)
    topology = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(asked["topology"]).name)
    group = asked["group"]
    everyone = group == list(range(found.problem.topology.nranks))
    names = ".".join(map(str, group))
    if everyone:
        names = f"all{len(group)}"
    elif len(names) > 40:
        names = f"{len(group)}ranks-{zlib.crc32(names.encode()):08x}"
    parts = [asked["collective"], topology, names]
    if asked["root"] is not None:
        parts.append(f"root{asked['root']}")
    if asked["relays"]:
        relays = ".".join(map(str, asked["relays"]))
        parts.append("relay" + (relays if len(relays) <= 40 else f"{zlib.crc32(relays.encode()):08x}"))
    shape = served.algorithm
    return "-".join([*parts, f"{shape.steps}step", f"{shape.rounds}r{shape.chunks}c"])


def stems(found: Found) -> list[str]:
    """A name for each range of sizes; one algorithm can serve two of them."""
    names: list[str] = []
    for served in found.ranges:
        name = stem(found, served)
        names.append(name if name not in names else f"{name}-from{served.low}")
    return names


class Documents(NamedTuple):
    """File name → text, the index entries, and range of sizes (by number) → why it has no file."""

    texts: dict[str, str]
    entries: list[dict[str, Any]]
    refused: dict[int, str]


def documents(found: Found, target: str) -> Documents:
    """What is to be written for the algorithms found.

    Raises:
        InputError: the target cannot express the question at all.
    """
    target = target_for(found.problem, target)
    made = Documents({}, [], {})
    for number, (served, name) in enumerate(zip(found.ranges, stems(found), strict=True)):
        sends = len(served.algorithm.schedule)
        try:
            if sends > _MOST_SENDS:
                raise InputError(f"an executor's file of {sends} sends would be too large")
            program, goal = lower(
                served.algorithm,
                name[:63],
                protocol_for(served),
                min_bytes=served.low,
                max_bytes=0 if served.high is None else served.high,
                target=target,
            )
        except InputError as error:
            made.refused[number] = str(error)
            continue
        made.texts[f"{name}.xml"] = write_msccl(program, goal, target)
        made.entries.append(
            {
                **question(found.problem),
                "file": f"{name}.xml",
                "target": target,
                "protocol": program.protocol,
                "inplace": program.inplace,
                "communicator": list(found.problem.ranks),
                **row(found, served),
                # what the file must achieve, where its own words do not say it
                "goal": None
                if goal is None
                else {"nranks": program.nranks, **goal_columns(served.algorithm.problem.collective)},
            }
        )
    return made


def save(found: Found, folder: str | Path, target: str = "auto") -> list[Path]:
    """Write the algorithms and `index.json`; entries of the index for other questions stay.

    Raises:
        InputError: nothing found, a target that cannot express it, or a folder that cannot be written.
    """
    if not found.ranges:
        raise InputError("nothing to write: no algorithm was found")
    made = documents(found, target)
    for reason in made.refused.values():
        raise InputError(reason)
    return write_documents(found, folder, made)


def write_documents(found: Found, folder: str | Path, made: Documents) -> list[Path]:
    """Write what `documents` made, and the index.

    Raises:
        InputError: a folder that cannot be written.
    """
    where = Path(folder)
    texts, entries = made.texts, made.entries
    if not texts:
        return []
    try:
        where.mkdir(parents=True, exist_ok=True)
        kept, stale = _others(where / "index.json", question(found.problem), entries[0]["target"])
        index = {"format": FORMAT, "algorithms": [*kept, *entries]}
        texts = texts | {"index.json": json.dumps(index, indent=1, ensure_ascii=False) + "\n"}
        _write_all(where, texts)
        for name in stale - texts.keys():
            (where / name).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"--out {where}: cannot be written ({error.strerror or error})") from None
    return [where / name for name in texts]


def _others(path: Path, asked: dict[str, Any], target: str) -> tuple[list[dict[str, Any]], set[str]]:
    """Entries of an index that answer other questions, and the files of those that are to be replaced."""
    if not path.exists():
        return [], set()
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
        if old["format"] != FORMAT:
            raise ValueError
        entries = list(old["algorithms"])
        mine = [e for e in entries if {k: e.get(k) for k in asked} == asked and e.get("target") == target]
        files = {str(e["file"]) for e in mine}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(
            f"{path}: is there already and is not an index of ours (format {FORMAT}); give another --out"
        ) from None
    own = {name for name in files if re.fullmatch(r"[A-Za-z0-9_.-]+\.xml", name)}
    return [e for e in entries if e not in mine], own


def _write_all(where: Path, texts: dict[str, str]) -> None:
    ready: list[tuple[str, Path]] = []
    try:
        for name, text in texts.items():
            handle, temporary = tempfile.mkstemp(prefix=".synth-", dir=where)
            ready.append((temporary, where / name))
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
        while ready:
            os.replace(*ready[0])
            ready.pop(0)
    finally:
        for temporary, _ in ready:
            Path(temporary).unlink(missing_ok=True)


def goal_beside(path: Path) -> Goal | None:
    """The goal of a file whose own words do not say it, from the index that stands beside it."""
    index = path.parent / "index.json"
    try:
        entries = json.loads(index.read_text(encoding="utf-8"))["algorithms"]
        entry = next(e for e in entries if e.get("file") == path.name)
        goal = entry["goal"]
        if goal is None:
            return None
        return Goal.from_arrays(int(goal["nranks"]), *(tuple(goal[part]) for part in ("initial", "required")))
    except (OSError, ValueError, KeyError, TypeError, StopIteration, AttributeError, RecursionError):
        return None
