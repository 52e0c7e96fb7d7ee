"""A first file of a search is usable at once, and the files at the end of the search are the same without it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from emit.library.checking.check import check_library
from emit.library.index import load_index
from emit.library.programs import executor_for
from emit.library.saving.save import save, save_first
from emit.library.saving.write import LibraryHeldError, writing
from synth import synthesize
from synth.app.arguments import QuestionArguments
from synth.app.question import make_question
from synth.app.synthesis import Synthesis
from synth.search.first import add_first, first_result
from synth.search.offer import Execution
from synth.search.question import Question
from synth.search.result import SearchResult
from synth.search.settings import AUTO, NONE, TargetSettings

TARGET = TargetSettings(AUTO)
QUESTIONS = {
    "costs": ("allreduce", "dgx-a100", "0,2,4,6", "64K"),
    "all sizes": ("allgather", "ring:4", None, None),
    "a path": ("broadcast", "line:3", None, "1M"),
    "an XML file": ("allgather", "dgx1", "0-3", "16K"),
}


def question_of(name: str, **changes: object) -> Question:
    """Return a question of `QUESTIONS`, with other arguments."""
    collective, topology, group, size = QUESTIONS[name]
    arguments = {"group": group, "size": size, "target": AUTO, "budget": 30.0} | changes
    return make_question(QuestionArguments(collective, topology, **arguments))  # type: ignore[arg-type]


def first_of(question: Question) -> SearchResult:
    """Return the first programs for a question."""
    return first_result(question, executor_for(question.problem, question.settings, question.options.size))


@cache
def answer_of(name: str) -> SearchResult:
    """Return the answer of a question by one fast engine."""
    collective, topology, group, size = QUESTIONS[name]
    answer: Synthesis = synthesize(collective, topology, group, size=size, engine="route", target=AUTO, budget=3.0)
    return answer.result


def files(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files in a folder, by their path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def is_right(folder: Path) -> bool:
    """Return True if the check of a library finds nothing wrong."""
    return not check_library(folder, load_index(folder)).wrong


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_first_file_passes_the_check_and_leaves_no_trace(name: str, tmp_path: Path) -> None:
    question, answer = question_of(name), answer_of(name)
    other_answer = answer_of("a path" if name != "a path" else "all sizes")
    for folder in ("with", "without"):
        save(other_answer, tmp_path / folder)
    others = load_index(tmp_path / "with")
    first = save_first(first_of(question), tmp_path / "with", TARGET)
    assert first
    assert load_index(tmp_path / "with") == [*others, *first]
    assert is_right(tmp_path / "with")
    save(answer, tmp_path / "with", TARGET, first=first)
    save(answer, tmp_path / "without", TARGET)
    assert files(tmp_path / "with") == files(tmp_path / "without")
    assert is_right(tmp_path / "with")


def test_a_library_with_files_for_the_question_gets_no_first_file(tmp_path: Path) -> None:
    save(answer_of("costs"), tmp_path)
    before = files(tmp_path)
    assert save_first(first_of(question_of("costs")), tmp_path, TARGET) == []
    assert files(tmp_path) == before


def test_the_first_file_stays_where_the_search_has_none(tmp_path: Path) -> None:
    first = save_first(first_of(question_of("costs")), tmp_path, TARGET)
    before, answer = files(tmp_path), answer_of("costs")
    no_files = [offer.without_program("planted") for offer in answer.ranges]
    saved = save(
        replace(answer, ranges=no_files, unused=[], stop_reason="budget"), tmp_path, TARGET, until=0.0, first=first
    )
    assert saved.remarks[-1:] == (f"the first file stays, because there is no other: {tmp_path / first[0].file}",)
    assert before.items() <= files(tmp_path).items()


def test_after_an_interruption_without_new_files_the_first_file_is_named(tmp_path: Path) -> None:
    """Check that a search which was cut short, and so does not say which files are first ones, names what it left."""
    first = save_first(first_of(question_of("costs")), tmp_path, TARGET)
    answer = answer_of("costs")
    no_files = [offer.without_program("planted") for offer in answer.ranges]
    saved = save(replace(answer, ranges=no_files, unused=[], stop_reason="interrupted"), tmp_path, TARGET, until=0.0)
    assert {f"the library keeps {tmp_path / entry.file}" for entry in first} <= set(saved.remarks)


def test_a_held_library_gets_no_first_file(tmp_path: Path) -> None:
    with writing(tmp_path), pytest.raises(LibraryHeldError):
        save_first(first_of(question_of("costs")), tmp_path, TARGET)
    assert files(tmp_path) == {}


@pytest.mark.parametrize(
    "changes", [{"engine": "route"}, {"steps": 3, "rounds": 3}, {"budget": 1.0}, {"target": NONE}], ids=str
)
def test_questions_without_first_programs(changes: dict[str, object], tmp_path: Path) -> None:
    question = question_of("costs", **changes)
    assert first_of(question).ranges == []
    assert save_first(first_of(question), tmp_path / "out", question.settings) == []
    assert not (tmp_path / "out").exists()


def test_a_first_program_that_no_other_reaches_is_the_answer(tmp_path: Path) -> None:
    """Check that a search whose time was too short answers with the first program, and others with their own."""
    question, size = question_of("costs"), 64 << 10
    first = first_of(question)
    (program,) = first.ranges
    slower = synthesize("allreduce", "dgx-a100", "0,2,4,6", size=size, engine="baseline", target=AUTO).result
    (own,) = slower.ranges
    slower.ranges = [replace(own, execution=Slow(own.execution, 1.5))]
    add_first(slower, first, size)
    assert slower.ranges == first.ranges
    assert [offer.algorithm for offer in slower.unused[-1:]] == [own.algorithm]
    saved = save(slower, tmp_path, TARGET)
    assert [row["time_us"] for row in saved.rows] == [program.time_us(size)]
    faster = replace(own, execution=Slow(program.execution, 0.9))
    for ranges, size_bytes in (([faster], size), ([replace(own, execution=Slow(own.execution, 1.5))], None)):
        result = SearchResult(question.problem, list(ranges))
        add_first(result, first, size_bytes)
        assert result.ranges == ranges
    without = SearchResult(question.problem, [own.without_program("too large")])
    add_first(without, first, None)
    assert (without.ranges, [offer.refused for offer in without.refused]) == (first.ranges, ["too large"])


@dataclass(frozen=True)
class Slow:
    """An execution that takes a multiple of another one's time."""

    execution: Execution | None
    factor: float

    def time_us(self, size_bytes: float) -> float:
        assert self.execution is not None
        return self.factor * self.execution.time_us(size_bytes)

    def serves(self, _size_bytes: float) -> bool:
        return True

    def unit_bytes(self, _size_bytes: float) -> int:
        return 1
