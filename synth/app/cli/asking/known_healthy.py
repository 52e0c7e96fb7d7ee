"""What is known of the healthy network already, with which the answer for dead and slow parts is compared."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from emit.library.library_file import LibraryFile, read_again, requirement_of
from emit.library.programs import executor_for
from emit.library.saving.write import existing_entries
from synth.app.cli.asking.cached_answers import answer_key, entries_of_question, take_any_answer
from synth.search.question import Question
from synth.search.result import SearchResult
from synth.storage.cache import Cache
from topologies.errors import InputError

_LONGEST_CLASS = 9  # log2 of the seconds of the longest budget whose answer is looked up


def known_answer(cache: Cache, question: Question) -> SearchResult | None:
    """Return the cache's answer for the healthy network of a question, after its check; None if it has none.

    Of the answers for the question's size and those for all sizes, the one with the longest budget is taken, whose
    budget is at least that of the question.

    Args:
        cache: The cache.
        question: A question with a healthy network.
    """
    if cache.folder is None or question.healthy is None:
        return None
    first_class = math.ceil(math.log2(question.options.budget_s))
    for budget_class in reversed(range(first_class, max(first_class, _LONGEST_CLASS) + 1)):
        for size in dict.fromkeys((question.options.size, None)):
            options = dataclasses.replace(question.options, size=size, budget_s=2.0**budget_class)
            asked = dataclasses.replace(question, problem=question.healthy, healthy=None, options=options)
            key = answer_key(asked, False)
            with suppress(InputError):  # A wrong answer is removed; the search finds another one.
                if cache.has(key) and (known := take_any_answer(cache, key, asked)) is not None:
                    return known
    return None


def known_times(folders: Iterable[Path], question: Question) -> tuple[Callable[[float], float], ...]:
    """Return functions from a message size to the time in µs of each library's file for the healthy network.

    The files are checked and timed again. A function returns infinity for sizes that its file does not serve.

    Args:
        folders: Libraries, which need not exist.
        question: A question, whose healthy network, target and size count.
    """
    if question.healthy is None:
        return ()
    times: list[Callable[[float], float]] = []
    size, asked = question.options.size, dataclasses.replace(question, problem=question.healthy)
    with suppress(InputError):
        programs = executor_for(question.healthy, question.settings, size)
        if programs is None:
            return ()
        requirement = requirement_of(programs)
        for folder in dict.fromkeys(folders):
            for entry in entries_of_question(existing_entries(folder), asked):
                is_same = (entry.target, entry.inplace) == (programs.target.name, programs.inplace)
                if is_same and not entry.padding and (size is None or entry.in_range(size)):
                    with suppress(InputError):  # `synth library check` reports a wrong file.
                        times.append(partial(_time_us, read_again(entry, requirement)))
    return tuple(times)


def _time_us(file: LibraryFile, size_bytes: float) -> float:
    """Return the time of a file in µs; infinity for a size that it does not serve."""
    return file.time_us(size_bytes) if file.entry.in_range(int(size_bytes)) else math.inf
