"""The Python face: what it takes, and one line for what it does not take."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import pydoc
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import synth
from emit.library.index import load_index
from synth import InputError
from synth.app.arguments import QuestionArguments


def test_texts_of_the_command_line_are_taken() -> None:
    spelt = synth.synthesize("allgather", "ring:4", "0-3", size="1M", budget="2s", relay="none", without=())
    plain = synth.synthesize("allgather", "ring:4", [0, 1, 2, 3], size=1 << 20)
    assert spelt.algorithms == plain.algorithms
    assert synth.__version__


def test_a_schedule_is_timed_for_the_given_size() -> None:
    answer = synth.synthesize("allgather", "ring:4")
    for size in (1024, 1 << 20):
        schedule, algorithm = answer.schedule(size), answer.algorithm(size)
        alpha = algorithm.problem.network.alpha_us[schedule.link]
        assert (schedule.end_us + alpha).max() == pytest.approx(algorithm.time_us(size))
    assert len(answer.schedule("64K")) == len(answer.schedule(64 << 10))


def test_the_gap_is_the_largest_of_all_sizes() -> None:
    answer = synth.synthesize("allgather", "ring:5", engine="route")
    sizes = [size for row in answer.algorithms for size in (row["shown_bytes"], row["worst"]["bytes"])]
    gaps = {size: answer.result.fastest(size).time_us(size) / answer.result.bound.at(size)[0] for size in sizes}
    assert answer.gap == pytest.approx(max(1.0, *gaps.values()))
    assert 1.0 <= answer.shown_gap <= answer.gap


def test_notebooks_and_prompts_show_little() -> None:
    """Check that an answer is one line at a prompt, and its table in a notebook."""
    answer = synth.synthesize("allgather", "ring:4", engine="route")
    assert repr(answer).startswith("<Synthesis of allgather on 4 ranks of ring:4: ")
    assert "\n" not in repr(answer)
    assert len(repr(answer)) < 120
    assert answer.table().splitlines()[0] in unescape(answer._repr_html_())
    assert max(map(len, answer.table().splitlines())) <= 80 < max(map(len, answer.table(None).splitlines()))
    assert "table(width=None) also shows" in answer.table()


@pytest.mark.parametrize("width", [-1, 0])
def test_an_impossible_width_of_a_table_is_refused(width: int) -> None:
    answer = synth.synthesize("allgather", "ring:4", engine="route")
    with pytest.raises(synth.InputError, match=rf"width {width}: .*1 or more"):
        answer.table(width)
    assert answer.table(1)


@pytest.mark.parametrize(
    ("argument", "value", "right"),
    [
        ("topo", 8, "a name such as ring:8"),
        ("topo", np.eye(40), "a name such as ring:8"),
        ("group", {0, 1, 2}, "a list such as"),
        ("group", frozenset({0, 1}), "a list such as"),
    ],
)
def test_a_wrong_kind_of_network_or_group_is_refused_with_the_right_ones(
    argument: str, value: object, right: str
) -> None:
    with pytest.raises(synth.InputError, match=f"^{argument}: .*it must be {right}") as caught:
        synth.synthesize(**{"collective": "allgather", "topo": "ring:4", "budget": 1, argument: value})  # type: ignore[arg-type]
    assert len(str(caught.value)) <= 160
    assert str(caught.value).isprintable()


def test_searches_may_run_in_threads() -> None:
    """Check that searches in several threads at once give the same answers as one after another."""
    questions = [("allgather", "ring:5"), ("allgather", "ring:6"), ("reducescatter", "ring:4"), ("alltoall", "full:4")]

    def ask(question: tuple[str, str]) -> list[dict[str, Any]]:
        return synth.synthesize(*question, size="1M", engine="route").algorithms

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, questions)) == [ask(question) for question in questions]


def test_an_answer_without_an_algorithm_says_why() -> None:
    answer = synth.synthesize("allgather", "ring:6", steps=1, rounds=1, chunks=1)
    for call in (answer.algorithm, answer.schedule, answer.sends, answer.plot_timeline):
        with pytest.raises(InputError, match="there is no algorithm: "):
            call("1M")
    for write in (answer.report, answer.save):
        with pytest.raises(InputError, match="there is no algorithm: "):
            write("answer.html")
    assert "no algorithm: no schedule has 1 step" in answer.table()
    with pytest.raises(InputError, match="there is no algorithm: "):
        answer.plot_frontier()
    assert answer.gap == answer.shown_gap == math.inf
    assert "no algorithm" in repr(answer)
    assert "<svg" not in answer._repr_html_()


def test_objects_are_shown_in_one_line() -> None:
    answer = synth.synthesize("allgather", "ring:4", size="1M", engine="route")
    assert repr(answer.algorithm("1M")).startswith("<allgather on ring:4 by ")
    assert repr(answer.schedule("1M")).endswith(", timed for 1 MiB>")
    assert repr(answer.sends("1M")).count(" in ") == 1
    assert repr(answer.result).startswith("<SearchResult of ")
    values = (
        answer.algorithm("1M").problem.collective,
        synth.Script("mine", "allreduce", 4),
        synth.Goal(4, ((),) * 5, ((),) * 4, None, ()),  # type: ignore[arg-type]
        synth.read_states("ring:8"),
        synth.alltoallv_planner("torus:2x2"),
        synth.alltoallv_planner("torus:2x2").plan(np.ones((4, 4), dtype=np.int64)),
    )
    for shown in (*values, answer, answer.result, answer.algorithm("1M"), answer.schedule("1M"), answer.sends("1M")):
        assert len(repr(shown)) <= 120
        assert "\n" not in repr(shown)


def test_the_face_lists_what_users_need() -> None:
    """Check that `dir` and `help` show exactly the names of the face, and that each of them can be had."""
    assert dir(synth) == sorted(synth.__all__)
    assert all(getattr(synth, name) is not None for name in synth.__all__)
    page = pydoc.plain(pydoc.render_doc(synth))
    assert all(name in page for name in synth.__all__ if name != "__version__")


def test_type_checkers_know_no_other_names() -> None:
    """Check that type checkers see each public name, and no `__getattr__` that makes them accept any name."""
    lines = Path(synth.__file__).read_text().splitlines()
    assert [line for line in lines if "__getattr__ =" in line] == ["    __getattr__ = _import_public"]
    assert lines[lines.index("    __getattr__ = _import_public") - 1].startswith("if not TYPE_CHECKING:")
    seen = "\n".join(lines).partition("if TYPE_CHECKING:")[2].partition("__all__")[0]
    assert all(re.search(rf"\b{name}\b", seen) for name in synth.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Topology'"):
        synth.Topology  # type: ignore[attr-defined]  # noqa: B018


def test_keywords_are_the_arguments_of_a_question() -> None:
    """Check that each option of a question is a typed keyword with the same default, so that type checkers know it."""
    parameters = inspect.signature(synth.synthesize).parameters
    fields = {field.name: field for field in dataclasses.fields(QuestionArguments)}
    assert set(parameters) - {"progress", "workers"} == set(fields) - {"begun", "are_options"}
    for name, field in fields.items():
        if name in parameters and field.default is not dataclasses.MISSING:
            assert (parameters[name].default, parameters[name].annotation) == (field.default, field.type), name
    for error in (TypeError, synth.InputError):
        with pytest.raises(error, match=r"^synthesize: has no keyword 'sise'; did you mean size or sizes\?$"):
            synth.synthesize("allreduce", "ring:4", sise="1M")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing"):
        synth.synthesize("allreduce")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"budget": None}, "budget: None is no number"),
        ({"budget": True}, "budget: True is no number"),
        ({"budget": "soon"}, "budget 'soon': is not a time"),
        ({"budget": float("nan")}, "budget: nan s is not possible"),
        ({"size": 1.5}, "size: 1.5 is no size; it must be a whole number of bytes"),
        ({"size": -1}, "size: -1 is no size; it must be 1 to"),
        ({"workers": 5}, "workers: 5 has no solvers"),
        ({"progress": 5}, "progress: 5 cannot be called"),
        ({"without": ["link:0-2"]}, "without link:0-2: "),
        ({"group": [0.5, 1]}, "group: 0.5 is no whole number"),
        ({"group": 3}, "group: 3 is no list"),
        ({"group": "0-9"}, "group: rank 9 is not in this topology"),
        ({"chunks": "2"}, "chunks: '2' is no whole number"),
        ({"relay": 5}, "relay: 5 is no list"),
        ({"engine": 4}, "engine: 4 is no text"),
        ({"without": 4}, "without: 4 is no list"),
        ({"seed": 1.0}, "seed: 1.0 is no whole number"),
        ({"root": "0"}, "root: '0' is no whole number"),
        ({"sms": "x"}, "sms: 'x' is no whole number"),
        ({"target": "nosuch"}, "target 'nosuch': is not known"),
    ],
)
def test_an_impossible_question_is_an_input_error(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as refused:
        synth.synthesize("allgather", "ring:4", **options)
    assert str(refused.value).startswith(says)
    assert "--" not in str(refused.value)  # Keywords are no options.
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("collective", "topo"), [(5, "ring:4"), ("allgather", 5), ("nosuch", "ring:4")])
def test_collective_and_topology_are_names_or_objects(collective: Any, topo: Any) -> None:
    with pytest.raises(InputError):
        synth.synthesize(collective, topo)


def test_a_schedule_cannot_be_changed_under_its_answer() -> None:
    answer = synth.synthesize("allgather", "ring:4", size="1M", engine="route")
    for schedule in (answer.schedule("1M"), answer.algorithm("1M").schedule, answer.algorithm("1M").timed(1 << 20)):
        for column in ("chunk", "link", "step", "reduces", "start_us", "end_us"):
            with pytest.raises(ValueError, match="read-only"):
                getattr(schedule, column)[0] = 1


def test_sizes_of_questions_to_an_answer_are_checked() -> None:
    answer = synth.synthesize("allgather", "ring:4")
    for size in (-5, 0, 1.5, "x"):
        with pytest.raises(InputError, match="size_bytes"):
            answer.algorithm(size)  # type: ignore[arg-type]


def test_the_answer_states_what_was_saved(tmp_path: Path) -> None:
    """Check that saving updates the answer, also where the time was too short to lower, or for another target."""
    result = synth.synthesize("allgather", "ring:4", budget=5, steps=2, rounds=3, chunks=2).result
    late = [offer.without_program("no time") for offer in result.ranges]
    answer = synth.Synthesis(replace(result, ranges=late, stop_reason="budget"))
    for target in ("msccl", "mscclpp"):
        answer.save(tmp_path / target, target)
        assert not any(row["refused"] for row in answer.algorithms)
        usual = [entry for entry in load_index(tmp_path / target) if entry.inplace]
        shown = {entry.row["shown_bytes"]: entry.row["time_us"] for entry in usual}
        assert shown == {row["shown_bytes"]: row["time_us"] for row in answer.algorithms}
        assert {offer.execution.target.name for offer in answer.result.ranges} == {target}  # type: ignore[union-attr]


def test_an_algorithm_is_printed_in_one_line() -> None:
    answer = synth.synthesize("allreduce", "dgx-a100", group=[0, 2, 4, 6], engine="route", budget=3)
    assert len(answer.algorithms) > 1
    for algorithm in answer.algorithms:
        assert re.fullmatch(r".*: [\d.]+ [µm]?s at .*, gap [\d.]+ \(.+\), engine route, .*\d chunks?", str(algorithm))
        assert json.loads(json.dumps(algorithm)) == dict(algorithm)


@pytest.mark.parametrize(
    ("collective", "sizes", "message"),
    [
        ("allgatherv", [0, 0, 0, 0], "every size is 0; at least one rank must have data"),
        ("gatherv", [5, 0, 0, 0], "no rank but the root has data; at least one other rank must have data"),
        ("alltoallv", [[0] * 4] * 4, "every size between two ranks is 0"),
    ],
)
def test_sizes_without_data_to_send_are_refused(collective: str, sizes: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        synth.synthesize(collective, "ring:4", sizes=sizes)


def test_an_unknown_target_is_refused_with_all_right_words() -> None:
    with pytest.raises(InputError, match=r"one of auto, none, executor-nccl, .*; did you mean msccl or mscclpp\?"):
        synth.synthesize("allgather", "ring:4", target="msccl++")


def test_a_pattern_of_a_file_is_a_collective(tmp_path: Path) -> None:
    """Check that the name of the command leads to the function that reads a pattern's file."""
    with pytest.raises(InputError, match=r'must be synth\.read_pattern\("FILE\.toml"\)'):
        synth.synthesize("pattern", "ring:4")
    with pytest.raises(InputError, match="path"):
        synth.read_pattern(5)  # type: ignore[arg-type]
    (tmp_path / "shift.toml").write_text('name = "shift"\nranks = 4\n[[chunk]]\nfrom = [0]\nto = [1]\n')
    pattern = synth.read_pattern(tmp_path / "shift.toml")
    assert isinstance(pattern, synth.Collective)
    answer = synth.synthesize(pattern, "ring:4", size="1M", engine="route")
    assert repr(answer.result.problem) == "<shift on 4 ranks of ring:4, 1 chunk a block>"


def test_a_size_of_a_pattern_means_the_same_in_the_search_and_in_a_library(tmp_path: Path) -> None:
    """Check that a library serves the size that was asked, where ranks receive more than they send."""
    chunks = "[[chunk]]\nfrom = [0]\nto = [2]\n[[chunk]]\nfrom = [1]\nto = [0, 2]\n"
    (tmp_path / "two.toml").write_text(f'name = "two"\nranks = 4\n{chunks}')
    pattern = synth.read_pattern(tmp_path / "two.toml")
    synth.synthesize(pattern, "ring:4", size="1M", engine="route").save(tmp_path / "lib")
    entry = synth.Selector(synth.load_library(tmp_path / "lib")).choose(
        synth.LibraryCall("two", 4, [0, 1, 2, 3], inplace=False), "1M"
    )
    assert entry is not None
    assert entry.shown_bytes == entry.min_bytes == entry.max_bytes == 1 << 20
