"""`synth report`: a page of whatever the other commands write, and one line for what it cannot show."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from emit.library.index import index_text
from synth import synthesize
from synth.model.text import format_served, format_size, format_time
from tests.hang import HANG_S
from tests.synth.app.cli.calling import Call
from tests.synth.app.report.report_pages import page_data


def read(path: Path) -> list[dict[str, object]]:
    algorithms: list[dict[str, object]] = page_data(path.read_text(encoding="utf-8"))["algorithms"]
    return algorithms


def load_index_rows(library: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((library / "index.json").read_text())["algorithms"]
    return rows


@pytest.fixture(scope="module")
def written_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    synthesize("allgather", "ring:4", size="1M", engine="route").save(folder, proof=True)
    synthesize("allreduce", "full:3", engine="route").save(folder)
    return folder


@pytest.fixture
def library(written_library: Path, working_folder: Path) -> Path:
    return Path(shutil.copytree(written_library, working_folder / "out"))


def test_a_library(synth: Call, working_folder: Path, library: Path) -> None:
    entries = load_index_rows(library)
    size, bound_us = entries[0]["shown_bytes"], entries[0]["bound_us"]  # The worst size is none of the curve.
    entries[0] |= {"curve": [], "worst": {"bytes": size - 4, "time_us": 3 * bound_us, "bound_us": bound_us, "gap": 3}}
    (library / "index.json").write_bytes(index_text(entries))
    answer = synth("report", "out")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("report.html: ")
    html = (working_folder / "report.html").read_text()
    assert "Gap (time / bound) by message size" in html
    assert "<dt>gap, largest</dt><dd>3.000<" in html
    pages = sorted((working_folder / "report-pages").iterdir())  # Pages of its two questions.
    html = "".join(page.read_text() for page in pages)
    algorithms = [algorithm for page in pages for algorithm in read(page)]
    kinds = [algorithm["kind"] for algorithm in algorithms]
    assert kinds.count("program") == len(entries)
    assert kinds.count("schedule") == len({e["schedule"] for e in entries} - {None}) >= 1
    for entry in entries:
        assert Path(entry["file"]).name in html
    assert html.count("<option ") == len(algorithms)
    assert "work" not in re.findall(r"file://|/tmp/|" + re.escape(str(working_folder)), html)
    # A file that the index names and that does not exist is reported as missing, and no page is written.
    (library / entries[0]["file"]).unlink()
    assert entries[0]["file"] in synth("report", "out", "-o", "other.html").refusal
    assert not (working_folder / "other.html").exists()


@pytest.fixture(scope="module")
def costed_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write plans of two questions with costs and several ranges of sizes each, with their schedules and proofs."""
    folder = tmp_path_factory.mktemp("costed")
    for collective in ("allreduce", "allgather"):
        answer = synthesize(collective, "dgx-a100", (0, 2), engine="route", budget=1, target="mscclpp")
        answer.save(folder, proof=True)
    return folder


def test_every_row_of_a_librarys_pages_states_the_index(
    synth: Call, working_folder: Path, costed_library: Path
) -> None:
    entries = load_index_rows(costed_library)
    assert len({entry["shown_bytes"] for entry in entries}) > 1
    assert all(entry["costs"] for entry in entries)
    assert synth("report", costed_library).code == 0
    row_of = {Path(entry[kind]).name: entry for kind in ("file", "schedule") for entry in reversed(entries)}
    pages = list((working_folder / "report-pages").iterdir())
    shown = []
    for page in pages:
        html = page.read_text(encoding="utf-8")
        for row in re.findall(r'<tr data-row="[0-9]+">(.*?)</tr>', html):
            cells = [unescape(re.sub("<.*?>", "", cell)) for cell in row.split("</td>")[:-1]]
            name, sizes, time, bound, gap, versus, _ = cells
            entry = row_of[name]
            shown.append(name)
            assert sizes == format_served(entry["min_bytes"], entry["max_bytes"])
            assert time == f"{format_time(entry['time_us'])} @ {format_size(entry['shown_bytes'])}"
            assert (bound, gap) == (format_time(entry["bound_us"]), f"{entry['gap']:.3f}")
            assert versus == f"{entry['libraries']['NCCL']['vs']:.2f} ×"
        table = re.search(r'data-table="([^"]*)"', html)
        assert table is not None
        curves: dict[str, dict[float, float]] = defaultdict(dict)
        for point in csv.DictReader(io.StringIO(unescape(table[1]))):
            curves[point["curve"]][float(point["bytes"])] = float(point["us"])
        assert curves.keys() == {*shown[-len(curves) + 2 :], "NCCL", "bound"}
        for name in curves.keys() - {"NCCL"}:
            index = 2 if name == "bound" else 1
            for row in row_of[name if name != "bound" else shown[-1]]["curve"]:
                assert curves[name][row[0]] == pytest.approx(row[index], rel=1e-6)
        for name, algorithm in zip(shown[-len(curves) + 2 :], read(page), strict=True):
            assert algorithm["unit"] == "µs"
            if algorithm["kind"] == "program":
                assert algorithm["span"] == pytest.approx(row_of[name]["time_us"], rel=1e-6)
    assert sorted(shown) == sorted(row_of)


def test_a_bound_that_the_proof_does_not_reach_is_shown_as_wrong(
    synth: Call, working_folder: Path, costed_library: Path
) -> None:
    index = Path(shutil.copytree(costed_library, working_folder / "out")) / "index.json"
    document = json.loads(index.read_text())
    entry = document["algorithms"][0]
    entry["bound_us"] *= 1.01
    index.write_text(json.dumps(document))
    answer = synth("report", "out")
    assert answer.code == 1
    assert f"{Path(entry['schedule']).name}: wrong: the index states a bound of " in f"{answer.flat} "


