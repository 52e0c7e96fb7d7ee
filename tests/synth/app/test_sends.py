"""The sends of a schedule as columns, as a data frame and as drawings."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot

import synth
from synth.storage.schedule_file import load_schedule
from synth.symmetry.quotient import quotient_problem
from tests.synth.storage.stored_files import written
from topologies.load import load as load_topology

mpl.use("agg")


@pytest.fixture
def answer() -> synth.Synthesis:
    return synth.synthesize("allgather", "dgx1", "0-3", engine="route", costs="none")


def test_rows_are_the_sends_with_ranks_of_the_topology() -> None:
    answer = synth.synthesize("allgather", "dgx1", [7, 4, 6], engine="route", size="1M", costs="none")
    table = answer.sends("1M")
    assert len(table) == len(answer.schedule("1M")) == len(table.source)
    assert set(table.source.tolist()) == set(table.destination.tolist()) == {7, 4, 6}
    assert table.arrival_us.max() == pytest.approx(table.time_us)
    network = answer.algorithm("1M").problem.network
    ranks = np.array(answer.result.problem.ranks)
    ends = set(zip(ranks[network.src].tolist(), ranks[network.dst].tolist(), strict=True))
    assert set(zip(table.source.tolist(), table.destination.tolist(), strict=True)) <= ends


def test_a_multicast_by_a_switch_has_a_row_for_each_rank_that_it_reaches() -> None:
    answer = synth.synthesize("broadcast", "dgx-h100", engine="switch", size="64M", costs="none")
    table = answer.sends("64M")
    assert len(table) > len(table.schedule)
    multicast = np.flatnonzero(np.bincount(table.send) == 7)[0]
    rows = np.flatnonzero(table.send == multicast)
    assert set(table.source[rows].tolist()) == {0}
    assert sorted(table.destination[rows].tolist()) == [1, 2, 3, 4, 5, 6, 7]
    assert len(set(table.chunk[rows].tolist())) == 1
    with pytest.raises(synth.InputError, match="cannot be drawn"):
        table.plot_network()


def test_a_stored_schedule_has_the_same_sends(answer: synth.Synthesis, tmp_path: Path) -> None:
    paths = answer.save(tmp_path, target="none", proof=True)
    stored = next(path for path in paths if path.suffix == ".synth")
    table = synth.load(stored)
    sends = answer.sends(round(table.size_bytes))
    assert table.time_us == pytest.approx(sends.time_us)
    for column in ("source", "destination", "chunk", "step", "reduces"):
        assert getattr(table, column).tolist() == getattr(sends, column).tolist()
    assert repr(table).startswith(f"<{len(table)} sends of allgather on dgx1: ")


def test_a_quotient_has_the_sends_of_the_whole_problem(tmp_path: Path) -> None:
    problem = quotient_problem(load_topology("ring:5"), "alltoall")
    assert problem is not None
    path = written(tmp_path, problem, 1 << 20)
    table, stored = synth.load(path), load_schedule(path)
    assert len(table) == 5 * len(stored.schedule)
    assert table.time_us == pytest.approx(stored.claimed_us)
    assert table.problem.quotient is None
    assert set(table.destination.tolist()) == set(range(5))


def test_data_frames(answer: synth.Synthesis) -> None:
    frame = answer.sends("1M").to_pandas()
    assert list(frame) == ["source", "destination", "chunk", "step", "reduces", "start_us", "end_us", "arrival_us"]
    assert frame.arrival_us.max() == pytest.approx(answer.sends("1M").time_us)
    rows = answer.to_pandas()
    assert rows.time_us.tolist() == [row["time_us"] for row in answer.algorithms]


def test_a_timeline_has_a_box_for_each_send(answer: synth.Synthesis) -> None:
    table, axes = answer.sends("1M"), answer.plot_timeline("1M")
    boxes = [path.get_extents() for path in axes.collections[0].get_paths()]
    assert [box.x0 for box in boxes] == pytest.approx(table.start_us.tolist())
    assert [box.x1 for box in boxes] == pytest.approx(table.end_us.tolist())
    assert axes.get_lines()[0].get_xdata()[0] == pytest.approx(table.arrival_us.max())
    assert axes.get_xlim()[1] >= table.arrival_us.max()
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert [labels[round((box.y0 + box.y1) / 2)] for box in boxes] == [
        f"{a}→{b}" for a, b in zip(table.source, table.destination, strict=True)
    ]
    pyplot.close("all")


def test_a_network_has_a_line_for_each_link_with_its_load(answer: synth.Synthesis) -> None:
    axes = answer.plot_network("1M")
    lines = axes.collections[0]
    assert len(lines.get_segments()) == answer.algorithm("1M").problem.network.nlinks
    assert 0 < max(lines.get_array()) <= 1
    heads = [path.vertices[:3] for path in axes.collections[1].get_paths()]
    for line, (tip, left, right) in zip(lines.get_segments(), heads, strict=True):
        assert (tip - (left + right) / 2) @ (line[-1] - line[0]) > 0  # It points to the end of the link.
    assert {text.get_text() for text in axes.texts} == {"0", "1", "2", "3"}
    pyplot.close("all")


@pytest.mark.parametrize(("most", "reason"), [("MOST_VERTICES", "over 3 vertices"), ("MOST_EDGES", "at most 3")])
def test_a_network_that_is_too_large_to_draw_is_refused_with_the_reason(
    answer: synth.Synthesis, monkeypatch: pytest.MonkeyPatch, most: str, reason: str
) -> None:
    monkeypatch.setattr(f"synth.app.report.layout.{most}", 3)
    with pytest.raises(synth.InputError, match=reason):
        answer.plot_network("1M")
    pyplot.close("all")


def test_the_curve_of_an_answer_never_goes_below_the_bound(answer: synth.Synthesis) -> None:
    lines = {line.get_label(): line.get_ydata() for line in answer.plot_frontier().get_lines()}
    assert all(lines["synth"] >= (1 - 1e-9) * lines["bound: nothing is faster"])
    assert answer._repr_html_().count("<svg") == 1
    assert pyplot.get_fignums() == [1]  # The drawing for a notebook leaves no open figure behind.
    pyplot.close("all")


def test_the_curve_of_one_size_is_a_point() -> None:
    """Check that an answer for one size, which need not be a power of two, can be seen."""
    answer = synth.synthesize("allgather", "ring:4", engine="route", size=3000)
    (line,) = (line for line in answer.plot_frontier().get_lines() if line.get_label() == "synth")
    assert (list(line.get_xdata()), line.get_marker()) == ([3000], "o")
    pyplot.close("all")


def test_drawing_takes_the_callers_axes(answer: synth.Synthesis) -> None:
    figure, axes = pyplot.subplots()
    assert answer.plot_timeline("1K", axes) is axes
    pyplot.close(figure)


def test_what_an_extra_installs_is_named(answer: synth.Synthesis, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, extra, call in (
        ("pandas", "pandas", answer.to_pandas),
        ("matplotlib.pyplot", "plots", answer.plot_frontier),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(synth.InputError, match=rf"pip install '\.\[{extra}\]'"):
            call()


def test_a_report_is_written(answer: synth.Synthesis, tmp_path: Path) -> None:
    page = answer.report(tmp_path / "answer.html").read_text(encoding="utf-8")
    assert page.count('class="algorithm"') == len(answer.algorithms)
    assert 'class="badge bad"' not in page
    assert "Wrong:" not in page
    with pytest.raises(synth.InputError, match="nowhere"):
        answer.report(tmp_path / "nowhere" / "answer.html")
