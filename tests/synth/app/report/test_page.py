"""A report as a page: sound HTML that fetches nothing, escapes everything, stays small and is true."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emit.check.program import check
from emit.columns import columns_of
from emit.findings import Findings
from emit.goal import goal_for
from emit.library.index import index_text
from emit.library.saving.save import save
from emit.msccl.format import write_msccl
from emit.program import Program
from synth import synthesize
from synth.app.report.item import _WITNESSES, Item, ItemTiming, _explain_sum, _explain_witness
from synth.app.report.page import HEIGHT, MOST_ITEMS, Page, frontier_plot, report
from synth.app.report.program import program_view
from synth.baselines.nccl.fitted import fitted_model
from synth.bounds.check import WITNESSES
from synth.model.problem import make_problem
from synth.model.text import format_number, format_spans, format_time
from synth.storage.proof import load_proof, proof_path
from synth.storage.schedule_file import load_schedule
from synth.timing.simulate import predict_us
from tests.emit.small_programs import RIGHT, allpairs_allreduce, ring_allgather, ring_allreduce
from tests.synth.app.report.report_pages import Elements, fetched, page_data, stored, straight
from topologies.errors import InputError
from topologies.load import load
from topologies.topology import Limit

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&lt;\"'<!--@data-->"
MOST_BYTES = 4_000_000


def figures(page: Page) -> dict[str, object]:
    algorithm = page_data(page.html)["algorithms"][0]
    assert isinstance(algorithm, dict)
    return algorithm


def text_of(html: str) -> str:
    page = Elements(html)
    return " ".join(text for tag, text in page.texts if tag not in ("script", "style"))


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("mesh"), make_problem(load("mesh:2x3"), "alltoall"), proof=True)


def test_the_page_is_whole_and_fetches_nothing(mesh: Path) -> None:
    html = report(mesh).html
    assert html.startswith("<!DOCTYPE html>\n")
    page = Elements(html)
    assert fetched(html) == []
    tags = [tag for tag, _ in page.result]
    assert [tags.count(tag) for tag in ("html", "head", "body", "h1", "main", "script", "style")] == [1] * 5 + [2, 1]
    policies = [a["content"] for tag, a in page.result if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies
    assert str(policies[0]).startswith("default-src 'none'; ")
    assert "<!--@" not in html
    ids = [a["id"] for _, a in page.result if "id" in a]
    assert len(set(ids)) == len(ids)
    # Every control has a name, and every name that is used exists.
    for tag, a in page.result:
        if tag in ("canvas", "input", "select"):
            assert a.get("aria-label") or a.get("id") in ("chooser", "seen"), a
        for key in ("aria-labelledby", "aria-describedby", "for"):
            assert a.get(key) is None or a[key] in ids, a


@pytest.mark.parametrize(
    "planted",
    [
        '<img src="https://example.org/x.png">', '<script src="//cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="x.css">', "<style>@import 'x.css';</style>",
        '<p style="background: url(x.png)">x</p>', "<script>fetch('x')</script>", '<a href="x.html">x</a>',
    ],
)  # fmt: skip
def test_a_fetch_would_be_seen(mesh: Path, planted: str) -> None:
    assert fetched(report(mesh).html.replace("</body>", planted + "</body>"))


def test_figures_stand_in_the_page(mesh: Path) -> None:
    page, known_schedule = report(mesh), load_schedule(mesh)
    proof = load_proof(proof_path(mesh))
    data = page_data(page.html)
    assert data["format"] == "synth-report-1"
    assert figures(page)["span"] == pytest.approx(known_schedule.claimed_us, rel=1e-6)
    assert not page.wrong
    text = text_of(page.html)
    assert f"{proof.time_us / proof.bound_us:.3f}" in text
    assert proof.witnesses[0].text in text or proof.witnesses[0].kind == "path"
    assert "No algorithm for this question on this network takes less than" in text


def test_the_frontier_is_drawn_where_the_times_are(mesh: Path) -> None:
    """Check the curve's points against the simulator, and that the bound is never above the curve."""
    html, known_schedule = report(mesh).html, load_schedule(mesh)
    curve = re.search(r'<g class="curve c0"[^>]*><path d="M([^"]+)"', html)
    bound = re.search(r'<path class="bound" d="M([^"]+)"', html)
    assert curve is not None
    assert bound is not None
    drawn, below = ([[float(v) for v in p.split()] for p in path[1].split("L")] for path in (curve, bound))
    sizes = sorted({*(2.0**e for e in range(10, 31)), known_schedule.schedule.size_bytes})
    times = [predict_us(known_schedule.problem, known_schedule.schedule, size) for size in sizes]
    assert len(drawn) == len(below) == len(sizes)
    logs = np.log10(times)
    y = np.array([p[1] for p in drawn])
    fit = np.polyfit(logs, y, 1)
    assert fit[0] < 0  # Larger is higher, and SVG counts downwards.
    assert np.abs(np.polyval(fit, logs) - y).max() < 0.05
    assert all(b[1] >= c[1] - 0.02 for b, c in zip(below, drawn, strict=True))
    assert all(0 <= p[1] <= HEIGHT for p in (*drawn, *below))


