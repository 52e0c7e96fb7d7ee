"""`synth report`: a page of whatever the other commands write, and one line for what it cannot show."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from synth import synthesize
from tests.synth.app.cli.calling import Call
from tests.synth.app.report.report_pages import page_data

ASKED = ("allgather", "--topo", "ring:4", "--engine", "route", "--size", "1M")


def read(path: Path) -> list[dict[str, object]]:
    known: list[dict[str, object]] = page_data(path.read_text(encoding="utf-8"))["algorithms"]
    return known


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    synthesize("allgather", "ring:4", size="1M", engine="route").save(folder, proof=True)
    synthesize("allreduce", "full:3", engine="route").save(folder)
    return folder


@pytest.fixture
def library(made: Path, here: Path) -> Path:
    return Path(shutil.copytree(made, here / "out"))


def test_a_library(synth: Call, here: Path, library: Path) -> None:
    answer = synth("report", "out")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("report.html: ")
    assert "Time over proved bound" in (here / "report.html").read_text()
    pages = sorted((here / "report-pages").iterdir())  # of its two questions
    html = "".join(page.read_text() for page in pages)
    known = [one for page in pages for one in read(page)]
    entries = json.loads((library / "index.json").read_text())["algorithms"]
    kinds = [one["kind"] for one in known]
    assert kinds.count("program") == len(entries)
    assert kinds.count("schedule") == len({e["schedule"] for e in entries} - {None}) >= 1
    for entry in entries:
        assert Path(entry["file"]).name in html
    assert html.count("<option ") == len(known)
    assert "work" not in re.findall(r"file://|/tmp/|" + re.escape(str(here)), html)
    # a file that the index names and is not there is said to be missing, and no page is written
    (library / entries[0]["file"]).unlink()
    assert entries[0]["file"] in synth("report", "out", "-o", "other.html").refusal
    assert not (here / "other.html").exists()


def test_one_schedule_and_one_program(synth: Call, here: Path, library: Path) -> None:
    (schedule,) = library.glob("schedules/*.synth")
    assert synth("report", schedule, "-o", "a.html").code == 0
    assert [one["kind"] for one in read(here / "a.html")] == ["schedule"]
    program = next(library.glob("msccl/allgather*.xml"))
    assert synth("report", program, "-o", "b.html").code == 0
    assert read(here / "b.html")[0]["unit"] == "steps"
    asked = ("--topo", "ring:8", "--group", "0-3", "--size", "64K")
    assert "no link" in synth("report", program, "-o", "c.html", *asked).refusal
    assert not (here / "c.html").exists()
    assert synth("report", program, "-o", "c.html", "--topo", "ring:4", "--size", "64K").code == 0
    assert read(here / "c.html")[0]["unit"] == "µs"


def test_what_is_wrong_is_shown_and_said(synth: Call, here: Path, library: Path) -> None:
    """A proof that claims more than it proves."""
    (proof,) = library.glob("schedules/*.proof.json")
    text = proof.read_text()
    claimed = re.search(r'"bound_us": ([0-9.e+-]+)', text)
    assert claimed is not None
    proof.write_text(text.replace(claimed[0], f'"bound_us": {float(claimed[1]) * 1.01!r}', 1))
    answer = synth("report", "out")
    assert answer.code == 1
    assert "wrong" in answer.out
    assert "refused" in (here / "report.html").read_text()


def test_same_input_same_bytes(process: Call, here: Path) -> None:
    """In two processes with different hash seeds, as Python gives them."""
    assert process(*ASKED, "--proof").code == 0
    for name in ("a.html", "b.html"):
        assert process("report", "out", "-o", name).code == 0
    assert (here / "a.html").read_bytes() == (here / "b.html").read_bytes()


def test_refusals(synth: Call, here: Path) -> None:
    (here / "empty").mkdir()
    (here / "a.xml").write_text("<algo>")
    (here / "a.synth").write_bytes(b"nothing")
    (here / "old.html").write_text("old")
    for arguments, words in (
        (("none.synth",), "no such file"), (("empty",), "contains no .synth"), (("a.xml",), "a.xml line 1"),
        (("a.synth",), "a.synth"), (("a.xml", "--group", "0-3"), "--topo"), (("a.xml", "--size", "1M"), "--topo"),
        (("a.xml", "--topo", "no-such"), "no-such"), (("a.xml", "-o", ""), "--out"), ((), "FILE|DIR"),
    ):  # fmt: skip
        assert words in synth("report", *arguments).refusal
    assert "line 1" in synth("report", "a.xml", "-o", "old.html").refusal
    assert (here / "old.html").read_text() == "old"
    assert not (here / "report.html").exists()
    (here / "b.xml").write_text("")
    assert "b.xml" in synth("report", "b.xml").refusal


def test_a_page_that_cannot_be_written(synth: Call, here: Path, library: Path) -> None:
    assert library.is_dir()
    assert "cannot be written" in synth("report", "out", "-o", "none/report.html").refusal
    assert "cannot be written" in synth("report", "out", "-o", "out").refusal
    assert [p.name for p in here.iterdir()] == ["out"]


def test_a_library_stands_where_it_was_made_for(synth: Call, here: Path) -> None:
    """The middle of a line comes first in the group: on ranks 0, 1, 2 the file would send where there is no link."""
    assert synth("allgather", "--topo", "line:4", "--group", "2,1,3", "--engine", "route", "--size", "3M").code == 0
    assert synth("report", "out", "--topo", "line:4").code == 0
    assert [one["unit"] for one in read(here / "report.html")] == ["µs", "µs"]
    program = next((here / "out" / "msccl").iterdir())
    assert "no link" in synth("report", program, "--topo", "line:4").refusal
    assert synth("report", program, "--topo", "line:4", "--group", "2,1,3").code == 0
