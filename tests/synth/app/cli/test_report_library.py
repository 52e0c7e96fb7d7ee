"""The page about a whole library: a cell for each question and size, with its gap, and working links."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from emit.library.index import index_text
from emit.msccl.format import write_msccl
from runtime.algorithms.built_in import built_in
from synth.app.report.library import SIZES, STEPS, find_library
from tests.emit.library.made_indices import entry_row
from tests.synth.app.cli.calling import Call

CURVE = [[size, 1.5 * 2.0**at, 2.0**at] for at, size in enumerate(SIZES[:4])]


class Reader(HTMLParser):
    """A parser of the cells of heat maps (class and text), links and selected texts; it checks the order of tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[tuple[str, str]]] = []
        self.links: list[str] = []
        self.asked: list[str] = []
        self.kind: str | None = None
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag not in ("meta", "link"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        self.kind = attributes.get("class") if tag == "td" and "heat" in self.text else None
        if tag == "table":
            self.text = attributes.get("class") or ""
        self.links += [href] if tag == "a" and (href := attributes.get("href")) else []
        self.asked += [value for key in ("src", "srcset", "data") if (value := attributes.get(key))]
        if self.kind is not None:
            self.rows[-1].append((self.kind, ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.kind = None

    def handle_data(self, data: str) -> None:
        if self.kind is not None:
            self.rows[-1][-1] = (self.kind, data)


def library(folder: Path, *rows: dict[str, Any]) -> Path:
    (folder / "msccl").mkdir(parents=True)
    for row in rows:
        (folder / row["file"]).write_text(write_msccl(built_in(row["collective"], "ring", len(row["group"]))))
    (folder / "index.json").write_bytes(index_text(rows))
    return folder


@pytest.fixture
def two(working_folder: Path) -> Path:
    """Write a library of an all-reduce and an allgather.

    The all-reduce has a curve, serves up to 64 KiB, and serves a further group. The allgather has one time.
    """
    fields = {"topology": "ring:4", "protocol": "Simple", "shown_bytes": 1 << 20, "time_us": 3.0, "bound_us": 2.0,
             "gap": 1.5, "proof": "cut <&>", "libraries": {"NCCL": {"vs": 2.0}}}  # fmt: skip
    group = {"group": [0, 1, 2, 3], "communicator": [0, 1, 2, 3]}
    return library(
        working_folder / "<lib>",
        entry_row(**fields, **group, max_bytes=1 << 16, curve=CURVE, isomorphic_groups=[[1, 2, 3, 0]]),
        entry_row(**fields, **group, collective="allgather", file="msccl/b.xml", min_bytes=1 << 12) | {"gap": 2.6},
    )


def test_cells_are_the_gaps_that_the_index_states(two: Path, synth: Call, working_folder: Path) -> None:
    answer = synth("report", two, "-o", "page one.html")
    assert (answer.code, answer.err) == (0, "")
    assert "2 problems, 2 pages" in answer.out
    text = (working_folder / "page one.html").read_text()
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    cells = [row for row in reader.rows if len(row) == len(SIZES)]
    assert len(cells) == 2
    for size, (kind, gap_text), (other_kind, other_text) in zip(SIZES, *cells[::-1], strict=True):
        gap = 1.5  # The gap of the curve, and of the entry.
        right = (f"h{sum(gap > step for step in STEPS)}", f"{gap:.2f}") if size <= 1 << 16 else ("none", "–")
        assert (kind, gap_text) == right
        assert (other_kind, other_text) == (("h5", "2.60") if size >= 1 << 12 else ("none", "–"))
    assert reader.asked == []
    assert "://" not in text
    assert "&lt;lib&gt;" in text
    assert "cut &lt;&amp;&gt;" in text
    assert reader.links
    for link in reader.links:
        assert re.search("allreduce|allgather", (working_folder / unquote(link)).read_text())
    assert len(list((working_folder / "page one-pages").iterdir())) == 2


def test_rows_of_several_networks_name_theirs(synth: Call, working_folder: Path) -> None:
    group = {"group": [0, 1, 2, 3], "communicator": [0, 1, 2, 3], "shown_bytes": 1 << 20, "time_us": 3.0, "gap": 1.5}
    hurt = "ring:4 without link:0-1"
    library(
        working_folder / "lib",
        entry_row(**group, topology="ring:4"),
        entry_row(**group, topology=hurt, file="msccl/b.xml"),
    )
    assert synth("report", "lib", "-o", "page.html", "--no-pages").code == 0
    text = (working_folder / "page.html").read_text()
    for topology in ("ring:4", hurt):
        assert f'<th scope="row">0 1 2 3, on {topology}</th>' in text


def test_without_pages(two: Path, synth: Call, working_folder: Path) -> None:
    assert synth("report", two, "--no-pages").code == 0
    assert "<a " not in (working_folder / "report.html").read_text()
    assert not (working_folder / "report-pages").exists()
    assert "--no-pages: is for a library" in synth("report", two / "msccl" / "a.xml", "--no-pages").refusal


def test_a_single_question_has_no_library_page(two: Path, synth: Call, working_folder: Path) -> None:
    rows = json.loads((two / "index.json").read_bytes())["algorithms"]
    (two / "index.json").write_bytes(index_text(rows[:1]))
    assert find_library(two) is None
    (two / "msccl" / "b.xml").unlink()
    assert "1 algorithm" in synth("report", two).out
    assert "Frontier" in (working_folder / "report.html").read_text()


def test_a_wrong_file_is_reported_and_shown(two: Path, synth: Call) -> None:
    path = two / "msccl" / "a.xml"
    path.write_text(path.read_text().replace('type="s"', 'type="r"', 1))
    answer = synth("report", two)
    assert answer.code == 1
    assert "a.xml: wrong" in answer.out
    (two / "msccl" / "b.xml").unlink()
    assert "names msccl/b.xml, which does not exist" in synth("report", two).refusal


def test_a_library_and_its_page_show_the_sizes_of_the_cluster_file_and_how_often_nccl_is_beaten(
    synth: Call, working_folder: Path
) -> None:
    """Check that show and the pages state only sizes that were asked for, each with a time, and compare with NCCL."""
    text = 'topology = "dgx-h100"\ngroups = ["0-3"]\nsizes = "64K:4M"\nbudget = "4s"\ntargets = ["mscclpp"]\n'
    for collectives, one_page in (("allgather", True), ('allgather", "reduce_scatter', False)):
        (working_folder / "c.toml").write_text(f'{text}collectives = ["{collectives}"]\n')
        built = synth("library", "build", "c.toml", "--out", "lib", "--jobs", 1)
        assert (built.code, Path("lib/index.json").exists()) == (0, True)
        shown = synth("library", "show", "lib", "--wide").out
        rows = [line for line in shown.splitlines() if " mscclpp " in line and "no file" not in line]
        assert rows
        for row in rows:
            times = re.findall(r"@ ([\d.]+)([KM])", row)
            assert times
            assert all(64 << 10 <= float(number) * (1 << {"K": 10, "M": 20}[unit]) <= 4 << 20 for number, unit in times)
            assert re.search(r"\d ×|about NCCL's", row)
        assert not re.search(r"1 KiB|1 GiB|up to|from \d|all sizes", "".join(rows))
        sentence = "gainst NCCL, at the powers of two from 64 KiB to 4 MiB: faster"
        assert sentence[1:] in " ".join(shown.split())
        assert synth("report", "lib", "--no-pages" if not one_page else "--out=report.html").code == 0
        page = (working_folder / "report.html").read_text()
        assert f"A{sentence}" in page
        assert "GiB" not in re.sub("<[^>]*>", " ", page[page.index("<main") : page.index("</main")]) or not one_page
        if one_page:
            assert '<th scope="col">vs NCCL</th>' in page
            continue
        for sizes in ([1, 1], [4096, 1], ["x"], [1 << 70, 1 << 71]):  # Records may be wrong.
            for record in Path("lib/builds").iterdir():
                record.write_text(json.dumps(json.loads(record.read_text()) | {"sizes": sizes}))
            assert (synth("library", "show", "lib").code, synth("report", "lib", "--no-pages").code) == (0, 0)
        reader = Reader()
        reader.feed(page)
        cells = [row for row in reader.rows if len(row) == len(SIZES)]
        assert len(cells) == 2
        for row in cells:
            assert [kind == "none" for kind, _ in row] == [not 64 << 10 <= size <= 4 << 20 for size in SIZES]