def plotted(name: str, timing: ItemTiming) -> str:
    return frontier_plot({0: Item(name, "allgather", (), "", timing, {}, (), "", "")})


def test_a_plot_without_times_is_none() -> None:
    assert frontier_plot({}) == ""
    assert plotted("a", ItemTiming("x", 0.0, 0.0, bound=((0.0, 0.0),))) == ""
    plot = plotted("a<b", ItemTiming("<t>", 1.0, 1e-9))
    assert "a&lt;b" in plot
    assert "&lt;t&gt;" in plot


def test_names_are_escaped(tmp_path: Path) -> None:
    """Check a topology and a file whose names are markup, and would end the script and the style."""
    ring = load("ring:3")
    topology = replace(ring, name=NASTY, limits=(Limit(NASTY, np.array([0, 1]), 60.0),))
    path = stored(tmp_path, make_problem(topology, "allgather"), proof=True)
    nasty = tmp_path / "<img src=x onerror=alert(3)>&amp;.synth"
    proof_path(path).rename(proof_path(nasty))
    path.rename(nasty)
    plain_ring = replace(ring, limits=(Limit("plain", np.array([0, 1]), 60.0),))
    plain = Elements(report(stored(tmp_path, make_problem(plain_ring, "allgather"), proof=True)).html)
    html = report(nasty).html
    page = Elements(html)
    assert [tag for tag, _ in page.result] == [tag for tag, _ in plain.result]
    assert [sorted(a) for _, a in page.result] == [sorted(a) for _, a in plain.result]
    assert fetched(html) == []
    assert NASTY in text_of(html)
    assert page_data(html)["algorithms"][0]["network"]["limits"][0]["name"] == NASTY
    folder = Elements(report(tmp_path).html)
    assert not any(tag == "img" or "onerror" in a for tag, a in folder.result)


@pytest.mark.parametrize(("spec", "drawn"), [("full:128", False), ("torus:8x8x8", True)])
def test_many_ranks_make_a_small_page(tmp_path: Path, spec: str, drawn: bool) -> None:
    """Check 512 ranks with a quarter of a million chunks, shown by one rank's sends, which all others copy."""
    page = report(straight(tmp_path, spec))
    n = load(spec).nranks
    assert len(page.html.encode()) < MOST_BYTES
    algorithm = page_data(page.html)["algorithms"][0]
    assert algorithm["sends"]["total"] >= n * (n - 1)
    assert algorithm["sends"]["shown"] * n == algorithm["sends"]["total"]
    assert algorithm["rows"]["copies"] == n
    assert len(algorithm["rows"]["names"]) * n <= algorithm["rows"]["links"]
    # Sixteen thousand links in one drawing would be unreadable.
    assert bool(algorithm["network"]["u"]) == drawn
    assert algorithm["network"]["busiest"] > 0
    Elements(page.html)


def test_many_algorithms_share_the_room(tmp_path: Path) -> None:
    path = stored(tmp_path, make_problem(load("full:6"), "alltoall", chunks=16))
    for i in range(12):
        (tmp_path / f"copy{i:02}.synth").write_bytes(path.read_bytes())
    page = report(tmp_path)
    assert (page.algorithms, page.files) == (13, 13)
    assert len(page.html.encode()) < MOST_BYTES
    for i in range(MOST_ITEMS):
        (tmp_path / f"more{i}.synth").write_bytes(b"")
    with pytest.raises(InputError, match=f"at most {MOST_ITEMS}"):
        report(tmp_path)


