"""Tables that fit a width: the important columns stay, and nothing is lost that details do not show."""

from __future__ import annotations

import re
import sys
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import synth
from synth.app.present.layout import Column, fitted, path_lines, warn, wrapped
from synth.app.present.table import table
from synth.search.statement import statement

COLUMNS = st.lists(
    st.builds(
        Column,
        st.text("abc", min_size=1, max_size=12),
        st.tuples(st.text("xyz", min_size=1, max_size=12), st.text("xyz", min_size=1, max_size=12)),
        st.integers(0, 4),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda column: column.title,
)


@given(COLUMNS, st.integers(10, 90))
def test_as_many_columns_as_fit_are_shown_in_order_of_importance(columns: list[Column], width: int) -> None:
    lines, left_out = fitted(columns, width)
    shown = [column for column in columns if not column.importance] or columns[:0]
    fits = max(map(len, lines), default=0) <= width
    assert fits or len(left_out) == len(columns) - len(shown)
    whole, nothing = fitted(columns, None)
    assert not nothing
    if max(map(len, whole)) <= width:
        assert lines == whole
    elif left_out:
        kept = [column.importance for column in columns if column.title not in left_out]
        dropped = [column.importance for column in columns if column.title in left_out]
        assert min(dropped) > 0
        assert max(kept, default=0) <= max(dropped)


def test_cells_are_short_where_columns_that_are_always_shown_do_not_fit() -> None:
    columns = [Column("a", ["x" * 30]), Column("b", ["1.36 × (1.2–1.6)"], short=["1.36 ×"]), Column("c", ["y" * 30], 1)]
    assert fitted(columns, 60)[0][1].split() == ["x" * 30, "1.36", "×", "(1.2–1.6)"]
    lines, left_out = fitted(columns, 40)
    assert (lines[1].split(), left_out) == (["x" * 30, "1.36", "×"], ["c"])
    assert max(map(len, lines)) <= 40


@given(st.integers(1, 8), st.integers(1, 100))
def test_a_long_word_keeps_its_indent(indent: int, length: int) -> None:
    assert wrapped([" " * indent + "a" * length], 40) == [" " * indent + "a" * length]


@given(st.lists(st.text("ab", min_size=1, max_size=30), max_size=30), st.integers(20, 60))
def test_broken_texts_keep_all_words(words: list[str], width: int) -> None:
    lines = wrapped([" ".join(words)], width)
    assert " ".join(lines).split() == words
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines)


def test_details_lose_nothing() -> None:
    """Check that each figure of a wide table is in the details of a narrow one."""
    document = statement(synth.synthesize("allreduce", "dgx1", [0, 1], engine="route", budget=2).result)
    wide, narrow = table(document, 8), table(document, 8, 80, details=True)
    assert "--wide also shows" in table(document, 8, 80)
    assert max(map(len, narrow.splitlines())) <= 80 < max(map(len, wide.splitlines()))
    flat = " ".join(narrow.split())
    for row in document["algorithms"]:
        assert row["proof"] in flat
        assert f"engine {row['engine']}, {row['steps']} step" in flat
        assert f"{row['sends']} sends" in flat
    for figure in re.findall(r"\d+\.\d+ ×", wide):
        assert figure in flat


@pytest.mark.parametrize("reason", ["", "no message of 1001 bytes is a multiple of 64 bytes"])
def test_a_row_without_a_file_says_so_and_is_not_compared_with_what_libraries_run(reason: str) -> None:
    document = statement(synth.synthesize("allreduce", "dgx1", [0, 1], engine="route", size=1 << 20, budget=2).result)
    document["algorithms"][0]["refused"] = reason
    for details in (False, True):
        text = table(document, 8, 80, details=details)
        row = next(line for line in text.splitlines() if line.startswith("1 MiB "))
        assert row.endswith(", no file") == bool(reason)
        assert ("vs NCCL" in text) == (not reason)


@pytest.mark.parametrize(("factor", "is_shown"), [(0.5, True), (1.0, False), (2.0, True)])
def test_rows_of_the_other_form_are_shown_if_they_are_slower_or_faster(factor: float, is_shown: bool) -> None:
    document = statement(synth.synthesize("allreduce", "ring:4", engine="route", budget=2).result)
    document["other_form"] = [row | {"time_us": factor * row["time_us"]} for row in document["algorithms"]]
    assert ("out of place:" in table(document, 4)) == is_shown


