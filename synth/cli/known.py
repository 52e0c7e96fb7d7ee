"""Answers of the commands that search, kept by all that was asked: the same question again needs no search.

A cache saves the search and never the check. What is kept of an answer are its schedules, the witnesses of its bound
and its programs as files. Whoever takes it from the cache replays the schedules on the network of the question, works
the bound out from the witnesses, checks and times the programs, and then goes on as after a search.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from emit.library.index import INDEX, Entry, index_text, load_index
from emit.library.programs import Programs, executor_for
from emit.library.restored import restored_program
from emit.library.save import Saved
from emit.library.standing import File
from emit.library.write import standing
from synth.baselines import baseline
from synth.bounds.prove import Bound
from synth.bounds.witness import Witness
from synth.cli.options import Asked
from synth.engines.registry import ENGINES
from synth.model.problem import LARGEST, question
from synth.search.frontier import Contender, Range
from synth.search.plans import SINGLE
from synth.search.result import SearchResult
from synth.storage.bundle import pack, unpack
from synth.storage.cache import Cache, engines_version
from synth.storage.proof import check_proof, load_proof, save_proof
from synth.storage.schedule_file import load_schedule, save_schedule
from synth.synthesis import Question
from synth.verify.algorithm import Algorithm
from topologies.errors import HOSTILE, InputError, VerificationError
from topologies.text.fields import Fields
from topologies.text.files import origin_of

_FORMAT = "synth-known-3"
_OPTIONS_OF_THE_ANSWER = ("size", "chunks", "steps", "rounds", "engine", "seed", "proof")
_PROOF = "bound.proof.json"
_MOST_ALGORITHMS = 1000
_MOST_BYTES = 1 << 62  # of a message
_MOST_S = 1e9


@dataclass
class Known:
    """An answer from the cache, checked.

    Attributes:
        found: As a search would have ended with it, with the programs of the usual form of calls.
        other_form: The same with the programs of the other form, in or out of place; None where none are kept.
    """

    found: SearchResult
    other_form: SearchResult | None


def known_key(asked: Asked, problem: Question) -> str:
    """Return what tells an answer from others: the problem, its topology, what is pinned, and the class of budget."""
    options = [getattr(asked, name) for name in _OPTIONS_OF_THE_ANSWER]
    about = [
        _FORMAT, engines_version(), options, problem.target, problem.sms, problem.groups_overlap,
        problem.scratch_limit, problem.unsaid, math.ceil(math.log2(asked.budget)),
    ]  # fmt: skip
    digest = hashlib.sha256(json.dumps(about).encode())
    for stated in (problem.problem, problem.healthy):
        if stated is None:
            continue
        for part in (stated.topology, stated.collective, stated.group, stated.relays, stated.quotient is None):
            _add(digest, part)
    return digest.hexdigest()[:40]


def of_question(entries: Iterable[Entry], problem: Question) -> list[Entry]:
    """Return the entries of a library for a question, for all targets."""
    asked = question(problem.problem)
    return [entry for entry in entries if all(entry.values[key] == value for key, value in asked.items())]


def keep(cache: Cache, key: str, written: Saved) -> None:
    """Keep what a search came to.

    Nothing is kept where the cache cannot be written; of a network with dead parts, whose healthy twin would have to be
    kept too; and where no time was left to write a program, since another search may have it.

    Args:
        written: The answer as it was written to a library that had no files for the question.
    """
    found = written.found
    if found.healthy is not None or not found.ranges:
        return
    forms = [written] + ([written.other_form] if written.other_form is not None else [])
    if (written.refused and found.ended) or any(
        _is_unwritten(served, file) for form in forms for served, file in _ranges_and_files(form)
    ):
        return
    algorithms = list(dict.fromkeys(served.algorithm for form in forms for served in form.found.ranges))
    algorithms += [one.algorithm for one in found.refused if one.algorithm not in algorithms]
    place = {id(algorithm): number for number, algorithm in enumerate(algorithms)}
    about = {
        "format": _FORMAT,
        "seconds": found.seconds,
        "ended": found.ended,
        "algorithms": len(algorithms),
        "forms": [[_state_range(served, file, place) for served, file in _ranges_and_files(form)] for form in forms],
        "refused": [[place[id(one.algorithm)], one.refused] for one in found.refused],
        "decisive": found.bound.witnesses.index(found.bound.at(found.ranges[0].shown)[1]),
        "bound_s": [found.bound_s.get(witness) for witness in found.bound.witnesses],
        "queue": found.queue,
        "other_engines": found.other_engines,
        "asked_sizes": sorted(found.asked_sizes),
        "refutable": found.refutable,
    }
    with suppress(OSError, InputError, VerificationError), tempfile.TemporaryDirectory() as folder:
        files = {file.entry["file"]: file.text.encode() for form in forms for file in form.made if file is not None}
        shown = found.ranges[0].shown
        for number, algorithm in enumerate(algorithms):
            path = save_schedule(Path(folder) / f"{number}.synth", algorithm, shown)
            files[path.name] = path.read_bytes()
        time_us = algorithms[0].time_us(shown)
        proof = save_proof(Path(folder) / "0.synth", found.problem, found.bound.witnesses, shown, time_us)
        files[_PROOF] = proof.read_bytes()
        cache.put(key, pack(about, files))


def take(cache: Cache, key: str, folder: Path, problem: Question) -> Known | None:
    """Return the answer that is kept for a question, checked; None where the question must be searched.

    Args:
        folder: The library that the answer is for. Where it has other files for the question, another search may find
            better ones.

    Raises:
        InputError: What is kept is not right. It is removed from the cache.
    """
    data = cache.get(key)
    if data is None:
        return None
    origin, entries = "the cache's answer", of_question(standing(folder), problem)
    try:
        about, files = unpack(data, origin)
        if not all(_has_bytes(entry.path, files.get(entry.file)) for entry in entries):
            return None
        return _restore(Fields(about, "", origin), files, problem)
    except HOSTILE as error:
        cache.remove(key)
        why = str(error).removeprefix(f"{origin}: ")
        raise InputError(f"{origin} is not believed ({why}); it is removed, and the question is searched") from None


def _ranges_and_files(form: Saved) -> Iterator[tuple[Range, File | None]]:
    return zip(form.found.ranges, form.made, strict=True)


def _is_unwritten(served: Range, file: File | None) -> bool:
    """Return whether a range has a program of which no file was written."""
    return file is None and served.contender.execution is not None


def _state_range(served: Range, file: File | None, place: Mapping[int, int]) -> dict[str, Any]:
    contender = served.contender
    return {
        "algorithm": place[id(contender.algorithm)],
        "low": served.low,
        "high": served.high,
        "shown": served.shown,
        "refused": contender.refused,
        "found_s": contender.found_s,
        "entry": None if file is None else {**file.entry, "schedule": None, "proof_file": None},
    }


def _restore(about: Fields, files: Mapping[str, bytes], asked: Question) -> Known:
    """Return what a bundle holds, each part of it checked. Raises InputError or VerificationError."""
    if about.string("format") != _FORMAT:
        about.fail("format", f"must be {_FORMAT}")
    problem, origin = asked.problem, about.origin
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        algorithms = []
        for number in range(about.integer("algorithms", 1, _MOST_ALGORITHMS)):
            path = folder / f"{number}.synth"
            path.write_bytes(_member(files, path.name, origin))
            algorithms.append(load_schedule(path).algorithm_of(problem))
        path = folder / _PROOF
        path.write_bytes(_member(files, _PROOF, origin))
        proof = load_proof(path)
        size = proof.question.get("size_bytes")
        if type(size) is not float:
            about.fail(_PROOF, "states no size")
        check_proof(problem, proof, size)
        forms = about.values.get("forms")
        if not isinstance(forms, list) or not 1 <= len(forms) <= 2:
            about.fail("forms", "must be one or two lists of ranges")
        programs = executor_for(
            problem, asked.target, asked.sms, asked.groups_overlap, asked.scratch_limit, size=asked.options.size
        )
        ranges = [
            _ranges(rows, algorithms, files, folder / str(number), about, _of_form(programs, number))
            for number, rows in enumerate(forms)
        ]
    found = SearchResult(
        problem,
        ranges=ranges[0],
        bound=_bound(proof.witnesses, about),
        baselines=_baselines(asked, Bound(proof.witnesses)),
        engine=asked.options.engine,
        unsaid=asked.unsaid,
        ended=about.matching("ended", "budget", "budget, or empty"),
        seconds=about.number("seconds", 0.0, _MOST_S, "s"),
    )
    _check_sizes(found, asked, about)
    _add_figures(found, about, algorithms)
    return Known(found, None if len(ranges) == 1 else replace(found, ranges=ranges[1]))


def _bound(witnesses: tuple[Witness, ...], about: Fields) -> Bound:
    """Return the witnesses in the order in which the search had them; a proof has the decisive one first."""
    place = about.integer("decisive", 0, len(witnesses) - 1)
    return Bound((*witnesses[1 : place + 1], witnesses[0], *witnesses[place + 1 :]))


def _of_form(programs: Programs | None, number: int) -> Programs | None:
    return programs if programs is None or number == 0 else programs.other_form()


def _ranges(
    rows: Any,
    algorithms: Sequence[Algorithm],
    files: Mapping[str, bytes],
    folder: Path,
    about: Fields,
    programs: Programs | None,
) -> list[Range]:
    """Return the ranges of one form of calls, each with its program where a file of it is kept."""
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        about.fail("forms", "must be lists of ranges")
    tables = [Fields(row, "", f"{about.origin}: range {number}") for number, row in enumerate(rows, 1)]
    entries = _entries([row["entry"] for row in rows if isinstance(row.get("entry"), dict)], files, folder)
    ranges = []
    for table in tables:
        algorithm = algorithms[table.integer("algorithm", 0, len(algorithms) - 1)]
        low = table.integer("low", 0, _MOST_BYTES)
        high = None if table.values.get("high") is None else table.integer("high", low, _MOST_BYTES)
        shown = table.integer("shown", max(1, low), high or _MOST_BYTES)
        contender = Contender(algorithm, refused=_words(table, "refused"), found_s=_seconds(table, "found_s"))
        if isinstance(table.values.get("entry"), dict):
            if programs is None:
                table.fail("entry", "must be null, as no file is asked for")
            entry = next(entries)
            contender.execution = by = restored_program(entry, algorithm, programs)
            if by.served(low, high) != (entry.min_bytes, entry.max_bytes):
                table.fail("low", "must be the sizes that the file is for")
        ranges.append(Range(contender, low, high, shown))
    return ranges


def _entries(rows: Sequence[Mapping[str, Any]], files: Mapping[str, bytes], folder: Path) -> Iterator[Entry]:
    """Write files into a folder of their own and return the entries of an index that names them."""
    folder.mkdir()
    (folder / INDEX).write_bytes(index_text(rows))
    entries = load_index(folder)
    for entry in entries:
        entry.path.parent.mkdir(exist_ok=True)
        entry.path.write_bytes(_member(files, entry.file, origin_of(INDEX)))
    return iter(entries)


def _check_sizes(found: SearchResult, asked: Question, about: Fields) -> None:
    """Raise InputError where the ranges leave a gap between two sizes, or are for other sizes than what is asked."""
    size, ranges = asked.options.size, found.ranges
    first, last = (0, LARGEST) if size is None else (size, size)
    ends = [_MOST_BYTES if served.high is None else served.high for served in ranges]
    is_whole = all(end + 1 == served.low for end, served in zip(ends, ranges[1:], strict=False))
    if ranges[0].low != first or ends[-1] < last or not is_whole:
        about.fail("forms", "must cover the sizes that are asked for")


def _baselines(asked: Question, bound: Bound) -> list[Algorithm]:
    """Return what a library would run, for the questions of which a search makes it."""
    problem, options = asked.problem, asked.options
    [stage] = [stage for stage in SINGLE.stages if stage.engine == "baseline"]
    if ENGINES["baseline"].accepts(problem, options) or not stage.suits(problem, options.size, bound):
        return []
    problems = [problem.under(name) for name in problem.protocols] or [problem]
    return [algorithm for one in problems for algorithm in baseline(one)]


def _add_figures(found: SearchResult, about: Fields, algorithms: Sequence[Algorithm]) -> None:
    """Add what only describes the search: nothing of it says how good the answer is."""
    seconds = about.values.get("bound_s")
    if isinstance(seconds, list):
        figures = zip(found.bound.witnesses, seconds, strict=False)
        found.bound_s = {
            witness: float(at) for witness, at in figures if type(at) in (int, float) and 0 <= at < _MOST_S
        }
    found.queue = tuple(name for name in about.strings("queue") if name in ENGINES)
    engines = {served.algorithm.engine for served in found.ranges}
    found.other_engines = tuple(name for name in about.strings("other_engines") if name in engines)
    sizes = about.values.get("asked_sizes")
    found.asked_sizes = {size for size in sizes if type(size) is int} if isinstance(sizes, list) else set()
    if about.values.get("refutable") is not None:
        found.refutable = about.integer("refutable", 1, _MOST_BYTES)
    refused = about.values.get("refused")
    for pair in refused if isinstance(refused, list) else []:
        if not isinstance(pair, list) or len(pair) != 2:
            about.fail("refused", "must be pairs of an algorithm and why it has no file")
        table = Fields(dict(zip(("algorithm", "refused"), pair, strict=False)), "", f"{about.origin}: refused")
        number = table.integer("algorithm", 0, len(algorithms) - 1)
        found.refused.append(Contender(algorithms[number], refused=_words(table, "refused")))


def _words(table: Fields, key: str) -> str:
    text = table.string(key, "")
    if len(text) > 1000 or not text.isprintable():
        table.fail(key, "must be at most 1000 printable characters")
    return text


def _seconds(table: Fields, key: str) -> float | None:
    return None if table.values.get(key) is None else table.number(key, 0.0, _MOST_S, "s")


def _member(files: Mapping[str, bytes], name: str, origin: str) -> bytes:
    if name not in files:
        raise InputError(f"{origin}: {name} is missing")
    return files[name]


def _has_bytes(path: Path, data: bytes | None) -> bool:
    try:
        return data is not None and path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False


def _add(digest: Any, value: object) -> None:
    """Add all of a value to a digest, with every element of its arrays."""
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            digest.update(field.name.encode())
            _add(digest, getattr(value, field.name))
    elif isinstance(value, tuple | list):
        digest.update(f"[{len(value)}".encode())
        for item in value:
            _add(digest, item)
    else:
        digest.update(repr(value).encode())