def test_wrong_files_are_shown_as_wrong(tmp_path: Path) -> None:
    """Check a proof for another file, and a program with a wrong result."""
    path = stored(tmp_path, make_problem(load("ring:4"), "allgather"), proof=True)
    beside = proof_path(path)
    beside.write_text(beside.read_text().replace('"schedule": "', '"schedule": "0'))
    page = report(path)
    ((name, why),) = page.wrong
    assert name == path.name
    assert "refused" in why
    text = text_of(page.html)
    assert "Wrong:" in text
    assert "No algorithm for this question" not in text
    right = write_msccl(ring_allgather(4))
    assert report(written(tmp_path, right)).wrong == ()
    spoilt = right.replace('type="rcs" srcbuf="o" srcoff="1"', 'type="rcs" srcbuf="o" srcoff="2"', 1)
    spoilt = spoilt.replace('dstoff="1"', 'dstoff="2"', 1)
    assert spoilt != right
    assert [name for name, _ in report(written(tmp_path, spoilt)).wrong] == ["program.xml"]


def test_wrong_files_of_one_name_in_two_folders_are_both_listed(tmp_path: Path) -> None:
    (tmp_path / "msccl").mkdir()
    stuck = write_msccl(ring_allgather(3)).replace('type="s"', 'type="rcs"')
    written(tmp_path, stuck), written(tmp_path / "msccl", stuck)
    assert [name for name, _ in report(tmp_path).wrong] == ["program.xml"] * 2


def written(folder: Path, text: str) -> Path:
    path = folder / "program.xml"
    path.write_text(text)
    return path


def view_of(program: Program) -> dict[str, object]:
    assert check(program).ok
    return program_view(program, 10**6)


def test_a_ring_is_listed_hop_by_hop() -> None:
    n = 5
    view = program_view(ring_allgather(n), 10**6)
    sends = view["sends"]
    assert sends["total"] == sends["shown"] == n * (n - 1)
    for i in range(sends["shown"]):
        source = sends["links"]["src"][sends["link"][i]]
        hop = sends["hop"][i]
        assert sends["start"][i] == hop - 1
        assert sends["end"][i] == hop
        assert sends["words"][sends["what"][i]] == f"rank {(source - hop + 1) % n}'s chunk 0"
        parents = sends["from"][sends["from_ptr"][i] : sends["from_ptr"][i + 1]]
        assert [sends["hop"][p] for p in parents] == [hop - 1] * (hop > 1)
        assert all(sends["links"]["dst"][sends["link"][p]] == source for p in parents)
    assert view["network"]["load"] == [1.0] * n
    # A link is in use from the first tick to the last but one, in which the last chunk is received.
    assert view["rows"]["load"] == pytest.approx([(n - 1) / n] * n)


@pytest.mark.parametrize(
    "program",
    [*RIGHT.values(), ring_allreduce(3, 2), allpairs_allreduce(5, 2), ring_allgather(2)],
)
def test_any_program(program: Program) -> None:
    """Check that ticks respect every wait, and that carried contributions add up to the collective's result."""
    view = view_of(program)
    c = columns_of(program, Findings())
    blocks, sends = view["blocks"], view["sends"]
    tick = {(blocks["rank"][b], blocks["tb"][b], position): at for b, position, at, *_ in blocks["listed"]}
    assert len(tick) == program.nsteps
    for rank, tb, position, step in program.steps():
        assert position == 0 or tick[rank, tb, position] > tick[rank, tb, position - 1]
        if step.dep_tb >= 0:
            assert tick[rank, tb, position] > tick[rank, step.dep_tb, step.dep_step]
    took: dict[int, list[int]] = {}
    for step in np.flatnonzero(c.receives >= 0).tolist():
        took.setdefault(int(c.receives[step]), []).append(tick[c.place(step)])
    gave: dict[int, list[int]] = {}
    for step in np.flatnonzero(c.sends >= 0).tolist():
        gave.setdefault(int(c.sends[step]), []).append(tick[c.place(step)])
    assert took.keys() == gave.keys()
    assert all(b > a for link in took for a, b in zip(gave[link], took[link], strict=True))
    assert sum(blocks["count"]) == program.nsteps
    assert sum(view["network"]["moved"]) == sum(sends["count"])
    if program.collective == "allreduce":
        assert goal_for("allreduce", program.nranks, program.nchunks_per_loop, True) is not None
        last = [sends["words"][sends["what"][i]] for i in range(sends["shown"]) if sends["hop"][i] == max(sends["hop"])]
        ranks = format_spans(range(program.nranks))
        assert all(value.startswith(f"sum over {program.nranks} ranks ({ranks}) of ") for value in last)


