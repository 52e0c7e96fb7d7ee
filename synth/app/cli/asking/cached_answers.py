"""Answers of the commands that search, kept by all that the question states: the same question again needs no search.

A cache saves the search and never the check. It keeps the schedules of an answer, the witnesses of its bound, and its
programs as files. Whoever takes them from the cache replays the schedules on the network of the question, computes the
bound from the witnesses, checks and times the programs, and then goes on as after a search.
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
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from emit.library.entry import INDEX, IndexEntry
from emit.library.index import index_text, load_index
from emit.library.library_file import CHECKED_PER_S, LibraryFile
from emit.library.programs import Programs, executor_for
from emit.library.restored import restored_program
from emit.library.saving.save import Saved
from emit.library.saving.write import existing_entries
from synth.app.present.layout import warn
from synth.baselines import baseline
from synth.baselines.vendors import LIBRARIES
from synth.bounds.prove import Bound
from synth.engines.registry import ENGINES
from synth.model.problem import LARGEST, question
from synth.search.offer import Offer
from synth.search.plans import SINGLE
from synth.search.pool import LATE
from synth.search.question import Question
from synth.search.result import SearchResult
from synth.storage.bundle import pack, unpack
from synth.storage.cache import Cache, engines_version
from synth.storage.proof import check_proof, load_proof, save_proof
from synth.storage.schedule_file import load_schedule, save_schedule
from synth.verify.algorithm import Algorithm
from topologies.errors import HOSTILE, InputError, VerificationError
from topologies.text.fields import Fields
from topologies.text.files import origin_of

_FORMAT = "synth-known-5"
_PROOF = "bound.proof.json"
_MOST_ALGORITHMS = 1000
_MOST_BYTES = 1 << 62  # size of a message
_MOST_S = 1e9
_SOON_CHECKED = 10 * CHECKED_PER_S  # Bytes of files that are kept however little time their search took.


@dataclass
class CachedAnswer:
    """An answer from the cache, checked.

    Attributes:
        result: The search result, as a search would have ended with it, with the programs of the usual form of calls.
        other_form: The same with the programs of the other form, in or out of place; None if no such programs are kept.
    """

    result: SearchResult
    other_form: SearchResult | None


def answer_key(user_question: Question, proof: bool) -> str:
    """Return the key of an answer, 40 hexadecimal digits: a digest of all on which the answer depends.

    These are the problem and its healthy twin with their topologies, the target's settings, what is pinned, the
    versions of the engines, and the budget's class: log2 of its seconds, rounded up.

    Args:
        user_question: The question.
        proof: Whether the answer is written with its proof.
    """
    options, settings = user_question.options, user_question.settings
    pinned = [options.size, options.chunks, options.steps, options.rounds, options.engine, options.seed, proof]
    budget_class = math.ceil(math.log2(options.budget_s))
    about = [
        _FORMAT, engines_version(), pinned, *dataclasses.astuple(settings), user_question.why_switches_forward,
        budget_class,
    ]  # fmt: skip
    digest = hashlib.sha256(json.dumps(about).encode())
    for stated in (user_question.problem, user_question.healthy):
        if stated is None:
            continue
        for part in (stated.topology, stated.collective, stated.group, stated.relays, stated.quotient is None):
            _add(digest, part)
    return digest.hexdigest()[:40]


def entries_of_question(entries: Iterable[IndexEntry], user_question: Question) -> list[IndexEntry]:
    """Return those entries of a library that answer a question, for all targets, in their order."""
    fields = question(user_question.problem)
    return [entry for entry in entries if entry.answers(fields)]


def keep_answer(cache: Cache, key: str, budget_s: float, written: Saved) -> None:
    """Write the answer of a search to the cache.

    Nothing is kept in these cases: the answer has no algorithm; the network has dead or slow parts, whose healthy twin
    would have to be kept too; a program was not written to the library, or there was no time for one, since another
    search may write it; the check of the files would take longer than the search did; or the answer's files cannot be
    made. If the cache cannot be written, a warning is printed.

    Args:
        cache: The cache.
        key: Key of the answer.
        budget_s: Budget of the search in seconds.
        written: The answer as it was written to a library that had no files for the question.
    """
    result = written.result
    forms = [written] + ([written.other_form] if written.other_form is not None else [])
    rows = [_ranges_and_files(form) for form in forms]
    if not _is_kept(written, rows):
        return
    algorithms = list(dict.fromkeys(served.algorithm for form in forms for served in form.result.ranges))
    algorithms += [offer.algorithm for offer in result.refused if offer.algorithm not in algorithms]
    number_of = {id(algorithm): number for number, algorithm in enumerate(algorithms)}
    about = {
        "format": _FORMAT,
        "seconds": result.seconds,
        "ended": result.stop_reason,
        "budget_s": budget_s,
        "algorithms": len(algorithms),
        "forms": [[_state_range(served, file, number_of) for served, file in row] for row in rows],
        "refused": [[number_of[id(offer.algorithm)], offer.refused] for offer in result.refused],
        "decisive": result.bound.witnesses.index(result.bound.at(result.ranges[0].shown)[1]),
        "bound_s": [result.bound_s.get(witness) for witness in result.bound.witnesses],
        "queue": result.remaining_engines,
        "other_engines": result.other_engines,
        "asked_sizes": sorted(result.retried_sizes),
        "refutable": result.next_window_size,
    }
    with suppress(OSError, InputError, VerificationError), tempfile.TemporaryDirectory() as folder:
        files = {file.entry.file: file.text.encode() for form in forms for file in form.new_files if file is not None}
        shown = result.ranges[0].shown
        for number, algorithm in enumerate(algorithms):
            path = save_schedule(Path(folder) / f"{number}.synth", algorithm, shown)
            files[path.name] = path.read_bytes()
        time_us = algorithms[0].time_us(shown)
        proof = save_proof(Path(folder) / "0.synth", result.problem, result.bound.witnesses, shown, time_us)
        files[_PROOF] = proof.read_bytes()
        try:
            cache.put(key, pack(about, files))
        except OSError as error:
            warn(f"warning: the cache {cache.folder} cannot be written ({error.strerror or error})")


def _is_kept(written: Saved, rows: Sequence[Sequence[tuple[Offer, LibraryFile | None]]]) -> bool:
    """Return whether an answer goes to the cache (see `keep_answer`).

    Args:
        written: The answer.
        rows: Ranges of each of its forms of calls, each range with its file.
    """
    result = written.result
    if result.healthy is not None or not result.ranges or (written.refused and result.stop_reason):
        return False
    pairs = list(chain.from_iterable(rows))
    if any(file is None and offer.execution is not None and not offer.library for offer, file in pairs):
        return False
    size = sum(len(file.text) for _, file in pairs if file is not None)
    return size <= max(_SOON_CHECKED, CHECKED_PER_S * result.seconds)


def take_answer(cache: Cache, key: str, folder: Path, user_question: Question) -> CachedAnswer | None:
    """Return the answer that is kept for a question, after its check; None if the question must be searched.

    Args:
        cache: The cache.
        key: Key of the answer.
        folder: The library that the answer is for. If it has files for the question that are not those of the answer,
            the result is None, since another search may find better ones. So it is if a budget shorter than the
            question's ended the search, or came before a file was ready.
        user_question: The question.

    Raises:
        InputError: The kept answer is not right. It is removed from the cache.
    """
    data = cache.get(key)
    if data is None:
        return None
    origin, entries = "the cache's answer", entries_of_question(existing_entries(folder), user_question)
    try:
        about, files = unpack(data, origin)
        if not all(_has_bytes(entry.path, files.get(entry.file)) for entry in entries):
            return None
        fields = Fields(about, "", origin)
        is_short = bool(about.get("ended")) or LATE.partition(";")[0] in repr(about.get("refused"))
        if is_short and fields.number("budget_s", 0.0, _MOST_S, "s") < user_question.options.budget_s:
            return None
        return _restore(fields, files, user_question)
    except HOSTILE as error:
        cache.remove(key)
        why = str(error).removeprefix(f"{origin}: ")
        raise InputError(f"{origin} is not believed ({why}); it is removed, and the question is searched") from None


def take_any_answer(cache: Cache, key: str, user_question: Question) -> SearchResult | None:
    """Return the answer that is kept under a key, after its check, however its search ended; None if there is none.

    It has the programs of the usual form of calls.

    Args:
        cache: The cache.
        key: Key of the answer.
        user_question: The question that it answers.

    Raises:
        InputError: The kept answer is not right. It is removed from the cache.
    """
    data, origin = cache.get(key), "the cache's answer"
    if data is None:
        return None
    try:
        about, files = unpack(data, origin)
        return _restore(Fields(about, "", origin), files, user_question, most_forms=1).result
    except HOSTILE as error:
        cache.remove(key)
        raise InputError(f"{origin} is not believed ({error}); it is removed") from None


def _ranges_and_files(form: Saved) -> list[tuple[Offer, LibraryFile | None]]:
    """Return each range of an answer with the file that was written for it, or None if none was written."""
    return list(zip(form.result.ranges, form.new_files, strict=True))


def _state_range(served: Offer, file: LibraryFile | None, number_of: Mapping[int, int]) -> dict[str, Any]:
    """Return a range as an object of the cache's file.

    Args:
        served: The range.
        file: The file that was written for it; None without one. Names of its schedule and proof are left out.
        number_of: Number of each algorithm by its `id`.
    """
    return {
        "algorithm": number_of[id(served.algorithm)],
        "low": served.low,
        "high": served.high,
        "shown": served.shown,
        "refused": served.refused,
        "library": served.library,
        "found_s": served.elapsed_s,
        "entry": None if file is None else {**file.entry.row, "schedule": None, "proof_file": None},
    }


def _restore(about: Fields, files: Mapping[str, bytes], user_question: Question, most_forms: int = 2) -> CachedAnswer:
    """Return the answer that a bundle holds, with each part of it checked.

    Args:
        about: The bundle's object.
        files: Bytes of the bundle's files by name.
        user_question: The question that the bundle must answer.
        most_forms: Number of forms of calls that are restored, the usual one first.

    Raises:
        InputError: A part is wrong; other errors of `HOSTILE` are possible too.
    """
    if about.string("format") != _FORMAT:
        about.fail("format", f"must be {_FORMAT}")
    problem, origin = user_question.problem, about.origin
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
        programs = executor_for(problem, user_question.settings, user_question.options.size)
        ranges = [
            _ranges(
                rows,
                algorithms,
                files,
                folder / str(number),
                about,
                programs.other_form() if programs and number else programs,
            )
            for number, rows in enumerate(forms[:most_forms])
        ]
    # A proof has the decisive witness first; the bound has the witnesses in the order of the search.
    decisive_witness, *witnesses = proof.witnesses
    witnesses.insert(about.integer("decisive", 0, len(witnesses)), decisive_witness)
    result = SearchResult(
        problem,
        ranges=ranges[0],
        bound=Bound(tuple(witnesses)),
        baselines=_baselines(user_question, Bound(proof.witnesses)),
        engine=user_question.options.engine,
        why_switches_forward=user_question.why_switches_forward,
        stop_reason=about.matching("ended", "budget", "budget, or empty"),
        seconds=about.number("seconds", 0.0, _MOST_S, "s"),
    )
    _check_sizes(result, user_question, about)
    _add_figures(result, about, algorithms)
    return CachedAnswer(result, None if len(ranges) == 1 else replace(result, ranges=ranges[1]))


def _ranges(
    rows: Any,
    algorithms: Sequence[Algorithm],
    files: Mapping[str, bytes],
    folder: Path,
    about: Fields,
    programs: Programs | None,
) -> list[Offer]:
    """Return the ranges of one form of calls, each with its program if a file of it is kept.

    Args:
        rows: The ranges as the bundle states them, of any type.
        algorithms: The restored algorithms, which the ranges name by number.
        files: Bytes of the bundle's files by name.
        folder: A new folder, which is made and in which the files of programs are written.
        about: The bundle's object, for messages.
        programs: What restores programs; None if no program was asked for.

    Raises:
        InputError: A range or its file is wrong.
    """
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
        execution = None
        if isinstance(table.values.get("entry"), dict):
            if programs is None:
                table.fail("entry", "must be null, since no file was requested")
            entry = next(entries)
            execution = restored_program(entry, algorithm, programs)
            if execution.served(low, high) != (entry.min_bytes, entry.max_bytes):
                table.fail("low", "must be the sizes that the file is for")
        refused = _refusal(table)
        elapsed_s = None if table.values.get("found_s") is None else table.number("found_s", 0.0, _MOST_S, "s")
        library = table.string("library", "")
        if library and (library not in LIBRARIES or execution is not None):
            table.fail("library", "must be the name of a library to which the range is left, or empty")
        ranges.append(Offer(algorithm, execution, low, high, shown, refused, elapsed_s, library=library))
    return ranges


def _entries(rows: Sequence[Mapping[str, Any]], files: Mapping[str, bytes], folder: Path) -> Iterator[IndexEntry]:
    """Write files and an index that names them into a new folder, and return an iterator over the index's entries.

    Args:
        rows: Rows of the index.
        files: Bytes of the bundle's files by name.
        folder: The folder, which must not exist.

    Raises:
        InputError: A row is wrong, or a file that it names is missing.
    """
    folder.mkdir()
    (folder / INDEX).write_bytes(index_text(rows))
    entries = load_index(folder)
    for entry in entries:
        entry.path.parent.mkdir(exist_ok=True)
        entry.path.write_bytes(_member(files, entry.file, origin_of(INDEX)))
    return iter(entries)


def _check_sizes(result: SearchResult, user_question: Question, about: Fields) -> None:
    """Raise InputError unless the ranges follow one another without gaps and cover exactly the question's sizes.

    Args:
        result: The answer.
        user_question: The question: of one size, or of all sizes from 0 to at least `LARGEST`.
        about: The bundle's object, for the message.
    """
    size, ranges = user_question.options.size, result.ranges
    first, last = (0, LARGEST) if size is None else (size, size)
    ends = [_MOST_BYTES if served.high is None else served.high for served in ranges]
    is_whole = all(end + 1 == served.low for end, served in zip(ends, ranges[1:], strict=False))
    if ranges[0].low != first or ends[-1] < last or not is_whole:
        about.fail("forms", "must cover the sizes of the question")


def _baselines(user_question: Question, bound: Bound) -> list[Algorithm]:
    """Return what a library would run, for each protocol; [] for questions for which a search does not compute it.

    Args:
        user_question: The question.
        bound: The bound, on which it depends whether a search would compute baselines.
    """
    problem, options = user_question.problem, user_question.options
    [stage] = [stage for stage in SINGLE.stages if stage.engine == "baseline"]
    if ENGINES["baseline"].accepts(problem, options) or not stage.suits(problem, options.size, bound):
        return []
    problems = [problem.under(name) for name in problem.protocols] or [problem]
    return [algorithm for protocol_problem in problems for algorithm in baseline(protocol_problem)]


def _add_figures(result: SearchResult, about: Fields, algorithms: Sequence[Algorithm]) -> None:
    """Set the fields of a result that only describe the search: times of bounds, engines, sizes and refused offers.

    Unknown engines are left out, as are times that are no numbers.

    Args:
        result: The result, which is changed in place.
        about: The bundle's object.
        algorithms: The restored algorithms, which refused offers name by number.

    Raises:
        InputError: A field is wrong.
    """
    seconds = about.values.get("bound_s")
    if isinstance(seconds, list):
        figures = zip(result.bound.witnesses, seconds, strict=False)
        result.bound_s = {
            witness: float(at) for witness, at in figures if type(at) in (int, float) and 0 <= at < _MOST_S
        }
    result.remaining_engines = tuple(name for name in about.strings("queue") if name in ENGINES)
    engines = {served.algorithm.engine for served in result.ranges}
    result.other_engines = tuple(name for name in about.strings("other_engines") if name in engines)
    sizes = about.values.get("asked_sizes")
    result.retried_sizes = {size for size in sizes if type(size) is int} if isinstance(sizes, list) else set()
    if about.values.get("refutable") is not None:
        result.next_window_size = about.integer("refutable", 1, _MOST_BYTES)
    refused = about.values.get("refused")
    for pair in refused if isinstance(refused, list) else []:
        if not isinstance(pair, list) or len(pair) != 2:
            about.fail("refused", "must be pairs of an algorithm and why it has no file")
        table = Fields(dict(zip(("algorithm", "refused"), pair, strict=False)), "", f"{about.origin}: refused")
        number = table.integer("algorithm", 0, len(algorithms) - 1)
        result.refused.append(Offer(algorithms[number], refused=_refusal(table)))


def _refusal(table: Fields) -> str:
    """Return the field `refused`, the reason why there is no file; "" if it is missing.

    Raises:
        InputError: It is no text, has over 1000 characters, or has some that are not printable.
    """
    text = table.string("refused", "")
    if len(text) > 1000 or not text.isprintable():
        table.fail("refused", "must be at most 1000 printable characters")
    return text


def _member(files: Mapping[str, bytes], name: str, origin: str) -> bytes:
    """Return a file of a bundle; raise InputError if it is missing."""
    if name not in files:
        raise InputError(f"{origin}: {name} is missing")
    return files[name]


def _has_bytes(path: Path, data: bytes | None) -> bool:
    """Return whether a file has exactly these bytes; False for None and for a file that cannot be read."""
    try:
        return data is not None and path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False


def _add(digest: Any, value: object) -> None:
    """Add all of a value to a digest of hashlib, with every field of its dataclasses and every element of its arrays.

    Of any other value, dictionaries included, its `repr` counts.
    """
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