def test_one_schedule_and_one_program(synth: Call, working_folder: Path, library: Path) -> None:
    (schedule,) = library.glob("schedules/*.synth")
    assert synth("report", schedule, "-o", "a.html").code == 0
    assert [algorithm["kind"] for algorithm in read(working_folder / "a.html")] == ["schedule"]
    program = next(library.glob("msccl/allgather*.xml"))
    assert synth("report", program, "-o", "b.html").code == 0
    assert read(working_folder / "b.html")[0]["unit"] == "µs"
    assert "No times are known" not in (working_folder / "b.html").read_text(encoding="utf-8")
    alone = Path(shutil.copy(program, working_folder / "alone.xml"))
    program.write_text(program.read_text() + "\n")  # The index's times are those of other bytes.
    for changed in (alone, program):
        assert synth("report", changed, "-o", "b.html").code == 0
        assert read(working_folder / "b.html")[0]["unit"] == "steps"
        assert "No times are known" in (working_folder / "b.html").read_text(encoding="utf-8")
    arguments = ("--topo", "ring:8", "--group", "0-3", "--size", "64K")
    assert "no link" in synth("report", program, "-o", "c.html", *arguments).refusal
    assert not (working_folder / "c.html").exists()
    assert synth("report", program, "-o", "c.html", "--topo", "ring:4", "--size", "64K").code == 0
    assert read(working_folder / "c.html")[0]["unit"] == "µs"


def test_a_wrong_proof_is_shown_and_reported(synth: Call, working_folder: Path, library: Path) -> None:
    """Check that a proof that claims more than it proves is reported."""
    (proof,) = library.glob("schedules/*.proof.json")
    text = proof.read_text()
    claimed = re.search(r'"bound_us": ([0-9.e+-]+)', text)
    assert claimed is not None
    proof.write_text(text.replace(claimed[0], f'"bound_us": {float(claimed[1]) * 1.01!r}', 1))
    answer = synth("report", "out")
    assert answer.code == 1
    assert "wrong" in answer.out
    assert "refused" in (working_folder / "report.html").read_text()


def test_same_input_same_bytes(synth: Call, process: Call, working_folder: Path, library: Path) -> None:
    """Check that this process and another one, with different hash seeds, write the same bytes."""
    written = []
    for call in (synth, process):
        assert call("report", library).code == 0
        pages = [working_folder / "report.html", *sorted((working_folder / "report-pages").iterdir())]
        written.append({page.name: page.read_bytes() for page in pages})
    assert written[0] == written[1]
    assert len(written[0]) == 3


# The process is told to end while the folder of the pages is being filled.
_ENDED = """
import os, signal, sys
from synth.app.cli import main
from synth.app.cli.files import report
which = int(sys.argv.pop())
report.library_page = lambda *_: os.kill(os.getpid(), which)
main()
"""


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_a_command_that_is_told_to_end_leaves_nothing(
    working_folder: Path, library: Path, which: signal.Signals
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _ENDED, "report", library.name, str(int(which))],
        cwd=working_folder,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert (ended.returncode, ended.stderr.strip()) == (130, "synth: interrupted")
    assert [path.name for path in working_folder.iterdir()] == [library.name]


def test_refusals(synth: Call, working_folder: Path) -> None:
    (working_folder / "empty").mkdir()
    (working_folder / "a.xml").write_text("<algo>")
    (working_folder / "a.synth").write_bytes(b"nothing")
    (working_folder / "old.html").write_text("old")
    for arguments, message in (
        (("none.synth",), "no such file"), (("empty",), "contains no schedule (.synth)"), (("a.xml",), "a.xml line 1"),
        (("a.synth",), "a.synth"), (("a.xml", "--group", "0-3"), "--topo"), (("a.xml", "--size", "1M"), "--topo"),
        (("a.xml", "--topo", "no-such"), "no-such"), (("a.xml", "-o", ""), "--out"), ((), "FILE|DIR"),
    ):  # fmt: skip
        assert message in synth("report", *arguments).refusal
    assert "line 1" in synth("report", "a.xml", "-o", "old.html").refusal
    assert (working_folder / "old.html").read_text() == "old"
    assert not (working_folder / "report.html").exists()
    (working_folder / "b.xml").write_text("")
    assert "b.xml" in synth("report", "b.xml").refusal


def test_a_page_that_cannot_be_written(synth: Call, working_folder: Path, library: Path) -> None:
    assert library.is_dir()
    assert "cannot be written" in synth("report", "out", "-o", "none/report.html").refusal
    assert "cannot be written" in synth("report", "out", "-o", "out").refusal
    assert [p.name for p in working_folder.iterdir()] == ["out"]


def test_a_library_is_shown_for_its_own_ranks(synth: Call, working_folder: Path) -> None:
    """Check the ranks of a library's group: the middle of a line comes first.

    On ranks 0, 1, 2 the file would send where there is no link.
    """
    assert synth("allgather", "--topo", "line:4", "--group", "2,1,3", "--engine", "route", "--size", "3M").code == 0
    assert synth("report", "out", "--topo", "line:4").code == 0
    assert [algorithm["unit"] for algorithm in read(working_folder / "report.html")] == ["µs", "µs"]
    program = next((working_folder / "out" / "msccl").iterdir())
    assert synth("report", program, "--topo", "line:4").code == 0
    alone = shutil.copy(program, working_folder / "alone.xml")
    assert "no link" in synth("report", alone, "--topo", "line:4").refusal
    assert synth("report", program, "--topo", "line:4", "--group", "2,1,3").code == 0