def test_a_program_on_a_topology_is_timed(tmp_path: Path) -> None:
    path = written(tmp_path, write_msccl(replace(ring_allgather(4), protocol="Simple")))
    size = 1 << 22
    algorithm = figures(report(path, load("ring:4"), None, size))
    hold = size / 4 / 50e3
    assert algorithm["unit"] == "µs"
    assert algorithm["span"] == pytest.approx(3 * (hold + 0.7), rel=1e-6)
    network = algorithm["network"]
    assert isinstance(network, dict)
    assert network["load"] == pytest.approx([3 * hold / (3 * (hold + 0.7))] * 4, rel=1e-6)
    with pytest.raises(InputError, match="no link"):
        report(path, load("line:4"))


@pytest.mark.parametrize("topology", ["dgx-a100", "dgx-a100:2"])
def test_a_program_on_switches_is_drawn_with_them(tmp_path: Path, topology: str) -> None:
    """Check that each connection is a path of physical links from rank to rank, none of which carries too much."""
    path = written(tmp_path, write_msccl(replace(ring_allgather(4), protocol="Simple")))
    algorithm = figures(report(path, load(topology), (0, 3, 5, 6), 1 << 22))
    network, links = algorithm["network"], algorithm["sends"]["links"]
    assert len(network["names"]) > network["n"] == 4
    assert 0 < network["busiest"] <= 1
    for source, target, edges in zip(links["src"], links["dst"], links["path"], strict=True):
        end_of = {network["u"][edge]: network["v"][edge] for edge in edges}
        vertex = source
        for _ in edges:
            vertex = end_of[vertex]
        assert (vertex, len(end_of)) == (target, len(edges))
        assert all(network["load"][edge] > 0 for edge in edges)


def test_a_program_that_does_not_pair_up_shows_its_structure(tmp_path: Path) -> None:
    text = write_msccl(ring_allgather(3)).replace('recv="0"', 'recv="2"')
    page = report(written(tmp_path, text))
    assert page.wrong
    algorithm = figures(page)
    assert algorithm["network"] is None
    assert algorithm["blocks"]["count"]  # type: ignore[index]
    Elements(page.html)