def test_a_row_that_is_the_same_for_both_forms_of_calls_is_shown_once() -> None:
    """Check titles and rows where only the row of the larger messages differs, in the table and in its details."""
    document = statement(synth.synthesize("allreduce", "ring:4", engine="route", budget=2).result)
    first = document["algorithms"][0] | {"min_bytes": 0, "max_bytes": 1 << 20}
    second = first | {"min_bytes": (1 << 20) + 1, "max_bytes": None}
    document["algorithms"], document["inplace"] = [first, second], True
    document["other_form"] = [dict(first), second | {"time_us": 2 * second["time_us"]}]
    titles = ["in place and out of place:", "in place:", "out of place:"]
    lines = table(document, 4, details=True).splitlines()
    assert [line for line in lines if line in titles] == titles
    assert [len([line for line in lines if line.startswith(start)]) for start in ("up to 1 MiB ", "over 1 MiB ")] == [
        1,
        2,
    ]
    ranges = [
        f"{served}, {title[:-1]}"
        for served, title in zip(("up to 1 MiB", "over 1 MiB", "over 1 MiB"), titles, strict=True)
    ]
    assert [line for line in lines if line in ranges] == ranges


class _Terminal(StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "widest"), [(_Terminal, 80), (StringIO, 199)])
def test_a_warning_is_broken_on_terminals_only(
    monkeypatch: pytest.MonkeyPatch, stream: type[StringIO], widest: int
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stderr", stream())
    warn(" ".join(["word"] * 40))
    lines = sys.stderr.getvalue().splitlines()  # type: ignore[attr-defined]
    assert (" ".join(map(str.strip, lines)), max(map(len, lines)) <= widest) == (" ".join(["word"] * 40), True)
    assert (len(lines) == 1) is (stream is StringIO)


@given(
    st.lists(st.builds(Path, st.text("ab/", min_size=1, max_size=30), st.text("cd", min_size=1, max_size=30))),
    st.integers(20, 80),
)
@example([Path("//" + "c" * 30), Path("/" + "d" * 30), Path("c" * 30)], 20)
def test_every_path_stands_once_and_names_that_fit_are_not_wider(paths: list[Path], width: int) -> None:
    lines, folder, listed = path_lines(paths, width), "", []
    for line in lines:
        if line.endswith("/"):
            folder = line.strip()
        else:
            listed.append(Path(folder if line.startswith("    ") else "", line.strip()))
            assert len(line) <= max(width, 4 + len(line.strip()))
            assert line.startswith("    ") or len(line) <= width
    assert listed == paths
    assert path_lines(paths, None) == [f"  {path}" for path in paths]


def test_a_number_stays_with_its_unit() -> None:
    text = "3 algorithms, replayed and right   from the cache; the search took 13.3 s   9.4 s"
    for width in range(40, 90):
        lines = wrapped([text], width)
        assert max(map(len, lines)) <= width
        assert not any(line.split()[0] == "s" for line in lines)
        assert " ".join(" ".join(lines).split()) == " ".join(text.split())


def test_a_row_whose_comparison_differs_over_its_sizes_shows_the_range() -> None:
    document = statement(synth.synthesize("allreduce", "dgx1", [0, 1], engine="route", budget=2).result)
    (own, *_) = document["algorithms"]
    choice = own["libraries"]["NCCL"] | {"vs": 1.4, "vs_low": 1.3, "vs_high": 1.6, "vs_range": [0.97, 1.41]}
    document["algorithms"] = [own | {"libraries": {"NCCL": choice}}]
    assert "0.97–1.41 ×" in table(document, 8, 80)
    assert "ranges are over a row's sizes" in " ".join(table(document, 8, 80).split())
    assert "1.40 × (1.3–1.6)" in table(document, 8, 80, details=True)
    choice["vs_range"] = [1.39, 1.41]
    assert "1.40 × (1.3–1.6)" in table(document, 8, 80)


def test_a_column_shortens_before_it_is_left_out() -> None:
    long, short = "1.19 × (1.1–1.3)", "1.19 ×"
    columns = [Column("size", ["1 MiB"]), Column("vs NCCL", [long], 1, short=[short])]
    for width, cell in ((40, long), (20, short)):
        lines, left_out = fitted(columns, width)
        assert left_out == []
        assert lines[1].split("  ")[-1].strip() == cell
    assert fitted(columns, 8)[1] == ["vs NCCL"]