def test_unreadable_files_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.synth").write_bytes(b"PK nothing")
    (tmp_path / "a.xml").write_text("<algo")
    (tmp_path / "a.proof.json").write_text("{}")
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "index.json").write_text('{"format": "synth-index-9", "algorithms": []}')
    (tmp_path / "no-entries").mkdir()
    (tmp_path / "no-entries" / "index.json").write_bytes(index_text([]))
    for name, message in (
        ("empty", "no schedule"), ("a.synth", "schedule file"), ("a.xml", "line 1"), ("a.proof.json", "is a proof"),
        ("none.synth", "no such file"), ("library", "format"), ("library/index.json", "format"),
        ("no-entries", "no schedule"), ("no-entries/index.json", "no schedule"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message) as refused:
            report(tmp_path / name)
        assert "\n" not in str(refused.value)


def test_sizes_of_the_axes_are_powers() -> None:
    sizes = (1024.0, 2.0**30)
    curve, bound = (tuple(zip(sizes, times, strict=True)) for times in ((3.0, 5e4), (1.0, 4e4)))
    drawn = plotted("a", ItemTiming("t", *curve[0], curve=curve, bound=bound))
    assert ">1 MiB<" in drawn
    assert ">10 µs<" in drawn
    assert math.isfinite(sum(float(v) for v in re.findall(r"[ML]([0-9.]+) ", drawn)))


def test_files_of_a_library_are_drawn_as_curves(tmp_path: Path) -> None:
    """Check that the curves have all times and bounds of the index, over all sizes."""
    save(synthesize("allgather", "ring:3", engine="route").result, tmp_path)
    index = tmp_path / "index.json"
    document = json.loads(index.read_text(encoding="utf-8"))
    rows = document["algorithms"][0]["curve"]
    html = report(index).html  # The curves of both forms of calls are equal.
    assert html.count('<g class="curve c0"') == html.count('<li class="c0"') == 2
    drawn = re.search(r'<g class="curve c0"[^>]*><path d="M([^"]+)"', report(index).html)
    assert drawn is not None
    assert len(drawn[1].split("L")) == len(rows) >= 21
    document["algorithms"] = document["algorithms"][:1]
    document["algorithms"][0]["curve"] = rows[:2]
    index.write_text(json.dumps(document), encoding="utf-8")
    drawn = re.search(r'<g class="curve c0"[^>]*><path d="M([^"]+)"', report(index).html)
    assert drawn is not None
    assert len(drawn[1].split("L")) == 2


def test_a_sum_that_exceeds_its_cap_says_so() -> None:
    witness: Any = WITNESSES["cut"](base_us=2.0, per_byte_us=1e-6, cap_us=2.5)
    assert _explain_sum(witness, 4e5, "x") == (
        "By this argument latency takes 2 µs and each MB (10⁶ bytes) of the message takes 1 µs: 2.4 µs for x."
    )
    assert _explain_sum(witness, 1e6, "x").endswith("3 µs for x. But it proves at most 2.5 µs, whatever the size.")


@pytest.mark.parametrize("kind", [kind for kind, words in _WITNESSES.items() if "{names}" in words])
def test_a_sentence_on_ranks_names_them(kind: str) -> None:
    """Check that no kind of witness whose sentence is about ranks is explained without them."""
    problem = make_problem(load("full:6"), "allreduce", (0, 1, 4))
    ranked: Any = WITNESSES[kind]
    assert re.search(r"\b4\b", _explain_witness(problem, ranked(base_us=1.0, ranks=(2,))))


def test_a_cut_around_most_ranks_is_explained_by_the_others() -> None:
    problem = make_problem(load("full:6"), "allgather")
    sentence = _explain_witness(problem, WITNESSES["cut"](base_us=1.0, ranks=(0, 1, 2, 4, 5), text="cut {3} inward"))
    assert sentence.startswith("What must come to ranks 3 goes over the links that lead to them")
    assert sentence.endswith("together (cut {3} inward).")


def test_a_frontier_has_labels_libraries_and_figures(tmp_path: Path) -> None:
    """Check that a page opens at the largest size, and that its drawing and its CSV have the library's own curve."""
    answer = synthesize("allreduce", "dgx-a100", (0, 2), engine="route", budget=1)
    answer.save(tmp_path)
    page = report(tmp_path / "index.json")
    sizes = [row["shown_bytes"] for row in answer.algorithms]
    entries = json.loads((tmp_path / "index.json").read_text())["algorithms"]
    assert entries[page_data(page.html)["first"]]["shown_bytes"] == max(sizes)
    assert page.html.count('<path class="vendor"') == 1
    for row in answer.algorithms:
        assert f"{format_time(row['time_us'])} @ " in page.html
    table = re.search(r'data-table="([^"]*)"', page.html)
    assert table is not None
    rows = list(csv.DictReader(io.StringIO(unescape(table[1]))))
    assert {"NCCL", "bound"} < {row["curve"] for row in rows}
    model = fitted_model(load("dgx-a100"), (0, 2))
    for row in rows:
        if row["curve"] == "NCCL":
            assert float(row["us"]) == pytest.approx(model.choose("allreduce", float(row["bytes"])).time_us, rel=1e-6)
    plain = synthesize("allreduce", "dgx-a100", (0, 2), engine="route", costs="none", size="1M", budget=1)
    plain.save(tmp_path / "plain")
    assert 'class="vendor"' not in report(tmp_path / "plain" / "index.json").html.split("</style>")[1]


def test_a_program_is_shown_at_a_size_that_it_serves(tmp_path: Path) -> None:
    for low, high, size in ((0, 0, "1 MiB"), (4 << 20, 0, "4 MiB"), (0, 64 << 10, "64 KiB")):
        program = replace(ring_allgather(4), min_bytes=low, max_bytes=high)
        page = report(written(tmp_path, write_msccl(program)), load("ring:4"))
        assert f"<small>at {size}</small>" in page.html


@pytest.mark.parametrize("machine", ["dgx-a100", "dgx-h100:2"])
def test_counts_of_a_plan_are_those_of_its_file(tmp_path: Path, machine: str) -> None:
    """Check a plan of all ranks, and one whose ranks are images, which has more than the program that is drawn."""
    answer = synthesize("allgather", machine, size="1M", engine="levels" if ":" in machine else "route", budget=4)
    answer.save(tmp_path)
    path = sorted((tmp_path / "mscclpp").iterdir())[0]
    blocks = [rank["threadblocks"] for rank in json.loads(path.read_text(encoding="utf-8"))["gpus"]]
    words = " ".join(text_of(report(path, topology=load(machine)).html).split())
    operations = sum(len(block["ops"]) for of_rank in blocks for block in of_rank)
    assert f"Operations {format_number(operations)} on {len(blocks)} ranks" in words
    most, total = max(map(len, blocks)), sum(map(len, blocks))
    assert f"Threadblocks {most} at most on a rank; {format_number(total)} in all" in words
